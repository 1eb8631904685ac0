/* SPDX-License-Identifier: Apache-2.0 */
/* Parses the arguments of `kinema run`; see run_opts.h. A value that makes no sense is refused with its limits. */
#include "run_opts.h"

#include <getopt.h>
#include <stdio.h>
#include <string.h>

#include "hevc_opts.h"

enum opt {
    OPT_SYSTEM = 256, OPT_CHAT_TEMPLATE, OPT_RAW, OPT_TEMP, OPT_TOP_K, OPT_TOP_P, OPT_MIN_P, OPT_REPEAT_PENALTY, OPT_REPEAT_LAST, OPT_SEED, OPT_CHUNK,
    OPT_KV_TYPE, OPT_POOL, OPT_STORE, OPT_STORE_MAX, OPT_STORE_TTL, OPT_READ_ONLY, OPT_PRESET, OPT_LEVELS, OPT_PER_PICTURE, OPT_CHUNK_TOKENS,
    OPT_DEADLINE, OPT_PROFILE, OPT_BACKEND, OPT_SALT, OPT_NO_FETCH, OPT_KV_QUALITY, OPT_NO_PUBLISH, OPT_CPU, OPT_JSON, OPT_IGNORE_STOP
};

static const struct option table[] = {
    {"model", required_argument, NULL, 'm'},
    {"prompt", required_argument, NULL, 'p'},
    {"file", required_argument, NULL, 'f'},
    {"predict", required_argument, NULL, 'n'},
    {"ctx", required_argument, NULL, 'c'},
    {"threads", required_argument, NULL, 't'},
    {"quiet", no_argument, NULL, 'q'},
    {"verbose", no_argument, NULL, 'v'},
    {"help", no_argument, NULL, 'h'},
    {"system", required_argument, NULL, OPT_SYSTEM},
    {"chat-template", required_argument, NULL, OPT_CHAT_TEMPLATE},
    {"raw", no_argument, NULL, OPT_RAW},
    {"temp", required_argument, NULL, OPT_TEMP},
    {"top-k", required_argument, NULL, OPT_TOP_K},
    {"top-p", required_argument, NULL, OPT_TOP_P},
    {"min-p", required_argument, NULL, OPT_MIN_P},
    {"repeat-penalty", required_argument, NULL, OPT_REPEAT_PENALTY},
    {"repeat-last", required_argument, NULL, OPT_REPEAT_LAST},
    {"seed", required_argument, NULL, OPT_SEED},
    {"chunk", required_argument, NULL, OPT_CHUNK},
    {"kv-type", required_argument, NULL, OPT_KV_TYPE},
    {"pool", required_argument, NULL, OPT_POOL},
    {"store", required_argument, NULL, OPT_STORE},
    {"store-max", required_argument, NULL, OPT_STORE_MAX},
    {"store-ttl", required_argument, NULL, OPT_STORE_TTL},
    {"store-read-only", no_argument, NULL, OPT_READ_ONLY},
    {"preset", required_argument, NULL, OPT_PRESET},
    {"profile", required_argument, NULL, OPT_PROFILE},
    {"backend", required_argument, NULL, OPT_BACKEND},
    {"levels", required_argument, NULL, OPT_LEVELS},
    {"tokens-per-picture", required_argument, NULL, OPT_PER_PICTURE},
    {"chunk-tokens", required_argument, NULL, OPT_CHUNK_TOKENS},
    {"fetch-deadline", required_argument, NULL, OPT_DEADLINE},
    {"salt", required_argument, NULL, OPT_SALT},
    {"kv-quality", required_argument, NULL, OPT_KV_QUALITY},
    {"no-fetch", no_argument, NULL, OPT_NO_FETCH},
    {"no-publish", no_argument, NULL, OPT_NO_PUBLISH},
    {"ignore-stop", no_argument, NULL, OPT_IGNORE_STOP},
    {"cpu", required_argument, NULL, OPT_CPU},
    {"json", no_argument, NULL, OPT_JSON},
    KN_APP_HEVC_OPTIONS,
    {NULL, 0, NULL, 0},
};

