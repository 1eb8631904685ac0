/* SPDX-License-Identifier: Apache-2.0 */
/* The store's promises with real LMDB files: put, get, lookup, eviction, expiry, collection, removal, two handles, two processes. */
#include "unit/store/store_support.h"

#include <signal.h>

#define LAYERS 2u
#define CHUNK_BYTES_ABOUT 10240u /* 8 KiB of noise, which exact cannot shrink, its model and its table */

static uint64_t fake_now = 1000000;
static uint64_t fake_wall_s(void)
{
    return fake_now;
}

static uint64_t counted;
static void count_item(void *user, const struct kn_store_item *item)
{
    (void)user;
    assert_string_equal(item->preset, "exact");
    assert_int_equal(item->n_tokens, TEST_CHUNK);
    counted++;
}

static void put_get_lookup(void **state)
{
    struct folder f;
    (void)state;
    folder_make(&f);
    struct kn_store *store = store_open(&f, 0, 0, false);
    struct kni_store_buf buf = {0};
    struct kni_store_key keys[4];
    struct kni_store_entry entry;
    uint32_t n_found;
    for (uint64_t i = 0; i < 4; i++)
        test_key(i, LAYERS, &keys[i]);
    assert_int_equal(kni_store_lookup(store, keys, 4, &n_found, NULL), KN_OK);
    assert_int_equal(n_found, 0);
    assert_int_equal(kni_store_get(store, keys[0].text, &entry, &buf, NULL), KN_E_NOT_FOUND);
    for (uint64_t i = 0; i < 4; i++)
        if (i != 2)
            assert_int_equal(try_put(store, i, LAYERS), KN_OK);
    assert_int_equal(kni_store_lookup(store, keys, 4, &n_found, NULL), KN_OK);
    assert_int_equal(n_found, 2); /* the third is missing: the fourth does not count */
    for (uint64_t i = 0; i < 4; i++) {
        struct kni_chunk_meta m;
        size_t n;
        void *data = test_container(i, LAYERS, &m, &n);
        if (i == 2) {
            assert_int_equal(kni_store_get(store, keys[i].text, &entry, &buf, NULL), KN_E_NOT_FOUND);
        } else {
            assert_int_equal(kni_store_get(store, keys[i].text, &entry, &buf, NULL), KN_OK);
            assert_int_equal(buf.n_bytes, n);
            assert_memory_equal(buf.data, data, n);
            assert_int_equal(entry.first_token, m.first_token);
            assert_memory_equal(entry.fingerprint, m.fingerprint, 16);
            assert_int_equal(kni_store_check(&entry, buf.data, buf.n_bytes, NULL), KN_OK);
        }
        kni_free(data);
    }
    counted = 0;
    assert_int_equal(kn_store_ls(store, count_item, NULL), KN_OK);
    assert_int_equal(counted, 3);
    assert_int_equal(kn_store_verify(store, NULL, NULL), KN_OK);
    kni_store_buf_fini(&buf);
    kn_store_close(&store);
    assert_null(store);
    store = store_open(&f, 0, 0, true); /* it lives on, and can be read only */
    assert_true(has(store, 3, LAYERS));
    assert_int_equal(try_put(store, 9, LAYERS), KN_E_STATE);
    assert_int_equal(kn_store_rm(store, "", NULL), KN_E_STATE);
    assert_int_equal(kn_store_gc(store, NULL, NULL), KN_E_STATE);
    kn_store_close(&store);
    folder_remove(&f);
}

static void same_chunk_twice_is_renewed(void **state)
{
    struct folder f;
    struct kn_store_stat a = {.size = sizeof a}, b = {.size = sizeof b};
    (void)state;
    folder_make(&f);
    struct kn_store *store = store_open(&f, 0, 100, false);
    store->wall_s = fake_wall_s;
    fake_now = 1000000;
    assert_int_equal(try_put(store, 1, LAYERS), KN_OK);
    assert_int_equal(kn_store_stat(store, &a), KN_OK);
    fake_now += 90;
    assert_int_equal(try_put(store, 1, LAYERS), KN_OK);
    fake_now += 90; /* 180 s after the first put, 90 after the second: alive */
    assert_true(has(store, 1, LAYERS));
    assert_int_equal(kn_store_stat(store, &b), KN_OK);
    assert_int_equal(b.n_chunks, 1);
    assert_int_equal(b.n_bytes, a.n_bytes);
    assert_int_equal(b.n_orphans, 0);
    kn_store_close(&store);
    folder_remove(&f);
}

