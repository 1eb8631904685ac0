/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What the three files of the CPU device share: device_cpu.c (opening, ordinary memory), device_cpu_map.c (addresses
 * and handles), device_cpu_queue.c (copies, queues, events).
 */
#ifndef KNI_DEVICE_CPU_DEVICE_CPU_STATE_H
#define KNI_DEVICE_CPU_DEVICE_CPU_STATE_H

#include <pthread.h>

#include "device/cpu/device_cpu.h"
#include "device/cpu/spans.h"

/* One row on its way. Where host and device share their addresses, reading, writing and copying are the same. */
struct kni_device_move {
    uint64_t to, from, bytes;
};

/* A batch that is launched and not over. */
struct kni_device_batch {
    struct kni_device_batch *next;
    uint64_t serial; /* in its queue, from 1 */
    size_t n;
    struct kni_device_move moves[];
};

struct kni_device_queue {
    struct kni_device *device;
    struct kni_device_queue *next; /* of the device's */
    uint64_t n_launched;
    struct kni_device_batch *first, **end;
};

struct kni_device_event {
    struct kni_device *device;
    struct kni_device_event *next;  /* of the device's */
    struct kni_device_queue *queue; /* NULL: over, once it is recorded */
    uint64_t serial;                /* of the last batch that it stands for */
    uint32_t n_queries;
    bool is_recorded;
};

struct kni_device_cpu {
    struct kni_device device; /* first: the two are one address */
    bool checks_copies;
    uint32_t delay_queries, number; /* number: in its handles, so that a foreign one is known */
    uint64_t memory_bytes;
    pthread_mutex_t lock;           /* guards all below */
    int memory_fd;                  /* memory of handles; -1: none yet */
    uint64_t memory_end;            /* of the file; offsets are given once, and holes take no memory */
    struct kni_spans allocs, hosts; /* only with checks_copies */
    struct kni_spans ranges, mappings;
    struct kni_spans memory; /* by offset in the file */
    struct kni_device_stats stats;
    struct kni_device_queue *queues;
    struct kni_device_event *events;
};

static inline struct kni_device_cpu *kni_device_cpu_of(struct kni_device *d)
{
    return (struct kni_device_cpu *)(void *)d;
}

/* What takes a struct kni_device_cpu is called with the lock held, or by the close; what takes a struct kni_device takes
 * the lock itself. */

/* device_cpu.c. Counts bytes against memory_bytes; what asks is "alloc" or "create". KN_E_NOMEM. */
enum kn_status kni_device_cpu_take(struct kni_device_cpu *c, uint64_t *counter, size_t bytes, const char *what,
                                   struct kn_err *err);

/* device_cpu_map.c. May a copy read (writes: write) here? */
enum kn_status kni_device_cpu_check_access(struct kni_device_cpu *c, uint64_t at, uint64_t bytes, bool writes,
                                           struct kn_err *err);
/* Gives everything back. */
void kni_device_cpu_unmap_all(struct kni_device_cpu *c);
enum kn_status kni_device_cpu_reserve(struct kni_device *d, size_t bytes, struct kni_device_addr *out,
                                      struct kn_err *err);
enum kn_status kni_device_cpu_unreserve(struct kni_device *d, struct kni_device_addr at, size_t bytes,
                                        struct kn_err *err);
enum kn_status kni_device_cpu_create(struct kni_device *d, size_t bytes, struct kni_device_handle *out,
                                     struct kn_err *err);
enum kn_status kni_device_cpu_release(struct kni_device *d, struct kni_device_handle handle, struct kn_err *err);
enum kn_status kni_device_cpu_map(struct kni_device *d, struct kni_device_addr at, struct kni_device_handle handle,
                                  struct kn_err *err);
enum kn_status kni_device_cpu_alias(struct kni_device *d, struct kni_device_addr at, struct kni_device_addr from,
                                    struct kn_err *err);
enum kn_status kni_device_cpu_set_access(struct kni_device *d, struct kni_device_addr at, size_t bytes,
                                         enum kni_device_access access, struct kn_err *err);
enum kn_status kni_device_cpu_unmap(struct kni_device *d, struct kni_device_addr at, size_t bytes, struct kn_err *err);

/* device_cpu_queue.c. Does a batch under way touch these bytes? */
bool kni_device_cpu_is_busy(const struct kni_device_cpu *c, uint64_t at, uint64_t bytes);
void kni_device_cpu_close_queues(struct kni_device_cpu *c);
enum kn_status kni_device_cpu_queue_open(struct kni_device *d, struct kni_device_queue **out, struct kn_err *err);
void kni_device_cpu_queue_close(struct kni_device *d, struct kni_device_queue **queue);
enum kn_status kni_device_cpu_copy_block(struct kni_device *d, struct kni_device_queue *queue,
                                         struct kni_device_addr to, struct kni_device_addr from, size_t bytes,
                                         struct kn_err *err);
enum kn_status kni_device_cpu_read_blocks(struct kni_device *d, struct kni_device_queue *queue,
                                          const struct kni_device_block *blocks, uint32_t n, struct kn_err *err);
enum kn_status kni_device_cpu_write_blocks(struct kni_device *d, struct kni_device_queue *queue,
                                           const struct kni_device_block *blocks, uint32_t n, struct kn_err *err);
enum kn_status kni_device_cpu_event_open(struct kni_device *d, struct kni_device_event **out, struct kn_err *err);
void kni_device_cpu_event_close(struct kni_device *d, struct kni_device_event **event);
void kni_device_cpu_event_record(struct kni_device *d, struct kni_device_event *event, struct kni_device_queue *queue);
enum kn_status kni_device_cpu_event_query(struct kni_device *d, struct kni_device_event *event);
enum kn_status kni_device_cpu_event_wait(struct kni_device *d, struct kni_device_event *event);

#endif
