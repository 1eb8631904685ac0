/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Preset tiles end to end, through a real encoder and decoder: for every tiling and resolution the integers that come out
 * of the streams are those that went in, and the restored pool equals the reference formula bit for bit, outside positions
 * untouched. Damage, values that are not finite, missing plugin and missing memory give clean errors.
 */
#include "base/cpu.h"
#include "support/refresh_checksums.h"
#include "unit/codec/codec_support.h"

#include <stdio.h>
#include <sys/wait.h>
#include <unistd.h>

#include "codec/hevc/hevc_decode.h"
#include "codec/tiles/tiles.h"

/* What the pool must hold after restoring: the formula of tiles.h, written out again. */
static void apply_reference(struct pool *to, const struct pool *from, const struct kni_chunk_meta *m, uint32_t levels)
{
    const struct kni_kv_layout *l = &m->kv;
    float top = (float)(levels / 2 - 1);
    for (uint32_t part = 0; part < l->n_layer * 2; part++)
        for (uint32_t pos = m->first_token; pos < m->first_token + m->n_tokens; pos++) {
            float s = 0;
            for (uint32_t head = 0; head < l->n_kv_head; head++)
                for (uint32_t i = 0; i < l->d_head; i++)
                    s = fmaxf(s, fabsf(test_from_half(kni_kv_row(&from->view, part / 2, part % 2, head, pos)[i], l->type)));
            for (uint32_t head = 0; head < l->n_kv_head; head++)
                for (uint32_t i = 0; i < l->d_head; i++) {
                    float x = test_from_half(kni_kv_row(&from->view, part / 2, part % 2, head, pos)[i], l->type);
                    float q = s > 0 ? nearbyintf(x / s * top) : 0;
                    uint16_t want = test_to_half(q * (s / top), l->type);
                    kni_kv_row(&to->view, part / 2, part % 2, head, pos)[i] = want == 0x8000 ? 0 : want; /* q is an integer: no -0 */
                }
        }
}

struct compare {
    const struct kni_kv_host *view;
    const struct kni_chunk_meta *m;
    const struct kni_tiles_geometry *g;
    uint32_t group, is_v, n_seen;
};

static enum kn_status compare_picture(void *user, uint32_t index, const uint8_t *const planes[3], const size_t strides[3], struct kn_err *err)
{
    struct compare *c = user;
    (void)err;
    assert_int_equal(index, c->n_seen++);
    struct kni_tiles_ops ops = kni_tiles_ops_get(c->m->kv.type, kni_cpu_flags());
    uint16_t *scales = malloc(c->m->n_tokens * 2);
    uint8_t *want = malloc((size_t)c->g->width * c->g->height);
    assert_true(scales && want);
    for (uint32_t k = 0; k < 3; k++) {
        uint32_t layer = c->group * 3 + k;
        memset(want, 128, (size_t)c->g->width * c->g->height);
        if (layer < c->m->kv.n_layer) {
            for (uint32_t t = 0; t < c->m->n_tokens; t++)
                scales[t] = kni_tiles_scale(c->view, layer, c->is_v, c->m->first_token + t);
            kni_tiles_draw(want, c->view, c->m, c->g, layer, c->is_v, index, scales, &ops);
        }
        for (uint32_t y = 0; y < c->g->height; y++)
            assert_memory_equal(planes[k] + y * strides[k], want + (size_t)y * c->g->width, c->g->width);
    }
    free(scales);
    free(want);
    return KN_OK;
}

static void integers_equal(const struct pool *from, const void *data, size_t n_bytes)
{
    struct kni_container c;
    struct kni_tiles_geometry g;
    assert_int_equal(kni_container_open(&c, data, n_bytes, NULL), KN_OK);
    assert_int_equal(kni_tiles_geometry_make(&c.header.meta, &c.header.tiling, &g, NULL), KN_OK);
    struct kni_hevc_decoder *decoder = NULL;
    for (uint32_t i = 0; i < g.n_groups * 2; i++) {
        const uint8_t *bytes;
        size_t size;
        assert_int_equal(kni_container_expect(&c, 1 + i, KNI_SECTION_KIND_TILES_VIDEO, i, &bytes, &size, NULL), KN_OK);
        struct compare job = {.view = &from->view, .m = &c.header.meta, .g = &g, .group = i / 2, .is_v = i % 2};
        assert_int_equal(kni_hevc_decode(&decoder, bytes, size, g.width, g.height, g.n_pictures, compare_picture, &job, NULL), KN_OK);
        assert_int_equal(job.n_seen, g.n_pictures);
    }
    kni_hevc_decoder_close(&decoder);
}

