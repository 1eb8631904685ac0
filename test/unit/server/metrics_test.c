/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Histograms, quantiles, and both renderings: the text is read by a strict parser, the JSON by jansson, and every number must be the one
 * that was put in. The parser itself is shown to refuse what the format does not allow.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <jansson.h>
#include <locale.h>
#include <pthread.h>

#include "base/alloc.h"
#include "base/clock.h"
#include "server/loop/loop.h"
#include "server/metrics/metrics.h"
#include "support/prom_parser.h"

#define MS 1000000u
#define S 1000000000u

/* A snapshot in which every number is another one. */
static struct kni_snapshot *full_snapshot(void)
{
    static struct kni_snapshot s;

    memset(&s, 0, sizeof s);
    s.taken_ns = kni_now_ns();
    s.engine = (struct kn_engine_stats){
        .n_blocks = 100, .n_free_blocks = 50, .n_cached_blocks = 30, .block_tokens = 16, .block_bytes = 368640, .published_chunks = 101,
        .published_bytes = 102, .published_raw_bytes = 103, .publish_errors = 104, .publish_ns = 105 * (uint64_t)S, .n_steps = 106, .n_step_tokens = 107,
        .n_threads = 3, .cpu_level = KN_CPU_LEVEL_AVX2, .fetch_working_bytes = 108, .n_waiting = 109, .n_fetching = 110, .n_running = 111,
        .n_fetch_blocks = 7, .n_publish_blocks = 8, .n_publishing = 112, .n_prompt_tokens = 113, .n_cached_tokens = 114, .n_fetched_tokens = 115,
        .n_computed_tokens = 116, .n_generated_tokens = 117, .n_preemptions = 118, .n_fetches = 119, .n_fetches_cut = 120, .fetch_bytes = 121,
        .fetch_ns = 1500 * (uint64_t)MS, .n_fetch_misses = 123, .store_read_errors = 124, .store_write_errors = 125, .has_store = true, .store_open = true,
        .store_read_ok = true, .store_write_ok = false};
    s.n_calls = 126;
    s.n_inbox = 127;
    s.n_fetches = 1;
    s.fetches[0] = (struct kni_snapshot_fetch){.id = 5, .n_prompt = 2048, .n_wanted = 1024, .n_fetched = 512, .n_bytes = 999, .elapsed_ns = 250 * MS};
    s.n_cells = 3;
    s.cell_blocks = 34;
    s.cells[0][KN_BLOCK_STATE_FREE] = 255;
    s.cells[1][KN_BLOCK_STATE_CACHED] = 254;
    s.cells[1][KN_BLOCK_STATE_FETCHING] = 1;
    s.cells[2][KN_BLOCK_STATE_HELD] = 128;
    s.cells[2][KN_BLOCK_STATE_SHARED] = 127;
    return &s;
}

static void add(_Atomic uint64_t *value, uint64_t n)
{
    atomic_fetch_add_explicit(value, n, memory_order_relaxed);
}

static void init_full(struct kni_metrics *m)
{
    kni_metrics_init(m);
    add(&m->ended[KN_STOP_REASON_STOP], 201);
    add(&m->ended[KN_STOP_REASON_LENGTH], 202);
    add(&m->ended[KN_STOP_REASON_CANCELLED], 203);
    add(&m->ended[KN_STOP_REASON_ERROR], 204);
    add(&m->responses[KNI_ROUTE_CHAT][2], 205);
    add(&m->responses[KNI_ROUTE_COMPLETIONS][4], 206);
    add(&m->responses[KNI_ROUTE_OTHER][4], 1);
    add(&m->refused_queue, 207);
    add(&m->refused_connections, 208);
    add(&m->slow_clients, 209);
    add(&m->disconnects, 210);
    atomic_store_explicit(&m->n_connections, 211, memory_order_relaxed);
    for (unsigned i = 0; i < 10; i++)
        kni_hist_observe(&m->ttft, 120 * MS); /* in (0.1, 0.15] */
    kni_hist_observe(&m->ttft, 500 * (uint64_t)S);
    kni_hist_observe(&m->tpot, 8 * MS);
}

