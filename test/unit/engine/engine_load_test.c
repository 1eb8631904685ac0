/* SPDX-License-Identifier: Apache-2.0 */
/* What a server needs of the engine: limits, deadlines, stops from outside, numbers, and prefixes shared while they are computed. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <time.h>

#include <cmocka.h>

#include "support/engine_bed.h"
#include "support/open_tiny.h"

static struct kn_model *model;
static uint32_t n_vocab;

static int set_up(void **state)
{
    (void)state;
    if (!(model = kn_open_tiny(NULL)))
        return -1;
    n_vocab = kn_model_info(model)->n_vocab;
    return 0;
}

static int tear_down(void **state)
{
    (void)state;
    kn_model_close(&model);
    return 0;
}

static struct kn_engine *engine_open(struct kn_engine_opts o)
{
    struct kn_engine *e;
    struct kn_err err = {0};
    o.size = sizeof o;
    o.n_threads = 1;
    if (kn_engine_open(&e, model, &o, &err))
        fail_msg("%s", err.text);
    return e;
}

static struct kn_request *submit(struct kn_engine *e, struct kn_request_opts o)
{
    struct kn_request *r;
    struct kn_err err = {0};
    o.size = sizeof o;
    if (kn_request_submit(&r, e, &o, &err))
        fail_msg("%s", err.text);
    return r;
}

static enum kn_request_state state_of(const struct kn_request *r)
{
    struct kn_request_stats s = {.size = sizeof s};
    kn_request_get_stats(r, &s);
    return s.state;
}

static struct kn_engine_stats stats_of(const struct kn_engine *e)
{
    struct kn_engine_stats s = {.size = sizeof s};
    kn_engine_get_stats(e, &s);
    return s;
}

static void assert_sound(const struct kn_engine *e)
{
    struct kn_err err = {0};
    if (kn_engine_check(e, &err))
        fail_msg("%s", err.text);
}

/* At the end of a day: no request is open, so all blocks are free or cached. */
static void close_empty(struct kn_engine *e)
{
    struct kn_engine_stats s = stats_of(e);
    assert_sound(e);
    assert_int_equal(s.n_free_blocks + s.n_cached_blocks, s.n_blocks);
    assert_int_equal(s.n_waiting + s.n_fetching + s.n_running, 0);
    assert_int_equal(s.n_fetch_blocks + s.n_publish_blocks, 0);
    assert_int_equal(s.n_prompt_tokens, s.n_cached_tokens + s.n_fetched_tokens + s.n_computed_tokens);
    kn_engine_close(&e);
}

static void test_places(void **state)
{
    (void)state;
    int32_t p[5][40];
    struct kn_request *r[5];
    struct kn_answer a[5] = {0};
    struct kn_engine *e = engine_open((struct kn_engine_opts){.n_ctx = 64, .max_running = 2, .pool_bytes = 4096 * kn_model_info(model)->kv_bytes_per_token});
    for (uint32_t i = 0; i < 5; i++) {
        kn_bed_prompt(p[i], 40, i + 1);
        r[i] = submit(e, (struct kn_request_opts){.tokens = p[i], .n_tokens = 40, .max_tokens = 6, .ignore_stop = true});
        assert_int_equal(state_of(r[i]), KN_REQUEST_STATE_WAITING);
    }
    assert_int_equal(stats_of(e).n_waiting, 5);
    assert_int_equal(kn_engine_step(e), KN_OK);
    assert_int_equal(stats_of(e).n_running, 2);
    assert_int_equal(stats_of(e).n_waiting, 3);
    assert_int_equal(state_of(r[1]), KN_REQUEST_STATE_RUNNING);
    assert_int_equal(state_of(r[2]), KN_REQUEST_STATE_WAITING);
    uint8_t blocks[8];
    kn_engine_get_blocks(e, stats_of(e).n_blocks - 4, 8, blocks);
    assert_int_equal(blocks[4] + blocks[7], KN_BLOCK_STATE_FREE);
    kn_bed_run(e, r, a, 5, n_vocab);
    for (uint32_t i = 0; i < 5; i++) {
        assert_int_equal(a[i].n, 6);
        assert_int_equal(a[i].stats.state, KN_REQUEST_STATE_DONE);
        kn_request_close(&r[i]);
    }
    assert_int_equal(stats_of(e).n_generated_tokens, 30);
    assert_int_equal(kn_engine_step(e), KN_AGAIN);
    close_empty(e);
}

