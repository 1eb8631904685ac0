/* SPDX-License-Identifier: Apache-2.0 */
/* Fetch jobs on a store in memory that misbehaves on command: order, refusals, deadlines, cancelling, partial first chunks. */
#include "unit/fetch/fetch_support.h"

#define N 330u /* prompt tokens: 10 chunks and 10 tokens */
#define N_CHUNKS 10u

static int32_t prompt[N];

static struct fake_store *published(struct kni_fetcher **f, uint32_t n_workers, uint32_t deadline_ms, struct test_pool *source)
{
    struct fake_store *s = fake_open();
    prompt_fill(prompt, N);
    *source = pool_make(N, -1);
    *f = fetcher_on(s, n_workers, deadline_ms);
    assert_int_equal(publish_wait(*f, prompt, N, "a", source), KN_OK);
    assert_int_equal(s->n_items, N_CHUNKS);
    log_book_take(NULL, 0);
    return s;
}

static void round_trip(void **state)
{
    struct kni_fetcher *f;
    struct test_pool source, into = pool_make(N, 0xee);
    struct kni_publish_stats ps;
    (void)state;
    struct fake_store *s = published(&f, 3, 0, &source);
    struct kni_fetch_progress p = fetch_all(f, prompt, N, 0, "a", &into);
    assert_int_equal(p.n_restored, N_CHUNKS * CHUNK);
    assert_int_equal(p.n_misses, 0);
    assert_true(p.n_bytes > 0);
    assert_true(pool_equal(&source, &into, 0, N_CHUNKS * CHUNK));
    kni_publish_get_stats(f, &ps);
    assert_int_equal(ps.n_chunks, N_CHUNKS);
    assert_int_equal(ps.raw_bytes, N_CHUNKS * CHUNK * kni_kv_token_bytes(&test_kv));
    assert_int_equal(ps.n_queued, 0);
    uint32_t n_puts = fake_read(s, &s->n_puts);
    assert_int_equal(publish_wait(f, prompt, N, "a", &source), KN_OK); /* all there: nothing is put */
    assert_int_equal(fake_read(s, &s->n_puts), n_puts);
    p = fetch_all(f, prompt, N, 0, "b", &into); /* another tenant */
    assert_int_equal(p.n_restored, 0);
    prompt[5]++; /* another prompt */
    p = fetch_all(f, prompt, N, 0, "a", &into);
    assert_int_equal(p.n_restored, 0);
    prompt[5]--;
    prompt[CHUNK * 4 + 1]++; /* one that parts ways in chunk 4 */
    p = fetch_all(f, prompt, N, 0, "a", &into);
    assert_int_equal(p.n_restored, 4 * CHUNK);
    kni_fetcher_close(&f);
    pool_free(&source);
    pool_free(&into);
}

static void one_token_is_always_left(void **state)
{
    struct kni_fetcher *f;
    struct test_pool source, into = pool_make(N, 0xee);
    (void)state;
    published(&f, 2, 0, &source);
    for (uint32_t n = 0; n <= N; n++)
        for (uint32_t first = 0; first <= n; first += 1 + n / 7) {
            struct kni_fetch *job = NULL;
            assert_int_equal(kni_fetch_begin(&job, f, prompt, n, first, "a"), KN_OK);
            struct kni_fetch_progress p = await_past(f, job, KNI_FETCH_STATE_LOOKUP);
            uint32_t most = n ? (n - 1) / CHUNK * CHUNK : 0;
            assert_int_equal(p.n_wanted, most > first ? most : first);
            assert_int_equal(p.state, most > first ? KNI_FETCH_STATE_READY : KNI_FETCH_STATE_DONE);
            assert_int_equal(p.n_restored, first);
            fetch_end(&job);
        }
    struct kni_fetch *job = NULL;
    assert_int_equal(kni_fetch_begin(&job, f, prompt, 5, 6, "a"), KN_E_ARG);
    kni_fetcher_close(&f);
    pool_free(&source);
    pool_free(&into);
}

