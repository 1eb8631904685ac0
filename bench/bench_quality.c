/* SPDX-License-Identifier: Apache-2.0 */
/*
 * kinema bench quality: how far the fast kernels' predictions are from the reference's, teacher-forced over one text.
 *
 *     tokens  [ prefix, not scored | continue: each is predicted from all before it ]
 *
 * The reference is scored first and its logits wait in a file that has no name; then ours, in steps of 32 tokens (the way of
 * prompts) and of 1 (the way of decoding), compared row by row in double precision:
 *
 *     KL = sum of p_ref * (log p_ref - log p_ours)     top 1: the best tokens are the same     nll: -log p of the text's token
 *
 * Reference: the same file by the plain C kernels, or --reference FILE, the same weights as a file of floats
 * (tools/gguf_to_f32.py), which shares no quantised kernel with ours. Both keep K and V in 16 bits.
 */
#include <getopt.h>
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "bench.h"

enum { MAX_STEPS = 8 };
#define BAR_MEAN_KL 0.001
#define BAR_TOP1 0.985

/* What a comparison adds up. */
struct quality {
    uint32_t step, n;
    double kl, kl_max, top1, diff_max, nll, nll_reference;
};

struct score {
    const char *model_arg, *reference_arg, *text_path;
    char model_path[4096];
    uint32_t n_prefix, n_continue, n_threads, n_steps, n_vocab;
    int reference_level; /* enum kn_cpu_level; -1: best */
    bool json, help;
    int32_t *tokens; /* n_prefix + n_continue */
    FILE *rows;      /* the reference's logits, [n_continue][n_vocab] */
    float *row;      /* [n_vocab] of them */
    struct quality q[MAX_STEPS], *now; /* now: NULL while the reference is scored */
    struct kn_app_progress progress;
};

static void help(void)
{
    fputs("usage: kinema bench quality --text FILE [-m MODEL] [--reference FILE] [--json]\n\n"
          "Compares predictions with the reference's over a text. Status 1 when mean KL is above 0.001 or top-1 agreement below 0.985.\n\n"
          "  -m, --model FILE         GGUF; default $KINEMA_MODEL, else the demo model in the cache folder\n"
          "      --text FILE          text of at least prefix + continue tokens; - for the standard input\n"
          "      --prefix N           tokens before the first that is predicted (64)\n"
          "      --continue N         tokens that are predicted (1024)\n"
          "      --steps LIST         tokens of ours a step, 1 to 32: 1 is the way of decoding (32,1)\n"
          "      --reference FILE     same weights as floats, by tools/gguf_to_f32.py (the model itself)\n"
          "      --reference-level L  kernels of the reference: ref, avx2, avx512, best (ref: plain C, minutes)\n"
          "  -t, --threads N          compute threads (all that the process may use)\n"
          "      --json               one object\n",
          stdout);
}

static bool parse_steps(struct score *s, const char *list)
{
    char copy[128];
    if (strlen(list) >= sizeof copy)
        return false;
    snprintf(copy, sizeof copy, "%s", list);
    s->n_steps = 0;
    for (char *rest = copy, *word; (word = strsep(&rest, ","));)
        if (s->n_steps == MAX_STEPS || !kn_app_parse_u32(word, 1, 32, &s->q[s->n_steps++].step))
            return false;
    return true;
}

