/* SPDX-License-Identifier: Apache-2.0 */
#include "kernel/panel.h"

#include <string.h>

#include "base/alloc.h"
#include "base/half.h"
#include "base/le.h"
#include "kernel/dequant.h"

#define COLS KNI_PANEL_COLS

static const struct kni_panel_form forms[] = {
    [KNI_DTYPE_F32] = {KNI_PANEL_VALUES_FLOAT, KNI_PANEL_SCALES_NONE, 0, 0, 4},
    [KNI_DTYPE_F16] = {KNI_PANEL_VALUES_FLOAT, KNI_PANEL_SCALES_NONE, 0, 0, 2},
    [KNI_DTYPE_BF16] = {KNI_PANEL_VALUES_FLOAT, KNI_PANEL_SCALES_NONE, 0, 0, 2},
    [KNI_DTYPE_Q4_0] = {KNI_PANEL_VALUES_NIBBLE, KNI_PANEL_SCALES_D, 8, 256, 0},
    [KNI_DTYPE_Q4_1] = {KNI_PANEL_VALUES_NIBBLE, KNI_PANEL_SCALES_DM, 0, 256, 0},
    [KNI_DTYPE_Q5_0] = {KNI_PANEL_VALUES_NIBBLE1, KNI_PANEL_SCALES_D, 16, 320, 0},
    [KNI_DTYPE_Q5_1] = {KNI_PANEL_VALUES_NIBBLE1, KNI_PANEL_SCALES_DM, 0, 320, 0},
    [KNI_DTYPE_Q8_0] = {KNI_PANEL_VALUES_BYTE, KNI_PANEL_SCALES_D, 0, 512, 0},
    [KNI_DTYPE_Q4_K] = {KNI_PANEL_VALUES_NIBBLE, KNI_PANEL_SCALES_K, 0, 256, 0},
    [KNI_DTYPE_Q5_K] = {KNI_PANEL_VALUES_NIBBLE1, KNI_PANEL_SCALES_K, 0, 320, 0},
    [KNI_DTYPE_Q6_K] = {KNI_PANEL_VALUES_NIBBLE2, KNI_PANEL_SCALES_K6, 32, 384, 0},
};

const struct kni_panel_form *kni_panel_get_form(enum kni_dtype type)
{
    return &forms[type];
}

/* Bytes of the scales of n blocks; n a multiple of 8 for the K types. */
static size_t scales_bytes(enum kni_panel_scales s, size_t n)
{
    switch (s) {
    case KNI_PANEL_SCALES_NONE: break;
    case KNI_PANEL_SCALES_D: return n * 32;
    case KNI_PANEL_SCALES_DM: return n * 64;
    case KNI_PANEL_SCALES_K: return n / 8 * 320;
    case KNI_PANEL_SCALES_K6: return n / 8 * 288;
    }
    return 0;
}

size_t kni_panels_init(struct kni_panels *p, enum kni_dtype type, uint32_t n_out, uint32_t n_in)
{
    const struct kni_panel_form *f = &forms[type];
    size_t n_blocks = n_in / KNI_PANEL_BLOCK, bytes; /* n_in fits 32 bits: the sizes of one panel cannot overflow 64 */
    *p = (struct kni_panels){.type = type, .n_out = n_out, .n_in = n_in};
    p->values_at = (scales_bytes(f->scales, n_blocks) + 63) & ~(size_t)63;
    p->panel_bytes = (p->values_at + (f->value_bytes ? (size_t)n_in * COLS * f->value_bytes : n_blocks * f->block_bytes) + 63) & ~(size_t)63;
    return kni_mul_size(p->panel_bytes, kni_panels_count(p), &bytes) ? bytes : 0;
}

uint32_t kni_panels_count(const struct kni_panels *p)
{
    return p->n_out / COLS + (p->n_out % COLS != 0);
}

/* ---- packing */

