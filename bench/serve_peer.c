/* SPDX-License-Identifier: Apache-2.0 */
/* Children that listen; see serve_peer.h. The system picks their ports, and both kinds of server print the one they got in the same words. */
#include "serve_peer.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "curl_open.h"
#include "last_words.h"

enum { ASK_MS = 50, ASK_TIMEOUT_MS = 2000, MAX_GET_BYTES = 16 << 20, MAX_LOG_BYTES = 1 << 20 };

static const char listening[] = "listening on http://127.0.0.1:";

static void nap(uint32_t ms)
{
    struct timespec t = {.tv_sec = ms / 1000, .tv_nsec = (long)(ms % 1000) * 1000000};
    nanosleep(&t, NULL);
}

bool kn_serve_find_llama(const char *arg, char path[4096])
{
    if (arg)
        snprintf(path, 4096, "%s", arg);
    else if (!kn_app_cache_path("peers/bin/llama-server", path, 4096))
        path[0] = '\0';
    if (path[0] && !access(path, X_OK))
        return true;
    kn_app_fail("bench", "llama.cpp's server is not there (%s): `make bench-peers` builds it, --peer-server names another", path);
    return false;
}

bool kn_serve_find_ours(char path[4096])
{
    ssize_t n = readlink("/proc/self/exe", path, 4095);
    path[n > 0 ? n : 0] = '\0';
    if (n <= 0)
        kn_app_fail("bench", "cannot find this program: %s", strerror(errno));
    return n > 0;
}

/* ---- GET */

struct bytes { char *data; size_t n; };

static size_t keep(char *bytes, size_t size, size_t n, void *user)
{
    struct bytes *b = user;
    size_t more = size * n;
    char *grown = b->n + more < MAX_GET_BYTES ? realloc(b->data, b->n + more + 1) : NULL;
    if (!grown)
        return 0;
    memcpy(grown + b->n, bytes, more);
    b->data = grown;
    b->data[b->n += more] = '\0';
    return more;
}

char *kn_serve_get(const char *url, const char *path, const char *api_key, uint32_t timeout_ms)
{
    char whole[1200], authorization[1100];
    struct bytes body = {0};
    long status = 0;
    struct curl_slist *headers = NULL;
    const struct kn_curl *c = kn_curl_open(NULL);
    if (!c)
        return NULL;
    CURL *e = c->curl_easy_init();
    size_t n = strlen(url);
    while (n && url[n - 1] == '/')
        n--;
    n -= n >= 3 && !memcmp(url + n - 3, "/v1", 3) ? 3 : 0;
    snprintf(whole, sizeof whole, "%.*s%s", (int)n, url, path);
    snprintf(authorization, sizeof authorization, "Authorization: Bearer %s", api_key ? api_key : "");
    bool ok = e && (!api_key || (headers = c->curl_slist_append(NULL, authorization))) &&
              !c->curl_easy_setopt(e, CURLOPT_URL, whole) && !c->curl_easy_setopt(e, CURLOPT_HTTPHEADER, headers) &&
              !c->curl_easy_setopt(e, CURLOPT_WRITEFUNCTION, keep) &&
              !c->curl_easy_setopt(e, CURLOPT_WRITEDATA, &body) &&
              !c->curl_easy_setopt(e, CURLOPT_NOSIGNAL, 1L) &&
              !c->curl_easy_setopt(e, CURLOPT_NOPROXY, "127.0.0.1,localhost,::1") &&
              !c->curl_easy_setopt(e, CURLOPT_TIMEOUT_MS, (long)timeout_ms) &&
              !c->curl_easy_perform(e) && !c->curl_easy_getinfo(e, CURLINFO_RESPONSE_CODE, &status) && status == 200;
    c->curl_easy_cleanup(e);
    c->curl_slist_free_all(headers);
    if (!ok || !body.data) {
        free(body.data);
        return NULL;
    }
    return body.data;
}

/* ---- start */

/* The child's side: does not return. */
static void become(const struct kn_serve_child_opts *o, int log, pid_t parent)
{
    char name[4096];
    char *argv[KN_SERVE_MAX_ARGS + 8];
    size_t n = 0;
    snprintf(name, sizeof name, "%s", o->program);
    const char *where[] = {"--host", "127.0.0.1", "--port", "0"};
    argv[n++] = name;
    for (size_t i = 0; i < o->n_args && n < KN_SERVE_MAX_ARGS; i++)
        argv[n++] = (char *)(uintptr_t)o->args[i]; /* execv does not write to them */
    for (size_t i = 0; i < sizeof where / sizeof *where; i++)
        argv[n++] = (char *)(uintptr_t)where[i];
    argv[n] = NULL;
    prctl(PR_SET_PDEATHSIG, SIGTERM);
    if (getppid() != parent)
        _exit(127);
    signal(SIGPIPE, SIG_DFL);
    signal(SIGINT, SIG_IGN); /* the parent ends it, in order */
    int nothing = open("/dev/null", O_RDONLY);
    dup2(nothing, STDIN_FILENO);
    dup2(log, STDOUT_FILENO);
    dup2(log, STDERR_FILENO);
    execv(o->program, argv);
    dprintf(STDERR_FILENO, "cannot start %s: %s\n", o->program, strerror(errno));
    _exit(127);
}

