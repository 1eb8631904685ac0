/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The scheduler on doubles (sched_support.h). Directed cases, then some hundred random loads.
 */
#include "unit/sched/sched_support.h"

static void test_chunk_sizes(void **state)
{
    (void)state;
    int32_t p[300];
    make_prompt(p, 300, 1);
    static const uint32_t chunks[] = {1, 7, 256, 1000};
    for (unsigned i = 0; i < 4; i++) {
        struct bed b;
        struct kni_job job;
        bed_open(&b, 24, chunks[i], 4, false, NULL);
        submit(&job, &b, p, 300, 20);
        run_until_idle(&b);
        assert_int_equal(job.state, KNI_JOB_STATE_FINISHED);
        assert_int_equal(job.reason, KN_STOP_REASON_LENGTH);
        assert_int_equal(kni_job_n_generated(&job), 20);
        check_answer(&job);
        assert_true(b.fake->largest_step <= (chunks[i] < 300 ? chunks[i] : 300));
        assert_int_equal(kni_sched_get_stats(b.sched).n_step_tokens, 300 + 19);
        done(&job, &b);
        bed_close(&b);
    }
}

/* The prompt of one request does not hold up the decode of another, and both share steps. */
static void test_batch(void **state)
{
    (void)state;
    int32_t p[300], q[300];
    make_prompt(p, 300, 1);
    make_prompt(q, 300, 5);
    struct bed b;
    struct kni_job a, c;
    bed_open(&b, 48, 16, 4, false, NULL);
    submit(&a, &b, p, 20, 30);
    step(&b);
    step(&b);
    assert_int_equal(kni_job_n_generated(&a), 1);
    submit(&c, &b, q, 300, 10);
    for (uint32_t i = 0; i < 10; i++) {
        step(&b);
        assert_int_equal(kni_job_n_generated(&a), 2 + i);
        assert_int_equal(c.seq.n_tokens, 15 * (i + 1));
    }
    run_until_idle(&b);
    check_answer(&a);
    check_answer(&c);
    assert_true(b.fake->n_mixed > 10);
    assert_true(b.fake->largest_step <= 16);
    done(&a, &b);
    done(&c, &b);
    bed_close(&b);
}

static void test_prefix_reuse(void **state)
{
    (void)state;
    int32_t p[300], q[300];
    make_prompt(p, 300, 1);
    memcpy(q, p, sizeof q);
    q[205] = 96; /* inside block 12 */
    struct bed b;
    struct kni_job a, c;
    bed_open(&b, 48, 64, 4, false, NULL);
    submit(&a, &b, p, 300, 8);
    run_until_idle(&b);
    submit(&c, &b, q, 300, 8);
    run_until_idle(&b);
    check_answer(&a);
    check_answer(&c);
    assert_int_equal(a.stats.n_cached, 0);
    assert_int_equal(c.stats.n_cached, 205);
    assert_int_equal(c.stats.n_done, 300);
    done(&c, &b);
    submit(&c, &b, p, 300, 8); /* all of it is known: one token is computed again */
    run_until_idle(&b);
    check_answer(&c);
    assert_int_equal(c.stats.n_cached, 299);
    done(&a, &b);
    done(&c, &b);
    bed_close(&b);
}

static void test_stop_and_run_error(void **state)
{
    (void)state;
    int32_t p[64];
    make_prompt(p, 40, 1);
    kn_fake_generate(p, 40, 20);
    struct bed b;
    struct kni_job a;
    bed_open(&b, 8, 64, 4, false, NULL);
    stop_token = p[45];
    submit(&a, &b, p, 40, 20);
    run_until_idle(&b);
    stop_token = -1;
    assert_int_equal(a.reason, KN_STOP_REASON_STOP);
    assert_true(kni_job_n_generated(&a) <= 5); /* the stop token is not kept */
    check_answer(&a);
    done(&a, &b);
    b.fake->fail_status = KN_E_NOMEM;
    submit(&a, &b, p, 40, 20);
    run_until_idle(&b);
    assert_int_equal(a.reason, KN_STOP_REASON_ERROR);
    assert_int_equal(a.status, KN_E_NOMEM);
    done(&a, &b);
    b.fake->fail_status = KN_OK; /* and it serves on */
    submit(&a, &b, p, 40, 20);
    run_until_idle(&b);
    assert_int_equal(a.reason, KN_STOP_REASON_LENGTH);
    check_answer(&a);
    done(&a, &b);
    bed_close(&b);
}

