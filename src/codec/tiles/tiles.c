/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Geometry and quantiser of the tiles layout; the header says what goes where. Plain loops over rows of a head's tile: the
 * video coder costs far more than these (measured: under 5 % of restoring). Any thread; the pool belongs to the caller.
 */
#include "codec/tiles/tiles.h"

#include <assert.h>
#include <string.h>

#include "base/cpu.h"
#include "base/half.h"
#include "codec/hevc/hevc_decode.h"
#include "codec/hevc/hevc_lossless.h"

static uint32_t pad_side(uint32_t n)
{
    return (n + KNI_TILES_PAD - 1) / KNI_TILES_PAD * KNI_TILES_PAD;
}

/* The divisor a of n for which a x b stays nearest to square when the tile is (a * unit_h) x (n / a * unit_w); ties go to
 * the lower tile. */
static uint32_t squarest(uint32_t n, uint32_t unit_w, uint32_t unit_h)
{
    uint32_t best = 1;
    uint64_t best_side = UINT64_MAX;
    for (uint32_t rows = 1; rows <= n; rows++) {
        if (n % rows)
            continue;
        uint64_t h = (uint64_t)rows * unit_h, w = (uint64_t)(n / rows) * unit_w, side = h > w ? h : w;
        if (side < best_side) {
            best_side = side;
            best = rows;
        }
    }
    return best;
}

/* Columns of tokens for which the padded picture has the least area, then the least longer side. */
static uint32_t choose_grid(uint32_t n_slots, uint32_t token_w, uint32_t token_h)
{
    uint32_t best = 1;
    uint64_t best_area = UINT64_MAX, best_side = UINT64_MAX;
    for (uint32_t cols = 1; cols <= n_slots; cols++) {
        uint64_t w = (uint64_t)cols * token_w, h = (uint64_t)((n_slots + cols - 1) / cols) * token_h;
        if (w > KNI_HEVC_MAX_SIDE || h > KNI_HEVC_MAX_SIDE)
            continue;
        uint64_t pw = pad_side((uint32_t)w), ph = pad_side((uint32_t)h), area = pw * ph, side = pw > ph ? pw : ph;
        if (area < best_area || (area == best_area && side < best_side)) {
            best_area = area;
            best_side = side;
            best = cols;
        }
    }
    return best;
}

/* The largest divisor of n_tokens that is at most want. */
static uint32_t divisor_at_most(uint32_t n_tokens, uint32_t want)
{
    uint32_t best = 1;
    for (uint32_t p = 1; p <= want && p <= n_tokens; p++)
        if (n_tokens % p == 0)
            best = p;
    return best;
}

enum kn_status kni_tiles_choose(const struct kni_chunk_meta *meta, const struct kn_tiles_opts *opts, struct kni_tiling *out, struct kn_err *err)
{
    return kni_tiles_choose_cols(meta, opts, 0, out, err);
}

enum kn_status kni_tiles_choose_cols(const struct kni_chunk_meta *meta, const struct kn_tiles_opts *opts, uint32_t head_cols, struct kni_tiling *out, struct kn_err *err)
{
    const struct kni_kv_layout *l = &meta->kv;
    uint32_t levels = opts->levels ? opts->levels : KNI_TILES_LEVELS;
    if (levels < 4 || levels > 256)
        return kni_err_set(err, KN_E_ARG, "tiles: %u levels; use 4 to 256", levels);
    uint32_t height = opts->tile_height ? opts->tile_height : squarest(l->d_head, 1, 1);
    if (l->d_head % height)
        return kni_err_set(err, KN_E_ARG, "tiles: tile height %u does not divide the head width %u", height, l->d_head);
    uint32_t per_picture = opts->tokens_per_picture ? opts->tokens_per_picture : divisor_at_most(meta->n_tokens, KNI_TILES_PER_PICTURE);
    if (meta->n_tokens % per_picture)
        return kni_err_set(err, KN_E_ARG, "tiles: %u tokens a picture do not divide a chunk of %u tokens", per_picture, meta->n_tokens);
    if (head_cols && l->n_kv_head % head_cols)
        return kni_err_set(err, KN_E_ARG, "tiles: %u heads side by side do not divide %u heads", head_cols, l->n_kv_head);
    uint32_t head_w = l->d_head / height, head_rows = head_cols ? l->n_kv_head / head_cols : squarest(l->n_kv_head, head_w, height);
    head_cols = l->n_kv_head / head_rows;
    *out = (struct kni_tiling){.levels = levels, .tokens_per_picture = per_picture, .tile_height = height, .head_cols = head_cols,
                               .grid_cols = choose_grid(per_picture, head_cols * head_w, head_rows * height)};
    struct kni_tiles_geometry g;
    if (kni_tiles_geometry_make(meta, out, &g, NULL) != KN_OK || kni_hevc_lossless_check_size(g.width, g.height, NULL) != KN_OK)
        return kni_err_set(err, KN_E_ARG, "tiles: %u tokens a picture of tile height %u make a picture larger than %u x %u or %u samples a plane; use fewer", per_picture, height,
                           KNI_HEVC_MAX_SIDE, KNI_HEVC_MAX_SIDE, KNI_HEVC_LOSSLESS_MAX_SAMPLES);
    return KN_OK;
}

