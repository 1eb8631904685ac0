/* SPDX-License-Identifier: Apache-2.0 */
/* Mapped files: the bytes, and what cannot be mapped: missing, empty, a folder, a pipe that nobody writes to. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmocka.h>

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

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test_setup_teardown(bytes_are_there, setup, teardown),
                                       cmocka_unit_test_setup_teardown(what_cannot_be_mapped, setup, teardown)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
