/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Turns pictures into a section, through Kinema's own encoder or a plugin's.
 *
 *     begin:   own: the encoder is made anew in kept memory         plugin: kept while size stays the same
 *     picture: own: its access unit goes straight behind the last   plugin: its access unit is copied there
 *     end:     own: the level that all units need is declared       [ table ][ payload ] into the container
 *
 * A stream without end hands its first unit out before the others are known: there, our own encoder declares the level that the loudest
 * pictures of their size would need.
 *
 * Our own encoder predicts from the picture before, which is the caller's and gone by then: it is copied here, unless every
 * sample is 128, which is what the spectral layout's first picture is, or no picture follows. Buffers only grow, so that
 * streams after the first allocate nothing.
 */
#include "codec/hevc/hevc_encode.h"

#include <assert.h>
#include <string.h>

#include "base/alloc.h"
#include "base/le.h"
#include "base/room.h"
#include "codec/hevc/hevc_plugin_load.h"

#define SEI_BYTES 256u /* that callers of a stream without end may add to its first unit: seal and hash */

struct kni_hevc_encoder {
    const struct kn_hevc_plugin *plugin; /* NULL: our own */
    const char *preset;                  /* the plugin's */
    void *stream;                        /* the plugin's encoder, kept for streams of the same size */
    uint32_t width, height;
    uint32_t n_pictures, n_units; /* of the stream, 0: as many as come; coded so far */
    uint32_t *unit_bytes;         /* n_pictures sizes */
    size_t unit_capacity;
    uint8_t *payload;
    size_t payload_bytes, payload_capacity;
    /* our own */
    struct kni_hevc_lossless_opts opts;
    struct kni_hevc_lossless *own; /* lies in memory */
    void *memory;
    size_t memory_capacity;
    uint8_t *before; /* the last picture, three planes without padding */
    size_t before_capacity;
    bool before_flat;
    uint64_t most_bytes; /* of a unit, by the level that a stream without end declared */
};

static enum kn_hevc_encoder encoder_of(const struct kn_hevc_opts *opts)
{
    return opts->encoder == KN_HEVC_ENCODER_DEFAULT ? KN_HEVC_ENCODER_KINEMA : opts->encoder;
}

uint32_t kni_hevc_encoder_tools(const struct kn_hevc_opts *opts)
{
    return encoder_of(opts) == KN_HEVC_ENCODER_KINEMA && opts->tools != KN_HEVC_TOOLS_BASIC ? KNI_HEVC_TOOLS_ALL : KNI_HEVC_TOOLS_BASIC;
}

enum kn_status kni_hevc_opts_check(const struct kn_hevc_opts *opts, struct kn_err *err)
{
    enum kn_hevc_encoder encoder = encoder_of(opts);
    if ((unsigned)encoder > KN_HEVC_ENCODER_X265_MEDIUM)
        return kni_err_set(err, KN_E_ARG, "unknown HEVC encoder %d; use kinema (%d), x265-ultrafast (%d) or x265-medium (%d)", (int)encoder,
                           KN_HEVC_ENCODER_KINEMA, KN_HEVC_ENCODER_X265_ULTRAFAST, KN_HEVC_ENCODER_X265_MEDIUM);
    if ((unsigned)opts->tools > KN_HEVC_TOOLS_BASIC)
        return kni_err_set(err, KN_E_ARG, "unknown set of HEVC tools %d; use full (%d) or basic (%d)", (int)opts->tools, KN_HEVC_TOOLS_FULL,
                           KN_HEVC_TOOLS_BASIC);
    if (opts->n_slices > 64)
        return kni_err_set(err, KN_E_ARG, "%u slices a picture; use 1 to 64, or 0 to have the number chosen", opts->n_slices);
    return KN_OK;
}

