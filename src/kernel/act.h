/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Element-wise maths of the feed-forward part: gate[i] = silu(gate[i]) * up[i] with silu(x) = x / (1 + exp(-x)).
 * Infinite and NaN inputs give what the formula gives, up to underflow. No errors. Any thread.
 */
#ifndef KNI_KERNEL_ACT_H
#define KNI_KERNEL_ACT_H

#include <stdint.h>

/* gate, up: [n]; gate is overwritten. */
typedef void (*kni_silu_mul_fn)(float *gate, const float *up, uint32_t n);

void kni_silu_mul_ref(float *gate, const float *up, uint32_t n);
#if defined(__x86_64__)
void kni_silu_mul_avx2(float *gate, const float *up, uint32_t n);
#endif

#endif
