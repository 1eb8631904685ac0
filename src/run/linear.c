/* SPDX-License-Identifier: Apache-2.0 */
#include "run/linear.h"

#include <assert.h>
#include <string.h>

size_t kni_linear_scratch_floats(uint32_t n_in_max)
{
    size_t panels = (size_t)(KNI_LINEAR_COLS + KNI_GEMM_PANEL) * KNI_LINEAR_K_MAX;
    return panels > n_in_max ? panels : n_in_max;
}

/* Columns col0 .. col0 + n - 1 (n at most 16) of inputs k0 .. k0 + k - 1 as one panel; missing columns are 0. */
static void fill_panel(const struct kni_linear_args *a, size_t row_bytes, uint32_t col0, uint32_t n, uint32_t k0, uint32_t k, float *panel, float *rows)
{
    const struct kni_dtype_info *info = kni_dtype_get_info(a->w->type);
    const uint8_t *src = (const uint8_t *)a->w->data + col0 * row_bytes + (size_t)(k0 / info->block_values) * info->block_bytes;
    for (uint32_t j = 0; j < n; j++)
        a->kernels->dequant[a->w->type](src + j * row_bytes, rows + (size_t)j * KNI_LINEAR_K_MAX, k);
    for (uint32_t j = n; j < KNI_GEMM_PANEL; j++)
        memset(rows + (size_t)j * KNI_LINEAR_K_MAX, 0, k * sizeof *rows);
    a->kernels->pack16(panel, rows, KNI_LINEAR_K_MAX, k);
}

void kni_linear(const struct kni_linear_args *a)
{
    const struct kni_dtype_info *info = kni_dtype_get_info(a->w->type);
    uint32_t n_in = (uint32_t)a->w->ne[0];
    size_t row_bytes = (size_t)(n_in / info->block_values) * info->block_bytes;
    if (a->few) {
        assert(a->n_rows <= KNI_GEMV_MAX_ROWS);
        a->kernels->gemv[a->w->type](&(struct kni_gemv_args){.w = (const uint8_t *)a->w->data + a->col0 * row_bytes, .row_bytes = row_bytes,
            .n_out = a->n_cols, .n_in = n_in, .x = a->x, .ldx = a->ldx, .n_x = a->n_rows, .y = a->y, .ldy = a->ldy,
            .accumulate = a->accumulate, .dequant = a->kernels->dequant[a->w->type], .scratch = a->scratch});
        return;
    }
    assert(a->n_cols <= KNI_LINEAR_COLS);
    float *panels = a->scratch, *rows = panels + (size_t)KNI_LINEAR_COLS * KNI_LINEAR_K_MAX;
    for (uint32_t k0 = 0; k0 < n_in; k0 += KNI_LINEAR_K_MAX) {
        uint32_t k = n_in - k0 < KNI_LINEAR_K_MAX ? n_in - k0 : KNI_LINEAR_K_MAX;
        for (uint32_t c = 0; c < a->n_cols; c += KNI_GEMM_PANEL) {
            uint32_t n = a->n_cols - c < KNI_GEMM_PANEL ? a->n_cols - c : KNI_GEMM_PANEL;
            fill_panel(a, row_bytes, a->col0 + c, n, k0, k, panels + (size_t)c * k, rows);
        }
        a->kernels->gemm(&(struct kni_gemm_args){.m = a->n_rows, .n = a->n_cols, .k = k, .a = a->x + k0, .lda = a->ldx, .b = panels,
            .ldb = KNI_GEMM_PANEL, .panel_stride = (size_t)KNI_GEMM_PANEL * k, .c = a->y, .ldc = a->ldy,
            .accumulate = a->accumulate || k0 > 0});
    }
}
