/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Scoring against decoding on a tiny model: the logits that a request shows while it generates are those that scoring gives for
 * the same tokens, and the log-probabilities of a prompt that is scored as a request. Bit for bit when the steps are the same; within rounding of K and V to 16 bits when they are not.
 */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "base/alloc.h"
#include "device/kv_view.h"
#include "support/engine_bed.h"
#include "support/open_tiny.h"

#define N_PROMPT 75u
#define N_NEW 60u
#define N_ALL (N_PROMPT + N_NEW - 1)

static struct kn_model *model;
static uint32_t n_vocab;
static int32_t tokens[N_ALL + 1];

static struct kn_engine *engine_open(struct kn_engine_opts o)
{
    struct kn_engine *e;
    struct kn_err err = {0};
    o.size = sizeof o;
    o.n_threads = 2;
    if (kn_engine_open(&e, model, &o, &err))
        fail_msg("%s", err.text);
    return e;
}

/* Generates after the prompt, one token a step; logits [N_NEW][n_vocab] when wanted, tokens behind the prompt. */
static void decode(struct kn_engine *e, float *logits, uint32_t n_new)
{
    struct kn_request *r;
    struct kn_event ev = {.size = sizeof ev};
    struct kn_request_opts o = {.size = sizeof o, .tokens = tokens, .n_tokens = N_PROMPT, .max_tokens = n_new, .ignore_stop = true, .want_logits = logits != NULL};
    uint32_t n = 0;
    assert_int_equal(kn_request_submit(&r, e, &o, NULL), KN_OK);
    while (n < n_new) {
        enum kn_status s = kn_request_next(r, &ev);
        if (s == KN_AGAIN) {
            assert_int_equal(kn_engine_step(e), KN_OK);
            continue;
        }
        assert_int_equal(s, KN_OK);
        assert_int_equal(ev.kind, KN_EVENT_KIND_TOKEN);
        if (logits)
            memcpy(logits + (size_t)n * n_vocab, ev.logits, n_vocab * sizeof *logits);
        tokens[N_PROMPT + n++] = ev.token;
    }
    kn_request_close(&r);
}

static int set_up(void **state)
{
    (void)state;
    struct kn_tiny_opts to = {.seed = 5, .type = KNI_DTYPE_Q4_1};
    if (!(model = kn_open_tiny(&to)))
        return -1;
    n_vocab = kn_model_info(model)->n_vocab;
    kn_bed_prompt(tokens, N_PROMPT, 9);
    return 0;
}

static int tear_down(void **state)
{
    (void)state;
    kn_model_close(&model);
    return 0;
}

struct rows {
    uint64_t next, stop_at; /* stop_at: position at which the callback gives up */
    float *logits;          /* [..][n_vocab] from the first position on */
    uint64_t first;
};

static enum kn_status take(void *user, uint64_t position, const float *logits)
{
    struct rows *r = user;
    assert_int_equal(position, r->next);
    r->next++;
    if (position == r->stop_at)
        return KN_E_CANCELLED;
    if (r->logits)
        memcpy(r->logits + (size_t)(position - r->first) * n_vocab, logits, n_vocab * sizeof *logits);
    return KN_OK;
}

static uint64_t score(struct kn_engine *e, uint32_t first, uint32_t step, float *logits)
{
    struct rows rows = {.next = first, .first = first, .logits = logits, .stop_at = UINT64_MAX};
    struct kn_score_opts o = {.size = sizeof o, .tokens = tokens, .n_tokens = N_ALL, .first = first, .step_tokens = step, .on_row = take, .user = &rows};
    struct kn_err err = {0};
    uint64_t n_reused = 99;
    if (kn_engine_score(e, &o, &n_reused, &err))
        fail_msg("%s", err.text);
    assert_int_equal(rows.next, N_ALL);
    return n_reused;
}

static double max_diff(const float *a, const float *b)
{
    double worst = 0;
    for (size_t i = 0; i < (size_t)N_NEW * n_vocab; i++)
        worst = fmax(worst, fabs((double)a[i] - b[i]));
    return worst;
}

