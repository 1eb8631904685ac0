/* SPDX-License-Identifier: Apache-2.0 */
/* A store that hangs, fails or comes back, seen from the fetcher: who is let go, what is counted, who asks again, and how closing ends. */
#include "unit/fetch/fetch_support.h"

#define N 330u /* prompt tokens: 10 chunks and 10 tokens */
#define N_CHUNKS 10u
#define LONG_MS 120000u /* what nobody may wait for */

static int32_t prompt[N];

static struct kni_fetcher *open_on(struct fake_store *s, uint32_t n_workers, uint32_t deadline_ms, uint32_t lookup_ms, uint32_t hang_ms,
                                   uint32_t close_wait_ms)
{
    struct kni_fetcher *f = NULL;
    struct kni_fetcher_opts o = test_opts(n_workers, deadline_ms);
    o.lookup_ms = lookup_ms;
    o.hang_ms = hang_ms;
    o.close_wait_ms = close_wait_ms;
    assert_int_equal(kni_fetcher_open_on(&f, &o, &s->base, NULL), KN_OK);
    return f;
}

static struct fake_store *filled(const struct test_pool *source)
{
    struct fake_store *s = fake_open(), *keep = fake_open();
    prompt_fill(prompt, N);
    struct kni_fetcher *f = fetcher_on(s, 1, 0);
    assert_int_equal(publish_wait(f, prompt, N, "a", source), KN_OK);
    pthread_mutex_lock(&s->lock);
    memcpy(keep->item, s->item, sizeof keep->item);
    keep->n_items = s->n_items;
    s->n_items = 0;
    pthread_mutex_unlock(&s->lock);
    kni_fetcher_close(&f);
    log_book_take(NULL, 0);
    return keep;
}

static struct kni_fetcher_health health(struct kni_fetcher *f)
{
    struct kni_fetcher_health h;
    kni_fetcher_get_health(f, &h);
    return h;
}

/* Nobody asks anything meanwhile. */
static void await_health(struct kni_fetcher *f, bool read_ok, bool write_ok)
{
    for (;;) {
        struct kni_fetcher_health h = health(f);
        assert_true(h.is_open);
        if (h.read_ok == read_ok && h.write_ok == write_ok)
            return;
        nap();
    }
}

/* Fetches until all of it comes: on a busy machine a call may be taken for one that hangs. */
static void expect_fetched(struct kni_fetcher *f, const struct test_pool *source, const struct test_pool *into)
{
    for (int i = 0; i < 50; i++) {
        await_health(f, true, true);
        struct kni_fetch_progress p = fetch_all(f, prompt, N, 0, "a", into);
        assert_true(pool_equal(source, into, 0, p.n_restored));
        if (p.n_restored == N_CHUNKS * CHUNK)
            return;
    }
    fail_msg("never fetched whole");
}

static void a_lookup_that_hangs_costs_once(void **state)
{
    (void)state;
    for (uint32_t n_workers = 1; n_workers <= 2; n_workers++) {
        struct test_pool source = pool_make(N, -1), into = pool_make(N, 0xee);
        struct fake_store *s = filled(&source);
        struct kni_fetcher *f = open_on(s, n_workers, LONG_MS, 50, 1500, 0);
        FAKE_SET(s, s->lookup_gate = true);
        struct kni_fetch *job = NULL;
        assert_int_equal(kni_fetch_begin(&job, f, prompt, N, 0, "a"), KN_OK);
        struct kni_fetch_progress p = await_past(f, job, KNI_FETCH_STATE_LOOKUP); /* its own short deadline */
        assert_int_equal(p.state, KNI_FETCH_STATE_DONE);
        assert_int_equal(p.n_restored, 0);
        fetch_end(&job);
        await_health(f, false, true);
        assert_int_equal(health(f).read_errors, 1);
        assert_int_equal(log_book_take(NULL, 0), 1);
        uint32_t n_lookups = fake_read(s, &s->n_lookups);
        for (int i = 0; i < 10; i++) { /* nobody else pays */
            p = fetch_all(f, prompt, N, 0, "a", &into);
            assert_int_equal(p.state, KNI_FETCH_STATE_DONE);
            assert_int_equal(p.n_restored, 0);
        }
        assert_int_equal(fake_read(s, &s->n_lookups), n_lookups);
        assert_int_equal(health(f).read_errors, 1);
        FAKE_SET(s, s->lookup_gate = false);
        fake_release(s);
        await_health(f, true, true); /* the call that was out tells */
        expect_fetched(f, &source, &into);
        kni_fetcher_close(&f);
        pool_free(&source);
        pool_free(&into);
    }
}

