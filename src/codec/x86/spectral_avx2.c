/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The spectral transform's loops with 256-bit vectors. Rests of fewer than 8 values go to the references: same bits.
 *
 * mix: 8 accumulators, a token's 64 columns, enough for two multiply-add units with a latency of four. An entry is one broadcast,
 * four loads of 16 bfloat16, four shifts, four masks and eight multiply-adds; the basis comes from the second cache at half the
 * bytes of floats.
 */
#include "codec/spectral/spectral_ops.h"

#if defined(__x86_64__)
#include <immintrin.h>

#define INLINE static inline __attribute__((always_inline))

INLINE __m256 cut(__m256 x)
{
    const __m256 most = _mm256_set1_ps(KNI_SPECTRAL_LARGEST);
    return _mm256_max_ps(_mm256_min_ps(x, most), _mm256_set1_ps(-KNI_SPECTRAL_LARGEST));
}

INLINE __m256 absolute(__m256 x)
{
    return _mm256_andnot_ps(_mm256_set1_ps(-0.0f), x);
}

INLINE __m256i load(const void *p)
{
    return _mm256_loadu_si256((const __m256i *)p);
}

static void clean_avx2(float *x, uint32_t n)
{
    uint32_t i = 0;
    for (; i + 8 <= n; i += 8) {
        __m256 v = _mm256_loadu_ps(x + i), finite = _mm256_cmp_ps(absolute(v), _mm256_set1_ps(__builtin_inff()), _CMP_LT_OQ);
        _mm256_storeu_ps(x + i, cut(_mm256_and_ps(v, finite)));
    }
    kni_spectral_clean_ref(x + i, n - i);
}

static float weigh_avx2(float *x, const float *weight, uint32_t n)
{
    __m256 sum = _mm256_setzero_ps();
    uint32_t i = 0;
    for (; i + 8 <= n; i += 8) {
        __m256 v = _mm256_loadu_ps(x + i);
        v = cut(weight ? _mm256_mul_ps(v, _mm256_loadu_ps(weight + i)) : v);
        _mm256_storeu_ps(x + i, v);
        sum = _mm256_fmadd_ps(v, v, sum);
    }
    float lanes[8], rest = kni_spectral_weigh_ref(x + i, weight ? weight + i : NULL, n - i);
    _mm256_storeu_ps(lanes, sum);
    return ((lanes[0] + lanes[1]) + (lanes[2] + lanes[3])) + ((lanes[4] + lanes[5]) + (lanes[6] + lanes[7])) + rest;
}

static void centre_avx2(float *x, const float *mean, float scale, uint32_t n)
{
    const __m256 s = _mm256_set1_ps(scale);
    uint32_t i = 0;
    for (; i + 8 <= n; i += 8) {
        __m256 v = _mm256_mul_ps(_mm256_loadu_ps(x + i), s);
        _mm256_storeu_ps(x + i, _mm256_sub_ps(v, mean ? _mm256_loadu_ps(mean + i) : _mm256_setzero_ps()));
    }
    kni_spectral_centre_ref(x + i, mean ? mean + i : NULL, scale, n - i);
}

INLINE __m256i round8(const float *y, __m256 inv_step)
{
    const __m256 most = _mm256_set1_ps(0x1.fffffep30f);
    __m256 q = _mm256_mul_ps(_mm256_loadu_ps(y), inv_step);
    q = _mm256_max_ps(_mm256_min_ps(q, most), _mm256_sub_ps(_mm256_setzero_ps(), most));
    return _mm256_cvtps_epi32(q);
}

