/* SPDX-License-Identifier: Apache-2.0 */
/*
 * kinema codec eval|search (encode, decode: cmd_codec_video.c): what coding K and V costs and what it does to predictions, beside rivals (kinema/codec.h), and which
 * tiling of the tiles preset is smallest. Results on stdout: tables, or one JSON object a line; progress on stderr.
 * Exit status: 0 done, 1 failed, 2 used wrongly.
 */
#include <getopt.h>
#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "cmd_codec_inspect.h"
#include "codec_learned.h"
#include "codec_report.h"
#include "hevc_opts.h"

enum { MAX_TEXTS = 32 };

struct args {
    const char *what, *model, *profile, *only;
    const char *texts[MAX_TEXTS], *calibration[MAX_TEXTS];
    uint32_t n_texts, n_calibration, prefix, continue_, n_threads, n_facts, n_tokens, sample, levels;
    enum kn_kv_type kv_type;
    uint32_t uses; /* bit per enum use: options that were given and belong to some of what can be done only */
    bool needle, ablation, json, help;
    struct kn_hevc_opts hevc;
};

/* Options that not every subcommand heeds. */
enum use { USE_PREFIX, USE_CONTINUE, USE_FACTS, USE_TOKENS, USE_SAMPLE, USE_LEVELS, USE_PROFILE, USE_CALIBRATION, USE_ONLY, USE_COUNT };

static const char help_text[] =
    "usage: kinema codec eval --text FILE... [-m MODEL] [--profile FILE] [options]\n"
    "       kinema codec eval --needle --text FILE [-m MODEL] [--profile FILE] [options]\n"
    "       kinema codec search --text FILE [-m MODEL] [options]\n"
    "       kinema codec encode|decode FILE [options]; kinema codec encode --help explains\n"
    "       kinema codec inspect FILE [options]; kinema codec inspect --help explains\n\n"
    "  eval                 bytes, quality and speed of every method: a text's prefix goes through it, then the text is continued\n"
    "  eval --needle        facts planted in long texts, asked for after the text went through each method\n"
    "  search               bytes of every tiling of the preset tiles\n"
    "  encode, decode       raw pictures to lossless HEVC, and back\n"
    "  inspect              where the bits of a lossless HEVC stream or of a chunk's go\n\n"
    "  -m, --model FILE     GGUF file; default: $KINEMA_MODEL or the demo model\n"
    "      --text FILE      text to try it on, not one used for calibration; several: one result each, and their mean\n"
    "      --profile FILE   profile of the model for fine, medium and small, which are left out without one;\n"
    "                       default: $KINEMA_PROFILE or the one that `make demo` has built\n"
    "      --calibration FILE  text that kvtc may learn from, not evaluated; several; kvtc is left out without any\n"
    "      --ablation       eval: also rows that take medium apart; with bases of their own where --calibration is given\n"
    "      --only LIST      methods, such as cachegen,medium; needle also knows untouched\n"
    "      --kv-type T      f16 (default) or bf16: what the pool holds\n"
    "      --prefix N       eval: tokens that go through the codec, a multiple of 256 (3072)\n"
    "      --continue N     eval: tokens that are predicted after it (1024)\n"
    "      --facts N        needle: facts planted (40)\n"
    "      --tokens N       needle: tokens of a text (4000); search: tokens of the text that are run (1024)\n"
    "      --sample N       search: of which the last N are coded, a multiple of 256 (256)\n"
    "      --levels N       search: quantiser levels, 4 to 256 (64)\n"
    "      --hevc-encoder NAME  of methods that are video: kinema (default), x265-ultrafast or x265-medium\n"
    "      --hevc-tools NAME    of kinema: full (default) or basic range extension tools\n"
    "      --hevc-slices N      of a picture, 1 to 64 (chosen by size)\n"
    "  -t, --threads N      compute threads (all that the process may use)\n"
    "      --json           one JSON object a line\n"
    "  -h, --help           this text\n";

static int fail(enum kn_status status, const struct kn_err *err)
{
    return kn_app_fail("codec", "%s", err->text[0] ? err->text : kn_status_message(status));
}

/* ---- calibration */