static void test_too_big_for_the_pool(void **state)
{
    (void)state;
    int32_t p[100];
    make_prompt(p, 100, 1);
    struct bed b;
    struct kni_job a;
    bed_open(&b, 6, 64, 4, false, NULL);
    job_init(&a, &b, p, 90, 8, NULL); /* 97 positions: 7 blocks */
    assert_int_equal(kni_sched_submit(b.sched, &a), KN_E_FULL);
    kni_job_fini(&a);
    submit(&a, &b, p, 90, 7); /* 96: just fits */
    run_until_idle(&b);
    check_answer(&a);
    done(&a, &b);
    bed_close(&b);
}

/* Two requests that do not fit together: the younger is thrown out, computed again, and both are right. */
static void test_preemption(void **state)
{
    (void)state;
    int32_t p[100], q[100];
    make_prompt(p, 100, 1);
    make_prompt(q, 100, 50);
    struct bed b;
    struct kni_job a, c;
    bed_open(&b, 8, 64, 4, true, NULL); /* without index nothing comes back by itself */
    submit(&a, &b, p, 40, 60);
    submit(&c, &b, q, 40, 60);
    bool preempted = false;
    uint32_t last = 0;
    while (step(&b) == KN_OK) {
        preempted |= c.seq.n_tokens < last;
        assert_true(a.reason || a.state == KNI_JOB_STATE_RUNNING || a.state == KNI_JOB_STATE_WAITING);
        last = c.seq.n_tokens;
    }
    assert_true(preempted);
    assert_int_equal(kni_job_n_generated(&a), 60);
    assert_int_equal(kni_job_n_generated(&c), 60);
    check_answer(&a);
    check_answer(&c);
    assert_true(a.kv_dropped); /* finished first, and gave way although nobody closed it */
    done(&a, &b);
    done(&c, &b);
    bed_close(&b);
}

/* Prompts that do not fit together are not begun together: each is computed once, although all came at once. */
static void test_no_overcommitment(void **state)
{
    (void)state;
    int32_t p[4][300];
    struct bed b;
    struct kni_job jobs[4];
    bed_open(&b, 48, 64, 4, true, NULL);
    for (uint32_t i = 0; i < 4; i++) { /* 19 blocks each */
        make_prompt(p[i], 300, (int32_t)(i * 9 + 1));
        submit(&jobs[i], &b, p[i], 300, 4);
    }
    step(&b);
    assert_int_equal(kni_sched_get_stats(b.sched).n_running, 2);
    run_until_idle(&b);
    assert_int_equal(kni_sched_get_stats(b.sched).n_step_tokens, 4 * (300 + 3));
    for (uint32_t i = 0; i < 4; i++) {
        check_answer(&jobs[i]);
        done(&jobs[i], &b);
    }
    bed_close(&b);
}

