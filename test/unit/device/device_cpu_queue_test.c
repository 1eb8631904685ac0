/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Copies, queues and events of the CPU device: at once; delayed, where callers that do not wait must be caught; copies
 * that leave what the device gave; memory taken away under a batch; batches of two queues that meet; failing
 * allocations.
 */
#include "device_support.h"

#include <pthread.h>
#include <stdlib.h>

#define RW KNI_DEVICE_ACCESS_READ_WRITE
#define BYTES ((size_t)4096)
#define POISON KNI_DEVICE_CPU_POISON

static struct kni_device_addr memory;
static struct kni_device_queue *queue;
static struct kni_device_event *event;
static unsigned char buffer[BYTES];

static void open_bed(uint32_t delay_queries)
{
    open_twin((struct kni_device_cpu_opts){.delay_queries = delay_queries});
    assert_ok(ops->alloc(dev, KNI_ALLOC_TAG_POOL, BYTES, &memory, &why));
    assert_ok(ops->queue_open(dev, &queue, &why));
    assert_ok(ops->event_open(dev, &event, &why));
    for (size_t i = 0; i < BYTES; i++) {
        seen(memory)[i] = (unsigned char)(i * 7);
        buffer[i] = (unsigned char)(i * 13 + 1);
    }
}

static void close_bed(void)
{
    ops->event_close(dev, &event);
    ops->queue_close(dev, &queue);
    assert_null(event);
    assert_null(queue);
    ops->event_close(dev, &event);
    ops->queue_close(dev, &queue);
    assert_ok(ops->free(dev, memory, BYTES, &why));
    close_twin();
}

static int set_up_at_once(void **state)
{
    (void)state;
    open_bed(0);
    return 0;
}

static int set_up_delayed(void **state)
{
    (void)state;
    open_bed(3);
    return 0;
}

static int tear_down(void **state)
{
    (void)state;
    close_bed();
    return 0;
}

/* One row between the device's byte at and the buffer's byte host. */
static struct kni_device_block row(size_t at, size_t host, size_t bytes)
{
    return (struct kni_device_block){
        .device = plus(memory, at), .host = buffer + host, .row_bytes = bytes, .n_rows = 1};
}

static void filled_with(const unsigned char *p, unsigned char value, size_t n)
{
    for (size_t i = 0; i < n; i++)
        assert_int_equal(p[i], value);
}

/* 3 rows of 5 bytes, 100 apart on the device and 8 apart here; nothing beside them is touched. */
static void check_rows(bool writes, struct kni_device_queue *q)
{
    unsigned char device_before[BYTES], host_before[BYTES];
    memcpy(device_before, seen(memory), BYTES);
    memcpy(host_before, buffer, BYTES);
    struct kni_device_block blocks[2] = {
        {.device = plus(memory, 10),
         .host = buffer,
         .device_stride_bytes = 100,
         .host_stride_bytes = 8,
         .row_bytes = 5,
         .n_rows = 3},
        row(1000, 500, 17),
    };
    assert_ok((writes ? ops->write_blocks : ops->read_blocks)(dev, q, blocks, 2, &why));
    memset(blocks, 0, sizeof blocks); /* was read before the call returned */
    if (q) {
        ops->event_record(dev, event, q);
        assert_int_equal(ops->event_wait(dev, event), KN_OK);
    }
    unsigned char *to = writes ? device_before : host_before;
    const unsigned char *from = writes ? host_before : device_before;
    for (size_t r = 0; r < 3; r++)
        memcpy(to + (writes ? 10 + r * 100 : r * 8), from + (writes ? r * 8 : 10 + r * 100), 5);
    memcpy(to + (writes ? 1000 : 500), from + (writes ? 500 : 1000), 17);
    assert_memory_equal(seen(memory), device_before, BYTES);
    assert_memory_equal(buffer, host_before, BYTES);
}

