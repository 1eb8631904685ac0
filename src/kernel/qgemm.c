/* SPDX-License-Identifier: Apache-2.0 */
/* The reference: unpacks each block and sums in the order that qgemm.h promises. Built without contraction of a * b + c. */
#include "kernel/qgemm.h"

#include <math.h>
#include <string.h>

#define COLS KNI_PANEL_COLS

void kni_quantise_ref(struct kni_xblock *dst, const float *x, size_t n_blocks)
{
    for (size_t b = 0; b < n_blocks; b++, dst++, x += 32) {
        uint32_t max_bits = 0; /* of |x| as an integer: orders like the float, with NaN above infinity */
        for (unsigned i = 0; i < 32; i++) {
            uint32_t bits;
            memcpy(&bits, &x[i], 4);
            bits &= 0x7fffffffu;
            max_bits = bits > max_bits ? bits : max_bits;
        }
        float max;
        memcpy(&max, &max_bits, 4);
        *dst = (struct kni_xblock){.d = 0};
        if (max_bits >= 0x7f800000u)
            dst->d = dst->s = nanf("");
        if (max_bits >= 0x7f800000u || max < 0x1p-100f)
            continue;
        float inverse = 32767.0f / max;
        for (unsigned i = 0; i < 32; i++) {
            dst->q[i] = (int16_t)lrintf(x[i] * inverse);
            dst->sum[i / 16] += dst->q[i];
        }
        dst->d = max / 32767.0f;
        dst->s = dst->d * (float)(dst->sum[0] + dst->sum[1]);
    }
}

/* One row against one panel's chunk. */
static void row_ref(const struct kni_qgemm_scratch *s, const struct kni_xblock *x, uint32_t n_blocks, bool split, bool has_min, float acc[COLS])
{
    for (uint32_t b = 0; b < n_blocks; b++) {
        const int16_t *w = s->values + (size_t)b * 32 * COLS;
        int32_t sum[2][COLS] = {{0}};
        for (uint32_t i = 0; i < 16; i++)
            for (uint32_t c = 0; c < COLS; c++)
                sum[i / 8][c] += w[(i * COLS + c) * 2] * x[b].q[2 * i] + w[(i * COLS + c) * 2 + 1] * x[b].q[2 * i + 1];
        for (uint32_t c = 0; c < COLS; c++) {
            if (split) {
                acc[c] += (float)sum[0][c] * (s->d[2 * b * COLS + c] * x[b].d);
                acc[c] += (float)sum[1][c] * (s->d[(2 * b + 1) * COLS + c] * x[b].d);
            } else {
                acc[c] += (float)(sum[0][c] + sum[1][c]) * (s->d[b * COLS + c] * x[b].d);
            }
            if (has_min)
                acc[c] += s->m[b * COLS + c] * x[b].s;
        }
    }
}

void kni_qgemm_ref(const struct kni_qgemm_args *a)
{
    enum kni_panel_scales scales = kni_panel_get_form(a->w->type)->scales;
    uint32_t n_blocks = a->w->n_in / KNI_PANEL_BLOCK;
    for (uint32_t col = 0; col < a->n_cols; col += COLS) {
        const uint8_t *panel = a->w->data + (size_t)((a->col0 + col) / COLS) * a->w->panel_bytes;
        uint32_t n_cols = a->n_cols - col < COLS ? a->n_cols - col : COLS;
        for (uint32_t b0 = 0, n; b0 < n_blocks; b0 += n) {
            n = n_blocks - b0 < KNI_PANEL_CHUNK ? n_blocks - b0 : KNI_PANEL_CHUNK;
            kni_panel_scales_ref(a->w, panel, b0, n, a->scratch->d, a->scratch->m);
            for (uint32_t b = 0; b < n; b++)
                kni_panel_values_ref(a->w, panel, b0 + b, a->scratch->values + (size_t)b * 32 * COLS);
            for (uint32_t r = 0; r < a->n_rows; r++) {
                float acc[COLS] = {0}, *y = a->y + r * a->ldy + col;
                if (a->accumulate || b0)
                    memcpy(acc, y, n_cols * sizeof *y);
                row_ref(a->scratch, a->x + r * a->ldx + b0, n, scales == KNI_PANEL_SCALES_K6, kni_panel_has_min(scales), acc);
                memcpy(y, acc, n_cols * sizeof *y);
            }
        }
    }
}
