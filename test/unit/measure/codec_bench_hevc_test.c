/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Encoders of video measured over a tiny model: what is measured are the pictures that chunks hold, sums and entropies are those of the
 * definitions, a stream that is not what it claims to be is noticed, wrong options are refused with a sentence. Speeds are not judged.
 */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "base/alloc.h"
#include "codec/spectral/layout_spectral.h"
#include "codec/spectral/spectral_order.h"
#include "measure/bench_slices.h"
#include "support/engine_bed.h"
#include "support/tiny_profile.h"

#define PREFIX 512u
#define N_CHUNKS (PREFIX / KNI_EVAL_CHUNK)

static struct kn_model *model;
static struct kni_eval_bed bed;
static struct kni_profile *profile;
static int32_t tokens[PREFIX];
static char model_path[256], profile_path[256];

struct rows {
    struct kn_codec_bench_hevc_row row[256];
    uint32_t n;
};

static void on_row(void *user, const struct kn_codec_bench_hevc_row *row)
{
    struct rows *r = user;
    assert_true(r->n < 256);
    r->row[r->n++] = *row; /* names are static in the library */
}

static void on_progress(void *user, const char *phase, double done)
{
    (void)user;
    assert_true(*phase && done >= 0 && done <= 1);
}

static const struct kn_codec_bench_hevc_row *find(const struct rows *r, const char *preset, const char *part, const char *encoder, const char *tools)
{
    for (uint32_t i = 0; i < r->n; i++) {
        const struct kn_codec_bench_hevc_row *x = &r->row[i];
        if (!strcmp(x->preset, preset) && !strcmp(x->part, part) && !strcmp(x->encoder, encoder) && !strcmp(x->tools ? x->tools : "", tools))
            return x;
    }
    fail_msg("no row %s %s %s %s", preset, part, encoder, tools);
    return NULL;
}

static struct kn_codec_bench_hevc_opts bench_opts(struct rows *r)
{
    return (struct kn_codec_bench_hevc_opts){.size = sizeof(struct kn_codec_bench_hevc_opts),
                                             .tokens = tokens,
                                             .n_tokens = PREFIX,
                                             .prefix = PREFIX,
                                             .profile_path = profile_path,
                                             .seconds = 1e-6,
                                             .encoders = "ours",
                                             .on_row = on_row,
                                             .progress = on_progress,
                                             .user = r};
}

static int setup(void **state)
{
    (void)state;
    struct kn_err err = {0};
    struct kn_tiny_opts o = {.seed = 7, .n_ctx = 1024};
    kn_bed_path(model_path, "hevc.gguf");
    kn_bed_path(profile_path, "hevc.knp");
    assert_int_equal(kn_tiny_model_write(model_path, &o), 0);
    struct kn_model_opts mo = {.size = sizeof mo, .path = model_path};
    if (kn_model_open(&model, &mo, &err))
        fail_msg("%s", err.text);
    kn_bed_prompt(tokens, PREFIX, 3);
    struct kn_tiny_profile_opts po = {.n_layer = 3, .n_kv_head = 2, .d_head = 32, .n_group = 2, .n_sinks = 4};
    memcpy(po.fingerprint, kn_model_info(model)->fingerprint, 16);
    profile = kn_tiny_profile_make(&po);
    void *data;
    size_t n;
    assert_int_equal(kni_profile_write(profile, &data, &n, &err), KN_OK);
    assert_int_equal(kn_file_write(profile_path, data, n), 0);
    kni_free(data);
    struct kni_eval_bed_opts bo = {.model = model, .n_prefix = PREFIX, .n_after = 1, .n_threads = 2};
    assert_int_equal(kni_eval_bed_open(&bed, &bo, &err), KN_OK);
    assert_int_equal(kni_eval_bed_prefill(&bed, tokens, NULL, NULL, "prefix", &err), KN_OK);
    return 0;
}

