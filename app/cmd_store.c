/* SPDX-License-Identifier: Apache-2.0 */
/*
 * kinema store ls|stat|verify|get|gc|rm URL: what an operator does with a store of coded prefixes. Tables for people, one JSON
 * object with --json. ls, stat, verify and get open the store read-only, so that looking at a store never changes it.
 * Exit status: 0 done (verify: all chunks good), 1 failed or something is bad, 2 used wrongly.
 */
#include <errno.h>
#include <getopt.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

#include "app.h"
#include "output.h"

struct args {
    const char *what, *url, *prefix, *output;
    uint64_t max_bytes, ttl_s;
    bool json, all, help;
};

static const char help_text[] =
    "usage: kinema store ls|stat|verify|get|gc|rm URL [options]\n\n"
    "  ls       list the chunks: preset, tokens, size, age, last use, key\n"
    "  stat     count chunks and bytes, what gc would remove, and the space in use\n"
    "  verify   read every chunk and check its checksums and its manifest entry; status 1 when one is bad\n"
    "  get      write the chunk whose key begins with --prefix to a file, checked: a container, as kinema codec decode takes it\n"
    "  gc       remove expired chunks and remains of cut publishes, then the least recently used beyond the limit\n"
    "  rm       remove the chunks whose key begins with --prefix, or --all\n\n"
    "  URL                 such as lmdb:/var/cache/kinema; also as --store URL\n"
    "  --max-bytes SIZE    gc: the limit, such as 512M or 20G (powers of 1024); default 16G\n"
    "  --ttl TIME          gc: remove what was written longer ago, such as 90s, 15m, 12h, 7d; stat: count it as expired\n"
    "  --prefix KEY        rm, ls, get: only keys that begin so; kn1:MODEL (32 hex digits) is one model's\n"
    "  -o, --output FILE   get: where to\n"
    "  --all               rm: every chunk\n"
    "  --json              one JSON object instead of a table\n"
    "  -h, --help          this text\n";

/* ---- printing */

static const char *age_text(uint64_t then_s, char out[24])
{
    uint64_t now = (uint64_t)time(NULL), age = now > then_s ? now - then_s : 0;
    if (age < 120)
        snprintf(out, 24, "%llus", (unsigned long long)age);
    else if (age < 2 * 3600)
        snprintf(out, 24, "%llum", (unsigned long long)(age / 60));
    else if (age < 48 * 3600)
        snprintf(out, 24, "%lluh", (unsigned long long)(age / 3600));
    else
        snprintf(out, 24, "%llud", (unsigned long long)(age / 86400));
    return out;
}

struct printing {
    const struct args *args;
    json_t *items; /* with --json */
    uint64_t n, n_bytes, n_bad;
};

static json_t *item_json(const struct kn_store_item *item)
{
    char hex[33];
    kn_app_hex(item->fingerprint, hex);
    return json_pack("{s:s, s:s, s:s, s:I, s:I, s:I, s:I, s:I}", "key", item->key, "model", hex, "preset", item->preset, "first_token", (json_int_t)item->first_token,
                     "tokens", (json_int_t)item->n_tokens, "bytes", (json_int_t)item->n_bytes, "created", (json_int_t)item->created_s, "last_used",
                     (json_int_t)item->last_used_s);
}

static bool matches(const struct args *args, const struct kn_store_item *item)
{
    return !args->prefix || !strncmp(item->key, args->prefix, strlen(args->prefix));
}

static void print_item(void *user, const struct kn_store_item *item)
{
    struct printing *p = user;
    char age[24], used[24], tokens[32];
    if (!matches(p->args, item))
        return;
    if (p->args->json) {
        json_array_append_new(p->items, item_json(item)); /* a key is ASCII, so packing cannot fail but for memory */
    } else {
        if (!p->n)
            printf("%-7s %13s %10s %6s %6s  %s\n", "preset", "tokens", "size", "age", "used", "key");
        snprintf(tokens, sizeof tokens, "%u..%u", item->first_token, item->first_token + item->n_tokens);
        printf("%-7s %13s %10s %6s %6s  %s\n", item->preset, tokens, kn_app_bytes_text((double)item->n_bytes), age_text(item->created_s, age),
               age_text(item->last_used_s, used), item->key);
    }
    p->n++;
    p->n_bytes += item->n_bytes;
}

