/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What KVTC learns from calibration texts: means and PCA of each part, and how many bits each group of components gets.
 *
 * Allocation: best[i] is the least cost of components 0..i, cost = squared error a token + lambda * bits a token, over all last groups;
 * groups begin at multiples of 16 and have 16, 64, 256 or 1024 components. Errors of every candidate are measured once on the sample.
 * lambda is the same for all parts of K, and for all of V, and is found by bisection.
 */
#include <math.h>
#include <string.h>

#include "base/alloc.h"
#include "base/cpu.h"
#include "base/status.h"
#include "measure/baseline/kvtc_state.h"
#include "profile/eigen.h"

#define GROUP_WIDTH 2048u
#define RANGE_BITS 32u /* shift and scale of a group */

static const uint32_t sizes[] = {16, 64, 256, 1024}, types[] = {0, 2, 4, 8};
enum { N_SIZES = sizeof sizes / sizeof *sizes, N_TYPES = sizeof types / sizeof *types };

static double *error_at(const struct kni_kvtc_part *p, uint32_t start, uint32_t size)
{
    return p->errors + ((size_t)(start / KNI_KVTC_UNIT) * N_SIZES + size) * N_TYPES;
}

/* ---- memory */

static bool open_part(struct kni_kvtc *k, uint32_t index)
{
    struct kni_kvtc_part *p = &k->parts[index];
    uint32_t n_layer = k->opts.kv.n_layer;
    p->first_layer = index / 2 * k->opts.n_group;
    p->n_layers = n_layer - p->first_layer < k->opts.n_group ? n_layer - p->first_layer : k->opts.n_group;
    p->width = p->n_layers * k->row;
    size_t w = p->width;
    k->max_width = p->width > k->max_width ? p->width : k->max_width;
    p->sum = kni_calloc(KNI_ALLOC_TAG_CODEC, w * sizeof *p->sum, 64);
    p->product = kni_calloc(KNI_ALLOC_TAG_CODEC, w * w * sizeof *p->product, 64);
    p->mean = kni_alloc(KNI_ALLOC_TAG_CODEC, w * sizeof *p->mean, 64);
    p->sample = kni_alloc(KNI_ALLOC_TAG_CODEC, KNI_KVTC_SAMPLE * w * sizeof *p->sample, 64);
    p->groups = kni_alloc(KNI_ALLOC_TAG_CODEC, w / KNI_KVTC_UNIT * sizeof *p->groups, 0);
    p->errors = kni_alloc(KNI_ALLOC_TAG_CODEC, w / KNI_KVTC_UNIT * N_SIZES * N_TYPES * sizeof *p->errors, 0);
    return p->sum && p->product && p->mean && p->sample && p->groups && p->errors;
}

enum kn_status kni_kvtc_open(struct kni_kvtc **out, const struct kni_kvtc_opts *o)
{
    *out = NULL;
    uint32_t row = o->kv.n_kv_head * o->kv.d_head, n_workers = kni_threads_count(o->threads);
    if (!row || row % KNI_KVTC_UNIT)
        return KN_E_UNSUPPORTED;
    struct kni_kvtc *k = kni_calloc(KNI_ALLOC_TAG_CODEC, sizeof *k, 64);
    if (!k)
        return KN_E_NOMEM;
    k->opts = *o;
    k->row = row;
    if (!k->opts.n_group) {
        uint32_t most = GROUP_WIDTH / row ? GROUP_WIDTH / row : 1, n = (o->kv.n_layer + most - 1) / most;
        k->opts.n_group = (o->kv.n_layer + n - 1) / n; /* evened out */
    }
    kni_kernels_init(&k->kernels, kni_cpu_flags());
    k->n_parts = (o->kv.n_layer + k->opts.n_group - 1) / k->opts.n_group * 2;
    k->parts = kni_calloc(KNI_ALLOC_TAG_CODEC, k->n_parts * sizeof *k->parts, 0);
    bool ok = k->parts != NULL;
    for (uint32_t i = 0; i < k->n_parts && ok; i++)
        ok = open_part(k, i);
    size_t block = (size_t)n_workers * KNI_KVTC_BLOCK * k->max_width;
    k->x = ok ? kni_alloc(KNI_ALLOC_TAG_CODEC, block * sizeof *k->x, 64) : NULL;
    k->y = ok ? kni_alloc(KNI_ALLOC_TAG_CODEC, block * sizeof *k->y, 64) : NULL;
    k->tiles = ok ? kni_alloc(KNI_ALLOC_TAG_CODEC, (size_t)n_workers * KNI_KVTC_TILE * k->max_width * sizeof *k->tiles, 64) : NULL;
    k->cos_row = kni_alloc(KNI_ALLOC_TAG_CODEC, (size_t)n_workers * o->kv.d_head * sizeof *k->cos_row, 64);
    k->sin_row = kni_alloc(KNI_ALLOC_TAG_CODEC, (size_t)n_workers * o->kv.d_head * sizeof *k->sin_row, 64);
    if (!k->x || !k->y || !k->tiles || !k->cos_row || !k->sin_row) {
        kni_kvtc_close(&k);
        return KN_E_NOMEM;
    }
    *out = k;
    return KN_OK;
}

