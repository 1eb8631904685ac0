/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Small random models of every architecture against transformers in float32 (golden/make_arch.py): logits at positions before,
 * at and behind the end of the sliding window, for a prompt in one step, in chunks, and token by token.
 *
 * Budget: 0.02, or 0.05 for 62 layers, where logits spread over several units. 16-bit K and V are the only difference beyond the order of float
 * additions: 11 significant bits are 0.0005 relative, and the sum of a few layers' share of it stays within some
 * hundredths of a unit. What a wrong model costs is measured too: with a part of the architecture taken away,
 * the same comparison must fail by ten budgets, or the test would see nothing.
 */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>
#include <jansson.h>

#include "run/run.h"
#include "support/tiny_model.h"

#define N_CTX 128u
#define MAX_POSITIONS 16u

static json_t *root;
static float *golden;
static int32_t tokens[N_CTX];
static uint32_t n_tokens, n_positions, positions[MAX_POSITIONS], n_vocab;
static struct kni_threads *threads;

static int setup(void **state)
{
    (void)state;
    json_error_t e;
    json_t *item;
    size_t i;
    root = json_load_file(KN_SOURCE_DIR "/test/e2e/golden/arch.json", 0, &e);
    assert_non_null(root);
    n_vocab = (uint32_t)json_integer_value(json_object_get(root, "n_vocab"));
    assert_int_equal(n_vocab, kn_tiny_n_vocab());
    json_array_foreach(json_object_get(root, "tokens"), i, item)
        tokens[n_tokens++] = (int32_t)json_integer_value(item);
    json_array_foreach(json_object_get(root, "positions"), i, item)
        positions[n_positions++] = (uint32_t)json_integer_value(item);
    size_t n = json_array_size(json_object_get(root, "cases")) * n_positions * n_vocab;
    golden = malloc(n * sizeof *golden);
    FILE *f = fopen(KN_SOURCE_DIR "/test/e2e/golden/arch.f32", "rb");
    assert_non_null(f);
    assert_int_equal(fread(golden, sizeof *golden, n, f), n);
    fclose(f);
    return kni_threads_open(&threads, 2) == KN_OK ? 0 : -1;
}

static int teardown(void **state)
{
    (void)state;
    kni_threads_close(&threads);
    free(golden);
    json_decref(root);
    return 0;
}

/* Writes the model that a case describes and opens it. */
static struct kn_model *model_of(const json_t *c)
{
    struct kn_gguf_writer w = {0};
    char path[64], key[160];
    const char *arch = json_string_value(json_object_get(c, "arch")), *name;
    uint64_t rng = (uint64_t)json_integer_value(json_object_get(c, "seed")) + 1;
    json_t *value, *t;
    size_t i;
    kn_gguf_put_str(&w, "general.architecture", arch);
    json_object_foreach(json_object_get(c, "u32"), name, value) {
        snprintf(key, sizeof key, "%s.%s", arch, name);
        kn_gguf_put_u32(&w, key, (uint32_t)json_integer_value(value));
    }
    json_object_foreach(json_object_get(c, "f32"), name, value) {
        snprintf(key, sizeof key, "%s.%s", arch, name);
        kn_gguf_put_f32(&w, key, (float)json_number_value(value));
    }
    kn_tiny_tokenizer(&w, &(struct kn_tiny_opts){0});
    json_array_foreach(json_object_get(c, "tensors"), i, t) {
        double amplitude = json_number_value(json_array_get(t, 3)), add = json_number_value(json_array_get(t, 4));
        kn_tiny_tensor(&w, json_string_value(json_array_get(t, 0)), KNI_DTYPE_F32, (uint64_t)json_integer_value(json_array_get(t, 1)),
                       (uint64_t)json_integer_value(json_array_get(t, 2)), (float)amplitude, (float)add, &rng);
    }
    json_t *freqs = json_object_get(c, "rope_freqs");
    if (freqs) {
        float factors[64];
        uint64_t n = json_array_size(freqs);
        for (i = 0; i < n; i++)
            factors[i] = (float)json_number_value(json_array_get(freqs, i));
        kn_gguf_put_tensor(&w, "rope_freqs.weight", KNI_DTYPE_F32, 1, &n, factors, n * 4);
    }
    kn_gguf_assemble(&w);
    snprintf(path, sizeof path, "/tmp/kn_arch_%d.gguf", getpid());
    assert_int_equal(kn_file_write(path, w.file.data, w.file.n), 0);
    kn_gguf_writer_fini(&w);
    struct kn_model *m = NULL;
    struct kn_err err = {0};
    enum kn_status s = kn_model_open(&m, &(struct kn_model_opts){.size = sizeof(struct kn_model_opts), .path = path}, &err);
    unlink(path); /* the mapping stays */
    if (s != KN_OK)
        fail_msg("%s: %s", json_string_value(json_object_get(c, "name")), err.text);
    return m;
}

