/* SPDX-License-Identifier: Apache-2.0 */
/* Publishing: what is put, what is said when it fails, the bounded queue, closing in the middle, and a real LMDB store. */
#include "unit/fetch/fetch_support.h"

#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#define N 330u
#define N_CHUNKS 10u

static int32_t prompt[N];

static void only_whole_chunks_are_published(void **state)
{
    struct test_pool source = pool_make(N, -1);
    (void)state;
    prompt_fill(prompt, N);
    struct fake_store *s = fake_open();
    struct kni_fetcher *f = fetcher_on(s, 2, 0);
    assert_int_equal(publish_wait(f, prompt, 0, NULL, &source), KN_OK);
    assert_int_equal(publish_wait(f, prompt, CHUNK - 1, NULL, &source), KN_OK);
    assert_int_equal(fake_read(s, &s->n_puts), 0);
    assert_int_equal(publish_wait(f, prompt, 2 * CHUNK + 5, NULL, &source), KN_OK);
    assert_int_equal(fake_read(s, &s->n_puts), 2);
    assert_int_equal(publish_wait(f, prompt, N, "", &source), KN_OK); /* NULL and "" are the same tenant */
    assert_int_equal(fake_read(s, &s->n_puts), N_CHUNKS);
    assert_int_equal(kni_publish_submit(f, prompt, N + 16, NULL, &source.view, NULL, NULL), KN_E_ARG); /* more than the table covers */
    kni_fetcher_close(&f);
    pool_free(&source);
}

/* Exact chunks are never made of blocks that came lossy, and what lies behind such a chunk descends from it. */
static void nothing_is_named_better_than_it_is(void **state)
{
    struct test_pool source = pool_make(N, -1);
    uint8_t qualities[(N + KNI_BLOCK_TOKENS - 1) / KNI_BLOCK_TOKENS]; /* of the view, whose last block is not full */
    struct kni_publish_stats ps;
    (void)state;
    prompt_fill(prompt, N);
    for (uint32_t bad = 0; bad < N / KNI_BLOCK_TOKENS; bad++) {
        struct fake_store *s = fake_open();
        struct kni_fetcher *f = fetcher_on(s, 2, 0);
        void *cookie;
        enum kn_status status;
        memset(qualities, KN_KV_QUALITY_EXACT, sizeof qualities);
        qualities[bad] = KN_KV_QUALITY_FINE;
        assert_int_equal(kni_publish_submit(f, prompt, N, NULL, &source.view, qualities, NULL), KN_OK);
        while (!kni_publish_poll(f, &cookie, &status))
            kni_fetcher_wait(f, 1000);
        assert_int_equal(status, KN_OK);
        assert_int_equal(fake_read(s, &s->n_puts), bad * KNI_BLOCK_TOKENS / CHUNK);
        kni_publish_get_stats(f, &ps);
        assert_int_equal(ps.n_refused, 1);
        assert_int_equal(ps.n_errors, 0);
        kni_fetcher_close(&f);
    }
    pool_free(&source);
}

/* Counted, said once with its place, and what lies before it is stored; nobody else's publish suffers. */
static void what_is_not_finite_is_not_published(void **state)
{
    static const uint16_t bad[] = {0x7c00, 0xfc00, 0x7e00};
    struct kni_publish_stats ps;
    char said[1024];
    (void)state;
    prompt_fill(prompt, N);
    for (unsigned i = 0; i < 3; i++) {
        struct test_pool source = pool_make(N, -1);
        struct fake_store *s = fake_open();
        struct kni_fetcher *f = fetcher_on(s, 2, 0);
        kni_kv_row(&source.host, 0, i % 2, 0, 4 * CHUNK + 3)[1] = bad[i];
        log_book_take(NULL, 0);
        for (uint32_t k = 1; k <= 3; k++) {
            assert_int_equal(publish_wait(f, prompt, N, NULL, &source), KN_E_NOT_FINITE);
            assert_int_equal(fake_read(s, &s->n_puts), 4);
            kni_publish_get_stats(f, &ps);
            assert_int_equal(ps.n_errors, k);
        }
        assert_int_equal(log_book_take(said, sizeof said), 1);
        assert_non_null(strstr(said, i % 2 ? "V of layer 0 at position" : "K of layer 0 at position"));
        assert_int_equal(publish_wait(f, prompt, 4 * CHUNK, NULL, &source), KN_OK);
        kni_fetcher_close(&f);
        pool_free(&source);
    }
}

