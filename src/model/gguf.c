/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The parser is one cursor that only moves forward: take() is the single place that advances it, and it refuses to pass
 * the end. Metadata is indexed, not copied: a key-value pair remembers where its value lies. Duplicates are found while
 * the hash tables fill. Order of checks: header, pairs, infos, then placement of tensor data (needs the alignment, which
 * is itself a pair).
 */
#include "model/gguf.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/hash.h"
#include "base/le.h"

#define MAX_NESTING 4      /* arrays of arrays */
#define MAX_KEY_BYTES 65535 /* by the specification */
#define MAX_NAME_BYTES 255
#define MIN_KV_BYTES (8u + 1 + 4 + 1)
#define MIN_INFO_BYTES (8u + 1 + 4 + 8 + 4 + 8)
#define DAMAGED "the file is damaged or incomplete, fetch it again"

struct cursor {
    const uint8_t *data;
    size_t n, at;
    const char *path;
    struct kn_err *err;
};

struct kni_gguf_quote kni_gguf_quote(struct kni_gguf_str s)
{
    struct kni_gguf_quote q;
    size_t n = s.n < sizeof q.text - 4 ? s.n : sizeof q.text - 4;
    for (size_t i = 0; i < n; i++)
        q.text[i] = s.data[i] >= 32 && s.data[i] < 127 ? s.data[i] : '?';
    if (n < s.n) {
        memcpy(q.text + n, "...", 3);
        n += 3;
    }
    q.text[n] = 0;
    return q;
}

/* n bytes at the cursor, or NULL with the error set. what: "a tensor's name". */
static const uint8_t *take(struct cursor *c, uint64_t n, const char *what)
{
    if (n > c->n - c->at) {
        kni_err_set(c->err, KN_E_FORMAT, "%s: %s at byte %zu needs %llu bytes but only %zu are left; " DAMAGED, c->path, what, c->at,
                    (unsigned long long)n, c->n - c->at);
        return NULL;
    }
    const uint8_t *p = c->data + c->at;
    c->at += (size_t)n;
    return p;
}

static bool take_u32(struct cursor *c, uint32_t *out, const char *what)
{
    const uint8_t *p = take(c, 4, what);
    if (p)
        *out = kni_le32_get(p);
    return p != NULL;
}

static bool take_u64(struct cursor *c, uint64_t *out, const char *what)
{
    const uint8_t *p = take(c, 8, what);
    if (p)
        *out = kni_le64_get(p);
    return p != NULL;
}

static bool take_str(struct cursor *c, struct kni_gguf_str *out, const char *what)
{
    uint64_t n;
    const uint8_t *p;
    if (!take_u64(c, &n, what) || !(p = take(c, n, what)))
        return false;
    *out = (struct kni_gguf_str){.data = (const char *)p, .n = (size_t)n};
    return true;
}

/* Bytes of a scalar, 0 for strings, arrays and unknown types. */
static size_t scalar_bytes(uint32_t type)
{
    static const uint8_t bytes[] = {1, 1, 2, 2, 4, 4, 4, 1, 0, 0, 8, 8, 8};
    return type < sizeof bytes ? bytes[type] : 0;
}

/* Passes over the elements of an array whose header has been read. */
static bool skip_elems(struct cursor *c, uint32_t type, uint64_t n, unsigned depth)
{
    size_t size = scalar_bytes(type);
    if (size) {
        size_t bytes;
        if (n > SIZE_MAX || !kni_mul_size((size_t)n, size, &bytes))
            bytes = SIZE_MAX;
        return take(c, bytes, "an array") != NULL;
    }
    if (type == KNI_GGUF_TYPE_STRING) {
        struct kni_gguf_str s;
        for (uint64_t i = 0; i < n; i++) /* ends at the file's end at the latest: every element takes 8 bytes */
            if (!take_str(c, &s, "a string of an array"))
                return false;
        return true;
    }
    if (type != KNI_GGUF_TYPE_ARRAY) {
        kni_err_set(c->err, KN_E_FORMAT, "%s: array before byte %zu has unknown element type %u; " DAMAGED, c->path, c->at, type);
        return false;
    }
    if (depth == MAX_NESTING) {
        kni_err_set(c->err, KN_E_FORMAT, "%s: arrays nested more than %d deep at byte %zu; " DAMAGED, c->path, MAX_NESTING, c->at);
        return false;
    }
    for (uint64_t i = 0; i < n; i++) {
        uint32_t elem;
        uint64_t count;
        if (!take_u32(c, &elem, "a nested array") || !take_u64(c, &count, "a nested array") || !skip_elems(c, elem, count, depth + 1))
            return false;
    }
    return true;
}

