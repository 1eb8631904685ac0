/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A small random llama model with a byte-level tokenizer, written as a GGUF file: valid in every respect, cheap to run.
 *
 *     struct kn_tiny_opts o = {.type = KNI_DTYPE_Q4_1};
 *     assert_int_equal(kn_tiny_model_write(path, &o), 0);
 *
 * Zero means default: F32, 3 layers, 4 query heads, 2 KV heads, d_head 32, n_ff 256, context 512. Quantised types fill
 * their blocks with random integers and a small scale. Types with blocks of 256 need n_head * d_head % 256 == 0 and
 * n_ff % 256 == 0. Vocabulary: 3 specials (0 <|endoftext|>, 1 <|im_start|>, 2 <|im_end|>), 256 bytes in byte order
 * (3 + b), then one token a merge.
 */
#ifndef KN_TEST_TINY_MODEL_H
#define KN_TEST_TINY_MODEL_H

#include <math.h>
#include <stdbool.h>

#include "base/dtype.h"
#include "base/half.h"
#include "support/gguf_writer.h"

struct kn_tiny_opts {
    uint32_t type; /* enum kni_dtype of the matrices; norms are F32 */
    uint32_t n_layer, n_head, n_kv_head, d_head, n_ff, n_ctx;
    uint64_t seed;
    bool untied;               /* own output matrix instead of the embedding */
    const char *arch;          /* "llama" */
    const char *pre;           /* "smollm" */
    const char *chat_template; /* a ChatML one; "" leaves the key out */
    bool add_bos;
    bool spm;                  /* SentencePiece with the same ids: byte tokens, and the merged tokens in the order of their scores */
    bool no_space_prefix;      /* spm */
    bool broken;               /* what follows the last layer is not a number, nor is any logit */
};

#define KN_TINY_FIRST_BYTE 3
#define KN_TINY_CHATML                                                                                                     \
    "{% for message in messages %}{{'<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>' + '\n'}}"  \
    "{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"

static inline const char *const *kn_tiny_merges(unsigned *n)
{
    static const char *const merges[] = {
        "\xc4\xa0 t", "\xc4\xa0 a", "h e", "i n",  "r e",  "o n",  "\xc4\xa0t he", "e r", "\xc4\xa0 s", "a t", "\xc4\xa0 o", "e n",
        "\xc4\xa0 c", "i t",        "i s", "o r",  "e s",  "in g", "l l",          "a n", "e d",        "l e", "a r",        "o u",
        "\xc4\xa0" "a n", "\xc4\xa0" "an d", "\xc4\xa0 \xc4\xa0", "\xc4\xa0\xc4\xa0 \xc4\xa0\xc4\xa0", "\xc4\x8a \xc4\x8a", "u n", "n d", "a l",
    };
    *n = sizeof merges / sizeof *merges;
    return merges;
}

/* The visible character that stands for a byte in a byte-level vocabulary, as UTF-8. */
static inline size_t kn_tiny_byte_text(unsigned byte, char out[4])
{
    unsigned code = 0, extra = 256;
    for (unsigned b = 0; b <= byte; b++) {
        bool visible = (b >= 33 && b <= 126) || (b >= 161 && b <= 172) || b >= 174;
        code = visible ? b : extra++;
    }
    if (code < 128) {
        out[0] = (char)code;
        return 1;
    }
    out[0] = (char)(0xc0 | code >> 6);
    out[1] = (char)(0x80 | (code & 63));
    return 2;
}

static inline uint64_t kn_tiny_next(uint64_t *rng)
{
    uint64_t z = *rng += 0x9e3779b97f4a7c15u;
    z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9u;
    z = (z ^ z >> 27) * 0x94d049bb133111ebu;
    return z ^ z >> 31;
}

static inline float kn_tiny_uniform(uint64_t *rng, float amplitude)
{
    return ((float)(kn_tiny_next(rng) >> 40) * 0x1p-23f - 1.0f) * amplitude;
}

