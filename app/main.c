/* SPDX-License-Identifier: Apache-2.0 */
/* The program: finds the subcommand and hands it the rest of the arguments. No subcommand or an unknown one is status 2. */
#include <signal.h>
#include <stdio.h>
#include <string.h>

#include "app.h"

static const struct {
    const char *name;
    int (*run)(int argc, char **argv);
    const char *what;
} commands[] = {
    {"run", kn_cmd_run, "answer a prompt"},
    {"serve", kn_cmd_serve, "serve a model over HTTP, as OpenAI's API does"},
    {"model", kn_cmd_model, "show a model, tokenize text"},
    {"store", kn_cmd_store, "list, check and clean stored prefixes"},
    {"profile", kn_cmd_profile, "learn how a model's cache can be coded small"},
    {"demo", kn_cmd_demo, "fetch a document's cache instead of recomputing it, and compare"},
    {"codec", kn_cmd_codec, "measure codecs of the cache, beside rivals"},
    {"bench", kn_cmd_bench, "measure speed, beside another engine"},
};

static void help(FILE *out)
{
    fputs("Kinema runs language models and moves their key-value caches.\n\nusage: kinema COMMAND [options]\n\n", out);
    for (size_t i = 0; i < sizeof commands / sizeof *commands; i++)
        fprintf(out, "  %-8s %s\n", commands[i].name, commands[i].what);
    fputs("  version  print the version\n  help     print this\n\nOptions of a command: kinema COMMAND --help\n", out);
}

/* A reader that goes away must not look like success: writes then fail, and so does this. */
static int flush_output(int status)
{
    if (fflush(stdout) || ferror(stdout))
        return status ? status : kn_app_fail("", "cannot write to the standard output");
    return status;
}

int main(int argc, char **argv)
{
    signal(SIGPIPE, SIG_IGN);
    if (argc < 2) {
        help(stderr);
        return KN_APP_EXIT_USAGE;
    }
    const char *name = argv[1];
    for (size_t i = 0; i < sizeof commands / sizeof *commands; i++) {
        if (!strcmp(name, commands[i].name))
            return flush_output(commands[i].run(argc - 1, argv + 1));
    }
    if (!strcmp(name, "version") || !strcmp(name, "--version") || !strcmp(name, "-V")) {
        printf("kinema %s (%s)\n", kn_version(), kn_app_commit);
        return flush_output(KN_APP_EXIT_OK);
    }
    if (!strcmp(name, "help") || !strcmp(name, "--help") || !strcmp(name, "-h")) {
        help(stdout);
        return flush_output(KN_APP_EXIT_OK);
    }
    fprintf(stderr, "kinema: there is no command %s\n\n", name);
    help(stderr);
    return KN_APP_EXIT_USAGE;
}
