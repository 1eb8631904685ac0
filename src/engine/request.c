/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Requests as the caller sees them. The queue of events is the job's token array with a cursor for the prompt, if it is scored, and
 * one for the answer: it needs no memory of its own, cannot overflow, and lets a caller read as late as it likes. Log-probabilities
 * lie in arrays of the job that were made at submit. Logits are an exception: they live in the scheduler's
 * buffer until the next step, so a token that is read later comes without.
 *
 * A stop token ends the answer and is not an event.
 */
#include <assert.h>
#include <math.h>
#include <string.h>

#include "base/alloc.h"
#include "base/sized.h"
#include "base/status.h"
#include "engine/engine_state.h"

enum kn_status kni_engine_check_tokens(const struct kn_engine *e, const char *what, const int32_t *tokens, size_t n_tokens, struct kn_err *err)
{
    const uint32_t n_vocab = e->model->hparams.n_vocab;
    if (!n_tokens || !tokens)
        return kni_err_set(err, KN_E_ARG, "the %s is empty: give at least one token", what);
    if (n_tokens > e->n_ctx)
        return kni_err_set(err, KN_E_CONTEXT, "the %s has %zu tokens but the context holds %u: shorten it or open the engine with a larger n_ctx",
                           what, n_tokens, e->n_ctx);
    for (size_t i = 0; i < n_tokens; i++)
        if (tokens[i] < 0 || (uint32_t)tokens[i] >= n_vocab)
            return kni_err_set(err, KN_E_ARG, "token %zu of the %s is %d but the vocabulary has the ids 0 to %u: tokenize with this model",
                               i, what, (int)tokens[i], n_vocab - 1);
    return KN_OK;
}

enum kn_status kni_engine_check_quality(enum kn_kv_quality quality, const char *gives, struct kn_err *err)
{
    if ((unsigned)quality >= KN_KV_QUALITY_COUNT)
        return kni_err_set(err, KN_E_ARG, "kv_quality is %d: use exact (%d) to any (%d), or 0 for what the %s", (int)quality,
                           KN_KV_QUALITY_EXACT, KN_KV_QUALITY_ANY, gives);
    return KN_OK;
}

/* How many tokens may be generated: what is asked for, cut to the context; without a wish, cut to the pool too. The last
 * token is never run through the model, so it needs no place. */
static uint32_t limit_new(const struct kn_engine *e, const struct kn_request_opts *o)
{
    uint32_t n_prompt = (uint32_t)o->n_tokens, n_new = e->n_ctx - n_prompt + 1;
    if (o->no_generate)
        return 0;
    if (o->max_tokens)
        return o->max_tokens < n_new ? o->max_tokens : n_new;
    uint64_t n_pool = (uint64_t)kni_pool_get_stats(e->pool).n_blocks * KNI_BLOCK_TOKENS;
    if (n_pool < (uint64_t)n_prompt + n_new - 1 && n_pool >= n_prompt)
        n_new = (uint32_t)n_pool - n_prompt + 1;
    return n_new;
}

static enum kn_status check_description(const struct kn_request_opts *o, struct kn_err *err)
{
    if (o->n_top_logprobs > KN_MAX_TOP_LOGPROBS)
        return kni_err_set(err, KN_E_ARG, "n_top_logprobs is %u: use 0 to %u", o->n_top_logprobs, KN_MAX_TOP_LOGPROBS);
    if (o->score_first && (!o->score_prompt || o->score_first >= o->n_tokens))
        return kni_err_set(err, KN_E_ARG, "score_first is %u: it needs score_prompt, and a prompt of more tokens than that (%zu)", o->score_first, o->n_tokens);
    return KN_OK;
}

/* The penalty looks back over the prompt too. */
static void show_prompt(struct kn_request *r)
{
    for (uint32_t i = 0; i < r->job.n_prompt; i++)
        kni_sampler_accept(&r->sampler, r->job.tokens[i]);
}

enum kn_status kn_request_submit(struct kn_request **out, struct kn_engine *e, const struct kn_request_opts *opts, struct kn_err *err)
{
    enum kn_status status = KN_OK;
    struct kn_request *r = NULL;
    struct kn_request_opts o;
    struct kn_sampler_opts sampler;

