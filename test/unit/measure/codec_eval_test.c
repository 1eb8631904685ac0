/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Evaluations over a tiny model: methods that change nothing cost no quality, coarser ones cost more, sums and averages are those of the
 * public definitions, facts are asked for, tilings are all tried, wrong options are refused with a sentence.
 */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "base/alloc.h"
#include "support/engine_bed.h"
#include "support/tiny_profile.h"

#define PREFIX 256u
#define CONTINUE 40u
#define N_CALIBRATION 480u

static struct kn_model *model;
static int32_t tokens[PREFIX + CONTINUE], learned[N_CALIBRATION];
static char model_path[256], profile_path[256];

struct rows {
    struct kn_eval_row row[64];
    uint32_t n;
    struct kn_needle_row needle[16];
    uint32_t n_needle;
    struct kn_search_row search[32];
    uint32_t n_search;
    double last_done;
};

static void on_row(void *user, const struct kn_eval_row *row)
{
    struct rows *r = user;
    assert_true(r->n < 64);
    r->row[r->n++] = *row; /* names are static in the library */
}

static void on_needle(void *user, const struct kn_needle_row *row)
{
    struct rows *r = user;
    assert_true(r->n_needle < 16);
    r->needle[r->n_needle++] = *row;
}

static void on_search(void *user, const struct kn_search_row *row)
{
    struct rows *r = user;
    assert_true(r->n_search < 32);
    r->search[r->n_search++] = *row;
}

static void on_progress(void *user, const char *phase, double done)
{
    assert_true(*phase && done >= 0 && done <= 1);
    ((struct rows *)user)->last_done = done;
}

static const struct kn_eval_row *find(const struct rows *r, const char *method, const char *preset)
{
    for (uint32_t i = 0; i < r->n; i++)
        if (!strcmp(r->row[i].method, method) && !strcmp(r->row[i].preset, preset))
            return &r->row[i];
    fail_msg("no row %s %s", method, preset);
    return NULL;
}

static struct kn_eval_opts eval_opts(struct rows *r)
{
    return (struct kn_eval_opts){.size = sizeof(struct kn_eval_opts), .tokens = tokens, .n_tokens = PREFIX + CONTINUE, .prefix = PREFIX, .continue_ = CONTINUE, .n_threads = 2,
                                 .on_row = on_row, .progress = on_progress, .user = r};
}

static int setup(void **state)
{
    (void)state;
    struct kn_err err = {0};
    struct kn_tiny_opts o = {.seed = 7, .n_ctx = 512};
    kn_bed_path(model_path, "eval.gguf");
    kn_bed_path(profile_path, "eval.knp");
    assert_int_equal(kn_tiny_model_write(model_path, &o), 0);
    struct kn_model_opts mo = {.size = sizeof mo, .path = model_path};
    if (kn_model_open(&model, &mo, &err))
        fail_msg("%s", err.text);
    kn_bed_prompt(tokens, PREFIX + CONTINUE, 3);
    kn_bed_prompt(learned, N_CALIBRATION, 4);
    struct kn_tiny_profile_opts po = {.n_layer = 3, .n_kv_head = 2, .d_head = 32, .n_group = 2, .n_sinks = 4};
    memcpy(po.fingerprint, kn_model_info(model)->fingerprint, 16);
    struct kni_profile *p = kn_tiny_profile_make(&po);
    void *data;
    size_t n;
    assert_int_equal(kni_profile_write(p, &data, &n, &err), KN_OK);
    assert_int_equal(kn_file_write(profile_path, data, n), 0);
    kni_free(data);
    kni_profile_close(&p);
    return 0;
}

static int teardown(void **state)
{
    (void)state;
    kn_model_close(&model);
    unlink(model_path);
    unlink(profile_path);
    return 0;
}

