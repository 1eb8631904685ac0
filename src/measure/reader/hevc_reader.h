/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A reader of lossless HEVC: says where the bits of a stream go, and rebuilds its pictures. It is the second opinion on what
 * Kinema's own encoder writes (it knows the range extension tools that other free decoders lack), and it measures rivals' streams.
 *
 *     Annex B bytes --kni_hevc_reader_read--> on_slice, on_picture (counts, row bands, planes)
 *
 * Scope: 8-bit 4:4:4, one layer, I and P slices, cu_transquant_bypass in every coding unit, range extension tools of
 * enum kni_hevc_tool. Anything else is refused by name. Intra prediction is rebuilt in full, inter prediction only without motion
 * from the picture before, weighted or not: a picture that needs more is parsed and counted, and its planes are NULL with the reason in why.
 *
 * It is made to be right, not fast: an array of cells of 4 x 4 samples says what each place holds, every bin is counted.
 *
 * Hostile bytes: no length is trusted, memory grows with the picture size that the parameter set claims, up to max_samples.
 * Owner: one thread a handle. Source: ITU-T H.265 (08/2021), 7.3, 8.4, 8.6.2, 9.2, 9.3.
 */
#ifndef KNI_CODEC_HEVC_READER_H
#define KNI_CODEC_HEVC_READER_H

#include "base/status.h"
#include "kinema/codec.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct kni_hevc_reader;

/* The planes of a picture as coded (width x height of the parameter set, the window not cut), borrowed for the call. */
struct kni_hevc_rebuilt {
    const uint8_t *plane[3]; /* NULL: not rebuilt */
    size_t stride;
    const char *why;         /* planes NULL: the reason, part of a sentence; static */
};

struct kni_hevc_reader_opts {
    uint32_t band_rows;   /* rows of a band, a multiple of 4; 0: 16 */
    bool rebuild;         /* make planes */
    uint64_t max_samples; /* of a plane; larger pictures are refused; 0: 8192 x 8192 */
    /* Each may be NULL. on_params comes before a picture whose parameter sets are new. Anything but KN_OK ends reading. */
    enum kn_status (*on_params)(void *user, const struct kn_hevc_params *params, struct kn_err *err);
    enum kn_status (*on_slice)(void *user, const struct kn_hevc_slice *slice, struct kn_err *err);
    enum kn_status (*on_picture)(void *user, const struct kn_hevc_picture *picture, const struct kni_hevc_rebuilt *rebuilt, struct kn_err *err);
    void *user;
};

/* opts are copied. KN_E_ARG, KN_E_NOMEM. */
enum kn_status kni_hevc_reader_open(struct kni_hevc_reader **out, const struct kni_hevc_reader_opts *opts, struct kn_err *err);
/* NULL and half-built states are fine. */
void kni_hevc_reader_close(struct kni_hevc_reader **reader);
/* Reads whole NAL units, at least one: an access unit, or many. KN_E_FORMAT, KN_E_UNSUPPORTED, KN_E_NOMEM, or what a callback returned;
 * after a failure only close may follow. */
enum kn_status kni_hevc_reader_read(struct kni_hevc_reader *r, const uint8_t *bytes, size_t n_bytes, struct kn_err *err);
/* After the last bytes: KN_E_FORMAT when the last picture is not complete or there was none. Fills totals of the stream but for section and index, if
 * not NULL; bands are borrowed until the next call. */
enum kn_status kni_hevc_reader_end(struct kni_hevc_reader *r, struct kn_hevc_stream *stream, struct kn_err *err);

#endif
