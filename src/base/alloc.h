/* SPDX-License-Identifier: Apache-2.0 */
/*
 * All allocation goes through here: memory is counted by purpose (tag), tests can make the n-th allocation fail, and a
 * debug hook aborts when a decode step allocates.
 *
 *     [ header: size, tag, offset ][ payload, aligned ]
 *
 * Memory from libraries (libavcodec, zstd, LMDB) is not counted. Any thread.
 */
#ifndef KNI_BASE_ALLOC_H
#define KNI_BASE_ALLOC_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum kni_alloc_tag {
    KNI_ALLOC_TAG_MISC,
    KNI_ALLOC_TAG_MODEL,
    KNI_ALLOC_TAG_POOL,
    KNI_ALLOC_TAG_SCRATCH, /* step workspaces */
    KNI_ALLOC_TAG_REQUEST,
    KNI_ALLOC_TAG_CODEC,
    KNI_ALLOC_TAG_STORE,
    KNI_ALLOC_TAG_FETCH,
    KNI_ALLOC_TAG_COUNT
};

/* bytes of memory aligned to align (a power of two; 0: 16). NULL when out of memory. bytes 0 gives a valid pointer. */
void *kni_alloc(enum kni_alloc_tag tag, size_t bytes, size_t align);
/* The same, zeroed. */
void *kni_calloc(enum kni_alloc_tag tag, size_t bytes, size_t align);
/* Grows or shrinks, 16-byte aligned only. NULL leaves old untouched. old may be NULL. */
void *kni_realloc(enum kni_alloc_tag tag, void *old, size_t bytes);
char *kni_strdup(enum kni_alloc_tag tag, const char *text);
/* NULL is fine. */
void kni_free(void *memory);

/* a*b and a*b*c checked for overflow: false when the product does not fit. For products of file-supplied numbers. */
bool kni_mul_size(size_t a, size_t b, size_t *out);
bool kni_add_size(size_t a, size_t b, size_t *out);

struct kni_alloc_stats { uint64_t current_bytes, peak_bytes, n_allocs; };
/* Of one tag, or of all with KNI_ALLOC_TAG_COUNT. */
struct kni_alloc_stats kni_alloc_get_stats(enum kni_alloc_tag tag);

/* Fault injection: the n-th allocation from now fails (1 = the next one), and with sticky also all after it. 0 disarms.
 * kni_alloc_fault_hit tells whether it has happened. */
void kni_alloc_fault_arm(uint64_t n, bool sticky);
bool kni_alloc_fault_hit(void);

/* Between begin and end, an allocation by this thread aborts the process with a message (a debug hook; nestable). */
void kni_alloc_forbid_begin(void);
void kni_alloc_forbid_end(void);

#endif
