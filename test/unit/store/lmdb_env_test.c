/* SPDX-License-Identifier: Apache-2.0 */
/* Opening what is not there, not ours, not whole or not allowed; and maps that grow under several processes. */
#include "unit/store/store_support.h"

#include <fcntl.h>
#include <signal.h>

#include "kinema/log.h"
#include "store/lmdb_env.h"

static enum kn_status try_open(const char *url, bool read_only, const char *must_say)
{
    struct kn_store *store = NULL;
    struct kn_err err = {0};
    struct kn_store_opts o = {.size = sizeof o, .url = url, .read_only = read_only};
    enum kn_status s = kn_store_open(&store, &o, &err);
    if (must_say && !strstr(err.text, must_say))
        fail_msg("\"%s\" does not say \"%s\"", err.text, must_say);
    assert_true((store != NULL) == (s == KN_OK));
    kn_store_close(&store);
    return s;
}

static void write_file(const char *path, const void *data, size_t n)
{
    FILE *file = fopen(path, "wb");
    assert_non_null(file);
    assert_int_equal(fwrite(data, 1, n, file), n);
    assert_int_equal(fclose(file), 0);
}

static void urls(void **state)
{
    (void)state;
    assert_int_equal(try_open(NULL, false, "URL"), KN_E_ARG);
    assert_int_equal(try_open("", false, "URL"), KN_E_ARG);
    assert_int_equal(try_open("http://x", false, "lmdb:PATH"), KN_E_UNSUPPORTED);
    assert_int_equal(try_open("redis://localhost", false, "lmdb:PATH"), KN_E_UNSUPPORTED);
    assert_int_equal(try_open("s3://bucket", false, "lmdb:PATH"), KN_E_UNSUPPORTED);
    assert_int_equal(try_open("/tmp/x", false, "lmdb:PATH"), KN_E_UNSUPPORTED);
    assert_int_equal(try_open("lmdb:", false, "path"), KN_E_ARG);
    struct kn_store *store;
    struct kn_store_opts o = {.url = "lmdb:/tmp/x"}; /* size is not set */
    assert_int_equal(kn_store_open(&store, &o, NULL), KN_E_ARG);
}

static void folders(void **state)
{
    struct folder f;
    char path[128], url[160];
    (void)state;
    folder_make(&f);
    snprintf(url, sizeof url, "lmdb:%s/a/b", f.path);
    assert_int_equal(try_open(url, false, "create the folder that is to hold it"), KN_E_IO);
    snprintf(url, sizeof url, "lmdb:%s/new", f.path);
    assert_int_equal(try_open(url, true, "no such folder"), KN_E_NOT_FOUND); /* reading creates nothing */
    assert_int_equal(try_open(url, false, NULL), KN_OK);
    assert_int_equal(try_open(url, true, NULL), KN_OK);
    snprintf(path, sizeof path, "%s/file", f.path);
    write_file(path, "x", 1);
    snprintf(url, sizeof url, "lmdb:%s", path);
    assert_int_equal(try_open(url, false, "is a file"), KN_E_IO);
    assert_int_equal(try_open(f.url, false, "other files"), KN_E_MISMATCH); /* somebody's folder is not made a store */
    snprintf(url, sizeof url, "lmdb:%s/empty", f.path);
    assert_int_equal(mkdir(url + 5, 0755), 0);
    assert_int_equal(try_open(url, true, "holds no store"), KN_E_NOT_FOUND);
    assert_int_equal(try_open(url, false, NULL), KN_OK);
    folder_remove(&f);
}

