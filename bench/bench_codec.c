/* SPDX-License-Identifier: Apache-2.0 */
/*
 * kinema bench codec: speed of the codecs on a real prefix's K and V (kn_codec_bench), beside zstd -3 and a plain copy of the same
 * bytes in the same run, and beside the machine's multiply-add peak, measured first.
 *
 *     one thread    by processor time, fastest round: bytes a second of 16-bit values, or of symbols for the rANS stage
 *     all threads   by wall clock, chunks dealt out
 *
 * With --encoder it measures encoders of video instead (bench_hevc.c).
 *
 * The transform's operations are those of the dense product. Its way back skips symbols that are zero, so it may pass the peak.
 */
#include <getopt.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "bench.h"

struct report {
    struct kn_app_progress progress;
    json_t *rows;
    double peak; /* operations a second of one thread */
    bool json;
};

static const char help_text[] =
    "usage: kinema bench codec --text FILE [-m MODEL] [--profile FILE] [options]\n\n"
    "  -m, --model FILE    GGUF; default $KINEMA_MODEL, else the demo model in the cache folder\n"
    "      --text FILE     what the model reads; its first tokens are coded\n"
    "      --profile FILE  for fine, medium, small and their stages; default $KINEMA_PROFILE or the model's own in the cache folder;\n"
    "                      without one they are left out\n"
    "      --only LIST     of exact, fine, medium, small, tiles, rans, transform, zstd, memcpy, with commas\n"
    "      --prefix N      tokens, a multiple of 256 (1024)\n"
    "      --kv-type T     f16 (default) or bf16\n"
    "      --seconds S     of each direction of each row, 0.01 to 60, one round at least (1)\n"
    "  -t, --threads N     of the figures by wall clock, at most one a chunk of 256 tokens (all that the process may use)\n"
    "      --json          one object: machine, commit, rows\n\n"
    "       kinema bench codec --encoder LIST --text FILE [options]\n\n"
    "Encoders of lossless video, on the pictures that the presets draw of the text's K and V. Every encoder, K and V apart and together: bytes,\n"
    "bits a symbol, ratios to x265's, what is above the rows' entropy; MB/s of symbols, encoding on one thread (processor time) and on several\n"
    "(by the clock; streams side by side, and ours also slices of one picture), decoding by libavcodec on one. Every stream is decoded and\n"
    "compared: exit status 1 when one does not come back bit for bit.\n\n"
    "      --encoder LIST  of ours, x265-ultrafast, x265-medium, with commas; x265 needs its plugin\n"
    "      --hevc-tools L  of full, basic: range extension tools that ours may use, a row each (both)\n"
    "      --slices N      of a picture, where they are coded side by side, 1 to 64 (four a thread)\n"
    "      --text-order    columns of spectral pictures as in the text, not ordered by loudness as chunks have them\n"
    "      --ablation      ours also with each tool alone, with all but one, and with none\n"
    "      --only LIST     of fine, medium, small, tiles (all; without a profile tiles)\n"
    "      --seconds S     of each measurement, one round at least (0.3)\n"
    "  -t, --threads N     of the figures of several threads, 1 leaves them out (2)\n"
    "      -m, --text, --profile, --prefix, --kv-type and --json as above\n\n"
    "Entropy is that of every row of every plane by itself, exponent rows too, zero order, over a chunk's 256 tokens. So few tokens make it\n"
    "low: by about 0.7 bits a row for each different symbol that the row has after the first.\n";

/* ---- rows */

/* New object for one direction. */
static json_t *direction(const struct report *r, const struct kn_codec_bench_row *row, double tok_s, double wall_tok_s)
{
    json_t *o = json_object();
    json_object_set_new(o, "tok_s", json_real(tok_s));
    json_object_set_new(o, "mb_s", json_real(tok_s * row->bytes_per_token / 1e6));
    json_object_set_new(o, "wall_tok_s", wall_tok_s > 0 ? json_real(wall_tok_s) : json_null());
    json_object_set_new(o, "gflop_s", row->flop_per_token > 0 ? json_real(tok_s * row->flop_per_token / 1e9) : json_null());
    json_object_set_new(o, "of_peak", row->flop_per_token > 0 && r->peak > 0 ? json_real(tok_s * row->flop_per_token / r->peak) : json_null());
    return o;
}