static void errors_are_returned_and_said_once(void **state)
{
    struct test_pool source = pool_make(N, -1);
    struct kni_publish_stats ps;
    (void)state;
    prompt_fill(prompt, N);
    struct fake_store *s = fake_open();
    struct kni_fetcher *f = fetcher_on(s, 2, 0);
    log_book_take(NULL, 0);
    FAKE_SET(s, s->put_status = KN_E_FULL);
    for (int i = 0; i < 5; i++)
        assert_int_equal(publish_wait(f, prompt, N, NULL, &source), KN_E_FULL);
    assert_int_equal(log_book_take(NULL, 0), 1);
    assert_int_equal(fake_read(s, &s->n_puts), 5); /* nothing is put behind a gap */
    kni_publish_get_stats(f, &ps);
    assert_int_equal(ps.n_errors, 5);
    assert_int_equal(ps.n_chunks, 0);
    FAKE_SET(s, s->put_status = KN_OK);
    assert_int_equal(publish_wait(f, prompt, N, NULL, &source), KN_OK);
    FAKE_SET(s, s->put_status = KN_E_IO); /* a dead store: after three failures it is not asked any more */
    uint32_t before = fake_read(s, &s->n_puts);
    for (int i = 0; i < 8; i++)
        assert_int_equal(publish_wait(f, prompt, N, "other", &source), KN_E_IO);
    assert_int_equal(log_book_take(NULL, 0) <= 2, 1); /* the kind, and the pause */
    assert_true(fake_read(s, &s->n_puts) <= before + 4);
    kni_fetcher_close(&f);
    pool_free(&source);
}

static void the_queue_is_bounded(void **state)
{
    struct test_pool source = pool_make(N, -1);
    struct kni_publish_stats ps;
    uint32_t n = 0;
    void *cookie;
    enum kn_status st, one = KN_OK;
    (void)state;
    prompt_fill(prompt, N);
    struct fake_store *s = fake_open();
    struct kni_fetcher *f = fetcher_on(s, 1, 0);
    FAKE_SET(s, s->put_gate = true);
    while (n < 1000 && (one = kni_publish_submit(f, prompt, CHUNK, NULL, &source.view, NULL, &source)) == KN_OK)
        n++;
    assert_int_equal(one, KN_E_FULL);
    assert_true(n >= KNI_FETCH_MAX_PUBLISHES && n <= KNI_FETCH_MAX_PUBLISHES + 1);
    kni_publish_get_stats(f, &ps);
    assert_true(ps.n_queued >= KNI_FETCH_MAX_PUBLISHES);
    fake_release(s);
    for (uint32_t i = 0; i < n;)
        if (kni_publish_poll(f, &cookie, &st)) {
            assert_ptr_equal(cookie, &source);
            assert_int_equal(st, KN_OK);
            i++;
        } else
            kni_fetcher_wait(f, 1000);
    assert_false(kni_publish_poll(f, &cookie, &st));
    kni_publish_get_stats(f, &ps);
    assert_int_equal(ps.n_queued, 0);
    assert_int_equal(ps.n_chunks, 1);
    kni_fetcher_close(&f);
    pool_free(&source);
}

static void *release_soon(void *arg)
{
    nanosleep(&(struct timespec){.tv_nsec = 20000000}, NULL);
    fake_release(arg);
    return NULL;
}