/* Steps of one token on both sides: the same bits. */
static void test_same_steps_same_bits(void **state)
{
    (void)state;
    float *want = malloc(N_NEW * n_vocab * sizeof *want), *got = malloc(N_NEW * n_vocab * sizeof *got);
    struct kn_engine *e = engine_open((struct kn_engine_opts){.prefill_chunk = 1, .no_prefix_cache = true});
    decode(e, want, N_NEW);
    assert_int_equal(score(e, N_PROMPT - 1, 1, got), 0);
    assert_memory_equal(want, got, N_NEW * n_vocab * sizeof *got);
    kn_engine_close(&e);
    free(want);
    free(got);
}

/* Other steps, and prefixes from the cache that end inside a block: the same up to rounding of K and V to f16, whose effect on
 * logits of this model was below 0.002. */
static void test_other_steps(void **state)
{
    (void)state;
    float *want = malloc(N_NEW * n_vocab * sizeof *want), *got = malloc(N_NEW * n_vocab * sizeof *got);
    struct kn_engine *e = engine_open((struct kn_engine_opts){.prefill_chunk = 32});
    decode(e, want, N_NEW);
    double worst = 0;
    for (uint32_t step = 0; step <= 32; step = step ? 2 * step : 1) {
        uint64_t n_reused = score(e, N_PROMPT - 1, step, got);
        assert_int_equal(n_reused, N_PROMPT - 1); /* the request left it */
        worst = fmax(worst, max_diff(want, got));
    }
    struct kn_engine *fresh = engine_open((struct kn_engine_opts){.prefill_chunk = 7});
    assert_int_equal(score(fresh, N_PROMPT - 1, 5, got), 0);
    worst = fmax(worst, max_diff(want, got));
    print_message("logits differ by at most %.5f\n", worst);
    assert_true(worst <= 0.02);
    kn_engine_close(&fresh);
    kn_engine_close(&e);
    free(want);
    free(got);
}

/* All positions from the very first on; the callback can end it; nothing of the pool stays held. */
static void test_first_and_stop(void **state)
{
    (void)state;
    struct kn_engine *e = engine_open((struct kn_engine_opts){0});
    struct kn_engine_stats before = {.size = sizeof before}, after = {.size = sizeof after};
    kn_engine_get_stats(e, &before);
    assert_int_equal(score(e, 0, 0, NULL), 0);
    struct rows rows = {.next = 10, .stop_at = 21};
    struct kn_score_opts o = {.size = sizeof o, .tokens = tokens, .n_tokens = N_ALL, .first = 10, .step_tokens = 4, .on_row = take, .user = &rows};
    uint64_t n_reused;
    assert_int_equal(kn_engine_score(e, &o, &n_reused, NULL), KN_E_CANCELLED);
    assert_int_equal(rows.next, 22);
    assert_int_equal(n_reused, 10);
    o.salt = "another tenant";
    rows.next = 10;
    assert_int_equal(kn_engine_score(e, &o, &n_reused, NULL), KN_E_CANCELLED);
    assert_int_equal(n_reused, 0);
    kn_engine_get_stats(e, &after);
    assert_int_equal(after.n_free_blocks + after.n_cached_blocks, before.n_free_blocks);
    kn_engine_close(&e);
}

static void test_bad_options(void **state)
{
    (void)state;
    static const int32_t unknown[] = {3, 100000};
    struct kn_engine *e = engine_open((struct kn_engine_opts){.n_ctx = N_ALL - 1});
    const struct { struct kn_score_opts o; enum kn_status status; const char *text; } bad[] = {
        {{.tokens = tokens, .on_row = take}, KN_E_ARG, "empty"},
        {{.n_tokens = 3, .on_row = take}, KN_E_ARG, "empty"},
        {{.tokens = unknown, .n_tokens = 2, .on_row = take}, KN_E_ARG, "token 1 of the text to score is 100000"},
        {{.tokens = tokens, .n_tokens = N_ALL, .on_row = take}, KN_E_CONTEXT, "the context holds"},
        {{.tokens = tokens, .n_tokens = 4, .first = 4, .on_row = take}, KN_E_ARG, "first (4)"},
        {{.tokens = tokens, .n_tokens = 4}, KN_E_ARG, "on_row"},
        {{.tokens = tokens, .n_tokens = 4, .on_row = take, .step_tokens = 33}, KN_E_ARG, "step_tokens is 33"},
    };
    for (unsigned i = 0; i < sizeof bad / sizeof *bad; i++) {
        struct kn_score_opts o = bad[i].o;
        struct kn_err err = {0};
        o.size = sizeof o;
        assert_int_equal(kn_engine_score(e, &o, NULL, &err), bad[i].status);
        if (!strstr(err.text, bad[i].text))
            fail_msg("\"%s\" does not say \"%s\"", err.text, bad[i].text);
    }
    struct kn_score_opts o = {.tokens = tokens, .n_tokens = 4, .on_row = take};
    assert_int_equal(kn_engine_score(e, &o, NULL, NULL), KN_E_ARG); /* size not set */
    kn_engine_close(&e);
}

