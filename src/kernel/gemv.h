/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Products of a few activation rows with a quantised weight matrix, straight from the file's blocks:
 *
 *     y[r][o] (+)= sum over i of W[o][i] * x[r][i]        W [n_out][n_in] of any element type, x [n_x][ldx], y [n_x][ldy]
 *
 * The form for decoding: each weight is read once for all rows, so a step costs the memory traffic of the weights.
 * Weights become floats in registers (Q4_0, Q4_1, Q8_0) or in a scratch row (other types); activations stay float: rounding
 * them to 8 bits would cost more accuracy than the tests against the reference framework allow.
 *
 * A result depends neither on n_x nor on how a caller splits n_out: every row has its own accumulators, summed in one order.
 * No errors. Any thread.
 */
#ifndef KNI_KERNEL_GEMV_H
#define KNI_KERNEL_GEMV_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "kernel/dequant.h"

#define KNI_GEMV_MAX_ROWS 8u

struct kni_gemv_args {
    const void *w;    /* first weight row of this call */
    size_t row_bytes; /* from one weight row to the next */
    uint32_t n_out, n_in;
    const float *x;
    size_t ldx;   /* floats from one activation row to the next */
    uint32_t n_x; /* 1..KNI_GEMV_MAX_ROWS */
    float *y;
    size_t ldy;
    bool accumulate;        /* add to y instead of overwriting it */
    kni_dequant_fn dequant; /* of W's type */
    float *scratch;         /* [n_in]: one dequantised row */
};

typedef void (*kni_gemv_fn)(const struct kni_gemv_args *a);

/* Any type, through dequant and scratch. Sums in double. */
void kni_gemv_ref(const struct kni_gemv_args *a);
#if defined(__x86_64__)
void kni_gemv_any_avx2(const struct kni_gemv_args *a);
/* These use neither dequant nor scratch. */
void kni_gemv_q4_0_avx2(const struct kni_gemv_args *a);
void kni_gemv_q4_1_avx2(const struct kni_gemv_args *a);
void kni_gemv_q8_0_avx2(const struct kni_gemv_args *a);
#endif

#endif
