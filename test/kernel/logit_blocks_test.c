/* SPDX-License-Identifier: Apache-2.0 */
/* Maxima, sums and counts of blocks of logits, against double. */
#include "check.h"
#include "support/cpu_levels.h"

/* Every level that the machine has. */
static struct kni_kernels levels[N_CPU_LEVELS];
static unsigned n_levels;

static void find_levels(void)
{
    for (n_levels = 0; n_levels < cpu_sets_count(N_CPU_LEVELS); n_levels++)
        kni_kernels_init(&levels[n_levels], cpu_sets[n_levels]);
}

/* Parted at two bounds, with room for all between, for some and for none of them. Sums are sum_above's, to the bit. */
static void check_split(const struct kni_kernels *k, const float *x, const float *max, uint32_t n, float low, float high, float shift, float scale)
{
    uint32_t n_between = 0, n_above = 0, n_blocks = kni_logit_blocks(n);
    if (low > high)
        return;
    for (uint32_t i = 0; i < n; i++) {
        n_between += x[i] > low && x[i] <= high;
        n_above += x[i] > high;
    }
    float *want = floats(n_blocks);
    k->logit_sum_above(want, x, max, n, high, shift, scale);
    for (uint32_t room = n_between;; room /= 2) {
        struct kni_logit_split s = {.x = x, .max = max, .n = n, .n_room = room, .low = low, .high = high, .shift = shift, .scale = scale,
                                    .sum = floats(n_blocks), .values = floats(room), .ids = guarded(room * sizeof *s.ids)};
        uint32_t at = 0;
        k->logit_split(&s);
        assert_int_equal(s.n_between, n_between);
        assert_int_equal(s.n_above, n_above);
        assert_memory_equal(s.sum, want, n_blocks * sizeof *want);
        for (uint32_t i = 0; i < n && at < room; i++)
            if (x[i] > low && x[i] <= high) {
                assert_int_equal(s.ids[at], i);
                assert_true(s.values[at++] == x[i]);
            }
        guarded_check_free(s.sum);
        guarded_check_free(s.values);
        guarded_check_free(s.ids);
        if (!room)
            break;
    }
    guarded_check_free(want);
}

/* Blocks of logits. Maxima and counts are exact; NaN, infinities and the last block's end included. Budget of a sum: each weight's
 * error (softmax.h: 1.6e-7 + |x| 2^-23, and as much for the rounded difference and product), five roundings. */
static void logit_blocks_are_right(void **state)
{
    (void)state;
    static const uint32_t lengths[] = {1, 7, 8, 31, 32, 33, 63, 64, 65, 100, 256, 577, 1024};
    static const float odd[] = {NAN, -INFINITY, INFINITY};
    for (unsigned v = 0; v < n_levels; v++)
        for (unsigned i = 0; i < sizeof lengths / sizeof *lengths; i++)
            for (int p = 0; p < PATTERN_COUNT + 3; p++) {
                uint32_t n = lengths[i], n_blocks = kni_logit_blocks(n);
                float *x = floats(n), *max = floats(n_blocks), *sum = floats(n_blocks), *above = floats(n_blocks), top = -INFINITY;
                const float scale = i % 3 ? 1.0f : 0.3f;
                fill(x, n, p < PATTERN_COUNT ? (enum pattern)p : PATTERN_RANDOM);
                for (uint32_t j = 0; p >= PATTERN_COUNT && j < n; j++)
                    if (rnd() % 3 == 0 || (rnd() & 1 && n == 33))
                        x[j] = odd[p - PATTERN_COUNT];
                levels[v].logit_max(max, x, n);
                levels[v].logit_sum(sum, x, max, n, scale);
                for (uint32_t b = 0; b < n_blocks; b++) {
                    double want = 0;
                    float m = -INFINITY;
                    uint32_t end = n < 32 * b + 32 ? n : 32 * b + 32;
                    for (uint32_t j = 32 * b; j < end; j++)
                        m = x[j] > m ? x[j] : m;
                    for (uint32_t j = 32 * b; j < end && isfinite(m); j++)
                        want += x[j] > -INFINITY ? exp(((double)x[j] - m) * scale) : 0;
                    assert_true(max[b] == m);
                    CHECK_NEAR(sum[b], want, 2e-6 * want + 1e-30, "logit_sum %s n %u pattern %d block %u", cpu_set_names[v], n, p, b);
                    top = m > top ? m : top;
                }
                const float bounds[] = {-INFINITY, x[n / 2], 0.5f, top, INFINITY};
                for (unsigned k = 0; k < 5 && isfinite(top); k++) {
                    uint32_t count = 0;
                    if (isnan(bounds[k]))
                        continue;
                    levels[v].logit_sum_above(above, x, max, n, bounds[k], top, scale);
                    for (uint32_t b = 0; b < n_blocks; b++) {
                        double want = 0;
                        for (uint32_t j = 32 * b; j < n && j < 32 * b + 32; j++)
                            if (x[j] > bounds[k]) {
                                want += exp(((double)x[j] - top) * scale);
                                count++;
                            }
                        CHECK_NEAR(above[b], want, 2e-5 * want + 1e-30, "logit_sum_above %s n %u pattern %d bound %u", cpu_set_names[v], n, p, k);
                    }
                    assert_int_equal(levels[v].logit_count_above(x, max, n, bounds[k]), count);
                    check_split(&levels[v], x, max, n, bounds[k], top, top, scale);
                    check_split(&levels[v], x, max, n, -INFINITY, bounds[k], top, scale);
                    check_split(&levels[v], x, max, n, bounds[k], bounds[k], top, scale);
                }
                guarded_check_free(x);
                guarded_check_free(max);
                guarded_check_free(sum);
                guarded_check_free(above);
            }
}