static void bounds_ascend(void **state)
{
    struct kni_metrics m;
    (void)state;

    kni_metrics_init(&m);
    const struct kni_hist *all[] = {&m.ttft, &m.tpot, &m.e2e, &m.queue};
    for (unsigned h = 0; h < 4; h++) {
        assert_in_range(all[h]->n_bounds, 15, KNI_HIST_BUCKETS - 1);
        for (uint32_t i = 1; i < all[h]->n_bounds; i++) { /* close enough to interpolate between */
            assert_true(all[h]->bounds[i] > all[h]->bounds[i - 1]);
            assert_true(all[h]->bounds[i] <= 2.5 * all[h]->bounds[i - 1]);
        }
    }
    assert_true(m.ttft.bounds[0] == 0.001 && m.ttft.bounds[m.ttft.n_bounds - 1] == 120);
    assert_true(m.tpot.bounds[0] == 0.001 && m.tpot.bounds[m.tpot.n_bounds - 1] == 5);
}

static void observation_falls_in_its_bucket(void **state)
{
    struct kni_metrics m;
    (void)state;

    kni_metrics_init(&m);
    /* each bound itself belongs below it, one nanosecond more above it */
    for (uint32_t i = 0; i < m.ttft.n_bounds; i++) {
        uint64_t ns = (uint64_t)(m.ttft.bounds[i] * 1e9 + 0.5);
        kni_hist_observe(&m.ttft, ns);
        assert_int_equal(m.ttft.buckets[i], i == 0 ? 1 : 2);
        kni_hist_observe(&m.ttft, ns + 1);
        assert_int_equal(m.ttft.buckets[i + 1], 1);
    }
    kni_hist_observe(&m.ttft, 0);
    assert_int_equal(m.ttft.buckets[0], 2);
    kni_hist_observe(&m.ttft, UINT64_MAX / 4);
    assert_int_equal(m.ttft.buckets[m.ttft.n_bounds], 2);
    assert_int_equal(m.ttft.count, 2 * m.ttft.n_bounds + 2);
}

static void quantiles_interpolate(void **state)
{
    struct kni_metrics m;
    (void)state;

    kni_metrics_init(&m);
    assert_true(kni_hist_quantile(&m.ttft, 0.5) == 0); /* nothing seen */
    for (unsigned i = 0; i < 100; i++)
        kni_hist_observe(&m.ttft, 120 * MS);
    assert_true(fabs(kni_hist_quantile(&m.ttft, 0.5) - 0.125) < 1e-9); /* the middle of (0.1, 0.15] */
    assert_true(fabs(kni_hist_quantile(&m.ttft, 1) - 0.15) < 1e-9);
    for (unsigned i = 0; i < 100; i++)
        kni_hist_observe(&m.ttft, 5 * (uint64_t)S);
    assert_true(fabs(kni_hist_quantile(&m.ttft, 0.75) - 5) < 1e-9); /* the middle of (4, 6] */
    assert_true(kni_hist_quantile(&m.ttft, 0.25) < 0.15);
    assert_true(kni_hist_quantile(&m.ttft, -1) <= kni_hist_quantile(&m.ttft, 2));
    for (unsigned i = 0; i < 1000; i++)
        kni_hist_observe(&m.ttft, 4000 * (uint64_t)S);
    assert_true(kni_hist_quantile(&m.ttft, 0.99) == 120); /* beyond the last bound */
}

/* On a load from 2 ms to 30 s, evenly spread on a logarithmic scale, every quantile is near the exact one. */
static void quantiles_are_near_exact(void **state)
{
    static const double ps[] = {0.1, 0.5, 0.9, 0.99};
    struct kni_metrics m;
    (void)state;

    kni_metrics_init(&m);
    for (unsigned i = 0; i < 10000; i++)
        kni_hist_observe(&m.ttft, (uint64_t)(0.002 * pow(15000, (i + 0.5) / 10000) * 1e9));
    for (unsigned i = 0; i < 4; i++) {
        double exact = 0.002 * pow(15000, ps[i]), got = kni_hist_quantile(&m.ttft, ps[i]);
        assert_true(fabs(got - exact) / exact < 0.1);
    }
}

static double value(const struct kn_prom *p, const char *name, const char *labels)
{
    double v = kn_prom_value(p, name, labels);
    if (isnan(v))
        fail_msg("no sample %s%s", name, labels);
    return v;
}