/* All workers hang in downloads. Jobs that have not begun are let go when it is found, long before their own deadline. */
static void downloads_that_hang_hold_nobody(void **state)
{
    (void)state;
    struct test_pool source = pool_make(N, -1), into = pool_make(N, 0xee), into2 = pool_make(N, 0xee);
    struct fake_store *s = filled(&source);
    struct kni_fetcher *f = open_on(s, 2, LONG_MS, 0, 1500, 0);
    struct kni_fetch *job[2] = {NULL, NULL};
    const struct test_pool *pools[2] = {&into, &into2};
    for (uint32_t c = 0; c < N_CHUNKS; c++)
        FAKE_SET(s, s->get_trouble[c] = TROUBLE_GATE);
    for (int i = 0; i < 2; i++) { /* the second finds its lookup answered although both workers hang: the keeper does that */
        assert_int_equal(kni_fetch_begin(&job[i], f, prompt, N, 0, "a"), KN_OK);
        struct kni_fetch_progress p = await_past(f, job[i], KNI_FETCH_STATE_LOOKUP);
        if (p.state == KNI_FETCH_STATE_READY) /* else this machine was so slow that the first ones have been found to hang */
            assert_int_equal(fetch_start(job[i], &pools[i]->view, p.n_wanted), KN_OK);
        else
            assert_false(health(f).read_ok);
        if (!i)
            fake_await_waiting(s, 2);
    }
    for (int i = 0; i < 2; i++) {
        struct kni_fetch_progress p = await_past(f, job[i], KNI_FETCH_STATE_RUNNING);
        assert_int_equal(p.state, KNI_FETCH_STATE_DONE);
        assert_int_equal(p.n_restored, 0);
        assert_true(p.elapsed_ns < LONG_MS * 1000000ull);
        fetch_end(&job[i]);
    }
    memset(into.host.k, 0xaa, into.n_values * 2); /* ours again */
    memset(into2.host.k, 0xaa, into.n_values * 2);
    assert_true(health(f).read_errors >= 1 && !health(f).read_ok);
    for (uint32_t c = 0; c < N_CHUNKS; c++)
        FAKE_SET(s, s->get_trouble[c] = TROUBLE_NONE);
    fake_release(s);
    await_health(f, true, true);
    for (size_t i = 0; i < into.n_values; i++)
        assert_int_equal(into.host.k[i], 0xaaaa);
    expect_fetched(f, &source, &into);
    kni_fetcher_close(&f);
    pool_free(&source);
    pool_free(&into);
    pool_free(&into2);
}

/* A put hangs: its publish and the queued ones are given back, so that their blocks can be used again, which they are here. */
static void puts_that_hang_hold_no_blocks(void **state)
{
    (void)state;
    struct test_pool source = pool_make(N, -1), first = pool_make(N, -1), into = pool_make(N, 0xee);
    struct kni_publish_stats ps;
    struct fake_store *s = fake_open();
    void *cookie;
    enum kn_status st;
    int marks[5];
    uint32_t n_back = 0;
    prompt_fill(prompt, N);
    struct kni_fetcher *f = open_on(s, 1, LONG_MS, 0, 1500, 0);
    FAKE_SET(s, s->put_gate = true);
    assert_int_equal(kni_publish_submit(f, prompt, N, "a", &first.view, NULL, &marks[0]), KN_OK);
    fake_await_waiting(s, 1);
    for (int i = 1; i < 4; i++)
        assert_int_equal(kni_publish_submit(f, prompt, N, "b", &source.view, NULL, &marks[i]), KN_OK);
    while (n_back < 4) {
        kni_fetcher_wait(f, 20);
        if (!kni_publish_poll(f, &cookie, &st))
            continue;
        assert_ptr_equal(cookie, &marks[n_back++]);
        assert_int_equal(st, KN_E_TIMEOUT);
    }
    memset(first.host.k, 0x55, first.n_values * 2);
    assert_int_equal(kni_publish_submit(f, prompt, N, "b", &source.view, NULL, &marks[4]), KN_OK); /* nobody is there to work on it */
    assert_true(kni_publish_poll(f, &cookie, &st));
    assert_ptr_equal(cookie, &marks[4]);
    assert_int_equal(st, KN_E_IO);
    kni_publish_get_stats(f, &ps);
    assert_int_equal(ps.n_queued, 0);
    assert_int_equal(ps.n_errors, 5);
    assert_true(health(f).read_ok && !health(f).write_ok);
    assert_int_equal(health(f).write_errors, 1);
    struct kni_fetch_progress p = fetch_all(f, prompt, N, 0, "a", &into); /* reading goes on */
    assert_int_equal(p.n_restored, 0);
    FAKE_SET(s, s->put_gate = false);
    fake_release(s);
    await_health(f, true, true);
    assert_int_equal(publish_wait(f, prompt, N, "a", &source), KN_OK);
    expect_fetched(f, &source, &into); /* the first chunk was encoded before its blocks were lost */
    kni_publish_get_stats(f, &ps);
    assert_int_equal(ps.n_chunks, N_CHUNKS); /* and counted once */
    kni_fetcher_close(&f);
    pool_free(&source);
    pool_free(&first);
    pool_free(&into);
}

