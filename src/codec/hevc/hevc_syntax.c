/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Walks the NAL units of an access unit and reads its parameter sets, from the bytes as they are: nothing is copied before it is
 * known to be harmless. Reads only inside the bytes given; the bit reader returns zeros when it runs out, and says so.
 */
#include "codec/hevc/hevc_syntax.h"

#include <string.h>

#include "codec/hevc/hevc_lossless.h"
#include "codec/hevc/hevc_set_parts.h"

enum { NAL_VCL_END = 32, NAL_IRAP_FIRST = 16, NAL_IRAP_END = 24, NAL_IDR_W_RADL = 19, NAL_IDR_N_LP = 20, NAL_VPS = 32, NAL_SPS = 33, NAL_PPS = 34, NAL_AUD = 35, NAL_SEI_PREFIX = 39, NAL_SEI_SUFFIX = 40 };

/* st_ref_pic_set of the parameter set (7.3.7). False: a form that is not read here. */
static bool skip_reference_sets(struct kni_hevc_bits *b)
{
    uint32_t n = kni_hevc_bits_ue(b);
    if (n > 64)
        return false;
    for (uint32_t i = 0; i < n && !b->over; i++) {
        if (i && kni_hevc_bit(b)) /* inter_ref_pic_set_prediction_flag */
            return false;
        uint32_t n_negative = kni_hevc_bits_ue(b), n_positive = kni_hevc_bits_ue(b);
        if (n_negative > 16 || n_positive > 16)
            return false;
        for (uint32_t k = 0; k < n_negative + n_positive && !b->over; k++) {
            kni_hevc_bits_ue(b);
            kni_hevc_bit(b);
        }
    }
    if (kni_hevc_bit(b)) { /* long_term_ref_pics_present_flag */
        n = kni_hevc_bits_ue(b);
        if (n)
            return false;
    }
    return true;
}

/* sps_range_extension (7.3.2.2.2). False: it sets flags of tools that have no name here. */
static bool take_range_extension(struct kni_hevc_bits *b, uint32_t *tools)
{
    bool known = true;
    for (uint32_t i = 0; i < KNI_HEVC_N_RANGE_FLAGS; i++)
        known &= !kni_hevc_range_flag_read(b, i, tools);
    return known;
}

static const char *read_sps(const uint8_t *bytes, size_t n_bytes, struct kni_hevc_claims *out)
{
    struct kni_hevc_bits b = kni_hevc_bits_escaped(bytes, n_bytes);
    *out = (struct kni_hevc_claims){0};
    kni_hevc_bits_u(&b, 4); /* sps_video_parameter_set_id */
    if (kni_hevc_bits_u(&b, 3) != 0)
        return "has temporal sub-layers";
    kni_hevc_bits_u(&b, 1);
    kni_hevc_tier_read(&b);
    kni_hevc_bits_ue(&b); /* sps_seq_parameter_set_id */
    uint32_t chroma = kni_hevc_bits_ue(&b);
    if (chroma == 3 && kni_hevc_bit(&b))
        return "codes its planes separately";
    uint32_t window[4] = {0}; /* left, right, top, bottom */
    out->coded_width = kni_hevc_bits_ue(&b);
    out->coded_height = kni_hevc_bits_ue(&b);
    if (kni_hevc_bit(&b))
        for (int i = 0; i < 4; i++)
            window[i] = kni_hevc_bits_ue(&b);
    uint32_t luma = kni_hevc_bits_ue(&b), chroma_depth = kni_hevc_bits_ue(&b);
    if (b.over)
        return "has a cut parameter set";
    if (chroma != 3 || luma || chroma_depth)
        return "is not 8-bit 4:4:4";
    /* pictures are coded in whole blocks of at most 64 x 64, and what is beyond their right and bottom edge is cut off */
    if (window[0] || window[2] || window[1] >= 64 || window[3] >= 64 || window[1] >= out->coded_width || window[3] >= out->coded_height)
        return "has an unexpected conformance window";
    out->width = out->coded_width - window[1];
    out->height = out->coded_height - window[3];
    kni_hevc_bits_ue(&b); /* log2_max_pic_order_cnt_lsb_minus4 */
    kni_hevc_bit(&b); /* sps_sub_layer_ordering_info_present_flag: the same for one layer */
    for (int i = 0; i < 3 + 6; i++) /* of the layer; sizes of coding blocks, transforms, depths of transform trees */
        kni_hevc_bits_ue(&b);
    if (kni_hevc_bit(&b))
        return "has scaling lists";
    kni_hevc_bits_u(&b, 2);    /* amp_enabled_flag, sample_adaptive_offset_enabled_flag */
    if (kni_hevc_bit(&b)) {  /* pcm_enabled_flag */
        kni_hevc_bits_u(&b, 8);
        kni_hevc_bits_ue(&b);
        kni_hevc_bits_ue(&b);
        kni_hevc_bit(&b);
    }
    if (!skip_reference_sets(&b))
        return "has an unexpected set of reference pictures";
    kni_hevc_bits_u(&b, 2); /* sps_temporal_mvp_enabled_flag, strong_intra_smoothing_enabled_flag */
    if (kni_hevc_bit(&b) && kni_hevc_vui_skip(&b, KNI_HEVC_VUI_WINDOW))
        return "has unexpected VUI parameters";
    uint32_t extensions = kni_hevc_bit(&b) ? kni_hevc_bits_u(&b, 8) : 0;
    bool known = !(extensions & 0x80) || take_range_extension(&b, &out->tools);
    if (b.over)
        return "has a cut parameter set";
    return known && !(extensions & 0x7f) ? NULL : "uses coding tools that are not known here";
}

