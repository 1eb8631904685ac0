/* SPDX-License-Identifier: Apache-2.0 */
/* Numbers of the load generator: percentiles that can be computed by hand, and arrivals whose statistics are known. */
#include "../../../bench/load_stats.c" /* the program is no library */

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

static void test_quantiles_are_exact(void **state)
{
    (void)state;
    struct kn_samples s = {0};
    assert_true(kn_samples_quantile(&s, 0.5) == 0 && kn_samples_mean(&s) == 0);
    for (int i = 0; i < 1000; i++)
        kn_samples_add(&s, (i * 7919) % 1000 + 1); /* 1..1000, each once, in disorder */
    assert_true(kn_samples_quantile(&s, 0.5) == 500);
    assert_true(kn_samples_quantile(&s, 0.9) == 900);
    assert_true(kn_samples_quantile(&s, 0.99) == 990);
    assert_true(kn_samples_quantile(&s, 0.999) == 999);
    assert_true(kn_samples_quantile(&s, 1) == 1000);
    assert_true(kn_samples_quantile(&s, 1e-9) == 1);
    assert_true(kn_samples_mean(&s) == 500.5);
    kn_samples_add(&s, 0.5); /* sorts again */
    assert_true(kn_samples_quantile(&s, 1e-9) == 0.5);
    assert_int_equal(s.n, 1001);
    assert_false(s.failed);
    kn_samples_fini(&s);
}

static void test_few_samples(void **state)
{
    (void)state;
    struct kn_samples s = {0};
    kn_samples_add(&s, 3);
    assert_true(kn_samples_quantile(&s, 0.5) == 3 && kn_samples_quantile(&s, 0.99) == 3);
    kn_samples_add(&s, 1);
    assert_true(kn_samples_quantile(&s, 0.5) == 1 && kn_samples_quantile(&s, 0.51) == 3);
    for (int i = 0; i < 8; i++)
        kn_samples_add(&s, 2);
    assert_true(kn_samples_quantile(&s, 0.9) == 2 && kn_samples_quantile(&s, 0.91) == 3); /* the ninth and the tenth of ten */
    kn_samples_fini(&s);
}

static void test_arrivals_are_poisson(void **state)
{
    (void)state;
    enum { N = 200000 };
    struct kn_arrivals a, b;
    const double rate = 8;
    double last = 0, sum = 0, squares = 0;
    int longer = 0;
    kn_arrivals_init(&a, rate, 42);
    kn_arrivals_init(&b, rate, 42);
    for (int i = 0; i < N; i++) {
        double at = kn_arrivals_next(&a), gap = at - last;
        assert_true(gap >= 0 && at == kn_arrivals_next(&b));
        sum += gap;
        squares += gap * gap;
        longer += gap > 1 / rate;
        last = at;
    }
    double mean = sum / N, deviation = sqrt(squares / N - mean * mean);
    assert_true(fabs(mean * rate - 1) < 0.01);      /* standard error 0.0022 */
    assert_true(fabs(deviation * rate - 1) < 0.02); /* as large as the mean: exponential */
    assert_true(fabs((double)longer / N - exp(-1)) < 0.01);
    kn_arrivals_init(&b, rate, 43);
    kn_arrivals_init(&a, rate, 42);
    assert_true(kn_arrivals_next(&a) != kn_arrivals_next(&b));
}

static void test_ranges(void **state)
{
    (void)state;
    struct kn_random random = {.state = 1};
    int seen[5] = {0};
    for (int i = 0; i < 5000; i++) {
        uint32_t x = kn_random_between(&random, 3, 7);
        assert_in_range(x, 3, 7);
        seen[x - 3]++;
    }
    for (int i = 0; i < 5; i++)
        assert_in_range(seen[i], 850, 1150); /* 1000 +- 5 deviations */
    assert_int_equal(kn_random_between(&random, UINT32_MAX, UINT32_MAX), UINT32_MAX);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_quantiles_are_exact),
        cmocka_unit_test(test_few_samples),
        cmocka_unit_test(test_arrivals_are_poisson),
        cmocka_unit_test(test_ranges),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