static void eviction_takes_the_least_recently_used(void **state)
{
    struct folder f;
    struct kn_store_stat st = {.size = sizeof st};
    struct kni_store_buf buf = {0};
    struct kni_store_key key;
    (void)state;
    folder_make(&f);
    uint64_t max = 10 * (CHUNK_BYTES_ABOUT + 2048);
    struct kn_store *store = store_open(&f, max, 0, false);
    store->wall_s = fake_wall_s;
    fake_now = 1000000;
    for (uint64_t i = 0; i < 8; i++, fake_now += 10)
        assert_int_equal(try_put(store, i, LAYERS), KN_OK);
    test_key(0, LAYERS, &key);
    assert_int_equal(kni_store_get(store, key.text, NULL, &buf, NULL), KN_OK); /* the oldest is used again */
    for (uint64_t i = 8; i < 14; i++, fake_now += 10) {
        assert_int_equal(try_put(store, i, LAYERS), KN_OK);
        assert_true(has(store, i, LAYERS)); /* what was just put is never the victim */
        assert_int_equal(kn_store_stat(store, &st), KN_OK);
        assert_true(st.n_bytes <= max);
        assert_true(st.n_bytes >= max / 2);
    }
    assert_true(has(store, 0, LAYERS));
    assert_false(has(store, 1, LAYERS));
    assert_int_equal(kn_store_verify(store, NULL, NULL), KN_OK);
    assert_int_equal(try_put(store, 99, 40), KN_E_FULL); /* 160 KiB in a store of 100 */
    assert_true(has(store, 0, LAYERS));
    kni_store_buf_fini(&buf);
    kn_store_close(&store);
    folder_remove(&f);
}

static void of_equal_age_the_end_of_a_prefix_goes_first(void **state)
{
    struct folder f;
    (void)state;
    folder_make(&f);
    struct kn_store *store = store_open(&f, 9 * (CHUNK_BYTES_ABOUT + 1500), 0, false);
    store->wall_s = fake_wall_s;
    fake_now = 1000000;
    for (uint64_t i = 0; i < 8; i++) /* seed i covers chunk i of a prefix */
        assert_int_equal(try_put(store, i, LAYERS), KN_OK);
    fake_now++;
    for (uint64_t i = 8; i < 12; i++)
        assert_int_equal(try_put(store, i, LAYERS), KN_OK);
    bool gone = false;
    for (uint64_t i = 0; i < 8; i++) {
        bool there = has(store, i, LAYERS);
        assert_false(there && gone); /* no gap */
        gone |= !there;
    }
    assert_true(gone);
    kn_store_close(&store);
    folder_remove(&f);
}

static void expired_chunks_are_not_served(void **state)
{
    struct folder f;
    struct kn_store_stat st = {.size = sizeof st};
    struct kni_store_buf buf = {0};
    struct kni_store_key key;
    uint64_t n, n_bytes;
    (void)state;
    folder_make(&f);
    fake_now = 1000000;
    struct kn_store *store = store_open(&f, 0, 60, false);
    store->wall_s = fake_wall_s;
    assert_int_equal(try_put(store, 1, LAYERS), KN_OK);
    fake_now += 30;
    assert_int_equal(try_put(store, 2, LAYERS), KN_OK);
    fake_now -= 3600; /* a clock that was put back expires nothing */
    assert_true(has(store, 1, LAYERS));
    fake_now += 3600 + 30;
    assert_false(has(store, 1, LAYERS));
    assert_true(has(store, 2, LAYERS));
    test_key(1, LAYERS, &key);
    assert_int_equal(kni_store_get(store, key.text, NULL, &buf, NULL), KN_E_NOT_FOUND);
    assert_int_equal(kn_store_stat(store, &st), KN_OK);
    assert_int_equal(st.n_expired, 1);
    assert_int_equal(kn_store_gc(store, &n, &n_bytes), KN_OK);
    assert_int_equal(n, 1);
    assert_true(n_bytes > CHUNK_BYTES_ABOUT / 2);
    assert_int_equal(kn_store_stat(store, &st), KN_OK);
    assert_int_equal(st.n_chunks, 1);
    kn_store_close(&store);
    store = store_open(&f, 0, 10, false); /* a reader may be stricter than the writer was */
    store->wall_s = fake_wall_s;
    assert_false(has(store, 2, LAYERS));
    kni_store_buf_fini(&buf);
    kn_store_close(&store);
    folder_remove(&f);
}

