/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Ordering columns by loudness; see the header. All sorts are counting sorts, stable and linear. Moving a picture's samples is a gather
 * of bytes a row, from a copy of the row or into another matrix: about a cycle a symbol.
 */
#include "codec/spectral/spectral_order.h"

#include <assert.h>
#include <string.h>

#include "codec/spectral/layout_spectral.h"

void kni_spectral_order_classes(const uint8_t *rows, size_t stride, uint32_t n_rows, uint32_t n_tokens, uint8_t *classes)
{
    uint16_t loudness[KNI_SPECTRAL_MAX_PICTURE] = {0}, rank[KNI_SPECTRAL_MAX_PICTURE];
    assert(n_tokens <= KNI_SPECTRAL_MAX_PICTURE && n_rows <= UINT16_MAX);
    for (uint32_t r = 0; r < n_rows; r++, rows += stride)
        for (uint32_t t = 0; t < n_tokens; t++)
            loudness[t] = (uint16_t)(loudness[t] + (rows[t] != KNI_SPECTRAL_BLANK));
    /* Two passes of eight bits, low ones first: order[i] is the token of rank i. */
    uint16_t order[KNI_SPECTRAL_MAX_PICTURE];
    for (uint32_t t = 0; t < n_tokens; t++)
        rank[t] = (uint16_t)t;
    for (unsigned shift = 0; shift <= 8; shift += 8) {
        uint32_t at[257] = {0};
        for (uint32_t t = 0; t < n_tokens; t++)
            at[((uint32_t)loudness[t] >> shift & 255u) + 1]++;
        for (uint32_t i = 0; i < 256; i++)
            at[i + 1] += at[i];
        for (uint32_t i = 0; i < n_tokens; i++)
            order[at[(uint32_t)loudness[rank[i]] >> shift & 255u]++] = rank[i];
        memcpy(rank, order, n_tokens * sizeof *rank);
    }
    for (uint32_t i = 0; i < n_tokens; i++)
        classes[order[i]] = (uint8_t)(KNI_SPECTRAL_ORDER_CLASSES - 1 - i * KNI_SPECTRAL_ORDER_CLASSES / n_tokens);
}

void kni_spectral_order_columns(const uint8_t *classes, uint32_t n_tokens, uint16_t *column)
{
    uint32_t at[KNI_SPECTRAL_ORDER_CLASSES + 1] = {0};
    for (uint32_t t = 0; t < n_tokens; t++)
        at[classes[t] + 1]++;
    for (uint32_t i = 0; i < KNI_SPECTRAL_ORDER_CLASSES; i++)
        at[i + 1] += at[i];
    for (uint32_t t = 0; t < n_tokens; t++)
        column[t] = (uint16_t)at[classes[t]]++;
}

void kni_spectral_order_apply(uint8_t *rows, size_t stride, uint32_t n_rows, uint32_t n_tokens, const uint16_t *column)
{
    uint8_t copy[KNI_SPECTRAL_MAX_PICTURE];
    uint16_t token[KNI_SPECTRAL_MAX_PICTURE];
    for (uint32_t t = 0; t < n_tokens; t++)
        token[column[t]] = (uint16_t)t;
    for (uint32_t r = 0; r < n_rows; r++, rows += stride) {
        memcpy(copy, rows, n_tokens);
        kni_spectral_order_undo(copy, 0, 1, n_tokens, token, rows, 0);
    }
}

void kni_spectral_order_undo(const uint8_t *rows, size_t stride, uint32_t n_rows, uint32_t n_tokens, const uint16_t *column, uint8_t *out, size_t out_stride)
{
    for (uint32_t r = 0; r < n_rows; r++, rows += stride, out += out_stride)
        for (uint32_t t = 0; t < n_tokens; t++)
            out[t] = rows[column[t]];
}

void kni_spectral_order_pack(const uint8_t *classes, size_t n, uint8_t *bytes)
{
    for (size_t i = 0; i < n; i += 8, bytes += 3) {
        uint32_t word = 0;
        for (unsigned k = 0; k < 8; k++)
            word |= (uint32_t)classes[i + k] << 3 * k;
        bytes[0] = (uint8_t)word;
        bytes[1] = (uint8_t)(word >> 8);
        bytes[2] = (uint8_t)(word >> 16);
    }
}

void kni_spectral_order_unpack(const uint8_t *bytes, size_t n, uint8_t *classes)
{
    for (size_t i = 0; i < n; i += 8, bytes += 3) {
        uint32_t word = bytes[0] | (uint32_t)bytes[1] << 8 | (uint32_t)bytes[2] << 16;
        for (unsigned k = 0; k < 8; k++)
            classes[i + k] = (uint8_t)(word >> 3 * k & 7u);
    }
}
