/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A row of logits in blocks of 32: what choosing a token and log-probabilities begin with. Whoever looks for the largest values, or
 * draws by weight, walks over blocks and reads inside few of them.
 *
 *     x   [ block 0: 32 values | block 1 | ... | last: 1..32 values ]      n values, kni_logit_blocks(n) blocks
 *     max   highest of each; sum   of exp((x - max) * scale) over each
 *
 * NaN is passed over: it is no maximum and weighs nothing. A block without a number has the maximum -INFINITY and the sum 0.
 * Blocks are summed on their own, so that a row's bits do not depend on how it was cut into calls. scale is at least 0; a difference
 * times scale may overflow to -INFINITY, which weighs 0. Error of a weight: that of vec_exp_softmax (softmax.h), of a sum five
 * roundings more; AVX2 and AVX-512 have the same bits. No errors. Any thread.
 */
#ifndef KNI_KERNEL_LOGITS_H
#define KNI_KERNEL_LOGITS_H

#include <stdint.h>

#define KNI_LOGIT_BLOCK 32u

static inline uint32_t kni_logit_blocks(uint32_t n)
{
    return n / KNI_LOGIT_BLOCK + (n % KNI_LOGIT_BLOCK != 0);
}

/* max [blocks] of x [n]. */
typedef void (*kni_logit_max_fn)(float *max, const float *x, uint32_t n);
/* sum [blocks] of x [n] whose maxima are max. */
typedef void (*kni_logit_sum_fn)(float *sum, const float *x, const float *max, uint32_t n, float scale);
/* sum [blocks] of exp((x - shift) * scale) over those x above a bound, shift being at least all of them. */
typedef void (*kni_logit_sum_above_fn)(float *sum, const float *x, const float *max, uint32_t n, float bound, float shift, float scale);
/* How many of x [n] are above a bound. */
typedef uint32_t (*kni_logit_count_above_fn)(const float *x, const float *max, uint32_t n, float bound);
/* Parts x [n] at two bounds: what is above high is added up, what is above low and not above high is handed out. */
struct kni_logit_split {
    const float *x, *max;
    uint32_t n, n_room;
    float low, high;     /* low is at most high */
    float shift, scale;  /* of weights, as for kni_logit_sum_above_fn */
    float *sum;          /* [blocks] of those above high */
    float *values;       /* [n_room] those between, by place; what is behind them is undefined */
    uint32_t *ids;       /* [n_room] their places, likewise */
    uint32_t n_above, n_between; /* out: how many there are. Of more than n_room between, the first were written */
};
typedef void (*kni_logit_split_fn)(struct kni_logit_split *s);

void kni_logit_max_ref(float *max, const float *x, uint32_t n);
void kni_logit_sum_ref(float *sum, const float *x, const float *max, uint32_t n, float scale);
void kni_logit_sum_above_ref(float *sum, const float *x, const float *max, uint32_t n, float bound, float shift, float scale);
uint32_t kni_logit_count_above_ref(const float *x, const float *max, uint32_t n, float bound);
void kni_logit_split_ref(struct kni_logit_split *s);
#if defined(__x86_64__)
void kni_logit_max_avx2(float *max, const float *x, uint32_t n);
void kni_logit_sum_avx2(float *sum, const float *x, const float *max, uint32_t n, float scale);
void kni_logit_sum_above_avx2(float *sum, const float *x, const float *max, uint32_t n, float bound, float shift, float scale);
uint32_t kni_logit_count_above_avx2(const float *x, const float *max, uint32_t n, float bound);
void kni_logit_split_avx2(struct kni_logit_split *s);
void kni_logit_sum_avx512(float *sum, const float *x, const float *max, uint32_t n, float scale);
void kni_logit_sum_above_avx512(float *sum, const float *x, const float *max, uint32_t n, float bound, float shift,
                                float scale);
void kni_logit_split_avx512(struct kni_logit_split *s);
#endif

#endif
