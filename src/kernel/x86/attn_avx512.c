/* SPDX-License-Identifier: Apache-2.0 */
/*
 * As attn_avx2.c, twice as wide: a vector holds one component of 16 keys, and mixing takes 64 components by up to 4 heads.
 * Every sum is the same chain of multiply-adds, so the bits are those of AVX2. Needs AVX-512 F, BW, VL and DQ.
 */
#include "kernel/attn.h"

#if defined(__x86_64__)
#include "kernel/x86/attn_body.inc"

#define SCORE_VECTORS __m512 x

/* 16 values of 16 bits as floats. */
INLINE __m512 wide_from_f16(__m256i v)
{
    return _mm512_cvtph_ps(v);
}

INLINE __m512 wide_from_bf16(__m256i v)
{
    return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(v), 16));
}

#define SCORE_DECLARE(g) __m512 s##g = _mm512_setzero_ps();
#define SCORE_STEP(g) s##g = _mm512_fmadd_ps(_mm512_set1_ps(qi[(g) * (size_t)d]), x, s##g);
#define SCORE_STORE(g) _mm512_storeu_ps(s + (g) * lds, s##g);
#define SCORE_COMPONENT(j, n_g, type) \
    qi = q + i + (j);                 \
    x = wide_from_##type(c[j]);       \
    HEADS_##n_g(SCORE_STEP)

/* Four vectors of 16 components, and one of 8. */
#define MIX_LOAD4(g)                                                                                              \
    float *o##g = o + (g) * (size_t)d;                                                                            \
    __m512 a##g = _mm512_loadu_ps(o##g), b##g = _mm512_loadu_ps(o##g + 16), c##g = _mm512_loadu_ps(o##g + 32),    \
           d##g = _mm512_loadu_ps(o##g + 48);
