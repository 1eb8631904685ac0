/* SPDX-License-Identifier: Apache-2.0 */
/* References of the spectral transform's loops, and the choice among levels. */
#include "codec/spectral/spectral_ops.h"

#include <math.h>

#include "base/cpu.h"
#include "base/half.h"

static float cut(float x)
{
    return x > KNI_SPECTRAL_LARGEST ? KNI_SPECTRAL_LARGEST : x < -KNI_SPECTRAL_LARGEST ? -KNI_SPECTRAL_LARGEST : x;
}

void kni_spectral_clean_ref(float *x, uint32_t n)
{
    for (uint32_t i = 0; i < n; i++)
        x[i] = isfinite(x[i]) ? cut(x[i]) : 0.0f;
}

float kni_spectral_weigh_ref(float *x, const float *weight, uint32_t n)
{
    float sum = 0;
    for (uint32_t i = 0; i < n; i++) {
        x[i] = cut(weight ? x[i] * weight[i] : x[i]);
        sum += x[i] * x[i];
    }
    return sum;
}

void kni_spectral_centre_ref(float *x, const float *mean, float scale, uint32_t n)
{
    for (uint32_t i = 0; i < n; i++)
        x[i] = x[i] * scale - (mean ? mean[i] : 0.0f);
}

int32_t kni_spectral_round(float y, float inv_step)
{
    const float most = 0x1.fffffep30f; /* the largest float below 2^31 */
    float q = y * inv_step;
    q = q < most ? q : most;
    q = q > -most ? q : -most;
    return (int32_t)rintf(q);
}

static uint32_t quantise_ref(uint8_t *symbols, const float *y, float inv_step, uint32_t n)
{
    uint32_t n_escapes = 0;
    for (uint32_t i = 0; i < n; i++) {
        int32_t q = kni_spectral_round(y[i], inv_step);
        q = q > 127 ? 127 : q < -127 ? -127 : q;
        n_escapes += q == 127 || q == -127;
        symbols[i] = (uint8_t)(128 + q);
    }
    return n_escapes;
}

static uint32_t scan_ref(const uint8_t *symbols, uint16_t *counts, uint32_t n)
{
    uint32_t n_special = 0;
    for (uint32_t t = 0; t < n; t++) {
        counts[t] = (uint16_t)(counts[t] + (symbols[t] != 128));
        n_special += symbols[t] <= 1 || symbols[t] == 255;
    }
    return n_special;
}

static bool fill_ref(const uint8_t *symbols, uint32_t n, uint32_t at, const float values[256], struct kni_spectral_entry *entries, uint32_t *next)
{
    bool any = false;
    for (uint32_t t = 0; t < n; t++)
        if (symbols[t] != 128) {
            entries[next[t]++] = (struct kni_spectral_entry){at, values[symbols[t]]};
            any = true;
        }
    return any;
}

/* Where column c of a strip's row lies. */
static uint32_t in_strip(uint32_t c)
{
    return c / 32 * 32 + c % 16 * 2 + c % 32 / 16;
}

static void gather_ref(const struct kni_spectral_gather_args *g)
{
    for (uint32_t row = 0; row < g->n_rows; row++)
        for (uint32_t c = 0; g->used[row] && c < KNI_SPECTRAL_STRIP; c++)
            g->strip[(size_t)row * KNI_SPECTRAL_STRIP + in_strip(c)] = c < g->n_cols ? g->basis[row * g->width + c] : 0;
}

static void mix_ref(const struct kni_spectral_mix_args *m)
{
    for (uint32_t t = 0; t < m->n_tokens; t++) {
        float *x = m->x + t * m->ldx;
        for (uint32_t c = 0; c < KNI_SPECTRAL_STRIP; c++)
            x[c] = m->mean[c];
        for (uint32_t i = m->starts[t]; i < m->starts[t + 1]; i++) {
            const uint16_t *row = m->strip + m->entries[i].at;
            for (uint32_t c = 0; c < KNI_SPECTRAL_STRIP; c++)
                x[c] += m->entries[i].value * kni_bf16_to_f32(row[in_strip(c)]);
        }
    }
}

bool kni_spectral_unscale_ref(float *x, const float *inv_weight, float scale, float limit, uint32_t n)
{
    bool large = false;
    for (uint32_t i = 0; i < n; i++) {
        x[i] *= inv_weight[i] * scale;
        large |= fabsf(x[i]) > limit;
    }
    return large;
}

void kni_spectral_ops_init(struct kni_spectral_ops *ops, uint32_t cpu_flags)
{
    *ops = (struct kni_spectral_ops){kni_spectral_clean_ref, kni_spectral_weigh_ref, kni_spectral_centre_ref, quantise_ref, scan_ref, fill_ref,
                                     gather_ref, mix_ref, kni_spectral_unscale_ref};
#if defined(__x86_64__)
    if (cpu_flags & KNI_CPU_FLAG_AVX2)
        kni_spectral_use_avx2(ops);
    if ((cpu_flags & KNI_CPU_FLAG_AVX2) && (cpu_flags & KNI_CPU_FLAG_AVX512))
        kni_spectral_use_avx512(ops);
#else
    (void)cpu_flags;
#endif
}
