/* SPDX-License-Identifier: Apache-2.0 */
/* The load generator against a server with known delays. Only lower bounds of times are asserted: a busy machine makes everything later. */
#include "../../../bench/load.c" /* the program is no library; first, since cmocka has a macro of the name fail */
#include "../../../bench/curl_open.c"
#include "../../../bench/load_sse.c"
#include "../../../bench/load_stats.c"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "support/fake_chat_server.h"

enum { MAX_REQUESTS = 256 };

/* One run: what was asked, and what came of it. */
struct bed {
    struct kn_load_request requests[MAX_REQUESTS];
    struct kn_load_result results[MAX_REQUESTS];
    struct kn_load_plan plan;
    unsigned n_tokens;
    double seconds;
    char answers[256];
    uint32_t stop_at; /* ticks */
    uint32_t n_ticks;
};

static char *make_body(void *user, uint32_t index, const char *answer)
{
    struct bed *bed = user;
    char *text = malloc(128);
    if (answer)
        snprintf(bed->answers + strlen(bed->answers), sizeof bed->answers - strlen(bed->answers), "[%u after %s]", index, answer);
    snprintf(text, 128, "{\"max_tokens\":%u,\"index\":%u}", bed->n_tokens, index);
    return text;
}

static bool count_ticks(void *user, uint32_t n_ended, uint32_t n_under_way)
{
    struct bed *bed = user;
    (void)n_ended, (void)n_under_way;
    return ++bed->n_ticks != bed->stop_at;
}

static struct bed *make_bed(const struct fake_chat *server, uint32_t n, double gap_s, unsigned n_tokens)
{
    struct bed *bed = calloc(1, sizeof *bed);
    for (uint32_t i = 0; i < n; i++)
        bed->requests[i] = (struct kn_load_request){.at_s = i * gap_s, .next = KN_LOAD_NONE};
    bed->n_tokens = n_tokens;
    bed->plan = (struct kn_load_plan){.url = server->url, .requests = bed->requests, .n_requests = n, .timeout_ms = 60000, .body = make_body,
                                      .tick = count_ticks, .user = bed};
    return bed;
}

static void run_bed(struct bed *bed)
{
    const char *why;
    assert_true(kn_load_run(&bed->plan, bed->results, &bed->seconds, &why));
}

/* A server that pauses for a second is charged for everyone who would have come meanwhile. */
static void test_stall_shows_in_percentiles(void **state)
{
    (void)state;
    enum { N = 100 };
    struct fake_chat server = {.stall_after_ms = 500, .stall_ms = 1000};
    fake_chat_open(&server);
    struct bed *bed = make_bed(&server, N, 0.02, 2);
    run_bed(bed);
    struct kn_samples ttft = {0};
    int n_slow = 0;
    for (int i = 0; i < N; i++) {
        const struct kn_load_result *r = &bed->results[i];
        assert_int_equal(r->outcome, KN_LOAD_OUTCOME_COMPLETED);
        assert_true(r->due_s == i * 0.02);
        assert_true(r->sent_s >= r->due_s && r->first_s >= r->sent_s && r->last_s >= r->first_s && r->end_s >= r->last_s);
        kn_samples_add(&ttft, r->first_s - r->due_s);
        n_slow += r->first_s - r->due_s > 0.25;
    }
    assert_true(n_slow >= 20); /* 37 came in the first 750 ms of the pause; a generator that waits for answers would see one */
    assert_true(kn_samples_quantile(&ttft, 0.99) > 0.6);
    assert_true(kn_samples_quantile(&ttft, 0.75) > 0.25);
    assert_int_equal(atomic_load(&server.n_requests), N);
    kn_samples_fini(&ttft);
    free(bed);
    fake_chat_close(&server);
}

