/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The HEVC section on its own: pictures come back bit for bit (by libavcodec, and by libde265 as a second opinion), in
 * order, and whatever is wrong with a section is KN_E_FORMAT before anything large is allocated.
 */
#include "unit/codec/codec_support.h"

#include <libavutil/log.h>
#include <pthread.h>
#if TEST_DE265
#include <libde265/de265.h>
#endif

#include "base/le.h"
#include "codec/hevc/hevc_decode.h"
#include "codec/hevc/hevc_encode.h"
#include "codec/hevc/hevc_syntax.h"

enum { W = 48, H = 32, N = 5 };

/* Sample of picture t: noise that changes slowly, different in each plane, with all 256 values. */
static uint8_t sample(uint32_t t, uint32_t plane, uint32_t x, uint32_t y)
{
    uint32_t h = (x * 2654435761u) ^ (y * 40503u + plane * 977u) ^ (y % 7 == 0 ? t * 7919u : 0);
    h ^= h >> 13;
    h *= 0x5bd1e995u;
    return (uint8_t)(h >> 15);
}

static void section_of(uint32_t w, uint32_t h, uint32_t n, uint8_t **out, size_t *n_bytes)
{
    struct kni_hevc_encoder *e;
    struct kn_err err = {0};
    if (kni_hevc_encoder_open(&e, &(struct kn_hevc_opts){0}, KNI_HEVC_CONTENT_TILES, 0, &err) != KN_OK)
        fail_msg("%s", err.text);
    struct kni_container_writer writer = {0};
    uint8_t *planes = malloc((size_t)w * h * 3);
    assert_non_null(planes);
    const uint8_t *in[3] = {planes, planes + w * h, planes + 2 * w * h};
    const size_t strides[3] = {w, w, w};
    assert_int_equal(kni_hevc_encode_begin(e, w, h, n, NULL, &err), KN_OK);
    for (uint32_t t = 0; t < n; t++) {
        for (uint32_t k = 0; k < 3; k++)
            for (uint32_t y = 0; y < h; y++)
                for (uint32_t x = 0; x < w; x++)
                    planes[k * w * h + y * w + x] = sample(t, k, x, y);
        assert_int_equal(kni_hevc_encode_picture(e, in, strides, &err), KN_OK);
    }
    assert_int_equal(kni_hevc_encode_end(e, &writer, &err), KN_OK);
    *out = malloc(writer.used_bytes);
    assert_non_null(*out);
    memcpy(*out, writer.data, writer.used_bytes);
    *n_bytes = writer.used_bytes;
    kni_container_writer_fini(&writer);
    kni_hevc_encoder_close(&e);
    free(planes);
}

struct seen { uint32_t w, h, n; bool wrong; enum kn_status answer; };

static enum kn_status look(void *user, uint32_t index, const uint8_t *const planes[3], const size_t strides[3], struct kn_err *err)
{
    struct seen *s = user;
    (void)err;
    s->wrong |= index != s->n++;
    for (uint32_t k = 0; k < 3; k++)
        for (uint32_t y = 0; y < s->h; y++)
            for (uint32_t x = 0; x < s->w; x++)
                s->wrong |= planes[k][y * strides[k] + x] != sample(index, k, x, y);
    return s->answer;
}

static void bit_for_bit(void **state)
{
    (void)state;
    static const uint32_t sizes[][3] = {{16, 16, 1}, {W, H, N}, {64, 48, 16}, {16, 208, 3}, {144, 144, 2}, {1024, 16, 2}};
    struct kni_hevc_decoder *d = NULL; /* one handle for all sizes */
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
        uint8_t *bytes;
        size_t n;
        section_of(sizes[i][0], sizes[i][1], sizes[i][2], &bytes, &n);
        for (int twice = 0; twice < 2; twice++) {
            struct seen s = {.w = sizes[i][0], .h = sizes[i][1]};
            struct kn_err err = {0};
            if (kni_hevc_decode(&d, bytes, n, s.w, s.h, sizes[i][2], look, &s, &err) != KN_OK)
                fail_msg("%u x %u: %s", s.w, s.h, err.text);
            assert_int_equal(s.n, sizes[i][2]);
            assert_false(s.wrong);
        }
        assert_true(kni_hevc_decoder_bytes(d) >= (size_t)sizes[i][0] * sizes[i][1] * 3);
        free(bytes);
    }
    kni_hevc_decoder_close(&d);
}

