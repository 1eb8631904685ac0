/* SPDX-License-Identifier: Apache-2.0 */
/* qgemm with 512-bit vectors, one a panel: tiles of 8 rows on packed values, of 12 on unpacked ones. See also qgemm_vnni_avx512.c. */
#include "kernel/qgemm.h"

#if defined(__x86_64__)
#include <immintrin.h>

#ifndef QG_NAME
#define QG_NAME kni_qgemm_avx512
#define V_DOT(acc, w, x) _mm512_add_epi32(acc, _mm512_madd_epi16(w, x))
#endif
#define QG_LANES 16
#define QG_FEW 8
#define QG_MANY 12
#define QG_EACH_FEW(X) X(1) X(2) X(3) X(4) X(5) X(6) X(7) X(8)
#define QG_EACH_MANY(X) QG_EACH_FEW(X) X(9) X(10) X(11) X(12)
#define VI __m512i
#define VF __m512
#define V_LOAD(p) _mm512_load_si512((const void *)(p))
#define V_STORE(p, v) _mm512_store_si512((void *)(p), v)
#define V_BROADCAST32(p) _mm512_castps_si512(V_BROADCASTF(p))
#define V_SET16(n) _mm512_set1_epi16(n)
#define V_SET32(n) _mm512_set1_epi32(n)
#define V_ZERO() _mm512_setzero_si512()
#define V_AND(a, b) _mm512_and_si512(a, b)
#define V_OR(a, b) _mm512_or_si512(a, b)
#define V_SRL16(v, n) _mm512_srli_epi16(v, n)
#define V_SLL16(v, n) _mm512_slli_epi16(v, n)
#define V_SRA16(v, n) _mm512_srai_epi16(v, n)
#define V_SRL16_BY(v, n) _mm512_srl_epi16(v, _mm_cvtsi32_si128((int)(n)))
#define V_SUB16(a, b) _mm512_sub_epi16(a, b)
#define V_ADD32(a, b) _mm512_add_epi32(a, b)
#define V_SUB32(a, b) _mm512_sub_epi32(a, b)
#define V_MUL32(a, b) _mm512_mullo_epi32(a, b)
#define V_CVTF(v) _mm512_cvtepi32_ps(v)
#define V_LOADF(p) _mm512_load_ps(p)
#define V_STOREF(p, v) _mm512_store_ps(p, v)
#define V_BROADCASTF(p) _mm512_broadcastss_ps(_mm_load_ss((const float *)(const void *)(p)))
#define V_ADDF(a, b) _mm512_add_ps(a, b)
#define V_MULF(a, b) _mm512_mul_ps(a, b)
#define V_PREFETCH(p) _mm_prefetch((const char *)(p), _MM_HINT_T0)

#define V_ROW(a, b, w0, w1, p)                                                                                      \
    do {                                                                                                            \
        a = V_DOT(a, w0, V_BROADCAST32(p));                                                                         \
        __asm__ volatile("" : "+v"(a)); /* integer sums may be reordered, and gcc would, until registers run out */ \
    } while (0)

#include "kernel/x86/qgemm_body.inc"
#endif