static void print_verdict(void *user, const struct kn_store_item *item, enum kn_status status, const char *text)
{
    struct printing *p = user;
    p->n++;
    p->n_bytes += item->n_bytes;
    if (!status)
        return;
    p->n_bad++;
    if (p->args->json) {
        json_t *one = json_pack("{s:s, s:s, s:s}", "key", item->key, "status", kn_status_name(status), "text", text);
        json_array_append_new(p->items, one);
    } else {
        printf("bad  %s: %s\n", item->key, text);
    }
}

static void print_json(json_t *object)
{
    kn_app_json_print(object, stdout);
    json_decref(object);
}

/* ---- subcommands; each returns the exit status */

static int fail_status(enum kn_status s, const struct args *args)
{
    return kn_app_fail("store", "%s of %s: %s (%s)", args->what, args->url, kn_status_message(s), kn_status_name(s));
}

static int run_ls(struct kn_store *store, const struct args *args)
{
    struct printing p = {.args = args, .items = json_array()};
    enum kn_status s = kn_store_ls(store, print_item, &p);
    if (s) {
        json_decref(p.items);
        return fail_status(s, args);
    }
    if (args->json) {
        print_json(json_pack("{s:s, s:I, s:I, s:o}", "store", args->url, "n_chunks", (json_int_t)p.n, "bytes", (json_int_t)p.n_bytes, "chunks", p.items));
        return KN_APP_EXIT_OK;
    }
    json_decref(p.items);
    printf("%s%llu chunks, %s\n", p.n ? "\n" : "", (unsigned long long)p.n, kn_app_bytes_text((double)p.n_bytes));
    return KN_APP_EXIT_OK;
}

static int run_stat(struct kn_store *store, const struct args *args)
{
    struct kn_store_stat st = {.size = sizeof st};
    enum kn_status s = kn_store_stat(store, &st);
    if (s)
        return fail_status(s, args);
    if (args->json) {
        print_json(json_pack("{s:s, s:I, s:I, s:I, s:I, s:I, s:I, s:I}", "store", args->url, "n_chunks", (json_int_t)st.n_chunks, "bytes", (json_int_t)st.n_bytes,
                             "n_orphans", (json_int_t)st.n_orphans, "orphan_bytes", (json_int_t)st.orphan_bytes, "n_expired", (json_int_t)st.n_expired,
                             "map_bytes", (json_int_t)st.map_bytes, "used_bytes", (json_int_t)st.used_bytes));
        return KN_APP_EXIT_OK;
    }
    printf("chunks   %llu, %s\n", (unsigned long long)st.n_chunks, kn_app_bytes_text((double)st.n_bytes));
    printf("expired  %llu\n", (unsigned long long)st.n_expired);
    printf("orphans  %llu, %s\n", (unsigned long long)st.n_orphans, kn_app_bytes_text((double)st.orphan_bytes));
    printf("pages    %s in use, map of %s\n", kn_app_bytes_text((double)st.used_bytes), kn_app_bytes_text((double)st.map_bytes));
    return KN_APP_EXIT_OK;
}

static int run_verify(struct kn_store *store, const struct args *args)
{
    struct printing p = {.args = args, .items = json_array()};
    enum kn_status s = kn_store_verify(store, print_verdict, &p);
    int status = s ? KN_APP_EXIT_FAILED : KN_APP_EXIT_OK;
    if (s && s != KN_E_FORMAT) {
        json_decref(p.items);
        return fail_status(s, args);
    }
    if (args->json) {
        print_json(json_pack("{s:s, s:I, s:I, s:I, s:o}", "store", args->url, "n_chunks", (json_int_t)p.n, "bytes", (json_int_t)p.n_bytes, "n_bad",
                             (json_int_t)p.n_bad, "bad", p.items));
        return status;
    }
    json_decref(p.items);
    printf("%llu chunks, %s, %llu bad\n", (unsigned long long)p.n, kn_app_bytes_text((double)p.n_bytes), (unsigned long long)p.n_bad);
    return status;
}

