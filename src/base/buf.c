/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Growing text: room doubles, and one byte more than the text is always there for its NUL.
 *
 *     data: [ n bytes of text ][ NUL ][ unused up to room ]
 *
 * Formats are tried in the room that is left and printed again after growing, so that short ones cost one pass. Owner: the
 * caller's thread. Failure: `failed` stays set until reset, take or fini.
 */
#include "base/buf.h"

#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include "base/alloc.h"
#include "base/utf8.h"

/* Room for n bytes more and their NUL. */
static bool reserve(struct kni_buf *buf, size_t n)
{
    size_t want;
    if (buf->failed)
        return false;
    if (!kni_add_size(buf->n, n, &want) || !kni_add_size(want, 1, &want)) {
        buf->failed = true;
        return false;
    }
    if (want <= buf->room)
        return true;
    size_t room = buf->room > SIZE_MAX / 2 ? want : buf->room * 2;
    room = room < 128 ? 128 : room;
    room = room < want ? want : room;
    char *data = kni_realloc(KNI_ALLOC_TAG_REQUEST, buf->data, room);
    if (!data) {
        buf->failed = true;
        return false;
    }
    buf->data = data;
    buf->room = room;
    buf->data[buf->n] = '\0';
    return true;
}

void kni_buf_add(struct kni_buf *buf, const void *bytes, size_t n)
{
    if (!reserve(buf, n))
        return;
    if (n)
        memcpy(buf->data + buf->n, bytes, n);
    buf->n += n;
    buf->data[buf->n] = '\0';
}

void kni_buf_text(struct kni_buf *buf, const char *text)
{
    kni_buf_add(buf, text, strlen(text));
}

void kni_buf_format(struct kni_buf *buf, const char *format, ...)
{
    if (!reserve(buf, 0))
        return;
    for (int pass = 0; pass < 2; pass++) {
        va_list args;
        va_start(args, format);
        int n = vsnprintf(buf->data + buf->n, buf->room - buf->n, format, args);
        va_end(args);
        if (n < 0) {
            buf->failed = true;
            break;
        }
        if ((size_t)n < buf->room - buf->n) {
            buf->n += (size_t)n;
            return;
        }
        if (!reserve(buf, (size_t)n))
            break;
    }
    buf->data[buf->n] = '\0';
}

static void add_escaped(struct kni_buf *buf, unsigned char c)
{
    static const char short_names[] = "btn\0fr"; /* of 8..13; 11 has none */
    if (c == '"' || c == '\\')
        kni_buf_add(buf, (const char[]){'\\', (char)c}, 2);
    else if (c >= 8 && c <= 13 && short_names[c - 8])
        kni_buf_add(buf, (const char[]){'\\', short_names[c - 8]}, 2);
    else
        kni_buf_format(buf, "\\u%04x", c);
}

void kni_buf_json(struct kni_buf *buf, const char *bytes, size_t n)
{
    size_t plain = 0, length; /* start of what can be copied as it is */
    for (size_t at = 0; at < n; at += length) {
        unsigned char c = (unsigned char)bytes[at];
        enum kni_utf8 kind = kni_utf8_next(bytes + at, n - at, &length);
        if (kind == KNI_UTF8_WHOLE && c >= 0x20 && c != '"' && c != '\\' && c != 0x7f)
            continue;
        kni_buf_add(buf, bytes + plain, at - plain);
        plain = at + length;
        if (kind == KNI_UTF8_WHOLE)
            add_escaped(buf, c);
        else
            kni_buf_text(buf, "\xef\xbf\xbd");
    }
    kni_buf_add(buf, bytes + plain, n - plain);
}

void kni_buf_reset(struct kni_buf *buf)
{
    buf->n = 0;
    buf->failed = false;
    if (buf->data)
        buf->data[0] = '\0';
}

char *kni_buf_take(struct kni_buf *buf, size_t *n)
{
    char *data = NULL;
    *n = 0;
    if (!buf->failed && buf->n) {
        data = buf->data;
        *n = buf->n;
        buf->data = NULL;
    }
    kni_buf_fini(buf);
    return data;
}

void kni_buf_fini(struct kni_buf *buf)
{
    kni_free(buf->data);
    *buf = (struct kni_buf){0};
}
