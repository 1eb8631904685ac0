/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The housekeeping of an LMDB store: listing, counting, eviction, collection, removal.
 *
 * Whatever removes much does so in batches of some hundred keys a transaction, so that a publisher in another process
 * never waits long for the one writer's place. Victims are chosen from a snapshot and looked at again inside the write.
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "store/lmdb_store.h"

#define BATCH_KEYS 256u

static struct kni_lmdb_store *self(struct kn_store *store)
{
    return (struct kni_lmdb_store *)(void *)store;
}

/* Walks a table. fn returns 0 to go on, or an LMDB code. */
typedef int (*walk_fn)(void *user, const MDB_val *key, const MDB_val *val);

static int walk(MDB_txn *txn, MDB_dbi dbi, walk_fn fn, void *user)
{
    MDB_cursor *cursor;
    MDB_val key, val;
    int rc = mdb_cursor_open(txn, dbi, &cursor);
    if (rc)
        return rc;
    for (rc = mdb_cursor_get(cursor, &key, &val, MDB_FIRST); !rc; rc = mdb_cursor_get(cursor, &key, &val, MDB_NEXT))
        if ((rc = fn(user, &key, &val)))
            break;
    mdb_cursor_close(cursor);
    return rc == MDB_NOTFOUND ? 0 : rc;
}

struct collect { struct kni_store_list *list; struct kni_store_row **link; const char *prefix; size_t prefix_bytes; };

static int collect_row(void *user, const MDB_val *key, const MDB_val *val)
{
    struct collect *c = user;
    if (key->mv_size < c->prefix_bytes || memcmp(key->mv_data, c->prefix, c->prefix_bytes))
        return 0;
    struct kni_store_row *row = kni_arena_alloc(&c->list->arena, sizeof *row, 0);
    const char *text = kni_arena_strndup(&c->list->arena, key->mv_data, key->mv_size);
    if (!row || !text)
        return ENOMEM;
    row->key = text;
    row->status = kni_store_entry_decode(&row->entry, val->mv_data, val->mv_size);
    *c->link = row;
    c->link = &row->next;
    c->list->n_rows++;
    return 0;
}

static int list_in(struct kni_lmdb *db, MDB_txn *txn, const char *prefix, struct kni_store_list *out)
{
    struct collect c = {.list = out, .link = &out->first, .prefix = prefix, .prefix_bytes = strlen(prefix)};
    return walk(txn, db->manifest, collect_row, &c);
}

static void list_init(struct kni_store_list *list)
{
    *list = (struct kni_store_list){0};
    kni_arena_init(&list->arena, KNI_ALLOC_TAG_STORE, 0);
}

enum kn_status kni_lmdb_list(struct kn_store *store, const char *prefix, struct kni_store_list *out)
{
    struct kni_lmdb_store *s = self(store);
    MDB_txn *txn;
    list_init(out);
    for (int tries = 0;; tries++) {
        int rc = kni_lmdb_begin(s->db, false, &txn);
        if (rc) /* MDB_NOTFOUND: no tables yet, an empty store */
            return rc == MDB_NOTFOUND ? KN_OK : kni_lmdb_status(rc);
        rc = list_in(s->db, txn, prefix, out);
        if (!kni_lmdb_end(s->db, txn, false, 0))
            return kni_lmdb_status(rc);
        if (tries + 1 == KNI_LMDB_TRIES)
            return kni_lmdb_status(KNI_LMDB_OVERTAKEN);
        kni_store_list_fini(out);
        list_init(out);
    }
}

uint64_t kni_lmdb_keep_bytes(uint64_t max_bytes, uint64_t incoming)
{
    uint64_t keep = max_bytes - max_bytes / 16;
    return keep > incoming ? keep - incoming : 0;
}

static int by_age(const void *a, const void *b)
{
    const struct kni_store_row *x = *(struct kni_store_row *const *)a, *y = *(struct kni_store_row *const *)b;
    uint64_t ux = x->status ? 0 : x->entry.last_used_s, uy = y->status ? 0 : y->entry.last_used_s; /* unreadable ones first */
    if (ux != uy)
        return ux < uy ? -1 : 1;
    if (x->entry.first_token != y->entry.first_token)
        return x->entry.first_token > y->entry.first_token ? -1 : 1;
    return strcmp(x->key, y->key);
}

static MDB_val key_of(const struct kni_store_row *row)
{
    union { const char *from; char *to; } u = {row->key};
    return (MDB_val){strlen(row->key), u.to};
}

