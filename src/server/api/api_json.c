/* SPDX-License-Identifier: Apache-2.0 */
/*
 * OpenAI's objects, written by hand into one buffer: they are small and always of the same shape, and a stream writes one a token.
 *
 *     chat        {head, choices: [{index, message | delta: {role, content}, logprobs: {content: [..]}, finish_reason}], usage, kinema}
 *     completions {head, choices: [{index, text, logprobs: {tokens, token_logprobs, top_logprobs, text_offset}, finish_reason}], ..}
 *
 * Text that is no UTF-8 becomes U+FFFD; deltas are cut at whole characters, so that their sum is the whole answer's text. "bytes" of
 * log-probabilities are exact. The rest of "kinema" is ours; clients ignore what they do not know. No clock, no socket: pure.
 */
#include <math.h>
#include <string.h>
#include <sys/random.h>

#include "base/clock.h"
#include "base/utf8.h"
#include "kinema/kinema.h"
#include "server/api/api_state.h"

enum kn_status kni_exchange_head(struct kni_exchange *x)
{
    static const char *const objects[2][2] = {{"text_completion", "text_completion"}, {"chat.completion", "chat.completion.chunk"}};
    const struct kn_model_info *info = kn_model_info(x->api->model);
    struct kni_buf b = {0};
    uint64_t id[2];
    size_t n;
    if (getrandom(id, sizeof id, 0) != (ssize_t)sizeof id)
        return KN_E_IO;
    kni_buf_format(&b, "{\"id\":\"%s-%016llx%016llx\",\"object\":\"%s\",\"created\":%llu,\"model\":\"", x->params.chat ? "chatcmpl" : "cmpl",
                   (unsigned long long)id[0], (unsigned long long)id[1], objects[x->params.chat][x->params.stream], (unsigned long long)kni_wall_s());
    kni_buf_json(&b, x->api->limits.model_name, strlen(x->api->limits.model_name));
    kni_buf_format(&b, "\",\"system_fingerprint\":\"kinema-%s-", kn_version());
    for (int i = 0; i < 4; i++)
        kni_buf_format(&b, "%02x", info->fingerprint[i]);
    kni_buf_text(&b, "\"");
    x->head = kni_buf_take(&b, &n);
    return x->head ? KN_OK : KN_E_NOMEM;
}

/* A token's part of the answer; control tokens have none. */
static size_t text_bytes(const struct kni_out *out, int32_t token)
{
    const char *bytes;
    size_t n;
    return !kn_model_token_is_special(out->answer.model, token) && kn_model_token_bytes(out->answer.model, token, &bytes, &n) == KN_OK ? n : 0;
}

/* Whether all that comes before the answer is there. */
static bool is_prompt_scored(const struct kni_call *call)
{
    /* acquire: with the engine's release */
    return !call->score_prompt || atomic_load_explicit(&call->n_prompt_scored, memory_order_acquire) == call->n_tokens;
}

bool kni_out_take(struct kni_out *out, bool *finished)
{
    struct kni_call_choice *c = out->choice;
    *finished = false;
    if (out->ended)
        return false;
    /* A first choice that ended before all of the prompt was scored has failed: what became of it must still be seen. */
    if (!is_prompt_scored(out->call) && !atomic_load_explicit(&out->call->choices[0].done, memory_order_acquire))
        return false;
    /* done first: once it is seen, n_events is the last there will be. Both pair with releases in the engine's thread */
    bool done = atomic_load_explicit(&c->done, memory_order_acquire);
    uint32_t n = atomic_load_explicit(&c->n_events, memory_order_acquire);
    if (out->n_taken < n) {
        const int32_t token = c->events[out->n_taken++].token;
        *finished = out->ended = kni_answer_push(&out->answer, token);
        if (out->sees_stops && !out->ended && kn_model_token_is_stop(out->answer.model, token)) {
            *finished = out->ended = true;
            kni_answer_finish(&out->answer);
        }
        out->reason = out->ended ? KN_STOP_REASON_STOP : out->reason;
        return true;
    }
    if (!done)
        return false;
    out->ended = true;
    out->reason = c->reason;
    out->status = c->status;
    kni_answer_finish(&out->answer);
    return true;
}

bool kni_render_is_text(const char *bytes, size_t n)
{
    size_t length;
    for (size_t at = 0; at < n; at += length)
        if (kni_utf8_next(bytes + at, n - at, &length) != KNI_UTF8_WHOLE)
            return false;
    return true;
}

