/* SPDX-License-Identifier: Apache-2.0 */
/*
 * kn_codec_eval: every method's bytes, quality and speed over one text.
 *
 *     tokens   [ prefix ........................ ][ continue: C tokens, run after the clean and after each coded prefix ]
 *     compared                                     C rows of logits: KL, best token; nll of the C - 1 tokens that are known
 *
 * All C rows depend on the coded prefix: the row before them, which predicts the first token of `continue`, is left out. Rows of
 * the clean run wait in a file without a name (200 MB for SmolLM2); everything is added up in double precision.
 */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "base/alloc.h"
#include "base/sized.h"
#include "base/status.h"
#include "measure/eval_ablation.h"
#include "measure/eval_method.h"

#define DEFAULT_PREFIX 3072u
#define DEFAULT_CONTINUE 1024u

/* One row of logits against the clean one. */
struct verdict { double kl, nll, nll_clean; bool same_best; };

struct eval {
    struct kn_eval_opts opts;
    struct kni_eval_bed bed;
    struct kni_eval_needs needs;
    FILE *clean;              /* [continue][n_vocab] logits after the clean prefix */
    float *clean_rows;        /* [step][n_vocab] of them */
    double *clean_lse;        /* [continue] log-sum-exp */
    uint32_t *clean_best;     /* [continue] */
    struct verdict *verdicts; /* [continue] */
    uint32_t at, n;           /* rows of the running step */
    bool first_pass;          /* the clean run */
    uint32_t n_rows, n_done;  /* methods to do, for progress */
};

/* ---- rows */

/* On every worker: rows worker, worker + n_workers, ... of a step. */
static void judge(void *arg, uint32_t worker, uint32_t n_workers)
{
    struct eval *e = arg;
    uint32_t n_vocab = e->bed.n_vocab;
    for (uint32_t i = worker; i < e->n; i += n_workers) {
        const float *row = e->bed.rows + (size_t)i * n_vocab, *clean = e->clean_rows + (size_t)i * n_vocab;
        uint32_t row_at = e->at + i, best;
        double lse = kni_eval_log_sum_exp(row, n_vocab, &best), kl = 0;
        if (e->first_pass) {
            e->clean_lse[row_at] = lse;
            e->clean_best[row_at] = best;
            continue;
        }
        for (uint32_t k = 0; k < n_vocab; k++) {
            double log_p = clean[k] - e->clean_lse[row_at];
            kl += exp(log_p) * (log_p - (row[k] - lse));
        }
        struct verdict *v = &e->verdicts[row_at];
        *v = (struct verdict){.kl = kl, .same_best = best == e->clean_best[row_at]};
        if (row_at + 1 < e->opts.continue_) {
            int32_t truth = e->opts.tokens[e->opts.prefix + row_at + 1];
            v->nll = lse - row[truth];
            v->nll_clean = e->clean_lse[row_at] - clean[truth];
        }
    }
}

/* Runs `continue` after a copy of the prefix. */
static enum kn_status run(struct eval *e, const struct kni_kv_host *view, bool first_pass, struct kn_err *err)
{
    const size_t row_bytes = e->bed.n_vocab * sizeof(float);
    e->first_pass = first_pass;
    rewind(e->clean);
    for (e->at = 0; e->at < e->opts.continue_; e->at += e->n) {
        uint32_t left = e->opts.continue_ - e->at;
        e->n = left < e->bed.step ? left : e->bed.step;
        enum kn_status status = kni_eval_bed_run(&e->bed, view, e->opts.tokens + e->opts.prefix + e->at, e->at, e->n, e->n, err);
        if (status)
            return status;
        size_t got = first_pass ? fwrite(e->bed.rows, row_bytes, e->n, e->clean) : fread(e->clean_rows, row_bytes, e->n, e->clean);
        if (got != e->n)
            return kni_err_set(err, KN_E_IO, "a temporary file for %zu MB of logits cannot be %s: is the disk of temporary files full?",
                               row_bytes * e->opts.continue_ >> 20, first_pass ? "written" : "read");
        kni_threads_run(e->bed.threads, judge, e);
    }
    if (first_pass && fflush(e->clean))
        return kni_err_set(err, KN_E_IO, "a temporary file for %zu MB of logits cannot be written: is the disk of temporary files full?",
                           row_bytes * e->opts.continue_ >> 20);
    return KN_OK;
}

static void add_up(const struct eval *e, struct kn_eval_row *row)
{
    double kl = 0, top1 = 0, nll = 0, nll_clean = 0;
    uint32_t n = e->opts.continue_, n_known = n > 1 ? n - 1 : 1;
    for (uint32_t i = 0; i < n; i++) {
        kl += e->verdicts[i].kl;
        top1 += e->verdicts[i].same_best;
        nll += e->verdicts[i].nll;
        nll_clean += e->verdicts[i].nll_clean;
    }
    row->kl = kl / n;
    row->top1 = top1 / n;
    row->nll = nll / n_known;
    row->nll_untouched = nll_clean / n_known;
}

