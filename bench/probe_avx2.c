/* SPDX-License-Identifier: Apache-2.0 */
/* Multiply-add probe with 256-bit registers; the build gives this file -mavx2 -mfma. Elsewhere it is empty. */
#include "bench.h"
#include "probe_kernel.h"

#if defined(__x86_64__)
KN_PROBE_DEFINE(kn_probe_fma_avx2, 8)
#endif
