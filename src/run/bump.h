/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Pieces of one allocation, laid out twice by the same function: with base NULL it only adds up, then it hands out
 * pointers. Each piece begins at a multiple of 64 bytes.
 */
#ifndef KNI_RUN_BUMP_H
#define KNI_RUN_BUMP_H

#include <stdbool.h>

#include "base/alloc.h"

struct kni_bump {
    char *base;
    size_t used;
    bool overflow; /* the sum does not fit size_t */
};

static inline void *kni_bump_piece(struct kni_bump *b, size_t count, size_t each)
{
    size_t bytes, at = b->used;
    if (!kni_mul_size(count, each, &bytes) || !kni_add_size(bytes, 63, &bytes) ||
        !kni_add_size(at, bytes & ~(size_t)63, &b->used))
        b->overflow = true;
    return b->base && !b->overflow ? b->base + at : NULL;
}

#endif
