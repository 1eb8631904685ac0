/* SPDX-License-Identifier: Apache-2.0 */
/* Helpers of the subcommands; see app.h. Messages go to stderr, results to stdout, so that pipes carry results only. */
#include "app.h"

#include <ctype.h>
#include <errno.h>
#include <inttypes.h>
#include <math.h>
#include <signal.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#define DEMO_MODEL_FILE "models/SmolLM2-135M-Instruct.Q4_1.gguf" /* as tools/fetch-model stores it */

static volatile sig_atomic_t interrupted;
static enum kn_log_level log_lowest = KN_LOG_LEVEL_WARN;
static _Atomic uint64_t log_count;

/* ---- arguments */

/* Digits from the start of text; *end is what follows them. Signs and spaces are refused. */
static bool parse_digits(const char *text, uint64_t *out, const char **end)
{
    if (!text || !isdigit((unsigned char)*text))
        return false;
    char *stop;
    errno = 0;
    unsigned long long value = strtoull(text, &stop, 10);
    if (errno)
        return false;
    *out = value;
    *end = stop;
    return true;
}

bool kn_app_parse_u64(const char *text, uint64_t min, uint64_t max, uint64_t *out)
{
    uint64_t value;
    const char *end;
    if (!parse_digits(text, &value, &end) || *end || value < min || value > max)
        return false;
    *out = value;
    return true;
}

bool kn_app_parse_u32(const char *text, uint32_t min, uint32_t max, uint32_t *out)
{
    uint64_t value;
    if (!kn_app_parse_u64(text, min, max, &value))
        return false;
    *out = (uint32_t)value;
    return true;
}

bool kn_app_parse_f32(const char *text, float min, float max, float *out)
{
    if (!text || !(isdigit((unsigned char)*text) || *text == '.' || *text == '-'))
        return false;
    char *end;
    errno = 0;
    float value = strtof(text, &end);
    if (errno || end == text || *end || !isfinite(value) || value < min || value > max)
        return false;
    *out = value;
    return true;
}

bool kn_app_parse_size(const char *text, uint64_t *bytes)
{
    static const char *const units[] = {"", "K", "M", "G", "T"};
    uint64_t value;
    const char *end;
    if (!parse_digits(text, &value, &end))
        return false;
    for (unsigned i = 0; i < sizeof units / sizeof *units; i++) {
        size_t n = strlen(units[i]);
        if (strncasecmp(end, units[i], n))
            continue;
        const char *rest = end + n;
        if (*rest && strcasecmp(rest, "B") && (i == 0 || strcasecmp(rest, "iB")))
            continue;
        if (value > UINT64_MAX >> 10 * i)
            return false;
        *bytes = value << 10 * i;
        return true;
    }
    return false;
}

bool kn_app_parse_duration(const char *text, uint64_t *seconds)
{
    static const struct {
        char letter;
        uint32_t seconds;
    } units[] = {{'\0', 1}, {'s', 1}, {'m', 60}, {'h', 3600}, {'d', 86400}};
    uint64_t value;
    const char *end;
    if (!parse_digits(text, &value, &end) || (*end && end[1]))
        return false;
    for (unsigned i = 0; i < sizeof units / sizeof *units; i++) {
        if (*end == units[i].letter && value <= UINT64_MAX / units[i].seconds) {
            *seconds = value * units[i].seconds;
            return true;
        }
    }
    return false;
}

int kn_app_parse_name(const char *text, const char *const *names, size_t n_names)
{
    for (size_t i = 0; i < n_names; i++) {
        if (!strcmp(text, names[i]))
            return (int)i;
    }
    return -1;
}

/* ---- messages */

static void message(const char *command, const char *format, va_list args)
{
    fprintf(stderr, "kinema%s%s: ", *command ? " " : "", command);
    vfprintf(stderr, format, args);
    fputc('\n', stderr);
}

int kn_app_usage_error(const char *command, const char *format, ...)
{
    va_list args;
    va_start(args, format);
    message(command, format, args);
    va_end(args);
    fprintf(stderr, "Try: kinema %s%s--help\n", command, *command ? " " : "");
    return KN_APP_EXIT_USAGE;
}

int kn_app_fail(const char *command, const char *format, ...)
{
    va_list args;
    va_start(args, format);
    message(command, format, args);
    va_end(args);
    return KN_APP_EXIT_FAILED;
}

static void log_line(void *user, enum kn_log_level level, const char *area, const char *text)
{
    static const char *const names[] = {"debug", "info", "warning", "error"};
    (void)user;
    if (level < log_lowest || level > KN_LOG_LEVEL_ERROR)
        return;
    if (level >= KN_LOG_LEVEL_WARN)
        atomic_fetch_add_explicit(&log_count, 1, memory_order_relaxed); /* a counter only: orders nothing */
    fprintf(stderr, "kinema: %s: %s: %s\n", names[level], area, text);
}

void kn_app_log_to_stderr(enum kn_log_level lowest)
{
    log_lowest = lowest;
    kn_log_set(log_line, NULL, lowest);
}

