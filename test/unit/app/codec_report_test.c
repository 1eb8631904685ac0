/* SPDX-License-Identifier: Apache-2.0 */
/* Means over texts, and bytes at equal KL: values that can be worked out by hand. */
#include "../../../app/codec_report.c" /* the program is no library; first, since cmocka has a macro of the name fail */

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

/* What the report takes from the rest of the program. */
const char kn_app_commit[] = "test";
json_t *kn_app_json_text(const char *text, size_t n_bytes)
{
    return json_stringn(text, n_bytes);
}

static void add(struct kn_report *r, const char *method, const char *preset, uint64_t bytes, double kl)
{
    struct kn_eval_row row = {.method = method, .preset = preset, .bytes = bytes, .ratio = 100000.0 / (double)bytes, .kl = kl, .encode_tok_s = 100, .decode_tok_s = 200};
    kn_report_add(r, &row);
}

static void test_equal_kl(void **state)
{
    (void)state;
    static struct kn_report r;
    bool beyond;
    r.n_rows = 0;
    add(&r, "cachegen", "64/64", 8000, 0.001);
    add(&r, "cachegen", "16/16", 2000, 0.016); /* not in order */
    add(&r, "cachegen", "32/32", 4000, 0.004);
    add(&r, "cachegen", "bad", 9000, 0.002); /* more bytes and more KL than 64/64: no point of the curve */
    add(&r, "exact", "exact", 50000, 0);
    add(&r, "medium", "rans", 1000, 0.008);
    double times = kn_report_at_kl(&r, "cachegen", 0.008, 1000, &beyond);
    assert_true(fabs(times - sqrt(8.0)) < 1e-9 && !beyond); /* half way between 4000 and 2000 in logarithms */
    times = kn_report_at_kl(&r, "cachegen", 0.004, 1000, &beyond);
    assert_true(fabs(times - 4.0) < 1e-9 && !beyond);
    times = kn_report_at_kl(&r, "cachegen", 0.00025, 1000, &beyond);
    assert_true(fabs(times - 16.0) < 1e-9 && beyond); /* the first segment goes on: twice the bytes at a quarter of the KL */
    times = kn_report_at_kl(&r, "cachegen", 0.064, 1000, &beyond);
    assert_true(fabs(times - 1.0) < 1e-9 && beyond);
    assert_true(isnan(kn_report_at_kl(&r, "kvtc", 0.004, 1000, &beyond)));
    assert_true(isnan(kn_report_at_kl(&r, "cachegen", 0, 1000, &beyond)));
}

static void test_mean(void **state)
{
    (void)state;
    static struct kn_report texts[2], mean;
    texts[0].n_rows = texts[1].n_rows = 0;
    add(&texts[0], "fine", "rans", 1000, 0.002);
    add(&texts[0], "tiles", "64", 5000, 0.003);
    add(&texts[1], "fine", "rans", 3000, 0.004);
    texts[1].rows[0].values.decode_tok_s = 600;
    kn_report_mean(&mean, texts, 2);
    assert_int_equal(mean.n_rows, 1); /* tiles are in one text only */
    assert_string_equal(mean.rows[0].method, "fine");
    assert_int_equal(mean.rows[0].values.bytes, 2000);
    assert_true(fabs(mean.rows[0].values.ratio - 200000.0 / 4000.0) < 1e-9); /* of all bytes together */
    assert_true(fabs(mean.rows[0].values.kl - 0.003) < 1e-12);
    assert_true(fabs(mean.rows[0].values.decode_tok_s - 300) < 1e-9); /* time adds up, not speed */
}

static void test_json(void **state)
{
    (void)state;
    static struct kn_report r;
    r.n_rows = 0;
    add(&r, "cachegen", "64/64", 8000, 0.001);
    add(&r, "cachegen", "32/32", 4000, 0.004);
    add(&r, "small", "hevc", 1000, NAN);
    add(&r, "fine", "rans", 1000, 0.004);
    json_t *machine = json_pack("{s:s}", "cpu", "none");
    struct kn_report_head head = {.text = "a text", .model = "m", .prefix = 512, .continue_ = 64, .machine = machine, .hevc_encoder = "kinema", .hevc_tools = "full"};
    json_t *j = kn_report_json(&r, &head);
    assert_string_equal(json_string_value(json_object_get(j, "text")), "a text");
    assert_int_equal(json_integer_value(json_object_get(j, "prefix")), 512);
    assert_int_equal(json_integer_value(json_object_get(j, "continue")), 64);
    json_t *rows = json_object_get(j, "rows"), *equal = json_object_get(j, "equal_kl");
    assert_int_equal(json_array_size(rows), 4);
    static const char *const keys[] = {"method", "preset", "bytes", "ratio", "bits_k", "bits_v", "kl", "top1", "nll", "encode_tok_s", "decode_tok_s"};
    for (unsigned i = 0; i < sizeof keys / sizeof *keys; i++)
        assert_non_null(json_object_get(json_array_get(rows, 0), keys[i]));
    assert_true(json_is_null(json_object_get(json_array_get(rows, 2), "kl"))); /* JSON has no NaN */
    assert_int_equal(json_array_size(equal), 2);
    assert_true(json_is_null(json_object_get(json_array_get(equal, 0), "cachegen")));
    assert_true(fabs(json_real_value(json_object_get(json_array_get(equal, 1), "cachegen")) - 4.0) < 1e-9);
    json_decref(j);
    json_decref(machine);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_equal_kl), cmocka_unit_test(test_mean), cmocka_unit_test(test_json)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
