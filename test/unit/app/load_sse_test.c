/* SPDX-License-Identifier: Apache-2.0 */
/* Server-sent events: the same events however the bytes are cut into packets. */
#include "../../../bench/load_sse.c" /* the program is no library */

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

#include <cmocka.h>

static void note(void *user, const char *data, size_t n)
{
    char *all = user;
    assert_int_equal(data[n], 0);
    snprintf(all + strlen(all), 4096 - strlen(all), "[%.*s]", (int)n, data);
}

/* Feeds text in pieces of n bytes and compares the events. */
static void check_cut(const char *text, size_t n_bytes, size_t piece, const char *events)
{
    struct kn_load_sse sse = {0};
    char all[4096] = "";
    for (size_t at = 0; at < n_bytes; at += piece) {
        size_t n = n_bytes - at < piece ? n_bytes - at : piece;
        char *copy = malloc(n); /* its own block: a read beyond it is seen by sanitizers */
        memcpy(copy, text + at, n);
        assert_true(kn_load_sse_feed(&sse, copy, n, note, all));
        free(copy);
    }
    assert_string_equal(all, events);
    kn_load_sse_fini(&sse);
}

static void check(const char *text, const char *events)
{
    for (size_t piece = 1; piece <= strlen(text); piece++)
        check_cut(text, strlen(text), piece, events);
}

static void test_events(void **state)
{
    (void)state;
    check("data: {\"a\":1}\n\ndata: [DONE]\n\n", "[{\"a\":1}][[DONE]]");
    check("data: x\r\n\r\ndata: y\r\n\r\n", "[x][y]");
    check("data: x\r\rdata:y\r\r", "[x][y]");
    check(": a comment\nevent: ping\nid: 7\nretry: 10\n\ndata: x\n\n", "[x]"); /* an event without data is none */
    check("data: one\ndata: two\ndata:\ndata:  three\n\n", "[one\ntwo\n\n three]");
    check("data\n\n", "[]");
    check("database: x\ndat: y\n\n", "");
    check("\n\n\ndata: \xc3\xa4\xe2\x82\xac\n\n\n\n", "[\xc3\xa4\xe2\x82\xac]");
    check("data: whole\n\ndata: without its end\n", "[whole]");
}

static void test_event_is_handed_out_at_its_end(void **state)
{
    (void)state;
    struct kn_load_sse sse = {0};
    char all[4096] = "";
    assert_true(kn_load_sse_feed(&sse, "data: x\n", 8, note, all));
    assert_string_equal(all, "");
    assert_true(kn_load_sse_feed(&sse, "\n", 1, note, all));
    assert_string_equal(all, "[x]"); /* not when the next one begins */
    assert_true(kn_load_sse_feed(&sse, "data: y\r\n\r", 10, note, all));
    assert_string_equal(all, "[x][y]");
    kn_load_sse_fini(&sse);
}

static void test_events_without_end_are_refused(void **state)
{
    (void)state;
    struct kn_load_sse sse = {0};
    char all[4096] = "", block[4096];
    size_t fed = 0;
    memset(block, 'x', sizeof block);
    memcpy(block, "data: ", 6);
    while (fed < 2 * (size_t)KN_LOAD_SSE_MAX_BYTES && kn_load_sse_feed(&sse, block, sizeof block, note, all))
        fed += sizeof block;
    assert_in_range(fed, KN_LOAD_SSE_MAX_BYTES - sizeof block, KN_LOAD_SSE_MAX_BYTES);
    assert_string_equal(all, "");
    kn_load_sse_fini(&sse);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_events),
        cmocka_unit_test(test_event_is_handed_out_at_its_end),
        cmocka_unit_test(test_events_without_end_are_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
