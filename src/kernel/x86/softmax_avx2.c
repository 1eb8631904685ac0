/* SPDX-License-Identifier: Apache-2.0 */
#include "kernel/softmax.h"

#if defined(__x86_64__)
#include <math.h>

#include "kernel/x86/vec_avx2.h"

float kni_softmax_tile_avx2(float *s, uint32_t n_valid, uint32_t n_total, float *max, float *sum)
{
    const __m256 lowest = _mm256_set1_ps(-INFINITY);
    uint32_t i = 0, whole = n_valid & ~7u;
    __m256i mask = vec_mask(n_valid - whole);
    __m256 top = lowest;
    for (; i < whole; i += 8)
        top = _mm256_max_ps(_mm256_loadu_ps(s + i), top);
    if (whole < n_valid) {
        __m256 v = _mm256_blendv_ps(lowest, _mm256_maskload_ps(s + whole, mask), _mm256_castsi256_ps(mask));
        top = _mm256_max_ps(v, top);
    }
    float tile_max = vec_max(top), m = tile_max > *max ? tile_max : *max;
    float alpha = 1.0f;
    if (*max != m)
        alpha = *max == -INFINITY ? 0.0f : expf(*max - m);
    if (m == -INFINITY) { /* nothing but -INFINITY so far (or NaN, which the sum keeps) */
        float total = 0;
        for (i = 0; i < n_valid; i++)
            total += s[i] = s[i] == -INFINITY ? 0.0f : s[i];
        for (; i < n_total; i++)
            s[i] = 0;
        *sum = total;
        return 0.0f;
    }
    __m256 shift = _mm256_set1_ps(m), total = _mm256_setzero_ps();
    for (i = 0; i < whole; i += 8) {
        __m256 p = vec_exp_negative(_mm256_sub_ps(_mm256_loadu_ps(s + i), shift));
        total = _mm256_add_ps(total, p);
        _mm256_storeu_ps(s + i, p);
    }
    if (whole < n_valid) {
        __m256 p = vec_exp_negative(_mm256_sub_ps(_mm256_maskload_ps(s + whole, mask), shift));
        p = _mm256_and_ps(p, _mm256_castsi256_ps(mask));
        total = _mm256_add_ps(total, p);
        _mm256_maskstore_ps(s + whole, mask, p);
    }
    if (n_valid < n_total)
        memset(s + n_valid, 0, (n_total - n_valid) * sizeof *s);
    *max = m;
    *sum = *sum * alpha + vec_sum(total);
    return alpha;
}

void kni_scale_avx2(float *x, float f, uint32_t n)
{
    __m256 v = _mm256_set1_ps(f);
    uint32_t i = 0;
    for (; i + 8 <= n; i += 8)
        _mm256_storeu_ps(x + i, _mm256_mul_ps(_mm256_loadu_ps(x + i), v));
    for (; i < n; i++)
        x[i] *= f;
}

void kni_exp_avx2(float *y, const float *x, uint32_t n)
{
    uint32_t i = 0;
    for (; i + 8 <= n; i += 8)
        _mm256_storeu_ps(y + i, vec_exp(_mm256_loadu_ps(x + i)));
    if (i < n) {
        __m256i mask = vec_mask(n - i);
        _mm256_maskstore_ps(y + i, mask, vec_exp(_mm256_maskload_ps(x + i, mask)));
    }
}
#endif