enum kn_status kni_hevc_encoder_open(struct kni_hevc_encoder **out, const struct kn_hevc_opts *opts,
                                     enum kni_hevc_content content, uint32_t cpu_without, struct kn_err *err)
{
    *out = NULL;
    const struct kn_hevc_plugin *plugin = NULL;
    enum kn_hevc_encoder encoder = encoder_of(opts);
    enum kn_status s = kni_hevc_opts_check(opts, err);
    if (s == KN_OK && encoder != KN_HEVC_ENCODER_KINEMA)
        s = kni_hevc_plugin_load(&plugin, err);
    if (s != KN_OK)
        return s;
    struct kni_hevc_encoder *e = kni_calloc(KNI_ALLOC_TAG_CODEC, sizeof *e, 0);
    if (!e)
        return kni_err_set(err, KN_E_NOMEM, "no memory for an HEVC encoder");
    e->plugin = plugin;
    e->preset = encoder == KN_HEVC_ENCODER_X265_MEDIUM ? "medium" : "ultrafast";
    e->opts = (struct kni_hevc_lossless_opts){.tools = kni_hevc_encoder_tools(opts), .content = content,
                                               .n_slices = opts->n_slices, .cpu_without = cpu_without};
    *out = e;
    return KN_OK;
}

static void end_stream(struct kni_hevc_encoder *e)
{
    if (e->plugin)
        e->plugin->close(e->stream);
    e->stream = NULL;
    e->own = NULL;
}

void kni_hevc_encoder_close(struct kni_hevc_encoder **encoder)
{
    struct kni_hevc_encoder *e = *encoder;
    if (!e)
        return;
    end_stream(e);
    kni_free(e->unit_bytes);
    kni_free(e->payload);
    kni_free(e->memory);
    kni_free(e->before);
    kni_free(e);
    *encoder = NULL;
}

size_t kni_hevc_encoder_bytes(const struct kni_hevc_encoder *e)
{
    return e ? sizeof *e + e->unit_capacity * sizeof *e->unit_bytes + e->payload_capacity + e->memory_capacity + e->before_capacity : 0;
}

static enum kn_status no_memory(struct kn_err *err)
{
    return kni_err_set(err, KN_E_NOMEM, "no memory while encoding HEVC");
}

/* Room for n_bytes behind the units that are there, which stay. */
static enum kn_status make_unit_room(struct kni_hevc_encoder *e, size_t n_bytes, struct kn_err *err)
{
    size_t need;
    if (!kni_add_size(e->payload_bytes, n_bytes, &need))
        return no_memory(err);
    if (need <= e->payload_capacity)
        return KN_OK;
    size_t grown = e->payload_bytes ? need + need / 2 : need;
    uint8_t *payload = kni_realloc(KNI_ALLOC_TAG_CODEC, e->payload, grown);
    if (!payload)
        return no_memory(err);
    e->payload = payload;
    e->payload_capacity = grown;
    return KN_OK;
}

static enum kn_status keep_unit(struct kni_hevc_encoder *e, size_t n_bytes, struct kn_err *err)
{
    if (n_bytes > UINT32_MAX)
        return kni_err_set(err, KN_E_UNSUPPORTED, "an HEVC access unit of %zu bytes is more than a section holds", n_bytes);
    e->payload_bytes += n_bytes;
    if (e->n_pictures)
        e->unit_bytes[e->n_units] = (uint32_t)n_bytes;
    e->n_units++;
    return KN_OK;
}

/* ---- through a plugin */

static enum kn_status plugin_status(const struct kni_hevc_encoder *e, enum kn_hevc_result r, const char *what, struct kn_err *err)
{
    if (r == KN_HEVC_RESULT_OK)
        return KN_OK;
    if (r == KN_HEVC_RESULT_NOMEM)
        return no_memory(err);
    return kni_err_set(err, KN_E_UNSUPPORTED, "%s, preset %s, could not %s", e->plugin->name, e->preset, what);
}

static enum kn_status plugin_begin(struct kni_hevc_encoder *e, uint32_t width, uint32_t height, struct kn_err *err)
{
    if (e->stream && e->width == width && e->height == height)
        return KN_OK;
    end_stream(e);
    struct kn_hevc_params params = {.width = width, .height = height, .preset = e->preset};
    return plugin_status(e, e->plugin->open(&e->stream, &params), "open an encoder for this picture size", err);
}

static enum kn_status plugin_picture(struct kni_hevc_encoder *e, const uint8_t *const planes[3], const size_t strides[3], struct kn_err *err)
{
    assert(e->stream);
    struct kn_hevc_unit unit = {0};
    enum kn_status s = plugin_status(e, e->plugin->encode(e->stream, e->n_units == 0, planes, strides, &unit), "encode a picture", err);
    if (s == KN_OK)
        s = make_unit_room(e, unit.n_bytes, err);
    if (s != KN_OK)
        return s;
    memcpy(e->payload + e->payload_bytes, unit.bytes, unit.n_bytes);
    return keep_unit(e, unit.n_bytes, err);
}

