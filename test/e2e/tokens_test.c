/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The tokenizer and chat template of the real model against golden ids of the reference (golden/make_tokens.py), byte for
 * byte round trips, concurrent encodes, and inputs that would be slow with a quadratic merge loop.
 */
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>
#include <jansson.h>

#include "base/file.h"
#include "kinema/model.h"
#include "model/tokenizer.h"
#include "support/frames.h"
#include "support/real_model.h"

static struct kn_model *model;

static int setup(void **state)
{
    (void)state;
    model = kn_real_model_open();
    return 0;
}

static int teardown(void **state)
{
    (void)state;
    kn_model_close(&model);
    return 0;
}

static void expect_ids(size_t index, const char *text, size_t n, unsigned flags, const json_t *want)
{
    size_t count;
    free(kn_golden_ids(model, index, text, n, flags, want, n + 1, &count));
}

static void golden_ids(void **state)
{
    (void)state;
    json_t *all = kn_golden_load("tokens.json"), *e;
    size_t i, n_plain = 0;
    json_array_foreach(all, i, e) {
        const json_t *text = json_object_get(e, "text"), *ids = json_object_get(e, "ids"), *plain = json_object_get(e, "plain");
        const char *s = json_string_value(text);
        size_t n = json_string_length(text);
        expect_ids(i, s, n, KN_TOKENIZE_SPECIAL, ids);
        expect_ids(i, s, n, KN_TOKENIZE_SPECIAL | KN_TOKENIZE_BOS, ids); /* this model asks for no BOS */
        expect_ids(i, s, n, 0, plain ? plain : ids);
        n_plain += plain != NULL;
    }
    assert_true(i >= 300);
    assert_true(n_plain >= 17);
    json_decref(all);
}

static void golden_chat(void **state)
{
    (void)state;
    json_t *all = kn_golden_load("chat.json"), *e;
    size_t i;
    json_array_foreach(all, i, e) {
        const json_t *talk = json_object_get(e, "messages"), *text = json_object_get(e, "text");
        struct kn_chat_message m[16];
        size_t n = json_array_size(talk), want = json_string_length(text);
        assert_true(n && n <= 16);
        for (size_t k = 0; k < n; k++) {
            m[k].role = json_string_value(json_array_get(json_array_get(talk, k), 0));
            m[k].text = json_string_value(json_array_get(json_array_get(talk, k), 1));
        }
        bool reply = json_is_true(json_object_get(e, "reply"));
        char buf[2048];
        size_t n_bytes = sizeof buf;
        assert_int_equal(kn_model_chat(model, m, n, reply, buf, &n_bytes), KN_OK);
        assert_string_equal(buf, json_string_value(text));
        assert_int_equal(n_bytes, want);
        n_bytes = want - 1; /* too small: the length is still told, nothing is written past the room */
        memset(buf, '#', sizeof buf);
        assert_int_equal(kn_model_chat(model, m, n, reply, buf, &n_bytes), KN_E_ARG);
        assert_int_equal(n_bytes, want);
        assert_int_equal(buf[want - 1], '#');
    }
    assert_true(i >= 20);
    json_decref(all);
}

/* Whole conversations, texts that spell control tokens in them: make_frames.py. */
static void golden_frames(void **state)
{
    (void)state;
    json_t *all = kn_golden_load("frames.json"), *e;
    size_t i;
    json_array_foreach(json_object_get(all, "smollm2"), i, e)
        kn_frame_expect(i, model, all, json_array_get(e, 0), json_array_get(e, 1), json_array_get(e, 2));
    assert_true(i >= 70);
    json_decref(all);
}

static void identity(void **state)
{
    (void)state;
    const struct kn_model_info *info = kn_model_info(model);
    assert_string_equal(info->arch, "llama");
    assert_string_equal(info->chat_template, "chatml");
    assert_string_equal(info->pre_tokenizer, "smollm");
    assert_string_equal(info->quant, "Q4_1");
    assert_int_equal(info->n_layer, 30);
    assert_int_equal(info->n_head, 9);
    assert_int_equal(info->n_kv_head, 3);
    assert_int_equal(info->d_head, 64);
    assert_int_equal(info->n_vocab, 49152);
    assert_int_equal(info->n_ctx_train, 8192);
    assert_int_equal(info->kv_bytes_per_token, 30 * 2 * 3 * 64 * 2);
    assert_int_equal(info->n_params, 134515008);
    assert_true(info->bos == 1 && info->eos == 2 && info->eot == 2);
    assert_true(kn_model_token_is_special(model, 16) && !kn_model_token_is_special(model, 17));
    assert_true(kn_model_token_is_stop(model, 2) && kn_model_token_is_stop(model, 0) && !kn_model_token_is_stop(model, 1));
    assert_false(kn_model_token_is_stop(model, -1) || kn_model_token_is_special(model, 49152));
    const char *bytes;
    size_t n;
    assert_int_equal(kn_model_token_bytes(model, 49152, &bytes, &n), KN_E_ARG);
    assert_int_equal(kn_model_token_bytes(model, -1, &bytes, &n), KN_E_ARG);
    assert_int_equal(kn_model_token_bytes(model, 2, &bytes, &n), KN_OK);
    assert_int_equal(n, 10);
    assert_memory_equal(bytes, "<|im_end|>", n);
}

