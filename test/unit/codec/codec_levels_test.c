/* SPDX-License-Identifier: Apache-2.0 */
/* Which forms of the codecs' loops a processor gets, for every set of flags, also those that this machine lacks: nothing is called. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "codec/exact/exact_lanes.h"
#include "codec/exact/exact_loops.h"
#include "codec/hevc/hevc_state.h"
#include "codec/rans/rans_simd.h"
#include "codec/spectral/spectral_ops.h"
#include "support/cpu_levels.h"

#define N_FLAG_SETS 32u /* with a flag that no table knows */

static bool has(uint32_t flags, uint32_t flag)
{
    return kni_cpu_flags_usable(flags) & flag;
}

static void rans(void **state)
{
    (void)state;
    for (uint32_t flags = 0; flags < N_FLAG_SETS; flags++) {
        struct kni_rans_ops ops = kni_rans_ops_get(flags);
        assert_true(ops.notes == (has(flags, KNI_CPU_FLAG_AVX2) ? kni_rans_notes_avx2 : kni_rans_notes_ref));
        assert_true(ops.decode_row == (has(flags, KNI_CPU_FLAG_AVX512) ? kni_rans_decode_row_avx512
                                       : has(flags, KNI_CPU_FLAG_AVX2) ? kni_rans_decode_row_avx2
                                                                       : kni_rans_decode_row_ref));
        assert_true(ops.encode_row == (has(flags, KNI_CPU_FLAG_AVX512) ? kni_rans_encode_row_avx512
                                       : has(flags, KNI_CPU_FLAG_AVX2) ? kni_rans_encode_row_avx2
                                                                       : kni_rans_encode_row_ref));
    }
}

static void video(void **state)
{
    (void)state;
    for (uint32_t flags = 0; flags < N_FLAG_SETS; flags++)
        assert_true(kni_hevc_slice_get(flags) == (has(flags, KNI_CPU_FLAG_AVX512) ? kni_hevc_slice_avx512
                                                  : has(flags, KNI_CPU_FLAG_AVX2) ? kni_hevc_slice_avx2
                                                                                  : kni_hevc_slice_ref));
}

static void exact(void **state)
{
    (void)state;
    for (uint32_t flags = 0; flags < N_FLAG_SETS; flags++) {
        bool avx2 = has(flags, KNI_CPU_FLAG_AVX2);
        assert_true(kni_exact_lane_ops(flags).read == (avx2 ? kni_exact_read_avx2 : kni_exact_read_ref));
        assert_ptr_equal(kni_exact_loops_get(flags), avx2 ? &kni_exact_loops_avx2 : &kni_exact_loops_ref);
    }
}

/* Three tables at most, and an inconsistent set gives the table of what is usable of it. */
static void spectral(void **state)
{
    (void)state;
    struct kni_spectral_ops level[N_CPU_LEVELS];
    for (unsigned i = 0; i < N_CPU_LEVELS; i++)
        kni_spectral_ops_init(&level[i], cpu_sets[i]);
    assert_memory_not_equal(&level[0], &level[1], sizeof *level);
    assert_memory_not_equal(&level[1], &level[2], sizeof *level);
    for (uint32_t flags = 0; flags < N_FLAG_SETS; flags++) {
        struct kni_spectral_ops ops;
        kni_spectral_ops_init(&ops, flags);
        assert_memory_equal(&ops, &level[has(flags, KNI_CPU_FLAG_AVX512) ? 2 : has(flags, KNI_CPU_FLAG_AVX2) ? 1 : 0], sizeof ops);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(rans), cmocka_unit_test(video), cmocka_unit_test(exact), cmocka_unit_test(spectral)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
