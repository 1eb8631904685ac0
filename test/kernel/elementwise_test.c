/* SPDX-License-Identifier: Apache-2.0 */
/* rmsnorm, rope, silu * up, softmax tiles, exp, scale and 16-bit conversions: references against double, SIMD the same. */
#include "check.h"
#include "model/model.h"

static const uint32_t sizes[] = {1, 2, 3, 7, 8, 9, 15, 16, 17, 31, 64, 100, 576, 577};
#define N_SIZES (sizeof sizes / sizeof *sizes)

/* Budget: the sum of squares has no cancellation: relative error at most n * eps, halved by the root; 4 more roundings. */
static void rmsnorm_is_right(void **state)
{
    (void)state;
    for (int v = 0; v < 2; v++)
        for (unsigned i = 0; i < N_SIZES; i++)
            for (int p = 0; p < PATTERN_COUNT; p++) {
                uint32_t n = sizes[i];
                float *x = floats(n), *w = floats(n), *y = floats(n);
                fill(x, n, (enum pattern)p);
                fill(w, n, PATTERN_RANDOM);
                double sum = 0;
                for (uint32_t j = 0; j < n; j++)
                    sum += (double)x[j] * x[j];
                double scale = 1 / sqrt(sum / n + 1e-5);
                check_tables[v].rmsnorm(y, x, w, n, 1e-5f);
                for (uint32_t j = 0; j < n; j++)
                    CHECK_NEAR(y[j], x[j] * scale * w[j], (n / 2 + 4) * CHECK_EPS * fabs(x[j] * scale * w[j]) + 1e-44, "rmsnorm %s n %u pattern %d", check_names[v], n, p);
                check_tables[v].rmsnorm(x, x, w, n, 1e-5f); /* in place */
                assert_memory_equal(x, y, n * sizeof *x);
                guarded_check_free(x);
                guarded_check_free(w);
                guarded_check_free(y);
            }
}

/* Budget: two products and a sum: 2 eps (|a| + |b|). */
static void rope_is_right(void **state)
{
    (void)state;
    static const uint32_t pairs[] = {1, 3, 4, 5, 8, 12, 16, 32, 48, 64};
    for (int v = 0; v < 2; v++)
        for (int style = 0; style < 2; style++)
            for (unsigned i = 0; i < 10; i++) {
                uint32_t n = pairs[i], pos = rnd() % 100000;
                float *x = floats(2 * n), *y = floats(2 * n), *c = floats(n), *s = floats(n), *factors = floats(n);
                double *freqs = guarded(n * sizeof *freqs);
                bool scaled = i % 3 == 1;
                for (uint32_t j = 0; j < n; j++)
                    factors[j] = 1 + (float)(rnd() % 8);
                fill(x, 2 * n, i % 2 ? PATTERN_MIXED : PATTERN_RANDOM);
                memcpy(y, x, 2 * n * sizeof *x);
                kni_rope_freqs(freqs, n, 100000.0f, scaled ? 0.25f : 1.0f, scaled ? factors : NULL);
                kni_rope_table(c, s, pos, n, freqs);
                check_tables[v].rope[style](y, c, s, n);
                for (uint32_t j = 0; j < n; j++) {
                    double angle = pos * pow(100000.0, -(double)j / n) * (scaled ? 0.25 / (double)factors[j] : 1);
                    uint32_t ia = style ? j : 2 * j, ib = style ? j + n : 2 * j + 1;
                    double a = x[ia], b = x[ib], budget = 2.5 * CHECK_EPS * (fabs(a) + fabs(b));
                    CHECK_NEAR(c[j], cos(angle), CHECK_EPS, "cos");
                    CHECK_NEAR(y[ia], a * cos(angle) - b * sin(angle), budget, "rope %s style %d pairs %u pair %u", check_names[v], style, n, j);
                    CHECK_NEAR(y[ib], a * sin(angle) + b * cos(angle), budget, "rope %s style %d pairs %u pair %u", check_names[v], style, n, j);
                }
                guarded_check_free(x);
                guarded_check_free(y);
                guarded_check_free(c);
                guarded_check_free(s);
                guarded_check_free(factors);
                guarded_check_free(freqs);
            }
}

