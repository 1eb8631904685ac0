/* SPDX-License-Identifier: Apache-2.0 */
#include "codec/hevc/hevc_set_parts.h"

#include "codec/hevc/hevc_lossless.h"

struct kni_hevc_tier kni_hevc_tier_read(struct kni_hevc_bits *b)
{
    struct kni_hevc_tier t = {0};
    kni_hevc_bits_u(b, 2); /* profile space */
    t.high_tier = kni_hevc_bit(b);
    t.profile_idc = kni_hevc_bits_u(b, 5);
    kni_hevc_bits_u(b, 32); /* compatibility */
    kni_hevc_bits_u(b, 4);  /* source flags */
    bool max_12 = kni_hevc_bit(b), max_10 = kni_hevc_bit(b), max_8 = kni_hevc_bit(b);
    t.max_bits = max_8 ? 8 : max_10 ? 10 : max_12 ? 12 : 16;
    kni_hevc_bits_u(b, 5); /* chroma formats, intra, one picture */
    t.lower_bit_rate = kni_hevc_bit(b);
    kni_hevc_bits_u(b, 3);
    kni_hevc_bits_u(b, 32);
    t.level_idc = kni_hevc_bits_u(b, 8);
    return t;
}

uint32_t kni_hevc_vui_skip(struct kni_hevc_bits *b, uint32_t refused)
{
    if (kni_hevc_bit(b) && kni_hevc_bits_u(b, 8) == 255) /* aspect_ratio_info_present_flag, aspect_ratio_idc */
        kni_hevc_bits_u(b, 32);
    if (kni_hevc_bit(b)) /* overscan_info_present_flag */
        kni_hevc_bit(b);
    if (kni_hevc_bit(b)) { /* video_signal_type_present_flag */
        kni_hevc_bits_u(b, 4);
        if (kni_hevc_bit(b)) /* colour_description_present_flag */
            kni_hevc_bits_u(b, 24);
    }
    if (kni_hevc_bit(b)) { /* chroma_loc_info_present_flag */
        kni_hevc_bits_ue(b);
        kni_hevc_bits_ue(b);
    }
    kni_hevc_bit(b); /* neutral_chroma_indication_flag */
    if (kni_hevc_bit(b) && refused & KNI_HEVC_VUI_FIELDS)
        return KNI_HEVC_VUI_FIELDS;
    kni_hevc_bit(b); /* frame_field_info_present_flag */
    if (kni_hevc_bit(b)) {
        if (refused & KNI_HEVC_VUI_WINDOW)
            return KNI_HEVC_VUI_WINDOW;
        for (uint32_t i = 0; i < 4; i++)
            kni_hevc_bits_ue(b);
    }
    if (kni_hevc_bit(b)) { /* vui_timing_info_present_flag */
        kni_hevc_bits_u(b, 32);
        kni_hevc_bits_u(b, 32);
        if (kni_hevc_bit(b))
            kni_hevc_bits_ue(b);
        if (kni_hevc_bit(b))
            return KNI_HEVC_VUI_HRD;
    }
    if (kni_hevc_bit(b)) { /* bitstream_restriction_flag */
        kni_hevc_bits_u(b, 3);
        for (uint32_t i = 0; i < 5; i++)
            kni_hevc_bits_ue(b);
    }
    return 0;
}

const char *kni_hevc_range_flag_read(struct kni_hevc_bits *b, uint32_t i, uint32_t *tools)
{
    static const struct { const char *unknown; uint32_t tool; } flags[KNI_HEVC_N_RANGE_FLAGS] = {
        {.unknown = "transform_skip_rotation"},
        {.tool = KNI_HEVC_TOOL_SIG_CONTEXT},
        {.tool = KNI_HEVC_TOOL_IMPLICIT_RDPCM},
        {.tool = KNI_HEVC_TOOL_EXPLICIT_RDPCM},
        {.unknown = "extended_precision_processing"},
        {.unknown = "intra_smoothing_disabled"},
        {.unknown = "high_precision_offsets"},
        {.tool = KNI_HEVC_TOOL_RICE},
        {.unknown = "cabac_bypass_alignment"},
    };
    if (!kni_hevc_bit(b))
        return NULL;
    *tools |= flags[i].tool;
    return flags[i].unknown;
}
