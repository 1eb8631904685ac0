/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Fields that say how to generate. params_table.c says of each what becomes of it:
 *
 *     done       range-checked numbers, flags, stop strings: read here, by name
 *     refused    by kni_params_members, before anything is read
 *     ignored    and so is what nobody knows
 *
 * jansson has checked the JSON; numbers are finite (it refuses what does not fit a double or 64 bits).
 */
#include <stdio.h>
#include <string.h>
#include <sys/random.h>

#include "base/alloc.h"
#include "server/api/params_reader.h"

const char *kni_params_type(const json_t *value)
{
    switch (json_typeof(value)) {
    case JSON_OBJECT: return "an object";
    case JSON_ARRAY: return "an array";
    case JSON_STRING: return "a string";
    case JSON_INTEGER: return "an integer";
    case JSON_REAL: return "a number with a fraction or exponent";
    case JSON_TRUE: case JSON_FALSE: return "a boolean";
    case JSON_NULL: break;
    }
    return "null";
}

const json_t *kni_params_get(const struct kni_params_reader *r, const char *name)
{
    const json_t *v = json_object_get(r->root, name);
    return json_is_null(v) ? NULL : v;
}

bool kni_params_bool(struct kni_params_reader *r, const char *name, bool *out)
{
    const json_t *v = kni_params_get(r, name);
    if (v && !json_is_boolean(v))
        return kni_params_fail(r, KN_E_FORMAT, NULL, name, "%s is %s: it must be true or false", name, kni_params_type(v));
    if (v)
        *out = json_is_true(v);
    return r->status == KN_OK;
}

bool kni_params_fail_range(struct kni_params_reader *r, enum kn_status status, const struct kni_field *f, const char *what)
{
    char range[96];
    kni_field_range(f, r->limits->max_choices, range, sizeof range);
    return kni_params_fail(r, status, NULL, f->name, "%s is %s: it must be %s%s", f->name, what, range,
                           f->kind == KNI_FIELD_KIND_INTEGER && status == KN_E_FORMAT ? ", written without point or exponent" : "");
}

bool kni_params_number(struct kni_params_reader *r, const char *name, double *out)
{
    const struct kni_field *f = kni_field_find("", name);
    const json_t *v = kni_params_get(r, name);
    char text[32];
    if (!v)
        return r->status == KN_OK;
    if (!json_is_number(v))
        return kni_params_fail_range(r, KN_E_FORMAT, f, kni_params_type(v));
    double x = json_number_value(v);
    snprintf(text, sizeof text, "%g", x);
    if (!(x >= (double)f->low && x <= (double)f->high))
        return kni_params_fail_range(r, KN_E_ARG, f, text);
    *out = x;
    return r->status == KN_OK;
}

bool kni_params_integer(struct kni_params_reader *r, const char *name, int64_t *out, bool *given)
{
    const struct kni_field *f = kni_field_find("", name);
    const json_t *v = kni_params_get(r, name);
    const int64_t most = r->limits->max_choices;
    char text[32];
    if (given)
        *given = v != NULL;
    if (!v)
        return r->status == KN_OK;
    if (!json_is_integer(v))
        return kni_params_fail_range(r, KN_E_FORMAT, f, kni_params_type(v));
    json_int_t x = json_integer_value(v);
    snprintf(text, sizeof text, "%lld", (long long)x);
    if (x < f->low || x > f->high || (!strcmp(name, "n") && x > most))
        return kni_params_fail_range(r, KN_E_ARG, f, text);
    *out = x;
    return r->status == KN_OK;
}

/* Whether text is one of those in list, which are separated by blanks. */
static bool is_listed(const char *text, const char *list)
{
    const size_t n = strlen(text);
    for (const char *at = list; at && n && !strchr(text, ' '); at = strchr(at, ' ')) {
        at += *at == ' ';
        if (!strncmp(at, text, n) && (at[n] == ' ' || !at[n]))
            return true;
    }
    return false;
}

/* The two whose neutral value is not a plain one. */
static bool is_plain_text(const char *name, const json_t *v)
{
    const json_t *only = json_array_get(v, 0), *type = json_object_get(v, "type");
    if (!strcmp(name, "modalities"))
        return json_array_size(v) == 1 && json_is_string(only) && !strcmp(json_string_value(only), "text");
    return !strcmp(name, "response_format") && json_is_string(type) && !strcmp(json_string_value(type), "text");
}

