/* SPDX-License-Identifier: Apache-2.0 */
/*
 * rANS rows with AVX2: a step's 32 lanes are four vectors of eight states, and the contexts of a step are bytes of one vector.
 * What a decoded symbol means for the next step's table does not wait for the states, and the other way round, so that the two
 * chains run side by side. Escapes are rare: they leave the vectors.
 */
#include "codec/rans/rans_simd.h"

#if defined(__x86_64__)
#include "codec/x86/rans_core_avx2.h"

#define VECTORS 4u

static inline __m256i load(const void *p)
{
    return _mm256_loadu_si256((const __m256i *)p);
}

static inline void store(void *p, __m256i v)
{
    _mm256_storeu_si256((__m256i *)p, v);
}

struct rules {
    __m256i left, map[2], magnitudes; /* which bits of a byte are left by the shift */
    __m128i shift;
    bool above;
};

static inline struct rules rules_get(const struct kni_rans_class *c)
{
    struct rules r;
    r.left = _mm256_broadcastsi128_si256(_mm_loadu_si128((const __m128i *)c->left));
    for (int i = 0; i < 2; i++)
        r.map[i] = _mm256_broadcastsi128_si256(_mm_loadu_si128((const __m128i *)(c->map + 16 * i)));
    r.magnitudes = _mm256_set1_epi8((char)(255 >> c->shift));
    r.shift = _mm_cvtsi32_si128(c->shift);
    r.above = c->above;
    return r;
}

/* The tables of 32 symbols. */
static inline __m256i tables_of(const struct rules *r, __m256i loud, __m256i left)
{
    __m256i level = _mm256_or_si256(loud, left); /* bit 4 says which half of the map: shifted to where blend looks */
    return _mm256_blendv_epi8(_mm256_shuffle_epi8(r->map[0], level), _mm256_shuffle_epi8(r->map[1], _mm256_and_si256(level, _mm256_set1_epi8(15))), _mm256_slli_epi16(level, 3));
}

/* kni_rans_before from the symbols of the last two steps, less 128. */
static inline __m256i before_of(__m256i one, __m256i two)
{
    return _mm256_adds_epi8(_mm256_adds_epi8(one, one), two);
}

/* What goes before adds to the level. */
static inline __m256i left_of(const struct rules *r, __m256i before)
{
    __m256i v = _mm256_and_si256(_mm256_srl_epi16(_mm256_abs_epi8(before), r->shift), r->magnitudes);
    return _mm256_shuffle_epi8(r->left, _mm256_min_epu8(v, _mm256_set1_epi8(15)));
}

/* kni_rans_flip where before is negative. */
static inline __m256i flip(__m256i symbols, __m256i before)
{
    __m256i negative = _mm256_cmpgt_epi8(_mm256_setzero_si256(), before);
    return _mm256_sub_epi8(_mm256_xor_si256(symbols, negative), negative);
}

static inline __m256i to_signed(__m256i symbols)
{
    return _mm256_xor_si256(symbols, _mm256_set1_epi8((char)KNI_RANS_ZERO));
}

/* ---- loudness, 32 positions at a time: those past n_tokens hold numbers that nobody uses, within their bounds */

static inline __m256i loud_of(__m256i energy, const __m256i below[KNI_RANS_LOUD_STEPS - 1])
{
    __m256i loud = _mm256_setzero_si256();
    for (uint32_t i = 0; i < KNI_RANS_LOUD_STEPS - 1; i++)
        loud = _mm256_sub_epi16(loud, _mm256_cmpgt_epi16(energy, below[i]));
    return loud;
}

void kni_rans_row_begin_avx2(struct kni_rans_row *row, uint32_t n_tokens)
{
    int16_t steps[KNI_RANS_LOUD_STEPS - 1];
    __m256i below[KNI_RANS_LOUD_STEPS - 1];
    kni_rans_loud_steps(row, steps);
    for (uint32_t i = 0; i < KNI_RANS_LOUD_STEPS - 1; i++)
        below[i] = _mm256_set1_epi16(steps[i]);
    for (uint32_t p = 0; p < n_tokens; p += 32) {
        __m256i loud = _mm256_packus_epi16(loud_of(load(row->energy + p), below), loud_of(load(row->energy + p + 16), below));
        store(row->loud + p, _mm256_permute4x64_epi64(loud, 0xd8));
    }
}