static void not_ours(void **state)
{
    struct folder f;
    char path[128];
    uint8_t rubbish[20000];
    (void)state;
    folder_make(&f);
    raw_change(&f, "somebody", "else", "x", 1);
    assert_int_equal(try_open(f.url, false, "not a Kinema store"), KN_E_MISMATCH);
    folder_remove(&f);

    folder_make(&f);
    raw_change(&f, "kinema", "format", "\2\0\0\0", 4);
    assert_int_equal(try_open(f.url, false, "version 2"), KN_E_MISMATCH);
    assert_int_equal(try_open(f.url, true, "version 2"), KN_E_MISMATCH);
    folder_remove(&f);

    folder_make(&f);
    memset(rubbish, 0x5c, sizeof rubbish);
    snprintf(path, sizeof path, "%s/data.mdb", f.path);
    write_file(path, rubbish, sizeof rubbish);
    assert_int_equal(try_open(f.url, false, "damaged or not an LMDB file"), KN_E_FORMAT);
    write_file(path, rubbish, 100);
    assert_int_not_equal(try_open(f.url, false, f.path), KN_OK);
    folder_remove(&f);
}

/* A publisher died while it made the store: to a reader that is an empty one, and a writer makes it. */
static void cut_creation(void **state)
{
    struct folder f;
    char path[128];
    struct kn_store_stat st = {.size = sizeof st};
    struct kni_store_buf buf = {0};
    MDB_env *env;
    (void)state;
    for (int stage = 0; stage < 2; stage++) {
        folder_make(&f);
        if (stage == 0) { /* the file has been opened, nothing written */
            snprintf(path, sizeof path, "%s/data.mdb", f.path);
            write_file(path, "", 0);
        } else { /* LMDB has written its head, we have not made our tables */
            assert_int_equal(mdb_env_create(&env), 0);
            assert_int_equal(mdb_env_open(env, f.path, 0, 0666), 0);
            mdb_env_close(env);
        }
        struct kn_store *reader = store_open(&f, 0, 0, true);
        assert_int_equal(kn_store_stat(reader, &st), KN_OK);
        assert_int_equal(st.n_chunks, 0);
        assert_int_equal(kn_store_verify(reader, NULL, NULL), KN_OK);
        assert_false(has(reader, 1, 2));
        struct kni_store_key key;
        test_key(1, 2, &key);
        assert_int_equal(kni_store_get(reader, key.text, NULL, &buf, NULL), KN_E_NOT_FOUND);
        struct kn_store *writer = store_open(&f, 0, 0, false);
        assert_int_equal(try_put(writer, 1, 2), KN_OK);
        assert_true(has(reader, 1, 2)); /* the reader that came too early sees it */
        kn_store_close(&reader);
        kn_store_close(&writer);
        folder_remove(&f);
    }
    kni_store_buf_fini(&buf);
}

/* Both meta pages damaged; then a file that ends too early. Neither may crash, and a readable rest stays readable. */
static void damaged_file(void **state)
{
    struct folder f;
    char path[128];
    struct stat st;
    struct kni_store_buf buf = {0};
    struct kni_store_key key;
    (void)state;
    folder_make(&f);
    struct kn_store *store = store_open(&f, 0, 0, false);
    for (uint64_t i = 0; i < 40; i++)
        assert_int_equal(try_put(store, i, 2), KN_OK);
    kn_store_close(&store);
    snprintf(path, sizeof path, "%s/data.mdb", f.path);
    assert_int_equal(stat(path, &st), 0);
    unsigned n_opened = 0, n_read = 0;
    for (off_t keep = st.st_size; keep > 0; keep -= st.st_size / 16) { /* each cut goes deeper into the same file */
        assert_int_equal(truncate(path, keep), 0);
        struct kn_err err = {0};
        struct kn_store_opts o = {.size = sizeof o, .url = f.url};
        enum kn_status s = kn_store_open(&store, &o, &err);
        if (s) {
            assert_true(s == KN_E_FORMAT || s == KN_E_IO || s == KN_E_MISMATCH);
            assert_non_null(strstr(err.text, f.path));
            continue;
        }
        n_opened++;
        for (uint64_t i = 0; i < 40; i++) {
            test_key(i, 2, &key);
            s = kni_store_get(store, key.text, NULL, &buf, &err);
            assert_true(s == KN_OK || s == KN_E_FORMAT || s == KN_E_NOT_FOUND);
            n_read += s == KN_OK;
        }
        kn_store_close(&store);
    }
    assert_true(n_opened > 1 && n_read >= 40 && n_read < n_opened * 40);
    int fd = open(path, O_WRONLY);
    assert_true(fd >= 0);
    static const uint8_t zeros[8192];
    assert_int_equal(pwrite(fd, zeros, sizeof zeros, 0), sizeof zeros);
    close(fd);
    assert_int_equal(try_open(f.url, false, f.path), KN_E_FORMAT);
    kni_store_buf_fini(&buf);
    folder_remove(&f);
}

