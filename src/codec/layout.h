/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The seam between a codec handle and the layouts. A layout owns the way from KV to sections and back; codec.c owns the
 * handle, checks the container and calls through this table. To add a layout, a backend or a preset: one more
 * kni_layout_ops in codec.c's table, its own section kinds in container.h, its scratch as one more pointer below.
 *
 * A layout that codes pictures hands them to hevc_encode.h and gets them from hevc_decode.h: both speak of planes and
 * know nothing of tokens.
 *
 * Owner: the codec handle, one thread at a time.
 */
#ifndef KNI_CODEC_LAYOUT_H
#define KNI_CODEC_LAYOUT_H

#include "codec/container.h"

struct kni_exact; /* layout_exact.c: zstd contexts and planes */
struct kni_tiles; /* layout_tiles.c: picture buffers, encoder and decoder */
struct kni_spectral_layout; /* layout_spectral.h: transform, symbols, encoders and decoders */

struct kni_codec {
    const struct kni_layout_ops *encoder; /* of opts.preset */
    struct kn_tiles_opts tiles_opts;
    struct kn_hevc_opts hevc;
    struct kni_profile *profile; /* a reference, or NULL */
    uint32_t tokens_per_picture; /* as asked for */
    bool text_order;             /* as asked for */
    uint32_t cpu_without;        /* as asked for */
    struct kni_exact *exact; /* made on first use, as restore reads any layout */
    struct kni_tiles *tiles;
    struct kni_spectral_layout *spectral;
    size_t working_bytes, peak_working_bytes; /* see kni_codec_working_add */
};

struct kni_layout_ops {
    enum kni_layout_id layout;
    enum kni_backend_id backend;
    enum kn_preset preset;
    const char *name;
    /* Checks options and makes what encoding needs. */
    enum kn_status (*open_encoder)(struct kni_codec *codec, struct kn_err *err);
    /* Fills header's tiling and n_sections (the most there can be) for meta; KN_E_ARG when the options do not fit the shape. */
    enum kn_status (*plan)(const struct kni_codec *codec, struct kni_container_header *header, struct kn_err *err);
    enum kn_status (*encode)(struct kni_codec *codec, const struct kni_kv_host *view, struct kni_container_writer *w, struct kn_err *err);
    /* The container's meta was matched and the view covers it. The layout's own header fields are not checked yet. */
    enum kn_status (*restore)(struct kni_codec *codec, const struct kni_container *c, const struct kni_kv_host *view, struct kn_err *err);
    /* About what a handle will hold that restores chunks with this header: an upper bound in what is usual. After plan. */
    size_t (*estimate)(const struct kni_codec *codec, const struct kni_container_header *header);
    void (*close)(struct kni_codec *codec);
};

extern const struct kni_layout_ops kni_layout_exact, kni_layout_tiles;
extern const struct kni_layout_ops kni_layout_spectral_rans[KNI_PROFILE_N_PRESETS], kni_layout_spectral_hevc[KNI_PROFILE_N_PRESETS];

/* Scratch held by the handle went from old_bytes to new_bytes: keeps the peak. */
static inline void kni_codec_working_add(struct kni_codec *codec, size_t old_bytes, size_t new_bytes)
{
    codec->working_bytes = codec->working_bytes - old_bytes + new_bytes;
    if (codec->working_bytes > codec->peak_working_bytes)
        codec->peak_working_bytes = codec->working_bytes;
}

/* The estimate of layouts exact and tiles: one figure for every shape. */
static inline size_t kni_layout_estimate_flat(const struct kni_codec *codec, const struct kni_container_header *header)
{
    (void)codec, (void)header;
    return 2u << 20;
}

#endif
