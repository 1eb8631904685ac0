/* SPDX-License-Identifier: Apache-2.0 */
/*
 * kinema/video.h: pictures of any size come back bit for bit through every encoder, whatever pieces the stream arrives in; streams one
 * after the other; the video of chunks; what is refused; and failing allocations.
 */
#include "unit/codec/codec_support.h"

#include <kinema/video.h>

#include "base/le.h"
#include "codec/hevc/hevc_plugin_load.h"
#include "support/refresh_checksums.h"

struct film { uint32_t w, h, n; uint8_t *samples; };

static struct film make_film(uint32_t w, uint32_t h, uint32_t n)
{
    struct film f = {w, h, n, malloc((size_t)3 * w * h * n)};
    assert_non_null(f.samples);
    for (size_t i = 0; i < (size_t)3 * w * h * n; i++) /* a third of it repeats the picture before */
        f.samples[i] = i >= (size_t)3 * w * h && i / 64 % 3 == 0 ? f.samples[i - (size_t)3 * w * h] : (uint8_t)(118 + test_random() % 9 + test_random() % 13);
    memset(f.samples, 128, (size_t)3 * w * h); /* flat first */
    return f;
}

struct stream { uint8_t *bytes; size_t n; };

static enum kn_status encode(const struct film *f, struct kn_video_encode_opts o, struct stream *out, struct kn_err *err)
{
    struct kn_video_encoder *e = NULL;
    *out = (struct stream){0};
    o.size = sizeof o;
    o.width = f->w;
    o.height = f->h;
    enum kn_status s = kn_video_encoder_open(&e, &o, err);
    for (uint32_t t = 0; s == KN_OK && t < f->n; t++) {
        const uint8_t *unit;
        size_t n;
        s = kn_video_encode(e, f->samples + (size_t)t * 3 * f->w * f->h, &unit, &n, err);
        if (s != KN_OK)
            break;
        out->bytes = realloc(out->bytes, out->n + n);
        assert_non_null(out->bytes);
        memcpy(out->bytes + out->n, unit, n);
        out->n += n;
    }
    if (s == KN_OK) {
        struct kn_video_encode_stats stats = {.size = sizeof stats};
        kn_video_encoder_get_stats(e, &stats);
        assert_int_equal(stats.n_pictures, f->n);
        assert_int_equal(stats.n_bytes, out->n);
        assert_true(stats.encode_ns > 0);
    }
    kn_video_encoder_close(&e);
    assert_null(e);
    return s;
}

static struct stream encoded(const struct film *f, struct kn_video_encode_opts o)
{
    struct stream s;
    struct kn_err err = {0};
    if (encode(f, o, &s, &err) != KN_OK)
        fail_msg("%u x %u: %s", f->w, f->h, err.text);
    return s;
}

struct seen { const struct film *film; uint64_t n; bool wrong; enum kn_status answer; };

static enum kn_status look(void *user, const struct kn_video_picture *p)
{
    struct seen *s = user;
    s->wrong |= p->index != s->n || p->width != s->film->w || p->height != s->film->h;
    const uint8_t *want = s->film->samples + (size_t)(s->n % s->film->n) * 3 * p->width * p->height;
    for (uint32_t k = 0; k < 3 && !s->wrong; k++)
        for (uint32_t y = 0; y < p->height; y++)
            s->wrong |= memcmp(p->plane[k] + y * p->stride[k], want + ((size_t)k * p->height + y) * p->width, p->width) != 0;
    s->n++;
    return s->answer;
}

/* In pieces of so many bytes. */
static enum kn_status decode(const void *bytes, size_t n, size_t piece, uint32_t section_plus_1, kn_video_picture_fn fn, void *user, struct kn_err *err)
{
    struct kn_video_decoder *d = NULL;
    struct kn_video_decode_opts o = {.size = sizeof o, .on_picture = fn, .user = user, .section_plus_1 = section_plus_1};
    enum kn_status s = kn_video_decoder_open(&d, &o, err);
    for (size_t at = 0; s == KN_OK && at < n; at += piece) {
        size_t now = n - at < piece ? n - at : piece;
        uint8_t *exact = malloc(now); /* so that sanitizers see overreads */
        assert_non_null(exact);
        memcpy(exact, (const uint8_t *)bytes + at, now);
        s = kn_video_decode(d, exact, now, false, err);
        free(exact);
    }
    if (s == KN_OK)
        s = kn_video_decode(d, NULL, 0, true, err);
    if (d)
        assert_int_equal(kn_video_decode(d, NULL, 0, true, NULL), KN_E_STATE);
    kn_video_decoder_close(&d);
    return s;
}

