/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Loads a tokenizer from GGUF metadata. Four passes: sizes and bytes of all tokens, tables, merges, ids. Every size follows
 * from counts that the reader has bounded by the file, so memory stays a small multiple of the file's bytes.
 */
#include "model/tokenizer.h"

#include <string.h>

#include "base/hash.h"
#include "base/le.h"
#include "base/log.h"
#include "model/spm.h"

#define MAX_VOCAB (1u << 24)
#define NO_BYTE 256u

struct loader {
    struct kni_tokenizer *t;
    struct kni_arena *arena;
    const struct kni_gguf *gguf;
    struct kn_err *err;
    uint16_t byte_of[512]; /* the byte that a character of the file's spelling stands for, or NO_BYTE */
};

static enum kn_status nomem(const struct loader *l)
{
    return kni_err_set(l->err, KN_E_NOMEM, "%s: out of memory for the tokenizer", l->gguf->path);
}

/* GPT-2's spelling: visible Latin-1 characters stand for themselves, the other 68 bytes for U+0100 onwards, in order. */
static void spelling_init(uint16_t byte_of[512])
{
    unsigned extra = 256;
    for (unsigned i = 0; i < 512; i++)
        byte_of[i] = NO_BYTE;
    for (unsigned b = 0; b < 256; b++) {
        bool visible = (b >= 0x21 && b <= 0x7e) || (b >= 0xa1 && b <= 0xac) || b >= 0xae;
        byte_of[visible ? b : extra++] = (uint16_t)b;
    }
}

/* Undoes the spelling of s into out (room for s.n bytes). False when a character stands for no byte. */
static bool unspell(const struct loader *l, struct kni_gguf_str s, char *out, size_t *n_out)
{
    size_t n = 0;
    for (size_t i = 0; i < s.n; i++) {
        unsigned c = (unsigned char)s.data[i];
        if (c >= 0x80) { /* two bytes reach U+07FF */
            if ((c & 0xe0) != 0xc0 || i + 1 == s.n || ((unsigned char)s.data[i + 1] & 0xc0) != 0x80)
                return false;
            c = (c & 31) << 6 | ((unsigned char)s.data[++i] & 63);
        }
        if (c >= 512 || l->byte_of[c] == NO_BYTE)
            return false;
        out[n++] = (char)l->byte_of[c];
    }
    *n_out = n;
    return true;
}

size_t kni_tokenizer_unmark(char *out, const char *text, size_t n)
{
    size_t count = 0;
    for (size_t i = 0; i < n; count++) {
        bool mark = n - i >= 3 && !memcmp(text + i, "\xe2\x96\x81", 3);
        out[count] = mark ? ' ' : text[i];
        i += mark ? 3 : 1;
    }
    return count;
}

/* The byte of a SentencePiece byte token, "<0x0A>"; -1 when s is none. */
static int byte_of_name(struct kni_gguf_str s)
{
    int value = 0;
    if (s.n != 6 || memcmp(s.data, "<0x", 3) || s.data[5] != '>')
        return -1;
    for (unsigned i = 3; i < 5; i++) {
        const char *digits = "0123456789ABCDEF", *at = memchr(digits, s.data[i], 16);
        if (!at)
            return -1;
        value = value * 16 + (int)(at - digits);
    }
    return value;
}

/* ---- tables */

static bool table_init(struct kni_token_table *table, struct kni_arena *arena, uint32_t n)
{
    table->n_slots = 16;
    while (table->n_slots < 2 * n)
        table->n_slots *= 2;
    table->slots = kni_arena_alloc(arena, table->n_slots * sizeof *table->slots, 0);
    return table->slots != NULL;
}

static uint32_t *table_slot(const struct kni_tokenizer *t, const struct kni_token_table *table, const char *bytes, size_t n)
{
    uint32_t mask = table->n_slots - 1, i = (uint32_t)kni_xxh3(bytes, n) & mask;
    for (;; i = (i + 1) & mask) {
        uint32_t *slot = &table->slots[i];
        if (!*slot)
            return slot;
        const struct kni_token *token = &t->tokens[*slot - 1];
        if (token->n == n && !memcmp(t->blob + token->at, bytes, n))
            return slot;
    }
}

int32_t kni_tokenizer_find_piece(const struct kni_tokenizer *tokenizer, const char *bytes, size_t n)
{
    return (int32_t)*table_slot(tokenizer, &tokenizer->pieces, bytes, n) - 1;
}

