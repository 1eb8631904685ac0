/* SPDX-License-Identifier: Apache-2.0 */
/*
 * kinema bench engine: prefill, decode and memory beside llama.cpp on the same GGUF, tokens and threads; rows in work.h.
 *
 * Rows with the same prompts form a group. In a group ours and the rival's two attention modes take turns, --repeat times, so
 * that a machine that slows down slows all of them; medians count, and of the rival's modes the better median. Order of a round:
 *
 *     ours: prefill, decode | flash attention on: prefill, decode | off: prefill, decode
 *
 * A mode that was slower than SLOWER of the other in the first round cannot become the better one and is not repeated; its
 * decodes are cut back and repeated without a new prefill. The rival's processes live for one group.
 *
 * resident: bytes that the process grew by since before it opened the model, ours in a child that does nothing else.
 */
#include <getopt.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "bench.h"
#include "bench_sample.h"
#include "child.h"
#include "ours.h"
#include "last_words.h"
#include "peer.h"
#include "work.h"

enum { MAX_ROWS = 32, N_MODES = 2, WARM_TOKENS = 64 };
#define SLOWER 0.85

/* Speeds that one side showed in a group, tokens per second. */
struct runs {
    double prefill[KN_BENCH_MAX_REPEAT], decode[KN_BENCH_MAX_REPEAT];
    uint32_t n_prefill, n_decode;
    uint64_t resident, peak; /* bytes; 0: not measured */
};

struct group {
    uint32_t n_tokens, n_seqs;
    bool wants[KN_WORK_N_KINDS]; /* by enum kn_work_kind */
    struct runs ours, peer[N_MODES];
};

struct bench {
    const char *model_arg, *peer, *peer_python_arg, *peer_script_arg;
    char model_path[4096], peer_python[4096], peer_script[4096], tokens_path[256];
    struct kn_work rows[MAX_ROWS];
    struct group *groups; /* [MAX_ROWS] */
    json_t *sampled; /* rows that are sampled: see bench_sample.h */
    uint32_t n_rows, n_groups, n_threads, n_decode, repeat, chunk, resident_child;
    bool json, help;
    struct kn_model *model;
    int32_t *tokens; /* as many as the longest prompts */
    struct kn_peer peers[N_MODES];
    json_t *peer_hello; /* or NULL */
    double read_bytes_s, flops;
    uint64_t begin_ns;
};

static void help(void)
{
    fputs("usage: kinema bench engine [-m MODEL] [--peer llama.cpp] [--rows LIST] [-t N] [--json]\n\n"
          "  -m, --model FILE        GGUF; default $KINEMA_MODEL, else the demo model in the cache folder\n"
          "      --rows LIST         what to measure: prefill_N, decode_N, decode_N_xSEQUENCES,\n"
          "                          sampled_N_xSEQUENCES, resident_N, with commas\n"
          "                          (" KN_WORK_DEFAULT ")\n"
          "      --peer llama.cpp    measure it too; `make bench-peers` builds it\n"
          "      --peer-python PATH  python that has llama_cpp (cache folder's peers/bin/python)\n"
          "      --peer-script PATH  peer_llamacpp.py (beside the program's sources or in ../share/kinema)\n"
          "      --decode N          tokens decoded after the prompt (32)\n"
          "      --repeat N          odd number of repetitions (3)\n"
          "      --chunk N           prompt tokens per step (the engine's default)\n"
          "  -t, --threads N         threads of both (all that the process may use)\n"
          "      --json              one object: machine, commit, rows\n",
          stdout);
}

static bool parse_rows(struct bench *b, const char *list)
{
    char copy[1024];
    if (strlen(list) >= sizeof copy)
        return false;
    snprintf(copy, sizeof copy, "%s", list);
    b->n_rows = 0;
    for (char *rest = copy, *word; (word = strsep(&rest, ","));)
        if (b->n_rows == MAX_ROWS || !kn_work_parse(word, &b->rows[b->n_rows++]))
            return false;
    return true;
}

