/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Slices with AVX-512 (hevc_slice.inc): 4 rows of 32 samples, eight sub-blocks, at a time where blocks are that wide; two
 * permutations of dwords put four sub-blocks into a register, and comparisons give all their masks at once. Narrower blocks have
 * half of each row. Pure functions on the caller's memory: any thread.
 */
#include "codec/hevc/hevc_state.h"

#if defined(__x86_64__)

#include <immintrin.h>
#include <string.h>

#include "codec/x86/hevc_bits_x86.inc"

/* Rows at p and below it, 32 bytes each; of narrower blocks what is not theirs is zero, and not read. */
static inline __m512i load_rows(const uint8_t *p, size_t stride, __mmask32 width)
{
    return _mm512_inserti64x4(_mm512_castsi256_si512(_mm256_maskz_loadu_epi8(width, p)), _mm256_maskz_loadu_epi8(width, p + stride), 1);
}

/* Sub-blocks 4 half .. 4 half + 3 of four rows, their bytes in diagonal order. */
static inline __m512i to_scan(__m512i top, __m512i bottom, uint32_t half)
{
    const __m512i diagonal = _mm512_broadcast_i32x4(_mm_setr_epi8(0, 4, 1, 8, 5, 2, 12, 9, 6, 3, 13, 10, 7, 14, 11, 15));
    const __m512i first = _mm512_setr_epi32(0, 8, 16, 24, 1, 9, 17, 25, 2, 10, 18, 26, 3, 11, 19, 27);
    const __m512i dwords = _mm512_add_epi32(first, _mm512_set1_epi32((int32_t)(4 * half)));
    return _mm512_shuffle_epi8(_mm512_permutex2var_epi32(top, dwords, bottom), diagonal);
}

/* Magnitudes and signs of sub-blocks r .. r + 3. Returns which are coded. */
static inline uint64_t put_four(struct kni_hevc_block *b, uint32_t r, __m512i level, uint64_t sign)
{
    const uint64_t sig = _mm512_test_epi8_mask(level, level), over1 = _mm512_cmpgt_epu8_mask(level, _mm512_set1_epi8(1));
    const uint64_t over2 = _mm512_cmpgt_epu8_mask(level, _mm512_set1_epi8(2));
    _mm512_storeu_si512(b->level[r], level);
    memcpy(b->sig + r, &sig, 8);
    memcpy(b->sign + r, &sign, 8);
    memcpy(b->over1 + r, &over1, 8);
    memcpy(b->over2 + r, &over2, 8);
    const __m256i words = _mm256_castsi128_si256(_mm_cvtsi64_si128((int64_t)sig));
    return _mm256_test_epi16_mask(words, words) & 15u;
}

static inline void scan_size(struct kni_hevc_block *b, const uint8_t *now, size_t stride, const uint8_t *before, size_t before_stride, uint32_t size)
{
    const __mmask32 width = size >= 32 ? UINT32_MAX : (1u << size) - 1;
    const uint64_t keep = size >= 16 ? 15 : size == 8 ? 3 : 1;
    uint64_t coded = 0;
    for (uint32_t y = 0; y < size; y += 4) {
        const uint8_t *p = now + y * stride, *q = before + (before ? y * before_stride : 0);
        const __m512i top = load_rows(p, stride, width), bottom = load_rows(p + 2 * stride, stride, width);
        __m512i top_before = _mm512_maskz_set1_epi8((uint64_t)width << 32 | width, -128), bottom_before = top_before;
        if (before) {
            top_before = load_rows(q, before_stride, width);
            bottom_before = load_rows(q + 2 * before_stride, before_stride, width);
        }
        const __m512i any = _mm512_or_si512(_mm512_xor_si512(top, top_before), _mm512_xor_si512(bottom, bottom_before));
        if (!_mm512_test_epi64_mask(any, any))
            continue;
        for (uint32_t half = 0; half < (size >= 32 ? 2 : 1); half++) {
            const uint32_t r = 2 * y + 4 * half;
            const __m512i x = to_scan(top, bottom, half), z = to_scan(top_before, bottom_before, half);
            const __m512i level = _mm512_or_si512(_mm512_subs_epu8(x, z), _mm512_subs_epu8(z, x));
            coded |= (put_four(b, r, level, _mm512_cmplt_epu8_mask(x, z)) & keep) << r;
        }
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

void kni_hevc_scan_avx512(struct kni_hevc_block *b, const uint8_t *now, size_t stride, const uint8_t *before, size_t before_stride, uint32_t size)
{
    scan(b, now, stride, before, before_stride, size);
}

#define slice_name kni_hevc_slice_avx512
#include "codec/hevc/hevc_slice.inc"

#endif
