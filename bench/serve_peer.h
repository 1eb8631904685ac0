/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Servers under test as child processes: ours (this program's "serve") and llama.cpp's llama-server, which tools/build-peers builds.
 *
 *     start: fork, exec with port 0 -> "listening on http://127.0.0.1:PORT" in what it prints -> GET /health until it says 200
 *     stop:  SIGTERM, some time to drain, SIGKILL
 *
 * A child gets SIGTERM when this program dies, so none is left behind. What it prints goes to a file of its own; its last lines are shown when it
 * ends early. Every failure has been said on stderr when a function here returns. One thread: the one that started a server must live as long.
 */
#ifndef KN_SERVE_PEER_H
#define KN_SERVE_PEER_H

#include <sys/types.h>

#include "bench.h"

enum { KN_SERVE_MAX_ARGS = 64 };

struct kn_serve_child {
    pid_t pid;          /* 0: not running */
    char url[64];       /* from what it printed */
    char log_path[256]; /* removed by stop */
};

struct kn_serve_child_opts {
    const char *program;     /* path */
    const char *const *args; /* all but the program's name, "--host" and "--port"; [n_args] */
    size_t n_args;
    uint32_t ready_ms;       /* how long it may take to open the model */
};

/* Where llama-server is: arg, or the cache folder's. false when it is not there. */
bool kn_serve_find_llama(const char *arg, char path[4096]);
/* This program. */
bool kn_serve_find_ours(char path[4096]);
/* Starts and waits until it serves. kn_serve_child_stop accepts the child whatever comes of it. */
bool kn_serve_child_start(struct kn_serve_child *child, const struct kn_serve_child_opts *opts);
/* Whether it still runs, after wait_ms for one that is about to end; if not, how it ended and its last words have been said. */
bool kn_serve_child_lives(struct kn_serve_child *child, const char *program, uint32_t wait_ms);
/* Ends it, and waits at most drain_ms before killing it. *status: as of waitpid, or NULL. Fine when it is not running. */
void kn_serve_child_stop(struct kn_serve_child *child, uint32_t drain_ms, int *status);
/* Peak resident bytes of it so far (VmHWM); 0: unknown. */
uint64_t kn_serve_child_peak(const struct kn_serve_child *child);
/* GET url + path: body, from malloc, NUL-terminated; NULL when the status is not 200 or nobody answers within timeout_ms. */
char *kn_serve_get(const char *url, const char *path, const char *api_key, uint32_t timeout_ms);

#endif
