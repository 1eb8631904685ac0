/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Server-sent events from a socket, whose packets end anywhere: inside a line, between \r and \n, inside a character.
 *
 *     bytes --kn_load_sse_feed--> lines --> the data of one event --> callback       at once when its empty line is there
 *
 * An event's data lines are joined by \n; comments and other fields are skipped; line ends are \n, \r\n or \r. An event that no empty
 * line ends is never handed out, as the standard wants it. One thread.
 */
#ifndef KN_LOAD_SSE_H
#define KN_LOAD_SSE_H

#include <stdbool.h>
#include <stddef.h>

#define KN_LOAD_SSE_MAX_BYTES (4u << 20) /* of one event */

/* Begin with zeros. */
struct kn_load_sse {
    char *line, *data;
    size_t n_line, line_room, n_data, data_room;
    bool has_data, after_cr;
};

/* data: n bytes and a NUL after them, valid during the call. */
typedef void (*kn_load_sse_fn)(void *user, const char *data, size_t n);

/* false: an event is longer than KN_LOAD_SSE_MAX_BYTES, or out of memory. */
bool kn_load_sse_feed(struct kn_load_sse *sse, const char *bytes, size_t n, kn_load_sse_fn fn, void *user);
void kn_load_sse_fini(struct kn_load_sse *sse);

#endif
