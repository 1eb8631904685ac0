/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Tokenizers, exact to the models' own. Two kinds:
 *
 *     byte-level BPE ("gpt2" in GGUF)
 *     text -> special tokens split out -> runs of valid UTF-8 (-> NFC) -> pre-tokenizer (pretok.h) -> bytes -> merges (bpe.h) -> ids
 *
 *     SentencePiece BPE ("llama")
 *     text -> U+2581 to blank -> special tokens split out -> runs of valid UTF-8 -> merges by score (spm.h) -> ids, bytes of the rest
 *
 * In the file, byte-level tokens are spelt with one visible character a byte, and SentencePiece's have U+2581 for a blank;
 * that is undone at load, so that everything here works on raw bytes and a token's bytes are a slice of one blob. Bytes outside
 * valid UTF-8 become one token each. A byte for which the vocabulary has no token is dropped, as the reference does (SmolLM2
 * lacks 21 of 256, among them some control characters), or becomes the unknown token of a SentencePiece vocabulary; where
 * all 256 are there, detokenizing gives the very same bytes back (with U+2581 as a blank, and with the blank that some
 * SentencePiece models put before a text).
 *
 * Control tokens are recognised only with KN_TOKENIZE_SPECIAL, and not where they touch a range that the caller calls plain (the texts
 * of a conversation); user-defined tokens always; among those that start at one place the longest wins.
 *
 * Immutable after load, any thread, concurrent encodes. Lives in the model's arena except compiled patterns: fini.
 */
#ifndef KNI_MODEL_TOKENIZER_H
#define KNI_MODEL_TOKENIZER_H

#include "model/bpe.h"
#include "model/gguf.h"
#include "model/pretok.h"

/* tokenizer.ggml.token_type */
enum kni_token_kind {
    KNI_TOKEN_KIND_NORMAL = 1,
    KNI_TOKEN_KIND_UNKNOWN = 2,
    KNI_TOKEN_KIND_CONTROL = 3,
    KNI_TOKEN_KIND_USER = 4,
    KNI_TOKEN_KIND_UNUSED = 5,
    KNI_TOKEN_KIND_BYTE = 6
};

struct kni_token { uint32_t at, n; uint8_t kind; bool stop; }; /* bytes: blob[at..at+n) */

/* Token ids by bytes: open addressing, id + 1, 0 empty. */
struct kni_token_table { uint32_t *slots, n_slots; };

struct kni_tokenizer {
    uint32_t n_vocab;
    struct kni_token *tokens;      /* n_vocab */
    char *blob;                    /* bytes of all tokens */
    struct kni_token_table pieces; /* tokens that merging can make */
    struct kni_token_table specials; /* control and user-defined tokens */
    struct { uint32_t *lengths, n; } special_lengths[256]; /* by first byte: different lengths, longest first */
    int32_t byte_ids[256];         /* -1: the vocabulary has no such token */
    bool is_spm;
    struct kni_bpe bpe;        /* byte-level: merges */
    struct kni_pretok *pretok; /* byte-level: NULL otherwise */
    uint32_t *ranks;           /* SentencePiece: n_vocab, 0 is merged first */
    uint32_t max_piece_bytes;  /* longest token that merging can make */
    uint32_t bound_bytes;      /* n bytes, each of which has a token, become at least n / bound_bytes tokens; 0: nobody knows */
    bool space_prefix;         /* SentencePiece: a blank goes before a text, and before text behind a control token */
    bool add_bos;
    int32_t bos, eos, eot, unknown; /* -1 when absent */
};

/* Reads tokenizer.* of gguf into arena. KN_E_UNSUPPORTED for another tokenizer model or pre-tokenizer (named),
 * KN_E_FORMAT, KN_E_NOMEM. */
enum kn_status kni_tokenizer_load(struct kni_tokenizer **out, struct kni_arena *arena, const struct kni_gguf *gguf, struct kn_err *err);
/* Frees what is not in the arena. NULL is fine. */
void kni_tokenizer_fini(struct kni_tokenizer *tokenizer);

struct kn_tokenize_opts;
/* As kn_model_tokenize_with, whose options are complete here. *n_steps (may be NULL) becomes the work done, see effort.h. KN_E_NOMEM, KN_E_ARG
 * for 2 GiB of text or more, KN_E_CONTEXT, KN_E_CANCELLED. */
enum kn_status kni_tokenizer_encode_with(const struct kni_tokenizer *tokenizer, const char *text, size_t n_bytes, const struct kn_tokenize_opts *opts,
                                         uint64_t *n_steps, int32_t *ids, size_t *n_ids);
/* With flags alone. */
enum kn_status kni_tokenizer_encode(const struct kni_tokenizer *tokenizer, const char *text, size_t n_bytes, unsigned flags, int32_t *ids,
                                    size_t *n_ids);

/* Copies n bytes to out (room for n) with U+2581, SentencePiece's mark for a blank, as blanks; returns the bytes written. */
size_t kni_tokenizer_unmark(char *out, const char *text, size_t n);

/* The id of a token that merging can make or of a special one, by its bytes; -1 when there is none. */
int32_t kni_tokenizer_find_piece(const struct kni_tokenizer *tokenizer, const char *bytes, size_t n);
int32_t kni_tokenizer_find_special(const struct kni_tokenizer *tokenizer, const char *bytes, size_t n);

#endif