/* A pool that an open request fills: said, and the request goes on. */
static void test_full_pool(void **state)
{
    (void)state;
    const uint64_t block_bytes = kn_model_info(model)->kv_bytes_per_token * KNI_BLOCK_TOKENS;
    struct kn_engine *e = engine_open((struct kn_engine_opts){.pool_bytes = 6 * block_bytes});
    struct kn_request *r;
    struct kn_request_opts ro = {.size = sizeof ro, .tokens = tokens, .n_tokens = N_PROMPT, .max_tokens = 4, .ignore_stop = true};
    assert_int_equal(kn_request_submit(&r, e, &ro, NULL), KN_OK);
    assert_int_equal(kn_engine_step(e), KN_OK);
    struct rows rows = {.next = 5, .stop_at = UINT64_MAX};
    struct kn_score_opts o = {.size = sizeof o, .tokens = tokens, .n_tokens = 60, .first = 5, .on_row = take, .user = &rows, .salt = "other"};
    struct kn_err err = {0};
    assert_int_equal(kn_engine_score(e, &o, NULL, &err), KN_E_FULL);
    assert_non_null(strstr(err.text, "no room in the pool"));
    struct kn_answer a;
    kn_bed_run(e, &r, &a, 1, n_vocab);
    assert_int_equal(a.reason, KN_STOP_REASON_LENGTH);
    kn_request_close(&r);
    rows.next = 5;
    assert_int_equal(kn_engine_score(e, &o, NULL, NULL), KN_OK);
    kn_engine_close(&e);
}

/* The n-th allocation fails: KN_E_NOMEM, and nothing is lost. */
static void test_no_memory(void **state)
{
    (void)state;
    struct kn_engine *e = engine_open((struct kn_engine_opts){0});
    struct rows rows = {.stop_at = UINT64_MAX};
    struct kn_score_opts o = {.size = sizeof o, .tokens = tokens, .n_tokens = 40, .on_row = take, .user = &rows};
    uint64_t n = 1;
    for (enum kn_status s = KN_E_NOMEM; s; n++) {
        rows.next = 0;
        uint64_t held = kni_alloc_get_stats(KNI_ALLOC_TAG_COUNT).current_bytes;
        kni_alloc_fault_arm(n, false);
        s = kn_engine_score(e, &o, NULL, NULL);
        assert_int_equal(s, kni_alloc_fault_hit() ? KN_E_NOMEM : KN_OK);
        kni_alloc_fault_arm(0, false);
        assert_int_equal(kni_alloc_get_stats(KNI_ALLOC_TAG_COUNT).current_bytes, held);
    }
    assert_true(n > 3);
    kn_engine_close(&e);
}

/* ---- prompts that are scored as requests */

struct described {
    float logprob[N_ALL];
    struct kn_logprob top[N_ALL][3];
};

/* log p of every token given those before it, from kn_engine_score's rows and plain doubles. */
static enum kn_status describe(void *user, uint64_t position, const float *logits)
{
    struct described *d = user;
    double sum = 0, max = -1e30;
    for (uint32_t i = 0; i < n_vocab; i++)
        max = fmax(max, (double)logits[i]);
    for (uint32_t i = 0; i < n_vocab; i++)
        sum += exp((double)logits[i] - max);
    if (position + 1 == N_ALL)
        return KN_OK;
    d->logprob[position + 1] = (float)((double)logits[tokens[position + 1]] - max - log(sum));
    for (uint32_t k = 0; k < 3; k++) {
        struct kn_logprob *best = &d->top[position + 1][k];
        *best = (struct kn_logprob){-1, -INFINITY};
        for (uint32_t i = 0; i < n_vocab; i++) {
            float x = (float)((double)logits[i] - max - log(sum));
            bool taken = false;
            for (uint32_t j = 0; j < k; j++)
                taken = taken || d->top[position + 1][j].token == (int32_t)i;
            if (!taken && x > best->logprob)
                *best = (struct kn_logprob){(int32_t)i, x};
        }
    }
    return KN_OK;
}

