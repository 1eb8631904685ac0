/* SPDX-License-Identifier: Apache-2.0 */
/*
 * An HTTP server with plain handlers, for tests of server/http*.c:
 *
 *     POST /echo   its body            GET /count   a pulled answer of BED_COUNT pieces, each when go is posted
 *     GET /health  "fine", needs no key    GET /flood   pieces without end
 *     GET /who     the tenant          GET /fail    two pieces, then gives up
 *     GET /big     BED_BIG_BYTES       POST /block  waits for go
 *     POST /watch  waits for go, and watches its client; its body, or BED_BIG_BYTES
 */
#ifndef KNI_TEST_HTTP_BED_H
#define KNI_TEST_HTTP_BED_H

#include <pthread.h>
#include <semaphore.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/alloc.h"
#include "server/http/http.h"
#include "support/http_peer.h"

#define BED_COUNT 5
#define BED_BIG_BYTES 3000000u

struct bed {
    struct kni_http *http;
    struct kni_metrics metrics;
    sem_t go;
    _Atomic unsigned n_opened, n_closed; /* pulled answers */
    _Atomic unsigned n_echoed, n_blocked, n_gone;
    _Atomic bool said_all;
};

struct bed_stream { struct bed *bed; int at; };

static inline void bed_reply(struct kni_http_reply *reply, const char *text, size_t n)
{
    reply->status = 200;
    reply->content_type = "text/plain";
    reply->body = kni_alloc(KNI_ALLOC_TAG_REQUEST, n ? n : 1, 0);
    if (!reply->body) {
        reply->status = 503;
        return;
    }
    memcpy(reply->body, text, n);
    reply->n_body = n;
}

static inline void bed_echo(void *user, const struct kni_http_request *request, struct kni_http_reply *reply)
{
    struct bed *bed = user;
    sigset_t blocked;
    atomic_fetch_add(&bed->n_echoed, 1);
    pthread_sigmask(SIG_SETMASK, NULL, &blocked);
    if (!sigismember(&blocked, SIGTERM) || !sigismember(&blocked, SIGPIPE))
        abort(); /* the program's signals are not for this thread */
    if (request->body[request->n_body] || !request->begin_ns || request->socket < 0)
        abort();
    bed_reply(reply, request->body, request->n_body);
}

static inline void bed_health(void *user, const struct kni_http_request *request, struct kni_http_reply *reply)
{
    (void)user;
    (void)request;
    bed_reply(reply, "fine", 4);
}

static inline void bed_who(void *user, const struct kni_http_request *request, struct kni_http_reply *reply)
{
    char text[200];
    (void)user;
    int n = snprintf(text, sizeof text, "%s/%s", request->tenant->name, request->tenant->salt);
    bed_reply(reply, text, (size_t)n);
}

static inline void bed_big(void *user, const struct kni_http_request *request, struct kni_http_reply *reply)
{
    (void)user;
    (void)request;
    reply->status = 200;
    reply->body = kni_alloc(KNI_ALLOC_TAG_REQUEST, BED_BIG_BYTES, 0);
    reply->n_body = BED_BIG_BYTES;
    for (size_t i = 0; i < BED_BIG_BYTES; i++)
        reply->body[i] = (char)('a' + i % 23);
}

static inline void bed_block(void *user, const struct kni_http_request *request, struct kni_http_reply *reply)
{
    struct bed *bed = user;
    (void)request;
    atomic_fetch_add(&bed->n_blocked, 1);
    while (sem_wait(&bed->go))
        ;
    bed_reply(reply, "unblocked", 9);
}

/* Waits for go as the api's whole answers wait for tokens: it watches the client. */
static inline void bed_watch(void *user, const struct kni_http_request *request, struct kni_http_reply *reply)
{
    struct bed *bed = user;
    atomic_fetch_add(&bed->n_blocked, 1);
    while (sem_trywait(&bed->go)) {
        struct pollfd fd = kni_peer_pollfd(request->peer);
        if (poll(&fd, 1, (int)kni_peer_wait_ms(request->peer, 1)) > 0 && !kni_peer_take(request->peer, fd.revents)) {
            atomic_fetch_add(&bed->n_gone, 1);
            kni_http_error(reply, 499, NULL, "client_gone", "gone");
            return;
        }
        if (request->peer->said_all)
            atomic_store(&bed->said_all, true);
        if (kni_peer_due(request->peer))
            kni_peer_send_ahead(request->peer);
    }
    if (request->n_body)
        bed_reply(reply, request->body, request->n_body);
    else
        bed_big(user, request, reply);
}

