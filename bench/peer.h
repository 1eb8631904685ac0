/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The rival: tools/peer_llamacpp.py in a process of its own for each attention mode, which takes orders as lines and answers
 * each with one JSON object. It waits between orders, so that ours and its measurements can take turns.
 *
 * Every failure has been said on stderr when a function here returns. One thread.
 */
#ifndef KN_BENCH_PEER_H
#define KN_BENCH_PEER_H

#include <sys/types.h>

#include "bench.h"

struct kn_peer {
    pid_t pid; /* 0: not running */
    FILE *orders, *answers;
    int words; /* a file that takes what it says on stderr, shown when it dies; 0 or less: none */
    json_t *hello; /* {"version", "system"} */
};

struct kn_peer_opts {
    const char *python, *script;
    const char *model, *tokens; /* paths; tokens: ids as text */
    uint32_t n_threads;
    bool flash;
};

/* Finds python (NULL: of `make bench-peers`) and the script (NULL: beside the program, installed, or in the sources). */
bool kn_peer_find(const char *python_arg, const char *script_arg, char python[4096], char script[4096]);
/* Starts it and waits until it has the model. kn_peer_close accepts it whatever comes of it. */
bool kn_peer_open(struct kn_peer *peer, const struct kn_peer_opts *opts);
void kn_peer_close(struct kn_peer *peer);
/* One order. NULL: it failed. Release the answer with json_decref(). */
json_t *kn_peer_order(struct kn_peer *peer, const char *format, ...) __attribute__((format(printf, 2, 3)));
/* An order that is answered by {"seconds": s}; 0: it failed. */
double kn_peer_seconds(struct kn_peer *peer, const char *order, uint32_t a, uint32_t b);

#endif