enum kn_status kni_tiles_geometry_make(const struct kni_chunk_meta *meta, const struct kni_tiling *t, struct kni_tiles_geometry *g, struct kn_err *err)
{
    const struct kni_kv_layout *l = &meta->kv;
    if (t->levels < 4 || t->levels > 256)
        return kni_err_set(err, KN_E_FORMAT, "chunk header: %u levels", t->levels);
    if (!t->tokens_per_picture || meta->n_tokens % t->tokens_per_picture)
        return kni_err_set(err, KN_E_FORMAT, "chunk header: %u tokens a picture, %u tokens", t->tokens_per_picture, meta->n_tokens);
    if (!t->tile_height || l->d_head % t->tile_height || !t->head_cols || l->n_kv_head % t->head_cols)
        return kni_err_set(err, KN_E_FORMAT, "chunk header: tile height %u, %u heads side by side do not fit %u heads of width %u",
                           t->tile_height, t->head_cols, l->n_kv_head, l->d_head);
    if (!t->grid_cols || t->grid_cols > t->tokens_per_picture)
        return kni_err_set(err, KN_E_FORMAT, "chunk header: %u tokens side by side in a picture of %u", t->grid_cols, t->tokens_per_picture);
    memset(g, 0, sizeof *g);
    g->n_pictures = meta->n_tokens / t->tokens_per_picture;
    g->n_groups = (l->n_layer + 2) / 3;
    g->head_w = l->d_head / t->tile_height;
    g->head_h = t->tile_height;
    g->token_w = t->head_cols * g->head_w;
    g->token_h = l->n_kv_head / t->head_cols * g->head_h;
    g->grid_cols = t->grid_cols;
    g->grid_rows = (t->tokens_per_picture + t->grid_cols - 1) / t->grid_cols;
    g->m = (int32_t)(t->levels / 2) - 1;
    uint64_t w = (uint64_t)g->token_w * g->grid_cols, h = (uint64_t)g->token_h * g->grid_rows;
    if (w > KNI_HEVC_MAX_SIDE || h > KNI_HEVC_MAX_SIDE)
        return kni_err_set(err, KN_E_FORMAT, "chunk header: pictures of %llu x %llu", (unsigned long long)w, (unsigned long long)h);
    g->width = pad_side((uint32_t)w);
    g->height = pad_side((uint32_t)h);
    return KN_OK;
}

struct kni_tiles_ops kni_tiles_ops_get(enum kn_kv_type type, uint32_t cpu_flags)
{
    bool f16 = type == KN_KV_TYPE_F16;
#if defined(__x86_64__)
    if (cpu_flags & KNI_CPU_FLAG_AVX2)
        return f16 ? (struct kni_tiles_ops){kni_to_f16_avx2, kni_from_f16_avx2} : (struct kni_tiles_ops){kni_to_bf16_avx2, kni_from_bf16_avx2};
#endif
    return f16 ? (struct kni_tiles_ops){kni_to_f16_ref, kni_from_f16_ref} : (struct kni_tiles_ops){kni_to_bf16_ref, kni_from_bf16_ref};
}

uint16_t kni_tiles_infinity(enum kn_kv_type type)
{
    return kni_kv_infinity(type);
}

/* Without their sign, 16-bit floats order as integers. */
uint16_t kni_tiles_scale(const struct kni_kv_host *view, uint32_t layer, uint32_t is_v, uint32_t pos)
{
    uint16_t scale = 0;
    for (uint32_t head = 0; head < view->layout.n_kv_head; head++) {
        const uint16_t *row = kni_kv_row(view, layer, is_v, head, pos);
        for (uint32_t i = 0; i < view->layout.d_head; i++) {
            uint16_t a = row[i] & 0x7fff;
            scale = a > scale ? a : scale;
        }
    }
    return scale;
}

static float to_float(uint16_t x, enum kn_kv_type type)
{
    return type == KN_KV_TYPE_F16 ? kni_f16_to_f32(x) : kni_bf16_to_f32(x);
}