static int parse(struct bench *b, int argc, char **argv)
{
    static const struct option table[] = {
        {"model", required_argument, NULL, 'm'},       {"peer", required_argument, NULL, 'p'},    {"peer-python", required_argument, NULL, 'y'},
        {"peer-script", required_argument, NULL, 's'}, {"rows", required_argument, NULL, 'w'},    {"decode", required_argument, NULL, 'd'},
        {"repeat", required_argument, NULL, 'r'},      {"threads", required_argument, NULL, 't'}, {"json", no_argument, NULL, 'j'},
        {"chunk", required_argument, NULL, 'c'},       {"help", no_argument, NULL, 'h'},          {"resident-child", required_argument, NULL, 'R'},
        {NULL, 0, NULL, 0},
    };
    opterr = 0;
    optind = 1;
    for (int option; (option = getopt_long(argc, argv, ":m:t:h", table, NULL)) != -1;) {
        switch (option) {
        case 'm':
            if (kn_app_path("bench", "-m", optarg, &b->model_arg))
                return KN_APP_EXIT_USAGE;
            break;
        case 'y':
            if (kn_app_path("bench", "--peer-python", optarg, &b->peer_python_arg))
                return KN_APP_EXIT_USAGE;
            break;
        case 's':
            if (kn_app_path("bench", "--peer-script", optarg, &b->peer_script_arg))
                return KN_APP_EXIT_USAGE;
            break;
        case 'j': b->json = true; break;
        case 'h': b->help = true; return KN_APP_EXIT_OK;
        case 'p':
            if (strcmp(optarg, "llama.cpp"))
                return kn_app_usage_error("bench", "--peer knows llama.cpp only, not \"%s\"", optarg);
            b->peer = optarg;
            break;
        case 'w':
            if (!parse_rows(b, optarg))
                return kn_app_usage_error("bench", "--rows takes up to %d names such as prefill_512, decode_512_x8, resident_512 with commas, not \"%s\"", MAX_ROWS, optarg);
            break;
        case 'd':
            if (!kn_app_parse_u32(optarg, 1, 4096, &b->n_decode))
                return kn_app_usage_error("bench", "--decode takes 1 to 4096 tokens, not \"%s\"", optarg);
            break;
        case 'r':
            if (!kn_app_parse_u32(optarg, 1, KN_BENCH_MAX_REPEAT, &b->repeat) || b->repeat % 2 == 0)
                return kn_app_usage_error("bench", "--repeat takes an odd number up to %d, not \"%s\"", KN_BENCH_MAX_REPEAT, optarg);
            break;
        case 'c':
            if (!kn_app_parse_u32(optarg, 1, 8192, &b->chunk))
                return kn_app_usage_error("bench", "--chunk takes 1 to 8192 tokens, not \"%s\"", optarg);
            break;
        case 't':
            if (!kn_app_parse_u32(optarg, 1, 256, &b->n_threads))
                return kn_app_usage_error("bench", "-t takes 1 to 256 threads, not \"%s\"", optarg);
            break;
        case 'R':
            if (!kn_app_parse_u32(optarg, 1, 1u << 20, &b->resident_child))
                return kn_app_usage_error("bench", "--resident-child is for the benchmark itself");
            break;
        case ':': return kn_app_usage_error("bench", "%s needs a value", argv[optind - 1]);
        default: return kn_app_usage_error("bench", "there is no option %s", argv[optind - 1]);
        }
    }
    if (!b->peer && (b->peer_python_arg || b->peer_script_arg))
        return kn_app_usage_error("bench", "%s has no effect without --peer llama.cpp", b->peer_python_arg ? "--peer-python" : "--peer-script");
    return optind < argc ? kn_app_usage_error("bench", "unexpected \"%s\"", argv[optind]) : KN_APP_EXIT_OK;
}

static void say(const struct bench *b, const struct group *g, const char *what, uint32_t round)
{
    fprintf(stderr, "bench: %4.0f s  %" PRIu32 " x %" PRIu32 " tokens, round %" PRIu32 " of %" PRIu32 ": %s\n",
            (double)(kn_app_now_ns() - b->begin_ns) / 1e9, g->n_seqs, g->n_tokens, round + 1, b->repeat, what);
}

