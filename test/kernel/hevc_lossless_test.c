/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The lossless HEVC encoder against two foreign decoders and Kinema's reader: random films and options (hevc_random.h), each coded at every CPU
 * level of the machine, as whole units and as slices in reverse order, into buffers of exactly the promised size. All must be the same bytes and
 * decode bit for bit.
 *
 *     hevc_lossless_test                                 200 cases, some seconds
 *     hevc_lossless_test --long                          10,000 from case 1000 on, or KN_LONG_COUNT from KN_LONG_FIRST on (make test-long)
 *     hevc_lossless_test --case 1234                     one of them again
 *     hevc_lossless_test --bench                         MB/s of symbols, bytes and bounds
 */
#include "check.h"

#include <pthread.h>

#include "base/alloc.h"
#include "codec/hevc/hevc_syntax.h"
#include "support/cpu_levels.h"
#include "support/hevc_random.h"

static uint64_t first_case = 1, n_cases = 200;
static bool long_run;

/* ---- an encoder between canaries */

/* Memory between canaries whose inside is left alone: bounds of large pictures are large. */
#define ROOM_CANARY 192u /* on either side; a multiple of 64 */
struct room { uint8_t *at, *raw; size_t n_bytes; };

static struct room room_make(size_t n_bytes)
{
    struct room r = {.raw = malloc(n_bytes + 2 * ROOM_CANARY + 64), .n_bytes = n_bytes};
    assert_non_null(r.raw);
    r.at = r.raw + ROOM_CANARY + (64 - (uintptr_t)r.raw % 64) % 64;
    memset(r.at - ROOM_CANARY, 0xa5, ROOM_CANARY);
    memset(r.at + n_bytes, 0xa5, ROOM_CANARY);
    return r;
}

static void room_free(struct room *r)
{
    for (uint32_t i = 0; i < ROOM_CANARY; i++) {
        assert_int_equal(r->at[-1 - (ptrdiff_t)i], 0xa5);
        assert_int_equal(r->at[r->n_bytes + i], 0xa5);
    }
    free(r->raw);
}

struct coder { struct room memory; struct kni_hevc_lossless *e; };

/* Opened at a level, which is its own. */
static struct coder coder_open(const struct kni_hevc_lossless_opts *o, uint32_t level)
{
    struct coder c = {0};
    struct kn_err err = {0};
    size_t bytes = kni_hevc_lossless_bytes(o);
    assert_true(bytes > 0);
    c.memory = room_make(bytes);
    memset(c.memory.at, 0xe7, bytes);
    struct kni_hevc_lossless_opts at_level = *o;
    at_level.cpu_without = ~cpu_sets[level];
    if (kni_hevc_lossless_init(&c.e, c.memory.at, &at_level, &err) != KN_OK)
        fail_msg("%s", err.text);
    assert_non_null(c.e);
    uint32_t n = kni_hevc_lossless_n_slices(c.e);
    assert_true(n >= 1 && n <= 64 && (!o->n_slices || n <= o->n_slices));
    return c;
}

static void coder_close(struct coder *c)
{
    room_free(&c->memory);
}

/* One access unit from slices, last one first, each in a buffer of its bound; the largest share of a bound that was used. */
static size_t unit_of_slices(const struct kni_hevc_lossless *e, const struct kni_hevc_job *job, uint8_t *out, double *fullest)
{
    uint32_t n = kni_hevc_lossless_n_slices(e);
    struct room slices[64];
    size_t sizes[64], total = job->first ? kni_hevc_lossless_headers(e, out) : 0;
    assert_true(total <= 256);
    for (uint32_t i = n; i-- > 0;) {
        size_t bound = kni_hevc_lossless_slice_bound(e, i);
        slices[i] = room_make(bound);
        sizes[i] = kni_hevc_lossless_slice(e, job, i, slices[i].at);
        assert_true(sizes[i] > 6 && sizes[i] <= bound);
        double share = (double)sizes[i] / (double)bound;
        *fullest = share > *fullest ? share : *fullest;
    }
    for (uint32_t i = 0; i < n; i++) {
        memcpy(out + total, slices[i].at, sizes[i]);
        total += sizes[i];
        room_free(&slices[i]);
    }
    return total;
}

/* ---- one case */

struct outcome { double fullest; size_t n_samples, n_bytes; uint32_t n_slices; };

