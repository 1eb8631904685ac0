/* SPDX-License-Identifier: Apache-2.0 */
/*
 * One step: which tokens of which jobs, then the run, then what came of it. Decodes go first, whatever their number; prompts
 * share what they leave of the budget, oldest first. So a prompt waits for those that came before it, not for those that come
 * after: its first token comes at the latest after (prompt tokens not yet computed of all older jobs and its own) /
 * (prefill_chunk - decodes) steps, plus the places it waited for.
 *
 * Prompts that begin alike. Before a job is given prompt tokens it takes what the prefix index has got since; and a block that an
 * older job computes in this very step is not computed a second time: the job sits the step out and finds the block in the next.
 * It only waits for jobs that are in the batch and so move; when the older one ends or is thrown out, it computes by itself.
 *
 * A prompt that is scored wants logits of every row. They are made in KNI_SCHED_SCORE_ROWS rows that all such prompts share, and only
 * what becomes of them is kept: so its steps are short, and others go on beside it.
 *
 * Reserving blocks for one job may throw younger ones out of the batch,
 * so items are made only when it stands.
 *
 * Under way. A step that is not over when it has been launched holds a reference of its own on each block that it reads
 * or writes, until its end. So its jobs may end, be preempted or removed meanwhile: they leave the step
 * (kni_sched_leave_batch), their blocks stay with it, and nobody else gets one that it still writes. Nor does anybody
 * find one: blocks enter the index when the step has been taken.
 */
#include "sched/sched_state.h"

#include <assert.h>
#include <string.h>

#include "base/alloc.h"
#include "base/clock.h"

/* Room for n more tokens of job; returns how many there is room for. */
static uint32_t reserve(struct kni_sched *s, struct kni_job *job, uint32_t n)
{
    for (;;) {
        uint32_t n_ready = kni_seq_reserve(&job->seq, job->seq.n_tokens + n) - job->seq.n_tokens;
        if (n_ready >= n || !kni_sched_make_room(s, job))
            return n_ready;
    }
}

static uint32_t add(struct kni_sched *s, struct kni_job *job, uint32_t n)
{
    n = reserve(s, job, n);
    if (n) {
        assert(s->n_batch < s->opts.max_running);
        s->batch[s->n_batch++] = (struct kni_batch_entry){.job = job, .n_tokens = n};
    }
    return n;
}

/* Whether the step being built computes the block that job needs next, for an older job with the same prefix, in a quality that job
 * takes. */
static bool is_computed_by_older(const struct kni_sched *s, const struct kni_job *job)
{
    uint32_t b = job->seq.n_tokens / KNI_BLOCK_TOKENS, end = (b + 1) * KNI_BLOCK_TOKENS;
    if (job->seq.n_hashed < b || end >= kni_job_n_reusable(job)) /* what follows has logits to give */
        return false;
    for (uint32_t i = 0; i < s->n_batch; i++) {
        const struct kni_job *o = s->batch[i].job;
        if (o->id < job->id && o->seq.quality <= job->least && o->n_known >= end && o->seq.n_tokens / KNI_BLOCK_TOKENS == b && o->seq.n_hashed >= b &&
            kni_hash_equal(&o->seq.hashes[b], &job->seq.hashes[b]) &&
            memcmp(o->tokens + (size_t)b * KNI_BLOCK_TOKENS, job->tokens + (size_t)b * KNI_BLOCK_TOKENS, KNI_BLOCK_TOKENS * sizeof *o->tokens) == 0)
            return true;
    }
    return false;
}

/* Takes what the index has by now, instead of computing it. True: the rest comes with this step, so the job sits it out. */
static bool share_prefix(struct kni_sched *s, struct kni_job *job)
{
    if (!kni_pool_index(s->opts.pool))
        return false;
    if (job->seq.n_blocks == kni_blocks_for_tokens(job->seq.n_tokens)) /* nothing reserved */
        kni_sched_match(s, job);
    if (!is_computed_by_older(s, job))
        return false;
    kni_seq_truncate(&job->seq, job->seq.n_tokens - job->seq.n_tokens % KNI_BLOCK_TOKENS); /* whole blocks can be matched again */
    return true;
}

/* Of n pending tokens, those whose rows of a scored prompt still fit the step. */
static uint32_t cut_to_rows(const struct kni_job *job, uint32_t n, uint32_t n_rows_left)
{
    uint32_t n_rows = job->n_scored < job->n_prompt ? kni_job_n_rows(job, n) : 0;
    return n_rows <= n_rows_left ? n : n - (n_rows - n_rows_left); /* the rows are those of the last tokens */
}

