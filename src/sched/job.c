/* SPDX-License-Identifier: Apache-2.0 */
/* Jobs and their lists. All memory of a job is taken at init: steps only fill it. */
#include "sched/job.h"

#include <assert.h>
#include <math.h>
#include <string.h>

#include "base/alloc.h"
#include "kv/chain.h"

/* Room for log-probabilities. Position 0 has none, now or ever. */
static bool describe(struct kni_job *job, const struct kni_job_opts *opts)
{
    size_t n = job->described_end - job->described_first, bytes;
    if (opts->score_prompt)
        job->n_scored = opts->score_first ? opts->score_first : 1;
    if (!n)
        return true;
    job->logprobs = kni_alloc(KNI_ALLOC_TAG_REQUEST, n * sizeof *job->logprobs, 0);
    if (job->n_top && kni_mul_size(n, job->n_top * sizeof *job->tops, &bytes))
        job->tops = kni_alloc(KNI_ALLOC_TAG_REQUEST, bytes, 0);
    if (!job->logprobs || (job->n_top && !job->tops))
        return false;
    job->logprobs[0] = NAN;
    return true;
}

enum kn_status kni_job_init(struct kni_job *job, struct kni_pool *pool, const struct kni_job_opts *opts)
{
    assert(opts->n_prompt && opts->max_new <= UINT32_MAX - opts->n_prompt);
    *job = (struct kni_job){.n_prompt = opts->n_prompt,
                            .n_known = opts->n_prompt,
                            .n_max = opts->n_prompt + opts->max_new,
                            .no_fetch = opts->no_fetch,
                            .no_publish = opts->no_publish,
                            .want_logits = opts->want_logits,
                            .want_logprobs = opts->want_logprobs,
                            .no_generate = !opts->max_new,
                            .sampler = opts->sampler,
                            .n_top = opts->score_prompt || opts->want_logprobs ? opts->n_top : 0,
                            .described_first = opts->score_prompt ? opts->score_first : opts->n_prompt,
                            .described_end = opts->want_logprobs ? opts->n_prompt + opts->max_new : opts->n_prompt,
                            .n_scored = opts->n_prompt,
                            .least = opts->least ? opts->least : KN_KV_QUALITY_ANY,
                            .wait_ms = opts->wait_ms,
                            .deadline_ms = opts->deadline_ms};
    job->stats.n_prompt = opts->n_prompt;
    job->stats.quality = KN_KV_QUALITY_EXACT;
    struct kni_hash seed = kni_chain_seed(opts->fingerprint, opts->salt);
    if (kni_seq_init(&job->seq, pool, job->n_max - !job->no_generate, &seed)) /* the last answer token's K and V are never needed */
        return KN_E_NOMEM;
    if (!describe(job, opts))
        return KN_E_NOMEM;
    job->tokens = kni_alloc(KNI_ALLOC_TAG_REQUEST, (size_t)job->n_max * sizeof *job->tokens, 0);
    job->salt = kni_strdup(KNI_ALLOC_TAG_REQUEST, opts->salt ? opts->salt : "");
    if (!opts->no_publish)
        job->hold = kni_calloc(KNI_ALLOC_TAG_REQUEST, sizeof *job->hold + job->seq.max_blocks * (sizeof(uint32_t) + 1), 0);
    if (!opts->no_fetch)
        job->fetch_hold = kni_calloc(KNI_ALLOC_TAG_REQUEST, sizeof *job->fetch_hold + job->seq.max_blocks * sizeof(uint32_t), 0);
    size_t table_bytes = job->seq.max_blocks * sizeof(uint32_t);
    job->step_hold = kni_calloc(KNI_ALLOC_TAG_REQUEST, sizeof *job->step_hold + table_bytes, 0);
    if (!job->tokens || !job->salt || !job->step_hold || (!opts->no_publish && !job->hold) ||
        (!opts->no_fetch && !job->fetch_hold))
        return KN_E_NOMEM;
    if (job->hold)
        job->hold->qualities = (uint8_t *)(job->hold->block_ids + job->seq.max_blocks);
    memcpy(job->tokens, opts->tokens, (size_t)opts->n_prompt * sizeof *job->tokens);
    return KN_OK;
}

void kni_job_fini(struct kni_job *job)
{
    assert(job->state == KNI_JOB_STATE_NEW && !job->fetch);
    kni_seq_fini(&job->seq);
    kni_free(job->hold);
    kni_free(job->fetch_hold);
    kni_free(job->step_hold);
    kni_free(job->tokens);
    kni_free(job->salt);
    kni_free(job->logprobs);
    kni_free(job->tops);
    *job = (struct kni_job){0};
}

void kni_job_list_insert(struct kni_job_list *list, struct kni_job *job)
{
    struct kni_job *after = list->last;
    while (after && after->id > job->id)
        after = after->prev;
    job->prev = after;
    job->next = after ? after->next : list->first;
    if (job->next)
        job->next->prev = job;
    else
        list->last = job;
    if (after)
        after->next = job;
    else
        list->first = job;
    list->n++;
}

void kni_job_list_remove(struct kni_job_list *list, struct kni_job *job)
{
    if (job->prev)
        job->prev->next = job->next;
    else
        list->first = job->next;
    if (job->next)
        job->next->prev = job->prev;
    else
        list->last = job->prev;
    job->prev = job->next = NULL;
    list->n--;
}
