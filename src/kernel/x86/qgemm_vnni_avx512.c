/* SPDX-License-Identifier: Apache-2.0 */
/* qgemm with 512-bit vectors and vpdpwssd, which adds a product of pairs in one operation; same integers. CMake adds the flag. */
#define QG_NAME kni_qgemm_vnni_avx512
#define V_DOT(acc, w, x) _mm512_dpwssd_epi32(acc, w, x)
#include "kernel/x86/qgemm_avx512.c"