/* Whatever the order in which chunks arrive, the count never runs ahead of what is in the pool. */
static void chunks_count_in_order(void **state)
{
    struct kni_fetcher *f;
    struct test_pool source;
    (void)state;
    struct fake_store *s = published(&f, 4, 0, &source);
    for (uint32_t round = 0; round < 8; round++) {
        struct test_pool into = pool_make(N, 0xee);
        struct kni_fetch *job = NULL;
        pthread_mutex_lock(&s->lock);
        for (uint32_t c = 0; c < N_CHUNKS; c++)
            s->get_trouble[c] = TROUBLE_DELAY;
        pthread_mutex_unlock(&s->lock);
        assert_int_equal(kni_fetch_begin(&job, f, prompt, N, 0, "a"), KN_OK);
        struct kni_fetch_progress p = await_past(f, job, KNI_FETCH_STATE_LOOKUP);
        assert_int_equal(p.n_wanted, N_CHUNKS * CHUNK);
        uint32_t limit = p.n_wanted - round * 17; /* not always whole chunks, not always all */
        assert_int_equal(fetch_start(job, &into.view, limit), KN_OK);
        assert_int_equal(fetch_start(job, &into.view, limit), KN_E_STATE);
        uint32_t before = 0;
        do {
            kni_fetch_poll(job, &p);
            assert_true(p.n_restored >= before && p.n_restored <= limit && p.n_restored % CHUNK == 0);
            assert_true(pool_equal(&source, &into, before, p.n_restored));
            before = p.n_restored;
        } while (p.state != KNI_FETCH_STATE_DONE);
        assert_int_equal(before, limit / CHUNK * CHUNK);
        fetch_end(&job);
        pool_free(&into);
    }
    kni_fetcher_close(&f);
    pool_free(&source);
}

static void a_bad_chunk_ends_the_job_there(void **state)
{
    static const enum trouble troubles[] = {TROUBLE_CORRUPT, TROUBLE_SHORT, TROUBLE_VANISHED, TROUBLE_OTHER_CHUNK, TROUBLE_IO};
    char last[1024];
    (void)state;
    for (size_t t = 0; t < sizeof troubles / sizeof *troubles; t++)
        for (uint32_t bad = 0; bad < N_CHUNKS; bad += 3) {
            struct kni_fetcher *f;
            struct test_pool source, into = pool_make(N, 0xee);
            struct fake_store *s = published(&f, 1 + bad % 3, 0, &source);
            FAKE_SET(s, s->get_trouble[bad] = troubles[t]);
            struct kni_fetch_progress p = fetch_all(f, prompt, N, 0, "a", &into);
            assert_int_equal(p.n_wanted, N_CHUNKS * CHUNK);
            assert_int_equal(p.n_restored, bad * CHUNK);
            assert_int_equal(p.n_misses, 1);
            assert_true(pool_equal(&source, &into, 0, bad * CHUNK));
            bool drops = troubles[t] != TROUBLE_IO;
            while (drops && fake_read(s, &s->n_drops) == 0)
                nap(); /* the worker reports after the job is done */
            while (log_book_take(last, sizeof last) == 0)
                nap();
            assert_non_null(strstr(last, "key kn1:"));
            assert_int_equal(fake_read(s, &s->n_drops), drops);
            FAKE_SET(s, s->get_trouble[bad] = TROUBLE_NONE);
            assert_int_equal(publish_wait(f, prompt, N, "a", &source), KN_OK); /* heals */
            p = fetch_all(f, prompt, N, 0, "a", &into);
            assert_int_equal(p.n_restored, N_CHUNKS * CHUNK);
            assert_true(pool_equal(&source, &into, 0, N_CHUNKS * CHUNK));
            kni_fetcher_close(&f);
            pool_free(&source);
            pool_free(&into);
        }
}

/* A chunk arrives after the deadline, when its blocks belong to somebody else. */
static void late_data_touches_nothing(void **state)
{
    struct kni_fetcher *f;
    struct test_pool source, into = pool_make(N, 0xee), untouched = pool_make(N, 0xaa);
    struct kni_fetch *job = NULL;
    (void)state;
    struct fake_store *s = published(&f, 2, 700, &source);
    FAKE_SET(s, s->get_trouble[3] = TROUBLE_GATE);
    assert_int_equal(kni_fetch_begin(&job, f, prompt, N, 0, "a"), KN_OK);
    struct kni_fetch_progress p = await_past(f, job, KNI_FETCH_STATE_LOOKUP);
    assert_int_equal(p.state, KNI_FETCH_STATE_READY);
    assert_int_equal(fetch_start(job, &into.view, p.n_wanted), KN_OK);
    p = await_past(f, job, KNI_FETCH_STATE_RUNNING); /* although chunk 3 still hangs in its download */
    assert_true(p.n_restored <= 3 * CHUNK);
    assert_true(pool_equal(&source, &into, 0, p.n_restored));
    fetch_end(&job); /* does not wait for the download either */
    memset(into.host.k, 0xaa, into.n_values * 2);
    fake_release(s);
    kni_fetcher_close(&f); /* joins the worker that held the late chunk */
    assert_memory_equal(into.host.k, untouched.host.k, into.n_values * 2);
    pool_free(&source);
    pool_free(&into);
    pool_free(&untouched);
}