    if (!out)
        return kni_err_set(err, KN_E_ARG, "kn_request_submit needs a place for the request");
    *out = NULL;
    if (!e)
        return kni_err_set(err, KN_E_ARG, "kn_request_submit needs an engine");
    if ((status = KNI_OPTS_READ(&o, opts, kn_request_opts, err)) ||
        (status = KNI_OPTS_READ_OR_DEFAULT(&sampler, o.sampler, kn_sampler_opts, err)))
        return status;
    if ((status = kni_engine_check_tokens(e, "prompt", o.tokens, o.n_tokens, err)) || (status = kni_engine_check_quality(o.kv_quality, "engine takes", err)) ||
        (status = kn_model_check(e->model, err)))
        return status;
    if ((status = check_description(&o, err)))
        return status;

    r = kni_calloc(KNI_ALLOC_TAG_REQUEST, sizeof *r, 0);
    if (!r)
        return kni_err_set(err, KN_E_NOMEM, "no memory for a request of %zu tokens", o.n_tokens);
    struct kni_job_opts jo = {.tokens = o.tokens,
                              .n_prompt = (uint32_t)o.n_tokens,
                              .max_new = limit_new(e, &o),
                              .salt = o.salt,
                              .no_fetch = o.no_fetch || !e->fetcher,
                              .no_publish = o.no_publish || !e->fetcher,
                              .want_logits = o.want_logits,
                              .want_logprobs = o.want_logprobs,
                              .score_prompt = o.score_prompt,
                              .score_first = o.score_first,
                              .n_top = o.n_top_logprobs < e->model->hparams.n_vocab ? o.n_top_logprobs : e->model->hparams.n_vocab,
                              .sampler = &r->sampler,
                              .least = o.no_fetch ? KN_KV_QUALITY_EXACT : o.kv_quality ? o.kv_quality : e->kv_quality,
                              .wait_ms = o.wait_ms,
                              .deadline_ms = o.deadline_ms};
    memcpy(jo.fingerprint, e->model->info.fingerprint, sizeof jo.fingerprint);
    if (kni_job_init(&r->job, e->pool, &jo)) {
        status = kni_err_set(err, KN_E_NOMEM, "no memory for a request of %zu tokens", o.n_tokens);
        goto done;
    }
    status = kni_sampler_init(&r->sampler, &sampler, e->model->hparams.n_vocab);
    if (status) {
        kni_err_set(err, status, status == KN_E_NOMEM ? "no memory for a sampler over %u tokens"
                                                      : "a sampler option is out of range (vocabulary %u): temperature and repeat_penalty 0 to 1e6, top_p and min_p 0 to 1, repeat_last up to 65535",
                    e->model->hparams.n_vocab);
        goto done;
    }
    show_prompt(r);
    r->ignore_stop = o.ignore_stop;
    r->n_prompt_read = r->job.described_first;
    status = kni_sched_submit(e->sched, &r->job);
    if (status == KN_E_NOMEM) {
        kni_err_set(err, status, "no memory for %u rows of logits to score a prompt with", KNI_SCHED_SCORE_ROWS);
        goto done;
    }
    if (status) {
        kni_err_set(err, status, "prompt and answer need %u blocks of %u tokens but the pool has %u: lower max_tokens, shorten the prompt, or enlarge the pool",
                    r->job.seq.max_blocks, KNI_BLOCK_TOKENS, kni_pool_get_stats(e->pool).n_blocks);
        goto done;
    }
    r->engine = e;
    r->next = e->requests;
    if (r->next)
        r->next->prev = r;
    e->requests = r;
    *out = r;
    r = NULL;
done:
    kn_request_close(&r);
    return status;
}

enum kn_stop_reason kni_request_take(void *user, struct kni_job *job, int32_t token)
{
    const struct kn_engine *e = user;
    struct kn_request *r = (struct kn_request *)(void *)job; /* its first member */
    if (!r->ignore_stop && kn_model_token_is_stop(e->model, token))
        return KN_STOP_REASON_STOP;
    kni_sampler_accept(&r->sampler, token);
    return KN_STOP_REASON_NONE;
}

/* Of the token at position pos. */
static void describe(const struct kni_job *job, uint32_t pos, struct kn_event *event)
{
    if (pos < job->described_first || pos >= job->described_end)
        return;
    event->logprob = job->logprobs[pos - job->described_first];
    event->n_top = pos ? job->n_top : 0;
    event->top = event->n_top ? job->tops + (size_t)(pos - job->described_first) * job->n_top : NULL;
}

