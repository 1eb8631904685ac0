/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Walks the NAL units of an access unit and reads the head of a sequence parameter set. Reads only inside the bytes given;
 * a bit reader that runs out returns zeros and says so.
 */
#include "codec/hevc/hevc_syntax.h"

#include <string.h>

#include "codec/hevc/hevc_lossless.h"

enum { NAL_VCL_END = 32, NAL_IRAP_FIRST = 16, NAL_IRAP_END = 24, NAL_IDR_W_RADL = 19, NAL_IDR_N_LP = 20, NAL_VPS = 32, NAL_SPS = 33, NAL_PPS = 34, NAL_AUD = 35, NAL_SEI_PREFIX = 39, NAL_SEI_SUFFIX = 40 };

struct bits {
    const uint8_t *bytes;
    size_t n_bytes, at; /* next byte */
    uint32_t zeros;     /* zero bytes just read: 00 00 03 hides the 03 */
    uint32_t byte, left; /* bits not yet taken of the current byte */
    bool over;
};

static uint32_t take_bit(struct bits *b)
{
    if (!b->left) {
        if (b->zeros >= 2 && b->at < b->n_bytes && b->bytes[b->at] == 3) {
            b->at++;
            b->zeros = 0;
        }
        if (b->at >= b->n_bytes) {
            b->over = true;
            return 0;
        }
        b->byte = b->bytes[b->at++];
        b->zeros = b->byte ? 0 : b->zeros + 1;
        b->left = 8;
    }
    return b->byte >> --b->left & 1u;
}

static uint32_t take_bits(struct bits *b, uint32_t n)
{
    uint32_t x = 0;
    while (n--)
        x = x << 1 | take_bit(b);
    return x;
}

/* ue(v), 9.2. Values of 2^16 and more count as running out: nothing here is that large. */
static uint32_t take_ue(struct bits *b)
{
    uint32_t n = 0;
    while (!take_bit(b))
        if (b->over || ++n > 16) {
            b->over = true;
            return 0;
        }
    return (1u << n) - 1 + take_bits(b, n);
}

/* Passes over profile_tier_level of one layer: 88 bits of profile, 8 of level. */
static void skip_profile(struct bits *b)
{
    take_bits(b, 32);
    take_bits(b, 32);
    take_bits(b, 32);
}

/* st_ref_pic_set of the parameter set (7.3.7). False: a form that is not read here. */
static bool skip_reference_sets(struct bits *b)
{
    uint32_t n = take_ue(b);
    if (n > 64)
        return false;
    for (uint32_t i = 0; i < n && !b->over; i++) {
        if (i && take_bit(b)) /* inter_ref_pic_set_prediction_flag */
            return false;
        uint32_t n_negative = take_ue(b), n_positive = take_ue(b);
        if (n_negative > 16 || n_positive > 16)
            return false;
        for (uint32_t k = 0; k < n_negative + n_positive && !b->over; k++) {
            take_ue(b);
            take_bit(b);
        }
    }
    if (take_bit(b)) { /* long_term_ref_pics_present_flag */
        n = take_ue(b);
        if (n)
            return false;
    }
    return true;
}

/* vui_parameters (annex E.2.1). False: it cuts pictures or carries HRD parameters. */
static bool skip_vui(struct bits *b)
{
    if (take_bit(b) && take_bits(b, 8) == 255) /* aspect_ratio_info_present_flag, aspect_ratio_idc */
        take_bits(b, 32);
    if (take_bit(b)) /* overscan_info_present_flag */
        take_bit(b);
    if (take_bit(b)) { /* video_signal_type_present_flag */
        take_bits(b, 4);
        if (take_bit(b)) /* colour_description_present_flag */
            take_bits(b, 24);
    }
    if (take_bit(b)) { /* chroma_loc_info_present_flag */
        take_ue(b);
        take_ue(b);
    }
    take_bits(b, 3); /* neutral_chroma_indication, field_seq, frame_field_info_present */
    if (take_bit(b)) /* default_display_window_flag */
        return false;
    if (take_bit(b)) { /* vui_timing_info_present_flag */
        take_bits(b, 32);
        take_bits(b, 32);
        if (take_bit(b))
            take_ue(b);
        if (take_bit(b)) /* vui_hrd_parameters_present_flag */
            return false;
    }
    if (take_bit(b)) { /* bitstream_restriction_flag */
        take_bits(b, 3);
        for (int i = 0; i < 5; i++)
            take_ue(b);
    }
    return true;
}

/* sps_range_extension (7.3.2.2.2), flags from the first on. 0 in *tools for those that have no name here, and false. */
static bool take_range_extension(struct bits *b, uint32_t *tools)
{
    static const uint32_t names[9] = {[1] = KNI_HEVC_TOOL_SIG_CONTEXT, [2] = KNI_HEVC_TOOL_IMPLICIT_RDPCM, [3] = KNI_HEVC_TOOL_EXPLICIT_RDPCM,
                                      [7] = KNI_HEVC_TOOL_RICE};
    bool known = true;
    for (int i = 0; i < 9; i++)
        if (take_bit(b)) {
            known &= names[i] != 0;
            *tools |= names[i];
        }
    return known;
}

