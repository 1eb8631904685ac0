/* SPDX-License-Identifier: Apache-2.0 */
#include "kernel/softmax.h"

#include <math.h>

float kni_softmax_tile_ref(float *s, uint32_t first, uint32_t end, uint32_t n_total, float *max, float *sum)
{
    float m = *max, total = 0;
    for (uint32_t i = first; i < end; i++)
        if (!(s[i] <= m)) /* also true for NaN, which then stays */
            m = s[i];
    float alpha = *max == m ? 1.0f : expf(*max - m);
    if (m == -INFINITY)
        alpha = 0;
    for (uint32_t i = 0; i < first; i++)
        s[i] = 0;
    for (uint32_t i = first; i < end; i++) {
        s[i] = m == -INFINITY ? 0.0f : expf(s[i] - m);
        total += s[i];
    }
    for (uint32_t i = end; i < n_total; i++)
        s[i] = 0;
    *max = m;
    *sum = *sum * alpha + total;
    return alpha;
}

void kni_scale_ref(float *x, float f, uint32_t n)
{
    for (uint32_t i = 0; i < n; i++)
        x[i] *= f;
}

void kni_exp_ref(float *y, const float *x, uint32_t n)
{
    for (uint32_t i = 0; i < n; i++)
        y[i] = expf(x[i]);
}
