/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The engine on a tiny random model, through its public API: what it refuses and how it says so, events and statistics,
 * cancelling and closing at bad moments, digests, and the store as a second process would see it.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "base/alloc.h"
#include "device/kv_view.h"
#include "support/engine_bed.h"

static struct kn_model *model;
static uint32_t n_vocab;
static char model_path[256];

static int set_up(void **state)
{
    (void)state;
    kn_bed_path(model_path, "engine.gguf");
    if (kn_tiny_model_write(model_path, NULL))
        return -1;
    struct kn_model_opts mo = {.size = sizeof mo, .path = model_path};
    struct kn_err err = {0};
    if (kn_model_open(&model, &mo, &err)) {
        fprintf(stderr, "%s\n", err.text);
        return -1;
    }
    n_vocab = kn_model_info(model)->n_vocab;
    return 0;
}

static int tear_down(void **state)
{
    (void)state;
    kn_model_close(&model);
    unlink(model_path);
    return 0;
}

static struct kn_engine *engine_open(const struct kn_engine_opts *opts)
{
    struct kn_engine_opts o = opts ? *opts : (struct kn_engine_opts){0};
    struct kn_engine *e;
    struct kn_err err = {0};
    o.size = sizeof o;
    o.n_threads = o.n_threads ? o.n_threads : 1;
    if (kn_engine_open(&e, model, &o, &err))
        fail_msg("%s", err.text);
    return e;
}

static struct kn_request *submit(struct kn_engine *e, const struct kn_request_opts *opts)
{
    struct kn_request_opts o = *opts;
    struct kn_request *r;
    struct kn_err err = {0};
    o.size = sizeof o;
    if (kn_request_submit(&r, e, &o, &err))
        fail_msg("%s", err.text);
    return r;
}

static void test_bad_engine_options(void **state)
{
    (void)state;
    const uint64_t block_bytes = kn_model_info(model)->kv_bytes_per_token * KNI_BLOCK_TOKENS;
    const struct { struct kn_engine_opts o; const char *text; } bad[] = {
        {{.n_ctx = 1000}, "n_ctx is 1000"},
        {{.n_threads = 257}, "n_threads is 257"},
        {{.prefill_chunk = 8193}, "prefill_chunk is 8193"},
        {{.kv_type = (enum kn_kv_type)2}, "kv_type is 2"},
        {{.cpu_level_max_plus_1 = 4}, "cpu_level_max_plus_1 is 4"},
        {{.preset = (enum kn_preset)9}, "preset 9"},
        {{.chunk_tokens = 100}, "chunk_tokens is 100"},
        {{.max_running = 257}, "max_running is 257"},
        {{.fetch_pool_percent = 101}, "fetch_pool_percent is 101"},
        {{.pool_bytes = block_bytes - 1}, "pool_bytes"},
    };
    struct kn_engine *e = (struct kn_engine *)&e;
    for (unsigned i = 0; i < sizeof bad / sizeof *bad; i++) {
        struct kn_engine_opts o = bad[i].o;
        struct kn_err err = {0};
        o.size = sizeof o;
        assert_int_equal(kn_engine_open(&e, model, &o, &err), KN_E_ARG);
        assert_null(e);
        assert_int_equal(err.status, KN_E_ARG);
        if (!strstr(err.text, bad[i].text))
            fail_msg("\"%s\" does not say \"%s\"", err.text, bad[i].text);
    }
    struct kn_engine_opts o = {0};
    assert_int_equal(kn_engine_open(&e, model, &o, NULL), KN_E_ARG); /* size not set */
    o.size = sizeof o;
    assert_int_equal(kn_engine_open(&e, NULL, &o, NULL), KN_E_ARG);
    kn_engine_close(&e);
    kn_engine_close(NULL);
}

