/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A small profile with random numbers that are valid in every respect: orthonormal bases, rANS tables trained on symbols that
 * suit its classes. Made through kni_profile_write and kni_profile_read, so it is what a file would give.
 *
 *     struct kn_tiny_profile_opts o = {.n_layer = 3, .n_kv_head = 2, .d_head = 32, .n_group = 2};
 *     struct kni_profile *p = kn_tiny_profile_make(&o);   // kni_profile_close(&p)
 *
 * Header only, for tests: aborts when anything fails.
 */
#ifndef KN_TEST_TINY_PROFILE_H
#define KN_TEST_TINY_PROFILE_H

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/alloc.h"
#include "base/half.h"
#include "codec/profile/profile.h"
#include "kernel/rope.h"

struct kn_tiny_profile_opts {
    uint32_t n_layer, n_kv_head, d_head, n_group; /* 0: 3, 2, 32, 2; n_kv_head * d_head a multiple of 32 */
    bool neox;
    uint32_t rope_dim; /* 0: d_head */
    uint32_t n_ropes;  /* 0: 1 */
    uint32_t n_sinks;
    uint32_t rows[KNI_PROFILE_N_PRESETS];   /* 0: width less 0, 16, 16, at least 16, in every part */
    float step_k[KNI_PROFILE_N_PRESETS], step_v[KNI_PROFILE_N_PRESETS]; /* 0: .1 .2 .3 and .4 1 1.5 */
    uint8_t fingerprint[16];
    uint64_t seed;
};

static inline uint32_t kn_tiny_profile_random(uint64_t *rng)
{
    *rng = *rng * 6364136223846793005u + 1442695040888963407u;
    return (uint32_t)(*rng >> 33);
}

/* About normal, mean 0, deviation 1. */
static inline double kn_tiny_profile_normal(uint64_t *rng)
{
    double sum = 0;
    for (int i = 0; i < 12; i++)
        sum += (double)kn_tiny_profile_random(rng) / 2147483648.0;
    return sum - 6.0;
}

/* n_rows orthonormal rows of width values, by Gram-Schmidt, twice over. */
static inline uint16_t *kn_tiny_profile_basis(uint32_t n_rows, uint32_t width, uint64_t *rng)
{
    double *b = malloc((size_t)n_rows * width * sizeof *b);
    uint16_t *out = malloc((size_t)n_rows * width * sizeof *out);
    if (!b || !out)
        abort();
    for (uint32_t r = 0; r < n_rows; r++) {
        double *x = b + (size_t)r * width, norm = 0;
        for (uint32_t i = 0; i < width; i++)
            x[i] = kn_tiny_profile_normal(rng);
        for (uint32_t k = 0; k < 2 * r; k++) {
            const double *y = b + (size_t)(k % r) * width;
            double dot = 0;
            for (uint32_t i = 0; i < width; i++)
                dot += x[i] * y[i];
            for (uint32_t i = 0; i < width; i++)
                x[i] -= dot * y[i];
        }
        for (uint32_t i = 0; i < width; i++)
            norm += x[i] * x[i];
        for (uint32_t i = 0; i < width; i++)
            x[i] /= sqrt(norm);
    }
    for (size_t i = 0; i < (size_t)n_rows * width; i++)
        out[i] = kni_f32_to_bf16((float)b[i]);
    free(b);
    return out;
}

/* Symbols whose magnitude falls from row to row as the classes say, 64 tokens of them. */
static inline void kn_tiny_profile_train(struct kni_rans_trainer *t, const uint8_t *classes, const double *magnitude, uint32_t n_rows, uint64_t *rng)
{
    uint8_t *symbols = malloc((size_t)n_rows * 64);
    if (!symbols)
        abort();
    for (uint32_t r = 0; r < n_rows; r++)
        for (uint32_t i = 0; i < 64; i++) {
            double x = rint(kn_tiny_profile_normal(rng) * magnitude[r] * 1.25);
            symbols[(size_t)r * 64 + i] = (uint8_t)(128 + (x < -127 ? -127 : x > 127 ? 127 : (int)x));
        }
    kni_rans_trainer_add(t, symbols, 64, n_rows, 64, classes);
    free(symbols);
}