/* KN_APP_EXIT_OK, with *out NULL when no text was named. */
static int calibrate(struct kn_model *model, const struct args *a, struct kn_eval_calibration **out)
{
    int32_t *texts[MAX_TEXTS] = {0};
    size_t n_tokens[MAX_TEXTS] = {0};
    struct kn_err err = {0};
    struct kn_app_progress progress = {0};
    int exit_status = KN_APP_EXIT_OK;
    *out = NULL;
    for (uint32_t i = 0; i < a->n_calibration && exit_status == KN_APP_EXIT_OK; i++)
        if (!(texts[i] = kn_app_read_tokens("codec", model, a->calibration[i], &n_tokens[i])))
            exit_status = KN_APP_EXIT_FAILED;
    if (a->n_calibration && exit_status == KN_APP_EXIT_OK) {
        struct kn_eval_calibration_opts co = {.size = sizeof co,
                                              .texts = (const int32_t *const *)texts,
                                              .n_tokens = n_tokens,
                                              .n_texts = a->n_calibration,
                                              .kv_type = a->kv_type,
                                              .n_threads = a->n_threads,
                                              .progress = kn_app_on_progress,
                                              .user = &progress,
                                              .ablation = a->ablation};
        kn_app_progress_init(&progress, true);
        enum kn_status status = kn_eval_calibration_open(out, model, &co, &err);
        kn_app_progress_clear(&progress);
        exit_status = status ? fail(status, &err) : KN_APP_EXIT_OK;
    }
    for (uint32_t i = 0; i < MAX_TEXTS; i++)
        free(texts[i]);
    return exit_status;
}

/* ---- eval */

struct eval_user { struct kn_app_progress progress; struct kn_report *report; };

static void on_eval_row(void *user, const struct kn_eval_row *row)
{
    kn_report_add(((struct eval_user *)user)->report, row);
}

static int print_report(const struct kn_report *report, const struct kn_report_head *head, bool json)
{
    if (!json) {
        kn_report_print(report, head);
        return KN_APP_EXIT_OK;
    }
    json_t *object = kn_report_json(report, head);
    bool ok = kn_app_json_print(object, stdout);
    json_decref(object);
    return ok ? KN_APP_EXIT_OK : KN_APP_EXIT_FAILED;
}

static int eval_text(struct kn_model *model, const struct args *a, const char *path, struct kn_eval_calibration *calibration, struct kn_report *report)
{
    size_t n = 0;
    int32_t *tokens = kn_app_read_tokens("codec", model, path, &n);
    if (!tokens)
        return KN_APP_EXIT_FAILED;
    struct eval_user user = {.report = report};
    struct kn_err err = {0};
    struct kn_eval_opts eo = {.size = sizeof eo,
                              .tokens = tokens,
                              .n_tokens = n,
                              .prefix = a->prefix,
                              .continue_ = a->continue_,
                              .profile_path = a->profile,
                              .kv_type = a->kv_type,
                              .n_threads = a->n_threads,
                              .only = a->only,
                              .ablation = a->ablation,
                              .calibration = calibration,
                              .hevc = &a->hevc,
                              .on_row = on_eval_row,
                              .progress = kn_app_on_progress,
                              .user = &user};
    kn_app_progress_init(&user.progress, true);
    fprintf(stderr, "codec: %s\n", path);
    enum kn_status status = kn_codec_eval(model, &eo, &err);
    kn_app_progress_clear(&user.progress);
    free(tokens);
    return status ? fail(status, &err) : KN_APP_EXIT_OK;
}