void kni_tiles_quantise(uint8_t *samples, const uint16_t *values, uint32_t n, uint16_t scale, int32_t m, const struct kni_tiles_ops *ops, enum kn_kv_type type)
{
    assert(n <= KNI_CONTAINER_MAX_D_HEAD && scale < kni_tiles_infinity(type));
    if (!scale) {
        memset(samples, 128, n);
        return;
    }
    float x[KNI_CONTAINER_MAX_D_HEAD], s = to_float(scale, type), levels = (float)m;
    ops->from_half(x, values, n);
    for (uint32_t i = 0; i < n; i++) { /* adding 1.5 * 2^23 rounds to an integer, ties to even, in the low bits */
        float y = x[i] / s * levels + 0x1.8p23f;
        samples[i] = (uint8_t)(kni_f32_bits(y) + 128u);
    }
}

void kni_tiles_table(uint16_t table[256], uint16_t scale, int32_t m, const struct kni_tiles_ops *ops, enum kn_kv_type type)
{
    float y[256], step = to_float(scale, type) / (float)m;
    int32_t n = 2 * m + 1;
    for (int32_t i = 0; i < n; i++)
        y[i] = (float)(i - m) * step;
    ops->to_half(table + 128 - m, y, (size_t)n);
}

/* First sample of a head's tile. */
static size_t tile_at(const struct kni_tiles_geometry *g, uint32_t slot, uint32_t head, size_t stride)
{
    uint32_t head_cols = g->token_w / g->head_w;
    size_t row = (size_t)(slot / g->grid_cols) * g->token_h + head / head_cols * g->head_h;
    size_t col = (size_t)(slot % g->grid_cols) * g->token_w + head % head_cols * g->head_w;
    return row * stride + col;
}

void kni_tiles_draw(uint8_t *plane, const struct kni_kv_host *view, const struct kni_chunk_meta *meta, const struct kni_tiles_geometry *g,
                    uint32_t layer, uint32_t is_v, uint32_t picture, const uint16_t *scales, const struct kni_tiles_ops *ops)
{
    uint8_t samples[KNI_CONTAINER_MAX_D_HEAD];
    uint32_t n_slots = meta->n_tokens / g->n_pictures;
    memset(plane, 128, (size_t)g->width * g->height);
    for (uint32_t slot = 0; slot < n_slots; slot++) {
        uint32_t token = slot * g->n_pictures + picture;
        for (uint32_t head = 0; head < meta->kv.n_kv_head; head++) {
            const uint16_t *row = kni_kv_row(view, layer, is_v, head, meta->first_token + token);
            kni_tiles_quantise(samples, row, meta->kv.d_head, scales[token], g->m, ops, meta->kv.type);
            uint8_t *tile = plane + tile_at(g, slot, head, g->width);
            for (uint32_t y = 0; y < g->head_h; y++)
                memcpy(tile + (size_t)y * g->width, samples + (size_t)y * g->head_w, g->head_w);
        }
    }
}

/* Whether all samples lie within 128 +- m. */
static bool in_range(const uint8_t *plane, size_t stride, const struct kni_tiles_geometry *g)
{
    uint8_t low = (uint8_t)(128 - g->m), worst = 0;
    for (uint32_t y = 0; y < g->height; y++)
        for (uint32_t x = 0; x < g->width; x++) {
            uint8_t above = (uint8_t)(plane[y * stride + x] - low);
            worst = above > worst ? above : worst;
        }
    return worst <= 2 * g->m;
}

enum kn_status kni_tiles_scatter(const uint8_t *plane, size_t stride, const struct kni_kv_host *view, const struct kni_chunk_meta *meta,
                                 const struct kni_tiles_geometry *g, uint32_t layer, uint32_t is_v, uint32_t picture, const uint16_t *scales,
                                 const struct kni_tiles_ops *ops, struct kn_err *err)
{
    uint16_t table[256] = {0};
    uint32_t n_slots = meta->n_tokens / g->n_pictures;
    if (!in_range(plane, stride, g))
        return kni_err_set(err, KN_E_FORMAT, "layer %u, picture %u holds a sample outside its %d levels", layer, picture, 2 * g->m + 1);
    for (uint32_t slot = 0; slot < n_slots; slot++) {
        uint32_t token = slot * g->n_pictures + picture;
        kni_tiles_table(table, scales[token], g->m, ops, meta->kv.type);
        for (uint32_t head = 0; head < meta->kv.n_kv_head; head++) {
            const uint8_t *tile = plane + tile_at(g, slot, head, stride);
            uint16_t *row = kni_kv_row(view, layer, is_v, head, meta->first_token + token);
            for (uint32_t y = 0; y < g->head_h; y++, tile += stride)
                for (uint32_t x = 0; x < g->head_w; x++)
                    *row++ = table[tile[x]];
        }
    }
    return KN_OK;
}
