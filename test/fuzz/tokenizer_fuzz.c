/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Arbitrary bytes as text. The first byte chooses flags and pre-tokenizer, the rest is the text; the vocabulary is the tiny
 * one, which has all bytes, so the tokens' bytes must be the text again.
 */
#include <assert.h>

#include "kinema/model.h"
#include "model/tokenizer.h"
#include "support/tiny_model.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static struct kni_tokenizer *tokenizer_of(unsigned which)
{
    static const char *const pres[] = {"smollm", "gpt-2", "llama-bpe", "qwen2"};
    static struct kni_tokenizer *loaded[4]; /* kept for the life of the process */
    static struct kni_arena arenas[4];
    static struct kn_gguf_writer files[4];
    if (!loaded[which]) {
        struct kni_gguf *g;
        struct kn_err err = {0};
        kn_tiny_tokenizer(&files[which], &(struct kn_tiny_opts){.pre = pres[which]});
        kn_gguf_assemble(&files[which]);
        kni_arena_init(&arenas[which], KNI_ALLOC_TAG_MODEL, 0);
        if (kni_gguf_parse(&g, &arenas[which], files[which].file.data, files[which].file.n, "tiny", &err) ||
            kni_tokenizer_load(&loaded[which], &arenas[which], g, &err))
            abort();
    }
    return loaded[which];
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    if (!size)
        return 0;
    const struct kni_tokenizer *t = tokenizer_of(data[0] & 3);
    const char *text = (const char *)data + 1;
    size_t n = size - 1, n_ids = n + 1, at = 0;
    int32_t *ids = malloc(n_ids * sizeof *ids);
    if (!ids)
        return 0;
    enum kn_status s = kni_tokenizer_encode(t, text, n, data[0] & 4 ? KN_TOKENIZE_SPECIAL : 0, ids, &n_ids);
    if (s != KN_OK || n_ids > n)
        abort();
    for (size_t i = 0; i < n_ids; i++) {
        const struct kni_token *token = &t->tokens[ids[i]];
        if (token->n > n - at || memcmp(t->blob + token->at, text + at, token->n))
            abort();
        at += token->n;
    }
    if (at != n)
        abort();
    free(ids);
    return 0;
}
