/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Opening, weights, and the first pass: sums and products of rows, part by part, each part by one worker.
 *
 *     x [256 tokens][width]  --transposed--> x' [width][256]      tile [64][width] += x' * x      product += tile
 *
 * Products of a block are made in float and added up in double. A float sum of 256 products of numbers whose mean square is
 * about 1 is off by some 256 * 2^-24 = 2^-16 at the very worst, in practice (errors have both signs) 2^-20 of the sum, with a new sign in every block:
 * relative to the trace of a covariance of width 2048 its eigenvalues move by less than 1e-5, where the smallest that any preset
 * codes is (step / 2)^2, about 1e-3. What double is for is the sum of thousands of blocks.
 */
#include "profile/calibrate_state.h"

#include <math.h>
#include <string.h>

#include "base/alloc.h"
#include "base/cpu.h"
#include "codec/profile/profile_format.h"
#include "codec/spectral/spectral.h"
#include "codec/spectral/spectral_rows.h"

#define WIDTH_WANTED 1536u /* of a basis: 8 layers of SmolLM2, 6 of Gemma 3 270M; wider ones gain little, and their bytes and work grow with the width */
#define WIDTH_OF_TWO 2048u /* two layers are worth more than that */
#define MIN_WEIGHT 0.1     /* of a layer's rms: pairs that never saw a query in calibration may see one later */
#define MAX_GAIN 8           /* quarter octaves; sensitivity is an estimate, and layers that seem to be worth nothing may be needed by other text */
#define GAIN_POWER 0.7      /* of the root that theory asks for: as good when measured, and less exposed to the estimate's noise */
#define TOKENS_PER_COLUMN 3u /* fewer, and the last third of a basis is noise */

/* Groups of equal size as far as they go: 18 layers in groups of at most 8 are 3 of 6. */
static uint32_t choose_group(const struct kni_kv_layout *kv)
{
    uint32_t row = kv->n_kv_head * kv->d_head, most = WIDTH_WANTED / row, n_groups;
    most = most < 2 && 2 * row <= WIDTH_OF_TWO ? 2 : most;
    most = most < 1 ? 1 : most > kv->n_layer ? kv->n_layer : most;
    n_groups = (kv->n_layer + most - 1) / most;
    return (kv->n_layer + n_groups - 1) / n_groups;
}

static enum kn_status check_opts(const struct kni_calibrate_opts *o, uint32_t *n_group, struct kn_err *err)
{
    const struct kni_kv_layout *kv = &o->kv;
    uint64_t row = (uint64_t)kv->n_kv_head * kv->d_head;
    if (!row || row % 32 || row > KNI_PROFILE_MAX_WIDTH)
        return kni_err_set(err, KN_E_UNSUPPORTED, "a profile needs KV heads times head width (%u x %u here) to be a multiple of 32, at most %u", kv->n_kv_head, kv->d_head,
                           KNI_PROFILE_MAX_WIDTH);
    *n_group = o->n_group ? o->n_group : choose_group(kv);
    if (*n_group > kv->n_layer || *n_group * row > KNI_PROFILE_MAX_WIDTH)
        return kni_err_set(err, KN_E_ARG, "n_group is %u: use 1 to %u layers, or 0", *n_group,
                           (uint32_t)(KNI_PROFILE_MAX_WIDTH / row < kv->n_layer ? KNI_PROFILE_MAX_WIDTH / row : kv->n_layer));
    return KN_OK;
}

static bool copy_rope(struct kni_calibrate *c, const struct kni_profile_rope *rope, uint32_t n_layer)
{
    size_t n_freqs = (size_t)rope->n_ropes * (rope->rope_dim / 2);
    double *freqs = kni_arena_alloc(&c->arena, n_freqs * sizeof *freqs, 0);
    uint8_t *layers = kni_arena_alloc(&c->arena, n_layer, 0);
    if (!freqs || !layers)
        return false;
    memcpy(freqs, rope->freqs, n_freqs * sizeof *freqs);
    memcpy(layers, rope->layers, n_layer);
    c->profile.rope = *rope;
    c->profile.rope.freqs = freqs;
    c->profile.rope.layers = layers;
    return true;
}

