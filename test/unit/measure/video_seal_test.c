/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Sealed bare streams (hevc_seal.h), damaged in every way that a file may be: bits flipped, cut at both ends and in the middle, units removed,
 * repeated, renamed, swapped, another window, other bytes. decode must never say that all is well and give other pictures than those that were
 * encoded. What a multiplexer may change is taken; other decoders see no difference; and without the seal some damage passes, or this test shows nothing.
 */
#include "unit/codec/codec_support.h"

#include <kinema/video.h>

#include "codec/hevc/hevc_syntax.h"
#include "support/hevc_peers.h"

#if !TEST_DE265
#undef TEST_DE265
#define TEST_DE265 0
#endif

#define MAX_NALS 64u

enum { NAL_AUD = 35, NAL_EOS = 36, NAL_FILLER = 38, NAL_SEI_PREFIX = 39, NAL_SEI_SUFFIX = 40 };

static const struct hevc_film *now_film; /* what must come out */

static struct hevc_film make_film(uint32_t w, uint32_t h, uint32_t n)
{
    struct hevc_film f = hevc_film_alloc(w, h, n, w);
    for (size_t i = 0; i < (size_t)3 * w * h * n; i++) /* a third of it repeats the picture before */
        f.samples[i] = i >= (size_t)3 * w * h && i / 64 % 3 == 0 ? f.samples[i - (size_t)3 * w * h] : (uint8_t)(118 + test_random() % 9 + test_random() % 13);
    return f;
}

/* Units as the encoder gives them, what ends the stream with the last. */
static struct hevc_stream encode(const struct hevc_film *f, struct kn_video_encode_opts o)
{
    struct kn_video_encoder *e = NULL;
    struct hevc_stream s = {0};
    struct kn_err err = {0};
    const uint8_t *unit;
    size_t n;
    o.size = sizeof o;
    o.width = f->width;
    o.height = f->height;
    if (kn_video_encoder_open(&e, &o, &err))
        fail_msg("%s", err.text);
    for (uint32_t t = 0; t < f->n_pictures; t++) {
        if (kn_video_encode(e, hevc_film_row(f, t, 0, 0), &unit, &n, &err))
            fail_msg("%s", err.text);
        hevc_stream_add(&s, unit, n);
    }
    assert_int_equal(kn_video_encoder_end(e, &unit, &n, &err), KN_OK);
    assert_int_equal(n > 0, o.sealed);
    if (n) {
        hevc_stream_add(&s, unit, n);
        s.unit_bytes[--s.n_units - 1] += n;
    }
    struct kn_video_encode_stats stats = {.size = sizeof stats};
    kn_video_encoder_get_stats(e, &stats);
    assert_int_equal(stats.n_bytes, s.n_bytes);
    assert_int_equal(kn_video_encode(e, f->samples, &unit, &n, &err), KN_E_STATE);
    assert_int_equal(kn_video_encoder_end(e, &unit, &n, &err), KN_E_STATE);
    kn_video_encoder_close(&e);
    return s;
}

struct seen { uint64_t n; bool wrong; };

static enum kn_status look(void *user, const struct kn_video_picture *p)
{
    struct seen *s = user;
    s->wrong |= p->width != now_film->width || p->height != now_film->height || p->index != s->n || s->n >= now_film->n_pictures;
    for (uint32_t k = 0; k < 3 && !s->wrong; k++)
        s->wrong = hevc_compare("decode", now_film, (uint32_t)s->n, k, p->plane[k], p->stride[k]) != NULL;
    s->n++;
    return KN_OK;
}

