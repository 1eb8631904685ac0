/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Prompts to tokens, the same ones that `kinema run` makes of the same texts.
 *
 *     messages -> roles and texts checked -> chat template -> one text, and where in it the messages' own texts lie -> tokens
 *     prompt   -> text (control tokens recognised, BOS where the model wants it) or ids as they are
 *
 * Control tokens are not recognised in the messages' own texts, so that nobody can write another's turn; blanks and merges are those of the one text.
 * Work is linear in the body but for a logarithm, and ends once a prompt has more tokens than twice the context, or when limits->stop says that nobody
 * waits for it. Tokens are kni_alloc'ed: they are counted in a first pass whenever the guessed room was too small. Pure; any thread.
 */
#include <stdio.h>
#include <string.h>

#include "base/alloc.h"
#include "base/buf.h"
#include "server/api/params_reader.h"

bool kni_params_fail_context(struct kni_params_reader *r, const char *param, uint32_t n_tokens)
{
    const uint32_t n_ctx = r->limits->n_ctx;
    return n_tokens ? kni_params_fail(r, KN_E_CONTEXT, "context_length_exceeded", param, "the prompt has %u tokens, and the context takes %u with the answer "
                                      "in it: shorten the %s", n_tokens, n_ctx, param)
                    : kni_params_fail(r, KN_E_CONTEXT, "context_length_exceeded", param, "the prompt has more than twice the %u tokens that the context "
                                      "takes with the answer in it: shorten the %s", n_ctx, param);
}

bool kni_params_fail_given_up(struct kni_params_reader *r)
{
    return kni_params_fail(r, KN_E_CANCELLED, NULL, NULL, "the request was given up while its body was read: send it again later");
}

/* Up to twice the context is counted, so that an error can say how many tokens a prompt has; what is beyond is found out there. */
static bool take_tokens(struct kni_params_reader *r, const char *param, const char *text, size_t n, const struct kn_tokenize_opts *opts,
                        struct kni_params_prompt *out)
{
    struct kn_tokenize_opts o = *opts;
    o.size = sizeof o;
    o.max_ids = r->any_length ? 0 : 2 * (size_t)r->limits->n_ctx;
    o.stop = r->limits->stop;
    o.user = r->limits->stop_user;
    size_t room = n / 3 + 64, n_ids = 0;
    enum kn_status s = KN_E_ARG;
    if (o.max_ids && room > o.max_ids)
        room = o.max_ids;
    for (int pass = 0; pass < 2 && s == KN_E_ARG; pass++, room = n_ids) { /* KN_E_ARG: no room, n_ids says how much */
        size_t bytes;
        kni_free(out->tokens);
        out->tokens = kni_mul_size(room, sizeof *out->tokens, &bytes) ? kni_alloc(KNI_ALLOC_TAG_REQUEST, bytes, 0) : NULL;
        if (!out->tokens)
            return kni_params_fail_memory(r);
        n_ids = room;
        s = kn_model_tokenize_with(r->model, text, n, &o, out->tokens, &n_ids);
    }
    if (s == KN_E_NOMEM)
        return kni_params_fail_memory(r);
    if (s == KN_E_CONTEXT)
        return kni_params_fail_context(r, param, 0);
    if (s == KN_E_CANCELLED)
        return kni_params_fail_given_up(r);
    if (s != KN_OK || n_ids > INT32_MAX)
        return kni_params_fail(r, KN_E_ARG, NULL, param, "the text cannot be tokenized: %s", kn_status_message(s));
    out->n_tokens = (uint32_t)n_ids;
    return true;
}

bool kni_params_tokens(struct kni_params_reader *r, const char *param, const char *text, size_t n, unsigned flags, struct kni_params_prompt *out)
{
    return take_tokens(r, param, text, n, &(struct kn_tokenize_opts){.flags = flags}, out);
}

