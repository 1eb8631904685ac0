/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Handlers of what needs the model's vocabulary only: /tokenize, /detokenize, /tokenizer_info. The answers hold llama.cpp's and vLLM's
 * names side by side, so that clients of both read them; evaluation harnesses use all three in the place of a tokenizer of their own.
 *
 * Thread: the connection's; the engine is not asked. Failure: an error object.
 */
#include <string.h>

#include "base/alloc.h"
#include "server/api/api_state.h"

/* A token's text; bytes that are no text as an array of numbers, as llama.cpp does. */
static void put_piece(const struct kn_model *model, int32_t id, struct kni_buf *b)
{
    const char *bytes = "";
    size_t n = 0;
    if (kn_model_token_bytes(model, id, &bytes, &n) != KN_OK)
        n = 0;
    kni_buf_format(b, "{\"id\":%d,\"piece\":", id);
    if (kni_render_is_text(bytes, n)) {
        kni_buf_text(b, "\"");
        kni_buf_json(b, bytes, n);
        kni_buf_text(b, "\"}");
        return;
    }
    for (size_t i = 0; i < n; i++)
        kni_buf_format(b, "%s%u", i ? "," : "[", (unsigned char)bytes[i]);
    kni_buf_text(b, "]}");
}

/* "text" of a token; null for none. */
static void put_token_text(const struct kn_model *model, int32_t id, struct kni_buf *b)
{
    const char *bytes;
    size_t n;
    if (id < 0 || kn_model_token_bytes(model, id, &bytes, &n) != KN_OK) {
        kni_buf_text(b, "null");
        return;
    }
    kni_buf_text(b, "\"");
    kni_buf_json(b, bytes, n);
    kni_buf_text(b, "\"");
}

void kni_api_tokenize(void *user, const struct kni_http_request *request, struct kni_http_reply *reply)
{
    const struct kni_api *api = user;
    struct kni_params_tokenize t;
    struct kni_params_error error;
    struct kni_buf b = {0};
    struct kni_watch watch;
    const struct kni_params_limits limits = kni_watch_begin(&watch, api, request);
    enum kn_status s = kni_params_parse_tokenize(&t, api->model, &limits, request->body, request->n_body, &error);
    if (s != KN_OK) {
        kni_watch_answer(reply, s, &watch, &error);
        kni_free(t.prompt.tokens);
        return;
    }
    kni_buf_format(&b, "{\"count\":%u,\"max_model_len\":%u,\"tokens\":[", t.prompt.n_tokens, api->limits.n_ctx);
    for (uint32_t i = 0; i < t.prompt.n_tokens && !b.failed; i++) {
        kni_buf_text(&b, i ? "," : "");
        if (t.with_pieces)
            put_piece(api->model, t.prompt.tokens[i], &b);
        else
            kni_buf_format(&b, "%d", t.prompt.tokens[i]);
    }
    kni_buf_text(&b, "]");
    for (uint32_t i = 0; i < t.prompt.n_tokens && t.with_strings && !b.failed; i++) {
        kni_buf_text(&b, i ? "," : ",\"token_strs\":[");
        put_token_text(api->model, t.prompt.tokens[i], &b);
    }
    kni_buf_text(&b, !t.with_strings ? "}" : t.prompt.n_tokens ? "]}" : ",\"token_strs\":[]}");
    kni_free(t.prompt.tokens);
    kni_api_answer_body(reply, &b);
}

void kni_api_detokenize(void *user, const struct kni_http_request *request, struct kni_http_reply *reply)
{
    static const char *const names[] = {"{\"content\":\"", "\",\"prompt\":\"", "\",\"text\":\""}; /* llama.cpp's, vLLM's, SGLang's */
    const struct kni_api *api = user;
    struct kni_params_detokenize d;
    struct kni_params_error error;
    struct kni_buf b = {0};
    struct kni_watch watch;
    const struct kni_params_limits limits = kni_watch_begin(&watch, api, request);
    enum kn_status s = kni_params_parse_detokenize(&d, api->model, &limits, request->body, request->n_body, &error);
    if (s != KN_OK) {
        kni_watch_answer(reply, s, &watch, &error);
        return;
    }
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        kni_buf_text(&b, names[i]);
        kni_buf_json(&b, d.text, d.n_text);
    }
    kni_buf_text(&b, "\"}");
    kni_free(d.text);
    kni_api_answer_body(reply, &b);
}

void kni_api_tokenizer_info(void *user, const struct kni_http_request *request, struct kni_http_reply *reply)
{
    const struct kni_api *api = user;
    const struct kn_model_info *info = kn_model_info(api->model);
    struct kni_buf b = {0};
    (void)request;
    kni_buf_text(&b, "{\"tokenizer_class\":\"");
    kni_buf_json(&b, info->tokenizer, strlen(info->tokenizer));
    kni_buf_format(&b, "\",\"model_max_length\":%u,\"vocab_size\":%u,\"bos_token\":", api->limits.n_ctx, info->n_vocab);
    put_token_text(api->model, info->bos, &b);
    kni_buf_text(&b, ",\"eos_token\":");
    put_token_text(api->model, info->eos >= 0 ? info->eos : info->eot, &b);
    kni_buf_text(&b, "}");
    kni_api_answer_body(reply, &b);
}
