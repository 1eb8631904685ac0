/* SPDX-License-Identifier: Apache-2.0 */
/*
 * kinema serve: settings -> model -> server -> until SIGTERM or SIGINT.
 *
 *     signal handler --> kn_server_stop        main thread: kn_server_open .. kn_server_run (steps the engine) .. kn_server_close
 *
 * Once it listens it says where: a line on stderr, with --json an object on stdout, with --port-file a file that appears whole.
 * The exit status is 0 only when everything ended and the pool verified empty.
 *
 * Threads: this one is the engine's. The handler may run on any thread that does not block signals; it touches two atomics.
 */
#include <errno.h>
#include <inttypes.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "app.h"
#include "prompt.h"
#include "serve_config.h"
#include "serve_opts.h"

#define MIB 1048576u

struct serve {
    struct kn_serve_opts opts;
    struct kn_err err;
    struct kn_model *model;
    char model_path[4096], profile_path[4096], url[320];
    bool pool_chosen, preset_chosen;
};

/* The handler's: the server to stop, and how often it was asked while there was none, which is before it has opened and while it closes. */
static _Atomic(struct kn_server *) server_to_stop;
static _Atomic int n_idle_stops;
static bool is_quiet; /* before signals are caught, then constant */
static _Atomic bool drain_said;

/* Somebody at a terminal should not wonder why it goes on. write() may be called by a handler. */
static void say_draining(void)
{
    static const char text[] = "kinema serve: the requests under way may end, new ones are refused; once more ends them now\n";
    if (!is_quiet && !atomic_exchange_explicit(&drain_said, true, memory_order_relaxed)) { /* a flag alone */
        ssize_t n = write(STDERR_FILENO, text, sizeof text - 1);
        (void)n;
    }
}

static void on_stop(int signal_number)
{
    int saved = errno;
    struct kn_server *server = atomic_load_explicit(&server_to_stop, memory_order_seq_cst); /* with publish_server */
    if (server) {
        kn_server_stop(server);
        say_draining();
    } else if (atomic_fetch_add_explicit(&n_idle_stops, 1, memory_order_seq_cst) > 0) {
        _exit(128 + signal_number); /* asked twice: opening, or closing, hangs */
    }
    errno = saved;
}

/* Sequentially consistent with on_stop: either the handler sees the server, or this sees the handler's count. */
static void publish_server(struct kn_server *server)
{
    atomic_store_explicit(&server_to_stop, server, memory_order_seq_cst);
    for (int n = atomic_exchange_explicit(&n_idle_stops, 0, memory_order_seq_cst); n > 0; n--)
        kn_server_stop(server);
}

static void catch_signals(void)
{
    struct sigaction stop = {.sa_handler = on_stop, .sa_flags = SA_RESTART}, ignore = {.sa_handler = SIG_IGN};
    sigaction(SIGTERM, &stop, NULL);
    sigaction(SIGINT, &stop, NULL);
    sigaction(SIGHUP, &ignore, NULL);
}

/* Memory that this process may use: the machine's, or less in a control group. 0: unknown. */
static uint64_t memory_bytes(void)
{
    long pages = sysconf(_SC_PHYS_PAGES), page = sysconf(_SC_PAGESIZE);
    uint64_t bytes = pages > 0 && page > 0 ? (uint64_t)pages * (uint64_t)page : 0;
    char line[64] = "";
    uint64_t limit;
    FILE *file = fopen("/sys/fs/cgroup/memory.max", "r");
    if (file) {
        if (fgets(line, sizeof line, file)) {
            line[strcspn(line, "\n")] = '\0';
            if (kn_app_parse_u64(line, MIB, UINT64_MAX, &limit) && (!bytes || limit < bytes))
                bytes = limit;
        }
        fclose(file);
    }
    return bytes;
}

/* Four longest sequences, at most a quarter of the memory, whole MiB. */
static void choose_pool(struct serve *s)
{
    struct kn_engine_opts *e = &s->opts.engine;
    const struct kn_model_info *info = kn_model_info(s->model);
    uint32_t n_ctx = e->n_ctx && e->n_ctx < info->n_ctx_train ? e->n_ctx : info->n_ctx_train;
    if (!e->pool_bytes) {
        uint64_t wanted = 4 * (uint64_t)n_ctx * info->kv_bytes_per_token, most = memory_bytes() / 4;
        if (most && wanted > most)
            wanted = most;
        e->pool_bytes = (wanted / MIB + 1) * MIB;
        s->pool_chosen = true;
    }
    uint64_t tokens = info->kv_bytes_per_token ? e->pool_bytes / info->kv_bytes_per_token : 0;
    if (tokens < n_ctx && !s->opts.quiet)
        fprintf(stderr, "kinema serve: the pool of %s holds %" PRIu64 " tokens, fewer than the longest sequence of %" PRIu32
                ": longer requests will be refused; raise --pool-size or lower -c\n", kn_app_bytes_text((double)e->pool_bytes), tokens, n_ctx);
}