void kn_run_opts_help(void)
{
    fputs("usage: kinema run [-m MODEL] [-p TEXT] [-f FILE | -] [options]\n"
          "\n"
          "Answers a prompt; the text goes to the standard output as it is made. With both a document (-f) and a question\n"
          "(-p) the document comes first.\n"
          "\n"
          "  -m, --model FILE          GGUF (of a split one the first part); default $KINEMA_MODEL, else the demo model in the cache folder\n"
          "  -p, --prompt TEXT         what to answer\n"
          "  -f, --file FILE           a document, or the whole prompt; - is the standard input\n"
          "      --system TEXT         system message\n"
          "      --chat-template NAME  chatml, llama3, mistral or gemma, in place of the file's own\n"
          "      --raw                 no chat template: continue the text\n"
          "  -n, --predict N           at most N tokens (512; 0: to the end of the context)\n"
          "      --ignore-stop         go on after the end of the reply\n"
          "\n"
          "  --temp X                  temperature; 0 takes the likeliest token (default)\n"
          "  --top-k N, --top-p X, --min-p X\n"
          "  --repeat-penalty X, --repeat-last N\n"
          "  --seed N                  same seed, same tokens\n"
          "\n"
          "  -c, --ctx N               longest sequence in tokens (the model's)\n"
          "  -t, --threads N           compute threads (all that the process may use)\n"
          "      --chunk N             prompt tokens per step (256)\n"
          "      --kv-type f16|bf16    16-bit type of the cache (f16)\n"
          "      --pool SIZE           memory of the cache, such as 512M (one longest sequence)\n"
          "      --cpu ref|avx2|avx512 highest instruction level to use (the machine's)\n"
          "\n"
          "  --store URL               where prefixes are fetched from and published to: lmdb:FOLDER\n"
          "  --store-max SIZE, --store-ttl TIME    limits of the store (16G, for ever)\n"
          "  --store-read-only         only fetch: nothing is written to the store, and no permission to is needed\n"
          "  --preset exact|fine|medium|small|tiles\n"
          "                            coding of published chunks: exact returns the cache bit for bit; the others are lossy,\n"
          "                            fine to small from best to smallest. Default: exact; medium with --profile\n"
          "  --profile FILE            of the model, for fine, medium and small (kinema profile build makes one); for those, default\n"
          "                            $KINEMA_PROFILE, else the model's own in the cache folder where there is one\n"
          "  --kv-quality exact|fine|tiles|medium|small|any\n"
          "                            the least that is taken from memory and store (what the preset gives)\n"
          "  --backend rans|hevc       how fine, medium and small are written: entropy coder (default), or lossless video\n"
          "  --hevc-encoder kinema|x265-ultrafast|x265-medium\n"
          "                            who codes video, that is tiles and backend hevc; x265 needs its plugin (kinema)\n"
          "  --hevc-tools full|basic   range extension tools of HEVC that may be used: basic is what every decoder of 4:4:4 knows, and\n"
          "                            has a place of its own in the store (full)\n"
          "  --hevc-slices N           slices of a picture, 1..64, each decodable on its own (chosen by size)\n"
          "  --levels N                quantiser levels of tiles, 4..256\n"
          "  --tokens-per-picture N    resolution of tiles\n"
          "  --chunk-tokens N          tokens of a stored chunk, a multiple of 16 (256)\n"
          "  --fetch-deadline MS       cut a slow fetch; what arrived is used (30000)\n"
          "  --salt TEXT               prefixes are shared only among equal salts\n"
          "  --no-fetch, --no-publish\n"
          "\n"
          "  --json                    one object with text, tokens and timings instead of the text\n"
          "  -q, --quiet               errors only;  -v, --verbose: all that the library says\n"
          "\n"
          "Exit status: 0 answered (even when publishing failed: that is said on the standard error), 1 failed, 2 used wrongly,\n"
          "130 interrupted. A first Ctrl-C stops the answer, a second one the program.\n",
          stdout);
}

static int bad(const char *what, const char *got, const char *wanted)
{
    return kn_app_usage_error("run", "%s takes %s, not \"%s\"", what, wanted, got);
}