static struct kn_request *submit(struct kn_engine *e, struct kn_request_opts o)
{
    struct kn_request *r;
    struct kn_err err = {0};
    o.size = sizeof o;
    o.tokens = o.tokens ? o.tokens : tokens;
    o.n_tokens = o.n_tokens ? o.n_tokens : N_ALL;
    o.ignore_stop = true;
    if (kn_request_submit(&r, e, &o, &err))
        fail_msg("%s", err.text);
    return r;
}

/* Runs a scored request to its end; its events are those of positions first on. Returns steps. */
static uint32_t check_described(struct kn_engine *e, struct kn_request *r, uint32_t first, uint32_t n_top, uint32_t n_new, const struct described *want)
{
    struct kn_event ev = {.size = sizeof ev};
    uint32_t pos = first, n_steps = 0;
    for (;;) {
        enum kn_status s = kn_request_next(r, &ev);
        if (s == KN_AGAIN) {
            assert_int_equal(kn_engine_step(e), KN_OK);
            n_steps++;
            continue;
        }
        assert_int_equal(s, KN_OK);
        if (ev.kind == KN_EVENT_KIND_DONE)
            break;
        assert_int_equal(ev.kind, pos < N_ALL ? KN_EVENT_KIND_PROMPT : KN_EVENT_KIND_TOKEN);
        if (pos < N_ALL)
            assert_int_equal(ev.token, tokens[pos]);
        assert_int_equal(ev.n_top, pos ? n_top : 0);
        if (!pos)
            assert_true(isnan(ev.logprob));
        else if (pos < N_ALL)
            assert_float_equal(ev.logprob, want->logprob[pos], 0.02);
        else
            assert_true(ev.logprob <= 0 && (!n_top || ev.top[0].logprob >= ev.logprob));
        for (uint32_t k = 0; pos && pos < N_ALL && k < n_top; k++) {
            assert_float_equal(ev.top[k].logprob, want->top[pos][k].logprob, 0.02);
            assert_true(!k || ev.top[k - 1].logprob >= ev.top[k].logprob);
            if (fabsf(want->top[pos][k].logprob - want->logprob[pos]) < 1e-6f)
                assert_true(ev.top[k].token == tokens[pos] || fabsf(ev.top[k].logprob - ev.logprob) < 0.02f);
        }
        pos++;
    }
    assert_int_equal(ev.reason, KN_STOP_REASON_LENGTH);
    assert_int_equal(pos, N_ALL + n_new);
    return n_steps;
}

/* A scored request has kn_engine_score's numbers: however prompts are cut into steps, whatever the cache holds, from wherever. */
static void test_request_scores(void **state)
{
    (void)state;
    static struct described want;
    static const uint32_t chunks[] = {1, 7, 32, 50, 256}, firsts[] = {0, 1, 2, 16, 17, 40, N_ALL - 1};
    struct kn_engine *e = engine_open((struct kn_engine_opts){0});
    struct kn_score_opts so = {.size = sizeof so, .tokens = tokens, .n_tokens = N_ALL, .on_row = describe, .user = &want};
    decode(e, NULL, N_NEW);
    assert_int_equal(kn_engine_score(e, &so, NULL, NULL), KN_OK);
    kn_engine_close(&e);
    for (unsigned c = 0; c < 5; c++)
        for (unsigned f = 0; f < 7; f++)
            for (uint32_t n_new = 0; n_new <= 4; n_new += 4) {
                const uint32_t first = firsts[f], n_top = f % 2 ? 3 : 0;
                e = engine_open((struct kn_engine_opts){.prefill_chunk = chunks[c]});
                struct kn_request *cold = submit(e, (struct kn_request_opts){.score_prompt = true, .score_first = first, .n_top_logprobs = n_top,
                    .max_tokens = n_new, .no_generate = !n_new, .want_logprobs = true});
                struct kn_request_stats s = {.size = sizeof s};
                check_described(e, cold, first, n_top, n_new, &want);
                kn_request_get_stats(cold, &s);
                assert_int_equal(s.n_cached, 0);
                assert_int_equal(s.n_generated, n_new);
                assert_int_equal(s.n_done, N_ALL);
                struct kn_request *warm = submit(e, (struct kn_request_opts){.score_prompt = true, .score_first = first, .n_top_logprobs = n_top,
                    .max_tokens = n_new, .no_generate = !n_new, .want_logprobs = true});
                check_described(e, warm, first, n_top, n_new, &want);
                kn_request_get_stats(warm, &s);
                assert_true(s.n_cached + 1 <= (first ? first : 1)); /* what has logits to give is computed */
                assert_true(s.n_cached + 1 + KNI_BLOCK_TOKENS > first);
                struct kn_event ev = {.size = sizeof ev}; /* events and their arrays wait */
                assert_int_equal(kn_request_next(cold, &ev), KN_END);
                kn_request_close(&cold);
                kn_request_close(&warm);
                assert_int_equal(kn_engine_check(e, NULL), KN_OK);
                kn_engine_close(&e);
            }
}

