/* SPDX-License-Identifier: Apache-2.0 */
/* What is said of a text beside a profile's own figures: for figures that were measured, and for some that were not. */
#include "../../../app/codec_learned.c" /* the program is no library; first, since cmocka has a macro of the name fail */
#include "../../../app/app.c"
#include "../../../app/app_path.c"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

const char kn_app_commit[] = "test", kn_app_source_dir[] = "";

enum { N_EXACT = 4, PREFIX = 3072 };

/* fine, medium, small of the profile that make profile builds for SmolLM2-135M, and texts after 3,072 tokens: doc/benchmarks.md,
 * Texts unlike a profile's. */
static const struct kn_learned_figures own[3] = {{11.59, 0.00229, 1024}, {20.37, 0.00786, 1024}, {26.77, 0.01477, 1024}};
static const struct measured {
    const char *name;
    double ratio[3], kl[3];
    enum kn_learned_verdict verdict;
} measured[] = {
    {"English prose, a handbook", {11.50, 20.50, 27.30}, {0.00090, 0.00343, 0.00556}, KN_LEARNED_ALIKE},
    {"English manual page", {11.47, 20.54, 27.47}, {0.00122, 0.00388, 0.00685}, KN_LEARNED_ALIKE},
    {"English manual", {12.26, 21.99, 29.31}, {0.00108, 0.00314, 0.00545}, KN_LEARNED_ALIKE},
    {"licences", {11.35, 20.27, 27.04}, {0.00214, 0.00699, 0.00934}, KN_LEARNED_ALIKE},
    {"English documentation, pod", {11.97, 21.40, 28.49}, {0.00099, 0.00407, 0.00649}, KN_LEARNED_ALIKE},
    {"Python", {11.66, 20.84, 27.81}, {0.00118, 0.00486, 0.00815}, KN_LEARNED_ALIKE},
    {"C", {11.38, 20.34, 27.17}, {0.00229, 0.00937, 0.01781}, KN_LEARNED_ALIKE},
    {"English prose with some Chinese", {10.74, 19.12, 25.55}, {0.00154, 0.00514, 0.00847}, KN_LEARNED_ALIKE},
    {"German prose", {9.91, 17.59, 23.55}, {0.00280, 0.01038, 0.01924}, KN_LEARNED_UNLIKE},
    {"Russian manual page, names in English", {9.73, 17.26, 23.21}, {0.00196, 0.00557, 0.00835}, KN_LEARNED_UNLIKE},
    {"Russian prose", {9.57, 16.97, 22.82}, {0.00736, 0.01812, 0.01998}, KN_LEARNED_UNLIKE},
    {"Russian manual pages", {9.31, 16.49, 22.20}, {0.00984, 0.02374, 0.02671}, KN_LEARNED_UNLIKE},
    {"Japanese prose", {9.57, 16.99, 22.86}, {0.00614, 0.02021, 0.02783}, KN_LEARNED_UNLIKE},
    {"Japanese manual pages", {9.21, 16.31, 21.95}, {0.00768, 0.01961, 0.03643}, KN_LEARNED_UNLIKE},
    {"Greek manual pages", {10.07, 17.93, 24.06}, {0.00912, 0.02331, 0.03451}, KN_LEARNED_UNLIKE},
    {"base64", {10.69, 19.10, 25.60}, {0.00258, 0.00948, 0.01701}, KN_LEARNED_ALIKE},
    {"JSON", {11.95, 21.60, 28.98}, {0.00107, 0.00357, 0.00501}, KN_LEARNED_ALIKE},
    {"Bash", {11.72, 21.02, 28.07}, {0.00227, 0.00693, 0.01221}, KN_LEARNED_ALIKE},
};
#define N_MEASURED (sizeof measured / sizeof *measured)

static void test_measured_texts(void **state)
{
    (void)state;
    for (size_t i = 0; i < N_MEASURED; i++)
        for (unsigned p = 0; p < 3; p++) {
            struct kn_learned_figures text = {measured[i].ratio[p], measured[i].kl[p], PREFIX};
            enum kn_learned_verdict verdict = kn_learned_judge(&own[p], &text, N_EXACT);
            if (verdict != measured[i].verdict)
                print_error("%s, preset %u: verdict %d\n", measured[i].name, p, (int)verdict);
            assert_int_equal(verdict, measured[i].verdict);
        }
}

/* Exact tokens weigh more in a short prefix: the same bytes a token beyond them must give the same verdict. */
static void test_length_of_prefix(void **state)
{
    (void)state;
    for (size_t i = 0; i < N_MEASURED; i++)
        for (uint32_t prefix = 256; prefix <= 1u << 20; prefix *= 4)
            for (unsigned p = 0; p < 3; p++) {
                double share = 1 / measured[i].ratio[p] - 0.86 * N_EXACT / PREFIX;
                struct kn_learned_figures text = {1 / (share + 0.86 * N_EXACT / prefix), measured[i].kl[p], prefix};
                assert_int_equal(kn_learned_judge(&own[p], &text, N_EXACT), measured[i].verdict);
            }
}

