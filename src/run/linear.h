/* SPDX-License-Identifier: Apache-2.0 */
/*
 * One worker's share of a product of activation rows with a weight matrix of any type: some columns of the result.
 *
 *     y[r][c] (+)= sum over i of x[r][i] * W[col0 + c][i]
 *
 * With few, rows go to the quantised GEMV. Otherwise 48 weight rows are dequantised into packed panels in scratch and
 * multiplied from there, KNI_LINEAR_K_MAX inputs at a time:
 *
 *     W [n_out][n_in], blocks  ->  16 rows of floats  ->  panels [3][k][16]  ->  gemm with x
 *
 * An element's value does not depend on how columns are shared out, nor on the number of rows within one of the two ways.
 */
#ifndef KNI_RUN_LINEAR_H
#define KNI_RUN_LINEAR_H

#include "kernel/kernels.h"
#include "model/model.h"

#define KNI_LINEAR_COLS 48u   /* columns of one gemm: a whole number of panels; 48 = 12 units for 576 outputs */
#define KNI_LINEAR_K_MAX 768u /* a multiple of the largest block, 256; 48 columns of it are 147 kB, within the second cache */

struct kni_linear_args {
    const struct kni_kernels *kernels;
    const struct kni_tensor *w;
    const float *x;
    size_t ldx;
    uint32_t n_rows;
    bool few;              /* the GEMV way: n_rows is at most KNI_GEMV_MAX_ROWS */
    uint32_t col0, n_cols; /* n_cols at most KNI_LINEAR_COLS unless few */
    float *y;              /* element (row 0, column col0) */
    size_t ldy;
    bool accumulate;
    float *scratch; /* kni_linear_scratch_floats(), 32-byte aligned */
};

size_t kni_linear_scratch_floats(uint32_t n_in_max);
void kni_linear(const struct kni_linear_args *a);

#endif
