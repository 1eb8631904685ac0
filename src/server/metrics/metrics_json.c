/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Metrics as JSON: /stats for the dashboard, /health for load balancers.
 *
 * /stats holds counters and the time, no rates: the reader takes two of them and divides, so that several readers do not disturb each
 * other and the server keeps no window for any of them. Latencies come as bounds and bucket counts for the same reason, and as quantiles
 * since the start. The pool map is one string, five hexadecimal digits a cell:
 *
 *     cell i:   f c h s q     blocks i * cell_blocks and on: free, cached, held, shared, fetching, each 0..15 of the whole;
 *                             what is there at all is at least 1
 *
 * Runs of plain fields stand in tables, one row a member; what is computed, or text, is written by hand between them.
 * To add a plain field: one more row, and its name in doc/metrics.md.
 *
 * Any thread. Only the buffer can fail.
 */
#include <inttypes.h>
#include <stddef.h>
#include <string.h>

#include "base/clock.h"
#include "kinema/kinema.h"
#include "server/loop/loop.h"
#include "server/metrics/metrics.h"

/* Writers for members of an object; each ends with a comma but the last, which is what `end` is for. */
static void number(struct kni_buf *out, const char *key, uint64_t value)
{
    kni_buf_format(out, "\"%s\":%" PRIu64 ",", key, value);
}

static void flag(struct kni_buf *out, const char *key, bool value)
{
    kni_buf_format(out, "\"%s\":%s,", key, value ? "true" : "false");
}

static void seconds(struct kni_buf *out, const char *key, uint64_t ns)
{
    kni_buf_format(out, "\"%s\":", key);
    kni_metrics_seconds(out, ns);
    kni_buf_text(out, ",");
}

static void text(struct kni_buf *out, const char *key, const char *value)
{
    kni_buf_format(out, "\"%s\":\"", key);
    kni_buf_json(out, value, strlen(value));
    kni_buf_text(out, "\",");
}

static void begin(struct kni_buf *out, const char *key)
{
    kni_buf_format(out, "\"%s\":{", key);
}

/* Closes an object or array: the comma after its last member becomes its bracket. */
static void end(struct kni_buf *out, char bracket)
{
    if (!out->failed && out->n > 0 && out->data[out->n - 1] == ',')
        out->data[out->n - 1] = bracket;
    else
        kni_buf_add(out, &bracket, 1);
    kni_buf_text(out, ",");
}

/* The comma after the outermost object goes. */
static void finish(struct kni_buf *out)
{
    end(out, '}');
    if (!out->failed && out->n > 0)
        out->data[--out->n] = 0;
}

static uint64_t get(const _Atomic uint64_t *value)
{
    return atomic_load_explicit(value, memory_order_relaxed); /* statistics: nothing is published by them */
}

/* ---- runs of members: a table says which field of a struct each is */

struct member {
    const char *key;
    enum { MEMBER_U32, MEMBER_U64, MEMBER_COUNTER, MEMBER_NS } kind; /* counter: atomic; ns: shown as seconds */
    size_t at;
};
#define FIELD(type, name) (((const type *)0)->name)
#define NUMBER(key, type, name) \
    {key, _Generic(FIELD(type, name), uint32_t: MEMBER_U32, uint64_t: MEMBER_U64), offsetof(type, name)}
#define SECONDS(key, type, name) {key, _Generic(FIELD(type, name), uint64_t: MEMBER_NS), offsetof(type, name)}
#define COUNTER(key, name) {key, MEMBER_COUNTER, offsetof(struct kni_metrics, name)}
#define ENGINE(key, name) NUMBER(key, struct kn_engine_stats, name)
#define ENGINE_SECONDS(key, name) SECONDS(key, struct kn_engine_stats, name)
#define SNAPSHOT(key, name) NUMBER(key, struct kni_snapshot, name)
#define FETCH(key, name) NUMBER(key, struct kni_snapshot_fetch, name)

