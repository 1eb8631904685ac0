/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Pictures to a lossless HEVC section. Knows planes, not tokens: any layout may feed it. The encoder itself is a plugin
 * (hevc_plugin.h) found at run time; another one, or our own, can take its place without a layout noticing.
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

struct kni_hevc_encoder;

/* Loads the plugin if need be. KN_E_UNSUPPORTED with a sentence when it is missing or of another version. */
enum kn_status kni_hevc_encoder_open(struct kni_hevc_encoder **out, struct kn_err *err);
void kni_hevc_encoder_close(struct kni_hevc_encoder **encoder);

/* A stream: begin, n_pictures times picture, end. After a failure, begin starts afresh. width and height: multiples
 * of 16. */
enum kn_status kni_hevc_encode_begin(struct kni_hevc_encoder *e, uint32_t width, uint32_t height, uint32_t n_pictures, struct kn_err *err);
enum kn_status kni_hevc_encode_picture(struct kni_hevc_encoder *e, const uint8_t *const planes[3], const size_t strides[3], struct kn_err *err);
/* Writes the section's bytes to w; the caller ends the section. */
enum kn_status kni_hevc_encode_end(struct kni_hevc_encoder *e, struct kni_container_writer *w, struct kn_err *err);

/* Bytes that the handle holds, the plugin's own memory not counted. */
size_t kni_hevc_encoder_bytes(const struct kni_hevc_encoder *e);

#endif
