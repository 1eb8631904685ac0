/* SPDX-License-Identifier: Apache-2.0 */
/* Layout exact's loops, sixteen values a step; those in the .inc as the compiler vectorises them. */
#include "codec/exact/exact_loops.h"

#if defined(__x86_64__)
#include <immintrin.h>
#include <string.h>

/* Eight columns of 16 rows: rows 0..7 in the low half, rows 8..15 in the high half, transposed in both by three rounds of unpacking. */
static inline void transpose8(const uint16_t *in, size_t in_stride, uint16_t *out, size_t out_stride)
{
    __m256i r[8], s[8];
    for (size_t j = 0; j < 8; j++) {
        __m128i low = _mm_loadu_si128((const __m128i *)(in + j * in_stride)), high = _mm_loadu_si128((const __m128i *)(in + (j + 8) * in_stride));
        r[j] = _mm256_inserti128_si256(_mm256_castsi128_si256(low), high, 1);
    }
    for (size_t j = 0; j < 4; j++) { /* pairs of rows 2j, 2j + 1 */
        s[j] = _mm256_unpacklo_epi16(r[2 * j], r[2 * j + 1]);
        s[j + 4] = _mm256_unpackhi_epi16(r[2 * j], r[2 * j + 1]);
    }
    for (size_t h = 0; h < 8; h += 4) { /* four rows */
        r[h] = _mm256_unpacklo_epi32(s[h], s[h + 1]);
        r[h + 1] = _mm256_unpackhi_epi32(s[h], s[h + 1]);
        r[h + 2] = _mm256_unpacklo_epi32(s[h + 2], s[h + 3]);
        r[h + 3] = _mm256_unpackhi_epi32(s[h + 2], s[h + 3]);
    }
    for (size_t h = 0; h < 8; h += 4) /* all eight: columns h .. h + 3 */
        for (size_t i = 0; i < 2; i++) {
            __m256i even = _mm256_unpacklo_epi64(r[h + i], r[h + i + 2]), odd = _mm256_unpackhi_epi64(r[h + i], r[h + i + 2]);
            _mm256_storeu_si256((__m256i *)(out + (h + 2 * i) * out_stride), even);
            _mm256_storeu_si256((__m256i *)(out + (h + 2 * i + 1) * out_stride), odd);
        }
}

static inline void transpose(const uint16_t *in, size_t in_stride, uint16_t *out, size_t out_stride)
{
    transpose8(in, in_stride, out, out_stride);
    transpose8(in + 8, in_stride, out + 8 * out_stride, out_stride);
}

#define TRANSPOSE transpose
#define NAME(x) x##_avx2
#include "codec/exact/exact_loops.inc"

static inline __m256i load16(const uint16_t *p)
{
    return _mm256_loadu_si256((const __m256i *)p);
}

static inline __m256i load16_bytes(const uint8_t *p)
{
    return _mm256_cvtepu8_epi16(_mm_loadu_si128((const __m128i *)p));
}

/* 16-bit lanes below 256 as bytes. */
static inline __m128i to_bytes(__m256i x)
{
    return _mm_packus_epi16(_mm256_castsi256_si128(x), _mm256_extracti128_si256(x, 1));
}

static inline __m256i load_means(const int16_t *means)
{
    return _mm256_loadu_si256((const __m256i *)means);
}

/* Notes of 32 means, the packed halves of a and b; edges are at most 127. */
static inline __m256i tables32(__m256i a, __m256i b, const uint8_t *edges, uint32_t n_edges)
{
    const __m256i most = _mm256_set1_epi16(127);
    __m256i size = _mm256_packus_epi16(_mm256_min_epi16(_mm256_abs_epi16(a), most), _mm256_min_epi16(_mm256_abs_epi16(b), most));
    __m256i sign = _mm256_and_si256(_mm256_packs_epi16(a, b), _mm256_set1_epi8((char)0x80)), table = _mm256_setzero_si256();
    for (uint32_t e = 0; e < n_edges; e++)
        table = _mm256_sub_epi8(table, _mm256_cmpgt_epi8(size, _mm256_set1_epi8((char)(edges[e] - 1))));
    return _mm256_permute4x64_epi64(_mm256_or_si256(table, sign), 0xd8);
}

static void tables_avx2(const int16_t *means, uint8_t *notes, uint32_t n, const uint8_t *edges, uint32_t n_edges)
{
    uint32_t t = 0;
    for (; t + 32 <= n; t += 32)
        _mm256_storeu_si256((__m256i *)(notes + t), tables32(load_means(means + t), load_means(means + t + 16), edges, n_edges));
    if (t < n)
        _mm_storeu_si128((__m128i *)(notes + t), _mm256_castsi256_si128(tables32(load_means(means + t), _mm256_setzero_si256(), edges, n_edges)));
}

