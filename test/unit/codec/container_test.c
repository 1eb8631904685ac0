/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The container: what is written is read; no damage passes (every header byte, every length, payload bits, sizes that lie
 * under a right checksum); another version, model or shape is KN_E_MISMATCH and names the field.
 */
#include "unit/codec/codec_support.h"

#include "base/le.h"
#include "support/refresh_checksums.h"

static void make(struct pool *pool, void **data, size_t *n)
{
    struct kni_chunk_meta m = test_meta(pool, 16, 32);
    struct kni_codec *codec = test_codec(KN_PRESET_EXACT, (struct kn_tiles_opts){0});
    struct kn_err err = {0};
    assert_int_equal(kni_chunk_encode(codec, &m, &pool->view, data, n, &err), KN_OK);
    kni_codec_close(&codec);
}

static struct pool small_pool(void)
{
    return pool_make(2, 2, 8, KN_KV_TYPE_F16, 64);
}

static void round_trip(void **state)
{
    (void)state;
    struct pool pool = small_pool();
    void *data;
    size_t n;
    make(&pool, &data, &n);
    struct kni_chunk_meta want = test_meta(&pool, 16, 32), have;
    struct kn_err err = {0};
    assert_int_equal(kni_chunk_read_meta(data, n, &have, &err), KN_OK);
    assert_memory_equal(have.fingerprint, want.fingerprint, 16);
    assert_memory_equal(have.profile, want.profile, 16);
    assert_memory_equal(have.chain.bytes, want.chain.bytes, 16);
    assert_int_equal(have.preset, KN_PRESET_EXACT);
    assert_int_equal(have.first_token, 16);
    assert_int_equal(have.n_tokens, 32);
    assert_int_equal(have.kv.n_layer, 2);
    assert_int_equal(have.kv.n_kv_head, 2);
    assert_int_equal(have.kv.d_head, 8);
    assert_int_equal(have.kv.type, KN_KV_TYPE_F16);
    assert_int_equal(kni_chunk_verify(data, n, &err), KN_OK);
    kni_free(data);
    pool_free(&pool);
}

static void every_byte_counts(void **state)
{
    (void)state;
    struct pool pool = small_pool();
    void *data;
    size_t n;
    make(&pool, &data, &n);
    struct kni_codec *codec = test_codec(KN_PRESET_EXACT, (struct kn_tiles_opts){0});
    struct kni_chunk_meta m = test_meta(&pool, 16, 32), have;
    uint8_t *b = data;
    size_t header = kni_le32_get(b + 8);
    for (size_t i = 0; i < n; i++)
        for (unsigned flip = 1; flip < 256; flip = flip == 1 ? 0x80 : flip == 0x80 ? 0xff : 256) {
            struct kn_err err = {0};
            b[i] ^= (uint8_t)flip;
            enum kn_status s = kni_chunk_verify(data, n, &err);
            assert_true(s == KN_E_FORMAT || (s == KN_E_MISMATCH && i >= 4 && i < 8));
            assert_true(err.status == s && err.text[0]);
            if (i < header)
                assert_int_equal(kni_chunk_read_meta(data, n, &have, NULL), s);
            assert_int_equal(kni_chunk_restore(codec, data, n, &m, &pool.view, NULL), s);
            b[i] ^= (uint8_t)flip;
        }
    assert_int_equal(kni_chunk_verify(data, n, NULL), KN_OK);
    kni_codec_close(&codec);
    kni_free(data);
    pool_free(&pool);
}

static void every_length(void **state)
{
    (void)state;
    struct pool pool = small_pool();
    void *data;
    size_t n;
    make(&pool, &data, &n);
    struct kni_codec *codec = test_codec(KN_PRESET_EXACT, (struct kn_tiles_opts){0});
    struct kni_chunk_meta m = test_meta(&pool, 16, 32), have;
    for (size_t k = 0; k < n; k++) {
        uint8_t *cut = malloc(k ? k : 1); /* exact size: sanitizers see any overread */
        assert_non_null(cut);
        memcpy(cut, data, k);
        assert_int_equal(kni_chunk_read_meta(cut, k, &have, NULL), KN_E_FORMAT);
        assert_int_equal(kni_chunk_verify(cut, k, NULL), KN_E_FORMAT);
        assert_int_equal(kni_chunk_restore(codec, cut, k, &m, &pool.view, NULL), KN_E_FORMAT);
        free(cut);
    }
    uint8_t *padded = malloc(n + 1);
    assert_non_null(padded);
    memcpy(padded, data, n);
    padded[n] = 0;
    assert_int_equal(kni_chunk_verify(padded, n + 1, NULL), KN_E_FORMAT);
    free(padded);
    kni_codec_close(&codec);
    kni_free(data);
    pool_free(&pool);
}