/* A prompt that is only computed: nothing is generated, and it is in the cache then. */
static void test_no_generate(void **state)
{
    (void)state;
    struct kn_engine *e = engine_open((struct kn_engine_opts){.prefill_chunk = 32});
    struct kn_answer a;
    struct kn_request *r = submit(e, (struct kn_request_opts){.no_generate = true});
    kn_bed_run(e, &r, &a, 1, n_vocab);
    assert_int_equal(a.reason, KN_STOP_REASON_LENGTH);
    assert_int_equal(a.n, 0);
    assert_int_equal(a.stats.n_done, N_ALL);
    kn_request_close(&r);
    r = submit(e, (struct kn_request_opts){.max_tokens = 2});
    kn_bed_run(e, &r, &a, 1, n_vocab);
    assert_int_equal(a.n, 2);
    assert_int_equal(a.stats.n_cached, (N_ALL - 1) / KNI_BLOCK_TOKENS * KNI_BLOCK_TOKENS);
    kn_request_close(&r);
    kn_engine_close(&e);
}

/* Many are scored at once in a pool that is too small for them, beside requests that generate: rows are shared, jobs are thrown out and
 * come back, nobody stands still, and all numbers are those of one that runs alone. */
static void test_scores_share_steps(void **state)
{
    (void)state;
    enum { N = 6 };
    static struct described want;
    const uint64_t block_bytes = kn_model_info(model)->kv_bytes_per_token * KNI_BLOCK_TOKENS;
    struct kn_engine *e = engine_open((struct kn_engine_opts){.pool_bytes = 20 * block_bytes, .prefill_chunk = 64});
    struct kn_score_opts so = {.size = sizeof so, .tokens = tokens, .n_tokens = N_ALL, .on_row = describe, .user = &want};
    struct kn_request *r[N], *other;
    struct kn_answer a = {0};
    assert_int_equal(kn_engine_score(e, &so, NULL, NULL), KN_OK);
    other = submit(e, (struct kn_request_opts){.n_tokens = 20, .max_tokens = 40});
    while (a.n < 2) {
        assert_int_equal(kn_engine_step(e), KN_OK);
        kn_bed_drain(other, &a, n_vocab);
    }
    for (uint32_t i = 0; i < N; i++)
        r[i] = submit(e, (struct kn_request_opts){.score_prompt = true, .n_top_logprobs = 2, .no_generate = i % 2, .max_tokens = 5});
    for (uint32_t n = a.n; n < 40; n = a.n) { /* a token a step: scoring holds up nobody */
        assert_int_equal(kn_bed_step(e), KN_OK);
        kn_bed_drain(other, &a, n_vocab);
        assert_int_equal(a.n, n + 1);
    }
    for (uint32_t i = 0; i < N; i++) {
        struct kn_event ev = {.size = sizeof ev};
        uint32_t pos = 0, n_new = 0;
        for (enum kn_status s; (s = kn_request_next(r[i], &ev)) != KN_END;)
            if (s == KN_AGAIN)
                assert_int_equal(kn_engine_step(e), KN_OK);
            else if (ev.kind == KN_EVENT_KIND_PROMPT) {
                assert_int_equal(ev.token, tokens[pos]);
                if (pos)
                    assert_float_equal(ev.logprob, want.logprob[pos], 0.02);
                pos++;
            } else {
                n_new += ev.kind == KN_EVENT_KIND_TOKEN;
                assert_true(isnan(ev.logprob) && !ev.n_top); /* not wanted */
            }
        assert_int_equal(pos, N_ALL);
        assert_int_equal(n_new, i % 2 ? 0 : 5);
        kn_request_close(&r[i]);
    }
    kn_request_close(&other);
    assert_int_equal(kn_engine_check(e, NULL), KN_OK);
    kn_engine_close(&e);
}

