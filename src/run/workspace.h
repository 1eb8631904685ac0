/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What a run on CPU holds: one allocation, laid out here, shared by run_cpu.c (open, plan of attention) and forward.c
 * (the layers). T = max_tokens, W = workers.
 *
 *     struct kni_run_cpu | frequencies | x h q k v ff, xq ffq [T][..] | rope tables [T] | counters | unit lists
 *                        | maxima and sums of rows of logits | partials | W scratches
 *
 * Owner thread: the one that steps; workers read it between fork and join and write the parts that they took.
 */
#ifndef KNI_RUN_WORKSPACE_H
#define KNI_RUN_WORKSPACE_H

#include <stdatomic.h>

#include "kernel/kernels.h"
#include "run/linear.h"
#include "run/run_ops.h"
#include "run/weights.h"

#define KNI_RUN_SPLIT_ITEMS 16u /* up to so many decodes are split over their keys, the longest ones */
#define KNI_RUN_SPLIT_PARTS 1024u /* parts of all of them, or of one if it has more */
#define KNI_RUN_TILE_ROWS 256u  /* rows of a worker's tile of up-projections or logits; weights are unpacked once for them */
#define KNI_RUN_LOGIT_COLS 256u /* columns of logits that a worker takes at a time when rows are few */
#define KNI_RUN_FEW_ROWS 8u    /* up to so many rows each worker normalises and quantises all for itself: cheaper than a barrier */
#define KNI_RUN_COLS 32u       /* columns of other products: two panels, and one block of the next product's input */
#define KNI_RUN_PHASES 5u /* shared-out phases of a layer: one counter each */

/* A piece of attention work: a tile of a prompt, for one KV head, or some keys of a decode, for n_kv_head / n_splits heads. */
struct kni_run_unit {
    uint32_t item, row; /* row: of its first token in the stacked matrix */
    uint32_t first_pos, n_tokens;
    uint32_t key0, n_keys; /* whole parts of keys of a decode; n_keys 0: a tile of a prompt, or a whole decode */
    uint32_t part;         /* index of the first part's partial */
};

struct kni_run_cpu {
    struct kni_run_opts opts;
    const struct kn_model *model;
    const struct kni_weights *weights; /* the model's */
    struct kni_kernels kernels;
    struct kni_kv_layout layout;
    uint32_t n_workers, group, n_parts_all;

    double *freqs; /* [n_ropes][rope_dim / 2] */
    float *x, *h;  /* [T][n_embd]: residual stream; its normalised form, or a sum that a norm is to go over */
    float *q;     /* [T][n_head * d_head]; attention replaces it by its output */
    float *k, *v; /* [T][n_kv_head * d_head] */
    float *ff;    /* [T][n_ff] */
    struct kni_xblock *xq;      /* [T][max of n_embd, n_head * d_head, / 32]: h, then attention's output, quantised */
    struct kni_xblock *ffq;     /* [T][n_ff / 32] */
    float *cos_rows, *sin_rows; /* [n_ropes][T][rope_dim / 2] */
    float *parts;               /* [n_parts_all][n_splits] partials of n_kv_head / n_splits heads each */
    float *row_max, *row_sums;  /* [max_logits][n_blocks], [max_logits][2][n_blocks]: see row.c */
    float *row_scratch;         /* [W][kni_logits_scratch_floats] */
    uint32_t n_blocks;          /* of a row of logits */
    float *scratch;             /* [W][scratch_floats] */
    size_t scratch_floats, tile_floats, own_blocks;
    _Atomic uint32_t *counters; /* [n_layer * KNI_RUN_PHASES + 2] next unit of each phase, zeroed before the fork */

    /* Of the running step, written before the fork. */
    const struct kni_run_plan *plan; /* its rows */
    uint32_t n_rows, n_outs, n_merges; /* the first two are the plan's */
    uint32_t n_tiles, n_units; /* units: tiles of prompts, then pieces of decodes */
    uint32_t n_splits;         /* shares of the KV heads in a decode's pieces, a divisor of n_kv_head */
    struct kni_run_unit *units;       /* [n_units] */
    struct kni_run_unit *merges;      /* [n_merges] split decodes: part is the first partial, n_keys the number of them */
};

/* row.c: takes note of n values of row i of the step's logits, from a multiple of KNI_LOGIT_BLOCK on, while they are in the cache. */
void kni_run_note_logits(const struct kni_run_cpu *run, uint32_t i, const float *x, uint32_t first, uint32_t n);
/* row.c: makes of row i of the step's logits what its caller wants. Any worker; nobody else touches the row meanwhile. */
void kni_run_make_row(const struct kni_run_cpu *run, uint32_t i, uint32_t worker);

/* The work of one step, run on every worker: see forward.c. arg is the run. */
void kni_run_forward(void *arg, uint32_t worker, uint32_t n_workers);

#endif