static struct kn_ours_opts ours_opts(const struct bench *b, uint32_t n_tokens, uint32_t n_seqs, bool reuse)
{
    return (struct kn_ours_opts){.model = b->model, .tokens = b->tokens, .n_tokens = n_tokens, .n_seqs = n_seqs, .n_decode = b->n_decode,
                                 .n_threads = b->n_threads, .chunk = b->chunk, .reuse = reuse};
}

static bool open_model(struct bench *b)
{
    struct kn_err err = {0};
    struct kn_model_opts mo = {.size = sizeof mo, .path = b->model_path};
    enum kn_status s = kn_model_open(&b->model, &mo, &err);
    if (s)
        kn_app_fail("bench", "%s", err.text[0] ? err.text : kn_status_message(s));
    return s == KN_OK;
}

/* ---- memory of ours */

/* The child: prompt, some decoding, and what the process holds by then. */
static int run_resident_child(struct bench *b)
{
    uint64_t before, resident, peak;
    struct kn_ours ours = {0};
    double prefill, decode;
    bool ok = kn_ours_memory(&before, &peak) && open_model(b) && (b->tokens = kn_ours_make_tokens(b->model, b->resident_child));
    if (ok) {
        struct kn_ours_opts o = ours_opts(b, b->resident_child, 1, false);
        ok = kn_ours_open(&ours, &o) && kn_ours_round(&ours, &prefill, &decode);
    }
    if (ok && kn_ours_memory(&resident, &peak)) {
        json_t *o = json_pack("{s:I, s:I, s:I}", "resident", (json_int_t)resident, "peak", (json_int_t)peak, "before", (json_int_t)before);
        ok = kn_app_json_print(o, stdout);
        json_decref(o);
    }
    kn_ours_close(&ours);
    return ok ? KN_APP_EXIT_OK : KN_APP_EXIT_FAILED;
}

static bool take_memory(struct runs *runs, json_t *answer)
{
    json_int_t before = json_integer_value(json_object_get(answer, "before"));
    json_int_t resident = json_integer_value(json_object_get(answer, "resident")), peak = json_integer_value(json_object_get(answer, "peak"));
    runs->resident = resident > before ? (uint64_t)(resident - before) : 0;
    runs->peak = peak > before ? (uint64_t)(peak - before) : 0;
    json_decref(answer);
    return runs->resident != 0;
}

static bool measure_our_memory(struct bench *b, struct group *g)
{
    char tokens[16], threads[16], decode[16], chunk[16];
    snprintf(tokens, sizeof tokens, "%" PRIu32, g->n_tokens);
    snprintf(threads, sizeof threads, "%" PRIu32, b->n_threads);
    snprintf(decode, sizeof decode, "%" PRIu32, b->n_decode);
    snprintf(chunk, sizeof chunk, "%" PRIu32, b->chunk);
    const char *args[] = {"bench", "engine", "-m", b->model_path, "-t", threads, "--decode", decode, "--resident-child", tokens, "--chunk", chunk};
    struct kn_child c = {0};
    for (size_t i = 0; i < sizeof args / sizeof *args - (b->chunk ? 0 : 2); i++)
        kn_child_add(&c, args[i]);
    return take_memory(&g->ours, kn_child_json("bench", "/proc/self/exe", &c));
}

/* ---- groups */

static bool write_tokens(struct bench *b, size_t n)
{
    snprintf(b->tokens_path, sizeof b->tokens_path, "/tmp/kinema-bench-XXXXXX");
    int fd = mkstemp(b->tokens_path);
    FILE *file = fd >= 0 ? fdopen(fd, "w") : NULL;
    if (!file) {
        b->tokens_path[0] = '\0';
        kn_app_fail("bench", "cannot write the prompt to a temporary file");
        return false;
    }
    for (size_t i = 0; i < n; i++)
        fprintf(file, "%" PRId32 "\n", b->tokens[i]);
    bool bad = ferror(file) != 0;
    return !fclose(file) && !bad;
}

