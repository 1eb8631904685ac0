/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The run against transformers in float32 (golden/make_logits.py): logits after three prompts, and the 64 greedy tokens that
 * follow, for every way to cut a prompt into steps, alone and in a batch, for both 16-bit types and every CPU level.
 *
 * Budgets: 0.05 with f16 K and V, whose 11 significant bits are the only difference from the reference beyond the order of float
 * additions; 0.5 with bf16, which has 8 bits. Measured maxima are printed.
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

#include "base/cpu.h"
#include "run/run.h"
#include "support/real_model.h"

#define N_PROMPTS 3u
#define N_GREEDY 64u
#define N_CTX 1024u
#define TIE 0.001 /* candidates nearer than this may swap: then only logits are compared */

struct prompt {
    int32_t *tokens, greedy[N_GREEDY];
    double gaps[N_GREEDY];
    uint32_t n_tokens;
    const float *logits;
};

static struct prompt prompts[N_PROMPTS];
static float *golden;
static uint32_t n_vocab;
static struct kn_model *model;
static struct kni_threads *threads;
static struct kni_run *run;
static struct kni_kv_layout layout;
static uint16_t *pool;
static uint32_t table[N_PROMPTS][N_CTX / KNI_BLOCK_TOKENS];

static void load_golden(void)
{
    char path[4096];
    json_error_t e;
    snprintf(path, sizeof path, "%s/test/e2e/golden/logits.json", KN_SOURCE_DIR);
    json_t *root = json_load_file(path, 0, &e);
    assert_non_null(root);
    n_vocab = (uint32_t)json_integer_value(json_object_get(root, "n_vocab"));
    golden = malloc(N_PROMPTS * n_vocab * sizeof *golden);
    snprintf(path, sizeof path, "%s/test/e2e/golden/logits.f32", KN_SOURCE_DIR);
    FILE *f = fopen(path, "rb");
    assert_non_null(f);
    assert_int_equal(fread(golden, sizeof *golden, N_PROMPTS * n_vocab, f), N_PROMPTS * n_vocab);
    fclose(f);
    for (uint32_t i = 0; i < N_PROMPTS; i++) {
        json_t *p = json_array_get(json_object_get(root, "prompts"), i), *t = json_object_get(p, "tokens");
        prompts[i].n_tokens = (uint32_t)json_array_size(t);
        prompts[i].tokens = malloc(prompts[i].n_tokens * sizeof(int32_t));
        prompts[i].logits = golden + (size_t)i * n_vocab;
        for (uint32_t j = 0; j < prompts[i].n_tokens; j++)
            prompts[i].tokens[j] = (int32_t)json_integer_value(json_array_get(t, j));
        for (uint32_t j = 0; j < N_GREEDY; j++) {
            prompts[i].greedy[j] = (int32_t)json_integer_value(json_array_get(json_object_get(p, "greedy"), j));
            prompts[i].gaps[j] = json_number_value(json_array_get(json_object_get(p, "gaps"), j));
        }
    }
    json_decref(root);
}

static int setup(void **state)
{
    (void)state;
    load_golden();
    model = kn_real_model_open();
    assert_int_equal(model->hparams.n_vocab, n_vocab);
    assert_int_equal(kni_threads_open(&threads, 2), KN_OK);
    const struct kni_hparams *hp = &model->hparams;
    layout = (struct kni_kv_layout){.n_layer = hp->n_layer, .n_kv_head = hp->n_kv_head, .d_head = hp->d_head};
    size_t bytes = N_PROMPTS * (N_CTX / KNI_BLOCK_TOKENS) * kni_kv_block_bytes(&layout);
    pool = malloc(bytes);
    assert_non_null(pool);
    memset(pool, 0xff, bytes); /* NaN: what was not written must have no effect */
    for (uint32_t i = 0; i < N_PROMPTS; i++) /* blocks of the sequences interleave */
        for (uint32_t b = 0; b < N_CTX / KNI_BLOCK_TOKENS; b++)
            table[i][b] = b * N_PROMPTS + (i + b) % N_PROMPTS;
    return 0;
}

static int teardown(void **state)
{
    (void)state;
    kni_threads_close(&threads);
    kn_model_close(&model);
    for (uint32_t i = 0; i < N_PROMPTS; i++)
        free(prompts[i].tokens);
    free(golden);
    free(pool);
    return 0;
}

static void open_run(enum kn_kv_type type, uint32_t max_tokens)
{
    struct kn_err err = {0};
    layout.type = type;
    enum kn_status s = kni_run_open(&run, &(struct kni_run_opts){.model = model, .threads = threads, .max_tokens = max_tokens, .max_logits = N_PROMPTS, .n_ctx = N_CTX, .kv_type = type}, &err);
    if (s)
        print_error("%s\n", err.text);
    assert_int_equal(s, KN_OK);
}

