/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Slice data, 7.3.8.1 to 7.3.8.10: coding tree units, SAO, the coding quadtree, coding units, prediction units and transform
 * trees; and prediction between pictures, which is a copy here. Recursion is as deep as block sizes allow (5).
 */
#include "measure/reader/hevc_reader_state.h"

#include <string.h>

enum part_mode { PART_2NX2N, PART_2NXN, PART_NX2N, PART_NXN, PART_2NXNU, PART_2NXND, PART_NLX2N, PART_NRX2N };
enum { MODE_DC = 1, MODE_HORIZONTAL = 10, MODE_VERTICAL = 26 };

/* One coding unit while it is read. */
struct unit {
    uint32_t x, y, log2_size, depth;
    bool intra, skip;
    enum part_mode part;
    uint32_t ref;
    bool merge_whole; /* 2Nx2N and merged: then rqt_root_cbf is coded though nothing else is */
    uint32_t max_depth;
};

static uint32_t take(struct kni_hevc_reader *r, uint32_t ctx, enum kn_hevc_element e)
{
    return kni_hevc_bin(&r->bins, ctx, e);
}

static void mark(struct kni_hevc_reader *r, uint32_t x, uint32_t y, uint32_t size, const struct kni_hevc_cell *cell)
{
    for (uint32_t j = 0; j < size; j += 4) {
        struct kni_hevc_cell *c = kni_hevc_reader_cell(r, x, y + j);
        for (uint32_t i = 0; i < size / 4; i++)
            c[i] = *cell;
    }
}

static void stamp(struct kni_hevc_reader *r, uint32_t x, uint32_t y, uint32_t size)
{
    for (uint32_t j = 0; j < size; j += 4) {
        struct kni_hevc_cell *c = kni_hevc_reader_cell(r, x, y + j);
        for (uint32_t i = 0; i < size / 4; i++)
            c[i].stamp = r->stamp;
    }
}

/* How many of the coding units to the left and above are available and deeper than depth; or, with skip, were skipped. */
static uint32_t n_neighbours(const struct kni_hevc_reader *r, uint32_t x, uint32_t y, uint32_t depth, bool skip)
{
    const struct kni_hevc_cell *near[2] = {kni_hevc_reader_neighbour(r, (int64_t)x - 1, y), kni_hevc_reader_neighbour(r, x, (int64_t)y - 1)};
    uint32_t n = 0;
    for (uint32_t i = 0; i < 2; i++)
        n += near[i] && (skip ? near[i]->skip : near[i]->depth > depth);
    return n;
}

/* ---- sample adaptive offset: read past, since it leaves bypassed blocks alone */

static void read_sao(struct kni_hevc_reader *r, uint32_t x, uint32_t y)
{
    const enum kn_hevc_element e = KN_HEVC_ELEMENT_OTHER;
    if (kni_hevc_reader_neighbour(r, (int64_t)x - 1, y) && take(r, KNI_HEVC_CONTEXT_SAO_MERGE, e))
        return;
    if (kni_hevc_reader_neighbour(r, x, (int64_t)y - 1) && take(r, KNI_HEVC_CONTEXT_SAO_MERGE, e))
        return;
    uint32_t type = 0;
    for (uint32_t plane = 0; plane < 3; plane++) {
        if (!(plane ? r->header.sao_chroma : r->header.sao_luma))
            continue;
        if (plane < 2)
            type = !take(r, KNI_HEVC_CONTEXT_SAO_TYPE, e) ? 0 : kni_hevc_bin_bypass(&r->bins, e) ? 2 : 1;
        if (!type)
            continue;
        uint32_t offset[4] = {0};
        for (uint32_t i = 0; i < 4; i++)
            while (offset[i] < 7 && kni_hevc_bin_bypass(&r->bins, e))
                offset[i]++;
        if (type == 1) { /* band offset: signs and position */
            for (uint32_t i = 0; i < 4; i++)
                if (offset[i])
                    kni_hevc_bin_bypass(&r->bins, e);
            kni_hevc_bins_bypass(&r->bins, 5, e);
        } else if (plane < 2) {
            kni_hevc_bins_bypass(&r->bins, 2, e);
        }
    }
}

