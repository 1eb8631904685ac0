/* SPDX-License-Identifier: Apache-2.0 */
/*
 * qgemm with 256-bit vectors: tiles of 4 rows by 16 outputs on packed values (8 accumulators, two vectors being decoded), of 6
 * rows on unpacked ones (12 accumulators, two of weights, a broadcast, a product: all 16 registers). And the quantiser.
 */
#include "kernel/qgemm.h"

#if defined(__x86_64__)
#include <immintrin.h>

#define QG_NAME kni_qgemm_avx2
#define QG_LANES 8
#define QG_FEW 4
#define QG_MANY 6
#define QG_EACH_FEW(X) X(1) X(2) X(3) X(4)
#define QG_EACH_MANY(X) QG_EACH_FEW(X) X(5) X(6)
#define VI __m256i
#define VF __m256
#define V_LOAD(p) _mm256_load_si256((const __m256i *)(const void *)(p))
#define V_STORE(p, v) _mm256_store_si256((__m256i *)(void *)(p), v)
#define V_BROADCAST32(p) _mm256_castps_si256(_mm256_broadcast_ss((const float *)(const void *)(p)))
#define V_SET16(n) _mm256_set1_epi16(n)
#define V_SET32(n) _mm256_set1_epi32(n)
#define V_ZERO() _mm256_setzero_si256()
#define V_AND(a, b) _mm256_and_si256(a, b)
#define V_OR(a, b) _mm256_or_si256(a, b)
#define V_SRL16(v, n) _mm256_srli_epi16(v, n)
#define V_SLL16(v, n) _mm256_slli_epi16(v, n)
#define V_SRA16(v, n) _mm256_srai_epi16(v, n)
#define V_SRL16_BY(v, n) _mm256_srl_epi16(v, _mm_cvtsi32_si128((int)(n)))
#define V_SUB16(a, b) _mm256_sub_epi16(a, b)
#define V_ADD32(a, b) _mm256_add_epi32(a, b)
#define V_SUB32(a, b) _mm256_sub_epi32(a, b)
#define V_MUL32(a, b) _mm256_mullo_epi32(a, b)
#define V_CVTF(v) _mm256_cvtepi32_ps(v)
#define V_LOADF(p) _mm256_load_ps(p)
#define V_STOREF(p, v) _mm256_store_ps(p, v)
#define V_BROADCASTF(p) _mm256_broadcast_ss((const float *)(const void *)(p))
#define V_ADDF(a, b) _mm256_add_ps(a, b)
#define V_MULF(a, b) _mm256_mul_ps(a, b)
#define V_PREFETCH(p) _mm_prefetch((const char *)(p), _MM_HINT_T0)

/* In assembly, since the order matters: products next to their additions run 1.5 times as fast as float multiply-adds; left
 * to itself, gcc gathers the products of several steps and spills. */
#define V_ROW(a, b, w0, w1, p)                                                                                         \
    do {                                                                                                               \
        VI xp_, product_;                                                                                              \
        __asm__ volatile("vbroadcastss %6, %2\n\tvpmaddwd %2, %4, %3\n\tvpaddd %3, %0, %0\n\t"                          \
                         "vpmaddwd %2, %5, %3\n\tvpaddd %3, %1, %1"                                                    \
                         : "+x"(a), "+x"(b), "=&x"(xp_), "=&x"(product_)                                               \
                         : "x"(w0), "x"(w1), "m"(*(const int32_t *)(const void *)(p)));                                \
    } while (0)

#include "kernel/x86/qgemm_body.inc"

static int32_t sum16(__m256i q)
{
    __m256i pairs = _mm256_madd_epi16(q, _mm256_set1_epi16(1));
    __m128i s = _mm_add_epi32(_mm256_castsi256_si128(pairs), _mm256_extracti128_si256(pairs, 1));
    s = _mm_add_epi32(s, _mm_shuffle_epi32(s, 0x4e));
    return _mm_cvtsi128_si32(_mm_add_epi32(s, _mm_shuffle_epi32(s, 0xb1)));
}

void kni_quantise_avx2(struct kni_xblock *dst, const float *x, size_t n_blocks)
{
    const __m256i abs_mask = _mm256_set1_epi32(0x7fffffff);
    for (size_t b = 0; b < n_blocks; b++, dst++, x += 32) {
        __m256 v[4];
        __m256i top = _mm256_setzero_si256();
        for (int i = 0; i < 4; i++) {
            v[i] = _mm256_loadu_ps(x + 8 * i);
            top = _mm256_max_epi32(top, _mm256_and_si256(_mm256_castps_si256(v[i]), abs_mask));
        }
        __m128i t = _mm_max_epi32(_mm256_castsi256_si128(top), _mm256_extracti128_si256(top, 1));
        t = _mm_max_epi32(t, _mm_shuffle_epi32(t, 0x4e));
        t = _mm_max_epi32(t, _mm_shuffle_epi32(t, 0xb1));
        float max = _mm_cvtss_f32(_mm_castsi128_ps(t));
        if (_mm_cvtsi128_si32(t) >= 0x7f800000 || max < 0x1p-100f) {
            kni_quantise_ref(dst, x, 1);
            continue;
        }
        __m256 inverse = _mm256_set1_ps(32767.0f / max);
        for (int i = 0; i < 2; i++) {
            __m256i lo = _mm256_cvtps_epi32(_mm256_mul_ps(v[2 * i], inverse)), hi = _mm256_cvtps_epi32(_mm256_mul_ps(v[2 * i + 1], inverse));
            __m256i q = _mm256_permute4x64_epi64(_mm256_packs_epi32(lo, hi), 0xd8);
            _mm256_storeu_si256((__m256i *)(void *)(dst->q + 16 * i), q);
            dst->sum[i] = sum16(q);
        }
        dst->d = max / 32767.0f;
        dst->s = dst->d * (float)(dst->sum[0] + dst->sum[1]);
    }
}
#endif