/* The 32 integers of block b of a row, without offset, as unsigned (Q8_0: the bits of the signed byte). */
static void block_values(enum kni_dtype type, const uint8_t *row, uint32_t b, uint8_t q[32])
{
    const uint8_t *p;
    uint32_t j = b % 8;
    switch (type) {
    case KNI_DTYPE_Q4_0:
    case KNI_DTYPE_Q4_1:
        p = row + (size_t)b * (type == KNI_DTYPE_Q4_0 ? 18 : 20) + (type == KNI_DTYPE_Q4_0 ? 2 : 4);
        for (unsigned i = 0; i < 16; i++)
            q[i] = p[i] & 15, q[i + 16] = p[i] >> 4;
        break;
    case KNI_DTYPE_Q5_0:
    case KNI_DTYPE_Q5_1:
        p = row + (size_t)b * (type == KNI_DTYPE_Q5_0 ? 22 : 24) + (type == KNI_DTYPE_Q5_0 ? 2 : 4);
        for (unsigned i = 0; i < 16; i++) {
            q[i] = (uint8_t)((p[4 + i] & 15) | (kni_le32_get(p) >> i & 1) << 4);
            q[i + 16] = (uint8_t)(p[4 + i] >> 4 | (kni_le32_get(p) >> (i + 16) & 1) << 4);
        }
        break;
    case KNI_DTYPE_Q8_0: memcpy(q, row + (size_t)b * 34 + 2, 32); break;
    case KNI_DTYPE_Q4_K:
        p = row + (size_t)(b / 8) * 144 + 16 + j / 2 * 32;
        for (unsigned i = 0; i < 32; i++)
            q[i] = j % 2 ? p[i] >> 4 : p[i] & 15;
        break;
    case KNI_DTYPE_Q5_K:
        p = row + (size_t)(b / 8) * 176;
        for (unsigned i = 0; i < 32; i++) {
            uint8_t low = p[48 + j / 2 * 32 + i];
            q[i] = (uint8_t)((j % 2 ? low >> 4 : low & 15) | (p[16 + i] >> j & 1) << 4);
        }
        break;
    default: /* Q6_K */
        p = row + (size_t)(b / 8) * 210;
        for (unsigned i = 0; i < 32; i++) {
            uint8_t low = p[j / 4 * 64 + j % 2 * 32 + i];
            q[i] = (uint8_t)((j % 4 < 2 ? low & 15 : low >> 4) | (p[128 + j / 4 * 32 + i] >> 2 * (j % 4) & 3) << 4);
        }
    }
}

/* Of bytes e0 o0 e1 o1 e2 o2 e3 o3, each below 16: e0..e3 as the nibbles of the low half, o0..o3 as those of the high half. */
static uint32_t nibble_word(const uint8_t q[8])
{
    uint64_t v = kni_le64_get(q), even = v & 0x000f000f000f000fu, odd = v >> 8 & 0x000f000f000f000fu;
    even |= even >> 12; /* 4 bits apart in pairs, then the pairs together */
    odd |= odd >> 12;
    return (uint32_t)((even & 0xff) | (even >> 24 & 0xff00) | (odd & 0xff) << 16 | (odd >> 8 & 0xff000000u));
}

static void put_values(enum kni_panel_values values, const uint8_t q[32], uint32_t col, uint8_t *dst)
{
    uint32_t word[12] = {0};
    if (values == KNI_PANEL_VALUES_BYTE) {
        for (unsigned i = 0; i < 8; i++) /* pair (2s, 2s + 1) in the two halves; even steps low, odd steps high */
            word[i] = q[4 * i] | (uint32_t)q[4 * i + 2] << 8 | (uint32_t)q[4 * i + 1] << 16 | (uint32_t)q[4 * i + 3] << 24;
    } else {
        for (unsigned i = 0; i < 4; i++)
            word[i] = nibble_word(q + 8 * i);
        if (values == KNI_PANEL_VALUES_NIBBLE1)
            for (unsigned i = 0; i < 32; i++)
                word[4] |= (uint32_t)(q[i] >> 4) << (i % 2 * 16 + i / 2);
        if (values == KNI_PANEL_VALUES_NIBBLE2)
            for (unsigned i = 0; i < 32; i++)
                word[4 + i / 16] |= (uint32_t)(q[i] >> 4) << (i % 2 * 16 + i / 2 % 8 * 2);
    }
    static const uint8_t n_words[] = {[KNI_PANEL_VALUES_NIBBLE] = 4, [KNI_PANEL_VALUES_NIBBLE1] = 5, [KNI_PANEL_VALUES_NIBBLE2] = 6, [KNI_PANEL_VALUES_BYTE] = 8};
    for (unsigned i = 0; i < n_words[values]; i++)
        kni_le32_put(dst + (i * COLS + col) * 4, word[i]);
}

static void put_scales(enum kni_dtype type, const uint8_t *row, uint32_t b, uint32_t col, uint8_t *dst)
{
    const struct kni_dtype_info *info = kni_dtype_get_info(type);
    const uint8_t *p = row + (size_t)(b * KNI_PANEL_BLOCK / info->block_values) * info->block_bytes;
    uint32_t j = b % 8;
    switch (forms[type].scales) {
    case KNI_PANEL_SCALES_NONE: break;
    case KNI_PANEL_SCALES_D: kni_le16_put(dst + (size_t)b * 32 + 2 * col, kni_le16_get(p)); break;
    case KNI_PANEL_SCALES_DM:
        kni_le16_put(dst + (size_t)b * 64 + 2 * col, kni_le16_get(p));
        kni_le16_put(dst + (size_t)b * 64 + 32 + 2 * col, kni_le16_get(p + 2));
        break;
    case KNI_PANEL_SCALES_K:
        dst += (size_t)(b / 8) * 320;
        kni_le16_put(dst + 2 * col, kni_le16_get(p));
        kni_le16_put(dst + 32 + 2 * col, kni_le16_get(p + 2));
        kni_dequant_k_scale(p + 4, j, &dst[64 + 32 * j + col], &dst[64 + 32 * j + 16 + col]);
        break;
    case KNI_PANEL_SCALES_K6:
        dst += (size_t)(b / 8) * 288;
        kni_le16_put(dst + 2 * col, kni_le16_get(p + 208));
        dst[32 + 32 * j + col] = p[192 + 2 * j];
        dst[32 + 32 * j + 16 + col] = p[192 + 2 * j + 1];
    }
}

