/* SPDX-License-Identifier: Apache-2.0 */
/* What the files of sched share: the scheduler's fields, and the steps that one file does for another. */
#ifndef KNI_SCHED_SCHED_STATE_H
#define KNI_SCHED_SCHED_STATE_H

#include "sched/sched.h"

/* One item of the step that is being built, or under way: a job and how many of its pending tokens are computed. */
struct kni_batch_entry {
    struct kni_job *job; /* NULL: it has left the step under way, and what comes out of it is dropped */
    uint32_t n_tokens;
    struct kni_hold *hold; /* while the step is under way: all blocks that it reads and writes for the job */
};

/* The queue's head, as it was when it found no room: while nothing has changed it need not look again (admit.c). */
struct kni_sched_head {
    uint64_t id; /* of the job; 0: none */
    uint64_t n_moves, n_returned, look_step;
    int64_t n_spare;
    uint32_t n_blocks; /* that its match found */
};

struct kni_sched {
    struct kni_sched_opts opts;
    struct kni_job_list waiting, fetching, running, finished;
    uint64_t next_id;
    struct kni_sched_stats stats;

    struct kni_batch_entry *batch; /* [max_running], n_batch in use while a step is built or under way */
    uint32_t n_batch;
    bool is_under_way; /* a launched step has not ended */
    uint32_t n_polls;  /* of it, in vain */
    struct kni_run_item *items; /* [max_running] */
    float *logits;              /* [max_running][n_vocab] of jobs that are not being scored */
    float *score_logits;        /* [KNI_SCHED_SCORE_ROWS][n_vocab] of those that are; NULL until the first one is submitted */
    struct kni_run_row *rows;   /* [kni_sched_max_logits] as items have them, one after the other */

    struct kni_hold *holds;     /* of publishes that have not ended */
    struct kni_hold *leftovers; /* of fetches that have been given up while a worker wrote */
    uint16_t *n_block_holds;  /* [blocks of the pool]: publishes that hold each */
    uint32_t n_publish_blocks; /* blocks that one holds */
    uint64_t n_moves;         /* of jobs between lists */
    struct kni_sched_head head;
    uint64_t due_ns;          /* next deadline of a job, as of the step's begin */
    enum kn_status publish_status; /* first error since the last flush */
    bool store_error_said;  /* a failing store is logged once */
};

/* fetching.c */
/* Asks the store, once a job, when it could have whole chunks beyond the pool's. True: the job waits for KV. */
bool kni_sched_begin_fetch(struct kni_sched *sched, struct kni_job *job);
void kni_sched_poll_fetches(struct kni_sched *sched);
/* Gives a fetch up, and whoever waits for it looks for itself. The job's blocks may be dropped at once. */
void kni_sched_drop_fetch(struct kni_sched *sched, struct kni_job *job);
void kni_sched_poll_leftovers(struct kni_sched *sched);

/* admit.c */
/* Takes what the prefix index has beyond the job's sequence, and books it. */
void kni_sched_match(struct kni_sched *sched, struct kni_job *job);
void kni_sched_admit(struct kni_sched *sched);
/* Takes the blocks of finished jobs that nobody closed until n_blocks are there. False: not so many. */
bool kni_sched_drop_finished(struct kni_sched *sched, uint32_t n_blocks);
/* Frees at least one block for job by taking it from finished jobs, from publishes that have not begun, or from jobs younger
 * than it. False: nobody to take from. */
bool kni_sched_make_room(struct kni_sched *sched, const struct kni_job *job);
/* Back to the queue without blocks; out of the batch being built too. */
void kni_sched_preempt(struct kni_sched *sched, struct kni_job *job);

/* batch.c */
/* Builds a step and launches it; takes it if it is over at once. False when no running job had anything to compute.
 * None is under way. */
bool kni_sched_run_batch(struct kni_sched *sched);
/* Takes the step under way, if it is over. */
void kni_sched_poll_batch(struct kni_sched *sched);
/* Out of the step: before the job's blocks or its memory go. One that is being built no longer has it; one under way
 * goes on, holds the blocks until its end, and its results for the job are dropped. */
void kni_sched_leave_batch(struct kni_sched *sched, const struct kni_job *job);

/* sched.c */
void kni_sched_say_store_error(struct kni_sched *sched, enum kn_status status, const char *doing);
/* Milliseconds to the next deadline of a job, at least 1 and at most limit_ms. */
uint32_t kni_sched_wait_ms(const struct kni_sched *sched, uint32_t limit_ms);

/* ending.c */
void kni_sched_move(struct kni_sched *sched, struct kni_job *job, enum kni_job_state state);
void kni_sched_finish(struct kni_sched *sched, struct kni_job *job, enum kn_stop_reason reason, enum kn_status status);
/* Ends jobs that are late, in whatever state; notes the next deadline. */
void kni_sched_expire(struct kni_sched *sched);
void kni_sched_poll_publishes(struct kni_sched *sched);
/* Takes the last publish back, if it has not begun. */
bool kni_sched_withdraw(struct kni_sched *sched);
void kni_sched_release_hold(struct kni_sched *sched, struct kni_hold *hold);

/* counts.c */
/* Counts the prompt tokens that the job's sequence has now and had not before, under one of n_cached_tokens, n_fetched_tokens
 * and n_computed_tokens. */
void kni_sched_count(struct kni_sched *sched, struct kni_job *job, uint64_t *as);

#endif
