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
 * Any thread. Only the buffer can fail.
 */
#include <inttypes.h>
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
    number(out, "waiting", s->engine.n_waiting);
    number(out, "waiting_for_kv", s->engine.n_fetching);
    number(out, "running", s->engine.n_running);
    number(out, "calls", s->n_calls);
    number(out, "inbox", s->n_inbox);
    number(out, "preemptions", s->engine.n_preemptions);
    begin(out, "ended");
    number(out, "stop", get(&m->ended[KN_STOP_REASON_STOP]));
    number(out, "length", get(&m->ended[KN_STOP_REASON_LENGTH]));
    number(out, "cancelled", get(&m->ended[KN_STOP_REASON_CANCELLED]));
    number(out, "error", get(&m->ended[KN_STOP_REASON_ERROR]));
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
    number(out, "refused_queue", get(&m->refused_queue));
    number(out, "refused_connections", get(&m->refused_connections));
    number(out, "slow_clients", get(&m->slow_clients));
    number(out, "disconnects", get(&m->disconnects));
    end(out, '}');
}

static void tokens(struct kni_buf *out, const struct kn_engine_stats *e)
{
    begin(out, "tokens");
    number(out, "prompt", e->n_prompt_tokens);
    number(out, "memory", e->n_cached_tokens);
    number(out, "store", e->n_fetched_tokens);
    uint64_t lossy = 0; /* of memory and store */
    for (unsigned q = KN_KV_QUALITY_EXACT + 1; q < KN_KV_QUALITY_COUNT; q++)
        lossy += e->n_cached_by[q] + e->n_fetched_by[q];
    number(out, "lossy", lossy);
    number(out, "computed", e->n_computed_tokens);
    number(out, "generated", e->n_generated_tokens);
    number(out, "steps", e->n_steps);
    number(out, "step_tokens", e->n_step_tokens);
    end(out, '}');
}

static void pool(struct kni_buf *out, const struct kni_snapshot *s)
{
    const struct kn_engine_stats *e = &s->engine;
    uint32_t idle = e->n_free_blocks + e->n_cached_blocks, n_cells = s->n_cells < KNI_SNAPSHOT_MAX_CELLS ? s->n_cells : KNI_SNAPSHOT_MAX_CELLS;

    begin(out, "pool");
    number(out, "blocks", e->n_blocks);
    number(out, "free", e->n_free_blocks);
    number(out, "cached", e->n_cached_blocks);
    number(out, "held", idle < e->n_blocks ? e->n_blocks - idle : 0);
    number(out, "fetching", e->n_fetch_blocks);
    number(out, "publishing", e->n_publish_blocks);
    number(out, "block_tokens", e->block_tokens);
    number(out, "block_bytes", e->block_bytes);
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
    number(out, "read_errors", e->store_read_errors);
    number(out, "write_errors", e->store_write_errors);
    end(out, '}');

    begin(out, "fetch");
    number(out, "count", e->n_fetches);
    number(out, "cut", e->n_fetches_cut);
    number(out, "bytes", e->fetch_bytes);
    seconds(out, "wait_s", e->fetch_ns);
    number(out, "misses", e->n_fetch_misses);
    number(out, "working_bytes", e->fetch_working_bytes);
    kni_buf_text(out, "\"now\":[");
    for (uint32_t i = 0; i < n; i++) {
        const struct kni_snapshot_fetch *f = &s->fetches[i];
        kni_buf_text(out, "{");
        number(out, "id", f->id);
        number(out, "prompt", f->n_prompt);
        number(out, "wanted", f->n_wanted);
        number(out, "fetched", f->n_fetched);
        number(out, "bytes", f->n_bytes);
        seconds(out, "elapsed_s", f->elapsed_ns);
        end(out, '}');
    }
    end(out, ']');
    end(out, '}');

    begin(out, "publish");
    number(out, "chunks", e->published_chunks);
    number(out, "bytes", e->published_bytes);
    number(out, "raw_bytes", e->published_raw_bytes);
    seconds(out, "busy_s", e->publish_ns);
    number(out, "errors", e->publish_errors);
    number(out, "refused", e->n_publish_refused);
    number(out, "now", e->n_publishing);
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
