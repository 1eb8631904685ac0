/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Sequence and picture parameter sets, 7.3.2.2, 7.3.2.3, annex E. What the reader cannot follow is refused by name here, so that the
 * parts behind need not ask. The newest set of each kind is kept, whatever its number.
 */
#include "measure/reader/hevc_reader_state.h"
#include "codec/hevc/hevc_set_parts.h"

#include <string.h>

enum { MAX_SIDE = 8192, MAX_DELTA = 1 << 15 };

static bool refuse(struct kni_hevc_reader *r, const struct kni_hevc_bits *b, const char *what)
{
    if (b->over)
        return kni_hevc_reader_fail(r, KN_E_FORMAT, "has a parameter set that is cut");
    return kni_hevc_reader_fail(r, KN_E_UNSUPPORTED, "uses %s, which this reader does not know", what);
}

static bool broken(struct kni_hevc_reader *r, const char *set, const char *field)
{
    return kni_hevc_reader_fail(r, KN_E_FORMAT, "has a %s parameter set whose %s is out of range or cut", set, field);
}

/* ---- sets of reference pictures */

struct ref_list { uint32_t n; int32_t delta[16]; bool used[16]; };

static bool push(struct ref_list *l, int32_t delta, bool used)
{
    if (l->n == 16 || delta < -MAX_DELTA || delta > MAX_DELTA)
        return false;
    l->delta[l->n] = delta;
    l->used[l->n++] = used;
    return true;
}

/* The set before plus a shift: inter_ref_pic_set_prediction, (7-61) and (7-62). */
static bool shifted_set(struct kni_hevc_bits *b, const struct kni_hevc_ref_set *from, struct ref_list *before, struct ref_list *after)
{
    bool negative = kni_hevc_bit(b), ok = true;
    uint32_t size = kni_hevc_bits_ue(b);
    if (size >= MAX_DELTA)
        return false;
    int32_t shift = negative ? -(int32_t)(size + 1) : (int32_t)(size + 1);
    uint32_t n0 = from->n_before, n = n0 + from->n_after;
    bool used[17], keep[17];
    for (uint32_t i = 0; i <= n; i++) {
        used[i] = kni_hevc_bit(b);
        keep[i] = used[i] || kni_hevc_bit(b);
    }
    for (uint32_t i = n; i-- > n0;)
        if (keep[i] && from->delta[i] + shift < 0)
            ok = ok && push(before, from->delta[i] + shift, used[i]);
    if (keep[n] && shift < 0)
        ok = ok && push(before, shift, used[n]);
    for (uint32_t i = 0; i < n0; i++)
        if (keep[i] && from->delta[i] + shift < 0)
            ok = ok && push(before, from->delta[i] + shift, used[i]);
    for (uint32_t i = n0; i-- > 0;)
        if (keep[i] && from->delta[i] + shift > 0)
            ok = ok && push(after, from->delta[i] + shift, used[i]);
    if (keep[n] && shift > 0)
        ok = ok && push(after, shift, used[n]);
    for (uint32_t i = n0; i < n; i++)
        if (keep[i] && from->delta[i] + shift > 0)
            ok = ok && push(after, from->delta[i] + shift, used[i]);
    return ok;
}

static bool plain_set(struct kni_hevc_bits *b, struct ref_list *before, struct ref_list *after)
{
    uint32_t n_before = kni_hevc_bits_ue(b), n_after = kni_hevc_bits_ue(b);
    if (n_before > 16 || n_after > 16 - n_before)
        return false;
    for (uint32_t side = 0; side < 2; side++) {
        struct ref_list *l = side ? after : before;
        int32_t delta = 0;
        for (uint32_t i = 0; i < (side ? n_after : n_before); i++) {
            uint32_t step = kni_hevc_bits_ue(b);
            bool used = kni_hevc_bit(b);
            if (step >= MAX_DELTA)
                return false;
            delta += side ? (int32_t)step + 1 : -(int32_t)step - 1;
            if (!push(l, delta, used))
                return false;
        }
    }
    return true;
}

