/* SPDX-License-Identifier: Apache-2.0 */
/*
 * kn_codec_needle: facts planted in long texts and asked for after the text's K and V went through a codec.
 *
 *     haystack   text ... The access code of the red lamp is 48213. ... text ... (FACTS of them, so that one prefix serves many questions)
 *     asked      Question: What is the access code of the red lamp? Answer: The access code of the red lamp is| 48213
 *
 * Right when each token of the answer is the best one, given those before it. Depths are spread evenly over all facts, 0 the start
 * of the text. Codes, colours and things come from a fixed generator: the same call asks the same questions. Haystacks are
 * windows of the caller's text that follow each other, and begin again at its start when it is used up.
 */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "base/alloc.h"
#include "base/log.h"
#include "base/sized.h"
#include "base/status.h"
#include "measure/eval_calibration.h"
#include "measure/eval_method.h"

#define DEFAULT_FACTS 40u
#define DEFAULT_TOKENS 4000u
#define FACTS 4u          /* of a haystack */
#define MAX_PIECE 96u     /* tokens of a fact or a question */
#define MAX_METHODS 48u

static const char *const colours[] = {"red", "green", "yellow", "purple", "silver", "orange", "brown", "golden"};
static const char *const kinds[FACTS] = {"access code", "serial number", "phone number", "account number"}; /* one of each a haystack */
static const char *const things[] = {"lamp", "bridge", "garden", "piano", "tower", "wagon", "mirror", "violin", "castle", "kettle", "anchor"};
#define N_COLOURS (sizeof colours / sizeof *colours)
#define N_THINGS (sizeof things / sizeof *things)

struct piece { int32_t ids[MAX_PIECE]; uint32_t n; };
struct fact { struct piece statement, question, answer; double depth; };
struct tally { const char *method, *preset; uint32_t n_facts, n_right; double log_p; };

struct needle {
    struct kn_needle_opts opts;
    struct kni_eval_bed bed;
    struct kni_eval_needs needs;
    int32_t *text, *haystack; /* tokens of the caller's text; of one haystack */
    size_t n_text, text_at;
    struct fact facts[FACTS];
    uint32_t n_facts; /* in this haystack */
    struct tally tallies[MAX_METHODS]; /* 0: untouched, 1 + i: method i of the table */
};

static uint64_t next_random(uint64_t *state)
{
    uint64_t z = *state += 0x9e3779b97f4a7c15u;
    z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9u;
    z = (z ^ z >> 27) * 0x94d049bb133111ebu;
    return z ^ z >> 31;
}

static enum kn_status tokenize(const struct kn_model *model, const char *text, struct piece *out, struct kn_err *err)
{
    size_t n = MAX_PIECE;
    enum kn_status status = kn_model_tokenize(model, text, strlen(text), 0, out->ids, &n);
    out->n = (uint32_t)n;
    return status ? kni_err_set(err, status, "the model's tokenizer makes %zu tokens of \"%s\", more than %u", n, text, MAX_PIECE) : KN_OK;
}

/* Fact number index of all, of a kind. */
static enum kn_status make_fact(const struct needle *x, uint32_t index, const char *kind, struct fact *out, struct kn_err *err)
{
    char text[256];
    uint64_t state = index;
    uint32_t code = 10000 + (uint32_t)(next_random(&state) % 90000);
    const char *colour = colours[index % N_COLOURS], *thing = things[index % N_THINGS]; /* 88 pairs before one comes again */
    out->depth = (index + 0.5) / x->opts.n_facts;
    snprintf(text, sizeof text, "\nThe %s of the %s %s is %u.\n", kind, colour, thing, code);
    enum kn_status status = tokenize(x->bed.model, text, &out->statement, err);
    if (status == KN_OK) {
        snprintf(text, sizeof text, "\n\nQuestion: What is the %s of the %s %s?\nAnswer: The %s of the %s %s is", kind, colour, thing, kind, colour, thing);
        status = tokenize(x->bed.model, text, &out->question, err);
    }
    if (status == KN_OK) {
        snprintf(text, sizeof text, " %u", code);
        status = tokenize(x->bed.model, text, &out->answer, err);
    }
    return status;
}

/* Whether a fact may stand before text token i: at the start, or after a token that ends a line. */
static bool is_seam(const struct needle *x, size_t i)
{
    const char *bytes;
    size_t n;
    return i == 0 || (kn_model_token_bytes(x->bed.model, x->text[i - 1], &bytes, &n) == KN_OK && n && bytes[n - 1] == '\n');
}

