/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Jobs that wait for KV from the store: blocks come in windows and within a share of the pool, nobody waits for a fetch that is
 * given up, requests that begin alike share one, and the inline experiment holds everybody up but changes no token.
 */
#include "unit/sched/sched_support.h"

#define N 200u /* prompt: 6 whole chunks of 32, 12 blocks */
#define N_FETCHED 192u

/* Leaves n prompts of N tokens in the store, as another process would. */
static void fill_store(struct kni_fetcher *f, int32_t (*prompts)[N], uint32_t n)
{
    struct bed b;
    bed_open(&b, 64, 256, 4, false, f);
    for (uint32_t i = 0; i < n; i++) {
        struct kni_job job;
        make_prompt(prompts[i], N, (int32_t)(i * 13 + 1));
        submit(&job, &b, prompts[i], N, 1);
        run_until_idle(&b);
        done(&job, &b);
    }
    bed_close(&b);
    assert_int_equal(f->n_entries, n);
    f->n_begun = f->n_extends = f->n_waits = 0;
}

static void submit_computed(struct kni_job *job, struct bed *b, const int32_t *p, uint32_t n, uint32_t n_new)
{
    struct kni_job_opts o = {.tokens = p, .n_prompt = n, .max_new = n_new, .no_fetch = true, .no_publish = true};
    assert_int_equal(kni_job_init(job, b->pool, &o), KN_OK);
    assert_int_equal(kni_sched_submit(b->sched, job), KN_OK);
}

static uint32_t n_fetch_blocks(const struct bed *b)
{
    return kni_sched_get_stats(b->sched).n_fetch_blocks;
}

/* While a worker writes, the blocks belong to nobody else, and nobody waits: cancel, deadline, stop and removal return at once. */
static void test_nobody_waits_for_a_worker(void **state)
{
    (void)state;
    int32_t p[1][N], q[MAX_LEN];
    struct kni_fetcher *f = fetcher_open();
    struct bed b;
    struct kni_job a, c;
    fill_store(f, p, 1);
    make_prompt(q, MAX_LEN, 70);
    for (int how = 0; how < 4; how++) {
        f->opts = (struct kn_fake_opts){.chunk_ticks = 3, .end_refusals = 40};
        bed_open(&b, 26, 64, 4, false, f);
        job_init(&a, &b, p[0], N, 5, NULL);
        a.no_publish = true;
        a.deadline_ms = how == 1 ? 3600000 : 0;
        assert_int_equal(kni_sched_submit(b.sched, &a), KN_OK);
        while (a.stats.n_fetched < CHUNK)
            assert_int_equal(step(&b), KN_OK);
        uint32_t n_held = n_fetch_blocks(&b);
        assert_true(n_held >= 4);
        switch (how) {
        case 0: kni_sched_cancel(b.sched, &a); break;
        case 1: /* the clock is turned back an hour and more */
            a.submit_ns -= 3700000000000u;
            submit_computed(&c, &b, q, 10, 1);
            step(&b);
            assert_int_equal(a.status, KN_E_TIMEOUT);
            done(&c, &b);
            break;
        case 2: kni_sched_stop(b.sched, &a); break;
        default: kni_sched_remove(b.sched, &a); break;
        }
        assert_int_equal(a.seq.n_blocks, 0);
        assert_null(a.fetch);
        assert_int_equal(a.stats.fetch_wanted, 0);
        assert_int_equal(f->n_jobs, 1);
        assert_int_equal(n_fetch_blocks(&b), n_held);
        uint8_t states[26];
        uint32_t n_fetching = 0;
        kni_sched_get_blocks(b.sched, 0, 26, states);
        for (uint32_t i = 0; i < 26; i++)
            n_fetching += states[i] == KN_BLOCK_STATE_FETCHING;
        assert_int_equal(n_fetching, n_held);
        /* Needs more than what is free now: gets on, and the rest when the worker has let go. */
        submit_computed(&c, &b, q, 24 * 16, 10);
        for (uint32_t i = 0; !c.reason; i++) {
            assert_true(i < 1000);
            step(&b);
            assert_null(kni_sched_check(b.sched));
        }
        check_answer(&c);
        while (n_fetch_blocks(&b))
            step(&b);
        assert_int_equal(f->n_jobs, 0);
        done(&a, &b);
        done(&c, &b);
        bed_close(&b);
    }
    /* Closing with such leftovers. */
    bed_open(&b, 26, 64, 4, false, f);
    submit(&a, &b, p[0], N, 5);
    while (a.stats.n_fetched < CHUNK)
        step(&b);
    done(&a, &b);
    assert_int_equal(f->n_jobs, 1);
    kni_sched_drain(b.sched);
    assert_int_equal(f->n_jobs, 0);
    bed_close(&b);
    kni_fetcher_close(&f);
}

