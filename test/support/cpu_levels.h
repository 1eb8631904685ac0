/* SPDX-License-Identifier: Apache-2.0 */
/* Masks of CPU flags, one a level that the machine has: for kni_cpu_set_mask in tests that run at each. */
#ifndef TEST_CPU_LEVELS_H
#define TEST_CPU_LEVELS_H

#include "base/cpu.h"

static uint32_t levels[3];
static const char *const level_names[3] = {"reference", "AVX2", "AVX-512"};
static uint32_t n_levels;

static inline void find_levels(void)
{
    uint32_t all = kni_cpu_flags_all();
    levels[n_levels++] = 0;
    if (all & KNI_CPU_FLAG_AVX2)
        levels[n_levels++] = KNI_CPU_FLAG_AVX2;
    if (all & KNI_CPU_FLAG_AVX512)
        levels[n_levels++] = UINT32_MAX;
}

#endif
