/* SPDX-License-Identifier: Apache-2.0 */
/*
 * CABAC, the arithmetic coder of H.265 (9.3.4.3, encoding 9.3.5), for code that is inlined into a slice's loops.
 *
 *     low   [ carry | pending: finished bits not yet written | 9 bits that range still decides ]
 *
 * The standard's coder writes bit by bit and holds back runs that a carry could turn; here finished bits gather in a 64-bit
 * register, four bytes are written at a time, and a carry is added to the bytes already written: it can reach back past a run
 * of 255s but never past the first byte, as the very first bit is always 0 and is not written. All four ranges of a state are one word,
 * so that the load does not wait for the range: a bin costs about ten cycles of latency, and bypass bins come as one number.
 *
 * Owner: one thread; keep it in a local variable so that it lives in registers.
 */
#ifndef KNI_CODEC_HEVC_CABAC_H
#define KNI_CODEC_HEVC_CABAC_H

#include <stddef.h>
#include <stdint.h>

#include "codec/hevc/hevc_context.h"

struct kni_hevc_cabac {
    uint64_t low;
    uint32_t range;
    uint32_t pending; /* below 32 between calls */
    uint8_t *at;
};

static inline void kni_hevc_cabac_begin(struct kni_hevc_cabac *c, uint8_t *out)
{
    *c = (struct kni_hevc_cabac){.low = 0, .range = 510, .pending = 0, .at = out};
}

static inline void kni_hevc_cabac_carry(uint8_t *at)
{
    while (++*--at == 0)
        ;
}

static inline void kni_hevc_cabac_drain(struct kni_hevc_cabac *c)
{
    if (c->pending < 32)
        return;
    uint32_t keep = c->pending - 32 + 9;
    uint64_t word = c->low >> keep;
    if (word >> 32)
        kni_hevc_cabac_carry(c->at);
    c->at[0] = (uint8_t)(word >> 24);
    c->at[1] = (uint8_t)(word >> 16);
    c->at[2] = (uint8_t)(word >> 8);
    c->at[3] = (uint8_t)word;
    c->at += 4;
    c->low &= ((uint64_t)1 << keep) - 1;
    c->pending -= 32;
}

static inline void kni_hevc_cabac_bin(struct kni_hevc_cabac *c, const struct kni_hevc_state *states, uint8_t *context, uint32_t bin)
{
    const uint32_t s = *context;
    const struct kni_hevc_state *e = &states[s];
    uint32_t lps = e->lps >> (c->range >> 3 & 24) & 255, mps = c->range - lps;
    uint32_t is_lps = 0u - ((s ^ bin) & 1);
    *context = e->next[bin];
    c->low += mps & is_lps;
    uint32_t range = mps ^ ((mps ^ lps) & is_lps);
    uint32_t shift = (uint32_t)__builtin_clz(range) - 23;
    c->range = range << shift;
    c->low <<= shift;
    c->pending += shift;
    kni_hevc_cabac_drain(c);
}

/* n bins of equal probability, the first one highest; n <= 22. */
static inline void kni_hevc_cabac_bypass(struct kni_hevc_cabac *c, uint32_t bins, uint32_t n)
{
    c->low = (c->low << n) + (uint64_t)bins * c->range;
    c->pending += n;
    kni_hevc_cabac_drain(c);
}

/* end_of_slice_segment_flag = 0 and the like. */
static inline void kni_hevc_cabac_go_on(struct kni_hevc_cabac *c)
{
    c->range -= 2;
    uint32_t shift = c->range < 256;
    c->range <<= shift;
    c->low <<= shift;
    c->pending += shift;
    kni_hevc_cabac_drain(c);
}

/* The terminating bin = 1, all that is pending, and the stop bit with its zeros. Returns the end. */
static inline uint8_t *kni_hevc_cabac_end(struct kni_hevc_cabac *c)
{
    c->low += c->range - 2;
    c->low <<= 7;
    c->pending += 7;
    kni_hevc_cabac_drain(c);
    uint64_t bits = c->low >> 7 | 1;
    uint32_t n = c->pending + 2;
    if (bits >> n)
        kni_hevc_cabac_carry(c->at);
    bits <<= 64 - n;
    for (uint32_t i = 0; i < n; i += 8)
        *c->at++ = (uint8_t)(bits >> (56 - i));
    return c->at;
}

#endif
