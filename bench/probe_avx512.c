/* SPDX-License-Identifier: Apache-2.0 */
/* Multiply-add probe with 512-bit registers; the build gives this file -mavx512f. Elsewhere it is empty. */
#include "bench.h"
#include "probe_kernel.h"

#if defined(__x86_64__)
KN_PROBE_DEFINE(kn_probe_fma_avx512, 16)
#endif