static void check_text_values(const struct kn_prom *p)
{
    static const struct { const char *name, *labels; double value; } wanted[] = {
        {"kinema_requests_ended_total", "{reason=\"stop\"}", 201}, {"kinema_requests_ended_total", "{reason=\"length\"}", 202},
        {"kinema_requests_ended_total", "{reason=\"cancelled\"}", 203}, {"kinema_requests_ended_total", "{reason=\"error\"}", 204},
        {"kinema_http_responses_total", "{route=\"chat\",class=\"2xx\"}", 205}, {"kinema_http_responses_total", "{route=\"completions\",class=\"4xx\"}", 206},
        {"kinema_http_responses_total", "{route=\"dashboard\",class=\"5xx\"}", 0}, {"kinema_refused_total", "{reason=\"queue\"}", 207},
        {"kinema_refused_total", "{reason=\"connections\"}", 208}, {"kinema_slow_clients_total", "", 209}, {"kinema_disconnects_total", "", 210},
        {"kinema_connections", "", 211}, {"kinema_requests", "{state=\"waiting\"}", 109}, {"kinema_requests", "{state=\"waiting_for_kv\"}", 110},
        {"kinema_requests", "{state=\"running\"}", 111}, {"kinema_prompt_tokens_total", "", 113}, {"kinema_generated_tokens_total", "", 117},
        {"kinema_prefix_hit_tokens_total", "{tier=\"memory\"}", 114}, {"kinema_prefix_hit_tokens_total", "{tier=\"store\"}", 115},
        {"kinema_computed_tokens_total", "", 116}, {"kinema_preemptions_total", "", 118}, {"kinema_pool_blocks", "{state=\"free\"}", 50},
        {"kinema_pool_blocks", "{state=\"cached\"}", 30}, {"kinema_pool_blocks", "{state=\"held\"}", 20}, {"kinema_pool_block_bytes", "", 368640},
        {"kinema_pool_fetch_blocks", "", 7}, {"kinema_pool_publish_blocks", "", 8}, {"kinema_fetches_total", "", 119}, {"kinema_fetches_cut_total", "", 120},
        {"kinema_fetch_bytes_total", "", 121}, {"kinema_fetch_seconds_total", "", 1.5}, {"kinema_fetch_missed_chunks_total", "", 123},
        {"kinema_fetch_working_bytes", "", 108}, {"kinema_publish_bytes_total", "", 102}, {"kinema_publish_raw_bytes_total", "", 103},
        {"kinema_published_chunks_total", "", 101}, {"kinema_publish_errors_total", "", 104}, {"kinema_publish_seconds_total", "", 105},
        {"kinema_publishing", "", 112}, {"kinema_store_errors_total", "{direction=\"read\"}", 124}, {"kinema_store_errors_total", "{direction=\"write\"}", 125},
        {"kinema_store_configured", "", 1}, {"kinema_store_open", "", 1}, {"kinema_store_up", "{direction=\"read\"}", 1},
        {"kinema_store_up", "{direction=\"write\"}", 0}, {"kinema_steps_total", "", 106}, {"kinema_step_tokens_total", "", 107}, {"kinema_calls", "", 126},
        {"kinema_inbox_calls", "", 127}, {"kinema_threads", "", 3}, {"kinema_up", "", 1}, {"kinema_degraded", "", 1},
        {"kinema_time_to_first_token_seconds_count", "", 11}, {"kinema_time_to_first_token_seconds_sum", "", 501.2},
        {"kinema_time_to_first_token_seconds_bucket", "{le=\"0.1\"}", 0}, {"kinema_time_to_first_token_seconds_bucket", "{le=\"0.15\"}", 10},
        {"kinema_time_to_first_token_seconds_bucket", "{le=\"120\"}", 10}, {"kinema_time_to_first_token_seconds_bucket", "{le=\"+Inf\"}", 11},
        {"kinema_time_per_output_token_seconds_bucket", "{le=\"0.008\"}", 1}, {"kinema_request_duration_seconds_count", "", 0},
        {"kinema_request_queue_seconds_count", "", 0},
    };

    for (size_t i = 0; i < sizeof wanted / sizeof *wanted; i++)
        if (value(p, wanted[i].name, wanted[i].labels) != wanted[i].value)
            fail_msg("%s%s is %.9g, not %.9g", wanted[i].name, wanted[i].labels, value(p, wanted[i].name, wanted[i].labels), wanted[i].value);
}

