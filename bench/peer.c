/* SPDX-License-Identifier: Apache-2.0 */
/* A child with a pipe each way; see peer.h. */
#include "peer.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <signal.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "last_words.h"

#define END_MS 5000 /* from closed pipes to the end of the process */

static bool find_script(char script[4096])
{
    char exe[4000];
    ssize_t n = readlink("/proc/self/exe", exe, sizeof exe - 1);
    exe[n > 0 ? n : 0] = '\0';
    char *slash = strrchr(exe, '/');
    if (slash)
        *slash = '\0';
    static const char *const places[] = {"../tools", "../share/kinema"};
    for (size_t i = 0; i < 2; i++) {
        snprintf(script, 4096, "%s/%s/peer_llamacpp.py", exe, places[i]);
        if (!access(script, R_OK))
            return true;
    }
    snprintf(script, 4096, "%s/tools/peer_llamacpp.py", kn_app_source_dir);
    return !access(script, R_OK);
}

bool kn_peer_find(const char *python_arg, const char *script_arg, char python[4096], char script[4096])
{
    if (python_arg)
        snprintf(python, 4096, "%s", python_arg);
    else if (!kn_app_cache_path("peers/bin/python", python, 4096))
        python[0] = '\0';
    if (!python[0] || access(python, X_OK)) {
        kn_app_fail("bench", "llama.cpp is not there (%s): `make bench-peers` builds it, --peer-python names another", python);
        return false;
    }
    bool there = script_arg ? snprintf(script, 4096, "%s", script_arg) > 0 && !access(script, R_OK) : find_script(script);
    if (!there)
        kn_app_fail("bench", "peer_llamacpp.py is not there (%s); name it with --peer-script", script);
    return there;
}

/* The child's side: does not return. */
static void become(const struct kn_peer_opts *o, int orders, int answers, int words)
{
    char threads[16];
    snprintf(threads, sizeof threads, "%" PRIu32, o->n_threads);
    const char *args[] = {o->python, o->script, "--model", o->model, "--threads", threads, "--flash", o->flash ? "on" : "off", "--tokens", o->tokens, NULL};
    char *argv[sizeof args / sizeof *args];
    for (size_t i = 0; i < sizeof args / sizeof *args; i++)
        argv[i] = (char *)(uintptr_t)args[i]; /* execv does not write to them */
    dup2(orders, STDIN_FILENO);
    dup2(answers, STDOUT_FILENO);
    if (words >= 0)
        dup2(words, STDERR_FILENO);
    signal(SIGPIPE, SIG_DFL);
    execv(o->python, argv);
    dprintf(STDERR_FILENO, "cannot start %s: %s\n", o->python, strerror(errno));
    _exit(127);
}

/* A pipe has ended, and so has the process, or will: how? One that goes on is killed. */
static int await_end(struct kn_peer *peer)
{
    int status = 0;
    for (int ms = 0; peer->pid > 0; ms += 20) {
        pid_t pid = waitpid(peer->pid, &status, WNOHANG);
        if (pid == peer->pid || (pid < 0 && errno != EINTR))
            peer->pid = 0;
        else if (ms >= END_MS)
            kill(peer->pid, SIGKILL);
        nanosleep(&(struct timespec){.tv_nsec = 20000000}, NULL);
    }
    return status;
}

/* Reads one answer. */
static json_t *read_answer(struct kn_peer *peer)
{
    char line[4096];
    if (!fgets(line, sizeof line, peer->answers)) {
        if (kn_app_interrupted())
            kn_app_fail("bench", "interrupted");
        else
            kn_say_end("llama.cpp's process", await_end(peer), peer->hello ? " in the middle of the measurement" : " before it could measure anything", peer->words);
        return NULL;
    }
    json_t *answer = json_loads(line, 0, NULL);
    if (!answer) {
        kn_show_tail(peer->words);
        kn_app_fail("bench", "llama.cpp's process answered with something else than JSON: %.200s", line);
    }
    return answer;
}

bool kn_peer_open(struct kn_peer *peer, const struct kn_peer_opts *opts)
{
    int down[2], up[2];
    *peer = (struct kn_peer){.words = memfd_create("kinema-peer-words", MFD_CLOEXEC)}; /* -1: its words go where ours go */
    if (pipe2(down, O_CLOEXEC)) {
        kn_app_fail("bench", "cannot make a pipe: %s", strerror(errno));
        return false;
    }
    if (pipe2(up, O_CLOEXEC)) {
        kn_app_fail("bench", "cannot make a pipe: %s", strerror(errno));
        close(down[0]);
        close(down[1]);
        return false;
    }
    signal(SIGPIPE, SIG_IGN); /* a dead child is an error that we report */
    fflush(NULL);
    pid_t pid = fork();
    if (pid == 0)
        become(opts, down[0], up[1], peer->words);
    close(down[0]);
    close(up[1]);
    peer->orders = fdopen(down[1], "w");
    peer->answers = fdopen(up[0], "r");
    if (pid < 0 || !peer->orders || !peer->answers) {
        kn_app_fail("bench", "cannot start llama.cpp's process: %s", strerror(errno));
        if (!peer->orders)
            close(down[1]);
        if (!peer->answers)
            close(up[0]);
        peer->pid = pid > 0 ? pid : 0;
        return false;
    }
    peer->pid = pid;
    peer->hello = read_answer(peer);
    return peer->hello != NULL;
}

void kn_peer_close(struct kn_peer *peer)
{
    if (peer->orders)
        fclose(peer->orders); /* it ends with its standard input */
    if (peer->answers)
        fclose(peer->answers);
    if (peer->pid > 0) {
        if (kn_app_interrupted())
            kill(peer->pid, SIGTERM);
        await_end(peer);
    }
    if (peer->words > 0)
        close(peer->words);
    json_decref(peer->hello);
    *peer = (struct kn_peer){0};
}

json_t *kn_peer_order(struct kn_peer *peer, const char *format, ...)
{
    va_list args;
    va_start(args, format);
    vfprintf(peer->orders, format, args);
    va_end(args);
    fputc('\n', peer->orders);
    fflush(peer->orders);
    return read_answer(peer);
}

double kn_peer_seconds(struct kn_peer *peer, const char *order, uint32_t a, uint32_t b)
{
    json_t *answer = b ? kn_peer_order(peer, "%s %" PRIu32 " %" PRIu32, order, a, b) : kn_peer_order(peer, "%s %" PRIu32, order, a);
    double seconds = json_number_value(json_object_get(answer, "seconds"));
    json_decref(answer);
    return seconds > 0 ? seconds : 0;
}
