/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Models of the rANS backend: frequency tables keep their promises, contexts are found and pay, models survive the way through
 * bytes, damaged bytes and failing allocations are refused, and a model that knows nothing still codes everything.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>

#include <cmocka.h>

#include "base/alloc.h"
#include "base/cpu.h"
#include "codec/rans/rans_model.h"
#include "support/symbol_matrix.h"

static struct kni_rans_model *train(const struct symbol_matrix *m, int n)
{
    struct kni_rans_trainer *t;
    struct kni_rans_model *model;
    assert_int_equal(kni_rans_trainer_open(&t), KN_OK);
    for (int i = 0; i < n; i++)
        kni_rans_trainer_add(t, m[i].symbols, m[i].stride, m[i].n_rows, m[i].n_tokens, m[i].classes);
    assert_int_equal(kni_rans_trainer_finish(t, &model), KN_OK);
    kni_rans_trainer_close(&t);
    return model;
}

/* Bytes of m by model, after a round trip. */
static size_t coded_bytes(const struct kni_rans_model *model, const struct symbol_matrix *m)
{
    size_t bound = kni_rans_bound(m->n_rows, m->n_tokens);
    uint8_t *out = malloc(bound), *back = malloc(m->stride * m->n_rows + 1);
    void *scratch = malloc(kni_rans_scratch_bytes(m->n_rows, m->n_tokens)), *few = malloc(kni_rans_decode_scratch_bytes());
    assert_true(out && back && scratch && few);
    size_t n = kni_rans_encode(model, m->symbols, m->stride, m->n_rows, m->n_tokens, m->classes, out, scratch,
                               kni_cpu_flags());
    assert_true(n <= bound && n <= (size_t)m->n_rows * m->n_tokens + 1);
    assert_int_equal(kni_rans_decode(model, out, n, m->n_rows, m->n_tokens, m->classes, back, m->stride, few,
                                     kni_cpu_flags()), KN_OK);
    for (uint32_t r = 0; r < m->n_rows; r++)
        assert_memory_equal(back + r * m->stride, m->symbols + r * m->stride, m->n_tokens);
    free(out);
    free(back);
    free(scratch);
    free(few);
    return n;
}

static double ideal_bits(const double weights[256], const uint16_t freq[256])
{
    double bits = 0;
    for (int s = 0; s < 256; s++)
        if (weights[s] > 0)
            bits -= weights[s] * log2(freq[s] / 4096.0);
    return bits;
}

static void normalised_tables_are_right(void **state)
{
    (void)state;
    for (int round = 0; round < 200; round++) {
        double w[256];
        uint16_t f[256];
        for (int s = 0; s < 256; s++)
            w[s] = round % 4 == 0 ? symbol_unit() : round % 4 == 1 ? exp(-abs(s - 128) * symbol_unit()) : symbol_random() % 16 ? 0 : exp(20 * symbol_unit());
        w[round] = 1e-9;
        w[255 - round] = 1e-9;
        kni_rans_normalise(w, f);
        assert_true(kni_rans_freq_ok(f));
        for (int s = 0; s < 256; s++)
            assert_int_equal(f[s] > 0, w[s] > 0);
        double bits = ideal_bits(w, f); /* no exchange of one slot is better */
        for (int i = 0; i < 200; i++) {
            unsigned a = symbol_random() % 256, b = symbol_random() % 256;
            if (a == b || f[a] < 2 || !f[b] || f[b] >= 4095)
                continue;
            f[a]--, f[b]++;
            assert_true(ideal_bits(w, f) >= bits * (1 - 1e-9));
            f[a]++, f[b]--;
        }
    }
    double one[256] = {0};
    uint16_t f[256];
    one[77] = 3;
    kni_rans_normalise(one, f);
    assert_true(kni_rans_freq_ok(f) && f[77] == 4095);
    f[77] = 4096, f[76] = 0;
    assert_false(kni_rans_freq_ok(f));
}

static void classes_follow_a_log_scale(void **state)
{
    (void)state;
    assert_int_equal(kni_rans_class_of_row(0, 0), 0);
    assert_int_equal(kni_rans_class_of_row(1e-9, 0), 0);
    assert_int_equal(kni_rans_class_of_row(127, 0), 60);
    assert_int_equal(kni_rans_class_of_row(1e9, 0), 63);
    for (double mean = 0.005; mean < 100; mean *= 1.01) {
        uint8_t class = kni_rans_class_of_row(mean, 0);
        assert_true(class <= kni_rans_class_of_row(mean * 1.01, 0));
        assert_int_equal(class + 4, kni_rans_class_of_row(2 * mean, 0));
        assert_int_equal(kni_rans_class_of_row(mean, -0.5), class);
        assert_int_equal(kni_rans_class_of_row(mean, 0.3), class + 64);
        assert_int_equal(kni_rans_class_of_row(mean, 0.7), class + 128);
        assert_int_equal(kni_rans_class_of_exponents(mean), 192 + (class < 47 ? class : 47));
        assert_in_range(1e6 * kni_rans_class_mean(class) / mean, 917004, 1090508); /* an eighth of an octave */
        assert_int_equal(1e6 * kni_rans_class_mean((uint8_t)(class + 128)), 1e6 * kni_rans_class_mean(class));
    }
}

