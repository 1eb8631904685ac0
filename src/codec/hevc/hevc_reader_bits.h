/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Fixed and Exp-Golomb codes of parameter sets and slice headers, over a payload without emulation prevention (RBSP), or over a NAL
 * unit's bytes as they are, of which each 03 after two zeros is passed over. Reading past the end gives zeros and sets over; so does a
 * code that is longer than any legal one. Source: ITU-T H.265, 7.3.1.1, 9.2. Any thread.
 */
#ifndef KNI_CODEC_HEVC_READER_BITS_H
#define KNI_CODEC_HEVC_READER_BITS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct kni_hevc_bits {
    const uint8_t *bytes;
    size_t n_bits, at;  /* in bits of bytes */
    uint32_t max_zeros; /* in front of a ue(v): a longer code counts as running out; at most 31 */
    uint32_t zeros;     /* escaped: zero bytes just begun */
    bool escaped, over;
};

static inline struct kni_hevc_bits kni_hevc_bits_of(const uint8_t *bytes, size_t n_bytes)
{
    return (struct kni_hevc_bits){.bytes = bytes, .n_bits = n_bytes * 8, .max_zeros = 31};
}

/* Of a NAL unit's bytes. Values of ue(v) of 2^17 - 1 and more count as running out: no parameter set has any that large. */
static inline struct kni_hevc_bits kni_hevc_bits_escaped(const uint8_t *bytes, size_t n_bytes)
{
    return (struct kni_hevc_bits){.bytes = bytes, .n_bits = n_bytes * 8, .max_zeros = 16, .escaped = true};
}

/* A byte begins, maybe behind one that only keeps start codes apart. */
static inline void kni_hevc_bits_begin_byte(struct kni_hevc_bits *b)
{
    if (b->zeros >= 2 && b->at < b->n_bits && b->bytes[b->at >> 3] == 3) {
        b->at += 8;
        b->zeros = 0;
    }
    if (b->at < b->n_bits)
        b->zeros = b->bytes[b->at >> 3] ? 0 : b->zeros + 1;
}

static inline uint32_t kni_hevc_bit(struct kni_hevc_bits *b)
{
    if (b->escaped && !(b->at & 7))
        kni_hevc_bits_begin_byte(b);
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

/* ue(v), up to 2^(max_zeros + 1) - 2 */
static inline uint32_t kni_hevc_bits_ue(struct kni_hevc_bits *b)
{
    uint32_t n = 0;
    while (!kni_hevc_bit(b))
        if (b->over || ++n > b->max_zeros) {
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