static bool open_part(struct kni_calibrate *c, uint32_t index)
{
    struct kni_profile_part *part = &c->profile.parts[index];
    struct kni_calibrate_part *own = &c->parts[index];
    kni_profile_part_shape(&c->profile, index, part);
    size_t width = part->width;
    part->n_rows = part->width;
    own->sum = kni_arena_alloc(&c->arena, width * sizeof *own->sum, 0);
    own->exponents = kni_arena_alloc(&c->arena, (size_t)part->n_layers * KNI_CALIBRATE_EXPONENTS * sizeof *own->exponents, 0);
    own->mean = kni_arena_alloc(&c->arena, width * sizeof *own->mean, 0);
    own->weight = kni_arena_alloc(&c->arena, width * sizeof *own->weight, 0);
    own->exponent = kni_arena_alloc(&c->arena, part->n_layers, 0);
    own->gain = kni_arena_alloc(&c->arena, part->n_layers, 0);
    bool ok = own->sum && own->exponents && own->mean && own->weight && own->exponent && own->gain;
    for (uint32_t k = 0; k < KNI_PROFILE_N_PRESETS; k++) {
        own->classes[k] = kni_arena_alloc(&c->arena, part->n_layers + width, 0);
        ok = ok && own->classes[k];
        part->classes[k] = own->classes[k];
    }
    for (size_t i = 0; ok && i < width; i++)
        own->weight[i] = 1;
    part->mean = own->mean;
    part->weight = own->weight;
    part->exponent = own->exponent;
    part->gain = own->gain;
    c->max_width = part->width > c->max_width ? part->width : c->max_width;
    return ok;
}

enum kn_status kni_calibrate_open(struct kni_calibrate **out, const struct kni_calibrate_opts *o, struct kn_err *err)
{
    *out = NULL;
    uint32_t n_group = 0;
    enum kn_status status = check_opts(o, &n_group, err);
    if (status)
        return status;
    struct kni_calibrate *c = kni_calloc(KNI_ALLOC_TAG_CODEC, sizeof *c, 64);
    if (!c)
        goto no_memory;
    kni_arena_init(&c->arena, KNI_ALLOC_TAG_CODEC, 0);
    c->threads = o->threads;
    kni_kernels_init(&c->kernels, kni_cpu_flags());
    struct kni_profile *p = &c->profile;
    memcpy(p->fingerprint, o->fingerprint, sizeof p->fingerprint);
    p->kv = o->kv;
    p->kv.type = 0;
    p->n_group = n_group;
    p->n_parts = 2 * ((o->kv.n_layer + n_group - 1) / n_group);
    p->n_sinks = o->n_sinks;
    p->rope = o->rope;
    const char *bad = kni_profile_check_shape(p);
    if (bad) {
        status = kni_err_set(err, KN_E_UNSUPPORTED, "a profile cannot hold this model: %s out of range", bad);
        goto done;
    }
    p->parts = kni_arena_alloc(&c->arena, p->n_parts * sizeof *p->parts, 0);
    c->parts = kni_arena_alloc(&c->arena, p->n_parts * sizeof *c->parts, 0);
    if (!p->parts || !c->parts || !copy_rope(c, &o->rope, o->kv.n_layer))
        goto no_memory;
    for (uint32_t i = 0; i < p->n_parts; i++)
        if (!open_part(c, i))
            goto no_memory;
    c->scratch_floats = (size_t)c->max_width * (2 * KNI_CALIBRATE_BLOCK + KNI_CALIBRATE_TILE + 16) + KNI_CALIBRATE_BLOCK * KNI_PROFILE_MAX_LAYERS / 4;
    c->scratch = kni_alloc(KNI_ALLOC_TAG_CODEC, kni_threads_count(c->threads) * c->scratch_floats * sizeof *c->scratch, 64);
    if (!c->scratch)
        goto no_memory;
    *out = c;
    return KN_OK;
no_memory:
    status = kni_err_set(err, KN_E_NOMEM, "no memory for a calibration of %u parts", c ? c->profile.n_parts : 0);
done:
    kni_calibrate_close(&c);
    return status;
}

void kni_calibrate_close(struct kni_calibrate **calibrate)
{
    struct kni_calibrate *c = *calibrate;
    if (!c)
        return;
    for (uint32_t i = 0; c->parts && i < c->profile.n_parts; i++) {
        kni_free(c->parts[i].product);
        kni_free(c->parts[i].basis);
        kni_free(c->parts[i].histogram);
        kni_free(c->parts[i].likeness);
    }
    kni_free(c->scratch);
    kni_arena_fini(&c->arena);
    kni_free(c);
    *calibrate = NULL;
}

