/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Opening and closing, ordinary memory, and the table of operations.
 *
 * Ordinary memory of 2 MB and more asks for pages of that size: a pool's reader jumps by a block's size at each step,
 * and with pages of 4 kB would miss the translation cache each time.
 */
#include "device/cpu/device_cpu.h"

#include <assert.h>
#include <stdatomic.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "base/log.h"
#include "device/cpu/device_cpu_state.h"

#define HUGE_PAGE_BYTES ((size_t)2 << 20)
#define PAGE_BYTES ((size_t)4096)

enum kn_status kni_device_cpu_take(struct kni_device_cpu *c, uint64_t *counter, size_t bytes, const char *what,
                                   struct kn_err *err)
{
    uint64_t taken = c->stats.alloc_bytes + c->stats.created_bytes;
    if (c->memory_bytes && (taken > c->memory_bytes || bytes > c->memory_bytes - taken))
        return kni_err_set(err, KN_E_NOMEM,
                           "%s of %zu bytes: the device has %llu bytes, of which %llu are taken; ask for less", what,
                           bytes, (unsigned long long)c->memory_bytes, (unsigned long long)taken);
    *counter += bytes;
    return KN_OK;
}

static enum kn_status take(struct kni_device_cpu *c, bool is_host, enum kni_alloc_tag tag, size_t bytes, void **out,
                           struct kn_err *err)
{
    const char *what = is_host ? "host_alloc" : "alloc";
    struct kni_spans *table = is_host ? &c->hosts : &c->allocs;
    enum kn_status status = KN_OK;
    void *memory = NULL;

    *out = NULL;
    if (!bytes)
        return kni_err_set(err, KN_E_ARG, "%s of 0 bytes: ask for at least 1", what);
    pthread_mutex_lock(&c->lock);
    if (!is_host)
        status = kni_device_cpu_take(c, &c->stats.alloc_bytes, bytes, what, err);
    else
        c->stats.host_bytes += bytes;
    if (status)
        goto done;
    memory = kni_alloc(tag, bytes, bytes < HUGE_PAGE_BYTES ? PAGE_BYTES : HUGE_PAGE_BYTES);
    if (!memory || (c->checks_copies && !kni_spans_make_room(table))) {
        kni_free(memory);
        *(is_host ? &c->stats.host_bytes : &c->stats.alloc_bytes) -= bytes;
        status = kni_err_set(err, KN_E_NOMEM, "%s of %zu bytes: out of memory; ask for less", what, bytes);
        goto done;
    }
    if (bytes >= HUGE_PAGE_BYTES) /* advice: small pages do as well where the system refuses */
        (void)madvise(memory, bytes & ~(HUGE_PAGE_BYTES - 1), MADV_HUGEPAGE);
    if (c->checks_copies)
        kni_spans_add(table, (struct kni_span){.at = (uintptr_t)memory, .bytes = bytes});
    *out = memory;
done:
    pthread_mutex_unlock(&c->lock);
    return status;
}

static enum kn_status give(struct kni_device_cpu *c, bool is_host, void *memory, size_t bytes, struct kn_err *err)
{
    const char *what = is_host ? "host_free" : "free";
    struct kni_spans *table = is_host ? &c->hosts : &c->allocs;
    const uint64_t at = (uintptr_t)memory;
    enum kn_status status = KN_OK;

    pthread_mutex_lock(&c->lock);
    struct kni_span *span = c->checks_copies ? kni_spans_find(table, at) : NULL;
    if (c->checks_copies && (!span || span->bytes != bytes))
        status = kni_err_set(err, KN_E_ARG,
                             "%s of %zu bytes at 0x%llx: that is not what was allocated; give back what "
                             "alloc gave",
                             what, bytes, (unsigned long long)at);
    else if (kni_device_cpu_is_busy(c, at, bytes))
        status = kni_err_set(err, KN_E_STATE, "%s at 0x%llx: a batch is under way there; wait for its event first",
                             what, (unsigned long long)at);
    if (!status) {
        *(is_host ? &c->stats.host_bytes : &c->stats.alloc_bytes) -= bytes;
        if (span)
            kni_spans_remove(table, span);
        kni_free(memory);
    }
    pthread_mutex_unlock(&c->lock);
    return status;
}

static enum kn_status alloc_memory(struct kni_device *d, enum kni_alloc_tag tag, size_t bytes,
                                   struct kni_device_addr *out, struct kn_err *err)
{
    void *memory;
    enum kn_status status = take(kni_device_cpu_of(d), false, tag, bytes, &memory, err);
    out->at = (uintptr_t)memory;
    return status;
}

static enum kn_status free_memory(struct kni_device *d, struct kni_device_addr at, size_t bytes, struct kn_err *err)
{
    return give(kni_device_cpu_of(d), false, (void *)(uintptr_t)at.at, bytes, err);
}

static enum kn_status alloc_host(struct kni_device *d, enum kni_alloc_tag tag, size_t bytes, void **out,
                                 struct kn_err *err)
{
    return take(kni_device_cpu_of(d), true, tag, bytes, out, err);
}

