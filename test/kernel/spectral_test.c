/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The spectral transform's loops, each level that the machine has against the reference. All give the same bits but two: weigh's sum
 * of squares (n additions in another order: n half units) and mix (one fused chain instead of rounded products: a half unit
 * of the sum of magnitudes an entry). --bench times them and the whole transform on a part like SmolLM2's.
 */
#include "check.h"
#include "probe.h"

#include "codec/spectral/spectral.h"
#include "codec/spectral/spectral_ops.h"
#include "support/cpu_levels.h"
#include "unit/codec/spectral_parts.h"

static struct kni_spectral_ops tables[N_CPU_LEVELS];
static unsigned n_levels;

static void init_tables(void)
{
    for (n_levels = 0; n_levels < cpu_sets_count(N_CPU_LEVELS); n_levels++)
        kni_spectral_ops_init(&tables[n_levels], cpu_sets[n_levels]);
}

#define EACH_LEVEL(v) for (unsigned v = 1; v < n_levels; v++)

/* Also infinities, NaN and what is cut off. */
static void fill_wild(float *x, size_t n)
{
    fill(x, n, (enum pattern)(rnd() % PATTERN_COUNT));
    for (size_t i = 0; i < n; i += 1 + rnd() % 9)
        switch (rnd() % 5) {
        case 0: x[i] = INFINITY; break;
        case 1: x[i] = -INFINITY; break;
        case 2: x[i] = NAN; break;
        case 3: x[i] = 3e38f; break;
        default: x[i] = -2e20f;
        }
}

static float *copy_of(const float *x, size_t n)
{
    float *y = floats(n);
    memcpy(y, x, n * sizeof *x);
    return y;
}

static void elementwise(void **state)
{
    (void)state;
    EACH_LEVEL(v)
        for (uint32_t n = 1; n <= 200; n += n < 40 ? 1 : 13) {
            float *x = floats(n), *weight = floats(n), *mean = floats(n);
            fill_wild(x, n);
            for (uint32_t i = 0; i < n; i++) {
                weight[i] = 0.1f + fabsf(rnd_unit()) * 3;
                mean[i] = rnd_unit();
            }
            float *a = copy_of(x, n), *b = copy_of(x, n);
            tables[0].clean(a, n);
            tables[v].clean(b, n);
            assert_memory_equal(a, b, n * sizeof *a);
            for (uint32_t i = 0; i < n; i++)
                assert_true(fabsf(a[i]) <= KNI_SPECTRAL_LARGEST && (a[i] == x[i] || !(fabsf(x[i]) <= KNI_SPECTRAL_LARGEST)));
            for (int weighted = 0; weighted < 2; weighted++) {
                float sum_a = tables[0].weigh(a, weighted ? weight : NULL, n), sum_b = tables[v].weigh(b, weighted ? weight : NULL, n);
                assert_memory_equal(a, b, n * sizeof *a);
                CHECK_NEAR(sum_b, sum_a, (double)sum_a * n * CHECK_EPS * 2, "weigh n %u", n);
            }
            for (int centred = 0; centred < 2; centred++) {
                float scale = ldexpf(1.3f, (int)(rnd() % 20) - 10);
                tables[0].centre(a, centred ? mean : NULL, scale, n);
                tables[v].centre(b, centred ? mean : NULL, scale, n);
                assert_memory_equal(a, b, n * sizeof *a);
            }
            for (uint32_t at = 0; at <= n; at++) { /* one large value, anywhere, or nowhere */
                fill(a, n, PATTERN_RANDOM);
                if (at < n)
                    a[at] = 1e9f;
                memcpy(b, a, n * sizeof *a);
                bool large = tables[0].unscale(a, weight, 2.0f, 1000.0f, n);
                assert_int_equal(large, at < n);
                assert_int_equal(tables[v].unscale(b, weight, 2.0f, 1000.0f, n), large);
                assert_memory_equal(a, b, n * sizeof *a);
            }
            guarded_check_free(x);
            guarded_check_free(weight);
            guarded_check_free(mean);
            guarded_check_free(a);
            guarded_check_free(b);
        }
}

