/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Slice headers, 7.3.6. Kept is what the data behind needs, and whether the first reference is the picture before: only then are
 * P pictures rebuilt.
 */
#include "measure/reader/hevc_reader_state.h"

#include <string.h>

enum { NAL_IDR_W_RADL = 19, NAL_IDR_N_LP = 20, NAL_IRAP_FIRST = 16 };

static bool broken(struct kni_hevc_reader *r, const char *field)
{
    return kni_hevc_reader_fail(r, KN_E_FORMAT, "has a slice header whose %s is out of range or cut", field);
}

static uint32_t bits_for(uint32_t n)
{
    uint32_t bits = 0;
    while (n > 1u << bits)
        bits++;
    return bits;
}

/* Which pictures a P slice may refer to. *n_total: how many. */
static bool references(struct kni_hevc_reader *r, struct kni_hevc_bits *b, struct kni_hevc_header *h, uint32_t *n_total)
{
    const struct kni_hevc_sps *s = &r->sps;
    struct kni_hevc_ref_set set;
    h->poc = kni_hevc_bits_u(b, s->log2_poc);
    if (kni_hevc_bit(b)) { /* one of the parameter set's */
        uint32_t i = kni_hevc_bits_u(b, bits_for(s->n_ref_sets));
        if (i >= s->n_ref_sets)
            return broken(r, "reference set");
        set = s->ref_set[i];
    } else if (!kni_hevc_reader_ref_set(r, b, s->ref_set, s->n_ref_sets, s->n_ref_sets, &set)) {
        return false;
    }
    for (uint32_t i = 0; i < set.n_before + set.n_after; i++)
        *n_total += set.used[i];
    h->ref_is_before = set.n_before && set.used[0] && ((h->poc + (uint32_t)set.delta[0]) & ((1u << s->log2_poc) - 1)) == r->before_poc;
    if (s->params.temporal_mvp)
        h->temporal_mvp = kni_hevc_bit(b);
    h->all_before = h->ref_is_before && *n_total == 1;
    return true;
}

/* pred_weight_table, 7.3.6.3, 7.4.7.3. */
static bool weights(struct kni_hevc_reader *r, struct kni_hevc_bits *b, struct kni_hevc_header *h)
{
    bool coded[2][16];
    h->weight_log2[0] = kni_hevc_bits_ue(b);
    const int32_t more = kni_hevc_bits_se(b);
    if (h->weight_log2[0] > 7 || more < -7 || more > 7 || (uint32_t)((int32_t)h->weight_log2[0] + more) > 7)
        return broken(r, "weight table");
    h->weight_log2[1] = (uint32_t)((int32_t)h->weight_log2[0] + more);
    for (uint32_t k = 0; k < 2; k++)
        for (uint32_t i = 0; i < h->n_refs; i++)
            coded[k][i] = kni_hevc_bit(b);
    for (uint32_t i = 0; i < h->n_refs; i++)
        for (uint32_t k = 0; k < 3; k++) {
            const uint32_t log2 = h->weight_log2[k > 0];
            int32_t weight = 1 << log2, offset = 0;
            if (coded[k > 0][i]) {
                const int32_t change = kni_hevc_bits_se(b), given = kni_hevc_bits_se(b);
                if (change < -128 || change > 127 || given < -512 || given > 511)
                    return broken(r, "weight");
                weight += change;
                offset = k ? 128 + given - ((128 * weight) >> log2) : given;
                offset = offset < -128 ? -128 : offset > 127 ? 127 : offset;
            }
            h->fade[i][k].weight = weight;
            h->fade[i][k].offset = offset;
        }
    return true;
}

static bool p_slice(struct kni_hevc_reader *r, struct kni_hevc_bits *b, struct kni_hevc_header *h, uint32_t n_total)
{
    h->n_refs = r->pps.n_refs;
    if (kni_hevc_bit(b))
        h->n_refs = kni_hevc_bits_ue(b) + 1;
    if (h->n_refs > 16)
        return broken(r, "number of references");
    if (r->pps.lists_modification && n_total > 1 && kni_hevc_bit(b)) {
        h->why = "changes the order of its references";
        for (uint32_t i = 0; i < h->n_refs; i++)
            kni_hevc_bits_u(b, bits_for(n_total));
    }
    bool swap = r->pps.cabac_init_present && kni_hevc_bit(b);
    h->init_type = swap ? 2 : 1;
    if (h->temporal_mvp && h->n_refs > 1) {
        h->why = "may take motion from several references";
        if (kni_hevc_bits_ue(b) >= h->n_refs)
            return broken(r, "collocated reference");
    }
    if (r->pps.weighted_pred && !weights(r, b, h))
        return false;
    if (r->pps.parallel_merge && h->n_refs > 1)
        h->why = "merges side by side with several references";
    uint32_t less = kni_hevc_bits_ue(b);
    if (less > 4)
        return broken(r, "number of merge candidates");
    h->n_merge = 5 - less;
    return true;
}

