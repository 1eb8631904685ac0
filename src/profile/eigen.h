/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Eigenvectors of symmetric matrices, by LAPACK's dsyevd through LAPACKE. The library is opened when it is needed and not linked: OpenBLAS
 * starts threads and takes 40 MB as soon as it is loaded. Any thread; one call at a time uses all cores.
 */
#ifndef KNI_CODEC_EIGEN_H
#define KNI_CODEC_EIGEN_H

#include "base/status.h"

#include <stddef.h>
#include <stdint.h>

/* Memory for matrices of up to a width. Zero-initialise before open. */
struct kni_eigen {
    void *library;
    void *symbol;
    uint32_t max_n;
    double *work, *values; /* values [max_n]: eigenvalues of the last matrix, ascending */
    void *iwork;
};

/* KN_E_UNSUPPORTED without LAPACKE, KN_E_NOMEM; with a sentence. Close it in either case. */
enum kn_status kni_eigen_open(struct kni_eigen *e, uint32_t max_n, struct kn_err *err);
void kni_eigen_close(struct kni_eigen *e);
/* matrix: [n][n], of which the part on and right of the diagonal is read; replaced by the eigenvectors, one a row, ascending
 * eigenvalues. KN_E_ARG when there is no finite answer. Allocates nothing of ours. */
enum kn_status kni_eigen_solve(struct kni_eigen *e, double *matrix, uint32_t n, struct kn_err *err);

#endif
