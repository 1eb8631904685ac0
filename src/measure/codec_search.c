/* SPDX-License-Identifier: Apache-2.0 */
/*
 * kn_codec_search: the bytes of every tiling of the tiles layout on real K and V: all pairs of a divisor of the head's width (rows of
 * a head's tile) and a divisor of the number of heads (heads side by side). Twice each: every picture by itself, and predicted from the
 * picture before. Method: KVCodec (arXiv 2602.09725), whose tiling comes from such a search.
 *
 * Counted is the whole container: video sections by the same encoder as chunks, and the rest (header, table, scales), which no tiling changes,
 * from a chunk encoded once. Parameter sets of pictures by themselves are counted once a stream, as in a stream that has only intra pictures.
 */
#include <stdio.h>
#include <string.h>

#include "base/alloc.h"
#include "base/cpu.h"
#include "base/sized.h"
#include "base/status.h"
#include "codec/container.h"
#include "codec/hevc/hevc_encode.h"
#include "codec/tiles/tiles.h"
#include "measure/eval_method.h"

#define DEFAULT_SAMPLE 256u
#define DEFAULT_LEVELS 64u
#define NAL_VPS 32u
#define NAL_PPS 34u

struct search {
    struct kn_search_opts opts;
    struct kn_hevc_opts hevc;
    struct kni_eval_bed bed;
    struct kni_hevc_encoder *encoder;
    struct kni_container_writer writer; /* where streams go to be counted */
    uint16_t *scales;                   /* [layer][K, V][token] of a chunk */
    uint8_t *planes;                    /* three */
    size_t plane_bytes;
    uint64_t rest_bytes;                /* of containers, beside video */
};

static uint32_t first_sampled(const struct search *x)
{
    return x->bed.n_prefix - x->opts.sample_tokens;
}

static struct kni_chunk_meta meta_of(const struct search *x, uint32_t first)
{
    struct kni_chunk_meta meta = {.preset = KN_PRESET_TILES, .first_token = first, .n_tokens = KNI_EVAL_CHUNK, .kv = x->bed.kv};
    memcpy(meta.fingerprint, x->bed.model->info.fingerprint, sizeof meta.fingerprint);
    return meta;
}

/* Container bytes that are no video, over the sample. */
static enum kn_status count_rest(struct search *x, struct kn_err *err)
{
    struct kni_codec *codec = NULL;
    struct kni_codec_opts co = {.preset = KN_PRESET_TILES, .tiles = {.levels = x->opts.levels}, .hevc = x->hevc};
    struct kni_kv_host view = kni_eval_bed_clean(&x->bed);
    enum kn_status status = kni_codec_open(&codec, &co, err);
    for (uint32_t first = first_sampled(x); first < x->bed.n_prefix && status == KN_OK; first += KNI_EVAL_CHUNK) {
        struct kni_chunk_meta meta = meta_of(x, first);
        struct kni_container c;
        void *data = NULL;
        size_t n_bytes;
        status = kni_chunk_encode(codec, &meta, &view, &data, &n_bytes, err);
        if (status == KN_OK)
            status = kni_container_open(&c, data, n_bytes, err);
        x->rest_bytes += n_bytes;
        struct kni_section section;
        for (uint32_t n_seen = 0; kni_container_next(&c, &n_seen, &section, &status, err);)
            x->rest_bytes -= section.kind == KNI_SECTION_KIND_TILES_VIDEO ? section.n_bytes : 0;
        kni_free(data);
    }
    kni_codec_close(&codec);
    return status;
}

/* Bytes of parameter sets (VPS, SPS, PPS) in an Annex B stream, start codes counted. */
static size_t parameter_bytes(const uint8_t *data, size_t n)
{
    size_t sum = 0, at = n;
    bool is_parameter = false;
    for (size_t i = 0; i + 3 < n; i++) {
        if (data[i] || data[i + 1] || data[i + 2] != 1)
            continue;
        size_t begin = i && !data[i - 1] ? i - 1 : i; /* four-byte start codes */
        sum += is_parameter ? begin - at : 0;
        uint32_t type = data[i + 3] >> 1 & 63u;
        is_parameter = type >= NAL_VPS && type <= NAL_PPS;
        at = begin;
        i += 3;
    }
    return sum + (is_parameter ? n - at : 0);
}

