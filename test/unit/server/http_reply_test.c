/* SPDX-License-Identifier: Apache-2.0 */
/* Answers: error objects, pieces that leave at once, and whose end is told exactly once. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>
#include <jansson.h>

#include "base/alloc.h"
#include "support/http_ask.h"

/* The next piece is made only after the last one was heard, so a piece that is held back fails. */
static void pieces_leave_at_once(void **state)
{
    static struct bed bed;
    struct peer peer;
    struct peer_answer a;
    char value[512], text[64], want[64];
    (void)state;
    bed_open(&bed, &(struct kn_server_opts){0});
    assert_true(peer_try_open(&peer, kni_http_port(bed.http), 0));
    assert_true(peer_say(&peer, "GET /count " H "\r\n"));
    assert_true(peer_take_head(&peer, &a)); /* the head as well */
    assert_string_equal(peer_header(&a, "Content-Type", value), "text/event-stream");
    assert_string_equal(peer_header(&a, "X-Accel-Buffering", value), "no");
    assert_string_equal(peer_header(&a, "Transfer-Encoding", value), "chunked");
    for (int i = 0; i < BED_COUNT; i++) {
        assert_int_equal(peer.n, 0);
        sem_post(&bed.go);
        assert_true(peer_take_line(&peer, text, sizeof text) && peer_take_line(&peer, text, sizeof text));
        snprintf(want, sizeof want, "piece %d\n", i);
        assert_string_equal(text, want);
    }
    sem_post(&bed.go);
    assert_true(peer_take_line(&peer, text, sizeof text));
    assert_string_equal(text, "0");
    assert_true(peer_take_line(&peer, text, sizeof text));
    peer_answer_fini(&a);
    assert_true(peer_say(&peer, "GET /health " H "\r\n") && peer_take_answer(&peer, &a, false)); /* and it goes on */
    assert_int_equal(a.status, 200);
    peer_answer_fini(&a);
    peer_close(&peer);
    bed_wait(&bed.n_closed, 1);
    bed_close(&bed);
    assert_int_equal(atomic_load(&bed.n_closed), 1);
}

static void answers_are_closed_once(void **state)
{
    static struct bed bed;
    struct peer peer;
    struct peer_answer a;
    (void)state;
    bed_open(&bed, &(struct kn_server_opts){0});
    a = ask(&bed, "HEAD /count " H "\r\n"); /* never read from */
    assert_int_equal(a.status, 200);
    peer_answer_fini(&a);
    bed_wait(&bed.n_closed, 1);
    assert_true(peer_try_open(&peer, kni_http_port(bed.http), 0)); /* gives up in the middle */
    assert_true(peer_say(&peer, "GET /fail " H "\r\n") && peer_take_answer(&peer, &a, false));
    assert_true(a.cut);
    peer_answer_fini(&a);
    assert_true(peer_ends(&peer));
    peer_close(&peer);
    bed_wait(&bed.n_closed, 2);
    uint64_t before = atomic_load(&bed.metrics.disconnects);
    for (int reset = 0; reset < 2; reset++) { /* the client goes in the middle */
        assert_true(peer_try_open(&peer, kni_http_port(bed.http), 0));
        assert_true(peer_say(&peer, "GET /flood " H "\r\n") && peer_take_head(&peer, &a));
        if (reset)
            peer_reset(&peer);
        else
            peer_close(&peer);
        bed_wait(&bed.n_closed, 3 + (unsigned)reset);
    }
    bed_wait64(&bed.metrics.disconnects, before + 2);
    assert_true(peer_try_open(&peer, kni_http_port(bed.http), 0)); /* the server closes in the middle */
    assert_true(peer_say(&peer, "GET /flood " H "\r\n") && peer_take_head(&peer, &a));
    bed_close(&bed);
    peer_close(&peer);
    assert_int_equal(atomic_load(&bed.n_closed), 5);
    assert_int_equal(atomic_load(&bed.n_opened), 5);
    assert_int_equal(atomic_load(&bed.metrics.n_connections), 0);
}

static void errors_are_json(void **state)
{
    static const struct { unsigned status; const char *type; } types[] = {
        {400, "invalid_request_error"}, {404, "invalid_request_error"}, {405, "invalid_request_error"}, {413, "invalid_request_error"},
        {401, "authentication_error"}, {429, "rate_limit_error"}, {500, "server_error"}, {503, "server_error"}};
    struct kni_http_reply reply;
    char long_text[3000], all[256];
    (void)state;
    for (size_t i = 0; i < sizeof types / sizeof *types; i++) {
        kni_http_error(&reply, types[i].status, i & 1 ? "messages[0]" : NULL, i & 2 ? "some_code" : NULL, "it %s", "failed");
        json_t *root = json_loadb(reply.body, reply.n_body, 0, NULL), *error = json_object_get(root, "error");
        assert_non_null(root);
        assert_int_equal(reply.status, types[i].status);
        assert_string_equal(json_string_value(json_object_get(error, "type")), types[i].type);
        assert_string_equal(json_string_value(json_object_get(error, "message")), "it failed");
        assert_int_equal(json_is_null(json_object_get(error, "param")), !(i & 1));
        assert_int_equal(json_is_null(json_object_get(error, "code")), !(i & 2));
        json_decref(root);
        kni_free(reply.body);
    }
    for (int c = 1; c < 256; c++)
        all[c - 1] = (char)c;
    all[255] = 0;
    memset(long_text, '\x01', sizeof long_text - 1);
    long_text[sizeof long_text - 1] = 0;
    const char *texts[] = {all, long_text, "\xe2\x82\xac \xf0\x9f\x98\x80 ok", "\xc0\x80 \xed\xa0\x80 \xf4\x90\x80\x80 \xe0\x80\x80 \xf0\x80\x80\x80 \xe2\x82", ""};
    for (size_t i = 0; i < sizeof texts / sizeof *texts; i++) {
        kni_http_error(&reply, 400, texts[i], texts[i], "%s", texts[i]);
        json_t *root = json_loadb(reply.body, reply.n_body, 0, NULL);
        assert_non_null(root);
        if (i == 2)
            assert_string_equal(json_string_value(json_object_get(json_object_get(root, "error"), "message")), texts[i]);
        json_decref(root);
        kni_free(reply.body);
    }
    kni_alloc_fault_arm(1, false);
    kni_http_error(&reply, 400, NULL, NULL, "x");
    kni_alloc_fault_arm(0, false);
    assert_null(reply.body);
    assert_int_equal(reply.status, 400);
}

#define T(test) cmocka_unit_test_teardown(test, bed_cleanup)

int main(void)
{
    const struct CMUnitTest tests[] = {
        T(pieces_leave_at_once), T(answers_are_closed_once), T(errors_are_json),
    };
    return cmocka_run_group_tests_name("http_reply", tests, NULL, NULL);
}
