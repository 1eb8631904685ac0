/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A model for tests of the scheduler: a device's forward pass (run/run_ops.h). The state after a position is a hash of
 * the state that the pool holds for the position before, the token and the position; it is what the pool then holds.
 * The next token is a function of the state. A block that is shared, copied, fetched or evicted wrongly therefore
 * changes every later token.
 * Layout: 1 layer, 1 KV head, d_head 4 (K holds the state, V its complement).
 */
#ifndef KN_TEST_FAKE_RUN_H
#define KN_TEST_FAKE_RUN_H

#include <assert.h>
#include <stdlib.h>
#include <string.h>

#include "run/run_ops.h"

#define KN_FAKE_VOCAB 97
static const struct kni_kv_layout kn_fake_layout = {.n_layer = 1, .n_kv_head = 1, .d_head = 4, .type = KN_KV_TYPE_F16};
static struct kn_model kn_fake_model = {
    .hparams = {.n_layer = 1, .n_head = 1, .n_kv_head = 1, .d_head = 4, .n_vocab = KN_FAKE_VOCAB}};

struct kn_fake_run {
    enum kn_status fail_status; /* of the next step */
    uint32_t largest_step, n_mixed; /* steps with more than one item */
};
static struct kn_fake_run *kn_fake_last; /* that has been opened */

static size_t kn_fake_run_bytes(const struct kni_run_opts *opts)
{
    (void)opts;
    return sizeof(struct kn_fake_run);
}

static enum kn_status kn_fake_run_open(void **out, const struct kni_run_opts *opts, struct kn_err *err)
{
    (void)opts;
    (void)err;
    *out = kn_fake_last = calloc(1, sizeof *kn_fake_last);
    return KN_OK;
}

static void kn_fake_run_close(void **state)
{
    free(*state);
    *state = NULL;
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

static enum kn_status kn_fake_run_begin(void *state, const struct kni_run_plan *plan)
{
    struct kn_fake_run *run = state;
    assert(plan->n_items && plan->n_rows);
    run->largest_step = plan->n_rows > run->largest_step ? plan->n_rows : run->largest_step;
    run->n_mixed += plan->n_items > 1;
    if (run->fail_status)
        return run->fail_status;
    for (uint32_t i = 0; i < plan->n_items; i++) {
        const struct kni_run_item *it = &plan->items[i];
        const struct kni_kv_host kv = kni_kv_host_of(&it->kv);
        uint64_t hash = 0, check;
        assert(it->n_tokens && it->n_logits <= it->n_tokens && (it->first_pos + it->n_tokens - 1) / KNI_BLOCK_TOKENS < it->kv.n_blocks);
        for (uint32_t j = 0; j < it->n_tokens; j++) {
            uint32_t pos = it->first_pos + j;
            if (pos) {
                memcpy(&hash, kni_kv_row(&kv, 0, 0, 0, pos - 1), 8);
                memcpy(&check, kni_kv_row(&kv, 0, 1, 0, pos - 1), 8);
                assert(hash == ~check);
            }
            hash = kn_fake_mix(hash, it->tokens[j], pos);
            check = ~hash;
            memcpy(kni_kv_row(&kv, 0, 0, 0, pos), &hash, 8);
            memcpy(kni_kv_row(&kv, 0, 1, 0, pos), &check, 8);
            if (j + it->n_logits >= it->n_tokens)
                kn_fake_row(it, j + it->n_logits - it->n_tokens, kn_fake_next(hash));
        }
    }
    return KN_OK;
}

static enum kn_status kn_fake_run_try_end(void *state, const struct kni_run_plan *plan)
{
    (void)state;
    (void)plan;
    return KN_OK;
}

static const struct kni_run_ops kn_fake_ops = {.name = "fake",
                                               .workspace_bytes = kn_fake_run_bytes,
                                               .open = kn_fake_run_open,
                                               .begin = kn_fake_run_begin,
                                               .try_end = kn_fake_run_try_end,
                                               .close = kn_fake_run_close};

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