static void put(struct kni_buf *out, const void *from, const struct member *list, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        const void *at = (const char *)from + list[i].at;
        switch (list[i].kind) {
        case MEMBER_U32: number(out, list[i].key, *(const uint32_t *)at); break;
        case MEMBER_U64: number(out, list[i].key, *(const uint64_t *)at); break;
        case MEMBER_COUNTER: number(out, list[i].key, get(at)); break;
        case MEMBER_NS: seconds(out, list[i].key, *(const uint64_t *)at); break;
        }
    }
}
#define PUT(out, from, list) put(out, from, list, sizeof(list) / sizeof *(list))

static const struct member request_members[] = {
    SNAPSHOT("waiting", engine.n_waiting),
    SNAPSHOT("waiting_for_kv", engine.n_fetching),
    SNAPSHOT("running", engine.n_running),
    SNAPSHOT("calls", n_calls),
    SNAPSHOT("inbox", n_inbox),
    SNAPSHOT("preemptions", engine.n_preemptions),
};
static const struct member ended_members[] = {
    COUNTER("stop", ended[KN_STOP_REASON_STOP]),
    COUNTER("length", ended[KN_STOP_REASON_LENGTH]),
    COUNTER("cancelled", ended[KN_STOP_REASON_CANCELLED]),
    COUNTER("error", ended[KN_STOP_REASON_ERROR]),
};
static const struct member http_members[] = { /* behind connections and responses */
    COUNTER("refused_queue", refused_queue),
    COUNTER("refused_connections", refused_connections),
    COUNTER("slow_clients", slow_clients),
    COUNTER("disconnects", disconnects),
};
static const struct member token_members[] = { /* of prompts, by where they came from; then "lossy" */
    ENGINE("prompt", n_prompt_tokens),
    ENGINE("memory", n_cached_tokens),
    ENGINE("store", n_fetched_tokens),
};
static const struct member step_members[] = { /* behind it */
    ENGINE("computed", n_computed_tokens),
    ENGINE("generated", n_generated_tokens),
    ENGINE("steps", n_steps),
    ENGINE("step_tokens", n_step_tokens),
};
static const struct member pool_members[] = { /* then "held" */
    ENGINE("blocks", n_blocks),
    ENGINE("free", n_free_blocks),
    ENGINE("cached", n_cached_blocks),
};
static const struct member block_members[] = { /* behind it */
    ENGINE("fetching", n_fetch_blocks),
    ENGINE("publishing", n_publish_blocks),
    ENGINE("block_tokens", block_tokens),
    ENGINE("block_bytes", block_bytes),
};
static const struct member store_members[] = { /* behind its flags */
    ENGINE("read_errors", store_read_errors),
    ENGINE("write_errors", store_write_errors),
};
static const struct member fetch_members[] = {
    ENGINE("count", n_fetches),
    ENGINE("cut", n_fetches_cut),
    ENGINE("bytes", fetch_bytes),
    ENGINE_SECONDS("wait_s", fetch_ns),
    ENGINE("misses", n_fetch_misses),
    ENGINE("working_bytes", fetch_working_bytes),
};
static const struct member fetch_now_members[] = {
    FETCH("id", id),
    FETCH("prompt", n_prompt),
    FETCH("wanted", n_wanted),
    FETCH("fetched", n_fetched),
    FETCH("bytes", n_bytes),
    SECONDS("elapsed_s", struct kni_snapshot_fetch, elapsed_ns),
};
static const struct member publish_members[] = {
    ENGINE("chunks", published_chunks),
    ENGINE("bytes", published_bytes),
    ENGINE("raw_bytes", published_raw_bytes),
    ENGINE_SECONDS("busy_s", publish_ns),
    ENGINE("errors", publish_errors),
    ENGINE("refused", n_publish_refused),
    ENGINE("now", n_publishing),
};

/* ---- objects */

