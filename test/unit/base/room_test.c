/* SPDX-License-Identifier: Apache-2.0 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "base/room.h"

static void room_is_replaced_only_when_it_is_too_small(void **state)
{
    (void)state;
    size_t have = 0;
    uint32_t *a = kni_room(KNI_ALLOC_TAG_MISC, NULL, &have, 10, sizeof *a);
    assert_non_null(a);
    assert_int_equal(have, 10);
    assert_int_equal((uintptr_t)a % 64, 0);
    memset(a, 1, 10 * sizeof *a);
    assert_ptr_equal(kni_room(KNI_ALLOC_TAG_MISC, a, &have, 10, sizeof *a), a);
    assert_ptr_equal(kni_room(KNI_ALLOC_TAG_MISC, a, &have, 0, sizeof *a), a);
    assert_int_equal(have, 10);
    a = kni_room(KNI_ALLOC_TAG_MISC, a, &have, 1000, sizeof *a);
    assert_non_null(a);
    assert_int_equal(have, 1000);
    memset(a, 2, 1000 * sizeof *a);
    kni_free(a);
}

static void room_that_is_not_there_is_empty(void **state)
{
    (void)state;
    size_t have = 0;
    uint64_t before = kni_alloc_get_stats(KNI_ALLOC_TAG_MISC).current_bytes;
    assert_null(kni_room(KNI_ALLOC_TAG_MISC, NULL, &have, 0, 4));
    void *a = kni_room(KNI_ALLOC_TAG_MISC, NULL, &have, 4, 4);
    assert_null(kni_room(KNI_ALLOC_TAG_MISC, a, &have, SIZE_MAX / 2, 4)); /* the product does not fit; a is released */
    assert_int_equal(have, 0);
    a = kni_room(KNI_ALLOC_TAG_MISC, NULL, &have, 4, 4);
    kni_alloc_fault_arm(1, false);
    assert_null(kni_room(KNI_ALLOC_TAG_MISC, a, &have, 5, 4));
    kni_alloc_fault_arm(0, false);
    assert_int_equal(have, 0);
    assert_int_equal(kni_alloc_get_stats(KNI_ALLOC_TAG_MISC).current_bytes, before);
}

static void kept_room_grows_by_half_and_keeps_what_is_there(void **state)
{
    (void)state;
    size_t have = 0;
    uint16_t *a = kni_room_keep(KNI_ALLOC_TAG_MISC, NULL, &have, 10, sizeof *a);
    assert_int_equal(have, 15);
    for (uint16_t i = 0; i < 15; i++)
        a[i] = i;
    assert_ptr_equal(kni_room_keep(KNI_ALLOC_TAG_MISC, a, &have, 15, sizeof *a), a);
    a = kni_room_keep(KNI_ALLOC_TAG_MISC, a, &have, 16, sizeof *a);
    assert_int_equal(have, 24);
    for (uint16_t i = 0; i < 15; i++)
        assert_int_equal(a[i], i);
    kni_alloc_fault_arm(1, false);
    assert_null(kni_room_keep(KNI_ALLOC_TAG_MISC, a, &have, 25, sizeof *a));
    kni_alloc_fault_arm(0, false);
    assert_null(kni_room_keep(KNI_ALLOC_TAG_MISC, a, &have, SIZE_MAX, sizeof *a));
    assert_null(kni_room_keep(KNI_ALLOC_TAG_MISC, a, &have, SIZE_MAX / 3, sizeof *a * 4));
    assert_int_equal(have, 24);
    assert_int_equal(a[14], 14); /* the old array is as it was */
    kni_free(a);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(room_is_replaced_only_when_it_is_too_small),
        cmocka_unit_test(room_that_is_not_there_is_empty),
        cmocka_unit_test(kept_room_grows_by_half_and_keeps_what_is_there),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
