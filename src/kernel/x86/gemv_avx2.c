/* SPDX-License-Identifier: Apache-2.0 */
/*
 * One loop nest, instantiated for each block type and for 1..4 activation rows at once. Every activation row has two
 * accumulators of 8 lanes, and they are always fed in the same order, so that a row's result is the same alone or among
 * others. With a single row, two weight rows run side by side: one alone would wait for the latency of its additions.
 */
#include "kernel/gemv.h"

#if defined(__x86_64__)
#include "kernel/x86/vec_avx2.h"

#define PREFETCH_BYTES 2048
#define INLINE static inline __attribute__((always_inline))

typedef void (*block_fn)(const uint8_t *p, __m256 out[4]);

INLINE void put(const struct kni_gemv_args *a, uint32_t row, uint32_t o, __m256 acc0, __m256 acc1)
{
    float sum = vec_sum(_mm256_add_ps(acc0, acc1)), *y = a->y + row * a->ldy + o;
    *y = a->accumulate ? *y + sum : sum;
}

/* acc (2 a row) += 32 weights times n rows of x. */
INLINE void feed(__m256 *acc, const __m256 w[4], const float *x, size_t ldx, uint32_t n)
{
    for (uint32_t r = 0; r < n; r++) {
        acc[2 * r] = _mm256_fmadd_ps(w[0], _mm256_loadu_ps(x + r * ldx), acc[2 * r]);
        acc[2 * r + 1] = _mm256_fmadd_ps(w[1], _mm256_loadu_ps(x + r * ldx + 8), acc[2 * r + 1]);
        acc[2 * r] = _mm256_fmadd_ps(w[2], _mm256_loadu_ps(x + r * ldx + 16), acc[2 * r]);
        acc[2 * r + 1] = _mm256_fmadd_ps(w[3], _mm256_loadu_ps(x + r * ldx + 24), acc[2 * r + 1]);
    }
}

/* n_w weight rows from o on, n_x activation rows from row on; both constants where inlined. */
INLINE void rows(const struct kni_gemv_args *a, block_fn block, uint32_t block_bytes, uint32_t o, uint32_t n_w, uint32_t row, uint32_t n_x)
{
    const uint8_t *w = (const uint8_t *)a->w + o * a->row_bytes;
    const float *x = a->x + row * a->ldx;
    __m256 acc[8];
    for (uint32_t i = 0; i < 2 * n_w * n_x; i++)
        acc[i] = _mm256_setzero_ps();
    for (uint32_t i = 0; i < a->n_in; i += 32, w += block_bytes) {
        __m256 v[4];
        _mm_prefetch((const char *)w + PREFETCH_BYTES, _MM_HINT_T0);
        for (uint32_t j = 0; j < n_w; j++) {
            block(w + j * a->row_bytes, v);
            feed(acc + 2 * j * n_x, v, x + i, a->ldx, n_x);
        }
    }
    for (uint32_t j = 0; j < n_w; j++)
        for (uint32_t r = 0; r < n_x; r++)
            put(a, row + r, o + j, acc[2 * (j * n_x + r)], acc[2 * (j * n_x + r) + 1]);
}

INLINE void gemv(const struct kni_gemv_args *a, block_fn block, uint32_t block_bytes)
{
    for (uint32_t row = 0; row < a->n_x; row += 4) {
        uint32_t n = a->n_x - row, o = 0;
        switch (n) {
        case 1:
            for (; o + 2 <= a->n_out; o += 2)
                rows(a, block, block_bytes, o, 2, row, 1);
            for (; o < a->n_out; o++)
                rows(a, block, block_bytes, o, 1, row, 1);
            break;
        case 2:
            for (; o < a->n_out; o++)
                rows(a, block, block_bytes, o, 1, row, 2);
            break;
        case 3:
            for (; o < a->n_out; o++)
                rows(a, block, block_bytes, o, 1, row, 3);
            break;
        default:
            for (; o < a->n_out; o++)
                rows(a, block, block_bytes, o, 1, row, 4);
        }
    }
}

void kni_gemv_q4_0_avx2(const struct kni_gemv_args *a)
{
    gemv(a, vec_block_q4_0, 18);
}

void kni_gemv_q4_1_avx2(const struct kni_gemv_args *a)
{
    gemv(a, vec_block_q4_1, 20);
}

void kni_gemv_q8_0_avx2(const struct kni_gemv_args *a)
{
    gemv(a, vec_block_q8_0, 34);
}

void kni_gemv_any_avx2(const struct kni_gemv_args *a)
{
    uint32_t whole = a->n_in & ~31u;
    for (uint32_t o = 0; o < a->n_out; o++) {
        a->dequant((const uint8_t *)a->w + o * a->row_bytes, a->scratch, a->n_in);
        for (uint32_t r = 0; r < a->n_x; r++) {
            const float *x = a->x + r * a->ldx;
            __m256 acc[2] = {_mm256_setzero_ps(), _mm256_setzero_ps()};
            for (uint32_t i = 0; i < whole; i += 32) {
                __m256 v[4];
                for (int j = 0; j < 4; j++)
                    v[j] = _mm256_loadu_ps(a->scratch + i + 8 * j);
                feed(acc, v, x + i, a->ldx, 1);
            }
            for (uint32_t i = whole; i < a->n_in; i += 8) {
                __m256i mask = vec_mask(a->n_in - i);
                acc[0] = _mm256_fmadd_ps(_mm256_maskload_ps(a->scratch + i, mask), _mm256_maskload_ps(x + i, mask), acc[0]);
            }
            put(a, r, o, acc[0], acc[1]);
        }
    }
}
#endif
