/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Copies, queues and events. Without delay a copy is made before its launch returns, a queue holds nothing, and an
 * event is over as soon as it is recorded.
 *
 * With delay_queries a batch stays in its queue as rows to move, their targets full of poison, until an event behind it
 * is over: at the query that has answered KN_AGAIN often enough, or at a wait. The rows are moved then, in the queue's
 * order, by the thread that asks. So a caller that reads too early finds poison, one that fills its source anew too
 * early sends the new bytes, and one that forgets to wait never gets its bytes: each time, not only when a thread
 * happens to be slow.
 */
#include <assert.h>
#include <string.h>

#include "device/cpu/device_cpu_state.h"

/* What a launch moves: the rows of blocks, or one piece. */
struct launch {
    const struct kni_device_block *blocks;
    uint32_t n;
    bool writes_device;
    struct kni_device_move piece; /* with n == 0 */
};

static bool overlap(uint64_t a, uint64_t a_bytes, uint64_t b, uint64_t b_bytes)
{
    return a < b + b_bytes && b < a + a_bytes;
}

static struct kni_device_move row_of(const struct launch *l, uint32_t block, uint32_t row)
{
    const struct kni_device_block *b = &l->blocks[block];
    const uint64_t device = b->device.at + (uint64_t)row * b->device_stride_bytes;
    const uint64_t host = (uintptr_t)b->host + (uint64_t)row * b->host_stride_bytes;
    return l->writes_device ? (struct kni_device_move){device, host, b->row_bytes}
                            : (struct kni_device_move){host, device, b->row_bytes};
}

static void move(const struct kni_device_move *m)
{
    if (m->to != m->from)
        memcpy((void *)(uintptr_t)m->to, (const void *)(uintptr_t)m->from, m->bytes);
}

/* Does a batch under way stand in the way: it writes what m touches, or touches what m writes? Batches of the same
 * queue come first anyway. */
static bool conflicts(const struct kni_device_cpu *c, const struct kni_device_queue *own,
                      const struct kni_device_move *m)
{
    for (const struct kni_device_queue *q = c->queues; q; q = q->next)
        for (const struct kni_device_batch *b = q == own ? NULL : q->first; b; b = b->next)
            for (size_t i = 0; i < b->n; i++)
                if (overlap(m->to, m->bytes, b->moves[i].to, b->moves[i].bytes) ||
                    overlap(m->to, m->bytes, b->moves[i].from, b->moves[i].bytes) ||
                    overlap(m->from, m->bytes, b->moves[i].to, b->moves[i].bytes))
                    return true;
    return false;
}

bool kni_device_cpu_is_busy(const struct kni_device_cpu *c, uint64_t at, uint64_t bytes)
{
    for (const struct kni_device_queue *q = c->queues; q; q = q->next)
        for (const struct kni_device_batch *b = q->first; b; b = b->next)
            for (size_t i = 0; i < b->n; i++)
                if (overlap(at, bytes, b->moves[i].to, b->moves[i].bytes) ||
                    overlap(at, bytes, b->moves[i].from, b->moves[i].bytes))
                    return true;
    return false;
}

/* With the lock held. to_device, from_device: which sides lie in the device's memory. */
static enum kn_status check_move(struct kni_device_cpu *c, const struct kni_device_queue *queue,
                                 const struct kni_device_move *m, bool to_device, bool from_device, struct kn_err *err)
{
    enum kn_status status = KN_OK;
    if (from_device)
        status = kni_device_cpu_check_access(c, m->from, m->bytes, false, err);
    if (!status && to_device)
        status = kni_device_cpu_check_access(c, m->to, m->bytes, true, err);
    if (status)
        return status;
    if (m->to != m->from && overlap(m->to, m->bytes, m->from, m->bytes))
        return kni_err_set(err, KN_E_ARG, "a copy of %llu bytes from 0x%llx to 0x%llx: the two overlap; copy apart",
                           (unsigned long long)m->bytes, (unsigned long long)m->from, (unsigned long long)m->to);
    if (conflicts(c, queue, m))
        return kni_err_set(err, KN_E_STATE,
                           "a copy of %llu bytes from 0x%llx to 0x%llx: another queue's batch is under way "
                           "there; wait for its event first",
                           (unsigned long long)m->bytes, (unsigned long long)m->from, (unsigned long long)m->to);
    return KN_OK;
}