static void put_logprob(struct kni_buf *b, float logprob)
{
    kni_buf_format(b, "%.9g", logprob > -9999.0f ? (double)logprob : -9999.0); /* JSON has no infinity; NaN fails the comparison */
}

/* A token's text inside a string. OpenAI's older interface spells the bytes of what is no text. */
static void put_token(struct kni_buf *b, const struct kni_out *out, int32_t token, bool chat)
{
    const char *bytes = "";
    size_t n = 0;
    if (kn_model_token_bytes(out->answer.model, token, &bytes, &n) != KN_OK)
        n = 0;
    if (chat || kni_render_is_text(bytes, n)) {
        kni_buf_json(b, bytes, n);
        return;
    }
    kni_buf_text(b, "bytes:");
    for (size_t i = 0; i < n; i++)
        kni_buf_format(b, "\\\\x%02x", (unsigned char)bytes[i]);
}

static void put_described(struct kni_buf *b, const struct kni_out *out, int32_t token, float logprob)
{
    const char *bytes = "";
    size_t n = 0;
    kni_buf_text(b, "{\"token\":\"");
    put_token(b, out, token, true);
    kni_buf_text(b, "\",\"logprob\":");
    put_logprob(b, logprob);
    kni_buf_text(b, ",\"bytes\":[");
    if (kn_model_token_bytes(out->answer.model, token, &bytes, &n) != KN_OK)
        n = 0;
    for (size_t i = 0; i < n; i++)
        kni_buf_format(b, "%s%u", i ? "," : "", (unsigned char)bytes[i]);
    kni_buf_text(b, "]");
}

static const struct kni_call_top *tops_of(const struct kni_out *out, uint32_t i)
{
    return out->call->n_top ? out->choice->tops + (size_t)i * out->call->n_top : NULL;
}

static void put_chat_token(struct kni_buf *b, const struct kni_out *out, uint32_t i)
{
    const struct kni_call_event *e = &out->choice->events[i];
    const struct kni_call_top *tops = tops_of(out, i);
    put_described(b, out, e->token, e->logprob);
    kni_buf_text(b, ",\"top_logprobs\":[");
    for (uint32_t k = 0; k < out->call->n_top && tops[k].token >= 0; k++) {
        kni_buf_text(b, k ? "," : "");
        put_described(b, out, tops[k].token, tops[k].logprob);
        kni_buf_text(b, "}");
    }
    kni_buf_text(b, "]}");
}

/* {"token": logprob, ..}: the likeliest, and the chosen one. */
static void put_legacy_tops(struct kni_buf *b, const struct kni_out *out, const struct kni_call_top *tops, int32_t token, float logprob)
{
    bool chosen = false;
    kni_buf_text(b, "{");
    for (uint32_t k = 0; k < out->call->n_top && tops[k].token >= 0; k++) {
        kni_buf_text(b, k ? ",\"" : "\"");
        put_token(b, out, tops[k].token, false);
        kni_buf_text(b, "\":");
        put_logprob(b, tops[k].logprob);
        chosen = chosen || tops[k].token == token;
    }
    if (!chosen) {
        kni_buf_text(b, tops[0].token >= 0 ? ",\"" : "\"");
        put_token(b, out, token, false);
        kni_buf_text(b, "\":");
        put_logprob(b, logprob);
    }
    kni_buf_text(b, "}");
}

/* The tokens whose text has begun to be given out. */
static uint32_t find_shown(const struct kni_out *out, size_t *at)
{
    uint32_t i = out->n_shown;
    for (*at = out->shown_at; i < out->n_taken; i++) {
        size_t n = text_bytes(out, out->choice->events[i].token);
        if (n ? *at >= out->answer.n_given : *at > out->answer.n_given || (out->answer.stopped && *at == out->answer.n_given))
            break;
        *at += n;
    }
    return i;
}

/* Characters that begin in bytes from..to of a text of n bytes. */
static size_t count_characters(const char *text, size_t n_text, size_t from, size_t to)
{
    size_t n = 0;
    for (size_t i = from; i < to && i < n_text; i++)
        n += ((unsigned char)text[i] & 0xc0) != 0x80;
    return n;
}

enum legacy_field { LEGACY_TOKENS, LEGACY_LOGPROBS, LEGACY_TOPS, LEGACY_OFFSETS, LEGACY_COUNT };

