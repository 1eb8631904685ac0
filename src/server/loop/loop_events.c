/* SPDX-License-Identifier: Apache-2.0 */
/*
 * From a call to the engine's requests and back.
 *
 *     call --take--> kn_request[n_choices] --step--> kn_event --fan out--> choices[i].events, tops, then done --> one signal
 *
 * A choice is one kn_request. All are submitted before the next step, so that the scheduler sees a shared prompt together; when one
 * is refused the others are taken back. A request is closed as soon as its DONE is out, which gives its blocks back.
 *
 * Log-probabilities come with the engine's events, computed by its steps: this thread only copies them. Those of the prompt are the
 * first choice's alone.
 *
 * Latencies count from the call's begin_ns, when its HTTP request had arrived; the engine's own begin at submit, and the
 * difference is added.
 */
#include <assert.h>
#include <math.h>

#include "base/clock.h"
#include "server/loop/loop_state.h"

/* What is left of ms at now, at least 1; 0 stays "for ever". */
static uint32_t left_ms(uint32_t ms, uint64_t begin_ns, uint64_t now_ns)
{
    uint64_t gone = now_ns > begin_ns ? (now_ns - begin_ns) / 1000000u : 0;
    return !ms ? 0 : gone < ms ? ms - (uint32_t)gone : 1;
}

static void observe(struct kni_loop *loop, const struct kni_call *call, const struct kni_call_choice *c)
{
    struct kni_metrics *m = loop->opts.metrics;
    atomic_fetch_add_explicit(&m->ended[c->reason], 1, memory_order_relaxed); /* a count */
    if (c->reason != KN_STOP_REASON_STOP && c->reason != KN_STOP_REASON_LENGTH)
        return;
    const uint64_t before = call->submit_ns > call->begin_ns ? call->submit_ns - call->begin_ns : 0;
    const uint64_t n = c->stats.n_generated;
    kni_hist_observe(&m->queue, c->queue_ns);
    kni_hist_observe(&m->e2e, before + c->stats.total_ns);
    if (c->stats.ttft_ns)
        kni_hist_observe(&m->ttft, before + c->stats.ttft_ns);
    if (n >= 2 && c->stats.total_ns >= c->stats.ttft_ns)
        kni_hist_observe(&m->tpot, (c->stats.total_ns - c->stats.ttft_ns) / (n - 1));
}

/* No event comes after it. */
static void end_choice(struct kni_loop *loop, struct kni_call *call, struct kni_call_choice *c, enum kn_stop_reason reason, enum kn_status status)
{
    if (reason == KN_STOP_REASON_CANCELLED && call->drop_status) {
        reason = KN_STOP_REASON_ERROR;
        status = call->drop_status;
    }
    c->reason = reason;
    c->status = status;
    c->stats.size = sizeof c->stats;
    if (c->request)
        kn_request_get_stats(c->request, &c->stats);
    kn_request_close(&c->request);
    observe(loop, call, c);
    call->n_open--;
    /* Before done: who sees its end and submits the next finds the place free. */
    atomic_fetch_sub_explicit(&loop->load, 1, memory_order_relaxed);
    atomic_store_explicit(&c->done, true, memory_order_release); /* hands over reason, status, stats to the connection's thread */
}

static void link_call(struct kni_loop *loop, struct kni_call *call)
{
    call->prev = loop->last;
    call->next = NULL;
    if (loop->last)
        loop->last->next = call;
    else
        loop->calls = call;
    loop->last = call;
    loop->n_calls++;
    kni_call_ref(call); /* the list's */
}

static void unlink_call(struct kni_loop *loop, struct kni_call *call)
{
    if (call->prev)
        call->prev->next = call->next;
    else
        loop->calls = call->next;
    if (call->next)
        call->next->prev = call->prev;
    else
        loop->last = call->prev;
    call->prev = call->next = NULL;
    loop->n_calls--;
    kni_call_unref(call);
}

static enum kn_status submit_choice(struct kni_loop *loop, struct kni_call *call, uint32_t i, struct kn_err *err)
{
    struct kni_call_choice *c = &call->choices[i];
    struct kn_sampler_opts sampler = call->sampler;
    sampler.size = sizeof sampler;
    sampler.seed += i;
    struct kn_request_opts o = {
        .size = sizeof o,
        .tokens = call->tokens,
        .n_tokens = call->n_tokens,
        .max_tokens = call->max_tokens,
        .sampler = &sampler,
        .no_fetch = call->no_fetch,
        .no_publish = call->no_publish,
        .kv_quality = call->kv_quality,
        .ignore_stop = call->ignore_stop,
        .want_logprobs = call->want_logprobs,
        .n_top_logprobs = call->n_top,
        .score_prompt = call->score_prompt && i == 0,
        .no_generate = call->max_tokens == 0,
        .salt = call->salt,
        .wait_ms = left_ms(call->wait_ms, call->begin_ns, call->submit_ns),
        .deadline_ms = left_ms(call->deadline_ms, call->begin_ns, call->submit_ns),
    };
    c->id = ++loop->next_id;
    return kn_request_submit(&c->request, loop->opts.engine, &o, err);
}

