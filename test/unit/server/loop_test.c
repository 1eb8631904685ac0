/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The loop over a real engine with the tiny model: tokens and log-probabilities as a plain engine's, ends of every kind, the queue's
 * limit, drains, and many threads at random. `loop_test --stress SECONDS` runs the last alone and for longer (under ThreadSanitizer by hand).
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "support/loop_bed.h"

#define MAX_NEW 24u

static double stress_seconds = 1.5;

/* The plain engine's tokens and logits for choice k of call. */
static uint32_t run_plain(const struct kni_call *call, uint32_t k, int32_t *tokens, float *logits)
{
    struct kn_model *model;
    struct kn_engine *e;
    struct kn_request *r;
    struct kn_event ev = {.size = sizeof ev};
    uint32_t n = 0;
    kn_loop_bed_model(&model, "plain.gguf");
    struct kn_engine_opts eo = {.size = sizeof eo, .n_threads = 1};
    assert_int_equal(kn_engine_open(&e, model, &eo, NULL), KN_OK);
    struct kn_sampler_opts sampler = call->sampler;
    sampler.size = sizeof sampler;
    sampler.seed += k;
    struct kn_request_opts ro = {.size = sizeof ro, .tokens = call->tokens, .n_tokens = call->n_tokens, .max_tokens = call->max_tokens,
                                 .sampler = &sampler, .ignore_stop = call->ignore_stop, .want_logits = logits != NULL};
    assert_int_equal(kn_request_submit(&r, e, &ro, NULL), KN_OK);
    for (uint32_t n_vocab = kn_tiny_n_vocab();;) {
        enum kn_status s = kn_request_next(r, &ev);
        if (s == KN_AGAIN) {
            assert_int_equal(kn_engine_step(e), KN_OK);
            continue;
        }
        assert_int_equal(s, KN_OK);
        if (ev.kind == KN_EVENT_KIND_DONE)
            break;
        if (logits)
            memcpy(logits + (size_t)n * n_vocab, ev.logits, n_vocab * sizeof *logits);
        tokens[n++] = ev.token;
    }
    kn_request_close(&r);
    kn_engine_close(&e);
    kn_model_close(&model);
    return n;
}

static void check_tokens(const struct kni_call *call)
{
    assert_int_equal(atomic_load(&call->state), KNI_CALL_STATE_ACCEPTED);
    for (uint32_t k = 0; k < call->n_choices; k++) {
        const struct kni_call_choice *c = &call->choices[k];
        int32_t want[512];
        uint32_t n = run_plain(call, k, want, NULL);
        assert_int_equal(atomic_load(&c->n_events), n);
        assert_int_equal(c->reason, KN_STOP_REASON_LENGTH);
        assert_int_equal(c->status, KN_OK);
        assert_int_equal(c->stats.n_generated, n);
        for (uint32_t i = 0; i < n; i++)
            assert_int_equal(c->events[i].token, want[i]);
    }
}

static void test_same_tokens(void **state)
{
    (void)state;
    struct kn_loop_bed b;
    struct kni_call *calls[8];
    struct kn_engine_opts eo = {.pool_bytes = 4 << 20}; /* room for all prefixes */
    kn_loop_bed_init(&b, &eo, NULL);
    kn_loop_bed_start(&b);
    for (int round = 0; round < 2; round++) { /* the second with the prefixes of the first */
        for (uint32_t i = 0; i < 8; i++) {
            calls[i] = kn_loop_bed_call(20 + 30 * i, i / 2, MAX_NEW, i % 3 + 1, 0);
            assert_int_equal(kni_loop_submit(b.loop, calls[i]), KN_OK);
        }
        for (uint32_t i = 0; i < 8; i++) {
            kn_loop_bed_wait(calls[i]);
            check_tokens(calls[i]);
            if (round)
                assert_true(calls[i]->choices[0].stats.n_cached > 0);
            kni_call_unref(calls[i]);
        }
    }
    kni_loop_stop(b.loop);
    kn_loop_bed_join(&b);
    assert_int_equal(b.metrics.ended[KN_STOP_REASON_LENGTH], 2 * (3 + 2 * 3 + 3 * 2));
    assert_int_equal(b.metrics.ttft.count, b.metrics.ended[KN_STOP_REASON_LENGTH]);
    assert_int_equal(b.metrics.tpot.count, b.metrics.ended[KN_STOP_REASON_LENGTH]);
    assert_int_equal(b.metrics.queue.count, b.metrics.ended[KN_STOP_REASON_LENGTH]);
    assert_true(b.metrics.queue.sum_ns > 0 && b.metrics.queue.sum_ns <= b.metrics.ttft.sum_ns && b.metrics.ttft.sum_ns <= b.metrics.e2e.sum_ns);
    kn_loop_bed_fini(&b);
}

