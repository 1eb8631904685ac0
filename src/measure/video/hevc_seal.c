/* SPDX-License-Identifier: Apache-2.0 */
/* See hevc_seal.h. Hostile bytes: messages are read from a copy of bounded size, and what does not parse is no message of ours. */
#include "measure/video/hevc_seal.h"

#include <string.h>

#include "base/hash.h"
#include "base/le.h"
#include "codec/hevc/hevc_state.h"
#include "codec/hevc/hevc_syntax.h"

enum { NAL_VCL_END = 32, NAL_VPS = 32, NAL_PPS = 34, NAL_SEI_PREFIX = 39, NAL_SEI_SUFFIX = 40, SEI_USER_DATA = 5, MAX_SEI = 4096 };
enum { AT_VERSION = 16, AT_KIND = 17, AT_WIDTH = 18, AT_HEIGHT = 22, AT_SETS = 26, OPEN_END = 50, AT_PICTURES = 18, AT_SLICES = 26, CLOSE_END = 34 };
enum { KIND_OPENS = 0, KIND_CLOSES = 1 };

static const uint8_t uuid[16] = {0x2e, 0xdf, 0xdc, 0xa7, 0xbf, 0x09, 0x4e, 0x6b, 0x94, 0x1a, 0x33, 0xfc, 0xd8, 0xe2, 0x95, 0x00};

/* ---- NAL units */

struct nal { const uint8_t *bytes; size_t n_bytes, start; uint32_t type; };

/* The next one, from *at on, with its header; start: of its start code. false: there is none. One too short for a header is passed over. */
static bool next_nal(const uint8_t *unit, size_t n_bytes, size_t *at, struct nal *out)
{
    while (*at < n_bytes) {
        size_t start = kni_hevc_find_start(unit, n_bytes, *at), begin = start + 3;
        if (start == n_bytes)
            break;
        size_t end = *at = kni_hevc_find_start(unit, n_bytes, begin);
        while (end > begin && !unit[end - 1])
            end--;
        if (end - begin < 2)
            continue;
        *out = (struct nal){unit + begin, end - begin, start, unit[begin] >> 1 & 63u};
        return true;
    }
    return false;
}

static void add_slice(struct kni_hevc_seal *seal, const struct nal *nal)
{
    uint8_t both[16];
    kni_le64_put(both, seal->slices);
    kni_le64_put(both + 8, kni_xxh3(nal->bytes, nal->n_bytes));
    seal->slices = kni_xxh3(both, sizeof both);
    seal->n_pictures += nal->n_bytes > 2 && nal->bytes[2] >> 7; /* first_slice_segment_in_pic_flag */
}

/* ---- writing */

static size_t put_message(uint32_t nal_type, const uint8_t *payload, size_t n, uint8_t *out)
{
    const uint8_t head[7] = {0, 0, 1, (uint8_t)(nal_type << 1), 1, SEI_USER_DATA, (uint8_t)n};
    memcpy(out, head, sizeof head);
    memcpy(out + sizeof head, payload, n);
    out[sizeof head + n] = 0x80; /* the stop bit */
    return 5 + kni_hevc_escape(out + 5, 2 + n + 1);
}

size_t kni_hevc_seal_open(struct kni_hevc_seal *seal, const uint8_t *unit, size_t n_bytes, uint32_t width, uint32_t height, uint8_t *out, size_t *at)
{
    uint8_t payload[OPEN_END];
    struct nal nal;
    *seal = (struct kni_hevc_seal){.width = width, .height = height, .opened = true};
    *at = 0;
    for (size_t next = 0; next_nal(unit, n_bytes, &next, &nal);) {
        *at = nal.start;
        if (nal.type < NAL_VCL_END)
            break;
        if (nal.type >= NAL_VPS && nal.type <= NAL_PPS)
            seal->sets[nal.type - NAL_VPS] = kni_xxh3(nal.bytes, nal.n_bytes);
    }
    memcpy(payload, uuid, sizeof uuid);
    payload[AT_VERSION] = 1;
    payload[AT_KIND] = KIND_OPENS;
    kni_le32_put(payload + AT_WIDTH, width);
    kni_le32_put(payload + AT_HEIGHT, height);
    for (uint32_t i = 0; i < 3; i++)
        kni_le64_put(payload + AT_SETS + 8 * i, seal->sets[i]);
    return put_message(NAL_SEI_PREFIX, payload, sizeof payload, out);
}

void kni_hevc_seal_add(struct kni_hevc_seal *seal, const uint8_t *unit, size_t n_bytes)
{
    struct nal nal;
    for (size_t next = 0; next_nal(unit, n_bytes, &next, &nal);)
        if (nal.type < NAL_VCL_END)
            add_slice(seal, &nal);
}

size_t kni_hevc_seal_close(struct kni_hevc_seal *seal, uint8_t *out)
{
    uint8_t payload[CLOSE_END];
    memcpy(payload, uuid, sizeof uuid);
    payload[AT_VERSION] = 1;
    payload[AT_KIND] = KIND_CLOSES;
    kni_le64_put(payload + AT_PICTURES, seal->n_pictures);
    kni_le64_put(payload + AT_SLICES, seal->slices);
    seal->closed = true;
    return put_message(NAL_SEI_SUFFIX, payload, sizeof payload, out);
}

/* ---- reading */

/* A number of a message: bytes of 255, and one that is less. */
static bool take_number(const uint8_t *bytes, size_t n, size_t *at, size_t *out)
{
    for (*out = 0; *at < n;) {
        uint8_t byte = bytes[(*at)++];
        *out += byte;
        if (byte != 255)
            return true;
    }
    return false;
}

