/* SPDX-License-Identifier: Apache-2.0 */
/* gemm and pack16 against sums in double. --bench compares with the BLAS's sgemm on one thread. */
#include "check.h"

#include <cblas.h>

#include "probe.h"
#include "support/cpu_levels.h"

/* Budget: each of the k additions and products may round once, relative to the magnitudes: (k + 1) * eps * sum |a b|. */
static void check_gemm(const struct kni_kernels *k, const char *name, uint32_t m, uint32_t n, uint32_t kk, bool packed, bool accumulate, enum pattern p)
{
    uint32_t panels = (n + 15) / 16, extra = rnd() % 5;
    size_t lda = kk + extra, ldc = n + extra, ldb = packed ? 16 : panels * 16, stride = packed ? (size_t)16 * kk : 16;
    float *a = floats(m * lda), *b = floats((size_t)panels * 16 * kk), *c = floats(m * ldc), *c0 = floats(m * ldc);
    fill(a, m * lda, p);
    fill(b, (size_t)panels * 16 * kk, PATTERN_RANDOM);
    fill(c0, m * ldc, PATTERN_RANDOM);
    memcpy(c, c0, m * ldc * sizeof *c);
    k->gemm(&(struct kni_gemm_args){.m = m, .n = n, .k = kk, .a = a, .lda = lda, .b = b, .ldb = ldb, .panel_stride = stride, .c = c, .ldc = ldc, .accumulate = accumulate});
    for (uint32_t i = 0; i < m; i++)
        for (uint32_t j = 0; j < ldc; j++) {
            double want = accumulate || j >= n ? c0[i * ldc + j] : 0, size = fabs(want);
            for (uint32_t q = 0; j < n && q < kk; q++) {
                double x = (double)a[i * lda + q] * b[j / 16 * stride + q * ldb + j % 16];
                want += x;
                size += fabs(x);
            }
            CHECK_NEAR(c[i * ldc + j], want, j < n ? (kk + 1) * CHECK_EPS * size + 1e-44 * (kk + 1) : 0, "%s m %u n %u k %u at %u,%u", name, m, n, kk, i, j);
        }
    guarded_check_free(a);
    guarded_check_free(b);
    guarded_check_free(c);
    guarded_check_free(c0);
}

/* Every level that the machine has. */
static struct kni_kernels levels[N_CPU_LEVELS];
static unsigned n_levels;

static void find_levels(void)
{
    for (n_levels = 0; n_levels < cpu_sets_count(N_CPU_LEVELS); n_levels++)
        kni_kernels_init(&levels[n_levels], cpu_sets[n_levels]);
}

static void gemm_is_right(void **state)
{
    (void)state;
    static const uint32_t ms[] = {1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 50}, ns[] = {1, 15, 16, 17, 31, 48, 64}, ks[] = {1, 2, 7, 64, 100};
    for (unsigned v = 0; v < n_levels; v++)
        for (unsigned i = 0; i < 13; i++)
            for (unsigned j = 0; j < 7; j++)
                for (unsigned q = 0; q < 5; q++)
                    check_gemm(&levels[v], cpu_set_names[v], ms[i], ns[j], ks[q], rnd() & 1, rnd() & 1, (enum pattern)(rnd() % PATTERN_COUNT));
}

/* The promise that chunk sizes rest on: a row's bits do not depend on how many rows come with it. */
static void gemm_rows_do_not_depend_on_m(void **state)
{
    (void)state;
    enum { M = 29, N = 40, K = 131 };
    float *a = floats(M * K), *b = floats(48 * K), *whole = floats(M * N), *part = floats(M * N);
    fill(a, M * K, PATTERN_RANDOM);
    fill(b, 48 * K, PATTERN_RANDOM);
    for (unsigned v = 0; v < n_levels; v++) {
        struct kni_gemm_args g = {.m = M, .n = N, .k = K, .a = a, .lda = K, .b = b, .ldb = 16, .panel_stride = 16 * K, .c = whole, .ldc = N};
        levels[v].gemm(&g);
        for (uint32_t row = 0, n; row < M; row += n) {
            n = 1 + rnd() % 14;
            n = n > M - row ? M - row : n;
            g.m = n;
            g.a = a + row * K;
            g.c = part + row * N;
            levels[v].gemm(&g);
        }
        assert_memory_equal(whole, part, M * N * sizeof *whole);
    }
    if (n_levels == 3) { /* the wider form promises the bits of the narrower one */
        struct kni_gemm_args g = {.m = M, .n = N, .k = K, .a = a, .lda = K, .b = b, .ldb = 16, .panel_stride = 16 * K, .c = whole, .ldc = N};
        levels[1].gemm(&g);
        g.c = part;
        levels[2].gemm(&g);
        assert_memory_equal(whole, part, M * N * sizeof *whole);
    }
    guarded_check_free(a);
    guarded_check_free(b);
    guarded_check_free(whole);
    guarded_check_free(part);
}