/* ---- transform trees */

static void add_residual(struct kni_hevc_reader *r, uint32_t x, uint32_t y, uint32_t size, uint32_t plane, bool down, bool right)
{
    int16_t *c = r->coef;
    uint8_t *to = r->planes[0][plane] + y * r->stride + x;
    for (uint32_t j = 0; j < size; j++)
        for (uint32_t i = 0; i < size; i++) {
            if (right && i)
                c[j * size + i] = (int16_t)(c[j * size + i] + c[j * size + i - 1]);
            else if (down && j)
                c[j * size + i] = (int16_t)(c[j * size + i] + c[(j - 1) * size + i]);
            int32_t v = to[j * r->stride + i] + c[j * size + i];
            to[j * r->stride + i] = (uint8_t)(v < 0 ? 0 : v > 255 ? 255 : v);
        }
}

static bool transform_block(struct kni_hevc_reader *r, const struct unit *u, uint32_t x, uint32_t y, uint32_t log2_size, uint32_t plane, bool coded)
{
    const struct kni_hevc_cell *cell = kni_hevc_reader_cell(r, x, y);
    uint32_t mode = plane ? cell->chroma_mode : cell->mode;
    if (coded && !kni_hevc_reader_residual(r, x, y, log2_size, plane, mode))
        return false;
    if (r->why)
        return true;
    if (u->intra)
        kni_hevc_reader_intra(r, x, y, log2_size, plane, mode);
    if (coded) {
        bool implicit = u->intra && (r->sps.params.tools & 2);
        add_residual(r, x, y, 1u << log2_size, plane, (implicit && mode == MODE_VERTICAL) || (r->rdpcm && r->rdpcm_vertical),
                     (implicit && mode == MODE_HORIZONTAL) || (r->rdpcm && !r->rdpcm_vertical));
    }
    return true;
}

static bool read_qp_delta(struct kni_hevc_reader *r)
{
    const enum kn_hevc_element e = KN_HEVC_ELEMENT_OTHER;
    uint32_t n = take(r, KNI_HEVC_CONTEXT_QP_DELTA, e);
    while (n && n < 5 && take(r, KNI_HEVC_CONTEXT_QP_DELTA + 1, e))
        n++;
    if (n == 5) { /* Exp-Golomb of order 0 */
        uint32_t k = 0;
        while (kni_hevc_bin_bypass(&r->bins, e))
            if (++k > 7)
                return kni_hevc_reader_fail(r, KN_E_FORMAT, "has a cu_qp_delta that is out of range");
        kni_hevc_bins_bypass(&r->bins, k, e);
    }
    if (n)
        kni_hevc_bin_bypass(&r->bins, e);
    r->qp_delta_done = true;
    return true;
}

static bool transform_unit(struct kni_hevc_reader *r, const struct unit *u, uint32_t x, uint32_t y, uint32_t log2_size, uint32_t cbf)
{
    kni_hevc_reader_at(r, y, 0);
    if (cbf && r->pps.cu_qp_delta && !r->qp_delta_done && !read_qp_delta(r))
        return false;
    for (uint32_t plane = 0; plane < 3; plane++)
        if (!transform_block(r, u, x, y, log2_size, plane, cbf >> plane & 1))
            return false;
    stamp(r, x, y, 1u << log2_size);
    kni_hevc_reader_at(r, y, 0);
    return true;
}

