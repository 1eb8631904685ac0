/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Scratch of kni_attn_tile, R rows = tokens of a tile * group, T = KNI_ATTN_TILE_KEYS, D = d_head rounded up to 16:
 *
 *     q [R][d] | o [R][D] | acc [R][D] | max, sum [R] of o | max, sum [R] of acc | k panels [T/16][d][16] | v [T][D] | s [STRIP][T]
 *
 * About 192 rows: with d = 64 that is 0.2 MB, which fits the second cache, and converting a tile of K and V, used by all rows,
 * is 3 % of the multiply-adds on it. Rows go through a tile in strips: scores of a strip stay in the first cache from product
 * to product, panels of K and V are read from there by the rows of a strip, and a strip on the diagonal stops at the last
 * block that it sees. o covers the running part of keys, acc the parts before.
 */
#include "kernel/attn.h"

#include <assert.h>
#include <math.h>
#include <stdbool.h>
#include <string.h>

#include "base/half.h"
#include "kernel/kernels.h"

#define TILE_ROWS 192u
#define TILE_TOKENS_MAX 64u
#define STRIP 24u           /* rows; a multiple of those of a gemm tile */
#define AHEAD_BYTES 4096u   /* read so far ahead of the block at hand */

static uint32_t round16(uint32_t n)
{
    return (n + 15u) & ~15u;
}

uint32_t kni_attn_tile_tokens(uint32_t group)
{
    uint32_t n = TILE_ROWS / group;
    return n < 1 ? 1 : n > TILE_TOKENS_MAX ? TILE_TOKENS_MAX : n;
}

static size_t tile_floats(size_t rows, size_t d, size_t wide)
{
    return rows * (d + 2 * wide + 4) + KNI_ATTN_TILE_KEYS * (d + wide) + (size_t)STRIP * KNI_ATTN_TILE_KEYS;
}

