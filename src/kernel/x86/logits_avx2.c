/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Whole blocks are four vectors; the last, partial one goes through masks whose other lanes hold -INFINITY. Lanes are
 * added in the order of vectors twice as wide: the AVX-512 form has the same bits.
 */
#include "kernel/logits.h"

#if defined(__x86_64__)
#include <math.h>

#include "kernel/x86/vec_avx2.h"

/* The block at x of n_left values or more, as four vectors. */
static inline void load(const float *x, uint32_t n_left, __m256 v[4])
{
    if (n_left >= KNI_LOGIT_BLOCK) {
        for (uint32_t i = 0; i < 4; i++)
            v[i] = _mm256_loadu_ps(x + 8 * i);
        return;
    }
    for (uint32_t i = 0; i < 4; i++) {
        __m256i mask = vec_mask(n_left > 8 * i ? (n_left - 8 * i < 8 ? n_left - 8 * i : 8) : 0);
        v[i] = _mm256_setzero_ps();
        if (n_left > 8 * i)
            v[i] = _mm256_maskload_ps(x + 8 * i, mask);
        v[i] = _mm256_blendv_ps(_mm256_set1_ps(-INFINITY), v[i], _mm256_castsi256_ps(mask));
    }
}

/*
 * exp of (v - shift) * scale, as vec_exp_softmax with its factor log2(e) in the scale: one rounding less, and one
 * operation of sixteen. least: differences below it weigh nothing.
 */
struct scaling { __m256 shift, factor, least; };

static inline struct scaling scaling_of(float shift, float scale)
{
    const float factor = scale * 0x1.715476p+0f;
    return (struct scaling){_mm256_set1_ps(shift), _mm256_set1_ps(factor), _mm256_set1_ps(-88.0f / scale)};
}

/* 0 where v is not above bound. */
static inline __m256 weight(__m256 v, const struct scaling *s, __m256 bound)
{
    const __m256 magic = _mm256_set1_ps(0x1.8p23f + 127.0f);
    __m256 c = _mm256_max_ps(s->least, _mm256_sub_ps(v, s->shift)); /* the second operand wins when it is NaN */
    __m256 t = _mm256_fmadd_ps(c, s->factor, magic), n = _mm256_sub_ps(t, magic), r = _mm256_fmsub_ps(c, s->factor, n);
    __m256 p = _mm256_set1_ps(0x1.5bba14p-10f);
    p = _mm256_fmadd_ps(p, r, _mm256_set1_ps(0x1.3cea88p-7f));
    p = _mm256_fmadd_ps(p, r, _mm256_set1_ps(0x1.c6b752p-5f));
    p = _mm256_fmadd_ps(p, r, _mm256_set1_ps(0x1.ebf9bcp-3f));
    p = _mm256_fmadd_ps(p, r, _mm256_set1_ps(0x1.62e42ap-1f));
    p = _mm256_fmadd_ps(p, r, _mm256_set1_ps(1.0f));
    p = _mm256_mul_ps(p, _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_castps_si256(t), 23)));
    return _mm256_and_ps(p, _mm256_cmp_ps(v, bound, _CMP_GT_OQ));
}

static inline float sum_of(const __m256 v[4], const struct scaling *s, __m256 bound)
{
    __m256 w[4];
    for (uint32_t i = 0; i < 4; i++)
        w[i] = weight(v[i], s, bound);
    return vec_sum(_mm256_add_ps(_mm256_add_ps(w[0], w[2]), _mm256_add_ps(w[1], w[3])));
}

void kni_logit_max_avx2(float *max, const float *x, uint32_t n)
{
    const __m256 low = _mm256_set1_ps(-INFINITY);
    for (uint32_t at = 0; at < n; at += KNI_LOGIT_BLOCK) {
        __m256 v[4];
        load(x + at, n - at, v);
        for (uint32_t i = 0; i < 4; i++)
            v[i] = _mm256_max_ps(v[i], low); /* the second operand wins when the first is NaN */
        max[at / KNI_LOGIT_BLOCK] = vec_max(_mm256_max_ps(_mm256_max_ps(v[0], v[1]), _mm256_max_ps(v[2], v[3])));
    }
}

