/* SPDX-License-Identifier: Apache-2.0 */
/*
 * kinema demo: what a moved cache is worth, shown with separate processes.
 *
 *     process A: document + first question  -> answer, and the document's cache goes to the store
 *     process B: document + second question -> answer, everything recomputed
 *     process B: the same, fresh, empty pool -> answer, the document's cache fetched from the store
 *
 * the middle one once, the others once per preset. Each process is this program started anew (`kinema run --json`), so
 * nothing but the store connects them. The time to the first token counts from the submission of the prompt; loading the model is the same for both.
 * Fails when the exact preset gives other tokens than recomputing.
 */
#include <errno.h>
#include <ftw.h>
#include <getopt.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "app.h"
#include "child.h"
#include "demo_document.h"
#include "hevc_opts.h"
#include "output.h"

enum { N_PRESETS = 5, CHUNK_TOKENS = 256 };
static const char *const preset_names[N_PRESETS] = {"exact", "fine", "medium", "small", "tiles"};
static const char first_question[] = "In one sentence: what is this text about?";
static const char second_question[] = "Which command moves the cursor one word forward?";

struct demo {
    const char *model_arg, *document_arg, *store_arg, *json_path, *threads, *max_tokens, *profile_arg, *backend, *hevc[3];
    const char *questions[2];
    uint32_t document_tokens;
    bool wanted[N_PRESETS], presets_named, help;
    char program[4096], model[4096], source[4096], profile[4096]; /* profile: empty where there is none */
    char folder[256]; /* temporary: document, store */
    char document[320], store[4200];
    size_t n_document;
    json_t *rows, *answers;
    json_t *recomputed; /* process B without the store: the same for every preset */
    bool exact_differs;
};

static void help(void)
{
    printf("usage: kinema demo [-m MODEL] [--document FILE] [--store URL] [--json FILE] [--presets LIST]\n\n"
           "Shows what fetching a document's cache saves: process A reads a document, answers a question and publishes the\n"
           "cache; process B answers another question about it, once recomputing and, for each preset, fetching.\n\n"
           "  -m, --model FILE        GGUF; default $KINEMA_MODEL, else the demo model in the cache folder\n"
           "      --document FILE     default: a chapter of Vim's manual\n"
           "      --document-tokens N how much of it to read (3100)\n"
           "      --first TEXT        A's question: \"%s\"\n"
           "      --second TEXT       B's question: \"%s\"\n"
           "      --store URL         default: a temporary one, removed afterwards\n"
           "      --json FILE         write the results there too\n"
           "      --presets LIST      some of exact,fine,medium,small,tiles; default: all that can be used here\n"
           "      --profile FILE      for fine, medium and small; default $KINEMA_PROFILE, else the model's in the cache folder\n"
           "      --backend NAME      rans or hevc, for fine, medium and small (rans)\n"
           "      --hevc-encoder NAME, --hevc-tools NAME, --hevc-slices N\n"
           "                          as `kinema run` has them, for video: tiles and backend hevc\n"
           "  -n, --predict N         length of an answer, tokens (48)\n"
           "  -t, --threads N         compute threads\n",
           first_question, second_question);
}

static bool parse_presets(struct demo *d, const char *list)
{
    char copy[64];
    memset(d->wanted, 0, sizeof d->wanted);
    if (strlen(list) >= sizeof copy || !*list)
        return false;
    snprintf(copy, sizeof copy, "%s", list);
    for (char *rest = copy, *name; (name = strsep(&rest, ","));) {
        int i = kn_app_parse_name(name, preset_names, N_PRESETS);
        if (i < 0)
            return false;
        d->wanted[i] = true;
    }
    return true;
}

