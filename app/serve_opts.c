/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The table of settings and the flags of `kinema serve`; see serve_opts.h. A value that makes no sense is refused with its limits.
 */
#include "serve_opts.h"

#include <ctype.h>
#include <getopt.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "hevc_opts.h"

#define MAX_NAME 64u
#define AT(member) offsetof(struct kn_serve_opts, member)
#define NAMES(array) .names = array, .n_names = sizeof array / sizeof *array
#define TEXT(n, member, a, w) .name = n, .kind = KN_SERVE_KIND_TEXT, .offset = AT(member), .arg = a, .what = w
#define PATH(n, member, a, w) TEXT(n, member, a, w), .text = KN_SERVE_TEXT_PATH
#define COUNT(n, member, lo, hi, def, w) \
    .name = n, .kind = KN_SERVE_KIND_COUNT, .offset = AT(member), .min = lo, .max = hi, .fallback = def, .arg = "N", .what = w
#define SIZE(n, member, def, w) .name = n, .kind = KN_SERVE_KIND_SIZE, .offset = AT(member), .fallback = def, .arg = "SIZE", .what = w
#define TIME(n, member, def, w) .name = n, .kind = KN_SERVE_KIND_TIME, .offset = AT(member), .fallback = def, .arg = "TIME", .what = w
#define FLAG(n, member, w) .name = n, .kind = KN_SERVE_KIND_FLAG, .offset = AT(member), .what = w
#define CHOICE(n, member, array, a, w) .name = n, .kind = KN_SERVE_KIND_CHOICE, .offset = AT(member), NAMES(array), .arg = a, .what = w
#define LIST(n, member, a, w) .name = n, .kind = KN_SERVE_KIND_LIST, .offset = AT(member), .arg = a, .what = w
#define HEVC(n, o, a, w) .name = n, .kind = KN_SERVE_KIND_HEVC, .option = o, .offset = AT(hevc), .arg = a, .what = w

static const char *qualities[KN_KV_QUALITY_COUNT]; /* the library's names; set before any option is read */
static const char *const backends[] = {"rans", "hevc"};
static const char *const kv_types[] = {"f16", "bf16"};
static const char *const cpus[] = {"best", "ref", "avx2", "avx512"};
static const char *const queues[] = {"separate", "inline"};

const char *const kn_serve_chat_templates[] = {"file", "chatml", "llama3", "mistral", "gemma"};

