/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Spans of addresses that do not overlap, ordered, in one array: binary search to find, memmove to add and remove. Made
 * for the CPU device's book-keeping, tens of thousands of spans at most. No lock: the device's guards them. A table
 * that becomes empty gives its memory back.
 */
#ifndef KNI_DEVICE_CPU_SPANS_H
#define KNI_DEVICE_CPU_SPANS_H

#include <stdbool.h>
#include <stdint.h>

struct kni_span {
    uint64_t at, bytes;
    uint64_t memory;     /* of mappings: where their memory begins in the device's file */
    uint32_t n_mappings; /* of memory */
    uint8_t access;      /* of mappings: enum kni_device_access */
    bool is_released;    /* of memory */
};

struct kni_spans {
    struct kni_span *spans;
    uint32_t n, capacity;
};

/* Frees the table. */
void kni_spans_fini(struct kni_spans *t);
/* Room for one more. False: out of memory. */
bool kni_spans_make_room(struct kni_spans *t);
/* There is room, and no span that overlaps. */
void kni_spans_add(struct kni_spans *t, struct kni_span span);
void kni_spans_remove(struct kni_spans *t, struct kni_span *span);
/* The span that begins at `at`; that holds it; the first one that shares a byte with [at, at + bytes). NULL: none.
 * Pointers are good until the next add or remove. */
struct kni_span *kni_spans_find(const struct kni_spans *t, uint64_t at);
struct kni_span *kni_spans_holding(const struct kni_spans *t, uint64_t at);
struct kni_span *kni_spans_overlapping(const struct kni_spans *t, uint64_t at, uint64_t bytes);

#endif