static void second_opinion(void **state)
{
    (void)state;
#if TEST_DE265
    uint8_t *bytes;
    size_t n, at = 4 + 4 * N;
    section_of(W, H, N, &bytes, &n);
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
            const uint8_t *planes[3];
            size_t strides[3];
            for (int k = 0; k < 3; k++) {
                int stride;
                assert_int_equal(de265_get_image_width(image, k), W);
                assert_int_equal(de265_get_image_height(image, k), H);
                planes[k] = de265_get_image_plane(image, k, &stride);
                strides[k] = (size_t)stride;
            }
            struct seen s = {.w = W, .h = H, .n = n_seen};
            look(&s, n_seen, planes, strides, NULL);
            assert_false(s.wrong);
        }
    }
    assert_int_equal(n_seen, N);
    de265_free_decoder(c);
    free(bytes);
#else
    skip();
#endif
}

/* One encoder codes stream after stream: each must stand alone and be the same bytes as from a fresh encoder. An abandoned
 * stream in between leaves no trace. */
static void streams_stand_alone(void **state)
{
    (void)state;
    uint8_t *alone, plane[W * H];
    size_t n;
    section_of(W, H, N, &alone, &n);
    struct kni_hevc_encoder *e;
    assert_int_equal(kni_hevc_encoder_open(&e, &(struct kn_hevc_opts){0}, KNI_HEVC_CONTENT_TILES, 0, NULL), KN_OK);
    uint8_t planes[3][W * H];
    const uint8_t *in[3] = {planes[0], planes[1], planes[2]}, *other[3] = {plane, plane, plane};
    const size_t strides[3] = {W, W, W};
    for (int round = 0; round < 3; round++) {
        assert_int_equal(kni_hevc_encode_begin(e, W, H, N, NULL, NULL), KN_OK);
        memset(plane, 7 * round, sizeof plane);
        assert_int_equal(kni_hevc_encode_picture(e, other, strides, NULL), KN_OK);
        struct kni_container_writer w = {0};
        assert_int_equal(kni_hevc_encode_begin(e, W, H, N, NULL, NULL), KN_OK);
        for (uint32_t t = 0; t < N; t++) {
            for (uint32_t k = 0; k < 3; k++)
                for (uint32_t i = 0; i < W * H; i++)
                    planes[k][i] = sample(t, k, i % W, i / W);
            assert_int_equal(kni_hevc_encode_picture(e, in, strides, NULL), KN_OK);
        }
        assert_int_equal(kni_hevc_encode_end(e, &w, NULL), KN_OK);
        assert_int_equal(w.used_bytes, n);
        assert_memory_equal(w.data, alone, n);
        kni_container_writer_fini(&w);
    }
    kni_hevc_encoder_close(&e);
    free(alone);
}

static enum kn_status decode(const uint8_t *bytes, size_t n, uint32_t w, uint32_t h, uint32_t n_pictures)
{
    struct kni_hevc_decoder *d = NULL;
    struct seen s = {.w = w, .h = h};
    struct kn_err err = {0};
    uint8_t *exact = malloc(n ? n : 1); /* so that sanitizers see overreads */
    assert_non_null(exact);
    memcpy(exact, bytes, n);
    enum kn_status status = kni_hevc_decode(&d, exact, n, w, h, n_pictures, look, &s, &err);
    assert_true(status == KN_OK ? d != NULL && s.n == n_pictures : d == NULL && err.text[0]);
    kni_hevc_decoder_close(&d);
    free(exact);
    return status;
}