const struct kn_serve_setting kn_serve_settings[] = {
    {PATH("model", model, "FILE", "GGUF; default $KINEMA_MODEL, else the demo model in the cache folder"), .letter = 'm'},
    {TEXT("model_name", server.model_name, "NAME", "what clients call it (the file's name without .gguf)")},
    {CHOICE("chat_template", chat_template, kn_serve_chat_templates, "NAME", "how messages become text: chatml, llama3, mistral or gemma\n"
            "in place of the model's own (file)")},
    {TEXT("host", server.host, "ADDRESS", "address to listen on; 0.0.0.0 or :: for all (127.0.0.1)")},
    {.name = "port", .kind = KN_SERVE_KIND_PORT, .offset = AT(server.port), .max = 65535, .arg = "N",
     .what = "port; 0 takes a free one and says which (8080)"},
    {TEXT("allow_origin", server.allow_origin, "ORIGIN", "web pages of this origin may read answers; * for all (none)")},
    {LIST("allow_host", allow_hosts, "NAME", "a server on 127.0.0.1 without keys takes requests for names of this machine\n"
          "only, lest web pages reach it; allow one more (repeat for more)")},
    {PATH("port_file", port_file, "FILE", "write the port there once it listens, for scripts")},

    {COUNT("ctx", engine.n_ctx, 1, 1u << 24, 0, "longest sequence in tokens (the model's)"), .letter = 'c', .group = "Engine"},
    {COUNT("threads", engine.n_threads, 1, 256, 0, "compute threads (all that the process may use)"), .letter = 't'},
    {SIZE("pool_size", engine.pool_bytes, 0, "memory of the KV cache, such as 2G\n"
          "(four longest sequences, at most a quarter of the memory)")},
    {COUNT("max_running", engine.max_running, 1, 256, 32, "requests that share a step")},
    {COUNT("prefill_chunk", engine.prefill_chunk, 1, 8192, 256, "prompt tokens a step")},
    {FLAG("no_prefix_cache", engine.no_prefix_cache, "do not reuse the cache of one request for another")},
    {CHOICE("kv_type", kv_type, kv_types, "f16|bf16", "16-bit type of the cache (f16)")},
    {CHOICE("cpu", cpu, cpus, "best|ref|avx2|avx512", "highest instruction level to use (best)")},

    {TEXT("store", engine.store_url, "URL", "where prefixes are fetched from and published to, such as lmdb:FOLDER.\n"
          "One that is down is tried again; requests are computed meanwhile"), .text = KN_SERVE_TEXT_URL, .group = "Store"},
    {SIZE("store_max", engine.store_max_bytes, 16ull << 30, "limit of the store (16G)")},
    {.name = "store_ttl", .kind = KN_SERVE_KIND_AGE, .offset = AT(engine.store_ttl_s), .arg = "TIME",
     .what = "age at which chunks are dropped, such as 12h or 7d (never)"},
    {FLAG("store_read_only", engine.store_read_only, "only fetch: nothing is written to the store, and no permission to is needed")},
    {CHOICE("preset", preset, kn_app_preset_names, "exact|fine|medium|small|tiles", "coding of published chunks; all but exact are lossy\n"
            "(exact; medium with a profile)")},
    {CHOICE("kv_quality", kv_quality, qualities, "exact|fine|tiles|medium|small|any", "least that is taken from memory and store by requests\n"
            "that do not say (what the preset gives)")},
    {PATH("profile", engine.profile_path, "FILE", "of the model, for fine, medium and small;\n"
          "default $KINEMA_PROFILE, else the model's own in the cache folder")},
    {CHOICE("backend", backend, backends, "rans|hevc", "how fine, medium and small are written (rans)")},
    {COUNT("chunk_tokens", engine.chunk_tokens, 16, 8192, 256, "tokens of a stored chunk, a multiple of 16")},
    {COUNT("levels", tiles.levels, 4, 256, 0, "quantiser levels of tiles (64)")},
    {COUNT("tokens_per_picture", tiles.tokens_per_picture, 1, 8192, 0, "resolution of tiles (by shape)")},
    {HEVC("hevc_encoder", KN_APP_OPT_HEVC_ENCODER, "NAME", "kinema, x265-ultrafast or x265-medium: who codes video (kinema)")},
    {HEVC("hevc_tools", KN_APP_OPT_HEVC_TOOLS, "full|basic", "range extension tools of HEVC that may be used (full)")},
    {HEVC("hevc_slices", KN_APP_OPT_HEVC_SLICES, "N", "slices of a picture, 1 to 64 (by size)")},
    {CHOICE("fetch_queue", fetch_queue, queues, "separate|inline", "separate: fetches run beside the steps (default);\n"
            "inline: a step waits for them, to see the damage")},
    {TIME("fetch_deadline", engine.fetch_deadline_ms, 30000, "a slower fetch is cut, what arrived is used"), .plain_ms = true},
    {COUNT("fetch_pool_percent", engine.fetch_pool_percent, 1, 100, 50, "most of the pool that waiting fetches may hold")},

    {PATH("api_key_file", key_file, "FILE", "a key a line, then a name and a salt if wanted; # begins a comment"), .group = "Clients"},
    {COUNT("max_connections", server.max_connections, 1, 10000, 256, "beyond it new ones get 503")},
    {COUNT("max_queue", server.max_queue, 1, 1u << 20, 256, "requests that wait for a place; beyond it 503")},
    {COUNT("max_choices", server.max_choices, 1, 128, 16, "n of one request")},
    {SIZE("max_body", server.max_body_bytes, 8u << 20, "longest body (8M)")},
    {SIZE("max_parse", server.max_parse_bytes, 256u << 20, "memory for bodies that are being parsed, of all clients;\n"
          "beyond it 503 (256M)")},
    {COUNT("max_header", server.max_header_bytes, 256, 1u << 24, 16384, "longest head, bytes")},
    {TIME("header_timeout", server.header_timeout_ms, 10000, "to receive a request's head, whatever trickles in")},
    {TIME("body_timeout", server.body_timeout_ms, 30000, "to receive its body")},
    {TIME("idle_timeout", server.idle_timeout_ms, 60000, "of a connection kept alive")},
    {TIME("send_timeout", server.send_timeout_ms, 30000, "for a reader that takes nothing")},
    {TIME("wait_timeout", server.wait_timeout_ms, 300000, "request to first token")},
    {TIME("request_timeout", server.request_timeout_ms, 1800000, "request to last token")},
    {TIME("drain_timeout", server.drain_timeout_ms, 30000, "for requests under way after SIGTERM")},
};
const size_t kn_serve_n_settings = sizeof kn_serve_settings / sizeof *kn_serve_settings;

