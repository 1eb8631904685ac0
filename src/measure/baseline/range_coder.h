/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A range coder, and an adaptive model over a small alphabet: the entropy coder of the baselines. Bytes of 32-bit ranges, carries
 * resolved late, any total up to 2^16; within 0.01 % of the entropy. Method: Martin 1979.
 *
 * Our own presets use interleaved rANS (rans.h), which is made for speed. A rival's bytes must not depend on that, so this is
 * the coder with the least overhead. Owner: one thread.
 */
#ifndef KNI_CODEC_RANGE_CODER_H
#define KNI_CODEC_RANGE_CODER_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define KNI_RANGE_TOTAL_MAX 65536u

/* Writes into [out, out + room); bytes that do not fit are counted and dropped. */
struct kni_range_encoder {
    uint8_t *out;
    size_t room, used;
    uint64_t low, n_pending;
    uint32_t range;
    uint8_t cache;
    bool started;
};
void kni_range_encoder_init(struct kni_range_encoder *e, uint8_t *out, size_t room);
/* The symbol that has [below, below + count) of total. count > 0. */
void kni_range_encode(struct kni_range_encoder *e, uint32_t below, uint32_t count, uint32_t total);
/* Bytes that the stream needs; it is complete when they fit the room. */
size_t kni_range_encoder_finish(struct kni_range_encoder *e);

/* Reads zeros past the end, and remembers that it did. */
struct kni_range_decoder {
    const uint8_t *in;
    size_t n_bytes, at;
    uint32_t range, code, unit;
};
void kni_range_decoder_init(struct kni_range_decoder *d, const uint8_t *in, size_t n_bytes);
/* A number below total that lies in the next symbol's interval; tell it which by kni_range_decode_take. */
uint32_t kni_range_decode_get(struct kni_range_decoder *d, uint32_t total);
void kni_range_decode_take(struct kni_range_decoder *d, uint32_t below, uint32_t count, uint32_t total);
/* More was read than there was. */
bool kni_range_decoder_is_over(const struct kni_range_decoder *d);

/* Adaptive counts of one context. Zero-initialised contexts are made ready at their first use. */
#define KNI_RANGE_MODEL_MAX 48u
struct kni_range_model { uint16_t count[KNI_RANGE_MODEL_MAX]; uint16_t total; };
void kni_range_model_encode(struct kni_range_model *m, struct kni_range_encoder *e, uint32_t n_symbols, uint32_t symbol);
uint32_t kni_range_model_decode(struct kni_range_model *m, struct kni_range_decoder *d, uint32_t n_symbols);

#endif
