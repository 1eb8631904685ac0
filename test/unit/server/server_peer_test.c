/* SPDX-License-Identifier: Apache-2.0 */
/* Clients that have said all and wait, and clients that are gone: by themselves, and over a server's sockets. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>
#include <pthread.h>

#include "base/alloc.h"
#include "support/http_ask.h"

#define T(test) cmocka_unit_test_teardown(test, bed_cleanup)
#define ONE "POST /watch HTTP/1.1\r\nHost: localhost\r\n"

static void wait_until(_Atomic bool *what)
{
    for (int i = 0; !atomic_load(what) && i < PEER_WAIT_S * 1000; i++)
        usleep(1000);
    assert_true(atomic_load(what));
}

/* Waits for at most PEER_WAIT_S. */
static bool is_gone_soon(struct kni_peer *peer)
{
    struct pollfd fd = kni_peer_pollfd(peer);
    return poll(&fd, 1, PEER_WAIT_S * 1000) > 0 && !kni_peer_take(peer, fd.revents);
}

/* A connected pair: what the client said has been read but for its end. */
static void connect_pair(struct peer *client, int *server, size_t n_said)
{
    struct sockaddr_in at = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t n = sizeof at;
    char bytes[64];
    int listener = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    assert_true(listener >= 0 && !bind(listener, (struct sockaddr *)&at, sizeof at) && !listen(listener, 1));
    assert_int_equal(getsockname(listener, (struct sockaddr *)&at, &n), 0);
    assert_true(peer_try_open(client, ntohs(at.sin_port), 0));
    *server = accept(listener, NULL, NULL);
    close(listener);
    assert_true(*server >= 0 && n_said <= sizeof bytes);
    memset(bytes, 'x', sizeof bytes);
    assert_true(peer_say_bytes(client, bytes, n_said));
    assert_int_equal(recv(*server, bytes, sizeof bytes, 0), n_said);
}

static void end_of_what_is_said(void **state)
{
    (void)state;
    for (int how = 0; how < 5; how++) { /* half-closed; closed; reset; half-closed with more than was taken; with less known */
        struct peer client;
        struct kni_peer peer;
        int server;
        connect_pair(&client, &server, 20);
        kni_peer_init(&peer, server);
        peer.n_consumed = how == 3 ? 10 : how == 4 ? 0 : 20;
        assert_true(kni_peer_is_here(&peer));
        assert_false(kni_peer_due(&peer));
        assert_int_equal(kni_peer_wait_ms(&peer, 1234), 1234);
        if (how == 1)
            peer_close(&client);
        else if (how == 2)
            peer_reset(&client);
        else
            shutdown(client.fd, SHUT_WR);
        if (how == 2) {
            assert_true(is_gone_soon(&peer));
            close(server);
            continue;
        }
        assert_false(is_gone_soon(&peer)); /* its end has come: whose? */
        assert_true(peer.said_all);
        assert_int_equal(peer.alone, how < 3);
        assert_int_equal(kni_peer_wait_ms(&peer, 1234), 0);
        assert_true(kni_peer_due(&peer));
        assert_true(kni_peer_wait_ms(&peer, 1234) <= KNI_PEER_FIRST_PAUSE_MS + 1);
        kni_peer_send_ahead(&peer);
        assert_int_equal(peer.n_ahead, how < 3);
        if (how == 1)
            assert_true(is_gone_soon(&peer));
        for (int i = 0; i < 20 && how == 0; i++) /* no more than all answers begin with */
            kni_peer_send_ahead(&peer);
        if (how == 0) {
            assert_int_equal(peer.n_ahead, 9);
            while (client.n < 9)
                assert_true(peer_hear(&client) > 0);
            assert_string_equal(client.heard, "HTTP/1.1 ");
            peer_close(&client); /* and now it goes */
            assert_true(kni_peer_is_here(&peer));
            assert_int_equal(send(server, "2", 1, MSG_NOSIGNAL), 1);
            assert_true(is_gone_soon(&peer));
        }
        peer_close(&client);
        close(server);
    }
    assert_true(kni_peer_is_here(NULL));
    assert_int_equal(kni_peer_wait_ms(NULL, 7), 7);
    assert_false(kni_peer_due(NULL));
}

/* The pause between probes doubles up to its bound. */
static void probes_become_rare(void **state)
{
    struct kni_peer peer = {.socket = -1, .said_all = true, .pause_ms = KNI_PEER_FIRST_PAUSE_MS};
    uint32_t before = 0;
    (void)state;
    for (int i = 0; i < 20; i++) {
        peer.probe_ns = 0;
        assert_true(kni_peer_due(&peer));
        assert_false(kni_peer_due(&peer));
        assert_true(peer.pause_ms >= before && peer.pause_ms <= KNI_PEER_MOST_PAUSE_MS);
        before = peer.pause_ms;
    }
    assert_int_equal(peer.pause_ms, KNI_PEER_MOST_PAUSE_MS);
}

