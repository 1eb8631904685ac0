/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Calibration texts as tokens. Each text counts by itself from its beginning, as a prompt would: a cache's first tokens differ from
 * later ones. The last sixth of the texts, rounded, one at least, is held back: nothing is learned from it, steps and quality are measured on
 * it. Of a single text that is its last quarter.
 *
 * Bytes that are no text are refused, or left out, and named: learned from, they would spoil the profile without a sign.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/alloc.h"
#include "base/hash.h"
#include "base/log.h"
#include "base/status.h"
#include "base/utf8.h"
#include "profile/profile_build_state.h"

#define DEFAULT_MAX_TOKENS 2048u
#define MIN_TEXT_TOKENS 64u  /* shorter texts are left out */
#define MIN_HELD_TOKENS 128u
#define BYTES_PER_TOKEN 32u  /* more than that is never looked at: long runs of blanks apart, texts have about 4 */

const char *kni_build_text_name(const struct kni_build *b, size_t index, char out[256])
{
    const char *name = b->opts.text_names ? b->opts.text_names[index] : NULL;
    snprintf(out, 256, name ? "text %zu (%.200s)" : "text %zu", index + 1, name ? name : "");
    return out;
}

/* KN_E_ARG, and a sentence with the first byte that is in no text. */
static enum kn_status check_text(const struct kni_build *b, size_t index, struct kn_err *err)
{
    const char *text = b->opts.texts[index];
    size_t n = b->opts.text_bytes[index], length, n_control = 0, first_control = 0;
    char name[256];
    kni_build_text_name(b, index, name);
    for (size_t i = 0; i < n; i += length) {
        unsigned char c = (unsigned char)text[i];
        if (kni_utf8_next(text + i, n - i, &length) != KNI_UTF8_WHOLE)
            return kni_err_set(err, KN_E_ARG, "%s is no UTF-8: byte 0x%02x at offset %zu; convert it to UTF-8 (iconv does), or leave it out", name, c, i);
        bool control = c < 32 && !strchr("\t\n\r\f\v\b\x1b", c);
        first_control = control && !n_control ? i : first_control;
        n_control += control || !c;
    }
    if (n_control > n / 100 || (n && memchr(text, 0, n)))
        return kni_err_set(err, KN_E_ARG, "%s is no text: %zu control characters in %zu bytes, the first at offset %zu; leave it out", name, n_control, n, first_control);
    return KN_OK;
}

static int by_size(const void *a, const void *b)
{
    const float *x = a, *y = b;
    return *x < *y ? -1 : *x > *y;
}

/* Names texts whose tokens are less than half as long as the median text's: random letters, encoded data, a script that the tokenizer
 * does not know. bytes: a token, of each text. */
static void name_doubtful(const struct kni_build *b, const float *bytes)
{
    float sorted[64];
    uint32_t n = b->n_texts < 64 ? b->n_texts : 64;
    char name[256];
    if (n < 3)
        return;
    memcpy(sorted, bytes, n * sizeof *sorted);
    qsort(sorted, n, sizeof *sorted, by_size);
    for (uint32_t i = 0; i < b->n_texts; i++)
        if (bytes[i] < 0.55f * sorted[n / 2])
            kni_log(KN_LOG_LEVEL_WARN, "profile", "%s has %.1f bytes a token where the others have %.1f: is it text, of a language that the model knows? "
                    "Encoded data and foreign scripts look so; they spoil a profile for the rest", kni_build_text_name(b, b->texts[i].index, name),
                    (double)bytes[i], (double)sorted[n / 2]);
}

static enum kn_status tokenize(struct kni_build *b, const char *text, size_t n_bytes, uint32_t max, struct kni_build_text *out, float *bytes_a_token)
{
    if (n_bytes > (size_t)max * BYTES_PER_TOKEN)
        n_bytes = (size_t)max * BYTES_PER_TOKEN;
    size_t n = 3 * n_bytes + 2, bytes;
    int32_t *ids = kni_mul_size(n, sizeof *ids, &bytes) ? kni_alloc(KNI_ALLOC_TAG_MISC, bytes, 0) : NULL;
    enum kn_status status = ids ? kn_model_tokenize(b->model, text, n_bytes, KN_TOKENIZE_BOS, ids, &n) : KN_E_NOMEM;
    *bytes_a_token = n ? (float)n_bytes / (float)n : 0;
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
    t[1].index = t->index;
    b->n_texts = 2;
    uint32_t n_shared = kni_build_count_shared(&t[1], &t[0]);
    if (n_shared == UINT32_MAX)
        return kni_err_set(b->err, KN_E_NOMEM, "no memory for %u tokens", n);
    if (n_shared > n / 2)
        return kni_err_set(b->err, KN_E_ARG, "the only text repeats itself: %u of the %u tokens that are held back for measuring are in those that are learned from; "
                           "give other texts", n_shared, n);
    return KN_OK;
}

