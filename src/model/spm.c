/* SPDX-License-Identifier: Apache-2.0 */
/*
 * As in bpe.c, a candidate is stale when the pair that now stands at its position has another rank, which one lookup tells;
 * each merge takes one candidate out and puts at most two in, so the heap never holds more than 2n.
 */
#include "model/spm.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/le.h"
#include "model/heap.h"

#define NONE UINT32_MAX

struct scored { float score; uint32_t id; };

static int by_score(const void *a, const void *b)
{
    const struct scored *x = a, *y = b;
    return x->score != y->score ? (x->score < y->score) - (x->score > y->score) : (x->id > y->id) - (x->id < y->id);
}

enum kn_status kni_spm_load_ranks(struct kni_tokenizer *t, struct kni_arena *arena, const uint8_t *scores)
{
    enum kn_status status = KN_OK;
    struct scored *order = kni_alloc(KNI_ALLOC_TAG_MODEL, t->n_vocab * sizeof *order, 0); /* at most 2^24 */
    t->ranks = kni_arena_alloc(arena, t->n_vocab * sizeof *t->ranks, 0);
    if (!order || !t->ranks) {
        status = KN_E_NOMEM;
        goto done;
    }
    for (uint32_t i = 0; i < t->n_vocab; i++) {
        uint32_t bits = kni_le32_get(scores + 4 * (size_t)i);
        order[i].id = i;
        memcpy(&order[i].score, &bits, 4);
        if (isnan(order[i].score)) {
            status = KN_E_FORMAT;
            goto done;
        }
    }
    qsort(order, t->n_vocab, sizeof *order, by_score);
    for (uint32_t i = 0; i < t->n_vocab; i++) /* equal scores share a rank */
        t->ranks[order[i].id] = i && order[i].score == order[i - 1].score ? t->ranks[order[i - 1].id] : i;
done:
    kni_free(order);
    return status;
}

void kni_spm_scratch_fini(struct kni_spm_scratch *scratch)
{
    kni_free(scratch->symbols);
    kni_free(scratch->heap);
    *scratch = (struct kni_spm_scratch){0};
}

static enum kn_status reserve(struct kni_spm_scratch *scratch, size_t n)
{
    size_t least = scratch->n_symbols ? 2 * scratch->n_symbols : 256, want = n < least ? least : n, symbol_bytes, heap_bytes;
    if (n <= scratch->n_symbols)
        return KN_OK;
    kni_spm_scratch_fini(scratch);
    if (!kni_mul_size(want, sizeof *scratch->symbols, &symbol_bytes) || !kni_mul_size(want, 2 * sizeof *scratch->heap, &heap_bytes))
        return KN_E_NOMEM;
    scratch->symbols = kni_alloc(KNI_ALLOC_TAG_REQUEST, symbol_bytes, 0);
    scratch->heap = kni_alloc(KNI_ALLOC_TAG_REQUEST, heap_bytes, 0);
    if (!scratch->symbols || !scratch->heap) {
        kni_spm_scratch_fini(scratch);
        return KN_E_NOMEM;
    }
    scratch->n_symbols = want;
    return KN_OK;
}

/* The rank of the pair that starts at symbol at; NONE when it is no token. */
static uint32_t rank_of(const struct kni_tokenizer *t, const struct kni_spm_symbol *s, const char *text, uint32_t at)
{
    uint32_t next = s[at].next;
    if (!s[at].n || next == NONE || s[at].n + s[next].n > t->max_piece_bytes)
        return NONE;
    int32_t id = kni_tokenizer_find_piece(t, text + s[at].at, s[at].n + s[next].n);
    return id < 0 ? NONE : t->ranks[id];
}

static void consider(const struct kni_tokenizer *t, const struct kni_spm_scratch *scratch, const char *text, size_t *n_heap, uint32_t at)
{
    uint32_t rank = rank_of(t, scratch->symbols, text, at);
    if (rank != NONE)
        kni_heap_push(scratch->heap, n_heap, (uint64_t)rank << 32 | at);
}

enum kn_status kni_spm_merge(const struct kni_tokenizer *t, struct kni_spm_scratch *scratch, const char *text, size_t n_bytes,
                             struct kni_effort *effort)
{
    size_t n = 0, n_heap = 0;
    for (size_t i = 0; i < n_bytes; i++)
        n += ((unsigned char)text[i] & 0xc0) != 0x80;
    enum kn_status status = reserve(scratch, n);
    if (status != KN_OK)
        return status;
    struct kni_spm_symbol *s = scratch->symbols;
    for (uint32_t i = 0, at = 0; i < (uint32_t)n; at += s[i++].n) {
        uint32_t length = 1;
        while (at + length < n_bytes && ((unsigned char)text[at + length] & 0xc0) == 0x80)
            length++;
        s[i] = (struct kni_spm_symbol){.at = at, .n = length, .prev = i - 1 /* of the first: NONE */, .next = i + 1 < (uint32_t)n ? i + 1 : NONE};
    }
    for (uint32_t i = 0; i + 1 < (uint32_t)n; i++)
        consider(t, scratch, text, &n_heap, i);
    for (kni_effort_add(effort, n_bytes); n_heap && kni_effort_add(effort, 1);) {
        uint64_t top = kni_heap_pop(scratch->heap, &n_heap);
        uint32_t at = (uint32_t)top;
        if (rank_of(t, s, text, at) != (uint32_t)(top >> 32))
            continue;
        uint32_t gone = s[at].next;
        s[at].n += s[gone].n;
        s[at].next = s[gone].next;
        s[gone].n = 0;
        if (s[at].next != NONE)
            s[s[at].next].prev = at;
        if (s[at].prev != NONE)
            consider(t, scratch, text, &n_heap, s[at].prev);
        consider(t, scratch, text, &n_heap, at);
    }
    return effort->stopped ? KN_E_CANCELLED : KN_OK;
}