enum { OPT_SETTING = 1000, OPT_CONFIG = 500, OPT_PRINT_CONFIG, OPT_API_KEY, OPT_JSON };

/* ---- values */

static bool parse_time(const char *text, bool plain_ms, uint32_t *ms)
{
    static const struct {
        const char *unit;
        uint32_t ms;
    } units[] = {{"ms", 1}, {"s", 1000}, {"m", 60000}, {"h", 3600000}, {"d", 86400000}};
    size_t n = strspn(text, "0123456789");
    char digits[16];
    uint64_t value;
    if (!n || n >= sizeof digits)
        return false;
    memcpy(digits, text, n);
    digits[n] = '\0';
    if (!kn_app_parse_u64(digits, 1, UINT32_MAX, &value))
        return false;
    uint64_t scale = plain_ms && !text[n] ? 1 : 0;
    for (size_t i = 0; i < sizeof units / sizeof *units; i++)
        scale = strcmp(text + n, units[i].unit) ? scale : units[i].ms;
    if (!scale || value * scale > UINT32_MAX)
        return false;
    *ms = (uint32_t)(value * scale);
    return true;
}

/* Whether the first name stands for what follows from other settings. */
static bool has_default(const struct kn_serve_setting *s)
{
    return s->names == kn_app_preset_names || s->names == qualities;
}

static int parse_choice(const struct kn_serve_setting *s, const char *text, char *wanted, size_t wanted_bytes)
{
    int i = kn_app_parse_name(text, s->names, s->n_names);
    snprintf(wanted, wanted_bytes, "%s", s->arg);
    return has_default(s) && i == 0 ? -1 : i; /* the default has no name of its own */
}

/* Adds a word to a list, once: flags are read twice. */
static bool add_word(char **list, const char *word)
{
    const size_t n = strlen(word), n_list = *list ? strlen(*list) : 0;
    for (const char *at = *list; at; at = (at = strchr(at, ',')) ? at + 1 : NULL)
        if (strcspn(at, ",") == n && !strncmp(at, word, n))
            return true;
    if (!n || strchr(word, ','))
        return false;
    char *grown = realloc(*list, n_list + n + 2);
    if (!grown)
        return false;
    *list = grown;
    snprintf(grown + n_list, n + 2, "%s%s", n_list ? "," : "", word);
    return true;
}

