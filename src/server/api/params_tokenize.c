/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Bodies of /tokenize and /detokenize.
 *
 *     {"content", "add_special", "parse_special", "with_pieces"}        llama.cpp's: no BOS unless asked for
 *     {"prompt" | "text", "add_special_tokens", "return_token_strs"}    vLLM's and SGLang's: BOS unless refused
 *     {"messages", "add_generation_prompt", "continue_final_message", "return_token_strs"}    a chat, in the model's template
 *     {"tokens"}                                                        ids to text
 *
 * Pure; any thread. Failure: one error, the first met.
 */
#include <stdio.h>
#include <string.h>

#include "base/alloc.h"
#include "base/buf.h"
#include "server/api/params_reader.h"

enum { MAX_BYTES = 1 << 20, IDS_BETWEEN_STOPS = 1 << 14 };

/* The one text that is given; NULL: none is, or an error is filed. */
static const char *find_text(struct kni_params_reader *r)
{
    static const char *const names[] = {"content", "prompt", "text", "messages"};
    const char *found = NULL;
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        if (!kni_params_get(r, names[i]))
            continue;
        if (found) {
            kni_params_fail(r, KN_E_ARG, NULL, names[i], "both %s and %s are given: give one text", found, names[i]);
            return NULL;
        }
        found = names[i];
    }
    if (!found)
        kni_params_fail(r, KN_E_ARG, NULL, "content", "there is no text to tokenize: give content (or prompt, or text) or messages");
    return found;
}

/* A chat's template decides about control tokens and BOS. */
static bool check_chat(struct kni_params_reader *r)
{
    static const char *const names[] = {"add_special", "add_special_tokens"};
    bool flag = false, special = true;
    for (size_t i = 0; i < 2; i++)
        if (kni_params_bool(r, names[i], &flag) && flag)
            return kni_params_fail(r, KN_E_UNSUPPORTED, "unsupported_parameter", names[i], "%s: true is not supported with messages: the chat template "
                                   "says what comes first", names[i]);
    if (kni_params_bool(r, "parse_special", &special) && !special)
        return kni_params_fail(r, KN_E_UNSUPPORTED, "unsupported_parameter", "parse_special", "parse_special: false is not supported with messages: the "
                               "chat template's control tokens are always recognised, those in texts never");
    return r->status == KN_OK;
}

static bool take_text(struct kni_params_reader *r, const char *name, struct kni_params_prompt *out)
{
    const json_t *text = kni_params_get(r, name);
    bool reply, go_on = false;
    if (!kni_params_bool(r, "add_generation_prompt", &reply) || !kni_params_bool(r, "continue_final_message", &go_on))
        return false;
    if (go_on)
        return kni_params_fail(r, KN_E_UNSUPPORTED, "unsupported_parameter", "continue_final_message", "continue_final_message is for messages, and %s is a text: "
                               "leave it away, or send messages", name);
    bool special = true, bos = strcmp(name, "content") != 0; /* llama.cpp's form has none unless said, vLLM's has */
    if (!json_is_string(text))
        return kni_params_fail(r, KN_E_FORMAT, NULL, name, "%s is %s: it must be a string", name, kni_params_type(text));
    if (!kni_params_bool(r, "add_special", &bos) || !kni_params_bool(r, "add_special_tokens", &bos) || !kni_params_bool(r, "parse_special", &special))
        return false;
    unsigned flags = (special ? KN_TOKENIZE_SPECIAL : 0u) | (bos ? KN_TOKENIZE_BOS : 0u);
    return kni_params_tokens(r, name, json_string_value(text), json_string_length(text), flags, out);
}

static bool load(struct kni_params_reader *r, json_t **json, const char *body, size_t n_body)
{
    if (n_body > MAX_BYTES)
        return kni_params_fail(r, KN_E_ARG, NULL, NULL, "the body has %zu bytes: at most %d are taken at once; split the text", n_body, MAX_BYTES);
    return kni_params_load(r, json, body, n_body) && kni_params_members(r, "", "", r->root) && kni_params_model(r);
}

