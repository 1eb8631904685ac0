/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Scoring against decoding on a tiny model: the logits that a request shows while it generates are those that scoring gives for
 * the same tokens. Bit for bit when the steps are the same; within rounding of K and V to 16 bits when they are not.
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
    struct kn_event ev;
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
    struct kn_engine_stats before, after;
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

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_same_steps_same_bits), cmocka_unit_test(test_other_steps), cmocka_unit_test(test_first_and_stop),
        cmocka_unit_test(test_bad_options),          cmocka_unit_test(test_full_pool),   cmocka_unit_test(test_no_memory),
    };
    return cmocka_run_group_tests(tests, set_up, tear_down);
}
