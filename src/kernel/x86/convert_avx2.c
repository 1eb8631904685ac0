/* SPDX-License-Identifier: Apache-2.0 */
/* Tails of fewer than 8 values go to the references: same bits. */
#include "kernel/convert.h"

#if defined(__x86_64__)
#include "kernel/x86/vec_avx2.h"

bool kni_is_finite16_avx2(const uint16_t *x, size_t n, uint16_t infinity)
{
    const __m256i magnitude = _mm256_set1_epi16(0x7fff);
    __m256i a = _mm256_setzero_si256(), b = a;
    size_t i = 0;
    for (; i + 32 <= n; i += 32) {
        a = _mm256_max_epu16(a, _mm256_and_si256(magnitude, _mm256_loadu_si256((const __m256i *)(const void *)(x + i))));
        b = _mm256_max_epu16(b, _mm256_and_si256(magnitude, _mm256_loadu_si256((const __m256i *)(const void *)(x + i + 16))));
    }
    uint16_t largest[16];
    _mm256_storeu_si256((__m256i *)(void *)largest, _mm256_max_epu16(a, b));
    return kni_is_finite16_ref(largest, 16, infinity) && kni_is_finite16_ref(x + i, n - i, infinity);
}

void kni_to_f16_avx2(uint16_t *dst, const float *src, size_t n)
{
    size_t i = 0;
    for (; i + 8 <= n; i += 8)
        _mm_storeu_si128((__m128i *)(void *)(dst + i), _mm256_cvtps_ph(_mm256_loadu_ps(src + i), _MM_FROUND_TO_NEAREST_INT));
    kni_to_f16_ref(dst + i, src + i, n - i);
}

void kni_from_f16_avx2(float *dst, const uint16_t *src, size_t n)
{
    size_t i = 0;
    for (; i + 8 <= n; i += 8)
        _mm256_storeu_ps(dst + i, _mm256_cvtph_ps(_mm_loadu_si128((const __m128i *)(const void *)(src + i))));
    kni_from_f16_ref(dst + i, src + i, n - i);
}

void kni_to_bf16_avx2(uint16_t *dst, const float *src, size_t n)
{
    const __m256i one = _mm256_set1_epi32(1), half = _mm256_set1_epi32(0x7fff), quiet = _mm256_set1_epi32(64);
    size_t i = 0;
    for (; i + 8 <= n; i += 8) {
        __m256 x = _mm256_loadu_ps(src + i);
        __m256i u = _mm256_castps_si256(x), top = _mm256_srli_epi32(u, 16);
        __m256i rounded = _mm256_srli_epi32(_mm256_add_epi32(u, _mm256_add_epi32(half, _mm256_and_si256(top, one))), 16);
        __m256i nan = _mm256_castps_si256(_mm256_cmp_ps(x, x, _CMP_UNORD_Q));
        __m256i r = _mm256_blendv_epi8(rounded, _mm256_or_si256(top, quiet), nan);
        r = _mm256_permute4x64_epi64(_mm256_packus_epi32(r, r), 0x08);
        _mm_storeu_si128((__m128i *)(void *)(dst + i), _mm256_castsi256_si128(r));
    }
    kni_to_bf16_ref(dst + i, src + i, n - i);
}

void kni_from_bf16_avx2(float *dst, const uint16_t *src, size_t n)
{
    size_t i = 0;
    for (; i + 8 <= n; i += 8) {
        __m256i u = _mm256_cvtepu16_epi32(_mm_loadu_si128((const __m128i *)(const void *)(src + i)));
        _mm256_storeu_ps(dst + i, _mm256_castsi256_ps(_mm256_slli_epi32(u, 16)));
    }
    kni_from_bf16_ref(dst + i, src + i, n - i);
}

/* The last d % 8 columns. */
static void pack_rest(float *dst, const uint16_t *src, uint32_t d, kni_from_half_fn from_half)
{
    for (uint32_t i = d & ~7u; i < d; i++)
        for (uint32_t j = 0; j < 16; j++)
            from_half(dst + i * 16 + j, src + j * d + i, 1);
}

#define COLUMN(j, widen)                                                             \
    _mm256_storeu_ps(dst + (i + j) * 16, widen(_mm256_castsi256_si128(c[j])));       \
    _mm256_storeu_ps(dst + (i + j) * 16 + 8, widen(_mm256_extracti128_si256(c[j], 1)));
#define PACK(type)                                                                   \
    void kni_pack16_##type##_avx2(float *dst, const uint16_t *src, uint32_t d)       \
    {                                                                                \
        for (uint32_t i = 0; i + 8 <= d; i += 8) {                                   \
            __m256i c[8];                                                            \
            vec_transpose16(src + i, d, c);                                          \
            COLUMN(0, vec_from_##type) COLUMN(1, vec_from_##type)                    \
            COLUMN(2, vec_from_##type) COLUMN(3, vec_from_##type)                    \
            COLUMN(4, vec_from_##type) COLUMN(5, vec_from_##type)                    \
            COLUMN(6, vec_from_##type) COLUMN(7, vec_from_##type)                    \
        }                                                                            \
        pack_rest(dst, src, d, kni_from_##type##_ref);                               \
    }
PACK(f16)
PACK(bf16)
#endif
