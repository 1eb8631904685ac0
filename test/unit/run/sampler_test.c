/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The sampler: greedy and its ties, each filter against a plain computation, frequencies, seeds, NaN, no allocation in a pick; and the
 * whole distribution, by chi-square against a plain sampler that sorts. Seeds are fixed, so it says the same every time, and what it
 * would not see is tested as well: a cut that is off by one candidate, a temperature that is off by 3 %.
 */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "base/alloc.h"
#include "run/sampler.h"
#include "support/cpu_levels.h"

#define MAX_VOCAB 49157u

static struct kni_kernels tables[N_CPU_LEVELS]; /* every level that the machine has */
static unsigned level, n_levels;

/* A row as the run hands it to a sampler. */
static struct kni_logits row_of(const float *logits, uint32_t n, float scale)
{
    static float x[MAX_VOCAB], max[MAX_VOCAB / 32 + 1], sum[MAX_VOCAB / 32 + 1], scratch[9 * (MAX_VOCAB / 32 + 1) + 2 * KNI_SAMPLER_LIST + 2];
    struct kni_logits l = {.kernels = &tables[level], .n = n, .x = x, .max = max, .sum = sum, .scratch = scratch};
    assert_true(n <= MAX_VOCAB && kni_logits_scratch_floats(n) <= sizeof scratch / sizeof *scratch);
    memcpy(x, logits, n * sizeof *x);
    tables[level].logit_max(max, x, n);
    tables[level].logit_sum(sum, x, max, n, scale);
    for (uint32_t b = 0; !(scale > 0) && b < kni_logit_blocks(n); b++)
        sum[b] = NAN; /* unread */
    return l;
}

static struct kni_sampler start(struct kn_sampler_opts o, uint32_t n_vocab)
{
    struct kni_sampler s;
    assert_int_equal(kni_sampler_init(&s, &o, n_vocab), KN_OK);
    return s;
}

static int32_t pick(struct kni_sampler *s, const float *logits)
{
    struct kni_logits l = row_of(logits, s->n_vocab, s->scale);
    kni_alloc_forbid_begin();
    int32_t id = kni_sampler_pick(s, &l);
    kni_alloc_forbid_end();
    assert_true(id >= -1 && id < (int32_t)s->n_vocab);
    assert_memory_equal(l.x, logits, l.n * sizeof *logits); /* put back */
    return id;
}

static void greedy(void **state)
{
    (void)state;
    struct kni_sampler s;
    assert_int_equal(kni_sampler_init(&s, NULL, 5), KN_OK);
    assert_int_equal(pick(&s, (float[]){1, 3, 2, 3, -1}), 1); /* ties: lowest id */
    assert_int_equal(pick(&s, (float[]){-5, -4, -4, -6, -7}), 1);
    assert_int_equal(pick(&s, (float[]){NAN, 1, NAN, 2, NAN}), 3);
    assert_int_equal(pick(&s, (float[]){NAN, NAN, NAN, NAN, NAN}), -1);
    assert_int_equal(pick(&s, (float[]){-INFINITY, -INFINITY, -INFINITY, -INFINITY, -3e38f}), 4);
    assert_int_equal(pick(&s, (float[]){0, INFINITY, 1, INFINITY, 2}), 1);
    assert_int_equal(pick(&s, (float[]){-0.0f, 0.0f, 0, 0, 0}), 0);
    kni_sampler_fini(&s);
    kni_sampler_fini(&s);
}

static void options(void **state)
{
    (void)state;
    const struct kn_sampler_opts bad[] = {
        {.temperature = -1}, {.temperature = NAN}, {.temperature = INFINITY}, {.top_p = -0.1f}, {.top_p = 1.1f}, {.top_p = NAN}, {.min_p = -1}, {.min_p = 2},
        {.min_p = NAN}, {.repeat_penalty = -1}, {.repeat_penalty = NAN}, {.repeat_penalty = INFINITY}, {.repeat_last = 65536},
    };
    struct kni_sampler s;
    for (unsigned i = 0; i < sizeof bad / sizeof *bad; i++) {
        assert_int_equal(kni_sampler_check(&bad[i]), KN_E_ARG);
        assert_int_equal(kni_sampler_init(&s, &bad[i], 10), KN_E_ARG);
        kni_sampler_fini(&s);
    }
    assert_int_equal(kni_sampler_init(&s, NULL, 0), KN_E_ARG);
    const struct kn_sampler_opts full = {.temperature = 1, .repeat_penalty = 2};
    for (uint64_t n = 1; n <= 3; n++) {
        uint64_t before = kni_alloc_get_stats(KNI_ALLOC_TAG_REQUEST).current_bytes;
        kni_alloc_fault_arm(n, false);
        assert_int_equal(kni_sampler_init(&s, &full, 100), KN_E_NOMEM);
        kni_alloc_fault_arm(0, false);
        assert_int_equal(kni_alloc_get_stats(KNI_ALLOC_TAG_REQUEST).current_bytes, before);
        kni_sampler_fini(&s);
    }
}

