/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A job: one request inside the scheduler. Its tokens are one array:
 *
 *     tokens  [ prompt .................. | generated ........ |  room  ]
 *             0                        n_prompt            n_known   n_max
 *             `---- seq.n_tokens: K and V are in the pool ---'
 *
 * One rule drives everything: while seq.n_tokens < n_known there is something to compute; when a step computes the last
 * known token its logits give the next. Prefill, decode, and recomputation after a preemption are the same thing.
 * The array is also the queue of the reader: what lies beyond its own cursor is new. It cannot overflow.
 *
 * States, each with a list in the scheduler (all ordered by age, oldest first):
 *
 *     WAITING --> FETCHING --> WAITING --> RUNNING --> FINISHED
 *        ^ `---------------------------------^ |
 *        +------------- preempted -------------+
 *
 * Owner: who initialised it (the engine's request); thread: the scheduler's.
 */
#ifndef KNI_SCHED_JOB_H
#define KNI_SCHED_JOB_H

#include "fetch/fetch.h"
#include "kinema/engine.h"
#include "kv/seq.h"
#include "run/sampler.h"

enum kni_job_state {
    KNI_JOB_STATE_NEW,     /* not submitted, or removed */
    KNI_JOB_STATE_WAITING, /* for blocks or a place */
    KNI_JOB_STATE_FETCHING,
    KNI_JOB_STATE_RUNNING,
    KNI_JOB_STATE_FINISHED /* keeps its blocks until removed, or until others need them */
};

/* References that keep blocks alive beyond their job: of a publish (its cookie), of a fetch whose workers have not let
 * go, or of a step under way. */
struct kni_hold {
    struct kni_hold *next;
    struct kni_fetch *fetch;
    bool is_fetch;
    uint8_t *qualities; /* of a publish: [n_blocks], enum kn_kv_quality; behind block_ids */
    uint32_t n_blocks;
    uint32_t block_ids[]; /* each held once */
};

struct kni_job {
    struct kni_job *prev, *next; /* in the list of its state */
    uint64_t id;                 /* grows with submit: age */
    enum kni_job_state state;

    int32_t *tokens; /* [n_max] owned */
    uint32_t n_prompt, n_known, n_max;
    struct kni_seq seq;
    char *salt; /* owned */
    bool no_fetch, no_publish;
    bool want_logits, want_logprobs;
    bool no_generate; /* n_max is n_prompt */
    struct kni_sampler *sampler; /* borrowed; chooses tokens on the compute threads */

    /* Log-probabilities of positions described_first .. described_end - 1 given what precedes them, from n_top likeliest on. Made at
     * init and never moved: events point into them. Those of the prompt are there up to n_scored, where it is scored. */
    float *logprobs;         /* [described_end - described_first] owned */
    struct kn_logprob *tops; /* [..][n_top] owned */
    uint32_t described_first, described_end, n_top;
    uint32_t n_scored;       /* n_prompt when the prompt is not scored */
    enum kn_kv_quality least; /* blocks that are worse are not taken for it */
    bool kv_dropped;  /* finished, and its blocks went to another job */
    bool fetch_tried; /* the store is asked once */
    uint32_t wait_ms, deadline_ms; /* see struct kn_request_opts */
    bool is_booked;     /* has been admitted once */
    uint32_t n_counted; /* prompt tokens that the scheduler's statistics have: each once, however often it is computed */

    struct kni_fetch *fetch; /* while FETCHING, unless the job waits for another's fetch; NULL otherwise */
    uint64_t fetch_leader;   /* id of the job whose fetch brings this one's prefix too; 0: none */
    uint32_t fetch_first;    /* tokens the fetch builds on */
    uint32_t fetch_end;      /* tokens that it shall bring, once it has had its turn; 0 before. stats.fetch_wanted is the same */
    uint32_t fetch_reserved; /* tokens that it has blocks for */
    uint64_t fetch_ready_ns; /* since when it waits for its turn */
    uint64_t fetch_begin_ns;
    struct kni_hold *hold;   /* of the publish; made at init, so that a step allocates nothing */
    struct kni_hold *fetch_hold; /* likewise, for the case that the job ends before its fetch */
    struct kni_hold *step_hold;  /* likewise, of a step under way, which has it meanwhile: then NULL */

    const float *logits;  /* that chose the last token; the run's; valid while logits_step is the scheduler's n_steps */
    uint64_t logits_step;
    enum kn_stop_reason reason; /* once FINISHED */
    enum kn_status status;      /* of reason ERROR */
    struct kn_request_stats stats;
    uint64_t submit_ns;
};

struct kni_job_opts {
    const int32_t *tokens; /* copied */
    uint32_t n_prompt;     /* at least 1 */
    uint32_t max_new;      /* 0: ends once the prompt has been computed */
    const char *salt;      /* copied; NULL: "" */
    uint8_t fingerprint[16];
    bool no_fetch, no_publish, want_logits, want_logprobs, score_prompt;
    uint32_t n_top, score_first; /* score_first below n_prompt */
    struct kni_sampler *sampler; /* borrowed until fini; NULL only with a run that chooses by itself */
    enum kn_kv_quality least; /* DEFAULT: ANY */
    uint32_t wait_ms, deadline_ms; /* 0: none */
};

/* KN_E_NOMEM leaves a job that fini accepts. */
enum kn_status kni_job_init(struct kni_job *job, struct kni_pool *pool, const struct kni_job_opts *opts);
/* The job must be NEW. A zeroed struct is fine. */
void kni_job_fini(struct kni_job *job);

static inline uint32_t kni_job_n_generated(const struct kni_job *job)
{
    return job->n_known - job->n_prompt;
}

static inline uint32_t kni_job_n_pending(const struct kni_job *job)
{
    return job->n_known - job->seq.n_tokens;
}

/* K and V of the first so many tokens but one may come from elsewhere: what lies behind has logits to give. */
static inline uint32_t kni_job_n_reusable(const struct kni_job *job)
{
    return job->n_scored < job->n_prompt ? job->n_scored : job->n_known;
}

/* Rows of logits that computing the next n tokens gives: to score the prompt, and to choose a token. */
static inline uint32_t kni_job_n_rows(const struct kni_job *job, uint32_t n)
{
    uint32_t first = job->seq.n_tokens, end = first + n, from = job->n_scored < job->n_prompt ? job->n_scored - 1 : job->n_known - !job->no_generate;
    return from >= end ? 0 : end - (from > first ? from : first);
}

/* When the job must have its next thing, by kni_now_ns; UINT64_MAX: never. It has been submitted. */
static inline uint64_t kni_job_due_ns(const struct kni_job *job)
{
    uint64_t due = job->deadline_ms ? job->submit_ns + job->deadline_ms * 1000000ull : UINT64_MAX;
    uint64_t first = job->wait_ms && job->n_known == job->n_prompt ? job->submit_ns + job->wait_ms * 1000000ull : UINT64_MAX;
    return first < due ? first : due;
}

struct kni_job_list { struct kni_job *first, *last; uint32_t n; };

/* Keeps the list ordered by id. Jobs mostly arrive in order, so the search starts at the end. */
void kni_job_list_insert(struct kni_job_list *list, struct kni_job *job);
void kni_job_list_remove(struct kni_job_list *list, struct kni_job *job);

#endif
