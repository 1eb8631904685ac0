/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Gemma 3 270M, the second real model: token ids against sentencepiece, logits and greedy tokens against transformers in
 * float32 (golden/make_gemma.py). Optional, since the model comes under terms of its own: KN_MODEL_GEMMA names the GGUF
 * (`make model-gemma`), without it every test skips.
 *
 * Budgets as in logits_test.c: 0.05 with f16 K and V. The long prompt is longer than the sliding window of 512.
 */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>
#include <jansson.h>

#include "model/chat.h"
#include "run/run.h"
#include "support/frames.h"

#define N_CTX 1024u
#define TIE 0.001

static struct kn_model *model;

static int setup(void **state)
{
    (void)state;
    const char *path = getenv("KN_MODEL_GEMMA");
    struct kn_err err = {0};
    struct kn_model_opts o = {.size = sizeof o, .path = path};
    if (!path || !*path) {
        print_message("KN_MODEL_GEMMA is not set: tests with Gemma 3 270M are skipped (make model-gemma downloads it)\n");
        return 0;
    }
    if (kn_model_open(&model, &o, &err)) {
        print_error("%s\n", err.text);
        return -1;
    }
    return 0;
}

static int teardown(void **state)
{
    (void)state;
    kn_model_close(&model);
    return 0;
}

static void expect_ids(size_t index, const char *text, size_t n, unsigned flags, const json_t *want)
{
    size_t count;
    int32_t *ids = kn_golden_ids(model, index, text, n, flags, want, 3 * n + 2, &count);
    /* The tokens' bytes are the text, with blanks for U+2581. */
    char *back = malloc(n + 1);
    size_t at = 0, from = 0;
    for (size_t i = 0; i < count; i++) {
        const char *bytes;
        size_t k;
        assert_int_equal(kn_model_token_bytes(model, ids[i], &bytes, &k), KN_OK);
        assert_true(at + k <= n);
        memcpy(back + at, bytes, k);
        at += k;
    }
    for (size_t i = 0; i < at; i++) {
        bool mark = n - from >= 3 && !memcmp(text + from, "\xe2\x96\x81", 3);
        assert_int_equal(back[i], mark ? ' ' : text[from]);
        from += mark ? 3 : 1;
    }
    assert_int_equal(from, n);
    free(back);
    free(ids);
}

static void golden_ids(void **state)
{
    (void)state;
    if (!model)
        skip();
    json_t *all = kn_golden_load("gemma_tokens.json"), *e;
    size_t i, n_plain = 0;
    json_array_foreach(all, i, e) {
        const json_t *text = json_object_get(e, "text"), *ids = json_object_get(e, "ids"), *plain = json_object_get(e, "plain");
        const char *s = json_string_value(text);
        size_t n = json_string_length(text);
        expect_ids(i, s, n, KN_TOKENIZE_SPECIAL, ids);
        expect_ids(i, s, n, 0, plain ? plain : ids);
        n_plain += plain != NULL;
    }
    assert_true(i >= 300 && n_plain >= 10);
    json_decref(all);
}

/* Whole conversations, in Gemma 3's template: this file of a base model has none. */
static void golden_frames(void **state)
{
    (void)state;
    if (!model)
        skip();
    json_t *all = kn_golden_load("frames.json"), *e;
    size_t i;
    struct kni_chat chat = {.kind = KNI_CHAT_KIND_GEMMA, .bos = {"<bos>", 5}, .eos = {"<eos>", 5}}, *own = model->chat;
    model->chat = &chat;
    json_array_foreach(json_object_get(all, "gemma"), i, e)
        kn_frame_expect(i, model, all, json_array_get(e, 0), json_array_get(e, 1), json_array_get(e, 2));
    model->chat = own;
    assert_true(i >= 50);
    json_decref(all);
}

/* A megabyte without a blank, and of one letter: quick, and the bytes come back. */
static void long_text(void **state)
{
    (void)state;
    if (!model)
        skip();
    enum { N = 1 << 20 };
    char *text = malloc(N);
    int32_t *ids = malloc((3 * (size_t)N + 2) * sizeof *ids);
    assert_true(text && ids);
    for (unsigned round = 0; round < 2; round++) {
        size_t n = 3 * (size_t)N + 2, bytes = 0;
        for (size_t i = 0; i < N; i++)
            text[i] = round ? 'a' : (char)('a' + i * i % 23);
        assert_int_equal(kn_model_tokenize(model, text, N, 0, ids, &n), KN_OK);
        for (size_t i = 0; i < n; i++) {
            const char *b;
            size_t k;
            assert_int_equal(kn_model_token_bytes(model, ids[i], &b, &k), KN_OK);
            assert_memory_equal(b, text + bytes, k);
            bytes += k;
        }
        assert_int_equal(bytes, N);
    }
    free(text);
    free(ids);
}

static int32_t argmax(const float *logits, uint32_t n)
{
    int32_t best = 0;
    for (uint32_t i = 1; i < n; i++)
        best = logits[i] > logits[best] ? (int32_t)i : best;
    return best;
}

