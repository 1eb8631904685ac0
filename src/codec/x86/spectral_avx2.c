/* SPDX-License-Identifier: Apache-2.0 */
/* The spectral transform's loops with 256-bit vectors. */
#include "codec/spectral_ops.h"

#if defined(__x86_64__)
#include <immintrin.h>

void kni_spectral_use_avx2(struct kni_spectral_ops *ops)
{
    ops->gemm = kni_gemm_avx2;
}
#endif