/* As an unprivileged user: root may do everything. */
static void no_permission(void **state)
{
    struct folder f;
    int status;
    (void)state;
    folder_make(&f);
    struct kn_store *store = store_open(&f, 0, 0, false);
    kn_store_close(&store);
    assert_int_equal(chmod(f.path, 0500), 0);
    char file[128];
    snprintf(file, sizeof file, "%s/data.mdb", f.path);
    assert_int_equal(chmod(file, 0400), 0);
    pid_t child = fork();
    if (child == 0) {
        if (geteuid() == 0 && (setgid(65534) || setuid(65534)))
            _exit(3);
        struct kn_err err = {0};
        struct kn_store_opts o = {.size = sizeof o, .url = f.url};
        enum kn_status s = kn_store_open(&store, &o, &err);
        _exit(s == KN_E_IO && strstr(err.text, f.path) && strstr(err.text, "ermission") ? 0 : 1);
    }
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_int_equal(status, 0);
    assert_int_equal(chmod(f.path, 0700), 0);
    folder_remove(&f);
}

/* As a user who may read a folder and its data.mdb and write nothing. Returns what check returned. */
static int as_reader(const struct folder *f, int (*check)(const struct folder *f))
{
    char file[128];
    int status;
    assert_int_equal(chmod(f->path, 0555), 0);
    snprintf(file, sizeof file, "%s/data.mdb", f->path);
    assert_int_equal(chmod(file, 0444), 0);
    snprintf(file, sizeof file, "%s/lock.mdb", f->path);
    assert_int_equal(chmod(file, 0444), 0);
    pid_t child = fork();
    if (child == 0) {
        if (geteuid() == 0 && (setgid(65534) || setuid(65534)))
            _exit(99);
        _exit(check(f));
    }
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_int_equal(chmod(f->path, 0700), 0);
    return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}

static uint32_t n_said;
static char said[512];
static void hear(void *user, enum kn_log_level level, const char *module, const char *text)
{
    (void)user;
    (void)module;
    if (level >= KN_LOG_LEVEL_WARN) {
        n_said++;
        snprintf(said, sizeof said, "%s", text);
    }
}

static int read_all_of_it(struct kn_store *store)
{
    struct kni_store_key key;
    struct kni_store_buf buf = {0};
    struct kn_store_stat st = {.size = sizeof st};
    uint32_t n_found;
    test_key(1, 1, &key);
    int bad = kni_store_lookup(store, &key, 1, &n_found, NULL) || n_found != 1 || kni_store_get(store, key.text, NULL, &buf, NULL) ||
              kn_store_verify(store, NULL, NULL) || kn_store_stat(store, &st) || st.n_chunks != 1;
    kni_store_buf_fini(&buf);
    return bad;
}

static int opens_read_only(const struct folder *f)
{
    struct kn_store *store = NULL;
    struct kn_store_opts o = {.size = sizeof o, .url = f->url, .read_only = true};
    int bad = kn_store_open(&store, &o, NULL) ? 1 : !kn_store_is_read_only(store) ? 2 : read_all_of_it(store) ? 3 : 0;
    if (!bad && (try_put(store, 2, 1) != KN_E_STATE || kn_store_gc(store, NULL, NULL) != KN_E_STATE || kni_store_flush(store)))
        bad = 4;
    kn_store_close(&store);
    return bad;
}

