/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The disk is full. Twice: with a limit on file sizes (write fails with EFBIG; everybody may set that), and on a small
 * tmpfs (ENOSPC; needs the right to mount, otherwise skipped). The put fails with KN_E_FULL, what was there stays there,
 * the store verifies, and with room again it takes chunks again. Children do it, so that limits and mounts end with them.
 */
#include "unit/store/store_support.h"

#include <sched.h>
#include <signal.h>
#include <sys/mount.h>
#include <sys/resource.h>

#define LAYERS 16u /* 64 KiB a chunk */
#define SKIPPED 77

#define MUST(x) do { if (!(x)) { fprintf(stderr, "line %d: %s\n", __LINE__, #x); _exit(1); } } while (0)

/* Fills the store until it is full; returns how many chunks went in. */
static uint64_t fill(struct kn_store *store)
{
    uint64_t n = 0;
    enum kn_status s;
    struct kn_store_stat st = {.size = sizeof st};
    while ((s = try_put(store, n, LAYERS)) == KN_OK && n < 1000)
        n++;
    MUST(s == KN_E_FULL);
    MUST(n >= 5);
    MUST(try_put(store, n, LAYERS) == KN_E_FULL); /* again: it is not wedged */
    for (uint64_t i = 0; i < n; i++)
        MUST(has(store, i, LAYERS));
    MUST(kn_store_verify(store, NULL, NULL) == KN_OK);
    MUST(kn_store_stat(store, &st) == KN_OK && st.n_chunks == n);
    return n;
}

static void file_size_limit(const struct folder *f)
{
    signal(SIGXFSZ, SIG_IGN);
    struct rlimit before, small = {.rlim_cur = 1u << 20, .rlim_max = RLIM_INFINITY};
    MUST(getrlimit(RLIMIT_FSIZE, &before) == 0);
    small.rlim_max = before.rlim_max;
    MUST(setrlimit(RLIMIT_FSIZE, &small) == 0);
    struct kn_store *store = store_open(f, 0, 0, false);
    uint64_t n = fill(store);
    MUST(setrlimit(RLIMIT_FSIZE, &before) == 0); /* room again, same handle */
    MUST(try_put(store, n, LAYERS) == KN_OK);
    kn_store_close(&store);
    store = store_open(f, 0, 0, true);
    MUST(has(store, n, LAYERS));
    MUST(kn_store_verify(store, NULL, NULL) == KN_OK);
    kn_store_close(&store);
    _exit(0);
}

static void small_disk(const struct folder *f)
{
    if (unshare(CLONE_NEWNS) || mount("none", "/", NULL, MS_REC | MS_PRIVATE, NULL) || mount("tmpfs", f->path, "tmpfs", 0, "size=1m"))
        _exit(SKIPPED);
    struct kn_store *store = store_open(f, 0, 0, false);
    uint64_t n = fill(store), removed;
    struct kni_store_key key;
    test_key(0, LAYERS, &key);
    if (kn_store_rm(store, key.text, &removed) == KN_OK) /* a delete needs a few pages too: it may fail cleanly */
        MUST(!has(store, 0, LAYERS));
    MUST(kn_store_verify(store, NULL, NULL) == KN_OK);
    MUST(mount("tmpfs", f->path, "tmpfs", MS_REMOUNT, "size=8m") == 0);
    MUST(try_put(store, n, LAYERS) == KN_OK);
    MUST(kn_store_verify(store, NULL, NULL) == KN_OK);
    kn_store_close(&store);
    _exit(0);
}

static int in_child(void (*fn)(const struct folder *f))
{
    struct folder f;
    int status;
    folder_make(&f);
    pid_t child = fork();
    if (child == 0)
        fn(&f);
    assert_int_equal(waitpid(child, &status, 0), child);
    folder_remove(&f);
    assert_true(WIFEXITED(status));
    return WEXITSTATUS(status);
}

static void full_by_limit(void **state)
{
    (void)state;
    assert_int_equal(in_child(file_size_limit), 0);
}

static void full_disk(void **state)
{
    (void)state;
    int status = in_child(small_disk);
    if (status == SKIPPED)
        skip();
    assert_int_equal(status, 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(full_by_limit), cmocka_unit_test(full_disk)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
