/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Jobs that wait for KV from the store. They stand aside: whoever needs none passes them.
 *
 *     begin --> lookup --> turn --> window of blocks --> ... window moves as chunks arrive ... --> done --> WAITING
 *       |          |         `- too long, or nothing to wait for: compute
 *       |          `- the store has nothing: compute
 *       `- an older job fetches the same chunk: wait for that one, then look again
 *
 * The fetch writes from a chunk boundary on, so the sequence is cut back to it: what the pool had beyond is fetched again (a few
 * tokens) or, when the fetch brings nothing, matched again.
 *
 * Blocks. A fetch promises, at its turn, never to hold more than fetch_end - fetch_first tokens; promises together stay within
 * fetch_pool_percent, turns are given in order of age, and a promise is cut to the cap. So fetches that have begun never wait for
 * each other. A fetch that is alone in the engine has nobody to spare blocks for: it may have more, until somebody comes.
 * What is promised is taken only for a few chunks ahead of what has arrived: the rest of the pool goes on serving
 * steps meanwhile. When the pool has no further chunk, the fetch ends with what arrived in order, and the rest is computed.
 *
 * Giving up. A worker may be writing into the blocks (a chunk's decoding takes tens of ms). Nobody waits for it: the blocks get
 * references of their own (a leftover) until it has let go.
 *
 * Owner thread: the scheduler's. Every wait here is bounded: lookup and fetch by the fetcher's deadline, the turn by fetch_turn_ms.
 */
#include <assert.h>
#include <string.h>

#include "base/clock.h"
#include "sched/sched_state.h"

#define WINDOW_CHUNKS 4u
#define TURN_MS 5000u /* then computing is likely to be faster than the queue */

/* ---- ends */

/* References for the blocks that a worker may be writing into. */
static void leave_behind(struct kni_sched *s, struct kni_job *job)
{
    struct kni_hold *hold = job->fetch_hold;
    job->fetch_hold = NULL;
    hold->is_fetch = true;
    hold->fetch = job->fetch;
    job->fetch = NULL;
    for (uint32_t b = job->fetch_first / KNI_BLOCK_TOKENS; b < job->seq.n_blocks; b++) {
        kni_pool_ref(s->opts.pool, job->seq.block_ids[b]);
        hold->block_ids[hold->n_blocks++] = job->seq.block_ids[b];
    }
    hold->next = s->leftovers;
    s->leftovers = hold;
}

/* Those that wait for this job's fetch look again. answered: it is over, so what it did not bring is not there. */
static void release_followers(struct kni_sched *s, const struct kni_job *leader, bool answered)
{
    for (struct kni_job *job = s->fetching.first, *next; job; job = next) {
        next = job->next;
        if (job->fetch_leader != leader->id)
            continue;
        uint32_t before = job->seq.n_tokens;
        kni_sched_drop_fetch(s, job);
        if (answered)
            kni_sched_match(s, job);
        job->fetch_tried = answered && job->seq.n_tokens < before + s->opts.chunk_tokens;
    }
}

void kni_sched_drop_fetch(struct kni_sched *s, struct kni_job *job)
{
    if (job->state != KNI_JOB_STATE_FETCHING)
        return;
    if (job->fetch && !kni_fetch_try_end(&job->fetch))
        leave_behind(s, job);
    s->stats.fetch_ns += kni_now_ns() - job->fetch_begin_ns;
    job->stats.fetch_wanted = 0;
    job->fetch_leader = 0;
    job->fetch_end = job->fetch_reserved = 0;
    kni_sched_move(s, job, KNI_JOB_STATE_WAITING);
    release_followers(s, job, false);
}

void kni_sched_poll_leftovers(struct kni_sched *s)
{
    for (struct kni_hold **link = &s->leftovers; *link;) {
        struct kni_hold *hold = *link;
        if (kni_fetch_try_end(&hold->fetch)) {
            *link = hold->next;
            kni_sched_release_hold(s, hold);
        } else {
            link = &hold->next;
        }
    }
}

/* Takes the outcome, then whatever the pool has beyond it by now. */
static void take_fetch(struct kni_sched *s, struct kni_job *job, uint32_t n_restored)
{
    job->stats.n_fetched = 0;
    if (n_restored > job->fetch_end)
        n_restored = job->fetch_end;
    s->stats.n_fetches_cut += n_restored < job->fetch_end;
    if (n_restored > job->fetch_first) {
        kni_seq_commit_restored(&job->seq, job->tokens, n_restored, s->opts.fetch_quality);
        job->stats.n_fetched = n_restored - job->fetch_first;
    }
    release_followers(s, job, true);
    kni_sched_drop_fetch(s, job); /* over, or not started: nothing is left behind */
    assert(!job->fetch);
    kni_seq_truncate(&job->seq, job->seq.n_tokens); /* reserved blocks that nothing came into */
    kni_sched_match(s, job);
}

/* ---- turns and windows */

static uint32_t cap_blocks(const struct kni_sched *s)
{
    uint64_t n = kni_pool_get_stats(s->opts.pool).n_blocks, percent = s->opts.fetch_pool_percent ? s->opts.fetch_pool_percent : 100;
    uint32_t n_cap = (uint32_t)(n * percent / 100), n_chunk = s->opts.chunk_tokens / KNI_BLOCK_TOKENS;
    return n_cap > n_chunk ? n_cap : n_chunk;
}

static uint32_t promised_blocks(const struct kni_sched *s)
{
    uint32_t n = 0;
    for (const struct kni_job *job = s->fetching.first; job; job = job->next)
        if (job->fetch_end)
            n += (job->fetch_end - job->fetch_first) / KNI_BLOCK_TOKENS;
    for (const struct kni_hold *hold = s->leftovers; hold; hold = hold->next)
        n += hold->n_blocks;
    return n;
}

/* Nobody else wants blocks. Who waits for this fetch does not count. */
static bool is_alone(const struct kni_sched *s, const struct kni_job *job)
{
    bool alone = !s->running.n && !s->waiting.n;
    for (const struct kni_job *o = s->fetching.first; o && alone; o = o->next)
        alone = o == job || !o->fetch;
    return alone;
}

/* Blocks for whole chunks, as many ahead of n_restored as the window and the pool allow. True when there are more than before. */
static bool move_window(struct kni_sched *s, struct kni_job *job, uint32_t n_restored)
{
    const uint32_t chunk = s->opts.chunk_tokens, before = job->fetch_reserved;
    uint64_t end = n_restored + (uint64_t)chunk * (s->opts.fetch_window_chunks ? s->opts.fetch_window_chunks : WINDOW_CHUNKS);
    uint64_t most = job->fetch_first + (uint64_t)cap_blocks(s) * KNI_BLOCK_TOKENS;
    most -= most % chunk;
    if (end > most && !is_alone(s, job))
        end = most;
    if (end > job->fetch_end)
        end = job->fetch_end;
    if (end <= before)
        return false;
    uint32_t n_keep = s->running.n; /* one block for each running job's next token */
    uint32_t n_want = (uint32_t)(end - before) / KNI_BLOCK_TOKENS + 1; /* and one if the first is a copy */
    kni_sched_drop_finished(s, n_keep + n_want);
    uint32_t n_spare = kni_pool_available(s->opts.pool);
    n_spare = n_spare > n_keep ? n_spare - n_keep : 0;
    uint32_t n = before + n_spare * KNI_BLOCK_TOKENS < end ? before + n_spare * KNI_BLOCK_TOKENS : (uint32_t)end;
    n -= n % chunk;
    if (n > before)
        n = kni_seq_reserve(&job->seq, n);
    n -= n % chunk;
    if (n <= before)
        return false;
    job->fetch_reserved = n;
    return true;
}

/* Hands the window over. False: the fetch cannot be used. */
static bool extend(struct kni_sched *s, struct kni_job *job)
{
    struct kni_kv_view view = kni_seq_view(&job->seq);
    enum kn_status status = kni_fetch_extend(job->fetch, &view, job->fetch_reserved, job->fetch_reserved < job->fetch_end);
    if (status && status != KN_E_STATE) /* over meanwhile: the next look takes it */
        kni_sched_say_store_error(s, status, "starting a fetch");
    return !status || status == KN_E_STATE;
}

/* Whoever it is that could give a waiting fetch its turn. */
static bool somebody_moves(const struct kni_sched *s)
{
    if (s->holds || s->leftovers || (s->running.n && !s->opts.fetch_inline))
        return true;
    for (const struct kni_job *job = s->fetching.first; job; job = job->next)
        if (job->fetch_end)
            return true;
    return false;
}

enum turn { TURN_NOW, TURN_LATER, TURN_NEVER };

/* The store can bring more than the pool has: promise, reserve, start. */
static enum turn take_turn(struct kni_sched *s, struct kni_job *job, uint32_t n_wanted, bool may)
{
    uint64_t now = kni_now_ns();
    if (!job->fetch_ready_ns) {
        job->fetch_ready_ns = now;
        s->stats.n_fetches += n_wanted > job->seq.n_tokens;
    }
    if (n_wanted <= job->seq.n_tokens || n_wanted >= kni_job_n_reusable(job))
        return TURN_NEVER;
    uint32_t n_cap = cap_blocks(s), n_promised = promised_blocks(s), n_room = n_cap > n_promised ? n_cap - n_promised : 0;
    uint32_t n_blocks = (n_wanted - job->fetch_first) / KNI_BLOCK_TOKENS;
    bool alone = is_alone(s, job);
    n_blocks = n_blocks < n_cap || alone ? n_blocks : n_cap;
    uint32_t end = job->fetch_first + n_blocks * KNI_BLOCK_TOKENS;
    end -= end % s->opts.chunk_tokens;
    if (may && (n_blocks <= n_room || alone) && end > job->fetch_first) {
        kni_sched_match(s, job); /* others may have brought it meanwhile */
        if (n_wanted <= job->seq.n_tokens)
            return TURN_NEVER;
        kni_seq_truncate(&job->seq, job->fetch_first);
        job->stats.n_cached = job->stats.n_done = job->fetch_first;
        job->fetch_end = end;
        job->fetch_reserved = job->fetch_first;
        if (move_window(s, job, job->fetch_first)) {
            job->stats.fetch_wanted = end;
            return extend(s, job) ? TURN_NOW : TURN_NEVER;
        }
        job->fetch_end = job->fetch_reserved = 0;
        kni_sched_match(s, job); /* not now: back to what the pool has */
    }
    uint64_t turn_ns = (s->opts.fetch_turn_ms ? s->opts.fetch_turn_ms : TURN_MS) * 1000000ull;
    return now - job->fetch_ready_ns > turn_ns || !somebody_moves(s) ? TURN_NEVER : TURN_LATER;
}

/* More blocks as chunks arrive; an end where it is when there are none for what comes next. */
static void feed(struct kni_sched *s, struct kni_job *job, uint32_t n_restored)
{
    if (job->fetch_reserved == job->fetch_end)
        return;
    if (move_window(s, job, n_restored)) {
        extend(s, job);
    } else if (n_restored >= job->fetch_reserved) {
        job->fetch_end = job->fetch_reserved;
        job->stats.fetch_wanted = job->fetch_end;
        extend(s, job);
    }
}

/* ---- news */

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
    bool may = true; /* false once an older one waits for its turn */
    for (struct kni_job *job = s->fetching.first, *next; job; job = next) {
        struct kni_fetch_progress p;
        next = job->next;
        if (!job->fetch)
            continue;
        kni_fetch_poll(job->fetch, &p);
        note_progress(s, job, &p);
        if (p.state == KNI_FETCH_STATE_RUNNING && p.n_restored > job->fetch_first && p.n_restored <= job->fetch_end) {
            job->stats.n_fetched = p.n_restored - job->fetch_first;
            job->stats.n_done = p.n_restored;
        }
        if (p.state == KNI_FETCH_STATE_RUNNING)
            feed(s, job, p.n_restored);
        enum turn turn = p.state == KNI_FETCH_STATE_READY ? take_turn(s, job, p.n_wanted, may) : TURN_NOW;
        may = may && turn != TURN_LATER;
        if (turn == TURN_NEVER || p.state == KNI_FETCH_STATE_DONE) {
            uint64_t id = job->id;
            take_fetch(s, job, turn == TURN_NEVER ? 0 : p.n_restored);
            for (next = s->fetching.first; next && next->id < id; next = next->next) /* followers have left the list */
                ;
        }
    }
}

/* An older job that is fetching the chunk which this one would ask for first. */
static const struct kni_job *find_leader(const struct kni_sched *s, const struct kni_job *job)
{
    uint32_t n = job->fetch_first + s->opts.chunk_tokens;
    for (const struct kni_job *o = s->fetching.first; o; o = o->next)
        if (o->fetch && (!o->fetch_end || o->fetch_end >= n) && o->fetch_first <= job->fetch_first && kni_job_n_reusable(o) > n && kni_hash_equal(&o->seq.hashes[0], &job->seq.hashes[0]) &&
            memcmp(o->tokens, job->tokens, n * sizeof *o->tokens) == 0)
            return o;
    return NULL;
}

bool kni_sched_begin_fetch(struct kni_sched *s, struct kni_job *job)
{
    uint32_t chunk = s->opts.chunk_tokens;
    if (!s->opts.fetcher || job->no_fetch || job->fetch_tried || kni_job_n_generated(job) || s->opts.fetch_quality > job->least)
        return false;
    job->fetch_tried = true;
    if ((kni_job_n_reusable(job) - 1) / chunk * chunk <= job->seq.n_tokens)
        return false;
    job->fetch_first = job->seq.n_tokens - job->seq.n_tokens % chunk;
    const struct kni_job *leader = kni_pool_index(s->opts.pool) ? find_leader(s, job) : NULL;
    if (leader) {
        job->fetch_leader = leader->id;
    } else {
        enum kn_status status = kni_fetch_begin(&job->fetch, s->opts.fetcher, job->tokens, kni_job_n_reusable(job), job->fetch_first, job->salt);
        if (status) {
            job->fetch = NULL;
            kni_sched_say_store_error(s, status, "looking for a prefix");
            return false;
        }
    }
    job->fetch_end = job->fetch_reserved = 0;
    job->fetch_ready_ns = 0;
    job->fetch_begin_ns = kni_now_ns();
    kni_sched_move(s, job, KNI_JOB_STATE_FETCHING);
    return true;
}