/* Codes the case in every way that there is. NULL, or what is wrong; *s is the stream. */
static const char *code_case(const struct hevc_case *c, struct hevc_stream *s, struct outcome *outcome)
{
    const char *bad = NULL;
    for (uint32_t level = 0; level < cpu_sets_count(N_CPU_LEVELS) && !bad; level++) {
        struct coder coder = coder_open(&c->opts, level);
        struct kni_hevc_lossless *e = coder.e;
        size_t bound = kni_hevc_lossless_unit_bound(e), sum = 256, at = 0;
        outcome->n_slices = kni_hevc_lossless_n_slices(e);
        for (uint32_t i = 0; i < kni_hevc_lossless_n_slices(e); i++)
            sum += kni_hevc_lossless_slice_bound(e, i);
        assert_true(bound <= sum);
        struct room unit = room_make(bound), parts = room_make(bound);
        uint64_t n_allocs = kni_alloc_get_stats(KNI_ALLOC_TAG_COUNT).n_allocs;
        for (uint32_t t = 0; t < c->film.n_pictures && !bad; t++) {
            struct kni_hevc_job job = hevc_case_job(c, t);
            size_t n = kni_hevc_lossless_unit(e, &job, unit.at);
            if (n > bound)
                bad = hevc_wrong("picture %u has %zu bytes, its bound is %zu", t, n, bound);
            else if (level == 0)
                hevc_stream_add(s, unit.at, n);
            else if (n != s->unit_bytes[t] || memcmp(unit.at, s->bytes + at, n))
                bad = hevc_wrong("%s: picture %u is other bytes than the reference's (%zu, %zu)", cpu_set_names[level], t, n, s->unit_bytes[t]);
            size_t m = bad ? n : unit_of_slices(e, &job, parts.at, &outcome->fullest);
            if (!bad && (m != n || memcmp(unit.at, parts.at, n)))
                bad = hevc_wrong("%s: slices of picture %u in reverse order are other bytes than its unit (%zu, %zu)", cpu_set_names[level], t, m, n);
            at += n;
        }
        if (!bad && kni_alloc_get_stats(KNI_ALLOC_TAG_COUNT).n_allocs != n_allocs)
            bad = hevc_wrong("%s: coding pictures allocates", cpu_set_names[level]);
        coder_close(&coder);
        room_free(&unit);
        room_free(&parts);
    }
    return bad;
}

/* As Kinema's own decoder looks at units before libavcodec may see them. */
static const char *check_units(const struct hevc_case *c, const struct hevc_stream *s)
{
    const struct kni_hevc_lossless_opts *o = &c->opts;
    size_t at = 0;
    if (o->width % 8 || o->height % 8) /* a conformance window: for others' decoders only */
        return NULL;
    for (uint32_t t = 0; t < s->n_units; at += s->unit_bytes[t++]) {
        const char *why = kni_hevc_check_unit(s->bytes + at, s->unit_bytes[t], t == 0, o->width, o->height);
        if (why)
            return hevc_wrong("our own decoder: unit %u %s", t, why);
    }
    return NULL;
}

/* All judges; the reader, which is slow, only half the time, and not where pictures are large. */
static const char *judge(const struct hevc_case *c, const struct hevc_stream *s, const struct outcome *o)
{
    const char *bad = check_units(c, s);
    if (!bad)
        bad = hevc_judge_avcodec(s, &c->film);
    if (!bad)
        bad = hevc_judge_de265(s, &c->film, c->opts.tools);
    if (!bad && c->seed % 2 && c->opts.width * c->opts.height < 1000000)
        bad = hevc_judge_reader(s, &c->film, c->opts.tools, o->n_slices);
    return bad;
}

static const char *run_case(uint64_t seed, enum hevc_case_size size, struct outcome *outcome)
{
    static char text[700];
    struct hevc_case c;
    struct hevc_stream s = {0};
    hevc_case_make(&c, seed, size);
    *outcome = (struct outcome){.n_samples = (size_t)3 * c.opts.width * c.opts.height * c.film.n_pictures};
    const char *bad = code_case(&c, &s, outcome);
    outcome->n_bytes = s.n_bytes;
    if (!bad)
        bad = judge(&c, &s, outcome);
    if (bad)
        snprintf(text, sizeof text, "%s; size class %d: %s", hevc_case_text(&c), (int)size, bad);
    hevc_stream_free(&s);
    hevc_case_free(&c);
    return bad ? text : NULL;
}