static bool is_neutral(const struct kni_field *f, const json_t *v)
{
    const double x = json_number_value(v);
    switch (json_typeof(v)) {
    case JSON_OBJECT: return (f->neutral & KNI_NEUTRAL_OBJECT && !json_object_size(v)) || is_plain_text(f->name, v);
    case JSON_ARRAY: return (f->neutral & KNI_NEUTRAL_LIST && !json_array_size(v)) || is_plain_text(f->name, v);
    case JSON_STRING:
        return json_string_length(v) ? is_listed(json_string_value(v), f->neutral_texts) : (f->neutral & KNI_NEUTRAL_TEXT) != 0;
    case JSON_INTEGER: case JSON_REAL:
        return (f->neutral & KNI_NEUTRAL_ZERO && x == 0) || (f->neutral & KNI_NEUTRAL_ONE && x == 1) || (f->neutral & KNI_NEUTRAL_MINUS && x == -1);
    case JSON_TRUE: return (f->neutral & KNI_NEUTRAL_TRUE) != 0;
    case JSON_FALSE: return (f->neutral & KNI_NEUTRAL_FALSE) != 0;
    case JSON_NULL: break;
    }
    return true;
}

bool kni_params_members(struct kni_params_reader *r, const char *group, const char *path, const json_t *object)
{
    const char *name;
    json_t *v;
    json_object_foreach((json_t *)(uintptr_t)object, name, v) {
        const struct kni_field *f = kni_field_find(group, name);
        char param[sizeof r->error->param];
        if (!f || f->rules[r->route] != 'r' || is_neutral(f, v))
            continue;
        snprintf(param, sizeof param, "%s%s", path, name);
        return kni_params_fail(r, KN_E_UNSUPPORTED, "unsupported_parameter", param, "%s is not supported by this server's %s: leave it away%s%s%s",
                               param, kni_params_route_name(r->route), f->note ? " (" : "", f->note ? f->note : "", f->note ? ")" : "");
    }
    return r->status == KN_OK;
}

bool kni_params_model(struct kni_params_reader *r)
{
    const json_t *v = kni_params_get(r, "model");
    if (!v)
        return r->status == KN_OK;
    if (!json_is_string(v))
        return kni_params_fail(r, KN_E_FORMAT, NULL, "model", "model is %s: it must be a string", kni_params_type(v));
    if (strcmp(json_string_value(v), r->limits->model_name))
        return kni_params_fail(r, KN_E_ARG, "model_not_found", "model", "there is no model \"%.100s\" here: this server has \"%.100s\"; leave model "
                               "away or name that (GET /v1/models)", json_string_value(v), r->limits->model_name);
    return r->status == KN_OK;
}

static bool add_stop(struct kni_params_reader *r, struct kni_params *out, const json_t *v)
{
    if (!json_is_string(v))
        return kni_params_fail(r, KN_E_FORMAT, NULL, "stop", "stop holds %s: it must be a string or an array of strings", kni_params_type(v));
    size_t n = json_string_length(v);
    if (!n || n > KNI_PARAMS_MAX_STOP_BYTES)
        return kni_params_fail(r, KN_E_ARG, NULL, "stop", "a stop string has %zu bytes: it must have 1 to %u", n, KNI_PARAMS_MAX_STOP_BYTES);
    char *text = kni_strdup(KNI_ALLOC_TAG_REQUEST, json_string_value(v));
    if (!text)
        return kni_params_fail_memory(r);
    out->stops[out->n_stops++] = text;
    return true;
}

static bool take_stops(struct kni_params_reader *r, struct kni_params *out)
{
    const json_t *v = kni_params_get(r, "stop");
    size_t n = json_array_size(v);
    if (!v)
        return true;
    if (n > KNI_PARAMS_MAX_STOPS)
        return kni_params_fail(r, KN_E_ARG, NULL, "stop", "stop has %zu strings: at most %u are taken", n, KNI_PARAMS_MAX_STOPS);
    if (!json_is_array(v))
        return add_stop(r, out, v);
    for (size_t i = 0; i < n; i++)
        if (!add_stop(r, out, json_array_get(v, i)))
            return false;
    return true;
}