int32_t kni_tokenizer_find_special(const struct kni_tokenizer *tokenizer, const char *bytes, size_t n)
{
    return (int32_t)*table_slot(tokenizer, &tokenizer->specials, bytes, n) - 1;
}

/* ---- vocabulary */

static bool is_special(enum kni_token_kind kind)
{
    return kind == KNI_TOKEN_KIND_CONTROL || kind == KNI_TOKEN_KIND_USER;
}

static enum kn_status load_kinds(struct loader *l)
{
    struct kni_tokenizer *t = l->t;
    const struct kni_gguf_kv *kv;
    enum kn_status status = kni_gguf_get_array(l->gguf, "tokenizer.ggml.token_type", KNI_GGUF_TYPE_I32, &kv, l->err);
    for (uint32_t i = 0; i < t->n_vocab; i++)
        t->tokens[i].kind = KNI_TOKEN_KIND_NORMAL;
    if (status == KN_E_NOT_FOUND)
        return KN_OK;
    if (status != KN_OK)
        return status;
    if (kv->n_elems != t->n_vocab)
        return kni_err_set(l->err, KN_E_FORMAT, "%s: tokenizer.ggml.token_type has %llu entries for %u tokens; convert the model again", l->gguf->path,
                           (unsigned long long)kv->n_elems, t->n_vocab);
    for (uint32_t i = 0; i < t->n_vocab; i++) {
        uint32_t kind = kni_le32_get(kv->value + 4 * (size_t)i);
        if (kind < KNI_TOKEN_KIND_NORMAL || kind > KNI_TOKEN_KIND_BYTE)
            return kni_err_set(l->err, KN_E_FORMAT, "%s: token %u has unknown type %u in tokenizer.ggml.token_type; convert the model again", l->gguf->path,
                               i, kind);
        t->tokens[i].kind = (uint8_t)kind;
    }
    return KN_OK;
}

/* The bytes of a SentencePiece token into out (room for s.n); true when merging can make it. */
static bool unspell_token(struct loader *l, uint32_t id, struct kni_gguf_str s, char *out, size_t *n)
{
    enum kni_token_kind kind = (enum kni_token_kind)l->t->tokens[id].kind;
    int byte = kind == KNI_TOKEN_KIND_BYTE ? byte_of_name(s) : -1;
    if (byte >= 0) {
        *out = (char)byte;
        *n = 1;
        if (l->t->byte_ids[byte] < 0)
            l->t->byte_ids[byte] = (int32_t)id;
        return false;
    }
    *n = kni_tokenizer_unmark(out, s.data, s.n);
    return kind == KNI_TOKEN_KIND_NORMAL;
}

static enum kn_status load_tokens(struct loader *l)
{
    struct kni_tokenizer *t = l->t;
    const struct kni_gguf_kv *kv;
    enum kn_status status = kni_gguf_get_array(l->gguf, "tokenizer.ggml.tokens", KNI_GGUF_TYPE_STRING, &kv, l->err);
    if (status == KN_E_NOT_FOUND)
        return kni_err_set(l->err, KN_E_FORMAT, "%s: key tokenizer.ggml.tokens is missing; convert the model with its tokenizer", l->gguf->path);
    if (status != KN_OK)
        return status;
    if (!kv->n_elems || kv->n_elems > MAX_VOCAB || kv->n_bytes > UINT32_MAX)
        return kni_err_set(l->err, KN_E_FORMAT, "%s: tokenizer.ggml.tokens has %llu tokens (allowed: 1 to %u); convert the model again", l->gguf->path,
                           (unsigned long long)kv->n_elems, MAX_VOCAB);
    t->n_vocab = (uint32_t)kv->n_elems;
    t->tokens = kni_arena_alloc(l->arena, t->n_vocab * sizeof *t->tokens, 0);
    t->blob = kni_arena_alloc(l->arena, kv->n_bytes, 0); /* spelt tokens and their lengths are longer than the bytes */
    if (!t->tokens || !t->blob || !table_init(&t->pieces, l->arena, t->n_vocab))
        return nomem(l);
    if ((status = load_kinds(l)) != KN_OK)
        return status;

