/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Parameter sets and slice headers (H.265, 7.3.1.1, 7.3.2.1 to 7.3.2.3, 7.3.6.1, annexes A and B). Main 4:4:4 of the format range
 * extensions, one temporal layer, one reference picture, all filters off. Headers are built bit by bit in a small buffer and
 * escaped when they are moved to the stream.
 */
#include "codec/hevc/hevc_state.h"

#include <assert.h>
#include <string.h>

enum { NAL_TRAIL_R = 1, NAL_IDR_N_LP = 20, NAL_VPS = 32, NAL_SPS = 33, NAL_PPS = 34 };

struct bits { uint8_t *bytes; size_t n_bits; };

static void put(struct bits *b, uint32_t value, uint32_t n)
{
    while (n--) {
        if (b->n_bits % 8 == 0)
            b->bytes[b->n_bits / 8] = 0;
        b->bytes[b->n_bits / 8] |= (uint8_t)((value >> n & 1) << (7 - b->n_bits % 8));
        b->n_bits++;
    }
}

static void put_ue(struct bits *b, uint32_t value)
{
    uint32_t n = 31u - (uint32_t)__builtin_clz(value + 1);
    put(b, 0, n);
    put(b, value + 1, n + 1);
}

static void put_se(struct bits *b, int32_t value)
{
    put_ue(b, value > 0 ? 2 * (uint32_t)value - 1 : 2 * (uint32_t)-value);
}

/* A one and zeros up to the byte's end: rbsp_trailing_bits and byte_alignment. */
static size_t align(struct bits *b)
{
    put(b, 1, 1);
    while (b->n_bits % 8)
        put(b, 0, 1);
    return b->n_bits / 8;
}

/* From i on by eights past what has no zero byte, as long as there are eight of the n at bytes. */
static size_t skip_to_zero(const uint8_t *bytes, size_t i, size_t n)
{
    const uint64_t ones = 0x0101010101010101u;
    for (; i + 8 <= n; i += 8) {
        uint64_t word;
        memcpy(&word, bytes + i, 8);
        if ((word - ones) & ~word & ones << 7)
            return i;
    }
    return i;
}

size_t kni_hevc_escape(uint8_t *payload, size_t n)
{
    size_t n_more = 0, zeros = 0;
    for (size_t i = 0; i < n; i++) { /* one byte of 256 is zero: most are passed over by words */
        if (!zeros)
            i = skip_to_zero(payload, i, n);
        for (const size_t end = i + 8 < n ? i + 8 : n; i < end; i++) {
            if (zeros >= 2 && payload[i] <= 3) {
                n_more++;
                zeros = 0;
            }
            zeros = payload[i] ? 0 : zeros + 1;
        }
        i--;
    }
    if (!n_more)
        return n;
    /* From a copy that was moved to the end of the room, forwards. */
    uint8_t *from = payload + n_more;
    memmove(from, payload, n);
    size_t to = 0;
    zeros = 0;
    for (size_t i = 0; i < n; i++) {
        if (zeros >= 2 && from[i] <= 3) {
            payload[to++] = 3;
            zeros = 0;
        }
        zeros = from[i] ? 0 : zeros + 1;
        payload[to++] = from[i];
    }
    return to;
}

static uint8_t *nal_begin(uint8_t *out, uint32_t type)
{
    static const uint8_t start[4] = {0, 0, 0, 1};
    memcpy(out, start, 4);
    out[4] = (uint8_t)(type << 1);
    out[5] = 1; /* layer 0, temporal id 0 */
    return out + 6;
}

static void put_profile_tier_level(struct bits *b, const struct kni_hevc_lossless *e)
{
    put(b, 0, 2); /* general_profile_space */
    put(b, e->level->high, 1); /* general_tier_flag */
    put(b, 4, 5); /* general_profile_idc: format range extensions */
    put(b, 1u << 27, 32); /* general_profile_compatibility_flag[4] */
    put(b, 9, 4);     /* progressive_source, interlaced_source, non_packed_constraint, frame_only_constraint: 1 0 0 1 */
    put(b, 0x1c1, 9); /* main 4:4:4: max 12, 10, 8 bits 1 1 1; max 4:2:2, 4:2:0, monochrome 0 0 0; intra, one picture only 0 0; lower bit rate 1 */
    put(b, 0, 32);
    put(b, 0, 2);
    put(b, 0, 1);
    put(b, e->level->idc, 8);
}

