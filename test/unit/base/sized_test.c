/* SPDX-License-Identifier: Apache-2.0 */
/* Structs with sizes of older and of newer callers: what is copied, what is refused, what is left alone. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "base/sized.h"

struct kn_pair_opts { size_t size; uint64_t first, second; };
struct newer { size_t size; uint64_t first, second, third; };

static void options_of_any_size(void **state)
{
    (void)state;
    struct kn_err err = {0};
    struct kn_pair_opts o;
    struct newer n = {.size = sizeof o, .first = 1, .second = 2, .third = 3};
    const struct kn_pair_opts *as_ours = (const void *)&n;

    assert_int_equal(KNI_OPTS_READ(&o, as_ours, kn_pair_opts, &err), KN_OK); /* what lies behind is not looked at */
    assert_true(o.size == sizeof o && o.first == 1 && o.second == 2);
    n.size = offsetof(struct newer, second); /* older */
    assert_int_equal(KNI_OPTS_READ(&o, as_ours, kn_pair_opts, &err), KN_OK);
    assert_true(o.size == sizeof o && o.first == 1 && o.second == 0);
    n.size = sizeof n.size;
    assert_int_equal(KNI_OPTS_READ(&o, as_ours, kn_pair_opts, &err), KN_OK);
    assert_true(o.size == sizeof o && !o.first && !o.second);

    n.size = sizeof n; /* newer, with something that we do not know */
    assert_int_equal(KNI_OPTS_READ(&o, as_ours, kn_pair_opts, &err), KN_E_ARG);
    assert_non_null(strstr(err.text, "kn_pair_opts"));
    assert_non_null(strstr(err.text, "byte 24 of 32"));
    n.third = (uint64_t)1 << 63; /* its last byte */
    assert_int_equal(KNI_OPTS_READ(&o, as_ours, kn_pair_opts, &err), KN_E_ARG);
    assert_non_null(strstr(err.text, "byte 31 of 32"));
    assert_true(!o.size && !o.first && !o.second);
    n.third = 0; /* newer, without */
    assert_int_equal(KNI_OPTS_READ(&o, as_ours, kn_pair_opts, &err), KN_OK);
    assert_true(o.size == sizeof o && o.first == 1 && o.second == 2);
}

static void options_without_size(void **state)
{
    (void)state;
    static const size_t bad[] = {0, 1, sizeof(size_t) - 1, sizeof(struct kn_pair_opts) + KNI_OPTS_MAX_GROWTH + 1,
                                 SIZE_MAX};
    struct kn_pair_opts o, in = {.first = 1};
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        struct kn_err err = {0};
        in.size = bad[i];
        assert_int_equal(KNI_OPTS_READ(&o, &in, kn_pair_opts, &err), KN_E_ARG);
        assert_non_null(strstr(err.text, "size of struct kn_pair_opts"));
        assert_int_equal(KNI_OPTS_READ_OR_DEFAULT(&o, &in, kn_pair_opts, NULL), KN_E_ARG);
    }
    struct kn_err err = {0};
    assert_int_equal(KNI_OPTS_READ(&o, NULL, kn_pair_opts, &err), KN_E_ARG);
    assert_non_null(strstr(err.text, "kn_pair_opts"));
    assert_int_equal(KNI_OPTS_READ_OR_DEFAULT(&o, NULL, kn_pair_opts, NULL), KN_OK);
    assert_true(o.size == sizeof o && !o.first && !o.second);
}

static void statistics_of_any_size(void **state)
{
    (void)state;
    const struct kn_pair_opts now = {.size = 99, .first = 1, .second = 2};
    struct newer out = {.size = sizeof out, .third = 7};
    assert_int_equal(kni_stats_write(&out, &now, sizeof now), KN_OK); /* a newer caller's */
    assert_true(out.size == sizeof out && out.first == 1 && out.second == 2 && out.third == 7);
    out = (struct newer){.size = offsetof(struct newer, second), .second = 8}; /* an older one's,
        with something behind it */
    assert_int_equal(kni_stats_write(&out, &now, sizeof now), KN_OK);
    assert_true(out.size == offsetof(struct newer, second) && out.first == 1 && out.second == 8);
    for (size_t size = 0; size < sizeof size; size++) {
        out = (struct newer){.size = size, .first = 9};
        assert_int_equal(kni_stats_write(&out, &now, sizeof now), KN_E_ARG);
        assert_true(out.first == 9);
    }
    assert_int_equal(kni_stats_write(NULL, &now, sizeof now), KN_E_ARG);
}

int main(int n, char **args)
{
    (void)n, (void)args;
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(options_of_any_size),
        cmocka_unit_test(options_without_size),
        cmocka_unit_test(statistics_of_any_size),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