/* Log-probabilities against logits of a plain engine, softmax in double over all, sorted whole. */
static void test_logprobs(void **state)
{
    (void)state;
    const uint32_t n_vocab = kn_tiny_n_vocab(), n_top = 7;
    struct kn_loop_bed b;
    kn_loop_bed_init(&b, NULL, NULL);
    kn_loop_bed_start(&b);
    struct kni_call *call = kn_loop_bed_call(40, 3, MAX_NEW, 2, n_top);
    assert_int_equal(kni_loop_submit(b.loop, call), KN_OK);
    kn_loop_bed_wait(call);
    float *logits = malloc(MAX_NEW * n_vocab * sizeof *logits);
    for (uint32_t k = 0; k < 2; k++) {
        const struct kni_call_choice *c = &call->choices[k];
        int32_t tokens[MAX_NEW];
        assert_int_equal(run_plain(call, k, tokens, logits), MAX_NEW);
        assert_int_equal(atomic_load(&c->n_events), MAX_NEW);
        for (uint32_t i = 0; i < MAX_NEW; i++) {
            const float *x = logits + (size_t)i * n_vocab;
            double sum = 0;
            for (uint32_t t = 0; t < n_vocab; t++)
                sum += exp((double)x[t]);
            assert_int_equal(c->events[i].token, tokens[i]);
            assert_float_equal(c->events[i].logprob, x[tokens[i]] - log(sum), 1e-5);
            for (uint32_t j = 0; j < n_top; j++) {
                const struct kni_call_top *top = &c->tops[i * n_top + j];
                uint32_t n_above = 0;
                for (uint32_t t = 0; t < n_vocab; t++)
                    n_above += x[t] > x[top->token] || (x[t] == x[top->token] && (int32_t)t < top->token);
                assert_int_equal(n_above, j); /* it is the j-th likeliest, so no other can stand here */
                assert_float_equal(top->logprob, x[top->token] - log(sum), 1e-5);
            }
        }
    }
    free(logits);
    kni_call_unref(call);
    kni_loop_stop(b.loop);
    kn_loop_bed_join(&b);
    kn_loop_bed_fini(&b);
}

static void test_finish_and_cancel(void **state)
{
    (void)state;
    struct kn_loop_bed b;
    kn_loop_bed_init(&b, NULL, NULL);
    struct kni_call *early = kn_loop_bed_call(30, 1, 100, 2, 0); /* cancelled before the loop has seen it */
    assert_int_equal(kni_loop_submit(b.loop, early), KN_OK);
    kni_loop_cancel(b.loop, early);
    kni_loop_cancel(b.loop, early);
    kn_loop_bed_start(&b);
    kn_loop_bed_wait(early);
    for (uint32_t k = 0; k < 2; k++) {
        assert_int_equal(early->choices[k].reason, KN_STOP_REASON_CANCELLED);
        assert_int_equal(atomic_load(&early->choices[k].n_events), 0);
    }

    struct kni_call *call = kn_loop_bed_call(30, 2, 400, 2, 0);
    assert_int_equal(kni_loop_submit(b.loop, call), KN_OK);
    kn_loop_bed_wait_events(call, 5);
    kni_loop_finish(b.loop, call, 0);
    uint64_t end = kni_now_ns() + 120000000000u;
    while (!atomic_load(&call->choices[0].done)) {
        assert_true(kni_call_wait(call, NULL, 1000));
        assert_true(kni_now_ns() < end);
    }
    assert_int_equal(call->choices[0].reason, KN_STOP_REASON_STOP);
    assert_true(atomic_load(&call->choices[0].n_events) >= 5);
    kni_loop_finish(b.loop, call, 0); /* late: nothing */
    kni_loop_cancel(b.loop, call);    /* the other */
    kn_loop_bed_wait(call);
    assert_int_equal(call->choices[0].reason, KN_STOP_REASON_STOP);
    assert_int_equal(call->choices[1].reason, KN_STOP_REASON_CANCELLED);
    kni_loop_cancel(b.loop, call);
    kni_loop_stop(b.loop);
    kn_loop_bed_join(&b);
    assert_int_equal(b.metrics.ended[KN_STOP_REASON_CANCELLED], 3);
    assert_int_equal(b.metrics.ended[KN_STOP_REASON_STOP], 1);
    kni_call_unref(early);
    kni_call_unref(call);
    kn_loop_bed_fini(&b);
}