/* Messages in the model's template: NUL-terminated, kni_alloc'ed; texts[n_messages]: where theirs lie. NULL: an error is filed. */
static char *render(struct kni_params_reader *r, const struct kn_chat_message *m, size_t n_messages, unsigned flags, struct kn_text_range *texts, size_t *n)
{
    char *text = NULL;
    *n = 0;
    enum kn_status s = kn_model_chat_texts(r->model, m, n_messages, flags, texts, NULL, n); /* KN_E_ARG and its length, or refused for good */
    if (s == KN_E_ARG && *n) {
        size_t room = *n + 1;
        text = kni_alloc(KNI_ALLOC_TAG_REQUEST, room, 0);
        *n = room;
        s = text ? kn_model_chat_texts(r->model, m, n_messages, flags, texts, text, n) : KN_E_NOMEM;
    }
    if (s == KN_OK && text)
        return text;
    kni_free(text);
    if (s == KN_E_NOMEM)
        kni_params_fail_memory(r);
    else if (s == KN_E_UNSUPPORTED)
        kni_params_fail(r, KN_E_UNSUPPORTED, "unsupported_parameter", "messages", "this model has no chat template that we know: use /v1/completions, or start "
                        "the server with --chat-template");
    else
        kni_params_fail(r, KN_E_ARG, NULL, "messages", "the model's chat template (%s) does not take these roles in this order: user and assistant must "
                        "take turns, beginning with user, and a system message may be unknown to it", kn_model_info(r->model)->chat_template);
    return NULL;
}

/* The text of a message's content into *out (kni_alloc'ed). */
static bool take_content(struct kni_params_reader *r, size_t index, const char *role, const json_t *v, char **out)
{
    char param[96];
    struct kni_buf text = {0};
    size_t n = json_array_size(v);
    snprintf(param, sizeof param, "messages[%zu].content", index);
    if (!v || json_is_null(v)) {
        if (strcmp(role, "assistant"))
            return kni_params_fail(r, KN_E_FORMAT, NULL, param, "message %zu has no content: it must be a string or an array of text parts", index);
    } else if (json_is_string(v)) {
        kni_buf_text(&text, json_string_value(v));
    } else if (!json_is_array(v)) {
        return kni_params_fail(r, KN_E_FORMAT, NULL, param, "%s is %s: it must be a string or an array of text parts", param, kni_params_type(v));
    }
    for (size_t i = 0; i < n; i++) {
        const json_t *part = json_array_get(v, i), *type = json_object_get(part, "type"), *words = json_object_get(part, "text");
        if (json_is_string(type) && strcmp(json_string_value(type), "text")) {
            kni_buf_fini(&text);
            snprintf(param, sizeof param, "messages[%zu].content[%zu].type", index, i);
            return kni_params_fail(r, KN_E_UNSUPPORTED, "unsupported_content", param, "part %zu of message %zu is of type \"%.60s\": this server takes "
                                   "\"text\" only", i, index, json_string_value(type));
        }
        if (!json_is_string(type) || !json_is_string(words)) {
            kni_buf_fini(&text);
            snprintf(param, sizeof param, "messages[%zu].content[%zu]", index, i);
            return kni_params_fail(r, KN_E_FORMAT, NULL, param, "part %zu of message %zu must be {\"type\": \"text\", \"text\": STRING}", i, index);
        }
        if (i)
            kni_buf_text(&text, "\n");
        kni_buf_text(&text, json_string_value(words));
    }
    kni_buf_add(&text, "", 1); /* so that an empty text is one too */
    *out = kni_buf_take(&text, &n);
    return *out || kni_params_fail_memory(r);
}