/* Draws picture t of a group's K or V and encodes it. */
static enum kn_status picture(struct search *x, const struct kni_kv_host *view, const struct kni_chunk_meta *meta, const struct kni_tiles_geometry *g, uint32_t group,
                              uint32_t is_v, uint32_t t, struct kn_err *err)
{
    struct kni_tiles_ops ops = kni_tiles_ops_get(x->bed.kv.type, kni_cpu_flags());
    size_t plane_bytes = (size_t)g->width * g->height;
    const uint8_t *const in[3] = {x->planes, x->planes + plane_bytes, x->planes + 2 * plane_bytes};
    const size_t strides[3] = {g->width, g->width, g->width};
    for (uint32_t k = 0; k < 3; k++) {
        uint32_t layer = group * 3 + k;
        if (layer < x->bed.kv.n_layer)
            kni_tiles_draw(x->planes + k * plane_bytes, view, meta, g, layer, is_v, t, x->scales + ((size_t)layer * 2 + is_v) * meta->n_tokens, &ops);
        else
            memset(x->planes + k * plane_bytes, 128, plane_bytes);
    }
    return kni_hevc_encode_picture(x->encoder, in, strides, err);
}

/* Video bytes of one chunk in this tiling. */
static enum kn_status count_video(struct search *x, uint32_t first, const struct kni_tiling *tiling, bool intra, uint64_t *sum, struct kn_err *err)
{
    struct kni_kv_host view = kni_eval_bed_clean(&x->bed);
    struct kni_chunk_meta meta = meta_of(x, first);
    struct kni_tiles_geometry g;
    enum kn_status status = kni_tiles_geometry_make(&meta, tiling, &g, err);
    size_t plane_bytes = status == KN_OK ? (size_t)g.width * g.height : 0;
    if (plane_bytes > x->plane_bytes) {
        kni_free(x->planes);
        x->planes = kni_alloc(KNI_ALLOC_TAG_CODEC, 3 * plane_bytes, 64);
        x->plane_bytes = x->planes ? plane_bytes : 0;
        if (!x->planes)
            return kni_err_set(err, KN_E_NOMEM, "no memory for pictures of %u x %u", g.width, g.height);
    }
    for (uint32_t part = 0; part < x->bed.kv.n_layer * 2 && status == KN_OK; part++)
        for (uint32_t t = 0; t < meta.n_tokens; t++) {
            uint16_t scale = kni_tiles_scale(&view, part / 2, part % 2, first + t);
            if (scale >= kni_tiles_infinity(x->bed.kv.type))
                return kni_err_set(err, KN_E_UNSUPPORTED, "layer %u holds a value at position %u that is not finite", part / 2, first + t);
            x->scales[(size_t)part * meta.n_tokens + t] = scale;
        }
    for (uint32_t i = 0; status == KN_OK && i < g.n_groups * 2; i++) {
        uint32_t n_streams = intra ? g.n_pictures : 1, n_pictures = g.n_pictures / n_streams;
        for (uint32_t s = 0; s < n_streams && status == KN_OK; s++) {
            x->writer.used_bytes = 0;
            status = kni_hevc_encode_begin(x->encoder, g.width, g.height, n_pictures, NULL, err);
            for (uint32_t t = 0; t < n_pictures && status == KN_OK; t++)
                status = picture(x, &view, &meta, &g, i / 2, i % 2, s * n_pictures + t, err);
            if (status == KN_OK)
                status = kni_hevc_encode_end(x->encoder, &x->writer, err);
            if (status)
                break;
            size_t head = 4 + 4 * (size_t)n_pictures; /* the section's table: of s pictures, one number less for each stream after the first */
            *sum += x->writer.used_bytes;
            if (s)
                *sum -= 4 + parameter_bytes(x->writer.data + head, x->writer.used_bytes - head);
        }
    }
    return status;
}

static enum kn_status do_tiling(struct search *x, uint32_t height, uint32_t head_cols, struct kn_err *err)
{
    struct kni_chunk_meta meta = meta_of(x, first_sampled(x));
    struct kn_tiles_opts to = {.levels = x->opts.levels, .tile_height = height};
    struct kni_tiling tiling;
    enum kn_status status = kni_tiles_choose_cols(&meta, &to, head_cols, &tiling, err);
    if (status == KN_E_ARG)
        return KN_OK; /* a picture larger than any decoder takes */
    struct kn_search_row row = {.tile_height = height, .head_cols = head_cols, .tokens_per_picture = tiling.tokens_per_picture, .bytes = x->rest_bytes, .bytes_intra = x->rest_bytes};
    for (uint32_t first = first_sampled(x); first < x->bed.n_prefix && status == KN_OK; first += KNI_EVAL_CHUNK) {
        status = count_video(x, first, &tiling, false, &row.bytes, err);
        if (status == KN_OK)
            status = count_video(x, first, &tiling, true, &row.bytes_intra, err);
    }
    row.ratio = row.bytes ? (double)kni_kv_token_bytes(&x->bed.kv) * x->opts.sample_tokens / (double)row.bytes : 0;
    if (status == KN_OK)
        x->opts.on_row(x->opts.user, &row);
    return status;
}

