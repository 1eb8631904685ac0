/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Pieces shared by the *_avx2.c files of this folder: exp of 8 floats, horizontal sums, and the blocks of quantised types as
 * vectors of 8 floats. Empty unless the including file is compiled for AVX2, FMA and F16C.
 */
#ifndef KNI_KERNEL_X86_VEC_AVX2_H
#define KNI_KERNEL_X86_VEC_AVX2_H

#if defined(__AVX2__) && defined(__FMA__) && defined(__F16C__)

#include <immintrin.h>
#include <stdint.h>
#include <string.h>

/* ((0+4) + (2+6)) + ((1+5) + (3+7)): one fixed order. */
static inline float vec_sum(__m256 v)
{
    __m128 s = _mm_add_ps(_mm256_castps256_ps128(v), _mm256_extractf128_ps(v, 1));
    s = _mm_add_ps(s, _mm_movehl_ps(s, s));
    s = _mm_add_ss(s, _mm_shuffle_ps(s, s, 1));
    return _mm_cvtss_f32(s);
}

static inline float vec_max(__m256 v)
{
    __m128 s = _mm_max_ps(_mm256_castps256_ps128(v), _mm256_extractf128_ps(v, 1));
    s = _mm_max_ps(s, _mm_movehl_ps(s, s));
    s = _mm_max_ss(s, _mm_shuffle_ps(s, s, 1));
    return _mm_cvtss_f32(s);
}

/* Mask of the first n lanes, n in 0..8, for maskload and maskstore. */
static inline __m256i vec_mask(uint32_t n)
{
    return _mm256_cmpgt_epi32(_mm256_set1_epi32((int)n), _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7));
}

/* exp: x = n ln2 + r with |r| <= ln2 / 2, then the Taylor polynomial of degree 7, whose remainder there is 5.2e-9 relative,
 * well under half a unit in the last place; rounding in the Horner steps makes the rest of the 2e-7 bound. ln2 is split
 * in two so that n * ln2 is exact enough. Below -87.3 the result is 0, above 88.7 infinity; NaN stays NaN. */
static inline __m256 vec_exp_mantissa(__m256 c, __m256 n)
{
    __m256 r = _mm256_fnmadd_ps(n, _mm256_set1_ps(0x1.62e4p-1f), c);
    r = _mm256_fnmadd_ps(n, _mm256_set1_ps(1.42860677e-6f), r);
    __m256 p = _mm256_set1_ps(1.0f / 5040.0f);
    p = _mm256_fmadd_ps(p, r, _mm256_set1_ps(1.0f / 720.0f));
    p = _mm256_fmadd_ps(p, r, _mm256_set1_ps(1.0f / 120.0f));
    p = _mm256_fmadd_ps(p, r, _mm256_set1_ps(1.0f / 24.0f));
    p = _mm256_fmadd_ps(p, r, _mm256_set1_ps(1.0f / 6.0f));
    p = _mm256_fmadd_ps(p, r, _mm256_set1_ps(0.5f));
    p = _mm256_fmadd_ps(p, r, _mm256_set1_ps(1.0f));
    return _mm256_fmadd_ps(p, r, _mm256_set1_ps(1.0f));
}

static inline __m256 vec_round(__m256 x)
{
    return _mm256_round_ps(x, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
}

static inline __m256 vec_exp(__m256 x)
{
    const __m256 low = _mm256_set1_ps(-87.3f), high = _mm256_set1_ps(88.72f);
    __m256 c = _mm256_min_ps(high, _mm256_max_ps(low, x)); /* second operand wins when it is NaN */
    __m256 n = vec_round(_mm256_mul_ps(c, _mm256_set1_ps(1.44269504089f)));
    /* 2^n in two factors: n may be 128, which has no float of its own. */
    __m256i i = _mm256_cvtps_epi32(n), half = _mm256_srai_epi32(i, 1);
    const __m256i bias = _mm256_set1_epi32(127);
    __m256 f0 = _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_add_epi32(half, bias), 23));
    __m256 f1 = _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_add_epi32(_mm256_sub_epi32(i, half), bias), 23));
    __m256 p = _mm256_mul_ps(_mm256_mul_ps(vec_exp_mantissa(c, n), f0), f1);
    p = _mm256_andnot_ps(_mm256_cmp_ps(x, low, _CMP_LT_OQ), p);
    return _mm256_blendv_ps(p, _mm256_set1_ps(__builtin_inff()), _mm256_cmp_ps(x, high, _CMP_GT_OQ));
}

