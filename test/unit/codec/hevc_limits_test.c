/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Streams keep to the level that they declare. Limits are computed here from the standard's tables, typed apart from hevc_limits.c, and from the
 * stream's bytes: the level and tier of its parameter sets, its access units and slices. Only bits of coding tree units and bins need the reader.
 * Films: loud, silent and saturated ones, many slices, long and large pictures, as sections of chunks and as bare streams.
 */
#include "unit/codec/codec_support.h"

#include "base/le.h"
#include "codec/hevc/hevc_encode.h"
#include "codec/hevc/hevc_limits.h"
#include "codec/hevc/hevc_syntax.h"
#include "kinema/video.h"
#include "support/hevc_random.h"

/* ITU-T H.265 (08/2021), tables A.8 and A.9, column by column. */
static const uint32_t idc_of[] = {90, 93, 120, 123, 150, 153, 156, 180, 183, 186};
enum { N_IDC = 10 };
static const double max_luma_ps[N_IDC] = {552960, 983040, 2228224, 2228224, 8912896, 8912896, 8912896, 35651584, 35651584, 35651584};
static const double max_cpb_main[N_IDC] = {6000, 10000, 12000, 20000, 25000, 40000, 60000, 60000, 120000, 240000};
static const double max_cpb_high[N_IDC] = {0, 0, 30000, 50000, 100000, 160000, 240000, 240000, 480000, 800000};
static const uint32_t max_slices[N_IDC] = {30, 40, 75, 75, 200, 200, 200, 600, 600, 600};
static const double max_luma_sr[N_IDC] = {16588800, 33177600, 66846720, 133693440, 267386880, 534773760, 1069547520, 1069547520, 2139095040, 4278190080};
static const double min_cr_main[N_IDC] = {2, 2, 4, 4, 6, 8, 8, 8, 8, 6};
static const double min_cr_high[N_IDC] = {2, 2, 4, 4, 4, 4, 4, 4, 4, 4};

/* What a stream asks for, from its bytes. */
struct asked {
    uint32_t idc, tier, profile, width, height; /* as declared */
    uint32_t n_slices;                          /* most of an access unit */
    double unit_bytes, slice_bytes, first_bytes;
};

static struct asked look(const struct hevc_stream *s)
{
    struct asked a = {0};
    struct kni_hevc_claims claims;
    if (kni_hevc_read_claims(s->bytes, s->n_bytes, &claims))
        fail_msg("no parameter set");
    a.width = claims.coded_width;
    a.height = claims.coded_height;
    size_t at = 0;
    for (uint32_t t = 0; t < s->n_units; at += s->unit_bytes[t++]) {
        const uint8_t *b = s->bytes + at;
        const size_t n = s->unit_bytes[t];
        double unit = 0, slices = 0;
        uint32_t n_slices = 0;
        for (size_t i = kni_hevc_find_start(b, n, 0); i < n;) {
            size_t begin = i + 3, next = kni_hevc_find_start(b, n, begin), end = next;
            while (end > begin && next < n && !b[end - 1])
                end--;
            const uint32_t type = b[begin] >> 1 & 63u;
            unit += (double)(end - begin);
            if (type < 32) {
                n_slices++;
                slices += (double)(end - begin);
            }
            if (type == 33) { /* payload: 1 byte, then profile_tier_level: 88 bits with escapes among them, level */
                uint8_t ptl[12];
                size_t k = 0, zeros = 0;
                for (size_t j = begin + 3; k < 12; j++) {
                    if (zeros == 2 && b[j] == 3) {
                        zeros = 0;
                        continue;
                    }
                    zeros = b[j] ? 0 : zeros + 1;
                    ptl[k++] = b[j];
                }
                a.tier = ptl[0] >> 5 & 1;
                a.profile = ptl[0] & 31;
                a.idc = ptl[11];
                assert_int_equal(ptl[5] >> 1 & 7, 7); /* general_max_12bit, 10bit, 8bit */
            }
            i = next;
        }
        a.n_slices = n_slices > a.n_slices ? n_slices : a.n_slices;
        a.unit_bytes = unit > a.unit_bytes ? unit : a.unit_bytes;
        a.slice_bytes = slices > a.slice_bytes ? slices : a.slice_bytes;
        if (t == 0)
            a.first_bytes = unit;
    }
    return a;
}

