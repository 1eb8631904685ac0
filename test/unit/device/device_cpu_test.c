/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The CPU device's memory: ordinary memory; the verbs in order; each misuse, which must be refused with a sentence and
 * change nothing; faults that the processor must see (touched by a child); allocations that fail; everything given
 * back.
 */
#include "device_support.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/resource.h>
#include <sys/stat.h>

#include "base/log.h"

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define SANITIZED 1 /* they map memory of their own and cannot go on when the system maps no more */
#elif defined(__has_feature)
#if __has_feature(address_sanitizer) || __has_feature(thread_sanitizer)
#define SANITIZED 1
#endif
#endif
#ifndef SANITIZED
#define SANITIZED 0
#endif

#define RW KNI_DEVICE_ACCESS_READ_WRITE

static int set_up(void **state)
{
    (void)state;
    open_twin((struct kni_device_cpu_opts){0});
    return 0;
}

static int tear_down(void **state)
{
    (void)state;
    close_twin();
    return 0;
}

/* What the files behind handles of this process take. */
static uint64_t file_bytes(void)
{
    uint64_t sum = 0;
    for (int fd = 0; fd < 256; fd++) {
        char path[64], target[64] = "";
        struct stat s;
        snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
        if (readlink(path, target, sizeof target - 1) > 0 && strstr(target, "kinema-device") && !fstat(fd, &s))
            sum += (uint64_t)s.st_blocks * 512;
    }
    return sum;
}

static void ordinary_memory(void **state)
{
    (void)state;
    const uint64_t pool = kni_alloc_get_stats(KNI_ALLOC_TAG_POOL).current_bytes;
    struct kni_device_addr small, large;
    void *pinned;
    assert_ok(ops->alloc(dev, KNI_ALLOC_TAG_POOL, 100, &small, &why));
    assert_ok(ops->alloc(dev, KNI_ALLOC_TAG_POOL, (size_t)5 << 20, &large, &why));
    assert_ok(ops->host_alloc(dev, KNI_ALLOC_TAG_FETCH, 1000, &pinned, &why));
    assert_int_equal(small.at % 4096, 0);
    assert_int_equal(large.at % ((size_t)2 << 20), 0);
    assert_int_equal((uintptr_t)pinned % 4096, 0);
    assert_int_equal(kni_alloc_get_stats(KNI_ALLOC_TAG_POOL).current_bytes, pool + 100 + ((size_t)5 << 20));
    memset(seen(large), 1, (size_t)5 << 20);
    memset(pinned, 1, 1000);
    struct kni_device_stats s = ops->get_stats(dev);
    assert_int_equal(s.alloc_bytes, 100 + ((size_t)5 << 20));
    assert_int_equal(s.host_bytes, 1000);
    assert_refused(ops->alloc(dev, KNI_ALLOC_TAG_POOL, 0, &(struct kni_device_addr){0}, &why), KN_E_ARG, "0 bytes");
    assert_refused(ops->free(dev, small, 99, &why), KN_E_ARG, "not what was allocated");
    assert_refused(ops->free(dev, plus(large, 4096), 4096, &why), KN_E_ARG, "not what was allocated");
    assert_refused(ops->host_free(dev, seen(small), 100, &why), KN_E_ARG, "not what was allocated");
    assert_ok(ops->free(dev, small, 100, &why));
    assert_refused(ops->free(dev, small, 100, &why), KN_E_ARG, "not what was allocated"); /* twice */
    assert_ok(ops->free(dev, large, (size_t)5 << 20, &why));
    assert_ok(ops->host_free(dev, pinned, 1000, &why));
    assert_int_equal(kni_alloc_get_stats(KNI_ALLOC_TAG_POOL).current_bytes, pool);
}

