/* SPDX-License-Identifier: Apache-2.0 */
/* The baselines' range coder: what goes in comes out, in about as many bits as its entropy; streams that end early are noticed. */
#include "measure/baseline/range_coder.h"

#include "unit/codec/codec_support.h"

#define N 20000u

static const uint32_t counts[] = {1, 900, 30, 4000, 0, 65, 60540}; /* of 65536 */
#define N_COUNTS (sizeof counts / sizeof *counts)

static uint32_t draw(uint32_t *below)
{
    uint32_t value = test_random() % KNI_RANGE_TOTAL_MAX, symbol = 0;
    for (*below = 0; *below + counts[symbol] <= value; symbol++)
        *below += counts[symbol];
    return symbol;
}

static void test_static(void **state)
{
    (void)state;
    static uint8_t symbols[N], out[N];
    struct kni_range_encoder e;
    struct kni_range_decoder d;
    double bits = 0;
    kni_range_encoder_init(&e, out, sizeof out);
    for (uint32_t i = 0; i < N; i++) {
        uint32_t below;
        symbols[i] = (uint8_t)draw(&below);
        bits -= log2(counts[symbols[i]] / (double)KNI_RANGE_TOTAL_MAX);
        kni_range_encode(&e, below, counts[symbols[i]], KNI_RANGE_TOTAL_MAX);
    }
    size_t n = kni_range_encoder_finish(&e);
    assert_true(n <= sizeof out);
    assert_true((double)n * 8 < bits * 1.002 + 64);
    assert_true((double)n * 8 > bits * 0.998);
    for (unsigned cut = 0; cut < 2; cut++) { /* whole, then without its second half */
        uint32_t n_wrong = 0;
        kni_range_decoder_init(&d, out, cut ? n / 2 : n);
        for (uint32_t i = 0; i < N; i++) {
            uint32_t value = kni_range_decode_get(&d, KNI_RANGE_TOTAL_MAX), below = 0, symbol = 0;
            for (; below + counts[symbol] <= value; symbol++)
                below += counts[symbol];
            kni_range_decode_take(&d, below, counts[symbol], KNI_RANGE_TOTAL_MAX);
            n_wrong += symbol != symbols[i];
        }
        assert_int_equal(n_wrong > 0, cut);
        assert_int_equal(kni_range_decoder_is_over(&d), cut);
    }
}

/* Carries: the most probable symbol at the top of the interval, again and again, then a rare one. */
static void test_carry(void **state)
{
    (void)state;
    uint8_t out[4096];
    for (uint32_t rare = 0; rare < 400; rare++) {
        struct kni_range_encoder e;
        struct kni_range_decoder d;
        kni_range_encoder_init(&e, out, sizeof out);
        for (uint32_t i = 0; i < 400; i++)
            kni_range_encode(&e, i == rare ? 0 : 1, i == rare ? 1 : 65534, 65535);
        size_t n = kni_range_encoder_finish(&e);
        kni_range_decoder_init(&d, out, n);
        for (uint32_t i = 0; i < 400; i++) {
            bool is_rare = kni_range_decode_get(&d, 65535) < 1;
            assert_int_equal(is_rare, i == rare);
            kni_range_decode_take(&d, is_rare ? 0 : 1, is_rare ? 1 : 65534, 65535);
        }
    }
}

static void test_adaptive(void **state)
{
    (void)state;
    static uint8_t symbols[N], out[N];
    struct kni_range_model model = {0};
    struct kni_range_encoder e;
    struct kni_range_decoder d;
    double n_of[16] = {0}, bits = 0;
    kni_range_encoder_init(&e, out, sizeof out);
    for (uint32_t i = 0; i < N; i++) {
        uint32_t r = test_random() % 1000;
        symbols[i] = r < 700 ? 3 : r < 950 ? 4 : (uint8_t)(r % 16);
        n_of[symbols[i]]++;
        kni_range_model_encode(&model, &e, 16, symbols[i]);
    }
    size_t n = kni_range_encoder_finish(&e);
    for (unsigned i = 0; i < 16; i++)
        bits -= n_of[i] > 0 ? n_of[i] * log2(n_of[i] / N) : 0;
    assert_true((double)n * 8 < bits * 1.02);
    model = (struct kni_range_model){0};
    kni_range_decoder_init(&d, out, n);
    for (uint32_t i = 0; i < N; i++)
        assert_int_equal(kni_range_model_decode(&model, &d, 16), symbols[i]);
    assert_false(kni_range_decoder_is_over(&d));
}

/* A buffer that is too small is not overrun, and the size says so. */
static void test_room(void **state)
{
    (void)state;
    uint8_t out[16];
    struct kni_range_encoder e;
    memset(out, 0xaa, sizeof out);
    kni_range_encoder_init(&e, out, 8);
    for (uint32_t i = 0; i < 100; i++)
        kni_range_encode(&e, i % 2, 1, 2);
    assert_true(kni_range_encoder_finish(&e) >= 12);
    for (unsigned i = 8; i < sizeof out; i++)
        assert_int_equal(out[i], 0xaa);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_static), cmocka_unit_test(test_carry), cmocka_unit_test(test_adaptive), cmocka_unit_test(test_room)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
