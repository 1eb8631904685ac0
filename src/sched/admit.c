/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Who gets in, what it starts from, and who has to leave.
 *
 * A job that comes to the head of the queue first takes what the pool already has. If the store may have whole chunks
 * beyond that, it asks once and waits aside, holding only the matched blocks; blocks for the fetched part are reserved when
 * their number is known. The fetch writes from a chunk boundary on, so the sequence is cut back to it: what the pool had
 * beyond is either fetched again (a few tokens) or, when the fetch brings nothing, matched again.
 */
#include "sched/sched_state.h"

#include <assert.h>

#include "base/clock.h"

/* Takes from the index what it has and books it. What the job has had before (n_counted) is no news: after a preemption it
 * finds its own blocks again. */
static void match(struct kni_sched *s, struct kni_job *job)
{
    uint32_t before = job->seq.n_tokens;
    uint32_t n = kni_seq_match(&job->seq, job->tokens, job->n_known);
    job->stats.n_done = n = n < job->n_prompt ? n : job->n_prompt;
    if (!job->n_counted) { /* not admitted yet: the books are closed then */
        if (!before)
            job->stats.n_cached = job->stats.n_fetched = 0;
        job->stats.n_cached += n - before;
    } else if (n > job->n_counted) {
        job->stats.n_cached += n - job->n_counted;
        kni_sched_count(s, job, &s->stats.n_cached_tokens);
    }
}

/* Into the steps. The first time the prompt's tokens that are there are booked by where they came from. */
static void start_running(struct kni_sched *s, struct kni_job *job)
{
    if (!job->n_counted) {
        uint64_t all = 0;
        kni_sched_count(s, job, &all);
        s->stats.n_fetched_tokens += job->stats.n_fetched;
        s->stats.n_cached_tokens += all - job->stats.n_fetched;
    }
    kni_sched_move(s, job, KNI_JOB_STATE_RUNNING);
}

static void end_fetch(struct kni_sched *s, struct kni_job *job)
{
    kni_fetch_end(&job->fetch);
    job->stats.fetch_wanted = 0;
    s->stats.fetch_ns += kni_now_ns() - job->fetch_begin_ns;
    kni_sched_move(s, job, KNI_JOB_STATE_WAITING);
}

/* The store can bring more than the pool has: reserve and start. */
static bool start_fetch(struct kni_sched *s, struct kni_job *job, uint32_t n_wanted)
{
    if (n_wanted <= job->seq.n_tokens || n_wanted >= job->n_prompt)
        return false;
    s->stats.n_fetches++;
    kni_seq_truncate(&job->seq, job->fetch_first);
    job->stats.n_cached = job->stats.n_done = job->fetch_first;
    uint32_t n_spare = kni_pool_available(s->opts.pool), n_keep = s->running.n; /* one block for each running job's next token */
    uint32_t n_room = job->fetch_first + (n_spare > n_keep ? n_spare - n_keep : 0) * KNI_BLOCK_TOKENS;
    uint32_t n = n_wanted < n_room ? n_wanted : n_room;
    n = kni_seq_reserve(&job->seq, n);
    n -= n % s->opts.chunk_tokens;
    if (n <= job->fetch_first)
        return false;
    struct kni_kv_view view = kni_seq_view(&job->seq);
    enum kn_status status = kni_fetch_start(job->fetch, &view, n);
    if (status) {
        kni_sched_say_store_error(s, status, "starting a fetch");
        return false;
    }
    job->stats.fetch_wanted = n;
    return true;
}

/* Takes the outcome, then whatever the pool has beyond it by now. */
static void take_fetch(struct kni_sched *s, struct kni_job *job, uint32_t n_restored)
{
    job->stats.n_fetched = 0;
    if (job->stats.fetch_wanted && n_restored > job->fetch_first) {
        if (n_restored > job->stats.fetch_wanted)
            n_restored = (uint32_t)job->stats.fetch_wanted;
        kni_seq_commit(&job->seq, job->tokens, n_restored);
        job->stats.n_fetched = n_restored - job->fetch_first;
    }
    s->stats.n_fetches_cut += n_restored < job->stats.fetch_wanted;
    end_fetch(s, job);
    kni_seq_truncate(&job->seq, job->seq.n_tokens); /* reserved blocks that nothing came into */
    match(s, job);
}