static void memory_moves_with_its_handle(void **state)
{
    (void)state;
    struct kni_device_addr a = reserved(8 * STEP);
    struct kni_device_handle h = created(2 * STEP);
    assert_ok(ops->map(dev, a, h, &why));
    assert_ok(ops->set_access(dev, a, 2 * STEP, RW, &why));
    memset(seen(a), 7, 2 * STEP);
    struct kni_device_stats s = ops->get_stats(dev);
    assert_int_equal(s.reserved_bytes, 8 * STEP);
    assert_int_equal(s.created_bytes, 2 * STEP);
    assert_int_equal(s.mapped_bytes, 2 * STEP);
    assert_ok(ops->unmap(dev, a, 2 * STEP, &why));
    assert_int_equal(ops->get_stats(dev).mapped_bytes, 0);
    assert_ok(ops->map(dev, plus(a, 5 * STEP), h, &why));
    assert_ok(ops->set_access(dev, plus(a, 5 * STEP), 2 * STEP, RW, &why));
    assert_int_equal(seen(a)[6 * STEP], 7);
    assert_int_equal(file_bytes(), 2 * STEP);
    assert_ok(ops->unmap(dev, plus(a, 5 * STEP), 2 * STEP, &why));
    assert_int_equal(file_bytes(), 2 * STEP); /* the handle keeps it */
    assert_ok(ops->release(dev, h, &why));
    assert_int_equal(file_bytes(), 0);
    assert_ok(ops->unreserve(dev, a, 8 * STEP, &why));
}

/* As cuMemRelease: what is mapped stays until its last mapping goes, and the handle is no more. */
static void release_while_mapped(void **state)
{
    (void)state;
    struct kni_device_addr a = reserved(4 * STEP);
    struct kni_device_handle h = created(STEP);
    assert_ok(ops->map(dev, a, h, &why));
    assert_ok(ops->set_access(dev, a, STEP, RW, &why));
    assert_ok(ops->release(dev, h, &why));
    seen(a)[5] = 55;
    assert_refused(ops->release(dev, h, &why), KN_E_STATE, "was released");
    assert_refused(ops->map(dev, plus(a, STEP), h, &why), KN_E_STATE, "was released");
    assert_ok(ops->alias(dev, plus(a, STEP), a, &why)); /* as with cuMemRetainAllocationHandle */
    assert_ok(ops->set_access(dev, plus(a, STEP), STEP, RW, &why));
    assert_ok(ops->unmap(dev, a, STEP, &why));
    assert_int_equal(ops->get_stats(dev).created_bytes, STEP);
    assert_int_equal(seen(a)[STEP + 5], 55);
    assert_int_equal(file_bytes(), STEP);
    assert_ok(ops->unmap(dev, plus(a, STEP), STEP, &why));
    assert_int_equal(ops->get_stats(dev).created_bytes, 0);
    assert_int_equal(file_bytes(), 0);
    assert_refused(ops->release(dev, h, &why), KN_E_STATE, "was released");
    assert_ok(ops->unreserve(dev, a, 4 * STEP, &why));
}

static void aliases_share_bytes_and_not_access(void **state)
{
    (void)state;
    struct kni_device_addr a = reserved(4 * STEP), b = reserved(2 * STEP);
    struct kni_device_handle h = created(2 * STEP);
    assert_ok(ops->map(dev, a, h, &why));
    assert_ok(ops->alias(dev, b, a, &why));
    assert_ok(ops->map(dev, plus(a, 2 * STEP), h, &why)); /* the same, by handle */
    assert_int_equal(ops->get_stats(dev).mapped_bytes, 6 * STEP);
    assert_int_equal(ops->get_stats(dev).created_bytes, 2 * STEP);
    assert_ok(ops->set_access(dev, a, 2 * STEP, RW, &why));
    assert_int_equal(touch(b, false), SIGSEGV);
    assert_ok(ops->set_access(dev, b, 2 * STEP, KNI_DEVICE_ACCESS_READ, &why));
    seen(a)[STEP + 1] = 99;
    assert_int_equal(seen(b)[STEP + 1], 99);
    assert_int_equal(touch(b, false), 0);
    assert_int_equal(touch(b, true), SIGSEGV);
    assert_refused(ops->alias(dev, b, plus(a, STEP), &why), KN_E_ARG, "begins at");
    assert_refused(ops->alias(dev, b, a, &why), KN_E_STATE, "are mapped");
    assert_ok(ops->unmap(dev, b, 2 * STEP, &why));
    assert_refused(ops->alias(dev, a, b, &why), KN_E_STATE, "nothing is mapped");
    assert_ok(ops->unmap(dev, a, 4 * STEP, &why)); /* two whole ones */
    assert_ok(ops->release(dev, h, &why));
    assert_ok(ops->unreserve(dev, a, 4 * STEP, &why));
    assert_ok(ops->unreserve(dev, b, 2 * STEP, &why));
}

