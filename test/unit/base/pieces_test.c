/* SPDX-License-Identifier: Apache-2.0 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "base/alloc.h"
#include "base/pieces.h"

struct arrays { float *a; uint8_t *b; uint16_t *c; };

static void lay_out(struct arrays *x, struct kni_pieces *p)
{
    x->a = kni_piece(p, 17, sizeof *x->a);
    x->b = kni_piece(p, 0, 1);
    x->c = kni_piece_2d(p, 3, 33, sizeof *x->c);
}

static void both_passes_agree(void **state)
{
    (void)state;
    struct arrays x;
    struct kni_pieces p = {0};
    lay_out(&x, &p);
    assert_false(p.overflow);
    assert_int_equal(p.used, 128 + 0 + 256); /* 68 and 198 bytes in whole lines */
    assert_null(x.a);
    assert_null(x.c);
    const size_t bytes = p.used;
    char *memory = kni_alloc(KNI_ALLOC_TAG_MISC, bytes, 64);
    p = (struct kni_pieces){.base = memory};
    lay_out(&x, &p);
    assert_int_equal(p.used, bytes);
    assert_ptr_equal(x.a, memory);
    assert_ptr_equal(x.b, memory + 128);
    assert_ptr_equal(x.c, memory + 128);
    kni_free(memory);
}

static void what_does_not_fit_is_no_piece(void **state)
{
    (void)state;
    char memory[64];
    const struct { size_t rows, cols, each; } large[] = {{1, SIZE_MAX, 2}, {SIZE_MAX, 1, 2}, {1, SIZE_MAX - 62, 1}, {1, SIZE_MAX - 200, 1}};
    for (size_t i = 0; i < sizeof large / sizeof *large; i++) {
        struct kni_pieces p = {.base = memory, .used = 192};
        assert_null(kni_piece_2d(&p, large[i].rows, large[i].cols, large[i].each));
        assert_true(p.overflow);
        assert_null(kni_piece(&p, 1, 1)); /* and none after it */
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(both_passes_agree),
        cmocka_unit_test(what_does_not_fit_is_no_piece),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
