/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Bodies in, parameters out. Before jansson sees a body, one pass over it bounds how deep and how long the parse can get: jansson
 * recurses once a level (connection threads have small stacks) and takes some 60 bytes for a value of two.
 *
 *     body -> depth <= 64, values <= 65,536 + 64 prompts' ids -> jansson (no duplicate names, no NUL) -> object -> fields -> prompts
 *
 * Pure functions; any thread. Failure: one error, the first met, and nothing left allocated after fini.
 */
#include "server/params_reader.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "base/alloc.h"

enum { MAX_DEPTH = 64, MAX_VALUES = 1 << 20, MAX_TOKENIZE_BYTES = 1 << 20 };

bool kni_params_fail(struct kni_params_reader *r, enum kn_status status, const char *code, const char *param, const char *format, ...)
{
    struct kni_params_error *e = r->error;
    va_list args;
    if (r->status != KN_OK)
        return false;
    r->status = status;
    e->status = code && !strcmp(code, "model_not_found") ? 404 : status == KN_E_NOMEM ? 503 : status == KN_E_IO ? 500 : 400;
    e->code = code;
    snprintf(e->param, sizeof e->param, "%s", param ? param : "");
    va_start(args, format);
    vsnprintf(e->text, sizeof e->text, format, args);
    va_end(args);
    return false;
}

bool kni_params_fail_memory(struct kni_params_reader *r)
{
    return kni_params_fail(r, KN_E_NOMEM, NULL, NULL, "out of memory for this request: send it again later, or make it smaller");
}

/* Depth and number of values outside of strings. Bytes that are no JSON are left to the parser. */
static bool guard(struct kni_params_reader *r, const char *body, size_t n_body)
{
    size_t depth = 0, n_values = 0, most = 65536u + (size_t)KNI_PARAMS_MAX_PROMPTS * r->limits->n_ctx;
    bool string = false;
    most = most < MAX_VALUES ? most : MAX_VALUES;
    for (size_t i = 0; i < n_body; i++) {
        char c = body[i];
        if (string) {
            if (c == '\\')
                i++;
            string = c != '"';
            continue;
        }
        string = c == '"';
        n_values += c == ',' || c == '[' || c == '{';
        if (c == '[' || c == '{')
            depth++;
        else if ((c == ']' || c == '}') && depth)
            depth--;
        if (depth > MAX_DEPTH)
            return kni_params_fail(r, KN_E_FORMAT, "json_too_deep", NULL, "the body's JSON is nested deeper than %d levels at byte %zu: send it flatter",
                                   MAX_DEPTH, i);
        if (n_values > most)
            return kni_params_fail(r, KN_E_FORMAT, "json_too_large", NULL, "the body's JSON holds more than %zu values: split the request", most);
    }
    return true;
}

bool kni_params_load(struct kni_params_reader *r, json_t **json, const char *body, size_t n_body)
{
    json_error_t e;
    *json = NULL;
    if (!n_body)
        return kni_params_fail(r, KN_E_FORMAT, NULL, NULL, "the body is empty: send a JSON object");
    if (!guard(r, body, n_body))
        return false;
    *json = json_loadb(body, n_body, JSON_REJECT_DUPLICATES, &e);
    if (!*json)
        return kni_params_fail(r, KN_E_FORMAT, "invalid_json", NULL, "the body is no JSON that we take: line %d, column %d (byte %d): %s", e.line,
                               e.column, e.position, e.text);
    if (!json_is_object(*json))
        return kni_params_fail(r, KN_E_FORMAT, NULL, NULL, "the body is %s: send a JSON object", kni_params_type(*json));
    r->root = *json;
    return true;
}

static bool take_model(struct kni_params_reader *r)
{
    const json_t *v = kni_params_get(r, "model");
    if (!v)
        return true;
    if (!json_is_string(v))
        return kni_params_fail(r, KN_E_FORMAT, NULL, "model", "model is %s: it must be a string", kni_params_type(v));
    if (strcmp(json_string_value(v), r->limits->model_name))
        return kni_params_fail(r, KN_E_ARG, "model_not_found", "model", "there is no model \"%.100s\" here: this server has \"%.100s\"; leave model away or "
                               "name that (GET /v1/models)", json_string_value(v), r->limits->model_name);
    return true;
}

