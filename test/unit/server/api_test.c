/* SPDX-License-Identifier: Apache-2.0 */
/* Handlers' whole answers: objects' fields, stop strings, log-probabilities, refusals, failures, clients that leave, memory that runs out. */
#include "support/api_bed.h"

#define HI KN_BED_HI

static void whole_chat(void **state)
{
    (void)state;
    struct bed b;
    start(&b, &(struct script){.texts = {"Hello \"\xc3\xa9\"\n"}, .n_cached = 3, .n_fetched = 2, .special_first = true});
    ask(&b, kni_api_chat, "{" HI ",\"seed\":7}");
    json_t *j = body_of(&b);
    assert_memory_equal(text_at(j, "id"), "chatcmpl-", 9);
    assert_string_equal(text_at(j, "object"), "chat.completion");
    assert_string_equal(text_at(j, "model"), "tiny \"q\"");
    assert_memory_equal(text_at(j, "system_fingerprint"), "kinema-", 7);
    assert_true(int_at(j, "created") > 1700000000);
    assert_int_equal(json_array_size(at(j, "choices")), 1);
    assert_int_equal(int_at(j, "choices.0.index"), 0);
    assert_string_equal(text_at(j, "choices.0.message.role"), "assistant");
    assert_string_equal(text_at(j, "choices.0.message.content"), "Hello \"\xc3\xa9\"\n");
    assert_true(json_is_null(at(j, "choices.0.message.refusal")));
    assert_true(json_is_null(at(j, "choices.0.logprobs")));
    assert_string_equal(text_at(j, "choices.0.finish_reason"), "stop");
    long long n = int_at(j, "usage.prompt_tokens");
    assert_true(n > 5);
    assert_int_equal(int_at(j, "usage.completion_tokens"), 12); /* 11 bytes and a control token */
    assert_int_equal(int_at(j, "usage.total_tokens"), n + 12);
    assert_int_equal(int_at(j, "usage.prompt_tokens_details.cached_tokens"), 5);
    assert_int_equal(int_at(j, "kinema.fetched_tokens"), 2);
    assert_int_equal(b.loop.seeds[0], 7);
    assert_int_equal(atomic_load(&b.loop.n_cancel), 0);
    json_decref(j);
    finish(&b);
}

static void reasons_and_choices(void **state)
{
    (void)state;
    struct bed b;
    start(&b, &(struct script){.texts = {"first", "second!", "\xff\xe2\x82"}, .reason = KN_STOP_REASON_LENGTH});
    ask(&b, kni_api_chat, "{" HI ",\"n\":3}");
    json_t *j = body_of(&b);
    assert_string_equal(text_at(j, "choices.0.message.content"), "first");
    assert_string_equal(text_at(j, "choices.1.message.content"), "second!");
    assert_string_equal(text_at(j, "choices.2.message.content"), "\xef\xbf\xbd\xef\xbf\xbd");
    assert_string_equal(text_at(j, "choices.1.finish_reason"), "length");
    assert_int_equal(int_at(j, "choices.2.index"), 2);
    assert_int_equal(int_at(j, "usage.completion_tokens"), 5 + 7 + 3);
    json_decref(j);
    finish(&b);
    start(&b, &(struct script){.texts = {"x", "y"}});
    ask(&b, kni_api_completions, "{\"prompt\":[\"aa\",\"b\",[5]],\"n\":2,\"echo\":true,\"seed\":1}");
    j = body_of(&b);
    assert_string_equal(text_at(j, "object"), "text_completion");
    assert_memory_equal(text_at(j, "id"), "cmpl-", 5);
    assert_int_equal(json_array_size(at(j, "choices")), 6);
    assert_string_equal(text_at(j, "choices.0.text"), "aax");
    assert_string_equal(text_at(j, "choices.3.text"), "by");
    assert_string_equal(text_at(j, "choices.4.text"), "\x02x");
    assert_int_equal(int_at(j, "choices.3.index"), 3);
    assert_int_equal(int_at(j, "usage.prompt_tokens"), 2 + 1 + 1);
    assert_int_equal(b.loop.n_calls, 3);
    json_decref(j);
    finish(&b);
}