static void test_refused(void **state)
{
    (void)state;
    struct kn_loop_bed b;
    kn_loop_bed_init(&b, NULL, NULL);
    kn_loop_bed_start(&b);
    struct kni_call *longer = kn_loop_bed_call(600, 1, 5, 1, 0), *odd = kn_loop_bed_call(10, 1, 5, 3, 0);
    odd->sampler.top_p = 7;
    assert_int_equal(kni_loop_submit(b.loop, longer), KN_OK);
    assert_int_equal(kni_loop_submit(b.loop, odd), KN_OK);
    kn_loop_bed_wait(longer);
    kn_loop_bed_wait(odd);
    while (atomic_load(&odd->state) == KNI_CALL_STATE_QUEUED || atomic_load(&longer->state) == KNI_CALL_STATE_QUEUED)
        usleep(1000);
    assert_int_equal(atomic_load(&longer->state), KNI_CALL_STATE_REFUSED);
    assert_int_equal(longer->err.status, KN_E_CONTEXT);
    assert_non_null(strstr(longer->err.text, "600"));
    assert_int_equal(atomic_load(&odd->state), KNI_CALL_STATE_REFUSED);
    assert_int_equal(odd->err.status, KN_E_ARG);
    for (uint32_t k = 0; k < 3; k++)
        assert_int_equal(odd->choices[k].reason, KN_STOP_REASON_ERROR);
    kni_loop_stop(b.loop);
    kn_loop_bed_join(&b);
    kni_call_unref(longer);
    kni_call_unref(odd);
    kn_loop_bed_fini(&b);
}

/* Each allocation fails once, on one thread: a call is taken whole or refused whole, and nothing stays behind. */
static void test_all_or_none(void **state)
{
    (void)state;
    struct kn_loop_bed b;
    uint32_t n_refused = 0;
    for (uint64_t n = 1;; n++) {
        kn_loop_bed_init(&b, NULL, NULL);
        struct kni_call *call = kn_loop_bed_call(33, 4, 6, 3, 2);
        assert_int_equal(kni_loop_submit(b.loop, call), KN_OK);
        kni_loop_stop(b.loop); /* what is in the inbox is served all the same */
        kni_alloc_fault_arm(n, false);
        enum kn_status status = kni_loop_run(b.loop);
        bool hit = kni_alloc_fault_hit();
        kni_alloc_fault_arm(0, false);
        assert_int_equal(status, KN_OK);
        assert_true(kn_loop_bed_is_done(call));
        assert_int_equal(call->n_refs, 1);
        bool refused = atomic_load(&call->state) == KNI_CALL_STATE_REFUSED;
        n_refused += refused;
        for (uint32_t k = 0; k < 3; k++) {
            assert_int_equal(atomic_load(&call->choices[k].n_events), refused ? 0 : 6);
            assert_int_equal(call->choices[k].reason, refused ? KN_STOP_REASON_ERROR : KN_STOP_REASON_LENGTH);
        }
        if (refused)
            assert_int_equal(call->err.status, KN_E_NOMEM);
        kni_call_unref(call);
        kn_loop_bed_fini(&b);
        if (!hit)
            break;
    }
    assert_true(n_refused >= 3);
}

