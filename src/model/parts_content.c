/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Hashing a model's content, and finding out that a file has changed: see parts.h.
 *
 * Data is read by descriptors, not through the maps: a file that somebody cuts is then an error and no signal, and nothing becomes
 * resident. Threads take leaves from a counter; with none of their own to be had, the caller does all the work.
 */
#include <string.h>

#include "base/alloc.h"
#include "base/cpu.h"
#include "base/le.h"
#include "base/log.h"
#include "base/signals.h"
#include "model/gguf.h"
#include "model/model.h"
#include "model/parts.h"

#define LEAF_BYTES ((size_t)1 << 20)
#define LEAVES_A_THREAD 8u /* fewer are not worth a thread */
#define MAX_THREADS 8u
#define TRIES 3            /* of hashing a file that is still being touched */

struct work {
    const struct kni_parts *parts;
    struct kni_hash *leaves; /* [n_leaves] */
    size_t n_leaves;
    _Atomic size_t next;          /* relaxed: leaves share nothing; joining orders them */
    _Atomic enum kn_status status; /* any failure */
};

static size_t leaves_of(const struct kni_tensor *t)
{
    return (size_t)(t->n_bytes / LEAF_BYTES + (t->n_bytes % LEAF_BYTES != 0));
}

static void *hash_leaves(void *arg)
{
    struct work *w = arg;
    const struct kni_gguf *g = w->parts->parts[0].gguf;
    uint8_t *buf = kni_alloc(KNI_ALLOC_TAG_MODEL, LEAF_BYTES, 64);
    if (!buf) {
        atomic_store_explicit(&w->status, KN_E_NOMEM, memory_order_relaxed);
        return NULL;
    }
    size_t first = 0, leaf = atomic_fetch_add_explicit(&w->next, 1, memory_order_relaxed);
    for (uint32_t i = 0; i < g->n_tensors; i++) { /* leaves ascend, so one pass over the tensors serves all of a thread's */
        const struct kni_tensor *t = &g->tensors[i];
        const struct kni_part *part = kni_parts_find(w->parts, t->data);
        const size_t n = leaves_of(t);
        for (; leaf - first < n; leaf = atomic_fetch_add_explicit(&w->next, 1, memory_order_relaxed)) {
            const size_t at = (leaf - first) * LEAF_BYTES, n_bytes = t->n_bytes - at < LEAF_BYTES ? (size_t)(t->n_bytes - at) : LEAF_BYTES;
            if (kni_file_map_read(&part->map, (uint64_t)((const uint8_t *)t->data - (const uint8_t *)part->map.data) + at, buf, n_bytes)) {
                atomic_store_explicit(&w->status, KN_E_IO, memory_order_relaxed);
                goto done;
            }
            w->leaves[leaf] = kni_hash_bytes(buf, n_bytes);
        }
        first += n;
    }
done:
    kni_free(buf);
    return NULL;
}

static enum kn_status hash_content(const struct kni_parts *p, struct kni_hash *out)
{
    const struct kni_gguf *g = p->parts[0].gguf;
    struct work w = {.parts = p};
    pthread_t threads[MAX_THREADS];
    uint32_t n_threads = 0, n_wanted = kni_cpu_count() < MAX_THREADS ? kni_cpu_count() : MAX_THREADS;
    size_t bytes;
    for (uint32_t i = 0; i < g->n_tensors; i++)
        w.n_leaves += leaves_of(&g->tensors[i]);
    w.leaves = kni_mul_size(w.n_leaves + 1, sizeof *w.leaves, &bytes) ? kni_calloc(KNI_ALLOC_TAG_MODEL, bytes, 0) : NULL;
    if (!w.leaves)
        return KN_E_NOMEM;
    sigset_t before;
    kni_signals_block(&before);
    while (n_threads + 1 < n_wanted && (n_threads + 1) * LEAVES_A_THREAD < w.n_leaves && !pthread_create(&threads[n_threads], NULL, hash_leaves, &w))
        n_threads++;
    kni_signals_restore(&before);
    hash_leaves(&w);
    for (uint32_t i = 0; i < n_threads; i++)
        pthread_join(threads[i], NULL);
    *out = kni_hash_bytes(w.leaves, w.n_leaves * sizeof *w.leaves);
    kni_free(w.leaves);
    return atomic_load_explicit(&w.status, memory_order_relaxed);
}

static void add_number(struct kni_hasher *h, uint64_t value)
{
    uint8_t bytes[8];
    kni_le64_put(bytes, value);
    kni_hasher_update(h, bytes, sizeof bytes);
}

static void add_bytes(struct kni_hasher *h, const void *data, size_t n)
{
    add_number(h, n);
    kni_hasher_update(h, data, n);
}

/* Pairs in the file's order, without those that splitting adds; infos without offsets. */
static void add_metadata(struct kni_hasher *h, const struct kni_gguf *g)
{
    static const char tag[] = "kn-model-2";
    kni_hasher_update(h, tag, sizeof tag);
    for (uint32_t i = 0; i < g->n_kv; i++) {
        const struct kni_gguf_kv *kv = &g->kv[i];
        if (kv->key.n > 6 && !memcmp(kv->key.data, "split.", 6))
            continue;
        add_bytes(h, kv->key.data, kv->key.n);
        add_number(h, (uint64_t)kv->type << 32 | (uint64_t)kv->elem_type);
        add_bytes(h, kv->value, kv->n_bytes);
    }
    add_number(h, g->n_tensors);
    for (uint32_t i = 0; i < g->n_tensors; i++) {
        const struct kni_tensor *t = &g->tensors[i];
        add_bytes(h, t->name, strlen(t->name));
        add_number(h, (uint64_t)t->type << 32 | t->n_dims);
        for (uint32_t k = 0; k < 4; k++)
            add_number(h, t->ne[k]);
    }
}

