/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A request from its head to its handler. libmicrohttpd calls on_access once with the head, then with each piece of body, then
 * once more when all has come:
 *
 *     head:  too many connections, unclear length, head too large, a foreign name, a coded body, no such route, no key, body too large
 *            -> a verdict
 *     body:  collected, doubling; with a verdict thrown away; more than was allowed: 413 at once
 *     end:   the verdict's answer, or the handler's
 *
 * A verdict waits for the body's end, so that the connection stays usable and the client reads the answer; it is given at once, and
 * the connection closed, where the body would be too large, where its end cannot be known, or where the client waits for
 * "100 Continue". What the guard does with the rest of such a body is told in http_guard.h.
 *
 * Content-Type is not looked at: a body is parsed as JSON whatever it says it is, as clients that forget the header expect.
 * Heads are limited twice: what exceeds max_header_bytes is answered here; what exceeds libmicrohttpd's memory of about twice
 * that, there (414, 431). Its own pages never go out once a request line has been read: see kni_http_on_refused.
 */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/socket.h>

#include "base/alloc.h"
#include "base/clock.h"
#include "server/http/http_host.h"
#include "server/http/http_state.h"

#define FIRST_BODY_BYTES 4096u

/* A request of one connection; owned by libmicrohttpd's "request context" and freed when it is completed. */
struct request {
    const struct kni_http_route *route;
    const struct kni_tenant *tenant;
    enum kni_route label;
    char *body;
    size_t n_body, room;
    struct kni_http_answer verdict;
    bool judged;   /* verdict holds an answer */
    bool answered; /* an answer was given */
    bool handled;  /* by a handler */
    size_t n_head; /* bytes of the head; 0: the body's end is not at n_body, or nobody knows */
};

/* What the head says of body and key. */
struct head {
    unsigned n_length, n_encoding;
    uint64_t length;
    bool differs, chunked, expects;
    const char *unknown;     /* a Transfer-Encoding that is not "chunked" */
    const char *coding;      /* a Content-Encoding that is not "identity" */
    const char *expectation; /* an Expect that is not "100-continue" */
    unsigned n_host;
    const char *host;        /* NULL: none. Of an absolute target, which counts more */
    size_t n_host_bytes;
    bool absolute;
    const char *stranger;    /* an Origin that is not ours; only looked for where names are */
    const struct kni_http *http;
    const char *authorization, *api_key;
};

/* The first coding in a list that is not "identity", or NULL. */
static const char *find_coding(const char *list)
{
    for (const char *at = list;; at++) {
        at += strspn(at, " \t,");
        size_t n = strcspn(at, " \t,;");
        if (!n)
            return *at ? at : NULL;
        if (n != 8 || strncasecmp(at, "identity", 8) || at[n] == ';')
            return at;
        at += n;
        if (!*at)
            return NULL;
    }
}

static bool is_stranger(const struct kni_http *http, const char *origin)
{
    size_t n;
    const char *host = kni_http_host_of(origin, &n);
    if (http->allow_origin && (!strcmp(http->allow_origin, "*") || !strcasecmp(http->allow_origin, origin)))
        return false;
    return !host || !kni_http_host_is_ours(host, n, http->listening, http->allow_hosts);
}