void kni_kvtc_close(struct kni_kvtc **kvtc)
{
    struct kni_kvtc *k = *kvtc;
    if (!k)
        return;
    for (uint32_t i = 0; k->parts && i < k->n_parts; i++) {
        struct kni_kvtc_part *p = &k->parts[i];
        kni_free(p->sum);
        kni_free(p->product);
        kni_free(p->mean);
        kni_free(p->basis);
        kni_free(p->forward);
        kni_free(p->sample);
        kni_free(p->groups);
        kni_free(p->errors);
    }
    kni_free(k->parts);
    kni_free(k->x);
    kni_free(k->y);
    kni_free(k->tiles);
    kni_free(k->cos_row);
    kni_free(k->sin_row);
    kni_free(k);
    *kvtc = NULL;
}

/* ---- sums */

static void add_block(struct kni_kvtc *k, struct kni_kvtc_part *p, uint32_t n, const float *x, float *transposed, float *tile)
{
    uint32_t w = p->width;
    for (uint32_t t = 0; t < n; t++)
        for (uint32_t i = 0; i < w; i++) {
            p->sum[i] += (double)x[(size_t)t * w + i];
            transposed[(size_t)i * KNI_KVTC_BLOCK + t] = x[(size_t)t * w + i];
        }
    for (uint32_t row0 = 0; row0 < w; row0 += KNI_KVTC_TILE) {
        uint32_t m = w - row0 < KNI_KVTC_TILE ? w - row0 : KNI_KVTC_TILE, n_cols = w - row0;
        struct kni_gemm_args g = {.m = m, .n = n_cols, .k = n, .a = transposed + (size_t)row0 * KNI_KVTC_BLOCK, .lda = KNI_KVTC_BLOCK, .b = x + row0, .ldb = w,
                                  .panel_stride = KNI_GEMM_PANEL, .c = tile, .ldc = n_cols};
        k->kernels.gemm(&g);
        for (uint32_t i = 0; i < m; i++)
            for (uint32_t c = i; c < n_cols; c++)
                p->product[(size_t)(row0 + i) * w + row0 + c] += (double)tile[(size_t)i * n_cols + c];
    }
}

/* On every worker. The sample: every 16th token seen, over again when it is full, so that it holds rows of several texts. */
static void add_parts(void *arg, uint32_t worker, uint32_t n_workers)
{
    struct kni_kvtc *k = arg;
    float *x = k->x + (size_t)worker * KNI_KVTC_BLOCK * k->max_width, *y = k->y + (size_t)worker * KNI_KVTC_BLOCK * k->max_width;
    (void)n_workers;
    for (uint32_t i; (i = atomic_fetch_add_explicit(&k->next_part, 1, memory_order_relaxed)) < k->n_parts;) {
        struct kni_kvtc_part *p = &k->parts[i];
        for (uint32_t at = KNI_KVTC_SINKS; at < k->n_tokens;) {
            uint32_t n = k->n_tokens - at < KNI_KVTC_BLOCK ? k->n_tokens - at : KNI_KVTC_BLOCK;
            kni_kvtc_rows(k, k->view, i, at, n, worker, x);
            for (uint32_t t = 0; t < n; t++) {
                uint64_t seen = k->n_seen + at - KNI_KVTC_SINKS + t;
                if (seen % 16 == 0)
                    memcpy(p->sample + (size_t)(seen / 16 % KNI_KVTC_SAMPLE) * p->width, x + (size_t)t * p->width, p->width * sizeof *x);
            }
            add_block(k, p, n, x, y, k->tiles + (size_t)worker * KNI_KVTC_TILE * k->max_width);
            at += n;
        }
    }
}

