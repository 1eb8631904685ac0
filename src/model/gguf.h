/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Reader of GGUF files, versions 2 and 3, over memory that somebody else has mapped.
 *
 *     [ "GGUF" | version u32 | n_tensors u64 | n_kv u64 ][ key, type, value ] x n_kv [ tensor info ] x n_tensors
 *     [ padding to alignment ][ tensor data, each at a multiple of alignment from the start of this part ]
 *
 * A string is u64 length and bytes, an array is u32 element type, u64 count and elements. Everything is little-endian and
 * unaligned. Nothing in the file is trusted: each count is bounded by the bytes that are left before memory is asked for,
 * so a hostile file costs at most a small multiple of its own size; sums and products are overflow-safe; tensors must lie
 * inside the file, apart from each other, and have the size that type and shape demand.
 *
 * Keys, values and tensor data point into the mapping, everything else lives in the caller's arena. Immutable after
 * parse: any thread. Source of the format: the GGUF specification.
 */
#ifndef KNI_MODEL_GGUF_H
#define KNI_MODEL_GGUF_H

#include <stdbool.h>

#include "base/arena.h"
#include "base/status.h"
#include "model/model.h"

enum kni_gguf_type {
    KNI_GGUF_TYPE_U8 = 0,
    KNI_GGUF_TYPE_I8 = 1,
    KNI_GGUF_TYPE_U16 = 2,
    KNI_GGUF_TYPE_I16 = 3,
    KNI_GGUF_TYPE_U32 = 4,
    KNI_GGUF_TYPE_I32 = 5,
    KNI_GGUF_TYPE_F32 = 6,
    KNI_GGUF_TYPE_BOOL = 7,
    KNI_GGUF_TYPE_STRING = 8,
    KNI_GGUF_TYPE_ARRAY = 9,
    KNI_GGUF_TYPE_U64 = 10,
    KNI_GGUF_TYPE_I64 = 11,
    KNI_GGUF_TYPE_F64 = 12
};

/* Bytes in the file, not NUL-terminated. */
struct kni_gguf_str { const char *data; size_t n; };

struct kni_gguf_kv {
    struct kni_gguf_str key;
    enum kni_gguf_type type, elem_type; /* elem_type only of arrays */
    uint64_t n_elems;                   /* of arrays */
    const uint8_t *value;               /* scalar, string with its length, or the array's first element */
    size_t n_bytes;                     /* of value, to its end */
};

struct kni_gguf {
    const char *path; /* for error sentences */
    const uint8_t *data;
    size_t n_bytes;
    uint32_t version, alignment;
    uint32_t n_kv, n_tensors;
    struct kni_gguf_kv *kv;     /* in the file's order */
    struct kni_tensor *tensors; /* in the file's order, names NUL-terminated */
    uint32_t *kv_slots, *tensor_slots; /* hash tables: index + 1, 0 empty; sizes are powers of two */
    uint32_t n_kv_slots, n_tensor_slots;
    size_t header_bytes; /* to the end of the tensor infos */
    size_t data_at;      /* where tensor data starts */
};

/* Reads n_bytes at data, which outlives the result; the result lives in arena. KN_E_FORMAT for damage, KN_E_UNSUPPORTED
 * for another version or a tensor type that Kinema cannot read (named), KN_E_NOMEM. err may be NULL. */
enum kn_status kni_gguf_parse(struct kni_gguf **out, struct kni_arena *arena, const void *data, size_t n_bytes, const char *path,
                              struct kn_err *err);

/* Appends the tensors of n others to first, in their order; metadata stays the first's. Everything lives in arena. KN_E_FORMAT when a
 * tensor is in two of them (named), KN_E_NOMEM. On failure first is as it was. */
enum kn_status kni_gguf_join(struct kni_gguf *first, struct kni_gguf *const *others, uint32_t n, struct kni_arena *arena, struct kn_err *err);

/* NULL when absent. */
const struct kni_gguf_kv *kni_gguf_find(const struct kni_gguf *gguf, const char *key);
const struct kni_tensor *kni_gguf_find_tensor(const struct kni_gguf *gguf, const char *name);

/* Scalars by key. KN_E_NOT_FOUND when absent (err untouched, *out untouched), KN_E_FORMAT for another type or a value out
 * of range (err names the key). get_u32 takes any integer type, get_f32 also F64. */
enum kn_status kni_gguf_get_u32(const struct kni_gguf *gguf, const char *key, uint32_t *out, struct kn_err *err);
enum kn_status kni_gguf_get_f32(const struct kni_gguf *gguf, const char *key, float *out, struct kn_err *err);
enum kn_status kni_gguf_get_bool(const struct kni_gguf *gguf, const char *key, bool *out, struct kn_err *err);
enum kn_status kni_gguf_get_str(const struct kni_gguf *gguf, const char *key, struct kni_gguf_str *out, struct kn_err *err);
/* The array under key, whose elements must have elem_type. Errors as above. */
enum kn_status kni_gguf_get_array(const struct kni_gguf *gguf, const char *key, enum kni_gguf_type elem_type,
                                  const struct kni_gguf_kv **out, struct kn_err *err);

/* The string at *at, which advances behind it. For elements of a string array, from kv->value, n_elems times. */
struct kni_gguf_str kni_gguf_next_str(const uint8_t **at);

/* A printable excerpt for error sentences: control characters and bytes above 126 become '?', long strings are cut. */
struct kni_gguf_quote { char text[72]; };
struct kni_gguf_quote kni_gguf_quote(struct kni_gguf_str s);

#endif
