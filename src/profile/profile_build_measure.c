/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Quality on held-back text. A text's prefix is run once; its K and V are kept as they came, and so are the log-probabilities of the
 * tokens that follow it. Then, for each way of coding: code the kept K and V into the pool, run the same tokens again, and compare.
 *
 *     [ prefix: kept ---coded---> pool ][ scored: teacher-forced, rewritten each time ]
 *
 * Log-probabilities are kept as f16 (50 MB for 512 positions of a vocabulary of 49,152): the rounding has a mean of zero, and where
 * most probability lies they are near zero and exact to 1e-4.
 *
 * CacheGen's way (Liu et al. 2024) as its code does it, rotated keys and one scale a token, layer, K or V, over all heads; the entropy
 * coder does not matter to quality. It is the yardstick that steps are chosen by.
 */
#include <math.h>
#include <stdatomic.h>
#include <string.h>

#include "base/alloc.h"
#include "base/status.h"
#include "codec/codec.h"
#include "profile/profile_build_state.h"

#define MAX_PREFIX 1024u
#define MAX_SCORE 256u
#define MAX_LOGP_BYTES ((size_t)128 << 20) /* of one text */

/* One piece of work: a method on the prefix of one text, piece by piece. */
struct coding {
    struct kni_build *b;
    const struct kni_build_held *held;
    struct kni_kv_host from; /* the kept K and V */
    uint32_t levels[2];      /* CacheGen, K and V; 0: the preset */
    enum kni_profile_preset preset;
    uint32_t n_chunks;
    _Atomic uint32_t next;
    _Atomic int status;
};

static struct kni_kv_host kept_view(const struct kni_build *b, const struct kni_build_held *h)
{
    return kni_kv_host_by_block(&b->view.layout, h->untouched, b->view.block_ids, h->n_prefix / KNI_BLOCK_TOKENS);
}

/* One token of one layer, K or V, there and back. */
static void cachegen_row(const struct coding *c, uint32_t layer, uint32_t is_v, uint32_t pos)
{
    const struct kni_kv_layout *l = &c->from.layout;
    float x[KNI_BLOCK_TOKENS * 64], most = 0; /* a piece of a head at a time */
    float m = (float)(c->levels[is_v] / 2 - 1);
    for (uint32_t pass = 0; pass < 2; pass++)
        for (uint32_t head = 0; head < l->n_kv_head; head++)
            for (uint32_t at = 0; at < l->d_head; at += (uint32_t)(sizeof x / sizeof *x)) {
                uint32_t n = l->d_head - at < sizeof x / sizeof *x ? l->d_head - at : (uint32_t)(sizeof x / sizeof *x);
                c->b->kernels.from_half[l->type](x, kni_kv_row(&c->from, layer, is_v, head, pos) + at, n);
                for (uint32_t i = 0; i < n; i++) {
                    if (!pass)
                        most = fmaxf(most, fabsf(x[i]));
                    else
                        x[i] = most > 0 ? rintf(x[i] * m / most) * most / m : 0;
                }
                if (pass)
                    c->b->kernels.to_half[l->type](kni_kv_row(&c->b->view, layer, is_v, head, pos) + at, x, n);
            }
}

static void code_preset(struct coding *c, struct kni_build_coder *coder, uint32_t first, uint32_t n, uint32_t part)
{
    enum kn_status status = kni_spectral_forward(coder->spectral, &c->from, first, n, part, c->preset, coder->symbols, KNI_BUILD_STEP_TOKENS, &coder->escapes);
    if (status == KN_OK)
        status = kni_spectral_inverse(coder->spectral, &c->b->view, first, n, part, c->preset, coder->symbols, KNI_BUILD_STEP_TOKENS, &coder->escapes,
                                      kni_calibrate_profile(c->b->calibrate)->n_sinks);
    if (status)
        atomic_store_explicit(&c->status, (int)status, memory_order_relaxed); /* read after the join */
}

