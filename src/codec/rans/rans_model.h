/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Inside of the rANS backend (rans.h): what a model is, in which order a row's symbols are coded, and how the table for each is
 * found. Everything that must be the same in the trainer, the references and the SIMD forms stands here once.
 *
 * Order. A row of n tokens is coded in steps of 32 symbols, one a lane; lane l goes through its own run of consecutive tokens:
 *
 *     n_steps = n / 32       position p = step * 32 + lane   <->   token lane * n_steps + step
 *     n % 32 == 16: one more step of 16 lanes                      token n_steps * 32 + lane
 *
 * so that the symbol of the token before (position p - 32) is known when a symbol is decoded, except in the first step.
 *
 * Context. A loud token is loud in most coefficients, so each token has an energy, a decaying sum of the magnitudes of the rows above,
 * weighted so that rows of small and of large symbols tell equally much; what it would be for a token of average loudness is
 * known from the rows' classes alone. Their ratio in eight steps of a third octave, and the magnitude of the two tokens before in three,
 * is a level:
 *
 *     energy   += min(|s|, cap) * weight                and expected += expect (of the class), after each row;
 *     energy   -= (energy + 32) >> 6                    and expected -= expected >> 6, after each second row
 *     loud      = how many of expected * 2^(-1, -2/3 .. 1) the energy reaches
 *     before    = 2 * s of the token before + s of that before it, as far as there are any, in -128..127; for classes of exponents
 *                 2 * s of the row above in place of both
 *     level     = loud | left[min(|before| >> shift, 15)]; in the first step loud alone (not for exponents)
 *     table     = map[class][level]
 *
 * Measured on real matrices against tables without context: 0.2 % from each row's own entropy in place of 4.3 %; windows of 64 to 160
 * rows are alike; energies of neighbouring tokens, a row's own running mean and the rows next above bring nothing more.
 *
 * Sign. Neighbours have the same sign more often than not: when before is negative, -s is coded in place of s, so that the tables
 * (which are not symmetric) say how much.
 *
 * Tables are shared: the trainer merges contexts with like distributions, of whatever class, until few are left. They code the
 * symbols 65..191; 64 is the escape: 8 raw bits follow, after all 32 symbols of the step, in order of lanes.
 *
 * Slots. A plain table of 4096 slots takes 16 KiB, and a row uses a dozen tables at random: they fall out of the caches, which cost
 * more than all the rest together. So slots are dealt out by the alias method (Walker 1977; for rANS, Giesen 2014): 128 buckets of
 * 32 slots, each with at most two symbols, its own (64 + bucket) below a divider and some other one above. Eight bytes a bucket,
 * 1 KiB a table. An encoder must find the slot of each rank of a symbol. Most buckets have no own symbol of any frequency and hold
 * one piece of 32 ranks: these come first, so that a short list of pieces and one of the single slots of what remains suffice.
 */
#ifndef KNI_CODEC_RANS_MODEL_H
#define KNI_CODEC_RANS_MODEL_H

#include "codec/rans/rans_core.h"
#include "codec/rans/rans_stats.h"

#define KNI_RANS_MAX_TOKENS 1024u
#define KNI_RANS_LEVELS 32u
#define KNI_RANS_LOUD_STEPS 8u
#define KNI_RANS_MAX_TABLES 128u
#define KNI_RANS_FIRST 64u /* symbols of a table: 64 .. 191 */
#define KNI_RANS_SYMBOLS 128u
#define KNI_RANS_BUCKET_BITS 5u
#define KNI_RANS_BUCKET_SLOTS (1u << KNI_RANS_BUCKET_BITS)
#define KNI_RANS_ESCAPE 64u
#define KNI_RANS_RAW 0x80000000u /* in a code: 8 raw bits follow the symbol */
#define KNI_RANS_ZERO 128u
#define KNI_RANS_FIRST_ENERGY 64u
#define KNI_RANS_MAX_GAIN 250u /* of a row: keeps energies below 2^15 */

/* How a class finds its tables. */
struct kni_rans_class {
    uint16_t expect;      /* mean gain of energy in a row, times 256 */
    uint8_t weight, cap;  /* weight * cap at most KNI_RANS_MAX_GAIN */
    uint8_t shift;        /* at most 7 */
    uint8_t above;        /* 1: before is of the row above */
    uint8_t left[16];     /* 8, 16 or 24 */
    uint8_t map[KNI_RANS_LEVELS]; /* below n_tables */
};

/* A slot's offset in its bucket is below own >> 24: own says what it is, otherwise other does. Of either: bits 0..11 freq, 12..23 what
 * to add to the offset (modulo 4096) for the symbol's rank; other's symbol in bits 24..31. */
struct kni_rans_bucket { uint32_t own, other; };
_Static_assert(sizeof(struct kni_rans_bucket) == 8, "SIMD forms gather it whole");

/* For the encoder. what: bits 0..11 freq, 12..23 first, 24..30 pieces, 31 KNI_RANS_RAW. Rank i's slot is
 *
 *     i < 32 * pieces:  slots[first + i / 32] + i % 32         otherwise: slots[first + i - 31 * pieces]
 */
