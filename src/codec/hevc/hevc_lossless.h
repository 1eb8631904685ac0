/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Kinema's own lossless HEVC encoder: version 2 of the standard (format range extensions), 4:4:4, 8 bits.
 *
 *     planes --kni_hevc_lossless_headers, then _slice per slice--> one Annex B access unit a picture
 *
 * Its pictures are symbols, not film: noise around 128 whose loudness changes from row to row. So nothing is searched. A stream
 * begins with an IDR picture; every later one predicts from the picture before it with no motion, block by block, and codes
 * the difference without transform (cu_transquant_bypass). Since that is lossless, the picture before is the caller's own
 * planes: nothing is reconstructed and nothing is waited for, and every slice of every picture may be coded on its own. Token tiles choose
 * among several strengths of the picture before, by weighted prediction (hevc_tiles_unit.inc).
 *
 * Memory is the caller's: kni_hevc_lossless_bytes of it hold the encoder, and nothing is allocated later. Slices write
 * into room of kni_hevc_lossless_slice_bound bytes. Core functions keep no state outside of their arguments.
 *
 * Source: ITU-T H.265 (08/2021), 7.3 (syntax), 9.3 (CABAC). Any number of threads may code slices of one encoder at once;
 * init and headers belong to one thread. The same bytes at every CPU level.
 */
#ifndef KNI_CODEC_HEVC_LOSSLESS_H
#define KNI_CODEC_HEVC_LOSSLESS_H

#include "base/status.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define KNI_HEVC_LOSSLESS_MIN_SIDE 16u
#define KNI_HEVC_LOSSLESS_MAX_SIDE 8192u
#define KNI_HEVC_LOSSLESS_MAX_SAMPLES 35651584u /* of a plane as coded: level 6.2, the highest there is (table A.8) */

/* Range extension tools, by the flag of sps_range_extension that each one sets. Also the container's field "tools". */
enum kni_hevc_tool {
    KNI_HEVC_TOOL_SIG_CONTEXT = 1 << 0,    /* transform_skip_context_enabled_flag: one context for all significance flags */
    KNI_HEVC_TOOL_IMPLICIT_RDPCM = 1 << 1, /* implicit_rdpcm_enabled_flag: intra blocks, horizontal and vertical */
    KNI_HEVC_TOOL_EXPLICIT_RDPCM = 1 << 2, /* explicit_rdpcm_enabled_flag: inter blocks */
    KNI_HEVC_TOOL_RICE = 1 << 3            /* persistent_rice_adaptation_enabled_flag */
};
#define KNI_HEVC_TOOLS_BASIC 0u
#define KNI_HEVC_TOOLS_ALL 15u

/* What pictures look like. Says which tests per block are worth their time; any picture may be coded as either. */
enum kni_hevc_content {
    KNI_HEVC_CONTENT_NOISE = 0, /* spectral: prediction from inside the picture never helps */
    KNI_HEVC_CONTENT_TILES = 1  /* token tiles: units' sizes, how strongly they predict from before, and intra, by cost */
};

struct kni_hevc_lossless_opts {
    uint32_t width, height;      /* samples, 16..8192; where not a multiple of 8, the stream carries a conformance window */
    uint32_t tools;              /* bits of enum kni_hevc_tool */
    enum kni_hevc_content content;
    uint32_t n_slices;           /* of each picture, 1..64; more than rows of coding tree units: as many as rows; 0: chosen by size */
    const uint16_t *row_scale;   /* [height] mean |symbol - 128| of each row times 256, the loudest plane's; borrowed for init; NULL: unknown */
    uint32_t cpu_without;        /* of enum kni_cpu_flag: the machine's flags that are not used; 0: all are */
};

struct kni_hevc_lossless;

/* Samples of one picture. Planes Y, Cb, Cr, all of the picture's size; borrowed. */
struct kni_hevc_planes { const uint8_t *plane[3]; size_t stride[3]; };

/* One picture to code. */
struct kni_hevc_job {
    bool first;                          /* begins a stream: IDR, with parameter sets */
    uint32_t index;                      /* pictures since first */
    struct kni_hevc_planes now;
    struct kni_hevc_planes before;       /* the picture before, when not first */
    bool before_flat;                    /* every sample of it is 128: before's planes may be NULL */
};

/* KN_E_ARG where a side or the picture is larger than any level of HEVC has it, or a side too small. */
enum kn_status kni_hevc_lossless_check_size(uint32_t width, uint32_t height, struct kn_err *err);
/* Bytes of memory that an encoder of opts needs, aligned to 64; 0 when opts are out of range. */
size_t kni_hevc_lossless_bytes(const struct kni_hevc_lossless_opts *opts);
/* Makes an encoder in memory (64-aligned, kni_hevc_lossless_bytes of it), which the caller keeps and frees. KN_E_ARG says
 * which option is out of range. */
enum kn_status kni_hevc_lossless_init(struct kni_hevc_lossless **out, void *memory, const struct kni_hevc_lossless_opts *opts, struct kn_err *err);

/* Another row_scale (struct kni_hevc_lossless_opts) from the next stream on; all else stays as init made it. No slice may be in work. */
void kni_hevc_lossless_set_rows(struct kni_hevc_lossless *e, const uint16_t *row_scale);

/* Of tools that are allowed, those that streams of this content use; for the others their pictures would pay and gain nothing. */
uint32_t kni_hevc_content_tools(uint32_t tools, enum kni_hevc_content content);

uint32_t kni_hevc_lossless_n_slices(const struct kni_hevc_lossless *e);
/* Most bytes of slice i (< n_slices) of any picture, start code and emulation prevention counted; the room that a slice needs. */
size_t kni_hevc_lossless_slice_bound(const struct kni_hevc_lossless *e, uint32_t i);
/* Most bytes of parameter sets and of all slices. */
size_t kni_hevc_lossless_unit_bound(const struct kni_hevc_lossless *e);

/* Chooses what kni_hevc_lossless_headers says from then on: the lowest level and tier (hevc_limits.h) that take pictures of this size and
 * number of slices, the largest access unit, and the first one; 0: not known. Init does so with both 0. Headers keep their size, so that
 * those of a stream may be written again over the old ones when all its units are known. Where no level takes the first unit (at least half the size
 * of its samples, in a large picture), the one that takes all else. false: none does, and nothing is changed. */
bool kni_hevc_lossless_declare(struct kni_hevc_lossless *e, uint64_t unit_bytes, uint64_t first_unit_bytes);
/* Bytes that no access unit exceeds when all coding tree units are as large as they may be, with room for emulation prevention of noise: what
 * to declare before pictures are known. */
uint64_t kni_hevc_lossless_loud_bytes(const struct kni_hevc_lossless *e);

/* VPS, SPS and PPS to out (at most KNI_HEVC_LOSSLESS_HEADERS bytes); returns their size. */
#define KNI_HEVC_LOSSLESS_HEADERS 256
size_t kni_hevc_lossless_headers(const struct kni_hevc_lossless *e, uint8_t *out);
/* Codes slice i of the picture into out; returns its size. */
size_t kni_hevc_lossless_slice(const struct kni_hevc_lossless *e, const struct kni_hevc_job *job, uint32_t i, uint8_t *out);
/* A whole access unit into out, which has unit_bound bytes: parameter sets when first, then every slice. Returns its size. */
size_t kni_hevc_lossless_unit(const struct kni_hevc_lossless *e, const struct kni_hevc_job *job, uint8_t *out);

#endif
