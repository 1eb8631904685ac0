/* SPDX-License-Identifier: Apache-2.0 */
/* Keeps, averages and prints rows of `kinema codec eval`: see codec_report.h. */
#include "codec_report.h"

#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>


static const char *const own_names[] = {"fine", "medium", "small"};
static const char *const rival_names[] = {"cachegen", "cachegen+sinks", "cachegen-ideal", "kvtc"};
enum { N_OWN = sizeof own_names / sizeof *own_names, N_RIVALS = sizeof rival_names / sizeof *rival_names };

void kn_report_add(struct kn_report *report, const struct kn_eval_row *row)
{
    if (report->n_rows == KN_REPORT_MAX_ROWS)
        return;
    struct kn_report_row *r = &report->rows[report->n_rows++];
    snprintf(r->method, sizeof r->method, "%s", row->method);
    snprintf(r->preset, sizeof r->preset, "%s", row->preset);
    r->values = *row;
    r->values.method = r->values.preset = NULL;
}

static const struct kn_report_row *find(const struct kn_report *report, const char *method, const char *preset)
{
    for (uint32_t i = 0; i < report->n_rows; i++)
        if (!strcmp(report->rows[i].method, method) && !strcmp(report->rows[i].preset, preset))
            return &report->rows[i];
    return NULL;
}

void kn_report_mean(struct kn_report *out, const struct kn_report *reports, size_t n)
{
    out->n_rows = 0;
    for (uint32_t i = 0; n && i < reports[0].n_rows; i++) {
        struct kn_report_row mean = reports[0].rows[i];
        struct kn_eval_row *m = &mean.values;
        double raw = 0, bytes = 0, time_in = 0, time_out = 0;
        size_t n_found = 0;
        *m = (struct kn_eval_row){.exact = true};
        for (size_t k = 0; k < n; k++) {
            const struct kn_report_row *r = find(&reports[k], mean.method, mean.preset);
            if (!r)
                break;
            const struct kn_eval_row *v = &r->values;
            n_found++;
            bytes += (double)v->bytes;
            raw += v->ratio * (double)v->bytes;
            m->bits_k += v->bits_k / (double)n;
            m->bits_v += v->bits_v / (double)n;
            m->kl += v->kl / (double)n;
            m->top1 += v->top1 / (double)n;
            m->nll += v->nll / (double)n;
            m->nll_untouched += v->nll_untouched / (double)n;
            time_in += v->encode_tok_s > 0 ? 1 / v->encode_tok_s : 0;
            time_out += v->decode_tok_s > 0 ? 1 / v->decode_tok_s : 0;
            m->working_bytes = v->working_bytes > m->working_bytes ? v->working_bytes : m->working_bytes;
            m->exact = m->exact && v->exact;
        }
        if (n_found < n)
            continue;
        m->bytes = (uint64_t)(bytes / (double)n + 0.5);
        m->ratio = bytes > 0 ? raw / bytes : 0;
        m->encode_tok_s = time_in > 0 ? (double)n / time_in : 0;
        m->decode_tok_s = time_out > 0 ? (double)n / time_out : 0;
        out->rows[out->n_rows++] = mean;
    }
}

/* ---- equal KL */

struct point { double log_kl, log_bytes; };

static int by_kl(const void *a, const void *b)
{
    const struct point *x = a, *y = b;
    return x->log_kl < y->log_kl ? -1 : x->log_kl > y->log_kl;
}

double kn_report_at_kl(const struct kn_report *report, const char *rival, double kl, double bytes, bool *beyond)
{
    struct point points[KN_REPORT_MAX_ROWS];
    size_t n = 0, n_kept = 0;
    *beyond = false;
    for (uint32_t i = 0; i < report->n_rows; i++) {
        const struct kn_eval_row *v = &report->rows[i].values;
        if (!strcmp(report->rows[i].method, rival) && v->kl > 0 && v->bytes)
            points[n++] = (struct point){.log_kl = log(v->kl), .log_bytes = log((double)v->bytes)};
    }
    qsort(points, n, sizeof *points, by_kl);
    for (size_t i = 0; i < n; i++) /* more KL must mean fewer bytes */
        if (!n_kept || points[i].log_bytes < points[n_kept - 1].log_bytes)
            points[n_kept++] = points[i];
    if (n_kept < 2 || !(kl > 0) || !(bytes > 0))
        return NAN;
    double at = log(kl);
    size_t i = 0;
    while (i + 2 < n_kept && points[i + 1].log_kl < at)
        i++;
    *beyond = at < points[0].log_kl || at > points[n_kept - 1].log_kl;
    double slope = (points[i + 1].log_bytes - points[i].log_bytes) / (points[i + 1].log_kl - points[i].log_kl);
    return exp(points[i].log_bytes + slope * (at - points[i].log_kl)) / bytes;
}

static bool is_own(const struct kn_report_row *row)
{
    for (size_t i = 0; i < N_OWN; i++)
        if (!strcmp(row->method, own_names[i]))
            return true;
    return false;
}

/* ---- output */

static json_t *number(double x)
{
    return isfinite(x) ? json_real(x) : json_null(); /* JSON has no NaN */
}

