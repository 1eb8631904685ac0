/* SPDX-License-Identifier: Apache-2.0 */
/*
 * kinema run: one prompt, one answer.
 *
 *     arguments -> model -> prompt's tokens -> engine -> [ step | next event ]* -> text on stdout -> wait for publishing
 *
 * Text goes out as it is made, but never half a UTF-8 character. With --json one object is printed at the end, also for
 * failures. A store that cannot be written does not spoil the answer: it is said once, and the status stays 0.
 */
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "app.h"
#include "hevc_opts.h"
#include "prompt.h"
#include "run_opts.h"

/* Growing bytes: the answer's text. */
struct text {
    char *data;
    size_t n, room, n_written; /* n_written: already on stdout */
};

struct run {
    struct kn_run_opts opts;
    struct kn_err err;
    char model_path[4096], profile_path[4096];
    char *document;
    size_t document_bytes;
    struct kn_model *model;
    struct kn_engine *engine;
    struct kn_request *request;
    int32_t *prompt;
    size_t n_prompt;
    int32_t *tokens; /* generated */
    size_t n_tokens, tokens_room;
    struct text text;
    struct kn_app_progress progress;
    struct kn_request_stats stats;
    struct kn_engine_stats engine_stats;
    enum kn_stop_reason reason;
    enum kn_status publish_status;
    uint8_t digest[16];
    bool has_digest;
    uint64_t open_ns; /* model and engine */
};

static bool grow(void **data, size_t *room, size_t wanted, size_t item)
{
    if (wanted <= *room)
        return true;
    size_t next = *room ? *room * 2 : 1024;
    if (next < wanted)
        next = wanted;
    void *grown = realloc(*data, next * item);
    if (!grown)
        return false;
    *data = grown;
    *room = next;
    return true;
}

static void set_error(struct run *r, enum kn_status status, const char *text)
{
    r->err.status = status;
    snprintf(r->err.text, sizeof r->err.text, "%s", text && *text ? text : kn_status_message(status));
}

/* The library's sentence, or the code's message where it left none. */
static enum kn_status failed(struct run *r, enum kn_status status)
{
    if (!r->err.text[0])
        set_error(r, status, NULL);
    r->err.status = status;
    return status;
}

static enum kn_status write_text(struct run *r, bool all)
{
    struct text *t = &r->text;
    size_t end = all ? t->n : kn_app_utf8_complete(t->data, t->n);
    if (r->opts.json || end <= t->n_written)
        return KN_OK;
    kn_app_progress_clear(&r->progress);
    size_t n = end - t->n_written;
    if (fwrite(t->data + t->n_written, 1, n, stdout) != n || fflush(stdout)) {
        set_error(r, KN_E_IO, "cannot write to the standard output");
        return KN_E_IO;
    }
    t->n_written = end;
    return KN_OK;
}

static enum kn_status take_token(struct run *r, int32_t token)
{
    const char *bytes;
    size_t n;
    if (!grow((void **)&r->tokens, &r->tokens_room, r->n_tokens + 1, sizeof *r->tokens))
        return failed(r, KN_E_NOMEM);
    r->tokens[r->n_tokens++] = token;
    if (kn_model_token_is_special(r->model, token))
        return KN_OK; /* control tokens are no text */
    enum kn_status s = kn_model_token_bytes(r->model, token, &bytes, &n);
    if (s)
        return failed(r, s);
    if (!grow((void **)&r->text.data, &r->text.room, r->text.n + n + 1, 1))
        return failed(r, KN_E_NOMEM);
    memcpy(r->text.data + r->text.n, bytes, n);
    r->text.n += n;
    return write_text(r, false);
}

static void show_progress(struct run *r)
{
    if (!r->progress.on || r->n_tokens)
        return;
    struct kn_request_stats s = {.size = sizeof s};
    kn_request_get_stats(r->request, &s);
    if (s.n_fetched < s.fetch_wanted)
        kn_app_progress_show(&r->progress, "fetch", s.n_fetched, s.fetch_wanted, "tokens");
    else
        kn_app_progress_show(&r->progress, "prefill", s.n_done, s.n_prompt, "tokens");
}

