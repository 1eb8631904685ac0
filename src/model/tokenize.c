/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Text to ids with a loaded tokenizer (tokenizer.h has the pipeline). One pass, left to right; all scratch belongs to the
 * call, so that any number of threads may encode with one tokenizer.
 */
#include <string.h>

#include "kinema/model.h"
#include "model/nfc.h"
#include "model/spm.h"

struct encode {
    const struct kni_tokenizer *t;
    struct kni_pretok_scratch *match;
    struct kni_bpe_scratch merge;
    struct kni_spm_scratch spm;
    bool prefix; /* a blank is due before the next text */
    int32_t *ids;
    size_t room, count;
    bool special;
};

static void push(struct encode *e, int32_t id)
{
    if (e->count < e->room)
        e->ids[e->count] = id;
    e->count++;
}

static enum kn_status encode_piece(void *user, const char *piece, size_t n)
{
    struct encode *e = user;
    const struct kni_tokenizer *t = e->t;
    int32_t whole = kni_pretok_takes_whole(t->pretok) ? kni_tokenizer_find_piece(t, piece, n) : -1;
    if (whole >= 0) {
        push(e, whole);
        return KN_OK;
    }
    enum kn_status status = kni_bpe_reserve(&e->merge, n);
    if (status != KN_OK)
        return status;
    size_t m = 0;
    for (size_t i = 0; i < n; i++) {
        int32_t id = t->byte_ids[(unsigned char)piece[i]];
        if (id >= 0)
            e->merge.symbols[m++].id = (uint32_t)id;
    }
    m = kni_bpe_merge(&t->bpe, &e->merge, m);
    for (size_t i = 0; i < m; i++)
        push(e, (int32_t)e->merge.symbols[i].id);
    return KN_OK;
}

static void push_byte(struct encode *e, unsigned char byte)
{
    int32_t id = e->t->byte_ids[byte];
    if (id < 0)
        id = e->t->unknown >= 0 && e->t->is_spm ? e->t->unknown : -1;
    if (id >= 0)
        push(e, id);
}

static enum kn_status split_run(struct encode *e, const char *text, size_t n)
{
    char *nfc = NULL;
    enum kn_status status = kni_pretok_wants_nfc(e->t->pretok) ? kni_nfc(&nfc, &n, text, n) : KN_OK;
    if (status == KN_OK)
        status = kni_pretok_split(e->t->pretok, e->match, nfc ? nfc : text, n, encode_piece, e);
    kni_free(nfc);
    return status;
}

static enum kn_status merge_run(struct encode *e, const char *text, size_t n)
{
    const struct kni_tokenizer *t = e->t;
    enum kn_status status = kni_spm_merge(t, &e->spm, text, n);
    if (status != KN_OK)
        return status;
    for (uint32_t i = 0; i != UINT32_MAX; i = e->spm.symbols[i].next) {
        const struct kni_spm_symbol *s = &e->spm.symbols[i];
        int32_t id = kni_tokenizer_find_piece(t, text + s->at, s->n);
        if (id >= 0)
            push(e, id);
        for (uint32_t k = 0; id < 0 && k < s->n; k++)
            push_byte(e, (unsigned char)text[s->at + k]);
    }
    return KN_OK;
}

/* A run of valid UTF-8; behind a due blank when the model wants one. */
static enum kn_status encode_run(struct encode *e, const char *text, size_t n)
{
    if (!e->t->is_spm)
        return split_run(e, text, n);
    if (!e->prefix)
        return merge_run(e, text, n);
    e->prefix = false;
    char *copy = kni_alloc(KNI_ALLOC_TAG_REQUEST, n + 1, 0);
    if (!copy)
        return KN_E_NOMEM;
    copy[0] = ' ';
    memcpy(copy + 1, text, n);
    enum kn_status status = merge_run(e, copy, n + 1);
    kni_free(copy);
    return status;
}

