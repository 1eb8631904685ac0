/* SPDX-License-Identifier: Apache-2.0 */
/* Streams, read in pieces of every size: events that parse, deltas that add up to the answer, first and last chunks, usage, the end. */
#include "support/api_bed.h"

#define HI KN_BED_HI

static void streamed_chat(void **state)
{
    (void)state;
    for (size_t room = 1; room <= 64; room += 9) {
        struct bed b;
        struct kni_buf all = {0}, said[2] = {{0}};
        uint32_t n_chunks[2] = {0}, n_closed = 0, n_described = 0;
        start(&b, &(struct script){.texts = {"H\xc3\xa9llo\xf0\x9f\x8e\xac STOP no", "other \xff"}, .reason = KN_STOP_REASON_LENGTH, .n_cached = 4});
        ask(&b, kni_api_chat, "{" HI ",\"n\":2,\"stream\":true,\"stream_options\":{\"include_usage\":true},\"stop\":\" STOP\",\"logprobs\":true}");
        assert_int_equal(read_all(&b, room, &all), -1);
        const char *p = all.data;
        json_t *j;
        bool usage = false;
        for (; (j = next_event(&p)); json_decref(j)) {
            assert_string_equal(text_at(j, "object"), "chat.completion.chunk");
            usage = !json_array_size(at(j, "choices"));
            if (usage) {
                assert_int_equal(int_at(j, "usage.completion_tokens"), 10 + 5 + 7); /* with the stop string's */
                assert_int_equal(int_at(j, "usage.prompt_tokens_details.cached_tokens"), 4);
                continue;
            }
            assert_true(json_is_null(at(j, "usage")));
            long long i = int_at(j, "choices.0.index");
            json_t *delta = at(j, "choices.0.delta"), *finish_reason = at(j, "choices.0.finish_reason");
            if (!n_chunks[i]++)
                assert_string_equal(text_at(delta, "role"), "assistant");
            else
                assert_null(at(delta, "role"));
            if (at(delta, "content"))
                kni_buf_text(&said[i], text_at(delta, "content"));
            n_described += (uint32_t)json_array_size(at(j, "choices.0.logprobs.content"));
            if (!json_is_null(finish_reason)) {
                assert_string_equal(json_string_value(finish_reason), i ? "length" : "stop");
                assert_null(at(delta, "content"));
                n_closed++;
            }
        }
        assert_true(usage && !*p); /* the last object, and nothing behind [DONE] */
        assert_int_equal(n_closed, 2);
        assert_string_equal(said[0].data, "H\xc3\xa9llo\xf0\x9f\x8e\xac");
        assert_string_equal(said[1].data, "other \xef\xbf\xbd");
        assert_int_equal(n_described, 10 + 7);
        assert_true(n_chunks[0] >= 1 + 6 + 1); /* a chunk a character */
        kni_buf_fini(&all);
        kni_buf_fini(&said[0]);
        kni_buf_fini(&said[1]);
        finish(&b);
        assert_int_equal(atomic_load(&b.loop.n_cancel), 0);
        assert_int_equal(atomic_load(&b.loop.n_finish), 1);
    }
}

static void streamed_completions(void **state)
{
    (void)state;
    struct bed b;
    struct kni_buf all = {0}, said[4] = {{0}};
    start(&b, &(struct script){.texts = {"abc", ""}});
    ask(&b, kni_api_completions, "{\"prompt\":[\"p\",\"q\"],\"n\":2,\"echo\":true,\"stream\":true}");
    assert_int_equal(read_all(&b, 50, &all), -1);
    const char *p = all.data;
    for (json_t *j; (j = next_event(&p)); json_decref(j)) {
        assert_null(at(j, "usage"));
        kni_buf_text(&said[int_at(j, "choices.0.index")], text_at(j, "choices.0.text"));
    }
    assert_string_equal(said[0].data, "pabc");
    assert_string_equal(said[1].data, "p");
    assert_string_equal(said[2].data, "qabc");
    assert_string_equal(said[3].data, "q");
    kni_buf_fini(&all);
    for (int i = 0; i < 4; i++)
        kni_buf_fini(&said[i]);
    finish(&b);
    start(&b, &(struct script){.texts = {"a\xc3\xa9z"}});
    ask(&b, kni_api_completions, "{\"prompt\":\"p\",\"stream\":true,\"logprobs\":1}");
    assert_int_equal(read_all(&b, 64, &all), -1);
    p = all.data;
    long long n = 0;
    for (json_t *j; (j = next_event(&p)); json_decref(j))
        n += (long long)json_array_size(at(j, "choices.0.logprobs.text_offset"));
    assert_int_equal(n, 4);
    kni_buf_fini(&all);
    finish(&b);
}

