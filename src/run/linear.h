/* SPDX-License-Identifier: Apache-2.0 */
/*
 * One worker's share of a product of activation rows with a packed weight matrix of any type: some columns of the result.
 *
 *     y[r][c] (+)= sum over i of x[r][i] * W[col0 + c][i]
 *
 * Quantised types take blocks of 16-bit integers (kernel/qgemm.h), float types take floats: panels of F16 and BF16 become floats
 * in scratch, KNI_LINEAR_FLOAT_K inputs at a time, and go to the float gemm. Either way an element's bits depend neither on
 * the number of rows nor on how columns are shared out.
 */
#ifndef KNI_RUN_LINEAR_H
#define KNI_RUN_LINEAR_H

#include "kernel/kernels.h"

#define KNI_LINEAR_FLOAT_K 256u

struct kni_linear_args {
    const struct kni_kernels *kernels;
    const struct kni_panels *w;
    const float *x; /* [n_rows][n_in], dense; not read by quantised types */
    const struct kni_xblock *xq; /* [n_rows][n_in / 32], dense; not read by float types */
    uint32_t n_rows;
    uint32_t col0, n_cols; /* col0 is a multiple of 16 */
    float *y;              /* element (row 0, column col0) */
    size_t ldy;
    bool accumulate;
    void *scratch; /* kni_linear_scratch_bytes(), 64-byte aligned */
};

static inline bool kni_linear_is_quantised(const struct kni_panels *w)
{
    return kni_panel_get_form(w->type)->values != KNI_PANEL_VALUES_FLOAT;
}

size_t kni_linear_scratch_bytes(void);
void kni_linear(const struct kni_linear_args *a);

#endif