static int parse_number(int option, const char *text, struct kn_run_opts *o)
{
    struct kn_engine_opts *e = &o->engine;
    struct kn_sampler_opts *s = &o->sampler;
    uint64_t seconds;
    switch (option) {
    case 'n': return kn_app_parse_u32(text, 0, 1u << 24, &o->max_tokens) ? 0 : bad("-n", text, "a number of tokens, 0 to 16777216");
    case 'c': return kn_app_parse_u32(text, 1, 1u << 24, &e->n_ctx) ? 0 : bad("-c", text, "a number of tokens, 1 to 16777216");
    case 't': return kn_app_parse_u32(text, 1, 256, &e->n_threads) ? 0 : bad("-t", text, "1 to 256 threads");
    case OPT_TEMP: return kn_app_parse_f32(text, 0, 100, &s->temperature) ? 0 : bad("--temp", text, "a number from 0 to 100");
    case OPT_TOP_K: return kn_app_parse_u32(text, 0, 1u << 24, &s->top_k) ? 0 : bad("--top-k", text, "a count, 0 turns it off");
    case OPT_TOP_P: return kn_app_parse_f32(text, 0, 1, &s->top_p) ? 0 : bad("--top-p", text, "a number from 0 to 1");
    case OPT_MIN_P: return kn_app_parse_f32(text, 0, 1, &s->min_p) ? 0 : bad("--min-p", text, "a number from 0 to 1");
    case OPT_REPEAT_PENALTY:
        return kn_app_parse_f32(text, 0, 100, &s->repeat_penalty) ? 0 : bad("--repeat-penalty", text, "a number from 0 to 100");
    case OPT_REPEAT_LAST: return kn_app_parse_u32(text, 0, 1u << 16, &s->repeat_last) ? 0 : bad("--repeat-last", text, "0 to 65536 tokens");
    case OPT_SEED: return kn_app_parse_u64(text, 0, UINT64_MAX, &s->seed) ? 0 : bad("--seed", text, "a number of 64 bits");
    case OPT_CHUNK: return kn_app_parse_u32(text, 1, 8192, &e->prefill_chunk) ? 0 : bad("--chunk", text, "1 to 8192 tokens");
    case OPT_POOL:
        return kn_app_parse_size(text, &e->pool_bytes) && e->pool_bytes ? 0 : bad("--pool", text, "a size, such as 512M");
    case OPT_STORE_MAX:
        return kn_app_parse_size(text, &e->store_max_bytes) && e->store_max_bytes ? 0 : bad("--store-max", text, "a size, such as 4G");
    case OPT_STORE_TTL:
        if (!kn_app_parse_duration(text, &seconds))
            return bad("--store-ttl", text, "a time, such as 90s, 15m, 12h or 7d");
        e->store_ttl_s = seconds;
        return 0;
    case OPT_LEVELS:
        return kn_app_parse_u32(text, 4, 256, &o->tiles.levels) ? 0 : bad("--levels", text, "4 to 256 levels");
    case OPT_PER_PICTURE:
        return kn_app_parse_u32(text, 1, 8192, &o->tiles.tokens_per_picture)
                   ? 0 : bad("--tokens-per-picture", text, "1 to 8192 tokens");
    case OPT_CHUNK_TOKENS:
        return kn_app_parse_u32(text, 16, 8192, &e->chunk_tokens) && e->chunk_tokens % 16 == 0
                   ? 0 : bad("--chunk-tokens", text, "a multiple of 16 from 16 to 8192");
    default:
        return kn_app_parse_u32(text, 1, 86400000, &e->fetch_deadline_ms) ? 0 : bad("--fetch-deadline", text, "milliseconds, 1 to 86400000");
    }
}

static int parse_choice(int option, const char *text, struct kn_run_opts *o)
{
    static const char *const types[] = {"f16", "bf16"}, *const backends[] = {"rans", "hevc"}, *const levels[] = {"ref", "avx2", "avx512"};
    int i;
    switch (option) {
    case OPT_KV_TYPE:
        if ((i = kn_app_parse_name(text, types, 2)) < 0)
            return bad("--kv-type", text, "f16 or bf16");
        o->engine.kv_type = i ? KN_KV_TYPE_BF16 : KN_KV_TYPE_F16;
        return 0;
    case OPT_PRESET:
        if ((i = kn_app_parse_name(text, kn_app_preset_names, KN_APP_N_PRESETS)) <= 0)
            return bad("--preset", text, "exact, fine, medium, small or tiles");
        o->engine.preset = (enum kn_preset)i;
        return 0;
    case OPT_KV_QUALITY:
        o->engine.kv_quality = kn_kv_quality_from_name(text);
        return o->engine.kv_quality ? 0 : bad("--kv-quality", text, "exact, fine, tiles, medium, small or any");
    case OPT_BACKEND:
        if ((i = kn_app_parse_name(text, backends, 2)) < 0)
            return bad("--backend", text, "rans or hevc");
        o->engine.backend = i ? KN_BACKEND_HEVC : KN_BACKEND_RANS;
        return 0;
    default:
        if ((i = kn_app_parse_name(text, levels, 3)) < 0)
            return bad("--cpu", text, "ref, avx2 or avx512");
        o->engine.cpu_level_max_plus_1 = (uint32_t)i + 1;
        return 0;
    }
}

