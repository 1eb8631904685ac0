/* SPDX-License-Identifier: Apache-2.0 */
/* Talks of e2e/golden/frames.json through a model's template and tokenizer. Everything asserts with cmocka. */
#ifndef KN_TEST_FRAMES_H
#define KN_TEST_FRAMES_H

#include <string.h>

#include "support/golden.h"

struct kn_frame {
    struct kn_chat_message messages[8];
    struct kn_text_range texts[8];
    size_t n_messages, n_bytes;
    char text[1024];
};

/* mode: 0 the messages alone, 1 a reply opened, 2 the last message continued. */
static inline enum kn_status kn_frame_render(struct kn_frame *f, const struct kn_model *model, const json_t *frames, const json_t *talk, const json_t *mode)
{
    static const unsigned flags[] = {0, KN_CHAT_REPLY, KN_CHAT_CONTINUE};
    const json_t *messages = json_array_get(json_object_get(frames, "talks"), (size_t)json_integer_value(talk)), *m;
    const unsigned flag = flags[json_integer_value(mode)];
    size_t i, told = 0;
    memset(f, 0, sizeof *f);
    f->n_messages = json_array_size(messages);
    assert_true(f->n_messages && f->n_messages <= 8);
    json_array_foreach(messages, i, m)
        f->messages[i] = (struct kn_chat_message){json_string_value(json_array_get(m, 0)), json_string_value(json_array_get(m, 1))};
    assert_int_equal(kn_model_chat_texts(model, f->messages, f->n_messages, flag, f->texts, NULL, &told), KN_E_ARG);
    f->n_bytes = sizeof f->text;
    enum kn_status s = kn_model_chat_texts(model, f->messages, f->n_messages, flag, f->texts, f->text, &f->n_bytes);
    assert_int_equal(f->n_bytes, told);
    return s;
}

static inline void kn_frame_expect(size_t index, const struct kn_model *model, const json_t *frames, const json_t *talk, const json_t *mode, const json_t *want)
{
    struct kn_frame f;
    int32_t ids[1024];
    size_t n = 1024;
    assert_int_equal(kn_frame_render(&f, model, frames, talk, mode), KN_OK);
    struct kn_tokenize_opts o = {.size = sizeof o, .flags = KN_TOKENIZE_SPECIAL, .plain = f.texts, .n_plain = f.n_messages};
    assert_int_equal(kn_model_tokenize_with(model, f.text, f.n_bytes, &o, ids, &n), KN_OK);
    for (size_t i = 0; i < n && i < json_array_size(want); i++)
        if (ids[i] != json_integer_value(json_array_get(want, i)))
            fail_msg("list %zu \"%s\": id %zu is %d, want %lld", index, f.text, i, ids[i], json_integer_value(json_array_get(want, i)));
    if (n != json_array_size(want))
        fail_msg("list %zu \"%s\": %zu ids, want %zu", index, f.text, n, json_array_size(want));
}

#endif
