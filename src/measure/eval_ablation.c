/* SPDX-License-Identifier: Apache-2.0 */
/*
 * See eval_ablation.h. All rows but the first go through the spectral transform itself, with a profile made for the purpose: an identity
 * for a basis where there is none, frequencies of zero where keys stay rotated, all rows of a basis, the steps of medium.
 */
#include "measure/eval_ablation.h"

#include <math.h>
#include <string.h>

#include "base/alloc.h"
#include "base/cpu.h"
#include "base/half.h"
#include "base/status.h"
#include "codec/spectral/spectral.h"

#define MEDIUM KNI_PROFILE_PRESET_MEDIUM
#define ESCAPE_BITS 16.0
#define UNIFORM_LEVELS 4097 /* integers of the first row beyond +-2048 share the last ones' counts */

enum step { STEP_UNIFORM, STEP_SCALE, STEP_UNROTATED, STEP_KLT_1, STEP_KLT_G, STEP_WEIGHTS };

static const char *const names[KNI_EVAL_ABLATION_STEPS] = {"uniform", "+ row scale", "+ pre-RoPE", "+ KLT 1", "+ KLT G", "+ weights"};

const char *kni_eval_ablation_name(uint32_t step)
{
    return names[step];
}

bool kni_eval_ablation_has(const struct kni_eval_ablation *a, uint32_t step)
{
    bool learned = step == STEP_KLT_1 || step == STEP_KLT_G;
    return a->profile && (!learned || (a->calibration && a->calibration->single && a->calibration->grouped));
}

static double entropy_bits(const uint32_t *counts, uint32_t n)
{
    double bits = 0, total = 0;
    for (uint32_t i = 0; i < n; i++)
        total += counts[i];
    for (uint32_t i = 0; i < n; i++)
        bits -= counts[i] ? counts[i] * log2(counts[i] / total) : 0;
    return bits;
}

/* The sinks, exact, in 16 bits. */
static void book_sinks(const struct kni_eval_ablation *a, struct kni_account *account)
{
    struct kni_kv_host clean = kni_eval_bed_clean(a->bed), coded = kni_eval_bed_coded(a->bed);
    struct kni_span sinks = {.n_tokens = a->profile->n_sinks};
    const struct kni_kv_layout *l = &a->bed->kv;
    for (uint32_t part = 0; part < 2 * l->n_layer; part++)
        for (uint32_t head = 0; head < l->n_kv_head; head++)
            for (uint32_t t = 0; t < sinks.n_tokens; t++)
                memcpy(kni_kv_row(&coded, part / 2, part % 2, head, t), kni_kv_row(&clean, part / 2, part % 2, head, t), l->d_head * sizeof(uint16_t));
    double bytes = (double)kni_span_values(&clean, sinks) * 2;
    account->k_bytes += bytes;
    account->v_bytes += bytes;
}

/* ---- the first row */

/* One layer's K or V: rounds to a step, counts each component's integers over the prefix. counts: [UNIFORM_LEVELS]. */
static double code_uniform(const struct kni_eval_ablation *a, uint32_t part, uint32_t *counts)
{
    struct kni_kv_host clean = kni_eval_bed_clean(a->bed), coded = kni_eval_bed_coded(a->bed);
    const struct kni_kv_layout *l = &a->bed->kv;
    bool f16 = l->type == KN_KV_TYPE_F16;
    double power = 0, bits = 0;
    for (uint32_t head = 0; head < l->n_kv_head; head++)
        for (uint32_t t = a->profile->n_sinks; t < a->bed->n_prefix; t++) {
            const uint16_t *row = kni_kv_row(&clean, part / 2, part % 2, head, t);
            for (uint32_t i = 0; i < l->d_head; i++) {
                double x = f16 ? kni_f16_to_f32(row[i]) : kni_bf16_to_f32(row[i]);
                power += x * x;
            }
        }
    uint32_t group = part / 2 / a->profile->n_group;
    float rms = (float)sqrt(power / ((double)l->n_kv_head * l->d_head * (a->bed->n_prefix - a->profile->n_sinks)));
    float step = a->profile->parts[group * 2 + part % 2].step[MEDIUM] * rms;
    for (uint32_t head = 0; head < l->n_kv_head; head++)
        for (uint32_t i = 0; i < l->d_head; i++) {
            memset(counts, 0, UNIFORM_LEVELS * sizeof *counts);
            for (uint32_t t = a->profile->n_sinks; t < a->bed->n_prefix; t++) {
                uint16_t x = kni_kv_row(&clean, part / 2, part % 2, head, t)[i];
                float q = step > 0 ? rintf((f16 ? kni_f16_to_f32(x) : kni_bf16_to_f32(x)) / step) : 0, most = UNIFORM_LEVELS / 2;
                counts[(uint32_t)(fmaxf(-most, fminf(q, most)) + most)]++;
                kni_kv_row(&coded, part / 2, part % 2, head, t)[i] = f16 ? kni_f32_to_f16(q * step) : kni_f32_to_bf16(q * step);
            }
            bits += entropy_bits(counts, UNIFORM_LEVELS);
        }
    return bits;
}

