/* SPDX-License-Identifier: Apache-2.0 */
/*
 * residual_coding, 7.3.8.11, of a block that bypasses transform and quantiser: no transform_skip_flag, no hidden signs. Contexts of
 * 9.3.4.2.4 to 9.3.4.2.7, binarisation of 9.3.3.11. Each sub-block of 4 x 4 is counted in the row band in which it lies.
 */
#include "measure/reader/hevc_reader_state.h"

#include <string.h>

enum scan { SCAN_DIAGONAL, SCAN_HORIZONTAL, SCAN_VERTICAL };
enum { RICE_PREFIX_MAX = 28 };

/* One block while it is read. */
struct block {
    uint32_t y, log2_size, plane;
    enum scan scan;
    bool fill;           /* write r->coef */
    bool one_sig_ctx, persistent_rice;
    uint32_t wide;       /* sub-blocks a side */
    uint8_t coded[8][8]; /* [y][x] sub-blocks */
    bool greater1_before;/* the sub-block before had a level above 1, and there was one */
};

struct place { uint8_t x, y; };

/* i-th place of the up-right diagonal scan of a square of 1 << log2 a side, 6.5.3. */
static struct place diagonal(uint32_t i, uint32_t log2)
{
    static const struct place two[4] = {{0, 0}, {0, 1}, {1, 0}, {1, 1}};
    static const struct place four[16] = {{0, 0}, {0, 1}, {1, 0}, {0, 2}, {1, 1}, {2, 0}, {0, 3}, {1, 2},
                                          {2, 1}, {3, 0}, {1, 3}, {2, 2}, {3, 1}, {2, 3}, {3, 2}, {3, 3}};
    if (log2 < 2)
        return log2 ? two[i] : (struct place){0, 0};
    if (log2 == 2)
        return four[i];
    uint32_t d = 0, n = 1; /* 8 x 8: walk the diagonals */
    while (i >= n) {
        i -= n;
        d++;
        n = d < 8 ? d + 1 : 15 - d;
    }
    uint32_t top = d < 8 ? d : 7;
    return (struct place){(uint8_t)(d - top + i), (uint8_t)(top - i)};
}

static struct place scan_place(enum scan scan, uint32_t i, uint32_t log2)
{
    uint32_t mask = (1u << log2) - 1;
    if (scan == SCAN_DIAGONAL)
        return diagonal(i, log2);
    struct place p = {(uint8_t)(i & mask), (uint8_t)(i >> log2)};
    return scan == SCAN_HORIZONTAL ? p : (struct place){p.y, p.x};
}

/* Where in the scan (x, y) is: sub-block * 16 + place in it. */
static uint32_t scan_index(const struct block *b, uint32_t x, uint32_t y)
{
    uint32_t sub = 0, in = 0;
    for (struct place p; p = scan_place(b->scan, sub, b->log2_size - 2), p.x != x >> 2 || p.y != y >> 2;)
        sub++;
    for (struct place p; p = scan_place(b->scan, in, 2), p.x != (x & 3) || p.y != (y & 3);)
        in++;
    return sub * 16 + in;
}

static uint32_t last_prefix(struct kni_hevc_reader *r, const struct block *b, uint32_t ctx)
{
    uint32_t max = 2 * b->log2_size - 1, n = 0;
    uint32_t offset = b->plane ? 15 : 3 * (b->log2_size - 2) + ((b->log2_size - 1) >> 2), shift = b->plane ? b->log2_size - 2 : (b->log2_size + 1) >> 2;
    while (n < max && kni_hevc_bin(&r->bins, ctx + offset + (n >> shift), KN_HEVC_ELEMENT_LAST))
        n++;
    return n;
}

static uint32_t last_suffix(struct kni_hevc_reader *r, uint32_t prefix)
{
    if (prefix < 4)
        return prefix;
    uint32_t n = (prefix >> 1) - 1;
    return ((2 + (prefix & 1)) << n) + kni_hevc_bins_bypass(&r->bins, n, KN_HEVC_ELEMENT_LAST);
}

