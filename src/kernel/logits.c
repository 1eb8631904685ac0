/* SPDX-License-Identifier: Apache-2.0 */
#include "kernel/logits.h"

#include <math.h>

static uint32_t block_end(uint32_t b, uint32_t n)
{
    return n - b * KNI_LOGIT_BLOCK < KNI_LOGIT_BLOCK ? n : (b + 1) * KNI_LOGIT_BLOCK;
}

void kni_logit_max_ref(float *max, const float *x, uint32_t n)
{
    for (uint32_t b = 0; b < kni_logit_blocks(n); b++) {
        max[b] = -INFINITY;
        for (uint32_t i = b * KNI_LOGIT_BLOCK; i < block_end(b, n); i++)
            if (x[i] > max[b])
                max[b] = x[i];
    }
}

void kni_logit_sum_ref(float *sum, const float *x, const float *max, uint32_t n, float scale)
{
    for (uint32_t b = 0; b < kni_logit_blocks(n); b++) {
        sum[b] = 0;
        for (uint32_t i = b * KNI_LOGIT_BLOCK; i < block_end(b, n); i++)
            if (x[i] > -INFINITY && max[b] < INFINITY)
                sum[b] += expf((x[i] - max[b]) * scale);
    }
}

void kni_logit_sum_above_ref(float *sum, const float *x, const float *max, uint32_t n, float bound, float shift, float scale)
{
    for (uint32_t b = 0; b < kni_logit_blocks(n); b++) {
        sum[b] = 0;
        for (uint32_t i = b * KNI_LOGIT_BLOCK; max[b] > bound && i < block_end(b, n); i++)
            if (x[i] > bound)
                sum[b] += expf((x[i] - shift) * scale);
    }
}

uint32_t kni_logit_count_above_ref(const float *x, const float *max, uint32_t n, float bound)
{
    uint32_t count = 0;
    for (uint32_t b = 0; b < kni_logit_blocks(n); b++)
        for (uint32_t i = b * KNI_LOGIT_BLOCK; max[b] > bound && i < block_end(b, n); i++)
            count += x[i] > bound;
    return count;
}

void kni_logit_split_ref(struct kni_logit_split *s)
{
    kni_logit_sum_above_ref(s->sum, s->x, s->max, s->n, s->high, s->shift, s->scale);
    s->n_above = s->n_between = 0;
    for (uint32_t b = 0; b < kni_logit_blocks(s->n); b++)
        for (uint32_t i = b * KNI_LOGIT_BLOCK; s->max[b] > s->low && i < block_end(b, s->n); i++) {
            s->n_above += s->x[i] > s->high;
            if (!(s->x[i] > s->low) || s->x[i] > s->high)
                continue;
            if (s->n_between < s->n_room) {
                s->values[s->n_between] = s->x[i];
                s->ids[s->n_between] = i;
            }
            s->n_between++;
        }
}