/* Facts of haystack number `index`, which has every n_haystacks-th of all facts, and its tokens. */
static enum kn_status make_haystack(struct needle *x, uint32_t index, uint32_t n_haystacks, struct kn_err *err)
{
    uint32_t room = x->bed.n_prefix, n = 0;
    enum kn_status status = KN_OK;
    x->n_facts = 0;
    for (uint32_t f = index; f < x->opts.n_facts && status == KN_OK; f += n_haystacks) {
        status = make_fact(x, f, kinds[x->n_facts], &x->facts[x->n_facts], err);
        if (status == KN_OK && x->facts[x->n_facts].statement.n > room)
            status = kni_err_set(err, KN_E_ARG, "haystacks of %u tokens have no room for %u facts: use longer ones", x->bed.n_prefix, FACTS);
        if (status == KN_OK)
            room -= x->facts[x->n_facts++].statement.n;
    }
    if (status)
        return status;
    if (x->text_at + room > x->n_text)
        x->text_at = 0;
    uint32_t next = 0;
    for (uint32_t i = 0; i <= room; i++) {
        uint32_t wanted = next < x->n_facts ? (uint32_t)(x->facts[next].depth * room) : UINT32_MAX, limit = wanted < room ? wanted + 200 : room;
        if (next < x->n_facts && i >= wanted && (is_seam(x, x->text_at + i) || i >= limit || i == room)) {
            const struct piece *p = &x->facts[next++].statement;
            memcpy(x->haystack + n, p->ids, p->n * sizeof *p->ids);
            n += p->n;
            i--; /* the same place may be wanted by the next one */
            continue;
        }
        if (i < room)
            x->haystack[n++] = x->text[x->text_at + i];
    }
    x->text_at += room;
    return KN_OK;
}

static enum kn_status ask(struct needle *x, const struct kni_kv_host *view, struct tally *t, struct kn_err *err)
{
    int32_t ids[2 * MAX_PIECE];
    for (uint32_t f = 0; f < x->n_facts; f++) {
        const struct piece *q = &x->facts[f].question, *a = &x->facts[f].answer;
        uint32_t n = q->n + a->n - 1; /* the last token is asked for, not run */
        memcpy(ids, q->ids, q->n * sizeof *ids);
        memcpy(ids + q->n, a->ids, (a->n - 1) * sizeof *ids);
        enum kn_status status = kni_eval_bed_run(&x->bed, view, ids, 0, n, a->n, err);
        if (status)
            return status;
        bool right = true;
        for (uint32_t i = 0; i < a->n; i++) {
            const float *row = x->bed.rows + (size_t)i * x->bed.n_vocab;
            uint32_t best;
            t->log_p += row[a->ids[i]] - kni_eval_log_sum_exp(row, x->bed.n_vocab, &best);
            right = right && best == (uint32_t)a->ids[i];
        }
        t->n_facts++;
        t->n_right += right;
    }
    return KN_OK;
}

static bool wanted(const struct needle *x, const struct kni_eval_method *m)
{
    if (m->kind == KNI_EVAL_KIND_IDEAL || (kni_eval_method_wants_profile(m) && !x->needs.profile) ||
        (kni_eval_method_wants_calibration(m) && !x->needs.kvtc))
        return false;
    return x->opts.only ? kni_eval_is_named(x->opts.only, m->method) : m->by_needle;
}

static enum kn_status do_haystack(struct needle *x, uint32_t index, uint32_t n_haystacks, struct kn_err *err)
{
    struct kni_kv_host clean = kni_eval_bed_clean(&x->bed), coded_view = kni_eval_bed_coded(&x->bed);
    uint32_t n;
    const struct kni_eval_method *m = kni_eval_methods(&n);
    char phase[64];
    snprintf(phase, sizeof phase, "text %u of %u", index + 1, n_haystacks);
    enum kn_status status = make_haystack(x, index, n_haystacks, err);
    if (status == KN_OK)
        status = kni_eval_bed_prefill(&x->bed, x->haystack, x->opts.progress, x->opts.user, phase, err);
    if (status == KN_OK && (!x->opts.only || kni_eval_is_named(x->opts.only, "untouched"))) {
        x->tallies[0].method = "untouched";
        x->tallies[0].preset = "";
        status = ask(x, &clean, &x->tallies[0], err);
    }
    for (uint32_t i = 0; i < n && status == KN_OK; i++) {
        if (!wanted(x, &m[i]))
            continue;
        struct kni_eval_coded coded;
        status = kni_eval_method_code(&m[i], &x->bed, &x->needs, &coded, err);
        if (status == KN_OK)
            status = ask(x, &coded_view, &x->tallies[1 + i], err);
        x->tallies[1 + i].method = m[i].method;
        x->tallies[1 + i].preset = m[i].preset;
    }
    return status;
}

