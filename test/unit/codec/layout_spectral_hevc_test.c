/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The video of a spectral chunk, as others see it: pictures of the promised size, flat ones in between, symbols where the format says,
 * columns in the order that the chunk states, and 128 everywhere else; libavcodec and libde265 see the same. No B pictures, one reference: a picture is shown when it is decoded.
 */
#include "unit/codec/spectral_support.h"

#if TEST_DE265
#include <libde265/de265.h>
#endif

struct film {
    uint32_t width, height, n;
    uint8_t *samples; /* [picture][plane][height][width] */
};

static uint8_t *film_row(const struct film *f, uint32_t picture, uint32_t plane, uint32_t y)
{
    return f->samples + (((size_t)picture * 3 + plane) * f->height + y) * f->width;
}

static enum kn_status keep(void *user, uint32_t index, const uint8_t *const planes[3], const size_t strides[3], struct kn_err *err)
{
    struct film *f = user;
    (void)err;
    assert_int_equal(index, f->n++);
    f->samples = realloc(f->samples, (size_t)f->n * 3 * f->width * f->height);
    assert_non_null(f->samples);
    for (uint32_t k = 0; k < 3; k++)
        for (uint32_t y = 0; y < f->height; y++)
            memcpy(film_row(f, index, k, y), planes[k] + y * strides[k], f->width);
    return KN_OK;
}

#if TEST_DE265
static void second_opinion(const struct film *f, const uint8_t *bytes, size_t n)
{
    size_t at = 4 + 4 * (size_t)f->n;
    de265_decoder_context *c = de265_new_decoder();
    assert_non_null(c);
    assert_int_equal(de265_push_data(c, bytes + at, (int)(n - at), 0, NULL), DE265_OK);
    assert_int_equal(de265_flush_data(c), DE265_OK);
    uint32_t n_seen = 0;
    for (int more = 1; more;) {
        more = 0;
        de265_error e = de265_decode(c, &more);
        if (e != DE265_OK && e != DE265_ERROR_WAITING_FOR_INPUT_DATA)
            fail_msg("libde265: %s", de265_get_error_text(e));
        for (const struct de265_image *image; (image = de265_get_next_picture(c)); n_seen++) {
            assert_int_equal(de265_get_chroma_format(image), de265_chroma_444);
            assert_true(n_seen < f->n);
            for (uint32_t k = 0; k < 3; k++) {
                int stride;
                assert_int_equal(de265_get_bits_per_pixel(image, (int)k), 8);
                assert_int_equal(de265_get_image_width(image, (int)k), f->width);
                assert_int_equal(de265_get_image_height(image, (int)k), f->height);
                const uint8_t *plane = de265_get_image_plane(image, (int)k, &stride);
                for (uint32_t y = 0; y < f->height; y++)
                    assert_memory_equal(plane + (size_t)y * (size_t)stride, film_row(f, n_seen, k, y), f->width);
            }
        }
    }
    assert_int_equal(n_seen, f->n);
    de265_free_decoder(c);
}
#endif

/* What one plane of a picture must be. */
static void expect_plane(uint8_t *want, const struct film *f, const struct kni_profile *p, struct kni_spectral *s, const struct pool *pool,
                         const struct kni_chunk_meta *m, enum kni_profile_preset preset, uint32_t part, uint32_t first, uint32_t n)
{
    struct kni_escapes escapes = {0};
    memset(want, 128, (size_t)f->width * f->height);
    if (part >= p->n_parts)
        return;
    for (uint32_t c = 0; c < n; c += KNI_SPECTRAL_RUN)
        assert_int_equal(kni_spectral_forward(s, &pool->view, m->first_token + first + c, n - c < KNI_SPECTRAL_RUN ? n - c : KNI_SPECTRAL_RUN, part, preset, want + c,
                                              f->width, &escapes), KN_OK);
    for (uint32_t y = 0; y < f->height && m->first_token + first == 0; y++)
        memset(want + (size_t)y * f->width, 128, p->n_sinks);
    kni_free(escapes.values);
}

/* The class of token t, or of token t mod n_tokens of part t / n_tokens, bit by bit. */
static uint32_t class_of(const uint8_t *order, size_t t)
{
    uint32_t c = 0;
    for (size_t k = 0; k < 3; k++)
        c |= (uint32_t)(order[(3 * t + k) / 8] >> (3 * t + k) % 8 & 1) << k;
    return c;
}