/* In pieces of so many bytes. */
static enum kn_status decode(const uint8_t *bytes, size_t n, size_t piece, struct seen *seen, struct kn_video_decode_stats *stats, struct kn_err *err)
{
    struct kn_video_decoder *d = NULL;
    struct kn_video_decode_opts o = {.size = sizeof o, .on_picture = look, .user = seen};
    *seen = (struct seen){0};
    *err = (struct kn_err){0};
    assert_int_equal(kn_video_decoder_open(&d, &o, err), KN_OK);
    enum kn_status s = KN_OK;
    for (size_t at = 0; s == KN_OK && at < n; at += piece)
        s = kn_video_decode(d, bytes + at, n - at < piece ? n - at : piece, false, err);
    if (s == KN_OK)
        s = kn_video_decode(d, NULL, 0, true, err);
    *stats = (struct kn_video_decode_stats){.size = sizeof *stats};
    kn_video_decoder_get_stats(d, stats);
    kn_video_decoder_close(&d);
    return s;
}

/* ---- damage */

struct tally { unsigned n, n_refused, n_passed, n_wrong; char first[96]; };

static void judge(struct tally *t, const uint8_t *bytes, size_t n, const char *what, size_t which)
{
    struct seen seen;
    struct kn_video_decode_stats stats;
    struct kn_err err;
    uint8_t *exact = malloc(n + 1); /* so that sanitizers see overreads */
    assert_non_null(exact);
    memcpy(exact, bytes, n);
    enum kn_status s = decode(exact, n, t->n % 3 ? 1 << 20 : 500, &seen, &stats, &err);
    free(exact);
    bool wrong = s == KN_OK && (seen.wrong || seen.n != now_film->n_pictures);
    assert_true(s == KN_OK || err.text[0]);
    if (wrong && !t->n_wrong)
        snprintf(t->first, sizeof t->first, "%s %zu: %llu pictures%s", what, which, (unsigned long long)seen.n, seen.wrong ? ", others" : "");
    t->n++;
    t->n_refused += s != KN_OK;
    t->n_passed += s == KN_OK && !wrong;
    t->n_wrong += wrong;
}

/* The stream with the bytes from..to of it replaced by n others. */
static void judge_spliced(struct tally *t, const struct hevc_stream *s, size_t from, size_t to, const uint8_t *bytes, size_t n, const char *what, size_t which)
{
    uint8_t *other = malloc(s->n_bytes + n + 1);
    assert_non_null(other);
    memcpy(other, s->bytes, from);
    if (n)
        memcpy(other + from, bytes, n);
    memcpy(other + from + n, s->bytes + to, s->n_bytes - to);
    judge(t, other, s->n_bytes - (to - from) + n, what, which);
    free(other);
}

struct place { size_t begin, end; };

/* NAL units with their start codes, from 00 to 00. */
static uint32_t find_nals(const struct hevc_stream *s, struct place nals[MAX_NALS])
{
    uint32_t n = 0;
    for (size_t at = kni_hevc_find_start(s->bytes, s->n_bytes, 0); at < s->n_bytes; n++) {
        assert_true(n < MAX_NALS);
        nals[n].begin = at && !s->bytes[at - 1] ? at - 1 : at;
        at = kni_hevc_find_start(s->bytes, s->n_bytes, at + 3);
        nals[n].end = at < s->n_bytes && !s->bytes[at - 1] ? at - 1 : at;
    }
    return n;
}

static uint32_t nal_type(const struct hevc_stream *s, struct place nal, size_t *header)
{
    *header = kni_hevc_find_start(s->bytes, s->n_bytes, nal.begin) + 3;
    return s->bytes[*header] >> 1 & 63u;
}