static inline __m256i energy_after(__m256i energy, __m128i magnitudes, __m256i weight, bool decay)
{
    energy = _mm256_add_epi16(energy, _mm256_mullo_epi16(_mm256_cvtepu8_epi16(magnitudes), weight));
    return decay ? _mm256_sub_epi16(energy, _mm256_srli_epi16(_mm256_add_epi16(energy, _mm256_set1_epi16(32)), 6)) : energy;
}

void kni_rans_row_end_avx2(struct kni_rans_row *row, uint32_t n_tokens, const struct kni_rans_class *c)
{
    bool decay = kni_rans_expect(row, c);
    __m256i cap = _mm256_set1_epi8((char)c->cap), weight = _mm256_set1_epi16(c->weight);
    for (uint32_t p = 0; p < n_tokens; p += 32) {
        __m256i s = load(row->symbols + p), v = _mm256_min_epu8(_mm256_abs_epi8(to_signed(s)), cap);
        store(row->above + p, s);
        store(row->energy + p, energy_after(load(row->energy + p), _mm256_castsi256_si128(v), weight, decay));
        store(row->energy + p + 16, energy_after(load(row->energy + p + 16), _mm256_extracti128_si256(v, 1), weight, decay));
    }
}

/* ---- between tokens and positions, eight steps of 32 lanes at a time */

static inline __m256i two_lanes(const uint8_t *tokens, uint32_t lane, uint32_t n_steps)
{
    return _mm256_inserti128_si256(_mm256_castsi128_si256(_mm_loadl_epi64((const __m128i *)(tokens + lane * n_steps))),
                                   _mm_loadl_epi64((const __m128i *)(tokens + (lane + 16) * n_steps)), 1);
}

/* Byte j of v[i], in each half, goes to where its number's bits turn by three places: v[i] and v[i + 4] interleaved, three times. */
static inline void interleave(__m256i v[8])
{
    for (int round = 0; round < 3; round++) {
        __m256i w[8];
        for (int i = 0; i < 4; i++) {
            w[2 * i] = _mm256_unpacklo_epi8(v[i], v[i + 4]);
            w[2 * i + 1] = _mm256_unpackhi_epi8(v[i], v[i + 4]);
        }
        for (int i = 0; i < 8; i++)
            v[i] = w[i];
    }
}

static void to_positions(uint8_t *positions, const uint8_t *tokens, uint32_t n_tokens)
{
    uint32_t n_steps = n_tokens / KNI_RANS_LANES, step = 0;
    for (; step + 8 <= n_steps; step += 8) {
        __m256i v[8];
        for (uint32_t i = 0; i < 8; i++)
            v[i] = _mm256_unpacklo_epi8(two_lanes(tokens + step, i, n_steps), two_lanes(tokens + step, i + 8, n_steps));
        interleave(v);
        for (uint32_t i = 0; i < 8; i++)
            store(positions + (step + i) * KNI_RANS_LANES, v[i]);
    }
    kni_rans_to_positions(positions, tokens, step, n_tokens);
}

void kni_rans_to_tokens_avx2(uint8_t *tokens, const uint8_t *positions, uint32_t n_tokens)
{
    uint32_t n_steps = n_tokens / KNI_RANS_LANES, step = 0;
    for (; step + 8 <= n_steps; step += 8) {
        __m256i v[8];
        for (uint32_t i = 0; i < 8; i++)
            v[i] = load(positions + (step + i) * KNI_RANS_LANES);
        interleave(v);
        for (uint32_t i = 0; i < 8; i++) { /* lanes 2 i and 2 i + 1, and 16 more */
            uint8_t *to = tokens + step + 2 * i * n_steps;
            __m128i low = _mm256_castsi256_si128(v[i]), high = _mm256_extracti128_si256(v[i], 1);
            _mm_storel_epi64((__m128i *)to, low);
            _mm_storel_epi64((__m128i *)(to + n_steps), _mm_unpackhi_epi64(low, low));
            _mm_storel_epi64((__m128i *)(to + 16 * n_steps), high);
            _mm_storel_epi64((__m128i *)(to + 17 * n_steps), _mm_unpackhi_epi64(high, high));
        }
    }
    kni_rans_to_tokens(tokens, positions, step, n_tokens);
}

