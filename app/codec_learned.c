/* SPDX-License-Identifier: Apache-2.0 */
/* What a profile was learned on, beside results on a text; see codec_learned.h. */
#include "codec_learned.h"

#include <stdlib.h>
#include <string.h>

/* Bytes of a token of the profile's held-back texts over those of a token of this text, without the first tokens, which stay
 * exact. Steps are fixed, so a text takes more bytes where the profile's bases do not fit it. At every preset, English prose,
 * manuals and sources came to 0.95 and more, Greek, German, Russian and Japanese to 0.76-0.85, mixtures of English and others
 * and base64 to 0.89 and 0.90 (doc/benchmarks.md, Texts unlike a profile's); this lies between the last two. */
#define THIN 0.87
/* Times the KL that it notes. KL does not tell the kind of a text: it is small where the next token is easily predicted, and a
 * Russian manual page had less than C. It tells that quality is below what the profile promises. */
#define WORSE 1.3
/* Bytes of an exact token over its 16-bit values (src/codec/sinks.c) in f16. In bf16 they are fewer; then a text looks at most
 * 3 % nearer to the profile's after 1,024 tokens, 10 % after 256. */
#define EXACT_SHARE 0.86
/* Where the profile's own figures are from (engine/profile_build_measure.c): the first so many of its held-back texts, of each a
 * prefix of so many tokens at most; the last quarter, in blocks, comes after it. */
#define OWN_TEXTS 3
#define OWN_PREFIX 1024
#define OWN_BLOCK 16

struct reading { struct kn_learned *learned; uint64_t prefixes; uint32_t n_held; };

static void add_learned(void *user, const struct kn_profile_text *text)
{
    struct reading *r = user;
    char hash[33];
    kn_app_hex(text->hash, hash);
    if (text->is_held_back && r->n_held < OWN_TEXTS) {
        uint64_t prefix = text->n_tokens - text->n_tokens / 4 / OWN_BLOCK * OWN_BLOCK;
        r->prefixes += prefix < OWN_PREFIX ? prefix : OWN_PREFIX;
        r->n_held++;
    }
    json_array_append_new(r->learned->texts, json_pack("{s:o, s:I, s:b, s:s}", "name", kn_app_json_text(text->name, strlen(text->name)), "tokens", (json_int_t)text->n_tokens, "held_back",
                                          (int)text->is_held_back, "hash", hash));
}

void kn_learned_read(struct kn_learned *l, const char *path)
{
    l->info.size = sizeof l->info;
    if (!path || kn_profile_read_info(path, &l->info, NULL)) /* whoever needs it says what is wrong with it */
        return;
    snprintf(l->path, sizeof l->path, "%s", path);
    l->texts = json_array();
    struct reading r = {.learned = l};
    kn_profile_read_texts(path, add_learned, &r, NULL);
    l->prefix = r.n_held ? (uint32_t)(r.prefixes / r.n_held) : OWN_PREFIX;
}

void kn_learned_print(const struct kn_learned *l)
{
    size_t i;
    json_t *text;
    if (!l->texts)
        return;
    printf("profile %s: learned from %llu tokens", l->path, (unsigned long long)l->info.n_calibration_tokens);
    json_array_foreach(l->texts, i, text)
        printf("%s%s%s", i ? ", " : " of ", json_string_value(json_object_get(text, "name")), json_is_true(json_object_get(text, "held_back")) ? " (measured on)" : "");
    puts("\n");
}

/* The bytes of a named text as kn_profile_text_hash gives them, in hexadecimal; false: it cannot be read. */
static bool hash_file(const char *path, char hex[33])
{
    const char *why;
    size_t n;
    uint8_t hash[16];
    char *text = kn_app_read_file(path, &n, &why);
    if (!text)
        return false;
    kn_profile_text_hash(text, n, hash);
    kn_app_hex(hash, hex);
    free(text);
    return true;
}