/* ---- our own */

static enum kn_status own_begin(struct kni_hevc_encoder *e, uint32_t width, uint32_t height, const uint16_t *row_scale, struct kn_err *err)
{
    if (e->own && e->width == width && e->height == height) { /* tables and contexts stand */
        kni_hevc_lossless_set_rows(e->own, row_scale);
        kni_hevc_lossless_declare(e->own, 0, 0);
        return KN_OK;
    }
    struct kni_hevc_lossless_opts opts = e->opts;
    opts.width = width;
    opts.height = height;
    opts.row_scale = row_scale;
    e->own = NULL;
    const size_t n_bytes = kni_hevc_lossless_bytes(&opts); /* 0: opts are out of range, which init says */
    e->memory = kni_room(KNI_ALLOC_TAG_CODEC, e->memory, &e->memory_capacity, n_bytes, 1);
    enum kn_status s = e->memory_capacity < n_bytes ? no_memory(err) : KN_OK;
    if (s == KN_OK)
        s = kni_hevc_lossless_init(&e->own, e->memory, &opts, err);
    return s;
}

static bool is_flat(const struct kni_hevc_encoder *e, const uint8_t *const planes[3], const size_t strides[3])
{
    for (uint32_t k = 0; k < 3; k++)
        for (uint32_t y = 0; y < e->height; y++) {
            const uint8_t *row = planes[k] + y * strides[k];
            if (row[0] != 128 || memcmp(row, row + 1, e->width - 1)) /* each sample is its neighbour's and the first is 128 */
                return false;
        }
    return true;
}

static enum kn_status keep_picture(struct kni_hevc_encoder *e, const uint8_t *const planes[3], const size_t strides[3], struct kn_err *err)
{
    e->before_flat = is_flat(e, planes, strides);
    if (e->before_flat)
        return KN_OK;
    size_t plane_bytes = (size_t)e->width * e->height;
    e->before = kni_room(KNI_ALLOC_TAG_CODEC, e->before, &e->before_capacity, 3 * plane_bytes, 1);
    if (!e->before)
        return no_memory(err);
    for (uint32_t k = 0; k < 3; k++)
        for (uint32_t y = 0; y < e->height; y++)
            memcpy(e->before + k * plane_bytes + (size_t)y * e->width, planes[k] + y * strides[k], e->width);
    return KN_OK;
}

/* Declares the level of units of at most unit_bytes, of which the first one has first_bytes, in the parameter sets that lead the payload. */
static enum kn_status declare(struct kni_hevc_encoder *e, uint64_t unit_bytes, uint64_t first_bytes, struct kn_err *err)
{
    uint8_t headers[KNI_HEVC_LOSSLESS_HEADERS];
    if (!kni_hevc_lossless_declare(e->own, unit_bytes, first_bytes))
        return kni_err_set(err, KN_E_UNSUPPORTED, "a picture of %u x %u samples takes %llu bytes: no level of HEVC has access units so large", e->width, e->height,
                           (unsigned long long)unit_bytes);
    size_t n = kni_hevc_lossless_headers(e->own, headers);
    memcpy(e->payload, headers, n);
    return KN_OK;
}

/* Of a stream without end: its first unit is known and others are to come. */
static enum kn_status check_endless(struct kni_hevc_encoder *e, size_t n_bytes, struct kn_err *err)
{
    if (e->n_units > 1)
        return n_bytes <= e->most_bytes ? KN_OK
                                        : kni_err_set(err, KN_E_UNSUPPORTED, "picture %u takes %zu bytes, and the stream has declared a level of HEVC with at most %llu", e->n_units - 1,
                                                      n_bytes, (unsigned long long)e->most_bytes);
    e->most_bytes = kni_hevc_lossless_loud_bytes(e->own);
    if (e->most_bytes < n_bytes)
        e->most_bytes = n_bytes;
    return declare(e, e->most_bytes, n_bytes + SEI_BYTES, err);
}

