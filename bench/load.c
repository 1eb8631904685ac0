/* SPDX-License-Identifier: Apache-2.0 */
/*
 * One thread, one multi handle; see load.h. Its loop:
 *
 *     due heads are sent -> libcurl moves bytes (callbacks note arrivals) -> ended transfers become results -> sleep until bytes or the next arrival
 *
 * A transfer is one request under way, allocated when it is sent. Connections are kept and used again, as a client's would be. Sleep ends at a
 * whole millisecond, so a request may leave up to one millisecond late; that counts against the server, and `sent_s - due_s` shows it.
 */
#include "load.h"

#include <errno.h>
#include <jansson.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "curl_open.h"
#include "load_sse.h"

enum { MAX_ANSWER_BYTES = 256 * 1024, MAX_REFUSAL_BYTES = 2048, TICK_MS = 200, CONNECT_MS = 10000, SLEEP_MS = 100, DEFAULT_TIMEOUT_MS = 600000 };

struct transfer;

struct load {
    const struct kn_load_plan *plan;
    struct kn_load_result *results;
    const struct kn_curl *curl;
    CURLM *multi;
    struct curl_slist *headers;
    char url[1024];
    uint64_t begin_ns;
    uint32_t next_head;          /* first request that was not looked at yet */
    struct transfer *first;      /* under way, in a list */
    uint32_t n_under_way_own;    /* how many: the thread's own count */
    _Atomic uint32_t n_ended, n_under_way; /* for tick: written by the thread, relaxed, only shown */
    _Atomic bool stop;           /* set by the caller's thread, read by ours: release and acquire */
    _Atomic bool ended;          /* set by our thread before it returns, read by the caller's: likewise */
    double last_end_s;
};

struct transfer {
    struct load *load;
    struct transfer *previous, *next; /* in the list of those under way */
    uint32_t index;
    CURL *easy;
    char *body;
    struct kn_load_sse sse;
    char *answer;                /* text so far, only kept for a follower */
    size_t n_answer;
    uint32_t n_pieces;           /* pieces with text */
    bool done, finished;         /* [DONE]; a finish_reason was seen */
    bool broken;                 /* the stream is no SSE, or not JSON in it, or carried an error: said in the result */
    char refusal[MAX_REFUSAL_BYTES + 1]; /* body of an answer that is no 200 */
    size_t n_refusal;
    char curl_error[CURL_ERROR_SIZE];
};

