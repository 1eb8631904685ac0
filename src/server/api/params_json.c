/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The walk over a body, see params_json.h. One loop with a stack of levels, no recursion.
 *
 *     level: object or array, and whose members the table describes: a group such as "" or "messages[]." (none: all is read)
 *
 * A member that is not read begins a part whose cost is counted apart, and which ends with the member's value. Its name goes with it, and
 * one comma: the one behind it, or, where it is its object's last, the one before, which the level remembers.
 */
#include "server/api/params_json.h"

#include <string.h>

#include "base/utf8.h"

enum { OBJECT_BYTES = 240, ARRAY_BYTES = 144, MEMBER_BYTES = 144, ELEMENT_BYTES = 24, STRING_BYTES = 96, NUMBER_BYTES = 32, MAX_GROUP = 64 };

struct level {
    bool array;
    bool known;            /* group holds the prefix of its members' names in the table; of an array: of its elements' members */
    uint8_t n_group;
    char group[MAX_GROUP];
    size_t comma;          /* of an object: the last one that is left; 0: none */
};

enum want { WANT_VALUE, WANT_VALUE_OR_END, WANT_NAME, WANT_NAME_OR_END, WANT_COLON, WANT_COMMA_OR_END, WANT_NOTHING };

struct walk {
    enum kni_params_route route;
    const char *body;
    size_t n, at;
    char *blank;           /* the body, to be changed; NULL */
    struct level levels[KNI_JSON_MAX_DEPTH];
    size_t depth;
    size_t ignored_depth;  /* the level of a member that is not read, whose value is walked over; 0: none */
    size_t ignored_at;     /* where its name begins */
    bool drop_comma;       /* the member that ended last has been blanked, and a comma goes with it */
    struct level next;     /* of the value of the member whose name came last, should it be an object or array */
    uint64_t longest;      /* token that is read */
    struct kni_json_cost *cost;
};

static void charge(struct walk *w, uint64_t bytes, bool value)
{
    if (w->ignored_depth) {
        w->cost->ignored += bytes;
    } else {
        w->cost->bytes += bytes;
        w->cost->n_values += value;
    }
}

static int hex(char c)
{
    return c >= '0' && c <= '9' ? c - '0' : (c | 32) >= 'a' && (c | 32) <= 'f' ? (c | 32) - 'a' + 10 : -1;
}

/* The four digits at p; -1: they are none, or behind end. */
static int32_t unit(const char *p, const char *end)
{
    int32_t u = 0;
    if (end - p < 4)
        return -1;
    for (int i = 0; i < 4; i++)
        u = hex(p[i]) < 0 || u < 0 ? -1 : u * 16 + hex(p[i]);
    return u;
}

/* Behind the escape at p, which follows a backslash; NULL: there is none, or one that no text may have. *c: the ASCII character, or 0. */
static const char *escape(const char *p, const char *end, char *c)
{
    static const char plain[] = "\"\\/bfnrt", meant[] = "\"\\/\b\f\n\r\t";
    const char *found = p < end && *p ? strchr(plain, *p) : NULL;
    *c = found ? meant[found - plain] : 0;
    if (found)
        return p + 1;
    if (p == end || *p != 'u')
        return NULL;
    int32_t u = unit(p + 1, end);
    if (u <= 0 || (u >= 0xdc00 && u < 0xe000))
        return NULL;
    *c = u < 128 ? (char)u : 0;
    if (u < 0xd800 || u >= 0xdc00)
        return p + 5;
    if (end - p < 11 || p[5] != '\\' || p[6] != 'u')
        return NULL;
    u = unit(p + 7, end);
    return u >= 0xdc00 && u < 0xe000 ? p + 11 : NULL;
}

/* Moves behind the string that begins at w->at, and writes it to text where that has room; one that does not fit, or is not ASCII, is as
 * good as unknown: "". */
static bool string(struct walk *w, char *text, size_t room)
{
    const char *p = w->body + w->at + 1, *end = w->body + w->n;
    size_t n = 0, length;
    bool fits = text != NULL;
    while (p < end && *p != '"') {
        char c = *p;
        if ((unsigned char)c < 0x20)
            return false;
        if (c == '\\') {
            p = escape(p + 1, end, &c);
            if (!p)
                return false;
        } else if ((unsigned char)c < 0x80) {
            p++;
        } else {
            if (kni_utf8_next(p, (size_t)(end - p), &length) != KNI_UTF8_WHOLE)
                return false;
            p += length;
            c = 0;
        }
        fits = fits && c && n + 1 < room;
        if (fits)
            text[n++] = c;
    }
    if (p >= end)
        return false;
    if (text)
        text[fits ? n : 0] = '\0';
    w->at = (size_t)(p - w->body) + 1;
    return true;
}

