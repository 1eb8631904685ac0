/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The reader's frame: finds NAL units (annex B), takes emulation prevention out, keeps pictures and sums. Slices of a picture come in
 * order and without gaps, or the stream is refused; so a picture is whole when its last coding tree unit is.
 */
#include "measure/reader/hevc_reader.h"

#include <string.h>

#include "base/alloc.h"
#include "base/room.h"
#include "codec/hevc/hevc_hash.h"
#include "measure/reader/hevc_reader_state.h"
#include "codec/hevc/hevc_syntax.h"

enum { NAL_VCL_END = 32, NAL_TRAIL_LAST = 1, NAL_IRAP_FIRST = 16, NAL_CRA = 21, NAL_SPS = 33, NAL_PPS = 34, NAL_SEI_SUFFIX = 40 };

static bool no_memory(struct kni_hevc_reader *r)
{
    r->status = kni_err_set(r->err, KN_E_NOMEM, "no memory to read an HEVC stream");
    return false;
}

/* ---- sums */

static void add_counts(struct kn_hevc_counts *to, const struct kn_hevc_counts *from)
{
    for (uint32_t e = 0; e < KN_HEVC_ELEMENT_COUNT; e++) {
        to->element[e].n_coded += from->element[e].n_coded;
        to->element[e].n_bypass += from->element[e].n_bypass;
        to->element[e].bits += from->element[e].bits;
    }
    for (uint32_t plane = 0; plane < 3; plane++)
        to->plane_bits[plane] += from->plane_bits[plane];
    to->n_cu += from->n_cu;
    to->n_cu_skipped += from->n_cu_skipped;
    to->n_cu_intra += from->n_cu_intra;
}

/* A slice's band with its planes together. */
static struct kn_hevc_counts band_counts(const struct kni_hevc_band *band)
{
    struct kn_hevc_counts c = {.n_cu = band->n_cu, .n_cu_skipped = band->n_cu_skipped, .n_cu_intra = band->n_cu_intra};
    for (uint32_t plane = 0; plane < 3; plane++)
        for (uint32_t e = 0; e < KN_HEVC_ELEMENT_COUNT; e++) {
            const struct kn_hevc_count *count = &band->of[plane][e];
            c.element[e].n_coded += count->n_coded;
            c.element[e].n_bypass += count->n_bypass;
            c.element[e].bits += count->bits;
            if (e >= KN_HEVC_ELEMENT_RDPCM && e < KN_HEVC_ELEMENT_OTHER)
                c.plane_bits[plane] += count->bits;
        }
    return c;
}

/* ---- memory by picture size */

static void free_picture(struct kni_hevc_reader *r)
{
    kni_free(r->cells);
    for (uint32_t i = 0; i < 6; i++)
        kni_free(r->planes[i / 3][i % 3]);
    kni_free(r->slice_bands);
    kni_free(r->picture_bands);
    kni_free(r->stream_bands);
}

static bool make_picture(struct kni_hevc_reader *r, const struct kn_hevc_params *p)
{
    size_t n_cells, n_samples;
    r->cells_wide = p->width / 4;
    r->cells_high = p->height / 4;
    r->stride = p->width;
    r->n_bands = (p->height + r->opts.band_rows - 1) / r->opts.band_rows;
    if (!kni_mul_size(r->cells_wide, r->cells_high, &n_cells) || !kni_mul_size(n_cells, sizeof *r->cells, &n_cells) ||
        !kni_mul_size(p->width, p->height, &n_samples))
        return no_memory(r);
    r->cells = kni_calloc(KNI_ALLOC_TAG_CODEC, n_cells, 0);
    r->slice_bands = kni_calloc(KNI_ALLOC_TAG_CODEC, r->n_bands * sizeof *r->slice_bands, 0);
    r->picture_bands = kni_calloc(KNI_ALLOC_TAG_CODEC, r->n_bands * sizeof *r->picture_bands, 0);
    r->stream_bands = kni_calloc(KNI_ALLOC_TAG_CODEC, r->n_bands * sizeof *r->stream_bands, 0);
    bool ok = r->cells && r->slice_bands && r->picture_bands && r->stream_bands;
    for (uint32_t i = 0; ok && r->opts.rebuild && i < 6; i++)
        ok = (r->planes[i / 3][i % 3] = kni_calloc(KNI_ALLOC_TAG_CODEC, n_samples, 0)) != NULL;
    return ok || no_memory(r);
}

/* ---- pictures */

