/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Gemma 3 (text). Beside Llama's parts:
 *
 *     x = sqrt(n_embd) * embedding
 *     x += post_norm(attention(norm(x)))      each head of q and k through an RMS norm, then RoPE on pairs (i, i + d/2)
 *     x += post_norm(feed_forward(norm(x)))   GELU (tanh form) in place of SiLU
 *
 *     layer      0 1 2 3 4 5 6 7 ...          every sixth sees all keys; the others a window, with a RoPE of their own:
 *     window     w w w w w - w w              base 10000, never scaled
 *
 * The reference's norms multiply by 1 + w; the converter has added the 1 to the stored weight. Scores are scaled by
 * query_pre_attn_scalar^-1/2, which has no key in GGUF: it equals d_head except in the 27B model (62 layers), where it is
 * n_embd / n_head. Source: Gemma team 2025.
 */
#include "model/arch.h"

#include <math.h>

#define PATTERN 6u /* layers of a period */
#define N_LAYER_27B 62u

enum { GLOBAL, LOCAL };

static enum kn_status load_hparams(struct kni_model_load *load)
{
    struct kni_hparams *h = &load->model->hparams;
    float softcap = 0;
    enum kn_status s = kni_arch_load_common(load);
    if (s != KN_OK)
        return s;
    h->rope_style = KNI_ROPE_STYLE_NEOX;
    h->act = KNI_ACT_GELU;
    h->n_ropes = 2;
    h->ropes[LOCAL] = (struct kni_rope){.base = 10000.0f, .scale = 1.0f};
    h->embed_scale = sqrtf((float)h->n_embd);
    if (h->n_layer == N_LAYER_27B)
        h->attn_scale = 1.0f / sqrtf((float)(h->n_embd / h->n_head));
    if ((s = kni_arch_get_u32(load, "attention.sliding_window", 1, UINT32_MAX, true, &h->window)) != KN_OK ||
        (s = kni_arch_get_f32(load, "rope.freq_base_swa", 1.0f, 1e12f, false, &h->ropes[LOCAL].base)) != KN_OK ||
        (s = kni_arch_get_f32(load, "final_logit_softcapping", -1e-6f, 1e6f, false, &h->logit_softcap)) != KN_OK ||
        (s = kni_arch_get_f32(load, "attn_logit_softcapping", -1e-6f, 1e6f, false, &softcap)) != KN_OK)
        return s;
    if (softcap != 0)
        return kni_err_set(load->err, KN_E_UNSUPPORTED, "%s: gemma3.attn_logit_softcapping is %g, but Gemma 3 has no cap on scores; convert the model again",
                           load->gguf->path, (double)softcap);
    return KN_OK;
}

static enum kn_status load_weights(struct kni_model_load *load)
{
    const struct kni_hparams *h = &load->model->hparams;
    enum kn_status s = kni_arch_load_base(load);
    for (uint32_t i = 0; i < h->n_layer && s == KN_OK; i++) {
        struct kni_layer *layer = &load->model->layers[i];
        bool global = i % PATTERN == PATTERN - 1;
        layer->rope = global ? GLOBAL : LOCAL;
        layer->window = global ? 0 : h->window;
        if ((s = kni_arch_get_layer_tensor(load, i, "attn_q_norm.weight", h->d_head, 0, true, &layer->q_norm)) == KN_OK &&
            (s = kni_arch_get_layer_tensor(load, i, "attn_k_norm.weight", h->d_head, 0, true, &layer->k_norm)) == KN_OK &&
            (s = kni_arch_get_layer_tensor(load, i, "post_attention_norm.weight", h->n_embd, 0, true, &layer->attn_post_norm)) == KN_OK)
            s = kni_arch_get_layer_tensor(load, i, "post_ffw_norm.weight", h->n_embd, 0, true, &layer->ffn_post_norm);
    }
    return s;
}

const struct kni_arch kni_arch_gemma3 = {.name = "gemma3", .load_hparams = load_hparams, .load_weights = load_weights};
