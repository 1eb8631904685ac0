/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Text to ids with a loaded tokenizer (tokenizer.h has the pipeline). One pass, left to right; all scratch belongs to the
 * call, so that any number of threads may encode with one tokenizer.
 *
 *     text     <|im_start|>user\n a <|im_end|> b <|im_end|>\n
 *     plain                      [..............]              no control token begins, ends or lies in here: it is cut and merged
 *                                                               like any text, together with what stands before and behind it
 *
 * Three things bound the work. It is O(n log n) in the text, whatever the text. It ends once there are more ids than the caller takes: text
 * is not even looked through, and a piece not merged, whose bytes cannot fit into so few tokens. And the caller is asked now and then whether
 * to go on (effort.h).
 */
#include <string.h>

#include "kinema/model.h"
#include "model/nfc.h"
#include "model/spm.h"

enum {
    SCAN_BYTES = 4096, /* between two looks at whether what was scanned can still fit */
    FORM_C_SHRINKS = 4 /* at most so many bytes become one: 3.5 for U+0390, 3 for Hangul */
};

struct encode {
    const struct kni_tokenizer *t;
    struct kni_pretok_scratch *match;
    struct kni_bpe_scratch merge;
    struct kni_spm_scratch spm;
    struct kni_effort effort;
    const struct kn_text_range *plain; /* [n_plain] that end behind the place that is looked at */
    size_t n_plain;
    bool prefix; /* a blank is due before the next text */
    int32_t *ids;
    size_t room, count;
    size_t max; /* ids; SIZE_MAX: as many as there are */
    bool special;
};

/* Whether n more bytes of text, of which none is dropped, can still fit. When not, the count says that there are too many. */
static bool can_fit(struct encode *e, size_t n)
{
    if (e->count <= e->max && e->t->bound_bytes) {
        size_t least = n / e->t->bound_bytes;
        if (least > e->max - e->count)
            e->count += least;
    }
    return e->count <= e->max;
}

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
        return !kni_effort_add(&e->effort, n) ? KN_E_CANCELLED : e->count > e->max ? KN_E_CONTEXT : KN_OK;
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
    if (!can_fit(e, m))
        return KN_E_CONTEXT;
    m = kni_bpe_merge(&t->bpe, &e->merge, m, &e->effort);
    for (size_t i = 0; i < m; i++)
        push(e, (int32_t)e->merge.symbols[i].id);
    return e->effort.stopped ? KN_E_CANCELLED : e->count > e->max ? KN_E_CONTEXT : KN_OK;
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
    enum kn_status status = kni_pretok_wants_nfc(e->t->pretok) ? kni_nfc(&nfc, &n, text, n, &e->effort) : KN_OK;
    if (status == KN_OK)
        status = kni_pretok_split(e->t->pretok, e->match, nfc ? nfc : text, n, encode_piece, e);
    kni_free(nfc);
    return status;
}

static enum kn_status merge_run(struct encode *e, const char *text, size_t n)
{
    const struct kni_tokenizer *t = e->t;
    if (!can_fit(e, n))
        return KN_E_CONTEXT;
    enum kn_status status = kni_spm_merge(t, &e->spm, text, n, &e->effort);
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
    return e->count > e->max ? KN_E_CONTEXT : KN_OK;
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
        if (at < n) {
            push_byte(e, (unsigned char)text[at++]);
            if (!kni_effort_add(&e->effort, 1))
                return KN_E_CANCELLED;
            if (e->count > e->max)
                return KN_E_CONTEXT;
        }
    }
    return KN_OK;
}

/* How many bytes a control token that begins at byte at may have: it touches no plain range. */
static size_t control_room(struct encode *e, size_t at, size_t n_bytes)
{
    if (!e->special)
        return 0;
    while (e->n_plain && (!e->plain->n_bytes || e->plain->at + e->plain->n_bytes <= at))
        e->plain++, e->n_plain--;
    return !e->n_plain ? n_bytes - at : e->plain->at > at ? e->plain->at - at : 0;
}

/* The longest special token that begins at byte at and that this call recognises there; -1 when none does. */
static int32_t special_at(struct encode *e, const char *text, size_t at, size_t n_bytes)
{
    const struct kni_tokenizer *t = e->t;
    const unsigned first = (unsigned char)text[at];
    const uint32_t n_lengths = t->special_lengths[first].n;
    const size_t room = control_room(e, at, n_bytes);
    kni_effort_add(&e->effort, n_lengths);
    for (uint32_t i = 0; i < n_lengths; i++) {
        uint32_t length = t->special_lengths[first].lengths[i];
        int32_t id = length <= n_bytes - at ? kni_tokenizer_find_special(t, text + at, length) : -1;
        if (id >= 0 && (length <= room || t->tokens[id].kind == KNI_TOKEN_KIND_USER))
            return id;
    }
    return -1;
}

/* Moves *at on to the next byte that a special token may begin with, or to the end. False: what lies between the last special token, whose end
 * is from, and there cannot fit any more. */
static bool find_candidate(struct encode *e, const char *text, size_t n_bytes, size_t from, size_t *n_kept, size_t *at)
{
    const struct kni_tokenizer *t = e->t;
    for (size_t i = *at;;) {
        const size_t begin = i, end = n_bytes - i < SCAN_BYTES ? n_bytes : i + SCAN_BYTES;
        while (i < end && !t->special_lengths[(unsigned char)text[i]].n)
            i++;
        if (e->max != SIZE_MAX && i - from >= SCAN_BYTES) {
            for (size_t k = begin; k < i; k++)
                *n_kept += t->byte_ids[(unsigned char)text[k]] >= 0;
            if (!can_fit(e, !t->is_spm && kni_pretok_wants_nfc(t->pretok) ? *n_kept / FORM_C_SHRINKS : *n_kept))
                return false;
        }
        *at = i;
        if (i < end || i == n_bytes)
            return true;
    }
}