static bool ended(struct kn_serve_child *child, int *status)
{
    if (waitpid(child->pid, status, WNOHANG) != child->pid)
        return false;
    child->pid = 0;
    return true;
}

/* Looks for the port in what the child has printed; false while it is not there. */
static bool find_url(struct kn_serve_child *child)
{
    char *text = malloc(MAX_LOG_BYTES + 1);
    FILE *f = text ? fopen(child->log_path, "re") : NULL;
    size_t n = f ? fread(text, 1, MAX_LOG_BYTES, f) : 0;
    if (f)
        fclose(f);
    if (text)
        text[n] = '\0';
    const char *at = n ? strstr(text, listening) : NULL;
    if (at) {
        at += sizeof listening - 1;
        size_t digits = strspn(at, "0123456789");
        if (digits && digits < 6 && at[digits]) /* all of them are there */
            snprintf(child->url, sizeof child->url, "http://127.0.0.1:%.*s", (int)digits, at);
    }
    free(text);
    return child->url[0] != '\0';
}

enum readiness { READY, ENDED, LATE, INTERRUPTED };

/* *status: of a child that has ended, as of waitpid. */
static enum readiness await(struct kn_serve_child *child, uint32_t ready_ms, int *status)
{
    uint64_t end = kn_app_now_ns() + ready_ms * 1000000ull;
    for (; kn_app_now_ns() < end; nap(ASK_MS)) {
        if (kn_app_interrupted())
            return INTERRUPTED;
        if (ended(child, status))
            return ENDED;
        if (!child->url[0] && !find_url(child))
            continue;
        char *body = kn_serve_get(child->url, "/health", NULL, ASK_TIMEOUT_MS);
        bool ready = body != NULL;
        free(body);
        if (ready)
            return READY;
    }
    return LATE;
}

bool kn_serve_child_start(struct kn_serve_child *child, const struct kn_serve_child_opts *opts)
{
    const char *folder = getenv("TMPDIR");
    *child = (struct kn_serve_child){0};
    snprintf(child->log_path, sizeof child->log_path, "%s/kinema-bench-server-XXXXXX", folder && *folder && strlen(folder) < 200 ? folder : "/tmp");
    int log = mkostemp(child->log_path, O_CLOEXEC | O_APPEND);
    if (log < 0) {
        kn_app_fail("bench", "cannot make a file for a server's output (%s): %s", child->log_path, strerror(errno));
        child->log_path[0] = '\0';
        return false;
    }
    fflush(NULL);
    pid_t parent = getpid(), pid = fork();
    if (pid == 0)
        become(opts, log, parent);
    close(log);
    if (pid < 0) {
        kn_app_fail("bench", "cannot start a process: %s", strerror(errno));
        return false;
    }
    child->pid = pid;
    int status = 0, words = -1;
    enum readiness how = await(child, opts->ready_ms, &status);
    if (how == ENDED || how == LATE)
        words = open(child->log_path, O_RDONLY | O_CLOEXEC);
    if (how == ENDED)
        kn_say_end(opts->program, status, " before it served", words);
    else if (how == LATE)
        kn_app_fail("bench", "%s does not serve after %u s; %s", opts->program, (unsigned)(opts->ready_ms / 1000),
                    kn_show_tail(words) ? "its last words are above" : "it said nothing");
    else if (how == INTERRUPTED)
        kn_app_fail("bench", "interrupted");
    if (words >= 0)
        close(words);
    return how == READY;
}

bool kn_serve_child_lives(struct kn_serve_child *child, const char *program, uint32_t wait_ms)
{
    int status;
    bool over = false;
    for (uint32_t ms = 0; child->pid > 0 && !(over = ended(child, &status)) && ms < wait_ms; ms += ASK_MS)
        nap(ASK_MS);
    if (!over)
        return child->pid > 0;
    int words = open(child->log_path, O_RDONLY | O_CLOEXEC);
    kn_say_end(program, status, " under the load", words);
    if (words >= 0)
        close(words);
    return false;
}

void kn_serve_child_stop(struct kn_serve_child *child, uint32_t drain_ms, int *status)
{
    int how = 0;
    uint64_t end = kn_app_now_ns() + drain_ms * 1000000ull;
    if (child->pid > 0)
        kill(child->pid, SIGTERM);
    while (child->pid > 0 && !ended(child, &how) && kn_app_now_ns() < end)
        nap(20);
    if (child->pid > 0) {
        kill(child->pid, SIGKILL);
        while (waitpid(child->pid, &how, 0) < 0 && errno == EINTR)
            ;
    }
    if (status)
        *status = how;
    if (child->log_path[0])
        unlink(child->log_path);
    *child = (struct kn_serve_child){0};
}

uint64_t kn_serve_child_peak(const struct kn_serve_child *child)
{
    char path[64], line[256];
    unsigned long long kib = 0;
    snprintf(path, sizeof path, "/proc/%ld/status", (long)child->pid);
    FILE *f = child->pid > 0 ? fopen(path, "re") : NULL;
    while (f && fgets(line, sizeof line, f))
        if (sscanf(line, "VmHWM: %llu", &kib) == 1)
            break;
    if (f)
        fclose(f);
    return kib * 1024;
}