/* exp of x <= 0 (or NaN) for softmax: 2^(n + r), |r| <= 1/2, 2^r by a polynomial of degree 5 with least relative error (9.2e-8;
 * 1.6e-7 with rounding; exactly 1 at 0). n comes from adding 1.5 * 2^23, whose low bits then hold n, and x log2(e) is rounded
 * once, so the whole error is at most 1.6e-7 + |x| 2^-23 relative: below 4e-7 of the largest probability. Below -87.7: 0. */
static inline __m256 vec_exp_softmax(__m256 x)
{
    const __m256 log2e = _mm256_set1_ps(0x1.715476p+0f), magic = _mm256_set1_ps(0x1.8p23f + 127.0f);
    __m256 c = _mm256_max_ps(_mm256_set1_ps(-88.0f), x); /* 2^-127 is written as 0; the second operand wins when it is NaN */
    __m256 t = _mm256_fmadd_ps(c, log2e, magic), n = _mm256_sub_ps(t, magic), r = _mm256_fmsub_ps(c, log2e, n);
    __m256 p = _mm256_set1_ps(0x1.5bba14p-10f);
    p = _mm256_fmadd_ps(p, r, _mm256_set1_ps(0x1.3cea88p-7f));
    p = _mm256_fmadd_ps(p, r, _mm256_set1_ps(0x1.c6b752p-5f));
    p = _mm256_fmadd_ps(p, r, _mm256_set1_ps(0x1.ebf9bcp-3f));
    p = _mm256_fmadd_ps(p, r, _mm256_set1_ps(0x1.62e42ap-1f));
    p = _mm256_fmadd_ps(p, r, _mm256_set1_ps(1.0f));
    return _mm256_mul_ps(p, _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_castps_si256(t), 23)));
}

/* 16 bytes at low, 16 at high. */
static inline __m256i vec_rows(const uint16_t *low, const uint16_t *high)
{
    return _mm256_inserti128_si256(_mm256_castsi128_si256(_mm_loadu_si128((const __m128i *)(const void *)low)), _mm_loadu_si128((const __m128i *)(const void *)high), 1);
}

/* 16 rows, ld apart, of 8 values of 16 bits become 8 vectors: c[i] holds value i of rows 0..7 in its low half, of rows 8..15 in
 * its high half. */
static inline __attribute__((always_inline)) void vec_transpose16(const uint16_t *p, size_t ld, __m256i c[8])
{
    __m256i r0 = vec_rows(p, p + 8 * ld), r1 = vec_rows(p + ld, p + 9 * ld), r2 = vec_rows(p + 2 * ld, p + 10 * ld), r3 = vec_rows(p + 3 * ld, p + 11 * ld);
    __m256i r4 = vec_rows(p + 4 * ld, p + 12 * ld), r5 = vec_rows(p + 5 * ld, p + 13 * ld), r6 = vec_rows(p + 6 * ld, p + 14 * ld), r7 = vec_rows(p + 7 * ld, p + 15 * ld);
    __m256i a0 = _mm256_unpacklo_epi16(r0, r1), a1 = _mm256_unpackhi_epi16(r0, r1), a2 = _mm256_unpacklo_epi16(r2, r3), a3 = _mm256_unpackhi_epi16(r2, r3);
    __m256i a4 = _mm256_unpacklo_epi16(r4, r5), a5 = _mm256_unpackhi_epi16(r4, r5), a6 = _mm256_unpacklo_epi16(r6, r7), a7 = _mm256_unpackhi_epi16(r6, r7);
    __m256i b0 = _mm256_unpacklo_epi32(a0, a2), b1 = _mm256_unpackhi_epi32(a0, a2), b2 = _mm256_unpacklo_epi32(a1, a3), b3 = _mm256_unpackhi_epi32(a1, a3);
    __m256i b4 = _mm256_unpacklo_epi32(a4, a6), b5 = _mm256_unpackhi_epi32(a4, a6), b6 = _mm256_unpacklo_epi32(a5, a7), b7 = _mm256_unpackhi_epi32(a5, a7);
    c[0] = _mm256_unpacklo_epi64(b0, b4);
    c[1] = _mm256_unpackhi_epi64(b0, b4);
    c[2] = _mm256_unpacklo_epi64(b1, b5);
    c[3] = _mm256_unpackhi_epi64(b1, b5);
    c[4] = _mm256_unpacklo_epi64(b2, b6);
    c[5] = _mm256_unpackhi_epi64(b2, b6);
    c[6] = _mm256_unpacklo_epi64(b3, b7);
    c[7] = _mm256_unpackhi_epi64(b3, b7);
}

