/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The reader of HEVC streams: random films coded by our encoder with every set of tools come back bit for bit; sums agree with the bytes there are;
 * x265's streams are read, with a tool that neither encoder uses, too; damage, missing slices and unknown tools are refused with a sentence.
 */
#include "unit/codec/codec_support.h"

#include "base/alloc.h"
#include "base/le.h"
#include "codec/hevc/hevc_encode.h"
#include "support/hevc_random.h"

/* ---- reading, with every sum held against the others and against the bytes there are */

struct outcome {
    const struct hevc_film *want;
    struct kn_hevc_params params;
    uint32_t n_params, n_slices, n_pictures, n_rebuilt;
    uint64_t picture_bytes, data_bytes; /* data: of slices behind their headers */
    double bits;                        /* of slices */
    uint64_t rows;                      /* of slices' first rows, picture by picture */
    const char *bad, *why;              /* why: a picture was not rebuilt */
    struct kn_hevc_stream stream;       /* at the end */
};

static double bits_of(const struct kn_hevc_counts *c)
{
    double bits = 0;
    for (uint32_t e = 0; e < KN_HEVC_ELEMENT_COUNT; e++)
        bits += c->element[e].bits;
    return bits;
}

static enum kn_status on_params(void *user, const struct kn_hevc_params *params, struct kn_err *err)
{
    struct outcome *o = user;
    (void)err;
    o->params = *params;
    o->n_params++;
    return KN_OK;
}

static enum kn_status on_slice(void *user, const struct kn_hevc_slice *slice, struct kn_err *err)
{
    struct outcome *o = user;
    (void)err;
    double bits = bits_of(&slice->counts), bytes = (double)(slice->n_bytes - slice->header_bytes - slice->n_escapes - slice->n_filler);
    if (slice->picture != o->n_pictures || slice->first_row != o->rows || !slice->n_rows)
        o->bad = hevc_wrong("slice %u of picture %u is out of order", slice->index, slice->picture);
    else if (bits > 8 * bytes * 1.02 + 16 || bits < 8 * bytes * 0.93 - 60 - 8.0 * slice->n_rows) /* coarse ranges cost bits, and so does where PCM begins */
        o->bad = hevc_wrong("slice %u of picture %u has %.0f bytes and %.1f bits", slice->index, slice->picture, bytes, bits);
    o->rows += slice->n_rows;
    o->bits += bits;
    o->data_bytes += slice->n_bytes - slice->header_bytes;
    o->n_slices++;
    return o->bad ? KN_E_ARG : KN_OK;
}

static enum kn_status on_picture(void *user, const struct kn_hevc_picture *picture, const struct kni_hevc_rebuilt *rebuilt, struct kn_err *err)
{
    struct outcome *o = user;
    double bands = 0;
    (void)err;
    for (uint32_t i = 0; i < picture->n_bands; i++)
        bands += bits_of(&picture->bands[i]);
    if (picture->index != o->n_pictures || fabs(bands - bits_of(&picture->counts)) > 1e-6 * bands)
        o->bad = hevc_wrong("picture %u has %.1f bits and bands of %.1f", picture->index, bits_of(&picture->counts), bands);
    o->picture_bytes += picture->n_bytes;
    o->n_pictures++;
    o->rows = 0;
    if (!rebuilt->plane[0]) {
        o->why = rebuilt->why;
        return KN_OK;
    }
    o->n_rebuilt++;
    if (o->params.width - o->params.window_right != o->want->width || o->params.height - o->params.window_bottom != o->want->height ||
        picture->index >= o->want->n_pictures)
        o->bad = hevc_wrong("picture %u is %u x %u", picture->index, o->params.width - o->params.window_right, o->params.height - o->params.window_bottom);
    for (uint32_t k = 0; k < 3 && !o->bad; k++)
        o->bad = hevc_compare("our reader", o->want, picture->index, k, rebuilt->plane[k], rebuilt->stride);
    return o->bad ? KN_E_ARG : KN_OK;
}