static json_t *row_json(const struct kn_report_row *row)
{
    const struct kn_eval_row *v = &row->values;
    return json_pack("{s:s, s:s, s:I, s:o, s:o, s:o, s:o, s:o, s:o, s:o, s:o, s:o, s:I, s:b}", "method", row->method, "preset", row->preset, "bytes", (json_int_t)v->bytes,
                     "ratio", number(v->ratio), "bits_k", number(v->bits_k), "bits_v", number(v->bits_v), "kl", number(v->kl), "top1", number(v->top1), "nll", number(v->nll),
                     "encode_tok_s", number(v->encode_tok_s), "decode_tok_s", number(v->decode_tok_s), "nll_untouched", number(v->nll_untouched), "working_bytes",
                     (json_int_t)v->working_bytes, "exact", v->exact);
}

static json_t *equal_kl_json(const struct kn_report *report)
{
    json_t *all = json_array();
    for (uint32_t i = 0; i < report->n_rows; i++) {
        const struct kn_report_row *row = &report->rows[i];
        if (!is_own(row))
            continue;
        json_t *one = json_pack("{s:s, s:s, s:o}", "method", row->method, "preset", row->preset, "kl", number(row->values.kl)), *past = json_array();
        for (size_t k = 0; k < N_RIVALS; k++) {
            bool beyond;
            json_object_set_new(one, rival_names[k], number(kn_report_at_kl(report, rival_names[k], row->values.kl, (double)row->values.bytes, &beyond)));
            if (beyond)
                json_array_append_new(past, json_string(rival_names[k]));
        }
        json_object_set_new(one, "extrapolated", past);
        json_array_append_new(all, one);
    }
    return all;
}

json_t *kn_report_json(const struct kn_report *report, const struct kn_report_head *head)
{
    json_t *all = json_object(), *rows = json_array();
    json_object_set_new(all, "text", kn_app_json_text(head->text, strlen(head->text)));
    json_object_set_new(all, "prefix", json_integer(head->prefix));
    json_object_set_new(all, "continue", json_integer(head->continue_));
    for (uint32_t i = 0; i < report->n_rows; i++)
        json_array_append_new(rows, row_json(&report->rows[i]));
    json_object_set_new(all, "rows", rows);
    json_object_set_new(all, "equal_kl", equal_kl_json(report));
    json_object_set_new(all, "hints", head->hints ? json_incref(head->hints) : json_array());
    json_object_set_new(all, "profile", head->profile ? json_incref(head->profile) : json_null());
    json_object_set_new(all, "hevc_encoder", json_string(head->hevc_encoder));
    json_object_set_new(all, "hevc_tools", json_string(head->hevc_tools));
    json_object_set_new(all, "kv_type", json_string(kn_app_kv_type_name(head->kv_type)));
    json_object_set_new(all, "model", kn_app_json_text(head->model, strlen(head->model)));
    json_object_set_new(all, "machine", json_deep_copy(head->machine));
    json_object_set_new(all, "commit", json_string(kn_app_commit));
    return all;
}

void kn_report_print(const struct kn_report *report, const struct kn_report_head *head)
{
    bool any_own = false;
    printf("%s: prefix %" PRIu32 ", continue %" PRIu32 ", %s pool, video by %s\n\n", head->text, head->prefix, head->continue_, kn_app_kv_type_name(head->kv_type),
           head->hevc_encoder);
    printf("%-15s %-12s %12s %7s %7s %7s %9s %7s %8s %9s %9s\n", "method", "preset", "bytes", "ratio", "bits K", "bits V", "KL", "top 1", "nll", "enc tok/s", "dec tok/s");
    for (uint32_t i = 0; i < report->n_rows; i++) {
        const struct kn_report_row *row = &report->rows[i];
        const struct kn_eval_row *v = &row->values;
        any_own = any_own || is_own(row);
        printf("%-15s %-12s %12" PRIu64 " %7.2f %7.3f %7.3f %9.5f %7.4f %8.4f %9.0f %9.0f%s\n", row->method, row->preset, v->bytes, v->ratio, v->bits_k, v->bits_v, v->kl,
               v->top1, v->nll, v->encode_tok_s, v->decode_tok_s, v->exact ? "  bit for bit" : "");
    }
    size_t at;
    json_t *hint;
    json_array_foreach(head->hints, at, hint)
        printf("%s! %s\n", at ? "" : "\n", json_string_value(hint));
    if (any_own) {
        printf("\nAt equal KL, times smaller than (* beyond the rival's presets):\n%-28s", "");
        for (size_t k = 0; k < N_RIVALS; k++)
            printf(" %15s", rival_names[k]);
        putchar('\n');
    }
    for (uint32_t i = 0; any_own && i < report->n_rows; i++) {
        const struct kn_report_row *row = &report->rows[i];
        if (!is_own(row))
            continue;
        printf("%-15s %-12s", row->method, row->preset);
        for (size_t k = 0; k < N_RIVALS; k++) {
            bool beyond;
            double times = kn_report_at_kl(report, rival_names[k], row->values.kl, (double)row->values.bytes, &beyond);
            if (isnan(times))
                printf(" %15s", "-");
            else
                printf(" %14.2f%s", times, beyond ? "*" : " ");
        }
        putchar('\n');
    }
    putchar('\n');
}
