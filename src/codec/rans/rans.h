/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Interleaved rANS over a matrix of byte symbols, [row][token], 128 meaning zero: one row a coefficient, one column a token.
 * Statistics are static: a model holds tables for a number of classes (roughly: how wide a row's distribution is) and, within
 * a class, for a number of contexts (how large the neighbours are that are already decoded: earlier rows of the same token,
 * earlier tokens of the same row as far as lanes allow). The profile gives each row its class. So a chunk carries no tables.
 * Models and their training are in rans_stats.h.
 *
 * Source of the method: Duda 2013 (asymmetric numeral systems); interleaving after Giesen 2014.
 *
 * Decoding trusts nothing: a stream that ends early, holds too much, or ends in another state than it must is KN_E_FORMAT, and no
 * read or write leaves the buffers given. Every SIMD level gives the bytes and symbols of the reference.
 */
#ifndef KNI_CODEC_RANS_H
#define KNI_CODEC_RANS_H

#include "codec/rans/rans_stats.h"

/* Most bytes that any matrix of this size needs. */
size_t kni_rans_bound(uint32_t n_rows, uint32_t n_tokens);
/* symbols: [n_rows] rows, stride bytes apart, n_tokens of each (a multiple of 16, at most 1024). classes: [n_rows]. out has kni_rans_bound
 * bytes. Returns bytes written. scratch: kni_rans_scratch_bytes(). cpu_flags: kernels that may be used, of enum
 * kni_cpu_flag; all give the same bytes. No allocation. */
size_t kni_rans_encode(const struct kni_rans_model *m, const uint8_t *symbols, size_t stride, uint32_t n_rows, uint32_t n_tokens,
                       const uint8_t *classes, uint8_t *out, void *scratch, uint32_t cpu_flags);
/* Decodes exactly n_rows x n_tokens symbols from exactly n_bytes. KN_E_FORMAT otherwise. */
enum kn_status kni_rans_decode(const struct kni_rans_model *m, const uint8_t *data, size_t n_bytes, uint32_t n_rows, uint32_t n_tokens,
                               const uint8_t *classes, uint8_t *symbols, size_t stride, void *scratch,
                                   uint32_t cpu_flags);
size_t kni_rans_scratch_bytes(uint32_t n_rows, uint32_t n_tokens);
/* Enough for decoding any matrix: a few KiB. */
size_t kni_rans_decode_scratch_bytes(void);

#endif
