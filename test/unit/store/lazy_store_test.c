/* SPDX-License-Identifier: Apache-2.0 */
/* A store that need not be there: not open, then open; failing for good, then opened anew; and what stays an error. */
#include "support/fault_bed.h"

#include <pthread.h>
#include <stdatomic.h>
#include <time.h>

#include "base/clock.h"

static struct kn_store *open_lazy(const char *url, enum kn_status want, struct kn_err *err)
{
    struct kn_store *store = NULL;
    struct kn_store_opts o = {.size = sizeof o, .url = url, .max_bytes = 64 << 20};
    *err = (struct kn_err){0};
    assert_int_equal(kni_store_open_lazy(&store, &o, err), want);
    assert_true((store == NULL) == (want != KN_OK));
    return store;
}

static enum kn_status lookup(struct kn_store *store, uint64_t seed, uint32_t *n, struct kn_err *err)
{
    struct kni_store_key key;
    test_key(seed, 1, &key);
    return kni_store_lookup(store, &key, 1, n, err);
}

/* Retries, as the keeper of fetch/ does, until it is open. */
static void retry_until_open(struct kn_store *store)
{
    for (int i = 0; i < 2000; i++) {
        kni_store_retry(store);
        if (kni_store_is_open(store))
            return;
        nanosleep(&(struct timespec){.tv_nsec = 10000000}, NULL);
    }
    fail_msg("not open after 20 seconds");
}

static void one_that_is_there_is_used_at_once(void **state)
{
    (void)state;
    struct kn_err err;
    struct kni_store_buf buf = {0};
    struct kni_store_key key;
    struct kn_store_stat st = {.size = sizeof st};
    struct kn_store *store = open_lazy(folder.url, KN_OK, &err);
    assert_true(kni_store_is_open(store));
    assert_int_equal(try_put(store, 1, 1), KN_OK);
    assert_true(has(store, 1, 1));
    kni_store_retry(store); /* nothing to do */
    test_key(1, 1, &key);
    assert_int_equal(kni_store_get(store, key.text, NULL, &buf, &err), KN_OK);
    assert_int_equal(kn_store_stat(store, &st), KN_OK);
    assert_int_equal(st.n_chunks, 1);
    assert_int_equal(st.max_bytes, 64 << 20);
    assert_int_equal(kn_store_verify(store, NULL, NULL), KN_OK);
    assert_int_equal(kn_store_gc(store, NULL, NULL), KN_OK);
    assert_int_equal(kni_store_drop(store, key.text, NULL, &err), KN_OK);
    assert_int_equal(kn_store_rm(store, "", NULL), KN_OK);
    assert_false(has(store, 1, 1));
    kni_store_buf_fini(&buf);
    kn_store_close(&store);
}

static void one_that_is_missing_comes_up(void **state)
{
    (void)state;
    char url[128], parent[96];
    struct kn_err err;
    uint32_t n;
    snprintf(parent, sizeof parent, "%s/parent", folder.path);
    snprintf(url, sizeof url, "lmdb:%s/store", parent); /* the parent is not created by a store */
    struct kn_store *store = open_lazy(url, KN_OK, &err);
    assert_false(kni_store_is_open(store));
    uint64_t begin = kni_now_ns();
    assert_int_equal(lookup(store, 1, &n, &err), KN_E_IO);
    assert_non_null(strstr(err.text, "cannot create the folder")); /* why is said in every call */
    assert_int_equal(try_put(store, 1, 1), KN_E_IO);
    struct kni_store_key key;
    struct kni_store_buf buf = {0};
    test_key(1, 1, &key);
    assert_int_equal(kni_store_get(store, key.text, NULL, &buf, &err), KN_E_IO);
    assert_int_equal(kni_store_drop(store, key.text, NULL, &err), KN_E_IO);
    assert_int_equal(kni_store_flush(store), KN_E_IO);
    assert_int_equal(kn_store_ls(store, NULL, NULL), KN_E_IO);
    assert_int_equal(mkdir(parent, 0777), 0);
    kni_store_retry(store);
    if (kni_now_ns() - begin < 900000000u)
        assert_false(kni_store_is_open(store)); /* at most every second */
    retry_until_open(store);
    assert_int_equal(try_put(store, 1, 1), KN_OK);
    assert_true(has(store, 1, 1));
    kn_store_close(&store);
}