static void test_queue_limit(void **state)
{
    (void)state;
    struct kn_engine_opts eo = {.max_running = 1};
    struct kni_loop_opts lo = {.max_queue = 2, .drain_timeout_ms = 30000};
    struct kn_loop_bed b;
    struct kni_call *calls[4];
    kn_loop_bed_init(&b, &eo, &lo);
    kn_loop_bed_start(&b);
    for (uint32_t i = 0; i < 4; i++)
        calls[i] = kn_loop_bed_call(20, i, i ? 5 : 480, 1, 0);
    assert_int_equal(kni_loop_submit(b.loop, calls[0]), KN_OK);
    kn_loop_bed_wait_events(calls[0], 1); /* it runs, and cannot end before the next lines */
    assert_int_equal(kni_loop_submit(b.loop, calls[1]), KN_OK);
    assert_int_equal(kni_loop_submit(b.loop, calls[2]), KN_OK);
    if (!atomic_load(&calls[0]->choices[0].done)) /* unless this machine slept through 480 tokens */
        assert_int_equal(kni_loop_submit(b.loop, calls[3]), KN_E_FULL);
    else
        skip();
    assert_int_equal(b.metrics.refused_queue, 1);
    assert_int_equal(calls[3]->n_refs, 1);
    kni_loop_cancel(b.loop, calls[0]);
    kn_loop_bed_wait(calls[0]);
    assert_int_equal(kni_loop_submit(b.loop, calls[3]), KN_OK); /* its place is free as soon as its end is seen */
    for (uint32_t i = 1; i < 4; i++) {
        kn_loop_bed_wait(calls[i]);
        check_tokens(calls[i]);
    }
    struct kni_call *wide = kn_loop_bed_call(20, 9, 3, 8, 0); /* more choices than places: taken while there is any */
    assert_int_equal(kni_loop_submit(b.loop, wide), KN_OK);
    kn_loop_bed_wait(wide);
    check_tokens(wide);
    kni_loop_stop(b.loop);
    kn_loop_bed_join(&b);
    for (uint32_t i = 0; i < 4; i++)
        kni_call_unref(calls[i]);
    kni_call_unref(wide);
    kn_loop_bed_fini(&b);
}

static void test_deadline(void **state)
{
    (void)state;
    struct kn_engine_opts eo = {.max_running = 1};
    struct kn_loop_bed b;
    kn_loop_bed_init(&b, &eo, NULL);
    kn_loop_bed_start(&b);
    struct kni_call *first = kn_loop_bed_call(20, 1, 480, 1, 0), *late = kn_loop_bed_call(20, 2, 5, 1, 0);
    late->wait_ms = 1; /* its HTTP request came an hour ago */
    late->begin_ns -= 3600ull * 1000000000u;
    assert_int_equal(kni_loop_submit(b.loop, first), KN_OK);
    kn_loop_bed_wait_events(first, 1);
    assert_int_equal(kni_loop_submit(b.loop, late), KN_OK);
    kn_loop_bed_wait(late);
    assert_int_equal(late->choices[0].reason, KN_STOP_REASON_ERROR);
    assert_int_equal(late->choices[0].status, KN_E_TIMEOUT);
    kni_loop_cancel(b.loop, first);
    kn_loop_bed_wait(first);
    kni_loop_stop(b.loop);
    kn_loop_bed_join(&b);
    assert_int_equal(b.metrics.ended[KN_STOP_REASON_ERROR], 1);
    kni_call_unref(first);
    kni_call_unref(late);
    kn_loop_bed_fini(&b);
}

static void test_snapshot(void **state)
{
    (void)state;
    struct kn_loop_bed b;
    struct kni_snapshot s, later;
    kn_loop_bed_init(&b, NULL, NULL);
    kni_loop_get_snapshot(b.loop, &s); /* before it runs */
    assert_int_equal(s.engine.n_blocks, 32);
    assert_int_equal(s.n_cells, 32);
    assert_int_equal(s.cell_blocks, 1);
    for (uint32_t i = 0; i < 32; i++)
        assert_int_equal(s.cells[i][KN_BLOCK_STATE_FREE], 255);
    kn_loop_bed_start(&b);
    struct kni_call *call = kn_loop_bed_call(100, 1, 20, 1, 0);
    assert_int_equal(kni_loop_submit(b.loop, call), KN_OK);
    kn_loop_bed_wait(call);
    kni_call_unref(call);
    uint32_t n_cached = 0, n_free = 0;
    uint64_t end = kni_now_ns() + 60000000000u;
    do /* taken when it falls idle, a moment after the call's end */
        kni_loop_get_snapshot(b.loop, &s);
    while ((s.n_calls || s.engine.n_generated_tokens < 20) && kni_now_ns() < end);
    for (uint32_t i = 0; i < s.n_cells; i++) {
        n_cached += s.cells[i][KN_BLOCK_STATE_CACHED] == 255;
        n_free += s.cells[i][KN_BLOCK_STATE_FREE] == 255;
    }
    assert_int_equal(n_cached, 7);
    assert_int_equal(n_free, 25);
    assert_int_equal(s.engine.n_cached_blocks, 7);
    assert_int_equal(s.n_calls, 0);
    assert_int_equal(s.n_inbox, 0);
    assert_false(s.draining);
    usleep(150000); /* the loop sleeps: who asks gets a new one all the same */
    do
        kni_loop_get_snapshot(b.loop, &later);
    while (later.taken_ns == s.taken_ns && kni_now_ns() < end);
    assert_true(later.taken_ns > s.taken_ns);
    kni_loop_stop(b.loop);
    kn_loop_bed_join(&b);
    kni_loop_get_snapshot(b.loop, &s);
    assert_true(s.draining);
    kn_loop_bed_fini(&b);
}