/* Bytes come back, except those for which the vocabulary has no token: these are dropped. */
static void round_trip(void **state)
{
    (void)state;
    enum { N = 4000 };
    uint64_t rng = 88172645463325252u;
    bool has[256] = {false};
    for (int32_t id = 0; id < 49152; id++) {
        const char *b;
        size_t n;
        assert_int_equal(kn_model_token_bytes(model, id, &b, &n), KN_OK);
        if (n == 1)
            has[(unsigned char)*b] = true;
    }
    for (unsigned round = 0; round < 50; round++) {
        unsigned char text[N], want[N], got[N];
        size_t n_want = 0, n_got = 0, count = N + 1;
        int32_t ids[N + 1];
        for (size_t i = 0; i < N; i++) {
            rng ^= rng << 13, rng ^= rng >> 7, rng ^= rng << 17;
            text[i] = (unsigned char)(round % 2 ? rng >> 24 : 0x80 | rng >> 24); /* every second time nearly all invalid */
            if (has[text[i]])
                want[n_want++] = text[i];
        }
        assert_int_equal(kn_model_tokenize(model, (char *)text, N, 0, ids, &count), KN_OK);
        for (size_t i = 0; i < count; i++) {
            const char *b;
            size_t n;
            assert_int_equal(kn_model_token_bytes(model, ids[i], &b, &n), KN_OK);
            assert_true(n_got + n <= N);
            memcpy(got + n_got, b, n);
            n_got += n;
        }
        assert_int_equal(n_got, n_want);
        assert_memory_equal(got, want, n_want);
    }
}

static void room(void **state)
{
    (void)state;
    int32_t ids[4] = {-7, -7, -7, -7};
    size_t n = 2;
    assert_int_equal(kn_model_tokenize(model, "1234", 4, 0, ids, &n), KN_E_ARG);
    assert_int_equal(n, 4);
    assert_true(ids[0] >= 0 && ids[1] >= 0 && ids[2] == -7);
    n = 0;
    assert_int_equal(kn_model_tokenize(model, "1234", 4, 0, NULL, &n), KN_E_ARG);
    assert_int_equal(n, 4);
    n = 0;
    assert_int_equal(kn_model_tokenize(model, "", 0, 0, NULL, &n), KN_OK);
    assert_int_equal(n, 0);
    n = 4;
    assert_int_equal(kn_model_tokenize(model, "x", 1, 64, ids, &n), KN_E_ARG); /* unknown flag */
    assert_int_equal(kn_model_tokenize(model, "x", (size_t)INT32_MAX + 1, 0, ids, &n), KN_E_ARG);
}

/* A megabyte without a blank: with a quadratic loop this test would not end within its limit. */
static void long_pieces(void **state)
{
    (void)state;
    size_t n = 1u << 20;
    char *text = malloc(n);
    int32_t *ids = malloc((n + 1) * sizeof *ids);
    assert_true(text && ids);
    for (unsigned kind = 0; kind < 4; kind++) {
        for (size_t i = 0; i < n; i++)
            text[i] = (char)(kind == 0 ? 'a' + i * i / 7 % 26 : kind == 1 ? ' ' : kind == 2 ? '\n' : 0xbf);
        size_t count = n + 1, bytes = 0;
        assert_int_equal(kn_model_tokenize(model, text, n, KN_TOKENIZE_SPECIAL, ids, &count), KN_OK);
        for (size_t i = 0; i < count; i++) {
            const char *b;
            size_t k;
            assert_int_equal(kn_model_token_bytes(model, ids[i], &b, &k), KN_OK);
            assert_memory_equal(b, text + bytes, k);
            bytes += k;
        }
        assert_int_equal(bytes, n);
    }
    free(text);
    free(ids);
}