bool kn_serve_set(struct kn_serve_opts *opts, const struct kn_serve_setting *s, const char *text, char *wanted, size_t wanted_bytes)
{
    void *at = (char *)opts + s->offset;
    uint64_t wide;
    uint32_t value;
    int i;
    switch (s->kind) {
    case KN_SERVE_KIND_TEXT:
        if (s->text && *text) {
            const char *why, *path = s->text == KN_SERVE_TEXT_URL ? kn_app_expand_url(text, &why) : kn_app_expand(text, &why);
            snprintf(wanted, wanted_bytes, "a path (%s)", path ? "" : why);
            *(const char **)at = path;
            return path;
        }
        snprintf(wanted, wanted_bytes, "text that is not empty");
        *(const char **)at = text;
        return *text;
    case KN_SERVE_KIND_COUNT:
        snprintf(wanted, wanted_bytes, "%s%" PRIu32 " to %" PRIu32, at == &opts->engine.chunk_tokens ? "a multiple of 16 from " : "", s->min, s->max);
        return kn_app_parse_u32(text, s->min, s->max, at) && !(at == &opts->engine.chunk_tokens && opts->engine.chunk_tokens % 16);
    case KN_SERVE_KIND_PORT:
        snprintf(wanted, wanted_bytes, "a port, 0 to 65535");
        if (!kn_app_parse_u32(text, 0, 65535, &value))
            return false;
        *(uint16_t *)at = (uint16_t)value;
        return true;
    case KN_SERVE_KIND_SIZE:
        snprintf(wanted, wanted_bytes, "a size, such as 512M or 2G");
        if (!kn_app_parse_size(text, &wide) || !wide)
            return false;
        *(uint64_t *)at = wide;
        return true;
    case KN_SERVE_KIND_TIME:
        snprintf(wanted, wanted_bytes, "a time with its unit, such as 500ms, 30s or 5m");
        return parse_time(text, s->plain_ms, at);
    case KN_SERVE_KIND_AGE:
        snprintf(wanted, wanted_bytes, "a time, such as 90s, 15m, 12h or 7d");
        return kn_app_parse_duration(text, at);
    case KN_SERVE_KIND_CHOICE:
        if ((i = parse_choice(s, text, wanted, wanted_bytes)) < 0)
            return false;
        *(int *)at = i;
        return true;
    case KN_SERVE_KIND_FLAG:
        snprintf(wanted, wanted_bytes, "true or false");
        *(bool *)at = !strcmp(text, "true");
        return *(bool *)at || !strcmp(text, "false");
    case KN_SERVE_KIND_LIST:
        snprintf(wanted, wanted_bytes, "a name, such as llm.example.org");
        return add_word(at, text);
    case KN_SERVE_KIND_HEVC: break;
    }
    return !kn_app_hevc_option("serve", s->option, text, at);
}

static json_t *hevc_value(const struct kn_serve_opts *opts, int option)
{
    const struct kn_hevc_opts *h = &opts->hevc;
    switch (option) { /* null unless given: without video they have no meaning */
    case KN_APP_OPT_HEVC_ENCODER: return h->encoder ? json_string(kn_app_hevc_encoder_name(h)) : json_null();
    case KN_APP_OPT_HEVC_TOOLS: return h->tools ? json_string(kn_app_hevc_tools_name(h)) : json_null();
    default: return h->n_slices ? json_integer(h->n_slices) : json_null();
    }
}

static json_t *list_value(const char *list)
{
    json_t *out = list ? json_array() : json_null();
    for (const char *at = list; at; at = (at = strchr(at, ',')) ? at + 1 : NULL)
        json_array_append_new(out, kn_app_json_text(at, strcspn(at, ",")));
    return out;
}

static json_t *time_value(uint32_t ms)
{
    char text[32];
    snprintf(text, sizeof text, ms % 1000 ? "%" PRIu32 "ms" : "%" PRIu32 "s", ms % 1000 ? ms : ms / 1000);
    return json_string(text);
}