/* Arrivals do not wait for answers. */
static void test_open_loop_overlaps(void **state)
{
    (void)state;
    struct fake_chat server = {.delay_ms = 600};
    fake_chat_open(&server);
    struct bed *bed = make_bed(&server, 10, 0.005, 1);
    run_bed(bed);
    assert_int_equal(atomic_load(&server.n_most), 10);
    for (int i = 0; i < 10; i++) {
        assert_int_equal(bed->results[i].outcome, KN_LOAD_OUTCOME_COMPLETED);
        assert_true(bed->results[i].first_s - bed->results[i].due_s >= 0.6);
    }
    free(bed);
    fake_chat_close(&server);
}

static void test_closed_loop_keeps_clients_busy(void **state)
{
    (void)state;
    struct fake_chat server = {.delay_ms = 20};
    fake_chat_open(&server);
    struct bed *bed = make_bed(&server, 30, 0, 3);
    bed->plan.n_clients = 3;
    run_bed(bed);
    assert_true(bed->seconds >= 10 * 0.02);
    int most = 0;
    for (int i = 0; i < 30; i++) {
        const struct kn_load_result *r = &bed->results[i];
        int n_now = 0;
        assert_int_equal(r->outcome, KN_LOAD_OUTCOME_COMPLETED);
        assert_true(r->due_s <= r->sent_s);
        for (int j = 0; j < 30; j++)
            n_now += bed->results[j].sent_s <= r->sent_s && r->sent_s < bed->results[j].end_s;
        most = n_now > most ? n_now : most;
    }
    assert_int_equal(most, 3);
    assert_true(atomic_load(&server.n_connections) <= 6); /* kept and used again */
    free(bed);
    fake_chat_close(&server);
}

static void test_tokens_are_timed_and_counted(void **state)
{
    (void)state;
    struct fake_chat server = {.delay_ms = 100, .piece_ms = 30};
    fake_chat_open(&server);
    for (int with_usage = 0; with_usage < 2; with_usage++) {
        server.no_usage = !with_usage;
        struct bed *bed = make_bed(&server, 1, 0, 6);
        run_bed(bed);
        const struct kn_load_result *r = &bed->results[0];
        assert_int_equal(r->outcome, KN_LOAD_OUTCOME_COMPLETED);
        assert_int_equal(r->http_status, 200);
        assert_true(r->first_s >= 0.1);                   /* not the piece that only names the role */
        assert_true(r->last_s - r->first_s >= 5 * 0.029); /* six pieces; a nap may end a little early in the other clock */
        assert_int_equal(r->has_usage, with_usage);
        assert_int_equal(r->n_tokens, with_usage ? 8 : 6); /* what the server says goes before pieces counted */
        assert_int_equal(r->n_prompt, with_usage ? 21 : 0);
        assert_int_equal(r->n_cached, with_usage ? 5 : 0);
        free(bed);
    }
    fake_chat_close(&server);
}

static void test_conversations_wait_for_answers(void **state)
{
    (void)state;
    struct fake_chat server = {.delay_ms = 50};
    fake_chat_open(&server);
    struct bed *bed = make_bed(&server, 4, 0.001, 2);
    bed->requests[0].next = 1;
    bed->requests[1].follows = true;
    bed->requests[1].next = 2;
    bed->requests[2].follows = true;
    run_bed(bed);
    for (int i = 0; i < 4; i++)
        assert_int_equal(bed->results[i].outcome, KN_LOAD_OUTCOME_COMPLETED);
    assert_true(bed->results[1].due_s >= bed->results[0].end_s && bed->results[2].due_s >= bed->results[1].end_s);
    assert_true(bed->results[3].due_s == 3 * 0.001);
    assert_string_equal(bed->answers, "[1 after w0 w1 ][2 after w0 w1 ]");
    free(bed);
    fake_chat_close(&server);
}

