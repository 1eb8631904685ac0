/* SPDX-License-Identifier: Apache-2.0 */
/*
 * CABAC, the arithmetic coder of H.265 (9.3.4.3, encoding 9.3.5), for code that is inlined into a slice's loops.
 *
 *     low   [ carry | pending: finished bits not yet written | 9 bits that range still decides ]
 *
 * The standard's coder writes bit by bit and holds back runs that a carry could turn; here finished bits gather in a 64-bit
 * register, four bytes are written at a time, and a carry is added to the bytes already written: it can reach back past a run
 * of 255s but never past the first byte, as the very first bit is always 0 and is not written.
 *
 * Each bin waits for the range that the one before it left, and nothing else should. So contexts are dealt with ahead, in groups
 * of bins (ops, hevc_context.h); the range lies at its register's top, where finding and doing the shift are two instructions;
 * all four ranges of a state are one word, so that its load does not wait; and the two symbols differ by that word and a mask,
 * not by a branch: new range = part + (keep & (range - 255)). Seven cycles of latency a bin. Bypass bins come as one number.
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
    uint32_t range;   /* in bits 23 to 31 */
    uint32_t pending; /* below 32 between calls */
    uint32_t n_bins;  /* coded since the slice began */
    uint8_t *at;
};

static inline void kni_hevc_cabac_begin(struct kni_hevc_cabac *c, uint8_t *out)
{
    *c = (struct kni_hevc_cabac){.low = 0, .range = 510u << 23, .pending = 0, .at = out};
}

/* Begins afresh at out, behind samples that are not coded (PCM). */
static inline void kni_hevc_cabac_restart(struct kni_hevc_cabac *c, uint8_t *out)
{
    const uint32_t n_bins = c->n_bins;
    kni_hevc_cabac_begin(c, out);
    c->n_bins = n_bins;
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

static inline void kni_hevc_cabac_step(struct kni_hevc_cabac *c, const struct kni_hevc_coding *states, uint32_t op)
{
    const uint32_t keep = states->keep[op], part = (uint32_t)(states->range[op] >> (c->range >> 26 & 24)) & 255u << 23;
    c->low += (c->range - part) >> 23 & ~keep;
    c->range = part + ((c->range - (255u << 23)) & keep);
    const uint32_t shift = (uint32_t)__builtin_clz(c->range);
    c->range <<= shift;
    c->low <<= shift;
    c->pending += shift;
}

/* A bin is 6 bits at most, so a few of them fit between looks at what is pending. */
static inline void kni_hevc_cabac_ops(struct kni_hevc_cabac *c, const struct kni_hevc_coding *states, const uint8_t *ops, const uint8_t *end)
{
    c->n_bins += (uint32_t)(end - ops);
    for (; end - ops >= 3; ops += 3) {
        kni_hevc_cabac_step(c, states, ops[0]);
        kni_hevc_cabac_step(c, states, ops[1]);
        kni_hevc_cabac_step(c, states, ops[2]);
        kni_hevc_cabac_drain(c);
    }
    for (; ops < end; ops++)
        kni_hevc_cabac_step(c, states, *ops);
    kni_hevc_cabac_drain(c);
}

static inline void kni_hevc_cabac_bin(struct kni_hevc_cabac *c, const struct kni_hevc_coding *states, uint8_t *context, uint32_t bin)
{
    const uint32_t s = *context;
    c->n_bins++;
    *context = states->next[s][bin];
    kni_hevc_cabac_step(c, states, s ^ bin);
    kni_hevc_cabac_drain(c);
}

/* n bins of equal probability, the first one highest; n <= 22. */
static inline void kni_hevc_cabac_bypass(struct kni_hevc_cabac *c, uint32_t bins, uint32_t n)
{
    c->low = (c->low << n) + (uint64_t)bins * (c->range >> 23);
    c->pending += n;
    c->n_bins += n;
    kni_hevc_cabac_drain(c);
}

/* end_of_slice_segment_flag = 0, pcm_flag = 0. */
static inline void kni_hevc_cabac_go_on(struct kni_hevc_cabac *c)
{
    c->n_bins++;
    c->range -= 2u << 23;
    uint32_t shift = !(c->range >> 31);
    c->range <<= shift;
    c->low <<= shift;
    c->pending += shift;
    kni_hevc_cabac_drain(c);
}

/* The terminating bin = 1, all that is pending, and the stop bit with its zeros. Returns the end. Of a slice, or of what stands before PCM samples. */
static inline uint8_t *kni_hevc_cabac_end(struct kni_hevc_cabac *c)
{
    c->n_bins++;
    c->low += (c->range >> 23) - 2;
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
