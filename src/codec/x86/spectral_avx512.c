/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The sparse product of the spectral transform with 512-bit vectors; the other loops are AVX2's. A token's 64 columns are four
 * accumulators, too few for the latency of two units, so entries go in pairs, each of a pair to its own four.
 */
#include "codec/spectral/spectral_ops.h"

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

void kni_spectral_use_avx512(struct kni_spectral_ops *ops)
{
    ops->mix = mix_avx512;
}
#endif
