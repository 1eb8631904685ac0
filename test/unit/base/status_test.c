/* SPDX-License-Identifier: Apache-2.0 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "base/status.h"

/* Values are ABI: a renumbering must fail here. */
static void values_and_names_are_fixed(void **state)
{
    (void)state;
    static const struct { enum kn_status value; const char *name; } want[] = {
        {KN_OK, "KN_OK"}, {KN_AGAIN, "KN_AGAIN"}, {KN_END, "KN_END"}, {KN_E_ARG, "KN_E_ARG"}, {KN_E_NOMEM, "KN_E_NOMEM"}, {KN_E_IO, "KN_E_IO"},
        {KN_E_FORMAT, "KN_E_FORMAT"}, {KN_E_UNSUPPORTED, "KN_E_UNSUPPORTED"}, {KN_E_NOT_FOUND, "KN_E_NOT_FOUND"}, {KN_E_FULL, "KN_E_FULL"},
        {KN_E_MISMATCH, "KN_E_MISMATCH"}, {KN_E_TIMEOUT, "KN_E_TIMEOUT"}, {KN_E_CANCELLED, "KN_E_CANCELLED"}, {KN_E_CONTEXT, "KN_E_CONTEXT"}, {KN_E_STATE, "KN_E_STATE"},
    };
    for (unsigned i = 0; i < sizeof want / sizeof *want; i++) {
        assert_int_equal(want[i].value, i);
        assert_string_equal(kn_status_name(want[i].value), want[i].name);
        assert_true(strlen(kn_status_message(want[i].value)) > 3);
        for (unsigned j = 0; j < i; j++)
            assert_string_not_equal(kn_status_message(want[i].value), kn_status_message(want[j].value));
    }
}

static void unknown_values_are_named_too(void **state)
{
    (void)state;
    assert_non_null(kn_status_name((enum kn_status)999));
    assert_non_null(kn_status_message((enum kn_status)-1));
    assert_string_equal(kn_status_name((enum kn_status)999), "KN_?");
}

static void sentences_are_written_and_cut(void **state)
{
    (void)state;
    struct kn_err err = {0};
    assert_int_equal(kni_err_set(&err, KN_E_IO, "%s: %d", "file", 7), KN_E_IO);
    assert_string_equal(err.text, "file: 7");
    assert_int_equal(err.status, KN_E_IO);
    char longer[2000];
    memset(longer, 'x', sizeof longer - 1);
    longer[sizeof longer - 1] = 0;
    kni_err_set(&err, KN_E_ARG, "%s", longer);
    assert_int_equal(strlen(err.text), sizeof err.text - 1);
    assert_int_equal(kni_err_set(NULL, KN_E_FULL, "nobody listens"), KN_E_FULL);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(values_and_names_are_fixed), cmocka_unit_test(unknown_values_are_named_too),
                                       cmocka_unit_test(sentences_are_written_and_cut)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
