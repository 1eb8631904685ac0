/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Arbitrary bytes as text. The first byte chooses flags and tokenizer, the rest is the text; the vocabulary is the tiny one,
 * which has all bytes, so the tokens' bytes must be the text again: for Qwen in Unicode's form C (compared when the text is
 * valid), for SentencePiece with blanks for U+2581.
 */
#include <assert.h>

#include "base/alloc.h"
#include "kinema/model.h"
#include "model/nfc.h"
#include "model/tokenizer.h"
#include "support/tiny_model.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static struct kni_tokenizer *tokenizer_of(unsigned which)
{
    static const char *const pres[] = {"smollm", "gpt-2", "llama-bpe", "qwen2"};
    static struct kni_tokenizer *loaded[6]; /* kept for the life of the process */
    static struct kni_arena arenas[6];
    static struct kn_gguf_writer files[6];
    if (!loaded[which]) {
        struct kni_gguf *g;
        struct kn_err err = {0};
        kn_tiny_tokenizer(&files[which], &(struct kn_tiny_opts){.pre = pres[which % 4], .spm = which > 3, .no_space_prefix = which > 4});
        kn_gguf_assemble(&files[which]);
        kni_arena_init(&arenas[which], KNI_ALLOC_TAG_MODEL, 0);
        if (kni_gguf_parse(&g, &arenas[which], files[which].file.data, files[which].file.n, "tiny", &err) ||
            kni_tokenizer_load(&loaded[which], &arenas[which], g, &err))
            abort();
    }
    return loaded[which];
}

static bool same(const int32_t *a, size_t n_a, const int32_t *b, size_t n_b)
{
    return n_a == n_b && (!n_a || !memcmp(a, b, n_a * sizeof *a));
}

/* The text plain as a whole is the text without control tokens; ranges without bytes change nothing; a limit is held or said to be passed. */
static void check_options(const struct kni_tokenizer *t, const char *text, size_t n, const int32_t *ids, size_t n_ids, unsigned flags)
{
    const size_t room = 3 * n + 2;
    int32_t *plain = malloc(room * sizeof *plain), *other = malloc(room * sizeof *other);
    const struct kn_text_range whole = {0, n}, empty[2] = {{n / 2, 0}, {n, 0}};
    struct kn_tokenize_opts o = {.flags = KN_TOKENIZE_SPECIAL, .plain = &whole, .n_plain = 1};
    size_t n_plain = room, n_other = room;
    if (!plain || !other || kni_tokenizer_encode(t, text, n, 0, plain, &n_plain) || kni_tokenizer_encode_with(t, text, n, &o, NULL, other, &n_other) ||
        !same(plain, n_plain, other, n_other))
        abort();
    o = (struct kn_tokenize_opts){.flags = flags, .plain = empty, .n_plain = 2};
    n_other = room;
    if (kni_tokenizer_encode_with(t, text, n, &o, NULL, other, &n_other) || !same(ids, n_ids, other, n_other))
        abort();
    o.max_ids = n_ids / 2 + 1;
    n_other = room;
    enum kn_status s = kni_tokenizer_encode_with(t, text, n, &o, NULL, other, &n_other);
    if (s != (n_ids > o.max_ids ? KN_E_CONTEXT : KN_OK) || (s == KN_E_CONTEXT ? n_other <= o.max_ids || n_other > n_ids : !same(ids, n_ids, other, n_other)))
        abort();
    free(plain);
    free(other);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    if (!size)
        return 0;
    unsigned which = data[0] & 8 ? 4 + (data[0] & 1) : data[0] & 3;
    const struct kni_tokenizer *t = tokenizer_of(which);
    const char *text = (const char *)data + 1;
    size_t n = size - 1, n_ids = 3 * n + 2, at = 0;
    int32_t *ids = malloc(n_ids * sizeof *ids);
    char *want = malloc(n + 1), *nfc = NULL;
    if (!ids || !want)
        abort();
    enum kn_status s = kni_tokenizer_encode(t, text, n, data[0] & 4 ? KN_TOKENIZE_SPECIAL : 0, ids, &n_ids);
    if (s != KN_OK || n_ids > 3 * n + 1)
        abort();
    check_options(t, text, n, ids, n_ids, data[0] & 4 ? KN_TOKENIZE_SPECIAL : 0);
    size_t i = 0;
    if (which == 4) { /* blanks before the text and behind control tokens: only that nothing is lost */
        for (; i < n_ids; i++)
            at += t->tokens[ids[i]].n;
        if (at < n / 3)
            abort();
        goto done;
    }
    memcpy(want, text, n);
    if (which == 5) {
        n = kni_tokenizer_unmark(want, text, n);
    } else if (which == 3) {
        if (kni_utf8_valid_prefix(text, n) != n || data[0] & 4)
            goto done;
        if (kni_nfc(&nfc, &n, text, n, &(struct kni_effort){0}) != KN_OK)
            abort();
    }
    for (; i < n_ids; i++) {
        const struct kni_token *token = &t->tokens[ids[i]];
        if (token->n > n - at || memcmp(t->blob + token->at, (nfc ? nfc : want) + at, token->n))
            abort();
        at += token->n;
    }
    if (at != n)
        abort();
done:
    kni_free(nfc);
    free(want);
    free(ids);
    return 0;
}
