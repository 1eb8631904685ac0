/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What bodies cost: the count against what jansson really takes, members that nobody reads, and one budget over all parses. Allocations
 * are counted through jansson's hooks, so that no number depends on the machine.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>
#include <jansson.h>
#include <malloc.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/alloc.h"
#include "server/api/params.h"
#include "server/api/params_json.h"
#include "support/params_bed.h"

#define CHAT KNI_PARAMS_ROUTE_CHAT
#define BODY_BYTES 840000u

static _Atomic uint64_t held, held_most; /* by jansson, with the allocator's overhead */

static void *count_alloc(size_t n)
{
    void *p = malloc(n);
    uint64_t now = p ? atomic_fetch_add(&held, malloc_usable_size(p) + 8) + malloc_usable_size(p) + 8 : 0, most = atomic_load(&held_most);
    while (now > most && !atomic_compare_exchange_weak(&held_most, &most, now))
        ;
    return p;
}

static void count_free(void *p)
{
    if (p)
        atomic_fetch_sub(&held, malloc_usable_size(p) + 8);
    free(p);
}

static int begin_counting(void **state)
{
    (void)state;
    atomic_store(&held, 0);
    atomic_store(&held_most, 0);
    json_set_alloc_funcs(count_alloc, count_free);
    return 0;
}

static int end_counting(void **state)
{
    (void)state;
    json_set_alloc_funcs(malloc, free);
    kni_alloc_fault_arm(0, false);
    return 0;
}

/* before, then part as often as it fits n bytes with commas between, then after. */
static char *repeat(const char *before, const char *part, const char *after, size_t n)
{
    char *text = malloc(n + 1);
    size_t at = (size_t)snprintf(text, n, "%s", before), n_part = strlen(part), n_after = strlen(after);
    for (bool first = true; at + n_part + n_after + 2 < n; first = false)
        at += (size_t)snprintf(text + at, n - at, "%s%s", first ? "" : ",", part);
    snprintf(text + at, n_after + 1, "%s", after);
    return text;
}

/* Each part numbered, for names that differ. */
static char *repeat_names(const char *before, const char *value, const char *after, size_t n)
{
    char *text = malloc(n + 1);
    size_t at = (size_t)snprintf(text, n, "%s", before), n_after = strlen(after);
    for (int i = 0; at + strlen(value) + 20 + n_after < n; i++)
        at += (size_t)snprintf(text + at, n - at, "%s\"k%d\":%s", i ? "," : "", i, value);
    snprintf(text + at, n_after + 1, "%s", after);
    return text;
}

/* The count is at least what jansson takes at its most, and not several times that. */
static void check_cost(const char *body, const char *what)
{
    struct kni_json_cost cost;
    kni_json_measure(&cost, CHAT, body, strlen(body));
    begin_counting(NULL);
    json_t *json = json_loadb(body, strlen(body), 0, NULL);
    const uint64_t most = atomic_load(&held_most), counted = cost.bytes + cost.ignored;
    if (counted < most || (cost.is_json && most > 100000 && counted > 3 * most))
        fail_msg("%s: counted %llu, taken %llu", what, (unsigned long long)counted, (unsigned long long)most);
    assert_int_equal(cost.is_json, json != NULL);
    json_decref(json);
    assert_int_equal(atomic_load(&held), 0);
}

static void costs(void **state)
{
    static const char *const parts[] = {"{}", "[]", "1", "1.5", "\"\"", "\"a\"", "\"0123456789012345678901234567890\"", "true", "null", "{\"a\":1}", "[1]", "[[[]]]",
        "{\"role\":\"user\",\"content\":\"a\"}", "\"\\u00e9\\n\"", "\"\xc3\xa9\"", "{\"a\":{\"b\":{\"c\":{}}}}", "[1,2,3,4,5,6,7,8,9]", "-0.0e-5"};
    (void)state;
    for (size_t i = 0; i < sizeof parts / sizeof *parts; i++)
        for (size_t n = 50; n < 500000; n *= 7) {
            char *body = repeat("{\"messages\":[", parts[i], "]}", n);
            check_cost(body, parts[i]);
            memcpy(body, "{\"unknowns\":[", 13);
            check_cost(body, parts[i]);
            body[strlen(body) - 1] = ' '; /* no JSON: jansson builds all of it before it says so */
            check_cost(body, parts[i]);
            free(body);
            body = repeat_names("{\"stop\":{", parts[i], "}}", n);
            check_cost(body, parts[i]);
            free(body);
            body = repeat_names("{", parts[i], "}", n);
            check_cost(body, parts[i]);
            free(body);
        }
    char *body = malloc(1000001);
    memset(body, 'a', 1000000);
    memcpy(body, "{\"prompt\":\"", 11);
    memcpy(body + 999998, "\"}", 3);
    check_cost(body, "a long text");
    free(body);
}

