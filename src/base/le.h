/* SPDX-License-Identifier: Apache-2.0 */
/* Little-endian integers at any address, the same on every machine. For file and wire formats. Any thread. */
#ifndef KNI_BASE_LE_H
#define KNI_BASE_LE_H

#include <stdint.h>

static inline void kni_le16_put(void *to, uint16_t x)
{
    uint8_t *b = to;
    b[0] = (uint8_t)x;
    b[1] = (uint8_t)(x >> 8);
}

static inline void kni_le32_put(void *to, uint32_t x)
{
    kni_le16_put(to, (uint16_t)x);
    kni_le16_put((uint8_t *)to + 2, (uint16_t)(x >> 16));
}

static inline void kni_le64_put(void *to, uint64_t x)
{
    kni_le32_put(to, (uint32_t)x);
    kni_le32_put((uint8_t *)to + 4, (uint32_t)(x >> 32));
}

static inline uint16_t kni_le16_get(const void *from)
{
    const uint8_t *b = from;
    return (uint16_t)(b[0] | b[1] << 8);
}

static inline uint32_t kni_le32_get(const void *from)
{
    return kni_le16_get(from) | (uint32_t)kni_le16_get((const uint8_t *)from + 2) << 16;
}

static inline uint64_t kni_le64_get(const void *from)
{
    return kni_le32_get(from) | (uint64_t)kni_le32_get((const uint8_t *)from + 4) << 32;
}

#endif