/* Frequencies of n picks. */
static void count(struct kn_sampler_opts o, const float *logits, uint32_t n_vocab, unsigned n, double *freq)
{
    struct kni_sampler s = start(o, n_vocab);
    for (uint32_t i = 0; i < n_vocab; i++)
        freq[i] = 0;
    for (unsigned i = 0; i < n; i++)
        freq[pick(&s, logits)] += 1.0 / n;
    kni_sampler_fini(&s);
}

static void frequencies(void **state)
{
    (void)state;
    float logits[6] = {logf(0.05f), logf(0.4f), logf(0.1f), logf(0.25f), logf(0.15f), logf(0.05f)};
    const struct { struct kn_sampler_opts o; double want[6]; } cases[] = {
        {{.temperature = 1}, {.05, .4, .1, .25, .15, .05}},
        {{.temperature = 0.5f}, {.0025 / .26, .16 / .26, .01 / .26, .0625 / .26, .0225 / .26, .0025 / .26}},
        {{.temperature = 1, .top_k = 3}, {0, .4 / .8, 0, .25 / .8, .15 / .8, 0}},
        {{.temperature = 1, .top_k = 1}, {0, 1, 0, 0, 0, 0}},
        {{.temperature = 1, .top_k = 5}, {.05 / .95, .4 / .95, .1 / .95, .25 / .95, .15 / .95, 0}}, /* of equal ones the lower id stays */
        {{.temperature = 1, .top_p = 0.6f}, {0, .4 / .65, 0, .25 / .65, 0, 0}},
        {{.temperature = 1, .top_p = 0.01f}, {0, 1, 0, 0, 0, 0}},
        {{.temperature = 1, .top_p = 1}, {.05, .4, .1, .25, .15, .05}},
        {{.temperature = 1, .min_p = 0.3f}, {0, .4 / .8, 0, .25 / .8, .15 / .8, 0}},
        {{.temperature = 1, .min_p = 1}, {0, 1, 0, 0, 0, 0}},
        {{.temperature = 1, .top_k = 4, .top_p = 0.9f, .min_p = 0.3f}, {0, .4 / .8, 0, .25 / .8, .15 / .8, 0}},
    };
    for (unsigned i = 0; i < sizeof cases / sizeof *cases; i++) {
        double freq[6], error = 0;
        struct kn_sampler_opts o = cases[i].o;
        o.seed = i;
        count(o, logits, 6, 40000, freq);
        for (unsigned k = 0; k < 6; k++) {
            error = fmax(error, fabs(freq[k] - cases[i].want[k]));
            assert_true((cases[i].want[k] == 0) == (freq[k] == 0));
        }
        assert_true(error < 0.0125); /* five sigma of 40000 draws: 5 * 0.5 / 200 */
    }
}

/* Top-k over many candidates equals sorting. */
static void order(void **state)
{
    (void)state;
    enum { N = 1000 };
    float logits[N];
    uint64_t rng = 3;
    for (unsigned round = 0; round < 50; round++) {
        for (unsigned i = 0; i < N; i++) {
            rng = rng * 6364136223846793005u + 1442695040888963407u;
            logits[i] = (float)(rng >> 60) + (round % 2 ? (float)(rng >> 40 & 1023) / 1024 : 0); /* with many ties, with few */
        }
        uint32_t k = 1 + (uint32_t)(rng >> 33) % (round % 5 ? 20 : KNI_SAMPLER_LIST);
        struct kni_candidate c[KNI_SAMPLER_LIST];
        struct kni_logits l = row_of(logits, N, 1);
        assert_int_equal(kni_logits_best(&l, k, c), k);
        for (uint32_t i = 0; i < k; i++) { /* each stands where the number of better ones says */
            uint32_t better = 0;
            for (uint32_t j = 0; j < N; j++)
                better += logits[j] > c[i].logit || (logits[j] == c[i].logit && (int32_t)j < c[i].id);
            assert_int_equal(better, i);
            assert_true(logits[c[i].id] == c[i].logit);
        }
    }
}

