/* SPDX-License-Identifier: Apache-2.0 */
/* Other bytes as a section of a chunk, with every checksum right: what a writer without checks would have stored. Asserts with cmocka. */
#ifndef KN_TEST_CHUNK_SECTIONS_H
#define KN_TEST_CHUNK_SECTIONS_H

#include <stdlib.h>
#include <string.h>
#include <zstd.h>

#include "base/alloc.h"
#include "codec/container.h"

/* The chunk with n_bytes as its section `which`; n: its size before, and after. kni_free it. */
static inline void *kn_chunk_replace_section(const void *data, size_t *n, uint32_t which, const void *bytes, size_t n_bytes)
{
    struct kni_container c;
    struct kni_container_writer w = {0};
    void *out;
    assert_int_equal(kni_container_open(&c, data, *n, NULL), KN_OK);
    assert_int_equal(kni_container_writer_init(&w, &c.header, NULL), KN_OK);
    for (uint32_t i = 0; i < c.header.n_sections; i++) {
        enum kni_section_kind kind;
        uint32_t index;
        const uint8_t *old;
        size_t size;
        assert_int_equal(kni_container_section(&c, i, &kind, &index, &old, &size, NULL), KN_OK);
        size = i == which ? n_bytes : size;
        uint8_t *room = kni_container_writer_reserve(&w, size);
        assert_non_null(room);
        memcpy(room, i == which ? bytes : old, size);
        kni_container_writer_commit(&w, size);
        kni_container_writer_end_section(&w, kind, index);
    }
    kni_container_writer_finish(&w, &out, n);
    kni_container_writer_fini(&w);
    return out;
}

/* Section 0, a zstd frame, unpacked; free() it. */
static inline uint8_t *kn_chunk_unpack_first(const void *data, size_t n, size_t *n_plain)
{
    struct kni_container c;
    enum kni_section_kind kind;
    uint32_t index;
    const uint8_t *bytes;
    size_t size;
    assert_int_equal(kni_container_open(&c, data, n, NULL), KN_OK);
    assert_int_equal(kni_container_section(&c, 0, &kind, &index, &bytes, &size, NULL), KN_OK);
    *n_plain = (size_t)ZSTD_getFrameContentSize(bytes, size);
    uint8_t *plain = malloc(*n_plain);
    assert_non_null(plain);
    assert_int_equal(ZSTD_decompress(plain, *n_plain, bytes, size), *n_plain);
    return plain;
}

/* The chunk with this as what section 0's frame holds; n as above. kni_free it. */
static inline void *kn_chunk_repack_first(const void *data, size_t *n, const uint8_t *plain, size_t n_plain)
{
    uint8_t *packed = malloc(ZSTD_compressBound(n_plain));
    assert_non_null(packed);
    void *out = kn_chunk_replace_section(data, n, 0, packed, ZSTD_compress(packed, ZSTD_compressBound(n_plain), plain, n_plain, 3));
    free(packed);
    return out;
}

#endif