/* ---- profiles for the other rows */

struct shape { /* a profile and what only it holds */
    struct kni_profile profile;
    double *freqs;
    float *mean, *weight;
    uint16_t *identity;
    int8_t *exponent;
};

static void shape_free(struct shape *s)
{
    kni_free(s->profile.parts);
    kni_free(s->freqs);
    kni_free(s->mean);
    kni_free(s->weight);
    kni_free(s->identity);
    kni_free(s->exponent);
}

/* base with all rows of its bases and medium's steps of the profile under evaluation. */
static bool shape_learned(struct shape *s, const struct kni_eval_ablation *a, const struct kni_profile *base)
{
    s->profile = *base;
    s->profile.parts = kni_alloc(KNI_ALLOC_TAG_CODEC, base->n_parts * sizeof *base->parts, 0);
    if (!s->profile.parts)
        return false;
    for (uint32_t i = 0; i < base->n_parts; i++) {
        struct kni_profile_part *p = &s->profile.parts[i];
        *p = base->parts[i];
        p->rows[MEDIUM] = p->n_rows;
        p->step[MEDIUM] = a->profile->parts[p->first_layer / a->profile->n_group * 2 + i % 2].step[MEDIUM];
    }
    return true;
}

/* No basis at all: each layer by itself, components as they are. */
static bool shape_identity(struct shape *s, const struct kni_eval_ablation *a, bool unrotated)
{
    const struct kni_profile *p = a->profile;
    uint32_t n_layer = p->kv.n_layer, width = p->kv.n_kv_head * p->kv.d_head, n_freqs = p->rope.n_ropes * (p->rope.rope_dim / 2);
    s->profile = *p;
    s->profile.n_group = 1;
    s->profile.n_parts = 2 * n_layer;
    s->profile.parts = kni_calloc(KNI_ALLOC_TAG_CODEC, 2 * n_layer * sizeof *s->profile.parts, 0);
    s->freqs = kni_calloc(KNI_ALLOC_TAG_CODEC, n_freqs * sizeof *s->freqs, 0);
    s->mean = kni_calloc(KNI_ALLOC_TAG_CODEC, width * sizeof *s->mean, 64);
    s->weight = kni_alloc(KNI_ALLOC_TAG_CODEC, width * sizeof *s->weight, 64);
    s->identity = kni_calloc(KNI_ALLOC_TAG_CODEC, (size_t)width * width * sizeof *s->identity, 64);
    s->exponent = kni_calloc(KNI_ALLOC_TAG_CODEC, 1, 0);
    if (!s->profile.parts || !s->freqs || !s->mean || !s->weight || !s->identity || !s->exponent)
        return false;
    if (!unrotated)
        s->profile.rope.freqs = s->freqs; /* angles of zero */
    for (uint32_t i = 0; i < width; i++) {
        s->weight[i] = 1;
        s->identity[(size_t)i * width + i] = kni_f32_to_bf16(1);
    }
    for (uint32_t i = 0; i < 2 * n_layer; i++) {
        struct kni_profile_part *part = &s->profile.parts[i];
        *part = (struct kni_profile_part){.first_layer = i / 2, .n_layers = 1, .width = width, .n_rows = width, .mean = s->mean, .weight = s->weight, .basis = s->identity,
                                          .exponent = s->exponent};
        part->rows[MEDIUM] = width;
        part->step[MEDIUM] = p->parts[i / 2 / p->n_group * 2 + i % 2].step[MEDIUM];
    }
    return true;
}

/* ---- through the transform */

struct coding { uint8_t *symbols; uint32_t *counts; uint32_t max_rows; struct kni_escapes escapes; };

