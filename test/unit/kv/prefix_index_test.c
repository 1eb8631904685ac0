/* SPDX-License-Identifier: Apache-2.0 */
/* The prefix index: hits, partial hits, removal out of the middle of full buckets. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "kv/chain.h"
#include "kv/prefix_index.h"

static struct kni_hash hash_of(uint32_t i)
{
    struct kni_hash h = kni_hash_bytes(&i, sizeof i);
    memset(h.bytes, 0, 4); /* everything in one bucket */
    return h;
}

static void test_one_bucket(void **state)
{
    (void)state;
    enum { N = 40 };
    struct kni_prefix_index index;
    int32_t tokens[N][16];
    assert_int_equal(kni_prefix_index_init(&index, N), KN_OK);
    struct kni_hash parent = hash_of(1000);
    for (uint32_t i = 0; i < N; i++) {
        struct kni_hash own = hash_of(i);
        for (int t = 0; t < 16; t++)
            tokens[i][t] = t < (int)(i % 16) ? t : 100 + (int)i;
        assert_true(kni_prefix_index_insert(&index, i, &parent, &own, tokens[i], KN_KV_QUALITY_EXACT));
        assert_null(kni_prefix_index_check(&index));
    }
    struct kni_hash third = hash_of(3);
    assert_int_equal(kni_prefix_index_find(&index, &third, tokens[3]), 3);
    assert_int_equal(kni_prefix_index_find(&index, &third, tokens[4]), KNI_NO_BLOCK); /* the ids decide */
    int32_t want[16] = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 99};
    uint32_t m, block = kni_prefix_index_find_partial(&index, &parent, want, 16, KN_KV_QUALITY_ANY, &m);
    assert_int_equal(m, 15);
    assert_int_equal(block % 16, 15);
    kni_prefix_index_find_partial(&index, &parent, want, 7, KN_KV_QUALITY_ANY, &m);
    assert_int_equal(m, 7); /* never more than asked for */
    want[0] = -1;
    assert_int_equal(kni_prefix_index_find_partial(&index, &parent, want, 16, KN_KV_QUALITY_ANY, &m), KNI_NO_BLOCK);
    assert_int_equal(m, 0);
    assert_int_equal(kni_prefix_index_find_partial(&index, &third, tokens[3], 16, KN_KV_QUALITY_ANY, &m), KNI_NO_BLOCK); /* another parent */
    for (uint32_t i = 0; i < N; i++) { /* from the middle outwards */
        uint32_t b = (i * 7 + 19) % N;
        struct kni_hash own = hash_of(b);
        kni_prefix_index_remove(&index, b);
        assert_null(kni_prefix_index_check(&index));
        assert_int_equal(kni_prefix_index_find(&index, &own, tokens[b]), KNI_NO_BLOCK);
    }
    assert_int_equal(index.n_used, 0);
    kni_prefix_index_fini(&index);
}

static void test_duplicate(void **state)
{
    (void)state;
    struct kni_prefix_index index;
    assert_int_equal(kni_prefix_index_init(&index, 2), KN_OK);
    struct kni_hash parent = hash_of(1), own = hash_of(2);
    int32_t tokens[16] = {0};
    assert_true(kni_prefix_index_insert(&index, 0, &parent, &own, tokens, KN_KV_QUALITY_EXACT));
    assert_false(kni_prefix_index_insert(&index, 1, &parent, &own, tokens, KN_KV_QUALITY_EXACT));
    assert_false(kni_prefix_index_has(&index, 1));
    assert_null(kni_prefix_index_check(&index));
    kni_prefix_index_fini(&index);
}