static size_t digits(const struct walk *w, size_t at)
{
    while (at < w->n && w->body[at] >= '0' && w->body[at] <= '9')
        at++;
    return at;
}

static bool number(struct walk *w)
{
    size_t at = w->at + (w->body[w->at] == '-'), end = digits(w, at);
    if (end == at || (w->body[at] == '0' && end > at + 1))
        return false;
    if (end < w->n && w->body[end] == '.') {
        at = end + 1;
        if ((end = digits(w, at)) == at)
            return false;
    }
    if (end < w->n && (w->body[end] | 32) == 'e') {
        at = end + 1;
        at += at < w->n && (w->body[at] == '+' || w->body[at] == '-');
        if ((end = digits(w, at)) == at)
            return false;
    }
    w->at = end;
    return true;
}

static bool literal(struct walk *w)
{
    static const char *const words[] = {"true", "false", "null"};
    for (size_t i = 0; i < 3; i++) {
        const size_t n = strlen(words[i]);
        if (w->n - w->at >= n && !memcmp(w->body + w->at, words[i], n)) {
            w->at += n;
            return true;
        }
    }
    return false;
}

/* Whether the table has fields whose names begin with that. */
static bool is_group(const char *group)
{
    size_t n = strlen(group), low = 0, high = kni_n_fields;
    while (low < high) {
        size_t middle = low + (high - low) / 2;
        int difference = strncmp(group, kni_fields[middle].name, n);
        if (!difference)
            return true;
        if (difference < 0)
            high = middle;
        else
            low = middle + 1;
    }
    return false;
}

/* The member whose name has been read: whether anybody reads it, and whose group its value's members are. */
static void begin_member(struct walk *w, const struct level *level, size_t name_at, const char *name)
{
    w->next.known = false;
    if (w->ignored_depth || !level->known)
        return;
    const struct kni_field *f = *name ? kni_field_find(level->group, name) : NULL;
    if (!f || f->rules[w->route] == 'i') {
        w->ignored_depth = w->depth;
        w->ignored_at = name_at;
    } else if (level->n_group + strlen(name) + 4 < MAX_GROUP && f->rules[w->route] == 'd') {
        w->next = *level;
        memcpy(w->next.group + w->next.n_group, name, strlen(name) + 1);
        w->next.n_group = (uint8_t)(w->next.n_group + strlen(name));
        w->next.known = true;
    }
}

static bool open_level(struct walk *w, bool array)
{
    const struct level *outer = w->depth ? &w->levels[w->depth - 1] : NULL;
    if (w->depth == KNI_JSON_MAX_DEPTH)
        return false;
    struct level *level = &w->levels[w->depth++];
    if (!outer) {
        *level = (struct level){.known = !array};
    } else if (outer->array) {
        *level = (struct level){.known = outer->known && !array};
        if (level->known) {
            memcpy(level->group, outer->group, outer->n_group + 1u);
            level->n_group = outer->n_group;
        }
    } else {
        *level = (struct level){.known = w->next.known};
        if (level->known) {
            memcpy(level->group, w->next.group, w->next.n_group);
            memcpy(level->group + w->next.n_group, array ? "[]." : ".", array ? 4 : 2);
            level->n_group = (uint8_t)(w->next.n_group + (array ? 3 : 1));
            level->known = is_group(level->group);
        }
    }
    level->array = array;
    w->next.known = false;
    w->at++;
    return true;
}

/* A value's end: also of a member that was not read. */
static void end_value(struct walk *w)
{
    if (!w->ignored_depth || w->ignored_depth != w->depth)
        return;
    w->ignored_depth = 0;
    w->drop_comma = w->blank != NULL;
    for (size_t i = w->ignored_at; i < w->at && w->blank; i++)
        w->blank[i] = w->blank[i] == '\n' ? '\n' : ' ';
}

/* One value, or its beginning. */
static bool value(struct walk *w, enum want *want)
{
    const size_t at = w->at;
    const char c = w->body[at];
    bool good = true;
    if (c == '{' || c == '[') {
        charge(w, c == '{' ? OBJECT_BYTES : ARRAY_BYTES, true);
        *want = c == '{' ? WANT_NAME_OR_END : WANT_VALUE_OR_END;
        return open_level(w, c == '[');
    }
    if (c == '"') {
        good = string(w, NULL, 0);
        charge(w, STRING_BYTES + (w->at - at), true);
    } else if (c == '-' || (c >= '0' && c <= '9')) {
        good = number(w);
        charge(w, NUMBER_BYTES, true);
    } else {
        good = literal(w);
        charge(w, 0, true);
    }
    if (!w->ignored_depth && w->at - at > w->longest)
        w->longest = w->at - at;
    *want = w->depth ? WANT_COMMA_OR_END : WANT_NOTHING;
    return good;
}