static int teardown(void **state)
{
    (void)state;
    kni_eval_bed_close(&bed);
    kni_profile_close(&profile);
    kn_model_close(&model);
    unlink(model_path);
    unlink(profile_path);
    return 0;
}

/* A chunk as stores hold it, coded by our encoder. */
static void *chunk_of(enum kn_preset preset, enum kn_hevc_tools tools, uint32_t chunk, size_t *n)
{
    struct kni_codec *codec = NULL;
    struct kni_codec_opts co = {.preset = preset, .profile = profile, .backend = KN_BACKEND_HEVC, .hevc = {.encoder = KN_HEVC_ENCODER_KINEMA, .tools = tools}};
    struct kni_chunk_meta m = {.preset = preset, .first_token = chunk * KNI_EVAL_CHUNK, .n_tokens = KNI_EVAL_CHUNK, .kv = bed.kv};
    struct kni_kv_host view = kni_eval_bed_clean(&bed);
    struct kn_err err = {0};
    void *data;
    memcpy(m.fingerprint, profile->fingerprint, 16);
    assert_int_equal(kni_codec_open(&codec, &co, &err), KN_OK);
    if (kni_chunk_encode(codec, &m, &view, &data, n, &err))
        fail_msg("%s", err.text);
    kni_codec_close(&codec);
    return data;
}

static uint64_t video_bytes(enum kn_preset preset, enum kn_hevc_tools tools)
{
    uint64_t sum = 0;
    for (uint32_t chunk = 0; chunk < N_CHUNKS; chunk++) {
        struct kni_container c;
        size_t n, size;
        void *data = chunk_of(preset, tools, chunk, &n);
        assert_int_equal(kni_container_open(&c, data, n, NULL), KN_OK);
        for (uint32_t i = 0; i < c.header.n_sections; i++) {
            enum kni_section_kind kind;
            uint32_t index;
            const uint8_t *bytes;
            assert_int_equal(kni_container_section(&c, i, &kind, &index, &bytes, &size, NULL), KN_OK);
            sum += kind == KNI_SECTION_KIND_TILES_VIDEO || kind == KNI_SECTION_KIND_SPECTRAL_VIDEO ? size : 0;
        }
        kni_free(data);
    }
    return sum;
}

static uint64_t symbols_of(const char *preset, enum kni_profile_preset p, bool is_v)
{
    uint64_t n = 0;
    if (!strcmp(preset, "tiles"))
        return (uint64_t)PREFIX * bed.kv.n_layer * bed.kv.n_kv_head * bed.kv.d_head;
    for (uint32_t part = is_v; part < profile->n_parts; part += 2)
        n += (uint64_t)kni_spectral_rows_of(profile, part, p) * PREFIX;
    return n;
}