static enum hevc_case_size size_of(uint64_t seed)
{
    if (seed % 200 == 100)
        return HEVC_CASE_LARGE;
    return seed % 25 == 7 ? HEVC_CASE_MEDIUM : seed % 10 == 3 ? HEVC_CASE_SMALL : HEVC_CASE_TINY;
}

/* ---- tests */

static void random_films(void **state)
{
    (void)state;
    struct outcome one, all = {0};
    uint64_t n_bad = 0;
    for (uint64_t i = 0; i < n_cases; i++) {
        const char *bad = run_case(first_case + i, size_of(first_case + i), &one);
        if (bad && n_bad++ < 40)
            print_error("%s\n", bad);
        all.n_samples += one.n_samples;
        all.n_bytes += one.n_bytes;
        all.fullest = one.fullest > all.fullest ? one.fullest : all.fullest;
        if (long_run && (i + 1) % 1000 == 0)
            print_message("%llu of %llu, %llu bad\n", (unsigned long long)i + 1, (unsigned long long)n_cases, (unsigned long long)n_bad);
    }
    print_message("%llu streams, %.1f million samples, %.3f bits each; a slice filled %.3f of its bound at most\n", (unsigned long long)n_cases,
                  (double)all.n_samples * 1e-6, 8 * (double)all.n_bytes / (double)all.n_samples, all.fullest);
    if (n_bad)
        fail_msg("%llu of %llu streams are wrong", (unsigned long long)n_bad, (unsigned long long)n_cases);
}

/* A film of one kind a picture, without randomness in its shape. */
static struct hevc_case plain_case(uint32_t width, uint32_t height, uint32_t n, const enum hevc_kind *kinds, uint32_t tools, enum kni_hevc_content content,
                                   uint32_t n_slices)
{
    struct hevc_case c = {.seed = 7, .opts = {.width = width, .height = height, .tools = tools, .content = content, .n_slices = n_slices}};
    uint64_t rng = hevc_mix(width * 8192 + height);
    c.film = hevc_film_alloc(width, height, n, width);
    for (uint32_t t = 0; t < n; t++) {
        for (uint32_t k = 0; k < 3; k++)
            hevc_paint_plane(&c.film, t, k, kinds[t], &rng);
        c.flat[t] = hevc_is_flat(&c.film, t);
    }
    memcpy(c.kind, kinds, sizeof *kinds * (n < 4 ? n : 4));
    return c;
}

/* What fills a slice most: uniform noise and the ends of the range, from a flat picture, inside a picture, and against the picture before, where
 * differences reach 255. The bound has to hold whatever comes (canaries), and not to be idle: half as much would be too little, where a third of it
 * is for emulation prevention, which no picture asks for. */
static void bounds_are_near(void **state)
{
    (void)state;
    static const enum hevc_kind films[][3] = {
        {HEVC_KIND_FLAT, HEVC_KIND_NOISE, HEVC_KIND_NOISE},           {HEVC_KIND_NOISE, HEVC_KIND_NEGATIVE, HEVC_KIND_NOISE},
        {HEVC_KIND_EXTREMES, HEVC_KIND_EXTREMES, HEVC_KIND_NEGATIVE}, {HEVC_KIND_CHECKER, HEVC_KIND_NEGATIVE, HEVC_KIND_EXTREMES},
        {HEVC_KIND_ZERO, HEVC_KIND_NEGATIVE, HEVC_KIND_EXTREMES},     {HEVC_KIND_SPARSE, HEVC_KIND_EXTREMES, HEVC_KIND_SPARSE},
    };
    double fullest = 0;
    for (size_t i = 0; i < sizeof films / sizeof *films; i++)
        for (uint32_t tools = 0; tools <= 15; tools += 5) {
            struct hevc_case c = plain_case(tools ? 160 : 96, 96, 3, films[i], tools, i % 2 ? KNI_HEVC_CONTENT_NOISE : KNI_HEVC_CONTENT_TILES, 3);
            struct outcome o = {0};
            struct hevc_stream s = {0};
            const char *bad = code_case(&c, &s, &o);
            if (!bad)
                bad = hevc_judge_avcodec(&s, &c.film);
            if (bad)
                fail_msg("%s: %s", hevc_case_text(&c), bad);
            print_message("film %zu, tools %2u: %5.2f bits a symbol, a slice filled %.3f of its bound\n", i, tools,
                          8.0 * (double)s.n_bytes / (9.0 * c.opts.width * c.opts.height), o.fullest);
            fullest = o.fullest > fullest ? o.fullest : fullest;
            hevc_stream_free(&s);
            hevc_case_free(&c);
        }
    assert_true(fullest > 0.5);
}