static bool open_peers(struct bench *b, const struct group *g, uint32_t n_ctx)
{
    for (int m = 0; m < N_MODES; m++) {
        struct kn_peer_opts po = {.python = b->peer_python, .script = b->peer_script, .model = b->model_path, .tokens = b->tokens_path,
                                  .n_threads = b->n_threads, .flash = m == 0};
        if (!kn_peer_open(&b->peers[m], &po))
            return false;
        json_t *answer = kn_peer_order(&b->peers[m], "context %" PRIu32 " %" PRIu32, n_ctx, g->n_seqs);
        if (!answer)
            return false;
        json_decref(answer);
    }
    if (!b->peer_hello)
        b->peer_hello = json_incref(b->peers[0].hello);
    return true;
}

/* The first round of every mode is in: can m still be the better one? */
static bool in_the_running(const struct runs *peer, int m, bool prefill)
{
    const double *mine = prefill ? peer[m].prefill : peer[m].decode, *other = prefill ? peer[!m].prefill : peer[!m].decode;
    return mine[0] >= SLOWER * other[0];
}

static bool measure_peer(struct bench *b, struct group *g, int m, uint32_t round)
{
    struct runs *runs = &g->peer[m];
    struct kn_peer *peer = &b->peers[m];
    bool prefill = round == 0 || (g->wants[KN_WORK_KIND_PREFILL] && in_the_running(g->peer, m, true));
    bool decode = round == 0 || (g->wants[KN_WORK_KIND_DECODE] && in_the_running(g->peer, m, false));
    if (!prefill && !decode)
        return true;
    say(b, g, m ? "llama.cpp" : "llama.cpp with flash attention", round);
    if (prefill) {
        double s = kn_peer_seconds(peer, "prefill", g->n_tokens, 0);
        if (s <= 0)
            return false;
        runs->prefill[runs->n_prefill++] = g->n_seqs * (double)g->n_tokens / s;
    }
    if (decode) {
        double s = kn_peer_seconds(peer, "decode", g->n_tokens, b->n_decode);
        if (s <= 0)
            return false;
        runs->decode[runs->n_decode++] = g->n_seqs * (double)b->n_decode / s;
    }
    if (round == 0 && g->wants[KN_WORK_KIND_RESIDENT] && !take_memory(runs, kn_peer_order(peer, "memory")))
        return false;
    return true;
}

/* Weights and code are touched once, so that the first round is as good as another. */
static bool warm_up(struct bench *b, const struct group *g, struct kn_ours *ours)
{
    double prefill, decode;
    uint32_t n = g->n_tokens < WARM_TOKENS ? g->n_tokens : WARM_TOKENS;
    ours->n_tokens = n;
    if (!kn_ours_round(ours, &prefill, &decode))
        return false;
    ours->n_tokens = g->n_tokens;
    for (int m = 0; b->peer && m < N_MODES; m++)
        if (kn_peer_seconds(&b->peers[m], "prefill", n, 0) <= 0 || kn_peer_seconds(&b->peers[m], "decode", n, 4) <= 0)
            return false;
    return true;
}

static bool measure_group(struct bench *b, struct group *g)
{
    bool speeds = g->wants[KN_WORK_KIND_PREFILL] || g->wants[KN_WORK_KIND_DECODE];
    struct kn_ours_opts o = ours_opts(b, g->n_tokens, g->n_seqs, !g->wants[KN_WORK_KIND_PREFILL]);
    struct kn_ours ours = {0};
    if (g->wants[KN_WORK_KIND_RESIDENT]) {
        say(b, g, "kinema's memory", 0);
        if (!measure_our_memory(b, g))
            return false;
    }
    bool ok = kn_ours_open(&ours, &o);
    if (ok && !b->n_threads)
        b->n_threads = kn_ours_n_threads(&ours); /* the rival gets as many */
    ok = ok && (!b->peer || open_peers(b, g, kn_ours_n_ctx(&o))) && warm_up(b, g, &ours);
    for (uint32_t r = 0; ok && r < (speeds ? b->repeat : 1); r++) {
        if (speeds) {
            double seconds = 0;
            say(b, g, "kinema", r);
            ok = kn_ours_round(&ours, &seconds, &g->ours.decode[r]);
            g->ours.prefill[r] = seconds > 0 ? g->n_seqs * (double)g->n_tokens / seconds : 0;
            g->ours.n_prefill = g->ours.n_decode = r + 1;
        }
        for (int m = 0; ok && b->peer && m < N_MODES; m++)
            ok = measure_peer(b, g, m, r);
    }
    kn_ours_close(&ours);
    for (int m = 0; m < N_MODES; m++)
        kn_peer_close(&b->peers[m]);
    return ok;
}