static void check_pruned(enum kni_params_route route, const char *body, const char *want)
{
    struct kni_json_cost cost;
    char *copy = strdup(body);
    kni_json_measure(&cost, route, body, strlen(body));
    assert_true(cost.is_json);
    kni_json_prune(route, copy, strlen(body));
    json_t *a = json_loads(copy, JSON_REJECT_DUPLICATES, NULL), *b = json_loads(want, JSON_REJECT_DUPLICATES, NULL);
    if (!a || !b || !json_equal(a, b))
        fail_msg("%s became %s", body, copy);
    for (size_t i = 0; body[i]; i++) /* what is left lies where it was */
        assert_true(copy[i] == body[i] || (copy[i] == ' ' && body[i] != '\n'));
    json_decref(a);
    json_decref(b);
    free(copy);
}

static void what_nobody_reads(void **state)
{
    static const struct { const char *body, *want; } cases[] = {
        {"{\"user\":[{},{}],\"messages\":[]}", "{\"messages\":[]}"}, {"{\"messages\":[],\"user\":[{},{}]}", "{\"messages\":[]}"},
        {"{\"user\":1}", "{}"}, {"{ \"user\" : 1 , \"x\" : {\"a\":[1,{\"b\":2}]} }", "{}"}, {"{}", "{}"}, {"{\"a\":1,\"n\":2,\"b\":3,\"c\":4,\"seed\":5,\"d\":6}", "{\"n\":2,\"seed\":5}"},
        {"{\"n\":2,\"b\":3,\"c\":4}", "{\"n\":2}"}, {"{\"n\":2,\n\"b\":\n[3],\n\"c\":4\n}", "{\"n\":2}"},
        {"{\"\\u0075ser\":1,\"\\u006e\":2}", "{\"n\":2}"}, {"{\"us\\u0065r\":{\"n\":3},\"n\":2}", "{\"n\":2}"},
        {"{\"tools\":[{\"a\":1}],\"a\":1}", "{\"tools\":[{\"a\":1}]}"}, {"{\"response_format\":{\"type\":\"text\",\"x\":1}}", "{\"response_format\":{\"type\":\"text\",\"x\":1}}"},
        {"{\"messages\":[{\"role\":\"user\",\"junk\":[{}],\"content\":\"a\"},{\"id\":{},\"content\":[{\"type\":\"text\",\"more\":{},\"text\":\"b\",\"z\":[1]}]},7,[{\"a\":1}]]}",
         "{\"messages\":[{\"role\":\"user\",\"content\":\"a\"},{\"content\":[{\"type\":\"text\",\"text\":\"b\"}]},7,[{\"a\":1}]]}"},
        {"{\"stream_options\":{\"a\":1,\"include_usage\":true,\"b\":[[]]}}", "{\"stream_options\":{\"include_usage\":true}}"},
        {"{\"stop\":[{\"a\":1}]}", "{\"stop\":[{\"a\":1}]}"}, {"[{\"user\":1}]", "[{\"user\":1}]"}, {"{\"a\":\"\\\"},{\\\\\",\"n\":1,\"\xc3\xa9\":1}", "{\"n\":1}"},
        {"{\"a\":1e999,\"n\":1,\"b\":99999999999999999999}", "{\"n\":1}"}, {"{\"a\":1,\"a\":2,\"n\":1}", "{\"n\":1}"}, {"{\"\":{},\"n\":1}", "{\"n\":1}"}};
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        check_pruned(CHAT, cases[i].body, cases[i].want);
    check_pruned(KNI_PARAMS_ROUTE_DETOKENIZE, "{\"tokens\":[1],\"temperature\":[{}],\"top_p\":1}", "{\"tokens\":[1]}");
}