static bool read_kv(struct cursor *c, struct kni_gguf_kv *kv)
{
    uint32_t type, elem = 0;
    size_t key_at = c->at;
    if (!take_str(c, &kv->key, "a key"))
        return false;
    if (!kv->key.n || kv->key.n > MAX_KEY_BYTES || memchr(kv->key.data, 0, kv->key.n)) {
        kni_err_set(c->err, KN_E_FORMAT, "%s: key at byte %zu has %zu bytes or a NUL in it (allowed: 1 to %d); " DAMAGED, c->path, key_at,
                    kv->key.n, MAX_KEY_BYTES);
        return false;
    }
    if (!take_u32(c, &type, "a value's type"))
        return false;
    kv->value = c->data + c->at;
    bool ok;
    if (type == KNI_GGUF_TYPE_ARRAY) {
        ok = take_u32(c, &elem, "an array's element type") && take_u64(c, &kv->n_elems, "an array's length");
        kv->value = c->data + c->at;
        ok = ok && skip_elems(c, elem, kv->n_elems, 1);
    } else if (type == KNI_GGUF_TYPE_STRING) {
        struct kni_gguf_str s;
        ok = take_str(c, &s, "a string value");
    } else if (!scalar_bytes(type)) {
        kni_err_set(c->err, KN_E_FORMAT, "%s: key %s has unknown value type %u at byte %zu; " DAMAGED, c->path, kni_gguf_quote(kv->key).text, type,
                    c->at - 4);
        return false;
    } else {
        ok = take(c, scalar_bytes(type), "a value") != NULL;
        if (ok && type == KNI_GGUF_TYPE_BOOL && *kv->value > 1) {
            kni_err_set(c->err, KN_E_FORMAT, "%s: key %s is a bool of value %u; " DAMAGED, c->path, kni_gguf_quote(kv->key).text, *kv->value);
            return false;
        }
    }
    kv->type = (enum kni_gguf_type)type;
    kv->elem_type = (enum kni_gguf_type)elem;
    kv->n_bytes = (size_t)(c->data + c->at - kv->value);
    return ok;
}

/* Bytes of a tensor from its type and shape; false when they do not fit each other or a size_t. */
static bool tensor_bytes(const struct kni_tensor *t, const struct kni_dtype_info *info, uint64_t *out)
{
    size_t values = 1, bytes;
    for (uint32_t i = 0; i < t->n_dims; i++)
        if (!t->ne[i] || t->ne[i] > SIZE_MAX || !kni_mul_size(values, (size_t)t->ne[i], &values))
            return false;
    if (t->ne[0] % info->block_values || !kni_mul_size(values / info->block_values, info->block_bytes, &bytes))
        return false;
    *out = bytes;
    return true;
}

/* Reads one info. data holds the offset as a number until place_tensors turns it into a pointer. */
static enum kn_status read_info(struct cursor *c, struct kni_arena *arena, struct kni_tensor *t, uint64_t *offset)
{
    struct kni_gguf_str name;
    uint32_t type;
    size_t at = c->at;
    if (!take_str(c, &name, "a tensor's name"))
        return KN_E_FORMAT;
    if (!name.n || name.n > MAX_NAME_BYTES || memchr(name.data, 0, name.n))
        return kni_err_set(c->err, KN_E_FORMAT, "%s: tensor name at byte %zu has %zu bytes or a NUL in it (allowed: 1 to %d); " DAMAGED, c->path, at,
                           name.n, MAX_NAME_BYTES);
    if (!(t->name = kni_arena_strndup(arena, name.data, name.n)))
        return kni_err_set(c->err, KN_E_NOMEM, "%s: out of memory for tensor names", c->path);
    if (!take_u32(c, &t->n_dims, "a tensor's shape"))
        return KN_E_FORMAT;
    struct kni_gguf_quote q = kni_gguf_quote(name);
    if (t->n_dims < 1 || t->n_dims > 4)
        return kni_err_set(c->err, KN_E_FORMAT, "%s: tensor %s has %u dimensions (allowed: 1 to 4); " DAMAGED, c->path, q.text, t->n_dims);
    for (uint32_t i = 0; i < 4; i++)
        t->ne[i] = 1;
    for (uint32_t i = 0; i < t->n_dims; i++)
        if (!take_u64(c, &t->ne[i], "a tensor's shape"))
            return KN_E_FORMAT;
    if (!take_u32(c, &type, "a tensor's type") || !take_u64(c, offset, "a tensor's offset"))
        return KN_E_FORMAT;
    const struct kni_dtype_info *info = kni_dtype_get_info(type);
    if (!info)
        return kni_err_set(c->err, KN_E_UNSUPPORTED,
                           "%s: tensor %s has type %s (%u), which Kinema cannot read; requantise the model, for example to Q4_1, Q8_0 or Q4_K", c->path,
                           q.text, kni_dtype_name(type), type);
    t->type = (enum kni_dtype)type;
    if (!tensor_bytes(t, info, &t->n_bytes))
        return kni_err_set(c->err, KN_E_FORMAT, "%s: tensor %s of type %s has an impossible shape [%llu, %llu, %llu, %llu]; " DAMAGED, c->path, q.text,
                           info->name, (unsigned long long)t->ne[0], (unsigned long long)t->ne[1], (unsigned long long)t->ne[2],
                           (unsigned long long)t->ne[3]);
    return KN_OK;
}

