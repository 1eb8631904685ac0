/* SPDX-License-Identifier: Apache-2.0 */
/* Bump allocation in a list of blocks. A request larger than a block gets a block of its own size. */
#include "base/arena.h"

#include <assert.h>
#include <string.h>

#define ALIGN_MAX 64u

struct kni_arena_block {
    struct kni_arena_block *next;
    size_t bytes, used;
    char *data; /* ALIGN_MAX-aligned, follows this header in the same allocation */
};

void kni_arena_init(struct kni_arena *arena, enum kni_alloc_tag tag, size_t block_bytes)
{
    *arena = (struct kni_arena){.tag = tag, .block_bytes = block_bytes ? block_bytes : 64u << 10};
}

static void *bump(struct kni_arena_block *b, size_t bytes, size_t align)
{
    size_t at = (b->used + align - 1) & ~(align - 1);
    if (at > b->bytes || bytes > b->bytes - at)
        return NULL;
    b->used = at + bytes;
    return b->data + at;
}

void *kni_arena_alloc(struct kni_arena *arena, size_t bytes, size_t align)
{
    if (!align)
        align = 16;
    assert(align <= ALIGN_MAX && (align & (align - 1)) == 0);
    void *p = NULL;
    for (struct kni_arena_block *b = arena->current; b; b = b->next) {
        p = bump(b, bytes, align);
        if (p) {
            arena->current = b;
            break;
        }
    }
    if (!p) {
        size_t size = bytes > arena->block_bytes ? bytes : arena->block_bytes, total;
        if (!kni_add_size(size, ALIGN_MAX, &total))
            return NULL;
        char *base = kni_alloc(arena->tag, total, ALIGN_MAX);
        if (!base)
            return NULL;
        _Static_assert(sizeof(struct kni_arena_block) <= ALIGN_MAX, "header fits the gap");
        struct kni_arena_block *b = (struct kni_arena_block *)(void *)base;
        *b = (struct kni_arena_block){.bytes = size, .data = base + ALIGN_MAX};
        struct kni_arena_block **link = &arena->first;
        while (*link)
            link = &(*link)->next;
        *link = b;
        arena->current = b;
        p = bump(b, bytes, align);
    }
    memset(p, 0, bytes);
    arena->used_bytes += bytes;
    return p;
}

char *kni_arena_strndup(struct kni_arena *arena, const char *text, size_t n_bytes)
{
    char *p = n_bytes < SIZE_MAX ? kni_arena_alloc(arena, n_bytes + 1, 1) : NULL;
    if (p)
        memcpy(p, text, n_bytes);
    return p;
}

void kni_arena_fini(struct kni_arena *arena)
{
    for (struct kni_arena_block *b = arena->first, *next; b; b = next) {
        next = b->next;
        kni_free(b);
    }
    *arena = (struct kni_arena){.tag = arena->tag, .block_bytes = arena->block_bytes};
}
