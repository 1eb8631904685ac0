/* SPDX-License-Identifier: Apache-2.0 */
/* What the machine can do at best; see bench.h. Each probe takes the best of a few rounds of about 50 ms. */
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "bench.h"
#include "probe_kernel.h"

enum { MAX_THREADS = 256, ROUNDS = 5 };

KN_PROBE_DEFINE(kn_probe_fma_ref, 4)

struct worker {
    pthread_t thread;
    pthread_barrier_t *barrier;
    const uint64_t *data; /* read probe: this thread's part */
    size_t n;             /* words of it */
    kn_probe_fn fma;      /* multiply-add probe */
    uint64_t wanted, made;
    uint64_t begin_ns[ROUNDS], end_ns[ROUNDS];
    uint64_t sum;
    float sink;
};

static uint64_t read_all(const uint64_t *data, size_t n)
{
    uint64_t s[8] = {0};
    for (size_t i = 0; i + 8 <= n; i += 8) {
        for (size_t k = 0; k < 8; k++)
            s[k] += data[i + k];
    }
    return s[0] ^ s[1] ^ s[2] ^ s[3] ^ s[4] ^ s[5] ^ s[6] ^ s[7];
}

static void *work(void *arg)
{
    struct worker *w = arg;
    for (int r = 0; r < ROUNDS; r++) {
        pthread_barrier_wait(w->barrier);
        w->begin_ns[r] = kn_app_now_ns();
        if (w->fma)
            w->made = w->fma(w->wanted, &w->sink);
        else
            w->sum += read_all(w->data, w->n);
        w->end_ns[r] = kn_app_now_ns();
    }
    return NULL;
}

/* Nanoseconds of the fastest round: from the first start to the last end. 0: threads could not start. */
static uint64_t run_all(struct worker *workers, uint32_t n)
{
    pthread_barrier_t barrier;
    pthread_barrier_init(&barrier, NULL, n);
    uint32_t started = 0;
    for (; started < n; started++) {
        workers[started].barrier = &barrier;
        if (pthread_create(&workers[started].thread, NULL, work, &workers[started]))
            abort(); /* the others wait at the barrier: nothing sensible is left to do in a benchmark */
    }
    for (uint32_t i = 0; i < n; i++)
        pthread_join(workers[i].thread, NULL);
    pthread_barrier_destroy(&barrier);
    uint64_t best = UINT64_MAX;
    for (int r = 0; r < ROUNDS; r++) {
        uint64_t begin = UINT64_MAX, end = 0;
        for (uint32_t i = 0; i < n; i++) {
            begin = workers[i].begin_ns[r] < begin ? workers[i].begin_ns[r] : begin;
            end = workers[i].end_ns[r] > end ? workers[i].end_ns[r] : end;
        }
        best = end - begin < best ? end - begin : best;
    }
    return best;
}

double kn_probe_read_bytes_s(uint32_t n_threads)
{
    const size_t bytes = (size_t)1 << 30; /* larger than any cache of today */
    n_threads = n_threads < 1 ? 1 : n_threads > MAX_THREADS ? MAX_THREADS : n_threads;
    struct worker *workers = calloc(n_threads, sizeof *workers);
    uint64_t *data = malloc(bytes);
    double result = 0;
    if (workers && data) {
        memset(data, 1, bytes);
        size_t part = bytes / sizeof *data / n_threads / 8 * 8;
        for (uint32_t i = 0; i < n_threads; i++) {
            workers[i].data = data + i * part;
            workers[i].n = part;
        }
        uint64_t ns = run_all(workers, n_threads);
        result = ns ? (double)(part * n_threads * sizeof *data) / ((double)ns / 1e9) : 0;
    }
    free(data);
    free(workers);
    return result;
}

static kn_probe_fn best_level(void)
{
    kn_probe_fn fma = kn_probe_fma_ref;
#if defined(__x86_64__)
    __builtin_cpu_init();
    if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma"))
        fma = kn_probe_fma_avx2;
    if (__builtin_cpu_supports("avx512f"))
        fma = kn_probe_fma_avx512;
#endif
    return fma;
}

double kn_probe_flops(uint32_t n_threads)
{
    n_threads = n_threads < 1 ? 1 : n_threads > MAX_THREADS ? MAX_THREADS : n_threads;
    kn_probe_fn fma = best_level();
    struct worker *workers = calloc(n_threads, sizeof *workers);
    if (!workers)
        return 0;
    for (uint32_t i = 0; i < n_threads; i++) {
        workers[i].fma = fma;
        workers[i].wanted = (uint64_t)1 << 31;
    }
    uint64_t ns = run_all(workers, n_threads), made = 0;
    for (uint32_t i = 0; i < n_threads; i++)
        made += workers[i].made;
    free(workers);
    return ns ? 2 * (double)made / ((double)ns / 1e9) : 0;
}

double kn_probe_flops_processor(void)
{
    kn_probe_fn fma = best_level();
    double best = 0;
    for (int r = 0; r < ROUNDS; r++) {
        struct timespec a, b;
        float sink;
        clock_gettime(CLOCK_THREAD_CPUTIME_ID, &a);
        uint64_t made = fma((uint64_t)1 << 29, &sink);
        clock_gettime(CLOCK_THREAD_CPUTIME_ID, &b);
        double seconds = (double)(b.tv_sec - a.tv_sec) + (double)(b.tv_nsec - a.tv_nsec) / 1e9, flops = seconds > 0 ? 2 * (double)made / seconds : 0;
        best = flops > best ? flops : best;
    }
    return best;
}