static inline struct kni_profile *kn_tiny_profile_make(const struct kn_tiny_profile_opts *opts)
{
    static const float default_k[] = {0.1f, 0.2f, 0.3f}, default_v[] = {0.4f, 1.0f, 1.5f};
    static const uint32_t less[] = {0, 16, 16};
    struct kn_tiny_profile_opts o = opts ? *opts : (struct kn_tiny_profile_opts){0};
    uint64_t rng = o.seed + 12345;
    struct kni_profile p = {.kv = {o.n_layer ? o.n_layer : 3, o.n_kv_head ? o.n_kv_head : 2, o.d_head ? o.d_head : 32, 0}, .n_group = o.n_group ? o.n_group : 2,
                            .n_sinks = o.n_sinks, .n_calibration_tokens = 4096};
    memcpy(p.fingerprint, o.fingerprint, 16);
    p.rope = (struct kni_profile_rope){.neox = o.neox, .rope_dim = o.rope_dim ? o.rope_dim : p.kv.d_head, .n_ropes = o.n_ropes ? o.n_ropes : 1};
    uint32_t n_pairs = p.rope.rope_dim / 2;
    double *freqs = malloc(p.rope.n_ropes * n_pairs * sizeof *freqs);
    uint8_t *ropes = malloc(p.kv.n_layer);
    p.n_parts = 2 * ((p.kv.n_layer + p.n_group - 1) / p.n_group);
    p.parts = calloc(p.n_parts, sizeof *p.parts);
    struct kni_rans_trainer *trainer;
    struct kni_rans_model *rans;
    if (!freqs || !ropes || !p.parts || kni_rans_trainer_open(&trainer))
        abort();
    for (uint32_t i = 0; i < p.rope.n_ropes; i++)
        kni_rope_freqs(freqs + (size_t)i * n_pairs, n_pairs, i ? 1e6f : 1e4f, 1, NULL);
    for (uint32_t i = 0; i < p.kv.n_layer; i++)
        ropes[i] = (uint8_t)(i % p.rope.n_ropes);
    p.rope.freqs = freqs;
    p.rope.layers = ropes;
    for (uint32_t i = 0; i < p.n_parts; i++) {
        struct kni_profile_part *part = &p.parts[i];
        part->first_layer = i / 2 * p.n_group;
        part->n_layers = p.kv.n_layer - part->first_layer < p.n_group ? p.kv.n_layer - part->first_layer : p.n_group;
        part->width = part->n_layers * p.kv.n_kv_head * p.kv.d_head;
        float *mean = malloc(part->width * sizeof *mean), *weight = malloc(part->width * sizeof *weight);
        int8_t *exponent = malloc(part->n_layers), *gain = malloc(part->n_layers);
        if (!mean || !weight || !exponent || !gain)
            abort();
        for (uint32_t c = 0; c < part->width; c++) {
            mean[c] = 0.3f * (float)kn_tiny_profile_normal(&rng);
            weight[c] = i % 2 ? 1 : 0.2f + 0.001f * (float)(kn_tiny_profile_random(&rng) % 1500);
        }
        for (uint32_t l = 0; l < part->n_layers; l++)
            exponent[l] = (int8_t)(kn_tiny_profile_random(&rng) % 9) - 4, gain[l] = (int8_t)(l % 2 ? 3 : -2);
        for (uint32_t k = 0; k < KNI_PROFILE_N_PRESETS; k++) {
            uint32_t rows = o.rows[k] ? o.rows[k] : part->width - less[k];
            part->rows[k] = rows < 16 ? 16 : rows;
            part->step[k] = i % 2 ? o.step_v[k] > 0 ? o.step_v[k] : default_v[k] : o.step_k[k] > 0 ? o.step_k[k] : default_k[k];
            part->n_rows = part->rows[k] > part->n_rows ? part->rows[k] : part->n_rows;
        }
        for (uint32_t k = 0; k < KNI_PROFILE_N_PRESETS; k++) {
            uint32_t n = part->n_layers + part->rows[k];
            double *magnitude = malloc(n * sizeof *magnitude);
            uint8_t *classes = malloc(n);
            if (!magnitude || !classes)
                abort();
            for (uint32_t r = 0; r < n; r++) {
                magnitude[r] = r < part->n_layers ? 1.0 : 2.0 / (double)part->step[k] / (1.0 + 0.2 * (r - part->n_layers));
                classes[r] = kni_rans_class_of_row(magnitude[r], 0);
            }
            kn_tiny_profile_train(trainer, classes, magnitude, n, &rng);
            part->classes[k] = classes;
            free(magnitude);
        }
        part->mean = mean;
        part->weight = weight;
        part->exponent = exponent;
        part->gain = gain;
        part->basis = kn_tiny_profile_basis(part->n_rows, part->width, &rng);
    }
    for (uint32_t k = 0; k < KNI_PROFILE_N_PRESETS; k++)
        p.quality[k] = (struct kni_profile_quality){.ratio = 10.0f * (float)(k + 1), .kl = 0.002f * (float)(k + 1), .top1 = 0.98f - 0.01f * (float)k};
    void *data;
    size_t n;
    struct kni_profile *out;
    struct kn_err err = {0};
    if (kni_rans_trainer_finish(trainer, &rans))
        abort();
    p.rans = rans;
    if (kni_profile_write(&p, &data, &n, &err) || kni_profile_read(&out, data, n, "tiny", &err)) {
        fprintf(stderr, "tiny profile: %s\n", err.text);
        abort();
    }
    kni_free(data);
    kni_rans_trainer_close(&trainer);
    kni_rans_model_free(&rans);
    for (uint32_t i = 0; i < p.n_parts; i++) {
        struct kni_profile_part *part = &p.parts[i];
        free((void *)(size_t)part->mean);
        free((void *)(size_t)part->weight);
        free((void *)(size_t)part->basis);
        free((void *)(size_t)part->exponent);
        free((void *)(size_t)part->gain);
        for (uint32_t k = 0; k < KNI_PROFILE_N_PRESETS; k++)
            free((void *)(size_t)part->classes[k]);
    }
    free(p.parts);
    free(freqs);
    free(ropes);
    return out;
}

#endif