/* Trained on some matrices, held against the entropy of rows of others. Tokens of equal loudness: no context helps, and the model may not
 * lose more than 1 %. Unequal ones: it must win. */
static void contexts_pay(void **state)
{
    (void)state;
    for (int loud = 0; loud < 2; loud++) {
        struct symbol_matrix train_on[6], test_on = symbol_matrix_make(300, 1024, 3.0, loud);
        for (int i = 0; i < 6; i++)
            train_on[i] = symbol_matrix_make(300, 1024, 2.0 + 0.5 * i, loud);
        struct kni_rans_model *model = train(train_on, 6);
        double bits = 8.0 * (double)coded_bytes(model, &test_on), entropy = symbol_matrix_entropy(&test_on);
        print_message("loudness %d: %.4f bits a symbol, rows' entropy %.4f, %u tables\n", loud, bits / (300 * 1024), entropy / (300 * 1024), model->n_tables);
        assert_true(bits < entropy * (loud ? 0.95 : 1.01));
        kni_rans_model_free(&model);
        symbol_matrix_free(&test_on);
        for (int i = 0; i < 6; i++)
            symbol_matrix_free(&train_on[i]);
    }
}

/* Rows that resemble the row above, coded as exponents, and rows whose tokens resemble the one before, coded as smooth, take fewer bits
 * than their values by themselves; exponents fewer than in plain classes, which look at the wrong neighbour. */
static void likeness_pays(void **state)
{
    (void)state;
    for (int kind = 0; kind < 2; kind++) {
        struct symbol_matrix m[2];
        double bits[2];
        for (int i = 0; i < 2; i++) { /* train, test */
            m[i] = symbol_matrix_alloc(200, 256);
            for (uint32_t r = 0; r < 200; r++)
                for (uint32_t t = 0; t < 256; t++) {
                    uint8_t *s = m[i].symbols + r * m[i].stride + t;
                    double near = kind ? (t ? s[-1] : 128.0) : (r ? s[-(ptrdiff_t)m[i].stride] : 128.0);
                    *s = (uint8_t)(128 + rint(0.8 * (near - 128) + 4 * (symbol_unit() + symbol_unit() + symbol_unit() - 1.5)));
                }
        }
        for (int plain = 0; plain < 2; plain++) {
            for (int i = 0; i < 2; i++)
                memset(m[i].classes, plain  ? kni_rans_class_of_row(2.5, 0)
                                     : kind ? kni_rans_class_of_row(2.5, 0.8)
                                            : kni_rans_class_of_exponents(2.5), 200);
            struct kni_rans_model *model = train(&m[0], 1);
            bits[plain] = 8.0 * (double)coded_bytes(model, &m[1]);
            kni_rans_model_free(&model);
        }
        double entropy = symbol_matrix_entropy(&m[1]);
        print_message("%s: %.3f of the rows' entropy, %.3f in plain classes\n", kind ? "smooth" : "exponents", bits[0] / entropy, bits[1] / entropy);
        assert_true(bits[0] < 0.95 * entropy && (kind || bits[0] < 0.95 * bits[1]));
        symbol_matrix_free(&m[0]);
        symbol_matrix_free(&m[1]);
    }
}

/* All widths, and matrices that nobody trained for: other classes, random bytes, -128. */
static void everything_can_be_coded(void **state)
{
    (void)state;
    struct symbol_matrix some = symbol_matrix_make(100, 64, 2.0, 0.5);
    struct kni_rans_model *models[2] = {train(NULL, 0), train(&some, 1)};
    for (int k = 0; k < 2; k++) {
        for (uint32_t n = 16; n <= 1024; n += n < 160 ? 16 : 144) {
            struct symbol_matrix a = symbol_matrix_make(20, n, n % 3 ? 0.3 : 20.0, 1.0), b = symbol_matrix_random(9, n);
            coded_bytes(models[k], &a);
            assert_int_equal(coded_bytes(models[k], &b), 9 * n + 1); /* raw */
            for (uint32_t i = 0; i < 30; i++) /* escapes within what is coded */
                a.symbols[symbol_random() % 20 * a.stride + symbol_random() % n] = (uint8_t)(i % 3 ? symbol_random() : 0);
            coded_bytes(models[k], &a);
            symbol_matrix_free(&a);
            symbol_matrix_free(&b);
        }
        struct symbol_matrix none = symbol_matrix_make(1, 16, 1, 0);
        none.n_rows = 0;
        assert_int_equal(coded_bytes(models[k], &none), 1);
        symbol_matrix_free(&none);
        kni_rans_model_free(&models[k]);
        assert_null(models[k]);
    }
    symbol_matrix_free(&some);
}