static void collection_removes_orphans_and_halves(void **state)
{
    struct folder f;
    struct kn_store_stat st = {.size = sizeof st};
    struct kni_store_key key;
    uint64_t n, n_bytes;
    char junk[5000];
    (void)state;
    folder_make(&f);
    struct kn_store *store = store_open(&f, 0, 0, false);
    for (uint64_t i = 0; i < 3; i++)
        assert_int_equal(try_put(store, i, LAYERS), KN_OK);
    kn_store_close(&store);
    memset(junk, 7, sizeof junk);
    raw_change(&f, "chunk", "kn1:aa", junk, sizeof junk); /* sorts before all others */
    raw_change(&f, "chunk", "kn1:zz", junk, sizeof junk); /* and after */
    test_key(1, LAYERS, &key);
    raw_change(&f, "chunk", key.text, NULL, 0); /* an entry whose data is gone */
    store = store_open(&f, 0, 0, false);
    assert_int_equal(kn_store_stat(store, &st), KN_OK);
    assert_int_equal(st.n_chunks, 3);
    assert_int_equal(st.n_orphans, 2);
    assert_int_equal(st.orphan_bytes, 2 * sizeof junk);
    assert_false(has(store, 1, LAYERS)); /* lookup does not promise it */
    assert_int_equal(kn_store_verify(store, NULL, NULL), KN_E_FORMAT);
    assert_int_equal(kn_store_gc(store, &n, &n_bytes), KN_OK);
    assert_int_equal(n, 3);
    assert_int_equal(n_bytes >= 2 * sizeof junk, 1);
    assert_int_equal(kn_store_stat(store, &st), KN_OK);
    assert_int_equal(st.n_orphans, 0);
    assert_int_equal(st.n_chunks, 2);
    assert_int_equal(kn_store_verify(store, NULL, NULL), KN_OK);
    kn_store_close(&store);
    store = store_open(&f, CHUNK_BYTES_ABOUT + 2000, 0, false); /* a lower limit: gc brings it down */
    assert_int_equal(kn_store_gc(store, &n, NULL), KN_OK);
    assert_int_equal(n, 1);
    kn_store_close(&store);
    folder_remove(&f);
}

static void removal_by_prefix(void **state)
{
    struct folder f;
    struct kni_store_key key;
    uint64_t n;
    (void)state;
    folder_make(&f);
    struct kn_store *store = store_open(&f, 0, 0, false);
    for (uint64_t i = 0; i < 5; i++)
        assert_int_equal(try_put(store, i, LAYERS), KN_OK);
    assert_int_equal(kn_store_rm(store, "kn1:ffff", &n), KN_OK);
    assert_int_equal(n, 0);
    test_key(3, LAYERS, &key);
    assert_int_equal(kn_store_rm(store, key.text, &n), KN_OK);
    assert_int_equal(n, 1);
    assert_false(has(store, 3, LAYERS));
    assert_int_equal(kn_store_rm(store, "kn1:5a5a", &n), KN_OK);
    assert_int_equal(n, 4);
    assert_int_equal(try_put(store, 3, LAYERS), KN_OK);
    assert_int_equal(kn_store_rm(store, "", &n), KN_OK);
    assert_int_equal(n, 1);
    kn_store_close(&store);
    folder_remove(&f);
}