static int parse_one(int option, const char *text, struct kn_run_opts *o)
{
    switch (option) {
    case 'm': return kn_app_path("run", "-m", text, &o->model);
    case 'p': o->prompt = text; return 0;
    case 'f': return kn_app_path("run", "-f", text, &o->file);
    case 'q': o->quiet = true; return 0;
    case 'v': o->verbose = true; return 0;
    case 'h': o->help = true; return 0;
    case OPT_SYSTEM: o->system = text; return 0;
    case OPT_CHAT_TEMPLATE: o->chat_template = text; return 0;
    case OPT_RAW: o->raw = true; return 0;
    case OPT_JSON: o->json = true; return 0;
    case OPT_STORE: return kn_app_url("run", "--store", text, &o->engine.store_url);
    case OPT_PROFILE: return kn_app_path("run", "--profile", text, &o->engine.profile_path);
    case OPT_READ_ONLY: o->engine.store_read_only = true; return 0;
    case OPT_SALT: o->request.salt = text; return 0;
    case OPT_NO_FETCH: o->request.no_fetch = true; return 0;
    case OPT_NO_PUBLISH: o->request.no_publish = true; return 0;
    case OPT_IGNORE_STOP: o->request.ignore_stop = true; return 0;
    case OPT_KV_TYPE:
    case OPT_PRESET:
    case OPT_KV_QUALITY:
    case OPT_BACKEND:
    case OPT_CPU: return parse_choice(option, text, o);
    case KN_APP_OPT_HEVC_ENCODER:
    case KN_APP_OPT_HEVC_TOOLS:
    case KN_APP_OPT_HEVC_SLICES: return kn_app_hevc_option("run", option, text, &o->hevc);
    default: return parse_number(option, text, o);
    }
}

/* What is ignored in silence looks as if it had worked: an option of the store needs one. */
static int check_store(const struct kn_run_opts *o)
{
    const struct kn_engine_opts *e = &o->engine;
    const struct { bool given; const char *name; } options[] = {
        {e->profile_path, "--profile"},         {e->preset, "--preset"},
        {e->backend, "--backend"},
        {kn_app_hevc_given(&o->hevc), "--hevc-encoder, --hevc-tools or --hevc-slices"},
        {e->store_max_bytes, "--store-max"},    {e->store_ttl_s, "--store-ttl"},
        {e->store_read_only, "--store-read-only"}, {e->chunk_tokens, "--chunk-tokens"},
        {e->fetch_deadline_ms, "--fetch-deadline"}, {e->kv_quality, "--kv-quality"},
    };
    for (size_t i = 0; i < sizeof options / sizeof *options && !e->store_url; i++)
        if (options[i].given)
            return kn_app_usage_error("run", "%s has no effect without a store: give --store URL, or leave it out", options[i].name);
    if (e->store_read_only && e->store_max_bytes)
        return kn_app_usage_error("run", "--store-max is for what is written, and --store-read-only writes nothing: give one of them");
    return KN_APP_EXIT_OK;
}