uint32_t kni_calibrate_min_tokens(const struct kni_calibrate *c)
{
    return TOKENS_PER_COLUMN * c->max_width;
}

struct kni_profile *kni_calibrate_profile(struct kni_calibrate *c)
{
    return &c->profile;
}

/* Power of a component, that of its pair if RoPE turns it. */
static double pair_power(const struct kni_profile_rope *rope, const double *head, uint32_t i)
{
    uint32_t half = rope->rope_dim / 2;
    if (i >= rope->rope_dim)
        return head[i];
    return 0.5 * (head[i] + (rope->neox ? head[i < half ? i + half : i - half] : head[i ^ 1]));
}

void kni_calibrate_set_query_power(struct kni_calibrate *c, const double *power)
{
    const struct kni_kv_layout *kv = &c->profile.kv;
    uint32_t row = kv->n_kv_head * kv->d_head;
    for (uint32_t layer = 0; layer < kv->n_layer; layer++) {
        const double *p = power + (size_t)layer * row;
        float *w = c->parts[layer / c->profile.n_group * 2].weight + (size_t)(layer % c->profile.n_group) * row;
        double mean = 0;
        for (uint32_t i = 0; i < row; i++)
            mean += p[i] / row;
        if (!(mean > 0)) /* a layer that asks for nothing: nothing to go by */
            continue;
        for (uint32_t i = 0; i < row; i++)
            w[i] = (float)fmax(sqrt(pair_power(&c->profile.rope, p + i / kv->d_head * kv->d_head, i % kv->d_head) / mean), MIN_WEIGHT);
    }
}

void kni_calibrate_set_sensitivity(struct kni_calibrate *c, const double *sensitivity)
{
    uint32_t n_layer = c->profile.kv.n_layer;
    for (uint32_t is_v = 0; is_v < 2; is_v++) {
        const double *s = sensitivity + (size_t)is_v * n_layer;
        double sum = 0;
        uint32_t n = 0;
        for (uint32_t l = 0; l < n_layer; l++)
            if (s[l] > 0) {
                sum += log2(s[l]);
                n++;
            }
        for (uint32_t l = 0; l < n_layer; l++) { /* quarter octaves of a root: 4 * log2(...) / 2 */
            double gain = s[l] > 0 ? rint(2 * GAIN_POWER * (log2(s[l]) - sum / n)) : -MAX_GAIN;
            c->parts[l / c->profile.n_group * 2 + is_v].gain[l % c->profile.n_group] = (int8_t)(gain < -MAX_GAIN ? -MAX_GAIN : gain > MAX_GAIN ? MAX_GAIN : gain);
        }
        if (!n)
            for (uint32_t l = 0; l < n_layer; l++)
                c->parts[l / c->profile.n_group * 2 + is_v].gain[l % c->profile.n_group] = 0;
    }
}

/* ---- the pass over texts */

struct kni_calibrate_scratch kni_calibrate_scratch_of(const struct kni_calibrate *c, uint32_t worker)
{
    struct kni_calibrate_scratch s = {.x = c->scratch + worker * c->scratch_floats};
    s.other = s.x + (size_t)KNI_CALIBRATE_BLOCK * c->max_width;
    s.tile = s.other + (size_t)(KNI_CALIBRATE_BLOCK + 16) * c->max_width;
    s.exponents = (int8_t *)(s.tile + (size_t)KNI_CALIBRATE_TILE * c->max_width);
    return s;
}

uint32_t kni_calibrate_rows(const struct kni_calibrate *c, uint32_t part, uint32_t first_token, struct kni_calibrate_scratch *s)
{
    const struct kni_profile_part *p = &c->profile.parts[part];
    uint32_t n = first_token >= c->n_tokens ? 0 : c->n_tokens - first_token < KNI_CALIBRATE_BLOCK ? c->n_tokens - first_token : KNI_CALIBRATE_BLOCK;
    if (!n)
        return 0;
    kni_spectral_rows(c->view, &c->profile.rope, p->first_layer, p->n_layers, part & 1, p->weight, first_token, n, s->x, s->exponents);
    uint32_t row = p->width / p->n_layers;
    for (uint32_t l = 0; l < p->n_layers; l++)
        for (uint32_t t = 0; t < n && p->gain[l]; t++)
            c->kernels.scale(s->x + (size_t)t * p->width + (size_t)l * row, kni_spectral_scale(p->gain[l]), row);
    return n;
}

