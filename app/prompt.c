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

/* Tokenizes into ids[*n ..room), advancing *n. */
static enum kn_status append(const struct kn_model *model, const char *text, size_t n_bytes, unsigned flags, int32_t *ids,
                             size_t room, size_t *n)
{
    size_t count = room - *n;
    enum kn_status s = kn_model_tokenize(model, text, n_bytes, flags, ids + *n, &count);
    if (s == KN_OK)
        *n += count;
    return s;
}

/* True when the text holds the spelling of a control token. */
static bool holds_control(const struct kn_model *model, const char *text, size_t n_bytes, int32_t *ids, size_t room)
{
    size_t n = room;
    if (kn_model_tokenize(model, text, n_bytes, KN_TOKENIZE_SPECIAL, ids, &n))
        return true; /* the careful way will find out why */
    for (size_t i = 0; i < n; i++) {
        if (kn_model_token_is_special(model, ids[i]))
            return true;
    }
    return false;
}

/* The turns as text. NULL: err says why. */
static char *render(const struct kn_model *model, const struct kn_chat_message *messages, size_t n_messages, size_t *n_bytes,
                    struct kn_err *err)
{
    *n_bytes = 0;
    enum kn_status s = kn_model_chat(model, messages, n_messages, true, NULL, n_bytes);
    if (s != KN_OK && s != KN_E_ARG) { /* KN_E_ARG: no room, the length is known now */
        fail(err, s, kn_status_message(s));
        return NULL;
    }
    size_t room = *n_bytes + 1;
    char *text = malloc(room);
    *n_bytes = room;
    s = text ? kn_model_chat(model, messages, n_messages, true, text, n_bytes) : KN_E_NOMEM;
    if (s) {
        fail(err, s, s == KN_E_ARG ? "the model's chat template refuses these messages; leave --system away" : kn_status_message(s));
        free(text);
        return NULL;
    }
    return text;
}

/* Template text with the control tokens recognised, the messages' own texts without. Where the texts go is found by
 * rendering marks in their place: a text itself may look like any part of the template. A template may cut blanks off. */
static enum kn_status tokenize_apart(const struct kn_model *model, const struct kn_chat_message *messages, size_t n_messages, int32_t *ids,
                                     size_t room, size_t *n, struct kn_err *err)
{
    static const char *const marks[] = {" \x1f" "0\x1f ", " \x1f" "1\x1f "};
    static const char blanks[] = " \t\n\v\f\r";
    struct kn_chat_message marked[2];
    size_t n_bytes;
    for (size_t i = 0; i < n_messages; i++)
        marked[i] = (struct kn_chat_message){messages[i].role, marks[i]};
    char *frame = render(model, marked, n_messages, &n_bytes, err);
    if (!frame)
        return err->status;
    const char *at = frame, *end = frame + n_bytes;
    enum kn_status s = KN_OK;
    for (size_t i = 0; i < n_messages && s == KN_OK; i++) {
        const char *text = messages[i].text, *mark = marks[i];
        size_t length = strlen(text), mark_length = strlen(mark);
        const char *found = memmem(at, (size_t)(end - at), mark, mark_length);
        if (!found) { /* without the blanks around it */
            found = memmem(at, (size_t)(end - at), ++mark, mark_length -= 2);
            for (; length && strchr(blanks, *text); text++)
                length--;
            while (length && strchr(blanks, text[length - 1]))
                length--;
        }
        s = found ? append(model, at, (size_t)(found - at), KN_TOKENIZE_SPECIAL, ids, room, n) : KN_E_UNSUPPORTED;
        if (s == KN_OK)
            s = append(model, text, length, 0, ids, room, n);
        if (s == KN_OK)
            at = found + mark_length;
    }
    if (s == KN_OK)
        s = append(model, at, (size_t)(end - at), KN_TOKENIZE_SPECIAL, ids, room, n);
    free(frame);
    return s;
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

enum kn_status kn_prompt_tokens(const struct kn_model *model, const struct kn_prompt *prompt, int32_t **ids, size_t *n_ids,
                                bool *without_template, struct kn_err *err)
{
    struct kn_chat_message messages[2];
    size_t n_messages = 0, n_text = 0, n_rendered = 0, room, n = 0;
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
        rendered = render(model, messages, n_messages, &n_rendered, err);
        if (!rendered) {
            s = err->status;
            goto done;
        }
    }
    room = (plain ? n_text : n_rendered) + 16; /* at most one token a byte, and BOS */
    out = malloc(room * sizeof *out);
    if (!out) {
        s = fail(err, KN_E_NOMEM, "out of memory");
        goto done;
    }
    if (plain)
        s = append(model, text, n_text, KN_TOKENIZE_SPECIAL | KN_TOKENIZE_BOS, out, room, &n);
    else if (holds_control(model, text, n_text, out, room) ||
             (prompt->system && holds_control(model, prompt->system, strlen(prompt->system), out, room)))
        s = tokenize_apart(model, messages, n_messages, out, room, &n, err);
    else
        s = append(model, rendered, n_rendered, KN_TOKENIZE_SPECIAL, out, room, &n); /* the template has written BOS itself */
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
