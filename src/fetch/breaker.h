/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A circuit breaker: after some failures in a row the store is left alone for a while, doubling with each further failure,
 * so that a dead store costs an engine nothing. Misses are not failures. Plain memory, guarded by its owner's lock.
 *
 *     closed --3 failures--> open (1 s) --time passes--> half open --failure--> open (2 s, 4 s .. 60 s)
 *                                                                  --success--> closed
 *            --a call hangs--> open (60 s, or until that call ends)
 */
#ifndef KNI_FETCH_BREAKER_H
#define KNI_FETCH_BREAKER_H

#include <stdbool.h>
#include <stdint.h>

struct kni_breaker {
    uint32_t n_failures;   /* in a row */
    uint64_t open_until_ns; /* the store is to be left alone until then; 0: closed */
    uint64_t backoff_ns;   /* of the last opening */
};

/* True when this failure opened it: say so, once. */
bool kni_breaker_fail(struct kni_breaker *b, uint64_t now_ns);
/* True when this success closed it. */
bool kni_breaker_succeed(struct kni_breaker *b);
/* A call hangs: opens at once, for the longest pause, as the call that is out will tell when it ends. True when this opened it. */
bool kni_breaker_trip(struct kni_breaker *b, uint64_t now_ns);
/* The call that hung has ended in a failure: the shortest pause again. */
void kni_breaker_ease(struct kni_breaker *b, uint64_t now_ns);

#endif
