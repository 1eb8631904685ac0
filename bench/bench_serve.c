/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The load scenarios of kinema bench serve: our server, and llama.cpp's, under the same load in one session. And the runs of all scenarios.
 *
 *     round 0: ours, peers | round 1: peers, ours | ...        each run on a fresh process: cold caches, nothing else loaded
 *
 * Round r asks the prompts of seed + r, the same of both. A run: start, a short request to warm up, the load, stop. Settings of the peer are those
 * that its own documentation recommends for the load; they are printed, and --peer-args changes them.
 */
#include "bench_serve.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "last_words.h"

enum { OURS, MAX_SIDES = 1 + KN_SERVE_MAX_SETTINGS }; /* side 1 + i: the peer with peer_parallel[i] slots */

struct bench {
    struct kn_serve_args *args;
    struct kn_load_work work;
    struct kn_load_result *results; /* [work.n] */
    struct kn_serve_total totals[MAX_SIDES];
    char names[MAX_SIDES][32];
    char peer_settings[MAX_SIDES][1024]; /* as printed; [0]: empty */
    int n_sides;
    char *model_name;               /* of --url, from malloc; or NULL */
    char peer_words[1024];          /* --peer-args, cut into words */
};

/* ---- one run (bench_serve.h) */

struct tick {
    struct kn_app_progress progress;
    const char *label;
    uint32_t n;
};

static bool on_tick(void *user, uint32_t n_ended, uint32_t n_under_way)
{
    struct tick *tick = user;
    char what[128];
    snprintf(what, sizeof what, "%s (%" PRIu32 " under way)", tick->label, n_under_way);
    kn_app_progress_show(&tick->progress, what, n_ended, tick->n, "requests");
    return !kn_app_interrupted();
}

/* The generator's callbacks share one user: the work, and behind it the line. */
struct run {
    struct kn_load_work *work;
    struct tick tick;
};

static char *run_body(void *user, uint32_t index, const char *answer)
{
    return kn_load_work_body(((struct run *)user)->work, index, answer);
}

static bool run_tick(void *user, uint32_t n_ended, uint32_t n_under_way)
{
    return on_tick(&((struct run *)user)->tick, n_ended, n_under_way);
}

bool kn_serve_run_load(const struct kn_serve_args *args, struct kn_load_work *work, const char *url, const char *label, struct kn_load_result *results,
                       double *seconds)
{
    const char *why;
    struct run run = {.work = work, .tick = {.label = label, .n = work->n}};
    struct kn_load_plan plan = {.url = url, .api_key = args->api_key, .requests = work->requests, .n_requests = work->n, .n_clients = args->n_clients,
                                .timeout_ms = args->timeout_ms, .body = run_body, .tick = run_tick, .user = &run};
    memset(results, 0, work->n * sizeof *results);
    kn_app_progress_init(&run.tick.progress, !args->quiet);
    bool ok = kn_load_run(&plan, results, seconds, &why);
    kn_app_progress_clear(&run.tick.progress);
    if (!ok)
        kn_app_fail("bench", "%s", why);
    else if (kn_app_interrupted())
        kn_app_fail("bench", "interrupted");
    return ok && !kn_app_interrupted();
}

bool kn_serve_warm_up(const struct kn_serve_args *args, const struct kn_load_style *style, const char *url)
{
    struct kn_serve_args quiet = *args;
    struct kn_load_mix_opts mix = {.n_requests = 1, .prompt_low = 32, .prompt_high = 32, .new_low = 8, .new_high = 8, .seed = args->mix.seed ^ 0x3a3a};
    struct kn_load_work work;
    struct kn_load_result result = {0};
    double seconds;
    bool ok = kn_load_work_make(&work, &mix);
    quiet.quiet = true;
    if (!ok) {
        kn_app_fail("bench", "out of memory");
    } else {
        work.style = *style;
        work.items[0].no_publish = true;
        ok = kn_serve_run_load(&quiet, &work, url, "", &result, &seconds);
        if (ok && result.outcome != KN_LOAD_OUTCOME_COMPLETED)
            ok = !kn_app_fail("bench", "the server refuses a short request: %s", result.error);
    }
    kn_load_work_fini(&work);
    return ok;
}