/* A store that fails is asked by the keeper alone, and found well again without a request. */
static void the_keeper_finds_a_store_that_is_back(void **state)
{
    (void)state;
    struct test_pool source = pool_make(N, -1), into = pool_make(N, 0xee);
    struct fake_store *s = filled(&source);
    struct kni_fetcher *f = open_on(s, 2, 0, 0, 0, 0);
    FAKE_SET(s, s->lookup_fails = true);
    while (health(f).read_ok)
        assert_int_equal(fetch_all(f, prompt, N, 0, "a", &into).n_restored, 0);
    assert_true(health(f).read_errors >= 3); /* and a probe, maybe */
    while (health(f).read_errors < 4)
        nap(); /* a probe */
    assert_false(health(f).read_ok);
    FAKE_SET(s, s->lookup_fails = false);
    await_health(f, true, true);
    expect_fetched(f, &source, &into);
    FAKE_SET(s, s->put_status = KN_E_IO);
    while (health(f).write_ok)
        assert_int_equal(publish_wait(f, prompt, N, "b", &source), KN_E_IO);
    assert_true(health(f).read_ok);
    assert_true(health(f).write_errors >= 3);
    FAKE_SET(s, s->put_status = KN_OK);
    await_health(f, true, true);
    assert_int_equal(publish_wait(f, prompt, N, "b", &source), KN_OK);
    kni_fetcher_close(&f);
    pool_free(&source);
    pool_free(&into);
}

/* Threads that the store does not give back are left to themselves, and free what is left when it does. */
static void closing_does_not_wait_for_ever(void **state)
{
    (void)state;
    struct test_pool source = pool_make(N, -1);
    struct fake_store *s = filled(&source);
    struct kni_fetcher *f = open_on(s, 1, LONG_MS, 30, 0, 100);
    struct kni_fetch *job = NULL;
    FAKE_SET(s, (s->lookup_gate = true, s->put_gate = true));
    assert_int_equal(kni_fetch_begin(&job, f, prompt, N, 0, "a"), KN_OK);
    await_past(f, job, KNI_FETCH_STATE_LOOKUP);
    fake_await_waiting(s, 1);
    fetch_end(&job);
    assert_int_equal(kni_publish_submit(f, prompt, N, "b", &source.view, NULL, NULL), KN_OK);
    fake_await_waiting(s, 2); /* a lookup's and a publisher's, or both the publisher's and another's */
    log_book_take(NULL, 0);
    kni_fetcher_close(&f);
    assert_null(f);
    assert_int_equal(log_book_take(NULL, 0), 1);
    pool_free(&source); /* the pool goes, too */
    fake_release(s);    /* s belongs to them */
    while (kni_alloc_get_stats(KNI_ALLOC_TAG_FETCH).current_bytes)
        nap();
}

int main(void)
{
    kn_log_set(log_book_fn, NULL, KN_LOG_LEVEL_WARN);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_lookup_that_hangs_costs_once),
        cmocka_unit_test(downloads_that_hang_hold_nobody),
        cmocka_unit_test(puts_that_hang_hold_no_blocks),
        cmocka_unit_test(the_keeper_finds_a_store_that_is_back),
        cmocka_unit_test(closing_does_not_wait_for_ever),
    };
    return cmocka_run_group_tests_name("store_watch", tests, NULL, NULL);
}