static void answers_to_the_half_closed(void **state)
{
    static const char *const heads[] = {ONE "Content-Length: 4\r\n\r\nbody", ONE "Content-Length: 4\r\nConnection: close\r\n\r\nbody",
                                        "POST /watch HTTP/1.0\r\nContent-Length: 4\r\n\r\nbody", "\r\n" ONE "Content-Length: 4\r\n\r\nbody",
                                        ONE "Transfer-Encoding: chunked\r\n\r\n4\r\nbody\r\n0\r\n\r\n"};
    static struct bed bed;
    struct peer_answer a;
    char value[512];
    (void)state;
    bed_open(&bed, &(struct kn_server_opts){0});
    for (size_t i = 0; i < sizeof heads / sizeof *heads; i++)
        for (int kept = 0; kept < 2; kept++) {
            struct peer peer;
            assert_true(peer_try_open(&peer, kni_http_port(bed.http), 0));
            if (kept) { /* not the connection's first */
                assert_true(peer_say(&peer, "POST /echo " H "Content-Length: 2\r\n\r\nhi") && peer_take_answer(&peer, &a, false));
                peer_answer_fini(&a);
            }
            atomic_store(&bed.said_all, false);
            assert_true(peer_say(&peer, heads[i]));
            shutdown(peer.fd, SHUT_WR);
            wait_until(&bed.said_all);
            usleep(5000);
            sem_post(&bed.go);
            assert_true(peer_take_answer(&peer, &a, false));
            assert_int_equal(a.status, 200);
            assert_false(a.cut);
            assert_string_equal(a.body, "body");
            assert_string_equal(peer_header(&a, "Content-Type", value), "text/plain");
            assert_string_equal(peer_header(&a, "X-Content-Type-Options", value), "nosniff");
            assert_non_null(peer_header(&a, "Date", value));
            peer_answer_fini(&a);
            assert_true(peer_ends(&peer));
            peer_close(&peer);
        }
    bed_wait64(&bed.metrics.responses[KNI_ROUTE_CHAT][2], 2 * sizeof heads / sizeof *heads);
    assert_int_equal(atomic_load(&bed.metrics.disconnects), 0);
    assert_int_equal(atomic_load(&bed.n_gone), 0);
    bed_close(&bed);
    assert_int_equal(kni_alloc_get_stats(KNI_ALLOC_TAG_REQUEST).current_bytes, 0);
}

/* Several requests, and then the end: all are answered, in their order. */
static void several_before_the_end(void **state)
{
    static struct bed bed;
    struct peer peer;
    struct peer_answer a;
    (void)state;
    bed_open(&bed, &(struct kn_server_opts){0});
    assert_true(peer_try_open(&peer, kni_http_port(bed.http), 0));
    assert_true(peer_say(&peer, ONE "Content-Length: 1\r\n\r\n1" ONE "Content-Length: 1\r\n\r\n2GET /health " H "\r\n"));
    shutdown(peer.fd, SHUT_WR);
    for (int i = 0; i < 3; i++) {
        atomic_store(&bed.said_all, false);
        if (i < 2) {
            wait_until(&bed.said_all);
            usleep(5000);
            sem_post(&bed.go);
        }
        assert_true(peer_take_answer(&peer, &a, false));
        assert_int_equal(a.status, 200);
        assert_string_equal(a.body, i == 2 ? "fine" : i ? "2" : "1");
        peer_answer_fini(&a);
    }
    assert_true(peer_ends(&peer));
    peer_close(&peer);
    bed_close(&bed);
}

/* More than the socket takes at once, to a reader that begins late. */
static void large_answers(void **state)
{
    static struct bed bed;
    struct peer peer;
    struct peer_answer a;
    (void)state;
    bed_open(&bed, &(struct kn_server_opts){0});
    assert_true(peer_try_open(&peer, kni_http_port(bed.http), 4096));
    assert_true(peer_say(&peer, ONE "Content-Length: 0\r\n\r\n"));
    shutdown(peer.fd, SHUT_WR);
    wait_until(&bed.said_all);
    usleep(5000);
    sem_post(&bed.go);
    usleep(20000);
    assert_true(peer_take_answer(&peer, &a, false));
    assert_int_equal(a.n_body, BED_BIG_BYTES);
    for (size_t i = 0; i < a.n_body; i++)
        assert_int_equal(a.body[i], 'a' + (char)(i % 23));
    peer_answer_fini(&a);
    peer_close(&peer);
    bed_close(&bed);
}

/* Closed or reset while it is worked for: noticed, though nothing is ready for it. */
static void clients_that_go(void **state)
{
    static struct bed bed;
    (void)state;
    bed_open(&bed, &(struct kn_server_opts){0});
    for (unsigned i = 0; i < 4; i++) {
        struct peer peer;
        assert_true(peer_try_open(&peer, kni_http_port(bed.http), 0));
        assert_true(peer_say(&peer, i & 1 ? "POST /watch HTTP/1.0\r\nContent-Length: 2\r\n\r\nxx" : ONE "Content-Length: 2\r\n\r\nxx"));
        bed_wait(&bed.n_blocked, i + 1);
        if (i & 2)
            peer_reset(&peer);
        else
            peer_close(&peer);
        bed_wait(&bed.n_gone, i + 1);
    }
    bed_wait64(&bed.metrics.disconnects, 4);
    bed_close(&bed);
    assert_int_equal(kni_alloc_get_stats(KNI_ALLOC_TAG_REQUEST).current_bytes, 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        T(end_of_what_is_said), T(probes_become_rare), T(answers_to_the_half_closed), T(several_before_the_end), T(large_answers), T(clients_that_go),
    };
    return cmocka_run_group_tests_name("peer", tests, NULL, NULL);
}
