/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Opens a model: map and parse its file, or all parts of it, choose the architecture, read its hyper-parameters, load the tokenizer,
 * look up every weight, refuse what is left over, fingerprint. The fingerprint names the weights that a stored KV cache belongs to: it
 * reads every byte of them (parts.h says how), since two files that share a name would take each other's caches for their own. That
 * is 0.1 s for 100 MB on one core that is otherwise idle, and divides by the cores, up to eight.
 */
#include "model/model.h"

#include <string.h>

#include "base/sized.h"
#include "model/arch.h"
#include "model/chat.h"

static const struct kni_arch *const archs[] = {&kni_arch_llama, &kni_arch_qwen2, &kni_arch_qwen3, &kni_arch_gemma3};

static enum kn_status find_arch(struct kni_model_load *load, const struct kni_arch **out)
{
    struct kni_gguf_str name;
    enum kn_status status = kni_gguf_get_str(load->gguf, "general.architecture", &name, load->err);
    if (status == KN_E_NOT_FOUND)
        return kni_err_set(load->err, KN_E_FORMAT, "%s: key general.architecture is missing; convert the model again", load->gguf->path);
    if (status != KN_OK)
        return status;
    for (size_t i = 0; i < sizeof archs / sizeof *archs; i++)
        if (strlen(archs[i]->name) == name.n && !memcmp(archs[i]->name, name.data, name.n)) {
            *out = archs[i];
            return KN_OK;
        }
    return kni_err_set(load->err, KN_E_UNSUPPORTED, "%s: architecture \"%s\" is not supported; use a model of architecture llama, qwen2, qwen3 or gemma3", load->gguf->path,
                       kni_gguf_quote(name).text);
}

static enum kn_status check_unused(struct kni_model_load *load)
{
    for (uint32_t i = 0; i < load->gguf->n_tensors; i++)
        if (!load->used[i]) {
            const char *name = load->gguf->tensors[i].name;
            return kni_err_set(load->err, KN_E_UNSUPPORTED, "%s: tensor %s is not part of what Kinema computes for architecture %s; use another model",
                               load->gguf->path, kni_gguf_quote((struct kni_gguf_str){name, strlen(name)}).text, load->prefix);
        }
    return KN_OK;
}

/* A NUL-terminated copy of a string value, "" when the key is absent or no string. NULL when out of memory. */
static const char *text_of(struct kn_model *m, const char *key)
{
    struct kni_gguf_str s = {"", 0};
    kni_gguf_get_str(m->gguf, key, &s, NULL);
    return kni_arena_strndup(&m->arena, s.data, s.n);
}

static enum kn_status fill_info(struct kni_model_load *load, const struct kni_arch *arch)
{
    struct kn_model *m = load->model;
    const struct kni_gguf *g = load->gguf;
    const struct kni_hparams *h = &m->hparams;
    uint64_t bytes_of[KNI_DTYPE_BF16 + 1] = {0}, most = 0;
    enum kni_dtype main_type = KNI_DTYPE_F32;
    m->info = (struct kn_model_info){
        .path = g->path, .arch = arch->name, .name = text_of(m, "general.name"), .chat_template = kni_chat_name(m->chat),
        .pre_tokenizer = text_of(m, "tokenizer.ggml.pre"), .file_bytes = kni_parts_bytes(&m->parts), .n_parts = m->parts.n,
        .kv_bytes_per_token = (uint64_t)h->n_layer * 2 * h->n_kv_head * h->d_head * 2,
        .n_layer = h->n_layer, .n_embd = h->n_embd, .n_head = h->n_head, .n_kv_head = h->n_kv_head, .d_head = h->d_head, .n_ff = h->n_ff,
        .n_vocab = h->n_vocab, .n_ctx_train = h->n_ctx_train, .n_tensors = g->n_tensors, .rope_base = h->ropes[0].base, .window = h->window, .rms_eps = h->rms_eps,
        .bos = m->tokenizer->bos, .eos = m->tokenizer->eos, .eot = m->tokenizer->eot, .has_chat_template = m->chat->in_file,
    };
    m->info.tokenizer = m->tokenizer->is_spm ? "SentencePiece BPE" : "byte-level BPE";
    for (uint32_t i = 0; i < h->n_layer; i++)
        m->info.n_window_layer += m->layers[i].window != 0;
    if (!m->info.name || !m->info.pre_tokenizer)
        return kni_err_set(load->err, KN_E_NOMEM, "%s: out of memory", g->path);
    for (uint32_t i = 0; i < g->n_tensors; i++) {
        const struct kni_tensor *t = &g->tensors[i];
        m->info.n_params += t->ne[0] * t->ne[1] * t->ne[2] * t->ne[3]; /* fits: its bytes lie in the file */
        if (t->n_dims > 1)
            bytes_of[t->type] += t->n_bytes;
    }
    for (uint32_t type = 0; type <= KNI_DTYPE_BF16; type++)
        if (bytes_of[type] > most) {
            most = bytes_of[type];
            main_type = (enum kni_dtype)type;
        }
    m->info.quant = kni_dtype_name(main_type);
    return kni_parts_fingerprint(&m->parts, m->info.fingerprint, load->err);
}

