/* SPDX-License-Identifier: Apache-2.0 */
/* Growing text: what is written stands there, a failure sticks and loses nothing before it, JSON strings are valid UTF-8. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <string.h>

#include "base/alloc.h"
#include "base/buf.h"

static void grows(void **state)
{
    (void)state;
    struct kni_buf b = {0};
    char big[1000];
    size_t n;
    memset(big, 'x', sizeof big - 1);
    big[sizeof big - 1] = '\0';
    kni_buf_text(&b, "a");
    kni_buf_format(&b, "%s%d", big, 7);
    kni_buf_add(&b, "\0z", 2);
    assert_int_equal(b.n, 1 + 999 + 1 + 2);
    assert_memory_equal(b.data + 1000, "7\0z", 4); /* and the NUL */
    kni_buf_reset(&b);
    assert_int_equal(b.n, 0);
    assert_string_equal(b.data, "");
    for (int i = 0; i < 500; i++)
        kni_buf_format(&b, "%d,", i % 10);
    assert_int_equal(b.n, 1000);
    assert_int_equal(strlen(b.data), 1000);
    char *text = kni_buf_take(&b, &n);
    assert_int_equal(n, 1000);
    assert_memory_equal(text + 990, "5,6,7,8,9,", 11);
    assert_null(b.data);
    kni_free(text);
    assert_null(kni_buf_take(&b, &n));
    assert_int_equal(n, 0);
    kni_buf_fini(&b);
}

static void failure_sticks(void **state)
{
    (void)state;
    struct kni_buf b = {0};
    size_t n;
    char big[4096];
    memset(big, 'y', sizeof big);
    kni_buf_text(&b, "before");
    kni_alloc_fault_arm(1, false);
    kni_buf_add(&b, big, sizeof big);
    kni_alloc_fault_arm(0, false);
    assert_true(b.failed);
    kni_buf_text(&b, "after");
    kni_buf_format(&b, "%d", 1);
    assert_string_equal(b.data, "before");
    assert_null(kni_buf_take(&b, &n));
    assert_false(b.failed); /* empty again, and usable */
    kni_buf_format(&b, "%4095s|", "");
    assert_int_equal(b.n, 4096);
    kni_buf_reset(&b);
    kni_alloc_fault_arm(1, false);
    kni_buf_format(&b, "%99999s", "");
    kni_alloc_fault_arm(0, false);
    assert_true(b.failed);
    assert_string_equal(b.data, "");
    kni_buf_fini(&b);
}

static void expect_json(const char *in, size_t n, const char *want)
{
    struct kni_buf b = {0};
    kni_buf_json(&b, in, n);
    assert_false(b.failed);
    assert_string_equal(b.data, want);
    kni_buf_fini(&b);
}

static void json_strings(void **state)
{
    (void)state;
    expect_json("", 0, "");
    expect_json("plain \xc3\xa9\xf0\x9f\x8e\xac", 12, "plain \xc3\xa9\xf0\x9f\x8e\xac");
    expect_json("a\"b\\c\n\t\b\f\r\v\0\x1f\x7f", 14, "a\\\"b\\\\c\\n\\t\\b\\f\\r\\u000b\\u0000\\u001f\\u007f");
#define U "\xef\xbf\xbd"
    expect_json("\xff" "a\x80", 3, U "a" U);
    expect_json("\xe2\x82", 2, U);                 /* cut off: one mark */
    expect_json("\xe2\x82" "A", 3, U "A");
    expect_json("\xed\xa0\x80", 3, U U U);         /* a surrogate */
    expect_json("\xc0\xaf\xe0\x80\x80", 5, U U U U U); /* overlong forms */
    expect_json("\xf4\x90\x80\x80", 4, U U U U);   /* above U+10FFFF */
    expect_json("\xf1\x80\x80\xe1\x80\xc2" "b", 7, U U U "b");
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(grows), cmocka_unit_test(failure_sticks), cmocka_unit_test(json_strings)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