static void put_sps(struct bits *b, const struct kni_hevc_lossless *e)
{
    put(b, 0, 4); /* sps_video_parameter_set_id */
    put(b, 0, 3); /* sps_max_sub_layers_minus1 */
    put(b, 1, 1); /* sps_temporal_id_nesting_flag */
    put_profile_tier_level(b, e);
    put_ue(b, 0); /* sps_seq_parameter_set_id */
    put_ue(b, 3); /* chroma_format_idc: 4:4:4 */
    put(b, 0, 1); /* separate_colour_plane_flag */
    put_ue(b, e->coded_width);
    put_ue(b, e->coded_height);
    const bool window = e->coded_width != e->width || e->coded_height != e->height;
    put(b, window, 1); /* conformance_window_flag */
    if (window) {
        put_ue(b, 0);
        put_ue(b, e->coded_width - e->width);
        put_ue(b, 0);
        put_ue(b, e->coded_height - e->height);
    }
    put_ue(b, 0); /* bit_depth_luma_minus8 */
    put_ue(b, 0); /* bit_depth_chroma_minus8 */
    put_ue(b, 4); /* log2_max_pic_order_cnt_lsb_minus4 */
    put(b, 1, 1); /* sps_sub_layer_ordering_info_present_flag */
    put_ue(b, 1); /* sps_max_dec_pic_buffering_minus1 */
    put_ue(b, 0); /* sps_max_num_reorder_pics */
    put_ue(b, 0); /* sps_max_latency_increase_plus1 */
    put_ue(b, KNI_HEVC_MIN_CU_LOG2 - 3);
    put_ue(b, e->ctb_log2 - KNI_HEVC_MIN_CU_LOG2);
    put_ue(b, 0); /* log2_min_luma_transform_block_size_minus2 */
    put_ue(b, (e->ctb_log2 < KNI_HEVC_MAX_BLOCK_LOG2 ? e->ctb_log2 : KNI_HEVC_MAX_BLOCK_LOG2) - 2);
    put_ue(b, 0); /* max_transform_hierarchy_depth_inter */
    put_ue(b, 0); /* max_transform_hierarchy_depth_intra */
    put(b, 0, 1); /* scaling_list_enabled_flag */
    put(b, 0, 1); /* amp_enabled_flag */
    put(b, 0, 1); /* sample_adaptive_offset_enabled_flag */
    put(b, e->pcm, 1); /* pcm_enabled_flag */
    if (e->pcm) {
        put(b, 0x77, 8); /* pcm_sample_bit_depth_luma_minus1, chroma */
        put_ue(b, KNI_HEVC_MIN_CU_LOG2 - 3); /* log2_min_pcm_luma_coding_block_size_minus3 */
        put_ue(b, e->ctb_log2 - KNI_HEVC_MIN_CU_LOG2);
        put(b, 1, 1); /* pcm_loop_filter_disabled_flag */
    }
    put_ue(b, 1); /* num_short_term_ref_pic_sets: the picture before */
    put_ue(b, 1); /* num_negative_pics */
    put_ue(b, 0); /* num_positive_pics */
    put_ue(b, 0); /* delta_poc_s0_minus1 */
    put(b, 1, 1); /* used_by_curr_pic_s0_flag */
    put(b, 0, 1); /* long_term_ref_pics_present_flag */
    put(b, 0, 1); /* sps_temporal_mvp_enabled_flag */
    put(b, 0, 1); /* strong_intra_smoothing_enabled_flag */
    put(b, 0, 1); /* vui_parameters_present_flag */
    put(b, e->tools != 0, 1); /* sps_extension_present_flag */
    if (!e->tools)
        return;
    put(b, 0x80, 8); /* sps_range_extension_flag, others */
    put(b, 0, 1);    /* transform_skip_rotation_enabled_flag */
    put(b, !!(e->tools & KNI_HEVC_TOOL_SIG_CONTEXT), 1);
    put(b, !!(e->tools & KNI_HEVC_TOOL_IMPLICIT_RDPCM), 1);
    put(b, !!(e->tools & KNI_HEVC_TOOL_EXPLICIT_RDPCM), 1);
    put(b, 0, 3); /* extended_precision_processing, intra_smoothing_disabled, high_precision_offsets_enabled */
    put(b, !!(e->tools & KNI_HEVC_TOOL_RICE), 1);
    put(b, 0, 1); /* cabac_bypass_alignment_enabled_flag */
}

