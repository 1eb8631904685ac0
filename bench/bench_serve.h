/* SPDX-License-Identifier: Apache-2.0 */
/*
 * kinema bench serve, inside: what was asked for, one measured run, and the sums over runs that the report prints.
 *
 *     arguments -> work (load_work.h) -> servers (serve_peer.h), one at a time, fresh for each run -> load (load.h) -> totals -> report
 *
 * Every failure has been said on stderr when a function here returns false. One thread, but for the load generator's own.
 */
#ifndef KN_BENCH_SERVE_H
#define KN_BENCH_SERVE_H

#include "load_work.h"
#include "serve_peer.h"

enum kn_serve_scenario {
    KN_SERVE_SCENARIO_NONE = 0,
    KN_SERVE_SCENARIO_THROUGHPUT = 1,
    KN_SERVE_SCENARIO_SHARED = 2,
    KN_SERVE_SCENARIO_FETCH = 3
};
enum { KN_SERVE_N_SCENARIOS = 4, KN_SERVE_MAX_EXTRA = 32, KN_SERVE_MAX_REPEAT = 20, KN_SERVE_MAX_SETTINGS = 4, KN_SERVE_READY_MS = 300000, KN_SERVE_DRAIN_MS = 60000 };
extern const char *const kn_serve_scenario_names[KN_SERVE_N_SCENARIOS];

struct kn_serve_args {
    enum kn_serve_scenario scenario;
    const char *url, *api_key, *model_arg, *model_name, *peer, *peer_server, *peer_args;
    const char *extra[KN_SERVE_MAX_EXTRA]; /* what follows "--": for our server */
    size_t n_extra;
    struct kn_load_mix_opts mix;
    uint32_t n_clients;          /* 0: open loop */
    uint32_t n_threads, n_ctx;   /* 0: not said */
    uint32_t peer_parallel[KN_SERVE_MAX_SETTINGS], n_peer_parallel; /* slots of the peer: one server each */
    uint32_t repeat, timeout_ms;
    double slo_ttft_ms, slo_tpot_ms; /* 0: not demanded */
    float temperature;
    bool ignore_eos, json, help, quiet;
    /* fetch */
    double fetch_rate;           /* requests a second that need a fetch */
    uint32_t fetch_delay_ms, fetch_words;
    char model_path[4096], ours[4096], llama[4096];
};

/* Options (serve_args.c). KN_APP_EXIT_OK, or KN_APP_EXIT_USAGE after a message. */
int kn_serve_args_parse(struct kn_serve_args *args, int argc, char **argv);
void kn_serve_args_help(void);
/* Tokens of the longest prompt and answer, with room for the template. */
uint32_t kn_serve_args_longest(const struct kn_serve_args *args);

/* ---- sums over the runs of one server or setting */
struct kn_serve_total {
    struct kn_samples ttft, tpot, e2e, late; /* seconds */
    uint64_t n_completed, n_failed, n_unsent, n_good, n_tokens, n_prompt, n_cached;
    double seconds;                          /* of all runs */
    double speeds[KN_SERVE_MAX_REPEAT];      /* tokens out a second, by run */
    uint32_t n_runs;
    uint64_t peak_bytes;                     /* of the server's memory, most of all runs; 0: unknown */
    char error[160];                         /* of the first request that failed */
    /* open loop: could it keep up? */
    double arrivals_s, busy_s;               /* of all runs: first to last arrival; the same to the last end, but for the shortest answer's time */
    uint32_t n_half, n_last;                 /* of all runs: requests under way halfway from first to last arrival, and at the last */
};
/* Adds a run's results of one group, or of all with KN_LOAD_NONE. */
void kn_serve_total_add(struct kn_serve_total *total, const struct kn_serve_args *args, const struct kn_load_work *work,
                        const struct kn_load_result *results, uint32_t group, double seconds);
void kn_serve_total_fini(struct kn_serve_total *total);
double kn_serve_total_speed(const struct kn_serve_total *total);   /* tokens out a second */
/* Open loop: requests came faster than they were answered: they were completed at less than 0.95 of the rate of their arrivals, or more and more
 * were under way. Latencies then are mostly waiting in line, and grow with the length of the run. false with fewer than ten requests. */
bool kn_serve_total_saturated(const struct kn_serve_total *total);
/* What a total says, as JSON; a new reference. */
json_t *kn_serve_total_json(struct kn_serve_total *total);
/* The table of several; names[n]. */
void kn_serve_print_totals(const struct kn_serve_args *args, const char *const *names, struct kn_serve_total *const *totals, size_t n);
/* {"machine", "commit", "model", "date", "scenario", "load"}: the head of a report. */
json_t *kn_serve_head_json(const struct kn_serve_args *args, const struct kn_load_work *work);
void kn_serve_print_head(const struct kn_serve_args *args, const json_t *head);
/* One line of ratios: value, target (0: none), whether higher is better. Returns {"what", "is", "at_least" or "at_most", "met"}. */
json_t *kn_serve_target(const char *what, double is, double at_least, double at_most);
void kn_serve_print_targets(const json_t *targets);

/* ---- runs */
/* Sends the work to a server that listens at url; results[work->n] zeroed here. label: for the progress line. */
bool kn_serve_run_load(const struct kn_serve_args *args, struct kn_load_work *work, const char *url, const char *label, struct kn_load_result *results,
                       double *seconds);
/* Starts our server; more[n_more]: arguments besides the usual ones. */
bool kn_serve_start_ours(const struct kn_serve_args *args, struct kn_serve_child *child, const char *const *more, size_t n_more);
/* A short request, so that pages and threads are warm. */
bool kn_serve_warm_up(const struct kn_serve_args *args, const struct kn_load_style *style, const char *url);
/* Name of the first model that a server lists, from malloc; NULL: it lists none. */
char *kn_serve_ask_model(const char *url, const char *api_key);
/* ---- scenarios: the program's exit status. A model and the programs that it needs are in args */
/* Our server, or the one at args->url, and the peer's (bench_serve.c). */
int kn_serve_compare(struct kn_serve_args *args);
/* The scenario "fetch" (serve_fetch.c). */
int kn_serve_fetch(struct kn_serve_args *args);

#endif