/* NULL, or which limit of level i at tier is exceeded. */
static const char *beyond(const struct asked *a, uint32_t i, uint32_t tier)
{
    const double samples = (double)a->width * a->height, side = a->width > a->height ? a->width : a->height;
    const double cpb = tier ? max_cpb_high[i] : max_cpb_main[i], min_cr = (tier ? min_cr_high[i] : min_cr_main[i]) * 0.5;
    const double paced = samples > max_luma_sr[i] / 300 ? samples : max_luma_sr[i] / 300;
    if (samples > max_luma_ps[i])
        return "samples";
    if (side * side > 8 * max_luma_ps[i])
        return "side";
    if (a->n_slices > max_slices[i])
        return "slices";
    if (8 * a->slice_bytes > 2000 * cpb)
        return "bytes of slices";
    if (8 * a->unit_bytes > 2200 * cpb)
        return "bytes of an access unit";
    return a->first_bytes > 3 * paced / min_cr ? "bytes of the first access unit" : NULL;
}

static uint32_t n_judged;

/* Whether s, whose pictures must be those of f, keeps to its level; exact: and to no lower one. */
static const char *judge(const struct hevc_stream *s, const struct hevc_film *f, bool exact)
{
    const char *bad = hevc_judge_reader(s, f, KNI_HEVC_TOOLS_ALL, 0);
    const struct asked a = look(s);
    if (!bad)
        bad = hevc_judge_avcodec(s, f);
    if (bad)
        return bad;
    uint32_t i = 0;
    while (i < N_IDC && idc_of[i] != a.idc)
        i++;
    if (i == N_IDC || a.profile != 4)
        return hevc_wrong("level_idc %u, profile %u", a.idc, a.profile);
    if (beyond(&a, i, a.tier))
        return hevc_wrong("level_idc %u, tier %u: beyond its %s", a.idc, a.tier, beyond(&a, i, a.tier));
    for (uint32_t k = 0; exact && k < (a.tier ? N_IDC : i); k++)
        if (!beyond(&a, k, 0) && 8 * a.unit_bytes <= 2000 * max_cpb_main[k]) /* the encoder takes the narrower limit for the whole unit */
            return hevc_wrong("level_idc %u, tier %u, where %u would do", a.idc, a.tier, idc_of[k]);
    n_judged++;
    return NULL;
}

/* ---- both ways to make a stream */

static void planes_of(const struct hevc_film *f, uint32_t t, const uint8_t *planes[3])
{
    for (uint32_t k = 0; k < 3; k++)
        planes[k] = hevc_film_row(f, t, k, 0);
}

/* As a section of a chunk. n_before: pictures of a stream that the same encoder makes first, so that no level of it is left over. */
static void code_section(const struct hevc_film *f, uint32_t n_before, const struct kn_hevc_opts *o, enum kni_hevc_content content, struct hevc_stream *s)
{
    struct kni_hevc_encoder *e;
    struct kn_err err = {0};
    const size_t strides[3] = {f->stride, f->stride, f->stride};
    assert_int_equal(kni_hevc_encoder_open(&e, o, content, 0, &err), KN_OK);
    for (uint32_t round = !n_before; round < 2; round++) {
        const uint32_t n = round ? f->n_pictures : n_before;
        struct kni_container_writer w = {0};
        assert_int_equal(kni_hevc_encode_begin(e, f->width, f->height, n, NULL, &err), KN_OK);
        for (uint32_t t = 0; t < n; t++) {
            const uint8_t *planes[3];
            planes_of(f, round ? t : f->n_pictures - 1 - t % f->n_pictures, planes);
            assert_int_equal(kni_hevc_encode_picture(e, planes, strides, &err), KN_OK);
        }
        assert_int_equal(kni_hevc_encode_end(e, &w, &err), KN_OK);
        for (size_t t = 0, at = 4 + 4 * (size_t)n; round && t < n; at += kni_le32_get(w.data + 4 + 4 * t++))
            hevc_stream_add(s, w.data + at, kni_le32_get(w.data + 4 + 4 * t));
        kni_container_writer_fini(&w);
    }
    kni_hevc_encoder_close(&e);
}

/* As a file of its own, without hashes: film without gaps between rows. */
static void code_bare(const struct hevc_film *f, const struct kn_hevc_opts *o, enum kn_video_content content, struct hevc_stream *s)
{
    struct kn_video_encoder *e;
    struct kn_err err = {0};
    struct kn_hevc_opts hevc = *o;
    hevc.size = sizeof hevc;
    const struct kn_video_encode_opts opts = {.size = sizeof opts, .width = f->width, .height = f->height,
                                              .hevc = &hevc, .content = content, .hash = KN_VIDEO_HASH_NONE};
    assert_int_equal(kn_video_encoder_open(&e, &opts, &err), KN_OK);
    assert_int_equal(f->stride, f->width);
    for (uint32_t t = 0; t < f->n_pictures; t++) {
        const uint8_t *unit;
        size_t n;
        if (kn_video_encode(e, hevc_film_row(f, t, 0, 0), &unit, &n, &err) != KN_OK)
            fail_msg("%s", err.text);
        hevc_stream_add(s, unit, n);
    }
    kn_video_encoder_close(&e);
}

