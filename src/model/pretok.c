/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The patterns are linear on every input: runs are possessive or back off one character, and the two optional blanks look
 * at one character. Match limits are lifted because they count characters of a run, not harm; depth needs no heap.
 * Sources: the patterns are those published with GPT-2, Llama 3 and Qwen2; SmolLM's Digits step is in its tokenizer file.
 */
#include "model/pretok.h"

#include <stdint.h>
#include <string.h>

#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>

#include "base/alloc.h"

#define MAX_STAGES 2

/* Unicode White_Space, inside a class. */
#define BLANK "\\t-\\r\\x20\\x{85}\\x{a0}\\x{1680}\\x{2000}-\\x{200a}\\x{2028}\\x{2029}\\x{202f}\\x{205f}\\x{3000}"
#define TAIL "[" BLANK "]+(?![^" BLANK "])|[" BLANK "]+" /* a run of blanks leaves its last one to the word behind it */
#define GPT2 "'s|'t|'re|'ve|'m|'ll|'d| ?\\p{L}+| ?\\p{N}+| ?[^" BLANK "\\p{L}\\p{N}]+|" TAIL
#define LLAMA3(numbers)                                                                                                \
    "(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|" numbers "| ?[^" BLANK "\\p{L}\\p{N}]+[\\r\\n]*|[" BLANK \
    "]*[\\r\\n]+|" TAIL

static const struct rule {
    const char *name;
    const char *stages[MAX_STAGES];
    bool takes_whole, adds_bos, nfc;
} rules[] = {
    {"gpt-2", {GPT2}, false, false, false},
    {"default", {GPT2}, false, false, false},
    {"smollm", {"\\p{N}", GPT2}, false, false, false},
    {"starcoder", {"\\p{N}", GPT2}, false, false, false},
    {"refact", {"\\p{N}", GPT2}, false, false, false},
    {"codeshell", {"\\p{N}", GPT2}, false, false, false},
    {"llama-bpe", {LLAMA3("\\p{N}{1,3}")}, true, true, false},
    {"llama3", {LLAMA3("\\p{N}{1,3}")}, true, true, false},
    {"llama-v3", {LLAMA3("\\p{N}{1,3}")}, true, true, false},
    {"qwen2", {LLAMA3("\\p{N}")}, false, false, true},
};

struct kni_pretok {
    const struct rule *rule;
    pcre2_general_context *memory;
    pcre2_code *stages[MAX_STAGES]; /* NULL behind the last */
};

struct kni_pretok_scratch {
    pcre2_match_data *data[MAX_STAGES];
    pcre2_match_context *limits;
};

static void *pcre_alloc(size_t n, void *user)
{
    (void)user;
    return kni_alloc(KNI_ALLOC_TAG_MODEL, n, 0);
}

static void pcre_free(void *p, void *user)
{
    (void)user;
    kni_free(p);
}

const char *kni_pretok_names(void)
{
    return "gpt-2 default smollm starcoder refact codeshell llama-bpe llama3 llama-v3 qwen2";
}

bool kni_pretok_takes_whole(const struct kni_pretok *pretok)
{
    return pretok->rule->takes_whole;
}

bool kni_pretok_wants_nfc(const struct kni_pretok *pretok)
{
    return pretok->rule->nfc;
}

bool kni_pretok_adds_bos(const struct kni_pretok *pretok)
{
    return pretok->rule->adds_bos;
}

enum kn_status kni_pretok_open(struct kni_pretok **out, const char *name, size_t n)
{
    *out = NULL;
    const struct rule *rule = NULL;
    for (size_t i = 0; i < sizeof rules / sizeof *rules && !rule; i++)
        if (strlen(rules[i].name) == n && !memcmp(rules[i].name, name, n))
            rule = &rules[i];
    if (!rule)
        return KN_E_UNSUPPORTED;
    struct kni_pretok *p = kni_calloc(KNI_ALLOC_TAG_MODEL, sizeof *p, 0);
    if (!p)
        return KN_E_NOMEM;
    p->rule = rule;
    p->memory = pcre2_general_context_create(pcre_alloc, pcre_free, NULL);
    if (!p->memory)
        goto nomem;
    pcre2_compile_context *context = pcre2_compile_context_create(p->memory);
    if (!context)
        goto nomem;
    bool ok = true;
    for (unsigned i = 0; i < MAX_STAGES && rule->stages[i] && ok; i++) {
        int code;
        PCRE2_SIZE at;
        p->stages[i] = pcre2_compile((PCRE2_SPTR)rule->stages[i], PCRE2_ZERO_TERMINATED, PCRE2_UTF, &code, &at, context);
        ok = p->stages[i] != NULL; /* patterns are ours and tested: only memory can be missing */
        if (ok)
            pcre2_jit_compile(p->stages[i], PCRE2_JIT_COMPLETE); /* without JIT pcre2_match interprets */
    }
    pcre2_compile_context_free(context);
    if (!ok)
        goto nomem;
    *out = p;
    return KN_OK;
nomem:
    kni_pretok_close(&p);
    return KN_E_NOMEM;
}

