/* SPDX-License-Identifier: Apache-2.0 */
/*
 * For the scheduler's tests: a pool, a model whose every token depends on every earlier value in the pool (support/fake_run.h)
 * and a fetcher in memory (support/fake_fetch.h). Include it in one test file a program: both take the library's place.
 */
#ifndef KN_TEST_SCHED_SUPPORT_H
#define KN_TEST_SCHED_SUPPORT_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "base/alloc.h"
#include "kinema/log.h"
#include "sched/sched.h"
#include "support/fake_fetch.h"
#include "support/fake_run.h"

#define CHUNK 32u
#define MAX_LEN 400u

struct bed {
    struct kni_pool *pool;
    struct kni_run *run;
    struct kn_fake_run *fake; /* what computes for it */
    struct kni_fetcher *fetcher; /* borrowed */
    struct kni_sched *sched;
};

static int32_t stop_token = -1;
static const struct kni_run_ops *bed_ops = &kn_fake_ops; /* of runs that are opened from now on */

static inline enum kn_stop_reason take(void *user, struct kni_job *job, int32_t token)
{
    (void)user;
    (void)job;
    return token == stop_token ? KN_STOP_REASON_STOP : KN_STOP_REASON_NONE;
}

/* opts: how fetches are scheduled; the rest is filled in. */
static inline void bed_open_opts(struct bed *b, uint32_t n_blocks, uint32_t prefill_chunk, uint32_t max_running, bool no_index, struct kni_fetcher *f,
                                 struct kni_sched_opts so)
{
    struct kni_pool_opts po = {.layout = kn_fake_layout, .n_blocks = n_blocks, .no_prefix_index = no_index};
    assert_int_equal(kni_pool_open(&b->pool, &po, NULL), KN_OK);
    struct kni_run_opts ro = {.ops = bed_ops,
                              .model = &kn_fake_model,
                              .max_tokens = kni_sched_max_rows(prefill_chunk, max_running),
                              .max_logits = kni_sched_max_logits(max_running),
                              .n_ctx = 1u << 24};
    assert_int_equal(kni_run_open(&b->run, &ro, NULL), KN_OK);
    b->fake = kn_fake_last;
    b->fetcher = f;
    so.pool = b->pool;
    so.run = b->run;
    so.fetcher = f;
    so.prefill_chunk = prefill_chunk;
    so.chunk_tokens = CHUNK;
    so.max_running = max_running;
    so.n_vocab = KN_FAKE_VOCAB;
    so.take = take;
    if (!so.fetch_quality)
        so.fetch_quality = KN_KV_QUALITY_EXACT;
    assert_int_equal(kni_sched_open(&b->sched, &so), KN_OK);
}

static inline void bed_open(struct bed *b, uint32_t n_blocks, uint32_t prefill_chunk, uint32_t max_running, bool no_index, struct kni_fetcher *f)
{
    bed_open_opts(b, n_blocks, prefill_chunk, max_running, no_index, f, (struct kni_sched_opts){0});
}

static inline void bed_close(struct bed *b)
{
    if (b->fetcher)
        assert_int_equal(kni_sched_flush(b->sched, 0), KN_OK);
    assert_null(kni_sched_check(b->sched));
    kni_sched_drain(b->sched);
    assert_null(kni_sched_check(b->sched));
    assert_int_equal(kni_pool_available(b->pool), kni_pool_get_stats(b->pool).n_blocks);
    kni_sched_close(&b->sched);
    kni_run_close(&b->run);
    kni_pool_close(&b->pool);
}

static inline struct kni_fetcher *fetcher_open(void)
{
    struct kni_fetcher *f;
    struct kni_fetcher_opts o = {.chunk_tokens = CHUNK, .kv = kn_fake_layout};
    kni_fetcher_open(&f, &o, NULL);
    return f;
}

static inline void job_init(struct kni_job *job, struct bed *b, const int32_t *tokens, uint32_t n, uint32_t n_new, const char *salt)
{
    struct kni_job_opts o = {.tokens = tokens, .n_prompt = n, .max_new = n_new, .salt = salt};
    assert_int_equal(kni_job_init(job, b->pool, &o), KN_OK);
}

static inline void submit(struct kni_job *job, struct bed *b, const int32_t *tokens, uint32_t n, uint32_t n_new)
{
    job_init(job, b, tokens, n, n_new, NULL);
    assert_int_equal(kni_sched_submit(b->sched, job), KN_OK);
}

static inline void done(struct kni_job *job, struct bed *b)
{
    kni_sched_remove(b->sched, job);
    kni_job_fini(job);
}

/* One call: where steps are delayed it may launch one, look in vain, or take one. Steps must not allocate through
 * kni_alloc. */
static inline enum kn_status part_of_step(struct bed *b)
{
    kni_alloc_forbid_begin();
    enum kn_status status = kni_sched_step(b->sched);
    kni_alloc_forbid_end();
    return status;
}

/* A whole step. */
static inline enum kn_status step(struct bed *b)
{
    enum kn_status status = part_of_step(b);
    while (kni_sched_is_under_way(b->sched))
        assert_int_equal(part_of_step(b), KN_OK);
    return status;
}

static inline void run_until_idle(struct bed *b)
{
    uint32_t n = 0;
    while (step(b) == KN_OK)
        assert_true(++n < 200000);
}

static inline void check_answer(const struct kni_job *job)
{
    int32_t want[MAX_LEN + 64];
    memcpy(want, job->tokens, job->n_prompt * sizeof *want);
    kn_fake_generate(want, job->n_prompt, kni_job_n_generated(job));
    assert_memory_equal(job->tokens, want, job->n_known * sizeof *want);
}

static inline void make_prompt(int32_t *tokens, uint32_t n, int32_t seed)
{
    for (uint32_t i = 0; i < n; i++)
        tokens[i] = (int32_t)((i * 7 + (uint32_t)seed) % KN_FAKE_VOCAB);
}

#endif
