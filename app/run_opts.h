/* SPDX-License-Identifier: Apache-2.0 */
/* Arguments of `kinema run`: parsing only, so that the command itself reads as what it does. */
#ifndef KN_RUN_OPTS_H
#define KN_RUN_OPTS_H

#include "app.h"

/* Strings are borrowed from argv, or static. */
struct kn_run_opts {
    const char *model;      /* NULL: the default model */
    const char *prompt;     /* -p */
    const char *file;       /* -f, "-" for the standard input */
    const char *system;
    const char *chat_template; /* NULL: the file's */
    bool raw, json, quiet, verbose, help;
    uint32_t max_tokens;    /* 512 by default */
    struct kn_engine_opts engine;
    struct kn_request_opts request;
    struct kn_tiles_opts tiles; /* these three: what engine and request point at */
    struct kn_hevc_opts hevc;
    struct kn_sampler_opts sampler;
};

/* Returns KN_APP_EXIT_OK, or KN_APP_EXIT_USAGE after a message. */
int kn_run_opts_parse(struct kn_run_opts *opts, int argc, char **argv);
void kn_run_opts_help(void);

#endif
