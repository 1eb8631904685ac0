/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Whether the client of a request is still there.
 *
 * The end of what a client sends (FIN) says one of two things, and looks the same: shutdown(SHUT_WR), "that was all, I am reading", or
 * close(), "I am gone". The first must get its answer, the second must not cost one. What tells them apart is a byte sent to the client:
 * a socket that is closed answers with a reset (POLLHUP, POLLERR), one that reads takes it. So a client that has said all is probed:
 *
 *     a stream         by a comment, ": waiting", which clients skip
 *     a whole answer   by its own first bytes: whatever the answer will be, it begins with "HTTP/1.1 ". They go out one at a time, at
 *                      once and then after 0.25, 0.5, 1, ... seconds; http_reply.c sends what is left of the answer itself, and closes
 *
 * Bytes may go ahead only where nothing but this request lies on the connection: the client may have asked for more before it said that
 * this was all, and answers have an order. The kernel counts what it has received, and http_request.c what requests took; where these
 * differ (a pipelined request, a chunked body) there is the kernel's own probe alone (TCP keep-alive): a system that has forgotten the
 * client's socket answers with a reset. Linux forgets after 60 s. Until then, and at most to its deadline, such a request runs on.
 *
 * A reset, a close with bytes of ours unread, and a socket that we shut down ourselves are seen at once.
 * Owner: the connection's thread.
 */
#ifndef KNI_SERVER_PEER_H
#define KNI_SERVER_PEER_H

#include <poll.h>
#include <stdbool.h>
#include <stdint.h>

#define KNI_PEER_AHEAD "HTTP/1.1 "
#define KNI_PEER_FIRST_PAUSE_MS 250u
#define KNI_PEER_MOST_PAUSE_MS 15000u

struct kni_peer {
    int socket;          /* -1: nobody is watched */
    uint64_t n_consumed; /* bytes that the connection's requests took until now, this one with them; 0: not known */
    bool said_all;       /* nothing more comes from it */
    bool alone;          /* said_all, and nothing that it sent is left to be answered */
    unsigned n_ahead;    /* bytes of the answer that are out */
    uint32_t pause_ms;   /* between the last probe and the next */
    uint64_t probe_ns;   /* when the next one is due */
};

/* For a request on socket. */
void kni_peer_init(struct kni_peer *peer, int socket);
/* What to poll for it; peer may be NULL. */
struct pollfd kni_peer_pollfd(const struct kni_peer *peer);
/* Takes what poll said. False: it is gone. */
bool kni_peer_take(struct kni_peer *peer, short revents);
/* Looks without waiting. NULL: is there. */
bool kni_peer_is_here(struct kni_peer *peer);
/* timeout_ms, or less when a probe is due before. */
uint32_t kni_peer_wait_ms(const struct kni_peer *peer, uint32_t timeout_ms);
/* Whether to probe it now; once true, the next is due after a longer pause. */
bool kni_peer_due(struct kni_peer *peer);
/* Probes with a byte of the answer, where that can be. */
void kni_peer_send_ahead(struct kni_peer *peer);

#endif