json_t *kn_serve_value(const struct kn_serve_opts *opts, const struct kn_serve_setting *s)
{
    const void *at = (const char *)opts + s->offset;
    uint32_t count;
    uint64_t wide;
    switch (s->kind) {
    case KN_SERVE_KIND_TEXT: return *(const char *const *)at ? kn_app_json_text(*(const char *const *)at, strlen(*(const char *const *)at)) : json_null();
    case KN_SERVE_KIND_COUNT:
    case KN_SERVE_KIND_TIME:
        count = *(const uint32_t *)at ? *(const uint32_t *)at : (uint32_t)s->fallback;
        return !count ? json_null() : s->kind == KN_SERVE_KIND_COUNT ? json_integer(count) : time_value(count);
    case KN_SERVE_KIND_PORT: return json_integer(*(const uint16_t *)at);
    case KN_SERVE_KIND_SIZE:
    case KN_SERVE_KIND_AGE:
        wide = *(const uint64_t *)at ? *(const uint64_t *)at : s->fallback;
        return wide ? json_integer((json_int_t)wide) : json_null();
    case KN_SERVE_KIND_CHOICE: return has_default(s) && !*(const int *)at ? json_null() : json_string(s->names[*(const int *)at]);
    case KN_SERVE_KIND_FLAG: return json_boolean(*(const bool *)at);
    case KN_SERVE_KIND_LIST: return list_value(*(char *const *)at);
    case KN_SERVE_KIND_HEVC: break;
    }
    return hevc_value(opts, s->option);
}

/* ---- names */

const struct kn_serve_setting *kn_serve_find(const char *name)
{
    for (size_t i = 0; i < kn_serve_n_settings; i++) {
        if (!strcmp(kn_serve_settings[i].name, name))
            return &kn_serve_settings[i];
    }
    return NULL;
}

static char fold(char c)
{
    return c == '-' ? '_' : (char)tolower((unsigned char)c);
}

/* Edit distance of two short names; longer ones are far from everything. */
static size_t distance(const char *a, const char *b)
{
    size_t n = strlen(a), m = strlen(b), row[MAX_NAME + 1];
    if (n > MAX_NAME || m > MAX_NAME)
        return MAX_NAME;
    for (size_t j = 0; j <= m; j++)
        row[j] = j;
    for (size_t i = 1; i <= n; i++) {
        size_t diagonal = row[0];
        row[0] = i;
        for (size_t j = 1; j <= m; j++) {
            size_t best = diagonal + (fold(a[i - 1]) != fold(b[j - 1]));
            diagonal = row[j];
            best = row[j] + 1 < best ? row[j] + 1 : best;
            row[j] = row[j - 1] + 1 < best ? row[j - 1] + 1 : best;
        }
    }
    return row[m];
}

const char *kn_serve_nearest(const char *name, const char *const *names, size_t n_names)
{
    const char *best = NULL;
    size_t limit = strlen(name) / 3 + 1;
    for (size_t i = 0; i < n_names; i++) {
        size_t d = distance(name, names[i]);
        if (d <= limit) {
            limit = d ? d - 1 : 0;
            best = names[i];
        }
        if (!d)
            break;
    }
    return best;
}

const char *kn_serve_nearest_setting(const char *name)
{
    static const char *const others[] = {"api_keys", "config", "print_config", "verbose", "quiet", "json", "help"};
    const char *names[sizeof kn_serve_settings / sizeof *kn_serve_settings + sizeof others / sizeof *others];
    size_t n = 0;
    for (; n < kn_serve_n_settings; n++)
        names[n] = kn_serve_settings[n].name;
    for (size_t i = 0; i < sizeof others / sizeof *others; i++)
        names[n++] = others[i];
    return kn_serve_nearest(name, names, n);
}

bool kn_serve_add_key(struct kn_serve_opts *opts, const char *key, const char *name, const char *salt)
{
    struct kn_server_key *grown = realloc(opts->keys, (opts->n_keys + 1) * sizeof *grown);
    if (!grown)
        return false;
    opts->keys = grown;
    opts->keys[opts->n_keys++] = (struct kn_server_key){.key = key, .name = name, .salt = salt};
    return true;
}

