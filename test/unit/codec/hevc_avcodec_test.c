/* SPDX-License-Identifier: Apache-2.0 */
/*
 * libavcodec as it may be found on another machine: missing, without a function, of another version, without libavutil.
 * Each is a sentence that says what to install and what does not work; once the right one is there it is found, by many
 * threads at once, and decodes.
 */
#include "unit/codec/codec_support.h"

#include <pthread.h>

#include "codec/hevc/hevc_avcodec.h"
#include "codec/hevc/hevc_decode.h"
#include "codec/hevc/hevc_encode.h"
#include "support/hide_library.h"

enum { SIDE = 64, N_THREADS = 8 };

#define TEXT_OF(x) #x
#define TEXT(x) TEXT_OF(x)
#define AVCODEC "libavcodec.so." TEXT(LIBAVCODEC_VERSION_MAJOR)
#define AVCODEC_PACKAGE "libavcodec" TEXT(LIBAVCODEC_VERSION_MAJOR)
#define AVUTIL "libavutil.so." TEXT(LIBAVUTIL_VERSION_MAJOR)

static struct kni_container_writer section; /* one picture of noise */
static uint8_t picture[3][SIDE * SIDE];

static int set_up(void **state)
{
    (void)state;
    struct kni_hevc_encoder *e;
    const uint8_t *planes[3] = {picture[0], picture[1], picture[2]};
    const size_t strides[3] = {SIDE, SIDE, SIDE};
    for (size_t i = 0; i < sizeof picture; i++)
        (&picture[0][0])[i] = (uint8_t)(120 + test_random() % 16);
    if (kni_hevc_encoder_open(&e, &(struct kn_hevc_opts){0}, KNI_HEVC_CONTENT_TILES, 0, NULL) ||
        kni_hevc_encode_begin(e, SIDE, SIDE, 1, NULL, NULL) || kni_hevc_encode_picture(e, planes, strides, NULL) ||
        kni_hevc_encode_end(e, &section, NULL))
        return -1;
    kni_hevc_encoder_close(&e);
    return 0;
}

static int tear_down(void **state)
{
    (void)state;
    kni_container_writer_fini(&section);
    return 0;
}

static enum kn_status look(void *user, uint32_t index, const uint8_t *const planes[3], const size_t strides[3],
                           struct kn_err *err)
{
    uint32_t *n_right = user;
    bool right = index == 0;
    (void)err;
    for (uint32_t k = 0; k < 3; k++)
        for (uint32_t y = 0; y < SIDE; y++)
            right = right && !memcmp(planes[k] + y * strides[k], picture[k] + y * SIDE, SIDE);
    *n_right += right;
    return KN_OK;
}

static enum kn_status decode(uint32_t *n_right, struct kn_err *err)
{
    struct kni_hevc_decoder *d = NULL;
    enum kn_status s = kni_hevc_decode(&d, section.data, section.used_bytes, SIDE, SIDE, 1, look, n_right, err);
    if (s)
        assert_null(d);
    kni_hevc_decoder_close(&d);
    return s;
}

/* Refused, with these in the sentence; and it says what fails without it, whole. */
static void refused(const char *a, const char *b, const char *c)
{
    const char *const wanted[] = {a, b, c, "cannot be restored", "all else works"};
    const struct kni_avcodec *av = (const void *)&section; /* anything but NULL */
    struct kn_err err = {0};
    uint32_t n_right = 0;
    assert_int_equal(kni_avcodec_load(&av, NULL), KN_E_UNSUPPORTED);
    assert_null(av);
    assert_int_equal(kni_hevc_decode_prepare(NULL), KN_E_UNSUPPORTED);
    assert_int_equal(decode(&n_right, &err), KN_E_UNSUPPORTED);
    assert_int_equal(err.status, KN_E_UNSUPPORTED);
    assert_int_equal(n_right, 0);
    for (size_t i = 0; i < sizeof wanted / sizeof *wanted; i++)
        if (!strstr(err.text, wanted[i]))
            fail_msg("no \"%s\" in: %s", wanted[i], err.text);
}

static void missing(void **state)
{
    (void)state;
    hide_library(AVCODEC);
    refused(AVCODEC " cannot be loaded", "apt-get install " AVCODEC_PACKAGE, "too short");
    refused(AVCODEC " cannot be loaded", "apt-get install " AVCODEC_PACKAGE, "too short"); /* asked again */
    hide_nothing(AVCODEC);
}

static void without_libavutil(void **state)
{
    (void)state;
    hide_library(AVUTIL);
    refused(AVCODEC " cannot be loaded", "apt-get install", AVUTIL); /* libavcodec itself needs it */
    hide_behind(AVCODEC, KN_BUILD_DIR "/test/libother_avcodec.so");
    refused(AVUTIL " cannot be loaded", "apt-get install libavutil" TEXT(LIBAVUTIL_VERSION_MAJOR), "too short");
    hide_nothing(AVCODEC);
    hide_nothing(AVUTIL);
}

static void without_a_function(void **state)
{
    (void)state;
    hide_behind(AVCODEC, KN_BUILD_DIR "/test/libother_avcodec_empty.so");
    refused(AVCODEC, "no function avcodec_find_decoder", AVCODEC_PACKAGE);
    hide_nothing(AVCODEC);
}

static void other_version(void **state)
{
    (void)state;
    hide_behind(AVCODEC, KN_BUILD_DIR "/test/libother_avcodec.so");
    refused(AVCODEC, "version is 7", AVCODEC_PACKAGE);
    hide_nothing(AVCODEC);
}

struct job { pthread_barrier_t *begin; const struct kni_avcodec *av; uint32_t n_right; enum kn_status status; };

static void *load_and_decode(void *user)
{
    struct job *j = user;
    pthread_barrier_wait(j->begin);
    j->status = kni_avcodec_load(&j->av, NULL);
    if (!j->status)
        j->status = decode(&j->n_right, NULL);
    return NULL;
}

/* Last: from here on it stays loaded. */
static void found_by_many(void **state)
{
    (void)state;
    struct job jobs[N_THREADS];
    pthread_t threads[N_THREADS];
    pthread_barrier_t begin;
    assert_int_equal(pthread_barrier_init(&begin, NULL, N_THREADS), 0);
    for (int i = 0; i < N_THREADS; i++) {
        jobs[i] = (struct job){.begin = &begin};
        assert_int_equal(pthread_create(&threads[i], NULL, load_and_decode, &jobs[i]), 0);
    }
    for (int i = 0; i < N_THREADS; i++) {
        assert_int_equal(pthread_join(threads[i], NULL), 0);
        assert_int_equal(jobs[i].status, KN_OK);
        assert_int_equal(jobs[i].n_right, 1);
        assert_non_null(jobs[i].av);
        assert_ptr_equal(jobs[i].av, jobs[0].av);
    }
    pthread_barrier_destroy(&begin);
    hide_library(AVCODEC); /* no matter any more */
    assert_int_equal(kni_hevc_decode_prepare(NULL), KN_OK);
    hide_nothing(AVCODEC);
}

int main(int argc, char **argv)
{
    (void)argc;
    hide_begin(argv);
    const struct CMUnitTest tests[] = {cmocka_unit_test(missing), cmocka_unit_test(without_libavutil),
                                       cmocka_unit_test(without_a_function), cmocka_unit_test(other_version),
                                       cmocka_unit_test(found_by_many)};
    int n_failed = cmocka_run_group_tests(tests, set_up, tear_down);
    hide_end();
    return n_failed;
}