    const uint8_t *at = kv->value;
    size_t used = 0;
    uint32_t n_specials = 0;
    for (unsigned b = 0; b < 256; b++)
        t->byte_ids[b] = -1;
    for (uint32_t i = 0; i < t->n_vocab; i++) {
        struct kni_token *token = &t->tokens[i];
        struct kni_gguf_str s = kni_gguf_next_str(&at);
        size_t n = 0;
        bool special = is_special((enum kni_token_kind)token->kind);
        bool made = t->is_spm ? unspell_token(l, i, s, t->blob + used, &n) : unspell(l, s, t->blob + used, &n) && !special;
        if (!t->is_spm && !made) { /* kept as written: text of specials, and tokens that merging cannot make */
            memcpy(t->blob + used, s.data, s.n);
            n = s.n;
        }
        token->at = (uint32_t)used;
        token->n = (uint32_t)n;
        used += n;
        n_specials += special;
        if (n && made) {
            uint32_t *slot = table_slot(t, &t->pieces, t->blob + token->at, n);
            if (!*slot) /* of equal tokens the first counts */
                *slot = i + 1;
            t->max_piece_bytes = n > t->max_piece_bytes ? (uint32_t)n : t->max_piece_bytes;
        }
    }
    if (!table_init(&t->specials, l->arena, n_specials))
        return nomem(l);
    for (unsigned b = 0; b < 256 && !t->is_spm; b++) {
        char c = (char)b;
        t->byte_ids[b] = kni_tokenizer_find_piece(t, &c, 1);
    }
    return KN_OK;
}

static int longest_first(uint32_t *lengths, uint32_t n, uint32_t length) /* inserts; returns 1 when it was not there */
{
    uint32_t i = 0;
    while (i < n && lengths[i] > length)
        i++;
    if (i < n && lengths[i] == length)
        return 0;
    memmove(lengths + i + 1, lengths + i, (n - i) * sizeof *lengths);
    lengths[i] = length;
    return 1;
}

/* Enters specials into their table and notes, for each first byte, which lengths are worth a look. */
static enum kn_status load_specials(struct loader *l)
{
    struct kni_tokenizer *t = l->t;
    uint32_t counts[256] = {0};
    for (uint32_t i = 0; i < t->n_vocab; i++)
        if (is_special((enum kni_token_kind)t->tokens[i].kind) && t->tokens[i].n)
            counts[(unsigned char)t->blob[t->tokens[i].at]]++;
    for (unsigned b = 0; b < 256; b++) {
        /* Distinct lengths cost their sum in bytes of the file, so there are few: below sqrt(2 * file bytes). */
        if (counts[b] && !(t->special_lengths[b].lengths = kni_arena_alloc(l->arena, counts[b] * sizeof(uint32_t), 0)))
            return nomem(l);
    }
    for (uint32_t i = 0; i < t->n_vocab; i++) {
        const struct kni_token *token = &t->tokens[i];
        if (!is_special((enum kni_token_kind)token->kind) || !token->n)
            continue;
        const char *bytes = t->blob + token->at;
        uint32_t *slot = table_slot(t, &t->specials, bytes, token->n);
        if (*slot)
            continue;
        *slot = i + 1;
        unsigned b = (unsigned char)*bytes;
        t->special_lengths[b].n += (uint32_t)longest_first(t->special_lengths[b].lengths, t->special_lengths[b].n, token->n);
    }
    return KN_OK;
}

/* A token of the merge table by its bytes; merges may also name specials that are spelt as plain text. */
static int32_t merge_token(const struct kni_tokenizer *t, const char *bytes, size_t n)
{
    int32_t id = n ? kni_tokenizer_find_piece(t, bytes, n) : -1;
    return id < 0 && n ? kni_tokenizer_find_special(t, bytes, n) : id;
}