/* Fields that lie although the checksums fit: whoever can write to a store can also compute a checksum. */
static void lies_under_checksum(void **state)
{
    (void)state;
    struct pool pool = small_pool();
    void *data;
    size_t n;
    make(&pool, &data, &n);
    static const struct { uint32_t at, value; enum kn_status want; } lies[] = {
        {4, 2, KN_E_MISMATCH},           {4, 4, KN_E_MISMATCH},         {8, 0, KN_E_FORMAT},          {8, UINT32_MAX, KN_E_FORMAT}, {12, 7, KN_E_FORMAT},
        {12, 9, KN_E_FORMAT},            {12, UINT32_MAX, KN_E_FORMAT}, {16, 0, KN_E_FORMAT},        {20, 1, KN_E_FORMAT},
        {72, 8, KN_E_FORMAT},            {72, 0x7ffffff0, KN_E_FORMAT}, {76, 0, KN_E_FORMAT},        {76, 24, KN_E_FORMAT},
        {76, 0x10000000, KN_E_FORMAT},   {80, 0, KN_E_FORMAT},         {80, 1u << 20, KN_E_FORMAT},  {84, 0, KN_E_FORMAT},
        {84, UINT32_MAX, KN_E_FORMAT},   {88, 0, KN_E_FORMAT},         {88, 1u << 30, KN_E_FORMAT},  {92, 0x01010102, KN_E_FORMAT},
        {116, 1, KN_E_FORMAT},           {120, 1, KN_E_FORMAT},          {124, 1u << 31, KN_E_FORMAT}, {136, 0, KN_E_FORMAT},        {136, UINT32_MAX, KN_E_FORMAT},
        {144, UINT32_MAX, KN_E_FORMAT},  {148, UINT32_MAX, KN_E_FORMAT}, {144, 0, KN_E_FORMAT},
    };
    uint8_t *copy = malloc(n);
    assert_non_null(copy);
    for (size_t i = 0; i < sizeof lies / sizeof *lies; i++) {
        memcpy(copy, data, n);
        kni_le32_put(copy + lies[i].at, lies[i].value);
        kn_refresh_checksums(copy, n);
        struct kn_err err = {0};
        struct kni_chunk_meta have;
        enum kn_status s = kni_chunk_read_meta(copy, n, &have, &err);
        if (s != lies[i].want)
            fail_msg("lie %zu at offset %u: %s (%s)", i, lies[i].at, kn_status_name(s), err.text);
    }
    free(copy);
    kni_free(data);
    pool_free(&pool);
}

static void wrong_sections(void **state)
{
    (void)state;
    struct pool pool = small_pool();
    void *data;
    size_t n;
    make(&pool, &data, &n);
    struct kni_codec *codec = test_codec(KN_PRESET_EXACT, (struct kn_tiles_opts){0});
    struct kni_chunk_meta m = test_meta(&pool, 16, 32);
    uint8_t *b = data;
    for (int field = 0; field < 8; field += 4) { /* kind, index */
        uint32_t was = kni_le32_get(b + 128 + field);
        kni_le32_put(b + 128 + field, was + 1);
        kn_refresh_checksums(data, n);
        assert_int_equal(kni_chunk_verify(data, n, NULL), KN_OK);
        assert_int_equal(kni_chunk_restore(codec, data, n, &m, &pool.view, NULL), KN_E_FORMAT);
        kni_le32_put(b + 128 + field, was);
    }
    for (int at = 96; at < 116; at += 4) { /* tiling, which exact does not have */
        kni_le32_put(b + at, 8);
        kn_refresh_checksums(data, n);
        assert_int_equal(kni_chunk_restore(codec, data, n, &m, &pool.view, NULL), KN_E_FORMAT);
        kni_le32_put(b + at, 0);
    }
    for (int at = 94; at < 96; at++) { /* layout, backend: from a newer writer, so a miss */
        b[at] += 40;
        kn_refresh_checksums(data, n);
        assert_int_equal(kni_chunk_restore(codec, data, n, &m, &pool.view, NULL), KN_E_MISMATCH);
        b[at] = (uint8_t)(b[at] - 40);
    }
    kn_refresh_checksums(data, n);
    assert_int_equal(kni_chunk_restore(codec, data, n, &m, &pool.view, NULL), KN_OK);
    kni_codec_close(&codec);
    kni_free(data);
    pool_free(&pool);
}