static void histogram(struct kni_buf *out, const char *key, const struct kni_hist *hist)
{
    static const struct { const char *key; double p; } quantiles[] = {{"p50", 0.5}, {"p90", 0.9}, {"p99", 0.99}};

    begin(out, key);
    kni_buf_text(out, "\"bounds\":[");
    for (uint32_t i = 0; i < hist->n_bounds; i++) {
        kni_metrics_seconds(out, (uint64_t)(hist->bounds[i] * 1e9 + 0.5));
        kni_buf_text(out, ",");
    }
    end(out, ']');
    kni_buf_text(out, "\"buckets\":[");
    for (uint32_t i = 0; i <= hist->n_bounds; i++)
        kni_buf_format(out, "%" PRIu64 ",", get(&hist->buckets[i]));
    end(out, ']');
    number(out, "count", get(&hist->count));
    seconds(out, "sum_s", get(&hist->sum_ns));
    for (unsigned i = 0; i < sizeof quantiles / sizeof *quantiles; i++)
        seconds(out, quantiles[i].key, (uint64_t)(kni_hist_quantile(hist, quantiles[i].p) * 1e9 + 0.5));
    end(out, '}');
}

static void requests(struct kni_buf *out, const struct kni_metrics *m, const struct kni_snapshot *s)
{
    begin(out, "requests");
    PUT(out, s, request_members);
    begin(out, "ended");
    PUT(out, m, ended_members);
    end(out, '}');
    end(out, '}');

    begin(out, "latency");
    histogram(out, "ttft", &m->ttft);
    histogram(out, "tpot", &m->tpot);
    histogram(out, "e2e", &m->e2e);
    histogram(out, "queue", &m->queue);
    end(out, '}');
}

static void http(struct kni_buf *out, const struct kni_metrics *m)
{
    begin(out, "http");
    number(out, "connections", atomic_load_explicit(&m->n_connections, memory_order_relaxed)); /* statistics */
    for (unsigned c = 2; c < 6; c++) {
        uint64_t n = 0;
        for (unsigned r = 0; r < KNI_ROUTE_COUNT; r++)
            n += get(&m->responses[r][c]);
        kni_buf_format(out, "\"%uxx\":%" PRIu64 ",", c, n);
    }
    PUT(out, m, http_members);
    end(out, '}');
}

static void tokens(struct kni_buf *out, const struct kn_engine_stats *e)
{
    begin(out, "tokens");
    PUT(out, e, token_members);
    uint64_t lossy = 0; /* of memory and store */
    for (unsigned q = KN_KV_QUALITY_EXACT + 1; q < KN_KV_QUALITY_COUNT; q++)
        lossy += e->n_cached_by[q] + e->n_fetched_by[q];
    number(out, "lossy", lossy);
    PUT(out, e, step_members);
    end(out, '}');
}

static void pool(struct kni_buf *out, const struct kni_snapshot *s)
{
    const struct kn_engine_stats *e = &s->engine;
    uint32_t idle = e->n_free_blocks + e->n_cached_blocks, n_cells = s->n_cells < KNI_SNAPSHOT_MAX_CELLS ? s->n_cells : KNI_SNAPSHOT_MAX_CELLS;

    begin(out, "pool");
    PUT(out, e, pool_members);
    number(out, "held", idle < e->n_blocks ? e->n_blocks - idle : 0);
    PUT(out, e, block_members);
    number(out, "cell_blocks", s->cell_blocks);
    kni_buf_text(out, "\"cells\":\"");
    for (uint32_t i = 0; i < n_cells; i++) {
        char digits[5];
        for (unsigned state = 0; state < 5; state++) {
            unsigned share = s->cells[i][state], digit = (share * 15u + 127u) / 255u;
            digits[state] = "0123456789abcdef"[digit == 0 && share > 0 ? 1 : digit];
        }
        kni_buf_add(out, digits, sizeof digits);
    }
    kni_buf_text(out, "\",");
    end(out, '}');
}

static void store_flags(struct kni_buf *out, const struct kn_engine_stats *e)
{
    flag(out, "configured", e->has_store);
    flag(out, "open", e->store_open);
    flag(out, "read", e->has_store && e->store_open && e->store_read_ok);
    flag(out, "write", e->has_store && e->store_open && e->store_write_ok && !e->store_read_only);
    flag(out, "read_only", e->store_read_only);
}

