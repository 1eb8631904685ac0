/* SPDX-License-Identifier: Apache-2.0 */
#include "kernel/softmax.h"

#if defined(__x86_64__)
#include <math.h>
#include <stdbool.h>

#include "kernel/x86/vec_avx2.h"

/* Lanes first .. end - 1, either of which may lie outside 0..8. */
static inline __m256 lanes(int first, int end)
{
    const __m256i lane = _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7);
    return _mm256_castsi256_ps(_mm256_and_si256(_mm256_cmpgt_epi32(lane, _mm256_set1_epi32(first - 1)), _mm256_cmpgt_epi32(_mm256_set1_epi32(end), lane)));
}

/* max of the lanes in mask of 8 scores, NaN staying. */
static inline __m256 max_masked(const float *s, __m256 mask, __m256 top)
{
    __m256 v = _mm256_maskload_ps(s, _mm256_castps_si256(mask));
    return _mm256_max_ps(_mm256_blendv_ps(_mm256_set1_ps(-INFINITY), v, mask), top);
}

static inline __m256 exp_masked(float *s, __m256 mask, __m256 shift)
{
    __m256i m = _mm256_castps_si256(mask);
    __m256 p = _mm256_and_ps(vec_exp_softmax(_mm256_sub_ps(_mm256_maskload_ps(s, m), shift)), mask);
    _mm256_maskstore_ps(s, m, p);
    return p;
}

/* Whole vectors lie in low .. high - 1; what sticks out before and behind goes through masks. A score is summed in lane
 * i % 8, so that a row's bits do not depend on how far its tile reaches. */
float kni_softmax_tile_avx2(float *s, uint32_t first, uint32_t end, uint32_t n_total, float *max, float *sum)
{
    if (first >= end) {
        memset(s, 0, n_total * sizeof *s);
        return *max == -INFINITY ? 0.0f : 1.0f;
    }
    uint32_t head = first & ~7u, low = (first + 7) & ~7u, high = end & ~7u;
    bool has_head = head < low && head < high, has_tail = high < end;
    __m256 head_mask = lanes((int)(first - head), 8), tail_mask = lanes(first > high ? (int)(first - high) : 0, (int)(end - high));
    __m256 top = _mm256_set1_ps(-INFINITY);
    if (has_head)
        top = max_masked(s + head, head_mask, top);
    for (uint32_t i = low; i < high; i += 8)
        top = _mm256_max_ps(_mm256_loadu_ps(s + i), top);
    if (has_tail)
        top = max_masked(s + high, tail_mask, top);
    float tile_max = vec_max(top), m = tile_max > *max ? tile_max : *max;
    float alpha = 1.0f;
    if (*max != m)
        alpha = *max == -INFINITY ? 0.0f : expf(*max - m);
    if (m == -INFINITY) { /* nothing but -INFINITY so far (or NaN, which the sum keeps) */
        float total = 0;
        for (uint32_t i = 0; i < n_total; i++)
            total += s[i] = i < first || i >= end || s[i] == -INFINITY ? 0.0f : s[i];
        *sum = total;
        return 0.0f;
    }
    __m256 shift = _mm256_set1_ps(m), total = _mm256_setzero_ps();
    if (has_head)
        total = exp_masked(s + head, head_mask, shift);
    for (uint32_t i = low; i < high; i += 8) {
        __m256 p = vec_exp_softmax(_mm256_sub_ps(_mm256_loadu_ps(s + i), shift));
        total = _mm256_add_ps(total, p);
        _mm256_storeu_ps(s + i, p);
    }
    if (has_tail)
        total = _mm256_add_ps(total, exp_masked(s + high, tail_mask, shift));
    memset(s, 0, first * sizeof *s);
    if (end < n_total)
        memset(s + end, 0, (n_total - end) * sizeof *s);
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