static void a_dead_store_is_opened_anew(void **state)
{
    (void)state;
    struct kn_err err;
    uint32_t n;
    struct kn_store *store = open_lazy(folder.url, KN_OK, &err);
    assert_int_equal(try_put(store, 1, 1), KN_OK);
    folder_remove(&folder); /* another store under the same name */
    assert_int_equal(mkdir(folder.path, 0777), 0);
    for (int i = 0; i < 3; i++)
        assert_int_equal(lookup(store, 1, &n, &err), KN_E_IO);
    kni_store_retry(store); /* three failures are not enough */
    assert_int_equal(lookup(store, 1, &n, &err), KN_E_IO);
    assert_true(kni_store_is_open(store));
    for (int i = 0; i < 300 && lookup(store, 1, &n, &err); i++) {
        kni_store_retry(store);
        nanosleep(&(struct timespec){.tv_nsec = 10000000}, NULL);
    }
    assert_int_equal(lookup(store, 1, &n, &err), KN_OK);
    assert_int_equal(n, 0);
    assert_int_equal(try_put(store, 2, 1), KN_OK);
    assert_true(has(store, 2, 1));
    kn_store_close(&store);
}

/* ---- a call that is inside while the store ought to be closed */

struct caller { struct kn_store *store; enum kn_status status; atomic_bool done; };

static void *look_once(void *arg)
{
    struct caller *c = arg;
    uint32_t n;
    struct kn_err err = {0};
    c->status = lookup(c->store, 1, &n, &err);
    atomic_store(&c->done, true);
    return NULL;
}

static void nobody_loses_the_store_under_him(void **state)
{
    (void)state;
    struct kn_err err;
    struct kni_store_buf buf = {0};
    struct kni_store_key key;
    pthread_t thread;
    struct caller c = {.store = open_lazy(fault_url, KN_OK, &err)};
    test_key(1, 1, &key);
    order("hang-lookup\nfail-get");
    assert_int_equal(pthread_create(&thread, NULL, look_once, &c), 0);
    nanosleep(&(struct timespec){.tv_nsec = 50000000}, NULL); /* most likely inside by now; right in any case */
    for (int i = 0; i < 8; i++)
        assert_int_equal(kni_store_get(c.store, key.text, NULL, &buf, &err), KN_E_IO);
    for (int i = 0; i < 120; i++) {
        kni_store_retry(c.store); /* must not close */
        assert_true(kni_store_is_open(c.store));
        nanosleep(&(struct timespec){.tv_nsec = 10000000}, NULL);
    }
    assert_false(atomic_load(&c.done));
    order("");
    pthread_join(thread, NULL);
    assert_int_equal(c.status, KN_OK);
    order("hang");
    assert_int_equal(pthread_create(&thread, NULL, look_once, &c), 0);
    kni_store_interrupt(c.store);
    pthread_join(thread, NULL);
    assert_int_equal(c.status, KN_E_IO);
    kn_store_close(&c.store); /* does not hang */
    kni_store_buf_fini(&buf);
}

static void errors_that_stay(void **state)
{
    (void)state;
    struct kn_err err;
    char path[128], url[160];
    open_lazy("redis://x", KN_E_UNSUPPORTED, &err);
    open_lazy("fault:x", KN_E_ARG, &err);
    open_lazy("lmdb:", KN_E_ARG, &err);
    open_lazy(NULL, KN_E_ARG, &err);
    snprintf(path, sizeof path, "%s/somebodys", folder.path);
    FILE *file = fopen(path, "w");
    assert_non_null(file);
    fclose(file);
    open_lazy(folder.url, KN_E_MISMATCH, &err); /* a folder with other files: a mistyped path */
    assert_non_null(strstr(err.text, folder.path));
    snprintf(url, sizeof url, "lmdb:%s", path); /* a file: may go away */
    struct kn_store *store = open_lazy(url, KN_OK, &err);
    assert_false(kni_store_is_open(store));
    assert_int_equal(remove(path), 0);
    retry_until_open(store);
    kn_store_close(&store);
    order("refuse-open");
    store = open_lazy(fault_url, KN_OK, &err);
    assert_false(kni_store_is_open(store));
    kn_store_close(&store); /* before it ever opened */
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(one_that_is_there_is_used_at_once, fault_set_up, fault_tear_down),
        cmocka_unit_test_setup_teardown(one_that_is_missing_comes_up, fault_set_up, fault_tear_down),
        cmocka_unit_test_setup_teardown(a_dead_store_is_opened_anew, fault_set_up, fault_tear_down),
        cmocka_unit_test_setup_teardown(nobody_loses_the_store_under_him, fault_set_up, fault_tear_down),
        cmocka_unit_test_setup_teardown(errors_that_stay, fault_set_up, fault_tear_down),
    };
    return cmocka_run_group_tests_name("lazy_store", tests, NULL, NULL);
}
