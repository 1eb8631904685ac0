/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Characters below U+0300 neither change nor combine, and all their bytes are below 0xcc: most text is done at a glance. The rest:
 *
 *     bytes -> decomposed characters (utf8proc, one by one) -> each run of marks in the order of their classes -> composed (utf8proc)
 *
 * The order is made here. utf8proc's own swaps neighbours, which is quadratic in a run of marks: a megabyte of two marks in turn
 * takes it hours. A counting sort is stable, as the standard wants, and takes one step a mark.
 */
#include "model/nfc.h"

#include <string.h>

#include <utf8proc.h>

#include "base/alloc.h"

enum { N_CLASSES = 256, SHORT_RUN = 16, CHUNK = 4096 };

static const utf8proc_option_t form = UTF8PROC_STABLE | UTF8PROC_COMPOSE;

static unsigned class_of(utf8proc_int32_t point)
{
    return (unsigned)utf8proc_get_property(point)->combining_class & (N_CLASSES - 1);
}

/* Few marks: each moves left past those of higher class. */
static void order_short(utf8proc_int32_t *run, size_t n)
{
    for (size_t i = 1; i < n; i++) {
        utf8proc_int32_t mark = run[i];
        size_t at = i;
        for (; at && class_of(run[at - 1]) > class_of(mark); at--)
            run[at] = run[at - 1];
        run[at] = mark;
    }
}

static enum kn_status order_long(utf8proc_int32_t *run, size_t n)
{
    size_t starts[N_CLASSES + 1] = {0};
    utf8proc_int32_t *copy = kni_alloc(KNI_ALLOC_TAG_REQUEST, n * sizeof *copy, 0);
    if (!copy)
        return KN_E_NOMEM;
    memcpy(copy, run, n * sizeof *copy);
    for (size_t i = 0; i < n; i++)
        starts[class_of(copy[i]) + 1]++;
    for (unsigned c = 0; c < N_CLASSES; c++)
        starts[c + 1] += starts[c];
    for (size_t i = 0; i < n; i++)
        run[starts[class_of(copy[i])]++] = copy[i];
    kni_free(copy);
    return KN_OK;
}

/* Canonical order, in place. */
static enum kn_status order(utf8proc_int32_t *points, size_t n, struct kni_effort *effort)
{
    enum kn_status status = KN_OK;
    for (size_t at = 0, end; at < n && status == KN_OK; at = end + 1) { /* end: a character of class 0, which stays */
        bool ordered = true;
        for (end = at; end < n && class_of(points[end]); end++)
            ordered = ordered && (end == at || class_of(points[end - 1]) <= class_of(points[end]));
        if (!ordered && end - at <= SHORT_RUN)
            order_short(points + at, end - at);
        else if (!ordered)
            status = order_long(points + at, end - at);
        if (!kni_effort_add(effort, end - at + 1))
            status = KN_E_CANCELLED;
    }
    return status;
}

/* Decomposed characters of the text into points (room for n_room; none: counted only). */
static enum kn_status decompose(const utf8proc_uint8_t *bytes, size_t n, utf8proc_int32_t *points, size_t n_room, size_t *n_points, struct kni_effort *effort)
{
    size_t count = 0;
    int boundary = 0;
    for (size_t at = 0, counted = 0; at < n;) {
        utf8proc_int32_t point;
        utf8proc_ssize_t length = utf8proc_iterate(bytes + at, (utf8proc_ssize_t)(n - at), &point);
        if (length <= 0)
            return KN_E_NOMEM; /* the text is valid, so this does not come */
        size_t room = n_room > count ? n_room - count : 0;
        utf8proc_ssize_t more = utf8proc_decompose_char(point, room ? points + count : NULL, (utf8proc_ssize_t)room, form, &boundary);
        if (more < 0)
            return KN_E_NOMEM;
        count += (size_t)more;
        at += (size_t)length;
        if (at - counted >= CHUNK || at == n) {
            if (!kni_effort_add(effort, at - counted))
                return KN_E_CANCELLED;
            counted = at;
        }
    }
    *n_points = count;
    return KN_OK;
}

enum kn_status kni_nfc(char **out, size_t *n_out, const char *text, size_t n, struct kni_effort *effort)
{
    const utf8proc_uint8_t *bytes = (const utf8proc_uint8_t *)text;
    size_t i = 0, room, n_points = 0;
    *out = NULL;
    *n_out = n;
    while (i < n && bytes[i] < 0xcc)
        i++;
    if (i == n)
        return KN_OK;
    enum kn_status status = decompose(bytes, n, NULL, 0, &n_points, effort);
    if (status != KN_OK)
        return status;
    if (!kni_mul_size(n_points + 1, sizeof(utf8proc_int32_t), &room))
        return KN_E_NOMEM;
    utf8proc_int32_t *points = kni_alloc(KNI_ALLOC_TAG_REQUEST, room, 0);
    if (!points)
        return KN_E_NOMEM;
    status = decompose(bytes, n, points, n_points, &n_points, effort);
    if (status == KN_OK)
        status = order(points, n_points, effort);
    utf8proc_ssize_t count = status == KN_OK ? utf8proc_reencode(points, (utf8proc_ssize_t)n_points, form) : -1; /* in place */
    if (count < 0) {
        kni_free(points);
        return status == KN_OK ? KN_E_NOMEM : status;
    }
    *out = (char *)points;
    *n_out = (size_t)count;
    return KN_OK;
}
