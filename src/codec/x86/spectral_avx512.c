/* SPDX-License-Identifier: Apache-2.0 */
/* The spectral transform's loops with 512-bit vectors. */
#include "codec/spectral_ops.h"

#if defined(__x86_64__)
#include <immintrin.h>

void kni_spectral_use_avx512(struct kni_spectral_ops *ops)
{
    (void)ops;
}
#endif
