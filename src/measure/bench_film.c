/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Drawing films. What the layouts do while they encode, without an encoder: the same geometry, the same functions that draw, so that
 * what is measured is what chunks hold.
 */
#include "measure/bench_film.h"

#include <math.h>
#include <string.h>

#include "base/alloc.h"
#include "base/cpu.h"
#include "codec/spectral/layout_spectral.h"
#include "codec/spectral/spectral_order.h"
#include "codec/tiles/tiles.h"

#define CHUNK KNI_EVAL_CHUNK

static struct kni_chunk_meta meta_of(const struct kni_eval_bed *bed, enum kn_preset preset, uint32_t chunk)
{
    return (struct kni_chunk_meta){.preset = preset, .first_token = chunk * CHUNK, .n_tokens = CHUNK, .kv = bed->kv};
}

static uint32_t drawn(const struct kni_film *f)
{
    return f->flat ? f->n_pictures / 2 : f->n_pictures;
}

static uint8_t *picture_at(const struct kni_film *f, uint32_t stream, uint32_t i)
{
    return f->samples + ((size_t)stream * drawn(f) + i) * 3 * f->width * f->height;
}

void kni_film_planes(const struct kni_film *f, uint32_t stream, uint32_t picture, const uint8_t *planes[3])
{
    const uint8_t *base = picture_at(f, stream, f->flat ? picture / 2 : picture);
    for (uint32_t k = 0; k < 3; k++)
        planes[k] = kni_film_is_flat(f, picture) ? f->flat : base + (size_t)k * f->width * f->height;
}

const uint16_t *kni_film_row_scale(const struct kni_film *f, uint32_t stream)
{
    return f->row_scale ? f->row_scale + (size_t)(stream / f->n_chunks) * f->height : NULL;
}

void kni_film_free(struct kni_film *f)
{
    kni_free(f->samples);
    kni_free(f->flat);
    kni_free(f->row_scale);
    *f = (struct kni_film){0};
}

struct compare { const struct kni_film *film; uint32_t stream; };

static enum kn_status on_picture(void *user, uint32_t index, const uint8_t *const planes[3], const size_t strides[3], struct kn_err *err)
{
    const struct compare *c = user;
    const uint8_t *want[3];
    kni_film_planes(c->film, c->stream, index, want);
    for (uint32_t k = 0; k < 3; k++)
        for (uint32_t y = 0; y < c->film->height; y++)
            if (memcmp(planes[k] + y * strides[k], want[k] + (size_t)y * c->film->width, c->film->width))
                return kni_err_set(err, KN_E_FORMAT, "picture %u differs in row %u of plane %u", index, y, k);
    return KN_OK;
}

enum kn_status kni_film_compare(const struct kni_film *f, uint32_t stream, const uint8_t *bytes, size_t n_bytes, struct kni_hevc_decoder **decoder,
                                struct kn_err *err)
{
    struct compare c = {.film = f, .stream = stream};
    return kni_hevc_decode(decoder, bytes, n_bytes, f->width, f->height, f->n_pictures, on_picture, &c, err);
}

static enum kn_status make_room(struct kni_film *f, struct kn_err *err)
{
    size_t plane = (size_t)f->width * f->height, n;
    bool ok = kni_mul_size(3 * plane, drawn(f), &n) && kni_mul_size(n, f->n_streams, &n);
    f->samples = ok ? kni_alloc(KNI_ALLOC_TAG_SCRATCH, n, 64) : NULL;
    return f->samples ? KN_OK : kni_err_set(err, KN_E_NOMEM, "no memory for %u streams of %u pictures of %u x %u", f->n_streams, drawn(f), f->width, f->height);
}

/* ---- spectral */

static double row_entropy_bytes(const uint8_t *row, uint32_t n)
{
    uint32_t counts[256] = {0};
    double bits = 0;
    for (uint32_t i = 0; i < n; i++)
        counts[row[i]]++;
    for (uint32_t s = 0; s < 256; s++)
        bits += counts[s] ? counts[s] * log2((double)n / counts[s]) : 0;
    return bits / 8;
}

/* Symbols and entropy of a stream's pictures: rows of the parts that are there, columns of tokens. */
static void count(struct kni_film *f, const struct kni_spectral_job *job, const struct kni_spectral_geometry *g, uint32_t stream, uint32_t is_v)
{
    for (uint32_t t = 0; t < g->n_pictures; t++) {
        const uint8_t *picture = picture_at(f, stream, t);
        uint32_t left = job->meta->n_tokens - t * g->tokens_per_picture, n_tokens = left < g->tokens_per_picture ? left : g->tokens_per_picture;
        for (uint32_t k = 0; k < 3; k++) {
            uint32_t part = (stream / f->n_chunks * 3 + k) * 2 + is_v;
            uint32_t n_rows = part < job->profile->n_parts ? kni_spectral_rows_of(job->profile, part, job->preset) : 0;
            f->n_symbols += (uint64_t)n_rows * n_tokens;
            for (uint32_t r = 0; r < n_rows; r++)
                f->entropy_bytes += row_entropy_bytes(picture + ((size_t)k * f->height + r) * f->width, n_tokens);
        }
    }
}