#define MIX_WEIGHT4(g) __m512 w##g = _mm512_set1_ps(p[(g) * ldp + t]);
#define MIX_A4(g) a##g = _mm512_fmadd_ps(w##g, x, a##g);
#define MIX_B4(g) b##g = _mm512_fmadd_ps(w##g, x, b##g);
#define MIX_C4(g) c##g = _mm512_fmadd_ps(w##g, x, c##g);
#define MIX_D4(g) d##g = _mm512_fmadd_ps(w##g, x, d##g);
#define MIX_STORE4(g)                                                                                             \
    _mm512_storeu_ps(o##g, a##g), _mm512_storeu_ps(o##g + 16, b##g), _mm512_storeu_ps(o##g + 32, c##g), _mm512_storeu_ps(o##g + 48, d##g);
#define MIX_VALUE4(at, type) x = wide_from_##type(_mm256_loadu_si256((const __m256i *)(const void *)(v + (size_t)t * d + (at))));
#define MIX_LOAD1(g)                   \
    float *o##g = o + (g) * (size_t)d; \
    __m256 a##g = _mm256_loadu_ps(o##g);
#define MIX_STEP1(g) a##g = _mm256_fmadd_ps(_mm256_broadcast_ss(p + (g) * ldp + t), x, a##g);
#define MIX_STORE1(g) _mm256_storeu_ps(o##g, a##g);
#define MIX(n_g, type)                                                                                                            \
    static void mix4_##n_g##_##type(float *o, const float *p, size_t ldp, const uint16_t *v, uint32_t n_keys, uint32_t d, const void *ahead) \
    {                                                                                                                             \
        HEADS_##n_g(MIX_LOAD4)                                                                                                    \
        for (uint32_t t = 0; t < n_keys; t++) {                                                                                   \
            __m512 x;                                                                                                             \
            HEADS_##n_g(MIX_WEIGHT4)                                                                                              \
            prefetch(ahead, (size_t)t * 128);                                                                                     \
            prefetch(ahead, (size_t)t * 128 + 64);                                                                                \
            MIX_VALUE4(0, type) HEADS_##n_g(MIX_A4)                                                                               \
            MIX_VALUE4(16, type) HEADS_##n_g(MIX_B4)                                                                              \
            MIX_VALUE4(32, type) HEADS_##n_g(MIX_C4)                                                                              \
            MIX_VALUE4(48, type) HEADS_##n_g(MIX_D4)                                                                              \
        }                                                                                                                         \
        HEADS_##n_g(MIX_STORE4)                                                                                                   \
        (void)ldp;                                                                                                                \
    }                                                                                                                             \
    static void mix1_##n_g##_##type(float *o, const float *p, size_t ldp, const uint16_t *v, uint32_t n_keys, uint32_t d)         \
    {                                                                                                                             \
        HEADS_##n_g(MIX_LOAD1)                                                                                                    \
        for (uint32_t t = 0; t < n_keys; t++) {                                                                                   \
            __m256 x = vec_from_##type(_mm_loadu_si128((const __m128i *)(const void *)(v + (size_t)t * d)));                      \
            HEADS_##n_g(MIX_STEP1)                                                                                                \
        }                                                                                                                         \
        HEADS_##n_g(MIX_STORE1)                                                                                                   \
        (void)ldp;                                                                                                                \
    }                                                                                                                             \
    static void mix_##n_g##_##type(float *o, const float *p, size_t ldp, const uint16_t *v, uint32_t n_keys, uint32_t d, const void *ahead) \
    {                                                                                                                             \
        uint32_t i = 0;                                                                                                           \
        for (; i + 64 <= d; i += 64)                                                                                              \
            mix4_##n_g##_##type(o + i, p, ldp, v + i, n_keys, d, (const char *)ahead + (size_t)i * 32);                           \
        for (; i < d; i += 8)                                                                                                     \
            mix1_##n_g##_##type(o + i, p, ldp, v + i, n_keys, d);                                                                 \
    }

#define ATTN(type)                                                                                                                \
    SCORE(1, type)                                                                                                                \
    SCORE(2, type)                                                                                                                \
    SCORE(3, type)                                                                                                                \
    SCORE(4, type)                                                                                                                \
    MIX(1, type)                                                                                                                  \
    MIX(2, type)                                                                                                                  \
    MIX(3, type)                                                                                                                  \
    MIX(4, type)                                                                                                                  \
    void kni_attn_score16_##type##_avx512(float *s, size_t lds, const float *q, const uint16_t *k, uint32_t group, uint32_t d,    \
                                          const void *ahead)                                                                      \
    {                                                                                                                             \
        for (uint32_t g = 0; g < group; g += 4, s += 4 * lds, q += 4 * (size_t)d)                                                 \
            switch (group - g) {                                                                                                  \
            case 1: score_1_##type(s, lds, q, k, d, ahead); break;                                                                \
            case 2: score_2_##type(s, lds, q, k, d, ahead); break;                                                                \
            case 3: score_3_##type(s, lds, q, k, d, ahead); break;                                                                \
            default: score_4_##type(s, lds, q, k, d, ahead);                                                                      \
            }                                                                                                                     \
    }                                                                                                                             \
    void kni_attn_mix16_##type##_avx512(float *o, const float *p, size_t ldp, const uint16_t *v, uint32_t n_keys, uint32_t group, \
                                        uint32_t d, const void *ahead)                                                            \
    {                                                                                                                             \
        for (uint32_t g = 0; g < group; g += 4, o += 4 * (size_t)d, p += 4 * ldp)                                                 \
            switch (group - g) {                                                                                                  \
            case 1: mix_1_##type(o, p, ldp, v, n_keys, d, ahead); break;                                                          \
            case 2: mix_2_##type(o, p, ldp, v, n_keys, d, ahead); break;                                                          \
            case 3: mix_3_##type(o, p, ldp, v, n_keys, d, ahead); break;                                                          \
            default: mix_4_##type(o, p, ldp, v, n_keys, d, ahead);                                                                \
            }                                                                                                                     \
    }
ATTN(f16)
ATTN(bf16)
#endif
