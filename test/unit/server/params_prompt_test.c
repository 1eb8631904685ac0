/* SPDX-License-Identifier: Apache-2.0 */
/* How messages become a prompt: whose turn it is at the end, texts that stay texts, and how much work hostile bodies make. */
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
#include "model/effort.h"
#include "server/api/params.h"
#include "support/open_tiny.h"

#define LLAMA3 "<|start_header_id|><|eot_id|>"
#define GEMMA "<start_of_turn><end_of_turn>"
#define MISTRAL "[INST] x [/INST]"

static struct kni_params_limits limits = {.n_ctx = 512, .max_choices = 8, .model_name = "tiny"};
static unsigned n_asked, stop_at;

static bool asked(void *user)
{
    (void)user;
    return ++n_asked == stop_at;
}

static struct kn_model *open_with(const char *template_text, bool spm)
{
    struct kn_model *model = kn_open_tiny(&(struct kn_tiny_opts){.n_layer = 1, .chat_template = template_text, .spm = spm});
    assert_non_null(model);
    return model;
}

static void expect(const struct kn_model *model, const struct kni_params_prompt *p, const char *text)
{
    int32_t ids[512];
    size_t n = 512;
    assert_int_equal(kn_model_tokenize(model, text, strlen(text), KN_TOKENIZE_SPECIAL, ids, &n), KN_OK);
    assert_int_equal(p->n_tokens, n);
    assert_memory_equal(p->tokens, ids, n * sizeof *ids);
}

/* The same body to the chat's route and to /tokenize. want NULL: refused, param and text say why. */
static void both(const struct kn_model *model, const char *body, const char *want, const char *param, const char *text)
{
    struct kni_params p;
    struct kni_params_tokenize t;
    struct kni_params_error e;
    for (int route = 0; route < 2; route++) {
        enum kn_status s = route ? kni_params_parse_tokenize(&t, model, &limits, body, strlen(body), &e)
                                 : kni_params_parse(&p, true, model, &limits, body, strlen(body), &e);
        if ((s == KN_OK) != (want != NULL) || (!want && (strcmp(e.param, param) || !strstr(e.text, text) || e.status != 400)))
            fail_msg("%s: %s, param \"%s\": %s", body, kn_status_name(s), e.param, e.text);
        if (want)
            expect(model, route ? &t.prompt : p.prompts, want);
        if (route)
            kni_free(t.prompt.tokens);
        else
            kni_params_fini(&p);
    }
}

#define TALK(last) "{\"messages\":[{\"role\":\"user\",\"content\":\"a\"},{\"role\":\"assistant\",\"content\":" last "}]"

static void whose_turn(void **state)
{
    (void)state;
    static const struct { const char *template_text, *head, *said, *shut, *reply; } templates[] = {
        {NULL, "<|im_start|>user\na<|im_end|>\n<|im_start|>assistant\n", "b ", "<|im_end|>\n", "<|im_start|>assistant\n"},
        {LLAMA3, "<|im_start|><|start_header_id|>user<|end_header_id|>\n\na<|eot_id|><|start_header_id|>assistant<|end_header_id|>\n\n", "b", "<|eot_id|>",
         "<|start_header_id|>assistant<|end_header_id|>\n\n"},
        {GEMMA, "<|im_start|><start_of_turn>user\na<end_of_turn>\n<start_of_turn>model\n", "b", "<end_of_turn>\n", "<start_of_turn>model\n"},
        {MISTRAL, "<|im_start|>[INST] a [/INST]", "b ", "<|im_end|>", ""},
    };
    for (size_t i = 0; i < sizeof templates / sizeof *templates; i++) {
        struct kn_model *model = open_with(templates[i].template_text, i % 2);
        char closed[512], opened[512], open[512];
        snprintf(open, sizeof open, "%s%s", templates[i].head, templates[i].said);
        snprintf(closed, sizeof closed, "%s%s", open, templates[i].shut);
        snprintf(opened, sizeof opened, "%s%s", closed, templates[i].reply);
        both(model, TALK("\"b \"") "}", opened, NULL, NULL);
        both(model, TALK("\"b \"") ",\"add_generation_prompt\":true,\"continue_final_message\":false}", opened, NULL, NULL);
        both(model, TALK("\"b \"") ",\"add_generation_prompt\":null,\"continue_final_message\":null}", opened, NULL, NULL);
        both(model, TALK("\"b \"") ",\"add_generation_prompt\":false}", closed, NULL, NULL);
        both(model, TALK("\"b \"") ",\"continue_final_message\":true}", open, NULL, NULL);
        both(model, TALK("[{\"type\":\"text\",\"text\":\"b \"}]") ",\"continue_final_message\":true,\"add_generation_prompt\":false}", open, NULL, NULL);
        both(model, TALK("\"b \"") ",\"continue_final_message\":true,\"add_generation_prompt\":true}", NULL, "continue_final_message", "both true");
        both(model, "{\"messages\":[{\"role\":\"user\",\"content\":\"a\"}],\"continue_final_message\":true}", NULL, "continue_final_message", "not the assistant's");
        both(model, TALK("null") ",\"continue_final_message\":true}", NULL, "continue_final_message", "no content");
        both(model, TALK("\"b \"") ",\"continue_final_message\":1}", NULL, "continue_final_message", "true or false");
        both(model, TALK("\"b \"") ",\"add_generation_prompt\":\"no\"}", NULL, "add_generation_prompt", "true or false");
        kn_model_close(&model);
    }
}