static void rows_are_of_what_chunks_hold(void **state)
{
    (void)state;
    static const char *const presets[] = {"fine", "medium", "small", "tiles"}, *const parts[] = {"K", "V", "K+V"}, *const tools[] = {"full", "basic"};
    static const enum kn_preset ids[] = {KN_PRESET_FINE, KN_PRESET_MEDIUM, KN_PRESET_SMALL, KN_PRESET_TILES};
    static struct rows r;
    struct kn_err err = {0};
    struct kn_codec_bench_hevc_opts o = bench_opts(&r);
    if (kn_codec_bench_hevc(model, &o, &err))
        fail_msg("%s", err.text);
    assert_int_equal(r.n, 4 * 2 * 3);
    for (uint32_t i = 0; i < r.n; i++) {
        const struct kn_codec_bench_hevc_row *x = &r.row[i];
        assert_string_equal(x->preset, presets[i / 6]);
        assert_string_equal(x->part, parts[i % 3]);
        assert_string_equal(x->tools, tools[i / 3 % 2]);
        assert_true(x->exact && x->n_threads == 2);
        assert_true(x->encode_mb_s > 0 && x->encode_wall_mb_s > 0 && x->decode_mb_s > 0);
        assert_true(x->streams_mb_s > 0 && x->slices_mb_s > 0 && x->streams_core_mb_s > 0 && x->slices_core_mb_s > 0);
        assert_true(i / 6 == 3 ? x->slices_bytes >= x->n_bytes : x->slices_bytes > x->n_bytes); /* more slices, where pictures have rows for them */
        if (i % 3 < 2) {
            assert_int_equal(x->n_symbols, symbols_of(x->preset, i / 6, i % 3));
            continue;
        }
        assert_int_equal(x->n_symbols, x[-1].n_symbols + x[-2].n_symbols);
        assert_int_equal(x->n_bytes, x[-1].n_bytes + x[-2].n_bytes);
        assert_int_equal(x->n_bytes, video_bytes(ids[i / 6], i / 3 % 2 ? KN_HEVC_TOOLS_BASIC : KN_HEVC_TOOLS_FULL));
        assert_int_equal(x->slices_bytes, x[-1].slices_bytes + x[-2].slices_bytes);
        assert_true(x->entropy_bytes == x[-1].entropy_bytes + x[-2].entropy_bytes);
        assert_true(i / 6 == 3 ? x->entropy_bytes == 0 : x->entropy_bytes > 0 && x->entropy_bytes < (double)x->n_bytes);
        double times = (double)x[-2].n_symbols / x[-2].encode_mb_s + (double)x[-1].n_symbols / x[-1].encode_mb_s;
        assert_true(fabs((double)x->n_symbols / x->encode_mb_s / times - 1) < 1e-6);
    }
}

static void ablations_take_tools_apart(void **state)
{
    (void)state;
    static struct rows r;
    struct kn_err err = {0};
    struct kn_codec_bench_hevc_opts o = bench_opts(&r);
    o.only = "medium,tiles";
    o.ablation = true;
    o.n_threads = 1;
    if (kn_codec_bench_hevc(model, &o, &err))
        fail_msg("%s", err.text);
    assert_int_equal(r.n, 2 * (2 + 10) * 3);
    for (uint32_t i = 0; i < r.n; i++) {
        assert_true(r.row[i].exact && r.row[i].n_bytes > 0 && r.row[i].encode_mb_s > 0);
        assert_true(r.row[i].streams_mb_s == 0 && r.row[i].slices_mb_s == 0);
    }
    for (uint32_t i = 0; i < 2; i++) {
        const char *preset = i ? "tiles" : "medium";
        assert_int_equal(find(&r, preset, "K+V", "ours", "all")->n_bytes, find(&r, preset, "K+V", "ours", "full")->n_bytes);
        assert_int_equal(find(&r, preset, "K+V", "ours", "none")->n_bytes, find(&r, preset, "K+V", "ours", "basic")->n_bytes);
        assert_int_not_equal(find(&r, preset, "K+V", "ours", "rice")->n_bytes, find(&r, preset, "K+V", "ours", "none")->n_bytes);
        assert_int_not_equal(find(&r, preset, "K+V", "ours", "all but rice")->n_bytes, find(&r, preset, "K+V", "ours", "all")->n_bytes);
    }
}

/* The order of columns changes bytes and no row's entropy. */
static void columns_stand_as_told(void **state)
{
    (void)state;
    static struct rows r[2];
    struct kn_err err = {0};
    for (uint32_t i = 0; i < 2; i++) {
        struct kn_codec_bench_hevc_opts o = bench_opts(&r[i]);
        o.only = "medium,tiles";
        o.tools = "full";
        o.n_threads = 1;
        o.text_order = i;
        if (kn_codec_bench_hevc(model, &o, &err))
            fail_msg("%s", err.text);
    }
    const struct kn_codec_bench_hevc_row *ordered = find(&r[0], "medium", "K+V", "ours", "full"), *text = find(&r[1], "medium", "K+V", "ours", "full");
    assert_int_equal(ordered->order_bytes, N_CHUNKS * kni_spectral_order_bytes(profile->n_parts, KNI_EVAL_CHUNK));
    assert_int_equal(text->order_bytes, 0);
    assert_int_not_equal(ordered->n_bytes, text->n_bytes);
    assert_true(fabs(ordered->entropy_bytes / text->entropy_bytes - 1) < 1e-9);
    assert_int_equal(find(&r[0], "tiles", "V", "ours", "full")->n_bytes, find(&r[1], "tiles", "V", "ours", "full")->n_bytes);
    assert_int_equal(find(&r[0], "tiles", "V", "ours", "full")->order_bytes, 0);
}

