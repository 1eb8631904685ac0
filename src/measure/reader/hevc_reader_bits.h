/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Fixed and Exp-Golomb codes of parameter sets and slice headers, over a payload without emulation prevention (RBSP). Reading past
 * the end gives zeros and sets over; so does a code that is longer than any legal one. Source: ITU-T H.265, 9.2. Any thread.
 */
#ifndef KNI_CODEC_HEVC_READER_BITS_H
#define KNI_CODEC_HEVC_READER_BITS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct kni_hevc_bits {
    const uint8_t *bytes;
    size_t n_bits, at; /* in bits */
    bool over;
};

static inline struct kni_hevc_bits kni_hevc_bits_of(const uint8_t *bytes, size_t n_bytes)
{
    return (struct kni_hevc_bits){.bytes = bytes, .n_bits = n_bytes * 8};
}

static inline uint32_t kni_hevc_bit(struct kni_hevc_bits *b)
{
    if (b->at >= b->n_bits) {
        b->over = true;
        return 0;
    }
    uint32_t bit = (uint32_t)b->bytes[b->at >> 3] >> (7 - (b->at & 7)) & 1u;
    b->at++;
    return bit;
}

/* n <= 32 */
static inline uint32_t kni_hevc_bits_u(struct kni_hevc_bits *b, uint32_t n)
{
    uint32_t x = 0;
    while (n--)
        x = x << 1 | kni_hevc_bit(b);
    return x;
}

/* ue(v), up to 2^32 - 2 */
static inline uint32_t kni_hevc_bits_ue(struct kni_hevc_bits *b)
{
    uint32_t n = 0;
    while (!kni_hevc_bit(b))
        if (b->over || ++n > 31) {
            b->over = true;
            return 0;
        }
    return n ? ((1u << n) - 1) + kni_hevc_bits_u(b, n) : 0;
}

static inline int32_t kni_hevc_bits_se(struct kni_hevc_bits *b)
{
    uint32_t x = kni_hevc_bits_ue(b);
    return x & 1 ? (int32_t)(x / 2) + 1 : -(int32_t)(x / 2);
}

#endif
