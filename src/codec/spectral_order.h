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
 * Only classes travel, three bits a token, and any classes make an order: there is nothing to be refused in hostile ones. One order serves K of
 * a picture's tokens in all triples, another V; triple 0's picture makes it.
 *
 * A chunk's order: classes of K of all its tokens, then those of V, one byte each; packed, three bits each, low bits first. Pure
 * functions, any thread.
 */
#ifndef KNI_CODEC_SPECTRAL_ORDER_H
#define KNI_CODEC_SPECTRAL_ORDER_H

#include <stddef.h>
#include <stdint.h>

#define KNI_SPECTRAL_ORDER_CLASSES 8u

/* Packed classes of K and V of n_tokens, a multiple of 16. */
static inline size_t kni_spectral_order_bytes(uint32_t n_tokens)
{
    return (size_t)n_tokens * 2 * 3 / 8;
}

/* Classes of a picture's columns: tokens ranked by how many symbols of theirs in rows[n_rows], each stride apart, are not 128, of two
 * as loud the later one above; ranks cut into eight, the loudest eighth class 0. n_tokens at most KNI_SPECTRAL_MAX_PICTURE, n_rows below 65536. */
void kni_spectral_order_classes(const uint8_t *rows, size_t stride, uint32_t n_rows, uint32_t n_tokens, uint8_t *classes);
/* column[n_tokens]: where each token stands. Classes are below 8. */
void kni_spectral_order_columns(const uint8_t *classes, uint32_t n_tokens, uint16_t *column);
/* Moves every token of a picture in the text's order into its column; columns beyond n_tokens stay. */
void kni_spectral_order_apply(uint8_t *rows, size_t stride, uint32_t n_rows, uint32_t n_tokens, const uint16_t *column);
/* Back: token t of out's rows from column[t] of rows', t below n_tokens. */
void kni_spectral_order_undo(const uint8_t *rows, size_t stride, uint32_t n_rows, uint32_t n_tokens, const uint16_t *column, uint8_t *out, size_t out_stride);

/* n classes, n a multiple of 8, in n * 3 / 8 bytes. */
void kni_spectral_order_pack(const uint8_t *classes, size_t n, uint8_t *bytes);
void kni_spectral_order_unpack(const uint8_t *bytes, size_t n, uint8_t *classes);

#endif
