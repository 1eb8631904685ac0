/* SPDX-License-Identifier: Apache-2.0 */
/*
 * One request of /v1/chat/completions or /v1/completions while it is answered.
 *
 *     kni_exchange                             kni_call (one a prompt)
 *       outs[prompt * n + i] ---- reads -----> choices[i].events
 *         answer: tokens -> text
 *         taken -> shown -> sent
 *
 *     events:  0 ........ n_shown ........ n_taken ........ choice->n_events
 *              described     held back        not read yet
 *
 * A token is described (in logprobs) once some of its text is given out, so that none of a stop string's own tokens is. Owner: the
 * connection's thread. The rendering half (api_json.c) only reads and writes text, and is tested without a loop.
 */
#ifndef KNI_SERVER_API_STATE_H
#define KNI_SERVER_API_STATE_H

#include "server/api/answer.h"
#include "server/api/api.h"

struct kni_out {
    struct kni_call *call;
    struct kni_call_choice *choice;
    const char *echo; /* the prompt's text, to be given out first; NULL */
    size_t n_echo;
    uint32_t index;
    struct kni_answer answer;
    uint32_t n_taken, n_shown; /* tokens */
    size_t shown_at;           /* where token n_shown's text begins */
    size_t shown_chars;        /* the same in characters */
    size_t n_sent;             /* of the answer's bytes, streamed */
    bool begun, ended, closed; /* first chunk is out; no token comes; last chunk is out */
    bool prompt_shown;         /* the echoed prompt has been described */
    bool sees_stops;           /* stop tokens come as events, end the choice here, and are described */
    enum kn_stop_reason reason; /* once ended */
    enum kn_status status;
};

struct kni_exchange {
    struct kni_api *api;
    struct kni_params params;
    struct kni_peer *peer; /* the connection's, or own_peer */
    struct kni_peer own_peer; /* of a socket without connection: tests */
    struct kni_call **calls; /* [n_calls] */
    uint32_t n_calls, n_outs;
    uint32_t n_submitted;    /* calls that the loop knows */
    struct kni_out *outs;    /* [n_outs] */
    char *head;              /* {"id":...,"system_fingerprint":"..." : what all its objects begin with */
    /* streaming */
    struct kni_buf text;     /* events to be sent */
    size_t n_text_sent;
    uint64_t quiet_ns;       /* since when nothing was sent */
    bool over;               /* nothing follows text */
};

/* The id, model and so on that every object of the exchange begins with. KN_E_NOMEM, KN_E_IO. */
enum kn_status kni_exchange_head(struct kni_exchange *x);
/* Reads one event, or notices the end. False: there is nothing to read now. *finished: a stop string has just been completed, and the
 * choice should be ended. */
bool kni_out_take(struct kni_out *out, bool *finished);

/* Whole characters only. */
bool kni_render_is_text(const char *bytes, size_t n);
/* The whole answer. */
void kni_render_answer(struct kni_exchange *x, struct kni_buf *out);
/* What is new of a choice as server-sent events, with its first and last chunk when they are due. */
void kni_render_events(struct kni_exchange *x, struct kni_out *out, struct kni_buf *text);
/* What follows the last chunk of all choices: usage when asked for, and the end. All choices are done. */
void kni_render_end(struct kni_exchange *x, struct kni_buf *text);

/* "message", code and HTTP status for a choice that failed. */
struct kni_failure { unsigned status; const char *code, *text; };
struct kni_failure kni_failure_of(enum kn_stop_reason reason, enum kn_status status);
/* An error as a server-sent event. */
void kni_render_failure(const struct kni_failure *failure, struct kni_buf *text);

/* A whole JSON answer of 200; takes body's bytes. */
void kni_api_answer_body(struct kni_http_reply *reply, struct kni_buf *body);
void kni_api_answer_error(struct kni_http_reply *reply, const struct kni_params_error *error);

/* Whether somebody still wants what a body is turned into: the client is there, and the server does not drain. Asked while that goes on. */
struct kni_watch { const struct kni_api *api; struct kni_peer *peer, own_peer; bool gone; };

/* The API's limits, with the watch as their stop: valid as long as the watch. */
struct kni_params_limits kni_watch_begin(struct kni_watch *watch, const struct kni_api *api, const struct kni_http_request *request);
/* Answers for a body that was refused, or given up (KN_E_CANCELLED): 499 and 503. */
void kni_watch_answer(struct kni_http_reply *reply, enum kn_status status, const struct kni_watch *watch, const struct kni_params_error *error);

/* Answers with the exchange's stream; takes x. */
void kni_stream_begin(struct kni_exchange *x, struct kni_http_reply *reply);
/* Waits until some call may have changed, and not longer than that; look at all before each wait. False: the client has gone. */
bool kni_exchange_wait(struct kni_exchange *x, uint32_t timeout_ms);
/* Cancels what is not done and frees all. */
void kni_exchange_close(struct kni_exchange **x);

#endif