/* ---- flags */

static void flag_name(const char *name, char out[MAX_NAME])
{
    snprintf(out, MAX_NAME, "%s", name);
    for (char *p = out; *p; p++)
        *p = *p == '_' ? '-' : *p;
}

static int unknown_option(const char *given)
{
    const char *name = given + strspn(given, "-"), *near = strncmp(given, "--", 2) ? NULL : kn_serve_nearest_setting(name);
    char flag[MAX_NAME];
    if (!near)
        return kn_app_usage_error("serve", "there is no option %s", given);
    flag_name(near, flag);
    return kn_app_usage_error("serve", "there is no option %s; did you mean --%s?", given, strcmp(near, "api_keys") ? flag : "api-key");
}

static int set_flag(struct kn_serve_opts *opts, const struct kn_serve_setting *s, const char *text)
{
    char wanted[200] = "", flag[MAX_NAME];
    if (kn_serve_set(opts, s, text ? text : "true", wanted, sizeof wanted))
        return KN_APP_EXIT_OK;
    if (s->kind == KN_SERVE_KIND_HEVC)
        return KN_APP_EXIT_USAGE; /* it has said why */
    flag_name(s->name, flag);
    return kn_app_usage_error("serve", "--%s takes %s, not \"%s\"", flag, wanted, text);
}

static int take(struct kn_serve_opts *opts, int option, const char *text)
{
    switch (option) {
    case 'q': opts->quiet = true; return KN_APP_EXIT_OK;
    case 'v': opts->verbose = true; return KN_APP_EXIT_OK;
    case 'h': opts->help = true; return KN_APP_EXIT_OK;
    case OPT_JSON: opts->json = true; return KN_APP_EXIT_OK;
    case OPT_PRINT_CONFIG: opts->print_config = true; return KN_APP_EXIT_OK;
    case OPT_CONFIG: return kn_app_path("serve", "--config", text, &opts->config);
    case OPT_API_KEY:
        if (!*text)
            return kn_app_usage_error("serve", "--api-key takes a key that is not empty");
        return kn_serve_add_key(opts, text, NULL, NULL) ? KN_APP_EXIT_OK : kn_app_fail("serve", "out of memory");
    default: break;
    }
    if (option >= OPT_SETTING)
        return set_flag(opts, &kn_serve_settings[option - OPT_SETTING], text);
    for (size_t i = 0; i < kn_serve_n_settings; i++) {
        if (kn_serve_settings[i].letter == option)
            return set_flag(opts, &kn_serve_settings[i], text);
    }
    return KN_APP_EXIT_USAGE;
}

int kn_serve_flags_read(struct kn_serve_opts *opts, int argc, char **argv)
{
    static const struct option fixed[] = {
        {"verbose", no_argument, NULL, 'v'},
        {"quiet", no_argument, NULL, 'q'},
        {"help", no_argument, NULL, 'h'},
        {"json", no_argument, NULL, OPT_JSON},
        {"config", required_argument, NULL, OPT_CONFIG},
        {"print-config", no_argument, NULL, OPT_PRINT_CONFIG},
        {"api-key", required_argument, NULL, OPT_API_KEY},
        {NULL, 0, NULL, 0},
    };
    struct option table[sizeof kn_serve_settings / sizeof *kn_serve_settings + sizeof fixed / sizeof *fixed];
    char flags[sizeof kn_serve_settings / sizeof *kn_serve_settings][MAX_NAME];
    for (size_t i = 0; i < kn_serve_n_settings; i++) {
        flag_name(kn_serve_settings[i].name, flags[i]);
        table[i] = (struct option){flags[i], kn_serve_settings[i].kind == KN_SERVE_KIND_FLAG ? no_argument : required_argument, NULL, OPT_SETTING + (int)i};
    }
    memcpy(table + kn_serve_n_settings, fixed, sizeof fixed);
    opterr = 0;
    optind = 1;
    for (int option; (option = getopt_long(argc, argv, ":m:c:t:qvh", table, NULL)) != -1;) {
        const char *given = optind > 1 ? argv[optind - 1] : "";
        if (option == '?')
            return unknown_option(given);
        if (option == ':')
            return kn_app_usage_error("serve", "%s needs a value", given);
        int status = take(opts, option, optarg);
        if (status || opts->help)
            return status;
    }
    if (optind < argc)
        return kn_app_usage_error("serve", "unexpected \"%s\"; a model is given with -m", argv[optind]);
    return KN_APP_EXIT_OK;
}