static uint32_t symbols_avx2(const uint16_t *values, const uint8_t *notes, uint32_t raw_bits, uint16_t base, uint8_t *symbols, uint32_t n)
{
    const __m128i shift = _mm_cvtsi32_si128((int)raw_bits);
    const __m256i least = _mm256_set1_epi16((short)base), beyond = _mm256_set1_epi16(KNI_EXACT_MAX_CELL + 1);
    uint32_t n_escapes = 0;
    for (uint32_t t = 0; t < n; t += 16) {
        __m256i v = load16(values + t), note = load16_bytes(notes + t);
        __m256i cell = _mm256_sub_epi16(_mm256_srl_epi16(_mm256_and_si256(v, _mm256_set1_epi16(0x7fff)), shift), least);
        __m256i sign = _mm256_xor_si256(_mm256_srli_epi16(v, 15), _mm256_srli_epi16(note, 7));
        __m256i escape = _mm256_cmpeq_epi16(_mm256_max_epu16(cell, beyond), cell);
        __m256i symbol = _mm256_or_si256(_mm256_or_si256(_mm256_slli_epi16(cell, 1), sign), escape);
        n_escapes += (uint32_t)_mm_popcnt_u32((uint32_t)_mm256_movemask_epi8(escape)) / 2;
        _mm_storeu_si128((__m128i *)(symbols + t), to_bytes(_mm256_and_si256(symbol, _mm256_set1_epi16(0xff))));
    }
    return n_escapes;
}

static uint32_t values_avx2(const uint8_t *symbols, const uint8_t *notes, uint32_t raw_bits, uint16_t base, uint16_t *values, uint32_t n, uint16_t *largest)
{
    const __m128i shift = _mm_cvtsi32_si128((int)raw_bits);
    const __m256i least = _mm256_set1_epi16((short)base);
    __m256i most = _mm256_setzero_si256();
    uint32_t n_escapes = 0;
    for (uint32_t t = 0; t < n; t += 16) {
        __m256i symbol = load16_bytes(symbols + t), note = load16_bytes(notes + t);
        __m256i cell = _mm256_sll_epi16(_mm256_add_epi16(_mm256_srli_epi16(symbol, 1), least), shift);
        __m256i sign = _mm256_slli_epi16(_mm256_xor_si256(symbol, _mm256_srli_epi16(note, 7)), 15);
        __m256i v = _mm256_or_si256(load16(values + t), _mm256_and_si256(cell, _mm256_set1_epi16(0x7fff)));
        most = _mm256_max_epi16(most, v); /* no signs: as integers they order like the values */
        __m256i escape = _mm256_cmpeq_epi16(symbol, _mm256_set1_epi16(KNI_EXACT_ESCAPE));
        n_escapes += (uint32_t)_mm_popcnt_u32((uint32_t)_mm256_movemask_epi8(escape)) / 2;
        _mm256_storeu_si256((__m256i *)(values + t), _mm256_or_si256(v, sign));
    }
    /* minimum of the complements: the processor finds that of eight words */
    __m128i half = _mm_max_epi16(_mm256_castsi256_si128(most), _mm256_extracti128_si256(most, 1));
    *largest = (uint16_t)(0x7fff - _mm_extract_epi16(_mm_minpos_epu16(_mm_sub_epi16(_mm_set1_epi16(0x7fff), half)), 0));
    return n_escapes;
}

static void pack_avx2(struct kni_exact_packer *p, const uint16_t *values, uint32_t n)
{
    const __m256i mask = _mm256_set1_epi16((short)((1u << p->n_bits) - 1));
    __m256i columns = load16(p->columns);
    uint32_t fill = p->fill;
    for (uint32_t t = 0; t < n; t += 16) {
        __m256i v = _mm256_and_si256(load16(values + t), mask);
        columns = _mm256_or_si256(columns, _mm256_sll_epi16(v, _mm_cvtsi32_si128((int)fill)));
        fill += p->n_bits;
        if (fill >= 16) {
            _mm256_storeu_si256((__m256i *)p->out, columns);
            p->out += 32;
            fill -= 16;
            columns = _mm256_srl_epi16(v, _mm_cvtsi32_si128((int)(p->n_bits - fill)));
        }
    }
    _mm256_storeu_si256((__m256i *)p->columns, columns);
    p->fill = fill;
}

static void unpack_avx2(struct kni_exact_unpacker *u, uint16_t *values, uint32_t n)
{
    const uint32_t n_bits = u->n_bits;
    const __m256i mask = _mm256_set1_epi16((short)((1u << n_bits) - 1));
    __m256i columns = load16(u->columns);
    uint32_t fill = u->fill;
    for (uint32_t t = 0; t < n; t += 16) {
        __m256i v = columns;
        if (fill >= n_bits) {
            columns = _mm256_srl_epi16(columns, _mm_cvtsi32_si128((int)n_bits));
            fill -= n_bits;
        } else {
            __m256i next = _mm256_loadu_si256((const __m256i *)u->in);
            u->in += 32;
            v = _mm256_or_si256(columns, _mm256_sll_epi16(next, _mm_cvtsi32_si128((int)fill)));
            columns = _mm256_srl_epi16(next, _mm_cvtsi32_si128((int)(n_bits - fill)));
            fill += 16 - n_bits;
        }
        _mm256_storeu_si256((__m256i *)(values + t), _mm256_and_si256(v, mask));
    }
    _mm256_storeu_si256((__m256i *)u->columns, columns);
    u->fill = fill;
}

const struct kni_exact_loops kni_exact_loops_avx2 = {
    load_avx2, store_avx2, tables_avx2, turn_avx2, symbols_avx2, values_avx2, pack_avx2, unpack_avx2, sum_avx2, dot_avx2, product_avx2,
};

#endif