static enum kn_status load_merges(struct loader *l)
{
    struct kni_tokenizer *t = l->t;
    const struct kni_gguf_kv *kv;
    char *buf = NULL;
    size_t room = 0;
    enum kn_status status = kni_gguf_get_array(l->gguf, "tokenizer.ggml.merges", KNI_GGUF_TYPE_STRING, &kv, l->err);
    if (status == KN_E_NOT_FOUND)
        return kni_err_set(l->err, KN_E_FORMAT, "%s: key tokenizer.ggml.merges is missing; convert the model with its tokenizer", l->gguf->path);
    if (status != KN_OK)
        return status;
    if (kv->n_elems > MAX_VOCAB)
        return kni_err_set(l->err, KN_E_FORMAT, "%s: tokenizer.ggml.merges has %llu entries (allowed: at most %u); convert the model again", l->gguf->path,
                           (unsigned long long)kv->n_elems, MAX_VOCAB);
    if (kni_bpe_init(&t->bpe, l->arena, (uint32_t)kv->n_elems) != KN_OK)
        return nomem(l);
    const uint8_t *at = kv->value;
    for (uint32_t rank = 0; rank < (uint32_t)kv->n_elems; rank++) {
        struct kni_gguf_str s = kni_gguf_next_str(&at), right = {0};
        const char *blank = s.n ? memchr(s.data, ' ', s.n) : NULL;
        if (s.n > room) {
            kni_free(buf);
            room = 2 * s.n;
            if (!(buf = kni_alloc(KNI_ALLOC_TAG_MODEL, room, 0)))
                return nomem(l);
        }
        size_t n_left = 0, n_right = 0;
        int32_t a = -1, b = -1, joined = -1;
        if (blank) {
            right = (struct kni_gguf_str){.data = blank + 1, .n = s.n - (size_t)(blank + 1 - s.data)};
            if (unspell(l, (struct kni_gguf_str){s.data, (size_t)(blank - s.data)}, buf, &n_left) && unspell(l, right, buf + n_left, &n_right)) {
                a = merge_token(t, buf, n_left);
                b = merge_token(t, buf + n_left, n_right);
                joined = merge_token(t, buf, n_left + n_right);
            }
        }
        if (a < 0 || b < 0 || joined < 0) {
            status = kni_err_set(l->err, KN_E_FORMAT, "%s: entry %u of tokenizer.ggml.merges (%s) is not two tokens that make a third; convert the model again",
                                 l->gguf->path, rank, kni_gguf_quote(s).text);
            break;
        }
        kni_bpe_add(&t->bpe, (uint32_t)a, (uint32_t)b, rank, (uint32_t)joined);
        uint32_t n_joined = (uint32_t)(n_left + n_right);
        t->max_piece_bytes = n_joined > t->max_piece_bytes ? n_joined : t->max_piece_bytes;
    }
    t->bound_bytes = t->max_piece_bytes;
    for (unsigned b = 0; b < 256 && kni_pretok_wants_nfc(t->pretok); b++) /* form C may turn bytes that have a token into bytes that have none */
        t->bound_bytes = t->byte_ids[b] < 0 ? 0 : t->bound_bytes;
    kni_free(buf);
    return status;
}

static enum kn_status load_scores(struct loader *l)
{
    struct kni_tokenizer *t = l->t;
    const struct kni_gguf_kv *kv;
    enum kn_status status = kni_gguf_get_array(l->gguf, "tokenizer.ggml.scores", KNI_GGUF_TYPE_F32, &kv, l->err);
    if (status == KN_E_NOT_FOUND)
        return kni_err_set(l->err, KN_E_FORMAT, "%s: key tokenizer.ggml.scores is missing; convert the model with its tokenizer", l->gguf->path);
    if (status != KN_OK)
        return status;
    if (kv->n_elems != t->n_vocab)
        return kni_err_set(l->err, KN_E_FORMAT, "%s: tokenizer.ggml.scores has %llu entries for %u tokens; convert the model again", l->gguf->path,
                           (unsigned long long)kv->n_elems, t->n_vocab);
    status = kni_spm_load_ranks(t, l->arena, kv->value);
    if (status == KN_E_FORMAT)
        return kni_err_set(l->err, status, "%s: tokenizer.ggml.scores has an entry that is no number; convert the model again", l->gguf->path);
    if (status != KN_OK)
        return nomem(l);
    bool drops = false; /* what is no token is spelt in bytes or as the unknown token, or there is nothing to spell it with */
    for (unsigned b = 0; b < 256; b++)
        drops = drops || t->byte_ids[b] < 0;
    t->bound_bytes = drops ? 0 : t->max_piece_bytes ? t->max_piece_bytes : 1;
    t->space_prefix = true;
    status = kni_gguf_get_bool(l->gguf, "tokenizer.ggml.add_space_prefix", &t->space_prefix, l->err);
    return status == KN_E_NOT_FOUND ? KN_OK : status;
}

/* ---- ids */

static enum kn_status load_id(struct loader *l, const char *key, int32_t *out)
{
    uint32_t id;
    enum kn_status status = kni_gguf_get_u32(l->gguf, key, &id, l->err);
    *out = -1;
    if (status == KN_E_NOT_FOUND)
        return KN_OK;
    if (status != KN_OK)
        return status;
    if (id == UINT32_MAX) /* some converters write -1 for "none" */
        return KN_OK;
    if (id >= l->t->n_vocab)
        return kni_err_set(l->err, KN_E_FORMAT, "%s: %s is %u but there are %u tokens; convert the model again", l->gguf->path, key, id, l->t->n_vocab);
    *out = (int32_t)id;
    return KN_OK;
}

