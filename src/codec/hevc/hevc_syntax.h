/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A first look at an HEVC access unit before a decoder sees it. Decoders size their tables by what a stream's parameter sets
 * claim, so a few hostile bytes could ask for gigabytes; here the picture size is read first and must be the expected one.
 * Source: ITU-T H.265, 7.3.1 (NAL units), 7.3.2.2 (sequence parameter set), 7.4.2.2 (types), annex B. Any thread.
 */
#ifndef KNI_CODEC_HEVC_SYNTAX_H
#define KNI_CODEC_HEVC_SYNTAX_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* NULL when the unit may be decoded: only slices, parameter sets, delimiters and SEI of layer 0; parameter sets and an IDR
 * picture exactly in the first unit; 4:4:4, 8 bits, width x height. Otherwise what is wrong, as part of a sentence. */
const char *kni_hevc_check_unit(const uint8_t *bytes, size_t n_bytes, bool first, uint32_t width, uint32_t height);

#endif