static void a_slow_lookup_is_cut_too(void **state)
{
    struct kni_fetcher *f;
    struct test_pool source;
    struct kni_fetch *job = NULL;
    (void)state;
    struct fake_store *s = published(&f, 1, 30, &source);
    FAKE_SET(s, s->lookup_gate = true);
    assert_int_equal(kni_fetch_begin(&job, f, prompt, N, 0, "a"), KN_OK);
    struct kni_fetch_progress p = await_past(f, job, KNI_FETCH_STATE_LOOKUP);
    assert_int_equal(p.state, KNI_FETCH_STATE_DONE);
    assert_int_equal(p.n_restored, 0);
    fetch_end(&job);
    fake_release(s);
    kni_fetcher_close(&f);
    pool_free(&source);
}

static void cancel_in_each_state(void **state)
{
    struct kni_fetcher *f;
    struct test_pool source, into = pool_make(N, 0xee);
    struct kni_fetch *job = NULL;
    struct kni_fetch_progress p;
    (void)state;
    struct fake_store *s = published(&f, 2, 0, &source);
    /* in LOOKUP, with the store asked */
    FAKE_SET(s, s->lookup_gate = true);
    assert_int_equal(kni_fetch_begin(&job, f, prompt, N, 0, "a"), KN_OK);
    fake_await_waiting(s, 1);
    fetch_end(&job);
    /* in LOOKUP, not yet asked: both workers hang */
    struct kni_fetch *more[3] = {NULL};
    for (int i = 0; i < 3; i++)
        assert_int_equal(kni_fetch_begin(&more[i], f, prompt, N, 0, "a"), KN_OK);
    fake_await_waiting(s, 2);
    for (int i = 2; i >= 0; i--)
        fetch_end(&more[i]);
    FAKE_SET(s, s->lookup_gate = false);
    fake_pulse(s);
    /* in READY */
    assert_int_equal(kni_fetch_begin(&job, f, prompt, N, 0, "a"), KN_OK);
    p = await_past(f, job, KNI_FETCH_STATE_LOOKUP);
    assert_int_equal(p.state, KNI_FETCH_STATE_READY);
    fetch_end(&job);
    /* in RUNNING, in the middle of a download */
    FAKE_SET(s, s->get_trouble[1] = TROUBLE_GATE);
    assert_int_equal(kni_fetch_begin(&job, f, prompt, N, 0, "a"), KN_OK);
    p = await_past(f, job, KNI_FETCH_STATE_LOOKUP);
    assert_int_equal(fetch_start(job, &into.view, p.n_wanted), KN_OK);
    fake_await_waiting(s, 1);
    fetch_end(&job);
    memset(into.host.k, 0xee, into.n_values * 2);
    fake_release(s);
    /* in DONE, and at any moment of RUNNING */
    for (uint32_t i = 0; i < 60; i++) {
        assert_int_equal(kni_fetch_begin(&job, f, prompt, N, 0, "a"), KN_OK);
        p = await_past(f, job, KNI_FETCH_STATE_LOOKUP);
        assert_int_equal(fetch_start(job, &into.view, p.n_wanted), KN_OK);
        for (uint32_t k = 0; k < i * 20; k++)
            kni_fetch_poll(job, &p);
        fetch_end(&job);
        memset(into.host.k, (int)i, into.n_values * 2); /* ours again: a race detector would see a late write */
    }
    fetch_end(&job); /* NULL is fine */
    kni_fetcher_close(&f);
    pool_free(&source);
    pool_free(&into);
}

