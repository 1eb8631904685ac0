/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Bodies in, parameters out. Before jansson sees a body, one pass over it bounds how deep and how large the parse can get: jansson
 * recurses once a level (connection threads have small stacks) and takes some 250 bytes for an object of two.
 *
 *     body -> depth <= 64, values <= 65,536 + 64 prompts' ids, bytes <= what the budget has left
 *          -> without what nobody reads -> jansson (no duplicate names, no NUL) -> object -> fields -> prompts
 *
 * The tree lives until the prompts are made; what it may take is charged to the budget of all parses until then (params_json.h).
 *
 * Pure functions; any thread. Failure: one error, the first met, and nothing left allocated after fini.
 */
#include "server/api/params_reader.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "base/alloc.h"
#include "server/api/params_json.h"

enum { MAX_VALUES = 1 << 20, MAX_IGNORED_BYTES = 4096 /* of a tree: less is not worth a copy of the body */ };

bool kni_params_fail(struct kni_params_reader *r, enum kn_status status, const char *code, const char *param, const char *format, ...)
{
    struct kni_params_error *e = r->error;
    va_list args;
    if (r->status != KN_OK)
        return false;
    r->status = status;
    e->status = code && !strcmp(code, "model_not_found") ? 404 : code && !strcmp(code, "body_too_large") ? 413 : status == KN_E_NOMEM || status == KN_E_CANCELLED ? 503 : status == KN_E_IO ? 500 : 400;
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

/* Checks the body's depth, number of values and cost, takes the cost from the budget, and says whether a copy is to be pruned. */
static bool admit(struct kni_params_reader *r, const char *body, size_t n_body, bool *prune)
{
    struct kni_parse_budget *budget = r->limits->budget;
    struct kni_json_cost cost;
    uint64_t most = 65536u + (uint64_t)KNI_PARAMS_MAX_PROMPTS * r->limits->n_ctx;
    most = most < MAX_VALUES ? most : MAX_VALUES;
    kni_json_measure(&cost, r->route, body, n_body);
    if (cost.too_deep)
        return kni_params_fail(r, KN_E_FORMAT, "json_too_deep", NULL, "the body's JSON is nested deeper than %d levels at byte %zu: send it flatter",
                               (int)KNI_JSON_MAX_DEPTH, cost.too_deep - 1);
    if (cost.n_values > most)
        return kni_params_fail(r, KN_E_FORMAT, "json_too_large", NULL, "the body's JSON holds more than %llu values: split the request",
                               (unsigned long long)most);
    *prune = cost.ignored > MAX_IGNORED_BYTES;
    const uint64_t bytes = cost.bytes + (*prune ? n_body : cost.ignored);
    if (!budget)
        return true;
    if (bytes > budget->max)
        return kni_params_fail(r, KN_E_FULL, "body_too_large", NULL, "the body's JSON would take %llu bytes of memory, and this server has %llu for all requests "
                               "that are being read: split the request", (unsigned long long)bytes, (unsigned long long)budget->max);
    if (!kni_parse_budget_take(budget, bytes))
        return kni_params_fail(r, KN_E_NOMEM, "overloaded", NULL, "the requests that are being read leave too little memory for this one: send it again later");
    r->charged = bytes;
    return true;
}

bool kni_params_load(struct kni_params_reader *r, json_t **json, const char *body, size_t n_body)
{
    json_error_t e;
    bool prune = false;
    *json = NULL;
    if (!n_body)
        return kni_params_fail(r, KN_E_FORMAT, NULL, NULL, "the body is empty: send a JSON object");
    if (!admit(r, body, n_body, &prune))
        return false;
    char *copy = prune ? kni_alloc(KNI_ALLOC_TAG_REQUEST, n_body, 0) : NULL;
    if (prune && !copy)
        return kni_params_fail_memory(r);
    if (prune) {
        memcpy(copy, body, n_body);
        kni_json_prune(r->route, copy, n_body);
        body = copy;
    }
    *json = json_loadb(body, n_body, JSON_REJECT_DUPLICATES, &e);
    if (!*json)
        kni_params_fail_json(r, body, n_body, &e);
    else if (!json_is_object(*json))
        kni_params_fail(r, KN_E_FORMAT, NULL, NULL, "the body is %s: send a JSON object", kni_params_type(*json));
    kni_free(copy);
    r->root = *json;
    return r->status == KN_OK;
}

void kni_params_unload(struct kni_params_reader *r, json_t *json)
{
    json_decref(json);
    if (r->charged)
        kni_parse_budget_give(r->limits->budget, r->charged);
    r->charged = 0;
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
    kni_params_unload(&r, json);
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
