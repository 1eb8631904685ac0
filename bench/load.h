/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The load generator: sends streaming chat completions to a server with OpenAI's interface and notes when each token arrives.
 *
 *     plan: requests, each with its arrival  --thread with a libcurl multi handle-->  results, one a request
 *
 *     open loop    a request is sent at its arrival, whatever has become of those before it. Every latency counts from that arrival, not from
 *                  when the generator got round to it, so that a server that stalls is charged for all who would have come meanwhile
 *                  (no coordinated omission).
 *     closed loop  n_clients: each sends its next request when its last one has ended. Latencies count from the sending. A stall then
 *                  holds back the load itself: good for throughput only, and labelled so.
 *
 * A request may be followed by another of the same conversation (next), which is sent when it has ended and whose body may quote its answer.
 *
 * Threads: kn_load_run makes one thread, which alone touches the transfers and the results, and waits for it; the caller's thread calls tick
 * meanwhile. body is called by the thread.
 */
#ifndef KN_LOAD_H
#define KN_LOAD_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define KN_LOAD_NONE UINT32_MAX

struct kn_load_request {
    double at_s;      /* arrival, seconds from the beginning, ascending among the heads; open loop only */
    uint32_t next;    /* the request that follows when this one has ended well, a greater index; KN_LOAD_NONE */
    bool follows;     /* is another one's next: has no arrival of its own */
    uint32_t group;   /* the caller's: results are told apart by it */
};

enum kn_load_outcome {
    KN_LOAD_OUTCOME_UNSENT = 0, /* stopped before, or the one before it in its conversation failed */
    KN_LOAD_OUTCOME_COMPLETED = 1,
    KN_LOAD_OUTCOME_FAILED = 2
};

/* Times in seconds from the beginning. */
struct kn_load_result {
    enum kn_load_outcome outcome;
    double due_s;   /* what latencies count from: arrival; sending in a closed loop or of a follower */
    double sent_s;  /* handed to libcurl; sent - due is the generator's own lateness */
    double first_s, last_s; /* first and last token with text */
    double end_s;   /* end of the answer */
    uint32_t n_tokens;       /* generated; from usage, else pieces with text */
    uint32_t n_prompt, n_cached; /* from usage; 0 where the server does not say */
    bool has_usage;
    long http_status;
    char error[160];         /* of FAILED */
};

struct kn_load_plan {
    const char *url;      /* "http://127.0.0.1:8080", with or without "/v1" */
    const char *api_key;  /* or NULL */
    const struct kn_load_request *requests;
    uint32_t n_requests;
    uint32_t n_clients;   /* 0: open loop */
    uint32_t timeout_ms;  /* of one request; 0: 10 minutes */
    /* Body of request index, from malloc; answer: the one before it in its conversation, or NULL. NULL: out of memory, the request fails. */
    char *(*body)(void *user, uint32_t index, const char *answer);
    /* About five times a second; false stops: what is under way fails. NULL: none. */
    bool (*tick)(void *user, uint32_t n_ended, uint32_t n_under_way);
    void *user;
};

/* results[n_requests], zeroed by the caller. seconds: from the beginning to the last end. false: nothing could be sent, *why says why (static). */
bool kn_load_run(const struct kn_load_plan *plan, struct kn_load_result *results, double *seconds, const char **why);

#endif