struct kni_rans_code { uint32_t what, recip; }; /* recip as in struct kni_rans_symbol */
_Static_assert(sizeof(struct kni_rans_code) == 8, "SIMD forms gather its halves");

/* Not a power of two, so that the tables' first and busiest entries do not fall into the same cache sets. */
#define KNI_RANS_SLOTS_STRIDE (KNI_RANS_SCALE + 256u)

struct kni_rans_model {
    uint32_t n_tables;
    struct kni_rans_class classes[KNI_RANS_MAX_CLASSES];
    uint16_t (*freq)[256];               /* [n_tables], by symbol */
    struct kni_rans_code (*codes)[256];  /* [n_tables], for the encoder; what goes by escape has the escape's, and KNI_RANS_RAW */
    uint16_t (*slots)[KNI_RANS_SLOTS_STRIDE]; /* [n_tables], for the encoder */
    struct kni_rans_bucket (*buckets)[KNI_RANS_SYMBOLS]; /* [n_tables], for the decoder */
};

/* A decoder's place in the words. A row may read 64 bytes beyond end, or cannot get there. */
struct kni_rans_words { const uint8_t *at, *end; };

/* More than any row takes: a word for each symbol, one for each escape, and what SIMD reads beyond. */
#define KNI_RANS_ROW_BYTES (4u * KNI_RANS_MAX_TOKENS + 64u)

/* Scratch of a decoder, and the head of an encoder's. 64-byte aligned inside of the caller's bytes. */
struct kni_rans_row {
    uint8_t tail[KNI_RANS_ROW_BYTES + 64]; /* the stream's last words, with room to read beyond */
    int16_t energy[KNI_RANS_MAX_TOKENS]; /* by position, as all of these; never negative */
    uint8_t loud[KNI_RANS_MAX_TOKENS];
    uint8_t symbols[KNI_RANS_MAX_TOKENS];
    uint8_t above[KNI_RANS_MAX_TOKENS]; /* symbols of the row above */
    uint32_t expected, n_rows; /* times 256; rows ended */
};

static inline const struct kni_rans_class *kni_rans_class_get(const struct kni_rans_model *m, uint8_t class)
{
    return &m->classes[class < KNI_RANS_MAX_CLASSES ? class : KNI_RANS_MAX_CLASSES - 1];
}

static inline uint32_t kni_rans_magnitude(uint8_t symbol)
{
    return symbol < KNI_RANS_ZERO ? KNI_RANS_ZERO - symbol : symbol - KNI_RANS_ZERO;
}

/* Its own inverse; 0 stays 0. */
static inline uint8_t kni_rans_flip(uint8_t symbol, bool negative)
{
    return negative ? (uint8_t)-symbol : symbol;
}

/* Before the first row. */
static inline void kni_rans_row_reset(struct kni_rans_row *row)
{
    for (uint32_t p = 0; p < KNI_RANS_MAX_TOKENS; p++)
        row->energy[p] = KNI_RANS_FIRST_ENERGY;
    for (uint32_t p = 0; p < KNI_RANS_MAX_TOKENS; p++)
        row->above[p] = KNI_RANS_ZERO;
    row->expected = KNI_RANS_FIRST_ENERGY << 8;
    row->n_rows = 0;
}

/* A token whose energy is above so many of these is so loud. */
static inline void kni_rans_loud_steps(const struct kni_rans_row *row, int16_t below[KNI_RANS_LOUD_STEPS - 1])
{
    static const uint16_t steps[KNI_RANS_LOUD_STEPS - 1] = {8192, 10321, 13004, 16384, 20643, 26008, 32768}; /* 2^14 for 1 */
    for (uint32_t i = 0; i < KNI_RANS_LOUD_STEPS - 1; i++) {
        uint64_t t = (uint64_t)row->expected * steps[i] >> 22;
        below[i] = (int16_t)(t < 1 ? 0 : t > 32767 ? 32766 : t - 1);
    }
}

/* A row ends: what is expected moves on. True when energies decay. */
static inline bool kni_rans_expect(struct kni_rans_row *row, const struct kni_rans_class *c)
{
    bool decay = row->n_rows++ & 1;
    row->expected += c->expect;
    row->expected -= decay ? row->expected >> 6 : 0;
    return decay;
}

static inline int kni_rans_clamp8(int v)
{
    return v < -128 ? -128 : v > 127 ? 127 : v;
}

/* What is known before position p is decoded. */
static inline int kni_rans_before(const struct kni_rans_row *row, const struct kni_rans_class *c, uint32_t p)
{
    int one = 0, two = 0;
    if (c->above)
        one = row->above[p] - (int)KNI_RANS_ZERO;
    else if (p >= KNI_RANS_LANES)
        one = row->symbols[p - KNI_RANS_LANES] - (int)KNI_RANS_ZERO;
    if (!c->above && p >= 2 * KNI_RANS_LANES)
        two = row->symbols[p - 2 * KNI_RANS_LANES] - (int)KNI_RANS_ZERO;
    return kni_rans_clamp8(kni_rans_clamp8(2 * one) + two); /* clamped twice, as SIMD does */
}