static void check(uint32_t n_layer, uint32_t n_kv_head, uint32_t d_head, enum kn_kv_type type, uint32_t n, struct kn_tiles_opts o)
{
    const uint32_t first = 16;
    struct pool from = pool_make(n_layer, n_kv_head, d_head, type, n + 32), to = pool_make(n_layer, n_kv_head, d_head, type, n + 32);
    pool_fill_smooth(&from);
    for (uint32_t head = 0; head < n_kv_head; head++) { /* a token of zeros */
        memset(kni_kv_row(&from.view, 0, 0, head, first + 3), 0, d_head * 2);
        memset(kni_kv_row(&from.view, n_layer - 1, 1, head, first + n - 1), 0, d_head * 2);
    }
    struct pool want = to;
    want.view = kni_kv_host_by_block(&to.view.layout, malloc(to.n_values * 2), to.table, to.view.n_blocks);
    assert_non_null(want.view.k);
    memcpy(want.view.k, to.view.k, to.n_values * 2);
    struct kni_chunk_meta m = test_meta(&from, first, n);
    apply_reference(&want, &from, &m, o.levels ? o.levels : 64);

    struct kni_codec *codec = test_codec(KN_PRESET_TILES, o);
    void *data;
    size_t n_bytes;
    struct kn_err err = {0};
    if (kni_chunk_encode(codec, &m, &from.view, &data, &n_bytes, &err) != KN_OK)
        fail_msg("%s", err.text);
    kni_codec_close(&codec);
    codec = test_codec(KN_PRESET_EXACT, (struct kn_tiles_opts){0}); /* restoring needs neither preset nor options */
    if (kni_chunk_restore(codec, data, n_bytes, &m, &to.view, &err) != KN_OK)
        fail_msg("%s", err.text);
    assert_memory_equal(to.view.k, want.view.k, to.n_values * 2);
    assert_true(kni_codec_working_bytes(codec) > 0 && kni_codec_working_bytes(codec) < 64u << 20);
    kni_codec_close(&codec);
    integers_equal(&from, data, n_bytes);
    kni_free(data);
    free(want.view.k);
    pool_free(&from);
    pool_free(&to);
}

static void every_tiling(void **state)
{
    (void)state;
    for (uint32_t height = 1; height <= 32; height *= 2)
        check(3, 3, 32, KN_KV_TYPE_F16, 32, (struct kn_tiles_opts){.tile_height = height});
}

static void every_resolution(void **state)
{
    (void)state;
    for (uint32_t p = 1; p <= 48; p++)
        if (48 % p == 0)
            check(2, 2, 64, KN_KV_TYPE_F16, 48, (struct kn_tiles_opts){.tokens_per_picture = p});
}

static void every_shape(void **state)
{
    (void)state;
    static const uint32_t shapes[][3] = {{1, 1, 64}, {4, 8, 128}, {5, 2, 256}, {3, 5, 80}, {1, 6, 96}, {2, 1, 7}};
    for (size_t i = 0; i < sizeof shapes / sizeof *shapes; i++)
        for (int type = 0; type < 2; type++)
            check(shapes[i][0], shapes[i][1], shapes[i][2], type, 32, (struct kn_tiles_opts){0});
}

static void every_level_count(void **state)
{
    (void)state;
    static const uint32_t levels[] = {4, 5, 16, 32, 64, 127, 128, 255, 256};
    for (size_t i = 0; i < sizeof levels / sizeof *levels; i++)
        check(1, 2, 64, i & 1 ? KN_KV_TYPE_BF16 : KN_KV_TYPE_F16, 32, (struct kn_tiles_opts){.levels = levels[i]});
}

