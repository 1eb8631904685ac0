/* SPDX-License-Identifier: Apache-2.0 */
/*
 * HTTP: connections, limits, keys, routing; libmicrohttpd parses and writes. One thread a connection, so handlers may block.
 *
 *     accept (max_connections) -> head -> route, key, body limit -> body -> handler -> reply (whole, or pulled piece by piece)
 *
 * Without keys on loopback requests must be for names of this machine (http_host.h).
 *
 * A guard thread cuts connections that take longer than their phase allows (head, body, sending, idle): a client that sends or
 * reads one byte now and then does not keep its place. Handlers know nothing of libmicrohttpd and can be called by tests.
 */
#ifndef KNI_SERVER_HTTP_H
#define KNI_SERVER_HTTP_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

#include "kinema/server.h"
#include "server/metrics/metrics.h"
#include "server/http/server_peer.h"

/* Who asks. Constant after open. */
struct kni_tenant {
    const char *name; /* "" without keys */
    const char *salt; /* "" without keys */
};

/* A request that has arrived whole. Borrowed for the handler's call, but for tenant, which lives as long as the server. */
struct kni_http_request {
    const char *path; /* decoded; "/v1/completions" */
    const char *body; /* NUL-terminated, never NULL */
    size_t n_body;
    const struct kni_tenant *tenant;
    int socket;        /* the client's; -1 in tests */
    struct kni_peer *peer; /* to notice that it has gone; the connection's thread only; NULL in tests */
    uint64_t begin_ns; /* when its last byte had arrived */
};

/* What a handler answers. Either body, or read. */
struct kni_http_reply {
    unsigned status;          /* 200 */
    const char *content_type; /* static; NULL: "application/json" */
    char *body;               /* kni_alloc'ed; taken */
    size_t n_body;
    /* Fills up to room bytes, blocking as needed; 0 never; -1: end; -2: give up, the connection is closed. */
    ssize_t (*read)(void *user, char *bytes, size_t room);
    void (*close)(void *user); /* once, when the reply is over, whatever happened */
    void *user;
    uint32_t retry_after_s; /* Retry-After; 0: no such header */
    const char *cache_control; /* static; NULL: "no-store" */
    const char *csp; /* static; Content-Security-Policy; NULL: no such header */
};

typedef void (*kni_http_fn)(void *user, const struct kni_http_request *request, struct kni_http_reply *reply);

struct kni_http_route {
    const char *method, *path; /* "POST", "/v1/completions"; exact, but for a '*' at the end. HEAD is answered where GET is */
    enum kni_route route;
    kni_http_fn fn;
    bool open; /* needs no key */
};

struct kni_http_opts {
    const struct kn_server_opts *server; /* host, port, keys, limits, timeouts (zero: the default); borrowed for the call */
    const struct kni_http_route *routes; /* [n_routes] borrowed for ever */
    uint32_t n_routes;
    void *user; /* given to handlers */
    struct kni_metrics *metrics;
};

struct kni_http;

/* KN_E_IO: cannot listen, said why; KN_E_ARG: a host or key that makes no sense. */
enum kn_status kni_http_open(struct kni_http **out, const struct kni_http_opts *opts, struct kn_err *err);
uint16_t kni_http_port(const struct kni_http *http);
/* Stops listening; connections go on. */
void kni_http_quiesce(struct kni_http *http);
/* Whether an answer is being made or sent. Those that do not move are cut after send_timeout_ms, so it ends. */
bool kni_http_is_busy(struct kni_http *http);
/* Ends all connections and waits for their threads: handlers must come back by themselves (cancel their calls first). */
void kni_http_close(struct kni_http **http);

/* OpenAI's error object as a whole reply: {"error": {"message", "type", "param", "code"}}; type follows from status; param and code may
 * be NULL. The message may hold anything; what is no UTF-8 is replaced. */
void kni_http_error(struct kni_http_reply *reply, unsigned status, const char *param, const char *code, const char *format, ...)
    __attribute__((format(printf, 5, 6)));

#endif