static void no_access_until_set(void **state)
{
    (void)state;
    struct kni_device_addr a = reserved(2 * STEP);
    struct kni_device_handle h = created(STEP);
    assert_int_equal(touch(a, false), SIGSEGV); /* reserved */
    assert_ok(ops->map(dev, a, h, &why));
    assert_int_equal(touch(a, false), SIGSEGV); /* mapped */
    assert_ok(ops->set_access(dev, a, STEP, RW, &why));
    assert_int_equal(touch(a, true), 0);
    assert_int_equal(touch(plus(a, STEP), false), SIGSEGV); /* beside it */
    assert_ok(ops->set_access(dev, a, STEP, KNI_DEVICE_ACCESS_NONE, &why));
    assert_int_equal(touch(a, false), SIGSEGV);
    assert_ok(ops->set_access(dev, a, STEP, RW, &why));
    assert_ok(ops->unmap(dev, a, STEP, &why));
    assert_int_equal(touch(a, false), SIGSEGV); /* unmapped */
    assert_ok(ops->map(dev, a, h, &why));
    assert_int_equal(touch(a, false), SIGSEGV); /* access is not kept */
    assert_ok(ops->unmap(dev, a, STEP, &why));
    assert_ok(ops->release(dev, h, &why));
    assert_ok(ops->unreserve(dev, a, 2 * STEP, &why));
}

