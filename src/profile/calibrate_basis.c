/* SPDX-License-Identifier: Apache-2.0 */
/*
 * From sums and products to means and bases: the covariance of a part, its eigenvectors in descending order of variance, as bfloat16.
 *
 * The solver is LAPACK's dsyevd (divide and conquer, eigen.h), one part after the other; OpenBLAS uses the machine's cores by itself.
 *
 * bfloat16 keeps 8 bits of a component: each is off by 2^-9 of itself at most, so a basis vector by 2^-9 of its length, in a random
 * direction. The encoder rounds with the rounded basis too, so what is lost is only orthogonality: rows that leak into each other by
 * some 2^-9 / sqrt(width) of their size.
 */
#include "profile/calibrate_state.h"

#include <math.h>
#include <string.h>

#include "base/alloc.h"
#include "base/half.h"
#include "profile/eigen.h"

/* Means, then the products in place into the covariance's lower triangle as LAPACK sees it (columns are our rows). False when the part is constant. */
static bool centre(struct kni_calibrate *c, uint32_t index)
{
    struct kni_calibrate_part *own = &c->parts[index];
    size_t width = c->profile.parts[index].width;
    double n = (double)c->n_added, trace = 0;
    for (size_t i = 0; i < width; i++)
        own->mean[i] = (float)(own->sum[i] / n);
    for (size_t i = 0; i < width; i++)
        for (size_t k = i; k < width; k++)
            own->product[i * width + k] = own->product[i * width + k] / n - own->sum[i] / n * (own->sum[k] / n);
    for (size_t i = 0; i < width; i++)
        trace += own->product[i * width + i];
    return trace > 1e-9 * (double)width;
}

static void typical_exponents(struct kni_calibrate *c, uint32_t index)
{
    struct kni_calibrate_part *own = &c->parts[index];
    for (uint32_t l = 0; l < c->profile.parts[index].n_layers; l++) {
        const uint64_t *count = own->exponents + l * KNI_CALIBRATE_EXPONENTS;
        uint64_t seen = 0;
        uint32_t e = 0;
        while (e < KNI_CALIBRATE_EXPONENTS - 1 && (seen += count[e]) * 2 < c->n_added) /* the median: the least sum of |e - typical| */
            e++;
        own->exponent[l] = (int8_t)((int)e + KNI_CALIBRATE_EXPONENT_MIN);
    }
}

/* vectors: [width][width], one a row, ascending variance. The sign of an eigenvector is free: the largest component becomes positive,
 * so that builds can be compared. */
static void store_basis(uint16_t *basis, const double *vectors, size_t width)
{
    for (size_t row = 0; row < width; row++) {
        const double *v = vectors + (width - 1 - row) * width;
        size_t largest = 0;
        for (size_t i = 1; i < width; i++)
            if (fabs(v[i]) > fabs(v[largest]))
                largest = i;
        double sign = v[largest] < 0 ? -1 : 1;
        for (size_t i = 0; i < width; i++)
            basis[row * width + i] = kni_f32_to_bf16((float)(sign * v[i]));
    }
}

enum kn_status kni_calibrate_solve(struct kni_calibrate *c, void (*share)(void *user, double done), void *user, struct kn_err *err)
{
    struct kni_eigen eigen;
    enum kn_status status = kni_eigen_open(&eigen, c->max_width, err);
    if (status)
        goto done;
    for (uint32_t i = 0; i < c->profile.n_parts; i++) {
        struct kni_calibrate_part *own = &c->parts[i];
        size_t width = c->profile.parts[i].width;
        if (share)
            share(user, (double)i / c->profile.n_parts);
        typical_exponents(c, i);
        if (!centre(c, i)) {
            status = kni_err_set(err, KN_E_ARG, "%s of layers %u to %u never varies in the calibration text: give real text", i & 1 ? "V" : "K", c->profile.parts[i].first_layer,
                                 c->profile.parts[i].first_layer + c->profile.parts[i].n_layers - 1);
            goto done;
        }
        own->basis = kni_alloc(KNI_ALLOC_TAG_CODEC, width * width * sizeof *own->basis, 64);
        if (!own->basis)
            goto no_memory;
        status = kni_eigen_solve(&eigen, own->product, (uint32_t)width, err);
        if (status)
            goto done;
        store_basis(own->basis, own->product, width);
        c->profile.parts[i].basis = own->basis;
        kni_free(own->product);
        own->product = NULL;
    }
    goto done;
no_memory:
    status = kni_err_set(err, KN_E_NOMEM, "no memory for the eigenvectors of %u components; use fewer layers a group", c->max_width);
done:
    kni_eigen_close(&eigen);
    return status;
}