/* An older job that needs blocks takes them from a fetching one, which is computed later. */
static void test_preempted_while_fetching(void **state)
{
    (void)state;
    int32_t p[1][N], q[MAX_LEN];
    struct kni_fetcher *f = fetcher_open();
    struct bed b;
    struct kni_job a, c;
    fill_store(f, p, 1);
    make_prompt(q, MAX_LEN, 70);
    f->opts = (struct kn_fake_opts){.chunk_ticks = 30, .end_refusals = 7};
    bed_open(&b, 16, 64, 4, false, f);
    submit_computed(&c, &b, q, 80, 160); /* 15 blocks in the end */
    step(&b);
    submit(&a, &b, p[0], N, 5);
    uint32_t n = 0;
    while (!c.reason || !a.reason) {
        assert_true(++n < 100000);
        assert_int_equal(step(&b), KN_OK);
        assert_null(kni_sched_check(b.sched));
    }
    check_answer(&a);
    check_answer(&c);
    assert_true(a.stats.n_preempted >= 1);
    assert_int_equal(c.stats.n_preempted, 0);
    done(&a, &b);
    done(&c, &b);
    bed_close(&b);
    kni_fetcher_close(&f);
}

static void test_blocks_come_in_windows(void **state)
{
    (void)state;
    int32_t p[1][N];
    struct kni_fetcher *f = fetcher_open();
    struct bed b;
    struct kni_job a;
    fill_store(f, p, 1);
    f->opts.chunk_ticks = 2;
    bed_open_opts(&b, 32, 64, 4, false, f, (struct kni_sched_opts){.fetch_window_chunks = 2});
    submit(&a, &b, p[0], N, 5);
    uint32_t most = 0;
    while (!a.reason) {
        step(&b);
        uint32_t n = n_fetch_blocks(&b);
        assert_true(a.state != KNI_JOB_STATE_FETCHING || n <= a.stats.n_fetched / KNI_BLOCK_TOKENS + 4);
        most = n > most ? n : most;
    }
    assert_int_equal(most, N_FETCHED / KNI_BLOCK_TOKENS);
    assert_int_equal(f->n_extends, 5); /* 2 chunks, then one by one */
    assert_int_equal(a.stats.n_fetched, N_FETCHED);
    check_answer(&a);
    done(&a, &b);
    bed_close(&b);
    kni_fetcher_close(&f);
}

/* The pool has no further block: what arrived counts, the rest is computed, and nothing was cut by the store. */
static void test_pool_runs_out(void **state)
{
    (void)state;
    int32_t p[1][N], q[MAX_LEN];
    struct kni_fetcher *f = fetcher_open();
    struct bed b;
    struct kni_job a, c;
    fill_store(f, p, 1);
    make_prompt(q, MAX_LEN, 70);
    bed_open_opts(&b, 22, 64, 4, false, f, (struct kni_sched_opts){.fetch_window_chunks = 1});
    submit_computed(&c, &b, q, 200, 20); /* 13, 14 blocks */
    for (int i = 0; i < 5; i++)
        step(&b);
    submit(&a, &b, p[0], N, 5);
    run_until_idle(&b);
    check_answer(&a);
    check_answer(&c);
    assert_true(a.stats.n_fetched >= CHUNK && a.stats.n_fetched < N_FETCHED);
    assert_int_equal(kni_sched_get_stats(b.sched).n_fetches_cut, 0);
    assert_int_equal(a.stats.n_preempted + c.stats.n_preempted, 0);
    done(&a, &b);
    done(&c, &b);
    bed_close(&b);
    kni_fetcher_close(&f);
}