static void misuse_is_refused(void **state)
{
    (void)state;
    struct kni_device_addr none, a = reserved(16 * STEP);
    struct kni_device_handle h = created(2 * STEP), k = created(STEP), bad;
    const struct kni_device_addr nowhere = {STEP};

    assert_refused(ops->reserve(dev, STEP + 1, &none, &why), KN_E_ARG, "granularity");
    assert_refused(ops->reserve(dev, 0, &none, &why), KN_E_ARG, "granularity");
    assert_refused(ops->reserve(dev, SIZE_MAX - STEP + 1, &none, &why), KN_E_NOMEM, "ask for less");
    assert_refused(ops->reserve(dev, (size_t)1 << 60, &none, &why), KN_E_NOMEM, "ask for less");
    assert_int_equal(none.at, 0);
    assert_refused(ops->create(dev, STEP / 2, &bad, &why), KN_E_ARG, "granularity");
    assert_refused(ops->create(dev, 0, &bad, &why), KN_E_ARG, "granularity");
    assert_refused(ops->create(dev, (size_t)1 << 63, &bad, &why), KN_E_NOMEM, "ask for less");
    assert_int_equal(bad.id, 0);

    assert_refused(ops->map(dev, plus(a, 1), h, &why), KN_E_ARG, "granularity");
    assert_refused(ops->map(dev, nowhere, h, &why), KN_E_ARG, "reserve it first");
    assert_refused(ops->map(dev, plus(a, 15 * STEP), h, &why), KN_E_ARG, "reserve it first"); /* ends beyond */
    assert_refused(ops->map(dev, a, (struct kni_device_handle){0}, &why), KN_E_ARG, "no such handle");
    assert_refused(ops->map(dev, a, (struct kni_device_handle){h.id + 1000}, &why), KN_E_ARG, "no such handle");
    assert_refused(ops->release(dev, (struct kni_device_handle){12345}, &why), KN_E_ARG, "no such handle");
    assert_refused(ops->set_access(dev, a, 2 * STEP, RW, &why), KN_E_STATE, "nothing is mapped");
    assert_refused(ops->unmap(dev, a, 2 * STEP, &why), KN_E_STATE, "nothing is mapped");

    assert_ok(ops->map(dev, plus(a, 2 * STEP), h, &why));
    assert_refused(ops->map(dev, plus(a, 2 * STEP), h, &why), KN_E_STATE, "unmap them first");
    assert_refused(ops->map(dev, plus(a, STEP), h, &why), KN_E_STATE, "unmap them first");     /* from below */
    assert_refused(ops->map(dev, plus(a, 3 * STEP), k, &why), KN_E_STATE, "unmap them first"); /* inside */
    assert_ok(ops->map(dev, plus(a, 4 * STEP), k, &why));
    assert_refused(ops->set_access(dev, plus(a, 2 * STEP), STEP, RW, &why), KN_E_ARG, "name it whole");
    assert_refused(ops->set_access(dev, plus(a, 3 * STEP), 2 * STEP, RW, &why), KN_E_ARG, "name it whole");
    assert_refused(ops->set_access(dev, plus(a, 2 * STEP), 4 * STEP, RW, &why), KN_E_STATE, "nothing is mapped");
    assert_refused(ops->set_access(dev, plus(a, 2 * STEP), 2 * STEP + 8, RW, &why), KN_E_ARG, "granularity");
    assert_refused(ops->set_access(dev, plus(a, 2 * STEP), 2 * STEP, (enum kni_device_access)3, &why), KN_E_ARG,
                   "unknown");
    assert_ok(ops->set_access(dev, plus(a, 2 * STEP), 3 * STEP, RW, &why)); /* two whole ones */
    assert_refused(ops->unmap(dev, plus(a, 2 * STEP), STEP, &why), KN_E_ARG, "name it whole");
    assert_refused(ops->unmap(dev, plus(a, 3 * STEP), 2 * STEP, &why), KN_E_ARG, "name it whole");
    assert_refused(ops->unmap(dev, plus(a, 2 * STEP), 4 * STEP, &why), KN_E_STATE, "nothing is mapped"); /* a gap */
    assert_refused(ops->unmap(dev, plus(a, 2 * STEP), 0, &why), KN_E_ARG, "granularity");
    assert_int_equal(touch(plus(a, 2 * STEP), true), 0); /* none of this has taken anything away */
    assert_refused(ops->unreserve(dev, a, 16 * STEP, &why), KN_E_STATE, "unmap them first");
    assert_ok(ops->unmap(dev, plus(a, 2 * STEP), 3 * STEP, &why));
    assert_refused(ops->unmap(dev, plus(a, 2 * STEP), 2 * STEP, &why), KN_E_STATE, "nothing is mapped"); /* twice */
    assert_refused(ops->unreserve(dev, a, 8 * STEP, &why), KN_E_ARG, "whole and once");
    assert_refused(ops->unreserve(dev, plus(a, STEP), 15 * STEP, &why), KN_E_ARG, "whole and once");
    assert_ok(ops->unreserve(dev, a, 16 * STEP, &why));
    assert_refused(ops->unreserve(dev, a, 16 * STEP, &why), KN_E_ARG, "whole and once");
    assert_ok(ops->release(dev, h, &why));
    assert_refused(ops->release(dev, h, &why), KN_E_STATE, "was released");
    struct kni_device_handle later = created(2 * STEP); /* does not take the old one's name */
    assert_refused(ops->release(dev, h, &why), KN_E_STATE, "was released");
    assert_ok(ops->release(dev, later, &why));
    assert_ok(ops->release(dev, k, &why));
    assert_int_equal(ops->map(dev, a, k, NULL), KN_E_STATE); /* no sentence wanted */
}

static void what_is_foreign_is_refused(void **state)
{
    (void)state;
    struct kni_device *other, *own = kni_device_cpu();
    assert_ok(kni_device_cpu_open(&other, &(struct kni_device_cpu_opts){.granularity_bytes = STEP}, &why));
    struct kni_device_addr a = reserved(STEP), foreign;
    struct kni_device_handle h = created(STEP), theirs, ours;
    assert_ok(other->ops->reserve(other, STEP, &foreign, &why));
    assert_ok(other->ops->create(other, STEP, &theirs, &why));
    assert_ok(own->ops->create(own, own->granularity_bytes, &ours, &why));
    assert_refused(ops->map(dev, a, theirs, &why), KN_E_ARG, "no such handle");
    assert_refused(ops->release(dev, theirs, &why), KN_E_ARG, "no such handle");
    assert_refused(ops->map(dev, a, ours, &why), KN_E_ARG, "no such handle");
    assert_int_equal(other->ops->map(other, foreign, h, &why), KN_E_ARG);
    assert_int_equal(own->ops->release(own, h, &why), KN_E_ARG);
    assert_refused(ops->map(dev, foreign, h, &why), KN_E_ARG, "reserve it first");
    assert_refused(ops->unreserve(dev, foreign, STEP, &why), KN_E_ARG, "no such range");
    assert_ok(other->ops->unreserve(other, foreign, STEP, &why));
    assert_ok(other->ops->release(other, theirs, &why));
    assert_ok(own->ops->release(own, ours, &why));
    other->ops->close(&other);
    assert_ok(ops->release(dev, h, &why));
    assert_ok(ops->unreserve(dev, a, STEP, &why));
}

