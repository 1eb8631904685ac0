/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Prediction of a block from the samples around it (H.265, 8.4.4.2), for 4:4:4: chroma is filtered as luma is.
 *
 *     border, one line from the lower left over the corner to the upper right; a block of n x n has 4 n + 1 samples of it:
 *
 *          2n |2n+1 ..  3n | 3n+1 .. 4n
 *        -----+------------+------------        what the decoder does not have yet takes the nearest sample
 *        2n-1 |                                 before it on the line (8.4.4.2.2)
 *         ..  |  block
 *           n |
 *        -----+
 *         n-1 |
 *          .. |
 *           0 |
 *
 * As a line, borders are filled and smoothed in one direction and horizontal modes are vertical ones read backwards. The encoder is lossless: the
 * samples around are the picture's own, and no block waits for another. Pure functions: any thread.
 */
#ifndef KNI_CODEC_HEVC_INTRA_H
#define KNI_CODEC_HEVC_INTRA_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define KNI_HEVC_INTRA_PLANAR 0u
#define KNI_HEVC_INTRA_DC 1u
#define KNI_HEVC_INTRA_HORIZONTAL 10u
#define KNI_HEVC_INTRA_VERTICAL 26u
#define KNI_HEVC_INTRA_MODES 35u /* 2..34: directions, from the lower left over the upper left to the upper right */

/* What there is around a block of n x n samples at (x, y) of a plane. */
struct kni_hevc_around {
    const uint8_t *plane;
    size_t stride;
    uint32_t width, height; /* of the plane; beyond them its last column and row repeat */
    uint32_t x, y, n;       /* n: 4, 8, 16, 32 */
    uint32_t n_below, n_right; /* samples below the left ones and right of the upper ones, 0..n */
    bool left, above, corner;
};

struct kni_hevc_border { uint8_t raw[129], smooth[129]; };

/* Both lines of a border. */
void kni_hevc_border_fill(struct kni_hevc_border *b, const struct kni_hevc_around *a);

/* Prediction of a block of 1 << log2 samples a side to out, row after row. luma: edges of DC, horizontal and vertical blocks below 32 are filtered,
 * which holds for streams without implicit RDPCM only. */
void kni_hevc_intra_predict(uint8_t *out, const struct kni_hevc_border *b, uint32_t mode, uint32_t log2, bool luma);

/* The three most probable modes of a block whose neighbours have modes left and above (8.4.2); DC stands for everything that is not intra or not there. */
void kni_hevc_intra_probable(uint8_t modes[3], uint32_t left, uint32_t above);

#endif