/* Our message in an SEI unit, copied to out[OPEN_END], zeros behind it; false: there is none. */
static bool find_message(const struct nal *nal, uint8_t *out, size_t *n_out)
{
    uint8_t plain[MAX_SEI];
    size_t n = 0, zeros = 0, at = 0, type, size;
    for (size_t i = 2; i < nal->n_bytes && n < sizeof plain; i++) {
        if (zeros >= 2 && nal->bytes[i] == 3) {
            zeros = 0;
            continue;
        }
        zeros = nal->bytes[i] ? 0 : zeros + 1;
        plain[n++] = nal->bytes[i];
    }
    while (take_number(plain, n, &at, &type) && take_number(plain, n, &at, &size) && size <= n - at) {
        if (type == SEI_USER_DATA && size > AT_KIND && !memcmp(plain + at, uuid, sizeof uuid)) {
            *n_out = size;
            memset(out, 0, OPEN_END);
            memcpy(out, plain + at, size < OPEN_END ? size : OPEN_END);
            return true;
        }
        at += size;
    }
    return false;
}

static enum kn_status bad(struct kn_err *err, const struct kni_hevc_seal *seal, const char *what)
{
    return kni_err_set(err, KN_E_FORMAT, "the HEVC stream %s (at picture %llu)", what, (unsigned long long)seal->n_pictures);
}

static enum kn_status take_opening(struct kni_hevc_seal *seal, const uint8_t *m, size_t n, struct kn_err *err)
{
    if (n != OPEN_END)
        return bad(err, seal, "has a seal that is damaged");
    if (seal->opened || seal->n_pictures)
        return bad(err, seal, "has the opening of its seal where none belongs: something was cut out, or is twice there");
    seal->opened = true;
    seal->width = kni_le32_get(m + AT_WIDTH);
    seal->height = kni_le32_get(m + AT_HEIGHT);
    for (uint32_t i = 0; i < 3; i++)
        seal->sets[i] = kni_le64_get(m + AT_SETS + 8 * i);
    return KN_OK;
}

static enum kn_status take_closing(struct kni_hevc_seal *seal, const uint8_t *m, size_t n, struct kn_err *err)
{
    if (n != CLOSE_END)
        return bad(err, seal, "has a seal that is damaged");
    if (!seal->opened || seal->closed)
        return bad(err, seal, seal->opened ? "has the closing of its seal twice" : "lacks the opening of its seal: it is damaged at its begin");
    const uint64_t n_pictures = kni_le64_get(m + AT_PICTURES);
    if (n_pictures != seal->n_pictures)
        return kni_err_set(err, KN_E_FORMAT, "the HEVC stream has %llu pictures, its seal says %llu: some are missing, or twice there",
                           (unsigned long long)seal->n_pictures, (unsigned long long)n_pictures);
    if (kni_le64_get(m + AT_SLICES) != seal->slices)
        return kni_err_set(err, KN_E_FORMAT, "the HEVC stream's %llu pictures are not those of its seal, or not in their order: it is damaged",
                           (unsigned long long)n_pictures);
    seal->closed = true;
    return KN_OK;
}

enum kn_status kni_hevc_seal_follow(struct kni_hevc_seal *seal, const uint8_t *unit, size_t n_bytes, uint32_t width, uint32_t height, struct kn_err *err)
{
    uint8_t message[OPEN_END];
    uint64_t sets[3] = {0};
    bool has[3] = {false}, differs[3] = {false};
    struct nal nal;
    enum kn_status s = KN_OK;
    for (size_t next = 0, n; s == KN_OK && next_nal(unit, n_bytes, &next, &nal);) {
        if (nal.type < NAL_VCL_END) {
            if (seal->closed)
                return bad(err, seal, "goes on behind the closing of its seal");
            add_slice(seal, &nal);
        } else if (nal.type <= NAL_PPS) {
            const uint32_t i = nal.type - NAL_VPS;
            const uint64_t digest = kni_xxh3(nal.bytes, nal.n_bytes);
            differs[i] |= has[i] && digest != sets[i];
            has[i] = true;
            sets[i] = digest;
        } else if ((nal.type == NAL_SEI_PREFIX || nal.type == NAL_SEI_SUFFIX) && find_message(&nal, message, &n)) {
            if (message[AT_VERSION] != 1 || message[AT_KIND] > KIND_CLOSES)
                s = bad(err, seal, "has a seal that this version does not know, or that is damaged");
            else
                s = message[AT_KIND] == KIND_OPENS ? take_opening(seal, message, n, err) : take_closing(seal, message, n, err);
        }
    }
    if (s != KN_OK || !seal->opened)
        return s;
    if (seal->width != width || seal->height != height)
        return kni_err_set(err, KN_E_FORMAT, "the HEVC stream's pictures are %u x %u, its seal says %u x %u: it is damaged (at picture %llu)", width, height, seal->width,
                           seal->height, (unsigned long long)seal->n_pictures);
    for (uint32_t i = 0; i < 3; i++)
        if (has[i] && (differs[i] || sets[i] != seal->sets[i]))
            return bad(err, seal, "has parameter sets that are not those of its seal: it is damaged");
    return KN_OK;
}

enum kn_status kni_hevc_seal_end(const struct kni_hevc_seal *seal, struct kn_err *err)
{
    if (!seal->opened || seal->closed)
        return KN_OK;
    return kni_err_set(err, KN_E_FORMAT, "the HEVC stream ends after picture %llu without the closing of its seal: its end was cut off",
                       (unsigned long long)(seal->n_pictures ? seal->n_pictures - 1 : 0));
}