static int eval(struct kn_model *model, const struct args *a, struct kn_eval_calibration *calibration)
{
    int exit_status = KN_APP_EXIT_OK;
    struct kn_report *reports = calloc(a->n_texts + 1, sizeof *reports); /* the last one: the mean */
    json_t *machine = kn_app_json_machine();
    struct kn_report_head head = {.model = kn_model_info(model)->path, .prefix = a->prefix, .continue_ = a->continue_, .kv_type = a->kv_type, .machine = machine,
                                  .hevc_encoder = kn_app_hevc_encoder_name(&a->hevc), .hevc_tools = kn_app_hevc_tools_name(&a->hevc)};
    struct kn_learned learned = {0};
    if (!reports)
        return kn_app_fail("codec", "out of memory");
    if (!a->json)
        printf("%s, %" JSON_INTEGER_FORMAT " cores, commit %s, model %s\n", json_string_value(json_object_get(machine, "cpu")),
               json_integer_value(json_object_get(machine, "cores")), kn_app_commit, head.model);
    kn_learned_read(&learned, a->profile);
    if (!a->json)
        kn_learned_print(&learned);
    head.profile = kn_learned_json(&learned);
    for (uint32_t i = 0; i < a->n_texts && exit_status == KN_APP_EXIT_OK; i++) {
        exit_status = eval_text(model, a, a->texts[i], calibration, &reports[i]);
        head.text = a->texts[i];
        struct kn_learned_run run = {.path = a->texts[i], .earlier = a->texts, .n_earlier = i, .prefix = a->prefix,
                                     .calibration = a->calibration, .n_calibration = a->n_calibration};
        if (exit_status == KN_APP_EXIT_OK)
            head.hints = kn_learned_hints(&learned, &reports[i], &run);
        if (exit_status == KN_APP_EXIT_OK)
            exit_status = print_report(&reports[i], &head, a->json);
        json_decref(head.hints);
        head.hints = NULL;
        fflush(stdout);
    }
    if (exit_status == KN_APP_EXIT_OK && a->n_texts > 1) {
        kn_report_mean(&reports[a->n_texts], reports, a->n_texts);
        head.text = "mean";
        exit_status = print_report(&reports[a->n_texts], &head, a->json);
    }
    json_decref(machine);
    json_decref(head.profile);
    json_decref(learned.texts);
    free(reports);
    return exit_status;
}

/* ---- needle */

struct needle_user { struct kn_app_progress progress; json_t *rows; bool json; };

static void on_needle_row(void *user, const struct kn_needle_row *row)
{
    struct needle_user *u = user;
    kn_app_progress_clear(&u->progress);
    if (u->json)
        json_array_append_new(u->rows, json_pack("{s:s, s:s, s:I, s:I, s:o}", "method", row->method, "preset", row->preset, "facts", (json_int_t)row->n_facts, "right",
                                                 (json_int_t)row->n_right, "mean_logprob", isfinite(row->mean_logprob) ? json_real(row->mean_logprob) : json_null()));
    else
        printf("%-15s %-12s %6" PRIu32 " of %-6" PRIu32 " %12.3f\n", row->method, row->preset, row->n_right, row->n_facts, row->mean_logprob);
}

static int needle(struct kn_model *model, const struct args *a, struct kn_eval_calibration *calibration)
{
    const char *why = NULL;
    size_t n_bytes = 0;
    char *text = kn_app_read_file(a->texts[0], &n_bytes, &why);
    if (!text)
        return kn_app_fail("codec", "%s: %s", a->texts[0], why);
    struct needle_user user = {.rows = json_array(), .json = a->json};
    struct kn_err err = {0};
    struct kn_needle_opts no = {.size = sizeof no,
                                .text = text,
                                .text_bytes = n_bytes,
                                .n_facts = a->n_facts,
                                .n_tokens = a->n_tokens,
                                .profile_path = a->profile,
                                .kv_type = a->kv_type,
                                .n_threads = a->n_threads,
                                .only = a->only,
                                .calibration = calibration,
                                .hevc = &a->hevc,
                                .on_row = on_needle_row,
                                .progress = kn_app_on_progress,
                                .user = &user};
    if (a->n_tokens % 256)
        fprintf(stderr, "codec: --tokens %" PRIu32 " becomes %" PRIu32 ", whole chunks of 256\n", a->n_tokens, (a->n_tokens + 128) / 256 * 256);
    kn_app_progress_init(&user.progress, true);
    if (!a->json)
        printf("%s: %s\n\n%-15s %-12s %16s %12s\n", a->texts[0], kn_model_info(model)->path, "method", "preset", "right", "mean log p");
    enum kn_status status = kn_codec_needle(model, &no, &err);
    kn_app_progress_clear(&user.progress);
    free(text);
    if (a->json && status == KN_OK) {
        json_t *all = json_pack("{s:o, s:o, s:s, s:o, s:o, s:s}", "text", kn_app_json_text(a->texts[0], strlen(a->texts[0])), "needle", json_incref(user.rows), "kv_type",
                                kn_app_kv_type_name(a->kv_type), "model", kn_app_json_text(kn_model_info(model)->path, strlen(kn_model_info(model)->path)),
                                "machine", kn_app_json_machine(), "commit", kn_app_commit);
        kn_app_json_print(all, stdout);
        json_decref(all);
    }
    json_decref(user.rows);
    return status ? fail(status, &err) : KN_APP_EXIT_OK;
}

/* ---- search */

