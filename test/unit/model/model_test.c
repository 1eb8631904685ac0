/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Opening models: a tiny valid one in every tensor type, refusals by name, every header byte damaged, allocations failing.
 * Files are written to the build's temporary folder.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <unistd.h>

#include <cmocka.h>

#include "base/alloc.h"
#include "model/model.h"
#include "support/tiny_model.h"

static char path[64];

static int setup(void **state)
{
    (void)state;
    snprintf(path, sizeof path, "/tmp/kn_model_test_XXXXXX");
    int fd = mkstemp(path);
    return fd < 0 ? -1 : close(fd);
}

static int teardown(void **state)
{
    (void)state;
    return unlink(path);
}

static enum kn_status open_file(struct kn_model **m, struct kn_err *err)
{
    struct kn_model_opts o = {.size = sizeof o, .path = path};
    memset(err, 0, sizeof *err);
    return kn_model_open(m, &o, err);
}

/* Writes w's file, opens it, expects the status and both words in the sentence; frees w. */
static void expect(struct kn_gguf_writer *w, enum kn_status status, const char *word, const char *word2)
{
    struct kn_model *m;
    struct kn_err err;
    kn_gguf_assemble(w);
    assert_int_equal(kn_file_write(path, w->file.data, w->file.n), 0);
    enum kn_status s = open_file(&m, &err);
    if (s != status)
        fail_msg("status %s, want %s: %s", kn_status_name(s), kn_status_name(status), err.text);
    assert_int_equal(m == NULL, status != KN_OK);
    if (status && (!strstr(err.text, path) || (word && !strstr(err.text, word)) || (word2 && !strstr(err.text, word2))))
        fail_msg("\"%s\" does not name \"%s\", \"%s\"", err.text, word, word2);
    kn_model_close(&m);
    kn_gguf_writer_fini(w);
}

static void every_type(void **state)
{
    (void)state;
    for (uint32_t type = 0; type < 32; type++) {
        const struct kni_dtype_info *info = kni_dtype_get_info(type);
        if (!info)
            continue;
        struct kn_tiny_opts o = {.type = type, .d_head = 64, .untied = type % 2, .seed = type};
        struct kn_model *m;
        struct kn_err err;
        assert_int_equal(kn_tiny_model_write(path, &o), 0);
        assert_int_equal(open_file(&m, &err), KN_OK);
        const struct kn_model_info *i = kn_model_info(m);
        assert_string_equal(i->quant, info->name);
        assert_true(i->n_layer == 3 && i->n_head == 4 && i->n_kv_head == 2 && i->d_head == 64 && i->n_embd == 256 && i->n_ff == 256 && i->n_ctx_train == 512);
        assert_int_equal(i->n_vocab, kn_tiny_n_vocab());
        assert_int_equal(i->kv_bytes_per_token, 3 * 2 * 2 * 64 * 2);
        assert_int_equal(i->n_tensors, 3 * 9 + 2 + o.untied);
        uint64_t params = (uint64_t)256 * i->n_vocab * (1 + o.untied) + 256 + 3 * (2 * 256 + 2 * 256 * 256 + 2 * 256 * 128 + 3 * 256 * 256);
        assert_int_equal(i->n_params, params);
        assert_true((m->output == m->tok_embd) == !o.untied);
        assert_int_equal(m->hparams.rope_style, KNI_ROPE_STYLE_NORM);
        assert_int_equal(m->hparams.rope_dim, 64);
        for (uint32_t l = 0; l < 3; l++) {
            const struct kni_layer *y = &m->layers[l];
            assert_true(y->attn_norm && y->wq && y->wk && y->wv && y->wo && y->ffn_norm && y->w_gate && y->w_up && y->w_down);
            assert_true(y->wk->ne[0] == 256 && y->wk->ne[1] == 128 && y->wk->type == (enum kni_dtype)type && y->ffn_norm->type == KNI_DTYPE_F32);
        }
        struct kn_tensor_info t = {.size = sizeof t};
        uint64_t bytes = 0;
        for (uint32_t k = 0; k < i->n_tensors; k++) {
            assert_int_equal(kn_model_get_tensor(m, k, &t), KN_OK);
            assert_true(t.file_offset + t.n_bytes <= i->file_bytes);
            bytes += t.n_bytes;
        }
        assert_true(bytes < i->file_bytes && bytes > i->n_params / 3);
        assert_int_equal(kn_model_get_tensor(m, i->n_tensors, &t), KN_E_ARG);
        struct kn_model *other = kni_model_ref(m);
        kn_model_close(&m);
        assert_null(m);
        assert_string_equal(kn_model_info(other)->arch, "llama"); /* still alive */
        kn_model_close(&other);
        kn_model_close(&other);
        kn_model_close(NULL);
    }
}