struct getting { const struct args *args; bool failed; /* to write, and has said so */ };

/* Writes a chunk to args->output. */
static enum kn_status write_chunk(void *user, const struct kn_store_item *item, const void *bytes, size_t n_bytes)
{
    struct getting *g = user;
    const struct args *args = g->args;
    struct kn_app_output out;
    g->failed = true;
    if (kn_app_output_open(&out, "store", args->output))
        return KN_E_IO;
    kn_app_output_write(&out, bytes, n_bytes);
    if (kn_app_output_close(&out, "store", KN_APP_EXIT_OK))
        return KN_E_IO;
    g->failed = false;
    if (!strcmp(args->output, "-")) /* the chunk is what goes there */
        return KN_OK;
    if (args->json)
        print_json(json_pack("{s:s, s:s, s:I}", "store", args->url, "key", item->key, "bytes", (json_int_t)n_bytes));
    else
        printf("%s of %s\n", kn_app_bytes_text((double)n_bytes), item->key);
    return KN_OK;
}

static int run_get(struct kn_store *store, const struct args *args)
{
    struct kn_err err = {0};
    struct getting g = {.args = args};
    enum kn_status s = kn_store_get(store, args->prefix, write_chunk, &g, &err);
    return g.failed ? KN_APP_EXIT_FAILED : s ? kn_app_fail("store", "%s", err.text) : KN_APP_EXIT_OK;
}

static int run_gc(struct kn_store *store, const struct args *args)
{
    uint64_t n = 0, n_bytes = 0;
    enum kn_status s = kn_store_gc(store, &n, &n_bytes);
    if (s)
        return fail_status(s, args);
    if (args->json)
        print_json(json_pack("{s:s, s:I, s:I}", "store", args->url, "n_removed", (json_int_t)n, "bytes_removed", (json_int_t)n_bytes));
    else
        printf("%llu chunks removed, %s\n", (unsigned long long)n, kn_app_bytes_text((double)n_bytes));
    return KN_APP_EXIT_OK;
}

static int run_rm(struct kn_store *store, const struct args *args)
{
    uint64_t n = 0;
    enum kn_status s = kn_store_rm(store, args->all ? "" : args->prefix, &n);
    if (s)
        return fail_status(s, args);
    if (args->json)
        print_json(json_pack("{s:s, s:I}", "store", args->url, "n_removed", (json_int_t)n));
    else
        printf("%llu chunks removed\n", (unsigned long long)n);
    return KN_APP_EXIT_OK;
}

static const struct {
    const char *name;
    int (*run)(struct kn_store *store, const struct args *args);
    bool read_only;
} subcommands[] = {{"ls", run_ls, true}, {"stat", run_stat, true}, {"verify", run_verify, true}, {"get", run_get, true}, {"gc", run_gc, false}, {"rm", run_rm, false}};
#define N_SUBCOMMANDS (sizeof subcommands / sizeof *subcommands)

/* ---- arguments */

static int parse_option(int option, struct args *args)
{
    switch (option) {
    case 's': return kn_app_url("store", "--store", optarg, &args->url);
    case 'p': args->prefix = optarg; break;
    case 'o': return kn_app_path("store", "-o", optarg, &args->output);
    case 'a': args->all = true; break;
    case 'j': args->json = true; break;
    case 'h': args->help = true; break;
    case 'm':
        if (!kn_app_parse_size(optarg, &args->max_bytes) || !args->max_bytes)
            return kn_app_usage_error("store", "--max-bytes takes a size such as 512M or 20G, not \"%s\"", optarg);
        break;
    case 't':
        if (!kn_app_parse_duration(optarg, &args->ttl_s) || !args->ttl_s)
            return kn_app_usage_error("store", "--ttl takes a time such as 90s, 15m, 12h or 7d, not \"%s\"", optarg);
        break;
    }
    return 0;
}

