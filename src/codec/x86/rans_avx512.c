/* SPDX-License-Identifier: Apache-2.0 */
/*
 * rANS rows with AVX-512: two vectors of sixteen states; words spread and gather by the processor's own expand and compress.
 * Contexts of a step are the AVX2 form's business, so the notes for encoding come from there.
 */
#include "codec/rans/rans_simd.h"

#if defined(__x86_64__)
#include <immintrin.h>

/* Lanes below 2^16 take a word. Reads 32 bytes at *at. */
static inline __m512i refill(__m512i x, const uint8_t **at)
{
    __mmask16 need = _mm512_cmplt_epu32_mask(x, _mm512_set1_epi32(KNI_RANS_LOW));
    __m512i words = _mm512_maskz_expand_epi32(need, _mm512_cvtepu16_epi32(_mm256_loadu_si256((const __m256i *)*at)));
    *at += 2 * __builtin_popcount(need);
    return _mm512_mask_or_epi32(x, need, _mm512_slli_epi32(x, 16), words);
}

/* kni_rans_get_bucket for sixteen lanes; symbols come in the low bytes. */
static inline __m512i get(const struct kni_rans_model *m, __m512i *x, __m128i tables, const uint8_t **at)
{
    const __m512i low12 = _mm512_set1_epi32(KNI_RANS_SCALE - 1), even = _mm512_setr_epi32(0, 2, 4, 6, 8, 10, 12, 14, 16, 18, 20, 22, 24, 26, 28, 30);
    __m512i slot = _mm512_and_si512(*x, low12), bucket = _mm512_srli_epi32(slot, KNI_RANS_BUCKET_BITS);
    __m512i offset = _mm512_and_si512(slot, _mm512_set1_epi32(KNI_RANS_BUCKET_SLOTS - 1));
    __m512i index = _mm512_add_epi32(_mm512_slli_epi32(_mm512_cvtepu8_epi32(tables), 12 - KNI_RANS_BUCKET_BITS), bucket);
    __m512i g0 = _mm512_i32gather_epi64(_mm512_castsi512_si256(index), m->buckets, 8);
    __m512i g1 = _mm512_i32gather_epi64(_mm512_extracti64x4_epi64(index, 1), m->buckets, 8);
    __m512i own = _mm512_permutex2var_epi32(g0, even, g1);
    __m512i other = _mm512_permutex2var_epi32(g0, _mm512_add_epi32(even, _mm512_set1_epi32(1)), g1);
    __mmask16 is_own = _mm512_cmplt_epu32_mask(offset, _mm512_srli_epi32(own, 24));
    __m512i what = _mm512_mask_mov_epi32(other, is_own, own);
    __m512i rank = _mm512_and_si512(_mm512_add_epi32(_mm512_srli_epi32(what, 12), offset), low12);
    __m512i next = _mm512_mullo_epi32(_mm512_and_si512(what, low12), _mm512_srli_epi32(*x, KNI_RANS_BITS));
    *x = refill(_mm512_add_epi32(next, rank), at);
    return _mm512_mask_add_epi32(_mm512_srli_epi32(other, 24), is_own, bucket, _mm512_set1_epi32(KNI_RANS_FIRST));
}

