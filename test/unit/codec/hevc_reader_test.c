/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The reader of HEVC streams: random films coded by our encoder with every set of tools come back bit for bit; sums agree with the bytes there are;
 * x265's streams are read; damage, missing slices and unknown tools are refused with a sentence.
 */
#include "unit/codec/codec_support.h"

#include "base/le.h"
#include "codec/hevc/hevc_encode.h"
#include "support/hevc_own.h"
#include "support/hevc_random.h"

/* ---- streams */

static void code_case(const struct hevc_case *c, struct hevc_stream *s)
{
    struct kn_err err = {0};
    struct kni_hevc_lossless *e = NULL;
    void *memory = aligned_alloc(64, (kni_hevc_lossless_bytes(&c->opts) + 63) / 64 * 64);
    assert_non_null(memory);
    if (kni_hevc_lossless_init(&e, memory, &c->opts, &err) != KN_OK)
        fail_msg("%s", err.text);
    uint8_t *unit = malloc(kni_hevc_lossless_unit_bound(e));
    assert_non_null(unit);
    for (uint32_t t = 0; t < c->film.n_pictures; t++) {
        struct kni_hevc_job job = hevc_case_job(c, t);
        hevc_stream_add(s, unit, kni_hevc_lossless_unit(e, &job, unit));
    }
    free(unit);
    free(memory);
}

/* A film of smooth slopes and noise, as x265 codes it. false: there is no plugin. */
static bool code_x265(enum kn_hevc_encoder encoder, const struct hevc_film *f, struct hevc_stream *s)
{
    struct kni_hevc_encoder *e;
    struct kn_err err = {0};
    struct kn_hevc_opts opts = {.encoder = encoder};
    enum kn_status status = kni_hevc_encoder_open(&e, &opts, KNI_HEVC_CONTENT_TILES, &err);
    if (status == KN_E_UNSUPPORTED)
        return false;
    assert_int_equal(status, KN_OK);
    struct kni_container_writer writer = {0};
    assert_int_equal(kni_hevc_encode_begin(e, f->width, f->height, f->n_pictures, NULL, &err), KN_OK);
    for (uint32_t t = 0; t < f->n_pictures; t++) {
        const uint8_t *planes[3];
        const size_t strides[3] = {f->stride, f->stride, f->stride};
        for (uint32_t k = 0; k < 3; k++)
            planes[k] = hevc_film_row(f, t, k, 0);
        assert_int_equal(kni_hevc_encode_picture(e, planes, strides, &err), KN_OK);
    }
    assert_int_equal(kni_hevc_encode_end(e, &writer, &err), KN_OK);
    size_t at = 4 + 4 * (size_t)f->n_pictures;
    for (uint32_t t = 0; t < f->n_pictures; t++) {
        uint32_t n = kni_le32_get(writer.data + 4 + 4 * t);
        hevc_stream_add(s, writer.data + at, n);
        at += n;
    }
    kni_container_writer_fini(&writer);
    kni_hevc_encoder_close(&e);
    return true;
}

/* ---- tests */

/* Seeds of their own, so that other tests' films are not all that is read. Tools go round, so that each set comes with many films. */
static void our_films(void **state)
{
    (void)state;
    uint32_t n_pictures = 0;
    for (uint64_t seed = 70000; seed < 70240; seed++) {
        struct hevc_case c;
        struct hevc_stream s = {0};
        hevc_case_make(&c, seed, seed % 40 == 7 ? HEVC_CASE_MEDIUM : seed % 10 == 3 ? HEVC_CASE_SMALL : HEVC_CASE_TINY);
        c.opts.tools = seed % 16;
        code_case(&c, &s);
        struct hevc_own o;
        const char *bad = hevc_own_read(&s, &c.film, &o);
        if (!bad && o.n_rebuilt != o.n_pictures)
            bad = hevc_wrong("a picture %s", o.why);
        if (!bad && (o.params.tools != kni_hevc_content_tools(c.opts.tools, c.opts.content) || o.n_params != 1))
            bad = hevc_wrong("tools %u", o.params.tools);
        if (bad)
            fail_msg("%s: %s", hevc_case_text(&c), bad);
        n_pictures += o.n_pictures;
        hevc_stream_free(&s);
        hevc_case_free(&c);
    }
    assert_true(n_pictures > 400);
}

