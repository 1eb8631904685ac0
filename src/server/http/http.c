/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Opening, listening, connections, closing; see http.h. Requests are http_request.c's.
 *
 *     listen socket (ours, so that errors and ports are clear) -> libmicrohttpd's accepting thread -> a thread a connection
 *
 * Connections above max_connections are accepted up to SLACK more, to be told 503 in HTTP; above that they are closed unheard. A
 * connection's thread has a stack of STACK_BYTES: handlers may use about half of it.
 *
 * Closing: no new connections, all sockets shut down, so that threads that read, write or idle come back; then libmicrohttpd
 * waits for all threads. A handler that waits for something else must be told by its owner.
 */
#include <arpa/inet.h>
#include <errno.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#include "base/alloc.h"
#include "base/clock.h"
#include "base/log.h"
#include "base/signals.h"
#include "base/status.h"
#include "server/http/http_host.h"
#include "server/http/http_state.h"
#include "server/server_opts.h"

#define SLACK 64u
#define STACK_BYTES ((size_t)256 << 10)
#define BACKLOG 1024
#define CLOSE_MS 10000u /* that cut connections get to end */
#define ANSWER_BYTES 16384u /* of a connection's memory, beside its head and libmicrohttpd's record of it: the answer's head, a chunk */
#define MAX_BODY_BYTES ((uint64_t)1 << 40) /* more is no limit, and would overflow sums */

/* ---- connections, by the accepting thread */

struct kni_http_conn *kni_http_conn_of(struct MHD_Connection *connection)
{
    const union MHD_ConnectionInfo *info = MHD_get_connection_info(connection, MHD_CONNECTION_INFO_SOCKET_CONTEXT);
    return info ? info->socket_context : NULL;
}

static enum MHD_Result on_accept(void *cls, const struct sockaddr *address, socklen_t n_address)
{
    struct kni_http *http = cls;
    (void)address;
    (void)n_address;
    if (atomic_load_explicit(&http->n_conns, memory_order_relaxed) < http->max_connections + SLACK) /* written by this thread */
        return MHD_YES;
    atomic_fetch_add_explicit(&http->metrics->refused_connections, 1, memory_order_relaxed); /* a counter alone */
    return MHD_NO;
}

/* Dead peers, which say nothing: found by probes while nothing is under way, by missing acknowledgements while something is; the
 * kernel also ends readers that stall, so it is given twice the guard's time, which knows better what we wait for. */
static void watch_peer(int fd, uint32_t send_ms)
{
    unsigned unacknowledged_ms = send_ms < 1000000 ? 2 * send_ms : 2000000;
    int yes = 1, idle_s = 30, every_s = 10, n = 3;
    setsockopt(fd, SOL_SOCKET, SO_KEEPALIVE, &yes, sizeof yes); /* refused by sockets that are no TCP: fine */
    setsockopt(fd, IPPROTO_TCP, TCP_KEEPIDLE, &idle_s, sizeof idle_s);
    setsockopt(fd, IPPROTO_TCP, TCP_KEEPINTVL, &every_s, sizeof every_s);
    setsockopt(fd, IPPROTO_TCP, TCP_KEEPCNT, &n, sizeof n);
    setsockopt(fd, IPPROTO_TCP, TCP_USER_TIMEOUT, &unacknowledged_ms, sizeof unacknowledged_ms);
}

static void begin_conn(struct kni_http *http, struct MHD_Connection *connection, void **context)
{
    const union MHD_ConnectionInfo *info = MHD_get_connection_info(connection, MHD_CONNECTION_INFO_CONNECTION_FD);
    struct kni_http_conn *conn = info ? kni_calloc(KNI_ALLOC_TAG_MISC, sizeof *conn, 0) : NULL;
    *context = conn;
    if (!conn) {
        if (info)
            shutdown(info->connect_fd, SHUT_RDWR); /* no guard, no service */
        return;
    }
    conn->http = http;
    conn->too_many = atomic_fetch_add_explicit(&http->n_conns, 1, memory_order_relaxed) >= http->max_connections;
    if (conn->too_many)
        atomic_fetch_add_explicit(&http->metrics->refused_connections, 1, memory_order_relaxed); /* a counter alone */
    atomic_fetch_add_explicit(&http->metrics->n_connections, 1, memory_order_relaxed); /* a gauge alone */
    watch_peer(info->connect_fd, http->send_ms);
    kni_peer_init(&conn->peer, info->connect_fd);
    kni_guard_add(http->guard, &conn->guard, info->connect_fd);
}

