/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A bounded ring of pointers: any number of producers, one consumer, no lock. Each slot carries the turn in which it may be
 * written or read (D. Vyukov's bounded queue): a producer takes a position by compare-and-swap, writes its pointer, and
 * releases the slot's turn to the consumer, who acquires it.
 */
#ifndef KNI_BASE_RING_H
#define KNI_BASE_RING_H

#include <stdbool.h>
#include <stdint.h>

struct kni_ring;

/* n_slots: a power of two, 2 or more. NULL: out of memory. */
struct kni_ring *kni_ring_open(uint32_t n_slots);
void kni_ring_close(struct kni_ring **ring);
/* Any thread. False: full. item is not NULL. */
bool kni_ring_try_push(struct kni_ring *ring, void *item);
/* The consumer's thread. NULL: empty. */
void *kni_ring_try_pop(struct kni_ring *ring);

#endif
