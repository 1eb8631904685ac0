/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A client that says and hears bytes over a real socket, as rudely as a test wants. Nothing waits longer than PEER_WAIT_S, so a
 * server that hangs fails the test instead of hanging it.
 */
#ifndef KNI_TEST_HTTP_PEER_H
#define KNI_TEST_HTTP_PEER_H

#include <arpa/inet.h>
#include <assert.h>
#include <errno.h>
#include <netinet/in.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <unistd.h>

#define PEER_WAIT_S 20

struct peer {
    int fd;
    size_t n;         /* bytes heard that no answer has taken */
    char heard[65536];
};

struct peer_answer {
    unsigned status;
    char head[4096];
    char *body; /* NUL-terminated; peer_answer_fini */
    size_t n_body;
    bool cut;   /* the connection ended within the body */
};

/* What is open, so that a test that fails can be cleaned up after; PEER_MAX_FDS bounds descriptors, not peers. */
#define PEER_MAX_FDS 4096
static _Atomic bool peer_fds[PEER_MAX_FDS];

/* rcvbuf 0: the system's. False: refused. */
static inline bool peer_try_open(struct peer *peer, uint16_t port, int rcvbuf)
{
    struct sockaddr_in to = {.sin_family = AF_INET, .sin_port = htons(port), .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    struct timeval wait = {PEER_WAIT_S, 0};
    peer->n = 0;
    peer->fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (rcvbuf)
        setsockopt(peer->fd, SOL_SOCKET, SO_RCVBUF, &rcvbuf, sizeof rcvbuf);
    setsockopt(peer->fd, SOL_SOCKET, SO_RCVTIMEO, &wait, sizeof wait);
    setsockopt(peer->fd, SOL_SOCKET, SO_SNDTIMEO, &wait, sizeof wait);
    if (!connect(peer->fd, (struct sockaddr *)&to, sizeof to)) {
        if (peer->fd < PEER_MAX_FDS)
            atomic_store(&peer_fds[peer->fd], true);
        return true;
    }
    close(peer->fd);
    peer->fd = -1;
    return false;
}

static inline void peer_close(struct peer *peer)
{
    if (peer->fd >= 0 && peer->fd < PEER_MAX_FDS)
        atomic_store(&peer_fds[peer->fd], false);
    if (peer->fd >= 0)
        close(peer->fd);
    peer->fd = -1;
}

/* Those that a failed test left open. */
static inline void peer_close_all(void)
{
    for (int fd = 0; fd < PEER_MAX_FDS; fd++)
        if (atomic_exchange(&peer_fds[fd], false))
            close(fd);
}

/* Ends the connection by a reset. */
static inline void peer_reset(struct peer *peer)
{
    setsockopt(peer->fd, SOL_SOCKET, SO_LINGER, &(struct linger){1, 0}, sizeof(struct linger));
    peer_close(peer);
}

/* False: the other side takes no more. */
static inline bool peer_say_bytes(struct peer *peer, const void *bytes, size_t n)
{
    for (const char *p = bytes; n;) {
        ssize_t k = send(peer->fd, p, n, MSG_NOSIGNAL);
        if (k <= 0)
            return false;
        p += k;
        n -= (size_t)k;
    }
    return true;
}

static inline bool peer_say(struct peer *peer, const char *text)
{
    return peer_say_bytes(peer, text, strlen(text));
}

/* More bytes into heard. 0: the end; -1: reset or PEER_WAIT_S passed. */
static inline ssize_t peer_hear(struct peer *peer)
{
    ssize_t n = recv(peer->fd, peer->heard + peer->n, sizeof peer->heard - 1 - peer->n, 0);
    if (n > 0)
        peer->n += (size_t)n;
    peer->heard[peer->n] = 0;
    return n;
}

static inline void peer_take(struct peer *peer, size_t n)
{
    memmove(peer->heard, peer->heard + n, peer->n - n);
    peer->n -= n;
    peer->heard[peer->n] = 0;
}

static inline const char *peer_header(const struct peer_answer *answer, const char *name, char value[512])
{
    size_t n = strlen(name);
    for (const char *line = strstr(answer->head, "\r\n"); line; line = strstr(line, "\r\n")) {
        line += 2;
        if (!strncasecmp(line, name, n) && line[n] == ':') {
            snprintf(value, 512, "%.*s", (int)strcspn(line + n + 2, "\r"), line + n + 2);
            return value;
        }
    }
    return NULL;
}

static inline void peer_answer_fini(struct peer_answer *answer)
{
    free(answer->body);
    answer->body = NULL;
}

/* n bytes of body from the peer. False: it ended before. */
static inline bool peer_take_body(struct peer *peer, struct peer_answer *answer, size_t n)
{
    answer->body = realloc(answer->body, answer->n_body + n + 1);
    while (n) {
        size_t k = n < peer->n ? n : peer->n;
        memcpy(answer->body + answer->n_body, peer->heard, k);
        peer_take(peer, k);
        answer->n_body += k;
        n -= k;
        if (n && peer_hear(peer) <= 0)
            break;
    }
    answer->body[answer->n_body] = 0;
    return !n;
}

/* A line, without its end, from the peer. */
static inline bool peer_take_line(struct peer *peer, char *line, size_t room)
{
    char *end;
    while (!(end = memmem(peer->heard, peer->n, "\r\n", 2)))
        if (peer_hear(peer) <= 0)
            return false;
    snprintf(line, room, "%.*s", (int)(end - peer->heard), peer->heard);
    peer_take(peer, (size_t)(end - peer->heard) + 2);
    return true;
}

static inline bool peer_take_head(struct peer *peer, struct peer_answer *answer)
{
    char *end;
    memset(answer, 0, sizeof *answer);
    while (!(end = memmem(peer->heard, peer->n, "\r\n\r\n", 4)))
        if (peer_hear(peer) <= 0)
            return false;
    size_t n = (size_t)(end - peer->heard) + 4;
    snprintf(answer->head, sizeof answer->head, "%.*s", (int)n, peer->heard);
    peer_take(peer, n);
    return sscanf(answer->head, "HTTP/1.%*u %u", &answer->status) == 1;
}

/* One answer, whole; to a HEAD request: without body. False: none came. */
static inline bool peer_take_answer(struct peer *peer, struct peer_answer *answer, bool to_head)
{
    char value[512], line[128];
    if (!peer_take_head(peer, answer))
        return false;
    answer->body = calloc(1, 1);
    if (to_head || answer->status == 204 || answer->status < 200)
        return true;
    if (peer_header(answer, "Transfer-Encoding", value)) {
        for (size_t n = 1; n;) {
            n = peer_take_line(peer, line, sizeof line) ? strtoul(line, NULL, 16) : 0;
            answer->cut = !line[0] || !peer_take_body(peer, answer, n) || !peer_take_line(peer, value, sizeof value);
            if (answer->cut)
                return true;
        }
    } else if (peer_header(answer, "Content-Length", value)) {
        answer->cut = !peer_take_body(peer, answer, strtoul(value, NULL, 10));
    } else {
        while (peer_take_body(peer, answer, peer->n ? peer->n : 1))
            ;
    }
    return true;
}

/* Whether the other side ends the connection, having said nothing more. */
static inline bool peer_ends(struct peer *peer)
{
    return !peer->n && (peer_hear(peer) == 0 || errno == ECONNRESET);
}

#endif