static void put_vps(struct bits *b, const struct kni_hevc_lossless *e)
{
    put(b, 0, 4);      /* vps_video_parameter_set_id */
    put(b, 3, 2);      /* vps_base_layer_internal_flag, vps_base_layer_available_flag */
    put(b, 0, 6);      /* vps_max_layers_minus1 */
    put(b, 0, 3);      /* vps_max_sub_layers_minus1 */
    put(b, 1, 1);      /* vps_temporal_id_nesting_flag */
    put(b, 0xffff, 16);
    put_profile_tier_level(b, e);
    put(b, 1, 1);      /* vps_sub_layer_ordering_info_present_flag */
    put_ue(b, 1);
    put_ue(b, 0);
    put_ue(b, 0);
    put(b, 0, 6);      /* vps_max_layer_id */
    put_ue(b, 0);      /* vps_num_layer_sets_minus1 */
    put(b, 0, 1);      /* vps_timing_info_present_flag */
    put(b, 0, 1);      /* vps_extension_flag */
}

static void put_pps(struct bits *b, const struct kni_hevc_lossless *e)
{
    put_ue(b, 0);     /* pps_pic_parameter_set_id */
    put_ue(b, 0);     /* pps_seq_parameter_set_id */
    put(b, 0, 1);     /* dependent_slice_segments_enabled_flag */
    put(b, 0, 1);     /* output_flag_present_flag */
    put(b, 0, 3);     /* num_extra_slice_header_bits */
    put(b, 0, 1);     /* sign_data_hiding_enabled_flag */
    put(b, 1, 1);     /* cabac_init_present_flag */
    put_ue(b, 0);     /* num_ref_idx_l0_default_active_minus1 */
    put_ue(b, 0);
    put_se(b, e->qp - 26); /* init_qp_minus26 */
    put(b, 0, 1);     /* constrained_intra_pred_flag */
    put(b, 0, 1);     /* transform_skip_enabled_flag */
    put(b, 0, 1);     /* cu_qp_delta_enabled_flag */
    put_se(b, 0);     /* pps_cb_qp_offset */
    put_se(b, 0);
    put(b, 0, 1);     /* pps_slice_chroma_qp_offsets_present_flag */
    put(b, e->n_refs > 1, 1); /* weighted_pred_flag */
    put(b, 0, 1);     /* weighted_bipred_flag */
    put(b, 1, 1);     /* transquant_bypass_enabled_flag */
    put(b, 0, 1);     /* tiles_enabled_flag */
    put(b, 0, 1);     /* entropy_coding_sync_enabled_flag */
    put(b, 0, 1);     /* pps_loop_filter_across_slices_enabled_flag */
    put(b, 1, 1);     /* deblocking_filter_control_present_flag */
    put(b, 0, 1);     /* deblocking_filter_override_enabled_flag */
    put(b, 1, 1);     /* pps_deblocking_filter_disabled_flag */
    put(b, 0, 1);     /* pps_scaling_list_data_present_flag */
    put(b, 0, 1);     /* lists_modification_present_flag */
    put_ue(b, 0);     /* log2_parallel_merge_level_minus2 */
    put(b, 0, 1);     /* slice_segment_header_extension_present_flag */
    put(b, 0, 1);     /* pps_extension_present_flag */
}