/* Positions below first_token are in the pool already, maybe in blocks that others share: they are not written. */
static void positions_before_the_hit_stay(void **state)
{
    struct kni_fetcher *f;
    struct test_pool source, canary = pool_make(N, 0xc3);
    (void)state;
    published(&f, 2, 0, &source);
    for (uint32_t first = 0; first < N_CHUNKS * CHUNK; first += 1 + first % 13) {
        struct test_pool into = pool_make(N, 0xc3);
        struct kni_fetch_progress p = fetch_all(f, prompt, N, first, "a", &into);
        assert_int_equal(p.n_restored, N_CHUNKS * CHUNK);
        assert_true(pool_equal(&canary, &into, 0, first));
        assert_true(pool_equal(&source, &into, first, N_CHUNKS * CHUNK));
        assert_true(pool_equal(&canary, &into, N_CHUNKS * CHUNK, N));
        pool_free(&into);
    }
    kni_fetcher_close(&f);
    pool_free(&source);
    pool_free(&canary);
}

static void start_with_fewer_blocks(void **state)
{
    struct kni_fetcher *f;
    struct test_pool source, into = pool_make(N, 0xee), canary = pool_make(N, 0xee), small = pool_make(64, 0);
    (void)state;
    published(&f, 2, 0, &source);
    static const uint32_t limits[] = {0, 1, CHUNK - 1, CHUNK, CHUNK + 1, 5 * CHUNK};
    for (size_t i = 0; i < sizeof limits / sizeof *limits; i++) {
        struct kni_fetch *job = NULL;
        assert_int_equal(kni_fetch_begin(&job, f, prompt, N, 0, "a"), KN_OK);
        await_past(f, job, KNI_FETCH_STATE_LOOKUP);
        assert_int_equal(fetch_start(job, &small.view, N), KN_E_ARG); /* more than its blocks hold */
        assert_int_equal(fetch_start(job, &into.view, limits[i]), KN_OK);
        struct kni_fetch_progress p = await_past(f, job, KNI_FETCH_STATE_RUNNING);
        assert_int_equal(p.n_restored, limits[i] / CHUNK * CHUNK);
        assert_true(pool_equal(&canary, &into, 5 * CHUNK, N));
        fetch_end(&job);
    }
    kni_fetcher_close(&f);
    pool_free(&source);
    pool_free(&into);
    pool_free(&canary);
    pool_free(&small);
}

static void many_jobs_at_once(void **state)
{
    enum { JOBS = 24 };
    struct kni_fetcher *f;
    struct test_pool source, into[JOBS];
    struct kni_fetch *job[JOBS] = {NULL};
    bool started[JOBS] = {false};
    uint32_t n_done = 0;
    (void)state;
    published(&f, 3, 0, &source);
    for (int i = 0; i < JOBS; i++) {
        into[i] = pool_make(N, 0xee);
        assert_int_equal(kni_fetch_begin(&job[i], f, prompt, N, (uint32_t)i * 5, "a"), KN_OK);
    }
    while (n_done < JOBS) {
        kni_fetcher_wait(f, 1000);
        for (int i = 0; i < JOBS; i++) {
            struct kni_fetch_progress p;
            if (!job[i])
                continue;
            kni_fetch_poll(job[i], &p);
            if (p.state == KNI_FETCH_STATE_READY && !started[i]) {
                started[i] = true;
                assert_int_equal(fetch_start(job[i], &into[i].view, p.n_wanted), KN_OK);
            } else if (p.state == KNI_FETCH_STATE_DONE) {
                assert_int_equal(p.n_restored, N_CHUNKS * CHUNK);
                assert_true(pool_equal(&source, &into[i], (uint32_t)i * 5, p.n_restored));
                fetch_end(&job[i]);
                n_done++;
            }
        }
    }
    for (int i = 0; i < JOBS; i++)
        pool_free(&into[i]);
    kni_fetcher_close(&f);
    pool_free(&source);
}

static void a_failing_store_is_left_alone(void **state)
{
    struct kni_fetcher *f;
    struct test_pool source, into = pool_make(N, 0xee);
    (void)state;
    struct fake_store *s = published(&f, 2, 0, &source);
    FAKE_SET(s, s->lookup_fails = true);
    for (int i = 0; i < 20; i++) {
        struct kni_fetch_progress p = fetch_all(f, prompt, N, 0, "a", &into);
        assert_int_equal(p.state, KNI_FETCH_STATE_DONE);
        assert_int_equal(p.n_restored, 0);
    }
    assert_true(fake_read(s, &s->n_lookups) <= N_CHUNKS + 5); /* those of the publish, then three, then silence for a second */
    assert_int_equal(log_book_take(NULL, 0), 1);
    kni_fetcher_close(&f);
    pool_free(&source);
    pool_free(&into);
}

