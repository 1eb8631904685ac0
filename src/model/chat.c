/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Recognition looks for literals in the template's text, rendering writes through a counting cursor: one pass gives both
 * the text and the length that a larger buffer would need.
 */
#include "model/chat.h"

#include <string.h>

#include "base/log.h"

static const char *find(struct kni_gguf_str s, const char *what)
{
    return s.n ? memmem(s.data, s.n, what, strlen(what)) : NULL;
}

/* The literal system message of a ChatML template: '<|im_start|>system\nTEXT<|im_end|>' inside one string. Newlines may be
 * written out or as \n; the copy in arena has them written out. */
static enum kn_status find_system(struct kni_chat *chat, struct kni_arena *arena, struct kni_gguf_str s)
{
    static const char open[] = "<|im_start|>system", shut[] = "<|im_end|>";
    for (const char *p; (p = find(s, open));) {
        size_t skip = (size_t)(p - s.data) + sizeof open - 1;
        s = (struct kni_gguf_str){s.data + skip, s.n - skip};
        size_t at = s.n >= 1 && s.data[0] == '\n' ? 1 : s.n >= 2 && s.data[0] == '\\' && s.data[1] == 'n' ? 2 : 0;
        const char *end = find(s, shut);
        if (!at || !end || (size_t)(end - s.data) < at)
            continue;
        char *text = kni_arena_alloc(arena, (size_t)(end - s.data) + 1, 1);
        if (!text)
            return KN_E_NOMEM;
        size_t n = 0, stop = (size_t)(end - s.data);
        while (at < stop && s.data[at] != '\'' && s.data[at] != '"') {
            if (s.data[at] == '\\' && at + 1 < stop) {
                at++;
                text[n++] = s.data[at] == 'n' ? '\n' : s.data[at] == 't' ? '\t' : s.data[at];
            } else {
                text[n++] = s.data[at];
            }
            at++;
        }
        if (at == stop && n) { /* no quote in between: one literal */
            chat->system = (struct kni_gguf_str){text, n};
            return KN_OK;
        }
    }
    return KN_OK;
}

static struct kni_gguf_str token_text(const struct kni_tokenizer *t, int32_t id)
{
    return id < 0 ? (struct kni_gguf_str){"", 0} : (struct kni_gguf_str){t->blob + t->tokens[id].at, t->tokens[id].n};
}

/* One of these texts, with quotes of either kind. */
static bool has_quoted(struct kni_gguf_str s, const char *single, const char *twice)
{
    return find(s, single) || find(s, twice);
}

/* How one of Mistral's templates, which differ in blanks and in what they do with a system message, has it. */
static struct kni_chat_mistral mistral_of(struct kni_gguf_str s)
{
    return (struct kni_chat_mistral){
        .blank_lead = has_quoted(s, "' [INST]", "\" [INST]"),
        .blank_before = find(s, "[INST] ") != NULL,
        .blank_after = find(s, " [/INST]") != NULL,
        .reply_blank = has_quoted(s, "' ' + message['content']", "\" \" + message[\"content\"]"),
        .reply_trim = find(s, "|trim + eos_token") || find(s, "| trim + eos_token"),
        .blank_behind = has_quoted(s, "eos_token + ' '", "eos_token + \" \""),
        .system_first = find(s, "loop.first and system_message is defined") != NULL,
        .system_last = find(s, "loop.last and system_message is defined") != NULL,
    };
}

static enum kn_status recognise(struct kni_chat *chat, struct kni_arena *arena, struct kni_gguf_str s)
{
    if (find(s, "<|im_start|>") && find(s, "<|im_end|>")) {
        chat->kind = KNI_CHAT_KIND_CHATML;
        return find_system(chat, arena, s);
    }
    if (find(s, "<|start_header_id|>") && find(s, "<|eot_id|>") && !find(s, "Cutting Knowledge Date")) { /* 3.1 writes dates: not this one */
        chat->kind = KNI_CHAT_KIND_LLAMA3;
    } else if (find(s, "[INST]") && find(s, "[/INST]") && !find(s, "<<SYS>>")) {
        chat->kind = KNI_CHAT_KIND_MISTRAL;
        chat->mistral = mistral_of(s);
    } else if (find(s, "<start_of_turn>") && find(s, "<end_of_turn>")) {
        chat->kind = KNI_CHAT_KIND_GEMMA;
        chat->no_system = find(s, "System role not supported") != NULL;
    }
    return KN_OK;
}