/* Settings that no chunk could be coded with are refused at open, before the store's folder is made. */
static void test_bad_codec_options(void **state)
{
    (void)state;
    const struct { struct kn_engine_opts o; const char *text; } bad[] = {
        {{.preset = KN_PRESET_TILES, .tiles = KN_OPTS(kn_tiles_opts, .levels = 3)}, "3 levels"},
        {{.preset = KN_PRESET_TILES, .tiles = KN_OPTS(kn_tiles_opts, .tokens_per_picture = 5)}, "5 tokens a picture"},
        {{.preset = KN_PRESET_TILES, .tiles = KN_OPTS(kn_tiles_opts, .tile_height = 3)}, "tile height 3"},
        {{.chunk_tokens = 1u << 20}, "token count"},
    };
    char url[300];
    snprintf(url, sizeof url, "lmdb:%s.never", model_path);
    for (unsigned i = 0; i < sizeof bad / sizeof *bad; i++) {
        struct kn_engine_opts o = bad[i].o;
        struct kn_engine *e;
        struct kn_err err = {0};
        o.size = sizeof o;
        o.n_threads = 1;
        o.store_url = url;
        assert_int_equal(kn_engine_open(&e, model, &o, &err), KN_E_ARG);
        assert_null(e);
        if (!strstr(err.text, bad[i].text))
            fail_msg("\"%s\" does not say \"%s\"", err.text, bad[i].text);
        assert_int_equal(access(url + strlen("lmdb:"), F_OK), -1);
    }
}

static void test_store_that_cannot_be_opened(void **state)
{
    (void)state;
    char url[300];
    snprintf(url, sizeof url, "lmdb:%s/below", model_path); /* below a file */
    struct kn_engine_opts o = {.size = sizeof o, .n_threads = 1, .store_url = url};
    struct kn_engine *e;
    struct kn_err err = {0};
    uint64_t before = kni_alloc_get_stats(KNI_ALLOC_TAG_COUNT).current_bytes;
    assert_int_not_equal(kn_engine_open(&e, model, &o, &err), KN_OK);
    assert_null(e);
    assert_non_null(strstr(err.text, model_path));
    assert_int_equal(kni_alloc_get_stats(KNI_ALLOC_TAG_COUNT).current_bytes, before);
    o.store_url = "nonsense:x";
    assert_int_not_equal(kn_engine_open(&e, model, &o, &err), KN_OK);
    assert_non_null(strstr(err.text, "nonsense"));
}

static void test_bad_requests(void **state)
{
    (void)state;
    int32_t p[600];
    kn_bed_prompt(p, 600, 1);
    struct kn_engine *e = engine_open(&(struct kn_engine_opts){.n_ctx = 256, .pool_bytes = 8 * 16 * kn_model_info(model)->kv_bytes_per_token});
    struct kn_request *r = (struct kn_request *)&r;
    struct kn_err err = {0};
    uint64_t before = kni_alloc_get_stats(KNI_ALLOC_TAG_COUNT).current_bytes;
    struct kn_request_opts o = {.size = sizeof o, .tokens = p, .max_tokens = 4};
    assert_int_equal(kn_request_submit(&r, e, &o, &err), KN_E_ARG);
    assert_null(r);
    assert_non_null(strstr(err.text, "empty"));
    o.n_tokens = 257;
    assert_int_equal(kn_request_submit(&r, e, &o, &err), KN_E_CONTEXT);
    assert_non_null(strstr(err.text, "257"));
    o.n_tokens = 10;
    p[3] = (int32_t)n_vocab;
    assert_int_equal(kn_request_submit(&r, e, &o, &err), KN_E_ARG);
    assert_non_null(strstr(err.text, "token 3"));
    p[3] = -1;
    assert_int_equal(kn_request_submit(&r, e, &o, &err), KN_E_ARG);
    p[3] = 7;
    o.n_tokens = 125;
    o.max_tokens = 5; /* 129 positions, 8 blocks hold 128 */
    assert_int_equal(kn_request_submit(&r, e, &o, &err), KN_E_FULL);
    assert_non_null(strstr(err.text, "blocks"));
    o.n_tokens = 10;
    o.sampler = KN_OPTS(kn_sampler_opts, .top_p = 2);
    assert_int_equal(kn_request_submit(&r, e, &o, &err), KN_E_ARG);
    assert_non_null(strstr(err.text, "top_p"));
    o.sampler = NULL;
    o.size = 0;
    assert_int_equal(kn_request_submit(&r, e, &o, &err), KN_E_ARG);
    o.size = sizeof o;
    o.tokens = NULL;
    assert_int_equal(kn_request_submit(&r, e, &o, &err), KN_E_ARG);
    assert_int_equal(kni_alloc_get_stats(KNI_ALLOC_TAG_COUNT).current_bytes, before);
    assert_int_equal(kn_engine_step(e), KN_AGAIN);

    /* max_tokens 0: to the end of what context and pool hold */
    o = (struct kn_request_opts){.size = sizeof o, .tokens = p, .n_tokens = 125, .ignore_stop = true};
    struct kn_answer a;
    r = submit(e, &o);
    kn_bed_run(e, &r, &a, 1, n_vocab);
    assert_int_equal(a.n, 4);
    assert_int_equal(a.reason, KN_STOP_REASON_LENGTH);
    kn_request_close(&r);
    kn_engine_close(&e);
    /* a prompt as long as the context gives one token */
    e = engine_open(&(struct kn_engine_opts){.n_ctx = 256});
    o.n_tokens = 256;
    o.max_tokens = 100;
    r = submit(e, &o);
    kn_bed_run(e, &r, &a, 1, n_vocab);
    assert_int_equal(a.n, 1);
    kn_request_close(&r);
    kn_engine_close(&e);
}

