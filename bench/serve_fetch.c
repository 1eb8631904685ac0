/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Scenario "fetch" of kinema bench serve: do requests that wait for a slow store hold up those that do not?
 *
 *     prepare    our server on an empty store; every prefix is asked once and published; the server ends
 *     none       a fresh server on the same store, whose reads now take --fetch-delay; only requests that need no fetch
 *     separate   the same requests at the same times, and between them requests that begin with a stored prefix: one fetch each
 *     inline     the same again, --fetch-queue inline: a step waits for the fetches that it meets, as in engines without a queue for them
 *
 * The store is "fault:CONTROL:lmdb:PATH", whose control file makes it slow (doc/store-faults.md). Each server is a fresh process, so every prefix must be
 * fetched again, and each is asked once a run. Latencies compared are those of the requests that need no fetch. Rates are low, so that what is
 * compared is waiting, not arithmetic; what requests with a fetch compute for themselves still counts against "separate".
 */
#include <errno.h>
#include <ftw.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "bench_serve.h"

enum { NONE, SEPARATE, INLINE, N_SETTINGS };
enum { GROUP_PLAIN = 0, GROUP_FETCH = 1, QUESTION_WORDS = 8, FETCH_NEW = 4 };
static const char *const setting_names[N_SETTINGS] = {"none", "separate", "inline"};