static enum kn_status check(struct kn_needle_opts *o, const struct kn_model *model, const struct kn_needle_opts *opts, struct kn_err *err)
{
    if (!model)
        return kni_err_set(err, KN_E_ARG, "kn_codec_needle needs a model");
    enum kn_status status = KNI_OPTS_READ(o, opts, kn_needle_opts, err);
    if (status)
        return status;
    o->n_facts = o->n_facts ? o->n_facts : DEFAULT_FACTS;
    o->n_tokens = o->n_tokens ? o->n_tokens : DEFAULT_TOKENS;
    if (!o->on_row || !o->text)
        return kni_err_set(err, KN_E_ARG, "kn_codec_needle needs a text and an on_row");
    if (o->n_tokens < KNI_EVAL_CHUNK / 2 || o->n_tokens > 1u << 24)
        return kni_err_set(err, KN_E_ARG, "haystacks of %u tokens: use at least %u", o->n_tokens, KNI_EVAL_CHUNK);
    if (o->text_bytes > (size_t)1 << 30)
        return kni_err_set(err, KN_E_ARG, "a text of %zu bytes: use 1 GiB at most", o->text_bytes);
    status = kni_eval_check_list(o->only, true, err);
    return status == KN_OK && o->calibration ? kni_eval_calibration_check(o->calibration, model, o->kv_type, err) : status;
}

static enum kn_status read_text(struct needle *x, const struct kn_model *model, struct kn_err *err)
{
    size_t room = 3 * x->opts.text_bytes + 2;
    x->text = kni_alloc(KNI_ALLOC_TAG_SCRATCH, room * sizeof *x->text, 0);
    x->n_text = room;
    enum kn_status status = x->text ? kn_model_tokenize(model, x->opts.text, x->opts.text_bytes, 0, x->text, &x->n_text) : KN_E_NOMEM;
    if (status)
        return kni_err_set(err, status, "cannot tokenize a text of %zu bytes", x->opts.text_bytes);
    if (x->n_text < x->bed.n_prefix)
        return kni_err_set(err, KN_E_ARG, "the text has %zu tokens, a haystack %u: give a longer text", x->n_text, x->bed.n_prefix);
    return KN_OK;
}

enum kn_status kn_codec_needle(struct kn_model *model, const struct kn_needle_opts *opts, struct kn_err *err)
{
    struct needle *x = NULL;
    struct kn_needle_opts o = {0};
    struct kn_hevc_opts hevc;
    enum kn_status status = check(&o, model, opts, err);
    if (!status)
        status = KNI_OPTS_READ_OR_DEFAULT(&hevc, o.hevc, kn_hevc_opts, err);
    if (status)
        return status;
    uint32_t n_methods;
    kni_eval_methods(&n_methods);
    x = kni_calloc(KNI_ALLOC_TAG_SCRATCH, sizeof *x, 0);
    if (!x || n_methods >= MAX_METHODS)
        return kni_err_set(err, KN_E_NOMEM, "no memory to ask for facts");
    x->opts = o;
    x->needs.hevc = hevc;
    x->needs.kvtc = o.calibration ? o.calibration->kvtc : NULL;
    struct kni_eval_bed_opts bo = {.model = model,
                                   .n_prefix = (o.n_tokens + KNI_EVAL_CHUNK / 2) / KNI_EVAL_CHUNK * KNI_EVAL_CHUNK, /* whole chunks */
                                   .n_after = 2 * MAX_PIECE,
                                   .n_threads = o.n_threads,
                                   .kv_type = o.kv_type};
    status = kni_eval_bed_open(&x->bed, &bo, err);
    if (status == KN_OK)
        status = kni_eval_open_profile(&x->needs.profile, o.profile_path, &x->bed, err);
    if (status == KN_OK)
        status = read_text(x, model, err);
    if (status == KN_OK) {
        x->haystack = kni_alloc(KNI_ALLOC_TAG_SCRATCH, bo.n_prefix * sizeof *x->haystack, 0);
        status = x->haystack ? KN_OK : kni_err_set(err, KN_E_NOMEM, "no memory for a haystack");
    }
    uint32_t n_haystacks = (o.n_facts + FACTS - 1) / FACTS;
    for (uint32_t i = 0; i < n_haystacks && status == KN_OK; i++)
        status = do_haystack(x, i, n_haystacks, err);
    for (uint32_t i = 0; i <= n_methods && status == KN_OK; i++) {
        const struct tally *t = &x->tallies[i];
        if (!t->n_facts)
            continue;
        struct kn_needle_row row = {.method = t->method, .preset = t->preset, .n_facts = t->n_facts, .n_right = t->n_right, .mean_logprob = t->log_p / t->n_facts};
        o.on_row(o.user, &row);
    }
    kni_profile_close(&x->needs.profile);
    kni_eval_bed_close(&x->bed);
    kni_free(x->text);
    kni_free(x->haystack);
    kni_free(x);
    return status;
}
