/* SPDX-License-Identifier: Apache-2.0 */
/* Which kernels a processor gets, for every set of flags, also those that this machine lacks: nothing is called. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "kernel/kernels.h"
#include "support/cpu_levels.h"

#define N_FLAG_SETS 32u /* with a flag that no table knows */

static void tables_follow_the_flags(void **state)
{
    (void)state;
    for (uint32_t flags = 0; flags < N_FLAG_SETS; flags++) {
        const uint32_t usable = kni_cpu_flags_usable(flags);
        struct kni_kernels k;
        kni_kernels_init(&k, flags);
        const bool avx2 = usable & KNI_CPU_FLAG_AVX2, avx512 = usable & KNI_CPU_FLAG_AVX512, vnni = usable & KNI_CPU_FLAG_AVX512_VNNI;
        assert_true(k.rmsnorm == (avx2 ? kni_rmsnorm_avx2 : kni_rmsnorm_ref));
        assert_true(k.gemm == (avx512 ? kni_gemm_avx512 : avx2 ? kni_gemm_avx2 : kni_gemm_ref));
        assert_true(k.qgemm == (vnni ? kni_qgemm_vnni_avx512 : avx512 ? kni_qgemm_avx512 : avx2 ? kni_qgemm_avx2 : kni_qgemm_ref));
        assert_true(k.logit_sum_above == (avx512 ? kni_logit_sum_above_avx512 : avx2 ? kni_logit_sum_above_avx2 : kni_logit_sum_above_ref));
        assert_int_equal(k.cpu_flags & ~usable, 0);
        assert_int_equal(kni_kernels_level(flags), avx512 ? KN_CPU_LEVEL_AVX512 : avx2 ? KN_CPU_LEVEL_AVX2 : KN_CPU_LEVEL_REF);
        assert_int_equal(kni_kernels_level(k.cpu_flags), kni_kernels_level(flags)); /* a table's own flags say its level */
    }
}

/* A limit never raises a level, and the highest one takes nothing away. */
static void limits(void **state)
{
    (void)state;
    for (uint32_t flags = 0; flags < N_FLAG_SETS; flags++)
        for (enum kn_cpu_level limit = KN_CPU_LEVEL_REF; limit <= KN_CPU_LEVEL_AVX512; limit++) {
            enum kn_cpu_level own = kni_kernels_level(flags), now = kni_kernels_level(kni_kernels_limit(flags, limit));
            assert_int_equal(now, own < limit ? own : limit);
            if (limit == KN_CPU_LEVEL_AVX512)
                assert_int_equal(kni_kernels_limit(flags, limit), kni_cpu_flags_usable(flags));
        }
}

/* No entry is missing at any level. Entries of types that do not exist stay empty. */
static void tables_are_whole(void **state)
{
    (void)state;
    for (unsigned i = 0; i < N_CPU_SETS; i++) {
        struct kni_kernels k, ref;
        kni_kernels_init(&k, cpu_sets[i]);
        kni_kernels_init(&ref, 0);
        for (size_t at = offsetof(struct kni_kernels, rmsnorm); at < sizeof k; at += sizeof(kni_exp_fn))
            assert_int_equal(!memcmp((char *)&k + at, &(kni_exp_fn){NULL}, sizeof(kni_exp_fn)),
                             !memcmp((char *)&ref + at, &(kni_exp_fn){NULL}, sizeof(kni_exp_fn)));
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(tables_follow_the_flags), cmocka_unit_test(limits), cmocka_unit_test(tables_are_whole)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
