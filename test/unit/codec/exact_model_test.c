/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Layout exact's model: the table of cosines is the same with any C library, notes follow the turning mean, packing returns what
 * went in and refuses tables that are none, and the fit finds angles, pairings, means and deviations that a test has put in.
 */
#include "unit/codec/codec_support.h"

#include "base/cpu.h"
#include "codec/exact/exact_fit.h"
#include "codec/exact/exact_model.h"
#include "kernel/kernels.h"

#define FULL_TURN 6.28318530717958647692

static void cosines_have_margin(void **state)
{
    (void)state;
    struct kni_exact_model m;
    struct kni_kv_layout kv = {1, 1, 2, KN_KV_TYPE_F16};
    assert_true(kni_exact_model_init(&m, &kv));
    for (uint32_t i = 0; i < KNI_EXACT_N_PHASES; i++) {
        double x = 16384 * cos(FULL_TURN * i / KNI_EXACT_N_PHASES), from_boundary = fabs(fabs(x - floor(x)) - 0.5);
        assert_true(from_boundary > 1e-8);
        assert_true(fabs((double)m.cosines[i] - x) <= 0.5);
    }
    kni_exact_model_fini(&m);
}

static void packs(void **state)
{
    (void)state;
    struct kni_exact_model a, b;
    struct kni_kv_layout kv = {3, 2, 7, KN_KV_TYPE_BF16};
    assert_true(kni_exact_model_init(&a, &kv) && kni_exact_model_init(&b, &kv));
    a.pairs = KNI_EXACT_PAIRS_HALVES;
    for (uint32_t t = 0; t < KNI_EXACT_N_TABLES; t++) {
        a.freq[t][t] = 4000;
        a.freq[t][255] = 96;
    }
    for (size_t i = 0; i < a.n_channels; i++) {
        a.bases[i] = (uint16_t)test_random();
        a.means[i] = (int8_t)test_random();
    }
    for (size_t i = 0; i < a.n_turns; i++)
        a.turns[i] = test_random() << 8;
    size_t n = kni_exact_model_packed_bytes(&a);
    uint8_t *bytes = malloc(n);
    kni_exact_model_pack(&a, bytes);
    assert_true(kni_exact_model_unpack(&b, bytes));
    assert_int_equal(b.pairs, a.pairs);
    assert_memory_equal(a.freq, b.freq, sizeof a.freq);
    assert_memory_equal(a.bases, b.bases, 2 * a.n_channels);
    assert_memory_equal(a.means, b.means, a.n_channels);
    assert_memory_equal(a.turns, b.turns, sizeof *a.turns * a.n_turns);
    bytes[0] = 2;
    assert_false(kni_exact_model_unpack(&b, bytes));
    a.freq[20][255] = 97;
    kni_exact_model_pack(&a, bytes);
    assert_false(kni_exact_model_unpack(&b, bytes));
    memset(a.freq[3], 0, sizeof a.freq[3]);
    a.freq[20][255] = 96;
    a.freq[3][9] = 4096; /* the right sum, but no slot can hold it */
    kni_exact_model_pack(&a, bytes);
    assert_false(kni_exact_model_unpack(&b, bytes));
    free(bytes);
    kni_exact_model_fini(&a);
    kni_exact_model_fini(&b);
}

