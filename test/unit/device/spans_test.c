/* SPDX-License-Identifier: Apache-2.0 */
/* The table of spans against a map of bytes, over random adds and removes; and a table that cannot grow. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "base/alloc.h"
#include "device/cpu/spans.h"

#define SPACE 300u

static void finds_what_a_map_of_bytes_finds(void **state)
{
    (void)state;
    const uint64_t before = kni_alloc_get_stats(KNI_ALLOC_TAG_COUNT).current_bytes;
    struct kni_spans t = {0};
    uint32_t owner[SPACE] = {0}; /* 1 + where the span of this byte begins */
    uint32_t n = 0, most = 0;
    srand(7);
    for (int round = 0; round < 20000; round++) {
        uint32_t at = (uint32_t)rand() % SPACE, bytes = 1 + (uint32_t)rand() % 6;
        if (at + bytes > SPACE)
            continue;
        struct kni_span *first = kni_spans_overlapping(&t, at, bytes);
        uint32_t expected = 0;
        for (uint32_t i = at; i < at + bytes && !expected; i++)
            expected = owner[i];
        assert_int_equal(first ? first->at + 1 : 0, expected);
        struct kni_span *holding = kni_spans_holding(&t, at);
        assert_int_equal(holding ? holding->at + 1 : 0, owner[at]);
        struct kni_span *found = kni_spans_find(&t, at);
        assert_int_equal(found != NULL, owner[at] == at + 1);
        if (!first && rand() % 4) {
            assert_true(kni_spans_make_room(&t));
            kni_spans_add(&t, (struct kni_span){.at = at, .bytes = bytes, .memory = at * 3});
            for (uint32_t i = at; i < at + bytes; i++)
                owner[i] = at + 1;
            n++;
        } else if (found) {
            assert_int_equal(found->memory, at * 3);
            for (uint32_t i = 0; i < SPACE; i++)
                owner[i] = owner[i] == at + 1 ? 0 : owner[i];
            kni_spans_remove(&t, found);
            n--;
        }
        assert_int_equal(t.n, n);
        most = n > most ? n : most;
    }
    assert_true(most > 32); /* it has grown */
    while (t.n)
        kni_spans_remove(&t, &t.spans[t.n / 2]);
    assert_int_equal(kni_alloc_get_stats(KNI_ALLOC_TAG_COUNT).current_bytes, before);
}

static void says_when_it_cannot_grow(void **state)
{
    (void)state;
    struct kni_spans t = {0};
    kni_alloc_fault_arm(1, false);
    assert_false(kni_spans_make_room(&t));
    for (uint64_t i = 0; i < 16; i++) {
        assert_true(kni_spans_make_room(&t));
        kni_spans_add(&t, (struct kni_span){.at = i * 2, .bytes = 2});
    }
    kni_alloc_fault_arm(1, false);
    assert_false(kni_spans_make_room(&t));
    kni_alloc_fault_arm(0, false);
    assert_int_equal(t.n, 16);
    assert_int_equal(kni_spans_holding(&t, 31)->at, 30);
    assert_true(kni_spans_make_room(&t));
    assert_int_equal(kni_spans_find(&t, 14)->bytes, 2);
    assert_null(kni_spans_holding(&t, UINT64_MAX));
    assert_null(kni_spans_overlapping(&t, UINT64_MAX, 1));
    kni_spans_fini(&t);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(finds_what_a_map_of_bytes_finds),
                                       cmocka_unit_test(says_when_it_cannot_grow)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
