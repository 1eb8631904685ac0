/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The entropy stage of layout exact: sixteen rANS states (rans_core.h) over runs of byte symbols. A run is one channel of one
 * chunk, token t belongs to lane t % 16, and a note per token says which of the tables it was coded with:
 *
 *     stream   [ 16 states, u32 ][ 16-bit words in the order in which decoding takes them ]
 *     note     bits 0..4 table, bit 7 for others (model: the sign is turned)
 *
 * Sixteen and not the 32 lanes of backend rans since tokens come in blocks of 16. Encoding goes backwards, over the runs and inside
 * them, and fills the stream from its end. A stream must end where it ends and leave every state at 2^16, so one that is cut
 * or padded is noticed, and nearly always one that is damaged. Nothing here allocates; any thread, each its own coder.
 */
#ifndef KNI_CODEC_EXACT_LANES_H
#define KNI_CODEC_EXACT_LANES_H

#include "codec/rans/rans_core.h"

#define KNI_EXACT_LANES 16u
#define KNI_EXACT_STATE_BYTES (4 * (size_t)KNI_EXACT_LANES)
#define KNI_EXACT_NOTE_TABLE 0x1fu

struct kni_exact_encode_table { struct kni_rans_symbol symbols[256]; };
struct kni_exact_decode_table { uint32_t slots[KNI_RANS_SCALE]; };

struct kni_exact_writer {
    uint32_t x[KNI_EXACT_LANES];
    uint8_t *begin, *at; /* the room, and the first byte that is filled */
};
struct kni_exact_reader {
    uint32_t x[KNI_EXACT_LANES];
    const uint8_t *at, *end;
    bool cut; /* a word was missing */
};

/* Room for a stream of n_symbols; some of it is scratch. */
size_t kni_exact_stream_bound(size_t n_symbols);

/* Codes n symbols, a multiple of 16, each of which has a frequency in its table. Runs come last first. */
typedef void (*kni_exact_write_fn)(struct kni_exact_writer *w, const struct kni_exact_encode_table *tables, const uint8_t *notes, const uint8_t *symbols, uint32_t n);
/* The next n symbols, a multiple of 16. A stream that has ended sets cut and goes on with zeros. */
typedef void (*kni_exact_read_fn)(struct kni_exact_reader *r, const struct kni_exact_decode_table *tables, const uint8_t *notes, uint8_t *symbols, uint32_t n);

struct kni_exact_lane_ops { kni_exact_write_fn write; kni_exact_read_fn read; };
/* cpu_flags as kni_cpu_flags() gives them; 0: the references. All give the same bytes and symbols. */
struct kni_exact_lane_ops kni_exact_lane_ops(uint32_t cpu_flags);

void kni_exact_write_ref(struct kni_exact_writer *w, const struct kni_exact_encode_table *tables, const uint8_t *notes, const uint8_t *symbols, uint32_t n);
void kni_exact_read_ref(struct kni_exact_reader *r, const struct kni_exact_decode_table *tables, const uint8_t *notes, uint8_t *symbols, uint32_t n);
#if defined(__x86_64__)
void kni_exact_write_avx2(struct kni_exact_writer *w, const struct kni_exact_encode_table *tables, const uint8_t *notes, const uint8_t *symbols, uint32_t n);
void kni_exact_read_avx2(struct kni_exact_reader *r, const struct kni_exact_decode_table *tables, const uint8_t *notes, uint8_t *symbols, uint32_t n);
#endif

/* begin .. end: kni_exact_stream_bound bytes, filled from end downwards. */
void kni_exact_writer_init(struct kni_exact_writer *w, uint8_t *begin, uint8_t *end);
/* Writes the states; the stream begins at the address returned. */
const uint8_t *kni_exact_writer_finish(struct kni_exact_writer *w);
/* False when the bytes cannot hold the states. */
bool kni_exact_reader_init(struct kni_exact_reader *r, const uint8_t *data, size_t n_bytes);
/* True when every word was taken and every state is back at 2^16. */
bool kni_exact_reader_finish(const struct kni_exact_reader *r);

#endif
