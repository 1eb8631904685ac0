/* SPDX-License-Identifier: Apache-2.0 */
/*
 * How K and V lie in the pool's memory. Everyone who touches them (attention, codec, pool) goes through these few lines.
 *
 * A block holds block_tokens (16) consecutive positions of one sequence, all layers. Inside a block, 16-bit values:
 *
 *     [layer][K then V][kv head][token in block][d_head]
 *
 * so that one head's tokens of a block are contiguous (attention streams them) and a block is one contiguous piece (the
 * codec, eviction and slabs move it). Keys are stored rotated (after RoPE).
 *
 * Pairs that RoPE rotates: with KNI_ROPE_STYLE_NORM components (2i, 2i+1) of a head, with _NEOX (i, i + d/2).
 */
#ifndef KNI_DEVICE_KV_VIEW_H
#define KNI_DEVICE_KV_VIEW_H

#include <stddef.h>
#include <stdint.h>

#include "kinema/engine.h"

#define KNI_BLOCK_TOKENS 16u

struct kni_kv_layout {
    uint32_t n_layer, n_kv_head, d_head;
    enum kn_kv_type type;
};

/* A sequence's K and V: position p is token p % 16 of block block_ids[p / 16]. Borrowed pointers. */
struct kni_kv_view {
    struct kni_kv_layout layout;
    uint16_t *base;            /* block 0 of the pool */
    const uint32_t *block_ids; /* block table */
    uint32_t n_blocks;         /* entries in block_ids */
};

/* 16-bit values of one (layer, K or V) part of a block. */
static inline size_t kni_kv_part_values(const struct kni_kv_layout *l)
{
    return (size_t)l->n_kv_head * KNI_BLOCK_TOKENS * l->d_head;
}

static inline size_t kni_kv_block_values(const struct kni_kv_layout *l)
{
    return kni_kv_part_values(l) * 2 * l->n_layer;
}

static inline size_t kni_kv_block_bytes(const struct kni_kv_layout *l)
{
    return kni_kv_block_values(l) * 2;
}

/* Raw bytes of one token, all layers, K and V. */
static inline size_t kni_kv_token_bytes(const struct kni_kv_layout *l)
{
    return kni_kv_block_bytes(l) / KNI_BLOCK_TOKENS;
}

/* First of the d_head values of (layer, is_v, head) at position pos. Next position in the same block is d_head further,
 * next head KNI_BLOCK_TOKENS * d_head further. */
static inline uint16_t *kni_kv_row(const struct kni_kv_view *v, uint32_t layer, uint32_t is_v, uint32_t head, uint32_t pos)
{
    const struct kni_kv_layout *l = &v->layout;
    size_t part = ((size_t)layer * 2 + is_v) * kni_kv_part_values(l);
    return v->base + v->block_ids[pos / KNI_BLOCK_TOKENS] * kni_kv_block_values(l) + part +
           ((size_t)head * KNI_BLOCK_TOKENS + pos % KNI_BLOCK_TOKENS) * l->d_head;
}

/* The pattern of infinity. Without their signs, 16-bit floats order as integers, so what is below it is finite. */
static inline uint16_t kni_kv_infinity(enum kn_kv_type type)
{
    return type == KN_KV_TYPE_F16 ? 0x7c00 : 0x7f80;
}

/* The largest of n values without their signs. */
static inline uint16_t kni_kv_largest(const uint16_t *values, size_t n)
{
    int16_t largest = 0;
    for (size_t i = 0; i < n; i++) {
        int16_t size = (int16_t)(values[i] & 0x7fff);
        largest = size > largest ? size : largest;
    }
    return (uint16_t)largest;
}

#endif