static bool draw_seed(struct kni_params_reader *r, struct kni_params *out)
{
    int64_t seed = 0;
    if (!kni_params_integer(r, "seed", &seed, &out->seed_given))
        return false;
    out->sampler.seed = (uint64_t)seed;
    if (!out->seed_given && getrandom(&out->sampler.seed, sizeof out->sampler.seed, 0) != (ssize_t)sizeof out->sampler.seed)
        return kni_params_fail(r, KN_E_IO, NULL, "seed", "the system gave no random seed: send a seed of your own");
    return true;
}

static bool take_penalty(struct kni_params_reader *r, struct kn_sampler_opts *s)
{
    double penalty = 1;
    int64_t last = 64;
    if (!kni_params_number(r, "repetition_penalty", &penalty) || !kni_params_number(r, "repeat_penalty", &penalty) ||
        !kni_params_integer(r, "repeat_last_n", &last, NULL))
        return false;
    if (last < 0 || last > r->limits->n_ctx) /* llama.cpp's -1: the whole context */
        last = r->limits->n_ctx;
    last = last < UINT16_MAX ? last : UINT16_MAX; /* the sampler's most */
    s->repeat_penalty = last ? (float)penalty : 1.0f; /* and its 0: off */
    s->repeat_last = (uint32_t)last;
    return true;
}

static bool take_sampler(struct kni_params_reader *r, struct kni_params *out)
{
    struct kn_sampler_opts *s = &out->sampler;
    double temperature = 1, top_p = 1, min_p = 0;
    int64_t top_k = 0;
    if (!kni_params_number(r, "temperature", &temperature) || !kni_params_number(r, "top_p", &top_p) ||
        !kni_params_number(r, "min_p", &min_p) || !kni_params_integer(r, "top_k", &top_k, NULL) || !take_penalty(r, s))
        return false;
    s->temperature = (float)temperature;
    s->top_p = top_p < 1e-6 ? 1e-6f : (float)top_p; /* 0 would be "off" to the sampler; here it means the likeliest only */
    s->min_p = (float)min_p;
    s->top_k = top_k < 0 ? 0 : (uint32_t)top_k; /* vLLM's -1: off */
    return draw_seed(r, out);
}

static bool take_stream(struct kni_params_reader *r, struct kni_params *out)
{
    if (!kni_params_bool(r, "stream", &out->stream))
        return false;
    const json_t *v = kni_params_get(r, "stream_options"), *usage = json_object_get(v, "include_usage");
    if (!v)
        return true;
    if (!json_is_object(v))
        return kni_params_fail(r, KN_E_FORMAT, NULL, "stream_options", "stream_options is %s: it must be an object", kni_params_type(v));
    if (!out->stream)
        return kni_params_fail(r, KN_E_ARG, NULL, "stream_options", "stream_options is given without stream: set stream to true or leave it away");
    if (usage && !json_is_boolean(usage) && !json_is_null(usage))
        return kni_params_fail(r, KN_E_FORMAT, NULL, "stream_options.include_usage", "stream_options.include_usage is %s: it must be true or false",
                               kni_params_type(usage));
    out->include_usage = json_is_true(usage);
    return kni_params_members(r, "stream_options.", "stream_options.", v);
}

bool kni_params_fail_logprobs(struct kni_params_reader *r, enum kn_status status, const char *what)
{
    if (r->route == KNI_PARAMS_ROUTE_CHAT)
        return kni_params_fail(r, status, NULL, "logprobs", "logprobs is %s: it must be true or false; top_logprobs says how many", what);
    return kni_params_fail(r, status, NULL, "logprobs", "logprobs is %s: it must be an integer from 0 to %u, the alternatives of each token", what,
                           KNI_CALL_MAX_TOP);
}

