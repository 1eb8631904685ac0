/* SPDX-License-Identifier: Apache-2.0 */
/* Packed products of every quantised type against sums in double and, bit for bit, against the reference; the dequantisers. */
#include "check.h"
#include "probe.h"
#include "support/cpu_levels.h"

static const enum kni_dtype types[] = {KNI_DTYPE_F32,  KNI_DTYPE_F16,  KNI_DTYPE_BF16, KNI_DTYPE_Q4_0, KNI_DTYPE_Q4_1, KNI_DTYPE_Q5_0,
                                       KNI_DTYPE_Q5_1, KNI_DTYPE_Q8_0, KNI_DTYPE_Q4_K, KNI_DTYPE_Q5_K, KNI_DTYPE_Q6_K};
#define N_TYPES (sizeof types / sizeof *types)

static size_t bytes_of(enum kni_dtype t, uint32_t n)
{
    const struct kni_dtype_info *info = kni_dtype_get_info(t);
    return (size_t)(n / info->block_values) * info->block_bytes;
}

/* Random bits with scales that are finite: each 16-bit field that may be one gets a moderate exponent; F32 gets floats. */
static void random_weights(enum kni_dtype t, uint8_t *w, size_t n_bytes, bool tiny)
{
    const struct kni_dtype_info *info = kni_dtype_get_info(t);
    for (size_t i = 0; i < n_bytes; i++)
        w[i] = (uint8_t)rnd();
    for (size_t b = 0; b < n_bytes; b += info->block_bytes) {
        uint16_t h[2] = {kni_f32_to_f16(tiny ? rnd_unit() * 1e-6f : rnd_unit()), kni_f32_to_f16(rnd_unit())};
        float f = tiny ? rnd_unit() * 1e-39f : rnd_unit();
        uint16_t bf = kni_f32_to_bf16(f);
        switch (t) {
        case KNI_DTYPE_F32: memcpy(w + b, &f, 4); break;
        case KNI_DTYPE_BF16: memcpy(w + b, &bf, 2); break;
        case KNI_DTYPE_Q6_K: memcpy(w + b + 208, h, 2); break;
        case KNI_DTYPE_Q4_1:
        case KNI_DTYPE_Q5_1:
        case KNI_DTYPE_Q4_K:
        case KNI_DTYPE_Q5_K: memcpy(w + b, h, 4); break;
        default: memcpy(w + b, h, 2);
        }
    }
}

/* Same bits: scale times small integer is exact in float, and the sum is rounded once either way. */
static void dequant_has_the_same_bits(void **state)
{
    (void)state;
    for (unsigned i = 0; i < N_TYPES; i++)
        for (uint32_t n_blocks = 1; n_blocks <= 37; n_blocks++) {
            enum kni_dtype t = types[i];
            uint32_t n = n_blocks * kni_dtype_get_info(t)->block_values;
            uint8_t *w = guarded(bytes_of(t, n));
            float *a = floats(n), *b = floats(n);
            random_weights(t, w, bytes_of(t, n), n_blocks % 3 == 0);
            check_tables[0].dequant[t](w, a, n);
            check_tables[1].dequant[t](w, b, n);
            if (memcmp(a, b, n * sizeof *a)) {
                print_error("dequant %s n %u differs\n", kni_dtype_name(t), n);
                fail();
            }
            guarded_check_free(w);
            guarded_check_free(a);
            guarded_check_free(b);
        }
}

static const enum kni_dtype quantised[] = {KNI_DTYPE_Q4_0, KNI_DTYPE_Q4_1, KNI_DTYPE_Q5_0, KNI_DTYPE_Q5_1, KNI_DTYPE_Q8_0, KNI_DTYPE_Q4_K, KNI_DTYPE_Q5_K, KNI_DTYPE_Q6_K};
#define N_QUANTISED (sizeof quantised / sizeof *quantised)

/* Every level that the machine has, from the references up. */
static struct kni_kernels levels[N_CPU_SETS];
static unsigned n_levels;

static void find_levels(void)
{
    for (n_levels = 0; n_levels < cpu_sets_count(N_CPU_SETS); n_levels++)
        kni_kernels_init(&levels[n_levels], cpu_sets[n_levels]);
}

/* A random matrix in both orders. */
struct matrix {
    enum kni_dtype type;
    uint32_t n_out, n_in;
    size_t row_bytes;
    uint8_t *rows, *packed;
    struct kni_panels p;
};