bool kn_serve_start_ours(const struct kn_serve_args *args, struct kn_serve_child *child, const char *const *more, size_t n_more)
{
    const char *list[KN_SERVE_MAX_ARGS];
    char threads[16], ctx[16];
    size_t n = 0;
    list[n++] = "serve";
    list[n++] = "-m";
    list[n++] = args->model_path;
    if (args->n_threads) {
        snprintf(threads, sizeof threads, "%" PRIu32, args->n_threads);
        list[n++] = "-t";
        list[n++] = threads;
    }
    if (args->n_ctx) {
        snprintf(ctx, sizeof ctx, "%" PRIu32, args->n_ctx);
        list[n++] = "-c";
        list[n++] = ctx;
    }
    for (size_t i = 0; i < n_more && n < KN_SERVE_MAX_ARGS; i++)
        list[n++] = more[i];
    for (size_t i = 0; i < args->n_extra && n < KN_SERVE_MAX_ARGS; i++)
        list[n++] = args->extra[i];
    struct kn_serve_child_opts opts = {.program = args->ours, .args = list, .n_args = n, .ready_ms = KN_SERVE_READY_MS};
    return kn_serve_child_start(child, &opts);
}

static bool start_peer(struct bench *b, int side, struct kn_serve_child *child)
{
    const struct kn_serve_args *a = b->args;
    const char *list[KN_SERVE_MAX_ARGS];
    char threads[16], ctx[24], slots[16];
    size_t n = 0;
    uint32_t n_slots = a->peer_parallel[side - 1];
    uint64_t per_slot = a->n_ctx ? a->n_ctx : kn_serve_args_longest(a);
    snprintf(threads, sizeof threads, "%" PRIu32, a->n_threads);
    snprintf(ctx, sizeof ctx, "%" PRIu64, per_slot * n_slots);
    snprintf(slots, sizeof slots, "%" PRIu32, n_slots);
    const char *usual[] = {"-m", a->model_path, "-c", ctx, "--parallel", slots, "--cache-prompt", "-t", threads, "-tb", threads};
    size_t n_usual = sizeof usual / sizeof *usual;
    for (size_t i = 0; i < n_usual; i++)
        list[n++] = usual[i];
    snprintf(b->peer_words, sizeof b->peer_words, "%s", a->peer_args ? a->peer_args : "");
    for (char *rest = b->peer_words, *word; (word = strsep(&rest, " "));)
        if (*word && n < KN_SERVE_MAX_ARGS)
            list[n++] = word;
    char *settings = b->peer_settings[side];
    size_t at = 0, room = sizeof b->peer_settings[side];
    for (size_t i = 2; i < n && at < room; i++)
        at += (size_t)snprintf(settings + at, room - at, "%s%s", i > 2 ? " " : "", list[i]);
    struct kn_serve_child_opts opts = {.program = a->llama, .args = list, .n_args = n, .ready_ms = KN_SERVE_READY_MS};
    return kn_serve_child_start(child, &opts);
}

