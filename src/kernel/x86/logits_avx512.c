/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Whole blocks are two vectors; the last, partial one goes through masks whose other lanes hold -INFINITY. A lane does
 * what the AVX2 form's does, and lanes are added in its order, so a sum has the same bits. Maxima and counts are left
 * to that form: they wait for memory.
 */
#include "kernel/logits.h"

#if defined(__x86_64__)
#include <math.h>

#include "kernel/x86/vec_avx2.h"

struct block { __m512 v[2]; };

/* The block at x of n_left values or more. */
static inline struct block load(const float *x, uint32_t n_left)
{
    if (n_left >= KNI_LOGIT_BLOCK)
        return (struct block){{_mm512_loadu_ps(x), _mm512_loadu_ps(x + 16)}};
    const __m512 low = _mm512_set1_ps(-INFINITY);
    const uint32_t lanes = (1u << n_left) - 1;
    const __mmask16 first = (__mmask16)lanes, second = (__mmask16)(lanes >> 16);
    return (struct block){{_mm512_mask_loadu_ps(low, first, x), _mm512_mask_loadu_ps(low, second, x + 16)}};
}

/* As struct scaling of the AVX2 form. */
struct scaling { __m512 shift, factor, least; };

static inline struct scaling scaling_of(float shift, float scale)
{
    const float factor = scale * 0x1.715476p+0f;
    return (struct scaling){_mm512_set1_ps(shift), _mm512_set1_ps(factor), _mm512_set1_ps(-88.0f / scale)};
}

static inline __m512 weight(__m512 v, const struct scaling *s, __m512 bound)
{
    const __m512 magic = _mm512_set1_ps(0x1.8p23f + 127.0f);
    __m512 c = _mm512_max_ps(s->least, _mm512_sub_ps(v, s->shift)); /* the second operand wins when it is NaN */
    __m512 t = _mm512_fmadd_ps(c, s->factor, magic), n = _mm512_sub_ps(t, magic), r = _mm512_fmsub_ps(c, s->factor, n);
    __m512 p = _mm512_set1_ps(0x1.5bba14p-10f);
    p = _mm512_fmadd_ps(p, r, _mm512_set1_ps(0x1.3cea88p-7f));
    p = _mm512_fmadd_ps(p, r, _mm512_set1_ps(0x1.c6b752p-5f));
    p = _mm512_fmadd_ps(p, r, _mm512_set1_ps(0x1.ebf9bcp-3f));
    p = _mm512_fmadd_ps(p, r, _mm512_set1_ps(0x1.62e42ap-1f));
    p = _mm512_fmadd_ps(p, r, _mm512_set1_ps(1.0f));
    const __m512 power = _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_castps_si512(t), 23));
    return _mm512_maskz_mul_ps(_mm512_cmp_ps_mask(v, bound, _CMP_GT_OQ), p, power);
}

static inline float sum_of(struct block x, const struct scaling *s, __m512 bound)
{
    __m512 w = _mm512_add_ps(weight(x.v[0], s, bound), weight(x.v[1], s, bound));
    return vec_sum(_mm256_add_ps(_mm512_castps512_ps256(w), _mm512_extractf32x8_ps(w, 1)));
}

void kni_logit_sum_avx512(float *sum, const float *x, const float *max, uint32_t n, float scale)
{
    const __m512 low = _mm512_set1_ps(-INFINITY);
    struct scaling s = scaling_of(0, scale);
    for (uint32_t at = 0; at < n; at += KNI_LOGIT_BLOCK) {
        uint32_t b = at / KNI_LOGIT_BLOCK;
        s.shift = _mm512_set1_ps(max[b]);
        sum[b] = max[b] > -INFINITY && max[b] < INFINITY ? sum_of(load(x + at, n - at), &s, low) : 0.0f;
    }
}

void kni_logit_sum_above_avx512(float *sum, const float *x, const float *max, uint32_t n, float bound, float shift,
                                float scale)
{
    const __m512 low = _mm512_set1_ps(bound);
    const struct scaling s = scaling_of(shift, scale);
    for (uint32_t at = 0; at < n; at += KNI_LOGIT_BLOCK) {
        uint32_t b = at / KNI_LOGIT_BLOCK;
        sum[b] = max[b] > bound ? sum_of(load(x + at, n - at), &s, low) : 0.0f;
    }
}

/* Writes the values of a block that mask names, and their places. Mostly there are up to two of them, nobody can tell
 * how many: these are written without a branch, by units that exp leaves idle, and what is behind them in room is
 * overwritten. */
static inline uint32_t put(const struct kni_logit_split *s, uint32_t at, uint32_t mask, uint32_t count)
{
    const uint32_t n = (uint32_t)__builtin_popcount(mask);
    if (n <= 2 && count + 2 <= s->n_room) {
        const uint32_t first = at + (_tzcnt_u32(mask) & 31), second = at + (_tzcnt_u32(mask & (mask - 1)) & 31);
        s->ids[count] = first;
        s->values[count] = s->x[first];
        s->ids[count + 1] = second;
        s->values[count + 1] = s->x[n == 2 ? second : first];
        return count + n;
    }
    for (uint32_t i = count; mask && i < s->n_room; mask &= mask - 1, i++) {
        s->ids[i] = at + _tzcnt_u32(mask);
        s->values[i] = s->x[s->ids[i]];
    }
    return count + n;
}

static inline uint32_t bits_above(struct block b, __m512 bound)
{
    const __mmask16 first = _mm512_cmp_ps_mask(b.v[0], bound, _CMP_GT_OQ);
    const __mmask16 second = _mm512_cmp_ps_mask(b.v[1], bound, _CMP_GT_OQ);
    return (uint32_t)first | (uint32_t)second << 16;
}

void kni_logit_split_avx512(struct kni_logit_split *s)
{
    const __m512 low = _mm512_set1_ps(s->low), high = _mm512_set1_ps(s->high);
    const struct scaling scaling = scaling_of(s->shift, s->scale);
    uint32_t count = 0, above = 0;
    for (uint32_t at = 0; at < s->n; at += KNI_LOGIT_BLOCK) {
        const float max = s->max[at / KNI_LOGIT_BLOCK];
        float *sum = s->sum + at / KNI_LOGIT_BLOCK;
        *sum = 0;
        if (!(max > s->low))
            continue;
        struct block b = load(s->x + at, s->n - at);
        const uint32_t top = bits_above(b, high);
        above += (uint32_t)__builtin_popcount(top);
        if (max > s->high)
            *sum = sum_of(b, &scaling, high);
        count = put(s, at, bits_above(b, low) & ~top, count);
    }
    s->n_above = above;
    s->n_between = count;
}
#endif
