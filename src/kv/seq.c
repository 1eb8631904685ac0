/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Block tables. Two invariants carry the rest: blocks before n_tokens / 16 are full, and only the block at n_tokens / 16
 * can be shared among those that may still be written, because every later one was taken fresh by reserve.
 */
#include "kv/seq.h"

#include <assert.h>
#include <string.h>

#include "base/alloc.h"
#include "kv/chain.h"

enum kn_status kni_seq_init(struct kni_seq *seq, struct kni_pool *pool, uint32_t max_tokens, const struct kni_hash *seed)
{
    *seq = (struct kni_seq){.pool = pool, .max_blocks = kni_blocks_for_tokens(max_tokens), .quality = KN_KV_QUALITY_EXACT};
    seq->block_ids = kni_alloc(KNI_ALLOC_TAG_REQUEST, (size_t)seq->max_blocks * sizeof *seq->block_ids, 0);
    seq->hashes = kni_alloc(KNI_ALLOC_TAG_REQUEST, ((size_t)seq->max_blocks + 1) * sizeof *seq->hashes, 0);
    if (!seq->block_ids || !seq->hashes) {
        kni_seq_fini(seq);
        return KN_E_NOMEM;
    }
    seq->hashes[0] = *seed;
    return KN_OK;
}

void kni_seq_fini(struct kni_seq *seq)
{
    if (seq->block_ids && seq->hashes)
        kni_seq_truncate(seq, 0);
    kni_free(seq->block_ids);
    kni_free(seq->hashes);
    *seq = (struct kni_seq){0};
}

/* The name of the first b + 1 blocks, whose tokens are tokens. */
static const struct kni_hash *chain_hash(struct kni_seq *seq, const int32_t *tokens, uint32_t b)
{
    assert(b <= seq->n_chain);
    if (b == seq->n_chain) {
        seq->hashes[b + 1] = kni_chain_next(&seq->hashes[b], tokens + (size_t)b * KNI_BLOCK_TOKENS, KNI_BLOCK_TOKENS);
        seq->n_chain++;
    }
    return &seq->hashes[b + 1];
}

enum kn_kv_quality kni_seq_quality(const struct kni_seq *seq, uint32_t first, uint32_t end)
{
    enum kn_kv_quality worst = KN_KV_QUALITY_EXACT;
    for (uint32_t b = first / KNI_BLOCK_TOKENS; b < kni_blocks_for_tokens(end); b++)
        if (kni_pool_quality(seq->pool, seq->block_ids[b]) > worst)
            worst = kni_pool_quality(seq->pool, seq->block_ids[b]);
    return worst;
}

static void take_block(struct kni_seq *seq, uint32_t block, uint32_t n_tokens)
{
    kni_pool_ref(seq->pool, block);
    seq->block_ids[seq->n_blocks++] = block;
    seq->n_tokens += n_tokens;
    if (kni_pool_quality(seq->pool, block) > seq->quality)
        seq->quality = kni_pool_quality(seq->pool, block);
}

uint32_t kni_seq_match(struct kni_seq *seq, const int32_t *tokens, uint32_t n_tokens, enum kn_kv_quality least)
{
    struct kni_prefix_index *index = kni_pool_index(seq->pool);
    assert(seq->n_blocks == kni_blocks_for_tokens(seq->n_tokens));
    if (!index || n_tokens <= seq->n_tokens + 1 || seq->n_tokens != seq->n_hashed * KNI_BLOCK_TOKENS)
        return seq->n_tokens;
    uint32_t limit = n_tokens - 1; /* one token must be computed: its logits choose the next */
    if (limit > seq->max_blocks * KNI_BLOCK_TOKENS)
        limit = seq->max_blocks * KNI_BLOCK_TOKENS;
    while (seq->n_tokens + KNI_BLOCK_TOKENS <= limit) {
        const struct kni_hash *own = chain_hash(seq, tokens, seq->n_hashed);
        uint32_t block = kni_prefix_index_find(index, own, tokens + seq->n_tokens);
        if (block == KNI_NO_BLOCK || kni_pool_quality(seq->pool, block) > least)
            break;
        take_block(seq, block, KNI_BLOCK_TOKENS);
        seq->n_hashed++;
    }
    uint32_t n_left = limit - seq->n_tokens, n_shared;
    uint32_t block = kni_prefix_index_find_partial(index, &seq->hashes[seq->n_hashed], tokens + seq->n_tokens,
                                                   n_left < KNI_BLOCK_TOKENS ? n_left : KNI_BLOCK_TOKENS, least, &n_shared);
    if (block != KNI_NO_BLOCK)
        take_block(seq, block, n_shared);
    return seq->n_tokens;
}

