/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The codec handle: picks the layout, checks containers and arguments, and leaves the coding to the layout. Nothing here
 * knows how values are coded. Owner: one thread at a time a handle; the tables are constant.
 */
#include "codec/codec.h"

#include <assert.h>
#include <string.h>

#include "base/alloc.h"
#include "base/cpu.h"
#include "codec/hevc/hevc_encode.h"
#include "codec/layout.h"
#include "codec/tiles/tiles.h"
#include "kernel/kernels.h"

/* One entry a preset and backend. A preset's first entry is its default. */
static const struct kni_layout_ops *const layouts[] = {
    &kni_layout_exact,            &kni_layout_tiles,            &kni_layout_spectral_rans[0], &kni_layout_spectral_rans[1],
    &kni_layout_spectral_rans[2], &kni_layout_spectral_hevc[0], &kni_layout_spectral_hevc[1], &kni_layout_spectral_hevc[2],
};
#define N_LAYOUTS (sizeof layouts / sizeof *layouts)

/* backend 0: the preset's default. */
static const struct kni_layout_ops *layout_of_preset(enum kn_preset preset, enum kni_backend_id backend)
{
    for (size_t i = 0; i < N_LAYOUTS; i++)
        if (layouts[i]->preset == preset && (!backend || layouts[i]->backend == backend))
            return layouts[i];
    return NULL;
}

static const struct kni_layout_ops *layout_of_container(const struct kni_container *c)
{
    const struct kni_container_header *h = &c->header;
    for (size_t i = 0; i < N_LAYOUTS; i++)
        if (layouts[i]->layout == h->layout && layouts[i]->backend == h->backend && layouts[i]->preset == h->meta.preset)
            return layouts[i];
    return NULL;
}

const char *kni_preset_name(enum kn_preset preset)
{
    if (preset == KN_PRESET_DEFAULT)
        return "default";
    const struct kni_layout_ops *ops = layout_of_preset(preset, 0);
    return ops ? ops->name : "unknown";
}

enum kn_kv_quality kni_preset_quality(enum kn_preset preset, const struct kn_tiles_opts *tiles)
{
    switch (preset) {
    case KN_PRESET_EXACT: return KN_KV_QUALITY_EXACT;
    case KN_PRESET_TILES: return tiles->levels && tiles->levels < KNI_TILES_LEVELS ? KN_KV_QUALITY_ANY : KN_KV_QUALITY_TILES;
    case KN_PRESET_FINE: return KN_KV_QUALITY_FINE;
    case KN_PRESET_MEDIUM: return KN_KV_QUALITY_MEDIUM;
    case KN_PRESET_SMALL: return KN_KV_QUALITY_SMALL;
    case KN_PRESET_DEFAULT: break;
    }
    return KN_KV_QUALITY_ANY;
}

bool kni_preset_needs_profile(enum kn_preset preset)
{
    const struct kni_layout_ops *ops = layout_of_preset(preset, 0);
    return ops && ops->layout == KNI_LAYOUT_ID_SPECTRAL;
}

enum kni_backend_id kni_backend_of(enum kn_preset preset, enum kn_backend wanted)
{
    enum kni_backend_id backend = wanted == KN_BACKEND_HEVC ? KNI_BACKEND_ID_HEVC : wanted == KN_BACKEND_RANS ? KNI_BACKEND_ID_RANS : 0;
    const struct kni_layout_ops *ops = layout_of_preset(preset, kni_preset_needs_profile(preset) ? backend : 0);
    return ops && (unsigned)wanted <= KN_BACKEND_HEVC ? ops->backend : 0;
}

const char *kni_backend_name(enum kni_backend_id backend)
{
    static const char *const names[] = {"unknown", "zstd", "hevc", "rans"};
    return (unsigned)backend < sizeof names / sizeof *names ? names[backend] : names[0];
}

static enum kn_status find_encoder(const struct kni_codec_opts *opts, const struct kni_layout_ops **out, struct kn_err *err)
{
    enum kn_preset preset = opts->preset == KN_PRESET_DEFAULT ? KN_PRESET_EXACT : opts->preset;
    enum kni_backend_id backend = kni_backend_of(preset, opts->backend);
    *out = backend ? layout_of_preset(preset, backend) : NULL;
    if (*out)
        return KN_OK;
    if (layout_of_preset(preset, 0))
        return kni_err_set(err, KN_E_ARG, "unknown backend %d; use rans (%d) or hevc (%d)", (int)opts->backend, KN_BACKEND_RANS, KN_BACKEND_HEVC);
    return kni_err_set(err, KN_E_ARG, "unknown preset %d; use exact, fine, medium, small or tiles", (int)preset);
}