static int parse(struct score *s, int argc, char **argv)
{
    static const struct option table[] = {
        {"model", required_argument, NULL, 'm'},  {"text", required_argument, NULL, 'f'},      {"prefix", required_argument, NULL, 'p'},
        {"continue", required_argument, NULL, 'c'}, {"steps", required_argument, NULL, 's'},     {"reference", required_argument, NULL, 'r'},
        {"reference-level", required_argument, NULL, 'l'}, {"threads", required_argument, NULL, 't'}, {"json", no_argument, NULL, 'j'},
        {"help", no_argument, NULL, 'h'}, {NULL, 0, NULL, 0},
    };
    static const char *const levels[] = {"ref", "avx2", "avx512", "best"};
    opterr = 0;
    optind = 1;
    for (int option; (option = getopt_long(argc, argv, ":m:t:h", table, NULL)) != -1;) {
        switch (option) {
        case 'm':
            if (kn_app_path("bench", "-m", optarg, &s->model_arg))
                return KN_APP_EXIT_USAGE;
            break;
        case 'f':
            if (kn_app_path("bench", "--text", optarg, &s->text_path))
                return KN_APP_EXIT_USAGE;
            break;
        case 'r':
            if (kn_app_path("bench", "--reference", optarg, &s->reference_arg))
                return KN_APP_EXIT_USAGE;
            break;
        case 'j': s->json = true; break;
        case 'h': s->help = true; return KN_APP_EXIT_OK;
        case 'p':
            if (!kn_app_parse_u32(optarg, 1, 1u << 20, &s->n_prefix))
                return kn_app_usage_error("bench", "--prefix takes at least 1 token, not \"%s\"", optarg);
            break;
        case 'c':
            if (!kn_app_parse_u32(optarg, 1, 1u << 20, &s->n_continue))
                return kn_app_usage_error("bench", "--continue takes at least 1 token, not \"%s\"", optarg);
            break;
        case 's':
            if (!parse_steps(s, optarg))
                return kn_app_usage_error("bench", "--steps takes up to %d numbers from 1 to 32 with commas, not \"%s\"", MAX_STEPS, optarg);
            break;
        case 'l':
            s->reference_level = kn_app_parse_name(optarg, levels, 4);
            if (s->reference_level < 0)
                return kn_app_usage_error("bench", "--reference-level takes ref, avx2, avx512 or best, not \"%s\"", optarg);
            break;
        case 't':
            if (!kn_app_parse_u32(optarg, 1, 256, &s->n_threads))
                return kn_app_usage_error("bench", "-t takes 1 to 256 threads, not \"%s\"", optarg);
            break;
        case ':': return kn_app_usage_error("bench", "%s needs a value", argv[optind - 1]);
        default: return kn_app_usage_error("bench", "there is no option %s", argv[optind - 1]);
        }
    }
    if (optind < argc)
        return kn_app_usage_error("bench", "unexpected \"%s\"", argv[optind]);
    return s->text_path ? KN_APP_EXIT_OK : kn_app_usage_error("bench", "bench quality needs --text FILE");
}

static struct kn_model *open_model(const char *path)
{
    struct kn_model *model;
    struct kn_err err = {0};
    struct kn_model_opts mo = {.size = sizeof mo, .path = path};
    enum kn_status status = kn_model_open(&model, &mo, &err);
    if (status)
        kn_app_fail("bench", "%s", err.text[0] ? err.text : kn_status_message(status));
    return model;
}

static bool read_tokens(struct score *s, const struct kn_model *model)
{
    const char *why = NULL;
    size_t n_bytes = 0, n_wanted = (size_t)s->n_prefix + s->n_continue;
    char *text = kn_app_read_file(s->text_path, &n_bytes, &why);
    if (!text) {
        kn_app_fail("bench", "%s: %s", s->text_path, why);
        return false;
    }
    size_t n = n_bytes + 1;
    s->tokens = malloc(n * sizeof *s->tokens);
    enum kn_status status = s->tokens ? kn_model_tokenize(model, text, n_bytes, 0, s->tokens, &n) : KN_E_NOMEM;
    free(text);
    if (status)
        kn_app_fail("bench", "%s: %s", s->text_path, kn_status_message(status));
    else if (n < n_wanted)
        kn_app_fail("bench", "%s has %zu tokens but --prefix and --continue want %zu: give a longer text", s->text_path, n, n_wanted);
    return status == KN_OK && n >= n_wanted;
}

/* ---- rows */

static double log_sum_exp(const float *x, uint32_t n, uint32_t *best)
{
    double sum = 0;
    *best = 0;
    for (uint32_t i = 1; i < n; i++)
        *best = x[i] > x[*best] ? i : *best;
    for (uint32_t i = 0; i < n; i++)
        sum += exp((double)x[i] - x[*best]);
    return x[*best] + log(sum);
}

