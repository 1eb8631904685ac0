/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Slots with turns. Position p lies in slot p mod n_slots; what its turn says, relative to p:
 *
 *     turn == p          free: the producer that wins position p may write
 *     turn == p + 1      full: the consumer at position p may read
 *     turn == p + n      free again, one lap later
 *
 *     producers: CAS on tail --> write item --> turn = p + 1 (release)
 *     consumer:                  turn == p + 1 (acquire) --> read item --> turn = p + n (release)
 *
 * A turn tells a slot's state by itself, so producers meet only on tail, and a producer that sleeps between its
 * compare-and-swap and its release holds up the consumer at that slot alone: a pop then says "empty" although later slots are
 * full, and the sleeper's own signal makes the consumer look again. tail and head lie in cache lines of their own.
 */
#include "base/ring.h"

#include <assert.h>
#include <stdatomic.h>
#include <stddef.h>

#include "base/alloc.h"

#define CACHE_LINE 64u

struct slot {
    _Atomic uint64_t turn;
    void *item; /* handed over by turn */
};

struct kni_ring {
    _Alignas(CACHE_LINE) _Atomic uint64_t tail; /* producers' next position */
    _Alignas(CACHE_LINE) uint64_t head;         /* consumer's next position; its thread only */
    _Alignas(CACHE_LINE) uint64_t mask;         /* n_slots - 1; constant, as the next */
    struct slot *slots;
};

struct kni_ring *kni_ring_open(uint32_t n_slots)
{
    assert(n_slots >= 2 && !(n_slots & (n_slots - 1)));
    size_t n_bytes;
    struct kni_ring *ring = kni_calloc(KNI_ALLOC_TAG_MISC, sizeof *ring, CACHE_LINE);
    if (!ring)
        return NULL;
    ring->mask = n_slots - 1;
    if (kni_mul_size(n_slots, sizeof *ring->slots, &n_bytes))
        ring->slots = kni_alloc(KNI_ALLOC_TAG_MISC, n_bytes, CACHE_LINE);
    if (!ring->slots) {
        kni_free(ring);
        return NULL;
    }
    for (uint32_t i = 0; i < n_slots; i++) {
        atomic_init(&ring->slots[i].turn, i);
        ring->slots[i].item = NULL;
    }
    return ring;
}

void kni_ring_close(struct kni_ring **ring)
{
    if (!ring || !*ring)
        return;
    kni_free((*ring)->slots);
    kni_free(*ring);
    *ring = NULL;
}

bool kni_ring_try_push(struct kni_ring *ring, void *item)
{
    assert(item);
    uint64_t at = atomic_load_explicit(&ring->tail, memory_order_relaxed); /* a guess: the swap below settles it */
    for (;;) {
        struct slot *s = &ring->slots[at & ring->mask];
        uint64_t turn = atomic_load_explicit(&s->turn, memory_order_acquire); /* with the consumer's release: it has read the slot */
        if (turn == at) {
            /* Relaxed: the slot's turn carries the item, tail only who may write it. */
            if (!atomic_compare_exchange_weak_explicit(&ring->tail, &at, at + 1, memory_order_relaxed, memory_order_relaxed))
                continue; /* at is the new tail now */
            s->item = item;
            atomic_store_explicit(&s->turn, at + 1, memory_order_release); /* to the consumer's acquire */
            return true;
        }
        if ((int64_t)(turn - at) < 0)
            return false; /* the item of one lap ago is still there */
        at = atomic_load_explicit(&ring->tail, memory_order_relaxed); /* another producer was quicker */
    }
}

void *kni_ring_try_pop(struct kni_ring *ring)
{
    struct slot *s = &ring->slots[ring->head & ring->mask];
    uint64_t turn = atomic_load_explicit(&s->turn, memory_order_acquire); /* with the producer's release: the item is there */
    if (turn != ring->head + 1)
        return NULL;
    void *item = s->item;
    atomic_store_explicit(&s->turn, ring->head + ring->mask + 1, memory_order_release); /* to a producer's acquire, one lap later */
    ring->head++;
    return item;
}
