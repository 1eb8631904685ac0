/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Layout exact: the pool's 16-bit values, bit for bit, whatever they are (NaN patterns included).
 *
 * Sign, exponent and the leading bits of the fraction repeat; the rest is noise. So each layer's K and each layer's V is
 * split into two byte planes and each plane is a zstd frame of its own:
 *
 *     section 2i   kind EXACT_LOW,  index i = layer * 2 + is_v : low bytes  [kv head][token][d_head]
 *     section 2i+1 kind EXACT_HIGH, index i                    : high bytes, same order
 *
 * The order is the pool's. Measured on SmolLM2 (256-token chunks, f16, level 1): ratio 1.179; channel by channel (tokens
 * consecutive) 1.169; that with deltas between tokens 1.150; rotating the sign into the low byte 1.178; levels 2 and 3
 * gain 0.001. The pool's order also keeps equal rows whole: first-layer values repeat with the token.
 *
 * Restoring goes section pair by section pair, so scratch is two planes of one layer. Owner: the codec handle.
 */
#include <string.h>
#include <zstd.h>

#include "base/alloc.h"
#include "codec/layout.h"

#define EXACT_LEVEL 1

struct kni_exact {
    ZSTD_CCtx *compressor;     /* NULL until the first encode */
    ZSTD_DCtx *decompressor;   /* NULL until the first restore */
    uint8_t *planes;           /* low bytes, then high bytes */
    size_t plane_bytes;        /* room for each */
    size_t counted_bytes;      /* told to kni_codec_working_add */
};

static enum kn_status make_state(struct kni_codec *codec, struct kn_err *err)
{
    if (!codec->exact)
        codec->exact = kni_calloc(KNI_ALLOC_TAG_CODEC, sizeof *codec->exact, 0);
    return codec->exact ? KN_OK : kni_err_set(err, KN_E_NOMEM, "no memory for the exact layout");
}

static void count_memory(struct kni_codec *codec)
{
    struct kni_exact *x = codec->exact;
    size_t now = sizeof *x + 2 * x->plane_bytes + ZSTD_sizeof_CCtx(x->compressor) + ZSTD_sizeof_DCtx(x->decompressor);
    kni_codec_working_add(codec, x->counted_bytes, now);
    x->counted_bytes = now;
}

static enum kn_status make_planes(struct kni_codec *codec, size_t plane_bytes, struct kn_err *err)
{
    enum kn_status s = make_state(codec, err);
    if (s != KN_OK)
        return s;
    struct kni_exact *x = codec->exact;
    if (plane_bytes > x->plane_bytes) {
        kni_free(x->planes);
        x->plane_bytes = 0;
        x->planes = kni_alloc(KNI_ALLOC_TAG_CODEC, 2 * plane_bytes, 64);
        if (!x->planes)
            return kni_err_set(err, KN_E_NOMEM, "no memory for byte planes of %zu bytes", plane_bytes);
        x->plane_bytes = plane_bytes;
    }
    return KN_OK;
}

static enum kn_status exact_open_encoder(struct kni_codec *codec, struct kn_err *err)
{
    enum kn_status s = make_state(codec, err);
    if (s != KN_OK)
        return s;
    struct kni_exact *x = codec->exact;
    x->compressor = ZSTD_createCCtx();
    if (!x->compressor)
        return kni_err_set(err, KN_E_NOMEM, "no memory for a zstd compressor");
    ZSTD_CCtx_setParameter(x->compressor, ZSTD_c_compressionLevel, EXACT_LEVEL);
    return KN_OK;
}

static enum kn_status exact_plan(const struct kni_codec *codec, struct kni_container_header *header, struct kn_err *err)
{
    (void)codec;
    (void)err;
    header->n_sections = header->meta.kv.n_layer * 4;
    return KN_OK;
}

/* Runs over one layer's K or V in plane order, 16 tokens x d_head at a time, which are contiguous in the pool. */
static void split_planes(const struct kni_kv_view *view, const struct kni_chunk_meta *m, uint32_t part, uint8_t *low, uint8_t *high)
{
    size_t run = (size_t)KNI_BLOCK_TOKENS * m->kv.d_head;
    for (uint32_t head = 0; head < m->kv.n_kv_head; head++)
        for (uint32_t t = 0; t < m->n_tokens; t += KNI_BLOCK_TOKENS, low += run, high += run) {
            const uint16_t *row = kni_kv_row(view, part / 2, part % 2, head, m->first_token + t);
            for (size_t i = 0; i < run; i++) {
                low[i] = (uint8_t)row[i];
                high[i] = (uint8_t)(row[i] >> 8);
            }
        }
}

static void join_planes(const struct kni_kv_view *view, const struct kni_chunk_meta *m, uint32_t part, const uint8_t *low, const uint8_t *high)
{
    size_t run = (size_t)KNI_BLOCK_TOKENS * m->kv.d_head;
    for (uint32_t head = 0; head < m->kv.n_kv_head; head++)
        for (uint32_t t = 0; t < m->n_tokens; t += KNI_BLOCK_TOKENS, low += run, high += run) {
            uint16_t *row = kni_kv_row(view, part / 2, part % 2, head, m->first_token + t);
            for (size_t i = 0; i < run; i++)
                row[i] = (uint16_t)(low[i] | high[i] << 8);
        }
}