static enum kn_status check_launch(struct kni_device_cpu *c, const struct kni_device_queue *queue,
                                   const struct launch *l, struct kn_err *err)
{
    enum kn_status status = l->n ? KN_OK : check_move(c, queue, &l->piece, true, true, err);
    for (uint32_t i = 0; i < l->n; i++)
        for (uint32_t row = 0; row < l->blocks[i].n_rows && !status; row++) {
            struct kni_device_move m = row_of(l, i, row);
            status = check_move(c, queue, &m, l->writes_device, !l->writes_device, err);
        }
    return status;
}

static void move_now(const struct launch *l)
{
    if (!l->n)
        move(&l->piece);
    for (uint32_t i = 0; i < l->n; i++)
        for (uint32_t row = 0; row < l->blocks[i].n_rows; row++) {
            struct kni_device_move m = row_of(l, i, row);
            move(&m);
        }
}

/* With the lock held. */
static enum kn_status delay(struct kni_device_cpu *c, struct kni_device_queue *queue, const struct launch *l,
                            struct kn_err *err)
{
    size_t n = !l->n, bytes;
    for (uint32_t i = 0; i < l->n; i++)
        n += l->blocks[i].n_rows;
    struct kni_device_batch *batch = NULL;
    if (kni_mul_size(n, sizeof *batch->moves, &bytes) && kni_add_size(bytes, sizeof *batch, &bytes))
        batch = kni_alloc(KNI_ALLOC_TAG_MISC, bytes, 0);
    if (!batch)
        return kni_err_set(err, KN_E_NOMEM, "no memory for a delayed batch of %zu rows: launch fewer", n);
    *batch = (struct kni_device_batch){.serial = ++queue->n_launched};
    if (!l->n)
        batch->moves[batch->n++] = l->piece;
    for (uint32_t i = 0; i < l->n; i++)
        for (uint32_t row = 0; row < l->blocks[i].n_rows; row++)
            batch->moves[batch->n++] = row_of(l, i, row);
    for (size_t i = 0; i < batch->n; i++)
        if (batch->moves[i].to != batch->moves[i].from)
            memset((void *)(uintptr_t)batch->moves[i].to, KNI_DEVICE_CPU_POISON, batch->moves[i].bytes);
    *queue->end = batch;
    queue->end = &batch->next;
    c->stats.n_batches++;
    return KN_OK;
}

/* With the lock held: makes the copies of a queue's batches up to serial. */
static void finish(struct kni_device_cpu *c, struct kni_device_queue *queue, uint64_t serial)
{
    struct kni_device_batch *b;
    while ((b = queue->first) && b->serial <= serial) {
        for (size_t i = 0; i < b->n; i++)
            move(&b->moves[i]);
        queue->first = b->next;
        if (!queue->first)
            queue->end = &queue->first;
        kni_free(b);
        c->stats.n_batches--;
    }
}

static enum kn_status launch(struct kni_device *d, struct kni_device_queue *queue, const struct launch *l,
                             struct kn_err *err)
{
    struct kni_device_cpu *c = kni_device_cpu_of(d);
    const bool delays = queue && c->delay_queries;
    enum kn_status status = KN_OK;

    assert(!queue || queue->device == d);
    if (c->checks_copies) {
        pthread_mutex_lock(&c->lock);
        status = check_launch(c, queue, l, err);
        if (!status && delays)
            status = delay(c, queue, l, err);
        pthread_mutex_unlock(&c->lock);
    }
    if (!status && !delays)
        move_now(l);
    return status;
}

enum kn_status kni_device_cpu_copy_block(struct kni_device *d, struct kni_device_queue *queue,
                                         struct kni_device_addr to, struct kni_device_addr from, size_t bytes,
                                         struct kn_err *err)
{
    return launch(d, queue, &(struct launch){.piece = {.to = to.at, .from = from.at, .bytes = bytes}}, err);
}

enum kn_status kni_device_cpu_read_blocks(struct kni_device *d, struct kni_device_queue *queue,
                                          const struct kni_device_block *blocks, uint32_t n, struct kn_err *err)
{
    return n ? launch(d, queue, &(struct launch){.blocks = blocks, .n = n}, err) : KN_OK;
}

enum kn_status kni_device_cpu_write_blocks(struct kni_device *d, struct kni_device_queue *queue,
                                           const struct kni_device_block *blocks, uint32_t n, struct kn_err *err)
{
    return n ? launch(d, queue, &(struct launch){.blocks = blocks, .n = n, .writes_device = true}, err) : KN_OK;
}

/* ---- queues */