static void damage_bits(struct tally *t, const struct hevc_stream *s, const struct place *nals, uint32_t n_nals)
{
    uint8_t *other = malloc(s->n_bytes);
    assert_non_null(other);
    memcpy(other, s->bytes, s->n_bytes);
    for (uint32_t i = 0; i < n_nals; i++) {
        size_t header;
        bool slice = nal_type(s, nals[i], &header) < 32;
        for (size_t bit = nals[i].begin * 8; bit < nals[i].end * 8; bit += slice && bit > header * 8 + 100 ? 1 + test_random() % 257 : 1 + test_random() % 9) {
            other[bit / 8] ^= (uint8_t)(0x80 >> bit % 8);
            judge(t, other, s->n_bytes, "bit", bit);
            other[bit / 8] = s->bytes[bit / 8];
        }
    }
    for (unsigned i = 0; i < 40; i++) { /* runs of zeros, and of anything */
        size_t at = test_random() % s->n_bytes, n = 1 + test_random() % 60;
        n = n < s->n_bytes - at ? n : s->n_bytes - at;
        for (size_t k = 0; k < n; k++)
            other[at + k] = i % 2 ? (uint8_t)test_random() : 0;
        judge(t, other, s->n_bytes, "bytes at", at);
        memcpy(other + at, s->bytes + at, n);
    }
    free(other);
}

static void damage_ends(struct tally *t, const struct hevc_stream *s, const struct place *nals, uint32_t n_nals)
{
    uint8_t more[64];
    for (uint32_t i = 0; i < n_nals; i++) {
        judge(t, s->bytes, nals[i].begin, "cut before unit", i);
        if (i)
            judge(t, s->bytes + nals[i].begin, s->n_bytes - nals[i].begin, "begins at unit", i);
    }
    for (unsigned i = 0; i < 60; i++) {
        size_t at = test_random() % s->n_bytes, to = at + test_random() % (s->n_bytes - at);
        judge(t, s->bytes, at, "cut at", at);
        judge_spliced(t, s, at, to, NULL, 0, "cut out at", at);
    }
    for (unsigned i = 0; i < 10; i++) {
        for (size_t k = 0; k < sizeof more; k++)
            more[k] = (uint8_t)test_random();
        judge_spliced(t, s, s->n_bytes, s->n_bytes, more, sizeof more, "more behind it", i);
    }
}

static void damage_units(struct tally *t, const struct hevc_stream *s, const struct place *nals, uint32_t n_nals)
{
    static const uint8_t types[] = {0, 1, 19, 21, 32, 33, 34, NAL_AUD, NAL_EOS, 37, NAL_FILLER, NAL_SEI_PREFIX, NAL_SEI_SUFFIX, 41, 48};
    uint8_t *other = malloc(s->n_bytes);
    assert_non_null(other);
    for (uint32_t i = 0; i < n_nals; i++) {
        const size_t begin = nals[i].begin, n = nals[i].end - begin;
        size_t header;
        const uint32_t type = nal_type(s, nals[i], &header);
        judge_spliced(t, s, begin, begin + n, NULL, 0, "without unit", i);
        judge_spliced(t, s, begin, begin, s->bytes + begin, n, "twice unit", i);
        judge_spliced(t, s, s->n_bytes, s->n_bytes, s->bytes + begin, n, "again at the end unit", i);
        for (uint32_t k = i + 1; k < n_nals; k++) { /* swapped, and all from one up to the other removed */
            const size_t at = nals[k].begin, m = nals[k].end - at, between = at - (begin + n);
            memcpy(other, s->bytes, begin);
            memcpy(other + begin, s->bytes + at, m);
            memcpy(other + begin + m, s->bytes + begin + n, between);
            memcpy(other + begin + m + between, s->bytes + begin, n);
            memcpy(other + at + m, s->bytes + at + m, s->n_bytes - at - m);
            judge(t, other, s->n_bytes, "swapped units", i * 100 + k);
            if (i || k < n_nals - 1)
                judge_spliced(t, s, begin, at + m, NULL, 0, "without units", i * 100 + k);
        }
        for (size_t k = 0; k < sizeof types; k++) {
            if (types[k] == type)
                continue;
            memcpy(other, s->bytes, s->n_bytes);
            other[header] = (uint8_t)(types[k] << 1);
            judge(t, other, s->n_bytes, "renamed unit", i * 100 + types[k]);
        }
    }
    free(other);
}

