/* SPDX-License-Identifier: Apache-2.0 */
/* fork, exec, read to the end, wait; see child.h. The child's own message about a failure is already on stderr. */
#include "child.h"

#include <assert.h>
#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

void kn_child_add(struct kn_child *child, const char *arg)
{
    assert(child->n_args < KN_CHILD_ARGS_MAX);
    child->args[child->n_args++] = arg;
    child->args[child->n_args] = NULL;
}

static char *read_all(int fd, size_t *n_bytes)
{
    size_t n = 0, room = 1 << 16;
    char *data = malloc(room);
    while (data) {
        if (n == room) {
            char *grown = realloc(data, room *= 2);
            if (!grown) {
                free(data);
                return NULL;
            }
            data = grown;
        }
        ssize_t got = read(fd, data + n, room - n);
        if (got < 0 && errno == EINTR)
            continue;
        if (got <= 0)
            break;
        n += (size_t)got;
    }
    *n_bytes = n;
    return data;
}

json_t *kn_child_json(const char *command, const char *program, const struct kn_child *child)
{
    int ends[2];
    if (pipe(ends)) {
        kn_app_fail(command, "cannot make a pipe: %s", strerror(errno));
        return NULL;
    }
    pid_t pid = fork();
    if (pid < 0) {
        kn_app_fail(command, "cannot start a process: %s", strerror(errno));
        close(ends[0]);
        close(ends[1]);
        return NULL;
    }
    if (pid == 0) {
        char *argv[KN_CHILD_ARGS_MAX + 2];
        char name[4096];
        snprintf(name, sizeof name, "%s", program);
        argv[0] = name;
        for (size_t i = 0; i <= child->n_args; i++)
            argv[i + 1] = (char *)(uintptr_t)child->args[i]; /* execv does not write to them */
        dup2(ends[1], STDOUT_FILENO);
        close(ends[0]);
        close(ends[1]);
        signal(SIGPIPE, SIG_DFL);
        execv(program, argv);
        _exit(127);
    }
    close(ends[1]);
    size_t n;
    char *text = read_all(ends[0], &n);
    close(ends[0]);
    int status;
    while (waitpid(pid, &status, 0) < 0 && errno == EINTR)
        ;
    json_t *result = NULL;
    if (kn_app_interrupted())
        kn_app_fail(command, "interrupted");
    else if (!text)
        kn_app_fail(command, "out of memory");
    else if (WIFSIGNALED(status))
        kn_app_fail(command, "%s %s ended by signal %d", program, child->args[0], WTERMSIG(status));
    else if (WEXITSTATUS(status))
        kn_app_fail(command, "%s %s failed with status %d", program, child->args[0], WEXITSTATUS(status));
    else if (!(result = json_loadb(text, n, 0, NULL)))
        kn_app_fail(command, "%s %s printed no JSON object", program, child->args[0]);
    free(text);
    return result;
}
