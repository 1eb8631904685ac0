/* SPDX-License-Identifier: Apache-2.0 */
/* Text from tokens: stop strings across every token border against a search of the whole text, and no half characters. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <string.h>

#include "base/alloc.h"
#include "server/api/answer.h"
#include "support/open_tiny.h"

static struct kn_model *model;

static int open_model(void **state)
{
    (void)state;
    model = kn_open_tiny(&(struct kn_tiny_opts){.n_layer = 1});
    return model ? 0 : -1;
}

static int close_model(void **state)
{
    (void)state;
    kn_model_close(&model);
    return 0;
}

static int32_t byte(char c)
{
    return KN_TINY_FIRST_BYTE + (unsigned char)c;
}

/* Pushes text's bytes one by one; after each, what may be shown. */
static void feed(struct kni_answer *a, const char *text, size_t n)
{
    for (size_t i = 0; i < n; i++)
        kni_answer_push(a, byte(text[i]));
}

static void expect_given(const struct kni_answer *a, const char *want)
{
    assert_int_equal(a->n_given, strlen(want));
    assert_memory_equal(a->bytes.data ? a->bytes.data : "", want, strlen(want));
}

static void holds_back(void **state)
{
    (void)state;
    char *stops[] = {"STOP", "TOTAL", "\n\n"};
    struct kni_answer a;
    kni_answer_init(&a, model, stops, 3);
    feed(&a, "ab S", 4);
    expect_given(&a, "ab ");
    feed(&a, "TO", 2);
    expect_given(&a, "ab "); /* "STO", in which "TO" begins another */
    feed(&a, "T", 1);
    expect_given(&a, "ab S"); /* "TOT" may go on */
    feed(&a, "A", 1);
    expect_given(&a, "ab S");
    assert_true(kni_answer_push(&a, byte('L')));
    expect_given(&a, "ab S");
    assert_true(a.stopped);
    assert_int_equal(a.bytes.n, 4);
    assert_false(kni_answer_push(&a, byte('x'))); /* ignored */
    kni_answer_finish(&a);
    expect_given(&a, "ab S");
    kni_answer_fini(&a);
    kni_answer_init(&a, model, stops, 3);
    feed(&a, "x\n", 2);
    expect_given(&a, "x");
    kni_answer_push(&a, 2); /* a control token has no text and breaks nothing */
    expect_given(&a, "x");
    kni_answer_finish(&a);
    expect_given(&a, "x\n");
    kni_answer_fini(&a);
}

static void whole_characters(void **state)
{
    (void)state;
    struct kni_answer a;
    char *stops[] = {"\xc3\xa9!"};
    kni_answer_init(&a, model, NULL, 0);
    feed(&a, "a\xf0\x9f\x8e", 4);
    expect_given(&a, "a");
    feed(&a, "\xac", 1);
    expect_given(&a, "a\xf0\x9f\x8e\xac");
    feed(&a, "\xff", 1); /* will never be one: given out, to be replaced */
    expect_given(&a, "a\xf0\x9f\x8e\xac\xff");
    feed(&a, "\xe2\x82", 2);
    expect_given(&a, "a\xf0\x9f\x8e\xac\xff");
    kni_answer_finish(&a);
    expect_given(&a, "a\xf0\x9f\x8e\xac\xff\xe2\x82");
    kni_answer_fini(&a);
    kni_answer_init(&a, model, stops, 1);
    feed(&a, "\xc3\xa9", 2);
    assert_int_equal(a.n_given, 0);
    feed(&a, "?", 1);
    expect_given(&a, "\xc3\xa9?");
    kni_answer_fini(&a);
}

/* Where the answer ends by definition: of all occurrences the one that ends first, then the one that begins first. */
static bool find_end(const char *text, size_t n, char *const *stops, uint32_t n_stops, size_t *end, size_t *at)
{
    for (*end = 1; *end <= n; ++*end)
        for (*at = 0; *at < *end; ++*at)
            for (uint32_t i = 0; i < n_stops; i++)
                if (strlen(stops[i]) == *end - *at && !memcmp(text + *at, stops[i], *end - *at))
                    return true;
    return false;
}

