/* SPDX-License-Identifier: Apache-2.0 */
/* Names of qualities. Constant; any thread. */
#include <string.h>

#include "kinema/engine.h"

static const char *const names[KN_KV_QUALITY_COUNT] = {"default", "exact", "fine", "tiles", "medium", "small", "any"};

const char *kn_kv_quality_name(enum kn_kv_quality quality)
{
    return (unsigned)quality < KN_KV_QUALITY_COUNT ? names[quality] : "unknown";
}

enum kn_kv_quality kn_kv_quality_from_name(const char *name)
{
    for (unsigned i = KN_KV_QUALITY_EXACT; name && i < KN_KV_QUALITY_COUNT; i++)
        if (!strcmp(names[i], name))
            return (enum kn_kv_quality)i;
    return KN_KV_QUALITY_DEFAULT;
}
