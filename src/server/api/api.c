/* SPDX-License-Identifier: Apache-2.0 */
/*
 * From a request to its calls, and to a whole answer or a stream.
 *
 *     body -> kni_params -> a kni_call a prompt -> kni_loop_submit -> wait for ACCEPTED -> collect (one JSON object)
 *                                                       |                    |        `--> stream (api_stream.c)
 *                                                       `- 503, Retry-After  `- refused: 400, 503
 *
 * Nothing is answered before the engine has accepted all calls, so that what it refuses gets a proper status. A client that goes away
 * cancels its calls; one that only says that it has said all gets its answer (server_peer.h). Thread: the connection's. Failure: an error
 * object; whatever was submitted is cancelled.
 */
#include <poll.h>
#include <stdio.h>
#include <string.h>

#include "base/alloc.h"
#include "base/clock.h"
#include "base/log.h"
#include "server/api/api_state.h"

enum { POLL_MS = 1000, RETRY_AFTER_S = 1, CLIENT_GONE = 499 };

/* ---- exchange ---- */

static bool is_done(const struct kni_call *call)
{
    for (uint32_t i = 0; i < call->n_choices; i++) /* acquire: with the engine's release */
        if (!atomic_load_explicit(&call->choices[i].done, memory_order_acquire))
            return false;
    return true;
}

void kni_exchange_close(struct kni_exchange **exchange)
{
    struct kni_exchange *x = *exchange;
    if (!x)
        return;
    for (uint32_t i = 0; i < x->n_outs && x->outs; i++)
        kni_answer_fini(&x->outs[i].answer);
    for (uint32_t i = 0; i < x->n_calls; i++) {
        if (i < x->n_submitted && !is_done(x->calls[i]))
            kni_loop_cancel(x->api->loop, x->calls[i]);
        kni_call_unref(x->calls[i]);
    }
    kni_free(x->outs);
    kni_free(x->calls);
    kni_free(x->head);
    kni_buf_fini(&x->text);
    kni_params_fini(&x->params);
    kni_free(x);
    *exchange = NULL;
}

/* Both salts in one that no other pair gives; "" when there is none, so that prefixes are shared with who has no salt at all. */
static char *join_salts(const char *tenant, const char *request)
{
    struct kni_buf b = {0};
    size_t n;
    if (!*tenant && !request)
        return kni_strdup(KNI_ALLOC_TAG_REQUEST, "");
    kni_buf_format(&b, "%zu:%s|%s", strlen(tenant), tenant, request ? request : "");
    return kni_buf_take(&b, &n);
}

/* The call of a prompt, whose tokens it takes. */
static enum kn_status open_call(struct kni_exchange *x, struct kni_params_prompt *prompt, const struct kni_http_request *request)
{
    const struct kni_params *p = &x->params;
    const uint32_t room = x->api->limits.n_ctx - prompt->n_tokens;
    int32_t *tokens = prompt->tokens;
    struct kni_call *call;
    prompt->tokens = NULL;
    const bool score = p->echo && p->logprobs;
    /* without an answer all choices are one */
    enum kn_status s = kni_call_open(&call, tokens, prompt->n_tokens, p->max_tokens < room ? p->max_tokens : room, p->max_tokens ? p->n : 1,
                                     p->logprobs, p->n_top);
    if (s != KN_OK)
        return s;
    if (score && (s = kni_call_score_prompt(call)) != KN_OK) {
        kni_call_unref(call);
        return s;
    }
    call->sampler = p->sampler;
    call->ignore_stop = p->ignore_eos || score; /* where the prompt is described, the stop token is, too: see kni_out_take */
    call->no_fetch = p->no_fetch;
    call->no_publish = p->no_publish;
    call->kv_quality = p->kv_quality;
    call->wait_ms = x->api->wait_timeout_ms;
    call->deadline_ms = x->api->request_timeout_ms;
    call->begin_ns = request->begin_ns;
    call->salt = join_salts(request->tenant->salt, p->salt);
    if (!call->salt) {
        kni_call_unref(call);
        return KN_E_NOMEM;
    }
    for (uint32_t i = 0; i < p->n; i++) {
        struct kni_out *out = &x->outs[x->n_outs];
        *out = (struct kni_out){.call = call, .choice = &call->choices[p->max_tokens ? i : 0], .index = x->n_outs,
                                .echo = prompt->text, .n_echo = prompt->n_text, .sees_stops = score && !p->ignore_eos};
        kni_answer_init(&out->answer, x->api->model, p->stops, p->n_stops);
        out->answer.include_stop = p->include_stop;
        x->n_outs++;
    }
    x->calls[x->n_calls++] = call;
    return KN_OK;
}

