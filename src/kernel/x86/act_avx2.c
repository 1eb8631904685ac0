/* SPDX-License-Identifier: Apache-2.0 */
#include "kernel/act.h"

#if defined(__x86_64__)
#include "kernel/x86/vec_avx2.h"

static inline __m256 silu_mul(__m256 g, __m256 u)
{
    __m256 e = vec_exp(_mm256_sub_ps(_mm256_setzero_ps(), g));
    return _mm256_mul_ps(_mm256_div_ps(g, _mm256_add_ps(_mm256_set1_ps(1.0f), e)), u);
}

void kni_silu_mul_avx2(float *gate, const float *up, uint32_t n)
{
    uint32_t i = 0;
    for (; i + 8 <= n; i += 8)
        _mm256_storeu_ps(gate + i, silu_mul(_mm256_loadu_ps(gate + i), _mm256_loadu_ps(up + i)));
    if (i < n) {
        __m256i mask = vec_mask(n - i);
        _mm256_maskstore_ps(gate + i, mask, silu_mul(_mm256_maskload_ps(gate + i, mask), _mm256_maskload_ps(up + i, mask)));
    }
}
static inline __m256 gelu_mul(__m256 x, __m256 u)
{
    /* x / (1 + exp(-2 t)); the sign is folded into the constants. */
    __m256 inner = _mm256_fmadd_ps(_mm256_mul_ps(x, x), _mm256_set1_ps(-2 * 0.7978845608f * 0.044715f), _mm256_set1_ps(-2 * 0.7978845608f));
    __m256 e = vec_exp(_mm256_mul_ps(x, inner));
    return _mm256_mul_ps(_mm256_div_ps(x, _mm256_add_ps(_mm256_set1_ps(1.0f), e)), u);
}

void kni_gelu_mul_avx2(float *gate, const float *up, uint32_t n)
{
    uint32_t i = 0;
    for (; i + 8 <= n; i += 8)
        _mm256_storeu_ps(gate + i, gelu_mul(_mm256_loadu_ps(gate + i), _mm256_loadu_ps(up + i)));
    if (i < n) {
        __m256i mask = vec_mask(n - i);
        _mm256_maskstore_ps(gate + i, mask, gelu_mul(_mm256_maskload_ps(gate + i, mask), _mm256_maskload_ps(up + i, mask)));
    }
}
#endif