static struct kni_run_item item(uint32_t i, const int32_t *tokens, uint32_t n_tokens, uint32_t first_pos, float *logits)
{
    return (struct kni_run_item){.kv = kni_kv_view_by_block(&layout, pool, table[i], N_CTX / KNI_BLOCK_TOKENS),
        .tokens = tokens, .n_tokens = n_tokens, .first_pos = first_pos,
        .want = logits ? KNI_RUN_WANT_LOGITS : KNI_RUN_WANT_NOTHING, .n_logits = logits ? 1 : 0, .logits = logits};
}

static double max_diff(const float *a, const float *b)
{
    double worst = 0;
    for (uint32_t i = 0; i < n_vocab; i++) {
        assert_true(isfinite(a[i]));
        double d = fabs((double)a[i] - b[i]);
        worst = d > worst ? d : worst;
    }
    return worst;
}

static int32_t argmax(const float *logits)
{
    int32_t best = 0;
    for (uint32_t i = 1; i < n_vocab; i++)
        best = logits[i] > logits[best] ? (int32_t)i : best;
    return best;
}

/* Prompt i in steps of chunk tokens, then n_greedy tokens. Returns the logits' distance after the prompt. */
static double generate(uint32_t i, uint32_t chunk, uint32_t n_greedy)
{
    const struct prompt *p = &prompts[i];
    float *logits = malloc(n_vocab * sizeof *logits);
    for (uint32_t at = 0, n; at < p->n_tokens; at += n) {
        n = p->n_tokens - at < chunk ? p->n_tokens - at : chunk;
        struct kni_run_item it = item(i, p->tokens + at, n, at, at + n == p->n_tokens ? logits : NULL);
        assert_int_equal(kni_run_step(run, &it, 1), KN_OK);
    }
    double diff = max_diff(logits, p->logits);
    for (uint32_t g = 0; g < n_greedy; g++) {
        int32_t token = argmax(logits);
        if (token != p->greedy[g] && p->gaps[g] < TIE) {
            print_message("prompt %u: tie at token %u (gap %g), the rest is not compared\n", i, g, p->gaps[g]);
            break;
        }
        if (token != p->greedy[g])
            print_error("prompt %u chunk %u: token %u differs, reference gap %g\n", i, chunk, g, p->gaps[g]);
        assert_int_equal(token, p->greedy[g]);
        struct kni_run_item it = item(i, &token, 1, p->n_tokens + g, logits);
        if (g + 1 < n_greedy)
            assert_int_equal(kni_run_step(run, &it, 1), KN_OK);
    }
    free(logits);
    return diff;
}

static void check_chunk(const char *name, enum kn_kv_type type, uint32_t chunk, uint32_t n_greedy, double budget)
{
    open_run(type, chunk < N_CTX ? chunk : N_CTX);
    for (uint32_t i = 0; i < N_PROMPTS; i++) {
        double diff = generate(i, chunk, n_greedy);
        print_message("%s, chunk %u, prompt %u (%u tokens): logits differ by at most %.5f\n", name, chunk, i, prompts[i].n_tokens, diff);
        assert_true(diff <= budget);
    }
    kni_run_close(&run);
}

static void f16_chunk_1(void **state) { (void)state; check_chunk("f16", KN_KV_TYPE_F16, 1, N_GREEDY, 0.05); }
static void f16_chunk_7(void **state) { (void)state; check_chunk("f16", KN_KV_TYPE_F16, 7, N_GREEDY, 0.05); }
static void f16_chunk_256(void **state) { (void)state; check_chunk("f16", KN_KV_TYPE_F16, 256, N_GREEDY, 0.05); }
static void f16_whole(void **state) { (void)state; check_chunk("f16", KN_KV_TYPE_F16, N_CTX, N_GREEDY, 0.05); }
static void bf16_chunk_256(void **state) { (void)state; check_chunk("bf16", KN_KV_TYPE_BF16, 256, 0, 0.5); }

/* All prompts in one batch: chunks and decodes of three sequences share steps. */
static void check_batched(void)
{
    open_run(KN_KV_TYPE_F16, 80);
    uint32_t at[N_PROMPTS] = {0}, n_out[N_PROMPTS] = {0}, left = N_PROMPTS;
    int32_t next[N_PROMPTS];
    float *logits = malloc(N_PROMPTS * n_vocab * sizeof *logits);
    while (left) {
        struct kni_run_item items[N_PROMPTS];
        uint32_t who[N_PROMPTS], n_items = 0;
        for (uint32_t i = 0; i < N_PROMPTS; i++) {
            const struct prompt *p = &prompts[i];
            float *out = logits + (size_t)i * n_vocab;
            uint32_t n = p->n_tokens > at[i] ? p->n_tokens - at[i] : 0;
            n = n > 26 ? 26 : n;
            if (n_out[i] == N_GREEDY)
                continue;
            who[n_items] = i;
            if (n)
                items[n_items++] = item(i, p->tokens + at[i], n, at[i], at[i] + n == p->n_tokens ? out : NULL);
            else
                items[n_items++] = item(i, &next[i], 1, at[i], out);
        }
        assert_int_equal(kni_run_step(run, items, n_items), KN_OK);
        for (uint32_t j = 0; j < n_items; j++) {
            uint32_t i = who[j];
            at[i] += items[j].n_tokens;
            if (!items[j].n_logits)
                continue;
            if (at[i] == prompts[i].n_tokens)
                assert_true(max_diff(items[j].logits, prompts[i].logits) <= 0.05);
            next[i] = argmax(items[j].logits);
            if (next[i] != prompts[i].greedy[n_out[i]] && prompts[i].gaps[n_out[i]] < TIE) {
                print_message("prompt %u: tie at token %u, the rest is not compared\n", i, n_out[i]);
                n_out[i] = N_GREEDY - 1;
            } else {
                assert_int_equal(next[i], prompts[i].greedy[n_out[i]]);
            }
            left -= ++n_out[i] == N_GREEDY;
        }
    }
    free(logits);
    kni_run_close(&run);
}