static void close_drops_what_has_not_begun(void **state)
{
    struct test_pool source = pool_make(N, -1);
    bool closed = false;
    pthread_t t;
    (void)state;
    prompt_fill(prompt, N);
    struct fake_store *s = fake_open();
    struct kni_fetcher *f = fetcher_on(s, 1, 0);
    s->closed = &closed;
    FAKE_SET(s, s->put_gate = true);
    for (int i = 0; i < 20; i++)
        assert_int_equal(kni_publish_submit(f, prompt, N, NULL, &source.view, NULL, NULL), KN_OK);
    fake_await_waiting(s, 1);
    assert_int_equal(pthread_create(&t, NULL, release_soon, s), 0);
    kni_fetcher_close(&f); /* waits for the put that is under way, no more */
    pthread_join(t, NULL);
    assert_true(closed);
    pool_free(&source);
    assert_int_equal(kni_alloc_get_stats(KNI_ALLOC_TAG_FETCH).current_bytes, 0);
}

static void allocations_may_fail(void **state)
{
    struct test_pool source = pool_make(N, -1);
    bool hit = true;
    (void)state;
    prompt_fill(prompt, N);
    for (uint64_t n = 1; hit && n < 2000; n += 1 + n / 16) {
        struct fake_store *s = fake_open();
        struct kni_fetcher *f = NULL;
        struct kni_fetcher_opts o = test_opts(1, 0);
        struct kn_err err = {0};
        enum kn_status st = KN_OK;
        void *cookie;
        kni_alloc_fault_arm(n, false);
        if (kni_fetcher_open_on(&f, &o, &s->base, &err) == KN_OK && kni_publish_submit(f, prompt, N, NULL, &source.view, NULL, NULL) == KN_OK)
            while (!kni_publish_poll(f, &cookie, &st))
                kni_fetcher_wait(f, 1000);
        hit = kni_alloc_fault_hit();
        kni_alloc_fault_arm(0, false);
        assert_true(st == KN_OK || st == KN_E_NOMEM);
        kni_fetcher_close(&f);
    }
    assert_false(hit);
    assert_int_equal(kni_alloc_get_stats(KNI_ALLOC_TAG_FETCH).current_bytes, 0);
    pool_free(&source);
}

/* Fails from the given call on. */
struct checker { _Atomic uint32_t n_calls; uint32_t good_calls; };

static enum kn_status check_some(void *of)
{
    struct checker *c = of;
    return c->n_calls++ < c->good_calls ? KN_OK : KN_E_CHANGED;
}

/* A chunk is looked after before it is encoded and behind that: what changes in between is not written, and nothing after it. */
static void nothing_is_published_after_a_change(void **state)
{
    struct test_pool source = pool_make(N, -1), into = pool_make(N, 0xee);
    (void)state;
    prompt_fill(prompt, N);
    for (uint32_t good = 0; good <= 2 * N_CHUNKS; good++) {
        struct fake_store *s = fake_open();
        struct kni_fetcher *f = NULL;
        struct checker checker = {.good_calls = good};
        struct kni_fetcher_opts o = test_opts(2, 0);
        o.check = check_some;
        o.check_of = &checker;
        assert_int_equal(kni_fetcher_open_on(&f, &o, &s->base, NULL), KN_OK);
        assert_int_equal(publish_wait(f, prompt, N, NULL, &source), good < 2 * N_CHUNKS ? KN_E_CHANGED : KN_OK);
        assert_int_equal(s->n_puts, good / 2);
        struct kni_fetch_progress p = fetch_all(f, prompt, N, 0, NULL, &into); /* nor is anything fetched, */
        assert_int_equal(p.n_restored, 0);
        assert_int_equal(s->n_gets, 0);
        assert_int_equal(s->n_drops, 0); /* or taken for damaged */
        kni_fetcher_close(&f);
    }
    assert_int_equal(log_book_take(NULL, 0), 0); /* who finds the change says it */
    pool_free(&source);
    pool_free(&into);
}

