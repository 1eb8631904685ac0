/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The arithmetic decoder of HEVC, which counts what it reads. value holds the 9-bit offset of the standard and spare bits that were
 * read ahead, so that a bin needs no loop:
 *
 *     [ unused ][ offset: 9 bits ][ spare bits, 1..48 ]
 *
 * Past the end it reads zeros; kni_hevc_bins_over says so, and callers ask once a coding tree unit. Source: ITU-T H.265, 9.3.
 */
#ifndef KNI_CODEC_HEVC_READER_CABAC_H
#define KNI_CODEC_HEVC_READER_CABAC_H

#include "codec/hevc/hevc_context.h"
#include "kinema/codec.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* What entropy_coding_sync carries from row to row. */
struct kni_hevc_models { uint8_t context[KNI_HEVC_N_CONTEXTS]; uint8_t rice[4]; };

struct kni_hevc_bins {
    const uint8_t *bytes;
    size_t n_bytes, at; /* at may pass n_bytes */
    uint64_t value;
    uint32_t range, spare;
    struct kn_hevc_count *count; /* [KN_HEVC_ELEMENT_COUNT], of the row band and plane at hand */
    struct kni_hevc_models models;
    struct kni_hevc_state states[128];
    double cost[128][2]; /* bits of a bin 0 and of a bin 1, by context */
};

/* Fills states and cost. Once a handle. */
void kni_hevc_bins_init(struct kni_hevc_bins *b);
/* Contexts for initType 0 (I), 1, 2 and the slice's QP; Rice statistics to zero. */
void kni_hevc_models_init(struct kni_hevc_models *m, uint32_t init_type, int32_t qp);
/* Begins arithmetic decoding at byte at; the models stay. */
void kni_hevc_bins_start(struct kni_hevc_bins *b, const uint8_t *bytes, size_t n_bytes, size_t at);
/* After a terminating bin of 1: the byte where what follows begins, or 0 when the bit before it is not the stop bit. */
size_t kni_hevc_bins_stop(const struct kni_hevc_bins *b);

static inline void kni_hevc_bins_fill(struct kni_hevc_bins *b)
{
    while (b->spare <= 40) {
        b->value = b->value << 8 | (b->at < b->n_bytes ? b->bytes[b->at] : 0u);
        b->at++;
        b->spare += 8;
    }
}

/* Bits read so far, from the payload's first on. */
static inline uint64_t kni_hevc_bins_at(const struct kni_hevc_bins *b)
{
    return (uint64_t)b->at * 8 - b->spare;
}

static inline bool kni_hevc_bins_over(const struct kni_hevc_bins *b)
{
    return b->at > b->n_bytes && (b->at - b->n_bytes) * 8 > b->spare;
}

static inline uint32_t kni_hevc_bin(struct kni_hevc_bins *b, uint32_t ctx, enum kn_hevc_element element)
{
    if (b->spare < 8)
        kni_hevc_bins_fill(b);
    uint8_t *context = &b->models.context[ctx];
    const struct kni_hevc_state *state = &b->states[*context];
    uint32_t bit = *context & 1u, lps = state->lps >> (b->range >> 3 & 24) & 255;
    uint64_t limit = (uint64_t)(b->range - lps) << b->spare;
    struct kn_hevc_count *count = &b->count[element];
    count->n_coded++;
    if (b->value < limit) {
        b->range -= lps;
    } else {
        b->value -= limit;
        b->range = lps;
        bit ^= 1u;
    }
    count->bits += b->cost[*context][bit];
    *context = state->next[bit];
    uint32_t n = (uint32_t)__builtin_clz(b->range) - 23;
    b->range <<= n;
    b->spare -= n;
    return bit;
}

static inline uint32_t kni_hevc_bin_bypass(struct kni_hevc_bins *b, enum kn_hevc_element element)
{
    if (b->spare < 8)
        kni_hevc_bins_fill(b);
    b->count[element].n_bypass++;
    b->count[element].bits += 1;
    b->spare--;
    uint64_t limit = (uint64_t)b->range << b->spare;
    if (b->value < limit)
        return 0;
    b->value -= limit;
    return 1;
}

/* n bypass bins, the highest first. */
static inline uint32_t kni_hevc_bins_bypass(struct kni_hevc_bins *b, uint32_t n, enum kn_hevc_element element)
{
    uint32_t x = 0;
    while (n--)
        x = x << 1 | kni_hevc_bin_bypass(b, element);
    return x;
}

static inline uint32_t kni_hevc_bin_end(struct kni_hevc_bins *b, enum kn_hevc_element element)
{
    if (b->spare < 8)
        kni_hevc_bins_fill(b);
    b->count[element].n_coded++;
    b->range -= 2;
    uint64_t limit = (uint64_t)b->range << b->spare;
    if (b->value >= limit) {
        b->count[element].bits += 7.6; /* 2 of about 384 */
        return 1;
    }
    b->count[element].bits += 0.0075;
    if (b->range < 256) {
        b->range <<= 1;
        b->spare--;
    }
    return 0;
}

#endif
