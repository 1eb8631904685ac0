/* SPDX-License-Identifier: Apache-2.0 */
/*
 * SentencePiece BPE ("llama" in GGUF): text is cut into characters, and always the two neighbours whose join is the token of
 * highest score are joined, among equals the leftmost, until no join is a token. What is left and is no token is spelt in
 * byte tokens. There is no pre-tokenizer: a whole text is one piece.
 *
 *     symbols   [ T ]<->[ h ]<->[ e ]        slices of the text, in a doubly linked list in an array
 *     heap      (rank << 32 | position)      candidates; rank 0 has the highest score
 *
 * A join is looked up by its bytes in the tokenizer's table, so no list of merges is needed (the file has none). Joins longer
 * than the longest token are not looked up: n characters take O(n log n) whatever they are. Source: Kudo and Richardson 2018.
 *
 * Ranks are immutable after load, any thread; scratch belongs to one call.
 */
#ifndef KNI_MODEL_SPM_H
#define KNI_MODEL_SPM_H

#include "model/effort.h"
#include "model/tokenizer.h"

struct kni_spm_symbol { uint32_t at, n, prev, next; }; /* text[at..at+n); n 0: gone */

struct kni_spm_scratch {
    struct kni_spm_symbol *symbols;
    uint64_t *heap;
    size_t n_symbols; /* room */
};

void kni_spm_scratch_fini(struct kni_spm_scratch *scratch);

/* Fills tokenizer->ranks from scores (n_vocab little-endian floats). KN_E_NOMEM; KN_E_FORMAT when a score is no number. */
enum kn_status kni_spm_load_ranks(struct kni_tokenizer *tokenizer, struct kni_arena *arena, const uint8_t *scores);

/* Cuts n bytes of valid UTF-8, n < 2^31, n at least 1. The result is the list that starts at symbols[0] and ends with next
 * UINT32_MAX. scratch is zero-initialised before the first call. A step is a byte or a candidate. KN_E_NOMEM, KN_E_CANCELLED. */
enum kn_status kni_spm_merge(const struct kni_tokenizer *tokenizer, struct kni_spm_scratch *scratch, const char *text, size_t n,
                             struct kni_effort *effort);

#endif