static void quantise(void **state)
{
    (void)state;
    EACH_LEVEL(v)
        for (uint32_t n = 16; n <= 400; n += 16) {
            float *y = floats(n), inv_step = n % 32 ? 5.0f : 1 / 0.3f;
            uint8_t *a = guarded(n), *b = guarded(n);
            uint32_t n_escapes = 0;
            fill(y, n, (enum pattern)(rnd() % PATTERN_COUNT));
            for (uint32_t i = 0; i < n; i += 3)
                y[i] = (float)((int)(rnd() % 600) - 300) * 0.5f / inv_step; /* halves, where 5 is the inverse step; some beyond 127 */
            assert_int_equal(tables[0].quantise(a, y, inv_step, n), tables[v].quantise(b, y, inv_step, n));
            assert_memory_equal(a, b, n);
            for (uint32_t i = 0; i < n; i++) {
                int32_t q = kni_spectral_round(y[i], inv_step);
                assert_int_equal(a[i], 128 + (q > 127 ? 127 : q < -127 ? -127 : q));
                n_escapes += q >= 127 || q <= -127;
            }
            assert_int_equal(tables[v].quantise(b, y, inv_step, n), n_escapes);
            guarded_check_free(y);
            guarded_check_free(a);
            guarded_check_free(b);
        }
}

/* A symbol that is zero but for one in `sparse`. */
static uint8_t symbol_of(uint32_t sparse)
{
    return rnd() % sparse ? 128 : (uint8_t)rnd();
}

static void scan_and_fill(void **state)
{
    (void)state;
    float values[256];
    for (int i = 0; i < 256; i++)
        values[i] = (float)(i - 128) * 0.3f;
    EACH_LEVEL(v)
        for (uint32_t n = 16; n <= 272; n += 16) {
            enum { ROWS = 40 };
            uint8_t *symbols = guarded(n * ROWS);
            uint16_t *counts[2] = {guarded(n * 2), guarded(n * 2)};
            struct kni_spectral_entry *entries[2] = {guarded(n * ROWS * sizeof **entries), guarded(n * ROWS * sizeof **entries)};
            uint32_t *next[2] = {guarded(n * 4), guarded(n * 4)};
            for (uint32_t i = 0; i < n * ROWS; i++)
                symbols[i] = symbol_of(1 + i / n * i / n % 50);
            for (uint32_t row = 0; row < ROWS; row++)
                assert_int_equal(tables[0].scan(symbols + row * n, counts[0], n), tables[v].scan(symbols + row * n, counts[1], n));
            assert_memory_equal(counts[0], counts[1], n * 2);
            for (uint32_t t = 0, at = 0; t < n; at += counts[0][t++])
                next[0][t] = next[1][t] = at;
            for (uint32_t row = 0; row < ROWS; row++)
                assert_int_equal(tables[0].fill(symbols + row * n, n, row * 64, values, entries[0], next[0]),
                                 tables[v].fill(symbols + row * n, n, row * 64, values, entries[1], next[1]));
            assert_memory_equal(next[0], next[1], n * 4);
            assert_memory_equal(entries[0], entries[1], n * ROWS * sizeof **entries);
            guarded_check_free(symbols);
            for (int i = 0; i < 2; i++) {
                guarded_check_free(counts[i]);
                guarded_check_free(entries[i]);
                guarded_check_free(next[i]);
            }
        }
}

/* Random bfloat16 of either sign, magnitudes around 1. */
static void fill_basis(uint16_t *basis, size_t n)
{
    for (size_t i = 0; i < n; i++)
        basis[i] = (uint16_t)((rnd() & 0x80ff) | 0x3f00);
}

static uint16_t *strip_memory(size_t rows)
{
    uint16_t *p = aligned_alloc(64, rows * 128);
    assert_non_null(p);
    memset(p, 0xa5, rows * 128);
    return p;
}