/* The template's name of a role, static; NULL: an error is filed. */
static const char *take_role(struct kni_params_reader *r, size_t index, const json_t *message)
{
    static const char *const roles[][2] = {{"system", "system"}, {"developer", "system"}, {"user", "user"}, {"assistant", "assistant"}};
    const json_t *role = json_object_get(message, "role");
    char param[64];
    snprintf(param, sizeof param, "messages[%zu].role", index);
    if (!json_is_object(message)) {
        kni_params_fail(r, KN_E_FORMAT, NULL, "messages", "message %zu is %s: it must be an object with role and content", index, kni_params_type(message));
        return NULL;
    }
    if (!json_is_string(role)) {
        kni_params_fail(r, KN_E_FORMAT, NULL, param, "message %zu has no role: give system, developer, user or assistant", index);
        return NULL;
    }
    for (size_t i = 0; i < sizeof roles / sizeof *roles; i++)
        if (!strcmp(json_string_value(role), roles[i][0])) {
            snprintf(param, sizeof param, "messages[%zu].", index);
            return kni_params_members(r, "messages[].", param, message) ? roles[i][1] : NULL;
        }
    kni_params_fail(r, KN_E_ARG, NULL, param, "message %zu has the role \"%.60s\": this server takes system, developer, user and assistant", index,
                    json_string_value(role));
    return NULL;
}

/* Whether the reply's turn is opened, or the last message continued. */
static bool take_chat_flags(struct kni_params_reader *r, const json_t *messages, unsigned *flags)
{
    bool go_on = false, reply;
    if (!kni_params_bool(r, "continue_final_message", &go_on))
        return false;
    reply = !go_on;
    if (!kni_params_bool(r, "add_generation_prompt", &reply))
        return false;
    if (go_on && reply)
        return kni_params_fail(r, KN_E_ARG, NULL, "continue_final_message", "continue_final_message and add_generation_prompt are both true: the last message "
                               "is either continued or followed by a new one; leave one away");
    const json_t *last = json_array_get(messages, json_array_size(messages) - 1), *role = json_object_get(last, "role");
    if (go_on && (!json_is_string(role) || strcmp(json_string_value(role), "assistant")))
        return kni_params_fail(r, KN_E_ARG, NULL, "continue_final_message", "continue_final_message is true, but the last message is not the assistant's: add "
                               "the beginning of its answer, or leave the field away");
    if (go_on && (!json_object_get(last, "content") || json_is_null(json_object_get(last, "content"))))
        return kni_params_fail(r, KN_E_ARG, NULL, "continue_final_message", "continue_final_message is true, but the last message has no content: give it some");
    *flags = go_on ? KN_CHAT_CONTINUE : reply ? KN_CHAT_REPLY : 0;
    return true;
}

bool kni_params_messages(struct kni_params_reader *r, bool echo, struct kni_params_prompt *out)
{
    const json_t *list = kni_params_get(r, "messages");
    size_t n = json_array_size(list), n_text = 0, bytes;
    unsigned flags = 0;
    if (!list)
        return kni_params_fail(r, KN_E_FORMAT, NULL, "messages", "there are no messages: give an array of objects with role and content");
    if (!json_is_array(list) || !n)
        return kni_params_fail(r, KN_E_FORMAT, NULL, "messages", "messages is %s: it must be an array of at least one object with role and content",
                               json_is_array(list) ? "empty" : kni_params_type(list));
    struct kn_chat_message *m = kni_mul_size(n, sizeof *m, &bytes) ? kni_calloc(KNI_ALLOC_TAG_REQUEST, bytes, 0) : NULL;
    struct kn_text_range *texts = kni_mul_size(n, sizeof *texts, &bytes) ? kni_alloc(KNI_ALLOC_TAG_REQUEST, bytes, 0) : NULL;
    char *text = NULL;
    bool ok = (m && texts) || kni_params_fail_memory(r);
    for (size_t i = 0; i < n && ok; i++) {
        const json_t *message = json_array_get(list, i);
        char *content = NULL;
        m[i].role = take_role(r, i, message);
        ok = m[i].role && take_content(r, i, m[i].role, json_object_get(message, "content"), &content);
        m[i].text = content;
    }
    if (ok && take_chat_flags(r, list, &flags))
        text = render(r, m, n, flags, texts, &n_text);
    ok = text && take_tokens(r, "messages", text, n_text, &(struct kn_tokenize_opts){.flags = KN_TOKENIZE_SPECIAL, .plain = texts, .n_plain = n}, out);
    if (ok && echo && !strcmp(m[n - 1].role, "assistant")) { /* as vLLM: only what the answer's own role has said */
        out->text = (char *)(uintptr_t)m[n - 1].text;
        out->n_text = strlen(out->text);
        m[n - 1].text = NULL;
    }
    for (size_t i = 0; i < n && m; i++)
        kni_free((void *)(uintptr_t)m[i].text);
    kni_free(m);
    kni_free(texts);
    kni_free(text);
    return ok;
}

