/* SPDX-License-Identifier: Apache-2.0 */
/* Which templates are recognised and what they render to. SmolLM2's own is compared with the reference in e2e/tokens_test.c. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "model/chat.h"
#include "support/tiny_model.h"

struct fixture {
    struct kn_gguf_writer w;
    struct kni_arena arena;
    struct kni_tokenizer *t;
    struct kni_chat *chat;
};

static void start(struct fixture *f, const char *template_text)
{
    struct kni_gguf *g;
    struct kn_err err = {0};
    memset(f, 0, sizeof *f);
    kn_tiny_tokenizer(&f->w, &(struct kn_tiny_opts){.chat_template = template_text});
    kn_gguf_assemble(&f->w);
    kni_arena_init(&f->arena, KNI_ALLOC_TAG_MODEL, 0);
    assert_int_equal(kni_gguf_parse(&g, &f->arena, f->w.file.data, f->w.file.n, "t.gguf", &err), KN_OK);
    assert_int_equal(kni_tokenizer_load(&f->t, &f->arena, g, &err), KN_OK);
    assert_int_equal(kni_chat_load(&f->chat, &f->arena, g, f->t, NULL, &err), KN_OK);
}

static void stop(struct fixture *f)
{
    kni_tokenizer_fini(f->t);
    kni_arena_fini(&f->arena);
    kn_gguf_writer_fini(&f->w);
}

static void expect(const char *template_text, const char *name, enum kn_status status, bool reply, size_t n, const struct kn_chat_message *m,
                   const char *want)
{
    struct fixture f;
    char buf[512];
    size_t n_bytes = sizeof buf;
    start(&f, template_text);
    assert_string_equal(kni_chat_name(f.chat), name);
    assert_int_equal(kni_chat_render(f.chat, m, n, reply, NULL, buf, &n_bytes), status);
    if (status == KN_OK) {
        assert_string_equal(buf, want);
        assert_int_equal(n_bytes, strlen(want));
        for (size_t room = 0; room <= n_bytes; room++) { /* every smaller room: told the length, never written past */
            char small[512];
            size_t got = room;
            memset(small, '#', sizeof small);
            assert_int_equal(kni_chat_render(f.chat, m, n, reply, NULL, small, &got), room < n_bytes ? KN_E_ARG : KN_OK);
            assert_int_equal(got, n_bytes);
            assert_memory_equal(small, want, room);
            assert_int_equal(small[room], '#');
        }
    }
    stop(&f);
}

static const struct kn_chat_message talk[] = {{"user", " a\n"}, {"assistant", "b"}, {"user", "c"}};
static const struct kn_chat_message with_system[] = {{"system", "s"}, {"user", "a"}};

static void chatml(void **state)
{
    (void)state;
    expect(KN_TINY_CHATML, "chatml", KN_OK, true, 3, talk, "<|im_start|>user\n a\n<|im_end|>\n<|im_start|>assistant\nb<|im_end|>\n<|im_start|>user\nc<|im_end|>\n<|im_start|>assistant\n");
    /* a default system message, newline written out, as \n, and behind a literal that is none */
    static const char *const templates[] = {
        "{% if x %}{{ '<|im_start|>system\nBe \\'kind\\'.<|im_end|>\n' }}{% endif %}",
        "{% if x %}{{ '<|im_start|>system\\nBe \\'kind\\'.<|im_end|>\\n' }}{% endif %}",
        "{{- '<|im_start|>system\\n' + m['content'] + '<|im_end|>\\n' }}{{- '<|im_start|>system\\nBe \\'kind\\'.<|im_end|>\\n' }}",
    };
    for (unsigned i = 0; i < 3; i++) {
        expect(templates[i], "chatml", KN_OK, false, 1, &with_system[1], "<|im_start|>system\nBe 'kind'.<|im_end|>\n<|im_start|>user\na<|im_end|>\n");
        expect(templates[i], "chatml", KN_OK, false, 2, with_system, "<|im_start|>system\ns<|im_end|>\n<|im_start|>user\na<|im_end|>\n");
    }
    expect("{{ '<|im_start|>system\n' + x + '<|im_end|>\n' }}", "chatml", KN_OK, false, 1, talk + 2, "<|im_start|>user\nc<|im_end|>\n");
    expect("<|im_start|>system\n<|im_end|><|im_start|>system", "chatml", KN_OK, false, 1, talk + 2, "<|im_start|>user\nc<|im_end|>\n");
    expect(KN_TINY_CHATML, "chatml", KN_E_ARG, true, 0, talk, NULL);
    expect(KN_TINY_CHATML, "chatml", KN_E_ARG, true, 1, &(struct kn_chat_message){"user", NULL}, NULL);
    expect(KN_TINY_CHATML, "chatml", KN_E_ARG, true, 1, &(struct kn_chat_message){NULL, "x"}, NULL);
}

static void llama3(void **state)
{
    (void)state;
    const char *t = "{{ bos_token }}{{ '<|start_header_id|>' + role + '<|end_header_id|>\n\n' + content | trim + '<|eot_id|>' }}";
    expect(t, "llama3", KN_OK, true, 3, talk,
           "<|im_start|><|start_header_id|>user<|end_header_id|>\n\na<|eot_id|><|start_header_id|>assistant<|end_header_id|>\n\nb<|eot_id|>"
           "<|start_header_id|>user<|end_header_id|>\n\nc<|eot_id|><|start_header_id|>assistant<|end_header_id|>\n\n");
    expect(t, "llama3", KN_OK, false, 2, with_system,
           "<|im_start|><|start_header_id|>system<|end_header_id|>\n\ns<|eot_id|><|start_header_id|>user<|end_header_id|>\n\na<|eot_id|>");
    expect("<|start_header_id|><|eot_id|> Cutting Knowledge Date: ", "none", KN_E_UNSUPPORTED, true, 1, talk, NULL); /* 3.1 writes the date */
}

