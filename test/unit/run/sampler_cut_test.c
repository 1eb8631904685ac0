/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Cuts of large rows, to the candidate, against a sort: rows of every shape, and such that mislead the sample. What a
 * draw may not decide otherwise than the sort are tokens whose mass differs from what is wanted by more than rounding.
 */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "run/sampler_cut.h"
#include "support/cpu_levels.h"

#define N 40007u /* large enough for samples; the last block is partial */
#define N_BLOCKS ((N + 31) / 32)
#define ROUNDING 1e-5

static struct kni_kernels levels[N_CPU_LEVELS];
static unsigned n_levels;

enum shape { SHAPE_NORMAL, SHAPE_PEAKED, SHAPE_TIES, SHAPE_FINE_TIES, SHAPE_EQUAL, SHAPE_HOLES, SHAPE_HUGE, SHAPE_TINY,
             SHAPE_RAMP, SHAPE_SAMPLE_LOW, SHAPE_SAMPLE_HIGH, SHAPE_SAMPLE_EQUAL, SHAPE_COUNT };

/* Whether a sample has the block. */
static bool is_sampled(uint32_t block)
{
    const uint32_t n_whole = N / 32, n = n_whole / 8;
    for (uint32_t b = 0; b < n; b++)
        if ((uint64_t)b * n_whole / n == block)
            return true;
    return false;
}

static void make_row(float *x, enum shape shape)
{
    uint64_t rng = 11 + shape;
    for (uint32_t i = 0; i < N; i++) {
        double u[2];
        for (int k = 0; k < 2; k++) {
            rng = rng * 6364136223846793005u + 1442695040888963407u;
            u[k] = ((double)(rng >> 33) + 1) * 0x1p-31;
        }
        double normal = sqrt(-2 * log(u[0])) * cos(6.283185307 * u[1]);
        x[i] = (float)(normal * 3);
        switch (shape) {
        case SHAPE_PEAKED: x[i] = (float)(normal * 3) + (i == 777 ? 40 : 0); break;
        case SHAPE_TIES: x[i] = (float)floor(normal * 2); break;
        case SHAPE_FINE_TIES: x[i] = (float)floor(normal * 20); break;
        case SHAPE_EQUAL: x[i] = -2.5f; break;
        case SHAPE_HOLES: x[i] = i % 3 == 1 ? NAN : i % 3 ? -INFINITY : x[i]; break;
        case SHAPE_HUGE: x[i] = (float)(normal * 1e30); break;
        case SHAPE_TINY: x[i] = 5 + (float)(normal * 1e-4); break;
        case SHAPE_RAMP: x[i] = (float)i * 1e-3f; break; /* neighbours alike */
        case SHAPE_SAMPLE_LOW: x[i] -= is_sampled(i / 32) ? 2 : 0; break;
        case SHAPE_SAMPLE_HIGH: x[i] += is_sampled(i / 32) ? 2 : 0; break;
        case SHAPE_SAMPLE_EQUAL: x[i] = is_sampled(i / 32) ? -50 : x[i]; break;
        default: break;
        }
    }
}

struct entry { float logit; uint32_t id; double weight, before; };

static int by_order(const void *a, const void *b)
{
    const struct entry *x = a, *y = b;
    return x->logit != y->logit ? (x->logit < y->logit) - (x->logit > y->logit) : (x->id > y->id) - (x->id < y->id);
}

/* In order, with what stands before each. Returns how many are above minus infinity. */
static uint32_t sort_row(struct entry *e, const float *x, float scale)
{
    uint32_t n = 0;
    double sum = 0;
    for (uint32_t i = 0; i < N; i++)
        if (x[i] > -INFINITY)
            e[n++] = (struct entry){.logit = x[i], .id = i};
    qsort(e, n, sizeof *e, by_order);
    for (uint32_t i = 0; i < n; i++) {
        e[i].weight = exp(((double)e[i].logit - (double)e[0].logit) * (double)scale);
        e[i].before = sum;
        sum += e[i].weight;
    }
    return n;
}

static double mass_of(const struct entry *e, uint32_t n)
{
    return n ? e[n - 1].before + e[n - 1].weight : 0;
}

static bool is_in(const struct kni_draw *d, const struct entry *t)
{
    return kni_candidate_is_before((struct kni_candidate){t->logit, (int32_t)t->id}, d->bound);
}

/* A cut leaves the first n of the order, and weighs them. */
static void check_cut(const struct kni_draw *d, const struct entry *e, uint32_t n_all, uint32_t n, double total)
{
    uint32_t n_in = 0;
    while (n_in < n_all && is_in(d, &e[n_in]))
        n_in++;
    assert_int_equal(n_in, n);
    assert_true(fabs(total - mass_of(e, n)) <= ROUNDING * mass_of(e, n));
}

static float x[N];
static struct entry e[N];
static float max[N_BLOCKS], sum[N_BLOCKS];

static struct kni_logits begin(unsigned level, float scale)
{
    struct kni_logits l = {.kernels = &levels[level], .n = N, .x = x, .max = max, .sum = sum};
    l.scratch = malloc(kni_logits_scratch_floats(N) * sizeof(float));
    assert_non_null(l.scratch);
    levels[level].logit_max(max, x, N);
    levels[level].logit_sum(sum, x, max, N, scale);
    return l;
}

