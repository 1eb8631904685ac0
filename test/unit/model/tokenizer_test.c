/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The tokenizer with a tiny vocabulary that has all 256 bytes: whatever goes in comes back. Special tokens, BOS, stop
 * tokens, user-defined tokens.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "model/tokenizer.h"
#include "support/tiny_model.h"

struct fixture {
    struct kn_gguf_writer w;
    struct kni_arena arena;
    struct kni_tokenizer *t;
};

static void start(struct fixture *f, const struct kn_tiny_opts *o, uint32_t user_id)
{
    struct kni_gguf *g;
    struct kn_err err = {0};
    memset(f, 0, sizeof *f);
    kn_tiny_tokenizer(&f->w, o);
    kn_gguf_assemble(&f->w);
    if (user_id) { /* makes one token user-defined */
        uint8_t *p = memmem(f->w.file.data, f->w.file.n, "tokenizer.ggml.token_type", 25);
        assert_non_null(p);
        memcpy(p + 25 + 4 + 4 + 8 + 4 * user_id, &(uint32_t){KNI_TOKEN_KIND_USER}, 4);
    }
    kni_arena_init(&f->arena, KNI_ALLOC_TAG_MODEL, 0);
    assert_int_equal(kni_gguf_parse(&g, &f->arena, f->w.file.data, f->w.file.n, "t.gguf", &err), KN_OK);
    assert_int_equal(kni_tokenizer_load(&f->t, &f->arena, g, &err), KN_OK);
}

static void stop(struct fixture *f)
{
    kni_tokenizer_fini(f->t);
    kni_arena_fini(&f->arena);
    kn_gguf_writer_fini(&f->w);
}

static void expect(const struct fixture *f, const char *text, size_t n, unsigned flags, size_t n_want, const int32_t *want)
{
    int32_t ids[256];
    size_t count = 256;
    assert_int_equal(kni_tokenizer_encode(f->t, text, n, flags, ids, &count), KN_OK);
    assert_int_equal(count, n_want);
    for (size_t i = 0; i < n_want; i++)
        assert_int_equal(ids[i], want[i]);
}

#define B(c) (KN_TINY_FIRST_BYTE + (c))
#define M(k) (KN_TINY_FIRST_BYTE + 256 + (k)) /* token of merge k */
#define EXPECT(text, flags, ...) expect(&f, text, sizeof text - 1, flags, sizeof(int32_t[]){__VA_ARGS__} / sizeof(int32_t), (int32_t[]){__VA_ARGS__})

static void known(void **state)
{
    (void)state;
    struct fixture f;
    start(&f, &(struct kn_tiny_opts){.add_bos = true}, 0);
    EXPECT("the", 0, B('t'), M(2));
    EXPECT(" the", 0, M(6)); /* " t", "he", " the" */
    EXPECT("the the", 0, B('t'), M(2), M(6));
    EXPECT("    ", 0, M(27));
    EXPECT("     a", 0, M(27), M(1)); /* the last blank goes to the word */
    EXPECT("12", 0, B('1'), B('2'));
    EXPECT("\xff\xfe", 0, B(0xff), B(0xfe));
    EXPECT("\xed\xa0\x80", 0, B(0xed), B(0xa0), B(0x80)); /* a surrogate is no character */
    EXPECT("in\xffin", 0, M(3), B(0xff), M(3));
    EXPECT("in", KN_TOKENIZE_BOS, 1, M(3));
    EXPECT("a<|im_end|>a", KN_TOKENIZE_SPECIAL, B('a'), 2, B('a'));
    EXPECT("<|im_start|><|im_end|><|endoftext|>", KN_TOKENIZE_SPECIAL, 1, 2, 0);
    EXPECT("<|", KN_TOKENIZE_SPECIAL, B('<'), B('|'));
    assert_true(f.t->tokens[0].stop && !f.t->tokens[1].stop && f.t->tokens[2].stop);
    assert_true(f.t->bos == 1 && f.t->eos == 2 && f.t->eot == 2);
    int32_t ids[64];
    size_t n = 64;
    assert_int_equal(kni_tokenizer_encode(f.t, "<|im_end|>", 10, 0, ids, &n), KN_OK); /* plain text without the flag */
    for (size_t i = 0; i < n; i++)
        assert_true(ids[i] > 2);
    n = 64;
    assert_int_equal(kni_tokenizer_encode(f.t, "", 0, KN_TOKENIZE_BOS, ids, &n), KN_OK);
    assert_true(n == 1 && ids[0] == 1);
    stop(&f);
    start(&f, &(struct kn_tiny_opts){0}, 0); /* add_bos false */
    EXPECT("in", KN_TOKENIZE_BOS, M(3));
    stop(&f);
}

/* User-defined tokens are found always, control tokens on request; the longest at a place wins. */
static void user_defined(void **state)
{
    (void)state;
    struct fixture f;
    start(&f, &(struct kn_tiny_opts){0}, M(17)); /* "ing" */
    EXPECT("ingxing", 0, M(17), B('x'), M(17));
    EXPECT("sing<|im_end|>", KN_TOKENIZE_SPECIAL, B('s'), M(17), 2);
    EXPECT("in", 0, M(3));
    stop(&f);
}

static void whole_pieces(void **state)
{
    (void)state;
    struct fixture f;
    start(&f, &(struct kn_tiny_opts){.pre = "llama-bpe"}, 0); /* no add_bos key would mean true; here it says false */
    EXPECT(" the", 0, M(6));
    EXPECT("123", 0, B('1'), B('2'), B('3'));
    EXPECT("\n\n", 0, M(28));
    stop(&f);
}

static void all_bytes_return(void **state)
{
    (void)state;
    struct fixture f;
    static const char *const pres[] = {"smollm", "gpt-2", "llama-bpe", "qwen2"};
    uint64_t rng = 7;
    for (unsigned k = 0; k < 4; k++) {
        start(&f, &(struct kn_tiny_opts){.pre = pres[k]}, 0);
        for (unsigned round = 0; round < 400; round++) {
            char text[300];
            int32_t ids[301];
            size_t n = kn_tiny_next(&rng) % 300, count = n + 1, at = 0;
            for (size_t i = 0; i < n; i++) {
                uint64_t x = kn_tiny_next(&rng);
                text[i] = round % 3 == 0 ? (char)(x >> 8) : round % 3 == 1 ? "the in\n\t 1"[x % 10] : "\xf0\x9f\x99\x82\xe4\xb8\xad\xc3\xa9 a"[x % 11];
            }
            if (round % 3 == 2 && n > 20)
                memcpy(text + n / 2, "<|im_end|>", 10);
            assert_int_equal(kni_tokenizer_encode(f.t, text, n, round % 2 ? KN_TOKENIZE_SPECIAL : 0, ids, &count), KN_OK);
            assert_true(count <= n);
            for (size_t i = 0; i < count; i++) {
                const struct kni_token *token = &f.t->tokens[ids[i]];
                assert_true(at + token->n <= n);
                assert_memory_equal(f.t->blob + token->at, text + at, token->n);
                at += token->n;
            }
            assert_int_equal(at, n);
        }
        stop(&f);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(known), cmocka_unit_test(user_defined), cmocka_unit_test(whole_pieces), cmocka_unit_test(all_bytes_return),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
