/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Metrics as Prometheus' text format 0.0.4.
 *
 *     # HELP kinema_x What it is.        a family: its two lines first,
 *     # TYPE kinema_x gauge              then all of its samples together
 *     kinema_x{label="value"} 1
 *
 * Names begin with kinema_, units are seconds and bytes, what only grows ends in _total. Families and their labels are always there, also
 * at zero, so that rates exist from the first event on; doc/metrics.md lists them. Two sources: counters of the server, which any thread
 * adds to, and the loop's last snapshot of the engine, whose values belong to one moment.
 *
 * Any thread. Only the buffer can fail.
 */
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "base/clock.h"
#include "base/utf8.h"
#include "kinema/kinema.h"

#include "server/loop/loop.h"
#include "server/metrics/metrics.h"

static void family(struct kni_buf *out, const char *name, const char *type, const char *help)
{
    kni_buf_format(out, "# HELP kinema_%s %s\n# TYPE kinema_%s %s\n", name, help, name, type);
}

/* labels: "" or {key="value"}. */
static void sample(struct kni_buf *out, const char *name, const char *labels, uint64_t value)
{
    kni_buf_format(out, "kinema_%s%s %" PRIu64 "\n", name, labels, value);
}

static void gauge(struct kni_buf *out, const char *name, uint64_t value, const char *help)
{
    family(out, name, "gauge", help);
    sample(out, name, "", value);
}

static void counter(struct kni_buf *out, const char *name, uint64_t value, const char *help)
{
    family(out, name, "counter", help);
    sample(out, name, "", value);
}

static void seconds(struct kni_buf *out, const char *name, const char *type, uint64_t ns, const char *help)
{
    family(out, name, type, help);
    kni_buf_format(out, "kinema_%s ", name);
    kni_metrics_seconds(out, ns);
    kni_buf_text(out, "\n");
}

static uint64_t get(const _Atomic uint64_t *value)
{
    return atomic_load_explicit(value, memory_order_relaxed); /* statistics: nothing is published by them */
}

static void histogram(struct kni_buf *out, const char *name, const struct kni_hist *hist, const char *help)
{
    uint64_t n = 0;

    family(out, name, "histogram", help);
    for (uint32_t i = 0; i < hist->n_bounds; i++) {
        n += get(&hist->buckets[i]);
        kni_buf_format(out, "kinema_%s_bucket{le=\"", name);
        kni_metrics_seconds(out, (uint64_t)(hist->bounds[i] * 1e9 + 0.5));
        kni_buf_format(out, "\"} %" PRIu64 "\n", n);
    }
    n += get(&hist->buckets[hist->n_bounds]);
    kni_buf_format(out, "kinema_%s_bucket{le=\"+Inf\"} %" PRIu64 "\nkinema_%s_sum ", name, n, name);
    kni_metrics_seconds(out, get(&hist->sum_ns));
    kni_buf_format(out, "\nkinema_%s_count %" PRIu64 "\n", name, n); /* what the buckets add up to, whatever is being added now */
}

static void requests(struct kni_buf *out, const struct kni_metrics *m, const struct kn_engine_stats *e)
{
    histogram(out, "time_to_first_token_seconds", &m->ttft, "Time from a request's arrival to its first token, of requests that ended well.");
    histogram(out, "time_per_output_token_seconds", &m->tpot, "Mean time between two tokens of one request, of requests that ended well.");
    histogram(out, "request_duration_seconds", &m->e2e, "Time from a request's arrival to its last token, of requests that ended well.");
    histogram(out, "request_queue_seconds", &m->queue, "Time from a request's arrival until it ran, of requests that ended well.");
    family(out, "requests_ended_total", "counter", "Requests that have ended, by reason.");
    sample(out, "requests_ended_total", "{reason=\"stop\"}", get(&m->ended[KN_STOP_REASON_STOP]));
    sample(out, "requests_ended_total", "{reason=\"length\"}", get(&m->ended[KN_STOP_REASON_LENGTH]));
    sample(out, "requests_ended_total", "{reason=\"cancelled\"}", get(&m->ended[KN_STOP_REASON_CANCELLED]));
    sample(out, "requests_ended_total", "{reason=\"error\"}", get(&m->ended[KN_STOP_REASON_ERROR]));
    family(out, "requests", "gauge", "Requests in the engine, by state.");
    sample(out, "requests", "{state=\"waiting\"}", e->n_waiting);
    sample(out, "requests", "{state=\"waiting_for_kv\"}", e->n_fetching);
    sample(out, "requests", "{state=\"running\"}", e->n_running);
    counter(out, "preemptions_total", e->n_preemptions, "Times that a running request's blocks were taken for an older one.");
}