/* The same seed gives the same tokens and log-probabilities for any number of threads, alone and in company. */
static void test_seeds_decide(void **state)
{
    (void)state;
    enum { N = 12, NEW = 30 };
    static const struct kn_sampler_opts samplers[] = {
        {.temperature = 1}, {.temperature = 1, .top_p = 0.6f}, {.temperature = 2, .top_k = 20, .min_p = 0.01f}, {.temperature = 0.8f, .top_k = 280, .repeat_penalty = 1.2f},
    };
    static int32_t want[N][NEW];
    static float logprobs[N][NEW];
    for (uint32_t n_threads = 1; n_threads <= 4; n_threads++)
        for (uint32_t together = 0; together < 2; together++) {
            struct kn_engine_opts eo = {.size = sizeof eo, .n_threads = n_threads, .prefill_chunk = 256, .pool_bytes = 4 << 20};
            struct kn_request *r[N] = {NULL};
            struct kn_engine *e;
            struct kn_event ev = {.size = sizeof ev};
            assert_int_equal(kn_engine_open(&e, model, &eo, NULL), KN_OK);
            for (uint32_t i = 0; i < N; i++) {
                struct kn_sampler_opts so = samplers[i % 4];
                so.size = sizeof so;
                so.seed = i;
                struct kn_request_opts o = {.tokens = tokens + i, .n_tokens = 20, .max_tokens = NEW, .sampler = &so,
                                            .want_logprobs = true};
                if (together)
                    for (uint32_t j = 0; !i && j < N; j++) {
                        o.tokens = tokens + j, so = samplers[j % 4], so.size = sizeof so, so.seed = j;
                        r[j] = submit(e, o);
                    }
                else
                    r[i] = submit(e, o);
                for (uint32_t n = 0; n < NEW;) {
                    enum kn_status s = kn_request_next(r[i], &ev);
                    if (s == KN_AGAIN) {
                        assert_int_equal(kn_engine_step(e), KN_OK);
                        continue;
                    }
                    assert_int_equal(ev.kind, KN_EVENT_KIND_TOKEN);
                    if (n_threads == 1 && !together)
                        want[i][n] = ev.token, logprobs[i][n] = ev.logprob;
                    assert_int_equal(ev.token, want[i][n]);
                    assert_true(fabsf(ev.logprob - logprobs[i][n++]) < 1e-5f);
                }
                kn_request_close(&r[i]);
            }
            kn_engine_close(&e);
        }
}

static void test_bad_request_options(void **state)
{
    (void)state;
    struct kn_engine *e = engine_open((struct kn_engine_opts){0});
    const struct { struct kn_request_opts o; const char *text; } bad[] = {
        {{.n_top_logprobs = 21}, "n_top_logprobs is 21"},
        {{.score_prompt = true, .score_first = 5}, "score_first is 5"},
        {{.score_first = 1}, "score_first is 1"},
    };
    for (unsigned i = 0; i < 3; i++) {
        struct kn_request *r;
        struct kn_request_opts o = bad[i].o;
        struct kn_err err = {0};
        o.size = sizeof o;
        o.tokens = tokens;
        o.n_tokens = 5;
        assert_int_equal(kn_request_submit(&r, e, &o, &err), KN_E_ARG);
        assert_null(r);
        if (!strstr(err.text, bad[i].text))
            fail_msg("\"%s\" does not say \"%s\"", err.text, bad[i].text);
    }
    kn_engine_close(&e);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_same_steps_same_bits), cmocka_unit_test(test_other_steps), cmocka_unit_test(test_first_and_stop),
        cmocka_unit_test(test_bad_options),          cmocka_unit_test(test_full_pool),   cmocka_unit_test(test_no_memory),
        cmocka_unit_test(test_request_scores),       cmocka_unit_test(test_no_generate), cmocka_unit_test(test_scores_share_steps),
        cmocka_unit_test(test_seeds_decide),         cmocka_unit_test(test_bad_request_options),
    };
    return cmocka_run_group_tests(tests, set_up, tear_down);
}
