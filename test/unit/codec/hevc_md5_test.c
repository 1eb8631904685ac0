/* SPDX-License-Identifier: Apache-2.0 */
/* MD5: what RFC 1321 (A.5) prints, around the sizes at which a block more is needed, and the same however the bytes
 * are cut. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include "codec/hevc/hevc_md5.h"

static void digest_of(char hex[33], const uint8_t *bytes, size_t n_bytes, size_t piece)
{
    struct kni_md5 m;
    uint8_t out[16];
    kni_md5_init(&m);
    for (size_t at = 0; at < n_bytes; at += piece)
        kni_md5_update(&m, bytes + at, n_bytes - at < piece ? n_bytes - at : piece);
    kni_md5_final(&m, out);
    for (int i = 0; i < 16; i++)
        snprintf(hex + 2 * i, 3, "%02x", out[i]);
}

static void standard(void **state)
{
    (void)state;
    static const char *const known[][2] = {
        {"", "d41d8cd98f00b204e9800998ecf8427e"},
        {"a", "0cc175b9c0f1b6a831c399e269772661"},
        {"abc", "900150983cd24fb0d6963f7d28e17f72"},
        {"message digest", "f96b697d7cb7938d525a2f31aaf161d0"},
        {"abcdefghijklmnopqrstuvwxyz", "c3fcd3d76192e4007dfb496cca67e13b"},
        {"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789", "d174ab98d277d9f5a5611c2c9f419d9f"},
        {"12345678901234567890123456789012345678901234567890123456789012345678901234567890",
         "57edf4a22be3c955ac49da2e2107b67a"},
    };
    for (size_t i = 0; i < sizeof known / sizeof *known; i++)
        for (size_t piece = 1; piece <= 81; piece += 16) {
            char hex[33];
            digest_of(hex, (const uint8_t *)known[i][0], strlen(known[i][0]), piece);
            assert_string_equal(hex, known[i][1]);
        }
}

/* Bytes 0, 1, 2, ...: by coreutils' md5sum. */
static void sizes(void **state)
{
    (void)state;
    static const struct { size_t n; const char *hex; } known[] = {
        {55, "6912ee65fff2d9f9ce2508cddf8bcda0"},
        {56, "51fdd1acda72405dfdfa03fcb85896d7"},
        {57, "5320ef4c17ef34a0cf2db763338d25eb"},
        {63, "48a6295221902e8e0938f773a7185e72"},
        {64, "b2d3f56bc197fd985d5965079b5e7148"},
        {65, "8bd7053801c768420faf816fadba971c"},
        {119, "1c772251899a7ff007400b888d6b2042"},
        {120, "b7ba1efc6022e9ed272f00b8831e26e6"},
        {128, "37eff01866ba3f538421b30b7cbefcac"},
        {1024, "b2ea9f7fcea831a4a63b213f41a8855b"},
    };
    uint8_t bytes[1024];
    for (size_t i = 0; i < sizeof bytes; i++)
        bytes[i] = (uint8_t)i;
    for (size_t i = 0; i < sizeof known / sizeof *known; i++)
        for (size_t piece = 1; piece <= known[i].n; piece++) {
            char hex[33];
            digest_of(hex, bytes, known[i].n, piece);
            assert_string_equal(hex, known[i].hex);
        }
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(standard), cmocka_unit_test(sizes)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
