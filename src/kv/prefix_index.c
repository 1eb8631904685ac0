/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Hash tables with chaining through the entries. Buckets are taken from the first bytes of the chain hash: BLAKE2b is
 * uniform, so no second hash function is needed. At most one chained entry a bucket on average (twice as many buckets as
 * blocks). Chains are single linked: removal walks one chain, which is as short as a lookup.
 */
#include "kv/prefix_index.h"

#include <assert.h>
#include <string.h>

#include "base/alloc.h"

static uint32_t bucket_of(const struct kni_prefix_index *index, const struct kni_hash *hash)
{
    uint32_t x;
    memcpy(&x, hash->bytes, sizeof x);
    return x & (index->n_buckets - 1);
}

enum kn_status kni_prefix_index_init(struct kni_prefix_index *index, uint32_t n_blocks)
{
    *index = (struct kni_prefix_index){.n_blocks = n_blocks, .n_buckets = 16};
    while (index->n_buckets < n_blocks * 2ull && index->n_buckets < 1u << 31)
        index->n_buckets *= 2;
    index->entries = kni_calloc(KNI_ALLOC_TAG_POOL, (size_t)n_blocks * sizeof *index->entries, 64);
    index->own_heads = kni_alloc(KNI_ALLOC_TAG_POOL, (size_t)index->n_buckets * sizeof(uint32_t), 64);
    index->parent_heads = kni_alloc(KNI_ALLOC_TAG_POOL, (size_t)index->n_buckets * sizeof(uint32_t), 64);
    if (!index->entries || !index->own_heads || !index->parent_heads) {
        kni_prefix_index_fini(index);
        return KN_E_NOMEM;
    }
    memset(index->own_heads, 0xff, (size_t)index->n_buckets * sizeof(uint32_t)); /* KNI_NO_BLOCK */
    memset(index->parent_heads, 0xff, (size_t)index->n_buckets * sizeof(uint32_t));
    return KN_OK;
}

void kni_prefix_index_fini(struct kni_prefix_index *index)
{
    kni_free(index->entries);
    kni_free(index->own_heads);
    kni_free(index->parent_heads);
    *index = (struct kni_prefix_index){0};
}

bool kni_prefix_index_insert(struct kni_prefix_index *index, uint32_t block, const struct kni_hash *parent,
                             const struct kni_hash *own, const int32_t tokens[KNI_BLOCK_TOKENS])
{
    struct kni_prefix_entry *e = &index->entries[block];
    assert(block < index->n_blocks && !e->used);
    uint32_t bucket = bucket_of(index, own), siblings = bucket_of(index, parent);
    for (uint32_t i = index->own_heads[bucket]; i != KNI_NO_BLOCK; i = index->entries[i].own_next)
        if (kni_hash_equal(&index->entries[i].own, own))
            return false;
    e->own = *own;
    e->parent = *parent;
    e->used = true;
    memcpy(e->tokens, tokens, sizeof e->tokens);
    e->own_next = index->own_heads[bucket];
    index->own_heads[bucket] = block;
    e->sibling_next = index->parent_heads[siblings];
    index->parent_heads[siblings] = block;
    index->n_used++;
    return true;
}

void kni_prefix_index_remove(struct kni_prefix_index *index, uint32_t block)
{
    struct kni_prefix_entry *e = &index->entries[block];
    assert(block < index->n_blocks && e->used);
    uint32_t *link = &index->own_heads[bucket_of(index, &e->own)];
    while (*link != block)
        link = &index->entries[*link].own_next;
    *link = e->own_next;
    link = &index->parent_heads[bucket_of(index, &e->parent)];
    while (*link != block)
        link = &index->entries[*link].sibling_next;
    *link = e->sibling_next;
    e->used = false;
    index->n_used--;
}

uint32_t kni_prefix_index_find(const struct kni_prefix_index *index, const struct kni_hash *own, const int32_t tokens[KNI_BLOCK_TOKENS])
{
    for (uint32_t i = index->own_heads[bucket_of(index, own)]; i != KNI_NO_BLOCK; i = index->entries[i].own_next)
        if (kni_hash_equal(&index->entries[i].own, own))
            return memcmp(index->entries[i].tokens, tokens, sizeof index->entries[i].tokens) == 0 ? i : KNI_NO_BLOCK;
    return KNI_NO_BLOCK;
}

uint32_t kni_prefix_index_find_partial(const struct kni_prefix_index *index, const struct kni_hash *parent, const int32_t *tokens,
                                       uint32_t n_tokens, uint32_t *n_shared)
{
    assert(n_tokens <= KNI_BLOCK_TOKENS);
    uint32_t best = KNI_NO_BLOCK;
    *n_shared = 0;
    for (uint32_t i = index->parent_heads[bucket_of(index, parent)]; i != KNI_NO_BLOCK; i = index->entries[i].sibling_next) {
        const struct kni_prefix_entry *e = &index->entries[i];
        if (!kni_hash_equal(&e->parent, parent))
            continue;
        uint32_t m = 0;
        while (m < n_tokens && e->tokens[m] == tokens[m])
            m++;
        if (m > *n_shared) {
            *n_shared = m;
            best = i;
        }
    }
    return best;
}

const char *kni_prefix_index_check(const struct kni_prefix_index *index)
{
    uint32_t n_entries = 0, n_own = 0, n_parent = 0;
    for (uint32_t i = 0; i < index->n_blocks; i++)
        n_entries += index->entries[i].used;
    for (uint32_t b = 0; b < index->n_buckets; b++) {
        for (uint32_t i = index->own_heads[b]; i != KNI_NO_BLOCK; i = index->entries[i].own_next) {
            if (i >= index->n_blocks || !index->entries[i].used || bucket_of(index, &index->entries[i].own) != b)
                return "the table of hashes holds a wrong entry";
            if (kni_prefix_index_find(index, &index->entries[i].own, index->entries[i].tokens) != i)
                return "two blocks are known under one hash";
            if (++n_own > n_entries)
                return "the table of hashes has a cycle";
        }
        for (uint32_t i = index->parent_heads[b]; i != KNI_NO_BLOCK; i = index->entries[i].sibling_next) {
            if (i >= index->n_blocks || !index->entries[i].used || bucket_of(index, &index->entries[i].parent) != b)
                return "the table of parents holds a wrong entry";
            if (++n_parent > n_entries)
                return "the table of parents has a cycle";
        }
    }
    if (n_own != n_entries || n_parent != n_entries || index->n_used != n_entries)
        return "the tables miss entries";
    return NULL;
}
