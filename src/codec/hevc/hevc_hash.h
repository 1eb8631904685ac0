/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The decoded picture hash of H.265 (D.2.19, D.3.19): an SEI message behind a picture's slices that says what a decoder must get, window not cut.
 * 8-bit 4:4:4. MD5 is what libavcodec checks by itself; other decoders know all three. Sections of chunks have none: containers have XXH3.
 * Any thread.
 */
#ifndef KNI_CODEC_HEVC_HASH_H
#define KNI_CODEC_HEVC_HASH_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* hash_type of the standard. */
enum kni_hevc_hash { KNI_HEVC_HASH_MD5 = 0, KNI_HEVC_HASH_CRC = 1, KNI_HEVC_HASH_CHECKSUM = 2 };

struct kni_hevc_digest { enum kni_hevc_hash kind; uint8_t bytes[3][16]; }; /* by plane; 16, 2 or 4 of them, the others 0 */

#define KNI_HEVC_DIGEST_BYTES 96u /* of a NAL unit, at most */

/* Planes of width x height samples, which stand for coded_width x coded_height: the last column and row are repeated. false: no memory. */
bool kni_hevc_digest_of(struct kni_hevc_digest *out, enum kni_hevc_hash kind, const uint8_t *const planes[3], const size_t strides[3], uint32_t width,
                        uint32_t height, uint32_t coded_width, uint32_t coded_height);
bool kni_hevc_digest_equal(const struct kni_hevc_digest *a, const struct kni_hevc_digest *b);
/* A NAL unit with its start code, to out[KNI_HEVC_DIGEST_BYTES]; returns its size. */
size_t kni_hevc_digest_put(const struct kni_hevc_digest *digest, uint8_t *out);

/* The payload of a suffix SEI unit, emulation prevention taken out. *found stays when it holds other messages. NULL, or what is wrong (part of a
 * sentence, static). */
const char *kni_hevc_digest_read(const uint8_t *payload, size_t n_bytes, struct kni_hevc_digest *out, bool *found);
/* The same of an access unit. */
const char *kni_hevc_digest_find(const uint8_t *unit, size_t n_bytes, struct kni_hevc_digest *out, bool *found);

#endif
