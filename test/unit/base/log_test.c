/* SPDX-License-Identifier: Apache-2.0 */
/* The log: silent without a callback, the threshold, the words, and lines that are cut rather than split. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include "base/log.h"

static struct { unsigned n; enum kn_log_level level; char area[32], text[2048]; } seen;

static void note(void *user, enum kn_log_level level, const char *area, const char *text)
{
    assert_ptr_equal(user, &seen);
    seen.n++;
    seen.level = level;
    snprintf(seen.area, sizeof seen.area, "%s", area);
    snprintf(seen.text, sizeof seen.text, "%s", text);
}

static void levels_and_words(void **state)
{
    (void)state;
    kni_log(KN_LOG_LEVEL_ERROR, "base", "nobody listens"); /* must not crash */
    for (int lowest = KN_LOG_LEVEL_DEBUG; lowest <= KN_LOG_LEVEL_ERROR; lowest++) {
        kn_log_set(note, &seen, (enum kn_log_level)lowest);
        for (int level = KN_LOG_LEVEL_DEBUG; level <= KN_LOG_LEVEL_ERROR; level++) {
            seen.n = 0;
            kni_log((enum kn_log_level)level, "store", "%s has %d", "shelf", level);
            assert_int_equal(seen.n, level >= lowest);
            if (!seen.n)
                continue;
            char want[32];
            snprintf(want, sizeof want, "shelf has %d", level);
            assert_int_equal(seen.level, level);
            assert_string_equal(seen.area, "store");
            assert_string_equal(seen.text, want);
        }
    }
    kn_log_set(NULL, NULL, KN_LOG_LEVEL_DEBUG);
    seen.n = 0;
    kni_log(KN_LOG_LEVEL_ERROR, "store", "silenced");
    assert_int_equal(seen.n, 0);
}

static void long_lines_are_cut(void **state)
{
    (void)state;
    char words[4000];
    memset(words, 'w', sizeof words - 1);
    words[sizeof words - 1] = 0;
    kn_log_set(note, &seen, KN_LOG_LEVEL_INFO);
    seen.n = 0;
    kni_log(KN_LOG_LEVEL_WARN, "base", "%s", words);
    assert_int_equal(seen.n, 1);
    assert_int_equal(strlen(seen.text), 1023);
    assert_memory_equal(seen.text, words, 1023);
    kn_log_set(NULL, NULL, KN_LOG_LEVEL_INFO);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(levels_and_words), cmocka_unit_test(long_lines_are_cut)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
