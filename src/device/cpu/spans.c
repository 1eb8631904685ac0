/* SPDX-License-Identifier: Apache-2.0 */
#include "device/cpu/spans.h"

#include <assert.h>
#include <string.h>

#include "base/alloc.h"

#define FIRST_CAPACITY 16u

void kni_spans_fini(struct kni_spans *t)
{
    kni_free(t->spans);
    *t = (struct kni_spans){0};
}

bool kni_spans_make_room(struct kni_spans *t)
{
    if (t->n < t->capacity)
        return true;
    uint32_t capacity = t->capacity ? t->capacity * 2 : FIRST_CAPACITY;
    struct kni_span *spans = kni_realloc(KNI_ALLOC_TAG_MISC, t->spans, capacity * sizeof *spans);
    if (!spans)
        return false;
    t->spans = spans;
    t->capacity = capacity;
    return true;
}

/* How many spans begin at or before at. */
static uint32_t count_until(const struct kni_spans *t, uint64_t at)
{
    uint32_t low = 0, high = t->n;
    while (low < high) {
        uint32_t middle = low + (high - low) / 2;
        if (t->spans[middle].at <= at)
            low = middle + 1;
        else
            high = middle;
    }
    return low;
}

void kni_spans_add(struct kni_spans *t, struct kni_span span)
{
    assert(t->n < t->capacity && !kni_spans_overlapping(t, span.at, span.bytes));
    uint32_t i = count_until(t, span.at);
    memmove(t->spans + i + 1, t->spans + i, (t->n - i) * sizeof *t->spans);
    t->spans[i] = span;
    t->n++;
}

void kni_spans_remove(struct kni_spans *t, struct kni_span *span)
{
    uint32_t i = (uint32_t)(span - t->spans);
    assert(i < t->n);
    memmove(t->spans + i, t->spans + i + 1, (t->n - i - 1) * sizeof *t->spans);
    if (--t->n == 0)
        kni_spans_fini(t);
}

struct kni_span *kni_spans_find(const struct kni_spans *t, uint64_t at)
{
    uint32_t n = count_until(t, at);
    return n && t->spans[n - 1].at == at ? &t->spans[n - 1] : NULL;
}

struct kni_span *kni_spans_holding(const struct kni_spans *t, uint64_t at)
{
    uint32_t n = count_until(t, at);
    return n && at - t->spans[n - 1].at < t->spans[n - 1].bytes ? &t->spans[n - 1] : NULL;
}

struct kni_span *kni_spans_overlapping(const struct kni_spans *t, uint64_t at, uint64_t bytes)
{
    struct kni_span *holding = kni_spans_holding(t, at);
    if (holding)
        return holding;
    uint32_t n = count_until(t, at);
    return n < t->n && t->spans[n].at - at < bytes ? &t->spans[n] : NULL;
}
