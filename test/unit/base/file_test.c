/* SPDX-License-Identifier: Apache-2.0 */
/* Mapped files: the bytes, and what cannot be mapped: missing, empty, a folder, a pipe that nobody writes to. Saved files: whole or not at all. */
#include <glob.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmocka.h>

#include "base/alloc.h"
#include "base/file.h"

static char path[64];

static int setup(void **state)
{
    (void)state;
    snprintf(path, sizeof path, "/tmp/kn_file_test_XXXXXX");
    int fd = mkstemp(path);
    return fd < 0 ? -1 : close(fd);
}

static int teardown(void **state)
{
    (void)state;
    return unlink(path);
}

static void write_bytes(const char *bytes, size_t n)
{
    FILE *f = fopen(path, "wb");
    assert_non_null(f);
    assert_int_equal(fwrite(bytes, 1, n, f), n);
    assert_int_equal(fclose(f), 0);
}

static void refused(const char *name, enum kn_status want, const char *word)
{
    struct kni_file_map map = {.data = "x", .n_bytes = 1};
    struct kn_err err = {0};
    assert_int_equal(kni_file_map_open(&map, name, &err), want);
    assert_true(map.data == NULL && map.n_bytes == 0);
    assert_int_equal(err.status, want);
    if (!strstr(err.text, name) || !strstr(err.text, word))
        fail_msg("\"%s\" does not name %s and \"%s\"", err.text, name, word);
    assert_int_equal(kni_file_map_open(&map, name, NULL), want);
    kni_file_map_close(&map);
}

static void bytes_are_there(void **state)
{
    (void)state;
    static const size_t sizes[] = {1, 4095, 4096, 4097, 100000};
    char bytes[100000];
    for (size_t i = 0; i < sizeof bytes; i++)
        bytes[i] = (char)(i * 7 + i / 251);
    for (unsigned i = 0; i < sizeof sizes / sizeof *sizes; i++) {
        struct kni_file_map map;
        write_bytes(bytes, sizes[i]);
        assert_int_equal(kni_file_map_open(&map, path, NULL), KN_OK);
        assert_int_equal(map.n_bytes, sizes[i]);
        assert_memory_equal(map.data, bytes, sizes[i]);
        kni_file_map_close(&map);
        assert_null(map.data);
        kni_file_map_close(&map);
    }
}

static void what_cannot_be_mapped(void **state)
{
    (void)state;
    refused("/nonexistent/file", KN_E_NOT_FOUND, "No such file");
    refused("/tmp", KN_E_FORMAT, "regular");
    write_bytes("", 0);
    refused(path, KN_E_FORMAT, "empty");
    assert_int_equal(unlink(path), 0);
    assert_int_equal(mkfifo(path, 0600), 0);
    alarm(20); /* a call that waits for a writer would wait for ever */
    refused(path, KN_E_FORMAT, "regular");
    alarm(0);
}

static size_t temporaries(void)
{
    char pattern[96];
    glob_t found = {0};
    snprintf(pattern, sizeof pattern, "%s.*", path);
    size_t n = glob(pattern, 0, NULL, &found) ? 0 : found.gl_pathc;
    globfree(&found);
    return n;
}

static bool holds(const char *bytes)
{
    struct kni_file_map map;
    if (kni_file_map_open(&map, path, NULL))
        return false;
    bool same = map.n_bytes == strlen(bytes) && !memcmp(map.data, bytes, map.n_bytes);
    kni_file_map_close(&map);
    return same;
}

static void a_save_is_whole_or_nothing(void **state)
{
    (void)state;
    struct kni_file_save s, t;
    struct kn_err err = {0};
    write_bytes("old", 3);
    assert_int_equal(kni_file_save_begin(&s, path, &err), KN_OK);
    assert_int_equal(kni_file_save_begin(&t, path, &err), KN_OK); /* two at once are two files */
    assert_int_equal(temporaries(), 0);
    assert_true(holds("old"));
    kni_file_save_end(&s);
    kni_file_save_end(&s);
    assert_true(holds("old"));
    assert_int_equal(kni_file_save_commit(&t, "the new one", 11, &err), KN_OK);
    assert_true(holds("the new one"));
    assert_int_equal(temporaries(), 0);
    struct stat st;
    mode_t mask = umask(0);
    umask(mask);
    assert_int_equal(stat(path, &st), 0);
    assert_int_equal(st.st_mode & 0777, 0600); /* that of the file before, which mkstemp made */
    assert_int_equal(unlink(path), 0);
    assert_int_equal(kni_file_save_begin(&s, path, &err), KN_OK);
    assert_int_equal(kni_file_save_commit(&s, "new", 3, &err), KN_OK);
    assert_int_equal(stat(path, &st), 0);
    assert_int_equal(st.st_mode & 0777, 0666 & ~mask);
    char link[96];
    snprintf(link, sizeof link, "%s.link", path);
    assert_int_equal(symlink(path, link), 0);
    assert_int_equal(kni_file_save_begin(&s, link, &err), KN_OK);
    assert_int_equal(kni_file_save_commit(&s, "by a link", 9, &err), KN_OK);
    assert_true(!lstat(link, &st) && S_ISLNK(st.st_mode));
    assert_true(holds("by a link"));
    assert_int_equal(unlink(link), 0);
    kni_file_save_end(&t);
    struct kni_file_save none = {0};
    kni_file_save_end(&none);
}

static void a_save_that_fails(void **state)
{
    (void)state;
    struct kni_file_save s;
    struct kn_err err = {0};
    assert_int_equal(kni_file_save_begin(&s, "/tmp", &err), KN_E_IO);
    assert_non_null(strstr(err.text, "/tmp"));
    assert_int_equal(kni_file_save_begin(&s, "/nowhere/at/all", &err), KN_E_IO);
    assert_true(strstr(err.text, "/nowhere/at/all") && strstr(err.text, "No such file"));
    write_bytes("old", 3);
    struct rlimit before, little = {0};
    assert_int_equal(getrlimit(RLIMIT_FSIZE, &before), 0);
    little = before;
    little.rlim_cur = 4096; /* stands for a full disk */
    signal(SIGXFSZ, SIG_IGN);
    char *much = calloc(1, 1 << 20);
    assert_non_null(much);
    assert_int_equal(kni_file_save_begin(&s, path, &err), KN_OK);
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &little), 0);
    assert_int_equal(kni_file_save_commit(&s, much, 1 << 20, &err), KN_E_IO);
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &before), 0);
    assert_true(strstr(err.text, path));
    assert_true(holds("old"));
    assert_int_equal(temporaries(), 0);
    for (uint64_t i = 1; i <= 2; i++) {
        kni_alloc_fault_arm(i, false);
        assert_int_equal(kni_file_save_begin(&s, path, &err), KN_E_NOMEM);
    }
    kni_alloc_fault_arm(0, false);
    assert_int_equal(temporaries(), 0);
    free(much);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test_setup_teardown(bytes_are_there, setup, teardown),
                                       cmocka_unit_test_setup_teardown(what_cannot_be_mapped, setup, teardown),
                                       cmocka_unit_test_setup_teardown(a_save_is_whole_or_nothing, setup, teardown),
                                       cmocka_unit_test_setup_teardown(a_save_that_fails, setup, teardown)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