static enum kn_status worst;
static unsigned n_bad;
static void note_verdict(void *user, const struct kn_store_item *item, enum kn_status status, const char *text)
{
    (void)user;
    (void)item;
    if (status) {
        assert_true(strlen(text) > 10);
        worst = status;
        n_bad++;
    }
}

static void damage_is_found_and_healed(void **state)
{
    struct folder f;
    struct kni_store_key key;
    struct kni_store_buf buf = {0};
    struct kni_store_entry entry, other;
    struct kni_chunk_meta m;
    struct kn_err err = {0};
    size_t n;
    (void)state;
    folder_make(&f);
    void *data = test_container(5, LAYERS, &m, &n);
    test_key(5, LAYERS, &key);
    struct kn_store *store = store_open(&f, 0, 0, false);
    assert_int_equal(try_put(store, 5, LAYERS), KN_OK);
    assert_int_equal(try_put(store, 6, LAYERS), KN_OK);
    kn_store_close(&store);
    ((uint8_t *)data)[n / 2] ^= 4;
    raw_change(&f, "chunk", key.text, data, n); /* one bit of the payload */
    store = store_open(&f, 0, 0, false);
    assert_int_equal(kni_store_get(store, key.text, &entry, &buf, &err), KN_E_FORMAT);
    assert_non_null(strstr(err.text, "checksum"));
    n_bad = 0;
    assert_int_equal(kn_store_verify(store, note_verdict, NULL), KN_E_FORMAT);
    assert_int_equal(n_bad, 1);
    other = entry;
    other.created_s++;
    assert_int_equal(kni_store_drop(store, key.text, &other, NULL), KN_OK); /* a newer one would stay */
    assert_true(has(store, 5, LAYERS));
    assert_int_equal(try_put(store, 5, LAYERS), KN_OK); /* same entry, damaged data: written anew, not taken for the same */
    assert_int_equal(kni_store_get(store, key.text, &entry, &buf, &err), KN_OK);
    assert_int_equal(kni_store_drop(store, key.text, &entry, NULL), KN_OK);
    assert_false(has(store, 5, LAYERS));
    assert_int_equal(try_put(store, 5, LAYERS), KN_OK);
    kn_store_close(&store);
    raw_change(&f, "chunk", key.text, data, n / 3); /* cut short */
    store = store_open(&f, 0, 0, false);
    assert_false(has(store, 5, LAYERS));
    assert_int_equal(kni_store_get(store, key.text, &entry, &buf, &err), KN_E_FORMAT);
    kn_store_close(&store);
    raw_change(&f, "manifest", key.text, data, 96); /* rubbish for an entry */
    store = store_open(&f, 0, 0, false);
    assert_false(has(store, 5, LAYERS));
    assert_int_equal(kni_store_get(store, key.text, &entry, &buf, &err), KN_E_FORMAT);
    n_bad = 0;
    assert_int_equal(kn_store_verify(store, note_verdict, NULL), KN_E_FORMAT);
    assert_int_equal(n_bad, 1);
    assert_int_equal(kn_store_gc(store, NULL, NULL), KN_OK);
    assert_int_equal(kn_store_verify(store, NULL, NULL), KN_OK);
    kn_store_close(&store);
    kni_store_buf_fini(&buf);
    kni_free(data);
    folder_remove(&f);
}

