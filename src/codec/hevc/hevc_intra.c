/* SPDX-License-Identifier: Apache-2.0 */
/* Intra prediction in plain C; see the header for the border's order. Loops are over rows of bytes, so that the compiler makes vectors of them. */
#include "codec/hevc/hevc_intra.h"

#include <string.h>

static const int8_t angles[KNI_HEVC_INTRA_MODES] = {0,  0,  32, 26, 21, 17,  13,  9,   5,   2,   0,   -2,  -5, -9, -13, -17, -21, -26,
                                                    -32, -26, -21, -17, -13, -9, -5, -2, 0, 2, 5, 9, 13, 17, 21, 26, 32};
/* 8192 / angle, rounded, of modes 11..25. */
static const int16_t inverse[15] = {4096, 1638, 910, 630, 482, 390, 315, 256, 315, 390, 482, 630, 910, 1638, 4096};

static uint32_t at_most(uint32_t v, uint32_t most)
{
    return v < most ? v : most;
}

void kni_hevc_border_fill(struct kni_hevc_border *b, const struct kni_hevc_around *a)
{
    const uint32_t n = a->n, right = a->width - 1, bottom = a->height - 1;
    const uint32_t begin[6] = {0, n - a->n_below, n, 2 * n, 2 * n + 1, 4 * n + 1}; /* runs: missing below, below, left, corner, above and right */
    const uint32_t end_above = 2 * n + 1 + (a->above ? n + a->n_right : 0);
    const bool has[5] = {false, a->n_below > 0, a->left, a->corner, a->above};
    uint8_t *p = b->raw;
    if (a->left || a->n_below) {
        const uint32_t x = at_most(a->x - 1, right);
        for (uint32_t j = 0, m = n + a->n_below; j < m; j++)
            p[2 * n - 1 - j] = a->plane[at_most(a->y + j, bottom) * a->stride + x];
    }
    if (a->corner)
        p[2 * n] = a->plane[at_most(a->y - 1, bottom) * a->stride + at_most(a->x - 1, right)];
    if (a->above) {
        const uint8_t *row = a->plane + at_most(a->y - 1, bottom) * a->stride;
        for (uint32_t i = 2 * n + 1; i < end_above; i++)
            p[i] = row[at_most(a->x + i - 2 * n - 1, right)];
    }
    uint32_t first = 0;
    while (first < 5 && !has[first])
        first++;
    uint8_t last = first < 5 ? p[begin[first]] : 128;
    for (uint32_t run = 0; run < 5; run++) {
        if (has[run])
            last = p[(run == 4 ? end_above : begin[run + 1]) - 1];
        else
            memset(p + begin[run], last, begin[run + 1] - begin[run]);
    }
    if (a->above)
        memset(p + end_above, last, 4 * n + 1 - end_above);
    b->smooth[0] = p[0];
    b->smooth[4 * n] = p[4 * n];
    for (uint32_t i = 1; i < 4 * n; i++)
        b->smooth[i] = (uint8_t)((p[i - 1] + 2 * p[i] + p[i + 1] + 2) >> 2);
}

/* line: the border's corner, from which index 1 + i is above i and -1 - j is left j. */
static void planar(uint8_t *out, const uint8_t *line, uint32_t log2)
{
    const int32_t n = 1 << log2, right = line[1 + n], below = line[-1 - n];
    for (int32_t y = 0; y < n; y++) {
        const int32_t left = line[-1 - y];
        for (int32_t x = 0; x < n; x++)
            out[y * n + x] = (uint8_t)(((n - 1 - x) * left + (x + 1) * right + (n - 1 - y) * line[1 + x] + (y + 1) * below + n) >> (log2 + 1));
    }
}

static void mean(uint8_t *out, const uint8_t *line, uint32_t log2, bool filter)
{
    const int32_t n = 1 << log2;
    int32_t sum = n;
    for (int32_t i = 1; i <= n; i++)
        sum += line[i] + line[-i];
    const int32_t dc = sum >> (log2 + 1);
    memset(out, dc, (size_t)n * (size_t)n);
    if (!filter)
        return;
    out[0] = (uint8_t)((line[-1] + 2 * dc + line[1] + 2) >> 2);
    for (int32_t i = 1; i < n; i++) {
        out[i] = (uint8_t)((line[1 + i] + 3 * dc + 2) >> 2);
        out[i * n] = (uint8_t)((line[-1 - i] + 3 * dc + 2) >> 2);
    }
}

