/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The public calls for profiles. A build is a row of stages, each of which needs what the one before has found; the file is
 * tried before the first one, so that a path that cannot be written costs no minutes, and written after the last.
 */
#include "kinema/profile.h"

#include <string.h>

#include "base/alloc.h"
#include "base/hash.h"
#include "base/cpu.h"
#include "base/file.h"
#include "base/sized.h"
#include "base/status.h"
#include "profile/profile_build_state.h"
#include "kernel/rope.h"

#define N_SINKS 4u /* attention sinks: kept exact, they halve KL; more than four gains nothing */

void kni_build_report(const struct kni_build *b, const char *phase, double done)
{
    if (b->opts.progress)
        b->opts.progress(b->opts.user, phase, done);
}

static enum kn_status check_opts(const struct kn_profile_opts *o, struct kn_err *err)
{
    if (!o->n_texts || !o->texts || !o->text_bytes)
        return kni_err_set(err, KN_E_ARG, "a profile is built from texts: give some, several of different kinds");
    for (size_t i = 0; i < o->n_texts; i++)
        if (!o->texts[i])
            return kni_err_set(err, KN_E_ARG, "calibration text %zu is NULL", i);
    if (o->n_threads > KNI_THREADS_MAX)
        return kni_err_set(err, KN_E_ARG, "n_threads is %u: use 1 to %u, or 0 for all", o->n_threads, KNI_THREADS_MAX);
    return KN_OK;
}

static struct kni_kv_layout layout_of(const struct kn_model *m)
{
    return (struct kni_kv_layout){.n_layer = m->hparams.n_layer, .n_kv_head = m->hparams.n_kv_head, .d_head = m->hparams.d_head, .type = KN_KV_TYPE_F16};
}

/* How the model rotates keys, as the codec is to know it. */
static enum kn_status open_calibrate(struct kni_build *b)
{
    const struct kni_hparams *hp = &b->model->hparams;
    uint32_t n_pairs = hp->rope_dim / 2;
    b->freqs = kni_alloc(KNI_ALLOC_TAG_MISC, hp->n_ropes * (size_t)n_pairs * sizeof *b->freqs, 0);
    b->rope_layers = kni_alloc(KNI_ALLOC_TAG_MISC, hp->n_layer, 0);
    if (!b->freqs || !b->rope_layers)
        return kni_err_set(b->err, KN_E_NOMEM, "no memory for frequencies");
    for (uint32_t i = 0; i < hp->n_ropes; i++)
        kni_rope_freqs(b->freqs + (size_t)i * n_pairs, n_pairs, hp->ropes[i].base, hp->ropes[i].scale, hp->ropes[i].factors ? hp->ropes[i].factors->data : NULL);
    for (uint32_t i = 0; i < hp->n_layer; i++)
        b->rope_layers[i] = (uint8_t)b->model->layers[i].rope;
    struct kni_calibrate_opts co = {.kv = layout_of(b->model), .n_group = b->opts.n_group, .n_sinks = N_SINKS, .threads = b->threads,
                                    .rope = {.neox = hp->rope_style == KNI_ROPE_STYLE_NEOX, .rope_dim = hp->rope_dim, .n_ropes = hp->n_ropes, .freqs = b->freqs, .layers = b->rope_layers}};
    memcpy(co.fingerprint, b->model->info.fingerprint, sizeof co.fingerprint);
    return kni_calibrate_open(&b->calibrate, &co, b->err);
}

/* A run and a pool for the longest text. */
static enum kn_status open_run(struct kni_build *b)
{
    struct kni_run_opts ro = {.model = b->model, .threads = b->threads, .max_tokens = KNI_BUILD_STEP_TOKENS, .max_logits = KNI_BUILD_SCORE_TOKENS, .n_ctx = b->n_ctx,
                              .kv_type = KN_KV_TYPE_F16};
    uint32_t n_blocks = b->n_ctx / KNI_BLOCK_TOKENS;
    struct kni_kv_layout layout = layout_of(b->model);
    enum kn_status status = kni_run_open(&b->run, &ro, b->err);
    if (status)
        return status;
    b->block_ids = kni_alloc(KNI_ALLOC_TAG_POOL, n_blocks * sizeof *b->block_ids, 0);
    b->view = kni_kv_host_by_block(&layout, kni_calloc(KNI_ALLOC_TAG_POOL, n_blocks * kni_kv_block_bytes(&layout), 4096), b->block_ids, n_blocks);
    if (!b->block_ids || !b->view.k)
        return kni_err_set(b->err, KN_E_NOMEM, "no memory for the K and V of %u tokens; use a smaller max_tokens", b->n_ctx);
    for (uint32_t i = 0; i < n_blocks; i++)
        b->block_ids[i] = i;
    return KN_OK;
}