/* cbf: bits 1 and 2, chroma's of the level above. */
static bool transform_tree(struct kni_hevc_reader *r, const struct unit *u, uint32_t x, uint32_t y, uint32_t log2_size, uint32_t depth, uint32_t cbf)
{
    const struct kni_hevc_sps *s = &r->sps;
    bool split, intra_split = u->intra && u->part == PART_NXN && depth == 0;
    kni_hevc_reader_at(r, y, 0);
    if (log2_size <= s->log2_max_tu && log2_size > s->log2_min_tu && depth < u->max_depth && !intra_split)
        split = take(r, KNI_HEVC_CONTEXT_SPLIT_TRANSFORM + 5 - log2_size, KN_HEVC_ELEMENT_SPLIT);
    else
        split = log2_size > s->log2_max_tu || intra_split || (!s->params.depth_inter && !u->intra && u->part != PART_2NX2N && depth == 0);
    if (split && log2_size <= s->log2_min_tu)
        return kni_hevc_reader_fail(r, KN_E_FORMAT, "splits a transform block below the least size");
    uint32_t below = 0;
    for (uint32_t plane = 1; plane < 3; plane++)
        if (cbf >> plane & 1)
            below |= take(r, KNI_HEVC_CONTEXT_CBF_CHROMA + depth, KN_HEVC_ELEMENT_CBF) << plane;
    if (split) {
        uint32_t half = 1u << (log2_size - 1);
        for (uint32_t i = 0; i < 4; i++)
            if (!transform_tree(r, u, x + (i & 1 ? half : 0), y + (i & 2 ? half : 0), log2_size - 1, depth + 1, below))
                return false;
        return true;
    }
    if (u->intra || depth || below)
        below |= take(r, KNI_HEVC_CONTEXT_CBF_LUMA + !depth, KN_HEVC_ELEMENT_CBF);
    else
        below |= 1;
    return transform_unit(r, u, x, y, log2_size, below);
}

/* ---- prediction units */

/* The reference of the first merge candidate, 8.5.3.2.2 to 8.5.3.2.4, of a unit that is not parted. */
static uint32_t merge_ref(const struct kni_hevc_reader *r, const struct unit *u)
{
    const int64_t left = (int64_t)u->x - 1, above = (int64_t)u->y - 1, right = u->x + (1u << u->log2_size), below = u->y + (1u << u->log2_size);
    const int64_t at[5][2] = {{left, below - 1}, {right - 1, above}, {right, above}, {left, below}, {left, above}};
    for (uint32_t i = 0; i < 5; i++) {
        const struct kni_hevc_cell *c = kni_hevc_reader_neighbour(r, at[i][0], at[i][1]);
        if (c && !c->intra)
            return c->ref;
    }
    return 0;
}

static void read_merge_idx(struct kni_hevc_reader *r, struct unit *u)
{
    uint32_t i = 0, max = r->header.n_merge - 1;
    if (max && take(r, KNI_HEVC_CONTEXT_MERGE_INDEX, KN_HEVC_ELEMENT_MODE))
        for (i = 1; i < max && kni_hevc_bin_bypass(&r->bins, KN_HEVC_ELEMENT_MODE);)
            i++;
    if (i && r->header.n_refs > 1 && !r->why) /* without motion anywhere, candidate 0 is the first reference; later ones may be others */
        r->why = "merges with references other than the first";
    u->ref = merge_ref(r, u);
    if (u->part != PART_2NX2N && r->header.n_refs > 1 && !r->why)
        r->why = "merges parts of a unit with several references";
}

static bool read_mvd(struct kni_hevc_reader *r)
{
    const enum kn_hevc_element e = KN_HEVC_ELEMENT_MOTION;
    uint32_t more[2] = {0};
    for (uint32_t i = 0; i < 2; i++)
        more[i] = take(r, KNI_HEVC_CONTEXT_MVD, e);
    if ((more[0] || more[1]) && !r->why)
        r->why = "has motion";
    for (uint32_t i = 0; i < 2; i++)
        if (more[i])
            more[i] += take(r, KNI_HEVC_CONTEXT_MVD + 1, e);
    for (uint32_t i = 0; i < 2; i++) {
        if (more[i] > 1) { /* Exp-Golomb of order 1 */
            uint32_t k = 1;
            while (kni_hevc_bin_bypass(&r->bins, e))
                if (++k > 16)
                    return kni_hevc_reader_fail(r, KN_E_FORMAT, "has a motion vector difference that is out of range");
            kni_hevc_bins_bypass(&r->bins, k, e);
        }
        if (more[i])
            kni_hevc_bin_bypass(&r->bins, e);
    }
    return true;
}

