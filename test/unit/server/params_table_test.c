/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Asks the parser about every field of the table on every route, and holds the table of doc/server.md against it. --print writes what
 * belongs between that table's marks.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/alloc.h"
#include "base/buf.h"
#include "server/api/params.h"
#include "server/api/params_table.h"
#include "support/params_bed.h"

#define BEGIN "<!-- fields: begin (params_table_test --print) -->\n"
#define END "<!-- fields: end -->\n"

static const struct kni_params_limits limits = {.n_ctx = 128, .max_choices = 8, .model_name = "tiny"};

/* Values to try, and what of struct kni_field takes them. */
static const struct { const char *literal; unsigned flag; const char *text; } values[] = {
    {"null", 0xff, NULL},  {"true", KNI_NEUTRAL_TRUE, NULL}, {"false", KNI_NEUTRAL_FALSE, NULL}, {"1", KNI_NEUTRAL_ONE, NULL},
    {"1.0", KNI_NEUTRAL_ONE, NULL}, {"0", KNI_NEUTRAL_ZERO, NULL}, {"0.0", KNI_NEUTRAL_ZERO, NULL}, {"-1", KNI_NEUTRAL_MINUS, NULL},
    {"0.25", 0, NULL},     {"7", 0, NULL},                   {"-2", 0, NULL},                    {"\"x\"", 0, "x"},
    {"\"auto\"", 0, "auto"}, {"\"none\"", 0, "none"},        {"\"error\"", 0, "error"},          {"\"disabled\"", 0, "disabled"},
    {"\"all\"", 0, "all"}, {"\"medium\"", 0, "medium"},      {"\"non\"", 0, "non"},              {"\"auto none\"", 0, "auto none"},
    {"\"\"", KNI_NEUTRAL_TEXT, NULL}, {"[]", KNI_NEUTRAL_LIST, NULL}, {"{}", KNI_NEUTRAL_OBJECT, NULL}, {"[1]", 0, NULL},
    {"[\"x\"]", 0, NULL},  {"{\"a\":1}", 0, NULL},           {"[[]]", 0, NULL},                  {"{\"type\":\"json_object\"}", 0, NULL},
};

static bool starts(const char *text, const char *with)
{
    return !strncmp(text, with, strlen(with));
}

static enum kn_status parse(enum kni_params_route route, const char *body, struct kni_params_error *e)
{
    enum kn_status s;
    struct kni_params p;
    struct kni_params_tokenize t;
    struct kni_params_detokenize d;
    switch (route) {
    case KNI_PARAMS_ROUTE_TOKENIZE:
        s = kni_params_parse_tokenize(&t, model, &limits, body, strlen(body), e);
        kni_free(t.prompt.tokens);
        return s;
    case KNI_PARAMS_ROUTE_DETOKENIZE:
        s = kni_params_parse_detokenize(&d, model, &limits, body, strlen(body), e);
        kni_free(d.text);
        return s;
    default:
        s = kni_params_parse(&p, route == KNI_PARAMS_ROUTE_CHAT, model, &limits, body, strlen(body), e);
        kni_params_fini(&p);
        return s;
    }
}