uint64_t kn_app_log_count(void)
{
    return atomic_load_explicit(&log_count, memory_order_relaxed);
}

/* ---- progress */

void kn_app_progress_init(struct kn_app_progress *progress, bool wanted)
{
    *progress = (struct kn_app_progress){.on = wanted && isatty(STDERR_FILENO)};
}

void kn_app_progress_show(struct kn_app_progress *progress, const char *what, uint64_t done, uint64_t all, const char *unit)
{
    enum { WIDTH = 30, PERIOD_NS = 50000000 };
    uint64_t now = kn_app_now_ns();
    if (!progress->on || !all || (progress->shown && now - progress->last_ns < PERIOD_NS))
        return;
    int filled = (int)(done >= all ? WIDTH : done * WIDTH / all);
    fprintf(stderr, "\r\033[K%-8s [%.*s%*s] %" PRIu64 " of %" PRIu64 " %s", what, filled, "##############################",
            WIDTH - filled, "", done, all, unit);
    fflush(stderr);
    progress->shown = true;
    progress->last_ns = now;
}

void kn_app_progress_clear(struct kn_app_progress *progress)
{
    if (progress->shown) {
        fputs("\r\033[K", stderr);
        fflush(stderr);
        progress->shown = false;
    }
}

void kn_app_on_progress(void *user, const char *phase, double done)
{
    kn_app_progress_show(user, phase, (uint64_t)(done * 100), 100, "%");
}

/* ---- files and the environment */

char *kn_app_read_file(const char *path, size_t *n_bytes, const char **why)
{
    bool from_stdin = !strcmp(path, "-");
    FILE *file = NULL;
    char *data = NULL, *result = NULL;
    size_t n = 0, room = 1 << 16;
    *why = NULL;
    struct stat st;
    if (!*path) {
        *why = "the name is empty";
        goto done;
    }
    if (!from_stdin && !stat(path, &st) && S_ISDIR(st.st_mode)) {
        *why = "it is a folder";
        goto done;
    }
    file = from_stdin ? stdin : fopen(path, "rb");
    if (!file) {
        *why = strerror(errno);
        goto done;
    }
    data = malloc(room + 1);
    while (data) {
        n += fread(data + n, 1, room - n, file);
        if (n < room)
            break;
        if (room > (size_t)1 << 30) {
            *why = "it is longer than any prompt (1 GiB)";
            goto done;
        }
        room *= 2;
        char *grown = realloc(data, room + 1);
        if (!grown)
            free(data);
        data = grown;
    }
    if (!data) {
        *why = "out of memory";
        goto done;
    }
    if (ferror(file)) {
        *why = strerror(errno);
        goto done;
    }
    data[n] = '\0';
    *n_bytes = n;
    result = data;
    data = NULL;
done:
    free(data);
    if (file && !from_stdin)
        fclose(file);
    return result;
}

static size_t utf8_valid(const unsigned char *text, size_t n);

int32_t *kn_app_read_tokens(const char *command, const struct kn_model *model, const char *path, size_t *n)
{
    const char *why = NULL;
    size_t n_bytes = 0;
    char *text = kn_app_read_file(path, &n_bytes, &why);
    if (!text) {
        kn_app_fail(command, "%s: %s", path, why);
        return NULL;
    }
    for (size_t i = 0, length; i < n_bytes; i += length)
        if (!(length = utf8_valid((const unsigned char *)text + i, n_bytes - i)) || !text[i]) {
            kn_app_fail(command, "%s is no UTF-8 text: byte 0x%02x at offset %zu; convert it to UTF-8 (iconv does), or name another", path, (unsigned char)text[i], i);
            free(text);
            return NULL;
        }
    *n = 3 * n_bytes + 2;
    int32_t *tokens = malloc(*n * sizeof *tokens);
    enum kn_status status = tokens ? kn_model_tokenize(model, text, n_bytes, KN_TOKENIZE_BOS, tokens, n) : KN_E_NOMEM;
    free(text);
    if (status) {
        kn_app_fail(command, "%s: %s", path, kn_status_message(status));
        free(tokens);
        return NULL;
    }
    return tokens;
}

bool kn_app_cache_path(const char *file, char *out, size_t out_bytes)
{
    const char *why, *own = getenv("KINEMA_CACHE"), *xdg = getenv("XDG_CACHE_HOME"), *home = getenv("HOME");
    if (own && *own && !(own = kn_app_expand(own, &why))) /* a service's environment is written without a shell, too */
        return false;
    int n = own && *own     ? snprintf(out, out_bytes, "%s/%s", own, file)
            : xdg && *xdg   ? snprintf(out, out_bytes, "%s/kinema/%s", xdg, file)
            : home && *home ? snprintf(out, out_bytes, "%s/.cache/kinema/%s", home, file)
                            : -1;
    return n > 0 && (size_t)n < out_bytes;
}