/* The bound in softmax.h: 2e-7 relative in [-87, 88]. Every 1021st float of the range, so all exponents and low bits. */
static void exp_keeps_its_bound(void **state)
{
    (void)state;
    for (int v = 0; v < 2; v++) {
        double worst = 0;
        float *x = floats(13), *y = floats(13);
        for (int sign = 0; sign < 2; sign++)
            for (uint32_t bits = 0x20000000u; kni_f32_from_bits(bits) < (sign ? 87.0f : 88.0f); bits += 13 * 1021) {
                for (uint32_t j = 0; j < 13; j++)
                    x[j] = fminf(kni_f32_from_bits(bits + j * 1021), 87.0f) * (sign ? -1.0f : 1.0f);
                check_tables[v].exp(y, x, 13);
                for (uint32_t j = 0; j < 13; j++)
                    worst = fmax(worst, fabs(y[j] / exp(x[j]) - 1));
            }
        print_message("exp %s: relative error at most %.3g\n", check_names[v], worst);
        assert_true(worst <= 2e-7);
        const float edge[13] = {0.0f, -0.0f, -87.4f, -1000.0f, -INFINITY, 89.0f, INFINITY, NAN, 88.5f, -87.2f, 1e-40f, -1e-40f, 1.0f};
        memcpy(x, edge, sizeof edge);
        check_tables[v].exp(y, x, 13);
        assert_true(y[0] == 1 && y[1] == 1 && y[3] == 0 && y[4] == 0 && isinf(y[5]) && isinf(y[6]) && isnan(y[7]) && isfinite(y[8]) && y[10] == 1 && y[11] == 1);
        CHECK_NEAR(y[2], 0, 1.7e-38, "exp below the smallest normal number");
        guarded_check_free(x);
        guarded_check_free(y);
    }
}

/* Budget: 2e-7 of exp, and three roundings. */
static void silu_is_right(void **state)
{
    (void)state;
    for (int v = 0; v < 2; v++)
        for (unsigned i = 0; i < N_SIZES; i++)
            for (int p = 0; p < PATTERN_COUNT; p++) {
                uint32_t n = sizes[i];
                float *g = floats(n), *u = floats(n), *g0 = floats(n);
                fill(g, n, (enum pattern)p);
                fill(u, n, PATTERN_RANDOM);
                for (uint32_t j = 0; p == PATTERN_RANDOM && j < n; j++)
                    g[j] *= 40;
                memcpy(g0, g, n * sizeof *g);
                check_tables[v].act_mul[KNI_ACT_SILU](g, u, n);
                for (uint32_t j = 0; j < n; j++) {
                    double want = g0[j] / (1 + exp(-(double)g0[j])) * u[j];
                    CHECK_NEAR(g[j], want, 5e-7 * fabs(want) + 1e-34, "silu %s n %u pattern %d x %g", check_names[v], n, p, (double)g0[j]);
                }
                guarded_check_free(g);
                guarded_check_free(u);
                guarded_check_free(g0);
            }
}

/* Budget: as silu, and the argument of exp, up to 2 |t|, has an error of its own of 4 eps relative. Below -12 the true value
 * is under 1e-34 and only its size counts. */
static void gelu_is_right(void **state)
{
    (void)state;
    for (int v = 0; v < 2; v++)
        for (unsigned i = 0; i < N_SIZES; i++)
            for (int p = 0; p < PATTERN_COUNT; p++) {
                uint32_t n = sizes[i];
                float *g = floats(n), *u = floats(n), *g0 = floats(n);
                fill(g, n, (enum pattern)p);
                fill(u, n, PATTERN_RANDOM);
                for (uint32_t j = 0; p == PATTERN_RANDOM && j < n; j++)
                    g[j] *= 12;
                memcpy(g0, g, n * sizeof *g);
                check_tables[v].act_mul[KNI_ACT_GELU](g, u, n);
                for (uint32_t j = 0; j < n; j++) {
                    double x = g0[j], t = 0.7978845608028654 * (x + 0.044715 * x * x * x), up = fabs((double)u[j]);
                    double want = x / (1 + exp(-2 * t)) * u[j];
                    /* the plain form takes 1 + tanh(t), which loses up to eps of |x| */
                    CHECK_NEAR(g[j], want, up * (6e-7 * fabs(x) + 1e-34), "gelu %s n %u pattern %d x %g", check_names[v], n, p, x);
                }
                guarded_check_free(g);
                guarded_check_free(u);
                guarded_check_free(g0);
            }
}