static void stop_strings(void **state)
{
    (void)state;
    struct bed b;
    start(&b, &(struct script){.texts = {"one ENDtail", "two EN"}, .endless = true});
    ask(&b, kni_api_completions, "{\"prompt\":\"a\",\"n\":2,\"stop\":[\"END\",\"EN\"],\"logprobs\":0,\"max_tokens\":50}");
    json_t *j = body_of(&b);
    assert_string_equal(text_at(j, "choices.0.text"), "one ");
    assert_string_equal(text_at(j, "choices.1.text"), "two ");
    assert_string_equal(text_at(j, "choices.0.finish_reason"), "stop");
    assert_int_equal(int_at(j, "usage.completion_tokens"), 12); /* up to and with the stop string */
    assert_int_equal(json_array_size(at(j, "choices.0.logprobs.tokens")), 4); /* and none of its own tokens is described */
    assert_int_equal(atomic_load(&b.loop.n_finish), 2);
    json_decref(j);
    finish(&b);
}

static void log_probabilities(void **state)
{
    (void)state;
    struct bed b;
    start(&b, &(struct script){.texts = {"a\xc3\xa9z"}});
    ask(&b, kni_api_chat, "{" HI ",\"logprobs\":true,\"top_logprobs\":5}");
    json_t *j = body_of(&b), *list = at(j, "choices.0.logprobs.content");
    assert_int_equal(json_array_size(list), 4);
    assert_string_equal(text_at(list, "0.token"), "a");
    assert_true(json_real_value(at(list, "1.logprob")) == -1.5);
    assert_string_equal(text_at(list, "1.token"), "\xef\xbf\xbd");
    assert_int_equal(int_at(list, "1.bytes.0"), 0xc3);
    assert_int_equal(int_at(list, "2.bytes.0"), 0xa9);
    assert_int_equal(json_array_size(at(list, "0.top_logprobs")), 3); /* as many as there are */
    assert_string_equal(text_at(list, "0.top_logprobs.2.token"), "c");
    json_decref(j);
    finish(&b);
    start(&b, &(struct script){.texts = {"a\xc3\xa9z"}});
    ask(&b, kni_api_completions, "{\"prompt\":\"x\",\"logprobs\":2}");
    j = body_of(&b);
    list = at(j, "choices.0.logprobs");
    assert_string_equal(text_at(list, "tokens.0"), "a");
    assert_string_equal(text_at(list, "tokens.1"), "bytes:\\xc3");
    assert_true(json_real_value(at(list, "token_logprobs.3")) == -3.5);
    assert_int_equal(json_object_size(at(list, "top_logprobs.0")), 2);
    assert_true(json_real_value(at(list, "top_logprobs.0.b")) == -1.5);
    assert_int_equal(int_at(list, "text_offset.0"), 0);
    assert_int_equal(int_at(list, "text_offset.1"), 1);
    assert_int_equal(int_at(list, "text_offset.3"), 2);
    assert_int_equal(json_array_size(at(list, "text_offset")), 4);
    json_decref(j);
    finish(&b);
    start(&b, &(struct script){.texts = {"ab"}});
    ask(&b, kni_api_completions, "{\"prompt\":\"x\",\"logprobs\":0}");
    j = body_of(&b);
    assert_true(json_is_null(at(j, "choices.0.logprobs.top_logprobs")));
    assert_int_equal(int_at(j, "choices.0.logprobs.text_offset.1"), 1);
    json_decref(j);
    finish(&b);
}