bool kn_app_default_model(const char *command, char *out, size_t out_bytes)
{
    const char *named = getenv("KINEMA_MODEL"), *path, *why;
    if (named && *named) {
        if (!(path = kn_app_expand(named, &why))) {
            kn_app_fail(command, "KINEMA_MODEL is \"%s\": %s", named, why);
            return false;
        }
        int n = snprintf(out, out_bytes, "%s", path);
        if (n > 0 && (size_t)n < out_bytes)
            return true;
    }
    if (kn_app_cache_path(DEMO_MODEL_FILE, out, out_bytes) && !access(out, R_OK))
        return true;
    kn_app_fail(command, "no model: give -m FILE or set KINEMA_MODEL, or run `make model` in Kinema's sources to download the demo model");
    return false;
}

uint64_t kn_app_now_ns(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

static void on_interrupt(int signal)
{
    (void)signal;
    interrupted = 1;
}

void kn_app_catch_interrupt(void)
{
    struct sigaction action = {.sa_handler = on_interrupt, .sa_flags = (int)SA_RESETHAND};
    sigaction(SIGINT, &action, NULL);
}

bool kn_app_interrupted(void)
{
    return interrupted;
}

/* ---- text */

/* Bytes of the UTF-8 character that begins with c: 1..4, or 0 when none begins so. */
static size_t utf8_length(unsigned char c)
{
    return c < 0x80 ? 1 : c >= 0xc2 && c < 0xe0 ? 2 : c >= 0xe0 && c < 0xf0 ? 3 : c >= 0xf0 && c < 0xf5 ? 4 : 0;
}

/* Length of the well-formed character at text, or 0. Refuses overlong forms, surrogates and values over U+10FFFF. */
static size_t utf8_valid(const unsigned char *text, size_t n)
{
    size_t length = n ? utf8_length(*text) : 0;
    if (!length || length > n)
        return 0;
    for (size_t i = 1; i < length; i++) {
        if ((text[i] & 0xc0) != 0x80)
            return 0;
    }
    if ((text[0] == 0xe0 && text[1] < 0xa0) || (text[0] == 0xed && text[1] > 0x9f) || (text[0] == 0xf0 && text[1] < 0x90) ||
        (text[0] == 0xf4 && text[1] > 0x8f))
        return 0;
    return length;
}

size_t kn_app_utf8_complete(const char *text, size_t n_bytes)
{
    for (size_t back = 1; back <= 3 && back <= n_bytes; back++) {
        unsigned char c = (unsigned char)text[n_bytes - back];
        if ((c & 0xc0) == 0x80)
            continue; /* a continuation byte: its lead is further back */
        return utf8_length(c) > back ? n_bytes - back : n_bytes;
    }
    return n_bytes;
}

json_t *kn_app_json_text(const char *text, size_t n_bytes)
{
    if (n_bytes > (SIZE_MAX - 1) / 3)
        return NULL;
    char *clean = malloc(n_bytes * 3 + 1);
    if (!clean)
        return NULL;
    size_t n = 0;
    for (size_t i = 0; i < n_bytes;) {
        size_t length = utf8_valid((const unsigned char *)text + i, n_bytes - i);
        if (length) {
            memcpy(clean + n, text + i, length);
            n += length;
            i += length;
        } else {
            memcpy(clean + n, "\xef\xbf\xbd", 3);
            n += 3;
            i++;
        }
    }
    json_t *result = json_stringn(clean, n);
    free(clean);
    return result;
}

json_t *kn_app_json_machine(void)
{
    char line[512], model[256] = "unknown";
    FILE *file = fopen("/proc/cpuinfo", "r");
    while (file && fgets(line, sizeof line, file)) {
        char *colon = strchr(line, ':');
        if (colon && !strncmp(line, "model name", 10)) {
            colon[strcspn(colon, "\n")] = '\0';
            snprintf(model, sizeof model, "%.250s", colon + 1 + strspn(colon + 1, " "));
            break;
        }
    }
    if (file)
        fclose(file);
    json_t *machine = json_object();
    json_object_set_new(machine, "cpu", kn_app_json_text(model, strlen(model)));
    json_object_set_new(machine, "cores", json_integer(sysconf(_SC_NPROCESSORS_ONLN)));
    return machine;
}

bool kn_app_json_print(const json_t *object, FILE *out)
{
    bool bad = json_dumpf(object, out, JSON_REAL_PRECISION(9)) != 0;
    return fputc('\n', out) != EOF && !fflush(out) && !bad;
}

void kn_app_hex(const uint8_t bytes[16], char out[33])
{
    for (unsigned i = 0; i < 16; i++)
        snprintf(out + 2 * i, 3, "%02x", bytes[i]);
}

const char *kn_app_bytes_text(double bytes)
{
    static char ring[4][32];
    static unsigned next;
    char *out = ring[next++ % 4];
    static const char *const units[] = {"B", "kB", "MB", "GB", "TB"};
    unsigned i = 0;
    for (; bytes >= 1000 && i < 4; i++)
        bytes /= 1000;
    snprintf(out, sizeof ring[0], i ? "%.1f %s" : "%.0f %s", bytes, units[i]);
    return out;
}
