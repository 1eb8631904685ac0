/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Preset exact returns every bit, NaN patterns included, for odd shapes and scattered blocks, touches nothing outside the
 * chunk's positions, and fails cleanly when memory runs out.
 */
#include "unit/codec/codec_support.h"

static void shape(uint32_t n_layer, uint32_t n_kv_head, uint32_t d_head, enum kn_kv_type type, bool smooth)
{
    const uint32_t n_pool = 96, first = 32, n = 48;
    struct pool from = pool_make(n_layer, n_kv_head, d_head, type, n_pool), to = pool_make(n_layer, n_kv_head, d_head, type, n_pool);
    if (smooth)
        pool_fill_smooth(&from);
    uint16_t *want = malloc(to.n_values * 2);
    assert_non_null(want);
    memcpy(want, to.view.base, to.n_values * 2);
    struct kni_kv_view want_view = to.view;
    want_view.base = want;
    for (uint32_t part = 0; part < n_layer * 2; part++)
        for (uint32_t head = 0; head < n_kv_head; head++)
            for (uint32_t pos = first; pos < first + n; pos++)
                memcpy(kni_kv_row(&want_view, part / 2, part % 2, head, pos), kni_kv_row(&from.view, part / 2, part % 2, head, pos), d_head * 2);

    struct kni_codec *codec = test_codec(KN_PRESET_EXACT, (struct kn_tiles_opts){0});
    struct kni_chunk_meta m = test_meta(&from, first, n);
    void *data;
    size_t n_bytes;
    struct kn_err err = {0};
    assert_int_equal(kni_chunk_encode(codec, &m, &from.view, &data, &n_bytes, &err), KN_OK);
    if (smooth)
        assert_true(n_bytes < n * kni_kv_token_bytes(&m.kv) + 4096);
    assert_int_equal(kni_chunk_verify(data, n_bytes, &err), KN_OK);
    assert_int_equal(kni_chunk_restore(codec, data, n_bytes, &m, &to.view, &err), KN_OK);
    assert_memory_equal(to.view.base, want, to.n_values * 2);
    assert_true(kni_codec_working_bytes(codec) > 0);
    kni_codec_close(&codec);
    kni_free(data);
    free(want);
    pool_free(&from);
    pool_free(&to);
}

static void bit_for_bit(void **state)
{
    (void)state;
    static const uint32_t shapes[][3] = {{1, 1, 32}, {5, 3, 64}, {2, 8, 128}, {3, 2, 256}, {1, 5, 80}, {7, 1, 96}, {1, 1, 1}};
    for (size_t i = 0; i < sizeof shapes / sizeof *shapes; i++)
        for (int k = 0; k < 4; k++)
            shape(shapes[i][0], shapes[i][1], shapes[i][2], k & 1 ? KN_KV_TYPE_BF16 : KN_KV_TYPE_F16, k & 2);
}

/* One handle, chunks of different sizes one after the other: scratch must not leak from one into the next. */
static void handle_is_reusable(void **state)
{
    (void)state;
    struct pool from = pool_make(2, 2, 64, KN_KV_TYPE_F16, 256), to = pool_make(2, 2, 64, KN_KV_TYPE_F16, 256);
    struct kni_codec *codec = test_codec(KN_PRESET_EXACT, (struct kn_tiles_opts){0});
    static const uint32_t cuts[] = {0, 16, 144, 160, 256};
    for (int i = 0; i < 4; i++) {
        struct kni_chunk_meta m = test_meta(&from, cuts[i], cuts[i + 1] - cuts[i]);
        void *data;
        size_t n_bytes;
        assert_int_equal(kni_chunk_encode(codec, &m, &from.view, &data, &n_bytes, NULL), KN_OK);
        assert_int_equal(kni_chunk_restore(codec, data, n_bytes, &m, &to.view, NULL), KN_OK);
        kni_free(data);
    }
    for (uint32_t b = 0; b < from.view.n_blocks; b++) {
        size_t at = from.table[b] * kni_kv_block_values(&from.view.layout);
        assert_memory_equal(to.view.base + at, from.view.base + at, kni_kv_block_bytes(&from.view.layout));
    }
    kni_codec_close(&codec);
    pool_free(&from);
    pool_free(&to);
}

