/* SPDX-License-Identifier: Apache-2.0 */
/* What architectures share: metadata and tensors by name, each checked, each failure named. */
#include "model/arch.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

static bool full_key(const struct kni_model_load *load, const char *key, char out[160])
{
    int n = snprintf(out, 160, "%s.%s", load->prefix, key);
    return n > 0 && n < 160;
}

static enum kn_status missing(const struct kni_model_load *load, const char *key)
{
    return kni_err_set(load->err, KN_E_FORMAT, "%s: key %s is missing; convert the model again", load->gguf->path, key);
}

enum kn_status kni_arch_get_u32(struct kni_model_load *load, const char *key, uint32_t low, uint32_t high, bool required, uint32_t *out)
{
    char full[160];
    uint32_t value;
    if (!full_key(load, key, full))
        return KN_E_ARG;
    enum kn_status status = kni_gguf_get_u32(load->gguf, full, &value, load->err);
    if (status == KN_E_NOT_FOUND)
        return required ? missing(load, full) : KN_OK;
    if (status != KN_OK)
        return status;
    if (value < low || value > high)
        return kni_err_set(load->err, KN_E_FORMAT, "%s: %s is %u, outside %u..%u; the file is damaged or not for Kinema", load->gguf->path, full, value, low,
                           high);
    *out = value;
    return KN_OK;
}

enum kn_status kni_arch_get_f32(struct kni_model_load *load, const char *key, float low, float high, bool required, float *out)
{
    char full[160];
    float value;
    if (!full_key(load, key, full))
        return KN_E_ARG;
    enum kn_status status = kni_gguf_get_f32(load->gguf, full, &value, load->err);
    if (status == KN_E_NOT_FOUND)
        return required ? missing(load, full) : KN_OK;
    if (status != KN_OK)
        return status;
    if (!(value > low && value <= high)) /* NaN fails too */
        return kni_err_set(load->err, KN_E_FORMAT, "%s: %s is %g, outside %g..%g; the file is damaged or not for Kinema", load->gguf->path, full,
                           (double)value, (double)low, (double)high);
    *out = value;
    return KN_OK;
}

enum kn_status kni_arch_refuse(struct kni_model_load *load, const char *key, const char *what)
{
    char full[160];
    uint32_t value = 0;
    if (!full_key(load, key, full))
        return KN_E_ARG;
    enum kn_status status = kni_gguf_get_u32(load->gguf, full, &value, load->err);
    if (status == KN_E_NOT_FOUND || (status == KN_OK && !value))
        return KN_OK;
    if (status != KN_OK)
        return status;
    return kni_err_set(load->err, KN_E_UNSUPPORTED, "%s: %s is %u, but Kinema does not compute %s; use another model", load->gguf->path, full, value, what);
}

enum kn_status kni_arch_get_tensor(struct kni_model_load *load, const char *name, uint64_t n_in, uint64_t n_out, bool required,
                                   const struct kni_tensor **out)
{
    const struct kni_gguf *g = load->gguf;
    const struct kni_tensor *t = kni_gguf_find_tensor(g, name);
    *out = NULL;
    if (!t && required)
        return kni_err_set(load->err, KN_E_FORMAT, "%s: tensor %s is missing; the file is incomplete, convert the model again", g->path, name);
    if (!t)
        return KN_OK;
    uint64_t rows = n_out ? n_out : 1;
    if (t->ne[0] != n_in || t->ne[1] != rows || t->ne[2] != 1 || t->ne[3] != 1)
        return kni_err_set(load->err, KN_E_FORMAT, "%s: tensor %s has shape [%llu, %llu, %llu, %llu] where the metadata asks for [%llu, %llu]; convert the model again",
                           g->path, name, (unsigned long long)t->ne[0], (unsigned long long)t->ne[1], (unsigned long long)t->ne[2],
                           (unsigned long long)t->ne[3], (unsigned long long)n_in, (unsigned long long)rows);
    if (!n_out && t->type != KNI_DTYPE_F32)
        return kni_err_set(load->err, KN_E_UNSUPPORTED, "%s: vector %s has type %s, only F32 is supported; convert the model again", g->path, name,
                           kni_dtype_name(t->type));
    load->used[t - g->tensors] = true;
    *out = t;
    return KN_OK;
}

