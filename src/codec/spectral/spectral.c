/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The handle, its scratch, and the way from K and V to symbols. The way back is spectral_inverse.c.
 *
 * Forward, a tile of at most 256 tokens at a time:
 *
 *     pool --rows--> [16 tokens][width] --less mean, transposed--> panels [width][16 tokens] --basis--> y [96 rows][tokens] --> symbols
 *
 * The basis is the left side of the product, tokens the right: the result has the order of the symbols, [row][token], and the
 * basis is read as the profile has it, 96 rows by 512 columns made floats at a time. Nothing is packed and kept.
 *
 * Escapes are found tile by tile, but their order is that of the whole matrix; with more than one tile they are put in order at
 * the end (order_escapes).
 */
#include "codec/spectral/spectral_state.h"

#include <assert.h>
#include <string.h>

#include "base/alloc.h"
#include "base/cpu.h"
#include "base/pieces.h"

static void lay_out(struct kni_spectral *s, struct kni_pieces *p)
{
    const struct kni_profile_rope *rope = &s->profile->rope;
    size_t f = sizeof(float), tables = (size_t)rope->n_ropes * s->max_tokens, width = s->max_width;
    s->cos_rows = kni_piece_2d(p, tables, rope->rope_dim / 2, f);
    s->sin_rows = kni_piece_2d(p, tables, rope->rope_dim / 2, f);
    /* or, on the way back, entries, with some to read ahead */
    s->panels = kni_piece_2d(p, 2 * (size_t)s->half_tile + 1, width, f);
    s->entries = (struct kni_spectral_entry *)(void *)s->panels;
    s->x = kni_piece_2d(p, s->tile_tokens, s->piece_cols, f);
    s->tokens16 = kni_piece_2d(p, KNI_GEMM_PANEL, width, f);
    s->basis_floats = kni_piece_2d(p, KNI_SPECTRAL_BLOCK_ROWS, KNI_SPECTRAL_BLOCK_COLS, f);
    s->y = kni_piece_2d(p, KNI_SPECTRAL_BLOCK_ROWS, s->tile_tokens, f);
    s->strip = kni_piece_2d(p, s->max_rows, KNI_SPECTRAL_STRIP, sizeof(uint16_t));
    s->mean = kni_piece(p, width + KNI_SPECTRAL_STRIP, f);
    s->inv_weight = kni_piece(p, width, f);
    s->scales = kni_piece_2d(p, s->max_layers, s->max_tokens, f);
    s->counts = kni_piece(p, s->max_tokens, sizeof(uint16_t));
    s->starts = kni_piece(p, s->tile_tokens + 1, sizeof(uint32_t));
    s->next = kni_piece(p, s->tile_tokens, sizeof(uint32_t));
    s->row_escapes = kni_piece(p, s->max_rows, sizeof(uint32_t));
    s->used = kni_piece(p, s->max_rows, 1);
    s->escaped = kni_piece(p, s->max_rows, 1);
}

static uint32_t gcd(uint32_t a, uint32_t b)
{
    while (b) {
        uint32_t r = a % b;
        a = b;
        b = r;
    }
    return a;
}