static void print_row(const struct report *r, const struct kn_codec_bench_row *row)
{
    char ratio[16] = "-";
    if (row->ratio > 0)
        snprintf(ratio, sizeof ratio, "%.3f", row->ratio);
    printf("%-10s %-17s %7s %9.0f %8.0f %9.0f %8.0f %10.0f %10.0f", row->what, row->how, ratio, row->encode_tok_s, row->encode_tok_s * row->bytes_per_token / 1e6,
           row->decode_tok_s, row->decode_tok_s * row->bytes_per_token / 1e6, row->encode_wall_tok_s, row->decode_wall_tok_s);
    if (row->flop_per_token > 0 && r->peak > 0)
        printf("  %.1f and %.1f GFLOP/s, %.0f and %.0f %% of the peak", row->encode_tok_s * row->flop_per_token / 1e9, row->decode_tok_s * row->flop_per_token / 1e9,
               100 * row->encode_tok_s * row->flop_per_token / r->peak, 100 * row->decode_tok_s * row->flop_per_token / r->peak);
    else if (row->working_bytes)
        printf("  %s to decode", kn_app_bytes_text((double)row->working_bytes));
    putchar('\n');
    fflush(stdout);
}

static void on_row(void *user, const struct kn_codec_bench_row *row)
{
    struct report *r = user;
    kn_app_progress_clear(&r->progress);
    if (!r->json) {
        print_row(r, row);
        return;
    }
    json_t *o = json_object();
    json_object_set_new(o, "what", json_string(row->what));
    json_object_set_new(o, "how", json_string(row->how));
    json_object_set_new(o, "ratio", row->ratio > 0 ? json_real(row->ratio) : json_null());
    json_object_set_new(o, "bytes_per_token", json_real(row->bytes_per_token));
    json_object_set_new(o, "encode", direction(r, row, row->encode_tok_s, row->encode_wall_tok_s));
    json_object_set_new(o, "decode", direction(r, row, row->decode_tok_s, row->decode_wall_tok_s));
    json_object_set_new(o, "threads", json_integer(row->n_wall));
    json_object_set_new(o, "working_bytes", row->working_bytes ? json_integer((json_int_t)row->working_bytes) : json_null());
    json_array_append_new(r->rows, o);
}

/* ---- arguments */

enum { OPT_TEXT = 256, OPT_PROFILE, OPT_ONLY, OPT_PREFIX, OPT_KV_TYPE, OPT_SECONDS, OPT_ENCODER, OPT_TOOLS, OPT_ABLATION, OPT_SLICES, OPT_TEXT_ORDER, OPT_JSON };

static int parse_option(int option, struct kn_bench_codec_args *a)
{
    static const char *const types[] = {"f16", "bf16"};
    int type;
    switch (option) {
    case 'm': return kn_app_path("bench", "-m", optarg, &a->model);
    case 'h': a->help = true; break;
    case OPT_TEXT: return kn_app_path("bench", "--text", optarg, &a->text);
    case OPT_PROFILE: return kn_app_path("bench", "--profile", optarg, &a->profile);
    case OPT_ONLY: a->only = optarg; break;
    case OPT_ENCODER: a->encoders = optarg; break;
    case OPT_TOOLS: a->tools = optarg; break;
    case OPT_ABLATION: a->ablation = true; break;
    case OPT_TEXT_ORDER: a->text_order = true; break;
    case OPT_SLICES:
        if (!kn_app_parse_u32(optarg, 1, 64, &a->n_slices))
            return kn_app_usage_error("bench", "--slices takes 1 to 64, not \"%s\"", optarg);
        break;
    case OPT_JSON: a->json = true; break;
    case 't':
        if (!kn_app_parse_u32(optarg, 1, 256, &a->n_threads))
            return kn_app_usage_error("bench", "-t takes 1 to 256 threads, not \"%s\"", optarg);
        break;
    case OPT_PREFIX:
        if (!kn_app_parse_u32(optarg, 256, 1u << 20, &a->prefix) || a->prefix % 256)
            return kn_app_usage_error("bench", "--prefix takes a multiple of 256, not \"%s\"", optarg);
        break;
    case OPT_SECONDS:
        if (!kn_app_parse_f32(optarg, 0.01f, 60, &a->seconds))
            return kn_app_usage_error("bench", "--seconds takes 0.01 to 60, not \"%s\"", optarg);
        break;
    case OPT_KV_TYPE:
        if ((type = kn_app_parse_name(optarg, types, 2)) < 0)
            return kn_app_usage_error("bench", "--kv-type takes f16 or bf16, not \"%s\"", optarg);
        a->kv_type = type ? KN_KV_TYPE_BF16 : KN_KV_TYPE_F16;
        break;
    }
    return KN_APP_EXIT_OK;
}

