/* SPDX-License-Identifier: Apache-2.0 */
/*
 * rANS at every level that the machine has: the same bytes and the same symbols as the reference for all widths, kinds of matrices and
 * models; nothing written beside the symbols, the stream or the scratch; damaged streams end alike on every level. --bench prints
 * MB/s of symbols, one thread.
 */
#include "check.h"
#include "codec/rans/rans_model.h"
#include "support/cpu_levels.h"
#include "support/symbol_matrix.h"

struct bed {
    uint8_t *out, *back;
    void *scratch, *few;
};

static struct bed bed_make(const struct symbol_matrix *m)
{
    return (struct bed){guarded(kni_rans_bound(m->n_rows, m->n_tokens)), guarded(m->stride * m->n_rows), guarded(kni_rans_scratch_bytes(m->n_rows, m->n_tokens)),
                        guarded(kni_rans_decode_scratch_bytes())};
}

static void bed_free(struct bed *b)
{
    guarded_check_free(b->out);
    guarded_check_free(b->back);
    guarded_check_free(b->scratch);
    guarded_check_free(b->few);
}

static size_t encode(const struct kni_rans_model *model, const struct symbol_matrix *m, struct bed *b, uint32_t level)
{
    size_t n = kni_rans_encode(model, m->symbols, m->stride, m->n_rows, m->n_tokens, m->classes, b->out, b->scratch,
                               cpu_sets[level]);
    return n;
}

static enum kn_status decode(const struct kni_rans_model *model, const uint8_t *data, size_t n, const struct symbol_matrix *m, struct bed *b, uint32_t level)
{
    memset(b->back, 0x5a, m->stride * m->n_rows);
    enum kn_status s = kni_rans_decode(model, data, n, m->n_rows, m->n_tokens, m->classes, b->back, m->stride, b->few,
                                       cpu_sets[level]);
    for (uint32_t r = 0; r < m->n_rows; r++) /* between the rows nothing changes */
        for (size_t t = m->n_tokens; t < m->stride; t++)
            assert_int_equal(b->back[r * m->stride + t], 0x5a);
    return s;
}

/* Returns the bytes of the stream, which is in b->out. */
static size_t same_everywhere(const struct kni_rans_model *model, const struct symbol_matrix *m, struct bed *b)
{
    size_t n = encode(model, m, b, 0);
    uint8_t *want = malloc(n), *data = malloc(n);
    assert_true(want && data);
    memcpy(want, b->out, n);
    for (uint32_t i = 0; i < cpu_sets_count(N_CPU_LEVELS); i++) {
        assert_int_equal(encode(model, m, b, i), n);
        assert_memory_equal(b->out, want, n);
        memcpy(data, b->out, n); /* of exactly n bytes */
        assert_int_equal(decode(model, data, n, m, b, i), KN_OK);
        assert_memory_equal(b->back, m->symbols, m->stride * m->n_rows);
    }
    free(want);
    free(data);
    return n;
}

static void levels_agree(void **state)
{
    (void)state;
    struct kni_rans_model *model = symbol_matrix_model();
    for (uint32_t n = 16; n <= 1024; n += n < 320 ? 16 : 112)
        for (int kind = 0; kind < 5; kind++) {
            struct symbol_matrix m = kind == 4 ? symbol_matrix_random(7, n) : symbol_matrix_make(1 + rnd() % 40, n, kind == 0 ? 0.2 : kind == 1 ? 3 : kind == 2 ? 15 : 60, 0.8);
            for (int i = 0; kind == 1 && i < 20; i++) /* escapes amid small symbols, the escape's own number too */
                m.symbols[rnd() % m.n_rows * m.stride + rnd() % n] = (uint8_t)(i % 2 ? rnd() : 64);
            struct bed b = bed_make(&m);
            same_everywhere(model, &m, &b);
            bed_free(&b);
            symbol_matrix_free(&m);
        }
    kni_rans_model_free(&model);
}

/* Tables as no trainer makes them, so that every way of dealing out slots occurs: few symbols, all, nearly one alone. */
static void levels_agree_for_odd_tables(void **state)
{
    (void)state;
    struct kni_rans_model *trained = symbol_matrix_model(), *model = NULL;
    size_t n_bytes = kni_rans_model_bytes(trained), tables_at = n_bytes - trained->n_tables * 256u;
    uint8_t *bytes = malloc(n_bytes);
    assert_non_null(bytes);
    for (int round = 0; round < 40; round++) {
        kni_rans_model_write(trained, bytes);
        for (uint32_t t = 0; t < trained->n_tables; t++) {
            double w[256] = {0};
            uint16_t f[256];
            for (int s = 64; s < 192; s++)
                w[s] = rnd() % 128 < (uint32_t)round * 4 ? exp(-(double)(rnd() % 8)) : 0;
            w[64] += 1e-4 + (round % 3 ? 0 : 1);
            w[128] += round % 5 ? 0.1 : 1e6;
            kni_rans_normalise(w, f);
            for (int s = 0; s < 128; s++)
                kni_le16_put(bytes + tables_at + t * 256 + 2 * s, f[64 + s]);
        }
        assert_int_equal(kni_rans_model_read(&model, bytes, n_bytes, NULL), KN_OK);
        struct symbol_matrix m = symbol_matrix_make(12, 16 + rnd() % 20 * 16, round % 2 ? 1 : 8, 0.5);
        struct bed b = bed_make(&m);
        same_everywhere(model, &m, &b);
        bed_free(&b);
        symbol_matrix_free(&m);
        kni_rans_model_free(&model);
    }
    free(bytes);
    kni_rans_model_free(&trained);
}

