/* SPDX-License-Identifier: Apache-2.0 */
/* What an owner may do that does not want to wait: blocks handed over bit by bit, giving up, taking publishes back. */
#include "unit/fetch/fetch_support.h"

#define N 330u /* prompt tokens: 10 chunks and 10 tokens */
#define N_CHUNKS 10u

static int32_t prompt[N];

static struct fake_store *published(struct kni_fetcher **f, uint32_t n_workers, struct test_pool *source)
{
    struct fake_store *s = fake_open();
    prompt_fill(prompt, N);
    *source = pool_make(N, -1);
    *f = fetcher_on(s, n_workers, 0);
    assert_int_equal(publish_wait(*f, prompt, N, "a", source), KN_OK);
    log_book_take(NULL, 0);
    return s;
}

/* The view as an owner has it that has reserved n tokens only. */
static struct kni_kv_view first_blocks(const struct test_pool *pool, uint32_t n_tokens)
{
    struct kni_kv_view v = pool->view;
    v.n_blocks = n_tokens / KNI_BLOCK_TOKENS;
    return v;
}

static struct kni_fetch *ready(struct kni_fetcher *f)
{
    struct kni_fetch *job = NULL;
    assert_int_equal(kni_fetch_begin(&job, f, prompt, N, 0, "a"), KN_OK);
    assert_int_equal(await_past(f, job, KNI_FETCH_STATE_LOOKUP).state, KNI_FETCH_STATE_READY);
    return job;
}

static struct kni_fetch_progress await_restored(struct kni_fetcher *f, struct kni_fetch *job, uint32_t n)
{
    struct kni_fetch_progress p;
    for (kni_fetch_poll(job, &p); p.n_restored < n && p.state == KNI_FETCH_STATE_RUNNING; kni_fetch_poll(job, &p))
        kni_fetcher_wait(f, 1000);
    return p;
}

/* Windows of 1, 2, 3 .. chunks: nothing is written beyond, the job waits when it has filled one, and all comes in the end. */
static void windows(void **state)
{
    struct kni_fetcher *f;
    struct test_pool source, into = pool_make(N, 0xee), blank = pool_make(N, 0xee);
    (void)state;
    struct fake_store *s = published(&f, 3, &source);
    for (uint32_t chunk = 0; chunk < N_CHUNKS; chunk++)
        FAKE_SET(s, s->get_trouble[chunk] = TROUBLE_DELAY);
    struct kni_fetch *job = ready(f);
    for (uint32_t end = 1, step = 1; end <= N_CHUNKS; end += ++step) {
        struct kni_kv_view view = first_blocks(&into, end * CHUNK);
        assert_int_equal(kni_fetch_extend(job, &view, end * CHUNK, true), KN_OK);
        struct kni_fetch_progress p = await_restored(f, job, end * CHUNK);
        assert_int_equal(p.n_restored, end * CHUNK);
        assert_int_equal(p.state, end == N_CHUNKS ? KNI_FETCH_STATE_DONE : KNI_FETCH_STATE_RUNNING);
        assert_true(pool_equal(&source, &into, 0, end * CHUNK));
        assert_true(pool_equal(&blank, &into, end * CHUNK, N));
    }
    assert_int_equal(kni_fetch_extend(job, &into.view, N_CHUNKS * CHUNK, true), KN_E_STATE);
    fetch_end(&job);
    kni_fetcher_close(&f);
    pool_free(&source);
    pool_free(&into);
    pool_free(&blank);
}

/* The owner has no more blocks: the job ends with what it has. So does one whose chunk is bad, whatever is offered after. */
static void ends_of_windows(void **state)
{
    struct kni_fetcher *f;
    struct kni_fetch_progress p;
    struct test_pool source, into = pool_make(N, 0xee), blank = pool_make(N, 0xee);
    (void)state;
    struct fake_store *s = published(&f, 2, &source);
    struct kni_kv_view four = first_blocks(&into, 4 * CHUNK);
    struct kni_fetch *job = ready(f);
    assert_int_equal(kni_fetch_extend(job, &four, 4 * CHUNK, true), KN_OK);
    assert_int_equal(await_restored(f, job, 4 * CHUNK).state, KNI_FETCH_STATE_RUNNING);
    assert_int_equal(kni_fetch_extend(job, &four, 0, false), KN_OK);
    kni_fetch_poll(job, &p);
    assert_int_equal(p.state, KNI_FETCH_STATE_DONE);
    assert_int_equal(p.n_restored, 4 * CHUNK);
    assert_int_equal(p.n_misses, 0);
    fetch_end(&job);

    FAKE_SET(s, s->get_trouble[2] = TROUBLE_CORRUPT);
    job = ready(f);
    assert_int_equal(kni_fetch_extend(job, &four, 4 * CHUNK, true), KN_OK);
    p = await_past(f, job, KNI_FETCH_STATE_RUNNING);
    assert_int_equal(p.n_restored, 2 * CHUNK);
    assert_int_equal(kni_fetch_extend(job, &into.view, N_CHUNKS * CHUNK, true), KN_E_STATE);
    assert_true(pool_equal(&blank, &into, 4 * CHUNK, N));
    fetch_end(&job);
    kni_fetcher_close(&f);
    pool_free(&source);
    pool_free(&into);
    pool_free(&blank);
}