/* What is no JSON within a member that nobody reads is refused as anywhere. */
static void wrong_where_nobody_reads(void **state)
{
    static const char *const wrong[] = {"[1,,2]", "[1 2]", "{\"a\"}", "{\"a\":}", "{a:1}", "[1,]", "{\"a\":1,}", "{,}", "\"\\x\"", "\"\\u12\"", "\"\\ud800\"", "\"\\udc00\"", "\"\\u0000\"",
        "\"\x01\"", "\"\xff\"", "\"\xc3\"", "\"\xed\xa0\x80\"", "tru", "True", "nul", "01", "1.", ".5", "+1", "-", "1e", "1e+", "0x1", "'a'", "[}", "{]", "[1}", "\"a", "NaN", "Infinity", "//", "", "\v"};
    (void)state;
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        struct kni_params p;
        struct kni_params_error e;
        struct kni_json_cost cost;
        char *body = malloc(200000), *many = repeat("", "{}", "", 100000);
        snprintf(body, 200000, "{\"user\":[%s],\"x\":%s,\"prompt\":\"a\"}", many, wrong[i]);
        kni_json_measure(&cost, CHAT, body, strlen(body));
        json_t *json = json_loads(body, 0, NULL);
        assert_null(json);
        if (cost.is_json)
            fail_msg("%s is no JSON", wrong[i]);
        const struct kni_params_limits limits = {.n_ctx = 256, .max_choices = 8, .model_name = "tiny"};
        assert_int_equal(kni_params_parse(&p, false, model, &limits, body, strlen(body), &e), KN_E_FORMAT);
        assert_string_equal(e.code, "invalid_json");
        kni_params_fini(&p);
        free(many);
        free(body);
    }
}

/* The body, and its like: no tree, whatever is ignored. */
static void ignored_costs_nothing(void **state)
{
    static const struct { const char *before, *after; } around[] = {
        {"{\"user\":[", "],\"prompt\":\"a\"}"}, {"{\"prompt\":\"a\",\"unknown\":[", "]}"}, {"{\"prompt\":\"a\",\"metadata\":{\"a\":[", "]}}"},
        {"{\"prompt\":\"a\",\"x\":[[[", "]]]}"}};
    static const char *const parts[] = {"{}", "[]", "1", "\"a\"", "{\"a\":{}}"};
    const struct kni_params_limits limits = {.n_ctx = 256, .max_choices = 8, .model_name = "tiny"};
    (void)state;
    for (size_t i = 0; i < sizeof around / sizeof *around; i++)
        for (size_t k = 0; k < sizeof parts / sizeof *parts; k++) {
            struct kni_params p;
            struct kni_params_error e;
            char *body = repeat(around[i].before, parts[k], around[i].after, BODY_BYTES);
            begin_counting(NULL);
            if (kni_params_parse(&p, false, model, &limits, body, strlen(body), &e))
                fail_msg("%s: %s", around[i].before, e.text);
            assert_true(atomic_load(&held_most) < 8192);
            assert_int_equal(atomic_load(&held), 0);
            kni_params_fini(&p);
            free(body);
        }
    char *body = repeat_names("{\"prompt\":\"a\",", "[{}]", "}", BODY_BYTES);
    struct kni_params p;
    struct kni_params_error e;
    begin_counting(NULL);
    assert_int_equal(kni_params_parse(&p, false, model, &limits, body, strlen(body), &e), KN_OK);
    assert_true(atomic_load(&held_most) < 8192);
    kni_params_fini(&p);
    free(body);
    assert_int_equal(kni_alloc_get_stats(KNI_ALLOC_TAG_REQUEST).current_bytes, 0);
}

struct client { const char *body; struct kni_params_limits limits; pthread_barrier_t *barrier; enum kn_status status; struct kni_params_error error; };

static void *ask(void *user)
{
    struct client *c = user;
    struct kni_params p;
    pthread_barrier_wait(c->barrier);
    c->status = kni_params_parse(&p, false, model, &c->limits, c->body, strlen(c->body), &c->error);
    kni_params_fini(&p);
    return NULL;
}

