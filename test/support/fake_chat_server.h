/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A server with just enough of OpenAI's interface to test the load generator: known delays, and faults on demand.
 *
 *     POST /v1/chat/completions -> wait delay_ms and for the stall's end -> max_tokens pieces, piece_ms apart -> usage -> [DONE]
 *
 * One thread accepts, one a connection serves; connections are kept alive, answers are chunked. Everything that is asked for is counted.
 * Pieces are cut into small writes, so that events arrive in parts. 127.0.0.1, a port of the system's choice.
 */
#ifndef TEST_FAKE_CHAT_SERVER_H
#define TEST_FAKE_CHAT_SERVER_H

#include <arpa/inet.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

enum fake_chat_fault { FAKE_CHAT_NONE, FAKE_CHAT_REFUSE, FAKE_CHAT_CUT, FAKE_CHAT_ERROR_EVENT, FAKE_CHAT_GARBAGE, FAKE_CHAT_HANG };
enum { FAKE_CHAT_MAX_CONNECTIONS = 512 };

struct fake_chat {
    enum fake_chat_fault fault;
    uint32_t delay_ms, piece_ms;
    uint32_t stall_after_ms, stall_ms; /* from the first request on: nothing is answered between; 0 ms: no stall */
    bool no_usage;
    int listener;
    uint16_t port;
    char url[64];
    pthread_t acceptor, servers[FAKE_CHAT_MAX_CONNECTIONS];
    int sockets[FAKE_CHAT_MAX_CONNECTIONS];
    struct fake_chat_connection *connections;
    _Atomic uint32_t n_connections, n_requests, n_now, n_most; /* n_most: requests under way at once, at most */
    _Atomic uint64_t first_ns;
    _Atomic bool closing;
    pthread_mutex_t lock; /* of bodies */
    char bodies[8][8192]; /* the first ones */
};

struct fake_chat_connection { struct fake_chat *server; int fd; };

