/* SPDX-License-Identifier: Apache-2.0 */
/*
 * How jobs end: chosen stop, length, error, cancel, deadline; and what is left of them: a publish in the background.
 *
 *     any state --finish--> FINISHED --remove--> NEW
 *                  |            `- keeps its blocks (prefix cache, digest) until others need them
 *                  |- publish, or a fetch given up: references of their own on the blocks (struct kni_hold) until the
 *                  |  fetcher has let go
 *                  `- a step under way: the same, until it is over (batch.c)
 *
 * Deadlines are looked at once a step, for every job in every state: the lists are short, and a job without a token for too
 * long is late wherever it waits.
 * Owner: the scheduler, in its thread. Nothing here waits or allocates.
 */
#include <assert.h>

#include "base/alloc.h"
#include "base/clock.h"
#include "base/log.h"
#include "sched/sched_state.h"

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
    s->n_moves++;
    if (to)
        kni_job_list_insert(to, job);
}

void kni_sched_release_hold(struct kni_sched *s, struct kni_hold *hold)
{
    for (uint32_t i = hold->n_blocks; i-- > 0;) { /* last first: see kv/pool.c on eviction */
        if (!hold->is_fetch)
            s->n_publish_blocks -= --s->n_block_holds[hold->block_ids[i]] == 0;
        kni_pool_unref(s->opts.pool, hold->block_ids[i]);
    }
    kni_free(hold);
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
        hold->qualities[i] = (uint8_t)kni_pool_quality(s->opts.pool, view.block_ids[i]);
        kni_pool_ref(s->opts.pool, hold->block_ids[i]);
        s->n_publish_blocks += s->n_block_holds[hold->block_ids[i]]++ == 0;
    }
    job->hold = NULL;
    enum kn_status status = kni_publish_submit(s->opts.fetcher, job->tokens, n, job->salt, &view, hold->qualities, hold);
    if (status) {
        kni_sched_release_hold(s, hold);
        if (status == KN_E_FULL)
            kni_log(KN_LOG_LEVEL_DEBUG, "sched", "a prefix of %u tokens is not published: too many wait for the store already", n);
        else if (status != KN_E_STATE) /* read-only: has been said */
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
    if (job->state == KNI_JOB_STATE_FETCHING) {
        kni_sched_drop_fetch(s, job);
        job->stats.n_fetched = 0;
        job->stats.n_done = job->seq.n_tokens;
    }
    kni_sched_leave_batch(s, job);
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

void kni_sched_stop(struct kni_sched *s, struct kni_job *job)
{
    if (job->state != KNI_JOB_STATE_FINISHED && job->state != KNI_JOB_STATE_NEW)
        kni_sched_finish(s, job, KN_STOP_REASON_STOP, KN_OK);
}

void kni_sched_expire(struct kni_sched *s)
{
    const struct kni_job_list *lists[] = {&s->waiting, &s->fetching, &s->running};
    uint64_t now = kni_now_ns();
    s->due_ns = UINT64_MAX;
    for (unsigned i = 0; i < 3; i++)
        for (struct kni_job *job = lists[i]->first, *next; job; job = next) {
            uint64_t due = kni_job_due_ns(job);
            next = job->next;
            if (due <= now) {
                kni_sched_finish(s, job, KN_STOP_REASON_ERROR, KN_E_TIMEOUT);
                next = lists[i]->first; /* others may have left the list with it */
            } else if (due < s->due_ns)
                s->due_ns = due;
        }
}

void kni_sched_remove(struct kni_sched *s, struct kni_job *job)
{
    kni_sched_cancel(s, job);
    kni_seq_truncate(&job->seq, 0);
    kni_sched_move(s, job, KNI_JOB_STATE_NEW);
}

/* Takes the hold of a publish that is over out of the list and lets its blocks go. */
static void end_publish(struct kni_sched *s, struct kni_hold *hold)
{
    struct kni_hold **link = &s->holds;
    while (*link && *link != hold)
        link = &(*link)->next;
    assert(*link);
    *link = hold->next;
    kni_sched_release_hold(s, hold);
}

bool kni_sched_withdraw(struct kni_sched *s)
{
    void *cookie;
    if (!s->holds || !kni_publish_withdraw(s->opts.fetcher, &cookie))
        return false;
    end_publish(s, cookie);
    kni_log(KN_LOG_LEVEL_DEBUG, "sched", "a prefix is not published: its blocks are needed");
    return true;
}

void kni_sched_poll_publishes(struct kni_sched *s)
{
    void *cookie;
    enum kn_status status;
    while (s->holds && kni_publish_poll(s->opts.fetcher, &cookie, &status)) {
        end_publish(s, cookie);
        if (status && !s->publish_status) /* the fetcher has logged it */
            s->publish_status = status;
    }
}
