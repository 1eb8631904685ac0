/* SPDX-License-Identifier: Apache-2.0 */
/*
 * How K and V lie in the pool's memory. Everyone who touches them (attention, codec, pool) goes through these few lines.
 *
 * A block holds block_tokens (16) consecutive positions of one sequence, all layers. Its part of one layer, K or V, is in one piece:
 *
 *     [kv head][token in block][d_head]        16-bit values: one head's tokens are contiguous, attention streams them
 *
 * Where parts lie is said by two bases and two strides, so that each pool takes the order that its memory likes:
 *
 *     by block   [block][layer][K then V] part    a block is one piece, which is easily moved; staging and tests
 *     by layer   [layer][K then V][block] part    one layer of a sequence lies together, if its blocks do
 *
 * A view says where a sequence lies on any device, and nobody can look inside. Only a host view has rows: kni_kv_host_of makes one of a view
 * of memory that the processor may touch. Keys are stored rotated (after RoPE).
 *
 * Pairs that RoPE rotates: with KNI_ROPE_STYLE_NORM components (2i, 2i+1) of a head, with _NEOX (i, i + d/2).
 */
#ifndef KNI_DEVICE_KV_VIEW_H
#define KNI_DEVICE_KV_VIEW_H

#include <assert.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include "device/device.h"
#include "kinema/types.h"

#define KNI_BLOCK_TOKENS 16u

struct kni_kv_layout {
    uint32_t n_layer, n_kv_head, d_head;
    enum kn_kv_type type;
};

/* A sequence's K and V in memory that the processor may touch: position p is token p % 16 of block block_ids[p / 16]. Borrowed pointers. */
struct kni_kv_host {
    struct kni_kv_layout layout;
    uint16_t *k, *v;           /* layer 0 of block 0 */
    size_t layer_stride, block_stride; /* 16-bit values from one layer, one block, to the next; of K as of V */
    const uint32_t *block_ids; /* block table */
    uint32_t n_blocks;         /* entries in block_ids */
};