void kni_calibrate_share(struct kni_calibrate *c, const struct kni_kv_host *view, uint32_t n_tokens, kni_threads_fn fn)
{
    c->view = view;
    c->n_tokens = n_tokens;
    atomic_store_explicit(&c->next_part, 0, memory_order_relaxed);
    kni_threads_run(c->threads, fn, c);
}

static void transpose(float *out, const float *x, uint32_t n, uint32_t width)
{
    for (uint32_t i = 0; i < width; i += 16)
        for (uint32_t t = 0; t < n; t++)
            for (uint32_t k = 0; k < 16; k++)
                out[(size_t)(i + k) * KNI_CALIBRATE_BLOCK + t] = x[(size_t)t * width + i + k];
}

static void add_block(const struct kni_calibrate *c, uint32_t index, uint32_t n, const struct kni_calibrate_scratch *s)
{
    const struct kni_profile_part *part = &c->profile.parts[index];
    struct kni_calibrate_part *own = &c->parts[index];
    uint32_t width = part->width;
    for (uint32_t t = 0; t < n; t++)
        for (uint32_t i = 0; i < width; i++)
            own->sum[i] += (double)s->x[(size_t)t * width + i];
    for (uint32_t l = 0; l < part->n_layers; l++)
        for (uint32_t t = 0; t < n; t++)
            own->exponents[l * KNI_CALIBRATE_EXPONENTS + (uint32_t)(s->exponents[(size_t)l * n + t] - KNI_CALIBRATE_EXPONENT_MIN)]++;
    transpose(s->other, s->x, n, width);
    for (uint32_t row0 = 0; row0 < width; row0 += KNI_CALIBRATE_TILE) {
        uint32_t m = width - row0 < KNI_CALIBRATE_TILE ? width - row0 : KNI_CALIBRATE_TILE, n_cols = width - row0;
        c->kernels.gemm(&(struct kni_gemm_args){.m = m, .n = n_cols, .k = n, .a = s->other + (size_t)row0 * KNI_CALIBRATE_BLOCK, .lda = KNI_CALIBRATE_BLOCK,
            .b = s->x + row0, .ldb = width, .panel_stride = KNI_GEMM_PANEL, .c = s->tile, .ldc = n_cols});
        for (uint32_t i = 0; i < m; i++) {
            double *to = own->product + (size_t)(row0 + i) * width + row0;
            const float *from = s->tile + (size_t)i * n_cols;
            for (uint32_t k = i; k < n_cols; k++)
                to[k] += (double)from[k];
        }
    }
}

static void add_parts(void *arg, uint32_t worker, uint32_t n_workers)
{
    struct kni_calibrate *c = arg;
    struct kni_calibrate_scratch s = kni_calibrate_scratch_of(c, worker);
    (void)n_workers;
    for (uint32_t part; (part = atomic_fetch_add_explicit(&c->next_part, 1, memory_order_relaxed)) < c->profile.n_parts;)
        for (uint32_t at = c->profile.n_sinks, n; (n = kni_calibrate_rows(c, part, at, &s)); at += n)
            add_block(c, part, n, &s);
}

enum kn_status kni_calibrate_add(struct kni_calibrate *c, const struct kni_kv_host *view, uint32_t n_tokens)
{
    for (uint32_t i = 0; i < c->profile.n_parts; i++) {
        size_t width = c->profile.parts[i].width;
        if (!c->parts[i].product)
            c->parts[i].product = kni_calloc(KNI_ALLOC_TAG_CODEC, width * width * sizeof *c->parts[i].product, 64);
        if (!c->parts[i].product)
            return KN_E_NOMEM;
    }
    if (n_tokens <= c->profile.n_sinks)
        return KN_OK;
    kni_calibrate_share(c, view, n_tokens, add_parts);
    c->n_added += n_tokens - c->profile.n_sinks;
    c->profile.n_calibration_tokens = c->n_added;
    return KN_OK;
}