static void http(struct kni_buf *out, const struct kni_metrics *m, const struct kni_snapshot *s)
{
    family(out, "http_responses_total", "counter", "Responses by route and class of their status.");
    for (unsigned r = 0; r < KNI_ROUTE_COUNT; r++)
        for (unsigned c = 1; c < 6; c++)
            kni_buf_format(out, "kinema_http_responses_total{route=\"%s\",class=\"%uxx\"} %" PRIu64 "\n", kni_metrics_route_name((enum kni_route)r), c,
                           get(&m->responses[r][c]));
    family(out, "refused_total", "counter", "Refused with status 503, by what was full.");
    sample(out, "refused_total", "{reason=\"queue\"}", get(&m->refused_queue));
    sample(out, "refused_total", "{reason=\"connections\"}", get(&m->refused_connections));
    counter(out, "slow_clients_total", get(&m->slow_clients), "Connections cut because they took longer than their timeouts allow.");
    counter(out, "disconnects_total", get(&m->disconnects), "Clients that left before their answer's end.");
    gauge(out, "connections", atomic_load_explicit(&m->n_connections, memory_order_relaxed), "Connections that are open."); /* statistics */
    gauge(out, "calls", s->n_calls, "HTTP requests in the engine; each may ask for several choices.");
    gauge(out, "inbox_calls", s->n_inbox, "HTTP requests that the engine has not looked at yet.");
}

static void tokens(struct kni_buf *out, const struct kn_engine_stats *e)
{
    counter(out, "prompt_tokens_total", e->n_prompt_tokens, "Prompt tokens of requests that the engine began.");
    counter(out, "generated_tokens_total", e->n_generated_tokens, "Tokens generated.");
    family(out, "prefix_hit_tokens_total", "counter", "Prompt tokens that were not computed, by the tier that had them.");
    sample(out, "prefix_hit_tokens_total", "{tier=\"memory\"}", e->n_cached_tokens);
    sample(out, "prefix_hit_tokens_total", "{tier=\"store\"}", e->n_fetched_tokens);
    family(out, "prefix_hit_quality_tokens_total", "counter", "The same tokens by quality: exact, or the worst preset that they descend from.");
    for (unsigned q = KN_KV_QUALITY_EXACT; q < KN_KV_QUALITY_COUNT; q++) {
        char label[40];
        snprintf(label, sizeof label, "{quality=\"%s\"}", kn_kv_quality_name((enum kn_kv_quality)q));
        sample(out, "prefix_hit_quality_tokens_total", label, e->n_cached_by[q] + e->n_fetched_by[q]);
    }
    counter(out, "computed_tokens_total", e->n_computed_tokens, "Prompt tokens that were computed.");
    counter(out, "steps_total", e->n_steps, "Steps of the engine.");
    counter(out, "step_tokens_total", e->n_step_tokens, "Tokens that steps have computed, of prompts and of answers.");
}

static void pool(struct kni_buf *out, const struct kn_engine_stats *e)
{
    uint32_t idle = e->n_free_blocks + e->n_cached_blocks;

    family(out, "pool_blocks", "gauge", "Blocks of the KV pool, by state; held ones belong to requests or to publishes.");
    sample(out, "pool_blocks", "{state=\"free\"}", e->n_free_blocks);
    sample(out, "pool_blocks", "{state=\"cached\"}", e->n_cached_blocks);
    sample(out, "pool_blocks", "{state=\"held\"}", idle < e->n_blocks ? e->n_blocks - idle : 0);
    gauge(out, "pool_fetch_blocks", e->n_fetch_blocks, "Held blocks of requests that wait for a fetch.");
    gauge(out, "pool_publish_blocks", e->n_publish_blocks, "Held blocks that publishes read; requests may share them.");
    gauge(out, "pool_block_bytes", e->block_bytes, "Size of a block.");
    gauge(out, "pool_block_tokens", e->block_tokens, "Tokens of a block.");
}

