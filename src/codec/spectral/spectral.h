/* SPDX-License-Identifier: Apache-2.0 */
/*
 * KV to symbols and back, the spectral way. One part (profile.h) of n_tokens consecutive tokens:
 *
 *     keys are un-rotated by their positions; values are taken as they are; all times the profile's weight
 *     e = rint(4 log2(rms of a (layer, token) row)), clamped to -96..95; the row divided by 2^((e - gain) / 4), gain the profile's for the layer
 *     all layers' rows of a token one after the other, less the profile's mean                      [token][width]
 *     y = basis * that                                                                              [token][rows]
 *     symbol = 128 + clamp(rint(y / step), -127, 127)
 *
 * A row of zeros has e = -96 and counts as zeros divided by 1. Symbols of +-127 are escapes: their true integers stand in a list, in the order [row][token].
 * The matrix of symbols is [n_layers exponent rows, then rows of coefficients][token], one byte each:
 *
 *     exponent row: 128 + clamp(e - profile's typical exponent of the layer, -127, 127)  (never an escape: e has 192 values)
 *
 * The row is divided by the exponent that the symbol says, clamped or not.
 *
 * and back: (symbol * step) by the transposed basis, plus mean, times 2^((e - gain) / 4) / weight, keys rotated again, rounded to 16 bits.
 *
 * Non-finite K or V (kni_chunk_encode refuses them before) are coded as zero, and none come back: what 16 bits cannot hold becomes their
 * largest. Owner: a handle belongs to one thread; the profile is shared.
 */
#ifndef KNI_CODEC_SPECTRAL_H
#define KNI_CODEC_SPECTRAL_H

#include "codec/profile/profile.h"

struct kni_spectral;

/* Escapes of one matrix, in scan order. Grown by kni_alloc; zero-initialise; kni_free(values). */
struct kni_escapes { int32_t *values; uint32_t n, capacity; };

/* max_tokens: of one call, a multiple of 16. cpu_flags: kernels that may be used, of enum kni_cpu_flag. The profile is
 * borrowed while the handle lives. Scratch is allocated here; a call allocates only when escapes grow. */
enum kn_status kni_spectral_open(struct kni_spectral **out, const struct kni_profile *profile, uint32_t max_tokens,
                                 uint32_t cpu_flags, struct kn_err *err);
void kni_spectral_close(struct kni_spectral **s);
size_t kni_spectral_bytes(const struct kni_spectral *s);

/* Replaces escapes; KN_E_NOMEM when they cannot grow.
 * Positions first_token .. + n_tokens of view (n_tokens a multiple of 16, first_token too). symbols: [n_layers + part->rows[preset]] rows, stride apart. */
enum kn_status kni_spectral_forward(struct kni_spectral *s, const struct kni_kv_host *view, uint32_t first_token, uint32_t n_tokens, uint32_t part,
                                    enum kni_profile_preset preset, uint8_t *symbols, size_t stride, struct kni_escapes *escapes);
/* Writes the part's K or V of these positions into view, those below skip_tokens excepted (sinks, written by others). KN_E_FORMAT when the escapes do
 * not fit the symbols or an exponent is out of range: then nothing was written. */
enum kn_status kni_spectral_inverse(struct kni_spectral *s, const struct kni_kv_host *view, uint32_t first_token, uint32_t n_tokens, uint32_t part,
                                    enum kni_profile_preset preset, const uint8_t *symbols, size_t stride, const struct kni_escapes *escapes,
                                    uint32_t skip_tokens);

/* The steps before the basis, for calibration: x[n_tokens][width] weighted, scaled, not centred; exponents[n_layers][n_tokens]. kv and rope as in
 * a profile; weight [width] or NULL for ones. */
void kni_spectral_rows(const struct kni_kv_host *view, const struct kni_profile_rope *rope, uint32_t first_layer, uint32_t n_layers, bool is_v,
                       const float *weight, uint32_t first_token, uint32_t n_tokens, float *x, int8_t *exponents);

#endif