static void expect_echo(json_t *choice, const char *text, size_t n_prompt, size_t n_answer)
{
    json_t *list = at(choice, "logprobs");
    assert_string_equal(text_at(choice, "text"), text);
    assert_int_equal(json_array_size(at(list, "tokens")), n_prompt + n_answer);
    assert_int_equal(json_array_size(at(list, "token_logprobs")), n_prompt + n_answer);
    assert_int_equal(json_array_size(at(list, "top_logprobs")), n_prompt + n_answer);
    assert_int_equal(json_array_size(at(list, "text_offset")), n_prompt + n_answer);
    assert_true(json_is_null(at(list, "token_logprobs.0")));
    assert_true(json_is_null(at(list, "top_logprobs.0")));
    for (size_t i = 1; i < n_prompt; i++)
        assert_true(json_number_value(json_array_get(at(list, "token_logprobs"), i)) == -0.25 * (double)i);
    for (size_t i = 0; i < n_answer; i++)
        assert_true(json_number_value(json_array_get(at(list, "token_logprobs"), n_prompt + i)) == -0.5 - (double)i);
}

/* The prompt's tokens come first, the first of them without a probability; each choice has them. */
static void echo_is_described(void **state)
{
    (void)state;
    for (long late = 0; late < 40; late += 20) {
        struct bed b;
        start(&b, &(struct script){.texts = {"xyz", "uvwST", "EN"}, .reason = KN_STOP_REASON_LENGTH, .prompt_ms = late});
        ask(&b, kni_api_completions, "{\"prompt\":[\"h\u00e9\",\"b<|im_end|>\"],\"n\":2,\"echo\":true,\"logprobs\":2,\"max_tokens\":5,\"stop\":\"ST\"}");
        json_t *j = body_of(&b);
        assert_int_equal(json_array_size(at(j, "choices")), 4);
        expect_echo(at(j, "choices.0"), "h\xc3\xa9xyz", 3, 3);
        expect_echo(at(j, "choices.1"), "h\xc3\xa9uvw", 3, 3);
        expect_echo(at(j, "choices.2"), "b<|im_end|>xyz", 2, 3);
        json_t *list = at(j, "choices.0.logprobs");
        assert_string_equal(text_at(list, "tokens.0"), "h");
        assert_string_equal(text_at(list, "tokens.1"), "bytes:\\xc3");
        assert_string_equal(text_at(list, "tokens.3"), "x");
        static const int offsets[] = {0, 1, 2, 2, 3, 4}, behind[] = {0, 1, 11, 12, 13};
        for (size_t i = 0; i < 6; i++)
            assert_int_equal(json_integer_value(json_array_get(at(list, "text_offset"), i)), offsets[i]);
        assert_int_equal(json_object_size(at(list, "top_logprobs.1")), 3); /* two, and its own */
        assert_true(json_number_value(at(list, "top_logprobs.2.b")) == -1.5);
        list = at(j, "choices.2.logprobs");
        assert_string_equal(text_at(list, "tokens.1"), "<|im_end|>");
        for (size_t i = 0; i < 5; i++)
            assert_int_equal(json_integer_value(json_array_get(at(list, "text_offset"), i)), behind[i]);
        assert_string_equal(text_at(j, "choices.1.finish_reason"), "stop");
        assert_int_equal(int_at(j, "usage.completion_tokens"), 3 + 5 + 3 + 5);
        json_decref(j);
        finish(&b);
    }
}

