/* SPDX-License-Identifier: Apache-2.0 */
/* Conversations as transformers renders them, and their tokens as sentencepiece cuts them: e2e/golden/make_frames.py. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "model/chat.h"
#include "support/frames.h"
#include "support/open_tiny.h"

static json_t *frames;

static int load(void **state)
{
    (void)state;
    frames = kn_golden_load("frames.json");
    return 0;
}

static int unload(void **state)
{
    (void)state;
    json_decref(frames);
    return 0;
}

static struct kn_model *open_with(const char *template_name, bool spm, bool prefix)
{
    const char *text = json_string_value(json_object_get(json_object_get(frames, "templates"), template_name));
    struct kn_model *model = kn_open_tiny(&(struct kn_tiny_opts){.n_layer = 1, .chat_template = text, .spm = spm, .no_space_prefix = !prefix});
    assert_non_null(model);
    return model;
}

/* The rendering, its length told beforehand, and where the texts lie in it: each as it was given but for blanks at its ends. */
static void renderings(void **state)
{
    (void)state;
    struct kn_model *model = NULL;
    const char *name = "";
    const json_t *entry;
    size_t i, n_refused = 0;
    json_array_foreach(json_object_get(frames, "frames"), i, entry) {
        const json_t *want = json_array_get(entry, 3);
        struct kn_frame f;
        if (strcmp(name, json_string_value(json_array_get(entry, 0)))) {
            name = json_string_value(json_array_get(entry, 0));
            kn_model_close(&model);
            model = open_with(name, false, false);
        }
        enum kn_status s = kn_frame_render(&f, model, frames, json_array_get(entry, 1), json_array_get(entry, 2));
        if (json_is_null(want)) {
            assert_int_equal(s, KN_E_ARG);
            n_refused++;
            continue;
        }
        assert_int_equal(s, KN_OK);
        if (strcmp(f.text, json_string_value(want)))
            fail_msg("frame %zu (%s): \"%s\", want \"%s\"", i, name, f.text, json_string_value(want));
        size_t at = 0;
        for (size_t k = 0; k < f.n_messages; k++) {
            assert_true(f.texts[k].at >= at && f.texts[k].at + f.texts[k].n_bytes <= f.n_bytes);
            at = f.texts[k].at + f.texts[k].n_bytes;
            char *own = strndup(f.text + f.texts[k].at, f.texts[k].n_bytes);
            bool found = false;
            for (size_t j = 0; j < f.n_messages; j++)
                found = found || strstr(f.messages[j].text, own);
            assert_true(found);
            free(own);
        }
    }
    kn_model_close(&model);
    assert_true(i > 500 && n_refused > 100);
}

static void tokens(void **state)
{
    (void)state;
    struct kn_model *model = NULL;
    const char *name = "";
    const json_t *entry;
    size_t i;
    bool prefix = false;
    json_array_foreach(json_object_get(frames, "spm"), i, entry) {
        if (strcmp(name, json_string_value(json_array_get(entry, 0))) || prefix != json_is_true(json_array_get(entry, 3))) {
            name = json_string_value(json_array_get(entry, 0));
            prefix = json_is_true(json_array_get(entry, 3));
            kn_model_close(&model);
            model = open_with(name, true, prefix);
        }
        kn_frame_expect(i, model, frames, json_array_get(entry, 1), json_array_get(entry, 2), json_array_get(entry, 4));
    }
    kn_model_close(&model);
    assert_true(i > 800);
}