static enum kn_status load_model(struct kn_model *m, const char *path, const char *chat_template, struct kn_err *err)
{
    const struct kni_arch *arch = NULL;
    struct kni_model_load load = {.model = m, .err = err};
    enum kn_status status = kni_parts_open(&m->parts, &m->arena, path, err);
    if (status != KN_OK)
        return status;
    load.gguf = m->gguf = m->parts.parts[0].gguf;
    load.used = kni_arena_alloc(&m->arena, m->gguf->n_tensors * sizeof *load.used, 0);
    if (!load.used)
        return kni_err_set(err, KN_E_NOMEM, "%s: out of memory", path);
    if ((status = find_arch(&load, &arch)) != KN_OK)
        return status;
    load.prefix = arch->name;
    if ((status = arch->load_hparams(&load)) != KN_OK || (status = kni_tokenizer_load(&m->tokenizer, &m->arena, m->gguf, err)) != KN_OK)
        return status;
    uint32_t n_vocab = m->hparams.n_vocab = m->tokenizer->n_vocab;
    if ((status = kni_arch_get_u32(&load, "vocab_size", 1, UINT32_MAX, false, &n_vocab)) != KN_OK)
        return status;
    if (n_vocab != m->tokenizer->n_vocab)
        return kni_err_set(err, KN_E_FORMAT, "%s: %s.vocab_size is %u but the tokenizer has %u tokens; convert the model again", path, arch->name, n_vocab,
                           m->tokenizer->n_vocab);
    if ((status = arch->load_weights(&load)) != KN_OK || (status = check_unused(&load)) != KN_OK ||
        (status = kni_chat_load(&m->chat, &m->arena, m->gguf, m->tokenizer, chat_template, err)) != KN_OK)
        return status;
    return fill_info(&load, arch);
}

enum kn_status kn_model_open(struct kn_model **out, const struct kn_model_opts *opts, struct kn_err *err)
{
    if (!out)
        return kni_err_set(err, KN_E_ARG, "kn_model_open: out is NULL");
    *out = NULL;
    struct kn_model_opts o;
    enum kn_status status = KNI_OPTS_READ(&o, opts, kn_model_opts, err);
    if (status)
        return status;
    if (!o.path || !*o.path)
        return kni_err_set(err, KN_E_ARG, "kn_model_open: no path to a GGUF file is given");
    struct kn_model *m = kni_calloc(KNI_ALLOC_TAG_MODEL, sizeof *m, 0);
    if (!m)
        return kni_err_set(err, KN_E_NOMEM, "%s: out of memory", o.path);
    atomic_store_explicit(&m->n_refs, 1, memory_order_relaxed);
    pthread_mutex_init(&m->packed_lock, NULL);
    kni_arena_init(&m->arena, KNI_ALLOC_TAG_MODEL, 0);
    status = load_model(m, o.path, o.chat_template, err);
    if (status != KN_OK)
        kn_model_close(&m);
    *out = m;
    return status;
}

enum kn_status kn_model_check(struct kn_model *model, struct kn_err *err)
{
    return kni_parts_check(&model->parts, err);
}

void kni_model_release(const struct kn_model *model, const void *at, size_t n_bytes)
{
    const struct kni_part *part = kni_parts_find(&model->parts, at);
    if (part)
        kni_file_map_release(&part->map, at, n_bytes);
}

struct kn_model *kni_model_ref(struct kn_model *model)
{
    atomic_fetch_add_explicit(&model->n_refs, 1, memory_order_relaxed);
    return model;
}

enum kn_status kni_model_get_packed(const struct kni_packed **out, struct kn_model *m, const char *form,
                                    kni_pack_fn pack, void *user, struct kn_err *err)
{
    enum kn_status status = KN_OK;
    pthread_mutex_lock(&m->packed_lock);
    struct kni_packed *packed = m->packed;
    while (packed && strcmp(packed->form, form) != 0)
        packed = packed->next;
    if (!packed && !(status = pack(&packed, m, user, err))) {
        packed->form = form;
        packed->next = m->packed;
        m->packed = packed;
    }
    *out = packed;
    pthread_mutex_unlock(&m->packed_lock);
    return status;
}

