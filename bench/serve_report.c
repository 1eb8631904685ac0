/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Sums over requests and how they are printed; see bench_serve.h. TTFT: due to the first token with text. TPOT: from there to the last one, over
 * the tokens after the first; answers of one token have none. Latencies are of completed requests; failed ones are counted beside them.
 */
#include <inttypes.h>
#include <string.h>
#include <time.h>

#include "bench_serve.h"

static uint32_t under_way_at(const struct kn_load_work *work, const struct kn_load_result *results, uint32_t group, double when_s)
{
    uint32_t n = 0;
    for (uint32_t i = 0; i < work->n; i++)
        n += (group == KN_LOAD_NONE || work->requests[i].group == group) && results[i].outcome == KN_LOAD_OUTCOME_COMPLETED && results[i].due_s <= when_s &&
             results[i].end_s > when_s;
    return n;
}

/* How long requests arrived and how long they were answered. */
static void add_pace(struct kn_serve_total *t, const struct kn_load_work *work, const struct kn_load_result *results, uint32_t group)
{
    double first = 0, last = 0, end = 0, shortest = 0;
    uint32_t n = 0;
    for (uint32_t i = 0; i < work->n; i++) {
        const struct kn_load_result *r = &results[i];
        if ((group != KN_LOAD_NONE && work->requests[i].group != group) || r->outcome != KN_LOAD_OUTCOME_COMPLETED)
            continue;
        first = !n || r->due_s < first ? r->due_s : first;
        last = !n || r->due_s > last ? r->due_s : last;
        end = !n || r->end_s > end ? r->end_s : end;
        shortest = !n || r->end_s - r->due_s < shortest ? r->end_s - r->due_s : shortest;
        n++;
    }
    if (n < 2)
        return;
    t->arrivals_s += last - first;
    t->busy_s += end - first - shortest;
    t->n_half += under_way_at(work, results, group, (first + last) / 2);
    t->n_last += under_way_at(work, results, group, last);
}

bool kn_serve_total_saturated(const struct kn_serve_total *t)
{
    return t->n_completed >= 10 && (t->arrivals_s < 0.95 * t->busy_s || t->n_last > 2 * t->n_half + 3 * t->n_runs);
}

void kn_serve_total_add(struct kn_serve_total *t, const struct kn_serve_args *args, const struct kn_load_work *work,
                        const struct kn_load_result *results, uint32_t group, double seconds)
{
    uint64_t before = t->n_tokens;
    for (uint32_t i = 0; i < work->n; i++) {
        const struct kn_load_result *r = &results[i];
        if (group != KN_LOAD_NONE && work->requests[i].group != group)
            continue;
        if (r->outcome == KN_LOAD_OUTCOME_UNSENT) {
            t->n_unsent++;
            continue;
        }
        kn_samples_add(&t->late, r->sent_s - r->due_s);
        if (r->outcome == KN_LOAD_OUTCOME_FAILED) {
            if (!t->n_failed++)
                snprintf(t->error, sizeof t->error, "%s", r->error);
            continue;
        }
        double ttft = r->first_s - r->due_s, tpot = r->n_tokens > 1 ? (r->last_s - r->first_s) / (r->n_tokens - 1) : 0;
        t->n_completed++;
        t->n_tokens += r->n_tokens;
        t->n_prompt += r->n_prompt;
        t->n_cached += r->n_cached;
        kn_samples_add(&t->ttft, ttft);
        kn_samples_add(&t->e2e, r->end_s - r->due_s);
        if (r->n_tokens > 1)
            kn_samples_add(&t->tpot, tpot);
        t->n_good += (args->slo_ttft_ms <= 0 || ttft * 1e3 <= args->slo_ttft_ms) && (args->slo_tpot_ms <= 0 || tpot * 1e3 <= args->slo_tpot_ms);
    }
    if (t->n_runs < KN_SERVE_MAX_REPEAT)
        t->speeds[t->n_runs] = seconds > 0 ? (double)(t->n_tokens - before) / seconds : 0;
    t->n_runs++;
    if (!args->n_clients)
        add_pace(t, work, results, group);
    t->seconds += seconds;
}

