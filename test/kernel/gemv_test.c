/* SPDX-License-Identifier: Apache-2.0 */
/* Quantised GEMV of every element type, and the SIMD dequantisers, against the plain references. */
#include "check.h"

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

/* Budget: n_in products and sums each round once, relative to the magnitudes; the reference sums in double. */
static void check_gemv(enum kni_dtype t, const struct kni_kernels *k, const char *name, uint32_t n_out, uint32_t n_in, uint32_t n_x, enum pattern p)
{
    bool accumulate = rnd() & 1;
    size_t row_bytes = bytes_of(t, n_in), ldx = n_in + rnd() % 3, ldy = n_out + rnd() % 3;
    uint8_t *w = guarded(row_bytes * n_out);
    float *x = floats(ldx * n_x), *y = floats(ldy * n_x), *y0 = floats(ldy * n_x), *scratch = floats(n_in), *row = floats(n_in);
    random_weights(t, w, row_bytes * n_out, false);
    fill(x, ldx * n_x, p);
    fill(y0, ldy * n_x, PATTERN_RANDOM);
    memcpy(y, y0, ldy * n_x * sizeof *y);
    k->gemv[t](&(struct kni_gemv_args){.w = w, .row_bytes = row_bytes, .n_out = n_out, .n_in = n_in, .x = x, .ldx = ldx, .n_x = n_x, .y = y, .ldy = ldy,
        .accumulate = accumulate, .dequant = k->dequant[t], .scratch = scratch});
    for (uint32_t o = 0; o < ldy; o++) {
        if (o < n_out)
            kni_dequant_ref(t, w + o * row_bytes, row, n_in);
        for (uint32_t r = 0; r < n_x; r++) {
            double want = accumulate || o >= n_out ? y0[r * ldy + o] : 0, size = fabs(want);
            for (uint32_t i = 0; o < n_out && i < n_in; i++) {
                double q = (double)row[i] * x[r * ldx + i];
                want += q;
                size += fabs(q);
            }
            CHECK_NEAR(y[r * ldy + o], want, o < n_out ? (n_in + 2) * CHECK_EPS * size + 1e-44 * n_in : 0, "%s %s out %u in %u rows %u at %u,%u", name,
                       kni_dtype_name(t), n_out, n_in, n_x, r, o);
        }
    }
    guarded_check_free(w);
    guarded_check_free(x);
    guarded_check_free(y);
    guarded_check_free(y0);
    guarded_check_free(scratch);
    guarded_check_free(row);
}

static void gemv_is_right(void **state)
{
    (void)state;
    for (int v = 0; v < 2; v++)
        for (unsigned i = 0; i < N_TYPES; i++)
            for (uint32_t n_x = 1; n_x <= KNI_GEMV_MAX_ROWS; n_x++)
                for (unsigned shape = 0; shape < 6; shape++) {
                    uint32_t block = kni_dtype_get_info(types[i])->block_values, unit = block == 1 ? 1 + rnd() % 45 : block;
                    check_gemv(types[i], &check_tables[v], check_names[v], 1 + rnd() % 9, unit * (1 + rnd() % 6), n_x, (enum pattern)shape);
                }
}

/* A row's bits depend neither on the other rows nor on where the outputs were cut. */
static void gemv_does_not_depend_on_the_split(void **state)
{
    (void)state;
    enum { OUT = 23, IN = 512, ROWS = 8 };
    float *x = floats(ROWS * IN), *whole = floats(ROWS * OUT), *part = floats(ROWS * OUT), *scratch = floats(IN);
    fill(x, ROWS * IN, PATTERN_RANDOM);
    for (int v = 0; v < 2; v++)
        for (unsigned i = 0; i < N_TYPES; i++) {
            enum kni_dtype t = types[i];
            size_t row_bytes = bytes_of(t, IN);
            uint8_t *w = guarded(row_bytes * OUT);
            random_weights(t, w, row_bytes * OUT, false);
            struct kni_gemv_args a = {.w = w, .row_bytes = row_bytes, .n_out = OUT, .n_in = IN, .x = x, .ldx = IN, .n_x = ROWS, .y = whole, .ldy = OUT,
                .dequant = check_tables[v].dequant[t], .scratch = scratch};
            check_tables[v].gemv[t](&a);
            for (uint32_t r = 0, n; r < ROWS; r += n) {
                n = 1 + rnd() % 5;
                n = n > ROWS - r ? ROWS - r : n;
                for (uint32_t o = 0, m; o < OUT; o += m) {
                    m = 1 + rnd() % 7;
                    m = m > OUT - o ? OUT - o : m;
                    a.w = w + o * row_bytes;
                    a.n_out = m;
                    a.x = x + r * IN;
                    a.n_x = n;
                    a.y = part + r * OUT + o;
                    check_tables[v].gemv[t](&a);
                }
            }
            assert_memory_equal(whole, part, ROWS * OUT * sizeof *whole);
            guarded_check_free(w);
        }
    guarded_check_free(x);
    guarded_check_free(whole);
    guarded_check_free(part);
    guarded_check_free(scratch);
}

static void bench(void)
{
    enum { OUT = 576, IN = 1536 };
    float *x = floats(8 * IN), *y = floats(8 * OUT), *scratch = floats(IN);
    fill(x, 8 * IN, PATTERN_RANDOM);
    for (unsigned i = 0; i < N_TYPES; i++) {
        enum kni_dtype t = types[i];
        size_t row_bytes = bytes_of(t, IN);
        uint8_t *w = guarded(row_bytes * OUT);
        random_weights(t, w, row_bytes * OUT, false);
        for (int v = 0; v < 2; v++) {
            double s, d;
            BENCH_SECONDS(d, for (int j = 0; j < 64; j++) check_tables[v].dequant[t](w + (size_t)j * row_bytes, scratch, IN));
            printf("%-5s %-4s dequant %6.2f G values/s |", kni_dtype_name(t), check_names[v], 64.0 * IN / d * 1e-9);
            for (uint32_t n = 1; n <= 8; n *= 2) {
                struct kni_gemv_args a = {.w = w, .row_bytes = row_bytes, .n_out = OUT, .n_in = IN, .x = x, .ldx = IN, .n_x = n, .y = y, .ldy = OUT,
                    .dequant = check_tables[v].dequant[t], .scratch = scratch};
                BENCH_SECONDS(s, check_tables[v].gemv[t](&a));
                printf(" %u rows %6.2f GB/s %6.1f GFLOP/s", n, (double)row_bytes * OUT / s * 1e-9, 2.0 * n * OUT * IN / s * 1e-9);
            }
            printf("\n");
        }
        guarded_check_free(w);
    }
    guarded_check_free(x);
    guarded_check_free(y);
    guarded_check_free(scratch);
}

int main(int argc, char **argv)
{
    if (check_start(argc, argv)) {
        bench();
        return 0;
    }
    const struct CMUnitTest tests[] = {cmocka_unit_test(dequant_has_the_same_bits), cmocka_unit_test(gemv_is_right), cmocka_unit_test(gemv_does_not_depend_on_the_split)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
