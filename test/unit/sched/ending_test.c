/* SPDX-License-Identifier: Apache-2.0 */
/* How jobs end: deadlines in every state, chosen stops, cancels; what stays of them; and the check that finds a lost block. */
#include "unit/sched/sched_support.h"

#include <time.h>

#include "base/clock.h"

static void sleep_past(const struct kni_job *job)
{
    while (kni_now_ns() <= kni_job_due_ns(job))
        nanosleep(&(struct timespec){.tv_nsec = 500000}, NULL);
}

static void submit_opts(struct kni_job *job, struct bed *b, struct kni_job_opts o)
{
    assert_int_equal(kni_job_init(job, b->pool, &o), KN_OK);
    assert_int_equal(kni_sched_submit(b->sched, job), KN_OK);
}

static void assert_timeout(const struct kni_job *job)
{
    assert_int_equal(job->reason, KN_STOP_REASON_ERROR);
    assert_int_equal(job->status, KN_E_TIMEOUT);
    assert_int_equal(job->seq.n_blocks, 0);
}

/* A place in the steps is taken: the second job waits for it, the third has no deadline and gets it. */
static void test_late_while_waiting(void **state)
{
    (void)state;
    int32_t p[64];
    make_prompt(p, 64, 1);
    struct bed b;
    struct kni_job a, late, c;
    bed_open(&b, 48, 64, 1, false, NULL);
    submit(&a, &b, p, 20, 40);
    step(&b);
    submit_opts(&late, &b, (struct kni_job_opts){.tokens = p, .n_prompt = 30, .max_new = 4, .wait_ms = 1});
    submit(&c, &b, p, 40, 4);
    assert_int_equal(kni_sched_get_stats(b.sched).n_waiting, 2);
    sleep_past(&late);
    assert_int_equal(step(&b), KN_OK);
    assert_timeout(&late);
    run_until_idle(&b);
    check_answer(&a);
    check_answer(&c);
    assert_int_equal(a.reason, KN_STOP_REASON_LENGTH);
    assert_int_equal(c.reason, KN_STOP_REASON_LENGTH);
    done(&a, &b);
    done(&late, &b);
    done(&c, &b);
    bed_close(&b);
}

static void test_late_while_fetching(void **state)
{
    (void)state;
    int32_t p[100];
    make_prompt(p, 100, 1);
    struct kni_fetcher *f = fetcher_open();
    struct bed b;
    struct kni_job a;
    f->opts.lookup_ticks = 1000000000;
    bed_open(&b, 48, 64, 4, false, f);
    submit_opts(&a, &b, (struct kni_job_opts){.tokens = p, .n_prompt = 100, .max_new = 4, .deadline_ms = 20});
    uint32_t n = 0;
    while (step(&b) == KN_OK && ++n < 1000000)
        assert_int_equal(a.reason ? KNI_JOB_STATE_FINISHED : KNI_JOB_STATE_FETCHING, a.state);
    assert_timeout(&a);
    assert_int_equal(f->n_jobs, 0);
    done(&a, &b);
    bed_close(&b);
    kni_fetcher_close(&f);
}

/* wait_ms is over with the first token, deadline_ms is not. */
static void test_late_while_running(void **state)
{
    (void)state;
    int32_t p[64];
    make_prompt(p, 64, 1);
    struct bed b;
    struct kni_job a, c, d;
    bed_open(&b, 48, 8, 4, false, NULL);
    submit_opts(&a, &b, (struct kni_job_opts){.tokens = p, .n_prompt = 4, .max_new = 40, .wait_ms = 60000});
    submit_opts(&c, &b, (struct kni_job_opts){.tokens = p, .n_prompt = 4, .max_new = 40, .deadline_ms = 50});
    submit_opts(&d, &b, (struct kni_job_opts){.tokens = p, .n_prompt = 64, .max_new = 4, .wait_ms = 40}); /* in the middle of its prompt */
    while (kni_job_n_generated(&a) < 2 || kni_job_n_generated(&c) < 2)
        assert_int_equal(step(&b), KN_OK);
    assert_int_equal(kni_job_due_ns(&a), UINT64_MAX);
    assert_int_equal(d.state, KNI_JOB_STATE_RUNNING);
    assert_int_equal(kni_job_n_generated(&d), 0);
    sleep_past(&c);
    sleep_past(&d);
    step(&b);
    assert_timeout(&c);
    assert_timeout(&d);
    assert_true(c.n_known > c.n_prompt); /* what was generated can be read */
    run_until_idle(&b);
    check_answer(&a);
    assert_int_equal(a.reason, KN_STOP_REASON_LENGTH);
    done(&a, &b);
    done(&c, &b);
    done(&d, &b);
    bed_close(&b);
}

