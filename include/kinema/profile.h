/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Profiles: what the lossy spectral presets (fine, medium, small) must know about a model's K and V. One is built from a model
 * and some text, once, and used by everyone who publishes or fetches with these presets.
 */
#ifndef KINEMA_PROFILE_H
#define KINEMA_PROFILE_H

#include "model.h"

#ifdef __cplusplus
extern "C" {
#endif

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
    const char *const *text_names; /* [n_texts], for sentences and, without folders, for the profile; NULL: none have names */
    bool skip_doubtful;      /* a text that is not UTF-8 or holds control characters is left out and said, instead of ending the build */
};

/* A text that a profile was made from. */
struct kn_profile_text {
    const char *name;        /* without folders, cut at 63 bytes; "" when it had none. Borrowed for the call */
    uint64_t n_bytes;        /* of the whole text */
    uint32_t n_tokens;       /* that counted */
    bool is_held_back;       /* measured on, not learned from */
    uint8_t hash[16];        /* kn_profile_text_hash of the whole text */
};
typedef void (*kn_profile_text_fn)(void *user, const struct kn_profile_text *text);

struct kn_profile_info {
    size_t size; /* sizeof(struct kn_profile_info), set by the caller */
    uint8_t id[16], fingerprint[16]; /* of the profile; of its model */
    uint32_t n_layer, n_kv_head, d_head, n_group, n_sinks;
    uint64_t n_bytes, n_calibration_tokens;
    uint32_t n_texts; /* that kn_profile_read_texts tells; 0 in files of version 1, which did not note them */
    struct {
        float step_k, step_v;
        uint32_t rows_k, rows_v, components; /* coefficients coded, of so many, all layers */
        float ratio, kl, top1;               /* measured on text held back at calibration */
    } presets[3];                            /* fine, medium, small */
};

/* Builds a profile and writes it to path, complete or not at all. A text that is (for its larger part) in earlier ones is left out, one that is
 * so in part counts with its longest new stretch; both are logged as warnings, as is a text whose tokens are much shorter than the others'. Errors: KN_E_ARG (too little text: says how much is needed),
 * KN_E_UNSUPPORTED (a shape that the layout cannot hold), KN_E_NOMEM, KN_E_IO. Blocks for minutes. */
KN_API enum kn_status kn_profile_build(struct kn_model *model, const char *path, const struct kn_profile_opts *opts, struct kn_err *err);
/* Reads and checks a profile. KN_E_IO, KN_E_FORMAT, KN_E_MISMATCH (another version), KN_E_ARG (the size of *out is
 * not set). */
KN_API enum kn_status kn_profile_read_info(const char *path, struct kn_profile_info *out, struct kn_err *err);
/* Tells the texts that a profile was made from, in order. Errors as kn_profile_read_info. */
KN_API enum kn_status kn_profile_read_texts(const char *path, kn_profile_text_fn fn, void *user, struct kn_err *err);
/* BLAKE2b-128 of a text: whether it is one of a profile's. */
KN_API void kn_profile_text_hash(const void *text, size_t n_bytes, uint8_t hash[16]);

#ifdef __cplusplus
}
#endif
#endif