static const char *check_pps(const uint8_t *bytes, size_t n_bytes)
{
    struct kni_hevc_bits b = kni_hevc_bits_escaped(bytes, n_bytes);
    kni_hevc_bits_ue(&b); /* pps_pic_parameter_set_id */
    kni_hevc_bits_ue(&b);
    kni_hevc_bits_u(&b, 7); /* dependent slices, output flag, extra bits (3), sign hiding, cabac_init_present_flag */
    for (int i = 0; i < 3; i++) /* reference indices, init_qp_minus26 */
        kni_hevc_bits_ue(&b);
    kni_hevc_bits_u(&b, 2); /* constrained_intra_pred_flag, transform_skip_enabled_flag */
    if (kni_hevc_bit(&b)) /* cu_qp_delta_enabled_flag */
        kni_hevc_bits_ue(&b);
    kni_hevc_bits_ue(&b); /* pps_cb_qp_offset */
    kni_hevc_bits_ue(&b);
    kni_hevc_bits_u(&b, 4); /* slice chroma offsets, weighted_pred_flag, weighted_bipred_flag, transquant_bypass_enabled_flag */
    if (kni_hevc_bit(&b))
        return "has tiles";
    kni_hevc_bits_u(&b, 2); /* entropy_coding_sync_enabled_flag, pps_loop_filter_across_slices_enabled_flag */
    if (kni_hevc_bit(&b)) { /* deblocking_filter_control_present_flag */
        kni_hevc_bit(&b);
        if (!kni_hevc_bit(&b)) { /* pps_deblocking_filter_disabled_flag */
            kni_hevc_bits_ue(&b);
            kni_hevc_bits_ue(&b);
        }
    }
    if (kni_hevc_bit(&b))
        return "has scaling lists";
    kni_hevc_bit(&b); /* lists_modification_present_flag */
    kni_hevc_bits_ue(&b);  /* log2_parallel_merge_level_minus2 */
    kni_hevc_bit(&b); /* slice_segment_header_extension_present_flag */
    bool extension = kni_hevc_bit(&b);
    if (b.over)
        return "has a cut parameter set";
    return extension ? "uses coding tools that are not known here" : NULL;
}

static const char *check_sps(const uint8_t *bytes, size_t n_bytes, uint32_t width, uint32_t height, uint32_t tools)
{
    struct kni_hevc_claims c;
    const char *bad = read_sps(bytes, n_bytes, &c);
    if (bad)
        return bad;
    if (c.width != width || c.height != height)
        return "has another picture size than expected";
    return c.tools & ~tools ? "uses coding tools that the chunk's header does not name" : NULL;
}