/* Checksums fit, but the content is not what the entry says: somebody stored the wrong container under the key. */
static void wrong_content_fails_verification(void **state)
{
    struct folder f;
    struct kni_chunk_meta m, wrong;
    struct kni_store_key key;
    size_t n;
    (void)state;
    folder_make(&f);
    struct kn_store *store = store_open(&f, 0, 0, false);
    void *data = test_container(1, LAYERS, &m, &n);
    kni_store_key_make(&key, &m, NULL, NULL);
    wrong = m;
    wrong.first_token += 16;
    assert_int_equal(kni_store_put(store, key.text, &wrong, data, n, NULL), KN_OK);
    assert_int_equal(kn_store_verify(store, NULL, NULL), KN_E_FORMAT);
    wrong = m;
    wrong.fingerprint[3] ^= 1;
    assert_int_equal(kni_store_put(store, key.text, &wrong, data, n, NULL), KN_OK);
    assert_int_equal(kn_store_verify(store, NULL, NULL), KN_E_FORMAT);
    assert_int_equal(kni_store_put(store, key.text, &m, data, n, NULL), KN_OK);
    assert_int_equal(kn_store_verify(store, NULL, NULL), KN_OK);
    assert_int_equal(kni_store_put(store, key.text, &m, "no container", 12, NULL), KN_OK);
    assert_int_equal(kn_store_verify(store, NULL, NULL), KN_E_FORMAT);
    kni_free(data);
    kn_store_close(&store);
    folder_remove(&f);
}

static void two_handles_share_an_environment(void **state)
{
    struct folder f;
    (void)state;
    folder_make(&f);
    struct kn_store *a = store_open(&f, 0, 0, false);
    assert_int_equal(try_put(a, 1, LAYERS), KN_OK);
    kn_store_close(&a);
    struct kn_store *reader = store_open(&f, 0, 0, true);
    assert_true(has(reader, 1, LAYERS));
    a = store_open(&f, 1ull << 36, 0, false); /* writes where the first handle only reads, with a larger map */
    struct kn_store *b = store_open(&f, 0, 0, false);
    assert_int_equal(try_put(a, 2, LAYERS), KN_OK);
    assert_int_equal(try_put(b, 3, LAYERS), KN_OK);
    assert_int_equal(try_put(reader, 4, LAYERS), KN_E_STATE);
    assert_true(has(reader, 2, LAYERS) && has(reader, 3, LAYERS) && has(b, 2, LAYERS));
    kn_store_close(&a);
    assert_true(has(b, 1, LAYERS));
    kn_store_close(&reader);
    assert_int_equal(try_put(b, 5, LAYERS), KN_OK);
    kn_store_close(&b);
    folder_remove(&f);
}

/* Children must not open what their parent has open, so the parent opens after the fork. */
static void two_processes_publish_the_same_chunks(void **state)
{
    struct folder f;
    struct kn_store_stat st = {.size = sizeof st};
    (void)state;
    folder_make(&f);
    pid_t children[3];
    for (int c = 0; c < 3; c++)
        if ((children[c] = fork()) == 0) {
            struct kn_store *store = store_open(&f, 0, 0, false);
            int bad = 0;
            for (uint64_t i = 0; i < 20; i++)
                bad |= try_put(store, i, LAYERS) != KN_OK;
            for (uint64_t i = 0; i < 20; i++)
                bad |= !has(store, i, LAYERS);
            kn_store_close(&store);
            _exit(bad);
        }
    for (int c = 0; c < 3; c++) {
        int status;
        assert_int_equal(waitpid(children[c], &status, 0), children[c]);
        assert_int_equal(status, 0);
    }
    struct kn_store *store = store_open(&f, 0, 0, true);
    assert_int_equal(kn_store_stat(store, &st), KN_OK);
    assert_int_equal(st.n_chunks, 20);
    assert_int_equal(st.n_orphans, 0);
    assert_int_equal(kn_store_verify(store, NULL, NULL), KN_OK);
    kn_store_close(&store);
    folder_remove(&f);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(put_get_lookup),
        cmocka_unit_test(same_chunk_twice_is_renewed),
        cmocka_unit_test(eviction_takes_the_least_recently_used),
        cmocka_unit_test(of_equal_age_the_end_of_a_prefix_goes_first),
        cmocka_unit_test(expired_chunks_are_not_served),
        cmocka_unit_test(collection_removes_orphans_and_halves),
        cmocka_unit_test(removal_by_prefix),
        cmocka_unit_test(damage_is_found_and_healed),
        cmocka_unit_test(wrong_content_fails_verification),
        cmocka_unit_test(two_handles_share_an_environment),
        cmocka_unit_test(two_processes_publish_the_same_chunks),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
