/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The loop's turn, its inbox, its sleep and its end.
 *
 *     turn:  stops? -> inbox (at most TURN_CALLS) -> step -> fan out -> snapshot when due -> sleep when there is nothing to do
 *
 * Inbox. What is wanted of a call is in flags of the call; the ring says only "look at this call". A call lies in the ring at
 * most once (posted), so that asking needs no memory and twice is once. Where the ring is full a submit is refused, while finish
 * and cancel raise look_at_all: the loop then looks at every call that it has, and at those in the ring anyway. Nothing is lost.
 *
 *     poster: flag -> posted: false -> true -> push -> attention -> is_asleep? write event_fd : kn_engine_wake
 *     loop:   pop -> posted = false -> flags                  is_asleep = true -> attention? no: poll
 *
 * Both sides of the sleep are sequentially consistent: either the poster sees a sleeper, or the sleeper sees attention.
 *
 * Queue limit. load counts choices from submit to end, whether they wait or run; beyond max_queue + max_running a submit is
 * refused. One number that only submit raises is exact, without asking the engine who runs. A call whose choices pass the limit
 * together is taken while there is any room, so that none is too large for an empty server.
 *
 * End. After the first stop submits fail, what is there runs on until drain_timeout_ms, then it is cancelled; a second stop
 * cancels at once. n_submitting tells when the last submitter that saw no stop has left: what it pushed is refused then. Publishes
 * have drain_timeout_ms of their own; a store that hangs costs that time and no more.
 *
 * Owner thread: the one in kni_loop_run; threads are told from each other in loop_state.h. Failure: a step that fails ends the
 * calls under way with an error; the loop goes on.
 */
#include "server/loop/loop.h"

#include <assert.h>
#include <errno.h>
#include <inttypes.h>
#include <poll.h>
#include <sched.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include "base/alloc.h"
#include "base/clock.h"
#include "base/log.h"
#include "base/status.h"
#include "server/loop/loop_state.h"

#define INBOX_SLOTS 1024u
#define TURN_CALLS 64u        /* taken from the inbox between two steps */
#define PUBLISH_POLL_MS 50    /* finished publishes are taken by steps: who sleeps looks after them */
#define STALL_POLL_MS 5       /* calls are open but the engine found nothing to do */
#define SNAPSHOT_NS 100000000u
#define FLUSH_SLICE_MS 100u   /* a second stop is noticed in between */

enum kn_status kni_loop_open(struct kni_loop **out, const struct kni_loop_opts *opts, struct kn_err *err)
{
    *out = NULL;
    struct kni_loop *loop = kni_calloc(KNI_ALLOC_TAG_MISC, sizeof *loop, 64);
    if (!loop)
        return kni_err_set(err, KN_E_NOMEM, "no memory for the server's loop");
    loop->opts = *opts;
    struct kn_engine_stats stats = {.size = sizeof stats};
    kn_engine_get_stats(opts->engine, &stats);
    loop->max_load = opts->max_queue < UINT32_MAX - stats.max_running ? opts->max_queue + stats.max_running : UINT32_MAX;
    loop->event_fd = eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC);
    pthread_mutex_init(&loop->lock, NULL);
    pthread_condattr_t attr;
    pthread_condattr_init(&attr);
    pthread_condattr_setclock(&attr, CLOCK_MONOTONIC); /* as kni_now_ns */
    pthread_cond_init(&loop->renewed, &attr);
    pthread_condattr_destroy(&attr);
    loop->inbox = kni_ring_open(INBOX_SLOTS);
    enum kn_status status = KN_OK;
    if (loop->event_fd < 0)
        status = kni_err_set(err, KN_E_IO, "no file descriptor is left for the server's loop: raise the limit (ulimit -n)");
    else if (!loop->inbox)
        status = kni_err_set(err, KN_E_NOMEM, "no memory for the server's inbox of %u calls", INBOX_SLOTS);
    if (status) {
        kni_loop_close(&loop);
        return status;
    }
    kni_loop_take_snapshot(loop, kni_now_ns());
    *out = loop;
    return KN_OK;
}