static void mistral(void **state)
{
    (void)state;
    expect("{{ '[INST] ' + content + ' [/INST]' }}", "mistral", KN_OK, true, 3, talk, "<|im_start|>[INST]  a\n [/INST]b<|im_end|>[INST] c [/INST]");
    expect("{{ '[INST]' + content + '[/INST]' }}", "mistral", KN_OK, false, 3, talk, "<|im_start|>[INST] a\n[/INST]b<|im_end|>[INST]c[/INST]");
    expect("{{ '[INST]' + content + '[/INST]' }}", "mistral", KN_E_ARG, false, 2, with_system, NULL);
    expect("[INST] <<SYS>> [/INST]", "none", KN_E_UNSUPPORTED, false, 1, talk, NULL); /* Llama 2 */
}

static void gemma(void **state)
{
    (void)state;
    const char *t = "{{ bos_token }}{{ '<start_of_turn>' + role + '\n' + content | trim + '<end_of_turn>\n' }}";
    expect(t, "gemma", KN_OK, true, 3, talk,
           "<|im_start|><start_of_turn>user\na<end_of_turn>\n<start_of_turn>model\nb<end_of_turn>\n<start_of_turn>user\nc<end_of_turn>\n<start_of_turn>model\n");
    expect(t, "gemma", KN_OK, false, 2, with_system, "<|im_start|><start_of_turn>user\ns\n\na<end_of_turn>\n");
    expect(t, "gemma", KN_OK, false, 1, with_system, "<|im_start|>"); /* a system message alone: nothing to put it before */
    static const struct kn_chat_message twice[] = {{"user", "a"}, {"user", "b"}}, late[] = {{"assistant", "a"}, {"user", "b"}};
    expect(t, "gemma", KN_E_ARG, false, 2, twice, NULL);
    expect(t, "gemma", KN_E_ARG, false, 2, late, NULL);
    expect("{{ raise_exception('System role not supported') }}<start_of_turn><end_of_turn>", "gemma", KN_E_ARG, false, 2, with_system, NULL);
    expect("{{ raise_exception('System role not supported') }}<start_of_turn><end_of_turn>", "gemma", KN_OK, false, 1, talk, "<|im_start|><start_of_turn>user\na<end_of_turn>\n");
}

static void none(void **state)
{
    (void)state;
    expect("", "none", KN_E_UNSUPPORTED, true, 1, talk, NULL); /* no template in the file */
    expect("{{ 'Question: ' + content }}", "none", KN_E_UNSUPPORTED, true, 1, talk, NULL);
}

/* A chosen template in place of the file's own, which keeps what that says when it is of the same kind. */
static void chosen(void **state)
{
    (void)state;
    static const char tight[] = "{{ '[INST]' + content + '[/INST]' }}";
    static const struct { const char *file, *name, *want; } all[] = {
        {"", "chatml", "<|im_start|>user\na<|im_end|>\n"}, {"{{ x }}", "gemma", "<|im_start|><start_of_turn>user\na<end_of_turn>\n"},
        {"", "llama3", "<|im_start|><|start_header_id|>user<|end_header_id|>\n\na<|eot_id|>"}, {tight, "mistral", "<|im_start|>[INST]a[/INST]"},
        {"", "mistral", "<|im_start|>[INST] a [/INST]"}, {tight, "chatml", "<|im_start|>user\na<|im_end|>\n"},
        {"{{ '<|im_start|>system\nS<|im_end|>\n' }}", "chatml", "<|im_start|>system\nS<|im_end|>\n<|im_start|>user\na<|im_end|>\n"},
        {"{{ '<|im_start|>system\nS<|im_end|>\n' }}", "mistral", "<|im_start|>[INST] a [/INST]"},
    };
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) {
        struct fixture f;
        struct kni_chat *chat;
        struct kni_gguf *g;
        struct kn_err err = {0};
        char buf[256];
        size_t n = sizeof buf;
        start(&f, all[i].file);
        assert_int_equal(kni_gguf_parse(&g, &f.arena, f.w.file.data, f.w.file.n, "t.gguf", &err), KN_OK);
        assert_int_equal(kni_chat_load(&chat, &f.arena, g, f.t, all[i].name, &err), KN_OK);
        assert_string_equal(kni_chat_name(chat), all[i].name);
        assert_int_equal(chat->in_file, *all[i].file != 0);
        assert_non_null(strstr(kn_chat_template_names(), all[i].name));
        assert_int_equal(kni_chat_render(chat, &with_system[1], 1, 0, NULL, buf, &n), KN_OK);
        assert_string_equal(buf, all[i].want);
        static const char *const unknown[] = {"none", "", "chat", "chatml "};
        for (int k = 0; k < 4; k++) {
            assert_int_equal(kni_chat_load(&chat, &f.arena, g, f.t, unknown[k], &err), KN_E_ARG);
            assert_non_null(strstr(err.text, "known are chatml, llama3, mistral, gemma"));
        }
        stop(&f);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(chatml), cmocka_unit_test(llama3), cmocka_unit_test(mistral), cmocka_unit_test(gemma), cmocka_unit_test(none), cmocka_unit_test(chosen)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
