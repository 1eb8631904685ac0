/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Memory for bodies that are being parsed: one budget over all connections. A parse takes what it may need at most before it begins,
 * and gives it back when its tree is freed. What came back goes back to the system now and then: a thread's heap keeps freed memory
 * otherwise, and connections have many. Any thread; no lock.
 */
#ifndef KNI_SERVER_PARSE_BUDGET_H
#define KNI_SERVER_PARSE_BUDGET_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

struct kni_parse_budget {
    uint64_t max;                   /* constant */
    _Atomic uint64_t in_use, peak;  /* relaxed: values alone */
    _Atomic uint64_t since_trim;    /* given back since the heaps were last trimmed; relaxed */
    _Atomic uint64_t n_refused, n_trims;
};

void kni_parse_budget_init(struct kni_parse_budget *budget, uint64_t max);
/* False: the others leave too little. n_bytes above max never fit. */
bool kni_parse_budget_take(struct kni_parse_budget *budget, uint64_t n_bytes);
void kni_parse_budget_give(struct kni_parse_budget *budget, uint64_t n_bytes);

#endif
