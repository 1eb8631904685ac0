/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Geometry and quantiser of the tiles layout: integers and restored values equal the formulas in tiles.h, written here a
 * second time in double arithmetic; tiles lie where the header's drawing says; hostile tilings are refused.
 */
#include "unit/codec/codec_support.h"

#include "codec/tiles/tiles.h"
#include "support/cpu_levels.h"

static void default_tiling(void **state)
{
    (void)state;
    struct kni_chunk_meta m = {.n_tokens = 256, .kv = {30, 3, 64, KN_KV_TYPE_F16}};
    struct kn_tiles_opts o = {0};
    struct kni_tiling t;
    struct kni_tiles_geometry g;
    assert_int_equal(kni_tiles_choose(&m, &o, &t, NULL), KN_OK);
    assert_int_equal(t.levels, 64);
    assert_int_equal(t.tokens_per_picture, 16);
    assert_int_equal(t.tile_height, 8);
    assert_int_equal(kni_tiles_geometry_make(&m, &t, &g, NULL), KN_OK);
    assert_int_equal(g.n_pictures, 16);
    assert_int_equal(g.n_groups, 10);
    assert_int_equal(g.m, 31);
    assert_int_equal(g.width % 16, 0);
    assert_int_equal(g.height % 16, 0);
    assert_true(g.width * g.height >= 16 * 192 && g.width <= 2 * g.height && g.height <= 2 * g.width);
    m.n_tokens = 48 * 11; /* the default must divide any chunk */
    assert_int_equal(kni_tiles_choose(&m, &o, &t, NULL), KN_OK);
    assert_int_equal(m.n_tokens % t.tokens_per_picture, 0);
}

static void bad_options(void **state)
{
    (void)state;
    struct kni_chunk_meta m = {.n_tokens = 256, .kv = {30, 3, 64, KN_KV_TYPE_F16}};
    static const struct { struct kn_tiles_opts o; const char *names; } bad[] = {
        {{.levels = 3}, "levels"},          {{.levels = 257}, "levels"},           {{.tile_height = 3}, "tile height"},
        {{.tile_height = 128}, "tile height"}, {{.tokens_per_picture = 3}, "tokens a picture"}, {{.tokens_per_picture = 512}, "tokens a picture"},
    };
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        struct kni_tiling t;
        struct kn_err err = {0};
        assert_int_equal(kni_tiles_choose(&m, &bad[i].o, &t, &err), KN_E_ARG);
        assert_non_null(strstr(err.text, bad[i].names));
    }
    struct kni_chunk_meta wide = {.n_tokens = 65536, .kv = {1, 256, 1024, KN_KV_TYPE_F16}};
    struct kni_tiling t;
    struct kn_tiles_opts o = {.tokens_per_picture = 65536};
    assert_int_equal(kni_tiles_choose(&wide, &o, &t, NULL), KN_E_ARG); /* picture too large */
    struct kni_chunk_meta large = {.n_tokens = 4096, .kv = {1, 16, 1024, KN_KV_TYPE_F16}};
    struct kn_err err = {0};
    o.tokens_per_picture = 4096; /* 8192 x 8192: no level of HEVC has so many samples */
    assert_int_equal(kni_tiles_choose(&large, &o, &t, &err), KN_E_ARG);
    assert_non_null(strstr(err.text, "35651584 samples"));
    o.tokens_per_picture = 2048;
    assert_int_equal(kni_tiles_choose(&large, &o, &t, &err), KN_OK);
}

