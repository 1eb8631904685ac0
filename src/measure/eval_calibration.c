/* SPDX-License-Identifier: Apache-2.0 */
/* Runs the model over calibration texts and shows their K and V to whoever learns from them. One text at a time is in memory. */
#include "measure/eval_calibration.h"

#include <stdio.h>
#include <string.h>

#include "base/alloc.h"
#include "base/sized.h"
#include "base/status.h"
#include "measure/eval_bed.h"
#include "kernel/rope.h"

#define DEFAULT_MAX_TOKENS 2048u

static enum kn_status make_rope(struct kn_eval_calibration *c, struct kn_err *err)
{
    const struct kni_hparams *h = &c->model->hparams;
    uint32_t half = h->rope_dim / 2;
    c->freqs = kni_alloc(KNI_ALLOC_TAG_CODEC, (size_t)h->n_ropes * half * sizeof *c->freqs, 0);
    c->rope_layers = kni_alloc(KNI_ALLOC_TAG_CODEC, h->n_layer, 0);
    if (!c->freqs || !c->rope_layers)
        return kni_err_set(err, KN_E_NOMEM, "no memory for a calibration");
    for (uint32_t i = 0; i < h->n_ropes; i++) {
        const struct kni_rope *r = &h->ropes[i];
        kni_rope_freqs(c->freqs + (size_t)i * half, half, r->base, r->scale, r->factors ? r->factors->data : NULL);
    }
    for (uint32_t i = 0; i < h->n_layer; i++)
        c->rope_layers[i] = (uint8_t)c->model->layers[i].rope;
    c->rope = (struct kni_profile_rope){.neox = h->rope_style == KNI_ROPE_STYLE_NEOX, .rope_dim = h->rope_dim, .n_ropes = h->n_ropes, .freqs = c->freqs, .layers = c->rope_layers};
    return KN_OK;
}

static enum kn_status learn_text(struct kn_eval_calibration *c, const struct kn_eval_calibration_opts *o, size_t index, struct kn_err *err)
{
    size_t most = o->max_tokens ? o->max_tokens : DEFAULT_MAX_TOKENS, n = o->n_tokens[index] < most ? o->n_tokens[index] : most;
    if (n >= c->model->hparams.n_ctx_train)
        n = c->model->hparams.n_ctx_train - 1;
    struct kni_eval_bed bed;
    struct kni_eval_bed_opts bo = {.model = c->model, .n_prefix = (uint32_t)n / KNI_BLOCK_TOKENS * KNI_BLOCK_TOKENS, .n_after = 1, .n_threads = o->n_threads, .kv_type = o->kv_type};
    if (!bo.n_prefix)
        return KN_OK; /* a text of a few words teaches nothing */
    char phase[64];
    snprintf(phase, sizeof phase, "calibration text %zu of %zu", index + 1, o->n_texts);
    enum kn_status status = kni_eval_bed_open(&bed, &bo, err);
    if (status == KN_OK)
        status = kni_eval_bed_prefill(&bed, o->texts[index], o->progress, o->user, phase, err);
    if (status == KN_OK) {
        struct kni_kv_host view = kni_eval_bed_clean(&bed);
        kni_kvtc_add(c->kvtc, &view, bo.n_prefix);
        if (o->ablation)
            status = kni_calibrate_add(c->single, &view, bo.n_prefix);
        if (o->ablation && status == KN_OK)
            status = kni_calibrate_add(c->grouped, &view, bo.n_prefix);
        if (status)
            kni_err_set(err, status, "no memory to learn from a text of %u tokens", bo.n_prefix);
    }
    kni_eval_bed_close(&bed);
    return status;
}

static enum kn_status open_bases(struct kn_eval_calibration *c, struct kn_err *err)
{
    struct kni_calibrate_opts co = {.kv = c->kv, .rope = c->rope, .n_group = 1, .n_sinks = KNI_KVTC_SINKS, .threads = c->threads};
    memcpy(co.fingerprint, c->model->info.fingerprint, sizeof co.fingerprint);
    enum kn_status status = kni_calibrate_open(&c->single, &co, err);
    co.n_group = 0;
    return status ? status : kni_calibrate_open(&c->grouped, &co, err);
}

