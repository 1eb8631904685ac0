/* SPDX-License-Identifier: Apache-2.0 */
/*
 * rans_core.h for eight states at once. Four such vectors are the 32 lanes of a stream; go through them in order 0..3 when
 * decoding, 3..0 when encoding, and the words come in the reference's order.
 *
 * Words that eight lanes take lie next to each other: a mask of the lanes that need one picks a permutation that brings the
 * i-th word to the i-th such lane (decoding), or that of the reverse (encoding).
 */
#ifndef KNI_CODEC_RANS_CORE_AVX2_H
#define KNI_CODEC_RANS_CORE_AVX2_H

#include "codec/rans/rans_core.h"

#if defined(__x86_64__)
#include <immintrin.h>

/* Tables by mask of 8 lanes, a byte a lane. SPREAD: byte l is the number of set lanes below l. GATHER: byte 7 - i is the i-th set
 * lane from the top. */
#define KNI_RANS_BELOW(m, l)                                                                                              \
    ((uint64_t)(((m) & 1 & ((l) > 0)) + ((m) >> 1 & 1 & ((l) > 1)) + ((m) >> 2 & 1 & ((l) > 2)) + ((m) >> 3 & 1 & ((l) > 3)) + \
                ((m) >> 4 & 1 & ((l) > 4)) + ((m) >> 5 & 1 & ((l) > 5)) + ((m) >> 6 & 1 & ((l) > 6))))
#define KNI_RANS_ABOVE(m, l)                                                                                              \
    (((m) >> 1 & 1 & ((l) < 1)) + ((m) >> 2 & 1 & ((l) < 2)) + ((m) >> 3 & 1 & ((l) < 3)) + ((m) >> 4 & 1 & ((l) < 4)) +       \
     ((m) >> 5 & 1 & ((l) < 5)) + ((m) >> 6 & 1 & ((l) < 6)) + ((m) >> 7 & 1 & ((l) < 7)))
#define KNI_RANS_SPREAD1(m, l) (KNI_RANS_BELOW(m, l) << 8 * (l))
#define KNI_RANS_GATHER1(m, l) ((uint64_t)((m) >> (l) & 1 ? (l) : 0) << 8 * (7 - KNI_RANS_ABOVE(m, l)))
#define KNI_RANS_EACH1(x, m) \
    (x(m, 0) | x(m, 1) | x(m, 2) | x(m, 3) | x(m, 4) | x(m, 5) | x(m, 6) | x(m, 7))
#define KNI_RANS_EACH4(x, m) KNI_RANS_EACH1(x, m), KNI_RANS_EACH1(x, (m) + 1), KNI_RANS_EACH1(x, (m) + 2), KNI_RANS_EACH1(x, (m) + 3)
#define KNI_RANS_EACH16(x, m) KNI_RANS_EACH4(x, m), KNI_RANS_EACH4(x, (m) + 4), KNI_RANS_EACH4(x, (m) + 8), KNI_RANS_EACH4(x, (m) + 12)
#define KNI_RANS_EACH64(x, m) KNI_RANS_EACH16(x, m), KNI_RANS_EACH16(x, (m) + 16), KNI_RANS_EACH16(x, (m) + 32), KNI_RANS_EACH16(x, (m) + 48)
#define KNI_RANS_EACH256(x) KNI_RANS_EACH64(x, 0), KNI_RANS_EACH64(x, 64), KNI_RANS_EACH64(x, 128), KNI_RANS_EACH64(x, 192)

static const uint64_t rans_spread[256] __attribute__((unused)) = {KNI_RANS_EACH256(KNI_RANS_SPREAD1)};
static const uint64_t rans_gather[256] __attribute__((unused)) = {KNI_RANS_EACH256(KNI_RANS_GATHER1)};

