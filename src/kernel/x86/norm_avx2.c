/* SPDX-License-Identifier: Apache-2.0 */
#include "kernel/norm.h"

#if defined(__x86_64__)
#include <math.h>

#include "kernel/x86/vec_avx2.h"

void kni_rmsnorm_avx2(float *y, const float *x, const float *w, uint32_t n, float eps)
{
    __m256 s0 = _mm256_setzero_ps(), s1 = s0;
    uint32_t i = 0;
    for (; i + 16 <= n; i += 16) {
        __m256 a = _mm256_loadu_ps(x + i), b = _mm256_loadu_ps(x + i + 8);
        s0 = _mm256_fmadd_ps(a, a, s0);
        s1 = _mm256_fmadd_ps(b, b, s1);
    }
    float sum = vec_sum(_mm256_add_ps(s0, s1));
    for (; i < n; i++)
        sum += x[i] * x[i];
    float scale = 1.0f / sqrtf(sum / (float)n + eps);
    __m256 f = _mm256_set1_ps(scale);
    for (i = 0; i + 8 <= n; i += 8)
        _mm256_storeu_ps(y + i, _mm256_mul_ps(_mm256_mul_ps(_mm256_loadu_ps(x + i), f), _mm256_loadu_ps(w + i)));
    for (; i < n; i++)
        y[i] = x[i] * scale * w[i];
}
#endif