static struct matrix matrix_of(enum kni_dtype t, uint32_t n_out, uint32_t n_in)
{
    struct matrix m = {.type = t, .n_out = n_out, .n_in = n_in, .row_bytes = bytes_of(t, n_in)};
    m.rows = guarded(m.row_bytes * n_out);
    random_weights(t, m.rows, m.row_bytes * n_out, false);
    size_t bytes = kni_panels_init(&m.p, t, n_out, n_in);
    assert_true(bytes && bytes % 64 == 0);
    m.packed = aligned_alloc(64, bytes);
    memset(m.packed, 0xa5, bytes); /* padding must be written where it counts */
    for (uint32_t i = 0; i < kni_panels_count(&m.p); i++)
        kni_panel_pack(&m.p, i, m.rows, m.packed + i * m.p.panel_bytes);
    m.p.data = m.packed;
    return m;
}

static void matrix_free(struct matrix *m)
{
    guarded_check_free(m->rows);
    free(m->packed);
}

static struct kni_xblock *blocks_of(const float *x, size_t n_blocks)
{
    struct kni_xblock *b = guarded(n_blocks * sizeof *b);
    levels[0].quantise(b, x, n_blocks);
    return b;
}

/* Packed types keep every value: scales and integers give back what the dequantiser gives, up to the rounding of its one sum. */
static void panels_keep_the_values(void **state)
{
    (void)state;
    for (unsigned i = 0; i < N_QUANTISED; i++) {
        struct matrix m = matrix_of(quantised[i], 37, 768);
        enum kni_panel_scales form = kni_panel_get_form(m.type)->scales;
        float *row = floats(m.n_in), d[16 * 16], min[8 * 16];
        for (uint32_t o = 0; o < m.n_out; o++) {
            kni_dequant_ref_of(m.type)(m.rows + o * m.row_bytes, row, m.n_in);
            const uint8_t *panel = m.packed + o / 16 * m.p.panel_bytes;
            for (uint32_t b = 0; b < m.n_in / 32; b++) {
                int16_t v[512];
                if (b % 8 == 0)
                    kni_panel_scales_ref(&m.p, panel, b, 8, d, min);
                kni_panel_values_ref(&m.p, panel, b, v);
                for (uint32_t j = 0; j < 32; j++) {
                    float scale = form == KNI_PANEL_SCALES_K6 ? d[(b % 8 * 2 + j / 16) * 16 + o % 16] : d[b % 8 * 16 + o % 16];
                    float got = scale * (float)v[(j / 2 * 16 + o % 16) * 2 + j % 2] + (kni_panel_has_min(form) ? min[b % 8 * 16 + o % 16] : 0);
                    assert_true(got == row[b * 32 + j]);
                }
            }
        }
        guarded_check_free(row);
        matrix_free(&m);
    }
}

/* Each level the reference's bits. Values are within half a step plus the rounding of the inverse. */
static void quantise_is_right(void **state)
{
    (void)state;
    enum { N = 7 };
    float *x = floats(32 * N);
    struct kni_xblock *want = guarded(N * sizeof *want), *got = guarded(N * sizeof *got);
    for (int round = 0; round < 200; round++) {
        fill(x, 32 * N, (enum pattern)(round % PATTERN_COUNT));
        if (round % 10 == 9)
            x[rnd() % (32 * N)] = round % 20 == 9 ? INFINITY : -NAN;
        levels[0].quantise(want, x, N);
        for (uint32_t b = 0; b < N; b++) {
            int32_t sum[2] = {0};
            float max = 0;
            bool finite = true;
            for (uint32_t i = 0; i < 32; i++) {
                sum[i / 16] += want[b].q[i];
                max = fmaxf(max, fabsf(x[32 * b + i]));
                finite = finite && isfinite(x[32 * b + i]);
            }
            assert_int_equal(sum[0], want[b].sum[0]);
            assert_int_equal(sum[1], want[b].sum[1]);
            assert_true(finite || (isnan(want[b].d) && isnan(want[b].s)));
            for (uint32_t i = 0; finite && i < 32; i++)
                CHECK_NEAR(want[b].d * (double)want[b].q[i], x[32 * b + i], max < 0x1p-100f ? 0x1p-100 : 0.505 * max / 32767, "block %u value %u of pattern %d", b, i, round % PATTERN_COUNT);
        }
        for (unsigned v = 1; v < n_levels; v++) {
            levels[v].quantise(got, x, N);
            assert_memory_equal(want, got, N * sizeof *got);
        }
    }
    guarded_check_free(x);
    guarded_check_free(want);
    guarded_check_free(got);
}