/* 64 connections with bodies whose values are read: never more memory than the budget, an answer for each, all given back. */
static void one_budget_for_all(void **state)
{
    enum { N = 64 };
    static struct client clients[N];
    pthread_t threads[N];
    pthread_barrier_t barrier;
    struct kni_parse_budget budget;
    (void)state;
    kni_parse_budget_init(&budget, 24u << 20);
    char *body = repeat("{\"prompt\":[", "[]", "]}", 150000);
    pthread_barrier_init(&barrier, NULL, N);
    begin_counting(NULL);
    for (int i = 0; i < N; i++) {
        clients[i] = (struct client){body, {.n_ctx = 256, .max_choices = 8, .model_name = "tiny", .budget = &budget}, &barrier, 0, {0}};
        if (pthread_create(&threads[i], NULL, ask, &clients[i]))
            abort();
    }
    for (int i = 0; i < N; i++)
        pthread_join(threads[i], NULL);
    pthread_barrier_destroy(&barrier);
    unsigned n_full = 0;
    for (int i = 0; i < N; i++) {
        const struct kni_params_error *e = &clients[i].error;
        n_full += e->status == 503;
        assert_true(e->status == 503 ? !strcmp(e->code, "overloaded") : e->status == 400 && strstr(e->text, "at most 64"));
    }
    assert_true(n_full < N);
    assert_int_equal(atomic_load(&budget.n_refused), n_full);
    assert_true(atomic_load(&held_most) <= atomic_load(&budget.peak) && atomic_load(&budget.peak) <= budget.max);
    assert_int_equal(atomic_load(&budget.in_use), 0);
    assert_int_equal(atomic_load(&held), 0);
    assert_true(atomic_load(&budget.n_trims) >= 1);
    free(body);
}

/* A body that can never fit is told so; one that cannot now is sent again later. */
static void too_much(void **state)
{
    struct kni_parse_budget budget;
    struct kni_params p;
    struct kni_params_error e;
    struct kni_params_limits limits = {.n_ctx = 256, .max_choices = 8, .model_name = "tiny", .budget = &budget};
    char *body = repeat("{\"prompt\":[", "[]", "]}", 150000);
    (void)state;
    kni_parse_budget_init(&budget, 1u << 20);
    assert_int_equal(kni_params_parse(&p, false, model, &limits, body, strlen(body), &e), KN_E_FULL);
    assert_int_equal(e.status, 413);
    assert_string_equal(e.code, "body_too_large");
    assert_int_equal(atomic_load(&budget.in_use), 0);
    struct kni_params_tokenize t;
    struct kni_params_detokenize d;
    assert_int_equal(kni_params_parse_tokenize(&t, model, &limits, "{\"content\":\"a\"}", 15, &e), KN_OK);
    kni_free(t.prompt.tokens);
    assert_int_equal(kni_params_parse_detokenize(&d, model, &limits, "{\"tokens\":[1,2]}", 16, &e), KN_OK);
    kni_free(d.text);
    assert_int_equal(atomic_load(&budget.in_use), 0);
    assert_true(kni_parse_budget_take(&budget, budget.max - 100)); /* the others' */
    assert_int_equal(kni_params_parse(&p, true, model, &limits, "{\"messages\":[]}", 15, &e), KN_E_NOMEM);
    assert_int_equal(e.status, 503);
    assert_int_equal(kni_params_parse_tokenize(&t, model, &limits, "{\"content\":\"a\"}", 15, &e), KN_E_NOMEM);
    assert_int_equal(kni_params_parse_detokenize(&d, model, &limits, "{\"tokens\":[1,2]}", 16, &e), KN_E_NOMEM);
    kni_parse_budget_give(&budget, budget.max - 100);
    for (uint64_t n = 1; n < 4; n++) { /* a failed allocation gives back, too */
        char *ignored = repeat("{\"prompt\":\"a\",\"user\":[", "{}", "]}", 50000);
        kni_alloc_fault_arm(n, false);
        kni_params_parse(&p, false, model, &limits, ignored, strlen(ignored), &e);
        kni_alloc_fault_arm(0, false);
        kni_params_fini(&p);
        free(ignored);
        assert_int_equal(atomic_load(&budget.in_use), 0);
    }
    free(body);
    assert_int_equal(kni_alloc_get_stats(KNI_ALLOC_TAG_REQUEST).current_bytes, 0);
}

#define T(test) cmocka_unit_test_setup_teardown(test, begin_counting, end_counting)

int main(void)
{
    const struct CMUnitTest tests[] = {
        T(costs), T(what_nobody_reads), T(wrong_where_nobody_reads), T(ignored_costs_nothing), T(one_budget_for_all), T(too_much),
    };
    return cmocka_run_group_tests_name("params_json", tests, open_model, close_model);
}
