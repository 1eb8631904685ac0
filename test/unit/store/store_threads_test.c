/* SPDX-License-Identifier: Apache-2.0 */
/* Many threads on one handle, with evictions, drops, collection and a map that is made to grow meanwhile. Meant for a race detector too. */
#include "unit/store/store_support.h"

#include <pthread.h>
#include <stdatomic.h>

#include "store/lmdb_env.h"
#include "store/lmdb_store.h"

#define THREADS 4u
#define OPS 150u
#define KEYS 24u

static struct kn_store *store;
static void *containers[KEYS];
static size_t n_bytes[KEYS];
static struct kni_chunk_meta metas[KEYS];
static _Atomic uint32_t n_hits, n_bad;

static void *work(void *arg)
{
    uint64_t x = (uint64_t)(uintptr_t)arg;
    struct kni_store_buf buf = {0};
    for (uint32_t i = 0; i < OPS; i++) {
        x = mix(x);
        uint32_t k = (uint32_t)(x % KEYS), n_found;
        struct kni_store_key key;
        struct kni_store_entry entry;
        enum kn_status s = KN_OK;
        kni_store_key_make(&key, &metas[k], NULL, NULL);
        switch (x >> 32 & 7) {
        case 0:
        case 1:
        case 2: s = kni_store_put(store, key.text, &metas[k], containers[k], n_bytes[k], NULL); break;
        case 3: s = kni_store_lookup(store, &key, 1, &n_found, NULL); break;
        case 4:
            if (i % 8 == 0)
                s = i % 16 ? kni_store_flush(store) : kn_store_gc(store, NULL, NULL);
            else if (i % 32 == 1)
                s = kni_store_drop(store, key.text, NULL, NULL);
            break;
        default:
            s = kni_store_get(store, key.text, &entry, &buf, NULL);
            if (!s) {
                atomic_fetch_add(&n_hits, 1);
                s = buf.n_bytes == n_bytes[k] && !memcmp(buf.data, containers[k], n_bytes[k]) ? KN_OK : KN_E_FORMAT;
            } else if (s == KN_E_NOT_FOUND)
                s = KN_OK;
        }
        if (s)
            atomic_fetch_add(&n_bad, 1);
    }
    kni_store_buf_fini(&buf);
    return NULL;
}

static void threads_share_a_handle(void **state)
{
    struct folder f;
    pthread_t threads[THREADS];
    (void)state;
    folder_make(&f);
    store = store_open(&f, 12 * 10000, 0, false); /* room for about half of the keys */
    for (uint32_t k = 0; k < KEYS; k++)
        containers[k] = test_container(k, 2, &metas[k], &n_bytes[k]);
    for (uint32_t i = 0; i < THREADS; i++)
        assert_int_equal(pthread_create(&threads[i], NULL, work, (void *)(uintptr_t)(i + 1)), 0);
    struct kni_lmdb *db = ((struct kni_lmdb_store *)(void *)store)->db;
    for (uint64_t i = 1; i <= 10; i++)
        assert_int_equal(kni_lmdb_grow(db, (80ull + i) << 20), 0); /* waits for open transactions, then moves the map */
    for (uint32_t i = 0; i < THREADS; i++)
        pthread_join(threads[i], NULL);
    assert_int_equal(atomic_load(&n_bad), 0);
    assert_true(atomic_load(&n_hits) > 0);
    assert_int_equal(kn_store_verify(store, NULL, NULL), KN_OK);
    for (uint32_t k = 0; k < KEYS; k++)
        kni_free(containers[k]);
    kn_store_close(&store);
    folder_remove(&f);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(threads_share_a_handle)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