/* Budget: half a step (and a hundredth, for the inverse) of every activation times its weight; each term and each sum rounds once
 * or twice, relative to the magnitudes before minima cancel them. */
static void check_product(const struct matrix *m, uint32_t n_rows, bool accumulate, enum pattern p)
{
    uint32_t n_blocks = m->n_in / 32;
    size_t ldx = n_blocks + rnd() % 2, ldy = m->n_out + rnd() % 3;
    bool has_min = kni_panel_has_min(kni_panel_get_form(m->type)->scales);
    float *x = floats(ldx * 32 * n_rows), *y[4], *y0 = floats(ldy * n_rows), *row = floats(m->n_in), *min = floats((n_blocks + 7) / 8 * 8 * 16), *d = floats((n_blocks + 7) / 8 * 8 * 32);
    struct kni_qgemm_scratch *scratch = aligned_alloc(64, sizeof *scratch);
    fill(x, ldx * 32 * n_rows, p);
    fill(y0, ldy * n_rows, PATTERN_RANDOM);
    struct kni_xblock *xb = blocks_of(x, ldx * n_rows);
    for (unsigned v = 0; v < n_levels; v++) {
        y[v] = floats(ldy * n_rows);
        memcpy(y[v], y0, ldy * n_rows * sizeof *y0);
        levels[v].qgemm(&(struct kni_qgemm_args){.w = &m->p, .n_cols = m->n_out, .x = xb, .ldx = ldx, .n_rows = n_rows, .y = y[v], .ldy = ldy,
            .accumulate = accumulate, .scratch = scratch});
        if (memcmp(y[v], y[0], ldy * n_rows * sizeof *y0)) {
            print_error("%s %s out %u in %u rows %u: not the reference's bits\n", cpu_set_names[v], kni_dtype_name(m->type), m->n_out, m->n_in, n_rows);
            fail();
        }
    }
    for (uint32_t o = 0; o < ldy; o++) {
        if (o < m->n_out) {
            kni_dequant_ref_of(m->type)(m->rows + o * m->row_bytes, row, m->n_in);
            kni_panel_scales_ref(&m->p, m->packed + o / 16 * m->p.panel_bytes, 0, n_blocks, d, min);
        }
        for (uint32_t r = 0; r < n_rows; r++) {
            double want = accumulate || o >= m->n_out ? y0[r * ldy + o] : 0, size = fabs(want), steps = 0;
            for (uint32_t i = 0; o < m->n_out && i < m->n_in; i++) {
                const float xv = x[r * ldx * 32 + i];
                double q = (double)row[i] * xv, low = has_min ? fabs((double)min[i / 32 * 16 + o % 16]) : 0;
                want += q;
                size += fabs(q) + 2 * low * fabs((double)xv);
                steps += fabs((double)row[i]) * (0.51 * xb[r * ldx + i / 32].d + 0x1p-100) + 0.51 * low * xb[r * ldx + i / 32].d;
            }
            CHECK_NEAR(y[0][r * ldy + o], want, o < m->n_out ? steps + (4 * n_blocks + 4) * CHECK_EPS * size : 0, "%s out %u in %u rows %u pattern %d at %u,%u",
                       kni_dtype_name(m->type), m->n_out, m->n_in, n_rows, (int)p, r, o);
        }
    }
    for (unsigned v = 0; v < n_levels; v++)
        guarded_check_free(y[v]);
    guarded_check_free(x);
    guarded_check_free(y0);
    guarded_check_free(row);
    guarded_check_free(min);
    guarded_check_free(d);
    guarded_check_free(xb);
    free(scratch);
}

static void product_is_right(void **state)
{
    (void)state;
    static const uint32_t rows[] = {1, 2, 3, 4, 5, 7, 8, 9, 13, 31, 32, 33, 37, 50};
    for (unsigned i = 0; i < N_QUANTISED; i++)
        for (unsigned r = 0; r < sizeof rows / sizeof *rows; r++) {
            uint32_t block = kni_dtype_get_info(quantised[i])->block_values;
            struct matrix m = matrix_of(quantised[i], 1 + rnd() % 50, r % 3 == 2 ? 1024 : block * (1 + rnd() % 3)); /* 1024: two chunks */
            check_product(&m, rows[r], rnd() & 1, (enum pattern)(r % PATTERN_COUNT));
            matrix_free(&m);
        }
}