/* The text that ids stand for; NULL: out of memory. */
static char *text_of(const struct kn_model *model, const int32_t *ids, uint32_t n_ids, size_t *n_text)
{
    struct kni_buf text = {0};
    const char *bytes;
    size_t n;
    for (uint32_t i = 0; i < n_ids; i++)
        if (kn_model_token_bytes(model, ids[i], &bytes, &n) == KN_OK)
            kni_buf_add(&text, bytes, n);
    *n_text = text.n;
    kni_buf_add(&text, "", 1);
    return kni_buf_take(&text, &n);
}

static bool take_ids(struct kni_params_reader *r, const json_t *v, struct kni_params_prompt *out)
{
    size_t n = json_array_size(v), n_vocab = kn_model_info(r->model)->n_vocab, bytes;
    out->tokens = kni_mul_size(n, sizeof *out->tokens, &bytes) ? kni_alloc(KNI_ALLOC_TAG_REQUEST, bytes, 0) : NULL;
    if (!out->tokens)
        return kni_params_fail_memory(r);
    for (size_t i = 0; i < n; i++) {
        const json_t *id = json_array_get(v, i);
        if (!json_is_integer(id))
            return kni_params_fail(r, KN_E_FORMAT, NULL, "prompt", "entry %zu of the prompt's token ids is %s: it must be an integer", i,
                                   kni_params_type(id));
        if (json_integer_value(id) < 0 || json_integer_value(id) >= (json_int_t)n_vocab)
            return kni_params_fail(r, KN_E_ARG, NULL, "prompt", "entry %zu of the prompt is token %lld: the model's are 0 to %zu", i,
                                   (long long)json_integer_value(id), n_vocab - 1);
        out->tokens[i] = (int32_t)json_integer_value(id);
    }
    out->n_tokens = (uint32_t)n;
    return true;
}

static bool take_prompt(struct kni_params_reader *r, bool echo, const json_t *v, struct kni_params_prompt *out)
{
    const unsigned flags = KN_TOKENIZE_SPECIAL | (r->no_bos ? 0u : KN_TOKENIZE_BOS);
    bool ok = json_is_string(v) ? kni_params_tokens(r, "prompt", json_string_value(v), json_string_length(v), flags, out) : take_ids(r, v, out);
    if (!ok || !echo)
        return ok;
    out->n_text = json_string_length(v);
    out->text = json_is_string(v) ? kni_strdup(KNI_ALLOC_TAG_REQUEST, json_string_value(v))
                                  : text_of(r->model, out->tokens, out->n_tokens, &out->n_text);
    return out->text || kni_params_fail_memory(r);
}

/* room: tokens of the context that the answer needs at least. */
static bool check_length(struct kni_params_reader *r, const char *param, const struct kni_params_prompt *prompt, uint32_t room)
{
    if (!prompt->n_tokens)
        return kni_params_fail(r, KN_E_ARG, NULL, param, "the prompt is empty: give it some text");
    return prompt->n_tokens <= r->limits->n_ctx - room || kni_params_fail_context(r, param, prompt->n_tokens);
}

