/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Fields that say how to generate. Three kinds:
 *
 *     ours       range-checked numbers, flags, stop strings
 *     not ours   refused by name unless neutral: null, 0, false, "", "none", [], {} or what the table says
 *     the rest   ignored: unknown, or without influence on the answer (user, metadata, store, ...)
 *
 * jansson has checked the JSON; numbers are finite (it refuses what does not fit a double or 64 bits).
 */
#include <stdio.h>
#include <string.h>
#include <sys/random.h>

#include "base/alloc.h"
#include "server/params_reader.h"

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

bool kni_params_number(struct kni_params_reader *r, const char *name, double low, double high, double *out)
{
    const json_t *v = kni_params_get(r, name);
    if (!v)
        return r->status == KN_OK;
    if (!json_is_number(v))
        return kni_params_fail(r, KN_E_FORMAT, NULL, name, "%s is %s: it must be a number", name, kni_params_type(v));
    double x = json_number_value(v);
    if (!(x >= low && x <= high))
        return kni_params_fail(r, KN_E_ARG, NULL, name, "%s is %g: it must be from %g to %g", name, x, low, high);
    *out = x;
    return r->status == KN_OK;
}

bool kni_params_integer(struct kni_params_reader *r, const char *name, int64_t low, int64_t high, int64_t *out, bool *given)
{
    const json_t *v = kni_params_get(r, name);
    if (given)
        *given = v != NULL;
    if (!v)
        return r->status == KN_OK;
    if (!json_is_integer(v))
        return kni_params_fail(r, KN_E_FORMAT, NULL, name, "%s is %s: it must be an integer, written without point or exponent", name,
                               kni_params_type(v));
    json_int_t x = json_integer_value(v);
    if (x < low || x > high)
        return kni_params_fail(r, KN_E_ARG, NULL, name, "%s is %lld: it must be from %lld to %lld", name, (long long)x, (long long)low, (long long)high);
    *out = x;
    return r->status == KN_OK;
}

/* What we do not have, and the value besides the general ones that leaves the answer as it is. */
static const struct { const char *name, *text; int one; } not_ours[] = {
    {"presence_penalty", NULL, 0},   {"frequency_penalty", NULL, 0}, {"logit_bias", NULL, 0},       {"tools", NULL, 0},
    {"tool_choice", "auto", 0},      {"functions", NULL, 0},         {"function_call", "auto", 0},  {"audio", NULL, 0},
    {"suffix", NULL, 0},             {"web_search_options", NULL, 0}, {"n_predict", NULL, 0},
    /* vLLM's and llama.cpp's */
    {"grammar", NULL, 0},            {"json_schema", NULL, 0},       {"guided_json", NULL, 0},      {"guided_regex", NULL, 0},
    {"guided_choice", NULL, 0},      {"guided_grammar", NULL, 0},    {"structured_outputs", NULL, 0}, {"min_tokens", NULL, 0},
    {"stop_token_ids", NULL, 0},     {"bad_words", NULL, 0},         {"use_beam_search", NULL, 0},  {"length_penalty", NULL, 1},
    {"prompt_logprobs", NULL, 0},    {"typical_p", NULL, 1},         {"mirostat", NULL, 0},         {"dry_multiplier", NULL, 0},
    {"xtc_probability", NULL, 0},    {"dynatemp_range", NULL, 0},    {"chat_template", NULL, 0},    {"chat_template_kwargs", NULL, 0},
    {"continue_final_message", NULL, 0}, {"documents", NULL, 0},     {"include_stop_str_in_output", NULL, 0},
};

static bool neutral(const json_t *v, const char *text, int one)
{
    switch (json_typeof(v)) {
    case JSON_OBJECT: return !json_object_size(v);
    case JSON_ARRAY: return !json_array_size(v);
    case JSON_STRING: return !json_string_length(v) || !strcmp(json_string_value(v), "none") || (text && !strcmp(json_string_value(v), text));
    case JSON_INTEGER: case JSON_REAL: return json_number_value(v) == 0 || (one && json_number_value(v) == 1);
    case JSON_TRUE: return one;
    case JSON_FALSE: return !one;
    case JSON_NULL: break;
    }
    return true;
}