static enum kn_status draw_spectral(struct kni_film *f, const struct kni_eval_bed *bed, const struct kni_profile *profile, enum kn_preset preset, uint32_t is_v,
                                    bool text_order, struct kn_err *err)
{
    const struct kni_container_header header = {.meta = meta_of(bed, preset, 0), .tiling.tokens_per_picture = CHUNK};
    const struct kni_spectral_geometry g = kni_spectral_geometry_of(profile, &header, is_v);
    const struct kni_kv_host view = kni_eval_bed_clean(bed);
    struct kni_spectral_layout x = {0};
    uint8_t *order; /* noted nowhere: it travels apart from the pictures, as escapes do */
    f->content = KNI_HEVC_CONTENT_NOISE;
    f->width = g.width;
    f->height = g.height;
    f->n_pictures = 2 * g.n_pictures;
    f->n_streams = g.n_triples * f->n_chunks;
    f->flat = kni_alloc(KNI_ALLOC_TAG_SCRATCH, (size_t)g.width * g.height, 64);
    f->row_scale = kni_alloc(KNI_ALLOC_TAG_SCRATCH, (size_t)g.n_triples * g.height * sizeof *f->row_scale, 0);
    if (!f->flat || !f->row_scale)
        return kni_err_set(err, KN_E_NOMEM, "no memory for a picture of %u x %u", g.width, g.height);
    order = kni_alloc(KNI_ALLOC_TAG_SCRATCH, kni_spectral_order_bytes(profile->n_parts, CHUNK), 0);
    if (!order)
        return kni_err_set(err, KN_E_NOMEM, "no memory for the order of a chunk's columns");
    memset(f->flat, KNI_SPECTRAL_BLANK, (size_t)g.width * g.height);
    for (uint32_t i = 0; i < g.n_triples; i++)
        kni_spectral_row_scale(profile, is_v, kni_spectral_preset(preset), i, g.height, f->row_scale + (size_t)i * g.height);
    enum kn_status status = make_room(f, err);
    if (status == KN_OK)
        status = kni_spectral_open(&x.transform, profile, KNI_SPECTRAL_RUN, kni_cpu_flags(), err);
    for (uint32_t i = 0; status == KN_OK && i < f->n_streams; i++) {
        const struct kni_chunk_meta meta = meta_of(bed, preset, i % f->n_chunks);
        struct kni_spectral_job job = {.x = &x,
                                       .profile = profile,
                                       .meta = &meta,
                                       .view = &view,
                                       .preset = kni_spectral_preset(preset),
                                       .n_sinks = kni_spectral_n_sinks(profile, &meta),
                                       .order = text_order ? NULL : order};
        x.escape_used = 0; /* escapes travel apart from the pictures */
        for (uint32_t t = 0; status == KN_OK && t < g.n_pictures; t++)
            status = kni_spectral_draw(&job, &g, i / f->n_chunks, is_v, t, picture_at(f, i, t), err);
        if (status == KN_OK)
            count(f, &job, &g, i, is_v);
    }
    f->order_bytes = text_order ? 0 : f->n_chunks * kni_spectral_order_bytes(profile->n_parts, CHUNK) / 2; /* of K or V */
    kni_spectral_close(&x.transform);
    kni_free(x.escapes.values);
    kni_free(x.escape_bytes);
    kni_free(order);
    return status;
}

/* ---- tiles */

static enum kn_status draw_tiles(struct kni_film *f, const struct kni_eval_bed *bed, uint32_t is_v, struct kn_err *err)
{
    const struct kni_chunk_meta any = meta_of(bed, KN_PRESET_TILES, 0);
    const struct kni_tiles_ops ops = kni_tiles_ops_get(bed->kv.type, kni_cpu_flags());
    const struct kni_kv_host view = kni_eval_bed_clean(bed);
    struct kni_tiling tiling;
    struct kni_tiles_geometry g;
    enum kn_status status = kni_tiles_choose(&any, &(struct kn_tiles_opts){0}, &tiling, err);
    if (status == KN_OK)
        status = kni_tiles_geometry_make(&any, &tiling, &g, err);
    if (status)
        return status;
    f->content = KNI_HEVC_CONTENT_TILES;
    f->width = g.width;
    f->height = g.height;
    f->n_pictures = g.n_pictures;
    f->n_streams = g.n_groups * f->n_chunks;
    f->n_symbols = (uint64_t)bed->kv.n_layer * bed->kv.n_kv_head * bed->kv.d_head * CHUNK * f->n_chunks;
    status = make_room(f, err);
    for (uint32_t i = 0; status == KN_OK && i < f->n_streams * 3; i++) {
        const uint32_t stream = i / 3, k = i % 3, layer = stream / f->n_chunks * 3 + k;
        const struct kni_chunk_meta meta = meta_of(bed, KN_PRESET_TILES, stream % f->n_chunks);
        uint16_t scales[CHUNK];
        for (uint32_t t = 0; layer < bed->kv.n_layer && t < CHUNK; t++) {
            scales[t] = kni_tiles_scale(&view, layer, is_v, meta.first_token + t);
            if (scales[t] >= kni_tiles_infinity(bed->kv.type))
                return kni_err_set(err, KN_E_UNSUPPORTED, "layer %u holds a value at position %u that is not finite", layer, meta.first_token + t);
        }
        for (uint32_t t = 0; t < g.n_pictures; t++) {
            uint8_t *plane = picture_at(f, stream, t) + (size_t)k * g.width * g.height;
            if (layer < bed->kv.n_layer)
                kni_tiles_draw(plane, &view, &meta, &g, layer, is_v, t, scales, &ops);
            else
                memset(plane, 128, (size_t)g.width * g.height);
        }
    }
    return status;
}

enum kn_status kni_film_make(struct kni_film *f, const struct kni_eval_bed *bed, const struct kni_profile *profile, enum kn_preset preset, uint32_t is_v,
                             bool text_order, struct kn_err *err)
{
    *f = (struct kni_film){.n_chunks = bed->n_prefix / CHUNK};
    enum kn_status status = preset == KN_PRESET_TILES ? draw_tiles(f, bed, is_v, err) : draw_spectral(f, bed, profile, preset, is_v, text_order, err);
    if (status)
        kni_film_free(f);
    return status;
}