static inline ssize_t bed_read_count(void *user, char *bytes, size_t room)
{
    struct bed_stream *stream = user;
    while (sem_wait(&stream->bed->go))
        ;
    return stream->at == BED_COUNT ? -1 : snprintf(bytes, room, "piece %d\n", stream->at++);
}

static inline ssize_t bed_read_flood(void *user, char *bytes, size_t room)
{
    (void)user;
    memset(bytes, 'f', room < 1000 ? room : 1000);
    return room < 1000 ? (ssize_t)room : 1000;
}

static inline ssize_t bed_read_fail(void *user, char *bytes, size_t room)
{
    struct bed_stream *stream = user;
    return stream->at == 2 ? -2 : snprintf(bytes, room, "piece %d\n", stream->at++);
}

static inline void bed_close_stream(void *user)
{
    struct bed_stream *stream = user;
    atomic_fetch_add(&stream->bed->n_closed, 1);
    free(stream); /* a second close is a double free */
}

static inline void bed_stream(struct bed *bed, struct kni_http_reply *reply, ssize_t (*read)(void *, char *, size_t))
{
    struct bed_stream *stream = calloc(1, sizeof *stream);
    stream->bed = bed;
    atomic_fetch_add(&bed->n_opened, 1);
    *reply = (struct kni_http_reply){.content_type = "text/event-stream", .read = read, .close = bed_close_stream, .user = stream};
}

static inline void bed_count(void *user, const struct kni_http_request *request, struct kni_http_reply *reply)
{
    (void)request;
    bed_stream(user, reply, bed_read_count);
}

static inline void bed_flood(void *user, const struct kni_http_request *request, struct kni_http_reply *reply)
{
    (void)request;
    bed_stream(user, reply, bed_read_flood);
}

static inline void bed_fail(void *user, const struct kni_http_request *request, struct kni_http_reply *reply)
{
    (void)request;
    bed_stream(user, reply, bed_read_fail);
}

/* For kni_http_open; server lives as long as the call. */
static inline struct kni_http_opts bed_opts(struct bed *bed, const struct kn_server_opts *server)
{
    static const struct kni_http_route routes[] = {
        {"POST", "/echo", KNI_ROUTE_COMPLETIONS, bed_echo, false}, {"GET", "/health", KNI_ROUTE_HEALTH, bed_health, true},
        {"GET", "/who", KNI_ROUTE_MODELS, bed_who, false},         {"GET", "/big", KNI_ROUTE_STATS, bed_big, false},
        {"POST", "/block", KNI_ROUTE_TOKENIZE, bed_block, false},  {"GET", "/count", KNI_ROUTE_CHAT, bed_count, false},
        {"GET", "/flood", KNI_ROUTE_CHAT, bed_flood, false},       {"GET", "/fail", KNI_ROUTE_CHAT, bed_fail, false},
        {"POST", "/watch", KNI_ROUTE_CHAT, bed_watch, false},
    };
    return (struct kni_http_opts){.server = server, .routes = routes, .n_routes = sizeof routes / sizeof *routes, .user = bed, .metrics = &bed->metrics};
}

static struct bed *bed_current; /* the one that is open; tests have one at a time */

static inline void bed_open(struct bed *bed, const struct kn_server_opts *server)
{
    struct kn_err err = {0};
    memset(bed, 0, sizeof *bed);
    sem_init(&bed->go, 0, 0);
    struct kni_http_opts opts = bed_opts(bed, server);
    if (kni_http_open(&bed->http, &opts, &err)) {
        fprintf(stderr, "%s\n", err.text);
        abort();
    }
    bed_current = bed;
}

static inline void bed_close(struct bed *bed)
{
    kni_http_close(&bed->http);
    sem_destroy(&bed->go);
    bed_current = NULL;
}

/* Teardown of every test with a bed: what a failed one left open does not reach the next. A failure leaves the test's frame, so beds are
 * static. */
static inline int bed_cleanup(void **state)
{
    (void)state;
    kni_alloc_fault_arm(0, false);
    for (int i = 0; bed_current && i < 1000; i++)
        sem_post(&bed_current->go); /* handlers that wait */
    if (bed_current)
        bed_close(bed_current);
    peer_close_all();
    return 0;
}

/* Until the counter is as high, or for PEER_WAIT_S, after which the test fails. */
static inline void bed_wait(_Atomic unsigned *counter, unsigned value)
{
    for (int i = 0; atomic_load(counter) < value; i++, usleep(1000))
        if (i > PEER_WAIT_S * 1000)
            abort();
}

static inline void bed_wait64(_Atomic uint64_t *counter, uint64_t value)
{
    for (int i = 0; atomic_load(counter) < value; i++, usleep(1000))
        if (i > PEER_WAIT_S * 1000)
            abort();
}

#endif
