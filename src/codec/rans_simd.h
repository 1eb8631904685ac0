/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The parts of rANS coding that have SIMD forms: a row's notes, its encoding and its decoding. Each form gives the bytes of the
 * reference. Buffers by position (rans_model.h); n_tokens a multiple of 16. Pure functions on the caller's memory: any thread.
 */
#ifndef KNI_CODEC_RANS_SIMD_H
#define KNI_CODEC_RANS_SIMD_H

#include "codec/rans_model.h"

/* From row->symbols and row->base: each symbol's table, and what is coded (the sign turned). */
typedef void (*kni_rans_notes_fn)(struct kni_rans_row *row, const struct kni_rans_class *c, uint32_t n_tokens, uint8_t *tables, uint8_t *coded);
/* Codes a row, last symbol first, words before *at. False when fewer than 256 bytes are left above floor at some step. */
typedef bool (*kni_rans_encode_row_fn)(const struct kni_rans_model *m, uint32_t x[KNI_RANS_LANES], uint8_t **at, const uint8_t *floor, uint32_t n_tokens,
                                       const uint8_t *tables, const uint8_t *coded);
/* Fills row->symbols; row->base is ready. False: the stream ends too early. */
typedef bool (*kni_rans_decode_row_fn)(const struct kni_rans_model *m, uint32_t x[KNI_RANS_LANES], const uint8_t **at, const uint8_t *stream_end, uint32_t n_tokens,
                                       const struct kni_rans_class *c, struct kni_rans_row *row);

struct kni_rans_ops {
    kni_rans_notes_fn notes;
    kni_rans_encode_row_fn encode_row;
    kni_rans_decode_row_fn decode_row;
};

void kni_rans_notes_ref(struct kni_rans_row *row, const struct kni_rans_class *c, uint32_t n_tokens, uint8_t *tables, uint8_t *coded);
bool kni_rans_encode_row_ref(const struct kni_rans_model *m, uint32_t x[KNI_RANS_LANES], uint8_t **at, const uint8_t *floor, uint32_t n_tokens,
                             const uint8_t *tables, const uint8_t *coded);
bool kni_rans_decode_row_ref(const struct kni_rans_model *m, uint32_t x[KNI_RANS_LANES], const uint8_t **at, const uint8_t *stream_end, uint32_t n_tokens,
                             const struct kni_rans_class *c, struct kni_rans_row *row);

#endif