/* A worker that writes is not waited for; one in a download needs no waiting. */
static void try_end(void **state)
{
    struct kni_fetcher *f;
    struct test_pool source, into = pool_make(N, 0xee), blank = pool_make(N, 0xee);
    (void)state;
    struct fake_store *s = published(&f, 1, &source);
    FAKE_SET(s, s->get_trouble[0] = TROUBLE_GATE);
    struct kni_fetch *job = ready(f);
    assert_int_equal(fetch_start(job, &into.view, N_CHUNKS * CHUNK), KN_OK);
    fake_await_waiting(s, 1);
    pthread_mutex_lock(&f->lock);
    job->n_restoring++; /* as a worker does in front of a restore */
    pthread_mutex_unlock(&f->lock);
    assert_false(kni_fetch_try_end(&job));
    assert_non_null(job);
    assert_false(kni_fetch_try_end(&job));
    pthread_mutex_lock(&f->lock);
    job->n_restoring--;
    pthread_mutex_unlock(&f->lock);
    assert_true(kni_fetch_try_end(&job)); /* although the download stands at the gate */
    assert_null(job);
    fake_release(s);
    kni_fetcher_close(&f);
    assert_true(pool_equal(&blank, &into, 0, N));
    pool_free(&source);
    pool_free(&into);
    pool_free(&blank);
}

/* Many jobs given up at random moments while workers decode: the blocks are untouched from the moment of true on. */
static void given_up_at_random(void **state)
{
    struct kni_fetcher *f;
    struct test_pool source, into = pool_make(N, 0xee), blank = pool_make(N, 0xee);
    uint32_t n_refused = 0;
    (void)state;
    published(&f, 3, &source);
    for (uint32_t i = 0; i < 300; i++) {
        struct kni_fetch *job = ready(f);
        assert_int_equal(fetch_start(job, &into.view, N_CHUNKS * CHUNK), KN_OK);
        for (volatile uint32_t spin = 0; spin < i * 300 % 70000; spin++)
            ;
        while (!kni_fetch_try_end(&job)) {
            n_refused++;
            kni_fetcher_wait(f, 1000);
        }
        memcpy(into.host.k, blank.host.k, into.n_values * 2);
        if (i % 10 == 0)
            nap();
        assert_true(pool_equal(&blank, &into, 0, N));
    }
    print_message("%u of 300 had to be asked again\n", n_refused);
    kni_fetcher_close(&f);
    pool_free(&source);
    pool_free(&into);
    pool_free(&blank);
}

/* The last comes back first; what has begun stays. */
static void withdraw(void **state)
{
    struct fake_store *s = fake_open();
    struct kni_fetcher *f = fetcher_on(s, 1, 0);
    struct test_pool source = pool_make(N, -1);
    struct kni_publish_stats ps;
    int marks[4];
    void *cookie = NULL;
    enum kn_status status;
    (void)state;
    prompt_fill(prompt, N);
    assert_false(kni_publish_withdraw(f, &cookie));
    FAKE_SET(s, s->put_gate = true);
    assert_int_equal(kni_publish_submit(f, prompt, CHUNK, "a", &source.view, NULL, &marks[0]), KN_OK);
    fake_await_waiting(s, 1);
    for (uint32_t i = 1; i < 4; i++)
        assert_int_equal(kni_publish_submit(f, prompt, CHUNK * (i + 1), "a", &source.view, NULL, &marks[i]), KN_OK);
    for (uint32_t i = 3; i > 1; i--) {
        assert_true(kni_publish_withdraw(f, &cookie));
        assert_ptr_equal(cookie, &marks[i]);
    }
    kni_publish_get_stats(f, &ps);
    assert_int_equal(ps.n_queued, 2);
    assert_int_equal(kni_publish_submit(f, prompt, CHUNK * 5, "a", &source.view, NULL, &marks[3]), KN_OK); /* the queue still works */
    assert_true(kni_publish_withdraw(f, &cookie));
    assert_ptr_equal(cookie, &marks[3]);
    fake_release(s);
    for (uint32_t i = 0; i < 2; i++) {
        while (!kni_publish_poll(f, &cookie, &status))
            kni_fetcher_wait(f, 1000);
        assert_ptr_equal(cookie, &marks[i]);
        assert_int_equal(status, KN_OK);
    }
    assert_int_equal(fake_read(s, &s->n_items), 2);
    assert_false(kni_publish_withdraw(f, &cookie));
    kni_fetcher_close(&f);
    pool_free(&source);
}

int main(void)
{
    kn_log_set(log_book_fn, NULL, KN_LOG_LEVEL_WARN);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(windows), cmocka_unit_test(ends_of_windows), cmocka_unit_test(try_end), cmocka_unit_test(given_up_at_random), cmocka_unit_test(withdraw),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
