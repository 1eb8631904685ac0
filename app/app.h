/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What the subcommands share: strict parsing of arguments, messages on stderr, a progress line, files, UTF-8, JSON text.
 *
 * A subcommand is int kn_cmd_<name>(int argc, char **argv) where argv[0] is its own name ("run"), as for main(). It
 * returns the exit status: 0 done, 1 failed, 2 used wrongly. The program is a client of the public headers only.
 *
 * Threads: everything here belongs to the main thread, except the log callback, which may come from any.
 */
#ifndef KN_APP_H
#define KN_APP_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

#include <jansson.h>
#include <kinema/kinema.h>

enum kn_app_exit { KN_APP_EXIT_OK = 0, KN_APP_EXIT_FAILED = 1, KN_APP_EXIT_USAGE = 2, KN_APP_EXIT_INTERRUPTED = 130, KN_APP_EXIT_PIPE = 141 };

/* ---- subcommands, one file each */
int kn_cmd_run(int argc, char **argv);
int kn_cmd_serve(int argc, char **argv);
int kn_cmd_model(int argc, char **argv);
int kn_cmd_store(int argc, char **argv);
int kn_cmd_profile(int argc, char **argv);
int kn_cmd_demo(int argc, char **argv);
int kn_cmd_codec(int argc, char **argv);
int kn_cmd_codec_video(int argc, char **argv); /* of codec: argv[0] is "encode" or "decode" */
int kn_cmd_bench(int argc, char **argv);

/* ---- arguments: each refuses empty text, trailing characters and values outside [min, max] */
bool kn_app_parse_u64(const char *text, uint64_t min, uint64_t max, uint64_t *out);
bool kn_app_parse_u32(const char *text, uint32_t min, uint32_t max, uint32_t *out);
bool kn_app_parse_f32(const char *text, float min, float max, float *out);
/* "4096", "64K", "512MiB", "16G": powers of 1024. */
bool kn_app_parse_size(const char *text, uint64_t *bytes);
/* "90", "90s", "15m", "12h", "7d". */
bool kn_app_parse_duration(const char *text, uint64_t *seconds);
/* "f16,bf16" style: index of text among the names, or -1. */
int kn_app_parse_name(const char *text, const char *const *names, size_t n_names);

/* ---- paths (app_path.c): not empty, and a leading ~ or ~user replaced by that home folder where no shell has done it. What is returned is
 * the text itself or lives as long as the program */
/* NULL: *why says why not. */
const char *kn_app_expand(const char *path, const char **why);
/* The same for the paths in a store's URL. */
const char *kn_app_expand_url(const char *url, const char **why);
/* Both for an option's value: KN_APP_EXIT_OK and *out, or USAGE after a message. */
int kn_app_path(const char *command, const char *option, const char *text, const char **out);
int kn_app_url(const char *command, const char *option, const char *text, const char **out);

/* ---- messages */
/* Prints "kinema NAME: text" and returns KN_APP_EXIT_USAGE. */
int kn_app_usage_error(const char *command, const char *format, ...) __attribute__((format(printf, 2, 3)));
/* Prints "kinema NAME: text" and returns KN_APP_EXIT_FAILED. */
int kn_app_fail(const char *command, const char *format, ...) __attribute__((format(printf, 2, 3)));
/* Routes the library's log to stderr from level lowest on. */
void kn_app_log_to_stderr(enum kn_log_level lowest);
/* Number of library warnings and errors that were shown so far. */
uint64_t kn_app_log_count(void);

/* ---- progress: one line on stderr that rewrites itself, only on a terminal */
struct kn_app_progress {
    bool on, shown;
    uint64_t last_ns;
};
void kn_app_progress_init(struct kn_app_progress *progress, bool wanted);
void kn_app_progress_show(struct kn_app_progress *progress, const char *what, uint64_t done, uint64_t all, const char *unit);
void kn_app_progress_clear(struct kn_app_progress *progress);
/* The library's kn_progress_fn. user begins with a struct kn_app_progress. */
void kn_app_on_progress(void *user, const char *phase, double done);

/* ---- files and the environment */
/* Whole file, or stdin for "-", with a NUL after it; release with free(). NULL: *why says what failed (static or errno text). */
char *kn_app_read_file(const char *path, size_t *n_bytes, const char **why);
/* Tokens of a text file, BOS in front if the model wants one; release with free(). NULL after a message on stderr. */
int32_t *kn_app_read_tokens(const char *command, const struct kn_model *model, const char *path, size_t *n);
/* Folder for the model and the benchmark's peers: $KINEMA_CACHE, $XDG_CACHE_HOME/kinema or ~/.cache/kinema. false: no home. */
bool kn_app_cache_path(const char *file, char *out, size_t out_bytes);
/* -m's default: $KINEMA_MODEL or the cached demo model; false and a message on stderr when there is neither. */
bool kn_app_default_model(const char *command, char *out, size_t out_bytes);
uint64_t kn_app_now_ns(void);
/* Flag that SIGINT sets; a second SIGINT ends the program. */
void kn_app_catch_interrupt(void);
bool kn_app_interrupted(void);

/* ---- presets and profiles */
#define KN_APP_N_PRESETS 6
/* By enum kn_preset; the first is the default's. */
extern const char *const kn_app_preset_names[KN_APP_N_PRESETS];
bool kn_app_preset_needs_profile(enum kn_preset preset);
/* --profile's default: $KINEMA_PROFILE, or the model's own, profiles/<fingerprint>.knp in the cache folder. false: neither. */
bool kn_app_default_profile(const struct kn_model *model, char *out, size_t out_bytes);
/* Settles preset and profile before an engine with a store is opened: exact unless a preset or a profile is asked for; a profile alone
 * asks for medium. A lossy preset without a profile takes the default one (into path, which must live as long as opts). false: the
 * preset needs a profile and there is none, said in err. */
bool kn_app_settle_preset(struct kn_engine_opts *opts, const struct kn_model *model, char *path, size_t path_bytes, struct kn_err *err);
/* On the standard error: what the store is used with, if that is lossy; or, where nobody asked for a preset, what a lossy one would
 * save. by_default: nobody named a preset. */
void kn_app_say_preset(const char *command, const struct kn_engine_opts *opts, const struct kn_model *model, bool by_default);

/* ---- text */
/* Length of the longest part of text that does not end inside a UTF-8 character. */
size_t kn_app_utf8_complete(const char *text, size_t n_bytes);
/* JSON string; bytes that are no UTF-8 become U+FFFD. */
json_t *kn_app_json_text(const char *text, size_t n_bytes);
/* {"cpu": "...", "cores": n}: the machine as benchmarks print it. */
json_t *kn_app_json_machine(void);
/* Prints an object on one line, keys in the order of insertion. false when the file cannot be written. */
bool kn_app_json_print(const json_t *object, FILE *out);
/* 32 lower-case digits and NUL: a fingerprint, an id, a digest. */
void kn_app_hex(const uint8_t bytes[16], char out[33]);
static inline const char *kn_app_kv_type_name(enum kn_kv_type type)
{
    return type == KN_KV_TYPE_BF16 ? "bf16" : "f16";
}
/* "1.2 MB" with decimal units, into a static ring of buffers: good for one printf. */
const char *kn_app_bytes_text(double bytes);

/* Commit that the program was built from, such as "1a2b3c4d5e6f" or "unknown". Generated by the build. */
extern const char kn_app_commit[];
/* Folder of the sources at build time: where the benchmark looks for its helper scripts last. */
extern const char kn_app_source_dir[];

#endif
