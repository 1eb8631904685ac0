/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Qwen2 and Qwen3: as Llama, but RoPE turns pairs (i, i + d/2), the converter leaves Wq and Wk alone, and
 *
 *     qwen2    q, k and v have biases
 *     qwen3    each head of q and k goes through an RMS norm before RoPE; no biases; d_head is its own number
 *
 * Qwen2's optional sliding window is off in every published model and has no key in GGUF. Sources: Yang et al. 2024 and 2025.
 */
#include "model/arch.h"

static enum kn_status load_hparams(struct kni_model_load *load)
{
    enum kn_status s = kni_arch_load_common(load);
    load->model->hparams.rope_style = KNI_ROPE_STYLE_NEOX;
    return s != KN_OK ? s : kni_arch_refuse(load, "attention.sliding_window", "a sliding window in this architecture");
}

static enum kn_status load_qwen2(struct kni_model_load *load)
{
    const struct kni_hparams *h = &load->model->hparams;
    uint64_t q = (uint64_t)h->n_head * h->d_head, kv = (uint64_t)h->n_kv_head * h->d_head;
    enum kn_status s = kni_arch_load_base(load);
    for (uint32_t i = 0; i < h->n_layer && s == KN_OK; i++) {
        struct kni_layer *layer = &load->model->layers[i];
        if ((s = kni_arch_get_layer_tensor(load, i, "attn_q.bias", q, 0, true, &layer->bq)) == KN_OK &&
            (s = kni_arch_get_layer_tensor(load, i, "attn_k.bias", kv, 0, true, &layer->bk)) == KN_OK)
            s = kni_arch_get_layer_tensor(load, i, "attn_v.bias", kv, 0, true, &layer->bv);
    }
    return s;
}

static enum kn_status load_qwen3(struct kni_model_load *load)
{
    const struct kni_hparams *h = &load->model->hparams;
    enum kn_status s = kni_arch_load_base(load);
    for (uint32_t i = 0; i < h->n_layer && s == KN_OK; i++) {
        struct kni_layer *layer = &load->model->layers[i];
        if ((s = kni_arch_get_layer_tensor(load, i, "attn_q_norm.weight", h->d_head, 0, true, &layer->q_norm)) == KN_OK)
            s = kni_arch_get_layer_tensor(load, i, "attn_k_norm.weight", h->d_head, 0, true, &layer->k_norm);
    }
    return s;
}

const struct kni_arch kni_arch_qwen2 = {.name = "qwen2", .load_hparams = load_hparams, .load_weights = load_qwen2};
const struct kni_arch kni_arch_qwen3 = {.name = "qwen3", .load_hparams = load_hparams, .load_weights = load_qwen3};