/* ---- encoding */

void kni_rans_notes_avx2(struct kni_rans_row *row, const struct kni_rans_class *c, const uint8_t *tokens, uint32_t n_tokens, uint8_t *tables, uint8_t *coded)
{
    struct rules rules = rules_get(c);
    __m256i before = _mm256_setzero_si256(), left = before, two = before;
    kni_rans_row_begin_avx2(row, n_tokens);
    to_positions(row->symbols, tokens, n_tokens);
    for (uint32_t p = 0; p < n_tokens; p += KNI_RANS_LANES) {
        if (rules.above) {
            before = before_of(to_signed(load(row->above + p)), _mm256_setzero_si256());
            left = left_of(&rules, before);
        }
        __m256i s = load(row->symbols + p), t = tables_of(&rules, load(row->loud + p), left), e = flip(s, before);
        if (p + KNI_RANS_LANES <= n_tokens) {
            store(tables + p, t);
            store(coded + p, e);
        } else { /* coded lies right behind tables, so no byte too many */
            _mm_storeu_si128((__m128i *)(tables + p), _mm256_castsi256_si128(t));
            _mm_storeu_si128((__m128i *)(coded + p), _mm256_castsi256_si128(e));
        }
        __m256i one = to_signed(s);
        before = before_of(one, two);
        two = one;
        left = left_of(&rules, before);
    }
    kni_rans_row_end_avx2(row, n_tokens, c);
}

/* kni_rans_put_code for eight lanes. */
static inline __m256i put(const struct kni_rans_model *m, __m256i x, __m256i tables, __m256i what, __m256i recip, uint8_t **at)
{
    const __m256i low12 = _mm256_set1_epi32(KNI_RANS_SCALE - 1);
    __m256i freq = _mm256_and_si256(what, low12), first = _mm256_and_si256(_mm256_srli_epi32(what, 12), low12), rank;
    __m256i pieces = _mm256_and_si256(_mm256_srli_epi32(what, 24), _mm256_set1_epi32(127)), whole = _mm256_slli_epi32(pieces, KNI_RANS_BUCKET_BITS);
    __m256i q = rans_divide_avx2(rans_emit_avx2(x, freq, at), freq, recip, &rank);
    __m256i in_piece = _mm256_cmpgt_epi32(whole, rank);
    __m256i index = _mm256_blendv_epi8(_mm256_sub_epi32(rank, _mm256_sub_epi32(whole, pieces)), _mm256_srli_epi32(rank, KNI_RANS_BUCKET_BITS), in_piece);
    index = _mm256_add_epi32(_mm256_add_epi32(index, first), _mm256_mullo_epi32(tables, _mm256_set1_epi32(KNI_RANS_SLOTS_STRIDE)));
    /* 32 bits for each 16: what the last slot reads beyond is in its table's unused end */
    __m256i slot = _mm256_and_si256(_mm256_i32gather_epi32((const int *)(const void *)m->slots, index, 2), low12);
    __m256i within = _mm256_and_si256(_mm256_and_si256(rank, in_piece), _mm256_set1_epi32(KNI_RANS_BUCKET_SLOTS - 1));
    return _mm256_or_si256(_mm256_slli_epi32(q, KNI_RANS_BITS), _mm256_add_epi32(slot, within));
}

static void put_escapes(const struct kni_rans_model *m, __m256i x[VECTORS], uint8_t **at, uint32_t n, const uint8_t *tables, const uint8_t *coded)
{
    uint32_t lanes[KNI_RANS_LANES];
    for (uint32_t k = 0; k < VECTORS; k++)
        store(lanes + 8 * k, x[k]);
    for (uint32_t lane = n; lane--;)
        if (m->codes[tables[lane]][coded[lane]].what & KNI_RANS_RAW)
            lanes[lane] = kni_rans_put_raw(lanes[lane], at, coded[lane], 8);
    for (uint32_t k = 0; k < VECTORS; k++)
        x[k] = load(lanes + 8 * k);
}

