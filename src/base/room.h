/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Arrays that only grow, so that what is done again and again allocates in the beginning only. The array belongs to the caller,
 * who releases it with kni_free; *have is its room in items, 0 while the array is NULL. One owner thread an array.
 */
#ifndef KNI_BASE_ROOM_H
#define KNI_BASE_ROOM_H

#include "base/alloc.h"

/* The array, replaced by one of exactly want items, 64-byte aligned, when it has fewer: what it held is lost then. NULL and *have 0
 * when there is no memory (the old array is released), and for want 0 of no array. */
void *kni_room(enum kni_alloc_tag tag, void *array, size_t *have, size_t want, size_t item_bytes);
/* The array, moved to half as many items again as are wanted when it has fewer: what it held is kept. NULL when there is no memory:
 * the old array and *have stay as they are. 16-byte aligned. */
void *kni_room_keep(enum kni_alloc_tag tag, void *array, size_t *have, size_t want, size_t item_bytes);

#endif