static enum MHD_Result read_header(void *user, enum MHD_ValueKind kind, const char *name, const char *value)
{
    struct head *head = user;
    (void)kind;
    if (!value)
        value = "";
    if (!strcasecmp(name, MHD_HTTP_HEADER_CONTENT_LENGTH)) {
        char *end;
        errno = 0;
        uint64_t length = strtoull(value, &end, 10);
        head->differs |= errno || end == value || *end || value[0] < '0' || value[0] > '9';
        head->length = length;
        head->n_length++;
    } else if (!strcasecmp(name, MHD_HTTP_HEADER_TRANSFER_ENCODING)) {
        head->n_encoding++;
        head->chunked = !strcasecmp(value, "chunked");
        head->unknown = head->chunked ? head->unknown : value;
    } else if (!strcasecmp(name, MHD_HTTP_HEADER_CONTENT_ENCODING)) {
        head->coding = head->coding ? head->coding : find_coding(value);
    } else if (!strcasecmp(name, MHD_HTTP_HEADER_EXPECT)) {
        head->expects = true;
        head->expectation = strcasecmp(value, "100-continue") ? value : head->expectation;
    } else if (!strcasecmp(name, MHD_HTTP_HEADER_HOST)) {
        head->n_host++;
        if (!head->absolute) {
            head->host = value;
            head->n_host_bytes = strlen(value);
        }
    } else if (!strcasecmp(name, MHD_HTTP_HEADER_ORIGIN)) {
        head->stranger = head->http->own_names && is_stranger(head->http, value) ? value : head->stranger;
    } else if (!strcasecmp(name, MHD_HTTP_HEADER_AUTHORIZATION)) {
        head->authorization = value;
    } else if (!strcasecmp(name, "X-Api-Key")) {
        head->api_key = value;
    }
    return MHD_YES;
}

/* ---- route and key */

static bool method_fits(const char *method, const char *route)
{
    return !strcmp(method, route) || (!strcmp(method, MHD_HTTP_METHOD_HEAD) && !strcmp(route, MHD_HTTP_METHOD_GET));
}

/* A route's path may end with "*", which stands for anything. */
static bool path_fits(const char *url, const char *path)
{
    size_t n = strlen(path);
    return path[n - 1] == '*' ? !strncmp(url, path, n - 1) : !strcmp(url, path);
}

static void judge(struct request *request)
{
    request->judged = true;
    memset(&request->verdict, 0, sizeof request->verdict);
}

static void say_not_found(const struct kni_http *http, struct request *request, const char *method, const char *url)
{
    char list[700];
    size_t n = 0;
    list[0] = 0;
    for (uint32_t i = 0; i < http->n_routes && n < sizeof list; i++) {
        int k = snprintf(list + n, sizeof list - n, "%s%s %s", i ? ", " : "", http->routes[i].method, http->routes[i].path);
        n += k > 0 ? (size_t)k : 0;
    }
    judge(request);
    kni_http_error(&request->verdict.reply, 404, NULL, "not_found", "there is no %.20s %.200s here; there is %s", method, url, list);
}

/* Sets request's route, or a verdict: 404, 405, or the answer to OPTIONS. */
static void find_route(const struct kni_http *http, struct request *request, const char *method, const char *url)
{
    char allow[KNI_HTTP_MAX_ALLOW];
    size_t n = 0;
    for (uint32_t i = 0; i < http->n_routes; i++) {
        const struct kni_http_route *r = &http->routes[i];
        if (!path_fits(url, r->path))
            continue;
        request->label = r->route;
        if (method_fits(method, r->method)) {
            request->route = r;
            return;
        }
        int k = snprintf(allow + n, sizeof allow - n, "%s, %s", r->method, strcmp(r->method, MHD_HTTP_METHOD_GET) ? "" : "HEAD, ");
        n += k > 0 && (size_t)k < sizeof allow - n ? (size_t)k : 0;
    }
    if (!n) {
        say_not_found(http, request, method, url);
        return;
    }
    judge(request);
    if (!strcmp(method, MHD_HTTP_METHOD_OPTIONS)) {
        request->verdict.reply.status = MHD_HTTP_NO_CONTENT;
        request->verdict.preflight = true;
    } else {
        allow[n - 2] = 0;
        kni_http_error(&request->verdict.reply, 405, NULL, "method_not_allowed", "%.200s does not take %.20s, only %s", url, method, allow);
        allow[n - 2] = ',';
    }
    snprintf(request->verdict.allow, sizeof request->verdict.allow, "%.*sOPTIONS", (int)n, allow);
}