/* The answer's own role is echoed, nobody else. */
static void echo(void **state)
{
    (void)state;
    struct kn_model *model = open_with(LLAMA3, false);
    static const struct { const char *body, *text; } talks[] = {
        {TALK("\" b \"") ",\"echo\":true}", " b "}, {TALK("\" b \"") ",\"echo\":true,\"continue_final_message\":true}", " b "},
        {TALK("\" b \"") ",\"echo\":false}", NULL}, {TALK("null") ",\"echo\":true}", ""},
        {"{\"messages\":[{\"role\":\"user\",\"content\":\"a\"}],\"echo\":true}", NULL},
        {"{\"messages\":[{\"role\":\"user\",\"content\":\"a\"}],\"echo\":true,\"add_generation_prompt\":false}", NULL},
    };
    for (size_t i = 0; i < sizeof talks / sizeof *talks; i++) {
        struct kni_params p;
        struct kni_params_error e;
        assert_int_equal(kni_params_parse(&p, true, model, &limits, talks[i].body, strlen(talks[i].body), &e), KN_OK);
        assert_int_equal(p.prompts->text != NULL, talks[i].text != NULL);
        if (talks[i].text)
            assert_string_equal(p.prompts->text, talks[i].text);
        kni_params_fini(&p);
    }
    kn_model_close(&model);
}

/* A text without a template has no message to continue; whether a turn is opened makes no difference to it. */
static void not_for_texts(void **state)
{
    (void)state;
    struct kn_model *model = open_with(NULL, false);
    static const char *const names[] = {"add_generation_prompt", "continue_final_message"}, *const values[] = {"false", "null", "true", "0"};
    for (int i = 0; i < 2; i++)
        for (int k = 0; k < 4; k++)
            for (int route = 0; route < 2; route++) {
                char body[128];
                enum kn_status want = k < 2 || (k == 2 && !i) ? KN_OK : k == 3 && route ? KN_E_FORMAT : KN_E_UNSUPPORTED;
                struct kni_params p = {0};
                struct kni_params_tokenize t = {0};
                struct kni_params_error e;
                snprintf(body, sizeof body, "{\"prompt\":\"x\",\"%s\":%s}", names[i], values[k]);
                assert_int_equal(route ? kni_params_parse_tokenize(&t, model, &limits, body, strlen(body), &e)
                                       : kni_params_parse(&p, false, model, &limits, body, strlen(body), &e), want);
                if (want != KN_OK)
                    assert_string_equal(e.param, names[i]);
                kni_free(t.prompt.tokens);
                kni_params_fini(&p);
            }
    kn_model_close(&model);
}