/* Bits do not depend on the number of threads, nor on the chunk, from 5 rows of a product to 256. */
static void bits_do_not_depend_on_threads_or_chunks(void **state)
{
    (void)state;
    const struct prompt *p = &prompts[1];
    static const uint32_t chunks[] = {256, 48, 5, 1}, n_threads[] = {2, 1, 3, 4};
    float *first = NULL;
    for (unsigned c = 0; c < 4; c++) {
        float *logits = malloc(n_vocab * sizeof *logits);
        kni_threads_close(&threads);
        assert_int_equal(kni_threads_open(&threads, n_threads[c]), KN_OK);
        open_run(KN_KV_TYPE_F16, 256);
        for (uint32_t at = 0, n; at < p->n_tokens - 1; at += n) { /* the last token by itself: a decode */
            n = p->n_tokens - 1 - at < chunks[c] ? p->n_tokens - 1 - at : chunks[c];
            n = p->n_tokens - 1 - at - n <= KNI_BLOCK_TOKENS ? p->n_tokens - 1 - at : n; /* no short rest */
            struct kni_run_item it = item(1, p->tokens + at, n, at, NULL);
            assert_int_equal(kni_run_step(run, &it, 1), KN_OK);
        }
        struct kni_run_item it = item(1, p->tokens + p->n_tokens - 1, 1, p->n_tokens - 1, logits);
        assert_int_equal(kni_run_step(run, &it, 1), KN_OK);
        kni_run_close(&run);
        if (first) {
            assert_memory_equal(first, logits, n_vocab * sizeof *logits);
            free(logits);
        } else {
            first = logits;
        }
    }
    free(first);
    kni_threads_close(&threads);
    assert_int_equal(kni_threads_open(&threads, 2), KN_OK);
}

static void f16_batched(void **state)
{
    (void)state;
    check_batched();
}

/* The same 64 tokens for every number of threads, more of them than processors too. */
static void every_thread_count(void **state)
{
    (void)state;
    for (uint32_t n = 1; n <= 4; n++) {
        if (n == 2)
            continue; /* all other tests */
        kni_threads_close(&threads);
        assert_int_equal(kni_threads_open(&threads, n), KN_OK);
        check_batched();
    }
    kni_threads_close(&threads);
    assert_int_equal(kni_threads_open(&threads, 2), KN_OK);
}

/* References only, and every set of flags between them and the machine's best. Fewer greedy tokens: references are slow. */
static void every_cpu_level(void **state)
{
    (void)state;
    const uint32_t avx512 = KNI_CPU_FLAG_AVX2 | KNI_CPU_FLAG_AVX512;
    const uint32_t all = kni_cpu_flags_all(), masks[] = {0, KNI_CPU_FLAG_AVX2, avx512, avx512 | KNI_CPU_FLAG_AVX512_VNNI, avx512 | KNI_CPU_FLAG_AVX512_BF16};
    for (unsigned i = 0; i < sizeof masks / sizeof *masks; i++) {
        if ((all & masks[i]) != masks[i] || masks[i] == all)
            continue;
        kni_cpu_pretend(masks[i]);
        print_message("flags %#x\n", masks[i]);
        if (masks[i])
            check_batched();
        else
            check_chunk(kni_cpu_level_name(masks[i]), KN_KV_TYPE_F16, 256, 8, 0.05);
        kni_cpu_pretend(UINT32_MAX);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(f16_chunk_256), cmocka_unit_test(f16_whole), cmocka_unit_test(f16_chunk_7), cmocka_unit_test(f16_chunk_1),
        cmocka_unit_test(f16_batched),   cmocka_unit_test(bf16_chunk_256), cmocka_unit_test(bits_do_not_depend_on_threads_or_chunks),
        cmocka_unit_test(every_thread_count), cmocka_unit_test(every_cpu_level),
    };
    return cmocka_run_group_tests_name("logits", tests, setup, teardown);
}
