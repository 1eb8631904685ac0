/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The memory verbs, in software: a reserved range is address space that nobody may touch (PROT_NONE), memory of handles
 * lies in one file without a name (memfd), and a mapping is a piece of that file put into the range (MAP_FIXED). Two
 * mappings of one handle show the same pages. What the driver of a GPU would refuse is refused from four tables:
 * ranges, mappings, memory by its offset in the file, and what copies have under way.
 *
 *     range     |.......[== mapping ==].....[== mapping ==]......|      addresses
 *                            |   +-----------------+
 *     file      [ memory of a handle ][ ... ][  hole: given back ]      offsets, each given once
 *
 * A handle's id is the device's number and the place in the file, so that one of another device is known as such, and
 * one that was released is never taken for a new one. Pages are the system's when they are first written, not at
 * create: what limits create is memory_bytes.
 */
#include <assert.h>
#include <errno.h>
#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include "device/cpu/device_cpu_state.h"

#define HUGE_PAGE_BYTES ((uint64_t)2 << 20)
#define ID_BITS 40u /* of the place; above them the device's number */

#define BIG(x) ((unsigned long long)(x)) /* for messages */

static void *pointer(uint64_t at)
{
    return (void *)(uintptr_t)at;
}

static enum kn_status check_step(const struct kni_device_cpu *c, const char *verb, uint64_t at, uint64_t bytes,
                                 struct kn_err *err)
{
    const size_t step = c->device.granularity_bytes;
    if (!bytes || bytes % step || at % step)
        return kni_err_set(err, KN_E_ARG,
                           "%s of %llu bytes at 0x%llx: both must be multiples of the granularity, %zu, and "
                           "the size not 0",
                           verb, BIG(bytes), BIG(at), step);
    return KN_OK;
}

enum kn_status kni_device_cpu_reserve(struct kni_device *d, size_t bytes, struct kni_device_addr *out,
                                      struct kn_err *err)
{
    struct kni_device_cpu *c = kni_device_cpu_of(d);
    const size_t step = d->granularity_bytes;
    size_t total;

    out->at = 0;
    enum kn_status status = check_step(c, "reserve", 0, bytes, err);
    if (status)
        return status;
    if (!kni_add_size(bytes, step, &total))
        return kni_err_set(err, KN_E_NOMEM, "reserve of %zu bytes: more than the address space; ask for less", bytes);
    pthread_mutex_lock(&c->lock);
    char *p = MAP_FAILED;
    if (kni_spans_make_room(&c->ranges))
        p = mmap(NULL, total, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (p == MAP_FAILED) {
        status = kni_err_set(err, KN_E_NOMEM, "reserve of %zu bytes: no address space; ask for less", bytes);
    } else {
        size_t before = (step - (uintptr_t)p % step) % step; /* cut off what is not aligned, and as much behind */
        if (before)
            munmap(p, before);
        munmap(p + before + bytes, step - before);
        out->at = (uintptr_t)p + before;
        kni_spans_add(&c->ranges, (struct kni_span){.at = out->at, .bytes = bytes});
        c->stats.reserved_bytes += bytes;
    }
    pthread_mutex_unlock(&c->lock);
    return status;
}

enum kn_status kni_device_cpu_unreserve(struct kni_device *d, struct kni_device_addr at, size_t bytes,
                                        struct kn_err *err)
{
    struct kni_device_cpu *c = kni_device_cpu_of(d);
    enum kn_status status = KN_OK;

    pthread_mutex_lock(&c->lock);
    struct kni_span *range = kni_spans_find(&c->ranges, at.at), *mapping;
    if (!range || range->bytes != bytes)
        status = kni_err_set(err, KN_E_ARG,
                             "unreserve of %zu bytes at 0x%llx: no such range is reserved; give back what "
                             "reserve gave, whole and once",
                             bytes, BIG(at.at));
    else if ((mapping = kni_spans_overlapping(&c->mappings, at.at, bytes)))
        status =
            kni_err_set(err, KN_E_STATE, "unreserve at 0x%llx: %llu bytes are still mapped at 0x%llx; unmap them first",
                        BIG(at.at), BIG(mapping->bytes), BIG(mapping->at));
    if (!status) {
        munmap(pointer(at.at), bytes);
        c->stats.reserved_bytes -= bytes;
        kni_spans_remove(&c->ranges, range);
    }
    pthread_mutex_unlock(&c->lock);
    return status;
}

enum kn_status kni_device_cpu_create(struct kni_device *d, size_t bytes, struct kni_device_handle *out,
                                     struct kn_err *err)
{
    struct kni_device_cpu *c = kni_device_cpu_of(d);
    uint64_t end;