bool kni_hevc_reader_ref_set(struct kni_hevc_reader *r, struct kni_hevc_bits *b, const struct kni_hevc_ref_set *sets, uint32_t n_sets, uint32_t index,
                             struct kni_hevc_ref_set *out)
{
    struct ref_list before = {0}, after = {0};
    bool ok;
    if (index && kni_hevc_bit(b)) {
        uint32_t back = index == n_sets ? kni_hevc_bits_ue(b) : 0;
        ok = back < index && shifted_set(b, &sets[index - 1 - back], &before, &after);
    } else {
        ok = plain_set(b, &before, &after);
    }
    if (!ok || b->over || before.n + after.n > 16)
        return kni_hevc_reader_fail(r, KN_E_FORMAT, "has a set of reference pictures that is out of range or cut");
    *out = (struct kni_hevc_ref_set){.n_before = before.n, .n_after = after.n};
    for (uint32_t i = 0; i < before.n + after.n; i++) {
        out->delta[i] = i < before.n ? before.delta[i] : after.delta[i - before.n];
        out->used[i] = i < before.n ? before.used[i] : after.used[i - before.n];
    }
    return true;
}

/* ---- sequence parameter set */

static bool vui(struct kni_hevc_reader *r, struct kni_hevc_bits *b)
{
    switch (kni_hevc_vui_skip(b, KNI_HEVC_VUI_FIELDS | KNI_HEVC_VUI_HRD)) {
    case KNI_HEVC_VUI_FIELDS: return refuse(r, b, "field coding");
    case KNI_HEVC_VUI_HRD: return refuse(r, b, "HRD parameters");
    default: return true;
    }
}

static bool range_extension(struct kni_hevc_reader *r, struct kni_hevc_bits *b, struct kn_hevc_params *p)
{
    for (uint32_t i = 0; i < KNI_HEVC_N_RANGE_FLAGS; i++) {
        const char *unknown = kni_hevc_range_flag_read(b, i, &p->tools);
        if (unknown)
            return refuse(r, b, unknown);
    }
    return true;
}

static bool picture_size(struct kni_hevc_reader *r, struct kni_hevc_bits *b, struct kn_hevc_params *p)
{
    if (kni_hevc_bits_ue(b) != 3)
        return refuse(r, b, "a chroma format other than 4:4:4");
    if (kni_hevc_bit(b))
        return refuse(r, b, "separate colour planes");
    p->width = kni_hevc_bits_ue(b);
    p->height = kni_hevc_bits_ue(b);
    if (b->over || !p->width || !p->height)
        return broken(r, "sequence", "picture size");
    if (p->width > MAX_SIDE || p->height > MAX_SIDE || (uint64_t)p->width * p->height > r->opts.max_samples)
        return kni_hevc_reader_fail(r, KN_E_UNSUPPORTED, "has pictures of %u x %u samples, more than are allowed here", p->width, p->height);
    if (kni_hevc_bit(b)) {
        uint32_t left = kni_hevc_bits_ue(b), right = kni_hevc_bits_ue(b), top = kni_hevc_bits_ue(b), bottom = kni_hevc_bits_ue(b);
        if (left || top)
            return refuse(r, b, "a window that cuts off the left or upper edge");
        if (right >= p->width || bottom >= p->height)
            return broken(r, "sequence", "window");
        p->window_right = right;
        p->window_bottom = bottom;
    }
    if (kni_hevc_bits_ue(b) || kni_hevc_bits_ue(b))
        return refuse(r, b, "samples of more than 8 bits");
    return true;
}

static bool block_sizes(struct kni_hevc_reader *r, struct kni_hevc_bits *b, struct kni_hevc_sps *s)
{
    uint32_t min_cu = kni_hevc_bits_ue(b), ctu = kni_hevc_bits_ue(b), min_tu = kni_hevc_bits_ue(b), max_tu = kni_hevc_bits_ue(b);
    struct kn_hevc_params *p = &s->params;
    p->depth_inter = kni_hevc_bits_ue(b);
    p->depth_intra = kni_hevc_bits_ue(b);
    if (b->over || min_cu > 3 || ctu > 3 || min_tu > 3 || max_tu > 3 || min_cu + ctu > 3 || !(min_cu + ctu) || min_tu + max_tu > 3 || min_tu > min_cu ||
        min_tu + max_tu > min_cu + ctu + 1 || p->depth_inter > 4 || p->depth_intra > 4)
        return broken(r, "sequence", "range of block sizes");
    s->log2_min_cu = min_cu + 3;
    s->log2_ctu = s->log2_min_cu + ctu;
    s->log2_min_tu = min_tu + 2;
    s->log2_max_tu = s->log2_min_tu + max_tu;
    p->ctu = 1u << s->log2_ctu;
    p->min_cu = 1u << s->log2_min_cu;
    p->min_tu = 1u << s->log2_min_tu;
    p->max_tu = 1u << s->log2_max_tu;
    if (p->width % p->min_cu || p->height % p->min_cu)
        return broken(r, "sequence", "picture size");
    s->ctus_wide = (p->width + p->ctu - 1) / p->ctu;
    s->ctus_high = (p->height + p->ctu - 1) / p->ctu;
    return true;
}