void kn_serve_total_fini(struct kn_serve_total *t)
{
    kn_samples_fini(&t->ttft);
    kn_samples_fini(&t->tpot);
    kn_samples_fini(&t->e2e);
    kn_samples_fini(&t->late);
}

static double per_second(const struct kn_serve_total *t, uint64_t n)
{
    return t->seconds > 0 ? (double)n / t->seconds : 0;
}

double kn_serve_total_speed(const struct kn_serve_total *t)
{
    return per_second(t, t->n_tokens);
}

/* ---- JSON */

static json_t *latency_json(struct kn_samples *s)
{
    return json_pack("{s:f,s:f,s:f,s:f,s:f}", "p50", kn_samples_quantile(s, 0.5) * 1e3, "p90", kn_samples_quantile(s, 0.9) * 1e3, "p99",
                     kn_samples_quantile(s, 0.99) * 1e3, "max", kn_samples_quantile(s, 1) * 1e3, "mean", kn_samples_mean(s) * 1e3);
}

json_t *kn_serve_total_json(struct kn_serve_total *t)
{
    json_t *o = json_object(), *speeds = json_array();
    json_object_set_new(o, "completed", json_integer((json_int_t)t->n_completed));
    json_object_set_new(o, "failed", json_integer((json_int_t)t->n_failed));
    json_object_set_new(o, "unsent", json_integer((json_int_t)t->n_unsent));
    json_object_set_new(o, "error", t->n_failed ? kn_app_json_text(t->error, strlen(t->error)) : json_null());
    json_object_set_new(o, "seconds", json_real(t->seconds));
    json_object_set_new(o, "ttft_ms", latency_json(&t->ttft));
    json_object_set_new(o, "tpot_ms", latency_json(&t->tpot));
    json_object_set_new(o, "e2e_ms", latency_json(&t->e2e));
    json_object_set_new(o, "tokens_out", json_integer((json_int_t)t->n_tokens));
    json_object_set_new(o, "tokens_prompt", json_integer((json_int_t)t->n_prompt));
    json_object_set_new(o, "tokens_cached", json_integer((json_int_t)t->n_cached));
    json_object_set_new(o, "tokens_out_s", json_real(kn_serve_total_speed(t)));
    json_object_set_new(o, "tokens_prompt_s", json_real(per_second(t, t->n_prompt)));
    json_object_set_new(o, "requests_s", json_real(per_second(t, t->n_completed)));
    json_object_set_new(o, "saturated", t->arrivals_s > 0 ? json_boolean(kn_serve_total_saturated(t)) : json_null());
    json_object_set_new(o, "goodput_s", json_real(per_second(t, t->n_good)));
    for (uint32_t i = 0; i < t->n_runs && i < KN_SERVE_MAX_REPEAT; i++)
        json_array_append_new(speeds, json_real(t->speeds[i]));
    json_object_set_new(o, "tokens_out_s_runs", speeds);
    json_object_set_new(o, "late_ms", latency_json(&t->late));
    json_object_set_new(o, "server_peak_bytes", t->peak_bytes ? json_integer((json_int_t)t->peak_bytes) : json_null());
    return o;
}