static void build(struct kni_sched *s)
{
    s->n_batch = 0;
    for (struct kni_job *job = s->running.first; job; job = job->next) /* victims are younger: job stays in the list */
        if (kni_job_n_pending(job) == 1)
            add(s, job, 1);
    uint32_t n_left = s->opts.prefill_chunk > s->n_batch ? s->opts.prefill_chunk - s->n_batch : 1, n_rows_left = KNI_SCHED_SCORE_ROWS;
    for (struct kni_job *job = s->running.first; job && n_left; job = job->next) {
        if (kni_job_n_pending(job) == 1 || share_prefix(s, job))
            continue;
        uint32_t n = kni_job_n_pending(job);
        n = cut_to_rows(job, n < n_left ? n : n_left, n_rows_left);
        n = n ? add(s, job, n) : 0;
        n_left -= n;
        n_rows_left -= job->n_scored < job->n_prompt ? kni_job_n_rows(job, n) : 0;
    }
}

/* Item i of the step. n_rows counts the rows of all items, n_score_rows those of scored prompts. */
static void fill_item(struct kni_sched *s, uint32_t i, uint32_t *n_rows, uint32_t *n_score_rows)
{
    struct kni_job *job = s->batch[i].job;
    const uint32_t n = s->batch[i].n_tokens, first = job->seq.n_tokens, n_logits = kni_job_n_rows(job, n);
    const bool is_scored = job->n_scored < job->n_prompt;
    struct kni_run_row *rows = s->rows + *n_rows;
    float *logits = is_scored ? s->score_logits + (size_t)*n_score_rows * s->opts.n_vocab : s->logits + (size_t)i * s->opts.n_vocab;
    s->items[i] = (struct kni_run_item){.kv = kni_seq_view(&job->seq),
                                        .tokens = job->tokens + first,
                                        .n_tokens = n,
                                        .first_pos = first,
                                        .want = !n_logits          ? KNI_RUN_WANT_NOTHING
                                                : job->want_logits ? KNI_RUN_WANT_LOGITS
                                                                   : KNI_RUN_WANT_ROWS,
                                        .n_logits = n_logits,
                                        .logits = logits,
                                        .rows = rows};
    for (uint32_t j = 0; j < n_logits; j++) { /* row j is of position next - 1 and tells of next */
        uint32_t next = first + n - n_logits + j + 1;
        rows[j] = (struct kni_run_row){.token = -1};
        if (next < job->n_known)
            rows[j].token = job->tokens[next];
        else if (!job->no_generate)
            rows[j].sampler = job->sampler;
        if (next < job->described_end && next >= job->described_first) {
            rows[j].want_logprob = true;
            rows[j].n_top = job->n_top;
            rows[j].top = job->n_top ? job->tops + (size_t)(next - job->described_first) * job->n_top : NULL;
        }
    }
    *n_rows += n_logits;
    *n_score_rows += is_scored ? n_logits : 0;
}

/* The last known token has been computed: its logits have given the next. */
static void take_token(struct kni_sched *s, struct kni_job *job, int32_t token, const float *logits)
{
    kni_alloc_forbid_begin();
    enum kn_stop_reason reason = s->opts.take(s->opts.user, job, token);
    kni_alloc_forbid_end();
    if (reason) {
        kni_sched_finish(s, job, reason, KN_OK);
        return;
    }
    job->tokens[job->n_known++] = token;
    job->logits = logits;
    job->logits_step = s->stats.n_steps;
    job->stats.n_generated = kni_job_n_generated(job);
    s->stats.n_generated_tokens++;
    if (!job->stats.ttft_ns)
        job->stats.ttft_ns = kni_now_ns() - job->submit_ns;
    if (job->n_known == job->n_max)
        kni_sched_finish(s, job, KN_STOP_REASON_LENGTH, KN_OK);
}

/* What became of the item's rows. The sequence has been committed. */
static void take_rows(struct kni_sched *s, struct kni_job *job, const struct kni_run_item *item)
{
    uint32_t end = item->first_pos + item->n_tokens, next = end - item->n_logits + 1;
    for (uint32_t i = 0; i < item->n_logits; i++, next++) {
        const struct kni_run_row *row = &item->rows[i];
        if (row->status) {
            kni_seq_forget(&job->seq); /* the next one with this prefix computes it anew */
            kni_sched_finish(s, job, KN_STOP_REASON_ERROR, row->status);
            return;
        }
        if (row->want_logprob)
            job->logprobs[next - job->described_first] = row->logprob;
        if (next < job->n_prompt && next == job->n_scored)
            job->n_scored++;
        if (next == job->n_known && !job->no_generate) /* the last row */
            take_token(s, job, row->token, item->logits + (size_t)i * s->opts.n_vocab);
    }
    if (job->no_generate && end == job->n_prompt)
        kni_sched_finish(s, job, KN_STOP_REASON_LENGTH, KN_OK);
}

