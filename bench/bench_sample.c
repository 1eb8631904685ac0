/* SPDX-License-Identifier: Apache-2.0 */
#include "bench_sample.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "bench.h"

static const struct setting {
    const char *name;
    struct kn_sampler_opts sampler;
    uint32_t n_top;
    bool want_logprobs;
} settings[] = {
    {.name = "greedy"},
    {.name = "temperature 1", .sampler = {.temperature = 1}},
    {.name = "temperature 0.7", .sampler = {.temperature = 0.7f}},
    {.name = "top_k 40", .sampler = {.temperature = 1, .top_k = 40}},
    {.name = "top_k 5000", .sampler = {.temperature = 1, .top_k = 5000}},
    {.name = "top_p 0.9", .sampler = {.temperature = 1, .top_p = 0.9f}},
    {.name = "top_p 0.5", .sampler = {.temperature = 1, .top_p = 0.5f}},
    {.name = "min_p 0.05", .sampler = {.temperature = 1, .min_p = 0.05f}},
    {.name = "all cuts", .sampler = {.temperature = 0.7f, .top_k = 40, .top_p = 0.9f, .min_p = 0.05f, .repeat_penalty = 1.1f}},
    {.name = "repeat_penalty", .sampler = {.repeat_penalty = 1.1f}},
    {.name = "greedy, 20 logprobs", .want_logprobs = true, .n_top = 20},
    {.name = "temp. 0.7, 20 logprobs", .sampler = {.temperature = 0.7f}, .want_logprobs = true, .n_top = 20},
};
#define N_SETTINGS (sizeof settings / sizeof *settings)

static bool measure_round(struct kn_ours *ours, uint32_t round, double speeds[N_SETTINGS][KN_BENCH_MAX_REPEAT])
{
    double seconds;
    for (size_t i = 0; i < N_SETTINGS; i++) {
        ours->sampler = settings[i].sampler;
        ours->n_top = settings[i].n_top;
        ours->want_logprobs = settings[i].want_logprobs;
        if (!kn_ours_round(ours, &seconds, &speeds[i][round]))
            return false;
    }
    return true;
}

json_t *kn_sampled_measure(const struct kn_work *work, const struct kn_ours_opts *opts, uint32_t repeat)
{
    struct kn_ours ours = {0};
    double (*speeds)[KN_BENCH_MAX_REPEAT] = calloc(N_SETTINGS, sizeof *speeds), ratios[KN_BENCH_MAX_REPEAT], seconds, warm;
    char name[KN_WORK_NAME_BYTES];
    json_t *out = NULL, *list;
    bool ok = speeds && repeat <= KN_BENCH_MAX_REPEAT && kn_ours_open(&ours, opts) && kn_ours_round(&ours, &seconds, &warm);
    kn_work_name(work, name);
    for (uint32_t r = 0; ok && r < repeat; r++) {
        fprintf(stderr, "bench: %s, round %" PRIu32 " of %" PRIu32 ": %zu settings of the sampler\n", name, r + 1, repeat, N_SETTINGS);
        ok = measure_round(&ours, r, speeds);
    }
    if (ok) {
        out = json_pack("{s:s, s:I, s:[]}", "work", name, "n_vocab", (json_int_t)kn_model_info(opts->model)->n_vocab, "settings");
        list = json_object_get(out, "settings");
        for (size_t i = 0; i < N_SETTINGS; i++) {
            json_t *runs = json_array();
            for (uint32_t r = 0; r < repeat; r++) {
                ratios[r] = speeds[0][r] > 0 ? speeds[i][r] / speeds[0][r] : 0;
                json_array_append_new(runs, json_real(speeds[i][r]));
            }
            json_array_append_new(list, json_pack("{s:s, s:f, s:f, s:o}", "name", settings[i].name, "ours", kn_bench_median(speeds[i], repeat), "to_greedy",
                                                  kn_bench_median(ratios, repeat), "ours_runs", runs));
        }
    }
    kn_ours_close(&ours);
    free(speeds);
    return out;
}

void kn_sampled_print(const json_t *sampled)
{
    size_t i;
    const json_t *s;
    printf("\n%s, %" JSON_INTEGER_FORMAT " tokens in the vocabulary\n%-24s %10s %10s\n", json_string_value(json_object_get(sampled, "work")),
           json_integer_value(json_object_get(sampled, "n_vocab")), "sampler", "tok/s", "to greedy");
    json_array_foreach(json_object_get(sampled, "settings"), i, s)
        printf("%-24s %10.1f %10.3f\n", json_string_value(json_object_get(s, "name")), json_real_value(json_object_get(s, "ours")),
               json_real_value(json_object_get(s, "to_greedy")));
}