static void seeds(void **state)
{
    (void)state;
    float logits[64];
    for (unsigned i = 0; i < 64; i++)
        logits[i] = (float)(i % 7) * 0.1f;
    struct kni_sampler a = start((struct kn_sampler_opts){.temperature = 1, .seed = 5}, 64), b = start((struct kn_sampler_opts){.temperature = 1, .seed = 5}, 64),
                       c = start((struct kn_sampler_opts){.temperature = 1, .seed = 6}, 64);
    unsigned differ = 0;
    for (unsigned i = 0; i < 100; i++) {
        int32_t x = pick(&a, logits);
        assert_int_equal(x, pick(&b, logits));
        differ += x != pick(&c, logits);
    }
    assert_true(differ > 50);
    kni_sampler_fini(&a), kni_sampler_fini(&b), kni_sampler_fini(&c);
    /* splitmix64 of seed 0: the first output is 0xe220a8397b1dcdaf, 0.8833 of the range, so with ten equal logits id 8 */
    float equal[10] = {0};
    a = start((struct kn_sampler_opts){.temperature = 1, .seed = 0}, 10);
    assert_int_equal(pick(&a, equal), 8);
    kni_sampler_fini(&a);
}

static void penalty(void **state)
{
    (void)state;
    struct kni_sampler s = start((struct kn_sampler_opts){.repeat_penalty = 2, .repeat_last = 2}, 4);
    const float logits[4] = {3, 4, -1, 1};
    assert_int_equal(pick(&s, logits), 1);
    kni_sampler_accept(&s, 1); /* 4 / 2 < 3 */
    assert_int_equal(pick(&s, logits), 0);
    kni_sampler_accept(&s, 0); /* 1.5, 2, -1, 1 */
    assert_int_equal(pick(&s, logits), 1);
    kni_sampler_accept(&s, 3); /* 1 left the window: 1.5, 4, -1, 0.5 */
    kni_sampler_accept(&s, 3); /* now only 3 is in it, twice but penalised once */
    assert_int_equal(pick(&s, logits), 1);
    assert_int_equal(s.counts[3], 2);
    kni_sampler_accept(&s, 2); /* negative logits are multiplied: -2 */
    assert_int_equal(pick(&s, (float[]){-1.5f, -1.6f, -1, -9}), 0);
    kni_sampler_accept(&s, -1);
    kni_sampler_accept(&s, 4); /* ids of no token change nothing */
    assert_int_equal(s.counts[2], 1);
    assert_int_equal(pick(&s, (float[]){-INFINITY, NAN, -INFINITY, -INFINITY}), -1);
    kni_sampler_fini(&s);
}

static void strange_logits(void **state)
{
    (void)state;
    struct kni_sampler s = start((struct kn_sampler_opts){.temperature = 0.7f, .top_p = 0.9f, .min_p = 0.01f}, 4);
    for (unsigned i = 0; i < 50; i++) {
        assert_int_equal(pick(&s, (float[]){NAN, NAN, NAN, NAN}), -1);
        assert_int_equal(pick(&s, (float[]){-INFINITY, -INFINITY, -INFINITY, -INFINITY}), -1);
        assert_int_equal(pick(&s, (float[]){INFINITY, INFINITY, NAN, -INFINITY}), -1);
        assert_int_equal(pick(&s, (float[]){1, INFINITY, 2, NAN}), 1);
        assert_int_equal(pick(&s, (float[]){-3e38f, NAN, 3e38f, 0}), 2);
        assert_int_equal(pick(&s, (float[]){-INFINITY, NAN, -1e30f, -INFINITY}), 2);
    }
    kni_sampler_fini(&s);
    s = start((struct kn_sampler_opts){.temperature = 1e-30f}, 3); /* so cold that it is greedy */
    for (unsigned i = 0; i < 50; i++)
        assert_int_equal(pick(&s, (float[]){1, 2, 1.9f}), 1);
    kni_sampler_fini(&s);
}

/* ---- the distribution */

struct entry { float logit; uint32_t id; double p; };

static int by_order(const void *a, const void *b)
{
    const struct entry *x = a, *y = b;
    return x->logit != y->logit ? (x->logit < y->logit) - (x->logit > y->logit) : (x->id > y->id) - (x->id < y->id);
}