    out->id = 0;
    enum kn_status status = check_step(c, "create", 0, bytes, err);
    if (status)
        return status;
    pthread_mutex_lock(&c->lock);
    if ((status = kni_device_cpu_take(c, &c->stats.created_bytes, bytes, "create", err)))
        goto done;
    if (c->memory_fd < 0)
        c->memory_fd = memfd_create("kinema-device", MFD_CLOEXEC);
    if (__builtin_add_overflow(c->memory_end, bytes, &end) || end > INT64_MAX || c->memory_fd < 0 ||
        !kni_spans_make_room(&c->memory) || ftruncate(c->memory_fd, (off_t)end)) {
        c->stats.created_bytes -= bytes;
        status = kni_err_set(err, KN_E_NOMEM, "create of %zu bytes: the system gives no memory; ask for less", bytes);
        goto done;
    }
    kni_spans_add(&c->memory, (struct kni_span){.at = c->memory_end, .bytes = bytes});
    out->id = ((uint64_t)c->number << ID_BITS) + c->memory_end / d->granularity_bytes + 1;
    c->memory_end = end;
done:
    pthread_mutex_unlock(&c->lock);
    return status;
}

/* Gives memory back that has neither a handle nor a mapping. */
static void drop_unused(struct kni_device_cpu *c, struct kni_span *memory)
{
    if (!memory->is_released || memory->n_mappings)
        return;
    const int hole = FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE;
    while (fallocate(c->memory_fd, hole, (off_t)memory->at, (off_t)memory->bytes) && errno == EINTR)
        ;
    c->stats.created_bytes -= memory->bytes;
    kni_spans_remove(&c->memory, memory);
}

/* The memory that a handle names, which the caller still holds. */
static enum kn_status look_up(struct kni_device_cpu *c, const char *verb, struct kni_device_handle handle,
                              struct kni_span **out, struct kn_err *err)
{
    const uint64_t place = handle.id - ((uint64_t)c->number << ID_BITS) - 1; /* foreign or 0: far beyond the end */
    const uint64_t n_places = c->memory_end / c->device.granularity_bytes;

    *out = NULL;
    if (place >= n_places)
        return kni_err_set(err, KN_E_ARG, "%s of handle %llu: this device gave no such handle; use one of its own",
                           verb, BIG(handle.id));
    *out = kni_spans_find(&c->memory, place * c->device.granularity_bytes);
    if (!*out || (*out)->is_released)
        return kni_err_set(err, KN_E_STATE, "%s of handle %llu: it was released; create another", verb, BIG(handle.id));
    return KN_OK;
}

enum kn_status kni_device_cpu_release(struct kni_device *d, struct kni_device_handle handle, struct kn_err *err)
{
    struct kni_device_cpu *c = kni_device_cpu_of(d);
    struct kni_span *memory;

    pthread_mutex_lock(&c->lock);
    enum kn_status status = look_up(c, "release", handle, &memory, err);
    if (!status) {
        memory->is_released = true;
        drop_unused(c, memory);
    }
    pthread_mutex_unlock(&c->lock);
    return status;
}

static enum kn_status map_memory(struct kni_device_cpu *c, const char *verb, uint64_t at, struct kni_span *memory,
                                 struct kn_err *err)
{
    const uint64_t bytes = memory->bytes;
    enum kn_status status = check_step(c, verb, at, bytes, err);
    if (status)
        return status;
    const struct kni_span *range = kni_spans_holding(&c->ranges, at);
    if (!range || bytes > range->bytes - (at - range->at))
        return kni_err_set(err, KN_E_ARG,
                           "%s of %llu bytes at 0x%llx: they do not lie in one reserved range; reserve it "
                           "first",
                           verb, BIG(bytes), BIG(at));
    const struct kni_span *other = kni_spans_overlapping(&c->mappings, at, bytes);
    if (other)
        return kni_err_set(err, KN_E_STATE,
                           "%s of %llu bytes at 0x%llx: %llu bytes are mapped at 0x%llx; unmap them first", verb,
                           BIG(bytes), BIG(at), BIG(other->bytes), BIG(other->at));
    if (!kni_spans_make_room(&c->mappings) ||
        mmap(pointer(at), bytes, PROT_NONE, MAP_SHARED | MAP_FIXED, c->memory_fd, (off_t)memory->at) == MAP_FAILED)
        return kni_err_set(err, KN_E_NOMEM,
                           "%s of %llu bytes at 0x%llx: the system maps no more; use fewer and larger "
                           "mappings",
                           verb, BIG(bytes), BIG(at));
    if (c->device.granularity_bytes >= HUGE_PAGE_BYTES) /* advice: small pages do as well */
        (void)madvise(pointer(at), bytes, MADV_HUGEPAGE);
    kni_spans_add(&c->mappings, (struct kni_span){.at = at, .bytes = bytes, .memory = memory->at});
    memory->n_mappings++;
    c->stats.mapped_bytes += bytes;
    return KN_OK;
}

enum kn_status kni_device_cpu_map(struct kni_device *d, struct kni_device_addr at, struct kni_device_handle handle,
                                  struct kn_err *err)
{
    struct kni_device_cpu *c = kni_device_cpu_of(d);
    struct kni_span *memory;

