/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Preset exact on real K and V: the pool of a real model after a real text, in chunks of 256 tokens, container bytes. Three texts from
 * this repository: prose about formats, C source, a licence; both KV types. Every bit comes back; at least 1.2 to 1 with f16
 * and 1.5 to 1 with bf16. The first chunk of a text is the hardest (attention sinks), and that is the one taken here.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "base/alloc.h"
#include "codec/codec.h"
#include "engine/engine_state.h"
#include "kv/chain.h"
#include "kv/seq.h"
#include "support/real_model.h"

enum { CHUNK = 256 };

static enum kn_status ignore_row(void *user, uint64_t position, const float *logits)
{
    (void)user;
    (void)position;
    (void)logits;
    return KN_OK;
}

static void tokenize(struct kn_model *model, const char *file, int32_t *tokens, size_t n)
{
    char path[4096];
    static char text[8192];
    static int32_t all[8192];
    size_t n_all = 8192;
    snprintf(path, sizeof path, "%s/%s", KN_SOURCE_DIR, file);
    FILE *f = fopen(path, "rb");
    assert_non_null(f);
    size_t n_text = fread(text, 1, sizeof text, f);
    fclose(f);
    assert_int_equal(kn_model_tokenize(model, text, n_text, 0, all, &n_all), KN_OK);
    assert_true(n_all >= n);
    memcpy(tokens, all, n * sizeof *tokens);
}

/* Codes the first chunk of a text; its ratio, after every bit came back. */
static double ratio_of(struct kn_model *model, const char *file, enum kn_kv_type type)
{
    struct kn_engine *e;
    struct kn_err err = {0};
    int32_t tokens[CHUNK + 1];
    tokenize(model, file, tokens, CHUNK + 1);
    struct kn_engine_opts eo = {.size = sizeof eo, .n_ctx = CHUNK + 16, .kv_type = type};
    if (kn_engine_open(&e, model, &eo, &err) != KN_OK)
        fail_msg("%s", err.text);
    struct kn_score_opts so = {.size = sizeof so, .tokens = tokens, .n_tokens = CHUNK + 1, .first = CHUNK, .on_row = ignore_row};
    assert_int_equal(kn_engine_score(e, &so, NULL, &err), KN_OK);

    struct kni_hash seed = kni_chain_seed(e->model->info.fingerprint, NULL);
    struct kni_seq seq;
    assert_int_equal(kni_seq_init(&seq, e->pool, CHUNK + 16, &seed), KN_OK);
    assert_int_equal(kni_seq_match(&seq, tokens, CHUNK + 1, KN_KV_QUALITY_ANY), CHUNK);
    const struct kni_kv_view kv = kni_seq_view(&seq);
    const struct kni_kv_host view = kni_kv_host_of(&kv);
    uint32_t ids[CHUNK / KNI_BLOCK_TOKENS];
    for (uint32_t b = 0; b < CHUNK / KNI_BLOCK_TOKENS; b++)
        ids[b] = b;
    size_t raw = CHUNK * kni_kv_token_bytes(&view.layout);
    const struct kni_kv_host back = kni_kv_host_by_block(&view.layout, calloc(1, raw), ids, CHUNK / KNI_BLOCK_TOKENS);
    assert_non_null(back.k);

    struct kni_codec *codec;
    struct kni_codec_opts co = {.preset = KN_PRESET_EXACT};
    struct kni_chunk_meta meta = {.n_tokens = CHUNK, .kv = view.layout};
    void *data;
    size_t n_bytes;
    assert_int_equal(kni_codec_open(&codec, &co, NULL), KN_OK);
    assert_int_equal(kni_chunk_encode(codec, &meta, &view, &data, &n_bytes, NULL), KN_OK);
    assert_int_equal(kni_chunk_restore(codec, data, n_bytes, &meta, &back, NULL), KN_OK);
    for (uint32_t b = 0; b < CHUNK / KNI_BLOCK_TOKENS; b++)
        assert_true(kni_kv_block_equal(&back, b, &view, b));
    double ratio = (double)raw / (double)n_bytes;
    print_message("%s, %s: %.4f\n", file, type == KN_KV_TYPE_F16 ? "f16" : "bf16", ratio);
    kni_free(data);
    kni_codec_close(&codec);
    free(back.k);
    kni_seq_fini(&seq);
    kn_engine_close(&e);
    return ratio;
}

static void smollm2(void **state)
{
    (void)state;
    static const char *const texts[] = {"doc/format-chunk.md", "src/codec/container.c", "LICENSE"};
    struct kn_model *model = kn_real_model_open();
    for (size_t i = 0; i < sizeof texts / sizeof *texts; i++) {
        assert_true(ratio_of(model, texts[i], KN_KV_TYPE_F16) >= 1.2);
        assert_true(ratio_of(model, texts[i], KN_KV_TYPE_BF16) >= 1.5);
    }
    kn_model_close(&model);
}

/* Another family: queries and keys normalised, two sets of RoPE frequencies, wide heads. */
static void gemma3(void **state)
{
    (void)state;
    const char *path = getenv("KN_MODEL_GEMMA");
    struct kn_model *model;
    struct kn_err err = {0};
    struct kn_model_opts o = {.size = sizeof o, .path = path};
    if (!path || !*path) {
        print_message("KN_MODEL_GEMMA is not set: Gemma 3 270M is skipped\n");
        skip();
    }
    if (kn_model_open(&model, &o, &err) != KN_OK)
        fail_msg("%s", err.text);
    assert_true(ratio_of(model, "LICENSE", KN_KV_TYPE_F16) > 1.15);
    assert_true(ratio_of(model, "LICENSE", KN_KV_TYPE_BF16) > 1.45);
    kn_model_close(&model);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(smollm2), cmocka_unit_test(gemma3)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
