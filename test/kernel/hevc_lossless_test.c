/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The lossless HEVC encoder against two foreign decoders: random films and options (hevc_random.h), each coded at every CPU level of the machine, as
 * whole units and as slices in reverse order, into buffers of exactly the promised size. All must be the same bytes and decode bit for bit.
 *
 *     hevc_lossless_test                                 200 cases, some seconds
 *     hevc_lossless_test --count 10000 --first 1000      the long tier (ctest -C long -L long): cases 1000..10999, larger ones among them
 *     hevc_lossless_test --case 1234                     one of them again
 *     hevc_lossless_test --bench                         MB/s of symbols, bytes and bounds
 */
#include "check.h"

#include <pthread.h>

#include "base/alloc.h"
#include "codec/hevc/hevc_syntax.h"
#include "support/hevc_random.h"

static uint32_t levels[3];
static const char *const level_names[3] = {"reference", "AVX2", "AVX-512"};
static uint32_t n_levels;
static uint64_t first_case = 1, n_cases = 200;
static bool long_run;

static void find_levels(void)
{
    uint32_t all = kni_cpu_flags_all();
    levels[n_levels++] = 0;
    if (all & KNI_CPU_FLAG_AVX2)
        levels[n_levels++] = KNI_CPU_FLAG_AVX2;
    if (all & KNI_CPU_FLAG_AVX512)
        levels[n_levels++] = UINT32_MAX;
}

/* ---- an encoder between canaries */

struct coder { void *memory; struct kni_hevc_lossless *e; };

static void *guarded_64(size_t bytes, void **raw) /* 64-aligned payload; raw is what guarded_check_free takes */
{
    uint8_t *p = *raw = guarded(bytes + 64);
    size_t shift = (64 - (uintptr_t)p % 64) % 64;
    memset(p, 0xa5, bytes + 64);
    return p + shift;
}

static void check_around(const uint8_t *raw, const uint8_t *payload, size_t bytes)
{
    for (const uint8_t *p = raw; p < raw + bytes + 64; p++)
        if (p < payload || p >= payload + bytes)
            assert_int_equal(*p, 0xa5);
}

/* Opened at a level, which the encoder may note. */
static struct kni_hevc_lossless *coder_open(const struct kni_hevc_lossless_opts *o, uint32_t level, void **raw)
{
    struct kn_err err = {0};
    struct kni_hevc_lossless *e = NULL;
    size_t bytes = kni_hevc_lossless_bytes(o);
    assert_true(bytes > 0);
    kni_cpu_set_mask(levels[level]);
    if (kni_hevc_lossless_init(&e, guarded_64(bytes, raw), o, &err) != KN_OK)
        fail_msg("%s", err.text);
    assert_non_null(e);
    return e;
}

static void coder_close(struct kni_hevc_lossless *e, const struct kni_hevc_lossless_opts *o, void *raw)
{
    check_around(raw, (const uint8_t *)e, kni_hevc_lossless_bytes(o));
    kni_cpu_set_mask(UINT32_MAX);
    guarded_check_free(raw);
}

/* One access unit from slices, last one first, each in a buffer of its bound; the largest share of a bound that was used. */
static size_t unit_of_slices(const struct kni_hevc_lossless *e, const struct kni_hevc_job *job, uint8_t *out, double *fullest)
{
    uint32_t n = kni_hevc_lossless_n_slices(e);
    uint8_t *slices[64];
    size_t sizes[64], total = job->first ? kni_hevc_lossless_headers(e, out) : 0;
    assert_true(n >= 1 && n <= 64 && total <= 256);
    for (uint32_t i = n; i-- > 0;) {
        size_t bound = kni_hevc_lossless_slice_bound(e, i);
        slices[i] = guarded(bound);
        sizes[i] = kni_hevc_lossless_slice(e, job, i, slices[i]);
        assert_true(sizes[i] > 6 && sizes[i] <= bound);
        double share = (double)sizes[i] / (double)bound;
        *fullest = share > *fullest ? share : *fullest;
    }
    for (uint32_t i = 0; i < n; i++) {
        memcpy(out + total, slices[i], sizes[i]);
        total += sizes[i];
        guarded_check_free(slices[i]);
    }
    return total;
}