/* The connection's thread has ended; its socket is closed when this returns. */
static void end_conn(struct kni_http *http, struct kni_http_conn *conn, void **context)
{
    int n_unread = 0;
    if (!conn)
        return;
    bool unread = conn->early || (!ioctl(conn->guard.fd, FIONREAD, &n_unread) && n_unread > 0);
    kni_guard_remove(http->guard, &conn->guard, unread);
    atomic_fetch_sub_explicit(&http->n_conns, 1, memory_order_relaxed);
    atomic_fetch_sub_explicit(&http->metrics->n_connections, 1, memory_order_relaxed);
    kni_free(conn);
    *context = NULL;
}

static void on_connection(void *cls, struct MHD_Connection *connection, void **context, enum MHD_ConnectionNotificationCode code)
{
    if (code == MHD_CONNECTION_NOTIFY_STARTED)
        begin_conn(cls, connection, context);
    else
        end_conn(cls, *context, context);
}

static void on_log(void *cls, const char *format, va_list ap) __attribute__((format(printf, 2, 0)));
static void on_log(void *cls, const char *format, va_list ap)
{
    static const char refused[] = "Error processing request (HTTP response code is %u ('%s'))";
    char text[512];
    va_list again;
    (void)cls;
    if (!strncmp(format, refused, sizeof refused - 1)) { /* other versions may say it otherwise, and then send their own pages */
        va_copy(again, ap);
        unsigned status = va_arg(again, unsigned);
        kni_http_on_refused(status, va_arg(again, const char *));
        va_end(again);
    }
    int n = vsnprintf(text, sizeof text, format, ap);
    if (n < 0)
        return;
    text[strcspn(text, "\r\n")] = 0;
    kni_log(KN_LOG_LEVEL_DEBUG, "server", "%s", text);
}

/* ---- listening */

/* Text like "127.0.0.1:8080" or "[::1]:8080". */
static const char *address_text(char text[300], const char *host, uint16_t port)
{
    snprintf(text, 300, strchr(host, ':') ? "[%.250s]:%u" : "%.250s:%u", host, (unsigned)port);
    return text;
}

static int listen_at(const struct addrinfo *address, int *error)
{
    int yes = 1, no = 0, fd = socket(address->ai_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (fd >= 0) {
        setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &yes, sizeof yes); /* old connections in TIME_WAIT do not hold the port */
        if (address->ai_family == AF_INET6)
            setsockopt(fd, IPPROTO_IPV6, IPV6_V6ONLY, &no, sizeof no); /* "::" takes IPv4 as well */
        if (!bind(fd, address->ai_addr, address->ai_addrlen) && !listen(fd, BACKLOG))
            return fd;
    }
    *error = errno;
    if (fd >= 0)
        close(fd);
    return -1;
}

static const char *advice(int error)
{
    switch (error) {
    case EADDRINUSE: return "address already in use; choose another port";
    case EACCES: return "permission denied; choose a port above 1023";
    case EADDRNOTAVAIL: return "this machine has no such address; choose another host";
    default: return strerror(error);
    }
}

static bool is_loopback(const struct sockaddr_storage *bound)
{
    const struct in6_addr *six = &((const struct sockaddr_in6 *)bound)->sin6_addr;
    if (bound->ss_family == AF_INET6)
        return IN6_IS_ADDR_LOOPBACK(six) || (IN6_IS_ADDR_V4MAPPED(six) && six->s6_addr[12] == 127);
    return ntohl(((const struct sockaddr_in *)bound)->sin_addr.s_addr) >> 24 == 127;
}

