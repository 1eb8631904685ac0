/* SPDX-License-Identifier: Apache-2.0 */
/* Our side of `kinema bench engine`, through the public API: prompts, one round of prefill and decode, memory of a process. */
#ifndef KN_BENCH_OURS_H
#define KN_BENCH_OURS_H

#include "bench.h"

struct kn_ours {
    struct kn_model *model; /* borrowed */
    struct kn_engine *engine;
    const int32_t *tokens; /* borrowed; sequence i starts at token 7 * i, as the rival's */
    uint32_t n_tokens, n_seqs, n_decode;
    uint32_t n_max_new; /* tokens that a request may generate */
    struct kn_sampler_opts sampler; /* greedy; may be changed between rounds, as may what follows */
    uint32_t n_top;     /* likeliest tokens that each token comes with */
    bool want_logprobs;
};

struct kn_ours_opts {
    struct kn_model *model;
    const int32_t *tokens;
    uint32_t n_tokens, n_seqs, n_decode; /* prompt tokens of each sequence, sequences, steps that are timed */
    uint32_t n_threads, chunk; /* 0: the engine's defaults */
    bool reuse; /* later rounds may take the prompt from the prefix cache: when only decoding is of interest */
};

/* Distance between the starts of two sequences' prompts in the token array. */
#define KN_OURS_SEQ_OFFSET 7u

/* n tokens of plain words over and over: the speed of dense arithmetic does not depend on them, and no text file is needed.
 * NULL: said on stderr. Release with free(). */
int32_t *kn_ours_make_tokens(const struct kn_model *model, size_t n);
/* Longest sequence that a measurement needs. */
uint32_t kn_ours_n_ctx(const struct kn_ours_opts *opts);
/* false: said on stderr. */
bool kn_ours_open(struct kn_ours *ours, const struct kn_ours_opts *opts);
void kn_ours_close(struct kn_ours *ours);
/* One round: all sequences from nothing; seconds until each has its first token; tokens per second of all after that. */
bool kn_ours_round(struct kn_ours *ours, double *prefill_seconds, double *decode_speed);
uint32_t kn_ours_n_threads(const struct kn_ours *ours);

/* {"resident", "peak"} of this process in bytes, from /proc/self/status; false when that cannot be read. */
bool kn_ours_memory(uint64_t *resident, uint64_t *peak);

#endif