static int parse(struct demo *d, int argc, char **argv)
{
    static const struct option table[] = {
        {"model", required_argument, NULL, 'm'},   {"document", required_argument, NULL, 'd'}, {"store", required_argument, NULL, 's'},
        {"json", required_argument, NULL, 'j'},    {"presets", required_argument, NULL, 'P'},  {"predict", required_argument, NULL, 'n'},
        {"threads", required_argument, NULL, 't'}, {"help", no_argument, NULL, 'h'},           {"document-tokens", required_argument, NULL, 'D'},
        {"first", required_argument, NULL, '1'},   {"second", required_argument, NULL, '2'},   {"profile", required_argument, NULL, 'p'},
        {"backend", required_argument, NULL, 'b'}, KN_APP_HEVC_OPTIONS,                        {NULL, 0, NULL, 0},
    };
    uint32_t number;
    opterr = 0;
    optind = 1;
    for (int option; (option = getopt_long(argc, argv, ":m:n:t:h", table, NULL)) != -1;) {
        switch (option) {
        case 'm':
            if (kn_app_path("demo", "-m", optarg, &d->model_arg))
                return KN_APP_EXIT_USAGE;
            break;
        case 'd':
            if (kn_app_path("demo", "--document", optarg, &d->document_arg))
                return KN_APP_EXIT_USAGE;
            break;
        case 's':
            if (kn_app_url("demo", "--store", optarg, &d->store_arg))
                return KN_APP_EXIT_USAGE;
            break;
        case 'j':
            if (kn_app_path("demo", "--json", optarg, &d->json_path))
                return KN_APP_EXIT_USAGE;
            break;
        case '1': d->questions[0] = optarg; break;
        case '2': d->questions[1] = optarg; break;
        case 'h': d->help = true; return KN_APP_EXIT_OK;
        case 'p':
            if (kn_app_path("demo", "--profile", optarg, &d->profile_arg))
                return KN_APP_EXIT_USAGE;
            break;
        case 'b':
            if (strcmp(optarg, "rans") && strcmp(optarg, "hevc"))
                return kn_app_usage_error("demo", "--backend takes rans or hevc, not \"%s\"", optarg);
            d->backend = optarg;
            break;
        case 'P':
            if (!parse_presets(d, optarg))
                return kn_app_usage_error("demo", "--presets takes some of exact, fine, medium, small and tiles with commas, not \"%s\"", optarg);
            d->presets_named = true;
            break;
        case 'D':
            if (!kn_app_parse_u32(optarg, 300, 1u << 24, &d->document_tokens))
                return kn_app_usage_error("demo", "--document-tokens takes at least 300, not \"%s\"", optarg);
            break;
        case 'n':
            if (!kn_app_parse_u32(optarg, 1, 4096, &number))
                return kn_app_usage_error("demo", "-n takes 1 to 4096 tokens, not \"%s\"", optarg);
            d->max_tokens = optarg;
            break;
        case 't':
            if (!kn_app_parse_u32(optarg, 1, 256, &number))
                return kn_app_usage_error("demo", "-t takes 1 to 256 threads, not \"%s\"", optarg);
            d->threads = optarg;
            break;
        case KN_APP_OPT_HEVC_ENCODER:
        case KN_APP_OPT_HEVC_TOOLS:
        case KN_APP_OPT_HEVC_SLICES: {
            struct kn_hevc_opts checked;
            if (kn_app_hevc_option("demo", option, optarg, &checked))
                return KN_APP_EXIT_USAGE;
            d->hevc[option - KN_APP_OPT_HEVC_ENCODER] = optarg;
            break;
        }
        case ':': return kn_app_usage_error("demo", "%s needs a value", argv[optind - 1]);
        default: return kn_app_usage_error("demo", "there is no option %s", argv[optind - 1]);
        }
    }
    if (optind < argc)
        return kn_app_usage_error("demo", "unexpected \"%s\"", argv[optind]);
    bool spectral = !d->presets_named, video = !d->presets_named;
    for (size_t i = 0; i < N_PRESETS; i++) {
        bool of_profile = d->wanted[i] && strcmp(preset_names[i], "exact") && strcmp(preset_names[i], "tiles");
        spectral |= of_profile;
        video |= d->wanted[i] && (!strcmp(preset_names[i], "tiles") || (of_profile && d->backend && !strcmp(d->backend, "hevc")));
    }
    if (!spectral && (d->profile_arg || d->backend))
        return kn_app_usage_error("demo", "%s belongs to the presets fine, medium and small, and --presets names none of them", d->profile_arg ? "--profile" : "--backend");
    if (!video && (d->hevc[0] || d->hevc[1] || d->hevc[2]))
        return kn_app_usage_error("demo", "--hevc-encoder, --hevc-tools and --hevc-slices belong to video: preset tiles, or --backend hevc");
    return KN_APP_EXIT_OK;
}

