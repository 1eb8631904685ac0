/* SPDX-License-Identifier: Apache-2.0 */
/* Clients that trickle, stall and stop reading are cut; those that wait for us are not; the guard touches no socket but its own. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>
#include <dirent.h>

#include "base/clock.h"
#include "server/http/http_guard.h"
#include "support/http_bed.h"

#define H "HTTP/1.1\r\nHost: localhost\r\n"
#define LONG_MS 600000u

static struct kn_server_opts timeouts(uint32_t header_ms, uint32_t body_ms, uint32_t send_ms, uint32_t idle_ms)
{
    return (struct kn_server_opts){.header_timeout_ms = header_ms, .body_timeout_ms = body_ms, .send_timeout_ms = send_ms, .idle_timeout_ms = idle_ms};
}

/* Says text again and again, slowly, until the other side has closed. */
static void trickle(struct peer *peer, const char *text)
{
    char byte;
    uint64_t until = kni_now_ns() + PEER_WAIT_S * 1000000000ull;
    for (size_t i = 0;; i++) {
        if (!peer_say_bytes(peer, &text[i % strlen(text)], 1))
            return;
        if (recv(peer->fd, &byte, 1, MSG_DONTWAIT) == 0)
            return;
        assert_true(kni_now_ns() < until);
        usleep(10000);
    }
}

static void check_alive(struct bed *bed)
{
    struct peer peer;
    struct peer_answer a;
    assert_true(peer_try_open(&peer, kni_http_port(bed->http), 0));
    assert_true(peer_say(&peer, "GET /health " H "\r\n"));
    assert_true(peer_take_answer(&peer, &a, false));
    assert_int_equal(a.status, 200);
    peer_answer_fini(&a);
    peer_close(&peer);
}

/* before: what is said quickly; slow: what then trickles. */
static void check_cut(struct kn_server_opts opts, const char *before, bool answered, const char *slow, unsigned n_slow)
{
    static struct bed bed;
    struct peer peer;
    struct peer_answer a;
    bed_open(&bed, &opts);
    assert_true(peer_try_open(&peer, kni_http_port(bed.http), 0));
    assert_true(peer_say(&peer, before));
    if (answered) {
        assert_true(peer_take_answer(&peer, &a, false));
        peer_answer_fini(&a);
    }
    trickle(&peer, slow);
    peer_close(&peer);
    bed_wait64(&bed.metrics.slow_clients, n_slow);
    bed_close(&bed);
    assert_int_equal(atomic_load(&bed.metrics.slow_clients), n_slow);
    assert_int_equal(atomic_load(&bed.metrics.disconnects), 0);
    assert_int_equal(atomic_load(&bed.n_echoed), 0);
}

static void trickled_heads(void **state)
{
    (void)state;
    check_cut(timeouts(200, LONG_MS, LONG_MS, LONG_MS), "", false, "G", 1);
    check_cut(timeouts(200, LONG_MS, LONG_MS, LONG_MS), "GET /health " H, false, "X: y\r\n", 1);
    check_cut(timeouts(500, LONG_MS, LONG_MS, LONG_MS), "GET /health " H "\r\nGET /health " H, true, "X: y\r\n", 1); /* a kept connection */
    check_cut(timeouts(LONG_MS, LONG_MS, LONG_MS, 500), "GET /health " H "\r\n", true, "G", 0);                     /* is idle still */
}

static void trickled_bodies(void **state)
{
    (void)state;
    check_cut(timeouts(LONG_MS, 200, LONG_MS, LONG_MS), "POST /echo " H "Content-Length: 5000000\r\n\r\n", false, "x", 1);
    check_cut(timeouts(LONG_MS, 200, LONG_MS, LONG_MS), "POST /echo " H "Transfer-Encoding: chunked\r\n\r\n", false, "1\r\nx\r\n", 1);
    check_cut(timeouts(LONG_MS, 200, LONG_MS, LONG_MS), "POST /nothing " H "Content-Length: 5000000\r\n\r\n", false, "x", 1); /* thrown away */
}