static enum kn_status open_calls(struct kni_exchange *x, const struct kni_http_request *request)
{
    const struct kni_params *p = &x->params;
    size_t n_outs, bytes;
    if (!kni_mul_size(p->n_prompts, p->n, &n_outs) || !kni_mul_size(n_outs, sizeof *x->outs, &bytes))
        return KN_E_NOMEM;
    x->outs = kni_calloc(KNI_ALLOC_TAG_REQUEST, bytes, 0);
    x->calls = kni_calloc(KNI_ALLOC_TAG_REQUEST, p->n_prompts * sizeof *x->calls, 0);
    enum kn_status s = x->outs && x->calls ? kni_exchange_head(x) : KN_E_NOMEM;
    for (uint32_t i = 0; i < p->n_prompts && s == KN_OK; i++)
        s = open_call(x, &x->params.prompts[i], request);
    return s;
}

bool kni_exchange_wait(struct kni_exchange *x, uint32_t timeout_ms)
{
    struct pollfd fds[KNI_PARAMS_MAX_PROMPTS];
    timeout_ms = kni_peer_wait_ms(x->peer, timeout_ms);
    if (x->n_calls == 1)
        return kni_call_wait(x->calls[0], x->peer, timeout_ms);
    for (uint32_t i = 0; i < x->n_calls; i++)
        fds[i] = (struct pollfd){.fd = x->calls[i]->event_fd, .events = POLLIN};
    int n = poll(fds, x->n_calls, (int)(timeout_ms < POLL_MS ? timeout_ms : POLL_MS)); /* the client is looked for now and then */
    bool here = true;
    for (uint32_t i = 0; i < x->n_calls; i++) /* not waiting: takes the signal, and looks for the client; of one at least */
        if (i == 0 || (n > 0 && fds[i].revents))
            here = kni_call_wait(x->calls[i], x->peer, 0) && here;
    return here;
}

/* ---- errors ---- */

void kni_api_answer_error(struct kni_http_reply *reply, const struct kni_params_error *e)
{
    kni_http_error(reply, e->status, *e->param ? e->param : NULL, e->code, "%s", e->text);
    reply->retry_after_s = e->status == 503 ? RETRY_AFTER_S : 0;
}

static void answer_unavailable(struct kni_http_reply *reply, const char *code, const char *text)
{
    kni_http_error(reply, 503, NULL, code, "%s", text);
    reply->retry_after_s = RETRY_AFTER_S;
}

static void answer_failure(struct kni_http_reply *reply, const struct kni_failure *f)
{
    kni_http_error(reply, f->status, NULL, f->code, "%s", f->text);
    reply->retry_after_s = f->status == 503 && strcmp(f->code, "model_changed") ? RETRY_AFTER_S : 0;
}

static void answer_status(struct kni_http_reply *reply, enum kn_status s)
{
    if (s == KN_E_FULL)
        answer_unavailable(reply, "overloaded", "as many requests as the server lets wait are waiting: send the request again later");
    else if (s == KN_E_STATE)
        answer_unavailable(reply, "shutting_down", "the server is shutting down: send the request again later");
    else if (s == KN_E_NOMEM || s == KN_E_IO)
        answer_unavailable(reply, "overloaded", "the server has no memory or descriptors left for the request: send it again later");
    else
        kni_http_error(reply, 500, NULL, "internal_error", "%s", kn_status_message(s));
}

/* A call that the engine has refused. */
static void answer_refusal(struct kni_http_reply *reply, const struct kni_call *call)
{
    const char *text = *call->err.text ? call->err.text : kn_status_message(call->err.status);
    switch (call->err.status) {
    case KN_E_CONTEXT: kni_http_error(reply, 400, NULL, "context_length_exceeded", "%s", text); break;
    case KN_E_FULL: kni_http_error(reply, 400, NULL, "prompt_too_large", "%s", text); break;
    case KN_E_ARG: kni_http_error(reply, 400, NULL, NULL, "%s", text); break;
    case KN_E_CHANGED: kni_http_error(reply, 503, NULL, "model_changed", "%s", text); break; /* no Retry-After: it does not pass by itself */
    default: answer_status(reply, call->err.status == KN_E_CANCELLED ? KN_E_STATE : call->err.status); break;
    }
}

