/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The two products of the spectral transform with 512-bit vectors; the other loops are AVX2's.
 *
 * mix: a token's 64 columns are four accumulators, too few for the latency of two units, so entries go in pairs, each of a pair to its
 * own four. gemm: tiles of 12 rows by one panel of 16 columns, the left side by broadcasts from memory. Other shapes go to AVX2.
 */
#include "codec/spectral_ops.h"

#if defined(__x86_64__)
#include <immintrin.h>

#define INLINE static inline __attribute__((always_inline))

struct four { __m512 c[4]; }; /* columns 0..15, 16..31, 32..47, 48..63 */

INLINE __m512 low_halves(__m512i w)
{
    return _mm512_castsi512_ps(_mm512_slli_epi32(w, 16));
}

INLINE __m512 high_halves(__m512i w)
{
    return _mm512_castsi512_ps(_mm512_and_si512(w, _mm512_set1_epi32((int)0xffff0000u)));
}

INLINE void mix_entry(struct four *sum, const uint16_t *strip, const struct kni_spectral_entry *e)
{
    const uint16_t *row = strip + e->at, *ahead = strip + e[KNI_SPECTRAL_AHEAD].at;
    _mm_prefetch((const char *)ahead, _MM_HINT_T0);
    _mm_prefetch((const char *)(ahead + 32), _MM_HINT_T0);
    __m512i w0 = _mm512_loadu_si512(row), w1 = _mm512_loadu_si512(row + 32);
    __m512 v = _mm512_set1_ps(e->value);
    sum->c[0] = _mm512_fmadd_ps(v, low_halves(w0), sum->c[0]);
    sum->c[1] = _mm512_fmadd_ps(v, high_halves(w0), sum->c[1]);
    sum->c[2] = _mm512_fmadd_ps(v, low_halves(w1), sum->c[2]);
    sum->c[3] = _mm512_fmadd_ps(v, high_halves(w1), sum->c[3]);
}

static void mix_avx512(const struct kni_spectral_mix_args *m)
{
    for (uint32_t t = 0; t < m->n_tokens; t++) {
        const struct kni_spectral_entry *e = m->entries + m->starts[t], *end = m->entries + m->starts[t + 1];
        struct four a, b;
        for (int i = 0; i < 4; i++) {
            a.c[i] = _mm512_loadu_ps(m->mean + 16 * i);
            b.c[i] = _mm512_setzero_ps();
        }
        for (; e + 1 < end; e += 2) {
            mix_entry(&a, m->strip, e);
            mix_entry(&b, m->strip, e + 1);
        }
        if (e < end)
            mix_entry(&a, m->strip, e);
        for (int i = 0; i < 4; i++)
            _mm512_storeu_ps(m->x + t * m->ldx + 16 * i, _mm512_add_ps(a.c[i], b.c[i]));
    }
}

/* One function for each number of rows; accumulators are named variables: as an array they end up on the stack. */
#define EACH_4(X) X(0) X(1) X(2) X(3)
#define EACH_8(X) EACH_4(X) X(4) X(5) X(6) X(7)
#define EACH_12(X) EACH_8(X) X(8) X(9) X(10) X(11)
#define DECLARE(r) __m512 c##r = g->accumulate ? _mm512_loadu_ps(c + r * ldc) : _mm512_setzero_ps();
#define STEP(r) c##r = _mm512_fmadd_ps(_mm512_set1_ps(a[r * lda + i]), x, c##r);
#define STORE(r) _mm512_storeu_ps(c + r * ldc, c##r);
#define TILE(rows)                                                                      \
    static void tile_##rows(const struct kni_gemm_args *g, uint32_t row)                \
    {                                                                                   \
        size_t lda = g->lda, ldc = g->ldc;                                              \
        const float *a = g->a + row * lda, *b = g->b;                                   \
        float *c = g->c + row * ldc;                                                    \
        EACH_##rows(DECLARE)                                                            \
        for (size_t i = 0; i < g->k; i++, b += g->ldb) {                                \
            __m512 x = _mm512_loadu_ps(b);                                              \
            EACH_##rows(STEP)                                                           \
        }                                                                               \
        EACH_##rows(STORE)                                                              \
    }
TILE(4)
TILE(8)
TILE(12)

static void gemm_avx512(const struct kni_gemm_args *g)
{
    if (g->n != KNI_GEMM_PANEL || g->m % 4) {
        kni_gemm_avx2(g);
        return;
    }
    uint32_t row = 0;
    for (; row + 12 <= g->m; row += 12)
        tile_12(g, row);
    if (g->m - row == 8)
        tile_8(g, row);
    else if (g->m - row == 4)
        tile_4(g, row);
}

void kni_spectral_use_avx512(struct kni_spectral_ops *ops)
{
    ops->mix = mix_avx512;
    ops->gemm = gemm_avx512;
}
#endif