/* Random texts over a small alphabet, random stops, cut into tokens by the tokenizer and byte by byte. */
static void against_search(void **state)
{
    (void)state;
    uint64_t rng = 7;
    static const char alphabet[] = " the and\n\xc3\xa9";
    size_t n_stopped = 0;
    for (int round = 0; round < 3000; round++) {
        char text[49], stop_text[4][8], *stops[4];
        size_t n = kn_tiny_next(&rng) % 48 + 1, end, at;
        uint32_t n_stops = (uint32_t)(kn_tiny_next(&rng) % 5);
        for (size_t i = 0; i < n; i++)
            text[i] = alphabet[kn_tiny_next(&rng) % (sizeof alphabet - 1)];
        for (uint32_t s = 0; s < n_stops; s++) {
            size_t m = kn_tiny_next(&rng) % 6 + 1;
            for (size_t i = 0; i < m; i++)
                stop_text[s][i] = alphabet[kn_tiny_next(&rng) % (sizeof alphabet - 1)];
            stop_text[s][m] = '\0';
            for (size_t i = 0; i < m; i++) /* stop strings are UTF-8 */
                if ((unsigned char)stop_text[s][i] >= 0x80)
                    stop_text[s][i] = 'x';
            if (s == 3)
                memcpy(stop_text[s], "\xc3\xa9", 3);
            stops[s] = stop_text[s];
        }
        bool stopped = find_end(text, n, stops, n_stops, &end, &at);
        n_stopped += stopped;
        for (int way = 0; way < 2; way++) {
            int32_t ids[128];
            size_t n_ids = 128, given = 0;
            struct kni_answer a;
            if (way)
                assert_int_equal(kn_model_tokenize(model, text, n, 0, ids, &n_ids), KN_OK);
            for (size_t i = 0; i < n && !way; i++)
                ids[i] = byte(text[i]);
            n_ids = way ? n_ids : n;
            kni_answer_init(&a, model, stops, n_stops);
            bool met = false;
            struct kni_buf pieces = {0}, whole = {0};
            for (size_t i = 0; i < n_ids && !met; i++) {
                met = kni_answer_push(&a, ids[i]);
                assert_true(a.n_given >= given && a.n_given <= a.bytes.n); /* never taken back */
                kni_buf_json(&pieces, a.bytes.data + given, a.n_given - given);
                given = a.n_given;
                assert_true(!stopped || a.n_given <= at);
            }
            assert_int_equal(met, stopped);
            kni_answer_finish(&a);
            assert_int_equal(a.n_given, stopped ? at : n);
            assert_memory_equal(a.bytes.data, text, a.n_given);
            kni_buf_json(&pieces, a.bytes.data + given, a.n_given - given);
            kni_buf_json(&whole, text, a.n_given);
            assert_string_equal(pieces.data, whole.data); /* the same marks for what is no UTF-8 */
            kni_buf_fini(&pieces);
            kni_buf_fini(&whole);
            kni_answer_fini(&a);
        }
    }
    assert_true(n_stopped > 500 && n_stopped < 2500);
}

static void memory_runs_out(void **state)
{
    (void)state;
    struct kni_answer a;
    kni_answer_init(&a, model, NULL, 0);
    kni_alloc_fault_arm(1, false);
    feed(&a, "a", 1);
    kni_alloc_fault_arm(0, false);
    assert_true(a.bytes.failed);
    feed(&a, "b", 1);
    kni_answer_finish(&a);
    assert_int_equal(a.n_given, 0);
    kni_answer_fini(&a);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(holds_back),
        cmocka_unit_test(whole_characters),
        cmocka_unit_test(against_search),
        cmocka_unit_test(memory_runs_out),
    };
    return cmocka_run_group_tests(tests, open_model, close_model);
}