enum kn_status kni_params_parse_tokenize(struct kni_params_tokenize *out, const struct kn_model *model, const struct kni_params_limits *limits,
                                         const char *body, size_t n_body, struct kni_params_error *error)
{
    struct kni_params_reader r = {.model = model, .limits = limits, .error = error, .any_length = true, .route = KNI_PARAMS_ROUTE_TOKENIZE};
    json_t *json = NULL;
    const char *name = NULL;
    *out = (struct kni_params_tokenize){0};
    *error = (struct kni_params_error){0};
    if (load(&r, &json, body, n_body) && kni_params_bool(&r, "with_pieces", &out->with_pieces) &&
        kni_params_bool(&r, "return_token_strs", &out->with_strings))
        name = find_text(&r);
    if (name && strcmp(name, "messages"))
        take_text(&r, name, &out->prompt);
    else if (name && check_chat(&r))
        kni_params_messages(&r, false, &out->prompt);
    kni_params_unload(&r, json);
    return r.status;
}

/* The ids' text, kni_alloc'ed; not NUL-terminated: a token may hold any byte. */
static bool take_ids(struct kni_params_reader *r, bool skip_special, struct kni_params_detokenize *out)
{
    const json_t *list = kni_params_get(r, "tokens");
    const uint32_t n_vocab = kn_model_info(r->model)->n_vocab;
    struct kni_buf text = {0};
    bool ok = true;
    if (!json_is_array(list))
        return kni_params_fail(r, KN_E_FORMAT, NULL, "tokens", "tokens is %s: it must be an array of the model's token ids",
                               list ? kni_params_type(list) : "not there");
    for (size_t i = 0; i < json_array_size(list) && ok; i++) {
        const json_t *id = json_array_get(list, i);
        const json_int_t value = json_integer_value(id);
        const char *bytes;
        size_t n;
        char param[64];
        snprintf(param, sizeof param, "tokens[%zu]", i);
        if (i % IDS_BETWEEN_STOPS == 0 && r->limits->stop && r->limits->stop(r->limits->stop_user))
            ok = kni_params_fail_given_up(r);
        else if (!json_is_integer(id))
            ok = kni_params_fail(r, KN_E_FORMAT, NULL, param, "%s is %s: it must be an integer", param, kni_params_type(id));
        else if (value < 0 || value >= (json_int_t)n_vocab)
            ok = kni_params_fail(r, KN_E_ARG, NULL, param, "%s is %lld: the model's tokens are 0 to %u", param, (long long)value, n_vocab - 1);
        else if (!(skip_special && kn_model_token_is_special(r->model, (int32_t)value)) &&
                 kn_model_token_bytes(r->model, (int32_t)value, &bytes, &n) == KN_OK)
            kni_buf_add(&text, bytes, n);
    }
    ok = ok && (!text.failed || kni_params_fail_memory(r));
    if (ok) {
        kni_buf_add(&text, "", 1);
        out->text = kni_buf_take(&text, &out->n_text);
        ok = out->text || kni_params_fail_memory(r);
        out->n_text -= ok; /* the NUL */
    }
    kni_buf_fini(&text);
    return ok;
}

enum kn_status kni_params_parse_detokenize(struct kni_params_detokenize *out, const struct kn_model *model, const struct kni_params_limits *limits,
                                           const char *body, size_t n_body, struct kni_params_error *error)
{
    struct kni_params_reader r = {.model = model, .limits = limits, .error = error, .any_length = true, .route = KNI_PARAMS_ROUTE_DETOKENIZE};
    json_t *json = NULL;
    bool skip_special = false;
    *out = (struct kni_params_detokenize){0};
    *error = (struct kni_params_error){0};
    if (load(&r, &json, body, n_body) && kni_params_bool(&r, "skip_special_tokens", &skip_special))
        take_ids(&r, skip_special, out);
    kni_params_unload(&r, json);
    return r.status;
}
