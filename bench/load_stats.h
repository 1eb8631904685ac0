/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Numbers of a load test: when requests arrive, and what is said of many latencies.
 *
 *     seed, rate --kn_arrivals_next--> seconds of the next arrival       gaps are exponential: a Poisson process
 *     latencies --kn_samples_add--> array --kn_samples_quantile--> p50, p90, p99
 *
 * All samples are kept and sorted: a percentile is one that was measured, exact, not a bucket's edge. One thread.
 */
#ifndef KN_LOAD_STATS_H
#define KN_LOAD_STATS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* ---- a small generator, the same on every machine (splitmix64) */
struct kn_random { uint64_t state; };
uint64_t kn_random_next(struct kn_random *random);
/* In [0, 1), multiples of 2^-53. */
double kn_random_unit(struct kn_random *random);
/* Uniform in [low, high]; low <= high. */
uint32_t kn_random_between(struct kn_random *random, uint32_t low, uint32_t high);

/* ---- Poisson arrivals */
struct kn_arrivals {
    struct kn_random random;
    double rate, at_s; /* arrivals a second; the last one's time */
};
void kn_arrivals_init(struct kn_arrivals *arrivals, double rate, uint64_t seed);
/* Seconds from the beginning; never less than the one before. */
double kn_arrivals_next(struct kn_arrivals *arrivals);

/* ---- samples. Begin with zeros; fini with kn_samples_fini. */
struct kn_samples {
    double *values;
    size_t n, room;
    bool sorted, failed; /* failed: out of memory; samples are missing */
};
void kn_samples_add(struct kn_samples *samples, double value);
void kn_samples_fini(struct kn_samples *samples);
/* Nearest rank: the least sample that at least q * n samples do not exceed, 0 < q <= 1. 0 when there is none. Sorts. */
double kn_samples_quantile(struct kn_samples *samples, double q);
double kn_samples_mean(const struct kn_samples *samples);

#endif
