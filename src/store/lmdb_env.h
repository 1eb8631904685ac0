/* SPDX-License-Identifier: Apache-2.0 */
/*
 * One LMDB environment a process and folder, shared by all handles on it: LMDB forbids opening the same file twice in a
 * process, because closing either would drop the file locks of both.
 *
 * Threads: any. Each transaction belongs to the thread that began it; a thread holds one at a time.
 */
#ifndef KNI_STORE_LMDB_ENV_H
#define KNI_STORE_LMDB_ENV_H

#include <errno.h>
#include <lmdb.h>
#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

#include "base/status.h"

#define KNI_LMDB_OVERTAKEN EAGAIN
#define KNI_LMDB_TRIES 8

struct kni_lmdb {
    MDB_env *env;
    MDB_dbi meta, chunk, manifest; /* "kinema", "chunk", "manifest" */
    pthread_rwlock_t map_lock;     /* shared: a transaction is open; exclusive: env, dbis, map_bytes may change */
    uint64_t map_bytes;
    bool read_only;
    bool unlocked; /* read-only, without a slot in lock.mdb: what was read is looked at again at the end (lmdb_env.c) */
    bool empty; /* read-only, and its creation was cut short or is under way: there are no tables yet */
    /* guarded by the registry's lock */
    char *path;
    dev_t dev;
    ino_t ino;
    pid_t pid; /* an environment does not survive a fork */
    unsigned refs;
    struct kni_lmdb *next;
};

/* Opens or shares. The folder is created when missing (its parent is not). map_bytes is the least map wanted. */
enum kn_status kni_lmdb_open(struct kni_lmdb **out, const char *path, bool read_only, uint64_t map_bytes, struct kn_err *err);
void kni_lmdb_close(struct kni_lmdb *db);
/* Whether this process may not write the store in a folder: its data.mdb, or lock.mdb, or the folder where one is missing. */
bool kni_lmdb_is_denied(const char *folder);

/* Begins a transaction, following a map that another process has grown, clearing slots of dead readers, and reopening
 * after a failed write. Returns an LMDB code; on 0, kni_lmdb_end must follow on the same thread. MDB_NOTFOUND: a store
 * without tables, read-only, which is to say an empty one. */
int kni_lmdb_begin(struct kni_lmdb *db, bool write, MDB_txn **txn);
/* Commits (write) or ends the transaction. rc: what the caller has met so far; not 0 aborts. Returns the first LMDB code.
 * KNI_LMDB_OVERTAKEN, of a reader without a slot: what was read may be wrong; forget it and begin anew, KNI_LMDB_TRIES times at most. */
int kni_lmdb_end(struct kni_lmdb *db, MDB_txn *txn, bool write, int rc);
uint64_t kni_lmdb_map_bytes(struct kni_lmdb *db);
/* Makes the map at least bytes large. No transaction of this thread may be open. */
int kni_lmdb_grow(struct kni_lmdb *db, uint64_t bytes);
/* Frees the slots of readers whose process has died; they would pin old pages for ever. */
void kni_lmdb_clear_readers(struct kni_lmdb *db);

/* Whether writing n_bytes more would meet the end of the disk or of the file size that this process may write. LMDB calls
 * a short write EIO, and a short write is how a full disk shows first. */
bool kni_lmdb_is_full(struct kni_lmdb *db, uint64_t n_bytes);

/* LMDB's or the system's code as a status; kni_lmdb_err also writes a sentence: what, where, why, what to do. */
enum kn_status kni_lmdb_status(int rc);
enum kn_status kni_lmdb_err(struct kn_err *err, const struct kni_lmdb *db, const char *what, int rc);

#endif
