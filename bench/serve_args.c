/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Options of `kinema bench serve`. A scenario is a set of values for the other options: it is applied where it stands, so that what
 * follows it on the command line changes it.
 */
#include <getopt.h>
#include <string.h>

#include "bench_serve.h"

const char *const kn_serve_scenario_names[KN_SERVE_N_SCENARIOS] = {"none", "throughput", "shared", "fetch"};

void kn_serve_args_help(void)
{
    fputs("usage: kinema bench serve [--scenario NAME] [-m MODEL] [options] [-- options of kinema serve]\n"
          "       kinema bench serve --url URL (--rate R | --clients N) [options]\n\n"
          "Sends streaming chat completions and prints latencies and goodput. Without --url it starts `kinema serve` itself.\n\n"
          "      --scenario NAME        throughput: 8 clients, mixed lengths; shared: 50 users of one 2000-token system prompt;\n"
          "                             fetch: requests without a fetch beside others whose fetch takes 3 s, beside the same with their\n"
          "                             prefixes in memory, and without those. Later options change it\n"
          "  -m, --model FILE           GGUF; default $KINEMA_MODEL, else the demo model in the cache folder\n"
          "  -t, --threads N            threads of the servers (all that they may use)\n"
          "  -c, --ctx N                longest sequence of a server (ours: its default; the peer: what the load needs)\n"
          "      --url URL              a server that runs already, of any make; no other is started\n"
          "      --api-key KEY          sent to --url as a bearer token\n"
          "      --model-name NAME      name of the model in requests (asked of the server)\n"
          "      --peer llama.cpp       the same load on llama.cpp's server too, taking turns; `make bench-peers` builds it\n"
          "      --peer-server PATH     llama-server (cache folder's peers/bin/llama-server)\n"
          "      --peer-parallel LIST   its slots, such as 1,4: each is measured, the better counts\n"
          "                             (--clients; in an open loop 1,4)\n"
          "      --peer-args \"ARGS\"     more of its options, separated by spaces\n"
          "      --repeat N             runs of each server, each on a fresh process, in alternating order (1)\n"
          "load:\n"
          "      --rate R               open loop: Poisson arrivals, R a second (1); latencies count from the arrival\n"
          "      --clients N            closed loop: N clients, each sends when its last answer is complete; latencies from the sending\n"
          "      --requests N           requests of a run (100)\n"
          "      --duration TIME        open loop: no arrivals after this, such as 60s\n"
          "      --mix unique|shared|turns   random prompts; one system prompt and short questions; conversations (unique)\n"
          "      --prompt-tokens N[-M]  about; of a unique prompt, or of a conversation's first (200)\n"
          "      --shared-tokens N      about; of the shared system prompt (2000)\n"
          "      --question-tokens N    about; of a question under shared and turns (24)\n"
          "      --turns N              questions of a conversation (4)\n"
          "      --max-tokens N[-M]     of an answer (64)\n"
          "      --stop-early           let the model end its answers (without it, ignore_eos is sent)\n"
          "      --temperature T        0\n"
          "      --seed N               of prompts and arrivals (1)\n"
          "      --timeout TIME         of one request (10m)\n"
          "      --slo-ttft MS, --slo-tpot MS   goodput counts requests that met both\n"
          "scenario fetch:\n"
          "      --fetch-rate R         requests a second that need a fetch (0.2)\n"
          "      --fetch-delay MS       that each read of the store takes (3000)\n"
          "      --fetch-tokens N       about; of a stored prefix (264)\n"
          "output:\n"
          "      --json                 one object: machine, commit, model, load, results\n"
          "  -q, --quiet                no progress line\n",
          stdout);
}

