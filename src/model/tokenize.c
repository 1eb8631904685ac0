/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Text to ids with a loaded tokenizer (tokenizer.h has the pipeline). One pass, left to right; all scratch belongs to the
 * call, so that any number of threads may encode with one tokenizer.
 */
#include <string.h>

#include "kinema/model.h"
#include "model/tokenizer.h"

struct encode {
    const struct kni_tokenizer *t;
    struct kni_pretok_scratch *match;
    struct kni_bpe_scratch merge;
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

/* Text without specials: runs of valid UTF-8 through the pre-tokenizer, stray bytes one by one. */
static enum kn_status encode_plain(struct encode *e, const char *text, size_t n)
{
    size_t at = 0;
    while (at < n) {
        size_t valid = kni_utf8_valid_prefix(text + at, n - at);
        if (valid) {
            enum kn_status status = kni_pretok_split(e->t->pretok, e->match, text + at, valid, encode_piece, e);
            if (status != KN_OK)
                return status;
            at += valid;
        }
        if (at < n) {
            int32_t id = e->t->byte_ids[(unsigned char)text[at++]];
            if (id >= 0)
                push(e, id);
        }
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

enum kn_status kni_tokenizer_encode(const struct kni_tokenizer *tokenizer, const char *text, size_t n_bytes, unsigned flags, int32_t *ids,
                                    size_t *n_ids)
{
    struct encode e = {.t = tokenizer, .ids = ids, .room = *n_ids, .special = (flags & KN_TOKENIZE_SPECIAL) != 0};
    enum kn_status status = KN_OK;
    *n_ids = 0;
    if (n_bytes > INT32_MAX)
        return KN_E_ARG;
    if (!(e.match = kni_pretok_scratch_open(tokenizer->pretok)))
        return KN_E_NOMEM;
    if ((flags & KN_TOKENIZE_BOS) && tokenizer->add_bos && tokenizer->bos >= 0)
        push(&e, tokenizer->bos);
    size_t from = 0; /* start of the text that is not encoded yet */
    for (size_t at = 0; at < n_bytes && status == KN_OK;) {
        int32_t id = special_at(&e, text + at, n_bytes - at);
        if (id < 0) {
            at++;
            continue;
        }
        status = encode_plain(&e, text + from, at - from);
        push(&e, id);
        from = at += tokenizer->tokens[id].n;
    }
    if (status == KN_OK)
        status = encode_plain(&e, text + from, n_bytes - from);
    kni_pretok_scratch_close(&e.match);
    kni_bpe_scratch_fini(&e.merge);
    if (status != KN_OK)
        return status;
    *n_ids = e.count;
    return e.count > e.room ? KN_E_ARG : KN_OK;
}