static bool run_side(struct bench *b, int side, uint32_t round)
{
    struct kn_serve_args *a = b->args;
    struct kn_serve_child child = {0};
    char label[64];
    double seconds;
    int status = 0;
    struct kn_load_style *style = &b->work.style;
    *style = (struct kn_load_style){.model = a->model_name ? a->model_name : b->model_name ? b->model_name : "default", .temperature = a->temperature,
                                    .ignore_eos = a->ignore_eos, .cache_prompt = side != OURS, .ours = side == OURS && !a->url};
    snprintf(label, sizeof label, "%s, run %" PRIu32 " of %" PRIu32, b->names[side], round + 1, a->repeat);
    bool ok = a->url ? true : side == OURS ? kn_serve_start_ours(a, &child, NULL, 0) : start_peer(b, side, &child);
    const char *url = a->url ? a->url : child.url;
    if (ok && !a->url && !a->model_name) {
        free(b->model_name);
        b->model_name = kn_serve_ask_model(url, NULL);
        style->model = b->model_name ? b->model_name : "default";
    }
    ok = ok && kn_serve_warm_up(a, style, url) && kn_serve_run_load(a, &b->work, url, label, b->results, &seconds);
    b->totals[side].peak_bytes = ok && kn_serve_child_peak(&child) > b->totals[side].peak_bytes ? kn_serve_child_peak(&child) : b->totals[side].peak_bytes;
    if (child.pid > 0 && !kn_serve_child_lives(&child, side == OURS ? "our server" : a->llama, ok || kn_app_interrupted() ? 0 : 2000))
        ok = false; /* its figures would be those of a dead server */
    kn_serve_child_stop(&child, KN_SERVE_DRAIN_MS, &status);
    char how[KN_HOW_ENDED_BYTES];
    kn_how_ended(status, how);
    if (ok && side == OURS && !a->url && status)
        ok = !kn_app_fail("bench", "our server did not end well (it %s): run it by hand to see why", how);
    if (ok)
        kn_serve_total_add(&b->totals[side], a, &b->work, b->results, KN_LOAD_NONE, seconds);
    return ok;
}

/* ---- report */

/* The best of the peer's settings for one figure. */
static double best_peer(struct bench *b, double (*figure)(struct kn_serve_total *), bool more_is_better)
{
    double best = 0;
    for (int i = 1; i < b->n_sides; i++) {
        double value = b->totals[i].n_completed ? figure(&b->totals[i]) : 0;
        if (value > 0 && (best <= 0 || (more_is_better ? value > best : value < best)))
            best = value;
    }
    return best;
}

static double speed_of(struct kn_serve_total *t) { return kn_serve_total_speed(t); }
static double requests_of(struct kn_serve_total *t) { return t->seconds > 0 ? (double)t->n_completed / t->seconds : 0; }
static double ttft_of(struct kn_serve_total *t) { return kn_samples_quantile(&t->ttft, 0.5); }
static double tpot_of(struct kn_serve_total *t) { return kn_samples_quantile(&t->tpot, 0.5); }

static json_t *targets_of(struct bench *b)
{
    const struct {
        const char *what;
        double (*figure)(struct kn_serve_total *);
        bool more_is_better;
        double at_least, at_most;
    } rows[] = {
        {"tokens out per second, ours over the peer's", speed_of, true, b->args->scenario == KN_SERVE_SCENARIO_THROUGHPUT ? 1.3 : 0, 0},
        {"requests per second, ours over the peer's", requests_of, true, 0, 0},
        {"median TTFT, ours over the peer's", ttft_of, false, 0, b->args->scenario == KN_SERVE_SCENARIO_SHARED ? 1.0 / 3 : 0},
        {"median TPOT, ours over the peer's", tpot_of, false, 0, 0},
    };
    json_t *all = json_array();
    bool peer_saturated = b->n_sides > 1; /* in each of its settings */
    for (int i = 1; i < b->n_sides; i++)
        peer_saturated = peer_saturated && kn_serve_total_saturated(&b->totals[i]);
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        double peer = best_peer(b, rows[i].figure, rows[i].more_is_better), ours = rows[i].figure(&b->totals[OURS]);
        char what[96];
        snprintf(what, sizeof what, "%s%s", rows[i].what, peer_saturated ? " (saturated)" : "");
        if (peer > 0 && ours > 0)
            json_array_append_new(all, kn_serve_target(what, ours / peer, rows[i].at_least, rows[i].at_most));
    }
    return all;
}

