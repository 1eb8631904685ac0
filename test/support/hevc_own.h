/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Kinema's own reader as a judge of an HEVC stream, as the foreign ones of hevc_peers.h are: NULL, or a sentence that says what is wrong. It
 * also holds the reader's sums against each other and against the bytes that there are.
 */
#ifndef KN_TEST_HEVC_OWN_H
#define KN_TEST_HEVC_OWN_H

#include <math.h>

#include "codec/hevc/hevc_reader.h"
#include "support/hevc_peers.h"

struct hevc_own {
    const struct hevc_film *want;
    struct kn_hevc_params params;
    uint32_t n_params, n_slices, n_pictures, n_rebuilt;
    uint64_t picture_bytes, data_bytes; /* data: of slices behind their headers */
    double bits;                        /* of slices */
    uint64_t rows;                      /* of slices' first rows, picture by picture */
    const char *bad, *why;              /* why: a picture was not rebuilt */
    struct kn_hevc_stream stream;       /* at the end */
};

static inline double hevc_own_bits(const struct kn_hevc_counts *c)
{
    double bits = 0;
    for (uint32_t e = 0; e < KN_HEVC_ELEMENT_COUNT; e++)
        bits += c->element[e].bits;
    return bits;
}

static inline enum kn_status hevc_own_params(void *user, const struct kn_hevc_params *params, struct kn_err *err)
{
    struct hevc_own *o = user;
    (void)err;
    o->params = *params;
    o->n_params++;
    return KN_OK;
}

static inline enum kn_status hevc_own_slice(void *user, const struct kn_hevc_slice *slice, struct kn_err *err)
{
    struct hevc_own *o = user;
    (void)err;
    double bits = hevc_own_bits(&slice->counts), bytes = (double)(slice->n_bytes - slice->header_bytes);
    if (slice->picture != o->n_pictures || slice->first_row != o->rows || !slice->n_rows)
        o->bad = hevc_wrong("our reader: slice %u of picture %u is out of order", slice->index, slice->picture);
    else if (bits > 8 * bytes * 1.02 + 16 || bits < 8 * bytes * 0.9 - 200) /* emulation prevention and whole bits on one side, coarse ranges on the other */
        o->bad = hevc_wrong("our reader: slice %u of picture %u has %.0f bytes and %.1f bits", slice->index, slice->picture, bytes, bits);
    o->rows += slice->n_rows;
    o->bits += bits;
    o->data_bytes += slice->n_bytes - slice->header_bytes;
    o->n_slices++;
    return o->bad ? KN_E_ARG : KN_OK;
}

static inline enum kn_status hevc_own_picture(void *user, const struct kn_hevc_picture *picture, const struct kni_hevc_rebuilt *rebuilt, struct kn_err *err)
{
    struct hevc_own *o = user;
    double bands = 0;
    (void)err;
    for (uint32_t i = 0; i < picture->n_bands; i++)
        bands += hevc_own_bits(&picture->bands[i]);
    if (picture->index != o->n_pictures || fabs(bands - hevc_own_bits(&picture->counts)) > 1e-6 * bands)
        o->bad = hevc_wrong("our reader: picture %u has %.1f bits and bands of %.1f", picture->index, hevc_own_bits(&picture->counts), bands);
    o->picture_bytes += picture->n_bytes;
    o->n_pictures++;
    o->rows = 0;
    if (!rebuilt->plane[0]) {
        o->why = rebuilt->why;
        return KN_OK;
    }
    o->n_rebuilt++;
    if (o->params.width - o->params.window_right != o->want->width || o->params.height - o->params.window_bottom != o->want->height || picture->index >= o->want->n_pictures)
        o->bad = hevc_wrong("our reader: picture %u is %u x %u", picture->index, o->params.width - o->params.window_right, o->params.height - o->params.window_bottom);
    for (uint32_t k = 0; k < 3 && !o->bad; k++)
        o->bad = hevc_compare("our reader", o->want, picture->index, k, rebuilt->plane[k], rebuilt->stride);
    return o->bad ? KN_E_ARG : KN_OK;
}

/* Reads s unit by unit. *o has the outcome. */
static inline const char *hevc_own_read(const struct hevc_stream *s, const struct hevc_film *want, struct hevc_own *o)
{
    struct kni_hevc_reader *r = NULL;
    struct kn_err err = {0};
    *o = (struct hevc_own){.want = want};
    struct kni_hevc_reader_opts opts = {.rebuild = true, .on_params = hevc_own_params, .on_slice = hevc_own_slice, .on_picture = hevc_own_picture, .user = o};
    enum kn_status status = kni_hevc_reader_open(&r, &opts, &err);
    size_t at = 0;
    for (uint32_t i = 0; i < s->n_units && status == KN_OK; at += s->unit_bytes[i++])
        status = kni_hevc_reader_read(r, s->bytes + at, s->unit_bytes[i], &err);
    if (status == KN_OK)
        status = kni_hevc_reader_end(r, &o->stream, &err);
    kni_hevc_reader_close(&r);
    if (!o->bad && status != KN_OK)
        o->bad = hevc_wrong("our reader: %s", err.text);
    if (!o->bad && (o->n_pictures != want->n_pictures || o->picture_bytes != s->n_bytes || o->stream.n_bytes != s->n_bytes || o->stream.n_slices != o->n_slices))
        o->bad = hevc_wrong("our reader: %u pictures in %llu of %zu bytes", o->n_pictures, (unsigned long long)o->picture_bytes, s->n_bytes);
    return o->bad;
}

/* All pictures must come back bit for bit. */
static inline const char *hevc_judge_own(const struct hevc_stream *s, const struct hevc_film *want)
{
    struct hevc_own o;
    const char *bad = hevc_own_read(s, want, &o);
    return bad || o.n_rebuilt == o.n_pictures ? bad : hevc_wrong("our reader: a picture %s", o.why);
}

#endif