/* kni_rans_put_code for sixteen lanes; the words go before *at. */
static inline __m512i put(const struct kni_rans_model *m, __m512i x, __m512i tables, __m512i what, __m512i recip, uint8_t **at)
{
    const __m512i low12 = _mm512_set1_epi32(KNI_RANS_SCALE - 1), low5 = _mm512_set1_epi32(KNI_RANS_BUCKET_SLOTS - 1);
    __m512i freq = _mm512_and_si512(what, low12), first = _mm512_and_si512(_mm512_srli_epi32(what, 12), low12);
    __m512i pieces = _mm512_and_si512(_mm512_srli_epi32(what, 24), _mm512_set1_epi32(127)), whole = _mm512_slli_epi32(pieces, KNI_RANS_BUCKET_BITS);
    __mmask16 go = _mm512_cmpge_epu32_mask(_mm512_srli_epi32(x, 32 - KNI_RANS_BITS), freq);
    *at -= 2 * __builtin_popcount(go);
    _mm512_mask_cvtepi32_storeu_epi16(*at, (__mmask16)((1u << __builtin_popcount(go)) - 1), _mm512_maskz_compress_epi32(go, x));
    x = _mm512_mask_srli_epi32(x, go, x, 16);
    __m512i even = _mm512_srli_epi64(_mm512_mul_epu32(x, recip), 32);
    __m512i odd = _mm512_mul_epu32(_mm512_srli_epi64(x, 32), _mm512_srli_epi64(recip, 32));
    __m512i q = _mm512_mask_blend_epi32(0xaaaa, even, odd);
    __m512i rank = _mm512_sub_epi32(x, _mm512_mullo_epi32(q, freq));
    __mmask16 more = _mm512_cmpge_epu32_mask(rank, freq); /* the product is the quotient or one less */
    q = _mm512_mask_add_epi32(q, more, q, _mm512_set1_epi32(1));
    rank = _mm512_mask_sub_epi32(rank, more, rank, freq);
    __mmask16 in_piece = _mm512_cmplt_epu32_mask(rank, whole);
    __m512i index = _mm512_sub_epi32(rank, _mm512_sub_epi32(whole, pieces));
    index = _mm512_mask_srli_epi32(index, in_piece, rank, KNI_RANS_BUCKET_BITS);
    index = _mm512_add_epi32(_mm512_add_epi32(index, first), _mm512_mullo_epi32(tables, _mm512_set1_epi32(KNI_RANS_SLOTS_STRIDE)));
    /* 32 bits for each 16: what the last slot reads beyond is in its table's unused end */
    __m512i slot = _mm512_and_si512(_mm512_i32gather_epi32(index, m->slots, 2), low12);
    slot = _mm512_mask_add_epi32(slot, in_piece, slot, _mm512_and_si512(rank, low5));
    return _mm512_or_si512(_mm512_slli_epi32(q, KNI_RANS_BITS), slot);
}

bool kni_rans_encode_row_avx512(const struct kni_rans_model *m, uint32_t states[KNI_RANS_LANES], uint8_t **at, const uint8_t *floor, uint32_t n_tokens,
                                const uint8_t *tables, const uint8_t *coded)
{
    const int *codes = (const int *)(const void *)m->codes;
    for (uint32_t end = n_tokens; end;) {
        uint32_t n = end % KNI_RANS_LANES ? end % KNI_RANS_LANES : KNI_RANS_LANES, p = end - n;
        if (*at - floor < KNI_RANS_STEP_ROOM)
            return false;
        __m512i table[2], what[2], recip[2];
        __mmask16 raw = 0;
        for (uint32_t k = 0; k < n / 16; k++) {
            table[k] = _mm512_cvtepu8_epi32(_mm_loadu_si128((const __m128i *)(tables + p + 16 * k)));
            __m512i index = _mm512_or_si512(_mm512_slli_epi32(table[k], 8), _mm512_cvtepu8_epi32(_mm_loadu_si128((const __m128i *)(coded + p + 16 * k))));
            what[k] = _mm512_i32gather_epi32(index, codes, 8);
            recip[k] = _mm512_i32gather_epi32(index, codes + 1, 8);
            raw |= _mm512_movepi32_mask(what[k]);
        }
        for (uint32_t lane = n; raw && lane--;)
            if (m->codes[tables[p + lane]][coded[p + lane]].what & KNI_RANS_RAW)
                states[lane] = kni_rans_put_raw(states[lane], at, coded[p + lane], 8);
        for (uint32_t k = n / 16; k--;)
            _mm512_storeu_si512(states + 16 * k, put(m, _mm512_loadu_si512(states + 16 * k), table[k], what[k], recip[k], at));
        end = p;
    }
    return true;
}