enum kn_status kni_spectral_open(struct kni_spectral **out, const struct kni_profile *profile, uint32_t max_tokens,
                                 uint32_t cpu_flags, struct kn_err *err)
{
    enum kn_status status = KN_E_NOMEM;
    assert(max_tokens && max_tokens % KNI_BLOCK_TOKENS == 0);
    struct kni_spectral *s = kni_calloc(KNI_ALLOC_TAG_CODEC, sizeof *s, 64);
    if (!s)
        goto done;
    s->profile = profile;
    s->max_tokens = max_tokens;
    s->tile_tokens = max_tokens < KNI_SPECTRAL_TILE ? max_tokens : KNI_SPECTRAL_TILE;
    s->half_tile = (s->tile_tokens / 2 + KNI_BLOCK_TOKENS - 1) / KNI_BLOCK_TOKENS * KNI_BLOCK_TOKENS;
    for (uint32_t i = 0; i < profile->n_parts; i++) {
        const struct kni_profile_part *p = &profile->parts[i];
        s->max_width = p->width > s->max_width ? p->width : s->max_width;
        s->max_rows = p->n_rows > s->max_rows ? p->n_rows : s->max_rows;
        s->max_layers = p->n_layers > s->max_layers ? p->n_layers : s->max_layers;
    }
    uint32_t d = profile->kv.d_head;
    s->piece_heads = KNI_SPECTRAL_STRIP / gcd(KNI_SPECTRAL_STRIP, d);
    if (s->piece_heads > s->max_width / d)
        s->piece_heads = s->max_width / d;
    s->piece_cols = (s->piece_heads * d + KNI_SPECTRAL_STRIP - 1) / KNI_SPECTRAL_STRIP * KNI_SPECTRAL_STRIP;
    kni_kernels_init(&s->kernels, cpu_flags);
    kni_spectral_ops_init(&s->ops, cpu_flags);
    struct kni_pieces p = {0};
    lay_out(s, &p);
    s->memory = p.overflow ? NULL : kni_alloc(KNI_ALLOC_TAG_CODEC, p.used, 64);
    if (!s->memory)
        goto done;
    s->bytes = sizeof *s + p.used;
    p = (struct kni_pieces){.base = s->memory};
    lay_out(s, &p);
    *out = s;
    s = NULL;
    status = KN_OK;
done:
    kni_spectral_close(&s);
    if (status == KN_E_NOMEM)
        kni_err_set(err, status, "spectral: no memory for the scratch of %u tokens; use smaller chunks", max_tokens);
    return status;
}

void kni_spectral_close(struct kni_spectral **s)
{
    if (!*s)
        return;
    kni_free((*s)->memory);
    kni_free(*s);
    *s = NULL;
}

size_t kni_spectral_bytes(const struct kni_spectral *s)
{
    return s->bytes;
}

/* Parts of a chunk follow each other with the same positions: the tables stay. */
void kni_spectral_turn(struct kni_spectral *s, uint32_t first_token, uint32_t n_tokens, float sign)
{
    const struct kni_profile_rope *rope = &s->profile->rope;
    if (s->turn_first == first_token && s->turn_n >= n_tokens && s->turn_sign == sign)
        return;
    uint32_t n_pairs = rope->rope_dim / 2;
    for (uint32_t r = 0; r < rope->n_ropes; r++)
        for (uint32_t t = 0; t < n_tokens; t++) {
            size_t at = ((size_t)r * s->max_tokens + t) * n_pairs;
            kni_rope_table(s->cos_rows + at, s->sin_rows + at, first_token + t, n_pairs, rope->freqs + (size_t)r * n_pairs);
            for (uint32_t i = 0; i < n_pairs; i++)
                s->sin_rows[at + i] *= sign;
        }
    s->turn_first = first_token;
    s->turn_n = n_tokens;
    s->turn_sign = sign;
}

void kni_spectral_check_call(const struct kni_spectral *s, const struct kni_kv_host *view, uint32_t first_token, uint32_t n_tokens, uint32_t part,
                             enum kni_profile_preset preset)
{
    const struct kni_kv_layout *a = &view->layout, *b = &s->profile->kv;
    assert(a->n_layer == b->n_layer && a->n_kv_head == b->n_kv_head && a->d_head == b->d_head);
    assert(n_tokens && n_tokens % KNI_BLOCK_TOKENS == 0 && first_token % KNI_BLOCK_TOKENS == 0 && n_tokens <= s->max_tokens);
    assert((uint64_t)first_token + n_tokens <= (uint64_t)view->n_blocks * KNI_BLOCK_TOKENS);
    assert(part < s->profile->n_parts && preset < KNI_PROFILE_N_PRESETS && s->profile->parts[part].rows[preset] <= s->profile->parts[part].n_rows);
    (void)a, (void)b;
}

