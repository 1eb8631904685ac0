/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Hash tables with chaining through the entries. Own hashes are BLAKE2b, so their first bytes are the bucket. First tokens are hashed
 * by XXH3 with a seed that is drawn at init. At most one chained entry a bucket on average in each table (twice as many buckets as
 * blocks); chains are single linked: removal walks one chain, which is as short as a lookup.
 *
 *     part_heads[k - 1][bucket] -> head -> head -> ...       heads of other rings that fell into the bucket
 *                                   ||
 *                              the ring: blocks with the same parent, first k tokens and quality
 */
#include "kv/prefix_index.h"

#include <assert.h>
#include <string.h>
#include <sys/random.h>

#include "base/alloc.h"

static uint32_t bucket_of(const struct kni_prefix_index *index, const struct kni_hash *hash)
{
    uint32_t x;
    memcpy(&x, hash->bytes, sizeof x);
    return x & (index->n_buckets - 1);
}

/* Where the head for these k tokens is, or would be. */
static uint32_t *part_chain(const struct kni_prefix_index *index, const struct kni_hash *parent, const int32_t *tokens, uint32_t k,
                            enum kn_kv_quality quality)
{
    struct { uint64_t seed; struct kni_hash parent; uint32_t quality; int32_t tokens[KNI_BLOCK_TOKENS]; } key = {index->seed, *parent, quality, {0}};
    memcpy(key.tokens, tokens, k * sizeof *tokens);
    uint64_t h = kni_xxh3(&key, offsetof(__typeof__(key), tokens) + k * sizeof *tokens);
    return &index->part_heads[(size_t)(k - 1) * index->n_buckets + (h & (index->n_buckets - 1))];
}

static bool shares(struct kni_prefix_index *index, uint32_t block, const struct kni_hash *parent, const int32_t *tokens, uint32_t k,
                   enum kn_kv_quality quality)
{
    const struct kni_prefix_entry *e = &index->entries[block];
    index->n_probes++;
    return e->quality == quality && kni_hash_equal(&e->parent, parent) && memcmp(e->tokens, tokens, k * sizeof *tokens) == 0;
}

static uint32_t find_head(struct kni_prefix_index *index, const struct kni_hash *parent, const int32_t *tokens, uint32_t k, enum kn_kv_quality quality)
{
    uint32_t i = *part_chain(index, parent, tokens, k, quality);
    while (i != KNI_NO_BLOCK && !shares(index, i, parent, tokens, k, quality))
        i = index->entries[i].parts[k - 1].chain_next;
    return i;
}

enum kn_status kni_prefix_index_init(struct kni_prefix_index *index, uint32_t n_blocks)
{
    *index = (struct kni_prefix_index){.n_blocks = n_blocks, .n_buckets = 16};
    while (index->n_buckets < n_blocks * 2ull && index->n_buckets < 1u << 31)
        index->n_buckets *= 2;
    if (getrandom(&index->seed, sizeof index->seed, GRND_NONBLOCK) != (ssize_t)sizeof index->seed)
        index->seed = (uint64_t)(uintptr_t)index; /* early in a machine's life; still different from process to process */
    const size_t part_bytes = (size_t)index->n_buckets * KNI_PREFIX_PARTS * sizeof(uint32_t);
    index->entries = kni_calloc(KNI_ALLOC_TAG_POOL, (size_t)n_blocks * sizeof *index->entries, 64);
    index->own_heads = kni_alloc(KNI_ALLOC_TAG_POOL, (size_t)index->n_buckets * sizeof(uint32_t), 64);
    index->part_heads = kni_alloc(KNI_ALLOC_TAG_POOL, part_bytes, 64);
    if (!index->entries || !index->own_heads || !index->part_heads) {
        kni_prefix_index_fini(index);
        return KN_E_NOMEM;
    }
    memset(index->own_heads, 0xff, (size_t)index->n_buckets * sizeof(uint32_t)); /* KNI_NO_BLOCK */
    memset(index->part_heads, 0xff, part_bytes);
    return KN_OK;
}

