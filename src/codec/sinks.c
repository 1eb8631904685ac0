/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A value of the pool is sign, exponent (5 bits in f16, 8 in bf16) and fraction (10, 7):
 *
 *     sign      adaptive; context: sign and exponent of the same channel in the token before
 *     exponent  adaptive, bit by bit from the top; context: the bits so far, the exponent of the channel in the token before
 *     fraction  two bits adaptive, context: the exponent; the others as they are, packed, before the coder's bytes
 *
 * all apart for K and V, exponents and signs for the 1st, 2nd, 3rd and later tokens too. Measured on SmolLM2 (4 tokens, 92,160
 * bytes, mean of ten prompts): zstd of byte planes, level 19: 81,630; exponents without context 79,300; this 78,870; six contexts
 * mixed 78,390. What is left is fraction bits, which nothing predicts: 7 of 10 kB, so the simple one stays.
 *
 *     [ packed bits: n values x 8 or 5, a whole number of bytes ][ coder's bytes ]
 *
 * The coder is a binary arithmetic coder without carry: an interval of 32 bits, split by a 16-bit probability. The decoder reads as
 * many bytes as the encoder wrote for the same decisions, so that a wrong length shows.
 */
#include "codec/sinks.h"

#include <string.h>

#define ONE 65536u
#define LEAST 64u /* of a probability */
#define LIMIT 60u /* a state that has seen so much adapts no more slowly */
#define BUCKETS 32u
#define AGES 4u

struct state { uint16_t p; uint16_t n; }; /* of a 1, in 65536ths; times seen */

struct model {
    struct state sign[2][AGES][BUCKETS][2];
    struct state exponent[2][AGES][BUCKETS][256];
    struct state fraction[2][256][4];
    uint16_t rate[LIMIT + 1];
};

/* One pass over the values, in either direction. */
struct coder {
    struct model *m;
    uint32_t low, high, x;
    uint8_t *out;         /* encoding */
    const uint8_t *in, *end; /* decoding; past the end zeros are read */
    size_t n_missing;
    bool not_finite; /* a value has the exponent of infinity and NaN */
};

static void model_init(struct model *m)
{
    struct state *s = &m->sign[0][0][0][0];
    size_t n = offsetof(struct model, rate) / sizeof *s;
    for (size_t i = 0; i < n; i++)
        s[i] = (struct state){.p = ONE / 2};
    for (uint32_t i = 0; i <= LIMIT; i++)
        m->rate[i] = (uint16_t)(ONE * 10 / (10 * i + 16)); /* 1 / (n + 1.6) */
}

static void adapt(const struct model *m, struct state *s, uint32_t bit)
{
    uint32_t p = s->p, rate = m->rate[s->n];
    p = bit ? p + (uint32_t)((uint64_t)(ONE - p) * rate >> 16) : p - (uint32_t)((uint64_t)p * rate >> 16);
    s->p = (uint16_t)(p < LEAST ? LEAST : p > ONE - LEAST ? ONE - LEAST : p);
    s->n = (uint16_t)(s->n + (s->n < LIMIT));
}

static void next_byte(struct coder *c)
{
    c->x <<= 8;
    if (c->in < c->end)
        c->x |= *c->in++;
    else
        c->n_missing++;
}

/* Codes *bit (encoding: out is not NULL) or finds it. */
static uint32_t code(struct coder *c, struct state *s, uint32_t bit)
{
    uint32_t middle = c->low + (uint32_t)((uint64_t)(c->high - c->low) * s->p >> 16);
    if (!c->out)
        bit = c->x <= middle;
    if (bit)
        c->high = middle;
    else
        c->low = middle + 1;
    adapt(c->m, s, bit);
    while (!((c->low ^ c->high) >> 24)) {
        if (c->out)
            *c->out++ = (uint8_t)(c->high >> 24);
        else
            next_byte(c);
        c->low <<= 8;
        c->high = c->high << 8 | 255u;
    }
    return bit;
}

struct shape { uint32_t e_bits, f_bits, bias; };

static struct shape shape_of(enum kn_kv_type type)
{
    return type == KN_KV_TYPE_BF16 ? (struct shape){8, 7, 112} : (struct shape){5, 10, 0};
}

static uint32_t bucket_of(uint32_t e, const struct shape *h)
{
    e = e > h->bias ? e - h->bias : 0;
    return e < BUCKETS ? e : BUCKETS - 1;
}

/* One value but its low f_bits - 2 bits, which *value holds already when decoding. before: the channel in the token before, or 0. */
static void code_value(struct coder *c, const struct shape *h, uint32_t is_v, uint32_t age, uint16_t before, uint16_t *value)
{
    uint32_t e_mask = (1u << h->e_bits) - 1, bucket = bucket_of((uint32_t)before >> h->f_bits & e_mask, h), v = *value;
    uint32_t sign = code(c, &c->m->sign[is_v][age][bucket][before >> 15], v >> 15);
    uint32_t node = 1;
    for (uint32_t b = h->e_bits; b--;)
        node = node << 1 | code(c, &c->m->exponent[is_v][age][bucket][node], v >> (h->f_bits + b) & 1u);
    uint32_t e = node & e_mask;
    c->not_finite |= e == e_mask;
    node = 1;
    for (uint32_t b = h->f_bits; b-- > h->f_bits - 2;)
        node = node << 1 | code(c, &c->m->fraction[is_v][e][node], v >> b & 1u);
    uint32_t low = v & ((1u << (h->f_bits - 2)) - 1);
    *value = (uint16_t)(sign << 15 | e << h->f_bits | (node & 3u) << (h->f_bits - 2) | low);
}

static void code_all(struct coder *c, const struct kni_kv_host *view, uint32_t first_token, uint32_t n_tokens)
{
    const struct kni_kv_layout *kv = &view->layout;
    struct shape h = shape_of(kv->type);
    for (uint32_t part = 0; part < kv->n_layer * 2; part++)
        for (uint32_t head = 0; head < kv->n_kv_head; head++)
            for (uint32_t t = 0; t < n_tokens; t++) {
                uint16_t *row = kni_kv_row(view, part / 2, part % 2, head, first_token + t);
                const uint16_t *before = t ? kni_kv_row(view, part / 2, part % 2, head, first_token + t - 1) : NULL;
                for (uint32_t i = 0; i < kv->d_head; i++) {
                    uint16_t value = row[i];
                    code_value(c, &h, part % 2, t < AGES ? t : AGES - 1, before ? before[i] : 0, &value);
                    if (!c->out)
                        row[i] = value;
                }
            }
}

/* ---- the bits that are not modelled */

static size_t n_values(const struct kni_kv_layout *kv, uint32_t n_tokens)
{
    return (size_t)kv->n_layer * 2 * kv->n_kv_head * kv->d_head * n_tokens; /* bounded as the container bounds them: below 2^34 */
}

static size_t packed_bytes(const struct kni_kv_layout *kv, uint32_t n_tokens)
{
    return (n_values(kv, n_tokens) * (shape_of(kv->type).f_bits - 2) + 7) / 8;
}

/* From the view to packed (out not NULL), or from packed into the view as bare low bits. */
static void pack_all(const struct kni_kv_host *view, uint32_t first_token, uint32_t n_tokens, uint8_t *out, const uint8_t *in)
{
    const struct kni_kv_layout *kv = &view->layout;
    uint32_t bits = shape_of(kv->type).f_bits - 2, mask = (1u << bits) - 1, held = 0, n_held = 0;
    for (uint32_t row = 0; row < kv->n_layer * 2 * kv->n_kv_head * n_tokens; row++) {
        uint32_t t = row % n_tokens, head = row / n_tokens % kv->n_kv_head, part = row / n_tokens / kv->n_kv_head;
        uint16_t *values = kni_kv_row(view, part / 2, part % 2, head, first_token + t);
        for (uint32_t i = 0; i < kv->d_head; i++) {
            if (out) {
                held |= (values[i] & mask) << n_held;
                n_held += bits;
                for (; n_held >= 8; n_held -= 8, held >>= 8)
                    *out++ = (uint8_t)held;
            } else {
                if (n_held < bits) {
                    held |= (uint32_t)*in++ << n_held;
                    n_held += 8;
                }
                values[i] = (uint16_t)(held & mask);
                held >>= bits;
                n_held -= bits;
            }
        }
    }
    if (out && n_held)
        *out = (uint8_t)held;
}

/* ---- */

size_t kni_sinks_scratch_bytes(void)
{
    return sizeof(struct model);
}

size_t kni_sinks_bound(const struct kni_kv_layout *kv, uint32_t n_tokens)
{
    /* a decision costs at most 11 bits (LEAST, and narrow intervals), a value has at most 11 of them; real ones need 2 bytes */
    return packed_bytes(kv, n_tokens) + n_values(kv, n_tokens) * 16 + 8;
}

size_t kni_sinks_encode(const struct kni_kv_host *view, uint32_t first_token, uint32_t n_tokens, uint8_t *out, void *scratch)
{
    size_t packed = packed_bytes(&view->layout, n_tokens);
    struct coder c = {.m = scratch, .high = UINT32_MAX, .out = out + packed};
    model_init(c.m);
    pack_all(view, first_token, n_tokens, out, NULL);
    code_all(&c, view, first_token, n_tokens);
    for (int i = 0; i < 4; i++, c.low <<= 8)
        *c.out++ = (uint8_t)(c.low >> 24);
    return (size_t)(c.out - out);
}

enum kn_status kni_sinks_decode(const struct kni_kv_host *view, uint32_t first_token, uint32_t n_tokens, const uint8_t *data, size_t n_bytes, void *scratch)
{
    size_t packed = packed_bytes(&view->layout, n_tokens);
    if (n_bytes < packed + 4)
        return KN_E_FORMAT;
    struct coder c = {.m = scratch, .high = UINT32_MAX, .in = data + packed, .end = data + n_bytes};
    model_init(c.m);
    for (int i = 0; i < 4; i++)
        next_byte(&c);
    pack_all(view, first_token, n_tokens, NULL, data);
    code_all(&c, view, first_token, n_tokens);
    return c.n_missing || c.in != c.end ? KN_E_FORMAT : c.not_finite ? KN_E_NOT_FINITE : KN_OK;
}
