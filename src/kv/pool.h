/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The pool: one contiguous region of n_blocks blocks (device/kv_view.h), their reference counts, and what becomes of a
 * block that nobody refers to.
 *
 *             take                     unref to 0, holds a prefix
 *     free ----------> held (refs>0) -----------------------------> cached (LRU list)
 *      ^                 |    ^                                       |      |
 *      |  unref to 0     |    |                ref (prefix match)     |      |
 *      +-----------------+    +---------------------------------------+      |
 *      +---------------------------------------------------------------------+
 *                       evicted, least recently used first, when the free list is empty
 *
 * Rules, asserted by kni_pool_check:
 *   - every block is in exactly one of the three states;
 *   - cached blocks are exactly the unreferenced ones that the prefix index knows;
 *   - a block may be written only while it is held once and the index does not know it (kni_pool_is_writable).
 *
 * Each block carries the quality of what it holds (enum kn_kv_quality), which a copy inherits. Under one prefix the index knows the
 * best block that there was: a worse one leaves it when a better one comes.
 *
 * Nothing is allocated after open. Owner thread: the engine's. Workers that code or restore blocks get views of blocks on
 * which the owner holds a reference.
 */
#ifndef KNI_KV_POOL_H
#define KNI_KV_POOL_H

#include "device/device.h"
#include "kv/prefix_index.h"

struct kni_pool;

/* Where the parts of a block lie (device/kv_view.h). */
enum kni_pool_order { KNI_POOL_ORDER_DEFAULT = 0, KNI_POOL_ORDER_BLOCK, KNI_POOL_ORDER_LAYER };

struct kni_pool_opts {
    struct kni_kv_layout layout;
    uint32_t n_blocks;         /* at least 1 */
    bool no_prefix_index;      /* blocks are never cached */
    struct kni_device *device; /* whose memory the blocks lie in; borrowed until close; NULL: kni_device_cpu() */
    enum kni_pool_order order; /* default: by block */
};

struct kni_pool_stats { uint32_t n_blocks, n_free_blocks, n_cached_blocks; };

/* Memory: n_blocks * kni_kv_block_bytes of the device (ops->alloc); on the CPU page aligned, tag POOL, huge pages where
 * the system gives them, touched only when written. Errors: KN_E_ARG, KN_E_NOMEM, and those of the device. */
enum kn_status kni_pool_open(struct kni_pool **out, const struct kni_pool_opts *opts, struct kn_err *err);
/* No block may be referenced by anyone who still uses it. NULL is fine. */
void kni_pool_close(struct kni_pool **pool);

struct kni_kv_layout kni_pool_layout(const struct kni_pool *pool);
/* A sequence of the pool's blocks; the table is borrowed. */
struct kni_kv_view kni_pool_view(const struct kni_pool *pool, const uint32_t *block_ids, uint32_t n_blocks);
struct kni_device *kni_pool_device(const struct kni_pool *pool);
struct kni_pool_stats kni_pool_get_stats(const struct kni_pool *pool);
/* Blocks that kni_pool_take can still give: free or cached. */
uint32_t kni_pool_available(const struct kni_pool *pool);
/* How often a block has become available again. */
uint64_t kni_pool_n_returned(const struct kni_pool *pool);
/* NULL with no_prefix_index. */
struct kni_prefix_index *kni_pool_index(struct kni_pool *pool);

/* Takes a free block, or evicts the least recently used cached one; its count becomes 1. False when all are held. */
bool kni_pool_take(struct kni_pool *pool, uint32_t *block);
/* One more reference to a block that is held or cached. */
void kni_pool_ref(struct kni_pool *pool, uint32_t block);
/* One less. The last one makes the block cached (most recently used) when it holds a prefix, else free. */
void kni_pool_unref(struct kni_pool *pool, uint32_t block);
uint32_t kni_pool_refs(const struct kni_pool *pool, uint32_t block);
bool kni_pool_is_writable(const struct kni_pool *pool, uint32_t block);
/* Makes *block, on which the caller holds a reference, writable for it: itself, or a copy whose reference takes the place
 * of the old one. Without room for a copy a block held once leaves the index instead. False when nothing can be done. */
bool kni_pool_make_writable(struct kni_pool *pool, uint32_t *block);

/* Of what the block holds; EXACT after kni_pool_take. */
enum kn_kv_quality kni_pool_quality(const struct kni_pool *pool, uint32_t block);
/* The block is writable. */
void kni_pool_set_quality(struct kni_pool *pool, uint32_t block, enum kn_kv_quality quality);
/* Makes a held block, which holds the 16 tokens that lead from parent to own, known to the index. False, and nothing done, when one
 * that is no worse is known under own; a worse one leaves the index for it. */
bool kni_pool_enter(struct kni_pool *pool, uint32_t block, const struct kni_hash *parent, const struct kni_hash *own,
                    const int32_t tokens[KNI_BLOCK_TOKENS]);

/* A block that is held leaves the index, if it is in it: what it holds is not trusted. */
void kni_pool_forget(struct kni_pool *pool, uint32_t block);

/* NULL when every rule above holds, otherwise a sentence about the first one broken. For tests. */
const char *kni_pool_check(struct kni_pool *pool);

#endif