/* Access units, each whole. */
static void damage_pictures(struct tally *t, const struct hevc_stream *s)
{
    size_t begin[HEVC_STREAM_UNITS + 1] = {0};
    uint8_t *other = malloc(s->n_bytes);
    assert_non_null(other);
    for (uint32_t i = 0; i < s->n_units; i++)
        begin[i + 1] = begin[i] + s->unit_bytes[i];
    for (uint32_t i = 0; i < s->n_units; i++) {
        judge_spliced(t, s, begin[i], begin[i], s->bytes + begin[i], s->unit_bytes[i], "twice picture", i);
        judge(t, s->bytes, begin[i], "cut before picture", i);
        for (uint32_t k = i + 1; k <= s->n_units; k++)
            if (i || k < s->n_units)
                judge_spliced(t, s, begin[i], begin[k], NULL, 0, "without pictures", i * 100 + k);
        for (uint32_t k = i + 1; k < s->n_units; k++) {
            size_t at = begin[i];
            memcpy(other, s->bytes, at);
            memcpy(other + at, s->bytes + begin[k], s->unit_bytes[k]);
            at += s->unit_bytes[k];
            memcpy(other + at, s->bytes + begin[i + 1], begin[k] - begin[i + 1]);
            at += begin[k] - begin[i + 1];
            memcpy(other + at, s->bytes + begin[i], s->unit_bytes[i]);
            memcpy(other + begin[k + 1], s->bytes + begin[k + 1], s->n_bytes - begin[k + 1]);
            judge(t, other, s->n_bytes, "swapped pictures", i * 100 + k);
        }
    }
    free(other);
}

/* The parameter set of a stream that is coded alike and of another size within the same blocks: its window alone differs. */
static void damage_window(struct tally *t, const struct hevc_stream *s, const struct place *nals, uint32_t n_nals, struct kn_video_encode_opts o)
{
    const uint32_t w = now_film->width, h = now_film->height;
    for (uint32_t y = (h + 7) / 8 * 8 - 7; y <= (h + 7) / 8 * 8; y++)
        for (uint32_t x = (w + 7) / 8 * 8 - 7; x <= (w + 7) / 8 * 8; x++) {
            struct hevc_film f = make_film(x, y, 1);
            struct hevc_stream other = encode(&f, o);
            struct place its[MAX_NALS];
            size_t header;
            uint32_t n = find_nals(&other, its), i = 0, k = 0;
            while (nal_type(s, nals[i], &header) != 33)
                assert_true(++i < n_nals);
            while (nal_type(&other, its[k], &header) != 33)
                assert_true(++k < n);
            judge_spliced(t, s, nals[i].begin, nals[i].end, other.bytes + its[k].begin, its[k].end - its[k].begin, "window", x * 1000 + y);
            hevc_stream_free(&other);
            hevc_film_free(&f);
        }
}

static struct tally damage_all(const struct hevc_film *f, struct kn_video_encode_opts o)
{
    struct tally t = {0};
    struct place nals[MAX_NALS];
    struct hevc_stream s = encode(f, o);
    uint32_t n_nals = find_nals(&s, nals);
    now_film = f;
    judge(&t, s.bytes, s.n_bytes, "nothing", 0);
    assert_int_equal(t.n_passed, 1);
    if (o.sealed)
        damage_bits(&t, &s, nals, n_nals);
    damage_ends(&t, &s, nals, n_nals);
    damage_units(&t, &s, nals, n_nals);
    damage_pictures(&t, &s);
    damage_window(&t, &s, nals, n_nals, o);
    hevc_stream_free(&s);
    return t;
}

