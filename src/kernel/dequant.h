/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Plain C references that turn the element types of GGUF files (base/dtype.h) into floats. Every faster kernel is tested
 * against these; they are also good enough for single rows, such as the embedding of one token.
 *
 * A value is scale * integer (types _0, Q6_K), scale * integer + minimum (types _1) or scale * integer - minimum (Q4_K,
 * Q5_K), each product rounded to float before the sum: the results equal those of the gguf Python package bit for bit.
 *
 *     type   values bytes  layout of a block, little-endian
 *     Q4_0       32    18  f16 d | 16 bytes: low nibbles are values 0..15, high nibbles 16..31, offset 8
 *     Q4_1       32    20  f16 d | f16 m | 16 bytes as Q4_0, no offset
 *     Q5_0       32    22  f16 d | u32 fifth bits | 16 bytes, offset 16
 *     Q5_1       32    24  f16 d | f16 m | u32 fifth bits | 16 bytes
 *     Q8_0       32    34  f16 d | 32 signed bytes
 *     Q4_K      256   144  f16 d | f16 dmin | 12 bytes: 8 scales and 8 minima of 6 bits | 128 bytes of nibbles
 *     Q5_K      256   176  f16 d | f16 dmin | 12 bytes as Q4_K | 32 bytes of fifth bits | 128 bytes of nibbles
 *     Q6_K      256   210  128 bytes of low nibbles | 64 bytes of high pairs | 16 signed scales | f16 d, offset 32
 *
 * Source: the GGUF specification and ggml's block structures. src needs no alignment and is not modified; dst is the
 * caller's. No errors: sizes are checked when a model is opened. Any thread.
 */
#ifndef KNI_KERNEL_DEQUANT_H
#define KNI_KERNEL_DEQUANT_H

#include <stddef.h>

#include "base/dtype.h"

/* dst[n_values] from src; n_values is a multiple of the type's block_values. */
typedef void (*kni_dequant_fn)(const void *src, float *dst, size_t n_values);

void kni_dequant_f32_ref(const void *src, float *dst, size_t n_values);
void kni_dequant_f16_ref(const void *src, float *dst, size_t n_values);
void kni_dequant_bf16_ref(const void *src, float *dst, size_t n_values);
void kni_dequant_q4_0_ref(const void *src, float *dst, size_t n_values);
void kni_dequant_q4_1_ref(const void *src, float *dst, size_t n_values);
void kni_dequant_q5_0_ref(const void *src, float *dst, size_t n_values);
void kni_dequant_q5_1_ref(const void *src, float *dst, size_t n_values);
void kni_dequant_q8_0_ref(const void *src, float *dst, size_t n_values);
void kni_dequant_q4_k_ref(const void *src, float *dst, size_t n_values);
void kni_dequant_q5_k_ref(const void *src, float *dst, size_t n_values);
void kni_dequant_q6_k_ref(const void *src, float *dst, size_t n_values);

/* The reference of a type, NULL for an unknown one. */
kni_dequant_fn kni_dequant_ref_of(enum kni_dtype type);

/* Scale and minimum (0..63 each) of sub-block j (0..7) from the 12 packed bytes of a Q4_K or Q5_K block. The first four
 * lie in the low 6 bits of bytes j and j + 4; the others have their low nibbles in byte j + 4 and their high pairs on
 * top of the first four. */
static inline void kni_dequant_k_scale(const uint8_t packed[12], unsigned j, uint8_t *scale, uint8_t *min)
{
    if (j < 4) {
        *scale = packed[j] & 63u;
        *min = packed[j + 4] & 63u;
    } else {
        *scale = (uint8_t)((packed[j + 4] & 15u) | (packed[j - 4] & 0xc0u) >> 2);
        *min = (uint8_t)((packed[j + 4] & 0xf0u) >> 4 | (packed[j] & 0xc0u) >> 2);
    }
}

#endif
