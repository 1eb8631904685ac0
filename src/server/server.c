/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Opens the server's parts in the order in which they need each other, and closes them in an order that leaves nobody waiting.
 *
 *     open:   options -> engine -> metrics -> loop -> api -> http (listens from here on)
 *     run:    loop until stopped and drained: every call has ended -> http stops listening -> answers under way are sent
 *     close:  (never run? the loop's end is run now) -> http: replies are sent or cut, handlers come back -> loop -> engine
 *
 * A handler waits for its call only, and the loop's end leaves no call open; so http, whose threads use loop and metrics, closes
 * first, and the engine, which the loop's last posters may wake, closes last.
 *
 * Owner thread: the one that opened it. kni_loop_stop is all that another thread or a signal handler reaches.
 */
#include "kinema/server.h"

#include <string.h>
#include <time.h>

#include "base/alloc.h"
#include "base/clock.h"
#include "base/log.h"
#include "base/sized.h"
#include "base/status.h"
#include "server/api/api.h"
#include "server/server_opts.h"

#define MAX_CONNECTIONS 10000u
#define MAX_CHOICES 128u
#define MAX_KEYS 10000u
#define MIN_HEADER_BYTES 1024u
#define MIN_BODY_BYTES 64u

static const struct kni_http_route routes[] = {
    {"POST", "/v1/chat/completions", KNI_ROUTE_CHAT, kni_api_chat, false},
    {"POST", "/v1/completions", KNI_ROUTE_COMPLETIONS, kni_api_completions, false},
    {"GET", "/v1/models", KNI_ROUTE_MODELS, kni_api_models, false},
    {"GET", "/v1/models/*", KNI_ROUTE_MODELS, kni_api_model, false},
    {"POST", "/tokenize", KNI_ROUTE_TOKENIZE, kni_api_tokenize, false},
    {"POST", "/detokenize", KNI_ROUTE_TOKENIZE, kni_api_detokenize, false},
    {"GET", "/tokenizer_info", KNI_ROUTE_TOKENIZE, kni_api_tokenizer_info, false},
    {"GET", "/health", KNI_ROUTE_HEALTH, kni_page_health, true},
    {"GET", "/metrics", KNI_ROUTE_METRICS, kni_page_metrics, false},
    {"GET", "/stats", KNI_ROUTE_STATS, kni_page_stats, false},
    {"GET", "/", KNI_ROUTE_DASHBOARD, kni_page_dashboard, true},
};

struct kn_server {
    struct kn_server_opts opts; /* filled in; its pointers are to copies below, engine is NULL */
    struct kn_engine_opts engine_opts;
    struct kn_model *model;     /* borrowed: the engine holds a reference */
    struct kn_engine *engine;
    struct kni_metrics metrics;
    struct kni_parse_budget budget;
    struct kni_loop *loop;
    struct kni_api api;
    struct kni_http *http;
    char *host, *model_name, *allow_origin, *allow_hosts;
    struct kn_server_key *keys; /* [n_keys], their strings owned */
    bool has_run;
};

/* ---- options */

/* A key travels in a header: printable ASCII without blanks. */
static bool is_key(const char *key)
{
    if (!*key)
        return false;
    for (const char *p = key; *p; p++)
        if (*p <= ' ' || *p > '~')
            return false;
    return true;
}

static enum kn_status check_keys(const struct kn_server_opts *o, struct kn_err *err)
{
    if (o->n_keys > MAX_KEYS)
        return kni_err_set(err, KN_E_ARG, "n_keys is %zu: use at most %u", o->n_keys, MAX_KEYS);
    if (o->n_keys && !o->keys)
        return kni_err_set(err, KN_E_ARG, "n_keys is %zu but keys is NULL: give the keys, or 0", o->n_keys);
    for (size_t i = 0; i < o->n_keys; i++) {
        if (!o->keys[i].key || !is_key(o->keys[i].key))
            return kni_err_set(err, KN_E_ARG, "key %zu is empty or holds blanks, control characters or other than ASCII: no header could carry it", i + 1);
        for (size_t k = 0; k < i; k++)
            if (!strcmp(o->keys[i].key, o->keys[k].key))
                return kni_err_set(err, KN_E_ARG, "keys %zu and %zu are the same: give each tenant its own", k + 1, i + 1);
    }
    return KN_OK;
}

static enum kn_status check_opts(const struct kn_server_opts *o, struct kn_err *err)
{
    if (o->max_connections > MAX_CONNECTIONS)
        return kni_err_set(err, KN_E_ARG, "max_connections is %u: use 1 to %u, or 0 for 256", o->max_connections, MAX_CONNECTIONS);
    if (o->max_choices > MAX_CHOICES)
        return kni_err_set(err, KN_E_ARG, "max_choices is %u: use 1 to %u, or 0 for 16", o->max_choices, MAX_CHOICES);
    if (o->max_header_bytes && o->max_header_bytes < MIN_HEADER_BYTES)
        return kni_err_set(err, KN_E_ARG, "max_header_bytes is %u: use at least %u, or 0 for 16 KiB", o->max_header_bytes, MIN_HEADER_BYTES);
    if (o->max_body_bytes && o->max_body_bytes < MIN_BODY_BYTES)
        return kni_err_set(err, KN_E_ARG, "max_body_bytes is %llu: use at least %u, or 0 for 8 MiB", (unsigned long long)o->max_body_bytes, MIN_BODY_BYTES);
    if (o->host && !*o->host)
        return kni_err_set(err, KN_E_ARG, "host is empty: give an address such as 127.0.0.1 or 0.0.0.0, or NULL for 127.0.0.1");
    if (o->model_name && !*o->model_name)
        return kni_err_set(err, KN_E_ARG, "model_name is empty: give the name that clients ask for, or NULL for the file's");
    return check_keys(o, err);
}

/* The file's name without folder and ".gguf". */
static char *name_model(const char *path)
{
    const char *slash = strrchr(path, '/');
    char *name = kni_strdup(KNI_ALLOC_TAG_MISC, slash ? slash + 1 : path);
    size_t n = name ? strlen(name) : 0;
    if (n > 5 && !strcmp(name + n - 5, ".gguf"))
        name[n - 5] = 0;
    return name;
}

static bool copy_key(struct kn_server_key *out, const struct kn_server_key *in, size_t i)
{
    char numbered[32] = "key";
    size_t n = 3, value = i + 1, digits = 1;
    for (size_t v = value; v >= 10; v /= 10)
        digits++;
    for (size_t d = digits; d-- > 0; value /= 10)
        numbered[n + d] = (char)('0' + value % 10);
    numbered[n + digits] = 0;
    out->key = kni_strdup(KNI_ALLOC_TAG_MISC, in->key);
    out->name = kni_strdup(KNI_ALLOC_TAG_MISC, in->name ? in->name : numbered);
    out->salt = kni_strdup(KNI_ALLOC_TAG_MISC, in->salt ? in->salt : in->name ? in->name : numbered);
    return out->key && out->name && out->salt;
}

static enum kn_status copy_strings(struct kn_server *s, const struct kn_server_opts *o)
{
    size_t n_bytes;
    s->host = kni_strdup(KNI_ALLOC_TAG_MISC, o->host ? o->host : "127.0.0.1");
    s->model_name = o->model_name ? kni_strdup(KNI_ALLOC_TAG_MISC, o->model_name) : name_model(kn_model_info(s->model)->path);
    s->allow_origin = o->allow_origin ? kni_strdup(KNI_ALLOC_TAG_MISC, o->allow_origin) : NULL;
    s->allow_hosts = o->allow_hosts ? kni_strdup(KNI_ALLOC_TAG_MISC, o->allow_hosts) : NULL;
    if (!s->host || !s->model_name || (o->allow_origin && !s->allow_origin) || (o->allow_hosts && !s->allow_hosts))
        return KN_E_NOMEM;
    s->opts.host = s->host;
    s->opts.allow_origin = s->allow_origin;
    s->opts.allow_hosts = s->allow_hosts;
    s->opts.model_name = s->model_name;
    s->opts.keys = NULL;
    s->opts.n_keys = 0;
    if (!o->n_keys)
        return KN_OK;
    if (kni_mul_size(o->n_keys, sizeof *s->keys, &n_bytes))
        s->keys = kni_calloc(KNI_ALLOC_TAG_MISC, n_bytes, 0);
    if (!s->keys)
        return KN_E_NOMEM;
    s->opts.keys = s->keys;
    for (; s->opts.n_keys < o->n_keys; s->opts.n_keys++)
        if (!copy_key(&s->keys[s->opts.n_keys], &o->keys[s->opts.n_keys], s->opts.n_keys)) {
            s->opts.n_keys++; /* its strings are freed like the others' */
            return KN_E_NOMEM;
        }
    return KN_OK;
}

/* ---- parts */

/* Longest prompt and answer together: the context, or what the pool can hold of it. */
static uint32_t limit_context(const struct kn_server *s)
{
    struct kn_engine_stats stats = {.size = sizeof stats};
    kn_engine_get_stats(s->engine, &stats);
    uint32_t n_ctx = s->engine_opts.n_ctx ? s->engine_opts.n_ctx : kn_model_info(s->model)->n_ctx_train;
    uint64_t n_pool = (uint64_t)stats.n_blocks * stats.block_tokens;
    return n_pool < n_ctx ? (uint32_t)n_pool : n_ctx;
}

static enum kn_status open_parts(struct kn_server *s, struct kn_err *err)
{
    enum kn_status status = kn_engine_open(&s->engine, s->model, &s->engine_opts, err);
    if (status)
        return status;
    kni_metrics_init(&s->metrics);
    kni_parse_budget_init(&s->budget, s->opts.max_parse_bytes);
    struct kni_loop_opts lo = {.engine = s->engine,
                               .model = s->model,
                               .metrics = &s->metrics,
                               .max_queue = s->opts.max_queue,
                               .drain_timeout_ms = s->opts.drain_timeout_ms};
    if ((status = kni_loop_open(&s->loop, &lo, err)))
        return status;
    s->api = (struct kni_api){.model = s->model,
                              .loop = s->loop,
                              .metrics = &s->metrics,
                              .limits = {.n_ctx = limit_context(s), .max_choices = s->opts.max_choices, .model_name = s->model_name, .budget = &s->budget},
                              .wait_timeout_ms = s->opts.wait_timeout_ms,
                              .request_timeout_ms = s->opts.request_timeout_ms,
                              .created_s = kni_wall_s()};
    struct kni_http_opts ho = {.server = &s->opts, .routes = routes, .n_routes = sizeof routes / sizeof *routes, .user = &s->api,
                               .metrics = &s->metrics};
    return kni_http_open(&s->http, &ho, err);
}

enum kn_status kn_server_open(struct kn_server **out, struct kn_model *model, const struct kn_server_opts *opts, struct kn_err *err)
{
    if (!out)
        return kni_err_set(err, KN_E_ARG, "kn_server_open needs a place for the server");
    *out = NULL;
    if (!model)
        return kni_err_set(err, KN_E_ARG, "kn_server_open needs a model");
    struct kn_server_opts o;
    enum kn_status status = KNI_OPTS_READ(&o, opts, kn_server_opts, err);
    if (status || (status = check_opts(&o, err)))
        return status;
    struct kn_server *s = kni_calloc(KNI_ALLOC_TAG_MISC, sizeof *s, 0);
    if (!s)
        return kni_err_set(err, KN_E_NOMEM, "no memory for a server");
    kni_server_opts_fill(&o);
    s->model = model;
    s->opts = o;
    s->opts.engine = NULL;
    status = KNI_OPTS_READ_OR_DEFAULT(&s->engine_opts, o.engine, kn_engine_opts, err);
    if (!status && (status = copy_strings(s, &o)))
        kni_err_set(err, status, "no memory for the server's %zu keys", o.n_keys);
    if (!status)
        status = open_parts(s, err);
    if (status)
        kn_server_close(&s);
    *out = s;
    return status;
}

uint16_t kn_server_port(const struct kn_server *server)
{
    return kni_http_port(server->http);
}

/* The calls have ended, their answers may still be on their way to slow readers. */
static void send_rest(struct kn_server *s)
{
    const uint64_t end_ns = kni_now_ns() + (uint64_t)s->opts.drain_timeout_ms * 1000000u;
    const struct timespec nap = {.tv_nsec = 2000000};
    while (kni_http_is_busy(s->http) && kni_loop_n_stops(s->loop) < 2 && kni_now_ns() < end_ns)
        nanosleep(&nap, NULL);
}

enum kn_status kn_server_run(struct kn_server *server)
{
    if (server->has_run)
        return KN_E_STATE;
    server->has_run = true;
    enum kn_status status = kni_loop_run(server->loop);
    kni_http_quiesce(server->http); /* refusals were answered until here */
    send_rest(server);
    return status;
}

void kn_server_stop(struct kn_server *server)
{
    kni_loop_stop(server->loop);
}

void kn_server_close(struct kn_server **server)
{
    struct kn_server *s = server ? *server : NULL;
    if (!s)
        return;
    if (s->loop && !s->has_run) { /* handlers may wait for calls that nobody will serve: end them */
        kni_loop_stop(s->loop);
        kni_loop_stop(s->loop);
        if (s->http)
            kni_loop_run(s->loop);
    }
    kni_http_close(&s->http);
    kni_loop_close(&s->loop);
    kn_engine_close(&s->engine);
    for (size_t i = 0; i < s->opts.n_keys && s->keys; i++) {
        kni_free((char *)(uintptr_t)s->keys[i].key);
        kni_free((char *)(uintptr_t)s->keys[i].name);
        kni_free((char *)(uintptr_t)s->keys[i].salt);
    }
    kni_free(s->keys);
    kni_free(s->host);
    kni_free(s->allow_origin);
    kni_free(s->allow_hosts);
    kni_free(s->model_name);
    kni_free(s);
    *server = NULL;
}
