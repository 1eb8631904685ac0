/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What an engine and a request are made of. An engine owns its stages; opening order is the order of the fields, closing the
 * reverse. A request embeds its job as first member, so that the scheduler's callback finds the request again.
 * Owner thread: the one that opened the engine.
 */
#ifndef KNI_ENGINE_ENGINE_STATE_H
#define KNI_ENGINE_ENGINE_STATE_H

#include "fetch/fetch.h"
#include "kinema/engine.h"
#include "kv/pool.h"
#include "model/model.h"
#include "run/sampler.h"
#include "run/run.h"
#include "sched/sched.h"

/* Scored positions in one step (score.c): as many as the scheduler's, whose run it uses. */
#define KNI_ENGINE_SCORE_ROWS KNI_SCHED_SCORE_ROWS

struct kn_engine {
    struct kn_model *model; /* a reference */
    struct kni_threads *threads;
    struct kni_pool *pool;
    struct kni_run *run;
    struct kni_fetcher *fetcher; /* NULL without a store */
    struct kni_sched *sched;
    struct kn_request *requests; /* open ones */
    uint32_t n_ctx, prefill_chunk, max_running;
    uint32_t cpu_without;        /* flags that kernels do not use, by the level that was asked for */
    enum kn_cpu_level cpu_level; /* of the kernels in use */
    enum kn_kv_quality kv_quality; /* least that requests take when they do not say; never DEFAULT */
};

struct kn_request {
    struct kni_job job;       /* first */
    struct kn_engine *engine; /* NULL once the engine has been closed */
    struct kn_request *prev, *next;
    struct kni_sampler sampler;
    bool ignore_stop;
    bool done_read;  /* the DONE event has been given out */
    uint32_t n_prompt_read; /* positions of the prompt whose events have been given out, or are not wanted */
    uint32_t n_read; /* generated tokens given out */
};

/* The scheduler's kni_sched_take_fn; user is the engine. */
enum kn_stop_reason kni_request_take(void *user, struct kni_job *job, int32_t token);
/* What is wrong with tokens that are to be run, if anything: KN_E_ARG, KN_E_CONTEXT. what: "prompt". */
/* KN_E_ARG when it is no quality; DEFAULT is one. gives: whose quality that is, for the sentence. */
enum kn_status kni_engine_check_quality(enum kn_kv_quality quality, const char *gives, struct kn_err *err);
enum kn_status kni_engine_check_tokens(const struct kn_engine *engine, const char *what, const int32_t *tokens, size_t n_tokens, struct kn_err *err);
/* Takes the request out of its engine, which is about to close: what was generated can still be read. */
void kni_request_detach(struct kn_request *request);

#endif