static bool sps_tail(struct kni_hevc_reader *r, struct kni_hevc_bits *b, struct kni_hevc_sps *s)
{
    struct kn_hevc_params *p = &s->params;
    if (kni_hevc_bit(b))
        return refuse(r, b, "scaling lists");
    p->amp = kni_hevc_bit(b);
    p->sao = kni_hevc_bit(b);
    if (kni_hevc_bit(b)) { /* PCM */
        if (kni_hevc_bits_u(b, 8) != 0x77)
            return refuse(r, b, "PCM samples of other than 8 bits");
        uint32_t min = kni_hevc_bits_ue(b) + 3, max = kni_hevc_bits_ue(b);
        if (min < s->log2_min_cu || min > 5 || max > 5 || min + max > s->log2_ctu || min + max > 5)
            return broken(r, "sequence", "range of PCM sizes");
        p->pcm_min = 1u << min;
        p->pcm_max = 1u << (min + max);
        kni_hevc_bit(b); /* pcm_loop_filter_disabled_flag: lossless units are not filtered */
    }
    s->n_ref_sets = kni_hevc_bits_ue(b);
    if (s->n_ref_sets > KNI_HEVC_MAX_REF_SETS)
        return broken(r, "sequence", "number of reference sets");
    for (uint32_t i = 0; i < s->n_ref_sets; i++)
        if (!kni_hevc_reader_ref_set(r, b, s->ref_set, s->n_ref_sets, i, &s->ref_set[i]))
            return false;
    if (kni_hevc_bit(b))
        return refuse(r, b, "long-term reference pictures");
    p->temporal_mvp = kni_hevc_bit(b);
    p->strong_intra_smoothing = kni_hevc_bit(b);
    if (kni_hevc_bit(b) && !vui(r, b))
        return false;
    if (kni_hevc_bit(b)) { /* extensions */
        bool range = kni_hevc_bit(b);
        if (kni_hevc_bits_u(b, 7))
            return refuse(r, b, "an extension other than the range extension");
        if (range && !range_extension(r, b, p))
            return false;
    }
    return true;
}

bool kni_hevc_reader_sps(struct kni_hevc_reader *r, const uint8_t *payload, size_t n_bytes)
{
    struct kni_hevc_bits bits = kni_hevc_bits_of(payload, n_bytes), *b = &bits;
    struct kni_hevc_sps *s = &r->sps;
    memset(s, 0, sizeof *s);
    kni_hevc_bits_u(b, 4); /* video parameter set */
    if (kni_hevc_bits_u(b, 3))
        return refuse(r, b, "temporal sub-layers");
    kni_hevc_bit(b); /* nesting */
    const struct kni_hevc_tier tier = kni_hevc_tier_read(b);
    s->params.high_tier = tier.high_tier;
    s->params.profile_idc = tier.profile_idc;
    s->params.max_bits = tier.max_bits;
    s->params.lower_bit_rate = tier.lower_bit_rate;
    s->params.level_idc = tier.level_idc;
    s->id = kni_hevc_bits_ue(b);
    if (s->id > 15)
        return broken(r, "sequence", "number");
    if (!picture_size(r, b, &s->params))
        return false;
    s->log2_poc = kni_hevc_bits_ue(b) + 4;
    if (s->log2_poc > 16)
        return broken(r, "sequence", "picture order count");
    kni_hevc_bit(b); /* ordering info of sub-layers: one layer, one entry */
    for (uint32_t i = 0; i < 3; i++)
        kni_hevc_bits_ue(b);
    if (!block_sizes(r, b, s) || !sps_tail(r, b, s))
        return false;
    if (b->over)
        return broken(r, "sequence", "end");
    s->valid = true;
    r->params_new = true;
    return true;
}

