/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The judges of hevc_peers.h themselves, on a stream of x265 (where the plugin is there) and on one of our own: a good stream passes, and one
 * sample changed, a picture missing, a unit cut, damage in a slice are noticed by each. The reader judges our own stream only: it knows no motion.
 */
#include "unit/codec/codec_support.h"

#include "base/le.h"
#include "codec/hevc/hevc_encode.h"
#include "support/hevc_peers.h"

#if !TEST_DE265
#undef TEST_DE265
#define TEST_DE265 0
#endif

enum { W = 80, H = 48, N = 3 };

static struct hevc_film film;
static struct hevc_stream stream; /* of the encoder that the group's set-up names */
static bool ours;

static int set_up(enum kn_hevc_encoder encoder)
{
    struct kni_hevc_encoder *e;
    struct kn_err err = {0};
    struct kn_hevc_opts opts = {.encoder = encoder};
    ours = encoder == KN_HEVC_ENCODER_KINEMA;
    film = hevc_film_alloc(W, H, N, W + 5);
    for (uint32_t i = 0; i < N * 3 * H; i++)
        for (uint32_t x = 0; x < W; x++)
            hevc_film_row(&film, 0, 0, i)[x] = (uint8_t)(128 + test_random() % 64 * (i % 5) / 4);
    enum kn_status s = kni_hevc_encoder_open(&e, &opts, KNI_HEVC_CONTENT_NOISE, 0, &err);
    if (s == KN_E_UNSUPPORTED && !ours)
        return 0;
    assert_int_equal(s, KN_OK);
    struct kni_container_writer writer = {0};
    assert_int_equal(kni_hevc_encode_begin(e, W, H, N, NULL, &err), KN_OK);
    for (uint32_t t = 0; t < N; t++) {
        const uint8_t *planes[3];
        const size_t strides[3] = {film.stride, film.stride, film.stride};
        for (uint32_t k = 0; k < 3; k++)
            planes[k] = hevc_film_row(&film, t, k, 0);
        assert_int_equal(kni_hevc_encode_picture(e, planes, strides, &err), KN_OK);
    }
    assert_int_equal(kni_hevc_encode_end(e, &writer, &err), KN_OK);
    size_t at = 4 + 4 * N;
    for (uint32_t t = 0; t < N; t++) {
        uint32_t n = kni_le32_get(writer.data + 4 + 4 * t);
        hevc_stream_add(&stream, writer.data + at, n);
        at += n;
    }
    assert_int_equal(at, writer.used_bytes);
    kni_container_writer_fini(&writer);
    kni_hevc_encoder_close(&e);
    return 0;
}

static int set_up_x265(void **state)
{
    (void)state;
    return set_up(KN_HEVC_ENCODER_X265_ULTRAFAST);
}

static int set_up_ours(void **state)
{
    (void)state;
    return set_up(KN_HEVC_ENCODER_KINEMA);
}

static int tear_down(void **state)
{
    (void)state;
    hevc_stream_free(&stream);
    hevc_film_free(&film);
    return 0;
}

static void expect(bool good)
{
    for (int judge = 0; judge < 3; judge++) {
        if ((judge == 1 && !TEST_DE265) || (judge == 2 && !ours))
            continue;
        const char *bad = judge == 0   ? hevc_judge_avcodec(&stream, &film)
                          : judge == 1 ? hevc_judge_de265(&stream, &film, 0)
                                       : hevc_judge_reader(&stream, &film, KNI_HEVC_TOOLS_ALL, 0);
        if (good && bad)
            fail_msg("%s", bad);
        if (!good && !bad)
            fail_msg("judge %d sees nothing", judge);
    }
}

static void good(void **state)
{
    (void)state;
    if (!stream.n_units)
        skip();
    expect(true);
}

static void one_sample(void **state)
{
    (void)state;
    if (!stream.n_units)
        skip();
    static const uint32_t at[][4] = {{0, 0, 0, 0}, {N - 1, 2, W - 1, H - 1}, {1, 1, 17, 30}};
    for (size_t i = 0; i < sizeof at / sizeof *at; i++) {
        uint8_t *p = hevc_film_row(&film, at[i][0], at[i][1], at[i][3]) + at[i][2];
        *p ^= 1;
        expect(false);
        *p ^= 1;
    }
}

static void number_and_size(void **state)
{
    (void)state;
    if (!stream.n_units)
        skip();
    film.n_pictures--;
    expect(false);
    film.n_pictures++;
    stream.n_units--;
    stream.n_bytes -= stream.unit_bytes[N - 1];
    expect(false);
    stream.n_bytes += stream.unit_bytes[N - 1];
    stream.n_units++;
    film.width--;
    expect(false);
    film.width++;
    film.height--;
    expect(false);
    film.height++;
    expect(true);
}

static void damage(void **state)
{
    (void)state;
    if (!stream.n_units)
        skip();
    for (uint32_t unit = 0, end = 0; unit < N; unit++) {
        end += (uint32_t)stream.unit_bytes[unit];
        for (uint32_t back = 10; back <= 200; back += 38) { /* bytes of slice data */
            stream.bytes[end - back] ^= 0x10;
            expect(false);
            stream.bytes[end - back] ^= 0x10;
        }
    }
    stream.unit_bytes[N - 1] -= 40;
    stream.n_bytes -= 40;
    expect(false);
    stream.unit_bytes[N - 1] += 40;
    stream.n_bytes += 40;
    expect(true);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(good), cmocka_unit_test(one_sample), cmocka_unit_test(number_and_size), cmocka_unit_test(damage)};
    int n_failed = cmocka_run_group_tests_name("a stream of x265", tests, set_up_x265, tear_down);
    return n_failed + cmocka_run_group_tests_name("a stream of our own", tests, set_up_ours, tear_down);
}
