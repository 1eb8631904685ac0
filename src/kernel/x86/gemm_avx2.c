/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Tiles of 6 rows by 16 columns: 12 accumulators, two vectors of B and one broadcast of A fill 15 of the 16 registers, and
 * the 12 multiply-adds of a step of k cover the latency of the two FMA units. B of a panel (64 bytes a step) comes from the
 * first or second cache, A from six rows.
 */
#include "kernel/gemm.h"

#if defined(__x86_64__)
#include "kernel/x86/vec_avx2.h"

#define ROWS 6u
#define INLINE static inline __attribute__((always_inline))

/* One function for each number of rows. Accumulators are named variables: as an array they end up on the stack. */
#define EACH_1(X) X(0)
#define EACH_2(X) EACH_1(X) X(1)
#define EACH_3(X) EACH_2(X) X(2)
#define EACH_4(X) EACH_3(X) X(3)
#define EACH_5(X) EACH_4(X) X(4)
#define EACH_6(X) EACH_5(X) X(5)
#define DECLARE(r) __m256 lo##r = _mm256_setzero_ps(), hi##r = lo##r;
#define LOAD(r) lo##r = _mm256_loadu_ps(c + r * ldc), hi##r = _mm256_loadu_ps(c + r * ldc + 8);
#define STEP(r) x = _mm256_broadcast_ss(a + r * lda + i), lo##r = _mm256_fmadd_ps(x, b0, lo##r), hi##r = _mm256_fmadd_ps(x, b1, hi##r);
#define STORE(r) _mm256_storeu_ps(c + r * ldc, lo##r), _mm256_storeu_ps(c + r * ldc + 8, hi##r);
#define TILE(rows)                                                                                 \
    static void tile_##rows(const struct kni_gemm_args *g, const float *a, const float *b, float *c) \
    {                                                                                              \
        size_t lda = g->lda, ldb = g->ldb, ldc = g->ldc, k = g->k;                                 \
        EACH_##rows(DECLARE)                                                                       \
        if (g->accumulate) {                                                                       \
            EACH_##rows(LOAD)                                                                      \
        }                                                                                          \
        for (size_t i = 0; i < k; i++, b += ldb) {                                                 \
            __m256 b0 = _mm256_loadu_ps(b), b1 = _mm256_loadu_ps(b + 8), x;                        \
            EACH_##rows(STEP)                                                                      \
        }                                                                                          \
        EACH_##rows(STORE)                                                                         \
        (void)lda, (void)ldc;                                                                      \
    }
TILE(1)
TILE(2)
TILE(3)
TILE(4)
TILE(5)
TILE(6)

static void tile_of(const struct kni_gemm_args *g, uint32_t rows, uint32_t row, uint32_t panel)
{
    const float *a = g->a + row * g->lda, *b = g->b + panel * g->panel_stride;
    float *c = g->c + row * g->ldc + panel * KNI_GEMM_PANEL;
    switch (rows) {
    case 1: tile_1(g, a, b, c); break;
    case 2: tile_2(g, a, b, c); break;
    case 3: tile_3(g, a, b, c); break;
    case 4: tile_4(g, a, b, c); break;
    case 5: tile_5(g, a, b, c); break;
    default: tile_6(g, a, b, c);
    }
}

/* The last panel when it is not whole: through a buffer of 16 columns. */
static void tile_partial(const struct kni_gemm_args *g, uint32_t rows, uint32_t row, uint32_t panel)
{
    float buffer[ROWS * KNI_GEMM_PANEL] = {0};
    uint32_t n_cols = g->n - panel * KNI_GEMM_PANEL;
    float *c = g->c + row * g->ldc + panel * KNI_GEMM_PANEL;
    for (uint32_t r = 0; g->accumulate && r < rows; r++)
        memcpy(buffer + r * KNI_GEMM_PANEL, c + r * g->ldc, n_cols * sizeof *c);
    struct kni_gemm_args part = *g;
    part.a += row * g->lda;
    part.b += panel * g->panel_stride;
    part.c = buffer;
    part.ldc = KNI_GEMM_PANEL;
    tile_of(&part, rows, 0, 0);
    for (uint32_t r = 0; r < rows; r++)
        memcpy(c + r * g->ldc, buffer + r * KNI_GEMM_PANEL, n_cols * sizeof *c);
}

void kni_gemm_avx2(const struct kni_gemm_args *g)
{
    uint32_t whole = g->n / KNI_GEMM_PANEL;
    for (uint32_t row = 0; row < g->m; row += ROWS) {
        uint32_t rows = g->m - row < ROWS ? g->m - row : ROWS;
        for (uint32_t panel = 0; panel < whole; panel++)
            tile_of(g, rows, row, panel);
        if (whole * KNI_GEMM_PANEL < g->n)
            tile_partial(g, rows, row, whole);
    }
}

/* Rows r0..r7 of 8 floats become columns. */
INLINE void transpose8(const float *src, size_t lds, float *dst)
{
    __m256 r[8], t[8];
    for (int i = 0; i < 4; i++) { /* lanes: row i low half | row i+4 low half, and the high halves */
        r[i] = _mm256_insertf128_ps(_mm256_castps128_ps256(_mm_loadu_ps(src + (size_t)i * lds)), _mm_loadu_ps(src + (size_t)(i + 4) * lds), 1);
        r[i + 4] = _mm256_insertf128_ps(_mm256_castps128_ps256(_mm_loadu_ps(src + (size_t)i * lds + 4)),
                                        _mm_loadu_ps(src + (size_t)(i + 4) * lds + 4), 1);
    }
    for (int h = 0; h < 8; h += 4) {
        t[h] = _mm256_unpacklo_ps(r[h], r[h + 1]);
        t[h + 1] = _mm256_unpackhi_ps(r[h], r[h + 1]);
        t[h + 2] = _mm256_unpacklo_ps(r[h + 2], r[h + 3]);
        t[h + 3] = _mm256_unpackhi_ps(r[h + 2], r[h + 3]);
        float *d = dst + (size_t)h * KNI_GEMM_PANEL;
        _mm256_storeu_ps(d, _mm256_shuffle_ps(t[h], t[h + 2], 0x44));
        _mm256_storeu_ps(d + KNI_GEMM_PANEL, _mm256_shuffle_ps(t[h], t[h + 2], 0xee));
        _mm256_storeu_ps(d + 2 * KNI_GEMM_PANEL, _mm256_shuffle_ps(t[h + 1], t[h + 3], 0x44));
        _mm256_storeu_ps(d + 3 * KNI_GEMM_PANEL, _mm256_shuffle_ps(t[h + 1], t[h + 3], 0xee));
    }
}

void kni_pack16_avx2(float *dst, const float *src, size_t lds, uint32_t k)
{
    uint32_t i = 0;
    for (; i + 8 <= k; i += 8) {
        transpose8(src + i, lds, dst + i * KNI_GEMM_PANEL);
        transpose8(src + 8 * lds + i, lds, dst + i * KNI_GEMM_PANEL + 8);
    }
    kni_pack16_ref(dst + i * KNI_GEMM_PANEL, src + i, lds, k - i);
}
#endif
