/* SPDX-License-Identifier: Apache-2.0 */
/* The budget of parses, see parse_budget.h. */
#include "server/api/parse_budget.h"

#include <stdlib.h>
#ifdef __GLIBC__
#include <malloc.h>
#endif

#define TRIM_QUIET_BYTES ((uint64_t)4 << 20) /* with nothing under way, so much is worth a trim, which takes about a millisecond */
#define TRIM_BUSY_BYTES ((uint64_t)64 << 20)

void kni_parse_budget_init(struct kni_parse_budget *budget, uint64_t max)
{
    budget->max = max;
    atomic_init(&budget->in_use, 0);
    atomic_init(&budget->peak, 0);
    atomic_init(&budget->since_trim, 0);
    atomic_init(&budget->n_refused, 0);
    atomic_init(&budget->n_trims, 0);
}

bool kni_parse_budget_take(struct kni_parse_budget *budget, uint64_t n_bytes)
{
    uint64_t used = atomic_load_explicit(&budget->in_use, memory_order_relaxed), peak = atomic_load_explicit(&budget->peak, memory_order_relaxed);
    do {
        if (n_bytes > budget->max || used > budget->max - n_bytes) {
            atomic_fetch_add_explicit(&budget->n_refused, 1, memory_order_relaxed);
            return false;
        }
    } while (!atomic_compare_exchange_weak_explicit(&budget->in_use, &used, used + n_bytes, memory_order_relaxed, memory_order_relaxed));
    while (peak < used + n_bytes &&
           !atomic_compare_exchange_weak_explicit(&budget->peak, &peak, used + n_bytes, memory_order_relaxed, memory_order_relaxed))
        ;
    return true;
}

void kni_parse_budget_give(struct kni_parse_budget *budget, uint64_t n_bytes)
{
    const uint64_t left = atomic_fetch_sub_explicit(&budget->in_use, n_bytes, memory_order_relaxed) - n_bytes;
    const uint64_t freed = atomic_fetch_add_explicit(&budget->since_trim, n_bytes, memory_order_relaxed) + n_bytes;
    if (freed < (left ? TRIM_BUSY_BYTES : TRIM_QUIET_BYTES) || !atomic_exchange_explicit(&budget->since_trim, 0, memory_order_relaxed))
        return; /* zero: another thread does it */
    atomic_fetch_add_explicit(&budget->n_trims, 1, memory_order_relaxed);
#ifdef __GLIBC__
    malloc_trim(0);
#endif
}
