/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Chunks in LMDB.
 *
 *     table "kinema"    "format" -> version, "totals" -> chunks and bytes
 *     table "chunk"     key -> container (overflow pages, contiguous, written whole)
 *     table "manifest"  key -> entry of 96 bytes
 *
 * A put is one write transaction: data, then entry, then totals. It commits before it returns, so a chunk is visible to
 * every process at once; batching several would only delay that. Writers of all processes queue on LMDB's own mutex,
 * which survives their death. Readers never wait: lookups and gets are read transactions.
 *
 * Last-use times. A get notes its key in a small table in memory; the next write transaction, or flush, writes the notes.
 * A note that is lost costs an eviction in a slightly different order, so nothing ever waits or fails for it.
 */
#include "store/lmdb_store.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "base/log.h"

static struct kni_lmdb_store *self(struct kn_store *store)
{
    return (struct kni_lmdb_store *)(void *)store;
}

static MDB_val val_of(const char *text)
{
    union { const char *from; char *to; } u = {text}; /* LMDB's MDB_val is not const-correct; keys are only read */
    return (MDB_val){strlen(text), u.to};
}

int kni_lmdb_totals_get(struct kni_lmdb *db, MDB_txn *txn, struct kni_lmdb_totals *out)
{
    MDB_val key = val_of("totals"), val;
    *out = (struct kni_lmdb_totals){0};
    int rc = mdb_get(txn, db->meta, &key, &val);
    if (!rc && val.mv_size == sizeof *out)
        memcpy(out, val.mv_data, sizeof *out);
    return rc == MDB_NOTFOUND ? 0 : rc;
}

int kni_lmdb_totals_set(struct kni_lmdb *db, MDB_txn *txn, const struct kni_lmdb_totals *totals)
{
    struct kni_lmdb_totals t = *totals;
    MDB_val key = val_of("totals"), val = {sizeof t, &t};
    return mdb_put(txn, db->meta, &key, &val, 0);
}

int kni_lmdb_remove(struct kni_lmdb *db, MDB_txn *txn, MDB_val key, struct kni_lmdb_totals *totals, uint64_t *bytes, bool *removed)
{
    MDB_val val;
    struct kni_store_entry e;
    *bytes = 0;
    *removed = false;
    int rc = mdb_get(txn, db->manifest, &key, &val);
    if (!rc) {
        if (!kni_store_entry_decode(&e, val.mv_data, val.mv_size)) {
            *bytes = e.n_bytes;
            totals->n_bytes -= totals->n_bytes < e.n_bytes ? totals->n_bytes : e.n_bytes;
        }
        totals->n_chunks -= totals->n_chunks > 0;
        *removed = true;
        rc = mdb_del(txn, db->manifest, &key, NULL);
    }
    if (rc && rc != MDB_NOTFOUND)
        return rc;
    rc = mdb_get(txn, db->chunk, &key, &val);
    if (!rc) {
        *bytes = val.mv_size;
        *removed = true;
        rc = mdb_del(txn, db->chunk, &key, NULL);
    }
    return rc == MDB_NOTFOUND ? 0 : rc;
}

static void note_use(struct kni_lmdb_store *s, const char *key, const struct kni_store_entry *entry)
{
    uint64_t now = s->base.wall_s();
    if (s->base.read_only || entry->last_used_s == now)
        return;
    pthread_mutex_lock(&s->noted_lock);
    uint32_t i = 0;
    while (i < s->n_noted && strcmp(s->noted[i].key.text, key))
        i++;
    if (i < KNI_LMDB_NOTED) {
        snprintf(s->noted[i].key.text, KNI_STORE_KEY_BYTES, "%s", key);
        s->noted[i].used_s = now;
        s->n_noted += i == s->n_noted;
    }
    pthread_mutex_unlock(&s->noted_lock);
}

/* Writes the notes into txn and forgets them. Only what LMDB reports is an error; a vanished chunk is not. */
static int write_notes(struct kni_lmdb_store *s, MDB_txn *txn)
{
    int rc = 0;
    pthread_mutex_lock(&s->noted_lock); /* held over page writes in memory, not over I/O: commit is outside */
    for (uint32_t i = 0; i < s->n_noted && !rc; i++) {
        MDB_val key = val_of(s->noted[i].key.text), val;
        struct kni_store_entry e;
        uint8_t bytes[KNI_STORE_ENTRY_BYTES];
        if (mdb_get(txn, s->db->manifest, &key, &val) || kni_store_entry_decode(&e, val.mv_data, val.mv_size) || e.last_used_s >= s->noted[i].used_s)
            continue;
        e.last_used_s = s->noted[i].used_s;
        kni_store_entry_encode(&e, bytes);
        val = (MDB_val){sizeof bytes, bytes};
        rc = mdb_put(txn, s->db->manifest, &key, &val, 0);
    }
    s->n_noted = 0;
    pthread_mutex_unlock(&s->noted_lock);
    return rc;
}

