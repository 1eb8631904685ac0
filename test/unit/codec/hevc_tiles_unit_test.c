/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What the encoder chooses for token tiles, seen through the reader of streams and through two foreign decoders: strengths of the picture before
 * that a film was made with, directions of slopes, skipped blocks where nothing changes; and no tool that it does not use. Each choice is held
 * against the same film coded as noise, which has one reference and DC only.
 */
#include "unit/codec/codec_support.h"

#include "measure/reader/hevc_reader.h"
#include "codec/hevc/hevc_syntax.h"
#include "support/hevc_random.h"

static enum kn_status on_picture(void *user, const struct kn_hevc_picture *picture, const struct kni_hevc_rebuilt *rebuilt, struct kn_err *err)
{
    struct kn_hevc_counts *c = user;
    (void)rebuilt, (void)err;
    if (!picture->idr) {
        c->n_cu += picture->counts.n_cu;
        c->n_cu_skipped += picture->counts.n_cu_skipped;
        c->n_cu_intra += picture->counts.n_cu_intra;
    }
    return KN_OK;
}

static void count(const struct hevc_stream *s, struct kn_hevc_counts *c)
{
    struct kni_hevc_reader_opts opts = {.on_picture = on_picture, .user = c};
    struct kni_hevc_reader *r;
    struct kn_err err = {0};
    assert_int_equal(kni_hevc_reader_open(&r, &opts, &err), KN_OK);
    assert_int_equal(kni_hevc_reader_read(r, s->bytes, s->n_bytes, &err), KN_OK);
    assert_int_equal(kni_hevc_reader_end(r, NULL, &err), KN_OK);
    kni_hevc_reader_close(&r);
}

/* Codes a film and has it judged by all; its bytes, and counts of its P pictures. */
static size_t code(const struct hevc_film *f, enum kni_hevc_content content, uint32_t tools, uint32_t n_slices, struct kn_hevc_counts *p_counts)
{
    struct kni_hevc_lossless_opts o = {.width = f->width, .height = f->height, .tools = tools, .content = content, .n_slices = n_slices};
    struct kni_hevc_lossless *e;
    struct hevc_stream s = {0};
    struct kni_hevc_claims claims;
    void *memory = aligned_alloc(64, kni_hevc_lossless_bytes(&o));
    assert_non_null(memory);
    assert_int_equal(kni_hevc_lossless_init(&e, memory, &o, NULL), KN_OK);
    uint8_t *unit = malloc(kni_hevc_lossless_unit_bound(e));
    assert_non_null(unit);
    for (uint32_t t = 0; t < f->n_pictures; t++) {
        struct kni_hevc_job job = {.first = t == 0, .index = t};
        for (uint32_t k = 0; k < 3; k++) {
            job.now.plane[k] = hevc_film_row(f, t, k, 0);
            job.before.plane[k] = t ? hevc_film_row(f, t - 1, k, 0) : NULL;
            job.now.stride[k] = job.before.stride[k] = f->stride;
        }
        hevc_stream_add(&s, unit, kni_hevc_lossless_unit(e, &job, unit));
    }
    assert_null(kni_hevc_read_claims(s.bytes, s.n_bytes, &claims));
    assert_int_equal(claims.tools, kni_hevc_content_tools(tools, content));
    const char *bad = hevc_judge_reader(&s, f, claims.tools, kni_hevc_lossless_n_slices(e));
    if (!bad)
        bad = hevc_judge_avcodec(&s, f);
    if (!bad)
        bad = hevc_judge_de265(&s, f, tools);
    if (bad)
        fail_msg("%s", bad);
    if (p_counts)
        count(&s, p_counts);
    size_t n = s.n_bytes;
    hevc_stream_free(&s);
    free(unit);
    free(memory);
    return n;
}

