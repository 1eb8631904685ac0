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
    for (uint32_t mask = 0; mask < 32; mask++) {
        kni_cpu_set_mask(mask);
        assert_int_equal(kni_cpu_flags(), all & mask);
        assert_int_equal(kni_cpu_flags_all(), all);
    }
    kni_cpu_set_mask(UINT32_MAX);
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
    int avx2 = strstr(line, " avx2 ") && strstr(line, " fma ") && strstr(line, " f16c ") && strstr(line, " bmi2 ");
    int avx512 = avx2 && strstr(line, " avx512f ") && strstr(line, " avx512bw ") && strstr(line, " avx512vl ") && strstr(line, " avx512dq ");
    assert_int_equal(!!(kni_cpu_flags_all() & KNI_CPU_FLAG_AVX2), avx2);
    assert_int_equal(!!(kni_cpu_flags_all() & KNI_CPU_FLAG_AVX512), avx512);
}

static void levels_have_names(void **state)
{
    (void)state;
    assert_string_equal(kni_cpu_level_name(0), "reference");
    assert_string_equal(kni_cpu_level_name(KNI_CPU_FLAG_AVX2), "AVX2");
    assert_string_equal(kni_cpu_level_name(KNI_CPU_FLAG_AVX2 | KNI_CPU_FLAG_AVX512), "AVX-512");
}

static void count_follows_affinity(void **state)
{
    (void)state;
    cpu_set_t old, one;
    assert_int_equal(sched_getaffinity(0, sizeof old, &old), 0);
    assert_int_equal(kni_cpu_count(), CPU_COUNT(&old));
    int cpu = 0;
    while (!CPU_ISSET(cpu, &old))
        cpu++;
    CPU_ZERO(&one);
    CPU_SET(cpu, &one);
    assert_int_equal(sched_setaffinity(0, sizeof one, &one), 0);
    assert_int_equal(kni_cpu_count(), 1);
    assert_int_equal(sched_setaffinity(0, sizeof old, &old), 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(the_mask_takes_flags_away), cmocka_unit_test(flags_agree_with_the_system),
                                       cmocka_unit_test(levels_have_names), cmocka_unit_test(count_follows_affinity)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