/* What each token's probability ought to be, by sorting; off: candidates that top-p takes too many. In order; returns how many are in. */
static uint32_t plain(struct entry *e, const struct kn_sampler_opts *o, const float *logits, uint32_t n, int off)
{
    for (uint32_t i = 0; i < n; i++)
        e[i] = (struct entry){.logit = isnan(logits[i]) ? -INFINITY : logits[i], .id = i};
    qsort(e, n, sizeof *e, by_order);
    double sum = 0, have = 0;
    uint32_t k = o->top_k && o->top_k < n ? o->top_k : n;
    while (e[k - 1].logit == -INFINITY)
        k--;
    for (uint32_t i = 0; i < k; i++)
        sum += e[i].p = exp(((double)e[i].logit - (double)e[0].logit) / (double)o->temperature);
    if (o->top_p > 0 && o->top_p < 1) {
        uint32_t i = 0;
        while (i < k && have < (double)o->top_p * sum)
            have += e[i++].p;
        k = (uint32_t)((int)i + off);
    }
    while (k > 1 && e[k - 1].p < (double)o->min_p)
        k--;
    sum = 0;
    for (uint32_t i = 0; i < k; i++)
        sum += e[i].p;
    for (uint32_t i = 0; i < n; i++)
        e[i].p = i < k ? e[i].p / sum : 0;
    return k;
}

/* Chi-square of counts by id against e, in bins of at least 20 expected; in standard deviations above its mean. A count where nothing
 * is expected is infinitely far. */
static double deviation(const struct entry *e, uint32_t n, const uint32_t *counts, uint32_t n_draws)
{
    double chi = 0, want = 0, got = 0;
    uint32_t n_bins = 0;
    for (uint32_t i = 0; i < n; i++) {
        if (e[i].p == 0 && counts[e[i].id])
            return INFINITY;
        want += e[i].p * n_draws;
        got += counts[e[i].id];
        if (want >= 20) {
            chi += (got - want) * (got - want) / want;
            want = got = 0;
            n_bins++;
        }
    }
    return n_bins < 2 ? 0 : (chi - (n_bins - 1)) / sqrt(2.0 * (n_bins - 1));
}

enum shape { SHAPE_FLAT, SHAPE_PEAKED, SHAPE_TIES, SHAPE_HOLES, SHAPE_COUNT };

static void make_logits(float *x, uint32_t n, enum shape shape)
{
    uint64_t rng = 7 + shape;
    for (uint32_t i = 0; i < n; i++) {
        double u[2];
        for (int k = 0; k < 2; k++) {
            rng = rng * 6364136223846793005u + 1442695040888963407u;
            u[k] = ((double)(rng >> 33) + 1) * 0x1p-31;
        }
        double normal = sqrt(-2 * log(u[0])) * cos(6.283185307 * u[1]);
        x[i] = (float)(shape == SHAPE_FLAT ? normal * 0.5 : shape == SHAPE_PEAKED ? normal * 3 - 8 : floor(normal * 2));
        if (shape == SHAPE_HOLES && i % 3)
            x[i] = i % 3 == 1 ? NAN : -INFINITY;
    }
}

static void draw_many(struct kn_sampler_opts o, const float *logits, uint32_t n, uint32_t *counts, uint32_t n_draws)
{
    struct kni_sampler s = start(o, n);
    struct kni_logits l = row_of(logits, n, s.scale);
    memset(counts, 0, n * sizeof *counts);
    kni_alloc_forbid_begin();
    for (uint32_t i = 0; i < n_draws; i++) {
        int32_t id = kni_sampler_pick(&s, &l);
        assert_true(id >= 0 && (uint32_t)id < n);
        counts[id]++;
    }
    kni_alloc_forbid_end();
    kni_sampler_fini(&s);
}