/* Blocks of 8 to 32, each of another part of the picture before and some noise of its own. */
static void strengths_are_found(void **state)
{
    (void)state;
    static const uint32_t sizes[][2] = {{96, 64}, {48, 64}, {56, 40}, {37, 51}};
    for (uint32_t i = 0; i < 4; i++)
        for (uint32_t log2 = 3; log2 <= 5; log2++) {
            uint64_t rng = hevc_mix(i * 8 + log2);
            struct hevc_film f = hevc_film_alloc(sizes[i][0], sizes[i][1], 4, sizes[i][0] + i);
            struct kn_hevc_counts c = {0};
            for (uint32_t t = 0; t < 4; t++)
                for (uint32_t k = 0; k < 3; k++)
                    for (uint32_t y = 0; y < f.height; y++)
                        for (uint32_t x = 0; x < f.width; x++) {
                            const double part = ((x >> log2) + 3 * (y >> log2)) % 5 / 4.0;
                            const double from = t ? part * (hevc_film_row(&f, t - 1, k, y)[x] - 128.0) : 0;
                            hevc_film_row(&f, t, k, y)[x] = hevc_clip(128 + from + hevc_laplace(&rng, t ? 2.0 + 10 * sqrt(1 - part * part) : 20));
                        }
            size_t tiles = code(&f, KNI_HEVC_CONTENT_TILES, 9, 1 + i % 2, &c), noise = code(&f, KNI_HEVC_CONTENT_NOISE, 9, 1 + i % 2, NULL);
            if (tiles * 100 > noise * 98 || c.n_cu_intra * 2 > c.n_cu)
                fail_msg("%u x %u, blocks of %u: %zu bytes against %zu, %llu of %llu units intra", f.width, f.height, 1u << log2, tiles, noise, (unsigned long long)c.n_cu_intra,
                         (unsigned long long)c.n_cu);
            hevc_film_free(&f);
        }
}

/* Stripes in any direction, none of them like the picture before: every intra mode is worth something somewhere. */
static void directions_are_found(void **state)
{
    (void)state;
    for (uint32_t turn = 0; turn < 24; turn++) {
        const double dx = cos(turn * 3.14159265 / 24), dy = sin(turn * 3.14159265 / 24);
        struct hevc_film f = hevc_film_alloc(turn % 3 ? 64 : 51, 64, 2, 64);
        struct kn_hevc_counts c = {0};
        for (uint32_t t = 0; t < 2; t++)
            for (uint32_t k = 0; k < 3; k++)
                for (uint32_t y = 0; y < 64; y++)
                    for (uint32_t x = 0; x < f.width; x++)
                        hevc_film_row(&f, t, k, y)[x] = hevc_clip(128 + 60 * sin((x * dx + y * dy) * (0.25 + 0.05 * k) + 40 * t) + 30 * sin((x * dx + y * dy) * 0.71));
        size_t tiles = code(&f, KNI_HEVC_CONTENT_TILES, turn % 16, 1 + turn % 2, &c), noise = code(&f, KNI_HEVC_CONTENT_NOISE, turn % 4, 1 + turn % 2, NULL);
        if (tiles * 100 > noise * 80 || !c.n_cu_intra)
            fail_msg("turn %u: %zu bytes against %zu, %llu of %llu units intra", turn, tiles, noise, (unsigned long long)c.n_cu_intra, (unsigned long long)c.n_cu);
        hevc_film_free(&f);
    }
}

/* A picture that comes again costs next to nothing, and so does one that is flat; a flat one before is no reason to take strengths. */
static void still_pictures_are_skipped(void **state)
{
    (void)state;
    struct hevc_film f = hevc_film_alloc(80, 72, 4, 80);
    struct kn_hevc_counts c = {0};
    uint64_t rng = hevc_mix(9);
    for (uint32_t k = 0; k < 3; k++) {
        hevc_paint(&f, 0, k, 0, 0, 80, 72, HEVC_KIND_NOISE, &rng);
        for (uint32_t t = 1; t < 4; t++)
            hevc_paint(&f, t, k, 0, 0, 80, 72, t == 1 ? HEVC_KIND_REPEAT : HEVC_KIND_FLAT, &rng);
    }
    const struct hevc_film head = {.width = 80, .height = 72, .n_pictures = 1, .stride = 80, .samples = f.samples};
    size_t first = code(&head, KNI_HEVC_CONTENT_TILES, 0, 1, NULL), all = code(&f, KNI_HEVC_CONTENT_TILES, 0, 1, &c);
    assert_true(c.n_cu_skipped >= 12); /* of the second and of the fourth picture, most */
    assert_true(all < first + 80 * 72 * 3);
    hevc_film_free(&f);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(strengths_are_found), cmocka_unit_test(directions_are_found), cmocka_unit_test(still_pictures_are_skipped)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
