/* SPDX-License-Identifier: Apache-2.0 */
/* The loop's part of echo: the prompt's own log-probabilities, over a real engine with the tiny model. */
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

#define MAX_NEW 24u

static enum kn_status keep_row(void *user, uint64_t position, const float *logits)
{
    memcpy((float *)user + position * kn_tiny_n_vocab(), logits, kn_tiny_n_vocab() * sizeof *logits);
    return KN_OK;
}

/* The prompt's log-probabilities are kn_engine_score's, whatever is in the prefix cache; the first choice alone brings them, and where
 * no answer is wanted nothing else comes. */
static void test_scored_prompts(void **state)
{
    (void)state;
    enum { N_PROMPT = 75, N_TOP = 3 };
    const uint32_t n_vocab = kn_tiny_n_vocab();
    float *rows = malloc(N_PROMPT * n_vocab * sizeof *rows);
    struct kn_loop_bed b;
    kn_loop_bed_init(&b, NULL, NULL);
    kn_loop_bed_start(&b);
    for (uint32_t max_tokens = 0; max_tokens <= MAX_NEW; max_tokens += MAX_NEW) {
        struct kni_call *call = kn_loop_bed_call(N_PROMPT, 11, max_tokens, max_tokens ? 2 : 1, N_TOP);
        assert_int_equal(kni_call_score_prompt(call), KN_OK);
        assert_int_equal(kni_loop_submit(b.loop, call), KN_OK);
        kn_loop_bed_wait(call);
        struct kn_engine *e = NULL;
        struct kn_engine_opts eo = {.size = sizeof eo, .n_threads = 1};
        struct kn_score_opts so = {.size = sizeof so, .tokens = call->tokens, .n_tokens = N_PROMPT, .on_row = keep_row, .user = rows};
        assert_int_equal(kn_engine_open(&e, b.model, &eo, NULL), KN_OK);
        assert_int_equal(kn_engine_score(e, &so, NULL, NULL), KN_OK);
        kn_engine_close(&e);
        assert_int_equal(atomic_load(&call->n_prompt_scored), N_PROMPT);
        for (uint32_t i = 1; i < N_PROMPT; i++) {
            const float *x = rows + (size_t)(i - 1) * n_vocab;
            double sum = 0;
            for (uint32_t t = 0; t < n_vocab; t++)
                sum += exp((double)x[t]);
            assert_float_equal(call->prompt_logprobs[i], x[call->tokens[i]] - log(sum), 1e-4);
            for (uint32_t k = 0; k < N_TOP; k++) {
                const struct kni_call_top *top = &call->prompt_tops[i * N_TOP + k];
                assert_true(top->token >= 0 && (uint32_t)top->token < n_vocab);
                assert_float_equal(top->logprob, x[top->token] - log(sum), 1e-4);
            }
        }
        for (uint32_t k = 0; k < call->n_choices; k++) {
            assert_int_equal(atomic_load(&call->choices[k].n_events), max_tokens);
            assert_int_equal(call->choices[k].reason, KN_STOP_REASON_LENGTH);
        }
        kni_call_unref(call);
    }
    free(rows);
    kni_loop_stop(b.loop);
    kn_loop_bed_join(&b);
    kn_loop_bed_fini(&b);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_scored_prompts),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
