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
#define STRIP 96u            /* rows; a multiple of those of a gemm tile */
#define FOLD_ROWS 32u
#define AHEAD_VALUES 3072u /* 6 kB: further ahead they leave the first cache again */

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

size_t kni_attn_scratch_floats(uint32_t group, uint32_t d_head, uint32_t n_heads)
{
    size_t tile = tile_floats((size_t)kni_attn_tile_tokens(group) * group, d_head, round16(d_head));
    size_t part = (size_t)n_heads * group * (d_head + KNI_ATTN_TILE_KEYS);
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

/* (max, sum, o) of earlier keys, o [n_rows][ld], and of later ones. */
static void fold(const struct kni_kernels *kn, float *max, float *sum, float *o, const float *part_max, const float *part_sum, const float *part_o,
                 size_t ld, uint32_t n_rows, uint32_t d)
{
    for (uint32_t row0 = 0, n; row0 < n_rows; row0 += n) {
        float f[2 * FOLD_ROWS]; /* factors of the two */
        n = at_most(n_rows - row0, FOLD_ROWS);
        for (uint32_t i = 0, r = row0; i < n; i++, r++) {
            float m = max[r] > part_max[r] ? max[r] : part_max[r];
            f[2 * i] = max[r] == -INFINITY ? -INFINITY : max[r] - m; /* no infinity minus infinity */
            f[2 * i + 1] = part_max[r] == -INFINITY ? -INFINITY : part_max[r] - m;
        }
        kn->exp(f, f, 2 * n);
        for (uint32_t i = 0, r = row0; i < n; i++, r++) {
            float *to = o + r * ld, fa = f[2 * i], fp = f[2 * i + 1];
            const float *from = part_o + r * ld;
            if (max[r] == -INFINITY) { /* nothing seen before */
                memcpy(to, from, d * sizeof *to);
                sum[r] = part_sum[r];
            } else {
                for (uint32_t j = 0; j < d; j++)
                    to[j] = to[j] * fa + from[j] * fp;
                sum[r] = sum[r] * fa + part_sum[r] * fp;
            }
            max[r] = max[r] > part_max[r] ? max[r] : part_max[r];
        }
    }
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
static void part_of_tile(const struct tile *t, uint32_t key0, uint32_t end, uint32_t row)
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
    size_t at = (size_t)row * t->wide;
    fold(a->kernels, t->acc_max + row, t->acc_sum + row, t->acc + at, t->max + row, t->sum + row, t->o + at, t->wide, t->n_rows - row, t->d);
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
    for (uint32_t r = 0; r < n_rows; r++)
        t.acc_max[r] = -INFINITY;
    uint32_t end = a->first_pos + a->n_tokens, start = kni_attn_first_key(a->first_pos, a->window) / KNI_ATTN_TILE_KEYS * KNI_ATTN_TILE_KEYS;
    for (uint32_t key0 = start, next; key0 < end; key0 = next) {
        next = key0 / KNI_ATTN_PART_KEYS * KNI_ATTN_PART_KEYS + KNI_ATTN_PART_KEYS;
        part_of_tile(&t, key0, at_most(end, next), below(key0, a->first_pos) * a->group);
    }
    for (uint32_t r = 0; r < n_rows; r++) {
        float *out = a->out + r / a->group * a->ldo + (size_t)(r % a->group) * d, f = 1.0f / t.acc_sum[r];
        for (uint32_t i = 0; i < d; i++)
            out[i] = t.acc[(size_t)r * wide + i] * f;
    }
}

/* Within a tile first K of all its blocks are read, then V; step i of either is head i % n_heads of block i / n_heads. This is
 * the step n_ahead later, of the next tile's K behind V; behind the token's last key it is any, here. */
static const uint16_t *step_ahead(const struct kni_attn_args *a, uint32_t key, uint32_t n_keys, bool is_v, uint32_t step, uint32_t n_ahead)
{
    uint32_t n_steps = (n_keys + KNI_BLOCK_TOKENS - 1) / KNI_BLOCK_TOKENS * a->n_heads, at = step + at_most(n_ahead, n_steps), pos = key;
    if (at >= n_steps) {
        at -= n_steps;
        pos = is_v ? key + n_keys : key;
        is_v = !is_v;
    }
    pos += at / a->n_heads * KNI_BLOCK_TOKENS;
    return kni_kv_row(a->kv, a->layer, is_v, a->kv_head + at % a->n_heads, pos <= a->first_pos ? pos : key);
}

void kni_attn_part(const struct kni_attn_args *a, uint32_t key0, uint32_t n_keys, float *part)
{
    const struct kni_kernels *kn = a->kernels;
    const uint32_t d = a->kv->layout.d_head, group = a->group, n_heads = a->n_heads, rows = n_heads * group, type = a->kv->layout.type, end = key0 + n_keys;
    const uint32_t first = below(kni_attn_first_key(a->first_pos, a->window), key0) + key0;
    assert(n_keys <= KNI_ATTN_PART_KEYS && key0 % KNI_ATTN_PART_KEYS == 0 && first < end);
    float *q = a->scratch, *s = q + (size_t)rows * d, *max = part, *sum = part + rows, *o = part + 2 * (size_t)rows;
    const uint32_t block = KNI_BLOCK_TOKENS * d, n_ahead = AHEAD_VALUES / block > 1 ? AHEAD_VALUES / block : 1;
    for (uint32_t i = 0; i < rows * d; i++) {
        q[i] = a->q[i] * a->scale;
        o[i] = 0;
    }
    for (uint32_t r = 0; r < rows; r++) {
        max[r] = -INFINITY;
        sum[r] = 0;
    }
    for (uint32_t tile = first / KNI_ATTN_TILE_KEYS * KNI_ATTN_TILE_KEYS, key, next; tile < end; tile = next) {
        next = at_most(tile + KNI_ATTN_TILE_KEYS, end);
        key = first > tile ? first & ~(KNI_BLOCK_TOKENS - 1) : tile; /* a window's older blocks are not read */
        uint32_t n = next - key;
        for (uint32_t i = 0, step = 0; i < n; i += KNI_BLOCK_TOKENS) {
            const uint16_t *k = kni_kv_row(a->kv, a->layer, 0, a->kv_head, key + i);
            for (uint32_t h = 0; h < n_heads; h++, k += block)
                kn->attn_score16[type](s + (size_t)h * group * KNI_ATTN_TILE_KEYS + i, KNI_ATTN_TILE_KEYS, q + (size_t)h * group * d, k, group, d,
                                       step_ahead(a, key, n, false, step++, n_ahead));
        }
        for (uint32_t r = 0; r < rows; r++) {
            float alpha = softmax(a, s + (size_t)r * KNI_ATTN_TILE_KEYS, below(first, key), n, n, &max[r], &sum[r]);
            if (alpha != 1.0f)
                kn->scale(o + (size_t)r * d, alpha, d);
        }
        for (uint32_t i = 0, step = 0; i < n; i += KNI_BLOCK_TOKENS) {
            const uint16_t *v = kni_kv_row(a->kv, a->layer, 1, a->kv_head, key + i);
            for (uint32_t h = 0; h < n_heads; h++, v += block)
                kn->attn_mix16[type](o + (size_t)h * group * d, s + (size_t)h * group * KNI_ATTN_TILE_KEYS + i, KNI_ATTN_TILE_KEYS, v,
                                     at_most(n - i, KNI_BLOCK_TOKENS), group, d, step_ahead(a, key, n, true, step++, n_ahead));
        }
    }
}

void kni_attn_part_merge(const struct kni_kernels *kernels, float *acc, const float *part, uint32_t rows, uint32_t d_head)
{
    size_t o = 2 * (size_t)rows;
    fold(kernels, acc, acc + rows, acc + o, part, part + rows, part + o, d_head, rows, d_head);
}

void kni_attn_part_finish(float *out, const float *acc, uint32_t rows, uint32_t d_head)
{
    for (uint32_t r = 0; r < rows; r++) {
        float f = 1.0f / acc[rows + r];
        for (uint32_t i = 0; i < d_head; i++)
            out[(size_t)r * d_head + i] = acc[2 * (size_t)rows + (size_t)r * d_head + i] * f;
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