/* max_tokens and, for chats, its newer name. 0: none given. */
static bool take_max_tokens(struct kni_params_reader *r, bool chat, uint32_t *out)
{
    int64_t n = chat ? 0 : 16;
    bool given = false;
    if (chat && !kni_params_integer(r, "max_completion_tokens", 1, INT32_MAX, &n, &given))
        return false;
    if (!given && !kni_params_integer(r, "max_tokens", 1, INT32_MAX, &n, &given))
        return false;
    *out = (uint32_t)n;
    return true;
}

enum kn_status kni_params_parse(struct kni_params *out, bool chat, const struct kn_model *model, const struct kni_params_limits *limits,
                                const char *body, size_t n_body, struct kni_params_error *error)
{
    struct kni_params_reader r = {.model = model, .limits = limits, .error = error};
    json_t *json;
    uint32_t wanted = 0;
    *out = (struct kni_params){.chat = chat};
    *error = (struct kni_params_error){0};
    if (kni_params_load(&r, &json, body, n_body) && take_model(&r) && kni_params_fields(&r, out) && take_max_tokens(&r, chat, &wanted))
        kni_params_prompts(&r, out, wanted);
    json_decref(json);
    return r.status;
}

void kni_params_fini(struct kni_params *params)
{
    for (uint32_t i = 0; i < params->n_prompts; i++) {
        kni_free(params->prompts[i].tokens);
        kni_free(params->prompts[i].text);
    }
    kni_free(params->prompts);
    for (uint32_t i = 0; i < params->n_stops; i++)
        kni_free(params->stops[i]);
    kni_free(params->salt);
    *params = (struct kni_params){0};
}

/* The text to tokenize and how; false when none of its fields is there. */
static bool find_text(struct kni_params_reader *r, const json_t **text, unsigned *flags)
{
    static const char *const names[] = {"content", "prompt", "text"};
    bool special = true, bos = false;
    const char *name = NULL;
    for (size_t i = 0; i < 3; i++) {
        const json_t *v = kni_params_get(r, names[i]);
        if (v && *text)
            return kni_params_fail(r, KN_E_ARG, NULL, names[i], "both %s and %s are given: give one text", name, names[i]);
        if (v) {
            *text = v;
            name = names[i];
            bos = i > 0; /* llama.cpp's form has none unless said, vLLM's has */
        }
    }
    if (!*text)
        return kni_params_fail(r, KN_E_ARG, NULL, "content", "there is no text to tokenize: give content (or prompt, or text) or messages");
    if (!json_is_string(*text))
        return kni_params_fail(r, KN_E_FORMAT, NULL, name, "%s is %s: it must be a string", name, kni_params_type(*text));
    if (!kni_params_bool(r, "add_special", &bos) || !kni_params_bool(r, "add_special_tokens", &bos) || !kni_params_bool(r, "parse_special", &special))
        return false;
    *flags = (special ? KN_TOKENIZE_SPECIAL : 0u) | (bos ? KN_TOKENIZE_BOS : 0u);
    return true;
}

enum kn_status kni_params_parse_tokenize(struct kni_params_tokenize *out, const struct kn_model *model, const struct kni_params_limits *limits,
                                         const char *body, size_t n_body, struct kni_params_error *error)
{
    struct kni_params_reader r = {.model = model, .limits = limits, .error = error, .any_length = true};
    json_t *json = NULL;
    const json_t *text = NULL;
    unsigned flags = 0;
    bool reply = true;
    *out = (struct kni_params_tokenize){0};
    *error = (struct kni_params_error){0};
    if (n_body > MAX_TOKENIZE_BYTES) {
        kni_params_fail(&r, KN_E_ARG, NULL, NULL, "the body has %zu bytes: at most %d are tokenized at once; split the text", n_body, MAX_TOKENIZE_BYTES);
        goto done;
    }
    if (!kni_params_load(&r, &json, body, n_body) || !take_model(&r) || !kni_params_bool(&r, "with_pieces", &out->with_pieces) ||
        !kni_params_bool(&r, "return_token_strs", &out->with_pieces) || !kni_params_bool(&r, "add_generation_prompt", &reply))
        goto done;
    if (kni_params_get(&r, "messages"))
        kni_params_messages(&r, reply, &out->prompt);
    else if (find_text(&r, &text, &flags))
        kni_params_tokens(&r, "content", json_string_value(text), json_string_length(text), flags, &out->prompt);
done:
    json_decref(json);
    return r.status;
}
