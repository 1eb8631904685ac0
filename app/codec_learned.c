/* SPDX-License-Identifier: Apache-2.0 */
/* What a profile was learned on, beside results on a text; see codec_learned.h. */
#include "codec_learned.h"

#include <stdlib.h>
#include <string.h>

/* Times the KL that the profile notes for its held-back texts. That one is measured close behind a short prefix, which gives about twice of
 * what 3,072 tokens and 1,024 after them give: texts of the profile's kind stay below half of it, foreign scripts come to one and a half times. */
#define FAR 1.3
/* Of the size ratio that it notes: texts of its kind stay within some percent, encoded data loses a sixth, foreign scripts a fifth and more. */
#define THIN 0.85

static void add_learned(void *user, const struct kn_profile_text *text)
{
    char hash[33];
    kn_app_hex(text->hash, hash);
    json_array_append_new(user, json_pack("{s:o, s:I, s:b, s:s}", "name", kn_app_json_text(text->name, strlen(text->name)), "tokens", (json_int_t)text->n_tokens, "held_back",
                                          (int)text->is_held_back, "hash", hash));
}

void kn_learned_read(struct kn_learned *l, const char *path)
{
    if (!path || kn_profile_read_info(path, &l->info, NULL)) /* whoever needs it says what is wrong with it */
        return;
    snprintf(l->path, sizeof l->path, "%s", path);
    l->texts = json_array();
    kn_profile_read_texts(path, add_learned, l->texts, NULL);
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

json_t *kn_learned_hints(const struct kn_learned *l, const struct kn_report *report, const char *path, const char *const *earlier, uint32_t n_earlier,
                         const char *const *calibration, uint32_t n_calibration)
{
    static const char *const presets[3] = {"fine", "medium", "small"};
    json_t *out = json_array(), *text;
    size_t i;
    char hex[33], line[400];
    if (hash_file(path, hex)) {
        json_array_foreach(l->texts, i, text)
            if (!strcmp(hex, json_string_value(json_object_get(text, "hash"))))
                json_array_append_new(out, json_sprintf("the profile was %s this very text: the results are better than on others",
                                                        json_is_true(json_object_get(text, "held_back")) ? "measured on" : "learned from"));
        for (uint32_t k = 0; k < n_earlier; k++)
            if (is_same(earlier[k], hex))
                json_array_append_new(out, json_string("this text was given before: it counts twice in the mean"));
        for (uint32_t k = 0; k < n_calibration; k++)
            if (is_same(calibration[k], hex))
                json_array_append_new(out, json_string("this text is also given with --calibration: what learns from it looks better than it is"));
    }
    for (uint32_t k = 0; l->texts && k < report->n_rows; k++) {
        const struct kn_report_row *row = &report->rows[k];
        int p = kn_app_parse_name(row->method, presets, 3);
        bool rans = p >= 0 && !strcmp(row->preset, "rans"); /* the one that ratios were measured with */
        if (!rans || !(l->info.presets[p].kl > 0) || !(l->info.presets[p].ratio > 0))
            continue;
        bool far = row->values.kl > FAR * (double)l->info.presets[p].kl, thin = row->values.ratio < THIN * (double)l->info.presets[p].ratio;
        if (!far && !thin)
            continue;
        snprintf(line, sizeof line, "%s: KL %.4f and %.1f times smaller, where the profile's own texts gave %.4f and %.1f: this text is unlike them; build a profile from texts "
                 "like it, or use preset exact for such", row->method, row->values.kl, row->values.ratio, (double)l->info.presets[p].kl, (double)l->info.presets[p].ratio);
        json_array_append_new(out, kn_app_json_text(line, strlen(line)));
    }
    return out;
}