/* Columns 0 to n - 1 of a plane, as the classes of n tokens from `at` on say. True when any moves. */
static bool put_in_order(uint8_t *plane, const struct film *f, const uint8_t *order, size_t at, uint32_t n)
{
    uint8_t *text = malloc((size_t)f->width * f->height);
    uint32_t column = 0;
    bool moved = false;
    assert_non_null(text);
    memcpy(text, plane, (size_t)f->width * f->height);
    for (uint32_t c = 0; c < 8; c++)
        for (uint32_t t = 0; t < n; t++)
            if (class_of(order, at + t) == c) {
                for (uint32_t y = 0; y < f->height; y++)
                    plane[(size_t)y * f->width + column] = text[(size_t)y * f->width + t];
                moved |= t != column++;
            }
    assert_int_equal(column, n);
    free(text);
    return moved;
}

/* Every class has its eighth of the tokens, and none is quieter than any of the next. */
static void expect_classes(const struct film *f, const uint8_t *order, size_t at, uint32_t n, uint32_t picture, uint32_t plane)
{
    uint32_t column = 0, quietest = UINT32_MAX, so_far = UINT32_MAX;
    for (uint32_t c = 0; c < 8; c++) {
        uint32_t end = n * (c + 1) / 8, size = 0;
        for (uint32_t t = 0; t < n; t++)
            size += class_of(order, at + t) == c;
        assert_int_equal(size, end - column);
        for (; column < end; column++) {
            uint32_t loudness = 0;
            for (uint32_t y = 0; y < f->height; y++)
                loudness += film_row(f, picture, plane, y)[column] != 128;
            assert_true(loudness <= so_far);
            quietest = loudness < quietest ? loudness : quietest;
        }
        so_far = quietest;
    }
}

static void check_order(bool text_order, struct kn_tiny_profile_opts o, uint32_t first, uint32_t n_tokens, uint32_t per, uint32_t want_width)
{
    struct kni_profile *p = spectral_profile(o);
    struct pool pool = pool_make(p->kv.n_layer, p->kv.n_kv_head, p->kv.d_head, KN_KV_TYPE_F16, first + n_tokens);
    pool_fill_smooth(&pool);
    struct kni_chunk_meta m = test_meta(&pool, first, n_tokens);
    struct kni_codec_opts opts = {.preset = KN_PRESET_MEDIUM, .profile = p, .backend = KN_BACKEND_HEVC, .tokens_per_picture = per, .text_order = text_order};
    struct kni_codec *codec;
    assert_int_equal(kni_codec_open(&codec, &opts, NULL), KN_OK);
    size_t n, size, order_size;
    void *data = spectral_encode(codec, &m, &pool.view, &n);
    kni_codec_close(&codec);
    struct kni_container c;
    struct kni_spectral *s;
    assert_int_equal(kni_container_open(&c, data, n, NULL), KN_OK);
    per = per && per < n_tokens ? per : n_tokens;
    assert_int_equal(c.header.tiling.tokens_per_picture, per);
    assert_int_equal(kni_spectral_open(&s, p, KNI_SPECTRAL_RUN, kni_cpu_flags(), NULL), KN_OK);
    uint32_t n_triples = (p->n_parts / 2 + 2) / 3, n_pictures = (n_tokens + per - 1) / per, n_moved = 0;
    const uint8_t *order;
    assert_int_equal(kni_container_expect(&c, (first == 0 && p->n_sinks) + n_triples * 2, KNI_SECTION_KIND_SPECTRAL_ORDER, 0, &order, &order_size, NULL), KN_OK);
    assert_int_equal(order_size, text_order ? 0 : p->n_parts * n_tokens * 3 / 8);
    for (uint32_t i = 0; i < n_triples * 2; i++) {
        const uint8_t *bytes;
        assert_int_equal(kni_container_expect(&c, (first == 0) + i, KNI_SECTION_KIND_SPECTRAL_VIDEO, i, &bytes, &size, NULL), KN_OK);
        uint32_t rows = kni_spectral_rows_max(p, i % 2, KNI_PROFILE_PRESET_MEDIUM);
        struct film f = {.width = want_width, .height = rows < 144 ? 144 : (rows + 15) / 16 * 16};
        struct kni_hevc_decoder *decoder = NULL;
        struct kn_err err = {0};
        if (kni_hevc_decode(&decoder, bytes, size, f.width, f.height, 2 * n_pictures, keep, &f, &err) != KN_OK)
            fail_msg("%s", err.text);
        kni_hevc_decoder_close(&decoder);
        assert_int_equal(f.n, 2 * n_pictures);
        uint8_t *want = malloc((size_t)f.width * f.height);
        assert_non_null(want);
        for (uint32_t t = 0; t < f.n; t++)
            for (uint32_t k = 0; k < 3; k++) {
                uint32_t at = t / 2 * per, part = t % 2 ? (i / 2 * 3 + k) * 2 + i % 2 : UINT32_MAX; /* even pictures are flat */
                uint32_t n_here = n_tokens - at < per ? n_tokens - at : per;
                expect_plane(want, &f, p, s, &pool, &m, KNI_PROFILE_PRESET_MEDIUM, part, at, n_here);
                if (!text_order && part < p->n_parts) {
                    n_moved += put_in_order(want, &f, order, (size_t)part * n_tokens + at, n_here);
                    expect_classes(&f, order, (size_t)part * n_tokens + at, n_here, t, k);
                }
                assert_memory_equal(film_row(&f, t, k, 0), want, (size_t)f.width * f.height);
            }
#if TEST_DE265
        second_opinion(&f, bytes, size);
#endif
        free(want);
        free(f.samples);
    }
    assert_true(text_order ? n_moved == 0 : n_moved > 0);
    kni_spectral_close(&s);
    kni_free(data);
    pool_free(&pool);
    kni_profile_close(&p);
}