/* A seed's tokens do not depend on which of the two a machine has. */
static void vector_levels_have_the_same_bits(void **state)
{
    (void)state;
    if (n_levels < 3)
        skip();
    for (int round = 0; round < 200; round++) {
        uint32_t n = 1 + rnd() % 700, n_blocks = kni_logit_blocks(n);
        float *x = floats(n), *max = floats(n_blocks), *sums[2] = {floats(n_blocks), floats(n_blocks)}, scale = rnd_unit() + 1, bound, top = -INFINITY;
        fill(x, n, (enum pattern)(round % PATTERN_COUNT));
        if (round % 3 == 0)
            x[rnd() % n] = round % 2 ? NAN : -INFINITY;
        levels[1].logit_max(max, x, n);
        for (uint32_t b = 0; b < n_blocks; b++)
            top = max[b] > top ? max[b] : top;
        for (unsigned v = 0; v < 2; v++)
            levels[1 + v].logit_sum(sums[v], x, max, n, scale);
        assert_memory_equal(sums[0], sums[1], n_blocks * sizeof(float));
        bound = x[rnd() % n];
        for (unsigned v = 0; v < 2; v++)
            levels[1 + v].logit_sum_above(sums[v], x, max, n, bound, top, scale);
        assert_memory_equal(sums[0], sums[1], n_blocks * sizeof(float));
        guarded_check_free(x);
        guarded_check_free(max);
        guarded_check_free(sums[0]);
        guarded_check_free(sums[1]);
    }
}

static void bench(void)
{
    enum { N = 262144 };
    float *x = floats(N), *max = floats(N / 32), *sum = floats(N / 32);
    struct kni_logit_split s = {.x = x, .max = max, .n = N, .n_room = N, .low = 1.5f, .high = 1.55f, .shift = 2, .scale = 1, .sum = sum, .values = floats(N),
                                .ids = guarded(N * sizeof *s.ids)};
    fill(x, N, PATTERN_RANDOM);
    for (unsigned v = 0; v < n_levels; v++) {
        double t[6];
        BENCH_SECONDS(t[0], levels[v].logit_max(max, x, N));
        BENCH_SECONDS(t[1], levels[v].logit_sum(sum, x, max, N, 1));
        BENCH_SECONDS(t[2], levels[v].logit_sum_above(sum, x, max, N, 0, 2, 1));
        BENCH_SECONDS(t[3], levels[v].logit_count_above(x, max, N, 0));
        BENCH_SECONDS(t[4], levels[v].logit_split(&s));
        BENCH_SECONDS(t[5], levels[v].logit_sum_above(sum, x, max, N, 1.99f, 2, 1));
        print_message("%-9s %u logits: max %.1f, sum %.1f, sum_above %.1f (few blocks %.1f), count_above %.1f, split %.1f us\n", cpu_set_names[v], N, t[0] * 1e6,
                      t[1] * 1e6, t[2] * 1e6, t[5] * 1e6, t[3] * 1e6, t[4] * 1e6);
    }
    guarded_check_free(x);
    guarded_check_free(max);
    guarded_check_free(sum);
    guarded_check_free(s.values);
    guarded_check_free(s.ids);
}

int main(int argc, char **argv)
{
    bool is_bench = check_start(argc, argv);
    find_levels();
    if (is_bench) {
        bench();
        return 0;
    }
    const struct CMUnitTest tests[] = {cmocka_unit_test(logit_blocks_are_right), cmocka_unit_test(vector_levels_have_the_same_bits)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