/* Stopped from outside: published as if the model had stopped; in a queue there is nothing to publish. */
static void test_stop(void **state)
{
    (void)state;
    int32_t p[100];
    make_prompt(p, 100, 1);
    struct kni_fetcher *f = fetcher_open();
    struct bed b;
    struct kni_job a, c;
    f->opts.publish_ticks = 3;
    bed_open(&b, 48, 64, 1, false, f);
    submit(&a, &b, p, 40, 60);
    while (kni_job_n_generated(&a) < 5)
        assert_int_equal(step(&b), KN_OK);
    submit(&c, &b, p, 20, 60);
    step(&b);
    kni_sched_stop(b.sched, &a);
    kni_sched_stop(b.sched, &c);
    assert_int_equal(a.reason, KN_STOP_REASON_STOP);
    assert_int_equal(c.reason, KN_STOP_REASON_STOP);
    assert_int_equal(kni_job_n_generated(&a), 6);
    check_answer(&a);
    assert_int_equal(kni_job_n_generated(&c), 0);
    assert_int_equal(kni_sched_get_stats(b.sched).n_publish_blocks, 2); /* one chunk of a */
    kni_sched_stop(b.sched, &a);
    kni_sched_cancel(b.sched, &a);
    assert_int_equal(a.reason, KN_STOP_REASON_STOP);
    done(&a, &b);
    done(&c, &b);
    assert_null(kni_sched_check(b.sched));
    while (kni_sched_get_stats(b.sched).n_publish_blocks) /* idle steps give the blocks back */
        assert_int_equal(step(&b), KN_AGAIN);
    assert_int_equal(f->n_entries, 1);
    bed_close(&b);
    kni_fetcher_close(&f);
}

/* The books of prompt tokens balance, whatever came from where. */
static void test_counts(void **state)
{
    (void)state;
    int32_t p[200];
    make_prompt(p, 200, 1);
    struct kni_fetcher *f = fetcher_open();
    struct bed b;
    struct kni_job a, c;
    bed_open(&b, 48, 64, 4, false, f);
    submit(&a, &b, p, 150, 10);
    run_until_idle(&b);
    done(&a, &b);
    bed_close(&b);
    bed_open(&b, 48, 64, 4, false, f);
    submit(&a, &b, p, 120, 10); /* 96 fetched, 24 computed */
    run_until_idle(&b);
    submit(&c, &b, p, 120, 10); /* 119 cached, 1 computed */
    run_until_idle(&b);
    struct kni_sched_stats s = kni_sched_get_stats(b.sched);
    assert_int_equal(s.n_prompt_tokens, 240);
    assert_int_equal(s.n_fetched_tokens, 96);
    assert_int_equal(s.n_cached_tokens, 119);
    assert_int_equal(s.n_computed_tokens, 25);
    assert_int_equal(s.n_generated_tokens, 20);
    assert_int_equal(s.n_fetches, 1);
    assert_int_equal(s.n_fetches_cut, 0);
    assert_int_equal(s.fetch_bytes, 96);
    assert_int_equal(s.n_preemptions, 0);
    done(&a, &b);
    done(&c, &b);
    bed_close(&b);
    kni_fetcher_close(&f);
}

/* States of blocks, and a reference that nobody knows. */
static void test_blocks_and_check(void **state)
{
    (void)state;
    int32_t p[100];
    make_prompt(p, 100, 1);
    struct bed b;
    struct kni_job a, c;
    uint8_t states[12];
    uint32_t n[5] = {0};
    bed_open(&b, 10, 64, 4, false, NULL);
    submit(&a, &b, p, 40, 1);
    run_until_idle(&b);
    submit(&c, &b, p, 33, 1);
    step(&b);
    kni_sched_get_blocks(b.sched, 0, 12, states);
    for (uint32_t i = 0; i < 12; i++)
        n[states[i]]++;
    assert_int_equal(n[KN_BLOCK_STATE_SHARED], 2);
    assert_true(n[KN_BLOCK_STATE_HELD] >= 1);
    assert_int_equal(states[10] + states[11], 0);
    done(&a, &b);
    done(&c, &b);
    kni_sched_get_blocks(b.sched, 0, 12, states);
    memset(n, 0, sizeof n);
    for (uint32_t i = 0; i < 12; i++)
        n[states[i]]++;
    assert_int_equal(n[KN_BLOCK_STATE_CACHED], kni_pool_get_stats(b.pool).n_cached_blocks);
    assert_int_equal(n[KN_BLOCK_STATE_CACHED] + n[KN_BLOCK_STATE_FREE], 12);
    assert_null(kni_sched_check(b.sched));
    uint32_t lost;
    assert_true(kni_pool_take(b.pool, &lost));
    assert_non_null(kni_sched_check(b.sched));
    kni_pool_unref(b.pool, lost);
    assert_null(kni_sched_check(b.sched));
    bed_close(&b);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_late_while_waiting), cmocka_unit_test(test_late_while_fetching), cmocka_unit_test(test_late_while_running),
        cmocka_unit_test(test_stop),               cmocka_unit_test(test_counts),              cmocka_unit_test(test_blocks_and_check),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