/* The prompt's part of one of the lists. What stands before the first token has no probability: null. Offsets are reckoned from the
 * text's end, since a BOS that was put first, or the blank that SentencePiece puts there, are not in it. */
static void put_legacy_prompt(struct kni_buf *b, const struct kni_out *out, enum legacy_field field)
{
    const struct kni_call *call = out->call;
    const size_t n_text = out->n_echo;
    size_t n_bytes = 0, n, at = 0, chars = 0;
    const char *bytes;
    for (uint32_t i = 0; i < call->n_tokens && field == LEGACY_OFFSETS; i++)
        n_bytes += kn_model_token_bytes(out->answer.model, call->tokens[i], &bytes, &n) == KN_OK ? n : 0;
    for (uint32_t i = 0; i < call->n_tokens; i++) {
        kni_buf_text(b, i ? "," : "");
        if (field == LEGACY_TOKENS) {
            kni_buf_text(b, "\"");
            put_token(b, out, call->tokens[i], false);
            kni_buf_text(b, "\"");
        } else if (field == LEGACY_OFFSETS) {
            size_t begin = n_bytes < n_text ? n_text - n_bytes : 0;
            chars += count_characters(out->echo, n_text, at, begin);
            at = begin > at ? begin : at;
            kni_buf_format(b, "%zu", chars);
            n_bytes -= kn_model_token_bytes(out->answer.model, call->tokens[i], &bytes, &n) == KN_OK ? n : 0;
        } else if (!i) {
            kni_buf_text(b, "null");
        } else if (field == LEGACY_LOGPROBS) {
            put_logprob(b, call->prompt_logprobs[i]);
        } else {
            put_legacy_tops(b, out, call->prompt_tops + (size_t)i * call->n_top, call->tokens[i], call->prompt_logprobs[i]);
        }
    }
}

/* with_prompt: the prompt's tokens come before the answer's n_shown..to. */
static void put_legacy_logprobs(struct kni_buf *b, struct kni_out *out, bool with_prompt, uint32_t to)
{
    static const char *const names[LEGACY_COUNT] = {"{\"tokens\":[", "],\"token_logprobs\":[", "],\"top_logprobs\":", "],\"text_offset\":["};
    const uint32_t from = out->n_shown, n_top = out->call->n_top;
    size_t at = out->shown_at, chars = out->shown_chars;
    for (int field = 0; field < LEGACY_COUNT; field++) {
        bool between = with_prompt;
        kni_buf_text(b, field == LEGACY_OFFSETS && !n_top ? names[field] + 1 : names[field]);
        if (field == LEGACY_TOPS)
            kni_buf_text(b, n_top ? "[" : "null");
        if (field == LEGACY_TOPS && !n_top)
            continue;
        if (with_prompt)
            put_legacy_prompt(b, out, (enum legacy_field)field);
        for (uint32_t i = from; i < to; i++) {
            const struct kni_call_event *e = &out->choice->events[i];
            kni_buf_text(b, between ? "," : "");
            between = true;
            if (field == LEGACY_TOKENS) {
                kni_buf_text(b, "\"");
                put_token(b, out, e->token, false);
                kni_buf_text(b, "\"");
            } else if (field == LEGACY_LOGPROBS) {
                put_logprob(b, e->logprob);
            } else if (field == LEGACY_TOPS) {
                put_legacy_tops(b, out, tops_of(out, i), e->token, e->logprob);
            } else {
                size_t n = text_bytes(out, e->token);
                kni_buf_format(b, "%zu", chars);
                chars += count_characters(out->answer.bytes.data, out->answer.bytes.n, at, at + n);
                at += n;
            }
        }
    }
    kni_buf_text(b, "]}");
}

/* Describes what has been shown since the last time, and before that, once, the prompt that is echoed. */
static void put_logprobs(struct kni_buf *b, const struct kni_exchange *x, struct kni_out *out, bool any)
{
    const bool with_prompt = out->call->score_prompt && !out->prompt_shown;
    size_t at;
    uint32_t to = find_shown(out, &at);
    if (!x->params.logprobs || !any) {
        kni_buf_text(b, "null");
        return;
    }
    if (with_prompt)
        out->shown_chars = count_characters(out->echo, out->n_echo, 0, SIZE_MAX);
    if (with_prompt && x->params.stream) { /* its chunk has no other text */
        to = out->n_shown;
        at = out->shown_at;
    }
    if (x->params.chat) {
        kni_buf_text(b, "{\"content\":[");
        for (uint32_t i = out->n_shown; i < to; i++) {
            kni_buf_text(b, i > out->n_shown ? "," : "");
            put_chat_token(b, out, i);
        }
        kni_buf_text(b, "],\"refusal\":null}");
    } else {
        put_legacy_logprobs(b, out, with_prompt, to);
    }
    out->shown_chars += count_characters(out->answer.bytes.data, out->answer.bytes.n, out->shown_at, at);
    out->shown_at = at;
    out->n_shown = to;
    out->prompt_shown = true;
}