/* A row in random tiles equals the softmax of the whole row; masked scores hold NaN and must not be seen. Budget: exp and the
 * subtraction before it: (|score - max| + 4) * eps relative, and n * eps for the sum. */
static void softmax_tiles_are_right(void **state)
{
    (void)state;
    enum { N = 300 };
    for (int v = 0; v < 2; v++)
        for (int round = 0; round < 300; round++) {
            float *x = floats(N), max = -INFINITY, sum = 0, scale = (float)(round % 5) * 10, tile_max[N];
            double *p = guarded(N * sizeof *p), total = 0, top = -INFINITY;
            uint32_t n_tiles = 0;
            for (uint32_t i = 0; i < N; i++) {
                x[i] = round % 7 == 6 && rnd() % 3 == 0 ? -INFINITY : rnd_unit() * scale;
                top = x[i] > top ? x[i] : top;
            }
            for (uint32_t i = 0; i < N; i++)
                total += exp(x[i] - top);
            for (uint32_t at = 0, n; at < N; at += n, n_tiles++) {
                n = 1 + rnd() % 70;
                n = n > N - at ? N - at : n;
                uint32_t before = round % 2 ? rnd() % 30 : 0, total_n = before + n + rnd() % 20;
                float *tile = floats(total_n);
                for (uint32_t i = 0; i < total_n; i++)
                    tile[i] = NAN;
                memcpy(tile + before, x + at, n * sizeof *tile);
                float alpha = check_tables[v].softmax_tile(tile, before, before + n, total_n, &max, &sum);
                if (!at)
                    assert_true(alpha == 0);
                for (uint32_t i = 0; i < at; i++)
                    p[i] *= alpha;
                for (uint32_t i = 0; i < n; i++)
                    p[at + i] = tile[before + i];
                for (uint32_t i = 0; i < total_n; i++)
                    assert_true((i >= before && i < before + n) || tile[i] == 0);
                tile_max[n_tiles] = max;
                float max0 = max, sum0 = sum; /* a tile of which nothing counts */
                tile[0] = NAN;
                float none = check_tables[v].softmax_tile(tile, total_n / 2, total_n / 2, total_n, &max, &sum);
                assert_true(none == (max0 == -INFINITY ? 0.0f : 1.0f) && max == max0 && sum == sum0 && tile[0] == 0);
                guarded_check_free(tile);
            }
            assert_true(max == (float)top && tile_max[n_tiles - 1] == max);
            CHECK_NEAR(sum, total, total * 1e-5, "softmax sum %s", check_names[v]);
            for (uint32_t i = 0; i < N; i++)
                CHECK_NEAR(p[i] / sum, exp(x[i] - top) / total, 1e-5 * exp(x[i] - top) / total + 1e-30, "softmax %s round %d", check_names[v], round);
            guarded_check_free(x);
            guarded_check_free(p);
        }
}

static void softmax_of_nothing_but_minus_infinity(void **state)
{
    (void)state;
    for (int v = 0; v < 2; v++) {
        float s[19], max = -INFINITY, sum = 0;
        for (int i = 0; i < 19; i++)
            s[i] = -INFINITY;
        assert_true(check_tables[v].softmax_tile(s, 0, 11, 19, &max, &sum) == 0);
        for (int i = 0; i < 19; i++)
            assert_true(s[i] == 0);
        assert_true(sum == 0 && max == -INFINITY);
        s[3] = 2.0f; /* then a tile with something in it */
        for (int i = 0; i < 8; i++)
            s[i] = i == 3 ? 2.0f : -INFINITY;
        assert_true(check_tables[v].softmax_tile(s, 0, 8, 8, &max, &sum) == 0);
        assert_true(s[3] == 1 && sum == 1 && max == 2);
        s[0] = NAN;
        check_tables[v].softmax_tile(s, 0, 2, 2, &max, &sum);
        assert_true(isnan(s[0]) && isnan(sum));
    }
}