void kni_prefix_index_fini(struct kni_prefix_index *index)
{
    kni_free(index->entries);
    kni_free(index->own_heads);
    kni_free(index->part_heads);
    *index = (struct kni_prefix_index){0};
}

/* Into the ring of those that share its first k tokens, or as the head of a new one. */
static void part_insert(struct kni_prefix_index *index, uint32_t block, uint32_t k)
{
    struct kni_prefix_entry *e = &index->entries[block];
    struct kni_prefix_part *part = &e->parts[k - 1];
    uint32_t head = find_head(index, &e->parent, e->tokens, k, e->quality);
    if (head == KNI_NO_BLOCK) {
        uint32_t *chain = part_chain(index, &e->parent, e->tokens, k, e->quality);
        *part = (struct kni_prefix_part){block, block, *chain};
        *chain = block;
        e->heads |= (uint16_t)(1u << (k - 1));
        return;
    }
    struct kni_prefix_part *h = &index->entries[head].parts[k - 1];
    *part = (struct kni_prefix_part){head, h->ring_next, KNI_NO_BLOCK};
    index->entries[h->ring_next].parts[k - 1].ring_prev = block;
    h->ring_next = block;
}

static void part_remove(struct kni_prefix_index *index, uint32_t block, uint32_t k)
{
    struct kni_prefix_entry *e = &index->entries[block];
    const struct kni_prefix_part part = e->parts[k - 1];
    const uint32_t next = part.ring_next;
    index->entries[part.ring_prev].parts[k - 1].ring_next = next;
    index->entries[next].parts[k - 1].ring_prev = part.ring_prev;
    if (!(e->heads >> (k - 1) & 1))
        return;
    uint32_t *link = part_chain(index, &e->parent, e->tokens, k, e->quality);
    for (; *link != block; link = &index->entries[*link].parts[k - 1].chain_next)
        index->n_probes++;
    *link = next == block ? part.chain_next : next;
    if (next != block) {
        index->entries[next].parts[k - 1].chain_next = part.chain_next;
        index->entries[next].heads |= (uint16_t)(1u << (k - 1));
    }
}

bool kni_prefix_index_insert(struct kni_prefix_index *index, uint32_t block, const struct kni_hash *parent,
                             const struct kni_hash *own, const int32_t tokens[KNI_BLOCK_TOKENS], enum kn_kv_quality quality)
{
    struct kni_prefix_entry *e = &index->entries[block];
    assert(block < index->n_blocks && !e->used && quality > KN_KV_QUALITY_DEFAULT && quality < KN_KV_QUALITY_COUNT);
    uint32_t bucket = bucket_of(index, own);
    for (uint32_t i = index->own_heads[bucket]; i != KNI_NO_BLOCK; i = index->entries[i].own_next)
        if (kni_hash_equal(&index->entries[i].own, own))
            return false;
    e->own = *own;
    e->parent = *parent;
    e->used = true;
    e->quality = (uint8_t)quality;
    e->heads = 0;
    memcpy(e->tokens, tokens, sizeof e->tokens);
    e->own_next = index->own_heads[bucket];
    index->own_heads[bucket] = block;
    for (uint32_t k = 1; k <= KNI_PREFIX_PARTS; k++)
        part_insert(index, block, k);
    index->n_used++;
    index->n_by_quality[quality]++;
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
    for (uint32_t k = 1; k <= KNI_PREFIX_PARTS; k++)
        part_remove(index, block, k);
    e->used = false;
    index->n_used--;
    index->n_by_quality[e->quality]--;
}

uint32_t kni_prefix_index_find(struct kni_prefix_index *index, const struct kni_hash *own, const int32_t tokens[KNI_BLOCK_TOKENS])
{
    for (uint32_t i = index->own_heads[bucket_of(index, own)]; i != KNI_NO_BLOCK; i = index->entries[i].own_next) {
        index->n_probes++;
        if (kni_hash_equal(&index->entries[i].own, own))
            return memcmp(index->entries[i].tokens, tokens, sizeof index->entries[i].tokens) == 0 ? i : KNI_NO_BLOCK;
    }
    return KNI_NO_BLOCK;
}

