/* SPDX-License-Identifier: Apache-2.0 */
/* Reference dequantisers against golden vectors of the gguf Python package (golden/make_dequant.py), bit for bit. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "kernel/dequant.h"

static uint8_t *read_file(const char *path, size_t *n)
{
    FILE *f = fopen(path, "rb");
    assert_non_null(f);
    fseek(f, 0, SEEK_END);
    *n = (size_t)ftell(f);
    rewind(f);
    uint8_t *p = malloc(*n);
    assert_non_null(p);
    assert_int_equal(fread(p, 1, *n, f), *n);
    fclose(f);
    return p;
}

static uint32_t u32(const uint8_t *p)
{
    uint32_t v;
    memcpy(&v, p, 4);
    return v;
}

static void golden(void **state)
{
    (void)state;
    size_t n, at = 0;
    uint8_t *p = read_file(KN_SOURCE_DIR "/test/kernel/golden/dequant.bin", &n);
    unsigned seen = 0;
    while (at < n) {
        uint32_t id = u32(p + at), values = u32(p + at + 4), bytes = u32(p + at + 8);
        const struct kni_dtype_info *info = kni_dtype_get_info(id);
        assert_non_null(info);
        assert_int_equal((uint64_t)values * info->block_bytes, (uint64_t)bytes * info->block_values);
        for (unsigned shift = 0; shift < 2; shift++) { /* also from an odd address, as a row of a mapped file may lie */
            uint8_t *src = malloc(bytes + shift);
            float *dst = malloc((values + 2) * sizeof *dst), canary = -12345.0f;
            assert_true(src && dst);
            memcpy(src + shift, p + at + 12, bytes);
            dst[0] = dst[values + 1] = canary;
            kni_dequant_ref_of((enum kni_dtype)id)(src + shift, dst + 1, values);
            assert_true(dst[0] == canary && dst[values + 1] == canary);
            for (uint32_t i = 0; i < values; i++) {
                float want;
                memcpy(&want, p + at + 12 + bytes + 4 * i, 4);
                if (dst[1 + i] != want)
                    fail_msg("%s value %u: %.9g, want %.9g", info->name, i, (double)dst[1 + i], (double)want);
            }
            free(src);
            free(dst);
        }
        at += 12 + bytes + 4 * (size_t)values;
        seen++;
    }
    assert_int_equal(at, n);
    assert_int_equal(seen, 11); /* every type of base/dtype.h */
    free(p);
}

static void every_type_has_one(void **state)
{
    (void)state;
    for (uint32_t id = 0; id < 64; id++)
        assert_int_equal(kni_dtype_get_info(id) != NULL, kni_dequant_ref_of((enum kni_dtype)id) != NULL);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(golden), cmocka_unit_test(every_type_has_one)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