static const char *const names[] = {"none", "chatml", "llama3", "mistral", "gemma"}; /* by enum kni_chat_kind */

const char *kn_chat_template_names(void)
{
    return "chatml, llama3, mistral, gemma";
}

/* The control tokens that a template writes; without them its marks are text that the model has never seen. */
static void warn_of_missing(const struct kni_chat *chat, const struct kni_gguf *gguf, const struct kni_tokenizer *t)
{
    static const char *const marks[][2] = {
        {0}, {"<|im_start|>", "<|im_end|>"}, {"<|start_header_id|>", "<|eot_id|>"}, {0}, {"<start_of_turn>", "<end_of_turn>"},
    };
    for (unsigned i = 0; i < 2; i++) {
        const char *mark = marks[chat->kind][i];
        if (mark && kni_tokenizer_find_special(t, mark, strlen(mark)) < 0)
            kni_log(KN_LOG_LEVEL_WARN, "model", "%s: the vocabulary has no token %s, which the chosen chat template %s writes: is it the model's?", gguf->path, mark,
                    kni_chat_name(chat));
    }
}

static enum kn_status choose(struct kni_chat *chat, const char *chosen, const struct kni_gguf *gguf, const struct kni_tokenizer *t, struct kn_err *err)
{
    unsigned kind = KNI_CHAT_KIND_CHATML;
    while (kind <= KNI_CHAT_KIND_GEMMA && strcmp(names[kind], chosen))
        kind++;
    if (kind > KNI_CHAT_KIND_GEMMA)
        return kni_err_set(err, KN_E_ARG, "there is no chat template \"%.60s\": known are %s", chosen, kn_chat_template_names());
    if (chat->kind != (enum kni_chat_kind)kind) {
        chat->kind = (enum kni_chat_kind)kind;
        chat->system = (struct kni_gguf_str){0};
        chat->mistral = (struct kni_chat_mistral){.blank_before = true, .blank_after = true};
        chat->no_system = false;
    }
    warn_of_missing(chat, gguf, t);
    return KN_OK;
}

enum kn_status kni_chat_load(struct kni_chat **out, struct kni_arena *arena, const struct kni_gguf *gguf, const struct kni_tokenizer *tokenizer,
                             const char *chosen, struct kn_err *err)
{
    *out = NULL;
    struct kni_gguf_str s = {0};
    struct kni_chat *chat = kni_arena_alloc(arena, sizeof *chat, 0);
    enum kn_status status = kni_gguf_get_str(gguf, "tokenizer.chat_template", &s, err);
    if (status != KN_OK && status != KN_E_NOT_FOUND)
        return status;
    if (chat)
        chat->in_file = status == KN_OK;
    status = chat ? recognise(chat, arena, s) : KN_E_NOMEM;
    if (status != KN_OK)
        return kni_err_set(err, status, "%s: out of memory for the chat template", gguf->path);
    if (chosen && (status = choose(chat, chosen, gguf, tokenizer, err)) != KN_OK)
        return status;
    chat->bos = token_text(tokenizer, tokenizer->bos);
    chat->eos = token_text(tokenizer, tokenizer->eos);
    *out = chat;
    return KN_OK;
}

const char *kni_chat_name(const struct kni_chat *chat)
{
    return names[chat->kind];
}

/* ---- rendering */

/* The bytes of the blank, in Python's sense, that n bytes of valid UTF-8 begin with; 0: no blank. */
static size_t blank_at(const char *s, size_t n)
{
    const unsigned char *p = (const unsigned char *)s;
    if (n && (p[0] == ' ' || (p[0] >= 0x09 && p[0] <= 0x0d) || (p[0] >= 0x1c && p[0] <= 0x1f)))
        return 1;
    if (n >= 2 && p[0] == 0xc2 && (p[1] == 0x85 || p[1] == 0xa0))
        return 2;
    if (n < 3)
        return 0;
    unsigned code = (unsigned)p[0] << 16 | (unsigned)p[1] << 8 | p[2];
    bool blank = code == 0xe19a80 /* U+1680 */ || (code >= 0xe28080 && code <= 0xe2808a) /* U+2000..200a */ || code == 0xe280a8 || code == 0xe280a9 ||
                 code == 0xe280af || code == 0xe2819f /* U+205f */ || code == 0xe38080 /* U+3000 */;
    return blank ? 3 : 0;
}

