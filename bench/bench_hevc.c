/* SPDX-License-Identifier: Apache-2.0 */
/*
 * kinema bench codec --encoder: encoders of video on real pictures (kn_codec_bench_hevc). The library measures; here rows are held against
 * one another and against what our encoder is meant to reach.
 *
 *     rows as they come -> one table a preset (ratios need all of its rows) -> targets at the end, or all as one JSON object
 *
 * Ratios are bytes of the same pictures in the same run. A target is shown where both of its rows were measured; missing one is no failure, a
 * stream that does not come back bit for bit is.
 */
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "bench.h"

#define X265_FAST "x265-ultrafast"
#define X265_MEDIUM "x265-medium"

struct name { char text[32]; };

struct row {
    struct name preset, part, encoder, tools; /* tools "": not ours */
    struct kn_codec_bench_hevc_row m;         /* its names are not used */
};

struct report {
    struct kn_app_progress progress;
    struct row *rows;
    size_t n_rows, n_printed, n_inexact;
    bool json, out_of_memory;
};

/* ---- rows */

static bool is(const struct name *a, const char *b)
{
    return !strcmp(a->text, b);
}

/* NULL: not measured. */
static const struct row *find(const struct report *r, const char *preset, const char *part, const char *encoder, const char *tools)
{
    for (size_t i = 0; i < r->n_rows; i++) {
        const struct row *x = &r->rows[i];
        if (is(&x->preset, preset) && is(&x->part, part) && is(&x->encoder, encoder) && is(&x->tools, tools))
            return x;
    }
    return NULL;
}

/* Bytes against those that another encoder makes of the same pictures; 0: that is not known. */
static double ratio_to(const struct report *r, const struct row *x, const char *encoder)
{
    const struct row *to = find(r, x->preset.text, x->part.text, encoder, "");
    return to && to->m.n_bytes ? (double)x->m.n_bytes / (double)to->m.n_bytes : 0;
}

static double bits(const struct row *x)
{
    return x->m.n_symbols ? 8.0 * (double)x->m.n_bytes / (double)x->m.n_symbols : 0;
}

/* Share of bytes above the rows' entropy; an order of columns is paid for. */
static double above_entropy(const struct row *x)
{
    return x->m.entropy_bytes > 0 ? (double)(x->m.n_bytes + x->m.order_bytes) / x->m.entropy_bytes - 1 : 0;
}

static double factor(const struct row *x, double mb_s)
{
    return x->m.encode_wall_mb_s > 0 ? mb_s / x->m.encode_wall_mb_s : 0;
}

/* ---- the table */

static const char *number(struct name *to, const char *format, double x)
{
    if (x > 0)
        snprintf(to->text, sizeof to->text, format, x);
    else
        snprintf(to->text, sizeof to->text, "-");
    return to->text;
}

static void print_row(const struct report *r, const struct row *x)
{
    struct name fast, medium, above = {"-"}, streams, streams_x, slices, slices_x, decode;
    if (x->m.entropy_bytes > 0)
        snprintf(above.text, sizeof above.text, "%+.1f %%", 100 * above_entropy(x));
    printf("%-4s %-15s %-22s %9" PRIu64 " %6.3f %8s %7s %7s %8.2f %8s %6s %8s %6s %7s  %s\n", x->part.text, x->encoder.text,
           *x->tools.text ? x->tools.text : "-", x->m.n_bytes, bits(x), above.text, number(&fast, "%.4f", ratio_to(r, x, X265_FAST)), number(&medium, "%.4f", ratio_to(r, x, X265_MEDIUM)), x->m.encode_mb_s,
           number(&streams, "%.2f", x->m.streams_mb_s), number(&streams_x, "x%.2f", factor(x, x->m.streams_mb_s)), number(&slices, "%.2f", x->m.slices_mb_s),
           number(&slices_x, "x%.2f", factor(x, x->m.slices_mb_s)), number(&decode, "%.2f", x->m.decode_mb_s), x->m.exact ? "yes" : "NO");
}