static void gather(void **state)
{
    (void)state;
    EACH_LEVEL(v)
        for (uint32_t rows = 1; rows <= 70; rows += 3)
            for (uint32_t cols = 32; cols <= 64; cols += 32) {
                uint32_t width = cols + rnd() % 3 * 32, first = rnd() % (width - cols + 1) / 32 * 32;
                uint16_t *basis = guarded((size_t)rows * width * 2), *strips[2] = {strip_memory(rows), strip_memory(rows)};
                uint8_t *used = guarded(rows);
                fill_basis(basis, (size_t)rows * width);
                for (uint32_t i = 0; i < rows; i++)
                    used[i] = rnd() & 1;
                for (unsigned i = 0; i < 2; i++)
                    tables[i ? v : 0].gather(&(struct kni_spectral_gather_args){.basis = basis + first, .width = width, .n_rows = rows, .n_cols = cols,
                        .used = used, .strip = strips[i]});
                assert_memory_equal(strips[0], strips[1], rows * 128);
                for (uint32_t i = 0; i < 2; i++)
                    free(strips[i]);
                guarded_check_free(basis);
                guarded_check_free(used);
            }
}

struct lists { struct kni_spectral_entry *entries; uint32_t *starts; };

/* That a symbol of a row is not zero: 31 % on average, from always to 3 %, as SmolLM2's are at the steps of medium. */
static double probability(uint32_t row, uint32_t rows)
{
    return exp(-3.6 * pow((double)row / rows, 1.2));
}

static struct lists lists_of(uint32_t rows, uint32_t tokens)
{
    struct lists l = {malloc(((size_t)rows * tokens + KNI_SPECTRAL_AHEAD) * sizeof *l.entries), malloc((tokens + 1) * sizeof *l.starts)};
    assert_true(l.entries && l.starts);
    uint32_t n = 0;
    for (uint32_t t = 0; t < tokens; t++) {
        l.starts[t] = n;
        for (uint32_t row = 0; row < rows; row++)
            if (rnd() < probability(row, rows) * 4294967295.0)
                l.entries[n++] = (struct kni_spectral_entry){row * KNI_SPECTRAL_STRIP, rnd_unit() * 4};
    }
    l.starts[tokens] = n;
    memset(l.entries + n, 0, KNI_SPECTRAL_AHEAD * sizeof *l.entries);
    return l;
}

static void lists_free(struct lists *l)
{
    free(l->entries);
    free(l->starts);
}

static void mix(void **state)
{
    (void)state;
    static const uint32_t shapes[][2] = {{1, 1}, {16, 3}, {100, 16}, {300, 40}};
    EACH_LEVEL(v)
        for (unsigned i = 0; i < 4; i++) {
            uint32_t rows = shapes[i][0], tokens = shapes[i][1];
            size_t ldx = 64 * (1 + i % 2);
            struct lists l = lists_of(rows, tokens);
            uint16_t *basis = guarded((size_t)rows * 128), *strip = strip_memory(rows);
            uint8_t *used = guarded(rows);
            float *mean = floats(64), *a = floats(tokens * ldx), *b = floats(tokens * ldx);
            fill(mean, 64, PATTERN_RANDOM);
            fill_basis(basis, (size_t)rows * 64);
            memset(used, 1, rows);
            tables[0].gather(&(struct kni_spectral_gather_args){.basis = basis, .width = 64, .n_rows = rows, .n_cols = 64, .used = used, .strip = strip});
            struct kni_spectral_mix_args m = {.strip = strip, .mean = mean, .entries = l.entries, .starts = l.starts, .n_tokens = tokens, .x = a, .ldx = ldx};
            tables[0].mix(&m);
            m.x = b;
            tables[v].mix(&m);
            for (uint32_t t = 0; t < tokens; t++)
                for (uint32_t c = 0; c < 64; c++) {
                    double want = (double)mean[c], size = fabs(want);
                    for (uint32_t e = l.starts[t]; e < l.starts[t + 1]; e++) {
                        double p = (double)l.entries[e].value * (double)kni_bf16_to_f32(basis[l.entries[e].at + c]);
                        want += p;
                        size += fabs(p);
                    }
                    double budget = size * (l.starts[t + 1] - l.starts[t] + 1) * 2 * CHECK_EPS;
                    CHECK_NEAR(a[t * ldx + c], want, budget, "reference, rows %u token %u column %u", rows, t, c);
                    CHECK_NEAR(b[t * ldx + c], want, budget, "%s, rows %u token %u column %u", cpu_set_names[v], rows, t, c);
                }
            for (uint32_t t = 0; t < tokens; t++)
                for (size_t c = 64; c < ldx; c++)
                    assert_true(b[t * ldx + c] == 0);
            lists_free(&l);
            free(strip);
            guarded_check_free(basis);
            guarded_check_free(used);
            guarded_check_free(mean);
            guarded_check_free(a);
            guarded_check_free(b);
        }
}