static void hostile_tilings(void **state)
{
    (void)state;
    struct kni_chunk_meta m = {.n_tokens = 256, .kv = {30, 4, 64, KN_KV_TYPE_F16}};
    const struct kni_tiling good = {64, 16, 8, 2, 4};
    struct kni_tiles_geometry g;
    assert_int_equal(kni_tiles_geometry_make(&m, &good, &g, NULL), KN_OK);
    static const uint32_t values[] = {0, 3, 5, 7, 257, 1u << 16, 1u << 31, UINT32_MAX};
    for (int field = 0; field < 5; field++)
        for (size_t i = 0; i < sizeof values / sizeof *values; i++) {
            struct kni_tiling t = good;
            memcpy((char *)&t + 4 * field, &values[i], 4);
            enum kn_status s = kni_tiles_geometry_make(&m, &t, &g, NULL);
            bool fits = (field == 0 && (values[i] == 5 || values[i] == 7)) || (field == 4 && values[i] && values[i] <= 16);
            assert_int_equal(s, fits ? KN_OK : KN_E_FORMAT);
        }
    struct kni_chunk_meta wide = {.n_tokens = 65536, .kv = {1, 256, 1024, KN_KV_TYPE_F16}};
    struct kni_tiling line = {64, 65536, 1, 256, 65536};
    assert_int_equal(kni_tiles_geometry_make(&wide, &line, &g, NULL), KN_E_FORMAT);
}

static void quantiser_is_its_formula(void **state)
{
    (void)state;
    enum { N = 64 };
    for (int type = 0; type < 2; type++)
        for (int levels = 4; levels <= 256; levels += levels < 8 ? 1 : 31)
            for (int round = 0; round < 40; round++) {
                uint16_t x[N], table[256] = {0}, scale = 0, infinity = kni_tiles_infinity(type);
                uint8_t q[N];
                for (int i = 0; i < N; i++) {
                    do
                        x[i] = (uint16_t)test_random();
                    while ((x[i] & 0x7fff) >= infinity);
                    if (round & 1) /* values near each other, subnormals in some rounds */
                        x[i] = (uint16_t)((x[i] & 0x83ff) | (round & 2 ? 0 : 0x3800));
                    if ((x[i] & 0x7fff) > scale)
                        scale = x[i] & 0x7fff;
                }
                struct kni_tiles_ops ops = kni_tiles_ops_get(type, kni_cpu_flags());
                int32_t m = levels / 2 - 1;
                kni_tiles_quantise(q, x, N, scale, m, &ops, type);
                kni_tiles_table(table, scale, m, &ops, type);
                float s = test_from_half(scale, type), step = s / (float)m;
                for (int i = 0; i < N; i++) {
                    float f = test_from_half(x[i], type);
                    int want = scale ? (int)nearbyintf(f / s * (float)m) : 0;
                    assert_int_equal(q[i], 128 + want);
                    assert_int_equal(table[q[i]], test_to_half((float)want * step, type));
                    double error = fabs((double)test_from_half(table[q[i]], type) - f); /* half a step, and rounding to 16 bits */
                    double slack = (type == KN_KV_TYPE_F16 ? 0x1p-11 : 0x1p-8) * s + (type == KN_KV_TYPE_F16 ? 0x1p-25 : 0);
                    assert_true(error <= 0.5001 * s / m + slack);
                }
                assert_int_equal(table[128 + m], scale); /* the largest magnitude comes back as it was */
            }
}

static void same_on_every_cpu_level(void **state)
{
    (void)state;
    uint16_t x[200];
    uint8_t a[200], b[200];
    for (int type = 0; type < 2; type++) {
        uint16_t scale = 0, ta[256] = {0};
        for (int i = 0; i < 200; i++) {
            x[i] = test_to_half((float)(int)(test_random() % 20001 - 10000) / 317.0f, type);
            scale = (x[i] & 0x7fff) > scale ? x[i] & 0x7fff : scale;
        }
        EACH_CPU_LEVEL(level) {
            uint16_t tb[256] = {0};
            struct kni_tiles_ops ops = kni_tiles_ops_get(type, kni_cpu_flags());
            kni_tiles_quantise(level ? b : a, x, 200, scale, 127, &ops, type);
            kni_tiles_table(level ? tb : ta, scale, 127, &ops, type);
            assert_true(!level || (!memcmp(a, b, 200) && !memcmp(ta, tb, sizeof ta)));
        }
    }
}

