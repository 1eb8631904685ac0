/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What others may know of the scheduler: statistics, a map of the pool, and a check that no block is lost.
 *
 * The check counts: the references that the pool knows must be those of the jobs, of the publishes and of a step under
 * way, no more. So a leak is found although requests are open. A walk over all blocks, for tests and for the end of a
 * server's day.
 * Owner thread: the scheduler's. Nothing here changes anything but statistics.
 */
#include "sched/sched_state.h"

#include <string.h>

void kni_sched_count(struct kni_sched *s, struct kni_job *job, uint64_t *as)
{
    uint32_t n = job->seq.n_tokens < job->n_prompt ? job->seq.n_tokens : job->n_prompt;
    if (n <= job->n_counted)
        return;
    *as += n - job->n_counted;
    s->stats.n_prompt_tokens += n - job->n_counted;
    job->n_counted = n;
}

struct kni_sched_stats kni_sched_get_stats(const struct kni_sched *s)
{
    struct kni_sched_stats out = s->stats;
    out.n_waiting = s->waiting.n;
    out.n_fetching = s->fetching.n;
    out.n_running = s->running.n;
    out.n_publish_blocks = s->n_publish_blocks;
    for (const struct kni_hold *hold = s->holds; hold; hold = hold->next)
        out.n_publishing++;
    for (const struct kni_job *job = s->fetching.first; job; job = job->next)
        if (job->fetch_end)
            out.n_fetch_blocks += job->seq.n_blocks - job->fetch_first / KNI_BLOCK_TOKENS;
    for (const struct kni_hold *hold = s->leftovers; hold; hold = hold->next)
        out.n_fetch_blocks += hold->n_blocks;
    return out;
}

bool kni_sched_is_under_way(const struct kni_sched *s)
{
    return s->is_under_way;
}

uint64_t kni_sched_n_steps(const struct kni_sched *s)
{
    return s->stats.n_steps;
}

/* References of the step under way on each of blocks first .. first + n - 1, at most 255. They are no sharing: its jobs
 * hold the blocks. */
static void count_step_refs(const struct kni_sched *s, uint32_t first, uint32_t n, uint8_t *n_refs)
{
    memset(n_refs, 0, n);
    for (uint32_t i = 0; s->is_under_way && i < s->n_batch; i++)
        for (uint32_t b = 0; b < s->batch[i].hold->n_blocks; b++) {
            uint32_t at = s->batch[i].hold->block_ids[b] - first; /* wraps below first */
            if (at < n && n_refs[at] < 255)
                n_refs[at]++;
        }
}

/* Blocks of one fetch, as far as nobody else holds them. */
static void mark_fetching(const uint32_t *block_ids, uint32_t n_blocks, uint32_t first, uint32_t n, uint8_t *states)
{
    for (uint32_t i = 0; i < n_blocks; i++) {
        uint32_t at = block_ids[i] - first; /* wraps below first */
        if (at < n && states[at] == KN_BLOCK_STATE_HELD)
            states[at] = KN_BLOCK_STATE_FETCHING;
    }
}

void kni_sched_get_blocks(const struct kni_sched *s, uint32_t first, uint32_t n, uint8_t *states)
{
    const struct kni_prefix_index *index = kni_pool_index(s->opts.pool);
    uint32_t n_blocks = kni_pool_get_stats(s->opts.pool).n_blocks;
    count_step_refs(s, first, n, states);
    for (uint32_t i = 0; i < n; i++) {
        uint32_t b = first + i;
        uint32_t n_refs = b >= first && b < n_blocks ? kni_pool_refs(s->opts.pool, b) : 0;
        if (n_refs)
            states[i] = n_refs - states[i] > 1 ? KN_BLOCK_STATE_SHARED : KN_BLOCK_STATE_HELD;
        else
            states[i] = b >= first && b < n_blocks && index && kni_prefix_index_has(index, b) ? KN_BLOCK_STATE_CACHED : KN_BLOCK_STATE_FREE;
    }
    for (const struct kni_job *job = s->fetching.first; job; job = job->next)
        mark_fetching(job->seq.block_ids, job->seq.n_blocks, first, n, states);
    for (const struct kni_hold *hold = s->leftovers; hold; hold = hold->next)
        mark_fetching(hold->block_ids, hold->n_blocks, first, n, states);
}

const char *kni_sched_check(const struct kni_sched *s)
{
    const struct kni_job_list *lists[] = {&s->waiting, &s->fetching, &s->running, &s->finished};
    uint64_t n_known = 0, n_refs = 0;
    const char *why = kni_pool_check(s->opts.pool);
    for (unsigned i = 0; i < 4; i++)
        for (const struct kni_job *job = lists[i]->first; job; job = job->next)
            n_known += job->seq.n_blocks;
    const struct kni_hold *holds[] = {s->holds, s->leftovers};
    for (unsigned i = 0; i < 2; i++)
        for (const struct kni_hold *hold = holds[i]; hold; hold = hold->next)
            n_known += hold->n_blocks;
    for (uint32_t i = 0; s->is_under_way && i < s->n_batch; i++)
        n_known += s->batch[i].hold->n_blocks;
    for (uint32_t b = kni_pool_get_stats(s->opts.pool).n_blocks; b-- > 0;)
        n_refs += kni_pool_refs(s->opts.pool, b);
    if (!why && n_refs > n_known)
        why = "blocks are held by nobody: a reference has leaked";
    if (!why && n_refs < n_known)
        why = "requests and publishes hold more references than the pool knows";
    return why;
}