static void silent_clients(void **state)
{
    static struct bed bed;
    struct peer peers[20];
    (void)state;
    struct kn_server_opts opts = timeouts(500, 500, LONG_MS, LONG_MS);
    bed_open(&bed, &opts);
    for (int i = 0; i < 20; i++) {
        assert_true(peer_try_open(&peers[i], kni_http_port(bed.http), 0));
        assert_true(peer_say(&peers[i], i % 2 ? "POST /echo " H "Content-Length: 5\r\n\r\nx" : i % 4 ? "GET" : ""));
    }
    check_alive(&bed);
    for (int i = 0; i < 20; i++) {
        assert_true(peer_ends(&peers[i]));
        peer_close(&peers[i]);
    }
    bed_wait64(&bed.metrics.slow_clients, 20);
    check_alive(&bed);
    bed_close(&bed);
}

static void stopped_readers(void **state)
{
    static const char *const texts[] = {"GET /flood " H "\r\n", "GET /flood HTTP/1.0\r\n\r\n", "GET /big " H "\r\n"};
    static struct bed bed;
    (void)state;
    struct kn_server_opts opts = timeouts(LONG_MS, LONG_MS, 300, LONG_MS);
    bed_open(&bed, &opts);
    for (unsigned i = 0; i < 3; i++) {
        struct peer peer;
        struct peer_answer a;
        assert_true(peer_try_open(&peer, kni_http_port(bed.http), 4096));
        assert_true(peer_say(&peer, texts[i]));
        assert_true(peer_take_head(&peer, &a));
        if (i == 2) { /* a body that the kernel's buffers may hold whole: ask for more than they can */
            for (int k = 0; k < 8; k++)
                assert_true(peer_say(&peer, texts[i]));
        }
        bed_wait64(&bed.metrics.slow_clients, i + 1);
        check_alive(&bed);
        bed_wait(&bed.n_closed, i < 2 ? i + 1 : 2);
        while (peer_hear(&peer) > 0)
            peer.n = 0;
        peer_close(&peer);
    }
    assert_int_equal(atomic_load(&bed.metrics.disconnects), 0);
    bed_close(&bed);
}

/* A reader that is slower than the server but goes on, for longer than the limit. */
static void slow_readers_that_go_on(void **state)
{
    static struct bed bed;
    struct peer peer;
    (void)state;
    struct kn_server_opts opts = timeouts(LONG_MS, LONG_MS, 1000, LONG_MS);
    bed_open(&bed, &opts);
    assert_true(peer_try_open(&peer, kni_http_port(bed.http), 65536));
    assert_true(peer_say(&peer, "GET /flood " H "\r\n"));
    for (uint64_t until = kni_now_ns() + 2000000000ull; kni_now_ns() < until;) {
        for (int i = 0; i < 20; i++) {
            peer.n = 0;
            assert_true(peer_hear(&peer) > 0);
        }
        usleep(20000);
    }
    assert_int_equal(atomic_load(&bed.metrics.slow_clients), 0);
    peer_reset(&peer);
    bed_close(&bed);
}

/* Our own slowness is nobody's fault: handlers and pulled answers that wait are not cut. */
static void waiting_for_us(void **state)
{
    static struct bed bed;
    struct peer blocked, pulled;
    struct peer_answer a;
    (void)state;
    struct kn_server_opts opts = timeouts(LONG_MS, LONG_MS, 200, 200);
    bed_open(&bed, &opts);
    assert_true(peer_try_open(&blocked, kni_http_port(bed.http), 0));
    assert_true(peer_say(&blocked, "POST /block " H "Content-Length: 1\r\n\r\nx"));
    bed_wait(&bed.n_blocked, 1);
    usleep(500000);
    sem_post(&bed.go);
    assert_true(peer_take_answer(&blocked, &a, false));
    assert_string_equal(a.body, "unblocked");
    peer_answer_fini(&a);
    assert_true(peer_try_open(&pulled, kni_http_port(bed.http), 0));
    assert_true(peer_say(&pulled, "GET /count " H "\r\n"));
    bed_wait(&bed.n_opened, 1);
    for (int i = 0; i <= BED_COUNT; i++) {
        usleep(250000);
        sem_post(&bed.go);
    }
    assert_true(peer_take_answer(&pulled, &a, false));
    assert_false(a.cut);
    peer_answer_fini(&a);
    assert_true(peer_ends(&pulled)); /* idle, in the end */
    assert_true(peer_ends(&blocked));
    assert_int_equal(atomic_load(&bed.metrics.slow_clients), 0);
    peer_close(&blocked);
    peer_close(&pulled);
    bed_close(&bed);
}