size_t kni_hevc_find_start(const uint8_t *b, size_t n_bytes, size_t at)
{
    while (at + 3 <= n_bytes) {
        const uint8_t *one = memchr(b + at + 2, 1, n_bytes - at - 2);
        if (!one)
            return n_bytes;
        at = (size_t)(one - b) - 2;
        if (!b[at] && !b[at + 1])
            return at;
        at++;
    }
    return n_bytes;
}

const char *kni_hevc_check_unit_tools(const uint8_t *bytes, size_t n_bytes, bool first, uint32_t width, uint32_t height, uint32_t tools)
{
    unsigned n_sps = 0, n_slices = 0;
    size_t at = kni_hevc_find_start(bytes, n_bytes, 0);
    if (at > 1 || (at == 1 && bytes[0]))
        return "does not begin with a start code";
    while (at < n_bytes) {
        size_t begin = at + 3, end = kni_hevc_find_start(bytes, n_bytes, begin);
        if (end - begin < 3)
            return "has an empty NAL unit";
        unsigned type = bytes[begin] >> 1 & 63u, layer = (bytes[begin] & 1u) << 5 | bytes[begin + 1] >> 3;
        const uint8_t *payload = bytes + begin + 2;
        if (layer)
            return "has several layers";
        if (type < NAL_VCL_END) {
            bool irap = type >= NAL_IRAP_FIRST && type < NAL_IRAP_END;
            if (first ? type != NAL_IDR_W_RADL && type != NAL_IDR_N_LP : irap || type > 9)
                return first ? "does not begin with an IDR picture" : "has an unexpected picture type";
            if (first && !n_sps)
                return "begins without a parameter set";
            if ((payload[0] >> 7) != !n_slices) /* first_slice_segment_in_pic_flag */
                return n_slices ? "has a second picture in its access unit" : "lacks its first slice";
            n_slices++;
        } else if (type == NAL_SPS || type == NAL_VPS || type == NAL_PPS) {
            if (!first || n_slices)
                return "changes its parameter sets";
            const char *bad = type == NAL_SPS   ? check_sps(payload, end - begin - 2, width, height, tools)
                              : type == NAL_PPS ? check_pps(payload, end - begin - 2)
                                                : NULL;
            if (bad)
                return bad;
            n_sps += type == NAL_SPS;
        } else if (type != NAL_AUD && type != NAL_SEI_PREFIX && type != NAL_SEI_SUFFIX) {
            return "has an unexpected NAL unit";
        }
        at = end;
    }
    return n_slices ? NULL : "has no picture";
}

const char *kni_hevc_check_unit(const uint8_t *bytes, size_t n_bytes, bool first, uint32_t width, uint32_t height)
{
    return kni_hevc_check_unit_tools(bytes, n_bytes, first, width, height, KNI_HEVC_TOOLS_ALL);
}

const char *kni_hevc_read_claims(const uint8_t *bytes, size_t n_bytes, struct kni_hevc_claims *out)
{
    *out = (struct kni_hevc_claims){0};
    for (size_t at = kni_hevc_find_start(bytes, n_bytes, 0); at < n_bytes;) {
        size_t begin = at + 3, end = kni_hevc_find_start(bytes, n_bytes, begin);
        if (end - begin >= 3 && (bytes[begin] >> 1 & 63u) == NAL_SPS)
            return read_sps(bytes + begin + 2, end - begin - 2, out);
        at = end;
    }
    return "has no sequence parameter set";
}

size_t kni_hevc_unit_end(const uint8_t *bytes, size_t n_bytes, size_t at)
{
    bool slices = false;
    for (at = kni_hevc_find_start(bytes, n_bytes, at); at < n_bytes;) {
        size_t begin = at + 3;
        if (n_bytes - begin < 3)
            return n_bytes;
        unsigned type = bytes[begin] >> 1 & 63u;
        bool opens = type < NAL_VCL_END ? bytes[begin + 2] >> 7 : type != NAL_SEI_SUFFIX;
        if (slices && opens) /* 7.4.2.4.4; the zero byte before a start code belongs to it */
            return at && !bytes[at - 1] ? at - 1 : at;
        slices |= type < NAL_VCL_END;
        at = kni_hevc_find_start(bytes, n_bytes, begin);
    }
    return n_bytes;
}
