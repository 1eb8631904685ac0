/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Calibration on made-up K and V whose structure is known: bases are orthonormal, descend in variance and make coefficients
 * uncorrelated; means, weights, exponents, row counts and classes are those of plain sums in double; what cannot be coded is refused.
 */
#include "unit/codec/codec_support.h"

#include "profile/calibrate.h"
#include "codec/profile/profile_format.h"
#include "codec/spectral/spectral.h"
#include "kernel/rope.h"

#define N_TOKENS 640u
#define N_SINKS 4u

struct fixture {
    struct pool pool;
    struct kni_threads *threads;
    double freqs[2 * 16];
    uint8_t layers[3];
    struct kni_calibrate_opts opts;
    struct kni_calibrate *c;
};

static double normal(void)
{
    double sum = 0;
    for (int i = 0; i < 12; i++)
        sum += (double)(test_random() & 0xffffff) / 0x1000000;
    return sum - 6.0;
}

/* Values from few factors a token, each with a deviation of its own, plus a mean and noise: three layers of 2 heads of 32. */
static void fill(struct pool *p)
{
    const struct kni_kv_layout *l = &p->view.layout;
    enum { N_FACTORS = 12 };
    static float mix[2][N_FACTORS][3 * 64], mean[2][3 * 64];
    for (int v = 0; v < 2; v++)
        for (int i = 0; i < 3 * 64; i++) {
            mean[v][i] = 0.5f * (float)normal();
            for (int f = 0; f < N_FACTORS; f++)
                mix[v][f][i] = (float)(normal() * 1.5 / (1 + f));
        }
    for (uint32_t pos = 0; pos < p->view.n_blocks * KNI_BLOCK_TOKENS; pos++)
        for (uint32_t v = 0; v < 2; v++) {
            float factor[N_FACTORS], size = exp2f((float)normal() * 0.5f) * (pos < N_SINKS ? 100.0f : 1.0f);
            for (int f = 0; f < N_FACTORS; f++)
                factor[f] = (float)normal();
            for (uint32_t i = 0; i < 3 * 64; i++) {
                float x = mean[v][i] + 0.05f * (float)normal();
                for (int f = 0; f < N_FACTORS; f++)
                    x += factor[f] * mix[v][f][i];
                kni_kv_row(&p->view, i / 64, v, i % 64 / 32, pos)[i % 32] = test_to_half(x * size, l->type);
            }
        }
}

static void make(struct fixture *f, uint32_t n_group, uint32_t n_threads)
{
    test_rng = 0x2545f4914f6cdd1du;
    f->pool = pool_make(3, 2, 32, KN_KV_TYPE_F16, N_TOKENS);
    fill(&f->pool);
    assert_int_equal(kni_threads_open(&f->threads, n_threads), KN_OK);
    kni_rope_freqs(f->freqs, 16, 1e4f, 1, NULL);
    kni_rope_freqs(f->freqs + 16, 16, 1e6f, 1, NULL);
    memcpy(f->layers, ((uint8_t[]){0, 1, 0}), 3);
    f->opts = (struct kni_calibrate_opts){.fingerprint = {7}, .kv = f->pool.view.layout, .n_group = n_group, .n_sinks = N_SINKS, .threads = f->threads,
                                          .rope = {.neox = true, .rope_dim = 32, .n_ropes = 2, .freqs = f->freqs, .layers = f->layers}};
    struct kn_err err = {0};
    assert_int_equal(kni_calibrate_open(&f->c, &f->opts, &err), KN_OK);
}

static void drop(struct fixture *f)
{
    kni_calibrate_close(&f->c);
    kni_threads_close(&f->threads);
    pool_free(&f->pool);
}

/* A part's rows, [n][width], as kni_spectral_rows gives them: n tokens from N_SINKS on. */
static float *rows_of(const struct fixture *f, const struct kni_profile_part *part, uint32_t is_v, uint32_t n, int8_t *exponents)
{
    float *x = malloc((size_t)n * part->width * sizeof *x);
    assert_non_null(x);
    kni_spectral_rows(&f->pool.view, &f->opts.rope, part->first_layer, part->n_layers, is_v, part->weight, N_SINKS, n, x, exponents);
    return x;
}