/* One after the other, however many blocks follow one parent: the number of entries that are looked at stays small. */
static void test_many_siblings(void **state)
{
    (void)state;
    enum { N = 150000 };
    struct kni_prefix_index index;
    const struct kni_hash parent = kni_hash_bytes("parent", 6);
    int32_t tokens[16] = {0}, want[16] = {0};
    uint32_t m, most = 0;
    assert_int_equal(kni_prefix_index_init(&index, N), KN_OK);
    for (uint32_t i = 0; i < N; i++) { /* 0 to 15 first tokens in common, then their own */
        struct kni_hash own = kni_hash_bytes(&i, sizeof i);
        for (uint32_t t = 0; t < 16; t++)
            tokens[t] = t < i % 16 ? 7 : (int32_t)(1000 + i);
        uint64_t before = index.n_probes;
        assert_true(kni_prefix_index_insert(&index, i, &parent, &own, tokens, i % 3 ? KN_KV_QUALITY_SMALL : KN_KV_QUALITY_EXACT));
        most = index.n_probes - before > most ? (uint32_t)(index.n_probes - before) : most;
    }
    for (uint32_t n = 0; n <= 16; n++) {
        for (uint32_t t = 0; t < 16; t++)
            want[t] = t < n ? 7 : -1;
        uint64_t before = index.n_probes;
        uint32_t block = kni_prefix_index_find_partial(&index, &parent, want, 16, KN_KV_QUALITY_ANY, &m);
        assert_int_equal(m, n < 15 ? n : 15);
        assert_true(n ? block != KNI_NO_BLOCK : block == KNI_NO_BLOCK);
        block = kni_prefix_index_find_partial(&index, &parent, want, 16, KN_KV_QUALITY_FINE, &m);
        assert_true(block == KNI_NO_BLOCK || index.entries[block].quality == KN_KV_QUALITY_EXACT); /* the worse are not in the way */
        assert_int_equal(m, n < 15 ? n : 15);
        most = index.n_probes - before > most ? (uint32_t)(index.n_probes - before) : most;
    }
    for (uint32_t i = 0; i < N; i++) { /* heads of long rings first, then others */
        uint32_t b = i < N / 2 ? i : N - 1 - (i - N / 2);
        uint64_t before = index.n_probes;
        kni_prefix_index_remove(&index, b);
        most = index.n_probes - before > most ? (uint32_t)(index.n_probes - before) : most;
        if (i % 50000 == 17)
            assert_null(kni_prefix_index_check(&index));
    }
    assert_int_equal(index.n_used, 0);
    assert_null(kni_prefix_index_check(&index));
    print_message("at most %u entries looked at for one call, of %u\n", most, (unsigned)N);
    assert_true(most < 200); /* 16 tables, less than one entry a bucket on average */
    kni_prefix_index_fini(&index);
}

/* Names must not change between versions: stores are keyed by them. */
static void test_chain(void **state)
{
    (void)state;
    const uint8_t fp[16] = {0}, fp2[16] = {1};
    struct kni_hash a = kni_chain_seed(fp, NULL), b = kni_chain_seed(fp, ""), c = kni_chain_seed(fp, "t"), d = kni_chain_seed(fp2, NULL);
    assert_true(kni_hash_equal(&a, &b));
    assert_false(kni_hash_equal(&a, &c));
    assert_false(kni_hash_equal(&a, &d));
    int32_t t[16] = {1, 2, 3}, u[16] = {1, 2, 4};
    struct kni_hash x = kni_chain_next(&a, t, 16), y = kni_chain_next(&a, u, 16), z = kni_chain_next(&c, t, 16);
    assert_false(kni_hash_equal(&x, &y));
    assert_false(kni_hash_equal(&x, &z));

    /* Computed with Python: blake2b(16, key="kinema-chain-1\\0\\0") over bytes 0..15 and "tenant"; then over that and the ids. */
    static const uint8_t seed_want[16] = {0x20, 0x9d, 0xf1, 0x8d, 0xd5, 0x1a, 0x23, 0x96, 0x65, 0x11, 0x3d, 0x1c, 0xc9, 0x99, 0x56, 0x4a};
    static const uint8_t next_want[16] = {0x7a, 0x76, 0x50, 0x4c, 0x0f, 0xd1, 0xe2, 0x25, 0x6d, 0x0e, 0xb7, 0x3f, 0x78, 0x5e, 0x86, 0x11};
    uint8_t fp3[16];
    int32_t v[16];
    for (int i = 0; i < 16; i++)
        fp3[i] = (uint8_t)i, v[i] = i * 1000;
    struct kni_hash seed = kni_chain_seed(fp3, "tenant"), next = kni_chain_next(&seed, v, 16);
    assert_memory_equal(seed.bytes, seed_want, 16);
    assert_memory_equal(next.bytes, next_want, 16);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_one_bucket), cmocka_unit_test(test_duplicate), cmocka_unit_test(test_many_siblings), cmocka_unit_test(test_chain)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
