/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Byte-level BPE tokenizer ("gpt2" in GGUF), exact to the model's own:
 *
 *     text -> special tokens split out -> runs of valid UTF-8 -> pre-tokenizer (pretok.h) -> bytes -> merges (bpe.h) -> ids
 *
 * In the file, tokens are spelt with one visible character a byte; that is undone at load, so that everything here works
 * on raw bytes and a token's bytes are a slice of one blob. Bytes outside valid UTF-8 become one token each. A byte for
 * which the vocabulary has no token is dropped, as the reference does (SmolLM2 lacks 21 of 256, among them some control
 * characters); where all 256 are there, detokenizing gives the very same bytes back.
 *
 * Control tokens are recognised only with KN_TOKENIZE_SPECIAL; user-defined tokens always; among those that start at one
 * place the longest wins.
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
    struct kni_bpe bpe;
    struct kni_pretok *pretok;
    bool add_bos;
    int32_t bos, eos, eot; /* -1 when absent */
};

/* Reads tokenizer.* of gguf into arena. KN_E_UNSUPPORTED for another tokenizer model or pre-tokenizer (named),
 * KN_E_FORMAT, KN_E_NOMEM. */
enum kn_status kni_tokenizer_load(struct kni_tokenizer **out, struct kni_arena *arena, const struct kni_gguf *gguf, struct kn_err *err);
/* Frees what is not in the arena. NULL is fine. */
void kni_tokenizer_fini(struct kni_tokenizer *tokenizer);

/* As kn_model_tokenize. KN_E_NOMEM, KN_E_ARG for 2 GiB of text or more. */
enum kn_status kni_tokenizer_encode(const struct kni_tokenizer *tokenizer, const char *text, size_t n_bytes, unsigned flags, int32_t *ids,
                                    size_t *n_ids);

/* The id of a token that merging can make or of a special one, by its bytes; -1 when there is none. */
int32_t kni_tokenizer_find_piece(const struct kni_tokenizer *tokenizer, const char *bytes, size_t n);
int32_t kni_tokenizer_find_special(const struct kni_tokenizer *tokenizer, const char *bytes, size_t n);

#endif
