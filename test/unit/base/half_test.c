/* SPDX-License-Identifier: Apache-2.0 */
/* 16-bit floats: all 65,536 values both ways, and rounding against an independent form that works in double. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "base/half.h"

static uint64_t state64 = 88172645463325252u;

static uint32_t rnd(void)
{
    state64 ^= state64 << 13;
    state64 ^= state64 >> 7;
    state64 ^= state64 << 17;
    return (uint32_t)(state64 >> 16);
}

/* Value of a half with e exponent bits and m mantissa bits, from the definition. */
static double value(uint16_t h, int e_bits, int m_bits)
{
    int e = h >> m_bits & ((1 << e_bits) - 1), m = h & ((1 << m_bits) - 1), bias = (1 << (e_bits - 1)) - 1;
    double sign = h >> 15 ? -1 : 1;
    if (e == (1 << e_bits) - 1)
        return m ? NAN : sign * INFINITY;
    return sign * (e ? ldexp(1 + ldexp(m, -m_bits), e - bias) : ldexp(m, 1 - bias - m_bits));
}

/* Nearest, ties to even, by scaling so that the last kept bit is 1 and rounding with rint (exact in double). */
static double rounded(double x, int m_bits, int e_min, double largest)
{
    if (isnan(x) || isinf(x) || x == 0)
        return x;
    int e;
    frexp(x, &e); /* |x| in [2^(e-1), 2^e) */
    int last = e - 1 - m_bits;
    if (last < e_min - m_bits)
        last = e_min - m_bits;
    double r = ldexp(rint(ldexp(x, -last)), last);
    return fabs(r) > largest ? copysign(INFINITY, x) : r;
}

static void every_f16_survives(void **state)
{
    (void)state;
    for (uint32_t i = 0; i < 65536; i++) {
        uint16_t h = (uint16_t)i;
        double want = value(h, 5, 10), got = (double)kni_f16_to_f32(h);
        if (isnan(want)) {
            assert_true(isnan(got));
            uint16_t back = kni_f32_to_f16(kni_f16_to_f32(h));
            assert_true((back & 0x7c00u) == 0x7c00u && (back & 0x3ffu));
            assert_int_equal(back & 0x8000u, h & 0x8000u);
        } else {
            assert_true(got == want && !signbit(got) == !(h >> 15));
            assert_int_equal(kni_f32_to_f16(kni_f16_to_f32(h)), h);
        }
    }
}

static void every_bf16_survives(void **state)
{
    (void)state;
    for (uint32_t i = 0; i < 65536; i++) {
        uint16_t h = (uint16_t)i;
        double want = value(h, 8, 7), got = (double)kni_bf16_to_f32(h);
        if (isnan(want)) {
            assert_true(isnan(got));
            assert_true(isnan(kni_bf16_to_f32(kni_f32_to_bf16(kni_bf16_to_f32(h)))));
        } else {
            assert_true(got == want && !signbit(got) == !(h >> 15));
            assert_int_equal(kni_f32_to_bf16(kni_bf16_to_f32(h)), h);
        }
    }
}

static void check_rounding(uint32_t bits)
{
    float x = kni_f32_from_bits(bits);
    assert_int_equal(kni_f32_bits(x), bits);
    float f16 = kni_f16_to_f32(kni_f32_to_f16(x)), bf16 = kni_bf16_to_f32(kni_f32_to_bf16(x));
    if (isnan(x)) {
        assert_true(isnan(f16) && isnan(bf16));
        return;
    }
    double want16 = rounded((double)x, 10, -14, 65504.0), want_b = rounded((double)x, 7, -126, 0x1.fep127);
    assert_true((double)f16 == want16 && !signbit(f16) == !signbit(x));
    assert_true((double)bf16 == want_b && !signbit(bf16) == !signbit(x));
#if defined(__FLT16_MAX__) && !defined(__clang__) /* a compiler that converts in software or by F16C */
    assert_true((double)(_Float16)x == (double)f16);
#endif
}

static void random_floats_round_to_nearest_even(void **state)
{
    (void)state;
    for (int i = 0; i < 3000000; i++)
        check_rounding(rnd());
}

/* Halfway between neighbours, and one float to either side of it, for every pair of neighbours. */
static void ties_round_to_even(void **state)
{
    (void)state;
    for (uint32_t i = 0; i < 65536; i++) {
        uint32_t middle16 = kni_f32_bits((kni_f16_to_f32((uint16_t)i) + kni_f16_to_f32((uint16_t)(i + 1))) / 2), middle_b = i << 16 | 0x8000u;
        for (int d = -1; d <= 1; d++) {
            check_rounding(middle16 + (uint32_t)d);
            check_rounding(middle_b + (uint32_t)d);
        }
    }
    check_rounding(0x477fefffu); /* last float below the tie between the largest f16 and overflow */
    check_rounding(0x477ff000u); /* the tie */
    check_rounding(0x7f7fffffu);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(every_f16_survives), cmocka_unit_test(every_bf16_survives),
                                       cmocka_unit_test(random_floats_round_to_nearest_even), cmocka_unit_test(ties_round_to_even)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