/* One part of the whole prefix there and back; *bits of its symbols after the sinks. */
static enum kn_status code_part(const struct kni_eval_ablation *a, struct kni_spectral *t, const struct kni_profile *p, uint32_t part, struct coding *c, double *bits)
{
    struct kni_kv_host clean = kni_eval_bed_clean(a->bed), coded = kni_eval_bed_coded(a->bed);
    uint32_t n_rows = p->parts[part].n_layers + p->parts[part].rows[MEDIUM];
    memset(c->counts, 0, (size_t)n_rows * 256 * sizeof *c->counts);
    *bits = 0;
    for (uint32_t first = 0; first < a->bed->n_prefix; first += KNI_EVAL_CHUNK) {
        enum kn_status status = kni_spectral_forward(t, &clean, first, KNI_EVAL_CHUNK, part, MEDIUM, c->symbols, KNI_EVAL_CHUNK, &c->escapes);
        if (status == KN_OK)
            status = kni_spectral_inverse(t, &coded, first, KNI_EVAL_CHUNK, part, MEDIUM, c->symbols, KNI_EVAL_CHUNK, &c->escapes, p->n_sinks);
        if (status)
            return status;
        uint32_t skip = first < p->n_sinks ? p->n_sinks - first : 0;
        for (uint32_t r = 0; r < n_rows; r++)
            for (uint32_t i = skip; i < KNI_EVAL_CHUNK; i++)
                c->counts[(size_t)r * 256 + c->symbols[(size_t)r * KNI_EVAL_CHUNK + i]]++;
        *bits += c->escapes.n * ESCAPE_BITS;
    }
    for (uint32_t r = 0; r < n_rows; r++)
        *bits += entropy_bits(c->counts + (size_t)r * 256, 256);
    return KN_OK;
}

static enum kn_status code_profile(const struct kni_eval_ablation *a, const struct kni_profile *p, struct kni_account *account, struct kn_err *err)
{
    struct coding c = {0};
    struct kni_spectral *t = NULL;
    for (uint32_t i = 0; i < p->n_parts; i++) {
        uint32_t rows = p->parts[i].n_layers + p->parts[i].rows[MEDIUM];
        c.max_rows = rows > c.max_rows ? rows : c.max_rows;
    }
    c.symbols = kni_alloc(KNI_ALLOC_TAG_CODEC, (size_t)c.max_rows * KNI_EVAL_CHUNK, 64);
    c.counts = kni_alloc(KNI_ALLOC_TAG_CODEC, (size_t)c.max_rows * 256 * sizeof *c.counts, 64);
    enum kn_status status = c.symbols && c.counts ? kni_spectral_open(&t, p, KNI_EVAL_CHUNK, kni_cpu_flags(),
                                                                      err) : kni_err_set(err, KN_E_NOMEM,
                                                                                         "no memory for an ablation");
    for (uint32_t part = 0; part < p->n_parts && status == KN_OK; part++) {
        double bits;
        status = code_part(a, t, p, part, &c, &bits);
        *(part & 1 ? &account->v_bytes : &account->k_bytes) += bits / 8;
        if (status)
            kni_err_set(err, status, "ablation: %s", kn_status_message(status));
    }
    kni_spectral_close(&t);
    kni_free(c.symbols);
    kni_free(c.counts);
    kni_free(c.escapes.values);
    return status;
}

enum kn_status kni_eval_ablation_code(const struct kni_eval_ablation *a, uint32_t step, struct kni_account *account, struct kn_err *err)
{
    enum kn_status status = KN_OK;
    struct shape s = {0};
    *account = (struct kni_account){0};
    kni_eval_bed_poison(a->bed);
    if (step == STEP_UNIFORM) {
        uint32_t *counts = kni_alloc(KNI_ALLOC_TAG_CODEC, UNIFORM_LEVELS * sizeof *counts, 64);
        if (!counts)
            return kni_err_set(err, KN_E_NOMEM, "no memory for an ablation");
        for (uint32_t part = 0; part < 2 * a->bed->kv.n_layer; part++)
            *(part & 1 ? &account->v_bytes : &account->k_bytes) += code_uniform(a, part, counts) / 8;
        kni_free(counts);
    } else if (step == STEP_WEIGHTS) {
        status = code_profile(a, a->profile, account, err);
    } else {
        bool ok = step == STEP_KLT_1   ? shape_learned(&s, a, kni_calibrate_profile(a->calibration->single))
                  : step == STEP_KLT_G ? shape_learned(&s, a, kni_calibrate_profile(a->calibration->grouped))
                                       : shape_identity(&s, a, step == STEP_UNROTATED);
        s.profile.n_sinks = a->profile->n_sinks;
        status = ok ? code_profile(a, &s.profile, account, err) : kni_err_set(err, KN_E_NOMEM, "no memory for an ablation");
    }
    shape_free(&s);
    if (status)
        return status;
    book_sinks(a, account);
    account->all_bytes = (uint64_t)(account->k_bytes + account->v_bytes);
    return KN_OK;
}