json_t *kn_serve_head_json(const struct kn_serve_args *a, const struct kn_load_work *work)
{
    const struct kn_load_mix_opts *m = &a->mix;
    char date[32] = "";
    time_t now = time(NULL);
    struct tm utc;
    if (gmtime_r(&now, &utc))
        strftime(date, sizeof date, "%Y-%m-%dT%H:%M:%SZ", &utc);
    json_t *o = json_object(), *load = json_object();
    json_object_set_new(o, "machine", kn_app_json_machine());
    json_object_set_new(o, "commit", json_string(kn_app_commit));
    const char *model = a->url ? a->url : a->model_path;
    json_object_set_new(o, a->url ? "url" : "model", kn_app_json_text(model, strlen(model)));
    json_object_set_new(o, "date", json_string(date));
    json_object_set_new(o, "scenario", json_string(kn_serve_scenario_names[a->scenario]));
    json_object_set_new(o, "threads", a->n_threads ? json_integer(a->n_threads) : json_null());
    json_object_set_new(load, "loop", json_string(a->n_clients ? "closed" : "open"));
    json_object_set_new(load, "clients", a->n_clients ? json_integer(a->n_clients) : json_null());
    json_object_set_new(load, "rate", a->n_clients ? json_null() : json_real(m->rate));
    json_object_set_new(load, "mix", json_string(kn_load_mix_names[m->mix]));
    json_object_set_new(load, "requests", json_integer(work->n));
    json_object_set_new(load, "prompt_tokens", json_pack("[i,i]", (int)m->prompt_low, (int)m->prompt_high));
    json_object_set_new(load, "shared_tokens", m->mix == KN_LOAD_MIX_SHARED ? json_integer(m->shared_words) : json_null());
    json_object_set_new(load, "question_tokens", m->mix != KN_LOAD_MIX_UNIQUE ? json_integer(m->question_words) : json_null());
    json_object_set_new(load, "turns", m->mix == KN_LOAD_MIX_TURNS ? json_integer(m->n_turns) : json_null());
    json_object_set_new(load, "max_tokens", json_pack("[i,i]", (int)m->new_low, (int)m->new_high));
    json_object_set_new(load, "ignore_eos", json_boolean(a->ignore_eos));
    json_object_set_new(load, "temperature", json_real((double)a->temperature));
    json_object_set_new(load, "seed", json_integer((json_int_t)m->seed));
    json_object_set_new(load, "repeat", json_integer(a->repeat));
    json_object_set_new(load, "slo_ttft_ms", a->slo_ttft_ms > 0 ? json_real(a->slo_ttft_ms) : json_null());
    json_object_set_new(load, "slo_tpot_ms", a->slo_tpot_ms > 0 ? json_real(a->slo_tpot_ms) : json_null());
    json_object_set_new(o, "load", load);
    return o;
}

json_t *kn_serve_target(const char *what, double is, double at_least, double at_most)
{
    json_t *o = json_pack("{s:s,s:f}", "what", what, "is", is);
    if (at_least > 0) {
        json_object_set_new(o, "at_least", json_real(at_least));
        json_object_set_new(o, "met", json_boolean(is >= at_least));
    }
    if (at_most > 0) {
        json_object_set_new(o, "at_most", json_real(at_most));
        json_object_set_new(o, "met", json_boolean(is <= at_most && is > 0));
    }
    return o;
}

/* ---- for people */

void kn_serve_print_head(const struct kn_serve_args *a, const json_t *head)
{
    const struct kn_load_mix_opts *m = &a->mix;
    const json_t *machine = json_object_get(head, "machine"), *load = json_object_get(head, "load");
    const char *cpu = json_string_value(json_object_get(machine, "cpu"));
    printf("machine  %s, %" JSON_INTEGER_FORMAT " cores\ncommit   %s\n%s %s\ndate     %s\nload     ", cpu ? cpu : "unknown",
           json_integer_value(json_object_get(machine, "cores")), kn_app_commit, a->url ? "url     " : "model   ", a->url ? a->url : a->model_path,
           json_string_value(json_object_get(head, "date")));
    if (a->n_clients)
        printf("closed loop, %" PRIu32 " clients (latencies from the sending)", a->n_clients);
    else
        printf("open loop, Poisson, %.3g requests/s (latencies from the arrival)", m->rate);
    printf("; %" JSON_INTEGER_FORMAT " requests, mix %s, ", json_integer_value(json_object_get(load, "requests")), kn_load_mix_names[m->mix]);
    if (m->mix == KN_LOAD_MIX_SHARED)
        printf("%" PRIu32 " shared + %" PRIu32, m->shared_words, m->question_words);
    else
        printf("%" PRIu32 "-%" PRIu32, m->prompt_low, m->prompt_high);
    printf(" prompt tokens, %" PRIu32 "-%" PRIu32 " new%s, seed %" PRIu64 ", %" PRIu32 " run%s\n\n", m->new_low, m->new_high,
           a->ignore_eos ? "" : " at most", m->seed, a->repeat, a->repeat == 1 ? "" : "s each");
}