void kni_panel_pack(const struct kni_panels *p, uint32_t panel, const void *src, uint8_t *dst)
{
    const struct kni_panel_form *f = &forms[p->type];
    const struct kni_dtype_info *info = kni_dtype_get_info(p->type);
    size_t row_bytes = (size_t)(p->n_in / info->block_values) * info->block_bytes;
    uint32_t col0 = panel * COLS, n = p->n_out - col0 < COLS ? p->n_out - col0 : COLS;
    const uint8_t *rows = (const uint8_t *)src + col0 * row_bytes;
    if (n < COLS || p->values_at % 64 || p->panel_bytes % 64)
        memset(dst, 0, p->panel_bytes);
    if (f->value_bytes) {
        for (uint32_t i = 0; i < p->n_in; i++)
            for (uint32_t c = 0; c < n; c++)
                memcpy(dst + ((size_t)i * COLS + c) * f->value_bytes, rows + c * row_bytes + (size_t)i * f->value_bytes, f->value_bytes);
        return;
    }
    for (uint32_t b = 0; b < p->n_in / KNI_PANEL_BLOCK; b++)
        for (uint32_t c = 0; c < n; c++) {
            uint8_t q[32];
            block_values(p->type, rows + c * row_bytes, b, q);
            put_values(f->values, q, c, dst + p->values_at + (size_t)b * f->block_bytes);
            put_scales(p->type, rows + c * row_bytes, b, c, dst);
        }
}

/* ---- reading */

static float half_at(const uint8_t *p)
{
    return kni_f16_to_f32(kni_le16_get(p));
}

void kni_panel_scales_ref(const struct kni_panels *p, const uint8_t *panel, uint32_t block0, uint32_t n_blocks, float *d, float *m)
{
    enum kni_panel_scales form = forms[p->type].scales;
    const uint8_t *src = panel + scales_bytes(form, block0);
    for (uint32_t b = 0; b < n_blocks; b++)
        for (uint32_t c = 0; c < COLS; c++) {
            const uint8_t *s = src + scales_bytes(form, b & ~7u), *j = s + 32 * (b % 8) + c;
            switch (form) {
            case KNI_PANEL_SCALES_NONE: break;
            case KNI_PANEL_SCALES_D: d[b * COLS + c] = half_at(src + (size_t)b * 32 + 2 * c); break;
            case KNI_PANEL_SCALES_DM:
                d[b * COLS + c] = half_at(src + (size_t)b * 64 + 2 * c);
                m[b * COLS + c] = half_at(src + (size_t)b * 64 + 32 + 2 * c);
                break;
            case KNI_PANEL_SCALES_K:
                d[b * COLS + c] = half_at(s + 2 * c) * (float)j[64];
                m[b * COLS + c] = -(half_at(s + 32 + 2 * c) * (float)j[80]);
                break;
            case KNI_PANEL_SCALES_K6:
                d[2 * b * COLS + c] = half_at(s + 2 * c) * (float)(int8_t)j[32];
                d[(2 * b + 1) * COLS + c] = half_at(s + 2 * c) * (float)(int8_t)j[48];
            }
        }
}

void kni_panel_values_ref(const struct kni_panels *p, const uint8_t *panel, uint32_t block, int16_t *out)
{
    const struct kni_panel_form *f = &forms[p->type];
    const uint8_t *src = panel + p->values_at + (size_t)block * f->block_bytes;
    for (uint32_t i = 0; i < 32; i++)
        for (uint32_t c = 0; c < COLS; c++) {
            uint32_t half = i % 2 * 16, step = i / 2;
            int v;
            if (f->values == KNI_PANEL_VALUES_BYTE) {
                v = (int8_t)(kni_le32_get(src + (step / 2 * COLS + c) * 4) >> (half + step % 2 * 8));
            } else {
                v = (int)(kni_le32_get(src + (step / 4 * COLS + c) * 4) >> (half + step % 4 * 4) & 15);
                if (f->values == KNI_PANEL_VALUES_NIBBLE1)
                    v |= (int)(kni_le32_get(src + (4 * COLS + c) * 4) >> (half + step) & 1) << 4;
                if (f->values == KNI_PANEL_VALUES_NIBBLE2)
                    v |= (int)(kni_le32_get(src + ((4 + step / 8) * COLS + c) * 4) >> (half + step % 8 * 2) & 3) << 4;
            }
            out[(step * COLS + c) * 2 + i % 2] = (int16_t)(v - f->offset);
        }
}
