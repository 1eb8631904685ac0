/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Answers on their way out.
 *
 *     reply {body}                -> a copy in pieces, or at once when small -> Content-Length
 *     reply {read, close, user}   -> read, called whenever the last piece has left -> chunked (HTTP/1.0: until the end)
 *
 * Everything that a reply owns moves into a struct sent, whose release libmicrohttpd calls exactly once: when the answer is over, when
 * the client has gone, when the server closes, or when the answer could not be queued. Large bodies go out by pieces so that the
 * guard sees progress; each pulled piece leaves at once, since libmicrohttpd pushes chunks with TCP_NODELAY.
 *
 * A client that had said all may have been sent the first bytes of its answer while that was made (server_peer.h): libmicrohttpd knows nothing of
 * them, so what is left is written here, and the connection closed.
 *
 * Web pages of other origins may read answers only where the operator allows theirs: a server without keys on somebody's own machine
 * must not answer whatever page that somebody's browser shows. No page may frame the dashboard.
 */
#include <errno.h>
#include <poll.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <time.h>

#include "base/alloc.h"
#include "base/buf.h"
#include "base/clock.h"
#include "server/http/http_state.h"

#define PIECE_BYTES 65536u

struct sent {
    struct kni_http_reply reply;
    struct kni_guard_conn *guard; /* outlives the answer: connections are freed after their thread has ended */
};

void kni_http_reply_drop(struct kni_http_reply *reply)
{
    kni_free(reply->body);
    if (reply->close)
        reply->close(reply->user);
    memset(reply, 0, sizeof *reply);
}

static void on_released(void *user)
{
    struct sent *sent = user;
    kni_http_reply_drop(&sent->reply);
    kni_free(sent);
}

static ssize_t on_pull(void *user, uint64_t at, char *bytes, size_t room)
{
    struct sent *sent = user;
    ssize_t n;
    if (!sent->reply.read) {
        n = (ssize_t)(room < sent->reply.n_body - at ? room : sent->reply.n_body - at);
        memcpy(bytes, sent->reply.body + at, (size_t)n);
    } else {
        kni_guard_enter(sent->guard, KNI_GUARD_PHASE_HANDLER);
        n = sent->reply.read(sent->reply.user, bytes, room);
        if (n == -1)
            n = MHD_CONTENT_READER_END_OF_STREAM;
        else if (n <= 0)
            n = MHD_CONTENT_READER_END_WITH_ERROR;
    }
    kni_guard_enter(sent->guard, KNI_GUARD_PHASE_SEND);
    return n;
}

static void add_headers(struct MHD_Response *response, const struct kni_http *http, const struct kni_http_answer *answer)
{
    const struct kni_http_reply *reply = &answer->reply;
    const char *type = reply->content_type ? reply->content_type : "application/json";
    if (reply->status != MHD_HTTP_NO_CONTENT)
        MHD_add_response_header(response, MHD_HTTP_HEADER_CONTENT_TYPE, type);
    MHD_add_response_header(response, MHD_HTTP_HEADER_SERVER, "kinema");
    MHD_add_response_header(response, MHD_HTTP_HEADER_CACHE_CONTROL, reply->cache_control ? reply->cache_control : "no-store");
    MHD_add_response_header(response, "X-Content-Type-Options", "nosniff");
    MHD_add_response_header(response, "X-Frame-Options", "DENY");
    if (http->allow_origin) {
        MHD_add_response_header(response, MHD_HTTP_HEADER_ACCESS_CONTROL_ALLOW_ORIGIN, http->allow_origin);
        if (strcmp(http->allow_origin, "*"))
            MHD_add_response_header(response, MHD_HTTP_HEADER_VARY, MHD_HTTP_HEADER_ORIGIN);
    }
    if (!strncmp(type, "text/event-stream", 17))
        MHD_add_response_header(response, "X-Accel-Buffering", "no"); /* proxies: pass each event on at once */
    if (reply->csp)
        MHD_add_response_header(response, "Content-Security-Policy", reply->csp);
    if (reply->retry_after_s) {
        char text[16];
        snprintf(text, sizeof text, "%u", (unsigned)reply->retry_after_s);
        MHD_add_response_header(response, MHD_HTTP_HEADER_RETRY_AFTER, text);
    }
    if (answer->allow[0])
        MHD_add_response_header(response, MHD_HTTP_HEADER_ALLOW, answer->allow);
    if (answer->preflight && http->allow_origin) {
        MHD_add_response_header(response, "Access-Control-Allow-Methods", answer->allow);
        MHD_add_response_header(response, "Access-Control-Allow-Headers", "*, Authorization");
        MHD_add_response_header(response, "Access-Control-Max-Age", "86400");
    }
    if (answer->challenge)
        MHD_add_response_header(response, MHD_HTTP_HEADER_WWW_AUTHENTICATE, "Bearer");
    if (answer->last)
        MHD_add_response_header(response, MHD_HTTP_HEADER_CONNECTION, "close");
}