/* Nothing is generated; a stop token has its place in the lists; without alternatives there is no list of them. */
static void echo_alone(void **state)
{
    (void)state;
    struct bed b;
    start(&b, &(struct script){.texts = {""}, .reason = KN_STOP_REASON_LENGTH});
    ask(&b, kni_api_completions, "{\"prompt\":\"abc\",\"echo\":true,\"logprobs\":1,\"max_tokens\":0,\"n\":3}");
    json_t *j = body_of(&b);
    assert_int_equal(json_array_size(at(j, "choices")), 3);
    for (size_t i = 0; i < 3; i++) {
        expect_echo(json_array_get(at(j, "choices"), i), "abc", 3, 0);
        assert_string_equal(text_at(json_array_get(at(j, "choices"), i), "finish_reason"), "length");
    }
    assert_int_equal(int_at(j, "usage.prompt_tokens"), 3);
    assert_int_equal(int_at(j, "usage.completion_tokens"), 0);
    assert_int_equal(b.loop.n_calls, 1);
    assert_int_equal(b.loop.players[0].call ? 1 : 0, 1);
    json_decref(j);
    finish(&b);
    start(&b, &(struct script){.texts = {"x"}, .special_first = true, .endless = true}); /* token 2 ends a reply */
    ask(&b, kni_api_completions, "{\"prompt\":\"abc\",\"echo\":true,\"logprobs\":1,\"max_tokens\":9}");
    j = body_of(&b);
    expect_echo(at(j, "choices.0"), "abc", 3, 1);
    assert_string_equal(text_at(j, "choices.0.logprobs.tokens.3"), "<|im_end|>");
    assert_int_equal(int_at(j, "choices.0.logprobs.text_offset.3"), 3);
    assert_string_equal(text_at(j, "choices.0.finish_reason"), "stop");
    assert_int_equal(atomic_load(&b.loop.n_finish), 1);
    json_decref(j);
    finish(&b);
    start(&b, &(struct script){.texts = {"x"}});
    ask(&b, kni_api_completions, "{\"prompt\":[75,3,76],\"echo\":true,\"logprobs\":0,\"max_tokens\":1}"); /* 3 is the byte 0 */
    assert_non_null(strstr(b.reply.body, "\"text\":\"H\\u0000Ix\""));
    j = json_loads(b.reply.body, JSON_ALLOW_NUL, NULL);
    assert_non_null(j);
    assert_int_equal(int_at(j, "choices.0.logprobs.text_offset.3"), 3);
    assert_true(json_is_null(at(j, "choices.0.logprobs.top_logprobs")));
    assert_int_equal(json_array_size(at(j, "choices.0.logprobs.token_logprobs")), 4);
    assert_int_equal(json_array_size(at(j, "choices.0.logprobs.text_offset")), 4);
    json_decref(j);
    finish(&b);
}

