/* SPDX-License-Identifier: Apache-2.0 */
/* AVX2 forms of the dequantisers in kernel/dequant.h: same contract, same bits. */
#ifndef KNI_KERNEL_X86_DEQUANT_AVX2_H
#define KNI_KERNEL_X86_DEQUANT_AVX2_H

#include "kernel/dequant.h"

#if defined(__x86_64__)
void kni_dequant_q4_0_avx2(const void *src, float *dst, size_t n_values);
void kni_dequant_q4_1_avx2(const void *src, float *dst, size_t n_values);
void kni_dequant_q8_0_avx2(const void *src, float *dst, size_t n_values);
void kni_dequant_f16_avx2(const void *src, float *dst, size_t n_values);
void kni_dequant_bf16_avx2(const void *src, float *dst, size_t n_values);
#endif

#endif
