/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A server with OpenAI's HTTP interface over one engine.
 *
 *     kn_server_open(&s, model, &opts, &err);        // listens; requests are accepted from here on
 *     printf("port %u\n", kn_server_port(s));
 *     kn_server_run(s);                              // steps the engine until kn_server_stop, then drains
 *     kn_server_close(&s);
 *
 * Threads: the thread that calls open must also run and close: it becomes the engine's. Connections have threads inside.
 * kn_server_stop may be called by any thread and by signal handlers.
 *
 * Routes: POST /v1/chat/completions, /v1/completions, /tokenize; GET /v1/models, /health, /metrics, / (dashboard), /stats.
 */
#ifndef KINEMA_SERVER_H
#define KINEMA_SERVER_H

#include "engine.h"

#ifdef __cplusplus
extern "C" {
#endif

struct kn_server;

/* A tenant: who sends this key. Strings are copied. */
struct kn_server_key {
    const char *key;  /* as in "Authorization: Bearer KEY" */
    const char *name; /* shown in logs; NULL: "key1", "key2", ... */
    const char *salt; /* requests of keys with different salts never share a prefix; NULL: the name */
};

struct kn_server_opts {
    size_t size;                        /* sizeof(struct kn_server_opts) */
    const struct kn_engine_opts *engine; /* borrowed for the call; NULL: defaults */
    const char *host;                   /* address to listen on; NULL: "127.0.0.1" */
    uint16_t port;                      /* 0: one that is free, see kn_server_port */
    const char *model_name;             /* in /v1/models and answers; NULL: the file's name without folder and ".gguf" */
    const struct kn_server_key *keys;   /* [n_keys]; none: everybody may ask */
    size_t n_keys;
    const char *allow_origin;           /* web pages of this origin, "*": of any, may read answers (CORS); NULL: none but the dashboard */
    uint32_t max_connections;           /* 1..10000; 0: 256. Beyond it new ones get 503 and are closed */
    uint32_t max_queue;                 /* requests that wait for a place; beyond it 503; 0: 256 */
    uint32_t max_choices;               /* n of one request, 1..128; 0: 16 */
    uint64_t max_body_bytes;            /* 0: 8 MiB */
    uint32_t max_header_bytes;          /* 0: 16 KiB */
    uint32_t header_timeout_ms;         /* to receive a request's head, whatever trickles in; 0: 10000 */
    uint32_t body_timeout_ms;           /* to receive its body; 0: 30000 */
    uint32_t idle_timeout_ms;           /* of a connection kept alive; 0: 60000 */
    uint32_t send_timeout_ms;           /* for a reader that takes nothing; 0: 30000 */
    uint32_t wait_timeout_ms;           /* request to first token; 0: 300000 */
    uint32_t request_timeout_ms;        /* request to last token; 0: 1800000 */
    uint32_t drain_timeout_ms;          /* after kn_server_stop, for requests that run; 0: 30000 */
    const char *allow_hosts;            /* without keys on loopback: names besides this machine's that requests may be for, with commas
                                         * between them, "llm.lan,box"; NULL: none */
    uint64_t max_parse_bytes;           /* memory for bodies that are being parsed, of all connections together; 0: 256 MiB */
};

/* Opens engine and socket. Errors as kn_engine_open; KN_E_ARG (an option, said which), KN_E_IO (cannot listen there). */
KN_API enum kn_status kn_server_open(struct kn_server **out, struct kn_model *model, const struct kn_server_opts *opts, struct kn_err *err);
/* The port that it listens on. */
KN_API uint16_t kn_server_port(const struct kn_server *server);
/* Serves until stopped, then drains: refuses new requests (503), lets those under way end until drain_timeout_ms, cancels the
 * rest, waits for publishes. KN_E_STATE, logged with the reason, when the pool does not verify empty at the end. */
KN_API enum kn_status kn_server_run(struct kn_server *server);
/* The first call drains, the second one cancels what is under way. Any thread; async-signal-safe; it must have returned before
 * kn_server_close is called. */
KN_API void kn_server_stop(struct kn_server *server);
/* NULL is fine. */
KN_API void kn_server_close(struct kn_server **server);

#ifdef __cplusplus
}
#endif
#endif