/* Those of one preset, once all are there. */
static void print_preset(struct report *r)
{
    if (r->json || r->n_printed == r->n_rows)
        return;
    const struct row *first = &r->rows[r->n_printed];
    printf("\n%s: %" PRIu64 " symbols\n%-4s %-15s %-22s %9s %6s %8s %15s %8s %32s %7s\n", first->preset.text, r->rows[r->n_rows - 1].m.n_symbols, "", "", "", "",
           "bits a", "above", "bytes to x265's", "encode,", "encode, threads by the clock", "decode,");
    printf("%-4s %-15s %-22s %9s %6s %8s %7s %7s %8s %8s %6s %8s %6s %7s  %s\n", "part", "encoder", "tools", "bytes", "symbol", "entropy", "fast", "medium", "MB/s",
           "streams", "", "slices", "", "MB/s", "same");
    for (; r->n_printed < r->n_rows; r->n_printed++)
        print_row(r, &r->rows[r->n_printed]);
    fflush(stdout);
}

static void on_row(void *user, const struct kn_codec_bench_hevc_row *row)
{
    struct report *r = user;
    kn_app_progress_clear(&r->progress);
    if (r->n_rows && !is(&r->rows[r->n_rows - 1].preset, row->preset))
        print_preset(r);
    struct row *rows = realloc(r->rows, (r->n_rows + 1) * sizeof *rows);
    if (!rows) {
        r->out_of_memory = true;
        return;
    }
    r->rows = rows;
    struct row *x = &rows[r->n_rows++];
    *x = (struct row){.m = *row};
    snprintf(x->preset.text, sizeof x->preset.text, "%s", row->preset);
    snprintf(x->part.text, sizeof x->part.text, "%s", row->part);
    snprintf(x->encoder.text, sizeof x->encoder.text, "%s", row->encoder);
    snprintf(x->tools.text, sizeof x->tools.text, "%s", row->tools ? row->tools : "");
    r->n_inexact += !row->exact;
}

/* ---- targets: what our encoder is to reach on K and V together */

enum measure { MEASURE_BYTES, MEASURE_ABOVE, MEASURE_SPEED, MEASURE_SPEED_RATIO, MEASURE_STREAMS, MEASURE_SLICES };

static const struct target {
    const char *preset, *tools, *to; /* to: the other encoder, or NULL */
    enum measure measure;
    double value;
    bool at_most;
} targets[] = {
    {"fine", "full", X265_MEDIUM, MEASURE_BYTES, 0.97, true},     {"medium", "full", X265_MEDIUM, MEASURE_BYTES, 0.97, true},
    {"small", "full", X265_MEDIUM, MEASURE_BYTES, 0.97, true},    {"fine", "basic", X265_FAST, MEASURE_BYTES, 1.00, true},
    {"medium", "basic", X265_FAST, MEASURE_BYTES, 1.00, true},    {"small", "basic", X265_FAST, MEASURE_BYTES, 1.00, true},
    {"tiles", "full", X265_FAST, MEASURE_BYTES, 1.03, true},      {"tiles", "basic", X265_FAST, MEASURE_BYTES, 1.03, true},
    {"fine", "full", NULL, MEASURE_ABOVE, 0.04, true},            {"medium", "full", NULL, MEASURE_ABOVE, 0.04, true},
    {"small", "full", NULL, MEASURE_ABOVE, 0.04, true},           {"medium", "full", NULL, MEASURE_SPEED, 40, false},
    {"medium", "basic", NULL, MEASURE_SPEED, 40, false},          {"medium", "full", X265_FAST, MEASURE_SPEED_RATIO, 10, false},
    {"medium", "full", NULL, MEASURE_STREAMS, 1.9, false},        {"medium", "full", NULL, MEASURE_SLICES, 1.9, false},
};
#define N_TARGETS (sizeof targets / sizeof *targets)

/* False: not measured. The two factors are of two threads. */
static bool evaluate(const struct report *r, const struct target *t, double *value)
{
    const struct row *x = find(r, t->preset, "K+V", "ours", t->tools), *to = t->to ? find(r, t->preset, "K+V", t->to, "") : NULL;
    if (!x || (t->to && !to))
        return false;
    switch (t->measure) {
    case MEASURE_BYTES: *value = ratio_to(r, x, t->to); break;
    case MEASURE_ABOVE: *value = above_entropy(x); break;
    case MEASURE_SPEED: *value = x->m.encode_mb_s; break;
    case MEASURE_SPEED_RATIO: *value = to->m.encode_mb_s > 0 ? x->m.encode_mb_s / to->m.encode_mb_s : 0; break;
    case MEASURE_STREAMS: *value = factor(x, x->m.streams_mb_s); break;
    case MEASURE_SLICES: *value = factor(x, x->m.slices_mb_s); break;
    }
    bool of_threads = t->measure == MEASURE_STREAMS || t->measure == MEASURE_SLICES;
    return !of_threads || (x->m.n_threads == 2 && *value > 0);
}

