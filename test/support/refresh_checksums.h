/* SPDX-License-Identifier: Apache-2.0 */
/* The checksums of a damaged chunk made right again (offsets: doc/format-chunk.md), so that tests and fuzzers get past
 * them. */
#ifndef KN_TEST_REFRESH_CHECKSUMS_H
#define KN_TEST_REFRESH_CHECKSUMS_H

#include <string.h>

#include "base/hash.h"
#include "base/le.h"
#include "codec/container.h"

/* Of a container whose structure is intact. Does nothing to bytes that are no container. */
static inline void kn_refresh_checksums(void *data, size_t n_bytes)
{
    enum { N_SECTIONS = 12, TABLE = KNI_CONTAINER_FIXED_BYTES, ENTRY = KNI_CONTAINER_ENTRY_BYTES };
    uint8_t *b = data;
    if (n_bytes < TABLE || memcmp(b, "KNC1", 4))
        return;
    uint32_t n_sections = kni_le32_get(b + N_SECTIONS);
    if (n_sections > KNI_CONTAINER_MAX_SECTIONS || TABLE + (size_t)n_sections * ENTRY + 8 > n_bytes)
        return;
    for (uint32_t i = 0; i < n_sections; i++) {
        uint8_t *e = b + TABLE + (size_t)i * ENTRY;
        uint64_t offset = kni_le64_get(e + 8), size = kni_le64_get(e + 16);
        if (offset <= n_bytes && size <= n_bytes - offset)
            kni_le64_put(e + 24, kni_xxh3(b + offset, (size_t)size));
    }
    uint8_t *end = b + TABLE + (size_t)n_sections * ENTRY;
    kni_le64_put(end, kni_xxh3(b, (size_t)(end - b)));
}

#endif
