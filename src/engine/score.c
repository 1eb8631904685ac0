/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Teacher forcing on a sequence of its own, beside the scheduler: prefix from the index, the rest of it in chunks without
 * logits, then scored positions in steps of at most 32 with logits of every row.
 *
 *     tokens  [ reused | computed, prefill_chunk a step | scored, step_tokens a step ]
 *             0                                       first                      n_tokens
 *
 * Not a request: nothing is generated, published or queued, and rows are handed out as they come, so that memory stays
 * bounded (32 rows). The run is idle between the scheduler's steps, once none is under way, and both belong to one
 * thread.
 */
#include <string.h>

#include "base/alloc.h"
#include "base/sized.h"
#include "base/status.h"
#include "engine/engine_state.h"
#include "kv/chain.h"

/* Runs tokens first .. first + n - 1 of the sequence and commits them; logits of all n when rows are given. */
static enum kn_status run(struct kn_engine *e, struct kni_seq *seq, const int32_t *tokens, uint32_t n, float *rows, struct kn_err *err)
{
    uint32_t first = seq->n_tokens;
    kni_sched_settle(e->sched);
    if (kni_seq_reserve(seq, first + n) < first + n)
        return kni_err_set(err, KN_E_FULL, "no room in the pool for position %u: close finished requests, or enlarge the pool", first);
    struct kni_run_item item = {.kv = kni_seq_view(seq), .tokens = tokens + first, .n_tokens = n, .first_pos = first,
                                .want = rows ? KNI_RUN_WANT_LOGITS : KNI_RUN_WANT_NOTHING,
                                .n_logits = rows ? n : 0, .logits = rows};
    enum kn_status status = kni_run_step(e->run, &item, 1);
    if (status)
        return kni_err_set(err, status, "the step at position %u failed", first);
    if ((status = kn_model_check(e->model, err)))
        return status;
    kni_seq_commit(seq, tokens, first + n);
    return KN_OK;
}

enum kn_status kn_engine_score(struct kn_engine *e, const struct kn_score_opts *opts, uint64_t *n_reused, struct kn_err *err)
{
    struct kn_score_opts o;
    struct kni_seq seq = {0};
    float *rows = NULL;
    size_t bytes;
    enum kn_status status;

    if (n_reused)
        *n_reused = 0;
    if (!e)
        return kni_err_set(err, KN_E_ARG, "kn_engine_score needs an engine");
    if ((status = KNI_OPTS_READ(&o, opts, kn_score_opts, err)))
        return status;
    if ((status = kni_engine_check_tokens(e, "text to score", o.tokens, o.n_tokens, err)))
        return status;
    if ((status = kni_engine_check_quality(o.kv_quality, "engine takes", err)) || (status = kn_model_check(e->model, err)))
        return status;
    if (!o.on_row || o.first >= o.n_tokens)
        return kni_err_set(err, KN_E_ARG, "kn_engine_score needs an on_row, and first (%zu) below the number of tokens (%zu)", o.first, o.n_tokens);
    if (o.step_tokens > KNI_ENGINE_SCORE_ROWS)
        return kni_err_set(err, KN_E_ARG, "step_tokens is %u: use 1 to %u, or 0 for %u", o.step_tokens, KNI_ENGINE_SCORE_ROWS, KNI_ENGINE_SCORE_ROWS);
    const uint32_t n_step = o.step_tokens ? o.step_tokens : KNI_ENGINE_SCORE_ROWS, n_vocab = e->model->hparams.n_vocab;
    const uint32_t first = (uint32_t)o.first, n_tokens = (uint32_t)o.n_tokens;

    struct kni_hash seed = kni_chain_seed(e->model->info.fingerprint, o.salt);
    if (kni_mul_size((size_t)n_step * sizeof *rows, n_vocab, &bytes))
        rows = kni_alloc(KNI_ALLOC_TAG_SCRATCH, bytes, 0);
    if (!rows || kni_seq_init(&seq, e->pool, n_tokens, &seed)) {
        status = kni_err_set(err, KN_E_NOMEM, "no memory to score %u tokens", n_tokens);
        goto done;
    }
    kni_seq_match(&seq, o.tokens, first + 1, o.kv_quality ? o.kv_quality : e->kv_quality); /* leaves out position first */
    if (n_reused)
        *n_reused = seq.n_tokens;
    while (seq.n_tokens < first && status == KN_OK) {
        uint32_t left = first - seq.n_tokens;
        status = run(e, &seq, o.tokens, left < e->prefill_chunk ? left : e->prefill_chunk, NULL, err);
    }
    while (seq.n_tokens < n_tokens && status == KN_OK) {
        uint32_t at = seq.n_tokens, left = n_tokens - at, n = left < n_step ? left : n_step;
        status = run(e, &seq, o.tokens, n, rows, err);
        for (uint32_t i = 0; i < n && status == KN_OK; i++) {
            if (kni_run_row_is_usable(rows + (size_t)i * n_vocab, n_vocab))
                status = o.on_row(o.user, at + i, rows + (size_t)i * n_vocab);
            else {
                status = kni_err_set(err, KN_E_NOT_FINITE, "no logit at position %u is finite: is the model damaged, or its KV type too narrow?", at + i);
                kni_seq_forget(&seq);
            }
        }
    }
done:
    kni_seq_fini(&seq);
    kni_free(rows);
    return status;
}