/* Each sample sits where the drawing says: token s * n_pictures + t in slot s of picture t, heads never mixed. */
static void samples_lie_where_documented(void **state)
{
    (void)state;
    struct pool pool = pool_make(1, 6, 32, KN_KV_TYPE_F16, 64);
    pool_fill_smooth(&pool);
    struct kni_chunk_meta m = test_meta(&pool, 16, 48);
    const struct kni_tiling t = {.levels = 100, .tokens_per_picture = 12, .tile_height = 4, .head_cols = 2, .grid_cols = 5};
    struct kni_tiles_geometry g;
    assert_int_equal(kni_tiles_geometry_make(&m, &t, &g, NULL), KN_OK);
    assert_int_equal(g.token_w, 16);
    assert_int_equal(g.token_h, 12);
    assert_int_equal(g.width, 80);
    assert_int_equal(g.height, 48);
    struct kni_tiles_ops ops = kni_tiles_ops_get(KN_KV_TYPE_F16, kni_cpu_flags());
    uint16_t scales[48];
    for (uint32_t i = 0; i < 48; i++)
        scales[i] = kni_tiles_scale(&pool.view, 0, 1, 16 + i);
    uint8_t *plane = malloc((size_t)g.width * g.height), want[80 * 48];
    assert_non_null(plane);
    for (uint32_t picture = 0; picture < 4; picture++) {
        kni_tiles_draw(plane, &pool.view, &m, &g, 0, 1, picture, scales, &ops);
        memset(want, 128, sizeof want);
        for (uint32_t slot = 0; slot < 12; slot++)
            for (uint32_t head = 0; head < 6; head++)
                for (uint32_t i = 0; i < 32; i++) {
                    uint32_t token = slot * 4 + picture;
                    uint32_t y = slot / 5 * 12 + head / 2 * 4 + i / 8, x = slot % 5 * 16 + head % 2 * 8 + i % 8;
                    float f = kni_f16_to_f32(kni_kv_row(&pool.view, 0, 1, head, 16 + token)[i]), s = kni_f16_to_f32(scales[token]);
                    want[y * 80 + x] = (uint8_t)(128 + (int)nearbyintf(f / s * 49.0f));
                }
        assert_memory_equal(plane, want, sizeof want);
    }
    free(plane);
    pool_free(&pool);
}

static void sample_out_of_range(void **state)
{
    (void)state;
    struct pool pool = pool_make(1, 1, 16, KN_KV_TYPE_F16, 16);
    struct kni_chunk_meta m = test_meta(&pool, 0, 16);
    const struct kni_tiling t = {.levels = 16, .tokens_per_picture = 16, .tile_height = 4, .head_cols = 1, .grid_cols = 4};
    struct kni_tiles_geometry g;
    assert_int_equal(kni_tiles_geometry_make(&m, &t, &g, NULL), KN_OK);
    struct kni_tiles_ops ops = kni_tiles_ops_get(KN_KV_TYPE_F16, kni_cpu_flags());
    uint16_t scales[16] = {0};
    uint8_t plane[16 * 16];
    for (int v = 0; v < 256; v++) {
        memset(plane, 128, sizeof plane);
        plane[137] = (uint8_t)v;
        enum kn_status s = kni_tiles_scatter(plane, 16, &pool.view, &m, &g, 0, 0, 0, scales, &ops, NULL);
        assert_int_equal(s, v >= 121 && v <= 135 ? KN_OK : KN_E_FORMAT);
    }
    pool_free(&pool);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(default_tiling),          cmocka_unit_test(bad_options),
        cmocka_unit_test(hostile_tilings),         cmocka_unit_test(quantiser_is_its_formula),
        cmocka_unit_test(same_on_every_cpu_level), cmocka_unit_test(samples_lie_where_documented),
        cmocka_unit_test(sample_out_of_range),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