/* ---- tests */

struct plan { uint32_t width, height, n_pictures; enum hevc_kind kinds[3]; uint32_t n_slices, idc, tier; }; /* idc 0: any */

static struct hevc_film film_of(const struct plan *p)
{
    struct hevc_film f = hevc_film_alloc(p->width, p->height, p->n_pictures, p->width);
    uint64_t rng = hevc_mix(p->width * 7 + p->height);
    for (uint32_t t = 0; t < p->n_pictures; t++)
        for (uint32_t k = 0; k < 3; k++)
            hevc_paint_plane(&f, t, k, p->kinds[t], &rng);
    return f;
}

/* Sizes and loudness at the levels' borders, and the levels that they must lead to. */
static void borders(void **state)
{
    (void)state;
    static const struct plan plans[] = {
        {64, 64, 2, {HEVC_KIND_NOISE, HEVC_KIND_NOISE}, 0, 90, 0},
        {144, 2048, 2, {HEVC_KIND_FLAT, HEVC_KIND_SPECTRAL}, 30, 90, 0},
        {144, 2048, 2, {HEVC_KIND_FLAT, HEVC_KIND_SPECTRAL}, 31, 93, 0},
        {144, 2048, 2, {HEVC_KIND_FLAT, HEVC_KIND_SPECTRAL}, 40, 93, 0},
        {144, 2048, 2, {HEVC_KIND_FLAT, HEVC_KIND_SPECTRAL}, 64, 120, 0},
        {16, 2096, 2, {HEVC_KIND_FLAT, HEVC_KIND_SPARSE}, 0, 90, 0},
        {16, 2104, 2, {HEVC_KIND_FLAT, HEVC_KIND_SPARSE}, 0, 93, 0}, /* 2103.3 a side */
        {768, 720, 2, {HEVC_KIND_FLAT, HEVC_KIND_SPARSE}, 0, 90, 0},
        {776, 720, 2, {HEVC_KIND_FLAT, HEVC_KIND_SPARSE}, 0, 93, 0},
        {768, 720, 2, {HEVC_KIND_FLAT, HEVC_KIND_NOISE}, 0, 93, 0},  /* 1.5 MB are not enough */
        {1280, 768, 2, {HEVC_KIND_FLAT, HEVC_KIND_NOISE}, 0, 123, 0}, /* 3 MB are not */
        {1280, 768, 1, {HEVC_KIND_NOISE}, 0, 183, 0},                /* least compression */
        {2048, 1088, 2, {HEVC_KIND_FLAT, HEVC_KIND_NOISE}, 0, 153, 0},
        {4096, 2176, 1, {HEVC_KIND_FLAT}, 0, 150, 0},
        {4096, 2184, 1, {HEVC_KIND_FLAT}, 0, 180, 0},
        {8192, 4352, 1, {HEVC_KIND_FLAT}, 0, 180, 0},
    };
    for (size_t i = 0; i < sizeof plans / sizeof *plans; i++) {
        const struct plan *p = &plans[i];
        struct hevc_film f = film_of(p);
        struct hevc_stream s = {0};
        const struct kn_hevc_opts o = {.n_slices = p->n_slices, .tools = KN_HEVC_TOOLS_FULL};
        code_section(&f, 0, &o, KNI_HEVC_CONTENT_NOISE, &s);
        const char *bad = (uint64_t)p->width * p->height < 3000000 ? judge(&s, &f, true) : NULL;
        const struct asked a = look(&s);
        if (bad || (p->idc && (a.idc != p->idc || a.tier != p->tier)))
            fail_msg("plan %zu, %u x %u: %s; level_idc %u, tier %u", i, p->width, p->height, bad ? bad : "another level", a.idc, a.tier);
        hevc_stream_free(&s);
        hevc_film_free(&f);
    }
}