static int parse(struct kn_bench_codec_args *a, int argc, char **argv)
{
    static const struct option table[] = {
        {"model", required_argument, NULL, 'm'},         {"text", required_argument, NULL, OPT_TEXT},     {"profile", required_argument, NULL, OPT_PROFILE},
        {"only", required_argument, NULL, OPT_ONLY},     {"prefix", required_argument, NULL, OPT_PREFIX}, {"kv-type", required_argument, NULL, OPT_KV_TYPE},
        {"seconds", required_argument, NULL, OPT_SECONDS}, {"threads", required_argument, NULL, 't'},     {"encoder", required_argument, NULL, OPT_ENCODER},
        {"hevc-tools", required_argument, NULL, OPT_TOOLS}, {"ablation", no_argument, NULL, OPT_ABLATION}, {"slices", required_argument, NULL, OPT_SLICES}, {"text-order", no_argument, NULL, OPT_TEXT_ORDER},
        {"json", no_argument, NULL, OPT_JSON},
        {"help", no_argument, NULL, 'h'},                {NULL, 0, NULL, 0},
    };
    opterr = 0;
    optind = 1;
    for (int option; (option = getopt_long(argc, argv, ":m:t:h", table, NULL)) != -1;) {
        if (option == ':' || option == '?')
            return kn_app_usage_error("bench", option == ':' ? "%s needs a value" : "there is no option %s", argv[optind - 1]);
        int status = parse_option(option, a);
        if (status || a->help)
            return status;
    }
    if (optind < argc)
        return kn_app_usage_error("bench", "unexpected \"%s\"", argv[optind]);
    if (!a->encoders && (a->tools || a->ablation || a->n_slices || a->text_order))
        return kn_app_usage_error("bench", "%s goes with --encoder", a->tools ? "--hevc-tools" : a->ablation ? "--ablation" : a->n_slices ? "--slices" : "--text-order");
    return a->text ? KN_APP_EXIT_OK : kn_app_usage_error("bench", "say what the model is to read: --text FILE");
}

/* ---- the whole */

static int print_json(const struct report *r, const struct kn_bench_codec_args *a, const struct kn_model *model)
{
    json_t *all = json_object(), *machine = kn_app_json_machine();
    const char *path = kn_model_info(model)->path;
    json_object_set_new(machine, "gflops", json_real(r->peak / 1e9));
    json_object_set_new(all, "machine", machine);
    json_object_set_new(all, "commit", json_string(kn_app_commit));
    json_object_set_new(all, "model", kn_app_json_text(path, strlen(path)));
    json_object_set_new(all, "text", kn_app_json_text(a->text, strlen(a->text)));
    json_object_set_new(all, "profile", a->profile ? kn_app_json_text(a->profile, strlen(a->profile)) : json_null());
    json_object_set_new(all, "kv_type", json_string(kn_app_kv_type_name(a->kv_type)));
    json_object_set_new(all, "prefix", json_integer(a->prefix));
    json_object_set(all, "rows", r->rows);
    bool ok = kn_app_json_print(all, stdout);
    json_decref(all);
    return ok ? KN_APP_EXIT_OK : KN_APP_EXIT_FAILED;
}