static enum kn_status free_host(struct kni_device *d, void *memory, size_t bytes, struct kn_err *err)
{
    return give(kni_device_cpu_of(d), true, memory, bytes, err);
}

static void *host(struct kni_device *d, struct kni_device_addr at)
{
    (void)d;
    return (void *)(uintptr_t)at.at;
}

static struct kni_device_stats get_stats(struct kni_device *d)
{
    struct kni_device_cpu *c = kni_device_cpu_of(d);
    pthread_mutex_lock(&c->lock);
    struct kni_device_stats stats = c->stats;
    pthread_mutex_unlock(&c->lock);
    return stats;
}

static void close_device(struct kni_device **d);

static const struct kni_device_ops ops = {
    .name = "cpu",
    .close = close_device,
    .get_stats = get_stats,
    .alloc = alloc_memory,
    .free = free_memory,
    .host_alloc = alloc_host,
    .host_free = free_host,
    .host = host,
    .reserve = kni_device_cpu_reserve,
    .unreserve = kni_device_cpu_unreserve,
    .create = kni_device_cpu_create,
    .release = kni_device_cpu_release,
    .map = kni_device_cpu_map,
    .alias = kni_device_cpu_alias,
    .set_access = kni_device_cpu_set_access,
    .unmap = kni_device_cpu_unmap,
    .queue_open = kni_device_cpu_queue_open,
    .queue_close = kni_device_cpu_queue_close,
    .copy_block = kni_device_cpu_copy_block,
    .read_blocks = kni_device_cpu_read_blocks,
    .write_blocks = kni_device_cpu_write_blocks,
    .event_open = kni_device_cpu_event_open,
    .event_close = kni_device_cpu_event_close,
    .event_record = kni_device_cpu_event_record,
    .event_query = kni_device_cpu_event_query,
    .event_wait = kni_device_cpu_event_wait,
};

static struct kni_device_cpu process_device = {
    .device = {.ops = &ops, .granularity_bytes = HUGE_PAGE_BYTES},
    .lock = PTHREAD_MUTEX_INITIALIZER,
    .memory_fd = -1,
};

struct kni_device *kni_device_cpu(void)
{
    return &process_device.device;
}

enum kn_status kni_device_cpu_open(struct kni_device **out, const struct kni_device_cpu_opts *opts, struct kn_err *err)
{
    static _Atomic uint32_t n_opened; /* relaxed: a number that nobody else gets */
    const struct kni_device_cpu_opts none = {0}, *o = opts ? opts : &none;
    const size_t granularity = o->granularity_bytes ? o->granularity_bytes : HUGE_PAGE_BYTES;
    const long page = sysconf(_SC_PAGESIZE);

    *out = NULL;
    if (granularity & (granularity - 1) || granularity < (size_t)page)
        return kni_err_set(err, KN_E_ARG, "granularity_bytes is %zu: use a power of two, at least %ld", granularity,
                           page);
    struct kni_device_cpu *c = kni_calloc(KNI_ALLOC_TAG_MISC, sizeof *c, 0);
    if (!c)
        return kni_err_set(err, KN_E_NOMEM, "no memory for a device's book-keeping");
    c->device = (struct kni_device){.ops = &ops, .granularity_bytes = granularity};
    c->checks_copies = true;
    c->delay_queries = o->delay_queries;
    c->memory_bytes = o->memory_bytes;
    c->number = 1 + atomic_fetch_add_explicit(&n_opened, 1, memory_order_relaxed);
    c->memory_fd = -1;
    pthread_mutex_init(&c->lock, NULL);
    *out = &c->device;
    return KN_OK;
}

static void free_all(struct kni_spans *t)
{
    for (uint32_t i = 0; i < t->n; i++)
        kni_free((void *)(uintptr_t)t->spans[i].at);
    kni_spans_fini(t);
}

static void close_device(struct kni_device **d)
{
    if (!*d)
        return;
    struct kni_device_cpu *c = kni_device_cpu_of(*d);
    assert(c != &process_device);
    *d = NULL;
    const struct kni_device_stats s = c->stats, empty = {0};
    if (memcmp(&s, &empty, sizeof s))
        kni_log(
            KN_LOG_LEVEL_WARN, "device",
            "a device closes with %llu bytes allocated, %llu of host memory, %llu reserved, %llu created, %llu mapped, "
            "%llu queues, %llu events and %llu batches that were not given back",
            (unsigned long long)s.alloc_bytes, (unsigned long long)s.host_bytes, (unsigned long long)s.reserved_bytes,
            (unsigned long long)s.created_bytes, (unsigned long long)s.mapped_bytes, (unsigned long long)s.n_queues,
            (unsigned long long)s.n_events, (unsigned long long)s.n_batches);
    kni_device_cpu_close_queues(c);
    kni_device_cpu_unmap_all(c);
    free_all(&c->allocs);
    free_all(&c->hosts);
    pthread_mutex_destroy(&c->lock);
    kni_free(c);
}
