/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The prefix index: which blocks hold which prefix. A block is known under two names, both chain hashes (kv/chain.h):
 *
 *     own hash     of the prefix that ends with this block     -> finds a whole block of a prompt
 *     parent hash  of the prefix that ends just before it      -> finds blocks that may share only their first tokens
 *
 * Two tables of intrusive chains over one array of entries, one entry a block of the pool, so that nothing is allocated
 * after init. The entries keep the block's token ids: they decide how far a partial match goes, and a match of a hash is
 * confirmed by them. The index holds no references; the pool removes a block before it is reused.
 *
 * Owner thread: the pool's.
 */
#ifndef KNI_KV_PREFIX_INDEX_H
#define KNI_KV_PREFIX_INDEX_H

#include <stdbool.h>

#include "base/hash.h"
#include "base/status.h"
#include "device/kv_view.h"

#define KNI_NO_BLOCK UINT32_MAX

struct kni_prefix_entry {
    struct kni_hash own, parent;
    uint32_t own_next, sibling_next; /* chains of the two tables */
    bool used;
    int32_t tokens[KNI_BLOCK_TOKENS];
};

struct kni_prefix_index {
    struct kni_prefix_entry *entries; /* [n_blocks], by block id */
    uint32_t *own_heads, *parent_heads; /* [n_buckets] */
    uint32_t n_blocks, n_buckets; /* n_buckets is a power of two */
    uint32_t n_used;
};

enum kn_status kni_prefix_index_init(struct kni_prefix_index *index, uint32_t n_blocks);
/* A zeroed struct is fine. */
void kni_prefix_index_fini(struct kni_prefix_index *index);

/* Enters block, which holds the 16 tokens that lead from parent to own. False, and nothing done, when some block is already
 * known under own. */
bool kni_prefix_index_insert(struct kni_prefix_index *index, uint32_t block, const struct kni_hash *parent,
                             const struct kni_hash *own, const int32_t tokens[KNI_BLOCK_TOKENS]);
void kni_prefix_index_remove(struct kni_prefix_index *index, uint32_t block);
static inline bool kni_prefix_index_has(const struct kni_prefix_index *index, uint32_t block)
{
    return index->entries[block].used;
}

/* The block known under own that holds these 16 tokens, or KNI_NO_BLOCK. */
uint32_t kni_prefix_index_find(const struct kni_prefix_index *index, const struct kni_hash *own, const int32_t tokens[KNI_BLOCK_TOKENS]);
/* Of the blocks that follow parent, the one that shares the most of the n_tokens first tokens (n_tokens at most 16);
 * *n_shared is their number. KNI_NO_BLOCK and 0 when none shares any. */
uint32_t kni_prefix_index_find_partial(const struct kni_prefix_index *index, const struct kni_hash *parent, const int32_t *tokens,
                                       uint32_t n_tokens, uint32_t *n_shared);
/* NULL when both tables and the entries agree, otherwise what is wrong. */
const char *kni_prefix_index_check(const struct kni_prefix_index *index);

#endif
