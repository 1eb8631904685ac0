/* SPDX-License-Identifier: Apache-2.0 */
/*
 * For tests of the server's loop: the tiny model, an engine, metrics and a loop that runs in a thread of its own. What an answer
 * ought to be comes from a plain engine, one request after the other.
 */
#ifndef KN_TEST_LOOP_BED_H
#define KN_TEST_LOOP_BED_H

#include <pthread.h>

#include "base/alloc.h"
#include "base/clock.h"
#include "server/loop/loop_state.h"
#include "support/engine_bed.h"

struct kn_loop_bed {
    struct kn_model *model;
    struct kn_engine *engine;
    struct kni_metrics metrics;
    struct kni_loop *loop;
    pthread_t thread;
    enum kn_status status; /* of kni_loop_run */
};

static inline void kn_loop_bed_model(struct kn_model **model, const char *what)
{
    char path[256];
    struct kn_tiny_opts o = {.seed = 5};
    struct kn_err err = {0};
    kn_bed_path(path, what);
    assert_int_equal(kn_tiny_model_write(path, &o), 0);
    struct kn_model_opts mo = {.size = sizeof mo, .path = path};
    if (kn_model_open(model, &mo, &err))
        fail_msg("%s", err.text);
    unlink(path); /* it is mapped */
}

/* Everything but the thread. eo may be NULL; lo may be NULL, its pointers are filled in. */
static inline void kn_loop_bed_init(struct kn_loop_bed *b, const struct kn_engine_opts *eo, const struct kni_loop_opts *lo)
{
    struct kn_engine_opts o = eo ? *eo : (struct kn_engine_opts){0};
    struct kn_err err = {0};
    *b = (struct kn_loop_bed){0};
    kn_loop_bed_model(&b->model, "loop.gguf");
    o.size = sizeof o;
    o.n_threads = o.n_threads ? o.n_threads : 1;
    if (kn_engine_open(&b->engine, b->model, &o, &err))
        fail_msg("%s", err.text);
    kni_metrics_init(&b->metrics);
    struct kni_loop_opts l = lo ? *lo : (struct kni_loop_opts){.max_queue = 256, .drain_timeout_ms = 30000};
    l.engine = b->engine;
    l.model = b->model;
    l.metrics = &b->metrics;
    if (kni_loop_open(&b->loop, &l, &err))
        fail_msg("%s", err.text);
}

static inline void *kn_loop_bed_thread(void *user)
{
    struct kn_loop_bed *b = user;
    b->status = kni_loop_run(b->loop);
    return NULL;
}

static inline void kn_loop_bed_start(struct kn_loop_bed *b)
{
    assert_int_equal(pthread_create(&b->thread, NULL, kn_loop_bed_thread, b), 0);
}

/* After a stop: the loop has drained, and the pool verified empty. */
static inline void kn_loop_bed_join(struct kn_loop_bed *b)
{
    assert_int_equal(pthread_join(b->thread, NULL), 0);
    assert_int_equal(b->status, KN_OK);
    assert_int_equal(atomic_load(&b->loop->load), 0);
    assert_int_equal(atomic_load(&b->loop->n_inbox), 0);
}

static inline void kn_loop_bed_fini(struct kn_loop_bed *b)
{
    kni_loop_close(&b->loop);
    kn_engine_close(&b->engine);
    kn_model_close(&b->model);
}

static inline struct kni_call *kn_loop_bed_call(uint32_t n_prompt, uint64_t prompt_seed, uint32_t max_tokens, uint32_t n_choices, uint32_t n_top)
{
    struct kni_call *call = NULL;
    int32_t *tokens = kni_alloc(KNI_ALLOC_TAG_REQUEST, (n_prompt ? n_prompt : 1) * sizeof *tokens, 0);
    assert_non_null(tokens);
    kn_bed_prompt(tokens, n_prompt, prompt_seed);
    assert_int_equal(kni_call_open(&call, tokens, n_prompt, max_tokens, n_choices, n_top > 0, n_top), KN_OK);
    call->salt = kni_strdup(KNI_ALLOC_TAG_REQUEST, "");
    call->ignore_stop = true;
    call->sampler = (struct kn_sampler_opts){.temperature = 1, .seed = prompt_seed};
    call->begin_ns = kni_now_ns();
    return call;
}

static inline bool kn_loop_bed_is_done(const struct kni_call *call)
{
    for (uint32_t i = 0; i < call->n_choices; i++)
        if (!atomic_load_explicit(&call->choices[i].done, memory_order_acquire))
            return false;
    return true;
}

/* Waits until every choice is done; fails after a minute or two. */
static inline void kn_loop_bed_wait(struct kni_call *call)
{
    uint64_t end = kni_now_ns() + 120000000000u;
    while (!kn_loop_bed_is_done(call)) {
        assert_true(kni_call_wait(call, NULL, 1000));
        assert_true(kni_now_ns() < end);
    }
}

/* Waits until choice 0 has n events. */
static inline void kn_loop_bed_wait_events(struct kni_call *call, uint32_t n)
{
    uint64_t end = kni_now_ns() + 120000000000u;
    while (atomic_load_explicit(&call->choices[0].n_events, memory_order_acquire) < n) {
        assert_true(kni_call_wait(call, NULL, 1000));
        assert_true(kni_now_ns() < end);
        assert_false(atomic_load(&call->choices[0].done) && atomic_load(&call->choices[0].n_events) < n);
    }
}

#endif
