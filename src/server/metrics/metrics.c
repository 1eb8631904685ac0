/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Histograms: where an observation falls, and what their counts say about quantiles.
 *
 *     bounds     0.001   0.002   0.004        ...        120
 *     buckets  [ <=1ms ][ <=2ms ][ <=4ms ]    ...    [ <=120s ][ more ]      counts of their own; made cumulative when rendered
 *
 * Bounds are about evenly spaced on a logarithmic scale, which keeps the error of an interpolated quantile at a set share of its value:
 * neighbours are a factor of 1.3 to 2 apart. First tokens take from a millisecond (a cached prompt on a small model) to minutes (a long
 * queue), tokens from one to some thousand milliseconds, whole requests up to the half hour that they may take.
 *
 * Any thread, no lock: an observation is three additions without order. A reader may see one without the other; it counts what the
 * buckets hold. Nothing fails.
 */
#include "server/metrics/metrics.h"

#include <assert.h>
#include <string.h>
#include <time.h>

#include "base/clock.h"

static const double wait_bounds[] = {0.001, 0.002, 0.004, 0.0075, 0.015, 0.025, 0.05, 0.075, 0.1, 0.15, 0.25, 0.4,
                                     0.6,   1,     1.5,   2.5,    4,     6,     10,   15,    30,  60,   120};
static const double token_bounds[] = {0.001, 0.0015, 0.002, 0.003, 0.004, 0.006, 0.008, 0.01, 0.015, 0.02, 0.03, 0.04,
                                      0.06,  0.08,   0.1,   0.15,  0.2,   0.3,   0.5,   0.8,  1.3,   2.5,  5};
static const double total_bounds[] = {0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1,   1.5, 2.5, 4,   6,   10,
                                      15,   25,    40,   60,  90,   150, 240, 400, 600, 900, 1800};

#define N_BOUNDS(bounds) ((uint32_t)(sizeof(bounds) / sizeof(bounds)[0]))
_Static_assert(N_BOUNDS(wait_bounds) < KNI_HIST_BUCKETS, "one bucket more than bounds");
_Static_assert(N_BOUNDS(token_bounds) < KNI_HIST_BUCKETS, "one bucket more than bounds");
_Static_assert(N_BOUNDS(total_bounds) < KNI_HIST_BUCKETS, "one bucket more than bounds");

static void hist_init(struct kni_hist *hist, const double *bounds, uint32_t n_bounds)
{
    hist->bounds = bounds;
    hist->n_bounds = n_bounds;
}

void kni_metrics_init(struct kni_metrics *metrics)
{
    struct timespec wall;

    memset(metrics, 0, sizeof *metrics);
    hist_init(&metrics->ttft, wait_bounds, N_BOUNDS(wait_bounds));
    hist_init(&metrics->queue, wait_bounds, N_BOUNDS(wait_bounds));
    hist_init(&metrics->tpot, token_bounds, N_BOUNDS(token_bounds));
    hist_init(&metrics->e2e, total_bounds, N_BOUNDS(total_bounds));
    metrics->begin_ns = kni_now_ns();
    clock_gettime(CLOCK_REALTIME, &wall);
    metrics->begin_wall_ns = (uint64_t)wall.tv_sec * 1000000000u + (uint64_t)wall.tv_nsec;
}

void kni_hist_observe(struct kni_hist *hist, uint64_t ns)
{
    double seconds = (double)ns / 1e9; /* rounded as the bounds are: what is exactly a bound belongs to its bucket */
    uint32_t low = 0, high = hist->n_bounds;

    assert(hist->n_bounds > 0 && hist->n_bounds < KNI_HIST_BUCKETS);
    while (low < high) { /* the first bound that is not below it */
        uint32_t middle = (low + high) / 2;
        if (hist->bounds[middle] < seconds)
            low = middle + 1;
        else
            high = middle;
    }
    /* relaxed: statistics; nothing else is published by them */
    atomic_fetch_add_explicit(&hist->buckets[low], 1, memory_order_relaxed);
    atomic_fetch_add_explicit(&hist->sum_ns, ns, memory_order_relaxed);
    atomic_fetch_add_explicit(&hist->count, 1, memory_order_relaxed);
}

double kni_hist_quantile(const struct kni_hist *hist, double p)
{
    uint64_t counts[KNI_HIST_BUCKETS], total = 0;
    double rank, below = 0;

    for (uint32_t i = 0; i <= hist->n_bounds; i++) {
        counts[i] = atomic_load_explicit(&hist->buckets[i], memory_order_relaxed); /* statistics, see observe */
        total += counts[i];
    }
    if (total == 0)
        return 0;
    rank = (p < 0 ? 0 : p > 1 ? 1 : p) * (double)total;
    for (uint32_t i = 0; i < hist->n_bounds; i++) {
        double n = (double)counts[i], first = i ? hist->bounds[i - 1] : 0;
        if (n > 0 && below + n >= rank)
            return first + (hist->bounds[i] - first) * (rank - below) / n;
        below += n;
    }
    return hist->bounds[hist->n_bounds - 1]; /* beyond the last bound nothing is known but that */
}
