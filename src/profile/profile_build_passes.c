/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The model runs over calibration texts, four times, because each pass needs what the one before has found:
 *
 *     query power -> weights of keys -> sums -> bases -> histograms -> (steps) -> symbols -> tables of the entropy coder
 *
 * Keeping K and V instead would take 47 MB a text of SmolLM2. The second pass takes whole texts, the others only a text's beginning:
 * they estimate few numbers.
 */
#include <stdatomic.h>
#include <string.h>

#include "base/alloc.h"
#include "base/cpu.h"
#include "base/status.h"
#include "profile/profile_build_state.h"

#define POWER_TOKENS 256u
#define HISTOGRAM_TOKENS 384u
#define SYMBOL_TOKENS 384u

enum kn_status kni_build_prefill(struct kni_build *b, const struct kni_build_text *text, uint32_t n)
{
    for (uint32_t at = 0, step; at < n; at += step) {
        step = n - at < KNI_BUILD_STEP_TOKENS ? n - at : KNI_BUILD_STEP_TOKENS;
        struct kni_run_item item = {.kv = kni_kv_view_of(&b->view), .tokens = text->tokens + at, .n_tokens = step, .first_pos = at};
        enum kn_status status = kni_run_step(b->run, &item, 1);
        if (status)
            return kni_err_set(b->err, status, "the model cannot run a calibration text at token %u", at);
        if ((status = kn_model_check(b->model, b->err)))
            return status;
    }
    return KN_OK;
}

/* Prefills min(max, all) tokens of every calibration text; visit sees each. */
static enum kn_status over_texts(struct kni_build *b, const char *phase, uint32_t max, enum kn_status (*visit)(struct kni_build *b, uint32_t n, void *user), void *user)
{
    uint32_t n_texts = b->n_texts - b->n_held;
    uint64_t done = 0, all = 0;
    enum kn_status status = KN_OK;
    for (uint32_t i = 0; i < n_texts; i++)
        all += b->texts[i].n < max ? b->texts[i].n : max;
    for (uint32_t i = 0; i < n_texts && status == KN_OK; i++) {
        uint32_t n = b->texts[i].n < max ? b->texts[i].n : max;
        kni_build_report(b, phase, (double)done / (double)all);
        status = kni_build_prefill(b, &b->texts[i], n);
        if (status == KN_OK && visit)
            status = visit(b, n, user);
        done += n;
    }
    if (status == KN_OK)
        kni_build_report(b, phase, 1);
    return status;
}

/* ---- query power */

struct power {
    double *sums; /* [n_workers][n_layer][n_kv_head][d_head] */
    size_t slice;
    uint32_t group, n_kv_head, d, n_sinks;
};

static void add_query(void *user, uint32_t worker, uint32_t layer, uint32_t pos, const float *q)
{
    const struct power *p = user;
    double *sums = p->sums + worker * p->slice + (size_t)layer * p->n_kv_head * p->d;
    if (pos < p->n_sinks)
        return;
    for (uint32_t head = 0; head < p->n_kv_head * p->group; head++, q += p->d)
        for (uint32_t i = 0; i < p->d; i++)
            sums[head / p->group * p->d + i] += (double)q[i] * (double)q[i];
}

enum kn_status kni_build_pass_power(struct kni_build *b)
{
    const struct kni_hparams *hp = &b->model->hparams;
    struct power p = {.group = hp->n_head / hp->n_kv_head, .n_kv_head = hp->n_kv_head, .d = hp->d_head, .n_sinks = kni_calibrate_profile(b->calibrate)->n_sinks};
    p.slice = (size_t)hp->n_layer * hp->n_kv_head * hp->d_head;
    p.sums = kni_calloc(KNI_ALLOC_TAG_MISC, b->n_workers * p.slice * sizeof *p.sums, 64);
    if (!p.sums)
        return kni_err_set(b->err, KN_E_NOMEM, "no memory for the power of queries");
    kni_run_set_tap(b->run, add_query, &p);
    enum kn_status status = over_texts(b, "queries", POWER_TOKENS, NULL, NULL);
    kni_run_set_tap(b->run, NULL, NULL);
    for (uint32_t w = 1; w < b->n_workers; w++)
        for (size_t i = 0; i < p.slice; i++)
            p.sums[i] += p.sums[w * p.slice + i];
    if (status == KN_OK)
        kni_calibrate_set_query_power(b->calibrate, p.sums); /* sums: only their proportions count */
    kni_free(p.sums);
    return status;
}

/* ---- sums and histograms */

static enum kn_status add(struct kni_build *b, uint32_t n, void *user)
{
    (void)user;
    enum kn_status status = kni_calibrate_add(b->calibrate, &b->view, n);
    return status ? kni_err_set(b->err, status, "no memory for sums of products; use fewer layers a group") : KN_OK;
}

enum kn_status kni_build_pass_sums(struct kni_build *b)
{
    return over_texts(b, "statistics", UINT32_MAX, add, NULL);
}