/* ---- --bench */

enum { BENCH_ROWS = 1152, BENCH_TOKENS = 256 };

static void bench_loops(unsigned v)
{
    struct lists l = lists_of(BENCH_ROWS, BENCH_TOKENS);
    uint16_t *basis = malloc((size_t)BENCH_ROWS * 1920 * 2), *strip = strip_memory(BENCH_ROWS);
    uint8_t *used = malloc(BENCH_ROWS), *symbols = malloc((size_t)BENCH_ROWS * BENCH_TOKENS);
    float *x = floats(BENCH_TOKENS * 64), mean[64] = {0}, values[256] = {0}, y[BENCH_TOKENS];
    struct kni_spectral_entry *entries = malloc((size_t)BENCH_ROWS * BENCH_TOKENS * sizeof *entries);
    uint16_t counts[BENCH_TOKENS] = {0};
    uint32_t next[BENCH_TOKENS];
    double t, n_entries = l.starts[BENCH_TOKENS], n_symbols = (double)BENCH_ROWS * BENCH_TOKENS;
    assert_true(basis && used && symbols && entries);
    fill_basis(basis, (size_t)BENCH_ROWS * 1920);
    memset(used, 1, BENCH_ROWS);
    memset(symbols, 128, (size_t)n_symbols);
    for (uint32_t i = 0; i < BENCH_TOKENS; i++)
        for (uint32_t e = l.starts[i]; e < l.starts[i + 1]; e++)
            symbols[l.entries[e].at / 64 * BENCH_TOKENS + i] = (uint8_t)(120 + e % 8);
    printf("%s, %d rows, %d tokens, %.1f %% of symbols not zero\n", cpu_set_names[v], BENCH_ROWS, BENCH_TOKENS, 100 * n_entries / n_symbols);
    struct kni_spectral_gather_args g = {.basis = basis, .width = 1920, .n_rows = BENCH_ROWS, .n_cols = 64, .used = used, .strip = strip};
    BENCH_SECONDS(t, tables[v].gather(&g));
    printf("  gather        %6.2f GB/s from cache, %5.2f us a token of 30 strips\n", BENCH_ROWS * 128 / t * 1e-9, 30e6 * t / BENCH_TOKENS);
    struct kni_spectral_mix_args m = {.strip = strip, .mean = mean, .entries = l.entries, .starts = l.starts, .n_tokens = BENCH_TOKENS, .x = x, .ldx = 64};
    BENCH_SECONDS(t, tables[v].mix(&m));
    printf("  mix           %6.2f GFLOP/s, as dense %.1f; %5.2f us a token of 30 strips\n", n_entries * 128 / t * 1e-9, n_symbols * 128 / t * 1e-9, 30e6 * t / BENCH_TOKENS);
    BENCH_SECONDS(t, for (uint32_t r = 0; r < BENCH_ROWS; r++) tables[v].scan(symbols + r * BENCH_TOKENS, counts, BENCH_TOKENS));
    printf("  scan          %6.2f G symbols/s, %.2f us a token\n", n_symbols / t * 1e-9, t / BENCH_TOKENS * 1e6);
    BENCH_SECONDS(t, {
        memcpy(next, l.starts, sizeof next);
        for (uint32_t r = 0; r < BENCH_ROWS; r++)
            tables[v].fill(symbols + r * BENCH_TOKENS, BENCH_TOKENS, r * 64, values, entries, next);
    });
    printf("  fill          %6.2f G symbols/s, %.2f us a token\n", n_symbols / t * 1e-9, t / BENCH_TOKENS * 1e6);
    fill(y, BENCH_TOKENS, PATTERN_RANDOM);
    BENCH_SECONDS(t, tables[v].quantise(symbols, y, 5.0f, BENCH_TOKENS));
    printf("  quantise      %6.2f G values/s\n", BENCH_TOKENS / t * 1e-9);
    lists_free(&l);
    free(basis);
    free(strip);
    free(used);
    free(symbols);
    free(entries);
    guarded_check_free(x);
}