static void share(struct kni_kvtc *k, kni_threads_fn fn)
{
    atomic_store_explicit(&k->next_part, 0, memory_order_relaxed);
    kni_threads_run(k->opts.threads, fn, k);
}

void kni_kvtc_add(struct kni_kvtc *k, const struct kni_kv_host *view, uint32_t n_tokens)
{
    if (n_tokens <= KNI_KVTC_SINKS)
        return;
    k->view = view;
    k->n_tokens = n_tokens;
    share(k, add_parts);
    k->n_seen += n_tokens - KNI_KVTC_SINKS;
}

/* ---- bases */

static enum kn_status solve_part(struct kni_kvtc *k, struct kni_kvtc_part *p, struct kni_eigen *eigen, struct kn_err *err)
{
    size_t w = p->width;
    double n = (double)k->n_seen;
    for (size_t i = 0; i < w; i++) {
        p->mean[i] = (float)(p->sum[i] / n);
        for (size_t c = i; c < w; c++)
            p->product[i * w + c] = p->product[i * w + c] / n - p->sum[i] / n * (p->sum[c] / n);
    }
    enum kn_status status = kni_eigen_solve(eigen, p->product, p->width, err);
    if (status)
        return status;
    p->basis = kni_alloc(KNI_ALLOC_TAG_CODEC, w * w * sizeof *p->basis, 64);
    p->forward = kni_alloc(KNI_ALLOC_TAG_CODEC, w * w * sizeof *p->forward, 64);
    if (!p->basis || !p->forward)
        return kni_err_set(err, KN_E_NOMEM, "no memory for a basis of %u components", p->width);
    for (size_t i = 0; i < w; i++) /* descending variance */
        for (size_t c = 0; c < w; c++)
            p->basis[i * w + c] = (float)p->product[(w - 1 - i) * w + c];
    for (size_t i = 0; i < w; i += KNI_GEMM_PANEL)
        k->kernels.pack16(p->forward + i * w, p->basis + i * w, w, p->width);
    kni_free(p->product);
    p->product = NULL;
    return KN_OK;
}

/* Squared error a token of components first.. + n with each type, over the sample. */
static void measure(const struct kni_kvtc *k, const struct kni_kvtc_part *p, uint32_t first, uint32_t n, double *errors)
{
    for (uint32_t type = 0; type < N_TYPES; type++) {
        double sum = 0;
        for (uint64_t t = 0; t < k->n_sampled; t++) {
            const float *y = p->sample + t * p->width + first;
            struct kni_kvtc_range r = types[type] ? kni_kvtc_range_of(y, n, types[type]) : (struct kni_kvtc_range){0};
            for (uint32_t i = 0; i < n; i++) {
                float e = y[i];
                if (types[type])
                    e -= r.low + r.scale * (float)kni_kvtc_code(&r, y[i], types[type]);
                sum += (double)(e * e);
            }
        }
        errors[type] = sum / (double)k->n_sampled;
    }
}

static void measure_parts(void *arg, uint32_t worker, uint32_t n_workers)
{
    struct kni_kvtc *k = arg;
    float *y = k->y + (size_t)worker * KNI_KVTC_BLOCK * k->max_width;
    (void)n_workers;
    for (uint32_t i; (i = atomic_fetch_add_explicit(&k->next_part, 1, memory_order_relaxed)) < k->n_parts;) {
        struct kni_kvtc_part *p = &k->parts[i];
        for (uint32_t t = 0; t < k->n_sampled; t += KNI_KVTC_BLOCK) {
            uint32_t n = (uint32_t)k->n_sampled - t < KNI_KVTC_BLOCK ? (uint32_t)k->n_sampled - t : KNI_KVTC_BLOCK;
            float *x = p->sample + (size_t)t * p->width;
            kni_kvtc_forward(k, i, n, x, y);
            memcpy(x, y, (size_t)n * p->width * sizeof *x);
        }
        for (uint32_t start = 0; start < p->width; start += KNI_KVTC_UNIT)
            for (uint32_t s = 0; s < N_SIZES; s++)
                if (start + sizes[s] <= p->width)
                    measure(k, p, start, sizes[s], error_at(p, start, s));
    }
}

