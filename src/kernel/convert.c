/* SPDX-License-Identifier: Apache-2.0 */
#include "kernel/convert.h"

#include "base/half.h"

bool kni_is_finite16_ref(const uint16_t *x, size_t n, uint16_t infinity)
{
    uint16_t largest = 0;
    for (size_t i = 0; i < n; i++) {
        uint16_t magnitude = x[i] & 0x7fff;
        largest = magnitude > largest ? magnitude : largest;
    }
    return largest < infinity;
}

void kni_to_f16_ref(uint16_t *dst, const float *src, size_t n)
{
    for (size_t i = 0; i < n; i++)
        dst[i] = kni_f32_to_f16(src[i]);
}

void kni_to_bf16_ref(uint16_t *dst, const float *src, size_t n)
{
    for (size_t i = 0; i < n; i++)
        dst[i] = kni_f32_to_bf16(src[i]);
}

void kni_from_f16_ref(float *dst, const uint16_t *src, size_t n)
{
    for (size_t i = 0; i < n; i++)
        dst[i] = kni_f16_to_f32(src[i]);
}

void kni_from_bf16_ref(float *dst, const uint16_t *src, size_t n)
{
    for (size_t i = 0; i < n; i++)
        dst[i] = kni_bf16_to_f32(src[i]);
}

void kni_pack16_f16_ref(float *dst, const uint16_t *src, uint32_t d)
{
    for (uint32_t i = 0; i < d; i++)
        for (uint32_t j = 0; j < 16; j++)
            dst[i * 16 + j] = kni_f16_to_f32(src[j * d + i]);
}

void kni_pack16_bf16_ref(float *dst, const uint16_t *src, uint32_t d)
{
    for (uint32_t i = 0; i < d; i++)
        for (uint32_t j = 0; j < 16; j++)
            dst[i * 16 + j] = kni_bf16_to_f32(src[j * d + i]);
}