static void test_events_and_stats(void **state)
{
    (void)state;
    int32_t p[100];
    kn_bed_prompt(p, 100, 1);
    struct kn_engine *e = engine_open(&(struct kn_engine_opts){.prefill_chunk = 40});
    struct kn_request *r = submit(e, &(struct kn_request_opts){.tokens = p, .n_tokens = 100, .max_tokens = 12, .ignore_stop = true, .want_logits = true});
    struct kn_event ev = {.size = sizeof ev};
    struct kn_request_stats st = {.size = sizeof st};
    struct kn_engine_stats es = {.size = sizeof es};
    assert_int_equal(kn_request_next(r, &ev), KN_AGAIN);
    assert_int_equal(kn_bed_step(e), KN_OK);
    kn_request_get_stats(r, &st);
    assert_int_equal(st.n_prompt, 100);
    assert_int_equal(st.n_done, 40);
    assert_int_equal(st.ttft_ns, 0);
    kn_bed_step(e);
    assert_int_equal(kn_request_next(r, &ev), KN_AGAIN);
    kn_bed_step(e);
    assert_int_equal(kn_request_next(r, &ev), KN_OK);
    assert_int_equal(ev.kind, KN_EVENT_KIND_TOKEN);
    assert_non_null(ev.logits);
    for (uint32_t i = 0; i < n_vocab; i++)
        assert_true(ev.logits[i] <= ev.logits[ev.token]);
    assert_int_equal(kn_request_next(r, &ev), KN_AGAIN);
    kn_bed_step(e);
    kn_bed_step(e);
    assert_int_equal(kn_request_next(r, &ev), KN_OK);
    assert_null(ev.logits); /* read too late: they were borrowed until the next step */
    assert_int_equal(kn_request_next(r, &ev), KN_OK);
    assert_non_null(ev.logits);
    while (kn_bed_step(e) == KN_OK) /* nobody reads meanwhile: nothing is lost */
        ;
    uint32_t n = 3;
    while (kn_request_next(r, &ev) == KN_OK && ev.kind == KN_EVENT_KIND_TOKEN)
        n++;
    assert_int_equal(n, 12);
    assert_int_equal(ev.kind, KN_EVENT_KIND_DONE);
    assert_int_equal(ev.reason, KN_STOP_REASON_LENGTH);
    assert_int_equal(kn_request_next(r, &ev), KN_END);
    kn_request_get_stats(r, &st);
    assert_int_equal(st.n_done, 100);
    assert_int_equal(st.n_generated, 12);
    assert_true(st.ttft_ns > 0 && st.total_ns >= st.ttft_ns);
    kn_engine_get_stats(e, &es);
    assert_int_equal(es.n_blocks, 512 / 16);
    assert_int_equal(es.block_tokens, 16);
    assert_int_equal(es.block_bytes, 16 * kn_model_info(model)->kv_bytes_per_token);
    assert_int_equal(es.n_steps, 14);
    assert_int_equal(es.n_step_tokens, 111);
    assert_int_equal(es.n_threads, 1);
    assert_int_equal(es.n_free_blocks, 32 - 7);
    kn_request_close(&r);
    kn_engine_get_stats(e, &es);
    assert_int_equal(es.n_cached_blocks, 6);
    assert_int_equal(es.n_free_blocks, 32 - 6);
    assert_int_equal(kn_engine_flush(e, 0), KN_OK); /* without a store there is nothing to wait for */
    kn_engine_close(&e);
}

