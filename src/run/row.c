/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What becomes of a row of logits: a token, log-probabilities, or both. The first half runs where logits are written, while a tile
 * of them is in the nearest cache: the maximum of each block of 32, and the sums of weights that the second half will ask for. That
 * half runs behind the barrier, on the worker that took the row.
 *
 *     row_max [rows][blocks] | row_sums [rows][0: the sampler's scale, 1: scale 1, for log-probabilities][blocks]
 *
 * log p(t) = x[t] - log sum exp(x), with the maximum taken out first and blocks added up in double: a float sum of 50,000 terms loses
 * three digits. It is of the model's logits: the penalty comes after it and is taken back.
 */
#include <math.h>

#include "run/workspace.h"

static float *max_of(const struct kni_run_cpu *r, uint32_t i)
{
    return r->row_max + (size_t)i * r->n_blocks;
}

static float *sums_of(const struct kni_run_cpu *r, uint32_t i, uint32_t which)
{
    return r->row_sums + ((size_t)i * 2 + which) * r->n_blocks;
}

static float scale_of(const struct kni_run_row *row)
{
    return row->sampler ? row->sampler->scale : 0;
}

/* The sampler's sums are those of log-probabilities where its temperature is 1: the same array. */
static uint32_t which_of_logprobs(const struct kni_run_row *row)
{
    return scale_of(row) != 1.0f;
}

static bool is_wanted(const struct kni_run_row *row)
{
    return row && (row->sampler || row->want_logprob);
}

void kni_run_note_logits(const struct kni_run_cpu *r, uint32_t i, const float *x, uint32_t first, uint32_t n)
{
    const struct kni_run_row *row = r->plan->out_rows[i];
    const uint32_t b = first / KNI_LOGIT_BLOCK;
    if (!is_wanted(row))
        return;
    float *max = max_of(r, i) + b;
    r->kernels.logit_max(max, x, n);
    if (scale_of(row) > 0)
        r->kernels.logit_sum(sums_of(r, i, 0) + b, x, max, n, scale_of(row));
    if (row->want_logprob && which_of_logprobs(row))
        r->kernels.logit_sum(sums_of(r, i, 1) + b, x, max, n, 1);
}

static void describe(const struct kni_logits *l, struct kni_run_row *row, double norm)
{
    struct kni_candidate list[KN_MAX_TOP_LOGPROBS];
    uint32_t n = row->n_top ? kni_logits_best(l, row->n_top, list) : 0;
    for (uint32_t i = 0; i < row->n_top; i++)
        row->top[i] = i < n ? (struct kn_logprob){list[i].id, list[i].logit == INFINITY ? 0.0f : (float)((double)list[i].logit - norm)}
                            : (struct kn_logprob){-1, -INFINITY};
}

bool kni_run_row_is_usable(const float *logits, uint32_t n_vocab)
{
    uint32_t i = 0;
    while (i < n_vocab && !isfinite(logits[i]))
        i++;
    return i < n_vocab;
}

void kni_run_make_row(const struct kni_run_cpu *r, uint32_t i, uint32_t worker)
{
    struct kni_run_row *row = r->plan->out_rows[i];
    if (!is_wanted(row))
        return;
    struct kni_logits l = {.kernels = &r->kernels, .n = r->model->hparams.n_vocab, .x = r->plan->out_logits[i],
                           .max = max_of(r, i), .sum = sums_of(r, i, 0),
                           .scratch = r->row_scratch + worker * kni_logits_scratch_floats(r->model->hparams.n_vocab)};
    double norm = 0;
    row->status = kni_logits_any_finite(&l) ? KN_OK : KN_E_NOT_FINITE;
    if (row->status)
        return;
    if (row->want_logprob) {
        norm = kni_logits_log_norm(&l, sums_of(r, i, which_of_logprobs(row)));
        describe(&l, row, norm);
    }
    if (row->sampler)
        row->token = kni_sampler_pick(row->sampler, &l);
    if (row->want_logprob) {
        float x = l.x[row->token];
        row->logprob = isnan(x) ? -INFINITY : x == INFINITY ? 0.0f : (float)((double)x - norm);
    }
}