/* ---- one case */

struct outcome { double fullest; size_t n_samples, n_bytes; };

/* Codes the case in every way that there is. NULL, or what is wrong; *s is the stream. */
static const char *code_case(const struct hevc_case *c, struct hevc_stream *s, struct outcome *outcome)
{
    const char *bad = NULL;
    for (uint32_t level = 0; level < n_levels && !bad; level++) {
        void *raw;
        struct kni_hevc_lossless *e = coder_open(&c->opts, level, &raw);
        size_t bound = kni_hevc_lossless_unit_bound(e), sum = 256, at = 0;
        for (uint32_t i = 0; i < kni_hevc_lossless_n_slices(e); i++)
            sum += kni_hevc_lossless_slice_bound(e, i);
        assert_true(bound <= sum);
        uint8_t *unit = guarded(bound), *room = guarded(sum);
        uint64_t n_allocs = kni_alloc_get_stats(KNI_ALLOC_TAG_COUNT).n_allocs;
        for (uint32_t t = 0; t < c->film.n_pictures && !bad; t++) {
            struct kni_hevc_job job = hevc_case_job(c, t);
            size_t n = kni_hevc_lossless_unit(e, &job, unit);
            if (n > bound)
                bad = hevc_wrong("picture %u has %zu bytes, its bound is %zu", t, n, bound);
            else if (level == 0)
                hevc_stream_add(s, unit, n);
            else if (n != s->unit_bytes[t] || memcmp(unit, s->bytes + at, n))
                bad = hevc_wrong("%s: picture %u is other bytes than the reference's (%zu, %zu)", level_names[level], t, n, s->unit_bytes[t]);
            size_t m = bad ? n : unit_of_slices(e, &job, room, &outcome->fullest);
            if (!bad && (m != n || memcmp(unit, room, n)))
                bad = hevc_wrong("%s: slices of picture %u in reverse order are other bytes than its unit (%zu, %zu)", level_names[level], t, m, n);
            at += n;
        }
        if (!bad && kni_alloc_get_stats(KNI_ALLOC_TAG_COUNT).n_allocs != n_allocs)
            bad = hevc_wrong("%s: coding pictures allocates", level_names[level]);
        coder_close(e, &c->opts, raw);
        guarded_check_free(unit);
        guarded_check_free(room);
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
        bad = check_units(&c, &s);
    if (!bad)
        bad = hevc_judge_avcodec(&s, &c.film);
    if (!bad)
        bad = hevc_judge_de265(&s, &c.film, c.opts.tools);
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
    print_message("%llu streams, %.1f million samples, %.3f bits each; a slice filled %.3f of its bound at most\n", (unsigned long long)n_cases, (double)all.n_samples * 1e-6,
                  8 * (double)all.n_bytes / (double)all.n_samples, all.fullest);
    if (n_bad)
        fail_msg("%llu of %llu streams are wrong", (unsigned long long)n_bad, (unsigned long long)n_cases);
}

int main(int argc, char **argv)
{
    check_start(argc, argv);
    find_levels();
    for (int i = 1; i + 1 < argc; i++) {
        if (!strcmp(argv[i], "--count"))
            n_cases = strtoull(argv[++i], NULL, 0);
        else if (!strcmp(argv[i], "--first"))
            first_case = strtoull(argv[++i], NULL, 0);
        else if (!strcmp(argv[i], "--case"))
            first_case = strtoull(argv[++i], NULL, 0), n_cases = 1;
    }
    long_run = n_cases > 1000;
    const struct CMUnitTest tests[] = {cmocka_unit_test(random_films)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