/* Completions: a number of alternatives. Chats: a flag, and the number beside it. */
static bool take_logprobs(struct kni_params_reader *r, struct kni_params *out)
{
    const json_t *v = kni_params_get(r, "logprobs");
    int64_t top = 0;
    bool given;
    if (!out->chat) {
        char text[32];
        snprintf(text, sizeof text, "%lld", (long long)json_integer_value(v));
        if (v && !json_is_integer(v))
            return kni_params_fail_logprobs(r, KN_E_FORMAT, kni_params_type(v));
        if (json_integer_value(v) < 0 || json_integer_value(v) > KNI_CALL_MAX_TOP)
            return kni_params_fail_logprobs(r, KN_E_ARG, text);
        if (!kni_params_bool(r, "echo", &out->echo))
            return false;
        out->logprobs = v != NULL;
        top = json_integer_value(v);
    } else {
        if (v && !json_is_boolean(v))
            return kni_params_fail_logprobs(r, KN_E_FORMAT, kni_params_type(v));
        out->logprobs = json_is_true(v);
        if (!kni_params_integer(r, "top_logprobs", &top, &given))
            return false;
        if (top && !out->logprobs)
            return kni_params_fail(r, KN_E_ARG, NULL, "top_logprobs", "top_logprobs is given without logprobs: set logprobs to true");
    }
    out->n_top = (uint32_t)top;
    return true;
}

static bool take_choices(struct kni_params_reader *r, struct kni_params *out)
{
    int64_t n = 1, best;
    bool given;
    if (!kni_params_integer(r, "n", &n, NULL))
        return false;
    best = n;
    if (!kni_params_integer(r, "best_of", &best, &given))
        return false;
    if (best != n)
        return kni_params_fail(r, KN_E_UNSUPPORTED, "unsupported_parameter", "best_of", "best_of is not supported but when equal to n: leave it away");
    out->n = (uint32_t)n;
    return true;
}

/* The first of its names that is given. wanted 0: to the context's end; but where 0 is what was given, with echo: no answer at all. */
static bool take_max_tokens(struct kni_params_reader *r, struct kni_params *out)
{
    static const char *const names[] = {"max_completion_tokens", "n_predict", "max_tokens"};
    int64_t wanted = out->chat ? 0 : 16;
    bool found = false;
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        const json_t *v = kni_params_get(r, names[i]);
        const bool none = json_is_integer(v) && !json_integer_value(v);
        int64_t n = 0;
        if (none && !out->echo)
            return kni_params_fail(r, KN_E_ARG, NULL, names[i], "%s is 0: it must be an integer from 1 to %d%s", names[i], INT32_MAX,
                                   out->chat ? "" : ", or 0 with echo, which answers with the prompt alone");
        if (!none && !kni_params_integer(r, names[i], &n, NULL))
            return false;
        if (v && !found) {
            wanted = n < 0 ? 0 : n;
            out->no_answer = none;
        }
        found = found || v;
    }
    out->max_tokens = (uint32_t)wanted;
    return true;
}

static bool take_extensions(struct kni_params_reader *r, struct kni_params *out)
{
    const json_t *salt = kni_params_get(r, "cache_salt");
    bool fetch = true, publish = true, bos = true;
    if (salt && (!json_is_string(salt) || json_string_length(salt) > 256))
        return kni_params_fail(r, KN_E_FORMAT, NULL, "cache_salt", "cache_salt must be a string of at most 256 bytes");
    if (salt && json_string_length(salt)) {
        out->salt = kni_strdup(KNI_ALLOC_TAG_REQUEST, json_string_value(salt));
        if (!out->salt)
            return kni_params_fail_memory(r);
    }
    const json_t *quality = kni_params_get(r, "kv_quality");
    out->kv_quality = kn_kv_quality_from_name(json_string_value(quality));
    if (quality && !out->kv_quality)
        return kni_params_fail(r, KN_E_FORMAT, NULL, "kv_quality", "kv_quality must be \"exact\", \"fine\", \"tiles\", \"medium\", \"small\" or \"any\"");
    if (!kni_params_bool(r, "ignore_eos", &out->ignore_eos) || !kni_params_bool(r, "kv_fetch", &fetch) ||
        !kni_params_bool(r, "kv_publish", &publish) || !kni_params_bool(r, "no_stop_trim", &out->include_stop) ||
        !kni_params_bool(r, "include_stop_str_in_output", &out->include_stop) || (!out->chat && !kni_params_bool(r, "add_special_tokens", &bos)))
        return false;
    out->no_fetch = !fetch;
    out->no_publish = !publish;
    r->no_bos = !bos;
    return true;
}

bool kni_params_fields(struct kni_params_reader *r, struct kni_params *out)
{
    return kni_params_members(r, "", "", r->root) && kni_params_model(r) && take_stream(r, out) && take_choices(r, out) && take_sampler(r, out) &&
           take_stops(r, out) && take_logprobs(r, out) && take_extensions(r, out) && take_max_tokens(r, out);
}
