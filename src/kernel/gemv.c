/* SPDX-License-Identifier: Apache-2.0 */
#include "kernel/gemv.h"

void kni_gemv_ref(const struct kni_gemv_args *a)
{
    for (uint32_t o = 0; o < a->n_out; o++) {
        a->dequant((const uint8_t *)a->w + o * a->row_bytes, a->scratch, a->n_in);
        for (uint32_t r = 0; r < a->n_x; r++) {
            const float *x = a->x + r * a->ldx;
            double sum = 0;
            for (uint32_t i = 0; i < a->n_in; i++)
                sum += (double)a->scratch[i] * (double)x[i];
            float *y = a->y + r * a->ldy + o;
            *y = a->accumulate ? *y + (float)sum : (float)sum;
        }
    }
}
