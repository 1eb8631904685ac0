/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What the files of server/http*.c share: http.c opens, listens and counts connections, http_request.c leads a request from its
 * head to its handler, http_reply.c hands answers to libmicrohttpd, http_guard.c cuts the slow.
 */
#ifndef KNI_SERVER_HTTP_STATE_H
#define KNI_SERVER_HTTP_STATE_H

#include <microhttpd.h>
#include <stdatomic.h>

#include "base/hash.h"
#include "server/http/http.h"
#include "server/http/http_guard.h"

#define KNI_HTTP_MAX_ALLOW 64u /* "GET, HEAD, POST, OPTIONS" and the like */

#define KNI_HTTP_MAX_ORIGIN 200u

struct kni_http_key {
    struct kni_hash hash; /* of the key itself, which is not kept */
    struct kni_tenant tenant;
    char *name, *salt; /* tenant's, owned */
};

struct kni_http {
    /* constant after open */
    struct MHD_Daemon *daemon;
    struct kni_guard *guard;
    const struct kni_http_route *routes; /* [n_routes] borrowed */
    uint32_t n_routes;
    void *user;
    struct kni_metrics *metrics;
    struct kni_http_key *keys; /* [n_keys] */
    size_t n_keys;
    struct kni_tenant nobody; /* the tenant where there are no keys */
    char *allow_origin; /* owned; NULL: no other origin's pages may read answers */
    char *listening, *allow_hosts; /* owned; see http_host.h; allow_hosts may be NULL */
    bool loopback;      /* it listens on this machine's own address */
    bool own_names;     /* only requests for names of this machine are taken */
    uint64_t max_body_bytes;
    uint32_t max_connections, max_header_bytes, send_ms;
    uint16_t port;
    /* owner's thread */
    int listen_fd; /* from quiesce on, else -1 */
    /* set by the owner's thread, read by connections': a value alone, relaxed */
    _Atomic bool quiesced;
    /* by the thread that accepts; tells which connections are too many */
    _Atomic uint32_t n_conns;
};

/* A connection; made and freed by the thread that accepts. In between its own thread writes. */
struct kni_http_conn {
    struct kni_guard_conn guard;
    struct kni_http *http;
    struct kni_peer peer; /* the client, as the requests see it */
    bool too_many; /* constant: is answered 503 whatever it asks */
    uint64_t n_taken; /* bytes that its requests took, where uncounted is not set */
    bool uncounted;
    bool told;     /* what libmicrohttpd refuses has been answered: see kni_http_on_refused */
    bool early;    /* an answer went out before the request's end: the client may still be sending */
};

/* An answer with what handlers cannot say. */
struct kni_http_answer {
    struct kni_http_reply reply;
    char allow[KNI_HTTP_MAX_ALLOW]; /* Allow; "": no such header */
    bool preflight, challenge, last; /* Access-Control-Allow-*, WWW-Authenticate, Connection: close */
};

/* Hands the answer to libmicrohttpd and counts it; takes what reply owns, also on failure. MHD_NO: the connection is to be closed. */
enum MHD_Result kni_http_answer_queue(struct kni_http_conn *conn, struct MHD_Connection *connection, enum kni_route route, struct kni_http_answer *answer);
/* In the middle of a body libmicrohttpd takes no answer: this writes a whole reply to the socket itself, and the connection must be
 * closed. Takes what reply owns. */
void kni_http_answer_raw(struct kni_http_conn *conn, enum kni_route route, struct kni_http_answer *answer);
/* For a client that has been sent the answer's first bytes (server_peer.h): writes what is left of it. Otherwise as raw. */
void kni_http_answer_rest(struct kni_http_conn *conn, enum kni_route route, struct kni_http_answer *answer);
/* Counts an answer of that status. */
void kni_http_count(struct kni_http *http, enum kni_route route, unsigned status);
/* Releases what reply owns; its close is called. */
void kni_http_reply_drop(struct kni_http_reply *reply);

/* libmicrohttpd's callbacks; cls is the struct kni_http. */
enum MHD_Result kni_http_on_access(void *cls, struct MHD_Connection *connection, const char *url, const char *method, const char *version,
                                   const char *upload, size_t *n_upload, void **request);
void kni_http_on_completed(void *cls, struct MHD_Connection *connection, void **request, enum MHD_RequestTerminationCode code);
void *kni_http_on_uri(void *cls, const char *uri, struct MHD_Connection *connection);
/* libmicrohttpd is about to send an error page of its own. Its log says so first, in the connection's thread: the answer is written then,
 * as our error object, and the socket shut for writing, so that the page does not follow. */
void kni_http_on_refused(unsigned status, const char *page);
size_t kni_http_on_unescape(void *cls, struct MHD_Connection *connection, char *text);

struct kni_http_conn *kni_http_conn_of(struct MHD_Connection *connection);

#endif