/* The bytes of the blank that n bytes end with. */
static size_t blank_before(const char *s, size_t n)
{
    for (size_t length = 1; length <= 3 && length <= n; length++)
        if (blank_at(s + n - length, length) == length)
            return length;
    return 0;
}

static struct kni_gguf_str trimmed(struct kni_gguf_str s)
{
    for (size_t length; (length = blank_at(s.data, s.n));)
        s = (struct kni_gguf_str){s.data + length, s.n - length};
    for (size_t length; (length = blank_before(s.data, s.n));)
        s.n -= length;
    return s;
}

struct writer {
    char *buf;
    size_t room, n;
    struct kn_text_range *texts; /* of the messages; NULL: nobody wants them */
    size_t n_texts;
    size_t header;               /* behind the last turn's header, without its line breaks; templates that trim */
    size_t cut;                  /* behind the last message's text: with KN_CHAT_CONTINUE the rendering ends there */
};

static void put(struct writer *w, const char *data, size_t n)
{
    if (w->n < w->room)
        memcpy(w->buf + w->n, data, n < w->room - w->n ? n : w->room - w->n);
    w->n += n;
}

static void puts_to(struct writer *w, const char *s)
{
    put(w, s, strlen(s));
}

/* The text of message i of n. */
static void put_text(struct writer *w, const struct kn_chat_message *m, size_t i, size_t n, bool trim)
{
    struct kni_gguf_str s = {m[i].text, strlen(m[i].text)};
    if (trim)
        s = trimmed(s);
    if (w->texts)
        w->texts[w->n_texts++] = (struct kn_text_range){w->n, s.n};
    put(w, s.data, s.n);
    if (i + 1 == n)
        w->cut = trim && !s.n ? w->header : w->n;
}

static void render_chatml(const struct kni_chat *chat, struct writer *w, const struct kn_chat_message *m, size_t n, bool add_reply)
{
    if (chat->system.data && strcmp(m[0].role, "system")) {
        puts_to(w, "<|im_start|>system\n");
        put(w, chat->system.data, chat->system.n);
        puts_to(w, "<|im_end|>\n");
    }
    for (size_t i = 0; i < n; i++) {
        puts_to(w, "<|im_start|>");
        puts_to(w, m[i].role);
        puts_to(w, "\n");
        put_text(w, m, i, n, false);
        puts_to(w, "<|im_end|>\n");
    }
    if (add_reply)
        puts_to(w, "<|im_start|>assistant\n");
}

static void render_llama3(const struct kni_chat *chat, struct writer *w, const struct kn_chat_message *m, size_t n, bool add_reply)
{
    put(w, chat->bos.data, chat->bos.n);
    for (size_t i = 0; i < n + add_reply; i++) {
        puts_to(w, "<|start_header_id|>");
        puts_to(w, i < n ? m[i].role : "assistant");
        puts_to(w, "<|end_header_id|>");
        w->header = w->n;
        puts_to(w, "\n\n");
        if (i < n) {
            put_text(w, m, i, n, true);
            puts_to(w, "<|eot_id|>");
        }
    }
}

static void render_mistral(const struct kni_chat *chat, struct writer *w, const struct kn_chat_message *m, size_t n)
{
    const struct kni_chat_mistral *how = &chat->mistral;
    const size_t system = !strcmp(m[0].role, "system");
    put(w, chat->bos.data, chat->bos.n);
    for (size_t i = system; i < n; i++) {
        if ((i - system) % 2 == 0) {
            puts_to(w, how->blank_lead ? " [INST]" : "[INST]");
            puts_to(w, how->blank_before ? " " : "");
            if (system && ((how->system_first && i == 1) || (how->system_last && i + 1 == n))) {
                put_text(w, m, 0, n, false);
                puts_to(w, "\n\n");
            }
            put_text(w, m, i, n, false);
            puts_to(w, how->blank_after ? " [/INST]" : "[/INST]");
        } else {
            w->header = w->n;
            puts_to(w, how->reply_blank ? " " : "");
            put_text(w, m, i, n, how->reply_trim);
            put(w, chat->eos.data, chat->eos.n);
            puts_to(w, how->blank_behind ? " " : "");
        }
    }
}