/* Bytes of one plane, bounded by the container's field limits. false: does not fit. */
static bool plane_size(const struct kni_chunk_meta *m, size_t *bytes)
{
    size_t twice;
    return kni_mul_size((size_t)m->kv.n_kv_head * m->kv.d_head, m->n_tokens, bytes) && kni_mul_size(*bytes, 2, &twice);
}

static enum kn_status write_plane(struct kni_codec *codec, struct kni_container_writer *w, const uint8_t *plane, size_t n_bytes,
                                  enum kni_section_kind kind, uint32_t index, struct kn_err *err)
{
    size_t bound = ZSTD_compressBound(n_bytes);
    uint8_t *room = kni_container_writer_reserve(w, bound);
    if (!room)
        return kni_err_set(err, KN_E_NOMEM, "no memory for a coded chunk");
    size_t n = ZSTD_compress2(codec->exact->compressor, room, bound, plane, n_bytes);
    if (ZSTD_isError(n))
        return kni_err_set(err, KN_E_NOMEM, "zstd could not compress a plane: %s", ZSTD_getErrorName(n));
    kni_container_writer_commit(w, n);
    kni_container_writer_end_section(w, kind, index);
    return KN_OK;
}

static enum kn_status exact_encode(struct kni_codec *codec, const struct kni_kv_view *view, struct kni_container_writer *w, struct kn_err *err)
{
    const struct kni_chunk_meta *m = &w->header.meta;
    size_t n;
    if (!plane_size(m, &n))
        return kni_err_set(err, KN_E_ARG, "chunk too large");
    enum kn_status s = make_planes(codec, n, err);
    if (s != KN_OK)
        return s;
    uint8_t *low = codec->exact->planes, *high = low + n;
    for (uint32_t part = 0; s == KN_OK && part < m->kv.n_layer * 2; part++) {
        split_planes(view, m, part, low, high);
        s = write_plane(codec, w, low, n, KNI_SECTION_KIND_EXACT_LOW, part, err);
        if (s == KN_OK)
            s = write_plane(codec, w, high, n, KNI_SECTION_KIND_EXACT_HIGH, part, err);
    }
    count_memory(codec);
    return s;
}

static enum kn_status read_plane(struct kni_codec *codec, const struct kni_container *c, uint32_t section, uint8_t *plane, size_t n_bytes, struct kn_err *err)
{
    const uint8_t *bytes;
    size_t size;
    enum kni_section_kind kind = section % 2 ? KNI_SECTION_KIND_EXACT_HIGH : KNI_SECTION_KIND_EXACT_LOW;
    enum kn_status s = kni_container_expect(c, section, kind, section / 2, &bytes, &size, err);
    if (s != KN_OK)
        return s;
    size_t n = ZSTD_decompressDCtx(codec->exact->decompressor, plane, n_bytes, bytes, size);
    if (ZSTD_isError(n))
        return kni_err_set(err, KN_E_FORMAT, "chunk section %u does not decompress: %s", section, ZSTD_getErrorName(n));
    if (n != n_bytes)
        return kni_err_set(err, KN_E_FORMAT, "chunk section %u holds %zu values, expected %zu", section, n, n_bytes);
    return KN_OK;
}

static enum kn_status exact_restore(struct kni_codec *codec, const struct kni_container *c, const struct kni_kv_view *view, struct kn_err *err)
{
    const struct kni_chunk_meta *m = &c->header.meta;
    size_t n;
    const struct kni_tiling *t = &c->header.tiling;
    if (t->levels | t->tokens_per_picture | t->tile_height | t->head_cols | t->grid_cols)
        return kni_err_set(err, KN_E_FORMAT, "exact chunk with a tiling in its header");
    if (c->header.n_sections != m->kv.n_layer * 4 || !plane_size(m, &n))
        return kni_err_set(err, KN_E_FORMAT, "exact chunk of %u layers has %u sections", m->kv.n_layer, c->header.n_sections);
    enum kn_status s = make_planes(codec, n, err);
    if (s != KN_OK)
        return s;
    struct kni_exact *x = codec->exact;
    if (!x->decompressor && !(x->decompressor = ZSTD_createDCtx()))
        return kni_err_set(err, KN_E_NOMEM, "no memory for a zstd decompressor");
    uint8_t *low = x->planes, *high = low + n;
    for (uint32_t part = 0; s == KN_OK && part < m->kv.n_layer * 2; part++) {
        s = read_plane(codec, c, part * 2, low, n, err);
        if (s == KN_OK)
            s = read_plane(codec, c, part * 2 + 1, high, n, err);
        if (s == KN_OK)
            join_planes(view, m, part, low, high);
    }
    count_memory(codec);
    return s;
}

static void exact_close(struct kni_codec *codec)
{
    struct kni_exact *x = codec->exact;
    if (!x)
        return;
    ZSTD_freeCCtx(x->compressor);
    ZSTD_freeDCtx(x->decompressor);
    kni_free(x->planes);
    kni_free(x);
    codec->exact = NULL;
}

const struct kni_layout_ops kni_layout_exact = {
    .layout = KNI_LAYOUT_ID_EXACT,
    .backend = KNI_BACKEND_ID_ZSTD,
    .preset = KN_PRESET_EXACT,
    .name = "exact",
    .open_encoder = exact_open_encoder,
    .plan = exact_plan,
    .encode = exact_encode,
    .restore = exact_restore,
    .close = exact_close,
};