/* By the definition: -sum of p log2 p, a row a time. */
static double entropy_of(const struct kni_film *f, uint32_t is_v, enum kni_profile_preset preset)
{
    double bits = 0;
    for (uint32_t stream = 0; stream < f->n_streams; stream++) {
        const uint8_t *planes[3];
        kni_film_planes(f, stream, 1, planes);
        for (uint32_t k = 0; k < 3; k++) {
            uint32_t part = (stream / f->n_chunks * 3 + k) * 2 + is_v;
            for (uint32_t row = 0; part < profile->n_parts && row < kni_spectral_rows_of(profile, part, preset); row++)
                for (uint32_t s = 0; s < 256; s++) {
                    double p = 0;
                    for (uint32_t t = 0; t < KNI_EVAL_CHUNK; t++)
                        p += planes[k][row * f->width + t] == s;
                    p /= KNI_EVAL_CHUNK;
                    bits -= p > 0 ? KNI_EVAL_CHUNK * p * log2(p) : 0;
                }
        }
    }
    return bits / 8;
}

static void films_have_the_rows_entropy(void **state)
{
    (void)state;
    for (uint32_t is_v = 0; is_v < 2; is_v++) {
        struct kni_film f;
        assert_int_equal(kni_film_make(&f, &bed, profile, KN_PRESET_SMALL, is_v, is_v, NULL), KN_OK);
        assert_int_equal(f.order_bytes, is_v ? 0 : N_CHUNKS * kni_spectral_order_bytes(profile->n_parts, KNI_EVAL_CHUNK) / 2);
        assert_int_equal(f.n_streams, N_CHUNKS);
        assert_int_equal(f.n_pictures, 2);
        double want = entropy_of(&f, is_v, KNI_PROFILE_PRESET_SMALL);
        assert_true(want > 100 && fabs(f.entropy_bytes / want - 1) < 1e-9);
        const uint8_t *planes[3];
        kni_film_planes(&f, 1, 0, planes);
        for (size_t i = 0; i < (size_t)f.width * f.height * 3; i++)
            assert_int_equal(planes[i % 3][i / 3], 128);
        kni_film_free(&f);
    }
}

static void other_streams_are_noticed(void **state)
{
    (void)state;
    for (uint32_t round = 0; round < 2; round++) {
        struct kni_film f;
        struct kni_slices *slices = NULL;
        struct kni_container_writer w[2] = {{.used_bytes = 0}};
        struct kni_hevc_decoder *decoder = NULL;
        struct kn_err err = {0};
        assert_int_equal(kni_film_make(&f, &bed, profile, round ? KN_PRESET_TILES : KN_PRESET_MEDIUM, 0, false, &err), KN_OK);
        assert_int_equal(kni_slices_open(&slices, &f, KNI_HEVC_TOOLS_ALL, round, round ? bed.threads : NULL, &err), KN_OK);
        for (uint32_t i = 0; i < 2; i++)
            assert_int_equal(kni_slices_code(slices, i, &w[i], &err), KN_OK);
        for (uint32_t i = 0; i < 4; i++) {
            enum kn_status status = kni_film_compare(&f, i / 2, w[i % 2].data, w[i % 2].used_bytes, &decoder, &err);
            assert_int_equal(status, i / 2 == i % 2 ? KN_OK : KN_E_FORMAT);
            if (status)
                assert_non_null(strstr(err.text, "differs in row"));
        }
        uint8_t *planes = f.samples + (size_t)f.width * f.height * 2; /* the last sample of a picture */
        planes[(size_t)f.width * f.height - 1] ^= 1;
        assert_int_equal(kni_film_compare(&f, 0, w[0].data, w[0].used_bytes, &decoder, &err), KN_E_FORMAT);
        assert_int_equal(kni_film_compare(&f, 1, w[1].data, w[1].used_bytes - 1, &decoder, &err), KN_E_FORMAT);
        for (uint32_t i = 0; i < 2; i++)
            kni_container_writer_fini(&w[i]);
        kni_hevc_decoder_close(&decoder);
        kni_slices_close(&slices);
        kni_film_free(&f);
    }
}

