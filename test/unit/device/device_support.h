/* SPDX-License-Identifier: Apache-2.0 */
/* For tests of a device: shorter names, and a child that touches memory. */
#ifndef KN_TEST_DEVICE_SUPPORT_H
#define KN_TEST_DEVICE_SUPPORT_H

#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

#include "base/alloc.h"
#include "device/cpu/device_cpu.h"

#define STEP ((size_t)4096) /* granularity of twins in tests */

static struct kni_device *dev;
static const struct kni_device_ops *ops;
static struct kn_err why;
static uint64_t bytes_before;

static inline void open_twin(struct kni_device_cpu_opts o)
{
    bytes_before = kni_alloc_get_stats(KNI_ALLOC_TAG_COUNT).current_bytes;
    o.granularity_bytes = o.granularity_bytes ? o.granularity_bytes : STEP;
    assert_int_equal(kni_device_cpu_open(&dev, &o, &why), KN_OK);
    ops = dev->ops;
}

/* Everything must have been given back. */
static inline void close_twin(void)
{
    const struct kni_device_stats s = ops->get_stats(dev), empty = {0};
    assert_memory_equal(&s, &empty, sizeof s);
    ops->close(&dev);
    assert_null(dev);
    ops->close(&dev);
    assert_int_equal(kni_alloc_get_stats(KNI_ALLOC_TAG_COUNT).current_bytes, bytes_before);
}

static inline struct kni_device_addr plus(struct kni_device_addr a, size_t bytes)
{
    return (struct kni_device_addr){a.at + bytes};
}

static inline unsigned char *seen(struct kni_device_addr a)
{
    return ops->host(dev, a);
}

/* Refused with status and a sentence that holds word, and nothing has changed. */
#define assert_refused(call, expected, word)                           \
    do {                                                               \
        const struct kni_device_stats was_ = ops->get_stats(dev);      \
        why = (struct kn_err){0};                                      \
        assert_int_equal(call, expected);                              \
        assert_int_equal(why.status, expected);                        \
        if (!strstr(why.text, word))                                   \
            fail_msg("\"%s\" does not say \"%s\"", why.text, word);    \
        const struct kni_device_stats is_ = ops->get_stats(dev);       \
        assert_memory_equal(&was_, &is_, sizeof was_);                 \
    } while (0)

#define assert_ok(call)                                                \
    do {                                                               \
        why = (struct kn_err){0};                                      \
        if ((call) != KN_OK)                                           \
            fail_msg("%s: %s", #call, why.text);                       \
    } while (0)

/* 0: a child could read (writes: write) there; else the signal that ended it. */
static inline int touch(struct kni_device_addr a, bool writes)
{
    pid_t child = fork();
    assert_true(child >= 0);
    if (!child) {
        signal(SIGSEGV, SIG_DFL); /* a sanitizer's handler would exit */
        signal(SIGBUS, SIG_DFL);
        volatile unsigned char *p = seen(a);
        unsigned char value = *p;
        if (writes)
            *p = value;
        _exit(0);
    }
    int status;
    assert_int_equal(waitpid(child, &status, 0), child);
    return WIFSIGNALED(status) ? WTERMSIG(status) : WEXITSTATUS(status);
}

static inline struct kni_device_addr reserved(size_t bytes)
{
    struct kni_device_addr a;
    assert_ok(ops->reserve(dev, bytes, &a, &why));
    assert_int_equal(a.at % dev->granularity_bytes, 0);
    return a;
}

static inline struct kni_device_handle created(size_t bytes)
{
    struct kni_device_handle h;
    assert_ok(ops->create(dev, bytes, &h, &why));
    return h;
}

#endif
