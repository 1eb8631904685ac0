/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The configuration file of `kinema serve`:
 *
 *     {"model": "m.gguf", "pool_size": "2G", "api_keys": [{"key": "k1", "name": "anna", "salt": "team-a"}, "k2"]}
 *
 * Its names are those of the table in serve_opts.c, and its values go through the same parser as flags, so that both take the same
 * and refuse the same. An unknown name is an error: a misspelt limit that is silently not in force is worse than no start.
 */
#include "serve_config.h"

#include <stdlib.h>
#include <string.h>

#define MASK "***" /* stands for a key in --print-config */

/* A number or text as the flag would be written; NULL: the type is not the setting's. */
static const char *value_text(const struct kn_serve_setting *s, const json_t *value, char *number, size_t number_bytes)
{
    if (s->kind == KN_SERVE_KIND_FLAG)
        return json_is_true(value) ? "true" : json_is_false(value) ? "false" : NULL;
    bool counts = s->kind != KN_SERVE_KIND_TEXT && s->kind != KN_SERVE_KIND_CHOICE && s->kind != KN_SERVE_KIND_LIST;
    if (json_is_integer(value) && counts) {
        snprintf(number, number_bytes, "%" JSON_INTEGER_FORMAT, json_integer_value(value));
        return number;
    }
    if (!json_is_string(value) || s->kind == KN_SERVE_KIND_COUNT || s->kind == KN_SERVE_KIND_PORT)
        return NULL;
    return json_string_value(value);
}

static const char *type_name(const json_t *value)
{
    static const char *const names[] = {"an object", "an array", "a string", "a number", "a number with a fraction", "true", "false", "null"};
    int type = (int)json_typeof(value);
    return type >= 0 && (size_t)type < sizeof names / sizeof *names ? names[type] : "something else";
}

static int set_value(struct kn_serve_opts *opts, const char *path, const struct kn_serve_setting *s, const json_t *value)
{
    static const char *const wanted_types[] = {"a string", "a whole number", "a whole number", "a string such as \"2G\" or a number of bytes",
        "a string such as \"30s\"", "a string such as \"12h\" or a number of seconds", "a string", "true or false", "a string or a whole number", "a string or an array of strings"};
    char number[32], wanted[200] = "";
    const char *text = value_text(s, value, number, sizeof number);
    if (!text)
        return kn_app_fail("serve", "%s: \"%s\" takes %s, not %s", path, s->name, wanted_types[s->kind], type_name(value));
    if (kn_serve_set(opts, s, text, wanted, sizeof wanted))
        return KN_APP_EXIT_OK;
    if (s->kind == KN_SERVE_KIND_HEVC) /* what it takes has been said, as of the flag */
        return kn_app_fail("serve", "%s: \"%s\" cannot be \"%s\"", path, s->name, text);
    const char *near = s->kind == KN_SERVE_KIND_CHOICE ? kn_serve_nearest(text, s->names, s->n_names) : NULL;
    if (near)
        return kn_app_fail("serve", "%s: \"%s\" takes %s, not \"%s\"; did you mean %s?", path, s->name, wanted, text, near);
    return kn_app_fail("serve", "%s: \"%s\" takes %s, not \"%s\"", path, s->name, wanted, text);
}

static int add_key(struct kn_serve_opts *opts, const char *path, size_t index, json_t *item)
{
    static const char *const members[] = {"key", "name", "salt"};
    const char *values[3] = {json_string_value(item), NULL, NULL}, *name;
    json_t *value;
    if (!json_is_string(item) && !json_is_object(item))
        return kn_app_fail("serve", "%s: \"api_keys[%zu]\" takes a string or an object with key, name and salt, not %s", path, index, type_name(item));
    json_object_foreach(item, name, value) {
        int i = kn_app_parse_name(name, members, 3);
        if (i < 0) {
            const char *near = kn_serve_nearest(name, members, 3);
            return kn_app_fail("serve", "%s: there is no \"api_keys[%zu].%s\"; %s%s", path, index, name, near ? "did you mean " : "known are key, name and salt",
                               near ? near : "");
        }
        if (!json_is_string(value) && !(i > 0 && json_is_null(value)))
            return kn_app_fail("serve", "%s: \"api_keys[%zu].%s\" takes a string, not %s", path, index, name, type_name(value));
        values[i] = json_string_value(value);
    }
    if (!values[0] || !*values[0])
        return kn_app_fail("serve", "%s: \"api_keys[%zu]\" has no key, or an empty one", path, index);
    if (!strcmp(values[0], MASK))
        return kn_app_fail("serve", "%s: \"api_keys[%zu]\" is masked, as --print-config writes keys; put the key itself there", path, index);
    return kn_serve_add_key(opts, values[0], values[1], values[2]) ? KN_APP_EXIT_OK : kn_app_fail("serve", "out of memory");
}

static int add_keys(struct kn_serve_opts *opts, const char *path, const json_t *list, bool skip)
{
    if (!json_is_array(list))
        return kn_app_fail("serve", "%s: \"api_keys\" takes an array, not %s", path, type_name(list));
    size_t n_before = opts->n_keys;
    int status = KN_APP_EXIT_OK;
    for (size_t i = 0; i < json_array_size(list) && !status; i++)
        status = add_key(opts, path, i, json_array_get(list, i));
    if (skip) /* flags gave others; these were read for their mistakes */
        opts->n_keys = n_before;
    return status;
}