static void bad_arguments(void **state)
{
    (void)state;
    struct pool pool = pool_make(1, 1, 16, KN_KV_TYPE_F16, 32);
    struct kni_codec *codec = test_codec(KN_PRESET_DEFAULT, (struct kn_tiles_opts){0});
    void *data;
    size_t n;
    struct kn_err err = {0};
    struct kni_chunk_meta m = test_meta(&pool, 0, 48);
    assert_int_equal(kni_chunk_encode(codec, &m, &pool.view, &data, &n, &err), KN_E_ARG); /* beyond the view */
    assert_true(data == NULL && err.text[0]);
    m = test_meta(&pool, 0, 0);
    assert_int_equal(kni_chunk_encode(codec, &m, &pool.view, &data, &n, &err), KN_E_ARG);
    m = test_meta(&pool, 8, 16);
    assert_int_equal(kni_chunk_encode(codec, &m, &pool.view, &data, &n, &err), KN_E_ARG); /* not on a block */
    m = test_meta(&pool, 0, 16);
    m.preset = KN_PRESET_TILES;
    assert_int_equal(kni_chunk_encode(codec, &m, &pool.view, &data, &n, &err), KN_E_ARG); /* handle encodes exact */
    m = test_meta(&pool, 0, 16);
    m.kv.d_head = 32;
    assert_int_equal(kni_chunk_encode(codec, &m, &pool.view, &data, &n, &err), KN_E_ARG);
    kni_codec_close(&codec);
    kni_codec_close(&codec);
    struct kni_codec_opts opts = {.preset = (enum kn_preset)99};
    assert_int_equal(kni_codec_open(&codec, &opts, &err), KN_E_ARG);
    assert_null(codec);
    pool_free(&pool);
}

static void out_of_memory(void **state)
{
    (void)state;
    struct pool pool = pool_make(2, 1, 32, KN_KV_TYPE_F16, 32);
    struct kni_chunk_meta m = test_meta(&pool, 0, 32);
    bool done = false;
    for (uint64_t n = 1; !done; n++) {
        assert_true(n < 100);
        struct kni_codec *codec = NULL;
        struct kni_codec_opts opts = {.preset = KN_PRESET_EXACT};
        void *data = NULL;
        size_t n_bytes;
        size_t before = kni_alloc_get_stats(KNI_ALLOC_TAG_COUNT).current_bytes;
        kni_alloc_fault_arm(n, false);
        enum kn_status s = kni_codec_open(&codec, &opts, NULL);
        if (s == KN_OK)
            s = kni_chunk_encode(codec, &m, &pool.view, &data, &n_bytes, NULL);
        if (s == KN_OK) {
            kni_codec_close(&codec); /* a fresh one, so that restoring allocates too */
            s = kni_codec_open(&codec, &opts, NULL);
        }
        if (s == KN_OK)
            s = kni_chunk_restore(codec, data, n_bytes, &m, &pool.view, NULL);
        bool hit = kni_alloc_fault_hit();
        kni_alloc_fault_arm(0, false);
        assert_int_equal(s, hit ? KN_E_NOMEM : KN_OK);
        kni_free(data);
        kni_codec_close(&codec);
        assert_int_equal(kni_alloc_get_stats(KNI_ALLOC_TAG_COUNT).current_bytes, before);
        done = !hit;
    }
    pool_free(&pool);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(bit_for_bit),
        cmocka_unit_test(handle_is_reusable),
        cmocka_unit_test(bad_arguments),
        cmocka_unit_test(out_of_memory),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
