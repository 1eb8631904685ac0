/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A bed for the server's handlers: a loop that plays a script on a thread of its own instead of an engine's work, and readers of what
 * comes back. It defines the loop's functions and kni_http_error, so that the library's are not linked.
 */
#ifndef KN_TEST_API_BED_H
#define KN_TEST_API_BED_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <jansson.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <time.h>

#include "base/alloc.h"
#include "base/clock.h"
#include "server/api/api.h"
#include "support/open_tiny.h"

#define KN_BED_MAX_CALLS 8u

/* What the engine would do. */
struct script {
    enum kn_status submit;   /* of kni_loop_submit, from call submit_from on */
    uint32_t submit_from;
    enum kn_status refuse;   /* state REFUSED with this */
    const char *texts[4];    /* of choice i; bytes are tokens; NULL: as choice 0 */
    enum kn_stop_reason reason;
    enum kn_status status;
    bool endless;            /* waits for finish or cancel behind its text */
    bool special_first;      /* a control token comes first */
    uint64_t n_cached, n_fetched;
    long prompt_ms;          /* the prompt's scores come so late; -1: never */
};

struct kni_loop {
    struct script script;
    struct player {
        struct kni_loop *loop;
        struct kni_call *call;
        pthread_t thread;
        _Atomic uint32_t finish; /* a bit a choice */
        _Atomic bool cancel;
        char salt[128];
    } players[KN_BED_MAX_CALLS];
    uint32_t n_calls;
    uint64_t seeds[KN_BED_MAX_CALLS];
    _Atomic uint32_t n_finish, n_cancel;
    uint32_t n_stops;
};

static struct kn_model *model;
static struct kni_metrics metrics;

static inline void pause_ms(long ms)
{
    nanosleep(&(struct timespec){.tv_nsec = ms * 1000000}, NULL);
}

static inline void play_token(struct kni_call *call, struct kni_call_choice *c, uint32_t n, int32_t token)
{
    c->events[n] = (struct kni_call_event){token, -0.5f - (float)n};
    for (uint32_t k = 0; k < call->n_top; k++)
        c->tops[n * call->n_top + k] = (struct kni_call_top){k < 3 ? token + (int32_t)k : -1, -0.5f - (float)n - (float)k};
    atomic_store_explicit(&c->n_events, n + 1, memory_order_release);
    kni_call_signal(call);
}

/* Token i of the prompt has -i / 4, and so have its likeliest. */
static inline void play_prompt(struct kni_call *call)
{
    for (uint32_t i = 0; i < call->n_tokens; i++) {
        call->prompt_logprobs[i] = -0.25f * (float)i;
        for (uint32_t k = 0; k < call->n_top; k++)
            call->prompt_tops[i * call->n_top + k] = (struct kni_call_top){KN_TINY_FIRST_BYTE + 'a' + (int32_t)k, -0.25f * (float)i - (float)k};
        atomic_store_explicit(&call->n_prompt_scored, i + 1, memory_order_release);
    }
    kni_call_signal(call);
}

