/* SPDX-License-Identifier: Apache-2.0 */
/* The sum of squares is kept in double: the reference must not be the less exact side of a comparison. */
#include "kernel/norm.h"

#include <math.h>

void kni_rmsnorm_ref(float *y, const float *x, const float *w, uint32_t n, float eps)
{
    double sum = 0;
    for (uint32_t i = 0; i < n; i++)
        sum += (double)x[i] * (double)x[i];
    float scale = (float)(1.0 / sqrt(sum / n + (double)eps));
    for (uint32_t i = 0; i < n; i++)
        y[i] = x[i] * scale * w[i];
}
