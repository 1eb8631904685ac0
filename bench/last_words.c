/* SPDX-License-Identifier: Apache-2.0 */
/* See last_words.h. Names of signals are our own: what libc calls "Segmentation fault" everybody looks for as SIGSEGV. */
#include "last_words.h"

#include <signal.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

enum { TAIL_BYTES = 1500 };

static const char *signal_name(int number)
{
    static const struct { int number; const char *name; } names[] = {
        {SIGABRT, "SIGABRT"}, {SIGBUS, "SIGBUS"}, {SIGFPE, "SIGFPE"}, {SIGHUP, "SIGHUP"}, {SIGILL, "SIGILL"},   {SIGINT, "SIGINT"}, {SIGKILL, "SIGKILL"},
        {SIGPIPE, "SIGPIPE"}, {SIGQUIT, "SIGQUIT"}, {SIGSEGV, "SIGSEGV"}, {SIGSYS, "SIGSYS"}, {SIGTERM, "SIGTERM"}, {SIGTRAP, "SIGTRAP"},
    };
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        if (names[i].number == number)
            return names[i].name;
    return "a signal";
}

bool kn_show_tail(int fd)
{
    char text[TAIL_BYTES + 1];
    struct stat st;
    if (fd < 0 || fstat(fd, &st) || st.st_size <= 0)
        return false;
    off_t from = st.st_size > TAIL_BYTES ? st.st_size - TAIL_BYTES : 0;
    ssize_t n = pread(fd, text, TAIL_BYTES, from);
    size_t blanks = 0;
    while (n > 0 && blanks < (size_t)n && strchr(" \t\r\n", text[blanks]))
        blanks++;
    if (n <= 0 || blanks == (size_t)n)
        return false;
    fwrite(text, 1, (size_t)n, stderr);
    if (text[n - 1] != '\n')
        fputc('\n', stderr);
    return true;
}

void kn_how_ended(int status, char out[KN_HOW_ENDED_BYTES])
{
    if (WIFSIGNALED(status))
        snprintf(out, KN_HOW_ENDED_BYTES, "was ended by %s (%s)", signal_name(WTERMSIG(status)), strsignal(WTERMSIG(status)));
    else
        snprintf(out, KN_HOW_ENDED_BYTES, "ended with status %d", WEXITSTATUS(status));
}

int kn_say_end(const char *who, int status, const char *when, int fd)
{
    char how[KN_HOW_ENDED_BYTES];
    kn_how_ended(status, how);
    bool spoke = kn_show_tail(fd);
    return kn_app_fail("bench", "%s %s%s; %s", who, how, when, spoke ? "its last words are above" : "it said nothing");
}

json_t *kn_peer_build(const char *program)
{
    char path[4200];
    const char *slash = strrchr(program, '/');
    snprintf(path, sizeof path, "%.*s/../kinema-build.json", slash ? (int)(slash - program) : 1, slash ? program : ".");
    json_t *note = json_load_file(path, 0, NULL);
    if (json_is_object(note))
        return note;
    json_decref(note);
    return NULL;
}
