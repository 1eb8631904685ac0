/* SPDX-License-Identifier: Apache-2.0 */
/*
 * kinema profile build: makes a model's profile from texts. kinema profile show: prints what is in one.
 *
 * Exit status: 0 done, 1 failed (one sentence on stderr), 2 used wrongly.
 */
#include <getopt.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "app.h"

struct args {
    const char *model, *out;
    char *const *files; /* texts to build from, or the one profile to show */
    size_t n_files;
    uint32_t n_threads, max_tokens, n_group;
    bool json, quiet, skip_bad;
};

static const char help_text[] =
    "usage: kinema profile build [-m FILE] -o PROFILE TEXT... [options]\n"
    "       kinema profile show PROFILE [--json]\n\n"
    "  build              learn from texts how a model's K and V can be coded small (presets fine, medium, small);\n"
    "                     takes some minutes. Give several texts of different kinds, such as prose, manuals and source\n"
    "                     code, 30,000 tokens or more in all. The last sixth of them is only measured on.\n"
    "                     What several of them share counts once\n"
    "  show               what a profile is for, its presets and their measured quality\n\n"
    "  -m, --model FILE   GGUF file; default: $KINEMA_MODEL or the demo model\n"
    "  -o, --out PROFILE  where to write; an old file is replaced when the new one is complete\n"
    "  -t, --threads N    default: all cores\n"
    "  --max-tokens N     of each text; default 2048\n"
    "  --skip-bad-texts   leave out what is not UTF-8 text, and say so, instead of refusing it\n"
    "  --group N          layers that are coded together; default: chosen by the model's shape\n"
    "  -q, --quiet        no progress bar\n"
    "  --json             build, show: one JSON object instead of a table\n"
    "  -h, --help         this text\n";

static const char *const preset_names[] = {"fine", "medium", "small"};

/* Rounded for people: 0.0125 rather than 0.012500000186264515. */
static json_t *real(float x)
{
    char text[32];
    snprintf(text, sizeof text, "%.6g", (double)x);
    return json_real(strtod(text, NULL));
}

static void add_text(void *user, const struct kn_profile_text *text)
{
    char hash[33];
    kn_app_hex(text->hash, hash);
    json_array_append_new(user, json_pack("{s:o, s:I, s:I, s:b, s:s}", "name", kn_app_json_text(text->name, strlen(text->name)), "bytes", (json_int_t)text->n_bytes, "tokens",
                                          (json_int_t)text->n_tokens, "held_back", (int)text->is_held_back, "hash", hash));
}

static void print_text(void *user, const struct kn_profile_text *text)
{
    char hash[33];
    (void)user;
    kn_app_hex(text->hash, hash);
    printf("%-14s %-40s %10s %7u tokens  %s\n", text->is_held_back ? "  measured on" : "", *text->name ? text->name : "(no name)", kn_app_bytes_text((double)text->n_bytes), text->n_tokens,
           hash);
}

static int show_json(const char *path, const struct kn_profile_info *info)
{
    char id[33], fingerprint[33];
    kn_app_hex(info->id, id);
    kn_app_hex(info->fingerprint, fingerprint);
    json_t *presets = json_array(), *texts = json_array();
    kn_profile_read_texts(path, add_text, texts, NULL);
    for (unsigned i = 0; i < 3; i++)
        json_array_append_new(presets, json_pack("{s:s, s:o, s:o, s:I, s:I, s:I, s:o, s:o, s:o}", "preset", preset_names[i], "step_k", real(info->presets[i].step_k), "step_v",
                                                 real(info->presets[i].step_v), "rows_k", (json_int_t)info->presets[i].rows_k, "rows_v", (json_int_t)info->presets[i].rows_v, "components",
                                                 (json_int_t)info->presets[i].components, "ratio", real(info->presets[i].ratio), "kl", real(info->presets[i].kl), "top1",
                                                 real(info->presets[i].top1)));
    json_t *j = json_pack("{s:o, s:s, s:s, s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:o, s:o}", "path", kn_app_json_text(path, strlen(path)), "id", id, "fingerprint", fingerprint, "bytes",
                          (json_int_t)info->n_bytes, "n_layer", (json_int_t)info->n_layer, "n_kv_head", (json_int_t)info->n_kv_head, "d_head", (json_int_t)info->d_head, "n_group",
                          (json_int_t)info->n_group, "n_sinks", (json_int_t)info->n_sinks, "n_calibration_tokens", (json_int_t)info->n_calibration_tokens, "texts", texts, "presets", presets);
    if (!j)
        return kn_app_fail("profile", "out of memory");
    bool ok = kn_app_json_print(j, stdout);
    json_decref(j);
    return ok ? KN_APP_EXIT_OK : KN_APP_EXIT_FAILED;
}

