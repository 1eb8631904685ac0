/* SPDX-License-Identifier: Apache-2.0 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "base/arena.h"

static void pieces_are_zeroed_aligned_and_apart(void **state)
{
    (void)state;
    struct kni_arena a;
    uint8_t *p[300];
    size_t sizes[300], used = 0;
    kni_arena_init(&a, KNI_ALLOC_TAG_MISC, 1000);
    for (int i = 0; i < 300; i++) {
        size_t align = (size_t)1 << i % 7;
        sizes[i] = (size_t)(i * 37 % 211) + (i == 150 ? 5000 : 0); /* one larger than a block */
        p[i] = kni_arena_alloc(&a, sizes[i], align);
        assert_non_null(p[i]);
        assert_int_equal((uintptr_t)p[i] % align, 0);
        for (size_t j = 0; j < sizes[i]; j++)
            assert_int_equal(p[i][j], 0);
        memset(p[i], i, sizes[i]);
        used += sizes[i];
    }
    for (int i = 0; i < 300; i++)
        for (size_t j = 0; j < sizes[i]; j++)
            assert_int_equal(p[i][j], (uint8_t)i);
    assert_int_equal(a.used_bytes, used);
    kni_arena_fini(&a);
}

static void everything_is_freed(void **state)
{
    (void)state;
    uint64_t before = kni_alloc_get_stats(KNI_ALLOC_TAG_MODEL).current_bytes;
    struct kni_arena a;
    kni_arena_init(&a, KNI_ALLOC_TAG_MODEL, 0);
    assert_int_equal(kni_alloc_get_stats(KNI_ALLOC_TAG_MODEL).current_bytes, before); /* nothing before the first piece */
    assert_string_equal(kni_arena_strndup(&a, "kinema", 3), "kin");
    assert_non_null(kni_arena_alloc(&a, 200000, 0));
    assert_true(kni_alloc_get_stats(KNI_ALLOC_TAG_MODEL).current_bytes >= before + 200000);
    kni_arena_fini(&a);
    assert_int_equal(kni_alloc_get_stats(KNI_ALLOC_TAG_MODEL).current_bytes, before);
    assert_non_null(kni_arena_alloc(&a, 10, 0)); /* usable again */
    kni_arena_fini(&a);
    kni_arena_fini(&a);
}

static void failures_leave_it_usable(void **state)
{
    (void)state;
    struct kni_arena a;
    kni_arena_init(&a, KNI_ALLOC_TAG_MISC, 64);
    assert_null(kni_arena_alloc(&a, SIZE_MAX, 0));
    assert_null(kni_arena_alloc(&a, SIZE_MAX - 63, 0));
    assert_null(kni_arena_strndup(&a, "x", SIZE_MAX));
    char *p = kni_arena_strndup(&a, "kept", 4);
    kni_alloc_fault_arm(1, false);
    assert_null(kni_arena_alloc(&a, 1000, 0));
    kni_alloc_fault_arm(0, false);
    assert_non_null(kni_arena_alloc(&a, 1000, 0));
    assert_string_equal(p, "kept");
    kni_arena_fini(&a);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(pieces_are_zeroed_aligned_and_apart), cmocka_unit_test(everything_is_freed),
                                       cmocka_unit_test(failures_leave_it_usable)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