static void rows_go_where_they_belong(void **state)
{
    (void)state;
    check_rows(false, queue);
    check_rows(true, queue);
    check_rows(false, NULL);
    check_rows(true, NULL);
    unsigned char expected[100];
    memcpy(expected, seen(memory) + 50, 100);
    assert_ok(ops->copy_block(dev, NULL, plus(memory, 2000), plus(memory, 50), 100, &why));
    assert_memory_equal(seen(memory) + 2000, expected, 100);
    assert_ok(ops->copy_block(dev, queue, plus(memory, 2500), plus(memory, 50), 100, &why));
    ops->event_record(dev, event, queue);
    assert_int_equal(ops->event_wait(dev, event), KN_OK);
    assert_memory_equal(seen(memory) + 2500, expected, 100);
    assert_ok(ops->read_blocks(dev, queue, NULL, 0, &why));
    assert_ok(ops->write_blocks(dev, NULL, NULL, 0, &why));
}

static void at_once_means_at_once(void **state)
{
    (void)state;
    assert_int_equal(ops->event_query(dev, event), KN_E_STATE); /* never recorded */
    assert_int_equal(ops->event_wait(dev, event), KN_E_STATE);
    struct kni_device_block b = row(0, 0, 64);
    assert_ok(ops->read_blocks(dev, queue, &b, 1, &why));
    assert_memory_equal(buffer, seen(memory), 64);
    ops->event_record(dev, event, queue);
    assert_int_equal(ops->event_query(dev, event), KN_OK);
    assert_int_equal(ops->event_wait(dev, event), KN_OK);
    assert_int_equal(ops->get_stats(dev).n_batches, 0);
}

/* Who reads before the event is over finds poison, and never by luck the right bytes. */
static void a_read_that_is_not_waited_for_is_caught(void **state)
{
    (void)state;
    struct kni_device_block b = row(0, 100, 64);
    buffer[99] = buffer[164] = 42;
    assert_ok(ops->read_blocks(dev, queue, &b, 1, &why));
    filled_with(buffer + 100, POISON, 64);
    assert_int_equal(buffer[99], 42);
    assert_int_equal(buffer[164], 42);
    ops->event_record(dev, event, queue);
    for (int i = 0; i < 3; i++) {
        assert_int_equal(ops->event_query(dev, event), KN_AGAIN);
        filled_with(buffer + 100, POISON, 64);
    }
    assert_int_equal(ops->get_stats(dev).n_batches, 1);
    assert_int_equal(ops->event_query(dev, event), KN_OK);
    assert_memory_equal(buffer + 100, seen(memory), 64);
    assert_int_equal(ops->event_query(dev, event), KN_OK);
    assert_int_equal(ops->get_stats(dev).n_batches, 0);
    assert_ok(ops->read_blocks(dev, queue, &b, 1, &why));
    ops->event_record(dev, event, queue); /* anew: as slow as the first time */
    for (int i = 0; i < 3; i++)
        assert_int_equal(ops->event_query(dev, event), KN_AGAIN);
    assert_int_equal(ops->event_query(dev, event), KN_OK);
}

/* Who fills staging anew before the write is over sends the new bytes; the device's are poison until then. */
static void staging_that_is_reused_too_early_is_caught(void **state)
{
    (void)state;
    struct kni_device_block b = row(512, 0, 64);
    assert_ok(ops->write_blocks(dev, queue, &b, 1, &why));
    filled_with(seen(memory) + 512, POISON, 64);
    memset(buffer, 77, 64);
    ops->event_record(dev, event, queue);
    assert_int_equal(ops->event_wait(dev, event), KN_OK);
    filled_with(seen(memory) + 512, 77, 64);
}

static void an_event_stands_for_what_was_launched_before_it(void **state)
{
    (void)state;
    struct kni_device_event *later;
    struct kni_device_block first = row(0, 0, 32), second = row(0, 200, 32);
    unsigned char original[32];
    memcpy(original, seen(memory), 32);
    assert_ok(ops->event_open(dev, &later, &why));
    assert_ok(ops->read_blocks(dev, queue, &first, 1, &why));
    ops->event_record(dev, event, queue);
    assert_ok(ops->read_blocks(dev, queue, &second, 1, &why));
    ops->event_record(dev, later, queue);
    assert_int_equal(ops->event_wait(dev, event), KN_OK);
    assert_memory_equal(buffer, original, 32);
    filled_with(buffer + 200, POISON, 32); /* the second is not over */
    assert_int_equal(ops->get_stats(dev).n_batches, 1);
    assert_int_equal(ops->event_query(dev, later), KN_AGAIN);
    ops->event_record(dev, event, queue); /* stands for both now */
    assert_int_equal(ops->event_query(dev, event), KN_AGAIN);
    assert_int_equal(ops->event_wait(dev, later), KN_OK);
    assert_int_equal(ops->event_query(dev, event), KN_OK); /* what it stands for is over: no more AGAIN */
    assert_memory_equal(buffer + 200, original, 32);
    ops->event_record(dev, event, queue); /* of an idle queue */
    assert_int_equal(ops->event_query(dev, event), KN_OK);
    ops->event_close(dev, &later);
}

