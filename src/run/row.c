/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What becomes of a row of logits: a token, log-probabilities, or both. It runs on the worker that took the row, after the barrier
 * behind the logits.
 *
 * log p(t) = x[t] - m - log sum exp(x - m), with the maximum m taken out first and the sum in double: a float sum of 50,000 terms
 * loses three digits.
 */
#include <math.h>

#include "run/workspace.h"

/* Keeps top[0..n_kept) sorted, likeliest first; of equals the smaller id first. */
static void keep_top(struct kn_logprob *top, uint32_t n_top, uint32_t *n_kept, int32_t token, float logit)
{
    if (*n_kept == n_top && !(logit > top[n_top - 1].logprob))
        return;
    uint32_t at = *n_kept < n_top ? (*n_kept)++ : n_top - 1;
    for (; at && top[at - 1].logprob < logit; at--)
        top[at] = top[at - 1];
    top[at] = (struct kn_logprob){.token = token, .logprob = logit};
}

static double describe(const float *x, uint32_t n, struct kni_run_row *row)
{
    float max = -INFINITY;
    for (uint32_t i = 0; i < n; i++)
        max = x[i] > max ? x[i] : max;
    double sum = 0;
    for (uint32_t i = 0; i < n; i++)
        sum += isnan(x[i]) ? 0 : (double)expf(x[i] - max);
    double norm = (double)max + log(sum);
    uint32_t n_kept = 0;
    for (uint32_t i = 0; i < n && row->n_top; i++)
        if (!isnan(x[i]))
            keep_top(row->top, row->n_top, &n_kept, (int32_t)i, x[i]);
    for (uint32_t i = 0; i < row->n_top; i++)
        row->top[i] = i < n_kept ? (struct kn_logprob){row->top[i].token, (float)((double)row->top[i].logprob - norm)} : (struct kn_logprob){-1, -INFINITY};
    return norm;
}

void kni_run_make_row(const struct kni_run *r, uint32_t i, uint32_t worker)
{
    struct kni_run_row *row = r->out_rows[i];
    const float *x = r->out_logits[i];
    uint32_t n = r->model->hparams.n_vocab, finite = 0;
    (void)worker;
    while (finite < n && !isfinite(x[finite]))
        finite++;
    row->status = finite < n ? KN_OK : KN_E_FORMAT;
    if (row->status || (!row->sampler && !row->want_logprob))
        return;
    double norm = row->want_logprob ? describe(x, n, row) : 0;
    if (row->sampler)
        row->token = kni_sampler_pick(row->sampler, x);
    if (row->want_logprob)
        row->logprob = isnan(x[row->token]) ? -INFINITY : (float)((double)x[row->token] - norm);
}
