/* SPDX-License-Identifier: Apache-2.0 */
/* The border to LAPACKE: see eigen.h. Its arrays are in columns, so that our rows right of the diagonal are its lower triangle. */
#include "codec/eigen.h"

#include <dlfcn.h>
#include <lapacke.h>
#include <signal.h>
#include <string.h>

#include "base/alloc.h"
#include "base/signals.h"

/* LAPACKE_dsyevd_work: its memory is ours. */
typedef lapack_int (*solve_fn)(int layout, char job, char triangle, lapack_int n, double *a, lapack_int lda, double *values, double *work, lapack_int n_work,
                               lapack_int *iwork, lapack_int n_iwork);

enum kn_status kni_eigen_symmetric(double *matrix, uint32_t n, double *values, struct kn_err *err)
{
    size_t n_work = 1 + 6 * (size_t)n + 2 * (size_t)n * n, n_iwork = 3 + 5 * (size_t)n;
    enum kn_status status = KN_OK;
    lapack_int *iwork = NULL;
    double *work = NULL;
    sigset_t before;
    kni_signals_block(&before); /* threads that OpenBLAS starts leave the program's signals alone */
    void *library = dlopen("liblapacke.so.3", RTLD_NOW | RTLD_LOCAL | RTLD_NODELETE); /* stays: its threads outlive a close */
    kni_signals_restore(&before);
    void *symbol = library ? dlsym(library, "LAPACKE_dsyevd_work") : NULL;
    solve_fn solve;
    if (!symbol)
        return kni_err_set(err, KN_E_UNSUPPORTED, "eigenvectors need LAPACKE (Debian: liblapacke, and libopenblas0 for its speed): %s", dlerror());
    memcpy(&solve, &symbol, sizeof solve); /* ISO C has no cast from an object's pointer to a function's */
    work = kni_alloc(KNI_ALLOC_TAG_CODEC, n_work * sizeof *work, 64);
    iwork = kni_alloc(KNI_ALLOC_TAG_CODEC, n_iwork * sizeof *iwork, 64);
    if (!work || !iwork) {
        status = kni_err_set(err, KN_E_NOMEM, "no memory for the eigenvectors of %u components", n);
        goto done;
    }
    lapack_int info = solve(LAPACK_COL_MAJOR, 'V', 'L', (lapack_int)n, matrix, (lapack_int)n, values, work, (lapack_int)n_work, iwork, (lapack_int)n_iwork);
    if (info)
        status = kni_err_set(err, KN_E_ARG, "the eigenvectors of %u components cannot be found (dsyevd: %d): give other calibration text", n, (int)info);
done:
    kni_free(work);
    kni_free(iwork);
    dlclose(library);
    return status;
}
