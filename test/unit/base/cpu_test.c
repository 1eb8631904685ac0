/* SPDX-License-Identifier: Apache-2.0 */
#include <sched.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include "base/cpu.h"

static void the_mask_takes_flags_away(void **state)
{
    (void)state;
    uint32_t all = kni_cpu_flags_all();
    assert_int_equal(kni_cpu_flags(), all);
    assert_int_equal(kni_cpu_flags_without(0), all);
    for (uint32_t without = 0; without < 32; without++)
        assert_int_equal(kni_cpu_flags_without(without), kni_cpu_flags_usable(all & ~without));
    assert_int_equal(kni_cpu_flags_without(UINT32_MAX), 0);
}

/* Whatever a machine, or somebody who masks, says: no level without the one below it. */
static void flags_count_only_together(void **state)
{
    (void)state;
    enum { A = KNI_CPU_FLAG_AVX2, B = KNI_CPU_FLAG_AVX512, V = KNI_CPU_FLAG_AVX512_VNNI, F = KNI_CPU_FLAG_AVX512_BF16 };
    static const uint32_t usable[16] = {0, A, 0, A | B, 0, A, 0, A | B | V, 0, A, 0, A | B | F, 0, A, 0, A | B | V | F};
    for (uint32_t flags = 0; flags < 16; flags++)
        assert_int_equal(kni_cpu_flags_usable(flags), usable[flags]);
}

/* A machine of fewer flags can be pretended, one of more cannot. */
static void a_lesser_machine_can_be_pretended(void **state)
{
    (void)state;
    const uint32_t all = kni_cpu_flags_all();
    for (uint32_t flags = 0; flags < 32; flags++) {
        kni_cpu_pretend(flags);
        assert_int_equal(kni_cpu_flags(), kni_cpu_flags_usable(all & flags));
        assert_int_equal(kni_cpu_flags_without(KNI_CPU_FLAG_AVX512),
                         kni_cpu_flags_usable(all & flags & ~(uint32_t)KNI_CPU_FLAG_AVX512));
        assert_int_equal(kni_cpu_flags_all(), all);
    }
    kni_cpu_pretend(UINT32_MAX);
    assert_int_equal(kni_cpu_flags(), all);
}

/* The kernel's own list of flags is the second opinion. */
static void flags_agree_with_the_system(void **state)
{
    (void)state;
    FILE *f = fopen("/proc/cpuinfo", "r");
    if (!f)
        skip();
    char line[8192];
    int found = 0;
    while (!found && fgets(line, sizeof line, f))
        found = !strncmp(line, "flags", 5);
    fclose(f);
    if (!found)
        skip();
    line[strcspn(line, "\n")] = ' ';
    static const struct { uint32_t flag; const char *names[8]; } needs[] = {
        {KNI_CPU_FLAG_AVX2, {" avx2 ", " fma ", " f16c ", " bmi1 ", " bmi2 ", " abm ", " popcnt "}},
        {KNI_CPU_FLAG_AVX512, {" avx512f ", " avx512bw ", " avx512vl ", " avx512dq "}},
        {KNI_CPU_FLAG_AVX512_VNNI, {" avx512_vnni "}},
        {KNI_CPU_FLAG_AVX512_BF16, {" avx512_bf16 "}},
    };
    uint32_t flags = 0;
    for (size_t i = 0; i < sizeof needs / sizeof *needs; i++) {
        int all = 1;
        for (const char *const *name = needs[i].names; *name; name++)
            all = all && strstr(line, *name);
        flags |= all ? needs[i].flag : 0;
    }
    assert_int_equal(kni_cpu_flags_all(), kni_cpu_flags_usable(flags));
}

static void levels_have_names(void **state)
{
    (void)state;
    assert_string_equal(kni_cpu_level_name(0), "reference");
    assert_string_equal(kni_cpu_level_name(KNI_CPU_FLAG_AVX2), "AVX2");
    assert_string_equal(kni_cpu_level_name(KNI_CPU_FLAG_AVX2 | KNI_CPU_FLAG_AVX512), "AVX-512");
    assert_string_equal(kni_cpu_level_name(UINT32_MAX), "AVX-512");
    assert_string_equal(kni_cpu_level_name(KNI_CPU_FLAG_AVX512), "reference");
}

static void count_follows_affinity(void **state)
{
    (void)state;
    static cpu_set_t old[16], one[16]; /* as many as the code has room for */
    assert_int_equal(sched_getaffinity(0, sizeof old, old), 0);
    assert_int_equal(kni_cpu_count(), CPU_COUNT_S(sizeof old, old));
    size_t cpu = 0;
    while (!CPU_ISSET_S(cpu, sizeof old, old))
        cpu++;
    CPU_SET_S(cpu, sizeof one, one);
    assert_int_equal(sched_setaffinity(0, sizeof one, one), 0);
    assert_int_equal(kni_cpu_count(), 1);
    assert_int_equal(sched_setaffinity(0, sizeof old, old), 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(the_mask_takes_flags_away), cmocka_unit_test(flags_agree_with_the_system),
                                       cmocka_unit_test(flags_count_only_together), cmocka_unit_test(a_lesser_machine_can_be_pretended),
                                       cmocka_unit_test(levels_have_names), cmocka_unit_test(count_follows_affinity)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