static void file_errors(void **state)
{
    (void)state;
    struct kn_model *m = (struct kn_model *)(uintptr_t)1;
    struct kn_err err = {0};
    struct kn_model_opts o = {.size = sizeof o, .path = "/nonexistent/model.gguf"};
    assert_int_equal(kn_model_open(&m, &o, &err), KN_E_NOT_FOUND);
    assert_null(m);
    assert_non_null(strstr(err.text, "/nonexistent/model.gguf"));
    assert_non_null(strstr(err.text, "check the path"));
    o.path = "/tmp";
    assert_int_equal(kn_model_open(&m, &o, &err), KN_E_FORMAT);
    assert_non_null(strstr(err.text, "not a regular file"));
    assert_int_equal(kn_model_open(&m, &o, NULL), KN_E_FORMAT);
    assert_int_equal(kn_file_write(path, "", 0), 0);
    assert_int_equal(open_file(&m, &err), KN_E_FORMAT);
    assert_non_null(strstr(err.text, "empty"));
    assert_int_equal(kn_file_write(path, "#!/bin/sh\necho hello, this is a script\n", 39), 0);
    assert_int_equal(open_file(&m, &err), KN_E_FORMAT);
    assert_non_null(strstr(err.text, "not the start of a GGUF file"));
    o.path = NULL;
    assert_int_equal(kn_model_open(&m, &o, &err), KN_E_ARG);
    o = (struct kn_model_opts){.path = path}; /* size forgotten */
    assert_int_equal(kn_model_open(&m, &o, &err), KN_E_ARG);
    o.size = offsetof(struct kn_model_opts, path); /* too small to hold it */
    assert_int_equal(kn_model_open(&m, &o, &err), KN_E_ARG);
    assert_int_equal(kn_model_open(&m, NULL, &err), KN_E_ARG);
    assert_int_equal(kn_model_open(NULL, NULL, &err), KN_E_ARG);
}

/* Finds the length-prefixed string in the metadata and returns the byte behind it. */
static uint8_t *behind(struct kn_gguf_writer *w, const char *key)
{
    size_t n = strlen(key);
    for (size_t i = 8; i + n <= w->kv.n; i++) {
        uint64_t length;
        memcpy(&length, w->kv.data + i - 8, 8);
        if (length == n && !memcmp(w->kv.data + i, key, n))
            return w->kv.data + i + n;
    }
    fail_msg("no key %s", key);
    return NULL;
}