static void refusals(void **state)
{
    (void)state;
    static const struct { struct script script; unsigned status; const char *want; bool retry; } cases[] = {
        {{.submit = KN_E_FULL}, 503, "overloaded", true},       {{.submit = KN_E_STATE}, 503, "shutting_down", true},
        {{.refuse = KN_E_FULL}, 400, "the engine says", false}, {{.refuse = KN_E_CONTEXT}, 400, "context_length_exceeded", false},
        {{.refuse = KN_E_NOMEM}, 503, "overloaded", true},      {{.refuse = KN_E_FORMAT}, 500, "internal_error", false},
        {{.refuse = KN_E_CANCELLED}, 503, "shutting_down", true},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        for (int stream = 0; stream < 2; stream++) {
            struct bed b;
            start(&b, &cases[i].script);
            ask(&b, kni_api_chat, stream ? "{" HI ",\"stream\":true}" : "{" HI "}");
            expect_error(&b, cases[i].status, cases[i].want);
            assert_int_equal(b.reply.retry_after_s > 0, cases[i].retry);
            assert_int_equal(atomic_load(&b.loop.n_cancel), 0);
            finish(&b);
        }
    struct bed b;
    start(&b, &(struct script){.submit = KN_E_FULL, .submit_from = 1, .texts = {"a"}, .endless = true});
    ask(&b, kni_api_completions, "{\"prompt\":[\"a\",\"b\",\"c\"]}"); /* the first one is taken back, the others were never there */
    expect_error(&b, 503, "overloaded");
    assert_int_equal(atomic_load(&b.loop.n_cancel), 1);
    finish(&b);
    start(&b, &(struct script){0});
    ask(&b, kni_api_chat, "{\"messages\":5}");
    expect_error(&b, 400, "messages|");
    finish(&b);
    start(&b, &(struct script){0});
    ask(&b, kni_api_chat, "{" HI ",\"model\":\"other\"}");
    expect_error(&b, 404, "model|model_not_found|");
    finish(&b);
}

static void failures(void **state)
{
    (void)state;
    static const struct { enum kn_stop_reason reason; enum kn_status status; unsigned http; const char *code; } cases[] = {
        {KN_STOP_REASON_ERROR, KN_E_TIMEOUT, 504, "timeout"}, {KN_STOP_REASON_ERROR, KN_E_NOMEM, 503, "overloaded"},
        {KN_STOP_REASON_ERROR, KN_E_IO, 500, "internal_error"}, {KN_STOP_REASON_CANCELLED, KN_OK, 503, "shutting_down"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct bed b;
        struct kni_buf all = {0};
        struct script script = {.texts = {"some"}, .reason = cases[i].reason, .status = cases[i].status};
        start(&b, &script);
        ask(&b, kni_api_chat, "{" HI "}");
        expect_error(&b, cases[i].http, cases[i].code);
        finish(&b);
        start(&b, &script);
        ask(&b, kni_api_chat, "{" HI ",\"stream\":true}");
        assert_int_equal(read_all(&b, 64, &all), -1);
        assert_null(strstr(all.data, "[DONE]"));
        const char *p = strstr(all.data, "data: {\"error\"");
        assert_non_null(p);
        json_t *j = next_event(&p);
        assert_string_equal(text_at(j, "error.code"), cases[i].code);
        assert_true(strlen(text_at(j, "error.message")) > 5);
        assert_int_equal(*p, 0);
        json_decref(j);
        kni_buf_fini(&all);
        finish(&b);
    }
}

static void tenants(void **state)
{
    (void)state;
    static const struct { const char *tenant, *salt, *want; } cases[] = {
        {"", NULL, ""}, {"", "s", "0:|s"}, {"t", NULL, "1:t|"}, {"t", "s", "1:t|s"}, {"t|s", NULL, "3:t|s|"}, {"", "t|s", "0:|t|s"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct bed b;
        char body[128];
        start(&b, &(struct script){.texts = {"a"}});
        b.tenant.salt = cases[i].tenant;
        snprintf(body, sizeof body, "{\"prompt\":\"x\"%s%s%s}", cases[i].salt ? ",\"cache_salt\":\"" : "", cases[i].salt ? cases[i].salt : "",
                 cases[i].salt ? "\"" : "");
        ask(&b, kni_api_completions, body);
        assert_int_equal(b.reply.status, 200);
        assert_string_equal(b.loop.players[0].salt, cases[i].want);
        finish(&b);
    }
}

static void client_leaves(void **state)
{
    (void)state;
    static const char *const bodies[] = {"{\"prompt\":\"x\"}", "{\"prompt\":[\"x\",\"y\"]}",
                                         "{\"prompt\":\"x\",\"stream\":true}", "{\"prompt\":[\"x\",\"y\"],\"stream\":true}"};
    for (size_t i = 0; i < 4; i++) {
        struct bed b;
        struct kni_buf all = {0};
        int pair[2];
        assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM, 0, pair), 0);
        start(&b, &(struct script){.texts = {"abc"}, .endless = true});
        b.request.socket = pair[0];
        if (i < 2)
            close(pair[1]);
        ask(&b, kni_api_completions, bodies[i]);
        if (i >= 2) {
            close(pair[1]);
            assert_int_equal(read_all(&b, 64, &all), -2);
            kni_buf_fini(&all);
        } else {
            expect_error(&b, 499, "client_gone");
        }
        finish(&b);
        assert_int_equal(atomic_load(&b.loop.n_cancel), b.loop.n_calls);
        close(pair[0]);
    }
    struct bed b; /* a stream that nobody reads to its end */
    start(&b, &(struct script){.texts = {"abc"}, .endless = true});
    ask(&b, kni_api_chat, "{" HI ",\"stream\":true}");
    char some[8];
    assert_true(b.reply.read(b.reply.user, some, sizeof some) > 0);
    finish(&b);
    assert_int_equal(atomic_load(&b.loop.n_cancel), 1);
}

/* shutdown(SHUT_WR) after the request: it waits for its answer. A stream's comments show that it is there. */
static void client_has_said_all(void **state)
{
    (void)state;
    static const char *const bodies[] = {"{\"prompt\":\"x\"}", "{\"prompt\":[\"x\",\"y\"]}",
                                         "{\"prompt\":\"x\",\"stream\":true}", "{\"prompt\":[\"x\",\"y\"],\"stream\":true}"};
    for (size_t i = 0; i < 4; i++) {
        struct bed b;
        struct kni_buf all = {0};
        int pair[2];
        assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM, 0, pair), 0);
        shutdown(pair[1], SHUT_WR);
        start(&b, &(struct script){.texts = {"abc"}});
        b.request.socket = pair[0];
        ask(&b, kni_api_completions, bodies[i]);
        assert_int_equal(b.reply.status, 200);
        if (i >= 2) {
            assert_int_equal(read_all(&b, 64, &all), -1);
            kni_buf_add(&all, "", 1);
            assert_non_null(strstr(all.data, "data: [DONE]"));
            kni_buf_fini(&all);
        }
        finish(&b);
        assert_int_equal(atomic_load(&b.loop.n_cancel), 0);
        close(pair[0]);
        close(pair[1]);
    }
}