static const struct kn_video_encode_opts ways[] = {
    {.content = KN_VIDEO_CONTENT_NOISE},
    {.content = KN_VIDEO_CONTENT_TILES, .hash = KN_VIDEO_HASH_CRC},
    {.content = KN_VIDEO_CONTENT_NOISE, .hash = KN_VIDEO_HASH_NONE, .hevc = KN_OPTS(kn_hevc_opts, .n_slices = 2)},
    {.content = KN_VIDEO_CONTENT_TILES, .hash = KN_VIDEO_HASH_NONE, .hevc = KN_OPTS(kn_hevc_opts,
                                                                                    .tools = KN_HEVC_TOOLS_BASIC)},
    /* no hash: only x265 knows what is beyond the edge */
    {.content = KN_VIDEO_CONTENT_NOISE, .hevc = KN_OPTS(kn_hevc_opts, .encoder = KN_HEVC_ENCODER_X265_ULTRAFAST)},
};

static uint32_t n_slices_of(const struct kn_video_encode_opts *o)
{
    return o->hevc ? o->hevc->n_slices : 0;
}

/* The last one is left out where there is no x265. */
static unsigned n_ways(void)
{
    enum { N = sizeof ways / sizeof *ways };
    struct kn_video_encode_opts o = ways[N - 1];
    struct kn_video_encoder *e;
    o.size = sizeof o;
    o.width = o.height = 64;
    bool there = kn_video_encoder_open(&e, &o, NULL) == KN_OK;
    kn_video_encoder_close(&e);
    return there ? N : N - 1;
}

static void no_damage_passes(void **state)
{
    (void)state;
    unsigned n_wrong = 0;
    for (unsigned way = 0; way < n_ways(); way++) {
        struct kn_video_encode_opts o = ways[way];
        struct hevc_film f = make_film(42, n_slices_of(&o) ? 130 : 34, 4);
        o.sealed = true;
        struct tally t = damage_all(&f, o);
        print_message("way %u: %u damages, %u refused, %u of no consequence, %u unnoticed\n", way, t.n, t.n_refused, t.n_passed, t.n_wrong);
        if (t.n_wrong)
            fail_msg("way %u: %u of %u damages pass as good, %s", way, t.n_wrong, t.n, t.first);
        assert_true(t.n >= 1000 && t.n_refused > t.n * 9 / 10);
        o.sealed = false;
        t = damage_all(&f, o);
        print_message("    without its seal %u of %u unnoticed, bits not counted\n", t.n_wrong, t.n);
        n_wrong += t.n_wrong;
        assert_true(t.n_wrong > 0);
        hevc_film_free(&f);
    }
    assert_true(n_wrong > 100);
}

/* ---- what is no damage */

static void expect_good(const struct hevc_film *f, const uint8_t *bytes, size_t n, uint64_t n_pictures, bool sealed)
{
    struct seen seen;
    struct kn_video_decode_stats stats;
    struct kn_err err;
    now_film = f;
    for (size_t piece = 1; piece <= 4096; piece *= 64) {
        if (decode(bytes, n, piece, &seen, &stats, &err))
            fail_msg("%s", err.text);
        assert_int_equal(seen.n, n_pictures);
        assert_true(!seen.wrong || n_pictures > f->n_pictures);
        assert_int_equal(stats.sealed, sealed);
    }
}

static void append(struct hevc_stream *to, const void *bytes, size_t n)
{
    to->n_units = 0;
    hevc_stream_add(to, bytes, n);
}

