/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What a draw needs of a row of logits: the mass of what stands before a bound in the order (higher logit, then lower
 * id), the bound behind the k best, and a set a little larger than the one that top-p leaves. Every cut leaves a prefix
 * of the order.
 *
 * The memory is kni_logits.scratch, carved by kni_draw_begin:
 *
 *     mass | next | high [blocks each] | values | ids | weights [2 * blocks each] | list [KNI_SAMPLER_LIST + 1]
 *
 * The band, those between two values near where a cut will fall, is in the three arrays behind the masses. They hold
 * samples of the row while the band is looked for. One thread. No errors.
 */
#ifndef KNI_RUN_SAMPLER_CUT_H
#define KNI_RUN_SAMPLER_CUT_H

#include "run/sampler.h"

struct kni_draw {
    const struct kni_logits *l;
    float max, scale; /* of the row; weights are exp((x - max) * scale) */
    float *mass; /* [blocks] of what stands before the bound */
    float *next; /* [blocks] the same of the bound that is being looked at */
    struct kni_candidate bound; /* the first that is left out; id n: all that have its logit are in */
    struct kni_candidate *list;
    struct {
        float high;      /* the best that may be in it */
        float *mass;     /* [blocks] of what is above high */
        float *values, *weights;
        uint32_t *ids;   /* ascending */
        uint32_t n;      /* 0: there is no band */
    } band;
};

/* Whether a stands before b. */
static inline bool kni_candidate_is_before(struct kni_candidate a, struct kni_candidate b)
{
    return a.logit > b.logit || (a.logit == b.logit && a.id < b.id);
}

static inline uint32_t kni_logits_block_end(const struct kni_logits *l, uint32_t b)
{
    return l->n - b * KNI_LOGIT_BLOCK < KNI_LOGIT_BLOCK ? l->n : (b + 1) * KNI_LOGIT_BLOCK;
}

/* A draw from everything; the masses are not made yet. */
struct kni_draw kni_draw_begin(const struct kni_logits *l, float max, float scale);
/* Makes mass from the sums of blocks (kni_logits.sum, or others with scale); returns the sum of it. */
double kni_draw_weigh_all(struct kni_draw *d, const float *sum);
/* Cuts to what stands before a bound; returns its mass. */
double kni_draw_cut(struct kni_draw *d, struct kni_candidate bound);
/* Cuts to the first k of the order, for k that are too large for a list; likewise. */
double kni_draw_cut_to_top_k(struct kni_draw *d, uint32_t k);
/* The token at share u in [0, 1) of total, which is the sum of mass. */
int32_t kni_draw_find(const struct kni_draw *d, double total, double u);
/* Cuts to a set that is little more than the first of the order that hold want of total: then most draws are in. false,
 * and nothing has changed, when the row does not look as if that were worth it, when a cut at the value limit is
 * probably narrower, or without success. */
bool kni_draw_narrow(struct kni_draw *d, double want, float limit, double *total);
/* Whether less than want stands before a token that was drawn. If not, cuts to what stands before it, as *total. */
bool kni_draw_is_within(struct kni_draw *d, int32_t token, double want, double *total);

/* How many stand before a bound. */
uint32_t kni_logits_count_before(const struct kni_logits *l, struct kni_candidate bound);
/* Makes a list a heap whose root stands last in order; sinks entry i of one; puts a list in order, best first. */
void kni_candidates_make_heap(struct kni_candidate *list, uint32_t n);
void kni_candidates_sink(struct kni_candidate *heap, uint32_t n, uint32_t i);
void kni_candidates_sort(struct kni_candidate *list, uint32_t n);

#endif