static void refuses(struct kn_codec_bench_hevc_opts o, const char *sentence)
{
    struct kn_err err = {0};
    assert_int_equal(kn_codec_bench_hevc(model, &o, &err), KN_E_ARG);
    if (!strstr(err.text, sentence))
        fail_msg("\"%s\" does not say \"%s\"", err.text, sentence);
}

static void wrong_options_are_refused(void **state)
{
    (void)state;
    static struct rows r;
    struct kn_codec_bench_hevc_opts o = bench_opts(&r);
    struct kn_err err = {0};
    assert_int_equal(kn_codec_bench_hevc(NULL, &o, &err), KN_E_ARG);
#define REFUSES(field, value, sentence) \
    do { \
        struct kn_codec_bench_hevc_opts x = o; \
        x.field = value; \
        refuses(x, sentence); \
    } while (0)
    REFUSES(n_slices, 65, "65 slices a picture");
    REFUSES(size, 0, "size of struct kn_codec_bench_hevc_opts");
    REFUSES(prefix, 300, "multiple of 256");
    REFUSES(n_tokens, PREFIX - 1, "multiple of 256");
    REFUSES(tokens, NULL, "needs tokens");
    REFUSES(on_row, NULL, "on_row");
    REFUSES(encoders, "ours,x266", "no encoder \"x266\"");
    REFUSES(encoders, "", "no encoder \"\"");
    REFUSES(tools, "full,", "no set of tools \"\"");
    REFUSES(only, "exact", "no preset over video \"exact\"");
#undef REFUSES
    o.profile_path = NULL;
    o.tools = "basic";
    assert_int_equal(kn_codec_bench_hevc(model, &o, &err), KN_OK);
    assert_int_equal(r.n, 3); /* tiles alone */
    assert_string_equal(r.row[0].preset, "tiles");
}

static void failing_allocations_are_reported(void **state)
{
    (void)state;
    uint32_t n_failed = 0;
    for (uint64_t n = 1;; n += n / 8 + 1) {
        static struct rows r;
        struct kn_codec_bench_hevc_opts o = bench_opts(&r);
        struct kn_err err = {0};
        r.n = 0;
        o.only = "small,tiles";
        o.tools = "full";
        kni_alloc_fault_arm(n, false);
        enum kn_status status = kn_codec_bench_hevc(model, &o, &err);
        bool hit = kni_alloc_fault_hit();
        kni_alloc_fault_arm(0, false);
        if (!hit) {
            assert_int_equal(status, KN_OK);
            break;
        }
        n_failed += status == KN_E_NOMEM;
        assert_true(status == KN_E_NOMEM ? err.text[0] != 0 : status == KN_OK);
    }
    assert_true(n_failed > 10);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(rows_are_of_what_chunks_hold), cmocka_unit_test(ablations_take_tools_apart), cmocka_unit_test(films_have_the_rows_entropy),
        cmocka_unit_test(columns_stand_as_told),
        cmocka_unit_test(other_streams_are_noticed),    cmocka_unit_test(wrong_options_are_refused),  cmocka_unit_test(failing_allocations_are_reported),
    };
    return cmocka_run_group_tests(tests, setup, teardown);
}