static uint32_t slot_count(uint32_t n)
{
    uint32_t slots = 4;
    while (slots < 2 * (uint64_t)n && slots < 1u << 31)
        slots *= 2;
    return slots;
}

/* The slot that holds the key, or the empty one where it belongs. */
static uint32_t *kv_slot(const struct kni_gguf *g, const char *key, size_t n)
{
    uint32_t mask = g->n_kv_slots - 1, i = (uint32_t)kni_xxh3(key, n) & mask;
    for (;; i = (i + 1) & mask) {
        uint32_t *slot = &g->kv_slots[i];
        if (!*slot || (g->kv[*slot - 1].key.n == n && !memcmp(g->kv[*slot - 1].key.data, key, n)))
            return slot;
    }
}

static uint32_t *tensor_slot(const struct kni_gguf *g, const char *name)
{
    uint32_t mask = g->n_tensor_slots - 1, i = (uint32_t)kni_xxh3(name, strlen(name)) & mask;
    for (;; i = (i + 1) & mask) {
        uint32_t *slot = &g->tensor_slots[i];
        if (!*slot || !strcmp(g->tensors[*slot - 1].name, name))
            return slot;
    }
}

const struct kni_gguf_kv *kni_gguf_find(const struct kni_gguf *gguf, const char *key)
{
    uint32_t slot = *kv_slot(gguf, key, strlen(key));
    return slot ? &gguf->kv[slot - 1] : NULL;
}

const struct kni_tensor *kni_gguf_find_tensor(const struct kni_gguf *gguf, const char *name)
{
    uint32_t slot = *tensor_slot(gguf, name);
    return slot ? &gguf->tensors[slot - 1] : NULL;
}

static enum kn_status read_header(struct cursor *c, struct kni_gguf *g)
{
    uint64_t n_tensors, n_kv;
    const uint8_t *magic = take(c, 4, "the magic");
    if (!magic)
        return KN_E_FORMAT;
    if (memcmp(magic, "GGUF", 4))
        return kni_err_set(c->err, KN_E_FORMAT, "%s: byte 0 is not the start of a GGUF file; give a .gguf model", c->path);
    if (!take_u32(c, &g->version, "the version"))
        return KN_E_FORMAT;
    if (g->version != 2 && g->version != 3)
        return kni_err_set(c->err, KN_E_UNSUPPORTED, "%s: GGUF version %u at byte 4 (%s) is not supported; convert the model to version 3, little-endian",
                           c->path, g->version, g->version && !(g->version & 0xffffff) ? "a big-endian file" : "readable: 2 and 3");
    if (!take_u64(c, &n_tensors, "the tensor count") || !take_u64(c, &n_kv, "the pair count"))
        return KN_E_FORMAT;
    size_t left = c->n - c->at;
    if (n_kv > left / MIN_KV_BYTES || n_kv > UINT32_MAX / 2)
        return kni_err_set(c->err, KN_E_FORMAT, "%s: %llu metadata pairs at byte 16 cannot fit the file's %zu bytes; " DAMAGED, c->path,
                           (unsigned long long)n_kv, c->n);
    if (n_tensors > left / MIN_INFO_BYTES || n_tensors > UINT32_MAX / 2)
        return kni_err_set(c->err, KN_E_FORMAT, "%s: %llu tensors at byte 8 cannot fit the file's %zu bytes; " DAMAGED, c->path,
                           (unsigned long long)n_tensors, c->n);
    g->n_kv = (uint32_t)n_kv;
    g->n_tensors = (uint32_t)n_tensors;
    return KN_OK;
}