static void answer_gone(struct kni_http_reply *reply)
{
    kni_http_error(reply, CLIENT_GONE, NULL, "client_gone", "the client has closed the connection");
}

/* ---- the two routes ---- */

/* True when all calls are accepted; otherwise the reply says why not. */
static bool submit(struct kni_exchange *x, struct kni_http_reply *reply)
{
    for (uint32_t i = 0; i < x->n_calls; i++) {
        enum kn_status s = kni_loop_submit(x->api->loop, x->calls[i]);
        if (s != KN_OK) {
            answer_status(reply, s);
            return false;
        }
        x->n_submitted++;
    }
    for (uint32_t i = 0; i < x->n_calls; i++) {
        struct kni_call *call = x->calls[i];
        int state;
        while ((state = atomic_load_explicit(&call->state, memory_order_acquire)) == KNI_CALL_STATE_QUEUED) /* pairs with the engine's release */
            if (!kni_call_wait(call, x->peer, POLL_MS)) {
                answer_gone(reply);
                return false;
            }
        if (state == KNI_CALL_STATE_REFUSED) {
            answer_refusal(reply, call);
            return false;
        }
    }
    return true;
}

/* Takes all that is there. False: a choice has failed, and the reply says how. *done: nothing more comes. */
static bool collect_ready(struct kni_exchange *x, struct kni_http_reply *reply, bool *done)
{
    *done = true;
    for (uint32_t i = 0; i < x->n_outs; i++) {
        struct kni_out *out = &x->outs[i];
        bool finished;
        while (kni_out_take(out, &finished))
            if (finished)
                kni_loop_finish(x->api->loop, out->call, (uint32_t)(out->choice - out->call->choices));
        if (out->answer.bytes.failed) {
            answer_status(reply, KN_E_NOMEM);
            return false;
        }
        if (out->ended && out->reason != KN_STOP_REASON_STOP && out->reason != KN_STOP_REASON_LENGTH) {
            struct kni_failure failure = kni_failure_of(out->reason, out->status);
            answer_failure(reply, &failure);
            return false;
        }
        /* done: its statistics are there, released by the engine */
        *done = *done && out->ended && atomic_load_explicit(&out->choice->done, memory_order_acquire);
    }
    return true;
}

static void collect(struct kni_exchange *x, struct kni_http_reply *reply)
{
    struct kni_buf body = {0};
    for (bool done = false;;) {
        if (!collect_ready(x, reply, &done))
            return;
        if (done)
            break;
        if (kni_peer_due(x->peer))
            kni_peer_send_ahead(x->peer);
        if (!kni_exchange_wait(x, POLL_MS)) {
            answer_gone(reply);
            return;
        }
    }
    kni_render_answer(x, &body);
    char *text = kni_buf_take(&body, &reply->n_body);
    if (text)
        *reply = (struct kni_http_reply){.status = 200, .body = text, .n_body = reply->n_body};
    else
        answer_status(reply, KN_E_NOMEM);
}

static bool is_given_up(void *user)
{
    struct kni_watch *w = user;
    w->gone = !kni_peer_is_here(w->peer);
    if (!w->gone && kni_peer_due(w->peer))
        kni_peer_send_ahead(w->peer);
    return w->gone || (w->api->loop && kni_loop_n_stops(w->api->loop));
}

struct kni_params_limits kni_watch_begin(struct kni_watch *watch, const struct kni_api *api, const struct kni_http_request *request)
{
    struct kni_params_limits limits = api->limits;
    *watch = (struct kni_watch){.api = api, .peer = request->peer ? request->peer : &watch->own_peer};
    kni_peer_init(&watch->own_peer, request->socket);
    limits.stop = is_given_up;
    limits.stop_user = watch;
    return limits;
}

void kni_watch_answer(struct kni_http_reply *reply, enum kn_status s, const struct kni_watch *watch, const struct kni_params_error *error)
{
    if (s != KN_E_CANCELLED)
        kni_api_answer_error(reply, error);
    else if (watch->gone)
        answer_gone(reply);
    else
        answer_status(reply, KN_E_STATE);
}