void kni_loop_close(struct kni_loop **out)
{
    struct kni_loop *loop = out ? *out : NULL;
    if (!loop)
        return;
    assert(!loop->calls);
    for (struct kni_call *call; loop->inbox && (call = kni_ring_try_pop(loop->inbox));)
        kni_call_unref(call); /* asked for after the end */
    kni_ring_close(&loop->inbox);
    if (loop->event_fd >= 0)
        close(loop->event_fd);
    pthread_cond_destroy(&loop->renewed);
    pthread_mutex_destroy(&loop->lock);
    kni_free(loop);
    *out = NULL;
}

/* ---- any thread */

/* Async-signal-safe. */
static void write_event(const struct kni_loop *loop)
{
    const uint64_t one = 1;
    int before = errno; /* of the code that a signal interrupts */
    ssize_t n;
    do
        n = write(loop->event_fd, &one, sizeof one); /* EAGAIN: readable already */
    while (n < 0 && errno == EINTR);
    errno = before;
}

void kni_loop_wake(struct kni_loop *loop)
{
    atomic_store_explicit(&loop->attention, true, memory_order_seq_cst); /* before is_asleep: with go_to_sleep's other order */
    if (atomic_load_explicit(&loop->is_asleep, memory_order_seq_cst))
        write_event(loop);
    else
        kn_engine_wake(loop->opts.engine);
}

void kni_loop_stop(struct kni_loop *loop)
{
    /* Saturates far below a wrap. seq_cst: with submit's n_submitting, either it sees the stop or finish_inbox sees it. */
    if (atomic_load_explicit(&loop->n_stops, memory_order_relaxed) < 1000)
        atomic_fetch_add_explicit(&loop->n_stops, 1, memory_order_seq_cst);
    write_event(loop); /* kn_engine_wake is for threads, not for signal handlers: a step's wait for a fetch is short */
}

uint32_t kni_loop_n_stops(const struct kni_loop *loop)
{
    return atomic_load_explicit(&loop->n_stops, memory_order_acquire); /* with kni_loop_stop's add */
}

/* Puts the call into the inbox unless it is there. False: the inbox is full. */
static bool post(struct kni_loop *loop, struct kni_call *call)
{
    /* acq_rel: with take_inbox's exchange. True means that the loop has yet to pop it, and will see the caller's flag then. */
    if (atomic_exchange_explicit(&call->posted, true, memory_order_acq_rel))
        return true;
    kni_call_ref(call); /* the inbox's */
    if (kni_ring_try_push(loop->inbox, call))
        return true;
    atomic_store_explicit(&call->posted, false, memory_order_release); /* as above */
    kni_call_unref(call);
    return false;
}

/* Room in the queue for n more choices. */
static bool try_load(struct kni_loop *loop, uint32_t n)
{
    uint32_t load = atomic_load_explicit(&loop->load, memory_order_relaxed);
    do
        if (load >= loop->max_load || n > UINT32_MAX - load)
            return false;
    while (!atomic_compare_exchange_weak_explicit(&loop->load, &load, load + n, memory_order_relaxed, memory_order_relaxed)); /* a count, guards nothing */
    return true;
}

enum kn_status kni_loop_submit(struct kni_loop *loop, struct kni_call *call)
{
    enum kn_status status = KN_OK;
    atomic_fetch_add_explicit(&loop->n_submitting, 1, memory_order_seq_cst); /* before n_stops is read: see finish_inbox */
    if (atomic_load_explicit(&loop->n_stops, memory_order_seq_cst)) {
        status = KN_E_STATE;
    } else if (!try_load(loop, call->n_choices)) {
        status = KN_E_FULL;
    } else {
        atomic_fetch_add_explicit(&loop->n_inbox, 1, memory_order_relaxed); /* a count for the snapshot */
        if (!post(loop, call)) {
            atomic_fetch_sub_explicit(&loop->n_inbox, 1, memory_order_relaxed);
            atomic_fetch_sub_explicit(&loop->load, call->n_choices, memory_order_relaxed);
            status = KN_E_FULL;
        } else {
            kni_loop_wake(loop);
        }
    }
    if (status == KN_E_FULL)
        atomic_fetch_add_explicit(&loop->opts.metrics->refused_queue, 1, memory_order_relaxed);
    atomic_fetch_sub_explicit(&loop->n_submitting, 1, memory_order_seq_cst);
    return status;
}