static void test_rows(void **state)
{
    (void)state;
    static struct rows r;
    struct kn_err err = {0};
    struct kn_eval_opts o = eval_opts(&r);
    o.profile_path = profile_path;
    if (kn_codec_eval(model, &o, &err))
        fail_msg("%s", err.text);
    uint64_t raw = (uint64_t)PREFIX * 3 * 2 * 2 * 32 * 2;
    assert_int_equal(find(&r, "raw", "16-bit")->bytes, raw);
    static const char *const exact[][2] = {{"raw", "16-bit"}, {"raw+zstd", "16-bit"}, {"exact", "exact"}};
    for (unsigned i = 0; i < 3; i++) {
        const struct kn_eval_row *x = find(&r, exact[i][0], exact[i][1]);
        assert_true(x->exact && x->kl == 0.0 && x->top1 == 1.0 && x->nll == x->nll_untouched);
        assert_true(x->encode_tok_s > 0 && x->decode_tok_s > 0);
    }
    for (uint32_t i = 0; i < r.n; i++) { /* every row adds up */
        const struct kn_eval_row *x = &r.row[i];
        double sections = (x->bits_k + x->bits_v) / 8 * (double)raw / 4;
        assert_true(x->bytes > 0 && isfinite(x->kl) && x->kl > -1e-9 && x->top1 >= 0 && x->top1 <= 1);
        assert_true(fabs(x->ratio - (double)raw / (double)x->bytes) < 1e-9 * x->ratio);
        assert_true(sections <= (double)x->bytes + 1 && sections > 0.5 * (double)x->bytes);
        assert_true(x->nll > 0 && x->nll_untouched > 0);
    }
    const struct kn_eval_row *fine = find(&r, "cachegen", "64/64"), *coarse = find(&r, "cachegen", "16/16"), *ideal = find(&r, "cachegen-ideal", "64/64");
    assert_true(fine->kl > 0 && coarse->kl > fine->kl && coarse->bytes < fine->bytes);
    assert_true(ideal->kl == fine->kl && ideal->top1 == fine->top1 && ideal->bytes < fine->bytes);
    assert_true(find(&r, "cachegen+sinks", "16/16")->kl != coarse->kl);
    static const char *const own[] = {"fine", "medium", "small"};
    for (unsigned i = 0; i < 3; i++) { /* the same integers by either backend */
        const struct kn_eval_row *rans = find(&r, own[i], "rans"), *hevc = find(&r, own[i], "hevc");
        assert_true(rans->kl == hevc->kl && rans->nll == hevc->nll && rans->kl > 0 && !rans->exact);
        assert_true(rans->bytes != hevc->bytes && rans->working_bytes > 0);
    }
    assert_true(r.last_done > 0.5);
}

/* One row by the definition: logits through the public engine, untouched against untouched. Only nll can be had so. */
struct scored { double nll; uint32_t n; uint32_t n_vocab; };

static enum kn_status take(void *user, uint64_t position, const float *logits)
{
    struct scored *s = user;
    if (position + 1 < PREFIX + CONTINUE && position >= PREFIX) {
        double sum = 0;
        for (uint32_t i = 0; i < s->n_vocab; i++)
            sum += exp((double)logits[i]);
        s->nll += log(sum) - logits[tokens[position + 1]];
        s->n++;
    }
    return KN_OK;
}

static void test_nll(void **state)
{
    (void)state;
    static struct rows r;
    struct kn_err err = {0};
    struct kn_engine *e;
    struct kn_engine_opts eo = {.size = sizeof eo, .n_threads = 2};
    struct scored s = {.n_vocab = kn_model_info(model)->n_vocab};
    struct kn_score_opts so = {.size = sizeof so, .tokens = tokens, .n_tokens = PREFIX + CONTINUE, .first = PREFIX, .on_row = take, .user = &s};
    assert_int_equal(kn_engine_open(&e, model, &eo, &err), KN_OK);
    assert_int_equal(kn_engine_score(e, &so, NULL, &err), KN_OK);
    kn_engine_close(&e);
    struct kn_eval_opts o = eval_opts(&r);
    o.only = "raw,cachegen-ideal";
    assert_int_equal(kn_codec_eval(model, &o, &err), KN_OK);
    assert_int_equal(r.n, 5);
    assert_int_equal(s.n, CONTINUE - 1);
    assert_true(fabs(find(&r, "raw", "16-bit")->nll - s.nll / s.n) < 1e-3);
    assert_true(find(&r, "cachegen-ideal", "16/16")->kl > 0); /* scored without its stored form in the list */
}

static void test_kvtc(void **state)
{
    (void)state;
    static struct rows r;
    struct kn_err err = {0};
    struct kn_eval_calibration *c;
    const int32_t *texts[] = {learned};
    const size_t n[] = {N_CALIBRATION};
    struct kn_eval_calibration_opts co = {.size = sizeof co, .texts = texts, .n_tokens = n, .n_texts = 1, .n_threads = 2, .progress = on_progress, .user = &r};
    if (kn_eval_calibration_open(&c, model, &co, &err))
        fail_msg("%s", err.text);
    struct kn_eval_opts o = eval_opts(&r);
    o.only = "kvtc";
    o.calibration = c;
    if (kn_codec_eval(model, &o, &err))
        fail_msg("%s", err.text);
    assert_int_equal(r.n, 4);
    for (uint32_t i = 1; i < r.n; i++)
        assert_true(r.row[i].bytes < r.row[i - 1].bytes && r.row[i].kl > r.row[i - 1].kl);
    o.kv_type = KN_KV_TYPE_BF16;
    assert_int_equal(kn_codec_eval(model, &o, &err), KN_E_ARG);
    kn_eval_calibration_close(&c);
    const size_t few[] = {100};
    co.n_tokens = few;
    assert_int_equal(kn_eval_calibration_open(&c, model, &co, &err), KN_E_ARG);
    assert_non_null(strstr(err.text, "more text"));
    assert_null(c);
}