static bool take_params(struct kni_hevc_reader *r)
{
    struct kn_hevc_params p = r->sps.params;
    p.deblocking = !r->pps.deblocking_off;
    p.sign_hiding = r->pps.sign_hiding;
    p.weighted_pred = r->pps.weighted_pred;
    p.wavefront = r->pps.wavefront;
    p.cu_qp_delta = r->pps.cu_qp_delta;
    p.constrained_intra = r->pps.constrained_intra;
    r->params_new = false;
    struct kn_hevc_params *old = &r->stream.params;
    bool first = r->stream.n_pictures == 0;
    if (!first && (p.width != old->width || p.height != old->height))
        return kni_hevc_reader_fail(r, KN_E_UNSUPPORTED, "changes its picture size, which this reader does not follow");
    if (first && !r->cells && !make_picture(r, &p))
        return false;
    *old = p;
    kni_hevc_reader_limit_params(r);
    if (r->opts.on_params)
        r->status = r->opts.on_params(r->opts.user, &p, r->err);
    return r->status == KN_OK;
}

static bool begin_picture(struct kni_hevc_reader *r)
{
    if (r->in_picture)
        return kni_hevc_reader_fail(r, KN_E_FORMAT, "has a picture that is not complete");
    if (!r->stream.n_pictures && !r->header.idr)
        return kni_hevc_reader_fail(r, KN_E_FORMAT, "does not begin with an IDR picture");
    if (r->params_new && !r->header.irap)
        return kni_hevc_reader_fail(r, KN_E_FORMAT, "changes its parameter sets within a sequence");
    if (r->params_new && !take_params(r))
        return false;
    r->in_picture = true;
    r->ctus_done = 0;
    r->slice_bytes = 0;
    r->picture_ctu_bits = 0;
    r->why = r->opts.rebuild ? NULL : "was not asked for";
    r->picture = (struct kn_hevc_picture){.index = r->stream.n_pictures, .idr = r->header.idr, .bands = r->picture_bands, .n_bands = r->n_bands,
                                          .band_rows = r->opts.band_rows};
    memset(r->picture_bands, 0, r->n_bands * sizeof *r->picture_bands);
    return true;
}

static bool finish_picture(struct kni_hevc_reader *r)
{
    struct kn_hevc_picture *p = &r->picture;
    struct kni_hevc_rebuilt rebuilt = {.stride = r->stride, .why = r->why};
    for (uint32_t i = 0; i < r->n_bands; i++) {
        add_counts(&p->counts, &r->picture_bands[i]);
        add_counts(&r->stream_bands[i], &r->picture_bands[i]);
    }
    add_counts(&r->stream.counts, &p->counts);
    kni_hevc_reader_limit_picture(r);
    r->unit_whole = true;
    for (uint32_t plane = 0; plane < 3 && !r->why; plane++)
        rebuilt.plane[plane] = r->planes[0][plane];
    p->n_bytes = r->bytes_since;
    r->bytes_since = 0;
    r->in_picture = false;
    r->stream.n_pictures++;
    r->stream.n_samples += 3 * (uint64_t)r->sps.params.width * r->sps.params.height;
    if (r->opts.on_picture)
        r->status = r->opts.on_picture(r->opts.user, p, &rebuilt, r->err);
    for (uint32_t plane = 0; plane < 3; plane++) {
        uint8_t *now = r->planes[0][plane];
        r->planes[0][plane] = r->planes[1][plane];
        r->planes[1][plane] = now;
    }
    r->have_before = !r->why;
    r->before_why = r->why;
    r->before_poc = r->header.poc;
    return r->status == KN_OK;
}

static bool finish_slice(struct kni_hevc_reader *r, uint32_t n_ctus, size_t header_bytes, size_t n_escapes, size_t n_bytes)
{
    const struct kni_hevc_sps *s = &r->sps;
    const struct kni_hevc_header *h = &r->header;
    uint32_t row = h->address / s->ctus_wide * s->params.ctu, end = ((h->address + n_ctus - 1) / s->ctus_wide + 1) * s->params.ctu;
    if (end > s->params.height)
        end = s->params.height;
    struct kn_hevc_slice slice = {.picture = r->picture.index,
                                  .index = r->picture.n_slices,
                                  .type = h->type,
                                  .idr = h->idr,
                                  .first_ctu = h->address,
                                  .n_ctus = n_ctus,
                                  .first_row = row,
                                  .n_rows = end - row,
                                  .qp = h->qp,
                                  .n_refs = h->n_refs,
                                  .n_bytes = n_bytes,
                                  .header_bytes = header_bytes,
                                  .n_escapes = n_escapes,
                                  .n_filler = r->n_filler};
    for (uint32_t i = row / r->opts.band_rows; i * r->opts.band_rows < end; i++) {
        struct kn_hevc_counts c = band_counts(&r->slice_bands[i]);
        add_counts(&slice.counts, &c);
        add_counts(&r->picture_bands[i], &c);
        memset(&r->slice_bands[i], 0, sizeof r->slice_bands[i]);
    }
    r->picture.n_slices++;
    r->stream.n_slices++;
    r->ctus_done += n_ctus;
    if (r->opts.on_slice)
        r->status = r->opts.on_slice(r->opts.user, &slice, r->err);
    return r->status == KN_OK && (r->ctus_done < s->ctus_wide * s->ctus_high || finish_picture(r));
}

