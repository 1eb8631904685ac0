/* SPDX-License-Identifier: Apache-2.0 */
/* Builds prompts; see prompt.h. */
#include "prompt.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static enum kn_status fail(struct kn_err *err, enum kn_status status, const char *text)
{
    err->status = status;
    snprintf(err->text, sizeof err->text, "%s", text);
    return status;
}

/* The turns as text, and where the messages' own texts lie in it. NULL: err says why. */
static char *render(const struct kn_model *model, const struct kn_chat_message *messages, size_t n_messages, struct kn_text_range *texts,
                    size_t *n_bytes, struct kn_err *err)
{
    *n_bytes = 0;
    enum kn_status s = kn_model_chat_texts(model, messages, n_messages, KN_CHAT_REPLY, texts, NULL, n_bytes);
    if (s != KN_OK && s != KN_E_ARG) { /* KN_E_ARG: no room, the length is known now */
        fail(err, s, kn_status_message(s));
        return NULL;
    }
    size_t room = *n_bytes + 1;
    char *text = malloc(room);
    *n_bytes = room;
    s = text ? kn_model_chat_texts(model, messages, n_messages, KN_CHAT_REPLY, texts, text, n_bytes) : KN_E_NOMEM;
    if (s) {
        fail(err, s, s == KN_E_ARG ? "the model's chat template refuses these messages; leave --system away" : kn_status_message(s));
        free(text);
        return NULL;
    }
    return text;
}

/* Document, empty line, question in one NUL-terminated text; release with free(). */
static char *join(const struct kn_prompt *prompt, size_t *n_bytes)
{
    size_t d = prompt->document ? prompt->document_bytes : 0, q = prompt->question ? strlen(prompt->question) : 0;
    while (d && q && (prompt->document[d - 1] == '\n' || prompt->document[d - 1] == '\r'))
        d--;
    size_t gap = d && q ? 2 : 0;
    char *text = malloc(d + gap + q + 1);
    if (!text)
        return NULL;
    if (d)
        memcpy(text, prompt->document, d);
    memset(text + d, '\n', gap);
    if (q)
        memcpy(text + d + gap, prompt->question, q);
    text[d + gap + q] = '\0';
    *n_bytes = d + gap + q;
    return text;
}

const char *kn_prompt_no_template(const struct kn_model *model)
{
    const struct kn_model_info *info = kn_model_info(model);
    if (strcmp(info->chat_template, "none"))
        return NULL;
    return info->has_chat_template ? "the model's chat template is none of those that Kinema knows (chatml, llama3, mistral, gemma)"
                                   : "the model's file brings no chat template";
}

enum kn_status kn_prompt_tokens(const struct kn_model *model, const struct kn_prompt *prompt, int32_t **ids, size_t *n_ids,
                                bool *without_template, struct kn_err *err)
{
    struct kn_chat_message messages[2];
    struct kn_text_range texts[2];
    struct kn_tokenize_opts opts = {.size = sizeof opts, .flags = KN_TOKENIZE_SPECIAL};
    size_t n_messages = 0, n_text = 0, n_rendered = 0, n = 0;
    char *text = NULL, *rendered = NULL;
    int32_t *out = NULL;
    enum kn_status s = KN_OK;
    bool plain = prompt->raw;
    *without_template = false;

    text = join(prompt, &n_text);
    if (!text) {
        s = fail(err, KN_E_NOMEM, "out of memory");
        goto done;
    }
    if (!n_text || strspn(text, " \t\r\n") == n_text) {
        s = fail(err, KN_E_ARG, "the prompt is empty: give a text with -p, -f or on the standard input");
        goto done;
    }
    if (!plain && !strcmp(kn_model_info(model)->chat_template, "none"))
        plain = *without_template = true;
    if (plain && prompt->system) {
        s = fail(err, KN_E_ARG, "--system needs a chat template: leave --raw away, or put the text into the prompt");
        goto done;
    }
    if (!plain && memchr(text, '\0', n_text)) {
        s = fail(err, KN_E_ARG, "the prompt holds a NUL byte: is it a text file? --raw takes it as it is");
        goto done;
    }
    if (!plain) {
        if (prompt->system)
            messages[n_messages++] = (struct kn_chat_message){"system", prompt->system};
        messages[n_messages++] = (struct kn_chat_message){"user", text};
        rendered = render(model, messages, n_messages, texts, &n_rendered, err);
        if (!rendered) {
            s = err->status;
            goto done;
        }
    }
    if (plain) {
        opts.flags |= KN_TOKENIZE_BOS;
    } else { /* the template has written BOS itself */
        opts.plain = texts;
        opts.n_plain = n_messages;
    }
    n = 3 * (plain ? n_text : n_rendered) + 2; /* what kn_model_tokenize promises */
    out = malloc(n * sizeof *out);
    if (!out) {
        s = fail(err, KN_E_NOMEM, "out of memory");
        goto done;
    }
    s = kn_model_tokenize_with(model, plain ? text : rendered, plain ? n_text : n_rendered, &opts, out, &n);
    if (s == KN_OK && !n)
        s = KN_E_ARG;
    if (s) {
        fail(err, s, "the prompt cannot be tokenized");
        goto done;
    }
    *ids = out;
    *n_ids = n;
    out = NULL;
done:
    free(out);
    free(rendered);
    free(text);
    return s;
}
