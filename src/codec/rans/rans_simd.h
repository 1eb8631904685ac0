/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The parts of rANS coding that have SIMD forms: a row's notes, its encoding and its decoding. Each form gives the bytes of the
 * reference. Buffers by position (rans_model.h); n_tokens a multiple of 16. Pure functions on the caller's memory: any thread.
 */
#ifndef KNI_CODEC_RANS_SIMD_H
#define KNI_CODEC_RANS_SIMD_H

#include "codec/rans/rans_model.h"

/* Room that encoding a step asks for: a word for each symbol and one for each escape are 128 bytes, and SIMD spoils some before them. */
#define KNI_RANS_STEP_ROOM 192

/* As kni_rans_notes_ref in rans_model.h. */
typedef void (*kni_rans_notes_fn)(struct kni_rans_row *row, const struct kni_rans_class *c, const uint8_t *tokens, uint32_t n_tokens, uint8_t *tables,
                                  uint8_t *coded);
/* Codes a row, last symbol first, words before *at. False when fewer than KNI_RANS_STEP_ROOM bytes are left above floor at some step. */
typedef bool (*kni_rans_encode_row_fn)(const struct kni_rans_model *m, uint32_t x[KNI_RANS_LANES], uint8_t **at, const uint8_t *floor, uint32_t n_tokens,
                                       const uint8_t *tables, const uint8_t *coded);
/* Decodes a row into tokens; row->energy moves on. False: the stream ends too early, and what tokens holds is rubbish. */
typedef bool (*kni_rans_decode_row_fn)(const struct kni_rans_model *m, uint32_t x[KNI_RANS_LANES], struct kni_rans_words *words, uint32_t n_tokens,
                                       const struct kni_rans_class *c, struct kni_rans_row *row, uint8_t *tokens);

struct kni_rans_ops {
    kni_rans_notes_fn notes;
    kni_rans_encode_row_fn encode_row;
    kni_rans_decode_row_fn decode_row;
};

/* cpu_flags: of enum kni_cpu_flag, any set; 0: the references. */
struct kni_rans_ops kni_rans_ops_get(uint32_t cpu_flags);

bool kni_rans_encode_row_ref(const struct kni_rans_model *m, uint32_t x[KNI_RANS_LANES], uint8_t **at, const uint8_t *floor, uint32_t n_tokens,
                             const uint8_t *tables, const uint8_t *coded);
bool kni_rans_decode_row_ref(const struct kni_rans_model *m, uint32_t x[KNI_RANS_LANES], struct kni_rans_words *words, uint32_t n_tokens,
                             const struct kni_rans_class *c, struct kni_rans_row *row, uint8_t *tokens);

#if defined(__x86_64__)
/* Parts that the AVX-512 form takes over: loudness before a row and energies after it, and from positions to tokens. */
void kni_rans_row_begin_avx2(struct kni_rans_row *row, uint32_t n_tokens);
void kni_rans_row_end_avx2(struct kni_rans_row *row, uint32_t n_tokens, const struct kni_rans_class *c);
void kni_rans_to_tokens_avx2(uint8_t *tokens, const uint8_t *positions, uint32_t n_tokens);
void kni_rans_notes_avx2(struct kni_rans_row *row, const struct kni_rans_class *c, const uint8_t *tokens, uint32_t n_tokens, uint8_t *tables, uint8_t *coded);
bool kni_rans_encode_row_avx2(const struct kni_rans_model *m, uint32_t x[KNI_RANS_LANES], uint8_t **at, const uint8_t *floor, uint32_t n_tokens,
                              const uint8_t *tables, const uint8_t *coded);
bool kni_rans_decode_row_avx2(const struct kni_rans_model *m, uint32_t x[KNI_RANS_LANES], struct kni_rans_words *words, uint32_t n_tokens,
                              const struct kni_rans_class *c, struct kni_rans_row *row, uint8_t *tokens);
bool kni_rans_encode_row_avx512(const struct kni_rans_model *m, uint32_t x[KNI_RANS_LANES], uint8_t **at, const uint8_t *floor, uint32_t n_tokens,
                                const uint8_t *tables, const uint8_t *coded);
bool kni_rans_decode_row_avx512(const struct kni_rans_model *m, uint32_t x[KNI_RANS_LANES], struct kni_rans_words *words, uint32_t n_tokens,
                                const struct kni_rans_class *c, struct kni_rans_row *row, uint8_t *tokens);
#endif

#endif