/* 1 when equal. Looks at every byte whatever it finds. */
static unsigned same(const struct kni_hash *a, const struct kni_hash *b)
{
    unsigned difference = 0;
    for (int i = 0; i < KNI_HASH_BYTES; i++)
        difference |= (unsigned)(a->bytes[i] ^ b->bytes[i]);
    return ((difference - 1) >> 8) & 1;
}

/* Sets request's tenant, or a verdict. The time taken tells nothing of any key: hashes are compared, whole, with all keys. */
static void find_tenant(const struct kni_http *http, struct request *request, const struct head *head)
{
    const char *key = head->api_key;
    size_t match = http->n_keys;
    request->tenant = &http->nobody;
    if (!http->n_keys || request->route->open)
        return;
    if (head->authorization && !strncasecmp(head->authorization, "Bearer ", 7)) {
        key = head->authorization + 7;
        key += strspn(key, " ");
    }
    if (key) {
        struct kni_hash hash = kni_hash_bytes(key, strlen(key));
        for (size_t i = 0; i < http->n_keys; i++)
            match = same(&hash, &http->keys[i].hash) ? i : match;
    }
    if (match < http->n_keys) {
        request->tenant = &http->keys[match].tenant;
        return;
    }
    judge(request);
    request->verdict.challenge = true;
    kni_http_error(&request->verdict.reply, 401, NULL, "invalid_api_key", "%s", key ? "the API key is not one of this server's" :
                   "this server wants an API key: send it as \"Authorization: Bearer KEY\" or as \"X-Api-Key: KEY\"");
}

/* ---- head */

static void judge_too_large(const struct kni_http *http, struct request *request)
{
    judge(request);
    request->verdict.last = true;
    kni_http_error(&request->verdict.reply, 413, NULL, "body_too_large", "the request's body is larger than this server takes (%llu bytes): send less",
                   (unsigned long long)http->max_body_bytes);
}

/* Where anybody may ask: whether it is for this machine, and asked by no page of another. */
static void check_names(const struct kni_http *http, struct request *request, const struct head *head)
{
    if (!http->own_names)
        return;
    if (head->host && !kni_http_host_is_ours(head->host, head->n_host_bytes, http->listening, http->allow_hosts)) {
        judge(request);
        kni_http_error(&request->verdict.reply, 403, NULL, "host_not_allowed", "this server has no API key, and so takes requests for names of its own "
                       "machine only (localhost, 127.0.0.1, [::1]), not for \"%.*s\": allow that name with --allow-host, or use an API key",
                       (int)(head->n_host_bytes < 100 ? head->n_host_bytes : 100), head->host);
    } else if (head->stranger) {
        judge(request);
        kni_http_error(&request->verdict.reply, 403, NULL, "origin_not_allowed", "this server has no API key, and so takes no requests from web pages of "
                       "other origins such as \"%.100s\": allow it with --allow-origin, or use an API key", head->stranger);
    }
}

/* What the head asks of the body that cannot be done. */
static void check_codings(struct request *request, const struct head *head)
{
    if (head->expectation) {
        judge(request);
        kni_http_error(&request->verdict.reply, 417, NULL, "unsupported_expectation", "the expectation \"%.60s\" cannot be met: send \"Expect: 100-continue\", "
                       "or leave it away", head->expectation);
    } else if (head->coding && (head->length || head->n_encoding)) {
        judge(request);
        kni_http_error(&request->verdict.reply, 415, NULL, "unsupported_content_encoding", "the Content-Encoding \"%.*s\" is not supported: send the body as it "
                       "is (identity)", (int)(strcspn(head->coding, " \t,") < 60 ? strcspn(head->coding, " \t,") : 60), head->coding);
    }
}

