/* SPDX-License-Identifier: Apache-2.0 */
/*
 * See output.h. A signal that would end the program ends it as before, after the temporary file is gone: handlers take the place of the default ones
 * only, so that commands with handlers of their own leave by kn_app_output_close. At most one file is open at a time.
 */
#include "output.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define MAX_LINKS 40

static const int ending[] = {SIGHUP, SIGINT, SIGTERM, SIGXCPU, SIGXFSZ};
#define N_ENDING (sizeof ending / sizeof *ending)

static char pending[PATH_MAX]; /* the temporary file; handlers read it only while they are set, and it changes only while they are not */

static void on_end(int number)
{
    unlink(pending);
    signal(number, SIG_DFL);
    raise(number);
}

static void guard(const char *temp)
{
    if (strlen(temp) >= sizeof pending)
        return;
    memcpy(pending, temp, strlen(temp) + 1);
    for (size_t i = 0; i < N_ENDING; i++) {
        struct sigaction now, ours = {.sa_handler = on_end};
        sigemptyset(&ours.sa_mask);
        if (!sigaction(ending[i], NULL, &now) && now.sa_handler == SIG_DFL)
            sigaction(ending[i], &ours, NULL);
    }
}

static void unguard(void)
{
    for (size_t i = 0; i < N_ENDING; i++) {
        struct sigaction now;
        if (!sigaction(ending[i], NULL, &now) && now.sa_handler == on_end)
            signal(ending[i], SIG_DFL);
    }
}

/* Where the links at path end, as text; release with free(). What it names need not exist. NULL: errno. */
static char *follow(const char *path)
{
    char *at = strdup(path), to[PATH_MAX];
    for (int i = 0; at; i++) {
        ssize_t n = readlink(at, to, sizeof to - 1);
        if (n < 0)
            return at;
        if (i == MAX_LINKS) {
            free(at);
            errno = ELOOP;
            return NULL;
        }
        to[n] = '\0';
        const char *slash = strrchr(at, '/');
        size_t folder = *to != '/' && slash ? (size_t)(slash - at) + 1 : 0, room = folder + (size_t)n + 1;
        char *next = malloc(room);
        if (next)
            snprintf(next, room, "%.*s%s", (int)folder, at, to);
        free(at);
        at = next;
    }
    return NULL;
}

static int open_temp(struct kn_app_output *o)
{
    static unsigned count;
    const char *slash = strrchr(o->path, '/');
    size_t folder = slash ? (size_t)(slash - o->path) + 1 : 0, room = folder + 64;
    int fd;
    o->temp = malloc(room);
    if (!o->temp)
        return -1;
    do
        snprintf(o->temp, room, "%.*s.kinema-%ld-%u.tmp", (int)folder, o->path, (long)getpid(), count++);
    while ((fd = open(o->temp, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666)) < 0 && errno == EEXIST);
    if (fd < 0) { /* there is nothing to remove */
        int why = errno;
        free(o->temp);
        o->temp = NULL;
        errno = why;
    }
    return fd;
}

static bool same_file(const struct stat *a, const struct stat *b)
{
    return a->st_dev == b->st_dev && a->st_ino == b->st_ino;
}

static void drop(struct kn_app_output *o)
{
    free(o->path);
    free(o->temp);
    *o = (struct kn_app_output){0};
}

/* What is to be written where path leads: a descriptor, or -1 and errno. */
static int open_target(struct kn_app_output *o, const char *path)
{
    struct stat st, out;
    bool there = !stat(path, &st);
    if (there && !fstat(STDOUT_FILENO, &out) && same_file(&st, &out))
        return fcntl(STDOUT_FILENO, F_DUPFD_CLOEXEC, 3);
    if (there && !S_ISREG(st.st_mode))
        return open(path, O_WRONLY | O_CLOEXEC); /* a folder: EISDIR */
    if (there && access(path, W_OK))
        return -1;
    o->path = follow(path);
    int fd = o->path ? open_temp(o) : -1;
    if (fd >= 0 && there)
        fchmod(fd, st.st_mode & 07777); /* where that fails the file has the mode of a new one */
    return fd;
}

int kn_app_output_open(struct kn_app_output *o, const char *command, const char *path)
{
    *o = (struct kn_app_output){.name = path};
    if (!path || !strcmp(path, "-")) {
        o->name = "the standard output";
        o->file = stdout;
        return KN_APP_EXIT_OK;
    }
    int fd = open_target(o, path);
    if (fd >= 0)
        o->file = fdopen(fd, "wb");
    if (o->file) {
        if (o->temp)
            guard(o->temp);
        return KN_APP_EXIT_OK;
    }
    int why = errno;
    if (fd >= 0)
        close(fd);
    if (o->temp)
        unlink(o->temp);
    bool folder = o->path && (why == EACCES || why == EROFS || why == EPERM);
    drop(o);
    return kn_app_fail(command, "cannot write %s: %s%s", path, strerror(why),
                       folder ? "; a file is written beside its name first, so its folder must be writable, too" : "");
}

void kn_app_output_write(struct kn_app_output *o, const void *bytes, size_t n_bytes)
{
    if (fwrite(bytes, 1, n_bytes, o->file) != n_bytes && !o->why)
        o->why = errno;
}

int kn_app_output_close(struct kn_app_output *o, const char *command, int exit_status)
{
    if (!o->file)
        return exit_status;
    bool ok = !ferror(o->file);
    errno = 0;
    ok = !fflush(o->file) && ok;
    if (ok && o->temp && exit_status == KN_APP_EXIT_OK)
        ok = !fsync(fileno(o->file));
    int why = o->why ? o->why : errno ? errno : EIO;
    if (o->file != stdout && fclose(o->file) && ok) {
        ok = false;
        why = errno;
    }
    if (ok && o->temp && exit_status == KN_APP_EXIT_OK && rename(o->temp, o->path)) {
        ok = false;
        why = errno;
    }
    if (o->temp && (!ok || exit_status != KN_APP_EXIT_OK))
        unlink(o->temp);
    if (o->temp)
        unguard();
    if (!ok && exit_status == KN_APP_EXIT_OK && o->file == stdout && why == EPIPE)
        exit_status = KN_APP_EXIT_FAILED; /* main says what that means */
    else if (!ok && exit_status == KN_APP_EXIT_OK)
        exit_status = kn_app_fail(command, "cannot write %s: %s", o->name, strerror(why));
    drop(o);
    return exit_status;
}
