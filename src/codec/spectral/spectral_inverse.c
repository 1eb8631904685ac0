/* SPDX-License-Identifier: Apache-2.0 */
/*
 * From symbols to K and V. Three passes:
 *
 *     check    all symbols once: exponents in range, escapes as many and as large as their symbols say; counts per token
 *     list     a tile's symbols that are not zero, as (row, value) lists, one a token (spectral_ops.h)
 *     mix      64 columns of the basis at a time: lists times strip, plus mean; a piece's heads are scaled, rotated and stored
 *
 * Nothing is written to the pool before the whole matrix is checked. The tile is 256 tokens, or half of that when the lists of
 * as many would not fit: a list of 128 tokens with no zero at all does.
 */
#include "codec/spectral/spectral_state.h"

#include <assert.h>
#include <math.h>
#include <string.h>

static enum kn_status read_exponents(struct kni_spectral *s, const struct kni_profile_part *part, const uint8_t *symbols, size_t stride, uint32_t n_tokens)
{
    for (uint32_t l = 0; l < part->n_layers; l++)
        for (uint32_t t = 0; t < n_tokens; t++) {
            int32_t e = symbols[l * stride + t] - 128 + part->exponent[l];
            if (!symbols[l * stride + t] || e < KNI_SPECTRAL_EXPONENT_MIN || e > KNI_SPECTRAL_EXPONENT_MAX)
                return KN_E_FORMAT;
            s->scales[(size_t)l * s->max_tokens + t] = kni_spectral_scale(e - (part->gain ? part->gain[l] : 0));
        }
    return KN_OK;
}

/* Whether escape number i is there and is one of this symbol. */
static bool escape_fits(const struct kni_escapes *escapes, uint32_t i, uint8_t symbol)
{
    return i < escapes->n && (symbol == 1 ? escapes->values[i] <= -127 : escapes->values[i] >= 127);
}

/* Counts what is not zero and what is an escape. */
static enum kn_status read_rows(struct kni_spectral *s, const uint8_t *symbols, size_t stride, uint32_t n_rows, uint32_t n_tokens, const struct kni_escapes *escapes)
{
    uint32_t n_escapes = 0;
    memset(s->counts, 0, n_tokens * sizeof *s->counts);
    for (uint32_t row = 0; row < n_rows; row++) {
        const uint8_t *p = symbols + row * stride;
        s->row_escapes[row] = n_escapes;
        s->escaped[row] = s->ops.scan(p, s->counts, n_tokens) > 0;
        if (!s->escaped[row])
            continue;
        for (uint32_t t = 0; t < n_tokens; t++)
            if (!p[t] || ((p[t] == 1 || p[t] == 255) && !escape_fits(escapes, n_escapes++, p[t])))
                return KN_E_FORMAT;
    }
    return n_escapes == escapes->n ? KN_OK : KN_E_FORMAT;
}

/* Tokens from t0 on whose entries fit. */
static uint32_t choose_tile(struct kni_spectral *s, uint32_t t0, uint32_t n_tokens, uint32_t width)
{
    uint32_t n = n_tokens - t0 < s->tile_tokens ? n_tokens - t0 : s->tile_tokens;
    size_t sum = 0, room = (size_t)s->half_tile * width;
    for (uint32_t t = 0; t < n; t++)
        sum += s->counts[t0 + t];
    return sum <= room ? n : (n / 2 + KNI_BLOCK_TOKENS - 1) / KNI_BLOCK_TOKENS * KNI_BLOCK_TOKENS;
}

/* A row of which some symbols are escapes. */
static void list_escaped(struct kni_spectral *s, const uint8_t *symbols, uint32_t row, uint32_t n, const float values[256], float step, const struct kni_escapes *escapes)
{
    for (uint32_t t = 0; t < n; t++) {
        if (symbols[t] == 128)
            continue;
        bool escaped = symbols[t] == 1 || symbols[t] == 255;
        float value = escaped ? (float)escapes->values[s->row_escapes[row]++] * step : values[symbols[t]];
        s->entries[s->next[t]++] = (struct kni_spectral_entry){row * KNI_SPECTRAL_STRIP, value};
    }
}

/* The lists of tokens t0 .. + n. values: what a symbol stands for. */
static void list_entries(struct kni_spectral *s, const uint8_t *symbols, size_t stride, uint32_t n_rows, uint32_t t0, uint32_t n, const float values[256],
                         float step, const struct kni_escapes *escapes)
{
    s->starts[0] = 0;
    for (uint32_t t = 0; t < n; t++) {
        s->next[t] = s->starts[t];
        s->starts[t + 1] = s->starts[t] + s->counts[t0 + t];
    }
    for (uint32_t row = 0; row < n_rows; row++) {
        const uint8_t *p = symbols + row * stride + t0;
        s->used[row] = true;
        if (s->escaped[row])
            list_escaped(s, p, row, n, values, step, escapes);
        else
            s->used[row] = s->ops.fill(p, n, row * KNI_SPECTRAL_STRIP, values, s->entries, s->next);
    }
    memset(s->entries + s->starts[n], 0, KNI_SPECTRAL_AHEAD * sizeof *s->entries);
}

