/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The seam of a device: a forward pass behind five functions. The CPU's is kni_run_ops_cpu; a plugin brings the other.
 *
 *     run.c     checks items, lays their rows out in struct kni_run_plan, knows whether a step is under way
 *       | plan
 *       v
 *     ops       memory, weights, the pass itself, what is made of rows
 *
 * A device that has no such pass has no entry: there is no table of single operations, since a fork-join program over
 * threads and a graph on a stream have no operation in common but the whole step.
 *
 * Who touches what, and when. A step may be under way while its caller goes on:
 *
 *     begin      reads items, tokens, block tables, rows and samplers' settings; copies what it needs later
 *     between    nothing of the caller's but memory of the blocks, and logits: those of the plan
 *     try_end    once the step is over writes rows, samplers' counters and logits, as far as they are still in the plan
 *
 * All five run on the owner thread of the run.
 */
#ifndef KNI_RUN_RUN_OPS_H
#define KNI_RUN_RUN_OPS_H

#include "run/run.h"

/* A step's rows, those of all items one below the other. run.c makes it and has checked what it is made of; it stands
 * until the step is over, but items, which is NULL once begin has returned. */
struct kni_run_plan {
    const struct kni_run_item *items; /* [n_items] */
    uint32_t n_items, n_rows, n_outs;
    uint32_t *row_item, *row_pos;  /* [n_rows] */
    int32_t *row_token;            /* [n_rows] */
    uint32_t *out_row;             /* [n_outs] rows whose logits are made, ascending */
    float **out_logits;            /* [n_outs] where they go, or room; NULL: their caller has gone */
    struct kni_run_row **out_rows; /* [n_outs] what is made of them; NULL: nothing, or their caller has gone */
    kni_run_tap_fn tap;            /* NULL: none. Only for ops that have_tap */
    void *tap_user;
};

struct kni_run_ops {
    const char *name; /* "cpu": for messages */
    bool has_tap;     /* can show queries while they pass: kni_run_set_tap */
    /* Bytes that open allocates, exactly. 0 when the sum does not fit size_t. */
    size_t (*workspace_bytes)(const struct kni_run_opts *opts);
    /* opts: checked as far as every device must; borrowed for the call, what they point to outlives the run. On failure
     * *state is NULL. KN_E_ARG, KN_E_NOMEM and what the device has, with a sentence. */
    enum kn_status (*open)(void **state, const struct kni_run_opts *opts, struct kn_err *err);
    /* Launches a step of at least one row; none is under way. A failure means that none is now. */
    enum kn_status (*begin)(void *state, const struct kni_run_plan *plan);
    /* KN_AGAIN: not yet; it waits for nothing. Anything else, and the step is over: KN_OK, or why it failed. Called
     * once or more after each begin that succeeded, with the same plan. */
    enum kn_status (*try_end)(void *state, const struct kni_run_plan *plan);
    /* No step is under way. NULL is fine. */
    void (*close)(void **state);
};

/* run_cpu.c: fork and join over opts.threads. Its steps are over when begin returns. */
extern const struct kni_run_ops kni_run_ops_cpu;

#endif
