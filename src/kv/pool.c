/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Free blocks and cached blocks are two doubly linked lists through one array of links. The free list is a stack: the block
 * given back last is the one most likely in a processor cache. The cached list is a queue ordered by the time of release:
 * a sequence releases its blocks last first (kv/seq.c), so that of one prefix the tail is evicted before the head, and what
 * remains stays reachable.
 *
 * The region is memory of a device (device/device.h). A head's part of a block is 2 kB, the next block's is hundreds of
 * kilobytes further: with pages of 4 kB attention would miss the translation cache at each, so the CPU's device asks
 * for pages of 2 MB.
 */
#include "kv/pool.h"

#include <assert.h>

#include "base/alloc.h"
#include "base/status.h"
#include "device/cpu/device_cpu.h"

struct list { uint32_t first, last, n; };

struct block {
    uint32_t n_refs;
    uint32_t prev, next; /* in free or cached while n_refs is 0 */
    uint8_t quality;     /* enum kn_kv_quality */
};

struct kni_pool {
    struct kni_kv_layout layout;
    uint32_t n_blocks;
    bool has_index;
    size_t bytes;
    struct kni_device *device;
    struct kni_device_addr at; /* of all; bytes bytes */
    struct kni_kv_view all;    /* without a table */
    struct block *blocks;
    struct list free, cached; /* cached: least recently used first */
    struct kni_prefix_index index;
    uint64_t n_returned;
};

static void list_push(struct kni_pool *pool, struct list *list, uint32_t i, bool at_front)
{
    struct block *b = &pool->blocks[i];
    b->prev = at_front ? KNI_NO_BLOCK : list->last;
    b->next = at_front ? list->first : KNI_NO_BLOCK;
    if (b->prev != KNI_NO_BLOCK)
        pool->blocks[b->prev].next = i;
    else
        list->first = i;
    if (b->next != KNI_NO_BLOCK)
        pool->blocks[b->next].prev = i;
    else
        list->last = i;
    list->n++;
}

static void list_remove(struct kni_pool *pool, struct list *list, uint32_t i)
{
    struct block *b = &pool->blocks[i];
    if (b->prev != KNI_NO_BLOCK)
        pool->blocks[b->prev].next = b->next;
    else
        list->first = b->next;
    if (b->next != KNI_NO_BLOCK)
        pool->blocks[b->next].prev = b->prev;
    else
        list->last = b->prev;
    b->prev = b->next = KNI_NO_BLOCK;
    list->n--;
}

enum kn_status kni_pool_open(struct kni_pool **out, const struct kni_pool_opts *opts, struct kn_err *err)
{
    struct kni_device *device = opts->device ? opts->device : kni_device_cpu();
    enum kn_status status = KN_E_NOMEM;
    struct kni_pool *pool = NULL;
    size_t bytes;

    *out = NULL;
    if (!opts->n_blocks || opts->n_blocks >= KNI_NO_BLOCK / 2 || !kni_kv_block_bytes(&opts->layout))
        return kni_err_set(err, KN_E_ARG, "the pool has no block: give it at least %zu bytes", kni_kv_block_bytes(&opts->layout));
    if (!kni_mul_size(opts->n_blocks, kni_kv_block_bytes(&opts->layout), &bytes))
        return kni_err_set(err, KN_E_ARG, "a pool of %u blocks does not fit the address space: make it smaller", opts->n_blocks);
    pool = kni_calloc(KNI_ALLOC_TAG_POOL, sizeof *pool, 0);
    if (!pool)
        goto done;
    pool->layout = opts->layout;
    pool->n_blocks = opts->n_blocks;
    pool->has_index = !opts->no_prefix_index;
    pool->free = pool->cached = (struct list){KNI_NO_BLOCK, KNI_NO_BLOCK, 0};
    pool->device = device;
    pool->bytes = bytes;
    if ((status = device->ops->alloc(device, KNI_ALLOC_TAG_POOL, bytes, &pool->at, err)))
        goto done;
    status = KN_E_NOMEM;
    pool->blocks = kni_calloc(KNI_ALLOC_TAG_POOL, (size_t)opts->n_blocks * sizeof *pool->blocks, 64);
    if (!pool->blocks)
        goto done;
    pool->all = opts->order == KNI_POOL_ORDER_LAYER ? kni_kv_pool_by_layer(&opts->layout, device, pool->at, opts->n_blocks)
                                                    : kni_kv_pool_by_block(&opts->layout, device, pool->at);
    if (pool->has_index && kni_prefix_index_init(&pool->index, opts->n_blocks))
        goto done;
    for (uint32_t i = 0; i < opts->n_blocks; i++)
        list_push(pool, &pool->free, i, false);
    *out = pool;
    pool = NULL;
    status = KN_OK;
done:
    kni_pool_close(&pool);
    if (status == KN_E_NOMEM)
        return kni_err_set(err, status, "no memory for a pool of %zu bytes: set a smaller pool", bytes);
    return status;
}