/* A chain through one queue: each batch needs what the one before it wrote. */
static void a_queue_keeps_its_order(void **state)
{
    (void)state;
    struct kni_device_block in = row(0, 0, 64), out = row(256, 300, 64);
    unsigned char sent[64];
    memcpy(sent, buffer, 64);
    assert_ok(ops->write_blocks(dev, queue, &in, 1, &why));
    assert_ok(ops->copy_block(dev, queue, plus(memory, 128), memory, 64, &why));
    assert_ok(ops->copy_block(dev, queue, plus(memory, 256), plus(memory, 128), 64, &why));
    assert_ok(ops->read_blocks(dev, queue, &out, 1, &why));
    ops->event_record(dev, event, queue);
    assert_int_equal(ops->get_stats(dev).n_batches, 4);
    assert_int_equal(ops->event_wait(dev, event), KN_OK);
    assert_memory_equal(buffer + 300, sent, 64);
}

static void closing_a_queue_waits(void **state)
{
    (void)state;
    struct kni_device_queue *q;
    struct kni_device_block b = row(0, 0, 64);
    assert_ok(ops->queue_open(dev, &q, &why));
    assert_ok(ops->read_blocks(dev, q, &b, 1, &why));
    ops->event_record(dev, event, q);
    ops->queue_close(dev, &q);
    assert_memory_equal(buffer, seen(memory), 64);
    assert_int_equal(ops->event_query(dev, event), KN_OK); /* the event outlives the queue */
    assert_ok(ops->queue_open(dev, &q, &why));
    assert_ok(ops->read_blocks(dev, q, &b, 1, &why));
    ops->event_record(dev, event, q);
    ops->event_close(dev, &event); /* and the queue the event */
    ops->queue_close(dev, &q);
    assert_memory_equal(buffer, seen(memory), 64);
}

/* Staging that is the device's own memory costs nothing, and is not poisoned. */
static void the_same_bytes_stay(void **state)
{
    (void)state;
    struct kni_device_block b = row(64, 0, 64);
    unsigned char before[64];
    b.host = seen(plus(memory, 64));
    memcpy(before, b.host, 64);
    assert_ok(ops->write_blocks(dev, queue, &b, 1, &why));
    assert_memory_equal(b.host, before, 64);
    assert_ok(ops->read_blocks(dev, queue, &b, 1, &why));
    ops->event_record(dev, event, queue);
    assert_int_equal(ops->event_wait(dev, event), KN_OK);
    assert_memory_equal(b.host, before, 64);
}