static bool prediction_unit(struct kni_hevc_reader *r, struct unit *u)
{
    const enum kn_hevc_element e = KN_HEVC_ELEMENT_MOTION;
    u->merge_whole = false;
    if (take(r, KNI_HEVC_CONTEXT_MERGE_FLAG, KN_HEVC_ELEMENT_MODE)) {
        read_merge_idx(r, u);
        u->merge_whole = u->part == PART_2NX2N;
        return true;
    }
    uint32_t ref = 0, max = r->header.n_refs - 1;
    while (ref < max && (ref < 2 ? take(r, KNI_HEVC_CONTEXT_REF_INDEX + ref, e) : kni_hevc_bin_bypass(&r->bins, e)))
        ref++;
    if (ref && (!r->header.all_before || u->part != PART_2NX2N) && !r->why)
        r->why = "refers to a picture other than the one before";
    u->ref = ref;
    if (!read_mvd(r))
        return false;
    take(r, KNI_HEVC_CONTEXT_MVP, e);
    return true;
}

static enum part_mode read_part_mode(struct kni_hevc_reader *r, const struct unit *u)
{
    const enum kn_hevc_element e = KN_HEVC_ELEMENT_MODE;
    if (take(r, KNI_HEVC_CONTEXT_PART_MODE, e))
        return PART_2NX2N;
    if (u->intra)
        return PART_NXN;
    bool wide = take(r, KNI_HEVC_CONTEXT_PART_MODE + 1, e);
    if (u->log2_size == r->sps.log2_min_cu) {
        if (wide)
            return PART_2NXN;
        return u->log2_size == 3 || take(r, KNI_HEVC_CONTEXT_PART_MODE + 2, e) ? PART_NX2N : PART_NXN;
    }
    if (!r->sps.params.amp || take(r, KNI_HEVC_CONTEXT_PART_MODE + 3, e))
        return wide ? PART_2NXN : PART_NX2N;
    bool second = kni_hevc_bin_bypass(&r->bins, e);
    return wide ? second ? PART_2NXND : PART_2NXNU : second ? PART_NRX2N : PART_NLX2N;
}

static void copy_weighted(struct kni_hevc_reader *r, const struct unit *u, uint32_t plane)
{
    const uint32_t size = 1u << u->log2_size, log2 = r->header.weight_log2[plane > 0];
    const int32_t weight = r->header.fade[u->ref][plane].weight, offset = r->header.fade[u->ref][plane].offset, round = log2 ? 1 << (log2 - 1) : 0;
    for (uint32_t j = 0; j < size; j++)
        for (uint32_t i = 0; i < size; i++) {
            size_t at = (u->y + j) * r->stride + u->x + i;
            int32_t v = ((r->planes[1][plane][at] * weight + round) >> log2) + offset;
            r->planes[0][plane][at] = (uint8_t)(v < 0 ? 0 : v > 255 ? 255 : v);
        }
}

/* Inter prediction of a whole coding unit: the same place of the picture before. */
static void copy_before(struct kni_hevc_reader *r, const struct unit *u)
{
    for (uint32_t j = 0; j < 1u << u->log2_size; j += 4)
        for (uint32_t i = 0; i < 1u << u->log2_size; i += 4)
            kni_hevc_reader_cell(r, u->x + i, u->y + j)->ref = (uint8_t)u->ref;
    if (!r->why && (!r->have_before || !r->header.ref_is_before))
        r->why = r->have_before ? "refers to a picture other than the one before" : r->before_why ? r->before_why : "refers to a picture that is missing";
    if (r->why)
        return;
    uint32_t size = 1u << u->log2_size;
    for (uint32_t plane = 0; plane < 3 && r->pps.weighted_pred; plane++)
        copy_weighted(r, u, plane);
    for (uint32_t plane = 0; plane < 3 && !r->pps.weighted_pred; plane++)
        for (uint32_t j = 0; j < size; j++) {
            size_t at = (u->y + j) * r->stride + u->x;
            memcpy(r->planes[0][plane] + at, r->planes[1][plane] + at, size);
        }
}

/* ---- intra modes */

/* The mode that a neighbour suggests. Units of this coding unit count as known though their stamp is still to come. */
static uint32_t suggested(const struct kni_hevc_reader *r, const struct unit *u, int64_t x, int64_t y)
{
    bool own = x >= u->x && y >= u->y;
    const struct kni_hevc_cell *c = own ? kni_hevc_reader_cell(r, (uint32_t)x, (uint32_t)y) : kni_hevc_reader_neighbour(r, x, y);
    return c && c->intra ? c->mode : MODE_DC;
}