/* The call's flags have changed. */
static void ask(struct kni_loop *loop, struct kni_call *call)
{
    if (!post(loop, call))
        atomic_store_explicit(&loop->look_at_all, true, memory_order_release); /* with take_inbox's exchange: it sees the flags */
    kni_loop_wake(loop);
}

void kni_loop_finish(struct kni_loop *loop, struct kni_call *call, uint32_t choice)
{
    assert(choice < call->n_choices);
    if (atomic_load_explicit(&call->choices[choice].done, memory_order_acquire))
        return;
    atomic_store_explicit(&call->choices[choice].finish_asked, true, memory_order_release); /* to kni_loop_attend */
    ask(loop, call);
}

void kni_loop_cancel(struct kni_loop *loop, struct kni_call *call)
{
    bool all_done = true;
    for (uint32_t i = 0; i < call->n_choices; i++)
        all_done = all_done && atomic_load_explicit(&call->choices[i].done, memory_order_acquire);
    if (all_done || atomic_exchange_explicit(&call->cancel_asked, true, memory_order_acq_rel)) /* to kni_loop_attend */
        return;
    ask(loop, call);
}

/* ---- owner thread */

static bool is_taken(const struct kni_call *call)
{
    return call->submit_ns != 0;
}

static void take_inbox(struct kni_loop *loop, uint32_t n_most)
{
    for (uint32_t i = 0; i < n_most; i++) {
        struct kni_call *call = kni_ring_try_pop(loop->inbox);
        if (!call)
            break;
        /* acq_rel, with post's exchange: a flag raised before a post that found true is seen below; later ones push again. */
        atomic_exchange_explicit(&call->posted, false, memory_order_acq_rel);
        if (!is_taken(call)) {
            atomic_fetch_sub_explicit(&loop->n_inbox, 1, memory_order_relaxed);
            kni_loop_take(loop, call);
        } else {
            kni_loop_attend(loop, call);
        }
        kni_call_unref(call); /* the inbox's */
    }
    if (atomic_exchange_explicit(&loop->look_at_all, false, memory_order_acq_rel)) /* with ask's release */
        for (struct kni_call *call = loop->calls, *next; call; call = next) {
            next = call->next;
            kni_loop_attend(loop, call);
        }
}

/* A step that fails outright ends what is open: clients get an error, and the loop does not spin. */
static void fail_all(struct kni_loop *loop, enum kn_status status)
{
    if (status != loop->step_status)
        kni_log(KN_LOG_LEVEL_ERROR, "server", "a step of the engine failed (%s): the requests under way are ended", kn_status_message(status));
    loop->step_status = status;
    for (struct kni_call *call = loop->calls, *next; call; call = next) {
        next = call->next;
        kni_loop_drop(loop, call, status);
    }
}

/* True: something came of it. */
static bool step(struct kni_loop *loop)
{
    loop->step_begin_ns = kni_now_ns();
    enum kn_status status = kn_engine_step(loop->opts.engine);
    bool has_news = status == KN_OK;
    if (status && status != KN_AGAIN)
        fail_all(loop, status);
    else
        loop->step_status = KN_OK;
    for (struct kni_call *call = loop->calls, *next; call; call = next) {
        next = call->next;
        bool goes_on = kni_loop_fan_out(loop, call);
        has_news = has_news || !goes_on;
    }
    return has_news;
}

/* Sleeps until woken or timeout_ms (-1: none). */
static void go_to_sleep(struct kni_loop *loop, int timeout_ms)
{
    atomic_store_explicit(&loop->is_asleep, true, memory_order_seq_cst); /* before attention is read: with kni_loop_wake's other order */
    if (!atomic_load_explicit(&loop->attention, memory_order_seq_cst)) {
        struct pollfd fd = {.fd = loop->event_fd, .events = POLLIN};
        poll(&fd, 1, timeout_ms); /* EINTR is as good as a wake */
    }
    atomic_store_explicit(&loop->is_asleep, false, memory_order_seq_cst);
    uint64_t count;
    while (read(loop->event_fd, &count, sizeof count) < 0 && errno == EINTR)
        ;
}

/* Publishes or given-up fetches run, or have ended and a step has yet to take their blocks back. */
static bool has_leftovers(const struct kni_loop *loop)
{
    const struct kn_engine_stats *e = &loop->draft.engine;
    return e->n_publishing || e->n_publish_blocks || e->n_fetch_blocks;
}

