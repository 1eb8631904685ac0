/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Paths as options give them. A shell replaces ~ only at the beginning of a word: --profile=~/p.knp, lmdb:~/store, a value in a
 * configuration file or in a service's environment reach the program as they were written. So whoever takes a path here replaces
 * ~ and ~user as a shell would have; the library never does (it does not read the environment) and refuses such a store.
 *
 * Texts that are made live as long as the program, as its arguments do. Threads: the main one.
 */
#include <pwd.h>
#include <stdlib.h>
#include <string.h>

#include "app.h"

struct made { struct made *next; char text[]; };
static struct made *all_made;

/* [prefix][home][rest], kept. NULL: out of memory. */
static const char *make_path(const char *prefix, size_t n_prefix, const char *home, const char *rest)
{
    size_t n = n_prefix + strlen(home) + strlen(rest) + 1;
    struct made *m = malloc(sizeof *m + n);
    if (!m)
        return NULL;
    memcpy(m->text, prefix, n_prefix);
    snprintf(m->text + n_prefix, n - n_prefix, "%s%s", home, rest);
    m->next = all_made;
    all_made = m;
    return m->text;
}

/* The home folder that a path's ~ or ~user stands for; *rest is what follows it. NULL: *why. */
static const char *home_of(const char *path, const char **rest, const char **why)
{
    char user[64];
    size_t n = strcspn(path + 1, "/");
    *rest = path + 1 + n;
    if (!n) {
        const char *home = getenv("HOME");
        *why = "nobody says where ~ is: HOME is not set";
        return home && *home ? home : NULL;
    }
    *why = "there is no such user; for a file whose name begins with ~ write ./~...";
    if (n >= sizeof user)
        return NULL;
    memcpy(user, path + 1, n);
    user[n] = '\0';
    const struct passwd *entry = getpwnam(user);
    return entry ? entry->pw_dir : NULL;
}

const char *kn_app_expand(const char *path, const char **why)
{
    const char *rest, *home;
    *why = "the path is empty";
    if (!*path)
        return NULL;
    if (*path != '~')
        return path;
    if (!(home = home_of(path, &rest, why)))
        return NULL;
    const char *made = make_path("", 0, home, rest);
    *why = "out of memory";
    return made;
}

/* The next path of a URL: behind lmdb:, or between fault: and the URL within. NULL: there is none. */
static const char *path_in(const char *url)
{
    static const char *const schemes[] = {"lmdb:", "fault:"};
    for (size_t i = 0; i < sizeof schemes / sizeof *schemes; i++)
        if (!strncmp(url, schemes[i], strlen(schemes[i])))
            return url + strlen(schemes[i]);
    return NULL;
}

const char *kn_app_expand_url(const char *url, const char **why)
{
    const char *at = url, *rest, *home, *path;
    *why = "it is empty";
    if (!*url)
        return NULL;
    while ((path = path_in(at))) {
        if (*path == '~') {
            if (!(home = home_of(path, &rest, why)))
                return NULL;
            size_t n = (size_t)(path - url);
            *why = "out of memory";
            if (!(url = make_path(url, n, home, rest)))
                return NULL;
            path = url + n;
        }
        bool is_fault = path - url >= 6 && !memcmp(path - 6, "fault:", 6);
        const char *colon = is_fault ? strchr(path, ':') : NULL;
        if (!colon)
            break;
        at = colon + 1;
    }
    return url;
}

int kn_app_path(const char *command, const char *option, const char *text, const char **out)
{
    const char *why, *path = kn_app_expand(text, &why);
    if (!path)
        return kn_app_usage_error(command, "%s takes a path, not \"%s\": %s", option, text, why);
    *out = path;
    return KN_APP_EXIT_OK;
}

int kn_app_url(const char *command, const char *option, const char *text, const char **out)
{
    const char *why, *url = kn_app_expand_url(text, &why);
    if (!url)
        return kn_app_usage_error(command, "%s takes the URL of a store, such as lmdb:FOLDER, not \"%s\": %s", option, text, why);
    *out = url;
    return KN_APP_EXIT_OK;
}
