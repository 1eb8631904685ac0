/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The CPU as a device: its memory is the host's, so ops->host gives every address back as a pointer.
 *
 * There are two kinds. kni_device_cpu() is the process's own, on which pools lie: it copies at once, checks no address
 * of a copy (a decode step may copy a block and takes no lock), and everything else as the twin does.
 * kni_device_cpu_open gives a twin: a device of its own that checks each copy's addresses too, and can play one with
 * little memory or one whose copies take time, so that a caller's faults are found on a machine without a GPU.
 */
#ifndef KNI_DEVICE_CPU_DEVICE_CPU_H
#define KNI_DEVICE_CPU_DEVICE_CPU_H

#include "device/device.h"

/* What fills the target of a delayed copy until it is over: not a number in both 16-bit types. */
#define KNI_DEVICE_CPU_POISON 0xff

struct kni_device_cpu_opts {
    size_t granularity_bytes; /* of memory verbs: a power of two, at least a page; 0: 2 MiB, as CUDA's */
    uint64_t memory_bytes;    /* alloc and create give no more than this together; 0: no limit */
    /* Copies in a queue are delayed: an event answers this many queries with KN_AGAIN, and the copies are made when it
     * is over or waited for; until then their targets hold poison. 0: copies are made at once. A batch that meets bytes
     * which another queue's batch writes, or writes what another reads, is refused with KN_E_STATE. */
    uint32_t delay_queries;
};

/* The process's device. Never closed. Any thread. */
struct kni_device *kni_device_cpu(void);

/* A twin, which the caller closes (ops->close). opts may be NULL. KN_E_ARG, KN_E_NOMEM. */
enum kn_status kni_device_cpu_open(struct kni_device **out, const struct kni_device_cpu_opts *opts, struct kn_err *err);

#endif
