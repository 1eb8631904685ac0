/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Tagged allocator over posix_memalign. A 32-byte header before the payload remembers what free and the counters need.
 * Counters are relaxed atomics: they are statistics and order nothing.
 */
#include "base/alloc.h"

#include <assert.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct header {
    void *base; /* what posix_memalign returned */
    uint64_t bytes;
    uint32_t tag;
    uint32_t magic;
    uint64_t pad;
};
_Static_assert(sizeof(struct header) == 32, "header keeps 16-byte alignment");
#define MAGIC 0x4b4e4131u

static _Atomic uint64_t current_bytes[KNI_ALLOC_TAG_COUNT + 1], peak_bytes[KNI_ALLOC_TAG_COUNT + 1], n_allocs[KNI_ALLOC_TAG_COUNT + 1];
static _Atomic uint64_t fault_countdown;
static _Atomic bool fault_sticky, fault_hit;
static _Thread_local unsigned forbid_depth;

static const char *const tag_names[] = {"misc", "model", "pool", "scratch", "request", "codec", "store", "fetch", "all"};

static void count(unsigned slot, uint64_t bytes)
{
    uint64_t now = atomic_fetch_add_explicit(&current_bytes[slot], bytes, memory_order_relaxed) + bytes;
    uint64_t peak = atomic_load_explicit(&peak_bytes[slot], memory_order_relaxed);
    while (now > peak && !atomic_compare_exchange_weak_explicit(&peak_bytes[slot], &peak, now, memory_order_relaxed, memory_order_relaxed))
        ;
    atomic_fetch_add_explicit(&n_allocs[slot], 1, memory_order_relaxed);
}

static bool fault(void)
{
    uint64_t left = atomic_load_explicit(&fault_countdown, memory_order_relaxed);
    while (left) {
        if (left == 1 && atomic_load_explicit(&fault_sticky, memory_order_relaxed)) {
            atomic_store_explicit(&fault_hit, true, memory_order_relaxed);
            return true;
        }
        if (atomic_compare_exchange_weak_explicit(&fault_countdown, &left, left - 1, memory_order_relaxed, memory_order_relaxed)) {
            if (left != 1)
                return false;
            atomic_store_explicit(&fault_hit, true, memory_order_relaxed);
            return true;
        }
    }
    return false;
}

void *kni_alloc(enum kni_alloc_tag tag, size_t bytes, size_t align)
{
    if (forbid_depth) {
        fprintf(stderr, "kinema: allocation of %zu bytes (%s) inside a step that must not allocate\n", bytes, tag_names[tag]);
        abort();
    }
    if (align < 16)
        align = 16;
    assert((align & (align - 1)) == 0);
    size_t room = align > sizeof(struct header) ? align : sizeof(struct header);
    size_t total;
    void *base;
    if (fault() || !kni_add_size(bytes, room, &total) || posix_memalign(&base, align, total))
        return NULL;
    char *payload = (char *)base + room;
    struct header *h = (struct header *)(void *)(payload - sizeof *h);
    *h = (struct header){.base = base, .bytes = bytes, .tag = tag, .magic = MAGIC};
    count(tag, bytes);
    count(KNI_ALLOC_TAG_COUNT, bytes);
    return payload;
}

void *kni_calloc(enum kni_alloc_tag tag, size_t bytes, size_t align)
{
    void *p = kni_alloc(tag, bytes, align);
    if (p)
        memset(p, 0, bytes);
    return p;
}

void kni_free(void *memory)
{
    if (!memory)
        return;
    struct header *h = (struct header *)(void *)((char *)memory - sizeof *h);
    assert(h->magic == MAGIC);
    h->magic = 0;
    atomic_fetch_sub_explicit(&current_bytes[h->tag], h->bytes, memory_order_relaxed);
    atomic_fetch_sub_explicit(&current_bytes[KNI_ALLOC_TAG_COUNT], h->bytes, memory_order_relaxed);
    free(h->base);
}

void *kni_realloc(enum kni_alloc_tag tag, void *old, size_t bytes)
{
    void *p = kni_alloc(tag, bytes, 0);
    if (p && old) {
        const struct header *h = (const struct header *)(const void *)((const char *)old - sizeof *h);
        memcpy(p, old, h->bytes < bytes ? (size_t)h->bytes : bytes);
        kni_free(old);
    }
    return p;
}

char *kni_strdup(enum kni_alloc_tag tag, const char *text)
{
    size_t n = strlen(text) + 1;
    char *p = kni_alloc(tag, n, 0);
    if (p)
        memcpy(p, text, n);
    return p;
}

bool kni_mul_size(size_t a, size_t b, size_t *out)
{
    return !__builtin_mul_overflow(a, b, out);
}

bool kni_add_size(size_t a, size_t b, size_t *out)
{
    return !__builtin_add_overflow(a, b, out);
}

struct kni_alloc_stats kni_alloc_get_stats(enum kni_alloc_tag tag)
{
    return (struct kni_alloc_stats){
        .current_bytes = atomic_load_explicit(&current_bytes[tag], memory_order_relaxed),
        .peak_bytes = atomic_load_explicit(&peak_bytes[tag], memory_order_relaxed),
        .n_allocs = atomic_load_explicit(&n_allocs[tag], memory_order_relaxed),
    };
}

void kni_alloc_fault_arm(uint64_t n, bool sticky)
{
    atomic_store_explicit(&fault_hit, false, memory_order_relaxed);
    atomic_store_explicit(&fault_sticky, sticky, memory_order_relaxed);
    atomic_store_explicit(&fault_countdown, n, memory_order_relaxed);
}

bool kni_alloc_fault_hit(void)
{
    return atomic_load_explicit(&fault_hit, memory_order_relaxed);
}

void kni_alloc_forbid_begin(void)
{
    forbid_depth++;
}

void kni_alloc_forbid_end(void)
{
    assert(forbid_depth);
    forbid_depth--;
}