static void apply_scenario(struct kn_serve_args *a)
{
    struct kn_load_mix_opts *m = &a->mix;
    switch (a->scenario) {
    case KN_SERVE_SCENARIO_THROUGHPUT:
        a->n_clients = 8;
        a->repeat = 2;
        m->mix = KN_LOAD_MIX_UNIQUE;
        m->n_requests = 32;
        m->prompt_low = 200, m->prompt_high = 500;
        m->new_low = 64, m->new_high = 128;
        break;
    case KN_SERVE_SCENARIO_SHARED:
        a->n_clients = 0;
        m->mix = KN_LOAD_MIX_SHARED;
        m->rate = 0.5;
        m->n_requests = 50;
        m->shared_words = 2000;
        m->question_words = 24;
        m->new_low = m->new_high = 32;
        break;
    case KN_SERVE_SCENARIO_FETCH:
        a->n_clients = 0;
        m->mix = KN_LOAD_MIX_UNIQUE;
        m->rate = 1.4; /* with seeds 1 and 2: 106 requests; about four tenths of what two cores can do */
        m->duration_s = 45;
        a->repeat = 2;
        m->n_requests = 100000;
        m->prompt_low = m->prompt_high = 64;
        m->new_low = m->new_high = 16;
        break;
    case KN_SERVE_SCENARIO_NONE: break;
    }
}

/* "64" or "64-128". */
static bool parse_range(const char *text, uint32_t max, uint32_t *low, uint32_t *high)
{
    char copy[32];
    if (strlen(text) >= sizeof copy)
        return false;
    snprintf(copy, sizeof copy, "%s", text);
    char *rest = copy, *first = strsep(&rest, "-");
    if (!kn_app_parse_u32(first, 1, max, low))
        return false;
    *high = *low;
    return !rest || (kn_app_parse_u32(rest, *low, max, high));
}

static bool parse_double(const char *text, float min, float max, double *out)
{
    float value;
    bool ok = kn_app_parse_f32(text, min, max, &value);
    *out = ok ? (double)value : 0;
    return ok;
}

static int refuse(const char *option, const char *wants, const char *got)
{
    return kn_app_usage_error("bench", "--%s takes %s, not \"%s\"", option, wants, got);
}

enum { O_SCENARIO = 1000, O_URL, O_KEY, O_NAME, O_PEER, O_PEER_SERVER, O_PARALLEL, O_PEER_ARGS, O_REPEAT, O_RATE, O_CLIENTS, O_REQUESTS, O_DURATION, O_MIX,
       O_PROMPT, O_SHARED, O_QUESTION, O_TURNS, O_NEW, O_STOP, O_TEMPERATURE, O_SEED, O_TIMEOUT, O_SLO_TTFT, O_SLO_TPOT, O_FETCH_RATE, O_FETCH_DELAY,
       O_FETCH_WORDS, O_JSON };

static const struct option table[] = {
    {"scenario", required_argument, NULL, O_SCENARIO},       {"model", required_argument, NULL, 'm'},
    {"threads", required_argument, NULL, 't'},               {"ctx", required_argument, NULL, 'c'},
    {"url", required_argument, NULL, O_URL},                 {"api-key", required_argument, NULL, O_KEY},
    {"model-name", required_argument, NULL, O_NAME},         {"peer", required_argument, NULL, O_PEER},
    {"peer-server", required_argument, NULL, O_PEER_SERVER}, {"peer-parallel", required_argument, NULL, O_PARALLEL},
    {"peer-args", required_argument, NULL, O_PEER_ARGS},     {"repeat", required_argument, NULL, O_REPEAT},
    {"rate", required_argument, NULL, O_RATE},               {"clients", required_argument, NULL, O_CLIENTS},
    {"requests", required_argument, NULL, O_REQUESTS},       {"duration", required_argument, NULL, O_DURATION},
    {"mix", required_argument, NULL, O_MIX},                 {"prompt-tokens", required_argument, NULL, O_PROMPT},
    {"shared-tokens", required_argument, NULL, O_SHARED},    {"question-tokens", required_argument, NULL, O_QUESTION},
    {"turns", required_argument, NULL, O_TURNS},             {"max-tokens", required_argument, NULL, O_NEW},
    {"stop-early", no_argument, NULL, O_STOP},               {"temperature", required_argument, NULL, O_TEMPERATURE},
    {"seed", required_argument, NULL, O_SEED},               {"timeout", required_argument, NULL, O_TIMEOUT},
    {"slo-ttft", required_argument, NULL, O_SLO_TTFT},       {"slo-tpot", required_argument, NULL, O_SLO_TPOT},
    {"fetch-rate", required_argument, NULL, O_FETCH_RATE},   {"fetch-delay", required_argument, NULL, O_FETCH_DELAY},
    {"fetch-tokens", required_argument, NULL, O_FETCH_WORDS}, {"json", no_argument, NULL, O_JSON},
    {"quiet", no_argument, NULL, 'q'},                       {"help", no_argument, NULL, 'h'},
    {NULL, 0, NULL, 0},
};

