/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The loop around a step.
 *
 * Under way. On a device a launched step goes on by itself. Until it is over each call looks at it once, takes news of
 * everything else, and pauses: a few microseconds at first, then a short sleep. The call that takes its results
 * launches no other, so that their logits can be read.
 *
 * Can it stand still? A running job moves unless it needs a block and cannot take one. Then the blocks are with publishes or
 * fetches (both end by themselves: wait for them), or with older jobs that wait for a place. For that rare knot
 * break_stall takes the blocks of the youngest holder, until the oldest running job has all it was promised at submit.
 */
#include "sched/sched.h"

#include <assert.h>

#include "base/alloc.h"
#include "base/clock.h"
#include "base/log.h"
#include "sched/sched_state.h"

#define FLUSH_WAIT_MS 50u
#define WAIT_MS 5u /* for news of the fetcher when nothing else can be done: short enough to go unnoticed in a TTFT */

enum kn_status kni_sched_open(struct kni_sched **out, const struct kni_sched_opts *opts)
{
    assert(opts->prefill_chunk && opts->max_running && opts->n_vocab && (!opts->fetcher || opts->chunk_tokens));
    *out = NULL;
    struct kni_sched *s = kni_calloc(KNI_ALLOC_TAG_SCRATCH, sizeof *s, 0);
    if (!s)
        return KN_E_NOMEM;
    s->opts = *opts;
    s->batch = kni_calloc(KNI_ALLOC_TAG_SCRATCH, opts->max_running * sizeof *s->batch, 0);
    s->items = kni_calloc(KNI_ALLOC_TAG_SCRATCH, opts->max_running * sizeof *s->items, 0);
    s->logits = kni_alloc(KNI_ALLOC_TAG_SCRATCH, (size_t)opts->max_running * opts->n_vocab * sizeof *s->logits, 64);
    s->rows = kni_calloc(KNI_ALLOC_TAG_SCRATCH, kni_sched_max_logits(opts->max_running) * sizeof *s->rows, 0);
    s->n_block_holds = kni_calloc(KNI_ALLOC_TAG_SCRATCH, kni_pool_get_stats(opts->pool).n_blocks * sizeof *s->n_block_holds, 0);
    if (!s->batch || !s->items || !s->logits || !s->rows || !s->n_block_holds) {
        kni_sched_close(&s);
        return KN_E_NOMEM;
    }
    *out = s;
    return KN_OK;
}

void kni_sched_close(struct kni_sched **sched)
{
    struct kni_sched *s = *sched;
    if (!s)
        return;
    assert(!s->waiting.n && !s->fetching.n && !s->running.n && !s->finished.n && !s->leftovers);
    kni_sched_settle(s);
    while (s->holds) {
        struct kni_hold *hold = s->holds;
        s->holds = hold->next;
        kni_sched_release_hold(s, hold);
    }
    kni_free(s->batch);
    kni_free(s->items);
    kni_free(s->logits);
    kni_free(s->score_logits);
    kni_free(s->rows);
    kni_free(s->n_block_holds);
    kni_free(s);
    *sched = NULL;
}

void kni_sched_say_store_error(struct kni_sched *s, enum kn_status status, const char *doing)
{
    if (s->store_error_said)
        return;
    s->store_error_said = true;
    kni_log(KN_LOG_LEVEL_WARN, "sched", "the store failed while %s (%s): requests are served without it; said once",
            doing, kn_status_message(status));
}

enum kn_status kni_sched_submit(struct kni_sched *s, struct kni_job *job)
{
    assert(job->state == KNI_JOB_STATE_NEW);
    if (job->seq.max_blocks > kni_pool_get_stats(s->opts.pool).n_blocks)
        return KN_E_FULL;
    if (job->n_scored < job->n_prompt && !s->score_logits &&
        !(s->score_logits = kni_alloc(KNI_ALLOC_TAG_SCRATCH, (size_t)KNI_SCHED_SCORE_ROWS * s->opts.n_vocab * sizeof *s->logits, 64)))
        return KN_E_NOMEM;
    job->id = ++s->next_id;
    job->submit_ns = kni_now_ns();
    kni_sched_move(s, job, KNI_JOB_STATE_WAITING);
    return KN_OK;
}

