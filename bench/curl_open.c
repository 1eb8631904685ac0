/* SPDX-License-Identifier: Apache-2.0 */
/* See curl_open.h. libcurl has kept its soname, and so its interface, since 2006: the number is written here, no
 * header has it. */
#include "curl_open.h"

#include <dlfcn.h>
#include <pthread.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#define CURL_FILE "libcurl.so.4"

static const struct symbol { const char *name; size_t offset; } curl_symbols[] = {
#define CURL_SYMBOL(symbol) {#symbol, offsetof(struct kn_curl, symbol)},
    KN_CURL_SYMBOLS(CURL_SYMBOL)
};

/* Guards the one opening: curl_table is written under it and only read once curl_is_open is set. */
static pthread_mutex_t curl_lock = PTHREAD_MUTEX_INITIALIZER;
static struct kn_curl curl_table;
static bool curl_is_open;

static bool open_curl(const char **why)
{
    void *library = dlopen(CURL_FILE, RTLD_NOW | RTLD_LOCAL);
    if (!library) {
        *why = CURL_FILE " cannot be loaded, which sends the requests: install it (Debian: apt-get install libcurl4)";
        return false;
    }
    for (size_t i = 0; i < sizeof curl_symbols / sizeof *curl_symbols; i++) {
        void *found = dlsym(library, curl_symbols[i].name);
        if (!found) {
            *why = CURL_FILE ", which sends the requests, is too old: install version 7.66 or later (Debian: libcurl4)";
            dlclose(library);
            return false;
        }
        /* ISO C has no cast from object to function pointers. */
        memcpy((uint8_t *)&curl_table + curl_symbols[i].offset, &found, sizeof found);
    }
    return true;
}

const struct kn_curl *kn_curl_open(const char **why)
{
    const char *reason = NULL;
    pthread_mutex_lock(&curl_lock);
    curl_is_open = curl_is_open || open_curl(&reason);
    pthread_mutex_unlock(&curl_lock);
    if (why && reason)
        *why = reason;
    return reason ? NULL : &curl_table;
}