static void report_bases(void *user, double done)
{
    kni_build_report(user, "bases", done);
}

static enum kn_status solve(struct kni_build *b)
{
    return kni_calibrate_solve(b->calibrate, report_bases, b, b->err);
}

static enum kn_status measure_ratios(struct kni_build *b)
{
    struct kni_profile *p = kni_calibrate_profile(b->calibrate);
    enum kn_status status = KN_OK;
    for (uint32_t k = 0; k < KNI_PROFILE_N_PRESETS && status == KN_OK; k++) {
        double ratio;
        kni_build_report(b, "sizes", (double)k / KNI_PROFILE_N_PRESETS);
        status = kni_build_measure_ratio(b, (enum kni_profile_preset)k, &ratio);
        p->quality[k].ratio = (float)ratio;
    }
    return status;
}

static enum kn_status trim(struct kni_build *b)
{
    kni_calibrate_trim(b->calibrate);
    return KN_OK;
}

static enum kn_status build(struct kni_build *b)
{
    static enum kn_status (*const stages[])(struct kni_build *b) = {open_calibrate, kni_build_read_texts, open_run, kni_build_pass_power, kni_build_pass_layers, kni_build_pass_sums, solve,
                                                                    kni_build_pass_histograms, kni_build_open_coders, kni_build_open_held, kni_build_search,
                                                                    kni_build_pass_symbols, trim, measure_ratios};
    enum kn_status status = KN_OK;
    for (size_t i = 0; i < sizeof stages / sizeof *stages && status == KN_OK; i++)
        status = stages[i](b);
    return status;
}

static void clean_up(struct kni_build *b)
{
    kni_build_close_held(b);
    kni_build_close_coders(b);
    kni_free(b->logits);
    kni_build_free_texts(b);
    kni_free(b->view.k); /* by block: where it begins */
    kni_free(b->block_ids);
    if (b->run)
        kni_run_close(&b->run);
    kni_calibrate_close(&b->calibrate);
    kni_rans_model_free(&b->rans);
    kni_free(b->freqs);
    kni_free(b->rope_layers);
    kni_threads_close(&b->threads);
    kni_free(b);
}

enum kn_status kn_profile_build(struct kn_model *model, const char *path, const struct kn_profile_opts *opts, struct kn_err *err)
{
    if (!model || !path)
        return kni_err_set(err, KN_E_ARG, "kn_profile_build needs a model and a path");
    struct kn_profile_opts o;
    struct kni_file_save save = {0};
    void *data = NULL;
    size_t n_bytes;
    enum kn_status status = KNI_OPTS_READ(&o, opts, kn_profile_opts, err);
    if (status || (status = check_opts(&o, err)))
        return status;
    struct kni_build *b = kni_calloc(KNI_ALLOC_TAG_MISC, sizeof *b, 64);
    if (!b)
        return kni_err_set(err, KN_E_NOMEM, "no memory to build a profile");
    b->model = model;
    b->opts = o;
    b->err = err;
    kni_kernels_init(&b->kernels, kni_cpu_flags());
    status = kni_threads_open(&b->threads, o.n_threads);
    if (status) {
        kni_err_set(err, status, "cannot start %u compute threads: ask for fewer", o.n_threads);
        goto done;
    }
    b->n_workers = kni_threads_count(b->threads);
    if ((status = kni_file_save_begin(&save, path, err)))
        goto done;
    if ((status = build(b)))
        goto done;
    if ((status = kni_profile_write(kni_calibrate_profile(b->calibrate), &data, &n_bytes, err)))
        goto done;
    status = kni_file_save_commit(&save, data, n_bytes, err);
done:
    kni_file_save_end(&save);
    kni_free(data);
    clean_up(b);
    return status;
}
