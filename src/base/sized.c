/* SPDX-License-Identifier: Apache-2.0 */
#include "base/sized.h"

#include <string.h>

#include "base/status.h"

/* Callers' structs are only known to begin with their size. */
static size_t size_of(const void *sized)
{
    size_t size;
    memcpy(&size, sized, sizeof size);
    return size;
}

enum kn_status kni_opts_read(void *dst, size_t dst_bytes, const void *src, const char *name, struct kn_err *err)
{
    memset(dst, 0, dst_bytes);
    if (!src)
        return kni_err_set(err, KN_E_ARG, "options are missing: give a struct %s with its size set", name);
    const size_t size = size_of(src);
    if (size < sizeof size || size > dst_bytes + KNI_OPTS_MAX_GROWTH)
        return kni_err_set(err, KN_E_ARG, "the size of struct %s is %zu: set it to sizeof, which is %zu", name, size,
                           dst_bytes);
    for (size_t i = dst_bytes; i < size; i++)
        if (((const unsigned char *)src)[i])
            return kni_err_set(err, KN_E_ARG,
                               "struct %s sets byte %zu of %zu, but this library knows %zu: use a newer one, or "
                               "zeros there", name, i, size, dst_bytes);
    memcpy(dst, src, size < dst_bytes ? size : dst_bytes);
    memcpy(dst, &dst_bytes, sizeof dst_bytes);
    return KN_OK;
}

enum kn_status kni_opts_read_or_default(void *dst, size_t dst_bytes, const void *src, const char *name,
                                        struct kn_err *err)
{
    if (src)
        return kni_opts_read(dst, dst_bytes, src, name, err);
    memset(dst, 0, dst_bytes);
    memcpy(dst, &dst_bytes, sizeof dst_bytes);
    return KN_OK;
}

enum kn_status kni_stats_write(void *dst, const void *src, size_t src_bytes)
{
    const size_t size = dst ? size_of(dst) : 0;
    if (size < sizeof size)
        return KN_E_ARG;
    const size_t n = size < src_bytes ? size : src_bytes;
    memcpy((char *)dst + sizeof size, (const char *)src + sizeof size, n - sizeof size);
    return KN_OK;
}