/* y[n][width], centred rows times the basis. */
static double *coefficients(const struct kni_profile_part *part, const float *x, uint32_t n)
{
    double *y = calloc((size_t)n * part->width, sizeof *y);
    assert_non_null(y);
    for (uint32_t t = 0; t < n; t++)
        for (uint32_t r = 0; r < part->width; r++)
            for (uint32_t i = 0; i < part->width; i++)
                y[(size_t)t * part->width + r] += (double)(x[(size_t)t * part->width + i] - part->mean[i]) * (double)kni_bf16_to_f32(part->basis[(size_t)r * part->width + i]);
    return y;
}

static void bases_make_coefficients_uncorrelated(void **state)
{
    (void)state;
    struct fixture f = {0};
    struct kn_err err = {0};
    make(&f, 2, 2);
    assert_int_equal(kni_calibrate_add(f.c, &f.pool.view, 400), KN_OK); /* two texts that lie one behind the other would have other sinks: the same twice */
    assert_int_equal(kni_calibrate_add(f.c, &f.pool.view, 400), KN_OK);
    if (kni_calibrate_solve(f.c, NULL, NULL, &err))
        fail_msg("%s", err.text);
    const struct kni_profile *p = kni_calibrate_profile(f.c);
    assert_int_equal(p->n_parts, 4);
    assert_int_equal(p->n_calibration_tokens, 2 * (400 - N_SINKS));
    const uint32_t n = 400 - N_SINKS;
    for (uint32_t k = 0; k < p->n_parts; k++) {
        const struct kni_profile_part *part = &p->parts[k];
        uint32_t w = part->width;
        int8_t exponents[2 * 400];
        assert_int_equal(w, k < 2 ? 128 : 64);
        for (uint32_t a = 0; a < w; a++)
            for (uint32_t b = 0; b <= a; b++) {
                double dot = 0;
                for (uint32_t i = 0; i < w; i++)
                    dot += (double)kni_bf16_to_f32(part->basis[(size_t)a * w + i]) * (double)kni_bf16_to_f32(part->basis[(size_t)b * w + i]);
                assert_true(fabs(dot - (a == b)) < 0.01);
            }
        float *x = rows_of(&f, part, k & 1, n, exponents);
        for (uint32_t i = 0; i < w; i++) {
            double mean = 0;
            for (uint32_t t = 0; t < n; t++)
                mean += (double)x[(size_t)t * w + i] / n;
            assert_true(fabs(mean - (double)part->mean[i]) < 1e-5);
        }
        double *y = coefficients(part, x, n), *variance = calloc(w, sizeof *variance), total = 0, first = 0;
        assert_non_null(variance);
        for (uint32_t a = 0; a < w; a++) {
            for (uint32_t t = 0; t < n; t++)
                variance[a] += y[(size_t)t * w + a] * y[(size_t)t * w + a] / n;
            total += variance[a];
            first += a < 16 ? variance[a] : 0;
            assert_true(!a || variance[a] <= variance[a - 1] * 1.02 + 1e-6);
        }
        assert_true(!(k & 1) || first > 0.97 * total); /* V: twelve factors, and what rounded scales make of them */
        for (uint32_t a = 0; a < 16; a++)
            for (uint32_t b = 0; b < a; b++) {
                double c = 0;
                for (uint32_t t = 0; t < n; t++)
                    c += y[(size_t)t * w + a] * y[(size_t)t * w + b] / n;
                assert_true(fabs(c) < 0.01 * sqrt(variance[0] * variance[b]));
            }
        for (uint32_t l = 0; l < part->n_layers; l++) { /* typical: the median */
            uint32_t below = 0, above = 0;
            for (uint32_t t = 0; t < n; t++) {
                below += exponents[l * n + t] < part->exponent[l];
                above += exponents[l * n + t] > part->exponent[l];
            }
            assert_true(below <= n / 2 && above <= n / 2);
        }
        free(variance);
        free(y);
        free(x);
    }
    drop(&f);
}

