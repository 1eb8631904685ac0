/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Writes GGUF version 3 files for tests: metadata and tensors are appended in any order, then assembled.
 *
 *     struct kn_gguf_writer w = {0};
 *     kn_gguf_put_str(&w, "general.architecture", "llama");
 *     kn_gguf_put_tensor(&w, "output_norm.weight", KNI_DTYPE_F32, 1, ne, data, n_bytes);
 *     kn_gguf_assemble(&w);            // w.file.data, w.file.n
 *     kn_gguf_writer_fini(&w);
 *
 * Header only, for tests: plain malloc, aborts when out of memory. Nothing is checked: tests write nonsense on purpose.
 */
#ifndef KN_TEST_GGUF_WRITER_H
#define KN_TEST_GGUF_WRITER_H

#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define KN_GGUF_U32 4u
#define KN_GGUF_I32 5u
#define KN_GGUF_F32 6u
#define KN_GGUF_BOOL 7u
#define KN_GGUF_STR 8u
#define KN_GGUF_ARRAY 9u

struct kn_bytes { uint8_t *data; size_t n, cap; };

static inline void kn_bytes_put(struct kn_bytes *b, const void *data, size_t n)
{
    if (b->n + n > b->cap) {
        b->cap = (b->n + n) * 2 + 256;
        b->data = realloc(b->data, b->cap);
        if (!b->data)
            abort();
    }
    if (n && data)
        memcpy(b->data + b->n, data, n);
    else if (n)
        memset(b->data + b->n, 0, n);
    b->n += n;
}

static inline void kn_bytes_u32(struct kn_bytes *b, uint32_t v) { kn_bytes_put(b, &v, 4); }
static inline void kn_bytes_u64(struct kn_bytes *b, uint64_t v) { kn_bytes_put(b, &v, 8); }
static inline void kn_bytes_str(struct kn_bytes *b, const char *s, size_t n)
{
    kn_bytes_u64(b, n);
    kn_bytes_put(b, s, n);
}

struct kn_gguf_writer {
    uint32_t version; /* 0: 3 */
    uint64_t n_kv, n_tensors;
    struct kn_bytes kv, infos, data, file;
    size_t data_at; /* after assembly: where tensor data starts */
};

static inline void kn_gguf_key(struct kn_gguf_writer *w, const char *key, uint32_t type)
{
    kn_bytes_str(&w->kv, key, strlen(key));
    kn_bytes_u32(&w->kv, type);
    w->n_kv++;
}

static inline void kn_gguf_put_str(struct kn_gguf_writer *w, const char *key, const char *value)
{
    kn_gguf_key(w, key, KN_GGUF_STR);
    kn_bytes_str(&w->kv, value, strlen(value));
}

static inline void kn_gguf_put_u32(struct kn_gguf_writer *w, const char *key, uint32_t value)
{
    kn_gguf_key(w, key, KN_GGUF_U32);
    kn_bytes_u32(&w->kv, value);
}

static inline void kn_gguf_put_f32(struct kn_gguf_writer *w, const char *key, float value)
{
    kn_gguf_key(w, key, KN_GGUF_F32);
    kn_bytes_put(&w->kv, &value, 4);
}

static inline void kn_gguf_put_bool(struct kn_gguf_writer *w, const char *key, int value)
{
    uint8_t v = value != 0;
    kn_gguf_key(w, key, KN_GGUF_BOOL);
    kn_bytes_put(&w->kv, &v, 1);
}

/* Opens an array of n elements; the caller appends them to w->kv. */
static inline void kn_gguf_put_array(struct kn_gguf_writer *w, const char *key, uint32_t type, uint64_t n)
{
    kn_gguf_key(w, key, KN_GGUF_ARRAY);
    kn_bytes_u32(&w->kv, type);
    kn_bytes_u64(&w->kv, n);
}

static inline void kn_gguf_put_tensor(struct kn_gguf_writer *w, const char *name, uint32_t type, uint32_t n_dims, const uint64_t *ne,
                                      const void *data, size_t n_bytes)
{
    while (w->data.n % 32)
        kn_bytes_put(&w->data, NULL, 1);
    kn_bytes_str(&w->infos, name, strlen(name));
    kn_bytes_u32(&w->infos, n_dims);
    for (uint32_t i = 0; i < n_dims; i++)
        kn_bytes_u64(&w->infos, ne[i]);
    kn_bytes_u32(&w->infos, type);
    kn_bytes_u64(&w->infos, w->data.n);
    kn_bytes_put(&w->data, data, n_bytes);
    w->n_tensors++;
}

static inline void kn_gguf_assemble(struct kn_gguf_writer *w)
{
    w->file.n = 0;
    kn_bytes_put(&w->file, "GGUF", 4);
    kn_bytes_u32(&w->file, w->version ? w->version : 3);
    kn_bytes_u64(&w->file, w->n_tensors);
    kn_bytes_u64(&w->file, w->n_kv);
    kn_bytes_put(&w->file, w->kv.data, w->kv.n);
    kn_bytes_put(&w->file, w->infos.data, w->infos.n);
    while (w->file.n % 32)
        kn_bytes_put(&w->file, NULL, 1);
    w->data_at = w->file.n;
    kn_bytes_put(&w->file, w->data.data, w->data.n);
}

static inline int kn_file_write(const char *path, const void *data, size_t n)
{
    FILE *f = fopen(path, "wb");
    if (!f)
        return -1;
    size_t wrote = n ? fwrite(data, 1, n, f) : 0;
    return fclose(f) == 0 && wrote == n ? 0 : -1;
}

static inline void kn_gguf_writer_fini(struct kn_gguf_writer *w)
{
    free(w->kv.data);
    free(w->infos.data);
    free(w->data.data);
    free(w->file.data);
    memset(w, 0, sizeof *w);
}

#endif
