/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Scenario "fetch" of kinema bench serve: do requests that wait for a slow store hold up those that do not?
 *
 *     prepare    our server on an empty store; every prefix is asked once and published; the server ends
 *     none       a fresh server on the same store, whose reads now take --fetch-delay; only requests that need no fetch
 *     memory     the same requests at the same times, and between them requests that begin with a prefix; no store: the server computed the
 *                prefixes before the clock started and has them in its pool
 *     separate   the same requests as in memory, but their prefixes are in the store: one fetch each
 *     inline     the same again, --fetch-queue inline: a step waits for the fetches that it meets, as in engines without a queue for them
 *
 * The store is "fault:CONTROL:lmdb:PATH", whose control file makes it slow (doc/store-faults.md). Each server is a fresh process, so every prefix must be
 * fetched again, and each is asked once a run. Latencies compared are those of the requests that need no fetch.
 *
 * Two questions, two rows: "separate over none" is what a user sees when others with a fetch join, their arithmetic included; "separate over
 * memory" leaves the fetching alone, as all requests of both compute the same. Order: run 0 none first, run 1 backwards, and every two runs
 * another setting begins, so that a drift of the machine favours none. All servers have the same pool, large enough that nothing is dropped.
 */
#include <errno.h>
#include <ftw.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "bench_serve.h"
#include "last_words.h"

enum { NONE, MEMORY, SEPARATE, INLINE, N_SETTINGS };
enum { GROUP_PLAIN = 0, GROUP_FETCH = 1, QUESTION_WORDS = 8, FETCH_NEW = 4, CHUNK = 256, LEAST_CACHED = 200 };
static const char *const setting_names[N_SETTINGS] = {"none", "memory", "separate", "inline"};

struct fetch {
    struct kn_serve_args *args;
    struct kn_load_work work[N_SETTINGS], prefixes; /* prefixes: all of them, once, before the clock starts */
    struct kn_load_result *results;                 /* for the longest of them */
    struct kn_serve_total plain[N_SETTINGS], fetching[N_SETTINGS];
    uint32_t n_fetches;
    uint64_t pool_bytes; /* of every server */
    char folder[256], store[800], control[300];
};

/* ---- the store and its faults */

static int remove_one(const char *path, const struct stat *s, int kind, struct FTW *ftw)
{
    (void)s, (void)kind, (void)ftw;
    return remove(path);
}

static bool make_folder(struct fetch *f)
{
    const char *base = getenv("TMPDIR");
    snprintf(f->folder, sizeof f->folder, "%s/kinema-bench-fetch-XXXXXX", base && *base && strlen(base) < 200 ? base : "/tmp");
    if (!mkdtemp(f->folder)) {
        kn_app_fail("bench", "cannot make a folder for the store (%s): %s", f->folder, strerror(errno));
        f->folder[0] = '\0';
        return false;
    }
    snprintf(f->control, sizeof f->control, "%s/control", f->folder);
    snprintf(f->store, sizeof f->store, "fault:%s:lmdb:%s/store", f->control, f->folder);
    return true;
}

static bool set_delay(struct fetch *f, uint32_t ms)
{
    FILE *file = fopen(f->control, "we");
    bool ok = file && (!ms || fprintf(file, "delay-get-ms %" PRIu32 "\n", ms) > 0);
    ok = file && !fclose(file) && ok;
    if (!ok)
        kn_app_fail("bench", "cannot write %s: %s", f->control, strerror(errno));
    return ok;
}

/* ---- the works */

static bool add_fetches(struct fetch *f, struct kn_load_work *work, uint64_t seed)
{
    struct kn_serve_args *a = f->args;
    struct kn_arrivals arrivals;
    kn_arrivals_init(&arrivals, a->fetch_rate, seed ^ 0xfe7c4);
    for (uint32_t i = 0; i < f->n_fetches; i++) {
        struct kn_load_item item = {.system_seed = a->mix.seed * 1000003u + i, .system_words = a->fetch_words, .seed = seed * 7919u + i,
                                    .n_words = QUESTION_WORDS, .n_new = FETCH_NEW, .no_publish = true};
        double at_s = kn_arrivals_next(&arrivals);
        if (at_s >= a->mix.duration_s)
            break; /* some prefixes stay unasked */
        if (!kn_load_work_add(work, &item, at_s, GROUP_FETCH))
            return false;
    }
    kn_load_work_sort(work);
    return true;
}