static void test_stop_token_ends_the_answer(void **state)
{
    (void)state;
    int32_t p[20];
    kn_bed_prompt(p, 20, 1);
    struct kn_engine *e = engine_open(NULL);
    bool stopped = false;
    for (uint64_t seed = 1; seed < 100 && !stopped; seed++) {
        struct kn_request_opts o = {.tokens = p, .n_tokens = 20, .max_tokens = 200,
                                    .sampler = KN_OPTS(kn_sampler_opts, .temperature = 100, .seed = seed)};
        struct kn_answer a, b;
        struct kn_request *r = submit(e, &o);
        kn_bed_run(e, &r, &a, 1, n_vocab);
        kn_request_close(&r);
        for (uint32_t i = 0; i < a.n; i++)
            assert_false(kn_model_token_is_stop(model, a.tokens[i]));
        stopped = a.reason == KN_STOP_REASON_STOP;
        o.ignore_stop = true; /* the same seed goes on where the other stopped */
        r = submit(e, &o);
        kn_bed_run(e, &r, &b, 1, n_vocab);
        kn_request_close(&r);
        assert_int_equal(b.n, 200);
        assert_memory_equal(a.tokens, b.tokens, a.n * sizeof *a.tokens);
        if (stopped)
            assert_true(kn_model_token_is_stop(model, b.tokens[a.n]));
    }
    assert_true(stopped);
    kn_engine_close(&e);
}

static void test_cancel(void **state)
{
    (void)state;
    int32_t p[200];
    kn_bed_prompt(p, 200, 1);
    struct kn_engine *e = engine_open(&(struct kn_engine_opts){.prefill_chunk = 32});
    struct kn_engine_stats es = {.size = sizeof es};
    struct kn_event ev = {.size = sizeof ev};
    uint8_t digest[16];
    for (int n_steps = 0; n_steps < 12; n_steps += 3) { /* queued, in the prompt, after the first tokens */
        struct kn_request *r = submit(e, &(struct kn_request_opts){.tokens = p, .n_tokens = 200, .max_tokens = 50, .ignore_stop = true});
        for (int i = 0; i < n_steps; i++)
            kn_bed_step(e);
        kn_request_cancel(r);
        kn_request_cancel(r);
        while (kn_request_next(r, &ev) == KN_OK && ev.kind == KN_EVENT_KIND_TOKEN)
            ;
        assert_int_equal(ev.kind, KN_EVENT_KIND_DONE);
        assert_int_equal(ev.reason, KN_STOP_REASON_CANCELLED);
        assert_int_equal(kn_request_kv_digest(r, 1, digest), KN_E_STATE);
        assert_int_equal(kn_bed_step(e), KN_AGAIN);
        kn_engine_get_stats(e, &es);
        assert_int_equal(es.n_free_blocks + es.n_cached_blocks, es.n_blocks); /* at once, not at close */
        kn_request_close(&r);
        assert_null(r);
    }
    kn_request_close(NULL);
    kn_engine_close(&e);
}