static void compare(struct quality *q, const float *ref, const float *ours, uint32_t n, int32_t truth)
{
    uint32_t best_ref, best;
    double z_ref = log_sum_exp(ref, n, &best_ref), z = log_sum_exp(ours, n, &best), kl = 0;
    for (uint32_t i = 0; i < n; i++) {
        double diff = fabs((double)ours[i] - ref[i]);
        q->diff_max = diff > q->diff_max || isnan(diff) ? diff : q->diff_max;
        kl += exp(ref[i] - z_ref) * ((ref[i] - z_ref) - (ours[i] - z));
    }
    q->n++;
    q->kl += kl;
    q->kl_max = kl > q->kl_max ? kl : q->kl_max;
    q->top1 += best == best_ref;
    q->nll += z - ours[truth];
    q->nll_reference += z_ref - ref[truth];
}

static enum kn_status take_row(void *user, uint64_t position, const float *logits)
{
    struct score *s = user;
    uint64_t i = position - (s->n_prefix - 1);
    kn_app_progress_show(&s->progress, s->now ? "scoring" : "scoring the reference", i, s->n_continue, "tokens");
    if (kn_app_interrupted())
        return KN_E_CANCELLED;
    if (!s->now)
        return fwrite(logits, sizeof *logits, s->n_vocab, s->rows) == s->n_vocab ? KN_OK : KN_E_IO;
    if (fread(s->row, sizeof *s->row, s->n_vocab, s->rows) != s->n_vocab)
        return KN_E_IO;
    compare(s->now, s->row, logits, s->n_vocab, s->tokens[position + 1]);
    return KN_OK;
}

/* Scores the text once; rows go to take_row. */
static bool score(struct score *s, struct kn_model *model, uint32_t level_max_plus_1, uint32_t step, struct quality *now)
{
    struct kn_engine *engine = NULL;
    struct kn_err err = {0};
    const uint32_t n = s->n_prefix + s->n_continue - 1; /* the last token is predicted, not run */
    struct kn_engine_opts eo = {.size = sizeof eo, .n_ctx = n, .n_threads = s->n_threads, .cpu_level_max_plus_1 = level_max_plus_1};
    struct kn_score_opts so = {.size = sizeof so, .tokens = s->tokens, .n_tokens = n, .first = s->n_prefix - 1, .step_tokens = step, .on_row = take_row, .user = s};
    s->now = now;
    rewind(s->rows);
    fprintf(stderr, "bench: %s, %" PRIu32 " tokens, %" PRIu32 " a step\n", now ? "ours" : "reference", s->n_continue, step);
    enum kn_status status = kn_engine_open(&engine, model, &eo, &err);
    if (status == KN_OK)
        status = kn_engine_score(engine, &so, NULL, &err);
    kn_app_progress_clear(&s->progress);
    if (status)
        kn_app_fail("bench", "%s", err.text[0] ? err.text : status == KN_E_IO ? "cannot keep the reference's logits in a temporary file" : kn_status_message(status));
    kn_engine_close(&engine);
    return status == KN_OK;
}

/* ---- results */

static bool met(const struct quality *q)
{
    return q->kl / q->n <= BAR_MEAN_KL && q->top1 / q->n >= BAR_TOP1;
}

static json_t *number(double x)
{
    return isfinite(x) ? json_real(x) : json_null(); /* JSON has no NaN */
}

static json_t *results(const struct score *s)
{
    static const char *const levels[] = {"ref", "avx2", "avx512", "best"};
    json_t *all = json_object(), *rows = json_array();
    const char *reference = s->reference_arg ? s->reference_arg : s->model_path;
    json_object_set_new(all, "machine", kn_app_json_machine());
    json_object_set_new(all, "commit", json_string(kn_app_commit));
    json_object_set_new(all, "model", kn_app_json_text(s->model_path, strlen(s->model_path)));
    json_object_set_new(all, "reference", kn_app_json_text(reference, strlen(reference)));
    json_object_set_new(all, "reference_level", json_string(levels[s->reference_level]));
    json_object_set_new(all, "prefix", json_integer(s->n_prefix));
    json_object_set_new(all, "tokens", json_integer(s->n_continue));
    json_object_set_new(all, "bars", json_pack("{s:f, s:f}", "mean_kl", BAR_MEAN_KL, "top1", BAR_TOP1));
    for (uint32_t i = 0; i < s->n_steps; i++) {
        const struct quality *q = &s->q[i];
        json_array_append_new(rows, json_pack("{s:I, s:o, s:o, s:o, s:o, s:o, s:o, s:b}", "step_tokens", (json_int_t)q->step, "mean_kl", number(q->kl / q->n),
                                              "max_kl", number(q->kl_max), "top1", number(q->top1 / q->n), "max_logit_diff", number(q->diff_max),
                                              "nll", number(q->nll / q->n), "nll_reference", number(q->nll_reference / q->n), "met", met(q)));
    }
    json_object_set_new(all, "rows", rows);
    return all;
}