static enum kn_status take_event(struct kn_request *r, struct kn_event *event)
{
    const struct kni_job *job = &r->job;
    if (r->n_prompt_read < job->n_scored) {
        event->kind = KN_EVENT_KIND_PROMPT;
        event->token = job->tokens[r->n_prompt_read];
        describe(job, r->n_prompt_read++, event);
        return KN_OK;
    }
    if (r->n_read < kni_job_n_generated(job)) {
        event->kind = KN_EVENT_KIND_TOKEN;
        event->token = job->tokens[job->n_prompt + r->n_read];
        describe(job, job->n_prompt + r->n_read++, event);
        bool is_fresh = r->engine && r->n_read == kni_job_n_generated(job) && job->logits_step == kni_sched_n_steps(r->engine->sched);
        event->logits = job->want_logits && is_fresh ? job->logits : NULL;
        return KN_OK;
    }
    if (!job->reason)
        return KN_AGAIN;
    if (r->done_read)
        return KN_END;
    r->done_read = true;
    event->kind = KN_EVENT_KIND_DONE;
    event->reason = job->reason;
    event->status = job->status;
    return KN_OK;
}

enum kn_status kn_request_next(struct kn_request *r, struct kn_event *event)
{
    struct kn_event now = {.logprob = NAN};
    enum kn_status status = kni_stats_write(event, &now, sizeof now); /* one that cannot be told is not taken */
    if (status || (status = take_event(r, &now)))
        return status;
    return kni_stats_write(event, &now, sizeof now);
}

void kn_request_cancel(struct kn_request *r)
{
    if (r && r->engine)
        kni_sched_cancel(r->engine->sched, &r->job);
}

void kn_request_finish(struct kn_request *r)
{
    if (r && r->engine)
        kni_sched_stop(r->engine->sched, &r->job);
}

enum kn_status kn_request_get_stats(const struct kn_request *r, struct kn_request_stats *out)
{
    static const enum kn_request_state states[] = {
        [KNI_JOB_STATE_NEW] = KN_REQUEST_STATE_DONE, /* taken out: its engine was closed */
        [KNI_JOB_STATE_WAITING] = KN_REQUEST_STATE_WAITING,   [KNI_JOB_STATE_FETCHING] = KN_REQUEST_STATE_FETCHING,
        [KNI_JOB_STATE_RUNNING] = KN_REQUEST_STATE_RUNNING,   [KNI_JOB_STATE_FINISHED] = KN_REQUEST_STATE_DONE,
    };
    struct kn_request_stats now = r->job.stats;
    now.state = states[r->job.state];
    return kni_stats_write(out, &now, sizeof now);
}

enum kn_status kn_request_kv_digest(const struct kn_request *r, uint64_t n_tokens, uint8_t digest[16])
{
    const struct kni_job *job = &r->job;
    if (!r->engine || job->kv_dropped)
        return KN_E_STATE;
    if (n_tokens > job->seq.n_tokens || job->state == KNI_JOB_STATE_FETCHING)
        return KN_E_ARG;
    const struct kni_kv_view kv = kni_seq_view(&job->seq);
    const struct kni_kv_host view = kni_kv_host_of(&kv);
    const struct kni_kv_layout *l = &view.layout;
    struct kni_hasher h;
    kni_hasher_init(&h, NULL, 0);
    for (uint32_t pos = 0; pos < n_tokens; pos++)
        for (uint32_t layer = 0; layer < l->n_layer; layer++)
            for (uint32_t is_v = 0; is_v < 2; is_v++)
                for (uint32_t head = 0; head < l->n_kv_head; head++)
                    kni_hasher_update(&h, kni_kv_row(&view, layer, is_v, head, pos), l->d_head * sizeof(uint16_t));
    struct kni_hash hash = kni_hasher_final(&h);
    memcpy(digest, hash.bytes, sizeof hash.bytes);
    return KN_OK;
}

void kni_request_detach(struct kn_request *r)
{
    struct kn_engine *e = r->engine;
    kni_sched_remove(e->sched, &r->job);
    kni_seq_fini(&r->job.seq); /* it points into the pool */
    if (r->prev)
        r->prev->next = r->next;
    else
        e->requests = r->next;
    if (r->next)
        r->next->prev = r->prev;
    r->prev = r->next = NULL;
    r->engine = NULL;
}

void kn_request_close(struct kn_request **request)
{
    struct kn_request *r = request ? *request : NULL;
    if (!r)
        return;
    if (r->engine)
        kni_request_detach(r);
    kni_sampler_fini(&r->sampler);
    kni_job_fini(&r->job);
    kni_free(r);
    *request = NULL;
}