static void round_trips(void **state)
{
    (void)state;
    static const uint32_t sizes[][3] = {{16, 16, 1}, {17, 33, 3}, {48, 64, 8}, {150, 47, 2}, {256, 144, 4}};
    const struct kn_hevc_plugin *plugin;
    uint32_t n_encoders = kni_hevc_plugin_load(&plugin, NULL) == KN_OK ? KN_HEVC_ENCODER_X265_MEDIUM : KN_HEVC_ENCODER_KINEMA;
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++)
        for (uint32_t k = 0; k < 2 * (n_encoders + 1); k++) {
            struct film f = make_film(sizes[i][0], sizes[i][1], sizes[i][2]);
            struct kn_video_encode_opts o = {.hevc = KN_OPTS(kn_hevc_opts, .encoder = (enum kn_hevc_encoder)(k / 2),
                                                             .tools = k & 1 ? KN_HEVC_TOOLS_BASIC : 0,
                                                                 .n_slices = (uint32_t)i),
                                             .content = k & 1 ? KN_VIDEO_CONTENT_TILES : KN_VIDEO_CONTENT_NOISE,
                                             .verify = true};
            struct stream s = encoded(&f, o);
            for (size_t piece = i == 4 ? 999 : 1; piece <= 1 << 20; piece *= 1021) {
                struct seen seen = {.film = &f};
                struct kn_err err = {0};
                if (decode(s.bytes, s.n, piece, 0, look, &seen, &err) != KN_OK)
                    fail_msg("%u x %u, encoder %u: %s", f.w, f.h, k / 2, err.text);
                assert_int_equal(seen.n, f.n);
                assert_false(seen.wrong);
            }
            free(s.bytes);
            free(f.samples);
        }
}

static void streams_follow_each_other(void **state)
{
    (void)state;
    struct film f = make_film(48, 32, 3), g = make_film(32, 48, 1);
    struct stream s = encoded(&f, (struct kn_video_encode_opts){0}), other = encoded(&g, (struct kn_video_encode_opts){0});
    uint8_t *both = malloc(2 * s.n + other.n);
    assert_non_null(both);
    memcpy(both, s.bytes, s.n);
    memcpy(both + s.n, s.bytes, s.n);
    memcpy(both + 2 * s.n, other.bytes, other.n);
    for (size_t piece = 5; piece < 10000; piece *= 40) {
        struct seen seen = {.film = &f};
        struct kn_err err = {0};
        assert_int_equal(decode(both, 2 * s.n, piece, 0, look, &seen, &err), KN_OK);
        assert_int_equal(seen.n, 6);
        assert_false(seen.wrong);
        seen = (struct seen){.film = &f};
        assert_int_equal(decode(both, 2 * s.n + other.n, piece, 0, look, &seen, &err), KN_E_FORMAT); /* of another size */
        assert_non_null(strstr(err.text, "32 x 48 after one of 48 x 32"));
        assert_int_equal(seen.n, 6);
    }
    free(both);
    free(s.bytes);
    free(other.bytes);
    free(f.samples);
    free(g.samples);
}

static enum kn_status count(void *user, const struct kn_video_picture *p)
{
    (void)p;
    ++*(uint32_t *)user;
    return KN_OK;
}

/* The video of a chunk: each section by number, or the first. */
static void chunks(void **state)
{
    (void)state;
    struct pool pool = pool_make(5, 2, 64, KN_KV_TYPE_F16, 32);
    pool_fill_smooth(&pool);
    struct kni_chunk_meta m = test_meta(&pool, 0, 32);
    struct kni_codec *codec = test_codec(KN_PRESET_TILES, (struct kn_tiles_opts){.tokens_per_picture = 8});
    void *data;
    size_t n;
    struct kn_err err = {0};
    assert_int_equal(kni_chunk_encode(codec, &m, &pool.view, &data, &n, &err), KN_OK);
    for (uint32_t section = 0; section <= 5; section++) { /* scales, then K and V of two groups */
        uint32_t n_pictures = 0;
        err = (struct kn_err){0};
        enum kn_status s = decode(data, n, 100 + 1000 * section, section, count, &n_pictures, &err);
        if (section == 1)
            assert_true(s == KN_E_ARG && strstr(err.text, "section 0 of this chunk is no video: use 1 to 4"));
        else
            assert_int_equal(s, KN_OK);
        assert_int_equal(n_pictures, section == 1 ? 0 : 4);
    }
    uint32_t n_pictures = 0;
    assert_int_equal(decode(data, n, n, 6, count, &n_pictures, &err), KN_E_ARG);
    assert_int_equal(decode(data, n - 1, n, 0, count, &n_pictures, &err), KN_E_FORMAT);
    assert_int_equal(decode(data, 100, n, 0, count, &n_pictures, &err), KN_E_FORMAT);
    ((uint8_t *)data)[n - 1] ^= 1; /* the last section's checksum */
    assert_int_equal(decode(data, n, n, 5, count, &n_pictures, &err), KN_E_FORMAT);
    ((uint8_t *)data)[n - 1] ^= 1;
    kni_le32_put((uint8_t *)data + 116, 0); /* streams with tools that the header does not name */
    kn_refresh_checksums(data, n);
    assert_int_equal(decode(data, n, n, 2, count, &n_pictures, &err), KN_E_FORMAT);
    assert_non_null(strstr(err.text, "tools"));
    assert_int_equal(n_pictures, 0);
    kni_free(data);
    kni_codec_close(&codec);
    codec = test_codec(KN_PRESET_EXACT, (struct kn_tiles_opts){0});
    assert_int_equal(kni_chunk_encode(codec, &m, &pool.view, &data, &n, &err), KN_OK);
    assert_int_equal(decode(data, n, n, 0, count, &n_pictures, &err), KN_E_UNSUPPORTED);
    assert_non_null(strstr(err.text, "preset is exact over rans"));
    kni_free(data);
    kni_codec_close(&codec);
    pool_free(&pool);
}