bool kni_seq_finds_more(const struct kni_seq *seq, const int32_t *tokens, uint32_t n_blocks, enum kn_kv_quality least)
{
    struct kni_prefix_index *index = kni_pool_index(seq->pool);
    if (!index || n_blocks >= seq->n_chain) /* the match did not get to ask for it: the prompt ends there */
        return false;
    uint32_t block = kni_prefix_index_find(index, &seq->hashes[n_blocks + 1], tokens + (size_t)n_blocks * KNI_BLOCK_TOKENS);
    return block != KNI_NO_BLOCK && kni_pool_quality(seq->pool, block) <= least;
}

uint32_t kni_seq_reserve(struct kni_seq *seq, uint32_t n_tokens)
{
    uint32_t n_want = kni_blocks_for_tokens(n_tokens), b = seq->n_tokens / KNI_BLOCK_TOKENS;
    assert(n_tokens >= seq->n_tokens && n_want <= seq->max_blocks);
    if (n_tokens == seq->n_tokens)
        return n_tokens;
    if (b < seq->n_blocks && !kni_pool_make_writable(seq->pool, &seq->block_ids[b]))
        return seq->n_tokens;
    while (seq->n_blocks < n_want && kni_pool_take(seq->pool, &seq->block_ids[seq->n_blocks]))
        seq->n_blocks++;
    uint32_t n_ready = seq->n_blocks * KNI_BLOCK_TOKENS;
    return n_ready < n_tokens ? n_ready : n_tokens;
}

static void commit(struct kni_seq *seq, const int32_t *tokens, uint32_t n_tokens, enum kn_kv_quality quality)
{
    struct kni_prefix_index *index = kni_pool_index(seq->pool);
    assert(n_tokens >= seq->n_tokens && kni_blocks_for_tokens(n_tokens) <= seq->n_blocks);
    for (uint32_t b = seq->n_tokens / KNI_BLOCK_TOKENS; b < kni_blocks_for_tokens(n_tokens) && n_tokens > seq->n_tokens; b++) {
        enum kn_kv_quality had = b * KNI_BLOCK_TOKENS < seq->n_tokens ? kni_pool_quality(seq->pool, seq->block_ids[b]) : KN_KV_QUALITY_EXACT;
        kni_pool_set_quality(seq->pool, seq->block_ids[b], had > quality ? had : quality);
    }
    if (n_tokens > seq->n_tokens && quality > seq->quality)
        seq->quality = quality;
    seq->n_tokens = n_tokens;
    while (index && (seq->n_hashed + 1) * KNI_BLOCK_TOKENS <= n_tokens) {
        uint32_t b = seq->n_hashed;
        const struct kni_hash *own = chain_hash(seq, tokens, b);
        /* When the prefix is known already, in no worse quality, this block stays private and is freed with the sequence. It cannot be
         * in the index itself: reserve saw to that before it was written. */
        kni_pool_enter(seq->pool, seq->block_ids[b], &seq->hashes[b], own, tokens + (size_t)b * KNI_BLOCK_TOKENS);
        seq->n_hashed++;
    }
}

void kni_seq_commit(struct kni_seq *seq, const int32_t *tokens, uint32_t n_tokens)
{
    commit(seq, tokens, n_tokens, seq->quality);
}

void kni_seq_commit_restored(struct kni_seq *seq, const int32_t *tokens, uint32_t n_tokens, enum kn_kv_quality quality)
{
    commit(seq, tokens, n_tokens, quality);
}

void kni_seq_truncate(struct kni_seq *seq, uint32_t n_tokens)
{
    uint32_t n_keep = kni_blocks_for_tokens(n_tokens);
    assert(n_tokens <= seq->n_tokens);
    while (seq->n_blocks > n_keep) /* last first: see kv/pool.c on eviction */
        kni_pool_unref(seq->pool, seq->block_ids[--seq->n_blocks]);
    seq->n_tokens = n_tokens;
    if (seq->n_hashed > n_tokens / KNI_BLOCK_TOKENS)
        seq->n_hashed = n_tokens / KNI_BLOCK_TOKENS;
    if (seq->quality != KN_KV_QUALITY_EXACT)
        seq->quality = kni_seq_quality(seq, 0, n_tokens);
}

void kni_seq_forget(struct kni_seq *seq)
{
    for (uint32_t b = 0; b < seq->n_blocks; b++)
        kni_pool_forget(seq->pool, seq->block_ids[b]);
}

struct kni_kv_view kni_seq_view(const struct kni_seq *seq)
{
    return kni_pool_view(seq->pool, seq->block_ids, seq->n_blocks);
}
