/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What a profile holds, learned from K and V that pass by. The caller runs the model over texts, one after the other, and shows
 * each text's K and V while they are in its pool; nothing of them is kept but sums.
 *
 *     query power ----> weights of keys          kni_calibrate_set_query_power
 *     sensitivity ----> gains of layers          kni_calibrate_set_sensitivity (may be left out)
 *     texts, once ----> sums, products, exponents kni_calibrate_add
 *                       means, bases              kni_calibrate_solve
 *     texts, again ---> histograms of coefficients kni_calibrate_count
 *     steps ----------> row counts, classes       kni_calibrate_set_preset, as often as is liked
 *
 * Calls come in this order. The profile under construction can be used by kni_spectral after solve and one set_preset.
 *
 * Source of the method: Karhunen-Loeve transform; reverse water-filling does the bit allocation (one step for all coefficients).
 *
 * Owner: one thread; work is shared out to the pool of threads that it was opened with.
 */
#ifndef KNI_CODEC_CALIBRATE_H
#define KNI_CODEC_CALIBRATE_H

#include "codec/profile/profile.h"
#include "device/cpu/threads.h"

struct kni_calibrate;

struct kni_calibrate_opts {
    uint8_t fingerprint[16];
    struct kni_kv_layout kv;
    struct kni_profile_rope rope; /* arrays are copied */
    uint32_t n_group;             /* 0: as many as make a width of 1536 at most (of two layers 2048), then evened out over the groups */
    uint32_t n_sinks;             /* first tokens of a text that count nowhere; at most 16 */
    struct kni_threads *threads;  /* borrowed until close */
};

/* Errors: KN_E_UNSUPPORTED (a shape that no profile can hold; the sentence says which number), KN_E_ARG (n_group), KN_E_NOMEM. */
enum kn_status kni_calibrate_open(struct kni_calibrate **out, const struct kni_calibrate_opts *opts, struct kn_err *err);
void kni_calibrate_close(struct kni_calibrate **c);

/* Tokens of calibration without which a basis would be noise: a multiple of the width. */
uint32_t kni_calibrate_min_tokens(const struct kni_calibrate *c);

/* power: [n_layer][n_kv_head][d_head] mean squares of the query components that meet the keys' components. Both components of a
 * pair that RoPE turns get the pair's mean: turning mixes them and keeps their sum. */
void kni_calibrate_set_query_power(struct kni_calibrate *c, const double *power);

/* sensitivity: [K, V][n_layer], what a relative error of the same size in one layer's K or V costs (KL), in any unit. The gain of a layer
 * is about the root of its share: with one step for all, errors then cost the same everywhere, which is where their sum is least. */
void kni_calibrate_set_sensitivity(struct kni_calibrate *c, const double *sensitivity);

/* Positions n_sinks .. n_tokens - 1 of a text. KN_E_NOMEM for the products, at the first call: width^2 doubles a part. */
enum kn_status kni_calibrate_add(struct kni_calibrate *c, const struct kni_kv_host *view, uint32_t n_tokens);

/* Means, typical exponents and bases, of at least one text; the products' memory is freed on the way. KN_E_UNSUPPORTED without LAPACKE, KN_E_NOMEM, KN_E_ARG
 * when K or V hold nothing that varies. share (may be NULL) is told which share of the parts is done. */
enum kn_status kni_calibrate_solve(struct kni_calibrate *c, void (*share)(void *user, double done), void *user, struct kn_err *err);

/* KN_E_NOMEM for the histograms, at the first call. */
enum kn_status kni_calibrate_count(struct kni_calibrate *c, const struct kni_kv_host *view, uint32_t n_tokens);

/* Sets steps, rows and classes of a preset: rows are those whose symbol is not zero in more than min_share of the tokens counted. */
void kni_calibrate_set_preset(struct kni_calibrate *c, enum kni_profile_preset preset, float step_k, float step_v, double min_share);

/* The profile as far as it is known; borrowed. n_rows is the width until kni_calibrate_trim. quality and rans are the caller's to set
 * and remain its own. */
struct kni_profile *kni_calibrate_profile(struct kni_calibrate *c);
/* Cuts bases to the rows that some preset needs; all presets must be set. */
void kni_calibrate_trim(struct kni_calibrate *c);

#endif