/* Each allocation fails once: the job fails or delivers less, never crashes, and nothing leaks. */
static void allocations_may_fail(void **state)
{
    struct kni_fetcher *f;
    struct test_pool source, into = pool_make(N, 0xee);
    bool hit = true;
    (void)state;
    struct fake_store *s = published(&f, 1, 0, &source);
    for (uint64_t n = 1; hit && n < 2000; n++) {
        struct kni_fetch *job = NULL;
        struct kni_fetch_progress p = {.state = KNI_FETCH_STATE_DONE};
        kni_alloc_fault_arm(n, false);
        if (kni_fetch_begin(&job, f, prompt, N, 7, "a") == KN_OK) {
            p = await_past(f, job, KNI_FETCH_STATE_LOOKUP);
            if (p.state == KNI_FETCH_STATE_READY && fetch_start(job, &into.view, p.n_wanted) == KN_OK) {
                p = await_past(f, job, KNI_FETCH_STATE_RUNNING);
                assert_true(pool_equal(&source, &into, 7, p.n_restored));
            }
            fetch_end(&job);
        }
        hit = kni_alloc_fault_hit();
        kni_alloc_fault_arm(0, false);
        assert_true(hit || p.n_restored == N_CHUNKS * CHUNK);
    }
    assert_false(hit);
    assert_int_equal(fake_read(s, &s->n_drops), 0); /* a lack of memory is not the chunk's fault */
    kni_fetcher_close(&f);
    pool_free(&source);
    pool_free(&into);
    assert_int_equal(kni_alloc_get_stats(KNI_ALLOC_TAG_FETCH).current_bytes, 0);
    assert_int_equal(kni_alloc_get_stats(KNI_ALLOC_TAG_STORE).current_bytes, 0);
}

static void bad_options_are_refused(void **state)
{
    struct kni_fetcher *f = NULL;
    struct kn_err err = {0};
    struct kni_fetcher_opts o = test_opts(2, 0);
    (void)state;
    o.store_url = "ftp:nowhere";
    assert_int_equal(kni_fetcher_open(&f, &o, &err), KN_E_UNSUPPORTED);
    assert_non_null(strstr(err.text, "lmdb:PATH"));
    o = test_opts(0, 0);
    bool closed = false;
    struct fake_store *s = fake_open();
    s->closed = &closed;
    assert_int_equal(kni_fetcher_open_on(&f, &o, &s->base, &err), KN_E_ARG);
    assert_true(closed);
    assert_null(f);
    kni_fetcher_close(&f);
}

static void *wake_later(void *arg)
{
    nap();
    kni_fetcher_wake(arg);
    return NULL;
}

/* Another thread ends the owner's wait, which would otherwise take a minute: when it comes later and when it came before. */
static void wake(void **state)
{
    pthread_t thread;
    struct fake_store *s = fake_open();
    struct kni_fetcher *f = fetcher_on(s, 1, 0);
    (void)state;
    uint64_t begin = kni_now_ns();
    assert_int_equal(pthread_create(&thread, NULL, wake_later, f), 0);
    kni_fetcher_wait(f, 60000);
    pthread_join(thread, NULL);
    kni_fetcher_wake(f);
    kni_fetcher_wait(f, 60000);
    assert_true(kni_now_ns() - begin < 50000000000u);
    kni_fetcher_close(&f);
}

int main(void)
{
    kn_log_set(log_book_fn, NULL, KN_LOG_LEVEL_WARN);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(wake), cmocka_unit_test(round_trip),
        cmocka_unit_test(one_token_is_always_left),
        cmocka_unit_test(chunks_count_in_order),
        cmocka_unit_test(a_bad_chunk_ends_the_job_there),
        cmocka_unit_test(late_data_touches_nothing),
        cmocka_unit_test(a_slow_lookup_is_cut_too),
        cmocka_unit_test(cancel_in_each_state),
        cmocka_unit_test(positions_before_the_hit_stay),
        cmocka_unit_test(start_with_fewer_blocks),
        cmocka_unit_test(many_jobs_at_once),
        cmocka_unit_test(a_failing_store_is_left_alone),
        cmocka_unit_test(allocations_may_fail),
        cmocka_unit_test(bad_options_are_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
