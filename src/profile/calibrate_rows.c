/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The second pass: a histogram of each coefficient's magnitude, and how alike neighbouring tokens are in it. Row counts and classes follow from
 * these for any step.
 *
 *     bins are logarithmic, 16 an octave from 2^-8 to 2^8: their number is the top bits of the float
 *
 * so a step can be tried without looking at a text again, and memory is 1 KB a coefficient.
 */
#include <math.h>
#include <string.h>

#include "base/alloc.h"
#include "base/half.h"
#include "profile/calibrate_state.h"

#define BIN_SHIFT 19u /* of a float's bits: 4 of mantissa stay */
#define FIRST_BIN ((127u - 8u) << 4)

static uint32_t bin_of(float y)
{
    uint32_t at = (kni_f32_bits(y) & 0x7fffffffu) >> BIN_SHIFT;
    return at < FIRST_BIN ? 0 : at - FIRST_BIN >= KNI_CALIBRATE_BINS ? KNI_CALIBRATE_BINS - 1 : at - FIRST_BIN;
}

/* Where bin i begins; the first one also holds all that is less, the last one all that is more. */
static double bin_start(uint32_t i)
{
    return i ? (double)kni_f32_from_bits((FIRST_BIN + i) << BIN_SHIFT) : 0;
}

static void count_block(const struct kni_calibrate *c, uint32_t index, uint32_t n, const struct kni_calibrate_scratch *s)
{
    const struct kni_profile_part *part = &c->profile.parts[index];
    uint32_t width = part->width;
    double *power = c->parts[index].likeness, *product = power + width;
    float *rows = s->other, *panel = s->other + (size_t)KNI_GEMM_PANEL * width;
    for (uint32_t t = 0; t < n; t++)
        for (uint32_t i = 0; i < width; i++)
            s->x[(size_t)t * width + i] -= part->mean[i];
    for (uint32_t row0 = 0; row0 < width; row0 += KNI_GEMM_PANEL) {
        c->kernels.from_half[KN_KV_TYPE_BF16](rows, part->basis + (size_t)row0 * width, KNI_GEMM_PANEL * width);
        c->kernels.pack16(panel, rows, width, width);
        c->kernels.gemm(&(struct kni_gemm_args){.m = n, .n = KNI_GEMM_PANEL, .k = width, .a = s->x, .lda = width, .b = panel, .ldb = KNI_GEMM_PANEL, .c = s->tile, .ldc = KNI_GEMM_PANEL});
        for (uint32_t t = 0; t < n; t++)
            for (uint32_t k = 0; k < KNI_GEMM_PANEL; k++) {
                float y = s->tile[t * KNI_GEMM_PANEL + k], before = t ? s->tile[(t - 1) * KNI_GEMM_PANEL + k] : 0;
                c->parts[index].histogram[(size_t)(row0 + k) * KNI_CALIBRATE_BINS + bin_of(y)]++;
                power[row0 + k] += (double)y * (double)y;
                product[row0 + k] += (double)y * (double)before;
            }
    }
}

static void count_parts(void *arg, uint32_t worker, uint32_t n_workers)
{
    struct kni_calibrate *c = arg;
    struct kni_calibrate_scratch s = kni_calibrate_scratch_of(c, worker);
    (void)n_workers;
    for (uint32_t part; (part = atomic_fetch_add_explicit(&c->next_part, 1, memory_order_relaxed)) < c->profile.n_parts;)
        for (uint32_t at = c->profile.n_sinks, n; (n = kni_calibrate_rows(c, part, at, &s)); at += n)
            count_block(c, part, n, &s);
}