struct search_user { struct kn_app_progress progress; json_t *rows; bool json; struct kn_search_row best; };

static void on_search_row(void *user, const struct kn_search_row *row)
{
    struct search_user *u = user;
    kn_app_progress_clear(&u->progress);
    if (!u->best.bytes || row->bytes < u->best.bytes)
        u->best = *row;
    if (u->json)
        json_array_append_new(u->rows, json_pack("{s:I, s:I, s:I, s:I, s:I, s:f}", "tile_height", (json_int_t)row->tile_height, "head_cols", (json_int_t)row->head_cols,
                                                 "tokens_per_picture", (json_int_t)row->tokens_per_picture, "bytes_intra", (json_int_t)row->bytes_intra, "bytes",
                                                 (json_int_t)row->bytes, "ratio", row->ratio));
    else
        printf("%11" PRIu32 " %10" PRIu32 " %15" PRIu32 " %13" PRIu64 " %13" PRIu64 " %7.3f\n", row->tile_height, row->head_cols, row->tokens_per_picture, row->bytes_intra,
               row->bytes, row->ratio);
}

static int search(struct kn_model *model, const struct args *a)
{
    size_t n = 0;
    int32_t *tokens = kn_app_read_tokens("codec", model, a->texts[0], &n);
    if (!tokens)
        return KN_APP_EXIT_FAILED;
    struct search_user user = {.rows = json_array(), .json = a->json};
    struct kn_err err = {0};
    struct kn_search_opts so = {.size = sizeof so,
                                .tokens = tokens,
                                .n_tokens = n < a->n_tokens ? n : a->n_tokens,
                                .sample_tokens = a->sample,
                                .levels = a->levels,
                                .kv_type = a->kv_type,
                                .n_threads = a->n_threads,
                                .hevc = &a->hevc,
                                .on_row = on_search_row,
                                .progress = kn_app_on_progress,
                                .user = &user};
    if (n < a->n_tokens || a->n_tokens % 256) /* whole chunks are run */
        fprintf(stderr, "codec: %s has %zu tokens and --tokens is %" PRIu32 ": the first %zu, whole chunks of 256, are run\n", a->texts[0], n, a->n_tokens,
                so.n_tokens / 256 * 256);
    kn_app_progress_init(&user.progress, true);
    if (!a->json)
        printf("%11s %10s %15s %13s %13s %7s\n", "tile height", "heads wide", "tokens/picture", "intra bytes", "bytes", "ratio");
    enum kn_status status = kn_codec_search(model, &so, &err);
    kn_app_progress_clear(&user.progress);
    free(tokens);
    if (status == KN_OK && a->json) {
        json_t *all = json_pack("{s:o, s:I, s:I, s:I, s:o, s:o, s:s}", "text", kn_app_json_text(a->texts[0], strlen(a->texts[0])), "tokens",
                                (json_int_t)(so.n_tokens / 256 * 256), "sample", (json_int_t)a->sample, "levels",
                                (json_int_t)a->levels, "rows", json_incref(user.rows), "machine", kn_app_json_machine(), "commit", kn_app_commit);
        kn_app_json_print(all, stdout);
        json_decref(all);
    } else if (status == KN_OK) {
        printf("\nsmallest: tile height %" PRIu32 ", %" PRIu32 " heads side by side\n", user.best.tile_height, user.best.head_cols);
    }
    json_decref(user.rows);
    return status ? fail(status, &err) : KN_APP_EXIT_OK;
}

/* ---- arguments */

enum { OPT_TEXT = 256, OPT_PROFILE, OPT_ONLY, OPT_KV_TYPE, OPT_PREFIX, OPT_CONTINUE, OPT_FACTS, OPT_TOKENS, OPT_SAMPLE, OPT_LEVELS, OPT_CALIBRATION, OPT_NEEDLE, OPT_ABLATION, OPT_JSON };