/* Reads s unit by unit. *o has the outcome. */
static const char *read_stream(const struct hevc_stream *s, const struct hevc_film *want, struct outcome *o)
{
    struct kni_hevc_reader *r = NULL;
    struct kn_err err = {0};
    *o = (struct outcome){.want = want};
    struct kni_hevc_reader_opts opts = {.rebuild = true, .on_params = on_params, .on_slice = on_slice, .on_picture = on_picture, .user = o};
    enum kn_status status = kni_hevc_reader_open(&r, &opts, &err);
    size_t at = 0;
    for (uint32_t i = 0; i < s->n_units && status == KN_OK; at += s->unit_bytes[i++])
        status = kni_hevc_reader_read(r, s->bytes + at, s->unit_bytes[i], &err);
    if (status == KN_OK)
        status = kni_hevc_reader_end(r, &o->stream, &err);
    kni_hevc_reader_close(&r);
    if (!o->bad && status != KN_OK)
        o->bad = hevc_wrong("%s", err.text);
    if (!o->bad &&
        (o->n_pictures != want->n_pictures || o->picture_bytes != s->n_bytes || o->stream.n_bytes != s->n_bytes || o->stream.n_slices != o->n_slices))
        o->bad = hevc_wrong("%u pictures in %llu of %zu bytes", o->n_pictures, (unsigned long long)o->picture_bytes, s->n_bytes);
    return o->bad;
}

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
    enum kn_status status = kni_hevc_encoder_open(&e, &opts, KNI_HEVC_CONTENT_TILES, 0, &err);
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
        struct outcome o;
        const char *bad = read_stream(&s, &c.film, &o);
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
            struct outcome o;
            const char *bad = read_stream(&s, &f, &o);
            if (bad)
                fail_msg("encoder %u: %s", encoder, bad);
            assert_true(o.n_rebuilt >= (still ? 4u : 1u)); /* the first is intra; what repeats has no motion */
            assert_int_equal(o.params.tools, 0);
            hevc_stream_free(&s);
            hevc_film_free(&f);
        }
}

/* ---- a tool that no encoder here uses: implicit_rdpcm changes what residuals mean, not how they are read. So any intra stream in whose parameter
 * set it is switched on is a stream of other pictures, and another decoder says of which: libde265, since libavcodec 5.1 goes on smoothing the edge of
 * blocks that are predicted along an axis, which 8.4.4.2.6 forbids here. */

/* The set at sps (payload with its two bytes of header, no emulation prevention) with a range extension that has this one flag. */
static size_t with_implicit_rdpcm(uint8_t *sps, size_t n)
{
    size_t stop = n * 8 - 1;
    while (!(sps[stop >> 3] >> (7 - (stop & 7)) & 1))
        stop--;
    assert_false(sps[(stop - 1) >> 3] >> (7 - ((stop - 1) & 7)) & 1); /* no extension yet */
    static const uint8_t tail[] = {1, 1, 0, 0, 0, 0, 0, 0, 0, /* extension: the range extension's */ 0, 0, 1, 0, 0, 0, 0, 0, 0, /* its flags */ 1};
    size_t end = stop - 1 + sizeof tail;
    memset(sps + n, 0, 4);
    for (size_t i = 0; i < sizeof tail; i++) {
        size_t at = stop - 1 + i;
        sps[at >> 3] = (uint8_t)((sps[at >> 3] & ~(0x80u >> (at & 7))) | (uint32_t)tail[i] << (7 - (at & 7)));
    }
    return (end + 7) / 8;
}