/* "prompt": a string, ids, or an array of either. */
static bool take_prompts(struct kni_params_reader *r, struct kni_params *out)
{
    const json_t *v = kni_params_get(r, "prompt"), *first = json_array_get(v, 0);
    if (!v)
        return kni_params_fail(r, KN_E_FORMAT, NULL, "prompt", "there is no prompt: give a string, an array of strings, or token ids");
    if (!json_is_string(v) && !json_is_array(v))
        return kni_params_fail(r, KN_E_FORMAT, NULL, "prompt", "prompt is %s: it must be a string, an array of strings, or token ids", kni_params_type(v));
    if (json_is_array(v) && !first)
        return kni_params_fail(r, KN_E_ARG, NULL, "prompt", "prompt is an empty array: give at least one text or token id");
    bool several = json_is_string(first) || json_is_array(first);
    size_t n = several ? json_array_size(v) : 1;
    if (n > KNI_PARAMS_MAX_PROMPTS)
        return kni_params_fail(r, KN_E_ARG, NULL, "prompt", "there are %zu prompts: at most %u are taken in one request", n, KNI_PARAMS_MAX_PROMPTS);
    if (n * out->n > KNI_PARAMS_MAX_CHOICES)
        return kni_params_fail(r, KN_E_ARG, NULL, "n", "%zu prompts with %u choices each make more than %u: ask for fewer at once", n, out->n,
                               KNI_PARAMS_MAX_CHOICES);
    out->prompts = kni_calloc(KNI_ALLOC_TAG_REQUEST, n * sizeof *out->prompts, 0);
    if (!out->prompts)
        return kni_params_fail_memory(r);
    for (size_t i = 0; i < n; i++) {
        const json_t *one = several ? json_array_get(v, i) : v;
        if (!json_is_string(one) && !json_is_array(one))
            return kni_params_fail(r, KN_E_FORMAT, NULL, "prompt", "entry %zu of prompt is %s: all must be strings or arrays of token ids", i,
                                   kni_params_type(one));
        out->n_prompts++;
        if (!take_prompt(r, out->echo, one, &out->prompts[i]) || !check_length(r, "prompt", &out->prompts[i], out->no_answer ? 0 : 1))
            return false;
    }
    return true;
}

/* A prompt that is described costs some 25 bytes of answer for each of its tokens and their alternatives. */
static bool check_scores(struct kni_params_reader *r, const struct kni_params *p)
{
    uint64_t n = 0;
    for (uint32_t i = 0; i < p->n_prompts; i++)
        n += p->prompts[i].n_tokens;
    n *= (uint64_t)p->n * (1 + p->n_top);
    if (p->echo && p->logprobs && n > KNI_PARAMS_MAX_SCORES)
        return kni_params_fail(r, KN_E_ARG, NULL, "prompt", "echo with logprobs describes at most %u tokens and alternatives at once, and these are %llu: "
                               "ask for fewer prompts, choices or alternatives", KNI_PARAMS_MAX_SCORES, (unsigned long long)n);
    return r->status == KN_OK;
}

bool kni_params_prompts(struct kni_params_reader *r, struct kni_params *out, uint32_t wanted)
{
    uint32_t n_ctx = r->limits->n_ctx, shortest = UINT32_MAX;
    if (out->chat) {
        out->prompts = kni_calloc(KNI_ALLOC_TAG_REQUEST, sizeof *out->prompts, 0);
        if (!out->prompts)
            return kni_params_fail_memory(r);
        out->n_prompts = 1;
        bool echo = false; /* not out->echo: no log-probabilities of the prompt go with it */
        if (!kni_params_bool(r, "echo", &echo) || !kni_params_messages(r, echo, out->prompts) || !check_length(r, "messages", out->prompts, 1))
            return false;
    } else if (!take_prompts(r, out)) {
        return false;
    }
    for (uint32_t i = 0; i < out->n_prompts; i++)
        shortest = out->prompts[i].n_tokens < shortest ? out->prompts[i].n_tokens : shortest;
    out->max_tokens = out->no_answer ? 0 : wanted && wanted < n_ctx - shortest ? wanted : n_ctx - shortest;
    return check_scores(r, out);
}
