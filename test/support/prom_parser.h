/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A strict reader of Prometheus' text format 0.0.4, to hold /metrics against: it takes no line that the format does not allow.
 *
 *     struct kn_prom p;
 *     assert_null(kn_prom_parse(&p, text));                            // or a sentence with the line
 *     kn_prom_value(&p, "kinema_requests", "{state=\"running\"}")      // NAN: no such sample
 *
 * Checked: every family has HELP and TYPE once, before its samples, which stand together; names and labels are legal; escapes in label
 * values; no sample twice; counters end in _total and are not negative; histograms have ascending bounds, counts that do not fall, +Inf
 * last and equal to _count, and a _sum; the last line ends.
 */
#ifndef KN_TEST_PROM_PARSER_H
#define KN_TEST_PROM_PARSER_H

#include <ctype.h>
#include <math.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define KN_PROM_MAX 1024u

struct kn_prom_sample {
    char name[96], labels[192]; /* as written, with braces; "" without */
    double value;
};

struct kn_prom {
    struct kn_prom_sample samples[KN_PROM_MAX];
    char families[KN_PROM_MAX][96], types[KN_PROM_MAX][16];
    size_t n_samples, n_families;
    bool has_type;                   /* of the family that is being read */
    double last_bound, last_count, inf_count;
    bool has_inf, has_sum, has_count;
    char error[256];
};

static inline const char *kn_prom_fail(struct kn_prom *p, int line, const char *what)
{
    snprintf(p->error, sizeof p->error, "line %d: %s", line, what);
    return p->error;
}

/* Reads [a-zA-Z_:][a-zA-Z0-9_:]*; NULL: there is no name. */
static inline const char *kn_prom_name(const char *at, char *out, size_t room, bool colon)
{
    size_t n = 0;
    while (isalpha((unsigned char)at[n]) || at[n] == '_' || (colon && at[n] == ':') || (n > 0 && isdigit((unsigned char)at[n])))
        n++;
    if (n == 0 || n >= room)
        return NULL;
    memcpy(out, at, n);
    out[n] = 0;
    return at + n;
}

static inline const char *kn_prom_labels(const char *at, struct kn_prom_sample *sample, char le[160])
{
    const char *first = at;
    char seen[8][64], label[64];
    size_t n_seen = 0;

    le[0] = 0;
    if (*at != '{')
        return at;
    at++;
    for (;;) {
        char value[160];
        size_t n = 0;
        at = kn_prom_name(at, label, sizeof label, false);
        if (!at || at[0] != '=' || at[1] != '"')
            return NULL;
        for (size_t i = 0; i < n_seen; i++)
            if (!strcmp(seen[i], label))
                return NULL;
        if (n_seen < 8)
            memcpy(seen[n_seen++], label, sizeof label);
        for (at += 2; *at != '"'; at++) {
            if (*at == '\n' || *at == 0 || n + 1 >= sizeof value)
                return NULL;
            if (*at == '\\' && *++at != '\\' && *at != '"' && *at != 'n')
                return NULL;
            value[n++] = *at;
        }
        value[n] = 0;
        if (!strcmp(label, "le"))
            memcpy(le, value, n + 1);
        at++;
        if (*at == '}')
            break;
        if (*at++ != ',')
            return NULL;
    }
    at++;
    if ((size_t)(at - first) >= sizeof sample->labels)
        return NULL;
    memcpy(sample->labels, first, (size_t)(at - first));
    sample->labels[at - first] = 0;
    return at;
}

/* What the family that was being read lacks; NULL: nothing. */
static inline const char *kn_prom_close_family(struct kn_prom *p)
{
    const char *type = p->n_families ? p->types[p->n_families - 1] : "";
    const char *name = p->n_families ? p->families[p->n_families - 1] : "";
    size_t n = strlen(name);

    if (p->n_families == 0)
        return NULL;
    if (!p->has_type)
        return "the family before this line has no TYPE";
    if (p->n_samples == 0 || strncmp(p->samples[p->n_samples - 1].name, name, n))
        return "the family before this line has no sample";
    if (!strcmp(type, "counter") && (n < 6 || strcmp(name + n - 6, "_total")))
        return "a counter's name does not end in _total";
    if (!strcmp(type, "gauge") && n >= 6 && !strcmp(name + n - 6, "_total"))
        return "a gauge's name ends in _total";
    if (!strcmp(type, "histogram") && !(p->has_inf && p->has_sum && p->has_count))
        return "a histogram lacks +Inf, _sum or _count";
    return NULL;
}

