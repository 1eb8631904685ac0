/* SPDX-License-Identifier: Apache-2.0 */
/* Fork and join: every worker runs once, writes are visible, barriers separate phases, sleeping workers wake, nothing leaks. */
#include <pthread.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>
#include <time.h>

#include <cmocka.h>

#include "base/alloc.h"
#include "base/cpu.h"
#include "device/cpu/threads.h"

#define MAX 256u

struct job {
    struct kni_threads *threads;
    uint32_t n_workers, calls[MAX]; /* plain memory: visibility is the pool's promise */
    uint32_t phase[MAX];
    _Atomic uint32_t errors;
};

static void count(void *arg, uint32_t worker, uint32_t n_workers)
{
    struct job *j = arg;
    if (n_workers != j->n_workers || worker >= n_workers)
        atomic_fetch_add(&j->errors, 1);
    else
        j->calls[worker]++;
}

static void every_worker_runs_once_a_fork(void **state)
{
    (void)state;
    static const uint32_t sizes[] = {1, 2, 3, 4, 7, 16};
    for (unsigned s = 0; s < 6; s++) {
        struct job j = {.n_workers = sizes[s]};
        assert_int_equal(kni_threads_open(&j.threads, sizes[s]), KN_OK);
        assert_int_equal(kni_threads_count(j.threads), sizes[s]);
        for (uint32_t round = 1; round <= 300; round++) {
            kni_threads_run(j.threads, count, &j);
            for (uint32_t w = 0; w < sizes[s]; w++)
                assert_int_equal(j.calls[w], round);
        }
        assert_int_equal(atomic_load(&j.errors), 0);
        kni_threads_close(&j.threads);
        assert_null(j.threads);
    }
}

/* After each barrier everyone must see everyone at that phase, in plain memory. */
static void phases(void *arg, uint32_t worker, uint32_t n_workers)
{
    struct job *j = arg;
    for (uint32_t phase = 1; phase <= 200; phase++) {
        j->phase[worker] = phase;
        kni_threads_barrier(j->threads);
        for (uint32_t w = 0; w < n_workers; w++)
            if (j->phase[w] != phase)
                atomic_fetch_add(&j->errors, 1);
        kni_threads_barrier(j->threads);
    }
}

static void barriers_separate_phases(void **state)
{
    (void)state;
    for (uint32_t n = 1; n <= 5; n++) { /* more workers than most test machines have processors */
        struct job j = {.n_workers = n};
        assert_int_equal(kni_threads_open(&j.threads, n), KN_OK);
        for (int round = 0; round < 3; round++)
            kni_threads_run(j.threads, phases, &j);
        assert_int_equal(atomic_load(&j.errors), 0);
        kni_threads_close(&j.threads);
    }
}

/* Pauses long enough for workers to fall asleep, of varying length, so that some forks meet them on their way to bed. */
static void sleepers_wake(void **state)
{
    (void)state;
    struct job j = {.n_workers = 3};
    assert_int_equal(kni_threads_open(&j.threads, 3), KN_OK);
    for (uint32_t round = 1; round <= 200; round++) {
        struct timespec pause = {.tv_nsec = (long)(round % 20) * 20000};
        nanosleep(&pause, NULL);
        kni_threads_run(j.threads, count, &j);
        for (uint32_t w = 0; w < 3; w++)
            assert_int_equal(j.calls[w], round);
    }
    kni_threads_close(&j.threads);
}

static void look_at_signals(void *arg, uint32_t worker, uint32_t n_workers)
{
    (void)n_workers;
    struct job *j = arg;
    sigset_t set;
    pthread_sigmask(SIG_SETMASK, NULL, &set);
    bool theirs = sigismember(&set, SIGINT) && sigismember(&set, SIGTERM) && sigismember(&set, SIGALRM);
    bool own = sigismember(&set, SIGBUS) || sigismember(&set, SIGSEGV);
    if (worker ? !theirs || own : theirs) /* worker 0 is the caller, whose mask is its own */
        atomic_fetch_add(&j->errors, 1);
}

static void workers_take_no_signals(void **state)
{
    (void)state;
    struct job j = {.n_workers = 4};
    sigset_t before, after;
    pthread_sigmask(SIG_SETMASK, NULL, &before);
    assert_int_equal(kni_threads_open(&j.threads, 4), KN_OK);
    pthread_sigmask(SIG_SETMASK, NULL, &after);
    for (int s = 1; s < 32; s++)
        assert_int_equal(sigismember(&before, s), sigismember(&after, s));
    kni_threads_run(j.threads, look_at_signals, &j);
    assert_int_equal(atomic_load(&j.errors), 0);
    kni_threads_close(&j.threads);
}

static void limits(void **state)
{
    (void)state;
    struct kni_threads *t = NULL;
    assert_int_equal(kni_threads_open(&t, 257), KN_E_ARG);
    assert_null(t);
    assert_int_equal(kni_threads_open(&t, 0), KN_OK);
    assert_int_equal(kni_threads_count(t), kni_cpu_count() < MAX ? kni_cpu_count() : MAX); /* machines with more processors open too */
    kni_threads_close(&t);
    kni_threads_close(&t); /* NULL is fine */
    uint64_t before = kni_alloc_get_stats(KNI_ALLOC_TAG_COUNT).current_bytes;
    for (uint64_t n = 1; n <= 2; n++) {
        kni_alloc_fault_arm(n, false);
        assert_int_equal(kni_threads_open(&t, 2), KN_E_NOMEM);
        assert_null(t);
        assert_true(kni_alloc_fault_hit());
    }
    kni_alloc_fault_arm(0, false);
    for (int i = 0; i < 50; i++) { /* open and close at once: workers may not have started yet */
        assert_int_equal(kni_threads_open(&t, 4), KN_OK);
        kni_threads_close(&t);
    }
    assert_int_equal(kni_alloc_get_stats(KNI_ALLOC_TAG_COUNT).current_bytes, before);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(every_worker_runs_once_a_fork), cmocka_unit_test(barriers_separate_phases),
                                       cmocka_unit_test(sleepers_wake), cmocka_unit_test(workers_take_no_signals), cmocka_unit_test(limits)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