/* Lanes below 2^16 take a word. Reads 16 bytes at *at, uses at most those. */
static inline __m256i rans_refill_avx2(__m256i x, const uint8_t **at)
{
    __m256i need = _mm256_cmpeq_epi32(_mm256_srli_epi32(x, 16), _mm256_setzero_si256());
    unsigned mask = (unsigned)_mm256_movemask_ps(_mm256_castsi256_ps(need));
    __m256i words = _mm256_cvtepu16_epi32(_mm_loadu_si128((const __m128i *)*at));
    words = _mm256_permutevar8x32_epi32(words, _mm256_cvtepu8_epi32(_mm_loadl_epi64((const __m128i *)&rans_spread[mask])));
    *at += 2 * _mm_popcnt_u32(mask);
    return _mm256_blendv_epi8(x, _mm256_or_si256(_mm256_slli_epi32(x, 16), words), need);
}

/* The step of kni_rans_get before the refill. slots are what the eight states' slots hold. */
static inline __m256i rans_step_avx2(__m256i x, __m256i slots)
{
    __m256i freq = _mm256_and_si256(_mm256_srli_epi32(slots, 8), _mm256_set1_epi32(KNI_RANS_SCALE - 1));
    return _mm256_add_epi32(_mm256_mullo_epi32(freq, _mm256_srli_epi32(x, KNI_RANS_BITS)), _mm256_srli_epi32(slots, 20));
}

/* kni_rans_emit for eight lanes. Writes the 16 bytes before *at, of which those that remain before the new *at are rubbish. */
static inline __m256i rans_emit_avx2(__m256i x, __m256i freq, uint8_t **at)
{
    /* x >> 20 >= freq: both below 2^12, so signed comparison will do */
    __m256i stay = _mm256_cmpgt_epi32(freq, _mm256_srli_epi32(x, 32 - KNI_RANS_BITS));
    unsigned mask = ~(unsigned)_mm256_movemask_ps(_mm256_castsi256_ps(stay)) & 0xff;
    /* the words that go, the highest lane's last */
    __m256i gone = _mm256_permutevar8x32_epi32(x, _mm256_cvtepu8_epi32(_mm_loadl_epi64((const __m128i *)&rans_gather[mask])));
    __m256i low = _mm256_and_si256(gone, _mm256_set1_epi32(0xffff));
    _mm_storeu_si128((__m128i *)(*at - 16), _mm_packus_epi32(_mm256_castsi256_si128(low), _mm256_extracti128_si256(low, 1)));
    *at -= 2 * _mm_popcnt_u32(mask);
    return _mm256_blendv_epi8(_mm256_srli_epi32(x, 16), x, stay);
}

/* x / freq, and *rest = x % freq, for x after emitting: the product with the reciprocal is the quotient or one less. */
static inline __m256i rans_divide_avx2(__m256i x, __m256i freq, __m256i recip, __m256i *rest)
{
    __m256i even = _mm256_srli_epi64(_mm256_mul_epu32(x, recip), 32);
    __m256i odd = _mm256_mul_epu32(_mm256_srli_epi64(x, 32), _mm256_srli_epi64(recip, 32));
    __m256i q = _mm256_blend_epi32(even, odd, 0xaa), r = _mm256_sub_epi32(x, _mm256_mullo_epi32(q, freq));
    __m256i right = _mm256_cmpgt_epi32(freq, r); /* -1, or 0 where one must be added */
    *rest = _mm256_sub_epi32(r, _mm256_andnot_si256(right, freq));
    return _mm256_add_epi32(q, _mm256_add_epi32(right, _mm256_set1_epi32(1)));
}

/* kni_rans_put for eight lanes: freq_start holds freq | start << 16 as struct kni_rans_symbol does (bit 31 is ignored), recip too. */
static inline __m256i rans_put_avx2(__m256i x, __m256i freq_start, __m256i recip, uint8_t **at)
{
    __m256i freq = _mm256_and_si256(freq_start, _mm256_set1_epi32(0xffff)), start = _mm256_srli_epi32(_mm256_slli_epi32(freq_start, 1), 17), rest;
    __m256i q = rans_divide_avx2(rans_emit_avx2(x, freq, at), freq, recip, &rest);
    return _mm256_add_epi32(_mm256_add_epi32(_mm256_slli_epi32(q, KNI_RANS_BITS), rest), start);
}
#endif

#endif
