/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The geometry and the quantiser of the tiles layout, apart from streams and containers, so that both can be tested bit
 * for bit. Method: KVCodec (arXiv 2602.09725), its token-wise layout, as far as is public.
 *
 * A token's K (or V) of one layer is a matrix [n_kv_head, d_head]. Each head is cut into tile_height rows; heads lie
 * head_cols side by side, the rest below each other; nothing mixes heads:
 *
 *     token tile (3 heads, d 64, tile_height 8, head_cols 1)        picture (tokens_per_picture P = 6, grid_cols 3)
 *     [ head 0:  8 x 8 ]                                            [ slot 0 ][ slot 1 ][ slot 2 ][pad]
 *     [ head 1:  8 x 8 ]                                            [ slot 3 ][ slot 4 ][ slot 5 ][pad]
 *     [ head 2:  8 x 8 ]                                            [ pad to a multiple of 16 ]          
 *
 * Time runs inside a slot: with n tokens in n / P pictures, picture t holds in slot s token s * (n / P) + t, so that the
 * picture before holds each token's predecessor at the same place. Three layers are the three planes (4:4:4); K and V are
 * separate streams; a last group of fewer than three layers leaves planes flat. All padding is 128.
 *
 * Quantiser: per (layer, K/V, token) s = max |x| over all heads; s is itself a value of the pool, so its 16 bits are
 * stored and nothing is lost. With m = levels / 2 - 1:
 *
 *     q = round-to-even(x / s * m)  in [-m, m], sample = 128 + q;    s = 0: q = 0
 *     x' = to 16-bit(q * (s / m))   in float arithmetic
 */
#ifndef KNI_CODEC_TILES_H
#define KNI_CODEC_TILES_H

#include "codec/container.h"
#include "kernel/convert.h"

#define KNI_TILES_PAD 16u    /* the encoder's coding unit; NVDEC rounds heights to it too */
#define KNI_TILES_LEVELS 64u /* default */
#define KNI_TILES_PER_PICTURE 16u /* default at most: 16 pictures predict each other in a chunk of 256 tokens */

struct kni_tiles_geometry {
    uint32_t n_pictures;       /* of a stream */
    uint32_t n_groups;         /* of three layers; a stream a group and K/V */
    uint32_t head_w, head_h;   /* one head's tile */
    uint32_t token_w, token_h; /* a token's tile */
    uint32_t grid_cols, grid_rows;
    uint32_t width, height;    /* of a picture, padded */
    int32_t m;                 /* largest |q| */
};

/* Tiling for meta from options (zero: defaults). KN_E_ARG says which option does not fit. */
enum kn_status kni_tiles_choose(const struct kni_chunk_meta *meta, const struct kn_tiles_opts *opts, struct kni_tiling *out, struct kn_err *err);
/* The same with head_cols heads side by side instead of what makes a token's tile squarest. 0: that. */
enum kn_status kni_tiles_choose_cols(const struct kni_chunk_meta *meta, const struct kn_tiles_opts *opts, uint32_t head_cols, struct kni_tiling *out, struct kn_err *err);
/* Checks a tiling, which may come from a hostile header, and derives the rest. KN_E_FORMAT. */
enum kn_status kni_tiles_geometry_make(const struct kni_chunk_meta *meta, const struct kni_tiling *tiling, struct kni_tiles_geometry *out, struct kn_err *err);

/* Conversions, as the machine allows. */
struct kni_tiles_ops { kni_to_half_fn to_half; kni_from_half_fn from_half; };
struct kni_tiles_ops kni_tiles_ops_get(enum kn_kv_type type, uint32_t cpu_flags); /* of enum kni_cpu_flag */

/* Largest magnitude among a token's values, all heads, as the pool's 16 bits. Infinity or NaN: any value >= kni_tiles_infinity. */
uint16_t kni_tiles_scale(const struct kni_kv_host *view, uint32_t layer, uint32_t is_v, uint32_t pos);
uint16_t kni_tiles_infinity(enum kn_kv_type type);

/* n values to samples, and samples to values. scale as stored. n at most KNI_CONTAINER_MAX_D_HEAD. */
void kni_tiles_quantise(uint8_t *samples, const uint16_t *values, uint32_t n, uint16_t scale, int32_t m, const struct kni_tiles_ops *ops, enum kn_kv_type type);
/* values of all samples 128 - m .. 128 + m, at their own index; others are not written. */
void kni_tiles_table(uint16_t table[256], uint16_t scale, int32_t m, const struct kni_tiles_ops *ops, enum kn_kv_type type);

/* Fills one plane (width x height, stride width) of picture t from one layer; scales: [n_tokens] of this layer and K/V. */
void kni_tiles_draw(uint8_t *plane, const struct kni_kv_host *view, const struct kni_chunk_meta *meta, const struct kni_tiles_geometry *g,
                    uint32_t layer, uint32_t is_v, uint32_t picture, const uint16_t *scales, const struct kni_tiles_ops *ops);
/* The way back: dequantises a plane into the pool. KN_E_FORMAT when a sample lies outside 128 +- m. */
enum kn_status kni_tiles_scatter(const uint8_t *plane, size_t stride, const struct kni_kv_host *view, const struct kni_chunk_meta *meta,
                                 const struct kni_tiles_geometry *g, uint32_t layer, uint32_t is_v, uint32_t picture, const uint16_t *scales,
                                 const struct kni_tiles_ops *ops, struct kn_err *err);

#endif
