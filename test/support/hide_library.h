/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A library that the loader cannot load, without a hook in what is tested: the program runs itself again with a folder
 * of its own first in LD_LIBRARY_PATH, which the loader reads once at a program's start. A file of the library's name
 * in that folder is what the loader finds:
 *
 *     hide_begin(argv);                  first in main; returns in the program's second run
 *     hide_library("libx.so.1");         an empty file: dlopen fails
 *     hide_behind("libx.so.1", file);    another library in its place
 *     hide_nothing("libx.so.1");         the system's own again
 *     hide_end();
 *
 * Works for libraries that the program does not link and that were not loaded yet.
 */
#ifndef KN_TEST_HIDE_LIBRARY_H
#define KN_TEST_HIDE_LIBRARY_H

#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define HIDE_VARIABLE "KN_TEST_HIDE" /* the folder, in the second run */

static inline void hide_path(char out[512], const char *file)
{
    const char *folder = getenv(HIDE_VARIABLE);
    if (!folder || snprintf(out, 512, "%s/%s", folder, file) >= 512)
        abort();
}

static inline void hide_begin(char **argv)
{
    char folder[256], path[1024];
    const char *old = getenv("LD_LIBRARY_PATH");
    if (getenv(HIDE_VARIABLE))
        return;
    snprintf(folder, sizeof folder, "%s/test-hide-XXXXXX", KN_BUILD_DIR);
    if (!mkdtemp(folder))
        abort();
    snprintf(path, sizeof path, "%s%s%s", folder, old ? ":" : "", old ? old : "");
    if (setenv(HIDE_VARIABLE, folder, 1) || setenv("LD_LIBRARY_PATH", path, 1))
        abort();
    execv("/proc/self/exe", argv);
    abort();
}

static inline void hide_nothing(const char *file)
{
    char path[512];
    hide_path(path, file);
    unlink(path);
}

static inline void hide_library(const char *file)
{
    char path[512];
    hide_nothing(file);
    hide_path(path, file);
    FILE *f = fopen(path, "w");
    if (!f || fclose(f))
        abort();
}

static inline void hide_behind(const char *file, const char *other)
{
    char path[512];
    hide_nothing(file);
    hide_path(path, file);
    if (symlink(other, path))
        abort();
}

/* Removes the folder, and what a test that failed has left in it. */
static inline void hide_end(void)
{
    const char *folder = getenv(HIDE_VARIABLE);
    DIR *d = opendir(folder);
    for (struct dirent *e; d && (e = readdir(d));)
        if (e->d_name[0] != '.')
            hide_nothing(e->d_name);
    if (d)
        closedir(d);
    rmdir(folder);
}

#endif
