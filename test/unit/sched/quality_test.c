/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Where K and V came from: what a lossy fetch brought, and what was computed on top of it, serves nobody who wants better, whoever asks
 * first; and it is never handed to a publish as better than it is.
 */
#include "unit/sched/sched_support.h"

static void submit_least(struct kni_job *job, struct bed *b, const int32_t *tokens, uint32_t n, uint32_t n_new, enum kn_kv_quality least)
{
    struct kni_job_opts o = {.tokens = tokens, .n_prompt = n, .max_new = n_new, .least = least};
    assert_int_equal(kni_job_init(job, b->pool, &o), KN_OK);
    assert_int_equal(kni_sched_submit(b->sched, job), KN_OK);
}

/* A store that has the first 128 of 150 tokens, and an empty pool before which it brings them as `small`. */
static struct kni_fetcher *lossy_bed(struct bed *b, int32_t p[150], uint32_t max_running)
{
    struct kni_fetcher *f = fetcher_open();
    struct kni_job a;
    make_prompt(p, 150, 1);
    bed_open(b, 64, 64, 4, false, f);
    submit(&a, b, p, 150, 1);
    run_until_idle(b);
    done(&a, b);
    bed_close(b);
    bed_open_opts(b, 64, 64, max_running, false, f, (struct kni_sched_opts){.fetch_quality = KN_KV_QUALITY_SMALL});
    return f;
}

static void an_exact_request_takes_nothing_lossy(void **state)
{
    (void)state;
    struct bed b;
    struct kni_job a;
    int32_t p[150];
    struct kni_fetcher *f = lossy_bed(&b, p, 4);
    submit_least(&a, &b, p, 150, 20, KN_KV_QUALITY_SMALL);
    run_until_idle(&b);
    check_answer(&a);
    assert_int_equal(a.stats.n_fetched, 128);
    assert_int_equal(a.stats.n_fetched_by[KN_KV_QUALITY_SMALL], 128);
    assert_int_equal(a.stats.quality, KN_KV_QUALITY_SMALL);
    assert_int_equal(kni_seq_quality(&a.seq, 128, 160), KN_KV_QUALITY_SMALL); /* computed on top: it descends */
    assert_int_equal(f->worst_published, KN_KV_QUALITY_SMALL);
    done(&a, &b);

    /* all that is cached is lossy, and so is what the store gives */
    uint32_t n_begun = f->n_begun;
    submit_least(&a, &b, p, 150, 20, KN_KV_QUALITY_EXACT);
    run_until_idle(&b);
    check_answer(&a);
    assert_int_equal(a.stats.n_cached + a.stats.n_fetched, 0);
    assert_int_equal(a.stats.quality, KN_KV_QUALITY_EXACT);
    assert_int_equal(f->n_begun, n_begun);
    assert_int_equal(f->worst_published, KN_KV_QUALITY_EXACT);
    done(&a, &b);

    /* the better blocks took the place of the lossy ones: everybody gets them */
    for (enum kn_kv_quality least = KN_KV_QUALITY_EXACT; least < KN_KV_QUALITY_COUNT; least++) {
        submit_least(&a, &b, p, 150, 5, least);
        run_until_idle(&b);
        check_answer(&a);
        assert_int_equal(a.stats.n_cached_by[KN_KV_QUALITY_EXACT], 149);
        assert_int_equal(a.stats.quality, KN_KV_QUALITY_EXACT);
        done(&a, &b);
    }
    bed_close(&b);
    kni_fetcher_close(&f);
}

/* The one that waits for room, the one that comes in the same step, the one that is thrown out: none gets what it does not take. */
static void nor_while_a_lossy_one_runs(void **state)
{
    (void)state;
    for (uint32_t max_running = 1; max_running <= 4; max_running++) {
        struct bed b;
        struct kni_job jobs[4];
        int32_t p[150];
        struct kni_fetcher *f = lossy_bed(&b, p, max_running);
        static const enum kn_kv_quality least[4] = {KN_KV_QUALITY_ANY, KN_KV_QUALITY_EXACT, KN_KV_QUALITY_MEDIUM, KN_KV_QUALITY_SMALL};
        for (unsigned i = 0; i < 4; i++)
            submit_least(&jobs[i], &b, p, 150, 12, least[i]);
        run_until_idle(&b);
        for (unsigned i = 0; i < 4; i++) {
            check_answer(&jobs[i]);
            assert_true(jobs[i].stats.quality <= least[i]);
            for (enum kn_kv_quality q = least[i] + 1; q < KN_KV_QUALITY_COUNT; q++)
                assert_int_equal(jobs[i].stats.n_cached_by[q] + jobs[i].stats.n_fetched_by[q], 0);
        }
        struct kni_sched_stats s = kni_sched_get_stats(b.sched);
        uint64_t by = 0;
        for (unsigned q = 0; q < KN_KV_QUALITY_COUNT; q++)
            by += s.n_cached_by[q] + s.n_fetched_by[q];
        assert_int_equal(by, s.n_cached_tokens + s.n_fetched_tokens); /* each token under one quality */
        for (unsigned i = 0; i < 4; i++)
            done(&jobs[i], &b);
        bed_close(&b);
        kni_fetcher_close(&f);
    }
}

/* A match that ends inside a block copies it, and the copy is as good as the original. */
static void copies_keep_their_quality(void **state)
{
    (void)state;
    struct bed b;
    struct kni_job a;
    int32_t p[150];
    struct kni_fetcher *f = lossy_bed(&b, p, 4);
    submit_least(&a, &b, p, 150, 1, KN_KV_QUALITY_SMALL);
    run_until_idle(&b);
    done(&a, &b);
    p[120] ^= 1; /* leaves the prefix inside the eighth block, before the last whole chunk's end */
    submit_least(&a, &b, p, 150, 1, KN_KV_QUALITY_SMALL);
    run_until_idle(&b);
    assert_true(a.stats.n_cached_by[KN_KV_QUALITY_SMALL] >= 112);
    assert_int_equal(kni_seq_quality(&a.seq, 112, 128), KN_KV_QUALITY_SMALL);
    done(&a, &b);
    submit_least(&a, &b, p, 150, 1, KN_KV_QUALITY_MEDIUM);
    run_until_idle(&b);
    check_answer(&a);
    assert_int_equal(a.stats.n_cached, 0);
    done(&a, &b);
    bed_close(&b);
    kni_fetcher_close(&f);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(an_exact_request_takes_nothing_lossy), cmocka_unit_test(nor_while_a_lossy_one_runs),
                                       cmocka_unit_test(copies_keep_their_quality)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