static const struct option table[] = {
    {"model", required_argument, NULL, 'm'},          {"text", required_argument, NULL, OPT_TEXT},       {"profile", required_argument, NULL, OPT_PROFILE},
    {"only", required_argument, NULL, OPT_ONLY},      {"kv-type", required_argument, NULL, OPT_KV_TYPE}, {"prefix", required_argument, NULL, OPT_PREFIX},
    {"continue", required_argument, NULL, OPT_CONTINUE}, {"facts", required_argument, NULL, OPT_FACTS},  {"tokens", required_argument, NULL, OPT_TOKENS},
    {"sample", required_argument, NULL, OPT_SAMPLE},  {"levels", required_argument, NULL, OPT_LEVELS},   {"calibration", required_argument, NULL, OPT_CALIBRATION},
    {"needle", no_argument, NULL, OPT_NEEDLE},
    {"ablation", no_argument, NULL, OPT_ABLATION},    {"threads", required_argument, NULL, 't'},         {"json", no_argument, NULL, OPT_JSON},
    KN_APP_HEVC_OPTIONS,                              {"help", no_argument, NULL, 'h'},                  {NULL, 0, NULL, 0},
};

static int parse_number(const char *option, uint32_t min, uint32_t max, uint32_t *out)
{
    if (kn_app_parse_u32(optarg, min, max, out))
        return 0;
    return kn_app_usage_error("codec", "%s takes %" PRIu32 " to %" PRIu32 ", not \"%s\"", option, min, max, optarg);
}

static int parse_option(int option, struct args *a)
{
    static const char *const types[] = {"f16", "bf16"};
    switch (option) {
    case 'm': return kn_app_path("codec", "-m", optarg, &a->model);
    case 'h': a->help = true; break;
    case OPT_PROFILE: a->uses |= 1u << USE_PROFILE; return kn_app_path("codec", "--profile", optarg, &a->profile);
    case OPT_ONLY: a->uses |= 1u << USE_ONLY, a->only = optarg; break;
    case OPT_NEEDLE: a->needle = true; break;
    case OPT_ABLATION: a->ablation = true; break;
    case OPT_JSON: a->json = true; break;
    case KN_APP_OPT_HEVC_ENCODER:
    case KN_APP_OPT_HEVC_TOOLS:
    case KN_APP_OPT_HEVC_SLICES: return kn_app_hevc_option("codec", option, optarg, &a->hevc);
    case 't': return parse_number("-t", 1, 256, &a->n_threads);
    case OPT_PREFIX: a->uses |= 1u << USE_PREFIX; return parse_number("--prefix", 256, 1u << 20, &a->prefix);
    case OPT_CONTINUE: a->uses |= 1u << USE_CONTINUE; return parse_number("--continue", 1, 1u << 20, &a->continue_);
    case OPT_FACTS: a->uses |= 1u << USE_FACTS; return parse_number("--facts", 1, 4096, &a->n_facts);
    case OPT_TOKENS: a->uses |= 1u << USE_TOKENS; return parse_number("--tokens", 256, 1u << 20, &a->n_tokens);
    case OPT_SAMPLE: a->uses |= 1u << USE_SAMPLE; return parse_number("--sample", 256, 1u << 20, &a->sample);
    case OPT_LEVELS: a->uses |= 1u << USE_LEVELS; return parse_number("--levels", 4, 256, &a->levels);
    case OPT_TEXT:
        if (a->n_texts == MAX_TEXTS)
            return kn_app_usage_error("codec", "more than %d texts", MAX_TEXTS);
        return kn_app_path("codec", "--text", optarg, &a->texts[a->n_texts++]);
    case OPT_CALIBRATION:
        if (a->n_calibration == MAX_TEXTS)
            return kn_app_usage_error("codec", "more than %d texts to learn from", MAX_TEXTS);
        a->uses |= 1u << USE_CALIBRATION;
        return kn_app_path("codec", "--calibration", optarg, &a->calibration[a->n_calibration++]);
    case OPT_KV_TYPE: {
        int type = kn_app_parse_name(optarg, types, 2);
        if (type < 0)
            return kn_app_usage_error("codec", "--kv-type takes f16 or bf16, not \"%s\"", optarg);
        a->kv_type = type ? KN_KV_TYPE_BF16 : KN_KV_TYPE_F16;
        break;
    }
    }
    return 0;
}