struct fetch {
    struct kn_serve_args *args;
    struct kn_load_work work[N_SETTINGS], prefixes; /* prefixes: of the preparation */
    struct kn_load_result *results;                 /* for the longest of them */
    struct kn_serve_total plain[N_SETTINGS], fetching[N_SETTINGS];
    uint32_t n_fetches;
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

/* ---- the three works */

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

/* ---- servers */

static bool start(struct fetch *f, struct kn_serve_child *child, bool in_line)
{
    const char *more[] = {"--store", f->store, "--preset", "exact", "--fetch-queue", in_line ? "inline" : "separate"};
    return kn_serve_start_ours(f->args, child, more, sizeof more / sizeof *more);
}

static bool end(struct kn_serve_child *child, bool ok)
{
    int status = 0;
    kn_serve_child_stop(child, KN_SERVE_DRAIN_MS, &status);
    if (ok && status)
        return !kn_app_fail("bench", "our server did not end well (wait status %d): run it by hand to see why", status);
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

/* Fills the store; the server's end waits until all is written. */
static bool publish(struct fetch *f)
{
    struct kn_serve_child child = {0};
    double seconds;
    for (uint32_t i = 0; i < f->n_fetches; i++) {
        struct kn_load_item item = {.system_seed = f->args->mix.seed * 1000003u + i, .system_words = f->args->fetch_words, .seed = i,
                                    .n_words = QUESTION_WORDS, .n_new = 1};
        if (!kn_load_work_add(&f->prefixes, &item, 0, GROUP_FETCH))
            return !kn_app_fail("bench", "out of memory");
    }
    bool ok = set_delay(f, 0) && start(f, &child, false) && run(f, &f->prefixes, child.url, "publishing prefixes", 1, &seconds);
    for (uint32_t i = 0; ok && i < f->prefixes.n; i++)
        if (f->results[i].outcome != KN_LOAD_OUTCOME_COMPLETED)
            ok = !kn_app_fail("bench", "a prefix could not be published: %s", f->results[i].error);
    return end(&child, ok);
}

static bool run_setting(struct fetch *f, int setting, uint32_t round)
{
    struct kn_serve_child child = {0};
    struct kn_load_work *work = &f->work[setting];
    char label[64];
    double seconds;
    snprintf(label, sizeof label, "%s, run %" PRIu32 " of %" PRIu32, setting_names[setting], round + 1, f->args->repeat);
    bool ok = start(f, &child, setting == INLINE) && run(f, work, child.url, label, 0, &seconds);
    uint64_t peak = kn_serve_child_peak(&child);
    if (!end(&child, ok))
        return false;
    f->plain[setting].peak_bytes = peak > f->plain[setting].peak_bytes ? peak : f->plain[setting].peak_bytes;
    kn_serve_total_add(&f->plain[setting], f->args, work, f->results, GROUP_PLAIN, seconds);
    kn_serve_total_add(&f->fetching[setting], f->args, work, f->results, GROUP_FETCH, seconds);
    return true;
}

/* ---- report */

static json_t *targets_of(struct fetch *f)
{
    struct kn_serve_total *p = f->plain;
    json_t *all = json_array();
    double none = kn_samples_quantile(&p[NONE].ttft, 0.5), separate = kn_samples_quantile(&p[SEPARATE].ttft, 0.5);
    double mean_none = kn_samples_mean(&p[NONE].ttft), mean_separate = kn_samples_mean(&p[SEPARATE].ttft), mean_inline = kn_samples_mean(&p[INLINE].ttft);
    double tpot_none = kn_samples_mean(&p[NONE].tpot), tpot_separate = kn_samples_mean(&p[SEPARATE].tpot), tpot_inline = kn_samples_mean(&p[INLINE].tpot);
    json_array_append_new(all, kn_serve_target("median TTFT, separate over none", separate / none, 0, 1.1));
    json_array_append_new(all, kn_serve_target("mean TTFT, separate over none", mean_separate / mean_none, 0, 1.1));
    json_array_append_new(all, kn_serve_target("mean TPOT, separate over none", tpot_separate / tpot_none, 0, 0));
    json_array_append_new(all, kn_serve_target("mean TTFT, inline over none (the damage)", mean_inline / mean_none, 0, 0));
    json_array_append_new(all, kn_serve_target("mean TPOT, inline over none (the damage)", tpot_inline / tpot_none, 0, 0));
    json_array_append_new(all, kn_serve_target("mean TTFT, separate against inline, % (paper: -77)", 100 * (mean_separate / mean_inline - 1), 0, 0));
    json_array_append_new(all, kn_serve_target("mean TPOT, separate against inline, % (paper: -35.4)", 100 * (tpot_separate / tpot_inline - 1), 0, 0));
    return all;
}

static void report(struct fetch *f)
{
    struct kn_serve_args *a = f->args;
    json_t *head = kn_serve_head_json(a, &f->work[NONE]), *targets = targets_of(f), *plain = json_object(), *fetching = json_object();
    const char *names[2 * N_SETTINGS - 1] = {"none", "separate", "inline", "separate: fetching", "inline: fetching"};
    struct kn_serve_total *totals[] = {&f->plain[NONE], &f->plain[SEPARATE], &f->plain[INLINE], &f->fetching[SEPARATE], &f->fetching[INLINE]};
    if (a->json) {
        for (int s = 0; s < N_SETTINGS; s++) {
            json_object_set_new(plain, setting_names[s], kn_serve_total_json(&f->plain[s]));
            if (s != NONE)
                json_object_set_new(fetching, setting_names[s], kn_serve_total_json(&f->fetching[s]));
        }
        json_object_set(head, "plain", plain);
        json_object_set(head, "fetching", fetching);
        json_object_set(head, "targets", targets);
        json_object_set_new(head, "fetch", json_pack("{s:f,s:i,s:i}", "rate", a->fetch_rate, "delay_ms", (int)a->fetch_delay_ms, "prefix_tokens",
                                                     (int)a->fetch_words));
        kn_app_json_print(head, stdout);
    } else {
        kn_serve_print_head(a, head);
        printf("requests that need a fetch: %.3g a second, each read of the store takes %" PRIu32 " ms, stored prefixes of about %" PRIu32 " tokens.\n"
               "\"none\": without them. The first three rows are of the requests that need no fetch.\n\n",
               a->fetch_rate, a->fetch_delay_ms, a->fetch_words);
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
        if (t->n_cached < t->n_completed * 200)
            return !kn_app_fail("bench", "requests with a stored prefix got %" PRIu64 " tokens from it in %" PRIu64 " requests (%s): the store was not used",
                                t->n_cached, t->n_completed, setting_names[s]);
        if (kn_samples_quantile(&t->ttft, 0.5) * 1e3 < f->args->fetch_delay_ms)
            return !kn_app_fail("bench", "fetches took %.0f ms, less than the store's delay (%s): the control file was not heeded",
                                kn_samples_quantile(&t->ttft, 0.5) * 1e3, setting_names[s]);
    }
    return true;
}

int kn_serve_fetch(struct kn_serve_args *args)
{
    struct fetch f = {.args = args};
    double expected = args->fetch_rate * args->mix.duration_s;
    f.n_fetches = expected < 1000 ? (uint32_t)(expected * 1.5) + 4 : 1500; /* Poisson: nearly always enough */
    bool ok = make_folder(&f) && make_works(&f, 0) && publish(&f) && set_delay(&f, args->fetch_delay_ms);
    for (uint32_t round = 0; ok && round < args->repeat; round++) {
        ok = make_works(&f, round);
        for (int i = 0; ok && i < N_SETTINGS; i++)
            ok = run_setting(&f, round % 2 ? N_SETTINGS - 1 - i : i, round);
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
