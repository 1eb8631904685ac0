/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Inside of KVTC, shared by kvtc_learn.c (sums, bases, allocation) and kvtc.c (coding). A part is K or V of a group of layers,
 * part = group * 2 + is_v, components in the order [layer in group][kv head][d_head]. Owner: the handle's thread.
 */
#ifndef KNI_CODEC_KVTC_STATE_H
#define KNI_CODEC_KVTC_STATE_H

#include <stdatomic.h>

#include "measure/baseline/kvtc.h"
#include "kernel/kernels.h"

#define KNI_KVTC_BLOCK 256u  /* tokens at a time */
#define KNI_KVTC_SAMPLE 512u /* rows kept for the allocation */
#define KNI_KVTC_UNIT 16u    /* groups begin at multiples of it */
#define KNI_KVTC_TILE 64u    /* rows of a product's tile */

struct kni_kvtc_group { uint32_t first, n, bits; }; /* components; bits 0, 2, 4, 8 */

struct kni_kvtc_part {
    uint32_t first_layer, n_layers, width;
    double *sum, *product;  /* product [width][width] from the diagonal on: freed once solved */
    float *mean, *basis;    /* [width]; [width][width] a row a component, descending variance */
    float *forward;         /* the basis in panels of 16 components: kernel/gemm.h */
    float *sample;          /* [KNI_KVTC_SAMPLE][width] rows; once solved, their components */
    struct kni_kvtc_group *groups; /* [width / KNI_KVTC_UNIT] at most */
    uint32_t n_groups;
    double *errors;         /* of groups on the sample: [start][size][type], see kvtc_learn.c */
};

struct kni_kvtc {
    struct kni_kvtc_opts opts;
    struct kni_kernels kernels;
    uint32_t n_parts, max_width, row; /* row: values of a token's K or V of one layer */
    struct kni_kvtc_part *parts;
    uint64_t n_added, n_sampled, n_seen;
    float *x, *y;           /* [workers][KNI_KVTC_BLOCK][max_width] */
    float *tiles;           /* [workers][KNI_KVTC_TILE][max_width] */
    float *cos_row, *sin_row; /* [workers][d_head] */
    const struct kni_kv_host *view; /* of the call that workers work on */
    uint32_t n_tokens;
    double lambda;
    _Atomic uint32_t next_part;
};

/* Rows of tokens first.. + n of a part to x [n][width], keys un-rotated. worker: whose scratch. */
void kni_kvtc_rows(const struct kni_kvtc *k, const struct kni_kv_host *view, uint32_t part, uint32_t first, uint32_t n, uint32_t worker, float *x);
/* y = basis * (x - mean); x is changed. */
void kni_kvtc_forward(const struct kni_kvtc *k, uint32_t part, uint32_t n, float *x, float *y);

/* Shift and scale of a group's components as their 16 bits hold them. */
struct kni_kvtc_range { float low, scale; uint16_t low_bits, scale_bits; };
struct kni_kvtc_range kni_kvtc_range_of(const float *y, uint32_t n, uint32_t bits);
/* The code of one component. */
uint32_t kni_kvtc_code(const struct kni_kvtc_range *r, float y, uint32_t bits);

#endif
