/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Rows before the basis. A row's exponent is taken from its weighted values: what the quantiser sees has an rms within an
 * eighth of an octave of 1, whatever the row's size was.
 */
#include "codec/spectral/spectral_rows.h"

#include <assert.h>
#include <math.h>

#include "base/cpu.h"
#include "codec/spectral/spectral.h"

#define MAX_PAIRS 512u /* d_head 1024, as in container.h */

float kni_spectral_scale(int32_t e)
{
    static const float quarters[4] = {1.0f, 0x1.306fep+0f, 0x1.6a09e6p+0f, 0x1.ae89fap+0f}; /* 2^(i / 4) */
    int32_t i = e & 3;
    return ldexpf(quarters[i], (e - i) / 4);
}

static int32_t exponent_of(float squares, uint32_t n)
{
    double mean = (double)squares / n;
    if (!(mean > 0))
        return KNI_SPECTRAL_EXPONENT_MIN;
    double e = rint(2 * log2(mean)); /* 4 log2 of the root */
    return e < KNI_SPECTRAL_EXPONENT_MIN ? KNI_SPECTRAL_EXPONENT_MIN : e > KNI_SPECTRAL_EXPONENT_MAX ? KNI_SPECTRAL_EXPONENT_MAX : (int32_t)e;
}

int32_t kni_spectral_row(const struct kni_spectral_row_args *a)
{
    const struct kni_kv_layout *l = &a->view->layout;
    uint32_t n = l->n_kv_head * l->d_head;
    for (uint32_t h = 0; h < l->n_kv_head; h++)
        a->kernels->from_half[l->type](a->x + h * l->d_head, kni_kv_row(a->view, a->layer, a->is_v, h, a->pos), l->d_head);
    a->ops->clean(a->x, n);
    for (uint32_t h = 0; h < l->n_kv_head && a->cos_row; h++)
        a->kernels->rope[a->neox](a->x + h * l->d_head, a->cos_row, a->sin_row, a->n_pairs);
    return exponent_of(a->ops->weigh(a->x, a->weight, n), n);
}

void kni_spectral_rows(const struct kni_kv_host *view, const struct kni_profile_rope *rope, uint32_t first_layer, uint32_t n_layers, bool is_v,
                       const float *weight, uint32_t first_token, uint32_t n_tokens, float *x, int8_t *exponents)
{
    struct kni_kernels kernels;
    struct kni_spectral_ops ops;
    kni_kernels_init(&kernels, kni_cpu_flags());
    kni_spectral_ops_init(&ops, kni_cpu_flags());
    uint32_t n_pairs = rope->rope_dim / 2, n = view->layout.n_kv_head * view->layout.d_head;
    assert(n_pairs <= MAX_PAIRS && rope->rope_dim <= view->layout.d_head && rope->n_ropes <= KNI_PROFILE_MAX_ROPES);
    float cos_rows[KNI_PROFILE_MAX_ROPES][MAX_PAIRS], sin_rows[KNI_PROFILE_MAX_ROPES][MAX_PAIRS];
    for (uint32_t t = 0; t < n_tokens; t++) {
        for (uint32_t r = 0; r < rope->n_ropes && !is_v; r++) {
            kni_rope_table(cos_rows[r], sin_rows[r], first_token + t, n_pairs, rope->freqs + (size_t)r * n_pairs);
            for (uint32_t i = 0; i < n_pairs; i++)
                sin_rows[r][i] = -sin_rows[r][i];
        }
        for (uint32_t l = 0; l < n_layers; l++) {
            uint32_t r = is_v ? 0 : rope->layers[first_layer + l];
            float *row = x + ((size_t)t * n_layers + l) * n;
            struct kni_spectral_row_args a = {.kernels = &kernels, .ops = &ops, .view = view, .layer = first_layer + l, .is_v = is_v, .pos = first_token + t,
                .neox = rope->neox, .n_pairs = n_pairs, .cos_row = is_v ? NULL : cos_rows[r], .sin_row = sin_rows[r],
                .weight = weight ? weight + (size_t)l * n : NULL, .x = row};
            int32_t e = kni_spectral_row(&a);
            exponents[(size_t)l * n_tokens + t] = (int8_t)e;
            ops.centre(row, NULL, kni_spectral_scale(-e), n);
        }
    }
}
