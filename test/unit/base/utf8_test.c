/* SPDX-License-Identifier: Apache-2.0 */
/* Steps through UTF-8: every code point, every pair of bytes, and that cutting text into pieces at whole characters changes nothing. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "base/utf8.h"

static size_t encode(uint32_t c, char out[4])
{
    size_t n = c < 0x80 ? 1 : c < 0x800 ? 2 : c < 0x10000 ? 3 : 4;
    for (size_t i = n; i-- > 1; c >>= 6)
        out[i] = (char)(0x80 | (c & 63));
    out[0] = (char)(n == 1 ? c : (0xf00u >> n & 0xff) | c);
    return n;
}

static void every_character(void **state)
{
    (void)state;
    for (uint32_t c = 0; c < 0x110000; c++) {
        char text[5];
        size_t n = encode(c, text), length = 0;
        int surrogate = c >= 0xd800 && c < 0xe000;
        enum kni_utf8 kind = kni_utf8_next(text, n, &length);
        assert_int_equal(kind, surrogate ? KNI_UTF8_BAD : KNI_UTF8_WHOLE);
        assert_int_equal(length, surrogate ? 1 : n);
        assert_int_equal(kni_utf8_tail(text, n), 0);
        for (size_t cut = 1; cut < n && !surrogate; cut++) {
            assert_int_equal(kni_utf8_next(text, cut, &length), KNI_UTF8_PART);
            assert_int_equal(length, cut);
            assert_int_equal(kni_utf8_tail(text, cut), cut);
        }
    }
}

static void no_characters(void **state)
{
    (void)state;
    static const struct { const char *text; size_t n, length; } bad[] = {
        {"\x80", 1, 1}, {"\xc0\x80", 2, 1}, {"\xc1\xbf", 2, 1}, {"\xe0\x9f\xbf", 3, 1}, {"\xf0\x8f\xbf\xbf", 4, 1}, {"\xf4\x90\x80\x80", 4, 1},
        {"\xf5\x80", 2, 1}, {"\xe2\x28", 2, 1}, {"\xe2\x82\x28", 3, 2}, {"\xf0\x9f\x8e\x28", 4, 3}, {"\xff\xff", 2, 1},
    };
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        size_t length = 0;
        assert_int_equal(kni_utf8_next(bad[i].text, bad[i].n, &length), KNI_UTF8_BAD);
        assert_int_equal(length, bad[i].length);
    }
    assert_int_equal(kni_utf8_tail("", 0), 0);
    assert_int_equal(kni_utf8_tail("ab\x80\x80\x80", 5), 0);
    assert_int_equal(kni_utf8_tail("ab\xf0\x9f", 4), 2);
    assert_int_equal(kni_utf8_tail("\xf0\x9f\x8e", 3), 3);
    assert_int_equal(kni_utf8_tail("\xe2\x82\xe2", 3), 1);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(every_character), cmocka_unit_test(no_characters)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