/* n values of a type, about uniform in [-amplitude, amplitude]. */
static inline void kn_tiny_fill(struct kn_bytes *out, uint32_t type, uint64_t n, float amplitude, uint64_t *rng)
{
    const struct kni_dtype_info *info = kni_dtype_get_info(type);
    for (uint64_t b = 0; b < n / info->block_values; b++) {
        uint8_t block[256];
        float x = kn_tiny_uniform(rng, amplitude), d = 0, m = 0;
        uint16_t h;
        for (unsigned i = 0; i < info->block_bytes; i++)
            block[i] = (uint8_t)(kn_tiny_next(rng) >> 32);
        switch (type) {
        case KNI_DTYPE_F32: memcpy(block, &x, 4); break;
        case KNI_DTYPE_F16: h = kni_f32_to_f16(x); memcpy(block, &h, 2); break;
        case KNI_DTYPE_BF16: h = kni_f32_to_bf16(x); memcpy(block, &h, 2); break;
        case KNI_DTYPE_Q4_0: d = amplitude / 8; break;
        case KNI_DTYPE_Q4_1: d = amplitude / 7.5f, m = -amplitude; break;
        case KNI_DTYPE_Q5_0: d = amplitude / 16; break;
        case KNI_DTYPE_Q5_1: d = amplitude / 15.5f, m = -amplitude; break;
        case KNI_DTYPE_Q8_0: d = amplitude / 128; break;
        case KNI_DTYPE_Q4_K: d = amplitude / (7.5f * 32), m = amplitude / 32; break;
        case KNI_DTYPE_Q5_K: d = amplitude / (15.5f * 32), m = amplitude / 32; break;
        case KNI_DTYPE_Q6_K: d = amplitude / (32 * 64); break;
        default: abort();
        }
        if (d != 0) {
            h = kni_f32_to_f16(d);
            memcpy(block + (type == KNI_DTYPE_Q6_K ? 208 : 0), &h, 2);
        }
        if (m != 0) {
            h = kni_f32_to_f16(m);
            memcpy(block + 2, &h, 2);
        }
        kn_bytes_put(out, block, info->block_bytes);
    }
}

static inline void kn_tiny_tensor(struct kn_gguf_writer *w, const char *name, uint32_t type, uint64_t n_in, uint64_t n_out, float amplitude, float add,
                                  uint64_t *rng)
{
    struct kn_bytes b = {0};
    uint64_t ne[2] = {n_in, n_out};
    kn_tiny_fill(&b, type, n_in * (n_out ? n_out : 1), amplitude, rng);
    if (add != 0) /* norms: F32 around 1 */
        for (uint64_t i = 0; i < n_in; i++) {
            float x;
            memcpy(&x, b.data + 4 * i, 4);
            x += add;
            memcpy(b.data + 4 * i, &x, 4);
        }
    kn_gguf_put_tensor(w, name, type, n_out ? 2 : 1, ne, b.data, b.n);
    free(b.data);
}

/* Metadata of the tokenizer only. */
static inline void kn_tiny_tokenizer(struct kn_gguf_writer *w, const struct kn_tiny_opts *o)
{
    static const char *const specials[] = {"<|endoftext|>", "<|im_start|>", "<|im_end|>"};
    unsigned n_merges;
    const char *const *merges = kn_tiny_merges(&n_merges);
    unsigned n_vocab = KN_TINY_FIRST_BYTE + 256 + n_merges;
    kn_gguf_put_str(w, "tokenizer.ggml.model", o->spm ? "llama" : "gpt2");
    kn_gguf_put_str(w, "tokenizer.ggml.pre", o->pre ? o->pre : "smollm");
    kn_gguf_put_array(w, "tokenizer.ggml.tokens", KN_GGUF_STR, n_vocab);
    for (unsigned i = 0; i < 3; i++)
        kn_bytes_str(&w->kv, specials[i], strlen(specials[i]));
    for (unsigned b = 0; b < 256; b++) {
        char text[8];
        size_t n = o->spm ? (size_t)snprintf(text, sizeof text, "<0x%02X>", b) : kn_tiny_byte_text(b, text);
        kn_bytes_str(&w->kv, text, n);
    }
    for (unsigned i = 0; i < n_merges; i++) { /* the merged token: both halves without the blank */
        char text[48];
        size_t n = 0;
        for (const char *p = merges[i]; *p; p++) {
            bool blank = o->spm && !strncmp(p, "\xc4\xa0", 2), newline = o->spm && !strncmp(p, "\xc4\x8a", 2);
            if (*p == ' ')
                continue;
            if (blank)
                memcpy(text + n, "\xe2\x96\x81", 3), n += 3;
            else
                text[n++] = newline ? '\n' : *p;
            p += blank || newline;
        }
        kn_bytes_str(&w->kv, text, n);
    }
    kn_gguf_put_array(w, "tokenizer.ggml.token_type", KN_GGUF_I32, n_vocab);
    for (unsigned i = 0; i < n_vocab; i++)
        kn_bytes_u32(&w->kv, i < 3 ? 3 : o->spm && i < KN_TINY_FIRST_BYTE + 256 ? 6 : 1);
    if (o->spm) {
        kn_gguf_put_array(w, "tokenizer.ggml.scores", KN_GGUF_F32, n_vocab);
        for (unsigned i = 0; i < n_vocab; i++) {
            float score = -(float)i;
            kn_bytes_put(&w->kv, &score, 4);
        }
        kn_gguf_put_bool(w, "tokenizer.ggml.add_space_prefix", !o->no_space_prefix);
    }
    kn_gguf_put_array(w, "tokenizer.ggml.merges", KN_GGUF_STR, n_merges);
    for (unsigned i = 0; i < n_merges; i++)
        kn_bytes_str(&w->kv, merges[i], strlen(merges[i]));
    kn_gguf_put_u32(w, "tokenizer.ggml.bos_token_id", 1);
    kn_gguf_put_u32(w, "tokenizer.ggml.eos_token_id", 2);
    kn_gguf_put_bool(w, "tokenizer.ggml.add_bos_token", o->add_bos);
    if (!o->chat_template || *o->chat_template)
        kn_gguf_put_str(w, "tokenizer.chat_template", o->chat_template ? o->chat_template : KN_TINY_CHATML);
}

