/* SPDX-License-Identifier: Apache-2.0 */
/* From head to handler: routes, keys, limits on head and body, malformed requests. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>
#include "support/http_ask.h"

static void unknown_routes_and_methods(void **state)
{
    static struct bed bed;
    char value[512];
    (void)state;
    bed_open(&bed, &(struct kn_server_opts){0});
    check(&bed, "GET /nothing " H "\r\n", 404, "POST /echo");
    check(&bed, "GET /health/ " H "\r\n", 404, "invalid_request_error");
    check(&bed, "GET /health%00x " H "\r\n", 404, NULL);
    check(&bed, "GET /a\"b\\%07%ff " H "\r\n", 404, "/a\\\"b\\\\\\u0007\xef\xbf\xbd");
    struct peer_answer a = ask(&bed, "GET /echo " H "\r\n");
    assert_int_equal(a.status, 405);
    assert_string_equal(peer_header(&a, "Allow", value), "POST, OPTIONS");
    peer_answer_fini(&a);
    a = ask(&bed, "DELETE /health " H "\r\n");
    assert_int_equal(a.status, 405);
    assert_string_equal(peer_header(&a, "Allow", value), "GET, HEAD, OPTIONS");
    peer_answer_fini(&a);
    a = ask(&bed, "OPTIONS /echo " H "Origin: http://localhost:3000\r\nAccess-Control-Request-Method: POST\r\n\r\n");
    assert_int_equal(a.status, 204);
    assert_null(peer_header(&a, "Access-Control-Allow-Methods", value)); /* no origin is allowed */
    peer_answer_fini(&a);
    assert_int_equal(atomic_load(&bed.metrics.responses[KNI_ROUTE_OTHER][4]), 4);
    bed_close(&bed);
}

static void origins_are_allowed(void **state)
{
    static struct bed bed;
    char value[512];
    (void)state;
    bed_open(&bed, &(struct kn_server_opts){.allow_origin = "https://a.example"});
    struct peer_answer a = ask(&bed, "GET /health " H "\r\n");
    assert_string_equal(peer_header(&a, "Access-Control-Allow-Origin", value), "https://a.example");
    assert_string_equal(peer_header(&a, "Vary", value), "Origin");
    peer_answer_fini(&a);
    a = ask(&bed, "OPTIONS /echo " H "Origin: https://a.example\r\nAccess-Control-Request-Method: POST\r\n\r\n");
    assert_int_equal(a.status, 204);
    assert_string_equal(peer_header(&a, "Access-Control-Allow-Methods", value), "POST, OPTIONS");
    assert_non_null(strstr(peer_header(&a, "Access-Control-Allow-Headers", value), "Authorization"));
    peer_answer_fini(&a);
    bed_close(&bed);
}

static void keys_open_doors(void **state)
{
    static struct bed bed;
    struct kn_server_key keys[3] = {{"sk-one", "one", "salt-one"}, {"sk-two", NULL, NULL}, {"sk-three", "three", NULL}};
    char value[512];
    (void)state;
    bed_open(&bed, &(struct kn_server_opts){.keys = keys, .n_keys = 3});
    struct peer_answer a = ask(&bed, "GET /who " H "\r\n");
    assert_int_equal(a.status, 401);
    assert_string_equal(peer_header(&a, "WWW-Authenticate", value), "Bearer");
    assert_non_null(strstr(a.body, "\"authentication_error\""));
    peer_answer_fini(&a);
    check(&bed, "GET /health " H "\r\n", 200, "fine");
    check(&bed, "GET /who " H "Authorization: Bearer sk-on\r\n\r\n", 401, "invalid_api_key");
    check(&bed, "GET /who " H "Authorization: Bearer sk-one2\r\n\r\n", 401, NULL);
    check(&bed, "GET /who " H "Authorization: Basic sk-one\r\n\r\n", 401, NULL);
    check(&bed, "GET /who " H "Authorization: \r\n\r\n", 401, NULL);
    check(&bed, "GET /who " H "Authorization: Bearer sk-one\r\n\r\n", 200, "one/salt-one");
    check(&bed, "GET /who " H "authorization: bearer   sk-two\r\n\r\n", 200, "key2/key2");
    check(&bed, "GET /who " H "X-Api-Key: sk-three\r\n\r\n", 200, "three/three");
    /* refused with a body: the body is taken off the wire, and the connection is good for the next request */
    struct peer peer;
    assert_true(peer_try_open(&peer, kni_http_port(bed.http), 0));
    assert_true(peer_say(&peer, "POST /echo " H "Content-Length: 4\r\n\r\nGET GET /health " H "\r\n"));
    assert_true(peer_take_answer(&peer, &a, false));
    assert_int_equal(a.status, 401);
    peer_answer_fini(&a);
    assert_true(peer_take_answer(&peer, &a, false));
    assert_int_equal(a.status, 200);
    peer_answer_fini(&a);
    peer_close(&peer);
    bed_close(&bed);
    bed_open(&bed, &(struct kn_server_opts){0});
    check(&bed, "GET /who " H "Authorization: Bearer whatever\r\n\r\n", 200, "/");
    bed_close(&bed);
}

