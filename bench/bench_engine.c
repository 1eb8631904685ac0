/* SPDX-License-Identifier: Apache-2.0 */
/*
 * kinema bench engine: tokens per second of prefill (a prompt of n tokens) and of decode (after n tokens), one sequence,
 * no store, no prefix cache, beside llama.cpp on the same GGUF, tokens and threads in the same session.
 *
 * Ours goes through the public API: prefill is n over the time to the first token, decode is the tokens after the first
 * over the time after it, stop tokens ignored. The median of the repetitions counts, after one that warms up. The rival
 * runs in a process of its own, with and without flash attention; the better median counts. "floor" is the speed that
 * the machine's measured peaks allow: single-precision arithmetic for prefill; reading the weights and the cache once a
 * token for decode.
 */
#include <getopt.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "bench.h"
#include "child.h"

enum { MAX_LENGTHS = 16, MAX_REPEAT = 99 };

struct bench {
    const char *model_arg, *peer, *peer_python_arg, *peer_script_arg, *lengths_arg;
    char model_path[4096], peer_python[4096], peer_script[4200], tokens_path[256];
    uint32_t lengths[MAX_LENGTHS], n_lengths, n_threads, n_decode, repeat, chunk;
    bool json, help;
    struct kn_model *model;
    int32_t *tokens; /* as many as the longest prompt */
    double prefill[MAX_LENGTHS], decode[MAX_LENGTHS];
    double read_bytes_s, flops;
    json_t *peer_result; /* or NULL */
};

static void help(void)
{
    fputs("usage: kinema bench engine [-m MODEL] [--peer llama.cpp] [--lengths 512,4096] [-t N] [--json]\n\n"
          "  -m, --model FILE        GGUF; default $KINEMA_MODEL, else the demo model in the cache folder\n"
          "      --peer llama.cpp    measure it too; `make bench-peers` builds it\n"
          "      --peer-python PATH  python that has llama_cpp (cache folder's peers/bin/python)\n"
          "      --peer-script PATH  peer_llamacpp.py (beside the program's sources or in ../share/kinema)\n"
          "      --lengths LIST      prompt lengths in tokens (512,4096)\n"
          "      --decode N          tokens decoded after the prompt (32)\n"
          "      --repeat N          odd number of measured repetitions (3)\n"
          "      --chunk N           prompt tokens per step (256)\n"
          "  -t, --threads N         threads of both (all that the process may use)\n"
          "      --json              one object: machine, commit, rows\n",
          stdout);
}

static bool parse_lengths(struct bench *b, const char *list)
{
    char copy[256];
    if (strlen(list) >= sizeof copy)
        return false;
    snprintf(copy, sizeof copy, "%s", list);
    b->n_lengths = 0;
    b->lengths_arg = list;
    for (char *rest = copy, *word; (word = strsep(&rest, ","));) {
        if (b->n_lengths == MAX_LENGTHS || !kn_app_parse_u32(word, 1, 1u << 20, &b->lengths[b->n_lengths++]))
            return false;
    }
    return true;
}