static inline uint32_t kn_tiny_n_vocab(void)
{
    unsigned n_merges;
    kn_tiny_merges(&n_merges);
    return KN_TINY_FIRST_BYTE + 256 + n_merges;
}

/* Builds the whole file in w->file. The caller frees it with kn_gguf_writer_fini. */
static inline void kn_tiny_model_build(struct kn_gguf_writer *w, const struct kn_tiny_opts *opts)
{
    struct kn_tiny_opts o = opts ? *opts : (struct kn_tiny_opts){0};
    uint32_t n_layer = o.n_layer ? o.n_layer : 3, n_head = o.n_head ? o.n_head : 4, n_kv = o.n_kv_head ? o.n_kv_head : 2;
    uint32_t d = o.d_head ? o.d_head : 32, n_ff = o.n_ff ? o.n_ff : 256, n_embd = n_head * d, n_vocab = kn_tiny_n_vocab();
    const char *arch = o.arch ? o.arch : "llama";
    uint64_t rng = o.seed + 1;
    char key[96];
    kn_gguf_put_str(w, "general.architecture", arch);
    kn_gguf_put_str(w, "general.name", "tiny");
    const struct { const char *name; uint32_t value; } numbers[] = {
        {"block_count", n_layer}, {"context_length", o.n_ctx ? o.n_ctx : 512}, {"embedding_length", n_embd}, {"feed_forward_length", n_ff},
        {"attention.head_count", n_head}, {"attention.head_count_kv", n_kv}, {"rope.dimension_count", d}, {"vocab_size", n_vocab},
    };
    for (unsigned i = 0; i < sizeof numbers / sizeof *numbers; i++) {
        snprintf(key, sizeof key, "%s.%s", arch, numbers[i].name);
        kn_gguf_put_u32(w, key, numbers[i].value);
    }
    snprintf(key, sizeof key, "%s.attention.layer_norm_rms_epsilon", arch);
    kn_gguf_put_f32(w, key, 1e-5f);
    snprintf(key, sizeof key, "%s.rope.freq_base", arch);
    kn_gguf_put_f32(w, key, 10000.0f);
    kn_tiny_tokenizer(w, &o);

    float a = 1.7f / sqrtf((float)n_embd), a_ff = 1.7f / sqrtf((float)n_ff);
    kn_tiny_tensor(w, "token_embd.weight", o.type, n_embd, n_vocab, 0.2f, 0, &rng);
    for (uint32_t l = 0; l < n_layer; l++) {
        const struct { const char *name; uint64_t n_in, n_out; float amplitude; } t[] = {
            {"attn_norm", n_embd, 0, 0.1f},     {"attn_q", n_embd, n_head * d, 2 * a}, {"attn_k", n_embd, n_kv * d, 2 * a}, {"attn_v", n_embd, n_kv * d, a},
            {"attn_output", n_embd, n_embd, a}, {"ffn_norm", n_embd, 0, 0.1f},         {"ffn_gate", n_embd, n_ff, a},       {"ffn_up", n_embd, n_ff, a},
            {"ffn_down", n_ff, n_embd, a_ff},
        };
        for (unsigned i = 0; i < sizeof t / sizeof *t; i++) {
            snprintf(key, sizeof key, "blk.%u.%s.weight", l, t[i].name);
            kn_tiny_tensor(w, key, t[i].n_out ? o.type : KNI_DTYPE_F32, t[i].n_in, t[i].n_out, t[i].amplitude, t[i].n_out ? 0.0f : 1.0f, &rng);
        }
    }
    kn_tiny_tensor(w, "output_norm.weight", KNI_DTYPE_F32, n_embd, 0, o.broken ? NAN : 0.1f, 1.0f, &rng);
    if (o.untied)
        kn_tiny_tensor(w, "output.weight", o.type, n_embd, n_vocab, 0.2f, 0, &rng);
    kn_gguf_assemble(w);
}

/* Writes the file; 0 on success. */
static inline int kn_tiny_model_write(const char *path, const struct kn_tiny_opts *opts)
{
    struct kn_gguf_writer w = {0};
    kn_tiny_model_build(&w, opts);
    int rc = kn_file_write(path, w.file.data, w.file.n);
    kn_gguf_writer_fini(&w);
    return rc;
}

#endif
