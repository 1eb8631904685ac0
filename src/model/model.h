/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A model inside the library: what kn_model holds. Three parts: hyper-parameters, weights (pointers into the mapped
 * files), and the tokenizer. Immutable after open, reference counted, any thread.
 */
#ifndef KNI_MODEL_MODEL_H
#define KNI_MODEL_MODEL_H

#include <pthread.h>
#include <stdatomic.h>

#include "base/arena.h"
#include "base/dtype.h"
#include "kinema/model.h"
#include "model/parts.h"

/* One weight matrix or vector, row-major: ne[0] is the row length (input width), ne[1] the number of rows (outputs). */
struct kni_tensor {
    const char *name;
    const void *data; /* into the mapped file, aligned as the file says, 8 bytes at least */
    enum kni_dtype type;
    uint32_t n_dims;
    uint64_t ne[4];
    uint64_t n_bytes;
};

enum kni_rope_style { KNI_ROPE_STYLE_NORM = 0 /* pairs (2i, 2i+1) */, KNI_ROPE_STYLE_NEOX = 1 /* pairs (i, i+d/2) */ };
enum kni_act { KNI_ACT_SILU = 0, KNI_ACT_GELU = 1 /* the tanh form */ };

#define KNI_ROPES_MAX 2u

/* Pair i turns by pos * scale * base^(-2i / rope_dim) / factors[i]. */
struct kni_rope {
    float base, scale;
    const struct kni_tensor *factors; /* [rope_dim / 2]; NULL: all 1 */
};

struct kni_hparams {
    uint32_t n_layer, n_embd, n_head, n_kv_head, d_head, n_ff, n_vocab, n_ctx_train;
    uint32_t rope_dim; /* rotated components of a head, even, at most d_head */
    enum kni_rope_style rope_style;
    uint32_t n_ropes; /* 1..KNI_ROPES_MAX */
    struct kni_rope ropes[KNI_ROPES_MAX];
    uint32_t window; /* keys that a layer with a window sees, its own among them; 0: no layer has one */
    enum kni_act act;
    float rms_eps;
    float attn_scale;    /* of scores; 0: 1 / sqrt(d_head) */
    float attn_softcap;  /* of scores, see kernel/attn.h; 0: none */
    float embed_scale;   /* of embeddings */
    float logit_softcap; /* c: logits become c * tanh(logit / c); 0: they stay */
};

/* What one layer computes with. Absent tensors are NULL: no bias is added, no norm is taken. */
struct kni_layer {
    const struct kni_tensor *attn_norm, *wq, *wk, *wv, *wo, *ffn_norm, *w_gate, *w_up, *w_down;
    const struct kni_tensor *bq, *bk, *bv;                 /* added before the norms of heads and before RoPE */
    const struct kni_tensor *q_norm, *k_norm;              /* [d_head]: over each head */
    const struct kni_tensor *attn_post_norm, *ffn_post_norm; /* over what attention and feed-forward add to the stream */
    uint32_t rope;   /* index into ropes */
    uint32_t window; /* positions that a token sees, its own included; 0: all */
};

struct kni_gguf;
struct kni_tokenizer;
struct kni_chat;

/* Weights in the form that a device's products want. First member of what holds them; the model's list owns it. */
struct kni_packed {
    struct kni_packed *next;
    const char *form; /* names device and form, such as "cpu panels": who makes it; static string */
    void (*close)(struct kni_packed *packed); /* frees all of it */
};
typedef enum kn_status (*kni_pack_fn)(struct kni_packed **out, struct kn_model *model, void *user, struct kn_err *err);

struct kn_model {
    _Atomic uint32_t n_refs;
    struct kni_arena arena; /* everything below that is not the file */
    struct kni_parts parts;
    struct kni_gguf *gguf; /* of the first part, with the tensors of all */
    struct kni_tokenizer *tokenizer;
    struct kni_chat *chat; /* how messages are rendered */
    struct kn_model_info info;
    struct kni_hparams hparams;
    const struct kni_tensor *tok_embd, *output_norm, *output; /* output == tok_embd when tied */
    struct kni_layer *layers;                                  /* n_layer */
    pthread_mutex_t packed_lock; /* guards the list below */
    struct kni_packed *packed;   /* weights as devices want them, one entry a form: kni_model_get_packed */
};

/* Says that these bytes of a tensor are not needed for now: kni_file_map_release. */
void kni_model_release(const struct kn_model *model, const void *at, size_t n_bytes);
/* The weights in this form: those that are there, or else those that pack makes of the model (which stay until its last
 * reference goes). So runs of one form share them, and runs of several devices have each its own. Borrowed. pack sets
 * close; its failure is returned. Any thread; waits while another one packs. */
enum kn_status kni_model_get_packed(const struct kni_packed **out, struct kn_model *model, const char *form,
                                    kni_pack_fn pack, void *user, struct kn_err *err);
/* A reference of the caller's own, dropped by kn_model_close; returns model. Any thread. */
struct kn_model *kni_model_ref(struct kn_model *model);

#endif
