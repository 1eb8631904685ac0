/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Who gets in, what it starts from, and who has to leave.
 *
 * Nobody gets in when the model's files have changed: sched.c asks before this and ends all jobs.
 *
 * A job that comes to the head of the queue first takes what the pool already has. If the store may have whole chunks
 * beyond that, it waits aside for a fetch (fetching.c). Then it joins the steps when there is room for all its tokens.
 *
 * Who has to leave, in this order: finished jobs that nobody closed (they lose nothing but the digest), publishes that have not
 * begun (their prefix is not stored: it can be, the next time), the youngest job that holds blocks.
 */
#include "sched/sched_state.h"

#define PUBLISH_SHARE 4u /* a quarter of the pool */
#define LOOK_STEPS 32u   /* the queue's head looks again at the latest after so many */

/* Counts prompt tokens first .. end - 1 under the quality of their blocks. */
static void book_by(const struct kni_job *job, uint32_t first, uint32_t end, uint64_t *of_job, uint64_t *of_all)
{
    while (first < end) {
        uint32_t b = first / KNI_BLOCK_TOKENS, next = (b + 1) * KNI_BLOCK_TOKENS < end ? (b + 1) * KNI_BLOCK_TOKENS : end;
        enum kn_kv_quality q = kni_pool_quality(job->seq.pool, job->seq.block_ids[b]);
        of_job[q] += next - first;
        of_all[q] += next - first;
        first = next;
    }
}

/* Takes from the index what it has and books it. What the job has had before (n_counted) is no news: after a preemption it
 * finds its own blocks again. */
void kni_sched_match(struct kni_sched *s, struct kni_job *job)
{
    uint32_t before = job->seq.n_tokens;
    uint32_t n = kni_seq_match(&job->seq, job->tokens, kni_job_n_reusable(job), job->least);
    job->stats.n_done = n = n < job->n_prompt ? n : job->n_prompt;
    if (!job->is_booked) { /* the first start closes the books */
        if (!before)
            job->stats.n_cached = job->stats.n_fetched = 0;
        job->stats.n_cached += n - before;
    } else if (n > job->n_counted) {
        job->stats.n_cached += n - job->n_counted;
        book_by(job, job->n_counted, n, job->stats.n_cached_by, s->stats.n_cached_by);
        kni_sched_count(s, job, &s->stats.n_cached_tokens);
    }
}

/* Into the steps. The first time the prompt's tokens that are there are booked by where they came from. */
static void start_running(struct kni_sched *s, struct kni_job *job)
{
    if (!job->is_booked) {
        uint64_t all = 0;
        job->is_booked = true;
        kni_sched_count(s, job, &all);
        s->stats.n_fetched_tokens += job->stats.n_fetched;
        s->stats.n_cached_tokens += all - job->stats.n_fetched;
        uint32_t fetched = job->stats.n_fetched ? job->fetch_first : job->n_counted, after = fetched + (uint32_t)job->stats.n_fetched;
        book_by(job, 0, fetched, job->stats.n_cached_by, s->stats.n_cached_by);
        book_by(job, fetched, after, job->stats.n_fetched_by, s->stats.n_fetched_by);
        book_by(job, after, job->n_counted, job->stats.n_cached_by, s->stats.n_cached_by);
    }
    kni_sched_move(s, job, KNI_JOB_STATE_RUNNING);
}

/* Blocks that those that run have not taken yet, and one for each one's answer. */
static uint32_t running_need(const struct kni_sched *s)
{
    uint32_t n_need = 0;
    for (const struct kni_job *o = s->running.first; o; o = o->next) {
        uint32_t n = kni_blocks_for_tokens(o->n_known);
        n_need += 1 + (n > o->seq.n_blocks ? n - o->seq.n_blocks : 0);
    }
    return n_need;
}

static int64_t spare_blocks(const struct kni_sched *s)
{
    return (int64_t)kni_pool_available(s->opts.pool) - running_need(s);
}

/* Whether the head, which found no room and holds nothing, would find none again: no job has come, ended or moved, no block has become
 * available, those that run need no less, and the index has nothing more for it. So a long prompt that waits is not matched anew each step.
 * What this does not see (others that begin to share its blocks) waits for LOOK_STEPS steps. */
