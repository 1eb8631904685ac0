/* SPDX-License-Identifier: Apache-2.0 */
/* Bit for bit what the references give: see vec_avx2.h for why. Tails of F16 and BF16 go to the references. */
#include "kernel/x86/dequant_avx2.h"

#if defined(__x86_64__)
#include "kernel/x86/vec_avx2.h"

static inline void store(float *dst, const __m256 v[4])
{
    for (int i = 0; i < 4; i++)
        _mm256_storeu_ps(dst + 8 * i, v[i]);
}

void kni_dequant_q4_0_avx2(const void *src, float *dst, size_t n_values)
{
    const uint8_t *p = src;
    for (size_t i = 0; i < n_values; i += 32, p += 18) {
        __m256 v[4];
        vec_block_q4_0(p, v);
        store(dst + i, v);
    }
}

void kni_dequant_q4_1_avx2(const void *src, float *dst, size_t n_values)
{
    const uint8_t *p = src;
    for (size_t i = 0; i < n_values; i += 32, p += 20) {
        __m256 v[4];
        vec_block_q4_1(p, v);
        store(dst + i, v);
    }
}

void kni_dequant_q8_0_avx2(const void *src, float *dst, size_t n_values)
{
    const uint8_t *p = src;
    for (size_t i = 0; i < n_values; i += 32, p += 34) {
        __m256 v[4];
        vec_block_q8_0(p, v);
        store(dst + i, v);
    }
}

void kni_dequant_f16_avx2(const void *src, float *dst, size_t n_values)
{
    const uint8_t *p = src;
    size_t i = 0;
    for (; i + 8 <= n_values; i += 8)
        _mm256_storeu_ps(dst + i, _mm256_cvtph_ps(_mm_loadu_si128((const __m128i *)(const void *)(p + 2 * i))));
    kni_dequant_f16_ref(p + 2 * i, dst + i, n_values - i);
}

void kni_dequant_bf16_avx2(const void *src, float *dst, size_t n_values)
{
    const uint8_t *p = src;
    size_t i = 0;
    for (; i + 8 <= n_values; i += 8) {
        __m256i u = _mm256_cvtepu16_epi32(_mm_loadu_si128((const __m128i *)(const void *)(p + 2 * i)));
        _mm256_storeu_ps(dst + i, _mm256_castsi256_ps(_mm256_slli_epi32(u, 16)));
    }
    kni_dequant_bf16_ref(p + 2 * i, dst + i, n_values - i);
}
#endif
