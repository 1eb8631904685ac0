/* SPDX-License-Identifier: Apache-2.0 */
/* A step that is under way between two calls (support/delayed_run.h): who may come, go and take what meanwhile. */
#include "unit/sched/sched_support.h"

#include <math.h>

#include "base/clock.h"
#include "support/delayed_run.h"

#define POLLS 5

static void open_delayed(struct bed *b, uint32_t n_blocks, uint32_t max_running, struct kni_fetcher *f,
                         struct kni_sched_opts so)
{
    kn_delayed_inner = &kn_fake_ops;
    kn_delayed_polls = POLLS;
    bed_ops = &kn_delayed_ops;
    bed_open_opts(b, n_blocks, 64, max_running, false, f, so);
}

/* One call that launches. */
static void launch(struct bed *b)
{
    assert_false(kni_sched_is_under_way(b->sched));
    assert_int_equal(part_of_step(b), KN_OK);
    assert_true(kni_sched_is_under_way(b->sched));
}

static void finish_step(struct bed *b)
{
    while (kni_sched_is_under_way(b->sched))
        assert_int_equal(part_of_step(b), KN_OK);
}

/* As many calls as the device says; each looks once. Results come with the last, and not before. */
static void test_polled_once_a_call(void **state)
{
    (void)state;
    int32_t p[100];
    make_prompt(p, 100, 1);
    struct bed b;
    struct kni_job a;
    open_delayed(&b, 16, 4, NULL, (struct kni_sched_opts){0});
    submit(&a, &b, p, 40, 3);
    launch(&b); /* has looked once */
    for (uint32_t i = 1; i < POLLS; i++) {
        assert_int_equal(part_of_step(&b), KN_OK);
        assert_true(kni_sched_is_under_way(b.sched));
        assert_int_equal(a.seq.n_tokens, 0);
    }
    assert_int_equal(part_of_step(&b), KN_OK);
    assert_false(kni_sched_is_under_way(b.sched)); /* and none is launched: its logits would be gone */
    assert_int_equal(kni_job_n_generated(&a), 1);
    assert_int_equal(a.logits_step, kni_sched_n_steps(b.sched));
    launch(&b);
    assert_int_not_equal(a.logits_step, kni_sched_n_steps(b.sched));
    run_until_idle(&b);
    check_answer(&a);
    done(&a, &b);
    bed_close(&b);
}

/* Cancelled, closed and freed in the middle: its blocks stay with the step, and nobody gets them before it is over. */
static void test_cancel_keeps_blocks(void **state)
{
    (void)state;
    int32_t p[100], q[100];
    make_prompt(p, 100, 1);
    make_prompt(q, 100, 50);
    struct bed b;
    struct kni_job a, c;
    open_delayed(&b, 7, 4, NULL, (struct kni_sched_opts){0});
    struct kni_sampler sampler = {.n_vocab = KN_FAKE_VOCAB, .n_draws = 5};
    submit(&a, &b, p, 60, 20); /* 4 blocks for the prompt */
    a.sampler = &sampler;
    launch(&b);
    assert_int_equal(kni_pool_available(b.pool), 3);
    kni_sched_cancel(b.sched, &a);
    assert_int_equal(a.reason, KN_STOP_REASON_CANCELLED);
    assert_int_equal(a.seq.n_blocks, 0);
    done(&a, &b);
    memset(&a, 0xa5, sizeof a);
    sampler = (struct kni_sampler){.n_draws = 77}; /* somebody else's by now */
    memset(p, 0xff, sizeof p);
    assert_int_equal(kni_pool_available(b.pool), 3);
    assert_null(kni_sched_check(b.sched));
    submit(&c, &b, q, 100, 10); /* 7 blocks: all */
    for (uint32_t i = 1; i < POLLS; i++) {
        assert_int_equal(part_of_step(&b), KN_OK);
        assert_int_equal(kni_pool_available(b.pool), 3);
    }
    finish_step(&b);
    assert_int_equal(sampler.n_draws, 77);
    assert_int_equal(kni_pool_available(b.pool), 7);
    run_until_idle(&b);
    assert_int_equal(c.reason, KN_STOP_REASON_LENGTH);
    check_answer(&c);
    done(&c, &b);
    bed_close(&b);
}

