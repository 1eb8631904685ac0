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
 * Context. Magnitudes are correlated along the rows of a token (a loud token is loud in many coefficients) and along tokens.
 * Each token has an energy, a decaying sum of the magnitudes of the rows above; a row's class says how to scale it, and the token
 * before adds to it:
 *
 *     energy' = energy - (energy >> 4) + (min(|s|, 63) << 5)                      after each row
 *     score   = min(255, energy * mul[class] >> 16) + left[class][min(|s before|, 15)], at most 255; first step: left[class][NONE]
 *     table   = map[class][score >> 4]
 *
 * Sign. Neighbours have the same sign more often than not: when the token before is negative, -s is coded in place of s, so
 * that the tables (which are not symmetric) say how much.
 *
 * Tables are shared: the trainer merges contexts with like distributions, of whatever class, until few are left. Symbol 0 (-128,
 * which the spectral layout never makes) is the escape: 8 raw bits follow, after all 32 symbols of the step, in order of lanes.
 */
#ifndef KNI_CODEC_RANS_MODEL_H
#define KNI_CODEC_RANS_MODEL_H

#include "codec/rans.h"
#include "codec/rans_core.h"

#define KNI_RANS_MAX_TOKENS 1024u
#define KNI_RANS_LEVELS 16u
#define KNI_RANS_MAX_TABLES 64u
#define KNI_RANS_ESCAPE 0u
#define KNI_RANS_ZERO 128u
#define KNI_RANS_LEFT_NONE 15u /* magnitudes of 14 and more share a place */

/* How a class finds its tables. */
struct kni_rans_class {
    uint16_t mul;
    uint8_t left[16];
    uint8_t map[KNI_RANS_LEVELS]; /* below n_tables */
};

struct kni_rans_model {
    uint32_t n_tables;
    struct kni_rans_class classes[KNI_RANS_MAX_CLASSES];
    uint16_t (*freq)[256];                 /* [n_tables], by symbol */
    struct kni_rans_symbol (*symbols)[256]; /* [n_tables], for the encoder */
    uint32_t (*slots)[KNI_RANS_SCALE];     /* [n_tables], for the decoder; 64-byte aligned */
};

/* Scratch of a decoder, and the head of an encoder's. 64-byte aligned inside of the caller's bytes. */
struct kni_rans_row {
    uint16_t energy[KNI_RANS_MAX_TOKENS]; /* by position, as all of these */
    uint8_t base[KNI_RANS_MAX_TOKENS];    /* the energy's share of the score */
    uint8_t symbols[KNI_RANS_MAX_TOKENS];
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

/* The energies' share of a row's scores. */
static inline void kni_rans_row_begin(struct kni_rans_row *row, uint32_t n_tokens, uint16_t mul)
{
    for (uint32_t p = 0; p < n_tokens; p++) {
        uint32_t b = (uint32_t)row->energy[p] * mul >> 16;
        row->base[p] = b < 255 ? (uint8_t)b : 255;
    }
}

/* After a row: the largest energy is 16 * 63 * 32, within 16 bits. */
static inline void kni_rans_row_end(struct kni_rans_row *row, uint32_t n_tokens)
{
    for (uint32_t p = 0; p < n_tokens; p++) {
        uint8_t v = (uint8_t)kni_rans_magnitude(row->symbols[p]);
        v = v < 63 ? v : 63;
        row->energy[p] = (uint16_t)(row->energy[p] - (row->energy[p] >> 4) + (v << 5));
    }
}

static inline uint32_t kni_rans_level(const struct kni_rans_class *c, uint8_t base, bool first, uint8_t before)
{
    uint32_t v = kni_rans_magnitude(before);
    uint32_t score = base + c->left[first ? KNI_RANS_LEFT_NONE : v < 14 ? v : 14];
    return (score < 255 ? score : 255) >> 4;
}

/* Between a row of tokens and its positions. */
static inline void kni_rans_to_positions(uint8_t *positions, const uint8_t *tokens, uint32_t n_tokens)
{
    uint32_t n_steps = n_tokens / KNI_RANS_LANES;
    for (uint32_t lane = 0; lane < KNI_RANS_LANES; lane++)
        for (uint32_t step = 0; step < n_steps; step++)
            positions[step * KNI_RANS_LANES + lane] = tokens[lane * n_steps + step];
    for (uint32_t p = n_steps * KNI_RANS_LANES; p < n_tokens; p++)
        positions[p] = tokens[p];
}

static inline void kni_rans_to_tokens(uint8_t *tokens, const uint8_t *positions, uint32_t n_tokens)
{
    uint32_t n_steps = n_tokens / KNI_RANS_LANES;
    for (uint32_t lane = 0; lane < KNI_RANS_LANES; lane++)
        for (uint32_t step = 0; step < n_steps; step++)
            tokens[lane * n_steps + step] = positions[step * KNI_RANS_LANES + lane];
    for (uint32_t p = n_steps * KNI_RANS_LANES; p < n_tokens; p++)
        tokens[p] = positions[p];
}

#endif