enum kn_status kn_eval_calibration_open(struct kn_eval_calibration **out, struct kn_model *model, const struct kn_eval_calibration_opts *opts, struct kn_err *err)
{
    struct kn_eval_calibration_opts o;
    if (!out)
        return kni_err_set(err, KN_E_ARG, "kn_eval_calibration_open needs a place for the calibration");
    *out = NULL;
    if (!model)
        return kni_err_set(err, KN_E_ARG, "kn_eval_calibration_open needs a model");
    enum kn_status status = KNI_OPTS_READ(&o, opts, kn_eval_calibration_opts, err);
    if (status)
        return status;
    if (!o.texts || !o.n_tokens || !o.n_texts)
        return kni_err_set(err, KN_E_ARG, "kn_eval_calibration_open needs texts");
    struct kn_eval_calibration *c = kni_calloc(KNI_ALLOC_TAG_CODEC, sizeof *c, 0);
    if (!c)
        return kni_err_set(err, KN_E_NOMEM, "no memory for a calibration");
    const struct kni_hparams *h = &model->hparams;
    c->model = kni_model_ref(model);
    c->kv = (struct kni_kv_layout){.n_layer = h->n_layer, .n_kv_head = h->n_kv_head, .d_head = h->d_head, .type = o.kv_type};
    status = kni_threads_open(&c->threads, o.n_threads);
    if (status) {
        status = kni_err_set(err, status, "cannot start %u compute threads: ask for fewer", o.n_threads);
        goto done;
    }
    if ((status = make_rope(c, err)))
        goto done;
    struct kni_kvtc_opts ko = {.kv = c->kv, .rope = c->rope, .threads = c->threads};
    if ((status = kni_kvtc_open(&c->kvtc, &ko))) {
        status = kni_err_set(err, status, "kvtc cannot be made for %u heads of %u: %s", h->n_kv_head, h->d_head, kn_status_message(status));
        goto done;
    }
    if (o.ablation && (status = open_bases(c, err)))
        goto done;
    for (size_t i = 0; i < o.n_texts && status == KN_OK; i++)
        status = learn_text(c, &o, i, err);
    if (status == KN_OK && o.progress)
        o.progress(o.user, "PCA of kvtc", 0);
    if (status == KN_OK)
        status = kni_kvtc_solve(c->kvtc, err);
    if (status == KN_OK && o.ablation && o.progress)
        o.progress(o.user, "bases of the ablation", 0);
    if (status == KN_OK && o.ablation)
        status = kni_calibrate_solve(c->single, NULL, NULL, err);
    if (status == KN_OK && o.ablation)
        status = kni_calibrate_solve(c->grouped, NULL, NULL, err);
done:
    if (status)
        kn_eval_calibration_close(&c);
    *out = c;
    return status;
}

void kn_eval_calibration_close(struct kn_eval_calibration **calibration)
{
    struct kn_eval_calibration *c = *calibration;
    if (!c)
        return;
    kni_kvtc_close(&c->kvtc);
    kni_calibrate_close(&c->single);
    kni_calibrate_close(&c->grouped);
    kni_threads_close(&c->threads);
    kni_free(c->freqs);
    kni_free(c->rope_layers);
    kn_model_close(&c->model);
    kni_free(c);
    *calibration = NULL;
}

enum kn_status kni_eval_calibration_check(const struct kn_eval_calibration *c, const struct kn_model *model, enum kn_kv_type type, struct kn_err *err)
{
    if (c->model != model || c->kv.type != type)
        return kni_err_set(err, KN_E_ARG, "the calibration was made %s: make one that fits", c->model != model ? "for another model" : "with another type of pool");
    return KN_OK;
}
