/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Which tools of HEVC streams use: the chunk's header says it, streams keep to it, and whoever lacks one has a miss. And what hevc_syntax
 * reads of streams from our own encoder: several slices a picture, sizes that are no whole blocks, where access units end.
 */
#include "unit/codec/codec_support.h"

#include "base/le.h"
#include "codec/hevc/hevc_encode.h"
#include "codec/hevc/hevc_syntax.h"
#include "support/refresh_checksums.h"

enum { TOKENS = 32, AT_TOOLS = 116 };

static struct kni_codec *open_codec(struct kn_hevc_opts hevc)
{
    struct kni_codec *codec;
    struct kni_codec_opts opts = {.preset = KN_PRESET_TILES, .tiles = {.tokens_per_picture = 8}, .hevc = hevc};
    struct kn_err err = {0};
    if (kni_codec_open(&codec, &opts, &err) != KN_OK)
        fail_msg("%s", err.text);
    return codec;
}

static void encode(struct kn_hevc_opts hevc, const struct pool *pool, void **data, size_t *n)
{
    struct kni_codec *codec = open_codec(hevc);
    struct kni_chunk_meta m = test_meta(pool, 0, TOKENS);
    struct kn_err err = {0};
    if (kni_chunk_encode(codec, &m, &pool->view, data, n, &err) != KN_OK)
        fail_msg("%s", err.text);
    kni_codec_close(&codec);
}

static enum kn_status restore(const void *data, size_t n, const struct pool *pool, struct kn_err *err)
{
    struct kni_codec *codec = test_codec(KN_PRESET_EXACT, (struct kn_tiles_opts){0});
    struct kni_chunk_meta m = test_meta(pool, 0, TOKENS);
    *err = (struct kn_err){0};
    enum kn_status s = kni_chunk_restore(codec, data, n, &m, &pool->view, err);
    kni_codec_close(&codec);
    return s;
}

static void header_says(void **state)
{
    (void)state;
    static const struct { struct kn_hevc_opts opts; uint32_t tools; } cases[] = {
        {{.encoder = KN_HEVC_ENCODER_KINEMA}, KNI_HEVC_TOOLS_ALL},
        {{.encoder = KN_HEVC_ENCODER_KINEMA, .tools = KN_HEVC_TOOLS_FULL, .n_slices = 3}, KNI_HEVC_TOOLS_ALL},
        {{.encoder = KN_HEVC_ENCODER_KINEMA, .tools = KN_HEVC_TOOLS_BASIC}, 0},
        {{.encoder = KN_HEVC_ENCODER_KINEMA, .tools = KN_HEVC_TOOLS_BASIC, .n_slices = 64}, 0},
    };
    struct pool pool = pool_make(3, 2, 64, KN_KV_TYPE_F16, TOKENS);
    pool_fill_smooth(&pool);
    uint16_t *before = malloc(pool.n_values * 2), *first = NULL;
    assert_non_null(before);
    memcpy(before, pool.view.k, pool.n_values * 2);
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        void *data;
        size_t n;
        struct kn_err err;
        memcpy(pool.view.k, before, pool.n_values * 2);
        encode(cases[i].opts, &pool, &data, &n);
        uint8_t *b = data;
        assert_int_equal(kni_le32_get(b + AT_TOOLS), cases[i].tools);
        if (restore(data, n, &pool, &err) != KN_OK)
            fail_msg("case %zu: %s", i, err.text);
        if (first)
            assert_memory_equal(pool.view.k, first, pool.n_values * 2);
        else {
            first = malloc(pool.n_values * 2);
            assert_non_null(first);
            memcpy(first, pool.view.k, pool.n_values * 2);
        }
        if (cases[i].tools) { /* the streams use what the header does not name */
            kni_le32_put(b + AT_TOOLS, cases[i].tools & ~1u);
            kn_refresh_checksums(data, n);
            assert_int_equal(restore(data, n, &pool, &err), KN_E_FORMAT);
            assert_non_null(strstr(err.text, "tools"));
        }
        kni_le32_put(b + AT_TOOLS, 16); /* a tool of a later time */
        kn_refresh_checksums(data, n);
        assert_int_equal(restore(data, n, &pool, &err), KN_E_MISMATCH);
        assert_non_null(strstr(err.text, "tools 0x10"));
        kni_free(data);
    }
    free(first);
    free(before);
    pool_free(&pool);
}

static void bad_options(void **state)
{
    (void)state;
    static const struct kn_hevc_opts bad[] = {{.encoder = (enum kn_hevc_encoder)4}, {.encoder = (enum kn_hevc_encoder)-1}, {.tools = (enum kn_hevc_tools)3}, {.n_slices = 65}};
    struct pool pool = pool_make(1, 1, 64, KN_KV_TYPE_F16, TOKENS);
    struct kni_chunk_meta m = test_meta(&pool, 0, TOKENS);
    size_t n_bytes;
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        struct kni_codec *codec;
        struct kn_err err = {0};
        struct kni_codec_opts opts = {.preset = KN_PRESET_TILES, .hevc = bad[i]};
        assert_int_equal(kni_codec_open(&codec, &opts, &err), KN_E_ARG);
        assert_true(err.text[0] && !codec);
        assert_int_equal(kni_codec_working_estimate(&opts, &m, &n_bytes, &err), KN_E_ARG);
        opts.preset = KN_PRESET_EXACT; /* has no video */
        assert_int_equal(kni_codec_working_estimate(&opts, &m, &n_bytes, &err), KN_OK);
    }
    pool_free(&pool);
}

/* ---- streams */

struct stream { uint8_t *bytes; size_t n_bytes, ends[4]; uint32_t w, h; };

