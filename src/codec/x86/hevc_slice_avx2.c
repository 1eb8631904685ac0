/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Slices with AVX2 and BMI2 (hevc_slice.inc): 4 rows of 16 samples, four sub-blocks, at a time.
 *
 *     row 0   a a a a b b b b c c c c d d d d        low half: rows 0 2 of a, b as dwords      permuted: a in the low half, b in the
 *     row 1   ..                                     high half: unpacked with rows 1 3         high one, bytes then in diagonal order
 *
 * A mask instruction then gives two sub-blocks' bits at once, next to each other as hevc_state.h keeps them. Most strips of quiet
 * rows are zero, and only compared. Pure functions on the caller's memory: any thread.
 */
#include "codec/hevc/hevc_state.h"

#if defined(__x86_64__)

#include <immintrin.h>
#include <string.h>

#include "codec/x86/hevc_bits_x86.inc"

/* The first size samples of a row, at most 16. */
static inline __m128i load_row(const uint8_t *p, uint32_t size)
{
    if (size >= 16)
        return _mm_loadu_si128((const __m128i *)p);
    if (size == 8)
        return _mm_loadl_epi64((const __m128i *)p);
    int32_t four;
    memcpy(&four, p, 4);
    return _mm_cvtsi32_si128(four);
}

/* Rows at p, and two below. */
static inline __m256i load_rows(const uint8_t *p, size_t stride, uint32_t size)
{
    return _mm256_inserti128_si256(_mm256_castsi128_si256(load_row(p, size)), load_row(p + 2 * stride, size), 1);
}

/* Two sub-blocks: columns of dwords to sub-blocks, their bytes in diagonal order. */
static inline __m256i to_scan(__m256i dwords)
{
    const __m256i diagonal = _mm256_broadcastsi128_si256(_mm_setr_epi8(0, 4, 1, 8, 5, 2, 12, 9, 6, 3, 13, 10, 7, 14, 11, 15));
    return _mm256_shuffle_epi8(_mm256_permute4x64_epi64(dwords, 0xd8), diagonal);
}

static inline void store_mask(uint16_t *to, __m256i bytes)
{
    uint32_t mask = (uint32_t)_mm256_movemask_epi8(bytes);
    memcpy(to, &mask, 4);
}

/* Magnitudes and signs (in the bytes' highest bits) of sub-blocks r and r + 1. Returns which are coded. */
static inline uint64_t put_pair(struct kni_hevc_block *b, uint32_t r, __m256i level, __m256i sign)
{
    const __m256i zero = _mm256_setzero_si256();
    uint32_t sig = ~(uint32_t)_mm256_movemask_epi8(_mm256_cmpeq_epi8(level, zero));
    _mm256_storeu_si256((__m256i *)b->level[r], level);
    memcpy(b->sig + r, &sig, 4);
    store_mask(b->sign + r, sign);
    store_mask(b->over1 + r, _mm256_cmpeq_epi8(_mm256_max_epu8(level, _mm256_set1_epi8(2)), level));
    store_mask(b->over2 + r, _mm256_cmpeq_epi8(_mm256_max_epu8(level, _mm256_set1_epi8(3)), level));
    return (uint64_t)((sig & 0xffff) != 0) | (uint64_t)(sig >> 16 != 0) << 1;
}

/* Less 128, of which the sign is the highest bit as it is. */
static inline uint64_t scan_flat(struct kni_hevc_block *b, uint32_t r, __m256i even, __m256i odd, uint32_t size)
{
    const __m256i low = to_scan(_mm256_unpacklo_epi32(even, odd));
    uint64_t coded = put_pair(b, r, _mm256_abs_epi8(low), low);
    if (size >= 16) {
        const __m256i high = to_scan(_mm256_unpackhi_epi32(even, odd));
        coded |= put_pair(b, r + 2, _mm256_abs_epi8(high), high) << 2;
    }
    return coded;
}

static inline uint64_t scan_pair(struct kni_hevc_block *b, uint32_t r, __m256i now, __m256i before)
{
    const __m256i more = _mm256_subs_epu8(now, before), less = _mm256_subs_epu8(before, now), zero = _mm256_setzero_si256();
    return put_pair(b, r, _mm256_or_si256(more, less), _mm256_andnot_si256(_mm256_cmpeq_epi8(less, zero), _mm256_set1_epi8(-1)));
}

static inline void scan_size(struct kni_hevc_block *b, const uint8_t *now, size_t stride, const uint8_t *before, size_t before_stride, uint32_t size)
{
    const __m256i flat = _mm256_set1_epi8(-128);
    const uint64_t keep = size >= 16 ? 15 : size == 8 ? 3 : 1;
    uint64_t coded = 0;
    for (uint32_t y = 0; y < size; y += 4)
        for (uint32_t x = 0; x < size; x += 16) {
            const uint8_t *p = now + y * stride + x;
            const uint32_t r = 2 * y + x / 4;
            __m256i even = load_rows(p, stride, size), odd = load_rows(p + stride, stride, size);
            if (!before) {
                even = _mm256_xor_si256(even, flat);
                odd = _mm256_xor_si256(odd, flat);
                const __m256i any = size >= 16 ? _mm256_or_si256(even, odd) : _mm256_unpacklo_epi32(even, odd);
                if (!_mm256_testz_si256(any, any))
                    coded |= (scan_flat(b, r, even, odd, size) & keep) << r;
                continue;
            }
            const uint8_t *q = before + y * before_stride + x;
            const __m256i even_before = load_rows(q, before_stride, size), odd_before = load_rows(q + before_stride, before_stride, size);
            const __m256i any = _mm256_or_si256(_mm256_xor_si256(even, even_before), _mm256_xor_si256(odd, odd_before));
            if (_mm256_testz_si256(any, any))
                continue;
            uint64_t some = scan_pair(b, r, to_scan(_mm256_unpacklo_epi32(even, odd)), to_scan(_mm256_unpacklo_epi32(even_before, odd_before)));
            if (size >= 16)
                some |= scan_pair(b, r + 2, to_scan(_mm256_unpackhi_epi32(even, odd)), to_scan(_mm256_unpackhi_epi32(even_before, odd_before))) << 2;
            coded |= (some & keep) << r;
        }
    b->coded = coded;
}

/* before NULL: 128 everywhere. */
static void scan(struct kni_hevc_block *b, const uint8_t *now, size_t stride, const uint8_t *before, size_t before_stride, uint32_t size)
{
    switch (size) { /* a copy each, without tests inside */
    case 32: scan_size(b, now, stride, before, before_stride, 32); break;
    case 16: scan_size(b, now, stride, before, before_stride, 16); break;
    case 8: scan_size(b, now, stride, before, before_stride, 8); break;
    default: scan_size(b, now, stride, before, before_stride, 4); break;
    }
}

void kni_hevc_scan_avx2(struct kni_hevc_block *b, const uint8_t *now, size_t stride, const uint8_t *before, size_t before_stride, uint32_t size)
{
    scan(b, now, stride, before, before_stride, size);
}

#define slice_name kni_hevc_slice_avx2
#include "codec/hevc/hevc_slice.inc"

#endif