static inline void *play(void *user)
{
    struct player *p = user;
    const struct script *s = &p->loop->script;
    struct kni_call *call = p->call;
    if (s->refuse) {
        call->err.status = s->refuse;
        snprintf(call->err.text, sizeof call->err.text, "the engine says why");
        for (uint32_t i = 0; i < call->n_choices; i++)
            atomic_store_explicit(&call->choices[i].done, true, memory_order_release);
    }
    atomic_store_explicit(&call->state, s->refuse ? KNI_CALL_STATE_REFUSED : KNI_CALL_STATE_ACCEPTED, memory_order_release);
    kni_call_signal(call);
    bool more = !s->refuse;
    if (more && call->score_prompt && !s->prompt_ms)
        play_prompt(call);
    for (uint32_t n = 0; more && n < call->max_tokens && !atomic_load(&p->cancel); n++) { /* choices take turns */
        more = false;
        for (uint32_t i = 0; i < call->n_choices; i++) {
            const char *text = s->texts[i] ? s->texts[i] : s->texts[0];
            uint32_t at = n - s->special_first;
            if (s->special_first && !n)
                play_token(call, &call->choices[i], n, 2);
            else if (at < strlen(text) && !(atomic_load(&p->finish) >> i & 1))
                play_token(call, &call->choices[i], n, KN_TINY_FIRST_BYTE + (unsigned char)text[at]);
            else
                continue;
            more = true;
        }
        if (n % 3 == 2)
            pause_ms(1);
    }
    if (!s->refuse && call->score_prompt && s->prompt_ms > 0) {
        pause_ms(s->prompt_ms);
        play_prompt(call);
    }
    for (uint32_t i = 0; i < call->n_choices && !s->refuse; i++) {
        struct kni_call_choice *c = &call->choices[i];
        while (s->endless && !atomic_load(&p->cancel) && !(atomic_load(&p->finish) >> i & 1))
            pause_ms(1);
        c->reason = atomic_load(&p->cancel)             ? KN_STOP_REASON_CANCELLED
                    : atomic_load(&p->finish) >> i & 1 ? KN_STOP_REASON_STOP
                                                        : s->reason;
        c->status = s->status;
        c->stats.n_cached = s->n_cached;
        c->stats.n_fetched = s->n_fetched;
        c->stats.ttft_ns = 2000000;
        atomic_store_explicit(&c->done, true, memory_order_release);
    }
    kni_call_signal(call);
    kni_call_unref(call);
    return NULL;
}

/* The loop's functions that handlers call; the library's are not linked. */
enum kn_status kni_loop_submit(struct kni_loop *loop, struct kni_call *call)
{
    assert_true(loop->n_calls < KN_BED_MAX_CALLS);
    if (loop->script.submit && loop->n_calls >= loop->script.submit_from)
        return loop->script.submit;
    struct player *p = &loop->players[loop->n_calls];
    *p = (struct player){.loop = loop, .call = call};
    snprintf(p->salt, sizeof p->salt, "%s", call->salt);
    loop->seeds[loop->n_calls++] = call->sampler.seed;
    kni_call_ref(call);
    assert_int_equal(pthread_create(&p->thread, NULL, play, p), 0);
    return KN_OK;
}

static inline struct player *player_of(struct kni_loop *loop, const struct kni_call *call)
{
    for (uint32_t i = 0; i < loop->n_calls; i++)
        if (loop->players[i].call == call)
            return &loop->players[i];
    fail_msg("a call that was never submitted");
    return NULL;
}

uint32_t kni_loop_n_stops(const struct kni_loop *loop)
{
    return loop->n_stops;
}

void kni_loop_finish(struct kni_loop *loop, struct kni_call *call, uint32_t choice)
{
    atomic_fetch_or(&player_of(loop, call)->finish, 1u << choice);
    atomic_fetch_add(&loop->n_finish, 1);
}

void kni_loop_cancel(struct kni_loop *loop, struct kni_call *call)
{
    atomic_store(&player_of(loop, call)->cancel, true);
    atomic_fetch_add(&loop->n_cancel, 1);
}

/* As http.c's, shorter. */
void kni_http_error(struct kni_http_reply *reply, unsigned status, const char *param, const char *code, const char *format, ...)
{
    struct kni_buf b = {0};
    char text[600];
    va_list args;
    va_start(args, format);
    vsnprintf(text, sizeof text, format, args);
    va_end(args);
    kni_buf_format(&b, "%s|%s|%s", param ? param : "", code ? code : "", text);
    *reply = (struct kni_http_reply){.status = status};
    reply->body = kni_buf_take(&b, &reply->n_body);
}

static inline int open_model(void **state)
{
    (void)state;
    model = kn_open_tiny(&(struct kn_tiny_opts){.n_layer = 1, .n_ctx = 512});
    return model ? 0 : -1;
}

static inline int close_model(void **state)
{
    (void)state;
    kn_model_close(&model);
    return 0;
}

/* One request. */
struct bed {
    struct kni_loop loop;
    struct kni_api api;
    struct kni_tenant tenant;
    struct kni_http_request request;
    struct kni_http_reply reply;
};