/* Steps until the request is done. */
static enum kn_status generate(struct run *r)
{
    bool cancelled = false;
    for (;;) {
        if (kn_app_interrupted() && !cancelled) {
            kn_request_cancel(r->request);
            cancelled = true;
        }
        struct kn_event event = {.size = sizeof event};
        enum kn_status s = kn_request_next(r->request, &event);
        if (s == KN_AGAIN) {
            show_progress(r);
            s = kn_engine_step(r->engine);
            if (s == KN_AGAIN)
                s = KN_OK;
        } else if (s == KN_OK && event.kind == KN_EVENT_KIND_TOKEN) {
            s = take_token(r, event.token);
        } else if (s == KN_OK) {
            r->reason = event.reason;
            if (event.status == KN_E_CHANGED)
                kn_model_check(r->model, &r->err); /* names the file */
            if (event.reason == KN_STOP_REASON_ERROR)
                return failed(r, event.status);
            return write_text(r, true);
        }
        if (s)
            return failed(r, s);
    }
}

static enum kn_status open_all(struct run *r)
{
    struct kn_run_opts *o = &r->opts;
    uint64_t begin = kn_app_now_ns();
    struct kn_model_opts mo = {.size = sizeof mo, .path = r->model_path, .chat_template = o->chat_template};
    enum kn_status s = kn_model_open(&r->model, &mo, &r->err);
    if (s) {
        failed(r, s);
        size_t n = strlen(r->err.text);
        if ((s == KN_E_IO || s == KN_E_NOT_FOUND) && !strstr(r->err.text, "all parts of the model"))
            snprintf(r->err.text + n, sizeof r->err.text - n, "; `make model` in Kinema's sources downloads the demo model");
        return s;
    }
    bool without_template;
    struct kn_prompt prompt = {.document = r->document, .document_bytes = r->document_bytes, .question = o->prompt,
                               .system = o->system, .raw = o->raw};
    s = kn_prompt_tokens(r->model, &prompt, &r->prompt, &r->n_prompt, &without_template, &r->err);
    if (s)
        return s;
    if (without_template && !o->quiet)
        fprintf(stderr, "kinema run: %s; the prompt is continued as it is (--chat-template makes a chat of it)\n", kn_prompt_no_template(r->model));
    uint32_t trained = kn_model_info(r->model)->n_ctx_train, limit = o->engine.n_ctx ? o->engine.n_ctx : trained;
    if (r->n_prompt >= limit) {
        snprintf(r->err.text, sizeof r->err.text, "the prompt has %zu tokens and the context holds %" PRIu32 ", answer included; %s",
                 r->n_prompt, limit, limit < trained ? "raise -c or shorten the prompt" : "shorten the prompt");
        return failed(r, KN_E_CONTEXT);
    }
    bool by_default = !o->engine.preset;
    if (o->engine.store_url && !kn_app_settle_preset(&o->engine, r->model, r->profile_path, sizeof r->profile_path, &r->err))
        return failed(r, KN_E_ARG);
    if (o->engine.store_url && !o->quiet)
        kn_app_say_preset("run", &o->engine, r->model, by_default);
    s = kn_engine_open(&r->engine, r->model, &o->engine, &r->err);
    if (s)
        return failed(r, s);
    r->open_ns = kn_app_now_ns() - begin;
    o->request.tokens = r->prompt;
    o->request.n_tokens = r->n_prompt;
    o->request.max_tokens = o->max_tokens;
    s = kn_request_submit(&r->request, r->engine, &o->request, &r->err);
    return s ? failed(r, s) : KN_OK;
}

/* The answer is out; what is left is to see the chunks written. */
static void finish_publishing(struct run *r)
{
    if (!r->opts.engine.store_url || r->opts.request.no_publish)
        return;
    r->publish_status = kn_engine_flush(r->engine, 0);
    kn_engine_get_stats(r->engine, &r->engine_stats);
    if (r->publish_status && r->publish_status != KN_E_CHANGED && !kn_app_log_count()) /* else the library has said it, in more detail */
        fprintf(stderr, "kinema run: the prefix was not published: %s (store %s); the answer is not affected\n",
                kn_status_message(r->publish_status), r->opts.engine.store_url);
}

static double seconds(uint64_t ns)
{
    return (double)ns / 1e9;
}

static double rate(uint64_t n, uint64_t ns)
{
    return ns ? (double)n / seconds(ns) : 0;
}

static const char *reason_name(enum kn_stop_reason reason)
{
    static const char *const names[] = {"none", "stop", "length", "cancelled", "error"};
    return (unsigned)reason < sizeof names / sizeof *names ? names[reason] : "none";
}