static void damage_ends_alike(void **state)
{
    (void)state;
    struct kni_rans_model *model = symbol_matrix_model();
    uint32_t refused = 0, rounds = 0;
    for (uint32_t n = 16; n <= 272; n += 64) {
        struct symbol_matrix m = symbol_matrix_make(40, n, 3.0, 0.7);
        struct bed b = bed_make(&m);
        size_t bytes = same_everywhere(model, &m, &b);
        uint8_t *good = malloc(bytes);
        assert_non_null(good);
        memcpy(good, b.out, bytes);
        for (int round = 0; round < 300; round++, rounds++) {
            size_t size = round % 3 == 0 ? rnd() % bytes : round % 3 == 1 ? bytes : bytes + rnd() % 9;
            uint8_t *data = malloc(size + 1), *first = malloc(m.stride * m.n_rows);
            assert_true(data && first);
            for (size_t i = 0; i < size; i++)
                data[i] = i < bytes ? good[i] : (uint8_t)rnd();
            if (round % 3 == 1)
                for (uint32_t k = 1 + rnd() % 3; k--;)
                    data[round % 2 ? rnd() % bytes : rnd() % 140 % bytes] ^= (uint8_t)(1u << rnd() % 8);
            if (size == bytes && !memcmp(data, good, bytes))
                data[bytes - 1] ^= 1;
            data = realloc(data, size ? size : 1); /* sanitizers see the first byte beyond */
            assert_non_null(data);
            enum kn_status want = decode(model, data, size, &m, &b, 0);
            memcpy(first, b.back, m.stride * m.n_rows);
            refused += want == KN_E_FORMAT;
            for (uint32_t i = 1; i < cpu_sets_count(N_CPU_LEVELS); i++) {
                assert_int_equal(decode(model, data, size, &m, &b, i), want);
                if (want == KN_OK)
                    assert_memory_equal(b.back, first, m.stride * m.n_rows);
            }
            assert_true(size == bytes || want == KN_E_FORMAT);
            free(data);
            free(first);
        }
        free(good);
        bed_free(&b);
        symbol_matrix_free(&m);
    }
    print_message("%u of %u damaged streams refused\n", refused, rounds);
    assert_true(refused > rounds * 99 / 100); /* all 32 states and the length must fit: what passes changed symbols alone */
    kni_rans_model_free(&model);
}

static void bench(void)
{
    static const struct { const char *name; double mean; } kinds[] = {{"0.5 bits", 0.8}, {"1.3 bits", 2.4}, {"3 bits", 10}};
    for (size_t k = 0; k < sizeof kinds / sizeof *kinds; k++) {
        struct kni_rans_trainer *t;
        struct kni_rans_model *model;
        struct symbol_matrix m = symbol_matrix_make(1200, 256, kinds[k].mean, 0.4);
        assert_int_equal(kni_rans_trainer_open(&t), KN_OK);
        for (int i = 0; i < 4; i++) {
            struct symbol_matrix other = symbol_matrix_make(1200, 256, kinds[k].mean, 0.4);
            kni_rans_trainer_add(t, other.symbols, other.stride, other.n_rows, other.n_tokens, other.classes);
            symbol_matrix_free(&other);
        }
        assert_int_equal(kni_rans_trainer_finish(t, &model), KN_OK);
        kni_rans_trainer_close(&t);
        struct bed b = bed_make(&m);
        double count = (double)m.n_rows * m.n_tokens, s;
        for (uint32_t i = 0; i < cpu_sets_count(N_CPU_LEVELS); i++) {
            size_t n = 0;
            BENCH_SECONDS(s, n = kni_rans_encode(model, m.symbols, m.stride, m.n_rows, m.n_tokens, m.classes, b.out,
                                                 b.scratch, cpu_sets[i]));
            printf("%-9s %-9s %5.3f bits a symbol (rows' entropy %5.3f), encode %6.1f", kinds[k].name, cpu_set_names[i], 8.0 * (double)n / count,
                   symbol_matrix_entropy(&m) / count, count / s * 1e-6);
            BENCH_SECONDS(s, kni_rans_decode(model, b.out, n, m.n_rows, m.n_tokens, m.classes, b.back, m.stride, b.few,
                                             cpu_sets[i]));
            printf(" decode %6.1f MB/s\n", count / s * 1e-6);
        }
        bed_free(&b);
        symbol_matrix_free(&m);
        kni_rans_model_free(&model);
    }
}

int main(int argc, char **argv)
{
    bool want_bench = check_start(argc, argv);
    if (want_bench) {
        bench();
        return 0;
    }
    const struct CMUnitTest tests[] = {cmocka_unit_test(levels_agree), cmocka_unit_test(levels_agree_for_odd_tables), cmocka_unit_test(damage_ends_alike)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