/* The three likely modes, 8.4.2. */
static void likely_modes(const struct kni_hevc_reader *r, const struct unit *u, uint32_t x, uint32_t y, uint32_t out[3])
{
    uint32_t left = suggested(r, u, (int64_t)x - 1, y), above = MODE_DC;
    if (y & (r->sps.params.ctu - 1)) /* not from another row of coding tree units */
        above = suggested(r, u, x, (int64_t)y - 1);
    if (left == above) {
        out[0] = left < 2 ? 0 : left;
        out[1] = left < 2 ? MODE_DC : 2 + (left + 29) % 32;
        out[2] = left < 2 ? MODE_VERTICAL : 2 + (left - 2 + 1) % 32;
        return;
    }
    out[0] = left;
    out[1] = above;
    out[2] = left && above ? 0 : left != MODE_DC && above != MODE_DC ? MODE_DC : MODE_VERTICAL;
}

static uint32_t other_mode(uint32_t rem, uint32_t likely[3])
{
    for (uint32_t i = 0; i < 2; i++)
        for (uint32_t j = i + 1; j < 3; j++)
            if (likely[j] < likely[i]) {
                uint32_t swap = likely[i];
                likely[i] = likely[j];
                likely[j] = swap;
            }
    for (uint32_t i = 0; i < 3; i++)
        rem += rem >= likely[i];
    return rem;
}

static void read_intra_modes(struct kni_hevc_reader *r, const struct unit *u)
{
    static const uint8_t chroma[4] = {0, MODE_VERTICAL, MODE_HORIZONTAL, MODE_DC};
    const enum kn_hevc_element e = KN_HEVC_ELEMENT_INTRA;
    uint32_t n = u->part == PART_NXN ? 4 : 1, size = (1u << u->log2_size) / (n == 4 ? 2 : 1);
    bool known[4];
    for (uint32_t i = 0; i < n; i++)
        known[i] = take(r, KNI_HEVC_CONTEXT_PREV_INTRA, e);
    for (uint32_t i = 0; i < n; i++) {
        uint32_t x = u->x + (i & 1) * size, y = u->y + (i >> 1) * size, likely[3], mode;
        likely_modes(r, u, x, y, likely);
        if (known[i]) {
            uint32_t k = kni_hevc_bin_bypass(&r->bins, e);
            mode = likely[k ? k + kni_hevc_bin_bypass(&r->bins, e) : 0];
        } else {
            mode = other_mode(kni_hevc_bins_bypass(&r->bins, 5, e), likely);
        }
        struct kni_hevc_cell cell = *kni_hevc_reader_cell(r, x, y);
        cell.mode = (uint8_t)mode;
        mark(r, x, y, size, &cell);
    }
    for (uint32_t i = 0; i < n; i++) {
        uint32_t x = u->x + (i & 1) * size, y = u->y + (i >> 1) * size;
        struct kni_hevc_cell cell = *kni_hevc_reader_cell(r, x, y);
        cell.chroma_mode = cell.mode;
        if (take(r, KNI_HEVC_CONTEXT_CHROMA_MODE, e)) {
            uint8_t mode = chroma[kni_hevc_bins_bypass(&r->bins, 2, e)];
            cell.chroma_mode = mode == cell.mode ? 34 : mode;
        }
        mark(r, x, y, size, &cell);
    }
}

/* ---- coding units */

static uint32_t n_units_of(enum part_mode part)
{
    return part == PART_2NX2N ? 1 : part == PART_NXN ? 4 : 2;
}

static bool read_motion_and_tree(struct kni_hevc_reader *r, struct unit *u)
{
    for (uint32_t i = 0; !u->intra && i < n_units_of(u->part); i++)
        if (!prediction_unit(r, u))
            return false;
    if (!u->intra) {
        copy_before(r, u);
        if (!u->merge_whole && !take(r, KNI_HEVC_CONTEXT_ROOT_CBF, KN_HEVC_ELEMENT_CBF))
            return true;
    }
    u->max_depth = u->intra ? r->sps.params.depth_intra + (u->part == PART_NXN) : r->sps.params.depth_inter;
    return transform_tree(r, u, u->x, u->y, u->log2_size, 0, 6);
}