static void refused(void **state)
{
    (void)state;
    struct film f = make_film(32, 32, 2);
    struct stream s = encoded(&f, (struct kn_video_encode_opts){0});
    struct seen seen = {.film = &f};
    struct kn_err err = {0};
    assert_int_equal(decode(NULL, 0, 1, 0, look, &seen, &err), KN_E_FORMAT);
    assert_int_equal(decode("KNC", 3, 1, 0, look, &seen, &err), KN_E_FORMAT);
    assert_int_equal(decode("KNC1", 4, 1, 0, look, &seen, &err), KN_E_FORMAT);
    assert_int_equal(decode("once upon a time", 16, 1, 0, look, &seen, &err), KN_E_FORMAT);
    assert_int_equal(decode(s.bytes + 1, s.n - 1, s.n, 0, look, &seen, &err), KN_OK); /* a start code may have three bytes */
    assert_int_equal(decode(s.bytes + 2, s.n - 2, s.n, 0, look, &seen, &err), KN_E_FORMAT);
    assert_int_equal(decode(s.bytes, s.n, s.n, 2, look, &seen, &err), KN_E_ARG); /* a section of what is no chunk */
    seen = (struct seen){.film = &f, .answer = KN_E_CANCELLED};
    assert_int_equal(decode(s.bytes, s.n, s.n, 0, look, &seen, &err), KN_E_CANCELLED);
    assert_int_equal(seen.n, 1);
    static const struct { uint32_t w, h; struct kn_hevc_opts hevc; int content; } bad[] = {
        {15, 16, {0}, 0}, {8192, 8192, {0}, 0}, {16, 8193, {0}, 0}, {0, 0, {0}, 0}, {64, 64, {.encoder = (enum kn_hevc_encoder)9}, 0}, {64, 64, {.n_slices = 65}, 0}, {64, 64, {0}, 2}};
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        struct kn_video_encoder *e;
        struct kn_hevc_opts hevc = bad[i].hevc;
        hevc.size = sizeof hevc;
        struct kn_video_encode_opts o = {.size = sizeof o, .width = bad[i].w, .height = bad[i].h, .hevc = &hevc,
                                         .content = (enum kn_video_content)bad[i].content};
        err = (struct kn_err){0};
        assert_int_equal(kn_video_encoder_open(&e, &o, &err), KN_E_ARG);
        assert_true(!e && err.text[0]);
    }
    struct kn_video_encoder *e;
    struct kn_video_decoder *d;
    assert_int_equal(kn_video_encoder_open(&e, &(struct kn_video_encode_opts){.width = 16, .height = 16}, NULL), KN_E_ARG); /* no size */
    assert_int_equal(kn_video_encoder_open(&e, NULL, NULL), KN_E_ARG);
    assert_int_equal(kn_video_decoder_open(&d, &(struct kn_video_decode_opts){.size = sizeof(struct kn_video_decode_opts)}, NULL), KN_E_ARG); /* nobody to give pictures to */
    free(s.bytes);
    free(f.samples);
}