void kni_loop_take(struct kni_loop *loop, struct kni_call *call)
{
    enum kn_status status = KN_OK;
    call->submit_ns = kni_now_ns();
    bool is_cancelled = atomic_load_explicit(&call->cancel_asked, memory_order_acquire); /* with kni_loop_cancel's exchange */
    for (uint32_t i = 0; i < call->n_choices && !status && !is_cancelled; i++)
        status = submit_choice(loop, call, i, &call->err);
    if (status || is_cancelled) {
        for (uint32_t i = 0; i < call->n_choices; i++)
            end_choice(loop, call, &call->choices[i], status ? KN_STOP_REASON_ERROR : KN_STOP_REASON_CANCELLED, status);
        call->err.status = status;
    } else {
        link_call(loop, call);
    }
    /* release: err, to the connection's thread */
    atomic_store_explicit(&call->state, status ? KNI_CALL_STATE_REFUSED : KNI_CALL_STATE_ACCEPTED, memory_order_release);
    kni_call_signal(call);
    if (!status && !is_cancelled)
        kni_loop_attend(loop, call);
}

void kni_loop_attend(struct kni_loop *loop, struct kni_call *call)
{
    bool is_cancelled = atomic_load_explicit(&call->cancel_asked, memory_order_acquire), did = false; /* with kni_loop_cancel */
    for (uint32_t i = 0; i < call->n_choices; i++) {
        struct kni_call_choice *c = &call->choices[i];
        if (!c->request)
            continue;
        bool is_finished = atomic_load_explicit(&c->finish_asked, memory_order_acquire); /* with kni_loop_finish */
        if (is_cancelled)
            kn_request_cancel(c->request);
        else if (is_finished)
            kn_request_finish(c->request);
        did = did || is_cancelled || is_finished;
    }
    if (did)
        kni_loop_fan_out(loop, call);
}

/* logprob and the n_top likeliest of an event, which the engine has computed with its step. */
static float copy_logprobs(const struct kn_event *ev, struct kni_call_top *top, uint32_t n_top)
{
    for (uint32_t i = 0; i < n_top; i++)
        top[i] = i < ev->n_top ? (struct kni_call_top){.token = ev->top[i].token, .logprob = ev->top[i].logprob} : (struct kni_call_top){-1, -INFINITY};
    return ev->logprob;
}

static void add_token(struct kni_call *call, struct kni_call_choice *c, const struct kn_event *ev)
{
    uint32_t n = atomic_load_explicit(&c->n_events, memory_order_relaxed); /* nobody else writes it */
    assert(n < call->max_tokens);
    struct kni_call_event *out = &c->events[n];
    *out = (struct kni_call_event){.token = ev->token};
    if (call->want_logprobs)
        out->logprob = copy_logprobs(ev, call->n_top ? c->tops + (size_t)n * call->n_top : NULL, call->n_top);
    atomic_store_explicit(&c->n_events, n + 1, memory_order_release); /* hands over the event to the connection's thread */
}

static void add_prompt_token(struct kni_call *call, const struct kn_event *ev)
{
    uint32_t n = atomic_load_explicit(&call->n_prompt_scored, memory_order_relaxed); /* nobody else writes it */
    assert(n < call->n_tokens);
    call->prompt_logprobs[n] = copy_logprobs(ev, call->n_top ? call->prompt_tops + (size_t)n * call->n_top : NULL, call->n_top);
    atomic_store_explicit(&call->n_prompt_scored, n + 1, memory_order_release); /* hands over [n] to the connection's thread */
}

/* Time from arrival to the step in which the request first ran. */
static void note_queue(const struct kni_loop *loop, const struct kni_call *call, struct kni_call_choice *c)
{
    struct kn_request_stats s = {.size = sizeof s};
    if (c->queue_ns)
        return;
    kn_request_get_stats(c->request, &s);
    if (s.state == KN_REQUEST_STATE_RUNNING || s.n_generated) {
        uint64_t from = loop->step_begin_ns > call->submit_ns ? loop->step_begin_ns : call->submit_ns;
        c->queue_ns = from > call->begin_ns ? from - call->begin_ns : 1;
    }
}

bool kni_loop_fan_out(struct kni_loop *loop, struct kni_call *call)
{
    bool changed = false;
    for (uint32_t i = 0; i < call->n_choices; i++) {
        struct kni_call_choice *c = &call->choices[i];
        struct kn_event ev = {.size = sizeof ev};
        if (!c->request)
            continue;
        note_queue(loop, call, c);
        while (c->request && kn_request_next(c->request, &ev) == KN_OK) {
            changed = true;
            if (ev.kind == KN_EVENT_KIND_TOKEN)
                add_token(call, c, &ev);
            else if (ev.kind == KN_EVENT_KIND_PROMPT)
                add_prompt_token(call, &ev);
            else
                end_choice(loop, call, c, ev.reason, ev.status);
        }
    }
    if (changed)
        kni_call_signal(call);
    if (call->n_open)
        return true;
    unlink_call(loop, call);
    return false;
}

void kni_loop_drop(struct kni_loop *loop, struct kni_call *call, enum kn_status status)
{
    call->drop_status = status;
    for (uint32_t i = 0; i < call->n_choices; i++)
        if (call->choices[i].request)
            kn_request_cancel(call->choices[i].request);
    bool goes_on = kni_loop_fan_out(loop, call);
    assert(!goes_on); /* a cancelled request has its DONE at once */
    (void)goes_on;
}
