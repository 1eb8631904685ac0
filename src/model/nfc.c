/* SPDX-License-Identifier: Apache-2.0 */
/* Characters below U+0300 neither change nor combine, and all their bytes are below 0xcc: most text is done at a glance. */
#include "model/nfc.h"

#include <utf8proc.h>

#include "base/alloc.h"

enum kn_status kni_nfc(char **out, size_t *n_out, const char *text, size_t n)
{
    const utf8proc_option_t form = UTF8PROC_STABLE | UTF8PROC_COMPOSE;
    const utf8proc_uint8_t *bytes = (const utf8proc_uint8_t *)text;
    size_t i = 0, room;
    *out = NULL;
    *n_out = n;
    while (i < n && bytes[i] < 0xcc)
        i++;
    if (i == n)
        return KN_OK;
    utf8proc_ssize_t count = utf8proc_decompose(bytes, (utf8proc_ssize_t)n, NULL, 0, form);
    if (count < 0 || !kni_mul_size((size_t)count + 1, sizeof(utf8proc_int32_t), &room))
        return KN_E_NOMEM; /* the text is valid, so only its length can be too large */
    utf8proc_int32_t *points = kni_alloc(KNI_ALLOC_TAG_REQUEST, room, 0);
    if (!points)
        return KN_E_NOMEM;
    count = utf8proc_decompose(bytes, (utf8proc_ssize_t)n, points, count, form);
    count = count < 0 ? count : utf8proc_reencode(points, count, form); /* in place */
    if (count < 0) {
        kni_free(points);
        return KN_E_NOMEM;
    }
    *out = (char *)points;
    *n_out = (size_t)count;
    return KN_OK;
}
