/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Intra prediction of one block, 8.4.4.2: neighbours, their substitution and smoothing, planar, DC and 33 directions.
 *
 *     border, from the left column's lower end up, over the corner, along the row above:
 *     [ 0: (-1, 2n-1) ... 2n-1: (-1, 0) ][ 2n: (-1, -1) ][ 2n+1: (0, -1) ... 4n: (2n-1, -1) ]
 *
 * In 4:4:4 chroma is smoothed like luma; the edges of DC, horizontal and vertical are smoothed in luma only, the latter two not where
 * implicit_rdpcm meets a block that bypasses the transform.
 */
#include "measure/reader/hevc_reader_state.h"

#include <stdlib.h>
#include <string.h>

enum { MODE_PLANAR = 0, MODE_DC = 1, MODE_HORIZONTAL = 10, MODE_VERTICAL = 26, MAX_SIZE = 32, MAX_BORDER = 4 * MAX_SIZE + 1 };

/* A block to predict. */
struct target { uint8_t *to; size_t stride; uint32_t size, log2_size, plane; };

static bool usable(const struct kni_hevc_reader *r, int64_t x, int64_t y)
{
    const struct kni_hevc_cell *c = kni_hevc_reader_neighbour(r, x, y);
    return c && (c->intra || !r->pps.constrained_intra);
}

/* Fills border; where a neighbour is missing, the nearest one before it in the border's order stands in (8.4.4.2.2). */
static void read_border(const struct kni_hevc_reader *r, const struct target *t, uint32_t x0, uint32_t y0, uint8_t *border)
{
    const uint8_t *plane = r->planes[0][t->plane];
    uint32_t n = t->size, first = 4 * n + 1;
    bool known[MAX_BORDER] = {0};
    for (uint32_t i = 0; i <= 4 * n;) {
        int64_t x = i <= 2 * n ? (int64_t)x0 - 1 : (int64_t)x0 + (i - 2 * n - 1);
        int64_t y = i < 2 * n ? (int64_t)y0 + (2 * n - 1 - i) : (int64_t)y0 - 1;
        uint32_t run = i == 2 * n ? 1 : 4; /* samples of one cell */
        if (usable(r, x, y)) {
            if (first > i)
                first = i;
            for (uint32_t k = 0; k < run; k++) {
                known[i + k] = true;
                border[i + k] = i < 2 * n ? plane[(size_t)(y - k) * r->stride + (size_t)x] : plane[(size_t)y * r->stride + (size_t)x + k];
            }
        }
        i += run;
    }
    if (first > 4 * n) {
        memset(border, 128, 4 * n + 1);
        return;
    }
    memset(border, border[first], first);
    for (uint32_t i = first + 1; i <= 4 * n; i++)
        if (!known[i])
            border[i] = border[i - 1];
}

/* 8.4.4.2.3 */
static void smooth_border(const struct kni_hevc_reader *r, const struct target *t, uint32_t mode, uint8_t *border)
{
    uint32_t n = t->size;
    uint8_t out[MAX_BORDER];
    int32_t from_vertical = abs((int32_t)mode - MODE_VERTICAL), from_horizontal = abs((int32_t)mode - MODE_HORIZONTAL);
    int32_t distance = from_vertical < from_horizontal ? from_vertical : from_horizontal;
    if (mode == MODE_DC || n == 4 || distance <= (n == 8 ? 7 : n == 16 ? 1 : 0))
        return;
    int32_t low = border[0], corner = border[2 * n], high = border[4 * n];
    if (r->sps.params.strong_intra_smoothing && t->plane == 0 && n == 32 && abs(corner + high - 2 * border[3 * n]) < 8 &&
        abs(corner + low - 2 * border[n]) < 8) {
        for (int32_t i = 1; i < 64; i++) {
            border[64 - i] = (uint8_t)(((64 - i) * corner + i * low + 32) >> 6);
            border[64 + i] = (uint8_t)(((64 - i) * corner + i * high + 32) >> 6);
        }
        return;
    }
    for (uint32_t i = 1; i < 4 * n; i++)
        out[i] = (uint8_t)((border[i - 1] + 2 * border[i] + border[i + 1] + 2) >> 2);
    memcpy(border + 1, out + 1, 4 * n - 1);
}

