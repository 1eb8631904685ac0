/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The order of a spectral picture's columns. A column is a token, and tokens differ in loudness: how many of their symbols are not
 * zero. CABAC's contexts follow what they have just seen, so that columns of one loudness side by side cost fewer bits than
 * the text's own order, in which loud and quiet ones alternate.
 *
 *     token     0 1 2 3 4 5 6 7 ..       a class of loudness, 0 (loudest) to 7, as many tokens in each
 *     class     2 0 7 2 0 1 7 1 ..
 *     column    1 4 | 5 7 | 0 3 | 2 6    all tokens of class 0, then those of class 1, ..; within a class as in the text
 *
 * Only classes travel, three bits a token, and any classes make an order: there is nothing to be refused in hostile ones. Each plane of each
 * picture, that is, each part, has its own. One for all planes would cost a third of the bits and gain less by more than that.
 *
 * A chunk's order: the classes of part 0 of all its tokens, then those of part 1, .., three bits each, low bits first. Pure functions, any thread.
 */
#ifndef KNI_CODEC_SPECTRAL_ORDER_H
#define KNI_CODEC_SPECTRAL_ORDER_H

#include <stddef.h>
#include <stdint.h>

#define KNI_SPECTRAL_ORDER_CLASSES 8u

/* Packed classes of n_parts, each of n_tokens, a multiple of 16; also where those of part n_parts begin. */
static inline size_t kni_spectral_order_bytes(uint32_t n_parts, uint32_t n_tokens)
{
    return (size_t)n_parts * n_tokens * 3 / 8;
}

/* Classes of a plane's columns: tokens ranked by how many symbols of theirs in rows[n_rows], each stride apart, are not 128, of two
 * as loud the later one above; ranks cut into eight, the loudest eighth class 0. n_tokens at most KNI_SPECTRAL_MAX_PICTURE, n_rows below 65536. */
void kni_spectral_order_classes(const uint8_t *rows, size_t stride, uint32_t n_rows, uint32_t n_tokens, uint8_t *classes);
/* column[n_tokens]: where each token stands. Classes are below 8. */
void kni_spectral_order_columns(const uint8_t *classes, uint32_t n_tokens, uint16_t *column);
/* Moves every token of a plane in the text's order into its column; columns beyond n_tokens stay. */
void kni_spectral_order_apply(uint8_t *rows, size_t stride, uint32_t n_rows, uint32_t n_tokens, const uint16_t *column);
/* Back: token t of out's rows from column[t] of rows', t below n_tokens. */
void kni_spectral_order_undo(const uint8_t *rows, size_t stride, uint32_t n_rows, uint32_t n_tokens, const uint16_t *column, uint8_t *out, size_t out_stride);

/* n classes, n a multiple of 8, in n * 3 / 8 bytes. */
void kni_spectral_order_pack(const uint8_t *classes, size_t n, uint8_t *bytes);
void kni_spectral_order_unpack(const uint8_t *bytes, size_t n, uint8_t *classes);

#endif
