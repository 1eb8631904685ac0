/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Scratch of kni_attn_tile, R rows = tokens of a tile * group, T = KNI_ATTN_TILE_KEYS, D = d_head rounded up to 16:
 *
 *     q [R][d] | s [R][T] | o [R][D] | max [R] | sum [R] | k panels [T/16][d][16] | v [T][D] | rows [16][d]
 *
 * About 192 rows: with d = 64 that is 0.25 MB, which fits the second cache, and converting a tile of K and V (used by all
 * rows) is 3 % of the multiply-adds on it.
 */
#include "kernel/attn.h"

#include <assert.h>
#include <math.h>
#include <string.h>

#include "base/half.h"
#include "kernel/kernels.h"

#define TILE_ROWS 192u
#define TILE_TOKENS_MAX 64u

static uint32_t round16(uint32_t n)
{
    return (n + 15u) & ~15u;
}

uint32_t kni_attn_tile_tokens(uint32_t group)
{
    uint32_t n = TILE_ROWS / group;
    return n < 1 ? 1 : n > TILE_TOKENS_MAX ? TILE_TOKENS_MAX : n;
}

uint32_t kni_attn_part_keys(uint32_t n_ctx)
{
    uint32_t n = (n_ctx / 32 + 127u) & ~127u;
    return n < 256 ? 256 : n > KNI_ATTN_PART_KEYS_MAX ? KNI_ATTN_PART_KEYS_MAX : n;
}

size_t kni_attn_scratch_floats(uint32_t group, uint32_t d_head)
{
    size_t d = d_head, wide = round16(d_head), rows = (size_t)kni_attn_tile_tokens(group) * group;
    size_t tile = rows * (d + KNI_ATTN_TILE_KEYS + wide + 2) + KNI_ATTN_TILE_KEYS * (d + wide) + 16 * d;
    size_t part = group * (d + KNI_ATTN_PART_KEYS_MAX);
    return tile > part ? tile : part;
}

static uint32_t at_most(uint32_t n, uint32_t most)
{
    return n < most ? n : most;
}

/* a - b, or 0. */
static uint32_t below(uint32_t a, uint32_t b)
{
    return a > b ? a - b : 0;
}

/* Scores to probabilities: the soft cap, then the online softmax over first .. end - 1 of n. cap * tanh(s / cap) is
 * cap - 2 cap / (exp(2 s / cap) + 1), whose absolute error is cap * eps times a few. */
static float softmax(const struct kni_attn_args *a, float *s, uint32_t first, uint32_t end, uint32_t n, float *max, float *sum)
{
    if (a->softcap > 0) {
        float to = 2.0f / a->softcap, twice = 2.0f * a->softcap;
        for (uint32_t i = 0; i < n; i++)
            s[i] *= to;
        a->kernels->exp(s, s, n);
        for (uint32_t i = 0; i < n; i++)
            s[i] = a->softcap - twice / (s[i] + 1.0f);
    }
    return a->kernels->softmax_tile(s, first, end, n, max, sum);
}

/* K of n_blocks blocks into panels, V into rows; values from n_keys on are 0. */
static void load_tile(const struct kni_attn_args *a, uint32_t key0, uint32_t n_keys, float *k, float *v, float *rows)
{
    const struct kni_kernels *kn = a->kernels;
    uint32_t d = a->kv->layout.d_head, wide = round16(d), type = a->kv->layout.type;
    for (uint32_t i = 0; i < n_keys; i += KNI_BLOCK_TOKENS) {
        kn->from_half[type](rows, kni_kv_row(a->kv, a->layer, 0, a->kv_head, key0 + i), (size_t)KNI_BLOCK_TOKENS * d);
        kn->pack16(k + (size_t)i * d, rows, d, d);
        uint32_t n = n_keys - i < KNI_BLOCK_TOKENS ? n_keys - i : KNI_BLOCK_TOKENS;
        const uint16_t *src = kni_kv_row(a->kv, a->layer, 1, a->kv_head, key0 + i);
        float *dst = v + (size_t)i * wide;
        if (wide == d)
            kn->from_half[type](dst, src, (size_t)n * d);
        else
            for (uint32_t t = 0; t < n; t++) {
                kn->from_half[type](dst + (size_t)t * wide, src + (size_t)t * d, d);
                memset(dst + (size_t)t * wide + d, 0, (wide - d) * sizeof *dst);
            }
        memset(dst + (size_t)n * wide, 0, (size_t)(KNI_BLOCK_TOKENS - n) * wide * sizeof *dst);
    }
}