static void metadata(void **state)
{
    (void)state;
    struct kn_gguf_writer w = {0};
    struct kn_tiny_opts o = {.arch = "gemma2"};
    kn_tiny_model_build(&w, &o);
    expect(&w, KN_E_UNSUPPORTED, "gemma2", "llama");
    o = (struct kn_tiny_opts){.pre = "superbpe"};
    kn_tiny_model_build(&w, &o);
    expect(&w, KN_E_UNSUPPORTED, "superbpe", "smollm");
    kn_tiny_model_build(&w, NULL);
    memcpy(behind(&w, "tokenizer.ggml.model") + 12, "bert", 4);
    expect(&w, KN_E_UNSUPPORTED, "bert", "gpt2");

    static const struct { const char *key; uint32_t value; } bad[] = {
        {"llama.block_count", 0},          {"llama.block_count", 1025},        {"llama.block_count", UINT32_MAX},   {"llama.context_length", 0},
        {"llama.context_length", 1u << 25}, {"llama.embedding_length", 0},     {"llama.embedding_length", 1u << 17}, {"llama.feed_forward_length", 0},
        {"llama.feed_forward_length", UINT32_MAX}, {"llama.attention.head_count", 0}, {"llama.attention.head_count", 2000}, {"llama.attention.head_count_kv", 0},
        {"llama.rope.dimension_count", 0}, {"llama.vocab_size", 77},
    };
    for (unsigned i = 0; i < sizeof bad / sizeof *bad; i++) {
        kn_tiny_model_build(&w, NULL);
        memcpy(behind(&w, bad[i].key) + 4, &bad[i].value, 4);
        expect(&w, KN_E_FORMAT, bad[i].key, NULL);
    }
    static const struct { const char *key; uint32_t value; const char *word; } clash[] = {
        {"llama.block_count", 4, "blk.3."},           {"llama.embedding_length", 256, "token_embd"}, {"llama.feed_forward_length", 64, "ffn_gate"},
        {"llama.attention.head_count_kv", 3, "heads"}, {"llama.attention.head_count_kv", 4, "attn_k"}, {"llama.rope.dimension_count", 34, "rotate"},
        {"llama.rope.dimension_count", 31, "rotate"},
    };
    for (unsigned i = 0; i < sizeof clash / sizeof *clash; i++) {
        kn_tiny_model_build(&w, NULL);
        memcpy(behind(&w, clash[i].key) + 4, &clash[i].value, 4);
        expect(&w, KN_E_FORMAT, clash[i].word, NULL);
    }
    static const float epsilons[] = {0, -1, 1, NAN, INFINITY};
    for (unsigned i = 0; i < 5; i++) {
        kn_tiny_model_build(&w, NULL);
        memcpy(behind(&w, "llama.attention.layer_norm_rms_epsilon") + 4, &epsilons[i], 4);
        expect(&w, KN_E_FORMAT, "layer_norm_rms_epsilon", NULL);
    }
    static const char *const needed[] = {"general.architecture", "llama.block_count", "llama.attention.layer_norm_rms_epsilon", "tokenizer.ggml.model",
                                         "tokenizer.ggml.tokens", "tokenizer.ggml.merges"};
    for (unsigned i = 0; i < sizeof needed / sizeof *needed; i++) { /* a key of another name is a missing key */
        kn_tiny_model_build(&w, NULL);
        behind(&w, needed[i])[-1] ^= 1;
        expect(&w, KN_E_FORMAT, needed[i], "missing");
    }
    kn_tiny_model_build(&w, NULL);
    *behind(&w, "llama.block_count") = KN_GGUF_F32;
    expect(&w, KN_E_FORMAT, "llama.block_count", "integer");
}

static void features(void **state)
{
    (void)state;
    struct kn_gguf_writer w = {0};
    for (uint32_t i = 0; i < 2; i++) {
        kn_tiny_model_build(&w, NULL);
        kn_gguf_put_u32(&w, "llama.expert_count", 8 * i);
        expect(&w, i ? KN_E_UNSUPPORTED : KN_OK, "llama.expert_count", NULL);
    }
    kn_tiny_model_build(&w, NULL);
    kn_gguf_put_str(&w, "llama.rope.scaling.type", "yarn");
    expect(&w, KN_E_UNSUPPORTED, "rope.scaling.type", "yarn");
    kn_tiny_model_build(&w, NULL);
    kn_gguf_put_str(&w, "llama.rope.scaling.type", "none");
    kn_gguf_put_f32(&w, "llama.rope.scaling.factor", 8);
    expect(&w, KN_OK, NULL, NULL);
    static const float factors[] = {1, 2, 0.5f, NAN, 0}; /* without a type: linear scaling */
    for (unsigned i = 0; i < 5; i++) {
        kn_tiny_model_build(&w, NULL);
        kn_gguf_put_f32(&w, "llama.rope.scaling.factor", factors[i]);
        expect(&w, i < 3 ? KN_OK : KN_E_FORMAT, "rope.scaling.factor", NULL);
    }
    kn_tiny_model_build(&w, NULL);
    kn_gguf_put_u32(&w, "llama.attention.value_length", 64);
    expect(&w, KN_E_UNSUPPORTED, "64", NULL);
    /* A tensor that would be left out of the sum. */
    static const char *const extra[] = {"blk.0.attn_q.bias", "blk.0.post_ffw_norm.weight", "blk.3.attn_norm.weight"};
    float data[128] = {0};
    uint64_t ne[1] = {128};
    for (unsigned i = 0; i < 3; i++) {
        kn_tiny_model_build(&w, NULL);
        kn_gguf_put_tensor(&w, extra[i], KNI_DTYPE_F32, 1, ne, data, sizeof data);
        expect(&w, KN_E_UNSUPPORTED, extra[i], "not part of");
    }
    static const struct { uint64_t n; float last; enum kn_status status; const char *word; } factors_of[] = {
        {16, 8, KN_OK, NULL}, {128, 1, KN_E_FORMAT, "shape"}, {16, 0, KN_E_FORMAT, "15"}, {16, -1, KN_E_FORMAT, "15"}, {16, NAN, KN_E_FORMAT, "15"},
    };
    for (unsigned i = 0; i < 5; i++) {
        for (unsigned k = 0; k < 128; k++)
            data[k] = 1;
        data[15] = factors_of[i].last;
        kn_tiny_model_build(&w, NULL);
        kn_gguf_put_tensor(&w, "rope_freqs.weight", KNI_DTYPE_F32, 1, &factors_of[i].n, data, factors_of[i].n * 4);
        expect(&w, factors_of[i].status, "rope_freqs", factors_of[i].word);
    }
    kn_tiny_model_build(&w, NULL); /* a renamed tensor is a missing one */
    uint8_t *name = memmem(w.infos.data, w.infos.n, "blk.1.ffn_up.weight", 19);
    assert_non_null(name);
    name[4] = '7';
    expect(&w, KN_E_FORMAT, "blk.1.ffn_up.weight", "missing");
    struct kn_tiny_opts half = {.type = KNI_DTYPE_F16};
    kn_tiny_model_build(&w, &half); /* norms must be F32 */
    name = memmem(w.infos.data, w.infos.n, "output_norm.weight", 18);
    assert_non_null(name);
    uint32_t f16 = KNI_DTYPE_F16;
    memcpy(name + 18 + 4 + 8, &f16, 4);
    expect(&w, KN_E_UNSUPPORTED, "output_norm.weight", "F32");
}