/* start_bytes: of the start code and the NAL unit's header; n_nal: of the NAL unit; n_bytes: of it and its start code. */
static bool read_slice(struct kni_hevc_reader *r, uint32_t nal_type, size_t n_payload, size_t start_bytes, size_t n_nal, size_t n_bytes)
{
    uint32_t n_ctus = 0;
    struct kni_hevc_header h;
    if (!kni_hevc_reader_slice_header(r, &h, nal_type, r->payload, n_payload))
        return false;
    if (!h.first && (!r->in_picture || h.address != r->ctus_done || h.idr != r->header.idr || h.poc != r->header.poc))
        return kni_hevc_reader_fail(r, KN_E_FORMAT, "has a slice that does not follow the one before it");
    r->header = h;
    if (h.first && !begin_picture(r))
        return false;
    if (!r->why)
        r->why = h.why;
    r->stamp++;
    r->slice_bytes += n_nal;
    return kni_hevc_reader_slice_data(r, n_payload, &n_ctus) && finish_slice(r, n_ctus, start_bytes + h.data_at, n_nal - 2 - n_payload, n_bytes);
}

/* A decoded picture hash, of the picture before it. */
static bool read_suffix(struct kni_hevc_reader *r, size_t n_payload)
{
    static const char *const names[] = {"md5", "crc", "checksum"};
    struct kni_hevc_digest want, now;
    bool found = false;
    const char *why = kni_hevc_digest_read(r->payload, n_payload, &want, &found);
    if (why)
        return kni_hevc_reader_fail(r, KN_E_FORMAT, "%s", why);
    if (!found)
        return true;
    if (r->in_picture || r->stream.n_hashed >= r->stream.n_pictures)
        return kni_hevc_reader_fail(r, KN_E_FORMAT, "has a decoded picture hash that belongs to no picture");
    r->stream.n_hashed++;
    kni_hevc_reader_limit_unit(r);
    r->stream.hash = names[want.kind];
    if (!r->opts.rebuild || !r->have_before)
        return true;
    const uint8_t *const planes[3] = {r->planes[1][0], r->planes[1][1], r->planes[1][2]};
    const size_t strides[3] = {r->stride, r->stride, r->stride};
    const uint32_t width = r->stream.params.width, height = r->stream.params.height;
    if (!kni_hevc_digest_of(&now, want.kind, planes, strides, width, height, width, height))
        return no_memory(r);
    if (!kni_hevc_digest_equal(&now, &want))
        return kni_hevc_reader_fail(r, KN_E_FORMAT, "has a picture %u that is not what its %s says", r->stream.n_pictures - 1, names[want.kind]);
    r->stream.n_hash_checked++;
    return true;
}

/* ---- NAL units */

/* Takes 03 out of 00 00 03. */
static size_t unescape(uint8_t *to, const uint8_t *from, size_t n_bytes)
{
    size_t n = 0;
    uint32_t zeros = 0;
    for (size_t i = 0; i < n_bytes; i++) {
        if (zeros >= 2 && from[i] == 3) {
            zeros = 0;
            continue;
        }
        zeros = from[i] ? 0 : zeros + 1;
        to[n++] = from[i];
    }
    return n;
}

