/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Layout tiles: KVCodec's token tiles (tiles.h) as lossless HEVC. "Lossless" is said of the integers: the 16-bit values
 * come back rounded to the quantiser's levels.
 *
 *     section 0        kind TILES_SCALE, index 0: zstd of the scales' low bytes, then high bytes, each [layer][K, V][token]
 *     section 1 + i    kind TILES_VIDEO, index i = group * 2 + is_v: HEVC pictures of layers 3 group .. 3 group + 2
 *
 * Restoring goes picture by picture: a decoded picture is dequantised into the pool at once, so the memory held is the
 * scales and a few pictures. Finite scales give finite values; encoding is asked for no others.
 * Owner: the codec handle.
 */
#include <assert.h>
#include <string.h>
#include <zstd.h>

#include "base/alloc.h"
#include "base/cpu.h"
#include "base/le.h"
#include "codec/hevc/hevc_decode.h"
#include "codec/hevc/hevc_encode.h"
#include "codec/layout.h"
#include "codec/tiles/tiles.h"

#define SCALE_LEVEL 3

struct kni_tiles {
    struct kni_hevc_encoder *encoder; /* NULL in handles that only restore */
    struct kni_hevc_decoder *decoder;
    uint16_t *scales;     /* [layer][K, V][token] of the current chunk */
    uint8_t *scale_bytes; /* the same as two byte planes */
    size_t n_scales;      /* room in both */
    uint8_t *planes;      /* three, for encoding */
    size_t plane_bytes;
    size_t counted_bytes;
};

static enum kn_status make_state(struct kni_codec *codec, struct kn_err *err)
{
    if (!codec->tiles)
        codec->tiles = kni_calloc(KNI_ALLOC_TAG_CODEC, sizeof *codec->tiles, 0);
    return codec->tiles ? KN_OK : kni_err_set(err, KN_E_NOMEM, "no memory for the tiles layout");
}

static void count_memory(struct kni_codec *codec)
{
    struct kni_tiles *x = codec->tiles;
    size_t now = sizeof *x + x->n_scales * 4 + x->plane_bytes * 3 + kni_hevc_encoder_bytes(x->encoder) + kni_hevc_decoder_bytes(x->decoder);
    kni_codec_working_add(codec, x->counted_bytes, now);
    x->counted_bytes = now;
}

static size_t scale_count(const struct kni_chunk_meta *m)
{
    return (size_t)m->kv.n_layer * 2 * m->n_tokens; /* at most 2^27, see bounds in container.h */
}

static enum kn_status make_scales(struct kni_codec *codec, const struct kni_chunk_meta *m, struct kn_err *err)
{
    enum kn_status s = make_state(codec, err);
    if (s != KN_OK)
        return s;
    struct kni_tiles *x = codec->tiles;
    size_t n = scale_count(m);
    if (n <= x->n_scales)
        return KN_OK;
    kni_free(x->scales);
    kni_free(x->scale_bytes);
    x->n_scales = 0;
    x->scales = kni_alloc(KNI_ALLOC_TAG_CODEC, n * 2, 64);
    x->scale_bytes = kni_alloc(KNI_ALLOC_TAG_CODEC, n * 2, 64);
    if (!x->scales || !x->scale_bytes)
        return kni_err_set(err, KN_E_NOMEM, "no memory for %zu scales", n);
    x->n_scales = n;
    return KN_OK;
}

static const uint16_t *scales_of(const struct kni_tiles *x, const struct kni_chunk_meta *m, uint32_t layer, uint32_t is_v)
{
    return x->scales + ((size_t)layer * 2 + is_v) * m->n_tokens;
}

/* ---- encoding */

static enum kn_status tiles_open_encoder(struct kni_codec *codec, struct kn_err *err)
{
    uint32_t levels = codec->tiles_opts.levels;
    if (levels && (levels < 4 || levels > 256))
        return kni_err_set(err, KN_E_ARG, "tiles: %u levels; use 4 to 256", levels);
    enum kn_status s = make_state(codec, err);
    return s == KN_OK ? kni_hevc_encoder_open(&codec->tiles->encoder, &codec->hevc, KNI_HEVC_CONTENT_TILES,
                                              codec->cpu_without, err) : s;
}

static enum kn_status tiles_plan(const struct kni_codec *codec, struct kni_container_header *header, struct kn_err *err)
{
    header->n_sections = 1 + (header->meta.kv.n_layer + 2) / 3 * 2;
    return kni_tiles_choose(&header->meta, &codec->tiles_opts, &header->tiling, err);
}