static void test_engine_closed_first(void **state)
{
    (void)state;
    int32_t p[200];
    kn_bed_prompt(p, 200, 1);
    uint64_t before = kni_alloc_get_stats(KNI_ALLOC_TAG_COUNT).current_bytes;
    struct kn_engine *e = engine_open(&(struct kn_engine_opts){.prefill_chunk = 100});
    struct kn_request_opts o = {.tokens = p, .n_tokens = 200, .max_tokens = 50, .ignore_stop = true};
    struct kn_request *queued, *going, *ended;
    struct kn_event ev = {.size = sizeof ev};
    uint8_t digest[16];
    o.max_tokens = 1;
    ended = submit(e, &o);
    while (kn_engine_step(e) == KN_OK)
        ;
    o.max_tokens = 50;
    going = submit(e, &o);
    kn_engine_step(e);
    kn_engine_step(e);
    queued = submit(e, &o);
    kn_engine_close(&e);
    assert_null(e);
    assert_int_equal(kn_request_next(ended, &ev), KN_OK);
    assert_int_equal(ev.kind, KN_EVENT_KIND_TOKEN);
    assert_int_equal(kn_request_next(ended, &ev), KN_OK);
    assert_int_equal(ev.reason, KN_STOP_REASON_LENGTH);
    assert_int_equal(kn_request_kv_digest(ended, 1, digest), KN_E_STATE);
    while (kn_request_next(going, &ev) == KN_OK && ev.kind == KN_EVENT_KIND_TOKEN)
        ;
    assert_int_equal(ev.reason, KN_STOP_REASON_CANCELLED);
    assert_int_equal(kn_request_next(queued, &ev), KN_OK);
    assert_int_equal(ev.reason, KN_STOP_REASON_CANCELLED);
    kn_request_cancel(queued);
    kn_request_close(&queued);
    kn_request_close(&going);
    kn_request_close(&ended);
    assert_int_equal(kni_alloc_get_stats(KNI_ALLOC_TAG_COUNT).current_bytes, before);
}

static void digest_of(struct kn_engine *e, const int32_t *p, uint32_t n, struct kn_answer *a, uint8_t digest[16])
{
    struct kn_request *r = submit(e, &(struct kn_request_opts){.tokens = p, .n_tokens = n, .max_tokens = 8, .ignore_stop = true});
    kn_bed_run(e, &r, a, 1, n_vocab);
    assert_int_equal(kn_request_kv_digest(r, n, digest), KN_OK);
    assert_int_equal(kn_request_kv_digest(r, n + 8, digest), KN_E_ARG); /* the last token's K and V are not there */
    kn_request_close(&r);
}

static void test_digest(void **state)
{
    (void)state;
    int32_t p[100];
    uint8_t one[16], two[16];
    struct kn_answer a;
    kn_bed_prompt(p, 100, 1);
    struct kn_engine *e = engine_open(NULL);
    digest_of(e, p, 100, &a, one);
    digest_of(e, p, 100, &a, two); /* six full blocks from the prefix cache */
    assert_int_equal(a.stats.n_cached, 96);
    kn_engine_close(&e);
    e = engine_open(NULL);
    uint8_t other[16];
    digest_of(e, p, 100, &a, other);
    assert_memory_equal(one, other, 16);
    p[0]++;
    digest_of(e, p, 100, &a, two);
    assert_memory_not_equal(one, two, 16);
    kn_engine_close(&e);
}

