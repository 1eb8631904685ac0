/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Sets of CPU flags, for tests that run at each level that the machine has, or that ask what other machines would do. The sets are given
 * here and never read off the machine: one with more flags than these runs at the last of them.
 */
#ifndef TEST_CPU_LEVELS_H
#define TEST_CPU_LEVELS_H

#include <stdbool.h>

#include "base/cpu.h"

#define CPU_SET_AVX512 (KNI_CPU_FLAG_AVX2 | KNI_CPU_FLAG_AVX512)
#define N_CPU_LEVELS 3u /* sets with kernels of their own nearly everywhere; VNNI's are only in qgemm */
#define N_CPU_SETS 4u

static const uint32_t cpu_sets[N_CPU_SETS] = {0, KNI_CPU_FLAG_AVX2, CPU_SET_AVX512, CPU_SET_AVX512 | KNI_CPU_FLAG_AVX512_VNNI};
static const char *const cpu_set_names[N_CPU_SETS] = {"reference", "AVX2", "AVX-512", "AVX-512 VNNI"};

/* Of the first n_max sets, how many the machine has: they build on each other. */
static inline unsigned cpu_sets_count(unsigned n_max)
{
    unsigned n = 1;
    while (n < n_max && (kni_cpu_flags_all() & cpu_sets[n]) == cpu_sets[n])
        n++;
    return n;
}

/* True while the machine has level i, and no more than that is pretended; then false, and nothing is pretended. */
static inline bool cpu_level_set(unsigned i)
{
    bool has = i < cpu_sets_count(N_CPU_LEVELS);
    kni_cpu_pretend(has ? cpu_sets[i] : UINT32_MAX);
    return has;
}

/* The statement that follows runs at each level that the machine has. */
#define EACH_CPU_LEVEL(i) for (unsigned i = 0; cpu_level_set(i); i++)

#endif