struct share { const struct kni_hevc_lossless *e; const struct kni_hevc_job *job; struct room *slices; size_t *sizes; uint32_t n, odd; };

static void *code_share(void *arg)
{
    const struct share *s = arg;
    for (uint32_t j = 0; j < s->n; j++) {
        uint32_t i = s->odd ? s->n - 1 - j : j; /* one thread from the front, one from the back */
        if (i % 2 == s->odd)
            s->sizes[i] = kni_hevc_lossless_slice(s->e, s->job, i, s->slices[i].at);
    }
    return NULL;
}

/* Two threads code the slices of one picture with one encoder: the bytes of one thread. */
static void two_threads(void **state)
{
    (void)state;
    for (uint64_t seed = 500; seed < 512; seed++) {
        struct hevc_case c;
        hevc_case_make(&c, seed, HEVC_CASE_SMALL);
        c.opts.n_slices = 2 + seed % 3;
        struct coder coder = coder_open(&c.opts, cpu_sets_count(N_CPU_LEVELS) - 1);
        struct room unit = room_make(kni_hevc_lossless_unit_bound(coder.e));
        for (uint32_t t = 0; t < c.film.n_pictures; t++) {
            struct kni_hevc_job job = hevc_case_job(&c, t);
            struct room slices[64];
            size_t sizes[64], at = job.first ? kni_hevc_lossless_headers(coder.e, unit.at) : 0, n_unit = kni_hevc_lossless_unit(coder.e, &job, unit.at);
            uint32_t n = kni_hevc_lossless_n_slices(coder.e);
            for (uint32_t i = 0; i < n; i++)
                slices[i] = room_make(kni_hevc_lossless_slice_bound(coder.e, i));
            struct share shares[2] = {{coder.e, &job, slices, sizes, n, 0}, {coder.e, &job, slices, sizes, n, 1}};
            pthread_t other;
            assert_int_equal(pthread_create(&other, NULL, code_share, &shares[1]), 0);
            code_share(&shares[0]);
            pthread_join(other, NULL);
            for (uint32_t i = 0; i < n; i++) {
                assert_true(at + sizes[i] <= n_unit);
                assert_memory_equal(unit.at + at, slices[i].at, sizes[i]);
                at += sizes[i];
                room_free(&slices[i]);
            }
            assert_int_equal(at, n_unit);
        }
        coder_close(&coder);
        room_free(&unit);
        hevc_case_free(&c);
    }
}

static void expect_good(const struct hevc_case *c)
{
    struct outcome o = {0};
    struct hevc_stream s = {0};
    const char *bad = code_case(c, &s, &o);
    if (!bad)
        bad = judge(c, &s, &o);
    if (bad)
        fail_msg("%s: %s", hevc_case_text(c), bad);
    hevc_stream_free(&s);
}

/* More pictures than the low bits of the picture order count can number, and slices of one row of coding tree units. */
static void many_pictures(void **state)
{
    (void)state;
    enum hevc_kind kinds[HEVC_STREAM_UNITS];
    for (uint32_t t = 0; t < HEVC_STREAM_UNITS; t++)
        kinds[t] = t % 7 == 0 ? HEVC_KIND_SPECTRAL : t % 3 ? HEVC_KIND_NEAR : HEVC_KIND_REPEAT;
    struct hevc_case c = plain_case(16, 40, HEVC_STREAM_UNITS, kinds, 15, KNI_HEVC_CONTENT_TILES, 64);
    expect_good(&c);
    hevc_case_free(&c);
}