int kni_lmdb_evict(struct kni_lmdb_store *s, MDB_txn *txn, struct kni_lmdb_totals *totals, uint64_t keep_bytes, const char *skip, uint64_t *n_removed,
                   uint64_t *bytes_removed)
{
    struct kni_store_list list;
    struct kni_store_row **order = NULL;
    list_init(&list);
    int rc = list_in(s->db, txn, "", &list);
    if (!rc && list.n_rows && !(order = kni_alloc(KNI_ALLOC_TAG_STORE, list.n_rows * sizeof(struct kni_store_row *), 0)))
        rc = ENOMEM;
    if (!rc && order) {
        size_t n = 0;
        struct kni_lmdb_totals true_totals = {0};
        for (struct kni_store_row *r = list.first; r; r = r->next) {
            order[n++] = r;
            true_totals.n_chunks++;
            true_totals.n_bytes += r->status ? 0 : r->entry.n_bytes;
        }
        *totals = true_totals; /* the scan is at hand: whatever the record said, it is right again */
        qsort(order, n, sizeof(struct kni_store_row *), by_age);
        for (size_t i = 0; i < n && !rc && totals->n_bytes > keep_bytes; i++) {
            uint64_t bytes;
            bool removed;
            if (skip && !strcmp(order[i]->key, skip))
                continue;
            rc = kni_lmdb_remove(s->db, txn, key_of(order[i]), totals, &bytes, &removed);
            *n_removed += removed;
            *bytes_removed += bytes;
        }
    }
    kni_free(order);
    kni_store_list_fini(&list);
    return rc;
}

/* Removes the rows from *row on, at most BATCH_KEYS, in one transaction. if_expired: only those that still are. */
static int remove_batch(struct kni_lmdb_store *s, struct kni_store_row **row, bool if_expired, uint64_t *n_removed, uint64_t *bytes_removed)
{
    struct kni_lmdb_totals totals;
    MDB_txn *txn;
    uint64_t n = 0, n_bytes = 0, now = s->base.wall_s();
    int rc = kni_lmdb_begin(s->db, true, &txn);
    if (rc)
        return rc;
    rc = kni_lmdb_totals_get(s->db, txn, &totals);
    for (uint32_t i = 0; i < BATCH_KEYS && *row && !rc; i++, *row = (*row)->next) {
        MDB_val key = key_of(*row), val;
        struct kni_store_entry e;
        uint64_t bytes;
        bool removed;
        if (if_expired) {
            bool data = !mdb_get(txn, s->db->chunk, &key, &val), listed = !mdb_get(txn, s->db->manifest, &key, &val);
            if (data && listed && !kni_store_entry_decode(&e, val.mv_data, val.mv_size) && !kni_store_entry_is_expired(&e, s->base.ttl_s, now))
                continue; /* renewed since the snapshot */
        }
        rc = kni_lmdb_remove(s->db, txn, key, &totals, &bytes, &removed);
        n += removed;
        n_bytes += bytes;
    }
    if (!rc)
        rc = kni_lmdb_totals_set(s->db, txn, &totals);
    rc = kni_lmdb_end(s->db, txn, true, rc);
    if (!rc) {
        *n_removed += n;
        *bytes_removed += n_bytes;
    }
    return rc;
}

/* ---- data without a manifest entry, and the reverse: two cursors over sorted keys */

struct orphans { uint64_t n, bytes; struct kni_store_list *list; struct kni_store_row **link; };

static int add_row(struct orphans *o, const MDB_val *key)
{
    if (!o->list)
        return 0;
    struct kni_store_row *row = kni_arena_alloc(&o->list->arena, sizeof *row, 0);
    const char *text = kni_arena_strndup(&o->list->arena, key->mv_data, key->mv_size);
    if (!row || !text)
        return ENOMEM;
    row->key = text;
    *o->link = row;
    o->link = &row->next;
    o->list->n_rows++;
    return 0;
}

static int find_orphans(struct kni_lmdb *db, MDB_txn *txn, struct orphans *o)
{
    MDB_cursor *data = NULL, *listed = NULL;
    MDB_val dk, dv, mk, mv;
    int rc = mdb_cursor_open(txn, db->chunk, &data);
    if (!rc)
        rc = mdb_cursor_open(txn, db->manifest, &listed);
    if (rc)
        goto done;
    int d = mdb_cursor_get(data, &dk, &dv, MDB_FIRST), m = mdb_cursor_get(listed, &mk, &mv, MDB_FIRST);
    while (!rc && (!d || !m) && (!d || d == MDB_NOTFOUND) && (!m || m == MDB_NOTFOUND)) {
        int c = d ? 1 : m ? -1 : mdb_cmp(txn, db->chunk, &dk, &mk);
        if (c < 0) {
            o->n++;
            o->bytes += dv.mv_size;
            rc = add_row(o, &dk);
        } else if (c > 0) {
            rc = add_row(o, &mk); /* an entry without data: collected too, but not counted as data */
        }
        if (c <= 0)
            d = mdb_cursor_get(data, &dk, &dv, MDB_NEXT);
        if (c >= 0)
            m = mdb_cursor_get(listed, &mk, &mv, MDB_NEXT);
    }
    if (!rc && d && d != MDB_NOTFOUND)
        rc = d;
    if (!rc && m && m != MDB_NOTFOUND)
        rc = m;
done:
    if (listed)
        mdb_cursor_close(listed);
    if (data)
        mdb_cursor_close(data);
    return rc;
}

struct tally { struct kn_store_stat *out; uint64_t ttl_s, now_s; };

static int count_row(void *user, const MDB_val *key, const MDB_val *val)
{
    struct tally *t = user;
    struct kni_store_entry e;
    (void)key;
    if (kni_store_entry_decode(&e, val->mv_data, val->mv_size))
        return 0;
    t->out->n_chunks++;
    t->out->n_bytes += e.n_bytes;
    t->out->n_expired += kni_store_entry_is_expired(&e, t->ttl_s, t->now_s);
    return 0;
}