static const char *cpu_name(enum kn_cpu_level level)
{
    return level == KN_CPU_LEVEL_AVX512 ? "avx512" : level == KN_CPU_LEVEL_AVX2 ? "avx2" : "ref";
}

static json_t *integer(uint64_t value)
{
    return json_integer((json_int_t)value);
}

static void add_results(struct run *r, json_t *o)
{
    const struct kn_request_stats *s = &r->stats;
    const struct kn_engine_stats *e = &r->engine_stats;
    uint64_t reused = s->n_cached + s->n_fetched, computed = s->n_prompt > reused ? s->n_prompt - reused : 0;
    uint64_t prefill_ns = s->ttft_ns > s->fetch_ns ? s->ttft_ns - s->fetch_ns : 0;
    json_t *tokens = json_array();
    for (size_t i = 0; i < r->n_tokens; i++)
        json_array_append_new(tokens, json_integer(r->tokens[i]));
    json_object_set_new(o, "text", kn_app_json_text(r->text.data ? r->text.data : "", r->text.n));
    json_object_set_new(o, "tokens", tokens);
    json_object_set_new(o, "stop_reason", json_string(reason_name(r->reason)));
    json_object_set_new(o, "prompt_tokens", integer(s->n_prompt));
    json_object_set_new(o, "cached_tokens", integer(s->n_cached));
    json_object_set_new(o, "fetched_tokens", integer(s->n_fetched));
    json_object_set_new(o, "computed_tokens", integer(computed));
    json_object_set_new(o, "quality", json_string(kn_kv_quality_name(s->quality)));
    json_object_set_new(o, "generated_tokens", integer(r->n_tokens));
    json_object_set_new(o, "misses", integer(s->n_misses));
    json_object_set_new(o, "ttft_s", json_real(seconds(s->ttft_ns)));
    json_object_set_new(o, "fetch_s", json_real(seconds(s->fetch_ns)));
    json_object_set_new(o, "fetch_bytes", integer(s->fetch_bytes));
    json_object_set_new(o, "open_s", json_real(seconds(r->open_ns)));
    json_object_set_new(o, "total_s", json_real(seconds(s->total_ns)));
    json_object_set_new(o, "prefill_tok_s", json_real(rate(computed, prefill_ns)));
    json_object_set_new(o, "decode_tok_s",
                        json_real(r->n_tokens > 1 && s->total_ns > s->ttft_ns ? rate(r->n_tokens - 1, s->total_ns - s->ttft_ns) : 0));
    json_t *published = json_object();
    json_object_set_new(published, "chunks", integer(e->published_chunks));
    json_object_set_new(published, "bytes", integer(e->published_bytes));
    json_object_set_new(published, "raw_bytes", integer(e->published_raw_bytes));
    json_object_set_new(published, "errors", integer(e->publish_errors));
    json_object_set_new(published, "s", json_real(seconds(e->publish_ns)));
    json_object_set_new(published, "read_only", json_boolean(e->store_read_only));
    json_object_set_new(published, "error", r->publish_status ? json_string(kn_status_message(r->publish_status)) : json_null());
    json_object_set_new(o, "published", published);
    enum kn_preset preset = r->opts.engine.preset ? r->opts.engine.preset : KN_PRESET_EXACT; /* default: there is no store */
    bool spectral = kn_app_preset_needs_profile(preset);
    json_object_set_new(o, "preset", json_string(kn_app_preset_names[preset]));
    json_object_set_new(o, "lossy", json_boolean(preset != KN_PRESET_EXACT));
    json_object_set_new(o, "backend", spectral ? json_string(r->opts.engine.backend == KN_BACKEND_HEVC ? "hevc" : "rans") : json_null());
    bool video = preset == KN_PRESET_TILES || (spectral && r->opts.engine.backend == KN_BACKEND_HEVC);
    json_object_set_new(o, "hevc_encoder", video ? json_string(kn_app_hevc_encoder_name(&r->opts.hevc)) : json_null());
    json_object_set_new(o, "hevc_tools", video ? json_string(kn_app_hevc_tools_name(&r->opts.hevc)) : json_null());
    json_object_set_new(o, "decode_bytes", integer(e->fetch_working_bytes));
    json_object_set_new(o, "kv_bytes_per_token", integer(kn_model_info(r->model)->kv_bytes_per_token));
    json_object_set_new(o, "threads", integer(e->n_threads));
    json_object_set_new(o, "cpu", json_string(cpu_name(e->cpu_level)));
    json_object_set_new(o, "warnings", integer(kn_app_log_count()));
    char hex[33];
    kn_app_hex(r->digest, hex);
    json_object_set_new(o, "kv_digest", r->has_digest ? json_string(hex) : json_null());
}