static void check(struct kn_tiny_profile_opts o, uint32_t first, uint32_t n_tokens, uint32_t per, uint32_t want_width)
{
    check_order(false, o, first, n_tokens, per, want_width);
    check_order(true, o, first, n_tokens, per, want_width);
}

static void one_picture(void **state)
{
    (void)state;
    check((struct kn_tiny_profile_opts){.n_layer = 6, .n_kv_head = 2, .d_head = 32, .n_group = 2, .n_sinks = 4}, 0, 256, 0, 256);
    check((struct kn_tiny_profile_opts){.n_layer = 3, .n_kv_head = 1, .d_head = 32, .n_group = 1, .n_sinks = 4}, 16, 32, 0, 144);
}

static void several_pictures(void **state)
{
    (void)state;
    /* four groups: the second triple has one; the last picture has 32 of 64 tokens */
    check((struct kn_tiny_profile_opts){.n_layer = 8, .n_kv_head = 3, .d_head = 32, .n_group = 2, .n_sinks = 3}, 0, 160, 64, 144);
    /* wider than a run */
    check((struct kn_tiny_profile_opts){.n_layer = 2, .n_kv_head = 1, .d_head = 32, .n_group = 1}, 32, 656, 320, 320);
}

/* A row is as loud as the loudest plane's class says; padding has nothing. */
static void rows_have_a_scale(void **state)
{
    (void)state;
    struct kni_profile *p = spectral_profile((struct kn_tiny_profile_opts){.n_layer = 8, .n_kv_head = 3, .d_head = 32, .n_group = 2, .n_sinks = 3});
    uint16_t scale[1024];
    uint32_t n_loud = 0;
    for (uint32_t i = 0; i < 4 * KNI_PROFILE_N_PRESETS; i++) {
        enum kni_profile_preset preset = i / 4;
        uint32_t triple = i / 2 % 2, is_v = i % 2, height = (kni_spectral_rows_max(p, is_v, preset) + 31) / 16 * 16;
        assert_true(height < 1024);
        memset(scale, 0xee, sizeof scale);
        kni_spectral_row_scale(p, is_v, preset, triple, height, scale);
        for (uint32_t r = 0; r < height; r++) {
            int loudest = -1;
            for (uint32_t k = 0; k < 3; k++) {
                uint32_t part = (triple * 3 + k) * 2 + is_v;
                if (part < p->n_parts && r < kni_spectral_rows_of(p, part, preset) && p->parts[part].classes[preset][r] % 64 > loudest)
                    loudest = p->parts[part].classes[preset][r] % 64;
            }
            if (loudest < 0)
                assert_int_equal(scale[r], 0);
            else if (loudest >= 16) /* below, a scale has too few bits for quarter octaves */
                assert_int_equal(kni_rans_class_of_row(scale[r] / 256.0, 0), loudest);
            else
                assert_in_range(scale[r], 1, 16);
            n_loud += loudest >= 16;
        }
        assert_int_equal(scale[height], 0xeeee);
    }
    assert_true(n_loud > 100);
    kni_profile_close(&p);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(one_picture), cmocka_unit_test(several_pictures), cmocka_unit_test(rows_have_a_scale)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
