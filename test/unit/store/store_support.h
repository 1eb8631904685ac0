/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What the store and fetch tests share: a temporary folder with a store URL, small real containers (encoded by the codec
 * from values that follow from a seed), and raw access to the LMDB file, to damage it as no Kinema would.
 */
#ifndef KN_TEST_STORE_SUPPORT_H
#define KN_TEST_STORE_SUPPORT_H

#include <lmdb.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

#include "store/store.h"

#define TEST_CHUNK 32u /* tokens */

struct folder { char path[64], url[80]; };

static inline void folder_make(struct folder *f)
{
    snprintf(f->path, sizeof f->path, "/tmp/kn-store-XXXXXX");
    assert_non_null(mkdtemp(f->path));
    snprintf(f->url, sizeof f->url, "lmdb:%s", f->path);
}

static inline void folder_remove(const struct folder *f)
{
    char command[128];
    snprintf(command, sizeof command, "rm -rf '%s'", f->path);
    assert_int_equal(system(command), 0);
}

static inline struct kn_store *store_open(const struct folder *f, uint64_t max_bytes, uint64_t ttl_s, bool read_only)
{
    struct kn_store *store = NULL;
    struct kn_err err = {0};
    struct kn_store_opts o = {.size = sizeof o, .url = f->url, .max_bytes = max_bytes, .ttl_s = ttl_s, .read_only = read_only};
    if (kn_store_open(&store, &o, &err))
        fail_msg("open: %s", err.text);
    return store;
}

static inline uint64_t mix(uint64_t x)
{
    x += 0x9e3779b97f4a7c15u;
    x = (x ^ x >> 30) * 0xbf58476d1ce4e5b9u;
    x = (x ^ x >> 27) * 0x94d049bb133111ebu;
    return x ^ x >> 31;
}

static inline void test_meta(struct kni_chunk_meta *m, uint64_t seed, uint32_t n_layer)
{
    *m = (struct kni_chunk_meta){.preset = KN_PRESET_EXACT, .first_token = (uint32_t)(seed % 8) * TEST_CHUNK, .n_tokens = TEST_CHUNK,
                                 .kv = {.n_layer = n_layer, .n_kv_head = 1, .d_head = 32, .type = KN_KV_TYPE_F16}};
    memset(m->fingerprint, 0x5a, 16);
    uint64_t a = mix(seed), b = mix(a);
    memcpy(m->chain.bytes, &a, 8);
    memcpy(m->chain.bytes + 8, &b, 8);
}

/* A container whose bytes follow from seed (incompressible: n_layer * 4 KiB and a little). kni_free it. */
static inline void *test_container(uint64_t seed, uint32_t n_layer, struct kni_chunk_meta *m, size_t *n_bytes)
{
    struct kni_codec *codec = NULL;
    struct kni_codec_opts co = {.preset = KN_PRESET_EXACT};
    struct kn_err err = {0};
    void *data = NULL;
    test_meta(m, seed, n_layer);
    uint32_t n_blocks = TEST_CHUNK / 16, end = (m->first_token + m->n_tokens) / 16, table[32] = {0};
    size_t n_values = n_blocks * kni_kv_block_values(&m->kv);
    uint16_t *values = malloc(n_values * 2);
    assert_non_null(values);
    for (size_t i = 0; i < n_values; i++)
        values[i] = (uint16_t)(mix(seed * 1000003 + i) & (i % 2 ? 0xbfff : 0xf7ff)); /* no exponent of all ones: finite, f16 or bf16 */
    for (uint32_t i = 0; i < n_blocks; i++)
        table[end - n_blocks + i] = i;
    const struct kni_kv_host view = kni_kv_host_by_block(&m->kv, values, table, end);
    assert_int_equal(kni_codec_open(&codec, &co, &err), KN_OK);
    if (kni_chunk_encode(codec, m, &view, &data, n_bytes, &err))
        fail_msg("encode: %s", err.text);
    kni_codec_close(&codec);
    free(values);
    return data;
}

static inline void test_key(uint64_t seed, uint32_t n_layer, struct kni_store_key *key)
{
    struct kni_chunk_meta m;
    test_meta(&m, seed, n_layer);
    kni_store_key_make(key, &m, NULL, NULL);
}

static inline enum kn_status try_put(struct kn_store *store, uint64_t seed, uint32_t n_layer)
{
    struct kni_chunk_meta m;
    struct kni_store_key key;
    struct kn_err err = {0};
    size_t n;
    void *data = test_container(seed, n_layer, &m, &n);
    kni_store_key_make(&key, &m, NULL, NULL);
    enum kn_status s = kni_store_put(store, key.text, &m, data, n, &err);
    kni_free(data);
    return s;
}

static inline bool has(struct kn_store *store, uint64_t seed, uint32_t n_layer)
{
    struct kni_store_key key;
    uint32_t n = 0;
    test_key(seed, n_layer, &key);
    assert_int_equal(kni_store_lookup(store, &key, 1, &n, NULL), KN_OK);
    return n == 1;
}

/* ---- raw LMDB; only while no Kinema handle of this process is open on the folder */

static inline void raw_change(const struct folder *f, const char *table, const char *key, const void *data, size_t n_bytes)
{
    MDB_env *env;
    MDB_txn *txn;
    MDB_dbi dbi;
    MDB_val k = {strlen(key), (void *)(uintptr_t)key}, v = {n_bytes, (void *)(uintptr_t)data};
    assert_int_equal(mdb_env_create(&env), 0);
    mdb_env_set_maxdbs(env, 8);
    mdb_env_set_mapsize(env, 256u << 20);
    assert_int_equal(mdb_env_open(env, f->path, 0, 0666), 0);
    assert_int_equal(mdb_txn_begin(env, NULL, 0, &txn), 0);
    assert_int_equal(mdb_dbi_open(txn, table, MDB_CREATE, &dbi), 0);
    assert_int_equal(data ? mdb_put(txn, dbi, &k, &v, 0) : mdb_del(txn, dbi, &k, NULL), 0);
    assert_int_equal(mdb_txn_commit(txn), 0);
    mdb_env_close(env);
}

#endif