/* A vertical mode: row y is ref, moved by (y + 1) * angle / 32. ahead: the side it looks along, behind: the other one, both from the corner on with index 1
 * next to it. */
static void direction(uint8_t *out, const uint8_t *ahead, const uint8_t *behind, uint32_t mode, int32_t n, bool filter)
{
    uint8_t room[3 * 32 + 1], *ref = room + 32;
    const int32_t angle = angles[mode], reach = (n * angle) >> 5;
    memcpy(ref, ahead, (size_t)(angle < 0 ? n + 1 : 2 * n + 1));
    for (int32_t i = -1; i >= reach && angle < 0; i--)
        ref[i] = behind[(-i * inverse[mode - 11] + 128) >> 8];
    for (int32_t y = 0; y < n; y++) {
        const int32_t moved = (y + 1) * angle, weight = moved & 31;
        const uint8_t *from = ref + (moved >> 5) + 1;
        if (weight)
            for (int32_t x = 0; x < n; x++)
                out[y * n + x] = (uint8_t)(((32 - weight) * from[x] + weight * from[x + 1] + 16) >> 5);
        else
            memcpy(out + y * n, from, (size_t)n);
    }
    for (int32_t y = 0; y < n && filter && angle == 0; y++) {
        int32_t v = ahead[1] + ((behind[1 + y] - ahead[0]) >> 1);
        out[y * n] = (uint8_t)(v < 0 ? 0 : v > 255 ? 255 : v);
    }
}

static void transpose(uint8_t *out, const uint8_t *in, uint32_t n)
{
    for (uint32_t y = 0; y < n; y++)
        for (uint32_t x = 0; x < n; x++)
            out[y * n + x] = in[x * n + y];
}

void kni_hevc_intra_predict(uint8_t *out, const struct kni_hevc_border *b, uint32_t mode, uint32_t log2, bool luma)
{
    static const uint8_t straight[6] = {0, 0, 35, 7, 1, 0}; /* a direction is smoothed when it is further than this from both axes (8.4.4.2.3) */
    const uint32_t n = 1u << log2;
    const uint32_t from_h = mode > 10 ? mode - 10 : 10 - mode, from_v = mode > 26 ? mode - 26 : 26 - mode, off = from_h < from_v ? from_h : from_v;
    const uint8_t *line = (mode != KNI_HEVC_INTRA_DC && off > straight[log2] ? b->smooth : b->raw);
    const bool filter = luma && n < 32;
    if (mode == KNI_HEVC_INTRA_PLANAR) {
        planar(out, line + 2 * n, log2);
        return;
    }
    if (mode == KNI_HEVC_INTRA_DC) {
        mean(out, line + 2 * n, log2, filter);
        return;
    }
    uint8_t back[129], turned[32 * 32];
    for (uint32_t i = 0; i <= 2 * n; i++)
        back[i] = line[2 * n - i];
    if (mode >= 18) {
        direction(out, line + 2 * n, back, mode, (int32_t)n, filter);
        return;
    }
    direction(turned, back, line + 2 * n, mode, (int32_t)n, filter);
    transpose(out, turned, n);
}

void kni_hevc_intra_probable(uint8_t modes[3], uint32_t left, uint32_t above)
{
    if (left != above) {
        modes[0] = (uint8_t)left;
        modes[1] = (uint8_t)above;
        modes[2] = left && above ? KNI_HEVC_INTRA_PLANAR : left != KNI_HEVC_INTRA_DC && above != KNI_HEVC_INTRA_DC ? KNI_HEVC_INTRA_DC : KNI_HEVC_INTRA_VERTICAL;
    } else if (left < 2) {
        modes[0] = KNI_HEVC_INTRA_PLANAR;
        modes[1] = KNI_HEVC_INTRA_DC;
        modes[2] = KNI_HEVC_INTRA_VERTICAL;
    } else {
        modes[0] = (uint8_t)left;
        modes[1] = (uint8_t)(2 + (left + 29) % 32);
        modes[2] = (uint8_t)(2 + (left - 2 + 1) % 32);
    }
}