static enum kn_status own_picture(struct kni_hevc_encoder *e, const uint8_t *const planes[3], const size_t strides[3], struct kn_err *err)
{
    assert(e->own);
    size_t plane_bytes = (size_t)e->width * e->height;
    struct kni_hevc_job job = {.first = e->n_units == 0, .index = e->n_units, .before_flat = e->before_flat};
    for (uint32_t k = 0; k < 3; k++) {
        job.now.plane[k] = planes[k];
        job.now.stride[k] = strides[k];
        if (job.first || e->before_flat)
            continue;
        job.before.plane[k] = e->before + k * plane_bytes;
        job.before.stride[k] = e->width;
    }
    enum kn_status s = make_unit_room(e, kni_hevc_lossless_unit_bound(e->own), err);
    size_t n_bytes = s == KN_OK ? kni_hevc_lossless_unit(e->own, &job, e->payload + e->payload_bytes) : 0;
    if (s == KN_OK)
        s = keep_unit(e, n_bytes, err);
    if (s == KN_OK && !e->n_pictures)
        s = check_endless(e, n_bytes, err);
    if (s == KN_OK && e->n_units != e->n_pictures)
        s = keep_picture(e, planes, strides, err);
    return s;
}

/* ---- streams */

enum kn_status kni_hevc_encode_begin(struct kni_hevc_encoder *e, uint32_t width, uint32_t height, uint32_t n_pictures, const uint16_t *row_scale,
                                     struct kn_err *err)
{
    e->n_pictures = n_pictures;
    e->n_units = 0;
    e->payload_bytes = 0;
    e->before_flat = false;
    enum kn_status s = kni_hevc_lossless_check_size(width, height, err); /* x265 takes more, and declares no level then */
    if (s != KN_OK)
        return s;
    if (n_pictures > e->unit_capacity) {
        kni_free(e->unit_bytes);
        e->unit_capacity = 0;
        e->unit_bytes = kni_alloc(KNI_ALLOC_TAG_CODEC, n_pictures * sizeof *e->unit_bytes, 0);
        if (!e->unit_bytes)
            return no_memory(err);
        e->unit_capacity = n_pictures;
    }
    s = e->plugin ? plugin_begin(e, width, height, err) : own_begin(e, width, height, row_scale, err);
    e->width = width;
    e->height = height;
    return s;
}

enum kn_status kni_hevc_encode_picture(struct kni_hevc_encoder *e, const uint8_t *const planes[3], const size_t strides[3], struct kn_err *err)
{
    assert(!e->n_pictures || e->n_units < e->n_pictures);
    enum kn_status s = e->plugin ? plugin_picture(e, planes, strides, err) : own_picture(e, planes, strides, err);
    if (s != KN_OK)
        end_stream(e);
    return s;
}

void kni_hevc_encode_take(struct kni_hevc_encoder *e, const uint8_t **bytes, size_t *n_bytes)
{
    assert(!e->n_pictures);
    *bytes = e->payload;
    *n_bytes = e->payload_bytes;
    e->payload_bytes = 0;
}

enum kn_status kni_hevc_encode_end(struct kni_hevc_encoder *e, struct kni_container_writer *w, struct kn_err *err)
{
    assert(e->n_pictures && e->n_units == e->n_pictures);
    uint32_t most_bytes = 0;
    for (uint32_t i = 0; i < e->n_pictures; i++)
        most_bytes = e->unit_bytes[i] > most_bytes ? e->unit_bytes[i] : most_bytes;
    if (e->own) {
        enum kn_status s = declare(e, most_bytes, e->unit_bytes[0], err);
        if (s != KN_OK)
            return s;
    }
    size_t table = 4 + 4 * (size_t)e->n_pictures;
    uint8_t *room = kni_container_writer_reserve(w, table + e->payload_bytes);
    if (!room)
        return no_memory(err);
    kni_le32_put(room, e->n_pictures);
    for (uint32_t i = 0; i < e->n_pictures; i++)
        kni_le32_put(room + 4 + 4 * (size_t)i, e->unit_bytes[i]);
    memcpy(room + table, e->payload, e->payload_bytes);
    kni_container_writer_commit(w, table + e->payload_bytes);
    return KN_OK;
}