static int measure(struct kn_bench_codec_args *a, struct kn_model *model)
{
    static char found[4096];
    struct kn_err err = {0};
    struct report r = {.rows = json_array(), .json = a->json};
    size_t n = 0;
    int32_t *tokens = kn_app_read_tokens("bench", model, a->text, &n);
    if (tokens && !a->profile && kn_app_default_profile(model, found, sizeof found))
        a->profile = found;
    enum kn_status status = tokens ? KN_OK : KN_E_IO;
    if (tokens && a->encoders) {
        json_decref(r.rows);
        int exit_status = kn_bench_hevc(a, model, tokens, n);
        free(tokens);
        return exit_status;
    }
    if (tokens) {
        r.peak = kn_probe_flops_processor();
        if (!a->json) {
            json_t *machine = kn_app_json_machine();
            printf("machine  %s, %" JSON_INTEGER_FORMAT " cores; fp32 peak of one %.0f GFLOP/s\ncommit   %s\nmodel    %s\ntext     %s, %" PRIu32 " tokens, %s\n"
                   "profile  %s\n\n%-10s %-17s %7s %18s %18s %21s\n%-10s %-17s %7s %9s %8s %9s %8s %10s %10s\n",
                   json_string_value(json_object_get(machine, "cpu")), json_integer_value(json_object_get(machine, "cores")), r.peak / 1e9, kn_app_commit,
                   kn_model_info(model)->path, a->text, a->prefix, kn_app_kv_type_name(a->kv_type),
                   a->profile ? a->profile : "none: fine, medium, small and their stages are left out", "", "", "", "encode, 1 thread", "decode, 1 thread",
                   "all threads, tokens/s", "what", "how", "ratio", "tokens/s", "MB/s", "tokens/s", "MB/s", "encode", "decode");
            json_decref(machine);
        }
        struct kn_codec_bench_opts o = {.size = sizeof o,
                                        .tokens = tokens,
                                        .n_tokens = n,
                                        .prefix = a->prefix,
                                        .profile_path = a->profile,
                                        .kv_type = a->kv_type,
                                        .n_threads = a->n_threads,
                                        .seconds = (double)a->seconds,
                                        .only = a->only,
                                        .on_row = on_row,
                                        .progress = kn_app_on_progress,
                                        .user = &r};
        kn_app_progress_init(&r.progress, true);
        status = kn_codec_bench(model, &o, &err);
        kn_app_progress_clear(&r.progress);
        if (status)
            kn_app_fail("bench", "%s", err.text[0] ? err.text : kn_status_message(status));
    }
    int exit_status = status ? KN_APP_EXIT_FAILED : a->json ? print_json(&r, a, model) : KN_APP_EXIT_OK;
    json_decref(r.rows);
    free(tokens);
    return exit_status;
}

int kn_bench_codec(int argc, char **argv)
{
    struct kn_bench_codec_args a = {.prefix = 1024};
    char path[4096];
    struct kn_model *model = NULL;
    struct kn_err err = {0};
    int exit_status = parse(&a, argc, argv);
    if (exit_status)
        return exit_status;
    if (a.help) {
        fputs(help_text, stdout);
        return KN_APP_EXIT_OK;
    }
    kn_app_catch_interrupt();
    kn_app_log_to_stderr(KN_LOG_LEVEL_WARN);
    if (a.model)
        snprintf(path, sizeof path, "%s", a.model);
    else if (!kn_app_default_model("bench", path, sizeof path))
        return KN_APP_EXIT_FAILED;
    struct kn_model_opts mo = {.size = sizeof mo, .path = path};
    enum kn_status status = kn_model_open(&model, &mo, &err);
    if (status)
        return kn_app_fail("bench", "%s", err.text[0] ? err.text : kn_status_message(status));
    exit_status = measure(&a, model);
    kn_model_close(&model);
    return exit_status;
}
