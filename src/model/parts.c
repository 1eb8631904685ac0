/* SPDX-License-Identifier: Apache-2.0 */
/*
 * From a path to all parts of a model. Which file is which is told twice, by its name and by its keys, and both have to agree: names
 * alone would let a file that was renamed stand in for another, and keys alone would not lead to the other files.
 */
#include "model/parts.h"

#include <stdio.h>
#include <string.h>

#include "model/gguf.h"

#define ENDING "-00001-of-00001.gguf" /* of a part's name; the numbers vary */
#define NUMBER_AT 1u
#define COUNT_AT 10u
#define DIGITS 5u

struct split {
    bool is_part; /* has split.count, and it is above 1 */
    uint32_t no, count, n_tensors;
};

static bool digits(const char *p, uint32_t *out)
{
    *out = 0;
    for (unsigned i = 0; i < DIGITS; i++) {
        if (p[i] < '0' || p[i] > '9')
            return false;
        *out = *out * 10 + (uint32_t)(p[i] - '0');
    }
    return true;
}

/* Where the ending begins and what it says; false when the name has none. */
static bool read_name(const char *path, size_t *at, uint32_t *number, uint32_t *count)
{
    size_t n = strlen(path);
    if (n < sizeof ENDING - 1)
        return false;
    const char *p = path + n - (sizeof ENDING - 1);
    *at = (size_t)(p - path);
    return *p == '-' && digits(p + NUMBER_AT, number) && !memcmp(p + NUMBER_AT + DIGITS, "-of-", 4) && digits(p + COUNT_AT, count) &&
           !strcmp(p + COUNT_AT + DIGITS, ".gguf");
}

/* The name of part number (from 1) beside path. NULL: out of memory. */
static char *part_path(struct kni_arena *arena, const char *path, size_t at, uint32_t number)
{
    char *name = kni_arena_strndup(arena, path, strlen(path));
    char text[DIGITS + 1];
    if (!name)
        return NULL;
    snprintf(text, sizeof text, "%05u", number % 100000u);
    memcpy(name + at + NUMBER_AT, text, DIGITS);
    return name;
}

static enum kn_status read_split(const struct kni_gguf *g, struct split *out, struct kn_err *err)
{
    *out = (struct split){0};
    enum kn_status status = kni_gguf_get_u32(g, "split.count", &out->count, err);
    if (status == KN_E_NOT_FOUND)
        return KN_OK;
    if (status != KN_OK)
        return status;
    if (out->count < 1 || out->count > KNI_PARTS_MAX)
        return kni_err_set(err, KN_E_FORMAT, "%s: split.count is %u, outside 1..%u; fetch the file again, or join the parts into one file with gguf-split --merge",
                           g->path, out->count, KNI_PARTS_MAX);
    static const char *const keys[] = {"split.no", "split.tensors.count"};
    uint32_t *const values[] = {&out->no, &out->n_tensors};
    for (unsigned i = 0; i < 2; i++) {
        status = kni_gguf_get_u32(g, keys[i], values[i], err);
        if (status == KN_E_NOT_FOUND)
            return kni_err_set(err, KN_E_FORMAT, "%s: it is a part of a split model (split.count is %u) but has no key %s; split the model again", g->path, out->count,
                               keys[i]);
        if (status != KN_OK)
            return status;
    }
    if (out->no >= out->count)
        return kni_err_set(err, KN_E_FORMAT, "%s: split.no is %u of %u parts that begin with 0; split the model again", g->path, out->no, out->count);
    out->is_part = out->count > 1;
    return KN_OK;
}

/* The first part's own claims, and where in its name the numbers are. */
static enum kn_status check_first(const struct kni_gguf *g, const struct split *split, size_t *at, struct kn_err *err)
{
    uint32_t number, count;
    bool named = read_name(g->path, at, &number, &count);
    if (split->no) {
        if (named)
            return kni_err_set(err, KN_E_ARG, "%s is part %u of %u of a split model: give the first one, %.*s-00001-of-%05u.gguf, which leads to the others",
                               g->path, split->no + 1, split->count, (int)*at, g->path, count);
        return kni_err_set(err, KN_E_ARG, "%s is part %u of %u of a split model: give the first one, which leads to the others", g->path, split->no + 1,
                           split->count);
    }
    if (!split->is_part)
        return KN_OK;
    if (!named)
        return kni_err_set(err, KN_E_ARG, "%s is the first of %u parts of a split model, but its name does not lead to the others: name them NAME-00001-of-%05u.gguf "
                           "and so on, as they were made", g->path, split->count, split->count);
    if (number != 1 || count != split->count)
        return kni_err_set(err, KN_E_FORMAT, "%s says in its name that it is part %u of %u, and in its keys that it is part 1 of %u: give the files the names "
                           "that they were made with", g->path, number, count, split->count);
    return KN_OK;
}