static uint64_t now_ns(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

static double now_s(const struct load *load)
{
    return (double)(now_ns() - load->begin_ns) / 1e9;
}

static struct kn_load_result *result_of(const struct transfer *t)
{
    return &t->load->results[t->index];
}

/* ---- what arrives */

static const char *text_in(const json_t *chunk, bool *finished)
{
    const json_t *choice = json_array_get(json_object_get(chunk, "choices"), 0), *delta = json_object_get(choice, "delta");
    *finished = json_is_string(json_object_get(choice, "finish_reason"));
    const json_t *places[] = {json_object_get(delta, "content"), json_object_get(delta, "reasoning_content"), json_object_get(choice, "text")};
    for (size_t i = 0; i < 3; i++)
        if (json_string_length(places[i]))
            return json_string_value(places[i]);
    return NULL;
}

static uint32_t count_in(const json_t *usage, const char *name)
{
    json_int_t n = json_integer_value(json_object_get(usage, name));
    return n > 0 && n < UINT32_MAX ? (uint32_t)n : 0;
}

static void note_usage(struct kn_load_result *r, const json_t *usage)
{
    if (!json_is_object(usage))
        return;
    r->has_usage = true;
    r->n_tokens = count_in(usage, "completion_tokens");
    r->n_prompt = count_in(usage, "prompt_tokens");
    r->n_cached = count_in(json_object_get(usage, "prompt_tokens_details"), "cached_tokens");
}

/* Keeps the answer for the request that follows. */
static void keep_text(struct transfer *t, const char *text)
{
    size_t n = strlen(text);
    if (t->load->plan->requests[t->index].next == KN_LOAD_NONE || t->n_answer + n + 1 > MAX_ANSWER_BYTES)
        return;
    char *grown = realloc(t->answer, t->n_answer + n + 1);
    if (!grown)
        return;
    memcpy(grown + t->n_answer, text, n + 1);
    t->answer = grown;
    t->n_answer += n;
}

static void message_in(const json_t *error, char *out, size_t n_out)
{
    const char *text = json_string_value(json_is_object(error) ? json_object_get(error, "message") : error);
    snprintf(out, n_out, "%.*s", (int)n_out - 1, text ? text : "an error without a message");
}

static void on_event(void *user, const char *data, size_t n)
{
    struct transfer *t = user;
    struct kn_load_result *r = result_of(t);
    double at = now_s(t->load);
    if (n == 6 && !memcmp(data, "[DONE]", 6)) {
        t->done = true;
        return;
    }
    json_t *chunk = json_loadb(data, n, 0, NULL), *error = json_object_get(chunk, "error");
    if (!json_is_object(chunk) || (error && !json_is_null(error))) {
        if (!t->broken) {
            if (json_is_object(chunk))
                message_in(error, r->error, sizeof r->error);
            else
                snprintf(r->error, sizeof r->error, "an event that is no JSON object: %.80s", data);
        }
        t->broken = true;
    } else {
        bool finished;
        const char *text = text_in(chunk, &finished);
        t->finished |= finished;
        if (text) {
            if (!t->n_pieces++)
                r->first_s = at;
            r->last_s = at;
            keep_text(t, text);
        }
        note_usage(r, json_object_get(chunk, "usage"));
    }
    json_decref(chunk);
}

static size_t on_bytes(char *bytes, size_t size, size_t n, void *user)
{
    struct transfer *t = user;
    size_t n_bytes = size * n;
    long status = 0;
    t->load->curl->curl_easy_getinfo(t->easy, CURLINFO_RESPONSE_CODE, &status);
    if (status != 200) {
        size_t take = n_bytes < MAX_REFUSAL_BYTES - t->n_refusal ? n_bytes : MAX_REFUSAL_BYTES - t->n_refusal;
        memcpy(t->refusal + t->n_refusal, bytes, take);
        t->n_refusal += take;
    } else if (!kn_load_sse_feed(&t->sse, bytes, n_bytes, on_event, t)) {
        if (!t->broken)
            snprintf(result_of(t)->error, sizeof result_of(t)->error, "an event is too long, or out of memory");
        t->broken = true;
        return 0; /* ends the transfer */
    }
    return n_bytes;
}

/* ---- sending */

static void free_transfer(struct transfer *t)
{
    if (!t)
        return;
    if (t->easy)
        t->load->curl->curl_easy_cleanup(t->easy);
    kn_load_sse_fini(&t->sse);
    free(t->answer);
    free(t->body);
    free(t);
}

static void fail(struct load *load, uint32_t index, const char *why)
{
    struct kn_load_result *r = &load->results[index];
    r->outcome = KN_LOAD_OUTCOME_FAILED;
    snprintf(r->error, sizeof r->error, "%s", why);
    r->end_s = now_s(load);
    atomic_fetch_add_explicit(&load->n_ended, 1, memory_order_relaxed); /* shown by tick */
}

static bool set_up(struct transfer *t)
{
    const struct kn_load_plan *plan = t->load->plan;
    const struct kn_curl *c = t->load->curl;
    CURL *e = t->easy = c->curl_easy_init();
    if (!e)
        return false;
    const long timeout_ms = plan->timeout_ms ? plan->timeout_ms : DEFAULT_TIMEOUT_MS;
    bool ok = !c->curl_easy_setopt(e, CURLOPT_URL, t->load->url) &&
              !c->curl_easy_setopt(e, CURLOPT_HTTPHEADER, t->load->headers) &&
              !c->curl_easy_setopt(e, CURLOPT_POSTFIELDS, t->body) &&
              !c->curl_easy_setopt(e, CURLOPT_POSTFIELDSIZE_LARGE, (curl_off_t)strlen(t->body)) &&
              !c->curl_easy_setopt(e, CURLOPT_WRITEFUNCTION, on_bytes) &&
              !c->curl_easy_setopt(e, CURLOPT_WRITEDATA, t) &&
              !c->curl_easy_setopt(e, CURLOPT_ERRORBUFFER, t->curl_error) &&
              !c->curl_easy_setopt(e, CURLOPT_PRIVATE, t) &&
              !c->curl_easy_setopt(e, CURLOPT_NOSIGNAL, 1L) &&
              !c->curl_easy_setopt(e, CURLOPT_NOPROXY, "127.0.0.1,localhost,::1") &&
              !c->curl_easy_setopt(e, CURLOPT_CONNECTTIMEOUT_MS, (long)CONNECT_MS) &&
              !c->curl_easy_setopt(e, CURLOPT_TIMEOUT_MS, timeout_ms);
    return ok && !c->curl_multi_add_handle(t->load->multi, e);
}

static void send_one(struct load *load, uint32_t index, double due_s, const char *answer)
{
    struct kn_load_result *r = &load->results[index];
    struct transfer *t = calloc(1, sizeof *t);
    r->due_s = due_s;
    r->sent_s = now_s(load);
    if (t) {
        t->load = load;
        t->index = index;
        t->body = load->plan->body(load->plan->user, index, answer);
    }
    if (!t || !t->body || !set_up(t)) {
        free_transfer(t);
        fail(load, index, "out of memory");
        return;
    }
    if ((t->next = load->first))
        t->next->previous = t;
    load->first = t;
    load->n_under_way_own++;
    atomic_store_explicit(&load->n_under_way, load->n_under_way_own, memory_order_relaxed); /* shown by tick */
}

/* The next head, or n_requests. */
static uint32_t peek_head(struct load *load)
{
    while (load->next_head < load->plan->n_requests && load->plan->requests[load->next_head].follows)
        load->next_head++;
    return load->next_head;
}

/* Sends what is due; returns milliseconds to the next arrival, at most SLEEP_MS. */
static int send_due(struct load *load)
{
    const struct kn_load_plan *plan = load->plan;
    uint32_t i;
    while ((i = peek_head(load)) < plan->n_requests) {
        double now = now_s(load);
        if (plan->n_clients ? load->n_under_way_own >= plan->n_clients : plan->requests[i].at_s > now) {
            double left_ms = plan->n_clients ? SLEEP_MS : (plan->requests[i].at_s - now) * 1e3;
            return left_ms >= SLEEP_MS ? SLEEP_MS : (int)left_ms + 1;
        }
        load->next_head++;
        send_one(load, i, plan->n_clients ? now : plan->requests[i].at_s, NULL);
    }
    return SLEEP_MS;
}

/* ---- ending */

static void judge(struct transfer *t, CURLcode code, bool stopped)
{
    struct kn_load_result *r = result_of(t);
    t->load->curl->curl_easy_getinfo(t->easy, CURLINFO_RESPONSE_CODE, &r->http_status);
    r->end_s = now_s(t->load);
    r->outcome = KN_LOAD_OUTCOME_FAILED;
    if (!r->has_usage)
        r->n_tokens = t->n_pieces;
    if (stopped) {
        snprintf(r->error, sizeof r->error, "stopped before its end");
    } else if (t->broken) {
        return; /* said already */
    } else if (code) {
        snprintf(r->error, sizeof r->error, "%.150s",
                 t->curl_error[0] ? t->curl_error : t->load->curl->curl_easy_strerror(code));
    } else if (r->http_status != 200) {
        json_t *body = json_loadb(t->refusal, t->n_refusal, 0, NULL);
        char message[120];
        message_in(json_object_get(body, "error"), message, sizeof message);
        snprintf(r->error, sizeof r->error, "HTTP %ld: %s", r->http_status, message);
        json_decref(body);
    } else if (!t->done && !t->finished) {
        snprintf(r->error, sizeof r->error, "the stream ended before the answer did, after %u pieces", (unsigned)t->n_pieces);
    } else if (!t->n_pieces) {
        snprintf(r->error, sizeof r->error, "an answer without text");
    } else {
        r->outcome = KN_LOAD_OUTCOME_COMPLETED;
    }
}

static void end_transfer(struct load *load, struct transfer *t, CURLcode code, bool stopped)
{
    uint32_t next = load->plan->requests[t->index].next;
    judge(t, code, stopped);
    struct kn_load_result *r = result_of(t);
    load->last_end_s = r->end_s > load->last_end_s ? r->end_s : load->last_end_s;
    load->curl->curl_multi_remove_handle(load->multi, t->easy);
    if (t->next)
        t->next->previous = t->previous;
    *(t->previous ? &t->previous->next : &load->first) = t->next;
    load->n_under_way_own--;
    atomic_store_explicit(&load->n_under_way, load->n_under_way_own, memory_order_relaxed); /* shown by tick */
    atomic_fetch_add_explicit(&load->n_ended, 1, memory_order_relaxed);
    if (r->outcome == KN_LOAD_OUTCOME_COMPLETED && next != KN_LOAD_NONE)
        send_one(load, next, now_s(load), t->answer ? t->answer : "");
    free_transfer(t);
}

static void end_ready(struct load *load)
{
    int left;
    for (CURLMsg *m; (m = load->curl->curl_multi_info_read(load->multi, &left));) {
        if (m->msg != CURLMSG_DONE)
            continue;
        CURL *easy = m->easy_handle;
        CURLcode code = m->data.result; /* m dies with remove_handle */
        char *private = NULL;
        load->curl->curl_easy_getinfo(easy, CURLINFO_PRIVATE, &private);
        end_transfer(load, (struct transfer *)(void *)private, code, false);
    }
}

static void *run(void *user)
{
    struct load *load = user;
    while (peek_head(load) < load->plan->n_requests || load->n_under_way_own) {
        if (atomic_load_explicit(&load->stop, memory_order_acquire)) /* set by the caller's thread */
            break;
        int running, wait_ms = send_due(load);
        if (load->curl->curl_multi_perform(load->multi, &running))
            break;
        end_ready(load);
        bool has_head = peek_head(load) < load->plan->n_requests, client_free = load->plan->n_clients && load->n_under_way_own < load->plan->n_clients;
        if ((has_head && !client_free) || (!has_head && load->n_under_way_own))
            load->curl->curl_multi_poll(load->multi, NULL, 0, wait_ms, NULL);
    }
    while (load->first)
        end_transfer(load, load->first, CURLE_OK, true);
    atomic_store_explicit(&load->ended, true, memory_order_release); /* read by the caller's thread */
    return NULL;
}

/* ---- the caller's side */

static bool make_headers(struct load *load)
{
    const struct kn_load_plan *plan = load->plan;
    char authorization[1100];
    const char *lines[4] = {"Content-Type: application/json", "Accept: text/event-stream", "Expect:", NULL};
    if (plan->api_key) {
        snprintf(authorization, sizeof authorization, "Authorization: Bearer %s", plan->api_key);
        lines[3] = authorization;
    }
    for (size_t i = 0; i < 4 && lines[i]; i++) {
        struct curl_slist *longer = load->curl->curl_slist_append(load->headers, lines[i]);
        if (!longer)
            return false;
        load->headers = longer;
    }
    size_t n = strlen(plan->url);
    while (n && plan->url[n - 1] == '/')
        n--;
    n -= n >= 3 && !memcmp(plan->url + n - 3, "/v1", 3) ? 3 : 0;
    int made = snprintf(load->url, sizeof load->url, "%.*s/v1/chat/completions", (int)n, plan->url);
    return made > 0 && (size_t)made < sizeof load->url;
}

static bool start(pthread_t *thread, struct load *load)
{
    sigset_t all, before; /* signals are for the caller's thread */
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    int rc = pthread_create(thread, NULL, run, load);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    return rc == 0;
}

bool kn_load_run(const struct kn_load_plan *plan, struct kn_load_result *results, double *seconds, const char **why)
{
    struct load *load = calloc(1, sizeof *load);
    bool ok = false;
    pthread_t thread;
    *seconds = 0;
    *why = "out of memory";
    if (!load)
        return false;
    load->plan = plan;
    load->results = results;
    if (!(load->curl = kn_curl_open(why)) || !(load->multi = load->curl->curl_multi_init()) || !make_headers(load))
        goto done;
    load->curl->curl_multi_setopt(load->multi, CURLMOPT_MAXCONNECTS, 4096L);
    load->begin_ns = now_ns();
    *why = "cannot start a thread";
    if (!start(&thread, load))
        goto done;
    ok = true;
    while (!atomic_load_explicit(&load->ended, memory_order_acquire)) { /* set by the load's thread */
        struct timespec nap = {.tv_nsec = 20000000};
        for (int ms = 0; ms < TICK_MS && !atomic_load_explicit(&load->ended, memory_order_acquire); ms += 20)
            nanosleep(&nap, NULL);
        if (plan->tick && !plan->tick(plan->user, atomic_load_explicit(&load->n_ended, memory_order_relaxed),
                                      atomic_load_explicit(&load->n_under_way, memory_order_relaxed)))
            atomic_store_explicit(&load->stop, true, memory_order_release); /* read by the load's thread */
    }
    pthread_join(thread, NULL);
    *seconds = load->last_end_s;
done:
    if (load->curl) {
        load->curl->curl_slist_free_all(load->headers);
        load->curl->curl_multi_cleanup(load->multi);
    }
    free(load);
    return ok;
}
