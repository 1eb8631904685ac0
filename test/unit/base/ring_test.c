/* SPDX-License-Identifier: Apache-2.0 */
/* The ring: order, fullness and laps on one thread; then many producers, where each item must arrive once and in its producer's order. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>
#include <pthread.h>
#include <sched.h>
#include <stdint.h>
#include <stdlib.h>

#include "base/alloc.h"
#include "base/ring.h"

static void test_order_and_fullness(void **state)
{
    (void)state;
    int items[5];
    struct kni_ring *ring = kni_ring_open(4);
    assert_non_null(ring);
    assert_null(kni_ring_try_pop(ring));
    for (int lap = 0; lap < 7; lap++) { /* begins at each slot in turn: 4 pushed, 3 + 1 popped, one more goes round */
        for (int i = 0; i < 4; i++)
            assert_true(kni_ring_try_push(ring, &items[i]));
        assert_false(kni_ring_try_push(ring, &items[4]));
        assert_ptr_equal(kni_ring_try_pop(ring), &items[0]);
        assert_true(kni_ring_try_push(ring, &items[4]));
        assert_false(kni_ring_try_push(ring, &items[0]));
        for (int i = 1; i < 5; i++)
            assert_ptr_equal(kni_ring_try_pop(ring), &items[i]);
        assert_null(kni_ring_try_pop(ring));
    }
    kni_ring_close(&ring);
    assert_null(ring);
    kni_ring_close(&ring);
}

#define N_PRODUCERS 6
#define N_ITEMS 20000

struct producer {
    struct kni_ring *ring;
    uintptr_t id;
    uint64_t n_full;
};

/* Items are numbers: producer in the upper bits, serial number from 1 below. */
static void *produce(void *user)
{
    struct producer *p = user;
    for (uintptr_t i = 1; i <= N_ITEMS; i++)
        while (!kni_ring_try_push(p->ring, (void *)(p->id << 32 | i))) {
            p->n_full++;
            sched_yield();
        }
    return NULL;
}

static void run_producers(uint32_t n_slots)
{
    struct kni_ring *ring = kni_ring_open(n_slots);
    struct producer producers[N_PRODUCERS];
    pthread_t threads[N_PRODUCERS];
    uintptr_t last[N_PRODUCERS] = {0};
    assert_non_null(ring);
    for (uintptr_t i = 0; i < N_PRODUCERS; i++) {
        producers[i] = (struct producer){.ring = ring, .id = i};
        assert_int_equal(pthread_create(&threads[i], NULL, produce, &producers[i]), 0);
    }
    for (uint32_t n = 0; n < N_PRODUCERS * N_ITEMS;) {
        uintptr_t item = (uintptr_t)kni_ring_try_pop(ring);
        if (!item) {
            sched_yield();
            continue;
        }
        assert_true(item >> 32 < N_PRODUCERS);
        assert_int_equal(item & UINT32_MAX, last[item >> 32] + 1); /* none lost, none twice, in order */
        last[item >> 32]++;
        n++;
    }
    for (uint32_t i = 0; i < N_PRODUCERS; i++)
        pthread_join(threads[i], NULL);
    assert_null(kni_ring_try_pop(ring));
    kni_ring_close(&ring);
}

static void test_many_producers(void **state)
{
    (void)state;
    run_producers(2); /* nearly always full */
    run_producers(64);
    run_producers(4096);
}

static void test_no_memory(void **state)
{
    (void)state;
    uint64_t before = kni_alloc_get_stats(KNI_ALLOC_TAG_COUNT).current_bytes;
    for (uint64_t n = 1;; n++) {
        kni_alloc_fault_arm(n, false);
        struct kni_ring *ring = kni_ring_open(8);
        bool hit = kni_alloc_fault_hit();
        kni_alloc_fault_arm(0, false);
        assert_int_equal(ring == NULL, hit);
        kni_ring_close(&ring);
        assert_int_equal(kni_alloc_get_stats(KNI_ALLOC_TAG_COUNT).current_bytes, before);
        if (!hit)
            break;
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_order_and_fullness),
        cmocka_unit_test(test_many_producers),
        cmocka_unit_test(test_no_memory),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
