/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What the processor can do, read once, and a mask that forces less (tests run every level that the machine has).
 * Flags count only when the operating system saves the registers.
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
/* Usable flags of the machine, less those masked out. Any thread. */
uint32_t kni_cpu_flags(void);
/* Flags of the machine itself, or of the lesser one that kni_cpu_pretend has set. */
uint32_t kni_cpu_flags_all(void);
/* From now on the machine has no flags but these (UINT32_MAX: its own). For tests of what happens on other machines. */
void kni_cpu_pretend(uint32_t flags);
/* Only flags in mask count from now on (UINT32_MAX: all). Set before kernels are looked up. */
void kni_cpu_set_mask(uint32_t mask);
/* Threads that this process may run on (affinity), at least 1. */
uint32_t kni_cpu_count(void);
/* "reference", "AVX2", "AVX-512". For a flag set. */
const char *kni_cpu_level_name(uint32_t flags);

#endif
