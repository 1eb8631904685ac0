/* SPDX-License-Identifier: Apache-2.0 */
#include "kernel/rope.h"

#include <math.h>

void kni_rope_freqs(double *freqs, uint32_t n_pairs, float base, float scale, const float *factors)
{
    for (uint32_t i = 0; i < n_pairs; i++)
        freqs[i] = (double)scale * pow((double)base, -(double)i / n_pairs) / (factors ? (double)factors[i] : 1.0);
}

void kni_rope_table(float *cos_row, float *sin_row, uint32_t pos, uint32_t n_pairs, const double *freqs)
{
    for (uint32_t i = 0; i < n_pairs; i++) {
        double angle = pos * freqs[i];
        cos_row[i] = (float)cos(angle);
        sin_row[i] = (float)sin(angle);
    }
}

void kni_rope_norm_ref(float *x, const float *cos_row, const float *sin_row, uint32_t n_pairs)
{
    for (uint32_t i = 0; i < n_pairs; i++) {
        float a = x[2 * i], b = x[2 * i + 1];
        x[2 * i] = a * cos_row[i] - b * sin_row[i];
        x[2 * i + 1] = a * sin_row[i] + b * cos_row[i];
    }
}

void kni_rope_neox_ref(float *x, const float *cos_row, const float *sin_row, uint32_t n_pairs)
{
    for (uint32_t i = 0; i < n_pairs; i++) {
        float a = x[i], b = x[i + n_pairs];
        x[i] = a * cos_row[i] - b * sin_row[i];
        x[i + n_pairs] = a * sin_row[i] + b * cos_row[i];
    }
}
