/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Products of activation rows with a packed weight matrix (panel.h), for one row or thousands:
 *
 *     y[r][o] (+)= sum over i of W[o][i] * x[r][i]
 *
 * Quantised types: activations become 16-bit integers in blocks of 32, x = d * q with d = max |x| / 32767, which costs less
 * than the rounding of K and V to 16 bits (a relative error of 1.5e-5 of the block's largest value); 8 bits would not hold the
 * budget of 0.05 against the reference logits. The product of two blocks is then an exact integer, and floats are touched once a
 * block, in ascending order:
 *
 *     y = y + float(sum of (w - offset) * q) * (d_w * d_x)         one term a block, two a block for Q6_K
 *     y = y + m_w * (d_x * float(sum of q))                        types with a minimum
 *
 * with every operation rounded by itself (no fused multiply-add). So a row has the same bits alone or among others, by the
 * reference and by every SIMD level, however rows and columns are cut. Integers cannot overflow: at most 32 * 128 * 32768 a sum.
 *
 * A block with an infinity or NaN has d = NaN, so its row becomes NaN. One whose largest value is below 2^-100 counts as 0.
 *
 * Few rows read the packed panel in each tile of rows; many rows (from KNI_QGEMM_MANY) unpack a panel into 16-bit integers
 * first, which then stays in the first cache. Float types (F32, F16, BF16) turn a panel into floats and use the float gemm.
 *
 * No errors, no allocation. Any thread.
 */
#ifndef KNI_KERNEL_QGEMM_H
#define KNI_KERNEL_QGEMM_H

#include "kernel/panel.h"

#define KNI_QGEMM_MANY 32u

/* 32 activations of a row. */
struct kni_xblock {
    int16_t q[32];
    float d, s;     /* scale; d * float(sum of all q) */
    int32_t sum[2]; /* of q[0..15], of q[16..31] */
};
_Static_assert(sizeof(struct kni_xblock) == 80, "rows of blocks are dense");

/* dst[n_blocks] from x[32 * n_blocks]. */
typedef void (*kni_quantise_fn)(struct kni_xblock *dst, const float *x, size_t n_blocks);

/* Scratch of one product: scales of a chunk | its values, unpacked. */
struct kni_qgemm_scratch {
    _Alignas(64) float d[KNI_PANEL_CHUNK * 2 * KNI_PANEL_COLS];
    _Alignas(64) float m[KNI_PANEL_CHUNK * KNI_PANEL_COLS];
    _Alignas(64) int16_t values[KNI_PANEL_CHUNK * KNI_PANEL_BLOCK * KNI_PANEL_COLS];
};

struct kni_qgemm_args {
    const struct kni_panels *w; /* of a quantised type */
    uint32_t col0, n_cols;      /* outputs; col0 is a multiple of 16 */
    const struct kni_xblock *x;
    size_t ldx; /* blocks from one row to the next */
    uint32_t n_rows;
    float *y; /* element (row 0, col0) */
    size_t ldy;
    bool accumulate; /* the chain starts with what y holds instead of 0 */
    struct kni_qgemm_scratch *scratch;
};

typedef void (*kni_qgemm_fn)(const struct kni_qgemm_args *a);

void kni_quantise_ref(struct kni_xblock *dst, const float *x, size_t n_blocks);
void kni_qgemm_ref(const struct kni_qgemm_args *a);
#if defined(__x86_64__)
void kni_quantise_avx2(struct kni_xblock *dst, const float *x, size_t n_blocks);
void kni_qgemm_avx2(const struct kni_qgemm_args *a);
void kni_qgemm_avx512(const struct kni_qgemm_args *a);
void kni_qgemm_vnni_avx512(const struct kni_qgemm_args *a); /* vpdpwssd */
#endif

#endif