static void tokenizer_errors(void **state)
{
    (void)state;
    struct kn_gguf_writer w = {0};
    uint32_t big = 100000, zero = 0;
    kn_tiny_model_build(&w, NULL);
    memcpy(behind(&w, "tokenizer.ggml.eos_token_id") + 4, &big, 4);
    expect(&w, KN_E_FORMAT, "tokenizer.ggml.eos_token_id", "100000");
    kn_tiny_model_build(&w, NULL);
    memcpy(behind(&w, "tokenizer.ggml.token_type") + 16, &big, 4);
    expect(&w, KN_E_FORMAT, "token 0", "100000");
    kn_tiny_model_build(&w, NULL);
    memcpy(behind(&w, "tokenizer.ggml.token_type") + 20, &zero, 4);
    expect(&w, KN_E_FORMAT, "token 1", NULL);
    static const char *const merges[] = {"h x", "hxx", " he", "he ", "\x01 h"}; /* in place of "h e", the third entry */
    for (unsigned i = 0; i < 5; i++) {
        kn_tiny_model_build(&w, NULL);
        memcpy(behind(&w, "h e") - 3, merges[i], 3);
        expect(&w, KN_E_FORMAT, "entry 2", "tokenizer.ggml.merges");
    }
}

static void sentencepiece_errors(void **state)
{
    (void)state;
    struct kn_gguf_writer w = {0};
    const struct kn_tiny_opts spm = {.spm = true};
    uint64_t fewer = 7;
    float nan_score = NAN;
    kn_tiny_model_build(&w, &spm);
    expect(&w, KN_OK, NULL, NULL);
    kn_tiny_model_build(&w, &spm);
    behind(&w, "tokenizer.ggml.scores")[-1] ^= 1;
    expect(&w, KN_E_FORMAT, "tokenizer.ggml.scores", "missing");
    kn_tiny_model_build(&w, &spm);
    memcpy(behind(&w, "tokenizer.ggml.scores") + 16 + 40, &nan_score, 4);
    expect(&w, KN_E_FORMAT, "tokenizer.ggml.scores", "no number");
    kn_tiny_model_build(&w, &spm); /* a second, short list of scores under the key's name */
    behind(&w, "tokenizer.ggml.scores")[-1] ^= 1;
    kn_gguf_put_array(&w, "tokenizer.ggml.scores", KN_GGUF_F32, fewer);
    kn_bytes_put(&w.kv, NULL, 4 * fewer);
    expect(&w, KN_E_FORMAT, "tokenizer.ggml.scores", "7 entries");
    kn_tiny_model_build(&w, &spm);
    kn_gguf_put_u32(&w, "tokenizer.ggml.unknown_token_id", 100000);
    expect(&w, KN_E_FORMAT, "tokenizer.ggml.unknown_token_id", "100000");
}

