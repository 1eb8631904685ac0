/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Counters and histograms of the server. All fields are atomics that only grow, so that any thread may add and any may read
 * without a lock; a reader may see one observation's count before its sum, which Prometheus allows.
 */
#ifndef KNI_SERVER_METRICS_H
#define KNI_SERVER_METRICS_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#include "base/buf.h"

struct kni_snapshot;

#define KNI_HIST_BUCKETS 24u

/* Bounds are seconds, ascending, the same for every histogram of a kind; the last bucket is +Inf. */
struct kni_hist {
    const double *bounds; /* [n_bounds], static */
    uint32_t n_bounds;    /* < KNI_HIST_BUCKETS */
    _Atomic uint64_t buckets[KNI_HIST_BUCKETS]; /* not cumulative */
    _Atomic uint64_t sum_ns, count;
};

enum kni_route {
    KNI_ROUTE_CHAT, KNI_ROUTE_COMPLETIONS, KNI_ROUTE_MODELS, KNI_ROUTE_TOKENIZE, KNI_ROUTE_HEALTH, KNI_ROUTE_METRICS,
    KNI_ROUTE_STATS, KNI_ROUTE_DASHBOARD, KNI_ROUTE_OTHER, KNI_ROUTE_COUNT
};

struct kni_metrics {
    struct kni_hist ttft, tpot, e2e, queue; /* of requests that ended well; tpot: mean time between tokens of one request; queue: to RUNNING */
    _Atomic uint64_t ended[5];                       /* requests by enum kn_stop_reason */
    _Atomic uint64_t responses[KNI_ROUTE_COUNT][6];  /* by hundreds of the status: [2] is 2xx */
    _Atomic uint64_t refused_queue, refused_connections; /* 503 */
    _Atomic uint64_t slow_clients; /* connections cut by a timeout */
    _Atomic uint64_t disconnects;  /* clients that left before their answer's end */
    _Atomic uint32_t n_connections; /* now */
    uint64_t begin_ns;      /* monotonic, at init */
    uint64_t begin_wall_ns; /* the same moment since 1970 */
};

void kni_metrics_init(struct kni_metrics *metrics);
void kni_hist_observe(struct kni_hist *hist, uint64_t ns);
/* The value below which a fraction p of observations lies, by interpolation in its bucket, seconds; 0 without any. */
double kni_hist_quantile(const struct kni_hist *hist, double p);
/* Prometheus' text format 0.0.4. */
void kni_metrics_render(const struct kni_metrics *metrics, const struct kni_snapshot *snapshot, const char *model, struct kni_buf *out);
/* The dashboard's JSON object. */
void kni_metrics_render_json(const struct kni_metrics *metrics, const struct kni_snapshot *snapshot, const char *model, struct kni_buf *out);
/* {"status": "ok" | "degraded" | "failed" | "draining", ...} and why. True: ready for requests (degraded is ready, failed and draining
 * are not). */
bool kni_metrics_render_health(const struct kni_metrics *metrics, const struct kni_snapshot *snapshot, const char *model, struct kni_buf *out);

/* ---- between metrics.c, metrics_render.c and metrics_json.c */

/* Degraded: not everything that was configured works. Still serves. */
enum kni_degraded {
    KNI_DEGRADED_STORE_CLOSED = 1 << 0, /* could not be opened yet */
    KNI_DEGRADED_STORE_READ = 1 << 1,   /* left alone after repeated errors */
    KNI_DEGRADED_STORE_WRITE = 1 << 2,
    KNI_DEGRADED_STALLED = 1 << 3       /* there is work, and the engine's thread has not been heard of for KNI_STALL_NS */
};
#define KNI_STALL_NS 30000000000u
/* A set of enum kni_degraded; 0: all is well. */
unsigned kni_metrics_degraded(const struct kni_snapshot *snapshot, uint64_t now_ns);
/* Seconds without rounding and in no locale: "1.25". */
void kni_metrics_seconds(struct kni_buf *out, uint64_t ns);
/* Memory of the process that is in RAM; 0: unknown. */
uint64_t kni_metrics_resident_bytes(void);
/* "chat", "completions", ... */
const char *kni_metrics_route_name(enum kni_route route);
/* "reference", "AVX2", "AVX-512" of an enum kn_cpu_level. */
const char *kni_metrics_cpu_name(int level);

#endif