static bool make_works(struct fetch *f, uint32_t round)
{
    struct kn_serve_args *a = f->args;
    struct kn_load_mix_opts mix = a->mix;
    size_t most = f->n_fetches;
    mix.seed += round;
    for (int s = 0; s < N_SETTINGS; s++) {
        kn_load_work_fini(&f->work[s]);
        if (!kn_load_work_make(&f->work[s], &mix))
            return !kn_app_fail("bench", "the load has no request: a longer --duration or a higher --rate has some");
        for (uint32_t i = 0; i < f->work[s].n; i++)
            f->work[s].items[i].no_fetch = f->work[s].items[i].no_publish = true;
        if (s != NONE && !add_fetches(f, &f->work[s], mix.seed))
            return !kn_app_fail("bench", "out of memory");
        most = f->work[s].n > most ? f->work[s].n : most;
    }
    free(f->results);
    f->results = calloc(most, sizeof *f->results);
    return f->results || !kn_app_fail("bench", "out of memory");
}

/* All prefixes, once. A store has whole chunks only, a pool shares every token: the pool's are cut to whole chunks, so that as many tokens are
 * left to compute, but for the few with which the chat template begins. */
static bool make_prefixes(struct fetch *f, bool in_store)
{
    uint32_t n_words = in_store ? f->args->fetch_words : f->args->fetch_words / CHUNK * CHUNK;
    kn_load_work_fini(&f->prefixes);
    for (uint32_t i = 0; i < f->n_fetches; i++) {
        struct kn_load_item item = {.system_seed = f->args->mix.seed * 1000003u + i, .system_words = n_words, .seed = i,
                                    .n_words = QUESTION_WORDS, .n_new = 1};
        if (!kn_load_work_add(&f->prefixes, &item, 0, GROUP_FETCH))
            return !kn_app_fail("bench", "out of memory");
    }
    return true;
}

/* Room for the prefixes and for all else that a run asks, since a pool drops what was used longest ago. After make_works. */
static bool size_pool(struct fetch *f)
{
    enum { TEMPLATE = 96 };
    struct kn_serve_args *a = f->args;
    struct kn_model *model = NULL;
    struct kn_err err = {0};
    struct kn_model_opts opts = {.size = sizeof opts, .path = a->model_path};
    if (kn_model_open(&model, &opts, &err))
        return !kn_app_fail("bench", "%s", err.text);
    uint64_t prefix = a->fetch_words + (uint64_t)a->fetch_words / 16 + TEMPLATE, plain = (uint64_t)a->mix.prompt_high + a->mix.new_high + TEMPLATE;
    uint64_t n_tokens = 2 * (f->n_fetches * prefix + f->work[NONE].n * plain) + a->n_ctx;
    f->pool_bytes = n_tokens * kn_model_info(model)->kv_bytes_per_token;
    kn_model_close(&model);
    return true;
}

/* ---- servers */

static bool start(struct fetch *f, struct kn_serve_child *child, int setting)
{
    char pool[24];
    snprintf(pool, sizeof pool, "%" PRIu64, f->pool_bytes);
    const char *more[] = {"--pool-size", pool, "--store", f->store, "--preset", "exact", "--fetch-queue", setting == INLINE ? "inline" : "separate"};
    return kn_serve_start_ours(f->args, child, more, setting == MEMORY ? 2 : sizeof more / sizeof *more);
}

static bool end(struct kn_serve_child *child, bool ok)
{
    int status = 0;
    kn_serve_child_stop(child, KN_SERVE_DRAIN_MS, &status);
    char how[KN_HOW_ENDED_BYTES];
    kn_how_ended(status, how);
    if (ok && status)
        return !kn_app_fail("bench", "our server did not end well (it %s): run it by hand to see why", how);
    return ok;
}

