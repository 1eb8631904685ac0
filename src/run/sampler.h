/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Picks the next token from logits. In this order:
 *
 *     repetition penalty over the last tokens -> temperature -> top-k -> top-p -> min-p -> draw
 *
 * Temperature 0 is greedy: the highest logit after the penalty, among equals the lowest id; nothing is drawn. NaN counts
 * as minus infinity; when no logit is above minus infinity, the lowest id is taken. Candidates are ordered by logit, then
 * by id, so that a result does not depend on a sort's whims. min-p is relative to the best weight after the temperature.
 *
 * Randomness is counter based: draw number i of a seed is splitmix64's output i, 53 bits of it as a double in [0, 1). The
 * same seed and logits give the same tokens on every machine, as far as exp() of the C library agrees in the last bit.
 * Sources: top-p, Holtzman et al. 2019; repetition penalty, Keskar et al. 2019; splitmix64, Steele et al. 2014.
 *
 * Memory is asked for at init only. One owner thread.
 */
#ifndef KNI_RUN_SAMPLER_H
#define KNI_RUN_SAMPLER_H

#include "kinema/engine.h"

struct kni_candidate { float logit; int32_t id; };

struct kni_sampler {
    struct kn_sampler_opts opts;
    uint32_t n_vocab;
    uint64_t n_draws;               /* counter of the generator */
    int32_t *recent;                /* ring of the last repeat_last tokens */
    uint32_t n_recent, recent_at;   /* filled entries; where the next one goes */
    uint16_t *counts;               /* [n_vocab] how often a token is in the ring, which has at most 65535 */
    struct kni_candidate *candidates; /* [n_vocab] */
    double *weights;                /* [n_vocab] */
};

/* KN_E_ARG for NaN, negative or impossible options (top_p and min_p are at most 1, repeat_last at most 65535), KN_E_NOMEM.
 * opts is copied; NULL is greedy. On failure the sampler is empty and fini is harmless. */
enum kn_status kni_sampler_init(struct kni_sampler *sampler, const struct kn_sampler_opts *opts, uint32_t n_vocab);
void kni_sampler_fini(struct kni_sampler *sampler);
/* Only the checks of init, without memory. */
enum kn_status kni_sampler_check(const struct kn_sampler_opts *opts);
/* Notes a token of the prompt or of the reply for the repetition penalty. Ids outside the vocabulary are passed over. */
void kni_sampler_accept(struct kni_sampler *sampler, int32_t token);
/* The next token from logits[n_vocab], which are not modified. Does not accept it. */
int32_t kni_sampler_pick(struct kni_sampler *sampler, const float *logits);

#endif
