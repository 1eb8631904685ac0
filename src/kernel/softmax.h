/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The pieces of an online softmax. A row of scores arrives in tiles; (max, sum) say what has been seen. One tile updates
 *
 *     max' = max(max, scores)     p = exp(score - max')     sum' = sum * alpha + sum of p     alpha = exp(max - max')
 *
 * and everything accumulated before is to be multiplied by alpha. Start: max = -INFINITY, sum = 0; the first alpha is 0.
 * Masked scores, those outside first .. end - 1, are never read, so that no infinity minus infinity can arise; their
 * probabilities are set to exactly 0. A tile whose scores are all -INFINITY gives zeros. Scores of NaN give NaN.
 *
 * Error of the vector exp: at most 2e-7 relative for arguments in [-87, 88]; below -87 it is 0 (the exact value is under
 * 1.7e-38). Source: Milakov and Gimelshein 2018 (online softmax). No errors. Any thread.
 */
#ifndef KNI_KERNEL_SOFTMAX_H
#define KNI_KERNEL_SOFTMAX_H

#include <stdint.h>

/* s: [n_total], in: scores, out: probabilities p; first .. end - 1 of n_total count, the rest becomes 0. With none
 * (first = end) max and sum stay. Returns alpha. */
typedef float (*kni_softmax_tile_fn)(float *s, uint32_t first, uint32_t end, uint32_t n_total, float *max, float *sum);
/* x[i] *= f. */
typedef void (*kni_scale_fn)(float *x, float f, uint32_t n);
/* y[i] = exp(x[i]); y may be x. For tests of the bound above, and benchmarks. */
typedef void (*kni_exp_fn)(float *y, const float *x, uint32_t n);

float kni_softmax_tile_ref(float *s, uint32_t first, uint32_t end, uint32_t n_total, float *max, float *sum);
void kni_scale_ref(float *x, float f, uint32_t n);
void kni_exp_ref(float *y, const float *x, uint32_t n);
#if defined(__x86_64__)
float kni_softmax_tile_avx2(float *s, uint32_t first, uint32_t end, uint32_t n_total, float *max, float *sum);
void kni_scale_avx2(float *x, float f, uint32_t n);
void kni_exp_avx2(float *y, const float *x, uint32_t n);
#endif

#endif
