/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Finds layout exact's model of a chunk: each channel's mean and deviation, and by which angle the mean of a pair of key
 * components turns from token to token. Nothing is known of the model that made them: RoPE's frequencies show in the products of
 * a key with the key some tokens later, whose mean angle, over a layer's heads, is that of the distance:
 *
 *     z = a + i b of a pair;   arg sum z[t + lag] conj(z[t]) = lag * turn,   lag = 1, 2, 4 ... each pinning the angle twice as finely
 *
 * A turn is taken when it saves more bits than it costs; the previous layer's costs less, none costs nothing. So models with
 * several frequency sets, partial or no RoPE, and either pairing are coded, some less well, all exactly.
 *
 * Floats decide here and only here: decoders read the result. Owner: the exact layout of one codec handle.
 */
#ifndef KNI_CODEC_EXACT_FIT_H
#define KNI_CODEC_EXACT_FIT_H

#include "codec/codec.h"
#include "codec/exact/exact_model.h"
#include "kernel/convert.h"

/* A pair in one head: its mean, turned back to the chunk's first token, and its mean square (of both components). */
struct kni_exact_found { float x, y, square; };

struct kni_exact_fit {
    struct kni_exact_model *model; /* filled; borrowed */
    const struct kni_exact_loops *loops;
    kni_from_half_fn from_half; /* of the model's KV type */
    uint32_t n;                 /* tokens */
    float *part;                /* [head][component][n]: scratch, as are the others */
    float *wave;                /* [2][n] */
    int16_t *steps;             /* [2][n] */
    struct kni_exact_found *found; /* [head], of the pair, turn and number of tokens that follow */
    uint32_t found_pair, found_turn, found_n;
};

/* Floats of scratch that a fit needs. False: they do not fit in memory. */
bool kni_exact_fit_floats(const struct kni_kv_layout *kv, uint32_t n_tokens, size_t *n_floats);
/* floats: kni_exact_fit_floats of them; steps: [2][n_tokens]. Everything is borrowed. */
void kni_exact_fit_init(struct kni_exact_fit *f, struct kni_exact_model *model, const struct kni_exact_loops *loops, kni_from_half_fn from_half, uint32_t n_tokens,
                        float *floats, int16_t *steps);
/* One head's values, [component][n], of the part to be fitted next. */
void kni_exact_fit_head(struct kni_exact_fit *f, uint32_t head, const uint16_t *values);
/* Whether pairs of halves turn more than adjacent ones, in the K part whose heads were given. */
enum kni_exact_pairs kni_exact_fit_pairs(struct kni_exact_fit *f);
/* Channels and turns of the part whose heads were given. Layers come in order: a layer looks at the turns of the one before. */
void kni_exact_fit_part(struct kni_exact_fit *f, uint32_t layer, uint32_t is_v);

#endif
