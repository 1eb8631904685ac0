/* SPDX-License-Identifier: Apache-2.0 */
/* The demo's document: where it is cut, and that a file of its name stays as it is when it cannot be made. */
#include "../../../app/demo_document.c" /* the program is no library */
#include "../../../app/app.c"
#include "../../../app/app_path.c"
#include "../../../app/output.c"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/resource.h>

#include <cmocka.h>

#include "support/engine_bed.h"
#include "support/open_tiny.h"

const char kn_app_commit[] = "test", kn_app_source_dir[] = "";

static struct kn_model *model;
static char in[256], out[256];

static int set_up(void **state)
{
    (void)state;
    kn_bed_path(in, "document-in.txt");
    kn_bed_path(out, "document-out.txt");
    model = kn_open_tiny(NULL);
    signal(SIGXFSZ, SIG_IGN); /* a write fails instead */
    return model ? 0 : -1;
}

static int tear_down(void **state)
{
    (void)state;
    kn_model_close(&model);
    unlink(in);
    unlink(out);
    return 0;
}

static void put(const char *path, const char *text, unsigned times)
{
    FILE *f = fopen(path, "w");
    assert_non_null(f);
    while (times--)
        fputs(text, f);
    assert_int_equal(fclose(f), 0);
}

static void assert_holds(const char *path, const char *text)
{
    char held[4096] = "";
    FILE *f = fopen(path, "r");
    assert_non_null(f);
    held[fread(held, 1, sizeof held - 1, f)] = '\0';
    fclose(f);
    assert_string_equal(held, text);
}

static bool write_document(size_t min_tokens, size_t max_tokens, const char *from, size_t *n)
{
    char source[256];
    return kn_demo_document_write(model, from, min_tokens, max_tokens, out, n, source, sizeof source);
}

/* A token a byte: the tiny model merges none of these. */
static void whole_lines_are_kept(void **state)
{
    (void)state;
    size_t n = 0;
    put(in, "12345\n", 10);
    put(out, "old", 1);
    assert_true(write_document(12, 20, in, &n));
    assert_int_equal(n, 18);
    assert_holds(out, "12345\n12345\n12345\n");
    assert_true(write_document(12, 100, in, &n));
    assert_int_equal(n, 60);
}

static void what_was_there_survives_a_failure(void **state)
{
    (void)state;
    size_t n = 0;
    struct rlimit was, small = {.rlim_cur = 4096, .rlim_max = RLIM_INFINITY};
    put(in, "12345\n", 2000);
    put(out, "old", 1);
    assert_false(write_document(20000, 30000, in, &n)); /* too short */
    assert_holds(out, "old");
    assert_false(write_document(12, 20, "/nonexistent/document", &n));
    assert_holds(out, "old");
    assert_int_equal(getrlimit(RLIMIT_FSIZE, &was), 0);
    small.rlim_max = was.rlim_max;
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &small), 0);
    bool written = write_document(12, 9000, in, &n); /* larger than a file may be */
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &was), 0);
    assert_false(written);
    assert_holds(out, "old");
    glob_t left = {0};
    assert_int_equal(glob(KN_BUILD_DIR "/.kinema-*.tmp", 0, NULL, &left), GLOB_NOMATCH);
    globfree(&left);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(whole_lines_are_kept), cmocka_unit_test(what_was_there_survives_a_failure)};
    return cmocka_run_group_tests(tests, set_up, tear_down);
}