/* Every copy below is wrong, with and without a queue, and nothing of its batch happens. */
static void refuse_all(struct kni_device_queue *q)
{
    struct kni_device_addr range = reserved(4 * STEP);
    struct kni_device_handle h = created(STEP);
    struct kni_device_block b[2] = {row(0, 0, 16), row(0, 100, 16)};
    unsigned char host_before[BYTES];
    memcpy(host_before, buffer, BYTES);
    assert_ok(ops->map(dev, range, h, &why));
    assert_ok(ops->alias(dev, plus(range, STEP), range, &why));
    assert_ok(ops->alias(dev, plus(range, 3 * STEP), range, &why));

    b[1].device = range;
    assert_refused(ops->read_blocks(dev, q, b, 2, &why), KN_E_STATE, "set_access first");
    assert_refused(ops->write_blocks(dev, q, b, 2, &why), KN_E_STATE, "set_access first");
    assert_refused(ops->copy_block(dev, q, range, memory, 16, &why), KN_E_STATE, "set_access first");
    assert_refused(ops->copy_block(dev, q, memory, range, 16, &why), KN_E_STATE, "set_access first");
    assert_ok(ops->set_access(dev, range, STEP, KNI_DEVICE_ACCESS_READ, &why));
    assert_refused(ops->write_blocks(dev, q, b, 2, &why), KN_E_STATE, "set_access first");
    assert_refused(ops->copy_block(dev, q, range, memory, 16, &why), KN_E_STATE, "set_access first");
    b[1].device = plus(range, STEP - 8); /* the next mapping has no access */
    assert_refused(ops->read_blocks(dev, q, b, 2, &why), KN_E_STATE, "set_access first");
    assert_ok(ops->set_access(dev, range, 2 * STEP, RW, &why));
    b[1].device = plus(range, 2 * STEP - 8); /* nothing is mapped behind */
    assert_refused(ops->read_blocks(dev, q, b, 2, &why), KN_E_STATE, "map it first");
    b[1].device = plus(range, 2 * STEP);
    assert_refused(ops->write_blocks(dev, q, b, 2, &why), KN_E_STATE, "map it first");
    b[1].device = plus(memory, BYTES - 15); /* one byte beyond an allocation */
    assert_refused(ops->read_blocks(dev, q, b, 2, &why), KN_E_ARG, "only 15 are allocated");
    b[1].device.at = 16;
    assert_refused(ops->read_blocks(dev, q, b, 2, &why), KN_E_ARG, "no memory of this device");
    assert_refused(ops->copy_block(dev, q, (struct kni_device_addr){(uintptr_t)buffer}, memory, 16, &why), KN_E_ARG,
                   "no memory of this device"); /* the host's is not */
    b[1] = (struct kni_device_block){.device = plus(memory, BYTES - 40),
                                     .host = buffer + 100,
                                     .device_stride_bytes = 20,
                                     .host_stride_bytes = 20,
                                     .row_bytes = 16,
                                     .n_rows = 3}; /* the third row */
    assert_refused(ops->write_blocks(dev, q, b, 2, &why), KN_E_ARG, "no memory of this device");
    assert_refused(ops->copy_block(dev, q, memory, plus(memory, 8), 16, &why), KN_E_ARG, "overlap");
    b[1] = row(0, 0, 16);
    b[1].host = seen(plus(memory, 15));
    assert_refused(ops->read_blocks(dev, q, b, 2, &why), KN_E_ARG, "overlap");
    assert_memory_equal(buffer, host_before, BYTES); /* not even the good block of each batch */

    b[0] = row(0, 100, 16);
    b[0].device = plus(range, STEP - 8); /* across two mappings, as CUDA allows */
    assert_ok(ops->write_blocks(dev, NULL, b, 1, &why));
    assert_memory_equal(seen(plus(range, STEP)), buffer + 108, 8);
    assert_memory_equal(seen(range), buffer + 108, 8); /* and these are one memory */
    assert_ok(ops->unmap(dev, range, 2 * STEP, &why));
    assert_ok(ops->unmap(dev, plus(range, 3 * STEP), STEP, &why));
    assert_ok(ops->release(dev, h, &why));
    assert_ok(ops->unreserve(dev, range, 4 * STEP, &why));
}

static void wrong_copies_are_refused(void **state)
{
    (void)state;
    refuse_all(queue);
    refuse_all(NULL);
}

static void memory_under_a_batch_stays(void **state)
{
    (void)state;
    struct kni_device_addr range = reserved(STEP), extra;
    struct kni_device_handle h = created(STEP);
    void *pinned;
    assert_ok(ops->alloc(dev, KNI_ALLOC_TAG_POOL, 64, &extra, &why));
    assert_ok(ops->host_alloc(dev, KNI_ALLOC_TAG_POOL, 64, &pinned, &why));
    assert_ok(ops->map(dev, range, h, &why));
    assert_ok(ops->set_access(dev, range, STEP, RW, &why));
    struct kni_device_block b = row(0, 0, 64);
    b.device = range;
    b.host = pinned;
    assert_ok(ops->read_blocks(dev, queue, &b, 1, &why));
    assert_ok(ops->copy_block(dev, queue, memory, extra, 64, &why));
    ops->event_record(dev, event, queue);
    assert_refused(ops->unmap(dev, range, STEP, &why), KN_E_STATE, "wait for its event");
    assert_refused(ops->set_access(dev, range, STEP, KNI_DEVICE_ACCESS_NONE, &why), KN_E_STATE, "wait for its event");
    assert_refused(ops->free(dev, extra, 64, &why), KN_E_STATE, "wait for its event");
    assert_refused(ops->free(dev, memory, BYTES, &why), KN_E_STATE, "wait for its event");
    assert_refused(ops->host_free(dev, pinned, 64, &why), KN_E_STATE, "wait for its event");
    assert_int_equal(ops->event_wait(dev, event), KN_OK);
    assert_ok(ops->unmap(dev, range, STEP, &why));
    assert_ok(ops->free(dev, extra, 64, &why));
    assert_ok(ops->host_free(dev, pinned, 64, &why));
    assert_ok(ops->release(dev, h, &why));
    assert_ok(ops->unreserve(dev, range, STEP, &why));
}