static struct stream make_stream(uint32_t w, uint32_t h, uint32_t n, uint32_t tools, uint32_t n_slices)
{
    struct kni_hevc_lossless_opts opts = {.width = w, .height = h, .tools = tools, .n_slices = n_slices};
    struct kni_hevc_lossless *e;
    void *memory = kni_alloc(KNI_ALLOC_TAG_CODEC, kni_hevc_lossless_bytes(&opts), 64);
    struct kn_err err = {0};
    if (kni_hevc_lossless_init(&e, memory, &opts, &err) != KN_OK)
        fail_msg("%s", err.text);
    size_t plane = (size_t)w * h;
    uint8_t *samples = malloc(n * 3 * plane);
    struct stream s = {.bytes = malloc(n * kni_hevc_lossless_unit_bound(e)), .w = w, .h = h};
    assert_true(samples && s.bytes);
    for (size_t i = 0; i < n * 3 * plane; i++)
        samples[i] = (uint8_t)(120 + test_random() % 17);
    for (uint32_t t = 0; t < n; t++) {
        struct kni_hevc_job job = {.first = t == 0, .index = t};
        for (uint32_t k = 0; k < 3; k++) {
            job.now.plane[k] = samples + (t * 3 + k) * plane;
            job.before.plane[k] = t ? samples + ((t - 1) * 3 + k) * plane : NULL;
            job.now.stride[k] = job.before.stride[k] = w;
        }
        s.n_bytes += kni_hevc_lossless_unit(e, &job, s.bytes + s.n_bytes);
        s.ends[t] = s.n_bytes;
    }
    free(samples);
    kni_free(memory);
    return s;
}

static void sizes_and_slices(void **state)
{
    (void)state;
    static const uint32_t sizes[][2] = {{16, 16}, {150, 47}, {17, 131}, {64, 64}, {256, 144}};
    unsigned n_tools = 0;
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++)
        for (uint32_t tools = 0; tools <= KNI_HEVC_TOOLS_ALL; tools += 5) {
            struct stream s = make_stream(sizes[i][0], sizes[i][1], 3, tools, (uint32_t)i + 1);
            struct kni_hevc_claims c;
            assert_null(kni_hevc_read_claims(s.bytes, s.n_bytes, &c));
            assert_true(c.width == s.w && c.height == s.h && !(c.tools & ~tools));
            n_tools += c.tools != 0;
            assert_true(c.coded_width >= c.width && c.coded_width < c.width + 8 && c.coded_height >= c.height && c.coded_height < c.height + 8);
            for (size_t t = 0, at = 0; t < 3; at = s.ends[t++]) {
                assert_int_equal(kni_hevc_unit_end(s.bytes, s.n_bytes, at), s.ends[t]);
                const char *bad = kni_hevc_check_unit_tools(s.bytes + at, s.ends[t] - at, t == 0, s.w, s.h, tools);
                if (bad)
                    fail_msg("%u x %u, tools %u, picture %zu %s", s.w, s.h, tools, t, bad);
            }
            assert_non_null(kni_hevc_check_unit_tools(s.bytes, s.ends[0], true, s.w + 1, s.h, tools));
            assert_non_null(kni_hevc_check_unit_tools(s.bytes, s.ends[0], true, c.coded_width, c.coded_height + 8, tools));
            for (uint32_t bit = 1; bit < 16; bit *= 2) /* exactly the tools that are used must be allowed */
                assert_int_equal(kni_hevc_check_unit_tools(s.bytes, s.ends[0], true, s.w, s.h, 15 & ~bit) != NULL, (c.tools & bit) != 0);
            assert_non_null(kni_hevc_check_unit(s.bytes, s.ends[1], true, s.w, s.h)); /* two pictures in a unit */
            free(s.bytes);
        }
    assert_true(n_tools > 0);
}

/* A stream that arrives piece by piece is cut at the same places as soon as the next unit's first slice or parameter set is there. */
static void units_in_pieces(void **state)
{
    (void)state;
    struct stream s = make_stream(48, 48, 3, KNI_HEVC_TOOLS_ALL, 2);
    for (size_t n = 1; n <= s.n_bytes; n++) {
        uint8_t *piece = malloc(n); /* exact size: sanitizers see overreads */
        assert_non_null(piece);
        memcpy(piece, s.bytes, n);
        size_t end = kni_hevc_unit_end(piece, n, 0);
        assert_int_equal(end, n < s.ends[0] + 7 ? n : s.ends[0]); /* start code, NAL header, first byte */
        free(piece);
    }
    free(s.bytes);
}

/* Slices that are not where they belong. */
static void slice_order(void **state)
{
    (void)state;
    struct stream s = make_stream(64, 64, 2, 0, 2);
    size_t at = s.ends[0], slice[2] = {0}, n = 0;
    for (size_t i = at; i + 4 < s.ends[1] && n < 2; i++)
        if (!s.bytes[i] && !s.bytes[i + 1] && s.bytes[i + 2] == 1)
            slice[n++] = i;
    assert_int_equal(n, 2);
    assert_null(kni_hevc_check_unit(s.bytes + at, s.ends[1] - at, false, 64, 64));
    assert_non_null(kni_hevc_check_unit(s.bytes + slice[1], s.ends[1] - slice[1], false, 64, 64)); /* the second alone */
    s.bytes[slice[1] + 5] |= 0x80; /* two first ones */
    assert_non_null(kni_hevc_check_unit(s.bytes + at, s.ends[1] - at, false, 64, 64));
    free(s.bytes);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(header_says),     cmocka_unit_test(bad_options), cmocka_unit_test(sizes_and_slices),
        cmocka_unit_test(units_in_pieces), cmocka_unit_test(slice_order),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