static const char *finish_reason(const struct kni_out *out)
{
    return out->reason == KN_STOP_REASON_LENGTH ? "\"length\"" : "\"stop\"";
}

/* {"exact":1024,"small":256}: what there is, by quality. */
static void put_by(struct kni_buf *b, const char *name, const uint64_t n_by[KN_KV_QUALITY_COUNT])
{
    bool between = false;
    kni_buf_format(b, ",\"%s\":{", name);
    for (unsigned q = KN_KV_QUALITY_EXACT; q < KN_KV_QUALITY_COUNT; q++)
        if (n_by[q]) {
            kni_buf_format(b, "%s\"%s\":%llu", between ? "," : "", kn_kv_quality_name((enum kn_kv_quality)q), (unsigned long long)n_by[q]);
            between = true;
        }
    kni_buf_text(b, "}");
}

static void put_usage(struct kni_buf *b, const struct kni_exchange *x)
{
    uint64_t prompt = 0, cached = 0, fetched = 0, generated = 0, ttft = 0, total = 0;
    uint64_t cached_by[KN_KV_QUALITY_COUNT] = {0}, fetched_by[KN_KV_QUALITY_COUNT] = {0};
    enum kn_kv_quality quality = KN_KV_QUALITY_EXACT;
    for (uint32_t i = 0; i < x->n_calls; i++) {
        const struct kn_request_stats *s = &x->calls[i]->choices[0].stats; /* the others find what it has computed */
        prompt += x->calls[i]->n_tokens;
        cached += s->n_cached;
        fetched += s->n_fetched;
        for (unsigned q = 0; q < KN_KV_QUALITY_COUNT; q++) {
            cached_by[q] += s->n_cached_by[q];
            fetched_by[q] += s->n_fetched_by[q];
        }
    }
    for (uint32_t i = 0; i < x->n_outs; i++) {
        const struct kn_request_stats *s = &x->outs[i].choice->stats;
        generated += x->outs[i].n_taken;
        quality = s->quality > quality ? s->quality : quality;
        ttft = i == 0 || s->ttft_ns < ttft ? s->ttft_ns : ttft;
        total = s->total_ns > total ? s->total_ns : total;
    }
    uint64_t reused = cached + fetched < prompt ? cached + fetched : prompt;
    kni_buf_format(b, "\"usage\":{\"prompt_tokens\":%llu,\"completion_tokens\":%llu,\"total_tokens\":%llu,"
                   "\"prompt_tokens_details\":{\"cached_tokens\":%llu}}",
                   (unsigned long long)prompt, (unsigned long long)generated, (unsigned long long)(prompt + generated), (unsigned long long)reused);
    kni_buf_format(b, ",\"kinema\":{\"cached_tokens\":%llu,\"fetched_tokens\":%llu", (unsigned long long)cached, (unsigned long long)fetched);
    put_by(b, "cached_by_quality", cached_by);
    put_by(b, "fetched_by_quality", fetched_by);
    kni_buf_format(b, ",\"quality\":\"%s\",\"ttft_s\":%.6f,\"total_s\":%.6f}", kn_kv_quality_name(quality), (double)ttft * 1e-9, (double)total * 1e-9);
}

void kni_render_answer(struct kni_exchange *x, struct kni_buf *b)
{
    kni_buf_format(b, "%s,\"choices\":[", x->head);
    for (uint32_t i = 0; i < x->n_outs; i++) {
        struct kni_out *out = &x->outs[i];
        kni_buf_format(b, x->params.chat ? "%s{\"index\":%u,\"message\":{\"role\":\"assistant\",\"content\":\"" : "%s{\"index\":%u,\"text\":\"", i ? "," : "",
                       out->index);
        if (out->echo)
            kni_buf_json(b, out->echo, out->n_echo);
        if (out->answer.bytes.n)
            kni_buf_json(b, out->answer.bytes.data, out->answer.bytes.n);
        kni_buf_text(b, x->params.chat ? "\",\"refusal\":null},\"logprobs\":" : "\",\"logprobs\":");
        put_logprobs(b, x, out, true);
        kni_buf_format(b, ",\"finish_reason\":%s}", finish_reason(out));
    }
    kni_buf_text(b, "],");
    put_usage(b, x);
    kni_buf_text(b, "}");
}