/* A body that is fine but for the field's value. */
static void write_body(char *body, size_t room, enum kni_params_route route, const char *name, const char *value, bool done)
{
    static const char *const base[] = {"\"prompt\":\"x\"", "\"messages\":[{\"role\":\"user\",\"content\":\"x\"}]", "\"content\":\"x\"", "\"tokens\":[75]"};
    static const char *const texts[] = {"prompt", "messages", "content", "tokens", "text"};
    bool is_text = false;
    for (size_t i = 0; i < 5; i++)
        is_text = is_text || !strcmp(name, texts[i]);
    if (starts(name, "messages[].content[]."))
        snprintf(body, room, "{\"messages\":[{\"role\":\"user\",\"content\":[{\"type\":\"text\",\"text\":\"x\",\"%s\":%s}]}]}", name + 21, value);
    else if (!strcmp(name, "messages[].role"))
        snprintf(body, room, "{\"messages\":[{\"role\":%s,\"content\":\"x\"}]}", value);
    else if (!strcmp(name, "messages[].content"))
        snprintf(body, room, "{\"messages\":[{\"role\":\"user\",\"content\":%s}]}", value);
    else if (starts(name, "messages[]."))
        snprintf(body, room, "{\"messages\":[{\"role\":\"user\",\"content\":\"x\",\"%s\":%s}]}", name + 11, value);
    else if (starts(name, "stream_options."))
        snprintf(body, room, "{%s,\"stream\":true,\"stream_options\":{\"%s\":%s}}", base[route], name + 15, value);
    else
        snprintf(body, room, "{\"%s\":%s%s%s}", name, value, is_text && done ? "" : ",", is_text && done ? "" : base[route]);
}

/* The name as errors have it. */
static void write_param(char *param, size_t room, const char *name)
{
    if (starts(name, "messages[].content[]."))
        snprintf(param, room, "messages[0].content[0].%s", name + 21);
    else if (starts(name, "messages[]."))
        snprintf(param, room, "messages[0].%s", name + 11);
    else
        snprintf(param, room, "%s", name);
}

static bool is_taken(const struct kni_field *f, size_t v)
{
    const char *found = values[v].text && f->neutral_texts ? strstr(f->neutral_texts, values[v].text) : NULL;
    if (!strcmp(values[v].literal, "null"))
        return true;
    if (found && !strchr(values[v].text, ' ')) { /* a word of the list, whole */
        char after = found[strlen(values[v].text)];
        return (found == f->neutral_texts || found[-1] == ' ') && (!after || after == ' ');
    }
    return (f->neutral & values[v].flag) != 0;
}

static bool is_message_field(const struct kni_field *f, enum kni_params_route route)
{
    return starts(f->name, "messages[].") && route != KNI_PARAMS_ROUTE_CHAT && route != KNI_PARAMS_ROUTE_TOKENIZE;
}

static void is_in_order(void **state)
{
    (void)state;
    for (size_t i = 0; i < kni_n_fields; i++) {
        const struct kni_field *f = &kni_fields[i];
        if (i && strcmp(kni_fields[i - 1].name, f->name) >= 0)
            fail_msg("%s is not behind %s", f->name, kni_fields[i - 1].name);
        assert_ptr_equal(kni_field_find("", f->name), f);
        assert_int_equal(strlen(f->rules), KNI_PARAMS_ROUTE_COUNT);
        assert_int_equal(strspn(f->rules, "dri"), KNI_PARAMS_ROUTE_COUNT);
        assert_true(f->servers);
        if (!strcmp(f->rules, "iiii") && !f->note)
            fail_msg("%s is ignored and does not say why", f->name);
        if (f->kind >= KNI_FIELD_KIND_INTEGER)
            assert_true(f->low < f->high && strchr(f->rules, 'd'));
    }
    assert_ptr_equal(kni_field_find("messages[].", "name"), kni_field_find("", "messages[].name"));
    assert_null(kni_field_find("messages[].", "n"));
    assert_null(kni_field_find("", ""));
    assert_null(kni_field_find("", "zzz"));
}

