/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The row sampled_N_xS of `kinema bench engine`: what choosing tokens costs beside computing them. In a round every setting decodes
 * once, greedy first, in the same engine with the same prompts from its prefix cache; rounds are repeated, so that a machine that
 * slows down slows all of them. A setting's ratio is the median over rounds of its speed by that of the round's greedy.
 *
 * The tokens that follow differ from setting to setting; the arithmetic of a step does not depend on them.
 */
#ifndef KN_BENCH_SAMPLE_H
#define KN_BENCH_SAMPLE_H

#include "ours.h"
#include "work.h"

/* {"work", "n_vocab", "settings": [{"name", "ours", "to_greedy", "ours_runs"}]}; NULL: said on stderr. */
json_t *kn_sampled_measure(const struct kn_work *work, const struct kn_ours_opts *opts, uint32_t repeat);
/* A table of it. */
void kn_sampled_print(const json_t *sampled);

#endif
