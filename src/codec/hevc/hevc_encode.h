/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Pictures to a lossless HEVC section. Knows planes, not tokens: any layout may feed it. Behind it stands Kinema's own encoder
 * (hevc_lossless.h), or, for comparison, one in a plugin (hevc_plugin.h) that is looked for at run time.
 *
 * A section (also read by hevc_decode.h):
 *
 *     [ u32 n_pictures ][ u32 bytes of each access unit ][ access units, Annex B, in output order ]
 *
 * Owner: one thread a handle. The plugin itself is loaded once and shared.
 */
#ifndef KNI_CODEC_HEVC_ENCODE_H
#define KNI_CODEC_HEVC_ENCODE_H

#include "codec/container.h"
#include "codec/hevc/hevc_lossless.h"

struct kni_hevc_encoder;

/* The range extension tools (bits of enum kni_hevc_tool) that streams coded with opts use. */
uint32_t kni_hevc_encoder_tools(const struct kn_hevc_opts *opts);

/* Whether opts can be opened at all, the plugin left aside. KN_E_ARG: an unknown encoder or set of tools, or too many slices. */
enum kn_status kni_hevc_opts_check(const struct kn_hevc_opts *opts, struct kn_err *err);

/* For x265 the plugin is loaded if need be: KN_E_UNSUPPORTED with a sentence when it is missing or of another version.
 * KN_E_ARG: as kni_hevc_opts_check. opts are copied. cpu_without: as in struct kni_hevc_lossless_opts. */
enum kn_status kni_hevc_encoder_open(struct kni_hevc_encoder **out, const struct kn_hevc_opts *opts,
                                     enum kni_hevc_content content, uint32_t cpu_without, struct kn_err *err);
void kni_hevc_encoder_close(struct kni_hevc_encoder **encoder);

/* A stream: begin, n_pictures times picture, end. After a failure, begin starts afresh. width and height: 16
 * to 8192. n_pictures 0: as many as come, and no end: each picture's bytes are taken. row_scale: as in struct kni_hevc_lossless_opts, borrowed for the call, or NULL. */
enum kn_status kni_hevc_encode_begin(struct kni_hevc_encoder *e, uint32_t width, uint32_t height, uint32_t n_pictures, const uint16_t *row_scale,
                                     struct kn_err *err);
enum kn_status kni_hevc_encode_picture(struct kni_hevc_encoder *e, const uint8_t *const planes[3], const size_t strides[3], struct kn_err *err);
/* Of a stream without end: the access units since the last call, borrowed until the next call of anything here. */
void kni_hevc_encode_take(struct kni_hevc_encoder *e, const uint8_t **bytes, size_t *n_bytes);
/* Writes the section's bytes to w; the caller ends the section. */
enum kn_status kni_hevc_encode_end(struct kni_hevc_encoder *e, struct kni_container_writer *w, struct kn_err *err);

/* Bytes that the handle holds, the plugin's own memory not counted. */
size_t kni_hevc_encoder_bytes(const struct kni_hevc_encoder *e);

#endif