void kni_attn_tile(const struct kni_attn_args *a)
{
    const struct kni_kernels *kn = a->kernels;
    uint32_t d = a->kv->layout.d_head, wide = round16(d), group = a->group, n_rows = a->n_tokens * group;
    assert(a->n_tokens >= 1 && a->n_tokens <= kni_attn_tile_tokens(group));
    float *q = a->scratch, *s = q + (size_t)n_rows * d, *o = s + (size_t)n_rows * KNI_ATTN_TILE_KEYS, *max = o + (size_t)n_rows * wide;
    float *sum = max + n_rows, *k = sum + n_rows, *v = k + (size_t)KNI_ATTN_TILE_KEYS * d, *rows = v + (size_t)KNI_ATTN_TILE_KEYS * wide;
    for (uint32_t t = 0; t < a->n_tokens; t++)
        for (uint32_t i = 0; i < group * d; i++)
            q[(size_t)t * group * d + i] = a->q[t * a->ldq + i] * a->scale;
    for (uint32_t r = 0; r < n_rows; r++) {
        max[r] = -INFINITY;
        sum[r] = 0;
    }
    uint32_t end = a->first_pos + a->n_tokens, start = kni_attn_first_key(a->first_pos, a->window) / KNI_ATTN_TILE_KEYS * KNI_ATTN_TILE_KEYS;
    for (uint32_t key0 = start; key0 < end; key0 += KNI_ATTN_TILE_KEYS) {
        uint32_t n_keys = end - key0 < KNI_ATTN_TILE_KEYS ? end - key0 : KNI_ATTN_TILE_KEYS, n_wide = round16(n_keys);
        uint32_t row0 = key0 > a->first_pos ? (key0 - a->first_pos) * group : 0; /* earlier rows see none of these keys */
        load_tile(a, key0, n_keys, k, v, rows);
        kn->gemm(&(struct kni_gemm_args){.m = n_rows - row0, .n = n_wide, .k = d, .a = q + (size_t)row0 * d, .lda = d, .b = k, .ldb = 16,
            .panel_stride = (size_t)16 * d, .c = s + (size_t)row0 * KNI_ATTN_TILE_KEYS, .ldc = KNI_ATTN_TILE_KEYS});
        for (uint32_t r = row0; r < n_rows; r++) {
            uint32_t pos = a->first_pos + r / group, first = at_most(below(kni_attn_first_key(pos, a->window), key0), n_keys);
            float alpha = softmax(a, s + (size_t)r * KNI_ATTN_TILE_KEYS, first, at_most(pos + 1 - key0, n_keys), n_wide, &max[r], &sum[r]);
            if (key0 > start && alpha != 1.0f)
                kn->scale(o + (size_t)r * wide, alpha, wide);
        }
        kn->gemm(&(struct kni_gemm_args){.m = n_rows - row0, .n = wide, .k = n_wide, .a = s + (size_t)row0 * KNI_ATTN_TILE_KEYS,
            .lda = KNI_ATTN_TILE_KEYS, .b = v, .ldb = wide, .panel_stride = 16, .c = o + (size_t)row0 * wide, .ldc = wide,
            .accumulate = key0 > start});
    }
    for (uint32_t r = 0; r < n_rows; r++) {
        float *out = a->out + r / group * a->ldo + (size_t)(r % group) * d, f = 1.0f / sum[r];
        for (uint32_t i = 0; i < d; i++)
            out[i] = o[(size_t)r * wide + i] * f;
    }
}

void kni_attn_part(const struct kni_attn_args *a, uint32_t key0, uint32_t n_keys, float *part)
{
    const struct kni_kernels *kn = a->kernels;
    uint32_t d = a->kv->layout.d_head, group = a->group, type = a->kv->layout.type;
    assert(n_keys >= 1 && n_keys <= KNI_ATTN_PART_KEYS_MAX && key0 % KNI_BLOCK_TOKENS == 0);
    float *q = a->scratch, *s = q + (size_t)group * d, *max = part, *sum = part + group, *o = part + 2 * (size_t)group;
    size_t lds = KNI_ATTN_PART_KEYS_MAX;
    for (uint32_t i = 0; i < group * d; i++) {
        q[i] = a->q[i] * a->scale;
        o[i] = 0;
    }
    uint32_t first = below(kni_attn_first_key(a->first_pos, a->window), key0), skip = first & ~(KNI_BLOCK_TOKENS - 1);
    assert(first < n_keys);
    for (uint32_t i = skip; i < n_keys; i += KNI_BLOCK_TOKENS)
        kn->attn_score16[type](s + i, lds, q, kni_kv_row(a->kv, a->layer, 0, a->kv_head, key0 + i), group, d);
    for (uint32_t g = 0; g < group; g++) {
        max[g] = -INFINITY;
        sum[g] = 0;
        softmax(a, s + g * lds + skip, first - skip, n_keys - skip, n_keys - skip, &max[g], &sum[g]);
    }
    for (uint32_t i = skip; i < n_keys; i += KNI_BLOCK_TOKENS) {
        uint32_t n = n_keys - i < KNI_BLOCK_TOKENS ? n_keys - i : KNI_BLOCK_TOKENS;
        kn->attn_mix16[type](o, s + i, lds, kni_kv_row(a->kv, a->layer, 1, a->kv_head, key0 + i), n, group, d);
    }
}