static int remove_entry(const char *path, const struct stat *st, int kind, struct FTW *where)
{
    (void)st, (void)kind, (void)where;
    return remove(path);
}

static bool make_folder(struct demo *d)
{
    const char *base = getenv("TMPDIR");
    int n = snprintf(d->folder, sizeof d->folder, "%s/kinema-demo-XXXXXX", base && *base ? base : "/tmp");
    if (n < 0 || (size_t)n >= sizeof d->folder || !mkdtemp(d->folder)) {
        kn_app_fail("demo", "cannot make a temporary folder %s: %s", d->folder, strerror(errno));
        d->folder[0] = '\0';
        return false;
    }
    snprintf(d->document, sizeof d->document, "%s/document.txt", d->folder);
    if (d->store_arg)
        snprintf(d->store, sizeof d->store, "%s", d->store_arg);
    else
        snprintf(d->store, sizeof d->store, "lmdb:%s/store", d->folder);
    return true;
}

static bool needs_profile(const char *preset)
{
    int i = kn_app_parse_name(preset, kn_app_preset_names, KN_APP_N_PRESETS);
    return i > 0 && kn_app_preset_needs_profile((enum kn_preset)i);
}

/* Runs a fresh process. with_store: NULL, or the preset to use it with. */
static json_t *ask(struct demo *d, const char *question, const char *with_store, bool publish, const char *what)
{
    struct kn_child c = {0};
    const char *fixed[] = {"run", "-m", d->model, "-f", d->document, "-p", question, "-n", d->max_tokens, "--json"};
    for (size_t i = 0; i < sizeof fixed / sizeof *fixed; i++)
        kn_child_add(&c, fixed[i]);
    if (d->threads) {
        kn_child_add(&c, "-t");
        kn_child_add(&c, d->threads);
    }
    if (with_store) {
        const char *store[] = {"--store", d->store, "--preset", with_store, publish ? "--no-fetch" : "--no-publish"};
        for (size_t i = 0; i < sizeof store / sizeof *store; i++)
            kn_child_add(&c, store[i]);
        if (needs_profile(with_store)) {
            const char *spectral[] = {"--profile", d->profile, "--backend", d->backend ? d->backend : "rans"};
            for (size_t i = 0; i < sizeof spectral / sizeof *spectral; i++)
                kn_child_add(&c, spectral[i]);
        }
        static const char *const names[3] = {"--hevc-encoder", "--hevc-tools", "--hevc-slices"};
        bool video = !strcmp(with_store, "tiles") || (needs_profile(with_store) && d->backend && !strcmp(d->backend, "hevc"));
        for (size_t i = 0; video && i < 3; i++)
            if (d->hevc[i]) {
                kn_child_add(&c, names[i]);
                kn_child_add(&c, d->hevc[i]);
            }
    }
    fprintf(stderr, "demo: %s\n", what);
    return kn_child_json("demo", d->program, &c);
}

static double number(const json_t *o, const char *key)
{
    return json_number_value(json_object_get(o, key));
}

static json_int_t whole(const json_t *o, const char *key)
{
    return json_integer_value(json_object_get(o, key));
}

static const char *text(const json_t *o, const char *key)
{
    const char *s = json_string_value(json_object_get(o, key));
    return s ? s : "";
}

/* Tokens at the start on which both agree. */
static size_t agreement(const json_t *a, const json_t *b, size_t *n)
{
    const json_t *x = json_object_get(a, "tokens"), *y = json_object_get(b, "tokens");
    size_t nx = json_array_size(x), ny = json_array_size(y), i = 0;
    *n = nx > ny ? nx : ny;
    while (i < nx && i < ny && json_integer_value(json_array_get(x, i)) == json_integer_value(json_array_get(y, i)))
        i++;
    return i;
}