static void wrong_expectations(void **state)
{
    (void)state;
    uint8_t *bytes;
    size_t n;
    section_of(W, H, N, &bytes, &n);
    assert_int_equal(decode(bytes, n, W, H, N), KN_OK);
    assert_int_equal(decode(bytes, n, W + 16, H, N), KN_E_FORMAT);
    assert_int_equal(decode(bytes, n, W, H - 16, N), KN_E_FORMAT);
    assert_int_equal(decode(bytes, n, W, H, N - 1), KN_E_FORMAT);
    assert_int_equal(decode(bytes, n, W, H, N + 1), KN_E_FORMAT);
    assert_int_equal(decode(bytes, n - 1, W, H, N), KN_E_FORMAT);
    assert_int_equal(decode(bytes, 0, W, H, N), KN_E_FORMAT);
    kni_le32_put(bytes, N - 1); /* one picture fewer in the table, its bytes left over */
    assert_int_equal(decode(bytes, n, W, H, N - 1), KN_E_FORMAT);
    kni_le32_put(bytes, N);
    uint32_t first = kni_le32_get(bytes + 4);
    kni_le32_put(bytes + 4, first - 1);
    kni_le32_put(bytes + 8, kni_le32_get(bytes + 8) + 1); /* same sum, wrong cut */
    assert_int_equal(decode(bytes, n, W, H, N), KN_E_FORMAT);
    kni_le32_put(bytes + 4, UINT32_MAX);
    assert_int_equal(decode(bytes, n, W, H, N), KN_E_FORMAT);
    kni_le32_put(bytes + 4, 0);
    assert_int_equal(decode(bytes, n, W, H, N), KN_E_FORMAT);
    free(bytes);
}

static void cut_everywhere(void **state)
{
    (void)state;
    uint8_t *bytes;
    size_t n;
    section_of(16, 16, 2, &bytes, &n);
    for (size_t k = 0; k < n; k++)
        assert_int_equal(decode(bytes, k, 16, 16, 2), KN_E_FORMAT);
    free(bytes);
}

/* The callback's refusal ends decoding and is handed on. */
static void refusal(void **state)
{
    (void)state;
    uint8_t *bytes;
    size_t n;
    section_of(W, H, N, &bytes, &n);
    struct kni_hevc_decoder *d = NULL;
    struct seen s = {.w = W, .h = H, .answer = KN_E_CANCELLED};
    assert_int_equal(kni_hevc_decode(&d, bytes, n, W, H, N, look, &s, NULL), KN_E_CANCELLED);
    assert_int_equal(s.n, 1);
    assert_null(d);
    free(bytes);
}

/* Units that would make a decoder allocate by what they claim never reach it. */
static void units(void **state)
{
    (void)state;
    uint8_t *bytes, *big;
    size_t n, n_big, at = 4 + 4 * N;
    section_of(W, H, N, &bytes, &n);
    section_of(64, 64, 1, &big, &n_big);
    size_t first = kni_le32_get(bytes + 4), second = kni_le32_get(bytes + 8);
    const uint8_t *p = bytes + at + first;
    assert_null(kni_hevc_check_unit(bytes + at, first, true, W, H));
    assert_null(kni_hevc_check_unit(p, second, false, W, H));
    assert_non_null(kni_hevc_check_unit(bytes + at, first, false, W, H)); /* parameter sets and IDR later on */
    assert_non_null(kni_hevc_check_unit(p, second, true, W, H));          /* P picture at first */
    assert_non_null(kni_hevc_check_unit(big + 8, n_big - 8, true, W, H));
    assert_null(kni_hevc_check_unit(big + 8, n_big - 8, true, 64, 64));
    assert_non_null(kni_hevc_check_unit(NULL, 0, true, W, H));
    uint8_t *unit = malloc(first);
    assert_non_null(unit);
    for (size_t k = 0; k < first; k++) { /* every flip in the head: no overread, and mostly refused */
        memcpy(unit, bytes + at, first);
        unit[k] ^= 0xff;
        kni_hevc_check_unit(unit, first, true, W, H);
        kni_hevc_check_unit(unit, k, true, W, H);
    }
    free(unit);
    /* a valid stream of one size followed by another size's stream as its second picture */
    size_t spliced = 4 + 8 + first + (n_big - 8);
    uint8_t *splice = malloc(spliced);
    assert_non_null(splice);
    kni_le32_put(splice, 2);
    kni_le32_put(splice + 4, (uint32_t)first);
    kni_le32_put(splice + 8, (uint32_t)(n_big - 8));
    memcpy(splice + 12, bytes + at, first);
    memcpy(splice + 12 + first, big + 8, n_big - 8);
    assert_int_equal(decode(splice, spliced, W, H, 2), KN_E_FORMAT);
    free(splice);
    free(bytes);
    free(big);
}

