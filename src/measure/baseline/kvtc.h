/* SPDX-License-Identifier: Apache-2.0 */
/*
 * KVTC: the nearest rival. Method: Staniszewski and Lancucki 2025 (arXiv 2511.01815), as far as its text tells:
 *
 *     un-rotated keys (and values), all heads of a group of layers, less their mean, turned by the PCA of calibration texts
 *     components in order of variance, cut into groups of consecutive ones; each group has 0, 2, 4 or 8 bits a component and, a token,
 *     a shift and a scale in 16 bits each; sizes and bits by dynamic programming: least squared error for a given number of bits
 *     codes through DEFLATE; the first 4 and the last 128 tokens stay in 16 bits
 *
 * The bits aimed at are before DEFLATE and without the exact tokens, K and V alike. Where the paper leaves things open we chose in the rival's favour: errors
 * are measured on calibration rows and not modelled, shifts and scales go through DEFLATE too, level 9. One thing is ours: layers are
 * taken in groups (10 of SmolLM2's 30), as our own profile does, and not all at once.
 *
 * Calls come in this order: open, add (a text at a time), solve, then allocate and code as often as is liked. Owner: one thread; work
 * is shared out to the threads given.
 */
#ifndef KNI_CODEC_KVTC_H
#define KNI_CODEC_KVTC_H

#include "measure/baseline/baseline.h"
#include "codec/profile/profile.h"
#include "device/cpu/threads.h"

#define KNI_KVTC_SINKS 4u
#define KNI_KVTC_RECENT 128u

struct kni_kvtc;

struct kni_kvtc_opts {
    struct kni_kv_layout kv;
    struct kni_profile_rope rope; /* arrays are borrowed until close */
    uint32_t n_group;             /* layers a group; 0: about 2048 components */
    struct kni_threads *threads;  /* borrowed until close */
};

/* KN_E_UNSUPPORTED (rows that are no multiple of 16), KN_E_NOMEM. */
enum kn_status kni_kvtc_open(struct kni_kvtc **out, const struct kni_kvtc_opts *opts);
void kni_kvtc_close(struct kni_kvtc **k);
/* Scratch of decoding, the bases not counted. */
size_t kni_kvtc_bytes(const struct kni_kvtc *k);

/* Positions KNI_KVTC_SINKS .. n_tokens - 1 of a calibration text. */
void kni_kvtc_add(struct kni_kvtc *k, const struct kni_kv_host *view, uint32_t n_tokens);
/* KN_E_ARG when fewer tokens were added than components; KN_E_UNSUPPORTED without LAPACKE; with a sentence. */
enum kn_status kni_kvtc_solve(struct kni_kvtc *k, struct kn_err *err);
/* Chooses groups and bits for so many bits a value. */
enum kn_status kni_kvtc_allocate(struct kni_kvtc *k, double bits);

/* Codes positions 0 .. n_tokens - 1, a whole prefix, into one piece. The coded prefix's last tokens are exact: it is no chunk that others could follow. */
enum kn_status kni_kvtc_encode(struct kni_kvtc *k, const struct kni_kv_host *view, uint32_t n_tokens, struct kni_buffer *out, struct kni_account *account);
enum kn_status kni_kvtc_decode(struct kni_kvtc *k, const struct kni_kv_host *view, uint32_t n_tokens, const uint8_t *data, size_t n_bytes);

#endif