static void text_is_strict(void **state)
{
    static struct kni_metrics m;
    static struct kn_prom p;
    struct kni_buf out = {0};
    (void)state;

    init_full(&m);
    kni_metrics_render(&m, full_snapshot(), "a \"quoted\" \\ name\n\xff\xe2\x82\xac", &out);
    assert_false(out.failed);
    if (kn_prom_parse(&p, out.data))
        fail_msg("%s", p.error);
    check_text_values(&p);
    assert_true(value(&p, "kinema_build_info", "{version=\"0.1.0\",model=\"a \\\"quoted\\\" \\\\ name\\n\xef\xbf\xbd\xe2\x82\xac\",cpu=\"AVX2\"}") == 1);
    assert_true(value(&p, "kinema_resident_memory_bytes", "") > 1e5);
    assert_true(fabs(value(&p, "kinema_start_time_seconds", "") - (double)time(NULL)) < 60);
    kni_buf_fini(&out);
}

static double json_at(const json_t *o, const char *path)
{
    char part[64];

    while (*path) {
        size_t n = strcspn(path, ".");
        memcpy(part, path, n);
        part[n] = 0;
        o = json_object_get(o, part);
        path += n + (path[n] == '.');
    }
    if (!json_is_number(o) && !json_is_boolean(o))
        fail_msg("no number at %s", path);
    return json_is_boolean(o) ? json_is_true(o) : json_number_value(o);
}

static json_t *load(const struct kni_buf *out)
{
    json_error_t error;
    json_t *o = json_loadb(out->data, out->n, JSON_REJECT_DUPLICATES, &error);
    if (!o)
        fail_msg("no JSON: %s at %d in %s", error.text, error.position, out->data);
    return o;
}

static void json_holds_all(void **state)
{
    static const struct { const char *path; double value; } wanted[] = {
        {"requests.waiting", 109}, {"requests.waiting_for_kv", 110}, {"requests.running", 111}, {"requests.calls", 126}, {"requests.inbox", 127},
        {"requests.preemptions", 118}, {"requests.ended.stop", 201}, {"requests.ended.length", 202}, {"requests.ended.cancelled", 203},
        {"requests.ended.error", 204}, {"latency.ttft.count", 11}, {"latency.ttft.sum_s", 501.2}, {"latency.tpot.count", 1}, {"latency.e2e.count", 0},
        {"latency.queue.p99", 0}, {"tokens.prompt", 113}, {"tokens.memory", 114}, {"tokens.store", 115}, {"tokens.computed", 116}, {"tokens.generated", 117},
        {"tokens.steps", 106}, {"tokens.step_tokens", 107}, {"pool.blocks", 100}, {"pool.free", 50}, {"pool.cached", 30}, {"pool.held", 20},
        {"pool.fetching", 7}, {"pool.publishing", 8}, {"pool.block_tokens", 16}, {"pool.block_bytes", 368640}, {"pool.cell_blocks", 34},
        {"store.configured", 1}, {"store.open", 1}, {"store.read", 1}, {"store.write", 0}, {"store.read_errors", 124}, {"store.write_errors", 125},
        {"fetch.count", 119}, {"fetch.cut", 120}, {"fetch.bytes", 121}, {"fetch.wait_s", 1.5}, {"fetch.misses", 123}, {"fetch.working_bytes", 108},
        {"publish.chunks", 101}, {"publish.bytes", 102}, {"publish.raw_bytes", 103}, {"publish.errors", 104}, {"publish.busy_s", 105}, {"publish.now", 112},
        {"http.connections", 211}, {"http.2xx", 205}, {"http.4xx", 207}, {"http.5xx", 0}, {"http.refused_queue", 207}, {"http.refused_connections", 208},
        {"http.slow_clients", 209}, {"http.disconnects", 210}, {"threads", 3},
    };
    static struct kni_metrics m;
    struct kni_buf out = {0};
    (void)state;

    init_full(&m);
    kni_metrics_render_json(&m, full_snapshot(), "m\"\\\n\x01\xc0\xaf", &out);
    json_t *o = load(&out);
    for (size_t i = 0; i < sizeof wanted / sizeof *wanted; i++)
        if (json_at(o, wanted[i].path) != wanted[i].value)
            fail_msg("%s is %.9g, not %.9g", wanted[i].path, json_at(o, wanted[i].path), wanted[i].value);
    assert_string_equal(json_string_value(json_object_get(o, "model")), "m\"\\\n\x01\xef\xbf\xbd\xef\xbf\xbd");
    assert_string_equal(json_string_value(json_object_get(o, "status")), "degraded");
    json_t *ttft = json_object_get(json_object_get(o, "latency"), "ttft");
    assert_int_equal(json_array_size(json_object_get(ttft, "buckets")), json_array_size(json_object_get(ttft, "bounds")) + 1);
    assert_true(fabs(json_at(ttft, "p50") - kni_hist_quantile(&m.ttft, 0.5)) < 1e-8);
    /* what is there at all is seen, however small its share */
    assert_string_equal(json_string_value(json_object_get(json_object_get(o, "pool"), "cells")), "f0000" "0f001" "00870");
    json_t *fetch = json_array_get(json_object_get(json_object_get(o, "fetch"), "now"), 0);
    assert_true(json_at(fetch, "id") == 5 && json_at(fetch, "wanted") == 1024 && json_at(fetch, "fetched") == 512 && json_at(fetch, "bytes") == 999 &&
                json_at(fetch, "elapsed_s") == 0.25 && json_at(fetch, "prompt") == 2048);
    json_decref(o);
    kni_buf_fini(&out);
}