/* The same sums whatever the number of workers, up to nothing: a part belongs to one of them. */
static void workers_do_not_matter(void **state)
{
    (void)state;
    struct fixture f = {0}, g = {0};
    make(&f, 1, 1);
    make(&g, 1, 3);
    assert_int_equal(kni_calibrate_add(f.c, &f.pool.view, N_TOKENS), KN_OK);
    assert_int_equal(kni_calibrate_add(g.c, &g.pool.view, N_TOKENS), KN_OK);
    assert_int_equal(kni_calibrate_solve(f.c, NULL, NULL, NULL), KN_OK);
    assert_int_equal(kni_calibrate_solve(g.c, NULL, NULL, NULL), KN_OK);
    for (uint32_t k = 0; k < 6; k++) {
        const struct kni_profile_part *a = &kni_calibrate_profile(f.c)->parts[k], *b = &kni_calibrate_profile(g.c)->parts[k];
        assert_memory_equal(a->mean, b->mean, 64 * sizeof(float));
        assert_memory_equal(a->exponent, b->exponent, 1);
    }
    drop(&f);
    drop(&g);
}

static void query_power_becomes_weights(void **state)
{
    (void)state;
    struct fixture f = {0};
    make(&f, 2, 1);
    double power[3 * 64], sum = 0;
    for (int i = 0; i < 3 * 64; i++)
        power[i] = 1 + (i * 7) % 13;
    power[5] = power[5 + 16] = 0; /* a pair that no query meets */
    for (int i = 128; i < 192; i++)
        power[i] = 0; /* a whole layer */
    kni_calibrate_set_query_power(f.c, power);
    const struct kni_profile *p = kni_calibrate_profile(f.c);
    for (int i = 0; i < 64; i++)
        sum += power[i] / 64;
    for (int i = 0; i < 64; i++) {
        int pair = i % 32 < 16 ? i + 16 : i - 16;
        double want = sqrt((power[i] + power[pair]) / 2 / sum);
        assert_true(fabs((double)p->parts[0].weight[i] - (want < 0.1 ? 0.1 : want)) < 1e-6);
        assert_true(p->parts[0].weight[64 + i] > 0 && p->parts[1].weight[i] == 1 && p->parts[2].weight[i] == 1);
    }
    assert_true(p->parts[0].weight[5] == 0.1f);
    drop(&f);
}

static void sensitivity_becomes_gains(void **state)
{
    (void)state;
    struct fixture f = {0}, g = {0};
    make(&f, 2, 1);
    make(&g, 2, 1);
    kni_calibrate_set_sensitivity(f.c, (double[]){1, 4, 16, 1e-9, 1, 1}); /* K: geometric mean 4; V: the first seems worthless */
    const struct kni_profile *p = kni_calibrate_profile(f.c), *q = kni_calibrate_profile(g.c);
    assert_int_equal(p->parts[0].gain[0], -3);
    assert_int_equal(p->parts[0].gain[1], 0);
    assert_int_equal(p->parts[2].gain[0], 3);
    assert_int_equal(p->parts[1].gain[0], -8);
    assert_int_equal(p->parts[1].gain[1], 8);
    assert_int_equal(kni_calibrate_add(f.c, &f.pool.view, N_TOKENS), KN_OK);
    assert_int_equal(kni_calibrate_add(g.c, &g.pool.view, N_TOKENS), KN_OK);
    assert_int_equal(kni_calibrate_solve(f.c, NULL, NULL, NULL), KN_OK);
    assert_int_equal(kni_calibrate_solve(g.c, NULL, NULL, NULL), KN_OK);
    for (int i = 0; i < 64; i++) { /* the rows themselves grow by the gain: their means show it */
        assert_true(fabs((double)p->parts[0].mean[i] - exp2(-0.75) * (double)q->parts[0].mean[i]) < 1e-5);
        assert_true(fabs((double)p->parts[2].mean[i] - exp2(0.75) * (double)q->parts[2].mean[i]) < 1e-5);
    }
    assert_int_equal(p->parts[0].exponent[0], q->parts[0].exponent[0]); /* but not their exponents */
    kni_calibrate_set_sensitivity(g.c, (double[]){0, 0, 0, 0, 0, 0});
    assert_int_equal(q->parts[0].gain[0], 0);
    drop(&f);
    drop(&g);
}