static void limits_on_bodies(void **state)
{
    static struct bed bed;
    struct peer peer;
    struct peer_answer a;
    char *body = malloc(100001), head[200];
    (void)state;
    memset(body, 'x', 100000);
    body[100000] = 0;
    bed_open(&bed, &(struct kn_server_opts){.max_body_bytes = 10000});
    check(&bed, "POST /echo " H "Content-Length: 10001\r\n\r\n", 413, "10000 bytes");
    check(&bed, "POST /echo " H "Content-Length: 99999999999999999999999\r\n\r\n", 413, NULL);
    check(&bed, "POST /echo " H "Content-Length: 18446744073709551615\r\n\r\n", 413, NULL);
    check(&bed, "POST /echo " H "Content-Length: -1\r\n\r\n", 400, NULL);
    check(&bed, "POST /echo " H "Content-Length: 0x10\r\n\r\n", 400, NULL);
    check(&bed, "POST /echo " H "Content-Length: 1\r\nContent-Length: 2\r\n\r\nxy", 400, "bad_length");
    check(&bed, "POST /echo " H "Content-Length: 1\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n", 400, "bad_length");
    check(&bed, "POST /echo " H "Transfer-Encoding: gzip, chunked\r\n\r\n0\r\n\r\n", 501, "gzip, chunked");
    check(&bed, "POST /echo " H "Transfer-Encoding: chunked\r\n\r\nzz\r\n", 400, NULL);
    /* exactly as much as is allowed */
    snprintf(head, sizeof head, "POST /echo " H "Content-Length: 10000\r\n\r\n");
    assert_true(peer_try_open(&peer, kni_http_port(bed.http), 0));
    assert_true(peer_say(&peer, head) && peer_say_bytes(&peer, body, 10000) && peer_take_answer(&peer, &a, false));
    assert_int_equal(a.status, 200);
    assert_int_equal(a.n_body, 10000);
    peer_answer_fini(&a);
    /* and more, both ways, by clients that write all before they read: the answer reaches them */
    for (int chunked = 0; chunked < 2; chunked++) {
        peer_close(&peer);
        assert_true(peer_try_open(&peer, kni_http_port(bed.http), 0));
        if (chunked)
            assert_true(peer_say(&peer, "POST /echo " H "Transfer-Encoding: chunked\r\n\r\n186a0\r\n"));
        else
            assert_true(peer_say(&peer, "POST /echo " H "Content-Length: 100000\r\n\r\n"));
        assert_true(peer_say_bytes(&peer, body, 100000));
        assert_true(peer_take_answer(&peer, &a, false));
        assert_int_equal(a.status, 413);
        assert_non_null(strstr(a.body, "body_too_large"));
        assert_non_null(strstr(a.head, "Connection: close"));
        peer_answer_fini(&a);
        assert_true(peer_ends(&peer));
    }
    peer_close(&peer);
    assert_int_equal(atomic_load(&bed.metrics.disconnects), 0);
    bed_close(&bed);
    free(body);
}

