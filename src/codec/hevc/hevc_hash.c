/* SPDX-License-Identifier: Apache-2.0 */
/* See hevc_hash.h. MD5 is in hevc_md5.c; the CRC (polynomial 0x1021, begun with ones) and the checksum are short. */
#include "codec/hevc/hevc_hash.h"

#include <string.h>

#include "base/alloc.h"
#include "codec/hevc/hevc_md5.h"
#include "codec/hevc/hevc_state.h"
#include "codec/hevc/hevc_syntax.h"

enum { NAL_SEI_SUFFIX = 40, SEI_HASH = 132, MAX_SEI = 4096 };

static const uint8_t n_digest_bytes[3] = {16, 2, 4};

struct hashing { enum kni_hevc_hash kind; struct kni_md5 md5; uint32_t crc, sum; };

static void add_row(struct hashing *h, const uint8_t *row, uint32_t n, uint32_t y)
{
    if (h->kind == KNI_HEVC_HASH_MD5) {
        kni_md5_update(&h->md5, row, n);
        return;
    }
    for (uint32_t x = 0; x < n && h->kind == KNI_HEVC_HASH_CHECKSUM; x++)
        h->sum += row[x] ^ ((x & 255) ^ (y & 255) ^ (x >> 8) ^ (y >> 8));
    for (uint32_t x = 0; x < n && h->kind == KNI_HEVC_HASH_CRC; x++)
        for (uint32_t bit = 8; bit-- > 0;) {
            const uint32_t top = h->crc >> 15 & 1;
            h->crc = ((h->crc << 1 | (row[x] >> bit & 1u)) & 0xffff) ^ (top * 0x1021);
        }
}

static void finish(struct hashing *h, uint8_t out[16])
{
    if (h->kind == KNI_HEVC_HASH_MD5) {
        kni_md5_final(&h->md5, out);
    } else if (h->kind == KNI_HEVC_HASH_CRC) {
        for (uint32_t bit = 0; bit < 16; bit++)
            h->crc = ((h->crc << 1) & 0xffff) ^ ((h->crc >> 15 & 1) * 0x1021);
        out[0] = (uint8_t)(h->crc >> 8);
        out[1] = (uint8_t)h->crc;
    } else {
        for (uint32_t i = 0; i < 4; i++)
            out[i] = (uint8_t)(h->sum >> (24 - 8 * i));
    }
}

bool kni_hevc_digest_of(struct kni_hevc_digest *out, enum kni_hevc_hash kind, const uint8_t *const planes[3], const size_t strides[3], uint32_t width,
                        uint32_t height, uint32_t coded_width, uint32_t coded_height)
{
    struct hashing h = {.kind = kind};
    uint8_t *wide = kni_alloc(KNI_ALLOC_TAG_CODEC, coded_width, 0);
    const bool ok = wide != NULL;
    *out = (struct kni_hevc_digest){.kind = kind};
    for (uint32_t k = 0; ok && k < 3; k++) {
        kni_md5_init(&h.md5);
        h.crc = 0xffff;
        h.sum = 0;
        for (uint32_t y = 0; y < coded_height; y++) {
            const uint8_t *row = planes[k] + (y < height ? y : height - 1) * strides[k];
            if (width < coded_width) {
                memcpy(wide, row, width);
                memset(wide + width, row[width - 1], coded_width - width);
                row = wide;
            }
            add_row(&h, row, coded_width, y);
        }
        finish(&h, out->bytes[k]);
    }
    kni_free(wide);
    return ok;
}

bool kni_hevc_digest_equal(const struct kni_hevc_digest *a, const struct kni_hevc_digest *b)
{
    return a->kind == b->kind && !memcmp(a->bytes, b->bytes, sizeof a->bytes);
}

size_t kni_hevc_digest_put(const struct kni_hevc_digest *digest, uint8_t *out)
{
    const uint32_t n = n_digest_bytes[digest->kind];
    const uint8_t head[8] = {0, 0, 1, NAL_SEI_SUFFIX << 1, 1, SEI_HASH, (uint8_t)(1 + 3 * n), (uint8_t)digest->kind};
    uint8_t *at = out + sizeof head;
    memcpy(out, head, sizeof head);
    for (uint32_t k = 0; k < 3; k++, at += n)
        memcpy(at, digest->bytes[k], n);
    *at++ = 0x80; /* the stop bit */
    return 5 + kni_hevc_escape(out + 5, (size_t)(at - out) - 5);
}

/* A number of a message: bytes of 255, and one that is less. */
static bool take_number(const uint8_t *payload, size_t end, size_t *at, uint32_t *out)
{
    for (*out = 0; *at < end && payload[*at] == 255 && *out < MAX_SEI * 255;)
        *out += payload[(*at)++];
    if (*at >= end)
        return false;
    *out += payload[(*at)++];
    return true;
}

const char *kni_hevc_digest_read(const uint8_t *payload, size_t n_bytes, struct kni_hevc_digest *out, bool *found)
{
    size_t at = 0, end = n_bytes;
    while (end && !payload[end - 1])
        end--;
    if (!end || payload[--end] != 0x80)
        return "has an SEI unit without its end";
    if (!end)
        return "has an empty SEI unit";
    while (at < end) {
        uint32_t type, size;
        if (!take_number(payload, end, &at, &type) || !take_number(payload, end, &at, &size) || size > end - at)
            return "has an SEI unit that is cut";
        if (type == SEI_HASH) {
            const uint32_t kind = size ? payload[at] : 3;
            if (kind > 2 || size != 1u + 3u * n_digest_bytes[kind])
                return "has a decoded picture hash of no known kind";
            if (*found)
                return "has two decoded picture hashes";
            *found = true;
            *out = (struct kni_hevc_digest){.kind = (enum kni_hevc_hash)kind};
            for (uint32_t k = 0; k < 3; k++)
                memcpy(out->bytes[k], payload + at + 1 + k * n_digest_bytes[kind], n_digest_bytes[kind]);
        }
        at += size;
    }
    return NULL;
}

const char *kni_hevc_digest_find(const uint8_t *unit, size_t n_bytes, struct kni_hevc_digest *out, bool *found)
{
    *found = false;
    for (size_t at = kni_hevc_find_start(unit, n_bytes, 0); at < n_bytes;) {
        size_t begin = at + 3, end = kni_hevc_find_start(unit, n_bytes, begin), n = 0, zeros = 0;
        uint8_t payload[MAX_SEI];
        at = end;
        if (end - begin < 3 || (unit[begin] >> 1 & 63) != NAL_SEI_SUFFIX)
            continue;
        for (size_t i = begin + 2; i < end; i++) {
            if (zeros >= 2 && unit[i] == 3) {
                zeros = 0;
                continue;
            }
            zeros = unit[i] ? 0 : zeros + 1;
            if (n == sizeof payload)
                return "has a suffix SEI unit that is too long";
            payload[n++] = unit[i];
        }
        const char *bad = kni_hevc_digest_read(payload, n, out, found);
        if (bad)
            return bad;
    }
    return NULL;
}
