/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A candidate in the heap is stale when its left symbol is gone or now has another right neighbour: then the pair that
 * stands there has another rank or none, which one lookup tells. Every merge takes one candidate out and puts at most two
 * in, and there are at most n - 1 merges, so the heap never holds more than 2n entries: no growth inside the loop.
 */
#include "model/bpe.h"

#include "model/heap.h"

#define NONE UINT32_MAX

enum kn_status kni_bpe_init(struct kni_bpe *bpe, struct kni_arena *arena, uint32_t n_merges)
{
    size_t n = 16, bytes;
    while (n < 2 * (size_t)n_merges)
        n *= 2;
    if (n > UINT32_MAX || !kni_mul_size(n, sizeof *bpe->slots, &bytes) || !(bpe->slots = kni_arena_alloc(arena, bytes, 0)))
        return KN_E_NOMEM;
    bpe->n_slots = (uint32_t)n;
    for (size_t i = 0; i < n; i++)
        bpe->slots[i].left = NONE;
    return KN_OK;
}

/* The slot of a pair, or the empty one where it belongs. */
static struct kni_bpe_slot *slot_of(const struct kni_bpe *bpe, uint32_t left, uint32_t right)
{
    uint64_t h = ((uint64_t)left << 32 | right) * 0x9e3779b97f4a7c15u;
    uint32_t mask = bpe->n_slots - 1, i = (uint32_t)(h >> 32) & mask;
    while (bpe->slots[i].left != NONE && (bpe->slots[i].left != left || bpe->slots[i].right != right))
        i = (i + 1) & mask;
    return &bpe->slots[i];
}

void kni_bpe_add(struct kni_bpe *bpe, uint32_t left, uint32_t right, uint32_t rank, uint32_t joined)
{
    *slot_of(bpe, left, right) = (struct kni_bpe_slot){.left = left, .right = right, .rank = rank, .joined = joined};
}

enum kn_status kni_bpe_reserve(struct kni_bpe_scratch *scratch, size_t n)
{
    if (n <= scratch->n_symbols)
        return KN_OK;
    size_t least = scratch->n_symbols ? 2 * scratch->n_symbols : 256, want = n < least ? least : n, symbol_bytes, heap_bytes;
    kni_bpe_scratch_fini(scratch);
    if (!kni_mul_size(want, sizeof *scratch->symbols, &symbol_bytes) || !kni_mul_size(want, 2 * sizeof *scratch->heap, &heap_bytes))
        return KN_E_NOMEM;
    scratch->symbols = kni_alloc(KNI_ALLOC_TAG_REQUEST, symbol_bytes, 0);
    scratch->heap = kni_alloc(KNI_ALLOC_TAG_REQUEST, heap_bytes, 0);
    if (!scratch->symbols || !scratch->heap) {
        kni_bpe_scratch_fini(scratch);
        return KN_E_NOMEM;
    }
    scratch->n_symbols = want;
    return KN_OK;
}

void kni_bpe_scratch_fini(struct kni_bpe_scratch *scratch)
{
    kni_free(scratch->symbols);
    kni_free(scratch->heap);
    *scratch = (struct kni_bpe_scratch){0};
}

/* Enters the pair that starts at symbol at, if it has a rank. */
static void consider(const struct kni_bpe *bpe, const struct kni_bpe_scratch *s, size_t *n_heap, uint32_t at)
{
    uint32_t next = s->symbols[at].next;
    if (next == NONE)
        return;
    const struct kni_bpe_slot *slot = slot_of(bpe, s->symbols[at].id, s->symbols[next].id);
    if (slot->left != NONE)
        kni_heap_push(s->heap, n_heap, (uint64_t)slot->rank << 32 | at);
}

size_t kni_bpe_merge(const struct kni_bpe *bpe, struct kni_bpe_scratch *scratch, size_t n, struct kni_effort *effort)
{
    struct kni_bpe_symbol *s = scratch->symbols;
    size_t n_heap = 0;
    if (n < 2)
        return n;
    for (uint32_t i = 0; i < (uint32_t)n; i++) {
        s[i].prev = i - 1; /* of the first: NONE */
        s[i].next = i + 1 < (uint32_t)n ? i + 1 : NONE;
    }
    for (uint32_t i = 0; i + 1 < (uint32_t)n; i++)
        consider(bpe, scratch, &n_heap, i);
    for (kni_effort_add(effort, n); n_heap && kni_effort_add(effort, 1);) {
        uint64_t top = kni_heap_pop(scratch->heap, &n_heap);
        uint32_t at = (uint32_t)top, rank = (uint32_t)(top >> 32), next = s[at].next;
        if (s[at].id == NONE || next == NONE)
            continue;
        const struct kni_bpe_slot *slot = slot_of(bpe, s[at].id, s[next].id);
        if (slot->left == NONE || slot->rank != rank)
            continue;
        s[at].id = slot->joined;
        s[at].next = s[next].next;
        s[next].id = NONE; /* gone */
        if (s[at].next != NONE)
            s[s[at].next].prev = at;
        if (s[at].prev != NONE)
            consider(bpe, scratch, &n_heap, s[at].prev);
        consider(bpe, scratch, &n_heap, at);
    }
    size_t count = 0;
    for (uint32_t i = 0; i != NONE; i = s[i].next) /* survivors move left: never past the read position */
        s[count++].id = s[i].id;
    return count;
}