static void little_memory(void **state)
{
    (void)state;
    open_twin((struct kni_device_cpu_opts){.memory_bytes = 4 * STEP});
    struct kni_device_addr a = {0}, r = reserved(64 * STEP); /* addresses cost nothing */
    struct kni_device_handle h = created(2 * STEP), more;
    assert_refused(ops->create(dev, 3 * STEP, &more, &why), KN_E_NOMEM, "of which 8192 are taken");
    assert_refused(ops->alloc(dev, KNI_ALLOC_TAG_POOL, 2 * STEP + 1, &a, &why), KN_E_NOMEM, "16384 bytes");
    assert_int_equal(a.at, 0);
    assert_ok(ops->alloc(dev, KNI_ALLOC_TAG_POOL, 2 * STEP, &a, &why));
    assert_refused(ops->create(dev, STEP, &more, &why), KN_E_NOMEM, "ask for less");
    assert_ok(ops->map(dev, r, h, &why));
    assert_ok(ops->release(dev, h, &why));
    assert_refused(ops->create(dev, STEP, &more, &why), KN_E_NOMEM, "ask for less"); /* still mapped */
    assert_ok(ops->unmap(dev, r, 2 * STEP, &why));
    more = created(2 * STEP);
    assert_ok(ops->release(dev, more, &why));
    assert_ok(ops->free(dev, a, 2 * STEP, &why));
    assert_ok(ops->unreserve(dev, r, 64 * STEP, &why));
    close_twin();
}

/* No file descriptor for a handle's memory, and no more mappings than the system allows a process. */
static void the_system_refuses(void **state)
{
    (void)state;
    struct rlimit files, no_files;
    struct kni_device_handle h;
    assert_int_equal(getrlimit(RLIMIT_NOFILE, &files), 0);
    no_files = files;
    no_files.rlim_cur = 0;
    assert_int_equal(setrlimit(RLIMIT_NOFILE, &no_files), 0);
    assert_refused(ops->create(dev, STEP, &h, &why), KN_E_NOMEM, "the system gives no memory");
    assert_int_equal(setrlimit(RLIMIT_NOFILE, &files), 0);
    h = created(STEP);

    unsigned long limit = 0;
    FILE *file = fopen("/proc/sys/vm/max_map_count", "r");
    assert_true(!file || fscanf(file, "%lu", &limit) == 1);
    if (file)
        fclose(file);
    const size_t most = 100000; /* a machine that allows more is not asked: it would take long */
    if (limit && limit < most && !SANITIZED) {
        struct kni_device_addr a = reserved(most * STEP);
        size_t n = 0;
        while (n < most && ops->map(dev, plus(a, n * STEP), h, &why) == KN_OK)
            n++;
        assert_true(n < limit);
        assert_refused(ops->map(dev, plus(a, n * STEP), h, &why), KN_E_NOMEM, "the system maps no more");
        assert_refused(ops->alias(dev, plus(a, n * STEP), a, &why), KN_E_NOMEM, "fewer and larger");
        assert_int_equal(ops->get_stats(dev).mapped_bytes, n * STEP);
        assert_ok(ops->set_access(dev, a, n * STEP, RW, &why));
        seen(a)[0] = 1;
        assert_ok(ops->unmap(dev, a, STEP, &why)); /* giving back works all the same */
        assert_int_equal(touch(a, false), SIGSEGV);
        assert_ok(ops->unmap(dev, plus(a, STEP), (n - 1) * STEP, &why));
        assert_ok(ops->release(dev, h, &why));
        assert_int_equal(file_bytes(), 0);
        assert_ok(ops->unreserve(dev, a, most * STEP, &why));
        h = created(STEP);
        a = reserved(STEP);
        assert_ok(ops->map(dev, a, h, &why));
        assert_ok(ops->unmap(dev, a, STEP, &why));
        assert_ok(ops->unreserve(dev, a, STEP, &why));
    }
    assert_ok(ops->release(dev, h, &why));
}