void kn_serve_opts_init(struct kn_serve_opts *opts)
{
    for (int i = 0; i < KN_KV_QUALITY_COUNT; i++)
        qualities[i] = kn_kv_quality_name((enum kn_kv_quality)i);
    *opts = (struct kn_serve_opts){.server = {.size = sizeof opts->server, .host = "127.0.0.1", .port = 8080},
                                   .engine = {.size = sizeof opts->engine, .store_optional = true},
                                   .tiles = {.size = sizeof opts->tiles},
                                   .hevc = {.size = sizeof opts->hevc}};
}

/* The first setting of the store that is not at its default; NULL: all are. */
static const struct kn_serve_setting *store_setting_given(const struct kn_serve_opts *opts)
{
    struct kn_serve_opts defaults;
    kn_serve_opts_init(&defaults);
    const struct kn_serve_setting *s = kn_serve_find("store"), *given = NULL;
    for (s++; !s->group && !given; s++) {
        json_t *a = kn_serve_value(opts, s), *b = kn_serve_value(&defaults, s);
        if (!json_equal(a, b))
            given = s;
        json_decref(a);
        json_decref(b);
    }
    return given;
}

int kn_serve_settle(struct kn_serve_opts *opts)
{
    struct kn_engine_opts *e = &opts->engine;
    e->preset = (enum kn_preset)opts->preset;
    e->kv_quality = (enum kn_kv_quality)opts->kv_quality;
    e->backend = opts->backend ? KN_BACKEND_HEVC : KN_BACKEND_DEFAULT;
    e->kv_type = opts->kv_type ? KN_KV_TYPE_BF16 : KN_KV_TYPE_F16;
    e->cpu_level_max_plus_1 = (uint32_t)opts->cpu;
    e->fetch_inline = opts->fetch_queue == 1;
    if ((opts->tiles.levels || opts->tiles.tokens_per_picture) && e->preset != KN_PRESET_TILES)
        return kn_app_usage_error("serve", "levels and tokens-per-picture belong to preset tiles");
    if (e->backend && e->preset && !kn_app_preset_needs_profile(e->preset))
        return kn_app_usage_error("serve", "backend belongs to the presets fine, medium and small");
    if (kn_app_hevc_given(&opts->hevc) && e->preset != KN_PRESET_TILES && e->backend != KN_BACKEND_HEVC)
        return kn_app_usage_error("serve", "hevc-encoder, hevc-tools and hevc-slices belong to video: preset tiles or backend hevc");
    if (e->backend && !e->preset && !e->profile_path)
        return kn_app_usage_error("serve", "backend belongs to the presets fine, medium and small: give one with --preset");
    if (e->profile_path && e->preset && !kn_app_preset_needs_profile(e->preset))
        return kn_app_usage_error("serve", "profile belongs to the presets fine, medium and small");
    const struct kn_serve_setting *idle = e->store_url ? NULL : store_setting_given(opts);
    if (idle) {
        char flag[MAX_NAME];
        flag_name(idle->name, flag);
        return kn_app_usage_error("serve", "%s has no effect without a store: give --store URL, or leave it out", flag);
    }
    if (e->store_read_only && e->store_max_bytes && e->store_max_bytes != kn_serve_find("store_max")->fallback)
        return kn_app_usage_error("serve", "store-max is for what is written, and store-read-only writes nothing: give one of them");
    if (opts->quiet && opts->verbose)
        return kn_app_usage_error("serve", "give one of -q and -v, not both");
    opts->server.keys = opts->keys;
    opts->server.n_keys = opts->n_keys;
    opts->server.allow_hosts = opts->allow_hosts;
    e->tiles = &opts->tiles;
    e->hevc = &opts->hevc;
    opts->server.engine = e;
    return KN_APP_EXIT_OK;
}