static bool run(struct fetch *f, struct kn_load_work *work, const char *url, const char *label, uint32_t n_clients, double *seconds)
{
    struct kn_serve_args args = *f->args;
    char *model = args.model_name ? NULL : kn_serve_ask_model(url, NULL);
    work->style = (struct kn_load_style){.model = args.model_name ? args.model_name : model ? model : "default", .temperature = args.temperature,
                                         .ignore_eos = args.ignore_eos, .ours = true};
    args.n_clients = n_clients;
    bool ok = kn_serve_warm_up(&args, &work->style, url) && kn_serve_run_load(&args, work, url, label, f->results, seconds);
    free(model);
    return ok;
}

static bool ask_prefixes(struct fetch *f, const char *url, const char *label)
{
    double seconds;
    bool ok = run(f, &f->prefixes, url, label, 1, &seconds);
    for (uint32_t i = 0; ok && i < f->prefixes.n; i++)
        if (f->results[i].outcome != KN_LOAD_OUTCOME_COMPLETED)
            ok = !kn_app_fail("bench", "a prefix could not be computed: %s", f->results[i].error);
    return ok;
}

/* Fills the store; the server's end waits until all is written. */
static bool publish(struct fetch *f)
{
    struct kn_serve_child child = {0};
    bool ok = make_prefixes(f, true) && set_delay(f, 0) && start(f, &child, SEPARATE) && ask_prefixes(f, child.url, "publishing prefixes");
    return end(&child, ok);
}

/* The run in memory says nothing unless each prefix was there. */
static bool all_cached(struct fetch *f, const struct kn_load_work *work)
{
    for (uint32_t i = 0; i < work->n; i++) {
        const struct kn_load_result *r = &f->results[i];
        if (work->requests[i].group == GROUP_FETCH && r->outcome == KN_LOAD_OUTCOME_COMPLETED && r->n_cached < LEAST_CACHED)
            return !kn_app_fail("bench", "in the run in memory a request had only %" PRIu32 " of its %" PRIu32 " prompt tokens in the pool: "
                                "a larger --pool-size after -- keeps them", r->n_cached, r->n_prompt);
    }
    return true;
}

static bool run_setting(struct fetch *f, int setting, uint32_t round)
{
    struct kn_serve_child child = {0};
    struct kn_load_work *work = &f->work[setting];
    char label[64];
    double seconds;
    snprintf(label, sizeof label, "%s, run %" PRIu32 " of %" PRIu32, setting_names[setting], round + 1, f->args->repeat);
    bool ok = start(f, &child, setting);
    if (setting == MEMORY)
        ok = ok && make_prefixes(f, false) && ask_prefixes(f, child.url, "computing prefixes");
    ok = ok && run(f, work, child.url, label, 0, &seconds) && (setting != MEMORY || all_cached(f, work));
    uint64_t peak = kn_serve_child_peak(&child);
    if (!end(&child, ok))
        return false;
    f->plain[setting].peak_bytes = peak > f->plain[setting].peak_bytes ? peak : f->plain[setting].peak_bytes;
    kn_serve_total_add(&f->plain[setting], f->args, work, f->results, GROUP_PLAIN, seconds);
    kn_serve_total_add(&f->fetching[setting], f->args, work, f->results, GROUP_FETCH, seconds);
    return true;
}

/* ---- report */

static void add_ratio(json_t *all, const char *what, double above, double below, double at_most)
{
    if (above > 0 && below > 0)
        json_array_append_new(all, kn_serve_target(what, above / below, 0, at_most));
}