void kni_attn_part_merge(float *acc, const float *part, uint32_t group, uint32_t d_head)
{
    for (uint32_t g = 0; g < group; g++) {
        float m = acc[g] > part[g] ? acc[g] : part[g];
        float fa = acc[g] == -INFINITY ? 0.0f : expf(acc[g] - m), fp = part[g] == -INFINITY ? 0.0f : expf(part[g] - m);
        float *o = acc + 2 * (size_t)group + (size_t)g * d_head;
        const float *p = part + 2 * (size_t)group + (size_t)g * d_head;
        acc[g] = m;
        acc[group + g] = acc[group + g] * fa + part[group + g] * fp;
        for (uint32_t i = 0; i < d_head; i++)
            o[i] = o[i] * fa + p[i] * fp;
    }
}

void kni_attn_part_finish(float *out, const float *acc, uint32_t group, uint32_t d_head)
{
    for (uint32_t g = 0; g < group; g++) {
        float f = 1.0f / acc[group + g];
        for (uint32_t i = 0; i < d_head; i++)
            out[(size_t)g * d_head + i] = acc[2 * (size_t)group + (size_t)g * d_head + i] * f;
    }
}

static inline void score16(float *s, size_t lds, const float *q, const uint16_t *k, uint32_t group, uint32_t d, float (*load)(uint16_t))
{
    for (uint32_t g = 0; g < group; g++)
        for (uint32_t t = 0; t < KNI_BLOCK_TOKENS; t++) {
            double dot = 0;
            for (uint32_t i = 0; i < d; i++)
                dot += (double)q[(size_t)g * d + i] * (double)load(k[(size_t)t * d + i]);
            s[g * lds + t] = (float)dot;
        }
}

static inline void mix16(float *o, const float *p, size_t ldp, const uint16_t *v, uint32_t n_keys, uint32_t group, uint32_t d,
                         float (*load)(uint16_t))
{
    for (uint32_t g = 0; g < group; g++)
        for (uint32_t t = 0; t < n_keys; t++)
            for (uint32_t i = 0; i < d; i++)
                o[(size_t)g * d + i] += p[g * ldp + t] * load(v[(size_t)t * d + i]);
}

void kni_attn_score16_f16_ref(float *s, size_t lds, const float *q, const uint16_t *k, uint32_t group, uint32_t d_head)
{
    score16(s, lds, q, k, group, d_head, kni_f16_to_f32);
}

void kni_attn_score16_bf16_ref(float *s, size_t lds, const float *q, const uint16_t *k, uint32_t group, uint32_t d_head)
{
    score16(s, lds, q, k, group, d_head, kni_bf16_to_f32);
}

void kni_attn_mix16_f16_ref(float *o, const float *p, size_t ldp, const uint16_t *v, uint32_t n_keys, uint32_t group, uint32_t d_head)
{
    mix16(o, p, ldp, v, n_keys, group, d_head, kni_f16_to_f32);
}

void kni_attn_mix16_bf16_ref(float *o, const float *p, size_t ldp, const uint16_t *v, uint32_t n_keys, uint32_t group, uint32_t d_head)
{
    mix16(o, p, ldp, v, n_keys, group, d_head, kni_bf16_to_f32);
}

/* Score of position pos. */
static double score_ref(const struct kni_attn_args *a, const float *q, uint32_t pos, float (*load)(uint16_t))
{
    const uint16_t *k = kni_kv_row(a->kv, a->layer, 0, a->kv_head, pos);
    double dot = 0;
    for (uint32_t i = 0; i < a->kv->layout.d_head; i++)
        dot += (double)q[i] * (double)load(k[i]);
    dot *= (double)a->scale;
    return a->softcap > 0 ? (double)a->softcap * tanh(dot / (double)a->softcap) : dot;
}

void kni_attn_ref(const struct kni_attn_args *a)
{
    enum { PIECE = 64 }; /* components of the mean at a time */
    uint32_t d = a->kv->layout.d_head;
    float (*load)(uint16_t) = a->kv->layout.type == KN_KV_TYPE_F16 ? kni_f16_to_f32 : kni_bf16_to_f32;
    for (uint32_t g = 0; g < a->group; g++) {
        const float *q = a->q + (size_t)g * d;
        double max = -INFINITY;
        for (uint32_t pos = kni_attn_first_key(a->first_pos, a->window); pos <= a->first_pos; pos++)
            max = fmax(max, score_ref(a, q, pos, load));
        for (uint32_t i0 = 0; i0 < d; i0 += PIECE) {
            uint32_t n = d - i0 < PIECE ? d - i0 : PIECE;
            double mean[PIECE] = {0}, sum = 0;
            for (uint32_t pos = kni_attn_first_key(a->first_pos, a->window); pos <= a->first_pos; pos++) {
                const uint16_t *v = kni_kv_row(a->kv, a->layer, 1, a->kv_head, pos) + i0;
                double p = exp(score_ref(a, q, pos, load) - max);
                sum += p;
                for (uint32_t i = 0; i < n; i++)
                    mean[i] += p * (double)load(v[i]);
            }
            for (uint32_t i = 0; i < n; i++)
                a->out[(size_t)g * d + i0 + i] = (float)(mean[i] / sum);
        }
    }
}
