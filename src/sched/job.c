/* SPDX-License-Identifier: Apache-2.0 */
/* Jobs and their lists. All memory of a job is taken at init: steps only fill it. */
#include "sched/job.h"

#include <assert.h>
#include <string.h>

#include "base/alloc.h"
#include "kv/chain.h"

enum kn_status kni_job_init(struct kni_job *job, struct kni_pool *pool, const struct kni_job_opts *opts)
{
    assert(opts->n_prompt && opts->max_new && opts->max_new <= UINT32_MAX - opts->n_prompt);
    *job = (struct kni_job){.n_prompt = opts->n_prompt,
                            .n_known = opts->n_prompt,
                            .n_max = opts->n_prompt + opts->max_new,
                            .no_fetch = opts->no_fetch,
                            .no_publish = opts->no_publish,
                            .want_logits = opts->want_logits,
                            .least = opts->least ? opts->least : KN_KV_QUALITY_ANY,
                            .wait_ms = opts->wait_ms,
                            .deadline_ms = opts->deadline_ms};
    job->stats.n_prompt = opts->n_prompt;
    job->stats.quality = KN_KV_QUALITY_EXACT;
    struct kni_hash seed = kni_chain_seed(opts->fingerprint, opts->salt);
    if (kni_seq_init(&job->seq, pool, job->n_max - 1, &seed)) /* the last token's K and V are never needed */
        return KN_E_NOMEM;
    job->tokens = kni_alloc(KNI_ALLOC_TAG_REQUEST, (size_t)job->n_max * sizeof *job->tokens, 0);
    job->salt = kni_strdup(KNI_ALLOC_TAG_REQUEST, opts->salt ? opts->salt : "");
    if (!opts->no_publish)
        job->hold = kni_calloc(KNI_ALLOC_TAG_REQUEST, sizeof *job->hold + job->seq.max_blocks * (sizeof(uint32_t) + 1), 0);
    if (!opts->no_fetch)
        job->fetch_hold = kni_calloc(KNI_ALLOC_TAG_REQUEST, sizeof *job->fetch_hold + job->seq.max_blocks * sizeof(uint32_t), 0);
    if (!job->tokens || !job->salt || (!opts->no_publish && !job->hold) || (!opts->no_fetch && !job->fetch_hold))
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
    kni_free(job->tokens);
    kni_free(job->salt);
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
