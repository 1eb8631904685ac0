/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Float matrix product with a packed right side, for prompts and for attention tiles:
 *
 *     C[m][n] (+)= A[m][k] * B[k][n]
 *
 * B lies in panels of 16 columns; inside a panel, row i of 16 floats starts at i * ldb:
 *
 *     panel 0: columns 0..15          panel 1: columns 16..31
 *     [k rows, ldb apart][16]         the same, panel_stride floats further
 *
 * so one layout covers a packed weight panel of a float type (ldb 16, panel_stride 16 * k) and a plain row-major matrix (ldb = its row
 * length, panel_stride 16). A is row-major and is read by broadcasts; it needs no packing.
 *
 * Why not the BLAS: it would pack both sides at every call, and each element of C is
 * one chain of multiply-adds over k in ascending order, whatever m is: a prompt gives the same bits for every chunk size
 * that goes this way. Measured against sgemm in doc/speed-log.md.
 *
 * Columns beyond n in the last panel are read (the panel must be whole) but not stored. No errors. Any thread.
 */
#ifndef KNI_KERNEL_GEMM_H
#define KNI_KERNEL_GEMM_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define KNI_GEMM_PANEL 16u

struct kni_gemm_args {
    uint32_t m, n, k;
    const float *a;
    size_t lda;
    const float *b;
    size_t ldb, panel_stride;
    float *c;
    size_t ldc;
    bool accumulate; /* C += instead of C = */
};

typedef void (*kni_gemm_fn)(const struct kni_gemm_args *g);

/* Transposes 16 rows into panel order: dst[i * 16 + j] = src[j * lds + i] for i < k, j < 16. */
typedef void (*kni_pack16_fn)(float *dst, const float *src, size_t lds, uint32_t k);

void kni_gemm_ref(const struct kni_gemm_args *g);
void kni_pack16_ref(float *dst, const float *src, size_t lds, uint32_t k);
#if defined(__x86_64__)
void kni_gemm_avx2(const struct kni_gemm_args *g);
void kni_gemm_avx512(const struct kni_gemm_args *g); /* the same bits as AVX2 */
void kni_pack16_avx2(float *dst, const float *src, size_t lds, uint32_t k);
#endif

#endif