static enum kn_status do_all(struct search *x, struct kn_err *err)
{
    const struct kni_kv_layout *l = &x->bed.kv;
    enum kn_status status = KN_OK;
    for (uint32_t height = 1; height <= l->d_head && status == KN_OK; height++)
        for (uint32_t cols = 1; cols <= l->n_kv_head && status == KN_OK; cols++) {
            if (l->d_head % height || l->n_kv_head % cols)
                continue;
            char phase[64];
            snprintf(phase, sizeof phase, "tile height %u, %u heads side by side", height, cols);
            if (x->opts.progress)
                x->opts.progress(x->opts.user, phase, (double)height / l->d_head);
            status = do_tiling(x, height, cols, err);
        }
    return status;
}

static enum kn_status check(struct kn_search_opts *o, const struct kn_model *model, const struct kn_search_opts *opts, struct kn_err *err)
{
    if (!model)
        return kni_err_set(err, KN_E_ARG, "kn_codec_search needs a model");
    enum kn_status status = KNI_OPTS_READ(o, opts, kn_search_opts, err);
    if (status)
        return status;
    o->sample_tokens = o->sample_tokens ? o->sample_tokens : DEFAULT_SAMPLE;
    o->levels = o->levels ? o->levels : DEFAULT_LEVELS;
    if (!o->on_row || !o->tokens)
        return kni_err_set(err, KN_E_ARG, "kn_codec_search needs tokens and an on_row");
    if (o->sample_tokens % KNI_EVAL_CHUNK)
        return kni_err_set(err, KN_E_ARG, "a sample of %u tokens: use a multiple of %u, the tokens of a chunk", o->sample_tokens, KNI_EVAL_CHUNK);
    if (o->levels < 4 || o->levels > 256)
        return kni_err_set(err, KN_E_ARG, "%u levels; use 4 to 256", o->levels);
    if (o->n_tokens / KNI_EVAL_CHUNK * KNI_EVAL_CHUNK < o->sample_tokens || o->n_tokens > UINT32_MAX)
        return kni_err_set(err, KN_E_ARG, "%zu tokens of text, but the sample wants %u: give a longer text", o->n_tokens, o->sample_tokens);
    return KN_OK;
}

enum kn_status kn_codec_search(struct kn_model *model, const struct kn_search_opts *opts, struct kn_err *err)
{
    struct search x = {0};
    enum kn_status status = check(&x.opts, model, opts, err);
    if (!status)
        status = KNI_OPTS_READ_OR_DEFAULT(&x.hevc, x.opts.hevc, kn_hevc_opts, err);
    if (status)
        return status;
    status = kni_hevc_encoder_open(&x.encoder, &x.hevc, KNI_HEVC_CONTENT_TILES, 0, err);
    if (status)
        return status;
    struct kni_eval_bed_opts bo = {.model = model,
                                   .n_prefix = (uint32_t)x.opts.n_tokens / KNI_EVAL_CHUNK * KNI_EVAL_CHUNK,
                                   .n_after = 1,
                                   .n_threads = x.opts.n_threads,
                                   .kv_type = x.opts.kv_type};
    status = kni_eval_bed_open(&x.bed, &bo, err);
    if (status == KN_OK) {
        x.scales = kni_alloc(KNI_ALLOC_TAG_CODEC, (size_t)x.bed.kv.n_layer * 2 * KNI_EVAL_CHUNK * sizeof *x.scales, 64);
        status = x.scales ? KN_OK : kni_err_set(err, KN_E_NOMEM, "no memory for scales");
    }
    if (status == KN_OK)
        status = kni_eval_bed_prefill(&x.bed, x.opts.tokens, x.opts.progress, x.opts.user, "prefix", err);
    if (status == KN_OK)
        status = count_rest(&x, err);
    if (status == KN_OK)
        status = do_all(&x, err);
    kni_hevc_encoder_close(&x.encoder);
    kni_container_writer_fini(&x.writer);
    kni_free(x.scales);
    kni_free(x.planes);
    kni_eval_bed_close(&x.bed);
    return status;
}