/* The same in any device's memory, which the host cannot dereference. K and V may lie in different ones of its memories. */
struct kni_kv_view {
    struct kni_kv_layout layout;
    struct kni_device *device; /* NULL: the addresses are the host's own pointers */
    struct kni_device_addr k, v;
    size_t layer_stride, block_stride;
    const uint32_t *block_ids;
    uint32_t n_blocks;
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

/* By block, from base on. */
static inline struct kni_kv_host kni_kv_host_by_block(const struct kni_kv_layout *l, uint16_t *base, const uint32_t *block_ids, uint32_t n_blocks)
{
    return (struct kni_kv_host){.layout = *l, .k = base, .v = base ? base + kni_kv_part_values(l) : NULL, .layer_stride = 2 * kni_kv_part_values(l),
                                .block_stride = kni_kv_block_values(l), .block_ids = block_ids, .n_blocks = n_blocks};
}

static inline struct kni_kv_view kni_kv_view_of(const struct kni_kv_host *h)
{
    return (struct kni_kv_view){.layout = h->layout, .k = {(uintptr_t)h->k}, .v = {(uintptr_t)h->v}, .layer_stride = h->layer_stride,
                                .block_stride = h->block_stride, .block_ids = h->block_ids, .n_blocks = h->n_blocks};
}

/* A view of host memory, by block. */
static inline struct kni_kv_view kni_kv_view_by_block(const struct kni_kv_layout *l, uint16_t *base, const uint32_t *block_ids, uint32_t n_blocks)
{
    const struct kni_kv_host h = kni_kv_host_by_block(l, base, block_ids, n_blocks);
    return kni_kv_view_of(&h);
}

/* A pool's blocks from `at` on, without a table: by block; by layer, n_pool_blocks of them. device as in struct kni_kv_view. */
static inline struct kni_kv_view kni_kv_pool_by_block(const struct kni_kv_layout *l, struct kni_device *device, struct kni_device_addr at)
{
    return (struct kni_kv_view){.layout = *l, .device = device, .k = at, .v = {at.at + kni_kv_part_values(l) * 2}, .layer_stride = 2 * kni_kv_part_values(l),
                                .block_stride = kni_kv_block_values(l)};
}

static inline struct kni_kv_view kni_kv_pool_by_layer(const struct kni_kv_layout *l, struct kni_device *device, struct kni_device_addr at,
                                                      size_t n_pool_blocks)
{
    const size_t plane = n_pool_blocks * kni_kv_part_values(l);
    return (struct kni_kv_view){.layout = *l, .device = device, .k = at, .v = {at.at + plane * 2}, .layer_stride = 2 * plane,
                                .block_stride = kni_kv_part_values(l)};
}

/* Where the part of (layer, is_v) of a block of the pool lies; block: its number, not an entry of the table. */
static inline struct kni_device_addr kni_kv_part_addr(const struct kni_kv_view *v, uint32_t layer, uint32_t is_v, uint32_t block)
{
    return (struct kni_device_addr){(is_v ? v->v.at : v->k.at) + (layer * v->layer_stride + block * v->block_stride) * 2};
}

/* Whether the host reaches what the view is of: then kni_kv_host_of makes rows of it. */
static inline bool kni_kv_is_host(const struct kni_kv_view *v)
{
    return !v->device || v->device->ops->host(v->device, v->k);
}

/* The host must reach it. */
static inline struct kni_kv_host kni_kv_host_of(const struct kni_kv_view *v)
{
    struct kni_kv_host h = {.layout = v->layout, .layer_stride = v->layer_stride, .block_stride = v->block_stride, .block_ids = v->block_ids,
                            .n_blocks = v->n_blocks};
    h.k = v->device ? v->device->ops->host(v->device, v->k) : (uint16_t *)(uintptr_t)v->k.at;
    h.v = v->device ? v->device->ops->host(v->device, v->v) : (uint16_t *)(uintptr_t)v->v.at;
    assert(h.k && h.v);
    return h;
}

/* The part of (layer, is_v) of the block at entry i of the table: kni_kv_part_values values. */
static inline uint16_t *kni_kv_part(const struct kni_kv_host *h, uint32_t layer, uint32_t is_v, uint32_t i)
{
    return (is_v ? h->v : h->k) + layer * h->layer_stride + h->block_ids[i] * h->block_stride;
}

/* A whole block: entry i of to's table from entry j of from's, which has the same shape; all bytes of entry i; whether two hold the same bits. */
static inline void kni_kv_block_copy(const struct kni_kv_host *to, uint32_t i, const struct kni_kv_host *from, uint32_t j)
{
    for (uint32_t part = 0; part < 2 * to->layout.n_layer; part++)
        memcpy(kni_kv_part(to, part / 2, part % 2, i), kni_kv_part(from, part / 2, part % 2, j), kni_kv_part_values(&to->layout) * 2);
}

static inline void kni_kv_block_fill(const struct kni_kv_host *h, uint32_t i, int byte)
{
    for (uint32_t part = 0; part < 2 * h->layout.n_layer; part++)
        memset(kni_kv_part(h, part / 2, part % 2, i), byte, kni_kv_part_values(&h->layout) * 2);
}

static inline bool kni_kv_block_equal(const struct kni_kv_host *a, uint32_t i, const struct kni_kv_host *b, uint32_t j)
{
    for (uint32_t part = 0; part < 2 * a->layout.n_layer; part++)
        if (memcmp(kni_kv_part(a, part / 2, part % 2, i), kni_kv_part(b, part / 2, part % 2, j), kni_kv_part_values(&a->layout) * 2))
            return false;
    return true;
}

/* First of the d_head values of (layer, is_v, head) at position pos. Next position in the same block is d_head further,
 * next head KNI_BLOCK_TOKENS * d_head further. */
static inline uint16_t *kni_kv_row(const struct kni_kv_host *h, uint32_t layer, uint32_t is_v, uint32_t head, uint32_t pos)
{
    return kni_kv_part(h, layer, is_v, pos / KNI_BLOCK_TOKENS) + ((size_t)head * KNI_BLOCK_TOKENS + pos % KNI_BLOCK_TOKENS) * h->layout.d_head;
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