size_t kni_attn_scratch_floats(uint32_t group, uint32_t d_head)
{
    size_t tile = tile_floats((size_t)kni_attn_tile_tokens(group) * group, d_head, round16(d_head));
    size_t part = (size_t)group * (d_head + KNI_ATTN_TILE_KEYS);
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

/* (max, sum, o) of earlier keys, and of later ones. */
static void fold(float *max, float *sum, float *o, float part_max, float part_sum, const float *part_o, uint32_t d)
{
    float m = *max > part_max ? *max : part_max;
    float fa = *max == -INFINITY ? 0.0f : expf(*max - m), fp = part_max == -INFINITY ? 0.0f : expf(part_max - m);
    *max = m;
    *sum = *sum * fa + part_sum * fp;
    for (uint32_t i = 0; i < d; i++)
        o[i] = o[i] * fa + part_o[i] * fp;
}

struct tile {
    const struct kni_attn_args *a;
    uint32_t d, wide, n_rows;
    float *q, *o, *acc, *max, *sum, *acc_max, *acc_sum, *k, *v, *s;
};

/* K of the blocks of a tile into panels, V into rows; values from n_keys on are 0. */
static void load_keys(const struct tile *t, uint32_t key0, uint32_t n_keys)
{
    const struct kni_attn_args *a = t->a;
    const struct kni_kernels *kn = a->kernels;
    uint32_t d = t->d, wide = t->wide, type = a->kv->layout.type;
    for (uint32_t i = 0; i < n_keys; i += KNI_BLOCK_TOKENS) {
        kn->pack16_half[type](t->k + (size_t)i * d, kni_kv_row(a->kv, a->layer, 0, a->kv_head, key0 + i), d);
        uint32_t n = at_most(n_keys - i, KNI_BLOCK_TOKENS);
        const uint16_t *src = kni_kv_row(a->kv, a->layer, 1, a->kv_head, key0 + i);
        float *dst = t->v + (size_t)i * wide;
        if (wide == d)
            kn->from_half[type](dst, src, (size_t)n * d);
        else
            for (uint32_t j = 0; j < n; j++) {
                kn->from_half[type](dst + (size_t)j * wide, src + (size_t)j * d, d);
                memset(dst + (size_t)j * wide + d, 0, (wide - d) * sizeof *dst);
            }
        memset(dst + (size_t)n * wide, 0, (size_t)(KNI_BLOCK_TOKENS - n) * wide * sizeof *dst);
    }
}

/* Rows row .. row + n - 1 against the loaded keys, of which the first n_keys are there. fresh: the first tile of a part. */
static void strip(const struct tile *t, uint32_t row, uint32_t n, uint32_t key0, uint32_t n_keys, bool fresh)
{
    const struct kni_attn_args *a = t->a;
    const struct kni_kernels *kn = a->kernels;
    uint32_t first_pos = a->first_pos + row / a->group, last_pos = a->first_pos + (row + n - 1) / a->group;
    uint32_t end = at_most(last_pos + 1 - key0, n_keys), wide_end = round16(end); /* columns that some row sees: low .. end - 1 */
    uint32_t low = at_most(below(kni_attn_first_key(first_pos, a->window), key0), end) & ~15u, cols = wide_end - low;
    float *s = t->s + low, *o = t->o + (size_t)row * t->wide;
    for (uint32_t i = low; i < wide_end; i += 16)
        kn->gemm(&(struct kni_gemm_args){.m = n, .n = 16, .k = t->d, .a = t->q + (size_t)row * t->d, .lda = t->d, .b = t->k + (size_t)i * t->d,
            .ldb = 16, .panel_stride = (size_t)16 * t->d, .c = t->s + i, .ldc = KNI_ATTN_TILE_KEYS});
    for (uint32_t r = 0; r < n; r++) {
        uint32_t pos = a->first_pos + (row + r) / a->group, sees = at_most(pos + 1 - key0, n_keys);
        uint32_t first = at_most(below(kni_attn_first_key(pos, a->window), key0), sees);
        float alpha = softmax(a, s + r * KNI_ATTN_TILE_KEYS, first - at_most(first, low), sees - at_most(sees, low), cols, &t->max[row + r], &t->sum[row + r]);
        if (!fresh && alpha != 1.0f)
            kn->scale(o + (size_t)r * t->wide, alpha, t->wide);
    }
    for (uint32_t i = 0; i < t->wide; i += 16)
        kn->gemm(&(struct kni_gemm_args){.m = n, .n = 16, .k = cols, .a = s, .lda = KNI_ATTN_TILE_KEYS, .b = t->v + (size_t)low * t->wide + i,
            .ldb = t->wide, .panel_stride = 16, .c = o + i, .ldc = t->wide, .accumulate = !fresh});
}

/* Keys of one part for the rows from row on; then they join acc. */
static void part_of_tile(const struct tile *t, uint32_t key0, uint32_t end, uint32_t row, bool is_first)
{
    const struct kni_attn_args *a = t->a;
    for (uint32_t r = row; r < t->n_rows; r++) {
        t->max[r] = -INFINITY;
        t->sum[r] = 0;
    }
    for (uint32_t key = key0; key < end; key += KNI_ATTN_TILE_KEYS) {
        uint32_t n_keys = at_most(end - key, KNI_ATTN_TILE_KEYS);
        load_keys(t, key, n_keys);
        for (uint32_t r = below(key, a->first_pos) * a->group; r < t->n_rows; r += STRIP) /* earlier rows see none of these keys */
            strip(t, r, at_most(t->n_rows - r, STRIP), key, n_keys, key == key0);
    }
    for (uint32_t r = row; r < t->n_rows; r++) {
        float *acc = t->acc + (size_t)r * t->wide, *o = t->o + (size_t)r * t->wide;
        if (!is_first && t->acc_max[r] > -INFINITY) {
            fold(&t->acc_max[r], &t->acc_sum[r], acc, t->max[r], t->sum[r], o, t->d);
            continue;
        }
        t->acc_max[r] = t->max[r];
        t->acc_sum[r] = t->sum[r];
        memcpy(acc, o, t->d * sizeof *acc);
    }
}

void kni_attn_tile(const struct kni_attn_args *a)
{
    uint32_t d = a->kv->layout.d_head, wide = round16(d), n_rows = a->n_tokens * a->group;
    assert(a->n_tokens >= 1 && a->n_tokens <= kni_attn_tile_tokens(a->group));
    struct tile t = {.a = a, .d = d, .wide = wide, .n_rows = n_rows, .q = a->scratch};
    t.o = t.q + (size_t)n_rows * d;
    t.acc = t.o + (size_t)n_rows * wide;
    t.max = t.acc + (size_t)n_rows * wide;
    t.sum = t.max + n_rows;
    t.acc_max = t.sum + n_rows;
    t.acc_sum = t.acc_max + n_rows;
    t.k = t.acc_sum + n_rows;
    t.v = t.k + (size_t)KNI_ATTN_TILE_KEYS * d;
    t.s = t.v + (size_t)KNI_ATTN_TILE_KEYS * wide;
    for (uint32_t r = 0; r < a->n_tokens; r++)
        for (uint32_t i = 0; i < a->group * d; i++)
            t.q[(size_t)r * a->group * d + i] = a->q[r * a->ldq + i] * a->scale;
    uint32_t end = a->first_pos + a->n_tokens, start = kni_attn_first_key(a->first_pos, a->window) / KNI_ATTN_TILE_KEYS * KNI_ATTN_TILE_KEYS;
    for (uint32_t key0 = start, next; key0 < end; key0 = next) {
        next = key0 / KNI_ATTN_PART_KEYS * KNI_ATTN_PART_KEYS + KNI_ATTN_PART_KEYS;
        part_of_tile(&t, key0, at_most(end, next), below(key0, a->first_pos) * a->group, key0 == start);
    }
    for (uint32_t r = 0; r < n_rows; r++) {
        float *out = a->out + r / a->group * a->ldo + (size_t)(r % a->group) * d, f = 1.0f / t.acc_sum[r];
        for (uint32_t i = 0; i < d; i++)
            out[i] = t.acc[(size_t)r * wide + i] * f;
    }
}

/* The block that comes n blocks after the first one of a tile, in the order in which a part is read: K of the tile's n_blocks
 * blocks, V of them, K of the next tile up to key end. NULL beyond. */
static const uint16_t *block_after(const struct kni_attn_args *a, uint32_t key, uint32_t n_blocks, uint32_t end, uint32_t n)
{
    if (n < n_blocks)
        return kni_kv_row(a->kv, a->layer, 0, a->kv_head, key + n * KNI_BLOCK_TOKENS);
    if (n < 2 * n_blocks)
        return kni_kv_row(a->kv, a->layer, 1, a->kv_head, key + (n - n_blocks) * KNI_BLOCK_TOKENS);
    uint32_t later = key + (n - n_blocks) * KNI_BLOCK_TOKENS;
    return later < end ? kni_kv_row(a->kv, a->layer, 0, a->kv_head, later) : NULL;
}

void kni_attn_part(const struct kni_attn_args *a, uint32_t key0, uint32_t n_keys, float *part)
{
    const struct kni_kernels *kn = a->kernels;
    uint32_t d = a->kv->layout.d_head, group = a->group, type = a->kv->layout.type, end = key0 + n_keys;
    uint32_t first = below(kni_attn_first_key(a->first_pos, a->window), key0) + key0;
    assert(n_keys <= KNI_ATTN_PART_KEYS && key0 % KNI_ATTN_PART_KEYS == 0 && first < end);
    uint32_t ahead = AHEAD_BYTES / (KNI_BLOCK_TOKENS * 2 * d) > 1 ? AHEAD_BYTES / (KNI_BLOCK_TOKENS * 2 * d) : 1;
    float *q = a->scratch, *s = q + (size_t)group * d, *max = part, *sum = part + group, *o = part + 2 * (size_t)group;
    for (uint32_t i = 0; i < group * d; i++) {
        q[i] = a->q[i] * a->scale;
        o[i] = 0;
    }
    for (uint32_t g = 0; g < group; g++) {
        max[g] = -INFINITY;
        sum[g] = 0;
    }
    for (uint32_t tile = first / KNI_ATTN_TILE_KEYS * KNI_ATTN_TILE_KEYS, key, next; tile < end; tile = next) {
        next = at_most(tile + KNI_ATTN_TILE_KEYS, end);
        key = first > tile ? first & ~(KNI_BLOCK_TOKENS - 1) : tile; /* a window's older blocks are not read */
        uint32_t n = next - key, n_blocks = (n + KNI_BLOCK_TOKENS - 1) / KNI_BLOCK_TOKENS;
        for (uint32_t i = 0; i < n_blocks; i++) {
            const uint16_t *row = kni_kv_row(a->kv, a->layer, 0, a->kv_head, key + i * KNI_BLOCK_TOKENS), *later = block_after(a, key, n_blocks, end, i + ahead);
            kn->attn_score16[type](s + i * KNI_BLOCK_TOKENS, KNI_ATTN_TILE_KEYS, q, row, group, d, later ? later : row);
        }
        for (uint32_t g = 0; g < group; g++) {
            float alpha = softmax(a, s + g * KNI_ATTN_TILE_KEYS, below(first, key), n, n, &max[g], &sum[g]);
            if (alpha != 1.0f)
                kn->scale(o + (size_t)g * d, alpha, d);
        }
        for (uint32_t i = 0; i < n_blocks; i++) {
            const uint16_t *row = kni_kv_row(a->kv, a->layer, 1, a->kv_head, key + i * KNI_BLOCK_TOKENS), *later = block_after(a, key, n_blocks, end, n_blocks + i + ahead);
            kn->attn_mix16[type](o, s + i * KNI_BLOCK_TOKENS, KNI_ATTN_TILE_KEYS, row, at_most(n - i * KNI_BLOCK_TOKENS, KNI_BLOCK_TOKENS), group, d,
                                 later ? later : row);
        }
    }
}

void kni_attn_part_merge(float *acc, const float *part, uint32_t group, uint32_t d_head)
{
    size_t o = 2 * (size_t)group;
    for (uint32_t g = 0; g < group; g++)
        fold(&acc[g], &acc[group + g], acc + o + (size_t)g * d_head, part[g], part[group + g], part + o + (size_t)g * d_head, d_head);
}

void kni_attn_part_finish(float *out, const float *acc, uint32_t group, uint32_t d_head)
{
    for (uint32_t g = 0; g < group; g++) {
        float f = 1.0f / acc[group + g];
        for (uint32_t i = 0; i < d_head; i++)
            out[(size_t)g * d_head + i] = acc[2 * (size_t)group + (size_t)g * d_head + i] * f;
    }
}

/* The same chains as those of kni_gemm_ref. */
static inline void score16(float *s, size_t lds, const float *q, const uint16_t *k, uint32_t group, uint32_t d, float (*load)(uint16_t))
{
    for (uint32_t g = 0; g < group; g++)
        for (uint32_t t = 0; t < KNI_BLOCK_TOKENS; t++) {
            float dot = 0;
            for (uint32_t i = 0; i < d; i++)
                dot += q[(size_t)g * d + i] * load(k[(size_t)t * d + i]);
            s[g * lds + t] = dot;
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

#define REFERENCE(type)                                                                                                          \
    void kni_attn_score16_##type##_ref(float *s, size_t lds, const float *q, const uint16_t *k, uint32_t group, uint32_t d_head,  \
                                       const void *ahead)                                                                        \
    {                                                                                                                            \
        (void)ahead;                                                                                                             \
        score16(s, lds, q, k, group, d_head, kni_##type##_to_f32);                                                               \
    }                                                                                                                            \
    void kni_attn_mix16_##type##_ref(float *o, const float *p, size_t ldp, const uint16_t *v, uint32_t n_keys, uint32_t group,    \
                                     uint32_t d_head, const void *ahead)                                                         \
    {                                                                                                                            \
        (void)ahead;                                                                                                             \
        mix16(o, p, ldp, v, n_keys, group, d_head, kni_##type##_to_f32);                                                         \
    }
REFERENCE(f16)
REFERENCE(bf16)

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