/* Every plane has a stride of its own, now and before. */
static void strides_differ(void **state)
{
    (void)state;
    struct hevc_case c;
    hevc_case_make(&c, 77, HEVC_CASE_SMALL);
    const uint32_t w = c.opts.width, h = c.opts.height;
    struct coder coder = coder_open(&c.opts, cpu_sets_count(N_CPU_LEVELS) - 1);
    struct room one = room_make(kni_hevc_lossless_unit_bound(coder.e)), other = room_make(kni_hevc_lossless_unit_bound(coder.e));
    assert_true(c.film.n_pictures == 2 && !c.flat[0]);
    for (uint32_t t = 0; t < 2; t++) {
        struct kni_hevc_job job = hevc_case_job(&c, t);
        size_t n = kni_hevc_lossless_unit(coder.e, &job, one.at);
        uint8_t *copies[6] = {0};
        for (uint32_t j = 0; j < 3 + 3 * t; j++) {
            struct kni_hevc_planes *p = j < 3 ? &job.now : &job.before;
            size_t stride = w + 1 + j * 11;
            copies[j] = malloc(stride * h);
            assert_non_null(copies[j]);
            for (uint32_t y = 0; y < h; y++)
                memcpy(copies[j] + y * stride, p->plane[j % 3] + y * p->stride[j % 3], w);
            p->plane[j % 3] = copies[j];
            p->stride[j % 3] = stride;
        }
        assert_int_equal(kni_hevc_lossless_unit(coder.e, &job, other.at), n);
        assert_memory_equal(one.at, other.at, n);
        for (uint32_t j = 0; j < 6; j++)
            free(copies[j]);
    }
    coder_close(&coder);
    room_free(&one);
    room_free(&other);
    hevc_case_free(&c);
}

/* A flipped bit of a slice ends in an error or in a picture that differs, which the container's checksum would have told before: never in a crash,
 * nearly never in nothing (bits that end a slice, or say how contexts begin that are not used, may change and mean the same). */
static void damage_shows(void **state)
{
    (void)state;
    uint64_t rng = hevc_mix(11);
    uint32_t n_flips = 0, n_noticed = 0;
    for (uint64_t seed = 700; seed < 740; seed++) {
        struct hevc_case c;
        struct hevc_stream s = {0};
        struct outcome o;
        hevc_case_make(&c, seed, HEVC_CASE_TINY);
        assert_null(code_case(&c, &s, &o));
        for (uint32_t i = 0; i < 12 && s.n_bytes > 200; i++, n_flips++) {
            size_t at = 120 + hevc_random(&rng) % (s.n_bytes - 120); /* parameter sets and the first slice's header lie before */
            uint8_t bit = (uint8_t)(1u << hevc_random(&rng) % 8);
            s.bytes[at] ^= bit;
            n_noticed += hevc_judge_avcodec(&s, &c.film) != NULL;
            s.bytes[at] ^= bit;
        }
        assert_null(hevc_judge_avcodec(&s, &c.film));
        hevc_stream_free(&s);
        hevc_case_free(&c);
    }
    print_message("%u of %u flipped bits noticed\n", n_noticed, n_flips);
    assert_true(n_flips > 200 && n_noticed >= n_flips * 95 / 100);
}

static void out_of_range(void **state)
{
    (void)state;
    static const struct kni_hevc_lossless_opts good = {.width = 64, .height = 80, .tools = 15, .content = KNI_HEVC_CONTENT_TILES, .n_slices = 1};
    struct kni_hevc_lossless_opts bad[10];
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++)
        bad[i] = good;
    bad[0].width = KNI_HEVC_LOSSLESS_MIN_SIDE - 1;
    bad[1].width = KNI_HEVC_LOSSLESS_MAX_SIDE + 1;
    bad[2].height = KNI_HEVC_LOSSLESS_MIN_SIDE - 1;
    bad[3].height = KNI_HEVC_LOSSLESS_MAX_SIDE + 1;
    bad[4].width = 0;
    bad[5].height = UINT32_MAX;
    bad[6].tools = KNI_HEVC_TOOLS_ALL + 1;
    bad[7].content = (enum kni_hevc_content)2;
    bad[8].n_slices = 65;
    bad[9].n_slices = UINT32_MAX;
    struct room memory = room_make(kni_hevc_lossless_bytes(&good));
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        struct kni_hevc_lossless *e = (void *)memory.at;
        struct kn_err err = {0};
        assert_int_equal(kni_hevc_lossless_bytes(&bad[i]), 0);
        assert_int_equal(kni_hevc_lossless_init(&e, memory.at, &bad[i], &err), KN_E_ARG);
        assert_true(err.text[0] && !e);
        assert_int_equal(kni_hevc_lossless_init(&e, memory.at, &bad[i], NULL), KN_E_ARG);
    }
    room_free(&memory);
    enum { LEAST = KNI_HEVC_LOSSLESS_MIN_SIDE, MOST = KNI_HEVC_LOSSLESS_MAX_SIDE };
    static const uint32_t ends[][2] = {{LEAST, LEAST}, {MOST, LEAST}, {LEAST, MOST}, {MOST - 7, 23}, {23, MOST - 7}};
    static const enum hevc_kind kinds[2] = {HEVC_KIND_SPECTRAL, HEVC_KIND_NEAR};
    for (size_t i = 0; i < sizeof ends / sizeof *ends; i++) { /* the ends of the range, and as many slices as there may be */
        struct hevc_case c = plain_case(ends[i][0], ends[i][1], 2, kinds, 15, KNI_HEVC_CONTENT_TILES, ends[i][1] > 4096 ? 64 : 1);
        expect_good(&c);
        hevc_case_free(&c);
    }
}