/* Publish in one engine, fetch in another: the same bits, the same tokens. */
static void test_store(void **state)
{
    (void)state;
    char dir[256], url[300], command[300];
    int32_t p[300];
    struct kn_answer a, b;
    uint8_t one[16], two[16];
    struct kn_engine_stats es = {.size = sizeof es};
    kn_bed_path(dir, "store");
    snprintf(url, sizeof url, "lmdb:%s", dir);
    kn_bed_prompt(p, 300, 1);
    struct kn_engine_opts o = {.store_url = url, .chunk_tokens = 64, .prefill_chunk = 64};
    struct kn_engine *e = engine_open(&o);
    digest_of(e, p, 300, &a, one);
    assert_int_equal(kn_engine_flush(e, 60000), KN_OK);
    kn_engine_get_stats(e, &es);
    assert_int_equal(es.published_chunks, 4); /* 307 positions */
    assert_int_equal(es.publish_errors, 0);
    kn_engine_close(&e);
    e = engine_open(&o);
    digest_of(e, p, 300, &b, two);
    assert_int_equal(b.stats.n_fetched, 256);
    assert_int_equal(b.stats.n_cached, 0);
    assert_true(b.stats.fetch_bytes > 0);
    assert_int_equal(a.n, b.n);
    assert_memory_equal(a.tokens, b.tokens, a.n * sizeof *a.tokens);
    struct kn_request *r;
    kn_engine_close(&e);
    /* cancelled while the fetch is on its way, and the engine closed under one */
    for (int n_steps = 0; n_steps < 4; n_steps++) {
        e = engine_open(&o);
        struct kn_request_opts ro = {.tokens = p, .n_tokens = 300, .max_tokens = 8};
        r = submit(e, &ro);
        for (int i = 0; i < n_steps; i++)
            kn_engine_step(e);
        if (n_steps % 2)
            kn_request_cancel(r);
        kn_engine_close(&e);
        kn_request_close(&r);
    }
    /* who does not want the store does not get it */
    e = engine_open(&o);
    r = submit(e, &(struct kn_request_opts){.tokens = p, .n_tokens = 300, .max_tokens = 8, .ignore_stop = true, .no_fetch = true, .no_publish = true});
    kn_bed_run(e, &r, &b, 1, n_vocab);
    assert_int_equal(b.stats.n_fetched, 0);
    assert_memory_equal(a.tokens, b.tokens, a.n * sizeof *a.tokens);
    kn_request_close(&r);
    kn_engine_close(&e);
    snprintf(command, sizeof command, "rm -r '%s'", dir);
    assert_int_equal(system(command), 0);
}

/* Steps allocate nothing: neither prompts, nor decodes, nor the sampler, nor a preemption. */
static void test_steps_do_not_allocate(void **state)
{
    (void)state;
    int32_t p[2][100];
    struct kn_request *r[2];
    struct kn_answer a[2] = {0};
    struct kn_engine *e = engine_open(&(struct kn_engine_opts){.n_threads = 2, .prefill_chunk = 30, .pool_bytes = 14 * 16 * kn_model_info(model)->kv_bytes_per_token});
    for (uint64_t i = 0; i < 2; i++) {
        kn_bed_prompt(p[i], 100, 30 + i);
        r[i] = submit(e, &(struct kn_request_opts){.tokens = p[i], .n_tokens = 100, .max_tokens = 40, .ignore_stop = true,
                                                   .sampler = KN_OPTS(kn_sampler_opts, .temperature = 1, .top_k = 20,
                                                                      .top_p = 0.9f, .repeat_penalty = 1.2f,
                                                                      .seed = i)});
    }
    kni_alloc_forbid_begin(); /* an allocation aborts */
    while (kn_engine_step(e) == KN_OK)
        ;
    kni_alloc_forbid_end();
    for (uint32_t i = 0; i < 2; i++) {
        assert_true(kn_bed_drain(r[i], &a[i], n_vocab));
        assert_int_equal(a[i].n, 40);
        kn_request_close(&r[i]);
    }
    kn_engine_close(&e);
}

/* The store breaks while the engine is open: it serves on, flush tells, and the reason is logged. */
static unsigned n_warnings;
static void count_warnings(void *user, enum kn_log_level level, const char *area, const char *text)
{
    (void)user;
    (void)area;
    (void)text;
    if (level >= KN_LOG_LEVEL_WARN)
        __atomic_fetch_add(&n_warnings, 1, __ATOMIC_RELAXED);
}