void kni_pool_close(struct kni_pool **pool)
{
    struct kni_pool *p = *pool;
    if (!p)
        return;
    kni_prefix_index_fini(&p->index);
    kni_free(p->blocks);
    if (p->at.at) /* where the device refuses, its close says what is left */
        p->device->ops->free(p->device, p->at, p->bytes, NULL);
    kni_free(p);
    *pool = NULL;
}

struct kni_kv_layout kni_pool_layout(const struct kni_pool *pool)
{
    return pool->layout;
}

struct kni_kv_view kni_pool_view(const struct kni_pool *pool, const uint32_t *block_ids, uint32_t n_blocks)
{
    struct kni_kv_view view = pool->all;
    view.block_ids = block_ids;
    view.n_blocks = n_blocks;
    return view;
}

struct kni_device *kni_pool_device(const struct kni_pool *pool)
{
    return pool->device;
}

struct kni_pool_stats kni_pool_get_stats(const struct kni_pool *pool)
{
    return (struct kni_pool_stats){.n_blocks = pool->n_blocks, .n_free_blocks = pool->free.n, .n_cached_blocks = pool->cached.n};
}

uint32_t kni_pool_available(const struct kni_pool *pool)
{
    return pool->free.n + pool->cached.n;
}

struct kni_prefix_index *kni_pool_index(struct kni_pool *pool)
{
    return pool->has_index ? &pool->index : NULL;
}

static bool is_indexed(const struct kni_pool *pool, uint32_t block)
{
    return pool->has_index && kni_prefix_index_has(&pool->index, block);
}

bool kni_pool_take(struct kni_pool *pool, uint32_t *block)
{
    uint32_t i = pool->free.first;
    if (i != KNI_NO_BLOCK) {
        list_remove(pool, &pool->free, i);
    } else {
        i = pool->cached.first;
        if (i == KNI_NO_BLOCK)
            return false;
        list_remove(pool, &pool->cached, i);
        kni_prefix_index_remove(&pool->index, i);
    }
    pool->blocks[i].n_refs = 1;
    pool->blocks[i].quality = KN_KV_QUALITY_EXACT;
    *block = i;
    return true;
}

void kni_pool_ref(struct kni_pool *pool, uint32_t block)
{
    assert(block < pool->n_blocks);
    if (pool->blocks[block].n_refs++ == 0) {
        assert(is_indexed(pool, block)); /* a free block has nothing to share */
        list_remove(pool, &pool->cached, block);
    }
}

void kni_pool_unref(struct kni_pool *pool, uint32_t block)
{
    assert(block < pool->n_blocks && pool->blocks[block].n_refs);
    if (--pool->blocks[block].n_refs)
        return;
    pool->n_returned++;
    if (is_indexed(pool, block))
        list_push(pool, &pool->cached, block, false);
    else
        list_push(pool, &pool->free, block, true);
}

uint32_t kni_pool_refs(const struct kni_pool *pool, uint32_t block)
{
    return pool->blocks[block].n_refs;
}

bool kni_pool_is_writable(const struct kni_pool *pool, uint32_t block)
{
    return pool->blocks[block].n_refs == 1 && !is_indexed(pool, block);
}

/* False: the device failed. */
static bool copy_block(struct kni_pool *pool, uint32_t to, uint32_t from)
{
    const struct kni_device_ops *ops = pool->device->ops;
    const size_t bytes = kni_kv_part_values(&pool->layout) * 2;
    if (pool->all.block_stride == kni_kv_block_values(&pool->layout)) /* in one piece */
        return !ops->copy_block(pool->device, NULL, kni_kv_part_addr(&pool->all, 0, 0, to), kni_kv_part_addr(&pool->all, 0, 0, from),
                                kni_kv_block_bytes(&pool->layout), NULL);
    for (uint32_t k = 0; k < 2 * pool->layout.n_layer; k++)
        if (ops->copy_block(pool->device, NULL, kni_kv_part_addr(&pool->all, k / 2, k % 2, to), kni_kv_part_addr(&pool->all, k / 2, k % 2, from), bytes, NULL))
            return false;
    return true;
}

