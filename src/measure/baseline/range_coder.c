/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The range coder of range_coder.h. low has 33 bits: the 33rd is a carry into bytes that are already decided but for it, which
 * therefore wait: one byte in cache, and n_pending bytes of 0xff behind it.
 */
#include "measure/baseline/range_coder.h"

#include <assert.h>

#define LEAST_RANGE (1u << 24)

void kni_range_encoder_init(struct kni_range_encoder *e, uint8_t *out, size_t room)
{
    *e = (struct kni_range_encoder){.out = out, .room = room, .range = UINT32_MAX};
}

static void put(struct kni_range_encoder *e, uint8_t byte)
{
    if (e->used < e->room)
        e->out[e->used] = byte;
    e->used++;
}

static void shift_low(struct kni_range_encoder *e)
{
    if (e->low < 0xff000000u || e->low > UINT32_MAX) {
        uint8_t carry = (uint8_t)(e->low >> 32);
        if (e->started)
            put(e, (uint8_t)(e->cache + carry));
        e->started = true;
        for (; e->n_pending; e->n_pending--)
            put(e, (uint8_t)(0xff + carry));
        e->cache = (uint8_t)(e->low >> 24);
    } else {
        e->n_pending++;
    }
    e->low = (e->low & 0xffffffu) << 8;
}

void kni_range_encode(struct kni_range_encoder *e, uint32_t below, uint32_t count, uint32_t total)
{
    assert(count && total <= KNI_RANGE_TOTAL_MAX && below + count <= total);
    uint32_t unit = e->range / total;
    e->low += (uint64_t)below * unit;
    e->range = below + count == total ? e->range - below * unit : count * unit;
    for (; e->range < LEAST_RANGE; e->range <<= 8)
        shift_low(e);
}

size_t kni_range_encoder_finish(struct kni_range_encoder *e)
{
    for (unsigned i = 0; i < 5; i++)
        shift_low(e);
    return e->used;
}

void kni_range_decoder_init(struct kni_range_decoder *d, const uint8_t *in, size_t n_bytes)
{
    *d = (struct kni_range_decoder){.in = in, .n_bytes = n_bytes, .range = UINT32_MAX};
    for (unsigned i = 0; i < 4; i++, d->at++)
        d->code = d->code << 8 | (d->at < n_bytes ? in[d->at] : 0u);
}

uint32_t kni_range_decode_get(struct kni_range_decoder *d, uint32_t total)
{
    d->unit = d->range / total;
    uint32_t value = d->code / d->unit;
    return value < total ? value : total - 1;
}

void kni_range_decode_take(struct kni_range_decoder *d, uint32_t below, uint32_t count, uint32_t total)
{
    d->code -= below * d->unit;
    d->range = below + count == total ? d->range - below * d->unit : count * d->unit; /* the last one has what the division left over */
    for (; d->range < LEAST_RANGE; d->range <<= 8, d->at++)
        d->code = d->code << 8 | (d->at < d->n_bytes ? d->in[d->at] : 0u);
}

bool kni_range_decoder_is_over(const struct kni_range_decoder *d)
{
    return d->at > d->n_bytes;
}

/* ---- adaptive model */

#define STEP 24u
#define TOTAL_MAX 32000u

static void model_ready(struct kni_range_model *m, uint32_t n_symbols)
{
    assert(n_symbols && n_symbols <= KNI_RANGE_MODEL_MAX);
    if (m->total)
        return;
    for (uint32_t i = 0; i < n_symbols; i++)
        m->count[i] = 1;
    m->total = (uint16_t)n_symbols;
}

static void model_learn(struct kni_range_model *m, uint32_t n_symbols, uint32_t symbol)
{
    m->count[symbol] = (uint16_t)(m->count[symbol] + STEP);
    m->total = (uint16_t)(m->total + STEP);
    if (m->total <= TOTAL_MAX)
        return;
    m->total = 0;
    for (uint32_t i = 0; i < n_symbols; i++) {
        m->count[i] = (uint16_t)((m->count[i] + 1) / 2);
        m->total = (uint16_t)(m->total + m->count[i]);
    }
}

void kni_range_model_encode(struct kni_range_model *m, struct kni_range_encoder *e, uint32_t n_symbols, uint32_t symbol)
{
    model_ready(m, n_symbols);
    uint32_t below = 0;
    for (uint32_t i = 0; i < symbol; i++)
        below += m->count[i];
    kni_range_encode(e, below, m->count[symbol], m->total);
    model_learn(m, n_symbols, symbol);
}

uint32_t kni_range_model_decode(struct kni_range_model *m, struct kni_range_decoder *d, uint32_t n_symbols)
{
    model_ready(m, n_symbols);
    uint32_t value = kni_range_decode_get(d, m->total), below = 0, symbol = 0;
    while (symbol + 1 < n_symbols && below + m->count[symbol] <= value)
        below += m->count[symbol++];
    kni_range_decode_take(d, below, m->count[symbol], m->total);
    model_learn(m, n_symbols, symbol);
    return symbol;
}