static void limits_on_heads(void **state)
{
    static struct bed bed;
    static const size_t sizes[] = {2000, 5000, 30000, 60000, 200000};
    char *text = malloc(300000);
    (void)state;
    bed_open(&bed, &(struct kn_server_opts){.max_header_bytes = 4096});
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
        size_t n = sizes[i];
        int k = snprintf(text, 300000, "GET /health " H "X-Long: ");
        memset(text + k, 'y', n);
        snprintf(text + k + n, 100, "\r\n\r\n");
        check(&bed, text, n < 4000 ? 200 : 431, NULL);
        k = snprintf(text, 300000, "GET /health?");
        memset(text + k, 'y', n);
        snprintf(text + k + n, 100, " " H "\r\n");
        struct peer_answer a = ask(&bed, text);
        assert_true(n < 4000 ? a.status == 200 : a.status == 414 || a.status == 431);
        peer_answer_fini(&a);
        k = snprintf(text, 300000, "GET /"); /* the same in the path */
        memset(text + k, 'y', n);
        snprintf(text + k + n, 100, " " H "\r\n");
        check(&bed, text, n < 4000 ? 404 : 414, NULL);
    }
    int k = snprintf(text, 300000, "GET /health " H); /* many small ones */
    for (int i = 0; i < 2000; i++)
        k += snprintf(text + k, 300000 - (size_t)k, "X-%d: z\r\n", i);
    snprintf(text + k, 10, "\r\n");
    check(&bed, text, 431, NULL);
    bed_close(&bed);
    bed_open(&bed, &(struct kn_server_opts){.max_header_bytes = 32768}); /* a head as large as may be leaves memory for answers */
    static const size_t n_answer[] = {4, BED_BIG_BYTES, 16, 8000};
    static const char *const asked[] = {"GET /health", "GET /big", "GET /fail", "POST /echo"};
    for (size_t i = 0; i < sizeof asked / sizeof *asked; i++) {
        k = snprintf(text, 300000, "%s " H "Content-Length: %d\r\n", asked[i], i == 3 ? 8000 : 0);
        while (k < 32600)
            k += snprintf(text + k, 300000 - (size_t)k, "X-%d: %080d\r\n", k, k);
        k += snprintf(text + k, 300000 - (size_t)k, "\r\n");
        memset(text + k, 'b', i == 3 ? 8000 : 0);
        text[k + (i == 3 ? 8000 : 0)] = 0;
        struct peer_answer a = ask(&bed, text);
        assert_int_equal(a.status, 200);
        assert_int_equal(a.n_body, n_answer[i]);
        assert_int_equal(a.cut, i == 2);
        peer_answer_fini(&a);
    }
    free(text);
    bed_close(&bed);
}

static void malformed_requests(void **state)
{
    static const char *const bad[] = {
        "GARBAGE\r\n\r\n", "GET\r\n\r\n", "GET /health HTTP/9.9\r\nHost: localhost\r\n\r\n", "GET /health HTTP/x\r\n\r\n", "\x16\x03\x01\x02\x00\x01\r\n\r\n",
        "GET /health " H "No colon here\r\n\r\n", "POST /echo " H "Content-Length: 5\r\n\r\nab", "GET /health", "POST /echo " H "Transfer-Encoding: chunked\r\n\r\n5\r\nab",
        "POST /echo " H "Transfer-Encoding: chunked\r\n\r\nffffffffffffffffff\r\nab", "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", "\r\n\r\n\r\n",
    };
    static struct bed bed;
    (void)state;
    bed_open(&bed, &(struct kn_server_opts){0});
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        struct peer peer;
        struct peer_answer a;
        assert_true(peer_try_open(&peer, kni_http_port(bed.http), 0));
        assert_true(peer_say(&peer, bad[i]));
        shutdown(peer.fd, SHUT_WR);
        while (peer_take_answer(&peer, &a, false)) { /* an error or the end, never a success */
            if (a.status < 400 || a.status > 505)
                fail_msg("%s got %u", bad[i], a.status);
            peer_answer_fini(&a);
        }
        assert_true(peer_ends(&peer));
        peer_close(&peer);
        check(&bed, "GET /health " H "\r\n", 200, "fine");
    }
    bed_close(&bed);
}