static void scale_is_right(void **state)
{
    (void)state;
    for (int v = 0; v < 2; v++)
        for (unsigned i = 0; i < N_SIZES; i++) {
            float *x = floats(sizes[i]), *y = floats(sizes[i]);
            fill(x, sizes[i], PATTERN_MIXED);
            memcpy(y, x, sizes[i] * sizeof *x);
            check_tables[v].scale(y, 0.37f, sizes[i]);
            for (uint32_t j = 0; j < sizes[i]; j++)
                assert_true(y[j] == x[j] * 0.37f);
            guarded_check_free(x);
            guarded_check_free(y);
        }
}

/* One value that is not finite among many that are, at every place; every value alone. */
static void finite_is_told_from_the_rest(void **state)
{
    (void)state;
    static const uint16_t infinity[2] = {0x7c00, 0x7f80};
    for (int type = 0; type < 2; type++)
        for (uint32_t n = 0; n < 150; n++) {
            uint16_t *x = guarded(n * 2);
            for (uint32_t i = 0; i < n; i++)
                x[i] = (uint16_t)((rnd() & 0x8000u) | (rnd() % 8 ? rnd() % infinity[type] : infinity[type] - 1u));
            for (unsigned level = 0; level < 2; level++) {
                assert_true(check_tables[level].is_finite16(x, n, infinity[type]));
                for (uint32_t i = 0; i < n; i++) {
                    uint16_t was = x[i];
                    x[i] = (uint16_t)((rnd() & 0x8000u) | (infinity[type] + rnd() % (0x8000u - infinity[type])));
                    assert_false(check_tables[level].is_finite16(x, n, infinity[type]));
                    x[i] = was;
                }
            }
            guarded_check_free(x);
        }
    for (uint32_t bits = 0; bits < 65536; bits++) {
        const uint16_t x = (uint16_t)bits;
        assert_int_equal(check_tables[0].is_finite16(&x, 1, 0x7c00), isfinite(kni_f16_to_f32(x)) != 0);
        assert_int_equal(check_tables[1].is_finite16(&x, 1, 0x7f80), isfinite(kni_bf16_to_f32(x)) != 0);
    }
}

/* Exhaustive in 16 bits one way; the other way every exponent with random and tie-making mantissas. Bit-exact but for NaN,
 * which must stay NaN. */
static void conversions_have_the_same_bits(void **state)
{
    (void)state;
    uint16_t *h = guarded(65536 * 2 + 6), *h2 = guarded(65536 * 2 + 6);
    float *f = floats(65539), *f2 = floats(65539);
    for (int type = 0; type < 2; type++) {
        for (uint32_t i = 0; i < 65539; i++)
            h[i] = (uint16_t)i;
        check_tables[0].from_half[type](f, h, 65539);
        check_tables[1].from_half[type](f2, h, 65539);
        for (uint32_t i = 0; i < 65539; i++)
            assert_true(isnan(f[i]) ? isnan(f2[i]) : kni_f32_bits(f[i]) == kni_f32_bits(f2[i]));
        for (uint32_t round = 0; round < 40; round++) {
            for (uint32_t i = 0; i < 65539; i++) {
                uint32_t u = rnd();
                if (round % 2)
                    u = (u & 0xffff0000u) | (rnd() & 1 ? 0x1000u << rnd() % 4 : 0x8000u) | (rnd() & 1);
                f[i] = kni_f32_from_bits(u);
            }
            check_tables[0].to_half[type](h, f, 65539);
            check_tables[1].to_half[type](h2, f, 65539);
            for (uint32_t i = 0; i < 65539; i++) {
                float back = type ? kni_bf16_to_f32(h2[i]) : kni_f16_to_f32(h2[i]);
                assert_true(isnan(f[i]) ? isnan(back) : h[i] == h2[i]);
            }
        }
        for (uint32_t n = 0; n < 20; n++) { /* short arrays: nothing behind the end */
            uint16_t *s = guarded(n * 2 + 1);
            check_tables[1].to_half[type](s, f, n);
            guarded_check_free(s);
        }
    }
    guarded_check_free(h);
    guarded_check_free(h2);
    guarded_check_free(f);
    guarded_check_free(f2);
}

