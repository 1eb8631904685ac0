/* SPDX-License-Identifier: Apache-2.0 */
/* Known answers: BLAKE2b-128 from Python's hashlib.blake2b(digest_size=16), XXH3 from the xxhash specification's own vectors. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "base/hash.h"

static void check_hex(struct kni_hash h, const char *want)
{
    char hex[33];
    memset(hex, 'z', sizeof hex);
    kni_hash_hex(&h, hex);
    assert_string_equal(hex, want);
}

static void known_answers(void **state)
{
    (void)state;
    check_hex(kni_hash_bytes("", 0), "cae66941d9efbd404e4d88758ea67670");
    check_hex(kni_hash_bytes("abc", 3), "cf4ab791c62b8d2b2109c90275287816");
    assert_true(kni_xxh3("", 0) == 0x2d06800538d394c2u);
    assert_true(kni_xxh3("abc", 3) == 0x78af5f94892f3950u);
}

static void pieces_and_key(void **state)
{
    (void)state;
    uint8_t data[1280];
    for (size_t i = 0; i < sizeof data; i++)
        data[i] = (uint8_t)i;
    for (size_t step = 1; step < sizeof data; step = step * 3 + 1) {
        struct kni_hasher h, copy;
        kni_hasher_init(&h, "salt", 4);
        for (size_t at = 0; at < sizeof data; at += step)
            kni_hasher_update(&h, data + at, sizeof data - at < step ? sizeof data - at : step);
        copy = h; /* plain memory */
        check_hex(kni_hasher_final(&h), "add9d5adee7785c2ceb8951514481248");
        check_hex(kni_hasher_final(&copy), "add9d5adee7785c2ceb8951514481248");
    }
}

static void every_bit_counts(void **state)
{
    (void)state;
    uint8_t data[40] = {0};
    struct kni_hash zero = kni_hash_bytes(data, sizeof data), same = kni_hash_bytes(data, sizeof data);
    uint64_t x = kni_xxh3(data, sizeof data);
    assert_true(kni_hash_equal(&zero, &same));
    for (unsigned bit = 0; bit < 8 * sizeof data; bit++) {
        data[bit / 8] ^= (uint8_t)(1u << bit % 8);
        struct kni_hash h = kni_hash_bytes(data, sizeof data);
        assert_false(kni_hash_equal(&zero, &h));
        assert_true(kni_xxh3(data, sizeof data) != x);
        data[bit / 8] ^= (uint8_t)(1u << bit % 8);
    }
    for (unsigned i = 0; i < KNI_HASH_BYTES; i++) { /* equality looks at every byte */
        same.bytes[i] ^= 1;
        assert_false(kni_hash_equal(&zero, &same));
        same.bytes[i] ^= 1;
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(known_answers), cmocka_unit_test(pieces_and_key), cmocka_unit_test(every_bit_counts)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