/* One chunk: text from..to of the answer and what is due with it. */
static void put_chunk(struct kni_exchange *x, struct kni_out *out, struct kni_buf *b, size_t to, bool describe, const char *finish)
{
    kni_buf_format(b, "data: %s,\"choices\":[{\"index\":%u,", x->head, out->index);
    if (!x->params.chat)
        kni_buf_text(b, "\"text\":\"");
    else if (!out->begun)
        kni_buf_text(b, "\"delta\":{\"role\":\"assistant\",\"refusal\":null,\"content\":\"");
    else
        kni_buf_text(b, finish ? "\"delta\":{" : "\"delta\":{\"content\":\"");
    if (!out->begun && out->echo)
        kni_buf_json(b, out->echo, out->n_echo);
    if (to > out->n_sent)
        kni_buf_json(b, out->answer.bytes.data + out->n_sent, to - out->n_sent);
    kni_buf_text(b, !x->params.chat ? "\",\"logprobs\":" : finish && out->begun ? "},\"logprobs\":" : "\"},\"logprobs\":");
    put_logprobs(b, x, out, describe);
    kni_buf_format(b, ",\"finish_reason\":%s}]%s}\n\n", finish ? finish : "null", x->params.include_usage ? ",\"usage\":null" : "");
    out->n_sent = to > out->n_sent ? to : out->n_sent;
    out->begun = true;
}

void kni_render_events(struct kni_exchange *x, struct kni_out *out, struct kni_buf *b)
{
    size_t at;
    if (out->closed || (!out->n_taken && !out->ended && !out->call->score_prompt) || !is_prompt_scored(out->call))
        return;
    if (!out->begun && (x->params.chat || out->echo))
        put_chunk(x, out, b, 0, out->call->score_prompt, NULL);
    bool describe = x->params.logprobs && find_shown(out, &at) > out->n_shown;
    if (out->answer.n_given > out->n_sent || describe)
        put_chunk(x, out, b, out->answer.n_given, describe, NULL);
    if (out->ended) {
        put_chunk(x, out, b, 0, false, finish_reason(out));
        out->closed = true;
    }
}

void kni_render_end(struct kni_exchange *x, struct kni_buf *b)
{
    if (x->params.include_usage) {
        kni_buf_format(b, "data: %s,\"choices\":[],", x->head);
        put_usage(b, x);
        kni_buf_text(b, "}\n\n");
    }
    kni_buf_text(b, "data: [DONE]\n\n");
}

struct kni_failure kni_failure_of(enum kn_stop_reason reason, enum kn_status status)
{
    if (reason == KN_STOP_REASON_CANCELLED)
        return (struct kni_failure){503, "shutting_down", "the server is shutting down and has cancelled the request: send it again later"};
    switch (status) {
    case KN_E_TIMEOUT: return (struct kni_failure){504, "timeout", "the request took longer than the server allows: ask for fewer tokens, or try again "
                                                                   "when it is less busy"};
    case KN_E_NOMEM: case KN_E_FULL: return (struct kni_failure){503, "overloaded", "the server ran out of memory during the request: try again later"};
    case KN_E_STATE: return (struct kni_failure){503, "shutting_down", "the server is shutting down: send the request again later"};
    case KN_E_CHANGED: return (struct kni_failure){503, "model_changed", "the model's file has changed on disk during the request, so that its answer is none: the server "
                                                                        "has to be restarted (GET /health says which file)"};
    case KN_E_NOT_FINITE: return (struct kni_failure){500, "not_finite", "the model's results for this request are infinite or not numbers: its file may be "
                                                                         "damaged"};
    default: return (struct kni_failure){500, "internal_error", kn_status_message(status)};
    }
}

void kni_render_failure(const struct kni_failure *failure, struct kni_buf *b)
{
    kni_buf_text(b, "data: {\"error\":{\"message\":\"");
    kni_buf_json(b, failure->text, strlen(failure->text));
    kni_buf_format(b, "\",\"type\":\"server_error\",\"param\":null,\"code\":\"%s\"}}\n\n", failure->code);
}