/* Options of the load. KN_APP_EXIT_FAILED: it is none of these. */
static int parse_load(struct kn_serve_args *a, int option, const char *v)
{
    struct kn_load_mix_opts *m = &a->mix;
    uint64_t seconds;
    int mix;
    switch (option) {
    case O_RATE:
        a->n_clients = 0;
        return parse_double(v, 1e-3f, 1e5f, &m->rate) ? KN_APP_EXIT_OK : refuse("rate", "requests a second above 0", v);
    case O_CLIENTS: return kn_app_parse_u32(v, 1, 1000, &a->n_clients) ? KN_APP_EXIT_OK : refuse("clients", "1 to 1000", v);
    case O_REQUESTS: return kn_app_parse_u32(v, 1, 1000000, &m->n_requests) ? KN_APP_EXIT_OK : refuse("requests", "1 to 1000000", v);
    case O_DURATION:
        if (!kn_app_parse_duration(v, &seconds) || !seconds || seconds > 86400)
            return refuse("duration", "a time such as 60s, up to a day", v);
        m->duration_s = (double)seconds;
        return KN_APP_EXIT_OK;
    case O_MIX:
        if ((mix = kn_app_parse_name(v, kn_load_mix_names, KN_LOAD_N_MIXES)) < 0)
            return refuse("mix", "unique, shared or turns", v);
        m->mix = (enum kn_load_mix)mix;
        return KN_APP_EXIT_OK;
    case O_PROMPT: return parse_range(v, 1u << 20, &m->prompt_low, &m->prompt_high) ? KN_APP_EXIT_OK : refuse("prompt-tokens", "N or N-M", v);
    case O_SHARED: return kn_app_parse_u32(v, 1, 1u << 20, &m->shared_words) ? KN_APP_EXIT_OK : refuse("shared-tokens", "1 to 1048576", v);
    case O_QUESTION: return kn_app_parse_u32(v, 1, 1u << 16, &m->question_words) ? KN_APP_EXIT_OK : refuse("question-tokens", "1 to 65536", v);
    case O_TURNS: return kn_app_parse_u32(v, 1, 1000, &m->n_turns) ? KN_APP_EXIT_OK : refuse("turns", "1 to 1000", v);
    case O_NEW: return parse_range(v, 1u << 20, &m->new_low, &m->new_high) ? KN_APP_EXIT_OK : refuse("max-tokens", "N or N-M", v);
    case O_STOP: a->ignore_eos = false; return KN_APP_EXIT_OK;
    case O_TEMPERATURE: return kn_app_parse_f32(v, 0, 2, &a->temperature) ? KN_APP_EXIT_OK : refuse("temperature", "0 to 2", v);
    case O_SEED: return kn_app_parse_u64(v, 0, INT64_MAX, &m->seed) ? KN_APP_EXIT_OK : refuse("seed", "a whole number", v);
    case O_TIMEOUT:
        if (!kn_app_parse_duration(v, &seconds) || !seconds || seconds > 86400)
            return refuse("timeout", "a time such as 90s, up to a day", v);
        a->timeout_ms = (uint32_t)seconds * 1000;
        return KN_APP_EXIT_OK;
    default: return KN_APP_EXIT_FAILED;
    }
}

/* "1,4" */
static bool parse_slots(struct kn_serve_args *a, const char *text)
{
    char copy[32];
    if (strlen(text) >= sizeof copy)
        return false;
    snprintf(copy, sizeof copy, "%s", text);
    a->n_peer_parallel = 0;
    for (char *rest = copy, *word; (word = strsep(&rest, ","));)
        if (a->n_peer_parallel == KN_SERVE_MAX_SETTINGS || !kn_app_parse_u32(word, 1, 256, &a->peer_parallel[a->n_peer_parallel++]))
            return false;
    return true;
}

