/* SPDX-License-Identifier: Apache-2.0 */
/* A mapped file is cut: one line that names it, whichever of many threads meets the hole, and the end by SIGBUS as without the handler. */
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

#include "base/file.h"
#include "kinema/model.h"

#define N_THREADS 6
#define BYTES 65536

static pthread_barrier_t barrier;
static struct kni_file_map map;

static void *touch(void *arg)
{
    pthread_barrier_wait(&barrier);
    volatile const uint8_t *p = map.data;
    return (void *)(uintptr_t)(p[BYTES - 1 - 4096 * (uintptr_t)arg] == 1);
}

/* A child's life: ends by SIGBUS, or with a status that says what went wrong. */
static void child(const char *path, int fd, int is_sent)
{
    pthread_t threads[N_THREADS];
    if (kn_sigbus_report(fd) || kni_file_map_open(&map, path, NULL))
        _exit(2);
    if (is_sent) {
        raise(SIGBUS);
        _exit(3);
    }
    pthread_barrier_init(&barrier, NULL, N_THREADS);
    if (truncate(path, 4096))
        _exit(4);
    for (uintptr_t i = 0; i < N_THREADS; i++)
        pthread_create(&threads[i], NULL, touch, (void *)i);
    for (int i = 0; i < N_THREADS; i++)
        pthread_join(threads[i], NULL);
    _exit(5);
}

static void names_the_file(void **state)
{
    (void)state;
    for (int is_sent = 0; is_sent < 2; is_sent++) {
        char path[] = "/tmp/kn sigbus_XXXXXX", text[4096]; /* with a blank */
        uint8_t *bytes = calloc(1, BYTES);
        int fd = mkstemp(path), ends[2], status;
        assert_true(fd >= 0 && write(fd, bytes, BYTES) == BYTES && !close(fd) && !pipe(ends));
        free(bytes);
        pid_t pid = fork();
        assert_true(pid >= 0);
        if (!pid) {
            prctl(PR_SET_DUMPABLE, 0); /* no core file */
            close(ends[0]);
            child(path, ends[1], is_sent);
        }
        close(ends[1]);
        size_t n = 0;
        for (ssize_t k; (k = read(ends[0], text + n, sizeof text - 1 - n)) > 0;)
            n += (size_t)k;
        text[n] = '\0';
        close(ends[0]);
        assert_int_equal(waitpid(pid, &status, 0), pid);
        unlink(path);
        assert_true(WIFSIGNALED(status));
        assert_int_equal(WTERMSIG(status), SIGBUS);
        if (is_sent) { /* by a process: there is no file to name */
            assert_int_equal(n, 0);
            continue;
        }
        assert_non_null(strstr(text, path));
        assert_ptr_equal(strchr(text, '\n'), text + n - 1); /* one line */
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(names_the_file)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
