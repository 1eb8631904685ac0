/* SPDX-License-Identifier: Apache-2.0 */
/* The reference level of layout exact's loops, and the ends of packing. */
#include "codec/exact/exact_loops.h"

#include <string.h>

#include "base/cpu.h"
#include "base/le.h"

/* 16 x 16 values: out[i][j] = in[j][i]. */
static void transpose(const uint16_t *in, size_t in_stride, uint16_t *out, size_t out_stride)
{
    for (size_t i = 0; i < 16; i++)
        for (size_t j = 0; j < 16; j++)
            out[i * out_stride + j] = in[j * in_stride + i];
}

#define TRANSPOSE transpose
#define NAME(x) x##_ref
#include "codec/exact/exact_loops.inc"

static void tables_ref(const int16_t *means, uint8_t *notes, uint32_t n, const uint8_t *edges, uint32_t n_edges)
{
    for (uint32_t t = 0; t < n; t++) {
        int32_t size = means[t] < 0 ? -means[t] : means[t];
        uint32_t table = 0;
        while (table < n_edges && size >= edges[table])
            table++;
        notes[t] = (uint8_t)(table | (means[t] < 0 ? 0x80 : 0));
    }
}

static uint32_t symbols_ref(const uint16_t *values, const uint8_t *notes, uint32_t raw_bits, uint16_t base, uint8_t *symbols, uint32_t n)
{
    uint32_t n_escapes = 0;
    for (uint32_t t = 0; t < n; t++) {
        uint16_t cell = (uint16_t)(((values[t] & 0x7fffu) >> raw_bits) - base);
        bool escape = cell > KNI_EXACT_MAX_CELL;
        symbols[t] = (uint8_t)(escape ? KNI_EXACT_ESCAPE : (uint32_t)(cell << 1 | (values[t] >> 15 ^ notes[t] >> 7)));
        n_escapes += escape;
    }
    return n_escapes;
}

static uint32_t values_ref(const uint8_t *symbols, const uint8_t *notes, uint32_t raw_bits, uint16_t base, uint16_t *values, uint32_t n, uint16_t *largest)
{
    uint32_t n_escapes = 0;
    uint16_t most = 0;
    for (uint32_t t = 0; t < n; t++) {
        uint32_t symbol = symbols[t], cell = (symbol >> 1) + base, sign = symbol ^ notes[t] >> 7;
        uint16_t size = (uint16_t)(values[t] | (cell << raw_bits & 0x7fff));
        most = size > most ? size : most;
        values[t] = (uint16_t)(size | sign << 15);
        n_escapes += symbol == KNI_EXACT_ESCAPE;
    }
    *largest = most;
    return n_escapes;
}

static void pack_ref(struct kni_exact_packer *p, const uint16_t *values, uint32_t n)
{
    const uint32_t n_bits = p->n_bits;
    const uint16_t mask = (uint16_t)((1u << n_bits) - 1);
    uint16_t columns[16];
    memcpy(columns, p->columns, sizeof columns);
    for (uint32_t t = 0; t < n; t += 16) {
        uint32_t fill = p->fill;
        for (uint32_t c = 0; c < 16; c++)
            columns[c] = (uint16_t)(columns[c] | (uint16_t)((values[t + c] & mask) << fill));
        p->fill += n_bits;
        if (p->fill < 16)
            continue;
        for (uint32_t c = 0; c < 16; c++)
            kni_le16_put(p->out + 2 * (size_t)c, columns[c]);
        p->out += 32;
        p->fill -= 16;
        for (uint32_t c = 0; c < 16; c++)
            columns[c] = (uint16_t)((values[t + c] & mask) >> (16 - fill));
    }
    memcpy(p->columns, columns, sizeof columns);
}

static void unpack_ref(struct kni_exact_unpacker *u, uint16_t *values, uint32_t n)
{
    const uint32_t n_bits = u->n_bits;
    const uint16_t mask = (uint16_t)((1u << n_bits) - 1);
    uint16_t columns[16];
    memcpy(columns, u->columns, sizeof columns);
    for (uint32_t t = 0; t < n; t += 16) {
        uint32_t fill = u->fill;
        if (fill >= n_bits) {
            for (uint32_t c = 0; c < 16; c++) {
                values[t + c] = columns[c] & mask;
                columns[c] = (uint16_t)(columns[c] >> n_bits);
            }
            u->fill -= n_bits;
            continue;
        }
        for (uint32_t c = 0; c < 16; c++) {
            uint16_t next = kni_le16_get(u->in + 2 * (size_t)c);
            values[t + c] = (uint16_t)(columns[c] | (uint16_t)(next << fill)) & mask;
            columns[c] = (uint16_t)(next >> (n_bits - fill));
        }
        u->in += 32;
        u->fill += 16 - n_bits;
    }
    memcpy(u->columns, columns, sizeof columns);
}

const struct kni_exact_loops kni_exact_loops_ref = {
    load_ref, store_ref, tables_ref, turn_ref, symbols_ref, values_ref, pack_ref, unpack_ref, sum_ref, dot_ref, product_ref,
};

const struct kni_exact_loops *kni_exact_loops_get(uint32_t cpu_flags)
{
#if defined(__x86_64__)
    if (cpu_flags & KNI_CPU_FLAG_AVX2)
        return &kni_exact_loops_avx2;
#else
    (void)cpu_flags;
#endif
    return &kni_exact_loops_ref;
}

size_t kni_exact_packed_bytes(size_t n, uint32_t n_bits)
{
    return (n / 16 * n_bits + 15) / 16 * 32;
}

void kni_exact_pack_end(struct kni_exact_packer *p)
{
    if (!p->fill)
        return;
    for (size_t c = 0; c < 16; c++)
        kni_le16_put(p->out + 2 * c, p->columns[c]);
    p->out += 32;
    p->fill = 0;
}

bool kni_exact_unpack_end(const struct kni_exact_unpacker *u)
{
    uint16_t rest = 0;
    for (size_t c = 0; c < 16; c++)
        rest |= u->columns[c];
    return rest == 0;
}