static void switch_on_implicit_rdpcm(struct hevc_stream *s)
{
    struct hevc_stream out = {0};
    uint8_t *bytes = malloc(s->n_bytes + 64), sps[256];
    size_t n = 0, at = 0;
    assert_non_null(bytes);
    while (at < s->n_bytes) { /* start codes 00 00 01 and before it perhaps 00 */
        size_t next = at + 3;
        while (next < s->n_bytes && !(next + 3 <= s->n_bytes && !s->bytes[next] && !s->bytes[next + 1] && s->bytes[next + 2] == 1))
            next++;
        size_t begin = at;
        while (s->bytes[begin] != 1)
            begin++;
        begin++;
        if (s->bytes[begin] >> 1 != 33) {
            memcpy(bytes + n, s->bytes + at, next - at);
            n += next - at;
        } else {
            size_t m = 0, end = next;
            while (!s->bytes[end - 1])
                end--;
            for (size_t i = begin; i < end; i++)
                if (s->bytes[i] != 3 || i < begin + 2 || s->bytes[i - 1] || s->bytes[i - 2])
                    sps[m++] = s->bytes[i];
            assert_true(m < sizeof sps - 8);
            m = with_implicit_rdpcm(sps, m);
            memcpy(bytes + n, "\0\0\0\1", 4);
            n += 4;
            for (size_t i = 0, zeros = 0; i < m; i++) {
                if (zeros >= 2 && sps[i] <= 3) {
                    bytes[n++] = 3;
                    zeros = 0;
                }
                zeros = sps[i] ? 0 : zeros + 1;
                bytes[n++] = sps[i];
            }
        }
        at = next;
    }
    hevc_stream_add(&out, bytes, n);
    free(bytes);
    hevc_stream_free(s);
    *s = out;
}

static enum kn_status keep_picture(void *user, const struct kn_hevc_picture *picture, const struct kni_hevc_rebuilt *rebuilt, struct kn_err *err)
{
    const struct hevc_film *f = user;
    (void)err;
    assert_true(rebuilt->plane[0] && picture->index == 0);
    for (uint32_t k = 0; k < 3; k++)
        for (uint32_t y = 0; y < f->height; y++)
            memcpy(hevc_film_row(f, 0, k, y), rebuilt->plane[k] + y * rebuilt->stride, f->width);
    return KN_OK;
}

static void implicit_rdpcm(void **state)
{
    (void)state;
    uint32_t n_changed = 0;
    for (uint64_t seed = 1; seed <= 12; seed++) {
        static const enum hevc_kind kinds[] = {HEVC_KIND_ROWS,   HEVC_KIND_COLUMNS, HEVC_KIND_WALK_X,
                                               HEVC_KIND_WALK_Y, HEVC_KIND_PATCHES, HEVC_KIND_GRADIENT};
        struct hevc_film f = hevc_film_alloc(80, 64, 1, 80), other = hevc_film_alloc(80, 64, 1, 80);
        struct hevc_stream s = {0};
        struct kni_hevc_reader *r = NULL;
        struct kn_err err = {0};
        uint64_t rng = hevc_mix(seed);
        for (uint32_t k = 0; k < 3; k++)
            hevc_paint_plane(&f, 0, k, kinds[(seed + k) % 6], &rng);
        if (!code_x265(KN_HEVC_ENCODER_X265_MEDIUM, &f, &s)) {
            hevc_film_free(&f);
            hevc_film_free(&other);
            skip();
        }
        switch_on_implicit_rdpcm(&s);
        struct kni_hevc_reader_opts opts = {.rebuild = true, .on_picture = keep_picture, .user = &other};
        assert_int_equal(kni_hevc_reader_open(&r, &opts, &err), KN_OK);
        if (kni_hevc_reader_read(r, s.bytes, s.n_bytes, &err) != KN_OK || kni_hevc_reader_end(r, NULL, &err) != KN_OK)
            fail_msg("%s", err.text);
        kni_hevc_reader_close(&r);
        n_changed += memcmp(f.samples, other.samples, 3 * 80 * 64) != 0;
        const char *bad = hevc_judge_de265(&s, &other, KNI_HEVC_TOOL_IMPLICIT_RDPCM);
        if (bad)
            fail_msg("seed %u: %s", (unsigned)seed, bad);
        hevc_stream_free(&s);
        hevc_film_free(&f);
        hevc_film_free(&other);
    }
    assert_true(n_changed >= 10); /* otherwise no block was predicted along an axis */
}