static inline const char *kn_prom_comment(struct kn_prom *p, const char *line, int number)
{
    char name[96], type[16];
    const char *at = kn_prom_name(line + 7, name, sizeof name, true), *lack;

    if (!at || *at != ' ')
        return kn_prom_fail(p, number, "a comment that is neither HELP nor TYPE with a name");
    if (!strncmp(line, "# HELP ", 7)) {
        lack = kn_prom_close_family(p);
        if (lack)
            return kn_prom_fail(p, number, lack);
        for (size_t i = 0; i < p->n_families; i++)
            if (!strcmp(p->families[i], name))
                return kn_prom_fail(p, number, "a family for the second time");
        if (at[1] == '\n' || p->n_families == KN_PROM_MAX)
            return kn_prom_fail(p, number, "no help, or too many families");
        snprintf(p->families[p->n_families++], sizeof p->families[0], "%s", name);
        p->has_type = p->has_inf = p->has_sum = p->has_count = false;
        p->last_bound = -1;
        p->last_count = 0;
        return NULL;
    }
    if (strncmp(line, "# TYPE ", 7) || p->n_families == 0 || p->has_type || strcmp(p->families[p->n_families - 1], name))
        return kn_prom_fail(p, number, "TYPE does not follow its HELP");
    if (sscanf(at + 1, "%15[a-z]", type) != 1 || at[1 + strlen(type)] != '\n' || (strcmp(type, "counter") && strcmp(type, "gauge") && strcmp(type, "histogram")))
        return kn_prom_fail(p, number, "an unknown type");
    snprintf(p->types[p->n_families - 1], sizeof p->types[0], "%s", type);
    p->has_type = true;
    return NULL;
}

static inline const char *kn_prom_histogram_sample(struct kn_prom *p, const char *suffix, const char *le, double value, int number)
{
    if (!strcmp(suffix, "_sum")) {
        p->has_sum = true;
    } else if (!strcmp(suffix, "_count")) {
        p->has_count = true;
        if (!p->has_inf || value != p->inf_count)
            return kn_prom_fail(p, number, "_count is not what +Inf counts");
    } else if (!strcmp(suffix, "_bucket") && le[0]) {
        double bound = strtod(le, NULL);
        if (p->has_inf || bound <= p->last_bound || value < p->last_count)
            return kn_prom_fail(p, number, "buckets that do not ascend, or something after +Inf");
        p->has_inf = isinf(bound) != 0;
        p->inf_count = p->last_count = value;
        p->last_bound = bound;
    } else {
        return kn_prom_fail(p, number, "no sample of a histogram");
    }
    return NULL;
}

static inline const char *kn_prom_sample(struct kn_prom *p, const char *line, int number)
{
    struct kn_prom_sample *s = &p->samples[p->n_samples];
    const char *family = p->n_families ? p->families[p->n_families - 1] : "", *at, *type;
    char le[160], *end;
    size_t n = strlen(family);

    if (p->n_samples == KN_PROM_MAX)
        return kn_prom_fail(p, number, "too many samples");
    memset(s, 0, sizeof *s);
    at = kn_prom_name(line, s->name, sizeof s->name, true);
    if (!at || !p->n_families || !p->has_type || strncmp(s->name, family, n))
        return kn_prom_fail(p, number, "a sample outside its family");
    type = p->types[p->n_families - 1];
    at = kn_prom_labels(at, s, le);
    if (!at || *at != ' ')
        return kn_prom_fail(p, number, "malformed labels");
    s->value = strtod(at + 1, &end);
    if (end == at + 1 || *end != '\n' || isspace((unsigned char)at[1]) || isnan(s->value))
        return kn_prom_fail(p, number, "no number, or something after it");
    for (size_t i = 0; i < p->n_samples; i++)
        if (!strcmp(p->samples[i].name, s->name) && !strcmp(p->samples[i].labels, s->labels))
            return kn_prom_fail(p, number, "a sample for the second time");
    p->n_samples++;
    if (!strcmp(type, "histogram"))
        return kn_prom_histogram_sample(p, s->name + n, le, s->value, number);
    if (s->name[n] != 0 || le[0])
        return kn_prom_fail(p, number, "a sample outside its family");
    return s->value < 0 ? kn_prom_fail(p, number, "less than nothing") : NULL;
}

/* NULL, or what is wrong, as a sentence in p. */
static inline const char *kn_prom_parse(struct kn_prom *p, const char *text)
{
    int number = 0;
    const char *wrong;

    memset(p, 0, sizeof *p);
    while (*text) {
        const char *next = strchr(text, '\n');
        number++;
        if (!next)
            return kn_prom_fail(p, number, "the last line does not end");
        wrong = *text == '#' ? kn_prom_comment(p, text, number) : kn_prom_sample(p, text, number);
        if (wrong)
            return wrong;
        text = next + 1;
    }
    wrong = kn_prom_close_family(p);
    return wrong ? kn_prom_fail(p, number, wrong) : p->n_families ? NULL : kn_prom_fail(p, number, "nothing");
}

/* The one sample with this name and these labels; NAN: there is none. */
static inline double kn_prom_value(const struct kn_prom *p, const char *name, const char *labels)
{
    for (size_t i = 0; i < p->n_samples; i++)
        if (!strcmp(p->samples[i].name, name) && !strcmp(p->samples[i].labels, labels))
            return p->samples[i].value;
    return NAN;
}

#endif
