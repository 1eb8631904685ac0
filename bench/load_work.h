/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What a load test asks: the requests of a plan and their bodies, the same for every server that they are sent to.
 *
 *     unique   every prompt is random words of its own
 *     shared   one system prompt of random words for all, and a short question of its own for each
 *     turns    conversations: a prompt, then short questions after the answers; each turn's prompt contains all before it
 *
 * Words come from a list of short English words that are one token each in usual vocabularies, so that n words are about n tokens; the chat
 * template adds some. Answers' usage has the true number, which is what is reported. Same seed, same requests, on every machine.
 *
 * One thread at a time: kn_load_work_body is called by the load generator's thread while it runs.
 */
#ifndef KN_LOAD_WORK_H
#define KN_LOAD_WORK_H

#include <jansson.h>

#include "load.h"
#include "load_stats.h"

enum kn_load_mix { KN_LOAD_MIX_UNIQUE = 0, KN_LOAD_MIX_SHARED = 1, KN_LOAD_MIX_TURNS = 2 };
enum { KN_LOAD_N_MIXES = 3 };
extern const char *const kn_load_mix_names[KN_LOAD_N_MIXES];

/* One request's contents. */
struct kn_load_item {
    uint64_t system_seed, seed;      /* of the words */
    uint32_t system_words, n_words;  /* 0 system words: no system message */
    uint32_t n_new;                  /* max_tokens */
    uint32_t conversation;           /* index; turns only */
    bool no_fetch, no_publish;       /* sent to our server only */
};

/* How bodies are written. Strings are borrowed. */
struct kn_load_style {
    const char *model;      /* name of the model in requests */
    float temperature;
    bool ignore_eos;        /* extension of llama.cpp's server, vLLM and ours: answers have all their tokens */
    bool cache_prompt;      /* extension of llama.cpp's server */
    bool ours;              /* may send our extensions (kv_fetch, kv_publish) */
};

struct kn_load_mix_opts {
    enum kn_load_mix mix;
    uint32_t n_requests;                 /* at most; turns: rounded up to whole conversations */
    double rate, duration_s;             /* rate 0: no arrivals (closed loop). duration 0: n_requests alone counts */
    uint32_t prompt_low, prompt_high;    /* words of a unique prompt, or of a conversation's first one */
    uint32_t shared_words, question_words;
    uint32_t new_low, new_high;
    uint32_t n_turns;
    uint64_t seed;
};

struct kn_load_work {
    struct kn_load_request *requests; /* [n] */
    struct kn_load_item *items;       /* [n] */
    uint32_t n, n_conversations;
    struct kn_load_style style;
    json_t **conversations;           /* [n_conversations] messages so far, of the run under way */
};

/* false: out of memory, or a mix without any request. kn_load_work_fini accepts both. Style: to be set by the caller. */
bool kn_load_work_make(struct kn_load_work *work, const struct kn_load_mix_opts *opts);
void kn_load_work_fini(struct kn_load_work *work);
/* Adds one that arrives at at_s, by itself; keep arrivals ascending, or call kn_load_work_sort. false: out of memory. */
bool kn_load_work_add(struct kn_load_work *work, const struct kn_load_item *item, double at_s, uint32_t group);
/* By arrival; only for works without conversations. */
void kn_load_work_sort(struct kn_load_work *work);
/* The load generator's body; user is the work. */
char *kn_load_work_body(void *user, uint32_t index, const char *answer);
/* n words of seed and a NUL, from malloc; NULL: out of memory. */
char *kn_load_words(uint64_t seed, uint32_t n);

#endif