static bool is_met(const struct target *t, double value)
{
    return t->at_most ? value <= t->value : value >= t->value;
}

static void describe(const struct target *t, char *out, size_t out_bytes)
{
    static const char *const what[] = {"bytes to those of ", "bytes above the rows' entropy, as a share", "encoding on one core, MB/s", "speed to that of ",
                                       "two cores, streams side by side, times one", "two cores, slices of one picture, times one"};
    snprintf(out, out_bytes, "%s, tools %s: %s%s", t->preset, t->tools, what[t->measure], t->to ? t->to : "");
}

static void print_targets(const struct report *r)
{
    char what[128];
    bool any = false;
    for (size_t i = 0; i < N_TARGETS; i++) {
        double value;
        if (!evaluate(r, &targets[i], &value))
            continue;
        if (!any)
            printf("\n%-72s %8s %10s  %s\n", "ours, K+V", "is", "wanted", "met");
        any = true;
        describe(&targets[i], what, sizeof what);
        printf("%-72s %8.3f   %s %5.2f  %s\n", what, value, targets[i].at_most ? "<=" : ">=", targets[i].value, is_met(&targets[i], value) ? "yes" : "no");
    }
}

/* ---- JSON */

static json_t *real_or_null(double x)
{
    return x > 0 ? json_real(x) : json_null();
}

static json_t *row_json(const struct report *r, const struct row *x)
{
    json_t *o = json_object(), *encode = json_object();
    json_object_set_new(o, "preset", json_string(x->preset.text));
    json_object_set_new(o, "part", json_string(x->part.text));
    json_object_set_new(o, "encoder", json_string(x->encoder.text));
    json_object_set_new(o, "tools", *x->tools.text ? json_string(x->tools.text) : json_null());
    json_object_set_new(o, "symbols", json_integer((json_int_t)x->m.n_symbols));
    json_object_set_new(o, "bytes", json_integer((json_int_t)x->m.n_bytes));
    json_object_set_new(o, "bits_per_symbol", json_real(bits(x)));
    json_object_set_new(o, "order_bytes", json_integer((json_int_t)x->m.order_bytes));
    json_object_set_new(o, "entropy_bytes", real_or_null(x->m.entropy_bytes));
    json_object_set_new(o, "above_entropy", x->m.entropy_bytes > 0 ? json_real(above_entropy(x)) : json_null());
    json_object_set_new(o, "to_x265_ultrafast", real_or_null(ratio_to(r, x, X265_FAST)));
    json_object_set_new(o, "to_x265_medium", real_or_null(ratio_to(r, x, X265_MEDIUM)));
    json_object_set_new(encode, "mb_s", json_real(x->m.encode_mb_s));
    json_object_set_new(encode, "wall_mb_s", json_real(x->m.encode_wall_mb_s));
    json_object_set_new(encode, "streams_wall_mb_s", real_or_null(x->m.streams_mb_s));
    json_object_set_new(encode, "streams_factor", real_or_null(factor(x, x->m.streams_mb_s)));
    json_object_set_new(encode, "slices_wall_mb_s", real_or_null(x->m.slices_mb_s));
    json_object_set_new(encode, "slices_factor", real_or_null(factor(x, x->m.slices_mb_s)));
    json_object_set_new(encode, "streams_core_mb_s", real_or_null(x->m.streams_core_mb_s));
    json_object_set_new(encode, "slices_core_mb_s", real_or_null(x->m.slices_core_mb_s));
    json_object_set_new(encode, "slices_bytes", x->m.slices_bytes ? json_integer((json_int_t)x->m.slices_bytes) : json_null());
    json_object_set_new(encode, "threads", json_integer(x->m.n_threads));
    json_object_set_new(o, "encode", encode);
    json_object_set_new(o, "decode_mb_s", real_or_null(x->m.decode_mb_s));
    json_object_set_new(o, "exact", json_boolean(x->m.exact));
    return o;
}

