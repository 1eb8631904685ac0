/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The prefix index: which blocks hold which prefix. A block is known under 16 names:
 *
 *     own hash                      of the prefix that ends with this block (kv/chain.h)   -> finds a whole block of a prompt
 *     parent hash and first k tokens,  k = 1 .. 15                                          -> finds a block that shares only those
 *
 * One block is known under an own hash, the best in quality that was entered; the others stay with those who hold them. Blocks that
 * share the first k tokens after one parent, and their quality, form a ring, of which one, the head, is in a hash table. So the longest
 * shared beginning is found by at most 15 look-ups for each quality that is allowed, however many blocks follow one parent, and entering
 * or removing a block costs 16 look-ups. It takes 450 to 570 bytes a block, of some hundred kilobytes of K and V.
 *
 * Chains of intrusive links over one array of entries, one entry a block of the pool, so that nothing is allocated after init. The
 * entries keep the block's token ids: a match of a hash is confirmed by them. The index holds no references; the pool removes a block
 * before it is reused.
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
#define KNI_PREFIX_PARTS (KNI_BLOCK_TOKENS - 1u)

/* Links of a block among those that share its first k tokens. */
struct kni_prefix_part { uint32_t ring_prev, ring_next, chain_next; /* chain_next: of a head */ };

struct kni_prefix_entry {
    struct kni_hash own, parent;
    uint32_t own_next;
    uint16_t heads; /* bit k - 1: head of its ring for k tokens */
    bool used;
    uint8_t quality; /* enum kn_kv_quality */
    int32_t tokens[KNI_BLOCK_TOKENS];
    struct kni_prefix_part parts[KNI_PREFIX_PARTS]; /* [k - 1] */
};

struct kni_prefix_index {
    struct kni_prefix_entry *entries; /* [n_blocks], by block id */
    uint32_t *own_heads;  /* [n_buckets] */
    uint32_t *part_heads; /* [KNI_PREFIX_PARTS][n_buckets] */
    uint32_t n_blocks, n_buckets; /* n_buckets is a power of two */
    uint32_t n_used, n_by_quality[KN_KV_QUALITY_COUNT];
    uint64_t seed;     /* of the hashes of first tokens: nobody outside can make them collide */
    uint64_t n_probes; /* entries looked at, since init: for tests */
};

enum kn_status kni_prefix_index_init(struct kni_prefix_index *index, uint32_t n_blocks);
/* A zeroed struct is fine. */
void kni_prefix_index_fini(struct kni_prefix_index *index);

/* Enters block, which holds the 16 tokens that lead from parent to own. False, and nothing done, when some block is already
 * known under own. */
bool kni_prefix_index_insert(struct kni_prefix_index *index, uint32_t block, const struct kni_hash *parent,
                             const struct kni_hash *own, const int32_t tokens[KNI_BLOCK_TOKENS], enum kn_kv_quality quality);
void kni_prefix_index_remove(struct kni_prefix_index *index, uint32_t block);
static inline bool kni_prefix_index_has(const struct kni_prefix_index *index, uint32_t block)
{
    return index->entries[block].used;
}

/* The block known under own that holds these 16 tokens, whatever its quality, or KNI_NO_BLOCK. */
uint32_t kni_prefix_index_find(struct kni_prefix_index *index, const struct kni_hash *own, const int32_t tokens[KNI_BLOCK_TOKENS]);
/* Of the blocks that follow parent and are no worse than least, one that shares the most of the n_tokens first tokens (n_tokens at
 * most 16, of which 15 count), and of those one of the best quality; *n_shared is their number. KNI_NO_BLOCK and 0 when none shares any. */
uint32_t kni_prefix_index_find_partial(struct kni_prefix_index *index, const struct kni_hash *parent, const int32_t *tokens,
                                       uint32_t n_tokens, enum kn_kv_quality least, uint32_t *n_shared);
/* NULL when tables, rings and entries agree, otherwise what is wrong. */
const char *kni_prefix_index_check(struct kni_prefix_index *index);

#endif
