/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Byte-pair merging: the symbols of a piece are joined pair by pair, always the pair of lowest rank, among equals the
 * leftmost, until no pair has a rank. Source: Sennrich et al. 2016, in the byte-level form of GPT-2.
 *
 *     symbols   [ t ]<->[ h ]<->[ e ]        a doubly linked list in an array, one entry a byte
 *     heap      (rank << 32 | position)      candidate pairs; stale ones are recognised when they surface
 *     table     (left id, right id) -> rank, joined id     open addressing
 *
 * A piece of n bytes takes O(n log n), whatever it holds: a megabyte without a blank is as cheap a byte as prose.
 * The table is immutable after load, any thread; scratch belongs to one call.
 */
#ifndef KNI_MODEL_BPE_H
#define KNI_MODEL_BPE_H

#include <stdint.h>

#include "base/arena.h"
#include "base/status.h"
#include "model/effort.h"

struct kni_bpe_slot { uint32_t left, right, rank, joined; }; /* left UINT32_MAX: empty */

struct kni_bpe {
    struct kni_bpe_slot *slots;
    uint32_t n_slots; /* power of two */
};

/* Room for n_merges in arena. KN_E_NOMEM. */
enum kn_status kni_bpe_init(struct kni_bpe *bpe, struct kni_arena *arena, uint32_t n_merges);
/* At most n_merges different pairs; a pair given again takes the new rank, as the reference does. */
void kni_bpe_add(struct kni_bpe *bpe, uint32_t left, uint32_t right, uint32_t rank, uint32_t joined);

struct kni_bpe_symbol { uint32_t id, prev, next; };

struct kni_bpe_scratch {
    struct kni_bpe_symbol *symbols;
    uint64_t *heap;
    size_t n_symbols; /* room */
};

/* Room for pieces of n symbols; zero-initialise before the first call. KN_E_NOMEM. */
enum kn_status kni_bpe_reserve(struct kni_bpe_scratch *scratch, size_t n);
void kni_bpe_scratch_fini(struct kni_bpe_scratch *scratch);

/* Merges the n ids in scratch->symbols[0..n).id; the result lies in symbols[0..return).id. n < 2^31. A step is a symbol or a candidate.
 * When effort says stop the result is of no use. */
size_t kni_bpe_merge(const struct kni_bpe *bpe, struct kni_bpe_scratch *scratch, size_t n, struct kni_effort *effort);

#endif
