/* SPDX-License-Identifier: Apache-2.0 */
/*
 * CacheGen as published, and with exact sinks: the rival. Method: Liu et al. 2024 (arXiv 2310.07240) and LMCache's encoder.
 *
 *     rotated keys, and values, of one (layer, token), all heads: scale s = max |x|, a 16-bit value of the pool
 *     q = round(x / s * m), m = levels / 2 - 1
 *     every channel (layer, K or V, head, component) has its own distribution over the chunk's tokens, which travels with the chunk
 *     q is arithmetic-coded against it
 *
 * LMCache stores 16 bits an entry of these distributions, as many as levels: as large as the data at 256 tokens a chunk. Here
 * counts are rounded to half octaves and coded adaptively from their two neighbours, which takes about a tenth of that; scales go
 * through zstd as two byte planes; and there is one stream for K and one for V instead of one a channel. So a chunk is smaller than
 * the original's, on purpose. Chunk:
 *
 *     head, sinks as raw values, scales, K: for each channel its distribution, then its symbols; V; checksum
 *
 * Owner: one thread a handle.
 */
#ifndef KNI_CODEC_CACHEGEN_H
#define KNI_CODEC_CACHEGEN_H

#include "measure/baseline/baseline.h"

struct kni_cachegen;

struct kni_cachegen_opts {
    uint32_t levels_k, levels_v; /* 4..256, even; the same for all layers */
    uint32_t n_sinks;            /* first positions of the sequence that stay exact, 0..16 */
};

/* max_tokens: of a span. KN_E_ARG, KN_E_NOMEM. */
enum kn_status kni_cachegen_open(struct kni_cachegen **out, const struct kni_kv_layout *kv, uint32_t max_tokens, const struct kni_cachegen_opts *opts);
void kni_cachegen_close(struct kni_cachegen **c);
/* Scratch that decoding uses. */
size_t kni_cachegen_bytes(const struct kni_cachegen *c);

/* Non-finite values: KN_E_UNSUPPORTED. Spans of more tokens than at open: KN_E_ARG. */
enum kn_status kni_cachegen_encode(struct kni_cachegen *c, const struct kni_kv_host *view, struct kni_span span, struct kni_buffer *out, struct kni_account *account);
enum kn_status kni_cachegen_decode(struct kni_cachegen *c, const struct kni_kv_host *view, struct kni_span span, const uint8_t *data, size_t n_bytes);

/* Bits that an ideal coder needs for the symbols of the whole span (any number of tokens) when it knows each channel's distribution over the span
 * for nothing; scales and sinks are not counted. The most favourable reading of the method. */
enum kn_status kni_cachegen_ideal(struct kni_cachegen *c, const struct kni_kv_host *view, struct kni_span span, double *bits_k, double *bits_v);

#endif
