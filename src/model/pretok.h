/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Pre-tokenizers: cut text into the pieces inside which BPE merges. Each is a short list of stages; a stage is a pattern,
 * and it cuts every piece of the stage before into matches and what lies between them. A stage sees one piece as the whole
 * subject, so that a look-ahead at the piece's end sees the end, exactly as the tokenizers' own pipeline does.
 *
 *     name                      stages
 *     gpt-2, default            GPT-2's pattern
 *     smollm, starcoder, ...    every number character by itself, then GPT-2's pattern
 *     llama-bpe, llama3         Llama 3's pattern (numbers by three, newlines with what stands before)
 *     qwen2                     NFC; as Llama 3, numbers one by one
 *
 * Patterns are compiled by PCRE2 (JIT where the machine has it) without its own notion of blanks, which knows one blank
 * (U+180E) too many: the Unicode White_Space set is spelt out. Letters and numbers are those of PCRE2's Unicode version.
 * Not here: normalisation (nfc.h), which the caller does first where the rule asks for it.
 *
 * Immutable after open, any thread; a match needs a struct kni_pretok_scratch of the caller's own.
 */
#ifndef KNI_MODEL_PRETOK_H
#define KNI_MODEL_PRETOK_H

#include <stdbool.h>
#include <stddef.h>

#include "base/status.h"

struct kni_pretok;
struct kni_pretok_scratch;

/* Compiles the pre-tokenizer of a GGUF's tokenizer.ggml.pre (n bytes at name). KN_E_UNSUPPORTED for an unknown name,
 * KN_E_NOMEM. err is not touched. */
enum kn_status kni_pretok_open(struct kni_pretok **out, const char *name, size_t n);
void kni_pretok_close(struct kni_pretok **pretok);
/* Whether a piece that is a token as a whole skips merging (Llama 3). */
bool kni_pretok_takes_whole(const struct kni_pretok *pretok);
/* Whether text goes through NFC first (Qwen). */
bool kni_pretok_wants_nfc(const struct kni_pretok *pretok);
/* Whether BOS is prepended when the file does not say (Llama 3). */
bool kni_pretok_adds_bos(const struct kni_pretok *pretok);
/* Names that kni_pretok_open knows, separated by blanks; static. */
const char *kni_pretok_names(void);

/* One per concurrent caller. NULL when out of memory. */
struct kni_pretok_scratch *kni_pretok_scratch_open(const struct kni_pretok *pretok);
void kni_pretok_scratch_close(struct kni_pretok_scratch **scratch);

/* piece borrowed for the call, never empty. Anything but KN_OK stops the split and is returned by it. */
typedef enum kn_status (*kni_pretok_fn)(void *user, const char *piece, size_t n_bytes);

/* Calls emit for the pieces of text, in order; together they are the text. text must be valid UTF-8. KN_E_NOMEM when a
 * match runs out of memory. */
enum kn_status kni_pretok_split(const struct kni_pretok *pretok, struct kni_pretok_scratch *scratch, const char *text, size_t n_bytes,
                                kni_pretok_fn emit, void *user);

/* Bytes of the valid UTF-8 that text starts with: whole characters only, no surrogates, nothing above U+10FFFF, no
 * overlong forms. */
size_t kni_utf8_valid_prefix(const char *text, size_t n_bytes);

#endif