void kn_serve_opts_fini(struct kn_serve_opts *opts)
{
    free(opts->keys);
    free(opts->key_text);
    free(opts->allow_hosts);
    json_decref(opts->root);
    *opts = (struct kn_serve_opts){0};
}

/* ---- help */

static void help_line(const struct kn_serve_setting *s)
{
    enum { COLUMN = 34 };
    char flag[MAX_NAME], left[160], letter[8] = "    ";
    flag_name(s->name, flag);
    if (s->letter)
        snprintf(letter, sizeof letter, "-%c, ", s->letter);
    int n = snprintf(left, sizeof left, "  %s--%s%s%s", letter, flag, s->arg ? " " : "", s->arg ? s->arg : "");
    printf("%s", left);
    if (n >= COLUMN)
        printf("\n%*s", COLUMN, "");
    else
        printf("%*s", COLUMN - n, "");
    for (const char *p = s->what; *p; p++) {
        if (*p == '\n')
            printf("\n%*s", COLUMN, "");
        else
            putchar(*p);
    }
    if (s->fallback && s->kind == KN_SERVE_KIND_TIME)
        printf(" (%" PRIu64 "s)", s->fallback / 1000);
    else if (s->fallback && s->kind == KN_SERVE_KIND_COUNT)
        printf(" (%" PRIu64 ")", s->fallback);
    putchar('\n');
}

void kn_serve_opts_help(void)
{
    fputs("usage: kinema serve [-m MODEL] [--port N] [--store URL] [--config FILE] [options]\n"
          "\n"
          "Serves a model over HTTP as OpenAI's API does: /v1/chat/completions, /v1/completions, /v1/models; also /tokenize, /health,\n"
          "/metrics for Prometheus, and a dashboard at /. doc/server.md describes routes, extensions and the configuration file.\n"
          "\n",
          stdout);
    for (size_t i = 0; i < kn_serve_n_settings; i++) {
        const struct kn_serve_setting *s = &kn_serve_settings[i];
        if (s->group)
            printf("\n%s\n", s->group);
        if (!strcmp(s->name, "api_key_file"))
            fputs("      --api-key KEY               clients must send one of the keys (repeat for more), as Authorization: Bearer KEY or as\n"
                  "                                  X-Api-Key: KEY; others see it in the list of processes: a file is better. Keys never\n"
                  "                                  share a prefix\n", stdout);
        help_line(s);
    }
    fputs("\nProgram\n"
          "      --config FILE               settings as JSON: {\"pool_size\": \"2G\", ...}, names as here with _ for -; flags override it\n"
          "      --print-config              print the settings in force, keys masked, and end\n"
          "      --json                      one JSON object a line on the standard output: listening, stopped\n"
          "  -q, --quiet                     errors only;  -v, --verbose: all that the library says\n"
          "\n"
          "A SIZE is bytes or has a unit (K, M, G, T: powers of 1024); a TIME has a unit (ms, s, m, h, d).\n"
          "SIGTERM or Ctrl-C: refuse new requests, let those under way end (--drain-timeout), write out what is being published, end. Once\n"
          "more: cancel them. SIGHUP is ignored.\n"
          "Exit status: 0 ended cleanly, 1 failed, or the cache's book-keeping did not verify at the end, 2 used wrongly.\n",
          stdout);
}