static void test_publish_and_fetch(void **state)
{
    (void)state;
    int32_t p[200];
    make_prompt(p, 200, 1);
    struct kni_fetcher *f = fetcher_open();
    struct bed b;
    struct kni_job a;
    f->opts = (struct kn_fake_opts){.publish_ticks = 3, .lookup_ticks = 2, .chunk_ticks = 1};
    bed_open(&b, 48, 64, 4, false, f);
    submit(&a, &b, p, 150, 30);
    while (!a.reason) {
        assert_int_equal(f->stats.n_queued, 0); /* not before the last token */
        step(&b);
    }
    assert_int_equal(f->stats.n_queued, 1);
    done(&a, &b); /* closing does not take the blocks from the publish */
    assert_int_equal(kni_sched_flush(b.sched, 0), KN_OK);
    assert_int_equal(f->n_entries, 1);
    assert_int_equal(f->entries[0].n_tokens, 160); /* 150 + 29 computed, whole chunks: prompt and answer */
    bed_close(&b);

    /* another process: empty pool */
    bed_open(&b, 48, 64, 4, false, f);
    submit(&a, &b, p, 150, 30);
    run_until_idle(&b);
    check_answer(&a);
    assert_int_equal(a.stats.n_fetched, 128);
    assert_int_equal(a.stats.n_cached, 0);
    assert_int_equal(a.stats.fetch_bytes, 128);
    assert_int_equal(kni_sched_get_stats(b.sched).n_step_tokens, 150 - 128 + 29);
    done(&a, &b);
    /* the pool has it now: nobody asks the store for what cannot be more */
    uint32_t n_begun = f->n_begun;
    submit(&a, &b, p, 150, 30);
    run_until_idle(&b);
    check_answer(&a);
    assert_int_equal(a.stats.n_cached, 149);
    assert_int_equal(f->n_begun, n_begun);
    done(&a, &b);
    bed_close(&b);

    /* a whole prefix hit leaves a token: 128 asked, 96 come */
    bed_open(&b, 48, 64, 4, false, f);
    submit(&a, &b, p, 128, 5);
    run_until_idle(&b);
    check_answer(&a);
    assert_int_equal(a.stats.n_fetched, 96);
    done(&a, &b);
    bed_close(&b);

    /* the pool knows 70 tokens, which end inside a chunk: the fetch goes on from 64 */
    bed_open(&b, 48, 64, 4, false, f);
    struct kni_job_opts o = {.tokens = p, .n_prompt = 80, .max_new = 1, .no_fetch = true, .no_publish = true};
    p[70] ^= 1;
    assert_int_equal(kni_job_init(&a, b.pool, &o), KN_OK);
    p[70] ^= 1;
    assert_int_equal(kni_sched_submit(b.sched, &a), KN_OK);
    run_until_idle(&b);
    assert_int_equal(a.stats.n_fetched, 0);
    done(&a, &b);
    submit(&a, &b, p, 150, 5);
    run_until_idle(&b);
    check_answer(&a);
    assert_int_equal(a.stats.n_cached, 64);
    assert_int_equal(a.stats.n_fetched, 64);
    done(&a, &b);
    /* another tenant gets nothing */
    job_init(&a, &b, p, 150, 5, "other");
    assert_int_equal(kni_sched_submit(b.sched, &a), KN_OK);
    run_until_idle(&b);
    check_answer(&a);
    assert_int_equal(a.stats.n_fetched + a.stats.n_cached, 0);
    done(&a, &b);
    bed_close(&b);
    kni_fetcher_close(&f);
}

/* A fetch that breaks off: what came in order counts, the rest is computed; when nothing came the pool's part counts. */
static void test_broken_fetch(void **state)
{
    (void)state;
    int32_t p[200];
    make_prompt(p, 200, 1);
    struct kni_fetcher *f = fetcher_open();
    struct bed b;
    struct kni_job a;
    bed_open(&b, 48, 64, 4, false, f);
    submit(&a, &b, p, 190, 3);
    run_until_idle(&b);
    done(&a, &b);
    bed_close(&b);
    f->opts.chunks_at_most = 2;
    bed_open(&b, 48, 64, 4, false, f);
    submit(&a, &b, p, 190, 3);
    run_until_idle(&b);
    check_answer(&a);
    assert_int_equal(a.stats.n_fetched, 64);
    assert_int_equal(a.stats.n_misses, 1);
    done(&a, &b);
    bed_close(&b);
    /* start refused: 50 tokens of the pool are used again although the sequence had been cut to 32 */
    f->opts = (struct kn_fake_opts){.start_status = KN_E_IO};
    bed_open(&b, 48, 64, 4, false, f);
    struct kni_job_opts o = {.tokens = p, .n_prompt = 64, .max_new = 1, .no_fetch = true, .no_publish = true};
    p[50] ^= 1;
    assert_int_equal(kni_job_init(&a, b.pool, &o), KN_OK);
    p[50] ^= 1;
    assert_int_equal(kni_sched_submit(b.sched, &a), KN_OK);
    run_until_idle(&b);
    done(&a, &b);
    submit(&a, &b, p, 190, 3);
    run_until_idle(&b);
    check_answer(&a);
    assert_int_equal(a.stats.n_fetched, 0);
    assert_int_equal(a.stats.n_cached, 50);
    done(&a, &b);
    bed_close(&b);
    kni_fetcher_close(&f);
}

static unsigned n_log;
static void count_log(void *user, enum kn_log_level level, const char *area, const char *text)
{
    (void)user;
    (void)level;
    (void)area;
    n_log += strstr(text, "store") != NULL;
}

