/* SPDX-License-Identifier: Apache-2.0 */
/* Reference of the sixteen lanes, and what its forms share. The arithmetic of a state is rans_core.h's. */
#include "codec/exact/exact_lanes.h"

#include <assert.h>
#include <string.h>

#include "base/cpu.h"

/* A SIMD form writes 16 bytes where it may need none. */
#define SLACK_BYTES 32u

size_t kni_exact_stream_bound(size_t n_symbols)
{
    return KNI_EXACT_STATE_BYTES + SLACK_BYTES + 2 * n_symbols; /* a symbol gives one word at most */
}

void kni_exact_writer_init(struct kni_exact_writer *w, uint8_t *begin, uint8_t *end)
{
    for (uint32_t lane = 0; lane < KNI_EXACT_LANES; lane++)
        w->x[lane] = KNI_RANS_LOW;
    w->begin = begin;
    w->at = end;
}

void kni_exact_write_ref(struct kni_exact_writer *w, const struct kni_exact_encode_table *tables, const uint8_t *notes, const uint8_t *symbols, uint32_t n)
{
    assert(n % KNI_EXACT_LANES == 0 && (size_t)(w->at - w->begin) >= 2 * (size_t)n + SLACK_BYTES);
    while (n-- > 0) {
        const struct kni_rans_symbol *s = &tables[notes[n] & KNI_EXACT_NOTE_TABLE].symbols[symbols[n]];
        uint32_t *x = &w->x[n % KNI_EXACT_LANES];
        *x = kni_rans_put(*x, &w->at, s->freq, s->start);
    }
}

const uint8_t *kni_exact_writer_finish(struct kni_exact_writer *w)
{
    assert((size_t)(w->at - w->begin) >= KNI_EXACT_STATE_BYTES);
    w->at -= KNI_EXACT_STATE_BYTES;
    for (uint32_t lane = 0; lane < KNI_EXACT_LANES; lane++)
        kni_le32_put(w->at + 4 * (size_t)lane, w->x[lane]);
    return w->at;
}

bool kni_exact_reader_init(struct kni_exact_reader *r, const uint8_t *data, size_t n_bytes)
{
    memset(r, 0, sizeof *r);
    if (n_bytes < KNI_EXACT_STATE_BYTES)
        return false;
    for (uint32_t lane = 0; lane < KNI_EXACT_LANES; lane++)
        r->x[lane] = kni_le32_get(data + 4 * (size_t)lane);
    r->at = data + KNI_EXACT_STATE_BYTES;
    r->end = data + n_bytes;
    return true;
}

void kni_exact_read_ref(struct kni_exact_reader *r, const struct kni_exact_decode_table *tables, const uint8_t *notes, uint8_t *symbols, uint32_t n)
{
    assert(n % KNI_EXACT_LANES == 0);
    for (uint32_t t = 0; t < n; t++) {
        const uint32_t *slots = tables[notes[t] & KNI_EXACT_NOTE_TABLE].slots;
        if (!kni_rans_get(&r->x[t % KNI_EXACT_LANES], &r->at, r->end, slots, &symbols[t]))
            r->cut = true;
    }
}

bool kni_exact_reader_finish(const struct kni_exact_reader *r)
{
    bool ok = !r->cut && r->at == r->end;
    for (uint32_t lane = 0; lane < KNI_EXACT_LANES; lane++)
        ok = ok && r->x[lane] == KNI_RANS_LOW;
    return ok;
}

struct kni_exact_lane_ops kni_exact_lane_ops(uint32_t cpu_flags)
{
    struct kni_exact_lane_ops ops = {kni_exact_write_ref, kni_exact_read_ref};
#if defined(__x86_64__)
    if (cpu_flags & KNI_CPU_FLAG_AVX2)
        ops = (struct kni_exact_lane_ops){kni_exact_write_avx2, kni_exact_read_avx2};
#else
    (void)cpu_flags;
#endif
    return ops;
}
