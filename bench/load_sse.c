/* SPDX-License-Identifier: Apache-2.0 */
/* Lines and events; see load_sse.h. Memory is kept from event to event. */
#include "load_sse.h"

#include <stdlib.h>
#include <string.h>

/* Appends n bytes and keeps a NUL after them. */
static bool append(char **text, size_t *n_text, size_t *room, const char *bytes, size_t n)
{
    if (n > KN_LOAD_SSE_MAX_BYTES || *n_text + n > KN_LOAD_SSE_MAX_BYTES)
        return false;
    if (*n_text + n + 1 > *room) {
        size_t want = *room ? *room : 512;
        while (want < *n_text + n + 1)
            want *= 2;
        char *grown = realloc(*text, want);
        if (!grown)
            return false;
        *text = grown;
        *room = want;
    }
    memcpy(*text + *n_text, bytes, n);
    *n_text += n;
    (*text)[*n_text] = '\0';
    return true;
}

static bool end_line(struct kn_load_sse *s, kn_load_sse_fn fn, void *user)
{
    bool ok = true;
    const char *line = s->n_line ? s->line : "";
    if (!s->n_line) { /* the event's end */
        if (s->has_data)
            fn(user, s->n_data ? s->data : "", s->n_data);
        s->n_data = 0;
        s->has_data = false;
    } else if (s->n_line >= 4 && !memcmp(line, "data", 4) && (s->n_line == 4 || line[4] == ':')) {
        size_t at = s->n_line == 4 ? 4 : 5;
        at += s->n_line > at && line[at] == ' ';
        ok = (!s->has_data || append(&s->data, &s->n_data, &s->data_room, "\n", 1)) &&
             append(&s->data, &s->n_data, &s->data_room, line + at, s->n_line - at);
        s->has_data = true;
    }
    s->n_line = 0;
    return ok;
}

bool kn_load_sse_feed(struct kn_load_sse *s, const char *bytes, size_t n, kn_load_sse_fn fn, void *user)
{
    const char *end = bytes + n;
    while (bytes < end) {
        if (s->after_cr && *bytes == '\n') {
            s->after_cr = false;
            bytes++;
            continue;
        }
        s->after_cr = false;
        const char *stop = bytes;
        while (stop < end && *stop != '\n' && *stop != '\r')
            stop++;
        if (!append(&s->line, &s->n_line, &s->line_room, bytes, (size_t)(stop - bytes)))
            return false;
        if (stop < end) {
            s->after_cr = *stop++ == '\r';
            if (!end_line(s, fn, user))
                return false;
        }
        bytes = stop;
    }
    return true;
}

void kn_load_sse_fini(struct kn_load_sse *s)
{
    free(s->line);
    free(s->data);
    *s = (struct kn_load_sse){0};
}
