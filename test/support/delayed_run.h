/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A device's forward pass that goes on by itself for a while: it computes with another one's, but not before it has
 * been asked some times whether it is over. What it reads at begin it copies, so that callers may free and reuse it at
 * once. Meanwhile the K and V that it is going to write hold a pattern, and at the end they must still: a block that
 * somebody else has got or written is found.
 *
 * Logits that nobody asked for come back as NaN.
 */
#ifndef KN_TEST_DELAYED_RUN_H
#define KN_TEST_DELAYED_RUN_H

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "run/run_ops.h"

/* What computes, for runs that are opened from now on. */
static const struct kni_run_ops *kn_delayed_inner = &kni_run_ops_cpu;
/* How often try_end says "not yet" of the next steps; -1: 0 to 6 times, in turn. */
static int kn_delayed_polls = -1;
static unsigned kn_delayed_seen; /* steps that were under way when they were asked for, of all runs */

struct kn_delayed {
    const struct kni_run_ops *inner;
    void *state;
    uint32_t n_vocab, n_left, n_begun;
    struct kni_run_plan plan;   /* the inner one's: all memory below is its own */
    struct kni_run_item *items;
    float *logits;              /* [n_outs][n_vocab] */
};

static void kn_delayed_must(bool holds, const char *what)
{
    if (holds)
        return;
    fprintf(stderr, "delayed run: %s\n", what);
    abort();
}

static void *kn_delayed_copy(const void *from, size_t bytes)
{
    return from ? memcpy(malloc(bytes ? bytes : 1), from, bytes) : NULL;
}

static struct kni_sampler *kn_delayed_sampler(const struct kni_sampler *from)
{
    struct kni_sampler *s = kn_delayed_copy(from, sizeof *from);
    if (!s)
        return NULL;
    s->recent = kn_delayed_copy(from->recent, from->opts.repeat_last * sizeof *s->recent);
    s->counts = kn_delayed_copy(from->counts, from->n_vocab * sizeof *s->counts);
    s->saved = from->saved ? calloc(from->opts.repeat_last + 1, sizeof *s->saved) : NULL;
    return s;
}

/* Marks the K and V that the item writes, or looks whether the marks are still there. */
static void kn_delayed_mark(const struct kni_run_item *it, bool look)
{
    const struct kni_kv_layout *l = &it->kv.layout;
    const struct kni_kv_host kv = kni_kv_host_of(&it->kv);
    for (uint32_t pos = it->first_pos; pos < it->first_pos + it->n_tokens; pos++)
        for (uint32_t layer = 0; layer < l->n_layer; layer++)
            for (uint32_t i = 0; i < 2 * l->n_kv_head * l->d_head; i++) {
                uint16_t *value = kni_kv_row(&kv, layer, i % 2, i / 2 / l->d_head, pos) + i / 2 % l->d_head;
                uint16_t mark = (uint16_t)(0x7e00 + pos % 251);
                if (look)
                    kn_delayed_must(*value == mark, "somebody has written into a block of a step under way");
                *value = mark;
            }
}

static size_t kn_delayed_bytes(const struct kni_run_opts *opts)
{
    return kn_delayed_inner->workspace_bytes(opts);
}

static enum kn_status kn_delayed_open(void **out, const struct kni_run_opts *opts, struct kn_err *err)
{
    struct kn_delayed *d = calloc(1, sizeof *d);
    d->inner = kn_delayed_inner;
    d->n_vocab = opts->model->hparams.n_vocab;
    enum kn_status status = d->inner->open(&d->state, opts, err);
    if (status) {
        free(d);
        d = NULL;
    }
    *out = d;
    return status;
}

static void kn_delayed_close(void **state)
{
    struct kn_delayed *d = *state;
    if (d) {
        kn_delayed_must(!d->items, "closed while a step is under way");
        d->inner->close(&d->state);
    }
    free(d);
    *state = NULL;
}