static void code_pieces(void *arg, uint32_t worker, uint32_t n_workers)
{
    struct coding *c = arg;
    const struct kni_profile *p = kni_calibrate_profile(c->b->calibrate);
    (void)n_workers;
    for (uint32_t at; (at = atomic_fetch_add_explicit(&c->next, 1, memory_order_relaxed)) < c->n_chunks * p->n_parts;) {
        uint32_t first = at / p->n_parts * KNI_BUILD_STEP_TOKENS, part = at % p->n_parts, left = c->held->n_prefix - first;
        uint32_t n = left < KNI_BUILD_STEP_TOKENS ? left : KNI_BUILD_STEP_TOKENS;
        if (!c->levels[0]) {
            code_preset(c, &c->b->coders[worker], first, n, part);
            continue;
        }
        for (uint32_t l = 0; l < p->parts[part].n_layers; l++)
            for (uint32_t pos = first; pos < first + n; pos++)
                cachegen_row(c, p->parts[part].first_layer + l, part & 1, pos);
    }
}

/* ---- scoring */

struct scoring {
    struct kni_build *b;
    struct kni_build_held *held;
    bool keep;         /* the untouched run: keep what it gives; otherwise compare */
    uint32_t at, n;    /* rows of this step, from the first scored one on */
    float *work;       /* [n_workers][n_vocab] */
    double *kl;        /* [KNI_BUILD_SCORE_TOKENS] */
    uint8_t *same;     /* [KNI_BUILD_SCORE_TOKENS] the best token is the same */
};

/* Logits to log-probabilities in place; returns the best token. */
static int32_t log_softmax(const struct kni_build *b, float *x, float *work, uint32_t n)
{
    uint32_t best = 0;
    double sum = 0;
    for (uint32_t i = 1; i < n; i++)
        best = x[i] > x[best] ? i : best;
    float most = x[best];
    for (uint32_t i = 0; i < n; i++)
        x[i] -= most;
    b->kernels.exp(work, x, n);
    for (uint32_t i = 0; i < n; i++)
        sum += (double)work[i];
    float log_sum = (float)log(sum);
    for (uint32_t i = 0; i < n; i++)
        x[i] -= log_sum;
    return (int32_t)best;
}

static void score_rows(void *arg, uint32_t worker, uint32_t n_workers)
{
    struct scoring *s = arg;
    uint32_t n_vocab = s->b->model->hparams.n_vocab;
    float *work = s->work + (size_t)worker * 2 * n_vocab, *p = work + n_vocab;
    for (uint32_t i = worker; i < s->n; i += n_workers) {
        float *x = s->b->logits + (size_t)i * n_vocab;
        uint16_t *kept = s->held->logp + (size_t)(s->at + i) * n_vocab;
        int32_t best = log_softmax(s->b, x, work, n_vocab);
        if (s->keep) {
            s->b->kernels.to_half[KN_KV_TYPE_F16](kept, x, n_vocab);
            s->held->best[s->at + i] = best;
            continue;
        }
        double kl = 0;
        s->b->kernels.from_half[KN_KV_TYPE_F16](work, kept, n_vocab);
        s->b->kernels.exp(p, work, n_vocab);
        for (uint32_t k = 0; k < n_vocab; k++)
            kl += (double)p[k] * (double)(work[k] - x[k]);
        s->kl[i] = kl;
        s->same[i] = best == s->held->best[s->at + i];
    }
}