/* The same vocabulary under the rules of Llama 3 and Qwen2: the file's pre-tokenizer is exchanged after parsing. */
static void other_rules(void **state)
{
    (void)state;
    json_t *all = kn_golden_load("tokens.json"), *pretok = kn_golden_load("pretok.json"), *strings = json_object_get(pretok, "strings"), *rules = kn_golden_load("rules.json"), *changed, *index;
    struct kni_file_map file;
    assert_int_equal(kni_file_map_open(&file, getenv("KN_MODEL"), NULL), KN_OK);
    const char *name;
    json_object_foreach(rules, name, changed) {
        struct kni_arena arena;
        struct kni_gguf *g;
        struct kni_tokenizer *t;
        struct kn_err err = {0};
        uint8_t value[32];
        size_t k, next = 0;
        kni_arena_init(&arena, KNI_ALLOC_TAG_MODEL, 0);
        assert_int_equal(kni_gguf_parse(&g, &arena, file.data, file.n_bytes, "model", &err), KN_OK);
        for (uint32_t i = 0; i < g->n_kv; i++)
            if (g->kv[i].key.n == 18 && !memcmp(g->kv[i].key.data, "tokenizer.ggml.pre", 18)) {
                memcpy(value, &(uint64_t){strlen(name)}, 8);
                memcpy(value + 8, name, strlen(name));
                g->kv[i].value = value;
                g->kv[i].n_bytes = 8 + strlen(name);
            }
        assert_int_equal(kni_tokenizer_load(&t, &arena, g, &err), KN_OK);
        json_array_foreach(strings, k, index) {
            const json_t *e = json_array_get(all, (size_t)json_integer_value(index)), *entry = json_array_get(changed, next), *want = json_object_get(e, "ids");
            const char *text = json_string_value(json_object_get(e, "text"));
            int32_t ids[1024];
            size_t n = 1024;
            if (entry && json_equal(json_array_get(entry, 0), index)) {
                want = json_array_get(entry, 1);
                next++;
            }
            assert_int_equal(kni_tokenizer_encode(t, text, json_string_length(json_object_get(e, "text")), KN_TOKENIZE_SPECIAL, ids, &n), KN_OK);
            for (size_t i = 0; i < n && i < json_array_size(want); i++)
                if (ids[i] != json_integer_value(json_array_get(want, i)))
                    fail_msg("%s, string \"%.60s\": id %zu is %d, want %lld", name, text, i, ids[i], json_integer_value(json_array_get(want, i)));
            assert_int_equal(n, json_array_size(want));
        }
        assert_true(k > 300 && next == json_array_size(changed) && next >= 5);
        kni_tokenizer_fini(t);
        kni_arena_fini(&arena);
    }
    kni_file_map_close(&file);
    json_decref(all);
    json_decref(pretok);
    json_decref(rules);
}

static void *encode_often(void *arg)
{
    const json_t *all = arg, *e;
    size_t i, wrong = 0;
    for (unsigned round = 0; round < 3; round++)
        json_array_foreach((json_t *)(uintptr_t)all, i, e) {
            const json_t *text = json_object_get(e, "text"), *want = json_object_get(e, "ids");
            int32_t ids[4096];
            size_t n = 4096;
            if (kn_model_tokenize(model, json_string_value(text), json_string_length(text), KN_TOKENIZE_SPECIAL, ids, &n) != KN_OK || n != json_array_size(want)) {
                wrong++;
                continue;
            }
            for (size_t k = 0; k < n; k++)
                wrong += ids[k] != json_integer_value(json_array_get(want, k));
        }
    return (void *)wrong;
}

static void threads(void **state)
{
    (void)state;
    json_t *all = kn_golden_load("tokens.json");
    pthread_t t[4];
    for (unsigned i = 0; i < 4; i++)
        assert_int_equal(pthread_create(&t[i], NULL, encode_often, all), 0);
    for (unsigned i = 0; i < 4; i++) {
        void *wrong;
        pthread_join(t[i], &wrong);
        assert_null(wrong);
    }
    json_decref(all);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(golden_ids), cmocka_unit_test(golden_chat), cmocka_unit_test(identity),    cmocka_unit_test(round_trip),
        cmocka_unit_test(room),       cmocka_unit_test(long_pieces), cmocka_unit_test(threads),     cmocka_unit_test(other_rules),
        cmocka_unit_test(golden_frames),
    };
    return cmocka_run_group_tests(tests, setup, teardown);
}
