/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Architectures: one file each (arch_llama.c, ...), one line each in the table of model.c. An architecture reads its
 * hyper-parameters from the metadata, then asks for every tensor that it computes with, by name and shape. A tensor that
 * nobody asked for means that the file holds something that would be left out of the sum (biases, experts): the model is
 * refused, naming it.
 */
#ifndef KNI_MODEL_ARCH_H
#define KNI_MODEL_ARCH_H

#include "model/gguf.h"

/* What is at hand while a model loads. */
struct kni_model_load {
    struct kn_model *model; /* hparams and weights are filled in */
    const struct kni_gguf *gguf;
    const char *prefix;     /* of the architecture's keys: "llama" */
    bool *used;             /* [n_tensors]: asked for */
    struct kn_err *err;
};

struct kni_arch {
    const char *name; /* general.architecture */
    /* Fills model->hparams except n_vocab, which is the tokenizer's. */
    enum kn_status (*load_hparams)(struct kni_model_load *load);
    /* Fills model->tok_embd, output_norm, output, layers. */
    enum kn_status (*load_weights)(struct kni_model_load *load);
};

extern const struct kni_arch kni_arch_llama, kni_arch_qwen2, kni_arch_qwen3, kni_arch_gemma3;

/* Keys that every architecture has, with what follows from them: sizes, one RoPE and its scaling (none or linear), scores
 * scaled by 1/sqrt(d_head). Refuses experts and keys that would change the sum otherwise. */
enum kn_status kni_arch_load_common(struct kni_model_load *load);
/* Embedding, output norm and matrix (tied when absent), and the nine tensors that every layer has. */
enum kn_status kni_arch_load_base(struct kni_model_load *load);
/* blk.<index>.<name>: as kni_arch_get_tensor. */
enum kn_status kni_arch_get_layer_tensor(struct kni_model_load *load, uint32_t index, const char *name, uint64_t n_in, uint64_t n_out, bool required,
                                         const struct kni_tensor **out);

/* <prefix>.<key> as an integer in low..high. With required false a missing key leaves *out. */
enum kn_status kni_arch_get_u32(struct kni_model_load *load, const char *key, uint32_t low, uint32_t high, bool required, uint32_t *out);
/* <prefix>.<key> as a float above low and at most high. */
enum kn_status kni_arch_get_f32(struct kni_model_load *load, const char *key, float low, float high, bool required, float *out);
/* KN_E_UNSUPPORTED when <prefix>.<key> is there and not zero: what says in words what Kinema would have to compute. */
enum kn_status kni_arch_refuse(struct kni_model_load *load, const char *key, const char *what);

/* The matrix [n_out][n_in] called name, or with n_out 0 the F32 vector of n_in. KN_E_FORMAT when missing or of another
 * shape; with required false *out stays NULL when missing. */
enum kn_status kni_arch_get_tensor(struct kni_model_load *load, const char *name, uint64_t n_in, uint64_t n_out, bool required,
                                   const struct kni_tensor **out);

#endif