/* Whether the answer must go out before the body has come. */
static bool judge_head(const struct kni_http_conn *conn, struct request *request, struct MHD_Connection *connection, const struct head *head,
                       const char *method, const char *url)
{
    const struct kni_http *http = conn->http;
    const union MHD_ConnectionInfo *size = MHD_get_connection_info(connection, MHD_CONNECTION_INFO_REQUEST_HEADER_SIZE);
    if (conn->too_many) {
        judge(request);
        kni_http_error(&request->verdict.reply, 503, NULL, "too_many_connections", "all %u connections of this server are in use: try again later",
                       http->max_connections);
        request->verdict.reply.retry_after_s = 1;
    } else if (head->unknown && head->n_encoding == 1 && !head->n_length) {
        judge(request);
        kni_http_error(&request->verdict.reply, 501, NULL, "unsupported_transfer_encoding", "the Transfer-Encoding \"%.60s\" is not supported: send the "
                       "body as it is, with Content-Length or with \"Transfer-Encoding: chunked\"", head->unknown);
    } else if (head->differs || head->unknown || head->n_encoding > 1 || head->n_length > 1 || (head->n_encoding && head->n_length)) {
        judge(request);
        kni_http_error(&request->verdict.reply, 400, NULL, "bad_length", "how long the body is must be said once, by Content-Length or by "
                       "\"Transfer-Encoding: chunked\"");
    } else if (head->n_host > 1) {
        judge(request);
        kni_http_error(&request->verdict.reply, 400, NULL, "bad_host", "the head has %u Host lines: it must have one", head->n_host);
    } else if (size && size->header_size > http->max_header_bytes) {
        judge(request);
        if (strlen(url) > http->max_header_bytes / 2)
            kni_http_error(&request->verdict.reply, 414, NULL, "uri_too_long", "the request's URI is longer than this server takes");
        else
            kni_http_error(&request->verdict.reply, 431, NULL, "headers_too_large", "the request's head is larger than this server takes (%u bytes)",
                           http->max_header_bytes);
    }
    request->verdict.last = request->judged; /* nothing of such a client is believed */
    if (!request->judged)
        check_names(http, request, head);
    if (!request->judged)
        check_codings(request, head);
    if (!request->judged)
        find_route(http, request, method, url);
    if (!request->judged)
        find_tenant(http, request, head);
    if (head->length > http->max_body_bytes && !request->judged)
        judge_too_large(http, request);
    return request->judged && (request->verdict.last || head->expects || head->length > http->max_body_bytes);
}

/* The path of a target; an absolute one ("http://host/path") names the host as well. head may be NULL. */
static const char *find_path(const char *url, struct head *head)
{
    size_t n;
    const char *host = *url != '/' && (!strncasecmp(url, "http://", 7) || !strncasecmp(url, "https://", 8)) ? kni_http_host_of(url, &n) : NULL;
    if (!host)
        return url;
    if (head) {
        head->host = host;
        head->n_host_bytes = n;
        head->absolute = true;
    }
    return host[n] == '/' ? host + n : "/";
}

static enum MHD_Result begin(struct kni_http_conn *conn, struct MHD_Connection *connection, const char *url, const char *method, void **context)
{
    struct head head = {.http = conn->http};
    struct request *request = *context = kni_calloc(KNI_ALLOC_TAG_REQUEST, sizeof *request, 0);
    if (!request)
        return MHD_NO;
    request->label = KNI_ROUTE_OTHER;
    const union MHD_ConnectionInfo *size = MHD_get_connection_info(connection, MHD_CONNECTION_INFO_REQUEST_HEADER_SIZE);
    url = find_path(url, &head);
    MHD_get_connection_values(connection, MHD_HEADER_KIND, read_header, &head);
    request->n_head = size && !head.n_encoding ? size->header_size : 0;
    bool now = judge_head(conn, request, connection, &head, method, url);
    kni_guard_enter(&conn->guard, KNI_GUARD_PHASE_BODY);
    if (!now)
        return MHD_YES;
    conn->early = conn->early || head.n_length || head.n_encoding;
    request->judged = false;
    request->answered = true;
    return kni_http_answer_queue(conn, connection, request->label, &request->verdict);
}

/* ---- body and end */