/* A finish or cancel that finds the inbox full is not lost. The loop is held up where it publishes its snapshot. */
static void test_full_inbox(void **state)
{
    (void)state;
    enum { N = 5000 };
    static struct kni_call *calls[N];
    struct kni_loop_opts lo = {.max_queue = 1000000, .drain_timeout_ms = 30000};
    struct kn_loop_bed b;
    uint32_t n = 0;
    kn_loop_bed_init(&b, NULL, &lo);
    kn_loop_bed_start(&b);
    struct kni_call *call = kn_loop_bed_call(20, 1, 480, 8, 0);
    assert_int_equal(kni_loop_submit(b.loop, call), KN_OK);
    kn_loop_bed_wait_events(call, 1);
    pthread_mutex_lock(&b.loop->lock);
    for (bool held = false; !held && n < N / 2; n++) { /* until it stands at its next snapshot: a call is not taken for 300 ms */
        calls[n] = kn_loop_bed_call(1, n, 1, 1, 0);
        assert_int_equal(kni_loop_submit(b.loop, calls[n]), KN_OK);
        for (uint32_t waits = 0; waits < 30 && atomic_load(&calls[n]->state) == KNI_CALL_STATE_QUEUED; waits++) {
            held = waits == 29;
            usleep(10000);
        }
    }
    for (uint32_t n_full = 0; n < N && n_full < 30;) { /* full for 300 ms: nobody takes anything out */
        calls[n] = kn_loop_bed_call(1, n, 1, 1, 0);
        if (kni_loop_submit(b.loop, calls[n]) == KN_OK) {
            n++;
            n_full = 0;
            continue;
        }
        kni_call_unref(calls[n]);
        n_full++;
        usleep(10000);
    }
    assert_true(n < N);
    bool was_done = atomic_load(&call->choices[0].done);
    kni_loop_finish(b.loop, call, 0);
    kni_loop_cancel(b.loop, call);
    pthread_mutex_unlock(&b.loop->lock);
    kn_loop_bed_wait(call);
    for (uint32_t k = 0; k < 8 && !was_done; k++)
        assert_int_equal(call->choices[k].reason, KN_STOP_REASON_CANCELLED);
    for (uint32_t i = 0; i < n; i++) {
        kn_loop_bed_wait(calls[i]);
        assert_int_equal(atomic_load(&calls[i]->choices[0].n_events), 1);
        kni_call_unref(calls[i]);
    }
    kni_loop_stop(b.loop);
    kn_loop_bed_join(&b);
    assert_int_equal(call->n_refs, 1);
    kni_call_unref(call);
    kn_loop_bed_fini(&b);
}