static void make_groups(struct bench *b)
{
    for (uint32_t i = 0; i < b->n_rows; i++) {
        uint32_t k = 0;
        if (b->rows[i].kind == KN_WORK_KIND_SAMPLED)
            continue;
        while (k < b->n_groups && (b->groups[k].n_tokens != b->rows[i].n_tokens || b->groups[k].n_seqs != b->rows[i].n_seqs))
            k++;
        if (k == b->n_groups)
            b->groups[b->n_groups++] = (struct group){.n_tokens = b->rows[i].n_tokens, .n_seqs = b->rows[i].n_seqs};
        b->groups[k].wants[b->rows[i].kind] = true;
    }
}

/* ---- results */

static double value(const struct runs *r, enum kn_work_kind kind)
{
    return kind == KN_WORK_KIND_RESIDENT ? (double)r->resident : kind == KN_WORK_KIND_PREFILL ? kn_bench_median(r->prefill, r->n_prefill) : kn_bench_median(r->decode, r->n_decode);
}

static json_t *list(const struct runs *r, enum kn_work_kind kind)
{
    json_t *all = json_array();
    const double *values = kind == KN_WORK_KIND_PREFILL ? r->prefill : r->decode;
    for (uint32_t i = 0; i < (kind == KN_WORK_KIND_PREFILL ? r->n_prefill : r->n_decode); i++)
        json_array_append_new(all, json_real(values[i]));
    return all;
}

static json_t *row_result(const struct bench *b, const struct kn_work *w)
{
    const struct group *g = b->groups;
    while (g->n_tokens != w->n_tokens || g->n_seqs != w->n_seqs)
        g++;
    bool less_is_better = w->kind == KN_WORK_KIND_RESIDENT;
    double ours = value(&g->ours, w->kind), peer = 0, target = kn_work_target(w);
    int mode = 0;
    for (int m = 0; b->peer && m < N_MODES; m++) {
        double v = value(&g->peer[m], w->kind);
        if (m == 0 || (less_is_better ? v < peer : v > peer))
            peer = v, mode = m;
    }
    double floor = kn_work_floor(w, kn_model_info(b->model), b->n_decode, b->read_bytes_s, b->flops);
    double ratio = less_is_better ? peer / ours : ours / peer, floor_ratio = less_is_better ? ours / floor : floor / ours;
    char name[KN_WORK_NAME_BYTES];
    kn_work_name(w, name);
    json_t *row = json_object();
    json_object_set_new(row, "work", json_string(name));
    json_object_set_new(row, "unit", json_string(less_is_better ? "bytes" : "tok/s"));
    json_object_set_new(row, "ours", json_real(ours));
    json_object_set_new(row, "peer", b->peer ? json_real(peer) : json_null());
    json_object_set_new(row, "ratio", b->peer ? json_real(ratio) : json_null());
    json_object_set_new(row, "target", target > 0 ? json_real(target) : json_null());
    json_object_set_new(row, "met", b->peer && target > 0 ? json_boolean(ratio >= target) : json_null());
    json_object_set_new(row, "floor", json_real(floor));
    json_object_set_new(row, "floor_ratio", json_real(floor_ratio));
    json_object_set_new(row, "peer_flash_attention", b->peer ? json_boolean(mode == 0) : json_null());
    if (less_is_better) {
        json_object_set_new(row, "ours_peak", json_integer((json_int_t)g->ours.peak));
        json_object_set_new(row, "peer_peak", b->peer ? json_integer((json_int_t)g->peer[mode].peak) : json_null());
    } else {
        json_object_set_new(row, "ours_runs", list(&g->ours, w->kind));
        json_object_set_new(row, "peer_runs", b->peer ? list(&g->peer[mode], w->kind) : json_null());
        json_object_set_new(row, "peer_other_mode_runs", b->peer ? list(&g->peer[!mode], w->kind) : json_null());
    }
    return row;
}