static int falls_back(const struct folder *f)
{
    struct kn_store *store = NULL;
    struct kn_err err = {0};
    struct kn_store_opts o = {.size = sizeof o, .url = f->url, .may_read_only = true};
    kn_log_set(hear, NULL, KN_LOG_LEVEL_WARN);
    int bad = kn_store_open(&store, &o, &err) ? 1 : !kn_store_is_read_only(store) || err.text[0] ? 2 : read_all_of_it(store) ? 3 : 0;
    if (!bad && (try_put(store, 2, 1) != KN_E_STATE || n_said != 1 || !strstr(said, f->path) || !strstr(said, "--store-read-only")))
        bad = 4;
    kn_store_close(&store);
    if (!bad && (kni_store_open_lazy(&store, &o, &err) || !kn_store_is_read_only(store) || read_all_of_it(store) || try_put(store, 2, 1) != KN_E_STATE))
        bad = 5;
    kn_store_close(&store);
    return bad;
}

static void who_may_only_read_does_so(void **state)
{
    struct folder f;
    (void)state;
    folder_make(&f);
    struct kn_store *store = store_open(&f, 0, 0, false);
    assert_int_equal(try_put(store, 1, 1), KN_OK);
    kn_store_close(&store);
    assert_int_equal(as_reader(&f, opens_read_only), 0);
    assert_int_equal(as_reader(&f, falls_back), 0);
    char file[128];
    snprintf(file, sizeof file, "%s/lock.mdb", f.path);
    assert_int_equal(unlink(file), 0); /* copied without it, as backups are */
    struct folder g = f;
    store = NULL;
    store = store_open(&g, 0, 0, true); /* makes it again */
    kn_store_close(&store);
    assert_int_equal(as_reader(&f, opens_read_only), 0);
    folder_remove(&f);
}

static int turn[2][2]; /* pipes: reader to writer, writer to reader */

static bool ask_for_commits(char n)
{
    char c;
    return write(turn[0][1], &n, 1) == 1 && read(turn[1][0], &c, 1) == 1;
}

/* A reader without a slot: one commit later its pages are as they were, after two they may not be. */
static int notices_writers(const struct folder *f)
{
    struct kni_lmdb *db;
    MDB_txn *txn;
    if (kni_lmdb_open(&db, f->path, true, 0, NULL) || !db->unlocked)
        return 1;
    int bad = kni_lmdb_begin(db, false, &txn) || !ask_for_commits(0) || kni_lmdb_end(db, txn, false, 0) ? 2 : 0;
    if (!bad && (kni_lmdb_begin(db, false, &txn) || !ask_for_commits(1) || kni_lmdb_end(db, txn, false, 0)))
        bad = 3;
    if (!bad && (kni_lmdb_begin(db, false, &txn) || !ask_for_commits(2) || kni_lmdb_end(db, txn, false, 0) != KNI_LMDB_OVERTAKEN))
        bad = 4;
    if (!bad && (kni_lmdb_begin(db, false, &txn) || kni_lmdb_end(db, txn, false, 0)))
        bad = 5;
    kni_lmdb_close(db);
    return bad;
}

static void a_reader_without_a_slot_is_not_fooled(void **state)
{
    struct folder f;
    int status;
    (void)state;
    folder_make(&f);
    assert_int_equal(pipe(turn[0]), 0);
    assert_int_equal(pipe(turn[1]), 0);
    pid_t writer = fork();
    if (writer == 0) {
        struct kn_store *store = store_open(&f, 0, 0, false);
        uint64_t seed = 1;
        bool good = try_put(store, seed++, 1) == KN_OK && write(turn[1][1], "r", 1) == 1;
        close(turn[0][1]);
        for (char n; good && read(turn[0][0], &n, 1) == 1;) {
            for (; n > 0; n--)
                good = good && try_put(store, seed++, 1) == KN_OK;
            good = good && write(turn[1][1], "d", 1) == 1;
        }
        kn_store_close(&store);
        _exit(!good);
    }
    char c;
    assert_int_equal(read(turn[1][0], &c, 1), 1);
    assert_int_equal(as_reader(&f, notices_writers), 0);
    for (int i = 0; i < 4; i++)
        close(turn[i / 2][!(i % 2)]);
    assert_int_equal(waitpid(writer, &status, 0), writer);
    assert_int_equal(status, 0);
    folder_remove(&f);
}