/* What a drain does to a long request, a waiting one, and one that comes too late. */
static void test_drain(void **state)
{
    (void)state;
    enum { IDLE, LETS_END, TIMES_OUT, STOPPED_TWICE, NEVER_RUN, N_CASES };
    for (int how = 0; how < N_CASES; how++) {
        struct kn_engine_opts eo = {.max_running = 1};
        struct kni_loop_opts lo = {.max_queue = 10, .drain_timeout_ms = how == TIMES_OUT ? 1 : 60000};
        struct kn_loop_bed b;
        struct kni_call *runs = NULL, *waits = NULL, *late = kn_loop_bed_call(20, 3, 5, 1, 0);
        kn_loop_bed_init(&b, &eo, &lo);
        if (how == NEVER_RUN) { /* as when the program closes without serving */
            waits = kn_loop_bed_call(20, 2, 400, 1, 0);
            assert_int_equal(kni_loop_submit(b.loop, waits), KN_OK);
            kni_loop_stop(b.loop);
            kni_loop_stop(b.loop);
        }
        kn_loop_bed_start(&b);
        if (how != IDLE && how != NEVER_RUN) {
            runs = kn_loop_bed_call(20, 1, how == LETS_END ? 40 : 480, 1, 0);
            waits = kn_loop_bed_call(20, 2, how == LETS_END ? 40 : 480, 1, 0);
            assert_int_equal(kni_loop_submit(b.loop, runs), KN_OK);
            kn_loop_bed_wait_events(runs, 1);
            assert_int_equal(kni_loop_submit(b.loop, waits), KN_OK);
        }
        kni_loop_stop(b.loop);
        assert_int_equal(kni_loop_submit(b.loop, late), KN_E_STATE);
        if (how == STOPPED_TWICE)
            kni_loop_stop(b.loop);
        kn_loop_bed_join(&b);
        assert_int_equal(kni_loop_submit(b.loop, late), KN_E_STATE);
        if (waits) {
            assert_true(kn_loop_bed_is_done(waits)); /* when run has returned, nobody waits any more */
            assert_int_equal(waits->choices[0].reason, how == LETS_END ? KN_STOP_REASON_LENGTH : KN_STOP_REASON_CANCELLED);
            assert_int_equal(waits->n_refs, 1);
        }
        if (how == LETS_END)
            check_tokens(runs);
        kni_loop_cancel(b.loop, late); /* harmless, also now */
        kni_call_unref(runs);
        kni_call_unref(waits);
        kn_loop_bed_fini(&b);
        assert_int_equal(late->n_refs, 1);
        kni_call_unref(late);
    }
}

/* ---- many threads at random */

#define N_CLIENTS 8

struct clients {
    struct kn_loop_bed *bed;
    _Atomic uint32_t next_id, n_taken, n_full, n_wrong; /* cmocka's asserts are for the main thread */
    _Atomic bool stop;
};

/* Reads a call's events to its end, slowly or not; true when what was read makes sense. */
static bool follow(struct clients *x, struct kni_call *call, uint64_t *rng)
{
    uint32_t finish_at = kn_tiny_next(rng) % 3 ? UINT32_MAX : (uint32_t)(kn_tiny_next(rng) % 10);
    uint32_t cancel_at = kn_tiny_next(rng) % 3 ? UINT32_MAX : (uint32_t)(kn_tiny_next(rng) % 20);
    bool is_slow = kn_tiny_next(rng) % 4 == 0, ok = true, cancelled = false;
    for (uint64_t begin = kni_now_ns(); !kn_loop_bed_is_done(call);) {
        kni_call_wait(call, NULL, 1000);
        if (kni_now_ns() - begin > 300000000000u)
            return false;
        for (uint32_t k = 0; k < call->n_choices; k++)
            if (atomic_load_explicit(&call->choices[k].n_events, memory_order_acquire) >= finish_at)
                kni_loop_finish(x->bed->loop, call, k);
        if (!cancelled && atomic_load_explicit(&call->choices[0].n_events, memory_order_acquire) >= cancel_at) {
            kni_loop_cancel(x->bed->loop, call);
            cancelled = true;
        }
        if (is_slow)
            usleep(20000);
    }
    for (uint32_t k = 0; k < call->n_choices; k++) {
        const struct kni_call_choice *c = &call->choices[k];
        uint32_t n = atomic_load_explicit(&c->n_events, memory_order_acquire);
        ok = ok && n <= call->max_tokens && c->reason != KN_STOP_REASON_NONE;
        ok = ok && (c->reason != KN_STOP_REASON_LENGTH || n == call->max_tokens);
        ok = ok && (c->reason != KN_STOP_REASON_STOP || finish_at != UINT32_MAX || !call->ignore_stop);
        ok = ok && (c->reason != KN_STOP_REASON_CANCELLED || cancelled || atomic_load(&x->stop));
        for (uint32_t i = 0; i < n; i++) {
            ok = ok && c->events[i].token >= 0 && (uint32_t)c->events[i].token < kn_tiny_n_vocab();
            ok = ok && (!call->want_logprobs || (c->events[i].logprob <= 0 && c->tops[(size_t)i * call->n_top].logprob >= c->events[i].logprob));
        }
    }
    return ok;
}

