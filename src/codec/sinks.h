/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The exact values of a sequence's first tokens, whose rounding would cost far more quality than their bytes: bit for bit. A few tokens hold too few values for tables or for zstd to learn from, so they are coded by an adaptive
 * binary range coder; sinks.c says how, and what it gains.
 *
 * Order of the values: [layer][K, V][kv head][token][d_head]. Decoding trusts nothing and reads and writes only what it is given:
 * any bytes decode to some values, but only from exactly n_bytes. Any thread; no allocation.
 */
#ifndef KNI_CODEC_SINKS_H
#define KNI_CODEC_SINKS_H

#include "base/status.h"
#include "device/kv_view.h"

#define KNI_SINKS_MAX_TOKENS 16u

/* Most bytes that n_tokens tokens need, and bytes of scratch for coding them (aligned to 16). */
size_t kni_sinks_bound(const struct kni_kv_layout *kv, uint32_t n_tokens);
size_t kni_sinks_scratch_bytes(void);
/* Positions first_token .. + n_tokens of view (in one block) to out, which has kni_sinks_bound bytes. Returns bytes written. */
size_t kni_sinks_encode(const struct kni_kv_host *view, uint32_t first_token, uint32_t n_tokens, uint8_t *out, void *scratch);
/* And back. KN_E_FORMAT when the bytes end early or late, KN_E_NOT_FINITE when a value is infinite or NaN. */
enum kn_status kni_sinks_decode(const struct kni_kv_host *view, uint32_t first_token, uint32_t n_tokens, const uint8_t *data, size_t n_bytes, void *scratch);

#endif