/* Context of sig_coeff_flag at place p of the sub-block at s. near: which neighbours of the sub-block are coded (1 right, 2 below). */
static uint32_t sig_ctx(const struct block *b, struct place s, struct place p, uint32_t near)
{
    static const uint8_t small[16] = {0, 1, 4, 5, 2, 3, 4, 5, 6, 6, 8, 8, 7, 7, 8, 8};
    uint32_t ctx, luma = !b->plane;
    if (b->one_sig_ctx)
        return KNI_HEVC_SIG_SINGLE + !luma;
    if (b->log2_size == 2) {
        ctx = small[p.y * 4 + p.x];
    } else if (!(s.x | s.y | p.x | p.y)) {
        ctx = 0;
    } else {
        if (near == 0)
            ctx = p.x + p.y == 0 ? 2 : p.x + p.y < 3 ? 1 : 0;
        else if (near == 3)
            ctx = 2;
        else
            ctx = near == 1 ? p.y == 0 ? 2 : p.y == 1 ? 1 : 0 : p.x == 0 ? 2 : p.x == 1 ? 1 : 0;
        if (luma && (s.x || s.y))
            ctx += 3;
        if (b->log2_size == 3)
            ctx += luma && b->scan != SCAN_DIAGONAL ? 15 : 9;
        else
            ctx += luma ? 21 : 12;
    }
    return luma ? ctx : KNI_HEVC_SIG_CHROMA + ctx;
}

/* coeff_abs_level_remaining. false: longer than any legal code. */
static bool remaining(struct kni_hevc_reader *r, uint32_t rice, uint32_t *out)
{
    const enum kn_hevc_element e = KN_HEVC_ELEMENT_REMAINING;
    uint32_t n = 0;
    while (kni_hevc_bin_bypass(&r->bins, e))
        if (++n > RICE_PREFIX_MAX)
            return kni_hevc_reader_fail(r, KN_E_FORMAT, "has a coefficient that is out of range");
    if (n <= 3)
        *out = (n << rice) + kni_hevc_bins_bypass(&r->bins, rice, e);
    else if (n - 3 + rice > 24)
        return kni_hevc_reader_fail(r, KN_E_FORMAT, "has a coefficient that is out of range");
    else
        *out = (((1u << (n - 3)) + 3 - 1) << rice) + kni_hevc_bins_bypass(&r->bins, n - 3 + rice, e);
    return true;
}

/* Which of 16 places hold something; places in the order of reading, the highest first. */
static uint32_t read_sig(struct kni_hevc_reader *r, const struct block *b, struct place s, bool is_last, uint32_t last, bool inferred, uint8_t places[16])
{
    uint32_t n = 0, near = 0, i = is_last ? last : 16;
    if (s.x + 1u < b->wide)
        near |= b->coded[s.y][s.x + 1];
    if (s.y + 1u < b->wide)
        near |= (uint32_t)b->coded[s.y + 1][s.x] << 1;
    if (is_last)
        places[n++] = (uint8_t)last;
    while (i-- > 0) {
        bool sig = i == 0 && inferred && n == 0;
        if (!sig)
            sig = kni_hevc_bin(&r->bins, KNI_HEVC_CONTEXT_SIG + sig_ctx(b, s, scan_place(b->scan, i, 2), near), KN_HEVC_ELEMENT_SIG);
        if (sig)
            places[n++] = (uint8_t)i;
    }
    return n;
}