/* 16 at a time; packing with saturation to 16 bits first leaves what is clamped to 127 anyway. */
static uint32_t quantise_avx2(uint8_t *symbols, const float *y, float inv_step, uint32_t n)
{
    const __m256 s = _mm256_set1_ps(inv_step);
    const __m256i most = _mm256_set1_epi16(127), least = _mm256_set1_epi16(-127);
    uint32_t n_escapes = 0;
    for (uint32_t i = 0; i < n; i += 16) {
        __m256i q = _mm256_permute4x64_epi64(_mm256_packs_epi32(round8(y + i, s), round8(y + i + 8, s)), 0xd8);
        q = _mm256_max_epi16(_mm256_min_epi16(q, most), least);
        int escapes = _mm256_movemask_epi8(_mm256_cmpeq_epi16(_mm256_abs_epi16(q), most));
        n_escapes += (uint32_t)__builtin_popcount((unsigned)escapes) / 2;
        __m128i bytes = _mm_packs_epi16(_mm256_castsi256_si128(q), _mm256_extracti128_si256(q, 1));
        _mm_storeu_si128((__m128i *)(void *)(symbols + i), _mm_xor_si128(bytes, _mm_set1_epi8((char)0x80)));
    }
    return n_escapes;
}

/* 0, 1 and 255 are those that are at most 2 when one is added. */
INLINE unsigned special16(__m128i v)
{
    __m128i next = _mm_add_epi8(v, _mm_set1_epi8(1));
    return (unsigned)_mm_movemask_epi8(_mm_cmpeq_epi8(_mm_min_epu8(next, _mm_set1_epi8(2)), next));
}

static uint32_t scan_avx2(const uint8_t *symbols, uint16_t *counts, uint32_t n)
{
    uint32_t n_special = 0;
    for (uint32_t i = 0; i < n; i += 16) {
        __m128i v = _mm_loadu_si128((const __m128i *)(const void *)(symbols + i));
        __m256i zero = _mm256_cvtepi8_epi16(_mm_cmpeq_epi8(v, _mm_set1_epi8((char)0x80)));
        __m256i sum = _mm256_add_epi16(load(counts + i), _mm256_add_epi16(zero, _mm256_set1_epi16(1)));
        _mm256_storeu_si256((__m256i *)(void *)(counts + i), sum);
        n_special += (uint32_t)__builtin_popcount(special16(v));
    }
    return n_special;
}

static bool fill_avx2(const uint8_t *symbols, uint32_t n, uint32_t at, const float values[256], struct kni_spectral_entry *entries, uint32_t *next)
{
    unsigned any = 0;
    for (uint32_t i = 0; i < n; i += 16) {
        __m128i v = _mm_loadu_si128((const __m128i *)(const void *)(symbols + i));
        unsigned mask = (unsigned)_mm_movemask_epi8(_mm_cmpeq_epi8(v, _mm_set1_epi8((char)0x80))) ^ 0xffffu;
        any |= mask;
        for (; mask; mask &= mask - 1) {
            uint32_t t = i + (uint32_t)__builtin_ctz(mask);
            entries[next[t]++] = (struct kni_spectral_entry){at, values[symbols[t]]};
        }
    }
    return any;
}

/* 32 columns to 16 words: column j low, column j + 16 high. */
INLINE void weave(__m256i a, __m256i b, uint16_t *dst)
{
    __m256i low = _mm256_unpacklo_epi16(a, b), high = _mm256_unpackhi_epi16(a, b); /* words 0-3 and 8-11; 4-7 and 12-15 */
    _mm256_store_si256((__m256i *)(void *)dst, _mm256_permute2x128_si256(low, high, 0x20));
    _mm256_store_si256((__m256i *)(void *)(dst + 16), _mm256_permute2x128_si256(low, high, 0x31));
}

static void gather_avx2(const struct kni_spectral_gather_args *g)
{
    for (uint32_t row = 0; row < g->n_rows; row++) {
        if (!g->used[row])
            continue;
        const uint16_t *src = g->basis + row * g->width, *ahead = g->basis + (row + 16 < g->n_rows ? row + 16 : row) * g->width;
        uint16_t *dst = g->strip + (size_t)row * KNI_SPECTRAL_STRIP;
        for (uint32_t c = 0; c < KNI_SPECTRAL_STRIP; c += 32) {
            bool there = c < g->n_cols;
            _mm_prefetch((const char *)(ahead + c), _MM_HINT_T0);
            weave(there ? load(src + c) : _mm256_setzero_si256(), there ? load(src + c + 16) : _mm256_setzero_si256(), dst + c);
        }
    }
}