static void flips(void **state)
{
    (void)state;
    uint8_t *bytes;
    size_t n;
    section_of(W, H, 2, &bytes, &n);
    unsigned refused = 0;
    for (size_t i = 0; i < n; i += i < 200 ? 1 : 17) {
        uint8_t was = bytes[i];
        bytes[i] ^= (uint8_t)(1u << test_random() % 8);
        enum kn_status s = decode(bytes, n, W, H, 2);
        assert_true(s == KN_OK || s == KN_E_FORMAT); /* a flipped sample cannot be seen here: the container's checksum does that */
        refused += s != KN_OK;
        bytes[i] = was;
    }
    assert_true(refused > 50);
    assert_int_equal(decode(bytes, n, W, H, 2), KN_OK);
    free(bytes);
}

static unsigned n_heard;

static void hear(void *about, int level, const char *format, va_list args)
{
    (void)about, (void)format, (void)args;
    n_heard += level <= AV_LOG_TRACE;
}

/* Damage is told through statuses: nothing reaches the log at any level that there is, and the process's callback, which may
 * belong to the program, stays in place. */
static void decoder_is_silent(void **state)
{
    (void)state;
    uint8_t *bytes;
    size_t n;
    section_of(W, H, 2, &bytes, &n);
    int level = av_log_get_level();
    av_log_set_level(AV_LOG_TRACE);
    av_log_set_callback(hear);
    av_log(NULL, AV_LOG_ERROR, "heard");
    assert_int_equal(n_heard, 1);
    unsigned refused = 0;
    for (size_t i = 12; i < n; i += i < 200 ? 1 : 17) {
        bytes[i] ^= 0x55;
        refused += decode(bytes, n, W, H, 2) != KN_OK;
        bytes[i] ^= 0x55;
    }
    assert_int_equal(n_heard, 1);
    assert_true(refused > 50);
    av_log(NULL, AV_LOG_ERROR, "heard");
    assert_int_equal(n_heard, 2);
    av_log_set_callback(av_log_default_callback);
    av_log_set_level(level);
    free(bytes);
}

static void *worker(void *arg)
{
    unsigned *bad = arg;
    for (int i = 0; i < 4; i++) {
        uint8_t *bytes;
        size_t n;
        section_of(W, H, N, &bytes, &n);
        *bad += decode(bytes, n, W, H, N) != KN_OK;
        free(bytes);
    }
    return NULL;
}

static void threads(void **state)
{
    (void)state;
    pthread_t t[4];
    unsigned bad[4] = {0};
    for (int i = 0; i < 4; i++)
        assert_int_equal(pthread_create(&t[i], NULL, worker, &bad[i]), 0);
    for (int i = 0; i < 4; i++) {
        pthread_join(t[i], NULL);
        assert_int_equal(bad[i], 0);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(bit_for_bit), cmocka_unit_test(second_opinion), cmocka_unit_test(streams_stand_alone), cmocka_unit_test(wrong_expectations), cmocka_unit_test(cut_everywhere),
        cmocka_unit_test(refusal),     cmocka_unit_test(units),          cmocka_unit_test(flips),              cmocka_unit_test(decoder_is_silent), cmocka_unit_test(threads),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
