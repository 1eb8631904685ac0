/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What the codec's tests share: small pools with a scattered block table, chunk descriptions, random and KV-like values
 * from a fixed seed. Everything asserts, nothing returns errors.
 */
#ifndef TEST_CODEC_SUPPORT_H
#define TEST_CODEC_SUPPORT_H

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "base/alloc.h"
#include "base/half.h"
#include "codec/codec.h"
#include "codec/container.h"

struct pool {
    struct kni_kv_host view;
    uint32_t *table; /* scattered: pool block 0 and every second other one stay outside the view */
    size_t n_values;
};

static uint64_t test_rng = 0x2545f4914f6cdd1du;

static inline uint32_t test_random(void)
{
    test_rng ^= test_rng << 13;
    test_rng ^= test_rng >> 7;
    test_rng ^= test_rng << 17;
    return (uint32_t)(test_rng >> 24);
}

/* Any 16 bits; infinities and what is no number lose a bit of their exponent. */
static inline uint16_t test_finite(uint16_t bits, enum kn_kv_type type)
{
    uint16_t infinity = kni_kv_infinity(type);
    return (bits & infinity) == infinity ? bits & (uint16_t)~0x4000 : bits;
}

/* Random bits: all patterns of finite values. n_tokens a multiple of 16. */
static inline struct pool pool_make(uint32_t n_layer, uint32_t n_kv_head, uint32_t d_head, enum kn_kv_type type, uint32_t n_tokens)
{
    struct pool p = {.view = {.layout = {n_layer, n_kv_head, d_head, type}}};
    uint32_t n = n_tokens / KNI_BLOCK_TOKENS;
    p.n_values = kni_kv_block_values(&p.view.layout) * (2 * n + 1);
    p.table = malloc(n * sizeof *p.table);
    p.view = kni_kv_host_by_block(&p.view.layout, malloc(p.n_values * 2), p.table, n);
    assert_true(p.view.k && p.table);
    for (size_t i = 0; i < p.n_values; i++)
        p.view.k[i] = test_finite((uint16_t)test_random(), type);
    for (uint32_t i = 0; i < n; i++)
        p.table[i] = 2 * ((i * 7 + 3) % n) + 1;
    if (n % 7 == 0) /* 7 would not visit every block */
        for (uint32_t i = 0; i < n; i++)
            p.table[i] = 2 * (n - 1 - i) + 1;
    return p;
}

static inline void pool_free(struct pool *p)
{
    free(p->view.k);
    free(p->table);
}

static inline uint16_t test_to_half(float x, enum kn_kv_type type)
{
    return type == KN_KV_TYPE_F16 ? kni_f32_to_f16(x) : kni_f32_to_bf16(x);
}

static inline float test_from_half(uint16_t x, enum kn_kv_type type)
{
    return type == KN_KV_TYPE_F16 ? kni_f16_to_f32(x) : kni_bf16_to_f32(x);
}

/* Finite values that vary slowly with the token, a scale a channel, and noise: roughly what K and V look like. */
static inline void pool_fill_smooth(struct pool *p)
{
    const struct kni_kv_layout *l = &p->view.layout;
    for (uint32_t part = 0; part < l->n_layer * 2; part++)
        for (uint32_t head = 0; head < l->n_kv_head; head++)
            for (uint32_t pos = 0; pos < p->view.n_blocks * KNI_BLOCK_TOKENS; pos++) {
                uint16_t *row = kni_kv_row(&p->view, part / 2, part % 2, head, pos);
                for (uint32_t i = 0; i < l->d_head; i++) {
                    float noise = (float)(test_random() % 2001) / 1000.0f - 1.0f;
                    row[i] = test_to_half(3.0f * sinf((float)pos * 0.02f * (float)(i % 5) + (float)(i + part)) + 0.4f * noise, l->type);
                }
            }
}

static inline struct kni_chunk_meta test_meta(const struct pool *p, uint32_t first_token, uint32_t n_tokens)
{
    struct kni_chunk_meta m = {.preset = KN_PRESET_DEFAULT, .first_token = first_token, .n_tokens = n_tokens, .kv = p->view.layout};
    for (int i = 0; i < 16; i++) {
        m.fingerprint[i] = (uint8_t)(i + 1);
        m.chain.bytes[i] = (uint8_t)(0xf0 - i);
    }
    return m;
}

static inline struct kni_codec *test_codec(enum kn_preset preset, struct kn_tiles_opts tiles)
{
    struct kni_codec *codec;
    struct kni_codec_opts opts = {.preset = preset, .tiles = tiles};
    struct kn_err err = {0};
    if (kni_codec_open(&codec, &opts, &err) != KN_OK)
        fail_msg("%s", err.text);
    return codec;
}

#endif