static enum kn_status write_scales(struct kni_codec *codec, const struct kni_kv_host *view, struct kni_container_writer *w, struct kn_err *err)
{
    const struct kni_chunk_meta *m = &w->header.meta;
    struct kni_tiles *x = codec->tiles;
    size_t n = scale_count(m), at = 0, bound = ZSTD_compressBound(n * 2);
    for (uint32_t part = 0; part < m->kv.n_layer * 2; part++)
        for (uint32_t t = 0; t < m->n_tokens; t++, at++) {
            uint16_t scale = kni_tiles_scale(view, part / 2, part % 2, m->first_token + t);
            assert(scale < kni_tiles_infinity(m->kv.type)); /* codec.c encodes finite values only */
            x->scales[at] = scale;
            x->scale_bytes[at] = (uint8_t)scale;
            x->scale_bytes[n + at] = (uint8_t)(scale >> 8);
        }
    uint8_t *room = kni_container_writer_reserve(w, bound);
    if (!room)
        return kni_err_set(err, KN_E_NOMEM, "no memory for a coded chunk");
    size_t size = ZSTD_compress(room, bound, x->scale_bytes, n * 2, SCALE_LEVEL);
    if (ZSTD_isError(size))
        return kni_err_set(err, KN_E_NOMEM, "zstd could not compress scales: %s", ZSTD_getErrorName(size));
    kni_container_writer_commit(w, size);
    kni_container_writer_end_section(w, KNI_SECTION_KIND_TILES_SCALE, 0);
    return KN_OK;
}

static enum kn_status write_stream(struct kni_codec *codec, const struct kni_kv_host *view, struct kni_container_writer *w,
                                   const struct kni_tiles_geometry *g, uint32_t group, uint32_t is_v, struct kn_err *err)
{
    const struct kni_chunk_meta *m = &w->header.meta;
    struct kni_tiles *x = codec->tiles;
    struct kni_tiles_ops ops = kni_tiles_ops_get(m->kv.type, kni_cpu_flags_without(codec->cpu_without));
    size_t plane_bytes = (size_t)g->width * g->height;
    uint8_t *const planes[3] = {x->planes, x->planes + plane_bytes, x->planes + 2 * plane_bytes};
    const uint8_t *const in[3] = {planes[0], planes[1], planes[2]};
    const size_t strides[3] = {g->width, g->width, g->width};
    enum kn_status s = kni_hevc_encode_begin(x->encoder, g->width, g->height, g->n_pictures, NULL, err);
    for (uint32_t t = 0; s == KN_OK && t < g->n_pictures; t++) {
        for (uint32_t k = 0; k < 3; k++) {
            uint32_t layer = group * 3 + k;
            if (layer < m->kv.n_layer)
                kni_tiles_draw(planes[k], view, m, g, layer, is_v, t, scales_of(x, m, layer, is_v), &ops);
            else
                memset(planes[k], 128, plane_bytes);
        }
        s = kni_hevc_encode_picture(x->encoder, in, strides, err);
    }
    if (s == KN_OK)
        s = kni_hevc_encode_end(x->encoder, w, err);
    if (s == KN_OK)
        kni_container_writer_end_section(w, KNI_SECTION_KIND_TILES_VIDEO, group * 2 + is_v);
    return s;
}

static enum kn_status tiles_encode(struct kni_codec *codec, const struct kni_kv_host *view, struct kni_container_writer *w, struct kn_err *err)
{
    const struct kni_chunk_meta *m = &w->header.meta;
    struct kni_tiles *x = codec->tiles;
    struct kni_tiles_geometry g;
    enum kn_status s = kni_tiles_geometry_make(m, &w->header.tiling, &g, err);
    if (s == KN_OK)
        s = make_scales(codec, m, err);
    size_t plane_bytes = s == KN_OK ? (size_t)g.width * g.height : 0;
    if (plane_bytes > x->plane_bytes) {
        kni_free(x->planes);
        x->plane_bytes = 0;
        x->planes = kni_alloc(KNI_ALLOC_TAG_CODEC, 3 * plane_bytes, 64);
        if (!x->planes)
            return kni_err_set(err, KN_E_NOMEM, "no memory for pictures of %u x %u", g.width, g.height);
        x->plane_bytes = plane_bytes;
    }
    if (s == KN_OK)
        s = write_scales(codec, view, w, err);
    for (uint32_t i = 0; s == KN_OK && i < g.n_groups * 2; i++)
        s = write_stream(codec, view, w, &g, i / 2, i % 2, err);
    count_memory(codec);
    return s;
}

/* ---- restoring */

