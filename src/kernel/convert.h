/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Arrays of 16-bit floats (IEEE binary16 and bfloat16) to and from float. The same bits as the scalar forms in base/half.h for
 * every input but NaN, whose payload may differ. The pool's K and V go through here. No errors. Any thread.
 */
#ifndef KNI_KERNEL_CONVERT_H
#define KNI_KERNEL_CONVERT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* dst, src: [n], not overlapping. Rounds to nearest even. */
typedef void (*kni_to_half_fn)(uint16_t *dst, const float *src, size_t n);
typedef void (*kni_from_half_fn)(float *dst, const uint16_t *src, size_t n);

/* 16 rows of d as a panel of floats: dst[i * 16 + j] = src[j * d + i]. For keys of a block: see kernel/gemm.h. */
typedef void (*kni_pack16_half_fn)(float *dst, const uint16_t *src, uint32_t d);

/* Whether all of x [n] are finite. infinity: the type's positive one, 0x7c00 or 0x7f80; what is not below it in magnitude is not finite. */
typedef bool (*kni_is_finite16_fn)(const uint16_t *x, size_t n, uint16_t infinity);

bool kni_is_finite16_ref(const uint16_t *x, size_t n, uint16_t infinity);
void kni_pack16_f16_ref(float *dst, const uint16_t *src, uint32_t d);
void kni_pack16_bf16_ref(float *dst, const uint16_t *src, uint32_t d);
void kni_to_f16_ref(uint16_t *dst, const float *src, size_t n);
void kni_to_bf16_ref(uint16_t *dst, const float *src, size_t n);
void kni_from_f16_ref(float *dst, const uint16_t *src, size_t n);
void kni_from_bf16_ref(float *dst, const uint16_t *src, size_t n);
#if defined(__x86_64__)
bool kni_is_finite16_avx2(const uint16_t *x, size_t n, uint16_t infinity);
void kni_pack16_f16_avx2(float *dst, const uint16_t *src, uint32_t d);
void kni_pack16_bf16_avx2(float *dst, const uint16_t *src, uint32_t d);
void kni_to_f16_avx2(uint16_t *dst, const float *src, size_t n);
void kni_to_bf16_avx2(uint16_t *dst, const float *src, size_t n);
void kni_from_f16_avx2(float *dst, const uint16_t *src, size_t n);
void kni_from_bf16_avx2(float *dst, const uint16_t *src, size_t n);
#endif

#endif
