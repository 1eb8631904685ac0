/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The arithmetic of interleaved rANS, shared by whatever codes bytes with it: one state's step in plain C, the tables that a
 * frequency table becomes, and the rules of a stream. SIMD forms (codec/x86/rans_core_avx2.h) do the same to many states.
 *
 *     state x, 32 bits, always in [2^16, 2^32)
 *     decode: slot = x mod 2^12; the symbol is the one with start <= slot < start + freq
 *             x = freq * (x >> 12) + slot - start; below 2^16: x = x << 16 | next 16-bit word
 *     encode: the exact inverse, so it walks the symbols backwards and writes words from the end of the buffer towards its front
 *
 * Lanes: symbol number i of a stream belongs to state i mod 32, so that 32 divisions, table walks and renormalisations run side
 * by side. All states share one sequence of words. Words are little-endian and stand in the order in which a decoder, which goes
 * through the symbols in order, needs them. Every state begins (for the encoder) and ends (for the decoder) at 2^16: a stream
 * with a flipped bit nearly always ends elsewhere.
 *
 *     [ 32 states, u32 each ][ words, u16 each ]
 *
 * 12 bits: symbol, freq and slot - start fit in 32 bits together, which makes decoding one gather a symbol; and a table of 4096
 * such entries is 16 KiB, so that the few tables in use stay in the second cache level. A freq of 4096 does not fit: a table
 * has at least two symbols.
 *
 * Source of the method: Duda 2013, section "range variants"; 16-bit words and interleaving after Giesen 2014. Functions here are
 * pure: any thread.
 */
#ifndef KNI_CODEC_RANS_CORE_H
#define KNI_CODEC_RANS_CORE_H

#include "base/le.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define KNI_RANS_LANES 32u
#define KNI_RANS_BITS 12u
#define KNI_RANS_SCALE (1u << KNI_RANS_BITS)
#define KNI_RANS_LOW (1u << 16)
#define KNI_RANS_STATE_BYTES (KNI_RANS_LANES * 4u)

/* What the encoder needs to know of a symbol. recip = floor(2^32 / freq), for SIMD division (2^32 - 1 for freq 1). A symbol that
 * cannot be coded has freq 0. The top bit of start is the caller's: what codes a symbol ignores it. */
struct kni_rans_symbol { uint16_t freq, start; uint32_t recip; };
_Static_assert(sizeof(struct kni_rans_symbol) == 8, "SIMD forms gather its halves");

/* What the decoder finds at a slot: symbol | freq << 8 | (slot - start) << 20. */
static inline uint32_t kni_rans_slot(uint8_t symbol, uint32_t freq, uint32_t offset)
{
    return symbol | freq << 8 | offset << 20;
}

#define KNI_RANS_START_MASK 0x7fffu

/* Before a symbol of this freq is coded: a word, if one is due, goes before at, which then points to it. The caller has made sure of two
 * bytes of room before *at. */
static inline uint32_t kni_rans_emit(uint32_t x, uint8_t **at, uint32_t freq)
{
    if (x >> (32 - KNI_RANS_BITS) >= freq) {
        *at -= 2;
        kni_le16_put(*at, (uint16_t)x);
        x >>= 16;
    }
    return x;
}

/* Codes one symbol and gives the new state. */
static inline uint32_t kni_rans_put(uint32_t x, uint8_t **at, uint32_t freq, uint32_t start)
{
    x = kni_rans_emit(x, at, freq);
    return (x / freq << KNI_RANS_BITS) + x % freq + (start & KNI_RANS_START_MASK);
}

/* n_bits (at most 12) as they are: a symbol out of 2^n_bits equally likely ones. */
static inline uint32_t kni_rans_put_raw(uint32_t x, uint8_t **at, uint32_t value, uint32_t n_bits)
{
    if (x >> (32 - n_bits)) {
        *at -= 2;
        kni_le16_put(*at, (uint16_t)x);
        x >>= 16;
    }
    return x << n_bits | value;
}

/* After a step: takes a word when the state is too small. False when one is due and none is left before end. */
static inline bool kni_rans_refill(uint32_t *x, const uint8_t **at, const uint8_t *end)
{
    if (*x < KNI_RANS_LOW) {
        if (end - *at < 2)
            return false;
        *x = *x << 16 | kni_le16_get(*at);
        *at += 2;
    }
    return true;
}

/* One symbol by a table of slots. False: no word left. */
static inline bool kni_rans_get(uint32_t *x, const uint8_t **at, const uint8_t *end, const uint32_t slots[KNI_RANS_SCALE], uint8_t *symbol)
{
    uint32_t slot = slots[*x & (KNI_RANS_SCALE - 1)];
    *symbol = (uint8_t)slot;
    *x = (slot >> 8 & (KNI_RANS_SCALE - 1)) * (*x >> KNI_RANS_BITS) + (slot >> 20);
    return kni_rans_refill(x, at, end);
}

static inline bool kni_rans_get_raw(uint32_t *x, const uint8_t **at, const uint8_t *end, uint32_t n_bits, uint32_t *value)
{
    *value = *x & ((1u << n_bits) - 1);
    *x >>= n_bits;
    return kni_rans_refill(x, at, end);
}

/* Frequencies that sum to 4096 from weights (any scale, not negative, not NaN): each positive weight gets at least 1, others 0, no one more
 * than 4095, and the expected bits are least (greedy exchange). At least one weight must be positive and at most 4095; when only
 * one is, the symbol beside it gets 1. Deterministic. */
void kni_rans_normalise(const double weights[256], uint16_t freq[256]);

/* Whether freq sums to 4096 and no one is more than 4095: what a table from outside must pass. */
bool kni_rans_freq_ok(const uint16_t freq[256]);
/* Both directions' tables; freq must be ok. */
void kni_rans_make_symbols(const uint16_t freq[256], struct kni_rans_symbol symbols[256]);
void kni_rans_make_slots(const uint16_t freq[256], uint32_t slots[KNI_RANS_SCALE]);

#endif
