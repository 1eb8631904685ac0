/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Settings of `kinema serve`: one table, read by everything that needs to know them.
 *
 *     flags --pool-size 2G        --.
 *                                    >-- kn_serve_set --> struct kn_serve_opts --> kn_serve_settle --> engine and server options
 *     file {"pool_size": "2G"}    --'          |
 *                                              `--> --help, --print-config, "did you mean"
 *
 * A flag's name is the setting's with - for _. Flags override the file, whatever their order; to lists both add. Who joins flags and
 * file is the subcommand (cmd_serve.c); serve_config.h reads files by this table, which knows of no file.
 */
#ifndef KN_SERVE_OPTS_H
#define KN_SERVE_OPTS_H

#include "app.h"

enum kn_serve_kind {
    KN_SERVE_KIND_TEXT,   /* const char * */
    KN_SERVE_KIND_COUNT,  /* uint32_t in [min, max] */
    KN_SERVE_KIND_PORT,   /* uint16_t */
    KN_SERVE_KIND_SIZE,   /* uint64_t bytes: "2G" */
    KN_SERVE_KIND_TIME,   /* uint32_t milliseconds: "500ms", "30s", "5m"; a unit must be given, unless plain_ms */
    KN_SERVE_KIND_AGE,    /* uint64_t seconds: "90", "12h", "7d", as kinema run takes them */
    KN_SERVE_KIND_CHOICE, /* int: index of a name */
    KN_SERVE_KIND_FLAG,   /* bool */
    KN_SERVE_KIND_HEVC,   /* a member of hevc */
    KN_SERVE_KIND_LIST    /* char *, owned: words with commas between them; each flag and the file add to it */
};

struct kn_serve_setting {
    const char *name; /* "pool_size" */
    enum kn_serve_kind kind;
    char letter;      /* short flag or 0 */
    enum { KN_SERVE_TEXT_PLAIN, KN_SERVE_TEXT_PATH, KN_SERVE_TEXT_URL } text; /* TEXT: what it is; a leading ~ of the others is replaced */
    bool plain_ms;    /* TIME: a plain number is milliseconds, as kinema run takes it */
    size_t offset;    /* of the value in struct kn_serve_opts */
    uint32_t min, max;
    uint64_t fallback; /* the default where 0 stands for it; 0: nothing to say */
    const char *const *names; /* CHOICE */
    size_t n_names;
    int option;       /* HEVC: kn_app_hevc_option's */
    const char *arg, *what; /* of the help; lines of what are split at \n */
    const char *group; /* heading in front of it, or NULL */
};

/* Strings are borrowed from argv, or owned through root and key_text. */
struct kn_serve_opts {
    struct kn_server_opts server; /* server.engine stays NULL until kn_serve_settle */
    struct kn_engine_opts engine; /* its tiles and hevc stay NULL until kn_serve_settle */
    struct kn_tiles_opts tiles;
    struct kn_hevc_opts hevc;
    const char *model, *config, *port_file, *key_file;
    int preset, kv_quality, backend, kv_type, cpu, fetch_queue; /* indexes of names; preset and kv_quality 0: by profile and preset; cpu 0: the machine's */
    int chat_template; /* the same; 0: the file's */
    bool quiet, verbose, json, print_config, help;
    struct kn_server_key *keys;
    size_t n_keys;
    char *allow_hosts;
    json_t *root;     /* of the configuration file */
    char *key_text;   /* of the key file, cut into strings */
};

extern const struct kn_serve_setting kn_serve_settings[];
extern const size_t kn_serve_n_settings;
extern const char *const kn_serve_chat_templates[];

/* Everything at its default. Releases nothing of what was there. */
void kn_serve_opts_init(struct kn_serve_opts *opts);
/* Reads flags over what is there; stops at --help. KN_APP_EXIT_OK, or USAGE or FAILED after a message. Call fini in any case. */
int kn_serve_flags_read(struct kn_serve_opts *opts, int argc, char **argv);
/* Checks what no single setting can see, and fills server and engine options from indexes of names and lists. The same results. */
int kn_serve_settle(struct kn_serve_opts *opts);
void kn_serve_opts_fini(struct kn_serve_opts *opts);
void kn_serve_opts_help(void);

/* Gives a setting its value. False: *wanted says what it takes. */
bool kn_serve_set(struct kn_serve_opts *opts, const struct kn_serve_setting *setting, const char *text, char *wanted, size_t wanted_bytes);
/* NULL: unknown. */
const struct kn_serve_setting *kn_serve_find(const char *name);
/* Adds a tenant; strings are borrowed. False: out of memory. */
bool kn_serve_add_key(struct kn_serve_opts *opts, const char *key, const char *name, const char *salt);
/* The known name that is nearest to what was written, - and _ alike; NULL when none is near. */
const char *kn_serve_nearest(const char *name, const char *const *names, size_t n_names);
/* The same among the settings. */
const char *kn_serve_nearest_setting(const char *name);
/* The value as a new JSON value: defaults as what they stand for, null where the model decides. */
json_t *kn_serve_value(const struct kn_serve_opts *opts, const struct kn_serve_setting *setting);

#endif