static int parse(struct bench *b, int argc, char **argv)
{
    static const struct option table[] = {
        {"model", required_argument, NULL, 'm'},       {"peer", required_argument, NULL, 'p'},    {"peer-python", required_argument, NULL, 'y'},
        {"peer-script", required_argument, NULL, 's'}, {"lengths", required_argument, NULL, 'l'}, {"decode", required_argument, NULL, 'd'},
        {"repeat", required_argument, NULL, 'r'},      {"threads", required_argument, NULL, 't'}, {"json", no_argument, NULL, 'j'},
        {"chunk", required_argument, NULL, 'c'},       {"help", no_argument, NULL, 'h'},          {NULL, 0, NULL, 0},
    };
    opterr = 0;
    optind = 1;
    for (int option; (option = getopt_long(argc, argv, ":m:t:h", table, NULL)) != -1;) {
        switch (option) {
        case 'm': b->model_arg = optarg; break;
        case 'y': b->peer_python_arg = optarg; break;
        case 's': b->peer_script_arg = optarg; break;
        case 'j': b->json = true; break;
        case 'h': b->help = true; return KN_APP_EXIT_OK;
        case 'p':
            if (strcmp(optarg, "llama.cpp"))
                return kn_app_usage_error("bench", "--peer knows llama.cpp only, not \"%s\"", optarg);
            b->peer = optarg;
            break;
        case 'l':
            if (!parse_lengths(b, optarg))
                return kn_app_usage_error("bench", "--lengths takes up to %d numbers with commas, not \"%s\"", MAX_LENGTHS, optarg);
            break;
        case 'd':
            if (!kn_app_parse_u32(optarg, 2, 4096, &b->n_decode))
                return kn_app_usage_error("bench", "--decode takes 2 to 4096 tokens, not \"%s\"", optarg);
            break;
        case 'r':
            if (!kn_app_parse_u32(optarg, 1, MAX_REPEAT, &b->repeat) || b->repeat % 2 == 0)
                return kn_app_usage_error("bench", "--repeat takes an odd number up to %d, not \"%s\"", MAX_REPEAT, optarg);
            break;
        case 'c':
            if (!kn_app_parse_u32(optarg, 1, 8192, &b->chunk))
                return kn_app_usage_error("bench", "--chunk takes 1 to 8192 tokens, not \"%s\"", optarg);
            break;
        case 't':
            if (!kn_app_parse_u32(optarg, 1, 256, &b->n_threads))
                return kn_app_usage_error("bench", "-t takes 1 to 256 threads, not \"%s\"", optarg);
            break;
        case ':': return kn_app_usage_error("bench", "%s needs a value", argv[optind - 1]);
        default: return kn_app_usage_error("bench", "there is no option %s", argv[optind - 1]);
        }
    }
    return optind < argc ? kn_app_usage_error("bench", "unexpected \"%s\"", argv[optind]) : KN_APP_EXIT_OK;
}