static void models_and_tokens(void **state)
{
    (void)state;
    struct bed b;
    start(&b, &(struct script){0});
    ask(&b, kni_api_models, "");
    json_t *j = body_of(&b);
    assert_string_equal(text_at(j, "object"), "list");
    assert_string_equal(text_at(j, "data.0.id"), "tiny \"q\"");
    assert_string_equal(text_at(j, "data.0.object"), "model");
    assert_int_equal(int_at(j, "data.0.created"), 1700000000);
    assert_int_equal(int_at(j, "data.0.max_model_len"), 256);
    json_decref(j);
    kni_free(b.reply.body);
    b.request.path = "/v1/models/tiny \"q\"";
    ask(&b, kni_api_model, "");
    j = body_of(&b);
    assert_string_equal(text_at(j, "id"), "tiny \"q\"");
    json_decref(j);
    kni_free(b.reply.body);
    static const char *const others[] = {"/v1/models/gpt-4o", "/v1/models/", "/v1/models/a/b", "/v1/models/tiny \"q", "/v1/models/tiny \"q\"/", "/"};
    for (size_t i = 0; i < sizeof others / sizeof *others; i++) {
        b.request.path = others[i];
        ask(&b, kni_api_model, "");
        expect_error(&b, 404, "model_not_found");
        kni_free(b.reply.body);
    }
    ask(&b, kni_api_tokenize, "{\"content\":\"\\u00e9<|im_end|>\"}");
    j = body_of(&b);
    assert_int_equal(int_at(j, "count"), 3);
    assert_int_equal(int_at(j, "tokens.0"), KN_TINY_FIRST_BYTE + 0xc3);
    assert_int_equal(int_at(j, "tokens.2"), 2);
    json_decref(j);
    kni_free(b.reply.body);
    ask(&b, kni_api_tokenize, "{\"content\":\"\\u00e9x\",\"with_pieces\":true}");
    j = body_of(&b);
    assert_int_equal(int_at(j, "tokens.1.piece.0"), 0xa9);
    assert_string_equal(text_at(j, "tokens.2.piece"), "x");
    json_decref(j);
    kni_free(b.reply.body);
    ask(&b, kni_api_tokenize, "{\"prompt\":\"\u00e9x\",\"return_token_strs\":true,\"add_special_tokens\":false}");
    j = body_of(&b);
    assert_int_equal(int_at(j, "tokens.2"), KN_TINY_FIRST_BYTE + 'x');
    assert_int_equal(json_array_size(at(j, "token_strs")), 3);
    assert_string_equal(text_at(j, "token_strs.2"), "x");
    json_decref(j);
    kni_free(b.reply.body);
    ask(&b, kni_api_tokenize, "{\"content\":\"\",\"return_token_strs\":true}");
    j = body_of(&b);
    assert_int_equal(json_array_size(at(j, "token_strs")), 0);
    assert_true(json_is_array(at(j, "token_strs")));
    json_decref(j);
    kni_free(b.reply.body);
    ask(&b, kni_api_detokenize, "{\"tokens\":[198,172,2,123]}"); /* 3 + byte; 2: <|im_end|> */
    j = body_of(&b);
    assert_string_equal(text_at(j, "content"), "\xc3\xa9<|im_end|>x");
    assert_string_equal(text_at(j, "prompt"), "\xc3\xa9<|im_end|>x");
    assert_string_equal(text_at(j, "text"), "\xc3\xa9<|im_end|>x");
    json_decref(j);
    kni_free(b.reply.body);
    ask(&b, kni_api_detokenize, "{\"tokens\":[2,3,198],\"skip_special_tokens\":true}"); /* 3: the byte 0 */
    assert_non_null(strstr(b.reply.body, "{\"content\":\"\\u0000\xef\xbf\xbd\""));
    kni_free(b.reply.body);
    ask(&b, kni_api_detokenize, "{\"tokens\":[]}");
    j = body_of(&b);
    assert_string_equal(text_at(j, "content"), "");
    json_decref(j);
    kni_free(b.reply.body);
    static const char *const wrong[][2] = {
        {"{}", "tokens"}, {"{\"tokens\":5}", "tokens"}, {"{\"tokens\":[1.0]}", "tokens[0]"}, {"{\"tokens\":[1,-1]}", "tokens[1]"},
        {"{\"tokens\":[1,100000]}", "tokens[1]"}, {"{\"tokens\":[99999999999999999999]}", "tokens[0]"}, {"{\"tokens\":[1],\"model\":\"gpt\"}", "model"},
        {"{\"tokens\":[1],\"skip_special_tokens\":0}", "skip_special_tokens"}, {"{\"content\":\"x\"}", "content"},
    };
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        ask(&b, kni_api_detokenize, wrong[i][0]);
        j = json_loads(b.reply.body, 0, NULL);
        assert_int_equal(b.reply.status, i == 6 ? 404 : 400);
        kni_free(b.reply.body);
        json_decref(j);
    }
    ask(&b, kni_api_tokenizer_info, "");
    j = body_of(&b);
    assert_int_equal(int_at(j, "model_max_length"), 256);
    assert_string_equal(text_at(j, "eos_token"), "<|im_end|>");
    json_decref(j);
    kni_free(b.reply.body);
    ask(&b, kni_api_tokenize, "{}");
    expect_error(&b, 400, "content|");
    finish(&b);
}

