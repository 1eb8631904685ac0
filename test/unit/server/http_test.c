/* SPDX-License-Identifier: Apache-2.0 */
/* HTTP over real sockets: hosts, connections that stay, end, are too many, and a server that closes. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>
#include <pthread.h>

#include "base/alloc.h"
#include "support/http_ask.h"

/* Until the server has let go of every connection: it notices a client's end a little later. */
static void wait_for_none(struct bed *bed)
{
    for (int i = 0; atomic_load(&bed->metrics.n_connections) && i < PEER_WAIT_S * 1000; i++)
        usleep(1000);
    assert_int_equal(atomic_load(&bed->metrics.n_connections), 0);
}

static void whole_answers(void **state)
{
    static struct bed bed;
    char value[512];
    (void)state;
    bed_open(&bed, &(struct kn_server_opts){0});
    struct peer_answer a = ask(&bed, "POST /echo " H "Content-Length: 5\r\n\r\nhello");
    assert_int_equal(a.status, 200);
    assert_string_equal(a.body, "hello");
    assert_string_equal(peer_header(&a, "Content-Type", value), "text/plain");
    assert_string_equal(peer_header(&a, "Cache-Control", value), "no-store");
    assert_null(peer_header(&a, "Access-Control-Allow-Origin", value));
    assert_string_equal(peer_header(&a, "X-Frame-Options", value), "DENY");
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

static void connections_kept_and_closed(void **state)
{
    static struct bed bed;
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
    assert_true(peer_try_open(&peer, kni_http_port(bed.http), 0)); /* a client that has said all, and says so */
    assert_true(peer_say(&peer, "POST /echo " H "Content-Length: 3\r\n\r\nallGET /health " H "\r\n"));
    shutdown(peer.fd, SHUT_WR);
    for (int i = 0; i < 2; i++) {
        assert_true(peer_take_answer(&peer, &a, false));
        assert_string_equal(a.body, i ? "fine" : "all");
        peer_answer_fini(&a);
    }
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

/* A body that ends early, a reset within head and body: nobody's handler is called, nothing is left. */
static void clients_leave_while_asking(void **state)
{
    static const char *const parts[] = {"", "G", "GET /health HT", "POST /echo " H, "POST /echo " H "Content-Length: 10\r\n\r\n12345",
                                        "POST /echo " H "Transfer-Encoding: chunked\r\n\r\n8\r\n123"};
    static struct bed bed;
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
    wait_for_none(&bed);
    assert_int_equal(atomic_load(&bed.n_echoed), 0);
    bed_close(&bed);
    assert_int_equal(kni_alloc_get_stats(KNI_ALLOC_TAG_REQUEST).current_bytes, 0);
}

static void connections_are_counted(void **state)
{
    static struct bed bed;
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
    wait_for_none(&bed);
    check(&bed, "GET /health " H "\r\n", 200, "fine");
    wait_for_none(&bed); /* of that connection, too, the place must be free again: it would be missing among the crowd's */
    static struct peer crowd[100]; /* far too many at once: some are told so, some closed unheard, none hangs */
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
    static struct bed bed;
    struct worker workers[100];
    pthread_t threads[100];
    (void)state;
    bed_open(&bed, &(struct kn_server_opts){0});
    for (int i = 0; i < 100; i++) {
        workers[i] = (struct worker){&bed, 0};
        if (pthread_create(&threads[i], NULL, work, &workers[i]))
            abort();
    }
    for (int i = 0; i < 100; i++)
        pthread_join(threads[i], NULL);
    for (int i = 0; i < 100; i++)
        assert_int_equal(workers[i].n_good, 10);
    assert_int_equal(atomic_load(&bed.n_echoed), 1000);
    bed_close(&bed);
}

/* Handlers that block do not keep others from being served, nor a quiesced server from ending what it began. */
static void quiesce_lets_answers_end(void **state)
{
    static struct bed bed;
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
    static struct bed bed;
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
    static struct bed bed;
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

/* Every allocation of a request fails once: an answer or a closed connection, and nothing left. */
static void out_of_memory(void **state)
{
    static const char *const texts[] = {"POST /echo " H "Content-Length: 5\r\nConnection: close\r\n\r\nhello", "GET /nothing " H "Connection: close\r\n\r\n"};
    static struct bed bed;
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

#define T(test) cmocka_unit_test_teardown(test, bed_cleanup)

int main(void)
{
    const struct CMUnitTest tests[] = {
        T(whole_answers), T(connections_kept_and_closed), T(clients_leave_while_asking),
        T(connections_are_counted), T(a_hundred_at_once), T(quiesce_lets_answers_end),
        T(close_waits_for_nobody), T(hosts), T(out_of_memory),
    };
    return cmocka_run_group_tests_name("http", tests, NULL, NULL);
}