static unsigned n_descriptors(void)
{
    unsigned n = 0;
    DIR *dir = opendir("/proc/self/fd");
    while (readdir(dir))
        n++;
    closedir(dir);
    return n;
}

/* Once removed, a descriptor may be anybody's. */
static void removed_sockets_are_left_alone(void **state)
{
    struct kni_guard *guard;
    struct kni_guard_limits limits = {LONG_MS, 100, 100, 100};
    struct kni_guard_conn conns[3];
    _Atomic uint64_t slow = 0;
    int pair[3][2];
    char byte;
    (void)state;
    assert_int_equal(kni_guard_open(&guard, &limits, &slow, NULL), KN_OK);
    for (int i = 0; i < 3; i++) {
        assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM, 0, pair[i]), 0);
        kni_guard_add(guard, &conns[i], pair[i][0]);
        kni_guard_enter(&conns[i], i == 2 ? KNI_GUARD_PHASE_BODY : KNI_GUARD_PHASE_HANDLER);
    }
    kni_guard_remove(guard, &conns[1], false); /* from the middle */
    assert_int_equal(recv(pair[2][1], &byte, 1, 0), 0); /* the late one is cut */
    bed_wait64(&slow, 1);
    for (int i = 0; i < 2; i++) {
        assert_int_equal(send(pair[i][0], "x", 1, MSG_NOSIGNAL), 1);
        assert_int_equal(recv(pair[i][1], &byte, 1, 0), 1);
    }
    kni_guard_cut_all(guard);
    assert_int_equal(recv(pair[0][1], &byte, 1, 0), 0);
    assert_int_equal(send(pair[1][0], "x", 1, MSG_NOSIGNAL), 1);
    kni_guard_remove(guard, &conns[0], false);
    kni_guard_remove(guard, &conns[2], true); /* cut: does not linger */
    kni_guard_close(&guard);
    for (int i = 0; i < 3; i++) {
        close(pair[i][0]);
        close(pair[i][1]);
    }
}

static void closed_sockets_linger_and_go(void **state)
{
    enum { N = 70 }; /* more than may linger at once */
    struct kni_guard *guard;
    struct kni_guard_limits limits = {LONG_MS, LONG_MS, LONG_MS, LONG_MS};
    struct kni_guard_conn conn;
    _Atomic uint64_t slow = 0;
    int pair[N][2];
    char bytes[4096] = {0};
    unsigned before = n_descriptors(), n_gone = 0;
    (void)state;
    assert_int_equal(kni_guard_open(&guard, &limits, &slow, NULL), KN_OK);
    for (int i = 0; i < N; i++) {
        assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM, 0, pair[i]), 0);
        kni_guard_add(guard, &conn, pair[i][0]);
        kni_guard_remove(guard, &conn, true);
        close(pair[i][0]);
    }
    for (int i = 0; i < N; i++) /* those that linger take what comes */
        n_gone += send(pair[i][1], bytes, sizeof bytes, MSG_NOSIGNAL) < 0;
    assert_true(n_gone <= N - 64);
    for (int i = 1; i < N; i++)
        close(pair[i][1]);
    for (uint64_t until = kni_now_ns() + PEER_WAIT_S * 1000000000ull; send(pair[0][1], bytes, sizeof bytes, MSG_NOSIGNAL) > 0; usleep(1000))
        assert_true(kni_now_ns() < until); /* but not for ever */
    close(pair[0][1]);
    for (int i = 0; n_descriptors() > before + 1 && i < PEER_WAIT_S * 1000; i++) /* the guard's own is left */
        usleep(1000);
    assert_int_equal(n_descriptors(), before + 1);
    assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM, 0, pair[0]), 0);
    kni_guard_add(guard, &conn, pair[0][0]);
    kni_guard_remove(guard, &conn, true);
    kni_guard_close(&guard); /* does not wait for it */
    close(pair[0][0]);
    close(pair[0][1]);
    assert_int_equal(n_descriptors(), before);
}

#define T(test) cmocka_unit_test_teardown(test, bed_cleanup)

int main(void)
{
    const struct CMUnitTest tests[] = {
        T(trickled_heads), T(trickled_bodies), T(silent_clients), T(stopped_readers),
        T(slow_readers_that_go_on), T(waiting_for_us), T(removed_sockets_are_left_alone),
        T(closed_sockets_linger_and_go),
    };
    return cmocka_run_group_tests_name("http_guard", tests, NULL, NULL);
}
