/* SPDX-License-Identifier: Apache-2.0 */
/*
 * kinema bench serve, the command: reads the arguments, finds model and programs, and hands them to the scenario that was
 * asked for.
 *
 *     serve_command.c --args--> bench_serve.c (ours beside the peer)
 *                     --args--> serve_fetch.c --> runs of bench_serve.c
 */
#include <stdlib.h>
#include <unistd.h>

#include "bench.h"
#include "bench_serve.h"
#include "curl_open.h"

/* Finds model and programs. */
static bool prepare(struct kn_serve_args *a)
{
    const char *why;
    if (!kn_curl_open(&why))
        return !kn_app_fail("bench", "%s", why);
    if (a->url)
        return true;
    if (a->model_arg)
        snprintf(a->model_path, sizeof a->model_path, "%s", a->model_arg);
    else if (!kn_app_default_model("bench", a->model_path, sizeof a->model_path))
        return false;
    if (!a->n_threads) {
        long n = sysconf(_SC_NPROCESSORS_ONLN);
        a->n_threads = n > 0 && n < 256 ? (uint32_t)n : 1;
    }
    return kn_serve_find_ours(a->ours) && (!a->peer || kn_serve_find_llama(a->peer_server, a->llama));
}

int kn_bench_serve(int argc, char **argv)
{
    struct kn_serve_args *args = calloc(1, sizeof *args); /* three paths of 4 KiB */
    if (!args)
        return kn_app_fail("bench", "out of memory");
    int exit_status = kn_serve_args_parse(args, argc, argv);
    if (exit_status == KN_APP_EXIT_OK && args->help) {
        kn_serve_args_help();
    } else if (exit_status == KN_APP_EXIT_OK) {
        exit_status = KN_APP_EXIT_FAILED;
        kn_app_catch_interrupt();
        if (prepare(args))
            exit_status = args->scenario == KN_SERVE_SCENARIO_FETCH ? kn_serve_fetch(args) : kn_serve_compare(args);
        if (kn_app_interrupted())
            exit_status = KN_APP_EXIT_INTERRUPTED;
    }
    free(args);
    return exit_status;
}