uint32_t kni_sched_wait_ms(const struct kni_sched *s, uint32_t limit_ms)
{
    uint64_t now = kni_now_ns(), left_ms = s->due_ns > now ? (s->due_ns - now) / 1000000 + 1 : 1;
    return left_ms < limit_ms ? (uint32_t)left_ms : limit_ms;
}

/* See the head of the file. The oldest job that can still be helped is spared. */
static void break_stall(struct kni_sched *s)
{
    struct kni_job *spared = s->running.first ? s->running.first : s->waiting.first, *victim = NULL;
    const struct kni_job_list *lists[] = {&s->running, &s->waiting};
    for (unsigned i = 0; i < 2; i++)
        for (struct kni_job *job = lists[i]->last; job; job = job->prev)
            if (job != spared && job->seq.n_blocks && (!victim || job->id > victim->id))
                victim = job;
    if (victim) {
        kni_sched_preempt(s, victim);
        return;
    }
    kni_log(KN_LOG_LEVEL_ERROR, "sched", "a request finds no block although it fits the pool: it is ended");
    kni_sched_finish(s, spared, KN_STOP_REASON_ERROR, KN_E_FULL);
}

/* Blocks that are there, and what comes yet, belong to a model that is no more. */
static void end_all_if_changed(struct kni_sched *s)
{
    struct kni_job_list *lists[] = {&s->waiting, &s->fetching, &s->running};
    enum kn_status status = s->opts.check && (s->waiting.n || s->fetching.n || s->running.n) ? s->opts.check(s->opts.user) : KN_OK;
    while (status && (s->waiting.n || s->fetching.n || s->running.n)) /* who leaves one list may come into another */
        for (unsigned i = 0; i < 3; i++)
            if (lists[i]->first)
                kni_sched_finish(s, lists[i]->first, KN_STOP_REASON_ERROR, status);
}

static void take_news(struct kni_sched *s)
{
    kni_sched_poll_publishes(s);
    kni_sched_poll_leftovers(s);
    end_all_if_changed(s);
    kni_sched_expire(s);
    kni_sched_poll_fetches(s);
    kni_sched_admit(s);
}

enum kn_status kni_sched_step(struct kni_sched *s)
{
    if (s->is_under_way) {
        kni_sched_poll_batch(s);
        if (s->is_under_way) { /* it has its blocks; fetches go on, and new jobs begin theirs */
            take_news(s);
            kni_run_pause(s->n_polls);
        }
        return KN_OK;
    }
    take_news(s);
    while (s->opts.fetch_inline && s->fetching.n) { /* the experiment: everybody waits */
        kni_fetcher_wait(s->opts.fetcher, kni_sched_wait_ms(s, WAIT_MS));
        take_news(s);
    }
    if (kni_sched_run_batch(s))
        return KN_OK;
    if (!s->waiting.n && !s->fetching.n && !s->running.n)
        return KN_AGAIN;
    if (s->fetching.n || s->holds || s->leftovers)
        kni_fetcher_wait(s->opts.fetcher, kni_sched_wait_ms(s, WAIT_MS));
    else
        break_stall(s);
    return KN_OK;
}

void kni_sched_settle(struct kni_sched *s)
{
    for (kni_sched_poll_batch(s); s->is_under_way; kni_sched_poll_batch(s))
        kni_run_pause(s->n_polls);
}

void kni_sched_drain(struct kni_sched *s)
{
    kni_sched_settle(s);
    for (kni_sched_poll_leftovers(s); s->leftovers; kni_sched_poll_leftovers(s))
        kni_fetcher_wait(s->opts.fetcher, FLUSH_WAIT_MS);
}

enum kn_status kni_sched_flush(struct kni_sched *s, uint32_t timeout_ms)
{
    uint64_t deadline = kni_now_ns() + timeout_ms * 1000000ull;
    for (;;) {
        kni_sched_poll_publishes(s);
        kni_sched_poll_leftovers(s);
        if (!s->holds && !s->leftovers)
            break;
        uint64_t now = kni_now_ns(), left_ms = FLUSH_WAIT_MS;
        if (timeout_ms) {
            if (now >= deadline)
                return KN_E_TIMEOUT;
            left_ms = (deadline - now) / 1000000 + 1;
        }
        kni_fetcher_wait(s->opts.fetcher, left_ms < FLUSH_WAIT_MS ? (uint32_t)left_ms : FLUSH_WAIT_MS);
    }
    enum kn_status status = s->publish_status;
    s->publish_status = KN_OK;
    return status;
}