static void granularity(void **state)
{
    (void)state;
    struct kni_device *d = (void *)1;
    assert_int_equal(kni_device_cpu_open(&d, &(struct kni_device_cpu_opts){.granularity_bytes = 6144}, &why), KN_E_ARG);
    assert_null(d);
    assert_int_equal(kni_device_cpu_open(&d, &(struct kni_device_cpu_opts){.granularity_bytes = 512}, &why), KN_E_ARG);
    assert_non_null(strstr(why.text, "power of two"));
    assert_ok(kni_device_cpu_open(&d, NULL, &why));
    assert_int_equal(d->granularity_bytes, (size_t)2 << 20);
    d->ops->close(&d);
    assert_int_equal(kni_device_cpu()->granularity_bytes, (size_t)2 << 20);
    open_twin((struct kni_device_cpu_opts){.granularity_bytes = (size_t)2 << 20});
    struct kni_device_addr a = reserved((size_t)8 << 20);
    struct kni_device_handle h = created((size_t)4 << 20);
    assert_refused(ops->map(dev, plus(a, (size_t)1 << 20), h, &why), KN_E_ARG, "granularity");
    assert_ok(ops->map(dev, plus(a, (size_t)2 << 20), h, &why));
    assert_ok(ops->set_access(dev, plus(a, (size_t)2 << 20), (size_t)4 << 20, RW, &why));
    memset(seen(a) + ((size_t)2 << 20), 3, (size_t)4 << 20);
    assert_int_equal(touch(plus(a, (size_t)6 << 20), false), SIGSEGV);
    assert_int_equal(touch(plus(a, ((size_t)2 << 20) - 1), false), SIGSEGV);
    assert_ok(ops->unmap(dev, plus(a, (size_t)2 << 20), (size_t)4 << 20, &why));
    assert_ok(ops->release(dev, h, &why));
    assert_ok(ops->unreserve(dev, a, (size_t)8 << 20, &why));
    close_twin();
}

/* Of all that can be opened, one of each; then everything back. Stops at the first error. */
static enum kn_status one_of_each(void)
{
    struct kni_device_addr memory = {0}, range = {0};
    struct kni_device_handle h = {0};
    struct kni_device_queue *queue = NULL;
    struct kni_device_event *event = NULL;
    void *pinned = NULL;
    bool mapped = false;
    enum kn_status status = kni_device_cpu_open(&dev, &(struct kni_device_cpu_opts){.granularity_bytes = STEP}, NULL);
    if (status)
        return status;
    ops = dev->ops;
    if (!(status = ops->alloc(dev, KNI_ALLOC_TAG_POOL, 10, &memory, NULL)) &&
        !(status = ops->host_alloc(dev, KNI_ALLOC_TAG_POOL, 10, &pinned, NULL)) &&
        !(status = ops->reserve(dev, STEP, &range, NULL)) && !(status = ops->create(dev, STEP, &h, NULL)) &&
        !(status = ops->map(dev, range, h, NULL)) && (mapped = true) && !(status = ops->queue_open(dev, &queue, NULL)))
        status = ops->event_open(dev, &event, NULL);
    ops->event_close(dev, &event);
    ops->queue_close(dev, &queue);
    if (mapped)
        assert_ok(ops->unmap(dev, range, STEP, &why));
    if (h.id)
        assert_ok(ops->release(dev, h, &why));
    if (range.at)
        assert_ok(ops->unreserve(dev, range, STEP, &why));
    if (pinned)
        assert_ok(ops->host_free(dev, pinned, 10, &why));
    if (memory.at)
        assert_ok(ops->free(dev, memory, 10, &why));
    const struct kni_device_stats s = ops->get_stats(dev), empty = {0};
    assert_memory_equal(&s, &empty, sizeof s);
    ops->close(&dev);
    return status;
}