static void refused_by_name(void **state)
{
    (void)state;
    for (size_t i = 0; i < kni_n_fields; i++)
        for (int route = 0; route < KNI_PARAMS_ROUTE_COUNT; route++)
            for (size_t v = 0; v < sizeof values / sizeof *values; v++) {
                const struct kni_field *f = &kni_fields[i];
                struct kni_params_error e;
                char body[256], param[64];
                if (f->rules[route] == 'd' || is_message_field(f, (enum kni_params_route)route))
                    continue;
                write_body(body, sizeof body, (enum kni_params_route)route, f->name, values[v].literal, false);
                write_param(param, sizeof param, f->name);
                enum kn_status s = parse((enum kni_params_route)route, body, &e);
                if (f->rules[route] == 'i' || is_taken(f, v)) {
                    if (s != KN_OK)
                        fail_msg("%s %s: %s: %s", kni_params_route_name((enum kni_params_route)route), body, e.param, e.text);
                    continue;
                }
                if (s != KN_E_UNSUPPORTED || e.status != 400 || strcmp(e.param, param) || !e.code || strcmp(e.code, "unsupported_parameter") ||
                    !starts(e.text, param))
                    fail_msg("%s %s: %s, param %s: %s", kni_params_route_name((enum kni_params_route)route), body, kn_status_name(s), e.param, e.text);
            }
}

/* What is done is read: an object is none of its values, but for what is one, which cannot stand alone. */
static void what_is_done_is_read(void **state)
{
    (void)state;
    for (size_t i = 0; i < kni_n_fields; i++)
        for (int route = 0; route < KNI_PARAMS_ROUTE_COUNT; route++) {
            const struct kni_field *f = &kni_fields[i];
            struct kni_params_error e;
            char body[256], param[64];
            if (f->rules[route] != 'd' || is_message_field(f, (enum kni_params_route)route) || starts(f->name, "messages[].content[]."))
                continue;
            write_body(body, sizeof body, (enum kni_params_route)route, f->name, "{\"a\":1}", true);
            write_param(param, sizeof param, f->name);
            enum kn_status s = parse((enum kni_params_route)route, body, &e);
            if (s == KN_OK || e.status != 400 || strcmp(e.param, param) || (e.code && !strcmp(e.code, "unsupported_parameter")))
                fail_msg("%s %s: %s, param %s: %s", kni_params_route_name((enum kni_params_route)route), body, kn_status_name(s), e.param, e.text);
        }
}

/* Ends of ranges are taken, what is beyond is not; 64 bits are not the end of what may come. */
static void ranges(void **state)
{
    (void)state;
    static const char *const beyond[] = {"9223372036854775808", "-9223372036854775809", "18446744073709551615", "1e400", "-1e400", "1E+999999",
                                         "123456789012345678901234567890123456789012345678901234567890"};
    for (size_t i = 0; i < kni_n_fields; i++)
        for (int route = 0; route < 2; route++) {
            const struct kni_field *f = &kni_fields[i];
            struct kni_params_error e;
            char body[256], range[96];
            if (f->rules[route] != 'd' || f->kind < KNI_FIELD_KIND_INTEGER)
                continue;
            kni_field_range(f, limits.max_choices, range, sizeof range);
            const char *from = strstr(range, "from ");
            for (size_t k = 0; k < sizeof beyond / sizeof *beyond; k++) {
                write_body(body, sizeof body, (enum kni_params_route)route, f->name, beyond[k], true);
                if (parse((enum kni_params_route)route, body, &e) == KN_OK || strcmp(e.param, f->name) || e.status != 400 || !strstr(e.text, from))
                    fail_msg("%s: param %s: %s", body, e.param, e.text);
            }
            char value[32];
            snprintf(value, sizeof value, "%lld", (long long)f->low - (f->low > INT64_MIN));
            write_body(body, sizeof body, (enum kni_params_route)route, f->name, value, true);
            if (f->low > INT64_MIN && (parse((enum kni_params_route)route, body, &e) == KN_OK || strcmp(e.param, f->name)))
                fail_msg("%s: param %s: %s", body, e.param, e.text);
            snprintf(value, sizeof value, "%s", f->kind == KNI_FIELD_KIND_INTEGER ? "1.5" : "\"1\"");
            write_body(body, sizeof body, (enum kni_params_route)route, f->name, value, true);
            if (parse((enum kni_params_route)route, body, &e) == KN_OK || strcmp(e.param, f->name) || !strstr(e.text, from))
                fail_msg("%s: param %s: %s", body, e.param, e.text);
        }
}

