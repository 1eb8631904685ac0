/* SPDX-License-Identifier: Apache-2.0 */
/*
 * HTTP over real sockets: routes, keys, limits, framing, whole and pulled answers, clients that leave. Slow clients are
 * http_guard_test's.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>
#include <pthread.h>
#include <semaphore.h>
#include <signal.h>
#include <stdio.h>

#include <jansson.h>

#include "base/alloc.h"
#include "server/http.h"
#include "support/http_bed.h"

/* Asks and hears one answer on a connection of its own. */
static struct peer_answer ask(struct bed *bed, const char *text)
{
    struct peer peer;
    struct peer_answer answer;
    assert_true(peer_try_open(&peer, kni_http_port(bed->http), 0));
    assert_true(peer_say(&peer, text));
    assert_true(peer_take_answer(&peer, &answer, !strncmp(text, "HEAD ", 5)));
    peer_close(&peer);
    return answer;
}

/* As ask, for the status and a part of the body. */
static void check(struct bed *bed, const char *text, unsigned status, const char *part)
{
    struct peer_answer answer = ask(bed, text);
    if (answer.status != status || (part && !strstr(answer.body, part)))
        print_error("asked:\n%.300s\ngot:\n%s%.500s\n", text, answer.head, answer.body);
    assert_int_equal(answer.status, status);
    if (part)
        assert_non_null(strstr(answer.body, part));
    peer_answer_fini(&answer);
}

#define H "HTTP/1.1\r\nHost: x\r\n"

static void whole_answers(void **state)
{
    struct bed bed;
    char value[512];
    (void)state;
    bed_open(&bed, &(struct kn_server_opts){0});
    struct peer_answer a = ask(&bed, "POST /echo " H "Content-Length: 5\r\n\r\nhello");
    assert_int_equal(a.status, 200);
    assert_string_equal(a.body, "hello");
    assert_string_equal(peer_header(&a, "Content-Type", value), "text/plain");
    assert_string_equal(peer_header(&a, "Cache-Control", value), "no-store");
    assert_string_equal(peer_header(&a, "Access-Control-Allow-Origin", value), "*");
    assert_null(peer_header(&a, "Connection", value));
    peer_answer_fini(&a);
    check(&bed, "POST /echo " H "Transfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n4;x=y\r\ndefg\r\n0\r\nTrailer: 1\r\n\r\n", 200, "abcdefg");
    check(&bed, "POST /echo " H "\r\n", 200, "");
    check(&bed, "GET /health?a=b%20c&d " H "\r\n", 200, "fine");
    check(&bed, "GET /h%65alth " H "\r\n", 200, "fine");
    a = ask(&bed, "HEAD /health " H "\r\n");
    assert_int_equal(a.status, 200);
    assert_string_equal(peer_header(&a, "Content-Length", value), "4");
    assert_int_equal(a.n_body, 0);
    peer_answer_fini(&a);
    a = ask(&bed, "GET /big " H "\r\n");
    assert_int_equal(a.n_body, BED_BIG_BYTES);
    for (size_t i = 0; i < a.n_body; i++)
        assert_int_equal(a.body[i], 'a' + (char)(i % 23));
    peer_answer_fini(&a);
    assert_int_equal(atomic_load(&bed.metrics.responses[KNI_ROUTE_HEALTH][2]), 3);
    bed_close(&bed);
}

static void unknown_routes_and_methods(void **state)
{
    struct bed bed;
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
    a = ask(&bed, "OPTIONS /echo " H "Origin: http://b\r\nAccess-Control-Request-Method: POST\r\n\r\n");
    assert_int_equal(a.status, 204);
    assert_string_equal(peer_header(&a, "Access-Control-Allow-Methods", value), "POST, OPTIONS");
    assert_non_null(strstr(peer_header(&a, "Access-Control-Allow-Headers", value), "Authorization"));
    peer_answer_fini(&a);
    assert_int_equal(atomic_load(&bed.metrics.responses[KNI_ROUTE_OTHER][4]), 4);
    bed_close(&bed);
}

static void keys_open_doors(void **state)
{
    struct bed bed;
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
    struct bed bed;
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
    check(&bed, "POST /echo " H "Transfer-Encoding: gzip, chunked\r\n\r\n0\r\n\r\n", 400, "bad_length");
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
    struct bed bed;
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
    free(text);
    bed_close(&bed);
}