static json_t *results(struct bench *b)
{
    json_t *all = json_object(), *rows = json_array(), *machine = kn_app_json_machine();
    json_object_set_new(machine, "threads", json_integer(b->n_threads));
    json_object_set_new(machine, "read_gb_s", json_real(b->read_bytes_s / 1e9));
    json_object_set_new(machine, "gflops", json_real(b->flops / 1e9));
    json_object_set_new(all, "machine", machine);
    json_object_set_new(all, "commit", json_string(kn_app_commit));
    json_object_set_new(all, "model", kn_app_json_text(b->model_path, strlen(b->model_path)));
    json_t *version = json_object_get(b->peer_hello, "version"), *system = json_object_get(b->peer_hello, "system");
    json_object_set_new(all, "peer", version ? json_incref(version) : json_null());
    json_object_set_new(all, "peer_system", system ? json_incref(system) : json_null());
    json_t *build = b->peer ? kn_peer_build(b->peer_python) : NULL;
    json_object_set_new(all, "peer_build", build ? build : json_null());
    json_object_set_new(all, "repeat", json_integer(b->repeat));
    json_object_set_new(all, "seconds", json_real((double)(kn_app_now_ns() - b->begin_ns) / 1e9));
    for (uint32_t i = 0; i < b->n_rows; i++)
        if (b->rows[i].kind != KN_WORK_KIND_SAMPLED)
            json_array_append_new(rows, row_result(b, &b->rows[i]));
    json_object_set_new(all, "rows", rows);
    json_object_set(all, "sampled", b->sampled);
    return all;
}

static void cell(char out[32], const json_t *value, const char *unit)
{
    double x = json_number_value(value);
    if (json_is_null(value))
        snprintf(out, 32, "-");
    else if (unit && !strcmp(unit, "bytes"))
        snprintf(out, 32, "%.1f MB", x / 1e6);
    else
        snprintf(out, 32, unit ? "%.1f" : "%.2f", x);
}

static void print_table(const struct bench *b, const json_t *all)
{
    size_t i;
    json_t *row;
    const char *cpu = json_string_value(json_object_get(json_object_get(all, "machine"), "cpu"));
    const char *peer = json_string_value(json_object_get(all, "peer")), *note = json_string_value(json_object_get(json_object_get(all, "peer_build"), "note"));
    printf("machine  %s, %" PRIu32 " threads; memory read %.1f GB/s, fp32 peak %.0f GFLOP/s\ncommit   %s\nmodel    %s\npeer     %s%s%s\n\n",
           cpu ? cpu : "unknown", b->n_threads, b->read_bytes_s / 1e9, b->flops / 1e9, kn_app_commit, b->model_path, peer ? peer : "none",
           note ? ", built " : "", note ? note : "");
    printf("%-16s %12s %12s %7s %7s %5s %12s %9s  unit\n", "work", "ours", "peer", "ratio", "target", "met", "floor", "off floor");
    json_array_foreach(json_object_get(all, "rows"), i, row) {
        const char *unit = json_string_value(json_object_get(row, "unit"));
        char ours[32], rival[32], ratio[32], target[32], floor[32], off[32];
        cell(ours, json_object_get(row, "ours"), unit);
        cell(rival, json_object_get(row, "peer"), unit);
        cell(floor, json_object_get(row, "floor"), unit);
        cell(ratio, json_object_get(row, "ratio"), NULL);
        cell(target, json_object_get(row, "target"), NULL);
        cell(off, json_object_get(row, "floor_ratio"), NULL);
        const json_t *met = json_object_get(row, "met");
        printf("%-16s %12s %12s %7s %7s %5s %12s %9s  %s\n", json_string_value(json_object_get(row, "work")), ours, rival, ratio, target,
               json_is_null(met) ? "-" : json_is_true(met) ? "yes" : "no", floor, off, unit);
    }
    puts("\nratio: above 1, ours is faster or smaller. floor: what the measured peaks of the machine would allow (arithmetic in fp32);\n"
         "off floor: how many times slower or larger ours is than that.");
    json_array_foreach(b->sampled, i, row)
        kn_sampled_print(row);
}

