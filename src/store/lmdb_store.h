/* SPDX-License-Identifier: Apache-2.0 */
/* What lmdb_store.c and lmdb_gc.c share: the handle, the totals, and steps inside a write transaction. */
#ifndef KNI_STORE_LMDB_STORE_H
#define KNI_STORE_LMDB_STORE_H

#include "store/lmdb_env.h"
#include "store/store.h"

#define KNI_LMDB_NOTED 256u /* uses remembered until the next write; more are forgotten */

struct kni_lmdb_store {
    struct kn_store base;
    struct kni_lmdb *db;
    pthread_mutex_t noted_lock; /* guards noted and n_noted */
    struct { struct kni_store_key key; uint64_t used_s; } *noted;
    uint32_t n_noted;
};

/* Complete chunks and their bytes, kept in table "kinema" so that a put needs no scan. */
struct kni_lmdb_totals { uint64_t n_chunks, n_bytes; };
int kni_lmdb_totals_get(struct kni_lmdb *db, MDB_txn *txn, struct kni_lmdb_totals *out);
int kni_lmdb_totals_set(struct kni_lmdb *db, MDB_txn *txn, const struct kni_lmdb_totals *totals);

/* Removes manifest entry, then data of key, inside txn; absent is fine. *bytes: what the data held; *removed: whether any was there. */
int kni_lmdb_remove(struct kni_lmdb *db, MDB_txn *txn, MDB_val key, struct kni_lmdb_totals *totals, uint64_t *bytes, bool *removed);
/* Removes least recently used chunks (of equal age the later positions first: a chunk is useless without those before
 * it) until at most keep_bytes remain. skip, or NULL, stays. Counts are added to. */
int kni_lmdb_evict(struct kni_lmdb_store *s, MDB_txn *txn, struct kni_lmdb_totals *totals, uint64_t keep_bytes, const char *skip, uint64_t *n_removed,
                   uint64_t *bytes_removed);
/* The bytes that eviction leaves: 1/16 below the limit, so that a full store does not scan at each put. */
uint64_t kni_lmdb_keep_bytes(uint64_t max_bytes, uint64_t incoming);

enum kn_status kni_lmdb_list(struct kn_store *store, const char *prefix, struct kni_store_list *out);
enum kn_status kni_lmdb_stat(struct kn_store *store, struct kn_store_stat *out);
enum kn_status kni_lmdb_gc(struct kn_store *store, uint64_t *n_removed, uint64_t *bytes_removed);
enum kn_status kni_lmdb_rm(struct kn_store *store, const char *prefix, uint64_t *n_removed);

#endif