static bool add_row(struct demo *d, size_t preset, const json_t *a, const json_t *fetched)
{
    const json_t *recomputed = d->recomputed;
    bool lossy = json_is_true(json_object_get(fetched, "lossy"));
    json_int_t prefix = whole(fetched, "fetched_tokens"), raw = prefix * whole(fetched, "kv_bytes_per_token");
    json_int_t stored = whole(fetched, "fetch_bytes");
    double slow = number(recomputed, "ttft_s"), fast = number(fetched, "ttft_s");
    size_t n, same = agreement(recomputed, fetched, &n);
    if (!prefix || !stored || fast <= 0) {
        kn_app_fail("demo", "preset %s: process B fetched nothing (%" PRId64 " misses, %" PRId64 " chunks published by A)", preset_names[preset],
                    (int64_t)whole(fetched, "misses"), (int64_t)whole(json_object_get(a, "published"), "chunks"));
        return false;
    }
    bool same_tokens = n && same == n, same_cache = !strcmp(text(recomputed, "kv_digest"), text(fetched, "kv_digest")) && *text(fetched, "kv_digest");
    if (!lossy && !(same_tokens && same_cache))
        d->exact_differs = true;
    json_t *row = json_object();
    json_object_set_new(row, "preset", json_string(preset_names[preset]));
    json_object_set_new(row, "lossy", json_boolean(lossy));
    json_object_set_new(row, "prefix_tokens", json_integer(prefix));
    json_object_set_new(row, "raw_bytes", json_integer(raw));
    json_object_set_new(row, "stored_bytes", json_integer(stored));
    json_object_set_new(row, "ratio", json_real((double)raw / (double)stored));
    json_object_set_new(row, "ttft_recompute_s", json_real(slow));
    json_object_set_new(row, "ttft_fetch_s", json_real(fast));
    json_object_set_new(row, "speedup", json_real(slow / fast));
    json_object_set_new(row, "same_tokens", json_boolean(same_tokens));
    json_object_set_new(row, "same_cache", json_boolean(same_cache));
    json_object_set_new(row, "agreeing_tokens", json_integer((json_int_t)same));
    json_object_set_new(row, "compared_tokens", json_integer((json_int_t)n));
    json_object_set_new(row, "fetch_s", json_real(number(fetched, "fetch_s")));
    json_object_set_new(row, "publish_s", json_real(number(json_object_get(a, "published"), "s")));
    json_array_append_new(d->rows, row);
    return true;
}

static void add_answer(struct demo *d, const char *who, const char *how, const char *question, const json_t *run)
{
    json_t *o = json_object();
    json_object_set_new(o, "process", json_string(who));
    json_object_set_new(o, "how", json_string(how));
    json_object_set_new(o, "question", kn_app_json_text(question, strlen(question)));
    json_object_set(o, "answer", json_object_get(run, "text"));
    json_object_set(o, "run", (json_t *)(uintptr_t)run); /* the reference count changes, nothing else */
    json_array_append_new(d->answers, o);
}

static bool compare(struct demo *d, size_t preset)
{
    const char *name = preset_names[preset];
    char what[160];
    bool ok = false;
    json_t *a = NULL, *fetched = NULL;
    snprintf(what, sizeof what, "%s: process A reads the document, answers, publishes", name);
    if (!(a = ask(d, d->questions[0], name, true, what)))
        goto done;
    if (!d->recomputed && !(d->recomputed = ask(d, d->questions[1], NULL, false, "process B answers another question, recomputing")))
        goto done;
    snprintf(what, sizeof what, "%s: process B answers it again in a fresh process, fetching", name);
    if (!(fetched = ask(d, d->questions[1], name, false, what)))
        goto done;
    ok = add_row(d, preset, a, fetched);
    if (json_array_size(d->answers) == 0) { /* the same whatever the preset: nothing was fetched */
        add_answer(d, "A", "computed", d->questions[0], a);
        add_answer(d, "B", "recomputed", d->questions[1], d->recomputed);
    }
    snprintf(what, sizeof what, "fetched, %s", name);
    add_answer(d, "B", what, d->questions[1], fetched);
done:
    json_decref(a);
    json_decref(fetched);
    return ok;
}