/* The largest integers that there can be do not overflow: one sign throughout, all bits set. */
static void extremes_do_not_overflow(void **state)
{
    (void)state;
    for (unsigned i = 0; i < N_QUANTISED; i++)
        for (int fill_byte = 0; fill_byte < 2; fill_byte++) {
            struct matrix m = matrix_of(quantised[i], 16, 256);
            const struct kni_dtype_info *info = kni_dtype_get_info(m.type);
            for (size_t b = 0; b < m.row_bytes * m.n_out; b += info->block_bytes) {
                memset(m.rows + b, fill_byte ? 0xff : 0x80, info->block_bytes);
                uint16_t one[2] = {0x3c00, 0x3c00};
                memcpy(m.rows + b + (m.type == KNI_DTYPE_Q6_K ? 208 : 0), one, m.type == KNI_DTYPE_Q4_0 || m.type == KNI_DTYPE_Q5_0 || m.type == KNI_DTYPE_Q8_0 || m.type == KNI_DTYPE_Q6_K ? 2 : 4);
            }
            kni_panel_pack(&m.p, 0, m.rows, m.packed);
            float x[256], want[16], got[16], row[256];
            for (unsigned j = 0; j < 256; j++)
                x[j] = -1;
            struct kni_xblock *xb = blocks_of(x, 8);
            struct kni_qgemm_scratch *scratch = aligned_alloc(64, sizeof *scratch);
            for (unsigned v = 0; v < n_levels; v++) {
                levels[v].qgemm(&(struct kni_qgemm_args){.w = &m.p, .n_cols = 16, .x = xb, .ldx = 8, .n_rows = 1, .y = v ? got : want, .ldy = 16, .scratch = scratch});
                assert_true(!v || !memcmp(want, got, sizeof want));
            }
            double sum = 0, size = 0;
            kni_dequant_ref_of(m.type)(m.rows, row, 256);
            for (unsigned j = 0; j < 256; j++)
                sum -= row[j], size += fabs((double)row[j]);
            assert_true(fabs(want[3] - sum) <= size * 1e-4);
            guarded_check_free(xb);
            free(scratch);
            matrix_free(&m);
        }
}

/* The invariant of qgemm.h: a row's bits depend neither on the other rows (so not on the way that the number of rows chooses)
 * nor on where columns were cut. */
static void bits_do_not_depend_on_the_split(void **state)
{
    (void)state;
    enum { OUT = 87, IN = 1024, ROWS = 70, BLOCKS = IN / 32 };
    float *x = floats(ROWS * IN), *whole = floats(ROWS * OUT), *part = floats(ROWS * OUT);
    struct kni_qgemm_scratch *scratch = aligned_alloc(64, sizeof *scratch);
    fill(x, ROWS * IN, PATTERN_MIXED);
    struct kni_xblock *xb = blocks_of(x, ROWS * BLOCKS);
    for (unsigned v = 0; v < n_levels; v++)
        for (unsigned i = 0; i < N_QUANTISED; i++) {
            struct matrix m = matrix_of(quantised[i], OUT, IN);
            struct kni_qgemm_args a = {.w = &m.p, .n_cols = OUT, .x = xb, .ldx = BLOCKS, .n_rows = ROWS, .y = whole, .ldy = OUT, .scratch = scratch};
            levels[v].qgemm(&a);
            for (uint32_t r = 0, n; r < ROWS; r += n) {
                n = r % 2 ? 1 + rnd() % 40 : 1 + rnd() % 9;
                n = n > ROWS - r ? ROWS - r : n;
                for (uint32_t o = 0, c; o < OUT; o += c) {
                    c = 16 * (1 + rnd() % 3);
                    c = c > OUT - o ? OUT - o : c;
                    a.col0 = o;
                    a.n_cols = c;
                    a.x = xb + r * BLOCKS;
                    a.n_rows = n;
                    a.y = part + r * OUT + o;
                    levels[v].qgemm(&a);
                }
            }
            assert_memory_equal(whole, part, ROWS * OUT * sizeof *whole);
            matrix_free(&m);
        }
    guarded_check_free(x);
    guarded_check_free(whole);
    guarded_check_free(part);
    guarded_check_free(xb);
    free(scratch);
}