    pthread_mutex_lock(&c->lock);
    enum kn_status status = look_up(c, "map", handle, &memory, err);
    if (!status)
        status = map_memory(c, "map", at.at, memory, err);
    pthread_mutex_unlock(&c->lock);
    return status;
}

enum kn_status kni_device_cpu_alias(struct kni_device *d, struct kni_device_addr at, struct kni_device_addr from,
                                    struct kn_err *err)
{
    struct kni_device_cpu *c = kni_device_cpu_of(d);
    enum kn_status status;

    pthread_mutex_lock(&c->lock);
    const struct kni_span *mapping = kni_spans_holding(&c->mappings, from.at);
    if (!mapping)
        status = kni_err_set(err, KN_E_STATE, "alias of 0x%llx: nothing is mapped there; map it first", BIG(from.at));
    else if (mapping->at != from.at)
        status = kni_err_set(err, KN_E_ARG, "alias of 0x%llx: the mapping begins at 0x%llx; mappings are shared whole",
                             BIG(from.at), BIG(mapping->at));
    else
        status = map_memory(c, "alias", at.at, kni_spans_find(&c->memory, mapping->memory), err);
    pthread_mutex_unlock(&c->lock);
    return status;
}

/* Do whole mappings, side by side, fill the range, with no batch under way in it? */
static enum kn_status check_whole(const struct kni_device_cpu *c, const char *verb, uint64_t at, uint64_t bytes,
                                  struct kn_err *err)
{
    enum kn_status status = check_step(c, verb, at, bytes, err);
    if (status)
        return status;
    for (uint64_t done = 0; done < bytes;) {
        const struct kni_span *m = kni_spans_holding(&c->mappings, at + done);
        if (!m)
            return kni_err_set(err, KN_E_STATE,
                               "%s of %llu bytes at 0x%llx: nothing is mapped at 0x%llx; name only what is "
                               "mapped",
                               verb, BIG(bytes), BIG(at), BIG(at + done));
        if (m->at != at + done || m->bytes > bytes - done)
            return kni_err_set(err, KN_E_ARG,
                               "%s of %llu bytes at 0x%llx: a part of the mapping of %llu bytes at 0x%llx; "
                               "name it whole",
                               verb, BIG(bytes), BIG(at), BIG(m->bytes), BIG(m->at));
        done += m->bytes;
    }
    if (kni_device_cpu_is_busy(c, at, bytes))
        return kni_err_set(err, KN_E_STATE,
                           "%s of %llu bytes at 0x%llx: a batch is under way there; wait for its event "
                           "first",
                           verb, BIG(bytes), BIG(at));
    return KN_OK;
}

enum kn_status kni_device_cpu_set_access(struct kni_device *d, struct kni_device_addr at, size_t bytes,
                                         enum kni_device_access access, struct kn_err *err)
{
    static const int protections[] = {PROT_NONE, PROT_READ, PROT_READ | PROT_WRITE};
    struct kni_device_cpu *c = kni_device_cpu_of(d);