static void bench_softmax(const struct kni_kernels *k, float *y, const float *x)
{
    float max = -INFINITY, sum = 0;
    memcpy(y, x, 128 * sizeof *x);
    k->softmax_tile(y, 0, 128, 128, &max, &sum);
}

static void bench_silu(const struct kni_kernels *k, float *y, const float *x, uint32_t n)
{
    memcpy(y, x, n * sizeof *y); /* in place, it would shrink to denormals */
    k->act_mul[KNI_ACT_SILU](y, x, n);
}

/* K of a block into a panel: bit for bit. */
static void panels_have_the_same_bits(void **state)
{
    (void)state;
    static const uint32_t ds[] = {1, 4, 8, 12, 16, 24, 64, 80, 100, 256};
    for (int v = 0; v < 2; v++)
        for (unsigned i = 0; i < 10; i++)
            for (int type = 0; type < 2; type++) {
                uint32_t d = ds[i];
                uint16_t *src = guarded(16 * d * sizeof *src);
                float *panel = floats(16 * d);
                for (uint32_t j = 0; j < 16 * d; j++)
                    src[j] = (uint16_t)(rnd() & 0xbbff); /* finite, denormals too */
                check_tables[v].pack16_half[type](panel, src, d);
                for (uint32_t c = 0; c < d; c++)
                    for (uint32_t j = 0; j < 16; j++) {
                        float one = type ? kni_bf16_to_f32(src[j * d + c]) : kni_f16_to_f32(src[j * d + c]);
                        assert_memory_equal(&panel[c * 16 + j], &one, sizeof one);
                    }
                guarded_check_free(src);
                guarded_check_free(panel);
            }
}

static void bench(void)
{
    enum { N = 4096 };
    float *x = floats(N), *y = floats(N);
    uint16_t *h = guarded(N * 2);
    fill(x, N, PATTERN_RANDOM);
    for (int v = 0; v < 2; v++) {
        const struct kni_kernels *k = &check_tables[v];
        double s;
        BENCH_SECONDS(s, k->rmsnorm(y, x, x, N, 1e-5f));
        printf("%-4s rmsnorm %6.2f", check_names[v], N / s * 1e-9);
        BENCH_SECONDS(s, bench_silu(k, y, x, N));
        printf(" silu %6.2f", N / s * 1e-9);
        BENCH_SECONDS(s, k->exp(y, x, N));
        printf(" exp %6.2f", N / s * 1e-9);
        BENCH_SECONDS(s, bench_softmax(k, y, x));
        printf(" softmax(128) %6.2f", 128 / s * 1e-9);
        for (int type = 0; type < 2; type++) {
            BENCH_SECONDS(s, k->to_half[type](h, x, N));
            printf(" to_%s %6.2f", type ? "bf16" : "f16", N / s * 1e-9);
            BENCH_SECONDS(s, k->from_half[type](y, h, N));
            printf(" from_%s %6.2f", type ? "bf16" : "f16", N / s * 1e-9);
        }
        printf(" G values/s\n");
    }
    guarded_check_free(x);
    guarded_check_free(y);
    guarded_check_free(h);
}

int main(int argc, char **argv)
{
    if (check_start(argc, argv)) {
        bench();
        return 0;
    }
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(rmsnorm_is_right), cmocka_unit_test(rope_is_right), cmocka_unit_test(exp_keeps_its_bound), cmocka_unit_test(silu_is_right), cmocka_unit_test(gelu_is_right),
        cmocka_unit_test(softmax_tiles_are_right), cmocka_unit_test(softmax_of_nothing_but_minus_infinity), cmocka_unit_test(scale_is_right),
        cmocka_unit_test(finite_is_told_from_the_rest), cmocka_unit_test(conversions_have_the_same_bits), cmocka_unit_test(panels_have_the_same_bits),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
