/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Walks the NAL units of an access unit and reads the head of a sequence parameter set. Reads only inside the bytes given;
 * a bit reader that runs out returns zeros and says so.
 */
#include "codec/hevc/hevc_syntax.h"

#include <string.h>

enum { NAL_VCL_END = 32, NAL_IRAP_FIRST = 16, NAL_IRAP_END = 24, NAL_IDR_W_RADL = 19, NAL_IDR_N_LP = 20, NAL_VPS = 32, NAL_SPS = 33, NAL_PPS = 34, NAL_AUD = 35, NAL_SEI_PREFIX = 39, NAL_SEI_SUFFIX = 40 };

struct bits {
    const uint8_t *bytes;
    size_t n_bytes, at; /* next byte */
    uint32_t zeros;     /* zero bytes just read: 00 00 03 hides the 03 */
    uint32_t byte, left; /* bits not yet taken of the current byte */
    bool over;
};

static uint32_t take_bit(struct bits *b)
{
    if (!b->left) {
        if (b->zeros >= 2 && b->at < b->n_bytes && b->bytes[b->at] == 3) {
            b->at++;
            b->zeros = 0;
        }
        if (b->at >= b->n_bytes) {
            b->over = true;
            return 0;
        }
        b->byte = b->bytes[b->at++];
        b->zeros = b->byte ? 0 : b->zeros + 1;
        b->left = 8;
    }
    return b->byte >> --b->left & 1u;
}

static uint32_t take_bits(struct bits *b, uint32_t n)
{
    uint32_t x = 0;
    while (n--)
        x = x << 1 | take_bit(b);
    return x;
}

/* ue(v), 9.2. Values of 2^16 and more count as running out: nothing here is that large. */
static uint32_t take_ue(struct bits *b)
{
    uint32_t n = 0;
    while (!take_bit(b))
        if (b->over || ++n > 16) {
            b->over = true;
            return 0;
        }
    return (1u << n) - 1 + take_bits(b, n);
}

static const char *check_sps(const uint8_t *bytes, size_t n_bytes, uint32_t width, uint32_t height)
{
    struct bits b = {.bytes = bytes, .n_bytes = n_bytes};
    take_bits(&b, 4); /* sps_video_parameter_set_id */
    if (take_bits(&b, 3) != 0)
        return "has temporal sub-layers";
    take_bits(&b, 1);
    take_bits(&b, 32); /* profile_tier_level of one layer: 88 bits of profile, 8 of level */
    take_bits(&b, 32);
    take_bits(&b, 32);
    take_ue(&b); /* sps_seq_parameter_set_id */
    uint32_t chroma = take_ue(&b);
    if (chroma == 3 && take_bit(&b))
        return "codes its planes separately";
    uint32_t w = take_ue(&b), h = take_ue(&b);
    uint32_t window = take_bit(&b), off = 0;
    for (int i = 0; window && i < 4; i++)
        off |= take_ue(&b);
    uint32_t luma = take_ue(&b), chroma_depth = take_ue(&b);
    if (b.over)
        return "has a cut parameter set";
    if (chroma != 3 || luma || chroma_depth)
        return "is not 8-bit 4:4:4";
    if (w != width || h != height || off)
        return "has another picture size than the chunk's header says";
    return NULL;
}

/* The next start code 00 00 01 at or after at, or n_bytes. */
static size_t find_start(const uint8_t *b, size_t n_bytes, size_t at)
{
    while (at + 3 <= n_bytes) {
        const uint8_t *one = memchr(b + at + 2, 1, n_bytes - at - 2);
        if (!one)
            return n_bytes;
        at = (size_t)(one - b) - 2;
        if (!b[at] && !b[at + 1])
            return at;
        at++;
    }
    return n_bytes;
}

const char *kni_hevc_check_unit(const uint8_t *bytes, size_t n_bytes, bool first, uint32_t width, uint32_t height)
{
    unsigned n_sps = 0, n_slices = 0;
    size_t at = find_start(bytes, n_bytes, 0);
    if (at > 1 || (at == 1 && bytes[0]))
        return "does not begin with a start code";
    while (at < n_bytes) {
        size_t begin = at + 3, end = find_start(bytes, n_bytes, begin);
        if (end - begin < 3)
            return "has an empty NAL unit";
        unsigned type = bytes[begin] >> 1 & 63u, layer = (bytes[begin] & 1u) << 5 | bytes[begin + 1] >> 3;
        if (layer)
            return "has several layers";
        if (type < NAL_VCL_END) {
            bool irap = type >= NAL_IRAP_FIRST && type < NAL_IRAP_END;
            if (first ? type != NAL_IDR_W_RADL && type != NAL_IDR_N_LP : irap || type > 9)
                return first ? "does not begin with an IDR picture" : "has an unexpected picture type";
            if (first && !n_sps)
                return "begins without a parameter set";
            n_slices++;
        } else if (type == NAL_SPS || type == NAL_VPS || type == NAL_PPS) {
            if (!first || n_slices)
                return "changes its parameter sets";
            if (type == NAL_SPS) {
                const char *bad = check_sps(bytes + begin + 2, end - begin - 2, width, height);
                if (bad)
                    return bad;
                n_sps++;
            }
        } else if (type != NAL_AUD && type != NAL_SEI_PREFIX && type != NAL_SEI_SUFFIX) {
            return "has an unexpected NAL unit";
        }
        at = end;
    }
    return n_slices ? NULL : "has no picture";
}
