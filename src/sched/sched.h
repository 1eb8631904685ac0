/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The scheduler: requests to steps. First come, first served; many requests share a step.
 *
 *   submit -> waiting -> (waiting for KV: a fetch runs; it never holds up others) -> running -> finished
 *
 * A step: take news of fetches and publishes; end who is late; admit; decode one token of every running job; fill what is left of
 * the budget of prompt tokens with chunks of prompts, oldest first; run; choose tokens. At least one prompt token is computed a
 * step, so that decodes cannot starve a prompt. How long a prompt may wait: see batch.c.
 *
 * Room: a job takes blocks as it goes. When there is none, finished jobs that nobody closed lose theirs first, then publishes
 * that have not begun are taken back, then the youngest job that holds any is preempted: its blocks go, its tokens stay, and it
 * is computed again later. A job that could never fit is refused at submit, so the oldest job always ends.
 *
 * Publishing happens after a job's last token, in the background, so that it never competes with the answer.
 *
 * A step may be under way between two calls, where the run's device goes on by itself: see kni_sched_step. Jobs may be
 * submitted, cancelled, stopped and removed meanwhile as ever. What such a job has in the step stays there until the
 * step is over, and is dropped.
 *
 * Owner thread: the one that opened it; it holds no lock and starts no thread.
 */
#ifndef KNI_SCHED_SCHED_H
#define KNI_SCHED_SCHED_H

#include "run/run.h"
#include "sched/job.h"

struct kni_sched;

/* Looks at the token that a step has chosen for job: NONE to go on with it; or STOP (the token is not kept). */
typedef enum kn_stop_reason (*kni_sched_take_fn)(void *user, struct kni_job *job, int32_t token);

/* Rows of prompts that are scored in one step, those of all jobs together: what bounds their memory. */
#define KNI_SCHED_SCORE_ROWS 32u

struct kni_sched_opts {
    struct kni_pool *pool;       /* borrowed, as are run and fetcher */
    struct kni_run *run;         /* opened for kni_sched_max_rows tokens and kni_sched_max_logits logits */
    struct kni_fetcher *fetcher; /* NULL: no store */
    uint32_t prefill_chunk;      /* prompt tokens a step, at least 1 */
    uint32_t chunk_tokens;       /* of the store */
    uint32_t max_running;        /* jobs in a step, at least 1 */
    uint32_t fetch_pool_percent; /* most of the pool that jobs waiting for a fetch may reserve together; 0: all of it */
    uint32_t fetch_window_chunks; /* blocks are reserved for so many chunks ahead of what has arrived; 0: 4 */
    uint32_t fetch_turn_ms;      /* a fetch that waits longer for its share of the pool is computed instead; 0: 5000 */
    bool fetch_inline;           /* a step waits for the fetches that it meets */
    enum kn_kv_quality fetch_quality; /* of what the fetcher brings; never DEFAULT where there is one */
    uint32_t n_vocab;
    kni_sched_take_fn take;
    /* KN_OK as long as the run computes with what it was opened with; asked before jobs are admitted and after every step. What fails it
     * ends all jobs with its status. NULL: always. */
    enum kn_status (*check)(void *user);
    void *user; /* of both */
};

/* As the fields of struct kn_engine_stats of the same names. */
struct kni_sched_stats {
    uint64_t n_steps, n_step_tokens;
    uint32_t n_waiting, n_fetching, n_running;
    uint32_t n_fetch_blocks, n_publish_blocks;
    uint64_t n_publishing; /* not taken back yet: a step is due for those that are over */
    uint64_t n_cached_by[KN_KV_QUALITY_COUNT], n_fetched_by[KN_KV_QUALITY_COUNT];
    uint64_t n_prompt_tokens, n_cached_tokens, n_fetched_tokens, n_computed_tokens, n_generated_tokens;
    uint64_t n_preemptions;
    uint64_t n_fetches, n_fetches_cut, fetch_bytes, fetch_ns, n_fetch_misses;
};

/* Rows of the largest step. */
static inline uint32_t kni_sched_max_rows(uint32_t prefill_chunk, uint32_t max_running)
{
    return prefill_chunk + max_running;
}

/* Rows of logits of the largest step: one a job to choose a token from, and those of scored prompts. */
static inline uint32_t kni_sched_max_logits(uint32_t max_running)
{
    return max_running + KNI_SCHED_SCORE_ROWS;
}

/* KN_E_NOMEM. */
enum kn_status kni_sched_open(struct kni_sched **out, const struct kni_sched_opts *opts);
/* Before the fetcher closes, with all jobs removed: waits until no worker, and no step, writes into blocks of jobs that
 * have ended. */
void kni_sched_drain(struct kni_sched *sched);
/* All jobs must have been removed. Publishes that still run must have ended: drain, then close the fetcher first. */
void kni_sched_close(struct kni_sched **sched);

/* Queues an initialised job; its memory is borrowed until kni_sched_remove. KN_E_FULL when it could never fit the pool; KN_E_NOMEM
 * when there is no memory for the rows of the first one that is scored. */
enum kn_status kni_sched_submit(struct kni_sched *sched, struct kni_job *job);
/* Ends a job now (reason CANCELLED) and gives its blocks back, those that a worker or a step writes into as soon as it
 * has let go. Waits for nobody. Finished jobs stay. */
void kni_sched_cancel(struct kni_sched *sched, struct kni_job *job);
/* Ends a job now as if it had chosen a stop token: it is published. Finished jobs stay. */
void kni_sched_stop(struct kni_sched *sched, struct kni_job *job);
/* Takes a job out in any state; after it kni_job_fini may be called. */
void kni_sched_remove(struct kni_sched *sched, struct kni_job *job);

/* One step. KN_AGAIN: no job wants anything. KN_OK also when all that could be done was to wait a few milliseconds, and
 * while a step is under way: then the call has looked whether it is over, and has paused for some 50 microseconds at
 * most. */
enum kn_status kni_sched_step(struct kni_sched *sched);
/* Whether a launched step has not ended. Never between two calls where the run's device is the CPU. */
bool kni_sched_is_under_way(const struct kni_sched *sched);
/* Waits for the step under way, and takes it: the run is free. For others who use it. */
void kni_sched_settle(struct kni_sched *sched);
/* Waits until all publishes, and the workers of fetches that have been given up, have ended; 0: for ever. KN_E_TIMEOUT, or the first publish error since the last flush. */
enum kn_status kni_sched_flush(struct kni_sched *sched, uint32_t timeout_ms);
struct kni_sched_stats kni_sched_get_stats(const struct kni_sched *sched);
/* n_steps alone, for every event that is read. */
uint64_t kni_sched_n_steps(const struct kni_sched *sched);
/* Writes the enum kn_block_state of blocks first .. first + n - 1; what lies beyond the pool is FREE. */
void kni_sched_get_blocks(const struct kni_sched *sched, uint32_t first, uint32_t n, uint8_t *states);
/* NULL when the pool's rules hold and every reference to a block belongs to a job or to a publish; else a sentence. */
const char *kni_sched_check(const struct kni_sched *sched);

#endif