static void test_ablation(void **state)
{
    (void)state;
    static struct rows r, without;
    struct kn_err err = {0};
    struct kn_eval_calibration *c;
    const int32_t *texts[] = {learned};
    const size_t n[] = {N_CALIBRATION};
    struct kn_eval_calibration_opts co = {.size = sizeof co, .texts = texts, .n_tokens = n, .n_texts = 1, .n_threads = 2, .ablation = true};
    if (kn_eval_calibration_open(&c, model, &co, &err))
        fail_msg("%s", err.text);
    struct kn_eval_opts o = eval_opts(&r);
    o.only = "medium";
    o.ablation = true;
    o.profile_path = profile_path;
    o.calibration = c;
    if (kn_codec_eval(model, &o, &err))
        fail_msg("%s", err.text);
    assert_int_equal(r.n, 2 + 6);
    const struct kn_eval_row *weights = find(&r, "ablation", "+ weights"), *rans = find(&r, "medium", "rans");
    assert_true(fabs(weights->kl - rans->kl) < 1e-12); /* the same integers */
    double entropy = (weights->bits_k + weights->bits_v) / (rans->bits_k + rans->bits_v);
    assert_true(entropy > 0.3 && entropy < 1.05); /* static tables of a random profile are no good; sinks are cheaper there */
    const struct kn_eval_row *rotated = find(&r, "ablation", "+ row scale"), *unrotated = find(&r, "ablation", "+ pre-RoPE"), *one = find(&r, "ablation", "+ KLT 1");
    assert_true(rotated->bits_k != unrotated->bits_k && rotated->bits_v == unrotated->bits_v); /* keys only */
    assert_true(one->bits_v < unrotated->bits_v); /* what a basis is for */
    for (uint32_t i = 2; i < r.n; i++)
        assert_true(isfinite(r.row[i].kl) && r.row[i].kl > 0 && r.row[i].bytes > 0);
    kn_eval_calibration_close(&c);
    o = eval_opts(&without);
    o.only = "raw";
    o.ablation = true;
    assert_int_equal(kn_codec_eval(model, &o, &err), KN_E_ARG);
    o.profile_path = profile_path;
    assert_int_equal(kn_codec_eval(model, &o, &err), KN_OK);
    assert_int_equal(without.n, 1 + 4); /* no bases of its own */
}

static void test_needle(void **state)
{
    (void)state;
    static struct rows r;
    static char text[4096];
    struct kn_err err = {0};
    for (size_t i = 0; i < sizeof text; i++)
        text[i] = i % 40 == 39 ? '\n' : (char)('a' + i * 7 % 23);
    struct kn_needle_opts o = {.size = sizeof o, .text = text, .text_bytes = sizeof text, .n_facts = 5, .n_tokens = 256, .n_threads = 2, .only = "untouched,raw,cachegen",
                               .on_row = on_needle, .progress = on_progress, .user = &r};
    o.n_tokens = 300; /* rounded to whole chunks */
    enum kn_status status = kn_codec_needle(model, &o, &err);
    if (status)
        fail_msg("%s", err.text);
    assert_int_equal(r.n_needle, 6);
    assert_string_equal(r.needle[0].method, "untouched");
    assert_string_equal(r.needle[1].method, "raw");
    assert_true(r.needle[0].mean_logprob == r.needle[1].mean_logprob); /* nothing was changed */
    assert_true(r.needle[0].mean_logprob < -1); /* a random model knows nothing */
    for (uint32_t i = 0; i < r.n_needle; i++)
        assert_true(r.needle[i].n_facts == 5 && r.needle[i].n_right <= 5);
    assert_true(r.needle[5].mean_logprob != r.needle[0].mean_logprob);
    o.text_bytes = 100;
    assert_int_equal(kn_codec_needle(model, &o, &err), KN_E_ARG);
    assert_non_null(strstr(err.text, "longer text"));
}