static enum kn_status open_model(struct serve *s)
{
    struct kn_model_opts mo = {.size = sizeof mo, .path = s->model_path,
                               .chat_template = s->opts.chat_template ? kn_serve_chat_templates[s->opts.chat_template] : NULL};
    enum kn_status status = kn_model_open(&s->model, &mo, &s->err);
    if (status)
        return status;
    struct kn_engine_opts *e = &s->opts.engine;
    s->preset_chosen = e->preset == KN_PRESET_DEFAULT;
    if (e->store_url && !kn_app_settle_preset(e, s->model, s->profile_path, sizeof s->profile_path, &s->err))
        return KN_E_ARG;
    choose_pool(s);
    return KN_OK;
}

static void make_url(struct serve *s, uint16_t port)
{
    const char *host = s->opts.server.host;
    bool v6 = strchr(host, ':');
    if (!strcmp(host, "0.0.0.0"))
        host = "127.0.0.1";
    else if (!strcmp(host, "::"))
        host = "::1";
    snprintf(s->url, sizeof s->url, v6 ? "http://[%.250s]:%u" : "http://%.250s:%u", host, (unsigned)port);
}

/* Beside the file and moved there, so that whoever sees it sees all of it. */
static bool write_port_file(const char *path, uint16_t port)
{
    char beside[4200];
    int n = snprintf(beside, sizeof beside, "%s.%ld", path, (long)getpid());
    FILE *file = n > 0 && (size_t)n < sizeof beside ? fopen(beside, "w") : NULL;
    bool good = file && fprintf(file, "%u\n", (unsigned)port) > 0;
    if (file && fclose(file))
        good = false;
    if (good && !rename(beside, path))
        return true;
    if (file) {
        int saved = errno;
        unlink(beside);
        errno = saved;
    }
    return false;
}

static void say_listening(const struct serve *s, uint16_t port)
{
    const struct kn_serve_opts *o = &s->opts;
    const struct kn_engine_opts *e = &o->engine;
    const struct kn_model_info *info = kn_model_info(s->model);
    uint64_t tokens = info->kv_bytes_per_token ? e->pool_bytes / info->kv_bytes_per_token : 0;
    if (!o->quiet) {
        fprintf(stderr, "kinema serve: listening on %s, OpenAI's API under %s/v1, dashboard at %s/\n", s->url, s->url, s->url);
        fprintf(stderr, "kinema serve: %s, cache of %s (%" PRIu64 " tokens%s)%s%s%s\n", s->model_path, kn_app_bytes_text((double)e->pool_bytes), tokens,
                s->pool_chosen ? ", chosen; --pool-size sets it" : "", e->store_url ? ", store " : "", e->store_url ? e->store_url : "",
                e->store_url && e->store_read_only ? " (only read: nothing is published)" : "");
        const char *why = kn_prompt_no_template(s->model);
        if (why)
            fprintf(stderr, "kinema serve: %s: /v1/chat/completions and messages to /tokenize are refused with 400, /v1/completions works; "
                    "--chat-template NAME puts messages into one of them\n", why);
        if (e->store_url)
            kn_app_say_preset("serve", e, s->model, s->preset_chosen);
    }
    if (o->json) {
        json_t *object = json_object();
        json_object_set_new(object, "event", json_string("listening"));
        json_object_set_new(object, "url", json_string(s->url));
        json_object_set_new(object, "port", json_integer(port));
        json_object_set_new(object, "pid", json_integer(getpid()));
        json_object_set_new(object, "model", kn_app_json_text(s->model_path, strlen(s->model_path)));
        json_object_set_new(object, "chat_template", json_string(info->chat_template));
        json_object_set_new(object, "pool_bytes", json_integer((json_int_t)e->pool_bytes));
        json_object_set_new(object, "pool_tokens", json_integer((json_int_t)tokens));
        json_object_set_new(object, "preset", e->store_url ? json_string(kn_app_preset_names[e->preset]) : json_null());
        kn_app_json_print(object, stdout);
        json_decref(object);
    }
}