/* A factor without a type means linear scaling; a type that is neither none nor linear is refused by name. */
static enum kn_status load_rope_scaling(struct kni_model_load *load, float *scale)
{
    char key[96];
    struct kni_gguf_str type;
    float factor = 1.0f, divisor = 1.0f;
    *scale = 1.0f;
    snprintf(key, sizeof key, "%s.rope.scaling.type", load->prefix);
    enum kn_status status = kni_gguf_get_str(load->gguf, key, &type, load->err);
    if (status != KN_OK && status != KN_E_NOT_FOUND)
        return status;
    if (status == KN_OK && type.n == 4 && !memcmp(type.data, "none", 4))
        return KN_OK;
    if (status == KN_OK && (type.n != 6 || memcmp(type.data, "linear", 6)))
        return kni_err_set(load->err, KN_E_UNSUPPORTED, "%s: %s is \"%s\", but Kinema scales RoPE only linearly or by the tensor rope_freqs; use another model",
                           load->gguf->path, key, kni_gguf_quote(type).text);
    if ((status = kni_arch_get_f32(load, "rope.scaling.factor", 0.0f, 1e6f, false, &factor)) != KN_OK ||
        (status = kni_arch_get_f32(load, "rope.scale_linear", 0.0f, 1e6f, false, &divisor)) != KN_OK) /* older name */
        return status;
    *scale = 1.0f / (factor != 1.0f ? factor : divisor);
    return KN_OK;
}

enum kn_status kni_arch_load_common(struct kni_model_load *load)
{
    struct kni_hparams *h = &load->model->hparams;
    uint32_t d_value = 0;
    enum kn_status s;
    h->n_ropes = 1;
    h->ropes[0].base = 10000.0f;
    h->embed_scale = 1.0f;
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
        (s = kni_arch_get_f32(load, "rope.freq_base", 1.0f, 1e12f, false, &h->ropes[0].base)) != KN_OK ||
        (s = kni_arch_get_f32(load, "attention.layer_norm_rms_epsilon", 0.0f, 0.1f, true, &h->rms_eps)) != KN_OK ||
        (s = load_rope_scaling(load, &h->ropes[0].scale)) != KN_OK)
        return s;
    if (h->n_head % h->n_kv_head || h->d_head < 2 || h->d_head > 512 || h->d_head % 2 || h->rope_dim > h->d_head || h->rope_dim % 2)
        return kni_err_set(load->err, KN_E_FORMAT,
                           "%s: %u query heads, %u KV heads, %u components a head of which %u rotate do not go together; convert the model again",
                           load->gguf->path, h->n_head, h->n_kv_head, h->d_head, h->rope_dim);
    if (d_value != h->d_head)
        return kni_err_set(load->err, KN_E_UNSUPPORTED, "%s: values of %u components for keys of %u are not supported", load->gguf->path, d_value,
                           h->d_head);
    h->attn_scale = 1.0f / sqrtf((float)h->d_head);
    return kni_arch_refuse(load, "expert_count", "mixtures of experts");
}

enum kn_status kni_arch_get_layer_tensor(struct kni_model_load *load, uint32_t index, const char *name, uint64_t n_in, uint64_t n_out, bool required,
                                         const struct kni_tensor **out)
{
    char full[64];
    snprintf(full, sizeof full, "blk.%u.%s", index, name);
    return kni_arch_get_tensor(load, full, n_in, n_out, required, out);
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
        {"attn_norm.weight", embd, 0, &layer->attn_norm}, {"attn_q.weight", embd, q, &layer->wq},      {"attn_k.weight", embd, kv, &layer->wk},
        {"attn_v.weight", embd, kv, &layer->wv},          {"attn_output.weight", q, embd, &layer->wo}, {"ffn_norm.weight", embd, 0, &layer->ffn_norm},
        {"ffn_gate.weight", embd, ff, &layer->w_gate},    {"ffn_up.weight", embd, ff, &layer->w_up},   {"ffn_down.weight", ff, embd, &layer->w_down},
    };
    for (unsigned i = 0; i < sizeof wanted / sizeof *wanted; i++) {
        enum kn_status status = kni_arch_get_layer_tensor(load, index, wanted[i].name, wanted[i].n_in, wanted[i].n_out, true, wanted[i].out);
        if (status != KN_OK)
            return status;
    }
    return KN_OK;
}

enum kn_status kni_arch_load_base(struct kni_model_load *load)
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
    for (uint32_t i = 0; i < h->n_layer; i++) {
        m->layers[i].window = h->window;
        if ((s = load_layer(load, i, &m->layers[i])) != KN_OK)
            return s;
    }
    return KN_OK;
}