struct span { uint64_t at, n_bytes; const char *name; };

static int span_order(const void *a, const void *b)
{
    const struct span *x = a, *y = b;
    return x->at < y->at ? -1 : x->at > y->at;
}

/* Turns offsets into pointers after checking alignment, bounds and overlap. */
static enum kn_status place_tensors(struct cursor *c, struct kni_gguf *g, struct span *spans)
{
    g->header_bytes = c->at;
    uint64_t at = ((uint64_t)c->at + g->alignment - 1) & ~((uint64_t)g->alignment - 1);
    g->data_at = at < c->n ? (size_t)at : c->n;
    uint64_t room = c->n - g->data_at;
    for (uint32_t i = 0; i < g->n_tensors; i++) {
        struct kni_tensor *t = &g->tensors[i];
        struct kni_gguf_quote q = kni_gguf_quote((struct kni_gguf_str){t->name, strlen(t->name)});
        if (spans[i].at % g->alignment)
            return kni_err_set(c->err, KN_E_FORMAT, "%s: tensor %s at offset %llu is not aligned to %u; " DAMAGED, c->path, q.text,
                               (unsigned long long)spans[i].at, g->alignment);
        if (spans[i].at > room || t->n_bytes > room - spans[i].at)
            return kni_err_set(c->err, KN_E_FORMAT, "%s: tensor %s (%llu bytes at offset %llu from byte %zu) reaches past the file's end at %zu; " DAMAGED,
                               c->path, q.text, (unsigned long long)t->n_bytes, (unsigned long long)spans[i].at, g->data_at, c->n);
        t->data = c->data + g->data_at + spans[i].at;
        spans[i].n_bytes = t->n_bytes;
        spans[i].name = t->name;
    }
    if (g->n_tensors)
        qsort(spans, g->n_tensors, sizeof *spans, span_order);
    for (uint32_t i = 1; i < g->n_tensors; i++)
        if (spans[i].at - spans[i - 1].at < spans[i - 1].n_bytes)
            return kni_err_set(c->err, KN_E_FORMAT, "%s: tensors %s and %s overlap; " DAMAGED, c->path,
                               kni_gguf_quote((struct kni_gguf_str){spans[i - 1].name, strlen(spans[i - 1].name)}).text,
                               kni_gguf_quote((struct kni_gguf_str){spans[i].name, strlen(spans[i].name)}).text);
    return KN_OK;
}

static enum kn_status read_all(struct cursor *c, struct kni_arena *arena, struct kni_gguf *g, struct span *spans)
{
    enum kn_status status;
    for (uint32_t i = 0; i < g->n_kv; i++) {
        struct kni_gguf_kv *kv = &g->kv[i];
        if (!read_kv(c, kv))
            return KN_E_FORMAT;
        uint32_t *slot = kv_slot(g, kv->key.data, kv->key.n);
        if (*slot)
            return kni_err_set(c->err, KN_E_FORMAT, "%s: key %s appears twice; " DAMAGED, c->path, kni_gguf_quote(kv->key).text);
        *slot = i + 1;
    }
    g->alignment = 32;
    if ((status = kni_gguf_get_u32(g, "general.alignment", &g->alignment, c->err)) != KN_OK && status != KN_E_NOT_FOUND)
        return status;
    if (g->alignment < 8 || g->alignment > 1u << 20 || (g->alignment & (g->alignment - 1)))
        return kni_err_set(c->err, KN_E_FORMAT, "%s: general.alignment is %u, not a power of two from 8 to 1048576; " DAMAGED, c->path, g->alignment);
    for (uint32_t i = 0; i < g->n_tensors; i++) {
        if ((status = read_info(c, arena, &g->tensors[i], &spans[i].at)) != KN_OK)
            return status;
        uint32_t *slot = tensor_slot(g, g->tensors[i].name);
        if (*slot)
            return kni_err_set(c->err, KN_E_FORMAT, "%s: tensor %s appears twice; " DAMAGED, c->path,
                               kni_gguf_quote((struct kni_gguf_str){g->tensors[i].name, strlen(g->tensors[i].name)}).text);
        *slot = i + 1;
    }
    return place_tensors(c, g, spans);
}