/* References for the step that has been launched. Its jobs hold the blocks too, so none has changed hands since. */
static void hold_blocks(struct kni_sched *s)
{
    for (uint32_t i = 0; i < s->n_batch; i++) {
        struct kni_job *job = s->batch[i].job;
        struct kni_hold *hold = s->batch[i].hold = job->step_hold;
        job->step_hold = NULL;
        hold->n_blocks = job->seq.n_blocks;
        memcpy(hold->block_ids, job->seq.block_ids, hold->n_blocks * sizeof *hold->block_ids);
        for (uint32_t b = 0; b < hold->n_blocks; b++)
            kni_pool_ref(s->opts.pool, hold->block_ids[b]);
    }
}

static void let_go(struct kni_sched *s)
{
    for (uint32_t i = 0; i < s->n_batch; i++) {
        struct kni_batch_entry *e = &s->batch[i];
        for (uint32_t b = e->hold->n_blocks; b-- > 0;) /* last first: see kv/pool.c on eviction */
            kni_pool_unref(s->opts.pool, e->hold->block_ids[b]);
        if (e->job)
            e->job->step_hold = e->hold;
        else
            kni_free(e->hold);
        e->hold = NULL;
    }
}

void kni_sched_leave_batch(struct kni_sched *s, const struct kni_job *job)
{
    uint32_t i = 0;
    while (i < s->n_batch && s->batch[i].job != job)
        i++;
    if (i == s->n_batch)
        return;
    if (s->is_under_way) {
        s->batch[i].job = NULL;
        kni_run_forget(s->opts.run, i);
    } else {
        for (s->n_batch--; i < s->n_batch; i++)
            s->batch[i] = s->batch[i + 1];
    }
}

/* The step is over: what came of it. */
static void take(struct kni_sched *s, enum kn_status status)
{
    const uint32_t n_batch = s->n_batch;
    s->n_batch = 0; /* whoever ends below has left it */
    if (!status && s->opts.check) /* what the step has computed with */
        status = s->opts.check(s->opts.user);
    for (uint32_t i = 0; i < n_batch; i++) {
        struct kni_job *job = s->batch[i].job;
        if (!job)
            continue;
        if (status) { /* what the step wrote is not trusted; what was there before stays */
            kni_sched_finish(s, job, KN_STOP_REASON_ERROR, status);
            continue;
        }
        uint32_t n_now = job->seq.n_tokens + s->batch[i].n_tokens;
        kni_seq_commit(&job->seq, job->tokens, n_now);
        if (job->seq.quality > job->stats.quality)
            job->stats.quality = job->seq.quality;
        kni_sched_count(s, job, &s->stats.n_computed_tokens);
        job->stats.n_done = n_now < job->n_prompt ? n_now : job->n_prompt;
        take_rows(s, job, &s->items[i]);
    }
}

void kni_sched_poll_batch(struct kni_sched *s)
{
    if (!s->is_under_way)
        return;
    kni_alloc_forbid_begin();
    enum kn_status status = kni_run_try_end(s->opts.run);
    kni_alloc_forbid_end();
    if (status == KN_AGAIN) {
        s->n_polls++;
        return;
    }
    let_go(s);
    s->is_under_way = false;
    take(s, status);
}

bool kni_sched_run_batch(struct kni_sched *s)
{
    build(s);
    if (!s->n_batch)
        return false;
    uint32_t n_tokens = 0, n_rows = 0, n_score_rows = 0;
    for (uint32_t i = 0; i < s->n_batch; i++) {
        fill_item(s, i, &n_rows, &n_score_rows);
        n_tokens += s->batch[i].n_tokens;
    }
    s->stats.n_steps++; /* from here on the last step's logits are overwritten */
    s->stats.n_step_tokens += n_tokens;
    kni_alloc_forbid_begin();
    enum kn_status status = kni_run_begin(s->opts.run, s->items, s->n_batch);
    if (!status)
        status = kni_run_try_end(s->opts.run);
    kni_alloc_forbid_end();
    if (status == KN_AGAIN) {
        hold_blocks(s);
        s->is_under_way = true;
        s->n_polls = 0;
    } else
        take(s, status);
    return true;
}