static void *run_client(void *user)
{
    struct clients *x = user;
    uint64_t rng = atomic_fetch_add(&x->next_id, 1);
    for (;;) {
        uint32_t max_tokens = (uint32_t)(kn_tiny_next(&rng) % 30) + 1, n_choices = kn_tiny_next(&rng) % 4 ? 1 : 3, n_top = kn_tiny_next(&rng) % 4 ? 0 : 4;
        struct kni_call *call = kn_loop_bed_call((uint32_t)(kn_tiny_next(&rng) % 120) + 1, kn_tiny_next(&rng) % 5, max_tokens, n_choices, n_top);
        call->ignore_stop = kn_tiny_next(&rng) % 2;
        enum kn_status status = kni_loop_submit(x->bed->loop, call);
        if (status == KN_E_STATE) {
            kni_call_unref(call);
            return NULL;
        }
        if (status == KN_E_FULL) {
            atomic_fetch_add(&x->n_full, 1);
            usleep(1000);
        } else {
            atomic_fetch_add(&x->n_taken, 1);
            if (kn_tiny_next(&rng) % 5 == 0)
                kni_loop_cancel(x->bed->loop, call); /* and leaves without looking back */
            else if (!follow(x, call, &rng))
                atomic_fetch_add(&x->n_wrong, 1);
        }
        kni_call_unref(call);
    }
}

static void test_stress(void **state)
{
    (void)state;
    struct kn_engine_opts eo = {.max_running = 4, .pool_bytes = 800000, .n_threads = 2}; /* 65 blocks: too few for all at once */
    struct kni_loop_opts lo = {.max_queue = 3, .drain_timeout_ms = 60000};
    struct kn_loop_bed b;
    struct clients x = {.bed = &b};
    pthread_t threads[N_CLIENTS];
    uint64_t before = kni_alloc_get_stats(KNI_ALLOC_TAG_COUNT).current_bytes;
    kn_loop_bed_init(&b, &eo, &lo);
    kn_loop_bed_start(&b);
    for (uint32_t i = 0; i < N_CLIENTS; i++)
        assert_int_equal(pthread_create(&threads[i], NULL, run_client, &x), 0);
    for (uint64_t end = kni_now_ns() + (uint64_t)(stress_seconds * 1e9); kni_now_ns() < end; usleep(10000)) {
        struct kni_snapshot s;
        kni_loop_get_snapshot(b.loop, &s);
        assert_true(s.engine.n_running <= 4);
    }
    atomic_store(&x.stop, true);
    kni_loop_stop(b.loop); /* while clients submit */
    if (stress_seconds > 2)
        kni_loop_stop(b.loop);
    for (uint32_t i = 0; i < N_CLIENTS; i++)
        pthread_join(threads[i], NULL); /* nobody waits for ever */
    kn_loop_bed_join(&b);
    assert_int_equal(atomic_load(&x.n_wrong), 0);
    assert_true(atomic_load(&x.n_taken) > N_CLIENTS);
    assert_int_equal(b.metrics.refused_queue, atomic_load(&x.n_full));
    kn_loop_bed_fini(&b);
    assert_int_equal(kni_alloc_get_stats(KNI_ALLOC_TAG_COUNT).current_bytes, before);
    if (stress_seconds > 2)
        print_message("%u calls taken, %u refused\n", atomic_load(&x.n_taken), atomic_load(&x.n_full));
}

int main(int argc, char **argv)
{
    const struct CMUnitTest long_tests[] = {
        cmocka_unit_test(test_stress),
    };
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_same_tokens),
        cmocka_unit_test(test_logprobs),
        cmocka_unit_test(test_finish_and_cancel),
        cmocka_unit_test(test_refused),
        cmocka_unit_test(test_all_or_none),
        cmocka_unit_test(test_queue_limit),
        cmocka_unit_test(test_deadline),
        cmocka_unit_test(test_snapshot),
        cmocka_unit_test(test_full_inbox),
        cmocka_unit_test(test_drain),
        cmocka_unit_test(test_stress),
    };
    if (argc == 3 && !strcmp(argv[1], "--stress")) {
        stress_seconds = strtod(argv[2], NULL);
        return cmocka_run_group_tests(long_tests, NULL, NULL);
    }
    return cmocka_run_group_tests(tests, NULL, NULL);
}