void kni_http_count(struct kni_http *http, enum kni_route route, unsigned status)
{
    unsigned hundreds = status / 100;
    if (hundreds < 6)
        atomic_fetch_add_explicit(&http->metrics->responses[route][hundreds], 1, memory_order_relaxed); /* a counter alone */
}

enum MHD_Result kni_http_answer_queue(struct kni_http_conn *conn, struct MHD_Connection *connection, enum kni_route route, struct kni_http_answer *answer)
{
    enum MHD_Result result = MHD_NO;
    struct MHD_Response *response = NULL;
    struct kni_http_reply *reply = &answer->reply;
    struct sent *sent = kni_alloc(KNI_ALLOC_TAG_REQUEST, sizeof *sent, 0);
    if (!reply->status)
        reply->status = MHD_HTTP_OK;
    if (atomic_load_explicit(&conn->http->quiesced, memory_order_relaxed))
        answer->last = true;
    if (!sent) {
        kni_http_reply_drop(reply);
        return MHD_NO;
    }
    *sent = (struct sent){*reply, &conn->guard};
    if (reply->read)
        response = MHD_create_response_from_callback(MHD_SIZE_UNKNOWN, PIECE_BYTES, on_pull, sent, on_released);
    else if (reply->n_body > PIECE_BYTES)
        response = MHD_create_response_from_callback(reply->n_body, PIECE_BYTES, on_pull, sent, on_released);
    else
        response = MHD_create_response_from_buffer_with_free_callback_cls(reply->n_body, reply->body, on_released, sent);
    if (!response) {
        on_released(sent);
        return MHD_NO;
    }
    add_headers(response, conn->http, answer);
    kni_guard_enter(&conn->guard, KNI_GUARD_PHASE_SEND); /* before queueing, which may begin to pull */
    result = MHD_queue_response(connection, reply->status, response);
    if (result == MHD_YES)
        kni_http_count(conn->http, route, reply->status);
    MHD_destroy_response(response); /* our reference; when queueing has failed the last one */
    return result;
}

void kni_http_answer_raw(struct kni_http_conn *conn, enum kni_route route, struct kni_http_answer *answer)
{
    const struct kni_http_reply *reply = &answer->reply;
    char head[512 + KNI_HTTP_MAX_ORIGIN], retry[40] = "", origin[40 + KNI_HTTP_MAX_ORIGIN] = "";
    if (reply->retry_after_s)
        snprintf(retry, sizeof retry, "Retry-After: %u\r\n", (unsigned)reply->retry_after_s);
    if (conn->http->allow_origin)
        snprintf(origin, sizeof origin, "Access-Control-Allow-Origin: %s\r\n", conn->http->allow_origin);
    int n = snprintf(head, sizeof head, "HTTP/1.1 %u %s\r\nContent-Type: application/json\r\nContent-Length: %zu\r\n%s%s"
                     "Server: kinema\r\nCache-Control: no-store\r\nConnection: close\r\n\r\n", reply->status,
                     MHD_get_reason_phrase_for(reply->status), reply->n_body, retry, origin);
    conn->early = true;
    kni_guard_enter(&conn->guard, KNI_GUARD_PHASE_SEND);
    /* Nothing of ours is under way on a connection whose request is being read, so this small answer fits whole. */
    if (send(conn->guard.fd, head, (size_t)n, MSG_NOSIGNAL | MSG_DONTWAIT | MSG_MORE) == n && reply->n_body) {
        ssize_t rest = send(conn->guard.fd, reply->body, reply->n_body, MSG_NOSIGNAL | MSG_DONTWAIT);
        (void)rest; /* the connection is closed in any case */
    }
    kni_http_count(conn->http, route, reply->status);
    kni_http_reply_drop(&answer->reply);
}

/* ---- an answer whose first bytes are out */

static enum MHD_Result add_line(void *user, enum MHD_ValueKind kind, const char *name, const char *value)
{
    (void)kind;
    kni_buf_format(user, "%s: %s\r\n", name, value);
    return MHD_YES;
}