/* kni_rans_before for sixteen positions. */
static inline __m128i before_of(const struct kni_rans_row *row, const struct kni_rans_class *c, uint32_t p)
{
    const __m128i zero = _mm_set1_epi8((char)KNI_RANS_ZERO);
    __m128i one = _mm_setzero_si128(), two = one;
    if (c->above)
        one = _mm_xor_si128(_mm_loadu_si128((const __m128i *)(row->above + p)), zero);
    else if (p >= KNI_RANS_LANES)
        one = _mm_xor_si128(_mm_loadu_si128((const __m128i *)(row->symbols + p - KNI_RANS_LANES)), zero);
    if (!c->above && p >= 2 * KNI_RANS_LANES)
        two = _mm_xor_si128(_mm_loadu_si128((const __m128i *)(row->symbols + p - 2 * KNI_RANS_LANES)), zero);
    return _mm_adds_epi8(_mm_adds_epi8(one, one), two);
}

bool kni_rans_decode_row_avx512(const struct kni_rans_model *m, uint32_t states[KNI_RANS_LANES], struct kni_rans_words *words, uint32_t n_tokens,
                                const struct kni_rans_class *c, struct kni_rans_row *row, uint8_t *tokens)
{
    const __m128i left_rule = _mm_loadu_si128((const __m128i *)c->left), fifteen = _mm_set1_epi8(15);
    const __m128i map0 = _mm_loadu_si128((const __m128i *)c->map), map1 = _mm_loadu_si128((const __m128i *)(c->map + 16));
    kni_rans_row_begin_avx2(row, n_tokens);
    for (uint32_t p = 0; p < n_tokens; p += 16) { /* half a step: its lanes, and the symbols 32 before */
        uint8_t *s = row->symbols + p;
        uint32_t *x16 = states + p % KNI_RANS_LANES;
        __m128i before = before_of(row, c, p), left = _mm_setzero_si128();
        if (p >= KNI_RANS_LANES || c->above) {
            __m128i v = _mm_and_si128(_mm_srl_epi16(_mm_abs_epi8(before), _mm_cvtsi32_si128(c->shift)), _mm_set1_epi8((char)(255 >> c->shift)));
            left = _mm_shuffle_epi8(left_rule, _mm_min_epu8(v, fifteen));
        }
        __m128i level = _mm_or_si128(_mm_loadu_si128((const __m128i *)(row->loud + p)), left), low = _mm_and_si128(level, fifteen);
        __m128i tables = _mm_mask_shuffle_epi8(_mm_shuffle_epi8(map0, low), _mm_cmpgt_epi8_mask(level, fifteen), map1, low);
        __m512i x = _mm512_loadu_si512(x16);
        __m128i v = _mm512_cvtepi32_epi8(get(m, &x, tables, &words->at));
        _mm512_storeu_si512(x16, x);
        _mm_storeu_si128((__m128i *)s, v);
        if (words->at > words->end)
            return false;
        if (p % KNI_RANS_LANES == 0 && p + 16 < n_tokens)
            continue;
        /* the step is whole: its escapes, then its signs */
        uint32_t first = p - p % KNI_RANS_LANES;
        for (uint32_t q = first; q <= p; q += 16) {
            __mmask16 escapes = _mm_cmpeq_epi8_mask(_mm_loadu_si128((const __m128i *)(row->symbols + q)), _mm_set1_epi8((char)KNI_RANS_ESCAPE));
            for (uint32_t lane = 0; lane < 16 && escapes >> lane; lane++) {
                uint32_t value;
                if (!(escapes >> lane & 1))
                    continue;
                if (!kni_rans_get_raw(&states[q % KNI_RANS_LANES + lane], &words->at, words->end, 8, &value))
                    return false;
                row->symbols[q + lane] = (uint8_t)value;
            }
        }
        for (uint32_t q = first; q <= p; q += 16) {
            __mmask16 negative = _mm_movepi8_mask(before_of(row, c, q));
            __m128i v16 = _mm_loadu_si128((const __m128i *)(row->symbols + q));
            _mm_storeu_si128((__m128i *)(row->symbols + q), _mm_mask_sub_epi8(v16, negative, _mm_setzero_si128(), v16));
        }
    }
    kni_rans_to_tokens_avx2(tokens, row->symbols, n_tokens);
    kni_rans_row_end_avx2(row, n_tokens, c);
    return true;
}
#endif
