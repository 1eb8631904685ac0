/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What layout exact says about a chunk's values before it codes them, stored in the chunk's first section:
 *
 *     a channel   one component of one head in one layer's K or V. Over the chunk's tokens it is roughly normal around a mean
 *     base        lowest cell of its window: cells are quarters of an octave, so the base is its deviation in disguise
 *     mean        in eighths of the deviation, signed
 *     turn        of two key components that RoPE rotates together: by how much their mean turns from token to token
 *
 *     16-bit pattern   [ sign ][ cell ............ ][ raw bits ]
 *     f16                 1     7 (exponent, 2)       8
 *     bf16                1    10 (exponent, 2)       5
 *
 *     symbol = 2 (cell - base) + sign, the sign turned where the mean is negative; 255: none fits, the whole pattern stands aside
 *
 * A symbol's table is chosen by |mean| at its token alone: a channel divided by its deviation is much the same in every layer and
 * model, so 21 tables serve the chunk. Two more mantissa bits in the symbol gain 0.01 bits a value on SmolLM2 and cost escapes.
 *
 * What it is worth there (f16, 256-token chunks, bits a value): high byte by one table a part 13.55, by channel 13.24, keys'
 * means turned 13.05. A normal variable around zero costs 13.46, whatever its deviation: values are close to that, keys are not.
 *
 * Owner: the exact layout of one codec handle.
 */
#ifndef KNI_CODEC_EXACT_MODEL_H
#define KNI_CODEC_EXACT_MODEL_H

#include "codec/exact/exact_loops.h"
#include "codec/rans/rans_core.h"
#include "device/kv_view.h"

#define KNI_EXACT_N_TABLES 21u
#define KNI_EXACT_WINDOW_BELOW 92 /* cells of a window below the deviation's own */
#define KNI_EXACT_MEAN_UNIT 8     /* parts of a deviation */
#define KNI_EXACT_N_PHASES 4096u

/* Which components of a key turn together, i < d_head / 2. */
enum kni_exact_pairs { KNI_EXACT_PAIRS_ADJACENT = 0 /* 2i, 2i + 1 */, KNI_EXACT_PAIRS_HALVES = 1 /* i, i + d_head / 2 */ };

struct kni_exact_model {
    struct kni_kv_layout kv;
    uint32_t raw_bits;
    enum kni_exact_pairs pairs;
    uint16_t freq[KNI_EXACT_N_TABLES][256];
    /* channels [K, V][layer][head][component]: see kni_exact_channel */
    uint16_t *bases;  /* modulo 2^16 */
    int8_t *means;
    uint32_t *turns;  /* [layer][d_head / 2], 2^-32 of a full turn a token, the low 8 bits 0 */
    size_t n_channels, n_turns;
    int16_t cosines[KNI_EXACT_N_PHASES]; /* times 2^14 */
};

/* Memory for channels of this shape, everything zero. Arrays come from kni_alloc. KN_E_NOMEM leaves a model that fini takes. */
bool kni_exact_model_init(struct kni_exact_model *m, const struct kni_kv_layout *kv);
void kni_exact_model_fini(struct kni_exact_model *m);
size_t kni_exact_model_bytes(const struct kni_exact_model *m);

static inline size_t kni_exact_channel(const struct kni_exact_model *m, uint32_t layer, uint32_t is_v, uint32_t head, uint32_t component)
{
    return (((size_t)is_v * m->kv.n_layer + layer) * m->kv.n_kv_head + head) * m->kv.d_head + component;
}

/* The pair of a key's component, and whether it is its second; false: it has none (odd d_head). */
bool kni_exact_pair_of(const struct kni_exact_model *m, uint32_t component, uint32_t *pair, bool *second);
/* The component that is the pair's first or second. */
uint32_t kni_exact_component_of(const struct kni_exact_model *m, uint32_t pair, bool second);

/* Cosine and sine, times 2^14, of a turn at tokens 0 .. n - 1: wave[n], then wave[n]. */
void kni_exact_make_wave(const struct kni_exact_model *m, uint32_t turn, int16_t *wave, uint32_t n);
/* The waves of a layer's pairs, [d_head / 2][2][n]; held, [d_head / 2], says which turns they are of (0: nothing yet), as layers mostly agree. */
void kni_exact_make_waves(const struct kni_exact_model *m, uint32_t layer, uint32_t *held, int16_t *waves, uint32_t n);

/* notes[n]: table and sign (exact_lanes.h) of each token of a channel. waves: its layer's. means: scratch, [n]. True: all notes are the same. */
bool kni_exact_notes(const struct kni_exact_model *m, const struct kni_exact_loops *loops, uint32_t layer, uint32_t is_v, uint32_t head, uint32_t component,
                     const int16_t *waves, int16_t *means, uint8_t *notes, uint32_t n);

/* The model as bytes and back, all integers in planes of bytes, uncompressed. */
size_t kni_exact_model_packed_bytes(const struct kni_exact_model *m);
void kni_exact_model_pack(const struct kni_exact_model *m, uint8_t *out);
/* False: a table that is none, or pairs unknown. data: kni_exact_model_packed_bytes. */
bool kni_exact_model_unpack(struct kni_exact_model *m, const uint8_t *data);

#endif