/* The largest distance from the golden logits of case number at, in steps of chunk tokens. */
static double distance(struct kn_model *m, size_t at, uint32_t chunk)
{
    const struct kni_hparams *hp = &m->hparams;
    struct kni_kv_layout layout = {.n_layer = hp->n_layer, .n_kv_head = hp->n_kv_head, .d_head = hp->d_head, .type = KN_KV_TYPE_F16};
    uint32_t table[N_CTX / KNI_BLOCK_TOKENS], n_blocks = N_CTX / KNI_BLOCK_TOKENS;
    size_t bytes = n_blocks * kni_kv_block_bytes(&layout);
    uint16_t *pool = malloc(bytes);
    float *logits = malloc((size_t)n_tokens * n_vocab * sizeof *logits);
    struct kni_run *run = NULL;
    struct kni_run_opts o = {.model = m, .threads = threads, .max_tokens = chunk, .max_logits = chunk, .n_ctx = N_CTX, .kv_type = KN_KV_TYPE_F16};
    assert_true(pool && logits);
    memset(pool, 0xff, bytes); /* NaN: what was not written must have no effect */
    for (uint32_t i = 0; i < n_blocks; i++)
        table[i] = (i * 3 + 1) % n_blocks;
    assert_int_equal(kni_run_open(&run, &o, NULL), KN_OK);
    for (uint32_t pos = 0, n; pos < n_tokens; pos += n) {
        n = n_tokens - pos < chunk ? n_tokens - pos : chunk;
        struct kni_run_item it = {.kv = kni_kv_view_by_block(&layout, pool, table, n_blocks), .tokens = tokens + pos, .n_tokens = n,
                                  .first_pos = pos, .want = KNI_RUN_WANT_LOGITS, .n_logits = n, .logits = logits + (size_t)pos * n_vocab};
        assert_int_equal(kni_run_step(run, &it, 1), KN_OK);
    }
    double worst = 0;
    for (uint32_t i = 0; i < n_positions; i++)
        for (uint32_t v = 0; v < n_vocab; v++) {
            double x = logits[(size_t)positions[i] * n_vocab + v], want = golden[(at * n_positions + i) * n_vocab + v];
            assert_true(isfinite(x));
            worst = fmax(worst, fabs(x - want));
        }
    kni_run_close(&run);
    free(logits);
    free(pool);
    return worst;
}

static double budget_of(const struct kn_model *m)
{
    return m->hparams.n_layer > 8 ? 0.05 : 0.02;
}

static void logits_are_the_references(void **state)
{
    (void)state;
    static const uint32_t chunks[] = {N_CTX, 33, 7, 1};
    json_t *c;
    size_t at;
    json_array_foreach(json_object_get(root, "cases"), at, c) {
        struct kn_model *m = model_of(c);
        double worst[4];
        for (unsigned i = 0; i < 4; i++)
            worst[i] = distance(m, at, chunks[i]);
        print_message("%-14s logits differ by at most %.5f whole, %.5f in chunks of 33, %.5f of 7, %.5f one by one\n",
                      json_string_value(json_object_get(c, "name")), worst[0], worst[1], worst[2], worst[3]);
        for (unsigned i = 0; i < 4; i++)
            assert_true(worst[i] <= budget_of(m));
        kn_model_close(&m);
    }
}

/* ---- what is taken away shows */

static bool no_window(struct kn_model *m)
{
    for (uint32_t l = 0; l < m->hparams.n_layer; l++)
        m->layers[l].window = 0;
    return m->hparams.window != 0;
}