static void generate(struct kni_api *api, bool chat, const struct kni_http_request *request, struct kni_http_reply *reply)
{
    struct kni_params_error error;
    struct kni_exchange *x = kni_calloc(KNI_ALLOC_TAG_REQUEST, sizeof *x, 0);
    if (!x) {
        answer_status(reply, KN_E_NOMEM);
        return;
    }
    x->api = api;
    kni_peer_init(&x->own_peer, request->socket);
    x->peer = request->peer ? request->peer : &x->own_peer;
    struct kni_watch watch;
    const struct kni_params_limits limits = kni_watch_begin(&watch, api, request);
    enum kn_status s = kni_params_parse(&x->params, chat, api->model, &limits, request->body, request->n_body, &error);
    if (s != KN_OK) {
        kni_watch_answer(reply, s, &watch, &error);
        goto done;
    }
    s = open_calls(x, request);
    if (s != KN_OK) {
        answer_status(reply, s);
        goto done;
    }
    if (!submit(x, reply))
        goto done;
    if (x->params.stream) {
        kni_stream_begin(x, reply);
        return; /* it is the reply's now */
    }
    collect(x, reply);
done:
    kni_exchange_close(&x);
}

void kni_api_chat(void *user, const struct kni_http_request *request, struct kni_http_reply *reply)
{
    generate(user, true, request, reply);
}

void kni_api_completions(void *user, const struct kni_http_request *request, struct kni_http_reply *reply)
{
    generate(user, false, request, reply);
}

/* ---- what needs no engine ---- */

void kni_api_answer_body(struct kni_http_reply *reply, struct kni_buf *body)
{
    size_t n;
    char *text = kni_buf_take(body, &n);
    if (text)
        *reply = (struct kni_http_reply){.status = 200, .body = text, .n_body = n};
    else
        answer_status(reply, KN_E_NOMEM);
}

static void put_model(const struct kni_api *api, struct kni_buf *b)
{
    const struct kn_model_info *info = kn_model_info(api->model);
    kni_buf_text(b, "{\"id\":\"");
    kni_buf_json(b, api->limits.model_name, strlen(api->limits.model_name));
    kni_buf_format(b, "\",\"object\":\"model\",\"created\":%llu,\"owned_by\":\"kinema\",\"max_model_len\":%u,\"meta\":{\"vocab_type\":\"%s\",\"n_vocab\":%u,"
                   "\"n_ctx_train\":%u,\"n_embd\":%u,\"n_params\":%llu,\"size\":%llu,\"arch\":\"", (unsigned long long)api->created_s, api->limits.n_ctx,
                   info->tokenizer, info->n_vocab, info->n_ctx_train, info->n_embd, (unsigned long long)info->n_params,
                   (unsigned long long)info->file_bytes);
    kni_buf_json(b, info->arch, strlen(info->arch));
    kni_buf_text(b, "\",\"quant\":\"");
    kni_buf_json(b, info->quant, strlen(info->quant));
    kni_buf_format(b, "\",\"chat_template\":\"%s", info->chat_template);
    kni_buf_text(b, "\"}}");
}

void kni_api_models(void *user, const struct kni_http_request *request, struct kni_http_reply *reply)
{
    struct kni_buf b = {0};
    (void)request;
    kni_buf_text(&b, "{\"object\":\"list\",\"data\":[");
    put_model(user, &b);
    kni_buf_text(&b, "]}");
    kni_api_answer_body(reply, &b);
}

void kni_api_model(void *user, const struct kni_http_request *request, struct kni_http_reply *reply)
{
    static const char before[] = "/v1/models/";
    const struct kni_api *api = user;
    const char *name = strncmp(request->path, before, sizeof before - 1) ? "" : request->path + sizeof before - 1;
    struct kni_buf b = {0};
    if (strcmp(name, api->limits.model_name)) {
        kni_http_error(reply, 404, "model", "model_not_found", "there is no model \"%.100s\" here: this server has \"%.100s\" (GET /v1/models)", name,
                       api->limits.model_name);
        return;
    }
    put_model(user, &b);
    kni_api_answer_body(reply, &b);
}