static bool print_json(const struct report *r, const struct kn_bench_codec_args *a, const struct kn_model *model)
{
    const char *path = kn_model_info(model)->path;
    json_t *all = json_object(), *rows = json_array(), *aims = json_array();
    for (size_t i = 0; i < r->n_rows; i++)
        json_array_append_new(rows, row_json(r, &r->rows[i]));
    for (size_t i = 0; i < N_TARGETS; i++) {
        char what[128];
        double value;
        if (!evaluate(r, &targets[i], &value))
            continue;
        describe(&targets[i], what, sizeof what);
        json_t *o = json_object();
        json_object_set_new(o, "what", json_string(what));
        json_object_set_new(o, "is", json_real(value));
        json_object_set_new(o, targets[i].at_most ? "at_most" : "at_least", json_real(targets[i].value));
        json_object_set_new(o, "met", json_boolean(is_met(&targets[i], value)));
        json_array_append_new(aims, o);
    }
    json_object_set_new(all, "machine", kn_app_json_machine());
    json_object_set_new(all, "commit", json_string(kn_app_commit));
    json_object_set_new(all, "model", kn_app_json_text(path, strlen(path)));
    json_object_set_new(all, "text", kn_app_json_text(a->text, strlen(a->text)));
    json_object_set_new(all, "profile", a->profile ? kn_app_json_text(a->profile, strlen(a->profile)) : json_null());
    json_object_set_new(all, "kv_type", json_string(kn_app_kv_type_name(a->kv_type)));
    json_object_set_new(all, "prefix", json_integer(a->prefix));
    json_object_set_new(all, "columns", json_string(a->text_order ? "text" : "loudness"));
    json_object_set_new(all, "rows", rows);
    json_object_set_new(all, "targets", aims);
    json_object_set_new(all, "exact", json_boolean(!r->n_inexact));
    bool ok = kn_app_json_print(all, stdout);
    json_decref(all);
    return ok;
}

/* ---- the whole */

static void print_head(const struct kn_bench_codec_args *a, const struct kn_model *model)
{
    json_t *machine = kn_app_json_machine();
    printf("machine  %s, %" JSON_INTEGER_FORMAT " cores\ncommit   %s\nmodel    %s\ntext     %s, %" PRIu32 " tokens, %s\nprofile  %s\ncolumns  %s\n",
           json_string_value(json_object_get(machine, "cpu")), json_integer_value(json_object_get(machine, "cores")), kn_app_commit,
           kn_model_info(model)->path, a->text, a->prefix, kn_app_kv_type_name(a->kv_type), a->profile ? a->profile : "none: fine, medium and small are left out",
           a->text_order ? "as in the text" : "by loudness, as chunks have them");
    json_decref(machine);
}

int kn_bench_hevc(const struct kn_bench_codec_args *a, struct kn_model *model, const int32_t *tokens, size_t n_tokens)
{
    struct kn_err err = {0};
    struct report r = {.json = a->json};
    struct kn_codec_bench_hevc_opts o = {.size = sizeof o,
                                         .tokens = tokens,
                                         .n_tokens = n_tokens,
                                         .prefix = a->prefix,
                                         .profile_path = a->profile,
                                         .kv_type = a->kv_type,
                                         .n_threads = a->n_threads,
                                         .n_slices = a->n_slices,
                                         .seconds = (double)a->seconds,
                                         .encoders = a->encoders,
                                         .tools = a->tools,
                                         .only = a->only,
                                         .text_order = a->text_order,
                                         .ablation = a->ablation,
                                         .on_row = on_row,
                                         .progress = kn_app_on_progress,
                                         .user = &r};
    if (!a->json)
        print_head(a, model);
    kn_app_progress_init(&r.progress, true);
    enum kn_status status = kn_codec_bench_hevc(model, &o, &err);
    kn_app_progress_clear(&r.progress);
    status = status == KN_OK && r.out_of_memory ? KN_E_NOMEM : status;
    bool ok = status == KN_OK;
    if (ok && a->json) {
        ok = print_json(&r, a, model);
    } else if (ok) {
        print_preset(&r);
        print_targets(&r);
    }
    if (status)
        kn_app_fail("bench", "%s", err.text[0] ? err.text : kn_status_message(status));
    else if (r.n_inexact)
        kn_app_fail("bench", "%zu of %zu rows have streams that did not come back bit for bit (\"same\": NO)", r.n_inexact, r.n_rows);
    free(r.rows);
    return ok && !r.n_inexact ? KN_APP_EXIT_OK : KN_APP_EXIT_FAILED;
}