/* Six prompts of 12 blocks each in the store, and half of 52 blocks for fetches: two at a time, in order, while another decodes. */
static void test_cap(void **state)
{
    (void)state;
    int32_t p[6][N], q[64];
    struct kni_fetcher *f = fetcher_open();
    struct bed b;
    struct kni_job jobs[6], c;
    fill_store(f, p, 6);
    make_prompt(q, 64, 70);
    f->opts.chunk_ticks = 3;
    bed_open_opts(&b, 52, 64, 8, false, f, (struct kni_sched_opts){.fetch_pool_percent = 50});
    for (uint32_t i = 0; i < 6; i++)
        submit(&jobs[i], &b, p[i], N, 1);
    submit_computed(&c, &b, q, 20, 50);
    uint32_t n_ended = 0, most = 0;
    for (uint32_t i = 0; i < 50; i++) {
        step(&b);
        assert_int_equal(kni_job_n_generated(&c), i + 1);
        assert_null(kni_sched_check(b.sched));
        most = n_fetch_blocks(&b) > most ? n_fetch_blocks(&b) : most;
        assert_true(n_fetch_blocks(&b) <= 26);
        for (uint32_t j = 0; j < 6; j++)
            if (jobs[j].reason && j == n_ended)
                n_ended++;
        for (uint32_t j = n_ended + 2; j < 6; j++)
            assert_int_equal(jobs[j].stats.n_fetched, 0);
    }
    assert_int_equal(most, 24);
    run_until_idle(&b);
    for (uint32_t i = 0; i < 6; i++) {
        assert_int_equal(jobs[i].stats.n_fetched, N_FETCHED);
        check_answer(&jobs[i]);
        done(&jobs[i], &b);
    }
    done(&c, &b);
    bed_close(&b);
    /* A cap below one prompt cuts the promise, below one chunk it is a chunk, and who is alone need not mind until somebody comes. */
    static const uint32_t percents[] = {20, 1, 20, 20}, n_want[] = {2 * CHUNK, CHUNK, N_FETCHED, 3 * CHUNK};
    for (unsigned i = 0; i < 4; i++) {
        bed_open_opts(&b, 29, 64, 8, false, f, (struct kni_sched_opts){.fetch_pool_percent = percents[i], .fetch_window_chunks = 1});
        if (i < 2)
            submit_computed(&c, &b, q, 20, 50);
        submit(&jobs[0], &b, p[0], N, 1);
        while (i == 3 && jobs[0].stats.n_fetched < 2 * CHUNK)
            step(&b);
        if (i == 3)
            submit_computed(&c, &b, q, 20, 50);
        run_until_idle(&b);
        assert_int_equal(jobs[0].stats.n_fetched, n_want[i]);
        check_answer(&jobs[0]);
        done(&jobs[0], &b);
        if (i != 2)
            done(&c, &b);
        bed_close(&b);
    }
    kni_fetcher_close(&f);
}

/* A store that never answers keeps the share: who has waited long enough computes, also when nothing else runs. */
static void test_turn_does_not_come(void **state)
{
    (void)state;
    int32_t p[2][N];
    struct kni_fetcher *f = fetcher_open();
    struct bed b;
    struct kni_job a, c;
    fill_store(f, p, 2);
    f->opts.chunk_ticks = 1000000000;
    bed_open_opts(&b, 52, 64, 8, false, f, (struct kni_sched_opts){.fetch_pool_percent = 25, .fetch_turn_ms = 2});
    submit(&a, &b, p[0], N, 1);
    submit(&c, &b, p[1], N, 1);
    for (uint32_t i = 0; !c.reason; i++) {
        assert_true(i < 100000000);
        step(&b);
    }
    check_answer(&c);
    assert_int_equal(c.stats.n_fetched, 0);
    assert_int_equal(a.state, KNI_JOB_STATE_FETCHING);
    done(&a, &b);
    done(&c, &b);
    bed_close(&b);
    kni_fetcher_close(&f);
}

/* Five requests for one stored prefix fetch it once. When the store has nothing they ask once. When the one that fetches is
 * cancelled another does. */