static enum kn_status escapes_reserve(struct kni_escapes *e, size_t n)
{
    if (n <= e->capacity)
        return KN_OK;
    size_t capacity = e->capacity ? e->capacity : 64, bytes;
    while (capacity < n)
        capacity *= 2;
    int32_t *grown = capacity <= UINT32_MAX && kni_mul_size(capacity, sizeof *grown, &bytes) ? kni_realloc(KNI_ALLOC_TAG_CODEC, e->values, bytes) : NULL;
    if (!grown)
        return KN_E_NOMEM;
    e->values = grown;
    e->capacity = (uint32_t)capacity;
    return KN_OK;
}

/* A tile's tokens, 16 at a time, to panels; their exponents to symbols. */
static void draw_panels(struct kni_spectral *s, const struct kni_kv_host *view, uint32_t first_token, uint32_t token0, uint32_t n, uint32_t part_id,
                        uint8_t *symbols, size_t stride)
{
    const struct kni_profile_part *part = &s->profile->parts[part_id];
    const struct kni_profile_rope *rope = &s->profile->rope;
    uint32_t is_v = part_id & 1, row_n = part->width / part->n_layers, n_pairs = rope->rope_dim / 2;
    for (uint32_t t = token0; t < token0 + n; t++) {
        float *x = s->tokens16 + (size_t)(t % KNI_GEMM_PANEL) * part->width;
        for (uint32_t l = 0; l < part->n_layers; l++, x += row_n) {
            size_t at = is_v ? 0 : ((size_t)rope->layers[part->first_layer + l] * s->max_tokens + t) * n_pairs, c = (size_t)l * row_n;
            struct kni_spectral_row_args a = {.kernels = &s->kernels, .ops = &s->ops, .view = view, .layer = part->first_layer + l, .is_v = is_v,
                .pos = first_token + t, .neox = rope->neox, .n_pairs = n_pairs, .cos_row = is_v ? NULL : s->cos_rows + at, .sin_row = s->sin_rows + at,
                .weight = part->weight + c, .x = x};
            int32_t e = kni_spectral_row(&a) - part->exponent[l];
            e = e < -127 ? -127 : e > 127 ? 127 : e;
            symbols[l * stride + t] = (uint8_t)(128 + e);
            s->ops.centre(x, part->mean + c, kni_spectral_scale((part->gain ? part->gain[l] : 0) - (e + part->exponent[l])), row_n); /* by what the other side will know */
        }
        if (t % KNI_GEMM_PANEL == KNI_GEMM_PANEL - 1)
            s->kernels.pack16(s->panels + (size_t)((t - token0) / KNI_GEMM_PANEL) * KNI_GEMM_PANEL * part->width, s->tokens16, part->width, part->width);
    }
}

/* y of some rows of the basis, for all of a tile's n tokens: s->y[rows][tile_tokens]. */
static void project(struct kni_spectral *s, const struct kni_profile_part *part, uint32_t row0, uint32_t n_rows, uint32_t n)
{
    uint32_t at_once = s->kernels.cpu_flags & KNI_CPU_FLAG_AVX512 ? 2 * KNI_GEMM_PANEL : KNI_GEMM_PANEL; /* as wide as the kernel's tiles */
    for (uint32_t c0 = 0; c0 < part->width; c0 += KNI_SPECTRAL_BLOCK_COLS) {
        uint32_t k = part->width - c0 < KNI_SPECTRAL_BLOCK_COLS ? part->width - c0 : KNI_SPECTRAL_BLOCK_COLS;
        for (uint32_t i = 0; i < n_rows; i++)
            s->kernels.from_half[KN_KV_TYPE_BF16](s->basis_floats + (size_t)i * k, part->basis + (size_t)(row0 + i) * part->width + c0, k);
        for (uint32_t t = 0; t < n; t += at_once)
            s->kernels.gemm(&(struct kni_gemm_args){.m = n_rows, .n = n - t < at_once ? n - t : at_once, .k = k, .a = s->basis_floats, .lda = k,
                .b = s->panels + (size_t)t * part->width + (size_t)c0 * KNI_GEMM_PANEL, .ldb = KNI_GEMM_PANEL,
                .panel_stride = (size_t)part->width * KNI_GEMM_PANEL, .c = s->y + t, .ldc = s->tile_tokens, .accumulate = c0});
    }
}