/* A shell's home folder that no shell has put in: not a folder called ~. */
static void a_tilde_is_no_folder(void **state)
{
    static const char *const urls[] = {"lmdb:~", "lmdb:~/store", "lmdb:~somebody/store", "lmdb:"};
    (void)state;
    for (size_t i = 0; i < sizeof urls / sizeof *urls; i++) {
        struct kn_store *store = NULL;
        struct kn_err err = {0};
        struct kn_store_opts o = {.size = sizeof o, .url = urls[i]};
        assert_int_equal(kn_store_open(&store, &o, &err), KN_E_ARG);
        assert_non_null(strstr(err.text, i < 3 ? "home folder" : "empty"));
        assert_int_equal(access("~", F_OK), -1);
        assert_int_equal(access("~somebody", F_OK), -1);
    }
}

/* Removed while open: errors that say so, no writing into a file without a name, and a new store under the same path. */
static void a_removed_store_is_noticed(void **state)
{
    struct folder f;
    struct kni_chunk_meta m;
    struct kni_store_key key;
    struct kn_err err = {0};
    uint32_t n_found;
    size_t n;
    (void)state;
    folder_make(&f);
    void *data = test_container(1, 1, &m, &n);
    kni_store_key_make(&key, &m, NULL, NULL);
    struct kn_store *old = store_open(&f, 0, 0, false);
    assert_int_equal(kni_store_put(old, key.text, &m, data, n, &err), KN_OK);
    folder_remove(&f);
    assert_int_equal(kni_store_put(old, key.text, &m, data, n, &err), KN_E_IO);
    assert_non_null(strstr(err.text, "removed"));
    assert_int_equal(kni_store_lookup(old, &key, 1, &n_found, &err), KN_E_IO);
    assert_int_equal(n_found, 0);
    assert_int_equal(mkdir(f.path, 0777), 0); /* often the same inode again */
    struct kn_store *new = store_open(&f, 0, 0, false);
    assert_false(has(new, 1, 1));
    assert_int_equal(try_put(new, 2, 1), KN_OK);
    assert_int_equal(kni_store_put(old, key.text, &m, data, n, &err), KN_E_IO);
    kn_store_close(&old);
    assert_true(has(new, 2, 1));
    kn_store_close(&new);
    kni_free(data);
    folder_remove(&f);
}

static void *big(uint64_t seed, size_t n)
{
    uint64_t *p = malloc(n);
    assert_non_null(p);
    for (size_t i = 0; i < n / 8; i++)
        p[i] = mix(seed + i);
    return p;
}

static enum kn_status put_big(struct kn_store *store, uint64_t seed, size_t n)
{
    struct kni_chunk_meta m;
    struct kni_store_key key;
    test_meta(&m, seed, 1);
    kni_store_key_make(&key, &m, NULL, NULL);
    void *data = big(seed, n);
    enum kn_status s = kni_store_put(store, key.text, &m, data, n, NULL);
    free(data);
    return s;
}