static uint64_t fake_chat_now_ns(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

static void fake_chat_sleep_ms(uint64_t ms)
{
    struct timespec t = {.tv_sec = (time_t)(ms / 1000), .tv_nsec = (long)(ms % 1000) * 1000000};
    if (ms)
        nanosleep(&t, NULL);
}

static bool fake_chat_send(int fd, const char *text)
{
    for (size_t n = strlen(text); n;) {
        ssize_t sent = send(fd, text, n, MSG_NOSIGNAL);
        if (sent <= 0)
            return false;
        text += sent;
        n -= (size_t)sent;
    }
    return true;
}

/* One chunk of the answer, sent as three writes. */
static bool fake_chat_chunk(int fd, const char *text)
{
    char head[32], part[4096];
    size_t n = strlen(text), third = n / 3;
    snprintf(head, sizeof head, "%zx\r\n", n);
    snprintf(part, sizeof part, "%.*s", (int)third, text);
    return fake_chat_send(fd, head) && fake_chat_send(fd, part) && fake_chat_send(fd, text + third) && fake_chat_send(fd, "\r\n");
}

static bool fake_chat_pieces(struct fake_chat *s, int fd, unsigned n_pieces)
{
    char text[512];
    bool ok = fake_chat_chunk(fd, "data: {\"choices\":[{\"index\":0,\"delta\":{\"role\":\"assistant\",\"content\":\"\"},\"finish_reason\":null}]}\r\n\r\n");
    for (unsigned i = 0; ok && i < n_pieces; i++) {
        if (i)
            fake_chat_sleep_ms(s->piece_ms);
        if (s->fault == FAKE_CHAT_CUT && i == n_pieces / 2)
            return false;
        if (s->fault == FAKE_CHAT_ERROR_EVENT && i == n_pieces / 2)
            return fake_chat_chunk(fd, "data: {\"error\":{\"message\":\"the pool burst\",\"code\":500}}\n\n") && fake_chat_send(fd, "0\r\n\r\n");
        if (s->fault == FAKE_CHAT_GARBAGE && i == n_pieces / 2)
            return fake_chat_chunk(fd, "data: {{{\n\n") && fake_chat_send(fd, "0\r\n\r\n");
        snprintf(text, sizeof text, ": ping\ndata: {\"choices\":[{\"index\":0,\"delta\":{\"content\":\"w%u \"},\"finish_reason\":%s}]}\n\n", i,
                 i + 1 == n_pieces ? "\"length\"" : "null");
        ok = fake_chat_chunk(fd, text);
    }
    if (ok && !s->no_usage) {
        snprintf(text, sizeof text,
                 "data: {\"choices\":[],\"usage\":{\"prompt_tokens\":21,\"completion_tokens\":%u,\"prompt_tokens_details\":{\"cached_tokens\":5}}}\n\n",
                 n_pieces + 2);
        ok = fake_chat_chunk(fd, text);
    }
    return ok && fake_chat_chunk(fd, "data: [DONE]\n\n") && fake_chat_send(fd, "0\r\n\r\n");
}

static bool fake_chat_answer(struct fake_chat *s, int fd, const char *body)
{
    uint64_t zero = 0, now = fake_chat_now_ns();
    const char *n = strstr(body, "\"max_tokens\":");
    unsigned n_pieces = n ? (unsigned)strtoul(n + 13, NULL, 10) : 1;
    atomic_compare_exchange_strong(&s->first_ns, &zero, now);
    uint64_t begin = atomic_load(&s->first_ns) + s->stall_after_ms * 1000000ull, end = begin + s->stall_ms * 1000000ull;
    fake_chat_sleep_ms(s->delay_ms);
    while (s->stall_ms && (now = fake_chat_now_ns()) >= begin && now < end && !atomic_load(&s->closing))
        fake_chat_sleep_ms((end - now) / 1000000 + 1);
    while (s->fault == FAKE_CHAT_HANG && !atomic_load(&s->closing))
        fake_chat_sleep_ms(5);
    if (s->fault == FAKE_CHAT_REFUSE) {
        const char *text = "{\"error\":{\"message\":\"the queue is full\",\"type\":\"server_error\"}}";
        char head[160];
        snprintf(head, sizeof head, "HTTP/1.1 503 Service Unavailable\r\nContent-Type: application/json\r\nContent-Length: %zu\r\n\r\n",
                 strlen(text));
        return fake_chat_send(fd, head) && fake_chat_send(fd, text);
    }
    return fake_chat_send(fd, "HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n") && fake_chat_pieces(s, fd, n_pieces);
}

/* Reads one request; its body is left in text. false: the connection ended, or the request is none. */
static bool fake_chat_read(int fd, char *text, size_t room, const char **body)
{
    size_t n = 0, wanted = 0;
    char *head_end = NULL;
    while (n + 1 < room) {
        ssize_t got = recv(fd, text + n, room - n - 1, 0);
        if (got <= 0)
            return false;
        n += (size_t)got;
        text[n] = '\0';
        if (!head_end && (head_end = strstr(text, "\r\n\r\n"))) {
            const char *length = strcasestr(text, "content-length:");
            wanted = (size_t)(head_end + 4 - text) + (length && length < head_end ? strtoul(length + 15, NULL, 10) : 0);
        }
        if (head_end && n >= wanted) {
            *body = head_end + 4;
            return n == wanted; /* nothing more was asked for before we answered */
        }
    }
    return false;
}

static void *fake_chat_serve(void *user)
{
    struct fake_chat_connection *c = user;
    struct fake_chat *s = c->server;
    char *text = malloc(65536);
    const char *body;
    while (fake_chat_read(c->fd, text, 65536, &body) && !strncmp(text, "POST /v1/chat/completions ", 26)) {
        uint32_t i = atomic_fetch_add(&s->n_requests, 1), now = atomic_fetch_add(&s->n_now, 1) + 1, most = atomic_load(&s->n_most);
        while (now > most && !atomic_compare_exchange_weak(&s->n_most, &most, now))
            ;
        pthread_mutex_lock(&s->lock);
        if (i < 8)
            snprintf(s->bodies[i], sizeof s->bodies[i], "%s", body);
        pthread_mutex_unlock(&s->lock);
        bool ok = fake_chat_answer(s, c->fd, body);
        atomic_fetch_sub(&s->n_now, 1);
        if (!ok)
            break;
    }
    shutdown(c->fd, SHUT_RDWR);
    free(text);
    return NULL;
}

static void *fake_chat_accept(void *user)
{
    struct fake_chat *s = user;
    for (int fd; (fd = accept(s->listener, NULL, NULL)) >= 0;) {
        uint32_t i = atomic_load(&s->n_connections);
        int one = 1;
        setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
        if (i == FAKE_CHAT_MAX_CONNECTIONS) {
            close(fd);
            continue;
        }
        s->sockets[i] = fd;
        s->connections[i] = (struct fake_chat_connection){s, fd};
        if (pthread_create(&s->servers[i], NULL, fake_chat_serve, &s->connections[i]))
            abort();
        atomic_store(&s->n_connections, i + 1);
    }
    return NULL;
}

static void fake_chat_open(struct fake_chat *s)
{
    struct sockaddr_in a = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t n = sizeof a;
    pthread_mutex_init(&s->lock, NULL);
    s->connections = calloc(FAKE_CHAT_MAX_CONNECTIONS, sizeof *s->connections);
    s->listener = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (s->listener < 0 || bind(s->listener, (struct sockaddr *)&a, sizeof a) || listen(s->listener, 512) ||
        getsockname(s->listener, (struct sockaddr *)&a, &n) || pthread_create(&s->acceptor, NULL, fake_chat_accept, s))
        abort();
    s->port = ntohs(a.sin_port);
    snprintf(s->url, sizeof s->url, "http://127.0.0.1:%u", (unsigned)s->port);
}

static void fake_chat_close(struct fake_chat *s)
{
    atomic_store(&s->closing, true);
    shutdown(s->listener, SHUT_RDWR);
    pthread_join(s->acceptor, NULL);
    close(s->listener);
    for (uint32_t i = 0; i < atomic_load(&s->n_connections); i++) {
        shutdown(s->sockets[i], SHUT_RDWR);
        pthread_join(s->servers[i], NULL);
        close(s->sockets[i]);
    }
    free(s->connections);
    pthread_mutex_destroy(&s->lock);
}

#endif