enum kn_status kni_kvtc_solve(struct kni_kvtc *k, struct kn_err *err)
{
    if (k->n_seen < k->max_width)
        return kni_err_set(err, KN_E_ARG, "%llu tokens of calibration text for a PCA of %u components: give more text", (unsigned long long)k->n_seen, k->max_width);
    struct kni_eigen eigen;
    enum kn_status status = kni_eigen_open(&eigen, k->max_width, err);
    for (uint32_t i = 0; i < k->n_parts && status == KN_OK; i++)
        status = solve_part(k, &k->parts[i], &eigen, err);
    k->n_sampled = (k->n_seen + 15) / 16 < KNI_KVTC_SAMPLE ? (k->n_seen + 15) / 16 : KNI_KVTC_SAMPLE;
    if (status == KN_OK)
        share(k, measure_parts);
    kni_eigen_close(&eigen);
    return status;
}

/* ---- allocation */

struct choice { double cost; uint32_t size, type; };

/* The part's best groups for k->lambda; returns their bits a token. */
static double allocate_part(const struct kni_kvtc *k, struct kni_kvtc_part *p, struct choice *best)
{
    uint32_t n_units = p->width / KNI_KVTC_UNIT;
    best[0] = (struct choice){0};
    for (uint32_t i = 1; i <= n_units; i++)
        best[i] = (struct choice){.cost = INFINITY};
    for (uint32_t i = 0; i < n_units; i++)
        for (uint32_t s = 0; s < N_SIZES; s++) {
            uint32_t end = i + sizes[s] / KNI_KVTC_UNIT;
            if (end > n_units)
                continue;
            const double *errors = error_at(p, i * KNI_KVTC_UNIT, s);
            for (uint32_t type = 0; type < N_TYPES; type++) {
                double bits = types[type] ? sizes[s] * types[type] + RANGE_BITS : 0, cost = best[i].cost + errors[type] + k->lambda * bits;
                if (cost < best[end].cost)
                    best[end] = (struct choice){.cost = cost, .size = s, .type = type};
            }
        }
    double sum = 0;
    p->n_groups = 0;
    for (uint32_t end = n_units; end;) {
        uint32_t n = sizes[best[end].size], bits = types[best[end].type];
        end -= n / KNI_KVTC_UNIT;
        if (!bits)
            continue;
        p->groups[p->n_groups++] = (struct kni_kvtc_group){.first = end * KNI_KVTC_UNIT, .n = n, .bits = bits};
        sum += n * bits + RANGE_BITS;
    }
    return sum;
}

enum kn_status kni_kvtc_allocate(struct kni_kvtc *k, double bits)
{
    struct choice *best = kni_alloc(KNI_ALLOC_TAG_CODEC, (k->max_width / KNI_KVTC_UNIT + 1) * sizeof *best, 0);
    if (!best)
        return KN_E_NOMEM;
    for (uint32_t is_v = 0; is_v < 2; is_v++) {
        double low = 1e-12, high = 1e12, budget = 0;
        for (uint32_t i = is_v; i < k->n_parts; i += 2)
            budget += bits * k->parts[i].width;
        for (unsigned step = 0; step < 80; step++) { /* high always keeps to the budget */
            double used = 0;
            k->lambda = sqrt(low * high);
            for (uint32_t i = is_v; i < k->n_parts; i += 2)
                used += allocate_part(k, &k->parts[i], best);
            *(used > budget ? &low : &high) = k->lambda;
        }
        k->lambda = high;
        for (uint32_t i = is_v; i < k->n_parts; i += 2)
            allocate_part(k, &k->parts[i], best);
    }
    kni_free(best);
    return KN_OK;
}
