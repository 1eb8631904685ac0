/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The seal of a bare stream: what it holds, said at both ends, so that damage shows which decoders and picture hashes do not see: a stream
 * cut between two pictures, pictures that are missing, twice there or in another order, a conformance window that moved.
 *
 *     [VPS][SPS][PPS] [SEI: opens] [slices] [SEI: hash]   [slices] [SEI: hash] ...   [slices] [SEI: hash] [SEI: closes]
 *                          |                                                                                  |
 *          width, height, digests of the parameter sets                               number of pictures, digest of all slices
 *
 * Both are messages "user data unregistered" of H.265 (D.2.7, D.3.7), which other decoders pass over; each means that the other must be
 * there. Offsets and digests: doc/format-video.md. Delimiters and other SEI may come and go, and parameter sets may be repeated, as
 * multiplexers do it. A stream without both messages has no seal, and nothing is asked of it.
 * Sections of chunks have none: containers have XXH3. Owner: one thread a seal.
 */
#ifndef KNI_CODEC_HEVC_SEAL_H
#define KNI_CODEC_HEVC_SEAL_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/status.h"

#define KNI_HEVC_SEAL_BYTES 128u /* of a NAL unit, at most */

/* Zeroed: of a stream that has not begun. */
struct kni_hevc_seal {
    uint32_t width, height;  /* as the opening says */
    uint64_t sets[3];        /* digests of VPS, SPS, PPS */
    uint64_t slices, n_pictures; /* of what has been added */
    bool opened, closed;
};

/* Writing. The opening of a stream of width x height whose first access unit is this one: a NAL unit with its start code to
 * out[KNI_HEVC_SEAL_BYTES]; returns its size, and in *at the place in the unit where it belongs. */
size_t kni_hevc_seal_open(struct kni_hevc_seal *seal, const uint8_t *unit, size_t n_bytes, uint32_t width, uint32_t height, uint8_t *out, size_t *at);
/* The same access unit, and each that follows it. */
void kni_hevc_seal_add(struct kni_hevc_seal *seal, const uint8_t *unit, size_t n_bytes);
/* The closing, to be written behind the last access unit; returns its size. */
size_t kni_hevc_seal_close(struct kni_hevc_seal *seal, uint8_t *out);

/* Reading: takes the next access unit of a stream whose pictures come out as width x height. KN_E_FORMAT: not what the seal says. */
enum kn_status kni_hevc_seal_follow(struct kni_hevc_seal *seal, const uint8_t *unit, size_t n_bytes, uint32_t width, uint32_t height, struct kn_err *err);
/* Behind the last access unit. KN_E_FORMAT: the seal was not closed. */
enum kn_status kni_hevc_seal_end(const struct kni_hevc_seal *seal, struct kn_err *err);

#endif