uint32_t kni_prefix_index_find_partial(struct kni_prefix_index *index, const struct kni_hash *parent, const int32_t *tokens,
                                       uint32_t n_tokens, enum kn_kv_quality least, uint32_t *n_shared)
{
    assert(n_tokens <= KNI_BLOCK_TOKENS);
    for (uint32_t k = n_tokens < KNI_PREFIX_PARTS ? n_tokens : KNI_PREFIX_PARTS; k; k--)
        for (enum kn_kv_quality q = KN_KV_QUALITY_EXACT; q <= least; q++) {
            uint32_t block = index->n_by_quality[q] ? find_head(index, parent, tokens, k, q) : KNI_NO_BLOCK;
            if (block != KNI_NO_BLOCK) {
                *n_shared = k;
                return block;
            }
        }
    *n_shared = 0;
    return KNI_NO_BLOCK;
}

static const char *check_own(struct kni_prefix_index *index, uint32_t n_entries)
{
    uint32_t n = 0;
    for (uint32_t b = 0; b < index->n_buckets; b++)
        for (uint32_t i = index->own_heads[b]; i != KNI_NO_BLOCK; i = index->entries[i].own_next) {
            if (i >= index->n_blocks || !index->entries[i].used || bucket_of(index, &index->entries[i].own) != b)
                return "the table of hashes holds a wrong entry";
            if (kni_prefix_index_find(index, &index->entries[i].own, index->entries[i].tokens) != i)
                return "two blocks are known under one hash";
            if (++n > n_entries)
                return "the table of hashes has a cycle";
        }
    return n == n_entries ? NULL : "the table of hashes misses entries";
}

/* Every entry is in one ring of each length, and every ring has its head in the right chain. */
static const char *check_parts(struct kni_prefix_index *index, uint32_t k, uint32_t n_entries)
{
    uint32_t n = 0;
    for (uint32_t b = 0; b < index->n_buckets; b++)
        for (uint32_t head = index->part_heads[(size_t)(k - 1) * index->n_buckets + b]; head != KNI_NO_BLOCK;
             head = index->entries[head].parts[k - 1].chain_next) {
            const struct kni_prefix_entry *h = &index->entries[head];
            if (head >= index->n_blocks || !h->used || !(h->heads >> (k - 1) & 1) || find_head(index, &h->parent, h->tokens, k, h->quality) != head)
                return "a table of first tokens holds a wrong entry";
            uint32_t i = head;
            do {
                if (!index->entries[i].used || !shares(index, i, &h->parent, h->tokens, k, h->quality))
                    return "a ring holds a wrong entry";
                if (i != head && index->entries[i].heads >> (k - 1) & 1)
                    return "a ring has two heads";
                uint32_t next = index->entries[i].parts[k - 1].ring_next;
                if (next >= index->n_blocks || index->entries[next].parts[k - 1].ring_prev != i)
                    return "a ring is torn";
                if (++n > n_entries)
                    return "a table of first tokens has a cycle";
                i = next;
            } while (i != head);
        }
    return n == n_entries ? NULL : "a table of first tokens misses entries";
}

const char *kni_prefix_index_check(struct kni_prefix_index *index)
{
    uint32_t n_entries = 0, n_by_quality[KN_KV_QUALITY_COUNT] = {0};
    for (uint32_t i = 0; i < index->n_blocks; i++)
        if (index->entries[i].used) {
            n_entries++;
            n_by_quality[index->entries[i].quality]++;
        }
    if (index->n_used != n_entries || memcmp(n_by_quality, index->n_by_quality, sizeof n_by_quality))
        return "the prefix index has counted wrong";
    const char *why = check_own(index, n_entries);
    for (uint32_t k = 1; k <= KNI_PREFIX_PARTS && !why; k++)
        why = check_parts(index, k, n_entries);
    return why;
}