size_t kni_hevc_lossless_headers(const struct kni_hevc_lossless *e, uint8_t *out)
{
    static const struct { uint32_t type; void (*put)(struct bits *, const struct kni_hevc_lossless *); } sets[] = {
        {NAL_VPS, put_vps}, {NAL_SPS, put_sps}, {NAL_PPS, put_pps}};
    uint8_t *at = out;
    for (uint32_t i = 0; i < 3; i++) {
        uint8_t *payload = nal_begin(at, sets[i].type);
        struct bits b = {.bytes = payload};
        sets[i].put(&b, e);
        at = payload + kni_hevc_escape(payload, align(&b));
    }
    assert(at - out <= KNI_HEVC_LOSSLESS_HEADERS);
    return (size_t)(at - out);
}

/* pred_weight_table, 7.3.6.3: sample * fade / 8 + 128 * (8 - fade) / 8. Chroma's offset is coded against just that. */
static void put_weights(struct bits *b, const struct kni_hevc_lossless *e, uint32_t n_refs)
{
    const int32_t one = 1 << KNI_HEVC_FADE_LOG2;
    put_ue(b, KNI_HEVC_FADE_LOG2); /* luma_log2_weight_denom */
    put_se(b, 0);                  /* delta_chroma_log2_weight_denom */
    for (uint32_t k = 0; k < 2; k++)
        for (uint32_t r = 0; r < n_refs; r++)
            put(b, e->fade[r] != one, 1); /* luma_weight_l0_flag, chroma_weight_l0_flag */
    for (uint32_t r = 0; r < n_refs; r++) {
        const int32_t fade = e->fade[r];
        if (fade == one)
            continue;
        put_se(b, fade - one);
        put_se(b, 128 - ((128 * fade) >> KNI_HEVC_FADE_LOG2)); /* luma_offset_l0 */
        for (uint32_t k = 0; k < 2; k++) {
            put_se(b, fade - one);
            put_se(b, 0); /* delta_chroma_offset_l0 */
        }
    }
}

size_t kni_hevc_slice_header(const struct kni_hevc_lossless *e, const struct kni_hevc_job *job, uint32_t i, uint32_t n_refs, uint8_t *out)
{
    uint8_t *payload = nal_begin(out, job->first ? NAL_IDR_N_LP : NAL_TRAIL_R);
    struct bits b = {.bytes = payload};
    put(&b, i == 0, 1); /* first_slice_segment_in_pic_flag */
    if (job->first)
        put(&b, 0, 1); /* no_output_of_prior_pics_flag */
    put_ue(&b, 0);     /* slice_pic_parameter_set_id */
    if (i) {
        uint32_t n = e->ctb_cols * e->ctb_rows, n_bits = n > 1 ? 32u - (uint32_t)__builtin_clz(n - 1) : 0;
        put(&b, e->slice_row[i] * e->ctb_cols, n_bits); /* slice_segment_address */
    }
    put_ue(&b, job->first ? 2 : 1); /* slice_type: I, P */
    if (!job->first) {
        put(&b, job->index & 255, 8); /* slice_pic_order_cnt_lsb */
        put(&b, 1, 1); /* short_term_ref_pic_set_sps_flag */
        put(&b, n_refs > 1, 1); /* num_ref_idx_active_override_flag */
        if (n_refs > 1)
            put_ue(&b, n_refs - 1); /* num_ref_idx_l0_active_minus1: the list repeats its one picture */
        put(&b, e->init_type == 2, 1); /* cabac_init_flag */
        if (e->n_refs > 1)
            put_weights(&b, e, n_refs);
        put_ue(&b, 4); /* five_minus_max_num_merge_cand: one candidate, which is no motion */
    }
    put_se(&b, 0); /* slice_qp_delta */
    return (size_t)(payload - out) + align(&b); /* the caller escapes header and data together */
}