static enum kn_status store_flush(struct kn_store *store)
{
    struct kni_lmdb_store *s = self(store);
    MDB_txn *txn;
    pthread_mutex_lock(&s->noted_lock);
    bool any = s->n_noted > 0;
    pthread_mutex_unlock(&s->noted_lock);
    if (!any)
        return KN_OK;
    int rc = kni_lmdb_begin(s->db, true, &txn);
    if (!rc)
        rc = kni_lmdb_end(s->db, txn, true, write_notes(s, txn));
    return kni_lmdb_status(rc);
}

/* One try of a lookup. An LMDB code; *n_found keys are there, and *damaged tells whether the next one is listed but unusable. */
static int lookup_once(struct kn_store *store, const struct kni_store_key *keys, uint32_t n_keys, uint32_t *n_found, bool *damaged)
{
    struct kni_lmdb_store *s = self(store);
    uint64_t now = store->wall_s();
    MDB_txn *txn;
    uint32_t i = 0;
    *n_found = 0;
    *damaged = false;
    int rc = kni_lmdb_begin(s->db, false, &txn);
    if (rc)
        return rc;
    for (; i < n_keys; i++) {
        MDB_val key = val_of(keys[i].text), val;
        struct kni_store_entry e;
        if ((rc = mdb_get(txn, s->db->manifest, &key, &val)))
            break;
        if ((*damaged = kni_store_entry_decode(&e, val.mv_data, val.mv_size)) || kni_store_entry_is_expired(&e, store->ttl_s, now))
            break;
        rc = mdb_get(txn, s->db->chunk, &key, &val); /* its size only: no page of it is read */
        if ((*damaged = rc == MDB_NOTFOUND || (!rc && val.mv_size != e.n_bytes)) || rc)
            break;
    }
    *n_found = i;
    int end = kni_lmdb_end(s->db, txn, false, 0);
    return end ? end : rc;
}

static enum kn_status store_lookup(struct kn_store *store, const struct kni_store_key *keys, uint32_t n_keys, uint32_t *n_found, struct kn_err *err)
{
    struct kni_lmdb_store *s = self(store);
    bool damaged;
    int rc, tries = 0;
    do
        rc = lookup_once(store, keys, n_keys, n_found, &damaged);
    while (rc == KNI_LMDB_OVERTAKEN && ++tries < KNI_LMDB_TRIES);
    if (rc && rc != MDB_NOTFOUND)
        *n_found = 0;
    else if (damaged)
        kni_log(KN_LOG_LEVEL_WARN, "store", "lmdb:%s: chunk %s is listed, but its entry or its data is damaged or gone: not used; the next publish replaces it",
                s->db->path, keys[*n_found].text);
    return rc && rc != MDB_NOTFOUND ? kni_lmdb_err(err, s->db, "lookup", rc) : KN_OK;
}

/* One try of a get; *overtaken: it says nothing, and another is due. */
static enum kn_status get_once(struct kni_lmdb_store *s, const char *key, struct kni_store_entry *entry, struct kni_store_buf *buf, bool *overtaken,
                               struct kn_err *err)
{
    struct kn_store *store = &s->base;
    MDB_val k = val_of(key), val;
    MDB_txn *txn;
    enum kn_status st = KN_OK;
    *overtaken = false;
    buf->n_bytes = 0;
    int rc = kni_lmdb_begin(s->db, false, &txn);
    if (rc)
        return kni_lmdb_err(err, s->db, "get", rc);
    if ((rc = mdb_get(txn, s->db->manifest, &k, &val))) {
        st = rc == MDB_NOTFOUND ? kni_err_set(err, KN_E_NOT_FOUND, "store: no such chunk") : kni_lmdb_err(err, s->db, "get", rc);
        goto done;
    }
    if ((st = kni_store_entry_decode(entry, val.mv_data, val.mv_size))) {
        kni_err_set(err, st, "store: its manifest entry is damaged or of another version");
        goto done;
    }
    if (kni_store_entry_is_expired(entry, store->ttl_s, store->wall_s())) {
        st = kni_err_set(err, KN_E_NOT_FOUND, "store: the chunk has expired");
        goto done;
    }
    if ((rc = mdb_get(txn, s->db->chunk, &k, &val))) {
        st = rc == MDB_NOTFOUND ? kni_err_set(err, KN_E_NOT_FOUND, "store: listed in the manifest, but its data is gone") : kni_lmdb_err(err, s->db, "get", rc);
        goto done;
    }
    if (val.mv_size != entry->n_bytes) {
        st = kni_err_set(err, KN_E_FORMAT, "store: holds %zu bytes where its manifest entry says %llu", val.mv_size, (unsigned long long)entry->n_bytes);
        goto done;
    }
    if (!kni_store_buf_reserve(buf, val.mv_size)) {
        st = kni_err_set(err, KN_E_NOMEM, "store: no memory for a chunk of %zu bytes", val.mv_size);
        goto done;
    }
    memcpy(buf->data, val.mv_data, val.mv_size);
    buf->n_bytes = val.mv_size;
done:
    if ((*overtaken = kni_lmdb_end(s->db, txn, false, 0) != 0))
        st = kni_lmdb_err(err, s->db, "get", KNI_LMDB_OVERTAKEN);
    return st;
}

