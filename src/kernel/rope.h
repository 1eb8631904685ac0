/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Rotary position embedding. Pair i of a head at position p is rotated by the angle p * f[i], where f is the pair's frequency:
 *
 *     (a, b) -> (a cos - b sin, a sin + b cos)        f[i] = scale * base^(-2i / rope_dim) / factors[i]
 *
 * Style NORM pairs (2i, 2i+1), NEOX pairs (i, i + rope_dim/2); components from rope_dim on are left alone. Angles, cosines
 * and sines are computed in double and stored as float, once a step for all layers and heads: at position 100,000 a float
 * angle would be off by 0.004. Source: Su et al. 2021 (RoFormer). No errors. Any thread.
 */
#ifndef KNI_KERNEL_ROPE_H
#define KNI_KERNEL_ROPE_H

#include <stdint.h>

/* freqs: [n_pairs]; factors: [n_pairs] positive divisors, NULL for all 1. */
void kni_rope_freqs(double *freqs, uint32_t n_pairs, float base, float scale, const float *factors);
/* cos_row and sin_row: [n_pairs] of one position. */
void kni_rope_table(float *cos_row, float *sin_row, uint32_t pos, uint32_t n_pairs, const double *freqs);

/* Rotates one head in place: x [at least 2 * n_pairs]. */
typedef void (*kni_rope_fn)(float *x, const float *cos_row, const float *sin_row, uint32_t n_pairs);

void kni_rope_norm_ref(float *x, const float *cos_row, const float *sin_row, uint32_t n_pairs);
void kni_rope_neox_ref(float *x, const float *cos_row, const float *sin_row, uint32_t n_pairs);
#if defined(__x86_64__)
void kni_rope_norm_avx2(float *x, const float *cos_row, const float *sin_row, uint32_t n_pairs);
void kni_rope_neox_avx2(float *x, const float *cos_row, const float *sin_row, uint32_t n_pairs);
#endif

#endif
