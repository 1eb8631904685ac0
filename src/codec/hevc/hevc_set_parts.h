/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Parts of sequence parameter sets that the first look (hevc_syntax.h, escaped bytes) and the reader (hevc_reader_sets.c, a payload)
 * both go through. They only read: what is accepted, and in which words something is refused, is each one's own. Past the end all is
 * zero and b->over is set. Source: ITU-T H.265 (08/2021), 7.3.2.2, 7.3.3, annex E. Any thread.
 */
#ifndef KNI_CODEC_HEVC_SET_PARTS_H
#define KNI_CODEC_HEVC_SET_PARTS_H

#include "codec/hevc/hevc_reader_bits.h"

/* profile_tier_level of one layer. max_bits: the lowest constraint flag that is set (8, 10, 12; 16: none). */
struct kni_hevc_tier { bool high_tier, lower_bit_rate; uint32_t profile_idc, max_bits, level_idc; };
struct kni_hevc_tier kni_hevc_tier_read(struct kni_hevc_bits *b);

/* What vui_parameters may hold that somebody refuses. */
enum kni_hevc_vui {
    KNI_HEVC_VUI_FIELDS = 1 << 0, /* field_seq_flag */
    KNI_HEVC_VUI_WINDOW = 1 << 1, /* default_display_window_flag */
    KNI_HEVC_VUI_HRD = 1 << 2     /* vui_hrd_parameters_present_flag */
};
/* Passes over vui_parameters. Stops behind the first flag of those in refused that is set, and returns it; 0: went to the end.
 * KNI_HEVC_VUI_HRD always counts as refused, as nobody here reads what follows it. */
uint32_t kni_hevc_vui_skip(struct kni_hevc_bits *b, uint32_t refused);

#define KNI_HEVC_N_RANGE_FLAGS 9u
/* Flag i of sps_range_extension, read in order. A set one goes to *tools (bits of enum kni_hevc_tool); of a tool that has no bit
 * there the name is returned. NULL otherwise. */
const char *kni_hevc_range_flag_read(struct kni_hevc_bits *b, uint32_t i, uint32_t *tools);

#endif