/* A store that is down: one line, right answers, and flush tells. */
static void test_store_down(void **state)
{
    (void)state;
    int32_t p[100];
    make_prompt(p, 100, 1);
    struct kni_fetcher *f = fetcher_open();
    struct bed b;
    struct kni_job a;
    kn_log_set(count_log, NULL, KN_LOG_LEVEL_WARN);
    n_log = 0;
    bed_open(&b, 48, 64, 4, true, f);
    f->opts = (struct kn_fake_opts){.begin_status = KN_E_IO, .publish_status = KN_E_IO};
    for (int i = 0; i < 3; i++) {
        submit(&a, &b, p, 100, 5);
        run_until_idle(&b);
        assert_int_equal(a.reason, KN_STOP_REASON_LENGTH);
        check_answer(&a);
        done(&a, &b);
    }
    assert_int_equal(kni_sched_flush(b.sched, 0), KN_E_IO);
    assert_int_equal(kni_sched_flush(b.sched, 0), KN_OK);
    f->opts.submit_status = KN_E_FULL;
    submit(&a, &b, p, 100, 5);
    run_until_idle(&b);
    check_answer(&a);
    done(&a, &b);
    assert_int_equal(n_log, 1);
    kn_log_set(NULL, NULL, KN_LOG_LEVEL_ERROR);
    f->opts = (struct kn_fake_opts){.publish_ticks = 1000000000};
    submit(&a, &b, p, 100, 5);
    run_until_idle(&b);
    done(&a, &b);
    assert_int_equal(kni_sched_flush(b.sched, 1), KN_E_TIMEOUT);
    f->queue->ticks = 0;
    bed_close(&b);
    kni_fetcher_close(&f);
}

/* A slow fetch holds up nobody; when only it is left the step waits instead of spinning. Cancel ends it. */
static void test_slow_fetch(void **state)
{
    (void)state;
    int32_t p[100], q[100];
    make_prompt(p, 100, 1);
    make_prompt(q, 100, 9);
    struct kni_fetcher *f = fetcher_open();
    struct bed b;
    struct kni_job a, c;
    bed_open(&b, 48, 64, 4, false, f);
    f->opts.lookup_ticks = 100000000;
    submit(&a, &b, p, 100, 5);
    struct kni_job_opts o = {.tokens = q, .n_prompt = 100, .max_new = 20, .no_fetch = true};
    assert_int_equal(kni_job_init(&c, b.pool, &o), KN_OK);
    assert_int_equal(kni_sched_submit(b.sched, &c), KN_OK);
    for (int i = 0; i < 21; i++)
        assert_int_equal(step(&b), KN_OK);
    assert_int_equal(c.reason, KN_STOP_REASON_LENGTH);
    check_answer(&c);
    assert_int_equal(a.state, KNI_JOB_STATE_FETCHING);
    assert_int_equal(f->n_waits, 0);
    assert_int_equal(step(&b), KN_OK);
    assert_int_equal(f->n_waits, 1);
    uint32_t n_queued = (uint32_t)f->stats.n_queued + f->n_entries;
    kni_sched_cancel(b.sched, &a);
    assert_int_equal(a.reason, KN_STOP_REASON_CANCELLED);
    assert_int_equal(f->n_jobs, 0);
    assert_int_equal(f->stats.n_queued + f->n_entries, n_queued); /* nothing published */
    assert_int_equal(step(&b), KN_AGAIN);
    done(&a, &b);
    done(&c, &b);
    bed_close(&b);
    kni_fetcher_close(&f);
}

/* ---- random loads */

static uint64_t rng;
static uint32_t rnd(uint32_t n)
{
    return (uint32_t)((rng = kn_fake_mix(rng, 1, 7)) >> 20) % n;
}

#define N_JOBS 9