/* The store holds a prefix, and the change comes while it is being fetched: chunk by chunk, what comes after it is left. */
static void nothing_is_fetched_after_a_change(void **state)
{
    struct test_pool source = pool_make(N, -1), into = pool_make(N, 0xee);
    (void)state;
    prompt_fill(prompt, N);
    for (uint32_t good = 0; good <= N_CHUNKS + 1; good++) {
        struct fake_store *s = fake_open();
        struct kni_fetcher *f = NULL;
        struct checker checker = {.good_calls = UINT32_MAX};
        struct kni_fetcher_opts o = test_opts(1, 0);
        o.check = check_some;
        o.check_of = &checker;
        assert_int_equal(kni_fetcher_open_on(&f, &o, &s->base, NULL), KN_OK);
        assert_int_equal(publish_wait(f, prompt, N, NULL, &source), KN_OK);
        checker.good_calls = checker.n_calls + good; /* one for the lookup, one for each chunk */
        struct kni_fetch_progress p = fetch_all(f, prompt, N, 0, NULL, &into);
        assert_int_equal(p.n_restored, good ? (good - 1) * CHUNK : 0);
        assert_true(pool_equal(&source, &into, 0, (uint32_t)p.n_restored));
        assert_int_equal(s->n_drops, 0);
        kni_fetcher_close(&f);
    }
    pool_free(&source);
    pool_free(&into);
}

static struct kni_fetcher *fetcher_lmdb(const char *url)
{
    struct kni_fetcher *f = NULL;
    struct kn_err err = {0};
    struct kni_fetcher_opts o = test_opts(2, 0);
    o.store_url = url;
    if (kni_fetcher_open(&f, &o, &err))
        fail_msg("%s", err.text);
    return f;
}

/* The point of it all: one process publishes, another fetches the same bits; nothing but the bytes decides the keys. */
static void one_process_publishes_another_fetches(void **state)
{
    struct test_pool source = pool_make(N, -1), into = pool_make(N, 0xee);
    char path[] = "/tmp/kn-publish-XXXXXX", url[64], command[64];
    int status;
    (void)state;
    prompt_fill(prompt, N);
    assert_non_null(mkdtemp(path));
    snprintf(url, sizeof url, "lmdb:%s", path);
    pid_t child = fork();
    if (child == 0) {
        struct kni_fetcher *f = fetcher_lmdb(url);
        enum kn_status s = publish_wait(f, prompt, N, "tenant", &source);
        kni_fetcher_close(&f);
        _exit(s != KN_OK);
    }
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_int_equal(status, 0);
    struct kni_fetcher *f = fetcher_lmdb(url);
    struct kni_fetch_progress p = fetch_all(f, prompt, N, 0, "tenant", &into);
    assert_int_equal(p.n_restored, N_CHUNKS * CHUNK);
    assert_true(pool_equal(&source, &into, 0, p.n_restored));
    p = fetch_all(f, prompt, N, 0, "", &into);
    assert_int_equal(p.n_restored, 0);
    kni_fetcher_close(&f);
    snprintf(command, sizeof command, "rm -rf %s", path);
    assert_int_equal(system(command), 0);
    pool_free(&source);
    pool_free(&into);
}

int main(void)
{
    kn_log_set(log_book_fn, NULL, KN_LOG_LEVEL_WARN);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(one_process_publishes_another_fetches), /* first: it forks, so no threads may exist yet */
        cmocka_unit_test(only_whole_chunks_are_published),
        cmocka_unit_test(nothing_is_named_better_than_it_is),
        cmocka_unit_test(nothing_is_published_after_a_change),
        cmocka_unit_test(nothing_is_fetched_after_a_change),
        cmocka_unit_test(what_is_not_finite_is_not_published),
        cmocka_unit_test(errors_are_returned_and_said_once),
        cmocka_unit_test(the_queue_is_bounded),
        cmocka_unit_test(close_drops_what_has_not_begun),
        cmocka_unit_test(allocations_may_fail),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