/* What encode writes into the header, from meta and the handle's options. */
static enum kn_status plan(const struct kni_codec *codec, const struct kni_chunk_meta *meta, struct kni_container_header *out, struct kn_err *err)
{
    const struct kni_layout_ops *ops = codec->encoder;
    *out = (struct kni_container_header){.meta = *meta, .layout = ops->layout, .backend = ops->backend};
    out->meta.preset = ops->preset;
    out->meta.backend = ops->backend;
    if (ops->backend == KNI_BACKEND_ID_HEVC)
        out->tools = kni_hevc_encoder_tools(&codec->hevc);
    enum kn_status s = kni_container_check_header(out, err); /* ranges first: tilings divide by them */
    if (s == KN_OK && ops->backend == KNI_BACKEND_ID_HEVC)
        s = kni_hevc_opts_check(&codec->hevc, err);
    return s == KN_OK ? ops->plan(codec, out, err) : s;
}

/* codec: a handle that can plan and estimate, without a reference to the profile. */
static enum kn_status plan_opts(const struct kni_codec_opts *opts, const struct kni_chunk_meta *meta, struct kni_codec *codec,
                                struct kni_container_header *header, struct kn_err *err)
{
    *codec = (struct kni_codec){
        .tiles_opts = opts->tiles, .hevc = opts->hevc, .profile = opts->profile, .tokens_per_picture = opts->tokens_per_picture};
    enum kn_status s = find_encoder(opts, &codec->encoder, err);
    return s == KN_OK ? plan(codec, meta, header, err) : s;
}

enum kn_status kni_codec_working_estimate(const struct kni_codec_opts *opts, const struct kni_chunk_meta *meta, size_t *n_bytes, struct kn_err *err)
{
    struct kni_codec codec;
    struct kni_container_header header;
    *n_bytes = 0;
    enum kn_status s = plan_opts(opts, meta, &codec, &header, err);
    if (s == KN_OK)
        *n_bytes = codec.encoder->estimate(&codec, &header);
    return s;
}

enum kn_status kni_codec_open(struct kni_codec **out, const struct kni_codec_opts *opts, struct kn_err *err)
{
    *out = NULL;
    const struct kni_layout_ops *encoder;
    enum kn_status s = find_encoder(opts, &encoder, err);
    if (s != KN_OK)
        return s;
    struct kni_codec *codec = kni_calloc(KNI_ALLOC_TAG_CODEC, sizeof *codec, 0);
    if (!codec)
        return kni_err_set(err, KN_E_NOMEM, "no memory for a codec handle");
    codec->encoder = encoder;
    codec->tiles_opts = opts->tiles;
    codec->tokens_per_picture = opts->tokens_per_picture;
    codec->text_order = opts->text_order;
    codec->hevc = opts->hevc;
    codec->cpu_without = opts->cpu_without;
    codec->profile = opts->profile ? kni_profile_ref(opts->profile) : NULL;
    s = encoder->open_encoder(codec, err);
    if (s != KN_OK)
        kni_codec_close(&codec);
    *out = codec;
    return s;
}

void kni_codec_close(struct kni_codec **codec)
{
    if (!*codec)
        return;
    for (size_t i = 0; i < N_LAYOUTS; i++)
        layouts[i]->close(*codec);
    if ((*codec)->profile)
        kni_profile_close(&(*codec)->profile);
    kni_free(*codec);
    *codec = NULL;
}

size_t kni_codec_working_bytes(const struct kni_codec *codec)
{
    return codec->peak_working_bytes;
}

static enum kn_status check_view(const struct kni_chunk_meta *meta, const struct kni_kv_host *view, struct kn_err *err)
{
    const struct kni_kv_layout *a = &meta->kv, *b = &view->layout;
    if (a->n_layer != b->n_layer || a->n_kv_head != b->n_kv_head || a->d_head != b->d_head || a->type != b->type)
        return kni_err_set(err, KN_E_ARG, "the chunk's KV shape is not the pool's");
    uint64_t end = (uint64_t)meta->first_token + meta->n_tokens;
    if (meta->n_tokens == 0 || end > (uint64_t)view->n_blocks * KNI_BLOCK_TOKENS)
        return kni_err_set(err, KN_E_ARG, "positions %u..%llu do not lie in a view of %u blocks", meta->first_token,
                           (unsigned long long)end, view->n_blocks);
    return KN_OK;
}

/* One pass over the chunk's whole blocks, which encoding reads next. What is not finite would go on to every later position, and an answer
 * made of it looks like any other. */
