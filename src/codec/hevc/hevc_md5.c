/* SPDX-License-Identifier: Apache-2.0 */
/* See hevc_md5.h. The 64 steps are written out: four registers change places at each, which costs nothing only when
 * they are named. */
#include "codec/hevc/hevc_md5.h"

#include <string.h>

#include "base/le.h"

/* The four functions of section 3.4, F and G with one operation less than written there. */
#define F(x, y, z) ((z) ^ ((x) & ((y) ^ (z))))
#define G(x, y, z) ((y) ^ ((z) & ((x) ^ (y))))
#define H(x, y, z) ((x) ^ (y) ^ (z))
#define I(x, y, z) ((y) ^ ((x) | ~(z)))

#define STEP(f, a, b, c, d, k, shift, t)                    \
    a += f(b, c, d) + kni_le32_get(data + 4 * (k)) + (t);   \
    a = (a << (shift) | a >> (32 - (shift))) + b;
/* Four steps: words k0 to k3, shifts s0 to s3, constants t0 to t3. */
#define FOUR(f, k0, k1, k2, k3, s0, s1, s2, s3, t0, t1, t2, t3) \
    STEP(f, a, b, c, d, k0, s0, t0)                             \
    STEP(f, d, a, b, c, k1, s1, t1)                             \
    STEP(f, c, d, a, b, k2, s2, t2)                             \
    STEP(f, b, c, d, a, k3, s3, t3)

static void add_blocks(uint32_t state[4], const uint8_t *data, size_t n_blocks)
{
    for (; n_blocks; n_blocks--, data += 64) {
        uint32_t a = state[0], b = state[1], c = state[2], d = state[3];
        FOUR(F, 0, 1, 2, 3, 7, 12, 17, 22, 0xd76aa478u, 0xe8c7b756u, 0x242070dbu, 0xc1bdceeeu)
        FOUR(F, 4, 5, 6, 7, 7, 12, 17, 22, 0xf57c0fafu, 0x4787c62au, 0xa8304613u, 0xfd469501u)
        FOUR(F, 8, 9, 10, 11, 7, 12, 17, 22, 0x698098d8u, 0x8b44f7afu, 0xffff5bb1u, 0x895cd7beu)
        FOUR(F, 12, 13, 14, 15, 7, 12, 17, 22, 0x6b901122u, 0xfd987193u, 0xa679438eu, 0x49b40821u)
        FOUR(G, 1, 6, 11, 0, 5, 9, 14, 20, 0xf61e2562u, 0xc040b340u, 0x265e5a51u, 0xe9b6c7aau)
        FOUR(G, 5, 10, 15, 4, 5, 9, 14, 20, 0xd62f105du, 0x02441453u, 0xd8a1e681u, 0xe7d3fbc8u)
        FOUR(G, 9, 14, 3, 8, 5, 9, 14, 20, 0x21e1cde6u, 0xc33707d6u, 0xf4d50d87u, 0x455a14edu)
        FOUR(G, 13, 2, 7, 12, 5, 9, 14, 20, 0xa9e3e905u, 0xfcefa3f8u, 0x676f02d9u, 0x8d2a4c8au)
        FOUR(H, 5, 8, 11, 14, 4, 11, 16, 23, 0xfffa3942u, 0x8771f681u, 0x6d9d6122u, 0xfde5380cu)
        FOUR(H, 1, 4, 7, 10, 4, 11, 16, 23, 0xa4beea44u, 0x4bdecfa9u, 0xf6bb4b60u, 0xbebfbc70u)
        FOUR(H, 13, 0, 3, 6, 4, 11, 16, 23, 0x289b7ec6u, 0xeaa127fau, 0xd4ef3085u, 0x04881d05u)
        FOUR(H, 9, 12, 15, 2, 4, 11, 16, 23, 0xd9d4d039u, 0xe6db99e5u, 0x1fa27cf8u, 0xc4ac5665u)
        FOUR(I, 0, 7, 14, 5, 6, 10, 15, 21, 0xf4292244u, 0x432aff97u, 0xab9423a7u, 0xfc93a039u)
        FOUR(I, 12, 3, 10, 1, 6, 10, 15, 21, 0x655b59c3u, 0x8f0ccc92u, 0xffeff47du, 0x85845dd1u)
        FOUR(I, 8, 15, 6, 13, 6, 10, 15, 21, 0x6fa87e4fu, 0xfe2ce6e0u, 0xa3014314u, 0x4e0811a1u)
        FOUR(I, 4, 11, 2, 9, 6, 10, 15, 21, 0xf7537e82u, 0xbd3af235u, 0x2ad7d2bbu, 0xeb86d391u)
        state[0] += a;
        state[1] += b;
        state[2] += c;
        state[3] += d;
    }
}

void kni_md5_init(struct kni_md5 *md5)
{
    *md5 = (struct kni_md5){.state = {0x67452301u, 0xefcdab89u, 0x98badcfeu, 0x10325476u}};
}

void kni_md5_update(struct kni_md5 *md5, const uint8_t *bytes, size_t n_bytes)
{
    const size_t waiting = md5->n_bytes % 64;
    md5->n_bytes += n_bytes;
    if (waiting) {
        const size_t n = n_bytes < 64 - waiting ? n_bytes : 64 - waiting;
        memcpy(md5->block + waiting, bytes, n);
        bytes += n;
        n_bytes -= n;
        if (waiting + n < 64)
            return;
        add_blocks(md5->state, md5->block, 1);
    }
    add_blocks(md5->state, bytes, n_bytes / 64);
    memcpy(md5->block, bytes + n_bytes / 64 * 64, n_bytes % 64);
}

void kni_md5_final(struct kni_md5 *md5, uint8_t out[16])
{
    static const uint8_t padding[64] = {0x80};
    const uint64_t n_bits = md5->n_bytes * 8;
    uint8_t size[8];
    for (uint32_t i = 0; i < 8; i++)
        size[i] = (uint8_t)(n_bits >> 8 * i);
    kni_md5_update(md5, padding, 1 + (119 - md5->n_bytes % 64) % 64); /* to 8 bytes before a block's end */
    kni_md5_update(md5, size, sizeof size);
    for (uint32_t i = 0; i < 16; i++)
        out[i] = (uint8_t)(md5->state[i / 4] >> 8 * (i % 4));
}
