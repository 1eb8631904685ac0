/* SPDX-License-Identifier: Apache-2.0 */
/* A model none of whose logits is a number: every way to ask it ends as an error that says so, and leaves nothing for others to find. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "support/engine_bed.h"
#include "support/open_tiny.h"

#define N_PROMPT 40u

static int32_t tokens[N_PROMPT];

static struct kn_model *model_open(void)
{
    struct kn_model *model = kn_open_tiny(&(struct kn_tiny_opts){.seed = 5, .type = KNI_DTYPE_Q4_1, .broken = true});
    assert_non_null(model);
    kn_bed_prompt(tokens, N_PROMPT, 9);
    return model;
}

static struct kn_engine *engine_open(struct kn_model *model)
{
    struct kn_engine *e;
    struct kn_engine_opts o = {.size = sizeof o, .n_threads = 2};
    assert_int_equal(kn_engine_open(&e, model, &o, NULL), KN_OK);
    return e;
}

static void test_requests(void **state)
{
    (void)state;
    struct kn_model *model = model_open();
    struct kn_engine *e = engine_open(model);
    const struct kn_request_opts cases[] = {
        {.max_tokens = 3},
        {.max_tokens = 3, .sampler = KN_OPTS(kn_sampler_opts, .temperature = 1)},
        {.max_tokens = 3, .sampler = KN_OPTS(kn_sampler_opts, .temperature = 0.7f, .top_k = 5, .top_p = 0.9f,
                                             .min_p = 0.1f, .repeat_penalty = 1.1f, .seed = 3)},
        {.max_tokens = 3, .sampler = KN_OPTS(kn_sampler_opts, .repeat_penalty = 1.1f)},
        {.max_tokens = 3, .want_logprobs = true, .n_top_logprobs = 5},
        {.max_tokens = 3, .want_logits = true, .ignore_stop = true},
        {.max_tokens = 3, .score_prompt = true},
        {.no_generate = true, .score_prompt = true, .score_first = 7, .n_top_logprobs = 2},
    };
    for (unsigned i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct kn_request_opts o = cases[i];
        struct kn_request *r;
        struct kn_event ev = {.size = sizeof ev};
        enum kn_status s;
        o.size = sizeof o;
        o.tokens = tokens;
        o.n_tokens = N_PROMPT;
        assert_int_equal(kn_request_submit(&r, e, &o, NULL), KN_OK);
        while ((s = kn_request_next(r, &ev)) == KN_AGAIN || (s == KN_OK && ev.kind == KN_EVENT_KIND_PROMPT)) {
            if (s == KN_AGAIN)
                assert_int_equal(kn_engine_step(e), KN_OK);
            else
                assert_int_equal(ev.token, tokens[0]); /* the only position that needs no row */
        }
        assert_int_equal(s, KN_OK);
        assert_int_equal(ev.kind, KN_EVENT_KIND_DONE); /* no token before it */
        assert_int_equal(ev.reason, KN_STOP_REASON_ERROR);
        assert_int_equal(ev.status, KN_E_NOT_FINITE);
        kn_request_close(&r);
        struct kn_engine_stats stats = {.size = sizeof stats};
        kn_engine_get_stats(e, &stats);
        assert_int_equal(stats.n_cached_blocks, 0);
        assert_int_equal(kn_engine_check(e, NULL), KN_OK);
    }
    kn_engine_close(&e);
    kn_model_close(&model);
}

static enum kn_status on_row(void *user, uint64_t position, const float *logits)
{
    (void)position;
    (void)logits;
    ++*(unsigned *)user;
    return KN_OK;
}

static void test_score(void **state)
{
    (void)state;
    struct kn_model *model = model_open();
    struct kn_engine *e = engine_open(model);
    unsigned n_rows = 0;
    struct kn_err err = {0};
    struct kn_score_opts o = {.size = sizeof o, .tokens = tokens, .n_tokens = N_PROMPT, .first = 20, .on_row = on_row, .user = &n_rows};
    assert_int_equal(kn_engine_score(e, &o, NULL, &err), KN_E_NOT_FINITE);
    assert_non_null(strstr(err.text, "position 20"));
    assert_int_equal(n_rows, 0);
    struct kn_engine_stats stats = {.size = sizeof stats};
    kn_engine_get_stats(e, &stats);
    assert_int_equal(stats.n_cached_blocks, 0);
    assert_int_equal(kn_engine_check(e, NULL), KN_OK);
    kn_engine_close(&e);
    kn_model_close(&model);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_requests), cmocka_unit_test(test_score)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
