/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The memory of a device, and how bytes get in and out: the table that each device fills in. The CPU's is
 * device/cpu/device_cpu.h.
 *
 *     addresses   reserve ------------------------------------------------> unreserve
 *                    |                                                          ^
 *                    +--> map --> set_access --> (use) --> set_access --> unmap-+
 *                         ^ alias: what is mapped here also appears there  |
 *     memory      create -+--> release (any time) --- memory is given back-+ when released and mapped nowhere
 *
 * These verbs are those of CUDA's virtual memory management, with its rules (CUDA Driver API, "Virtual Memory
 * Management"; checked on an H200, driver 580.159.04):
 *   - addresses and sizes are multiples of granularity_bytes and not 0;
 *   - a handle is mapped whole, from its first byte, inside one reserved range, where nothing else is mapped;
 *   - one handle may be mapped several times (alias): the places share its bytes, and each has its own access;
 *   - a mapping has no access until set_access;
 *   - set_access and unmap take one or more whole mappings that lie side by side, never a part of one;
 *   - release of a mapped handle is allowed (cuMemRelease): no new mapping can name it, and its memory is given back
 *     with its last mapping. alias still works, as with cuMemRetainAllocationHandle;
 *   - unreserve (cuMemAddressFree) takes exactly what reserve gave, with nothing mapped in it.
 * In three places that driver lets a fault pass, and the contract here does not: a mapping that begins inside a range
 * and ends beyond it, an unmap of a range with gaps, and an unmap of what is not mapped.
 *
 * Errors of every verb: KN_E_ARG for what is never right (misaligned, foreign, outside), KN_E_STATE for what is not
 * right now (mapped twice, still mapped, no access, a batch is under way), KN_E_NOMEM; err, which may be NULL, gets a
 * sentence. After an error nothing has changed.
 *
 * Copies are launched in a queue and run in its order. With no queue they are over when the call returns. What a batch
 * in a queue reads must stay as it is, and what it writes must not be looked at, until an event recorded after it is
 * over.
 *
 * Threads: memory verbs may be called from any thread. A queue belongs to one thread at a time, an event to the
 * thread that last recorded it or got it from there. The device outlives everything made on it.
 */
#ifndef KNI_DEVICE_DEVICE_H
#define KNI_DEVICE_DEVICE_H

#include <stddef.h>
#include <stdint.h>

#include "base/alloc.h"
#include "base/status.h"

struct kni_device;
struct kni_device_queue;
struct kni_device_event;

/* An address in a device's memory, which the host cannot dereference. 0: none. */
struct kni_device_addr {
    uint64_t at;
};
/* Memory without an address. 0: none. */
struct kni_device_handle {
    uint64_t id;
};

enum kni_device_access { KNI_DEVICE_ACCESS_NONE, KNI_DEVICE_ACCESS_READ, KNI_DEVICE_ACCESS_READ_WRITE };

/* A block, or a part of one, as n_rows rows of row_bytes: row r lies at device + r * device_stride_bytes, and on the
 * host at host + r * host_stride_bytes. Rows do not overlap; strides of a single row are ignored. host is borrowed
 * until the batch is over. read_blocks writes there; write_blocks only reads. host may be the device's own memory
 * (ops->host): where both sides of a row are the same bytes, nothing is copied. */
struct kni_device_block {
    struct kni_device_addr device;
    void *host;
    size_t device_stride_bytes, host_stride_bytes;
    size_t row_bytes;
    uint32_t n_rows;
};

struct kni_device_stats {
    uint64_t alloc_bytes;    /* ops->alloc */
    uint64_t host_bytes;     /* ops->host_alloc */
    uint64_t reserved_bytes; /* addresses */
    uint64_t created_bytes;  /* memory of handles, also of released ones that are still mapped */
    uint64_t mapped_bytes;   /* an alias counts again */
    uint64_t n_queues, n_events, n_batches; /* open; open; launched and not over */
};

/* NULL: the device cannot do it. Whoever needs a verb asks when it opens, not later. */
struct kni_device_ops {
    const char *name;
    /* Ends batches under way, takes back all that was not given back, and says so in the log. *d may be NULL. */
    void (*close)(struct kni_device **d);
    struct kni_device_stats (*get_stats)(struct kni_device *d);

