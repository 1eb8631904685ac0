/* SPDX-License-Identifier: Apache-2.0 */
/* Slices in plain C, the reference of the other levels; and the tables that they share. */
#include "codec/hevc/hevc_state.h"

#include <string.h>

#include "base/cpu.h"

/* Diagonal scans, 6.5.3: from the lower left to the upper right, diagonal after diagonal. */
#define AT(x, y) ((y) * 8 + (x))
const uint8_t kni_hevc_sub_scan[4][64] = {
    {AT(0, 0)},
    {AT(0, 0), AT(0, 1), AT(1, 0), AT(1, 1)},
    {AT(0, 0), AT(0, 1), AT(1, 0), AT(0, 2), AT(1, 1), AT(2, 0), AT(0, 3), AT(1, 2), AT(2, 1), AT(3, 0), AT(1, 3), AT(2, 2), AT(3, 1), AT(2, 3), AT(3, 2), AT(3, 3)},
    {AT(0, 0), AT(0, 1), AT(1, 0), AT(0, 2), AT(1, 1), AT(2, 0), AT(0, 3), AT(1, 2), AT(2, 1), AT(3, 0), AT(0, 4), AT(1, 3), AT(2, 2), AT(3, 1), AT(4, 0), AT(0, 5),
     AT(1, 4), AT(2, 3), AT(3, 2), AT(4, 1), AT(5, 0), AT(0, 6), AT(1, 5), AT(2, 4), AT(3, 3), AT(4, 2), AT(5, 1), AT(6, 0), AT(0, 7), AT(1, 6), AT(2, 5), AT(3, 4),
     AT(4, 3), AT(5, 2), AT(6, 1), AT(7, 0), AT(1, 7), AT(2, 6), AT(3, 5), AT(4, 4), AT(5, 3), AT(6, 2), AT(7, 1), AT(2, 7), AT(3, 6), AT(4, 5), AT(5, 4), AT(6, 3),
     AT(7, 2), AT(3, 7), AT(4, 6), AT(5, 5), AT(6, 4), AT(7, 3), AT(4, 7), AT(5, 6), AT(6, 5), AT(7, 4), AT(5, 7), AT(6, 6), AT(7, 5), AT(6, 7), AT(7, 6), AT(7, 7)},
};
const uint8_t kni_hevc_scan_x[16] = {0, 0, 1, 0, 1, 2, 0, 1, 2, 3, 1, 2, 3, 2, 3, 3};
const uint8_t kni_hevc_scan_y[16] = {0, 1, 0, 2, 1, 0, 3, 2, 1, 0, 3, 2, 1, 3, 2, 3};
const uint8_t kni_hevc_sig_base[4][16] = {
    {2, 1, 1, 1, 1, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0},
    {2, 1, 2, 0, 1, 2, 0, 0, 1, 2, 0, 0, 1, 0, 0, 0},
    {2, 2, 1, 2, 1, 0, 2, 1, 0, 0, 1, 0, 0, 0, 0, 0},
    {2, 2, 2, 2, 2, 2, 2, 2, 2, 2, 2, 2, 2, 2, 2, 2},
};
const uint16_t kni_hevc_sig_mask[2][3] = {{0xecc8, 0x1112, 0x0225}, {0xfb20, 0x0494, 0x004b}};
const uint8_t kni_hevc_sig_order[2][16] = {
    {0, 1, 2, 8, 3, 4, 12, 9, 5, 6, 13, 10, 7, 14, 11, 15},
    {0, 1, 2, 3, 4, 8, 5, 6, 9, 12, 7, 10, 13, 11, 14, 15},
};

static inline uint32_t pack(uint32_t bits, uint32_t mask)
{
    uint32_t out = 0;
    for (uint32_t i = 0; mask; mask &= mask - 1, i++)
        out |= (bits >> __builtin_ctz(mask) & 1) << i;
    return out;
}

static inline uint32_t nth(uint32_t n, uint32_t mask)
{
    while (n--)
        mask &= mask - 1;
    return (uint32_t)__builtin_ctz(mask);
}

static inline void order(uint8_t *to, const uint8_t *from, const uint8_t *where)
{
    for (uint32_t i = 0; i < 16; i++)
        to[i] = from[where[i]];
}

/* before NULL: 128 everywhere. */
static void scan(struct kni_hevc_block *b, const uint8_t *now, size_t stride, const uint8_t *before, size_t before_stride, uint32_t size)
{
    b->coded = 0;
    for (uint32_t r = 0; r < 64; r++) {
        const uint32_t x0 = r % 8 * 4, y0 = r / 8 * 4;
        uint32_t sig = 0, sign = 0, over1 = 0, over2 = 0;
        for (uint32_t n = 0; n < 16 && x0 < size && y0 < size; n++) {
            const uint32_t x = x0 + kni_hevc_scan_x[n], y = y0 + kni_hevc_scan_y[n];
            int32_t d = now[y * stride + x] - (before ? before[y * before_stride + x] : 128);
            uint32_t level = (uint32_t)(d < 0 ? -d : d);
            b->level[r][n] = (uint8_t)level;
            sig |= (uint32_t)(level > 0) << n;
            sign |= (uint32_t)(d < 0) << n;
            over1 |= (uint32_t)(level > 1) << n;
            over2 |= (uint32_t)(level > 2) << n;
        }
        b->coded |= (uint64_t)(sig != 0) << r;
        b->sig[r] = (uint16_t)sig;
        b->sign[r] = (uint16_t)sign;
        b->over1[r] = (uint16_t)over1;
        b->over2[r] = (uint16_t)over2;
    }
}

void kni_hevc_scan_ref(struct kni_hevc_block *b, const uint8_t *now, size_t stride, const uint8_t *before, size_t before_stride, uint32_t size)
{
    scan(b, now, stride, before, before_stride, size);
}

#define slice_name kni_hevc_slice_ref
#include "codec/hevc/hevc_slice.inc"

kni_hevc_slice_fn kni_hevc_slice_get(uint32_t cpu_flags)
{
    cpu_flags = kni_cpu_flags_usable(cpu_flags);
#if defined(__x86_64__)
    if (cpu_flags & KNI_CPU_FLAG_AVX512)
        return kni_hevc_slice_avx512;
    if (cpu_flags & KNI_CPU_FLAG_AVX2)
        return kni_hevc_slice_avx2;
#endif
    return kni_hevc_slice_ref;
}