static void say_stopped(const struct serve *s, enum kn_status status, const char *text)
{
    if (!s->opts.json)
        return;
    json_t *object = json_object(), *error = status ? json_object() : json_null();
    if (status) {
        json_object_set_new(error, "status", json_string(kn_status_name(status)));
        json_object_set_new(error, "message", kn_app_json_text(text, strlen(text)));
    }
    json_object_set_new(object, "event", json_string("stopped"));
    json_object_set_new(object, "error", error);
    kn_app_json_print(object, stdout);
    json_decref(object);
}

/* From the opened model to the end of the drain. */
static enum kn_status serve(struct serve *s)
{
    struct kn_server *server = NULL;
    enum kn_status status = kn_server_open(&server, s->model, &s->opts.server, &s->err);
    if (status)
        return status;
    uint16_t port = kn_server_port(server);
    make_url(s, port);
    publish_server(server);
    if (s->opts.port_file && !write_port_file(s->opts.port_file, port)) {
        snprintf(s->err.text, sizeof s->err.text, "cannot write the port to %.300s: %s", s->opts.port_file, strerror(errno));
        status = KN_E_IO;
        kn_server_stop(server);
        kn_server_stop(server);
        (void)kn_server_run(server); /* ends at once; its reason does not matter any more */
    } else {
        say_listening(s, port);
        status = kn_server_run(server);
        if (status == KN_E_STATE)
            snprintf(s->err.text, sizeof s->err.text, "the cache's book-keeping did not verify at the end, which is a bug (the log says what)");
        if (status == KN_OK && !s->opts.quiet)
            fprintf(stderr, "kinema serve: stopped\n");
    }
    atomic_store_explicit(&server_to_stop, NULL, memory_order_seq_cst); /* with on_stop: all is done, one more signal changes nothing */
    kn_server_close(&server);
    return status;
}

/* Flags are read twice: once to find --config, and again over what the file said. KN_APP_EXIT_OK, or USAGE or FAILED after a message. */
static int read_settings(struct kn_serve_opts *opts, int argc, char **argv)
{
    kn_serve_opts_init(opts);
    int status = kn_serve_flags_read(opts, argc, argv);
    if (status || opts->help)
        return status;
    bool keys_by_flag = opts->n_keys || opts->key_file;
    const char *path = opts->config;
    if (path) {
        free(opts->keys);
        kn_serve_opts_init(opts);
        status = kn_serve_config_read(opts, path, keys_by_flag);
        if (status || (status = kn_serve_flags_read(opts, argc, argv)))
            return status;
    }
    if (opts->key_file && (status = kn_serve_keys_read(opts, opts->key_file)))
        return status;
    return kn_serve_settle(opts);
}

int kn_cmd_serve(int argc, char **argv)
{
    struct serve *s = calloc(1, sizeof *s);
    if (!s)
        return kn_app_fail("serve", "out of memory");
    struct kn_serve_opts *o = &s->opts;
    int exit_status = read_settings(o, argc, argv);
    if (exit_status)
        goto done;
    if (o->help) {
        kn_serve_opts_help();
        goto done;
    }
    if (o->print_config) {
        exit_status = kn_serve_config_print(o, stdout) ? KN_APP_EXIT_OK : KN_APP_EXIT_FAILED; /* main says why */
        goto done;
    }
    exit_status = KN_APP_EXIT_FAILED;
    if (o->model)
        snprintf(s->model_path, sizeof s->model_path, "%s", o->model);
    else if (!kn_app_default_model("serve", s->model_path, sizeof s->model_path))
        goto done;
    kn_app_log_to_stderr(o->verbose ? KN_LOG_LEVEL_DEBUG : o->quiet ? KN_LOG_LEVEL_ERROR : KN_LOG_LEVEL_WARN);
    is_quiet = o->quiet;
    catch_signals();
    enum kn_status status = open_model(s);
    if (status == KN_OK)
        status = serve(s);
    if (status) {
        const char *text = s->err.text[0] ? s->err.text : kn_status_message(status);
        kn_app_fail("serve", "%s", text);
        say_stopped(s, status, text);
    } else {
        say_stopped(s, KN_OK, NULL);
        exit_status = KN_APP_EXIT_OK;
    }
done:
    kn_model_close(&s->model);
    kn_serve_opts_fini(o);
    free(s);
    return exit_status;
}