enum kn_status kni_calibrate_count(struct kni_calibrate *c, const struct kni_kv_host *view, uint32_t n_tokens)
{
    for (uint32_t i = 0; i < c->profile.n_parts; i++) {
        if (!c->parts[i].histogram)
            c->parts[i].histogram = kni_calloc(KNI_ALLOC_TAG_CODEC, (size_t)c->profile.parts[i].width * KNI_CALIBRATE_BINS * sizeof *c->parts[i].histogram, 0);
        if (!c->parts[i].likeness)
            c->parts[i].likeness = kni_calloc(KNI_ALLOC_TAG_CODEC, (size_t)c->profile.parts[i].width * 2 * sizeof *c->parts[i].likeness, 0);
        if (!c->parts[i].histogram || !c->parts[i].likeness)
            return KN_E_NOMEM;
    }
    if (n_tokens <= c->profile.n_sinks)
        return KN_OK;
    kni_calibrate_share(c, view, n_tokens, count_parts);
    c->n_counted += n_tokens - c->profile.n_sinks;
    return KN_OK;
}

/* Integral of the symbol's magnitude rint(x / step) from 0 to u. */
static double symbols_below(double u, double step)
{
    double k = floor(u / step + 0.5);
    return k > 0 ? step * k * (k - 1) / 2 + k * (u - (k - 0.5) * step) : 0;
}

/* Of one coefficient at one step: mean |symbol|, and the share of symbols that are not zero. Inside a bin, magnitudes are taken to be spread evenly. */
static double mean_symbol(const uint32_t *histogram, uint64_t n, double step, double *share)
{
    double sum = 0, above = 0;
    for (uint32_t i = 0; i < KNI_CALIBRATE_BINS; i++) {
        if (!histogram[i])
            continue;
        double from = bin_start(i), to = bin_start(i + 1), middle = step / 2;
        sum += histogram[i] * (symbols_below(to, step) - symbols_below(from, step)) / (to - from);
        above += histogram[i] * (to <= middle ? 0 : from >= middle ? 1 : (to - middle) / (to - from));
    }
    *share = above / (double)n;
    return sum / (double)n;
}

static double mean_exponent(const struct kni_calibrate *c, uint32_t part, uint32_t layer)
{
    const uint64_t *count = c->parts[part].exponents + layer * KNI_CALIBRATE_EXPONENTS;
    double sum = 0;
    for (int e = 0; e < (int)KNI_CALIBRATE_EXPONENTS; e++)
        sum += (double)count[e] * fabs((double)(e + KNI_CALIBRATE_EXPONENT_MIN - c->parts[part].exponent[layer]));
    return sum / (double)c->n_added;
}

void kni_calibrate_set_preset(struct kni_calibrate *c, enum kni_profile_preset preset, float step_k, float step_v, double min_share)
{
    for (uint32_t i = 0; i < c->profile.n_parts; i++) {
        struct kni_profile_part *part = &c->profile.parts[i];
        uint8_t *classes = c->parts[i].classes[preset];
        uint32_t n_rows = 0;
        part->step[preset] = i & 1 ? step_v : step_k;
        for (uint32_t l = 0; l < part->n_layers; l++)
            classes[l] = kni_rans_class_of_exponents(mean_exponent(c, i, l));
        for (uint32_t row = 0; row < part->width; row++) {
            double share, mean = mean_symbol(c->parts[i].histogram + (size_t)row * KNI_CALIBRATE_BINS, c->n_counted, (double)part->step[preset], &share);
            const double *likeness = c->parts[i].likeness;
            classes[part->n_layers + row] = kni_rans_class_of_row(mean, likeness[row] > 0 ? likeness[part->width + row] / likeness[row] : 0);
            n_rows += share > min_share;
        }
        n_rows = (n_rows + 15) / 16 * 16;
        part->rows[preset] = n_rows < 16 ? 16 : n_rows;
    }
}

void kni_calibrate_trim(struct kni_calibrate *c)
{
    for (uint32_t i = 0; i < c->profile.n_parts; i++) {
        struct kni_profile_part *part = &c->profile.parts[i];
        part->n_rows = 0;
        for (uint32_t k = 0; k < KNI_PROFILE_N_PRESETS; k++)
            part->n_rows = part->rows[k] > part->n_rows ? part->rows[k] : part->n_rows;
    }
}