static void top_k_is_exact(void **state)
{
    (void)state;
    uint32_t ks[] = {257, 300, 1000, 4999, 20000, N / 3, N - 300, N - 1, 0};
    for (unsigned level = 0; level < n_levels; level++)
        for (unsigned shape = 0; shape < SHAPE_COUNT; shape++) {
            const float scale = 0.05f;
            make_row(x, (enum shape)shape);
            uint32_t n = sort_row(e, x, scale);
            struct kni_logits l = begin(level, scale);
            uint32_t *whole = &ks[sizeof ks / sizeof *ks - 1]; /* of those that are equal, none or all */
            for (*whole = 5000; *whole < n && e[*whole].logit == e[*whole - 1].logit;)
                ++*whole;
            for (unsigned i = 0; i < sizeof ks / sizeof *ks; i++) {
                struct kni_draw d = kni_draw_begin(&l, e[0].logit, scale);
                double total = kni_draw_cut_to_top_k(&d, ks[i]);
                check_cut(&d, e, n, ks[i] < n ? ks[i] : n, total);
            }
            free(l.scratch);
        }
}

/* Whether a draw of the token of rank i would be taken is what the sort says; not asked where rounding may decide. */
static void check_token(const struct kni_draw *d, uint32_t i, double want, double total)
{
    struct kni_draw copy = *d;
    if (fabs(e[i].before - want) <= ROUNDING * want + 1e-12)
        return;
    bool is_in = kni_draw_is_within(&copy, (int32_t)e[i].id, want, &total);
    if (is_in != (e[i].before < want))
        fail_msg("rank %u of %.9g: %.9g before it, taken %d", i, want, e[i].before, is_in);
    if (!is_in)
        assert_true(fabs(total - e[i].before) <= ROUNDING * total); /* and the rest is what stands before it */
}

static void check_top_p(struct kni_draw *d, uint32_t n, double p, double total, bool may_narrow, unsigned *n_narrowed)
{
    const double want = p * total;
    uint32_t n_cut = 0, n_set = 0;
    while (n_cut < n && e[n_cut].before < want)
        n_cut++;
    bool is_narrow = may_narrow && kni_draw_narrow(d, want, -INFINITY, &total);
    *n_narrowed += is_narrow;
    while (n_set < n && is_in(d, &e[n_set]))
        n_set++;
    check_cut(d, e, n, n_set, total);
    assert_true(mass_of(e, n_set) >= want * (1 - ROUNDING)); /* everything that top-p leaves can be drawn */
    assert_true(!is_narrow || n_set < n);
    check_token(d, 0, want, total);
    for (int64_t off = -600; off <= 600; off += 7) {
        int64_t i = (int64_t)n_cut + off;
        if (i >= 0 && i < n_set)
            check_token(d, (uint32_t)i, want, total);
    }
    check_token(d, n_set - 1, want, total);
}

static void top_p_is_exact(void **state)
{
    (void)state;
    static const double ps[] = {1e-9, 1e-3, 0.02, 0.1, 0.24, 0.5, 0.95};
    static const float scales[] = {0.05f, 1};
    for (unsigned level = 0; level < n_levels; level++)
        for (unsigned shape = 0; shape < SHAPE_COUNT; shape++)
            for (unsigned k = 0; k < 2; k++) {
                unsigned n_narrowed = 0;
                make_row(x, (enum shape)shape);
                uint32_t n = sort_row(e, x, scales[k]), top_k = 15000 < n ? 15000 : n - 1;
                struct kni_logits l = begin(level, scales[k]);
                for (unsigned i = 0; i < sizeof ps / sizeof *ps; i++) {
                    struct kni_draw d = kni_draw_begin(&l, e[0].logit, scales[k]);
                    check_top_p(&d, n, ps[i], kni_draw_weigh_all(&d, sum), true, &n_narrowed);
                    d = kni_draw_begin(&l, e[0].logit, scales[k]);
                    double total = kni_draw_cut_to_top_k(&d, top_k);
                    check_top_p(&d, n, ps[i], total, i % 2, &n_narrowed);
                }
                if (shape == SHAPE_NORMAL && !k)
                    assert_in_range(n_narrowed, 5, 9); /* the tests above were of both ways */
                if ((shape == SHAPE_PEAKED && k) || shape == SHAPE_EQUAL)
                    assert_int_equal(n_narrowed, 0);
                free(l.scratch);
            }
}

/* A limit that leaves less than top-p does makes narrowing idle. */
static void limits_come_first(void **state)
{
    (void)state;
    make_row(x, SHAPE_NORMAL);
    uint32_t n = sort_row(e, x, 0.05f);
    struct kni_logits l = begin(n_levels - 1, 0.05f);
    for (uint32_t rank = n / 20; rank < n; rank += n / 3) {
        struct kni_draw d = kni_draw_begin(&l, e[0].logit, 0.05f);
        double total = kni_draw_weigh_all(&d, sum), whole = total;
        bool is_narrow = kni_draw_narrow(&d, 0.1 * total, e[rank].logit, &total);
        assert_int_equal(is_narrow, mass_of(e, rank) > 0.1 * whole);
    }
    free(l.scratch);
}

static int set_up(void **state)
{
    (void)state;
    for (n_levels = 0; n_levels < cpu_sets_count(N_CPU_LEVELS); n_levels++)
        kni_kernels_init(&levels[n_levels], cpu_sets[n_levels]);
    return 0;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(top_k_is_exact), cmocka_unit_test(top_p_is_exact), cmocka_unit_test(limits_come_first),
    };
    return cmocka_run_group_tests(tests, set_up, NULL);
}