static bool may_be_pcm(const struct kni_hevc_reader *r, const struct unit *u)
{
    const struct kn_hevc_params *p = &r->sps.params;
    return u->intra && u->part == PART_2NX2N && 1u << u->log2_size >= p->pcm_min && 1u << u->log2_size <= p->pcm_max;
}

/* Samples as they are, from the next whole byte on; then arithmetic decoding begins afresh. */
static bool read_pcm(struct kni_hevc_reader *r, const struct unit *u)
{
    const uint32_t size = 1u << u->log2_size;
    const size_t n = 3 * (size_t)size * size, at = kni_hevc_bins_stop(&r->bins);
    if (!at)
        return kni_hevc_reader_fail(r, KN_E_FORMAT, "has PCM samples that do not begin where they should");
    if (n > r->n_payload || at > r->n_payload - n)
        return kni_hevc_reader_fail(r, KN_E_FORMAT, "has PCM samples that are cut off");
    const uint8_t *from = r->payload + at;
    for (uint32_t plane = 0; plane < 3 && !r->why; plane++)
        for (uint32_t j = 0; j < size; j++, from += size)
            memcpy(r->planes[0][plane] + (u->y + j) * r->stride + u->x, from, size);
    r->bins.count[KN_HEVC_ELEMENT_OTHER].bits += 8 * (double)n;
    r->stream.n_pcm++;
    kni_hevc_bins_start(&r->bins, r->payload, r->n_payload, at + n);
    return true;
}

static bool coding_unit(struct kni_hevc_reader *r, uint32_t x, uint32_t y, uint32_t log2_size, uint32_t depth)
{
    struct unit u = {.x = x, .y = y, .log2_size = log2_size, .depth = depth, .intra = r->header.type == 'I'};
    uint32_t size = 1u << log2_size;
    r->band->n_cu++;
    if (!take(r, KNI_HEVC_CONTEXT_BYPASS, KN_HEVC_ELEMENT_OTHER))
        return kni_hevc_reader_fail(r, KN_E_UNSUPPORTED, "has a coding unit that is not lossless");
    if (r->header.type == 'P') {
        u.skip = take(r, KNI_HEVC_CONTEXT_SKIP + n_neighbours(r, x, y, 0, true), KN_HEVC_ELEMENT_SKIP);
        if (!u.skip)
            u.intra = take(r, KNI_HEVC_CONTEXT_PRED_MODE, KN_HEVC_ELEMENT_MODE);
    }
    r->cu_intra = u.intra;
    r->band->n_cu_intra += u.intra;
    r->band->n_cu_skipped += u.skip;
    struct kni_hevc_cell cell = {.depth = (uint8_t)depth, .skip = u.skip, .intra = u.intra, .mode = MODE_DC, .chroma_mode = MODE_DC};
    mark(r, x, y, size, &cell);
    bool ok = true;
    if (u.skip) {
        read_merge_idx(r, &u);
        copy_before(r, &u);
    } else {
        if (!u.intra || log2_size == r->sps.log2_min_cu)
            u.part = read_part_mode(r, &u);
        if (may_be_pcm(r, &u) && kni_hevc_bin_end(&r->bins, KN_HEVC_ELEMENT_OTHER)) {
            ok = read_pcm(r, &u);
        } else {
            if (u.intra)
                read_intra_modes(r, &u);
            ok = read_motion_and_tree(r, &u);
        }
    }
    stamp(r, x, y, size);
    kni_hevc_reader_at(r, y, 0);
    return ok;
}

