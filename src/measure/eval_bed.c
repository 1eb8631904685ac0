/* SPDX-License-Identifier: Apache-2.0 */
/* The bench of codecs: see eval_bed.h. */
#include "measure/eval_bed.h"

#include <math.h>
#include <string.h>

#include "base/alloc.h"
#include "base/status.h"

#define ROWS_BYTES ((size_t)32 << 20) /* of logits a step, about */
#define MAX_STEP 128u

static bool take_blocks(struct kni_eval_bed *bed)
{
    uint32_t n_prefix = bed->n_prefix / KNI_BLOCK_TOKENS;
    for (uint32_t i = 0; i < bed->n_ids; i++) {
        if (!kni_pool_take(bed->pool, &bed->clean_ids[i]))
            return false;
        bed->coded_ids[i] = bed->clean_ids[i];
        if (i < n_prefix && !kni_pool_take(bed->pool, &bed->coded_ids[i]))
            return false;
    }
    return true;
}

enum kn_status kni_eval_bed_open(struct kni_eval_bed *bed, const struct kni_eval_bed_opts *o, struct kn_err *err)
{
    *bed = (struct kni_eval_bed){0};
    const struct kni_hparams *h = &o->model->hparams;
    uint64_t n_ctx = (uint64_t)o->n_prefix + o->n_after;
    if (!o->n_prefix || o->n_prefix % KNI_BLOCK_TOKENS || !o->n_after)
        return kni_err_set(err, KN_E_ARG, "a prefix of %u tokens and %u after it: the prefix must be a multiple of %u, and something must follow", o->n_prefix, o->n_after,
                           KNI_BLOCK_TOKENS);
    if (n_ctx > h->n_ctx_train)
        return kni_err_set(err, KN_E_CONTEXT, "%llu tokens are more than the model's context of %u: use a shorter prefix", (unsigned long long)n_ctx, h->n_ctx_train);
    if (o->n_threads > KNI_THREADS_MAX)
        return kni_err_set(err, KN_E_ARG, "n_threads is %u: use 1 to %u, or 0 for all", o->n_threads, KNI_THREADS_MAX);
    if (o->kv_type != KN_KV_TYPE_F16 && o->kv_type != KN_KV_TYPE_BF16)
        return kni_err_set(err, KN_E_ARG, "kv_type is %d: use f16 (0) or bf16 (1)", (int)o->kv_type);
    bed->model = kni_model_ref(o->model);
    bed->kv = (struct kni_kv_layout){.n_layer = h->n_layer, .n_kv_head = h->n_kv_head, .d_head = h->d_head, .type = o->kv_type};
    bed->n_prefix = o->n_prefix;
    bed->n_after = o->n_after;
    bed->n_vocab = h->n_vocab;
    size_t step = ROWS_BYTES / (h->n_vocab * sizeof *bed->rows);
    bed->step = step > MAX_STEP ? MAX_STEP : step < KNI_BLOCK_TOKENS ? KNI_BLOCK_TOKENS : (uint32_t)step;
    bed->n_ids = ((uint32_t)n_ctx + KNI_BLOCK_TOKENS - 1) / KNI_BLOCK_TOKENS;

    enum kn_status status = kni_threads_open(&bed->threads, o->n_threads);
    if (status)
        return kni_err_set(err, status, "cannot start %u compute threads: ask for fewer", o->n_threads);
    struct kni_pool_opts po = {.layout = bed->kv, .n_blocks = bed->n_ids + bed->n_prefix / KNI_BLOCK_TOKENS, .no_prefix_index = true};
    if ((status = kni_pool_open(&bed->pool, &po, err)))
        return status;
    struct kni_run_opts ro = {.model = bed->model,
                              .threads = bed->threads,
                              .max_tokens = KNI_EVAL_BED_TOKENS,
                              .max_logits = bed->step,
                              .n_ctx = (uint32_t)n_ctx,
                              .kv_type = o->kv_type};
    if ((status = kni_run_open(&bed->run, &ro, err)))
        return status;
    bed->clean_ids = kni_calloc(KNI_ALLOC_TAG_SCRATCH, bed->n_ids * sizeof *bed->clean_ids, 0);
    bed->coded_ids = kni_calloc(KNI_ALLOC_TAG_SCRATCH, bed->n_ids * sizeof *bed->coded_ids, 0);
    bed->rows = kni_alloc(KNI_ALLOC_TAG_SCRATCH, (size_t)bed->step * h->n_vocab * sizeof *bed->rows, 64);
    if (!bed->clean_ids || !bed->coded_ids || !bed->rows || !take_blocks(bed))
        return kni_err_set(err, KN_E_NOMEM, "no memory for two copies of a prefix of %u tokens", o->n_prefix);
    return KN_OK;
}

