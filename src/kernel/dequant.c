/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Reference dequantisers, one loop a type, as plain as the layouts in dequant.h. Blocks are read bytewise because the
 * 18- and 22-byte ones put their halves at odd multiples of two and a caller may hand in any row of a mapped file.
 */
#include "kernel/dequant.h"

#include <assert.h>
#include <string.h>

#include "base/half.h"

static float half_at(const uint8_t *p)
{
    return kni_f16_to_f32((uint16_t)(p[0] | p[1] << 8));
}

static uint32_t u32_at(const uint8_t *p)
{
    return (uint32_t)p[0] | (uint32_t)p[1] << 8 | (uint32_t)p[2] << 16 | (uint32_t)p[3] << 24;
}

void kni_dequant_f32_ref(const void *src, float *dst, size_t n_values)
{
    memcpy(dst, src, n_values * sizeof *dst);
}

void kni_dequant_f16_ref(const void *src, float *dst, size_t n_values)
{
    const uint8_t *p = src;
    for (size_t i = 0; i < n_values; i++)
        dst[i] = half_at(p + 2 * i);
}

void kni_dequant_bf16_ref(const void *src, float *dst, size_t n_values)
{
    const uint8_t *p = src;
    for (size_t i = 0; i < n_values; i++)
        dst[i] = kni_bf16_to_f32((uint16_t)(p[2 * i] | p[2 * i + 1] << 8));
}

void kni_dequant_q4_0_ref(const void *src, float *dst, size_t n_values)
{
    assert(n_values % 32 == 0);
    const uint8_t *p = src;
    for (size_t b = 0; b < n_values / 32; b++, p += 18, dst += 32) {
        float d = half_at(p);
        for (unsigned j = 0; j < 16; j++) {
            dst[j] = (float)((p[2 + j] & 15) - 8) * d;
            dst[j + 16] = (float)((p[2 + j] >> 4) - 8) * d;
        }
    }
}

void kni_dequant_q4_1_ref(const void *src, float *dst, size_t n_values)
{
    assert(n_values % 32 == 0);
    const uint8_t *p = src;
    for (size_t b = 0; b < n_values / 32; b++, p += 20, dst += 32) {
        float d = half_at(p), m = half_at(p + 2);
        for (unsigned j = 0; j < 16; j++) {
            dst[j] = (float)(p[4 + j] & 15) * d + m;
            dst[j + 16] = (float)(p[4 + j] >> 4) * d + m;
        }
    }
}

void kni_dequant_q5_0_ref(const void *src, float *dst, size_t n_values)
{
    assert(n_values % 32 == 0);
    const uint8_t *p = src;
    for (size_t b = 0; b < n_values / 32; b++, p += 22, dst += 32) {
        float d = half_at(p);
        uint32_t high = u32_at(p + 2);
        for (unsigned j = 0; j < 16; j++) {
            int lo = (p[6 + j] & 15) | (int)(high >> j & 1u) << 4, hi = p[6 + j] >> 4 | (int)(high >> (j + 16) & 1u) << 4;
            dst[j] = (float)(lo - 16) * d;
            dst[j + 16] = (float)(hi - 16) * d;
        }
    }
}

void kni_dequant_q5_1_ref(const void *src, float *dst, size_t n_values)
{
    assert(n_values % 32 == 0);
    const uint8_t *p = src;
    for (size_t b = 0; b < n_values / 32; b++, p += 24, dst += 32) {
        float d = half_at(p), m = half_at(p + 2);
        uint32_t high = u32_at(p + 4);
        for (unsigned j = 0; j < 16; j++) {
            int lo = (p[8 + j] & 15) | (int)(high >> j & 1u) << 4, hi = p[8 + j] >> 4 | (int)(high >> (j + 16) & 1u) << 4;
            dst[j] = (float)lo * d + m;
            dst[j + 16] = (float)hi * d + m;
        }
    }
}