/* 8 values of 16 bits as floats. */
static inline __m256 vec_from_f16(__m128i v)
{
    return _mm256_cvtph_ps(v);
}

static inline __m256 vec_from_bf16(__m128i v)
{
    return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(v), 16));
}

static inline float vec_f16_at(const uint8_t *p)
{
    uint16_t h;
    memcpy(&h, p, 2);
    return _mm_cvtss_f32(_mm_cvtph_ps(_mm_cvtsi32_si128(h)));
}

/* 16 bytes of nibbles as 32 floats 0..15 in the order of the block: low nibbles first. Bytes are widened before they are
 * parted: two widenings instead of four, and they are the narrow gate. */
static inline void vec_nibbles(const uint8_t *p, __m256 out[4])
{
    const __m256i mask = _mm256_set1_epi32(15);
    __m256i a = _mm256_cvtepu8_epi32(_mm_loadl_epi64((const __m128i *)(const void *)p));
    __m256i b = _mm256_cvtepu8_epi32(_mm_loadl_epi64((const __m128i *)(const void *)(p + 8)));
    out[0] = _mm256_cvtepi32_ps(_mm256_and_si256(a, mask));
    out[1] = _mm256_cvtepi32_ps(_mm256_and_si256(b, mask));
    out[2] = _mm256_cvtepi32_ps(_mm256_srli_epi32(a, 4));
    out[3] = _mm256_cvtepi32_ps(_mm256_srli_epi32(b, 4));
}

/* One block of 32 values as floats. The products of an 11-bit scale and a small integer are exact, so a fused multiply-add
 * rounds where the reference rounds. */
static inline void vec_block_q4_0(const uint8_t *p, __m256 out[4])
{
    __m256 d = _mm256_set1_ps(vec_f16_at(p));
    vec_nibbles(p + 2, out);
    for (int i = 0; i < 4; i++)
        out[i] = _mm256_mul_ps(_mm256_sub_ps(out[i], _mm256_set1_ps(8.0f)), d);
}

static inline void vec_block_q4_1(const uint8_t *p, __m256 out[4])
{
    int both;
    memcpy(&both, p, 4);
    __m128 dm = _mm_cvtph_ps(_mm_cvtsi32_si128(both));
    __m256 d = _mm256_broadcastss_ps(dm), m = _mm256_broadcastss_ps(_mm_movehdup_ps(dm));
    vec_nibbles(p + 4, out);
    for (int i = 0; i < 4; i++)
        out[i] = _mm256_fmadd_ps(out[i], d, m);
}

static inline void vec_block_q8_0(const uint8_t *p, __m256 out[4])
{
    __m256 d = _mm256_set1_ps(vec_f16_at(p));
    for (int i = 0; i < 4; i++) {
        __m128i q = _mm_loadl_epi64((const __m128i *)(const void *)(p + 2 + 8 * i));
        out[i] = _mm256_mul_ps(_mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(q)), d);
    }
}

#endif
#endif