static void print_table(const struct score *s)
{
    printf("%" PRIu32 " tokens after %" PRIu32 "; reference: %s\n\n%-12s %10s %10s %8s %15s %9s %9s  met\n", s->n_continue, s->n_prefix,
           s->reference_arg ? s->reference_arg : "the model itself", "tokens/step", "mean KL", "max KL", "top 1", "max logit diff", "nll", "nll ref");
    for (uint32_t i = 0; i < s->n_steps; i++) {
        const struct quality *q = &s->q[i];
        printf("%-12" PRIu32 " %10.2e %10.2e %8.4f %15.5f %9.5f %9.5f  %s\n", q->step, q->kl / q->n, q->kl_max, q->top1 / q->n, q->diff_max, q->nll / q->n,
               q->nll_reference / q->n, met(q) ? "yes" : "no");
    }
    printf("\nmet: mean KL at most %g and top 1 at least %g.\n", BAR_MEAN_KL, BAR_TOP1);
}

static int measure(struct score *s)
{
    int exit_status = KN_APP_EXIT_FAILED;
    struct kn_model *model = open_model(s->model_path), *reference = NULL;
    if (!model || !read_tokens(s, model))
        goto done;
    s->n_vocab = kn_model_info(model)->n_vocab;
    reference = s->reference_arg ? open_model(s->reference_arg) : NULL;
    if (s->reference_arg && !reference)
        goto done;
    if (reference && kn_model_info(reference)->n_vocab != s->n_vocab) {
        kn_app_fail("bench", "%s has another vocabulary than %s", s->reference_arg, s->model_path);
        goto done;
    }
    s->rows = tmpfile();
    s->row = malloc(s->n_vocab * sizeof *s->row);
    if (!s->rows || !s->row) {
        kn_app_fail("bench", "cannot make a temporary file for the reference's logits");
        goto done;
    }
    uint32_t level = s->reference_level > KN_CPU_LEVEL_AVX512 ? 0 : (uint32_t)s->reference_level + 1;
    if (!score(s, reference ? reference : model, level, 32, NULL))
        goto done;
    for (uint32_t i = 0; i < s->n_steps; i++)
        if (!score(s, model, 0, s->q[i].step, &s->q[i]))
            goto done;
    exit_status = KN_APP_EXIT_OK;
    for (uint32_t i = 0; i < s->n_steps; i++)
        if (!met(&s->q[i]))
            exit_status = KN_APP_EXIT_FAILED;
    if (s->json) {
        json_t *all = results(s);
        kn_app_json_print(all, stdout);
        json_decref(all);
    } else {
        print_table(s);
    }
done:
    if (s->rows)
        fclose(s->rows);
    free(s->row);
    kn_model_close(&reference);
    kn_model_close(&model);
    return exit_status;
}

int kn_bench_quality(int argc, char **argv)
{
    struct score s = {.n_prefix = 64, .n_continue = 1024};
    parse_steps(&s, "32,1");
    int exit_status = parse(&s, argc, argv);
    if (exit_status == KN_APP_EXIT_OK && s.help) {
        help();
    } else if (exit_status == KN_APP_EXIT_OK) {
        exit_status = KN_APP_EXIT_FAILED;
        kn_app_catch_interrupt();
        kn_app_log_to_stderr(KN_LOG_LEVEL_WARN);
        kn_app_progress_init(&s.progress, true);
        if (s.model_arg)
            snprintf(s.model_path, sizeof s.model_path, "%s", s.model_arg);
        if (s.model_arg || kn_app_default_model("bench", s.model_path, sizeof s.model_path))
            exit_status = measure(&s);
    }
    free(s.tokens);
    return exit_status;
}
