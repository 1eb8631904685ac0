/* SPDX-License-Identifier: Apache-2.0 */
/* Bodies that take long to read are given up when the client has gone or the server drains; and what echo gives out of a chat. */
#include "support/api_bed.h"

#include <unistd.h>

static const struct { kni_http_fn fn; const char *body; } routes[] = {
    {kni_api_chat, "{\"messages\":[{\"role\":\"user\",\"content\":\"Hi\"}]}"},
    {kni_api_completions, "{\"prompt\":\"Hi\"}"},
    {kni_api_tokenize, "{\"content\":\"Hi\"}"},
    {kni_api_tokenize, "{\"messages\":[{\"role\":\"user\",\"content\":\"Hi\"}]}"},
    {kni_api_detokenize, "{\"tokens\":[5,6,7]}"},
};
enum { N_ROUTES = sizeof routes / sizeof *routes };

static void client_is_gone(void **state)
{
    (void)state;
    for (int i = 0; i < N_ROUTES; i++)
        for (int gone = 0; gone < 2; gone++) {
            struct bed b;
            int pair[2];
            assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM, 0, pair), 0);
            start(&b, &(struct script){.texts = {"x"}});
            b.request.socket = pair[0];
            if (gone)
                close(pair[1]);
            ask(&b, routes[i].fn, routes[i].body);
            assert_int_equal(b.reply.status, gone ? 499 : 200);
            if (gone) {
                assert_int_equal(b.loop.n_calls, 0);
                assert_non_null(strstr(b.reply.body, "client_gone"));
            }
            finish(&b);
            close(pair[0]);
            if (!gone)
                close(pair[1]);
        }
}

static void server_drains(void **state)
{
    (void)state;
    for (int i = 0; i < N_ROUTES; i++) {
        struct bed b;
        start(&b, &(struct script){.texts = {"x"}});
        b.loop.n_stops = 1;
        ask(&b, routes[i].fn, routes[i].body);
        assert_int_equal(b.reply.status, 503);
        assert_int_equal(b.loop.n_calls, 0);
        assert_non_null(strstr(b.reply.body, "shutting_down"));
        assert_int_equal(b.reply.retry_after_s, 1);
        finish(&b);
    }
}

#define TALK(role) "{\"messages\":[{\"role\":\"user\",\"content\":\"a\"},{\"role\":\"" role "\",\"content\":\"said \\\"b\\\" \"}],\"logprobs\":true,\"echo\":true"

/* The last message's text comes before the answer when it is the assistant's; log-probabilities are the answer's alone. */
static void echo_of_a_chat(void **state)
{
    (void)state;
    static const struct { const char *body, *content; } talks[] = {
        {TALK("assistant") "}", "said \"b\" and c"}, {TALK("assistant") ",\"continue_final_message\":true}", "said \"b\" and c"}, {TALK("user") "}", "and c"},
    };
    for (size_t i = 0; i < sizeof talks / sizeof *talks; i++) {
        struct bed b;
        start(&b, &(struct script){.texts = {"and c"}});
        ask(&b, kni_api_chat, talks[i].body);
        json_t *j = body_of(&b);
        assert_string_equal(text_at(j, "choices.0.message.content"), talks[i].content);
        assert_string_equal(text_at(j, "choices.0.message.role"), "assistant");
        assert_int_equal(json_array_size(at(j, "choices.0.logprobs.content")), 5);
        assert_int_equal(int_at(j, "usage.completion_tokens"), 5);
        json_decref(j);
        finish(&b);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(client_is_gone), cmocka_unit_test(server_drains), cmocka_unit_test(echo_of_a_chat)};
    return cmocka_run_group_tests(tests, open_model, close_model);
}
