/* SPDX-License-Identifier: Apache-2.0 */
/*
 * For tests of the engine through its public API: a tiny model in a file, a prompt, one request run to its end.
 * Everything asserts with cmocka; names of temporary files carry the process id, so that tests run side by side.
 */
#ifndef KN_TEST_ENGINE_BED_H
#define KN_TEST_ENGINE_BED_H

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "engine/engine_state.h"
#include "kinema/kinema.h"
#include "support/tiny_model.h"

#define KN_BED_MAX_NEW 256

/* What came of a request. */
struct kn_answer {
    int32_t tokens[KN_BED_MAX_NEW];
    float gaps[KN_BED_MAX_NEW]; /* best logit less the second, when asked for logits */
    uint32_t n;
    enum kn_stop_reason reason;
    enum kn_status status;
    struct kn_request_stats stats;
};

static inline void kn_bed_path(char out[256], const char *what)
{
    snprintf(out, 256, "%s/test-%ld-%s", KN_BUILD_DIR, (long)getpid(), what);
}

/* n bytes of varied text as tokens of the tiny model. */
static inline void kn_bed_prompt(int32_t *tokens, uint32_t n, uint64_t seed)
{
    for (uint32_t i = 0; i < n; i++)
        tokens[i] = KN_TINY_FIRST_BYTE + (int32_t)(kn_tiny_next(&seed) % 250);
}

/* Takes what events there are; true after DONE. */
static inline bool kn_bed_drain(struct kn_request *r, struct kn_answer *a, uint32_t n_vocab)
{
    struct kn_event ev = {.size = sizeof ev};
    while (kn_request_next(r, &ev) == KN_OK) {
        if (ev.kind == KN_EVENT_KIND_DONE) {
            a->reason = ev.reason;
            a->status = ev.status;
            a->stats.size = sizeof a->stats;
            kn_request_get_stats(r, &a->stats);
            return true;
        }
        assert_true(a->n < KN_BED_MAX_NEW);
        if (ev.logits) {
            float best = -1e30f, second = -1e30f;
            for (uint32_t i = 0; i < n_vocab; i++) {
                float x = ev.logits[i];
                second = x > best ? best : x > second ? x : second;
                best = x > best ? x : best;
            }
            a->gaps[a->n] = best - second;
        }
        a->tokens[a->n++] = ev.token;
    }
    return false;
}

/* A whole step, for tests that count them: where steps are delayed (support/delayed_run.c) several calls make one. */
static inline enum kn_status kn_bed_step(struct kn_engine *e)
{
    enum kn_status status = kn_engine_step(e);
    while (kni_sched_is_under_way(e->sched))
        assert_int_equal(kn_engine_step(e), KN_OK);
    return status;
}

/* Steps until every one of n requests is done. */
static inline void kn_bed_run(struct kn_engine *e, struct kn_request **r, struct kn_answer *a, uint32_t n, uint32_t n_vocab)
{
    uint32_t n_done = 0;
    for (uint32_t i = 0; i < n; i++)
        a[i] = (struct kn_answer){0};
    while (n_done < n) {
        assert_int_equal(kn_engine_step(e), KN_OK);
        for (uint32_t i = 0; i < n; i++)
            if (!a[i].reason)
                n_done += kn_bed_drain(r[i], &a[i], n_vocab);
    }
}

#endif
