/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A model for tests of the scheduler: the functions of run/run.h. The state after a position is a hash of the state that
 * the pool holds for the position before, the token and the position; it is what the pool then holds. The next token is
 * a function of the state. A block that is shared, copied, fetched or evicted wrongly therefore changes every later token.
 * Layout: 1 layer, 1 KV head, d_head 4 (K holds the state, V its complement).
 */
#ifndef KN_TEST_FAKE_RUN_H
#define KN_TEST_FAKE_RUN_H

#include <assert.h>
#include <stdlib.h>
#include <string.h>

#include "run/run.h"

#define KN_FAKE_VOCAB 97
static const struct kni_kv_layout kn_fake_layout = {.n_layer = 1, .n_kv_head = 1, .d_head = 4, .type = KN_KV_TYPE_F16};

struct kni_run {
    uint32_t max_tokens, max_logits;
    enum kn_status fail_status; /* of the next step */
    uint32_t largest_step, n_mixed; /* steps with more than one item */
};

enum kn_status kni_run_open(struct kni_run **out, const struct kni_run_opts *opts, struct kn_err *err)
{
    (void)err;
    *out = calloc(1, sizeof **out);
    (*out)->max_tokens = opts->max_tokens;
    (*out)->max_logits = opts->max_logits;
    return KN_OK;
}

void kni_run_close(struct kni_run **run)
{
    free(*run);
    *run = NULL;
}

static uint64_t kn_fake_mix(uint64_t state, int32_t token, uint32_t pos)
{
    uint64_t z = state + 0x9e3779b97f4a7c15u * ((uint64_t)(uint32_t)token + 1) + pos;
    z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9u;
    z = (z ^ z >> 27) * 0x94d049bb133111ebu;
    return z ^ z >> 31;
}

static int32_t kn_fake_next(uint64_t state)
{
    return (int32_t)(state % KN_FAKE_VOCAB);
}

/* Logits that name the next token, and what is made of them. The log-probability of any other is -1 - its number. */
static void kn_fake_row(const struct kni_run_item *it, uint32_t i, int32_t next)
{
    struct kni_run_row *row = it->rows ? &it->rows[i] : NULL;
    for (int32_t v = 0; v < KN_FAKE_VOCAB; v++)
        it->logits[(size_t)i * KN_FAKE_VOCAB + (uint32_t)v] = v == next;
    if (row && row->token < 0) /* to be chosen */
        row->token = next;
    if (row && row->want_logprob)
        row->logprob = row->token == next ? 0.0f : -1.0f - (float)row->token;
    for (uint32_t k = 0; row && k < row->n_top; k++)
        row->top[k] = (struct kn_logprob){.token = k ? -1 : next};
}

enum kn_status kni_run_step(struct kni_run *run, const struct kni_run_item *items, uint32_t n_items)
{
    uint32_t n_tokens = 0, n_logits = 0;
    for (uint32_t i = 0; i < n_items; i++) {
        n_tokens += items[i].n_tokens;
        n_logits += items[i].n_logits;
    }
    assert(n_items && n_tokens <= run->max_tokens && n_logits <= run->max_logits);
    run->largest_step = n_tokens > run->largest_step ? n_tokens : run->largest_step;
    run->n_mixed += n_items > 1;
    if (run->fail_status)
        return run->fail_status;
    for (uint32_t i = 0; i < n_items; i++) {
        const struct kni_run_item *it = &items[i];
        const struct kni_kv_host kv = kni_kv_host_of(&it->kv);
        uint64_t state = 0, check;
        assert(it->n_tokens && it->n_logits <= it->n_tokens && (it->first_pos + it->n_tokens - 1) / KNI_BLOCK_TOKENS < it->kv.n_blocks);
        for (uint32_t j = 0; j < it->n_tokens; j++) {
            uint32_t pos = it->first_pos + j;
            if (pos) {
                memcpy(&state, kni_kv_row(&kv, 0, 0, 0, pos - 1), 8);
                memcpy(&check, kni_kv_row(&kv, 0, 1, 0, pos - 1), 8);
                assert(state == ~check);
            }
            state = kn_fake_mix(state, it->tokens[j], pos);
            check = ~state;
            memcpy(kni_kv_row(&kv, 0, 0, 0, pos), &state, 8);
            memcpy(kni_kv_row(&kv, 0, 1, 0, pos), &check, 8);
            if (j + it->n_logits >= it->n_tokens)
                kn_fake_row(it, j + it->n_logits - it->n_tokens, kn_fake_next(state));
        }
    }
    return KN_OK;
}

/* What the model must generate after a prompt: n tokens appended to tokens. */
static void kn_fake_generate(int32_t *tokens, uint32_t n_prompt, uint32_t n)
{
    uint64_t state = 0;
    for (uint32_t pos = 0; pos < n_prompt + n; pos++) {
        if (pos >= n_prompt)
            tokens[pos] = kn_fake_next(state);
        state = kn_fake_mix(state, tokens[pos], pos);
    }
}

#endif
