/* SPDX-License-Identifier: Apache-2.0 */
#include "run/linear.h"

#include <assert.h>

size_t kni_linear_scratch_bytes(void)
{
    size_t floats = KNI_LINEAR_FLOAT_K * KNI_PANEL_COLS * sizeof(float);
    return floats > sizeof(struct kni_qgemm_scratch) ? floats : sizeof(struct kni_qgemm_scratch);
}

static void linear_float(const struct kni_linear_args *a)
{
    size_t value_bytes = kni_panel_get_form(a->w->type)->value_bytes;
    uint32_t n_in = a->w->n_in;
    for (uint32_t col = 0; col < a->n_cols; col += KNI_PANEL_COLS) {
        const uint8_t *panel = a->w->data + (a->col0 + col) / KNI_PANEL_COLS * a->w->panel_bytes;
        for (uint32_t k0 = 0; k0 < n_in; k0 += KNI_LINEAR_FLOAT_K) {
            uint32_t k = n_in - k0 < KNI_LINEAR_FLOAT_K ? n_in - k0 : KNI_LINEAR_FLOAT_K;
            const uint8_t *src = panel + (size_t)k0 * KNI_PANEL_COLS * value_bytes;
            const float *b = (const float *)(const void *)src;
            if (a->w->type != KNI_DTYPE_F32) {
                a->kernels->dequant[a->w->type](src, a->scratch, (size_t)k * KNI_PANEL_COLS);
                b = a->scratch;
            }
            a->kernels->gemm(&(struct kni_gemm_args){.m = a->n_rows, .n = a->n_cols - col < KNI_PANEL_COLS ? a->n_cols - col : KNI_PANEL_COLS, .k = k,
                .a = a->x + k0, .lda = n_in, .b = b, .ldb = KNI_GEMM_PANEL, .c = a->y + col, .ldc = a->ldy, .accumulate = a->accumulate || k0});
        }
    }
}

void kni_linear(const struct kni_linear_args *a)
{
    assert(a->col0 % KNI_PANEL_COLS == 0);
    if (kni_linear_is_quantised(a->w))
        a->kernels->qgemm(&(struct kni_qgemm_args){.w = a->w, .col0 = a->col0, .n_cols = a->n_cols, .x = a->xq, .ldx = a->w->n_in / KNI_PANEL_BLOCK,
            .n_rows = a->n_rows, .y = a->y, .ldy = a->ldy, .accumulate = a->accumulate, .scratch = a->scratch});
    else
        linear_float(a);
}