/* Keys whose pairs turn by known angles around known means, values that do not turn. */
static void fit(enum kni_exact_pairs pairs, enum kn_kv_type type, uint32_t n)
{
    struct kni_kv_layout kv = {2, 2, 10, type};
    struct kni_exact_model m;
    struct kni_kernels kernels;
    struct kni_exact_fit f;
    size_t n_floats;
    assert_true(kni_exact_model_init(&m, &kv));
    m.pairs = pairs;
    kni_kernels_init(&kernels, kni_cpu_flags());
    assert_true(kni_exact_fit_floats(&kv, n, &n_floats));
    float *floats = malloc(n_floats * sizeof *floats);
    int16_t *steps = malloc(2 * n * sizeof *steps), *waves = malloc(5 * 2 * n * sizeof *waves), *means = malloc(n * sizeof *means);
    uint16_t *values = malloc(10 * n * sizeof *values);
    uint8_t *notes = malloc(n);
    static const double angles[5] = {2.5, 0.7, 0.11, 0.013, -1.1}, size[5] = {3, 2, 1.5, 4, 2};
    kni_exact_fit_init(&f, &m, kni_exact_loops_get(kni_cpu_flags()), kernels.from_half[type], n, floats, steps);
    for (uint32_t layer = 0; layer < 2; layer++) {
        for (uint32_t h = 0; h < 2; h++) {
            for (uint32_t p = 0; p < 5; p++)
                for (uint32_t t = 0; t < n; t++) {
                    double phase = angles[p] * t + h + p, noise[2];
                    for (int k = 0; k < 2; k++)
                        noise[k] = 0.5 * (test_random() % 4096 + test_random() % 4096 + test_random() % 4096 - 6142.5) / 2048; /* deviation 0.5 */
                    values[kni_exact_component_of(&m, p, false) * n + t] = test_to_half((float)(0.5 * size[p] * cos(phase) + noise[0]), type);
                    values[kni_exact_component_of(&m, p, true) * n + t] = test_to_half((float)(0.5 * size[p] * sin(phase) + noise[1]), type);
                }
            kni_exact_fit_head(&f, h, values);
        }
        if (layer == 0) {
            assert_int_equal(kni_exact_fit_pairs(&f), pairs);
            m.pairs = pairs;
        }
        kni_exact_fit_part(&f, layer, 0);
        kni_exact_fit_part(&f, layer, 1);
        for (uint32_t p = 0; p < 5; p++) {
            double turn = ldexp(m.turns[layer * 5 + p], -32) * FULL_TURN, off = turn - angles[p];
            off -= rint(off / FULL_TURN) * FULL_TURN;
            assert_true(fabs(off) < 0.6 / n); /* 0.3 radians at the chunk's ends */
            for (uint32_t h = 0; h < 2; h++) {
                uint32_t i = kni_exact_component_of(&m, p, false), j = kni_exact_component_of(&m, p, true);
                size_t one = kni_exact_channel(&m, layer, 0, h, i), two = kni_exact_channel(&m, layer, 0, h, j);
                double length = hypot(m.means[one], m.means[two]) / KNI_EXACT_MEAN_UNIT;
                assert_true(length > 0.75 * size[p] && length < 1.25 * size[p]); /* the deviation is rounded to a quarter octave */
                int cell = (int)(uint16_t)(m.bases[one] + KNI_EXACT_WINDOW_BELOW) - 4 * (type == KN_KV_TYPE_F16 ? 15 : 127);
                assert_in_range(cell + 100, 100 - 5, 100 - 3); /* 2^(-4/4) */
                assert_int_equal(m.bases[one], m.bases[two]);
            }
        }
    }
    /* notes of pair 1, head 1: the table of the true mean, give or take one, and its sign */
    uint32_t held[5] = {0};
    kni_exact_make_waves(&m, 1, held, waves, n);
    kni_exact_notes(&m, kni_exact_loops_get(0), 1, 0, 1, kni_exact_component_of(&m, 1, true), waves, means, notes, n);
    for (uint32_t t = 0; t < n; t++) {
        double want = 8 * size[1] * sin(angles[1] * t + 1 + 1); /* in eighths of the deviation */
        assert_true(fabs(means[t] - want) < 5);
        if (fabs(want) > 5)
            assert_int_equal(notes[t] >> 7, want < 0);
    }
    free(floats);
    free(steps);
    free(waves);
    free(means);
    free(values);
    free(notes);
    kni_exact_model_fini(&m);
}

static void fits(void **state)
{
    (void)state;
    for (int k = 0; k < 4; k++) {
        fit(k & 1 ? KNI_EXACT_PAIRS_HALVES : KNI_EXACT_PAIRS_ADJACENT, k & 2 ? KN_KV_TYPE_BF16 : KN_KV_TYPE_F16, 256);
        fit(k & 1 ? KNI_EXACT_PAIRS_HALVES : KNI_EXACT_PAIRS_ADJACENT, k & 2 ? KN_KV_TYPE_BF16 : KN_KV_TYPE_F16, 2048);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(cosines_have_margin), cmocka_unit_test(packs), cmocka_unit_test(fits)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
