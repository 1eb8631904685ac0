/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The order of columns against a plain sort: classes by rank of loudness, columns stable by class whatever the classes are, moving and
 * moving back, packing bit by bit.
 */
#include "unit/codec/codec_support.h"

#include "codec/spectral/layout_spectral.h"
#include "codec/spectral/spectral_order.h"

static uint32_t loudness_of(const uint8_t *rows, size_t stride, uint32_t n_rows, uint32_t t)
{
    uint32_t n = 0;
    for (uint32_t r = 0; r < n_rows; r++)
        n += rows[r * stride + t] != 128;
    return n;
}

/* Rank by rank: a token's rank is the number of those that are quieter, or as quiet and before it. */
static void classes_by_rank(void **state)
{
    (void)state;
    static const uint32_t n_tokens[] = {16, 32, 48, 256, 1024}, n_rows[] = {1, 7, 40, 900, 300};
    for (int i = 0; i < 5; i++) {
        uint32_t n = n_tokens[i], stride = n + 5;
        uint8_t *rows = malloc((size_t)stride * n_rows[i]), classes[1024 + 1];
        uint32_t *loudness = calloc(n, sizeof *loudness), most = 0;
        assert_true(rows && loudness);
        for (uint32_t t = 0; t < stride; t++) {
            uint32_t share = test_random() % 5; /* some tokens all zero, some without any zero; many as loud as others where rows are few */
            for (uint32_t r = 0; r < n_rows[i]; r++)
                rows[r * stride + t] = test_random() % 4 < share ? (uint8_t)(test_random() % 2 ? 129 + test_random() % 127 : test_random() % 128) : 128;
        }
        for (uint32_t t = 0; t < n; t++) {
            loudness[t] = loudness_of(rows, stride, n_rows[i], t);
            most = loudness[t] > most ? loudness[t] : most;
        }
        assert_true(i < 3 || most > 255);
        classes[n] = 99;
        kni_spectral_order_classes(rows, stride, n_rows[i], n, classes);
        for (uint32_t t = 0; t < n; t++) {
            uint32_t rank = 0;
            for (uint32_t o = 0; o < n; o++)
                rank += loudness[o] < loudness[t] || (loudness[o] == loudness[t] && o < t);
            assert_int_equal(classes[t], 7 - rank * 8 / n);
        }
        assert_int_equal(classes[n], 99);
        free(rows);
        free(loudness);
    }
}

static void columns_of_any_classes(void **state)
{
    (void)state;
    uint8_t classes[1024];
    uint16_t column[1024];
    for (int round = 0; round < 40; round++) {
        uint32_t n = 16 * (1 + test_random() % 64), next = 0, kinds = 1 + test_random() % 8;
        for (uint32_t t = 0; t < n; t++)
            classes[t] = (uint8_t)(round == 0 ? 0 : round == 1 ? 7 : test_random() % kinds);
        kni_spectral_order_columns(classes, n, column);
        for (uint32_t c = 0; c < 8; c++)
            for (uint32_t t = 0; t < n; t++)
                if (classes[t] == c)
                    assert_int_equal(column[t], next++);
        assert_int_equal(next, n);
    }
}

static void there_and_back(void **state)
{
    (void)state;
    enum { N = 304, STRIDE = 320, ROWS = 21, RUN = 256 };
    static uint8_t rows[ROWS * STRIDE], before[ROWS * STRIDE], back[ROWS * RUN];
    uint8_t classes[N];
    uint16_t column[N];
    for (size_t i = 0; i < sizeof rows; i++)
        rows[i] = (uint8_t)test_random();
    memcpy(before, rows, sizeof rows);
    for (uint32_t t = 0; t < N; t++)
        classes[t] = (uint8_t)(test_random() % 8);
    kni_spectral_order_columns(classes, N, column);
    kni_spectral_order_apply(rows, STRIDE, ROWS, N, column);
    for (uint32_t r = 0; r < ROWS; r++) {
        for (uint32_t t = 0; t < N; t++)
            assert_int_equal(rows[r * STRIDE + column[t]], before[r * STRIDE + t]);
        assert_memory_equal(rows + r * STRIDE + N, before + r * STRIDE + N, STRIDE - N);
    }
    for (uint32_t c = 0, n; c < N; c += n) { /* run by run, as restoring does */
        n = N - c < RUN ? N - c : RUN;
        memset(back, 0xaa, sizeof back);
        kni_spectral_order_undo(rows, STRIDE, ROWS, n, column + c, back, RUN);
        for (uint32_t r = 0; r < ROWS; r++) {
            assert_memory_equal(back + r * RUN, before + r * STRIDE + c, n);
            for (uint32_t t = n; t < RUN; t++)
                assert_int_equal(back[r * RUN + t], 0xaa);
        }
    }
}

/* Any bytes are classes and come back; bit 3 i is the low one of class i. */
static void packing(void **state)
{
    (void)state;
    uint8_t bytes[97], again[97], classes[257];
    assert_int_equal(kni_spectral_order_bytes(2, 128), 96);
    for (int round = 0; round < 20; round++) {
        for (int i = 0; i < 96; i++)
            bytes[i] = (uint8_t)test_random();
        again[96] = 0x5a;
        classes[256] = 0x5a;
        kni_spectral_order_unpack(bytes, 256, classes);
        for (unsigned i = 0; i < 256; i++)
            for (unsigned k = 0; k < 3; k++)
                assert_int_equal(classes[i] >> k & 1, bytes[(3 * i + k) / 8] >> (3 * i + k) % 8 & 1);
        for (unsigned i = 0; i < 256; i++)
            assert_true(classes[i] < KNI_SPECTRAL_ORDER_CLASSES);
        kni_spectral_order_pack(classes, 256, again);
        assert_memory_equal(again, bytes, 96);
        assert_true(again[96] == 0x5a && classes[256] == 0x5a);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(classes_by_rank), cmocka_unit_test(columns_of_any_classes), cmocka_unit_test(there_and_back),
                                       cmocka_unit_test(packing)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