/* An option that the subcommand does not heed looks as if it had been heeded. */
static int check_uses(const struct args *a, bool is_eval)
{
    static const char *const names[USE_COUNT] = {"--prefix", "--continue", "--facts", "--tokens", "--sample", "--levels", "--profile", "--calibration", "--only"};
    const uint32_t eval_uses = 1u << USE_PREFIX | 1u << USE_CONTINUE | 1u << USE_PROFILE | 1u << USE_CALIBRATION | 1u << USE_ONLY,
                   needle_uses = 1u << USE_FACTS | 1u << USE_TOKENS | 1u << USE_PROFILE | 1u << USE_CALIBRATION | 1u << USE_ONLY,
                   search_uses = 1u << USE_TOKENS | 1u << USE_SAMPLE | 1u << USE_LEVELS;
    uint32_t lost = a->uses & ~(!is_eval ? search_uses : a->needle ? needle_uses : eval_uses);
    for (unsigned i = 0; i < USE_COUNT; i++)
        if (lost & 1u << i)
            return kn_app_usage_error("codec", "%s has no effect on %s; kinema codec --help says where it belongs", names[i],
                                      !is_eval ? "search" : a->needle ? "eval --needle" : "eval without --needle");
    return 0;
}

static int parse(int argc, char **argv, struct args *a)
{
    opterr = 0;
    optind = 1;
    for (int option; (option = getopt_long(argc, argv, ":m:t:h", table, NULL)) != -1;) {
        if (option == '?' || option == ':')
            return kn_app_usage_error("codec", option == ':' ? "%s needs a value" : "there is no option %s", argv[optind - 1]);
        int status = parse_option(option, a);
        if (status)
            return status;
    }
    if (a->help)
        return 0;
    if (optind < argc)
        a->what = argv[optind++];
    if (!a->what || (strcmp(a->what, "eval") && strcmp(a->what, "search")))
        return kn_app_usage_error("codec", "say what to do: eval, search, encode, decode or inspect; kinema codec --help explains");
    if (optind < argc)
        return kn_app_usage_error("codec", "unexpected \"%s\"", argv[optind]);
    bool is_eval = !strcmp(a->what, "eval");
    if (!a->n_texts)
        return kn_app_usage_error("codec", "%s needs --text FILE", a->what);
    if (a->n_texts > 1 && (!is_eval || a->needle))
        return kn_app_usage_error("codec", "%s takes one --text", is_eval ? "--needle" : "search");
    if ((a->needle && !is_eval) || (a->ablation && (!is_eval || a->needle)))
        return kn_app_usage_error("codec", "%s belongs to eval%s", a->needle && !is_eval ? "--needle" : "--ablation", a->needle && is_eval ? " without --needle" : "");
    int status = check_uses(a, is_eval);
    if (status)
        return status;
    if (a->prefix % 256 || a->sample % 256)
        return kn_app_usage_error("codec", "%s takes a multiple of 256, the tokens of a chunk", a->prefix % 256 ? "--prefix" : "--sample");
    if (!a->n_tokens)
        a->n_tokens = is_eval ? 4000 : 1024;
    return 0;
}

int kn_cmd_codec(int argc, char **argv)
{
    struct args args = {.prefix = 3072, .continue_ = 1024, .n_facts = 40, .sample = 256, .levels = 64,
                        .hevc = {.size = sizeof args.hevc}};
    char path[4096], profile_path[4096];
    if (argc > 1 && (!strcmp(argv[1], "encode") || !strcmp(argv[1], "decode")))
        return kn_cmd_codec_video(argc - 1, argv + 1);
    if (argc > 1 && !strcmp(argv[1], "inspect"))
        return kn_cmd_codec_inspect(argc - 1, argv + 1);
    int exit_status = parse(argc, argv, &args);
    if (exit_status)
        return exit_status;
    if (args.help) {
        fputs(help_text, stdout);
        return KN_APP_EXIT_OK;
    }
    kn_app_log_to_stderr(KN_LOG_LEVEL_WARN);
    if (!args.model && !kn_app_default_model("codec", path, sizeof path))
        return KN_APP_EXIT_FAILED;
    struct kn_model *model = NULL;
    struct kn_err err = {0};
    struct kn_model_opts mo = {.size = sizeof mo, .path = args.model ? args.model : path};
    enum kn_status status = kn_model_open(&model, &mo, &err);
    if (status)
        return fail(status, &err);
    if (!args.profile && kn_app_default_profile(model, profile_path, sizeof profile_path))
        args.profile = profile_path;
    struct kn_eval_calibration *calibration = NULL;
    exit_status = calibrate(model, &args, &calibration);
    if (exit_status == KN_APP_EXIT_OK)
        exit_status = !strcmp(args.what, "search") ? search(model, &args) : args.needle ? needle(model, &args, calibration) : eval(model, &args, calibration);
    kn_eval_calibration_close(&calibration);
    kn_model_close(&model);
    return exit_status;
}
