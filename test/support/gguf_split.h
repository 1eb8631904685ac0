/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Splits a GGUF file into parts as llama.cpp's gguf-split does: all metadata in the first, split.no (u16), split.count (u16) and
 * split.tensors.count (i32) in each, tensors in the file's order, as evenly as they go.
 *
 *     struct kn_split s;
 *     assert_int_equal(kn_split_make(&s, w.file.data, w.file.n, &(struct kn_split_opts){.n_parts = 3}), 0);
 *     kn_split_write(&s, "/tmp/tiny");   // /tmp/tiny-00001-of-00003.gguf, ...
 *     kn_split_fini(&s);
 */
#ifndef KN_TEST_GGUF_SPLIT_H
#define KN_TEST_GGUF_SPLIT_H

#include "model/gguf.h"
#include "support/gguf_writer.h"

#define KN_SPLIT_MAX 16u
#define KN_GGUF_U16 2u

struct kn_split_opts {
    uint32_t n_parts;     /* 1..KN_SPLIT_MAX */
    bool no_tensor_first; /* the first part has metadata only */
};

struct kn_split {
    uint32_t n;
    struct kn_gguf_writer parts[KN_SPLIT_MAX]; /* file.data, file.n */
};

static inline void kn_split_keys(struct kn_gguf_writer *w, uint16_t no, uint16_t count, int32_t n_tensors)
{
    kn_gguf_key(w, "split.no", KN_GGUF_U16);
    kn_bytes_put(&w->kv, &no, 2);
    kn_gguf_key(w, "split.count", KN_GGUF_U16);
    kn_bytes_put(&w->kv, &count, 2);
    kn_gguf_key(w, "split.tensors.count", KN_GGUF_I32);
    kn_bytes_put(&w->kv, &n_tensors, 4);
}

/* 0, or -1 when data is no GGUF file or there are more parts than tensors. Release with kn_split_fini in both cases. */
static inline int kn_split_make(struct kn_split *s, const void *data, size_t n_bytes, const struct kn_split_opts *o)
{
    struct kni_arena arena;
    struct kni_gguf *g;
    int rc = -1;
    memset(s, 0, sizeof *s);
    kni_arena_init(&arena, KNI_ALLOC_TAG_MODEL, 0);
    uint32_t skip = o->no_tensor_first ? 1 : 0;
    if (o->n_parts > skip && o->n_parts <= KN_SPLIT_MAX && kni_gguf_parse(&g, &arena, data, n_bytes, "to split", NULL) == KN_OK &&
        g->n_tensors >= o->n_parts && g->n_kv) {
        const struct kni_gguf_kv *last = &g->kv[g->n_kv - 1];
        s->n = o->n_parts;
        kn_bytes_put(&s->parts[0].kv, (const uint8_t *)data + 24, (size_t)(last->value + last->n_bytes - ((const uint8_t *)data + 24)));
        s->parts[0].n_kv = g->n_kv;
        for (uint32_t i = 0; i < s->n; i++)
            kn_split_keys(&s->parts[i], (uint16_t)i, (uint16_t)s->n, (int32_t)g->n_tensors);
        for (uint32_t k = 0; k < g->n_tensors; k++) {
            const struct kni_tensor *t = &g->tensors[k];
            uint32_t part = skip + (uint32_t)((uint64_t)k * (s->n - skip) / g->n_tensors);
            kn_gguf_put_tensor(&s->parts[part], t->name, (uint32_t)t->type, t->n_dims, t->ne, t->data, (size_t)t->n_bytes);
        }
        for (uint32_t i = 0; i < s->n; i++)
            kn_gguf_assemble(&s->parts[i]);
        rc = 0;
    }
    kni_arena_fini(&arena);
    return rc;
}

/* The name of part i, from 0. */
static inline const char *kn_split_name(char out[4096], const char *prefix, uint32_t i, uint32_t n)
{
    snprintf(out, 4096, "%s-%05u-of-%05u.gguf", prefix, i + 1, n);
    return out;
}

static inline int kn_split_write(const struct kn_split *s, const char *prefix)
{
    char name[4096];
    int rc = 0;
    for (uint32_t i = 0; i < s->n && !rc; i++)
        rc = kn_file_write(kn_split_name(name, prefix, i, s->n), s->parts[i].file.data, s->parts[i].file.n);
    return rc;
}

static inline void kn_split_fini(struct kn_split *s)
{
    for (uint32_t i = 0; i < s->n; i++)
        kn_gguf_writer_fini(&s->parts[i]);
    s->n = 0;
}

#endif