static void test_store_full(void **state)
{
    (void)state;
    char dir[256], url[300], command[300];
    int32_t p[300];
    struct kn_answer a;
    kn_bed_path(dir, "full");
    snprintf(url, sizeof url, "lmdb:%s", dir);
    struct kn_engine *e = engine_open(&(struct kn_engine_opts){.store_url = url, .chunk_tokens = 64, .store_max_bytes = 1000, /* no chunk is that small */
                                                                .pool_bytes = 2048 * kn_model_info(model)->kv_bytes_per_token}); /* no publish is taken back for room */
    n_warnings = 0;
    kn_log_set(count_warnings, NULL, KN_LOG_LEVEL_WARN);
    for (uint64_t i = 0; i < 3; i++) {
        kn_bed_prompt(p, 300, 70 + i);
        struct kn_request *r = submit(e, &(struct kn_request_opts){.tokens = p, .n_tokens = 200, .max_tokens = 5, .ignore_stop = true});
        kn_bed_run(e, &r, &a, 1, n_vocab);
        assert_int_equal(a.n, 5);
        kn_request_close(&r);
    }
    assert_int_equal(kn_engine_flush(e, 60000), KN_E_FULL);
    assert_int_equal(kn_engine_flush(e, 60000), KN_OK); /* said once */
    struct kn_engine_stats es = {.size = sizeof es};
    kn_engine_get_stats(e, &es);
    assert_int_equal(es.published_chunks, 0);
    assert_int_equal(es.publish_errors, 3);
    assert_int_equal(es.n_free_blocks + es.n_cached_blocks, es.n_blocks); /* nothing stays held */
    kn_engine_close(&e);
    kn_log_set(NULL, NULL, KN_LOG_LEVEL_ERROR);
    assert_int_equal(n_warnings, 1);
    snprintf(command, sizeof command, "rm -r '%s'", dir);
    assert_int_equal(system(command), 0);
}

/* Several at once through a pool that holds two of them: all are answered, each as if alone. */
static void test_crowd(void **state)
{
    (void)state;
    enum { N = 6 };
    int32_t p[N][120];
    struct kn_request *r[N];
    struct kn_answer alone[N], crowd[N];
    struct kn_engine *e = engine_open(&(struct kn_engine_opts){.no_prefix_cache = true});
    for (uint64_t i = 0; i < N; i++) {
        kn_bed_prompt(p[i], 120, 10 + i);
        r[i] = submit(e, &(struct kn_request_opts){.tokens = p[i], .n_tokens = 120 - 9 * i, .max_tokens = 30, .ignore_stop = true, .want_logits = true});
        kn_bed_run(e, &r[i], &alone[i], 1, n_vocab);
        kn_request_close(&r[i]);
    }
    kn_engine_close(&e);
    e = engine_open(&(struct kn_engine_opts){.prefill_chunk = 50, .pool_bytes = 18 * 16 * kn_model_info(model)->kv_bytes_per_token});
    for (uint32_t i = 0; i < N; i++)
        r[i] = submit(e, &(struct kn_request_opts){.tokens = p[i], .n_tokens = 120 - 9 * i, .max_tokens = 30, .ignore_stop = true});
    kn_bed_run(e, r, crowd, N, n_vocab);
    uint32_t n_same = 0;
    for (uint32_t i = 0; i < N; i++) {
        assert_int_equal(crowd[i].n, 30);
        for (uint32_t t = 0; t < 30; t++, n_same++)
            if (crowd[i].tokens[t] != alone[i].tokens[t]) { /* only where rounding may decide, on a random model */
                assert_true(alone[i].gaps[t] < 0.02f);
                break;
            }
        kn_request_close(&r[i]);
    }
    assert_true(n_same > N * 30 * 3 / 4);
    kn_engine_close(&e);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_bad_engine_options),
        cmocka_unit_test(test_bad_codec_options), cmocka_unit_test(test_store_that_cannot_be_opened),
        cmocka_unit_test(test_bad_requests),
        cmocka_unit_test(test_events_and_stats),
        cmocka_unit_test(test_stop_token_ends_the_answer),
        cmocka_unit_test(test_cancel),
        cmocka_unit_test(test_engine_closed_first),
        cmocka_unit_test(test_digest),
        cmocka_unit_test(test_store),
        cmocka_unit_test(test_steps_do_not_allocate),
        cmocka_unit_test(test_store_full),
        cmocka_unit_test(test_crowd),
    };
    return cmocka_run_group_tests(tests, set_up, tear_down);
}
