/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Raw pictures as lossless HEVC, and back: what the presets and backends that are video do to their pictures, for pictures of any
 * origin. Pictures are 8-bit 4:4:4, three planes of equal size; streams are Annex B.
 *
 *     kn_video_encoder_open(&e, &eo, &err);
 *     while (read_picture(samples)) {
 *         kn_video_encode(e, samples, &unit, &n_bytes, &err);
 *         write(unit, n_bytes);
 *     }
 *     kn_video_encoder_end(e, &unit, &n_bytes, &err); // of a sealed stream
 *     write(unit, n_bytes);
 *     kn_video_encoder_close(&e);
 *
 *     kn_video_decoder_open(&d, &dopts, &err);
 *     while ((n = read(piece)))
 *         kn_video_decode(d, piece, n, false, &err);  // calls on_picture
 *     kn_video_decode(d, NULL, 0, true, &err);
 *     kn_video_decoder_close(&d);
 *
 * Threads: a handle belongs to one thread.
 */
#ifndef KINEMA_VIDEO_H
#define KINEMA_VIDEO_H

#include "types.h"

#ifdef __cplusplus
extern "C" {
#endif

/* What pictures look like; any picture may be coded as either. */
enum kn_video_content {
    KN_VIDEO_CONTENT_NOISE = 0, /* noise around 128, as spectral presets draw it: prediction inside a picture is not tried */
    KN_VIDEO_CONTENT_TILES = 1  /* like its neighbours or like the picture before it: predicted by cost */
};

/* The standard's decoded picture hash, an SEI message behind each picture: decoders then know a damaged picture. */
enum kn_video_hash {
    KN_VIDEO_HASH_DEFAULT = 0, /* MD5, which most decoders check; none where x265 codes sides that are no multiples of its blocks: 8, ultrafast 16 */
    KN_VIDEO_HASH_MD5 = 1,
    KN_VIDEO_HASH_CRC = 2,
    KN_VIDEO_HASH_CHECKSUM = 3, /* the weakest: changes that cancel each other in a sum go unseen */
    KN_VIDEO_HASH_NONE = 4
};

struct kn_video_encode_opts {
    size_t size;             /* sizeof(struct kn_video_encode_opts) */
    uint32_t width, height;  /* samples, 16..8192 each */
    const struct kn_hevc_opts *hevc; /* borrowed for the call, NULL: defaults */
    enum kn_video_content content;
    bool verify;             /* decode each picture and compare */
    enum kn_video_hash hash;
    /* Say at both ends what the stream holds, in two SEI messages that other decoders pass over: size, parameter sets, number and order of
     * pictures, a digest of their bytes. Kinema's decoder then refuses what is cut, missing, twice there or moved. The stream must
     * be ended with kn_video_encoder_end. */
    bool sealed;
};

struct kn_video_encoder;
struct kn_video_encode_stats {
    size_t size; /* sizeof(struct kn_video_encode_stats), set by the caller */
    uint64_t n_pictures, n_bytes;
    uint64_t encode_ns; /* processor time of the calling thread, verifying not counted */
};

/* Errors: KN_E_ARG (sizes, options), KN_E_UNSUPPORTED (an encoder or decoder that is not there), KN_E_NOMEM. */
KN_API enum kn_status kn_video_encoder_open(struct kn_video_encoder **out, const struct kn_video_encode_opts *opts, struct kn_err *err);
/* Codes the next picture, 3 * width * height samples plane after plane. *unit: its access unit, borrowed until the next call; units in a
 * row are the stream. Errors: KN_E_NOMEM, KN_E_UNSUPPORTED (the encoder gave up), KN_E_MISMATCH (verify: says where it differs); afterwards
 * KN_E_STATE. */
KN_API enum kn_status kn_video_encode(struct kn_video_encoder *encoder, const uint8_t *samples, const uint8_t **unit, size_t *n_bytes, struct kn_err *err);
/* The stream's end, to be written behind its last unit, borrowed until close; 0 bytes of a stream that is not sealed or has no picture.
 * Nothing may be encoded afterwards (KN_E_STATE). Errors: KN_E_ARG, KN_E_STATE. */
KN_API enum kn_status kn_video_encoder_end(struct kn_video_encoder *encoder, const uint8_t **unit, size_t *n_bytes, struct kn_err *err);
/* What opts.hash has come to. */
KN_API enum kn_video_hash kn_video_encoder_hash(const struct kn_video_encoder *encoder);
/* KN_E_ARG when the size of *out is not set. */
KN_API enum kn_status kn_video_encoder_get_stats(const struct kn_video_encoder *encoder,
                                                 struct kn_video_encode_stats *out);
KN_API void kn_video_encoder_close(struct kn_video_encoder **encoder);

/* A decoded picture, borrowed for the call. */
struct kn_video_picture {
    uint64_t index;
    uint32_t width, height;
    const uint8_t *plane[3];
    size_t stride[3];        /* bytes from row to row */
    uint64_t n_stream_bytes; /* of the stream or section so far, this picture's unit included */
};
/* Anything but KN_OK ends decoding with that status. */
typedef enum kn_status (*kn_video_picture_fn)(void *user, const struct kn_video_picture *picture);

struct kn_video_decode_opts {
    size_t size;             /* sizeof(struct kn_video_decode_opts) */
    kn_video_picture_fn on_picture;
    void *user;
    uint32_t section_plus_1; /* of a chunk: 1 + the number of a section in its table; 0: its first section that is video */
};

struct kn_video_decoder;
/* Errors: KN_E_ARG, KN_E_NOMEM. */
KN_API enum kn_status kn_video_decoder_open(struct kn_video_decoder **out, const struct kn_video_decode_opts *opts, struct kn_err *err);
/* Takes the next piece of an Annex B stream, or of a chunk (which is kept until it is complete), of any length. last: nothing follows. Streams
 * may follow each other when their pictures have one size. on_picture is called in order. Of a stream, every picture that has a decoded picture hash is
 * held against it before it is handed out, and Kinema's own reader follows the syntax; without hashes some damage shows in the pictures only. What a
 * sealed stream holds is known to be whole and in order at its end, its last picture not yet handed out.
 * Errors: KN_E_FORMAT (damaged, or no such stream: says where), KN_E_ARG (no such section, or no chunk), KN_E_UNSUPPORTED (no decoder; a chunk
 * without video), KN_E_NOMEM, and what on_picture returned; afterwards KN_E_STATE. */
KN_API enum kn_status kn_video_decode(struct kn_video_decoder *decoder, const void *bytes, size_t n_bytes, bool last, struct kn_err *err);
struct kn_video_decode_stats {
    size_t size;       /* sizeof(struct kn_video_decode_stats), set by the caller */
    uint64_t n_pictures, n_hashed; /* handed out, or held back by a failure; of those, held against the hash in their stream */
    bool read;         /* Kinema's own reader followed every unit, too; false: the stream uses what it does not know */
    bool chunk;        /* of a chunk, whose checksums were checked */
    bool sealed;       /* every stream so far has a seal; once kn_video_decode has taken the last piece, the pictures' bytes match it */
};
/* KN_E_ARG when the size of *out is not set. */
KN_API enum kn_status kn_video_decoder_get_stats(const struct kn_video_decoder *decoder,
                                                 struct kn_video_decode_stats *out);
KN_API void kn_video_decoder_close(struct kn_video_decoder **decoder);

#ifdef __cplusplus
}
#endif
#endif
