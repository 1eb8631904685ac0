/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A first look at an HEVC access unit before a decoder sees it. Decoders size their tables by what a stream's parameter sets
 * claim, so a few hostile bytes could ask for gigabytes; here the picture size is read first and must be the expected one, and so
 * are the coding tools, of which a decoder may lack some. Parameter sets are read to their end, and what no encoder of lossless
 * pictures needs is refused (tiles, scaling lists, separate planes, other extensions).
 * Source: ITU-T H.265 (08/2021), 7.3.1 (NAL units), 7.3.2 (parameter sets), 7.3.6.1 (slice header's first bit), 7.4.2.2 (types), annexes B
 * and E. Any thread.
 */
#ifndef KNI_CODEC_HEVC_SYNTAX_H
#define KNI_CODEC_HEVC_SYNTAX_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* What a sequence parameter set claims. */
struct kni_hevc_claims {
    uint32_t width, height;             /* of pictures as they come out, the conformance window cut off */
    uint32_t coded_width, coded_height;
    uint32_t tools;                     /* bits of enum kni_hevc_tool */
};

/* NULL when the unit may be decoded: only slices of one picture, parameter sets, delimiters and SEI of layer 0; parameter sets and an
 * IDR picture exactly in the first unit; 4:4:4, 8 bits, width x height; no range extension tools but tools. Otherwise what is wrong, as part
 * of a sentence. */
const char *kni_hevc_check_unit_tools(const uint8_t *bytes, size_t n_bytes, bool first, uint32_t width, uint32_t height, uint32_t tools);
/* The same with every tool of enum kni_hevc_tool. */
const char *kni_hevc_check_unit(const uint8_t *bytes, size_t n_bytes, bool first, uint32_t width, uint32_t height);

/* Reads the first sequence parameter set of a stream. NULL, or what is wrong with it or missing, as part of a sentence. */
const char *kni_hevc_read_claims(const uint8_t *bytes, size_t n_bytes, struct kni_hevc_claims *out);

/* The next start code 00 00 01 at or after at, or n_bytes. */
size_t kni_hevc_find_start(const uint8_t *bytes, size_t n_bytes, size_t at);

/* Where the access unit that begins at byte `at` of an Annex B stream ends: where the next one's start code begins, or n_bytes. In a stream
 * that is read piece by piece, n_bytes may also mean that the next one has not been read far enough to be seen. */
size_t kni_hevc_unit_end(const uint8_t *bytes, size_t n_bytes, size_t at);

#endif