/* ---- picture parameter set */

static bool pps_range_extension(struct kni_hevc_reader *r, struct kni_hevc_bits *b, struct kni_hevc_pps *p, bool transform_skip)
{
    if (transform_skip && kni_hevc_bits_ue(b) > 3)
        return broken(r, "picture", "size of skipped transforms");
    if (kni_hevc_bit(b))
        return refuse(r, b, "cross-component prediction");
    p->chroma_qp_list = kni_hevc_bit(b);
    if (p->chroma_qp_list) {
        kni_hevc_bits_ue(b);
        uint32_t n = kni_hevc_bits_ue(b);
        if (n > 5)
            return broken(r, "picture", "list of chroma offsets");
        for (uint32_t i = 0; i < 2 * (n + 1); i++)
            kni_hevc_bits_se(b);
    }
    kni_hevc_bits_ue(b); /* scale of SAO offsets: luma, chroma */
    kni_hevc_bits_ue(b);
    return true;
}

bool kni_hevc_reader_pps(struct kni_hevc_reader *r, const uint8_t *payload, size_t n_bytes)
{
    struct kni_hevc_bits bits = kni_hevc_bits_of(payload, n_bytes), *b = &bits;
    struct kni_hevc_pps *p = &r->pps;
    memset(p, 0, sizeof *p);
    p->id = kni_hevc_bits_ue(b);
    p->sps_id = kni_hevc_bits_ue(b);
    if (p->id > 63 || p->sps_id > 15)
        return broken(r, "picture", "number");
    p->dependent_slices = kni_hevc_bit(b);
    p->output_flag_present = kni_hevc_bit(b);
    p->n_extra_bits = kni_hevc_bits_u(b, 3);
    p->sign_hiding = kni_hevc_bit(b);
    p->cabac_init_present = kni_hevc_bit(b);
    p->n_refs = kni_hevc_bits_ue(b) + 1;
    if (p->n_refs > 16 || kni_hevc_bits_ue(b) > 15)
        return broken(r, "picture", "number of references");
    p->init_qp = kni_hevc_bits_se(b) + 26;
    if (p->init_qp < 0 || p->init_qp > 51)
        return broken(r, "picture", "QP");
    p->constrained_intra = kni_hevc_bit(b);
    bool transform_skip = kni_hevc_bit(b);
    p->cu_qp_delta = kni_hevc_bit(b);
    p->qp_depth = p->cu_qp_delta ? kni_hevc_bits_ue(b) : 0;
    if (p->qp_depth > 3)
        return broken(r, "picture", "depth of QP groups");
    kni_hevc_bits_se(b); /* chroma QP */
    kni_hevc_bits_se(b);
    p->slice_chroma_qp = kni_hevc_bit(b);
    p->weighted_pred = kni_hevc_bit(b);
    kni_hevc_bit(b); /* weighted_bipred: no B slices here */
    if (!kni_hevc_bit(b))
        return refuse(r, b, "coding with loss (transquant_bypass is off)");
    if (kni_hevc_bit(b))
        return refuse(r, b, "tiles");
    p->wavefront = kni_hevc_bit(b);
    p->loop_across_slices = kni_hevc_bit(b);
    if (kni_hevc_bit(b)) { /* deblocking control */
        p->deblocking_override = kni_hevc_bit(b);
        p->deblocking_off = kni_hevc_bit(b);
        if (!p->deblocking_off) {
            kni_hevc_bits_se(b);
            kni_hevc_bits_se(b);
        }
    }
    if (kni_hevc_bit(b))
        return refuse(r, b, "scaling lists");
    p->lists_modification = kni_hevc_bit(b);
    p->parallel_merge = kni_hevc_bits_ue(b);
    p->header_extension = kni_hevc_bit(b);
    if (kni_hevc_bit(b)) { /* extensions */
        bool range = kni_hevc_bit(b);
        if (kni_hevc_bits_u(b, 7))
            return refuse(r, b, "an extension other than the range extension");
        if (range && !pps_range_extension(r, b, p, transform_skip))
            return false;
    }
    if (b->over)
        return broken(r, "picture", "end");
    p->valid = true;
    r->params_new = true;
    return true;
}
