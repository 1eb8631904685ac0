/* SPDX-License-Identifier: Apache-2.0 */
/* Four rows at a time: the inner loop over 16 columns is one that compilers turn into SIMD by themselves. */
#include "kernel/gemm.h"

#define ROWS 4u

static void tile_ref(const struct kni_gemm_args *g, uint32_t row, uint32_t n_rows, uint32_t panel)
{
    const float *b = g->b + panel * g->panel_stride;
    uint32_t col = panel * KNI_GEMM_PANEL, n_cols = g->n - col < KNI_GEMM_PANEL ? g->n - col : KNI_GEMM_PANEL;
    float acc[ROWS][KNI_GEMM_PANEL] = {{0}};
    const float *a[ROWS];
    for (uint32_t r = 0; r < ROWS; r++)
        a[r] = g->a + (row + (r < n_rows ? r : 0)) * g->lda;
    for (uint32_t r = 0; g->accumulate && r < n_rows; r++)
        for (uint32_t j = 0; j < n_cols; j++)
            acc[r][j] = g->c[(row + r) * g->ldc + col + j];
    for (uint32_t i = 0; i < g->k; i++)
        for (uint32_t r = 0; r < ROWS; r++)
            for (uint32_t j = 0; j < KNI_GEMM_PANEL; j++)
                acc[r][j] += a[r][i] * b[i * g->ldb + j];
    for (uint32_t r = 0; r < n_rows; r++)
        for (uint32_t j = 0; j < n_cols; j++)
            g->c[(row + r) * g->ldc + col + j] = acc[r][j];
}

void kni_gemm_ref(const struct kni_gemm_args *g)
{
    uint32_t n_panels = (g->n + KNI_GEMM_PANEL - 1) / KNI_GEMM_PANEL;
    for (uint32_t row = 0; row < g->m; row += ROWS)
        for (uint32_t panel = 0; panel < n_panels; panel++)
            tile_ref(g, row, g->m - row < ROWS ? g->m - row : ROWS, panel);
}

void kni_pack16_ref(float *dst, const float *src, size_t lds, uint32_t k)
{
    for (uint32_t i = 0; i < k; i++)
        for (uint32_t j = 0; j < KNI_GEMM_PANEL; j++)
            dst[i * KNI_GEMM_PANEL + j] = src[j * lds + i];
}
