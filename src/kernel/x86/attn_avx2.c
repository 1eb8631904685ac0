/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Scores: 8 components of 16 keys are transposed as 16-bit values, so that a vector holds one component of 8 keys; widened,
 * they serve up to 3 query heads (6 accumulators). No sum across lanes arises, and each score is the chain of multiply-adds
 * that the packed matrix product of prompts makes.
 * Mix: 32 components, one cache line of each key, by up to 3 heads: 12 accumulators, kept in registers for a block.
 *
 * A block costs about 300 cycles of either, 7 bytes a cycle, against about 3 that memory gives: reading ahead is what counts.
 */
#include "kernel/attn.h"

#if defined(__x86_64__)
#include "kernel/x86/attn_body.inc"

#define SCORE_VECTORS __m256 lo, hi, x
#define SCORE_DECLARE(g) __m256 lo##g = _mm256_setzero_ps(), hi##g = lo##g;
#define SCORE_STEP(g) x = _mm256_broadcast_ss(qi + (g) * (size_t)d), lo##g = _mm256_fmadd_ps(x, lo, lo##g), hi##g = _mm256_fmadd_ps(x, hi, hi##g);
#define SCORE_STORE(g) _mm256_storeu_ps(s + (g) * lds, lo##g), _mm256_storeu_ps(s + (g) * lds + 8, hi##g);
#define SCORE_COMPONENT(j, n_g, type)                         \
    qi = q + i + (j);                                         \
    lo = vec_from_##type(_mm256_castsi256_si128(c[j]));       \
    hi = vec_from_##type(_mm256_extracti128_si256(c[j], 1));  \
    HEADS_##n_g(SCORE_STEP)

/* Four vectors of 8 components, and one. */
#define MIX_LOAD4(g)                                                                                              \
    float *o##g = o + (g) * (size_t)d;                                                                            \
    __m256 a##g = _mm256_loadu_ps(o##g), b##g = _mm256_loadu_ps(o##g + 8), c##g = _mm256_loadu_ps(o##g + 16),     \
           d##g = _mm256_loadu_ps(o##g + 24);
#define MIX_WEIGHT(g) __m256 w##g = _mm256_broadcast_ss(p + (g) * ldp + t);
#define MIX_A(g) a##g = _mm256_fmadd_ps(w##g, x, a##g);
#define MIX_B(g) b##g = _mm256_fmadd_ps(w##g, x, b##g);
#define MIX_C(g) c##g = _mm256_fmadd_ps(w##g, x, c##g);
#define MIX_D(g) d##g = _mm256_fmadd_ps(w##g, x, d##g);
#define MIX_STORE4(g)                                                                                             \
    _mm256_storeu_ps(o##g, a##g), _mm256_storeu_ps(o##g + 8, b##g), _mm256_storeu_ps(o##g + 16, c##g), _mm256_storeu_ps(o##g + 24, d##g);
#define MIX_LOAD1(g)                 \
    float *o##g = o + (g) * (size_t)d; \
    __m256 a##g = _mm256_loadu_ps(o##g);
#define MIX_STORE1(g) _mm256_storeu_ps(o##g, a##g);
#define MIX_VALUE(at, type) x = vec_from_##type(_mm_loadu_si128((const __m128i *)(const void *)(v + (size_t)t * d + (at))));
#define MIX(n_g, type)                                                                                                            \
    static void mix4_##n_g##_##type(float *o, const float *p, size_t ldp, const uint16_t *v, uint32_t n_keys, uint32_t d, const void *ahead) \
    {                                                                                                                             \
        HEADS_##n_g(MIX_LOAD4)                                                                                                    \
        for (uint32_t t = 0; t < n_keys; t++) {                                                                                   \
            __m256 x;                                                                                                             \
            HEADS_##n_g(MIX_WEIGHT)                                                                                               \
            prefetch(ahead, (size_t)t * 64);                                                                                      \
            MIX_VALUE(0, type) HEADS_##n_g(MIX_A)                                                                                 \
            MIX_VALUE(8, type) HEADS_##n_g(MIX_B)                                                                                 \
            MIX_VALUE(16, type) HEADS_##n_g(MIX_C)                                                                                \
            MIX_VALUE(24, type) HEADS_##n_g(MIX_D)                                                                                \
        }                                                                                                                         \
        HEADS_##n_g(MIX_STORE4)                                                                                                   \
        (void)ldp;                                                                                                                \
    }                                                                                                                             \
    static void mix1_##n_g##_##type(float *o, const float *p, size_t ldp, const uint16_t *v, uint32_t n_keys, uint32_t d)         \
    {                                                                                                                             \
        HEADS_##n_g(MIX_LOAD1)                                                                                                    \
        for (uint32_t t = 0; t < n_keys; t++) {                                                                                   \
            __m256 x;                                                                                                             \
            HEADS_##n_g(MIX_WEIGHT)                                                                                               \
            MIX_VALUE(0, type) HEADS_##n_g(MIX_A)                                                                                 \
        }                                                                                                                         \
        HEADS_##n_g(MIX_STORE1)                                                                                                   \
        (void)ldp;                                                                                                                \
    }                                                                                                                             \
    static void mix_##n_g##_##type(float *o, const float *p, size_t ldp, const uint16_t *v, uint32_t n_keys, uint32_t d, const void *ahead) \
    {                                                                                                                             \
        uint32_t i = 0;                                                                                                           \
        for (; i + 32 <= d; i += 32)                                                                                              \
            mix4_##n_g##_##type(o + i, p, ldp, v + i, n_keys, d, (const char *)ahead + (size_t)i * 32);                           \
        for (; i < d; i += 8)                                                                                                     \
            mix1_##n_g##_##type(o + i, p, ldp, v + i, n_keys, d);                                                                 \
    }

/* Heads of one pass when n are left: 4 go as 2 and 2. */
INLINE uint32_t heads_of(uint32_t n)
{
    return n == 4 ? 2 : n < 3 ? n : 3;
}

#define ATTN(type)                                                                                                                \
    SCORE(1, type)                                                                                                                \
    SCORE(2, type)                                                                                                                \
    SCORE(3, type)                                                                                                                \
    MIX(1, type)                                                                                                                  \
    MIX(2, type)                                                                                                                  \
    MIX(3, type)                                                                                                                  \
    void kni_attn_score16_##type##_avx2(float *s, size_t lds, const float *q, const uint16_t *k, uint32_t group, uint32_t d,      \
                                        const void *ahead)                                                                        \
    {                                                                                                                             \
        for (uint32_t g = 0, n; g < group; g += n, s += n * lds, q += (size_t)n * d) {                                            \
            n = heads_of(group - g);                                                                                              \
            (n == 1 ? score_1_##type : n == 2 ? score_2_##type : score_3_##type)(s, lds, q, k, d, ahead);                         \
        }                                                                                                                         \
    }                                                                                                                             \
    void kni_attn_mix16_##type##_avx2(float *o, const float *p, size_t ldp, const uint16_t *v, uint32_t n_keys, uint32_t group,   \
                                      uint32_t d, const void *ahead)                                                              \
    {                                                                                                                             \
        for (uint32_t g = 0, n; g < group; g += n, o += (size_t)n * d, p += n * ldp) {                                            \
            n = heads_of(group - g);                                                                                              \
            (n == 1 ? mix_1_##type : n == 2 ? mix_2_##type : mix_3_##type)(o, p, ldp, v, n_keys, d, ahead);                       \
        }                                                                                                                         \
    }
ATTN(f16)
ATTN(bf16)
#endif