static void not_finite(void **state)
{
    (void)state;
    static const uint16_t bad[2][3] = {{0x7c00, 0xfc00, 0x7e01}, {0x7f80, 0xff80, 0xffc1}};
    for (int type = 0; type < 2; type++)
        for (int i = 0; i < 3; i++) {
            struct pool pool = pool_make(2, 2, 32, type, 32);
            pool_fill_smooth(&pool);
            kni_kv_row(&pool.view, 1, 1, 1, 21)[5] = bad[type][i];
            struct kni_codec *codec = test_codec(KN_PRESET_TILES, (struct kn_tiles_opts){0});
            struct kni_chunk_meta m = test_meta(&pool, 0, 32);
            void *data;
            size_t n;
            struct kn_err err = {0};
            assert_int_equal(kni_chunk_encode(codec, &m, &pool.view, &data, &n, &err), KN_E_NOT_FINITE);
            assert_non_null(strstr(err.text, "V of layer 1 at position 21"));
            assert_null(data);
            m = test_meta(&pool, 0, 16); /* the handle stays usable */
            assert_int_equal(kni_chunk_encode(codec, &m, &pool.view, &data, &n, &err), KN_OK);
            kni_free(data);
            kni_codec_close(&codec);
            pool_free(&pool);
        }
}

static void damage(void **state)
{
    (void)state;
    struct pool pool = pool_make(4, 2, 32, KN_KV_TYPE_F16, 32);
    pool_fill_smooth(&pool);
    struct kni_codec *codec = test_codec(KN_PRESET_TILES, (struct kn_tiles_opts){.tokens_per_picture = 8});
    struct kni_chunk_meta m = test_meta(&pool, 0, 32);
    void *data;
    size_t n;
    assert_int_equal(kni_chunk_encode(codec, &m, &pool.view, &data, &n, NULL), KN_OK);
    uint8_t *b = data;
    for (size_t i = 0; i < n; i += i < 400 ? 1 : 53) { /* checksums catch every flip */
        b[i] ^= 0x10;
        enum kn_status s = kni_chunk_restore(codec, data, n, &m, &pool.view, NULL);
        assert_true(s == KN_E_FORMAT || (s == KN_E_MISMATCH && i >= 4 && i < 8));
        b[i] ^= 0x10;
    }
    unsigned refused = 0;
    for (size_t i = 0; i < 600; i++) { /* under right checksums: an error or rubbish, never a crash or a read outside */
        uint8_t *copy = malloc(n);
        assert_non_null(copy);
        memcpy(copy, data, n);
        copy[test_random() % n] ^= (uint8_t)(1u << test_random() % 8);
        kn_refresh_checksums(copy, n);
        struct kn_err err = {0};
        enum kn_status s = kni_chunk_restore(codec, copy, n, &m, &pool.view, &err);
        assert_true(s == KN_OK || s == KN_E_FORMAT || s == KN_E_MISMATCH);
        assert_true(s == KN_OK || err.text[0]);
        refused += s != KN_OK;
        free(copy);
    }
    assert_true(refused > 100);
    assert_int_equal(kni_chunk_restore(codec, data, n, &m, &pool.view, NULL), KN_OK); /* the handle has survived all that */
    kni_free(data);
    kni_codec_close(&codec);
    pool_free(&pool);
}

static void bad_options(void **state)
{
    (void)state;
    struct kni_codec *codec;
    struct kn_err err = {0};
    struct kni_codec_opts opts = {.preset = KN_PRESET_TILES, .tiles = {.levels = 2}};
    assert_int_equal(kni_codec_open(&codec, &opts, &err), KN_E_ARG);
    assert_null(codec);
    struct pool pool = pool_make(1, 1, 32, KN_KV_TYPE_F16, 32);
    pool_fill_smooth(&pool);
    struct kni_chunk_meta m = test_meta(&pool, 0, 32);
    void *data;
    size_t n;
    codec = test_codec(KN_PRESET_TILES, (struct kn_tiles_opts){.tokens_per_picture = 5});
    assert_int_equal(kni_chunk_encode(codec, &m, &pool.view, &data, &n, &err), KN_E_ARG);
    assert_non_null(strstr(err.text, "5 tokens a picture"));
    kni_codec_close(&codec);
    pool_free(&pool);
}