static bool refuse_what_is_not_ours(struct kni_params_reader *r)
{
    for (size_t i = 0; i < sizeof not_ours / sizeof *not_ours; i++) {
        const json_t *v = kni_params_get(r, not_ours[i].name);
        if (v && !neutral(v, not_ours[i].text, not_ours[i].one))
            return kni_params_fail(r, KN_E_UNSUPPORTED, "unsupported_parameter", not_ours[i].name, "%s is not supported by this server: leave it away",
                                   not_ours[i].name);
    }
    const json_t *format = kni_params_get(r, "response_format"), *type = json_object_get(format, "type");
    if (format && (!json_is_object(format) || (json_object_size(format) && (!json_is_string(type) || strcmp(json_string_value(type), "text")))))
        return kni_params_fail(r, KN_E_UNSUPPORTED, "unsupported_parameter", "response_format",
                               "response_format is not supported but for {\"type\": \"text\"}: leave it away");
    const json_t *modes = kni_params_get(r, "modalities"), *mode = json_array_get(modes, 0);
    if (modes && (!json_is_array(modes) || json_array_size(modes) > 1 || (mode && (!json_is_string(mode) || strcmp(json_string_value(mode), "text")))))
        return kni_params_fail(r, KN_E_UNSUPPORTED, "unsupported_parameter", "modalities", "modalities other than [\"text\"] are not supported");
    return true;
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
    if (!kni_params_integer(r, "seed", INT64_MIN, INT64_MAX, &seed, &out->seed_given))
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
    if (!kni_params_number(r, "repetition_penalty", 0, 10, &penalty) || !kni_params_number(r, "repeat_penalty", 0, 10, &penalty) ||
        !kni_params_integer(r, "repeat_last_n", -1, INT32_MAX, &last, NULL))
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
    if (!kni_params_number(r, "temperature", 0, 2, &temperature) || !kni_params_number(r, "top_p", 0, 1, &top_p) ||
        !kni_params_number(r, "min_p", 0, 1, &min_p) || !kni_params_integer(r, "top_k", -1, INT32_MAX, &top_k, NULL) || !take_penalty(r, s))
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
    return true;
}

static bool take_logprobs(struct kni_params_reader *r, struct kni_params *out)
{
    int64_t top = 0;
    bool given;
    if (!out->chat) {
        if (!kni_params_integer(r, "logprobs", 0, KNI_CALL_MAX_TOP, &top, &out->logprobs) || !kni_params_bool(r, "echo", &out->echo))
            return false;
        if (out->logprobs && out->echo)
            return kni_params_fail(r, KN_E_UNSUPPORTED, "unsupported_parameter", "echo", "echo together with logprobs is not supported: leave one away");
    } else {
        if (!kni_params_bool(r, "logprobs", &out->logprobs) || !kni_params_integer(r, "top_logprobs", 0, KNI_CALL_MAX_TOP, &top, &given))
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
    if (!kni_params_integer(r, "n", 1, r->limits->max_choices, &n, NULL))
        return false;
    best = n;
    if (!kni_params_integer(r, "best_of", 1, INT32_MAX, &best, &given))
        return false;
    if (best != n)
        return kni_params_fail(r, KN_E_UNSUPPORTED, "unsupported_parameter", "best_of", "best_of is not supported but when equal to n: leave it away");
    out->n = (uint32_t)n;
    return true;
}

static bool take_extensions(struct kni_params_reader *r, struct kni_params *out)
{
    const json_t *salt = kni_params_get(r, "cache_salt");
    bool fetch = true, publish = true;
    if (salt && (!json_is_string(salt) || json_string_length(salt) > 256))
        return kni_params_fail(r, KN_E_FORMAT, NULL, "cache_salt", "cache_salt must be a string of at most 256 bytes");
    if (salt && json_string_length(salt)) {
        out->salt = kni_strdup(KNI_ALLOC_TAG_REQUEST, json_string_value(salt));
        if (!out->salt)
            return kni_params_fail_memory(r);
    }
    if (!kni_params_bool(r, "ignore_eos", &out->ignore_eos) || !kni_params_bool(r, "kv_fetch", &fetch) || !kni_params_bool(r, "kv_publish", &publish))
        return false;
    out->no_fetch = !fetch;
    out->no_publish = !publish;
    return true;
}

bool kni_params_fields(struct kni_params_reader *r, struct kni_params *out)
{
    return refuse_what_is_not_ours(r) && take_stream(r, out) && take_choices(r, out) && take_sampler(r, out) && take_stops(r, out) &&
           take_logprobs(r, out) && take_extensions(r, out);
}