static void allocations_fail(void **state)
{
    (void)state;
    const uint64_t before = kni_alloc_get_stats(KNI_ALLOC_TAG_COUNT).current_bytes;
    for (uint64_t n = 1;; n++) {
        kni_alloc_fault_arm(n, false);
        enum kn_status status = one_of_each();
        bool hit = kni_alloc_fault_hit();
        kni_alloc_fault_arm(0, false);
        assert_int_equal(kni_alloc_get_stats(KNI_ALLOC_TAG_COUNT).current_bytes, before);
        assert_int_equal(status, hit ? KN_E_NOMEM : KN_OK);
        if (!hit) {
            assert_int_equal(n, 11);
            break;
        }
    }
}

static unsigned n_lines;
static char last_line[1024];

static void on_line(void *user, enum kn_log_level level, const char *area, const char *text)
{
    (void)user;
    assert_int_equal(level, KN_LOG_LEVEL_WARN);
    assert_string_equal(area, "device");
    n_lines++;
    snprintf(last_line, sizeof last_line, "%s", text);
}

static void close_names_what_is_left(void **state)
{
    (void)state;
    kn_log_set(on_line, NULL, KN_LOG_LEVEL_DEBUG);
    open_twin((struct kni_device_cpu_opts){.delay_queries = 1});
    close_twin();
    assert_int_equal(n_lines, 0);
    open_twin((struct kni_device_cpu_opts){.delay_queries = 1});
    struct kni_device_addr a = reserved(3 * STEP), m;
    struct kni_device_queue *queue;
    struct kni_device_event *event;
    void *pinned;
    assert_ok(ops->map(dev, a, created(2 * STEP), &why));
    assert_ok(ops->alloc(dev, KNI_ALLOC_TAG_POOL, 11, &m, &why));
    assert_ok(ops->host_alloc(dev, KNI_ALLOC_TAG_POOL, 12, &pinned, &why));
    assert_ok(ops->queue_open(dev, &queue, &why));
    assert_ok(ops->event_open(dev, &event, &why));
    assert_ok(ops->copy_block(dev, queue, m, plus(m, 5), 5, &why));
    ops->event_record(dev, event, queue);
    ops->close(&dev);
    kn_log_set(NULL, NULL, KN_LOG_LEVEL_DEBUG);
    assert_int_equal(n_lines, 1);
    assert_string_equal(last_line,
                        "a device closes with 11 bytes allocated, 12 of host memory, 12288 reserved, 8192 created, "
                        "8192 mapped, 1 queues, 1 events and 1 batches that were not given back");
    assert_int_equal(kni_alloc_get_stats(KNI_ALLOC_TAG_COUNT).current_bytes,
                     bytes_before); /* taken back all the same */
}

/* Random verbs against a model: which handle lies at each step of a range, where it begins, and what its bytes are. */
#define STEPS 24
#define HANDLES 6