static void print_latencies(const char *what, const char *const *names, struct kn_serve_total *const *totals, size_t n, size_t offset)
{
    for (size_t i = 0; i < n; i++) {
        struct kn_samples *s = (struct kn_samples *)(void *)((char *)totals[i] + offset);
        printf("%-18s %-18s %10.1f %10.1f %10.1f %10.1f\n", i ? "" : what, names[i], kn_samples_quantile(s, 0.5) * 1e3, kn_samples_quantile(s, 0.9) * 1e3,
               kn_samples_quantile(s, 0.99) * 1e3, kn_samples_mean(s) * 1e3);
    }
}

void kn_serve_print_totals(const struct kn_serve_args *args, const char *const *names, struct kn_serve_total *const *totals, size_t n)
{
    printf("%-18s %9s %7s %10s %13s %9s %10s %9s %10s\n", "server", "completed", "failed", "tokens/s", "prompt tok/s", "cached", "requests/s",
           "goodput/s", "memory");
    for (size_t i = 0; i < n; i++) {
        struct kn_serve_total *t = totals[i];
        printf("%-18s %9" PRIu64 " %7" PRIu64 " %10.1f %13.1f %8.0f%% %10.3f %9.3f %10s\n", names[i], t->n_completed, t->n_failed + t->n_unsent,
               kn_serve_total_speed(t), per_second(t, t->n_prompt), t->n_prompt ? 100.0 * (double)t->n_cached / (double)t->n_prompt : 0,
               per_second(t, t->n_completed), per_second(t, t->n_good), t->peak_bytes ? kn_app_bytes_text((double)t->peak_bytes) : "-");
    }
    printf("\n%-18s %-18s %10s %10s %10s %10s\n", "milliseconds", "server", "p50", "p90", "p99", "mean");
    print_latencies("TTFT", names, totals, n, offsetof(struct kn_serve_total, ttft));
    print_latencies("TPOT", names, totals, n, offsetof(struct kn_serve_total, tpot));
    print_latencies("end to end", names, totals, n, offsetof(struct kn_serve_total, e2e));
    print_latencies("generator late", names, totals, n, offsetof(struct kn_serve_total, late));
    if (args->slo_ttft_ms > 0 || args->slo_tpot_ms > 0)
        printf("\ngoodput: TTFT within %.0f ms, TPOT within %.0f ms (0: not demanded)\n", args->slo_ttft_ms, args->slo_tpot_ms);
    for (size_t i = 0; i < n; i++)
        if (kn_serve_total_saturated(totals[i]))
            printf("\n%s is saturated: completed/s below the arrival rate (%.3f of it; %.1f requests under way halfway, %.1f at the last arrival).\n"
                   "Its latencies are mostly waiting in line and grow with the length of the run; compare them at a lower --rate.\n",
                   names[i], totals[i]->busy_s > 0 ? totals[i]->arrivals_s / totals[i]->busy_s : 1, (double)totals[i]->n_half / totals[i]->n_runs,
                   (double)totals[i]->n_last / totals[i]->n_runs);
    for (size_t i = 0; i < n; i++)
        if (totals[i]->n_failed)
            printf("\nfirst failure of %s: %s\n", names[i], totals[i]->error);
}

void kn_serve_print_targets(const json_t *targets)
{
    size_t i;
    const json_t *t;
    if (json_array_size(targets))
        putchar('\n');
    json_array_foreach(targets, i, t) {
        const json_t *least = json_object_get(t, "at_least"), *most = json_object_get(t, "at_most"), *met = json_object_get(t, "met");
        printf("%-66s %8.3f", json_string_value(json_object_get(t, "what")), json_number_value(json_object_get(t, "is")));
        if (least || most)
            printf("   %s %.2f: %s", least ? "at least" : "at most", json_number_value(least ? least : most), json_is_true(met) ? "met" : "NOT met");
        putchar('\n');
    }
}