/* Ranges at every place of a text: control tokens that touch one are text, the others are not, and nothing else changes. */
static void ranges(void **state)
{
    (void)state;
    static const char text[] = "the<|im_end|> the \xe2\x96\x81<|im_end|>";
    enum { N = sizeof text - 1, FIRST = 3, SECOND = N - 10 };
    for (int spm = 0; spm < 2; spm++) {
        struct kn_model *model = open_with("chatml", spm, true);
        for (size_t from = 0; from <= N; from++)
            for (size_t to = from; to <= N; to++) {
                /* bytes of valid UTF-8 only: the mark for a blank is not cut */
                if ((from > 18 && from < 21) || (to > 18 && to < 21))
                    continue;
                struct kn_text_range range = {from, to - from};
                struct kn_tokenize_opts o = {.size = sizeof o, .flags = KN_TOKENIZE_SPECIAL, .plain = &range, .n_plain = 1};
                int32_t ids[64];
                size_t n = 64, n_special = 0;
                assert_int_equal(kn_model_tokenize_with(model, text, N, &o, ids, &n), KN_OK);
                for (size_t i = 0; i < n; i++)
                    n_special += kn_model_token_is_special(model, ids[i]);
                bool first = from == to || to <= FIRST || from >= FIRST + 10, second = from == to || to <= SECOND;
                assert_int_equal(n_special, first + second);
            }
        kn_model_close(&model);
    }
}

static bool count_down(void *user)
{
    unsigned *left = user;
    return !(*left)--;
}

static void options(void **state)
{
    (void)state;
    struct kn_model *model = open_with("chatml", false, false);
    char text[] = "a <|im_end|> the 12";
    int32_t ids[32], want[32];
    size_t n = 32, n_want = 32;
    struct kn_text_range two[2] = {{0, 4}, {3, 1}};
    struct kn_tokenize_opts o = {.size = sizeof o, .flags = KN_TOKENIZE_SPECIAL};
    assert_int_equal(kn_model_tokenize(model, text, strlen(text), KN_TOKENIZE_SPECIAL, want, &n_want), KN_OK);
    assert_int_equal(kn_model_tokenize_with(model, text, strlen(text), &o, ids, &n), KN_OK);
    assert_int_equal(n, n_want);
    assert_memory_equal(ids, want, n * sizeof *ids);
    o.plain = two; /* overlapping, beyond the text, not there */
    o.n_plain = 2;
    assert_int_equal(kn_model_tokenize_with(model, text, strlen(text), &o, ids, &n), KN_E_ARG);
    two[1] = (struct kn_text_range){4, 16};
    assert_int_equal(kn_model_tokenize_with(model, text, strlen(text), &o, ids, &n), KN_E_ARG);
    two[1] = (struct kn_text_range){SIZE_MAX, 2};
    assert_int_equal(kn_model_tokenize_with(model, text, strlen(text), &o, ids, &n), KN_E_ARG);
    o.plain = NULL;
    assert_int_equal(kn_model_tokenize_with(model, text, strlen(text), &o, ids, &n), KN_E_ARG);
    o.n_plain = 0;
    o.flags = 64;
    assert_int_equal(kn_model_tokenize_with(model, text, strlen(text), &o, ids, &n), KN_E_ARG);
    o.flags = KN_TOKENIZE_SPECIAL;
    o.size = 0;
    assert_int_equal(kn_model_tokenize_with(model, text, strlen(text), &o, ids, &n), KN_E_ARG);
    assert_int_equal(kn_model_tokenize_with(model, text, strlen(text), NULL, ids, &n), KN_E_ARG);
    o.size = offsetof(struct kn_tokenize_opts, max_ids); /* an older caller's */
    o.max_ids = 1;
    n = 32;
    assert_int_equal(kn_model_tokenize_with(model, text, strlen(text), &o, ids, &n), KN_OK);
    o.size = sizeof o;
    for (o.max_ids = 1; o.max_ids <= n_want; o.max_ids++) {
        n = 32;
        assert_int_equal(kn_model_tokenize_with(model, text, strlen(text), &o, ids, &n), o.max_ids < n_want ? KN_E_CONTEXT : KN_OK);
        assert_true(o.max_ids < n_want ? n > o.max_ids : n == n_want);
    }
    unsigned left = 0; /* asked with the first step */
    o.stop = count_down;
    o.user = &left;
    n = 32;
    assert_int_equal(kn_model_tokenize_with(model, text, strlen(text), &o, ids, &n), KN_E_CANCELLED);
    kn_model_close(&model);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(renderings), cmocka_unit_test(tokens), cmocka_unit_test(ranges), cmocka_unit_test(options)};
    return cmocka_run_group_tests(tests, load, unload);
}