static void filters(struct kni_hevc_reader *r, struct kni_hevc_bits *b, const struct kni_hevc_header *h)
{
    bool off = r->pps.deblocking_off;
    if (r->pps.deblocking_override && kni_hevc_bit(b)) {
        off = kni_hevc_bit(b);
        if (!off) {
            kni_hevc_bits_se(b);
            kni_hevc_bits_se(b);
        }
    }
    if (r->pps.loop_across_slices && (h->sao_luma || h->sao_chroma || !off))
        kni_hevc_bit(b);
}

/* Entry points are not used: rows of a wavefront follow each other. */
static bool tail(struct kni_hevc_reader *r, struct kni_hevc_bits *b)
{
    if (r->pps.wavefront) {
        uint32_t n = kni_hevc_bits_ue(b);
        if (n > r->sps.ctus_high)
            return broken(r, "number of entry points");
        uint32_t length = n ? kni_hevc_bits_ue(b) + 1 : 0;
        if (length > 32)
            return broken(r, "entry points");
        while (n--)
            kni_hevc_bits_u(b, length);
    }
    if (r->pps.header_extension) {
        uint32_t n = kni_hevc_bits_ue(b);
        if (n > 256)
            return broken(r, "extension");
        while (n--)
            kni_hevc_bits_u(b, 8);
    }
    return true;
}

bool kni_hevc_reader_slice_header(struct kni_hevc_reader *r, struct kni_hevc_header *h, uint32_t nal_type, const uint8_t *payload, size_t n_bytes)
{
    struct kni_hevc_bits bits = kni_hevc_bits_of(payload, n_bytes), *b = &bits;
    const struct kni_hevc_sps *s = &r->sps;
    memset(h, 0, sizeof *h);
    h->idr = nal_type == NAL_IDR_W_RADL || nal_type == NAL_IDR_N_LP;
    h->irap = nal_type >= NAL_IRAP_FIRST;
    h->first = kni_hevc_bit(b);
    if (h->irap)
        kni_hevc_bit(b); /* no_output_of_prior_pics */
    uint32_t pps = kni_hevc_bits_ue(b);
    if (!s->valid || !r->pps.valid || pps != r->pps.id || r->pps.sps_id != s->id)
        return kni_hevc_reader_fail(r, KN_E_FORMAT, "has a slice whose parameter sets are not the last that came before it");
    if (!h->first) {
        if (r->pps.dependent_slices && kni_hevc_bit(b) && !b->over)
            return kni_hevc_reader_fail(r, KN_E_UNSUPPORTED, "uses dependent slice segments, which this reader does not know");
        h->address = kni_hevc_bits_u(b, bits_for(s->ctus_wide * s->ctus_high));
        if (!h->address || h->address >= s->ctus_wide * s->ctus_high)
            return broken(r, "address");
    }
    kni_hevc_bits_u(b, r->pps.n_extra_bits);
    uint32_t type = kni_hevc_bits_ue(b), n_total = 0;
    if (b->over || type > 2)
        return broken(r, "type");
    if (type == 0)
        return kni_hevc_reader_fail(r, KN_E_UNSUPPORTED, "has B slices, which this reader does not know");
    h->type = type == 1 ? 'P' : 'I';
    if (h->type == 'P' && h->irap)
        return broken(r, "type");
    if (r->pps.output_flag_present)
        kni_hevc_bit(b);
    if (!h->idr && !references(r, b, h, &n_total))
        return false;
    if (s->params.sao) {
        h->sao_luma = kni_hevc_bit(b);
        h->sao_chroma = kni_hevc_bit(b);
    }
    if (h->type == 'P' && !p_slice(r, b, h, n_total))
        return false;
    h->qp = r->pps.init_qp;
    int32_t delta = kni_hevc_bits_se(b);
    if (delta < -128 || delta > 128 || h->qp + delta < 0 || h->qp + delta > 51)
        return broken(r, "QP");
    h->qp += delta;
    if (r->pps.slice_chroma_qp) {
        kni_hevc_bits_se(b);
        kni_hevc_bits_se(b);
    }
    if (r->pps.chroma_qp_list)
        kni_hevc_bit(b);
    filters(r, b, h);
    if (!tail(r, b))
        return false;
    if (!kni_hevc_bit(b) || b->over)
        return broken(r, "end");
    h->data_at = (b->at + 7) / 8;
    return true;
}
