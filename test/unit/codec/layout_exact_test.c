/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Preset exact returns every bit of what is finite, and refuses the rest, for odd shapes and scattered blocks, touches nothing outside the
 * chunk's positions, gives the same bytes at every instruction level, makes use of means that turn, refuses sections that do not
 * come out even, and fails cleanly when memory runs out.
 */
#include "unit/codec/codec_support.h"

#include <stdio.h>

#include "base/le.h"
#include "codec/container.h"
#include "codec/layout.h"
#include "support/cpu_levels.h"
#include "support/refresh_checksums.h"

static void shape(uint32_t n_layer, uint32_t n_kv_head, uint32_t d_head, enum kn_kv_type type, bool smooth)
{
    const uint32_t n_pool = 96, first = 32, n = 48;
    struct pool from = pool_make(n_layer, n_kv_head, d_head, type, n_pool), to = pool_make(n_layer, n_kv_head, d_head, type, n_pool);
    if (smooth)
        pool_fill_smooth(&from);
    uint16_t *want = malloc(to.n_values * 2);
    assert_non_null(want);
    memcpy(want, to.view.k, to.n_values * 2);
    struct kni_kv_host want_view = to.view;
    want_view = kni_kv_host_by_block(&want_view.layout, want, want_view.block_ids, want_view.n_blocks);
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
    assert_memory_equal(to.view.k, want, to.n_values * 2);
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
        assert_memory_equal(to.view.k + at, from.view.k + at, kni_kv_block_bytes(&from.view.layout));
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

/* Values that no window holds, or that have no spread: constant channels, zeros, lone outliers, the largest and the smallest. */
static void awkward_values(void **state)
{
    (void)state;
    for (int k = 0; k < 12; k++) {
        enum kn_kv_type type = k & 1 ? KN_KV_TYPE_BF16 : KN_KV_TYPE_F16;
        struct pool from = pool_make(2, 1, 32, type, 64), to = pool_make(2, 1, 32, type, 64);
        for (size_t i = 0; i < from.n_values; i++) {
            uint16_t *v = &from.view.k[i];
            if (k / 2 == 0)
                *v = 0;
            else if (k / 2 == 1)
                *v = test_to_half(1.5f, type);
            else if (k / 2 == 2)
                *v = test_random() % 100 ? test_to_half(0.25f, type) : test_finite((uint16_t)test_random(), type);
            else if (k / 2 == 3)
                *v = test_random() % 2 ? 0x8000 : 0;
            else if (k / 2 == 4)
                *v = test_random() % 3 ? (uint16_t)(test_random() & 0x80ff) : type == KN_KV_TYPE_F16 ? 0x7bff : 0x7f7f;
            else
                *v = type == KN_KV_TYPE_F16 ? 0xfbff : (uint16_t)(0x7f00 | (test_random() & 0x807f));
        }
        struct kni_codec *codec = test_codec(KN_PRESET_EXACT, (struct kn_tiles_opts){0});
        struct kni_chunk_meta m = test_meta(&from, 0, 64);
        void *data;
        size_t n_bytes;
        assert_int_equal(kni_chunk_encode(codec, &m, &from.view, &data, &n_bytes, NULL), KN_OK);
        if (k / 2 < 2)
            assert_true(n_bytes < 64 * kni_kv_token_bytes(&m.kv) * 3 / 4); /* a constant costs its raw bits only */
        assert_int_equal(kni_chunk_restore(codec, data, n_bytes, &m, &to.view, NULL), KN_OK);
        for (uint32_t b = 0; b < from.view.n_blocks; b++) {
            size_t at = from.table[b] * kni_kv_block_values(&from.view.layout);
            assert_memory_equal(to.view.k + at, from.view.k + at, kni_kv_block_bytes(&from.view.layout));
        }
        kni_free(data);
        kni_codec_close(&codec);
        pool_free(&from);
        pool_free(&to);
    }
}

/* What is not finite is neither coded nor restored, wherever it stands: a chunk with sound checksums can be made of it all the same. */
static void not_finite(void **state)
{
    (void)state;
    static const uint16_t bad[2][4] = {{0x7c00, 0xfc00, 0x7e01, 0x7c01}, {0x7f80, 0xff80, 0xffc1, 0x7f81}};
    for (unsigned k = 0; k < 16; k++) {
        const enum kn_kv_type type = k & 1 ? KN_KV_TYPE_BF16 : KN_KV_TYPE_F16;
        const uint32_t pos = k < 8 ? 31 : 16, layer = k / 2 % 2, head = k / 4 % 2;
        struct pool from = pool_make(2, 2, 24, type, 32), to = pool_make(2, 2, 24, type, 32);
        struct kni_codec *codec = test_codec(KN_PRESET_EXACT, (struct kn_tiles_opts){0});
        struct kni_chunk_meta m = test_meta(&from, 16, 16);
        struct kni_container good;
        struct kni_container_writer w;
        struct kn_err err = {0};
        void *data, *other;
        size_t n_bytes, n_other;
        assert_int_equal(kni_chunk_encode(codec, &m, &from.view, &data, &n_bytes, &err), KN_OK);
        assert_int_equal(kni_container_open(&good, data, n_bytes, &err), KN_OK);
        kni_kv_row(&from.view, layer, 1 - head, head, pos)[k % 24] = bad[type][k / 2 % 4];
        assert_int_equal(kni_chunk_encode(codec, &m, &from.view, &other, &n_other, &err), KN_E_NOT_FINITE);
        assert_null(other);
        char where[64];
        snprintf(where, sizeof where, "%c of layer %u at position %u", head ? 'K' : 'V', layer, pos);
        assert_non_null(strstr(err.text, where));
        assert_int_equal(kni_container_writer_init(&w, &good.header, &err), KN_OK); /* as an encoder without the check would */
        assert_int_equal(kni_layout_exact.encode(codec, &from.view, &w, &err), KN_OK);
        kni_container_writer_finish(&w, &other, &n_other);
        kni_container_writer_fini(&w);
        assert_int_equal(kni_chunk_verify(other, n_other, &err), KN_OK);
        assert_int_equal(kni_chunk_restore(codec, other, n_other, &m, &to.view, &err), KN_E_FORMAT);
        snprintf(where, sizeof where, "%c of layer %u", head ? 'K' : 'V', layer);
        assert_non_null(strstr(err.text, where));
        assert_int_equal(kni_chunk_restore(codec, data, n_bytes, &m, &to.view, &err), KN_OK);
        kni_free(data);
        kni_free(other);
        kni_codec_close(&codec);
        pool_free(&from);
        pool_free(&to);
    }
}

/* Chunk bytes of the reference and of every other level. */
static void levels_agree(void **state)
{
    (void)state;
    for (int k = 0; k < 4; k++) {
        struct pool pool = pool_make(3, 2, 40, k & 1 ? KN_KV_TYPE_BF16 : KN_KV_TYPE_F16, 256);
        if (k & 2)
            pool_fill_smooth(&pool);
        struct kni_chunk_meta m = test_meta(&pool, 32, 208);
        void *data[N_CPU_LEVELS];
        size_t n_bytes[N_CPU_LEVELS];
        EACH_CPU_LEVEL(level) {
            struct kni_codec *codec = test_codec(KN_PRESET_EXACT, (struct kn_tiles_opts){0});
            assert_int_equal(kni_chunk_encode(codec, &m, &pool.view, &data[level], &n_bytes[level], NULL), KN_OK);
            if (level)
                assert_int_equal(kni_chunk_restore(codec, data[0], n_bytes[0], &m, &pool.view, NULL), KN_OK);
            kni_codec_close(&codec);
            assert_int_equal(n_bytes[level], n_bytes[0]);
            assert_memory_equal(data[level], data[0], n_bytes[0]);
            if (level)
                kni_free(data[level]);
        }
        kni_free(data[0]);
        pool_free(&pool);
    }
}

static size_t coded_bytes(const struct pool *pool, uint32_t n)
{
    struct kni_codec *codec = test_codec(KN_PRESET_EXACT, (struct kn_tiles_opts){0});
    struct kni_chunk_meta m = test_meta(pool, 0, n);
    void *data;
    size_t n_bytes;
    assert_int_equal(kni_chunk_encode(codec, &m, &pool->view, &data, &n_bytes, NULL), KN_OK);
    kni_free(data);
    kni_codec_close(&codec);
    return n_bytes;
}

/* Keys that turn around means of three deviations cost what keys cost that stand still there, and more than half a bit less than the
 * same values in an order that shows no turn. */
static void turning_means(void **state)
{
    (void)state;
    enum { N = 256, D = 64 };
    size_t bytes[3];
    for (int k = 0; k < 3; k++) { /* still, turning, turning but shuffled */
        struct pool pool = pool_make(4, 3, D, KN_KV_TYPE_F16, N);
        for (uint32_t part = 0; part < 8; part++)
            for (uint32_t h = 0; h < 3; h++)
                for (uint32_t t = 0; t < N; t++) {
                    uint16_t *row = kni_kv_row(&pool.view, part / 2, part % 2, h, k == 2 ? t * (t + 1) / 2 % N : t);
                    for (uint32_t i = 0; i < D; i++) {
                        double noise = (test_random() % 4096 + test_random() % 4096 + test_random() % 4096 - 6142.5) / 2048;
                        double angle = k && part % 2 == 0 ? pow(1e-4, (i / 2) / 32.0) * t : 0;
                        row[i] = kni_f32_to_f16((float)(0.3 * noise + 0.9 * cos(angle + h + i / 2 - (i % 2) * 1.5707963)));
                    }
                }
        bytes[k] = coded_bytes(&pool, N);
        pool_free(&pool);
    }
    const double values = 4 * 3 * D * N; /* of keys */
    assert_true(fabs((double)bytes[1] - (double)bytes[0]) * 8 / values < 0.15);
    assert_true(((double)bytes[2] - (double)bytes[1]) * 8 / values > 0.5);
}

/* Sections changed behind correct checksums: an error or some values, never more than the buffers, and the counts must fit. */
static void hostile_sections(void **state)
{
    (void)state;
    struct pool pool = pool_make(2, 1, 24, KN_KV_TYPE_BF16, 32);
    pool_fill_smooth(&pool);
    pool.view.k[pool.table[0] * kni_kv_block_values(&pool.view.layout) + 5] = 0; /* an escape */
    struct kni_codec *codec = test_codec(KN_PRESET_EXACT, (struct kn_tiles_opts){0});
    struct kni_chunk_meta m = test_meta(&pool, 0, 32);
    void *data;
    size_t n_bytes;
    struct kn_err err = {0};
    assert_int_equal(kni_chunk_encode(codec, &m, &pool.view, &data, &n_bytes, NULL), KN_OK);
    const size_t header = 128 + 5 * 32 + 8, model = (size_t)kni_le64_get((uint8_t *)data + 128 + 16);
    uint8_t *bad = malloc(n_bytes), *part = bad + header + model;
    const uint32_t n_escapes = kni_le32_get((uint8_t *)data + header + model);
    assert_true(n_escapes >= 1 && n_escapes < 24 * 32);
    const uint32_t wrong[] = {0, n_escapes - 1, n_escapes + 1, 24 * 32, UINT32_MAX, UINT32_MAX / 2};
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        if (wrong[i] == n_escapes)
            continue;
        memcpy(bad, data, n_bytes);
        kni_le32_put(part, wrong[i]);
        kn_refresh_checksums(bad, n_bytes);
        assert_int_equal(kni_chunk_restore(codec, bad, n_bytes, &m, &pool.view, &err), KN_E_FORMAT);
    }
    uint32_t n_refused = 0;
    for (size_t at = header; at < n_bytes; at++) { /* every byte of every section */
        memcpy(bad, data, n_bytes);
        bad[at] ^= (uint8_t)(1 + test_random() % 255);
        kn_refresh_checksums(bad, n_bytes);
        enum kn_status s = kni_chunk_restore(codec, bad, n_bytes, &m, &pool.view, &err);
        assert_true(s == KN_OK || s == KN_E_FORMAT);
        n_refused += s != KN_OK;
    }
    assert_true(n_refused > 100);
    memcpy(bad, data, n_bytes);
    assert_int_equal(kni_chunk_restore(codec, bad, n_bytes, &m, &pool.view, &err), KN_OK); /* nothing of that stuck */
    free(bad);
    kni_free(data);
    kni_codec_close(&codec);
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
        cmocka_unit_test(awkward_values), cmocka_unit_test(not_finite),
        cmocka_unit_test(levels_agree),
        cmocka_unit_test(turning_means),
        cmocka_unit_test(hostile_sections),
        cmocka_unit_test(bad_arguments),
        cmocka_unit_test(out_of_memory),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