static enum kn_status open_socket(struct kni_http *http, const char *given, uint16_t port, int *out, struct kn_err *err)
{
    char host[256], service[8], text[300];
    struct addrinfo hints = {.ai_flags = AI_PASSIVE | AI_NUMERICSERV, .ai_family = AF_UNSPEC, .ai_socktype = SOCK_STREAM}, *list = NULL;
    struct sockaddr_storage bound = {0};
    socklen_t n_bound = sizeof bound;
    size_t n = given ? strlen(given) : 0;
    int fd = -1, error = EADDRNOTAVAIL;
    bool brackets = n > 2 && given[0] == '[' && given[n - 1] == ']';
    if (given && (!n || n >= sizeof host))
        return kni_err_set(err, KN_E_ARG, "server: host \"%.60s\" is no address: give one such as 127.0.0.1, ::1 or 0.0.0.0", given);
    if (given)
        snprintf(host, sizeof host, "%.*s", (int)(brackets ? n - 2 : n), given + (brackets ? 1 : 0));
    else
        snprintf(host, sizeof host, "127.0.0.1");
    snprintf(service, sizeof service, "%u", (unsigned)port);
    int rc = getaddrinfo(host, service, &hints, &list);
    if (rc)
        return kni_err_set(err, KN_E_ARG, "server: host \"%.200s\" is no address: %s; give one such as 127.0.0.1, ::1 or 0.0.0.0", host, gai_strerror(rc));
    for (int family = 0; family < 2 && fd < 0; family++) /* IPv4 first: what clients try when they are told "localhost" */
        for (const struct addrinfo *a = list; a && fd < 0; a = a->ai_next)
            if ((a->ai_family == AF_INET) == (family == 0))
                fd = listen_at(a, &error);
    freeaddrinfo(list);
    if (fd < 0)
        return kni_err_set(err, KN_E_IO, "cannot listen on %s: %s", address_text(text, host, port), advice(error));
    if (getsockname(fd, (struct sockaddr *)&bound, &n_bound)) {
        error = errno;
        close(fd);
        return kni_err_set(err, KN_E_IO, "cannot listen on %s: %s", address_text(text, host, port), strerror(error));
    }
    http->loopback = is_loopback(&bound);
    http->port = ntohs(bound.ss_family == AF_INET6 ? ((struct sockaddr_in6 *)&bound)->sin6_port : ((struct sockaddr_in *)&bound)->sin_port);
    *out = fd;
    return KN_OK;
}

/* ---- keys */

static enum kn_status take_key(struct kni_http *http, size_t i, const struct kn_server_key *given, struct kn_err *err)
{
    struct kni_http_key *key = &http->keys[i];
    char name[32];
    const char *bad = !given->key || !given->key[0] ? "is empty" : NULL;
    for (const char *p = given->key; !bad && *p; p++)
        if (*p <= ' ' || *p > '~')
            bad = "has characters other than visible ASCII";
    if (bad)
        return kni_err_set(err, KN_E_ARG, "server: API key %zu %s: give it at least one character, without spaces", i + 1, bad);
    key->hash = kni_hash_bytes(given->key, strlen(given->key));
    for (size_t k = 0; k < i; k++)
        if (kni_hash_equal(&http->keys[k].hash, &key->hash))
            return kni_err_set(err, KN_E_ARG, "server: API keys %zu and %zu are the same: tenants need keys of their own", k + 1, i + 1);
    snprintf(name, sizeof name, "key%zu", i + 1);
    key->name = kni_strdup(KNI_ALLOC_TAG_MISC, given->name ? given->name : name);
    key->salt = kni_strdup(KNI_ALLOC_TAG_MISC, given->salt ? given->salt : given->name ? given->name : name);
    key->tenant = (struct kni_tenant){key->name, key->salt};
    return key->name && key->salt ? KN_OK : kni_err_set(err, KN_E_NOMEM, "server: out of memory for API keys");
}

