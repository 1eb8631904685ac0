/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The sixteen lanes in two registers. Decoding gathers eight slots at once from the tables that the notes name; encoding gathers
 * a symbol's frequency and start, and its reciprocal. Decoding reads 16 bytes at the stream's position twice a step, so the last
 * steps, where fewer than 32 are left, go to the reference. Bytes and symbols are the reference's.
 */
#include "codec/exact/exact_lanes.h"

#if defined(__x86_64__)
#include "codec/x86/rans_core_avx2.h"

#include <assert.h>

_Static_assert(sizeof(struct kni_rans_symbol) == 8, "gathered by 8 bytes");

/* Eight notes as offsets into tables of 2^shift entries each. */
static inline __m256i table_offsets(const uint8_t *notes, int shift)
{
    __m256i n = _mm256_cvtepu8_epi32(_mm_loadl_epi64((const __m128i *)notes));
    return _mm256_slli_epi32(_mm256_and_si256(n, _mm256_set1_epi32(KNI_EXACT_NOTE_TABLE)), shift);
}

static inline __m256i read8(__m256i x, const uint32_t *slots, const uint8_t *notes, const uint8_t **at, __m256i *symbols)
{
    __m256i slot = _mm256_and_si256(x, _mm256_set1_epi32(KNI_RANS_SCALE - 1));
    __m256i e = _mm256_i32gather_epi32((const int *)slots, _mm256_add_epi32(slot, table_offsets(notes, KNI_RANS_BITS)), 4);
    *symbols = _mm256_and_si256(e, _mm256_set1_epi32(0xff));
    return rans_refill_avx2(rans_step_avx2(x, e), at);
}

void kni_exact_read_avx2(struct kni_exact_reader *r, const struct kni_exact_decode_table *tables, const uint8_t *notes, uint8_t *symbols, uint32_t n)
{
    __m256i x0 = _mm256_loadu_si256((const __m256i *)r->x), x1 = _mm256_loadu_si256((const __m256i *)(r->x + 8));
    const uint8_t *at = r->at;
    uint32_t t = 0;
    for (; t < n && r->end - at >= 32; t += KNI_EXACT_LANES) {
        __m256i s0, s1;
        x0 = read8(x0, tables->slots, notes + t, &at, &s0);
        x1 = read8(x1, tables->slots, notes + t + 8, &at, &s1);
        __m256i s = _mm256_permute4x64_epi64(_mm256_packus_epi32(s0, s1), 0xd8);
        _mm_storeu_si128((__m128i *)(symbols + t), _mm_packus_epi16(_mm256_castsi256_si128(s), _mm256_extracti128_si256(s, 1)));
    }
    _mm256_storeu_si256((__m256i *)r->x, x0);
    _mm256_storeu_si256((__m256i *)(r->x + 8), x1);
    r->at = at;
    if (t < n)
        kni_exact_read_ref(r, tables, notes + t, symbols + t, n - t);
}

static inline __m256i write8(__m256i x, const struct kni_rans_symbol *entries, const uint8_t *notes, const uint8_t *symbols, uint8_t **at)
{
    __m256i i = _mm256_add_epi32(table_offsets(notes, 8), _mm256_cvtepu8_epi32(_mm_loadl_epi64((const __m128i *)symbols)));
    __m256i freq_start = _mm256_i32gather_epi32((const int *)(const void *)entries, i, 8);
    __m256i recip = _mm256_i32gather_epi32((const int *)(const void *)entries + 1, i, 8);
    return rans_put_avx2(x, freq_start, recip, at);
}

void kni_exact_write_avx2(struct kni_exact_writer *w, const struct kni_exact_encode_table *tables, const uint8_t *notes, const uint8_t *symbols, uint32_t n)
{
    assert(n % KNI_EXACT_LANES == 0 && (size_t)(w->at - w->begin) >= 2 * (size_t)n + 32);
    __m256i x0 = _mm256_loadu_si256((const __m256i *)w->x), x1 = _mm256_loadu_si256((const __m256i *)(w->x + 8));
    uint8_t *at = w->at;
    while (n) {
        n -= KNI_EXACT_LANES;
        x1 = write8(x1, tables->symbols, notes + n + 8, symbols + n + 8, &at);
        x0 = write8(x0, tables->symbols, notes + n, symbols + n, &at);
    }
    _mm256_storeu_si256((__m256i *)w->x, x0);
    _mm256_storeu_si256((__m256i *)(w->x + 8), x1);
    w->at = at;
}

#endif