static enum kn_status store_get(struct kn_store *store, const char *key, struct kni_store_entry *entry, struct kni_store_buf *buf, struct kn_err *err)
{
    struct kni_lmdb_store *s = self(store);
    enum kn_status st;
    bool overtaken;
    int tries = 0;
    do
        st = get_once(s, key, entry, buf, &overtaken, err);
    while (overtaken && ++tries < KNI_LMDB_TRIES);
    if (overtaken) {
        buf->n_bytes = 0;
        memset(entry, 0, sizeof *entry);
    }
    if (!st && kni_xxh3(buf->data, buf->n_bytes) != entry->xxh3) {
        buf->n_bytes = 0;
        st = kni_err_set(err, KN_E_FORMAT, "store: its bytes do not match the checksum in its manifest entry");
    }
    if (!st)
        note_use(s, key, entry);
    return st;
}

/* One try of a put, inside txn. */
static int put_once(struct kni_lmdb_store *s, MDB_txn *txn, const char *key, const struct kni_store_entry *entry, const void *data)
{
    union { const void *from; void *to; } u = {data};
    uint8_t bytes[KNI_STORE_ENTRY_BYTES];
    struct kni_lmdb_totals totals;
    struct kni_store_entry old;
    MDB_val k = val_of(key), val;
    uint64_t n = 0, n_bytes = 0;
    bool removed, same = false;
    int rc = write_notes(s, txn);
    if (rc || (rc = kni_lmdb_totals_get(s->db, txn, &totals)))
        return rc;
    if (!mdb_get(txn, s->db->manifest, &k, &val) && !kni_store_entry_decode(&old, val.mv_data, val.mv_size) && old.n_bytes == entry->n_bytes &&
        old.xxh3 == entry->xxh3 && !mdb_get(txn, s->db->chunk, &k, &val))
        same = val.mv_size == entry->n_bytes && !memcmp(val.mv_data, data, val.mv_size); /* two processes published the same chunk */
    if (!same) {
        if ((rc = kni_lmdb_remove(s->db, txn, k, &totals, &n_bytes, &removed)))
            return rc;
        if (totals.n_bytes + entry->n_bytes > s->base.max_bytes &&
            (rc = kni_lmdb_evict(s, txn, &totals, kni_lmdb_keep_bytes(s->base.max_bytes, entry->n_bytes), key, &n, &n_bytes)))
            return rc;
        val = (MDB_val){entry->n_bytes, u.to};
        if ((rc = mdb_put(txn, s->db->chunk, &k, &val, 0)))
            return rc;
        totals.n_chunks++;
        totals.n_bytes += entry->n_bytes;
    }
    kni_store_entry_encode(entry, bytes);
    val = (MDB_val){sizeof bytes, bytes};
    if ((rc = mdb_put(txn, s->db->manifest, &k, &val, 0)))
        return rc;
    return kni_lmdb_totals_set(s->db, txn, &totals);
}

/* The map is full although the limit is not: no run of free pages is long enough. Clear dead readers (they pin pages),
 * then grow to at most 4 times the limit, then give up chunks. */
static int make_room(struct kni_lmdb_store *s, uint64_t n_bytes, int tries)
{
    uint64_t map = kni_lmdb_map_bytes(s->db), most = s->base.max_bytes < (1ull << 44) ? 4 * s->base.max_bytes + (256ull << 20) : 1ull << 46;
    kni_lmdb_clear_readers(s->db);
    if (tries > 0 && map < most) {
        uint64_t want = map + map / 2 + 4 * n_bytes;
        want = (want + 65535) & ~65535ull;
        kni_log(KN_LOG_LEVEL_INFO, "store", "lmdb:%s: map grows from %llu to %llu bytes", s->db->path, (unsigned long long)map, (unsigned long long)want);
        if (!kni_lmdb_grow(s->db, want))
            return 0;
    }
    if (tries > 1) {
        struct kni_lmdb_totals totals;
        uint64_t n = 0, bytes = 0;
        MDB_txn *txn;
        int rc = kni_lmdb_begin(s->db, true, &txn);
        if (rc)
            return rc;
        if (!(rc = kni_lmdb_totals_get(s->db, txn, &totals))) {
            uint64_t cut = totals.n_bytes / 8 + n_bytes;
            if (!(rc = kni_lmdb_evict(s, txn, &totals, totals.n_bytes > cut ? totals.n_bytes - cut : 0, NULL, &n, &bytes)))
                rc = kni_lmdb_totals_set(s->db, txn, &totals);
        }
        return kni_lmdb_end(s->db, txn, true, rc);
    }
    return 0;
}

