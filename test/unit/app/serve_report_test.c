/* SPDX-License-Identifier: Apache-2.0 */
/* Sums of a load test: figures of requests whose times are known. */
#include "../../../bench/serve_report.c" /* the program is no library */
#include "../../../app/app.c"
#include "../../../app/app_path.c"
#include "../../../bench/load_stats.c"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

const char kn_app_commit[] = "test", kn_app_source_dir[] = "";
const char *const kn_load_mix_names[KN_LOAD_N_MIXES] = {"unique", "shared", "turns"};
const char *const kn_serve_scenario_names[KN_SERVE_N_SCENARIOS] = {"none", "throughput", "shared", "fetch"};

enum { N = 6 };

/* Due at i, first token after (i + 1) * 100 ms, then 4 tokens at 50 ms each; the fourth failed, the fifth was never sent, the sixth has one token. */
static void make(struct kn_load_request requests[N], struct kn_load_result results[N])
{
    for (uint32_t i = 0; i < N; i++) {
        double first = i + (i + 1) * 0.1;
        requests[i] = (struct kn_load_request){.at_s = i, .next = KN_LOAD_NONE, .group = i % 2};
        results[i] = (struct kn_load_result){.outcome = KN_LOAD_OUTCOME_COMPLETED, .due_s = i, .sent_s = i + 0.001, .first_s = first, .last_s = first + 0.2,
                                             .end_s = first + 0.25, .n_tokens = 5, .n_prompt = 10, .n_cached = 4};
    }
    results[3].outcome = KN_LOAD_OUTCOME_FAILED;
    snprintf(results[3].error, sizeof results[3].error, "HTTP 503");
    results[4].outcome = KN_LOAD_OUTCOME_UNSENT;
    results[5].n_tokens = 1;
    results[5].last_s = results[5].first_s;
}

static double at(const json_t *o, const char *key, const char *inner)
{
    const json_t *value = json_object_get(o, key);
    return json_number_value(inner ? json_object_get(value, inner) : value);
}

static bool near(double a, double b)
{
    return fabs(a - b) < 1e-6;
}

static void test_sums(void **state)
{
    (void)state;
    struct kn_load_request requests[N];
    struct kn_load_result results[N];
    struct kn_load_work work = {.requests = requests, .n = N};
    struct kn_serve_args args = {.slo_ttft_ms = 250, .slo_tpot_ms = 60};
    struct kn_serve_total t = {0};
    make(requests, results);
    kn_serve_total_add(&t, &args, &work, results, KN_LOAD_NONE, 8);
    json_t *o = kn_serve_total_json(&t);
    assert_true(at(o, "completed", NULL) == 4 && at(o, "failed", NULL) == 1 && at(o, "unsent", NULL) == 1);
    assert_string_equal(json_string_value(json_object_get(o, "error")), "HTTP 503");
    assert_true(near(at(o, "ttft_ms", "p50"), 200) && near(at(o, "ttft_ms", "p99"), 600) && near(at(o, "ttft_ms", "mean"), 300));
    assert_true(near(at(o, "tpot_ms", "p50"), 50) && near(at(o, "tpot_ms", "max"), 50)); /* of the three answers with several tokens */
    assert_int_equal(t.tpot.n, 3);
    assert_true(near(at(o, "e2e_ms", "p50"), 450));
    assert_true(near(at(o, "tokens_out", NULL), 16) && near(at(o, "tokens_out_s", NULL), 2) && near(at(o, "tokens_prompt", NULL), 40));
    assert_true(near(at(o, "requests_s", NULL), 0.5) && near(at(o, "goodput_s", NULL), 0.25)); /* the first two were in time */
    assert_true(near(at(o, "late_ms", "p99"), 1));
    json_decref(o);
    kn_serve_total_add(&t, &args, &work, results, KN_LOAD_NONE, 8); /* a second run */
    assert_true(t.n_completed == 8 && t.n_runs == 2 && near(t.seconds, 16) && near(kn_serve_total_speed(&t), 2) && near(t.speeds[1], 2));
    kn_serve_total_fini(&t);
}

static void test_groups_and_goals(void **state)
{
    (void)state;
    struct kn_load_request requests[N];
    struct kn_load_result results[N];
    struct kn_load_work work = {.requests = requests, .n = N};
    struct kn_serve_args args = {.slo_tpot_ms = 49};
    struct kn_serve_total t = {0};
    make(requests, results);
    kn_serve_total_add(&t, &args, &work, results, 1, 4); /* the second, fourth and sixth */
    assert_true(t.n_completed == 2 && t.n_failed == 1 && t.n_unsent == 0);
    assert_int_equal(t.n_good, 1); /* one token has no time per token to miss */
    kn_serve_total_fini(&t);
}

/* One request a second, served one after the other in serve_s each. */
static bool saturated(uint32_t n, double serve_s, uint32_t n_clients)
{
    enum { MOST = 64 };
    struct kn_load_request requests[MOST] = {0};
    struct kn_load_result results[MOST] = {0};
    struct kn_load_work work = {.requests = requests, .n = n};
    struct kn_serve_args args = {.n_clients = n_clients};
    struct kn_serve_total t = {0};
    double free_s = 0;
    for (uint32_t i = 0; i < n; i++) {
        double begin = free_s > i ? free_s : i;
        free_s = begin + serve_s;
        results[i] = (struct kn_load_result){.outcome = KN_LOAD_OUTCOME_COMPLETED, .due_s = i, .sent_s = i, .first_s = begin, .last_s = free_s, .end_s = free_s,
                                             .n_tokens = 2};
    }
    kn_serve_total_add(&t, &args, &work, results, KN_LOAD_NONE, free_s);
    bool is = kn_serve_total_saturated(&t);
    json_t *o = kn_serve_total_json(&t), *said = json_object_get(o, "saturated");
    assert_true(n_clients ? json_is_null(said) : json_is_true(said) == is);
    json_decref(o);
    kn_serve_total_fini(&t);
    return is;
}

static void test_saturation(void **state)
{
    (void)state;
    assert_false(saturated(50, 0.1, 0));
    assert_false(saturated(50, 0.99, 0)); /* always one under way, never two */
    assert_true(saturated(50, 1.1, 0));   /* 10 % too slow */
    assert_true(saturated(50, 4, 0));
    assert_false(saturated(9, 4, 0));     /* too few to tell */
    assert_false(saturated(50, 4, 3));    /* a closed loop has no arrivals */
}

static void test_targets(void **state)
{
    (void)state;
    const struct { double is, least, most; bool met; } cases[] = {
        {1.3, 1.3, 0, true}, {1.29, 1.3, 0, false}, {1.1, 0, 1.1, true}, {1.11, 0, 1.1, false}, {0, 0, 1.1, false},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        json_t *o = kn_serve_target("x", cases[i].is, cases[i].least, cases[i].most);
        assert_int_equal(json_is_true(json_object_get(o, "met")), cases[i].met);
        json_decref(o);
    }
    json_t *o = kn_serve_target("x", 1, 0, 0);
    assert_null(json_object_get(o, "met"));
    json_decref(o);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_sums),
        cmocka_unit_test(test_groups_and_goals),
        cmocka_unit_test(test_saturation),
        cmocka_unit_test(test_targets),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