static bool still_has_no_room(const struct kni_sched *s, const struct kni_job *job)
{
    const struct kni_sched_head *h = &s->head;
    return h->id == job->id && h->n_moves == s->n_moves && h->n_returned == kni_pool_n_returned(s->opts.pool) && s->stats.n_steps - h->look_step < LOOK_STEPS &&
           spare_blocks(s) <= h->n_spare && !kni_seq_finds_more(&job->seq, job->tokens, h->n_blocks, job->least);
}

/* Room for all known tokens, so that a job does not start only to be thrown out. The oldest job starts anyway: others make
 * room for it as it goes. */
static bool has_room(struct kni_sched *s, const struct kni_job *job)
{
    if (!s->running.n || job->id < s->running.first->id)
        return true;
    uint32_t n_need = kni_blocks_for_tokens(job->n_known) - job->seq.n_blocks + (job->seq.n_tokens % KNI_BLOCK_TOKENS != 0) + running_need(s);
    if (kni_sched_drop_finished(s, n_need))
        return true;
    /* Publishes may pin a part of the pool for as long as the store takes, but not keep requests out with more. */
    while (s->n_publish_blocks > kni_pool_get_stats(s->opts.pool).n_blocks / PUBLISH_SHARE && kni_pool_available(s->opts.pool) < n_need)
        if (!kni_sched_withdraw(s))
            break;
    return kni_pool_available(s->opts.pool) >= n_need;
}

void kni_sched_admit(struct kni_sched *s)
{
    struct kni_job *job;
    while ((job = s->waiting.first) && s->running.n < s->opts.max_running) {
        bool is_fresh = job->seq.n_tokens == 0;
        if (is_fresh && still_has_no_room(s, job))
            return;
        if (is_fresh)
            kni_sched_match(s, job);
        if (kni_sched_begin_fetch(s, job))
            continue;
        if (!has_room(s, job)) {
            if (is_fresh) { /* cached blocks must stay evictable while it waits */
                uint32_t n_blocks = job->seq.n_hashed;
                kni_seq_truncate(&job->seq, 0);
                s->head = (struct kni_sched_head){job->id, s->n_moves, kni_pool_n_returned(s->opts.pool), s->stats.n_steps, spare_blocks(s), n_blocks};
            }
            return;
        }
        start_running(s, job);
    }
}

void kni_sched_preempt(struct kni_sched *s, struct kni_job *job)
{
    kni_sched_leave_batch(s, job);
    kni_sched_drop_fetch(s, job);
    kni_sched_move(s, job, KNI_JOB_STATE_WAITING);
    if (job->seq.n_blocks) {
        job->stats.n_preempted++;
        s->stats.n_preemptions++;
    }
    kni_seq_truncate(&job->seq, 0);
    job->stats.n_done = 0;
}

static struct kni_job *last_with_blocks(const struct kni_job_list *list)
{
    struct kni_job *job = list->last;
    while (job && !job->seq.n_blocks)
        job = job->prev;
    return job;
}

static struct kni_job *younger(struct kni_job *a, struct kni_job *b)
{
    return !a || (b && b->id > a->id) ? b : a;
}

bool kni_sched_drop_finished(struct kni_sched *s, uint32_t n_blocks)
{
    for (struct kni_job *job = s->finished.first; job && kni_pool_available(s->opts.pool) < n_blocks; job = job->next)
        if (job->seq.n_blocks) {
            kni_seq_truncate(&job->seq, 0);
            job->kv_dropped = true;
        }
    return kni_pool_available(s->opts.pool) >= n_blocks;
}

bool kni_sched_make_room(struct kni_sched *s, const struct kni_job *for_job)
{
    while (!kni_pool_available(s->opts.pool)) {
        if (kni_sched_drop_finished(s, 1) || kni_sched_withdraw(s))
            continue;
        struct kni_job *victim = younger(last_with_blocks(&s->running), younger(last_with_blocks(&s->fetching), last_with_blocks(&s->waiting)));
        if (!victim || victim->id <= for_job->id)
            return false;
        kni_sched_preempt(s, victim);
    }
    return true;
}
