/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Scores: 4 keys by up to 2 query heads at once (8 accumulators); four accumulators of a head are then added crosswise to
 * four scores. Mix: 16 components by up to 4 query heads, keys in order, o kept in registers for a block.
 */
#include "kernel/attn.h"

#if defined(__x86_64__)
#include "kernel/x86/vec_avx2.h"

#define INLINE static inline __attribute__((always_inline))

typedef __m256 (*load_fn)(const uint16_t *p);

INLINE __m256 load_f16(const uint16_t *p)
{
    return _mm256_cvtph_ps(_mm_loadu_si128((const __m128i *)(const void *)p));
}

INLINE __m256 load_bf16(const uint16_t *p)
{
    return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(_mm_loadu_si128((const __m128i *)(const void *)p)), 16));
}

/* Sums of four vectors, as one of four floats. */
INLINE __m128 sum4(const __m256 v[4])
{
    __m256 h = _mm256_hadd_ps(_mm256_hadd_ps(v[0], v[1]), _mm256_hadd_ps(v[2], v[3]));
    return _mm_add_ps(_mm256_castps256_ps128(h), _mm256_extractf128_ps(h, 1));
}

INLINE void score4(float *s, size_t lds, const float *q, const uint16_t *k, uint32_t n_g, uint32_t d, load_fn load)
{
    __m256 acc[2][4];
    for (uint32_t g = 0; g < n_g; g++)
        for (int t = 0; t < 4; t++)
            acc[g][t] = _mm256_setzero_ps();
    for (uint32_t i = 0; i < d; i += 8) {
        __m256 key[4];
        for (uint32_t t = 0; t < 4; t++)
            key[t] = load(k + (size_t)t * d + i);
        for (uint32_t g = 0; g < n_g; g++) {
            __m256 x = _mm256_loadu_ps(q + (size_t)g * d + i);
            for (int t = 0; t < 4; t++)
                acc[g][t] = _mm256_fmadd_ps(x, key[t], acc[g][t]);
        }
    }
    for (uint32_t g = 0; g < n_g; g++)
        _mm_storeu_ps(s + g * lds, sum4(acc[g]));
}

INLINE void score16(float *s, size_t lds, const float *q, const uint16_t *k, uint32_t group, uint32_t d, load_fn load)
{
    for (uint32_t t = 0; t < KNI_BLOCK_TOKENS; t += 4) {
        uint32_t g = 0;
        for (; g + 2 <= group; g += 2)
            score4(s + g * lds + t, lds, q + (size_t)g * d, k + (size_t)t * d, 2, d, load);
        if (g < group)
            score4(s + g * lds + t, lds, q + (size_t)g * d, k + (size_t)t * d, 1, d, load);
    }
}

/* n_v vectors of 8 components, n_g heads; constants where inlined. */
INLINE void mix(float *o, const float *p, size_t ldp, const uint16_t *v, uint32_t n_keys, uint32_t n_g, uint32_t n_v, uint32_t d, load_fn load)
{
    __m256 acc[4][2];
    for (uint32_t g = 0; g < n_g; g++)
        for (uint32_t j = 0; j < n_v; j++)
            acc[g][j] = _mm256_loadu_ps(o + (size_t)g * d + 8 * j);
    for (uint32_t t = 0; t < n_keys; t++) {
        __m256 value[2];
        for (uint32_t j = 0; j < n_v; j++)
            value[j] = load(v + (size_t)t * d + 8 * j);
        for (uint32_t g = 0; g < n_g; g++) {
            __m256 w = _mm256_broadcast_ss(p + g * ldp + t);
            for (uint32_t j = 0; j < n_v; j++)
                acc[g][j] = _mm256_fmadd_ps(w, value[j], acc[g][j]);
        }
    }
    for (uint32_t g = 0; g < n_g; g++)
        for (uint32_t j = 0; j < n_v; j++)
            _mm256_storeu_ps(o + (size_t)g * d + 8 * j, acc[g][j]);
}

INLINE void mix_heads(float *o, const float *p, size_t ldp, const uint16_t *v, uint32_t n_keys, uint32_t n_g, uint32_t d, load_fn load)
{
    uint32_t i = 0;
    for (; i + 16 <= d; i += 16)
        mix(o + i, p, ldp, v + i, n_keys, n_g, 2, d, load);
    if (i < d)
        mix(o + i, p, ldp, v + i, n_keys, n_g, 1, d, load);
}

INLINE void mix16(float *o, const float *p, size_t ldp, const uint16_t *v, uint32_t n_keys, uint32_t group, uint32_t d, load_fn load)
{
    for (uint32_t g = 0; g < group; g += 4) {
        float *og = o + (size_t)g * d;
        const float *pg = p + g * ldp;
        switch (group - g) {
        case 1: mix_heads(og, pg, ldp, v, n_keys, 1, d, load); break;
        case 2: mix_heads(og, pg, ldp, v, n_keys, 2, d, load); break;
        case 3: mix_heads(og, pg, ldp, v, n_keys, 3, d, load); break;
        default: mix_heads(og, pg, ldp, v, n_keys, 4, d, load);
        }
    }
}

void kni_attn_score16_f16_avx2(float *s, size_t lds, const float *q, const uint16_t *k, uint32_t group, uint32_t d_head)
{
    score16(s, lds, q, k, group, d_head, load_f16);
}

void kni_attn_score16_bf16_avx2(float *s, size_t lds, const float *q, const uint16_t *k, uint32_t group, uint32_t d_head)
{
    score16(s, lds, q, k, group, d_head, load_bf16);
}

void kni_attn_mix16_f16_avx2(float *o, const float *p, size_t ldp, const uint16_t *v, uint32_t n_keys, uint32_t group, uint32_t d_head)
{
    mix16(o, p, ldp, v, n_keys, group, d_head, load_f16);
}

void kni_attn_mix16_bf16_avx2(float *o, const float *p, size_t ldp, const uint16_t *v, uint32_t n_keys, uint32_t group, uint32_t d_head)
{
    mix16(o, p, ldp, v, n_keys, group, d_head, load_bf16);
}
#endif