static int show_table(const char *path, const struct kn_profile_info *info)
{
    char id[33], fingerprint[33];
    kn_app_hex(info->id, id);
    kn_app_hex(info->fingerprint, fingerprint);
    printf("%-14s %s, %s\n", "file", path, kn_app_bytes_text((double)info->n_bytes));
    printf("%-14s %s\n", "profile", id);
    printf("%-14s %s, %u layers of %u KV heads of %u\n", "model", fingerprint, info->n_layer, info->n_kv_head, info->d_head);
    printf("%-14s %u layers together; the first %u tokens stay exact\n", "coding", info->n_group, info->n_sinks);
    printf("%-14s %llu tokens%s\n", "learned from", (unsigned long long)info->n_calibration_tokens, info->n_texts ? " of" : "; of which texts, it does not say");
    kn_profile_read_texts(path, print_text, NULL, NULL);
    putchar('\n');
    printf("%-8s %8s %8s %14s %14s %8s %9s %7s\n", "preset", "step K", "step V", "rows K", "rows V", "ratio", "KL", "top-1");
    for (unsigned i = 0; i < 3; i++) {
        char k[32], v[32];
        snprintf(k, sizeof k, "%u of %u", info->presets[i].rows_k, info->presets[i].components);
        snprintf(v, sizeof v, "%u of %u", info->presets[i].rows_v, info->presets[i].components);
        printf("%-8s %8.3f %8.3f %14s %14s %8.2f %9.5f %7.4f\n", preset_names[i], (double)info->presets[i].step_k, (double)info->presets[i].step_v, k, v, (double)info->presets[i].ratio,
               (double)info->presets[i].kl, (double)info->presets[i].top1);
    }
    puts("\nratio: 16-bit values against all bytes that travel. KL (nats) and top-1: next-token distributions after a coded\n"
         "prefix against those after the untouched one, on text held back from learning.");
    return KN_APP_EXIT_OK;
}

static int show(const char *path, const struct args *args)
{
    struct kn_profile_info info = {.size = sizeof info};
    struct kn_err err = {0};
    if (kn_app_path("profile", args->out ? "-o" : "show", path, &path))
        return KN_APP_EXIT_USAGE;
    if (kn_profile_read_info(path, &info, &err))
        return kn_app_fail("profile", "%s", err.text);
    return args->json ? show_json(path, &info) : show_table(path, &info);
}

/* Reads all texts; the exit status, after a message if it is not 0. */
static int read_texts(const struct args *args, const char **names, char **texts, size_t *n_bytes)
{
    for (size_t i = 0; i < args->n_files; i++) {
        const char *why;
        if (kn_app_path("profile", "build", args->files[i], &names[i]))
            return KN_APP_EXIT_USAGE;
        texts[i] = kn_app_read_file(names[i], &n_bytes[i], &why);
        if (!texts[i])
            return kn_app_fail("profile", "cannot read the text %s: %s", names[i], why);
    }
    return KN_APP_EXIT_OK;
}

static int build(const struct args *args)
{
    int rc = KN_APP_EXIT_FAILED;
    struct kn_err err = {0};
    struct kn_model *model = NULL;
    char path[4096];
    char **texts = calloc(args->n_files, sizeof *texts);
    size_t *n_bytes = calloc(args->n_files, sizeof *n_bytes);
    const char **names = calloc(args->n_files, sizeof *names);
    if (!texts || !n_bytes || !names) {
        kn_app_fail("profile", "out of memory");
        goto done;
    }
    if (!args->model && !kn_app_default_model("profile", path, sizeof path))
        goto done;
    if ((rc = read_texts(args, names, texts, n_bytes)))
        goto done;
    rc = KN_APP_EXIT_FAILED;
    if (kn_model_open(&model, &(struct kn_model_opts){.size = sizeof(struct kn_model_opts), .path = args->model ? args->model : path}, &err)) {
        kn_app_fail("profile", "%s", err.text);
        goto done;
    }
    struct kn_app_progress bar;
    kn_app_progress_init(&bar, !args->quiet);
    struct kn_profile_opts o = {.size = sizeof o, .texts = (const char *const *)texts, .text_bytes = n_bytes, .n_texts = args->n_files, .n_threads = args->n_threads,
                                .max_tokens = args->max_tokens, .text_names = names, .skip_doubtful = args->skip_bad, .n_group = args->n_group, .progress = kn_app_on_progress, .user = &bar};
    enum kn_status status = kn_profile_build(model, args->out, &o, &err);
    kn_app_progress_clear(&bar);
    rc = status ? kn_app_fail("profile", "%s", err.text) : show(args->out, args);
done:
    kn_model_close(&model);
    for (size_t i = 0; texts && i < args->n_files; i++)
        free(texts[i]);
    free(texts);
    free(names);
    free(n_bytes);
    return rc;
}