/* ---- the document */

static void put_values(struct kni_buf *b, const struct kni_field *f)
{
    static const char *const names[] = {"0", "1", "-1", "true", "false", "\"\"", "[]", "{}"};
    const char *between = "taken: ";
    for (unsigned k = 0; k < 8; k++)
        if (f->neutral & 1u << k) {
            kni_buf_format(b, "%s`%s`", between, names[k]);
            between = ", ";
        }
    for (const char *at = f->neutral_texts; at && *at;) {
        size_t n = strcspn(at, " ");
        kni_buf_format(b, "%s`\"%.*s\"`", between, (int)n, at);
        between = ", ";
        at += n + (at[n] == ' ');
    }
}

static void put_row(struct kni_buf *b, const struct kni_field *f)
{
    static const char *const servers[] = {"OpenAI", "llama.cpp", "vLLM", "SGLang", "Ollama", "others", "Kinema"};
    const char *between = "";
    char range[96] = "";
    kni_buf_format(b, "| `%s` | ", f->name);
    for (unsigned k = 0; k < 7; k++)
        if (f->servers & 1u << k) {
            kni_buf_format(b, "%s%s", between, servers[k]);
            between = ", ";
        }
    for (int route = 0; route < KNI_PARAMS_ROUTE_COUNT; route++)
        kni_buf_format(b, " | %s", f->rules[route] == 'd' ? "done" : f->rules[route] == 'r' ? "refused" : "-");
    kni_buf_text(b, " | ");
    put_values(b, f);
    if (f->kind >= KNI_FIELD_KIND_INTEGER)
        kni_field_range(f, UINT32_MAX, range, sizeof range);
    else if (f->kind == KNI_FIELD_KIND_BOOL)
        snprintf(range, sizeof range, "a boolean");
    kni_buf_format(b, "%s%s", f->neutral && *range ? "; " : "", range);
    kni_buf_format(b, "%s%s |\n", f->note && (*range || f->neutral || f->neutral_texts) ? "; " : "", f->note ? f->note : "");
}

static void put_table(struct kni_buf *b)
{
    kni_buf_text(b, "| field | known to | completions | chat | tokenize | detokenize | values and notes |\n");
    kni_buf_text(b, "| --- | --- | --- | --- | --- | --- | --- |\n");
    for (size_t i = 0; i < kni_n_fields; i++)
        put_row(b, &kni_fields[i]);
}

static void is_documented(void **state)
{
    (void)state;
    struct kni_buf want = {0};
    static char text[1 << 18];
    FILE *f = fopen(KN_SOURCE_DIR "/doc/server.md", "r");
    assert_non_null(f);
    size_t n = fread(text, 1, sizeof text - 1, f);
    fclose(f);
    text[n] = '\0';
    char *begin = strstr(text, BEGIN), *end = strstr(text, END);
    if (!begin || !end)
        fail_msg("doc/server.md has no marks for the table of fields");
    put_table(&want);
    assert_false(want.failed);
    begin += strlen(BEGIN);
    size_t length = (size_t)(end - begin), at = 0;
    while (at < length && at < want.n && begin[at] == want.data[at])
        at++;
    if (at != length || at != want.n)
        fail_msg("doc/server.md's table of fields is not params_table.c's at \"%.60s\": put there what params_table_test --print writes", want.data + at);
    kni_buf_fini(&want);
}

int main(int argc, char **argv)
{
    if (argc > 1 && !strcmp(argv[1], "--print")) {
        struct kni_buf b = {0};
        put_table(&b);
        fwrite(b.data, 1, b.n, stdout);
        kni_buf_fini(&b);
        return 0;
    }
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(is_in_order), cmocka_unit_test(refused_by_name), cmocka_unit_test(what_is_done_is_read), cmocka_unit_test(ranges),
        cmocka_unit_test(is_documented),
    };
    return cmocka_run_group_tests(tests, open_model, close_model);
}