static enum kn_status load_ids(struct loader *l)
{
    static const char *const ends[] = {"<|eot_id|>", "<|im_end|>", "<|end|>", "<end_of_turn>", "<|endoftext|>", "<|end_of_text|>", "<|eom_id|>", "</s>"};
    struct kni_tokenizer *t = l->t;
    enum kn_status status;
    int32_t eom;
    if ((status = load_id(l, "tokenizer.ggml.bos_token_id", &t->bos)) != KN_OK || (status = load_id(l, "tokenizer.ggml.eos_token_id", &t->eos)) != KN_OK ||
        (status = load_id(l, "tokenizer.ggml.unknown_token_id", &t->unknown)) != KN_OK ||
        (status = load_id(l, "tokenizer.ggml.eot_token_id", &t->eot)) != KN_OK || (status = load_id(l, "tokenizer.ggml.eom_token_id", &eom)) != KN_OK)
        return status;
    for (unsigned i = 0; i < sizeof ends / sizeof *ends; i++) {
        int32_t id = kni_tokenizer_find_special(t, ends[i], strlen(ends[i]));
        if (id < 0 || t->tokens[id].kind != KNI_TOKEN_KIND_CONTROL)
            continue;
        t->tokens[id].stop = true;
        if (t->eot < 0 && i < 4)
            t->eot = id;
    }
    const int32_t named[] = {t->eos, t->eot, eom};
    for (unsigned i = 0; i < 3; i++)
        if (named[i] >= 0)
            t->tokens[named[i]].stop = true;
    t->add_bos = t->is_spm || kni_pretok_adds_bos(t->pretok);
    status = kni_gguf_get_bool(l->gguf, "tokenizer.ggml.add_bos_token", &t->add_bos, l->err);
    return status == KN_E_NOT_FOUND ? KN_OK : status;
}

static enum kn_status load_pretok(struct loader *l)
{
    struct kni_gguf_str pre = {.data = "default", .n = 7};
    enum kn_status status = kni_gguf_get_str(l->gguf, "tokenizer.ggml.pre", &pre, l->err);
    if (status == KN_E_NOT_FOUND)
        kni_log(KN_LOG_LEVEL_WARN, "model", "%s: key tokenizer.ggml.pre is missing, GPT-2's pre-tokenizer is assumed", l->gguf->path);
    else if (status != KN_OK)
        return status;
    status = kni_pretok_open(&l->t->pretok, pre.data, pre.n);
    if (status == KN_E_UNSUPPORTED)
        return kni_err_set(l->err, status, "%s: pre-tokenizer \"%s\" (tokenizer.ggml.pre) is not supported; known: %s", l->gguf->path,
                           kni_gguf_quote(pre).text, kni_pretok_names());
    return status == KN_OK ? KN_OK : nomem(l);
}

enum kn_status kni_tokenizer_load(struct kni_tokenizer **out, struct kni_arena *arena, const struct kni_gguf *gguf, struct kn_err *err)
{
    *out = NULL;
    struct kni_gguf_str model;
    struct loader l = {.arena = arena, .gguf = gguf, .err = err, .t = kni_arena_alloc(arena, sizeof *l.t, 0)};
    if (!l.t)
        return nomem(&l);
    enum kn_status status = kni_gguf_get_str(gguf, "tokenizer.ggml.model", &model, err);
    if (status == KN_E_NOT_FOUND)
        return kni_err_set(err, KN_E_FORMAT, "%s: key tokenizer.ggml.model is missing; convert the model with its tokenizer", gguf->path);
    if (status != KN_OK)
        return status;
    l.t->is_spm = model.n == 5 && !memcmp(model.data, "llama", 5);
    if (!l.t->is_spm && (model.n != 4 || memcmp(model.data, "gpt2", 4)))
        return kni_err_set(err, KN_E_UNSUPPORTED, "%s: tokenizer model \"%s\" is not supported; byte-level BPE (\"gpt2\") and SentencePiece BPE (\"llama\") are",
                           gguf->path, kni_gguf_quote(model).text);
    spelling_init(l.byte_of);
    if ((l.t->is_spm || (status = load_pretok(&l)) == KN_OK) && (status = load_tokens(&l)) == KN_OK && (status = load_specials(&l)) == KN_OK &&
        (status = l.t->is_spm ? load_scores(&l) : load_merges(&l)) == KN_OK && (status = load_ids(&l)) == KN_OK)
        *out = l.t;
    else
        kni_tokenizer_fini(l.t);
    return status;
}

void kni_tokenizer_fini(struct kni_tokenizer *tokenizer)
{
    if (tokenizer)
        kni_pretok_close(&tokenizer->pretok);
}