static void fetches(struct kni_buf *out, const struct kn_engine_stats *e)
{
    counter(out, "fetches_total", e->n_fetches, "Fetches that found something to fetch.");
    counter(out, "fetches_cut_total", e->n_fetches_cut, "Fetches cut by their deadline or by a failure; what had arrived was used.");
    counter(out, "fetch_bytes_total", e->fetch_bytes, "Stored bytes that fetches have brought.");
    seconds(out, "fetch_seconds_total", "counter", e->fetch_ns, "Time that requests have waited for fetches, added up.");
    counter(out, "fetch_missed_chunks_total", e->n_fetch_misses, "Chunks that were refused, or missing although listed.");
    gauge(out, "fetch_working_bytes", e->fetch_working_bytes, "Most memory that decoding and restoring fetched chunks has held.");
    counter(out, "published_chunks_total", e->published_chunks, "Chunks written to the store.");
    counter(out, "publish_bytes_total", e->published_bytes, "Bytes written to the store.");
    counter(out, "publish_raw_bytes_total", e->published_raw_bytes, "The same chunks' bytes before coding: the ratio of both is the compression.");
    seconds(out, "publish_seconds_total", "counter", e->publish_ns, "Time spent publishing.");
    counter(out, "publish_errors_total", e->publish_errors, "Publishes that failed.");
    counter(out, "publish_refused_total", e->n_publish_refused, "Chunks not published because the pool held them in a worse quality than the preset's.");
    gauge(out, "publishing", e->n_publishing, "Publishes queued or running.");
}

static void store(struct kni_buf *out, const struct kn_engine_stats *e)
{
    family(out, "store_errors_total", "counter", "Calls of the store that failed; a mere miss is none.");
    sample(out, "store_errors_total", "{direction=\"read\"}", e->store_read_errors);
    sample(out, "store_errors_total", "{direction=\"write\"}", e->store_write_errors);
    gauge(out, "store_configured", e->has_store, "1: there is a store.");
    gauge(out, "store_open", e->store_open, "1: the store is open; 0: none, or it could not be opened yet.");
    family(out, "store_up", "gauge", "1: the store is in use; 0: none, or it is left alone for a while after repeated errors.");
    sample(out, "store_up", "{direction=\"read\"}", e->has_store && e->store_open && e->store_read_ok);
    sample(out, "store_up", "{direction=\"write\"}", e->has_store && e->store_open && e->store_write_ok && !e->store_read_only);
    gauge(out, "store_read_only", e->store_read_only, "1: the store is only fetched from, as asked for or for lack of permission to write it.");
}

/* A label's value: backslash, quote and end of line escaped, what is no UTF-8 as U+FFFD. */
static void quote(struct kni_buf *out, const char *value)
{
    size_t left = strlen(value), length;

    kni_buf_text(out, "\"");
    for (const char *at = value; left > 0; at += length, left -= length) {
        if (kni_utf8_next(at, left, &length) != KNI_UTF8_WHOLE)
            kni_buf_text(out, "\xef\xbf\xbd");
        else if (*at == '\n')
            kni_buf_text(out, "\\n");
        else if (*at == '"' || *at == '\\')
            kni_buf_format(out, "\\%c", *at);
        else
            kni_buf_add(out, at, length);
    }
    kni_buf_text(out, "\"");
}

static void process(struct kni_buf *out, const struct kni_metrics *m, const struct kni_snapshot *s, const char *model)
{
    uint64_t now = kni_now_ns();

    family(out, "build_info", "gauge", "Always 1; what runs is in the labels.");
    kni_buf_text(out, "kinema_build_info{version=");
    quote(out, kn_version());
    kni_buf_text(out, ",model=");
    quote(out, model);
    kni_buf_text(out, ",cpu=");
    quote(out, kni_metrics_cpu_name((int)s->engine.cpu_level));
    kni_buf_text(out, "} 1\n");
    gauge(out, "threads", s->engine.n_threads, "Threads that compute.");
    seconds(out, "start_time_seconds", "gauge", m->begin_wall_ns, "When the server was started, since 1970.");
    gauge(out, "resident_memory_bytes", kni_metrics_resident_bytes(), "Memory of the process that is in RAM, the mapped model included.");
    gauge(out, "up", !s->draining && !s->fault.status, "1: takes requests; 0: draining, or the model's files have changed.");
    gauge(out, "degraded", kni_metrics_degraded(s, now) != 0, "1: serves, but not everything that was configured works; /health says what.");
    seconds(out, "snapshot_age_seconds", "gauge", now > s->taken_ns ? now - s->taken_ns : 0, "Age of the values about the engine; an idle engine takes none.");
}

void kni_metrics_render(const struct kni_metrics *metrics, const struct kni_snapshot *snapshot, const char *model, struct kni_buf *out)
{
    const struct kn_engine_stats *engine = &snapshot->engine;

    process(out, metrics, snapshot, model);
    requests(out, metrics, engine);
    tokens(out, engine);
    pool(out, engine);
    fetches(out, engine);
    store(out, engine);
    http(out, metrics, snapshot);
}
