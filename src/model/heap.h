/* SPDX-License-Identifier: Apache-2.0 */
/* A binary heap of 64-bit keys, the smallest on top, in an array of the caller's that is large enough. For merging tokens. */
#ifndef KNI_MODEL_HEAP_H
#define KNI_MODEL_HEAP_H

#include <stddef.h>
#include <stdint.h>

static inline void kni_heap_push(uint64_t *heap, size_t *n, uint64_t key)
{
    size_t i = (*n)++;
    while (i && heap[(i - 1) / 2] > key) {
        heap[i] = heap[(i - 1) / 2];
        i = (i - 1) / 2;
    }
    heap[i] = key;
}

/* n at least 1. */
static inline uint64_t kni_heap_pop(uint64_t *heap, size_t *n)
{
    uint64_t top = heap[0], last = heap[--*n];
    size_t i = 0;
    for (;;) {
        size_t child = 2 * i + 1;
        if (child >= *n)
            break;
        if (child + 1 < *n && heap[child + 1] < heap[child])
            child++;
        if (heap[child] >= last)
            break;
        heap[i] = heap[child];
        i = child;
    }
    heap[i] = last;
    return top;
}

#endif