static void rows_and_classes_are_those_of_symbols(void **state)
{
    (void)state;
    struct fixture f = {0};
    make(&f, 3, 2);
    assert_int_equal(kni_calibrate_add(f.c, &f.pool.view, N_TOKENS), KN_OK);
    assert_int_equal(kni_calibrate_solve(f.c, NULL, NULL, NULL), KN_OK);
    assert_int_equal(kni_calibrate_count(f.c, &f.pool.view, 300), KN_OK);
    assert_int_equal(kni_calibrate_count(f.c, &f.pool.view, 300), KN_OK);
    const float steps[3][2] = {{0.02f, 0.05f}, {0.3f, 0.6f}, {1.5f, 30.0f}};
    for (uint32_t k = 0; k < 3; k++)
        kni_calibrate_set_preset(f.c, (enum kni_profile_preset)k, steps[k][0], steps[k][1], 0.05);
    const struct kni_profile *p = kni_calibrate_profile(f.c);
    const uint32_t n = 300 - N_SINKS;
    for (uint32_t part_id = 0; part_id < 2; part_id++) {
        const struct kni_profile_part *part = &p->parts[part_id];
        int8_t exponents[3 * 300];
        float *x = rows_of(&f, part, part_id, n, exponents);
        double *y = coefficients(part, x, n);
        for (uint32_t k = 0; k < 3; k++) {
            uint32_t sure = 0, perhaps = 0;
            for (uint32_t r = 0; r < part->width; r++) {
                double mean = 0, share = 0, power = 0, product = 0;
                for (uint32_t t = 0; t < n; t++) {
                    const double *at = y + (size_t)t * part->width + r;
                    power += at[0] * at[0];
                    product += t ? at[0] * at[-(ptrdiff_t)part->width] : 0;
                    double s = rint(y[(size_t)t * part->width + r] / (double)steps[k][part_id]);
                    mean += fabs(s) / n;
                    share += (s != 0) * 1.0 / n;
                }
                sure += share > 0.07;
                perhaps += share > 0.03;
                if (r >= part->rows[k])
                    continue;
                uint8_t class = part->classes[k][part->n_layers + r];
                double lag = product / power; /* but for the pairs across blocks */
                assert_in_range(class % 64, kni_rans_class_of_row(mean * 0.85 - 0.01, 0),
                                kni_rans_class_of_row(mean * 1.15 + 0.01, 0));
                assert_in_range(class / 64, kni_rans_class_of_row(1, lag - 0.05) / 64, kni_rans_class_of_row(1, lag + 0.05) / 64);
            }
            for (uint32_t l = 0; l < part->n_layers; l++)
                assert_true(part->classes[k][l] >= kni_rans_class_of_exponents(0) && part->classes[k][l] < KNI_RANS_MAX_CLASSES);
            assert_true(part->step[k] == steps[k][part_id]);
            assert_int_equal(part->rows[k] % 16, 0);
            assert_true(part->rows[k] + 15 >= sure && part->rows[k] <= (perhaps < 16 ? 16 : (perhaps + 15) / 16 * 16));
        }
        free(x);
        free(y);
    }
    assert_true(p->parts[0].rows[0] > p->parts[0].rows[1] && p->parts[0].rows[1] >= p->parts[0].rows[2]);
    assert_int_equal(p->parts[1].rows[2], 16); /* never none */
    assert_int_equal(p->parts[0].n_rows, 192);
    kni_calibrate_trim(f.c);
    assert_int_equal(p->parts[0].n_rows, p->parts[0].rows[0]);
    drop(&f);
}