static bool read_levels(struct kni_hevc_reader *r, struct block *b, struct place s, uint32_t index, uint32_t n, const uint8_t places[16])
{
    uint32_t level[16], set = (index && !b->plane ? 2u : 0u) + b->greater1_before, ctx = 1, first = 16;
    uint32_t chroma = b->plane ? 1 : 0, n_flags = n < 8 ? n : 8;
    for (uint32_t i = 0; i < n; i++)
        level[i] = 1;
    for (uint32_t i = 0; i < n_flags; i++) {
        level[i] += kni_hevc_bin(&r->bins, KNI_HEVC_CONTEXT_GREATER1 + 16 * chroma + 4 * set + ctx, KN_HEVC_ELEMENT_GREATER1);
        if (level[i] > 1) {
            ctx = 0;
            if (first == 16)
                first = i;
        } else if (ctx && ctx < 3) {
            ctx++;
        }
    }
    b->greater1_before = ctx == 0;
    if (first < 16)
        level[first] += kni_hevc_bin(&r->bins, KNI_HEVC_CONTEXT_GREATER2 + 4 * chroma + set, KN_HEVC_ELEMENT_GREATER2);
    uint32_t signs = kni_hevc_bins_bypass(&r->bins, n, KN_HEVC_ELEMENT_SIGN);
    uint8_t *statistic = &r->bins.models.rice[chroma ? 1 : 3]; /* sbType of blocks without transform */
    uint32_t rice = b->persistent_rice ? *statistic / 4u : 0;
    bool counted = !b->persistent_rice;
    for (uint32_t i = 0; i < n; i++) {
        if (level[i] == (i >= 8 ? 1u : i == first ? 3u : 2u)) {
            uint32_t more = 0;
            if (!remaining(r, rice, &more))
                return false;
            level[i] += more;
            if (level[i] > 3u << rice && (b->persistent_rice || rice < 4))
                rice++;
            if (!counted) {
                uint32_t k = *statistic / 4u;
                if (more >= 3u << k)
                    (*statistic)++;
                else if (2 * more < 1u << k && *statistic)
                    (*statistic)--;
                counted = true;
            }
        }
        if (level[i] > 32768)
            return kni_hevc_reader_fail(r, KN_E_FORMAT, "has a coefficient that is out of range");
        if (b->fill) {
            struct place p = scan_place(b->scan, places[i], 2);
            int32_t v = signs >> (n - 1 - i) & 1 ? -(int32_t)level[i] : (int32_t)level[i];
            r->coef[((s.y * 4u + p.y) << b->log2_size) + s.x * 4u + p.x] = (int16_t)(v > 32767 ? 32767 : v);
        }
    }
    return true;
}

bool kni_hevc_reader_residual(struct kni_hevc_reader *r, uint32_t x, uint32_t y, uint32_t log2_size, uint32_t plane, uint32_t mode)
{
    (void)x;
    struct block b = {.y = y, .log2_size = log2_size, .plane = plane, .fill = !r->why, .one_sig_ctx = r->sps.params.tools & 1,
                      .persistent_rice = r->sps.params.tools & 8, .wide = 1u << (log2_size - 2)};
    kni_hevc_reader_at(r, y, plane);
    if (b.fill)
        memset(r->coef, 0, sizeof *r->coef << 2 * log2_size);
    if (r->cu_intra && log2_size <= 3)
        b.scan = mode >= 6 && mode <= 14 ? SCAN_VERTICAL : mode >= 22 && mode <= 30 ? SCAN_HORIZONTAL : SCAN_DIAGONAL;
    r->rdpcm = !r->cu_intra && (r->sps.params.tools & 4) && kni_hevc_bin(&r->bins, KNI_HEVC_CONTEXT_RDPCM + (plane > 0), KN_HEVC_ELEMENT_RDPCM);
    if (r->rdpcm)
        r->rdpcm_vertical = kni_hevc_bin(&r->bins, KNI_HEVC_CONTEXT_RDPCM_DIR + (plane > 0), KN_HEVC_ELEMENT_RDPCM);

    uint32_t px = last_prefix(r, &b, KNI_HEVC_CONTEXT_LAST_X), py = last_prefix(r, &b, KNI_HEVC_CONTEXT_LAST_Y);
    uint32_t last_x = last_suffix(r, px), last_y = last_suffix(r, py);
    uint32_t last = b.scan == SCAN_VERTICAL ? scan_index(&b, last_y, last_x) : scan_index(&b, last_x, last_y);
    for (uint32_t i = last / 16 + 1; i-- > 0;) {
        struct place s = scan_place(b.scan, i, log2_size - 2);
        bool is_last = i == last / 16, coded = is_last || i == 0;
        kni_hevc_reader_at(r, y + s.y * 4u, plane);
        if (!coded) {
            uint32_t near = (s.x + 1u < b.wide && b.coded[s.y][s.x + 1]) || (s.y + 1u < b.wide && b.coded[s.y + 1][s.x]);
            coded = kni_hevc_bin(&r->bins, KNI_HEVC_CONTEXT_SUB_BLOCK + near + (plane ? 2 : 0), KN_HEVC_ELEMENT_SUB_BLOCK);
        }
        b.coded[s.y][s.x] = coded;
        uint8_t places[16];
        uint32_t n = coded ? read_sig(r, &b, s, is_last, last % 16, i > 0 && !is_last, places) : 0;
        if (n && !read_levels(r, &b, s, i, n, places))
            return false;
    }
    return true;
}