static int compare_double(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static double median(double *values, size_t n)
{
    qsort(values, n, sizeof *values, compare_double);
    return n ? values[n / 2] : 0;
}

/* Plain words over and over: the speed of dense arithmetic does not depend on them, and no text file is needed. */
static bool make_tokens(struct bench *b, size_t n)
{
    static const char words[] = " the quick brown fox jumps over a lazy dog while seven small rivers run down to the old harbour and";
    size_t have = sizeof words;
    int32_t ids[sizeof words];
    b->tokens = malloc(n * sizeof *b->tokens);
    if (!b->tokens || kn_model_tokenize(b->model, words, sizeof words - 1, 0, ids, &have) || !have) {
        kn_app_fail("bench", "cannot make the prompt");
        return false;
    }
    for (size_t i = 0; i < n; i++)
        b->tokens[i] = ids[i % have];
    return true;
}

/* One request of n prompt tokens; speeds in tokens per second. */
static enum kn_status measure_once(struct bench *b, struct kn_engine *engine, uint32_t n, double *prefill, double *decode, struct kn_err *err)
{
    struct kn_request *request = NULL;
    struct kn_request_opts ro = {.size = sizeof ro, .tokens = b->tokens, .n_tokens = n, .max_tokens = b->n_decode + 1, .ignore_stop = true};
    enum kn_status s = kn_request_submit(&request, engine, &ro, err);
    bool done = false;
    while (s == KN_OK && !done) {
        struct kn_event event;
        s = kn_request_next(request, &event);
        if (s == KN_AGAIN) {
            s = kn_engine_step(engine);
            s = s == KN_AGAIN ? KN_OK : s;
        } else if (s == KN_OK && event.kind == KN_EVENT_KIND_DONE) {
            done = true;
            s = event.reason == KN_STOP_REASON_ERROR ? event.status : KN_OK;
        }
    }
    if (s == KN_OK) {
        struct kn_request_stats st;
        kn_request_get_stats(request, &st);
        *prefill = st.ttft_ns ? (double)n * 1e9 / (double)st.ttft_ns : 0;
        *decode = st.n_generated > 1 && st.total_ns > st.ttft_ns ? (double)(st.n_generated - 1) * 1e9 / (double)(st.total_ns - st.ttft_ns) : 0;
    }
    kn_request_close(&request);
    return s;
}

static bool measure_ours(struct bench *b)
{
    struct kn_engine *engine = NULL;
    struct kn_err err = {0};
    uint32_t longest = 0;
    for (uint32_t i = 0; i < b->n_lengths; i++)
        longest = b->lengths[i] > longest ? b->lengths[i] : longest;
    struct kn_engine_opts eo = {.size = sizeof eo, .n_ctx = longest + b->n_decode + 8, .n_threads = b->n_threads, .prefill_chunk = b->chunk,
                                .no_prefix_cache = true};
    uint32_t trained = kn_model_info(b->model)->n_ctx_train;
    if (eo.n_ctx > trained) {
        kn_app_fail("bench", "%" PRIu32 " tokens do not fit the model's context of %" PRIu32, eo.n_ctx, trained);
        return false;
    }
    enum kn_status s = kn_engine_open(&engine, b->model, &eo, &err);
    for (uint32_t i = 0; i < b->n_lengths && s == KN_OK; i++) {
        double prefill[MAX_REPEAT + 1], decode[MAX_REPEAT + 1];
        for (uint32_t r = 0; r <= b->repeat && s == KN_OK; r++) {
            fprintf(stderr, "bench: kinema, %" PRIu32 " tokens, %s\n", b->lengths[i], r ? "measured" : "warming up");
            s = measure_once(b, engine, b->lengths[i], &prefill[r], &decode[r], &err);
            if (kn_app_interrupted())
                s = KN_E_CANCELLED;
        }
        b->prefill[i] = median(prefill + 1, b->repeat);
        b->decode[i] = median(decode + 1, b->repeat);
    }
    if (s == KN_OK) {
        struct kn_engine_stats stats;
        kn_engine_get_stats(engine, &stats);
        b->n_threads = stats.n_threads; /* the rival gets as many */
    } else {
        kn_app_fail("bench", "%s", err.text[0] ? err.text : kn_status_message(s));
    }
    kn_engine_close(&engine);
    return s == KN_OK;
}

/* ---- the rival */

/* Where the script is: named, beside the program's build folder, installed, or in the sources that built the program. */
static bool find_script(struct bench *b)
{
    char exe[4096];
    if (b->peer_script_arg)
        return snprintf(b->peer_script, sizeof b->peer_script, "%s", b->peer_script_arg) > 0;
    ssize_t n = readlink("/proc/self/exe", exe, sizeof exe - 1);
    exe[n > 0 ? n : 0] = '\0';
    char *slash = strrchr(exe, '/');
    if (slash)
        *slash = '\0';
    static const char *const places[] = {"../tools", "../share/kinema"};
    for (size_t i = 0; i < 2; i++) {
        snprintf(b->peer_script, sizeof b->peer_script, "%s/%s/peer_llamacpp.py", exe, places[i]);
        if (!access(b->peer_script, R_OK))
            return true;
    }
    snprintf(b->peer_script, sizeof b->peer_script, "%s/tools/peer_llamacpp.py", kn_app_source_dir);
    return !access(b->peer_script, R_OK);
}

static bool write_tokens(struct bench *b, size_t n)
{
    snprintf(b->tokens_path, sizeof b->tokens_path, "/tmp/kinema-bench-XXXXXX");
    int fd = mkstemp(b->tokens_path);
    FILE *file = fd >= 0 ? fdopen(fd, "w") : NULL;
    if (!file) {
        b->tokens_path[0] = '\0';
        return false;
    }
    for (size_t i = 0; i < n; i++)
        fprintf(file, "%" PRId32 "\n", b->tokens[i]);
    bool bad = ferror(file) != 0;
    return !fclose(file) && !bad;
}

/* Fills peer_result, or says why not: the rows then have no rival. */
static void measure_peer(struct bench *b, size_t n_tokens)
{
    char threads[16], decode[16], repeat[16];
    if (b->peer_python_arg)
        snprintf(b->peer_python, sizeof b->peer_python, "%s", b->peer_python_arg);
    else if (!kn_app_cache_path("peers/bin/python", b->peer_python, sizeof b->peer_python))
        b->peer_python[0] = '\0';
    if (!b->peer_python[0] || access(b->peer_python, X_OK)) {
        kn_app_fail("bench", "llama.cpp is not there (%s): `make bench-peers` builds it, --peer-python names another", b->peer_python);
        return;
    }
    if (!find_script(b)) {
        kn_app_fail("bench", "peer_llamacpp.py is not there (%s); name it with --peer-script", b->peer_script);
        return;
    }
    if (!write_tokens(b, n_tokens)) {
        kn_app_fail("bench", "cannot write the prompt to a temporary file");
        return;
    }
    snprintf(threads, sizeof threads, "%" PRIu32, b->n_threads);
    snprintf(decode, sizeof decode, "%" PRIu32, b->n_decode);
    snprintf(repeat, sizeof repeat, "%" PRIu32, b->repeat);
    const char *args[] = {b->peer_script, "--model", b->model_path, "--lengths", b->lengths_arg, "--threads", threads, "--decode", decode,
                          "--repeat", repeat, "--tokens", b->tokens_path};
    struct kn_child c = {0};
    for (size_t i = 0; i < sizeof args / sizeof *args; i++)
        kn_child_add(&c, args[i]);
    fprintf(stderr, "bench: llama.cpp, all lengths, with and without flash attention\n");
    b->peer_result = kn_child_json("bench", b->peer_python, &c);
}

/* Best median over the rival's settings, or 0. */
static double peer_speed(const struct bench *b, uint32_t length, const char *what, bool *flash)
{
    double best = 0;
    size_t i, k;
    json_t *row, *value;
    json_array_foreach(json_object_get(b->peer_result, "rows"), i, row) {
        double values[MAX_REPEAT];
        size_t n = 0;
        if (json_integer_value(json_object_get(row, "length")) != length)
            continue;
        json_array_foreach(json_object_get(row, what), k, value) {
            if (n < MAX_REPEAT)
                values[n++] = json_number_value(value);
        }
        double speed = median(values, n);
        if (speed > best) {
            best = speed;
            *flash = json_is_true(json_object_get(row, "flash"));
        }
    }
    return best;
}

/* ---- results */

/* Tokens per second that the machine's peaks allow. */
static double floor_speed(const struct bench *b, uint32_t length, bool prefill)
{
    const struct kn_model_info *m = kn_model_info(b->model);
    double q = (double)m->n_head * m->d_head, kv = (double)m->n_kv_head * m->d_head, embd = m->n_embd;
    if (!prefill) {
        double bytes = (double)m->file_bytes + (double)m->kv_bytes_per_token * (length + b->n_decode / 2.0);
        return b->read_bytes_s / bytes;
    }
    double linear = 2 * m->n_layer * (2 * embd * q + 2 * embd * kv + 3 * embd * m->n_ff); /* per token; the output row runs once */
    double attention = 4 * m->n_layer * q * (length / 2.0);
    return b->flops / (linear + attention);
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
    json_t *version = json_object_get(b->peer_result, "version"), *system = json_object_get(b->peer_result, "system");
    json_object_set_new(all, "peer", version ? json_incref(version) : json_null());
    json_object_set_new(all, "peer_system", system ? json_incref(system) : json_null());
    for (uint32_t i = 0; i < 2 * b->n_lengths; i++) {
        bool prefill = i < b->n_lengths, flash = false;
        uint32_t k = i % b->n_lengths;
        char work[32];
        snprintf(work, sizeof work, "%s_%" PRIu32, prefill ? "prefill" : "decode", b->lengths[k]);
        double ours = prefill ? b->prefill[k] : b->decode[k], peer = peer_speed(b, b->lengths[k], prefill ? "prefill" : "decode", &flash);
        json_t *row = json_object();
        json_object_set_new(row, "work", json_string(work));
        json_object_set_new(row, "ours", json_real(ours));
        json_object_set_new(row, "peer", peer > 0 ? json_real(peer) : json_null());
        json_object_set_new(row, "ratio", peer > 0 ? json_real(ours / peer) : json_null());
        json_object_set_new(row, "floor", json_real(floor_speed(b, b->lengths[k], prefill)));
        json_object_set_new(row, "unit", json_string("tok/s"));
        json_object_set_new(row, "peer_flash_attention", peer > 0 ? json_boolean(flash) : json_null());
        json_array_append_new(rows, row);
    }
    json_object_set_new(all, "rows", rows);
    return all;
}

static void print_table(const struct bench *b, const json_t *all)
{
    size_t i;
    json_t *row;
    const char *cpu = json_string_value(json_object_get(json_object_get(all, "machine"), "cpu"));
    const char *peer = json_string_value(json_object_get(all, "peer"));
    printf("machine  %s, %" PRIu32 " threads; memory read %.1f GB/s, fp32 peak %.0f GFLOP/s\ncommit   %s\nmodel    %s\npeer     %s\n\n",
           cpu ? cpu : "unknown", b->n_threads, b->read_bytes_s / 1e9, b->flops / 1e9, kn_app_commit, b->model_path, peer ? peer : "none");
    printf("%-14s %12s %12s %8s %12s  unit\n", "work", "ours", "peer", "ratio", "floor");
    json_array_foreach(json_object_get(all, "rows"), i, row) {
        char rival[32] = "-", ratio[32] = "-";
        if (json_is_real(json_object_get(row, "peer"))) {
            snprintf(rival, sizeof rival, "%.1f", json_real_value(json_object_get(row, "peer")));
            snprintf(ratio, sizeof ratio, "%.2f", json_real_value(json_object_get(row, "ratio")));
        }
        printf("%-14s %12.1f %12s %8s %12.1f  tok/s\n", json_string_value(json_object_get(row, "work")),
               json_real_value(json_object_get(row, "ours")), rival, ratio, json_real_value(json_object_get(row, "floor")));
    }
    puts("\nratio: ours over peer, above 1 is faster; floor: the speed that the measured peaks of the machine would allow.");
}

static int measure(struct bench *b)
{
    struct kn_err err = {0};
    struct kn_model_opts mo = {.size = sizeof mo, .path = b->model_path};
    enum kn_status s = kn_model_open(&b->model, &mo, &err);
    if (s)
        return kn_app_fail("bench", "%s", err.text[0] ? err.text : kn_status_message(s));
    size_t longest = 0;
    for (uint32_t i = 0; i < b->n_lengths; i++)
        longest = b->lengths[i] > longest ? b->lengths[i] : longest;
    if (!make_tokens(b, longest) || !measure_ours(b))
        return KN_APP_EXIT_FAILED;
    if (b->peer)
        measure_peer(b, longest);
    fprintf(stderr, "bench: the machine's peaks\n");
    b->read_bytes_s = kn_probe_read_bytes_s(b->n_threads);
    b->flops = kn_probe_flops(b->n_threads);
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
    if (!b)
        return kn_app_fail("bench", "out of memory");
    b->n_decode = 32;
    b->repeat = 3;
    parse_lengths(b, "512,4096");
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
            exit_status = measure(b);
    }
    if (b->tokens_path[0])
        unlink(b->tokens_path);
    json_decref(b->peer_result);
    kn_model_close(&b->model);
    free(b->tokens);
    free(b);
    return exit_status;
}
