/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The handle of the spectral transform, shared by its two directions. All scratch is one block of memory. For SmolLM2 (width 1920,
 * 256 tokens): 3 MB, of which panels are 2.
 *
 * A piece is the fewest whole heads that are whole strips of 64 columns as well (or all heads, where there are not that many): on
 * the way back columns become K or V piece by piece, while they are in cache.
 */
#ifndef KNI_CODEC_SPECTRAL_STATE_H
#define KNI_CODEC_SPECTRAL_STATE_H

#include "codec/spectral/spectral.h"
#include "codec/spectral/spectral_rows.h"

#define KNI_SPECTRAL_TILE 256u        /* tokens that are transformed together, at most */
#define KNI_SPECTRAL_BLOCK_ROWS 96u   /* of the basis, as floats in the second cache */
#define KNI_SPECTRAL_BLOCK_COLS 384u

struct kni_spectral {
    const struct kni_profile *profile; /* borrowed */
    struct kni_kernels kernels;
    struct kni_spectral_ops ops;
    uint32_t max_tokens, tile_tokens, half_tile /* a multiple of 16 */, max_width, max_rows, max_layers;
    uint32_t piece_heads, piece_cols; /* columns are rounded up to whole strips */
    void *memory;
    size_t bytes;
    /* Rotations of positions turn_first .. + turn_n. */
    uint32_t turn_first, turn_n;
    float turn_sign;
    float *cos_rows, *sin_rows;         /* [n_ropes][max_tokens][n_pairs] */
    /* Forward. */
    float *panels;                      /* [tile_tokens / 16][width][16] */
    float *tokens16;                    /* [16][width] */
    float *basis_floats, *y;            /* [block rows][block cols]; [block rows][tile_tokens] */
    /* Inverse. */
    struct kni_spectral_entry *entries; /* in the memory of panels: half_tile * width of them */
    float *x;                           /* [tile_tokens][piece_cols] */
    uint16_t *strip;                    /* [max_rows][64] */
    float *mean, *inv_weight;           /* [width]; mean goes on with zeros to whole strips */
    float *scales;                      /* [n_layers][max_tokens] */
    uint16_t *counts;                   /* [max_tokens]: symbols that are not zero */
    uint32_t *starts, *next;            /* [tile_tokens + 1], [tile_tokens]: a token's entries */
    uint32_t *row_escapes;              /* [max_rows]: a row's next escape */
    uint8_t *used;                      /* [max_rows]: not all zero in this tile */
    uint8_t *escaped;                   /* [max_rows]: has escapes */
};

/* Fills the tables of cosines and sines, sign -1 to un-rotate. */
void kni_spectral_turn(struct kni_spectral *s, uint32_t first_token, uint32_t n_tokens, float sign);
/* Asserts what callers promise. */
void kni_spectral_check_call(const struct kni_spectral *s, const struct kni_kv_host *view, uint32_t first_token, uint32_t n_tokens, uint32_t part,
                             enum kni_profile_preset preset);

#endif