static void golden_logits(void **state)
{
    (void)state;
    if (!model)
        skip();
    json_t *root = kn_golden_load("gemma.json"), *kept = json_object_get(root, "kept"), *prompts = json_object_get(root, "prompts"), *p;
    size_t n_kept = json_array_size(kept), n_prompts = json_array_size(prompts), at;
    const struct kni_hparams *hp = &model->hparams;
    struct kni_kv_layout layout = {.n_layer = hp->n_layer, .n_kv_head = hp->n_kv_head, .d_head = hp->d_head, .type = KN_KV_TYPE_F16};
    float *golden = malloc(n_prompts * n_kept * sizeof *golden), *logits = malloc(hp->n_vocab * sizeof *logits);
    size_t bytes = N_CTX / KNI_BLOCK_TOKENS * kni_kv_block_bytes(&layout);
    uint16_t *pool = malloc(bytes);
    uint32_t table[N_CTX / KNI_BLOCK_TOKENS];
    int32_t tokens[N_CTX];
    struct kni_threads *threads;
    struct kni_run *run;
    assert_true(golden && logits && pool);
    memset(pool, 0xff, bytes);
    for (uint32_t i = 0; i < N_CTX / KNI_BLOCK_TOKENS; i++)
        table[i] = i;
    FILE *f = fopen(KN_SOURCE_DIR "/test/e2e/golden/gemma.f32", "rb");
    assert_non_null(f);
    assert_int_equal(fread(golden, sizeof *golden, n_prompts * n_kept, f), n_prompts * n_kept);
    fclose(f);
    assert_int_equal(hp->n_vocab, json_integer_value(json_object_get(root, "n_vocab")));
    assert_int_equal(kni_threads_open(&threads, 2), KN_OK);
    struct kni_run_opts o = {.model = model, .threads = threads, .max_tokens = 256, .max_logits = 1, .n_ctx = N_CTX, .kv_type = KN_KV_TYPE_F16};
    assert_int_equal(kni_run_open(&run, &o, NULL), KN_OK);
    json_array_foreach(prompts, at, p) {
        json_t *list = json_object_get(p, "tokens"), *greedy = json_object_get(p, "greedy"), *gaps = json_object_get(p, "gaps");
        uint32_t n_tokens = (uint32_t)json_array_size(list), n_greedy = (uint32_t)json_array_size(greedy);
        for (uint32_t i = 0; i < n_tokens; i++)
            tokens[i] = (int32_t)json_integer_value(json_array_get(list, i));
        for (uint32_t pos = 0, n; pos < n_tokens; pos += n) {
            n = n_tokens - pos < o.max_tokens ? n_tokens - pos : o.max_tokens;
            struct kni_run_item it = {.kv = kni_kv_view_by_block(&layout, pool, table, N_CTX / KNI_BLOCK_TOKENS),
                                      .tokens = tokens + pos, .n_tokens = n, .first_pos = pos,
                                      .want = pos + n == n_tokens ? KNI_RUN_WANT_LOGITS : KNI_RUN_WANT_NOTHING,
                                      .n_logits = pos + n == n_tokens, .logits = logits};
            assert_int_equal(kni_run_step(run, &it, 1), KN_OK);
        }
        double worst = 0;
        for (size_t i = 0; i < n_kept; i++)
            worst = fmax(worst, fabs((double)logits[json_integer_value(json_array_get(kept, i))] - golden[at * n_kept + i]));
        print_message("prompt %zu (%u tokens): logits differ by at most %.5f\n", at, n_tokens, worst);
        assert_true(worst <= 0.05);
        for (uint32_t g = 0; g < n_greedy; g++) {
            int32_t token = argmax(logits, hp->n_vocab);
            if (token != json_integer_value(json_array_get(greedy, g))) {
                double gap = json_number_value(json_array_get(gaps, g));
                if (gap >= TIE)
                    fail_msg("prompt %zu: greedy token %u is %d, want %lld (gap %g)", at, g, token, json_integer_value(json_array_get(greedy, g)), gap);
                print_message("prompt %zu: tie at token %u (gap %g), the rest is not compared\n", at, g, gap);
                break;
            }
            struct kni_run_item it = {.kv = kni_kv_view_by_block(&layout, pool, table, N_CTX / KNI_BLOCK_TOKENS),
                                      .tokens = &token, .n_tokens = 1, .first_pos = n_tokens + g,
                                      .want = KNI_RUN_WANT_LOGITS, .n_logits = 1, .logits = logits};
            if (g + 1 < n_greedy)
                assert_int_equal(kni_run_step(run, &it, 1), KN_OK);
        }
    }
    kni_run_close(&run);
    kni_threads_close(&threads);
    free(golden);
    free(logits);
    free(pool);
    json_decref(root);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(golden_ids), cmocka_unit_test(golden_frames), cmocka_unit_test(long_text), cmocka_unit_test(golden_logits)};
    return cmocka_run_group_tests_name("gemma", tests, setup, teardown);
}
