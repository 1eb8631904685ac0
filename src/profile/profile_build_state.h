/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Building a profile: what its stages share.
 *
 *     profile_build.c          the public calls: checks, stages in order, the file
 *     profile_build_texts.c    texts -> tokens; which ones are held back
 *     profile_build_overlap.c  texts that are given twice
 *     profile_build_passes.c   the model runs over texts: query power, sums, histograms, symbols
 *     profile_build_layers.c   how much an error in each layer costs
 *     profile_build_measure.c  quality on held-back text: untouched, CacheGen's way, a preset
 *     profile_build_search.c   steps of the presets
 *
 * One text at a time lies in a pool of its own, f16, blocks in order. Owner: the calling thread; workers only inside a call.
 */
#ifndef KNI_ENGINE_PROFILE_BUILD_STATE_H
#define KNI_ENGINE_PROFILE_BUILD_STATE_H

#include "profile/calibrate.h"
#include "codec/spectral/spectral.h"
#include "kernel/kernels.h"
#include "kinema/profile.h"
#include "run/run.h"

#define KNI_BUILD_STEP_TOKENS 256u  /* prompt tokens a step, tokens that the codec takes at a time */
#define KNI_BUILD_SCORE_TOKENS 64u  /* rows of logits a step */
#define KNI_BUILD_MEASURED 3u       /* held-back texts that are measured, at most */
#define KNI_BUILD_MAX_ROW 4096u     /* values of a token and layer, K or V: what a profile can hold */

struct kni_build_text {
    int32_t *tokens;
    uint32_t n; /* a multiple of 16 */
    size_t index; /* among those that were given */
};

/* What the codec does with a prefix, per worker. */
struct kni_build_coder {
    struct kni_spectral *spectral;
    struct kni_escapes escapes;
    uint8_t *symbols; /* [most rows and layers of a part][KNI_BUILD_STEP_TOKENS] */
};

/* A held-back text: its prefix goes through a codec, what follows is scored. */
struct kni_build_held {
    const struct kni_build_text *text;
    uint32_t n_prefix, n_score; /* tokens, multiples of 16 */
    uint16_t *untouched;        /* blocks of the prefix */
    uint16_t *logp;             /* [n_score][n_vocab] f16: log-probabilities after the untouched prefix */
    int32_t *best;              /* [n_score] */
};

struct kni_build {
    struct kn_model *model;
    struct kn_profile_opts opts;
    struct kni_threads *threads;
    uint32_t n_workers;
    struct kni_run *run;
    struct kni_kernels kernels;
    struct kni_calibrate *calibrate;
    struct kni_rans_model *rans;
    double *freqs;          /* of the profile's rope */
    uint8_t *rope_layers;
    struct kni_build_text *texts; /* [n_texts], the last n_held of them held back */
    uint32_t n_texts, n_held;
    struct kni_profile_text *notes; /* [n_texts], for the file */
    uint32_t n_ctx;         /* longest text */
    struct kni_kv_host view; /* base and block table owned */
    uint32_t *block_ids;
    struct kni_build_coder *coders; /* [n_workers], from kni_build_open_coders on */
    struct kni_build_held held[KNI_BUILD_MEASURED];
    uint32_t n_measured;
    float *logits;          /* [KNI_BUILD_SCORE_TOKENS][n_vocab] */
    struct kn_err *err;
};

/* What a way of coding does to quality, on all measured texts: means over tokens, then over texts. */
struct kni_build_quality { double kl, top1; };

/* Tells the caller's progress function. */
void kni_build_report(const struct kni_build *b, const char *phase, double done);

/* Tokens of all texts, cut to max_tokens. KN_E_ARG when there are too few; needs b->calibrate for how many. */
enum kn_status kni_build_read_texts(struct kni_build *b);
void kni_build_free_texts(struct kni_build *b);
/* What text number index is called in sentences. */
const char *kni_build_text_name(const struct kni_build *b, size_t index, char out[256]);
/* Takes out of the texts what earlier ones have: profile_build_overlap.c. */
enum kn_status kni_build_drop_overlaps(struct kni_build *b);
/* How many of a's tokens lie in stretches of b, too. UINT32_MAX: out of memory. */
uint32_t kni_build_count_shared(const struct kni_build_text *a, const struct kni_build_text *b);

/* Runs tokens 0 .. n - 1 of a text, so that b->view has their K and V. */
enum kn_status kni_build_prefill(struct kni_build *b, const struct kni_build_text *text, uint32_t n);
/* The passes over calibration texts, in this order. Symbols need all presets set. */
enum kn_status kni_build_pass_power(struct kni_build *b);
enum kn_status kni_build_pass_sums(struct kni_build *b);
enum kn_status kni_build_pass_histograms(struct kni_build *b);
enum kn_status kni_build_pass_symbols(struct kni_build *b);
/* Handles for the calibration's profile as it is then: after the bases, before the trim. */
enum kn_status kni_build_open_coders(struct kni_build *b);
void kni_build_close_coders(struct kni_build *b);

/* Noise in one layer's K or V at a time: gains of layers. After the pass over query power, before sums. */
enum kn_status kni_build_pass_layers(struct kni_build *b);

/* Runs a text untouched and keeps what is needed to compare: at most so many tokens of prefix, and scored after it. Close it in any case. */
enum kn_status kni_build_open_text(struct kni_build *b, struct kni_build_held *h, const struct kni_build_text *text, uint32_t max_prefix, uint32_t max_score);
void kni_build_close_text(struct kni_build_held *h);
/* Runs the scored tokens of a text whose prefix is in the pool: keeps what comes out (keep), or compares it with what was kept. */
enum kn_status kni_build_score(struct kni_build *b, struct kni_build_held *h, bool keep, struct kni_build_quality *out);
/* Runs the held-back texts untouched and keeps what is needed to compare. */
enum kn_status kni_build_open_held(struct kni_build *b);
void kni_build_close_held(struct kni_build *b);
enum kn_status kni_build_measure_cachegen(struct kni_build *b, uint32_t levels_k, uint32_t levels_v, struct kni_build_quality *out);
enum kn_status kni_build_measure_preset(struct kni_build *b, enum kni_profile_preset preset, struct kni_build_quality *out);
/* 16-bit values of the measured prefixes against their bytes as chunks. Needs b->rans. */
enum kn_status kni_build_measure_ratio(struct kni_build *b, enum kni_profile_preset preset, double *ratio);

/* Chooses steps and rows of all presets. */
enum kn_status kni_build_search(struct kni_build *b);

#endif