static inline uint32_t kni_rans_level(const struct kni_rans_class *c, uint8_t loud, uint32_t p, int before)
{
    int v = (before < 0 ? -before : before) >> c->shift;
    return p < KNI_RANS_LANES && !c->above ? loud : loud | c->left[v < 15 ? v : 15];
}

/* Codes a symbol; *at as in kni_rans_emit. */
static inline uint32_t kni_rans_put_code(uint32_t x, uint8_t **at, uint32_t what, const uint16_t slots[KNI_RANS_SLOTS_STRIDE])
{
    uint32_t freq = what & (KNI_RANS_SCALE - 1), first = what >> 12 & (KNI_RANS_SCALE - 1), pieces = what >> 24 & 127;
    x = kni_rans_emit(x, at, freq);
    uint32_t rank = x % freq, whole = pieces * KNI_RANS_BUCKET_SLOTS;
    uint32_t slot = rank < whole ? slots[first + rank / KNI_RANS_BUCKET_SLOTS] + rank % KNI_RANS_BUCKET_SLOTS : slots[first + pieces + rank - whole];
    return x / freq << KNI_RANS_BITS | slot;
}

/* Decodes one. False: no word left. */
static inline bool kni_rans_get_bucket(uint32_t *x, struct kni_rans_words *words, const struct kni_rans_bucket buckets[KNI_RANS_SYMBOLS], uint8_t *symbol)
{
    uint32_t slot = *x & (KNI_RANS_SCALE - 1), offset = slot & (KNI_RANS_BUCKET_SLOTS - 1);
    const struct kni_rans_bucket *b = &buckets[slot >> KNI_RANS_BUCKET_BITS];
    bool own = offset < b->own >> 24;
    uint32_t what = own ? b->own : b->other;
    *symbol = (uint8_t)(own ? KNI_RANS_FIRST + (slot >> KNI_RANS_BUCKET_BITS) : what >> 24);
    *x = (what & (KNI_RANS_SCALE - 1)) * (*x >> KNI_RANS_BITS) + (((what >> 12) + offset) & (KNI_RANS_SCALE - 1));
    return kni_rans_refill(x, &words->at, words->end);
}

/* Between a row of tokens and its positions, from this step on. */
static inline void kni_rans_to_positions(uint8_t *positions, const uint8_t *tokens, uint32_t first_step, uint32_t n_tokens)
{
    uint32_t n_steps = n_tokens / KNI_RANS_LANES;
    for (uint32_t lane = 0; lane < KNI_RANS_LANES; lane++)
        for (uint32_t step = first_step; step < n_steps; step++)
            positions[step * KNI_RANS_LANES + lane] = tokens[lane * n_steps + step];
    for (uint32_t p = n_steps * KNI_RANS_LANES; p < n_tokens; p++)
        positions[p] = tokens[p];
}

static inline void kni_rans_to_tokens(uint8_t *tokens, const uint8_t *positions, uint32_t first_step, uint32_t n_tokens)
{
    uint32_t n_steps = n_tokens / KNI_RANS_LANES;
    for (uint32_t lane = 0; lane < KNI_RANS_LANES; lane++)
        for (uint32_t step = first_step; step < n_steps; step++)
            tokens[lane * n_steps + step] = positions[step * KNI_RANS_LANES + lane];
    for (uint32_t p = n_steps * KNI_RANS_LANES; p < n_tokens; p++)
        tokens[p] = positions[p];
}

/* Before a row: how loud each of its tokens is. */
static inline void kni_rans_row_begin(struct kni_rans_row *row, uint32_t n_tokens)
{
    int16_t below[KNI_RANS_LOUD_STEPS - 1];
    kni_rans_loud_steps(row, below);
    for (uint32_t p = 0; p < n_tokens; p++) {
        row->loud[p] = 0;
        for (uint32_t i = 0; i < KNI_RANS_LOUD_STEPS - 1; i++)
            row->loud[p] = (uint8_t)(row->loud[p] + (row->energy[p] > below[i]));
    }
}

/* After a row, whose symbols stand in row->symbols: energies move on. */
static inline void kni_rans_row_end(struct kni_rans_row *row, uint32_t n_tokens, const struct kni_rans_class *c)
{
    bool decay = kni_rans_expect(row, c);
    for (uint32_t p = 0; p < n_tokens; p++) {
        uint32_t v = kni_rans_magnitude(row->symbols[p]);
        uint32_t e = (uint32_t)row->energy[p] + (v < c->cap ? v : c->cap) * c->weight;
        row->energy[p] = (int16_t)(decay ? e - (e + 32) / 64 : e);
        row->above[p] = row->symbols[p];
    }
}

/* A row before coding: each symbol's table, and what is coded (the sign turned), by position; row->energy moves on. The reference; the
 * trainer's, too. */
void kni_rans_notes_ref(struct kni_rans_row *row, const struct kni_rans_class *c, const uint8_t *tokens, uint32_t n_tokens, uint8_t *tables,
                        uint8_t *coded);

#endif