static json_t *results(const struct demo *d)
{
    json_t *o = json_object();
    json_object_set_new(o, "prefix_tokens", json_integer(whole(json_array_get(d->rows, 0), "prefix_tokens")));
    json_object_set(o, "rows", d->rows);
    json_object_set_new(o, "machine", kn_app_json_machine());
    json_object_set_new(o, "commit", json_string(kn_app_commit));
    json_object_set_new(o, "model", kn_app_json_text(d->model, strlen(d->model)));
    json_object_set_new(o, "document", kn_app_json_text(d->source, strlen(d->source)));
    json_object_set_new(o, "document_tokens", json_integer((json_int_t)d->n_document));
    json_object_set(o, "answers", d->answers);
    json_object_set_new(o, "profile", d->profile[0] ? kn_app_json_text(d->profile, strlen(d->profile)) : json_null());
    return o;
}

static void print_results(const struct demo *d, const json_t *all)
{
    size_t i;
    json_t *row, *answer;
    const json_t *machine = json_object_get(all, "machine");
    const char *model = strrchr(d->model, '/');
    printf("\nmachine   %s, %" PRId64 " cores\ncommit    %s\nmodel     %s\ndocument  %s, its first %zu tokens\n\n", text(machine, "cpu"),
           (int64_t)whole(machine, "cores"), kn_app_commit, model ? model + 1 : d->model, d->source, d->n_document);
    json_array_foreach(d->answers, i, answer) {
        printf("%s (%s): %s\n", text(answer, "process"), text(answer, "how"), text(answer, "question"));
        bool same = !strncmp(text(answer, "how"), "fetched", 7) && !strcmp(text(answer, "answer"), text(d->recomputed, "text"));
        printf("    %s\n\n", same ? "(the same answer)" : text(answer, "answer"));
    }
    printf("%-7s %-6s %7s %10s %10s %7s %11s %9s %9s  %s\n", "preset", "cache", "prefix", "raw", "stored", "ratio", "recomputed", "fetched", "speed-up", "same tokens");
    json_array_foreach(d->rows, i, row) {
        printf("%-7s %-6s %7" PRId64 " %10s %10s %6.2fx %9.2f s %7.2f s %8.1fx  ", text(row, "preset"),
               json_is_true(json_object_get(row, "lossy")) ? "lossy" : "exact", (int64_t)whole(row, "prefix_tokens"),
               kn_app_bytes_text(number(row, "raw_bytes")), kn_app_bytes_text(number(row, "stored_bytes")), number(row, "ratio"),
               number(row, "ttft_recompute_s"), number(row, "ttft_fetch_s"), number(row, "speedup"));
        if (json_is_true(json_object_get(row, "same_tokens")))
            printf("yes (%" PRId64 ")\n", (int64_t)whole(row, "compared_tokens"));
        else
            printf("the first %" PRId64 " of %" PRId64 "\n", (int64_t)whole(row, "agreeing_tokens"), (int64_t)whole(row, "compared_tokens"));
    }
    puts("\nprefix: tokens fetched; raw: their 16-bit cache; times: from the prompt to the first token of the answer.");
    char spectral[64] = ""; /* "fine, medium" */
    json_array_foreach(d->rows, i, row) {
        const char *preset = text(row, "preset");
        size_t n = strlen(spectral);
        if (!strcmp(preset, "tiles"))
            puts("tiles is lossy: its integers come back bit for bit, but they are a rounded cache.");
        else if (needs_profile(preset))
            snprintf(spectral + n, sizeof spectral - n, "%s%s", n ? ", " : "", preset);
        else
            printf("%s is lossless: the fetched cache equals the recomputed one bit for bit (compared: %s).\n", preset,
                   json_is_true(json_object_get(row, "same_cache")) ? "it does" : "it does NOT");
    }
    if (*spectral)
        printf("lossy: %s. All but the first tokens come back rounded; how well, kinema profile show says.\n", spectral);
}

