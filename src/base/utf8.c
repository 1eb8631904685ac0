/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The second byte's range depends on the first (no overlong forms, no surrogates, nothing above U+10FFFF); the others are
 * 80..BF. Pure functions; any thread.
 */
#include "base/utf8.h"

enum kni_utf8 kni_utf8_next(const char *bytes, size_t n, size_t *length)
{
    const unsigned char *b = (const unsigned char *)bytes;
    unsigned low = 0x80, high = 0xbf;
    size_t want = b[0] < 0x80 ? 1 : b[0] >= 0xc2 && b[0] <= 0xdf ? 2 : b[0] >= 0xe0 && b[0] <= 0xef ? 3 : b[0] >= 0xf0 && b[0] <= 0xf4 ? 4 : 0;
    *length = 1;
    if (want <= 1)
        return want ? KNI_UTF8_WHOLE : KNI_UTF8_BAD;
    switch (b[0]) {
    case 0xe0: low = 0xa0; break;
    case 0xed: high = 0x9f; break;
    case 0xf0: low = 0x90; break;
    case 0xf4: high = 0x8f; break;
    default: break;
    }
    for (size_t i = 1; i < want; i++, low = 0x80, high = 0xbf) {
        *length = i;
        if (i == n)
            return KNI_UTF8_PART;
        if (b[i] < low || b[i] > high)
            return KNI_UTF8_BAD;
    }
    *length = want;
    return KNI_UTF8_WHOLE;
}

size_t kni_utf8_tail(const char *bytes, size_t n)
{
    size_t length;
    for (size_t back = n < 3 ? n : 3; back > 0; back--) {
        if (((unsigned char)bytes[n - back] & 0xc0) == 0x80)
            continue; /* begins no character */
        if (kni_utf8_next(bytes + n - back, back, &length) == KNI_UTF8_PART)
            return back;
    }
    return 0;
}
