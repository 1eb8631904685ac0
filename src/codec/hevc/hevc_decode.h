/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A HEVC section (hevc_encode.h) back to pictures, one by one, through libavcodec on one thread. The counterpart of
 * hevc_encode.h and as ignorant of tokens.
 *
 * Hostile bytes: sizes are checked before anything is allocated by them (hevc_syntax.h), every picture must have the
 * expected size and format, any complaint of the decoder refuses the stream. Picture memory comes from kni_alloc, is counted,
 * and is bounded by the pictures that a decoder may hold (17) times their size.
 *
 * Owner: one thread a handle. libavcodec says nothing about these streams; its log settings are left to the program.
 */
#ifndef KNI_CODEC_HEVC_DECODE_H
#define KNI_CODEC_HEVC_DECODE_H

#include "base/status.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define KNI_HEVC_MAX_SIDE 8192u

struct kni_hevc_decoder;

/* Opens libavcodec (about 60 ms), which the first decode does otherwise: for whoever wants the time, or the error,
 * earlier. KN_E_UNSUPPORTED with a sentence. Any thread. */
enum kn_status kni_hevc_decode_prepare(struct kn_err *err);

/* Called once a picture, in order. planes are borrowed for the call. Anything but KN_OK ends decoding with that status. */
typedef enum kn_status (*kni_hevc_picture_fn)(void *user, uint32_t index, const uint8_t *const planes[3], const size_t strides[3], struct kn_err *err);

/* What a stream must be. */
struct kni_hevc_expect {
    uint32_t width, height, n_pictures;
    uint32_t tools; /* bits of enum kni_hevc_tool that it may use */
    bool hashes;    /* check decoded picture hashes (hevc_hash.h); all pictures have one, or none has */
};

/* Unit by unit: begin, an access unit at a time, end, which hands out what the decoder still holds. expect->n_pictures 0: any number. *decoder
 * and failures as for kni_hevc_decode_expect. */
enum kn_status kni_hevc_decode_begin(struct kni_hevc_decoder **decoder, const struct kni_hevc_expect *expect, struct kn_err *err);
enum kn_status kni_hevc_decode_unit(struct kni_hevc_decoder **decoder, const uint8_t *bytes, size_t n_bytes, kni_hevc_picture_fn fn, void *user,
                                    struct kn_err *err);
enum kn_status kni_hevc_decode_end(struct kni_hevc_decoder **decoder, kni_hevc_picture_fn fn, void *user, struct kn_err *err);

/* Decodes a whole section, which must be what is expected. *decoder may be NULL: it is made and kept
 * for the next call. After a failure the decoder is dropped and *decoder is NULL again. KN_E_FORMAT, KN_E_NOMEM,
 * KN_E_UNSUPPORTED (libavcodec missing, of another version, or without HEVC). */
enum kn_status kni_hevc_decode_expect(struct kni_hevc_decoder **decoder, const uint8_t *bytes, size_t n_bytes, const struct kni_hevc_expect *expect,
                                      kni_hevc_picture_fn fn, void *user, struct kn_err *err);
/* The same with every tool of enum kni_hevc_tool. */
enum kn_status kni_hevc_decode(struct kni_hevc_decoder **decoder, const uint8_t *bytes, size_t n_bytes, uint32_t width, uint32_t height,
                               uint32_t n_pictures, kni_hevc_picture_fn fn, void *user, struct kn_err *err);
/* Gives picture memory back until the next stream, for a decoder that waits while another one works. NULL is fine. */
void kni_hevc_decoder_rest(struct kni_hevc_decoder *decoder);
void kni_hevc_decoder_close(struct kni_hevc_decoder **decoder);

/* Pictures of the current stream that were held against their hashes. */
uint32_t kni_hevc_decoder_n_hashed(const struct kni_hevc_decoder *decoder);
/* Peak bytes of picture and packet memory held. */
size_t kni_hevc_decoder_bytes(const struct kni_hevc_decoder *decoder);

#endif