static void planar(const struct target *t, const uint8_t *border)
{
    uint32_t n = t->size, corner = 2 * n;
    for (uint32_t y = 0; y < n; y++)
        for (uint32_t x = 0; x < n; x++)
            t->to[y * t->stride + x] = (uint8_t)(((n - 1 - x) * border[corner - 1 - y] + (x + 1) * border[corner + 1 + n] +
                                                  (n - 1 - y) * border[corner + 1 + x] + (y + 1) * border[corner - 1 - n] + n) >>
                                                 (t->log2_size + 1));
}

static void flat(const struct target *t, const uint8_t *border)
{
    uint32_t n = t->size, corner = 2 * n, sum = n;
    for (uint32_t i = 1; i <= n; i++)
        sum += border[corner + i] + (uint32_t)border[corner - i];
    uint32_t dc = sum >> (t->log2_size + 1);
    for (uint32_t y = 0; y < n; y++)
        memset(t->to + y * t->stride, (int)dc, n);
    if (t->plane || n == 32)
        return;
    for (uint32_t i = 1; i < n; i++) {
        t->to[i] = (uint8_t)((border[corner + 1 + i] + 3 * dc + 2) >> 2);
        t->to[i * t->stride] = (uint8_t)((border[corner - 1 - i] + 3 * dc + 2) >> 2);
    }
    t->to[0] = (uint8_t)((border[corner - 1] + 2 * dc + border[corner + 1] + 2) >> 2);
}

/* 8.4.4.2.6. Modes below 18 look to the left: the same with the two axes exchanged. */
static void angular(const struct kni_hevc_reader *r, const struct target *t, uint32_t mode, const uint8_t *border)
{
    static const int8_t angles[35] = {0,   0,   32,  26,  21,  17, 13, 9,  5, 2, 0, -2, -5, -9, -13, -17, -21, -26,
                                      -32, -26, -21, -17, -13, -9, -5, -2, 0, 2, 5, 9,  13, 17, 21,  26,  32};
    static const int16_t inverse[15] = {-4096, -1638, -910, -630, -482, -390,  -315, -256,
                                        -315,  -390,  -482, -630, -910, -1638, -4096}; /* of modes 11..25 */
    int32_t n = (int32_t)t->size, corner = 2 * n, angle = angles[mode];
    bool up = mode >= 18;
    int32_t ahead = up ? 1 : -1; /* towards the side that is looked at */
    uint8_t room[3 * MAX_SIZE + 1], *ref = room + MAX_SIZE;
    for (int32_t i = 0; i <= (angle < 0 ? n : 2 * n); i++)
        ref[i] = border[corner + ahead * i];
    int32_t furthest = n * angle >> 5; /* -1 is never looked at, and would lie outside of the border */
    for (int32_t i = -1; furthest < -1 && i >= furthest; i--)
        ref[i] = border[corner - ahead * ((i * inverse[mode - 11] + 128) >> 8)];
    size_t along = up ? 1 : t->stride, across = up ? t->stride : 1;
    for (int32_t j = 0; j < n; j++) {
        int32_t whole = (j + 1) * angle >> 5, part = (j + 1) * angle & 31;
        for (int32_t i = 0; i < n; i++) {
            const uint8_t *p = ref + i + whole + 1;
            t->to[(size_t)j * across + (size_t)i * along] = (uint8_t)(part ? ((32 - part) * p[0] + part * p[1] + 16) >> 5 : p[0]);
        }
    }
    bool edge_off = r->sps.params.tools & 2; /* and every block bypasses the transform */
    if (angle == 0 && !edge_off && t->plane == 0 && n < 32)
        for (int32_t j = 0; j < n; j++) {
            int32_t v = border[corner + ahead] + ((border[corner - ahead * (1 + j)] - border[corner]) >> 1);
            t->to[(size_t)j * across] = (uint8_t)(v < 0 ? 0 : v > 255 ? 255 : v);
        }
}

void kni_hevc_reader_intra(struct kni_hevc_reader *r, uint32_t x, uint32_t y, uint32_t log2_size, uint32_t plane, uint32_t mode)
{
    uint8_t border[MAX_BORDER];
    struct target t = {
        .to = r->planes[0][plane] + y * r->stride + x, .stride = r->stride, .size = 1u << log2_size, .log2_size = log2_size, .plane = plane};
    read_border(r, &t, x, y, border);
    smooth_border(r, &t, mode, border);
    if (mode == MODE_PLANAR)
        planar(&t, border);
    else if (mode == MODE_DC)
        flat(&t, border);
    else
        angular(r, &t, mode, border);
}
