/* SPDX-License-Identifier: Apache-2.0 */
/*
 * One sequence's place in the pool: its block table and how far it is filled.
 *
 *     block_ids   [ 7 ][ 3 ][ 9 ][ 4 ][ 5 ]
 *     positions    0..15 16..31 ...  |     |
 *                  `--- n_tokens ----'     `- reserved: writable, nothing in it yet
 *                  `-- n_hashed blocks -'    full blocks whose chain hash is known (and entered in the prefix index)
 *
 * Life of a request: match (take what the pool has), reserve (room for the next chunk), [compute], commit, reserve, ...
 * A match may end inside a block: that block is shared, and reserve replaces it by a copy before anything is written.
 *
 * Quality. The sequence's is the worst of its blocks (enum kn_kv_quality); blocks that are computed on top of it have that one, since
 * each position depends on all before it.
 *
 * A table has room for max_tokens from init on: no call allocates later. Owner thread: the pool's.
 */
#ifndef KNI_KV_SEQ_H
#define KNI_KV_SEQ_H

#include "kv/pool.h"

struct kni_seq {
    struct kni_pool *pool;   /* borrowed */
    uint32_t *block_ids;     /* [max_blocks] */
    struct kni_hash *hashes; /* [max_blocks + 1]: hashes[b] names the first b blocks; hashes[0] is the seed */
    uint32_t n_blocks, max_blocks;
    uint32_t n_tokens; /* positions whose K and V are in the pool */
    uint32_t n_hashed; /* blocks */
    uint32_t n_chain;  /* hashes[0 .. n_chain] are those of the tokens, n_hashed at least: a sequence that is matched again need not hash again */
    enum kn_kv_quality quality; /* worst of the blocks before n_tokens; EXACT without any */
};

/* seed: kni_chain_seed of model and tenant. KN_E_NOMEM. */
enum kn_status kni_seq_init(struct kni_seq *seq, struct kni_pool *pool, uint32_t max_tokens, const struct kni_hash *seed);
/* Gives all blocks back and frees the table. A zeroed struct is fine. */
void kni_seq_fini(struct kni_seq *seq);

/* Extends a sequence that ends with a whole, hashed block by what the prefix index knows of tokens[0..n_tokens); at least
 * one token is left out. Ends before a block that is worse than least. Returns the new seq->n_tokens. Reserved blocks must have been
 * dropped. A sequence is matched and committed with the same tokens all its life; whoever gives it
 * others sets n_chain to n_hashed. */
uint32_t kni_seq_match(struct kni_seq *seq, const int32_t *tokens, uint32_t n_tokens, enum kn_kv_quality least);
/* Whether the index has, in a quality of least or better, the block behind the first n_blocks, at which an earlier match of these tokens
 * ended. One look-up. */
bool kni_seq_finds_more(const struct kni_seq *seq, const int32_t *tokens, uint32_t n_blocks, enum kn_kv_quality least);
/* Makes positions seq->n_tokens .. n_tokens - 1 writable: copies a shared block, takes new ones. Returns how many positions,
 * from 0, are ready: less than n_tokens when the pool is full (what was taken is kept; the call may be repeated). */
uint32_t kni_seq_reserve(struct kni_seq *seq, uint32_t n_tokens);
/* Positions up to n_tokens now hold the K and V of tokens, computed from those before; full blocks enter the prefix index. */
void kni_seq_commit(struct kni_seq *seq, const int32_t *tokens, uint32_t n_tokens);
/* The same for K and V that came from elsewhere, with a quality of their own. */
void kni_seq_commit_restored(struct kni_seq *seq, const int32_t *tokens, uint32_t n_tokens, enum kn_kv_quality quality);
/* The worst quality of positions first .. end - 1, which are there. */
enum kn_kv_quality kni_seq_quality(const struct kni_seq *seq, uint32_t first, uint32_t end);
/* Forgets positions from n_tokens on and gives back the blocks behind, reserved ones too. 0 drops everything. */
void kni_seq_truncate(struct kni_seq *seq, uint32_t n_tokens);
/* Takes the sequence's blocks out of the prefix index: nobody else shall compute on what came out wrong. */
void kni_seq_forget(struct kni_seq *seq);
/* Borrowed; valid until the sequence changes. */
struct kni_kv_view kni_seq_view(const struct kni_seq *seq);

static inline uint32_t kni_blocks_for_tokens(uint32_t n_tokens)
{
    return n_tokens / KNI_BLOCK_TOKENS + (n_tokens % KNI_BLOCK_TOKENS != 0);
}

#endif