    if ((unsigned)access > KNI_DEVICE_ACCESS_READ_WRITE)
        return kni_err_set(err, KN_E_ARG,
                           "set_access: access %d is unknown; use none (0), read (1) or read and write (2)",
                           (int)access);
    pthread_mutex_lock(&c->lock);
    enum kn_status status = check_whole(c, "set_access", at.at, bytes, err);
    if (!status && mprotect(pointer(at.at), bytes, protections[access]))
        status = kni_err_set(err, KN_E_NOMEM,
                             "set_access of %zu bytes at 0x%llx: the system maps no more; use fewer and "
                             "larger mappings",
                             bytes, BIG(at.at));
    for (uint64_t done = 0; !status && done < bytes;) {
        struct kni_span *m = kni_spans_find(&c->mappings, at.at + done);
        m->access = (uint8_t)access;
        done += m->bytes;
    }
    pthread_mutex_unlock(&c->lock);
    return status;
}

static void forget_mapping(struct kni_device_cpu *c, struct kni_span *mapping)
{
    struct kni_span *memory = kni_spans_find(&c->memory, mapping->memory);
    assert(memory && memory->n_mappings);
    c->stats.mapped_bytes -= mapping->bytes;
    kni_spans_remove(&c->mappings, mapping);
    memory->n_mappings--;
    drop_unused(c, memory);
}

/* Makes it a plain part of its range again. A process that has as many mappings as the system allows may not even
 * replace one: what is mapped is closed then, and goes with the range; its memory can be given back all the same. */
static bool cover(uint64_t at, uint64_t bytes)
{
    const int flags = MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED;
    return mmap(pointer(at), bytes, PROT_NONE, flags, -1, 0) != MAP_FAILED || !mprotect(pointer(at), bytes, PROT_NONE);
}

enum kn_status kni_device_cpu_unmap(struct kni_device *d, struct kni_device_addr at, size_t bytes, struct kn_err *err)
{
    struct kni_device_cpu *c = kni_device_cpu_of(d);

    pthread_mutex_lock(&c->lock);
    enum kn_status status = check_whole(c, "unmap", at.at, bytes, err);
    if (!status && !cover(at.at, bytes))
        status =
            kni_err_set(err, KN_E_NOMEM, "unmap of %zu bytes at 0x%llx: the system refuses; unmap other mappings first",
                        bytes, BIG(at.at));
    for (uint64_t left = bytes;
         !status && left;) { /* the last first: only what lies behind the range moves in the table */
        struct kni_span *m = kni_spans_holding(&c->mappings, at.at + left - 1);
        left -= m->bytes;
        forget_mapping(c, m);
    }
    pthread_mutex_unlock(&c->lock);
    return status;
}

void kni_device_cpu_unmap_all(struct kni_device_cpu *c)
{
    for (uint32_t i = 0; i < c->ranges.n; i++)
        munmap(pointer(c->ranges.spans[i].at), c->ranges.spans[i].bytes);
    kni_spans_fini(&c->ranges);
    kni_spans_fini(&c->mappings);
    kni_spans_fini(&c->memory);
    if (c->memory_fd >= 0)
        close(c->memory_fd);
}

enum kn_status kni_device_cpu_check_access(struct kni_device_cpu *c, uint64_t at, uint64_t bytes, bool writes,
                                           struct kn_err *err)
{
    const char *verb = writes ? "write" : "read";
    const struct kni_span *span = kni_spans_holding(&c->allocs, at);
    if (span && bytes <= span->bytes - (at - span->at))
        return KN_OK;
    if (span)
        return kni_err_set(err, KN_E_ARG,
                           "a copy would %s %llu bytes at 0x%llx: only %llu are allocated there; stay inside", verb,
                           BIG(bytes), BIG(at), BIG(span->bytes - (at - span->at)));
    for (uint64_t done = 0; done < bytes;) {
        const uint64_t here = at + done;
        span = kni_spans_holding(&c->mappings, here);
        if (!span && (kni_spans_holding(&c->ranges, here)))
            return kni_err_set(err, KN_E_STATE,
                               "a copy would %s %llu bytes at 0x%llx: nothing is mapped at 0x%llx; map it "
                               "first",
                               verb, BIG(bytes), BIG(at), BIG(here));
        if (!span)
            return kni_err_set(err, KN_E_ARG,
                               "a copy would %s %llu bytes at 0x%llx: 0x%llx is no memory of this device; "
                               "stay inside what it gave",
                               verb, BIG(bytes), BIG(at), BIG(here));
        if (span->access < (writes ? KNI_DEVICE_ACCESS_READ_WRITE : KNI_DEVICE_ACCESS_READ))
            return kni_err_set(err, KN_E_STATE,
                               "a copy would %s %llu bytes at 0x%llx: the mapping at 0x%llx does not allow "
                               "it; call set_access first",
                               verb, BIG(bytes), BIG(at), BIG(span->at));
        done += span->bytes - (here - span->at);
    }
    return KN_OK;
}