json_t *kn_learned_json(const struct kn_learned *l)
{
    char id[33];
    kn_app_hex(l->info.id, id);
    return l->texts ? json_pack("{s:s, s:I, s:O}", "id", id, "n_calibration_tokens", (json_int_t)l->info.n_calibration_tokens, "texts", l->texts) : NULL;
}

/* Whether a named text has the bytes with this hash. */
static bool is_same(const char *path, const char *hex)
{
    char other[33];
    return hash_file(path, other) && !strcmp(hex, other);
}

/* Bytes of a token that is not exact, over its 16-bit values. */
static double coded_share(const struct kn_learned_figures *f, uint32_t n_exact)
{
    return 1 / f->ratio - EXACT_SHARE * n_exact / f->prefix;
}

enum kn_learned_verdict kn_learned_judge(const struct kn_learned_figures *own, const struct kn_learned_figures *text,
                                         uint32_t n_exact)
{
    if (!(own->ratio > 0) || !(own->kl > 0) || !own->prefix || !(text->ratio > 0) || !text->prefix)
        return KN_LEARNED_ALIKE;
    double own_share = coded_share(own, n_exact), share = coded_share(text, n_exact);
    if (own_share > 0 && own_share < THIN * share)
        return KN_LEARNED_UNLIKE;
    return text->kl > WORSE * own->kl ? KN_LEARNED_WORSE : KN_LEARNED_ALIKE;
}

/* A sentence on a method's figures, or NULL. */
static json_t *judge_row(const struct kn_learned *l, const struct kn_report_row *row, uint32_t prefix)
{
    static const char *const presets[3] = {"fine", "medium", "small"};
    int p = kn_app_parse_name(row->method, presets, 3);
    if (p < 0 || strcmp(row->preset, "rans")) /* the one that ratios were measured with */
        return NULL;
    struct kn_learned_figures own = {(double)l->info.presets[p].ratio, (double)l->info.presets[p].kl, l->prefix},
                              text = {row->values.ratio, row->values.kl, prefix};
    switch (kn_learned_judge(&own, &text, l->info.n_sinks)) {
    case KN_LEARNED_UNLIKE:
        return json_sprintf("%s: %.1f times smaller and KL %.4f, where the profile's own texts gave %.1f and %.4f: this text is "
                            "unlike them; build a profile from texts like it, or use preset exact for such",
                            row->method, text.ratio, text.kl, own.ratio, own.kl);
    case KN_LEARNED_WORSE:
        return json_sprintf("%s: KL %.4f, where the profile's own texts gave %.4f: this text loses more than the profile promises; %s",
                            row->method, text.kl, own.kl, p ? "a finer preset loses less" : "use preset exact where that matters");
    case KN_LEARNED_ALIKE: break;
    }
    return NULL;
}

json_t *kn_learned_hints(const struct kn_learned *l, const struct kn_report *report, const struct kn_learned_run *run)
{
    json_t *out = json_array(), *text;
    size_t i;
    char hex[33];
    if (hash_file(run->path, hex)) {
        json_array_foreach(l->texts, i, text)
            if (!strcmp(hex, json_string_value(json_object_get(text, "hash"))))
                json_array_append_new(out, json_sprintf("the profile was %s this very text: the results are better than on others",
                                                        json_is_true(json_object_get(text, "held_back")) ? "measured on" : "learned from"));
        for (uint32_t k = 0; k < run->n_earlier; k++)
            if (is_same(run->earlier[k], hex))
                json_array_append_new(out, json_string("this text was given before: it counts twice in the mean"));
        for (uint32_t k = 0; k < run->n_calibration; k++)
            if (is_same(run->calibration[k], hex))
                json_array_append_new(out, json_string("this text is also given with --calibration: what learns from it looks better than it is"));
    }
    for (uint32_t k = 0; l->texts && k < report->n_rows; k++) {
        json_t *sentence = judge_row(l, &report->rows[k], run->prefix);
        if (sentence)
            json_array_append_new(out, sentence);
    }
    return out;
}