/* A row with a NaN becomes NaN everywhere and leaves the others alone. */
static void nan_stays_in_its_row(void **state)
{
    (void)state;
    struct matrix m = matrix_of(KNI_DTYPE_Q4_1, 32, 64);
    float x[3 * 64], y[3 * 32];
    struct kni_qgemm_scratch *scratch = aligned_alloc(64, sizeof *scratch);
    fill(x, 3 * 64, PATTERN_RANDOM);
    x[64 + 40] = NAN;
    struct kni_xblock *xb = blocks_of(x, 6);
    for (unsigned v = 0; v < n_levels; v++) {
        levels[v].qgemm(&(struct kni_qgemm_args){.w = &m.p, .n_cols = 32, .x = xb, .ldx = 2, .n_rows = 3, .y = y, .ldy = 32, .scratch = scratch});
        for (unsigned i = 0; i < 3 * 32; i++)
            assert_true(isnan(y[i]) == (i / 32 == 1));
    }
    guarded_check_free(xb);
    free(scratch);
    matrix_free(&m);
}

/* Against the machine's peak, measured in the same run: reading by one thread for few rows, multiply-adds for many. */
static void bench(void)
{
    enum { OUT = 1536, IN = 576, ROWS = 256 };
    static const uint32_t rows[] = {1, 2, 4, 8, 16, 32, 256};
    double read = probe_read_gbs(), fma = probe_fma_gflops();
    printf("peak of one thread: reading %.1f GB/s, float multiply-adds %.1f GFLOP/s\n", read, fma);
    float *x = floats(ROWS * 768), *y = floats(ROWS * OUT);
    struct kni_qgemm_scratch *scratch = aligned_alloc(64, sizeof *scratch);
    fill(x, ROWS * 768, PATTERN_RANDOM);
    struct kni_xblock *xb = blocks_of(x, ROWS * 24);
    for (unsigned i = 0; i < N_QUANTISED; i++) {
        uint32_t n_in = kni_dtype_get_info(quantised[i])->block_values == 256 ? 768 : IN;
        struct matrix m = matrix_of(quantised[i], OUT, n_in);
        for (unsigned v = n_levels > 1 ? 1 : 0; v < n_levels; v++) {
            printf("%-5s %-6s", kni_dtype_name(m.type), cpu_set_names[v]);
            for (unsigned r = 0; r < sizeof rows / sizeof *rows; r++) {
                struct kni_qgemm_args a = {.w = &m.p, .n_cols = rows[r] > 32 ? 64 : OUT, .x = xb, .ldx = n_in / 32, .n_rows = rows[r], .y = y, .ldy = OUT, .scratch = scratch};
                double s, gbs, gflops;
                BENCH_SECONDS(s, levels[v].qgemm(&a));
                gbs = (double)m.row_bytes * a.n_cols / s * 1e-9;
                gflops = 2.0 * rows[r] * a.n_cols * n_in / s * 1e-9;
                if (r < 2)
                    printf(" | %u: %.1f GB/s %.2f", rows[r], gbs, gbs / read);
                else
                    printf(" | %u: %.1f GFLOP/s %.2f", rows[r], gflops, gflops / fma);
            }
            printf("\n");
        }
        matrix_free(&m);
    }
    double s[2];
    for (int v = 0; v < 2; v++)
        BENCH_SECONDS(s[v], check_tables[v].quantise(xb, x, 24));
    printf("quantise: ref %.2f, simd %.2f G values/s\n", 768 / s[0] * 1e-9, 768 / s[1] * 1e-9);
    guarded_check_free(x);
    guarded_check_free(y);
    guarded_check_free(xb);
    free(scratch);
}

int main(int argc, char **argv)
{
    bool want_bench = check_start(argc, argv);
    find_levels();
    if (want_bench) {
        bench();
        return 0;
    }
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(dequant_has_the_same_bits), cmocka_unit_test(panels_keep_the_values),          cmocka_unit_test(quantise_is_right),
        cmocka_unit_test(product_is_right),          cmocka_unit_test(extremes_do_not_overflow),        cmocka_unit_test(bits_do_not_depend_on_the_split),
        cmocka_unit_test(nan_stays_in_its_row),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