/* Several share a step: one is cancelled, one stopped, one late, one goes on. Only the last one has what came of it. */
static void test_some_leave(void **state)
{
    (void)state;
    int32_t p[4][100];
    struct bed b;
    struct kni_job jobs[4];
    struct kni_fetcher *f = fetcher_open();
    open_delayed(&b, 48, 4, f, (struct kni_sched_opts){0});
    for (uint32_t i = 0; i < 4; i++) {
        make_prompt(p[i], 100, (int32_t)(i * 9 + 1));
        job_init(&jobs[i], &b, p[i], 40, 20, NULL);
        jobs[i].deadline_ms = i == 2 ? 3600000 : 0;
        assert_int_equal(kni_sched_submit(b.sched, &jobs[i]), KN_OK);
    }
    for (uint32_t i = 0; i < 4; i++)
        while (kni_job_n_generated(&jobs[i]) < 3)
            step(&b);
    launch(&b);
    uint32_t n_known[4];
    for (uint32_t i = 0; i < 4; i++)
        n_known[i] = jobs[i].n_known;
    kni_sched_cancel(b.sched, &jobs[0]);
    kni_sched_stop(b.sched, &jobs[1]);
    jobs[2].submit_ns -= 3700000000000u;
    assert_int_equal(jobs[1].reason, KN_STOP_REASON_STOP);
    assert_int_equal(kni_sched_get_stats(b.sched).n_publish_blocks, 2); /* its whole chunk */
    finish_step(&b);
    assert_int_equal(jobs[2].reason, KN_STOP_REASON_ERROR);
    assert_int_equal(jobs[2].status, KN_E_TIMEOUT);
    for (uint32_t i = 0; i < 4; i++) {
        assert_int_equal(jobs[i].n_known, n_known[i] + (i == 3));
        check_answer(&jobs[i]);
    }
    run_until_idle(&b);
    check_answer(&jobs[3]);
    assert_int_equal(jobs[3].reason, KN_STOP_REASON_LENGTH);
    for (uint32_t i = 0; i < 4; i++)
        done(&jobs[i], &b);
    bed_close(&b);
    kni_fetcher_close(&f);
}

/* A stopped job keeps its blocks until others need them; the one that the step still writes is not given away with
 * them. */
static void test_finished_gives_way(void **state)
{
    (void)state;
    int32_t p[100], q[100];
    make_prompt(p, 100, 1);
    make_prompt(q, 100, 50);
    struct bed b;
    struct kni_job a, c;
    open_delayed(&b, 4, 4, NULL, (struct kni_sched_opts){0});
    submit(&a, &b, p, 40, 20);
    step(&b);
    launch(&b);
    kni_sched_stop(b.sched, &a);
    submit(&c, &b, q, 60, 4); /* 4 blocks */
    assert_int_equal(part_of_step(&b), KN_OK);
    assert_true(kni_sched_is_under_way(b.sched));
    assert_true(kni_pool_available(b.pool) <= 1);
    run_until_idle(&b); /* the pattern in the blocks is looked for at the end of the step */
    assert_true(a.kv_dropped);
    check_answer(&a);
    check_answer(&c);
    done(&a, &b);
    done(&c, &b);
    bed_close(&b);
}

/* Whoever comes while a step is under way begins its fetch at once. */
static void test_newcomer_fetches(void **state)
{
    (void)state;
    int32_t p[100], q[100];
    make_prompt(p, 100, 1);
    make_prompt(q, 100, 50);
    struct kni_fetcher *f = fetcher_open();
    struct bed b;
    struct kni_job a, c;
    open_delayed(&b, 48, 4, f, (struct kni_sched_opts){0});
    submit(&c, &b, q, 90, 2); /* fills the store */
    run_until_idle(&b);
    done(&c, &b);
    bed_close(&b);
    open_delayed(&b, 48, 4, f, (struct kni_sched_opts){0});
    kn_delayed_polls = 40;
    submit(&a, &b, p, 40, 4);
    while (!kni_sched_is_under_way(b.sched))
        assert_int_equal(part_of_step(&b), KN_OK);
    uint32_t n_begun = f->n_begun;
    submit(&c, &b, q, 90, 2);
    for (uint32_t i = 0; i < 20; i++)
        assert_int_equal(part_of_step(&b), KN_OK);
    assert_true(kni_sched_is_under_way(b.sched));
    assert_int_equal(f->n_begun, n_begun + 1);
    assert_int_equal(c.stats.n_fetched, 64); /* and ends it: the step holds up nobody */
    run_until_idle(&b);
    check_answer(&a);
    check_answer(&c);
    done(&a, &b);
    done(&c, &b);
    bed_close(&b);
    kni_fetcher_close(&f);
}

/* A failing step fails those that are still in it. */
static void test_step_fails(void **state)
{
    (void)state;
    int32_t p[100], q[100];
    make_prompt(p, 100, 1);
    make_prompt(q, 100, 50);
    struct bed b;
    struct kni_job a, c;
    open_delayed(&b, 16, 4, NULL, (struct kni_sched_opts){0});
    submit(&a, &b, p, 30, 4);
    submit(&c, &b, q, 30, 4);
    b.fake->fail_status = KN_E_IO;
    launch(&b);
    kni_sched_cancel(b.sched, &a);
    finish_step(&b);
    assert_int_equal(a.status, KN_E_CANCELLED);
    assert_int_equal(c.reason, KN_STOP_REASON_ERROR);
    assert_int_equal(c.status, KN_E_IO);
    done(&a, &b);
    done(&c, &b);
    b.fake->fail_status = KN_OK;
    submit(&a, &b, p, 30, 4);
    run_until_idle(&b);
    check_answer(&a);
    done(&a, &b);
    bed_close(&b);
}

static enum kn_status check_status;
static enum kn_status check(void *user)
{
    (void)user;
    return check_status;
}