enum kn_status kni_build_score(struct kni_build *b, struct kni_build_held *h, bool keep, struct kni_build_quality *out)
{
    double kl[KNI_BUILD_SCORE_TOKENS], sum_kl = 0, sum_same = 0;
    uint8_t same[KNI_BUILD_SCORE_TOKENS];
    uint32_t n_vocab = b->model->hparams.n_vocab;
    enum kn_status status = KN_OK;
    struct scoring s = {.b = b, .held = h, .keep = keep, .kl = kl, .same = same};
    s.work = kni_alloc(KNI_ALLOC_TAG_SCRATCH, b->n_workers * 2 * (size_t)n_vocab * sizeof *s.work, 64);
    if (!s.work)
        return kni_err_set(b->err, KN_E_NOMEM, "no memory to compare %u logits", n_vocab);
    for (; s.at < h->n_score && status == KN_OK; s.at += s.n) {
        s.n = h->n_score - s.at < KNI_BUILD_SCORE_TOKENS ? h->n_score - s.at : KNI_BUILD_SCORE_TOKENS;
        struct kni_run_item item = {.kv = kni_kv_view_of(&b->view), .tokens = h->text->tokens + h->n_prefix + s.at, .n_tokens = s.n, .first_pos = h->n_prefix + s.at,
                                    .want = KNI_RUN_WANT_LOGITS, .n_logits = s.n, .logits = b->logits};
        status = kni_run_step(b->run, &item, 1);
        if (status) {
            kni_err_set(b->err, status, "the model cannot run a held-back text at token %u", h->n_prefix + s.at);
            break;
        }
        if ((status = kn_model_check(b->model, b->err)))
            break;
        kni_threads_run(b->threads, score_rows, &s);
        for (uint32_t i = 0; i < s.n && !keep; i++) {
            sum_kl += kl[i];
            sum_same += same[i];
        }
    }
    kni_free(s.work);
    if (out)
        *out = (struct kni_build_quality){.kl = sum_kl / h->n_score, .top1 = sum_same / h->n_score};
    return status;
}

/* ---- texts */

enum kn_status kni_build_open_text(struct kni_build *b, struct kni_build_held *h, const struct kni_build_text *text, uint32_t max_prefix, uint32_t max_score)
{
    uint32_t n_vocab = b->model->hparams.n_vocab, most = (uint32_t)(MAX_LOGP_BYTES / (2 * (size_t)n_vocab)) / KNI_BLOCK_TOKENS * KNI_BLOCK_TOKENS;
    max_score = max_score > most ? most < KNI_BLOCK_TOKENS ? KNI_BLOCK_TOKENS : most : max_score;
    uint32_t n_score = text->n / 4 / KNI_BLOCK_TOKENS * KNI_BLOCK_TOKENS, n_prefix; /* texts have 64 tokens at least */
    n_score = n_score > max_score ? max_score : n_score;
    n_prefix = text->n - n_score > max_prefix ? max_prefix : text->n - n_score;
    *h = (struct kni_build_held){.text = text, .n_prefix = n_prefix, .n_score = n_score};
    size_t bytes = n_prefix / KNI_BLOCK_TOKENS * kni_kv_block_bytes(&b->view.layout);
    if (!b->logits)
        b->logits = kni_alloc(KNI_ALLOC_TAG_SCRATCH, KNI_BUILD_SCORE_TOKENS * (size_t)n_vocab * sizeof *b->logits, 64);
    h->untouched = kni_alloc(KNI_ALLOC_TAG_MISC, bytes, 64);
    h->logp = kni_alloc(KNI_ALLOC_TAG_MISC, (size_t)n_score * n_vocab * sizeof *h->logp, 64);
    h->best = kni_alloc(KNI_ALLOC_TAG_MISC, n_score * sizeof *h->best, 0);
    if (!b->logits || !h->untouched || !h->logp || !h->best)
        return kni_err_set(b->err, KN_E_NOMEM, "no memory to measure on a text of %u tokens", n_prefix);
    enum kn_status status = kni_build_prefill(b, text, n_prefix);
    if (status)
        return status;
    memcpy(h->untouched, b->view.k, bytes); /* blocks are in order */
    return kni_build_score(b, h, true, NULL);
}

void kni_build_close_text(struct kni_build_held *h)
{
    kni_free(h->untouched);
    kni_free(h->logp);
    kni_free(h->best);
    *h = (struct kni_build_held){0};
}

enum kn_status kni_build_open_held(struct kni_build *b)
{
    for (uint32_t i = b->n_texts - b->n_held; i < b->n_texts && b->n_measured < KNI_BUILD_MEASURED; i++) {
        enum kn_status status = kni_build_open_text(b, &b->held[b->n_measured++], &b->texts[i], MAX_PREFIX, MAX_SCORE);
        if (status)
            return status;
    }
    return KN_OK;
}