static void shapes(void **state)
{
    (void)state;
    struct fixture f = {0};
    make(&f, 0, 1);
    assert_int_equal(kni_calibrate_profile(f.c)->n_group, 3);
    assert_int_equal(kni_calibrate_min_tokens(f.c), 3 * 192);
    struct kni_calibrate *c;
    struct kn_err err = {0};
    const struct { uint32_t n_layer, n_kv_head, d_head, n_group; enum kn_status status; uint32_t chosen; } cases[] = {
        {30, 3, 64, 0, KN_OK, 8}, {18, 1, 256, 0, KN_OK, 6}, {32, 8, 128, 0, KN_OK, 2}, {80, 8, 128, 4, KN_OK, 4}, {28, 2, 128, 0, KN_OK, 6}, {28, 12, 128, 0, KN_OK, 1},
        {16, 16, 256, 0, KN_OK, 1}, {3, 2, 24, 0, KN_E_UNSUPPORTED, 0}, {3, 33, 128, 0, KN_E_UNSUPPORTED, 0}, {3, 2, 32, 4, KN_E_ARG, 0}, {80, 8, 128, 5, KN_E_ARG, 0},
    };
    for (unsigned i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct kni_calibrate_opts o = f.opts;
        uint8_t layers[80] = {0};
        o.kv = (struct kni_kv_layout){cases[i].n_layer, cases[i].n_kv_head, cases[i].d_head, 0};
        o.rope.rope_dim = 16;
        o.rope.layers = layers;
        o.n_group = cases[i].n_group;
        assert_int_equal(kni_calibrate_open(&c, &o, &err), cases[i].status);
        if (c)
            assert_int_equal(kni_calibrate_profile(c)->n_group, cases[i].chosen);
        else
            assert_true(err.status == cases[i].status && *err.text);
        kni_calibrate_close(&c);
    }
    drop(&f);
}

static void constant_kv_is_refused(void **state)
{
    (void)state;
    struct fixture f = {0};
    struct kn_err err = {0};
    make(&f, 3, 1);
    memset(f.pool.view.k, 0, f.pool.n_values * 2);
    assert_int_equal(kni_calibrate_add(f.c, &f.pool.view, N_TOKENS), KN_OK);
    assert_int_equal(kni_calibrate_solve(f.c, NULL, NULL, &err), KN_E_ARG);
    assert_non_null(strstr(err.text, "K of layers 0 to 2"));
    drop(&f);
}

static void out_of_memory(void **state)
{
    (void)state;
    struct fixture f = {0};
    struct kn_err err = {0};
    make(&f, 3, 1);
    uint64_t before = kni_alloc_get_stats(KNI_ALLOC_TAG_COUNT).current_bytes;
    struct kni_calibrate *c;
    for (uint64_t i = 1;; i++) {
        kni_alloc_fault_arm(i, false);
        enum kn_status s = kni_calibrate_open(&c, &f.opts, &err);
        bool hit = kni_alloc_fault_hit();
        kni_alloc_fault_arm(0, false);
        assert_int_equal(s, hit ? KN_E_NOMEM : KN_OK);
        kni_calibrate_close(&c);
        assert_int_equal(kni_alloc_get_stats(KNI_ALLOC_TAG_COUNT).current_bytes, before);
        if (!hit)
            break;
    }
    kni_alloc_fault_arm(2, false);
    assert_int_equal(kni_calibrate_add(f.c, &f.pool.view, N_TOKENS), KN_E_NOMEM);
    kni_alloc_fault_arm(0, false);
    assert_int_equal(kni_calibrate_add(f.c, &f.pool.view, N_TOKENS), KN_OK);
    for (uint64_t i = 1; i <= 4; i++) { /* work, iwork, values, basis */
        kni_alloc_fault_arm(i, false);
        assert_int_equal(kni_calibrate_solve(f.c, NULL, NULL, &err), KN_E_NOMEM);
        kni_alloc_fault_arm(0, false);
    }
    drop(&f);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(bases_make_coefficients_uncorrelated), cmocka_unit_test(workers_do_not_matter), cmocka_unit_test(query_power_becomes_weights), cmocka_unit_test(sensitivity_becomes_gains),
        cmocka_unit_test(rows_and_classes_are_those_of_symbols), cmocka_unit_test(shapes), cmocka_unit_test(constant_kv_is_refused), cmocka_unit_test(out_of_memory),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