static void test_deadline_and_finish(void **state)
{
    (void)state;
    int32_t p[40];
    kn_bed_prompt(p, 40, 1);
    struct kn_event ev = {.size = sizeof ev};
    struct kn_engine *e = engine_open((struct kn_engine_opts){.n_ctx = 256, .max_running = 1});
    kn_engine_wake(e); /* without a store: nothing to wake */
    struct kn_request *r = submit(e, (struct kn_request_opts){.tokens = p, .n_tokens = 40, .max_tokens = 200, .ignore_stop = true});
    assert_int_equal(kn_bed_step(e), KN_OK);
    struct kn_request *late = submit(e, (struct kn_request_opts){.tokens = p, .n_tokens = 40, .max_tokens = 2, .wait_ms = 1});
    nanosleep(&(struct timespec){.tv_nsec = 3000000}, NULL);
    assert_int_equal(kn_bed_step(e), KN_OK);
    assert_int_equal(kn_request_next(late, &ev), KN_OK);
    assert_int_equal(ev.kind, KN_EVENT_KIND_DONE);
    assert_int_equal(ev.reason, KN_STOP_REASON_ERROR);
    assert_int_equal(ev.status, KN_E_TIMEOUT);
    kn_request_close(&late);
    kn_request_finish(r);
    uint32_t n = 0;
    while (kn_request_next(r, &ev) == KN_OK && ev.kind == KN_EVENT_KIND_TOKEN)
        n++;
    assert_int_equal(ev.reason, KN_STOP_REASON_STOP);
    assert_int_equal(n, 2);
    kn_request_finish(r);
    kn_request_finish(NULL);
    assert_sound(e); /* with an open one that keeps its blocks */
    kn_request_close(&r);
    close_empty(e);
}

/* Many at once with one system prompt: it is computed once, and every answer is that of a request alone. */
static void test_shared_prefix(void **state)
{
    (void)state;
    enum { N_REQ = 6, N_PREFIX = 96, N_ALL = 110 };
    int32_t p[N_REQ][N_ALL];
    struct kn_request *r[N_REQ];
    static struct kn_answer a[N_REQ], alone;
    const uint64_t pool_bytes = 2048 * kn_model_info(model)->kv_bytes_per_token;
    memset(a, 0, sizeof a);
    struct kn_engine *e = engine_open((struct kn_engine_opts){.n_ctx = 256, .prefill_chunk = 40, .pool_bytes = pool_bytes});
    for (uint32_t i = 0; i < N_REQ; i++) {
        kn_bed_prompt(p[i], N_ALL, 100 + i);
        kn_bed_prompt(p[i], N_PREFIX, 7);
        r[i] = submit(e, (struct kn_request_opts){.tokens = p[i], .n_tokens = N_ALL, .max_tokens = 8, .ignore_stop = true});
    }
    kn_bed_run(e, r, a, N_REQ, n_vocab);
    assert_int_equal(stats_of(e).n_computed_tokens, N_PREFIX + N_REQ * (N_ALL - N_PREFIX));
    for (uint32_t i = 0; i < N_REQ; i++) {
        assert_int_equal(a[i].stats.n_cached, i ? N_PREFIX : 0);
        kn_request_close(&r[i]);
    }
    close_empty(e);
    for (uint32_t i = 0; i < N_REQ; i++) {
        memset(&alone, 0, sizeof alone);
        e = engine_open((struct kn_engine_opts){.n_ctx = 256, .no_prefix_cache = true});
        struct kn_request *one = submit(e, (struct kn_request_opts){.tokens = p[i], .n_tokens = N_ALL, .max_tokens = 8, .ignore_stop = true});
        kn_bed_run(e, &one, &alone, 1, n_vocab);
        assert_int_equal(alone.n, a[i].n);
        assert_memory_equal(alone.tokens, a[i].tokens, a[i].n * sizeof *a[i].tokens);
        kn_request_close(&one);
        close_empty(e);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_places), cmocka_unit_test(test_deadline_and_finish), cmocka_unit_test(test_shared_prefix)};
    return cmocka_run_group_tests(tests, set_up, tear_down);
}