static enum kn_status kn_delayed_begin(void *state, const struct kni_run_plan *plan)
{
    struct kn_delayed *d = state;
    kn_delayed_must(!d->items, "a step is begun while one is under way");
    d->items = kn_delayed_copy(plan->items, plan->n_items * sizeof *d->items);
    d->logits = malloc(((size_t)plan->n_outs * d->n_vocab + 1) * sizeof *d->logits);
    d->plan = *plan;
    d->plan.items = d->items;
    d->plan.out_rows = calloc(plan->n_outs + 1, sizeof *d->plan.out_rows);
    d->plan.out_logits = calloc(plan->n_outs + 1, sizeof *d->plan.out_logits);
    for (uint32_t i = 0, k = 0; i < plan->n_items; i++) {
        struct kni_run_item *it = &d->items[i];
        it->tokens = kn_delayed_copy(it->tokens, it->n_tokens * sizeof *it->tokens);
        it->kv.block_ids = kn_delayed_copy(it->kv.block_ids, it->kv.n_blocks * sizeof *it->kv.block_ids);
        it->rows = kn_delayed_copy(it->rows, it->n_logits * sizeof *it->rows);
        it->logits = d->logits + (size_t)k * d->n_vocab;
        for (uint32_t j = 0; j < it->n_logits; j++, k++) {
            d->plan.out_logits[k] = it->logits + (size_t)j * d->n_vocab;
            if (!it->rows)
                continue;
            it->rows[j].sampler = kn_delayed_sampler(it->rows[j].sampler);
            it->rows[j].top = it->rows[j].n_top ? calloc(it->rows[j].n_top, sizeof *it->rows[j].top) : NULL;
            d->plan.out_rows[k] = &it->rows[j];
        }
        kn_delayed_mark(it, false);
    }
    d->n_left = kn_delayed_polls < 0 ? d->n_begun++ * 5 % 7 : (uint32_t)kn_delayed_polls;
    kn_delayed_seen += d->n_left > 0;
    return KN_OK;
}

/* What came of row k of item it, as far as its caller is still there. */
static void kn_delayed_give(const struct kn_delayed *d, const struct kni_run_plan *to, uint32_t k,
                            const struct kni_run_item *it)
{
    struct kni_run_row *from = d->plan.out_rows[k], *row = to->out_rows[k];
    if (row && from) {
        row->token = from->token;
        row->status = from->status;
        row->logprob = from->logprob;
        if (row->n_top)
            memcpy(row->top, from->top, row->n_top * sizeof *row->top);
        if (row->sampler)
            row->sampler->n_draws = from->sampler->n_draws;
    }
    for (uint32_t v = 0; to->out_logits[k] && v < d->n_vocab; v++)
        to->out_logits[k][v] = it->want == KNI_RUN_WANT_LOGITS ? d->plan.out_logits[k][v] : NAN;
}

static void kn_delayed_drop_rows(struct kni_run_item *it)
{
    for (uint32_t j = 0; it->rows && j < it->n_logits; j++) {
        struct kni_sampler *s = it->rows[j].sampler;
        if (s) {
            free(s->recent);
            free(s->counts);
            free(s->saved);
        }
        free(s);
        free(it->rows[j].top);
    }
    free(it->rows);
}

static enum kn_status kn_delayed_try_end(void *state, const struct kni_run_plan *plan)
{
    struct kn_delayed *d = state;
    kn_delayed_must(d->items && !plan->items, "polled without a step, or with the items of one");
    if (d->n_left) {
        d->n_left--;
        return KN_AGAIN;
    }
    for (uint32_t i = 0; i < plan->n_items; i++)
        kn_delayed_mark(&d->items[i], true);
    enum kn_status status = d->inner->begin(d->state, &d->plan);
    if (!status)
        status = d->inner->try_end(d->state, &d->plan);
    kn_delayed_must(status != KN_AGAIN, "what computes is to be over at once");
    for (uint32_t i = 0, k = 0; i < plan->n_items; i++) {
        struct kni_run_item *it = &d->items[i];
        for (uint32_t j = 0; j < it->n_logits; j++, k++)
            if (!status)
                kn_delayed_give(d, plan, k, it);
        kn_delayed_drop_rows(it);
        free((void *)(size_t)it->tokens);
        free((void *)(size_t)it->kv.block_ids);
    }
    free(d->items);
    free(d->logits);
    free(d->plan.out_rows);
    free(d->plan.out_logits);
    d->items = NULL;
    return status;
}

static const struct kni_run_ops kn_delayed_ops = {.name = "delayed",
                                                  .has_tap = true,
                                                  .workspace_bytes = kn_delayed_bytes,
                                                  .open = kn_delayed_open,
                                                  .begin = kn_delayed_begin,
                                                  .try_end = kn_delayed_try_end,
                                                  .close = kn_delayed_close};

#endif
