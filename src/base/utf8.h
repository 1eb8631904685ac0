/* SPDX-License-Identifier: Apache-2.0 */
/*
 * One step through bytes that should be UTF-8. What is none is cut into the longest beginnings of characters that could have been one
 * (Unicode 15, section 3.9, "maximal subparts"), each of which becomes one U+FFFD where it is shown: so the result is the same however
 * the bytes were cut into pieces, as long as no piece ends in a KNI_UTF8_PART.
 */
#ifndef KNI_BASE_UTF8_H
#define KNI_BASE_UTF8_H

#include <stddef.h>

enum kni_utf8 {
    KNI_UTF8_WHOLE, /* a character */
    KNI_UTF8_BAD,   /* none, whatever follows */
    KNI_UTF8_PART   /* all n bytes are the beginning of one */
};

/* What bytes[0..n), n > 0, begin with, and how many bytes that takes: 1..4. */
enum kni_utf8 kni_utf8_next(const char *bytes, size_t n, size_t *length);
/* Bytes at the end that are the beginning of a character: 0..3. */
size_t kni_utf8_tail(const char *bytes, size_t n);

#endif
