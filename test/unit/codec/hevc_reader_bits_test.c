/* SPDX-License-Identifier: Apache-2.0 */
/* One bit reader over a payload, and over the bytes of a NAL unit that hides it: both must read the same. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "codec/hevc/hevc_reader_bits.h"

/* As an encoder writes it: 03 after two zeros where the next byte is at most 3. */
static size_t escape(uint8_t *to, const uint8_t *from, size_t n)
{
    size_t m = 0, zeros = 0;
    for (size_t i = 0; i < n; i++) {
        if (zeros == 2 && from[i] <= 3) {
            to[m++] = 3;
            zeros = 0;
        }
        to[m++] = from[i];
        zeros = from[i] ? 0 : zeros + 1;
    }
    return m;
}

static void escaped_bytes_read_as_their_payload(void **state)
{
    (void)state;
    uint32_t seed = 1;
    for (int round = 0; round < 2000; round++) {
        uint8_t payload[40], escaped[80];
        for (size_t i = 0; i < sizeof payload; i++) {
            seed = seed * 1664525u + 1013904223u;
            payload[i] = seed >> 31 ? 0 : (uint8_t)(seed >> 24 & (seed >> 30 & 1 ? 3 : 255)); /* many zeros and small bytes */
        }
        payload[sizeof payload - 1] = 0x80;
        size_t n = escape(escaped, payload, sizeof payload);
        struct kni_hevc_bits a = kni_hevc_bits_of(payload, sizeof payload), b = kni_hevc_bits_escaped(escaped, n);
        a.max_zeros = b.max_zeros;
        while (!a.over) {
            seed = seed * 1664525u + 1013904223u;
            uint32_t how = seed >> 28;
            if (how < 6)
                assert_int_equal(kni_hevc_bits_u(&a, how * 5), kni_hevc_bits_u(&b, how * 5));
            else if (how < 10)
                assert_int_equal(kni_hevc_bit(&a), kni_hevc_bit(&b));
            else
                assert_int_equal(how & 1 ? kni_hevc_bits_ue(&a) : (uint32_t)kni_hevc_bits_se(&a),
                                 how & 1 ? kni_hevc_bits_ue(&b) : (uint32_t)kni_hevc_bits_se(&b));
            assert_int_equal(a.over, b.over);
        }
    }
}

static void the_end_is_zeros_and_said(void **state)
{
    (void)state;
    const uint8_t cut[] = {0, 0, 3}; /* the 03 is not the payload's, and nothing follows it */
    struct kni_hevc_bits b = kni_hevc_bits_escaped(cut, sizeof cut);
    assert_int_equal(kni_hevc_bits_u(&b, 16), 0);
    assert_false(b.over);
    assert_int_equal(kni_hevc_bits_u(&b, 8), 0);
    assert_true(b.over);
    b = kni_hevc_bits_of(cut, sizeof cut);
    assert_int_equal(kni_hevc_bits_u(&b, 24), 3);
    assert_false(b.over);
    b = kni_hevc_bits_escaped(cut, 0);
    assert_int_equal(kni_hevc_bit(&b), 0);
    assert_true(b.over);
}

static void long_codes_count_as_running_out(void **state)
{
    (void)state;
    const uint8_t sixteen[] = {0, 0, 0x80, 0, 0}, seventeen[] = {0, 0, 0x40, 0, 0, 0}, thirty_one[] = {0, 0, 0, 1, 0, 0, 0, 0}, none[8] = {0};
    struct kni_hevc_bits b = kni_hevc_bits_escaped(sixteen, sizeof sixteen);
    assert_int_equal(kni_hevc_bits_ue(&b), 65535);
    assert_false(b.over);
    b = kni_hevc_bits_escaped(seventeen, sizeof seventeen);
    assert_int_equal(kni_hevc_bits_ue(&b), 0);
    assert_true(b.over);
    b = kni_hevc_bits_of(thirty_one, sizeof thirty_one);
    assert_int_equal(kni_hevc_bits_ue(&b), 0x7fffffffu);
    assert_false(b.over);
    b = kni_hevc_bits_of(none, sizeof none);
    assert_int_equal(kni_hevc_bits_ue(&b), 0);
    assert_true(b.over);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(escaped_bytes_read_as_their_payload),
        cmocka_unit_test(the_end_is_zeros_and_said),
        cmocka_unit_test(long_codes_count_as_running_out),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
