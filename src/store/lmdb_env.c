/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The LMDB environment under a store.
 *
 * Map. LMDB maps the whole file at a fixed size; the map is address space, not disk. It begins at 1.5 times the store's
 * limit (values are megabytes and need contiguous pages, so free space is fragmented) and grows when a write finds no
 * room. It may only change while this process has no transaction open: map_lock is held shared from begin to end of
 * each, exclusively to change it. That is the one lock here that is held over I/O, and it is LMDB's own condition.
 *
 * Sync. MDB_NOMETASYNC: data pages are flushed at each commit, the meta page with the next one. A killed process loses
 * nothing, a power cut at most the last commit, and neither breaks the tree. MDB_NOSYNC would.
 *
 * A cut file. Touching a mapped page beyond the end of the file is SIGBUS. LMDB itself may leave a file short of its last
 * page (pages freed in the transaction that made them are never written), so shortness is not proof of damage: the file
 * is extended, which never overwrites, and a page that was lost reads as zeros, which LMDB refuses and our checksum finds.
 *
 * Reading without a slot. A reader registers in lock.mdb, so that no writer reuses the pages of its snapshot. Who may not write
 * that file (a read-only mount, another user's store) reads with MDB_NOLOCK, and looks afterwards whether a writer can have
 * come so far. Transaction W takes pages that were freed before W - 1 only. So what snapshot T sees is first overwritten by
 * transaction T + 3, which cannot have begun while T + 1 is the last one in the file:
 *
 *     begin: T = last committed     read, copy     end: last committed <= T + 1 ? good : KNI_LMDB_OVERTAKEN, read again
 *
 * What that cannot mend: a tree page that is overwritten under LMDB's own feet, which takes two commits within the microseconds
 * of a descent. doc/format-store.md says what to do about it.
 */
#include "store/lmdb_env.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include "base/alloc.h"
#include "base/log.h"

#define FORMAT_VERSION 1u
#define MAX_READERS 510u /* 64 bytes each in lock.mdb */
#define MIN_MAP_BYTES (64ull << 20)

static pthread_mutex_t registry_lock = PTHREAD_MUTEX_INITIALIZER; /* guards registry and the fields named in the header */
static struct kni_lmdb *registry;

enum kn_status kni_lmdb_status(int rc)
{
    switch (rc) {
    case 0: return KN_OK;
    case MDB_NOTFOUND: return KN_E_NOT_FOUND;
    case ENOMEM: return KN_E_NOMEM;
    case ENOSPC:
    case EDQUOT:
    case EFBIG:
    case MDB_MAP_FULL:
    case MDB_TXN_FULL: return KN_E_FULL;
    case MDB_VERSION_MISMATCH: return KN_E_MISMATCH;
    case MDB_INVALID:
    case MDB_CORRUPTED:
    case MDB_PAGE_NOTFOUND:
    case MDB_INCOMPATIBLE:
    case MDB_BAD_VALSIZE: return KN_E_FORMAT;
    default: return KN_E_IO;
    }
}

static const char *advice(int rc)
{
    switch (rc) {
    case EACCES:
    case EPERM: return "; give this user permission to write the folder and its files, or only fetch from it (--store-read-only)";
    case EROFS: return "; only fetch from it (--store-read-only), or name a folder that can be written";
    case ENOSPC:
    case EDQUOT:
    case EFBIG: return "; free disk space or lower the store's limit";
    case MDB_INVALID:
    case MDB_CORRUPTED:
    case MDB_PAGE_NOTFOUND: return "; data.mdb is damaged or not an LMDB file: remove the folder or name another, its chunks will be made anew";
    case MDB_VERSION_MISMATCH: return "; data.mdb was written by another LMDB format: name another folder";
    case KNI_LMDB_OVERTAKEN: return "; let this user write its lock.mdb, where readers register";
    case ESTALE: return "; its files were removed or replaced while it was open: open it again";
    case MDB_READERS_FULL: return "; too many processes read this store at once";
    default: return "";
    }
}

enum kn_status kni_lmdb_err(struct kn_err *err, const struct kni_lmdb *db, const char *what, int rc)
{
    bool denied = (rc == EACCES || rc == EPERM) && db->read_only;
    return kni_err_set(err, kni_lmdb_status(rc), "store lmdb:%.200s: %s: %s%s", db->path, what,
                       rc == KNI_LMDB_OVERTAKEN ? "it is written faster than it can be read without a place among its readers" : mdb_strerror(rc),
                       denied ? "; give this user permission to read the folder and its data.mdb" : advice(rc));
}

/* An existing folder without data.mdb must be empty: a mistyped path must not turn someone's folder into a store. */
static enum kn_status check_folder(const char *path, struct kn_err *err)
{
    bool has_data = false, has_other = false;
    DIR *dir = opendir(path);
    if (!dir)
        return kni_err_set(err, KN_E_IO, "store lmdb:%.200s: cannot read the folder: %s", path, strerror(errno));
    for (const struct dirent *e; (e = readdir(dir));) {
        if (!strcmp(e->d_name, "data.mdb"))
            has_data = true;
        else if (strcmp(e->d_name, ".") && strcmp(e->d_name, "..") && strcmp(e->d_name, "lock.mdb") && strcmp(e->d_name, "lost+found"))
            has_other = true;
    }
    closedir(dir);
    if (has_other && !has_data)
        return kni_err_set(err, KN_E_MISMATCH, "store lmdb:%.200s: the folder holds other files and no store; name an empty or a new folder", path);
    return KN_OK;
}

static enum kn_status prepare_folder(const char *path, bool read_only, struct stat *st, struct kn_err *err)
{
    char data_path[PATH_MAX];
    struct stat data;
    if (!*path || (size_t)snprintf(data_path, sizeof data_path, "%s/data.mdb", path) >= sizeof data_path)
        return kni_err_set(err, KN_E_ARG, "store lmdb:%.200s: the path is %s", path, *path ? "too long" : "empty; name a folder after lmdb:");
    if (*path == '~') /* a home folder, to a shell; a folder of that name is never what is meant */
        return kni_err_set(err, KN_E_ARG, "store lmdb:%.200s: nothing has replaced the ~ by a home folder: write the path out (or ./~ for a folder of that name)", path);
    if (stat(path, st)) {
        if (errno != ENOENT)
            return kni_err_set(err, KN_E_IO, "store lmdb:%.200s: %s", path, strerror(errno));
        if (read_only)
            return kni_err_set(err, KN_E_NOT_FOUND, "store lmdb:%.200s: there is no such folder; check the path", path);
        if (mkdir(path, 0777) && errno != EEXIST) {
            int e = errno;
            return kni_err_set(err, KN_E_IO, "store lmdb:%.200s: cannot create the folder: %s%s", path, strerror(e),
                               e == ENOENT ? "; create the folder that is to hold it first" : advice(e));
        }
        if (stat(path, st))
            return kni_err_set(err, KN_E_IO, "store lmdb:%.200s: %s", path, strerror(errno));
    }
    if (!S_ISDIR(st->st_mode))
        return kni_err_set(err, KN_E_IO, "store lmdb:%.200s: this is a file; a store is a folder", path);
    if (read_only && stat(data_path, &data) && errno == ENOENT)
        return kni_err_set(err, KN_E_NOT_FOUND, "store lmdb:%.200s: the folder holds no store; check the path", path);
    return check_folder(path, err);
}

/* Extends a file that ends before its last page (see above). 0, or MDB_CORRUPTED when that cannot be done. */
static int mend_length(struct kni_lmdb *db)
{
    MDB_envinfo info;
    MDB_stat stat_;
    struct stat st;
    int fd;
    if (mdb_env_info(db->env, &info) || mdb_env_stat(db->env, &stat_) || mdb_env_get_fd(db->env, &fd) || fstat(fd, &st))
        return 0;
    uint64_t end = ((uint64_t)info.me_last_pgno + 1) * stat_.ms_psize;
    if ((uint64_t)st.st_size >= end)
        return 0;
    char path[PATH_MAX];
    if (db->read_only) { /* a killed writer may have left it so, and looking must work: no byte that is there changes */
        snprintf(path, sizeof path, "%s/data.mdb", db->path);
        fd = open(path, O_WRONLY | O_CLOEXEC);
    }
    int rc = fd < 0 ? errno : posix_fallocate(fd, (off_t)(end - 1), 1); /* another process may be writing there: this overwrites nothing */
    if (db->read_only && fd >= 0)
        close(fd);
    return rc ? MDB_CORRUPTED : 0;
}

static int create_tables(struct kni_lmdb *db, MDB_val *key)
{
    uint8_t le[4] = {FORMAT_VERSION, 0, 0, 0};
    MDB_val val = {sizeof le, le};
    MDB_txn *txn;
    int rc = mdb_txn_begin(db->env, NULL, 0, &txn);
    if (rc)
        return rc;
    if ((rc = mdb_dbi_open(txn, "kinema", MDB_CREATE, &db->meta)) || (rc = mdb_dbi_open(txn, "chunk", MDB_CREATE, &db->chunk)) ||
        (rc = mdb_dbi_open(txn, "manifest", MDB_CREATE, &db->manifest)) || (rc = mdb_put(txn, db->meta, key, &val, MDB_NOOVERWRITE))) {
        mdb_txn_abort(txn);
        return rc == MDB_KEYEXIST ? EAGAIN : rc; /* another process was first: look again */
    }
    return mdb_txn_commit(txn);
}

/* Whether a writer may have reused pages that a reader without a slot has seen; see above. */
static bool is_overtaken(const struct kni_lmdb *db, MDB_txn *txn)
{
    MDB_envinfo info;
    return !mdb_env_info(db->env, &info) && info.me_last_txnid > mdb_txn_id(txn) + 1;
}

/* Finds or makes the three tables. *version: the store's, 0 when there is none. MDB_NOTFOUND: not our file. */
static int open_tables(struct kni_lmdb *db, uint32_t *version)
{
    static char name[] = "format";
    MDB_val key = {sizeof name - 1, name}, val;
    MDB_txn *txn;
    MDB_stat st;
    MDB_dbi top;
    *version = 0;
    db->empty = false;
    int rc = mdb_txn_begin(db->env, NULL, MDB_RDONLY, &txn);
    if (rc)
        return rc;
    if (!(rc = mdb_dbi_open(txn, "kinema", 0, &db->meta)) && !(rc = mdb_get(txn, db->meta, &key, &val))) {
        const uint8_t *p = val.mv_data;
        *version = val.mv_size == 4 ? (uint32_t)p[0] | (uint32_t)p[1] << 8 | (uint32_t)p[2] << 16 | (uint32_t)p[3] << 24 : UINT32_MAX;
        if (*version == FORMAT_VERSION && !(rc = mdb_dbi_open(txn, "chunk", 0, &db->chunk)))
            rc = mdb_dbi_open(txn, "manifest", 0, &db->manifest);
        if (db->unlocked && is_overtaken(db, txn)) {
            mdb_txn_abort(txn);
            *version = 0;
            return KNI_LMDB_OVERTAKEN;
        }
        int rc2 = mdb_txn_commit(txn); /* commit, so that the table handles live on */
        return rc ? rc : rc2;
    }
    bool overtaken = db->unlocked && is_overtaken(db, txn);
    bool fresh = rc == MDB_NOTFOUND && !mdb_dbi_open(txn, NULL, 0, &top) && !mdb_stat(txn, top, &st) && !st.ms_entries;
    mdb_txn_abort(txn);
    if (overtaken)
        return KNI_LMDB_OVERTAKEN;
    if (!fresh)
        return rc;
    db->empty = db->read_only;
    if (db->empty)
        return 0;
    rc = create_tables(db, &key);
    *version = rc ? 0 : FORMAT_VERSION;
    return rc;
}

static bool is_denial(int rc)
{
    return rc == EACCES || rc == EPERM || rc == EROFS;
}

/* Whether this process may not write the file at path, or not make it in the folder where there is none. */
static bool is_denied(const char *folder, const char *name)
{
    char path[PATH_MAX];
    snprintf(path, sizeof path, "%s/%s", folder, name);
    if (!access(path, R_OK | W_OK))
        return false;
    return is_denial(errno) || (errno == ENOENT && access(folder, W_OK | X_OK) && is_denial(errno));
}

bool kni_lmdb_is_denied(const char *folder)
{
    return is_denied(folder, "data.mdb") || is_denied(folder, "lock.mdb");
}

/* Opens db->env from scratch; map_lock is held exclusively or db is not shared yet. what says which step failed. */
static int open_env(struct kni_lmdb *db, const char **what, uint32_t *version)
{
    unsigned flags = MDB_NOTLS | MDB_NOMETASYNC | (db->read_only ? MDB_RDONLY : 0);
    db->unlocked = db->read_only && is_denied(db->path, "lock.mdb");
    char path[PATH_MAX];
    struct stat st;
    int rc, dead;
    *version = 0;
    snprintf(path, sizeof path, "%s/data.mdb", db->path);
    db->empty = db->read_only && !stat(path, &st) && st.st_size == 0; /* LMDB would try to write its head */
    if (db->empty)
        return 0;
    for (;;) {
        *what = "cannot open";
        if ((rc = mdb_env_create(&db->env)))
            return rc;
        if (!(rc = mdb_env_set_maxdbs(db->env, 8)) && !(rc = mdb_env_set_maxreaders(db->env, MAX_READERS)) &&
            !(rc = mdb_env_set_mapsize(db->env, (size_t)db->map_bytes)) && !(rc = mdb_env_open(db->env, db->path, flags | (db->unlocked ? MDB_NOLOCK : 0), 0666)))
            break;
        mdb_env_close(db->env);
        db->env = NULL;
        if (rc == ENOMEM && db->map_bytes / 2 >= MIN_MAP_BYTES)
            db->map_bytes /= 2; /* address space is limited; a smaller map may do */
        else if (is_denial(rc) && db->read_only && !db->unlocked)
            db->unlocked = true; /* lock.mdb could not be opened for a reason that access() does not know */
        else
            return rc;
    }
    mdb_reader_check(db->env, &dead);
    *what = db->read_only ? "data.mdb is shorter than it says, and `kinema store gc` by somebody who may write it would mend that" : "data.mdb is cut short";
    if (!(rc = mend_length(db))) {
        *what = "cannot read its tables";
        for (int tries = 0; tries < 8; tries++)
            if ((rc = open_tables(db, version)) != EAGAIN)
                break;
    }
    if (rc) {
        mdb_env_close(db->env);
        db->env = NULL;
    }
    return rc;
}

static void free_db(struct kni_lmdb *db)
{
    if (!db)
        return;
    if (db->env)
        mdb_env_close(db->env);
    pthread_rwlock_destroy(&db->map_lock);
    kni_free(db->path);
    kni_free(db);
}

static enum kn_status open_new(struct kni_lmdb **out, const char *path, bool read_only, uint64_t map_bytes, const struct stat *st, struct kn_err *err)
{
    enum kn_status s = KN_E_NOMEM;
    const char *what;
    uint32_t version;
    struct kni_lmdb *db = kni_calloc(KNI_ALLOC_TAG_STORE, sizeof *db, 0);
    if (!db)
        return kni_err_set(err, KN_E_NOMEM, "store lmdb:%.200s: out of memory", path);
    *db = (struct kni_lmdb){.map_bytes = map_bytes, .read_only = read_only, .dev = st->st_dev, .ino = st->st_ino, .pid = getpid(), .refs = 1};
    pthread_rwlockattr_t attr;
    pthread_rwlockattr_init(&attr);
    pthread_rwlockattr_setkind_np(&attr, PTHREAD_RWLOCK_PREFER_WRITER_NONRECURSIVE_NP);
    pthread_rwlock_init(&db->map_lock, &attr);
    pthread_rwlockattr_destroy(&attr);
    db->path = kni_strdup(KNI_ALLOC_TAG_STORE, path);
    if (!db->path) {
        kni_err_set(err, s, "store lmdb:%.200s: out of memory", path);
        goto done;
    }
    int rc = open_env(db, &what, &version);
    if (version && version != FORMAT_VERSION)
        s = kni_err_set(err, KN_E_MISMATCH, "store lmdb:%.200s: its format is version %u, this build reads version %u; name another folder or remove this one", path,
                        version, FORMAT_VERSION);
    else if (rc == MDB_NOTFOUND)
        s = kni_err_set(err, KN_E_MISMATCH, "store lmdb:%.200s: data.mdb is an LMDB file, but not a Kinema store; name another folder", path);
    else
        s = rc ? kni_lmdb_err(err, db, what, rc) : KN_OK;
    if (!s)
        *out = db, db = NULL;
done:
    free_db(db);
    return s;
}

/* True when the file that is open has no name any more: what is written to it is lost, and a store under the same path is
 * another one. map_lock is held. */
static bool is_gone(const struct kni_lmdb *db)
{
    struct stat st;
    int fd;
    return db->env && !mdb_env_get_fd(db->env, &fd) && !fstat(fd, &st) && st.st_nlink == 0;
}

static bool is_same_store(struct kni_lmdb *db, const struct stat *folder)
{
    if (db->dev != folder->st_dev || db->ino != folder->st_ino || db->pid != getpid())
        return false;
    pthread_rwlock_rdlock(&db->map_lock);
    bool gone = is_gone(db); /* then the number belongs to a new folder */
    pthread_rwlock_unlock(&db->map_lock);
    return !gone;
}

/* A second handle of this process: it may want to write where the first only reads, or a larger map. */
static enum kn_status share(struct kni_lmdb *db, bool read_only, uint64_t map_bytes, struct kn_err *err)
{
    const char *what = "cannot open again for writing";
    uint32_t version;
    int rc = 0;
    if (db->read_only && !read_only) {
        pthread_rwlock_wrlock(&db->map_lock);
        if (db->env)
            mdb_env_close(db->env);
        db->env = NULL;
        db->read_only = false;
        if ((rc = open_env(db, &what, &version))) { /* leave the first handle as it was */
            uint32_t unused;
            const char *unused_what;
            db->read_only = true;
            (void)open_env(db, &unused_what, &unused);
        }
        pthread_rwlock_unlock(&db->map_lock);
    }
    if (!rc && map_bytes > kni_lmdb_map_bytes(db) && (rc = kni_lmdb_grow(db, map_bytes)))
        what = "cannot grow its map";
    if (rc)
        return kni_lmdb_err(err, db, what, rc);
    db->refs++;
    return KN_OK;
}

enum kn_status kni_lmdb_open(struct kni_lmdb **out, const char *path, bool read_only, uint64_t map_bytes, struct kn_err *err)
{
    struct stat st;
    *out = NULL;
    if (map_bytes < MIN_MAP_BYTES)
        map_bytes = MIN_MAP_BYTES;
    if (map_bytes > (1ull << 46))
        map_bytes = 1ull << 46; /* more than x86-64 can map anyway */
    map_bytes = (map_bytes + 65535) & ~65535ull;
    enum kn_status s = prepare_folder(path, read_only, &st, err);
    if (s)
        return s;
    pthread_mutex_lock(&registry_lock);
    for (struct kni_lmdb *db = registry; db; db = db->next)
        if (is_same_store(db, &st)) {
            s = share(db, read_only, map_bytes, err);
            *out = s ? NULL : db;
            goto done;
        }
    s = open_new(out, path, read_only, map_bytes, &st, err);
    if (!s) {
        (*out)->next = registry;
        registry = *out;
    }
done:
    pthread_mutex_unlock(&registry_lock);
    return s;
}

void kni_lmdb_close(struct kni_lmdb *db)
{
    if (!db)
        return;
    pthread_mutex_lock(&registry_lock);
    if (--db->refs == 0) {
        struct kni_lmdb **link = &registry;
        while (*link != db)
            link = &(*link)->next;
        *link = db->next;
        free_db(db);
    }
    pthread_mutex_unlock(&registry_lock);
}

uint64_t kni_lmdb_map_bytes(struct kni_lmdb *db)
{
    pthread_rwlock_rdlock(&db->map_lock);
    uint64_t bytes = db->map_bytes;
    pthread_rwlock_unlock(&db->map_lock);
    return bytes;
}

int kni_lmdb_grow(struct kni_lmdb *db, uint64_t bytes)
{
    int rc = 0;
    pthread_rwlock_wrlock(&db->map_lock);
    if (!db->env && !db->empty)
        rc = MDB_PANIC;
    else if (bytes > db->map_bytes && db->env && !(rc = mdb_env_set_mapsize(db->env, (size_t)bytes)))
        db->map_bytes = bytes;
    pthread_rwlock_unlock(&db->map_lock);
    return rc;
}

void kni_lmdb_clear_readers(struct kni_lmdb *db)
{
    int dead;
    pthread_rwlock_rdlock(&db->map_lock);
    if (db->env)
        mdb_reader_check(db->env, &dead);
    pthread_rwlock_unlock(&db->map_lock);
}

/* What can be mended between two tries to begin. */
static int recover(struct kni_lmdb *db, int rc)
{
    const char *what;
    uint32_t version;
    MDB_envinfo info;
    if (rc == MDB_READERS_FULL) {
        kni_lmdb_clear_readers(db);
        return 0;
    }
    bool reopen = rc == MDB_PANIC;
    pthread_rwlock_wrlock(&db->map_lock);
    if (rc == MDB_MAP_RESIZED && db->env) { /* another process has written beyond our map: take the size in the file */
        if (!(rc = mdb_env_set_mapsize(db->env, 0)) && !mdb_env_info(db->env, &info) && info.me_mapsize < db->map_bytes)
            rc = mdb_env_set_mapsize(db->env, (size_t)db->map_bytes);
        else if (!rc)
            db->map_bytes = info.me_mapsize;
    } else if (rc == MDB_NOTFOUND) { /* perhaps its creator has finished by now */
        rc = db->env ? open_tables(db, &version) : open_env(db, &what, &version);
        if (!rc && db->empty)
            rc = MDB_NOTFOUND;
    } else if (reopen) { /* a failed write of the meta page: only a fresh environment goes on */
        if (db->env)
            mdb_env_close(db->env);
        db->env = NULL;
        rc = open_env(db, &what, &version);
    }
    pthread_rwlock_unlock(&db->map_lock);
    if (reopen)
        kni_log(rc ? KN_LOG_LEVEL_ERROR : KN_LOG_LEVEL_WARN, "store", "lmdb:%s: reopened after a failed write: %s", db->path, rc ? mdb_strerror(rc) : "usable again");
    return rc;
}

int kni_lmdb_begin(struct kni_lmdb *db, bool write, MDB_txn **txn)
{
    *txn = NULL;
    for (int tries = 0;; tries++) {
        pthread_rwlock_rdlock(&db->map_lock);
        int rc = db->empty ? MDB_NOTFOUND : !db->env ? MDB_PANIC : is_gone(db) ? ESTALE : mdb_txn_begin(db->env, NULL, write ? 0 : MDB_RDONLY, txn);
        if (!rc)
            return 0;
        pthread_rwlock_unlock(&db->map_lock);
        bool mendable = rc == MDB_READERS_FULL || rc == MDB_MAP_RESIZED || rc == MDB_PANIC || rc == MDB_NOTFOUND;
        if (!mendable || tries == 4)
            return rc;
        if ((rc = recover(db, rc)))
            return rc;
    }
}

bool kni_lmdb_is_full(struct kni_lmdb *db, uint64_t n_bytes)
{
    struct statvfs disk;
    struct stat st;
    struct rlimit limit;
    int fd = -1;
    uint64_t need = n_bytes + (256u << 10); /* and some pages of the trees */
    if (!statvfs(db->path, &disk) && (uint64_t)disk.f_bavail * disk.f_frsize < need)
        return true;
    pthread_rwlock_rdlock(&db->map_lock);
    bool known = db->env && !mdb_env_get_fd(db->env, &fd) && !fstat(fd, &st);
    pthread_rwlock_unlock(&db->map_lock);
    return known && !getrlimit(RLIMIT_FSIZE, &limit) && limit.rlim_cur != RLIM_INFINITY && (uint64_t)st.st_size + need > limit.rlim_cur;
}

int kni_lmdb_end(struct kni_lmdb *db, MDB_txn *txn, bool write, int rc)
{
    if (write && !rc) {
        rc = mdb_txn_commit(txn);
        if (!rc)
            mend_length(db); /* so that readers never meet a short file; a full disk may refuse, which harms nobody here */
    } else {
        if (db->unlocked && is_overtaken(db, txn)) /* then whatever else was met says nothing */
            rc = KNI_LMDB_OVERTAKEN;
        mdb_txn_abort(txn);
    }
    pthread_rwlock_unlock(&db->map_lock);
    return rc;
}
