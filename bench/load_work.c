/* SPDX-License-Identifier: Apache-2.0 */
/* Requests and their JSON; see load_work.h. Prompts are made when they are sent: a plan of thousands of long ones stays small. */
#include "load_work.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

const char *const kn_load_mix_names[KN_LOAD_N_MIXES] = {"unique", "shared", "turns"};

static const char *const words[] = {
    "the",   "river", "stone", "old",   "house", "light", "water", "green", "small", "road",  "night", "day",   "wind",  "field", "tree",  "sea",
    "hand",  "book",  "fire",  "long",  "high",  "door",  "wall",  "town",  "king",  "ship",  "gold",  "bread", "milk",  "horse", "bird",  "fish",
    "snow",  "rain",  "cloud", "sun",   "moon",  "star",  "hill",  "path",  "bridge", "glass", "wood",  "iron",  "paper", "table", "chair", "clock",
    "voice", "song",  "dance", "story", "name",  "word",  "line",  "point", "round", "deep",  "cold",  "warm",  "dark",  "white", "black", "red",
    "blue",  "quick", "slow",  "young", "wise",  "brave", "quiet", "early", "late",  "first", "last",  "near",  "far",   "left",  "right", "under",
    "over",  "after", "before", "again", "never", "often", "some",  "many",  "few",   "more",  "less",  "each",  "other", "same",  "new",   "good",
    "kind",  "true",  "clear", "open",  "free",  "full",  "whole", "half",  "plain", "sharp", "soft",  "hard",  "sweet", "fresh", "dry",   "wet",
    "walk",  "run",   "stand", "sit",   "sleep", "speak", "write", "read",  "think", "know",  "feel",  "hear",  "see",   "find",  "keep",  "give",
    "take",  "make",  "build", "break", "carry", "bring", "send",  "leave", "come",  "turn",  "grow",  "fall",  "rise",  "begin", "end",   "wait",
};

char *kn_load_words(uint64_t seed, uint32_t n)
{
    enum { LONGEST = 7 };
    struct kn_random random = {.state = seed};
    char *text = malloc((size_t)n * (LONGEST + 1) + 1), *at = text;
    if (!text)
        return NULL;
    for (uint32_t i = 0; i < n; i++) {
        const char *word = words[kn_random_next(&random) % (sizeof words / sizeof *words)];
        size_t length = strlen(word);
        assert(length <= LONGEST);
        if (i)
            *at++ = ' ';
        memcpy(at, word, length);
        at += length;
    }
    *at = '\0';
    return text;
}

/* ---- requests */

bool kn_load_work_add(struct kn_load_work *work, const struct kn_load_item *item, double at_s, uint32_t group)
{
    uint32_t n = work->n;
    if ((n & (n - 1)) == 0) { /* doubles at powers of two */
        size_t room = n ? 2 * (size_t)n : 1;
        struct kn_load_request *requests = realloc(work->requests, room * sizeof *requests);
        work->requests = requests ? requests : work->requests;
        struct kn_load_item *items = realloc(work->items, room * sizeof *items);
        work->items = items ? items : work->items;
        if (!requests || !items)
            return false;
    }
    work->requests[n] = (struct kn_load_request){.at_s = at_s, .next = KN_LOAD_NONE, .group = group};
    work->items[n] = *item;
    work->n++;
    return true;
}

void kn_load_work_sort(struct kn_load_work *work)
{
    for (uint32_t i = 1; i < work->n; i++) { /* insertion: two ascending lists of some hundred, once */
        struct kn_load_request request = work->requests[i];
        struct kn_load_item item = work->items[i];
        uint32_t at = i;
        for (; at && work->requests[at - 1].at_s > request.at_s; at--) {
            work->requests[at] = work->requests[at - 1];
            work->items[at] = work->items[at - 1];
        }
        work->requests[at] = request;
        work->items[at] = item;
    }
}