static void test_search(void **state)
{
    (void)state;
    static struct rows r;
    struct kn_err err = {0};
    struct kn_search_opts o = {.size = sizeof o, .tokens = tokens, .n_tokens = PREFIX + CONTINUE, .levels = 32, .n_threads = 2, .on_row = on_search, .user = &r};
    if (kn_codec_search(model, &o, &err))
        fail_msg("%s", err.text);
    assert_int_equal(r.n_search, 6 * 2); /* divisors of 32, of 2 */
    static struct rows tiles;
    struct kn_eval_opts eo = eval_opts(&tiles);
    eo.only = "tiles";
    assert_int_equal(kn_codec_eval(model, &eo, &err), KN_OK);
    uint64_t wanted = find(&tiles, "tiles", "32")->bytes, nearest = UINT64_MAX;
    for (uint32_t i = 0; i < r.n_search; i++) {
        assert_true(r.search[i].bytes > 0 && r.search[i].bytes_intra > 0);
        nearest = r.search[i].bytes == wanted ? wanted : nearest;
    }
    assert_int_equal(nearest, wanted); /* the preset's own tiling is among them, byte for byte */
}

/* Each allocation fails once: the call says so and keeps nothing. */
static void test_no_memory(void **state)
{
    (void)state;
    static struct rows r;
    struct kn_err err = {0};
    struct kn_eval_opts o = eval_opts(&r);
    o.continue_ = 4;
    o.only = "raw+zstd,cachegen+sinks";
    assert_int_equal(kn_codec_eval(model, &o, &err), KN_OK); /* packs the model's weights, which it keeps */
    uint64_t before = kni_alloc_get_stats(KNI_ALLOC_TAG_COUNT).current_bytes;
    bool hit = true;
    for (uint64_t i = 1; hit; i += i < 40 ? 1 : 7) {
        r.n = 0;
        kni_alloc_fault_arm(i, false);
        enum kn_status status = kn_codec_eval(model, &o, &err);
        hit = kni_alloc_fault_hit();
        kni_alloc_fault_arm(0, false);
        assert_int_equal(status, hit ? KN_E_NOMEM : KN_OK);
        assert_int_equal(kni_alloc_get_stats(KNI_ALLOC_TAG_COUNT).current_bytes, before);
    }
    assert_int_equal(r.n, 5);
}

static void test_refused(void **state)
{
    (void)state;
    static struct rows r;
    struct kn_err err = {0};
    struct kn_eval_opts o = eval_opts(&r);
    o.only = "raw,cachegem";
    assert_int_equal(kn_codec_eval(model, &o, &err), KN_E_ARG);
    assert_non_null(strstr(err.text, "cachegem"));
    o.only = "medium";
    assert_int_equal(kn_codec_eval(model, &o, &err), KN_E_ARG);
    assert_non_null(strstr(err.text, "profile"));
    o.only = "kvtc";
    assert_int_equal(kn_codec_eval(model, &o, &err), KN_E_ARG);
    assert_non_null(strstr(err.text, "calibration"));
    o = eval_opts(&r);
    o.prefix = 200;
    assert_int_equal(kn_codec_eval(model, &o, &err), KN_E_ARG);
    o = eval_opts(&r);
    o.n_tokens--;
    assert_int_equal(kn_codec_eval(model, &o, &err), KN_E_ARG);
    o = eval_opts(&r);
    static int32_t many[512 + CONTINUE];
    kn_bed_prompt(many, 512 + CONTINUE, 5);
    o.prefix = 512; /* with what follows more than the model's context */
    o.tokens = many;
    o.n_tokens = 512 + CONTINUE;
    assert_int_equal(kn_codec_eval(model, &o, &err), KN_E_CONTEXT);
    o = eval_opts(&r);
    o.profile_path = model_path;
    assert_int_equal(kn_codec_eval(model, &o, &err), KN_E_FORMAT);
    o = eval_opts(&r);
    tokens[5] = 1 << 20;
    assert_int_equal(kn_codec_eval(model, &o, &err), KN_E_ARG);
    kn_bed_prompt(tokens, PREFIX + CONTINUE, 3);
    assert_int_equal(r.n, 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_rows),   cmocka_unit_test(test_nll),    cmocka_unit_test(test_kvtc),     cmocka_unit_test(test_ablation),
                                       cmocka_unit_test(test_needle), cmocka_unit_test(test_search), cmocka_unit_test(test_no_memory), cmocka_unit_test(test_refused)};
    return cmocka_run_group_tests(tests, setup, teardown);
}