/* The head as libmicrohttpd would write it. */
static void write_head(struct kni_buf *head, const struct kni_http *http, const struct kni_http_answer *answer)
{
    char date[64] = "";
    const time_t now = (time_t)kni_wall_s();
    struct tm utc;
    if (!gmtime_r(&now, &utc) || !strftime(date, sizeof date, "Date: %a, %d %b %Y %H:%M:%S GMT\r\n", &utc)) /* the program keeps the C locale */
        date[0] = 0;
    struct MHD_Response *response = MHD_create_response_from_buffer(0, (void *)(uintptr_t)"", MHD_RESPMEM_PERSISTENT);
    if (response)
        add_headers(response, http, answer);
    kni_buf_format(head, KNI_PEER_AHEAD "%u %s\r\n%s", answer->reply.status, MHD_get_reason_phrase_for(answer->reply.status), date);
    if (!answer->reply.read) /* else to the connection's end */
        kni_buf_format(head, "Content-Length: %zu\r\n", answer->reply.n_body);
    if (response) {
        MHD_get_response_headers(response, add_line, head);
        MHD_destroy_response(response);
    }
    kni_buf_text(head, "\r\n");
}

/* Blocks until all is out, or the client gone, or the guard has cut it: each piece that leaves is progress. */
static bool send_all(struct kni_http_conn *conn, const char *bytes, size_t n)
{
    while (n) {
        struct pollfd fd = {.fd = conn->guard.fd, .events = POLLOUT};
        ssize_t k = send(fd.fd, bytes, n, MSG_NOSIGNAL | MSG_DONTWAIT);
        if (k > 0) {
            kni_guard_enter(&conn->guard, KNI_GUARD_PHASE_SEND);
            bytes += k;
            n -= (size_t)k;
        } else if (!k || (errno != EAGAIN && errno != EWOULDBLOCK && errno != EINTR)) {
            return false;
        } else {
            poll(&fd, 1, -1); /* a cut is a shutdown, which wakes it */
        }
    }
    return true;
}

/* The pieces of a pulled answer. False: not to its end. */
static bool send_pulled(struct kni_http_conn *conn, struct kni_http_reply *reply)
{
    char bytes[8192];
    ssize_t n;
    do {
        kni_guard_enter(&conn->guard, KNI_GUARD_PHASE_HANDLER);
        n = reply->read(reply->user, bytes, sizeof bytes);
        kni_guard_enter(&conn->guard, KNI_GUARD_PHASE_SEND);
    } while (n > 0 && send_all(conn, bytes, (size_t)n));
    return n == -1;
}

void kni_http_answer_rest(struct kni_http_conn *conn, enum kni_route route, struct kni_http_answer *answer)
{
    struct kni_http_reply *reply = &answer->reply;
    struct kni_buf head = {0};
    answer->last = true;
    if (!reply->status)
        reply->status = MHD_HTTP_OK;
    write_head(&head, conn->http, answer);
    kni_guard_enter(&conn->guard, KNI_GUARD_PHASE_SEND);
    if (!head.failed)
        conn->early = send_all(conn, head.data + conn->peer.n_ahead, head.n - conn->peer.n_ahead) &&
                      (reply->read ? send_pulled(conn, reply) : send_all(conn, reply->body, reply->n_body));
    kni_http_count(conn->http, route, reply->status);
    kni_buf_fini(&head);
    kni_http_reply_drop(reply);
}

/* ---- errors */

/* text as a JSON string with its quotes; NULL as null. */
static void add_json(struct kni_buf *out, const char *text)
{
    kni_buf_text(out, text ? "\"" : "null");
    if (text) {
        kni_buf_json(out, text, strlen(text));
        kni_buf_text(out, "\"");
    }
}

static const char *type_of(unsigned status)
{
    return status == 401 ? "authentication_error" : status == 403 ? "permission_error" : status == 429 ? "rate_limit_error" :
           status >= 500 ? "server_error" : "invalid_request_error";
}

void kni_http_error(struct kni_http_reply *reply, unsigned status, const char *param, const char *code, const char *format, ...)
{
    char message[1024];
    va_list ap;
    va_start(ap, format);
    if (vsnprintf(message, sizeof message, format, ap) < 0)
        message[0] = 0;
    va_end(ap);
    const char *parts[4] = {message, type_of(status), param, code};
    static const char *const names[4] = {"{\"error\": {\"message\": ", ", \"type\": ", ", \"param\": ", ", \"code\": "};
    struct kni_buf out = {0};
    for (int i = 0; i < 4; i++) {
        kni_buf_text(&out, names[i]);
        add_json(&out, parts[i]);
    }
    kni_buf_text(&out, "}}\n");
    memset(reply, 0, sizeof *reply);
    reply->status = status;
    reply->body = kni_buf_take(&out, &reply->n_body); /* NULL, and no bytes, when out of memory: the status alone */
}