/* Both parts of a group of 10 layers of 3 heads of 64. */
static void bench_whole(double peak)
{
    struct test_profile_opts o = {.n_layer = 10, .n_kv_head = 3, .d_head = 64, .n_group = 10, .n_rows = BENCH_ROWS, .step = 0.2f, .neox = false};
    struct kni_profile *p = test_profile(&o);
    struct pool pool = pool_make(10, 3, 64, KN_KV_TYPE_F16, BENCH_TOKENS);
    struct kni_spectral *s = NULL;
    size_t n_symbols = (size_t)(BENCH_ROWS + 10) * BENCH_TOKENS;
    uint8_t *symbols = malloc(n_symbols);
    struct kni_escapes escapes = {0};
    double t, flop = 2.0 * BENCH_ROWS * 1920 * BENCH_TOKENS;
    assert_non_null(symbols);
    pool_fill_smooth(&pool);
    assert_int_equal(kni_spectral_open(&s, p, BENCH_TOKENS, kni_cpu_flags(), NULL), KN_OK);
    printf("handle: %.2f MB\n", (double)kni_spectral_bytes(s) * 1e-6);
    for (uint32_t part = 0; part < 2; part++) {
        BENCH_SECONDS(t, kni_spectral_forward(s, &pool.view, 0, BENCH_TOKENS, part, 0, symbols, BENCH_TOKENS, &escapes));
        printf("forward %c: %7.1f us a token of the part, %5.1f GFLOP/s, %.0f %% of %.1f\n", "KV"[part], t / BENCH_TOKENS * 1e6, flop / t * 1e-9, flop / t * 1e-7 / peak, peak);
        memset(symbols, 128, n_symbols);
        for (uint32_t row = 0; row < BENCH_ROWS; row++)
            for (uint32_t i = 0; i < BENCH_TOKENS; i++)
                if (rnd() < probability(row, BENCH_ROWS) * 4294967295.0)
                    symbols[(10 + row) * BENCH_TOKENS + i] = (uint8_t)(120 + rnd() % 17);
        escapes.n = 0;
        BENCH_SECONDS(t, if (kni_spectral_inverse(s, &pool.view, 0, BENCH_TOKENS, part, 0, symbols, BENCH_TOKENS, &escapes, 0) != KN_OK) abort());
        printf("inverse %c: %7.1f us a token of the part, as dense %5.1f GFLOP/s, %.0f %%\n", "KV"[part], t / BENCH_TOKENS * 1e6, flop / t * 1e-9, flop / t * 1e-7 / peak);
    }
    kni_spectral_close(&s);
    kni_free(escapes.values);
    free(symbols);
    pool_free(&pool);
    test_profile_free(p);
}

int main(int argc, char **argv)
{
    bool bench = check_start(argc, argv);
    init_tables();
    if (bench) {
        double peak = probe_fma_gflops();
        for (unsigned v = 0; v < n_levels; v++)
            bench_loops(v);
        bench_whole(peak);
        return 0;
    }
    const struct CMUnitTest tests[] = {cmocka_unit_test(elementwise), cmocka_unit_test(quantise), cmocka_unit_test(scan_and_fill),
                                       cmocka_unit_test(gather), cmocka_unit_test(mix)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
