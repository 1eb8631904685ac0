/* SPDX-License-Identifier: Apache-2.0 */
/* Form C against the reference tokenizers' normalizer, on the golden strings (e2e/golden/make_tokens.py). */
#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>
#include <jansson.h>

#include "base/alloc.h"
#include "model/nfc.h"
#include "support/golden.h"

static void expect(const json_t *text, const json_t *want)
{
    char *out;
    size_t n;
    assert_int_equal(kni_nfc(&out, &n, json_string_value(text), json_string_length(text), &(struct kni_effort){0}), KN_OK);
    const char *got = out ? out : json_string_value(text);
    if (n != json_string_length(want) || memcmp(got, json_string_value(want), n))
        fail_msg("\"%s\" became \"%.*s\", want \"%s\"", json_string_value(text), (int)n, got, json_string_value(want));
    assert_true(n <= 3 * json_string_length(text));
    kni_free(out);
}

static void golden(void **state)
{
    (void)state;
    json_t *texts = kn_golden_load("tokens.json"), *pretok = kn_golden_load("pretok.json"), *nfc = kn_golden_load("nfc.json"), *changed = json_object_get(nfc, "changed"), *more, *index;
    size_t k, next = 0;
    json_array_foreach(json_object_get(pretok, "strings"), k, index) {
        const json_t *text = json_object_get(json_array_get(texts, (size_t)json_integer_value(index)), "text"), *entry = json_array_get(changed, next);
        bool differs = entry && json_equal(json_array_get(entry, 0), index);
        expect(text, differs ? json_array_get(entry, 1) : text);
        next += differs;
    }
    assert_true(next == json_array_size(changed) && next >= 5 && k > 300);
    json_array_foreach(json_object_get(nfc, "more"), k, more)
        expect(json_array_get(more, 0), json_array_get(more, 1));
    assert_true(k >= 20);
    json_decref(texts);
    json_decref(pretok);
    json_decref(nfc);
}

/* Marks in any number, in any order: sorted by class and stable, in steps that grow as they do. */
static void many_marks(void **state)
{
    (void)state;
    static const char *const marks[] = {"\xcc\x81" /* 230 */, "\xcc\xa3" /* 220 */, "\xcc\xa1" /* 202 */, "\xcd\x85" /* 240 */, "\xcc\xb4" /* 1 */};
    static const unsigned by_class[] = {4, 2, 1, 0, 3};
    enum { N = 1 << 17 };
    char *text = malloc(2 * N + 1), *out;
    assert_non_null(text);
    uint64_t steps = 0;
    for (size_t n = 5; n < N; n = n < 1000 ? n + 5 : 2 * n) { /* marks in turn behind a letter that composes with none */
        struct kni_effort effort = {0};
        size_t n_out;
        n -= n % 5;
        *text = '1';
        for (size_t i = 0; i < n; i++)
            memcpy(text + 1 + 2 * i, marks[i % 5], 2);
        assert_int_equal(kni_nfc(&out, &n_out, text, 1 + 2 * n, &effort), KN_OK);
        assert_int_equal(n_out, 1 + 2 * n);
        for (size_t i = 0; i < n; i++)
            assert_memory_equal(out + 1 + 2 * i, marks[by_class[i / (n / 5)]], 2);
        kni_free(out);
        assert_true(effort.n_steps <= 8 * n + 8);
        assert_true(n < 2000 || effort.n_steps * 10 <= steps * 22);
        steps = effort.n_steps;
    }
    free(text);
}

static bool no(void *user)
{
    (void)user;
    return true;
}

static void given_up(void **state)
{
    (void)state;
    struct kni_effort effort = {.stop = no};
    char *out;
    size_t n;
    assert_int_equal(kni_nfc(&out, &n, "e\xcc\x81", 3, &effort), KN_E_CANCELLED);
    assert_null(out);
}

static void out_of_memory(void **state)
{
    (void)state;
    char *out;
    size_t n;
    struct kni_effort effort = {0};
    kni_alloc_fault_arm(1, true);
    enum kn_status plain = kni_nfc(&out, &n, "plain", 5, &effort), status = kni_nfc(&out, &n, "e\xcc\x81", 3, &effort);
    kni_alloc_fault_arm(0, false);
    assert_int_equal(plain, KN_OK); /* needs no memory */
    assert_int_equal(status, KN_E_NOMEM);
    assert_null(out);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(golden), cmocka_unit_test(many_marks), cmocka_unit_test(given_up), cmocka_unit_test(out_of_memory)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