/* Random films of every kind, both sets of tools and contents, 0 to 64 slices, as sections and as files. */
static void films(void **state)
{
    (void)state;
    for (uint64_t seed = 90000; seed < 90160; seed++) {
        struct hevc_case c;
        struct hevc_stream section = {0}, bare = {0};
        hevc_case_make(&c, seed, seed % 40 == 7 ? HEVC_CASE_MEDIUM : seed % 10 == 3 ? HEVC_CASE_SMALL : HEVC_CASE_TINY);
        const struct kn_hevc_opts o = {.n_slices = c.opts.n_slices, .tools = seed % 2 ? KN_HEVC_TOOLS_BASIC : KN_HEVC_TOOLS_FULL};
        code_section(&c.film, seed % 3, &o, c.opts.content, &section);
        const char *bad = judge(&section, &c.film, true);
        if (!bad && c.film.stride == c.film.width) {
            code_bare(&c.film, &o, (enum kn_video_content)c.opts.content, &bare);
            bad = judge(&bare, &c.film, false);
        }
        if (bad)
            fail_msg("%s: %s", hevc_case_text(&c), bad);
        hevc_stream_free(&section);
        hevc_stream_free(&bare);
        hevc_case_free(&c);
    }
    assert_true(n_judged > 200);
}

static enum kn_status end_of(const struct hevc_stream *s, struct kn_hevc_stream *out)
{
    struct kni_hevc_reader *r;
    struct kn_err err = {0};
    assert_int_equal(kni_hevc_reader_open(&r, &(struct kni_hevc_reader_opts){0}, &err), KN_OK);
    enum kn_status status = kni_hevc_reader_read(r, s->bytes, s->n_bytes, &err);
    if (status == KN_OK)
        status = kni_hevc_reader_end(r, out, &err);
    kni_hevc_reader_close(&r);
    return status;
}

