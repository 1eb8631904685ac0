/* SPDX-License-Identifier: Apache-2.0 */
#include "kernel/rope.h"

#if defined(__x86_64__)
#include "kernel/x86/vec_avx2.h"

void kni_rope_norm_avx2(float *x, const float *cos_row, const float *sin_row, uint32_t n_pairs)
{
    const __m256i twice = _mm256_setr_epi32(0, 0, 1, 1, 2, 2, 3, 3);
    uint32_t i = 0;
    for (; i + 4 <= n_pairs; i += 4) {
        __m256 v = _mm256_loadu_ps(x + 2 * i);
        __m256 c = _mm256_permutevar8x32_ps(_mm256_castps128_ps256(_mm_loadu_ps(cos_row + i)), twice);
        __m256 s = _mm256_permutevar8x32_ps(_mm256_castps128_ps256(_mm_loadu_ps(sin_row + i)), twice);
        __m256 swapped = _mm256_mul_ps(_mm256_permute_ps(v, 0xb1), s);
        _mm256_storeu_ps(x + 2 * i, _mm256_fmaddsub_ps(v, c, swapped)); /* even lanes: a c - b s, odd: b c + a s */
    }
    kni_rope_norm_ref(x + 2 * i, cos_row + i, sin_row + i, n_pairs - i);
}

void kni_rope_neox_avx2(float *x, const float *cos_row, const float *sin_row, uint32_t n_pairs)
{
    uint32_t i = 0;
    float *y = x + n_pairs;
    for (; i + 8 <= n_pairs; i += 8) {
        __m256 a = _mm256_loadu_ps(x + i), b = _mm256_loadu_ps(y + i);
        __m256 c = _mm256_loadu_ps(cos_row + i), s = _mm256_loadu_ps(sin_row + i);
        _mm256_storeu_ps(x + i, _mm256_fmsub_ps(a, c, _mm256_mul_ps(b, s)));
        _mm256_storeu_ps(y + i, _mm256_fmadd_ps(b, c, _mm256_mul_ps(a, s)));
    }
    for (; i < n_pairs; i++) {
        float a = x[i], b = y[i];
        x[i] = a * cos_row[i] - b * sin_row[i];
        y[i] = a * sin_row[i] + b * cos_row[i];
    }
}
#endif