static void malformed_requests(void **state)
{
    static const char *const bad[] = {
        "GARBAGE\r\n\r\n", "GET\r\n\r\n", "GET /health HTTP/9.9\r\nHost: x\r\n\r\n", "GET /health HTTP/x\r\n\r\n", "\x16\x03\x01\x02\x00\x01\r\n\r\n",
        "GET /health " H "No colon here\r\n\r\n", "POST /echo " H "Content-Length: 5\r\n\r\nab", "GET /health", "POST /echo " H "Transfer-Encoding: chunked\r\n\r\n5\r\nab",
        "POST /echo " H "Transfer-Encoding: chunked\r\n\r\nffffffffffffffffff\r\nab", "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", "\r\n\r\n\r\n",
    };
    struct bed bed;
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

static void connections_kept_and_closed(void **state)
{
    struct bed bed;
    struct peer peer;
    struct peer_answer a;
    char value[512];
    (void)state;
    bed_open(&bed, &(struct kn_server_opts){0});
    assert_true(peer_try_open(&peer, kni_http_port(bed.http), 0));
    for (int i = 0; i < 5; i++) { /* one after the other */
        assert_true(peer_say(&peer, "POST /echo " H "Content-Length: 2\r\n\r\nhi") && peer_take_answer(&peer, &a, false));
        assert_string_equal(a.body, "hi");
        peer_answer_fini(&a);
    }
    assert_true(peer_say(&peer, "POST /echo " H "Content-Length: 1\r\n\r\n0GET /health " H "\r\nPOST /echo " H "Transfer-Encoding: chunked\r\n\r\n1\r\n2\r\n0\r\n\r\n"
                         "GET /no " H "\r\nPOST /echo " H "Content-Length: 1\r\nConnection: close\r\n\r\n4"));
    static const char *const want[] = {"0", "fine", "2", NULL, "4"};
    for (int i = 0; i < 5; i++) { /* pipelined: answered in order */
        assert_true(peer_take_answer(&peer, &a, false));
        assert_int_equal(a.status, want[i] ? 200 : 404);
        if (want[i])
            assert_string_equal(a.body, want[i]);
        peer_answer_fini(&a);
    }
    assert_true(peer_ends(&peer));
    peer_close(&peer);
    assert_true(peer_try_open(&peer, kni_http_port(bed.http), 0)); /* HTTP/1.0: by itself it ends; the stream unchunked */
    assert_true(peer_say(&peer, "GET /count HTTP/1.0\r\n\r\n"));
    for (int i = 0; i <= BED_COUNT; i++)
        sem_post(&bed.go);
    assert_true(peer_take_answer(&peer, &a, false));
    assert_null(peer_header(&a, "Transfer-Encoding", value));
    assert_string_equal(a.body, "piece 0\npiece 1\npiece 2\npiece 3\npiece 4\n");
    peer_answer_fini(&a);
    assert_true(peer_ends(&peer));
    peer_close(&peer);
    assert_true(peer_try_open(&peer, kni_http_port(bed.http), 0)); /* 100-continue: told to go on; refused: told so at once */
    assert_true(peer_say(&peer, "POST /echo " H "Expect: 100-continue\r\nContent-Length: 3\r\n\r\n") && peer_take_answer(&peer, &a, false));
    assert_int_equal(a.status, 100);
    peer_answer_fini(&a);
    assert_true(peer_say(&peer, "abcPOST /none " H "Expect: 100-continue\r\nContent-Length: 3\r\n\r\n") && peer_take_answer(&peer, &a, false));
    assert_string_equal(a.body, "abc");
    peer_answer_fini(&a);
    assert_true(peer_take_answer(&peer, &a, false));
    assert_int_equal(a.status, 404);
    peer_answer_fini(&a);
    assert_true(peer_ends(&peer));
    peer_close(&peer);
    bed_close(&bed);
}

/* The next piece is made only after the last one was heard, so a piece that is held back fails. */
static void pieces_leave_at_once(void **state)
{
    struct bed bed;
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
    struct bed bed;
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

/* A body that ends early, a reset within head and body: nobody's handler is called, nothing is left. */
static void clients_leave_while_asking(void **state)
{
    static const char *const parts[] = {"", "G", "GET /health HT", "POST /echo " H, "POST /echo " H "Content-Length: 10\r\n\r\n12345",
                                        "POST /echo " H "Transfer-Encoding: chunked\r\n\r\n8\r\n123"};
    struct bed bed;
    (void)state;
    bed_open(&bed, &(struct kn_server_opts){0});
    for (size_t i = 0; i < sizeof parts / sizeof *parts; i++)
        for (int reset = 0; reset < 2; reset++) {
            struct peer peer;
            assert_true(peer_try_open(&peer, kni_http_port(bed.http), 0));
            assert_true(peer_say(&peer, parts[i]));
            if (reset)
                peer_reset(&peer);
            else
                peer_close(&peer);
        }
    check(&bed, "GET /health " H "\r\n", 200, "fine");
    for (int i = 0; atomic_load(&bed.metrics.n_connections) && i < PEER_WAIT_S * 1000; i++)
        usleep(1000);
    assert_int_equal(atomic_load(&bed.metrics.n_connections), 0);
    assert_int_equal(atomic_load(&bed.n_echoed), 0);
    bed_close(&bed);
    assert_int_equal(kni_alloc_get_stats(KNI_ALLOC_TAG_REQUEST).current_bytes, 0);
}

static void connections_are_counted(void **state)
{
    struct bed bed;
    struct peer peers[4], more;
    struct peer_answer a;
    char value[512];
    (void)state;
    bed_open(&bed, &(struct kn_server_opts){.max_connections = 4});
    for (int i = 0; i < 4; i++) {
        assert_true(peer_try_open(&peers[i], kni_http_port(bed.http), 0));
        assert_true(peer_say(&peers[i], "GET /health " H "\r\n") && peer_take_answer(&peers[i], &a, false));
        peer_answer_fini(&a);
    }
    assert_int_equal(atomic_load(&bed.metrics.n_connections), 4);
    assert_true(peer_try_open(&more, kni_http_port(bed.http), 0));
    assert_true(peer_say(&more, "GET /health " H "\r\n") && peer_take_answer(&more, &a, false));
    assert_int_equal(a.status, 503);
    assert_string_equal(peer_header(&a, "Retry-After", value), "1");
    assert_non_null(strstr(a.body, "too_many_connections"));
    peer_answer_fini(&a);
    assert_true(peer_ends(&more));
    peer_close(&more);
    assert_int_equal(atomic_load(&bed.metrics.refused_connections), 1);
    for (int i = 0; i < 4; i++) { /* the others go on, and their places come free */
        assert_true(peer_say(&peers[i], "GET /health " H "\r\n") && peer_take_answer(&peers[i], &a, false));
        assert_int_equal(a.status, 200);
        peer_answer_fini(&a);
        peer_close(&peers[i]);
    }
    for (int i = 0; atomic_load(&bed.metrics.n_connections) && i < PEER_WAIT_S * 1000; i++)
        usleep(1000);
    check(&bed, "GET /health " H "\r\n", 200, "fine");
    struct peer *crowd = calloc(100, sizeof *crowd); /* far too many at once: some are told so, some closed unheard, none hangs */
    for (int i = 0; i < 100; i++) {
        assert_true(peer_try_open(&crowd[i], kni_http_port(bed.http), 0));
        peer_say(&crowd[i], "GET /health " H "\r\n");
    }
    unsigned n[3] = {0};
    for (int i = 0; i < 100; i++) {
        bool heard = peer_take_answer(&crowd[i], &a, false);
        assert_true(!heard || a.status == 200 || a.status == 503);
        n[!heard ? 2 : a.status == 200 ? 0 : 1]++;
        peer_answer_fini(&a);
        peer_close(&crowd[i]);
    }
    assert_true(n[0] >= 4 && n[1] >= 1);
    assert_int_equal(atomic_load(&bed.metrics.refused_connections), 1 + n[1] + n[2]);
    free(crowd);
    bed_close(&bed);
}

struct worker { struct bed *bed; unsigned n_good; };

static void *work(void *user)
{
    struct worker *worker = user;
    char text[200], want[32];
    for (int i = 0; i < 10; i++) {
        struct peer_answer a;
        struct peer peer;
        snprintf(want, sizeof want, "%p-%d", user, i);
        snprintf(text, sizeof text, "POST /echo " H "Content-Length: %zu\r\n\r\n%s", strlen(want), want);
        if (!peer_try_open(&peer, kni_http_port(worker->bed->http), 0))
            continue;
        if (peer_say(&peer, text) && peer_take_answer(&peer, &a, false)) {
            worker->n_good += a.status == 200 && !strcmp(a.body, want);
            peer_answer_fini(&a);
        }
        peer_close(&peer);
    }
    return NULL;
}

static void a_hundred_at_once(void **state)
{
    struct bed bed;
    struct worker workers[100];
    pthread_t threads[100];
    (void)state;
    bed_open(&bed, &(struct kn_server_opts){0});
    for (int i = 0; i < 100; i++) {
        workers[i] = (struct worker){&bed, 0};
        assert_int_equal(pthread_create(&threads[i], NULL, work, &workers[i]), 0);
    }
    for (int i = 0; i < 100; i++) {
        pthread_join(threads[i], NULL);
        assert_int_equal(workers[i].n_good, 10);
    }
    assert_int_equal(atomic_load(&bed.n_echoed), 1000);
    bed_close(&bed);
}

/* Handlers that block do not keep others from being served, nor a quiesced server from ending what it began. */
static void quiesce_lets_answers_end(void **state)
{
    struct bed bed;
    struct peer peer, idle, late;
    struct peer_answer a;
    char value[512];
    (void)state;
    bed_open(&bed, &(struct kn_server_opts){0});
    uint16_t port = kni_http_port(bed.http);
    assert_true(peer_try_open(&peer, port, 0));
    assert_true(peer_try_open(&idle, port, 0));
    assert_true(peer_say(&peer, "POST /block " H "Content-Length: 1\r\n\r\nx"));
    assert_true(peer_say(&idle, "GET /health " H "\r\n") && peer_take_answer(&idle, &a, false));
    assert_null(peer_header(&a, "Connection", value));
    peer_answer_fini(&a);
    bed_wait(&bed.n_blocked, 1);
    kni_http_quiesce(bed.http);
    kni_http_quiesce(bed.http);
    assert_false(peer_try_open(&late, port, 0));
    assert_true(peer_say(&idle, "GET /health " H "\r\n") && peer_take_answer(&idle, &a, false));
    assert_string_equal(peer_header(&a, "Connection", value), "close");
    peer_answer_fini(&a);
    assert_true(peer_ends(&idle));
    sem_post(&bed.go);
    assert_true(peer_take_answer(&peer, &a, false));
    assert_int_equal(a.status, 200);
    assert_string_equal(a.body, "unblocked");
    peer_answer_fini(&a);
    peer_close(&peer);
    peer_close(&idle);
    bed_close(&bed);
}

/* Idle, half-asked, stuck in writing: none keeps close from returning. */
static void close_waits_for_nobody(void **state)
{
    struct bed bed;
    struct peer idle, half, body, stuck;
    struct peer_answer a;
    (void)state;
    bed_open(&bed, &(struct kn_server_opts){0});
    uint16_t port = kni_http_port(bed.http);
    assert_true(peer_try_open(&idle, port, 0));
    assert_true(peer_try_open(&half, port, 0));
    assert_true(peer_try_open(&body, port, 0));
    assert_true(peer_try_open(&stuck, port, 4096));
    assert_true(peer_say(&idle, "GET /health " H "\r\n") && peer_take_answer(&idle, &a, false));
    peer_answer_fini(&a);
    assert_true(peer_say(&half, "GET /hea") && peer_say(&body, "POST /echo " H "Content-Length: 100\r\n\r\nx"));
    assert_true(peer_say(&stuck, "GET /flood " H "\r\n") && peer_take_head(&stuck, &a));
    bed_close(&bed);
    peer_close(&idle);
    peer_close(&half);
    peer_close(&body);
    peer_close(&stuck);
    assert_int_equal(atomic_load(&bed.n_closed), 1);
    kni_http_close(&bed.http); /* NULL by now */
}

static void hosts(void **state)
{
    static const char *const good[] = {NULL, "127.0.0.1", "localhost", "0.0.0.0", "::1", "[::1]", "::"};
    static const char *const bad[] = {"", "256.1.1.1", "no such host", "127.0.0.1:80", "[::1"};
    struct bed bed;
    struct kni_http *http;
    struct kn_err err = {0};
    char port[64];
    (void)state;
    int probe = socket(AF_INET6, SOCK_STREAM, 0);
    struct sockaddr_in6 at = {.sin6_family = AF_INET6, .sin6_addr = in6addr_loopback};
    bool ipv6 = probe >= 0 && !bind(probe, (struct sockaddr *)&at, sizeof at);
    if (probe >= 0)
        close(probe);
    for (size_t i = 0; i < sizeof good / sizeof *good; i++) {
        if (i >= 4 && !ipv6)
            continue;
        bed_open(&bed, &(struct kn_server_opts){.host = good[i]});
        if (i < 4 || i == 6)
            check(&bed, "GET /health " H "\r\n", 200, "fine");
        bed_close(&bed);
    }
    bed_open(&bed, &(struct kn_server_opts){0});
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        struct kni_http_opts opts = bed_opts(&bed, &(struct kn_server_opts){.host = bad[i]});
        assert_int_equal(kni_http_open(&http, &opts, &err), KN_E_ARG);
        assert_null(http);
        assert_non_null(strstr(err.text, "127.0.0.1"));
    }
    struct kni_http_opts opts = bed_opts(&bed, &(struct kn_server_opts){.port = kni_http_port(bed.http)});
    assert_int_equal(kni_http_open(&http, &opts, &err), KN_E_IO);
    snprintf(port, sizeof port, "127.0.0.1:%u: address already", (unsigned)kni_http_port(bed.http));
    assert_non_null(strstr(err.text, port));
    opts = bed_opts(&bed, &(struct kn_server_opts){.host = "192.0.2.1"});
    assert_int_equal(kni_http_open(&http, &opts, &err), KN_E_IO);
    assert_non_null(strstr(err.text, "another host"));
    static const struct kn_server_key keys[][2] = {{{"", NULL, NULL}}, {{NULL, NULL, NULL}}, {{"a b", NULL, NULL}}, {{"same", NULL, NULL}, {"same", NULL, NULL}}};
    for (size_t i = 0; i < 4; i++) {
        opts = bed_opts(&bed, &(struct kn_server_opts){.keys = keys[i], .n_keys = i == 3 ? 2 : 1});
        assert_int_equal(kni_http_open(&http, &opts, &err), KN_E_ARG);
        assert_null(strstr(err.text, "same\"")); /* no key is told */
    }
    uint16_t again = kni_http_port(bed.http);
    struct peer_answer a = ask(&bed, "GET /health HTTP/1.0\r\n\r\n"); /* closed by the server: its side is in TIME_WAIT */
    peer_answer_fini(&a);
    bed_close(&bed);
    bed_open(&bed, &(struct kn_server_opts){.port = again}); /* which does not keep the next server from the port */
    bed_close(&bed);
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

/* Every allocation of a request fails once: an answer or a closed connection, and nothing left. */
static void out_of_memory(void **state)
{
    static const char *const texts[] = {"POST /echo " H "Content-Length: 5\r\nConnection: close\r\n\r\nhello", "GET /nothing " H "Connection: close\r\n\r\n"};
    struct bed bed;
    (void)state;
    bed_open(&bed, &(struct kn_server_opts){0});
    for (size_t i = 0; i < 2; i++) {
        bool hit = true;
        for (uint64_t n = 1; hit; n++) {
            struct peer peer;
            struct peer_answer a;
            kni_alloc_fault_arm(n, false);
            assert_true(peer_try_open(&peer, kni_http_port(bed.http), 0));
            assert_true(peer_say(&peer, texts[i]));
            if (peer_take_answer(&peer, &a, false)) {
                assert_true(a.status == 200 || a.status == 404 || a.status == 503);
                peer_answer_fini(&a);
            }
            hit = kni_alloc_fault_hit();
            kni_alloc_fault_arm(0, false);
            peer_close(&peer);
        }
        check(&bed, "GET /health " H "\r\n", 200, "fine");
    }
    struct kni_http *http = NULL;
    struct kn_server_key key = {"k", NULL, NULL};
    struct kni_http_opts opts = bed_opts(&bed, &(struct kn_server_opts){.keys = &key, .n_keys = 1});
    enum kn_status s = KN_E_NOMEM;
    for (uint64_t n = 1; s; n++) {
        kni_alloc_fault_arm(n, false);
        s = kni_http_open(&http, &opts, NULL);
        kni_alloc_fault_arm(0, false);
        assert_true(s == KN_OK || (s == KN_E_NOMEM && !http));
    }
    kni_http_close(&http);
    bed_close(&bed);
    assert_int_equal(kni_alloc_get_stats(KNI_ALLOC_TAG_REQUEST).current_bytes, 0);
    assert_int_equal(kni_alloc_get_stats(KNI_ALLOC_TAG_MISC).current_bytes, 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(whole_answers), cmocka_unit_test(unknown_routes_and_methods), cmocka_unit_test(keys_open_doors), cmocka_unit_test(limits_on_bodies),
        cmocka_unit_test(limits_on_heads), cmocka_unit_test(malformed_requests), cmocka_unit_test(connections_kept_and_closed),
        cmocka_unit_test(pieces_leave_at_once), cmocka_unit_test(answers_are_closed_once), cmocka_unit_test(clients_leave_while_asking),
        cmocka_unit_test(connections_are_counted), cmocka_unit_test(a_hundred_at_once), cmocka_unit_test(quiesce_lets_answers_end),
        cmocka_unit_test(close_waits_for_nobody), cmocka_unit_test(hosts), cmocka_unit_test(errors_are_json), cmocka_unit_test(out_of_memory),
    };
    return cmocka_run_group_tests_name("http", tests, NULL, NULL);
}
