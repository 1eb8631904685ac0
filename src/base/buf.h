/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Growing text. Zero-initialise; every call may be made after a failed one and does nothing then, so that a writer checks
 * `failed` once at its end. data is NUL-terminated whenever it is not NULL. Owner: whoever declared it.
 */
#ifndef KNI_BASE_BUF_H
#define KNI_BASE_BUF_H

#include <stdbool.h>
#include <stddef.h>

struct kni_buf {
    char *data;
    size_t n, room;
    bool failed; /* out of memory: data holds what fitted before */
};

void kni_buf_add(struct kni_buf *buf, const void *bytes, size_t n);
void kni_buf_text(struct kni_buf *buf, const char *text);
void kni_buf_format(struct kni_buf *buf, const char *format, ...) __attribute__((format(printf, 2, 3)));
/* The inside of a JSON string: quotes, backslashes and control characters escaped, what is no UTF-8 as U+FFFD. */
void kni_buf_json(struct kni_buf *buf, const char *bytes, size_t n);
/* Keeps the memory, drops the text; a failed buf works again. */
void kni_buf_reset(struct kni_buf *buf);
/* Hands data over (release with kni_free) and leaves an empty buf. NULL when failed or empty. */
char *kni_buf_take(struct kni_buf *buf, size_t *n);
void kni_buf_fini(struct kni_buf *buf);

#endif
