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

enum { MAX_DEPTH = 64, MAX_VALUES = 1 << 20 };

bool kni_params_fail(struct kni_params_reader *r, enum kn_status status, const char *code, const char *param, const char *format, ...)
{
    struct kni_params_error *e = r->error;
    va_list args;
    if (r->status != KN_OK)
        return false;
    r->status = status;
    e->status = code && !strcmp(code, "model_not_found") ? 404 : status == KN_E_NOMEM || status == KN_E_CANCELLED ? 503 : status == KN_E_IO ? 500 : 400;
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
        return kni_params_fail_json(r, body, n_body, &e);
    if (!json_is_object(*json))
        return kni_params_fail(r, KN_E_FORMAT, NULL, NULL, "the body is %s: send a JSON object", kni_params_type(*json));
    r->root = *json;
    return true;
}

enum kn_status kni_params_parse(struct kni_params *out, bool chat, const struct kn_model *model, const struct kni_params_limits *limits,
                                const char *body, size_t n_body, struct kni_params_error *error)
{
    struct kni_params_reader r = {.model = model, .limits = limits, .error = error};
    json_t *json;
    r.route = chat ? KNI_PARAMS_ROUTE_CHAT : KNI_PARAMS_ROUTE_COMPLETIONS;
    *out = (struct kni_params){.chat = chat};
    *error = (struct kni_params_error){0};
    if (kni_params_load(&r, &json, body, n_body) && kni_params_fields(&r, out))
        kni_params_prompts(&r, out, out->max_tokens);
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