static const struct kn_sampler_opts settings[] = {
    {.temperature = 1}, {.temperature = 0.7f}, {.temperature = 1.5f}, {.temperature = 1, .top_k = 5}, {.temperature = 1, .top_k = 40}, {.temperature = 0.8f, .top_k = 256},
    {.temperature = 1, .top_k = 257}, {.temperature = 1, .top_k = 700}, {.temperature = 1, .top_p = 0.9f}, {.temperature = 1, .top_p = 0.5f}, {.temperature = 1, .top_p = 0.05f},
    {.temperature = 1, .min_p = 0.05f}, {.temperature = 1, .min_p = 0.5f}, {.temperature = 0.9f, .top_k = 40, .top_p = 0.8f}, {.temperature = 0.9f, .top_k = 600, .top_p = 0.8f},
    {.temperature = 1.2f, .top_p = 0.95f, .min_p = 0.1f}, {.temperature = 1, .top_k = 500, .top_p = 0.7f, .min_p = 0.02f},
    {.temperature = 20, .top_p = 0.1f}, {.temperature = 20, .top_p = 0.01f}, {.temperature = 1e6f, .top_p = 0.2f}, {.temperature = 20, .top_k = 5000},
    {.temperature = 20, .top_k = 20000, .top_p = 0.9f}, {.temperature = 20, .top_k = 20000, .top_p = 0.1f}, {.temperature = 20, .top_p = 0.1f, .min_p = 0.9f},
    {.temperature = 20, .top_k = 20000, .top_p = 0.2f, .min_p = 0.8f}, {.temperature = 20, .min_p = 0.8f}, {.temperature = 4, .top_k = 9000, .min_p = 0.5f},
};
#define N_SETTINGS (sizeof settings / sizeof *settings)

/* Sizes around blocks, lists and both sides of everything. Of some 2,000 chi-squares, many of one degree of freedom, the largest is beyond 5
 * standard deviations by chance. */
static void distribution(void **state)
{
    (void)state;
    static const uint32_t sizes[] = {5, 32, 37, 64, 1000, 8192, MAX_VOCAB};
    static float x[MAX_VOCAB];
    static struct entry e[MAX_VOCAB];
    static uint32_t counts[MAX_VOCAB];
    double worst = 0;
    for (level = 0; level < n_levels; level++)
        for (unsigned n = 0; n < 7; n++)
            for (unsigned shape = 0; shape < SHAPE_COUNT; shape++)
                for (unsigned i = 0; i < N_SETTINGS; i++) {
                    struct kn_sampler_opts o = settings[i];
                    const uint32_t n_draws = sizes[n] > 1000 ? level ? 600 : 200 : 4000;
                    if (sizes[n] == MAX_VOCAB && !level) /* slow, and no other walk than 8192's */
                        continue;
                    o.seed = 1000 * n + 100 * shape + i;
                    make_logits(x, sizes[n], (enum shape)shape);
                    plain(e, &o, x, sizes[n], 0);
                    draw_many(o, x, sizes[n], counts, n_draws);
                    double d = deviation(e, sizes[n], counts, n_draws);
                    worst = fmax(worst, d);
                    if (d > 8)
                        fail_msg("level %u, %u tokens, shape %u, setting %u: %.1f standard deviations", level, sizes[n], shape, i, d);
                }
    level = n_levels - 1;
    print_message("largest deviation: %.2f\n", worst);
}

/* What the test above would say of samplers that are slightly wrong. */
static void wrong_ones_are_seen(void **state)
{
    (void)state;
    enum { N = 1000, N_DRAWS = 200000 };
    static float x[N];
    static struct entry e[N];
    static uint32_t counts[N];
    struct kn_sampler_opts o = {.temperature = 1, .top_p = 0.85f, .seed = 3}, wrong = o;
    make_logits(x, N, SHAPE_PEAKED);
    draw_many(o, x, N, counts, N_DRAWS);
    uint32_t k = plain(e, &o, x, N, 0);
    assert_true(k > 10 && k < 100);
    assert_true(deviation(e, N, counts, N_DRAWS) < 4);
    plain(e, &o, x, N, 1);
    assert_true(deviation(e, N, counts, N_DRAWS) > 20);
    plain(e, &o, x, N, -1);
    assert_true(deviation(e, N, counts, N_DRAWS) > 20);
    wrong.temperature = 1.03f;
    plain(e, &wrong, x, N, 0);
    assert_true(deviation(e, N, counts, N_DRAWS) > 8);
    o = (struct kn_sampler_opts){.temperature = 1, .top_k = 300, .seed = 4};
    make_logits(x, N, SHAPE_FLAT);
    draw_many(o, x, N, counts, N_DRAWS);
    plain(e, &o, x, N, 0);
    assert_true(deviation(e, N, counts, N_DRAWS) < 4);
    for (uint32_t off = 299; off <= 301; off += 2) {
        o.top_k = off;
        plain(e, &o, x, N, 0);
        assert_true(deviation(e, N, counts, N_DRAWS) > 8);
    }
}