/* Both levels, pictures like a spectral preset's: a flat one, then rows of falling loudness. */
static void bench(void)
{
    static const enum hevc_kind kinds[2] = {HEVC_KIND_FLAT, HEVC_KIND_SPECTRAL};
    struct hevc_case c = plain_case(256, 2048, 2, kinds, 0, KNI_HEVC_CONTENT_NOISE, 1);
    uint64_t rng = hevc_mix(3);
    for (uint32_t k = 0; k < 3; k++)
        for (uint32_t y = 0; y < 2048; y++)
            for (uint32_t x = 0; x < 256; x++)
                hevc_film_row(&c.film, 1, k, y)[x] = hevc_clip(128 + hevc_laplace(&rng, 3.0 * exp(-4.0 * y / 2048)));
    c.row_scale = malloc(2048 * sizeof *c.row_scale);
    assert_non_null(c.row_scale);
    hevc_measure_rows(&c.film, c.row_scale);
    c.opts.row_scale = c.row_scale;
    for (uint32_t tools = 0; tools <= 15; tools += 15)
        for (uint32_t level = 0; level < cpu_sets_count(N_CPU_LEVELS); level++) {
            double seconds;
            size_t n = 0;
            c.opts.tools = tools;
            struct coder coder = coder_open(&c.opts, level);
            struct room unit = room_make(kni_hevc_lossless_unit_bound(coder.e));
            struct kni_hevc_job job = hevc_case_job(&c, 1);
            BENCH_SECONDS(seconds, n = kni_hevc_lossless_unit(coder.e, &job, unit.at));
            printf("%-9s tools %2u: %6.1f MB/s of symbols, %.3f bits each\n", cpu_set_names[level], tools, 3 * 256 * 2048 / seconds * 1e-6,
                   8.0 * (double)n / (3 * 256 * 2048));
            coder_close(&coder);
            room_free(&unit);
        }
    hevc_case_free(&c);
}

static uint64_t setting(const char *name, uint64_t otherwise)
{
    const char *text = getenv(name);
    return text && *text ? strtoull(text, NULL, 0) : otherwise;
}

int main(int argc, char **argv)
{
    bool want_bench = check_start(argc, argv);
    for (int i = 1; i < argc; i++) {
        if (!strcmp(argv[i], "--long"))
            long_run = true, first_case = setting("KN_LONG_FIRST", 1000), n_cases = setting("KN_LONG_COUNT", 10000);
        else if (!strcmp(argv[i], "--case") && i + 1 < argc)
            first_case = strtoull(argv[++i], NULL, 0), n_cases = 1;
    }
    if (want_bench) {
        bench();
        return 0;
    }
    const struct CMUnitTest tests[] = {cmocka_unit_test(random_films), cmocka_unit_test(bounds_are_near), cmocka_unit_test(two_threads),
                                       cmocka_unit_test(many_pictures), cmocka_unit_test(strides_differ), cmocka_unit_test(damage_shows),
                                       cmocka_unit_test(out_of_range)};
    const struct CMUnitTest film[] = {cmocka_unit_test(random_films)};
    return long_run || n_cases == 1 ? cmocka_run_group_tests(film, NULL, NULL) : cmocka_run_group_tests(tests, NULL, NULL);
}
