/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The bench on which codecs are tried: a model with two copies of a prefix's K and V.
 *
 *     clean   [ b ][ b ][ b ]...  the prefix as computed; never written again  \
 *     coded   [ b ][ b ][ b ]...  what came back from a codec                   > then the same blocks for what follows
 *
 * Tokens are run after either copy (kni_eval_bed_run), so that two runs differ in the prefix and in nothing else: same steps, same
 * kernels. Before a codec restores, the coded copy is filled with NaN: a value that it forgets to write shows up as NaN.
 *
 * Owner thread: the one that opened it. No scheduler, no prefix index: blocks are taken once, at open.
 */
#ifndef KNI_ENGINE_EVAL_BED_H
#define KNI_ENGINE_EVAL_BED_H

#include "codec/codec.h"
#include "device/cpu/threads.h"
#include "kinema/codec.h"
#include "kv/pool.h"
#include "model/model.h"
#include "run/run.h"

#define KNI_EVAL_BED_TOKENS 256u /* of a step */

struct kni_eval_bed {
    struct kn_model *model; /* a reference */
    struct kni_threads *threads;
    struct kni_pool *pool;
    struct kni_run *run;
    struct kni_kv_layout kv;
    uint32_t n_prefix, n_after; /* tokens */
    uint32_t n_vocab, step;     /* most rows of logits a step */
    uint32_t *clean_ids, *coded_ids, n_ids; /* block tables */
    float *rows;                /* [step][n_vocab] */
};

struct kni_eval_bed_opts {
    struct kn_model *model;
    uint32_t n_prefix;  /* a multiple of KNI_BLOCK_TOKENS */
    uint32_t n_after;   /* most tokens run after it; at least 1 */
    uint32_t n_threads; /* 0: all */
    enum kn_kv_type kv_type;
};

/* KN_E_ARG, KN_E_CONTEXT (longer than the model's context), KN_E_NOMEM; with a sentence. A zeroed bed may be closed. */
enum kn_status kni_eval_bed_open(struct kni_eval_bed *bed, const struct kni_eval_bed_opts *opts, struct kn_err *err);
void kni_eval_bed_close(struct kni_eval_bed *bed);

/* KN_E_ARG naming the first of n tokens that the model does not have. */
enum kn_status kni_eval_check_tokens(const struct kn_model *model, const int32_t *tokens, size_t n, struct kn_err *err);

struct kni_kv_host kni_eval_bed_clean(const struct kni_eval_bed *bed);
struct kni_kv_host kni_eval_bed_coded(const struct kni_eval_bed *bed);

/* Runs tokens[0..n_prefix) into the clean copy. progress may be NULL. */
enum kn_status kni_eval_bed_prefill(struct kni_eval_bed *bed, const int32_t *tokens, kn_progress_fn progress, void *user, const char *phase, struct kn_err *err);
void kni_eval_bed_poison(struct kni_eval_bed *bed);
bool kni_eval_bed_is_same(const struct kni_eval_bed *bed);

/* Runs n tokens (at most KNI_EVAL_BED_TOKENS) at position n_prefix + at of view; logits of the last n_logits (at most step) in bed->rows. Steps go in order. */
enum kn_status kni_eval_bed_run(struct kni_eval_bed *bed, const struct kni_kv_host *view, const int32_t *tokens, uint32_t at, uint32_t n, uint32_t n_logits,
                                struct kn_err *err);

/* log of the sum of exponentials, in double; *best: index of the largest (may be NULL). */
double kni_eval_log_sum_exp(const float *logits, uint32_t n, uint32_t *best);

#endif
