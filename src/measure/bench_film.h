/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The pictures that encoders of video are measured on: those that a layout draws of a bed's clean prefix, K or V of all its chunks, all
 * kept in memory so that drawing them is no part of what is measured.
 *
 *     spectral   stream = triple * n_chunks + chunk      pictures of a stream: flat, drawn, flat, drawn, ..; columns by loudness
 *     tiles      stream = group * n_chunks + chunk       all are drawn
 *
 * So streams of one size in bytes, about, are neighbours: dealt out one by one, the large ones first, they keep threads equally busy.
 * Owner: one thread makes and frees it; any number of threads may read.
 */
#ifndef KNI_ENGINE_BENCH_FILM_H
#define KNI_ENGINE_BENCH_FILM_H

#include "codec/hevc/hevc_decode.h"
#include "codec/hevc/hevc_lossless.h"
#include "measure/eval_method.h"

struct kni_film {
    enum kni_hevc_content content;
    uint32_t width, height;
    uint32_t n_streams, n_chunks;
    uint32_t n_pictures;  /* of a stream, flat ones counted */
    uint8_t *samples;     /* [stream][drawn picture][plane][height][width] */
    uint8_t *flat;        /* [height][width] of 128; NULL where all pictures are drawn */
    uint16_t *row_scale;  /* [triple][height]; NULL for tiles */
    uint64_t n_symbols;   /* that the layout put into the pictures; padding and flat pictures are none */
    uint64_t order_bytes; /* of the order of columns, which travels apart from pictures */
    double entropy_bytes; /* of every row of every plane by itself, over a chunk's tokens, zero order; 0 for tiles, whose rows mean nothing */
};

/* preset: tiles, or a spectral one, for which profile is needed. text_order: columns of spectral pictures are not ordered by loudness. The
 * prefix must be computed. A zeroed film may be freed. KN_E_NOMEM, KN_E_ARG (the shape does not fit the layout), KN_E_UNSUPPORTED (values that are
 * not finite). */
enum kn_status kni_film_make(struct kni_film *f, const struct kni_eval_bed *bed, const struct kni_profile *profile, enum kn_preset preset, uint32_t is_v,
                             bool text_order, struct kn_err *err);
void kni_film_free(struct kni_film *f);

/* The planes of a stream's picture, each width samples a row; borrowed. */
void kni_film_planes(const struct kni_film *f, uint32_t stream, uint32_t picture, const uint8_t *planes[3]);
static inline bool kni_film_is_flat(const struct kni_film *f, uint32_t picture)
{
    return f->flat && picture % 2 == 0;
}
/* Of a stream's pictures, [height], or NULL. */
const uint16_t *kni_film_row_scale(const struct kni_film *f, uint32_t stream);

/* Decodes a section (hevc_encode.h) that claims to be of a stream and holds every sample against the pictures. KN_E_FORMAT with a sentence when it
 * does not decode or differs. *decoder as for kni_hevc_decode. */
enum kn_status kni_film_compare(const struct kni_film *f, uint32_t stream, const uint8_t *bytes, size_t n_bytes, struct kni_hevc_decoder **decoder,
                                struct kn_err *err);

#endif