/* Text without specials: runs of valid UTF-8, stray bytes one by one. */
static enum kn_status encode_plain(struct encode *e, const char *text, size_t n)
{
    size_t at = 0;
    while (at < n) {
        size_t valid = kni_utf8_valid_prefix(text + at, n - at);
        if (valid || e->prefix) {
            enum kn_status status = encode_run(e, text + at, valid);
            if (status != KN_OK)
                return status;
            at += valid;
        }
        if (at < n)
            push_byte(e, (unsigned char)text[at++]);
    }
    return KN_OK;
}

/* The longest special token that text starts with and that this call recognises; -1 when none does. */
static int32_t special_at(const struct encode *e, const char *text, size_t n)
{
    const struct kni_tokenizer *t = e->t;
    unsigned first = (unsigned char)*text;
    for (uint32_t i = 0; i < t->special_lengths[first].n; i++) {
        uint32_t length = t->special_lengths[first].lengths[i];
        int32_t id = length <= n ? kni_tokenizer_find_special(t, text, length) : -1;
        if (id >= 0 && (e->special || t->tokens[id].kind == KNI_TOKEN_KIND_USER))
            return id;
    }
    return -1;
}

static enum kn_status encode_all(struct encode *e, const char *text, size_t n_bytes)
{
    const struct kni_tokenizer *t = e->t;
    enum kn_status status = KN_OK;
    size_t from = 0; /* start of the text that is not encoded yet */
    e->prefix = t->space_prefix;
    for (size_t at = 0; at < n_bytes && status == KN_OK;) {
        int32_t id = special_at(e, text + at, n_bytes - at);
        if (id < 0) {
            at++;
            continue;
        }
        bool control = t->tokens[id].kind == KNI_TOKEN_KIND_CONTROL;
        status = encode_plain(e, text + from, at - from);
        if (status == KN_OK && e->prefix && !control) /* a user-defined token is text, too */
            status = encode_run(e, "", 0);
        push(e, id);
        e->prefix = t->space_prefix && control;
        from = at += t->tokens[id].n;
    }
    return status == KN_OK ? encode_plain(e, text + from, n_bytes - from) : status;
}

/* A copy of text with U+2581 as blanks; NULL in *out when there is none. */
static enum kn_status blanks(char **out, size_t *n_out, const char *text, size_t n)
{
    static const char mark[] = "\xe2\x96\x81";
    *out = NULL;
    if (!n || !memmem(text, n, mark, 3))
        return KN_OK;
    if (!(*out = kni_alloc(KNI_ALLOC_TAG_REQUEST, n, 0)))
        return KN_E_NOMEM;
    *n_out = kni_tokenizer_unmark(*out, text, n);
    return KN_OK;
}

enum kn_status kni_tokenizer_encode(const struct kni_tokenizer *tokenizer, const char *text, size_t n_bytes, unsigned flags, int32_t *ids,
                                    size_t *n_ids)
{
    struct encode e = {.t = tokenizer, .ids = ids, .room = *n_ids, .special = (flags & KN_TOKENIZE_SPECIAL) != 0};
    char *copy = NULL;
    *n_ids = 0;
    if (n_bytes > INT32_MAX)
        return KN_E_ARG;
    enum kn_status status = tokenizer->is_spm ? blanks(&copy, &n_bytes, text, n_bytes) : KN_OK;
    if (status == KN_OK && !tokenizer->is_spm && !(e.match = kni_pretok_scratch_open(tokenizer->pretok)))
        status = KN_E_NOMEM;
    if (status != KN_OK)
        return status;
    if ((flags & KN_TOKENIZE_BOS) && tokenizer->add_bos && tokenizer->bos >= 0)
        push(&e, tokenizer->bos);
    status = encode_all(&e, copy ? copy : text, n_bytes);
    kni_pretok_scratch_close(&e.match);
    kni_bpe_scratch_fini(&e.merge);
    kni_spm_scratch_fini(&e.spm);
    kni_free(copy);
    if (status != KN_OK)
        return status;
    *n_ids = e.count;
    return e.count > e.room ? KN_E_ARG : KN_OK;
}