/* Exactly one answer, an error object of that status and code, and the end of the connection. */
static void check_refused(struct bed *bed, const char *lines, unsigned status, const char *code)
{
    char text[1000], value[512];
    for (int half = 0; half < 2; half++) {
        struct peer peer;
        struct peer_answer a;
        snprintf(text, sizeof text, "POST /echo " H "%s\r\nhello", lines);
        assert_true(peer_try_open(&peer, kni_http_port(bed->http), 0));
        assert_true(peer_say(&peer, text));
        if (half)
            shutdown(peer.fd, SHUT_WR);
        assert_true(peer_take_answer(&peer, &a, false));
        if (a.status != status || !strstr(a.body, code) || strncmp(a.body, "{\"error\": {\"message\"", 20))
            fail_msg("%s got %s%s", lines, a.head, a.body);
        assert_string_equal(peer_header(&a, "Content-Type", value), "application/json");
        assert_string_equal(peer_header(&a, "Connection", value), "close");
        peer_answer_fini(&a);
        assert_true(peer_ends(&peer)); /* no second head */
        peer_close(&peer);
    }
}

static void malformed_lengths(void **state)
{
    static const char *const bad[] = {"abc", "-5", "+5", "0x5", "5,5", "5, 5", "5 5", "", "5;x", "5_0", "\xef\xbc\x95", "5.0", "5e0", "--5", "''", "NaN"};
    static const char *const lines[] = {"Content-Length: 5\r\nContent-Length: 4\r\n", "Content-Length: 5\r\nContent-Length: 5\r\n",
                                        "Content-Length: 5\r\nContent-Length: abc\r\n", "Content-Length: abc\r\nContent-Length: 5\r\n",
                                        "Content-Length: 5\r\nTransfer-Encoding: chunked\r\n", "Content-Length: abc\r\nTransfer-Encoding: chunked\r\n",
                                        "Transfer-Encoding: identity\r\nContent-Length: 5\r\n",
                                        "Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n"};
    static const char *const codings[] = {"gzip", "gzip, chunked", "chunked, gzip", "identity", "", "xchunked", "chunked;q=1", "chunked, chunked"};
    static struct bed bed;
    char line[200];
    uint64_t n = 0;
    (void)state;
    bed_open(&bed, &(struct kn_server_opts){0});
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++, n += 2) {
        snprintf(line, sizeof line, "Content-Length: %s\r\n", bad[i]);
        check_refused(&bed, line, 400, "bad_length");
    }
    for (size_t i = 0; i < sizeof lines / sizeof *lines; i++, n += 2)
        check_refused(&bed, lines[i], 400, "bad_length");
    assert_int_equal(atomic_load(&bed.metrics.responses[KNI_ROUTE_OTHER][4]), n);
    check_refused(&bed, "Content-Length: 99999999999999999999999\r\n", 413, "body_too_large");
    check_refused(&bed, "Content-Length: 18446744073709551615\r\n", 413, "body_too_large");
    for (size_t i = 0; i < sizeof codings / sizeof *codings; i++) {
        snprintf(line, sizeof line, "Transfer-Encoding: %s\r\n", codings[i]);
        check_refused(&bed, line, 501, "unsupported_transfer_encoding");
    }
    assert_int_equal(atomic_load(&bed.n_echoed), 0);
    check(&bed, "POST /echo " H "Content-Length: 0000000005\r\n\r\nhello", 200, "hello");
    check(&bed, "POST /echo " H "Transfer-Encoding: CHUNKED\r\n\r\n5\r\nhello\r\n0\r\n\r\n", 200, "hello");
    struct peer peer; /* not a connection's first */
    struct peer_answer a;
    assert_true(peer_try_open(&peer, kni_http_port(bed.http), 0));
    assert_true(peer_say(&peer, "GET /health " H "\r\nPOST /echo " H "Content-Length: x\r\n\r\n"));
    for (int i = 0; i < 2; i++) {
        assert_true(peer_take_answer(&peer, &a, false));
        assert_int_equal(a.status, i ? 400 : 200);
        peer_answer_fini(&a);
    }
    assert_true(peer_ends(&peer));
    peer_close(&peer);
    bed_close(&bed);
    assert_int_equal(kni_alloc_get_stats(KNI_ALLOC_TAG_MISC).current_bytes, 0);
}