static enum kn_status store_put(struct kn_store *store, const char *key, const struct kni_store_entry *entry, const void *data, struct kn_err *err)
{
    struct kni_lmdb_store *s = self(store);
    int rc;
    for (int tries = 0;; tries++) {
        MDB_txn *txn;
        if ((rc = kni_lmdb_begin(s->db, true, &txn)))
            break;
        rc = kni_lmdb_end(s->db, txn, true, put_once(s, txn, key, entry, data));
        if (rc != MDB_MAP_FULL || tries == 5 || (rc = make_room(s, entry->n_bytes, tries)))
            break;
    }
    if (rc == EIO && kni_lmdb_is_full(s->db, entry->n_bytes))
        rc = ENOSPC;
    return rc ? kni_lmdb_err(err, s->db, "put", rc) : KN_OK;
}

static enum kn_status store_drop(struct kn_store *store, const char *key, const struct kni_store_entry *only, struct kn_err *err)
{
    struct kni_lmdb_store *s = self(store);
    struct kni_lmdb_totals totals;
    MDB_val k = val_of(key), val;
    MDB_txn *txn;
    uint64_t bytes;
    bool removed = true;
    int rc = kni_lmdb_begin(s->db, true, &txn);
    if (rc)
        return kni_lmdb_err(err, s->db, "drop", rc);
    if (only && !mdb_get(txn, s->db->manifest, &k, &val)) {
        struct kni_store_entry e;
        if (!kni_store_entry_decode(&e, val.mv_data, val.mv_size) && (e.xxh3 != only->xxh3 || e.created_s != only->created_s))
            removed = false; /* somebody has put a new one meanwhile */
    }
    if (removed && !(rc = kni_lmdb_totals_get(s->db, txn, &totals)) && !(rc = kni_lmdb_remove(s->db, txn, k, &totals, &bytes, &removed)))
        rc = kni_lmdb_totals_set(s->db, txn, &totals);
    rc = kni_lmdb_end(s->db, txn, true, rc);
    return rc ? kni_lmdb_err(err, s->db, "drop", rc) : KN_OK;
}

static void store_close(struct kn_store *store)
{
    struct kni_lmdb_store *s = self(store);
    kni_lmdb_close(s->db);
    pthread_mutex_destroy(&s->noted_lock);
    kni_free(s->noted);
    kni_free(s);
}

static enum kn_status store_open(struct kn_store **out, const struct kn_store_opts *opts, const char *rest, struct kn_err *err)
{
    enum kn_status st = KN_E_NOMEM;
    uint64_t map = opts->max_bytes + opts->max_bytes / 2 + (64ull << 20);
    if (map < opts->max_bytes)
        map = UINT64_MAX / 2;
    struct kni_lmdb_store *s = kni_calloc(KNI_ALLOC_TAG_STORE, sizeof *s, 0);
    if (!s)
        return kni_err_set(err, st, "store lmdb:%.200s: out of memory", rest);
    pthread_mutex_init(&s->noted_lock, NULL);
    s->noted = kni_calloc(KNI_ALLOC_TAG_STORE, sizeof *s->noted * KNI_LMDB_NOTED, 0);
    st = s->noted ? kni_lmdb_open(&s->db, rest, opts->read_only, map, err) : kni_err_set(err, st, "store lmdb:%.200s: out of memory", rest);
    s->base.read_only = opts->read_only;
    if (st && s->noted && !opts->read_only && opts->may_read_only && kni_lmdb_is_denied(rest) && !kni_lmdb_open(&s->db, rest, true, map, NULL)) {
        s->base.read_only = true;
        st = KN_OK;
        if (err)
            *err = (struct kn_err){0};
        kni_log(KN_LOG_LEVEL_WARN, "store", "lmdb:%s: this process may not write it, so prefixes are fetched from it and none are published; "
                "--store-read-only (store_read_only) says that this is meant", rest);
    }
    if (st)
        store_close(&s->base);
    else
        *out = &s->base;
    return st;
}

const struct kni_store_ops kni_store_lmdb_ops = {
    .scheme = "lmdb:",
    .form = "lmdb:PATH",
    .open = store_open,
    .close = store_close,
    .lookup = store_lookup,
    .get = store_get,
    .put = store_put,
    .drop = store_drop,
    .flush = store_flush,
    .list = kni_lmdb_list,
    .stat = kni_lmdb_stat,
    .gc = kni_lmdb_gc,
    .rm = kni_lmdb_rm,
};