static enum kn_status take_keys(struct kni_http *http, const struct kn_server_opts *server, struct kn_err *err)
{
    enum kn_status s = KN_OK;
    size_t bytes;
    if (!server->n_keys)
        return KN_OK;
    http->keys = kni_mul_size(server->n_keys, sizeof *http->keys, &bytes) ? kni_calloc(KNI_ALLOC_TAG_MISC, bytes, 0) : NULL;
    if (!http->keys)
        return kni_err_set(err, KN_E_NOMEM, "server: out of memory for API keys");
    http->n_keys = server->n_keys;
    for (size_t i = 0; i < server->n_keys && !s; i++)
        s = take_key(http, i, &server->keys[i], err);
    return s;
}

/* ---- open and close */

/* A connection is a socket, and a request under way an event for it to wait on. */
static void check_descriptors(const struct kni_http *http)
{
    struct rlimit limit;
    uint64_t wanted = 2 * (uint64_t)http->max_connections + 2 * SLACK;
    if (!getrlimit(RLIMIT_NOFILE, &limit) && limit.rlim_cur < wanted)
        kni_log(KN_LOG_LEVEL_WARN, "server", "%u connections may need %llu descriptors, but this process may open %llu: raise its limit (ulimit -n), "
                "or allow fewer connections", http->max_connections, (unsigned long long)wanted, (unsigned long long)limit.rlim_cur);
}

static enum kn_status start_daemon(struct kni_http *http, int *fd, struct kn_err *err)
{
    sigset_t before;
    const unsigned flags = MHD_USE_INTERNAL_POLLING_THREAD | MHD_USE_THREAD_PER_CONNECTION | MHD_USE_POLL | MHD_USE_ITC | MHD_USE_ERROR_LOG;
    size_t memory = (size_t)http->max_header_bytes * 2 + ANSWER_BYTES;
    kni_signals_block(&before); /* inherited by all of its threads */
    http->daemon = MHD_start_daemon(flags, http->port, on_accept, http, kni_http_on_access, http, MHD_OPTION_EXTERNAL_LOGGER, on_log, (void *)NULL,
                                    MHD_OPTION_LISTEN_SOCKET, *fd, MHD_OPTION_CONNECTION_LIMIT, (unsigned)(http->max_connections + 2 * SLACK),
                                    MHD_OPTION_CONNECTION_MEMORY_LIMIT, memory, MHD_OPTION_THREAD_STACK_SIZE, STACK_BYTES,
                                    MHD_OPTION_NOTIFY_COMPLETED, kni_http_on_completed, http, MHD_OPTION_NOTIFY_CONNECTION, on_connection, http,
                                    MHD_OPTION_URI_LOG_CALLBACK, kni_http_on_uri, http, MHD_OPTION_UNESCAPE_CALLBACK, kni_http_on_unescape, http,
                                    MHD_OPTION_END);
    kni_signals_restore(&before);
    if (!http->daemon)
        return kni_err_set(err, KN_E_IO, "server: libmicrohttpd does not start; the log at its lowest level says why");
    *fd = -1; /* its own now */
    return KN_OK;
}

/* It becomes a header: printable, without space. */
static enum kn_status take_origin(struct kni_http *http, const char *origin, struct kn_err *err)
{
    if (!origin)
        return KN_OK;
    size_t n = 0;
    while (origin[n] > ' ' && origin[n] < 127)
        n++;
    if (!n || origin[n] || n > KNI_HTTP_MAX_ORIGIN)
        return kni_err_set(err, KN_E_ARG, "the allowed origin \"%.60s\" is none: give one such as https://example.org, or * for all", origin);
    http->allow_origin = kni_strdup(KNI_ALLOC_TAG_MISC, origin);
    return http->allow_origin ? KN_OK : kni_err_set(err, KN_E_NOMEM, "server: out of memory");
}

static enum kn_status take_hosts(struct kni_http *http, const struct kn_server_opts *server, struct kn_err *err)
{
    const char *bad;
    size_t n_bad;
    if (!kni_http_hosts_are_good(server->allow_hosts, &bad, &n_bad))
        return kni_err_set(err, KN_E_ARG, "the allowed host \"%.*s\" is none: give a name or address without port, such as llm.example.org",
                           (int)(n_bad < 60 ? n_bad : 60), bad);
    http->listening = kni_strdup(KNI_ALLOC_TAG_MISC, server->host ? server->host : "127.0.0.1");
    http->allow_hosts = server->allow_hosts ? kni_strdup(KNI_ALLOC_TAG_MISC, server->allow_hosts) : NULL;
    return http->listening && (http->allow_hosts || !server->allow_hosts) ? KN_OK : kni_err_set(err, KN_E_NOMEM, "server: out of memory");
}