static void *array(struct kni_arena *arena, size_t n, size_t size)
{
    size_t bytes;
    return kni_mul_size(n, size, &bytes) ? kni_arena_alloc(arena, bytes, 0) : NULL;
}

enum kn_status kni_gguf_parse(struct kni_gguf **out, struct kni_arena *arena, const void *data, size_t n_bytes, const char *path,
                              struct kn_err *err)
{
    *out = NULL;
    enum kn_status status;
    struct span *spans = NULL;
    size_t span_bytes;
    struct cursor c = {.data = data, .n = n_bytes, .path = path, .err = err};
    struct kni_gguf *g = kni_arena_alloc(arena, sizeof *g, 0);
    if (!g) {
        status = kni_err_set(err, KN_E_NOMEM, "%s: out of memory", path);
        goto done;
    }
    g->data = data;
    g->n_bytes = n_bytes;
    if ((status = read_header(&c, g)) != KN_OK)
        goto done;
    g->n_kv_slots = slot_count(g->n_kv);
    g->n_tensor_slots = slot_count(g->n_tensors);
    g->path = kni_arena_strndup(arena, path, strlen(path));
    g->kv = array(arena, g->n_kv, sizeof *g->kv);
    g->kv_slots = array(arena, g->n_kv_slots, sizeof *g->kv_slots);
    g->tensors = array(arena, g->n_tensors, sizeof *g->tensors);
    g->tensor_slots = array(arena, g->n_tensor_slots, sizeof *g->tensor_slots);
    spans = kni_mul_size(g->n_tensors, sizeof *spans, &span_bytes) ? kni_calloc(KNI_ALLOC_TAG_MODEL, span_bytes, 0) : NULL;
    if (!g->path || !g->kv || !g->kv_slots || !g->tensors || !g->tensor_slots || !spans) {
        status = kni_err_set(err, KN_E_NOMEM, "%s: out of memory for %u metadata pairs and %u tensors", path, g->n_kv, g->n_tensors);
        goto done;
    }
    status = read_all(&c, arena, g, spans);
done:
    kni_free(spans);
    if (status == KN_OK)
        *out = g;
    return status;
}

enum kn_status kni_gguf_join(struct kni_gguf *first, struct kni_gguf *const *others, uint32_t n, struct kni_arena *arena, struct kn_err *err)
{
    struct kni_gguf g = *first;
    uint64_t total = first->n_tensors;
    for (uint32_t i = 0; i < n; i++)
        total += others[i]->n_tensors; /* each at most half of UINT32_MAX */
    if (total > UINT32_MAX / 2)
        return kni_err_set(err, KN_E_FORMAT, "%s: its parts have %llu tensors together; " DAMAGED, first->path, (unsigned long long)total);
    g.n_tensors = 0;
    g.n_tensor_slots = slot_count((uint32_t)total);
    g.tensors = array(arena, (size_t)total, sizeof *g.tensors);
    g.tensor_slots = array(arena, g.n_tensor_slots, sizeof *g.tensor_slots);
    if (!g.tensors || !g.tensor_slots)
        return kni_err_set(err, KN_E_NOMEM, "%s: out of memory for %llu tensors", first->path, (unsigned long long)total);
    for (uint32_t i = 0; i <= n; i++) {
        const struct kni_gguf *from = i ? others[i - 1] : first;
        for (uint32_t k = 0; k < from->n_tensors; k++) {
            const struct kni_tensor *t = &from->tensors[k];
            uint32_t *slot = tensor_slot(&g, t->name);
            if (*slot)
                return kni_err_set(err, KN_E_FORMAT, "%s: tensor %s is in an earlier part, too; the parts are not of one model, fetch them again", from->path,
                                   kni_gguf_quote((struct kni_gguf_str){t->name, strlen(t->name)}).text);
            g.tensors[g.n_tensors++] = *t;
            *slot = g.n_tensors;
        }
    }
    *first = g;
    return KN_OK;
}

/* ---- values by key */

static enum kn_status wrong_type(const struct kni_gguf *g, const struct kni_gguf_kv *kv, const char *want, struct kn_err *err)
{
    return kni_err_set(err, KN_E_FORMAT, "%s: key %s has value type %d where %s is expected; convert the model again", g->path,
                       kni_gguf_quote(kv->key).text, (int)kv->type, want);
}