enum kn_status kni_device_cpu_queue_open(struct kni_device *d, struct kni_device_queue **out, struct kn_err *err)
{
    struct kni_device_cpu *c = kni_device_cpu_of(d);
    struct kni_device_queue *q = *out = kni_calloc(KNI_ALLOC_TAG_MISC, sizeof *q, 0);
    if (!q)
        return kni_err_set(err, KN_E_NOMEM, "no memory for a queue of the device");
    q->device = d;
    q->end = &q->first;
    pthread_mutex_lock(&c->lock);
    q->next = c->queues;
    c->queues = q;
    c->stats.n_queues++;
    pthread_mutex_unlock(&c->lock);
    return KN_OK;
}

/* With the lock held. Events that stand for something in the queue outlive it: they are over. */
static void close_queue(struct kni_device_cpu *c, struct kni_device_queue *queue)
{
    finish(c, queue, UINT64_MAX);
    for (struct kni_device_event *e = c->events; e; e = e->next)
        if (e->queue == queue)
            e->queue = NULL;
    struct kni_device_queue **at = &c->queues;
    while (*at != queue)
        at = &(*at)->next;
    *at = queue->next;
    c->stats.n_queues--;
    kni_free(queue);
}

void kni_device_cpu_queue_close(struct kni_device *d, struct kni_device_queue **queue)
{
    struct kni_device_cpu *c = kni_device_cpu_of(d);
    if (!*queue)
        return;
    assert((*queue)->device == d);
    pthread_mutex_lock(&c->lock);
    close_queue(c, *queue);
    pthread_mutex_unlock(&c->lock);
    *queue = NULL;
}

/* ---- events */

enum kn_status kni_device_cpu_event_open(struct kni_device *d, struct kni_device_event **out, struct kn_err *err)
{
    struct kni_device_cpu *c = kni_device_cpu_of(d);
    struct kni_device_event *e = *out = kni_calloc(KNI_ALLOC_TAG_MISC, sizeof *e, 0);
    if (!e)
        return kni_err_set(err, KN_E_NOMEM, "no memory for an event of the device");
    e->device = d;
    pthread_mutex_lock(&c->lock);
    e->next = c->events;
    c->events = e;
    c->stats.n_events++;
    pthread_mutex_unlock(&c->lock);
    return KN_OK;
}

/* With the lock held. */
static void close_event(struct kni_device_cpu *c, struct kni_device_event *event)
{
    struct kni_device_event **at = &c->events;
    while (*at != event)
        at = &(*at)->next;
    *at = event->next;
    c->stats.n_events--;
    kni_free(event);
}

void kni_device_cpu_event_close(struct kni_device *d, struct kni_device_event **event)
{
    struct kni_device_cpu *c = kni_device_cpu_of(d);
    if (!*event)
        return;
    assert((*event)->device == d);
    pthread_mutex_lock(&c->lock);
    close_event(c, *event);
    pthread_mutex_unlock(&c->lock);
    *event = NULL;
}

void kni_device_cpu_event_record(struct kni_device *d, struct kni_device_event *event, struct kni_device_queue *queue)
{
    struct kni_device_cpu *c = kni_device_cpu_of(d);
    assert(event->device == d && queue->device == d);
    pthread_mutex_lock(&c->lock);
    event->is_recorded = true;
    event->queue = queue->first ? queue : NULL;
    event->serial = queue->n_launched;
    event->n_queries = 0;
    pthread_mutex_unlock(&c->lock);
}

static enum kn_status ask(struct kni_device *d, struct kni_device_event *event, bool waits)
{
    struct kni_device_cpu *c = kni_device_cpu_of(d);
    enum kn_status status = KN_OK;

    assert(event->device == d);
    pthread_mutex_lock(&c->lock);
    if (!event->is_recorded) {
        status = KN_E_STATE;
    } else if (event->queue) {
        if (waits || event->n_queries++ >= c->delay_queries || !event->queue->first ||
            event->queue->first->serial > event->serial) {
            finish(c, event->queue, event->serial);
            event->queue = NULL;
        } else {
            status = KN_AGAIN;
        }
    }
    pthread_mutex_unlock(&c->lock);
    return status;
}

enum kn_status kni_device_cpu_event_query(struct kni_device *d, struct kni_device_event *event)
{
    return ask(d, event, false);
}

enum kn_status kni_device_cpu_event_wait(struct kni_device *d, struct kni_device_event *event)
{
    return ask(d, event, true);
}

void kni_device_cpu_close_queues(struct kni_device_cpu *c)
{
    while (c->queues)
        close_queue(c, c->queues);
    while (c->events)
        close_event(c, c->events);
}