/* One setting over another: latencies of the requests that need no fetch. */
static void add_ratios(struct fetch *f, json_t *all, int above, int below, double goal)
{
    struct kn_serve_total *p = f->plain;
    const struct {
        const char *name;
        struct kn_samples *above, *below;
        double goal;
    } rows[] = {{"TTFT", &p[above].ttft, &p[below].ttft, goal}, {"TPOT", &p[above].tpot, &p[below].tpot, 0}};
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        struct kn_samples *a = rows[i].above, *b = rows[i].below;
        char what[96];
        snprintf(what, sizeof what, "median %s, %s over %s", rows[i].name, setting_names[above], setting_names[below]);
        add_ratio(all, what, kn_samples_quantile(a, 0.5), kn_samples_quantile(b, 0.5), rows[i].goal);
        snprintf(what, sizeof what, "mean %s, %s over %s", rows[i].name, setting_names[above], setting_names[below]);
        add_ratio(all, what, kn_samples_mean(a), kn_samples_mean(b), rows[i].goal);
        snprintf(what, sizeof what, "p90 %s, %s over %s", rows[i].name, setting_names[above], setting_names[below]);
        add_ratio(all, what, kn_samples_quantile(a, 0.9), kn_samples_quantile(b, 0.9), 0);
    }
}

static json_t *targets_of(struct fetch *f)
{
    struct kn_serve_total *p = f->plain;
    json_t *all = json_array();
    add_ratios(f, all, SEPARATE, NONE, 1.1);
    add_ratios(f, all, SEPARATE, MEMORY, 1.1);
    add_ratios(f, all, INLINE, MEMORY, 0);
    double ttft = kn_samples_mean(&p[SEPARATE].ttft) / kn_samples_mean(&p[INLINE].ttft);
    double tpot = kn_samples_mean(&p[SEPARATE].tpot) / kn_samples_mean(&p[INLINE].tpot);
    json_array_append_new(all, kn_serve_target("mean TTFT, separate against inline, % (paper: -77)", 100 * (ttft - 1), 0, 0));
    if (p[INLINE].tpot.n)
        json_array_append_new(all, kn_serve_target("mean TPOT, separate against inline, % (paper: -35.4)", 100 * (tpot - 1), 0, 0));
    return all;
}

/* Prompt tokens that a request with a prefix computed itself, on average. */
static double computed(const struct kn_serve_total *t)
{
    return t->n_completed ? (double)(t->n_prompt - t->n_cached) / (double)t->n_completed : 0;
}

static void explain(struct fetch *f)
{
    struct kn_serve_args *a = f->args;
    printf("rows     none, memory, separate, inline: the %" PRIu64 " requests that need no fetch (of all runs), asked at the same times in each\n"
           "         NAME: fetching: beside them %" PRIu64 " requests, %.3g a second, that begin with a prefix of about %" PRIu32 " tokens\n"
           "none     without them\n"
           "memory   their prefixes are in the server's pool, no store: the arithmetic of separate and inline without fetching\n"
           "separate their prefixes are in a store, each read takes %" PRIu32 " ms; a queue of their own (our default)\n"
           "inline   the same store, but a step waits for the fetches that it meets\n"
           "Prompt tokens that such a request computes itself: memory %.1f, separate %.1f, inline %.1f.\n\n",
           f->plain[NONE].n_completed + f->plain[NONE].n_failed, f->fetching[SEPARATE].n_completed + f->fetching[SEPARATE].n_failed, a->fetch_rate,
           a->fetch_words, a->fetch_delay_ms, computed(&f->fetching[MEMORY]), computed(&f->fetching[SEPARATE]), computed(&f->fetching[INLINE]));
}