static int take(struct kn_serve_opts *opts, const char *path, const char *name, const json_t *value, bool skip_keys)
{
    if (!strcmp(name, "api_keys"))
        return add_keys(opts, path, value, skip_keys);
    const struct kn_serve_setting *s = kn_serve_find(name);
    if (!s) {
        const char *near = kn_serve_nearest_setting(name);
        bool is_flag = near && !kn_serve_find(near) && strcmp(near, "api_keys");
        if (!near || is_flag)
            return kn_app_fail("serve", "%s: there is no setting \"%s\"%s; kinema serve --help lists all", path, name,
                               is_flag ? " in a file, it is a flag only" : "");
        return kn_app_fail("serve", "%s: there is no setting \"%s\"; did you mean \"%s\"?", path, name, near);
    }
    if (s->kind == KN_SERVE_KIND_LIST && json_is_array(value)) {
        int status = KN_APP_EXIT_OK;
        for (size_t i = 0; i < json_array_size(value) && !status; i++)
            status = set_value(opts, path, s, json_array_get(value, i));
        return status;
    }
    if (json_is_null(value) || (skip_keys && !strcmp(name, "api_key_file") && json_is_string(value)))
        return KN_APP_EXIT_OK; /* null: the default, as --print-config writes it */
    return set_value(opts, path, s, value);
}

int kn_serve_config_read(struct kn_serve_opts *opts, const char *path, bool skip_keys)
{
    const char *why, *name;
    size_t n = 0;
    json_error_t error;
    json_t *value;
    char *text = kn_app_read_file(path, &n, &why);
    if (!text)
        return kn_app_fail("serve", "cannot read %s: %s", path, why);
    opts->root = json_loadb(text, n, JSON_REJECT_DUPLICATES, &error);
    free(text);
    if (!opts->root)
        return kn_app_fail("serve", "%s:%d:%d: this is no JSON: %s", path, error.line, error.column, error.text);
    if (!json_is_object(opts->root))
        return kn_app_fail("serve", "%s: takes an object, {\"port\": 8080, ...}, not %s", path, type_name(opts->root));
    int status = KN_APP_EXIT_OK;
    json_object_foreach(opts->root, name, value) {
        if ((status = take(opts, path, name, value, skip_keys)))
            break;
    }
    return status;
}

/* The next word of a line, ended by NUL; NULL: none. */
static char *next_word(char **at)
{
    char *word = *at + strspn(*at, " \t\r");
    if (!*word || *word == '#')
        return NULL;
    char *end = word + strcspn(word, " \t\r");
    *at = *end ? end + 1 : end;
    *end = '\0';
    return word;
}

int kn_serve_keys_read(struct kn_serve_opts *opts, const char *path)
{
    const char *why;
    size_t n = 0, n_before = opts->n_keys, number = 0;
    opts->key_text = kn_app_read_file(path, &n, &why);
    if (!opts->key_text)
        return kn_app_fail("serve", "cannot read %s: %s", path, why);
    if (strlen(opts->key_text) != n)
        return kn_app_fail("serve", "%s: is no text: it has a NUL byte", path);
    for (char *line = opts->key_text, *next; line; line = next) {
        next = strchr(line, '\n');
        if (next)
            *next++ = '\0';
        number++;
        char *key = next_word(&line);
        if (!key)
            continue;
        char *name = next_word(&line), *salt = name ? next_word(&line) : NULL;
        if (salt && next_word(&line))
            return kn_app_fail("serve", "%s:%zu: a line is KEY [NAME [SALT]], and this one has more words", path, number);
        if (!kn_serve_add_key(opts, key, name, salt))
            return kn_app_fail("serve", "out of memory");
    }
    if (opts->n_keys == n_before) /* an empty file must not open the server to everybody */
        return kn_app_fail("serve", "%s: there is no key in it; a line is KEY [NAME [SALT]]", path);
    return KN_APP_EXIT_OK;
}

static json_t *optional_text(const char *text)
{
    return text ? kn_app_json_text(text, strlen(text)) : json_null();
}

bool kn_serve_config_print(const struct kn_serve_opts *opts, FILE *out)
{
    json_t *o = json_object(), *keys = json_array();
    for (size_t i = 0; i < kn_serve_n_settings; i++)
        json_object_set_new(o, kn_serve_settings[i].name, kn_serve_value(opts, &kn_serve_settings[i]));
    for (size_t i = 0; i < opts->n_keys; i++) {
        json_t *key = json_object();
        json_object_set_new(key, "key", json_string(MASK));
        json_object_set_new(key, "name", optional_text(opts->keys[i].name));
        json_object_set_new(key, "salt", optional_text(opts->keys[i].salt));
        json_array_append_new(keys, key);
    }
    json_object_set_new(o, "api_keys", keys);
    bool good = !json_dumpf(o, out, JSON_INDENT(2));
    json_decref(o);
    return fputc('\n', out) != EOF && !fflush(out) && good;
}