/* {"messages": [a text that spells a control token, n empty ones in turn]} */
static char *many_messages(size_t n, size_t *n_body)
{
    struct kni_buf b = {0};
    kni_buf_text(&b, "{\"messages\":[{\"role\":\"user\",\"content\":\" x <|im_end|> \"}");
    for (size_t i = 0; i < n; i++)
        kni_buf_text(&b, i % 2 ? ",{\"role\":\"user\",\"content\":\"\"}" : ",{\"role\":\"assistant\",\"content\":\"\"}");
    kni_buf_text(&b, "]}");
    char *body = kni_buf_take(&b, n_body);
    assert_non_null(body);
    return body;
}

/* Work and allocations grow as the messages do: twice as many cost at most a tenth more than twice. */
static void linear(void **state)
{
    (void)state;
    static const char *const templates[] = {NULL, LLAMA3, GEMMA, MISTRAL};
    for (size_t i = 0; i < 4; i++)
        for (int spm = i % 2; spm <= (int)(i % 2); spm++) { /* each template with one of the two tokenizers */
            struct kn_model *model = open_with(templates[i], spm);
            struct kni_params_limits wide = {.n_ctx = 1u << 24, .max_choices = 1, .model_name = "tiny", .stop = asked};
            uint64_t steps = 0, allocs = 0;
            for (size_t n = 20000; n <= 80000; n *= 2) {
                size_t n_body;
                char *body = many_messages(n, &n_body);
                struct kni_params p;
                struct kni_params_error e;
                uint64_t before = kni_alloc_get_stats(KNI_ALLOC_TAG_COUNT).n_allocs;
                n_asked = stop_at = 0;
                if (kni_params_parse(&p, true, model, &wide, body, n_body, &e) != KN_OK)
                    fail_msg("%s", e.text);
                uint64_t n_allocs = kni_alloc_get_stats(KNI_ALLOC_TAG_COUNT).n_allocs - before;
                assert_true(p.prompts->n_tokens > n);
                assert_true(n_asked >= 2 && (!steps || n_asked * 10 <= steps * 22 + 10));
                assert_true(!allocs || n_allocs * 10 <= allocs * 22);
                steps = n_asked;
                allocs = n_allocs;
                kni_params_fini(&p);
                kni_free(body);
            }
            kn_model_close(&model);
        }
}

/* A body of one text: a prompt, content, or a message. */
static char *repeated(int kind, const char *part, size_t n_text, size_t *n_body)
{
    static const char *const heads[] = {"{\"prompt\":\"", "{\"content\":\"", "{\"messages\":[{\"role\":\"user\",\"content\":\""}, *const tails[] = {"\"}", "\"}", "\"}]}"};
    struct kni_buf b = {0};
    kni_buf_text(&b, heads[kind]);
    for (size_t n = 0, n_part = strlen(part); n + n_part <= n_text; n += n_part)
        kni_buf_add(&b, part, n_part);
    kni_buf_text(&b, tails[kind]);
    char *body = kni_buf_take(&b, n_body);
    assert_non_null(body);
    return body;
}

/* What can never fit is found out by a beginning, whatever it is made of: work does not grow with the body. */
static void refused_early(void **state)
{
    (void)state;
    static const char *const parts[] = {"a", "the ", " ", "\\n", "1", "<|im_end|>", "\\u0301\\u0323", "\\uac00", "!", "\\u2581", "<|im_"};
    enum { N = 1 << 20 };
    for (int kind = 0; kind < 3; kind++) { /* byte-level, with form C, SentencePiece */
        struct kn_model *model = kn_open_tiny(&(struct kn_tiny_opts){.n_layer = 1, .spm = kind == 2, .pre = kind == 1 ? "qwen2" : NULL});
        assert_non_null(model);
        for (size_t i = 0; i < sizeof parts / sizeof *parts; i++)
            for (int chat = 0; chat < 2; chat++) {
                size_t n;
                char *body = repeated(chat ? 2 : 0, parts[i], N, &n);
                struct kni_params_limits l = {.n_ctx = 512, .max_choices = 1, .model_name = "tiny", .stop = asked};
                struct kni_params p;
                struct kni_params_error e;
                n_asked = stop_at = 0;
                enum kn_status s = kni_params_parse(&p, chat, model, &l, body, n, &e);
                if (s != KN_E_CONTEXT || !strstr(e.text, "more than twice"))
                    fail_msg("%s: %s: %s", parts[i], kn_status_name(s), e.text);
                if (n_asked > 2)
                    fail_msg("%s: asked %u times", parts[i], n_asked);
                kni_params_fini(&p);
                kni_free(body);
            }
        kn_model_close(&model);
    }
}

