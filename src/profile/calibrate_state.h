/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Inside of a calibration, shared by calibrate.c (sums), calibrate_basis.c (bases) and calibrate_rows.c (histograms, presets).
 * Memory is that of the products: width^2 doubles a part, 177 MB for SmolLM2; calibrate_basis.c frees them one by one.
 */
#ifndef KNI_CODEC_CALIBRATE_STATE_H
#define KNI_CODEC_CALIBRATE_STATE_H

#include <stdatomic.h>

#include "base/arena.h"
#include "profile/calibrate.h"
#include "kernel/kernels.h"

#define KNI_CALIBRATE_BLOCK 256u /* tokens that go through a product together */
#define KNI_CALIBRATE_TILE 64u   /* rows of a product's tile */
#define KNI_CALIBRATE_BINS 256u  /* of a histogram of magnitudes: 16 an octave, 2^-8 to 2^8 */
#define KNI_CALIBRATE_EXPONENTS 192u
#define KNI_CALIBRATE_EXPONENT_MIN (-96)

struct kni_calibrate_part {
    double *sum;        /* [width] */
    double *product;    /* [width][width], columns from the row's on; NULL once solved */
    uint64_t *exponents; /* [n_layers][192] how often */
    float *mean, *weight;
    uint16_t *basis;     /* [width][width] */
    int8_t *exponent, *gain; /* [n_layers] */
    uint8_t *classes[KNI_PROFILE_N_PRESETS]; /* [n_layers + width] */
    uint32_t *histogram; /* [width][KNI_CALIBRATE_BINS]; NULL until counted */
    double *likeness;    /* [2][width]: sums of y[t]^2 and of y[t] y[t - 1], with the histogram */
};

struct kni_calibrate {
    struct kni_profile profile; /* its parts point to the arrays of the ones below */
    struct kni_calibrate_part *parts;
    struct kni_threads *threads;
    struct kni_kernels kernels;
    struct kni_arena arena;
    uint32_t max_width;
    uint64_t n_added, n_counted; /* tokens */
    float *scratch;              /* [n_workers][scratch_floats] */
    size_t scratch_floats;
    /* The call that workers work on. */
    const struct kni_kv_host *view;
    uint32_t n_tokens;
    _Atomic uint32_t next_part; /* relaxed: parts share nothing, and fork and join order the rest */
};

/* A worker's scratch: x [BLOCK][width], then as much again for either side of a product, a tile, exponents. */
struct kni_calibrate_scratch {
    float *x, *other, *tile;
    int8_t *exponents;
};
struct kni_calibrate_scratch kni_calibrate_scratch_of(const struct kni_calibrate *c, uint32_t worker);
/* Rows of a block of at most KNI_CALIBRATE_BLOCK tokens into scratch; returns how many tokens, 0 at the end. */
uint32_t kni_calibrate_rows(const struct kni_calibrate *c, uint32_t part, uint32_t first_token, struct kni_calibrate_scratch *s);
/* Runs fn (a kni_threads_fn with the calibration as its argument) on all workers for the view given. */
void kni_calibrate_share(struct kni_calibrate *c, const struct kni_kv_host *view, uint32_t n_tokens, kni_threads_fn fn);

#endif
