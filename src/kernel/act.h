/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Element-wise maths of the feed-forward part: gate[i] = act(gate[i]) * up[i], where act is one of
 *
 *     silu(x) = x / (1 + exp(-x))
 *     gelu(x) = x/2 (1 + tanh(sqrt(2/pi) (x + 0.044715 x^3))) = x / (1 + exp(-2 sqrt(2/pi) (x + 0.044715 x^3)))
 *
 * Infinite and NaN inputs give what the formula gives, up to underflow. No errors. Any thread.
 */
#ifndef KNI_KERNEL_ACT_H
#define KNI_KERNEL_ACT_H

#include <stdint.h>

/* gate, up: [n]; gate is overwritten. */
typedef void (*kni_act_mul_fn)(float *gate, const float *up, uint32_t n);

void kni_silu_mul_ref(float *gate, const float *up, uint32_t n);
void kni_gelu_mul_ref(float *gate, const float *up, uint32_t n);
#if defined(__x86_64__)
void kni_silu_mul_avx2(float *gate, const float *up, uint32_t n);
void kni_gelu_mul_avx2(float *gate, const float *up, uint32_t n);
#endif

#endif
