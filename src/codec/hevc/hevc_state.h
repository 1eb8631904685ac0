/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What the parts of the lossless encoder share: the encoder as it is after init (read only from then on), a scanned block, and
 * the functions that exist once a CPU level.
 *
 *     sub-blocks of a block, 4 x 4 samples each:      coefficients of a sub-block, bit n of the masks:
 *          0  1  2 ..  7                                    0  2  5  9
 *          8  9 10 .. 15                                    1  4  8 12      the diagonal scan of H.265, 6.5.3; coded from 15
 *         ..                                                3  7 11 14      down to 0
 *         56 57 58 .. 63                                    6 10 13 15
 */
#ifndef KNI_CODEC_HEVC_STATE_H
#define KNI_CODEC_HEVC_STATE_H

#include "codec/hevc/hevc_cabac.h"
#include "codec/hevc/hevc_limits.h"
#include "codec/hevc/hevc_lossless.h"

#define KNI_HEVC_MAX_SLICES 64u
#define KNI_HEVC_MIN_CU_LOG2 3u
#define KNI_HEVC_MAX_BLOCK_LOG2 5u

/* A block's differences, ready to code. Only sub-blocks whose bit in coded is set are filled. */
struct kni_hevc_block {
    uint64_t coded;                             /* sub-blocks that are not all zero */
    uint16_t sig[64], sign[64], over1[64], over2[64]; /* not 0; below 0; magnitude above 1, above 2 */
    uint8_t level[64][16];                      /* magnitudes */
};

/* Fades: a P slice's references are the picture before, each a mix of it and 128: (8 - fade) eighths are 128. */
#define KNI_HEVC_MAX_REFS 4u
#define KNI_HEVC_FADE_LOG2 3u

/* How a coding unit predicts. mode: an intra mode, luma's, or the reference; chroma: KNI_HEVC_CHROMA_DERIVED or an intra mode. */
struct kni_hevc_choice { uint8_t log2, intra, mode, chroma; };
#define KNI_HEVC_CHROMA_DERIVED 255u

/* What deciding about one coding tree unit needs (hevc_tiles_unit.inc). Cells are 8 x 8 samples, in Z order; costs are bits times 16. */
struct kni_hevc_tiles {
    struct kni_hevc_choice choices[16];
    uint32_t best[16];                                        /* of the choices of the subtree that begins at a cell */
    uint32_t from_before[KNI_HEVC_MAX_REFS][16];
    uint32_t ref_cost[KNI_HEVC_MAX_REFS];                     /* of a reference's index */
    uint32_t n_refs;
    bool film;                                                /* prediction from inside the picture is worth a try */
    const uint8_t *now[3];
    size_t stride[3];
    uint8_t edge[3][32 * 32], faded[KNI_HEVC_MAX_REFS][3][32 * 32], trial[32 * 32];
};

typedef size_t (*kni_hevc_slice_fn)(const struct kni_hevc_lossless *e, const struct kni_hevc_job *job, uint32_t i, uint8_t *out);

struct kni_hevc_lossless {
    uint32_t width, height;             /* of the planes */
    uint32_t coded_width, coded_height; /* multiples of 8 */
    uint32_t tools;
    bool pcm;                           /* units may be PCM, where their bins would be too many bits */
    const struct kni_hevc_level *level; /* that parameter sets declare */
    enum kni_hevc_content content;
    uint32_t n_slices, ctb_log2, ctb_cols, ctb_rows;
    int32_t qp; /* says only how contexts begin */
    uint32_t init_type; /* of P slices */
    uint32_t slice_row[KNI_HEVC_MAX_SLICES + 1]; /* first row of coding tree units */
    uint8_t cu_log2[KNI_HEVC_LOSSLESS_MAX_SIDE / 8]; /* coding units' size where 8 rows begin */
    uint32_t n_refs;                    /* of P slices, 1: the picture before, as it is */
    uint8_t fade[KNI_HEVC_MAX_REFS];    /* eighths, 1..8 */
    uint16_t cost[16 * 255 + 1];        /* of 4 x 4 samples, by the sum of their magnitudes: bits times 16 */
    uint8_t bin_cost[128];              /* of a bin, by context ^ bin: bits times 16; context 0: even odds */
    uint8_t contexts[2][KNI_HEVC_N_CONTEXTS]; /* at the beginning of I, P slices */
    struct kni_hevc_coding states;
    kni_hevc_slice_fn slice;
};

/* Where sub-block i of the diagonal scan lies, for blocks of 1 << n sub-blocks a side. */
extern const uint8_t kni_hevc_sub_scan[4][64];
/* Column and row of coefficient n in its sub-block. */
extern const uint8_t kni_hevc_scan_x[16], kni_hevc_scan_y[16];
/* Significance context of coefficient n by which neighbours are coded (bit 0: right, bit 1: below); without offset. */
extern const uint8_t kni_hevc_sig_base[4][16];
/* The same for one coded neighbour, right and below: coefficients of each context, and where in that order (contexts 0, 1, 2; in each the
 * highest coefficient first) coefficients 15 to 0 are. */
extern const uint16_t kni_hevc_sig_mask[2][3];
extern const uint8_t kni_hevc_sig_order[2][16];

/* Slice header; n_refs: of a P slice, e->n_refs at most. Returns bytes. */
size_t kni_hevc_slice_header(const struct kni_hevc_lossless *e, const struct kni_hevc_job *job, uint32_t i, uint32_t n_refs, uint8_t *out);

/* Inserts emulation prevention into the n bytes at payload; there is room for half as many more. Returns the new size. */
size_t kni_hevc_escape(uint8_t *payload, size_t n);

/* Differences of size x size samples (4, 8, 16, 32) from before's, or from 128 where before is NULL. Slices have it inlined; these are for tests. */
typedef void (*kni_hevc_scan_fn)(struct kni_hevc_block *b, const uint8_t *now, size_t stride, const uint8_t *before, size_t before_stride, uint32_t size);
void kni_hevc_scan_ref(struct kni_hevc_block *b, const uint8_t *now, size_t stride, const uint8_t *before, size_t before_stride, uint32_t size);

/* The slice coder of a processor. cpu_flags: of enum kni_cpu_flag, any set; 0: the reference. */
kni_hevc_slice_fn kni_hevc_slice_get(uint32_t cpu_flags);
size_t kni_hevc_slice_ref(const struct kni_hevc_lossless *e, const struct kni_hevc_job *job, uint32_t i, uint8_t *out);
#if defined(__x86_64__)
void kni_hevc_scan_avx2(struct kni_hevc_block *b, const uint8_t *now, size_t stride, const uint8_t *before, size_t before_stride, uint32_t size);
void kni_hevc_scan_avx512(struct kni_hevc_block *b, const uint8_t *now, size_t stride, const uint8_t *before, size_t before_stride, uint32_t size);
size_t kni_hevc_slice_avx2(const struct kni_hevc_lossless *e, const struct kni_hevc_job *job, uint32_t i, uint8_t *out);
size_t kni_hevc_slice_avx512(const struct kni_hevc_lossless *e, const struct kni_hevc_job *job, uint32_t i, uint8_t *out);
#endif

#endif