/* What each architecture demands beyond llama's: absent, or of a shape that the configuration does not give. */
static void architectures(void **state)
{
    (void)state;
    static const struct { const char *arch, *tensor; uint64_t n; } parts[] = {
        {"qwen2", "attn_q.bias", 128}, {"qwen2", "attn_k.bias", 64}, {"qwen2", "attn_v.bias", 64}, {"qwen3", "attn_q_norm.weight", 32},
        {"qwen3", "attn_k_norm.weight", 32}, {"gemma3", "attn_q_norm.weight", 32}, {"gemma3", "attn_k_norm.weight", 32},
        {"gemma3", "post_attention_norm.weight", 128}, {"gemma3", "post_ffw_norm.weight", 128},
    };
    enum { N = sizeof parts / sizeof *parts }; /* missing or wrong N: none is */
    static const char *const archs[] = {"qwen2", "qwen3", "gemma3"};
    float data[129];
    for (unsigned i = 0; i < 129; i++)
        data[i] = 1;
    for (unsigned a = 0; a < 3; a++)
        for (unsigned missing = 0; missing <= N; missing++)
            for (unsigned wrong = 0; wrong <= N; wrong++) {
                if ((missing < N && (wrong < N || strcmp(parts[missing].arch, archs[a]))) || (wrong < N && strcmp(parts[wrong].arch, archs[a])))
                    continue;
                struct kn_gguf_writer w = {0};
                struct kn_tiny_opts o = {.arch = archs[a]};
                kn_tiny_model_build(&w, &o);
                if (a == 2)
                    kn_gguf_put_u32(&w, "gemma3.attention.sliding_window", 64);
                for (unsigned p = 0; p < N; p++)
                    for (unsigned l = 0; l < 3 && !strcmp(parts[p].arch, archs[a]); l++) {
                        char name[64];
                        uint64_t ne = parts[p].n + (p == wrong && l == 1);
                        snprintf(name, sizeof name, "blk.%u.%s", l, parts[p].tensor);
                        if (p != missing || l != 1)
                            kn_gguf_put_tensor(&w, name, KNI_DTYPE_F32, 1, &ne, data, ne * 4);
                    }
                const char *word = missing < N ? parts[missing].tensor : wrong < N ? parts[wrong].tensor : NULL;
                expect(&w, word ? KN_E_FORMAT : KN_OK, word, missing < N ? "missing" : "shape");
            }
}

static void gemma_keys(void **state)
{
    (void)state;
    static const struct { const char *key; float value; enum kn_status status; } floats[] = {
        {"gemma3.attn_logit_softcapping", 50, KN_E_UNSUPPORTED}, {"gemma3.final_logit_softcapping", -3, KN_E_FORMAT}, {"gemma3.final_logit_softcapping", NAN, KN_E_FORMAT},
        {"gemma3.rope.freq_base_swa", 0.5f, KN_E_FORMAT}, {"gemma3.rope.scaling.factor", 0, KN_E_FORMAT},
    };
    struct kn_gguf_writer w = {0};
    const struct kn_tiny_opts o = {.arch = "gemma3"};
    kn_tiny_model_build(&w, &o);
    expect(&w, KN_E_FORMAT, "gemma3.attention.sliding_window", "missing");
    kn_tiny_model_build(&w, &o);
    kn_gguf_put_u32(&w, "gemma3.attention.sliding_window", 0);
    expect(&w, KN_E_FORMAT, "gemma3.attention.sliding_window", NULL);
    for (unsigned i = 0; i < sizeof floats / sizeof *floats; i++) {
        kn_tiny_model_build(&w, &o);
        kn_gguf_put_u32(&w, "gemma3.attention.sliding_window", 64);
        kn_gguf_put_f32(&w, floats[i].key, floats[i].value);
        expect(&w, floats[i].status, floats[i].key, NULL);
    }
    kn_tiny_model_build(&w, &(struct kn_tiny_opts){.arch = "qwen2"});
    kn_gguf_put_u32(&w, "qwen2.attention.sliding_window", 64);
    expect(&w, KN_E_UNSUPPORTED, "qwen2.attention.sliding_window", NULL);
}

