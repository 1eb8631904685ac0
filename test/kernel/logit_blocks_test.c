/* SPDX-License-Identifier: Apache-2.0 */
/* Maxima, sums and counts of blocks of logits, against double. */
#include "check.h"

/* Blocks of logits. Maxima and counts are exact; NaN, infinities and the last block's end included. Budget of a sum: each weight's
 * error (softmax.h: 1.6e-7 + |x| 2^-23, and as much for the rounded difference and product), five roundings. */
static void logit_blocks_are_right(void **state)
{
    (void)state;
    static const uint32_t lengths[] = {1, 7, 8, 31, 32, 33, 63, 64, 65, 100, 256, 577, 1024};
    static const float odd[] = {NAN, -INFINITY, INFINITY};
    for (int v = 0; v < 2; v++)
        for (unsigned i = 0; i < sizeof lengths / sizeof *lengths; i++)
            for (int p = 0; p < PATTERN_COUNT + 3; p++) {
                uint32_t n = lengths[i], n_blocks = kni_logit_blocks(n);
                float *x = floats(n), *max = floats(n_blocks), *sum = floats(n_blocks), *above = floats(n_blocks), top = -INFINITY;
                const float scale = i % 3 ? 1.0f : 0.3f;
                fill(x, n, p < PATTERN_COUNT ? (enum pattern)p : PATTERN_RANDOM);
                for (uint32_t j = 0; p >= PATTERN_COUNT && j < n; j++)
                    if (rnd() % 3 == 0 || (rnd() & 1 && n == 33))
                        x[j] = odd[p - PATTERN_COUNT];
                check_tables[v].logit_max(max, x, n);
                check_tables[v].logit_sum(sum, x, max, n, scale);
                for (uint32_t b = 0; b < n_blocks; b++) {
                    double want = 0;
                    float m = -INFINITY;
                    uint32_t end = n < 32 * b + 32 ? n : 32 * b + 32;
                    for (uint32_t j = 32 * b; j < end; j++)
                        m = x[j] > m ? x[j] : m;
                    for (uint32_t j = 32 * b; j < end && isfinite(m); j++)
                        want += x[j] > -INFINITY ? exp(((double)x[j] - m) * scale) : 0;
                    assert_true(max[b] == m);
                    CHECK_NEAR(sum[b], want, 2e-6 * want + 1e-30, "logit_sum %s n %u pattern %d block %u", check_names[v], n, p, b);
                    top = m > top ? m : top;
                }
                const float bounds[] = {-INFINITY, x[n / 2], 0.5f, top, INFINITY};
                for (unsigned k = 0; k < 5 && isfinite(top); k++) {
                    uint32_t count = 0;
                    if (isnan(bounds[k]))
                        continue;
                    check_tables[v].logit_sum_above(above, x, max, n, bounds[k], top, scale);
                    for (uint32_t b = 0; b < n_blocks; b++) {
                        double want = 0;
                        for (uint32_t j = 32 * b; j < n && j < 32 * b + 32; j++)
                            if (x[j] > bounds[k]) {
                                want += exp(((double)x[j] - top) * scale);
                                count++;
                            }
                        CHECK_NEAR(above[b], want, 2e-5 * want + 1e-30, "logit_sum_above %s n %u pattern %d bound %u", check_names[v], n, p, k);
                    }
                    assert_int_equal(check_tables[v].logit_count_above(x, max, n, bounds[k]), count);
                }
                guarded_check_free(x);
                guarded_check_free(max);
                guarded_check_free(sum);
                guarded_check_free(above);
            }
}

static void bench(void)
{
    enum { N = 262144 };
    float *x = floats(N), *max = floats(N / 32), *sum = floats(N / 32);
    fill(x, N, PATTERN_RANDOM);
    for (int v = 0; v < 2; v++) {
        double t[4];
        BENCH_SECONDS(t[0], check_tables[v].logit_max(max, x, N));
        BENCH_SECONDS(t[1], check_tables[v].logit_sum(sum, x, max, N, 1));
        BENCH_SECONDS(t[2], check_tables[v].logit_sum_above(sum, x, max, N, 0, 2, 1));
        BENCH_SECONDS(t[3], check_tables[v].logit_count_above(x, max, N, 0));
        print_message("%-4s %u logits: max %.1f, sum %.1f, sum_above %.1f, count_above %.1f us\n", check_names[v], N, t[0] * 1e6, t[1] * 1e6, t[2] * 1e6, t[3] * 1e6);
    }
    guarded_check_free(x);
    guarded_check_free(max);
    guarded_check_free(sum);
}

int main(int argc, char **argv)
{
    if (check_start(argc, argv)) {
        bench();
        return 0;
    }
    const struct CMUnitTest tests[] = {cmocka_unit_test(logit_blocks_are_right)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
