/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Calibration texts as tokens. Each text counts by itself from its beginning, as a prompt would: a cache's first tokens differ from
 * later ones. The last sixth of the texts, rounded, one at least, is held back: nothing is learned from it, steps and quality are measured on
 * it. Of a single text that is its last quarter.
 */
#include <string.h>

#include "base/alloc.h"
#include "base/status.h"
#include "engine/profile_build_state.h"

#define DEFAULT_MAX_TOKENS 2048u
#define MIN_TEXT_TOKENS 64u  /* shorter texts are left out */
#define MIN_HELD_TOKENS 128u
#define BYTES_PER_TOKEN 32u  /* more than that is never looked at: long runs of blanks apart, texts have about 4 */

static enum kn_status tokenize(struct kni_build *b, const char *text, size_t n_bytes, uint32_t max, struct kni_build_text *out)
{
    if (n_bytes > (size_t)max * BYTES_PER_TOKEN)
        n_bytes = (size_t)max * BYTES_PER_TOKEN;
    size_t n = 3 * n_bytes + 2, bytes;
    int32_t *ids = kni_mul_size(n, sizeof *ids, &bytes) ? kni_alloc(KNI_ALLOC_TAG_MISC, bytes, 0) : NULL;
    enum kn_status status = ids ? kn_model_tokenize(b->model, text, n_bytes, KN_TOKENIZE_BOS, ids, &n) : KN_E_NOMEM;
    if (status == KN_OK) {
        out->n = (n < max ? (uint32_t)n : max) / KNI_BLOCK_TOKENS * KNI_BLOCK_TOKENS;
        out->tokens = kni_alloc(KNI_ALLOC_TAG_MISC, out->n * sizeof *ids, 0);
        if (out->tokens)
            memcpy(out->tokens, ids, out->n * sizeof *ids);
        else
            status = KN_E_NOMEM;
    }
    kni_free(ids);
    return status ? kni_err_set(b->err, status, "a calibration text of %zu bytes cannot be tokenized", n_bytes) : KN_OK;
}

/* The last quarter of the only text becomes one of its own. */
static enum kn_status cut_only_text(struct kni_build *b)
{
    struct kni_build_text *t = b->texts;
    uint32_t n = t->n / 4 / KNI_BLOCK_TOKENS * KNI_BLOCK_TOKENS;
    t[1].tokens = kni_alloc(KNI_ALLOC_TAG_MISC, n * sizeof *t->tokens, 0);
    if (!t[1].tokens)
        return kni_err_set(b->err, KN_E_NOMEM, "no memory for %u tokens", n);
    t->n -= n;
    memcpy(t[1].tokens, t->tokens + t->n, n * sizeof *t->tokens);
    t[1].n = n;
    b->n_texts = 2;
    return KN_OK;
}

enum kn_status kni_build_read_texts(struct kni_build *b)
{
    uint32_t max = b->opts.max_tokens ? b->opts.max_tokens : DEFAULT_MAX_TOKENS, n_ctx = b->model->hparams.n_ctx_train, n_learn = 0, n_held = 0;
    max = max > n_ctx ? n_ctx : max;
    b->texts = kni_calloc(KNI_ALLOC_TAG_MISC, (b->opts.n_texts + 1) * sizeof *b->texts, 0);
    if (!b->texts)
        return kni_err_set(b->err, KN_E_NOMEM, "no memory for %zu texts", b->opts.n_texts);
    for (size_t i = 0; i < b->opts.n_texts; i++) {
        struct kni_build_text *t = &b->texts[b->n_texts];
        enum kn_status status = tokenize(b, b->opts.texts[i], b->opts.text_bytes[i], max, t);
        if (status)
            return status;
        if (t->n >= MIN_TEXT_TOKENS) {
            b->n_texts++;
        } else {
            kni_free(t->tokens);
            *t = (struct kni_build_text){0};
        }
        kni_build_report(b, "tokens", (double)(i + 1) / (double)b->opts.n_texts);
    }
    if (b->n_texts == 1) {
        enum kn_status status = cut_only_text(b);
        if (status)
            return status;
    }
    b->n_held = b->n_texts < 2 ? 0 : b->n_texts < 9 ? 1 : (b->n_texts + 3) / 6;
    for (uint32_t i = 0; i < b->n_texts; i++) {
        uint32_t n = b->texts[i].n;
        b->n_ctx = n > b->n_ctx ? n : b->n_ctx;
        if (i < b->n_texts - b->n_held)
            n_learn += n;
        else
            n_held = n > n_held ? n : n_held; /* the longest of them */
    }
    uint32_t need = kni_calibrate_min_tokens(b->calibrate);
    if (n_learn < need || n_held < MIN_HELD_TOKENS)
        return kni_err_set(b->err, KN_E_ARG, "too little text: %u tokens to learn from and %u held back for measuring, where %u and %u are needed at least; give more or longer texts, "
                           "several of different kinds (of each, at most %u tokens count, and a token is about 4 bytes of English)", n_learn, n_held, need, MIN_HELD_TOKENS, max);
    return KN_OK;
}

void kni_build_free_texts(struct kni_build *b)
{
    for (size_t i = 0; b->texts && i < b->opts.n_texts + 1; i++)
        kni_free(b->texts[i].tokens);
    kni_free(b->texts);
    b->texts = NULL;
}
