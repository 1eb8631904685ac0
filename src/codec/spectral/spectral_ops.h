/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The loops of the spectral transform, as plain C and for wider machines, behind one table. Apart from the two sums (mix, and the
 * squares of weigh) every level gives the bits of the reference.
 *
 * The way back multiplies few symbols that are not zero by rows of the basis, so its product is sparse, token by token:
 *
 *     entries of token t: (row, value)[]      one a symbol that is not zero, rows ascending
 *     strip: [row][64 columns] of the basis, in cache while all tokens of a tile pass by
 *     x[t][column] = mean[column] + sum over entries of value * strip[row][column]
 *
 * A strip holds bfloat16 in pairs, so that a shift and a mask make floats of them: 32 columns are 16 words of 32 bits, column j in
 * the low half of word j, column j + 16 in its high half.
 *
 * Why sparse: at the presets' steps a sixth to a third of the symbols of the rows that are coded are not zero, and rows whose
 * symbols are zero for a whole tile of tokens are few. Numbers in doc/speed-log.md. No errors. Any thread.
 */
#ifndef KNI_CODEC_SPECTRAL_OPS_H
#define KNI_CODEC_SPECTRAL_OPS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define KNI_SPECTRAL_STRIP 64u
#define KNI_SPECTRAL_AHEAD 16u /* entries that are read ahead: so many behind the last one must be there, with a row that is */
#define KNI_SPECTRAL_LARGEST 0x1p50f /* of |K|, |V| and weighted ones; more is cut off: squares of a row fit a float */

struct kni_spectral_entry {
    uint32_t at; /* row * KNI_SPECTRAL_STRIP */
    float value;
};

struct kni_spectral_mix_args {
    const uint16_t *strip;
    const float *mean;                        /* [64] */
    const struct kni_spectral_entry *entries;
    const uint32_t *starts;                   /* [n_tokens + 1] into entries */
    uint32_t n_tokens;
    float *x;                                 /* [n_tokens] rows of 64, ldx floats apart */
    size_t ldx;
};

struct kni_spectral_gather_args {
    const uint16_t *basis; /* row 0, first column of the strip */
    size_t width;          /* of a row of the basis */
    uint32_t n_rows, n_cols; /* n_cols 32 or 64; columns beyond are filled with zeros */
    const uint8_t *used;   /* [n_rows]; rows with 0 are left alone */
    uint16_t *strip;       /* 32-byte aligned */
};

/* n of quantise, scan and fill is a multiple of 16. */
struct kni_spectral_ops {
    /* x that is not finite becomes 0, larger than KNI_SPECTRAL_LARGEST that. */
    void (*clean)(float *x, uint32_t n);
    /* x times weight (NULL: ones), cut off likewise; returns the sum of squares. */
    float (*weigh)(float *x, const float *weight, uint32_t n);
    /* x = x * scale - mean (NULL: zeros). */
    void (*centre)(float *x, const float *mean, float scale, uint32_t n);
    /* symbols of y; returns how many are escapes. */
    uint32_t (*quantise)(uint8_t *symbols, const float *y, float inv_step, uint32_t n);
    /* counts[t] += symbols[t] != 128; returns how many symbols are 0, 1 or 255. */
    uint32_t (*scan)(const uint8_t *symbols, uint16_t *counts, uint32_t n);
    /* Appends (at, values[symbol]) to entries[next[t]++] for each symbol that is not 128; returns whether there was one. */
    bool (*fill)(const uint8_t *symbols, uint32_t n, uint32_t at, const float values[256], struct kni_spectral_entry *entries, uint32_t *next);
    void (*gather)(const struct kni_spectral_gather_args *g);
    void (*mix)(const struct kni_spectral_mix_args *m);
    /* x = x * (inv_weight * scale), and returns whether some |x| is more than limit. */
    bool (*unscale)(float *x, const float *inv_weight, float scale, float limit, uint32_t n);
};

/* cpu_flags: of enum kni_cpu_flag. */
void kni_spectral_ops_init(struct kni_spectral_ops *ops, uint32_t cpu_flags);

/* The integer that y is rounded to, before symbols are clamped to +-127; never beyond 32 bits. */
int32_t kni_spectral_round(float y, float inv_step);

/* References that wider levels call for the rest of a row. */
void kni_spectral_clean_ref(float *x, uint32_t n);
float kni_spectral_weigh_ref(float *x, const float *weight, uint32_t n);
void kni_spectral_centre_ref(float *x, const float *mean, float scale, uint32_t n);
bool kni_spectral_unscale_ref(float *x, const float *inv_weight, float scale, float limit, uint32_t n);

#if defined(__x86_64__)
/* Override what the level has. */
void kni_spectral_use_avx2(struct kni_spectral_ops *ops);
void kni_spectral_use_avx512(struct kni_spectral_ops *ops);
#endif

#endif