void kni_build_close_held(struct kni_build *b)
{
    for (uint32_t i = 0; i < b->n_measured; i++)
        kni_build_close_text(&b->held[i]);
    b->n_measured = 0;
}

static enum kn_status measure(struct kni_build *b, struct coding *c, struct kni_build_quality *out)
{
    *out = (struct kni_build_quality){0};
    for (uint32_t i = 0; i < b->n_measured; i++) {
        struct kni_build_held *h = &b->held[i];
        struct kni_build_quality q;
        c->b = b;
        c->held = h;
        c->from = kept_view(b, h);
        c->n_chunks = (h->n_prefix + KNI_BUILD_STEP_TOKENS - 1) / KNI_BUILD_STEP_TOKENS;
        atomic_store_explicit(&c->next, 0, memory_order_relaxed);
        atomic_store_explicit(&c->status, KN_OK, memory_order_relaxed);
        memcpy(b->view.k, h->untouched, kni_kv_block_bytes(&b->view.layout)); /* the exact first tokens; the rest is overwritten */
        kni_threads_run(b->threads, code_pieces, c);
        enum kn_status status = (enum kn_status)atomic_load_explicit(&c->status, memory_order_relaxed);
        if (status)
            return kni_err_set(b->err, status, "a held-back text cannot be coded");
        if ((status = kni_build_score(b, h, false, &q)))
            return status;
        out->kl += q.kl / b->n_measured;
        out->top1 += q.top1 / b->n_measured;
    }
    return KN_OK;
}

enum kn_status kni_build_measure_cachegen(struct kni_build *b, uint32_t levels_k, uint32_t levels_v, struct kni_build_quality *out)
{
    struct coding c = {.levels = {levels_k, levels_v}};
    return measure(b, &c, out);
}

enum kn_status kni_build_measure_preset(struct kni_build *b, enum kni_profile_preset preset, struct kni_build_quality *out)
{
    struct coding c = {.preset = preset};
    return measure(b, &c, out);
}

/* ---- bytes */

enum kn_status kni_build_measure_ratio(struct kni_build *b, enum kni_profile_preset preset, double *ratio)
{
    static const enum kn_preset presets[KNI_PROFILE_N_PRESETS] = {KN_PRESET_FINE, KN_PRESET_MEDIUM, KN_PRESET_SMALL};
    void *profile_bytes = NULL, *data;
    struct kni_profile *profile = NULL;
    struct kni_codec *codec = NULL;
    size_t n, coded = 0, raw = 0;
    enum kn_status status = kni_profile_write(kni_calibrate_profile(b->calibrate), &profile_bytes, &n, b->err);
    if (status == KN_OK)
        status = kni_profile_read(&profile, profile_bytes, n, "the new profile", b->err);
    if (status == KN_OK)
        status = kni_codec_open(&codec, &(struct kni_codec_opts){.preset = presets[preset], .profile = profile}, b->err);
    for (uint32_t i = 0; i < b->n_measured && status == KN_OK; i++) {
        const struct kni_build_held *h = &b->held[i];
        struct kni_kv_host view = kept_view(b, h);
        for (uint32_t at = 0; at < h->n_prefix && status == KN_OK; at += KNI_BUILD_STEP_TOKENS) {
            uint32_t left = h->n_prefix - at;
            struct kni_chunk_meta meta = {.first_token = at, .n_tokens = left < KNI_BUILD_STEP_TOKENS ? left : KNI_BUILD_STEP_TOKENS, .kv = view.layout};
            memcpy(meta.fingerprint, profile->fingerprint, sizeof meta.fingerprint);
            status = kni_chunk_encode(codec, &meta, &view, &data, &n, b->err);
            if (status == KN_OK) {
                coded += n;
                raw += meta.n_tokens * kni_kv_token_bytes(&view.layout);
                kni_free(data);
            }
        }
    }
    *ratio = coded ? (double)raw / (double)coded : 0;
    kni_codec_close(&codec);
    kni_profile_close(&profile);
    kni_free(profile_bytes);
    return status;
}