/* Word i of a row: read once (the compiler would read it twice), its low halves shifted up, its high halves kept. */
#define STEP(i)                                                                                                        \
    w = load(row + 16 * (i));                                                                                          \
    __asm__("" : "+x"(w));                                                                                             \
    a##i = _mm256_fmadd_ps(v, _mm256_castsi256_ps(_mm256_slli_epi32(w, 16)), a##i);                                    \
    b##i = _mm256_fmadd_ps(v, _mm256_castsi256_ps(_mm256_blend_epi16(w, _mm256_setzero_si256(), 0x55)), b##i);
#define ENTRY                                                                                                          \
    row = m->strip + e[KNI_SPECTRAL_AHEAD].at;                                                                         \
    _mm_prefetch((const char *)row, _MM_HINT_T0);                                                                      \
    _mm_prefetch((const char *)(row + 32), _MM_HINT_T0);                                                               \
    row = m->strip + e->at;                                                                                            \
    v = _mm256_broadcast_ss(&e->value);                                                                                \
    STEP(0) STEP(1) STEP(2) STEP(3)                                                                                    \
    e++;

static void mix_token(const struct kni_spectral_mix_args *m, const struct kni_spectral_entry *e, const struct kni_spectral_entry *end, float *x)
{
    const float *mean = m->mean;
    const uint16_t *row;
    __m256 a0 = _mm256_loadu_ps(mean), a1 = _mm256_loadu_ps(mean + 8), b0 = _mm256_loadu_ps(mean + 16), b1 = _mm256_loadu_ps(mean + 24), v;
    __m256 a2 = _mm256_loadu_ps(mean + 32), a3 = _mm256_loadu_ps(mean + 40), b2 = _mm256_loadu_ps(mean + 48), b3 = _mm256_loadu_ps(mean + 56);
    __m256i w;
    while (e + 1 < end) {
        ENTRY
        ENTRY
    }
    if (e < end) {
        ENTRY
    }
    _mm256_storeu_ps(x, a0);
    _mm256_storeu_ps(x + 8, a1);
    _mm256_storeu_ps(x + 16, b0);
    _mm256_storeu_ps(x + 24, b1);
    _mm256_storeu_ps(x + 32, a2);
    _mm256_storeu_ps(x + 40, a3);
    _mm256_storeu_ps(x + 48, b2);
    _mm256_storeu_ps(x + 56, b3);
}

static void mix_avx2(const struct kni_spectral_mix_args *m)
{
    for (uint32_t t = 0; t < m->n_tokens; t++)
        mix_token(m, m->entries + m->starts[t], m->entries + m->starts[t + 1], m->x + t * m->ldx);
}

static bool unscale_avx2(float *x, const float *inv_weight, float scale, float limit, uint32_t n)
{
    const __m256 s = _mm256_set1_ps(scale), most = _mm256_set1_ps(limit);
    __m256 large = _mm256_setzero_ps();
    uint32_t i = 0;
    for (; i + 8 <= n; i += 8) {
        __m256 v = _mm256_mul_ps(_mm256_loadu_ps(x + i), _mm256_mul_ps(_mm256_loadu_ps(inv_weight + i), s));
        _mm256_storeu_ps(x + i, v);
        large = _mm256_or_ps(large, _mm256_cmp_ps(absolute(v), most, _CMP_GT_OQ));
    }
    bool rest = kni_spectral_unscale_ref(x + i, inv_weight + i, scale, limit, n - i);
    return rest || _mm256_movemask_ps(large);
}

void kni_spectral_use_avx2(struct kni_spectral_ops *ops)
{
    *ops = (struct kni_spectral_ops){clean_avx2, weigh_avx2, centre_avx2, quantise_avx2, scan_avx2, fill_avx2, gather_avx2, mix_avx2, unscale_avx2};
}
#endif
