/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Tensor element types of GGUF files: ids as in the file, block sizes, names. The conversions are in kernel/dequant.h.
 * Source: the GGUF specification and ggml's block structures.
 */
#ifndef KNI_BASE_DTYPE_H
#define KNI_BASE_DTYPE_H

#include <stddef.h>
#include <stdint.h>

enum kni_dtype {
    KNI_DTYPE_F32 = 0,
    KNI_DTYPE_F16 = 1,
    KNI_DTYPE_Q4_0 = 2,
    KNI_DTYPE_Q4_1 = 3,
    KNI_DTYPE_Q5_0 = 6,
    KNI_DTYPE_Q5_1 = 7,
    KNI_DTYPE_Q8_0 = 8,
    KNI_DTYPE_Q4_K = 12,
    KNI_DTYPE_Q5_K = 13,
    KNI_DTYPE_Q6_K = 14,
    KNI_DTYPE_BF16 = 30
};

struct kni_dtype_info {
    const char *name;
    uint32_t block_values; /* values a block */
    uint32_t block_bytes;
};

/* NULL for an id that Kinema cannot read. */
const struct kni_dtype_info *kni_dtype_get_info(uint32_t id);
/* Name of any id of the GGUF specification, also of those that Kinema cannot read; "?" for others. */
const char *kni_dtype_name(uint32_t id);

#endif