static void random_load(uint64_t seed)
{
    static int32_t past[4][MAX_LEN];
    static const char *const salts[] = {"", "", "", "t"};
    rng = seed;
    struct kni_fetcher *f = rnd(3) ? fetcher_open() : NULL;
    for (uint32_t round = 0; round < 1 + (f != NULL); round++) { /* the second one finds the store filled */
        struct bed b;
        struct kni_job jobs[N_JOBS] = {0};
        uint32_t n_blocks = 4 + rnd(40), n_left = 12 + rnd(8), n_steps = 0;
        struct kni_sched_opts so = {.fetch_pool_percent = rnd(2) ? rnd(101) : 0, .fetch_window_chunks = rnd(4), .fetch_turn_ms = 1, .fetch_inline = rnd(6) == 0};
        bed_open_opts(&b, n_blocks, 1 + rnd(90), 1 + rnd(6), rnd(5) == 0, f, so);
        if (f)
            f->opts = (struct kn_fake_opts){.lookup_ticks = rnd(6), .chunk_ticks = rnd(4), .publish_ticks = rnd(12), .chunks_at_most = rnd(4), .end_refusals = rnd(9)};
        for (;;) {
            bool any = false;
            for (uint32_t i = 0; i < N_JOBS; i++) {
                struct kni_job *job = &jobs[i];
                if (!job->tokens && n_left && rnd(6) == 0) {
                    int32_t p[MAX_LEN];
                    uint32_t n = 1 + rnd(n_blocks * 16 < MAX_LEN ? n_blocks * 16 : MAX_LEN), keep = rnd(MAX_LEN), from = rnd(4);
                    for (uint32_t t = 0; t < MAX_LEN; t++)
                        p[t] = t < keep ? past[from][t] : (int32_t)rnd(3);
                    memcpy(past[rnd(4)], p, sizeof p);
                    n_left--;
                    job_init(job, &b, p, n, 1 + rnd(40), salts[rnd(4)]);
                    if (rnd(9) == 0)
                        job->wait_ms = job->deadline_ms = 3600000;
                    if (kni_sched_submit(b.sched, job)) {
                        assert_true(job->seq.max_blocks > n_blocks);
                        kni_job_fini(job);
                    }
                }
                if (!job->tokens)
                    continue;
                any = true;
                if (job->reason == KN_STOP_REASON_LENGTH) {
                    check_answer(job);
                    assert_int_equal(job->n_known, job->n_max);
                } else if (job->reason == KN_STOP_REASON_STOP) {
                    check_answer(job);
                } else if (job->reason == KN_STOP_REASON_ERROR) {
                    assert_int_equal(job->status, KN_E_TIMEOUT);
                    assert_true(job->deadline_ms);
                } else {
                    assert_int_equal(job->reason, KN_STOP_REASON_NONE);
                }
                if (rnd(300) == 0)
                    kni_sched_stop(b.sched, job);
                if (!job->reason && job->deadline_ms && rnd(40) == 0)
                    job->submit_ns -= 3700000000000u; /* late at the next step */
                if ((job->reason && rnd(8) == 0) || rnd(400) == 0) {
                    if (rnd(2))
                        kni_sched_cancel(b.sched, job);
                    done(job, &b);
                }
            }
            if (!any && !n_left)
                break;
            part_of_step(&b);
            const char *why = kni_sched_check(b.sched);
            if (why)
                fail_msg("seed %llu: %s", (unsigned long long)seed, why);
            if (++n_steps > 20000)
                fail_msg("seed %llu stands still", (unsigned long long)seed);
        }
        struct kni_sched_stats st = kni_sched_get_stats(b.sched);
        assert_int_equal(st.n_prompt_tokens, st.n_cached_tokens + st.n_fetched_tokens + st.n_computed_tokens);
        assert_int_equal(st.n_waiting + st.n_fetching + st.n_running, 0);
        bed_close(&b);
    }
    kni_fetcher_close(&f);
}

static void test_random_loads(void **state)
{
    (void)state;
    uint64_t before = kni_alloc_get_stats(KNI_ALLOC_TAG_COUNT).current_bytes;
    for (uint64_t seed = 1; seed <= 400; seed++)
        random_load(seed);
    assert_int_equal(kni_alloc_get_stats(KNI_ALLOC_TAG_COUNT).current_bytes, before);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_chunk_sizes),  cmocka_unit_test(test_batch),
        cmocka_unit_test(test_prefix_reuse), cmocka_unit_test(test_stop_and_run_error),
        cmocka_unit_test(test_too_big_for_the_pool), cmocka_unit_test(test_no_overcommitment), cmocka_unit_test(test_preemption),
        cmocka_unit_test(test_publish_and_fetch), cmocka_unit_test(test_broken_fetch),
        cmocka_unit_test(test_store_down),   cmocka_unit_test(test_slow_fetch),
        cmocka_unit_test(test_random_loads),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
