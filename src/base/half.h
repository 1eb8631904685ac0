/* SPDX-License-Identifier: Apache-2.0 */
/*
 * IEEE binary16 and bfloat16 as uint16_t. Round to nearest even; NaN stays NaN; f16 overflow becomes infinity.
 * These scalar forms are the references; array forms with SIMD live in kernel/.
 */
#ifndef KNI_BASE_HALF_H
#define KNI_BASE_HALF_H

#include <stdint.h>
#include <string.h>

static inline uint32_t kni_f32_bits(float x)
{
    uint32_t u;
    memcpy(&u, &x, 4);
    return u;
}

static inline float kni_f32_from_bits(uint32_t u)
{
    float x;
    memcpy(&x, &u, 4);
    return x;
}

static inline float kni_f16_to_f32(uint16_t h)
{
    uint32_t sign = (uint32_t)(h & 0x8000u) << 16, e = (h >> 10) & 31u, m = h & 0x3ffu;
    if (e == 31)
        return kni_f32_from_bits(sign | 0x7f800000u | m << 13);
    if (e)
        return kni_f32_from_bits(sign | (e + 112) << 23 | m << 13);
    float x = (float)m * 0x1p-24f; /* subnormal or zero: exact */
    return sign ? -x : x;
}

static inline uint16_t kni_f32_to_f16(float x)
{
    uint32_t u = kni_f32_bits(x), sign = u >> 16 & 0x8000u, a = u & 0x7fffffffu;
    if (a > 0x7f800000u)
        return (uint16_t)(sign | 0x7e00u | (a >> 13 & 0x3ffu));
    if (a >= 0x477ff000u)
        return (uint16_t)(sign | 0x7c00u);
    if (a < 0x38800000u) { /* result is subnormal: adding 0.5 leaves the rounded value in the low bits */
        float f = kni_f32_from_bits(a) + 0.5f;
        return (uint16_t)(sign | (kni_f32_bits(f) - 0x3f000000u));
    }
    uint32_t odd = a >> 13 & 1u;
    return (uint16_t)(sign | (a - 0x38000000u + 0xfffu + odd) >> 13);
}

static inline float kni_bf16_to_f32(uint16_t b)
{
    return kni_f32_from_bits((uint32_t)b << 16);
}

static inline uint16_t kni_f32_to_bf16(float x)
{
    uint32_t u = kni_f32_bits(x);
    if ((u & 0x7fffffffu) > 0x7f800000u)
        return (uint16_t)(u >> 16 | 64u);
    return (uint16_t)((u + 0x7fffu + (u >> 16 & 1u)) >> 16);
}

#endif