void kni_pretok_close(struct kni_pretok **pretok)
{
    struct kni_pretok *p = *pretok;
    *pretok = NULL;
    if (!p)
        return;
    for (unsigned i = 0; i < MAX_STAGES; i++)
        pcre2_code_free(p->stages[i]);
    pcre2_general_context_free(p->memory);
    kni_free(p);
}

struct kni_pretok_scratch *kni_pretok_scratch_open(const struct kni_pretok *pretok)
{
    struct kni_pretok_scratch *s = kni_calloc(KNI_ALLOC_TAG_REQUEST, sizeof *s, 0);
    if (!s)
        return NULL;
    bool ok = (s->limits = pcre2_match_context_create(pretok->memory)) != NULL;
    for (unsigned i = 0; i < MAX_STAGES && pretok->stages[i]; i++)
        ok = (s->data[i] = pcre2_match_data_create(1, pretok->memory)) != NULL && ok;
    if (!ok) {
        kni_pretok_scratch_close(&s);
        return NULL;
    }
    pcre2_set_match_limit(s->limits, UINT32_MAX);
    pcre2_set_depth_limit(s->limits, UINT32_MAX);
    return s;
}

void kni_pretok_scratch_close(struct kni_pretok_scratch **scratch)
{
    struct kni_pretok_scratch *s = *scratch;
    *scratch = NULL;
    if (!s)
        return;
    for (unsigned i = 0; i < MAX_STAGES; i++)
        pcre2_match_data_free(s->data[i]);
    pcre2_match_context_free(s->limits);
    kni_free(s);
}

/* Cuts text by stage and hands the parts to the next one; there are at most MAX_STAGES levels. */
static enum kn_status cut(const struct kni_pretok *p, struct kni_pretok_scratch *s, unsigned stage, const char *text, size_t n, kni_pretok_fn emit,
                          void *user)
{
    if (stage == MAX_STAGES || !p->stages[stage])
        return emit(user, text, n);
    size_t at = 0;
    while (at < n) {
        int rc = pcre2_match(p->stages[stage], (PCRE2_SPTR)text, n, at, PCRE2_NO_UTF_CHECK, s->data[stage], s->limits);
        if (rc < 0 && rc != PCRE2_ERROR_NOMATCH)
            return KN_E_NOMEM; /* the only failure left with lifted limits and checked text */
        size_t from = n, to = n;
        if (rc >= 0) {
            const PCRE2_SIZE *o = pcre2_get_ovector_pointer(s->data[stage]);
            from = o[0];
            to = o[1];
            if (to <= from) /* no pattern matches nothing; a way forward if one did */
                from = to = n;
        }
        enum kn_status status = KN_OK;
        if (from > at)
            status = cut(p, s, stage + 1, text + at, from - at, emit, user);
        if (status == KN_OK && to > from)
            status = cut(p, s, stage + 1, text + from, to - from, emit, user);
        if (status != KN_OK)
            return status;
        at = to;
    }
    return KN_OK;
}

enum kn_status kni_pretok_split(const struct kni_pretok *pretok, struct kni_pretok_scratch *scratch, const char *text, size_t n_bytes,
                                kni_pretok_fn emit, void *user)
{
    return cut(pretok, scratch, 0, text, n_bytes, emit, user);
}

size_t kni_utf8_valid_prefix(const char *text, size_t n_bytes)
{
    const unsigned char *p = (const unsigned char *)text;
    size_t at = 0;
    while (at < n_bytes) {
        unsigned c = p[at], need;
        unsigned low = 0x80, high = 0xbf; /* of the second byte */
        if (c < 0x80) {
            at++;
            continue;
        }
        if (c >= 0xc2 && c <= 0xdf) {
            need = 1;
        } else if (c >= 0xe0 && c <= 0xef) {
            need = 2;
            low = c == 0xe0 ? 0xa0 : low;
            high = c == 0xed ? 0x9f : high;
        } else if (c >= 0xf0 && c <= 0xf4) {
            need = 3;
            low = c == 0xf0 ? 0x90 : low;
            high = c == 0xf4 ? 0x8f : high;
        } else {
            return at;
        }
        if (n_bytes - at <= need || p[at + 1] < low || p[at + 1] > high)
            return at;
        for (unsigned i = 2; i <= need; i++)
            if ((p[at + i] & 0xc0) != 0x80)
                return at;
        at += need + 1;
    }
    return at;
}
