/* SPDX-License-Identifier: Apache-2.0 */
/*
 * How much an error in each layer costs. Noise of one size, relative to the scaled row, goes into K or V of one layer of a prefix, and
 * the KL of the tokens that follow is measured; layers differ by a factor of twenty and more. KL grows with the square of the noise,
 * so one size tells all.
 *
 *     untouched K, V --one layer: + noise--> pool --score--> KL          then the next layer; 2 * n_layer runs a text
 *
 * The noise is white in the rows that a basis will see, as a quantiser's is: for keys divided by the weight of the component. That it
 * is added to turned keys makes no difference, since both components of a pair have one weight.
 *
 * Few tokens do: a gain is the root of what is measured, rounded to a quarter octave, and half an octave beside the best value costs
 * some percent of a layer's share.
 */
#include <math.h>
#include <stdatomic.h>
#include <string.h>

#include "base/alloc.h"
#include "base/status.h"
#include "profile/profile_build_state.h"

#define N_TEXTS 3u
#define PREFIX 256u
#define SCORED 64u
#define NOISE 0.1f        /* of the scaled row's rms: as a step of 0.35 */
#define MAX_LAYERS 128u   /* with more, it would take too long: all are taken to be alike */

struct noising {
    struct kni_build *b;
    const struct kni_build_held *held;
    uint32_t layer, is_v;
    _Atomic uint32_t next; /* block */
};

/* Two numbers of deviation 1 each from bits that depend on nothing but their arguments (SplitMix64; Box and Muller 1958). */
static void two_normals(uint64_t x, float out[2])
{
    x = (x ^ x >> 30) * 0xbf58476d1ce4e5b9u;
    x = (x ^ x >> 27) * 0x94d049bb133111ebu;
    x ^= x >> 31;
    float u = ((float)(x >> 40) + 0.5f) * 0x1p-24f, angle = (float)(x & 0xffffff) * 0x1p-24f * 6.2831853f, r = sqrtf(-2 * logf(u));
    out[0] = r * cosf(angle);
    out[1] = r * sinf(angle);
}

/* The blocks of one layer's K or V, from the kept ones, with noise or without. */
static void write_blocks(void *arg, uint32_t worker, uint32_t n_workers)
{
    struct noising *n = arg;
    struct kni_build *b = n->b;
    const struct kni_kv_layout *l = &b->view.layout;
    const struct kni_profile *p = kni_calibrate_profile(b->calibrate);
    const struct kni_profile_part *part = &p->parts[n->layer / p->n_group * 2 + n->is_v];
    const float *weight = part->weight + (size_t)(n->layer - part->first_layer) * l->n_kv_head * l->d_head;
    const struct kni_kv_host from = kni_kv_host_by_block(l, n->held->untouched, b->view.block_ids, b->view.n_blocks);
    float x[KNI_BUILD_MAX_ROW];
    uint32_t row = l->n_kv_head * l->d_head;
    (void)worker, (void)n_workers;
    for (uint32_t block; (block = atomic_fetch_add_explicit(&n->next, 1, memory_order_relaxed)) < n->held->n_prefix / KNI_BLOCK_TOKENS;)
        for (uint32_t pos = block * KNI_BLOCK_TOKENS; pos < (block + 1) * KNI_BLOCK_TOKENS; pos++) {
            if (pos < p->n_sinks)
                continue;
            double power = 0;
            for (uint32_t h = 0; h < l->n_kv_head; h++)
                b->kernels.from_half[l->type](x + h * l->d_head, kni_kv_row(&from, n->layer, n->is_v, h, pos), l->d_head);
            for (uint32_t i = 0; i < row; i++)
                power += (double)(x[i] * weight[i]) * (double)(x[i] * weight[i]) / row;
            float size = NOISE * (float)sqrt(power), normal[2];
            for (uint32_t i = 0; i < row; i++) {
                if (i % 2 == 0)
                    two_normals(((uint64_t)(n->layer * 2 + n->is_v) << 40) + ((uint64_t)pos << 16) + i, normal);
                x[i] += size / weight[i] * normal[i % 2];
            }
            for (uint32_t h = 0; h < l->n_kv_head; h++)
                b->kernels.to_half[l->type](kni_kv_row(&b->view, n->layer, n->is_v, h, pos), x + h * l->d_head, l->d_head);
        }
}

static void restore(const struct kni_build *b, const struct kni_build_held *h, uint32_t layer, uint32_t is_v)
{
    const struct kni_kv_layout *l = &b->view.layout;
    size_t n = kni_kv_part_values(l), at = ((size_t)layer * 2 + is_v) * n;
    for (uint32_t block = 0; block < h->n_prefix / KNI_BLOCK_TOKENS; block++, at += kni_kv_block_values(l))
        memcpy(b->view.k + at, h->untouched + at, n * sizeof *h->untouched);
}

/* Adds KL of a text to sensitivity [2][n_layer]. */
static enum kn_status measure_text(struct kni_build *b, const struct kni_build_text *text, double *sensitivity, uint32_t done, uint32_t all)
{
    uint32_t n_layer = b->model->hparams.n_layer;
    struct kni_build_held h = {0};
    enum kn_status status = kni_build_open_text(b, &h, text, PREFIX, SCORED);
    for (uint32_t i = 0; i < 2 * n_layer && status == KN_OK; i++) {
        struct noising n = {.b = b, .held = &h, .layer = i % n_layer, .is_v = i / n_layer};
        struct kni_build_quality q;
        kni_threads_run(b->threads, write_blocks, &n);
        status = kni_build_score(b, &h, false, &q);
        restore(b, &h, n.layer, n.is_v);
        sensitivity[i] += status == KN_OK && q.kl > 0 ? q.kl : 0;
        kni_build_report(b, "layers", (double)(++done) / all);
    }
    kni_build_close_text(&h);
    return status;
}

enum kn_status kni_build_pass_layers(struct kni_build *b)
{
    uint32_t n_layer = b->model->hparams.n_layer, n_learn = b->n_texts - b->n_held, n = n_learn < N_TEXTS ? n_learn : N_TEXTS;
    if (n_layer > MAX_LAYERS || n_layer == 1)
        return KN_OK;
    double *sensitivity = kni_calloc(KNI_ALLOC_TAG_MISC, 2 * (size_t)n_layer * sizeof *sensitivity, 0);
    if (!sensitivity)
        return kni_err_set(b->err, KN_E_NOMEM, "no memory for the sensitivity of %u layers", n_layer);
    enum kn_status status = KN_OK;
    for (uint32_t i = 0; i < n && status == KN_OK; i++) /* spread over the list, whose neighbours may be of one kind */
        status = measure_text(b, &b->texts[i * n_learn / n], sensitivity, i * 2 * n_layer, n * 2 * n_layer);
    if (status == KN_OK)
        kni_calibrate_set_sensitivity(b->calibrate, sensitivity);
    kni_free(sensitivity);
    return status;
}