static int count_free_pages(void *user, const MDB_val *key, const MDB_val *val)
{
    size_t n = 0;
    (void)key;
    if (val->mv_size >= sizeof n)
        memcpy(&n, val->mv_data, sizeof n); /* a list of page numbers, its length first */
    *(uint64_t *)user += n;
    return 0;
}

/* One try of a stat: an LMDB code. */
static int stat_once(struct kn_store *store, struct kn_store_stat *out)
{
    struct kni_lmdb_store *s = self(store);
    struct tally t = {.out = out, .ttl_s = store->ttl_s, .now_s = store->wall_s()};
    struct orphans o = {0};
    MDB_envinfo info;
    MDB_stat st;
    MDB_txn *txn;
    uint64_t n_free = 0;
    int rc = kni_lmdb_begin(s->db, false, &txn);
    if (rc)
        return rc == MDB_NOTFOUND ? 0 : rc;
    if (!(rc = walk(txn, s->db->manifest, count_row, &t)) && !(rc = find_orphans(s->db, txn, &o)) && !(rc = walk(txn, 0, count_free_pages, &n_free)) &&
        !(rc = mdb_env_info(s->db->env, &info)) && !(rc = mdb_env_stat(s->db->env, &st))) {
        out->n_orphans = o.n;
        out->orphan_bytes = o.bytes;
        out->map_bytes = info.me_mapsize;
        uint64_t n_pages = (uint64_t)info.me_last_pgno + 1;
        out->used_bytes = (n_pages > n_free ? n_pages - n_free : 0) * st.ms_psize;
    }
    int end = kni_lmdb_end(s->db, txn, false, 0);
    return end ? end : rc;
}

enum kn_status kni_lmdb_stat(struct kn_store *store, struct kn_store_stat *out)
{
    const struct kn_store_stat before = *out;
    int rc, tries = 0;
    do {
        *out = before;
        rc = stat_once(store, out);
    } while (rc == KNI_LMDB_OVERTAKEN && ++tries < KNI_LMDB_TRIES);
    return kni_lmdb_status(rc);
}

/* Rows of what gc removes without asking for space: orphans, entries without data or unreadable, expired chunks. */
static int find_garbage(struct kni_lmdb_store *s, struct kni_store_list *list)
{
    struct kni_store_list all;
    struct orphans o = {.list = list, .link = &list->first};
    MDB_txn *txn;
    uint64_t now = s->base.wall_s();
    list_init(&all);
    int rc = kni_lmdb_begin(s->db, false, &txn);
    if (rc)
        return rc;
    if (!(rc = find_orphans(s->db, txn, &o)))
        rc = list_in(s->db, txn, "", &all);
    kni_lmdb_end(s->db, txn, false, 0);
    for (const struct kni_store_row *r = all.first; r && !rc; r = r->next)
        if (r->status || kni_store_entry_is_expired(&r->entry, s->base.ttl_s, now)) {
            union { const char *from; char *to; } u = {r->key};
            rc = add_row(&o, &(MDB_val){strlen(r->key), u.to});
        }
    kni_store_list_fini(&all);
    return rc;
}

enum kn_status kni_lmdb_gc(struct kn_store *store, uint64_t *n_removed, uint64_t *bytes_removed)
{
    struct kni_lmdb_store *s = self(store);
    struct kni_lmdb_totals totals;
    struct kni_store_list list;
    MDB_txn *txn;
    kni_lmdb_clear_readers(s->db);
    list_init(&list);
    int rc = find_garbage(s, &list);
    for (struct kni_store_row *row = list.first; row && !rc;)
        rc = remove_batch(s, &row, true, n_removed, bytes_removed);
    kni_store_list_fini(&list);
    if (rc || (rc = kni_lmdb_begin(s->db, true, &txn)))
        return kni_lmdb_status(rc);
    uint64_t n = 0, n_bytes = 0;
    if (!(rc = kni_lmdb_totals_get(s->db, txn, &totals)) && !(rc = kni_lmdb_evict(s, txn, &totals, store->max_bytes, NULL, &n, &n_bytes)))
        rc = kni_lmdb_totals_set(s->db, txn, &totals);
    rc = kni_lmdb_end(s->db, txn, true, rc);
    *n_removed += rc ? 0 : n;
    *bytes_removed += rc ? 0 : n_bytes;
    return kni_lmdb_status(rc);
}

enum kn_status kni_lmdb_rm(struct kn_store *store, const char *prefix, uint64_t *n_removed)
{
    struct kni_lmdb_store *s = self(store);
    struct kni_store_list list;
    uint64_t bytes = 0;
    enum kn_status st = kni_lmdb_list(store, prefix, &list);
    int rc = 0;
    for (struct kni_store_row *row = list.first; row && !st && !rc;)
        rc = remove_batch(s, &row, false, n_removed, &bytes);
    kni_store_list_fini(&list);
    return st ? st : kni_lmdb_status(rc);
}
