/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What the kernel tests share: seeded random numbers, buffers between canaries, input patterns, both kernel tables, and a
 * main that understands --seed N and --bench. Each test says its error budget and why.
 */
#ifndef KN_TEST_KERNEL_CHECK_H
#define KN_TEST_KERNEL_CHECK_H

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include <cmocka.h>

#include "base/cpu.h"
#include "base/half.h"
#include "kernel/kernels.h"

#define CHECK_EPS 0x1p-24 /* half a unit in the last place, relative */

static uint64_t check_seed = 1;
static struct kni_kernels check_tables[2]; /* references; best of the machine */
static const char *const check_names[2] = {"ref", "simd"};

static inline uint32_t rnd(void)
{
    check_seed ^= check_seed << 13;
    check_seed ^= check_seed >> 7;
    check_seed ^= check_seed << 17;
    return (uint32_t)(check_seed * 0x2545f4914f6cdd1du >> 32);
}

static inline float rnd_unit(void) /* -1..1 */
{
    return (float)((double)rnd() / 2147483648.0 - 1.0);
}

/* A payload between 64 bytes of canary on either side. */
#define CANARY_BYTES 64u
static inline void *guarded(size_t bytes)
{
    uint8_t *p = malloc(bytes + 2 * CANARY_BYTES + 64);
    assert_non_null(p);
    memcpy(p, &bytes, sizeof bytes);
    memset(p + 64, 0xa5, CANARY_BYTES);
    memset(p + 64 + CANARY_BYTES, 0, bytes);
    memset(p + 64 + CANARY_BYTES + bytes, 0xa5, CANARY_BYTES);
    return p + 64 + CANARY_BYTES;
}

static inline void guarded_check_free(void *payload)
{
    uint8_t *p = (uint8_t *)payload - 64 - CANARY_BYTES;
    size_t bytes;
    memcpy(&bytes, p, sizeof bytes);
    for (size_t i = 0; i < CANARY_BYTES; i++) {
        assert_int_equal(p[64 + i], 0xa5);
        assert_int_equal(p[64 + CANARY_BYTES + bytes + i], 0xa5);
    }
    free(p);
}

static inline float *floats(size_t n)
{
    return guarded(n * sizeof(float));
}

enum pattern { PATTERN_RANDOM, PATTERN_ZERO, PATTERN_HUGE, PATTERN_DENORMAL, PATTERN_MIXED, PATTERN_SPIKE, PATTERN_COUNT };

static inline void fill(float *x, size_t n, enum pattern p)
{
    for (size_t i = 0; i < n; i++)
        switch (p) {
        case PATTERN_RANDOM: x[i] = rnd_unit() * 2; break;
        case PATTERN_ZERO: x[i] = rnd() & 1 ? 0.0f : -0.0f; break;
        case PATTERN_HUGE: x[i] = rnd_unit() * 1e15f; break;
        case PATTERN_DENORMAL: x[i] = rnd_unit() * 1e-40f; break;
        case PATTERN_MIXED: x[i] = ldexpf(rnd_unit(), (int)(rnd() % 41) - 20); break;
        default: x[i] = i == n / 2 ? 1000.0f : rnd_unit() * 1e-3f;
        }
}

/* Reports the place before failing. */
#define CHECK_NEAR(got, want, budget, ...)                                                              \
    do {                                                                                                \
        double g_ = (double)(got), w_ = (double)(want), b_ = (budget);                                  \
        if (!(fabs(g_ - w_) <= b_)) {                                                                   \
            print_error("got %.9g, want %.9g, budget %.3g: ", g_, w_, b_);                              \
            print_error(__VA_ARGS__);                                                                   \
            print_error("\n");                                                                          \
            fail();                                                                                     \
        }                                                                                               \
    } while (0)

/* Processor time of this thread: other programs disturb it less than wall time. */
static inline uint64_t cpu_ns(void)
{
    struct timespec t;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
    return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

/* Seconds of one call of body, best of several batches of at least 20 ms. */
#define BENCH_SECONDS(out, body)                                                                        \
    do {                                                                                                \
        (out) = 1e9;                                                                                    \
        for (int batch_ = 0; batch_ < 5; batch_++) {                                                    \
            uint64_t t0_ = cpu_ns(), n_ = 0;                                                        \
            do {                                                                                        \
                for (int i_ = 0; i_ < 8; i_++) { /* reading the clock costs half a microsecond */       \
                    body;                                                                               \
                    n_++;                                                                               \
                }                                                                                       \
            } while (cpu_ns() - t0_ < 20000000);                                                    \
            double s_ = (double)(cpu_ns() - t0_) * 1e-9 / (double)n_;                               \
            (out) = s_ < (out) ? s_ : (out);                                                            \
        }                                                                                               \
    } while (0)

/* Parses arguments and fills the tables; true when a benchmark is wanted. */
static inline bool check_start(int argc, char **argv)
{
    bool bench = false;
    for (int i = 1; i < argc; i++) {
        if (!strcmp(argv[i], "--bench"))
            bench = true;
        else if (!strcmp(argv[i], "--seed") && i + 1 < argc)
            check_seed = strtoull(argv[++i], NULL, 0) | 1;
    }
    kni_kernels_init(&check_tables[0], 0);
    kni_kernels_init(&check_tables[1], kni_cpu_flags_all());
    print_message("seed %llu, best level: %s\n", (unsigned long long)check_seed, kni_cpu_level_name(check_tables[1].cpu_flags));
    return bench;
}

#endif