static inline void start(struct bed *b, const struct script *script)
{
    memset(b, 0, sizeof *b);
    b->loop.script = *script;
    if (!b->loop.script.reason)
        b->loop.script.reason = KN_STOP_REASON_STOP;
    b->api = (struct kni_api){.model = model, .loop = &b->loop, .metrics = &metrics, .created_s = 1700000000,
                              .wait_timeout_ms = 1000, .request_timeout_ms = 2000,
                              .limits = {.n_ctx = 256, .max_choices = 4, .model_name = "tiny \"q\""}};
    b->tenant = (struct kni_tenant){"", ""};
    b->request = (struct kni_http_request){.tenant = &b->tenant, .socket = -1, .begin_ns = kni_now_ns()};
}

static inline void ask(struct bed *b, kni_http_fn fn, const char *body)
{
    b->request.body = body;
    b->request.n_body = strlen(body);
    b->reply = (struct kni_http_reply){0};
    fn(&b->api, &b->request, &b->reply);
}

static inline void finish(struct bed *b)
{
    if (b->reply.close)
        b->reply.close(b->reply.user);
    kni_free(b->reply.body);
    for (uint32_t i = 0; i < b->loop.n_calls; i++)
        pthread_join(b->loop.players[i].thread, NULL);
}

static inline json_t *body_of(const struct bed *b)
{
    json_error_t e;
    if (b->reply.status != 200)
        fail_msg("status %u: %s", b->reply.status, b->reply.body);
    json_t *json = json_loadb(b->reply.body, b->reply.n_body, JSON_REJECT_DUPLICATES, &e);
    if (!json)
        fail_msg("%s: %s", e.text, b->reply.body);
    return json;
}

/* A value by path, such as "choices.0.message". */
static inline json_t *at(json_t *json, const char *path)
{
    while (json && *path) {
        char name[64];
        size_t n = strcspn(path, ".");
        snprintf(name, sizeof name, "%.*s", (int)n, path);
        json = json_is_array(json) ? json_array_get(json, (size_t)strtoul(name, NULL, 10)) : json_object_get(json, name);
        path += n + (path[n] == '.');
    }
    return json;
}

static inline const char *text_at(json_t *json, const char *path)
{
    json_t *v = at(json, path);
    if (!json_is_string(v))
        fail_msg("%s is no string", path);
    return json_string_value(v);
}

static inline long long int_at(json_t *json, const char *path)
{
    json_t *v = at(json, path);
    if (!json_is_integer(v))
        fail_msg("%s is no integer", path);
    return json_integer_value(v);
}

static inline void expect_error(struct bed *b, unsigned status, const char *want)
{
    if (b->reply.status != status || !b->reply.body || !strstr(b->reply.body, want))
        fail_msg("status %u: %s", b->reply.status, b->reply.body ? b->reply.body : "no body");
}

#define KN_BED_HI "\"messages\":[{\"role\":\"user\",\"content\":\"Hi\"}]"

/* Reads a stream to its end in pieces of up to `room` bytes. The end's code is returned. */
static inline ssize_t read_all(struct bed *b, size_t room, struct kni_buf *out)
{
    char piece[64];
    ssize_t n;
    assert_int_equal(b->reply.status, 200);
    assert_string_equal(b->reply.content_type, "text/event-stream");
    while ((n = b->reply.read(b->reply.user, piece, room)) > 0)
        kni_buf_add(out, piece, (size_t)n);
    assert_true(n != 0);
    return n;
}

/* The next event's JSON; NULL at [DONE]. */
static inline json_t *next_event(const char **text)
{
    const char *end = strstr(*text, "\n\n");
    json_error_t e;
    if (!end || strncmp(*text, "data: ", 6))
        fail_msg("no event: %.100s", *text);
    json_t *j = json_loadb(*text + 6, (size_t)(end - *text - 6), JSON_REJECT_DUPLICATES, &e);
    if (!j && strncmp(*text, "data: [DONE]\n\n", 14))
        fail_msg("%s: %.300s", e.text, *text);
    *text = end + 2;
    return j;
}

#endif
