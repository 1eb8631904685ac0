/* SPDX-License-Identifier: Apache-2.0 */
/* Clients that have said all, and clients that are gone; see server_peer.h. Nothing here blocks. */
#include "server/http/server_peer.h"

#include <errno.h>
#include <linux/tcp.h> /* struct tcp_info with tcpi_bytes_received, which <netinet/tcp.h> may lack; not both in one file */
#include <netinet/in.h>
#include <stddef.h>
#include <sys/socket.h>

#include "base/clock.h"

void kni_peer_init(struct kni_peer *peer, int socket)
{
    *peer = (struct kni_peer){.socket = socket};
}

struct pollfd kni_peer_pollfd(const struct kni_peer *peer)
{
    struct pollfd fd = {.fd = peer ? peer->socket : -1}; /* poll skips -1; ERR and HUP come unasked */
    fd.events = peer && !peer->said_all ? POLLRDHUP : 0;
    return fd;
}

/* Whether all that the client ever sent has been taken by requests; the kernel counts the end of it as one byte more. */
static bool has_nothing_left(const struct kni_peer *peer)
{
    struct tcp_info info = {0};
    socklen_t n = sizeof info;
    return peer->n_consumed && !getsockopt(peer->socket, IPPROTO_TCP, TCP_INFO, &info, &n) &&
           n >= offsetof(struct tcp_info, tcpi_bytes_received) + sizeof info.tcpi_bytes_received &&
           info.tcpi_bytes_received == peer->n_consumed + 1;
}

bool kni_peer_take(struct kni_peer *peer, short revents)
{
    if (revents & (POLLERR | POLLHUP | POLLNVAL))
        return false;
    if (revents & POLLRDHUP && !peer->said_all) {
        int idle_s = 10;
        peer->said_all = true;
        peer->alone = has_nothing_left(peer);
        peer->probe_ns = kni_now_ns();
        peer->pause_ms = KNI_PEER_FIRST_PAUSE_MS;
        setsockopt(peer->socket, IPPROTO_TCP, TCP_KEEPIDLE, &idle_s, sizeof idle_s); /* refused by sockets that are no TCP: fine */
    }
    return true;
}

bool kni_peer_is_here(struct kni_peer *peer)
{
    struct pollfd fd = kni_peer_pollfd(peer);
    return !peer || poll(&fd, 1, 0) <= 0 || kni_peer_take(peer, fd.revents);
}

uint32_t kni_peer_wait_ms(const struct kni_peer *peer, uint32_t timeout_ms)
{
    if (!peer || !peer->said_all)
        return timeout_ms;
    const uint64_t now = kni_now_ns(), left_ms = now < peer->probe_ns ? (peer->probe_ns - now) / 1000000u + 1 : 0;
    return left_ms < timeout_ms ? (uint32_t)left_ms : timeout_ms;
}

bool kni_peer_due(struct kni_peer *peer)
{
    const uint64_t now = kni_now_ns();
    if (!peer || !peer->said_all || now < peer->probe_ns)
        return false;
    peer->probe_ns = now + peer->pause_ms * 1000000ull;
    peer->pause_ms = peer->pause_ms < KNI_PEER_MOST_PAUSE_MS / 2 ? 2 * peer->pause_ms : KNI_PEER_MOST_PAUSE_MS;
    return true;
}

void kni_peer_send_ahead(struct kni_peer *peer)
{
    if (peer->alone && peer->n_ahead + 1 < sizeof KNI_PEER_AHEAD &&
        send(peer->socket, &KNI_PEER_AHEAD[peer->n_ahead], 1, MSG_NOSIGNAL | MSG_DONTWAIT) == 1)
        peer->n_ahead++; /* a failure is seen by the next poll */
}
