/* SPDX-License-Identifier: Apache-2.0 */
/*
 * kn_hevc_inspect: finds the HEVC streams in what a user names, a file of Annex B or a chunk, and lets the reader
 * (codec/hevc/hevc_reader.h) tell about them. A section of a chunk is a table of sizes and access units (codec/hevc/hevc_encode.h).
 */
#include <string.h>

#include "base/le.h"
#include "base/sized.h"
#include "base/status.h"
#include "codec/container.h"
#include "measure/reader/hevc_reader.h"

static const char *const element_names[KN_HEVC_ELEMENT_COUNT] = {"split", "skip", "mode", "intra", "motion", "cbf", "rdpcm", "last", "sub-block",
                                                                 "sig", "greater1", "greater2", "sign", "remaining", "other"};

static const char *const limit_names[KN_HEVC_LIMIT_COUNT] = {"samples", "side", "coding tree", "slices", "slice bytes", "unit bytes", "first unit bytes", "coding tree bits",
                                                             "bins"};

/* One stream while it is read. */
struct look {
    const struct kn_hevc_inspect_opts *opts;
    struct kn_hevc_stream stream; /* what on_begin gets */
    bool begun;
};

const char *kn_hevc_element_name(enum kn_hevc_element element)
{
    return (unsigned)element < KN_HEVC_ELEMENT_COUNT ? element_names[element] : "unknown";
}

const char *kn_hevc_limit_name(enum kn_hevc_limit_kind kind)
{
    return (unsigned)kind < KN_HEVC_LIMIT_COUNT ? limit_names[kind] : "unknown";
}

static enum kn_status on_params(void *user, const struct kn_hevc_params *params, struct kn_err *err)
{
    struct look *l = user;
    (void)err;
    l->stream.params = *params;
    if (!l->begun && l->opts->on_begin)
        l->opts->on_begin(l->opts->user, &l->stream);
    l->begun = true;
    return KN_OK;
}

static enum kn_status on_slice(void *user, const struct kn_hevc_slice *slice, struct kn_err *err)
{
    struct look *l = user;
    (void)err;
    if (l->opts->on_slice)
        l->opts->on_slice(l->opts->user, slice);
    return KN_OK;
}

static enum kn_status on_picture(void *user, const struct kn_hevc_picture *picture, const struct kni_hevc_rebuilt *rebuilt, struct kn_err *err)
{
    struct look *l = user;
    (void)rebuilt;
    (void)err;
    if (l->opts->on_picture)
        l->opts->on_picture(l->opts->user, picture);
    return KN_OK;
}

/* sizes: a section's table of n_units access units, or NULL: bytes are one. */
static enum kn_status look_at(struct look *l, const uint8_t *bytes, size_t n_bytes, const uint8_t *sizes, uint32_t n_units, struct kn_err *err)
{
    struct kni_hevc_reader *r = NULL;
    struct kni_hevc_reader_opts ro = {.band_rows = l->opts->band_rows, .on_params = on_params, .on_slice = on_slice, .on_picture = on_picture, .user = l,
                                     .rebuild = !sizes}; /* for hashes, which sections do not have */
    struct kn_hevc_stream end;
    enum kn_status s = kni_hevc_reader_open(&r, &ro, err);
    for (uint32_t i = 0; s == KN_OK && i < n_units; i++) {
        size_t n = sizes ? kni_le32_get(sizes + 4 * (size_t)i) : n_bytes;
        if (n > n_bytes)
            s = kni_err_set(err, KN_E_FORMAT, "access unit %u of an HEVC section is longer than the section", i);
        else
            s = kni_hevc_reader_read(r, bytes, n, err);
        bytes += n;
        n_bytes -= n;
    }
    if (s == KN_OK && n_bytes)
        s = kni_err_set(err, KN_E_FORMAT, "an HEVC section has %zu bytes behind its access units", n_bytes);
    if (s == KN_OK)
        s = kni_hevc_reader_end(r, &end, err);
    if (s == KN_OK && l->opts->on_end) {
        end.section = l->stream.section;
        end.index = l->stream.index;
        l->opts->on_end(l->opts->user, &end);
    }
    kni_hevc_reader_close(&r);
    return s;
}

static enum kn_status look_at_chunk(const struct kn_hevc_inspect_opts *opts, const uint8_t *bytes, size_t n_bytes, struct kn_err *err)
{
    struct kni_container c;
    uint32_t n_streams = 0;
    enum kn_status s = kni_container_open(&c, bytes, n_bytes, err);
    struct kni_section section;
    for (uint32_t n_seen = 0; kni_container_next(&c, &n_seen, &section, &s, err);) {
        const bool tiles = section.kind == KNI_SECTION_KIND_TILES_VIDEO;
        if (!tiles && section.kind != KNI_SECTION_KIND_SPECTRAL_VIDEO)
            continue;
        const uint32_t index = section.index;
        const uint8_t *at = section.bytes;
        const size_t size = section.n_bytes;
        struct look l = {.opts = opts, .stream = {.section = tiles ? "tiles-video" : "spectral-video", .index = index}};
        uint32_t n_units = size < 4 ? 0 : kni_le32_get(at);
        n_streams++;
        if (!n_units || n_units > (size - 4) / 4)
            s = kni_err_set(err, KN_E_FORMAT, "HEVC section %u of the chunk has a table that does not fit", index);
        else
            s = look_at(&l, at + 4 + 4 * (size_t)n_units, size - 4 - 4 * (size_t)n_units, at + 4, n_units, err);
    }
    if (s == KN_OK && !n_streams)
        s = kni_err_set(err, KN_E_UNSUPPORTED, "the chunk holds no HEVC: it was coded with preset %s over %s", kni_preset_name(c.header.meta.preset),
                        kni_backend_name(c.header.backend));
    return s;
}

enum kn_status kn_hevc_inspect(const void *bytes, size_t n_bytes, const struct kn_hevc_inspect_opts *opts, struct kn_err *err)
{
    static const uint8_t start[4] = {0, 0, 0, 1};
    if (!bytes)
        return kni_err_set(err, KN_E_ARG, "kn_hevc_inspect needs bytes");
    struct kn_hevc_inspect_opts o;
    enum kn_status status = KNI_OPTS_READ(&o, opts, kn_hevc_inspect_opts, err);
    if (status)
        return status;
    struct look l = {.opts = &o};
    if (n_bytes >= 4 && !memcmp(bytes, "KNC1", 4))
        return look_at_chunk(&o, bytes, n_bytes, err);
    if (n_bytes < 4 || (memcmp(bytes, start, 4) && memcmp(bytes, start + 1, 3)))
        return kni_err_set(err, KN_E_FORMAT, "this is neither an HEVC stream (Annex B) nor a chunk of a Kinema store");
    return look_at(&l, bytes, n_bytes, NULL, 1, err);
}