static enum kn_status quantise_row(struct kni_spectral *s, const float *y, float inv_step, uint8_t *symbols, uint32_t n, struct kni_escapes *escapes)
{
    uint32_t n_escapes = s->ops.quantise(symbols, y, inv_step, n);
    if (!n_escapes)
        return KN_OK;
    if (escapes_reserve(escapes, (size_t)escapes->n + n_escapes) != KN_OK)
        return KN_E_NOMEM;
    for (uint32_t t = 0; t < n; t++)
        if (symbols[t] == 1 || symbols[t] == 255)
            escapes->values[escapes->n++] = kni_spectral_round(y[t], inv_step);
    return KN_OK;
}

static uint32_t count_escapes(const uint8_t *symbols, uint32_t n)
{
    uint32_t count = 0;
    for (uint32_t t = 0; t < n; t++)
        count += symbols[t] == 1 || symbols[t] == 255;
    return count;
}

/* From [tile][row][token in tile] to [row][token]: the old list is read from a copy behind the new one. */
static enum kn_status order_escapes(const struct kni_spectral *s, const uint8_t *symbols, size_t stride, uint32_t n_rows, uint32_t n_tokens, struct kni_escapes *e)
{
    uint32_t n = e->n, *next = s->row_escapes; /* of each row: where its next escape goes */
    if (n_tokens <= s->tile_tokens || !n)
        return KN_OK;
    if (escapes_reserve(e, 2 * (size_t)n) != KN_OK)
        return KN_E_NOMEM;
    memcpy(e->values + n, e->values, n * sizeof *e->values);
    const int32_t *old = e->values + n;
    for (uint32_t row = 0, at = 0; row < n_rows; row++) {
        next[row] = at;
        at += count_escapes(symbols + row * stride, n_tokens);
    }
    for (uint32_t t0 = 0; t0 < n_tokens; t0 += s->tile_tokens)
        for (uint32_t row = 0; row < n_rows; row++) {
            uint32_t m = count_escapes(symbols + row * stride + t0, n_tokens - t0 < s->tile_tokens ? n_tokens - t0 : s->tile_tokens);
            memcpy(e->values + next[row], old, m * sizeof *old);
            next[row] += m;
            old += m;
        }
    return KN_OK;
}

enum kn_status kni_spectral_forward(struct kni_spectral *s, const struct kni_kv_host *view, uint32_t first_token, uint32_t n_tokens, uint32_t part_id,
                                    enum kni_profile_preset preset, uint8_t *symbols, size_t stride, struct kni_escapes *escapes)
{
    kni_spectral_check_call(s, view, first_token, n_tokens, part_id, preset);
    const struct kni_profile_part *part = &s->profile->parts[part_id];
    uint32_t n_rows = part->rows[preset];
    float inv_step = 1.0f / part->step[preset];
    uint8_t *coefs = symbols + part->n_layers * stride;
    escapes->n = 0;
    if (!(part_id & 1))
        kni_spectral_turn(s, first_token, n_tokens, -1.0f);
    for (uint32_t t0 = 0; t0 < n_tokens; t0 += s->tile_tokens) {
        uint32_t n = n_tokens - t0 < s->tile_tokens ? n_tokens - t0 : s->tile_tokens;
        draw_panels(s, view, first_token, t0, n, part_id, symbols, stride);
        for (uint32_t row0 = 0; row0 < n_rows; row0 += KNI_SPECTRAL_BLOCK_ROWS) {
            uint32_t rows = n_rows - row0 < KNI_SPECTRAL_BLOCK_ROWS ? n_rows - row0 : KNI_SPECTRAL_BLOCK_ROWS;
            project(s, part, row0, rows, n);
            for (uint32_t i = 0; i < rows; i++)
                if (quantise_row(s, s->y + (size_t)i * s->tile_tokens, inv_step, coefs + (row0 + i) * stride + t0, n, escapes) != KN_OK)
                    return KN_E_NOMEM;
        }
    }
    return order_escapes(s, coefs, stride, n_rows, n_tokens, escapes);
}
