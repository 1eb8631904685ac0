/* SPDX-License-Identifier: Apache-2.0 */
/* The tagged allocator: alignment, counters, overflow, faults on demand, and the hook that aborts inside a step. */
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

#include "base/alloc.h"

static uint64_t current(enum kni_alloc_tag tag)
{
    return kni_alloc_get_stats(tag).current_bytes;
}

static void memory_is_aligned_and_usable(void **state)
{
    (void)state;
    for (size_t align = 0; align <= 4096; align = align ? align * 2 : 1)
        for (size_t bytes = 0; bytes < 200; bytes += 13) {
            uint8_t *p = kni_alloc(KNI_ALLOC_TAG_MISC, bytes, align);
            assert_non_null(p);
            assert_int_equal((uintptr_t)p % (align < 16 ? 16 : align), 0);
            memset(p, 0xee, bytes);
            kni_free(p);
            p = kni_calloc(KNI_ALLOC_TAG_MISC, bytes, align);
            for (size_t i = 0; i < bytes; i++)
                assert_int_equal(p[i], 0);
            kni_free(p);
        }
    kni_free(NULL);
}

static void counters_follow(void **state)
{
    (void)state;
    uint64_t pool = current(KNI_ALLOC_TAG_POOL), all = current(KNI_ALLOC_TAG_COUNT), n = kni_alloc_get_stats(KNI_ALLOC_TAG_POOL).n_allocs;
    void *a = kni_alloc(KNI_ALLOC_TAG_POOL, 1000, 0), *b = kni_alloc(KNI_ALLOC_TAG_CODEC, 70, 64);
    assert_int_equal(current(KNI_ALLOC_TAG_POOL), pool + 1000);
    assert_int_equal(current(KNI_ALLOC_TAG_COUNT), all + 1070);
    assert_int_equal(kni_alloc_get_stats(KNI_ALLOC_TAG_POOL).n_allocs, n + 1);
    assert_true(kni_alloc_get_stats(KNI_ALLOC_TAG_POOL).peak_bytes >= pool + 1000);
    kni_free(a);
    uint64_t peak = kni_alloc_get_stats(KNI_ALLOC_TAG_POOL).peak_bytes;
    assert_int_equal(current(KNI_ALLOC_TAG_POOL), pool);
    kni_free(b);
    assert_int_equal(current(KNI_ALLOC_TAG_COUNT), all);
    assert_int_equal(kni_alloc_get_stats(KNI_ALLOC_TAG_POOL).peak_bytes, peak); /* a peak stays */
}

static void realloc_keeps_the_content(void **state)
{
    (void)state;
    uint64_t all = current(KNI_ALLOC_TAG_COUNT);
    char *p = kni_realloc(KNI_ALLOC_TAG_REQUEST, NULL, 5);
    memcpy(p, "abcd", 5);
    p = kni_realloc(KNI_ALLOC_TAG_REQUEST, p, 5000);
    assert_string_equal(p, "abcd");
    p = kni_realloc(KNI_ALLOC_TAG_REQUEST, p, 3);
    assert_memory_equal(p, "abc", 3);
    kni_alloc_fault_arm(1, false);
    assert_null(kni_realloc(KNI_ALLOC_TAG_REQUEST, p, 100000));
    assert_memory_equal(p, "abc", 3); /* untouched on failure */
    kni_free(p);
    char *copy = kni_strdup(KNI_ALLOC_TAG_REQUEST, "kinema");
    assert_string_equal(copy, "kinema");
    kni_free(copy);
    assert_int_equal(current(KNI_ALLOC_TAG_COUNT), all);
}

static void products_are_checked(void **state)
{
    (void)state;
    size_t out = 7;
    assert_true(kni_mul_size(3, 5, &out) && out == 15);
    assert_true(kni_mul_size(SIZE_MAX, 1, &out) && out == SIZE_MAX);
    assert_true(kni_mul_size(SIZE_MAX, 0, &out) && out == 0);
    assert_false(kni_mul_size(SIZE_MAX / 2 + 1, 2, &out));
    assert_false(kni_mul_size((size_t)1 << 33, (size_t)1 << 31, &out));
    assert_true(kni_add_size(SIZE_MAX - 1, 1, &out) && out == SIZE_MAX);
    assert_false(kni_add_size(SIZE_MAX, 1, &out));
    assert_null(kni_alloc(KNI_ALLOC_TAG_MISC, SIZE_MAX, 0));
    assert_null(kni_alloc(KNI_ALLOC_TAG_MISC, SIZE_MAX - 40, 64));
}

static void the_nth_allocation_fails(void **state)
{
    (void)state;
    void *p[4];
    kni_alloc_fault_arm(3, false);
    for (int i = 0; i < 4; i++) {
        p[i] = kni_alloc(KNI_ALLOC_TAG_MISC, 8, 0);
        assert_int_equal(kni_alloc_fault_hit(), i >= 2);
    }
    assert_true(p[0] && p[1] && !p[2] && p[3]);
    for (int i = 0; i < 4; i++)
        kni_free(p[i]);
    kni_alloc_fault_arm(2, true);
    for (int i = 0; i < 4; i++)
        p[i] = kni_alloc(KNI_ALLOC_TAG_MISC, 8, 0);
    assert_true(p[0] && !p[1] && !p[2] && !p[3] && kni_alloc_fault_hit());
    kni_free(p[0]);
    kni_alloc_fault_arm(0, false);
    assert_false(kni_alloc_fault_hit());
    p[0] = kni_alloc(KNI_ALLOC_TAG_MISC, 8, 0);
    assert_non_null(p[0]);
    kni_free(p[0]);
}

/* Exit status of a child that allocates at a depth of forbid; SIGABRT is the hook. */
static int child_status(int depth, int lift)
{
    pid_t pid = fork();
    assert_true(pid >= 0);
    if (!pid) {
        struct rlimit none = {0, 0};
        setrlimit(RLIMIT_CORE, &none);
        signal(SIGABRT, SIG_DFL); /* cmocka's handler would report a failure */
        if (!freopen("/dev/null", "w", stderr))
            _exit(9);
        for (int i = 0; i < depth; i++)
            kni_alloc_forbid_begin();
        for (int i = 0; i < lift; i++)
            kni_alloc_forbid_end();
        void *p = kni_alloc(KNI_ALLOC_TAG_MISC, 8, 0);
        _exit(p ? 0 : 1);
    }
    int status;
    assert_int_equal(waitpid(pid, &status, 0), pid);
    return WIFSIGNALED(status) ? -WTERMSIG(status) : WEXITSTATUS(status);
}

static void forbidden_allocations_abort(void **state)
{
    (void)state;
    assert_int_equal(child_status(0, 0), 0);
    assert_int_equal(child_status(1, 0), -SIGABRT);
    assert_int_equal(child_status(2, 1), -SIGABRT); /* nests */
    assert_int_equal(child_status(2, 2), 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(memory_is_aligned_and_usable), cmocka_unit_test(counters_follow), cmocka_unit_test(realloc_keeps_the_content),
        cmocka_unit_test(products_are_checked), cmocka_unit_test(the_nth_allocation_fails), cmocka_unit_test(forbidden_allocations_abort),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