static void x265_films(void **state)
{
    (void)state;
    for (uint32_t still = 0; still < 2; still++)
        for (uint32_t encoder = KN_HEVC_ENCODER_X265_ULTRAFAST; encoder <= KN_HEVC_ENCODER_X265_MEDIUM; encoder++) {
            struct hevc_film f = hevc_film_alloc(160, 112, 4, 160);
            struct hevc_stream s = {0};
            uint64_t rng = hevc_mix(still);
            for (uint32_t t = 0; t < f.n_pictures; t++)
                for (uint32_t k = 0; k < 3; k++)
                    hevc_paint_plane(&f, t, k, !still ? HEVC_KIND_GRADIENT : t ? HEVC_KIND_REPEAT : HEVC_KIND_PATCHES, &rng);
            if (!code_x265((enum kn_hevc_encoder)encoder, &f, &s)) {
                hevc_film_free(&f);
                skip();
            }
            struct hevc_own o;
            const char *bad = hevc_own_read(&s, &f, &o);
            if (bad)
                fail_msg("encoder %u: %s", encoder, bad);
            assert_true(o.n_rebuilt >= (still ? 4u : 1u)); /* the first is intra; what repeats has no motion */
            assert_int_equal(o.params.tools, 0);
            hevc_stream_free(&s);
            hevc_film_free(&f);
        }
}

/* Where bits go: a picture that repeats is skipped; loud rows cost what they cost, silent ones nearly nothing. */
static void bands_and_classes(void **state)
{
    (void)state;
    struct hevc_case c = {.seed = 1, .opts = {.width = 128, .height = 128, .tools = 15, .n_slices = 2}};
    struct hevc_stream s = {0};
    struct hevc_own o;
    uint64_t rng = hevc_mix(5);
    c.film = hevc_film_alloc(128, 128, 3, 128);
    for (uint32_t k = 0; k < 3; k++) {
        hevc_paint(&c.film, 0, k, 0, 0, 128, 128, HEVC_KIND_FLAT, &rng);
        hevc_paint(&c.film, 1, k, 0, 0, 128, 128, HEVC_KIND_FLAT, &rng);
        hevc_paint(&c.film, 1, k, 0, 32, 128, 16, HEVC_KIND_NOISE, &rng);
        hevc_paint(&c.film, 2, k, 0, 0, 128, 128, HEVC_KIND_REPEAT, &rng);
    }
    code_case(&c, &s);
    if (hevc_own_read(&s, &c.film, &o))
        fail_msg("%s", o.bad);
    assert_int_equal(o.stream.n_slices, 6);
    assert_true(o.stream.n_bands == 8 && o.stream.band_rows == 16);
    assert_int_equal(o.stream.n_samples, 3 * 3 * 128 * 128);
    double noise = 3 * 16 * 128 * 8, all = hevc_own_bits(&o.stream.counts); /* incompressible bits */
    assert_true(all > noise && all < noise * 1.5);
    assert_true(o.stream.counts.element[KN_HEVC_ELEMENT_REMAINING].bits + o.stream.counts.element[KN_HEVC_ELEMENT_SIGN].bits > 0.7 * noise);
    for (uint32_t k = 0; k < 3; k++)
        assert_true(o.stream.counts.plane_bits[k] > noise / 3 && o.stream.counts.plane_bits[k] < noise / 2);
    assert_true(o.stream.counts.n_cu_skipped * 4 > o.stream.counts.n_cu); /* most of P pictures are, the flat one is intra */
    assert_true(o.stream.counts.n_cu_intra > 0 && o.stream.counts.n_cu_intra < o.stream.counts.n_cu);
    hevc_stream_free(&s);
    hevc_case_free(&c);
}