void kni_logit_sum_avx2(float *sum, const float *x, const float *max, uint32_t n, float scale)
{
    const __m256 low = _mm256_set1_ps(-INFINITY);
    struct scaling s = scaling_of(0, scale);
    for (uint32_t at = 0; at < n; at += KNI_LOGIT_BLOCK) {
        uint32_t b = at / KNI_LOGIT_BLOCK;
        __m256 v[4];
        sum[b] = 0;
        if (!(max[b] > -INFINITY && max[b] < INFINITY))
            continue;
        load(x + at, n - at, v);
        s.shift = _mm256_set1_ps(max[b]);
        sum[b] = sum_of(v, &s, low);
    }
}

void kni_logit_sum_above_avx2(float *sum, const float *x, const float *max, uint32_t n, float bound, float shift, float scale)
{
    const __m256 low = _mm256_set1_ps(bound);
    const struct scaling s = scaling_of(shift, scale);
    for (uint32_t at = 0; at < n; at += KNI_LOGIT_BLOCK) {
        uint32_t b = at / KNI_LOGIT_BLOCK;
        __m256 v[4];
        sum[b] = 0;
        if (!(max[b] > bound))
            continue;
        load(x + at, n - at, v);
        sum[b] = sum_of(v, &s, low);
    }
}

uint32_t kni_logit_count_above_avx2(const float *x, const float *max, uint32_t n, float bound)
{
    const __m256 low = _mm256_set1_ps(bound);
    __m256i count = _mm256_setzero_si256(); /* less the number, a lane */
    for (uint32_t at = 0; at < n; at += KNI_LOGIT_BLOCK) {
        __m256 v[4];
        if (!(max[at / KNI_LOGIT_BLOCK] > bound))
            continue;
        load(x + at, n - at, v);
        for (uint32_t i = 0; i < 4; i++)
            count = _mm256_sub_epi32(count, _mm256_castps_si256(_mm256_cmp_ps(v[i], low, _CMP_GT_OQ)));
    }
    uint32_t lanes[8], total = 0;
    _mm256_storeu_si256((__m256i *)(void *)lanes, count);
    for (uint32_t i = 0; i < 8; i++)
        total += lanes[i];
    return total;
}

/* Bit i: value i of the block is above the bound. */
static inline uint32_t bits_above(const __m256 v[4], __m256 bound)
{
    uint32_t bits = 0;
    for (uint32_t i = 0; i < 4; i++)
        bits |= (uint32_t)_mm256_movemask_ps(_mm256_cmp_ps(v[i], bound, _CMP_GT_OQ)) << 8 * i;
    return bits;
}

void kni_logit_split_avx2(struct kni_logit_split *s)
{
    const __m256 low = _mm256_set1_ps(s->low), high = _mm256_set1_ps(s->high);
    const struct scaling scaling = scaling_of(s->shift, s->scale);
    const uint32_t n_room = s->n_room;
    uint32_t count = 0, above = 0;
    for (uint32_t at = 0; at < s->n; at += KNI_LOGIT_BLOCK) {
        const float max = s->max[at / KNI_LOGIT_BLOCK];
        float *sum = s->sum + at / KNI_LOGIT_BLOCK;
        uint32_t top = 0;
        __m256 v[4];
        *sum = 0;
        if (!(max > s->low))
            continue;
        load(s->x + at, s->n - at, v);
        if (max > s->high) {
            top = bits_above(v, high);
            above += (uint32_t)__builtin_popcount(top);
            *sum = sum_of(v, &scaling, high);
        }
        for (uint32_t between = bits_above(v, low) & ~top; between; between &= between - 1, count++) {
            if (count >= n_room)
                continue;
            s->ids[count] = at + (uint32_t)__builtin_ctz(between);
            s->values[count] = s->x[s->ids[count]];
        }
    }
    s->n_above = above;
    s->n_between = count;
}
#endif
