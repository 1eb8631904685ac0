/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Bodies of /v1/chat/completions, /v1/completions, /tokenize and /detokenize: hostile bytes in, checked parameters or one clear error
 * out.
 * Pure functions of bytes and model, so that a fuzz target can call them.
 *
 * What becomes of each field is in params_table.h: those that change the answer are done, or refused by name.
 */
#ifndef KNI_SERVER_PARAMS_H
#define KNI_SERVER_PARAMS_H

#include "kinema/types.h"
#include "server/api/parse_budget.h"
#include "server/loop/call.h"

#define KNI_PARAMS_MAX_STOPS 16u
#define KNI_PARAMS_MAX_STOP_BYTES 256u
#define KNI_PARAMS_MAX_PROMPTS 64u
#define KNI_PARAMS_MAX_CHOICES 128u /* of all prompts together; fewer than a server's default queue takes */
#define KNI_PARAMS_MAX_SCORES (1u << 21) /* tokens and alternatives of prompts that are described, with each choice's copy */

struct kni_params_limits {
    uint32_t n_ctx, max_choices;
    const char *model_name; /* other names than this are refused with 404 */
    struct kni_parse_budget *budget; /* of all parses together; NULL: no limit */
    bool (*stop)(void *user); /* asked during long work, on the caller's thread; true ends it with KN_E_CANCELLED. NULL: nobody is asked */
    void *stop_user;
};

/* Why a body was refused: becomes an error object. */
struct kni_params_error {
    unsigned status;       /* 400, 404, 413; 500 and 503 for what is not the client's fault */
    const char *code;      /* static or NULL: "context_length_exceeded", "model_not_found", ... */
    char param[64], text[400];
};

struct kni_params_prompt {
    int32_t *tokens;
    uint32_t n_tokens;
    char *text; /* what echo gives out; NULL without; ids may stand for any bytes */
    size_t n_text;
};

struct kni_params {
    bool chat, stream, include_usage, echo;
    struct kni_params_prompt *prompts; /* [n_prompts]; chat: one. /v1/completions takes an array of prompts too */
    uint32_t n_prompts;
    uint32_t n;              /* choices of each prompt */
    uint32_t max_tokens;     /* settled: at least 1, and with the shortest prompt fits n_ctx; longer prompts leave room for fewer.
                              * 0 with no_answer only */
    bool no_answer;          /* with echo: the prompt alone is wanted */
    struct kn_sampler_opts sampler; /* temperature 1 unless said; seed: drawn unless said */
    bool seed_given;
    char *stops[KNI_PARAMS_MAX_STOPS];
    uint32_t n_stops;
    bool logprobs;
    uint32_t n_top;          /* 0..20 */
    char *salt;              /* the request's own cache_salt or NULL */
    enum kn_kv_quality kv_quality; /* our extension; DEFAULT: the engine's */
    bool ignore_eos, no_fetch, no_publish; /* our extensions: ignore_eos, kv_fetch, kv_publish (both true unless said) */
    bool include_stop;       /* the stop string that ended the text stays in it */
};

/* KN_OK, or KN_E_FORMAT / KN_E_ARG / KN_E_UNSUPPORTED / KN_E_CONTEXT / KN_E_NOMEM / KN_E_IO / KN_E_CANCELLED with *error filled. fini accepts both. */
enum kn_status kni_params_parse(struct kni_params *out, bool chat, const struct kn_model *model, const struct kni_params_limits *limits,
                                const char *body, size_t n_body, struct kni_params_error *error);
void kni_params_fini(struct kni_params *params);

/* Bodies of /tokenize (llama.cpp's and vLLM's forms) and /detokenize; see params_tokenize.c. */
struct kni_params_tokenize {
    struct kni_params_prompt prompt;
    bool with_pieces;  /* tokens as {"id", "piece"} */
    bool with_strings; /* "token_strs" beside the tokens */
};
struct kni_params_detokenize {
    char *text; /* kni_alloc'ed */
    size_t n_text;
};

/* As kni_params_parse; release prompt.tokens, or text, with kni_free. */
enum kn_status kni_params_parse_tokenize(struct kni_params_tokenize *out, const struct kn_model *model, const struct kni_params_limits *limits,
                                         const char *body, size_t n_body, struct kni_params_error *error);
enum kn_status kni_params_parse_detokenize(struct kni_params_detokenize *out, const struct kn_model *model, const struct kni_params_limits *limits,
                                           const char *body, size_t n_body, struct kni_params_error *error);

#endif
