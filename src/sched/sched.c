/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The loop around a step, and the ends of jobs: finish, publish, cancel, remove.
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
    if (!s->batch || !s->items || !s->logits) {
        kni_sched_close(&s);
        return KN_E_NOMEM;
    }
    *out = s;
    return KN_OK;
}

static void release_hold(struct kni_sched *s, struct kni_hold *hold)
{
    for (uint32_t i = hold->n_blocks; i-- > 0;) /* last first: see kv/pool.c on eviction */
        kni_pool_unref(s->opts.pool, hold->block_ids[i]);
    kni_free(hold);
}

void kni_sched_close(struct kni_sched **sched)
{
    struct kni_sched *s = *sched;
    if (!s)
        return;
    assert(!s->waiting.n && !s->fetching.n && !s->running.n && !s->finished.n);
    while (s->holds) {
        struct kni_hold *hold = s->holds;
        s->holds = hold->next;
        release_hold(s, hold);
    }
    kni_free(s->batch);
    kni_free(s->items);
    kni_free(s->logits);
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

static struct kni_job_list *list_of(struct kni_sched *s, enum kni_job_state state)
{
    switch (state) {
    case KNI_JOB_STATE_WAITING: return &s->waiting;
    case KNI_JOB_STATE_FETCHING: return &s->fetching;
    case KNI_JOB_STATE_RUNNING: return &s->running;
    case KNI_JOB_STATE_FINISHED: return &s->finished;
    case KNI_JOB_STATE_NEW: break;
    }
    return NULL;
}

void kni_sched_move(struct kni_sched *s, struct kni_job *job, enum kni_job_state state)
{
    struct kni_job_list *from = list_of(s, job->state), *to = list_of(s, state);
    if (from)
        kni_job_list_remove(from, job);
    job->state = state;
    if (to)
        kni_job_list_insert(to, job);
}

enum kn_status kni_sched_submit(struct kni_sched *s, struct kni_job *job)
{
    assert(job->state == KNI_JOB_STATE_NEW);
    if (job->seq.max_blocks > kni_pool_get_stats(s->opts.pool).n_blocks)
        return KN_E_FULL;
    job->id = ++s->next_id;
    job->submit_ns = kni_now_ns();
    kni_sched_move(s, job, KNI_JOB_STATE_WAITING);
    return KN_OK;
}

/* Hands the whole chunks of prompt and answer to the fetcher. Their blocks stay referenced until it says that it is done. */
static void publish(struct kni_sched *s, struct kni_job *job)
{
    struct kni_hold *hold = job->hold;
    uint32_t n = job->seq.n_tokens - (s->opts.fetcher ? job->seq.n_tokens % s->opts.chunk_tokens : 0);
    if (!s->opts.fetcher || !hold || !n || (!job->fetch_first && n <= job->stats.n_fetched)) /* all of it came from the store */
        return;
    struct kni_kv_view view = kni_seq_view(&job->seq);
    view.n_blocks = n / KNI_BLOCK_TOKENS;
    hold->n_blocks = view.n_blocks;
    for (uint32_t i = 0; i < hold->n_blocks; i++) {
        hold->block_ids[i] = view.block_ids[i];
        kni_pool_ref(s->opts.pool, hold->block_ids[i]);
    }
    job->hold = NULL;
    enum kn_status status = kni_publish_submit(s->opts.fetcher, job->tokens, n, job->salt, &view, hold);
    if (status) {
        release_hold(s, hold);
        if (status == KN_E_FULL)
            kni_log(KN_LOG_LEVEL_DEBUG, "sched", "a prefix of %u tokens is not published: too many wait for the store already", n);
        else
            kni_sched_say_store_error(s, status, "queueing a publish");
        return;
    }
    hold->next = s->holds;
    s->holds = hold;
}

void kni_sched_finish(struct kni_sched *s, struct kni_job *job, enum kn_stop_reason reason, enum kn_status status)
{
    job->reason = reason;
    job->status = status;
    job->stats.total_ns = kni_now_ns() - job->submit_ns;
    if (job->fetch)
        kni_fetch_end(&job->fetch);
    kni_sched_move(s, job, KNI_JOB_STATE_FINISHED);
    if (reason == KN_STOP_REASON_STOP || reason == KN_STOP_REASON_LENGTH) {
        kni_seq_truncate(&job->seq, job->seq.n_tokens); /* reserved blocks */
        publish(s, job);
    } else {
        kni_seq_truncate(&job->seq, 0);
        job->kv_dropped = true;
    }
}

void kni_sched_cancel(struct kni_sched *s, struct kni_job *job)
{
    if (job->state != KNI_JOB_STATE_FINISHED && job->state != KNI_JOB_STATE_NEW)
        kni_sched_finish(s, job, KN_STOP_REASON_CANCELLED, KN_E_CANCELLED);
}

void kni_sched_remove(struct kni_sched *s, struct kni_job *job)
{
    kni_sched_cancel(s, job);
    kni_seq_truncate(&job->seq, 0);
    kni_sched_move(s, job, KNI_JOB_STATE_NEW);
}

static void poll_publishes(struct kni_sched *s)
{
    void *cookie;
    enum kn_status status;
    while (s->holds && kni_publish_poll(s->opts.fetcher, &cookie, &status)) {
        struct kni_hold **link = &s->holds;
        while (*link && *link != cookie)
            link = &(*link)->next;
        assert(*link);
        *link = (*link)->next;
        release_hold(s, cookie);
        if (status && !s->publish_status) /* the fetcher has logged it */
            s->publish_status = status;
    }
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

enum kn_status kni_sched_step(struct kni_sched *s)
{
    poll_publishes(s);
    kni_sched_poll_fetches(s);
    kni_sched_admit(s);
    if (kni_sched_run_batch(s))
        return KN_OK;
    if (!s->waiting.n && !s->fetching.n && !s->running.n)
        return KN_AGAIN;
    if (s->fetching.n || s->holds)
        kni_fetcher_wait(s->opts.fetcher, WAIT_MS);
    else
        break_stall(s);
    return KN_OK;
}

enum kn_status kni_sched_flush(struct kni_sched *s, uint32_t timeout_ms)
{
    uint64_t deadline = kni_now_ns() + timeout_ms * 1000000ull;
    for (poll_publishes(s); s->holds; poll_publishes(s)) {
        uint64_t now = kni_now_ns(), left_ms = 50;
        if (timeout_ms) {
            if (now >= deadline)
                return KN_E_TIMEOUT;
            left_ms = (deadline - now) / 1000000 + 1;
        }
        kni_fetcher_wait(s->opts.fetcher, left_ms < 50 ? (uint32_t)left_ms : 50);
    }
    enum kn_status status = s->publish_status;
    s->publish_status = KN_OK;
    return status;
}

struct kni_sched_stats kni_sched_get_stats(const struct kni_sched *s)
{
    return s->stats;
}
