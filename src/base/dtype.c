/* SPDX-License-Identifier: Apache-2.0 */
#include "base/dtype.h"

static const struct kni_dtype_info infos[] = {
    [KNI_DTYPE_F32] = {"F32", 1, 4},      [KNI_DTYPE_F16] = {"F16", 1, 2},      [KNI_DTYPE_Q4_0] = {"Q4_0", 32, 18},
    [KNI_DTYPE_Q4_1] = {"Q4_1", 32, 20},  [KNI_DTYPE_Q5_0] = {"Q5_0", 32, 22},  [KNI_DTYPE_Q5_1] = {"Q5_1", 32, 24},
    [KNI_DTYPE_Q8_0] = {"Q8_0", 32, 34},  [KNI_DTYPE_Q4_K] = {"Q4_K", 256, 144}, [KNI_DTYPE_Q5_K] = {"Q5_K", 256, 176},
    [KNI_DTYPE_Q6_K] = {"Q6_K", 256, 210}, [KNI_DTYPE_BF16] = {"BF16", 1, 2},
};

/* Names of types that exist in files but that we refuse; index is the id. */
static const char *const other_names[] = {
    [4] = "Q4_2",     [5] = "Q4_3",     [9] = "Q8_1",    [10] = "Q2_K",    [11] = "Q3_K",   [15] = "Q8_K",   [16] = "IQ2_XXS", [17] = "IQ2_XS",
    [18] = "IQ3_XXS", [19] = "IQ1_S",   [20] = "IQ4_NL", [21] = "IQ3_S",   [22] = "IQ2_S",  [23] = "IQ4_XS", [24] = "I8",      [25] = "I16",
    [26] = "I32",     [27] = "I64",     [28] = "F64",    [29] = "IQ1_M",   [34] = "TQ1_0",  [35] = "TQ2_0",  [39] = "MXFP4",
};

const struct kni_dtype_info *kni_dtype_get_info(uint32_t id)
{
    return id < sizeof infos / sizeof *infos && infos[id].name ? &infos[id] : NULL;
}

const char *kni_dtype_name(uint32_t id)
{
    const struct kni_dtype_info *info = kni_dtype_get_info(id);
    if (info)
        return info->name;
    if (id < sizeof other_names / sizeof *other_names && other_names[id])
        return other_names[id];
    return "?";
}
