/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What the baselines share: where bytes are booked, tokens that stay exact, and the two simplest baselines of all.
 *
 * A baseline's chunk is bytes that suffice to restore it, its head and checksum included:
 *
 *     [ head 32: what, sizes ][ sections ... ][ XXH3-64 of all before ]
 *
 * Owner: the caller; any thread.
 */
#ifndef KNI_CODEC_BASELINE_H
#define KNI_CODEC_BASELINE_H

#include "base/status.h"
#include "device/kv_view.h"

/* Bytes of chunks by what they are for; adds up over chunks. Heads and checksums are in all_bytes only. */
struct kni_account { uint64_t all_bytes; double k_bytes, v_bytes; };

/* Which positions of a view a chunk has. n_tokens at most 65536. */
struct kni_span { uint32_t first_token, n_tokens; };

/* A growing buffer. Zero-initialise; kni_free(data). */
struct kni_buffer { uint8_t *data; size_t used, capacity; };
/* Room for n_bytes more at data + used, which the caller may fill before the next call, or NULL. */
uint8_t *kni_buffer_room(struct kni_buffer *b, size_t n_bytes);

/* The head: up to 6 numbers that the method wants back, then the sections. */
#define KNI_BASELINE_NUMBERS 6u
enum kn_status kni_baseline_begin(struct kni_buffer *b, uint32_t what, const uint32_t numbers[KNI_BASELINE_NUMBERS]);
enum kn_status kni_baseline_end(struct kni_buffer *b);
/* KN_E_FORMAT when checksum or what differ. *body and *n_body: the sections. */
enum kn_status kni_baseline_open(const uint8_t *data, size_t n_bytes, uint32_t what, uint32_t numbers[KNI_BASELINE_NUMBERS], const uint8_t **body, size_t *n_body);

/* The 16-bit values of K or V of a span: [layer][head][token][d_head], as in the pool. values has room for kni_span_values. */
size_t kni_span_values(const struct kni_kv_host *view, struct kni_span span);
void kni_span_gather(const struct kni_kv_host *view, struct kni_span span, uint32_t is_v, uint16_t *values);
void kni_span_scatter(const struct kni_kv_host *view, struct kni_span span, uint32_t is_v, const uint16_t *values);

/* "raw": the values themselves, no head. */
enum kn_status kni_raw_encode(const struct kni_kv_host *view, struct kni_span span, struct kni_buffer *out, struct kni_account *account);
enum kn_status kni_raw_decode(const struct kni_kv_host *view, struct kni_span span, const uint8_t *data, size_t n_bytes);
/* "raw+zstd": the same through zstd level 3, K and V apart. */
enum kn_status kni_raw_zstd_encode(const struct kni_kv_host *view, struct kni_span span, struct kni_buffer *out, struct kni_account *account);
enum kn_status kni_raw_zstd_decode(const struct kni_kv_host *view, struct kni_span span, const uint8_t *data, size_t n_bytes);

#endif