enum kn_status kni_gguf_get_u32(const struct kni_gguf *gguf, const char *key, uint32_t *out, struct kn_err *err)
{
    const struct kni_gguf_kv *kv = kni_gguf_find(gguf, key);
    if (!kv)
        return KN_E_NOT_FOUND;
    const uint8_t *p = kv->value;
    int64_t v;
    switch (kv->type) {
    case KNI_GGUF_TYPE_U8: v = *p; break;
    case KNI_GGUF_TYPE_I8: v = (int8_t)*p; break;
    case KNI_GGUF_TYPE_U16: v = kni_le16_get(p); break;
    case KNI_GGUF_TYPE_I16: v = (int16_t)kni_le16_get(p); break;
    case KNI_GGUF_TYPE_U32: v = kni_le32_get(p); break;
    case KNI_GGUF_TYPE_I32: v = (int32_t)kni_le32_get(p); break;
    case KNI_GGUF_TYPE_U64:
    case KNI_GGUF_TYPE_I64: v = (int64_t)kni_le64_get(p); break; /* above INT64_MAX becomes negative: refused all the same */
    case KNI_GGUF_TYPE_F32: case KNI_GGUF_TYPE_BOOL: case KNI_GGUF_TYPE_STRING: case KNI_GGUF_TYPE_ARRAY: case KNI_GGUF_TYPE_F64:
    default: return wrong_type(gguf, kv, "an integer", err);
    }
    if (v < 0 || v > UINT32_MAX)
        return kni_err_set(err, KN_E_FORMAT, "%s: key %s is out of range; " DAMAGED, gguf->path, kni_gguf_quote(kv->key).text);
    *out = (uint32_t)v;
    return KN_OK;
}

enum kn_status kni_gguf_get_f32(const struct kni_gguf *gguf, const char *key, float *out, struct kn_err *err)
{
    const struct kni_gguf_kv *kv = kni_gguf_find(gguf, key);
    if (!kv)
        return KN_E_NOT_FOUND;
    if (kv->type == KNI_GGUF_TYPE_F32) {
        uint32_t bits = kni_le32_get(kv->value);
        memcpy(out, &bits, sizeof *out);
    } else if (kv->type == KNI_GGUF_TYPE_F64) {
        uint64_t bits = kni_le64_get(kv->value);
        double d;
        memcpy(&d, &bits, sizeof d);
        if (!(fabs(d) <= 3e38))
            return kni_err_set(err, KN_E_FORMAT, "%s: key %s is out of range; " DAMAGED, gguf->path, kni_gguf_quote(kv->key).text);
        *out = (float)d;
    } else {
        return wrong_type(gguf, kv, "a float", err);
    }
    return KN_OK;
}

enum kn_status kni_gguf_get_bool(const struct kni_gguf *gguf, const char *key, bool *out, struct kn_err *err)
{
    const struct kni_gguf_kv *kv = kni_gguf_find(gguf, key);
    if (!kv)
        return KN_E_NOT_FOUND;
    if (kv->type != KNI_GGUF_TYPE_BOOL)
        return wrong_type(gguf, kv, "a bool", err);
    *out = *kv->value != 0;
    return KN_OK;
}

enum kn_status kni_gguf_get_str(const struct kni_gguf *gguf, const char *key, struct kni_gguf_str *out, struct kn_err *err)
{
    const struct kni_gguf_kv *kv = kni_gguf_find(gguf, key);
    if (!kv)
        return KN_E_NOT_FOUND;
    if (kv->type != KNI_GGUF_TYPE_STRING)
        return wrong_type(gguf, kv, "a string", err);
    const uint8_t *at = kv->value;
    *out = kni_gguf_next_str(&at);
    return KN_OK;
}

enum kn_status kni_gguf_get_array(const struct kni_gguf *gguf, const char *key, enum kni_gguf_type elem_type,
                                  const struct kni_gguf_kv **out, struct kn_err *err)
{
    const struct kni_gguf_kv *kv = kni_gguf_find(gguf, key);
    if (!kv)
        return KN_E_NOT_FOUND;
    if (kv->type != KNI_GGUF_TYPE_ARRAY || kv->elem_type != elem_type)
        return kni_err_set(err, KN_E_FORMAT, "%s: key %s is not an array of type %d; convert the model again", gguf->path, kni_gguf_quote(kv->key).text,
                           (int)elem_type);
    *out = kv;
    return KN_OK;
}

struct kni_gguf_str kni_gguf_next_str(const uint8_t **at)
{
    struct kni_gguf_str s = {.data = (const char *)*at + 8, .n = (size_t)kni_le64_get(*at)};
    *at += 8 + s.n;
    return s;
}