static float limit_of(enum kn_kv_type type)
{
    return type == KN_KV_TYPE_F16 ? 65504.0f : 0x1.fep127f;
}

/* Heads of a piece, all tokens of a tile, from s->x to the pool. */
static void store_piece(struct kni_spectral *s, const struct kni_kv_host *view, const struct kni_profile_part *part, bool is_v, uint32_t col0, uint32_t n_cols,
                        uint32_t first_token, uint32_t t0, uint32_t n, uint32_t skip_tokens)
{
    const struct kni_kv_layout *l = &view->layout;
    const struct kni_profile_rope *rope = &s->profile->rope;
    uint32_t row_n = l->n_kv_head * l->d_head, n_pairs = rope->rope_dim / 2;
    float limit = limit_of(l->type);
    for (uint32_t c = col0; c < col0 + n_cols; c += l->d_head) {
        uint32_t in_group = c / row_n, layer = part->first_layer + in_group, head = c % row_n / l->d_head;
        const float *scales = s->scales + (size_t)in_group * s->max_tokens;
        for (uint32_t t = t0; t < t0 + n; t++) {
            if (first_token + t < skip_tokens)
                continue;
            float *x = s->x + (size_t)(t - t0) * s->piece_cols + (c - col0);
            bool large = s->ops.unscale(x, s->inv_weight + c, scales[t], limit * 0.5f, l->d_head); /* a rotation adds less than that */
            if (!is_v) {
                size_t at = ((size_t)rope->layers[layer] * s->max_tokens + t) * n_pairs;
                s->kernels.rope[rope->neox](x, s->cos_rows + at, s->sin_rows + at, n_pairs);
            }
            for (uint32_t i = 0; i < l->d_head && large; i++)
                x[i] = fmaxf(-limit, fminf(limit, x[i]));
            s->kernels.to_half[l->type](kni_kv_row(view, layer, is_v, head, first_token + t), x, l->d_head);
        }
    }
}

static void mix_tile(struct kni_spectral *s, const struct kni_kv_host *view, const struct kni_profile_part *part, bool is_v, uint32_t n_rows,
                     uint32_t first_token, uint32_t t0, uint32_t n, uint32_t skip_tokens)
{
    uint32_t piece = s->piece_heads * view->layout.d_head;
    for (uint32_t c0 = 0; c0 < part->width; c0 += piece) {
        uint32_t n_cols = part->width - c0 < piece ? part->width - c0 : piece;
        for (uint32_t c = 0; c < n_cols; c += KNI_SPECTRAL_STRIP) {
            uint32_t cols = n_cols - c < KNI_SPECTRAL_STRIP ? n_cols - c : KNI_SPECTRAL_STRIP;
            s->ops.gather(&(struct kni_spectral_gather_args){.basis = part->basis + c0 + c, .width = part->width, .n_rows = n_rows, .n_cols = cols,
                .used = s->used, .strip = s->strip});
            s->ops.mix(&(struct kni_spectral_mix_args){.strip = s->strip, .mean = s->mean + c0 + c, .entries = s->entries, .starts = s->starts,
                .n_tokens = n, .x = s->x + c, .ldx = s->piece_cols});
        }
        store_piece(s, view, part, is_v, c0, n_cols, first_token, t0, n, skip_tokens);
    }
}

enum kn_status kni_spectral_inverse(struct kni_spectral *s, const struct kni_kv_host *view, uint32_t first_token, uint32_t n_tokens, uint32_t part_id,
                                    enum kni_profile_preset preset, const uint8_t *symbols, size_t stride, const struct kni_escapes *escapes,
                                    uint32_t skip_tokens)
{
    kni_spectral_check_call(s, view, first_token, n_tokens, part_id, preset);
    const struct kni_profile_part *part = &s->profile->parts[part_id];
    const uint8_t *coefs = symbols + part->n_layers * stride;
    uint32_t n_rows = part->rows[preset];
    float step = part->step[preset], values[256];
    if (read_exponents(s, part, symbols, stride, n_tokens) != KN_OK || read_rows(s, coefs, stride, n_rows, n_tokens, escapes) != KN_OK)
        return KN_E_FORMAT;
    if (!(part_id & 1))
        kni_spectral_turn(s, first_token, n_tokens, 1.0f);
    for (int i = 0; i < 256; i++)
        values[i] = (float)(i - 128) * step;
    for (uint32_t c = 0; c < part->width; c++) {
        s->mean[c] = part->mean[c];
        s->inv_weight[c] = 1.0f / part->weight[c];
    }
    memset(s->mean + part->width, 0, KNI_SPECTRAL_STRIP * sizeof *s->mean);
    for (uint32_t t0 = 0, n; t0 < n_tokens; t0 += n) {
        n = choose_tile(s, t0, n_tokens, part->width);
        list_entries(s, coefs, stride, n_rows, t0, n, values, step, escapes);
        mix_tile(s, view, part, part_id & 1, n_rows, first_token, t0, n, skip_tokens);
    }
    return KN_OK;
}