static void multiplexers_may_change_it(void **state)
{
    (void)state;
    static const uint8_t delimiter[] = {0, 0, 0, 1, NAL_AUD << 1, 1, 0x50}, start[] = {0, 0, 0, 1}, zeros[5] = {0};
    for (unsigned way = 0; way < n_ways(); way++)
        for (int change = 0; change < 5; change++) {
            struct hevc_film f = make_film(42, 34, 3);
            struct kn_video_encode_opts o = ways[way];
            struct hevc_stream s, other = {0};
            struct place nals[MAX_NALS];
            uint32_t n_pictures = 0, n_sets = 0;
            o.sealed = true;
            s = encode(&f, o);
            uint32_t n = find_nals(&s, nals);
            for (uint32_t i = 0; i < n; i++) {
                size_t header, at = nals[i].begin;
                const uint32_t type = nal_type(&s, nals[i], &header);
                const bool hash = type == NAL_SEI_SUFFIX && s.bytes[header + 2] == 132;
                if (change == 0) /* start codes of three bytes, or of four */
                    at = i % 2 ? header - 3 : header;
                if (change == 0 && i % 2 == 0)
                    append(&other, start, sizeof start);
                if (change == 1 && (type == 32 || (type < 32 && s.bytes[header + 2] >> 7 && n_pictures))) /* delimiters */
                    append(&other, delimiter, sizeof delimiter);
                n_pictures += type < 32 && s.bytes[header + 2] >> 7;
                if (change == 2 && hash) /* other people's messages are gone */
                    continue;
                append(&other, s.bytes + at, nals[i].end - at);
                if (change == 3 && type == 34) /* parameter sets twice */
                    append(&other, s.bytes, nals[i].end);
                if (change == 4)
                    append(&other, zeros, sizeof zeros);
                n_sets += type >= 32 && type <= 34;
            }
            assert_true(n_pictures == 3 && n_sets == 3);
            expect_good(&f, other.bytes, other.n_bytes, 3, true);
            hevc_stream_free(&other);
            hevc_stream_free(&s);
            hevc_film_free(&f);
        }
}

/* One behind the other, sealed or not: each is held against its own. */
static void streams_follow_each_other(void **state)
{
    (void)state;
    struct hevc_film f = make_film(42, 34, 3);
    struct hevc_stream sealed = encode(&f, (struct kn_video_encode_opts){.sealed = true}), bare = encode(&f, (struct kn_video_encode_opts){0});
    for (int k = 0; k < 4; k++) {
        struct hevc_stream both = {0};
        const struct hevc_stream *first = k & 1 ? &sealed : &bare, *second = k & 2 ? &sealed : &bare;
        append(&both, first->bytes, first->n_bytes);
        append(&both, second->bytes, second->n_bytes);
        expect_good(&f, both.bytes, both.n_bytes, 6, k == 3);
        hevc_stream_free(&both);
        if (!(k & 1))
            continue;
        struct seen seen; /* the end of the first is missing */
        struct kn_video_decode_stats stats;
        struct kn_err err;
        append(&both, first->bytes, first->unit_bytes[0] + first->unit_bytes[1]);
        append(&both, second->bytes, second->n_bytes);
        assert_int_equal(decode(both.bytes, both.n_bytes, both.n_bytes, &seen, &stats, &err), KN_E_FORMAT);
        assert_non_null(strstr(err.text, "its end was cut off"));
        hevc_stream_free(&both);
    }
    expect_good(&f, bare.bytes, bare.n_bytes, 3, false);
    hevc_stream_free(&sealed);
    hevc_stream_free(&bare);
    hevc_film_free(&f);
}

static void other_decoders_pass_over_it(void **state)
{
    (void)state;
    for (unsigned way = 0; way < n_ways(); way++) {
        struct kn_video_encode_opts o = ways[way];
        struct hevc_film f = make_film(48, n_slices_of(&o) ? 128 : 32, 4); /* whole blocks: with hashes, by x265 too */
        o.sealed = true;
        struct hevc_stream s = encode(&f, o);
        const char *bad = hevc_judge_avcodec(&s, &f);
        if (!bad && TEST_DE265)
            bad = hevc_judge_de265(&s, &f, HEVC_DE265_TOOLS);
        if (!bad && !(o.hevc && o.hevc->encoder))
            bad = hevc_judge_reader(&s, &f, HEVC_DE265_TOOLS, n_slices_of(&o));
        if (bad)
            fail_msg("way %u: %s", way, bad);
        hevc_stream_free(&s);
        hevc_film_free(&f);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(no_damage_passes),
        cmocka_unit_test(multiplexers_may_change_it),
        cmocka_unit_test(streams_follow_each_other),
        cmocka_unit_test(other_decoders_pass_over_it),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