static void print_json(struct run *r, enum kn_status status)
{
    json_t *o = json_object();
    json_object_set_new(o, "model", kn_app_json_text(r->model_path, strlen(r->model_path)));
    if (r->request)
        add_results(r, o);
    json_t *error = status ? json_object() : json_null();
    if (status) {
        json_object_set_new(error, "status", json_string(kn_status_name(status)));
        json_object_set_new(error, "message", kn_app_json_text(r->err.text, strlen(r->err.text)));
    }
    json_object_set_new(o, "error", error);
    kn_app_json_print(o, stdout);
    json_decref(o);
}

static enum kn_status read_document(struct run *r)
{
    const char *why;
    if (!r->opts.file)
        return KN_OK;
    r->document = kn_app_read_file(r->opts.file, &r->document_bytes, &why);
    if (r->document)
        return KN_OK;
    snprintf(r->err.text, sizeof r->err.text, "cannot read %.300s: %s", r->opts.file, why);
    return failed(r, KN_E_IO);
}

static enum kn_status answer(struct run *r)
{
    enum kn_status s = read_document(r);
    if (s == KN_OK)
        s = open_all(r);
    if (s == KN_OK) {
        s = generate(r);
        kn_app_progress_clear(&r->progress);
        if (!r->opts.json && r->text.n_written && r->text.data[r->text.n_written - 1] != '\n')
            fputc('\n', stdout);
        fflush(stdout);
    }
    if (r->request) {
        r->stats.size = sizeof r->stats;
        r->engine_stats.size = sizeof r->engine_stats;
        kn_request_get_stats(r->request, &r->stats);
        kn_engine_get_stats(r->engine, &r->engine_stats);
        if (s == KN_OK && r->opts.json)
            r->has_digest = kn_request_kv_digest(r->request, r->n_prompt, r->digest) == KN_OK;
        finish_publishing(r);
        if (s == KN_OK && r->publish_status == KN_E_CHANGED) { /* the answer is right, what is on disk now is another model */
            kn_model_check(r->model, &r->err);
            s = failed(r, KN_E_CHANGED);
        }
    }
    return s;
}

int kn_cmd_run(int argc, char **argv)
{
    struct run *r = calloc(1, sizeof *r);
    if (!r)
        return kn_app_fail("run", "out of memory");
    int exit_status = kn_run_opts_parse(&r->opts, argc, argv);
    if (exit_status == KN_APP_EXIT_OK && r->opts.help) {
        kn_run_opts_help();
        goto done;
    }
    if (exit_status)
        goto done;
    exit_status = KN_APP_EXIT_FAILED;
    if (r->opts.model)
        snprintf(r->model_path, sizeof r->model_path, "%s", r->opts.model);
    else if (!kn_app_default_model("run", r->model_path, sizeof r->model_path))
        goto done;

    kn_app_log_to_stderr(r->opts.verbose ? KN_LOG_LEVEL_DEBUG : r->opts.quiet ? KN_LOG_LEVEL_ERROR : KN_LOG_LEVEL_WARN);
    kn_app_progress_init(&r->progress, !r->opts.quiet);
    kn_app_catch_interrupt();
    enum kn_status s = answer(r);
    if (s)
        kn_app_fail("run", "%s", r->err.text);
    if (r->opts.json)
        print_json(r, s);
    if (s == KN_OK)
        exit_status = r->reason == KN_STOP_REASON_CANCELLED ? KN_APP_EXIT_INTERRUPTED : KN_APP_EXIT_OK;
    else if (kn_app_interrupted())
        exit_status = KN_APP_EXIT_INTERRUPTED; /* while the prompt was being read, for example */
done:
    kn_request_close(&r->request);
    kn_engine_close(&r->engine);
    kn_model_close(&r->model);
    free(r->prompt);
    free(r->tokens);
    free(r->text.data);
    free(r->document);
    free(r);
    return exit_status;
}