static void mismatch_names_field(void **state)
{
    (void)state;
    struct pool pool = small_pool();
    void *data;
    size_t n;
    make(&pool, &data, &n);
    struct kni_codec *codec = test_codec(KN_PRESET_EXACT, (struct kn_tiles_opts){0});
    const struct kni_chunk_meta right = test_meta(&pool, 16, 32);
    static const char *const names[] = {"fingerprint", "profile", "chain", "preset", "first token", "token count", "layer count", "KV head", "head width", "KV type"};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        struct kni_chunk_meta m = right;
        struct kni_kv_host view = pool.view;
        switch (i) {
        case 0: m.fingerprint[15] ^= 1; break;
        case 1: m.profile[0] ^= 1; break;
        case 2: m.chain.bytes[7] ^= 1; break;
        case 3: m.preset = KN_PRESET_TILES; break;
        case 4: m.first_token = 0; break;
        case 5: m.n_tokens = 16; break;
        case 6: m.kv.n_layer = 3; break;
        case 7: m.kv.n_kv_head = 1; break;
        case 8: m.kv.d_head = 16; break;
        default: m.kv.type = KN_KV_TYPE_BF16;
        }
        struct kn_err err = {0};
        assert_int_equal(kni_chunk_restore(codec, data, n, &m, &view, &err), KN_E_MISMATCH);
        if (!strstr(err.text, names[i]))
            fail_msg("\"%s\" does not name %s", err.text, names[i]);
    }
    struct kni_chunk_meta any = right;
    any.preset = KN_PRESET_DEFAULT;
    assert_int_equal(kni_chunk_restore(codec, data, n, &any, &pool.view, NULL), KN_OK);
    struct kni_kv_host short_view = pool.view;
    short_view.n_blocks = 2;
    assert_int_equal(kni_chunk_restore(codec, data, n, &right, &short_view, NULL), KN_E_ARG);
    kni_codec_close(&codec);
    kni_free(data);
    pool_free(&pool);
}

static void names(void **state)
{
    (void)state;
    assert_string_equal(kni_preset_name(KN_PRESET_EXACT), "exact");
    assert_string_equal(kni_preset_name(KN_PRESET_TILES), "tiles");
    assert_string_equal(kni_preset_name(KN_PRESET_SMALL), "small");
    assert_string_equal(kni_preset_name((enum kn_preset)6), "unknown");
    assert_int_equal(kni_backend_of(KN_PRESET_EXACT, KN_BACKEND_HEVC), KNI_BACKEND_ID_RANS);
    assert_int_equal(kni_backend_of(KN_PRESET_TILES, KN_BACKEND_RANS), KNI_BACKEND_ID_HEVC);
    assert_int_equal(kni_backend_of(KN_PRESET_MEDIUM, KN_BACKEND_DEFAULT), KNI_BACKEND_ID_RANS);
    assert_int_equal(kni_backend_of(KN_PRESET_FINE, KN_BACKEND_HEVC), KNI_BACKEND_ID_HEVC);
    assert_int_equal(kni_backend_of(KN_PRESET_FINE, (enum kn_backend)3), 0);
    assert_int_equal(kni_backend_of((enum kn_preset)6, KN_BACKEND_DEFAULT), 0);
    assert_string_equal(kni_backend_name(KNI_BACKEND_ID_RANS), "rans");
    assert_string_equal(kni_backend_name((enum kni_backend_id)9), "unknown");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(round_trip),          cmocka_unit_test(every_byte_counts),    cmocka_unit_test(every_length),
        cmocka_unit_test(lies_under_checksum), cmocka_unit_test(wrong_sections),       cmocka_unit_test(mismatch_names_field),
        cmocka_unit_test(names),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