    /* bytes of ordinary memory with access for all, page aligned; contents undefined. tag: of base/alloc.h, where the
     * device's memory is the host's. */
    enum kn_status (*alloc)(struct kni_device *d, enum kni_alloc_tag tag, size_t bytes, struct kni_device_addr *out,
                            struct kn_err *err);
    /* at, bytes: as given by alloc. */
    enum kn_status (*free)(struct kni_device *d, struct kni_device_addr at, size_t bytes, struct kn_err *err);
    /* Host memory that the device copies from and to without a detour (page-locked, where that makes a difference). */
    enum kn_status (*host_alloc)(struct kni_device *d, enum kni_alloc_tag tag, size_t bytes, void **out,
                                 struct kn_err *err);
    enum kn_status (*host_free)(struct kni_device *d, void *memory, size_t bytes, struct kn_err *err);
    /* Where the host sees at, or NULL: the host cannot reach the device's memory. */
    void *(*host)(struct kni_device *d, struct kni_device_addr at);

    enum kn_status (*reserve)(struct kni_device *d, size_t bytes, struct kni_device_addr *out, struct kn_err *err);
    enum kn_status (*unreserve)(struct kni_device *d, struct kni_device_addr at, size_t bytes, struct kn_err *err);
    enum kn_status (*create)(struct kni_device *d, size_t bytes, struct kni_device_handle *out, struct kn_err *err);
    enum kn_status (*release)(struct kni_device *d, struct kni_device_handle handle, struct kn_err *err);
    enum kn_status (*map)(struct kni_device *d, struct kni_device_addr at, struct kni_device_handle handle,
                          struct kn_err *err);
    /* Maps at `at`, without access, the memory of the mapping that begins at `from`. */
    enum kn_status (*alias)(struct kni_device *d, struct kni_device_addr at, struct kni_device_addr from,
                            struct kn_err *err);
    enum kn_status (*set_access)(struct kni_device *d, struct kni_device_addr at, size_t bytes,
                                 enum kni_device_access access, struct kn_err *err);
    enum kn_status (*unmap)(struct kni_device *d, struct kni_device_addr at, size_t bytes, struct kn_err *err);

    enum kn_status (*queue_open)(struct kni_device *d, struct kni_device_queue **out, struct kn_err *err);
    /* Waits for what was launched. *queue may be NULL. */
    void (*queue_close)(struct kni_device *d, struct kni_device_queue **queue);
    /* queue NULL: over when the call returns. to and from do not overlap. */
    enum kn_status (*copy_block)(struct kni_device *d, struct kni_device_queue *queue, struct kni_device_addr to,
                                 struct kni_device_addr from, size_t bytes, struct kn_err *err);
    /* Device to host, host to device. blocks is read before the call returns, and n may be 0. */
    enum kn_status (*read_blocks)(struct kni_device *d, struct kni_device_queue *queue,
                                  const struct kni_device_block *blocks, uint32_t n, struct kn_err *err);
    enum kn_status (*write_blocks)(struct kni_device *d, struct kni_device_queue *queue,
                                   const struct kni_device_block *blocks, uint32_t n, struct kn_err *err);

    enum kn_status (*event_open)(struct kni_device *d, struct kni_device_event **out, struct kn_err *err);
    void (*event_close)(struct kni_device *d, struct kni_device_event **event); /* does not wait; NULL is fine */
    /* The event stands for all that the queue has launched so far; what it stood for is forgotten. */
    void (*event_record)(struct kni_device *d, struct kni_device_event *event, struct kni_device_queue *queue);
    /* KN_OK: over. KN_AGAIN: under way. KN_E_STATE: never recorded (CUDA would call it over). */
    enum kn_status (*event_query)(struct kni_device *d, struct kni_device_event *event);
    enum kn_status (*event_wait)(struct kni_device *d, struct kni_device_event *event);
};

/* Each device's own struct begins with this. */
struct kni_device {
    const struct kni_device_ops *ops;
    size_t granularity_bytes; /* of the memory verbs; a power of two */
};

#endif
