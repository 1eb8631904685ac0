/* SPDX-License-Identifier: Apache-2.0 */
/* The circuit breaker, on a clock of our own. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "fetch/breaker.h"

#define S 1000000000ull

/* False while the store is to be left alone. */
static bool allows(const struct kni_breaker *b, uint64_t now_ns)
{
    return !b->open_until_ns || now_ns >= b->open_until_ns;
}

static void opens_after_three_in_a_row(void **state)
{
    struct kni_breaker b = {0};
    (void)state;
    assert_true(allows(&b, 0));
    assert_false(kni_breaker_fail(&b, 1));
    assert_false(kni_breaker_fail(&b, 2));
    assert_false(kni_breaker_succeed(&b)); /* in a row: this starts the count anew */
    assert_false(kni_breaker_fail(&b, 3));
    assert_false(kni_breaker_fail(&b, 4));
    assert_true(allows(&b, 5));
    assert_true(kni_breaker_fail(&b, 10 * S)); /* says so once */
    assert_false(allows(&b, 10 * S));
    assert_false(kni_breaker_fail(&b, 10 * S + 1)); /* a call that was under way */
    assert_false(allows(&b, 11 * S - 1));
    assert_true(allows(&b, 11 * S));
}

static void pauses_double_up_to_a_minute(void **state)
{
    struct kni_breaker b = {0};
    uint64_t now = S, pause = S;
    (void)state;
    for (int i = 0; i < 3; i++)
        kni_breaker_fail(&b, now);
    for (int i = 0; i < 10; i++) {
        assert_false(allows(&b, now + pause - 1));
        assert_true(allows(&b, now + pause));
        now += pause;
        assert_false(kni_breaker_fail(&b, now)); /* half open: one failure is enough, and is not said again */
        pause = pause * 2 > 60 * S ? 60 * S : pause * 2;
    }
    assert_int_equal(pause, 60 * S);
    now += pause;
    assert_true(kni_breaker_succeed(&b)); /* says that it is back */
    assert_false(kni_breaker_succeed(&b));
    assert_true(allows(&b, now));
    for (int i = 0; i < 3; i++)
        kni_breaker_fail(&b, now);
    assert_true(allows(&b, now + S)); /* begins with a second again */
}

static void a_hang_opens_at_once(void **state)
{
    struct kni_breaker b = {0};
    (void)state;
    kni_breaker_ease(&b, S); /* closed: nothing */
    assert_true(allows(&b, S));
    assert_true(kni_breaker_trip(&b, S));
    assert_false(kni_breaker_trip(&b, 2 * S)); /* said once */
    assert_false(allows(&b, 62 * S - 1));
    assert_true(allows(&b, 62 * S));
    kni_breaker_ease(&b, 10 * S); /* the call came back, badly */
    assert_false(allows(&b, 11 * S - 1));
    assert_true(allows(&b, 11 * S));
    assert_false(kni_breaker_fail(&b, 11 * S));
    assert_true(allows(&b, 13 * S)); /* from there as always */
    assert_true(kni_breaker_succeed(&b));
    assert_true(allows(&b, 0));
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(opens_after_three_in_a_row), cmocka_unit_test(pauses_double_up_to_a_minute),
                                       cmocka_unit_test(a_hang_opens_at_once)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