static void random_walk(void **state)
{
    (void)state;
    struct kni_device_addr a = reserved(STEPS * STEP);
    struct kni_device_handle handles[HANDLES];
    size_t steps[HANDLES];
    unsigned char mark[HANDLES] = {0};
    int at[STEPS], begins[STEPS];
    unsigned n_refused = 0, n_done = 0;
    srand(11);
    for (int i = 0; i < STEPS; i++)
        at[i] = begins[i] = -1;
    for (int i = 0; i < HANDLES; i++)
        handles[i] = created((steps[i] = 1 + (size_t)i % 3) * STEP);
    for (int round = 0; round < 4000; round++) {
        int first = rand() % STEPS, h = rand() % HANDLES;
        size_t n = 1 + (size_t)rand() % 4;
        enum kn_status status, expected = KN_OK;
        if (rand() % 2) {
            n = steps[h];
            if (first + n > STEPS)
                expected = KN_E_ARG;
            for (size_t i = (size_t)first; i < (size_t)first + n && !expected; i++)
                expected = at[i] >= 0 ? KN_E_STATE : KN_OK;
            status = ops->map(dev, plus(a, (size_t)first * STEP), handles[h], &why);
            for (size_t i = 0; i < n && !expected; i++) {
                at[(size_t)first + i] = h;
                begins[(size_t)first + i] = first;
            }
            if (!status) {
                assert_ok(ops->set_access(dev, plus(a, (size_t)first * STEP), n * STEP, RW, &why));
                unsigned char *p = seen(a) + (size_t)first * STEP;
                assert_int_equal(p[0], mark[h]); /* fresh memory of the system is zero */
                assert_int_equal(p[n * STEP - 1], mark[h]);
                memset(p, mark[h] = (unsigned char)round, n * STEP);
            }
        } else {
            bool gap = false, part = false;
            for (size_t i = (size_t)first; i < (size_t)first + n; i++) {
                bool is_mapped = i < STEPS && at[i] >= 0;
                if (!is_mapped) {
                    gap = !part;
                    break;
                }
                part |= begins[i] < first || begins[i] + steps[at[i]] > (size_t)first + n;
            }
            expected = part ? KN_E_ARG : gap ? KN_E_STATE : KN_OK;
            status = ops->unmap(dev, plus(a, (size_t)first * STEP), n * STEP, &why);
            for (size_t i = (size_t)first; i < (size_t)first + n && !expected; i++)
                at[i] = begins[i] = -1;
        }
        assert_int_equal(status, expected);
        n_refused += status != KN_OK;
        n_done += status == KN_OK;
        uint64_t mapped = 0;
        for (int i = 0; i < STEPS; i++)
            mapped += at[i] >= 0 ? STEP : 0;
        assert_int_equal(ops->get_stats(dev).mapped_bytes, mapped);
    }
    assert_true(n_refused > 500 && n_done > 500);
    for (int i = 0; i < STEPS; i++)
        if (at[i] >= 0 && begins[i] == i)
            assert_ok(ops->unmap(dev, plus(a, (size_t)i * STEP), steps[at[i]] * STEP, &why));
    for (int i = 0; i < HANDLES; i++)
        assert_ok(ops->release(dev, handles[i], &why));
    assert_int_equal(file_bytes(), 0);
    assert_ok(ops->unreserve(dev, a, STEPS * STEP, &why));
}

static _Atomic unsigned n_wrong;

static void *map_and_unmap(void *arg)
{
    const unsigned char mark = *(unsigned char *)arg;
    for (int round = 0; round < 200; round++) {
        struct kni_device_addr a;
        struct kni_device_handle h;
        bool ok = !ops->reserve(dev, 2 * STEP, &a, NULL) && !ops->create(dev, STEP, &h, NULL) &&
                  !ops->map(dev, a, h, NULL) && !ops->alias(dev, plus(a, STEP), a, NULL) &&
                  !ops->set_access(dev, a, 2 * STEP, RW, NULL);
        if (ok) {
            seen(a)[round] = mark;
            ok = seen(a)[STEP + (size_t)round] == mark && !ops->release(dev, h, NULL) &&
                 !ops->unmap(dev, a, 2 * STEP, NULL) && !ops->unreserve(dev, a, 2 * STEP, NULL);
        }
        n_wrong += !ok;
    }
    return NULL;
}

static void verbs_from_many_threads(void **state)
{
    (void)state;
    pthread_t threads[4];
    unsigned char marks[4] = {1, 2, 3, 4};
    for (int i = 0; i < 4; i++)
        assert_int_equal(pthread_create(&threads[i], NULL, map_and_unmap, &marks[i]), 0);
    for (int i = 0; i < 4; i++)
        pthread_join(threads[i], NULL);
    assert_int_equal(n_wrong, 0);
}

int main(void)
{
#define ON_A_TWIN(test) cmocka_unit_test_setup_teardown(test, set_up, tear_down)
    const struct CMUnitTest tests[] = {
        ON_A_TWIN(ordinary_memory),
        ON_A_TWIN(memory_moves_with_its_handle),
        ON_A_TWIN(release_while_mapped),
        ON_A_TWIN(aliases_share_bytes_and_not_access),
        ON_A_TWIN(no_access_until_set),
        ON_A_TWIN(misuse_is_refused),
        ON_A_TWIN(what_is_foreign_is_refused),
        ON_A_TWIN(random_walk),
        ON_A_TWIN(verbs_from_many_threads),
        cmocka_unit_test(little_memory),
        ON_A_TWIN(the_system_refuses),
        cmocka_unit_test(granularity),
        cmocka_unit_test(allocations_fail),
        cmocka_unit_test(close_names_what_is_left),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
