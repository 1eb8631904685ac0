/* SPDX-License-Identifier: Apache-2.0 */
#include "fetch/breaker.h"

#define FAILURES_TO_OPEN 3u
#define FIRST_BACKOFF_NS 1000000000ull
#define LAST_BACKOFF_NS 60000000000ull

bool kni_breaker_fail(struct kni_breaker *b, uint64_t now_ns)
{
    b->n_failures++;
    if (b->open_until_ns && now_ns < b->open_until_ns)
        return false; /* a call that was under way when it opened */
    if (!b->open_until_ns && b->n_failures < FAILURES_TO_OPEN)
        return false;
    bool first = !b->open_until_ns;
    b->backoff_ns = first ? FIRST_BACKOFF_NS : b->backoff_ns * 2 > LAST_BACKOFF_NS ? LAST_BACKOFF_NS : b->backoff_ns * 2;
    b->open_until_ns = now_ns + b->backoff_ns;
    return first;
}

bool kni_breaker_succeed(struct kni_breaker *b)
{
    bool was_open = b->open_until_ns != 0;
    *b = (struct kni_breaker){0};
    return was_open;
}

bool kni_breaker_trip(struct kni_breaker *b, uint64_t now_ns)
{
    bool first = !b->open_until_ns;
    b->n_failures++;
    b->backoff_ns = LAST_BACKOFF_NS;
    b->open_until_ns = now_ns + b->backoff_ns;
    return first;
}

void kni_breaker_ease(struct kni_breaker *b, uint64_t now_ns)
{
    if (!b->open_until_ns)
        return;
    b->backoff_ns = FIRST_BACKOFF_NS;
    b->open_until_ns = now_ns + b->backoff_ns;
}