/* Bodies that are coded, and expectations: refused by name; the connection stays where the body's end is known. */
static void codings_of_bodies(void **state)
{
    static const struct { const char *line; const char *named; } bad[] = {
        {"Content-Encoding: gzip\r\n", "\\\"gzip\\\""}, {"content-encoding: GZIP\r\n", "\\\"GZIP\\\""}, {"Content-Encoding: identity, gzip\r\n", "\\\"gzip\\\""},
        {"Content-Encoding: br,gzip\r\n", "\\\"br\\\""}, {"Content-Encoding: identity\r\nContent-Encoding: zstd\r\n", "\\\"zstd\\\""},
        {"Content-Encoding: deflate;q=1\r\n", "deflate"}, {"Content-Encoding: , ,x-gzip\r\n", "x-gzip"}, {"Content-Encoding: identityx\r\n", "identityx"},
        {"Content-Encoding: aws-chunked\r\n", "aws-chunked"}, {"Content-Encoding: ;\r\n", ";"}};
    static const char *const good[] = {"Content-Encoding: identity\r\n", "Content-Encoding: IDENTITY\r\n", "Content-Encoding:\r\n", "Content-Encoding: identity, Identity ,\r\n"};
    static struct bed bed;
    char text[500];
    (void)state;
    bed_open(&bed, &(struct kn_server_opts){0});
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        struct peer peer;
        struct peer_answer a;
        snprintf(text, sizeof text, "POST /echo " H "%sContent-Length: 5\r\n\r\nhelloPOST /echo " H "%sTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n0\r\n\r\n",
                 bad[i].line, bad[i].line);
        assert_true(peer_try_open(&peer, kni_http_port(bed.http), 0));
        assert_true(peer_say(&peer, text));
        for (int k = 0; k < 2; k++) {
            assert_true(peer_take_answer(&peer, &a, false));
            if (a.status != 415 || !strstr(a.body, "unsupported_content_encoding") || !strstr(a.body, bad[i].named))
                fail_msg("%s got %u %s", bad[i].line, a.status, a.body);
            peer_answer_fini(&a);
        }
        peer_close(&peer);
    }
    assert_int_equal(atomic_load(&bed.n_echoed), 0);
    for (size_t i = 0; i < sizeof good / sizeof *good; i++) {
        snprintf(text, sizeof text, "POST /echo " H "%sContent-Length: 5\r\n\r\nhello", good[i]);
        check(&bed, text, 200, "hello");
    }
    check(&bed, "GET /health " H "Content-Encoding: gzip\r\n\r\n", 200, "fine"); /* no body */
    static const char *const hopes[] = {"more", "100-continue, more", "", "100-continued"};
    for (size_t i = 0; i < 4; i++) {
        snprintf(text, sizeof text, "POST /echo " H "Expect: %s\r\nContent-Length: 5\r\n\r\nhello", hopes[i]);
        check(&bed, text, 417, "unsupported_expectation");
    }
    bed_close(&bed);
}

#define T(test) cmocka_unit_test_teardown(test, bed_cleanup)

int main(void)
{
    const struct CMUnitTest tests[] = {
        T(unknown_routes_and_methods), T(origins_are_allowed), T(keys_open_doors), T(limits_on_bodies),
        T(limits_on_heads), T(malformed_requests), T(malformed_lengths), T(codings_of_bodies),
    };
    return cmocka_run_group_tests_name("http_request", tests, NULL, NULL);
}
