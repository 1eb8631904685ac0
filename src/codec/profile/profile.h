/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What calibration has learned of one model's K and V: the spectral layout's bases, means, weights, steps and symbol statistics.
 * A profile is one file (doc/format-profile.md), made by `kinema profile build`, tied to the model by its fingerprint, and
 * immutable once open. Its id is the hash of its bytes and stands in every chunk that was coded with it.
 *
 * Layers are cut into groups of n_group layers; K or V of one group is a part, coded by itself:
 *
 *     part = group * 2 + is_v        width = layers of the group * n_kv_head * d_head, a multiple of 32
 *
 * Order of a part's components: [layer in group][kv head][d_head].
 */
#ifndef KNI_CODEC_PROFILE_H
#define KNI_CODEC_PROFILE_H

#include "base/status.h"
#include "codec/rans/rans.h"
#include "device/kv_view.h"

#define KNI_PROFILE_N_PRESETS 3u /* fine, medium, small */
#define KNI_PROFILE_MAX_ROPES 2u

enum kni_profile_preset { KNI_PROFILE_PRESET_FINE = 0, KNI_PROFILE_PRESET_MEDIUM = 1, KNI_PROFILE_PRESET_SMALL = 2 };

/* Un-rotation of keys. The codec may not look into a model, so the profile says it. */
struct kni_profile_rope {
    bool neox;             /* pairs (i, i + rope_dim/2), otherwise (2i, 2i+1) */
    uint32_t rope_dim;     /* rotated components of a head, even */
    uint32_t n_ropes;      /* frequency vectors */
    const double *freqs;   /* [n_ropes][rope_dim / 2], angle a position */
    const uint8_t *layers; /* [n_layer]: which of them */
};

struct kni_profile_part {
    uint32_t first_layer, n_layers, width;
    uint32_t n_rows;       /* rows of the basis, descending variance: the largest of rows[] */
    const float *mean;     /* [width], of weighted and scaled components */
    const float *weight;   /* [width], positive; all 1 for V unless calibration says otherwise */
    const uint16_t *basis; /* [n_rows][width] bfloat16 */
    const int8_t *exponent; /* [n_layers] typical exponent (see spectral.h) */
    const int8_t *gain;     /* [n_layers] quarter octaves: how much finer than others a layer is coded; NULL: 0 for all */
    uint32_t rows[KNI_PROFILE_N_PRESETS];            /* coefficients coded, a multiple of 16 */
    float step[KNI_PROFILE_N_PRESETS];
    const uint8_t *classes[KNI_PROFILE_N_PRESETS];   /* [n_layers + rows]: rANS class of each row of symbols, exponents first */
};

/* Measured on the held-back share of the calibration text, for show only. */
struct kni_profile_quality { float ratio, kl, top1; };

/* A text that calibration has read. */
#define KNI_PROFILE_NAME_BYTES 64u /* with its NUL */
struct kni_profile_text {
    uint64_t n_bytes;   /* of the whole text */
    uint32_t n_tokens;  /* that counted */
    bool is_held_back;  /* measured on, not learned from */
    uint8_t hash[16];   /* BLAKE2b-128 of its bytes */
    char name[KNI_PROFILE_NAME_BYTES]; /* without folders; may be cut, may be empty */
};

struct kni_profile {
    uint8_t id[16], fingerprint[16];
    struct kni_kv_layout kv; /* type is not part of a profile: 0 */
    struct kni_profile_rope rope;
    uint32_t n_group;  /* layers a group; the last group may have fewer */
    uint32_t n_parts;
    uint32_t n_sinks;  /* first tokens of a sequence that stay exact, at most 16 */
    uint64_t n_calibration_tokens;
    uint64_t n_bytes;  /* of the file; ignored by kni_profile_write */
    struct kni_profile_part *parts; /* [n_parts] */
    struct kni_profile_quality quality[KNI_PROFILE_N_PRESETS];
    const struct kni_rans_model *rans;
    const struct kni_profile_text *texts; /* [n_texts]; none in files of version 1 */
    uint32_t n_texts;
};

/* Reads and checks a file: sizes, checksums, ranges of every field. KN_E_IO, KN_E_FORMAT (damaged), KN_E_MISMATCH (another
 * version), KN_E_NOMEM; sentences name the file and what to do. The result is reference counted, immutable, any thread. */
enum kn_status kni_profile_open(struct kni_profile **out, const char *path, struct kn_err *err);
/* The same from bytes, copied. name is for error sentences. */
enum kn_status kni_profile_read(struct kni_profile **out, const void *data, size_t n_bytes, const char *name, struct kn_err *err);
struct kni_profile *kni_profile_ref(struct kni_profile *p);
void kni_profile_close(struct kni_profile **p);

/* KN_E_MISMATCH with a sentence when the profile is not for this model and shape. */
enum kn_status kni_profile_match(const struct kni_profile *p, const uint8_t fingerprint[16], const struct kni_kv_layout *kv, struct kn_err *err);

/* The file's bytes for p, whose id is ignored; *data is for kni_free. Deterministic. */
enum kn_status kni_profile_write(const struct kni_profile *p, void **data, size_t *n_bytes, struct kn_err *err);

/* Makes the checksum of a file's bytes right, so that tests and fuzzers get past it. Does nothing to bytes that are too few. */
void kni_profile_refresh_checksum(void *data, size_t n_bytes);

#endif
