/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The x265 plugin: both presets code losslessly, side by side in one process, each with the bytes that it gives alone. Passes over
 * all of it where the plugin is not built.
 */
#include "unit/codec/codec_support.h"

#include "codec/hevc/hevc_decode.h"
#include "codec/hevc/hevc_encode.h"
#include "codec/hevc/hevc_plugin_load.h"

enum { MAX_SIDE = 144, N = 4 };

static uint8_t pictures[N][3][MAX_SIDE * MAX_SIDE];

static int setup(void **state)
{
    (void)state;
    uint32_t x = 1;
    for (size_t i = 0; i < sizeof pictures; i++) { /* noise around 128, triangular */
        x = x * 1664525u + 1013904223u;
        (&pictures[0][0][0])[i] = (uint8_t)(113 + (x >> 28) + (x >> 20 & 15));
    }
    return 0;
}

/* Sizes beyond the highest level are refused before any encoder, a foreign one too, sees them. */
static void large_pictures(void **state)
{
    (void)state;
    for (enum kn_hevc_encoder which = KN_HEVC_ENCODER_KINEMA; which <= KN_HEVC_ENCODER_X265_MEDIUM; which++) {
        struct kni_hevc_encoder *e;
        struct kn_err err = {0};
        if (kni_hevc_encoder_open(&e, &(struct kn_hevc_opts){.encoder = which}, KNI_HEVC_CONTENT_TILES, 0,
                                  &err) == KN_E_UNSUPPORTED)
            continue;
        assert_int_equal(kni_hevc_encode_begin(e, 8192, 8192, 1, NULL, &err), KN_E_ARG);
        assert_non_null(strstr(err.text, "level"));
        assert_int_equal(kni_hevc_encode_begin(e, 8193, 64, 1, NULL, &err), KN_E_ARG);
        assert_int_equal(kni_hevc_encode_begin(e, 64, 64, 1, NULL, &err), KN_OK);
        kni_hevc_encoder_close(&e);
    }
}

static bool have_plugin(void)
{
    const struct kn_hevc_plugin *plugin;
    return kni_hevc_plugin_load(&plugin, NULL) == KN_OK;
}

static struct kni_hevc_encoder *open_encoder(enum kn_hevc_encoder which)
{
    struct kni_hevc_encoder *e;
    struct kn_err err = {0};
    if (kni_hevc_encoder_open(&e, &(struct kn_hevc_opts){.encoder = which}, KNI_HEVC_CONTENT_TILES, 0, &err) != KN_OK)
        fail_msg("%s", err.text);
    return e;
}

static void put(struct kni_hevc_encoder *e, uint32_t w, uint32_t t)
{
    const uint8_t *planes[3] = {pictures[t][0], pictures[t][1], pictures[t][2]};
    const size_t strides[3] = {w, w, w};
    struct kn_err err = {0};
    if (kni_hevc_encode_picture(e, planes, strides, &err) != KN_OK)
        fail_msg("%s", err.text);
}

struct section { struct kni_container_writer w; };

static void end(struct kni_hevc_encoder *e, struct section *s)
{
    memset(s, 0, sizeof *s);
    assert_int_equal(kni_hevc_encode_end(e, &s->w, NULL), KN_OK);
}

static struct section alone(enum kn_hevc_encoder which, uint32_t w, uint32_t h)
{
    struct section s;
    struct kni_hevc_encoder *e = open_encoder(which);
    assert_int_equal(kni_hevc_encode_begin(e, w, h, N, NULL, NULL), KN_OK);
    for (uint32_t t = 0; t < N; t++)
        put(e, w, t);
    end(e, &s);
    kni_hevc_encoder_close(&e);
    return s;
}

struct seen { uint32_t w, h, n; bool wrong; };

static enum kn_status look(void *user, uint32_t index, const uint8_t *const planes[3], const size_t strides[3], struct kn_err *err)
{
    struct seen *s = user;
    (void)err;
    for (uint32_t k = 0; k < 3; k++)
        for (uint32_t y = 0; y < s->h; y++)
            s->wrong |= memcmp(planes[k] + y * strides[k], pictures[index][k] + y * s->w, s->w) != 0;
    s->n++;
    return KN_OK;
}

static const enum kn_hevc_encoder both[2] = {KN_HEVC_ENCODER_X265_ULTRAFAST, KN_HEVC_ENCODER_X265_MEDIUM};

static void lossless(void **state)
{
    (void)state;
    static const uint32_t sizes[][2] = {{144, 144}, {16, 16}, {32, 48}, {16, 128}, {48, 64}};
    if (!have_plugin())
        skip();
    struct kni_hevc_decoder *d = NULL;
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++)
        for (int k = 0; k < 2; k++) {
            struct section s = alone(both[k], sizes[i][0], sizes[i][1]);
            struct seen seen = {.w = sizes[i][0], .h = sizes[i][1]};
            struct kn_err err = {0};
            if (kni_hevc_decode(&d, s.w.data, s.w.used_bytes, seen.w, seen.h, N, look, &seen, &err) != KN_OK)
                fail_msg("%u x %u, encoder %d: %s", seen.w, seen.h, (int)both[k], err.text);
            assert_int_equal(seen.n, N);
            assert_false(seen.wrong);
            kni_container_writer_fini(&s.w);
        }
    kni_hevc_decoder_close(&d);
}

/* Coding trees of 16 and of 32 samples in turn, in either order of opening. */
static void side_by_side(void **state)
{
    (void)state;
    if (!have_plugin())
        skip();
    struct section lone[2] = {alone(both[0], 144, 144), alone(both[1], 144, 144)};
    assert_int_not_equal(lone[0].w.used_bytes, lone[1].w.used_bytes); /* the preset arrives */
    for (int order = 0; order < 2; order++) {
        struct kni_hevc_encoder *e[2];
        for (int k = 0; k < 2; k++)
            e[k ^ order] = open_encoder(both[k ^ order]);
        for (int k = 0; k < 2; k++)
            assert_int_equal(kni_hevc_encode_begin(e[k ^ order], 144, 144, N, NULL, NULL), KN_OK);
        for (uint32_t t = 0; t < N; t++)
            for (int k = 0; k < 2; k++)
                put(e[k], 144, t);
        for (int k = 0; k < 2; k++) {
            struct section s;
            end(e[k], &s);
            assert_int_equal(s.w.used_bytes, lone[k].w.used_bytes);
            assert_memory_equal(s.w.data, lone[k].w.data, s.w.used_bytes);
            kni_container_writer_fini(&s.w);
            kni_hevc_encoder_close(&e[k]);
        }
    }
    for (int k = 0; k < 2; k++)
        kni_container_writer_fini(&lone[k].w);
}

static void bad_params(void **state)
{
    (void)state;
    const struct kn_hevc_plugin *plugin;
    if (kni_hevc_plugin_load(&plugin, NULL) != KN_OK)
        skip();
    static const char *const presets[] = {NULL, "", "slow"};
    for (size_t i = 0; i < sizeof presets / sizeof *presets; i++) {
        void *encoder = &encoder;
        struct kn_hevc_params params = {.width = 64, .height = 64, .preset = presets[i]};
        assert_int_equal(plugin->open(&encoder, &params), KN_HEVC_RESULT_FAILED);
        assert_null(encoder);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(large_pictures), cmocka_unit_test(lossless), cmocka_unit_test(side_by_side), cmocka_unit_test(bad_params)};
    return cmocka_run_group_tests(tests, setup, NULL);
}
