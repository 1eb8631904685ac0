/* SPDX-License-Identifier: Apache-2.0 */
/* A call by itself: its memory, its references, its event, and how a peer's end is noticed. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>
#include <poll.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/alloc.h"
#include "base/clock.h"
#include "server/loop/call.h"

static uint64_t held_bytes(void)
{
    return kni_alloc_get_stats(KNI_ALLOC_TAG_COUNT).current_bytes;
}

static int32_t *make_tokens(uint32_t n)
{
    int32_t *tokens = kni_alloc(KNI_ALLOC_TAG_REQUEST, n * sizeof *tokens, 0);
    for (uint32_t i = 0; tokens && i < n; i++)
        tokens[i] = (int32_t)i;
    return tokens;
}

static struct kni_call *make_call(uint32_t max_tokens, uint32_t n_choices, uint32_t n_top)
{
    struct kni_call *call = NULL;
    assert_int_equal(kni_call_open(&call, make_tokens(4), 4, max_tokens, n_choices, n_top > 0, n_top), KN_OK);
    return call;
}

static bool is_readable(const struct kni_call *call)
{
    struct pollfd fd = {.fd = call->event_fd, .events = POLLIN};
    return poll(&fd, 1, 0) == 1;
}

static void test_memory(void **state)
{
    (void)state;
    uint64_t before = held_bytes();
    struct kni_call *call = make_call(10, 3, 5);
    for (uint32_t i = 0; i < 3; i++) { /* every place of every choice is its own */
        memset(call->choices[i].events, (int)i + 1, 10 * sizeof *call->choices[i].events);
        memset(call->choices[i].tops, (int)i + 4, 50 * sizeof *call->choices[i].tops);
    }
    for (uint32_t i = 0; i < 3; i++) {
        assert_int_equal(call->choices[i].events[9].token, 0x01010101 * (i + 1));
        assert_int_equal(call->choices[i].tops[49].token, 0x01010101 * (i + 4));
        assert_int_equal(call->choices[i].n_events, 0);
        assert_false(call->choices[i].done);
    }
    assert_int_equal(call->n_open, 3);
    kni_call_ref(call);
    kni_call_unref(call);
    assert_int_equal(call->n_tokens, 4); /* still there */
    kni_call_unref(call);
    assert_int_equal(held_bytes(), before);

    call = make_call(1, 1, 0);
    assert_null(call->choices[0].tops);
    kni_call_unref(call);
    kni_call_unref(NULL);
    assert_int_equal(held_bytes(), before);
}

/* 128 answers of 20,000 tokens with 20 alternatives each: address space, hardly any memory. */
static void test_large_is_not_touched(void **state)
{
    (void)state;
    long page = sysconf(_SC_PAGESIZE), resident[2], dummy;
    for (int i = 0; i < 2; i++) {
        struct kni_call *call = i ? make_call(20000, 128, 20) : NULL;
        FILE *f = fopen("/proc/self/statm", "r");
        assert_non_null(f);
        assert_int_equal(fscanf(f, "%ld %ld", &dummy, &resident[i]), 2);
        fclose(f);
        kni_call_unref(call);
    }
    assert_true((resident[1] - resident[0]) * page < 32 << 20); /* of 430 MB */
}

static void test_no_memory(void **state)
{
    (void)state;
    uint64_t before = held_bytes();
    for (uint64_t n = 1;; n++) {
        int32_t *tokens = make_tokens(4);
        struct kni_call *call = NULL;
        kni_alloc_fault_arm(n, false);
        enum kn_status status = kni_call_open(&call, tokens, 4, 8, 2, true, 3);
        assert_int_equal(call == NULL, status != KN_OK);
        if (!status)
            status = kni_call_score_prompt(call);
        bool hit = kni_alloc_fault_hit();
        kni_alloc_fault_arm(0, false);
        assert_int_equal(status, hit ? KN_E_NOMEM : KN_OK);
        assert_true(status || (call->score_prompt && call->prompt_logprobs && call->prompt_tops));
        kni_call_unref(call);
        assert_int_equal(held_bytes(), before); /* the tokens too */
        if (!hit)
            break;
    }
}

static void test_wait(void **state)
{
    (void)state;
    struct kni_call *call = make_call(1, 1, 0);
    assert_false(is_readable(call));
    assert_true(kni_call_wait(call, NULL, 0));
    kni_call_signal(call);
    kni_call_signal(call);
    assert_true(is_readable(call));
    assert_true(kni_call_wait(call, NULL, 60000));
    assert_false(is_readable(call)); /* two signals are one wake */
    uint64_t begin = kni_now_ns();
    assert_true(kni_call_wait(call, NULL, 20));
    assert_true(kni_now_ns() - begin >= 20000000u);
    kni_call_unref(call);
}

static void *signal_later(void *user)
{
    usleep(20000);
    kni_call_signal(user);
    return NULL;
}

static void test_wait_for_thread(void **state)
{
    (void)state;
    struct kni_call *call = make_call(1, 1, 0);
    pthread_t thread;
    assert_int_equal(pthread_create(&thread, NULL, signal_later, call), 0);
    assert_true(kni_call_wait(call, NULL, 60000));
    pthread_join(thread, NULL);
    kni_call_unref(call);
}

static void test_peer(void **state)
{
    (void)state;
    for (int how = 0; how < 2; how++) {
        struct kni_call *call = make_call(1, 1, 0);
        int pair[2];
        struct kni_peer peer;
        assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM, 0, pair), 0);
        assert_int_equal(write(pair[1], "next request", 12), 12); /* a pipelined one: neither news nor the end */
        kni_peer_init(&peer, pair[0]);
        assert_true(kni_call_wait(call, &peer, 10));
        kni_call_signal(call);
        assert_true(kni_call_wait(call, &peer, 60000));
        shutdown(pair[1], SHUT_WR); /* it has said all: told once, and is no end */
        assert_true(kni_call_wait(call, &peer, 60000));
        assert_true(peer.said_all);
        assert_true(kni_call_wait(call, &peer, 10));
        kni_call_signal(call);
        assert_true(kni_call_wait(call, &peer, 60000));
        if (how)
            shutdown(pair[0], SHUT_RDWR); /* as http does with slow ones */
        else
            close(pair[1]);
        assert_false(kni_call_wait(call, &peer, 60000));
        kni_call_signal(call);
        assert_false(kni_call_wait(call, &peer, 60000));
        assert_false(is_readable(call)); /* taken all the same */
        if (how)
            close(pair[1]);
        close(pair[0]);
        kni_call_unref(call);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_memory),
        cmocka_unit_test(test_large_is_not_touched),
        cmocka_unit_test(test_no_memory),
        cmocka_unit_test(test_wait),
        cmocka_unit_test(test_wait_for_thread),
        cmocka_unit_test(test_peer),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