static void out_of_memory(void **state)
{
    (void)state;
    struct pool pool = pool_make(2, 1, 32, KN_KV_TYPE_F16, 32);
    pool_fill_smooth(&pool);
    struct kni_chunk_meta m = test_meta(&pool, 0, 32);
    bool done = false;
    unsigned n_faults = 0;
    for (uint64_t n = 1; !done; n++) {
        assert_true(n < 200);
        struct kni_codec *codec = NULL;
        struct kni_codec_opts opts = {.preset = KN_PRESET_TILES};
        void *data = NULL;
        size_t n_bytes;
        size_t before = kni_alloc_get_stats(KNI_ALLOC_TAG_COUNT).current_bytes;
        kni_alloc_fault_arm(n, false);
        enum kn_status s = kni_codec_open(&codec, &opts, NULL);
        if (s == KN_OK)
            s = kni_chunk_encode(codec, &m, &pool.view, &data, &n_bytes, NULL);
        if (s == KN_OK)
            s = kni_chunk_restore(codec, data, n_bytes, &m, &pool.view, NULL);
        bool hit = kni_alloc_fault_hit();
        kni_alloc_fault_arm(0, false);
        assert_int_equal(s, hit ? KN_E_NOMEM : KN_OK);
        n_faults += hit;
        kni_free(data);
        kni_codec_close(&codec);
        assert_int_equal(kni_alloc_get_stats(KNI_ALLOC_TAG_COUNT).current_bytes, before);
        done = !hit;
    }
    assert_true(n_faults >= 10);
    pool_free(&pool);
}

static int open_without_plugin(void)
{
    struct kni_codec *codec;
    struct kn_err err = {0};
    struct kni_codec_opts opts = {.preset = KN_PRESET_TILES, .hevc = {.encoder = KN_HEVC_ENCODER_X265_MEDIUM}};
    if (kni_codec_open(&codec, &opts, &err) != KN_E_UNSUPPORTED || codec || !strstr(err.text, "libkinema_x265.so"))
        return 1;
    opts.hevc.encoder = KN_HEVC_ENCODER_KINEMA;
    enum kn_status s = kni_codec_open(&codec, &opts, &err);
    kni_codec_close(&codec);
    return s != KN_OK;
}

/* Runs a copy of this program from a folder that has no plugin near it. */
static void missing_plugin(void **state)
{
    (void)state;
    char folder[] = "/tmp/kinema-test-XXXXXX", inner[64], copy[96], self[4096];
    assert_non_null(mkdtemp(folder));
    snprintf(inner, sizeof inner, "%s/in", folder);
    snprintf(copy, sizeof copy, "%s/program", inner);
    ssize_t n = readlink("/proc/self/exe", self, sizeof self - 1);
    assert_true(n > 0);
    self[n] = 0;
    pid_t child = fork();
    assert_true(child >= 0);
    if (child == 0) {
        unsetenv("LD_LIBRARY_PATH");
        char command[8400];
        snprintf(command, sizeof command, "mkdir '%s' && cp '%s' '%s' && '%s' --without-plugin; s=$?; rm -r '%s'; exit $s", inner, self, copy, copy, folder);
        execl("/bin/sh", "sh", "-c", command, (char *)NULL);
        _exit(127);
    }
    int how;
    assert_int_equal(waitpid(child, &how, 0), child);
    assert_true(WIFEXITED(how) && WEXITSTATUS(how) == 0);
}

int main(int argc, char **argv)
{
    if (argc > 1 && !strcmp(argv[1], "--without-plugin"))
        return open_without_plugin();
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_tiling), cmocka_unit_test(every_resolution), cmocka_unit_test(every_shape),
        cmocka_unit_test(every_level_count), cmocka_unit_test(not_finite),  cmocka_unit_test(damage),
        cmocka_unit_test(bad_options),  cmocka_unit_test(out_of_memory),    cmocka_unit_test(missing_plugin),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