/* The model's files change: all end at once, the step goes on over blocks that nobody gets. */
static void test_model_changes(void **state)
{
    (void)state;
    int32_t p[100];
    make_prompt(p, 100, 1);
    struct bed b;
    struct kni_job a, c;
    check_status = KN_OK;
    open_delayed(&b, 16, 1, NULL, (struct kni_sched_opts){.check = check});
    submit(&a, &b, p, 60, 4);
    submit(&c, &b, p, 30, 4);
    launch(&b);
    check_status = KN_E_MISMATCH;
    assert_int_equal(part_of_step(&b), KN_OK);
    assert_true(kni_sched_is_under_way(b.sched));
    assert_int_equal(a.status, KN_E_MISMATCH);
    assert_int_equal(c.status, KN_E_MISMATCH);
    assert_int_equal(kni_pool_available(b.pool), 12);
    done(&a, &b);
    done(&c, &b);
    finish_step(&b);
    assert_int_equal(part_of_step(&b), KN_AGAIN);
    bed_close(&b);
}

/* Others use the run once it is free, and closing waits. */
static void test_settle_and_drain(void **state)
{
    (void)state;
    int32_t p[100];
    make_prompt(p, 100, 1);
    struct bed b;
    struct kni_job a;
    uint8_t states[8];
    open_delayed(&b, 8, 4, NULL, (struct kni_sched_opts){0});
    kn_delayed_polls = 200;
    submit(&a, &b, p, 60, 4);
    launch(&b);
    assert_int_equal(kni_run_begin(b.run, NULL, 0), KN_E_STATE);
    assert_int_equal(kni_run_step(b.run, NULL, 0), KN_E_STATE);
    kni_sched_get_blocks(b.sched, 0, 8, states);
    for (uint32_t i = 0; i < 8; i++) /* held by the job and by its step: nobody shares it */
        assert_int_equal(states[i], i < 4 ? KN_BLOCK_STATE_HELD : KN_BLOCK_STATE_FREE);
    uint64_t before = kni_now_ns();
    kni_sched_settle(b.sched);
    assert_true(kni_now_ns() - before > 180 * 50000u); /* it has slept, not spun */
    assert_false(kni_sched_is_under_way(b.sched));
    assert_int_equal(kni_job_n_generated(&a), 1);
    assert_int_equal(kni_run_begin(b.run, NULL, 0), KN_OK);
    launch(&b);
    done(&a, &b);
    assert_true(kni_pool_available(b.pool) < 8);
    kni_sched_drain(b.sched);
    assert_false(kni_sched_is_under_way(b.sched));
    assert_int_equal(kni_pool_available(b.pool), 8);
    submit(&a, &b, p, 60, 4);
    launch(&b);
    done(&a, &b);
    bed_close(&b);
}

/* What an item does not want does not come; the run's owner may leave a step to kni_run_close. */
static void test_wants(void **state)
{
    (void)state;
    int32_t p[32];
    make_prompt(p, 32, 1);
    struct bed b;
    float logits[2 * KN_FAKE_VOCAB];
    uint32_t ids[2];
    open_delayed(&b, 4, 4, NULL, (struct kni_sched_opts){0});
    kni_pool_take(b.pool, &ids[0]);
    kni_pool_take(b.pool, &ids[1]);
    struct kni_run_row row = {.token = -1};
    const struct kni_kv_view kv = kni_pool_view(b.pool, ids, 2);
    struct kni_run_item it = {
        .kv = kv, .tokens = p, .n_tokens = 20, .want = KNI_RUN_WANT_LOGITS, .n_logits = 2, .logits = logits};
    assert_int_equal(kni_run_step(b.run, &it, 1), KN_OK);
    assert_true(isfinite(logits[0]) && isfinite(logits[2 * KN_FAKE_VOCAB - 1]));
    it = (struct kni_run_item){.kv = kv, .tokens = p + 20, .n_tokens = 1, .first_pos = 20, .logits = logits};
    it.want = KNI_RUN_WANT_ROWS;
    it.n_logits = 1;
    it.rows = &row;
    assert_int_equal(kni_run_step(b.run, &it, 1), KN_OK);
    assert_true(row.token >= 0);
    assert_true(isnan(logits[0]));
    row.token = -1;
    logits[0] = 7;
    it.first_pos++;
    assert_int_equal(kni_run_begin(b.run, &it, 1), KN_OK);
    assert_int_equal(kni_run_try_end(b.run), KN_AGAIN);
    kni_run_forget(b.run, 0);
    kni_run_close(&b.run);
    assert_true(row.token == -1 && logits[0] == 7); /* forgotten: untouched */
    kni_pool_unref(b.pool, ids[0]);
    kni_pool_unref(b.pool, ids[1]);
    kni_sched_close(&b.sched);
    kni_pool_close(&b.pool);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_polled_once_a_call),
        cmocka_unit_test(test_cancel_keeps_blocks),
        cmocka_unit_test(test_some_leave),
        cmocka_unit_test(test_finished_gives_way),
        cmocka_unit_test(test_newcomer_fetches),
        cmocka_unit_test(test_step_fails),
        cmocka_unit_test(test_model_changes),
        cmocka_unit_test(test_settle_and_drain),
        cmocka_unit_test(test_wants),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