/* What is harmless and yet does nothing is said, and no error. */
static void say_unused(const struct kn_run_opts *o)
{
    const struct kn_sampler_opts *s = &o->sampler;
    const struct { bool unused; const char *name, *why; } options[] = {
        {o->request.no_fetch && !o->engine.store_url, "--no-fetch", "there is no --store"},
        {o->request.no_publish && !o->engine.store_url, "--no-publish", "there is no --store"},
        {o->request.no_publish && o->engine.store_url && o->engine.store_read_only, "--no-publish", "nothing is published with --store-read-only"},
        {o->request.salt && !o->engine.store_url, "--salt", "there is no --store"},
        {s->top_k && !(s->temperature > 0), "--top-k", "without --temp the likeliest token is taken"},
        {s->top_p > 0 && !(s->temperature > 0), "--top-p", "without --temp the likeliest token is taken"},
        {s->min_p > 0 && !(s->temperature > 0), "--min-p", "without --temp the likeliest token is taken"},
        {s->seed && !(s->temperature > 0), "--seed", "without --temp the likeliest token is taken"},
        {s->repeat_last && !(s->repeat_penalty > 0), "--repeat-last", "there is no --repeat-penalty"},
    };
    for (size_t i = 0; i < sizeof options / sizeof *options && !o->quiet; i++)
        if (options[i].unused)
            fprintf(stderr, "kinema run: %s has no effect: %s\n", options[i].name, options[i].why);
}

int kn_run_opts_parse(struct kn_run_opts *opts, int argc, char **argv)
{
    *opts = (struct kn_run_opts){.max_tokens = 512,
                                  .tiles = {.size = sizeof opts->tiles},
                                  .hevc = {.size = sizeof opts->hevc},
                                  .sampler = {.size = sizeof opts->sampler}};
    opts->engine.size = sizeof opts->engine;
    opts->engine.tiles = &opts->tiles;
    opts->engine.hevc = &opts->hevc;
    opts->request.size = sizeof opts->request;
    opts->request.sampler = &opts->sampler;
    opterr = 0;
    optind = 1;
    for (int option; (option = getopt_long(argc, argv, ":m:p:f:n:c:t:qvh", table, NULL)) != -1;) {
        const char *given = optind > 1 ? argv[optind - 1] : "";
        if (option == '?')
            return kn_app_usage_error("run", "there is no option %s", given);
        if (option == ':')
            return kn_app_usage_error("run", "%s needs a value", given);
        if (parse_one(option, optarg, opts))
            return KN_APP_EXIT_USAGE;
        if (opts->help)
            return KN_APP_EXIT_OK;
    }
    for (int i = optind; i < argc; i++) {
        if (strcmp(argv[i], "-"))
            return kn_app_usage_error("run", "unexpected \"%s\"; a prompt is given with -p, a file with -f", argv[i]);
        if (opts->file)
            return kn_app_usage_error("run", "give one of -f and -, not both");
        opts->file = "-";
    }
    if (!opts->prompt && !opts->file)
        return kn_app_usage_error("run", "no prompt: give -p TEXT, -f FILE, or - for the standard input");
    if (opts->raw && opts->chat_template)
        return kn_app_usage_error("run", "--chat-template has no meaning with --raw");
    if (opts->raw && opts->system)
        return kn_app_usage_error("run", "--system has no meaning with --raw");
    if ((opts->tiles.levels || opts->tiles.tokens_per_picture) && opts->engine.preset != KN_PRESET_TILES)
        return kn_app_usage_error("run", "--levels and --tokens-per-picture belong to --preset tiles");
    if (opts->engine.backend && opts->engine.preset && !kn_app_preset_needs_profile(opts->engine.preset))
        return kn_app_usage_error("run", "--backend belongs to the presets fine, medium and small");
    if (kn_app_hevc_given(&opts->hevc) && opts->engine.preset != KN_PRESET_TILES &&
        opts->engine.backend != KN_BACKEND_HEVC)
        return kn_app_usage_error("run", "--hevc-encoder, --hevc-tools and --hevc-slices belong to video: --preset tiles or --backend hevc");
    if (opts->engine.backend && !opts->engine.preset && !opts->engine.profile_path)
        return kn_app_usage_error("run", "--backend belongs to the presets fine, medium and small: give one with --preset");
    if (opts->engine.profile_path && opts->engine.preset && !kn_app_preset_needs_profile(opts->engine.preset))
        return kn_app_usage_error("run", "--profile belongs to the presets fine, medium and small");
    if (opts->quiet && opts->verbose)
        return kn_app_usage_error("run", "give one of -q and -v, not both");
    int status = check_store(opts);
    if (status == KN_APP_EXIT_OK)
        say_unused(opts);
    return status;
}
