/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A model on disk: GGUF file, tokenizer, chat template. Opening maps the file and checks every count, offset, type and
 * shape in it; nothing is computed. A model is immutable after open and may be shared by threads and engines.
 *
 *     struct kn_model *m = NULL; struct kn_err err = {0};
 *     if (kn_model_open(&m, KN_OPTS(kn_model_opts, .path = "model.gguf"), &err)) fprintf(stderr, "%s\n", err.text);
 *     kn_model_close(&m);
 */
#ifndef KINEMA_MODEL_H
#define KINEMA_MODEL_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "types.h"

#ifdef __cplusplus
extern "C" {
#endif

struct kn_model;

struct kn_model_opts {
    size_t size;      /* sizeof(struct kn_model_opts) */
    const char *path; /* GGUF file, of a split model the first part; borrowed for the call; no default */
    const char *chat_template; /* one of kn_chat_template_names, in place of the file's own; borrowed for the call. Default NULL: the file's */
};

/* What a model is. Strings are borrowed from the model. It belongs to the library and may grow at its end. */
struct kn_model_info {
    const char *path;
    const char *arch;          /* GGUF general.architecture, such as "llama" */
    const char *name;          /* general.name or "" */
    const char *quant;         /* type of most weight bytes, such as "Q4_1" */
    const char *chat_template; /* "chatml", "llama3", "mistral", "gemma" or "none" */
    const char *tokenizer;     /* "byte-level BPE" or "SentencePiece BPE" */
    const char *pre_tokenizer; /* GGUF tokenizer.ggml.pre or ""; SentencePiece makes no use of it */
    uint8_t fingerprint[16];   /* BLAKE2b over metadata and all weights; a split model has that of the file it was split from */
    uint64_t file_bytes;       /* of all parts */
    uint64_t n_params;
    uint64_t kv_bytes_per_token; /* with 16-bit K and V */
    uint32_t n_layer, n_embd, n_head, n_kv_head, d_head, n_ff, n_vocab;
    uint32_t n_ctx_train; /* tokens */
    uint32_t n_tensors, n_parts; /* n_parts: files; 1 unless the model is split */
    uint32_t window, n_window_layer; /* keys that a layer with a sliding window sees, and layers that have one; 0: none has */
    float rope_base, rms_eps; /* RoPE of layers without a window, where layers differ */
    int32_t bos, eos, eot; /* token ids, -1 when absent */
    bool has_chat_template; /* the file brings one; chat_template is "none" all the same when Kinema does not know it */
};

/* Opens a model. On success *out owns it; on failure *out is NULL and err (may be NULL) says why. Reads all of it once, for the
 * fingerprint. Of a split model (NAME-00001-of-0000N.gguf, as llama.cpp's gguf-split makes them) path is the first part; the others are
 * found beside it.
 * Errors: KN_E_NOT_FOUND (no such file, or a part is missing), KN_E_IO, KN_E_FORMAT (damaged, or parts that do not belong together),
 * KN_E_ARG (no path, a chat template of unknown name, a part that is not the first), KN_E_UNSUPPORTED (architecture, tensor type or tokenizer, named), KN_E_CHANGED (written
 * meanwhile), KN_E_NOMEM. */
KN_API enum kn_status kn_model_open(struct kn_model **out, const struct kn_model_opts *opts, struct kn_err *err);

/* Releases the caller's reference (engines hold their own) and sets *model to NULL. NULL is fine. */
KN_API void kn_model_close(struct kn_model **model);

/* Whether the files are still what they were at open. They stay mapped while the model is open, so that what is written into them in
 * place is computed with at once. KN_E_CHANGED, then and for ever, when data or size of one is another, with a sentence that names it;
 * it is logged once, too. Files that were only touched, or moved away by a new one of their name, have not changed. Costs a system call
 * a file; where one looks different it is read again, which may take seconds. Engines ask before they admit, fetch and publish and after
 * every step. Any thread. */
KN_API enum kn_status kn_model_check(struct kn_model *model, struct kn_err *err);

/* Installs a handler for SIGBUS, which a process gets that reads a mapped file (a model, an LMDB store) where somebody has cut it off.
 * The handler writes one line to fd that names the file, and lets the signal end the process as without it. The library never does so by
 * itself: a program calls this once, early. KN_E_IO when the system refuses. */
KN_API enum kn_status kn_sigbus_report(int fd);

/* Borrowed until close. */
KN_API const struct kn_model_info *kn_model_info(const struct kn_model *model);

/* One tensor of the file. Strings are borrowed from the model. */
struct kn_tensor_info {
    size_t size; /* sizeof(struct kn_tensor_info), set by the caller */
    const char *name;
    const char *type;     /* "Q4_1" */
    uint32_t n_dims;      /* 1..4 */
    uint64_t shape[4];    /* shape[0] is the row length; 1 beyond n_dims */
    uint64_t n_bytes;
    uint64_t file_offset; /* of the first byte, from the start of its part's file */
    uint32_t part;        /* 0: the file that was opened */
};

/* Tensor index, 0..n_tensors-1, in the file's order. KN_E_ARG beyond, and when the size of *out is not set. Any
 * thread. */
KN_API enum kn_status kn_model_get_tensor(const struct kn_model *model, uint32_t index, struct kn_tensor_info *out);

enum kn_tokenize_flags {
    KN_TOKENIZE_SPECIAL = 1, /* recognise special tokens such as <|im_end|> in the text; otherwise they are plain text */
    KN_TOKENIZE_BOS = 2      /* prepend BOS when the model asks for it */
};

/* Tokenizes n_bytes of text. ids has room for *n_ids; on return *n_ids is the full count. KN_E_ARG when the room was too
 * small (nothing written past it), or for 2 GiB of text and more. At most 3 * n_bytes + 2 ids result. Invalid UTF-8 is
 * tokenized byte by byte; a byte for which the vocabulary has no token is dropped, as the reference tokenizers do.
 * KN_E_NOMEM. Any thread. */
KN_API enum kn_status kn_model_tokenize(const struct kn_model *model, const char *text, size_t n_bytes, unsigned flags,
                                        int32_t *ids, size_t *n_ids);

/* n_bytes of a text, from byte at on. */
struct kn_text_range { size_t at, n_bytes; };

struct kn_tokenize_opts {
    size_t size;                       /* sizeof(struct kn_tokenize_opts) */
    unsigned flags;                    /* enum kn_tokenize_flags; 0: neither */
    const struct kn_text_range *plain; /* [n_plain], ascending, not overlapping: a control token that touches one is plain text; borrowed. All else
                                        * is as without them: blanks, and what is merged across their ends. Default NULL: none */
    size_t n_plain;
    size_t max_ids;                    /* end the work once there are certainly more; 0: no limit */
    bool (*stop)(void *user);          /* asked every few milliseconds of work; true: give up. NULL: nobody is asked */
    void *user;
};

/* As kn_model_tokenize, with options. Time is O(n log n) in n_bytes, whatever the text, and in max_ids where that ends it. Errors: those of
 * kn_model_tokenize; KN_E_ARG also for ranges that overlap or leave the text; KN_E_CONTEXT: more than max_ids ids (*n_ids is a number above
 * it that is certainly reached); KN_E_CANCELLED: stop said so. Any thread; stop is called on the caller's. */
KN_API enum kn_status kn_model_tokenize_with(const struct kn_model *model, const char *text, size_t n_bytes, const struct kn_tokenize_opts *opts,
                                             int32_t *ids, size_t *n_ids);

/* The bytes of one token (not NUL-terminated; may be part of a UTF-8 character), borrowed from the model.
 * Special tokens give their text. KN_E_ARG for an id outside the vocabulary. */
KN_API enum kn_status kn_model_token_bytes(const struct kn_model *model, int32_t id, const char **bytes, size_t *n_bytes);

/* True for control tokens (BOS, <|im_end|>, ...). */
KN_API bool kn_model_token_is_special(const struct kn_model *model, int32_t id);

/* True for ids that end a reply (EOS, EOT, <|im_end|>, ...). */
KN_API bool kn_model_token_is_stop(const struct kn_model *model, int32_t id);

struct kn_chat_message {
    const char *role; /* "system", "user", "assistant" */
    const char *text;
};

/* The chat templates that Kinema knows: "chatml, llama3, mistral, gemma". Static. */
KN_API const char *kn_chat_template_names(void);

enum kn_chat_flags {
    KN_CHAT_REPLY = 1,   /* open the assistant's turn behind the messages. The last one, the assistant's too, is closed before */
    KN_CHAT_CONTINUE = 2 /* end right behind the last message's text, so that the assistant, whose it must be, goes on with it */
};

/* Renders messages with the model's chat template into buf (capacity *n_bytes, NUL-terminated when it fits); *n_bytes
 * becomes the length without NUL. flags: enum kn_chat_flags, not both. Tokenize the result with KN_TOKENIZE_SPECIAL and
 * without KN_TOKENIZE_BOS: a template that wants BOS writes it. KN_E_UNSUPPORTED without a known template, KN_E_ARG when
 * the room was too small or the roles do not suit the template (Mistral, Gemma: user and assistant in turn) or the flags. */
KN_API enum kn_status kn_model_chat(const struct kn_model *model, const struct kn_chat_message *messages, size_t n_messages,
                                    unsigned flags, char *buf, size_t *n_bytes);

/* The same, and where the messages' texts lie in the result, without what the template cuts off them: texts[n_messages], in the result's order, which
 * may differ from the messages' for a system message; empty at the end for one that has no place in it (may be NULL; valid with KN_E_ARG and a
 * length, too). As plain of kn_tokenize_opts they keep anybody from writing another's turn. */
KN_API enum kn_status kn_model_chat_texts(const struct kn_model *model, const struct kn_chat_message *messages, size_t n_messages, unsigned flags,
                                          struct kn_text_range *texts, char *buf, size_t *n_bytes);

#ifdef __cplusplus
}
#endif
#endif
