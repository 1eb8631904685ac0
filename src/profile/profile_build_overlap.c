/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Texts that are given twice: the same file, a copy under another name, another version, an overlapping excerpt. What is learned from and
 * measured on at once makes a profile look better than it is, and what is learned twice counts double.
 *
 *     text 1  ....................            every stretch of 16 tokens of a text that counts is remembered
 *     text 2        oooooooo ........         tokens in remembered stretches (o) are shared; the longest run of others is new
 *
 * Shared for its larger part: the text is left out. For less, but more than phrases and licence lines that all texts of a kind have
 * in common: its longest new run counts. Both are logged. Texts are looked at in order, so the first one counts whole.
 *
 * The table has open addresses and holds 64-bit hashes and the text that brought them; two stretches with equal hashes are taken for equal.
 */
#include <string.h>

#include "base/alloc.h"
#include "base/hash.h"
#include "base/log.h"
#include "base/status.h"
#include "profile/profile_build_state.h"

#define STRETCH 16u      /* tokens */
#define MIN_RUN 64u      /* a shorter new run is not worth a text */
#define COMMON_PART 8u   /* one token in so many may be shared without a word */
#define NOBODY UINT32_MAX

struct slot { uint64_t hash; uint32_t text; };
struct table { struct slot *slots; size_t n_slots; /* a power of two, at least twice what it may hold */ };

static bool table_open(struct table *t, size_t n_entries)
{
    size_t bytes;
    t->n_slots = 64;
    while (t->n_slots < 2 * n_entries)
        t->n_slots *= 2;
    t->slots = kni_mul_size(t->n_slots, sizeof *t->slots, &bytes) ? kni_alloc(KNI_ALLOC_TAG_MISC, bytes, 0) : NULL;
    for (size_t i = 0; t->slots && i < t->n_slots; i++)
        t->slots[i].text = NOBODY;
    return t->slots;
}

static struct slot *find(const struct table *t, const int32_t *tokens)
{
    uint64_t hash = kni_xxh3(tokens, STRETCH * sizeof *tokens);
    size_t at = (size_t)hash & (t->n_slots - 1);
    while (t->slots[at].text != NOBODY && t->slots[at].hash != hash)
        at = (at + 1) & (t->n_slots - 1);
    if (t->slots[at].text == NOBODY)
        t->slots[at].hash = hash;
    return &t->slots[at];
}

static void remember(const struct table *t, const struct kni_build_text *text, uint32_t number)
{
    for (uint32_t i = 0; i + STRETCH <= text->n; i++) {
        struct slot *s = find(t, text->tokens + i);
        if (s->text == NOBODY)
            s->text = number;
    }
}

/* What a text shares with those that are remembered. */
struct shared { uint32_t n_shared, with, first_new, n_new; /* with: a text; the longest new run */ };

static struct shared look(const struct table *t, const struct kni_build_text *text)
{
    struct shared s = {.with = NOBODY};
    uint32_t shared_until = 0, run = 0;
    for (uint32_t i = 0; i < text->n; i++) {
        const struct slot *slot = i + STRETCH <= text->n ? find(t, text->tokens + i) : NULL;
        if (slot && slot->text != NOBODY) {
            shared_until = i + STRETCH;
            s.with = s.with == NOBODY ? slot->text : s.with;
        }
        bool is_shared = i < shared_until;
        s.n_shared += is_shared;
        run = is_shared ? 0 : run + 1;
        if (run > s.n_new) {
            s.n_new = run;
            s.first_new = i + 1 - run;
        }
    }
    return s;
}

uint32_t kni_build_count_shared(const struct kni_build_text *a, const struct kni_build_text *b)
{
    struct table t = {0};
    if (!table_open(&t, b->n))
        return UINT32_MAX;
    remember(&t, b, 0);
    uint32_t n = look(&t, a).n_shared;
    kni_free(t.slots);
    return n;
}

/* Leaves a text's tokens first .. first + n - 1, behind its first token if that is the model's beginning of a text. */
static void keep_run(struct kni_build_text *t, uint32_t first, uint32_t n, bool has_bos)
{
    uint32_t at = has_bos && first ? 1 : 0;
    memmove(t->tokens + at, t->tokens + first, (size_t)n * sizeof *t->tokens);
    t->n = (n + at) / KNI_BLOCK_TOKENS * KNI_BLOCK_TOKENS;
}

enum kn_status kni_build_drop_overlaps(struct kni_build *b)
{
    struct table t = {0};
    size_t n_tokens = 0;
    uint32_t n_kept = 0;
    bool has_bos = true;
    char name[256], other[256];
    for (uint32_t i = 0; i < b->n_texts; i++) {
        n_tokens += b->texts[i].n;
        has_bos = has_bos && b->texts[i].tokens[0] == b->texts[0].tokens[0];
    }
    if (!table_open(&t, n_tokens))
        return kni_err_set(b->err, KN_E_NOMEM, "no memory to compare texts of %zu tokens", n_tokens);
    for (uint32_t i = 0; i < b->n_texts; i++) {
        struct kni_build_text *text = &b->texts[i];
        struct shared s = look(&t, text);
        uint32_t n = text->n;
        bool drop = s.n_shared > n / 2 || (s.n_shared > n / COMMON_PART && s.n_new < MIN_RUN);
        if (s.n_shared > n / COMMON_PART) {
            kni_build_text_name(b, text->index, name);
            kni_build_text_name(b, s.with, other);
            if (drop)
                kni_log(KN_LOG_LEVEL_WARN, "profile", "%s is left out: %u of its %u tokens are in %s or other earlier texts, and a text counts once", name, s.n_shared, n, other);
            else
                kni_log(KN_LOG_LEVEL_WARN, "profile", "%s counts with %u of its %u tokens: %u are in %s or other earlier texts", name, s.n_new, n, s.n_shared, other);
        }
        if (drop) {
            kni_free(text->tokens);
            *text = (struct kni_build_text){0};
            continue;
        }
        if (s.n_shared > n / COMMON_PART)
            keep_run(text, s.first_new, s.n_new, has_bos && b->n_texts > 1);
        remember(&t, text, (uint32_t)text->index);
        struct kni_build_text kept = *text;
        *text = (struct kni_build_text){0};
        b->texts[n_kept++] = kept;
    }
    b->n_texts = n_kept;
    kni_free(t.slots);
    return KN_OK;
}
