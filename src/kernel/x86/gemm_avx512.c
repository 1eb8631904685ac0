/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Tiles of 12 rows by two panels (32 columns): 24 accumulators, two vectors of B, and A comes as a broadcast operand of the
 * multiply-add. An odd panel is done alone: 12 chains still cover two units of latency 4. An element is the same chain of
 * fused multiply-adds as in the AVX2 form, so it has the same bits.
 */
#include "kernel/gemm.h"

#if defined(__x86_64__)
#include <immintrin.h>

#define ROWS 12u

#define EACH_1(X) X(0)
#define EACH_2(X) EACH_1(X) X(1)
#define EACH_3(X) EACH_2(X) X(2)
#define EACH_4(X) EACH_3(X) X(3)
#define EACH_5(X) EACH_4(X) X(4)
#define EACH_6(X) EACH_5(X) X(5)
#define EACH_7(X) EACH_6(X) X(6)
#define EACH_8(X) EACH_7(X) X(7)
#define EACH_9(X) EACH_8(X) X(8)
#define EACH_10(X) EACH_9(X) X(9)
#define EACH_11(X) EACH_10(X) X(10)
#define EACH_12(X) EACH_11(X) X(11)

/* One panel. columns: which of the 16 exist. */
#define DECLARE1(r) __m512 s##r = _mm512_setzero_ps();
#define LOAD1(r) s##r = _mm512_maskz_loadu_ps(columns, c + r * ldc);
#define STEP1(r) s##r = _mm512_fmadd_ps(_mm512_set1_ps(a[r * lda + i]), b0, s##r);
#define STORE1(r) _mm512_mask_storeu_ps(c + r * ldc, columns, s##r);
#define TILE1(rows)                                                                                                             \
    static void single_##rows(const struct kni_gemm_args *g, const float *a, const float *b, float *c, __mmask16 columns)       \
    {                                                                                                                           \
        size_t lda = g->lda, ldb = g->ldb, ldc = g->ldc, k = g->k;                                                              \
        EACH_##rows(DECLARE1)                                                                                                   \
        if (g->accumulate) {                                                                                                    \
            EACH_##rows(LOAD1)                                                                                                  \
        }                                                                                                                       \
        for (size_t i = 0; i < k; i++, b += ldb) {                                                                              \
            __m512 b0 = _mm512_loadu_ps(b);                                                                                     \
            EACH_##rows(STEP1)                                                                                                  \
        }                                                                                                                       \
        EACH_##rows(STORE1)                                                                                                     \
        (void)lda, (void)ldc;                                                                                                   \
    }

/* Two whole panels. */
#define DECLARE2(r) __m512 s##r = _mm512_setzero_ps(), t##r = s##r;
#define LOAD2(r) s##r = _mm512_loadu_ps(c + r * ldc), t##r = _mm512_loadu_ps(c + r * ldc + KNI_GEMM_PANEL);
#define STEP2(r) x = _mm512_set1_ps(a[r * lda + i]), s##r = _mm512_fmadd_ps(x, b0, s##r), t##r = _mm512_fmadd_ps(x, b1, t##r);
#define STORE2(r) _mm512_storeu_ps(c + r * ldc, s##r), _mm512_storeu_ps(c + r * ldc + KNI_GEMM_PANEL, t##r);
#define TILE2(rows)                                                                                     \
    static void double_##rows(const struct kni_gemm_args *g, const float *a, const float *b, float *c)  \
    {                                                                                                   \
        size_t lda = g->lda, ldb = g->ldb, ldc = g->ldc, k = g->k;                                      \
        const float *next = b + g->panel_stride;                                                        \
        EACH_##rows(DECLARE2)                                                                           \
        if (g->accumulate) {                                                                            \
            EACH_##rows(LOAD2)                                                                          \
        }                                                                                               \
        for (size_t i = 0; i < k; i++, b += ldb, next += ldb) {                                         \
            __m512 b0 = _mm512_loadu_ps(b), b1 = _mm512_loadu_ps(next), x;                              \
            EACH_##rows(STEP2)                                                                          \
        }                                                                                               \
        EACH_##rows(STORE2)                                                                             \
        (void)lda, (void)ldc;                                                                           \
    }

#define TILES(rows) TILE1(rows) TILE2(rows)
TILES(1)
TILES(2)
TILES(3)
TILES(4)
TILES(5)
TILES(6)
TILES(7)
TILES(8)
TILES(9)
TILES(10)
TILES(11)
TILES(12)

typedef void single_fn(const struct kni_gemm_args *g, const float *a, const float *b, float *c, __mmask16 columns);
typedef void double_fn(const struct kni_gemm_args *g, const float *a, const float *b, float *c);

void kni_gemm_avx512(const struct kni_gemm_args *g)
{
    static single_fn *const singles[] = {single_1, single_2, single_3, single_4, single_5, single_6, single_7, single_8, single_9, single_10, single_11, single_12};
    static double_fn *const doubles[] = {double_1, double_2, double_3, double_4, double_5, double_6, double_7, double_8, double_9, double_10, double_11, double_12};
    uint32_t whole = g->n / KNI_GEMM_PANEL, rest = g->n % KNI_GEMM_PANEL;
    for (uint32_t row = 0; row < g->m; row += ROWS) {
        uint32_t rows = g->m - row < ROWS ? g->m - row : ROWS, panel = 0;
        const float *a = g->a + row * g->lda;
        float *c = g->c + row * g->ldc;
        for (; panel + 2 <= whole; panel += 2)
            doubles[rows - 1](g, a, g->b + panel * g->panel_stride, c + (size_t)panel * KNI_GEMM_PANEL);
        for (; panel < whole; panel++)
            singles[rows - 1](g, a, g->b + panel * g->panel_stride, c + (size_t)panel * KNI_GEMM_PANEL, 0xffff);
        if (rest)
            singles[rows - 1](g, a, g->b + whole * g->panel_stride, c + (size_t)whole * KNI_GEMM_PANEL, (__mmask16)((1u << rest) - 1));
    }
}
#endif
