/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The Llama architecture (Llama, Mistral, SmolLM, ...): RMS norm, grouped-query attention with RoPE on interleaved pairs
 * (the converter permutes Wq and Wk so), SwiGLU, optionally tied embeddings. No biases, no experts, no sliding window, no
 * RoPE scaling: a file that asks for one of them is refused. Source: Touvron et al. 2023; names as in the GGUF convention.
 */
#include <stdio.h>
#include <string.h>

#include "model/arch.h"

/* A rope.scaling.type other than none changes positions: refused by name. A factor without a type means linear scaling. */
static enum kn_status check_scaling(struct kni_model_load *load)
{
    char key[96];
    struct kni_gguf_str type;
    float factor = 1.0f;
    snprintf(key, sizeof key, "%s.rope.scaling.type", load->prefix);
    enum kn_status status = kni_gguf_get_str(load->gguf, key, &type, load->err);
    if (status == KN_OK && type.n == 4 && !memcmp(type.data, "none", 4))
        return KN_OK;
    if (status == KN_E_NOT_FOUND) {
        status = kni_arch_get_f32(load, "rope.scaling.factor", 0.0f, 1e9f, false, &factor);
        if (status == KN_OK && factor != 1.0f)
            return kni_err_set(load->err, KN_E_UNSUPPORTED, "%s: %s.rope.scaling.factor is %g, but Kinema does not scale RoPE; use a model without it",
                               load->gguf->path, load->prefix, (double)factor);
        return status;
    }
    if (status != KN_OK)
        return status;
    return kni_err_set(load->err, KN_E_UNSUPPORTED, "%s: %s is \"%s\", but Kinema does not scale RoPE; use a model without it", load->gguf->path, key,
                       kni_gguf_quote(type).text);
}

static enum kn_status load_hparams(struct kni_model_load *load)
{
    struct kni_hparams *h = &load->model->hparams;
    uint32_t d_value = 0;
    float scale = 1.0f;
    enum kn_status s;
    h->rope_style = KNI_ROPE_STYLE_NORM;
    h->rope_base = 10000.0f;
    if ((s = kni_arch_get_u32(load, "block_count", 1, 1024, true, &h->n_layer)) != KN_OK ||
        (s = kni_arch_get_u32(load, "context_length", 1, 1u << 24, true, &h->n_ctx_train)) != KN_OK ||
        (s = kni_arch_get_u32(load, "embedding_length", 1, 1u << 16, true, &h->n_embd)) != KN_OK ||
        (s = kni_arch_get_u32(load, "feed_forward_length", 1, 1u << 20, true, &h->n_ff)) != KN_OK ||
        (s = kni_arch_get_u32(load, "attention.head_count", 1, 1024, true, &h->n_head)) != KN_OK)
        return s;
    h->n_kv_head = h->n_head;
    if ((s = kni_arch_get_u32(load, "attention.head_count_kv", 1, 1024, false, &h->n_kv_head)) != KN_OK)
        return s;
    h->d_head = h->n_embd / h->n_head;
    if ((s = kni_arch_get_u32(load, "attention.key_length", 1, 65536, false, &h->d_head)) != KN_OK)
        return s;
    d_value = h->rope_dim = h->d_head;
    if ((s = kni_arch_get_u32(load, "attention.value_length", 1, 65536, false, &d_value)) != KN_OK ||
        (s = kni_arch_get_u32(load, "rope.dimension_count", 1, 65536, false, &h->rope_dim)) != KN_OK ||
        (s = kni_arch_get_f32(load, "rope.freq_base", 1.0f, 1e12f, false, &h->rope_base)) != KN_OK ||
        (s = kni_arch_get_f32(load, "attention.layer_norm_rms_epsilon", 0.0f, 0.1f, true, &h->rms_eps)) != KN_OK ||
        (s = kni_arch_get_f32(load, "rope.scale_linear", 0.0f, 1e9f, false, &scale)) != KN_OK)
        return s;
    if (h->n_head % h->n_kv_head || h->d_head < 2 || h->d_head > 512 || h->d_head % 2 || h->rope_dim > h->d_head || h->rope_dim % 2)
        return kni_err_set(load->err, KN_E_FORMAT,
                           "%s: %u query heads, %u KV heads, %u components a head of which %u rotate do not go together; convert the model again",
                           load->gguf->path, h->n_head, h->n_kv_head, h->d_head, h->rope_dim);
    if (d_value != h->d_head || scale != 1.0f)
        return kni_err_set(load->err, KN_E_UNSUPPORTED, "%s: values of %u components for keys of %u, or linear RoPE scaling by %g, are not supported",
                           load->gguf->path, d_value, h->d_head, (double)scale);
    if ((s = check_scaling(load)) != KN_OK || (s = kni_arch_refuse(load, "expert_count", "mixtures of experts")) != KN_OK)
        return s;
    return kni_arch_refuse(load, "attention.sliding_window", "sliding-window attention");
}

static enum kn_status load_layer(struct kni_model_load *load, uint32_t index, struct kni_layer *layer)
{
    const struct kni_hparams *h = &load->model->hparams;
    uint64_t embd = h->n_embd, q = (uint64_t)h->n_head * h->d_head, kv = (uint64_t)h->n_kv_head * h->d_head, ff = h->n_ff;
    const struct {
        const char *name;
        uint64_t n_in, n_out;
        const struct kni_tensor **out;
    } wanted[] = {
        {"attn_norm", embd, 0, &layer->attn_norm}, {"attn_q", embd, q, &layer->wq},        {"attn_k", embd, kv, &layer->wk},
        {"attn_v", embd, kv, &layer->wv},          {"attn_output", q, embd, &layer->wo},   {"ffn_norm", embd, 0, &layer->ffn_norm},
        {"ffn_gate", embd, ff, &layer->w_gate},    {"ffn_up", embd, ff, &layer->w_up},     {"ffn_down", ff, embd, &layer->w_down},
    };
    for (unsigned i = 0; i < sizeof wanted / sizeof *wanted; i++) {
        char name[64];
        snprintf(name, sizeof name, "blk.%u.%s.weight", index, wanted[i].name);
        enum kn_status status = kni_arch_get_tensor(load, name, wanted[i].n_in, wanted[i].n_out, true, wanted[i].out);
        if (status != KN_OK)
            return status;
    }
    return KN_OK;
}

static enum kn_status load_weights(struct kni_model_load *load)
{
    struct kn_model *m = load->model;
    const struct kni_hparams *h = &m->hparams;
    enum kn_status s;
    m->layers = kni_arena_alloc(&m->arena, h->n_layer * sizeof *m->layers, 0);
    if (!m->layers)
        return kni_err_set(load->err, KN_E_NOMEM, "%s: out of memory for %u layers", load->gguf->path, h->n_layer);
    if ((s = kni_arch_get_tensor(load, "token_embd.weight", h->n_embd, h->n_vocab, true, &m->tok_embd)) != KN_OK ||
        (s = kni_arch_get_tensor(load, "output_norm.weight", h->n_embd, 0, true, &m->output_norm)) != KN_OK ||
        (s = kni_arch_get_tensor(load, "output.weight", h->n_embd, h->n_vocab, false, &m->output)) != KN_OK)
        return s;
    if (!m->output)
        m->output = m->tok_embd; /* tied */
    for (uint32_t i = 0; i < h->n_layer; i++)
        if ((s = load_layer(load, i, &m->layers[i])) != KN_OK)
            return s;
    return KN_OK;
}

const struct kni_arch kni_arch_llama = {.name = "llama", .load_hparams = load_hparams, .load_weights = load_weights};