static int parse_rest(struct kn_serve_args *a, int option, const char *v)
{
    int scenario;
    switch (option) {
    case O_SCENARIO:
        if ((scenario = kn_app_parse_name(v, kn_serve_scenario_names, KN_SERVE_N_SCENARIOS)) < 0)
            return refuse("scenario", "throughput, shared or fetch", v);
        a->scenario = (enum kn_serve_scenario)scenario;
        apply_scenario(a);
        return KN_APP_EXIT_OK;
    case 'm': return kn_app_path("bench", "-m", v, &a->model_arg);
    case 't': return kn_app_parse_u32(v, 1, 256, &a->n_threads) ? KN_APP_EXIT_OK : refuse("threads", "1 to 256", v);
    case 'c': return kn_app_parse_u32(v, 16, 1u << 24, &a->n_ctx) ? KN_APP_EXIT_OK : refuse("ctx", "16 or more", v);
    case O_URL:
        if (strncmp(v, "http://", 7) && strncmp(v, "https://", 8))
            return refuse("url", "http://HOST:PORT or https://HOST", v);
        if (strlen(v) > 900)
            return refuse("url", "at most 900 bytes", v);
        a->url = v;
        return KN_APP_EXIT_OK;
    case O_KEY:
        if (strlen(v) > 1000)
            return refuse("api-key", "at most 1000 bytes", "(a longer one)");
        a->api_key = v;
        return KN_APP_EXIT_OK;
    case O_NAME: a->model_name = v; return KN_APP_EXIT_OK;
    case O_PEER:
        if (strcmp(v, "llama.cpp"))
            return refuse("peer", "llama.cpp", v);
        a->peer = v;
        return KN_APP_EXIT_OK;
    case O_PEER_SERVER: return kn_app_path("bench", "--peer-server", v, &a->peer_server);
    case O_PARALLEL: return parse_slots(a, v) ? KN_APP_EXIT_OK : refuse("peer-parallel", "up to 4 numbers from 1 to 256 with commas", v);
    case O_PEER_ARGS: a->peer_args = v; return KN_APP_EXIT_OK;
    case O_REPEAT: return kn_app_parse_u32(v, 1, KN_SERVE_MAX_REPEAT, &a->repeat) ? KN_APP_EXIT_OK : refuse("repeat", "1 to 20", v);
    case O_SLO_TTFT: return parse_double(v, 0, 1e9f, &a->slo_ttft_ms) ? KN_APP_EXIT_OK : refuse("slo-ttft", "milliseconds", v);
    case O_SLO_TPOT: return parse_double(v, 0, 1e9f, &a->slo_tpot_ms) ? KN_APP_EXIT_OK : refuse("slo-tpot", "milliseconds", v);
    case O_FETCH_RATE: return parse_double(v, 1e-3f, 1e3f, &a->fetch_rate) ? KN_APP_EXIT_OK : refuse("fetch-rate", "requests a second above 0", v);
    case O_FETCH_DELAY: return kn_app_parse_u32(v, 0, 20000, &a->fetch_delay_ms) ? KN_APP_EXIT_OK : refuse("fetch-delay", "0 to 20000 ms", v);
    case O_FETCH_WORDS: return kn_app_parse_u32(v, 260, 1u << 16, &a->fetch_words) ? KN_APP_EXIT_OK : refuse("fetch-tokens", "260 or more", v);
    case O_JSON: a->json = true; return KN_APP_EXIT_OK;
    case 'q': a->quiet = true; return KN_APP_EXIT_OK;
    default: return KN_APP_EXIT_FAILED;
    }
}