static bool read_nal(struct kni_hevc_reader *r, const uint8_t *nal, size_t n_nal, size_t start_bytes)
{
    while (n_nal && !nal[n_nal - 1]) /* trailing zeros belong to the byte stream */
        n_nal--;
    if (n_nal < 2 || nal[0] & 0x80 || !(nal[1] & 7))
        return kni_hevc_reader_fail(r, KN_E_FORMAT, "has a NAL unit without a header");
    uint32_t type = nal[0] >> 1, layer = (nal[0] & 1u) << 5 | nal[1] >> 3;
    bool slice = type < NAL_VCL_END;
    if (r->unit_whole && type != NAL_SEI_SUFFIX) {
        r->unit_whole = false;
        r->unit_bytes = 0;
    }
    r->unit_bytes += n_nal;
    if (layer)
        return kni_hevc_reader_fail(r, KN_E_UNSUPPORTED, "has several layers, which this reader does not know");
    if (!slice && type != NAL_SPS && type != NAL_PPS && type != NAL_SEI_SUFFIX)
        return true;
    if (slice && (type > NAL_CRA || (type > NAL_TRAIL_LAST && type < NAL_IRAP_FIRST)))
        return kni_hevc_reader_fail(r, KN_E_UNSUPPORTED, "has pictures of NAL type %u, which this reader does not know", type);
    if (!slice && r->in_picture && type != NAL_SEI_SUFFIX)
        return kni_hevc_reader_fail(r, KN_E_FORMAT, "has a parameter set inside a picture");
    r->payload = kni_room(KNI_ALLOC_TAG_CODEC, r->payload, &r->payload_capacity, n_nal, 1);
    if (!r->payload)
        return no_memory(r);
    size_t n = unescape(r->payload, nal + 2, n_nal - 2);
    if (slice)
        return read_slice(r, type, n, start_bytes + 2, n_nal, start_bytes + n_nal);
    if (type == NAL_SEI_SUFFIX)
        return read_suffix(r, n);
    return type == NAL_SPS ? kni_hevc_reader_sps(r, r->payload, n) : kni_hevc_reader_pps(r, r->payload, n);
}

enum kn_status kni_hevc_reader_read(struct kni_hevc_reader *r, const uint8_t *bytes, size_t n_bytes, struct kn_err *err)
{
    r->err = err;
    size_t at = kni_hevc_find_start(bytes, n_bytes, 0);
    for (size_t i = 0; i < at; i++)
        if (at == n_bytes || bytes[i]) {
            kni_hevc_reader_fail(r, KN_E_FORMAT, "does not begin with a start code");
            break;
        }
    if (!n_bytes)
        kni_hevc_reader_fail(r, KN_E_FORMAT, "has an empty access unit");
    size_t lead = at; /* zeros before the start code */
    while (at < n_bytes && r->status == KN_OK) {
        size_t begin = at + 3, next = kni_hevc_find_start(bytes, n_bytes, begin), end = next;
        while (next < n_bytes && end > begin && !bytes[end - 1]) /* zeros before a start code count as its own */
            end--;
        r->bytes_since += lead + end - at;
        r->stream.n_bytes += lead + end - at;
        read_nal(r, bytes + begin, end - begin, lead + 3);
        lead = next - end;
        at = next;
    }
    r->err = NULL;
    return r->status;
}

enum kn_status kni_hevc_reader_end(struct kni_hevc_reader *r, struct kn_hevc_stream *stream, struct kn_err *err)
{
    r->err = err;
    if (r->in_picture)
        kni_hevc_reader_fail(r, KN_E_FORMAT, "ends within a picture");
    else if (!r->stream.n_pictures)
        kni_hevc_reader_fail(r, KN_E_FORMAT, "holds no picture");
    r->err = NULL;
    kni_hevc_reader_limit_end(r);
    if (r->status == KN_OK && stream) {
        *stream = r->stream;
        stream->bands = r->stream_bands;
        stream->n_bands = r->n_bands;
        stream->band_rows = r->opts.band_rows;
    }
    return r->status;
}

/* ---- the handle */

enum kn_status kni_hevc_reader_open(struct kni_hevc_reader **out, const struct kni_hevc_reader_opts *opts, struct kn_err *err)
{
    *out = NULL;
    uint32_t band_rows = opts->band_rows ? opts->band_rows : 16;
    if (band_rows % 4)
        return kni_err_set(err, KN_E_ARG, "a row band of an HEVC stream takes a multiple of 4 rows, not %u", band_rows);
    struct kni_hevc_reader *r = kni_calloc(KNI_ALLOC_TAG_CODEC, sizeof *r, 0);
    if (!r)
        return kni_err_set(err, KN_E_NOMEM, "no memory to read an HEVC stream");
    r->opts = *opts;
    r->opts.band_rows = band_rows;
    if (!r->opts.max_samples)
        r->opts.max_samples = 8192 * 8192;
    kni_hevc_bins_init(&r->bins);
    *out = r;
    return KN_OK;
}

void kni_hevc_reader_close(struct kni_hevc_reader **reader)
{
    struct kni_hevc_reader *r = *reader;
    if (!r)
        return;
    free_picture(r);
    kni_free(r->payload);
    kni_free(r);
    *reader = NULL;
}
