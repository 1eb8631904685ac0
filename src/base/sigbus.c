/* SPDX-License-Identifier: Apache-2.0 */
/*
 * SIGBUS says that a page of a mapped file is not there: the file was cut while it was in use, or its disk does not give it. The
 * handler finds the file's name in /proc/self/maps, so that it needs no list of maps, and knows those of libraries, too:
 *
 *     7f2c8e000000-7f2c93dce000 r--p 00000000 fd:01 1835020       /models/SmolLM2.gguf
 *     from         to           mode offset   device inode         path, to the line's end
 *
 * Everything here is async-signal-safe: open, read, write, no allocation, no stdio. Any thread may fault, and several may at once:
 * the first one speaks, the others wait for the end that it brings. That end is the signal itself, with its default action, so that
 * whoever started the program sees what it would have seen without the handler.
 */
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <string.h>
#include <unistd.h>

#include "base/status.h"
#include "kinema/model.h"

#define NAME_BYTES 1024u

static _Atomic int report_fd = -1;
static _Atomic bool spoken;

struct reader {
    int fd;
    size_t n, at;
    char buf[1024];
};

/* The next byte, -1 at the end. */
static int next(struct reader *r)
{
    if (r->at == r->n) {
        ssize_t n;
        do
            n = read(r->fd, r->buf, sizeof r->buf);
        while (n < 0 && errno == EINTR);
        if (n <= 0)
            return -1;
        r->n = (size_t)n;
        r->at = 0;
    }
    return (unsigned char)r->buf[r->at++];
}

static size_t number(struct reader *r, int end)
{
    size_t value = 0;
    for (int c; (c = next(r)) != end && c >= 0;)
        value = value << 4 | (size_t)(c <= '9' ? c - '0' : c - 'a' + 10);
    return value;
}

/* The file that is mapped at address; "" when that is not to be found out. */
static void find_file(size_t address, char name[NAME_BYTES])
{
    struct reader r = {.fd = open("/proc/self/maps", O_RDONLY | O_CLOEXEC)};
    name[0] = '\0';
    if (r.fd < 0)
        return;
    for (bool found = false; !found;) {
        size_t from = number(&r, '-'), to = number(&r, ' '), n = 0;
        int c = next(&r);
        if (c < 0)
            break;
        found = address >= from && address < to;
        while (c != '/' && c != '\n' && c >= 0)
            c = next(&r);
        for (; c != '\n' && c >= 0; c = next(&r))
            if (found && n + 1 < NAME_BYTES)
                name[n++] = (char)c;
        name[n] = '\0';
    }
    close(r.fd);
}

static void say(int fd, const char *file)
{
    static const char before[] = "kinema: a page of ", nameless[] = "a mapped file", after[] =
        " is not there any more: the file was cut while it was in use, or its disk fails; restart when it is whole\n";
    char line[sizeof before + NAME_BYTES + sizeof after];
    size_t n = 0;
    const char *const pieces[] = {before, *file ? file : nameless, after};
    for (unsigned i = 0; i < 3; i++)
        for (const char *p = pieces[i]; *p; p++)
            line[n++] = *p;
    ssize_t written = write(fd, line, n); /* at once, so that no other line comes in between */
    (void)written;
}

static void on_sigbus(int signal_number, siginfo_t *info, void *context)
{
    (void)context;
    if (atomic_exchange_explicit(&spoken, true, memory_order_relaxed)) /* a flag alone */
        for (;;)
            pause();
    if (info->si_code > 0) { /* from the kernel, not sent by a process */
        char name[NAME_BYTES];
        find_file((size_t)info->si_addr, name);
        say(atomic_load_explicit(&report_fd, memory_order_relaxed), name);
    }
    struct sigaction plain = {.sa_handler = SIG_DFL};
    sigaction(signal_number, &plain, NULL);
    raise(signal_number); /* comes when this returns */
}

enum kn_status kn_sigbus_report(int fd)
{
    struct sigaction action = {.sa_sigaction = on_sigbus, .sa_flags = SA_SIGINFO};
    sigemptyset(&action.sa_mask);
    atomic_store_explicit(&report_fd, fd, memory_order_relaxed); /* before the handler can run: sigaction is a system call */
    return sigaction(SIGBUS, &action, NULL) ? KN_E_IO : KN_OK;
}
