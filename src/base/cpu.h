/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What the processor can do, read once. Who looks up kernels is told which flags to leave out, so that handles of
 * different levels can be open at once. Flags count only when the operating system saves the registers.
 */
#ifndef KNI_BASE_CPU_H
#define KNI_BASE_CPU_H

#include <stdint.h>

enum kni_cpu_flag {
    KNI_CPU_FLAG_AVX2 = 1 << 0, /* AVX2 + FMA + F16C + BMI1 + BMI2 + LZCNT + POPCNT, the level below which only references run */
    KNI_CPU_FLAG_AVX512 = 1 << 1, /* F, BW, VL, DQ */
    KNI_CPU_FLAG_AVX512_VNNI = 1 << 2,
    KNI_CPU_FLAG_AVX512_BF16 = 1 << 3
};

/* Of any set of flags, those that may be used together: AVX512 only beside AVX2, VNNI and BF16 only beside AVX512. */
uint32_t kni_cpu_flags_usable(uint32_t flags);
/* Usable flags of the machine, or of the lesser one that kni_cpu_pretend has set. Any thread. */
uint32_t kni_cpu_flags(void);
/* The same without some; 0: all of them. Any thread. */
uint32_t kni_cpu_flags_without(uint32_t without);
/* Usable flags of the machine itself, whatever is pretended. Any thread. */
uint32_t kni_cpu_flags_all(void);
/* From now on kernels are looked up as if the machine had no flags but these (UINT32_MAX: its own). For tests of what
 * happens on other machines, of code that has no options; nothing else may call it. */
void kni_cpu_pretend(uint32_t flags);
/* Threads that this process may run on (affinity), at least 1. */
uint32_t kni_cpu_count(void);
/* "reference", "AVX2", "AVX-512". For a flag set. */
const char *kni_cpu_level_name(uint32_t flags);

#endif