/* Whichever allocation fails: a 503 or an answer, and nothing is left behind. */
static void memory_runs_out(void **state)
{
    (void)state;
    uint64_t before = kni_alloc_get_stats(KNI_ALLOC_TAG_COUNT).current_bytes;
    unsigned n_refused = 0;
    bool hit = true;
    for (uint64_t i = 1; hit; i++) {
        struct bed b;
        start(&b, &(struct script){.texts = {"abc"}});
        kni_alloc_fault_arm(i, false);
        ask(&b, kni_api_completions, "{\"prompt\":[\"x\",[5,6]],\"n\":2,\"stop\":\"q\",\"echo\":true,\"logprobs\":2}");
        hit = kni_alloc_fault_hit();
        kni_alloc_fault_arm(0, false);
        assert_true(b.reply.status == (hit ? 503 : 200));
        n_refused += b.reply.status == 503;
        finish(&b);
        assert_int_equal(kni_alloc_get_stats(KNI_ALLOC_TAG_COUNT).current_bytes, before);
        assert_true(i < 500);
    }
    assert_true(n_refused > 10);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(whole_chat),        cmocka_unit_test(reasons_and_choices), cmocka_unit_test(stop_strings),
        cmocka_unit_test(log_probabilities), cmocka_unit_test(echo_is_described),   cmocka_unit_test(echo_alone),
        cmocka_unit_test(refusals),          cmocka_unit_test(failures),            cmocka_unit_test(tenants),
        cmocka_unit_test(client_leaves),     cmocka_unit_test(client_has_said_all),
            cmocka_unit_test(models_and_tokens),   cmocka_unit_test(memory_runs_out),
    };
    return cmocka_run_group_tests(tests, open_model, close_model);
}