static enum kn_status count(struct kni_build *b, uint32_t n, void *user)
{
    (void)user;
    enum kn_status status = kni_calibrate_count(b->calibrate, &b->view, n);
    return status ? kni_err_set(b->err, status, "no memory for histograms of coefficients") : KN_OK;
}

enum kn_status kni_build_pass_histograms(struct kni_build *b)
{
    return over_texts(b, "rows", HISTOGRAM_TOKENS, count, NULL);
}

/* ---- symbols */

enum kn_status kni_build_open_coders(struct kni_build *b)
{
    const struct kni_profile *p = kni_calibrate_profile(b->calibrate);
    size_t rows = 0;
    for (uint32_t i = 0; i < p->n_parts; i++)
        rows = p->parts[i].n_rows + p->parts[i].n_layers > rows ? p->parts[i].n_rows + p->parts[i].n_layers : rows;
    b->coders = kni_calloc(KNI_ALLOC_TAG_MISC, b->n_workers * sizeof *b->coders, 0);
    for (uint32_t i = 0; b->coders && i < b->n_workers; i++) {
        enum kn_status status = kni_spectral_open(&b->coders[i].spectral, p, KNI_BUILD_STEP_TOKENS, kni_cpu_flags(),
                                                  b->err);
        if (status)
            return status;
        b->coders[i].symbols = kni_alloc(KNI_ALLOC_TAG_CODEC, rows * KNI_BUILD_STEP_TOKENS, 64);
        if (!b->coders[i].symbols)
            return kni_err_set(b->err, KN_E_NOMEM, "no memory for symbols");
    }
    return b->coders ? KN_OK : kni_err_set(b->err, KN_E_NOMEM, "no memory for %u transforms", b->n_workers);
}

void kni_build_close_coders(struct kni_build *b)
{
    for (uint32_t i = 0; b->coders && i < b->n_workers; i++) {
        kni_spectral_close(&b->coders[i].spectral);
        kni_free(b->coders[i].escapes.values);
        kni_free(b->coders[i].symbols);
    }
    kni_free(b->coders);
    b->coders = NULL;
}

/* Workers transform the next parts, one each; then the owner counts their symbols in order, so that tables do not depend on timing. */
struct forward {
    struct kni_build *b;
    uint32_t first_token, n_tokens, first_part;
    enum kni_profile_preset preset;
    _Atomic int status; /* the first failure; relaxed: read after the join */
};

static void forward_part(void *arg, uint32_t worker, uint32_t n_workers)
{
    struct forward *f = arg;
    struct kni_build_coder *c = &f->b->coders[worker];
    uint32_t part = f->first_part + worker;
    (void)n_workers;
    if (part >= kni_calibrate_profile(f->b->calibrate)->n_parts)
        return;
    enum kn_status status = kni_spectral_forward(c->spectral, &f->b->view, f->first_token, f->n_tokens, part, f->preset, c->symbols, KNI_BUILD_STEP_TOKENS, &c->escapes);
    if (status)
        atomic_store_explicit(&f->status, (int)status, memory_order_relaxed);
}

static enum kn_status train(struct kni_build *b, uint32_t n, void *user)
{
    struct kni_rans_trainer *trainer = user;
    const struct kni_profile *p = kni_calibrate_profile(b->calibrate);
    for (uint32_t at = 0; at < n; at += KNI_BUILD_STEP_TOKENS) {
        struct forward f = {.b = b, .first_token = at, .n_tokens = n - at < KNI_BUILD_STEP_TOKENS ? n - at : KNI_BUILD_STEP_TOKENS};
        for (uint32_t k = 0; k < KNI_PROFILE_N_PRESETS; k++)
            for (f.preset = (enum kni_profile_preset)k, f.first_part = 0; f.first_part < p->n_parts; f.first_part += b->n_workers) {
                kni_threads_run(b->threads, forward_part, &f);
                if (atomic_load_explicit(&f.status, memory_order_relaxed))
                    return kni_err_set(b->err, (enum kn_status)atomic_load_explicit(&f.status, memory_order_relaxed), "no memory to transform a calibration text");
                for (uint32_t w = 0; w < b->n_workers && f.first_part + w < p->n_parts; w++) {
                    const struct kni_profile_part *part = &p->parts[f.first_part + w];
                    kni_rans_trainer_add(trainer, b->coders[w].symbols, KNI_BUILD_STEP_TOKENS, part->n_layers + part->rows[k], f.n_tokens, part->classes[k]);
                }
            }
    }
    return KN_OK;
}

enum kn_status kni_build_pass_symbols(struct kni_build *b)
{
    struct kni_rans_trainer *trainer = NULL;
    enum kn_status status = kni_rans_trainer_open(&trainer);
    if (status == KN_OK)
        status = over_texts(b, "symbols", SYMBOL_TOKENS, train, trainer);
    if (status == KN_OK)
        status = kni_rans_trainer_finish(trainer, &b->rans);
    kni_rans_trainer_close(&trainer);
    if (status == KN_E_NOMEM)
        kni_err_set(b->err, status, "no memory for the tables of the entropy coder");
    kni_calibrate_profile(b->calibrate)->rans = b->rans;
    return status;
}