/* The requests of one arrival: one, or the turns of a conversation. */
static bool add_arrival(struct kn_load_work *work, const struct kn_load_mix_opts *o, double at_s, struct kn_random *random)
{
    uint32_t n_turns = o->mix == KN_LOAD_MIX_TURNS ? o->n_turns : 1;
    for (uint32_t turn = 0; turn < n_turns; turn++) {
        bool shared = o->mix == KN_LOAD_MIX_SHARED, first = turn == 0;
        struct kn_load_item item = {.seed = kn_random_next(random), .conversation = work->n_conversations};
        uint32_t n_prompt = kn_random_between(random, o->prompt_low, o->prompt_high);
        item.n_words = shared || !first ? o->question_words : n_prompt;
        item.n_new = kn_random_between(random, o->new_low, o->new_high);
        if (shared) {
            item.system_seed = o->seed ^ 0x5eed5eed5eed5eedu;
            item.system_words = o->shared_words;
        }
        if (!kn_load_work_add(work, &item, at_s, 0))
            return false;
        work->requests[work->n - 1].follows = !first;
        if (!first)
            work->requests[work->n - 2].next = work->n - 1;
    }
    work->n_conversations += o->mix == KN_LOAD_MIX_TURNS;
    return true;
}

bool kn_load_work_make(struct kn_load_work *work, const struct kn_load_mix_opts *o)
{
    struct kn_random random = {.state = o->seed};
    struct kn_arrivals arrivals;
    *work = (struct kn_load_work){0};
    kn_arrivals_init(&arrivals, o->rate > 0 ? o->rate : 1, o->seed ^ 0xa55a5aa5u);
    while (work->n < o->n_requests) {
        double at_s = o->rate > 0 ? kn_arrivals_next(&arrivals) : 0;
        if (o->rate > 0 && o->duration_s > 0 && at_s >= o->duration_s)
            break;
        if (!add_arrival(work, o, at_s, &random))
            return false;
    }
    if (work->n_conversations && !(work->conversations = calloc(work->n_conversations, sizeof(json_t *))))
        return false;
    return work->n > 0;
}

void kn_load_work_fini(struct kn_load_work *work)
{
    for (uint32_t i = 0; work->conversations && i < work->n_conversations; i++)
        json_decref(work->conversations[i]);
    free(work->conversations);
    free(work->requests);
    free(work->items);
    *work = (struct kn_load_work){0};
}

/* ---- bodies */

static bool add_message(json_t *messages, const char *role, const char *text)
{
    return text && !json_array_append_new(messages, json_pack("{s:s,s:s}", "role", role, "content", text));
}

static bool add_words(json_t *messages, const char *role, uint64_t seed, uint32_t n)
{
    char *text = kn_load_words(seed, n);
    bool ok = add_message(messages, role, text);
    free(text);
    return ok;
}

/* The messages of a request, a new reference. */
static json_t *messages_of(struct kn_load_work *work, uint32_t index, const char *answer)
{
    const struct kn_load_item *item = &work->items[index];
    json_t **kept = work->conversations ? &work->conversations[item->conversation] : NULL, *messages;
    bool ok = true;
    if (kept && work->requests[index].follows) {
        messages = json_incref(*kept);
        ok = add_message(messages, "assistant", answer && *answer ? answer : "...");
    } else {
        messages = json_array();
        if (item->system_words)
            ok = add_words(messages, "system", item->system_seed, item->system_words);
        if (kept) {
            json_decref(*kept); /* of an earlier run */
            *kept = json_incref(messages);
        }
    }
    if (!ok || !add_words(messages, "user", item->seed, item->n_words)) {
        json_decref(messages);
        return NULL;
    }
    return messages;
}

char *kn_load_work_body(void *user, uint32_t index, const char *answer)
{
    struct kn_load_work *work = user;
    const struct kn_load_item *item = &work->items[index];
    const struct kn_load_style *style = &work->style;
    json_t *messages = messages_of(work, index, answer);
    json_t *body = messages ? json_pack("{s:s,s:b,s:{s:b},s:i,s:f,s:i}", "model", style->model, "stream", 1, "stream_options", "include_usage", 1,
                                        "max_tokens", (int)item->n_new, "temperature", (double)style->temperature, "seed",
                                        (int)(item->seed & 0x7fffffff))
                            : NULL;
    char *text = NULL;
    if (body && !json_object_set(body, "messages", messages)) {
        if (style->ignore_eos)
            json_object_set_new(body, "ignore_eos", json_true());
        if (style->cache_prompt)
            json_object_set_new(body, "cache_prompt", json_true());
        if (style->ours && item->no_fetch)
            json_object_set_new(body, "kv_fetch", json_false());
        if (style->ours && item->no_publish)
            json_object_set_new(body, "kv_publish", json_false());
        text = json_dumps(body, JSON_COMPACT);
    }
    json_decref(body);
    json_decref(messages);
    return text;
}