static void models_go_through_bytes(void **state)
{
    (void)state;
    struct symbol_matrix m = symbol_matrix_make(300, 128, 2.0, 0.7);
    struct kni_rans_model *a = train(&m, 1), *b = NULL;
    size_t n = kni_rans_model_bytes(a);
    assert_true(n <= 300 * 1024);
    uint8_t *bytes = malloc(n), *again = malloc(n);
    assert_true(bytes && again);
    kni_rans_model_write(a, bytes);
    assert_int_equal(kni_rans_model_read(&b, bytes, n, NULL), KN_OK);
    assert_int_equal(kni_rans_model_bytes(b), n);
    kni_rans_model_write(b, again);
    assert_memory_equal(bytes, again, n);
    assert_int_equal(coded_bytes(a, &m), coded_bytes(b, &m));
    kni_rans_model_free(&b);
    struct kn_err err;
    for (size_t cut = 0; cut < n; cut += cut < 100 ? 1 : 997) /* every length but the right one */
        assert_int_equal(kni_rans_model_read(&b, bytes, cut, &err), KN_E_FORMAT);
    int refused = 0;
    for (int i = 0; i < 400; i++) { /* a damaged byte is refused or at least harmless */
        size_t at = symbol_random() % n;
        uint8_t was = bytes[at];
        bytes[at] ^= (uint8_t)(1 + symbol_random() % 255);
        enum kn_status s = kni_rans_model_read(&b, bytes, n, &err);
        if (s == KN_OK)
            coded_bytes(b, &m);
        else
            assert_true(s == KN_E_FORMAT && strlen(err.text) > 10);
        refused += s != KN_OK;
        bytes[at] = was;
        kni_rans_model_free(&b);
    }
    assert_true(refused > 200);
    kni_rans_model_free(&a);
    free(bytes);
    free(again);
    symbol_matrix_free(&m);
}

static void training_does_not_depend_on_chance(void **state)
{
    (void)state;
    struct symbol_matrix m[2] = {symbol_matrix_make(200, 96, 2.0, 0.7), symbol_matrix_make(100, 256, 1.0, 0.7)};
    struct kni_rans_model *a = train(m, 2), *b = train(m, 2);
    size_t n = kni_rans_model_bytes(a);
    uint8_t *x = malloc(n), *y = malloc(n);
    assert_true(x && y && n == kni_rans_model_bytes(b));
    kni_rans_model_write(a, x);
    kni_rans_model_write(b, y);
    assert_memory_equal(x, y, n);
    kni_rans_model_free(&a);
    kni_rans_model_free(&b);
    free(x);
    free(y);
    symbol_matrix_free(&m[0]);
    symbol_matrix_free(&m[1]);
}

static void failing_allocations_are_reported(void **state)
{
    (void)state;
    struct symbol_matrix m = symbol_matrix_make(20, 64, 2.0, 0.7);
    struct kni_rans_model *good = train(&m, 1);
    size_t n = kni_rans_model_bytes(good);
    uint8_t *bytes = malloc(n);
    assert_non_null(bytes);
    kni_rans_model_write(good, bytes);
    kni_rans_model_free(&good);
    uint64_t before = kni_alloc_get_stats(KNI_ALLOC_TAG_COUNT).current_bytes;
    int failures = 0;
    for (uint64_t i = 1;; i++, failures++) {
        struct kni_rans_trainer *t = NULL;
        struct kni_rans_model *a = NULL, *b = NULL;
        kni_alloc_fault_arm(i, false);
        enum kn_status s = kni_rans_trainer_open(&t);
        if (s == KN_OK) {
            kni_rans_trainer_add(t, m.symbols, m.stride, m.n_rows, m.n_tokens, m.classes);
            s = kni_rans_trainer_finish(t, &a);
        }
        if (s == KN_OK)
            s = kni_rans_model_read(&b, bytes, n, NULL);
        bool hit = kni_alloc_fault_hit();
        kni_alloc_fault_arm(0, false);
        kni_rans_trainer_close(&t);
        kni_rans_model_free(&a);
        kni_rans_model_free(&b);
        assert_int_equal(kni_alloc_get_stats(KNI_ALLOC_TAG_COUNT).current_bytes, before);
        assert_int_equal(s, hit ? KN_E_NOMEM : KN_OK);
        if (!hit)
            break;
    }
    assert_true(failures >= 8);
    free(bytes);
    symbol_matrix_free(&m);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(normalised_tables_are_right), cmocka_unit_test(classes_follow_a_log_scale), cmocka_unit_test(contexts_pay), cmocka_unit_test(likeness_pays),
        cmocka_unit_test(everything_can_be_coded), cmocka_unit_test(models_go_through_bytes), cmocka_unit_test(training_does_not_depend_on_chance),
        cmocka_unit_test(failing_allocations_are_reported),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
