/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A call: one HTTP request's work for the engine, shared by the connection's thread and the engine's.
 *
 *     connection's thread                              engine's thread (loop.c)
 *     kni_call_open, fill params
 *     kni_loop_submit  ---------- inbox --------->     one kn_request a choice (all or none)
 *     poll(event_fd)   <--------- event_fd -------     state ACCEPTED or REFUSED
 *     read events      <--- choices[i].n_events --     appends events; they are never moved or overwritten
 *     kni_loop_finish / kni_loop_cancel
 *     set a flag and post the call  ---- inbox -->     kn_request_finish / kn_request_cancel
 *                      <--------- event_fd -------     choices[i].done
 *     kni_call_unref                                   kni_call_unref
 *
 * Events are an array with room for every token that the choice may have, filled from the front: the writer releases n_events,
 * the reader acquires it. So nothing blocks the engine, however slowly a client reads, and nothing is lost.
 */
#ifndef KNI_SERVER_CALL_H
#define KNI_SERVER_CALL_H

#include <stdatomic.h>

#include "kinema/engine.h"
#include "server/http/server_peer.h"

#define KNI_CALL_MAX_TOP 20u

struct kni_call_event {
    int32_t token;
    float logprob; /* natural, of the model's distribution before sampling's temperature and cuts; only with want_logprobs */
};

struct kni_call_top { int32_t token; float logprob; }; /* likeliest first */

enum kni_call_state {
    KNI_CALL_STATE_QUEUED,   /* in the inbox */
    KNI_CALL_STATE_ACCEPTED, /* the engine has its requests */
    KNI_CALL_STATE_REFUSED   /* err says why; nothing runs; every choice is done */
};

struct kni_call_choice {
    /* by the engine's thread, released by n_events */
    struct kni_call_event *events; /* [max_events] */
    struct kni_call_top *tops;     /* [max_events][n_top]; NULL without */
    _Atomic uint32_t n_events;
    /* by the engine's thread, released by done */
    enum kn_stop_reason reason;
    enum kn_status status;         /* of reason ERROR */
    struct kn_request_stats stats;
    _Atomic bool done;             /* no event comes after it */
    /* by any thread, taken by the engine's: kni_loop_finish */
    _Atomic bool finish_asked;
    /* engine's thread only */
    struct kn_request *request;
    uint64_t id;       /* in the snapshot */
    uint64_t queue_ns; /* arrival to the step in which it first ran; 0: not yet */
    uint64_t fetch_begin_ns; /* when it was first seen fetching */
};

struct kni_call {
    /* constant once submitted; owned */
    int32_t *tokens; /* prompt */
    uint32_t n_tokens, max_tokens, n_choices;
    struct kn_sampler_opts sampler; /* choice i samples with seed + i */
    char *salt;
    bool ignore_stop, no_fetch, no_publish;
    enum kn_kv_quality kv_quality;
    bool want_logprobs;
    bool score_prompt; /* kni_call_score_prompt: what follows is there, and choice 0 fills it */
    uint32_t n_top; /* 0..KNI_CALL_MAX_TOP */
    uint32_t wait_ms, deadline_ms;
    uint64_t begin_ns; /* when its HTTP request had arrived: latencies count from here */

    /* of the prompt's tokens given those before them; by the engine's thread, released by n_prompt_scored. [0] is nothing */
    float *prompt_logprobs;          /* [n_tokens] */
    struct kni_call_top *prompt_tops; /* [n_tokens][n_top]; NULL without */
    _Atomic uint32_t n_prompt_scored;

    int event_fd; /* eventfd, non-blocking: readable when something has changed */
    _Atomic int state; /* enum kni_call_state; releases err */
    struct kn_err err;
    _Atomic uint32_t n_refs;
    /* by any thread, taken by the engine's: what is asked for is in flags, so that asking twice or late is harmless */
    _Atomic bool posted;       /* lies in the inbox, which holds a reference meanwhile; at most once */
    _Atomic bool cancel_asked; /* kni_loop_cancel */
    /* engine's thread only */
    struct kni_call *prev, *next; /* among those that run */
    uint64_t submit_ns; /* when the engine got its requests; 0: not yet taken in */
    uint32_t n_open;    /* choices that are not done */
    enum kn_status drop_status; /* why the loop ended it, when that is an error */

    struct kni_call_choice choices[]; /* [n_choices] */
};

/* Takes tokens (kni_alloc'ed) also on failure. max_tokens bounds each choice's events; 0 is for calls that only score their prompt. One
 * reference. KN_E_NOMEM, KN_E_IO (no descriptor left). The caller fills the other constant fields before submitting. */
enum kn_status kni_call_open(struct kni_call **out, int32_t *tokens, uint32_t n_tokens, uint32_t max_tokens, uint32_t n_choices,
                             bool want_logprobs, uint32_t n_top);
/* Makes room for the log-probabilities of the prompt's own tokens, which are then wanted. Before submitting. KN_E_NOMEM. */
enum kn_status kni_call_score_prompt(struct kni_call *call);
void kni_call_ref(struct kni_call *call);
void kni_call_unref(struct kni_call *call);
/* Makes event_fd readable. Any thread. */
void kni_call_signal(struct kni_call *call);
/* Waits until the call has changed since the last wait, or the peer (NULL: nobody is watched) has said all or gone, or timeout_ms.
 * Connection's thread. False: the peer has gone. */
bool kni_call_wait(struct kni_call *call, struct kni_peer *peer, uint32_t timeout_ms);

#endif
