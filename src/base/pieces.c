/* SPDX-License-Identifier: Apache-2.0 */
#include "base/pieces.h"

#include "base/alloc.h"

void *kni_piece(struct kni_pieces *p, size_t count, size_t each)
{
    size_t bytes, at = p->used;
    if (!kni_mul_size(count, each, &bytes) || !kni_add_size(bytes, 63, &bytes) || !kni_add_size(at, bytes & ~(size_t)63, &p->used))
        p->overflow = true;
    return p->base && !p->overflow ? p->base + at : NULL;
}

void *kni_piece_2d(struct kni_pieces *p, size_t rows, size_t cols, size_t each)
{
    size_t row_bytes;
    if (!kni_mul_size(cols, each, &row_bytes)) {
        p->overflow = true;
        return NULL;
    }
    return kni_piece(p, rows, row_bytes);
}
