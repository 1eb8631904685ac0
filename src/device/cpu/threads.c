/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Fork and join by a generation counter. run() publishes fn and arg, then increments `generation` with release order; a
 * worker that sees a new generation with acquire order sees them. Each worker that is done increments `n_done` (release);
 * the caller waits for all (acquire), so the workers' writes are visible to it.
 *
 * Sleep: a worker that has spun in vain counts itself in `n_asleep` and waits on the word `generation` itself (a futex: the
 * kernel compares it with what the worker has seen before it sleeps, so no wake-up is lost); run() asks the kernel to wake only
 * when somebody sleeps. No lock anywhere, so a step cannot wait for a thread that was suspended while it held one.
 */
#include "device/cpu/threads.h"

#include <assert.h>
#include <limits.h>
#include <linux/futex.h>
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "base/alloc.h"
#include "base/cpu.h"
#include "base/signals.h"

#define SPIN_ROUNDS 2000

struct worker {
    struct kni_threads *pool;
    pthread_t thread;
    uint32_t index;
};

_Static_assert(sizeof(_Atomic uint32_t) == 4, "generation is a futex word");

struct kni_threads {
    uint32_t n_threads, n_started; /* n_started: threads besides the caller */
    kni_threads_fn fn;             /* written before generation's release, read after its acquire */
    void *arg;
    bool quit;
    _Atomic uint32_t generation, n_done, n_asleep;
    _Atomic uint32_t barrier_count, barrier_phase;
    struct worker *workers;
};

static void pause_cpu(void)
{
#if defined(__x86_64__)
    __builtin_ia32_pause();
#endif
}

static uint32_t wait_generation(struct kni_threads *t, uint32_t seen)
{
    for (uint32_t i = 0; i < SPIN_ROUNDS; i++) {
        uint32_t now = atomic_load_explicit(&t->generation, memory_order_acquire);
        if (now != seen)
            return now;
        pause_cpu();
    }
    /* seq_cst on n_asleep and generation pairs with publish(): either it sees us asleep, or we see its generation. */
    atomic_fetch_add_explicit(&t->n_asleep, 1, memory_order_seq_cst);
    uint32_t now;
    while ((now = atomic_load_explicit(&t->generation, memory_order_seq_cst)) == seen)
        syscall(SYS_futex, &t->generation, FUTEX_WAIT_PRIVATE, seen, NULL, NULL, 0);
    atomic_fetch_sub_explicit(&t->n_asleep, 1, memory_order_seq_cst);
    return now;
}

static void *work(void *arg)
{
    struct worker *w = arg;
    struct kni_threads *t = w->pool;
    uint32_t seen = 0;
    for (;;) {
        seen = wait_generation(t, seen);
        if (t->quit)
            return NULL;
        t->fn(t->arg, w->index, t->n_threads);
        atomic_fetch_add_explicit(&t->n_done, 1, memory_order_release);
    }
}

static void publish(struct kni_threads *t)
{
    atomic_fetch_add_explicit(&t->generation, 1, memory_order_seq_cst);
    if (atomic_load_explicit(&t->n_asleep, memory_order_seq_cst))
        syscall(SYS_futex, &t->generation, FUTEX_WAKE_PRIVATE, INT_MAX, NULL, NULL, 0);
}

enum kn_status kni_threads_open(struct kni_threads **out, uint32_t n_threads)
{
    *out = NULL;
    if (!n_threads)
        n_threads = kni_cpu_count() < KNI_THREADS_MAX ? kni_cpu_count() : KNI_THREADS_MAX;
    if (n_threads > KNI_THREADS_MAX)
        return KN_E_ARG;
    struct kni_threads *t = kni_calloc(KNI_ALLOC_TAG_MISC, sizeof *t, 64);
    if (!t)
        return KN_E_NOMEM;
    t->n_threads = n_threads;
    t->workers = kni_calloc(KNI_ALLOC_TAG_MISC, sizeof *t->workers * n_threads, 0);
    enum kn_status status = t->workers ? KN_OK : KN_E_NOMEM;
    sigset_t before;
    kni_signals_block(&before);
    for (uint32_t i = 1; status == KN_OK && i < n_threads; i++) {
        t->workers[i] = (struct worker){.pool = t, .index = i};
        if (pthread_create(&t->workers[i].thread, NULL, work, &t->workers[i]))
            status = KN_E_NOMEM;
        else
            t->n_started++;
    }
    kni_signals_restore(&before);
    if (status != KN_OK)
        kni_threads_close(&t);
    *out = t;
    return status;
}

void kni_threads_close(struct kni_threads **threads)
{
    struct kni_threads *t = *threads;
    *threads = NULL;
    if (!t)
        return;
    t->quit = true;
    publish(t);
    for (uint32_t i = 1; i <= t->n_started; i++)
        pthread_join(t->workers[i].thread, NULL);
    kni_free(t->workers);
    kni_free(t);
}

uint32_t kni_threads_count(const struct kni_threads *threads)
{
    return threads->n_threads;
}

void kni_threads_run(struct kni_threads *t, kni_threads_fn fn, void *arg)
{
    if (t->n_threads == 1) {
        fn(arg, 0, 1);
        return;
    }
    t->fn = fn;
    t->arg = arg;
    atomic_store_explicit(&t->n_done, 0, memory_order_relaxed);
    publish(t);
    fn(arg, 0, t->n_threads);
    for (uint32_t i = 0; atomic_load_explicit(&t->n_done, memory_order_acquire) != t->n_threads - 1; i++) {
        pause_cpu();
        if (i > SPIN_ROUNDS)
            sched_yield(); /* more threads than processors: let them run */
    }
}

void kni_threads_barrier(struct kni_threads *t)
{
    uint32_t phase = atomic_load_explicit(&t->barrier_phase, memory_order_acquire);
    if (atomic_fetch_add_explicit(&t->barrier_count, 1, memory_order_acq_rel) + 1 == t->n_threads) {
        atomic_store_explicit(&t->barrier_count, 0, memory_order_relaxed);
        atomic_fetch_add_explicit(&t->barrier_phase, 1, memory_order_release);
        return;
    }
    for (uint32_t i = 0; atomic_load_explicit(&t->barrier_phase, memory_order_acquire) == phase; i++) {
        pause_cpu();
        if (i > SPIN_ROUNDS)
            sched_yield();
    }
}
