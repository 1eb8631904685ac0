/* SPDX-License-Identifier: Apache-2.0 */
/*
 * MD5 (RFC 1321), for the decoded picture hash of H.265 alone, whose first kind it is. It finds damage, not attackers:
 * names and fingerprints come from base/hash.h. Our own, so that neither writing nor checking a hash needs libavutil,
 * which brings twenty libraries. Any thread, one a state.
 */
#ifndef KNI_CODEC_HEVC_MD5_H
#define KNI_CODEC_HEVC_MD5_H

#include <stddef.h>
#include <stdint.h>

struct kni_md5 {
    uint32_t state[4];
    uint64_t n_bytes;  /* so far */
    uint8_t block[64]; /* n_bytes % 64 of it wait */
};

void kni_md5_init(struct kni_md5 *md5);
void kni_md5_update(struct kni_md5 *md5, const uint8_t *bytes, size_t n_bytes);
/* Init begins again. */
void kni_md5_final(struct kni_md5 *md5, uint8_t out[16]);

#endif