static void numbers_follow_no_locale(void **state)
{
    static struct kni_metrics m;
    static struct kn_prom p;
    struct kni_buf out = {0};
    (void)state;

    init_full(&m);
    const char *set = setlocale(LC_NUMERIC, "de_DE.UTF-8"); /* where it is installed; the writers below use no such thing anyway */
    kni_metrics_render(&m, full_snapshot(), "m", &out);
    setlocale(LC_NUMERIC, "C");
    (void)set;
    assert_null(kn_prom_parse(&p, out.data));
    assert_null(strstr(out.data, "0,"));
    kni_buf_reset(&out);
    kni_metrics_seconds(&out, 1250 * (uint64_t)MS);
    kni_buf_text(&out, " ");
    kni_metrics_seconds(&out, 1);
    kni_buf_text(&out, " ");
    kni_metrics_seconds(&out, 120 * (uint64_t)S);
    kni_buf_text(&out, " ");
    kni_metrics_seconds(&out, 0);
    assert_string_equal(out.data, "1.25 0.000000001 120 0");
    kni_buf_fini(&out);
}

static void expect_health(struct kni_snapshot *s, const char *status, size_t n_reasons, bool ready)
{
    struct kni_metrics m;
    struct kni_buf out = {0};

    kni_metrics_init(&m);
    assert_int_equal(kni_metrics_render_health(&m, s, "m", &out), ready);
    json_t *o = load(&out);
    assert_string_equal(json_string_value(json_object_get(o, "status")), status);
    assert_int_equal(json_array_size(json_object_get(o, "reasons")), n_reasons);
    assert_string_equal(json_string_value(json_object_get(o, "model")), "m");
    assert_true(json_at(o, "store.configured") == s->engine.has_store && json_at(o, "queue.running") == s->engine.n_running);
    json_decref(o);
    kni_buf_fini(&out);
}

static void health_tells(void **state)
{
    struct kni_snapshot s = {.taken_ns = kni_now_ns(), .engine = {.n_running = 4}};
    (void)state;

    expect_health(&s, "ok", 0, true); /* no store is no fault */
    s.engine.has_store = true;
    expect_health(&s, "degraded", 1, true);
    s.engine.store_open = true;
    expect_health(&s, "degraded", 2, true);
    s.engine.store_read_ok = true;
    expect_health(&s, "degraded", 1, true);
    s.engine.store_write_ok = true;
    expect_health(&s, "ok", 0, true);
    s.taken_ns = kni_now_ns() - KNI_STALL_NS - S; /* needs a machine that has run for 31 s, as all have by now */
    expect_health(&s, "ok", 0, true);             /* idle: nothing to hear of */
    s.n_calls = 1;
    expect_health(&s, "degraded", 1, true);
    s.taken_ns = kni_now_ns();
    expect_health(&s, "ok", 0, true);
    s.draining = true;
    expect_health(&s, "draining", 1, false);
}

/* The writers leave a failed buffer alone. */
static void out_of_memory_is_remembered(void **state)
{
    static struct kni_metrics m;
    (void)state;

    init_full(&m);
    for (int what = 0; what < 3; what++)
        for (uint64_t n = 1; n < 100; n++) {
            struct kni_buf out = {0};
            kni_alloc_fault_arm(n, true);
            if (what == 0)
                kni_metrics_render(&m, full_snapshot(), "m", &out);
            else if (what == 1)
                kni_metrics_render_json(&m, full_snapshot(), "m", &out);
            else
                kni_metrics_render_health(&m, full_snapshot(), "m", &out);
            bool hit = kni_alloc_fault_hit();
            kni_alloc_fault_arm(0, false);
            assert_int_equal(out.failed, hit);
            kni_buf_fini(&out);
            if (!hit) {
                assert_true(n > 1);
                break;
            }
        }
}

