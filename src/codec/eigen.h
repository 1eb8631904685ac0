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

/* matrix: [n][n], of which the part on and right of the diagonal is read; replaced by the eigenvectors, one a row, ascending
 * eigenvalues, which go to values [n]. KN_E_UNSUPPORTED without LAPACKE, KN_E_NOMEM, KN_E_ARG (no finite answer); with a sentence. */
enum kn_status kni_eigen_symmetric(double *matrix, uint32_t n, double *values, struct kn_err *err);

#endif