static void report(struct fetch *f)
{
    struct kn_serve_args *a = f->args;
    json_t *head = kn_serve_head_json(a, &f->work[NONE]), *targets = targets_of(f), *plain = json_object(), *fetching = json_object();
    const char *names[2 * N_SETTINGS - 1] = {"none", "memory", "separate", "inline", "memory: fetching", "separate: fetching", "inline: fetching"};
    struct kn_serve_total *totals[2 * N_SETTINGS - 1];
    for (int s = 0; s < N_SETTINGS; s++) {
        totals[s] = &f->plain[s];
        json_object_set_new(plain, setting_names[s], kn_serve_total_json(&f->plain[s]));
        if (s == NONE)
            continue;
        totals[N_SETTINGS - 1 + s] = &f->fetching[s];
        json_object_set_new(fetching, setting_names[s], kn_serve_total_json(&f->fetching[s]));
    }
    if (a->json) {
        json_object_set(head, "plain", plain);
        json_object_set(head, "fetching", fetching);
        json_object_set(head, "targets", targets);
        json_object_set_new(head, "fetch", json_pack("{s:f,s:i,s:i,s:I}", "rate", a->fetch_rate, "delay_ms", (int)a->fetch_delay_ms, "prefix_tokens",
                                                     (int)a->fetch_words, "pool_bytes", (json_int_t)f->pool_bytes));
        kn_app_json_print(head, stdout);
    } else {
        kn_serve_print_head(a, head);
        explain(f);
        kn_serve_print_totals(a, names, totals, sizeof totals / sizeof *totals);
        kn_serve_print_targets(targets);
    }
    json_decref(plain);
    json_decref(fetching);
    json_decref(targets);
    json_decref(head);
}

/* The experiment says nothing unless fetches happened and took their time. */
static bool fetched(struct fetch *f)
{
    for (int s = SEPARATE; s < N_SETTINGS; s++) {
        struct kn_serve_total *t = &f->fetching[s];
        if (!t->n_completed)
            return !kn_app_fail("bench", "no request with a fetch was completed (%s): %s", setting_names[s],
                                t->n_failed ? t->error : "none arrived; a longer --duration has some");
        if (t->n_cached < t->n_completed * LEAST_CACHED)
            return !kn_app_fail("bench", "requests with a stored prefix got %" PRIu64 " tokens from it in %" PRIu64 " requests (%s): the store was not used",
                                t->n_cached, t->n_completed, setting_names[s]);
        if (kn_samples_quantile(&t->ttft, 0.5) * 1e3 < f->args->fetch_delay_ms)
            return !kn_app_fail("bench", "fetches took %.0f ms, less than the store's delay (%s): the control file was not heeded",
                                kn_samples_quantile(&t->ttft, 0.5) * 1e3, setting_names[s]);
    }
    struct kn_serve_total *memory = &f->fetching[MEMORY];
    if (!memory->n_completed)
        return !kn_app_fail("bench", "no request with a prefix in memory was completed: %s", memory->n_failed ? memory->error : "none arrived");
    return true;
}

/* Run 0: forwards from none; 1: backwards; 2 and 3 the same from the next setting, and so on. */
static int setting_at(uint32_t round, int i)
{
    return (int)((round / 2 + (uint32_t)(round % 2 ? N_SETTINGS - 1 - i : i)) % N_SETTINGS);
}

int kn_serve_fetch(struct kn_serve_args *args)
{
    struct fetch f = {.args = args};
    double expected = args->fetch_rate * args->mix.duration_s;
    f.n_fetches = expected < 1000 ? (uint32_t)(expected * 1.5) + 4 : 1500; /* Poisson: nearly always enough */
    bool ok = make_folder(&f) && make_works(&f, 0) && size_pool(&f) && publish(&f) && set_delay(&f, args->fetch_delay_ms);
    for (uint32_t round = 0; ok && round < args->repeat; round++) {
        ok = make_works(&f, round);
        for (int i = 0; ok && i < N_SETTINGS; i++)
            ok = run_setting(&f, setting_at(round, i), round);
    }
    if (ok && (ok = fetched(&f)))
        report(&f);
    for (int s = 0; s < N_SETTINGS; s++) {
        kn_serve_total_fini(&f.plain[s]);
        kn_serve_total_fini(&f.fetching[s]);
        kn_load_work_fini(&f.work[s]);
    }
    kn_load_work_fini(&f.prefixes);
    free(f.results);
    if (f.folder[0])
        nftw(f.folder, remove_one, 8, FTW_DEPTH | FTW_PHYS);
    return ok ? KN_APP_EXIT_OK : KN_APP_EXIT_FAILED;
}
