/* SPDX-License-Identifier: Apache-2.0 */
/*
 * One step of a model: a mixed batch of prompt chunks and decodes goes through all layers; K and V are written to the
 * pool, and what each item wants comes back. The workspace is allocated at open for max_tokens rows: a step allocates
 * nothing.
 *
 * Rows of all items are stacked into one matrix [n_rows, n_embd]; matrix products run on all rows, attention per item.
 *
 * A step is launched and polled, since a device goes on by itself; on CPU it is over when it has been launched:
 *
 *     begin --> under way --try_end: KN_AGAIN--> ... --try_end: anything else--> over
 *                   `- forget(item): nothing of that item's caller is touched any more, but its blocks
 *
 * Whoever does not want to know calls kni_run_step. While a step is under way its blocks belong to it: the caller lets
 * nobody write them, nor gives those that it writes to anybody. Tokens, block tables, items and samplers' settings are
 * read by begin only; rows (and what they point to) and logits are written until the end, or until the item is
 * forgotten.
 *
 * Owner thread: the one that opened it.
 */
#ifndef KNI_RUN_RUN_H
#define KNI_RUN_RUN_H

#include "device/cpu/threads.h"
#include "device/kv_view.h"
#include "model/model.h"
#include "run/sampler.h"

struct kni_run;
struct kni_run_ops;

struct kni_run_opts {
    const struct kni_run_ops *ops; /* the device's forward pass (run/run_ops.h); NULL: the CPU's */
    struct kn_model *model;      /* borrowed; outlives the run */
    struct kni_threads *threads; /* borrowed; the CPU's */
    uint32_t max_tokens;         /* rows of one step over all items */
    uint32_t max_logits;         /* rows of logits over all items of one step, at least 1 */
    uint32_t n_ctx;              /* highest position + 1 */
    enum kn_kv_type kv_type;
    uint32_t cpu_without;        /* of enum kni_cpu_flag: the machine's flags that are not used; 0: all are */
};

/* What an item wants back of the last n_logits of its tokens. */
enum kni_run_want {
    KNI_RUN_WANT_NOTHING = 0, /* its K and V are all: n_logits is 0 */
    KNI_RUN_WANT_ROWS,        /* what rows say. Nobody reads the logits: a device may leave them where they are */
    KNI_RUN_WANT_LOGITS       /* the logits, and what rows say if there are any */
};

/* What is made of a row of logits at the end of its step, where the logits are: on CPU on the compute threads, a row a
 * task. */
struct kni_run_row {
    struct kni_sampler *sampler; /* chooses the token; of one row a step. NULL: none is chosen */
    int32_t token;          /* out with a sampler; in without: whose log-probability is wanted */
    bool want_logprob;
    uint32_t n_top;         /* likeliest tokens wanted, at most n_vocab and KN_MAX_TOP_LOGPROBS; 0 without want_logprob */
    enum kn_status status;  /* out; KN_E_NOT_FINITE: no logit is finite, and what follows is not set, nor is a token */
    float logprob;          /* out */
    struct kn_logprob *top; /* out: [n_top] likeliest first, of equals the lower id; caller's memory */
};

struct kni_run_item {
    struct kni_kv_view kv;   /* has blocks for positions 0 .. first_pos + n_tokens - 1, the last ones writable */
    const int32_t *tokens;   /* n_tokens ids, valid ones */
    uint32_t n_tokens;
    uint32_t first_pos;      /* position of tokens[0]; earlier positions are in the pool */
    enum kni_run_want want;
    uint32_t n_logits;       /* the last n_logits tokens have something to give, 0..n_tokens */
    float *logits;           /* out: [n_logits][n_vocab]; caller's memory. With ROWS: room, its contents undefined */
    struct kni_run_row *rows; /* [n_logits], for each row of logits; NULL with LOGITS: they are all that is wanted */
};

/* Bytes that kni_run_open allocates, exactly: F + max_tokens * a for a model, its threads and n_ctx (tag SCRATCH; a
 * device's own memory under its own). 0 when the sum does not fit size_t. */
size_t kni_run_workspace_bytes(const struct kni_run_opts *opts);
/* Errors: KN_E_ARG (a zero or n_ctx above 2^24), KN_E_NOMEM, and the device's. */
enum kn_status kni_run_open(struct kni_run **out, const struct kni_run_opts *opts, struct kn_err *err);
/* Waits for a step that is under way. NULL is fine. */
void kni_run_close(struct kni_run **run);

/* Launches a step. KN_E_ARG when the items exceed max_tokens or max_logits, a token id is outside the vocabulary, a
 * position outside n_ctx or the block table, a view of another shape, or a want without its memory; KN_E_STATE when a
 * step is under way; nothing is written then. No items: KN_OK, and nothing is under way. Same result for every split of
 * a prompt into steps, up to float rounding. */
enum kn_status kni_run_begin(struct kni_run *run, const struct kni_run_item *items, uint32_t n_items);
/* KN_AGAIN: the step is still under way. Else it is over: KN_OK, also when there was none; or why it failed, and then
 * what it wrote is not to be trusted. Never waits. */
enum kn_status kni_run_try_end(struct kni_run *run);
/* Item (its index in begin's) of the step under way wants nothing any more: its rows, their samplers and places, and
 * its logits may go. Its blocks must stay: the step goes on. */
void kni_run_forget(struct kni_run *run, uint32_t item);
/* For whoever has asked n times in vain, before asking again: a moment of spinning at first (some 16 times), then a
 * short sleep, so that nobody spins through a long step. */
void kni_run_pause(uint32_t n);
/* begin, and waits for the end: for callers that have nothing else to do. */
enum kn_status kni_run_step(struct kni_run *run, const struct kni_run_item *items, uint32_t n_items);

/* Looks at queries while they pass: called once a layer and row, after biases, norms and rotation, with q [n_head][d_head] of the
 * token at position pos. It runs on the worker that made the row, several at once: write to a place of that worker only. It must
 * not allocate, lock or call the run. */
typedef void (*kni_run_tap_fn)(void *user, uint32_t worker, uint32_t layer, uint32_t pos, const float *q);
/* From the next step on; fn NULL: nobody looks (so it is after open). The run's ops have_tap: the CPU's do. */
void kni_run_set_tap(struct kni_run *run, kni_run_tap_fn fn, void *user);

/* Whether some logit is finite: a token can be chosen, and those that are not numbers are unlikely ones. Looks at the first only in a
 * model that is sound. */
bool kni_run_row_is_usable(const float *logits, uint32_t n_vocab);

#endif