/* Saturated pictures become PCM with basic tools and not with full ones; what is nearly free to code is filled up. */
static void loud_and_cheap(void **state)
{
    (void)state;
    static const struct { enum hevc_kind kind; enum kn_hevc_tools tools; bool pcm; } cases[] = {
        {HEVC_KIND_EXTREMES, KN_HEVC_TOOLS_BASIC, true}, {HEVC_KIND_EXTREMES, KN_HEVC_TOOLS_FULL, false}, {HEVC_KIND_SPECTRAL, KN_HEVC_TOOLS_BASIC, false},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        for (uint32_t content = 0; content < 2; content++)
            for (uint32_t side = 96; side <= 104; side += 4) { /* units at the edge, and a window */
                struct plan p = {side, side, 3, {HEVC_KIND_FLAT, cases[i].kind, HEVC_KIND_NEGATIVE}, 3, 0, 0};
                struct hevc_film f = film_of(&p);
                struct hevc_stream s = {0};
                struct kn_hevc_stream end;
                const struct kn_hevc_opts o = {.n_slices = 3, .tools = cases[i].tools};
                code_section(&f, 0, &o, (enum kni_hevc_content)content, &s);
                const char *bad = judge(&s, &f, true);
                if (!bad)
                    bad = hevc_judge_de265(&s, &f, KNI_HEVC_TOOLS_ALL);
                if (bad)
                    fail_msg("case %zu, content %u, side %u: %s", i, content, side, bad);
                assert_int_equal(end_of(&s, &end), KN_OK);
                if ((end.n_pcm > 0) != cases[i].pcm)
                    fail_msg("case %zu, content %u, side %u: %u PCM units", i, content, side, end.n_pcm);
                hevc_stream_free(&s);
                hevc_film_free(&f);
            }
    struct plan still = {96, 96, 3, {HEVC_KIND_FLAT, HEVC_KIND_FLAT, HEVC_KIND_FLAT}, 0, 0, 0};
    struct hevc_film f = film_of(&still);
    uint64_t rng = 5;
    for (uint32_t i = 0; i < 3 * 96 * 96; i++) /* one off, either way: a bit a sample and next to nothing for flags */
        hevc_film_row(&f, 1, 0, 0)[i] = (uint8_t)(127 + 2 * (hevc_random(&rng) & 1));
    for (uint32_t n_slices = 1; n_slices <= 3; n_slices++)
        for (uint32_t tools = KN_HEVC_TOOLS_FULL; tools <= KN_HEVC_TOOLS_BASIC; tools++) {
            struct hevc_stream s = {0};
            struct kn_hevc_stream end;
            const struct kn_hevc_opts o = {.n_slices = n_slices, .tools = (enum kn_hevc_tools)tools};
            code_section(&f, 0, &o, KNI_HEVC_CONTENT_NOISE, &s);
            const char *bad = judge(&s, &f, true);
            if (bad)
                fail_msg("cheap film: %s", bad);
            assert_int_equal(end_of(&s, &end), KN_OK);
            const struct kn_hevc_limit *bins = &end.limits[KN_HEVC_LIMIT_BINS];
            assert_true(bins->value > bins->allowed * 0.99); /* filled up to what is asked for, not further */
            const uint8_t word[3] = {0, 0, 3};
            assert_memory_equal(s.bytes + s.n_bytes - 3, word, 3);
            hevc_stream_free(&s);
        }
    hevc_film_free(&f);
}

/* A stream that declares too low a level is told about: where the parameter set's level is written over. */
static void reader_tells(void **state)
{
    (void)state;
    struct plan p = {1280, 768, 2, {HEVC_KIND_FLAT, HEVC_KIND_NOISE}, 0, 0, 0};
    struct hevc_film f = film_of(&p);
    struct hevc_stream s = {0};
    struct kn_hevc_stream end;
    const struct kn_hevc_opts o = {.n_slices = 24};
    code_section(&f, 0, &o, KNI_HEVC_CONTENT_NOISE, &s);
    assert_int_equal(end_of(&s, &end), KN_OK);
    for (uint32_t i = 0; i < KN_HEVC_LIMIT_COUNT; i++)
        assert_true(end.limits[i].known && !end.limits[i].exceeded);
    assert_true(end.pictures_s > 1 && end.pictures_s < 300);
    uint32_t n_levels = 0;
    for (size_t i = 4; i < 120; i++) /* VPS and SPS: their last byte of profile_tier_level */
        if (s.bytes[i] == end.params.level_idc && s.bytes[i - 1] <= 3) {
            s.bytes[i] = 63; /* level 2.1 */
            n_levels++;
        }
    assert_int_equal(n_levels, 2);
    assert_int_equal(end_of(&s, &end), KN_OK);
    assert_int_equal(end.params.level_idc, 63);
    static const enum kn_hevc_limit_kind kinds[] = {KN_HEVC_LIMIT_SAMPLES, KN_HEVC_LIMIT_SLICES, KN_HEVC_LIMIT_SLICE_BYTES, KN_HEVC_LIMIT_UNIT_BYTES};
    for (size_t i = 0; i < sizeof kinds / sizeof *kinds; i++)
        assert_true(end.limits[kinds[i]].exceeded);
    assert_int_equal(end.limits[KN_HEVC_LIMIT_SLICES].value, 24);
    assert_int_equal(end.limits[KN_HEVC_LIMIT_SLICES].allowed, 20);
    assert_int_equal(end.limits[KN_HEVC_LIMIT_SLICE_BYTES].picture, 1);
    assert_false(end.limits[KN_HEVC_LIMIT_CTU_BITS].exceeded);
    for (size_t i = 4; i < 120; i++)
        if (s.bytes[i] == 63 && s.bytes[i - 1] <= 3)
            s.bytes[i] = 61; /* no level */
    assert_int_equal(end_of(&s, &end), KN_OK);
    assert_false(end.limits[KN_HEVC_LIMIT_SAMPLES].known);
    assert_true(end.limits[KN_HEVC_LIMIT_BINS].known && end.pictures_s == 0);
    hevc_stream_free(&s);
    hevc_film_free(&f);
}

/* Every level's figures against the tables above. */
static void tables(void **state)
{
    (void)state;
    for (uint32_t i = 0; i < N_IDC; i++)
        for (uint32_t tier = 0; tier < 2; tier++) {
            const struct kni_hevc_level *l = kni_hevc_level_find(idc_of[i], tier);
            assert_int_equal(!l, tier && max_cpb_high[i] == 0);
            if (!l)
                continue;
            assert_true(l->luma_samples == max_luma_ps[i] && l->cpb == (tier ? max_cpb_high[i] : max_cpb_main[i]) && l->slices == max_slices[i]);
            assert_true((double)l->luma_rate == max_luma_sr[i] && l->min_cr == (tier ? min_cr_high[i] : min_cr_main[i]));
            const double side = kni_hevc_level_side(l);
            assert_true(side * side <= 8 * max_luma_ps[i] && (side + 1) * (side + 1) > 8 * max_luma_ps[i]);
        }
    assert_null(kni_hevc_level_find(189, false));
    assert_null(kni_hevc_level_choose(&(struct kni_hevc_need){8192, 4360, 1, 0, 0}));
    assert_null(kni_hevc_level_choose(&(struct kni_hevc_need){64, 64, 1, 200000001, 0}));
    assert_non_null(kni_hevc_level_choose(&(struct kni_hevc_need){64, 64, 1, 200000000, 0}));
    assert_int_equal(kni_hevc_ctu_bits(32), 40960);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(tables), cmocka_unit_test(borders), cmocka_unit_test(films), cmocka_unit_test(loud_and_cheap),
                                       cmocka_unit_test(reader_tells)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
