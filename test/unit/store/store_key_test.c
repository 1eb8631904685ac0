/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Keys and manifest entries as bytes. The golden vectors pin what every process and every machine must compute: a change
 * here makes all stored chunks unreachable and needs a new container version, not a new vector.
 */
#include "unit/store/store_support.h"

#include "kv/chain.h"

static void golden_key(void **state)
{
    struct kni_store_key key;
    struct kni_chunk_meta m = {.preset = KN_PRESET_EXACT, .n_tokens = 256, .first_token = 0, .kv = {.n_layer = 30, .n_kv_head = 3, .d_head = 64}};
    int32_t tokens[256];
    (void)state;
    for (int i = 0; i < 16; i++)
        m.fingerprint[i] = (uint8_t)i;
    for (int i = 0; i < 256; i++)
        tokens[i] = i * 191 - 7;
    m.chain = kni_chain_seed(m.fingerprint, "tenant");
    for (int i = 0; i < 256; i += 16)
        m.chain = kni_chain_next(&m.chain, tokens + i, 16);
    kni_store_key_make(&key, &m, NULL, NULL);
    assert_string_equal(key.text, "kn1:000102030405060708090a0b0c0d0e0f:00000000000000000000000000000000:fd85c00d368edeab26794b1dde2fd178:exact-f16-256-v3");
    m.preset = KN_PRESET_TILES;
    m.kv.type = KN_KV_TYPE_BF16;
    struct kn_tiles_opts t = {.levels = 32, .tokens_per_picture = 128};
    kni_store_key_make(&key, &m, &t, NULL);
    assert_string_equal(key.text, "kn1:000102030405060708090a0b0c0d0e0f:00000000000000000000000000000000:fd85c00d368edeab26794b1dde2fd178:tiles-bf16-256-v3-l32-p128-h0");
    m.preset = KN_PRESET_MEDIUM;
    memset(m.profile, 0xa5, 16);
    kni_store_key_make(&key, &m, &t, NULL);
    assert_string_equal(key.text, "kn1:000102030405060708090a0b0c0d0e0f:a5a5a5a5a5a5a5a5a5a5a5a5a5a5a5a5:fd85c00d368edeab26794b1dde2fd178:medium-bf16-256-v3-rans");
    m.backend = KNI_BACKEND_ID_HEVC;
    kni_store_key_make(&key, &m, NULL, NULL);
    assert_string_equal(key.text, "kn1:000102030405060708090a0b0c0d0e0f:a5a5a5a5a5a5a5a5a5a5a5a5a5a5a5a5:fd85c00d368edeab26794b1dde2fd178:medium-bf16-256-v3-hevc");
    kni_store_key_make(&key, &m, NULL, &(struct kn_hevc_opts){.tools = KN_HEVC_TOOLS_BASIC});
    assert_non_null(strstr(key.text, ":medium-bf16-256-v3-hevc-basic"));
    assert_true(kni_store_key_is_valid(key.text));
}

/* Whatever makes two contents incompatible makes two keys. */
static void every_setting_has_its_own_key(void **state)
{
    struct kni_store_key keys[24];
    struct kni_chunk_meta m;
    struct kn_tiles_opts t = {0};
    int n = 0;
    (void)state;
    test_meta(&m, 1, 2);
    kni_store_key_make(&keys[n++], &m, &t, NULL);
    m.kv.type = KN_KV_TYPE_BF16;
    kni_store_key_make(&keys[n++], &m, &t, NULL);
    m.n_tokens *= 2;
    kni_store_key_make(&keys[n++], &m, &t, NULL);
    m.chain.bytes[15] ^= 1;
    kni_store_key_make(&keys[n++], &m, &t, NULL);
    m.fingerprint[0] ^= 1;
    kni_store_key_make(&keys[n++], &m, &t, NULL);
    m.profile[0] ^= 1;
    kni_store_key_make(&keys[n++], &m, &t, NULL);
    m.preset = KN_PRESET_TILES;
    kni_store_key_make(&keys[n++], &m, &t, NULL);
    t.levels = 16;
    kni_store_key_make(&keys[n++], &m, &t, NULL);
    t.tokens_per_picture = 16;
    kni_store_key_make(&keys[n++], &m, &t, NULL);
    t.tile_height = 4;
    kni_store_key_make(&keys[n++], &m, &t, NULL);
    for (m.preset = KN_PRESET_FINE; m.preset <= KN_PRESET_SMALL; m.preset++)
        for (m.backend = KNI_BACKEND_ID_HEVC; m.backend <= KNI_BACKEND_ID_RANS; m.backend++)
            kni_store_key_make(&keys[n++], &m, &t, NULL);
    struct kn_hevc_opts basic = {.tools = KN_HEVC_TOOLS_BASIC}, full = {.tools = KN_HEVC_TOOLS_FULL, .encoder = KN_HEVC_ENCODER_X265_MEDIUM, .n_slices = 4};
    m.preset = KN_PRESET_TILES;
    kni_store_key_make(&keys[n++], &m, &t, &basic);
    m.preset = KN_PRESET_SMALL;
    m.backend = KNI_BACKEND_ID_HEVC;
    kni_store_key_make(&keys[n++], &m, &t, &basic);
    for (int i = 0; i < n; i++)
        for (int k = 0; k < i; k++)
            assert_string_not_equal(keys[i].text, keys[k].text);
    m.preset = KN_PRESET_TILES;
    m.backend = 0;
    t = (struct kn_tiles_opts){.levels = 64};
    struct kn_tiles_opts zero = {0};
    kni_store_key_make(&keys[0], &m, &t, NULL);
    kni_store_key_make(&keys[1], &m, &zero, NULL);
    kni_store_key_make(&keys[2], &m, NULL, NULL);
    assert_string_equal(keys[0].text, keys[1].text); /* the default, said or not */
    assert_string_equal(keys[0].text, keys[2].text);
    kni_store_key_make(&keys[1], &m, &t, &full); /* who coded it makes no difference to who reads it */
    assert_string_equal(keys[0].text, keys[1].text);
    m.preset = KN_PRESET_MEDIUM;
    m.backend = KNI_BACKEND_ID_RANS;
    kni_store_key_make(&keys[0], &m, &t, &basic);
    kni_store_key_make(&keys[1], &m, &t, NULL);
    assert_string_equal(keys[0].text, keys[1].text); /* there is no video */
}