void kn_model_close(struct kn_model **model)
{
    struct kn_model *m = model ? *model : NULL;
    if (!m)
        return;
    *model = NULL;
    /* Release pairs with the acquire of whoever drops the last reference: all uses happen before the memory goes. */
    if (atomic_fetch_sub_explicit(&m->n_refs, 1, memory_order_acq_rel) != 1)
        return;
    while (m->packed) {
        struct kni_packed *packed = m->packed;
        m->packed = packed->next;
        packed->close(packed);
    }
    pthread_mutex_destroy(&m->packed_lock);
    kni_tokenizer_fini(m->tokenizer);
    kni_parts_close(&m->parts); /* their list lies in the arena */
    kni_arena_fini(&m->arena);
    kni_free(m);
}

const struct kn_model_info *kn_model_info(const struct kn_model *model)
{
    return &model->info;
}

enum kn_status kn_model_get_tensor(const struct kn_model *model, uint32_t index, struct kn_tensor_info *out)
{
    const struct kni_gguf *g = model->gguf;
    if (index >= g->n_tensors)
        return KN_E_ARG;
    const struct kni_tensor *t = &g->tensors[index];
    const struct kni_part *part = kni_parts_find(&model->parts, t->data);
    struct kn_tensor_info now = {.name = t->name, .type = kni_dtype_name(t->type), .n_dims = t->n_dims,
                                 .n_bytes = t->n_bytes,
                                   .file_offset = (uint64_t)((const uint8_t *)t->data - (const uint8_t *)part->map.data),
                                   .part = (uint32_t)(part - model->parts.parts)};
    memcpy(now.shape, t->ne, sizeof now.shape);
    return kni_stats_write(out, &now, sizeof now);
}

enum kn_status kn_model_tokenize(const struct kn_model *model, const char *text, size_t n_bytes, unsigned flags, int32_t *ids, size_t *n_ids)
{
    if (!n_ids || (n_bytes && !text) || (*n_ids && !ids) || (flags & ~(unsigned)(KN_TOKENIZE_SPECIAL | KN_TOKENIZE_BOS)))
        return KN_E_ARG;
    return kni_tokenizer_encode(model->tokenizer, text, n_bytes, flags, ids, n_ids);
}

enum kn_status kn_model_tokenize_with(const struct kn_model *model, const char *text, size_t n_bytes, const struct kn_tokenize_opts *opts, int32_t *ids,
                                      size_t *n_ids)
{
    struct kn_tokenize_opts o;
    if (KNI_OPTS_READ(&o, opts, kn_tokenize_opts, NULL))
        return KN_E_ARG;
    if (!n_ids || (n_bytes && !text) || (*n_ids && !ids) || (o.flags & ~(unsigned)(KN_TOKENIZE_SPECIAL | KN_TOKENIZE_BOS)) || (o.n_plain && !o.plain))
        return KN_E_ARG;
    return kni_tokenizer_encode_with(model->tokenizer, text, n_bytes, &o, NULL, ids, n_ids);
}

static const struct kni_token *token_of(const struct kn_model *model, int32_t id)
{
    return id >= 0 && (uint32_t)id < model->tokenizer->n_vocab ? &model->tokenizer->tokens[id] : NULL;
}

enum kn_status kn_model_token_bytes(const struct kn_model *model, int32_t id, const char **bytes, size_t *n_bytes)
{
    const struct kni_token *t = token_of(model, id);
    if (!t)
        return KN_E_ARG;
    *bytes = model->tokenizer->blob + t->at;
    *n_bytes = t->n;
    return KN_OK;
}

bool kn_model_token_is_special(const struct kn_model *model, int32_t id)
{
    const struct kni_token *t = token_of(model, id);
    return t && t->kind == KNI_TOKEN_KIND_CONTROL;
}

bool kn_model_token_is_stop(const struct kn_model *model, int32_t id)
{
    const struct kni_token *t = token_of(model, id);
    return t && t->stop;
}

enum kn_status kn_model_chat_texts(const struct kn_model *model, const struct kn_chat_message *messages, size_t n_messages, unsigned flags,
                                   struct kn_text_range *texts, char *buf, size_t *n_bytes)
{
    if (!n_bytes || (*n_bytes && !buf) || (n_messages && !messages))
        return KN_E_ARG;
    return kni_chat_render(model->chat, messages, n_messages, flags, texts, buf, n_bytes);
}

enum kn_status kn_model_chat(const struct kn_model *model, const struct kn_chat_message *messages, size_t n_messages, unsigned flags, char *buf,
                             size_t *n_bytes)
{
    return kn_model_chat_texts(model, messages, n_messages, flags, NULL, buf, n_bytes);
}