static int measure(struct bench *b)
{
    size_t longest = 0, n;
    if (b->peer && !kn_peer_find(b->peer_python_arg, b->peer_script_arg, b->peer_python, b->peer_script))
        return KN_APP_EXIT_FAILED;
    for (uint32_t i = 0; i < b->n_rows; i++) {
        n = b->rows[i].n_tokens + (size_t)KN_OURS_SEQ_OFFSET * b->rows[i].n_seqs;
        longest = n > longest ? n : longest;
    }
    if (!open_model(b) || !(b->tokens = kn_ours_make_tokens(b->model, longest)) || (b->peer && !write_tokens(b, longest)))
        return KN_APP_EXIT_FAILED;
    make_groups(b);
    struct kn_ours_opts probe = ours_opts(b, 1, 1, true);
    struct kn_ours ours = {0};
    if (!b->n_threads && kn_ours_open(&ours, &probe))
        b->n_threads = kn_ours_n_threads(&ours);
    kn_ours_close(&ours);
    fprintf(stderr, "bench: the machine's peaks\n");
    b->read_bytes_s = kn_probe_read_bytes_s(b->n_threads);
    b->flops = kn_probe_flops(b->n_threads);
    for (uint32_t i = 0; i < b->n_groups; i++)
        if (!measure_group(b, &b->groups[i]))
            return KN_APP_EXIT_FAILED;
    b->sampled = json_array();
    for (uint32_t i = 0; i < b->n_rows; i++) {
        struct kn_ours_opts o = ours_opts(b, b->rows[i].n_tokens, b->rows[i].n_seqs, true);
        json_t *row = b->rows[i].kind == KN_WORK_KIND_SAMPLED ? kn_sampled_measure(&b->rows[i], &o, b->repeat) : json_null();
        if (!row)
            return KN_APP_EXIT_FAILED;
        if (!json_is_null(row))
            json_array_append_new(b->sampled, row);
    }
    json_t *all = results(b);
    if (b->json)
        kn_app_json_print(all, stdout);
    else
        print_table(b, all);
    json_decref(all);
    return KN_APP_EXIT_OK;
}

int kn_bench_engine(int argc, char **argv)
{
    struct bench *b = calloc(1, sizeof *b);
    if (!b || !(b->groups = calloc(MAX_ROWS, sizeof *b->groups))) {
        free(b);
        return kn_app_fail("bench", "out of memory");
    }
    b->n_decode = 32;
    b->repeat = 3;
    b->begin_ns = kn_app_now_ns();
    parse_rows(b, KN_WORK_DEFAULT);
    int exit_status = parse(b, argc, argv);
    if (exit_status == KN_APP_EXIT_OK && b->help) {
        help();
    } else if (exit_status == KN_APP_EXIT_OK) {
        exit_status = KN_APP_EXIT_FAILED;
        kn_app_catch_interrupt();
        kn_app_log_to_stderr(KN_LOG_LEVEL_WARN);
        if (b->model_arg)
            snprintf(b->model_path, sizeof b->model_path, "%s", b->model_arg);
        if (b->model_arg || kn_app_default_model("bench", b->model_path, sizeof b->model_path))
            exit_status = b->resident_child ? run_resident_child(b) : measure(b);
    }
    for (int m = 0; m < N_MODES; m++)
        kn_peer_close(&b->peers[m]);
    if (b->tokens_path[0])
        unlink(b->tokens_path);
    json_decref(b->peer_hello);
    json_decref(b->sampled);
    kn_model_close(&b->model);
    free(b->tokens);
    free(b->groups);
    free(b);
    return exit_status;
}