/* 0: there is work. */
static int sleep_ms(const struct kni_loop *loop, bool has_news)
{
    if (loop->calls)
        return has_news ? 0 : STALL_POLL_MS;
    return has_leftovers(loop) ? PUBLISH_POLL_MS : -1;
}

/* most_ms: longest sleep, -1: any. */
static void turn(struct kni_loop *loop, int most_ms)
{
    /* Before the look: what comes later raises it again. Reading true acquires what kni_loop_wake's callers did before. */
    atomic_exchange_explicit(&loop->attention, false, memory_order_seq_cst);
    take_inbox(loop, TURN_CALLS);
    bool was_busy = loop->calls != NULL, has_news = false;
    if (was_busy || has_leftovers(loop))
        has_news = step(loop);
    uint64_t now = kni_now_ns();
    bool is_idle = !loop->calls, is_wanted = atomic_load_explicit(&loop->n_wanting, memory_order_relaxed); /* ordered by attention */
    if (is_wanted || now - loop->draft.taken_ns >= SNAPSHOT_NS || (is_idle && (was_busy || has_leftovers(loop))))
        kni_loop_take_snapshot(loop, now);
    int ms = sleep_ms(loop, has_news);
    if (ms)
        go_to_sleep(loop, most_ms < 0 || (ms > 0 && ms < most_ms) ? ms : most_ms);
}

/* No submitter that has seen no stop is left: refuses or ends what it brought. */
static void finish_inbox(struct kni_loop *loop)
{
    /* seq_cst, with kni_loop_submit: it raised n_submitting before it read n_stops, and n_stops is raised before this reads. A
     * submitter is inside for a few instructions, so yielding is enough. */
    while (atomic_load_explicit(&loop->n_submitting, memory_order_seq_cst))
        sched_yield();
    take_inbox(loop, INBOX_SLOTS);
    for (struct kni_call *call = loop->calls, *next; call; call = next) {
        next = call->next;
        kni_loop_drop(loop, call, KN_OK);
    }
}

/* Lets the calls under way end. */
static void drain_calls(struct kni_loop *loop, uint64_t end_ns)
{
    while ((loop->calls || atomic_load_explicit(&loop->n_inbox, memory_order_relaxed)) && kni_loop_n_stops(loop) < 2 && kni_now_ns() < end_ns)
        turn(loop, STALL_POLL_MS);
    uint32_t n_left = loop->n_calls;
    finish_inbox(loop);
    if (n_left)
        kni_log(KN_LOG_LEVEL_WARN, "server", "%" PRIu32 " requests had not ended and were cancelled", n_left);
}

/* Waits for publishes, as long as a drain may take. */
static void drain_publishes(struct kni_loop *loop)
{
    const uint64_t end_ns = kni_now_ns() + (uint64_t)loop->opts.drain_timeout_ms * 1000000u;
    enum kn_status status;
    do
        status = kn_engine_flush(loop->opts.engine, FLUSH_SLICE_MS);
    while (status == KN_E_TIMEOUT && kni_loop_n_stops(loop) < 2 && kni_now_ns() < end_ns);
    if (status == KN_E_TIMEOUT)
        kni_log(KN_LOG_LEVEL_WARN, "server", "the store did not take everything in time: prefixes that were not yet published are dropped");
    else if (status)
        kni_log(KN_LOG_LEVEL_WARN, "server", "publishing to the store failed: %s", kn_status_message(status));
}

enum kn_status kni_loop_run(struct kni_loop *loop)
{
    while (!kni_loop_n_stops(loop))
        turn(loop, -1);
    loop->draining = true;
    kni_log(KN_LOG_LEVEL_INFO, "server", "draining: %" PRIu32 " requests are under way", loop->n_calls);
    kni_loop_take_snapshot(loop, kni_now_ns());
    drain_calls(loop, kni_now_ns() + (uint64_t)loop->opts.drain_timeout_ms * 1000000u);
    drain_publishes(loop);
    struct kn_err err = {0};
    enum kn_status status = kn_engine_check(loop->opts.engine, &err);
    if (status)
        kni_log(KN_LOG_LEVEL_ERROR, "server", "the pool does not verify empty at the end: %s", err.text);
    kni_loop_take_snapshot(loop, kni_now_ns());
    return status ? KN_E_STATE : KN_OK;
}
