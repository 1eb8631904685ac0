/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The loops of layout exact that every value goes through: by channel instead of by token, values to symbols and raw bits, raw bits to
 * bytes, sums. One table an instruction level, all with the same results to the bit. Lengths n are multiples of 16.
 *
 * Raw bits lie in columns, so that sixteen values are packed at once: the values' lane t % 16 is a column of 16-bit words that
 * fills from its low bits; words of all lanes are written when full, u16 each, little-endian, lane 0 first. Packing goes on
 * over all channels of a part and pads the last words with zeros.
 *
 * Nothing here allocates; pure functions on the caller's memory, any thread.
 */
#ifndef KNI_CODEC_EXACT_LOOPS_H
#define KNI_CODEC_EXACT_LOOPS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define KNI_EXACT_MAX_CELL 126u /* of a channel's window */
#define KNI_EXACT_ESCAPE 255u

struct kni_exact_packer {
    uint16_t columns[16];
    uint32_t fill;   /* bits in each column, below 16 between calls */
    uint32_t n_bits; /* of a value, 1..15 */
    uint8_t *out;
};
struct kni_exact_unpacker {
    uint16_t columns[16];
    uint32_t fill, n_bits;
    const uint8_t *in;
};

struct kni_exact_loops {
    /* Up to 16 channels of 16 tokens: rows of d in the pool, to columns stride apart; and back. */
    void (*load)(const uint16_t *block, uint32_t d, uint32_t n_channels, uint16_t *values, size_t stride);
    void (*store)(uint16_t *block, uint32_t d, uint32_t n_channels, const uint16_t *values, size_t stride);
    /* Notes (exact_lanes.h) of means: how many of the rising edges |mean| reaches, and its sign. */
    void (*tables)(const int16_t *means, uint8_t *notes, uint32_t n, const uint8_t *edges, uint32_t n_edges);
    /* means = own * cosine + other * sine, cosines and sines times 2^14, rounded. */
    void (*turn)(const int16_t *cosines, const int16_t *sines, int32_t own, int32_t other, int16_t *means, uint32_t n);
    /* A channel's symbols under its notes. Returns how many are KNI_EXACT_ESCAPE. */
    uint32_t (*symbols)(const uint16_t *values, const uint8_t *notes, uint32_t raw_bits, uint16_t base, uint8_t *symbols, uint32_t n);
    /* And back: values hold the raw bits. Returns how many were escapes, whose values are nothing. *largest: the largest of the values
     * without their signs, those of escapes among them. */
    uint32_t (*values)(const uint8_t *symbols, const uint8_t *notes, uint32_t raw_bits, uint16_t base, uint16_t *values, uint32_t n, uint16_t *largest);
    /* The low n_bits of values; and back. */
    void (*pack)(struct kni_exact_packer *p, const uint16_t *values, uint32_t n);
    void (*unpack)(struct kni_exact_unpacker *u, uint16_t *values, uint32_t n);
    /* Sums, sums of products, and of complex products (a + i b) (c - i d); what is beyond the last whole 16 is left out. */
    float (*sum)(const float *a, uint32_t n);
    float (*dot)(const float *a, const float *b, uint32_t n);
    void (*product)(const float *a, const float *b, const float *c, const float *d, uint32_t n, float *re, float *im);
};

/* cpu_flags as kni_cpu_flags() gives them; 0: the reference. */
const struct kni_exact_loops *kni_exact_loops_get(uint32_t cpu_flags);

extern const struct kni_exact_loops kni_exact_loops_ref;
#if defined(__x86_64__)
extern const struct kni_exact_loops kni_exact_loops_avx2;
#endif

/* Bytes of n packed values. */
size_t kni_exact_packed_bytes(size_t n, uint32_t n_bits);
/* Writes what is left in the columns. */
void kni_exact_pack_end(struct kni_exact_packer *p);
/* Whether the padding is zero, so that a chunk has one form only. */
bool kni_exact_unpack_end(const struct kni_exact_unpacker *u);

#endif