static enum kn_status encode_all(struct encode *e, const char *text, size_t n_bytes)
{
    const struct kni_tokenizer *t = e->t;
    enum kn_status status = KN_OK;
    size_t from = 0, n_kept = 0; /* start of the text that is not encoded yet, and how many of its bytes surely have tokens */
    e->prefix = t->space_prefix;
    for (size_t at = 0; status == KN_OK;) {
        if (!find_candidate(e, text, n_bytes, from, &n_kept, &at))
            return KN_E_CONTEXT;
        if (at == n_bytes)
            break;
        int32_t id = special_at(e, text, at, n_bytes);
        if (e->effort.stopped)
            return KN_E_CANCELLED;
        if (id < 0) {
            n_kept += t->byte_ids[(unsigned char)text[at++]] >= 0;
            continue;
        }
        bool control = t->tokens[id].kind == KNI_TOKEN_KIND_CONTROL;
        status = encode_plain(e, text + from, at - from);
        if (status == KN_OK && e->prefix && !control) /* a user-defined token is text, too */
            status = encode_run(e, "", 0);
        push(e, id);
        if (status == KN_OK && e->count > e->max)
            status = KN_E_CONTEXT;
        e->prefix = t->space_prefix && control;
        from = at += t->tokens[id].n;
        n_kept = 0;
    }
    return status == KN_OK ? encode_plain(e, text + from, n_bytes - from) : status;
}

/* A copy of text with U+2581 as blanks, and of the ranges where they lie then; both NULL when there is none. */
static enum kn_status blanks(char **out, struct kn_text_range **plain, size_t *n_out, const char *text, size_t n, const struct kn_tokenize_opts *o)
{
    static const char mark[] = "\xe2\x96\x81";
    size_t at = 0, bytes;
    *out = NULL;
    *plain = NULL;
    if (!n || !memmem(text, n, mark, 3))
        return KN_OK;
    if (!kni_mul_size(o->n_plain + 1, sizeof **plain, &bytes) || !(*plain = kni_alloc(KNI_ALLOC_TAG_REQUEST, bytes, 0)) ||
        !(*out = kni_alloc(KNI_ALLOC_TAG_REQUEST, n, 0)))
        return KN_E_NOMEM;
    *n_out = 0;
    for (size_t i = 0; i < o->n_plain; i++) { /* what lies before a range, then the range */
        const struct kn_text_range *r = &o->plain[i];
        *n_out += kni_tokenizer_unmark(*out + *n_out, text + at, r->at - at);
        (*plain)[i].at = *n_out;
        (*plain)[i].n_bytes = kni_tokenizer_unmark(*out + *n_out, text + r->at, r->n_bytes);
        *n_out += (*plain)[i].n_bytes;
        at = r->at + r->n_bytes;
    }
    *n_out += kni_tokenizer_unmark(*out + *n_out, text + at, n - at);
    return KN_OK;
}

static bool are_ranges(const struct kn_tokenize_opts *o, size_t n_bytes)
{
    size_t at = 0;
    for (size_t i = 0; i < o->n_plain; i++) {
        if (o->plain[i].at < at || o->plain[i].at > n_bytes || o->plain[i].n_bytes > n_bytes - o->plain[i].at)
            return false;
        at = o->plain[i].at + o->plain[i].n_bytes;
    }
    return true;
}

enum kn_status kni_tokenizer_encode_with(const struct kni_tokenizer *tokenizer, const char *text, size_t n_bytes, const struct kn_tokenize_opts *opts,
                                         uint64_t *n_steps, int32_t *ids, size_t *n_ids)
{
    struct encode e = {.t = tokenizer, .ids = ids, .room = *n_ids, .special = (opts->flags & KN_TOKENIZE_SPECIAL) != 0, .plain = opts->plain,
                       .n_plain = opts->n_plain, .max = opts->max_ids ? opts->max_ids : SIZE_MAX, .effort = {.stop = opts->stop, .user = opts->user}};
    char *copy = NULL;
    struct kn_text_range *plain = NULL;
    *n_ids = 0;
    if (n_bytes > INT32_MAX || !are_ranges(opts, n_bytes))
        return KN_E_ARG;
    enum kn_status status = tokenizer->is_spm ? blanks(&copy, &plain, &n_bytes, text, n_bytes, opts) : KN_OK;
    if (status == KN_OK && !tokenizer->is_spm && !(e.match = kni_pretok_scratch_open(tokenizer->pretok)))
        status = KN_E_NOMEM;
    if (status == KN_OK) {
        e.plain = plain ? plain : e.plain;
        if ((opts->flags & KN_TOKENIZE_BOS) && tokenizer->add_bos && tokenizer->bos >= 0)
            push(&e, tokenizer->bos);
        status = encode_all(&e, copy ? copy : text, n_bytes);
    }
    if (e.match)
        kni_pretok_scratch_close(&e.match);
    kni_bpe_scratch_fini(&e.merge);
    kni_spm_scratch_fini(&e.spm);
    kni_free(copy);
    kni_free(plain);
    if (n_steps)
        *n_steps = e.effort.n_steps;
    if (status == KN_OK || status == KN_E_CONTEXT)
        *n_ids = e.count;
    return status == KN_OK && e.count > e.room ? KN_E_ARG : status;
}

enum kn_status kni_tokenizer_encode(const struct kni_tokenizer *tokenizer, const char *text, size_t n_bytes, unsigned flags, int32_t *ids,
                                    size_t *n_ids)
{
    return kni_tokenizer_encode_with(tokenizer, text, n_bytes, &(struct kn_tokenize_opts){.flags = flags}, NULL, ids, n_ids);
}