/* Nobody waits any more: the work ends within a stride, on every route, and nothing is left. */
static void given_up(void **state)
{
    (void)state;
    enum { N = 1 << 19 };
    for (int spm = 0; spm < 2; spm++) {
        struct kn_model *model = open_with(NULL, spm);
        for (int i = 0; i < 6; i++) {
            size_t n;
            char *body = repeated(i / 2, i % 2 ? " " : "l", N, &n); /* both merge */
            for (stop_at = 1; stop_at <= 4; stop_at++) {
                struct kni_params_limits l = {.n_ctx = 1u << 24, .max_choices = 1, .model_name = "tiny", .stop = asked};
                struct kni_params p = {0};
                struct kni_params_tokenize t = {0};
                struct kni_params_error e;
                uint64_t before = kni_alloc_get_stats(KNI_ALLOC_TAG_COUNT).current_bytes;
                n_asked = 0;
                assert_int_equal(i / 2 == 1 || i / 2 == 2 ? kni_params_parse_tokenize(&t, model, &l, body, n, &e)
                                                           : kni_params_parse(&p, false, model, &l, body, n, &e), KN_E_CANCELLED);
                assert_int_equal(n_asked, stop_at);
                assert_int_equal(e.status, 503);
                kni_free(t.prompt.tokens);
                kni_params_fini(&p);
                assert_int_equal(kni_alloc_get_stats(KNI_ALLOC_TAG_COUNT).current_bytes, before);
            }
            kni_free(body);
        }
        kn_model_close(&model);
    }
}

/* Any allocation may fail, of either tokenizer: out of memory is said, and nothing is left. */
static void memory_runs_out(void **state)
{
    (void)state;
    static const char *const bodies[] = {
        "{\"messages\":[{\"role\":\"user\",\"content\":\"x \\u2581 <|im_end|>\"},{\"role\":\"assistant\",\"content\":\"e\\u0301\\u0323 \"}],\"echo\":true}",
        "{\"messages\":[{\"role\":\"user\",\"content\":\"\"},{\"role\":\"assistant\",\"content\":\"\\u2581\"}],\"continue_final_message\":true}",
    };
    for (int kind = 0; kind < 3; kind++) {
        struct kn_model *model = kn_open_tiny(&(struct kn_tiny_opts){.n_layer = 1, .spm = kind == 2, .pre = kind == 1 ? "qwen2" : NULL});
        assert_non_null(model);
        uint64_t before = kni_alloc_get_stats(KNI_ALLOC_TAG_COUNT).current_bytes;
        for (size_t k = 0; k < sizeof bodies / sizeof *bodies; k++) {
            enum kn_status s = KN_E_NOMEM;
            for (uint64_t i = 1; s != KN_OK; i++) {
                struct kni_params p;
                struct kni_params_error e;
                kni_alloc_fault_arm(i, false);
                s = kni_params_parse(&p, true, model, &limits, bodies[k], strlen(bodies[k]), &e);
                bool hit = kni_alloc_fault_hit();
                kni_alloc_fault_arm(0, false);
                kni_params_fini(&p);
                assert_true(hit ? s == KN_E_NOMEM && e.status == 503 : s == KN_OK);
                assert_int_equal(kni_alloc_get_stats(KNI_ALLOC_TAG_COUNT).current_bytes, before);
                assert_true(i < 1000);
            }
        }
        kn_model_close(&model);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(whose_turn), cmocka_unit_test(echo), cmocka_unit_test(not_for_texts), cmocka_unit_test(linear), cmocka_unit_test(refused_early),
        cmocka_unit_test(given_up),   cmocka_unit_test(memory_runs_out),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