/* MHD_NO: the connection is to be closed; it has been told why. */
static enum MHD_Result collect(struct kni_http_conn *conn, struct request *request, const char *bytes, size_t n)
{
    const struct kni_http *http = conn->http;
    uint64_t total = (uint64_t)request->n_body + n; /* n_body is bounded by the limit, n by libmicrohttpd's buffer */
    if (total > http->max_body_bytes) {
        if (!request->judged)
            judge_too_large(http, request);
        goto refuse;
    }
    if (!request->judged && total + 1 > request->room) {
        uint64_t room = request->room ? request->room : FIRST_BODY_BYTES;
        while (room < total + 1)
            room *= 2;
        if (room > http->max_body_bytes + 1)
            room = http->max_body_bytes + 1;
        char *body = kni_realloc(KNI_ALLOC_TAG_REQUEST, request->body, (size_t)room);
        if (!body) {
            judge(request);
            kni_http_error(&request->verdict.reply, 503, NULL, "out_of_memory", "the server has no memory left for this request: try again later");
            request->verdict.reply.retry_after_s = 1;
            goto refuse;
        }
        request->body = body;
        request->room = (size_t)room;
    }
    if (!request->judged)
        memcpy(request->body + request->n_body, bytes, n);
    request->n_body = (size_t)total; /* counted also where it is thrown away */
    return MHD_YES;
refuse:
    request->judged = false;
    request->answered = true;
    kni_http_answer_raw(conn, request->label, &request->verdict);
    return MHD_NO;
}

/* What the connection's requests have taken of what its client sent. A chunked body takes more than its bytes: from then on nobody knows. */
static void count_taken(struct kni_http_conn *conn, const struct request *request)
{
    conn->uncounted = conn->uncounted || !request->n_head;
    conn->n_taken += request->n_head + request->n_body;
    conn->peer.n_consumed = conn->uncounted ? 0 : conn->n_taken;
}

static enum MHD_Result finish(struct kni_http_conn *conn, struct request *request, struct MHD_Connection *connection, const char *url)
{
    if (request->answered)
        return MHD_YES; /* not called again then, says libmicrohttpd */
    count_taken(conn, request);
    if (!request->judged) {
        struct kni_http_request view = {.path = find_path(url, NULL), .body = "", .n_body = request->n_body, .tenant = request->tenant,
                                        .socket = conn->guard.fd, .peer = &conn->peer};
        if (request->n_body) {
            request->body[request->n_body] = 0;
            view.body = request->body;
        }
        judge(request);
        view.begin_ns = kni_now_ns();
        request->handled = true;
        kni_guard_enter(&conn->guard, KNI_GUARD_PHASE_HANDLER);
        request->route->fn(conn->http->user, &view, &request->verdict.reply);
        kni_free(request->body); /* a long answer need not hold the question */
        request->body = NULL;
    }
    request->judged = false;
    request->answered = true;
    if (!conn->peer.n_ahead)
        return kni_http_answer_queue(conn, connection, request->label, &request->verdict);
    kni_http_answer_rest(conn, request->label, &request->verdict);
    return MHD_NO;
}

enum MHD_Result kni_http_on_access(void *cls, struct MHD_Connection *connection, const char *url, const char *method, const char *version,
                                   const char *upload, size_t *n_upload, void **request)
{
    struct kni_http_conn *conn = kni_http_conn_of(connection);
    (void)cls;
    (void)version;
    if (!conn)
        return MHD_NO; /* there was no memory for it */
    if (!*request)
        return begin(conn, connection, url, method, request);
    if (!*n_upload)
        return finish(conn, *request, connection, url);
    enum MHD_Result result = collect(conn, *request, upload, *n_upload);
    *n_upload = 0;
    return result;
}