/* Whatever byte is changed: refused, or the pictures are right and all there. With each hash, by both kinds of slices. */
static void damage(void **state)
{
    (void)state;
    static const enum kn_video_hash hashes[] = {KN_VIDEO_HASH_DEFAULT, KN_VIDEO_HASH_CRC, KN_VIDEO_HASH_CHECKSUM};
    for (size_t h = 0; h < sizeof hashes / sizeof *hashes; h++) {
        struct film f = make_film(32, 40, 3);
        memcpy(f.samples, f.samples + (size_t)3 * 32 * 40, (size_t)3 * 32 * 40); /* not flat: its bits matter */
        struct stream s = encoded(&f, (struct kn_video_encode_opts){.hevc = KN_OPTS(kn_hevc_opts, .n_slices = 2),
                                                                    .hash = hashes[h]});
        unsigned n_refused = 0, n_all = 0;
        for (size_t i = 0; i < s.n; i += i < 150 || i + 150 > s.n ? 1 : 7) {
            struct seen seen = {.film = &f};
            struct kn_err err = {0};
            uint8_t was = s.bytes[i];
            s.bytes[i] ^= (uint8_t)(1u << test_random() % 8);
            enum kn_status status = decode(s.bytes, s.n, 777, 0, look, &seen, &err);
            s.bytes[i] = was;
            assert_true(status == KN_OK || err.text[0]);
            assert_true(!seen.wrong || hashes[h] == KN_VIDEO_HASH_CHECKSUM); /* not even before it is refused; sums of changes may cancel */
            assert_true(status != KN_OK || seen.n == 3);
            n_refused += status != KN_OK;
            n_all++;
            if (i % 3) /* cut; between two pictures nobody can know */
                continue;
            seen = (struct seen){.film = &f};
            decode(s.bytes, i, s.n, 0, look, &seen, &err);
            assert_false(seen.wrong);
        }
        assert_true(n_refused > n_all * 8 / 10);
        free(s.bytes);
        free(f.samples);
    }
}

struct first { uint64_t n_bytes; uint32_t n; };

static enum kn_status only_one(void *user, const struct kn_video_picture *p)
{
    struct first *first = user;
    first->n_bytes = p->n_stream_bytes;
    first->n++;
    return KN_E_CANCELLED;
}

/* What a receiver that has enough is told: the bytes that its pictures took, and that they were checked. */
static void bytes_of_a_picture(void **state)
{
    (void)state;
    struct film f = make_film(48, 32, 4), one = f;
    one.n = 1;
    for (uint32_t hash = KN_VIDEO_HASH_MD5; hash <= KN_VIDEO_HASH_NONE; hash++) {
        struct kn_video_encode_opts o = {.hash = (enum kn_video_hash)hash};
        struct stream s = encoded(&f, o), single = encoded(&one, o);
        for (size_t piece = 1; piece <= s.n; piece += s.n - 1) {
            struct first first = {0};
            struct kn_video_decoder *d = NULL;
            struct kn_video_decode_opts dopts = {.size = sizeof dopts, .on_picture = only_one, .user = &first};
            struct kn_err err = {0};
            assert_int_equal(kn_video_decoder_open(&d, &dopts, &err), KN_OK);
            enum kn_status status = KN_OK;
            for (size_t at = 0; status == KN_OK; at += piece)
                status = kn_video_decode(d, s.bytes + at, piece, at + piece >= s.n, &err);
            assert_int_equal(status, KN_E_CANCELLED);
            assert_int_equal(first.n, 1);
            assert_int_equal(first.n_bytes, single.n);
            struct kn_video_decode_stats stats = {.size = sizeof stats};
            kn_video_decoder_get_stats(d, &stats);
            assert_int_equal(stats.n_hashed, hash != KN_VIDEO_HASH_NONE);
            assert_true(stats.read && !stats.chunk);
            kn_video_decoder_close(&d);
        }
        free(s.bytes);
        free(single.bytes);
    }
    free(f.samples);
}

static void out_of_memory(void **state)
{
    (void)state;
    struct film f = make_film(32, 32, 2);
    uint64_t before = kni_alloc_get_stats(KNI_ALLOC_TAG_COUNT).current_bytes, n_faults = 0;
    bool done = false;
    for (uint64_t n = 1; !done && n < 200; n++) {
        struct stream s;
        struct kn_err err = {0};
        kni_alloc_fault_arm(n, false);
        enum kn_status status = encode(&f, (struct kn_video_encode_opts){.verify = true}, &s, &err);
        struct seen seen = {.film = &f};
        if (status == KN_OK)
            status = decode(s.bytes, s.n, 100, 0, look, &seen, &err);
        bool hit = kni_alloc_fault_hit();
        kni_alloc_fault_arm(0, false);
        assert_true(hit ? status == KN_E_NOMEM : status == KN_OK && seen.n == 2 && !seen.wrong);
        assert_int_equal(kni_alloc_get_stats(KNI_ALLOC_TAG_COUNT).current_bytes, before);
        n_faults += hit;
        done = !hit;
        free(s.bytes);
    }
    assert_true(done && n_faults >= 8);
    free(f.samples);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(round_trips), cmocka_unit_test(streams_follow_each_other), cmocka_unit_test(chunks),
        cmocka_unit_test(refused),     cmocka_unit_test(damage),                    cmocka_unit_test(bytes_of_a_picture),
        cmocka_unit_test(out_of_memory),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