static void store(struct kni_buf *out, const struct kni_snapshot *s)
{
    const struct kn_engine_stats *e = &s->engine;
    uint32_t n = s->n_fetches < KNI_SNAPSHOT_MAX_FETCHES ? s->n_fetches : KNI_SNAPSHOT_MAX_FETCHES;

    begin(out, "store");
    store_flags(out, e);
    PUT(out, e, store_members);
    end(out, '}');

    begin(out, "fetch");
    PUT(out, e, fetch_members);
    kni_buf_text(out, "\"now\":[");
    for (uint32_t i = 0; i < n; i++) {
        kni_buf_text(out, "{");
        PUT(out, &s->fetches[i], fetch_now_members);
        end(out, '}');
    }
    end(out, ']');
    end(out, '}');

    begin(out, "publish");
    PUT(out, e, publish_members);
    end(out, '}');
}

/* "status" and "reasons", which says what to look at. */
static void status(struct kni_buf *out, const struct kni_snapshot *s, uint64_t now_ns)
{
    static const struct { unsigned degraded; const char *reason; } reasons[] = {
        {KNI_DEGRADED_STORE_CLOSED, "the store could not be opened; it is tried again, and prefixes are computed meanwhile"},
        {KNI_DEGRADED_STORE_READ, "reading from the store failed repeatedly; it is tried again after a while, and prefixes are computed meanwhile"},
        {KNI_DEGRADED_STORE_WRITE, "writing to the store failed repeatedly; it is tried again after a while, and nothing is published meanwhile"},
        {KNI_DEGRADED_STALLED, "the engine has work and has not ended a step for more than 30 seconds"},
    };
    unsigned degraded = kni_metrics_degraded(s, now_ns);

    text(out, "status", s->draining ? "draining" : s->fault.status ? "failed" : degraded ? "degraded" : "ok");
    kni_buf_text(out, "\"reasons\":[");
    if (s->fault.status) {
        kni_buf_text(out, "\"");
        kni_buf_json(out, s->fault.text, strlen(s->fault.text));
        kni_buf_text(out, "\",");
    }
    for (unsigned i = 0; i < sizeof reasons / sizeof *reasons; i++)
        if (degraded & reasons[i].degraded)
            kni_buf_format(out, "\"%s\",", reasons[i].reason);
    if (s->draining)
        kni_buf_text(out, "\"the server is shutting down and takes no new requests\",");
    end(out, ']');
}

void kni_metrics_render_json(const struct kni_metrics *metrics, const struct kni_snapshot *snapshot, const char *model, struct kni_buf *out)
{
    uint64_t now = kni_now_ns();

    kni_buf_text(out, "{");
    status(out, snapshot, now);
    text(out, "model", model);
    text(out, "version", kn_version());
    text(out, "cpu", kni_metrics_cpu_name((int)snapshot->engine.cpu_level));
    number(out, "threads", snapshot->engine.n_threads);
    seconds(out, "uptime_s", now > metrics->begin_ns ? now - metrics->begin_ns : 0);
    seconds(out, "snapshot_age_s", now > snapshot->taken_ns ? now - snapshot->taken_ns : 0);
    number(out, "resident_bytes", kni_metrics_resident_bytes());
    requests(out, metrics, snapshot);
    tokens(out, &snapshot->engine);
    pool(out, snapshot);
    store(out, snapshot);
    http(out, metrics);
    finish(out);
}

bool kni_metrics_render_health(const struct kni_metrics *metrics, const struct kni_snapshot *snapshot, const char *model, struct kni_buf *out)
{
    const struct kn_engine_stats *e = &snapshot->engine;
    uint64_t now = kni_now_ns();

    kni_buf_text(out, "{");
    status(out, snapshot, now);
    text(out, "model", model);
    text(out, "version", kn_version());
    seconds(out, "uptime_s", now > metrics->begin_ns ? now - metrics->begin_ns : 0);
    begin(out, "store");
    store_flags(out, e);
    end(out, '}');
    begin(out, "queue");
    number(out, "waiting", (uint64_t)e->n_waiting + snapshot->n_inbox);
    number(out, "waiting_for_kv", e->n_fetching);
    number(out, "running", e->n_running);
    end(out, '}');
    finish(out);
    return !snapshot->draining && !snapshot->fault.status;
}