static void batches_that_meet_are_refused(void **state)
{
    (void)state;
    struct kni_device_queue *other;
    assert_ok(ops->queue_open(dev, &other, &why));
    struct kni_device_block in = row(0, 0, 64), same = row(63, 500, 64), out = row(32, 600, 8);
    assert_ok(ops->write_blocks(dev, queue, &in, 1, &why));
    assert_refused(ops->write_blocks(dev, other, &same, 1, &why), KN_E_STATE, "another queue"); /* write, write */
    assert_refused(ops->read_blocks(dev, other, &out, 1, &why), KN_E_STATE, "another queue");   /* write, read */
    assert_refused(ops->copy_block(dev, NULL, plus(memory, 900), memory, 8, &why), KN_E_STATE, "another queue");
    struct kni_device_block into_source = row(1000, 10, 8);
    assert_refused(ops->read_blocks(dev, other, &into_source, 1, &why), KN_E_STATE, "another queue"); /* read, write */
    struct kni_device_block shares_source = row(2000, 0, 64);
    assert_ok(ops->write_blocks(dev, other, &shares_source, 1, &why)); /* read, read */
    ops->event_record(dev, event, queue);
    assert_int_equal(ops->event_wait(dev, event), KN_OK);
    assert_ok(ops->read_blocks(dev, other, &out, 1, &why));
    ops->event_record(dev, event, other);
    assert_int_equal(ops->event_wait(dev, event), KN_OK);
    assert_memory_equal(buffer + 600, seen(memory) + 32, 8);
    ops->queue_close(dev, &other);
}

static void a_launch_without_memory(void **state)
{
    (void)state;
    struct kni_device_block b = row(0, 0, 64);
    unsigned char before[64];
    memcpy(before, buffer, 64);
    kni_alloc_fault_arm(1, false);
    assert_refused(ops->read_blocks(dev, queue, &b, 1, &why), KN_E_NOMEM, "launch fewer");
    assert_true(kni_alloc_fault_hit());
    assert_memory_equal(buffer, before, 64);
    struct kni_device_queue *no_queue = (void *)1;
    struct kni_device_event *no_event = (void *)1;
    kni_alloc_fault_arm(1, false);
    assert_refused(ops->queue_open(dev, &no_queue, &why), KN_E_NOMEM, "queue");
    assert_null(no_queue);
    kni_alloc_fault_arm(1, false);
    assert_refused(ops->event_open(dev, &no_event, &why), KN_E_NOMEM, "event");
    assert_null(no_event);
    kni_alloc_fault_arm(0, false);
}

/* The process's device neither allocates nor needs a lock for a copy: a decode step may make one. */
static void the_process_device_copies_at_once(void **state)
{
    (void)state;
    struct kni_device *d = kni_device_cpu();
    struct kni_device_addr a;
    struct kni_device_queue *q;
    struct kni_device_event *e;
    const struct kni_device_stats before = d->ops->get_stats(d);
    assert_ok(d->ops->alloc(d, KNI_ALLOC_TAG_POOL, 256, &a, &why));
    assert_ok(d->ops->queue_open(d, &q, &why));
    assert_ok(d->ops->event_open(d, &e, &why));
    struct kni_device_block b = {.device = a, .host = buffer, .row_bytes = 128, .n_rows = 1};
    memset(buffer, 9, 128);
    kni_alloc_forbid_begin();
    assert_int_equal(d->ops->write_blocks(d, q, &b, 1, NULL), KN_OK);
    assert_int_equal(d->ops->copy_block(d, NULL, plus(a, 128), a, 128, NULL), KN_OK);
    kni_alloc_forbid_end();
    d->ops->event_record(d, e, q);
    assert_int_equal(d->ops->event_query(d, e), KN_OK);
    assert_int_equal(((unsigned char *)d->ops->host(d, a))[255], 9);
    d->ops->event_close(d, &e);
    d->ops->queue_close(d, &q);
    assert_ok(d->ops->free(d, a, 256, &why));
    const struct kni_device_stats after = d->ops->get_stats(d);
    assert_memory_equal(&before, &after, sizeof before);
}