static enum kn_status read_scales(struct kni_codec *codec, const struct kni_container *c, struct kn_err *err)
{
    const struct kni_chunk_meta *m = &c->header.meta;
    struct kni_tiles *x = codec->tiles;
    const uint8_t *bytes;
    size_t size, n = scale_count(m);
    enum kn_status s = kni_container_expect(c, 0, KNI_SECTION_KIND_TILES_SCALE, 0, &bytes, &size, err);
    if (s != KN_OK)
        return s;
    size_t got = ZSTD_decompress(x->scale_bytes, n * 2, bytes, size);
    if (ZSTD_isError(got) || got != n * 2)
        return kni_err_set(err, KN_E_FORMAT, "chunk section 0 does not hold %zu scales", n);
    uint16_t infinity = kni_tiles_infinity(m->kv.type);
    for (size_t i = 0; i < n; i++) {
        x->scales[i] = (uint16_t)(x->scale_bytes[i] | x->scale_bytes[n + i] << 8);
        if (x->scales[i] >= infinity)
            return kni_err_set(err, KN_E_FORMAT, "chunk scale %zu is not a finite magnitude", i);
    }
    return KN_OK;
}

struct restore_job {
    const struct kni_tiles *x;
    const struct kni_chunk_meta *meta;
    const struct kni_kv_host *view;
    const struct kni_tiles_geometry *g;
    struct kni_tiles_ops ops;
    uint32_t group, is_v;
};

static enum kn_status put_picture(void *user, uint32_t index, const uint8_t *const planes[3], const size_t strides[3], struct kn_err *err)
{
    const struct restore_job *j = user;
    enum kn_status s = KN_OK;
    for (uint32_t k = 0; s == KN_OK && k < 3 && j->group * 3 + k < j->meta->kv.n_layer; k++) {
        uint32_t layer = j->group * 3 + k;
        s = kni_tiles_scatter(planes[k], strides[k], j->view, j->meta, j->g, layer, j->is_v, index, scales_of(j->x, j->meta, layer, j->is_v), &j->ops, err);
    }
    return s;
}

static enum kn_status tiles_restore(struct kni_codec *codec, const struct kni_container *c, const struct kni_kv_host *view, struct kn_err *err)
{
    const struct kni_chunk_meta *m = &c->header.meta;
    struct kni_tiles_geometry g;
    enum kn_status s = kni_tiles_geometry_make(m, &c->header.tiling, &g, err);
    if (s != KN_OK)
        return s;
    if (c->header.n_sections != 1 + g.n_groups * 2)
        return kni_err_set(err, KN_E_FORMAT, "tiles chunk of %u layers has %u sections", m->kv.n_layer, c->header.n_sections);
    s = make_scales(codec, m, err);
    if (s != KN_OK)
        return s;
    struct kni_tiles *x = codec->tiles;
    s = read_scales(codec, c, err);
    struct kni_hevc_expect expect = {.width = g.width, .height = g.height, .n_pictures = g.n_pictures, .tools = c->header.tools};
    struct restore_job job = {.x = x, .meta = m, .view = view, .g = &g,
                              .ops = kni_tiles_ops_get(m->kv.type, kni_cpu_flags_without(codec->cpu_without))};
    for (uint32_t i = 0; s == KN_OK && i < g.n_groups * 2; i++) {
        const uint8_t *bytes;
        size_t size;
        s = kni_container_expect(c, 1 + i, KNI_SECTION_KIND_TILES_VIDEO, i, &bytes, &size, err);
        job.group = i / 2;
        job.is_v = i % 2;
        if (s == KN_OK)
            s = kni_hevc_decode_expect(&x->decoder, bytes, size, &expect, put_picture, &job, err);
    }
    count_memory(codec);
    return s;
}

static void tiles_close(struct kni_codec *codec)
{
    struct kni_tiles *x = codec->tiles;
    if (!x)
        return;
    kni_hevc_encoder_close(&x->encoder);
    kni_hevc_decoder_close(&x->decoder);
    kni_free(x->scales);
    kni_free(x->scale_bytes);
    kni_free(x->planes);
    kni_free(x);
    codec->tiles = NULL;
}

const struct kni_layout_ops kni_layout_tiles = {
    .layout = KNI_LAYOUT_ID_TILES,
    .backend = KNI_BACKEND_ID_HEVC,
    .preset = KN_PRESET_TILES,
    .name = "tiles",
    .open_encoder = tiles_open_encoder,
    .plan = tiles_plan,
    .encode = tiles_encode,
    .restore = tiles_restore,
    .estimate = kni_layout_estimate_flat,
    .close = tiles_close,
};