/* The prompt comes first, described, and once: also where its probabilities come later than another choice's tokens. */
static void streamed_echo(void **state)
{
    (void)state;
    for (long late = 0; late < 40; late += 20) {
        struct bed b;
        struct kni_buf all = {0}, said[2] = {{0}};
        size_t n_described[2] = {0}, n_chunks[2] = {0};
        start(&b, &(struct script){.texts = {"xy", "uvw"}, .prompt_ms = late});
        ask(&b, kni_api_completions, "{\"prompt\":\"h\u00e9\",\"n\":2,\"echo\":true,\"stream\":true,\"logprobs\":1}");
        assert_int_equal(read_all(&b, 50, &all), -1);
        const char *p = all.data;
        for (json_t *j; (j = next_event(&p)); json_decref(j)) {
            long long i = int_at(j, "choices.0.index");
            json_t *list = at(j, "choices.0.logprobs");
            kni_buf_text(&said[i], text_at(j, "choices.0.text"));
            if (!n_chunks[i]++) {
                assert_string_equal(said[i].data, "h\xc3\xa9");
                assert_int_equal(json_array_size(at(list, "tokens")), 3);
                assert_true(json_is_null(at(list, "token_logprobs.0")));
            } else if (json_array_size(at(list, "tokens"))) {
                assert_int_equal(int_at(list, "text_offset.0"), 2 + (long long)n_described[i] - 3);
            }
            n_described[i] += json_array_size(at(list, "token_logprobs"));
        }
        assert_string_equal(said[0].data, "h\xc3\xa9xy");
        assert_string_equal(said[1].data, "h\xc3\xa9uvw");
        assert_int_equal(n_described[0], 5);
        assert_int_equal(n_described[1], 6);
        kni_buf_fini(&all);
        kni_buf_fini(&said[0]);
        kni_buf_fini(&said[1]);
        finish(&b);
    }
    struct bed b;
    struct kni_buf all = {0};
    start(&b, &(struct script){.texts = {"xy"}, .reason = KN_STOP_REASON_ERROR, .status = KN_E_IO, .prompt_ms = -1}); /* fails before all is scored */
    ask(&b, kni_api_completions, "{\"prompt\":\"ab\",\"echo\":true,\"stream\":true,\"logprobs\":1,\"n\":2}");
    assert_int_equal(read_all(&b, 50, &all), -1);
    assert_non_null(strstr(all.data, "\"error\""));
    assert_null(strstr(all.data, "token_logprobs"));
    kni_buf_fini(&all);
    finish(&b);
    start(&b, &(struct script){.texts = {""}, .reason = KN_STOP_REASON_LENGTH});
    ask(&b, kni_api_completions, "{\"prompt\":\"ab\",\"echo\":true,\"stream\":true,\"logprobs\":1,\"max_tokens\":0,\"n\":2}");
    assert_int_equal(read_all(&b, 50, &all), -1);
    const char *p = all.data;
    size_t n_chunks = 0;
    for (json_t *j; (j = next_event(&p)); json_decref(j), n_chunks++)
        if (!json_is_null(at(j, "choices.0.finish_reason")))
            assert_string_equal(text_at(j, "choices.0.finish_reason"), "length");
        else
            assert_int_equal(json_array_size(at(j, "choices.0.logprobs.tokens")), 2);
    assert_int_equal(n_chunks, 4);
    kni_buf_fini(&all);
    finish(&b);
}

/* A stream with nothing to say gives signs of life, which clients skip. */
static void quiet_stream(void **state)
{
    (void)state;
    static const char *const bodies[] = {"{\"prompt\":\"x\",\"stream\":true}", "{\"prompt\":[\"x\",\"y\"],\"stream\":true}"};
    for (size_t i = 0; i < 2; i++) {
        struct bed b;
        struct kni_buf all = {0};
        char piece[64];
        start(&b, &(struct script){.texts = {""}, .endless = true});
        b.api.keep_alive_ms = 3;
        ask(&b, kni_api_completions, bodies[i]);
        assert_int_equal(b.reply.status, 200);
        for (int pull = 0; pull < 3; pull++) {
            ssize_t n = b.reply.read(b.reply.user, piece, sizeof piece);
            assert_true(n > 0);
            kni_buf_add(&all, piece, (size_t)n);
        }
        assert_string_equal(all.data, ": waiting\n\n: waiting\n\n: waiting\n\n");
        kni_buf_fini(&all);
        finish(&b);
    }
}

/* Whichever allocation fails: a 503, a connection that is cut, or the whole answer; nothing is left behind. */
static void memory_runs_out(void **state)
{
    (void)state;
    uint64_t before = kni_alloc_get_stats(KNI_ALLOC_TAG_COUNT).current_bytes;
    unsigned n_refused = 0, n_cut = 0;
    bool hit = true;
    for (uint64_t i = 1; hit; i++) {
        struct bed b;
        char piece[64];
        ssize_t n = 0;
        size_t length = 0;
        start(&b, &(struct script){.texts = {"abc"}});
        kni_alloc_fault_arm(i, false);
        ask(&b, kni_api_chat, "{" HI ",\"n\":2,\"stream\":true,\"logprobs\":true}");
        for (bool first = true; b.reply.status == 200 && (first || n > 0); first = false) {
            n = b.reply.read(b.reply.user, piece, sizeof piece);
            length += n > 0 ? (size_t)n : 0;
        }
        hit = kni_alloc_fault_hit();
        kni_alloc_fault_arm(0, false);
        assert_true(b.reply.status == 503 ? hit : b.reply.status == 200 && n == (hit ? -2 : -1));
        assert_true(hit || length > 1000);
        n_refused += b.reply.status == 503;
        n_cut += n == -2;
        finish(&b);
        assert_int_equal(kni_alloc_get_stats(KNI_ALLOC_TAG_COUNT).current_bytes, before);
        assert_true(i < 500);
    }
    assert_true(n_refused > 5 && n_cut > 1);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(streamed_chat), cmocka_unit_test(streamed_completions), cmocka_unit_test(streamed_echo), cmocka_unit_test(quiet_stream),
                                       cmocka_unit_test(memory_runs_out)};
    return cmocka_run_group_tests(tests, open_model, close_model);
}