static void longest_key_fits(void **state)
{
    struct kni_store_key key;
    struct kni_chunk_meta m;
    struct kn_tiles_opts t = {.levels = UINT32_MAX, .tokens_per_picture = UINT32_MAX, .tile_height = UINT32_MAX};
    (void)state;
    test_meta(&m, 1, 2);
    m.preset = KN_PRESET_TILES;
    m.kv.type = KN_KV_TYPE_BF16;
    m.n_tokens = UINT32_MAX;
    kni_store_key_make(&key, &m, &t, &(struct kn_hevc_opts){.tools = KN_HEVC_TOOLS_BASIC});
    assert_true(kni_store_key_is_valid(key.text));
}

static void malformed_keys_are_refused(void **state)
{
    char longest[KNI_STORE_KEY_BYTES + 1];
    struct folder f;
    struct kni_chunk_meta m;
    struct kni_store_buf buf = {0};
    (void)state;
    memset(longest, 'k', sizeof longest);
    longest[KNI_STORE_KEY_BYTES] = 0;
    const char *bad[] = {"", " ", "kn1:a b", "kn1:\n", "kn1:\x7f", "kn1:\xc3\xa9", longest};
    folder_make(&f);
    struct kn_store *store = store_open(&f, 0, 0, false);
    test_meta(&m, 1, 2);
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        assert_false(kni_store_key_is_valid(bad[i]));
        assert_int_equal(kni_store_put(store, bad[i], &m, "x", 1, NULL), KN_E_ARG);
        assert_int_equal(kni_store_get(store, bad[i], NULL, &buf, NULL), KN_E_ARG);
        assert_int_equal(kni_store_drop(store, bad[i], NULL, NULL), KN_E_ARG);
    }
    longest[KNI_STORE_KEY_BYTES - 1] = 0;
    assert_int_equal(kni_store_put(store, longest, &m, "x", 1, NULL), KN_OK);
    assert_int_equal(kni_store_put(store, "kn1:org/model@rev", &m, "x", 1, NULL), KN_OK); /* nothing in a key is parsed */
    assert_int_equal(kni_store_put(store, "kn1:empty", &m, "", 0, NULL), KN_E_ARG);
    kn_store_close(&store);
    folder_remove(&f);
}

static void entries_survive_and_damage_shows(void **state)
{
    struct kni_store_entry e = {.n_bytes = 0x0102030405060708, .xxh3 = 0x1112131415161718, .created_s = 1700000000, .last_used_s = 1700000001, .ttl_s = 86400,
                                .first_token = 512, .n_tokens = 256, .preset = "exact"}, d;
    uint8_t bytes[KNI_STORE_ENTRY_BYTES], copy[KNI_STORE_ENTRY_BYTES + 1];
    (void)state;
    memset(e.fingerprint, 0xab, 16);
    kni_store_entry_encode(&e, bytes);
    static const uint8_t head[] = {1, 0, 0, 0, 0, 1, 0, 0, 8, 7, 6, 5, 4, 3, 2, 1, 0x18, 0x17};
    assert_memory_equal(bytes, head, sizeof head); /* little-endian */
    assert_int_equal(kni_store_entry_decode(&d, bytes, sizeof bytes), KN_OK);
    assert_memory_equal(&d, &e, sizeof e);
    for (size_t i = 0; i < sizeof bytes; i++)
        for (int bit = 0; bit < 8; bit++) {
            memcpy(copy, bytes, sizeof bytes);
            copy[i] ^= (uint8_t)(1u << bit);
            assert_int_not_equal(kni_store_entry_decode(&d, copy, sizeof bytes), KN_OK);
        }
    for (size_t n = 0; n < sizeof copy; n++)
        if (n != sizeof bytes)
            assert_int_equal(kni_store_entry_decode(&d, copy, n), KN_E_FORMAT);
    memcpy(copy, bytes, sizeof bytes);
    copy[0] = 2;
    assert_int_equal(kni_store_entry_decode(&d, copy, sizeof bytes), KN_E_MISMATCH); /* a later version */
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(golden_key),
        cmocka_unit_test(every_setting_has_its_own_key),
        cmocka_unit_test(longest_key_fits),
        cmocka_unit_test(malformed_keys_are_refused),
        cmocka_unit_test(entries_survive_and_damage_shows),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
