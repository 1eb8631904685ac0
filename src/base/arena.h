/* SPDX-License-Identifier: Apache-2.0 */
/*
 * An arena: many small allocations with one lifetime, freed together. Grows by blocks; reset keeps the blocks.
 * One owner thread.
 */
#ifndef KNI_BASE_ARENA_H
#define KNI_BASE_ARENA_H

#include "base/alloc.h"

struct kni_arena_block;

struct kni_arena {
    enum kni_alloc_tag tag;
    size_t block_bytes;            /* size of the next block */
    struct kni_arena_block *first; /* all blocks, oldest first */
    struct kni_arena_block *current;
    size_t used_bytes; /* handed out since init */
};

/* No allocation happens before the first kni_arena_alloc. block_bytes 0: 64 KiB. */
void kni_arena_init(struct kni_arena *arena, enum kni_alloc_tag tag, size_t block_bytes);
/* Zeroed memory, aligned to align (power of two, at most 64; 0: 16). NULL when out of memory. */
void *kni_arena_alloc(struct kni_arena *arena, size_t bytes, size_t align);
/* A NUL-terminated copy of n_bytes of text. */
char *kni_arena_strndup(struct kni_arena *arena, const char *text, size_t n_bytes);
void kni_arena_fini(struct kni_arena *arena);

#endif