void kni_eval_bed_close(struct kni_eval_bed *bed)
{
    kni_run_close(&bed->run);
    kni_pool_close(&bed->pool);
    kni_threads_close(&bed->threads);
    kn_model_close(&bed->model);
    kni_free(bed->clean_ids);
    kni_free(bed->coded_ids);
    kni_free(bed->rows);
    *bed = (struct kni_eval_bed){0};
}

static struct kni_kv_host view_of(const struct kni_eval_bed *bed, const uint32_t *ids)
{
    const struct kni_kv_view view = kni_pool_view(bed->pool, ids, bed->n_ids);
    return kni_kv_host_of(&view);
}

enum kn_status kni_eval_check_tokens(const struct kn_model *model, const int32_t *tokens, size_t n, struct kn_err *err)
{
    for (size_t i = 0; i < n; i++)
        if (tokens[i] < 0 || (uint32_t)tokens[i] >= model->hparams.n_vocab)
            return kni_err_set(err, KN_E_ARG, "token %zu is %d, outside the vocabulary of %u", i, tokens[i], model->hparams.n_vocab);
    return KN_OK;
}

struct kni_kv_host kni_eval_bed_clean(const struct kni_eval_bed *bed)
{
    return view_of(bed, bed->clean_ids);
}

struct kni_kv_host kni_eval_bed_coded(const struct kni_eval_bed *bed)
{
    return view_of(bed, bed->coded_ids);
}

enum kn_status kni_eval_bed_prefill(struct kni_eval_bed *bed, const int32_t *tokens, kn_progress_fn progress, void *user, const char *phase, struct kn_err *err)
{
    struct kni_kv_host view = kni_eval_bed_clean(bed);
    for (uint32_t at = 0; at < bed->n_prefix;) {
        uint32_t left = bed->n_prefix - at, n = left < KNI_EVAL_BED_TOKENS ? left : KNI_EVAL_BED_TOKENS;
        if (progress)
            progress(user, phase, (double)at / bed->n_prefix);
        struct kni_run_item item = {.kv = kni_kv_view_of(&view), .tokens = tokens + at, .n_tokens = n, .first_pos = at};
        enum kn_status status = kni_run_step(bed->run, &item, 1);
        if (status)
            return kni_err_set(err, status, "the step at position %u failed: are all tokens of the model's vocabulary?", at);
        if ((status = kn_model_check(bed->model, err)))
            return status;
        at += n;
    }
    return KN_OK;
}

void kni_eval_bed_poison(struct kni_eval_bed *bed)
{
    const struct kni_kv_host coded = kni_eval_bed_coded(bed);
    for (uint32_t i = 0; i < bed->n_prefix / KNI_BLOCK_TOKENS; i++)
        kni_kv_block_fill(&coded, i, 0xff);
}

bool kni_eval_bed_is_same(const struct kni_eval_bed *bed)
{
    const struct kni_kv_host coded = kni_eval_bed_coded(bed), clean = kni_eval_bed_clean(bed);
    for (uint32_t i = 0; i < bed->n_prefix / KNI_BLOCK_TOKENS; i++)
        if (!kni_kv_block_equal(&coded, i, &clean, i))
            return false;
    return true;
}

enum kn_status kni_eval_bed_run(struct kni_eval_bed *bed, const struct kni_kv_host *view, const int32_t *tokens, uint32_t at, uint32_t n, uint32_t n_logits,
                                struct kn_err *err)
{
    struct kni_run_item item = {.kv = kni_kv_view_of(view), .tokens = tokens, .n_tokens = n, .first_pos = bed->n_prefix + at,
                                .want = n_logits ? KNI_RUN_WANT_LOGITS : KNI_RUN_WANT_NOTHING, .n_logits = n_logits, .logits = bed->rows};
    enum kn_status status = kni_run_step(bed->run, &item, 1);
    if (status)
        return kni_err_set(err, status, "the step at position %u failed: are all tokens of the model's vocabulary?", bed->n_prefix + at);
    return kn_model_check(bed->model, err);
}

double kni_eval_log_sum_exp(const float *x, uint32_t n, uint32_t *best)
{
    double sum = 0;
    uint32_t at = 0;
    for (uint32_t i = 1; i < n; i++)
        at = x[i] > x[at] ? i : at;
    for (uint32_t i = 0; i < n; i++)
        sum += exp((double)x[i] - x[at]);
    if (best)
        *best = at;
    return x[at] + log(sum);
}
