/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Profiles: what the lossy spectral presets (fine, medium, small) must know about a model's K and V. One is built from a model
 * and some text, once, and used by everyone who publishes or fetches with these presets.
 */
#ifndef KINEMA_PROFILE_H
#define KINEMA_PROFILE_H

#include "engine.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Told now and then while a profile is built: what is done, in words, and how far that phase is, 0 to 1. */
typedef void (*kn_progress_fn)(void *user, const char *phase, double done);

struct kn_profile_opts {
    size_t size;             /* sizeof(struct kn_profile_opts) */
    const char *const *texts; /* UTF-8, not one document cut in pieces but several: borrowed for the call. The last sixth of them, one at
                               * least (of a single text: its last quarter), is not learned from but measured on */
    const size_t *text_bytes;
    size_t n_texts;
    uint32_t n_threads;      /* 0: as many as the process may run on */
    uint32_t max_tokens;     /* of each text; 0: 2048 */
    uint32_t n_group;        /* layers a group; 0: chosen */
    kn_progress_fn progress; /* may be NULL */
    void *user;
};

struct kn_profile_info {
    uint8_t id[16], fingerprint[16]; /* of the profile; of its model */
    uint32_t n_layer, n_kv_head, d_head, n_group, n_sinks;
    uint64_t n_bytes, n_calibration_tokens;
    struct {
        float step_k, step_v;
        uint32_t rows_k, rows_v, components; /* coefficients coded, of so many, all layers */
        float ratio, kl, top1;               /* measured on text held back at calibration */
    } presets[3];                            /* fine, medium, small */
};

/* Builds a profile and writes it to path, complete or not at all. Errors: KN_E_ARG (too little text: says how much is needed),
 * KN_E_UNSUPPORTED (a shape that the layout cannot hold), KN_E_NOMEM, KN_E_IO. Blocks for minutes. */
KN_API enum kn_status kn_profile_build(struct kn_model *model, const char *path, const struct kn_profile_opts *opts, struct kn_err *err);
/* Reads and checks a profile. KN_E_IO, KN_E_FORMAT, KN_E_MISMATCH (another version). */
KN_API enum kn_status kn_profile_read_info(const char *path, struct kn_profile_info *out, struct kn_err *err);

#ifdef __cplusplus
}
#endif
#endif