/* Whether part number i (from 0) is what its place says. */
static enum kn_status check_other(const struct kni_gguf *g, const struct kni_gguf *first, const struct split *want, uint32_t i, struct kn_err *err)
{
    struct split split;
    struct kni_gguf_str a, b;
    enum kn_status status = read_split(g, &split, err);
    if (status != KN_OK)
        return status;
    if (!split.count)
        return kni_err_set(err, KN_E_FORMAT, "%s should be part %u of %u of a split model, but is a file of its own; fetch the part again", g->path, i + 1, want->count);
    if (split.no != i || split.count != want->count)
        return kni_err_set(err, KN_E_FORMAT, "%s should be part %u of %u, but its keys say part %u of %u; fetch it again, or give it its own name", g->path, i + 1,
                           want->count, split.no + 1, split.count);
    if (split.n_tensors != want->n_tensors)
        return kni_err_set(err, KN_E_FORMAT, "%s is of another model: it is a part of %u tensors, %s of %u; fetch all parts of one model", g->path, split.n_tensors,
                           first->path, want->n_tensors);
    if (kni_gguf_get_str(g, "general.architecture", &a, NULL) == KN_OK && kni_gguf_get_str(first, "general.architecture", &b, NULL) == KN_OK &&
        (a.n != b.n || memcmp(a.data, b.data, a.n)))
        return kni_err_set(err, KN_E_FORMAT, "%s is of another model: its architecture is \"%s\", that of %s \"%s\"; fetch all parts of one model", g->path,
                           kni_gguf_quote(a).text, first->path, kni_gguf_quote(b).text);
    return KN_OK;
}

static enum kn_status open_part(struct kni_part *part, struct kni_arena *arena, const char *path, const char *missing, struct kn_err *err)
{
    struct kn_err file_err = {0};
    enum kn_status status = kni_file_map_open(&part->map, path, &file_err);
    part->path = path;
    if (status == KN_E_FORMAT)
        return kni_err_set(err, status, "%s; give a GGUF model file", file_err.text);
    if (status != KN_OK)
        return kni_err_set(err, status, "%s; %s", file_err.text, missing);
    return kni_gguf_parse(&part->gguf, arena, part->map.data, part->map.n_bytes, path, err);
}

/* Opens what the first part leads to. others: room for pointers to what was parsed. */
static enum kn_status open_others(struct kni_parts *p, struct kni_arena *arena, size_t at, const struct split *split, struct kni_gguf **others, struct kn_err *err)
{
    struct kni_gguf *first = p->parts[0].gguf;
    char missing[96];
    uint64_t n_tensors = first->n_tensors;
    for (uint32_t i = 1; i < p->n; i++) {
        const char *path = part_path(arena, first->path, at, i + 1);
        if (!path)
            return kni_err_set(err, KN_E_NOMEM, "%s: out of memory", first->path);
        snprintf(missing, sizeof missing, "it is part %u of %u: put all parts of the model beside the first", i + 1, p->n);
        enum kn_status status = open_part(&p->parts[i], arena, path, missing, err);
        if (status == KN_OK)
            status = check_other(p->parts[i].gguf, first, split, i, err);
        if (status != KN_OK)
            return status;
        others[i - 1] = p->parts[i].gguf;
        n_tensors += others[i - 1]->n_tensors;
        if (n_tensors > UINT32_MAX / 2)
            break;
    }
    if (n_tensors != split->n_tensors)
        return kni_err_set(err, KN_E_FORMAT, "%s: its %u parts have %llu tensors and should have %u; fetch all parts of one model again", first->path, p->n,
                           (unsigned long long)n_tensors, split->n_tensors);
    return p->n > 1 ? kni_gguf_join(first, others, p->n - 1, arena, err) : KN_OK;
}

enum kn_status kni_parts_open(struct kni_parts *p, struct kni_arena *arena, const char *path, struct kn_err *err)
{
    struct kni_part first = {0};
    struct split split;
    size_t at = 0;
    pthread_mutex_init(&p->lock, NULL);
    enum kn_status status = open_part(&first, arena, path, "check the path to the model", err);
    if (status == KN_OK)
        status = read_split(first.gguf, &split, err);
    if (status == KN_OK)
        status = check_first(first.gguf, &split, &at, err);
    if (status != KN_OK)
        goto done;
    const uint32_t n = split.is_part ? split.count : 1;
    struct kni_part *parts = kni_arena_alloc(arena, n * sizeof *parts, 0);
    struct kni_gguf **others = kni_arena_alloc(arena, n * sizeof *others, 0);
    if (!parts || !others) {
        status = kni_err_set(err, KN_E_NOMEM, "%s: out of memory for %u parts", path, n);
        goto done;
    }
    p->parts = parts;
    p->n = n;
    first.path = first.gguf->path; /* the caller's lives for the call only */
    parts[0] = first;
    first.map = (struct kni_file_map){0};
    if (split.count) /* also a part that is alone says how many tensors it has */
        status = open_others(p, arena, at, &split, others, err);
done:
    kni_file_map_close(&first.map);
    return status;
}

void kni_parts_close(struct kni_parts *p)
{
    for (uint32_t i = 0; i < p->n; i++)
        kni_file_map_close(&p->parts[i].map);
    pthread_mutex_destroy(&p->lock);
}

const struct kni_part *kni_parts_find(const struct kni_parts *p, const void *at)
{
    for (uint32_t i = 0; i < p->n; i++)
        if ((size_t)at - (size_t)p->parts[i].map.data < p->parts[i].map.n_bytes)
            return &p->parts[i];
    return NULL;
}

uint64_t kni_parts_bytes(const struct kni_parts *p)
{
    uint64_t n = 0;
    for (uint32_t i = 0; i < p->n; i++)
        n += p->parts[i].map.n_bytes;
    return n;
}