/* Measured after 256 and 512 tokens. The handbook's 20.6 is no sign of another kind of text: the exact tokens take a quarter of its bytes. */
static void test_short_prefixes(void **state)
{
    (void)state;
    static const struct { struct kn_learned_figures medium, small; enum kn_learned_verdict verdict; } texts[] = {
        {{16.51, 0.00780, 256}, {20.60, 0.01368, 256}, KN_LEARNED_ALIKE}, /* English prose */
        {{18.45, 0.00827, 512}, {23.75, 0.01559, 512}, KN_LEARNED_ALIKE},
        {{16.56, 0.01334, 256}, {20.74, 0.02531, 256}, KN_LEARNED_WORSE}, /* English manual page: so close behind its start it does lose more */
        {{18.58, 0.00773, 512}, {24.01, 0.01555, 512}, KN_LEARNED_ALIKE},
        {{14.16, 0.01526, 256}, {17.96, 0.01885, 256}, KN_LEARNED_UNLIKE}, /* Russian prose */
        {{15.50, 0.02998, 512}, {20.25, 0.02446, 512}, KN_LEARNED_UNLIKE},
    };
    for (unsigned i = 0; i < sizeof texts / sizeof *texts; i++) {
        assert_int_equal(kn_learned_judge(&own[1], &texts[i].medium, N_EXACT), texts[i].verdict);
        assert_int_equal(kn_learned_judge(&own[2], &texts[i].small, N_EXACT), texts[i].verdict);
    }
}

static void test_judge(void **state)
{
    (void)state;
    const struct kn_learned_figures like = {20, 0.01, 1024};
    struct kn_learned_figures text = like;
    assert_int_equal(kn_learned_judge(&like, &text, 0), KN_LEARNED_ALIKE);
    text.ratio = 18;
    assert_int_equal(kn_learned_judge(&like, &text, 0), KN_LEARNED_ALIKE);
    text.ratio = 17;
    assert_int_equal(kn_learned_judge(&like, &text, 0), KN_LEARNED_UNLIKE);
    text.kl = 0.001; /* a text that is easily predicted loses little, however little it is like the profile's */
    assert_int_equal(kn_learned_judge(&like, &text, 0), KN_LEARNED_UNLIKE);
    text = (struct kn_learned_figures){21, 0.0125, 1024};
    assert_int_equal(kn_learned_judge(&like, &text, 0), KN_LEARNED_ALIKE);
    text.kl = 0.0135;
    assert_int_equal(kn_learned_judge(&like, &text, 0), KN_LEARNED_WORSE);
    text.kl = NAN; /* not measured */
    assert_int_equal(kn_learned_judge(&like, &text, 0), KN_LEARNED_ALIKE);
    /* nothing to compare with */
    const struct kn_learned_figures none[] = {{0, 0.01, 1024}, {20, 0, 1024}, {20, 0.01, 0}, {NAN, 0.01, 1024}};
    text = (struct kn_learned_figures){5, 1, 1024};
    for (unsigned i = 0; i < sizeof none / sizeof *none; i++)
        assert_int_equal(kn_learned_judge(&none[i], &text, 0), KN_LEARNED_ALIKE);
    /* more exact tokens than the bytes have room for: no verdict on bytes */
    text = (struct kn_learned_figures){10, 0.01, 1024};
    assert_int_equal(kn_learned_judge(&like, &text, 512), KN_LEARNED_ALIKE);
}

static void add(struct kn_report *r, const char *method, const char *preset, double ratio, double kl)
{
    struct kn_report_row *row = &r->rows[r->n_rows++];
    snprintf(row->method, sizeof row->method, "%s", method);
    snprintf(row->preset, sizeof row->preset, "%s", preset);
    row->values = (struct kn_eval_row){.ratio = ratio, .kl = kl};
}

static void test_sentences(void **state)
{
    (void)state;
    static struct kn_report r;
    struct kn_learned l = {.prefix = 1024, .texts = json_array()};
    const struct kn_learned_run run = {.path = "/no/such/text", .prefix = PREFIX};
    l.info.n_sinks = N_EXACT;
    for (unsigned p = 0; p < 3; p++) {
        l.info.presets[p].ratio = (float)own[p].ratio;
        l.info.presets[p].kl = (float)own[p].kl;
    }
    r.n_rows = 0;
    add(&r, "exact", "rans", 1.2, 0);
    add(&r, "cachegen", "16/16", 6, 0.04);
    add(&r, "small", "hevc", 5, 0.04); /* of other bytes than the profile notes */
    add(&r, "fine", "rans", 12, 0.004);
    add(&r, "medium", "rans", 17, 0.02);
    add(&r, "small", "rans", 27, 0.0148);
    json_t *hints = kn_learned_hints(&l, &r, &run);
    assert_int_equal(json_array_size(hints), 2);
    assert_string_equal(json_string_value(json_array_get(hints, 0)),
                        "fine: KL 0.0040, where the profile's own texts gave 0.0023: this text loses more than the profile promises; "
                        "use preset exact where that matters");
    assert_string_equal(json_string_value(json_array_get(hints, 1)),
                        "medium: 17.0 times smaller and KL 0.0200, where the profile's own texts gave 20.4 and 0.0079: this text is "
                        "unlike them; build a profile from texts like it, or use preset exact for such");
    json_decref(hints);
    json_decref(l.texts);
    l.texts = NULL; /* no profile */
    hints = kn_learned_hints(&l, &r, &run);
    assert_int_equal(json_array_size(hints), 0);
    json_decref(hints);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_measured_texts), cmocka_unit_test(test_length_of_prefix),
                                       cmocka_unit_test(test_short_prefixes), cmocka_unit_test(test_judge), cmocka_unit_test(test_sentences)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
