/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Picks the next token from logits. In this order:
 *
 *     repetition penalty over the last tokens -> temperature -> top-k -> top-p -> min-p -> draw
 *
 * Temperature 0 is greedy: the highest logit after the penalty, among equals the lowest id; nothing is drawn. NaN counts
 * as minus infinity, and plus infinity is certain; a row without any finite logit gives no token. Candidates are ordered by logit,
 * then by id, so that a result does not depend on a sort's whims. min-p is relative to the best weight after the temperature; top-p
 * takes the fewest that hold its share of what top-k has left.
 *
 * Randomness is counter based: draw number i of a seed is splitmix64's output i, 53 bits of it as a double in [0, 1), and further
 * numbers of the same draw come from the same counter and a number of their own. The same seed and logits give the same tokens for
 * any number of threads and in any company. Logits and weights of two CPU levels differ in their last bits, so there a draw that
 * falls on a boundary may differ.
 * Sources: top-p, Holtzman et al. 2019; repetition penalty, Keskar et al. 2019; splitmix64, Steele et al. 2014; drawing first and
 * rejecting what lies outside the cut, FlashInfer (Ye et al. 2025).
 *
 * Memory is asked for at init only, and little of it: what is as large as the vocabulary belongs to the run. One thread at a time.
 */
#ifndef KNI_RUN_SAMPLER_H
#define KNI_RUN_SAMPLER_H

#include "kernel/kernels.h"
#include "kinema/types.h"

#define KNI_SAMPLER_LIST 256u /* up to so many candidates are kept in a sorted list */

struct kni_candidate { float logit; int32_t id; };

/* A row of logits and its blocks (kernel/logits.h), and the worker's place to work in. */
struct kni_logits {
    const struct kni_kernels *kernels;
    uint32_t n;
    float *x;      /* [n]; unchanged after a call, but not during it */
    float *max;    /* [blocks] of x; after a pick those of the penalised logits */
    float *sum;    /* [blocks] of x with the sampler's scale, likewise; unread when that is 0 */
    float *scratch; /* kni_logits_scratch_floats(n) */
};

/* Nine floats a block and a list; sampler_cut.h says of what. */
static inline size_t kni_logits_scratch_floats(uint32_t n)
{
    return 9 * (size_t)kni_logit_blocks(n) + (KNI_SAMPLER_LIST + 1) * (sizeof(struct kni_candidate) / sizeof(float));
}

struct kni_sampler {
    struct kn_sampler_opts opts;
    uint32_t n_vocab;
    float sharpness;                /* 1 / temperature; 0: greedy */
    float scale;                    /* of the sums of blocks that a pick reads, which is the sharpness; 0: it reads none */
    uint64_t n_draws;               /* counter of the generator */
    int32_t *recent;                /* ring of the last repeat_last tokens */
    uint32_t n_recent, recent_at;   /* filled entries; where the next one goes */
    uint16_t *counts;               /* [n_vocab] how often a token is in the ring, which has at most 65535 */
    struct kni_penalised { int32_t id; float logit; uint16_t count; } *saved; /* [repeat_last] logits before the penalty, during a pick */
};

/* KN_E_ARG for NaN, negative or impossible options (top_p and min_p are at most 1, repeat_last at most 65535), KN_E_NOMEM.
 * opts is copied; NULL is greedy. On failure the sampler is empty and fini is harmless. */
enum kn_status kni_sampler_init(struct kni_sampler *sampler, const struct kn_sampler_opts *opts, uint32_t n_vocab);
void kni_sampler_fini(struct kni_sampler *sampler);
/* Only the checks of init, without memory. */
enum kn_status kni_sampler_check(const struct kn_sampler_opts *opts);
/* Notes a token of the prompt or of the reply for the repetition penalty. Ids outside the vocabulary are passed over. */
void kni_sampler_accept(struct kni_sampler *sampler, int32_t token);
/* The next token; -1 when no logit is finite. Does not accept it. */
int32_t kni_sampler_pick(struct kni_sampler *sampler, const struct kni_logits *logits);

/* Whether any logit is finite. */
bool kni_logits_any_finite(const struct kni_logits *logits);
/* Brings the k best, at most KNI_SAMPLER_LIST, into list, best first; of equals the lower id first. Returns how many there are above minus
 * infinity, if less. */
uint32_t kni_logits_best(const struct kni_logits *logits, uint32_t k, struct kni_candidate *list);
/* log of the sum of exp(x), given sums of blocks with scale 1. Infinite when a logit is plus infinity. */
double kni_logits_log_norm(const struct kni_logits *logits, const float *sum);

#endif