/* Fills args; returns -1 to go on, otherwise the exit status. */
static int parse(struct args *args, bool *to_build, int argc, char **argv)
{
    enum { OPT_MAX_TOKENS = 256, OPT_GROUP, OPT_SKIP, OPT_JSON };
    static const struct option options[] = {
        {"model", required_argument, NULL, 'm'}, {"out", required_argument, NULL, 'o'}, {"threads", required_argument, NULL, 't'},
        {"max-tokens", required_argument, NULL, OPT_MAX_TOKENS}, {"group", required_argument, NULL, OPT_GROUP}, {"quiet", no_argument, NULL, 'q'}, {"skip-bad-texts", no_argument, NULL, OPT_SKIP},
        {"json", no_argument, NULL, OPT_JSON}, {"help", no_argument, NULL, 'h'}, {NULL, 0, NULL, 0},
    };
    optind = 1;
    for (int c; (c = getopt_long(argc, argv, "m:o:t:qh", options, NULL)) != -1;) {
        switch (c) {
        case 'm':
            if (kn_app_path("profile", "-m", optarg, &args->model))
                return KN_APP_EXIT_USAGE;
            break;
        case 'o':
            if (kn_app_path("profile", "-o", optarg, &args->out))
                return KN_APP_EXIT_USAGE;
            break;
        case 't':
            if (!kn_app_parse_u32(optarg, 1, 256, &args->n_threads))
                return kn_app_usage_error("profile", "--threads takes a number from 1 to 256, not %s", optarg);
            break;
        case OPT_MAX_TOKENS:
            if (!kn_app_parse_u32(optarg, 64, 65536, &args->max_tokens))
                return kn_app_usage_error("profile", "--max-tokens takes a number from 64 to 65536, not %s", optarg);
            break;
        case OPT_GROUP:
            if (!kn_app_parse_u32(optarg, 1, 1024, &args->n_group))
                return kn_app_usage_error("profile", "--group takes a number of layers from 1 on, not %s", optarg);
            break;
        case 'q': args->quiet = true; break;
        case OPT_SKIP: args->skip_bad = true; break;
        case OPT_JSON: args->json = true; break;
        case 'h': fputs(help_text, stdout); return KN_APP_EXIT_OK;
        default: return kn_app_usage_error("profile", "see kinema profile --help"); /* getopt has said what is wrong */
        }
    }
    if (optind == argc)
        return kn_app_usage_error("profile", "what to do is missing: build or show");
    const char *what = argv[optind++];
    args->files = argv + optind;
    args->n_files = (size_t)(argc - optind);
    *to_build = !strcmp(what, "build");
    if (!*to_build && strcmp(what, "show"))
        return kn_app_usage_error("profile", "there is no %s: build and show are", what);
    if (*to_build && !args->out)
        return kn_app_usage_error("profile", "build needs -o PROFILE");
    if (*to_build && !args->n_files)
        return kn_app_usage_error("profile", "build needs texts to learn from");
    if (!*to_build && args->n_files != 1)
        return kn_app_usage_error("profile", "show takes one profile");
    if (!*to_build && (args->model || args->out || args->n_threads || args->max_tokens || args->n_group || args->quiet || args->skip_bad))
        return kn_app_usage_error("profile", "show takes no option but --json");
    return -1;
}

int kn_cmd_profile(int argc, char **argv)
{
    struct args args = {0};
    bool to_build = false;
    int rc = parse(&args, &to_build, argc, argv);
    if (rc >= 0)
        return rc;
    kn_app_log_to_stderr(KN_LOG_LEVEL_WARN);
    return to_build ? build(&args) : show(args.files[0], &args);
}