void kni_dequant_q8_0_ref(const void *src, float *dst, size_t n_values)
{
    assert(n_values % 32 == 0);
    const uint8_t *p = src;
    for (size_t b = 0; b < n_values / 32; b++, p += 34, dst += 32) {
        float d = half_at(p);
        for (unsigned j = 0; j < 32; j++)
            dst[j] = (float)(int8_t)p[2 + j] * d;
    }
}

void kni_dequant_q4_k_ref(const void *src, float *dst, size_t n_values)
{
    assert(n_values % 256 == 0);
    const uint8_t *p = src;
    for (size_t b = 0; b < n_values / 256; b++, p += 144) {
        float d = half_at(p), dmin = half_at(p + 2);
        for (unsigned j = 0; j < 8; j++, dst += 32) { /* sub-blocks 2i and 2i+1 share 32 bytes: low and high nibbles */
            const uint8_t *q = p + 16 + j / 2 * 32;
            uint8_t sc, mn;
            kni_dequant_k_scale(p + 4, j, &sc, &mn);
            float s = d * (float)sc, m = dmin * (float)mn;
            for (unsigned l = 0; l < 32; l++)
                dst[l] = s * (float)(j % 2 ? q[l] >> 4 : q[l] & 15) - m;
        }
    }
}

void kni_dequant_q5_k_ref(const void *src, float *dst, size_t n_values)
{
    assert(n_values % 256 == 0);
    const uint8_t *p = src;
    for (size_t b = 0; b < n_values / 256; b++, p += 176) {
        float d = half_at(p), dmin = half_at(p + 2);
        for (unsigned j = 0; j < 8; j++, dst += 32) { /* fifth bits: byte l holds bit j of sub-block j */
            const uint8_t *q = p + 48 + j / 2 * 32, *high = p + 16;
            uint8_t sc, mn;
            kni_dequant_k_scale(p + 4, j, &sc, &mn);
            float s = d * (float)sc, m = dmin * (float)mn;
            for (unsigned l = 0; l < 32; l++)
                dst[l] = s * (float)((j % 2 ? q[l] >> 4 : q[l] & 15) | (high[l] >> j & 1) << 4) - m;
        }
    }
}

void kni_dequant_q6_k_ref(const void *src, float *dst, size_t n_values)
{
    assert(n_values % 256 == 0);
    const uint8_t *p = src;
    for (size_t b = 0; b < n_values / 256; b++, p += 210) {
        float d = half_at(p + 208);
        for (unsigned j = 0; j < 8; j++, dst += 32) { /* 32 values: half h of the block, quarter k of the half */
            unsigned h = j / 4, k = j % 4;
            const uint8_t *low = p + h * 64 + k % 2 * 32, *high = p + 128 + h * 32;
            const uint8_t *scales = p + 192 + 2 * j;
            for (unsigned l = 0; l < 32; l++) {
                int q = (k < 2 ? low[l] & 15 : low[l] >> 4) | (high[l] >> 2 * k & 3) << 4;
                dst[l] = d * (float)(int8_t)scales[l / 16] * (float)(q - 32);
            }
        }
    }
}

kni_dequant_fn kni_dequant_ref_of(enum kni_dtype type)
{
    switch (type) {
    case KNI_DTYPE_F32: return kni_dequant_f32_ref;
    case KNI_DTYPE_F16: return kni_dequant_f16_ref;
    case KNI_DTYPE_BF16: return kni_dequant_bf16_ref;
    case KNI_DTYPE_Q4_0: return kni_dequant_q4_0_ref;
    case KNI_DTYPE_Q4_1: return kni_dequant_q4_1_ref;
    case KNI_DTYPE_Q5_0: return kni_dequant_q5_0_ref;
    case KNI_DTYPE_Q5_1: return kni_dequant_q5_1_ref;
    case KNI_DTYPE_Q8_0: return kni_dequant_q8_0_ref;
    case KNI_DTYPE_Q4_K: return kni_dequant_q4_k_ref;
    case KNI_DTYPE_Q5_K: return kni_dequant_q5_k_ref;
    case KNI_DTYPE_Q6_K: return kni_dequant_q6_k_ref;
    }
    return NULL;
}