/* Books what a fetch has done since the last look. */
static void note_progress(struct kni_sched *s, struct kni_job *job, const struct kni_fetch_progress *p)
{
    s->stats.fetch_bytes += p->n_bytes - job->stats.fetch_bytes;
    s->stats.n_fetch_misses += p->n_misses - job->stats.n_misses;
    job->stats.fetch_bytes = p->n_bytes;
    job->stats.fetch_ns = p->elapsed_ns;
    job->stats.n_misses = p->n_misses;
}

void kni_sched_poll_fetches(struct kni_sched *s)
{
    struct kni_job *next;
    for (struct kni_job *job = s->fetching.first; job; job = next) {
        struct kni_fetch_progress p;
        next = job->next;
        kni_fetch_poll(job->fetch, &p);
        note_progress(s, job, &p);
        if (p.state == KNI_FETCH_STATE_RUNNING && p.n_restored > job->fetch_first && p.n_restored <= job->stats.fetch_wanted) {
            job->stats.n_fetched = p.n_restored - job->fetch_first;
            job->stats.n_done = p.n_restored;
        }
        if (p.state == KNI_FETCH_STATE_DONE)
            take_fetch(s, job, p.n_restored);
        else if (p.state == KNI_FETCH_STATE_READY && !start_fetch(s, job, p.n_wanted))
            take_fetch(s, job, 0);
    }
}

/* Asks the store, once a job, when it could have whole chunks beyond the pool's. True: the job waits for KV. */
static bool begin_fetch(struct kni_sched *s, struct kni_job *job)
{
    uint32_t chunk = s->opts.chunk_tokens;
    if (!s->opts.fetcher || job->no_fetch || job->fetch_tried || kni_job_n_generated(job))
        return false;
    job->fetch_tried = true;
    if ((job->n_prompt - 1) / chunk * chunk <= job->seq.n_tokens)
        return false;
    job->fetch_first = job->seq.n_tokens - job->seq.n_tokens % chunk;
    enum kn_status status = kni_fetch_begin(&job->fetch, s->opts.fetcher, job->tokens, job->n_prompt, job->fetch_first, job->salt);
    if (status) {
        job->fetch = NULL;
        kni_sched_say_store_error(s, status, "looking for a prefix");
        return false;
    }
    job->fetch_begin_ns = kni_now_ns();
    kni_sched_move(s, job, KNI_JOB_STATE_FETCHING);
    return true;
}

/* Room for all known tokens, so that a job does not start only to be thrown out. The oldest job starts anyway: others make
 * room for it as it goes. */
static bool has_room(const struct kni_sched *s, const struct kni_job *job)
{
    if (!s->running.n || job->id < s->running.first->id)
        return true;
    uint32_t n_need = kni_blocks_for_tokens(job->n_known) - job->seq.n_blocks + (job->seq.n_tokens % KNI_BLOCK_TOKENS != 0);
    return kni_pool_available(s->opts.pool) >= n_need + s->running.n;
}

void kni_sched_admit(struct kni_sched *s)
{
    struct kni_job *job;
    while ((job = s->waiting.first) && s->running.n < s->opts.max_running) {
        bool is_fresh = job->seq.n_tokens == 0;
        if (is_fresh)
            match(s, job);
        if (begin_fetch(s, job))
            continue;
        if (!has_room(s, job)) {
            if (is_fresh) /* cached blocks must stay evictable while it waits */
                kni_seq_truncate(&job->seq, 0);
            return;
        }
        start_running(s, job);
    }
}

void kni_sched_preempt(struct kni_sched *s, struct kni_job *job)
{
    for (uint32_t i = 0; i < s->n_batch; i++)
        if (s->batch[i].job == job) {
            for (s->n_batch--; i < s->n_batch; i++)
                s->batch[i] = s->batch[i + 1];
            break;
        }
    if (job->state == KNI_JOB_STATE_FETCHING)
        end_fetch(s, job); /* waits until no worker writes into its blocks */
    else if (job->state == KNI_JOB_STATE_RUNNING)
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

bool kni_sched_make_room(struct kni_sched *s, const struct kni_job *for_job)
{
    while (!kni_pool_available(s->opts.pool)) {
        struct kni_job *victim = s->finished.first;
        while (victim && !victim->seq.n_blocks)
            victim = victim->next;
        if (victim) {
            kni_seq_truncate(&victim->seq, 0);
            victim->kv_dropped = true;
            continue;
        }
        victim = younger(last_with_blocks(&s->running), younger(last_with_blocks(&s->fetching), last_with_blocks(&s->waiting)));
        if (!victim || victim->id <= for_job->id)
            return false;
        kni_sched_preempt(s, victim);
    }
    return true;
}