static void cost(const struct eval *e, const struct kni_eval_coded *coded, struct kn_eval_row *row)
{
    double n_tokens = e->opts.prefix, token_bytes = (double)kni_kv_token_bytes(&e->bed.kv), half_values = token_bytes / 4 * n_tokens;
    row->bytes = coded->account.all_bytes;
    row->ratio = row->bytes ? token_bytes * n_tokens / (double)row->bytes : 0;
    row->bits_k = coded->account.k_bytes * 8 / half_values;
    row->bits_v = coded->account.v_bytes * 8 / half_values;
    row->encode_tok_s = coded->encode_ns ? n_tokens * 1e9 / (double)coded->encode_ns : 0;
    row->decode_tok_s = coded->decode_ns ? n_tokens * 1e9 / (double)coded->decode_ns : 0;
    row->working_bytes = coded->working_bytes;
}

/* ---- methods */

static enum kn_status do_methods(struct eval *e, struct kn_err *err)
{
    uint32_t n;
    const struct kni_eval_method *all = kni_eval_methods(&n);
    struct kni_kv_host coded_view = kni_eval_bed_coded(&e->bed);
    struct kn_eval_row last = {0};
    uint32_t last_scored = n;
    enum kn_status status = KN_OK;
    for (uint32_t i = 0; i < n && status == KN_OK; i++) {
        const struct kni_eval_method *m = &all[i];
        if (!kni_eval_is_named(e->opts.only, m->method) || (kni_eval_method_wants_profile(m) && !e->needs.profile) ||
            (kni_eval_method_wants_calibration(m) && !e->needs.kvtc))
            continue;
        char phase[64];
        snprintf(phase, sizeof phase, "%s %s", m->method, m->preset);
        if (e->opts.progress)
            e->opts.progress(e->opts.user, phase, (double)i / n);
        struct kni_eval_coded coded;
        struct kn_eval_row row = {.method = m->method, .preset = m->preset};
        bool scored = m->kind == KNI_EVAL_KIND_IDEAL && last_scored + 1 == i;
        if (m->kind == KNI_EVAL_KIND_IDEAL && !scored) { /* its restored values are those of the stored form */
            struct kni_eval_method stored = *m;
            stored.kind = KNI_EVAL_KIND_CACHEGEN;
            status = kni_eval_method_code(&stored, &e->bed, &e->needs, &coded, err);
        }
        if (status == KN_OK)
            status = kni_eval_method_code(m, &e->bed, &e->needs, &coded, err);
        if (status == KN_OK && !scored)
            status = run(e, &coded_view, false, err);
        if (status)
            break;
        cost(e, &coded, &row);
        row.exact = kni_eval_bed_is_same(&e->bed);
        if (scored) {
            row.kl = last.kl;
            row.top1 = last.top1;
            row.nll = last.nll;
            row.nll_untouched = last.nll_untouched;
        } else {
            add_up(e, &row);
        }
        last = row;
        last_scored = i;
        e->opts.on_row(e->opts.user, &row);
    }
    return status;
}

static enum kn_status do_ablation(struct eval *e, struct kn_err *err)
{
    struct kni_eval_ablation a = {.bed = &e->bed, .profile = e->needs.profile, .calibration = e->opts.calibration};
    struct kni_kv_host coded_view = kni_eval_bed_coded(&e->bed);
    for (uint32_t i = 0; i < KNI_EVAL_ABLATION_STEPS; i++) {
        struct kn_eval_row row = {.method = "ablation", .preset = kni_eval_ablation_name(i)};
        struct kni_eval_coded coded = {0};
        if (!kni_eval_ablation_has(&a, i))
            continue;
        if (e->opts.progress)
            e->opts.progress(e->opts.user, "ablation", (double)i / KNI_EVAL_ABLATION_STEPS);
        enum kn_status status = kni_eval_ablation_code(&a, i, &coded.account, err);
        if (status == KN_OK)
            status = run(e, &coded_view, false, err);
        if (status)
            return status;
        cost(e, &coded, &row);
        add_up(e, &row);
        e->opts.on_row(e->opts.user, &row);
    }
    return KN_OK;
}

/* ---- the whole */

