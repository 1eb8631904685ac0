/* SPDX-License-Identifier: Apache-2.0 */
/* The sampler: greedy and its ties, each filter against a plain computation, frequencies, seeds, NaN, no allocation in a pick. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "base/alloc.h"
#include "run/sampler.h"

static struct kni_sampler start(struct kn_sampler_opts o, uint32_t n_vocab)
{
    struct kni_sampler s;
    assert_int_equal(kni_sampler_init(&s, &o, n_vocab), KN_OK);
    return s;
}

static int32_t pick(struct kni_sampler *s, const float *logits)
{
    kni_alloc_forbid_begin();
    int32_t id = kni_sampler_pick(s, logits);
    kni_alloc_forbid_end();
    assert_true(id >= 0 && (uint32_t)id < s->n_vocab);
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
    assert_int_equal(pick(&s, (float[]){NAN, NAN, NAN, NAN, NAN}), 0);
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
    for (uint64_t n = 1; n <= 4; n++) {
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
        uint32_t k = 1 + (uint32_t)(rng >> 33) % (round % 5 ? 20 : N);
        struct kni_sampler s = start((struct kn_sampler_opts){.temperature = 1, .top_k = k, .seed = round}, N);
        pick(&s, logits);
        for (uint32_t i = 0; i < k; i++) { /* each stands where the number of better ones says */
            uint32_t better = 0;
            for (uint32_t j = 0; j < N; j++)
                better += logits[j] > s.candidates[i].logit || (logits[j] == s.candidates[i].logit && (int32_t)j < s.candidates[i].id);
            assert_int_equal(better, i);
            assert_true(logits[s.candidates[i].id] == s.candidates[i].logit);
        }
        kni_sampler_fini(&s);
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
    assert_int_equal(pick(&s, (float[]){-INFINITY, NAN, -INFINITY, -INFINITY}), 0);
    kni_sampler_fini(&s);
}

static void strange_logits(void **state)
{
    (void)state;
    struct kni_sampler s = start((struct kn_sampler_opts){.temperature = 0.7f, .top_p = 0.9f, .min_p = 0.01f}, 4);
    for (unsigned i = 0; i < 50; i++) {
        assert_int_equal(pick(&s, (float[]){NAN, NAN, NAN, NAN}), 0);
        assert_int_equal(pick(&s, (float[]){-INFINITY, -INFINITY, -INFINITY, -INFINITY}), 0);
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

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(greedy), cmocka_unit_test(options), cmocka_unit_test(frequencies), cmocka_unit_test(order),
        cmocka_unit_test(seeds),  cmocka_unit_test(penalty), cmocka_unit_test(strange_logits),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