static void fingerprint(void **state)
{
    (void)state;
    uint8_t first[16];
    struct kn_model *m;
    struct kn_err err;
    struct kn_tiny_opts o = {.seed = 1};
    for (unsigned i = 0; i < 4; i++) {
        struct kn_gguf_writer w = {0};
        o.seed = i == 1 ? 2 : 1;
        kn_tiny_model_build(&w, &o);
        if (i == 2) /* the last byte of the last tensor */
            w.file.data[w.file.n - 1] ^= 1;
        if (i == 3) /* one in the middle of the first, which is large: what a tool that rewrites rows in place does */
            w.file.data[w.data_at + 40000] ^= 1;
        assert_int_equal(kn_file_write(path, w.file.data, w.file.n), 0);
        kn_gguf_writer_fini(&w);
        assert_int_equal(open_file(&m, &err), KN_OK);
        if (!i)
            memcpy(first, kn_model_info(m)->fingerprint, 16);
        else
            assert_memory_not_equal(first, kn_model_info(m)->fingerprint, 16);
        kn_model_close(&m);
    }
    o.seed = 1;
    assert_int_equal(kn_tiny_model_write(path, &o), 0);
    assert_int_equal(open_file(&m, &err), KN_OK);
    assert_memory_equal(first, kn_model_info(m)->fingerprint, 16);
    kn_model_close(&m);
}

/* Two values in place of every header byte: opening ends in success or in a sentence that names the file. */
static void flipped(void **state)
{
    (void)state;
    struct kn_gguf_writer w = {0};
    struct kn_tiny_opts o = {.n_layer = 1, .n_head = 1, .n_kv_head = 1, .n_ff = 32};
    kn_tiny_model_build(&w, &o);
    assert_int_equal(kn_file_write(path, w.file.data, w.file.n), 0);
    FILE *f = fopen(path, "r+b");
    assert_non_null(f);
    setvbuf(f, NULL, _IONBF, 0);
    unsigned refused = 0, accepted = 0;
    for (size_t i = 0; i < w.data_at; i++)
        for (unsigned k = 0; k < 2; k++) {
            struct kn_model *m;
            struct kn_err err;
            uint8_t value = k ? 0xff : (uint8_t)(w.file.data[i] ^ 1u << i % 8);
            assert_int_equal(pwrite(fileno(f), &value, 1, (off_t)i), 1);
            enum kn_status s = open_file(&m, &err);
            if (s == KN_OK) {
                int32_t ids[64];
                size_t n = 64;
                assert_int_equal(kn_model_tokenize(m, "the <|im_end|> in 12", 20, KN_TOKENIZE_SPECIAL, ids, &n), KN_OK);
                accepted++;
            } else {
                assert_true(s == KN_E_FORMAT || s == KN_E_UNSUPPORTED);
                assert_non_null(strstr(err.text, path));
                refused++;
            }
            kn_model_close(&m);
            assert_int_equal(pwrite(fileno(f), &w.file.data[i], 1, (off_t)i), 1);
        }
    fclose(f);
    kn_gguf_writer_fini(&w);
    assert_true(refused > 1000 && accepted > 100);
}

static void out_of_memory(void **state)
{
    (void)state;
    static const struct kn_tiny_opts kinds[] = {{.pre = "smollm"}, {.pre = "qwen2"}, {.spm = true}};
    uint64_t before = kni_alloc_get_stats(KNI_ALLOC_TAG_COUNT).current_bytes;
    unsigned failed = 0, kind = 0;
    assert_int_equal(kn_tiny_model_write(path, &kinds[kind]), 0);
    for (uint64_t n = 1;; n++) {
        struct kn_model *m;
        struct kn_err err;
        int32_t ids[64];
        size_t count = 64;
        kni_alloc_fault_arm(n, true);
        enum kn_status s = open_file(&m, &err);
        if (s == KN_OK)
            s = kn_model_tokenize(m, "the \xe2\x96\x81 e\xcc\x81 foxes", 15, 0, ids, &count);
        bool hit = kni_alloc_fault_hit();
        kni_alloc_fault_arm(0, false);
        kn_model_close(&m);
        assert_int_equal(s, hit ? KN_E_NOMEM : KN_OK);
        assert_int_equal(kni_alloc_get_stats(KNI_ALLOC_TAG_COUNT).current_bytes, before); /* no leak on any way out */
        failed += hit;
        if (hit)
            continue;
        assert_true(failed > (kinds[kind].spm ? 4 : 8)); /* patterns and merges want more */
        if (++kind == 3)
            break;
        assert_int_equal(kn_tiny_model_write(path, &kinds[kind]), 0);
        n = failed = 0;
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_type), cmocka_unit_test(file_errors), cmocka_unit_test(metadata), cmocka_unit_test(features),
        cmocka_unit_test(tokenizer_errors), cmocka_unit_test(sentencepiece_errors), cmocka_unit_test(architectures), cmocka_unit_test(gemma_keys), cmocka_unit_test(fingerprint), cmocka_unit_test(flipped), cmocka_unit_test(out_of_memory),
    };
    return cmocka_run_group_tests(tests, setup, teardown);
}
