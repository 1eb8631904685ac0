/* SPDX-License-Identifier: Apache-2.0 */
/* Arrivals and percentiles; see load_stats.h. */
#include "load_stats.h"

#include <assert.h>
#include <math.h>
#include <stdlib.h>

uint64_t kn_random_next(struct kn_random *random)
{
    uint64_t z = random->state += 0x9e3779b97f4a7c15u;
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return z ^ (z >> 31);
}

double kn_random_unit(struct kn_random *random)
{
    return (double)(kn_random_next(random) >> 11) * 0x1p-53;
}

uint32_t kn_random_between(struct kn_random *random, uint32_t low, uint32_t high)
{
    assert(low <= high);
    return low + (uint32_t)(kn_random_unit(random) * ((double)(high - low) + 1));
}

void kn_arrivals_init(struct kn_arrivals *arrivals, double rate, uint64_t seed)
{
    assert(rate > 0);
    *arrivals = (struct kn_arrivals){.random = {.state = seed}, .rate = rate};
}

double kn_arrivals_next(struct kn_arrivals *arrivals)
{
    arrivals->at_s += -log1p(-kn_random_unit(&arrivals->random)) / arrivals->rate; /* the unit is below 1: finite */
    return arrivals->at_s;
}

void kn_samples_add(struct kn_samples *samples, double value)
{
    if (samples->n == samples->room) {
        size_t room = samples->room ? 2 * samples->room : 256;
        double *grown = realloc(samples->values, room * sizeof *grown);
        if (!grown) {
            samples->failed = true;
            return;
        }
        samples->values = grown;
        samples->room = room;
    }
    samples->values[samples->n++] = value;
    samples->sorted = false;
}

void kn_samples_fini(struct kn_samples *samples)
{
    free(samples->values);
    *samples = (struct kn_samples){0};
}

static int compare(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

double kn_samples_quantile(struct kn_samples *samples, double q)
{
    assert(q > 0 && q <= 1);
    if (!samples->n)
        return 0;
    if (!samples->sorted)
        qsort(samples->values, samples->n, sizeof *samples->values, compare);
    samples->sorted = true;
    double rank = ceil(q * (double)samples->n - 1e-9); /* 0.9 * 10 is a little more than 9 in binary */
    size_t i = rank < 1 ? 0 : (size_t)rank - 1;
    return samples->values[i < samples->n ? i : samples->n - 1];
}

double kn_samples_mean(const struct kn_samples *samples)
{
    double sum = 0;
    for (size_t i = 0; i < samples->n; i++)
        sum += samples->values[i];
    return samples->n ? sum / (double)samples->n : 0;
}