static enum kn_status check_finite(uint32_t cpu_flags, const struct kni_chunk_meta *m, const struct kni_kv_host *view,
                                   struct kn_err *err)
{
    struct kni_kernels kernels;
    kni_kernels_init(&kernels, cpu_flags);
    const size_t n = kni_kv_part_values(&m->kv);
    const uint16_t infinity = kni_kv_infinity(m->kv.type);
    for (uint32_t b = m->first_token / KNI_BLOCK_TOKENS; b < (m->first_token + m->n_tokens) / KNI_BLOCK_TOKENS; b++)
        for (uint32_t k = 0; k < 2 * m->kv.n_layer; k++) {
            const uint16_t *part = kni_kv_part(view, k / 2, k % 2, b);
            if (kernels.is_finite16(part, n, infinity))
                continue;
            size_t i = 0;
            while (kni_is_finite16_ref(part + i, 1, infinity))
                i++;
            return kni_err_set(err, KN_E_NOT_FINITE,
                               "no chunk is made: %s of layer %u at position %zu is infinite or not a number; is the model damaged?",
                               k % 2 ? "V" : "K", k / 2, (size_t)b * KNI_BLOCK_TOKENS + i / m->kv.d_head % KNI_BLOCK_TOKENS);
        }
    return KN_OK;
}

enum kn_status kni_chunk_encode(struct kni_codec *codec, const struct kni_chunk_meta *meta, const struct kni_kv_host *view,
                                void **data, size_t *n_bytes, struct kn_err *err)
{
    *data = NULL;
    *n_bytes = 0;
    const struct kni_layout_ops *ops = codec->encoder;
    struct kni_container_writer w = {0};
    struct kni_container_header header;
    if (meta->preset != KN_PRESET_DEFAULT && meta->preset != ops->preset)
        return kni_err_set(err, KN_E_ARG, "this codec handle encodes preset %s, not %s", ops->name, kni_preset_name(meta->preset));
    if (meta->backend && meta->backend != ops->backend)
        return kni_err_set(err, KN_E_ARG, "this codec handle encodes with %s, not %s", kni_backend_name(ops->backend), kni_backend_name(meta->backend));
    enum kn_status s = check_view(meta, view, err);
    if (s == KN_OK)
        s = check_finite(kni_cpu_flags_without(codec->cpu_without), meta, view, err);
    if (s == KN_OK)
        s = plan(codec, meta, &header, err);
    if (s == KN_OK)
        s = kni_container_writer_init(&w, &header, err);
    if (s == KN_OK)
        s = ops->encode(codec, view, &w, err);
    if (s == KN_OK)
        kni_container_writer_finish(&w, data, n_bytes);
    kni_container_writer_fini(&w);
    return s;
}

enum kn_status kni_chunk_read_meta(const void *data, size_t n_bytes, struct kni_chunk_meta *out, struct kn_err *err)
{
    struct kni_container c;
    enum kn_status s = kni_container_open(&c, data, n_bytes, err);
    if (s == KN_OK)
        *out = c.header.meta;
    return s;
}

enum kn_status kni_chunk_verify(const void *data, size_t n_bytes, struct kn_err *err)
{
    struct kni_container c;
    struct kni_section section;
    enum kn_status s = kni_container_open(&c, data, n_bytes, err);
    for (uint32_t n_seen = 0; kni_container_next(&c, &n_seen, &section, &s, err);)
        ; /* each is checked on the way */
    return s;
}

enum kn_status kni_chunk_restore(struct kni_codec *codec, const void *data, size_t n_bytes, const struct kni_chunk_meta *expect,
                                 const struct kni_kv_host *view, struct kn_err *err)
{
    struct kni_container c;
    enum kn_status s = kni_container_open(&c, data, n_bytes, err);
    if (s == KN_OK)
        s = kni_container_match(&c, expect, err);
    if (s == KN_OK)
        s = check_view(&c.header.meta, view, err);
    if (s != KN_OK)
        return s;
    uint32_t tools = codec->hevc.tools == KN_HEVC_TOOLS_BASIC ? KNI_HEVC_TOOLS_BASIC : KNI_HEVC_TOOLS_ALL; /* libavcodec decodes all that there are */
    if (c.header.tools & ~tools)
        return kni_err_set(err, KN_E_MISMATCH, "chunk uses HEVC tools %#x, this reader takes %#x; treated as a miss", c.header.tools, tools);
    const struct kni_layout_ops *ops = layout_of_container(&c);
    if (!ops)
        return kni_err_set(err, KN_E_MISMATCH, "chunk has preset %u, layout %u, backend %u, a combination that this build does not read",
                           (unsigned)c.header.meta.preset, (unsigned)c.header.layout, (unsigned)c.header.backend);
    return ops->restore(codec, &c, view, err);
}
