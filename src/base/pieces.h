/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Many arrays in one allocation, laid out by one function that runs twice:
 *
 *     struct kni_pieces p = {0};
 *     lay_out(x, &p);                                       adds up: every piece is NULL
 *     p = (struct kni_pieces){.base = kni_alloc(tag, p.used, 64)};
 *     lay_out(x, &p);                                       hands out
 *
 * so that sizes and places cannot differ. Each piece begins at a multiple of 64 bytes from base. Sizes that do not fit set overflow,
 * and every piece is NULL from then on. Plain memory of one owner.
 */
#ifndef KNI_BASE_PIECES_H
#define KNI_BASE_PIECES_H

#include <stdbool.h>
#include <stddef.h>

struct kni_pieces {
    char *base; /* NULL: only add up */
    size_t used;
    bool overflow;
};

/* count items of each bytes. */
void *kni_piece(struct kni_pieces *p, size_t count, size_t each);
/* rows x cols items of each bytes. */
void *kni_piece_2d(struct kni_pieces *p, size_t rows, size_t cols, size_t each);

#endif