bool kni_rans_encode_row_avx2(const struct kni_rans_model *m, uint32_t states[KNI_RANS_LANES], uint8_t **at, const uint8_t *floor, uint32_t n_tokens,
                              const uint8_t *tables, const uint8_t *coded)
{
    const int *codes = (const int *)(const void *)m->codes;
    uint8_t *to = *at;
    bool room = true;
    __m256i x[VECTORS];
    for (uint32_t k = 0; k < VECTORS; k++)
        x[k] = load(states + 8 * k);
    for (uint32_t end = n_tokens; end;) {
        uint32_t n = end % KNI_RANS_LANES ? end % KNI_RANS_LANES : KNI_RANS_LANES, p = end - n;
        room = to - floor >= KNI_RANS_STEP_ROOM;
        if (!room)
            break;
        __m256i table[VECTORS], what[VECTORS], recip[VECTORS], any = _mm256_setzero_si256();
        for (uint32_t k = 0; k < n / 8; k++) {
            table[k] = _mm256_cvtepu8_epi32(_mm_loadl_epi64((const __m128i *)(tables + p + 8 * k)));
            __m256i symbol = _mm256_cvtepu8_epi32(_mm_loadl_epi64((const __m128i *)(coded + p + 8 * k)));
            __m256i index = _mm256_or_si256(_mm256_slli_epi32(table[k], 8), symbol);
            what[k] = _mm256_i32gather_epi32(codes, index, 8);
            recip[k] = _mm256_i32gather_epi32(codes + 1, index, 8);
            any = _mm256_or_si256(any, what[k]);
        }
        if (_mm256_movemask_ps(_mm256_castsi256_ps(any))) /* KNI_RANS_RAW is the sign */
            put_escapes(m, x, &to, n, tables + p, coded + p);
        if (n == KNI_RANS_LANES) {
            x[3] = put(m, x[3], table[3], what[3], recip[3], &to);
            x[2] = put(m, x[2], table[2], what[2], recip[2], &to);
        }
        x[1] = put(m, x[1], table[1], what[1], recip[1], &to);
        x[0] = put(m, x[0], table[0], what[0], recip[0], &to);
        end = p;
    }
    for (uint32_t k = 0; k < VECTORS; k++)
        store(states + 8 * k, x[k]);
    *at = to;
    return room;
}

/* ---- decoding */

/* Lanes of n whose symbol is the escape take their 8 raw bits. */
static bool get_escapes(__m256i x[VECTORS], struct kni_rans_words *words, uint32_t n, __m256i *symbols)
{
    uint32_t lanes[KNI_RANS_LANES], value;
    uint8_t bytes[KNI_RANS_LANES];
    bool good = words->at <= words->end;
    store(bytes, *symbols);
    for (uint32_t k = 0; k < VECTORS; k++)
        store(lanes + 8 * k, x[k]);
    for (uint32_t lane = 0; lane < n && good; lane++)
        if (bytes[lane] == KNI_RANS_ESCAPE) {
            good = kni_rans_get_raw(&lanes[lane], &words->at, words->end, 8, &value);
            bytes[lane] = (uint8_t)value;
        }
    for (uint32_t k = 0; k < VECTORS; k++)
        x[k] = load(lanes + 8 * k);
    *symbols = load(bytes);
    return good;
}