static struct kni_metrics shared;

static void *observer(void *user)
{
    (void)user;
    for (unsigned i = 0; i < 20000; i++)
        kni_hist_observe(&shared.ttft, i * MS / 10);
    return NULL;
}

/* Several threads add while one renders: each rendering is a legal one, and nothing is lost. */
static void threads_add(void **state)
{
    static struct kn_prom p;
    pthread_t threads[3];
    (void)state;

    kni_metrics_init(&shared);
    for (unsigned i = 0; i < 3; i++)
        assert_int_equal(pthread_create(&threads[i], NULL, observer, NULL), 0);
    for (unsigned i = 0; i < 20; i++) {
        struct kni_buf out = {0};
        kni_metrics_render(&shared, full_snapshot(), "m", &out);
        if (kn_prom_parse(&p, out.data))
            fail_msg("%s", p.error);
        kni_buf_fini(&out);
    }
    for (unsigned i = 0; i < 3; i++)
        pthread_join(threads[i], NULL);
    uint64_t total = 0;
    for (unsigned i = 0; i < KNI_HIST_BUCKETS; i++)
        total += shared.ttft.buckets[i];
    assert_int_equal(total, 60000);
    assert_int_equal(shared.ttft.count, 60000);
}

static void parser_refuses(void **state)
{
    static const char *const wrong[] = {
        "", "kinema_a 1\n", "# HELP a x\n# TYPE a gauge\n", "# HELP a x\n# TYPE a gauge\na 1", "# HELP a x\na 1\n", "# HELP a x\n# TYPE a text\na 1\n",
        "# HELP a x\n# TYPE a counter\na 1\n", "# HELP a_total x\n# TYPE a_total gauge\na_total 1\n", "# HELP a x\n# TYPE a gauge\na 1\na 2\n",
        "# HELP a x\n# TYPE a gauge\na 1\n# HELP a x\n# TYPE a gauge\na{b=\"c\"} 1\n", "# HELP a x\n# TYPE a gauge\na{b=\"\\x\"} 1\n",
        "# HELP a x\n# TYPE a gauge\na{b=\"c} 1\n", "# HELP a x\n# TYPE a gauge\na{b=\"1\",b=\"2\"} 1\n", "# HELP a x\n# TYPE a gauge\na{1b=\"1\"} 1\n",
        "# HELP a x\n# TYPE a gauge\na 1,5\n", "# HELP a x\n# TYPE a gauge\na nan\n", "# HELP a x\n# TYPE a gauge\nb 1\n", "# HELP a x\n# TYPE a gauge\na -1\n",
        "# HELP a x\n# TYPE a histogram\na_bucket{le=\"1\"} 1\na_sum 1\na_count 1\n",
        "# HELP a x\n# TYPE a histogram\na_bucket{le=\"1\"} 2\na_bucket{le=\"+Inf\"} 1\na_sum 1\na_count 1\n",
        "# HELP a x\n# TYPE a histogram\na_bucket{le=\"2\"} 1\na_bucket{le=\"1\"} 1\na_bucket{le=\"+Inf\"} 1\na_sum 1\na_count 1\n",
        "# HELP a x\n# TYPE a histogram\na_bucket{le=\"1\"} 1\na_bucket{le=\"+Inf\"} 1\na_sum 1\na_count 2\n",
        "# HELP a x\n# TYPE a histogram\na_bucket{le=\"1\"} 1\na_bucket{le=\"+Inf\"} 1\na_count 1\n",
    };
    static struct kn_prom p;
    (void)state;

    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++)
        if (!kn_prom_parse(&p, wrong[i]))
            fail_msg("taken: %s", wrong[i]);
    if (kn_prom_parse(&p, "# HELP a x\n# TYPE a histogram\na_bucket{le=\"1\"} 1\na_bucket{le=\"+Inf\"} 1\na_sum 1\na_count 1\n"))
        fail_msg("%s", p.error);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(bounds_ascend), cmocka_unit_test(observation_falls_in_its_bucket), cmocka_unit_test(quantiles_interpolate),
        cmocka_unit_test(quantiles_are_near_exact), cmocka_unit_test(parser_refuses), cmocka_unit_test(text_is_strict), cmocka_unit_test(json_holds_all),
        cmocka_unit_test(numbers_follow_no_locale), cmocka_unit_test(health_tells), cmocka_unit_test(out_of_memory_is_remembered),
        cmocka_unit_test(threads_add),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
