/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Profiles made up in memory for tests of the spectral layout: no file, no rANS model. The basis is orthonormal exactly, even in
 * bfloat16: Hadamard matrices of 16 along the diagonal, columns shuffled, signs flipped, rows in descending use.
 */
#ifndef TEST_SPECTRAL_PARTS_H
#define TEST_SPECTRAL_PARTS_H

#include "codec_support.h"

#include "codec/profile/profile.h"
#include "kernel/rope.h"

struct test_profile_opts {
    uint32_t n_layer, n_kv_head, d_head, n_group;
    bool neox;
    uint32_t rope_dim, n_ropes; /* 0: d_head; 1 */
    uint32_t n_rows;            /* 0: all */
    float step;                 /* of fine; medium twice, small four times that */
    bool plain;                 /* weights 1, means 0 */
};

static inline void *test_zeros(size_t n, size_t size)
{
    void *p = calloc(n, size);
    assert_non_null(p);
    return p;
}

static inline float test_unit(void) /* -1..1 */
{
    return (float)(test_random() % 20001) / 10000.0f - 1.0f;
}

static inline void test_part_fill(struct kni_profile_part *part, const struct test_profile_opts *o)
{
    uint32_t w = part->width, n = part->n_rows;
    float *mean = test_zeros(w, sizeof *mean), *weight = test_zeros(w, sizeof *weight);
    uint16_t *basis = test_zeros((size_t)n * w, sizeof *basis);
    int8_t *exponent = test_zeros(part->n_layers, 1), *gain = test_zeros(part->n_layers, 1);
    uint32_t *shuffle = test_zeros(w, sizeof *shuffle);
    for (uint32_t i = 0; i < w; i++) {
        uint32_t j = test_random() % (i + 1);
        shuffle[i] = shuffle[j];
        shuffle[j] = i;
        mean[i] = o->plain ? 0.0f : 0.3f * test_unit();
        weight[i] = o->plain ? 1.0f : 0.5f + 0.4f * test_unit();
    }
    for (uint32_t i = 0; i < n; i++)
        for (uint32_t j = 0; j < 16; j++)
            basis[(size_t)i * w + shuffle[i / 16 * 16 + j]] = kni_f32_to_bf16((__builtin_popcount(i % 16 & j) & 1) ^ (shuffle[i] & 1) ? -0.25f : 0.25f);
    for (uint32_t l = 0; l < part->n_layers; l++)
        exponent[l] = (int8_t)(test_random() % 9 - 2);
    for (uint32_t l = 0; l < part->n_layers && !o->plain; l++)
        gain[l] = (int8_t)(4 - 3 * (int)(l % 3));
    free(shuffle);
    part->mean = mean;
    part->weight = weight;
    part->basis = basis;
    part->exponent = exponent;
    part->gain = gain;
    for (uint32_t p = 0; p < KNI_PROFILE_N_PRESETS; p++) {
        uint8_t *classes = test_zeros(part->n_layers + n, 1);
        part->classes[p] = classes;
        part->rows[p] = p == 0 ? n : n / (p + 1) / 16 * 16;
        part->step[p] = o->step * (float)(1 << p);
    }
}

static inline struct kni_profile *test_profile(const struct test_profile_opts *o)
{
    struct kni_profile *p = test_zeros(1, sizeof *p);
    uint32_t n_groups = (o->n_layer + o->n_group - 1) / o->n_group, rope_dim = o->rope_dim ? o->rope_dim : o->d_head, n_ropes = o->n_ropes ? o->n_ropes : 1;
    p->kv = (struct kni_kv_layout){.n_layer = o->n_layer, .n_kv_head = o->n_kv_head, .d_head = o->d_head};
    double *freqs = test_zeros((size_t)n_ropes * rope_dim / 2, sizeof *freqs);
    uint8_t *layers = test_zeros(o->n_layer, 1);
    for (uint32_t r = 0; r < n_ropes; r++)
        kni_rope_freqs(freqs + r * rope_dim / 2, rope_dim / 2, r ? 10000.0f : 500000.0f, 1.0f, NULL);
    for (uint32_t l = 0; l < o->n_layer; l++)
        layers[l] = (uint8_t)(l % n_ropes);
    p->rope = (struct kni_profile_rope){.neox = o->neox, .rope_dim = rope_dim, .n_ropes = n_ropes, .freqs = freqs, .layers = layers};
    p->n_group = o->n_group;
    p->n_parts = 2 * n_groups;
    p->parts = test_zeros(p->n_parts, sizeof *p->parts);
    for (uint32_t i = 0; i < p->n_parts; i++) {
        struct kni_profile_part *part = &p->parts[i];
        part->first_layer = i / 2 * o->n_group;
        part->n_layers = o->n_layer - part->first_layer < o->n_group ? o->n_layer - part->first_layer : o->n_group;
        part->width = part->n_layers * o->n_kv_head * o->d_head;
        assert_int_equal(part->width % 32, 0);
        part->n_rows = o->n_rows && o->n_rows < part->width ? o->n_rows : part->width;
        test_part_fill(part, o);
    }
    return p;
}

static inline void test_profile_free(struct kni_profile *p)
{
    for (uint32_t i = 0; i < p->n_parts; i++) {
        struct kni_profile_part *part = &p->parts[i];
        free((void *)(uintptr_t)part->mean);
        free((void *)(uintptr_t)part->weight);
        free((void *)(uintptr_t)part->basis);
        free((void *)(uintptr_t)part->exponent);
        free((void *)(uintptr_t)part->gain);
        for (uint32_t j = 0; j < KNI_PROFILE_N_PRESETS; j++)
            free((void *)(uintptr_t)part->classes[j]);
    }
    free((void *)(uintptr_t)p->rope.freqs);
    free((void *)(uintptr_t)p->rope.layers);
    free(p->parts);
    free(p);
}

#endif