static bool no_biases(struct kn_model *m)
{
    bool any = m->layers[0].bq != NULL;
    for (uint32_t l = 0; l < m->hparams.n_layer; l++)
        m->layers[l].bq = m->layers[l].bk = m->layers[l].bv = NULL;
    return any;
}

static bool no_head_norms(struct kn_model *m)
{
    bool any = m->layers[0].q_norm != NULL;
    for (uint32_t l = 0; l < m->hparams.n_layer; l++)
        m->layers[l].q_norm = m->layers[l].k_norm = NULL;
    return any;
}

static bool no_post_norms(struct kn_model *m)
{
    bool any = m->layers[0].attn_post_norm != NULL;
    for (uint32_t l = 0; l < m->hparams.n_layer; l++)
        m->layers[l].attn_post_norm = m->layers[l].ffn_post_norm = NULL;
    return any;
}

static bool one_rope(struct kn_model *m)
{
    for (uint32_t l = 0; l < m->hparams.n_layer; l++)
        m->layers[l].rope = 0;
    return m->hparams.n_ropes > 1;
}

static bool no_rope_scaling(struct kn_model *m)
{
    struct kni_rope *rope = &m->hparams.ropes[0];
    bool any = rope->scale != 1.0f || rope->factors;
    rope->scale = 1.0f;
    rope->factors = NULL;
    return any && m->hparams.n_layer <= 8; /* one layer in six of 62 adds little */
}

static bool other_rope_style(struct kn_model *m)
{
    m->hparams.rope_style = m->hparams.rope_style == KNI_ROPE_STYLE_NORM ? KNI_ROPE_STYLE_NEOX : KNI_ROPE_STYLE_NORM;
    return true;
}

static bool other_activation(struct kn_model *m)
{
    m->hparams.act = m->hparams.act == KNI_ACT_SILU ? KNI_ACT_GELU : KNI_ACT_SILU;
    return true;
}

static bool no_embed_scale(struct kn_model *m)
{
    bool any = m->hparams.embed_scale != 1.0f;
    m->hparams.embed_scale = 1.0f;
    return any;
}

static bool no_logit_softcap(struct kn_model *m)
{
    bool any = m->hparams.logit_softcap != 0;
    m->hparams.logit_softcap = 0;
    return any;
}

static bool plain_attn_scale(struct kn_model *m)
{
    float plain = 1.0f / sqrtf((float)m->hparams.d_head);
    bool any = m->hparams.attn_scale != plain;
    m->hparams.attn_scale = plain;
    return any;
}

static bool tied_output(struct kn_model *m)
{
    bool any = m->output != m->tok_embd;
    m->output = m->tok_embd;
    return any;
}

static void what_is_missing_shows(void **state)
{
    (void)state;
    static const struct { const char *name; bool (*take)(struct kn_model *m); } parts[] = {
        {"window", no_window},           {"biases", no_biases},           {"norms of heads", no_head_norms},  {"post norms", no_post_norms},
        {"local RoPE", one_rope},        {"RoPE scaling", no_rope_scaling}, {"RoPE style", other_rope_style}, {"activation", other_activation},
        {"embed scale", no_embed_scale}, {"logit cap", no_logit_softcap}, {"scale of scores", plain_attn_scale}, {"own output", tied_output},
    };
    unsigned tried[sizeof parts / sizeof *parts] = {0};
    json_t *c;
    size_t at;
    json_array_foreach(json_object_get(root, "cases"), at, c)
        for (unsigned p = 0; p < sizeof parts / sizeof *parts; p++) {
            struct kn_model *m = model_of(c);
            if (parts[p].take(m)) {
                double d = distance(m, at, N_CTX);
                if (d < 10 * budget_of(m))
                    fail_msg("%s without its %s differs by only %g", json_string_value(json_object_get(c, "name")), parts[p].name, d);
                tried[p]++;
            }
            kn_model_close(&m);
        }
    for (unsigned p = 0; p < sizeof parts / sizeof *parts; p++)
        if (!tried[p])
            fail_msg("no case has %s", parts[p].name);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(logits_are_the_references), cmocka_unit_test(what_is_missing_shows)};
    return cmocka_run_group_tests_name("arch", tests, setup, teardown);
}