static void render_gemma(const struct kni_chat *chat, struct writer *w, const struct kn_chat_message *m, size_t n, bool add_reply)
{
    bool system = !strcmp(m[0].role, "system");
    put(w, chat->bos.data, chat->bos.n);
    for (size_t i = system; i < n; i++) {
        puts_to(w, "<start_of_turn>");
        puts_to(w, strcmp(m[i].role, "assistant") ? m[i].role : "model");
        w->header = w->n;
        puts_to(w, "\n");
        if (system && i == 1) {
            put_text(w, m, 0, n, false);
            puts_to(w, "\n\n");
        }
        put_text(w, m, i, n, true);
        puts_to(w, "<end_of_turn>\n");
    }
    if (add_reply)
        puts_to(w, "<start_of_turn>model\n");
}

/* Whether user and assistant take turns, beginning with user; behind a system message, where that is taken. */
static bool take_turns(const struct kn_chat_message *m, size_t n, bool takes_system, bool only_assistant)
{
    const size_t system = !strcmp(m[0].role, "system");
    bool ok = !system || takes_system;
    for (size_t i = system; i < n; i++) {
        bool user = (i - system) % 2 == 0;
        ok = ok && !strcmp(m[i].role, "user") == user && (user || !only_assistant || !strcmp(m[i].role, "assistant"));
    }
    return ok;
}

static bool suits(const struct kni_chat *chat, const struct kn_chat_message *m, size_t n, unsigned flags)
{
    if (!n || flags > KN_CHAT_CONTINUE) /* no messages: so the reference, there is nothing to reply to */
        return false;
    for (size_t i = 0; i < n; i++)
        if (!m[i].role || !m[i].text)
            return false;
    if (flags & KN_CHAT_CONTINUE && strcmp(m[n - 1].role, "assistant"))
        return false;
    if (chat->kind == KNI_CHAT_KIND_MISTRAL)
        return take_turns(m, n, chat->mistral.system_first || chat->mistral.system_last, true);
    return chat->kind != KNI_CHAT_KIND_GEMMA || take_turns(m, n, !chat->no_system, false);
}

enum kn_status kni_chat_render(const struct kni_chat *chat, const struct kn_chat_message *messages, size_t n_messages, unsigned flags,
                               struct kn_text_range *texts, char *buf, size_t *n_bytes)
{
    struct writer w = {.buf = buf, .room = *n_bytes, .texts = texts};
    const bool add_reply = flags & KN_CHAT_REPLY;
    *n_bytes = 0;
    if (chat->kind == KNI_CHAT_KIND_NONE)
        return KN_E_UNSUPPORTED;
    if (!suits(chat, messages, n_messages, flags))
        return KN_E_ARG;
    switch (chat->kind) {
    case KNI_CHAT_KIND_CHATML: render_chatml(chat, &w, messages, n_messages, add_reply); break;
    case KNI_CHAT_KIND_LLAMA3: render_llama3(chat, &w, messages, n_messages, add_reply); break;
    case KNI_CHAT_KIND_MISTRAL: render_mistral(chat, &w, messages, n_messages); break; /* [/INST] opens the reply */
    case KNI_CHAT_KIND_GEMMA: render_gemma(chat, &w, messages, n_messages, add_reply); break;
    case KNI_CHAT_KIND_NONE: break;
    }
    if (flags & KN_CHAT_CONTINUE) {
        w.n = w.cut;
        if (texts && w.n_texts && texts[w.n_texts - 1].at > w.n) /* an empty one */
            texts[w.n_texts - 1].at = w.n;
    }
    while (texts && w.n_texts < n_messages) /* a system message may have no place */
        texts[w.n_texts++] = (struct kn_text_range){w.n, 0};
    *n_bytes = w.n;
    if (w.n < w.room)
        buf[w.n] = 0;
    return w.n <= w.room ? KN_OK : KN_E_ARG;
}