static uint64_t stamp_hash(const struct kni_file_stamp *s)
{
    return kni_xxh3(s, sizeof *s);
}

enum kn_status kni_parts_fingerprint(struct kni_parts *p, uint8_t fingerprint[16], struct kn_err *err)
{
    struct kni_hasher h;
    struct kni_file_stamp now;
    enum kn_status status = hash_content(p, &p->content);
    if (status == KN_E_NOMEM)
        return kni_err_set(err, status, "%s: out of memory for its fingerprint", p->parts[0].path);
    kni_hasher_init(&h, NULL, 0);
    add_metadata(&h, p->parts[0].gguf);
    kni_hasher_update(&h, p->content.bytes, sizeof p->content.bytes);
    struct kni_hash hash = kni_hasher_final(&h);
    memcpy(fingerprint, hash.bytes, 16);
    for (uint32_t i = 0; i < p->n; i++) { /* what was read in between may be neither the old nor the new */
        struct kni_part *part = &p->parts[i];
        const struct kni_file_stamp *then = &part->map.stamp;
        if (kni_file_map_stamp(&part->map, &now) || now.n_bytes != then->n_bytes || now.mtime_ns != then->mtime_ns)
            return kni_err_set(err, KN_E_CHANGED, "%s was written while it was being opened: open it again when it is complete", part->path);
        atomic_store_explicit(&part->seen, stamp_hash(then), memory_order_relaxed); /* nobody else has the model yet */
    }
    if (status != KN_OK)
        return kni_err_set(err, status, "%s: its data cannot be read; check the disk", p->parts[0].path);
    return KN_OK;
}

/* ---- is it still the same? */

static enum kn_status give_fault(const struct kni_parts *p, struct kn_err *err)
{
    if (err)
        *err = p->fault;
    return KN_E_CHANGED;
}

static bool is_suspicious(const struct kni_part *part, struct kni_file_stamp *now)
{
    /* relaxed: seen stands for itself, the data that it vouches for is the file's */
    return kni_file_map_stamp(&part->map, now) || stamp_hash(now) != atomic_load_explicit(&part->seen, memory_order_relaxed);
}

#define FOR_GOOD "nothing is computed, stored or fetched with it any more; restart with the file that is meant"

/* (lock) held. Finds out whether suspicious files have other data. touched: the file whose stamp alone is another. */
static enum kn_status look(struct kni_parts *p, const char **touched)
{
    for (int try = 0; try < TRIES; try++) {
        const struct kni_part *suspect = NULL;
        uint64_t seen[KNI_PARTS_MAX];
        for (uint32_t i = 0; i < p->n; i++) {
            struct kni_part *part = &p->parts[i];
            struct kni_file_stamp now;
            bool odd = is_suspicious(part, &now);
            if (odd && kni_file_map_stamp(&part->map, &now))
                return kni_err_set(&p->fault, KN_E_CHANGED, "%s cannot be looked at any more: " FOR_GOOD, part->path);
            if (now.n_bytes != part->map.n_bytes)
                return kni_err_set(&p->fault, KN_E_CHANGED, "%s has changed while it was in use, from %zu to %llu bytes: " FOR_GOOD, part->path, part->map.n_bytes,
                                   (unsigned long long)now.n_bytes);
            seen[i] = stamp_hash(&now);
            suspect = odd && !suspect ? part : suspect;
        }
        if (!suspect)
            return KN_OK;
        struct kni_hash content;
        enum kn_status status = hash_content(p, &content);
        if (status != KN_OK)
            return kni_err_set(&p->fault, KN_E_CHANGED, "%s may have changed while it was in use, and cannot be read to find out (%s): " FOR_GOOD, suspect->path,
                               kn_status_message(status));
        if (!kni_hash_equal(&content, &p->content))
            return kni_err_set(&p->fault, KN_E_CHANGED, "%s has changed while it was in use: " FOR_GOOD, suspect->path);
        for (uint32_t i = 0; i < p->n; i++) /* a write since then shows in the next stamp */
            atomic_store_explicit(&p->parts[i].seen, seen[i], memory_order_relaxed);
        *touched = suspect->path;
    }
    return KN_OK; /* it holds the right data each time */
}

enum kn_status kni_parts_check(struct kni_parts *p, struct kn_err *err)
{
    struct kni_file_stamp now;
    const char *touched = NULL;
    bool odd = false, found = false;
    if (atomic_load_explicit(&p->changed, memory_order_acquire)) /* with the release below */
        return give_fault(p, err);
    for (uint32_t i = 0; i < p->n && !odd; i++)
        odd = is_suspicious(&p->parts[i], &now);
    if (!odd)
        return KN_OK;
    pthread_mutex_lock(&p->lock);
    bool changed = atomic_load_explicit(&p->changed, memory_order_relaxed);
    if (!changed && look(p, &touched) != KN_OK) {
        changed = found = true;
        atomic_store_explicit(&p->changed, true, memory_order_release); /* after fault */
    }
    pthread_mutex_unlock(&p->lock);
    if (found)
        kni_log(KN_LOG_LEVEL_ERROR, "model", "%s", p->fault.text);
    else if (touched)
        kni_log(KN_LOG_LEVEL_INFO, "model", "%s was touched, moved or linked; its data is what it was", touched);
    return changed ? give_fault(p, err) : KN_OK;
}
