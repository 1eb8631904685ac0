/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The Llama architecture (Llama 1 to 3.2, Mistral, SmolLM, ...): RMS norm, grouped-query attention with RoPE on interleaved
 * pairs (the converter permutes Wq and Wk so), SwiGLU, optionally tied embeddings.
 *
 * Llama 3.1 stretches the slow rotations for longer contexts; the converter writes that as one divisor a pair, the tensor
 * rope_freqs.weight, which is all that is needed here. Mistral 7B v0.1 sees a window of keys in every layer
 * (llama.attention.sliding_window; files without the key see all keys). No biases, no experts: such a file is refused.
 * Sources: Touvron et al. 2023; Jiang et al. 2023 (window); Llama team 2024 (RoPE); names as in the GGUF convention.
 */
#include "model/arch.h"

static enum kn_status load_hparams(struct kni_model_load *load)
{
    struct kni_hparams *h = &load->model->hparams;
    enum kn_status s = kni_arch_load_common(load);
    h->rope_style = KNI_ROPE_STYLE_NORM;
    return s != KN_OK ? s : kni_arch_get_u32(load, "attention.sliding_window", 0, UINT32_MAX, false, &h->window);
}

static enum kn_status load_weights(struct kni_model_load *load)
{
    struct kni_hparams *h = &load->model->hparams;
    enum kn_status s = kni_arch_load_base(load);
    if (s != KN_OK || (s = kni_arch_get_tensor(load, "rope_freqs.weight", h->rope_dim / 2, 0, false, &h->ropes[0].factors)) != KN_OK)
        return s;
    const float *factors = h->ropes[0].factors ? h->ropes[0].factors->data : NULL;
    for (uint32_t i = 0; factors && i < h->rope_dim / 2; i++)
        if (!(factors[i] > 0))
            return kni_err_set(load->err, KN_E_FORMAT, "%s: entry %u of tensor rope_freqs.weight is %g, not above 0; the file is damaged", load->gguf->path, i,
                               (double)factors[i]);
    return KN_OK;
}

const struct kni_arch kni_arch_llama = {.name = "llama", .load_hparams = load_hparams, .load_weights = load_weights};