/* What does not go together. */
static int check(const struct kn_serve_args *a)
{
    if (a->url && a->peer)
        return kn_app_usage_error("bench", "--peer goes with a server of ours that the benchmark starts: leave --url out, or measure each server by --url");
    if (a->url && a->n_extra)
        return kn_app_usage_error("bench", "options after -- are for the server that the benchmark starts: leave them or --url out");
    if (a->scenario == KN_SERVE_SCENARIO_FETCH && (a->url || a->peer || a->n_clients))
        return kn_app_usage_error("bench", "scenario fetch starts our server itself, in an open loop: --url, --peer and --clients do not go with it");
    if (a->scenario == KN_SERVE_SCENARIO_FETCH && a->mix.duration_s <= 0)
        return kn_app_usage_error("bench", "scenario fetch needs a --duration");
    if (a->scenario == KN_SERVE_SCENARIO_FETCH && a->mix.mix != KN_LOAD_MIX_UNIQUE)
        return kn_app_usage_error("bench", "scenario fetch measures unique prompts: leave --mix out");
    if (a->n_clients && a->mix.duration_s > 0)
        return kn_app_usage_error("bench", "--duration is for an open loop: give a closed one its --requests");
    return KN_APP_EXIT_OK;
}

int kn_serve_args_parse(struct kn_serve_args *a, int argc, char **argv)
{
    *a = (struct kn_serve_args){.repeat = 1, .ignore_eos = true, .fetch_rate = 0.2, .fetch_delay_ms = 3000, .fetch_words = 264};
    a->mix = (struct kn_load_mix_opts){.n_requests = 100, .rate = 1, .prompt_low = 200, .prompt_high = 200, .shared_words = 2000, .question_words = 24,
                                       .new_low = 64, .new_high = 64, .n_turns = 4, .seed = 1};
    opterr = 0;
    optind = 1;
    for (int option; (option = getopt_long(argc, argv, ":m:t:c:qh", table, NULL)) != -1;) {
        if (option == 'h') {
            a->help = true;
            return KN_APP_EXIT_OK;
        }
        if (option == ':')
            return kn_app_usage_error("bench", "%s needs a value", argv[optind - 1]);
        int status = parse_load(a, option, optarg);
        if (status == KN_APP_EXIT_FAILED)
            status = parse_rest(a, option, optarg);
        if (status == KN_APP_EXIT_FAILED)
            return kn_app_usage_error("bench", "there is no option %s; kinema bench serve --help lists them", argv[optind - 1]);
        if (status)
            return status;
    }
    bool after_dashes = optind > 1 && !strcmp(argv[optind - 1], "--");
    if (optind < argc && !after_dashes)
        return kn_app_usage_error("bench", "unexpected \"%s\"; options for our server follow --", argv[optind]);
    for (; optind < argc; optind++) {
        if (a->n_extra == KN_SERVE_MAX_EXTRA)
            return kn_app_usage_error("bench", "more than %d options after --", KN_SERVE_MAX_EXTRA);
        a->extra[a->n_extra++] = argv[optind];
    }
    if (!a->peer && (a->peer_server || a->n_peer_parallel || a->peer_args))
        return kn_app_usage_error("bench", "%s has no effect without --peer llama.cpp",
                                  a->peer_server ? "--peer-server" : a->peer_args ? "--peer-args" : "--peer-parallel");
    if (!a->n_peer_parallel) {
        a->peer_parallel[a->n_peer_parallel++] = a->n_clients ? (a->n_clients < 256 ? a->n_clients : 256) : 1;
        if (!a->n_clients)
            a->peer_parallel[a->n_peer_parallel++] = 4;
    }
    return check(a);
}

uint32_t kn_serve_args_longest(const struct kn_serve_args *a)
{
    enum { TEMPLATE = 96 }; /* the chat template's own tokens, and words that were split after all */
    const struct kn_load_mix_opts *m = &a->mix;
    uint64_t n = m->mix == KN_LOAD_MIX_SHARED ? (uint64_t)m->shared_words + m->question_words + m->new_high : (uint64_t)m->prompt_high + m->new_high;
    if (m->mix == KN_LOAD_MIX_TURNS)
        n += (uint64_t)(m->n_turns - 1) * (m->question_words + m->new_high + 16);
    n = (n + n / 32 + TEMPLATE + 255) / 256 * 256;
    return n < UINT32_MAX ? (uint32_t)n : UINT32_MAX;
}