static bool name(struct walk *w, enum want *want)
{
    char text[MAX_GROUP];
    const size_t at = w->at;
    if (!string(w, text, sizeof text))
        return false;
    begin_member(w, &w->levels[w->depth - 1], at, text);
    charge(w, MEMBER_BYTES + (w->at - at), false);
    if (!w->ignored_depth && w->at - at > w->longest)
        w->longest = w->at - at;
    *want = WANT_COLON;
    return true;
}

static bool close_level(struct walk *w, char c, enum want *want)
{
    if (!w->depth || w->levels[w->depth - 1].array != (c == ']'))
        return false;
    if (w->drop_comma && w->levels[w->depth - 1].comma)
        w->blank[w->levels[w->depth - 1].comma] = ' ';
    w->drop_comma = false;
    w->depth--;
    w->at++;
    *want = w->depth ? WANT_COMMA_OR_END : WANT_NOTHING;
    return true;
}

static bool comma(struct walk *w, enum want *want)
{
    struct level *level = &w->levels[w->depth - 1];
    if (w->drop_comma)
        w->blank[w->at] = ' ';
    else
        level->comma = w->at;
    w->drop_comma = false;
    *want = level->array ? WANT_VALUE : WANT_NAME;
    w->at++;
    return true;
}

/* One token. False: what stands there is no JSON. */
static bool step(struct walk *w, enum want *want)
{
    const char c = w->body[w->at];
    bool good = false;
    switch (*want) {
    case WANT_VALUE_OR_END:
        if (c == ']') {
            good = close_level(w, c, want);
            break;
        }
        /* fallthrough */
    case WANT_VALUE:
        if (w->depth && w->levels[w->depth - 1].array)
            charge(w, ELEMENT_BYTES, false);
        good = value(w, want);
        if (good && (*want == WANT_NAME_OR_END || *want == WANT_VALUE_OR_END))
            return true; /* it has only begun */
        break;
    case WANT_NAME_OR_END:
        if (c == '}') {
            good = close_level(w, c, want);
            break;
        }
        /* fallthrough */
    case WANT_NAME: return c == '"' && name(w, want);
    case WANT_COLON:
        *want = WANT_VALUE;
        w->at++;
        return c == ':';
    case WANT_COMMA_OR_END:
        if (c == ',')
            return comma(w, want);
        good = (c == '}' || c == ']') && close_level(w, c, want);
        break;
    case WANT_NOTHING: return false;
    }
    if (good)
        end_value(w);
    return good;
}

static bool walk(struct walk *w)
{
    enum want want = WANT_VALUE;
    for (;;) {
        while (w->at < w->n && w->body[w->at] && strchr(" \t\r\n", w->body[w->at]))
            w->at++;
        if (w->at == w->n)
            return want == WANT_NOTHING;
        if (!step(w, &want))
            return false;
    }
}

/* Of bytes whose grammar is not known: by their marks. */
static void measure_marks(struct kni_json_cost *out, const char *body, size_t n_body)
{
    bool in_string = false;
    size_t depth = 0;
    *out = (struct kni_json_cost){.bytes = 5 * (uint64_t)n_body};
    for (size_t i = 0; i < n_body; i++) {
        const char c = body[i];
        if (in_string) {
            i += c == '\\';
            in_string = c != '"';
            continue;
        }
        in_string = c == '"';
        if (c == '[' || c == '{')
            depth++;
        else if ((c == ']' || c == '}') && depth)
            depth--;
        if (depth > KNI_JSON_MAX_DEPTH && !out->too_deep)
            out->too_deep = i + 1;
        out->n_values += c == ',' || c == '[' || c == '{';
        out->bytes += c == '{' ? OBJECT_BYTES : c == '[' ? ARRAY_BYTES + ELEMENT_BYTES + NUMBER_BYTES : c == '"' ? STRING_BYTES : c == ':' ? MEMBER_BYTES : c == ',' ? ELEMENT_BYTES + NUMBER_BYTES : 0;
    }
}

void kni_json_measure(struct kni_json_cost *out, enum kni_params_route route, const char *body, size_t n_body)
{
    struct walk w = {.route = route, .body = body, .n = n_body, .cost = out};
    *out = (struct kni_json_cost){0};
    out->is_json = walk(&w);
    out->bytes += 5 * w.longest + 1024; /* jansson's text of the token that is read, doubling, and its value */
    if (!out->is_json)
        measure_marks(out, body, n_body);
}

void kni_json_prune(enum kni_params_route route, char *body, size_t n_body)
{
    struct kni_json_cost cost = {0};
    struct walk w = {.route = route, .body = body, .n = n_body, .blank = body, .cost = &cost};
    walk(&w);
}
