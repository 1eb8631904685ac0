/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Weight matrices as the products want them: panels of 16 outputs, interleaved so that a lane of a vector is an output and no
 * sum ever runs across lanes. A panel is packed once, when a model's weights are opened, and has the size of the file's
 * blocks (up to rounding to 64 bytes): the types keep their bits, only the order changes.
 *
 *     panel:    scales of all blocks | values of all blocks          block = 32 inputs of 16 outputs
 *
 *     scales    Q4_0 Q5_0 Q8_0  a block:     f16 d[16]
 *               Q4_1 Q5_1       a block:     f16 d[16] | f16 m[16]
 *               Q4_K Q5_K       8 blocks:    f16 d[16] | f16 dmin[16] | 8 times u8 scale[16] | u8 min[16]
 *               Q6_K            8 blocks:    f16 d[16] | 8 times i8 scale[16] (inputs 0..15) | i8 scale[16] (16..31)
 *     values    32-bit words, one an output, 16 in a row; inputs go in pairs (2s, 2s + 1) for step s of 0..15, the even one in
 *               the low 16 bits of the word, the odd one in the high 16 bits:
 *               nibbles         4 rows; row g, bits 4t..4t+3 of either half: step 4g + t
 *               fifth bits      1 row after the nibbles; bit s of either half: step s
 *               high pairs      2 rows after the nibbles (Q6_K); row r, bits 2t, 2t+1 of either half: step 8r + t
 *               bytes (Q8_0)    8 rows; row r, low byte of either half: step 2r, high byte: step 2r + 1
 *     floats    F32, F16, BF16: no scales; [n_in][16] values
 *
 * Outputs beyond n_out in the last panel are zero. Whoever packs owns the memory; immutable afterwards, any thread.
 */
#ifndef KNI_KERNEL_PANEL_H
#define KNI_KERNEL_PANEL_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/dtype.h"

#define KNI_PANEL_COLS 16u
#define KNI_PANEL_BLOCK 32u
#define KNI_PANEL_CHUNK 24u /* blocks that are multiplied at a time: 768 inputs; a multiple of 8 */

enum kni_panel_values {
    KNI_PANEL_VALUES_FLOAT,
    KNI_PANEL_VALUES_NIBBLE,
    KNI_PANEL_VALUES_NIBBLE1,
    KNI_PANEL_VALUES_NIBBLE2,
    KNI_PANEL_VALUES_BYTE
};

enum kni_panel_scales { KNI_PANEL_SCALES_NONE, KNI_PANEL_SCALES_D, KNI_PANEL_SCALES_DM, KNI_PANEL_SCALES_K, KNI_PANEL_SCALES_K6 };

/* How a type lies in a panel. */
struct kni_panel_form {
    enum kni_panel_values values;
    enum kni_panel_scales scales;
    int32_t offset;        /* taken from every value: 8 for Q4_0 */
    uint32_t block_bytes;  /* values of one block */
    uint32_t value_bytes;  /* of a float type, otherwise 0 */
};

struct kni_panels {
    enum kni_dtype type;
    uint32_t n_out, n_in;
    size_t panel_bytes, values_at; /* of a panel; where its values begin */
    const uint8_t *data;           /* ceil(n_out / 16) panels, 64-byte aligned */
};

const struct kni_panel_form *kni_panel_get_form(enum kni_dtype type);
/* Fills all but data. Bytes of all panels, a multiple of 64; 0 when that does not fit size_t. n_in is a multiple of the
 * type's block. */
size_t kni_panels_init(struct kni_panels *p, enum kni_dtype type, uint32_t n_out, uint32_t n_in);
uint32_t kni_panels_count(const struct kni_panels *p);
/* Packs one panel from src, the matrix in the file's order: n_out rows of blocks. dst has panel_bytes. */
void kni_panel_pack(const struct kni_panels *p, uint32_t panel, const void *src, uint8_t *dst);

/* The n_blocks scales from block0 on, as floats: d[n_blocks][16] (Q6_K: [n_blocks][2][16]) and, for types with a minimum that is added
 * per value, m[n_blocks][16] (K types: negative). block0 is a multiple of 8. */
void kni_panel_scales_ref(const struct kni_panels *p, const uint8_t *panel, uint32_t block0, uint32_t n_blocks, float *d, float *m);
/* One block's values less the offset: out[16 steps][16 outputs][2]. */
void kni_panel_values_ref(const struct kni_panels *p, const uint8_t *panel, uint32_t block, int16_t *out);

static inline bool kni_panel_has_min(enum kni_panel_scales s)
{
    return s == KNI_PANEL_SCALES_DM || s == KNI_PANEL_SCALES_K;
}

#endif
