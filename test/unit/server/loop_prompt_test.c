/* SPDX-License-Identifier: Apache-2.0 */
/* The loop over a real engine: prompts whose own tokens are described. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "support/loop_bed.h"

struct scores { const struct kni_call *call; uint32_t n; float worst; };

static enum kn_status compare_score(void *user, uint64_t position, const float *logits)
{
    struct scores *s = user;
    double sum = 0;
    if (position + 1 == s->call->n_tokens)
        return KN_OK;
    for (uint32_t t = 0; t < kn_tiny_n_vocab(); t++)
        sum += exp((double)logits[t]);
    float want = (float)(logits[s->call->tokens[position + 1]] - log(sum));
    s->worst = fmaxf(s->worst, fabsf(want - s->call->prompt_logprobs[position + 1]));
    s->n++;
    return KN_OK;
}

/* A prompt's own tokens have kn_engine_score's log-probabilities, with an answer behind it and without, whatever the cache has. */
static void test_prompt_logprobs(void **state)
{
    (void)state;
    struct kn_loop_bed b;
    struct kni_call *calls[3];
    struct kn_model *model;
    struct kn_engine *plain;
    kn_loop_bed_init(&b, NULL, NULL);
    kn_loop_bed_start(&b);
    for (uint32_t i = 0; i < 3; i++) {
        calls[i] = kn_loop_bed_call(100, 3, i == 1 ? 4 : 0, i == 1 ? 2 : 1, 5);
        assert_int_equal(kni_call_score_prompt(calls[i]), KN_OK);
        assert_int_equal(kni_loop_submit(b.loop, calls[i]), KN_OK);
        kn_loop_bed_wait(calls[i]);
    }
    kn_loop_bed_model(&model, "plain.gguf");
    struct kn_engine_opts eo = {.size = sizeof eo, .n_threads = 1};
    assert_int_equal(kn_engine_open(&plain, model, &eo, NULL), KN_OK);
    for (uint32_t i = 0; i < 3; i++) {
        const struct kni_call *call = calls[i];
        struct scores s = {.call = call};
        struct kn_score_opts so = {.size = sizeof so, .tokens = call->tokens, .n_tokens = call->n_tokens, .on_row = compare_score, .user = &s};
        assert_int_equal(atomic_load(&call->n_prompt_scored), 100);
        assert_int_equal(call->choices[0].reason, KN_STOP_REASON_LENGTH);
        assert_int_equal(atomic_load(&call->choices[0].n_events), i == 1 ? 4 : 0);
        assert_int_equal(call->choices[0].stats.n_generated, i == 1 ? 4 : 0);
        assert_int_equal(kn_engine_score(plain, &so, NULL, NULL), KN_OK);
        assert_int_equal(s.n, 99);
        assert_true(s.worst < 0.02f);
        for (uint32_t k = 1; k < 100; k++)
            assert_true(call->prompt_tops[k * 5].token >= 0 && call->prompt_tops[k * 5].logprob >= call->prompt_logprobs[k]);
        kni_call_unref(calls[i]);
    }
    kn_engine_close(&plain);
    kn_model_close(&model);
    kni_loop_stop(b.loop);
    kn_loop_bed_join(&b);
    kn_loop_bed_fini(&b);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_prompt_logprobs)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