/* kni_rans_get_bucket for eight lanes; symbols come in the low bytes. */
static inline __m256i get(const struct kni_rans_model *m, __m256i *x, __m128i tables, const uint8_t **at)
{
    const __m256i low12 = _mm256_set1_epi32(KNI_RANS_SCALE - 1);
    __m256i slot = _mm256_and_si256(*x, low12), bucket = _mm256_srli_epi32(slot, KNI_RANS_BUCKET_BITS);
    __m256i offset = _mm256_and_si256(slot, _mm256_set1_epi32(KNI_RANS_BUCKET_SLOTS - 1));
    __m256i index = _mm256_add_epi32(_mm256_slli_epi32(_mm256_cvtepu8_epi32(tables), 12 - KNI_RANS_BUCKET_BITS), bucket);
    /* lanes 0 1 4 5 and 2 3 6 7, so that the halves of both fall into order */
    index = _mm256_permute4x64_epi64(index, 0xd8);
    const long long *buckets = (const long long *)(const void *)m->buckets;
    __m256 g0 = _mm256_castsi256_ps(_mm256_i32gather_epi64(buckets, _mm256_castsi256_si128(index), 8));
    __m256 g1 = _mm256_castsi256_ps(_mm256_i32gather_epi64(buckets, _mm256_extracti128_si256(index, 1), 8));
    __m256i own = _mm256_castps_si256(_mm256_shuffle_ps(g0, g1, 0x88)), other = _mm256_castps_si256(_mm256_shuffle_ps(g0, g1, 0xdd));
    __m256i is_own = _mm256_cmpgt_epi32(_mm256_srli_epi32(own, 24), offset);
    __m256i what = _mm256_blendv_epi8(other, own, is_own);
    __m256i rank = _mm256_and_si256(_mm256_add_epi32(_mm256_srli_epi32(what, 12), offset), low12);
    __m256i freq = _mm256_and_si256(what, low12);
    *x = rans_refill_avx2(_mm256_add_epi32(_mm256_mullo_epi32(freq, _mm256_srli_epi32(*x, KNI_RANS_BITS)), rank), at);
    return _mm256_blendv_epi8(_mm256_srli_epi32(other, 24), _mm256_add_epi32(bucket, _mm256_set1_epi32(KNI_RANS_FIRST)), is_own);
}

bool kni_rans_decode_row_avx2(const struct kni_rans_model *m, uint32_t states[KNI_RANS_LANES], struct kni_rans_words *words, uint32_t n_tokens,
                              const struct kni_rans_class *c, struct kni_rans_row *row, uint8_t *tokens)
{
    struct rules rules = rules_get(c);
    __m256i before = _mm256_setzero_si256(), left = before, two = before, x[VECTORS];
    const __m256i order = _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7);
    struct kni_rans_words w = *words;
    for (uint32_t k = 0; k < VECTORS; k++)
        x[k] = load(states + 8 * k);
    kni_rans_row_begin_avx2(row, n_tokens);
    for (uint32_t p = 0; p < n_tokens; p += KNI_RANS_LANES) {
        bool whole = p + KNI_RANS_LANES <= n_tokens;
        if (rules.above) {
            before = before_of(to_signed(load(row->above + p)), _mm256_setzero_si256());
            left = left_of(&rules, before);
        }
        __m256i tables = tables_of(&rules, load(row->loud + p), left), a, b, d = _mm256_setzero_si256(), e = d;
        __m128i low = _mm256_castsi256_si128(tables), high = _mm256_extracti128_si256(tables, 1);
        a = get(m, &x[0], low, &w.at);
        b = get(m, &x[1], _mm_srli_si128(low, 8), &w.at);
        if (whole) {
            d = get(m, &x[2], high, &w.at);
            e = get(m, &x[3], _mm_srli_si128(high, 8), &w.at);
        }
        __m256i s = _mm256_packus_epi16(_mm256_packus_epi32(a, b), _mm256_packus_epi32(d, e));
        s = _mm256_permutevar8x32_epi32(s, order);
        unsigned escapes = (unsigned)_mm256_movemask_epi8(_mm256_cmpeq_epi8(s, _mm256_set1_epi8((char)KNI_RANS_ESCAPE))) & (whole ? UINT32_MAX : 0xffffu);
        if (__builtin_expect(escapes != 0, 0) && !get_escapes(x, &w, whole ? 32 : 16, &s))
            return false;
        if (w.at > w.end)
            return false;
        s = flip(s, before);
        store(row->symbols + p, s);
        __m256i one = to_signed(s);
        before = before_of(one, two);
        two = one;
        left = left_of(&rules, before);
    }
    for (uint32_t k = 0; k < VECTORS; k++)
        store(states + 8 * k, x[k]);
    *words = w;
    kni_rans_to_tokens_avx2(tokens, row->symbols, n_tokens);
    kni_rans_row_end_avx2(row, n_tokens, c);
    return true;
}
#endif