/* Another process writes beyond the end of our map: we follow. */
static void map_grows_in_another_process(void **state)
{
    struct folder f;
    struct kni_store_buf buf = {0};
    struct kni_store_key key;
    int go[2], status;
    char byte = 0;
    (void)state;
    folder_make(&f);
    assert_int_equal(pipe(go), 0);
    pid_t child = fork();
    if (child == 0) {
        if (read(go[0], &byte, 1) != 1)
            _exit(3);
        struct kn_store *other = store_open(&f, 1ull << 30, 0, false);
        enum kn_status s = KN_OK;
        for (uint64_t i = 100; i < 124 && !s; i++)
            s = put_big(other, i, 4u << 20); /* 96 MiB; the parent maps 64 and a little */
        kn_store_close(&other);
        _exit(s != KN_OK);
    }
    struct kn_store *store = store_open(&f, 1u << 20, 0, false);
    assert_int_equal(try_put(store, 1, 2), KN_OK);
    assert_int_equal(write(go[1], &byte, 1), 1);
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_int_equal(status, 0);
    assert_true(has(store, 1, 2));
    test_key(123, 1, &key);
    assert_int_equal(kni_store_get(store, key.text, NULL, &buf, NULL), KN_OK);
    void *expect = big(123, 4u << 20);
    assert_int_equal(buf.n_bytes, 4u << 20);
    assert_memory_equal(buf.data, expect, 4u << 20);
    free(expect);
    assert_int_equal(try_put(store, 2, 2), KN_OK); /* evicts down to our own limit of 1 MiB */
    struct kn_store_stat st = {.size = sizeof st};
    assert_int_equal(kn_store_stat(store, &st), KN_OK);
    assert_true(st.n_bytes <= 1u << 20);
    close(go[0]);
    close(go[1]);
    kni_store_buf_fini(&buf);
    kn_store_close(&store);
    folder_remove(&f);
}

/* A reader of another process pins old pages until the map is full: it grows. Killed, it stops pinning. */
static void a_dead_reader_stops_pinning(void **state)
{
    struct folder f;
    struct kn_store_stat before = {.size = sizeof before}, grown = {.size = sizeof grown},
        after = {.size = sizeof after};
    int ready[2], status;
    char byte = 0;
    (void)state;
    folder_make(&f);
    struct kn_store *store = store_open(&f, 8u << 20, 0, false);
    assert_int_equal(put_big(store, 1, 4u << 20), KN_OK);
    kn_store_close(&store);
    assert_int_equal(pipe(ready), 0);
    pid_t child = fork();
    if (child == 0) {
        MDB_env *env;
        MDB_txn *txn;
        if (mdb_env_create(&env) || mdb_env_open(env, f.path, MDB_RDONLY, 0666) || mdb_txn_begin(env, NULL, MDB_RDONLY, &txn) || write(ready[1], &byte, 1) != 1)
            _exit(3);
        for (;;)
            pause();
    }
    assert_int_equal(read(ready[0], &byte, 1), 1);
    store = store_open(&f, 8u << 20, 0, false);
    assert_int_equal(kn_store_stat(store, &before), KN_OK);
    for (uint64_t i = 2; i < 22; i++)
        assert_int_equal(put_big(store, i, 4u << 20), KN_OK); /* 80 MiB through a map of 76 */
    assert_int_equal(kn_store_stat(store, &grown), KN_OK);
    assert_true(grown.map_bytes > before.map_bytes);
    assert_true(grown.n_bytes <= 8u << 20);
    kill(child, SIGKILL);
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_int_equal(kn_store_gc(store, NULL, NULL), KN_OK); /* clears its slot */
    for (uint64_t i = 22; i < 36; i++)
        assert_int_equal(put_big(store, i, 4u << 20), KN_OK);
    assert_int_equal(kn_store_stat(store, &after), KN_OK);
    assert_int_equal(after.map_bytes, grown.map_bytes);
    close(ready[0]);
    close(ready[1]);
    kn_store_close(&store);
    folder_remove(&f);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(urls),
        cmocka_unit_test(folders),
        cmocka_unit_test(not_ours),
        cmocka_unit_test(cut_creation),
        cmocka_unit_test(damaged_file),
        cmocka_unit_test(no_permission),
        cmocka_unit_test(who_may_only_read_does_so),
        cmocka_unit_test(a_reader_without_a_slot_is_not_fooled),
        cmocka_unit_test(a_tilde_is_no_folder),
        cmocka_unit_test(map_grows_in_another_process),
        cmocka_unit_test(a_dead_reader_stops_pinning),
        cmocka_unit_test(a_removed_store_is_noticed),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
