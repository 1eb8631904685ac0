/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Both libraries are looked for by the loader, under the sonames of the versions that Kinema was compiled against. They
 * stay loaded: nothing is gained by a close. A failure is not kept, so that a library that is installed later is found
 * by the next decoder. Any thread; one lock.
 */
#include "codec/hevc/hevc_avcodec.h"

#include <dlfcn.h>
#include <pthread.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#define TEXT_OF(x) #x
#define TEXT(x) TEXT_OF(x)
#define AVCODEC_MAJOR TEXT(LIBAVCODEC_VERSION_MAJOR)
#define AVUTIL_MAJOR TEXT(LIBAVUTIL_VERSION_MAJOR)
#define WITHOUT                                                                                       \
    "; without it chunks coded as video cannot be restored, and video neither decoded nor verified; all else works"

enum { AVCODEC, AVUTIL };

static const struct library { const char *file, *package; unsigned major; } libraries[] = {
    [AVCODEC] = {"libavcodec.so." AVCODEC_MAJOR, "libavcodec" AVCODEC_MAJOR, LIBAVCODEC_VERSION_MAJOR},
    [AVUTIL] = {"libavutil.so." AVUTIL_MAJOR, "libavutil" AVUTIL_MAJOR, LIBAVUTIL_VERSION_MAJOR},
};

static const struct symbol { const char *name; size_t offset; int library; } symbols[] = {
#define SYMBOL(symbol, from) {#symbol, offsetof(struct kni_avcodec, symbol), from},
#define AVCODEC_SYMBOL(symbol) SYMBOL(symbol, AVCODEC)
#define AVUTIL_SYMBOL(symbol) SYMBOL(symbol, AVUTIL)
    KNI_AVCODEC_SYMBOLS(AVCODEC_SYMBOL)
    KNI_AVUTIL_SYMBOLS(AVUTIL_SYMBOL)
};
_Static_assert(sizeof symbols / sizeof *symbols * sizeof(void *) == sizeof(struct kni_avcodec),
               "the table is pointers and nothing else");

/* Guards nothing but the one load: table is written under it and only read once is_loaded is set. */
static pthread_mutex_t load_lock = PTHREAD_MUTEX_INITIALIZER;
static struct kni_avcodec table;
static bool is_loaded;

static enum kn_status open_library(void **handle, const struct library *library, struct kn_err *err)
{
    /* Now: a symbol that is missing ends in a sentence, not in the process's end. */
    *handle = dlopen(library->file, RTLD_NOW | RTLD_LOCAL);
    if (*handle)
        return KN_OK;
    const char *why = dlerror();
    return kni_err_set(err, KN_E_UNSUPPORTED,
                       "%s cannot be loaded: install it (Debian: apt-get install %s)" WITHOUT " (%s)",
                       library->file, library->package, why ? why : "no reason given");
}

static enum kn_status fill(struct kni_avcodec *a, void *const handles[2], struct kn_err *err)
{
    for (size_t i = 0; i < sizeof symbols / sizeof *symbols; i++) {
        const struct symbol *s = &symbols[i];
        void *found = dlsym(handles[s->library], s->name);
        if (!found)
            return kni_err_set(err, KN_E_UNSUPPORTED,
                               "%s has no function %s: install package %s, or build Kinema with this one" WITHOUT,
                               libraries[s->library].file, s->name, libraries[s->library].package);
        memcpy((uint8_t *)a + s->offset, &found, sizeof found); /* ISO C has no cast from object to function pointers */
    }
    const unsigned majors[] = {[AVCODEC] = a->avcodec_version() >> 16, [AVUTIL] = a->avutil_version() >> 16};
    for (size_t i = 0; i < sizeof libraries / sizeof *libraries; i++)
        if (majors[i] != libraries[i].major)
            return kni_err_set(err, KN_E_UNSUPPORTED,
                               "%s says that its version is %u, and Kinema was built with %u: build it with this one, "
                               "or install package %s" WITHOUT,
                               libraries[i].file, majors[i], libraries[i].major, libraries[i].package);
    return KN_OK;
}

enum kn_status kni_avcodec_load(const struct kni_avcodec **out, struct kn_err *err)
{
    enum kn_status s = KN_OK;
    pthread_mutex_lock(&load_lock);
    if (!is_loaded) {
        void *handles[2] = {NULL, NULL};
        s = open_library(&handles[AVCODEC], &libraries[AVCODEC], err);
        if (s == KN_OK)
            s = open_library(&handles[AVUTIL], &libraries[AVUTIL], err);
        if (s == KN_OK)
            s = fill(&table, handles, err);
        is_loaded = s == KN_OK;
        for (int i = 0; i < 2 && !is_loaded; i++)
            if (handles[i])
                dlclose(handles[i]);
    }
    *out = is_loaded ? &table : NULL;
    pthread_mutex_unlock(&load_lock);
    return s;
}