/* Without a profile its presets are left out, unless they were asked for. false after a message. */
static bool find_profile(struct demo *d, const struct kn_model *model)
{
    if (d->profile_arg)
        snprintf(d->profile, sizeof d->profile, "%s", d->profile_arg);
    else if (!kn_app_default_profile(model, d->profile, sizeof d->profile))
        d->profile[0] = '\0';
    for (size_t i = 0; i < N_PRESETS && !d->profile[0]; i++) {
        if (!d->wanted[i] || !needs_profile(preset_names[i]))
            continue;
        if (d->presets_named) {
            kn_app_fail("demo", "preset %s needs a profile of the model: build one with `kinema profile build` and give it with --profile", preset_names[i]);
            return false;
        }
        fprintf(stderr, "demo: %s is left out: there is no profile of this model (kinema profile build makes one)\n", preset_names[i]);
        d->wanted[i] = false;
    }
    return true;
}

static int demonstrate(struct demo *d)
{
    int exit_status = KN_APP_EXIT_FAILED;
    struct kn_model *model = NULL;
    struct kn_err err = {0};
    json_t *all = NULL;
    struct kn_model_opts mo = {.size = sizeof mo, .path = d->model};
    ssize_t n = readlink("/proc/self/exe", d->program, sizeof d->program - 1); /* a real path: plugins are sought beside it */
    if (n <= 0) {
        kn_app_fail("demo", "cannot find the program itself: %s", strerror(errno));
        goto done;
    }
    if (!make_folder(d))
        goto done;
    if (kn_model_open(&model, &mo, &err)) {
        kn_app_fail("demo", "%s", err.text);
        goto done;
    }
    size_t room = kn_model_info(model)->n_ctx_train, reserve = 512; /* template, question, answer */
    if (d->document_tokens + reserve > room) {
        kn_app_fail("demo", "%" PRIu32 " tokens of document leave no room for an answer in the model's context of %zu", d->document_tokens, room);
        goto done;
    }
    if (!kn_demo_document_write(model, d->document_arg, CHUNK_TOKENS, d->document_tokens, d->document, &d->n_document, d->source,
                                sizeof d->source))
        goto done;
    if (!find_profile(d, model))
        goto done;
    kn_model_close(&model);
    for (size_t i = 0; i < N_PRESETS; i++) {
        if (d->wanted[i] && !compare(d, i))
            goto done;
    }
    all = results(d);
    print_results(d, all);
    exit_status = KN_APP_EXIT_OK;
    if (d->json_path) {
        struct kn_app_output out;
        exit_status = kn_app_output_open(&out, "demo", d->json_path);
        if (exit_status == KN_APP_EXIT_OK) {
            kn_app_json_print(all, out.file); /* that it failed shows when it is closed */
            exit_status = kn_app_output_close(&out, "demo", exit_status);
        }
    }
    if (d->exact_differs)
        exit_status = kn_app_fail("demo", "the exact preset gave another cache or other tokens than recomputing: this is a bug");
done:
    json_decref(all);
    kn_model_close(&model);
    if (d->folder[0] && nftw(d->folder, remove_entry, 16, FTW_DEPTH | FTW_PHYS))
        kn_app_fail("demo", "cannot remove %s: %s", d->folder, strerror(errno));
    return exit_status && kn_app_interrupted() ? KN_APP_EXIT_INTERRUPTED : exit_status;
}

int kn_cmd_demo(int argc, char **argv)
{
    struct demo *d = calloc(1, sizeof *d);
    if (!d)
        return kn_app_fail("demo", "out of memory");
    *d = (struct demo){.max_tokens = "48", .document_tokens = 3100, .wanted = {true, true, true, true, true}, .questions = {first_question, second_question}};
    int exit_status = parse(d, argc, argv);
    if (exit_status == KN_APP_EXIT_OK && d->help) {
        help();
    } else if (exit_status == KN_APP_EXIT_OK) {
        d->rows = json_array();
        d->answers = json_array();
        exit_status = KN_APP_EXIT_FAILED;
        if (d->model_arg)
            snprintf(d->model, sizeof d->model, "%s", d->model_arg);
        kn_app_catch_interrupt();
        if (d->model_arg || kn_app_default_model("demo", d->model, sizeof d->model))
            exit_status = demonstrate(d);
        json_decref(d->rows);
        json_decref(d->answers);
        json_decref(d->recomputed);
    }
    free(d);
    return exit_status;
}