static void pack16_transposes(void **state)
{
    (void)state;
    for (int v = 0; v < 2; v++)
        for (uint32_t k = 1; k <= 70; k++) {
            size_t lds = k + rnd() % 4;
            float *src = floats(16 * lds), *dst = floats(16 * k);
            fill(src, 16 * lds, PATTERN_RANDOM);
            check_tables[v].pack16(dst, src, lds, k);
            for (uint32_t i = 0; i < k; i++)
                for (uint32_t j = 0; j < 16; j++)
                    assert_true(dst[i * 16 + j] == src[j * lds + i]);
            guarded_check_free(src);
            guarded_check_free(dst);
        }
}

static void bench(void)
{
    static const uint32_t shapes[][3] = {{256, 48, 576}, {256, 48, 768}, {32, 48, 576}, {192, 128, 64}, {192, 64, 128}, {9, 48, 576}};
    openblas_set_num_threads(1);
    printf("peak of one thread: %.1f GFLOP/s, of bfloat16 pairs (vdpbf16ps) %.1f\n", probe_fma_gflops(), probe_bf16_gflops());
    for (unsigned i = 0; i < 6; i++) {
        uint32_t m = shapes[i][0], n = shapes[i][1], k = shapes[i][2];
        float *a = floats((size_t)m * k), *b = floats((size_t)n * k), *c = floats((size_t)m * n);
        fill(a, (size_t)m * k, PATTERN_RANDOM);
        fill(b, (size_t)n * k, PATTERN_RANDOM);
        double flop = 2.0 * m * n * k, t[4] = {0};
        struct kni_gemm_args g = {.m = m, .n = n, .k = k, .a = a, .lda = k, .b = b, .ldb = 16, .panel_stride = (size_t)16 * k, .c = c, .ldc = n};
        for (unsigned v = 0; v < n_levels; v++)
            BENCH_SECONDS(t[v], levels[v].gemm(&g));
        BENCH_SECONDS(t[3], cblas_sgemm(CblasRowMajor, CblasNoTrans, CblasTrans, (int)m, (int)n, (int)k, 1, a, (int)k, b, (int)k, 0, c, (int)n));
        printf("gemm m %3u n %3u k %3u:", m, n, k);
        for (unsigned v = 0; v < n_levels; v++)
            printf(" %s %6.1f,", cpu_set_names[v], flop / t[v] * 1e-9);
        printf(" sgemm %6.1f GFLOP/s\n", flop / t[3] * 1e-9);
        guarded_check_free(a);
        guarded_check_free(b);
        guarded_check_free(c);
    }
    float *src = floats(16 * 576), *dst = floats(16 * 576);
    for (int v = 0; v < 2; v++) {
        double t;
        BENCH_SECONDS(t, check_tables[v].pack16(dst, src, 576, 576));
        printf("pack16 %s: %.2f G values/s\n", check_names[v], 16 * 576 / t * 1e-9);
    }
    guarded_check_free(src);
    guarded_check_free(dst);
}

int main(int argc, char **argv)
{
    find_levels();
    if (check_start(argc, argv)) {
        bench();
        return 0;
    }
    const struct CMUnitTest tests[] = {cmocka_unit_test(gemm_is_right), cmocka_unit_test(gemm_rows_do_not_depend_on_m), cmocka_unit_test(pack16_transposes)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
