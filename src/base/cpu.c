/* SPDX-License-Identifier: Apache-2.0 */
/* CPUID through the compiler's builtins, which check XCR0 for us; F16C and LZCNT by hand, since clang's builtin does not know them. */
#include "base/cpu.h"

#if defined(__x86_64__)
#include <cpuid.h>
#endif
#include <sched.h>
#include <stdatomic.h>

static _Atomic uint32_t pretended = UINT32_MAX;

#if defined(__x86_64__)
static int has_f16c(void) /* its registers are AVX's: where the builtin finds AVX2, XCR0 is right for it too */
{
    unsigned a, b, c = 0, d;
    return __get_cpuid(1, &a, &b, &c, &d) && (c & bit_F16C);
}

static int has_lzcnt(void) /* elsewhere its encoding is another instruction, with another result */
{
    unsigned a, b, c = 0, d;
    return __get_cpuid(0x80000001, &a, &b, &c, &d) && (c & bit_LZCNT);
}
#endif

static uint32_t read_flags(void)
{
    uint32_t flags = 0;
#if defined(__x86_64__)
    __builtin_cpu_init();
    if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && has_f16c() && __builtin_cpu_supports("bmi2") &&
        __builtin_cpu_supports("bmi") && __builtin_cpu_supports("popcnt") && has_lzcnt())
        flags |= KNI_CPU_FLAG_AVX2;
    if ((flags & KNI_CPU_FLAG_AVX2) && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
        __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512dq"))
        flags |= KNI_CPU_FLAG_AVX512;
    if ((flags & KNI_CPU_FLAG_AVX512) && __builtin_cpu_supports("avx512vnni"))
        flags |= KNI_CPU_FLAG_AVX512_VNNI;
    if ((flags & KNI_CPU_FLAG_AVX512) && __builtin_cpu_supports("avx512bf16"))
        flags |= KNI_CPU_FLAG_AVX512_BF16;
#endif
    return flags;
}

uint32_t kni_cpu_flags_all(void)
{
    enum { KNOWN = 1 << 30 };
    static _Atomic uint32_t cached; /* threads that meet here first all store the same number */
    uint32_t flags = atomic_load_explicit(&cached, memory_order_relaxed);
    if (!flags) {
        flags = read_flags() | KNOWN; /* CPUID leaves a virtual machine: microseconds each time */
        atomic_store_explicit(&cached, flags, memory_order_relaxed);
    }
    return kni_cpu_flags_usable(flags & ~(uint32_t)KNOWN);
}

uint32_t kni_cpu_flags_usable(uint32_t flags)
{
    if (!(flags & KNI_CPU_FLAG_AVX2))
        flags &= ~(uint32_t)KNI_CPU_FLAG_AVX512;
    if (!(flags & KNI_CPU_FLAG_AVX512))
        flags &= ~(uint32_t)(KNI_CPU_FLAG_AVX512_VNNI | KNI_CPU_FLAG_AVX512_BF16);
    return flags;
}

uint32_t kni_cpu_flags(void)
{
    return kni_cpu_flags_without(0);
}

uint32_t kni_cpu_flags_without(uint32_t without)
{
    return kni_cpu_flags_usable(kni_cpu_flags_all() & ~without & atomic_load_explicit(&pretended,
                                                                                      memory_order_relaxed));
}

void kni_cpu_pretend(uint32_t flags)
{
    atomic_store_explicit(&pretended, flags, memory_order_relaxed);
}

uint32_t kni_cpu_count(void)
{
    cpu_set_t sets[16]; /* 16384 processors, twice what Linux can be built for: it refuses a set without room for all that there are */
    if (sched_getaffinity(0, sizeof sets, sets))
        return 1;
    int n = CPU_COUNT_S(sizeof sets, sets);
    return n > 0 ? (uint32_t)n : 1;
}

const char *kni_cpu_level_name(uint32_t flags)
{
    flags = kni_cpu_flags_usable(flags);
    return flags & KNI_CPU_FLAG_AVX512 ? "AVX-512" : flags & KNI_CPU_FLAG_AVX2 ? "AVX2" : "reference";
}
