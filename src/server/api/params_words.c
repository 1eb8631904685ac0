/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Why jansson did not take a body, in words of the request. jansson says where it stopped; a walk over the same bytes says which field
 * that was:
 *
 *     {"messages": [{"role": "user", "content": "a\u0000b"}]}
 *                                               ^^^^^^^^^^ the first token that ends at or behind jansson's position
 *      `-> messages[0].content holds the character U+0000 ...
 *
 * The walk trusts nothing: what it cannot follow leaves a shorter name. Pure; linear in the body; only after an error.
 */
#include <stdio.h>
#include <string.h>

#include "server/api/params_reader.h"

enum { MAX_LEVELS = 65, MAX_SHOWN = 40 };

struct level {
    const char *name; /* of the member that is read, as it is spelt; NULL: an array, or no name yet */
    size_t n_name, index;
    bool array, wants_name;
};

struct place {
    char path[64];
    const char *token; /* NULL: none found */
    size_t n_token;
    size_t depth;      /* objects and arrays around it */
    bool is_name;
};

/* "messages[0].content"; without_last: of what the innermost name or index belongs to. */
static void write_path(struct place *out, const struct level *levels, size_t n, bool without_last)
{
    size_t at = 0;
    out->path[0] = '\0';
    for (size_t i = 0; i + (without_last ? 1 : 0) < n && at < sizeof out->path; i++) {
        int k = levels[i].array ? snprintf(out->path + at, sizeof out->path - at, "[%zu]", levels[i].index)
                                : snprintf(out->path + at, sizeof out->path - at, "%s%.*s", at ? "." : "", (int)levels[i].n_name,
                                           levels[i].name ? levels[i].name : "");
        at += k > 0 ? (size_t)k : 0;
    }
}

/* Bytes of the string or number that begins at body. */
static size_t token_bytes(const char *body, size_t n)
{
    size_t i = 1;
    if (*body == '"') {
        for (; i < n && body[i] != '"'; i++)
            i += body[i] == '\\';
        return i < n ? i + 1 : n;
    }
    while (i < n && !memchr(",:[]{}\" \t\r\n", body[i], 12))
        i++;
    return i;
}

static struct place find_place(const char *body, size_t n_body, size_t position)
{
    struct level levels[MAX_LEVELS] = {{0}};
    struct place out = {0};
    size_t n = 0;
    for (size_t i = 0; i < n_body;) {
        struct level *inner = n ? &levels[n - 1] : NULL;
        const char c = body[i];
        if (c == '{' || c == '[') {
            if (n == MAX_LEVELS)
                break;
            levels[n++] = (struct level){.array = c == '[', .wants_name = c == '{'};
        } else if (c == '}' || c == ']') {
            n -= n > 0;
        } else if (c == ',' && inner) {
            inner->index++;
            inner->wants_name = !inner->array;
        } else if (c != ':' && c != ' ' && c != '\t' && c != '\r' && c != '\n' && c != ',') {
            size_t length = token_bytes(body + i, n_body - i);
            bool name = inner && inner->wants_name;
            if (i + length >= position) {
                out = (struct place){.token = body + i, .n_token = length, .depth = n, .is_name = name};
                write_path(&out, levels, n, name);
                return out;
            }
            if (name)
                *inner = (struct level){.name = body + i + 1, .n_name = length > 2 ? length - 2 : 0};
            i += length;
            continue;
        }
        i++;
    }
    return out;
}

/* The first byte of a string that JSON wants escaped; -1: there is none. */
static int find_raw_control(const struct place *at)
{
    for (size_t i = 0; at->token && *at->token == '"' && i < at->n_token; i++)
        if ((unsigned char)at->token[i] < 0x20)
            return (unsigned char)at->token[i];
    return -1;
}

/* A number that neither 64 bits nor a double can hold. */
static bool fail_overflow(struct kni_params_reader *r, const struct place *at, const char *param)
{
    const struct kni_field *f = at->depth == 1 ? kni_field_find("", at->path) : NULL;
    char text[MAX_SHOWN + 8];
    snprintf(text, sizeof text, "%.*s%s", (int)(at->n_token < MAX_SHOWN ? at->n_token : MAX_SHOWN), at->token ? at->token : "",
             at->n_token > MAX_SHOWN ? "..." : "");
    if (f && f->rules[r->route] == 'd' && f->kind >= KNI_FIELD_KIND_INTEGER)
        return kni_params_fail_range(r, KN_E_ARG, f, text);
    if (f && f->rules[r->route] == 'd' && f->kind == KNI_FIELD_KIND_BOOL)
        return kni_params_fail(r, KN_E_FORMAT, NULL, f->name, "%s is %s: it must be true or false", f->name, text);
    if (f && !strcmp(f->name, "logprobs"))
        return kni_params_fail_logprobs(r, KN_E_ARG, text);
    if (!strncmp(at->path, "prompt[", 7) || !strncmp(at->path, "tokens[", 7))
        return kni_params_fail(r, KN_E_ARG, NULL, at->path, "%s is %s: the model's tokens are 0 to %u", at->path, text,
                               kn_model_info(r->model)->n_vocab - 1);
    return kni_params_fail(r, KN_E_ARG, NULL, at->path, "%s is %s, which is too large: integers go from -9223372036854775808 to "
                           "9223372036854775807, other numbers to 1.7e308", param, text);
}

bool kni_params_fail_json(struct kni_params_reader *r, const char *body, size_t n_body, const json_error_t *e)
{
    const enum json_error_code code = json_error_code(e);
    const struct place at = find_place(body, n_body, e->position > 0 ? (size_t)e->position : 0);
    const char *param = *at.path ? at.path : "the body";
    const int control = find_raw_control(&at);
    if (code == json_error_out_of_memory)
        return kni_params_fail_memory(r);
    if (code == json_error_null_character || code == json_error_null_byte_in_key)
        return kni_params_fail(r, KN_E_FORMAT, "invalid_json", at.path, "%s%s holds the character U+0000 (\\u0000): no text of a request may, leave it "
                               "away", at.is_name ? "a field's name in " : "", param);
    if (code == json_error_numeric_overflow)
        return fail_overflow(r, &at, param);
    if (code == json_error_duplicate_key)
        return kni_params_fail(r, KN_E_FORMAT, "invalid_json", at.path, "the name %.*s occurs twice (duplicate) in %s: give it once",
                               (int)(at.n_token < MAX_SHOWN ? at.n_token : MAX_SHOWN), at.token ? at.token : "", param);
    if (code == json_error_invalid_utf8)
        return kni_params_fail(r, KN_E_FORMAT, "invalid_json", at.path, "%s%s holds bytes that are no UTF-8, at byte %d of the body: send text as UTF-8",
                               at.is_name ? "a field's name in " : "", param, e->position);
    if (control >= 0 && code == json_error_invalid_syntax)
        return kni_params_fail(r, KN_E_FORMAT, "invalid_json", at.path, "%s%s holds the control character 0x%02x as it is, in line %d: %s",
                               at.is_name ? "a field's name in " : "", param, (unsigned)control, e->line,
                               control ? "write it as \\u00XX, a line's end as \\n" : "leave it away");
    if (code == json_error_premature_end_of_input)
        return kni_params_fail(r, KN_E_FORMAT, "invalid_json", NULL, "the body ends before its JSON does, in line %d, byte %d: send all of it", e->line,
                               e->position);
    return kni_params_fail(r, KN_E_FORMAT, "invalid_json", NULL, "the body is no JSON that we take: line %d, column %d (byte %d): %s", e->line, e->column,
                           e->position, e->text);
}