static void check_fault(enum fake_chat_fault fault, long http_status, const char *says)
{
    struct fake_chat server = {.fault = fault};
    fake_chat_open(&server);
    struct bed *bed = make_bed(&server, 3, 0.001, 4);
    bed->requests[0].next = 1; /* a conversation whose first answer fails */
    bed->requests[1].follows = true;
    bed->plan.timeout_ms = fault == FAKE_CHAT_HANG ? 300 : 60000;
    run_bed(bed);
    assert_int_equal(bed->results[0].outcome, KN_LOAD_OUTCOME_FAILED);
    assert_int_equal(bed->results[1].outcome, KN_LOAD_OUTCOME_UNSENT);
    assert_int_equal(bed->results[2].outcome, KN_LOAD_OUTCOME_FAILED);
    assert_int_equal(bed->results[0].http_status, http_status);
    if (!strstr(bed->results[0].error, says))
        fail_msg("\"%s\" does not say \"%s\"", bed->results[0].error, says);
    free(bed);
    fake_chat_close(&server);
}

static void test_faults_are_failures_and_told(void **state)
{
    (void)state;
    check_fault(FAKE_CHAT_REFUSE, 503, "HTTP 503: the queue is full");
    check_fault(FAKE_CHAT_ERROR_EVENT, 200, "the pool burst");
    check_fault(FAKE_CHAT_GARBAGE, 200, "no JSON object: {{{");
    check_fault(FAKE_CHAT_CUT, 200, "");
    check_fault(FAKE_CHAT_HANG, 0, "imed out");
}

static void test_nobody_listens(void **state)
{
    (void)state;
    struct fake_chat server = {0};
    fake_chat_open(&server);
    fake_chat_close(&server);
    struct bed *bed = make_bed(&server, 2, 0.001, 1);
    run_bed(bed);
    for (int i = 0; i < 2; i++) {
        assert_int_equal(bed->results[i].outcome, KN_LOAD_OUTCOME_FAILED);
        assert_true(bed->results[i].error[0]);
    }
    free(bed);
}

static void test_stop_ends_what_is_under_way(void **state)
{
    (void)state;
    struct fake_chat server = {.fault = FAKE_CHAT_HANG};
    fake_chat_open(&server);
    struct bed *bed = make_bed(&server, 3, 0, 1);
    bed->requests[2].at_s = 3600;
    bed->stop_at = 1;
    run_bed(bed);
    assert_int_equal(bed->results[0].outcome, KN_LOAD_OUTCOME_FAILED);
    assert_int_equal(bed->results[1].outcome, KN_LOAD_OUTCOME_FAILED);
    assert_non_null(strstr(bed->results[0].error, "stopped"));
    assert_int_equal(bed->results[2].outcome, KN_LOAD_OUTCOME_UNSENT);
    free(bed);
    fake_chat_close(&server);
}

static void test_urls_and_keys(void **state)
{
    (void)state;
    struct fake_chat server = {0};
    fake_chat_open(&server);
    static const char *const ends[] = {"/", "/v1", "/v1/"};
    for (size_t i = 0; i < 3; i++) {
        char url[128];
        struct bed *bed = make_bed(&server, 1, 0, 1);
        snprintf(url, sizeof url, "%s%s", server.url, ends[i]);
        bed->plan.url = url;
        bed->plan.api_key = "secret";
        run_bed(bed);
        assert_int_equal(bed->results[0].outcome, KN_LOAD_OUTCOME_COMPLETED);
        free(bed);
    }
    assert_string_equal(server.bodies[0], "{\"max_tokens\":1,\"index\":0}");
    fake_chat_close(&server);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_stall_shows_in_percentiles),
        cmocka_unit_test(test_open_loop_overlaps),
        cmocka_unit_test(test_closed_loop_keeps_clients_busy),
        cmocka_unit_test(test_tokens_are_timed_and_counted),
        cmocka_unit_test(test_conversations_wait_for_answers),
        cmocka_unit_test(test_faults_are_failures_and_told),
        cmocka_unit_test(test_nobody_listens),
        cmocka_unit_test(test_stop_ends_what_is_under_way),
        cmocka_unit_test(test_urls_and_keys),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