enum kn_status kni_http_open(struct kni_http **out, const struct kni_http_opts *opts, struct kn_err *err)
{
    struct kn_server_opts server = *opts->server;
    int fd = -1;
    *out = NULL;
    struct kni_http *http = kni_calloc(KNI_ALLOC_TAG_MISC, sizeof *http, 0);
    if (!http)
        return kni_err_set(err, KN_E_NOMEM, "server: out of memory");
    http->routes = opts->routes;
    http->n_routes = opts->n_routes;
    http->user = opts->user;
    http->metrics = opts->metrics;
    http->nobody = (struct kni_tenant){"", ""};
    kni_server_opts_fill(&server);
    http->max_connections = server.max_connections;
    http->max_header_bytes = server.max_header_bytes;
    http->max_body_bytes = server.max_body_bytes < MAX_BODY_BYTES ? server.max_body_bytes : MAX_BODY_BYTES;
    http->send_ms = server.send_timeout_ms;
    http->listen_fd = -1;
    struct kni_guard_limits limits = {server.header_timeout_ms, server.body_timeout_ms, server.send_timeout_ms, server.idle_timeout_ms};
    enum kn_status s = take_origin(http, server.allow_origin, err);
    if (!s)
        s = take_hosts(http, &server, err);
    if (!s)
        s = take_keys(http, &server, err);
    if (!s)
        s = open_socket(http, server.host, server.port, &fd, err);
    http->own_names = http->loopback && !http->n_keys;
    if (!s)
        s = kni_guard_open(&http->guard, &limits, &http->metrics->slow_clients, err);
    if (!s)
        s = start_daemon(http, &fd, err);
    if (fd >= 0)
        close(fd);
    if (s)
        kni_http_close(&http);
    else
        check_descriptors(http);
    *out = http;
    return s;
}

uint16_t kni_http_port(const struct kni_http *http)
{
    return http->port;
}

void kni_http_quiesce(struct kni_http *http)
{
    if (atomic_exchange_explicit(&http->quiesced, true, memory_order_relaxed))
        return;
    http->listen_fd = MHD_quiesce_daemon(http->daemon); /* may still be looked at: closed after the daemon */
    if (http->listen_fd >= 0)
        shutdown(http->listen_fd, SHUT_RD); /* new clients are refused at once instead of waiting in the backlog */
}

bool kni_http_is_busy(struct kni_http *http)
{
    return kni_guard_is_busy(http->guard);
}

/* libmicrohttpd 0.9.75 dereferences NULL when a malformed request meets its stop: so connections, which have been cut, end before. Handlers
 * that take longer are waited for by the stop itself. */
static void wait_for_connections(const struct kni_http *http)
{
    const struct timespec nap = {.tv_nsec = 1000000};
    const uint64_t end_ns = kni_now_ns() + CLOSE_MS * 1000000ull;
    while (atomic_load_explicit(&http->n_conns, memory_order_relaxed) && kni_now_ns() < end_ns) /* a value alone */
        nanosleep(&nap, NULL);
}

void kni_http_close(struct kni_http **http)
{
    struct kni_http *h = *http;
    if (!h)
        return;
    if (h->daemon) {
        kni_http_quiesce(h);
        kni_guard_cut_all(h->guard);
        wait_for_connections(h);
        MHD_stop_daemon(h->daemon);
        if (h->listen_fd >= 0)
            close(h->listen_fd);
    }
    kni_guard_close(&h->guard);
    for (size_t i = 0; i < h->n_keys; i++) {
        kni_free(h->keys[i].name);
        kni_free(h->keys[i].salt);
    }
    kni_free(h->keys);
    kni_free(h->allow_origin);
    kni_free(h->listening);
    kni_free(h->allow_hosts);
    kni_free(h);
    *http = NULL;
}
