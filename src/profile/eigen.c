/* SPDX-License-Identifier: Apache-2.0 */
/* The border to LAPACKE: see eigen.h. Its arrays are in columns, so that our rows right of the diagonal are its lower triangle. */
#include "profile/eigen.h"

#include <assert.h>
#include <dlfcn.h>
#include <lapacke.h>
#include <signal.h>
#include <string.h>

#include "base/alloc.h"
#include "base/signals.h"

/* LAPACKE_dsyevd_work: its memory is ours. */
typedef lapack_int (*solve_fn)(int layout, char job, char triangle, lapack_int n, double *a, lapack_int lda, double *values, double *work, lapack_int n_work,
                               lapack_int *iwork, lapack_int n_iwork);

enum kn_status kni_eigen_open(struct kni_eigen *e, uint32_t max_n, struct kn_err *err)
{
    size_t n = max_n;
    sigset_t before;
    *e = (struct kni_eigen){.max_n = max_n};
    kni_signals_block(&before); /* threads that OpenBLAS starts leave the program's signals alone */
    e->library = dlopen("liblapacke.so.3", RTLD_NOW | RTLD_LOCAL | RTLD_NODELETE); /* stays: its threads outlive a close */
    kni_signals_restore(&before);
    e->symbol = e->library ? dlsym(e->library, "LAPACKE_dsyevd_work") : NULL;
    if (!e->symbol)
        return kni_err_set(err, KN_E_UNSUPPORTED, "eigenvectors need LAPACKE (Debian: liblapacke, and libopenblas0 for its speed): %s", dlerror());
    e->work = kni_alloc(KNI_ALLOC_TAG_CODEC, (1 + 6 * n + 2 * n * n) * sizeof *e->work, 64);
    e->iwork = kni_alloc(KNI_ALLOC_TAG_CODEC, (3 + 5 * n) * sizeof(lapack_int), 64);
    e->values = kni_alloc(KNI_ALLOC_TAG_CODEC, n * sizeof *e->values, 64);
    return e->work && e->iwork && e->values ? KN_OK : kni_err_set(err, KN_E_NOMEM, "no memory for the eigenvectors of %u components", max_n);
}

void kni_eigen_close(struct kni_eigen *e)
{
    kni_free(e->work);
    kni_free(e->iwork);
    kni_free(e->values);
    if (e->library)
        dlclose(e->library);
    *e = (struct kni_eigen){0};
}

enum kn_status kni_eigen_solve(struct kni_eigen *e, double *matrix, uint32_t n, struct kn_err *err)
{
    size_t width = n, n_work = 1 + 6 * width + 2 * width * width, n_iwork = 3 + 5 * width;
    solve_fn solve;
    assert(n && n <= e->max_n);
    memcpy(&solve, &e->symbol, sizeof solve); /* ISO C has no cast from an object's pointer to a function's */
    lapack_int info = solve(LAPACK_COL_MAJOR, 'V', 'L', (lapack_int)n, matrix, (lapack_int)n, e->values, e->work, (lapack_int)n_work, e->iwork, (lapack_int)n_iwork);
    return info ? kni_err_set(err, KN_E_ARG, "the eigenvectors of %u components cannot be found (dsyevd: %d): give other calibration text", n, (int)info) : KN_OK;
}