/* What the file says of the texts. */
static enum kn_status note_texts(struct kni_build *b)
{
    struct kni_profile *p = kni_calibrate_profile(b->calibrate);
    b->notes = kni_calloc(KNI_ALLOC_TAG_MISC, b->n_texts * sizeof *b->notes, 0);
    if (!b->notes)
        return kni_err_set(b->err, KN_E_NOMEM, "no memory for %u texts", b->n_texts);
    for (uint32_t i = 0; i < b->n_texts; i++) {
        const struct kni_build_text *t = &b->texts[i];
        const char *name = b->opts.text_names ? b->opts.text_names[t->index] : NULL, *slash = name ? strrchr(name, '/') : NULL;
        struct kni_hash hash = kni_hash_bytes(b->opts.texts[t->index], b->opts.text_bytes[t->index]);
        struct kni_profile_text *note = &b->notes[i];
        *note = (struct kni_profile_text){.n_bytes = b->opts.text_bytes[t->index], .n_tokens = t->n, .is_held_back = i >= b->n_texts - b->n_held};
        memcpy(note->hash, hash.bytes, sizeof note->hash);
        snprintf(note->name, sizeof note->name, "%s", slash ? slash + 1 : name ? name : "");
        note->name[strlen(note->name) - kni_utf8_tail(note->name, strlen(note->name))] = '\0'; /* a character that was cut */
        for (char *c = note->name; *c; c++)
            *c = (unsigned char)*c < ' ' || *c == 127 ? '?' : *c;
    }
    p->texts = b->notes;
    p->n_texts = b->n_texts < 4096 ? b->n_texts : 4096; /* as many as a file may have */
    return KN_OK;
}

enum kn_status kni_build_read_texts(struct kni_build *b)
{
    uint32_t max = b->opts.max_tokens ? b->opts.max_tokens : DEFAULT_MAX_TOKENS, n_ctx = b->model->hparams.n_ctx_train, n_learn = 0, n_held = 0;
    max = max > n_ctx ? n_ctx : max;
    b->texts = kni_calloc(KNI_ALLOC_TAG_MISC, (b->opts.n_texts + 1) * sizeof *b->texts, 0);
    float *bytes = kni_calloc(KNI_ALLOC_TAG_MISC, (b->opts.n_texts + 1) * sizeof *bytes, 0);
    enum kn_status status = KN_OK;
    if (!b->texts || !bytes) {
        kni_free(bytes);
        return kni_err_set(b->err, KN_E_NOMEM, "no memory for %zu texts", b->opts.n_texts);
    }
    if (b->opts.max_tokens > n_ctx)
        kni_log(KN_LOG_LEVEL_WARN, "profile", "max_tokens is %u, but the model was made for %u tokens: of each text so many count at most", b->opts.max_tokens, n_ctx);
    for (size_t i = 0; i < b->opts.n_texts; i++) {
        struct kni_build_text *t = &b->texts[b->n_texts];
        struct kn_err why = {0};
        if (check_text(b, i, &why)) {
            if (!b->opts.skip_doubtful) {
                status = kni_err_set(b->err, why.status, "%s", why.text);
                break;
            }
            kni_log(KN_LOG_LEVEL_WARN, "profile", "left out: %s", why.text);
            continue;
        }
        if ((status = tokenize(b, b->opts.texts[i], b->opts.text_bytes[i], max, t, &bytes[b->n_texts])))
            break;
        t->index = i;
        if (t->n >= MIN_TEXT_TOKENS) {
            b->n_texts++;
        } else {
            kni_free(t->tokens);
            *t = (struct kni_build_text){0};
        }
        kni_build_report(b, "tokens", (double)(i + 1) / (double)b->opts.n_texts);
    }
    if (!status)
        name_doubtful(b, bytes);
    kni_free(bytes);
    if (!status)
        status = kni_build_drop_overlaps(b);
    if (!status && b->n_texts == 1)
        status = cut_only_text(b);
    if (status)
        return status;
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
    return note_texts(b);
}

void kni_build_free_texts(struct kni_build *b)
{
    for (size_t i = 0; b->texts && i < b->opts.n_texts + 1; i++)
        kni_free(b->texts[i].tokens);
    kni_free(b->texts);
    kni_free(b->notes);
    b->texts = NULL;
    b->notes = NULL;
}