/* What each cut leaves, to the candidate: every one of them is drawn, and no other. */
static void cuts_are_exact(void **state)
{
    (void)state;
    enum { N = 700 };
    static float x[N];
    static struct entry e[N];
    static uint32_t counts[N];
    for (uint32_t i = 0; i < N; i++)
        x[i] = (float)(i * 37 % 100 / 10) * 0.1f; /* ten values, seventy times each: bounds fall among equals */
    static const struct kn_sampler_opts cuts[] = {
        {.temperature = 1, .top_k = 256}, {.temperature = 1, .top_k = 257}, {.temperature = 1, .top_k = 280}, {.temperature = 1, .top_k = 281}, {.temperature = 1, .top_k = 699},
        {.temperature = 1, .top_p = 0.3f}, {.temperature = 1, .top_p = 0.5f, .top_k = 400}, {.temperature = 1, .min_p = 0.66f}, {.temperature = 1, .min_p = 1},
        {.temperature = 100, .top_k = 500}, {.temperature = 1, .top_k = 600, .min_p = 0.7f},
    };
    for (level = 0; level < n_levels; level++)
        for (unsigned i = 0; i < sizeof cuts / sizeof *cuts; i++) {
            uint32_t k = plain(e, &cuts[i], x, N, 0);
            draw_many(cuts[i], x, N, counts, 20000);
            for (uint32_t j = 0; j < N; j++)
                if ((counts[e[j].id] > 0) != (j < k))
                    fail_msg("level %u, cut %u: candidate %u of %u was drawn %u times", level, i, j, k, counts[e[j].id]);
        }
    level = n_levels - 1;
}

/* The penalty over a vocabulary of many blocks, and sampled: against a plain computation on penalised logits. */
static void penalised_distribution(void **state)
{
    (void)state;
    enum { N = 1000, N_DRAWS = 20000 };
    static float x[N], y[N];
    static struct entry e[N];
    static uint32_t counts[N];
    make_logits(x, N, SHAPE_PEAKED);
    memcpy(y, x, sizeof y);
    struct kn_sampler_opts o = {.temperature = 1, .top_p = 0.95f, .repeat_penalty = 1.7f, .repeat_last = 50, .seed = 9};
    struct kni_sampler s = start(o, N);
    plain(e, &o, x, N, 0);
    for (uint32_t i = 0; i < 24; i++) {
        kni_sampler_accept(&s, (int32_t)e[2 * i].id);
        kni_sampler_accept(&s, 999); /* many times in the window, penalised once */
    }
    for (uint32_t i = 0; i < N; i++)
        if (s.counts[i])
            y[i] = y[i] > 0 ? y[i] / 1.7f : y[i] * 1.7f;
    memset(counts, 0, sizeof counts);
    for (uint32_t i = 0; i < N_DRAWS; i++)
        counts[pick(&s, x)]++;
    plain(e, &o, y, N, 0);
    assert_true(deviation(e, N, counts, N_DRAWS) < 4);
    plain(e, &o, x, N, 0);
    assert_true(deviation(e, N, counts, N_DRAWS) > 20);
    kni_sampler_fini(&s);
}

/* The norm of log-probabilities against doubles. */
static void log_norm(void **state)
{
    (void)state;
    static float x[MAX_VOCAB];
    for (level = 0; level < n_levels; level++)
        for (unsigned shape = 0; shape < SHAPE_COUNT; shape++) {
            double sum = 0;
            make_logits(x, MAX_VOCAB, (enum shape)shape);
            for (uint32_t i = 0; i < MAX_VOCAB; i++)
                sum += x[i] > -INFINITY ? exp((double)x[i]) : 0;
            struct kni_logits l = row_of(x, MAX_VOCAB, 1);
            assert_true(fabs(kni_logits_log_norm(&l, l.sum) - log(sum)) < 1e-6);
        }
    level = n_levels - 1;
}

static int set_up(void **state)
{
    (void)state;
    for (n_levels = 0; n_levels < cpu_sets_count(N_CPU_LEVELS); n_levels++)
        kni_kernels_init(&tables[n_levels], cpu_sets[n_levels]);
    level = n_levels - 1;
    return 0;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(greedy), cmocka_unit_test(options), cmocka_unit_test(frequencies), cmocka_unit_test(order),
        cmocka_unit_test(seeds),  cmocka_unit_test(penalty), cmocka_unit_test(strange_logits), cmocka_unit_test(distribution),
        cmocka_unit_test(wrong_ones_are_seen), cmocka_unit_test(cuts_are_exact), cmocka_unit_test(penalised_distribution), cmocka_unit_test(log_norm),
    };
    return cmocka_run_group_tests(tests, set_up, NULL);
}