void kni_http_on_completed(void *cls, struct MHD_Connection *connection, void **context, enum MHD_RequestTerminationCode code)
{
    struct kni_http *http = cls;
    struct request *request = *context;
    struct kni_http_conn *conn = kni_http_conn_of(connection);
    if (conn)
        kni_guard_enter(&conn->guard, KNI_GUARD_PHASE_IDLE);
    if (!request)
        return;
    const union MHD_ConnectionInfo *status = request->answered ? NULL : MHD_get_connection_info(connection, MHD_CONNECTION_INFO_HTTP_STATUS);
    bool gone = code != MHD_REQUEST_TERMINATED_COMPLETED_OK && code != MHD_REQUEST_TERMINATED_DAEMON_SHUTDOWN;
    if (status && !conn->told)
        kni_http_count(http, request->label, status->http_status); /* libmicrohttpd's own answer to a malformed body */
    else if (gone && conn && !conn->early && !atomic_load_explicit(&conn->guard.cut, memory_order_relaxed))
        atomic_fetch_add_explicit(&http->metrics->disconnects, 1, memory_order_relaxed); /* a counter alone */
    if (request->judged)
        kni_http_reply_drop(&request->verdict.reply);
    kni_free(request->body);
    kni_free(request);
    *context = NULL;
}

/* Of the connection that this thread serves, from its first request line on. Threads serve one. */
static _Thread_local struct kni_http_conn *conn_here;

void kni_http_on_refused(unsigned status, const char *page)
{
    struct kni_http_conn *conn = conn_here;
    struct kni_http_answer answer = {0};
    const bool length = strstr(page, "Content-Length") != NULL;
    if (!conn || conn->told)
        return;
    const enum kni_guard_phase phase = (enum kni_guard_phase)(atomic_load_explicit(&conn->guard.mark, memory_order_relaxed) & 7);
    if (phase == KNI_GUARD_PHASE_HANDLER || phase == KNI_GUARD_PHASE_SEND)
        return; /* an answer is on its way, and nothing may come between its bytes */
    if (length && status == MHD_HTTP_BAD_REQUEST)
        kni_http_error(&answer.reply, status, NULL, "bad_length", "Content-Length is no number: give the body's bytes in decimal digits, once");
    else if (status == 413)
        kni_http_error(&answer.reply, status, NULL, "body_too_large", "the request's body, or a part of it, is larger than this server takes (%llu bytes): "
                       "send less", (unsigned long long)conn->http->max_body_bytes);
    else if (status == 414)
        kni_http_error(&answer.reply, status, NULL, "uri_too_long", "the request's URI is longer than this server takes");
    else if (status == 431)
        kni_http_error(&answer.reply, status, NULL, "headers_too_large", "the request's head is larger than this server takes (%u bytes)",
                       conn->http->max_header_bytes);
    else if (status < 500)
        kni_http_error(&answer.reply, status, NULL, "bad_request", "the request is no HTTP that this server takes: its request line, a header or a chunk of its "
                       "body is malformed");
    else
        kni_http_error(&answer.reply, status, NULL, NULL, "the server could not take in the request (%s)", MHD_get_reason_phrase_for(status));
    conn->told = true;
    kni_http_answer_raw(conn, KNI_ROUTE_OTHER, &answer);
    shutdown(conn->guard.fd, SHUT_WR);
}

/* The request line has come: a connection that was kept idle has begun its next request. */
void *kni_http_on_uri(void *cls, const char *uri, struct MHD_Connection *connection)
{
    struct kni_http_conn *conn = kni_http_conn_of(connection);
    (void)cls;
    (void)uri;
    conn_here = conn;
    if (conn && (atomic_load_explicit(&conn->guard.mark, memory_order_relaxed) & 7) == KNI_GUARD_PHASE_IDLE)
        kni_guard_enter(&conn->guard, KNI_GUARD_PHASE_HEAD);
    return NULL;
}

/* Decodes %HH, but for an URI with %00: C's strings would end there and fit a route that was not asked for. */
size_t kni_http_on_unescape(void *cls, struct MHD_Connection *connection, char *text)
{
    (void)cls;
    (void)connection;
    return strstr(text, "%00") ? strlen(text) : MHD_http_unescape(text);
}
