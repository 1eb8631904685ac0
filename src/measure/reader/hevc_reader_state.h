/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What the parts of the reader share (hevc_reader.h is its face):
 *
 *     hevc_reader.c           NAL units, memory, sums, callbacks
 *     hevc_reader_sets.c      parameter sets                    hevc_reader_slice.c    slice headers
 *     hevc_reader_tree.c      coding tree units to coding units, prediction units and transform trees
 *     hevc_reader_residual.c  coefficients                      hevc_reader_intra.c    intra prediction
 *     hevc_reader_cabac.h     arithmetic decoding               hevc_reader_bits.h     header codes
 *     hevc_reader_limits.c    what the level allows             hevc_reader_fail.c     errors
 *
 * Calls run from the frame to the parts, and from any of them to hevc_reader_fail.c, never back.
 *
 * Functions that may fail return false after kni_hevc_reader_fail. A stamp in a cell is the number of the slice (of the handle's life) that
 * coded it: neighbours are available when their stamp is the slice's own, which is z-order availability, because cells get their stamp
 * in decoding order and never need clearing.
 */
#ifndef KNI_CODEC_HEVC_READER_STATE_H
#define KNI_CODEC_HEVC_READER_STATE_H

#include "measure/reader/hevc_reader.h"
#include "codec/hevc/hevc_reader_bits.h"
#include "measure/reader/hevc_reader_cabac.h"

#define KNI_HEVC_MAX_REF_SETS 64u

struct kni_hevc_ref_set { uint32_t n_before, n_after; int32_t delta[16]; bool used[16]; }; /* before: nearest first */

struct kni_hevc_sps {
    bool valid;
    uint32_t id;
    struct kn_hevc_params params; /* deblocking, sign_hiding, weighted_pred, wavefront, cu_qp_delta, constrained_intra are the picture set's */
    uint32_t log2_ctu, log2_min_cu, log2_min_tu, log2_max_tu;
    uint32_t ctus_wide, ctus_high;
    uint32_t log2_poc;
    uint32_t n_ref_sets;
    struct kni_hevc_ref_set ref_set[KNI_HEVC_MAX_REF_SETS];
};

struct kni_hevc_pps {
    bool valid;
    uint32_t id, sps_id;
    bool output_flag_present, sign_hiding, cabac_init_present, cu_qp_delta, slice_chroma_qp, weighted_pred, wavefront, loop_across_slices,
        deblocking_override, deblocking_off, lists_modification, header_extension, chroma_qp_list, dependent_slices, constrained_intra;
    uint32_t n_extra_bits, n_refs, qp_depth, parallel_merge;
    int32_t init_qp;
};

struct kni_hevc_header {
    bool first, idr, irap, temporal_mvp, sao_luma, sao_chroma;
    char type;
    uint32_t address; /* of its first coding tree unit */
    uint32_t poc;     /* low bits of the picture order count */
    uint32_t n_refs, n_merge, init_type;
    int32_t qp;
    bool ref_is_before; /* the first reference is the picture before */
    bool all_before;    /* and so are all others, which differ in weights only */
    uint32_t weight_log2[2]; /* denominators, luma's and chroma's */
    struct { int32_t weight, offset; } fade[16][3]; /* by reference and plane; where weighted_pred is set */
    const char *why;    /* the picture cannot be rebuilt, because; or NULL */
    size_t data_at;     /* byte of the payload where its data begins */
};

struct kni_hevc_cell { uint32_t stamp; uint8_t depth; bool skip, intra; uint8_t mode, chroma_mode, ref; };

/* Counts of one row band while a slice is read: those of residuals apart by plane. */
struct kni_hevc_band { struct kn_hevc_count of[3][KN_HEVC_ELEMENT_COUNT]; uint32_t n_cu, n_cu_skipped, n_cu_intra; };

struct kni_hevc_reader {
    struct kni_hevc_reader_opts opts;
    struct kn_err *err; /* of the call at hand */
    enum kn_status status;

    struct kni_hevc_sps sps;
    struct kni_hevc_pps pps;
    bool params_new;
    struct kni_hevc_header header;
    struct kni_hevc_bins bins;
    struct kni_hevc_models row_models; /* wavefront: after the second coding tree unit of the row above */

    uint8_t *payload; /* of the NAL unit at hand */
    size_t payload_capacity, n_payload, n_filler; /* of the slice at hand: bytes, and of them zeros behind its end */

    /* by picture size */
    struct kni_hevc_cell *cells; /* [cells_high][cells_wide] */
    uint32_t cells_wide, cells_high;
    uint8_t *planes[2][3]; /* now, before */
    size_t stride;
    bool have_before;
    uint32_t before_poc;
    const char *why;        /* this picture is not rebuilt, because */
    const char *before_why;

    uint32_t stamp;
    uint32_t n_bands;
    struct kni_hevc_band *slice_bands;   /* [n_bands] */
    struct kn_hevc_counts *picture_bands, *stream_bands;
    struct kn_hevc_picture picture;
    struct kn_hevc_stream stream;
    bool in_picture;
    uint32_t ctus_done; /* of the picture */
    uint64_t bytes_since; /* of NAL units since the last whole picture */
    uint64_t slice_bytes, unit_bytes; /* of the picture's slices, of all NAL units of its access unit; start codes not counted */
    bool unit_whole;                  /* its picture is: what comes next begins another, unless it is SEI behind it */
    uint32_t picture_ctu_bits;        /* of its largest coding tree unit */
    uint64_t most_bytes;              /* of a picture's NAL units, the first not counted */

    /* of the coding unit at hand */
    struct kni_hevc_band *band;
    bool cu_intra, qp_delta_done, rdpcm, rdpcm_vertical;
    int16_t coef[32 * 32];
};

/* Sets status and one sentence about it, "HEVC stream: ...". Returns false. */
__attribute__((format(printf, 3, 4))) bool kni_hevc_reader_fail(struct kni_hevc_reader *r, enum kn_status status, const char *format, ...);

bool kni_hevc_reader_sps(struct kni_hevc_reader *r, const uint8_t *payload, size_t n_bytes);
bool kni_hevc_reader_pps(struct kni_hevc_reader *r, const uint8_t *payload, size_t n_bytes);
/* st_ref_pic_set(index), 7.3.7, where sets before index are known. */
bool kni_hevc_reader_ref_set(struct kni_hevc_reader *r, struct kni_hevc_bits *b, const struct kni_hevc_ref_set *sets, uint32_t n_sets, uint32_t index,
                             struct kni_hevc_ref_set *out);
bool kni_hevc_reader_slice_header(struct kni_hevc_reader *r, struct kni_hevc_header *h, uint32_t nal_type, const uint8_t *payload, size_t n_bytes);

/* All coding tree units of the slice at r->header, whose payload this is; counts go to slice_bands. *n_ctus: how many. */
bool kni_hevc_reader_slice_data(struct kni_hevc_reader *r, size_t n_bytes, uint32_t *n_ctus);
/* One transform block's coefficients into r->coef (row by row, no gaps; filled only when the picture is rebuilt), and its flags of
 * residual DPCM. mode: intra, of this plane. */
bool kni_hevc_reader_residual(struct kni_hevc_reader *r, uint32_t x, uint32_t y, uint32_t log2_size, uint32_t plane, uint32_t mode);
/* Predicts a block of the picture from its own neighbours. Rebuilding only. */
void kni_hevc_reader_intra(struct kni_hevc_reader *r, uint32_t x, uint32_t y, uint32_t log2_size, uint32_t plane, uint32_t mode);

/* Compares the picture that has just ended, or what parameter sets say, with the declared level (hevc_limits.h); and how fast the stream may be played. */
void kni_hevc_reader_limit_params(struct kni_hevc_reader *r);
void kni_hevc_reader_limit_picture(struct kni_hevc_reader *r);
void kni_hevc_reader_limit_unit(struct kni_hevc_reader *r); /* the access unit so far: SEI may follow its picture */
void kni_hevc_reader_limit_end(struct kni_hevc_reader *r);

static inline struct kni_hevc_cell *kni_hevc_reader_cell(const struct kni_hevc_reader *r, uint32_t x, uint32_t y)
{
    return &r->cells[(size_t)(y >> 2) * r->cells_wide + (x >> 2)];
}

/* The cell at (x, y) when it lies in the picture and the slice has coded it, or NULL. Coordinates may be outside. */
static inline const struct kni_hevc_cell *kni_hevc_reader_neighbour(const struct kni_hevc_reader *r, int64_t x, int64_t y)
{
    if (x < 0 || y < 0 || x >= r->sps.params.width || y >= r->sps.params.height)
        return NULL;
    const struct kni_hevc_cell *c = kni_hevc_reader_cell(r, (uint32_t)x, (uint32_t)y);
    return c->stamp == r->stamp ? c : NULL;
}

/* Later bins belong to this row and plane. */
static inline void kni_hevc_reader_at(struct kni_hevc_reader *r, uint32_t y, uint32_t plane)
{
    r->band = &r->slice_bands[y / r->opts.band_rows];
    r->bins.count = r->band->of[plane];
}

#endif
