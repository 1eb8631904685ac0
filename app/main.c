/* SPDX-License-Identifier: Apache-2.0 */
/* The program: finds the subcommand and hands it the rest of the arguments. No subcommand or an unknown one is status 2. */
#include <errno.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

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

/* Output that did not arrive must not look like success. A reader that has gone, as head does, has what it wanted: no word about that, but the status that a
 * shell shows for programs that SIGPIPE ends. The signal itself is ignored, because sockets of stores and of clients raise it, too. */
static int flush_output(int status)
{
    bool bad = ferror(stdout);
    errno = 0;
    bad |= fflush(stdout) != 0;
    if (!bad || (status && status != KN_APP_EXIT_FAILED))
        return status;
    struct pollfd out = {.fd = STDOUT_FILENO, .events = POLLOUT};
    if (errno == EPIPE || (poll(&out, 1, 0) == 1 && out.revents & POLLERR)) /* POLLERR: a pipe without a reader */
        return KN_APP_EXIT_PIPE;
    return status ? status : kn_app_fail("", "cannot write to the standard output");
}

/* Whether an option, perhaps shortened, takes the name of a file, of a folder or of a store. */
static bool takes_name(const char *option, size_t n)
{
    static const char *const names[] = {
        "-m", "-f", "-o", "--model", "--file", "--output", "--store", "--profile", "--text", "--calibration", "--document", "--config", "--port-file",
        "--api-key-file", "--reference", "--peer-server", "--peer-model", "--chat-template",
    };
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        if (n > 1 && (n > 2 || names[i][1] != '-') && !strncmp(option, names[i], n))
            return true;
    return false;
}

/* Whether what follows an option is a text, whatever it looks like. */
static bool takes_text(const char *option)
{
    static const char *const names[] = {"-p", "--prompt", "--system", "--salt", "--first", "--second", "--api-key", "--peer-args"};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        if (!strcmp(option, names[i]))
            return true;
    return false;
}

/* An empty argument is mostly a variable that nobody has set: it is named, not taken for a file without a name. Of options that take anything else
 * the command itself says what they take. */
static int check_empty(int argc, char **argv)
{
    const char *command = argv[1];
    for (int i = 2; i < argc; i++) {
        const char *at = argv[i], *before = argv[i - 1];
        size_t n = strlen(at), n_before = strlen(before);
        if (!n && (i == 2 || *before != '-'))
            return kn_app_usage_error(command, "the argument behind \"%s\" is empty: give it a value, or leave it away", before);
        if (!n && takes_name(before, n_before))
            return kn_app_usage_error(command, "%s is empty: give it a value, or leave it away", before);
        if (n > 3 && !strncmp(at, "--", 2) && strchr(at, '=') == at + n - 1 && takes_name(at, n - 1) && !takes_text(before))
            return kn_app_usage_error(command, "%.*s is empty: give it a value, or leave it away", (int)(n - 1), at);
    }
    return KN_APP_EXIT_OK;
}

int main(int argc, char **argv)
{
    signal(SIGPIPE, SIG_IGN);
    kn_sigbus_report(STDERR_FILENO); /* without it, a file that is cut ends the program without a word */
    if (argc < 2) {
        help(stderr);
        return KN_APP_EXIT_USAGE;
    }
    const char *name = argv[1];
    for (size_t i = 0; i < sizeof commands / sizeof *commands; i++) {
        if (!strcmp(name, commands[i].name))
            return check_empty(argc, argv) ? KN_APP_EXIT_USAGE : flush_output(commands[i].run(argc - 1, argv + 1));
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