/* Each thread has its queue and its part of the memory; one hands its event to the main thread. */
struct lane {
    size_t at;
    unsigned n_wrong;
    struct kni_device_event *last;
    struct kni_device_queue *queue;
};

static void *transfer(void *arg)
{
    struct lane *lane = arg;
    unsigned char host[64], back[64];
    for (int i = 0; i < 100; i++) {
        memset(host, i, sizeof host);
        struct kni_device_block b = row(lane->at, 0, sizeof host);
        b.host = host;
        lane->n_wrong += ops->write_blocks(dev, lane->queue, &b, 1, NULL) != KN_OK;
        b.host = back;
        lane->n_wrong += ops->read_blocks(dev, lane->queue, &b, 1, NULL) != KN_OK;
        ops->event_record(dev, lane->last, lane->queue);
        enum kn_status status;
        while ((status = ops->event_query(dev, lane->last)) == KN_AGAIN)
            ;
        lane->n_wrong += status != KN_OK || memcmp(host, back, sizeof host);
    }
    struct kni_device_block b = row(lane->at, lane->at, 64);
    lane->n_wrong += ops->read_blocks(dev, lane->queue, &b, 1, NULL) != KN_OK;
    ops->event_record(dev, lane->last, lane->queue);
    return NULL;
}

static void queues_of_many_threads(void **state)
{
    (void)state;
    struct lane lanes[4];
    pthread_t threads[4];
    for (size_t i = 0; i < 4; i++) {
        lanes[i] = (struct lane){.at = i * 64};
        assert_ok(ops->queue_open(dev, &lanes[i].queue, &why));
        assert_ok(ops->event_open(dev, &lanes[i].last, &why));
        assert_int_equal(pthread_create(&threads[i], NULL, transfer, &lanes[i]), 0);
    }
    for (size_t i = 0; i < 4; i++) {
        pthread_join(threads[i], NULL);
        assert_int_equal(lanes[i].n_wrong, 0);
        assert_int_equal(ops->event_wait(dev, lanes[i].last), KN_OK);
        filled_with(buffer + lanes[i].at, 99, 64);
        ops->event_close(dev, &lanes[i].last);
        ops->queue_close(dev, &lanes[i].queue);
    }
}

int main(void)
{
#define AT_ONCE(test)                                                                                                  \
    {                                                                                                                  \
        "at once: " #test, test, set_up_at_once, tear_down, NULL                                                       \
    }
#define DELAYED(test)                                                                                                  \
    {                                                                                                                  \
        "delayed: " #test, test, set_up_delayed, tear_down, NULL                                                       \
    }
    const struct CMUnitTest tests[] = {
        AT_ONCE(rows_go_where_they_belong),
        DELAYED(rows_go_where_they_belong),
        AT_ONCE(at_once_means_at_once),
        DELAYED(a_read_that_is_not_waited_for_is_caught),
        DELAYED(staging_that_is_reused_too_early_is_caught),
        DELAYED(an_event_stands_for_what_was_launched_before_it),
        DELAYED(a_queue_keeps_its_order),
        AT_ONCE(closing_a_queue_waits),
        DELAYED(closing_a_queue_waits),
        AT_ONCE(the_same_bytes_stay),
        DELAYED(the_same_bytes_stay),
        AT_ONCE(wrong_copies_are_refused),
        DELAYED(wrong_copies_are_refused),
        DELAYED(memory_under_a_batch_stays),
        DELAYED(batches_that_meet_are_refused),
        DELAYED(a_launch_without_memory),
        AT_ONCE(the_process_device_copies_at_once),
        AT_ONCE(queues_of_many_threads),
        DELAYED(queues_of_many_threads),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