static int parse(int argc, char **argv, struct args *args)
{
    static const struct option table[] = {{"store", required_argument, NULL, 's'}, {"max-bytes", required_argument, NULL, 'm'}, {"ttl", required_argument, NULL, 't'},
                                          {"prefix", required_argument, NULL, 'p'}, {"output", required_argument, NULL, 'o'}, {"all", no_argument, NULL, 'a'}, {"json", no_argument, NULL, 'j'},
                                          {"help", no_argument, NULL, 'h'}, {NULL, 0, NULL, 0}};
    opterr = 0;
    optind = 1;
    for (int option; (option = getopt_long(argc, argv, ":o:h", table, NULL)) != -1;) {
        if (option == '?' || option == ':')
            return kn_app_usage_error("store", option == ':' ? "%s needs a value" : "there is no option %s", argv[optind - 1]);
        int status = parse_option(option, args);
        if (status)
            return status;
    }
    if (args->help)
        return 0;
    for (int i = optind; i < argc; i++) {
        if (!args->what)
            args->what = argv[i];
        else if (!args->url) {
            if (kn_app_url("store", args->what, argv[i], &args->url))
                return KN_APP_EXIT_USAGE;
        } else if ((!strcmp(args->what, "rm") || !strcmp(args->what, "get")) && !args->prefix)
            args->prefix = argv[i];
        else
            return kn_app_usage_error("store", "unexpected \"%s\"", argv[i]);
    }
    if (!args->what)
        return kn_app_usage_error("store", "say what to do: ls, stat, verify, get, gc or rm; kinema store --help explains");
    if (!args->url)
        return kn_app_usage_error("store", "name the store: kinema store %s lmdb:PATH", args->what);
    if (!strcmp(args->what, "rm") && args->all == (args->prefix != NULL))
        return kn_app_usage_error("store", "rm takes either --prefix KEY or --all");
    if (!strcmp(args->what, "get") && (!args->prefix || !args->output))
        return kn_app_usage_error("store", "get takes a key, or how it begins, and -o FILE");
    const struct { bool given; const char *option, *of; } uses[] = {
        {args->max_bytes, "--max-bytes", "gc"},
        {args->ttl_s, "--ttl", "gc stat verify get"},
        {args->prefix, "--prefix", "rm ls get"},
        {args->output, "-o", "get"},
        {args->all, "--all", "rm"},
    };
    for (size_t i = 0; i < sizeof uses / sizeof *uses; i++)
        if (uses[i].given && !strstr(uses[i].of, args->what))
            return kn_app_usage_error("store", "%s has no effect on %s; it belongs to: %s", uses[i].option, args->what, uses[i].of);
    if (args->prefix && !*args->prefix)
        return kn_app_usage_error("store", "an empty prefix is every chunk; say --all if that is meant");
    return 0;
}

int kn_cmd_store(int argc, char **argv)
{
    struct args args = {0};
    int status = parse(argc, argv, &args);
    if (status)
        return status;
    if (args.help) {
        fputs(help_text, stdout);
        return KN_APP_EXIT_OK;
    }
    size_t i = 0;
    while (i < N_SUBCOMMANDS && strcmp(args.what, subcommands[i].name))
        i++;
    if (i == N_SUBCOMMANDS)
        return kn_app_usage_error("store", "there is no \"%s\"; use ls, stat, verify, get, gc or rm", args.what);
    kn_app_log_to_stderr(KN_LOG_LEVEL_WARN);
    struct kn_store *store = NULL;
    struct kn_err err = {0};
    struct kn_store_opts opts = {.size = sizeof opts, .url = args.url, .max_bytes = args.max_bytes, .ttl_s = args.ttl_s, .read_only = subcommands[i].read_only};
    enum kn_status s = kn_store_open(&store, &opts, &err);
    if (s)
        return kn_app_fail("store", "%s (%s)", err.text, kn_status_name(s));
    status = subcommands[i].run(store, &args);
    kn_store_close(&store);
    return status;
}
