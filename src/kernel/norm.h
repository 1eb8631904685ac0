/* SPDX-License-Identifier: Apache-2.0 */
/*
 * RMS normalisation of one row: y[i] = x[i] * w[i] / sqrt(mean(x^2) + eps). Source: Zhang and Sennrich 2019, as llama uses it.
 * No errors. Any thread.
 */
#ifndef KNI_KERNEL_NORM_H
#define KNI_KERNEL_NORM_H

#include <stdint.h>

/* y, x, w: [n], n at least 1; y may be x. */
typedef void (*kni_rmsnorm_fn)(float *y, const float *x, const float *w, uint32_t n, float eps);

void kni_rmsnorm_ref(float *y, const float *x, const float *w, uint32_t n, float eps);
#if defined(__x86_64__)
void kni_rmsnorm_avx2(float *y, const float *x, const float *w, uint32_t n, float eps);
#endif

#endif
