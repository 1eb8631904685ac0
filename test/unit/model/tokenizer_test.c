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
    static const struct kn_tiny_opts opts[] = {{.pre = "smollm"}, {.pre = "gpt-2"}, {.pre = "llama-bpe"}, {.spm = true, .no_space_prefix = true}};
    uint64_t rng = 7;
    for (unsigned k = 0; k < 4; k++) {
        start(&f, &opts[k], 0);
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

/* Qwen's text goes through form C first, but special tokens are found before and stray bytes stay what they are. */
static void form_c(void **state)
{
    (void)state;
    struct fixture f;
    start(&f, &(struct kn_tiny_opts){.pre = "qwen2"}, 0);
    EXPECT("e\xcc\x81", 0, B(0xc3), B(0xa9));
    EXPECT("\xc3\xa9", 0, B(0xc3), B(0xa9));
    EXPECT("a\xe2\x84\xab", 0, B('a'), B(0xc3), B(0x85)); /* Angstrom sign */
    EXPECT("e<|im_end|>\xcc\x81", KN_TOKENIZE_SPECIAL, B('e'), 2, B(0xcc), B(0x81)); /* nothing to combine with */
    EXPECT("e\xff\xcc\x81", 0, B('e'), B(0xff), B(0xcc), B(0x81));
    EXPECT("\xe0\xa5\x98", 0, B(0xe0), B(0xa4), B(0x95), B(0xe0), B(0xa4), B(0xbc)); /* form C is longer here */
    stop(&f);
    start(&f, &(struct kn_tiny_opts){.pre = "llama-bpe"}, 0);
    EXPECT("e\xcc\x81", 0, B('e'), B(0xcc), B(0x81));
    stop(&f);
}

static void sentencepiece(void **state)
{
    (void)state;
    struct fixture f;
    const struct kn_tiny_opts plain = {.spm = true, .no_space_prefix = true, .add_bos = true};
    start(&f, &plain, 0);
    EXPECT("", KN_TOKENIZE_BOS, 1);
    EXPECT("the", 0, B('t'), M(2)); /* " t" has the best score, but here is no blank: "he" */
    EXPECT(" the", 0, M(6));
    EXPECT("\xe2\x96\x81the", 0, M(6)); /* the mark is a blank */
    EXPECT("a\xe2\x96\x81", 0, B('a'), B(' '));
    EXPECT("    ", 0, M(27)); /* two and two, then four */
    EXPECT("   ", 0, M(26), B(' ')); /* of equal scores the leftmost */
    EXPECT("lll", 0, M(18), B('l'));
    EXPECT("12\xc3\xa9", 0, B('1'), B('2'), B(0xc3), B(0xa9)); /* no token: bytes */
    EXPECT("in\xffin\xe2\x96", 0, M(3), B(0xff), M(3), B(0xe2), B(0x96));
    EXPECT("\n\n\n", 0, M(28), B('\n'));
    EXPECT("a<|im_end|>in", KN_TOKENIZE_SPECIAL, B('a'), 2, M(3));
    EXPECT("<0x41>", 0, B('<'), B('0'), B('x'), B('4'), B('1'), B('>')); /* a byte token's name is text */
    stop(&f);
    start(&f, &plain, M(17)); /* "ing", user-defined: its halves are not merged across its edge */
    EXPECT("ingin", 0, M(17), M(3));
    EXPECT(" ting", 0, M(0), M(17));
    stop(&f);
    start(&f, &(struct kn_tiny_opts){.spm = true}, M(17));
    expect(&f, "", 0, 0, 0, NULL);
    EXPECT("the", 0, M(6)); /* a blank goes before a text, */
    EXPECT(" the", 0, B(' '), M(6));
    EXPECT("the<|im_end|>the", KN_TOKENIZE_SPECIAL, M(6), 2, M(6)); /* and behind a control token, */
    EXPECT("<|im_end|><|im_end|>", KN_TOKENIZE_SPECIAL, 2, 2); /* where text follows, */
    EXPECT("ing", 0, B(' '), M(17)); /* be it a user-defined token, */
    EXPECT("\xff", 0, B(' '), B(0xff)); /* or no text at all */
    stop(&f);
}

/* A vocabulary without a byte: its unknown token, once a byte. */
static void unknown_byte(void **state)
{
    (void)state;
    struct fixture f;
    start(&f, &(struct kn_tiny_opts){.spm = true, .no_space_prefix = true}, B('z')); /* <0x7A> becomes a user-defined token of that name */
    EXPECT("az", 0, B('a'));
    f.t->unknown = 0;
    EXPECT("az", 0, B('a'), 0);
    EXPECT("a<0x7A>", 0, B('a'), B('z'));
    stop(&f);
}

/* A text that makes a slow merge loop quadratic: one letter, with tokens of two. */
static void long_run(void **state)
{
    (void)state;
    enum { N = 200000 };
    struct fixture f;
    char *text = malloc(N);
    int32_t *ids = malloc((3 * N + 2) * sizeof *ids);
    size_t n = 3 * N + 2;
    start(&f, &(struct kn_tiny_opts){.spm = true, .no_space_prefix = true}, 0);
    memset(text, 'l', N);
    assert_int_equal(kni_tokenizer_encode(f.t, text, N, 0, ids, &n), KN_OK);
    assert_int_equal(n, N / 2);
    for (size_t i = 0; i < n; i++)
        assert_int_equal(ids[i], M(18));
    stop(&f);
    free(text);
    free(ids);
}

/* Hostile texts of every kind to every kind of tokenizer: twice the text makes at most 2.2 times the steps. */
static void steps_are_linear(void **state)
{
    (void)state;
    static const char *const parts[] = {
        "a", "l", " ", "\n", "\r\n", " \n", "\t ", "ab", "the", "the ", " the", "1", "12 ", "!", "!?", "'s", "'", "\xc3\xa9", "\xe2\x96\x81", "\xe4\xb8\xad", "\xf0\x9f\x99\x82",
        "\xff", "a\xff", "\xe2\x96", "\xcc\x81", "\xcc\x81\xcc\xa3", "a\xcc\xa3\xcc\x81", "\xe1\x84\x80\xe1\x85\xa1\xe1\x86\xa8", "\xe1\x84\x80", "<|im_end|>", "<|im_", "<", "<|im_end|>the",
        "\x00", "\xef\xbb\xbf", "\xe2\x80\x8b", "\xc2\xa0", "\xe3\x80\x80", "llllllllllll ",
    };
    static const char *const pres[] = {"gpt-2", "smollm", "llama-bpe", "qwen2", NULL, NULL};
    enum { N = 1 << 16, MAX = 4 * N };
    char *text = malloc(MAX);
    int32_t *ids = malloc((3 * (size_t)MAX + 2) * sizeof *ids);
    assert_true(text && ids);
    for (size_t p = 0; p < sizeof pres / sizeof *pres; p++) {
        struct fixture f;
        start(&f, &(struct kn_tiny_opts){.pre = pres[p], .spm = !pres[p], .no_space_prefix = p == 5}, 0);
        for (size_t i = 0; i < sizeof parts / sizeof *parts; i++) {
            size_t n_part = *parts[i] ? strlen(parts[i]) : 1;
            uint64_t steps = 0;
            for (size_t n = 0; n < MAX; n++)
                text[n] = parts[i][n % n_part];
            for (size_t n = N; n <= MAX; n *= 2) {
                uint64_t now = 0;
                size_t n_ids = 3 * (size_t)MAX + 2;
                assert_int_equal(kni_tokenizer_encode_with(f.t, text, n, &(struct kn_tokenize_opts){.flags = KN_TOKENIZE_SPECIAL}, &now, ids, &n_ids), KN_OK);
                if (now > 12 * n || (steps && now * 10 > steps * 22 + 10000))
                    fail_msg("%zu, part %zu: %llu steps for %zu bytes, %llu for half of them", p, i, (unsigned long long)now, n, (unsigned long long)steps);
                steps = now;
            }
        }
        stop(&f);
    }
    free(text);
    free(ids);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(form_c), cmocka_unit_test(sentencepiece), cmocka_unit_test(unknown_byte), cmocka_unit_test(long_run),
        cmocka_unit_test(known), cmocka_unit_test(user_defined), cmocka_unit_test(whole_pieces), cmocka_unit_test(all_bytes_return),
        cmocka_unit_test(steps_are_linear),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
