/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What one thread of the machine can do at best, for --bench: bytes read from memory, and float multiply-adds from registers.
 * Best of several tries; 0 or so where no such code is at hand.
 */
#ifndef KN_TEST_KERNEL_PROBE_H
#define KN_TEST_KERNEL_PROBE_H

#include "check.h"

#if defined(__x86_64__)
#define PROBE_TARGET(t) __attribute__((target(t), noinline))
#else
#define PROBE_TARGET(t) __attribute__((noinline))
#endif

typedef long long probe_ints __attribute__((vector_size(32)));

#if defined(__x86_64__)
/* 12 independent chains, enough for two units with a latency of 4 or 5, in registers by name: the compiler may not choose. */
#define PROBE_EACH(X, r) X(r, 0) X(r, 1) X(r, 2) X(r, 3) X(r, 4) X(r, 5) X(r, 6) X(r, 7) X(r, 8) X(r, 9) X(r, 10) X(r, 11)
#define PROBE_ZERO(r, i) "vxorps %%xmm" #i ", %%xmm" #i ", %%xmm" #i "\n\t"
#define PROBE_STEP(r, i) "vfmadd231ps %%" #r "mm12, %%" #r "mm12, %%" #r "mm" #i "\n\t"
#define PROBE_CLOBBER "xmm0", "xmm1", "xmm2", "xmm3", "xmm4", "xmm5", "xmm6", "xmm7", "xmm8", "xmm9", "xmm10", "xmm11", "xmm12"
#define PROBE_FMA(r)                                                                             \
    __asm__ volatile(PROBE_EACH(PROBE_ZERO, r) PROBE_ZERO(r, 12) "1:\n\t" PROBE_EACH(PROBE_STEP, r) \
                     "dec %0\n\tjnz 1b"                                                          \
                     : "+r"(n)                                                                   \
                     :                                                                           \
                     : PROBE_CLOBBER, "cc")

PROBE_TARGET("avx2,fma") static void probe_fma_avx2(long n)
{
    PROBE_FMA(y);
}

PROBE_TARGET("avx512f") static void probe_fma_avx512(long n)
{
    PROBE_FMA(z);
}

/* 32 products and sums of bfloat16 pairs an instruction: what weights and activations in bfloat16 could gain. */
#define PROBE_STEP_BF16(r, i) "vdpbf16ps %%" #r "mm12, %%" #r "mm12, %%" #r "mm" #i "\n\t"
PROBE_TARGET("avx512f") static void probe_dpbf16(long n)
{
    __asm__ volatile(PROBE_EACH(PROBE_ZERO, z) PROBE_ZERO(z, 12) "1:\n\t" PROBE_EACH(PROBE_STEP_BF16, z) "dec %0\n\tjnz 1b" : "+r"(n) : : PROBE_CLOBBER, "cc");
}

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
    const long n = 10000;
    long lanes = 8;
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

/* 0 where the processor has no such instruction. */
static inline double probe_bf16_gflops(void)
{
    double s = 0;
    const long n = 10000;
#if defined(__x86_64__)
    __builtin_cpu_init();
    if (__builtin_cpu_supports("avx512bf16"))
        BENCH_SECONDS(s, probe_dpbf16(n));
#endif
    return s > 0 ? 2.0 * 12 * 32 * (double)n / s * 1e-9 : 0;
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
        volatile long long sink = 0; /* keeps the reading alive */
        s = 1e9;
        for (int i = 0; i < 5; i++) {
            uint64_t t0 = cpu_ns();
            sink += probe_read(p, bytes / sizeof *p);
            double t = (double)(cpu_ns() - t0) * 1e-9;
            s = t < s ? t : s;
        }
        (void)sink;
        free(p);
    }
#endif
    return (double)bytes / s * 1e-9;
}

#endif