static void test_one_fetch_for_all(void **state)
{
    (void)state;
    int32_t p[1][N], q[N];
    struct kni_fetcher *f = fetcher_open();
    struct bed b;
    struct kni_job jobs[5];
    fill_store(f, p, 1);
    for (int round = 0; round < 3; round++) {
        const int32_t *prompt = round == 1 ? q : p[0];
        make_prompt(q, N, 50);
        f->opts = (struct kn_fake_opts){.lookup_ticks = 3, .chunk_ticks = 3};
        f->n_begun = 0;
        bed_open(&b, 64, 64, 8, false, f);
        for (uint32_t i = 0; i < 5; i++)
            submit(&jobs[i], &b, prompt, N, 3);
        for (uint32_t i = 0; i < 6; i++)
            step(&b);
        if (round == 2)
            kni_sched_cancel(b.sched, &jobs[0]);
        run_until_idle(&b);
        assert_int_equal(f->n_begun, round == 2 ? 2 : 1);
        struct kni_sched_stats s = kni_sched_get_stats(b.sched);
        assert_int_equal(s.n_fetched_tokens, round == 1 ? 0 : N_FETCHED);
        for (uint32_t i = round == 2; i < 5; i++) {
            check_answer(&jobs[i]);
            assert_int_equal(jobs[i].n_known, jobs[i].n_max);
        }
        assert_int_equal(s.n_computed_tokens, round == 1 ? N + 4 * (N - N_FETCHED) : (N - N_FETCHED) * (round == 2 ? 4 : 5));
        for (uint32_t i = 0; i < 5; i++)
            done(&jobs[i], &b);
        bed_close(&b);
    }
    kni_fetcher_close(&f);
}

/* The experiment: a step does not return while a fetch is under way, so a decoding request stands still; the tokens are the same. */
static void test_inline(void **state)
{
    (void)state;
    int32_t p[2][N], q[64];
    struct kni_fetcher *f = fetcher_open();
    struct bed b;
    struct kni_job a, c, d;
    fill_store(f, p, 2);
    make_prompt(q, 64, 70);
    f->opts = (struct kn_fake_opts){.lookup_ticks = 20, .chunk_ticks = 20};
    for (int is_inline = 0; is_inline < 2; is_inline++) {
        bed_open_opts(&b, 52, 64, 8, false, f, (struct kni_sched_opts){.fetch_inline = is_inline, .fetch_pool_percent = 25});
        submit_computed(&c, &b, q, 20, 40);
        step(&b);
        submit(&a, &b, p[0], N, 1);
        submit(&d, &b, p[1], N, 1);
        f->n_waits = 0;
        step(&b);
        assert_int_equal(kni_sched_get_stats(b.sched).n_fetching, is_inline ? 0 : 2);
        assert_true(is_inline ? f->n_waits > 100 : f->n_waits == 0);
        assert_int_equal(kni_job_n_generated(&c), 2);
        run_until_idle(&b);
        assert_int_equal(a.stats.n_fetched, N_FETCHED);
        assert_int_equal(d.stats.n_fetched, N_FETCHED);
        check_answer(&a);
        check_answer(&c);
        check_answer(&d);
        done(&a, &b);
        done(&c, &b);
        done(&d, &b);
        bed_close(&b);
    }
    kni_fetcher_close(&f);
}

/* A store that takes for ever to write: publishes that have not begun give way, and requests go on. */
static void test_publishes_give_way(void **state)
{
    (void)state;
    int32_t q[MAX_LEN];
    struct kni_fetcher *f = fetcher_open();
    struct bed b;
    struct kni_job job;
    f->opts.publish_ticks = 1000000000;
    bed_open(&b, 32, 64, 2, false, f);
    for (int32_t i = 0; i < 10; i++) {
        make_prompt(q, MAX_LEN, i * 9 + 1);
        struct kni_job_opts o = {.tokens = q, .n_prompt = 200, .max_new = 10, .no_fetch = true};
        assert_int_equal(kni_job_init(&job, b.pool, &o), KN_OK);
        assert_int_equal(kni_sched_submit(b.sched, &job), KN_OK);
        for (uint32_t n = 0; !job.reason; n++) {
            assert_true(n < 1000);
            assert_int_equal(step(&b), KN_OK);
            assert_int_equal(f->n_waits, 0);
        }
        check_answer(&job);
        done(&job, &b);
    }
    assert_true(f->n_withdrawn >= 7);
    assert_true(kni_sched_get_stats(b.sched).n_publish_blocks <= 24); /* the one under way, and the last */
    f->queue->ticks = 0;
    f->opts.publish_ticks = 0;
    for (struct kn_fake_publish *q2 = f->queue; q2; q2 = q2->next)
        q2->ticks = 0;
    bed_close(&b);
    kni_fetcher_close(&f);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_nobody_waits_for_a_worker), cmocka_unit_test(test_preempted_while_fetching), cmocka_unit_test(test_blocks_come_in_windows),
        cmocka_unit_test(test_pool_runs_out),             cmocka_unit_test(test_cap),                      cmocka_unit_test(test_turn_does_not_come),
        cmocka_unit_test(test_one_fetch_for_all),         cmocka_unit_test(test_inline),                   cmocka_unit_test(test_publishes_give_way),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