static enum kn_status check(struct kn_eval_opts *o, const struct kn_model *model, const struct kn_eval_opts *opts, struct kn_err *err)
{
    if (!model)
        return kni_err_set(err, KN_E_ARG, "kn_codec_eval needs a model");
    enum kn_status status = KNI_OPTS_READ(o, opts, kn_eval_opts, err);
    if (status)
        return status;
    o->prefix = o->prefix ? o->prefix : DEFAULT_PREFIX;
    o->continue_ = o->continue_ ? o->continue_ : DEFAULT_CONTINUE;
    if (!o->on_row || !o->tokens)
        return kni_err_set(err, KN_E_ARG, "kn_codec_eval needs tokens and an on_row");
    if (o->prefix % KNI_EVAL_CHUNK)
        return kni_err_set(err, KN_E_ARG, "a prefix of %u tokens: use a multiple of %u, the tokens of a chunk", o->prefix, KNI_EVAL_CHUNK);
    if (o->n_tokens < (size_t)o->prefix + o->continue_)
        return kni_err_set(err, KN_E_ARG, "%zu tokens of text, but prefix and continue want %zu: give a longer text", o->n_tokens, (size_t)o->prefix + o->continue_);
    status = kni_eval_check_tokens(model, o->tokens, (size_t)o->prefix + o->continue_, err);
    if (status == KN_OK)
        status = kni_eval_check_list(o->only, false, err);
    if (status == KN_OK && o->ablation && !o->profile_path)
        return kni_err_set(err, KN_E_ARG, "an ablation takes a profile apart: build one with `kinema profile build`, and name it");
    uint32_t n;
    const struct kni_eval_method *m = kni_eval_methods(&n);
    for (uint32_t i = 0; i < n && o->only && status == KN_OK; i++) {
        if (!kni_eval_is_named(o->only, m[i].method))
            continue;
        if (kni_eval_method_wants_profile(&m[i]) && !o->profile_path)
            status = kni_err_set(err, KN_E_ARG, "method %s needs a profile of the model: build one with `kinema profile build`, and name it", m[i].method);
        if (kni_eval_method_wants_calibration(&m[i]) && !o->calibration)
            status = kni_err_set(err, KN_E_ARG, "method %s learns from calibration texts: name some that are not evaluated", m[i].method);
    }
    return status == KN_OK && o->calibration ? kni_eval_calibration_check(o->calibration, model, o->kv_type, err) : status;
}

enum kn_status kn_codec_eval(struct kn_model *model, const struct kn_eval_opts *opts, struct kn_err *err)
{
    struct eval e = {0};
    enum kn_status status = check(&e.opts, model, opts, err);
    if (!status)
        status = KNI_OPTS_READ_OR_DEFAULT(&e.needs.hevc, e.opts.hevc, kn_hevc_opts, err);
    if (status)
        return status;
    const struct kn_eval_opts *o = &e.opts;
    struct kni_eval_bed_opts bo = {.model = model, .n_prefix = o->prefix, .n_after = o->continue_, .n_threads = o->n_threads, .kv_type = o->kv_type};
    e.needs.kvtc = o->calibration ? o->calibration->kvtc : NULL;
    status = kni_eval_bed_open(&e.bed, &bo, err);
    if (status == KN_OK)
        status = kni_eval_open_profile(&e.needs.profile, o->profile_path, &e.bed, err);
    if (status)
        goto done;
    e.clean = tmpfile();
    e.clean_rows = kni_alloc(KNI_ALLOC_TAG_SCRATCH, (size_t)e.bed.step * e.bed.n_vocab * sizeof(float), 64);
    e.clean_lse = kni_alloc(KNI_ALLOC_TAG_SCRATCH, o->continue_ * sizeof *e.clean_lse, 0);
    e.clean_best = kni_alloc(KNI_ALLOC_TAG_SCRATCH, o->continue_ * sizeof *e.clean_best, 0);
    e.verdicts = kni_alloc(KNI_ALLOC_TAG_SCRATCH, o->continue_ * sizeof *e.verdicts, 0);
    if (!e.clean) {
        status = kni_err_set(err, KN_E_IO, "cannot make a temporary file for the logits of the untouched run");
        goto done;
    }
    if (!e.clean_rows || !e.clean_lse || !e.clean_best || !e.verdicts) {
        status = kni_err_set(err, KN_E_NOMEM, "no memory to compare %u tokens", o->continue_);
        goto done;
    }
    status = kni_eval_bed_prefill(&e.bed, o->tokens, o->progress, o->user, "prefix", err);
    if (status == KN_OK) {
        struct kni_kv_host clean = kni_eval_bed_clean(&e.bed);
        status = run(&e, &clean, true, err);
    }
    if (status == KN_OK)
        status = do_methods(&e, err);
    if (status == KN_OK && o->ablation)
        status = do_ablation(&e, err);
done:
    if (e.clean)
        fclose(e.clean);
    kni_free(e.clean_rows);
    kni_free(e.clean_lse);
    kni_free(e.clean_best);
    kni_free(e.verdicts);
    kni_profile_close(&e.needs.profile);
    kni_eval_bed_close(&e.bed);
    return status;
}