static bool coding_quadtree(struct kni_hevc_reader *r, uint32_t x, uint32_t y, uint32_t log2_size, uint32_t depth)
{
    const struct kni_hevc_sps *s = &r->sps;
    uint32_t size = 1u << log2_size;
    bool split = log2_size > s->log2_min_cu;
    kni_hevc_reader_at(r, y, 0);
    if (split && x + size <= s->params.width && y + size <= s->params.height)
        split = take(r, KNI_HEVC_CONTEXT_SPLIT_CU + n_neighbours(r, x, y, depth, false), KN_HEVC_ELEMENT_SPLIT);
    if (r->pps.cu_qp_delta && log2_size + r->pps.qp_depth >= s->log2_ctu)
        r->qp_delta_done = false;
    if (!split)
        return coding_unit(r, x, y, log2_size, depth);
    uint32_t half = size / 2;
    for (uint32_t i = 0; i < 4; i++) {
        uint32_t px = x + (i & 1) * half, py = y + (i >> 1) * half;
        if (px < s->params.width && py < s->params.height && !coding_quadtree(r, px, py, log2_size - 1, depth + 1))
            return false;
    }
    return true;
}

/* The row of a wavefront begins: contexts of the row above after its second unit, arithmetic decoding anew. */
static bool next_row(struct kni_hevc_reader *r, size_t n_bytes, uint32_t x, uint32_t y)
{
    if (!kni_hevc_bin_end(&r->bins, KN_HEVC_ELEMENT_OTHER))
        return kni_hevc_reader_fail(r, KN_E_FORMAT, "has a row of a wavefront that does not end");
    size_t at = kni_hevc_bins_stop(&r->bins);
    if (!at)
        return kni_hevc_reader_fail(r, KN_E_FORMAT, "has a row of a wavefront that ends badly");
    kni_hevc_bins_start(&r->bins, r->payload, n_bytes, at);
    bool one_wide = r->sps.ctus_wide == 1;
    if (!one_wide && kni_hevc_reader_neighbour(r, (int64_t)x + r->sps.params.ctu, (int64_t)y - 1))
        r->bins.models = r->row_models;
    else
        kni_hevc_models_init(&r->bins.models, r->header.init_type, r->header.qp);
    return true;
}

static void count_ctu(struct kni_hevc_reader *r, uint64_t n_bits)
{
    if (n_bits > r->picture_ctu_bits)
        r->picture_ctu_bits = (uint32_t)n_bits;
}

bool kni_hevc_reader_slice_data(struct kni_hevc_reader *r, size_t n_bytes, uint32_t *n_ctus)
{
    const struct kni_hevc_sps *s = &r->sps;
    uint32_t n_all = s->ctus_wide * s->ctus_high, address = r->header.address;
    kni_hevc_models_init(&r->bins.models, r->header.init_type, r->header.qp);
    r->n_payload = n_bytes;
    kni_hevc_bins_start(&r->bins, r->payload, n_bytes, r->header.data_at);
    for (bool end = false; !end; address++) {
        if (address == n_all)
            return kni_hevc_reader_fail(r, KN_E_FORMAT, "has a slice that goes on below the picture");
        uint32_t x = address % s->ctus_wide * s->params.ctu, y = address / s->ctus_wide * s->params.ctu;
        kni_hevc_reader_at(r, y, 0);
        if (r->pps.wavefront && x == 0 && address > r->header.address && !next_row(r, n_bytes, x, y))
            return false;
        const uint64_t begin = kni_hevc_bins_at(&r->bins);
        if (r->header.sao_luma || r->header.sao_chroma)
            read_sao(r, x, y);
        if (!coding_quadtree(r, x, y, s->log2_ctu, 0))
            return false;
        count_ctu(r, kni_hevc_bins_at(&r->bins) - begin);
        kni_hevc_reader_at(r, y, 0);
        end = kni_hevc_bin_end(&r->bins, KN_HEVC_ELEMENT_OTHER);
        if (kni_hevc_bins_over(&r->bins))
            return kni_hevc_reader_fail(r, KN_E_FORMAT, "has a slice that is cut off");
        if (r->pps.wavefront && x == s->params.ctu)
            r->row_models = r->bins.models;
    }
    size_t at = kni_hevc_bins_stop(&r->bins);
    if (!at)
        return kni_hevc_reader_fail(r, KN_E_FORMAT, "has a slice without its stop bit");
    const size_t n_filler = n_bytes - at;
    for (; at < n_bytes; at++)
        if (r->payload[at])
            return kni_hevc_reader_fail(r, KN_E_FORMAT, "has bytes behind the end of a slice");
    r->n_filler = n_filler;
    *n_ctus = address - r->header.address;
    return true;
}