/* What a reader answers to bytes; never a crash. */
static enum kn_status answer(const uint8_t *bytes, size_t n, struct kn_err *err)
{
    struct kni_hevc_reader *r = NULL;
    struct kni_hevc_reader_opts opts = {.rebuild = true, .max_samples = 1 << 16};
    assert_int_equal(kni_hevc_reader_open(&r, &opts, err), KN_OK);
    enum kn_status s = kni_hevc_reader_read(r, bytes, n, err);
    if (s == KN_OK)
        s = kni_hevc_reader_end(r, NULL, err);
    kni_hevc_reader_close(&r);
    return s;
}

static void damage(void **state)
{
    (void)state;
    struct hevc_case c;
    struct hevc_stream s = {0};
    struct kn_err err = {0};
    hevc_case_make(&c, 70011, HEVC_CASE_TINY);
    code_case(&c, &s);
    assert_int_equal(answer(s.bytes, s.n_bytes, &err), KN_OK);
    uint32_t n_refused = 0, n_tried = 0;
    for (size_t n = 0; n < s.n_bytes; n += 1 + n / 50) { /* cut anywhere but between pictures */
        bool whole = n == s.unit_bytes[0];
        enum kn_status got = answer(s.bytes, n, &err);
        if (!whole && got == KN_OK && c.film.n_pictures == 1)
            fail_msg("%zu of %zu bytes pass", n, s.n_bytes);
        assert_true(got == KN_OK || (got == KN_E_FORMAT && err.text[0]));
    }
    for (size_t i = 0; i < s.n_bytes; i++)
        for (uint32_t bit = 0; bit < 8; bit += 1 + i % 3) {
            s.bytes[i] ^= (uint8_t)(1u << bit);
            enum kn_status got = answer(s.bytes, s.n_bytes, &err);
            assert_true(got == KN_OK || got == KN_E_FORMAT || got == KN_E_UNSUPPORTED);
            n_refused += got != KN_OK;
            n_tried++;
            s.bytes[i] ^= (uint8_t)(1u << bit);
        }
    assert_true(n_refused * 2 > n_tried); /* no checksum: a changed sign stays unseen */
    assert_int_equal(answer(s.bytes, s.n_bytes, &err), KN_OK);
    hevc_stream_free(&s);
    hevc_case_free(&c);
}

static void out_of_range(void **state)
{
    (void)state;
    struct kn_err err = {0};
    struct kni_hevc_reader *r = NULL;
    assert_int_equal(kni_hevc_reader_open(&r, &(struct kni_hevc_reader_opts){.band_rows = 6}, &err), KN_E_ARG);
    assert_null(r);
    kni_hevc_reader_close(&r);
    assert_int_equal(answer((const uint8_t *)"", 0, &err), KN_E_FORMAT);
    assert_int_equal(answer((const uint8_t *)"plain text", 10, &err), KN_E_FORMAT);
    assert_int_equal(answer((const uint8_t *)"\0\0\1", 3, &err), KN_E_FORMAT);
    struct hevc_case c = {.opts = {.width = 272, .height = 256, .n_slices = 1}}; /* more samples than answer() allows */
    struct hevc_stream s = {0};
    uint64_t rng = 1;
    c.film = hevc_film_alloc(272, 256, 1, 272);
    hevc_paint(&c.film, 0, 0, 0, 0, 272, 256, HEVC_KIND_FLAT, &rng);
    hevc_paint(&c.film, 0, 1, 0, 0, 272, 256, HEVC_KIND_FLAT, &rng);
    hevc_paint(&c.film, 0, 2, 0, 0, 272, 256, HEVC_KIND_FLAT, &rng);
    code_case(&c, &s);
    assert_int_equal(answer(s.bytes, s.n_bytes, &err), KN_E_UNSUPPORTED);
    assert_non_null(strstr(err.text, "272 x 256"));
    hevc_stream_free(&s);
    hevc_case_free(&c);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(our_films), cmocka_unit_test(x265_films), cmocka_unit_test(bands_and_classes), cmocka_unit_test(damage),
                                       cmocka_unit_test(out_of_range)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