bool kni_pool_make_writable(struct kni_pool *pool, uint32_t *block)
{
    uint32_t old = *block, copy;
    assert(old < pool->n_blocks && pool->blocks[old].n_refs);
    if (kni_pool_is_writable(pool, old))
        return true;
    if (kni_pool_take(pool, &copy)) {
        if (!copy_block(pool, copy, old)) {
            kni_pool_unref(pool, copy);
            return false;
        }
        pool->blocks[copy].quality = pool->blocks[old].quality;
        kni_pool_unref(pool, old);
        *block = copy;
        return true;
    }
    if (pool->blocks[old].n_refs > 1)
        return false;
    kni_prefix_index_remove(&pool->index, old);
    return true;
}

enum kn_kv_quality kni_pool_quality(const struct kni_pool *pool, uint32_t block)
{
    return (enum kn_kv_quality)pool->blocks[block].quality;
}

void kni_pool_set_quality(struct kni_pool *pool, uint32_t block, enum kn_kv_quality quality)
{
    assert(kni_pool_is_writable(pool, block) && quality > KN_KV_QUALITY_DEFAULT && quality < KN_KV_QUALITY_COUNT);
    pool->blocks[block].quality = (uint8_t)quality;
}

bool kni_pool_enter(struct kni_pool *pool, uint32_t block, const struct kni_hash *parent, const struct kni_hash *own,
                    const int32_t tokens[KNI_BLOCK_TOKENS])
{
    const enum kn_kv_quality quality = kni_pool_quality(pool, block);
    uint32_t known = kni_prefix_index_find(&pool->index, own, tokens);
    assert(pool->has_index && pool->blocks[block].n_refs);
    if (known != KNI_NO_BLOCK && kni_pool_quality(pool, known) > quality) {
        kni_prefix_index_remove(&pool->index, known);
        if (!pool->blocks[known].n_refs) { /* it was cached, and cached are only blocks that the index knows */
            list_remove(pool, &pool->cached, known);
            list_push(pool, &pool->free, known, true);
        }
    }
    return kni_prefix_index_insert(&pool->index, block, parent, own, tokens, quality);
}

void kni_pool_forget(struct kni_pool *pool, uint32_t block)
{
    assert(pool->blocks[block].n_refs);
    if (is_indexed(pool, block))
        kni_prefix_index_remove(&pool->index, block);
}

uint64_t kni_pool_n_returned(const struct kni_pool *pool)
{
    return pool->n_returned;
}

/* Walks one list: links, count, and that its blocks are unreferenced and indexed exactly when cached. */
static const char *check_list(const struct kni_pool *pool, const struct list *list, bool cached)
{
    uint32_t n = 0, prev = KNI_NO_BLOCK;
    for (uint32_t i = list->first; i != KNI_NO_BLOCK; i = pool->blocks[i].next) {
        if (i >= pool->n_blocks || pool->blocks[i].prev != prev)
            return "a list of blocks is torn";
        if (pool->blocks[i].n_refs)
            return "a referenced block is in a list";
        if (is_indexed(pool, i) != cached)
            return cached ? "a cached block holds no prefix" : "a free block is in the prefix index";
        if (++n > list->n)
            return "a list of blocks is longer than its count";
        prev = i;
    }
    if (n != list->n || list->last != prev)
        return "a list of blocks is shorter than its count";
    return NULL;
}

const char *kni_pool_check(struct kni_pool *pool)
{
    const char *why = check_list(pool, &pool->free, false);
    if (!why)
        why = check_list(pool, &pool->cached, true);
    uint32_t n_held = 0;
    for (uint32_t i = 0; i < pool->n_blocks; i++)
        n_held += pool->blocks[i].n_refs > 0;
    /* Both lists hold distinct unreferenced blocks and differ by being indexed: the sum tells that none is lost. */
    if (!why && n_held + pool->free.n + pool->cached.n != pool->n_blocks)
        why = "blocks are neither held nor in a list";
    for (uint32_t i = 0; i < pool->n_blocks && !why; i++)
        if (is_indexed(pool, i) && pool->index.entries[i].quality != pool->blocks[i].quality)
            why = "a block and its entry in the prefix index differ in quality";
    if (!why && pool->has_index)
        why = kni_prefix_index_check(&pool->index);
    return why;
}
