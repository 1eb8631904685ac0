/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The guard of slow clients: one thread that looks at all connections now and then and cuts those that have been in one phase
 * for longer than it allows. Limits are on the phase as a whole, so that a byte now and then buys no time.
 *
 *     phase     begins when                                         limit
 *     HEAD      accepted, or a kept connection's next request line   header_ms
 *     BODY      the head is complete and a body is to come           body_ms
 *     HANDLER   the request is complete, or a reply waits for more   none: the engine's deadlines
 *     SEND      a piece of the reply is ready; each piece anew       send_ms
 *     IDLE      a reply has been sent whole                          idle_ms
 *
 * It also sees off connections that were closed with bytes of the client still under way: closing such a socket resets it, and
 * the client may lose the answer that says why. A duplicate descriptor keeps it open, and what comes is thrown away, for at
 * most KNI_GUARD_LINGER_MS and KNI_GUARD_LINGER_BYTES.
 *
 * A connection is removed under the guard's lock before its descriptor is closed, so the guard never cuts another's socket.
 */
#ifndef KNI_SERVER_HTTP_GUARD_H
#define KNI_SERVER_HTTP_GUARD_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#include "kinema/status.h"

#define KNI_GUARD_LINGER_MS 2000u
#define KNI_GUARD_LINGER_BYTES (64ull << 20)

enum kni_guard_phase {
    KNI_GUARD_PHASE_HEAD, KNI_GUARD_PHASE_BODY, KNI_GUARD_PHASE_HANDLER, KNI_GUARD_PHASE_SEND, KNI_GUARD_PHASE_IDLE, KNI_GUARD_PHASE_COUNT
};

struct kni_guard_conn {
    struct kni_guard_conn *prev, *next; /* under the guard's lock */
    int fd;
    _Atomic uint64_t mark; /* phase's begin in ns * 8 + phase; by the connection's thread, read by the guard's, relaxed: a value alone */
    _Atomic bool cut;      /* by the guard's thread, before it shuts the socket down, whose end the connection's thread then sees */
};

struct kni_guard_limits { uint32_t header_ms, body_ms, send_ms, idle_ms; };

struct kni_guard;

/* slow is counted up for every connection that is cut but idle ones. KN_E_NOMEM, KN_E_IO (no thread or descriptor). */
enum kn_status kni_guard_open(struct kni_guard **out, const struct kni_guard_limits *limits, _Atomic uint64_t *slow, struct kn_err *err);
/* All connections have been removed. */
void kni_guard_close(struct kni_guard **guard);
/* Begins with HEAD. conn is the caller's memory until removed. */
void kni_guard_add(struct kni_guard *guard, struct kni_guard_conn *conn, int fd);
/* Before fd is closed. unread: bytes of the client may still be under way, so that closing alone would reset it. */
void kni_guard_remove(struct kni_guard *guard, struct kni_guard_conn *conn, bool unread);
/* The connection's thread. */
void kni_guard_enter(struct kni_guard_conn *conn, enum kni_guard_phase phase);
/* Any thread. Whether a connection's request is being answered: it is in HANDLER or SEND. */
bool kni_guard_is_busy(struct kni_guard *guard);
/* Shuts all connections down, so that their threads come back from reading and writing. */
void kni_guard_cut_all(struct kni_guard *guard);

#endif