static const char *read_sps(const uint8_t *bytes, size_t n_bytes, struct kni_hevc_claims *out)
{
    struct bits b = {.bytes = bytes, .n_bytes = n_bytes};
    *out = (struct kni_hevc_claims){0};
    take_bits(&b, 4); /* sps_video_parameter_set_id */
    if (take_bits(&b, 3) != 0)
        return "has temporal sub-layers";
    take_bits(&b, 1);
    skip_profile(&b);
    take_ue(&b); /* sps_seq_parameter_set_id */
    uint32_t chroma = take_ue(&b);
    if (chroma == 3 && take_bit(&b))
        return "codes its planes separately";
    uint32_t window[4] = {0}; /* left, right, top, bottom */
    out->coded_width = take_ue(&b);
    out->coded_height = take_ue(&b);
    if (take_bit(&b))
        for (int i = 0; i < 4; i++)
            window[i] = take_ue(&b);
    uint32_t luma = take_ue(&b), chroma_depth = take_ue(&b);
    if (b.over)
        return "has a cut parameter set";
    if (chroma != 3 || luma || chroma_depth)
        return "is not 8-bit 4:4:4";
    /* pictures are coded in whole blocks of at most 64 x 64, and what is beyond their right and bottom edge is cut off */
    if (window[0] || window[2] || window[1] >= 64 || window[3] >= 64 || window[1] >= out->coded_width || window[3] >= out->coded_height)
        return "has an unexpected conformance window";
    out->width = out->coded_width - window[1];
    out->height = out->coded_height - window[3];
    take_ue(&b); /* log2_max_pic_order_cnt_lsb_minus4 */
    take_bit(&b); /* sps_sub_layer_ordering_info_present_flag: the same for one layer */
    for (int i = 0; i < 3 + 6; i++) /* of the layer; sizes of coding blocks, transforms, depths of transform trees */
        take_ue(&b);
    if (take_bit(&b))
        return "has scaling lists";
    take_bits(&b, 2);    /* amp_enabled_flag, sample_adaptive_offset_enabled_flag */
    if (take_bit(&b)) {  /* pcm_enabled_flag */
        take_bits(&b, 8);
        take_ue(&b);
        take_ue(&b);
        take_bit(&b);
    }
    if (!skip_reference_sets(&b))
        return "has an unexpected set of reference pictures";
    take_bits(&b, 2); /* sps_temporal_mvp_enabled_flag, strong_intra_smoothing_enabled_flag */
    if (take_bit(&b) && !skip_vui(&b))
        return "has unexpected VUI parameters";
    uint32_t extensions = take_bit(&b) ? take_bits(&b, 8) : 0;
    bool known = !(extensions & 0x80) || take_range_extension(&b, &out->tools);
    if (b.over)
        return "has a cut parameter set";
    return known && !(extensions & 0x7f) ? NULL : "uses coding tools that are not known here";
}

static const char *check_pps(const uint8_t *bytes, size_t n_bytes)
{
    struct bits b = {.bytes = bytes, .n_bytes = n_bytes};
    take_ue(&b); /* pps_pic_parameter_set_id */
    take_ue(&b);
    take_bits(&b, 7); /* dependent slices, output flag, extra bits (3), sign hiding, cabac_init_present_flag */
    for (int i = 0; i < 3; i++) /* reference indices, init_qp_minus26 */
        take_ue(&b);
    take_bits(&b, 2); /* constrained_intra_pred_flag, transform_skip_enabled_flag */
    if (take_bit(&b)) /* cu_qp_delta_enabled_flag */
        take_ue(&b);
    take_ue(&b); /* pps_cb_qp_offset */
    take_ue(&b);
    take_bits(&b, 4); /* slice chroma offsets, weighted_pred_flag, weighted_bipred_flag, transquant_bypass_enabled_flag */
    if (take_bit(&b))
        return "has tiles";
    take_bits(&b, 2); /* entropy_coding_sync_enabled_flag, pps_loop_filter_across_slices_enabled_flag */
    if (take_bit(&b)) { /* deblocking_filter_control_present_flag */
        take_bit(&b);
        if (!take_bit(&b)) { /* pps_deblocking_filter_disabled_flag */
            take_ue(&b);
            take_ue(&b);
        }
    }
    if (take_bit(&b))
        return "has scaling lists";
    take_bit(&b); /* lists_modification_present_flag */
    take_ue(&b);  /* log2_parallel_merge_level_minus2 */
    take_bit(&b); /* slice_segment_header_extension_present_flag */
    bool extension = take_bit(&b);
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