/* Where bits go: a picture that repeats is skipped; loud rows cost what they cost, silent ones nearly nothing. */
static void bands_and_classes(void **state)
{
    (void)state;
    struct hevc_case c = {.seed = 1, .opts = {.width = 128, .height = 128, .tools = 15, .n_slices = 2}};
    struct hevc_stream s = {0};
    struct outcome o;
    uint64_t rng = hevc_mix(5);
    c.film = hevc_film_alloc(128, 128, 3, 128);
    for (uint32_t k = 0; k < 3; k++) {
        hevc_paint(&c.film, 0, k, 0, 0, 128, 128, HEVC_KIND_FLAT, &rng);
        hevc_paint(&c.film, 1, k, 0, 0, 128, 128, HEVC_KIND_FLAT, &rng);
        hevc_paint(&c.film, 1, k, 0, 32, 128, 16, HEVC_KIND_NOISE, &rng);
        hevc_paint(&c.film, 2, k, 0, 0, 128, 128, HEVC_KIND_REPEAT, &rng);
    }
    code_case(&c, &s);
    if (read_stream(&s, &c.film, &o))
        fail_msg("%s", o.bad);
    assert_int_equal(o.stream.n_slices, 6);
    assert_true(o.stream.n_bands == 8 && o.stream.band_rows == 16);
    assert_int_equal(o.stream.n_samples, 3 * 3 * 128 * 128);
    double noise = 3 * 16 * 128 * 8, all = bits_of(&o.stream.counts); /* incompressible bits */
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
    for (size_t i = 0; i < s.n_bytes; i += 1 + i / 200, n_tried++) { /* headers bit by bit, data here and there */
        s.bytes[i] ^= (uint8_t)(1u << n_tried % 8);
        enum kn_status got = answer(s.bytes, s.n_bytes, &err);
        assert_true(got == KN_OK || got == KN_E_FORMAT || got == KN_E_UNSUPPORTED);
        n_refused += got != KN_OK;
        s.bytes[i] ^= (uint8_t)(1u << n_tried % 8);
    }
    assert_true(n_refused * 2 > n_tried); /* no checksum: a changed sign stays unseen */
    assert_int_equal(answer(s.bytes, s.n_bytes, &err), KN_OK);
    hevc_stream_free(&s);
    hevc_case_free(&c);
}

/* Every allocation fails once: an answer, and nothing lost. */
static void no_memory(void **state)
{
    (void)state;
    struct hevc_case c;
    struct hevc_stream s = {0};
    struct kn_err err = {0};
    hevc_case_make(&c, 70011, HEVC_CASE_TINY);
    code_case(&c, &s);
    uint64_t before = kni_alloc_get_stats(KNI_ALLOC_TAG_CODEC).current_bytes;
    enum kn_status got = KN_E_NOMEM;
    uint64_t n = 0;
    while (got == KN_E_NOMEM) {
        struct kni_hevc_reader *r = NULL;
        struct kni_hevc_reader_opts opts = {.rebuild = true};
        kni_alloc_fault_arm(++n, false);
        got = kni_hevc_reader_open(&r, &opts, &err);
        if (got == KN_OK)
            got = kni_hevc_reader_read(r, s.bytes, s.n_bytes, &err);
        bool hit = kni_alloc_fault_hit();
        kni_alloc_fault_arm(0, false);
        assert_int_equal(got, hit ? KN_E_NOMEM : KN_OK);
        kni_hevc_reader_close(&r);
        assert_int_equal(kni_alloc_get_stats(KNI_ALLOC_TAG_CODEC).current_bytes, before);
    }
    assert_true(n > 11); /* handle, cells, three tables of bands, six planes, payload */
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
    const struct CMUnitTest tests[] = {cmocka_unit_test(our_films), cmocka_unit_test(x265_films), cmocka_unit_test(implicit_rdpcm),
                                       cmocka_unit_test(bands_and_classes), cmocka_unit_test(damage), cmocka_unit_test(no_memory),
                                       cmocka_unit_test(out_of_range)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
