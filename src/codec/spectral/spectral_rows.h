/* SPDX-License-Identifier: Apache-2.0 */
/*
 * From the pool to rows that are ready for a basis: one token of one layer at a time. Shared by the transform and by calibration.
 *
 *     pool, 16 bits, [head][token in block][d] --> row [n_kv_head][d]: floats, finite, keys un-rotated, weighted
 *
 * No errors. Any thread.
 */
#ifndef KNI_CODEC_SPECTRAL_ROWS_H
#define KNI_CODEC_SPECTRAL_ROWS_H

#include "codec/profile/profile.h"
#include "codec/spectral/spectral_ops.h"
#include "kernel/kernels.h"

#define KNI_SPECTRAL_EXPONENT_MIN (-96)
#define KNI_SPECTRAL_EXPONENT_MAX 95

struct kni_spectral_row_args {
    const struct kni_kernels *kernels;
    const struct kni_spectral_ops *ops;
    const struct kni_kv_host *view;
    uint32_t layer, is_v, pos;
    /* Of keys: n_pairs of a head turn by these; un-rotating, sin has its sign changed. NULL for values. */
    bool neox;
    uint32_t n_pairs;
    const float *cos_row, *sin_row;
    const float *weight; /* [n_kv_head * d_head] or NULL */
    float *x;            /* [n_kv_head * d_head] */
};

/* Fills x; returns its exponent e = rint(4 log2(rms)), -96..95, -96 for zeros. */
int32_t kni_spectral_row(const struct kni_spectral_row_args *a);
/* 2^(e / 4). */
float kni_spectral_scale(int32_t e);

#endif
