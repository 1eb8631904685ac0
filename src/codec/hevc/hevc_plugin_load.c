/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The plugin is looked for next to the file that holds this code (libkinema.so or the program), one folder above, then by the
 * loader, which also knows the program's run path. It stays loaded: x265 keeps global state. Any thread; one lock.
 */
#include "codec/hevc/hevc_plugin_load.h"

#include <dlfcn.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#define PLUGIN_FILE "libkinema_x265.so"

/* Guards nothing but the one load: loaded is written once under it and only read afterwards. */
static pthread_mutex_t load_lock = PTHREAD_MUTEX_INITIALIZER;
static const struct kn_hevc_plugin *loaded;

static void *open_in(const char *folder, int folder_bytes, const char *below)
{
    char path[4096];
    int n = snprintf(path, sizeof path, "%.*s%s%s", folder_bytes, folder, below, PLUGIN_FILE);
    return n > 0 && (size_t)n < sizeof path ? dlopen(path, RTLD_NOW | RTLD_LOCAL) : NULL;
}

static void *open_library(void)
{
    Dl_info here;
    char program[4096];
    const char *file = dladdr((const void *)&load_lock, &here) ? here.dli_fname : NULL;
    if (!file || !strchr(file, '/')) { /* a program found through PATH is known by its bare name only */
        ssize_t n = readlink("/proc/self/exe", program, sizeof program - 1);
        program[n > 0 ? n : 0] = 0;
        file = program;
    }
    const char *slash = strrchr(file, '/');
    void *library = NULL;
    if (slash)
        library = open_in(file, (int)(slash - file), "/");
    if (slash && !library) /* programs in a folder below, such as tests */
        library = open_in(file, (int)(slash - file), "/../");
    return library ? library : dlopen(PLUGIN_FILE, RTLD_NOW | RTLD_LOCAL);
}

enum kn_status kni_hevc_plugin_load(const struct kn_hevc_plugin **out, struct kn_err *err)
{
    enum kn_status s = KN_OK;
    pthread_mutex_lock(&load_lock);
    if (!loaded) {
        void *library = open_library();
        kn_hevc_plugin_fn get = NULL;
        if (library) {
            void *symbol = dlsym(library, KN_HEVC_PLUGIN_SYMBOL);
            memcpy(&get, &symbol, sizeof get); /* ISO C has no cast from object to function pointers */
        }
        const struct kn_hevc_plugin *plugin = get ? get() : NULL;
        if (!library)
            s = kni_err_set(err, KN_E_UNSUPPORTED, "the HEVC encoder x265 needs the plugin " PLUGIN_FILE
                            " next to kinema: install libx265-dev (tools/setup --tests does) and build again, or use the encoder kinema");
        else if (!plugin || plugin->abi_version != KN_HEVC_PLUGIN_ABI || plugin->struct_bytes != sizeof *plugin)
            s = kni_err_set(err, KN_E_UNSUPPORTED, PLUGIN_FILE " is of another version than this Kinema: build both together");
        else
            loaded = plugin;
    }
    *out = loaded;
    pthread_mutex_unlock(&load_lock);
    return s;
}