static void report(struct bench *b)
{
    struct kn_serve_args *a = b->args;
    struct kn_serve_total *totals[MAX_SIDES];
    const char *names[MAX_SIDES];
    json_t *head = kn_serve_head_json(a, &b->work), *targets = targets_of(b), *servers = json_object(), *settings = json_object();
    json_t *build = a->peer ? kn_peer_build(a->llama) : NULL;
    for (int i = 0; i < b->n_sides; i++) {
        totals[i] = &b->totals[i];
        names[i] = b->names[i];
        if (a->json)
            json_object_set_new(servers, names[i], kn_serve_total_json(totals[i]));
        if (i)
            json_object_set_new(settings, names[i], json_string(b->peer_settings[i]));
    }
    if (a->json) {
        json_object_set(head, "servers", servers);
        json_object_set(head, "targets", targets);
        json_object_set(head, "peer_settings", settings);
        json_object_set(head, "peer_build", build ? build : json_null());
        kn_app_json_print(head, stdout);
    } else {
        kn_serve_print_head(a, head);
        kn_serve_print_totals(a, names, totals, (size_t)b->n_sides);
        kn_serve_print_targets(targets);
        for (int i = 1; i < b->n_sides; i++)
            printf("%s%s: %s\n", i == 1 ? "\nratios: the better of the peer's settings for each figure. Settings:\n" : "", names[i], b->peer_settings[i]);
        if (build)
            printf("llama.cpp built %s\n", json_string_value(json_object_get(build, "note")));
    }
    json_decref(build);
    json_decref(servers);
    json_decref(settings);
    json_decref(targets);
    json_decref(head);
}

/* ---- all of it */

char *kn_serve_ask_model(const char *url, const char *api_key)
{
    char *body = kn_serve_get(url, "/v1/models", api_key, 5000), *name = NULL;
    json_t *list = body ? json_loads(body, 0, NULL) : NULL;
    const char *id = json_string_value(json_object_get(json_array_get(json_object_get(list, "data"), 0), "id"));
    if (id)
        name = strdup(id);
    json_decref(list);
    free(body);
    return name;
}

static bool run_all(struct bench *b)
{
    struct kn_serve_args *a = b->args;
    uint64_t seed = a->mix.seed;
    bool ok = true;
    b->n_sides = a->peer ? 1 + (int)a->n_peer_parallel : 1;
    snprintf(b->names[OURS], sizeof b->names[OURS], a->url ? "server" : "ours");
    for (int i = 1; i < b->n_sides; i++)
        snprintf(b->names[i], sizeof b->names[i], "llama.cpp x%" PRIu32, a->peer_parallel[i - 1]);
    if (a->url && !a->model_name)
        b->model_name = kn_serve_ask_model(a->url, a->api_key);
    for (uint32_t round = 0; ok && round < a->repeat; round++) {
        struct kn_load_mix_opts mix = a->mix;
        mix.seed = seed + round;
        mix.rate = a->n_clients ? 0 : mix.rate;
        kn_load_work_fini(&b->work);
        free(b->results);
        b->results = NULL;
        if (!kn_load_work_make(&b->work, &mix))
            return !kn_app_fail("bench", "the load has no request: a longer --duration or a higher --rate has some");
        if (!(b->results = calloc(b->work.n, sizeof *b->results)))
            return !kn_app_fail("bench", "out of memory");
        for (int i = 0; ok && i < b->n_sides; i++)
            ok = run_side(b, round % 2 ? b->n_sides - 1 - i : i, round);
    }
    return ok;
}

int kn_serve_compare(struct kn_serve_args *args)
{
    struct bench *b = calloc(1, sizeof *b);
    if (!b)
        return kn_app_fail("bench", "out of memory");
    b->args = args;
    bool ok = run_all(b);
    if (ok)
        report(b);
    for (int i = 0; i < MAX_SIDES; i++)
        kn_serve_total_fini(&b->totals[i]);
    kn_load_work_fini(&b->work);
    free(b->results);
    free(b->model_name);
    free(b);
    return ok ? KN_APP_EXIT_OK : KN_APP_EXIT_FAILED;
}
