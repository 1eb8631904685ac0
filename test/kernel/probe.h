/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What one thread of the machine can do at best, for --bench: bytes read from memory, and float multiply-adds from registers.
 * Written with vectors of the compiler; the attribute lets it use the processor's. Best of several tries.
 */
#ifndef KN_TEST_KERNEL_PROBE_H
#define KN_TEST_KERNEL_PROBE_H

#include "check.h"

#if defined(__x86_64__)
#define PROBE_TARGET(t) __attribute__((target(t), noinline))
#else
#define PROBE_TARGET(t) __attribute__((noinline))
#endif

typedef float probe_vec __attribute__((vector_size(32)));
typedef float probe_wide __attribute__((vector_size(64)));
typedef long long probe_ints __attribute__((vector_size(32)));

/* 12 independent chains: enough for two units with a latency of 4 or 5. */
#define PROBE_FMA(name, vec, insn, reg)                                                                                       \
    static void name(long n)                                                                                                  \
    {                                                                                                                         \
        vec a[12], x;                                                                                                         \
        memset(a, 0, sizeof a);                                                                                               \
        memset(&x, 0, sizeof x);                                                                                              \
        for (long i = 0; i < n; i++)                                                                                          \
            for (int j = 0; j < 12; j++)                                                                                      \
                __asm__ volatile(insn " %1, %1, %0" : "+" reg(a[j]) : reg(x));                                                \
    }

#if defined(__x86_64__)
PROBE_TARGET("avx2,fma") PROBE_FMA(probe_fma_avx2, probe_vec, "vfmadd231ps", "x")
PROBE_TARGET("avx512f") PROBE_FMA(probe_fma_avx512, probe_wide, "vfmadd231ps", "v")

PROBE_TARGET("avx2") static long long probe_read(const probe_ints *p, size_t n)
{
    probe_ints a = {0}, b = {0};
    for (size_t i = 0; i + 2 <= n; i += 2) {
        __builtin_prefetch((const char *)(p + i) + 2048);
        a += p[i];
        b += p[i + 1];
    }
    a += b;
    return a[0] + a[1] + a[2] + a[3];
}
#endif

static inline double probe_fma_gflops(void)
{
    double s = 1;
    long n = 10000, lanes = 8;
#if defined(__x86_64__)
    uint32_t flags = kni_cpu_flags_all();
    if (flags & KNI_CPU_FLAG_AVX512) {
        lanes = 16;
        BENCH_SECONDS(s, probe_fma_avx512(n));
    } else if (flags & KNI_CPU_FLAG_AVX2) {
        BENCH_SECONDS(s, probe_fma_avx2(n));
    }
#endif
    return 2.0 * 12 * (double)(lanes * n) / s * 1e-9;
}

static inline double probe_read_gbs(void)
{
    double s = 1;
    size_t bytes = (size_t)96 << 20;
#if defined(__x86_64__)
    if (kni_cpu_flags_all() & KNI_CPU_FLAG_AVX2) {
        probe_ints *p = aligned_alloc(64, bytes);
        assert_non_null(p);
        memset(p, 1, bytes);
        volatile long long sink = 0;
        s = 1e9;
        for (int i = 0; i < 5; i++) {
            uint64_t t0 = cpu_ns();
            sink += probe_read(p, bytes / sizeof *p);
            double t = (double)(cpu_ns() - t0) * 1e-9;
            s = t < s ? t : s;
        }
        free(p);
    }
#endif
    return (double)bytes / s * 1e-9;
}

#endif
